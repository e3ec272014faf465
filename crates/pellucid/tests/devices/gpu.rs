//! Captured steps on a GPU. Without a GPU the test passes, unless `PELLUCID_REQUIRE_GPU` or `PELLUCID_REQUIRE_CUDA` is
//! 1.

use crate::real_gpus;
use pellucid::Generator;
use pellucid::nn::optim::Optimizer;
use pellucid::prelude::*;

/// A model that is trained with rows of a table on the device.
struct Trained {
    model: Sequential,
    optimizer: AdamW,
    table: Tensor,
}

impl Trained {
    fn new(device: Device) -> Trained {
        let _random = Generator::new(3).scope();
        let model = sequential![Linear::new(3, 8), Relu, Linear::new(8, 1)];
        model.to_(device).unwrap();
        let optimizer = AdamW::new(model.parameters(), AdamWOptions { lr: 0.05, ..Default::default() });
        let table = Tensor::from([[0.1f32, 0.2, 0.3], [0.5, -0.4, 0.1], [-0.3, 0.8, -0.9], [0.0, 0.4, 0.7]]);
        Trained { model, optimizer, table: table.to(device) }
    }

    fn step(&self, rows: &Tensor) -> Tensor {
        self.optimizer.zero_grad();
        let x = self.table.index_select(0, rows);
        let loss = (self.model.forward(&x) - 1.0).square().mean(..);
        loss.backward();
        self.optimizer.step();
        loss.detach()
    }

    fn state(&self) -> Vec<Vec<u8>> {
        let state = self.optimizer.state().into_iter().map(|(_, t)| t).chain(self.model.state_dict().into_values());
        state.map(|t| t.to_bytes()).collect()
    }
}

#[test]
fn a_captured_step_equals_the_eager_one_also_after_a_rejected_launch() {
    real_gpus(2).for_each(assert_captured_equals_eager);
}

fn assert_captured_equals_eager(device: Device) {
    let rows = |list: [i64; 3]| Tensor::from(list).to(device);
    let (good, bad) = (rows([0, 2, -1]), rows([0, 4, 1]));
    let (eager, replayed) = (Trained::new(device), Trained::new(device));
    let losses: Vec<f32> = (0..4).map(|_| eager.step(&good).item()).collect();
    let mut captured = capture(|inputs: &[Tensor]| replayed.step(&inputs[0]), &[&good]).unwrap();
    let mut launched: Vec<f32> = (0..2).map(|_| captured.launch(&[&good]).unwrap().item(0)).collect();
    let before = replayed.state();
    let rejected = captured.launch(&[&bad]).expect_err("a launch must check the indices");
    assert!(matches!(rejected, Error::IndexOutOfBounds { index: 4, len: 4, .. }), "{rejected:?}");
    assert!(replayed.state() == before, "a failed launch must not change the state");
    launched.extend((0..2).map(|_| captured.launch(&[&good]).unwrap().item::<f32>(0)));
    assert_eq!(losses, launched);
    drop(captured);
    assert!(eager.state() == replayed.state(), "parameters and state must be bitwise equal");
}

/// Attention and an LSTM under `autocast`, with their gradients, agree with the CPU within the rounding of factors.
#[test]
fn mixed_precision_is_near_that_of_the_cpu() {
    for half in [DType::F16, DType::BF16] {
        let expected = mixed_precision_results(Device::cpu(), half);
        for device in real_gpus(0) {
            let found = mixed_precision_results(device, half);
            for ((name, found), (_, expected)) in found.iter().zip(&expected) {
                let largest = expected.iter().fold(0.0f32, |m, v| m.max(v.abs()));
                let error = found.iter().zip(expected).fold(0.0f32, |m, (a, b)| m.max((a - b).abs()));
                let tolerance = if half == DType::F16 { 0.005 } else { 0.04 };
                assert!(found.len() == expected.len() && error <= tolerance * largest, "{name} {half}: {error}");
            }
        }
    }
}

/// Returns the results and the gradients of attention and of an LSTM under `autocast`, with their names.
fn mixed_precision_results(device: Device, half: DType) -> Vec<(&'static str, Vec<f32>)> {
    let wave = |shape: &[usize], k: f32| {
        let values: Vec<f32> = (1..=shape.iter().product()).map(|i| (i as f32 * k).sin() * 0.5).collect();
        Tensor::new(&values[..], shape).to(device).requires_grad_(true)
    };
    let [q, k, v] = [0.9, 1.3, 2.1].map(|factor| wave(&[1, 2, 33, 12], factor));
    let (x, hidden) = (wave(&[3, 12, 8], 0.7), 12);
    let [weight_ih, weight_hh] = [wave(&[4 * hidden, 8], 1.1), wave(&[4 * hidden, hidden], 1.7)];
    let weights = ops::RecurrentWeights {
        weight_ih: &weight_ih,
        weight_hh: &weight_hh,
        bias_ih: None,
        bias_hh: None,
        weight_hr: None,
    };
    let (attended, states) = {
        let _half = autocast(half);
        let (states, _) = ops::lstm(&x, weights, None, Default::default()).unwrap();
        (q.scaled_dot_product_attention(&k, &v, Default::default()), states)
    };
    for result in [&attended, &states] {
        assert_eq!(result.dtype(), half);
        result.to_dtype(DType::F32).square().sum(..).backward();
    }
    let results = [("attention", &attended), ("lstm", &states)].map(|(name, t)| (name, t.clone()));
    let gradients = [("q", &q), ("k", &k), ("v", &v), ("x", &x), ("W_ih", &weight_ih), ("W_hh", &weight_hh)]
        .map(|(name, t)| (name, t.grad().unwrap()));
    results.into_iter().chain(gradients).map(|(name, t)| (name, t.to_dtype(DType::F32).to_vec::<f32>())).collect()
}
