//! Modules and optimizers on other devices.

use crate::toy;
use pellucid::nn::functional_call;
use pellucid::nn::optim::{GradScaler, GradScalerOptions, Optimizer, clip_grad_norm};
use pellucid::prelude::*;
use pellucid::{Generator, checkpoint};
use std::sync::Arc;

fn model() -> Sequential {
    let _random = Generator::new(3).scope();
    sequential![Linear::new(3, 8), BatchNorm1d::new(8), Relu, Linear::new(8, 1)]
}

fn train(model: &Sequential, optimizer: &dyn Optimizer, steps: usize) -> Vec<f32> {
    let x = Tensor::from([[0.1f32, 0.2, 0.3], [0.5, -0.4, 0.1], [-0.3, 0.8, -0.9], [0.0, 0.4, 0.7]]);
    let y = Tensor::from([[1.0f32], [0.0], [0.5], [-1.0]]);
    let step = |_| {
        optimizer.zero_grad();
        let loss = mse_loss(&model.forward(&x), &y);
        loss.backward();
        optimizer.step();
        loss.item::<f32>()
    };
    (0..steps).map(step).collect()
}

/// Returns the maximum absolute difference of two lists.
fn difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn a_model_trains_alike_on_every_device() {
    let optimizer = |m: &Sequential| AdamW::new(m.parameters(), AdamWOptions { lr: 0.05, ..Default::default() });
    let on_cpu = model();
    let expected = train(&on_cpu, &optimizer(&on_cpu), 8);
    let moved = model();
    moved.to_(toy(0)).unwrap();
    assert!(moved.parameters().iter().all(|p| p.device() == toy(0) && !p.is_free()));
    assert!(moved.buffers().iter().all(|b| b.device() == toy(0)));
    let losses = train(&moved, &optimizer(&moved), 8);
    assert!(difference(&losses, &expected) < 1e-5, "{losses:?} {expected:?}");
}

#[test]
fn optimizers_stay_attached_to_a_model_that_moves() {
    let on_cpu = model();
    let options = || AdamWOptions { lr: 0.05, ..Default::default() };
    let expected = train(&on_cpu, &AdamW::new(on_cpu.parameters(), options()), 9);
    let moving = model();
    let optimizer = AdamW::new(moving.parameters(), options());
    let mut losses = Vec::new();
    for device in [Device::cpu(), toy(0), Device::cpu()] {
        moving.to_(device).unwrap();
        assert!(moving.parameters().iter().all(|p| p.grad().is_none_or(|g| g.device() == device)));
        losses.extend(train(&moving, &optimizer, 3));
        let state = optimizer.state();
        assert!(state.iter().all(|(_, tensor)| tensor.device() == device), "the state must follow the parameters");
    }
    assert!(difference(&losses, &expected) < 1e-5, "{losses:?} {expected:?}");
}

#[test]
fn copies_functional_calls_and_conversions_stay_on_the_device() {
    let (model, x) = (model(), Tensor::from([[0.1f32, 0.2, 0.3], [0.5, -0.4, 0.1]]));
    let expected = model.deep_copy().unwrap().forward(&x).to_vec::<f32>();
    model.to_(toy(0)).unwrap();
    let copy = model.deep_copy().unwrap();
    assert!(copy.parameters().iter().all(|p| p.device() == toy(0) && !p.is_free()));
    assert!(difference(&copy.forward(&x).to_vec::<f32>(), &expected) < 1e-5);
    let doubled = |(name, p): (String, Parameter)| (name, p.tensor() * 2.0);
    let given: StateDict = model.named_parameters().into_iter().map(doubled).collect();
    let loss = functional_call(&model, &given, |model| model.forward(&x).sum(..)).unwrap();
    assert_eq!(loss.device(), toy(0));
    loss.backward();
    assert!(model.parameters().iter().all(|p| p.grad().unwrap().device() == toy(0)));
    let pinned = given.iter().map(|(name, value)| (name.clone(), value.to(Device::cpu())));
    let rejected = functional_call(&model, &pinned.collect(), |_| ()).unwrap_err().to_string();
    assert!(rejected.contains("`0.weight`") && rejected.contains("toy"), "{rejected}");
    // Conversions and moves in any order.
    for (device, dtype) in [(toy(0), DType::F64), (Device::cpu(), DType::F32), (toy(0), DType::F64)] {
        copy.to_dtype_(dtype).unwrap();
        copy.to_(device).unwrap();
        assert!(copy.parameters().iter().all(|p| (p.device(), p.dtype()) == (device, dtype)));
        let y = copy.forward(&x.to_dtype(dtype));
        assert_eq!(y.dtype(), dtype);
        assert!(difference(&y.to_dtype(DType::F32).to_vec::<f32>(), &expected) < 1e-5);
    }
}

#[test]
fn a_model_may_span_devices() {
    let (a, b) = (Linear::new(3, 4), Linear::new(4, 1));
    a.to_(toy(0)).unwrap();
    b.to_(toy(1)).unwrap();
    let forward = |x: &Tensor| b.forward(&a.forward(x).relu().to(toy(1)));
    let parameters: Vec<Parameter> = a.parameters().into_iter().chain(b.parameters()).collect();
    let optimizer = AdamW::new(parameters.clone(), AdamWOptions { lr: 0.05, ..Default::default() });
    let x = Tensor::from([[0.1f32, 0.2, 0.3], [0.5, -0.4, 0.1]]);
    let mut losses = Vec::new();
    for _ in 0..30 {
        optimizer.zero_grad();
        let loss = forward(&x).square().mean(..);
        loss.backward();
        assert!(parameters.iter().all(|p| p.grad().is_none_or(|g| g.device() == p.device())));
        optimizer.step();
        losses.push(loss.item::<f32>());
    }
    assert!(losses[29] < 0.5 * losses[0], "{losses:?}");
    // The norm covers all gradients.
    optimizer.zero_grad();
    (forward(&x).sum(..) * 100.0).backward();
    let squares = |p: &Parameter| p.grad().unwrap().to_vec::<f32>().iter().map(|g| g * g).sum::<f32>();
    let expected = parameters.iter().map(squares).sum::<f32>().sqrt();
    let norm = clip_grad_norm(&parameters, 0.5).unwrap();
    assert!((norm.item::<f32>() / expected - 1.0).abs() < 1e-5);
    assert!((parameters.iter().map(squares).sum::<f32>().sqrt() - 0.5).abs() < 1e-4);
    let error = ops::add(a.forward(&x), b.forward(&Tensor::zeros([2, 4], DType::F32))).unwrap_err();
    assert!(matches!(error, Error::DeviceMismatch { .. }));
}

#[test]
fn a_view_or_a_result_is_not_moved_in_place() {
    let x = Tensor::from([[1.0f32, 2.0], [3.0, 4.0]]).requires_grad_(true);
    assert!((&x * 2.0).try_to_(toy(0)).is_err());
    let view = x.detach().select(0, 0);
    assert!(view.try_to_(toy(0)).is_err());
    let handle = x.clone();
    x.to_(toy(0));
    assert_eq!((handle.device(), handle.to_vec::<f32>()), (toy(0), vec![1.0, 2.0, 3.0, 4.0]));
}

#[test]
fn the_memory_of_a_moved_model_is_released() {
    // The model has 32 MiB; concurrent tests of this process allocate less.
    let model = Linear::new(2048, 4096);
    let before = Device::cpu().memory_stats().in_use;
    model.to_(toy(0)).unwrap();
    let after = Device::cpu().memory_stats().in_use;
    assert!(before >= after + (24 << 20), "{before} {after}");
}

#[test]
fn checkpoints_autocast_and_gradient_scaling_work_across_devices() {
    let train = |device: Device| {
        let model = Arc::new(model());
        model.to_(device).unwrap();
        let optimizer = Sgd::new(model.parameters(), SgdOptions { lr: 0.05, ..Default::default() });
        let scaler = GradScaler::new(GradScalerOptions::default());
        let x = Tensor::from([[0.1f32, 0.2, 0.3], [0.5, -0.4, 0.1]]);
        let step = |_| {
            optimizer.zero_grad();
            let layers = model.clone();
            let parameters = model.parameters();
            let inputs: Vec<&Tensor> = [&x].into_iter().chain(parameters.iter().map(|p| p.tensor())).collect();
            let forward = move |inputs: &[Tensor]| Ok(vec![layers.forward(&inputs[0])]);
            let half = autocast(DType::BF16);
            let hidden = checkpoint(forward, &inputs).unwrap().remove(0);
            drop(half);
            let loss = hidden.to_dtype(DType::F32).square().mean(..);
            scaler.scale(&loss).backward();
            scaler.step(&optimizer);
            scaler.update();
            assert_eq!(loss.device(), device);
            loss.item::<f32>()
        };
        (0..4).map(step).collect::<Vec<f32>>()
    };
    let (on_cpu, on_gpu) = (train(Device::cpu()), train(toy(0)));
    assert!(difference(&on_cpu, &on_gpu) < 1e-6, "{on_cpu:?} {on_gpu:?}");
}

#[test]
fn a_captured_training_step_equals_the_eager_one_on_a_gpu() {
    let x = Tensor::from([[0.1f32, 0.2, 0.3], [0.5, -0.4, 0.1], [-0.3, 0.8, -0.9], [0.0, 0.4, 0.7]]).to(toy(0));
    let y = Tensor::from([[1.0f32], [0.0], [0.5], [-1.0]]).to(toy(0));
    let parts = || {
        let model = model();
        model.to_(toy(0)).unwrap();
        let optimizer = AdamW::new(model.parameters(), AdamWOptions { lr: 0.05, ..Default::default() });
        (model, optimizer)
    };
    let step = |(model, optimizer): &(Sequential, AdamW), x: &Tensor, y: &Tensor| {
        optimizer.zero_grad();
        let loss = mse_loss(&model.forward(x), y);
        loss.backward();
        optimizer.step();
        loss.detach()
    };
    let bits = |(model, optimizer): &(Sequential, AdamW)| -> Vec<Vec<u8>> {
        let state = optimizer.state().into_iter().map(|(_, t)| t).chain(model.state_dict().into_values());
        state.map(|t| t.to_bytes()).collect()
    };
    let (eager, replayed) = (parts(), parts());
    let losses: Vec<f32> = (0..5).map(|_| step(&eager, &x, &y).item()).collect();
    let mut captured = capture(|inputs: &[Tensor]| step(&replayed, &inputs[0], &inputs[1]), &[&x, &y]).unwrap();
    let launched: Vec<f32> = (0..5).map(|_| captured.launch(&[&x, &y]).unwrap().item(0)).collect();
    assert_eq!(losses, launched);
    drop(captured);
    assert!(bits(&eager) == bits(&replayed), "parameters and state must be bitwise equal");
}
