//! Training on other devices: deferred, and with captured steps.

use crate::toy;
use pellucid::nn::graph::GraphTrainer;
use pellucid::nn::init;
use pellucid::nn::loss::CrossEntropyLoss;
use pellucid::nn::optim::Optimizer;
use pellucid::prelude::*;
use pellucid::{Generator, deferred_stats};

/// Returns a model with dropout on a device. Its initial values do not advance the generators of the thread.
fn classifier(device: Device) -> Sequential {
    let model = init::from_generator(&Generator::new(1), || {
        sequential![Linear::new(6, 16), BatchNorm1d::new(16), Relu, Dropout::new(0.4), Linear::new(16, 3)]
    });
    model.to_(device).unwrap();
    model
}

fn batch(step: usize) -> (Tensor, Tensor) {
    let x: Vec<f32> = (0..48).map(|i| ((i * 7 + step * 5) as f32 * 0.37).sin()).collect();
    let y: Vec<i64> = (0..8).map(|i| ((i + step) % 3) as i64).collect();
    (Tensor::new(x, [8, 6]), Tensor::new(y, [8]))
}

/// Returns the bits of the model state and of the losses.
fn bits(model: &Sequential, losses: Vec<f32>) -> Vec<u32> {
    let state = model.state_dict().into_iter().filter(|(_, t)| t.dtype() == DType::F32);
    let values = state.flat_map(|(_, t)| t.to_vec::<f32>()).collect::<Vec<_>>();
    values.into_iter().chain(losses).map(f32::to_bits).collect()
}

fn adam(model: &Sequential) -> impl Optimizer + use<> {
    AdamW::new(model.parameters(), AdamWOptions { lr: 0.02, ..Default::default() })
}

fn train_eagerly(device: Device) -> Vec<u32> {
    let _stream = Generator::new(5).scope();
    let model = classifier(device);
    let optimizer = adam(&model);
    let mut losses = Vec::new();
    for step in 0..6 {
        let (x, y) = batch(step);
        optimizer.zero_grad();
        let loss = cross_entropy(&model.forward(&x), &y);
        loss.backward();
        optimizer.step();
        losses.push(loss.item());
    }
    bits(&model, losses)
}

fn train_by_replays(device: Device) -> Vec<u32> {
    let _stream = Generator::new(5).scope();
    let model = classifier(device);
    let optimizer = adam(&model);
    let mut losses = Vec::new();
    {
        let mut trainer = GraphTrainer::new(&model, CrossEntropyLoss::default(), &optimizer);
        for step in 0..6 {
            let (x, y) = batch(step);
            trainer.step(&x, &y).unwrap();
            losses.push(trainer.loss().unwrap() as f32);
        }
        assert_eq!(trainer.loss_tensor().unwrap().device(), device);
        assert_eq!(trainer.logits().unwrap().device(), device);
    }
    bits(&model, losses)
}

/// Kernels of the backend are bit-identical to CPU kernels, including dropout masks, so training is bit-identical on
/// every device, whether kernels run immediately (`toy:0`), deferred (`toy:1`), or as a captured step.
#[test]
fn training_has_the_same_bits_deferred_and_replayed() {
    let expected = train_eagerly(Device::cpu());
    assert_eq!(train_by_replays(Device::cpu()), expected, "replayed on the CPU");
    for index in 0..2 {
        assert_eq!(train_eagerly(toy(index)), expected, "toy:{index}");
        assert_eq!(train_by_replays(toy(index)), expected, "replayed on toy:{index}");
    }
}

/// No step needs `eval()`: an optimizer step runs the deferred kernels with a plan that is compiled once.
#[test]
fn a_deferred_training_loop_compiles_one_plan() {
    // `manual_seed` in another test restarts the streams of all threads, which adds a copy to the next step.
    let _stream = Generator::new(6).scope();
    // No other test uses this device, because its plan cache is bounded.
    let model = classifier(toy(31));
    let optimizer = adam(&model);
    let step = |step: usize| {
        let (x, y) = batch(step);
        optimizer.zero_grad();
        cross_entropy(&model.forward(&x), &y).backward();
        optimizer.step();
    };
    (0..3).for_each(step);
    let before = deferred_stats();
    (3..13).for_each(step);
    let after = deferred_stats();
    assert_eq!((after.compiled_plans - before.compiled_plans, after.runs - before.runs), (0, 10));
    assert!(after.launches - before.launches < (after.kernels - before.kernels) * 3 / 4);
}
