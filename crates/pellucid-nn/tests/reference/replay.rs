//! Layers with state in an entire training step: replayed steps equal eager steps bit for bit.

use pellucid_nn::optim::{Optimizer, Sgd, SgdOptions};
use pellucid_nn::*;
use pellucid_tensor::{DType, Tensor, capture, manual_seed};

/// Returns a model with every kind of state: running statistics with and without momentum, dropout masks of elements,
/// channels and samples, and random slopes.
fn model() -> Sequential {
    sequential![
        Conv2d::new(3, 8, 3).padding(1),
        BatchNorm2d::new(8),
        Relu,
        Dropout2d::new(0.2),
        Conv2d::new(8, 8, 3).stride(2),
        InstanceNorm2d::new(8).affine(true).running_statistics(true),
        DropPath::new(0.2),
        Rrelu::default(),
        BatchNorm2d::new(8).momentum(None),
        AdaptiveAvgPool2d::new(1),
        Flatten::new(),
        Linear::new(8, 6),
        BatchNorm1d::new(6),
        AlphaDropout::new(0.1),
        Selu,
        FeatureAlphaDropout::new(0.1),
        Dropout::new(0.1),
        Linear::new(6, 4),
    ]
}

const STEPS: usize = 6;

#[test]
fn a_replayed_step_equals_the_eager_one() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    manual_seed(11);
    let batches: Vec<(Tensor, Tensor)> =
        (0..STEPS).map(|_| (Tensor::randn([5, 3, 8, 8], DType::F32), Tensor::randint(0, 4, [5]))).collect();
    let run = |replayed: bool| -> Vec<Vec<u8>> {
        manual_seed(12);
        let model = model();
        let optimizer = Sgd::new(model.parameters(), SgdOptions { lr: 0.05, momentum: 0.9, ..Default::default() });
        let step = |x: &Tensor, y: &Tensor| {
            optimizer.zero_grad();
            let loss = loss::cross_entropy(&model.forward(x), y);
            loss.backward();
            optimizer.step();
            loss
        };
        let mut bytes: Vec<Vec<u8>> = if replayed {
            let (x, y) = &batches[0];
            let mut captured = capture(|inputs| step(&inputs[0], &inputs[1]), &[x, y]).unwrap();
            let launch = |(x, y): &(Tensor, Tensor)| captured.launch(&[x, y]).unwrap().to_tensor(0).to_bytes();
            batches.iter().map(launch).collect()
        } else {
            batches.iter().map(|(x, y)| step(x, y).to_bytes()).collect()
        };
        let distinct: std::collections::HashSet<_> = bytes.iter().collect();
        assert!(distinct.len() == STEPS, "every step must have a different loss");
        let state = model.state_dict();
        assert_eq!(state["1.num_batches_tracked"].item::<i64>(), STEPS as i64);
        bytes.extend(state.values().map(|t| t.to_bytes()));
        model.eval();
        bytes.push(model.forward(&batches[0].0).to_bytes());
        bytes
    };
    assert!(run(true) == run(false));
}
