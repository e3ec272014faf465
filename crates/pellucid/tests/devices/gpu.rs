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
