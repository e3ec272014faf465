//! Captured steps on other devices: tensors that the host provides, gradient scaling, models that are only traced.

use crate::{pinned, toy};
use pellucid::nn::graph::{GraphTrainer, StepOptions};
use pellucid::nn::init;
use pellucid::nn::loss::CrossEntropyLoss;
use pellucid::nn::optim::{Adam, AdamOptions, GradScaler, GradScalerOptions};
use pellucid::prelude::*;
use pellucid::{Generator, capture_local, deferred_stats, ops};
use std::sync::Arc;
use std::time::Duration;

#[test]
fn a_step_copies_free_tensors_once_until_they_change() {
    for index in 0..2 {
        let device = toy(index);
        let scale = Tensor::from([2.0f32, 3.0]);
        let step = |inputs: &[Tensor]| &inputs[0] * &scale + Tensor::from([1.0f32, 10.0]);
        let x = pinned(&[1.0, 2.0], device);
        let mut step = capture(step, &[&x]).unwrap();
        for _ in 0..2 {
            assert_eq!(step.launch(&[&x]).unwrap().to_vec::<f32>(0), [3.0, 16.0]);
        }
        assert_eq!(step.cache_stats().misses, 0);
        scale.copy_(&Tensor::from([4.0f32, 5.0]));
        assert_eq!(step.launch(&[&x]).unwrap().to_vec::<f32>(0), [5.0, 20.0]);
        assert_eq!(step.cache_stats().misses, 1, "a changed tensor must be copied again");
        step.verify().unwrap();
    }
}

#[test]
fn a_tensor_that_a_step_computes_elsewhere_is_rejected() {
    let x = pinned(&[1.0, 2.0], toy(1));
    let (other, state) = (Tensor::from([1.0f32, 2.0]), Tensor::from([1.0f32, 2.0]));
    let rejected = |step: &mut dyn FnMut(&[Tensor]) -> Tensor| {
        let error = capture_local(step, &[&x, &other]).err().unwrap();
        assert!(matches!(error, Error::ReadInCapture { .. }), "{error}");
        assert!(error.to_string().contains("zeros_like"), "{error}");
    };
    rejected(&mut |inputs| &inputs[0] + Tensor::rand([2], DType::F32).exp());
    rejected(&mut |inputs| &inputs[0] + inputs[1].exp());
    rejected(&mut |inputs| {
        state.copy_(&Tensor::from([3.0f32, 4.0]));
        &inputs[0] + &state
    });
    rejected(&mut |inputs| {
        state.copy_(&Tensor::from([3.0f32, 4.0]));
        &inputs[0] + state.exp()
    });
    assert_eq!(state.to_vec::<f32>(), [1.0, 2.0]);
    capture(|inputs: &[Tensor]| &inputs[0] + ops::ones_like(&inputs[0]).unwrap(), &[&x]).unwrap();
}

/// Values that a step computes from host values only are constants, bit-identical to eager execution.
#[test]
fn computations_with_host_values_are_constants_of_a_step() {
    for index in 0..2 {
        let (x, weight) = (pinned(&[1.0, 2.0, 3.0], toy(index)), Tensor::from([0.5f32, -1.0, 2.0]));
        let step = |inputs: &[Tensor]| {
            let numbers = Tensor::arange(0i64, 3, 1);
            let lower = numbers.unsqueeze(1).ge(&numbers).to_dtype(DType::F32);
            // A tensor that several kernels write, a strided view, and a value that is used twice.
            let joined = ops::concatenate(&[&numbers, &(&numbers + 1)], 0).unwrap().i(1..4).to_dtype(DType::F32).exp2();
            let scale = weight.sin() * 0.3;
            let y = inputs[0].matmul(&lower) + joined * &scale;
            let chain = (0..3).fold(Tensor::ones([3], DType::F32), |c, _| (c + 1.0).exp() / 10.0);
            y * &scale + lower.t().select(0, 1) * chain * &inputs[0]
        };
        let expected = step(std::slice::from_ref(&x)).to_vec::<f32>();
        let mut captured = capture_local(step, &[&x]).unwrap();
        for _ in 0..2 {
            assert_eq!(captured.launch(&[&x]).unwrap().to_vec::<f32>(0), expected, "toy:{index}");
        }
        captured.verify().unwrap();
        weight.copy_(&Tensor::from([1.0f32, 2.0, 3.0]));
        let expected = step(std::slice::from_ref(&x)).to_vec::<f32>();
        assert_eq!(captured.launch(&[&x]).unwrap().to_vec::<f32>(0), expected, "toy:{index}");
        assert_eq!(captured.cache_stats().misses, 1, "a changed tensor must be read again");
        // The step is computed from host values host_only, and its result is on the CPU.
        let host_only = |_: &[Tensor]| Tensor::arange(0.0f32, 3.0, 1.0).exp();
        let mut host_only = capture_local(host_only, &[]).unwrap();
        assert_eq!(
            host_only.launch(&[]).unwrap().to_vec::<f32>(0),
            Tensor::arange(0.0f32, 3.0, 1.0).exp().to_vec::<f32>()
        );
        // No kernel runs on the device of the results, an input and a constant.
        let moved = |inputs: &[Tensor]| (inputs[0].clone(), Tensor::arange(0.0f32, 3.0, 1.0).exp().to(toy(index)));
        let mut moved = capture_local(moved, &[&x]).unwrap();
        let outputs = moved.launch(&[&x]).unwrap();
        assert_eq!(outputs.to_vec::<f32>(0), [1.0, 2.0, 3.0], "toy:{index}");
        assert_eq!(outputs.to_vec::<f32>(1), Tensor::arange(0.0f32, 3.0, 1.0).exp().to_vec::<f32>(), "toy:{index}");
    }
}

/// The error for an input on a different device than the other tensors of the step names both devices.
#[test]
fn an_input_on_another_device_is_rejected_at_launch() {
    for index in 0..2 {
        let device = toy(index);
        let weight = pinned(&[2.0, 3.0], device);
        let x = pinned(&[1.0, 2.0], device);
        let mut step = capture(|inputs: &[Tensor]| (&inputs[0].exp() + 1.0) * &weight, &[&x]).unwrap();
        let expected = step.launch(&[&x]).unwrap().to_vec::<f32>(0);
        for other in [Device::cpu(), toy(1 - index)] {
            let moved = x.to(other);
            let error = step.launch(&[&moved]).map(drop).unwrap_err();
            assert!(matches!(error, Error::InputMismatch { index: 0, .. }), "{error}");
            let text = error.to_string();
            assert!([other, device].iter().all(|device| text.contains(&device.to_string())), "{text}");
        }
        let free = Tensor::from([1.0f32, 2.0]);
        let error = step.launch(&[&free]).map(drop).unwrap_err();
        assert!(error.to_string().contains("move the input with to(device)"), "{error}");
        assert_eq!(step.launch(&[&x]).unwrap().to_vec::<f32>(0), expected);
        // A step that uses only its inputs runs on the device of the inputs.
        let mut host_only = capture(|inputs: &[Tensor]| inputs[0].exp(), &[&x]).unwrap();
        assert_eq!(
            host_only.launch(&[&free]).unwrap().to_vec::<f32>(0),
            free.exp().to_vec::<f32>(),
            "a step without other tensors must follow its input"
        );
    }
}

#[test]
fn fills_and_ranges_run_on_the_device_of_the_step() {
    for index in 0..2 {
        let x = pinned(&[1.0, 2.0], toy(index));
        let step = |inputs: &[Tensor]| {
            let ones = Tensor::ones([2], DType::F32);
            &inputs[0] * &ones + (&inputs[0] - &ones) * Tensor::arange(0.0f32, 2.0, 1.0)
        };
        let expected = step(std::slice::from_ref(&x)).to_vec::<f32>();
        let mut step = capture(step, &[&x]).unwrap();
        assert_eq!(step.launch(&[&x]).unwrap().to_vec::<f32>(0), expected);
        assert_eq!(step.launch(&[&x]).unwrap().to_vec::<f32>(0), expected);
    }
}

#[test]
fn gradient_scaling_and_class_weights_are_captured_on_every_device() {
    let train = |device: Device| {
        let model =
            init::from_generator(&Generator::new(3), || sequential![Linear::new(4, 8), Relu, Linear::new(8, 3)]);
        model.to_(device).unwrap();
        let optimizer = Adam::new(model.parameters(), AdamOptions::default());
        let scaler = Arc::new(GradScaler::new(GradScalerOptions::default()));
        let weight = Some(Tensor::from([1.0f32, 2.0, 0.5]));
        let loss = CrossEntropyLoss { weight, ..Default::default() };
        let options = StepOptions { scaler: Some(scaler.clone()), ..Default::default() };
        let mut trainer = GraphTrainer::new(&model, loss, &optimizer).with_options(options);
        let x: Vec<f32> = (0..24).map(|i| (i as f32 * 0.7).sin()).collect();
        let (x, y) = (Tensor::new(x, [6, 4]), Tensor::from([0i64, 1, 2, 2, 1, 0]));
        let losses = (0..4).map(|_| {
            let check = trainer.check_step(&x, &y).unwrap();
            check.ensure().unwrap();
            trainer.step(&x, &y).unwrap();
            assert_eq!(trainer.loss_tensor().unwrap().device(), device);
            assert_eq!(trainer.loss().unwrap(), check.loss_before, "a check must restore the state");
            trainer.loss().unwrap().to_bits()
        });
        losses.collect::<Vec<_>>()
    };
    let expected = train(Device::cpu());
    for index in 0..2 {
        assert_eq!(train(toy(index)), expected, "toy:{index}");
    }
}

#[test]
fn a_trainer_follows_a_model_that_moves() {
    let train = |devices: [Device; 4]| {
        let model =
            init::from_generator(&Generator::new(3), || sequential![Linear::new(4, 8), Relu, Linear::new(8, 3)]);
        model.to_(devices[0]).unwrap();
        let optimizer = Adam::new(model.parameters(), AdamOptions::default());
        let mut trainer = GraphTrainer::new(&model, CrossEntropyLoss::default(), &optimizer);
        trainer.prepare(&Tensor::zeros([6, 4], DType::F32)).unwrap();
        let x: Vec<f32> = (0..24).map(|i| (i as f32 * 0.7).sin()).collect();
        let (x, y) = (Tensor::new(x, [6, 4]), Tensor::from([0i64, 1, 2, 2, 1, 0]));
        let losses = devices.map(|device| {
            model.to_(device).unwrap();
            trainer.step(&x, &y).unwrap();
            assert_eq!(trainer.loss_tensor().unwrap().device(), device);
            trainer.loss().unwrap().to_bits()
        });
        trainer.prepare(&Tensor::zeros([6, 4], DType::F32)).unwrap();
        losses
    };
    let cpu = Device::cpu();
    assert_eq!(train([toy(1), toy(1), cpu, toy(0)]), train([cpu; 4]));
}

/// A clock that is read after `synchronize` measures deferred work.
#[test]
fn synchronizing_runs_deferred_work() {
    let device = toy(1);
    let x = pinned(&[1.0, 2.0], device);
    device.synchronize().unwrap();
    let before = deferred_stats().runs;
    let y = x.exp() + 1.0;
    assert_eq!(deferred_stats().runs, before);
    device.synchronize().unwrap();
    let after = deferred_stats().runs;
    assert!(after > before, "synchronize() must run the deferred kernels");
    y.eval();
    assert_eq!(deferred_stats().runs, after);
}

/// The time of a device includes the kernels that the work defers, and starts after all earlier ones.
#[test]
fn the_time_of_a_device_includes_deferred_work() {
    for (device, is_deferred) in [(Device::cpu(), false), (toy(0), false), (toy(1), true)] {
        let x = pinned(&[1.0, 2.0], device);
        // A list of one kernel does not count as a run of a plan.
        let earlier = x.exp() + 1.0;
        let before = deferred_stats().runs;
        let (y, time) = device
            .time(|| {
                assert_eq!(deferred_stats().runs > before, is_deferred, "{device}: earlier work must have run");
                Ok(&earlier * 2.0 - 1.0)
            })
            .unwrap();
        let runs = deferred_stats().runs;
        assert!(time > Duration::ZERO);
        assert_eq!(y.to_vec::<f32>(), ((x.exp() + 1.0) * 2.0 - 1.0).to_vec::<f32>());
        assert!(!is_deferred || runs >= before + 2, "the work must have run when time() returns");
        let failed = device.time(|| Err::<(), _>(Error::invalid("step", "an error")));
        assert!(matches!(failed, Err(Error::InvalidArgument { op: "step", .. })));
    }
}

#[test]
fn a_batch_that_is_pinned_to_another_device_is_rejected() {
    let model = sequential![Linear::new(4, 3)];
    model.to_(toy(0)).unwrap();
    let optimizer = Adam::new(model.parameters(), AdamOptions::default());
    let mut trainer = GraphTrainer::new(&model, CrossEntropyLoss::default(), &optimizer);
    let (x, y) = (Tensor::ones([2, 4], DType::F32), Tensor::from([0i64, 1]));
    let other = |t: &Tensor| t.to(toy(1));
    // The state before and after the first step.
    for held in 0..2 {
        for error in [trainer.step(&other(&x), &y).unwrap_err(), trainer.step(&x, &other(&y)).unwrap_err()] {
            assert!(matches!(error, Error::DeviceMismatch { op: "step", .. }), "{error}");
        }
        assert_eq!(trainer.cache_stats().len, held);
        trainer.step(&x, &y).unwrap();
    }
}

#[test]
fn a_model_on_a_device_is_built_and_summarized_there() {
    let device = toy(1);
    let model = sequential![Linear::new(4, 8), Relu, Linear::lazy(3)];
    model.layers()[0].to_(device).unwrap();
    assert_eq!(model.output_shape(&[5, 4]).unwrap().dims(), [5, 3]);
    assert!(model.parameters().iter().all(|p| p.device() == device), "lazy layers follow the device of their input");
    model.to_(device).unwrap();
    assert_eq!(model.summary(&[5, 4]).unwrap().parameters, 4 * 8 + 8 + 8 * 3 + 3);
    assert_eq!(model.forward(&Tensor::ones([5, 4], DType::F32)).device(), device);
}

#[test]
fn accumulated_gradients_move_with_the_model() {
    let train = |eager: bool, moves: &[(usize, Device)]| {
        let _random = Generator::new(3).scope();
        let model = sequential![Linear::new(3, 4), Tanh, Linear::new(4, 1)];
        let adam = Adam::new(model.parameters(), AdamOptions { lr: 0.1, ..Default::default() });
        let options = StepOptions { eager, accumulate: 3, ..Default::default() };
        let mut trainer = GraphTrainer::new(&model, MseLoss::default(), &adam).with_options(options);
        for step in 0..9 {
            moves.iter().filter(|(at, _)| *at == step).for_each(|(_, device)| model.to_(*device).unwrap());
            let x = (Tensor::arange(0i64, 12, 1).to_dtype(DType::F32) * 0.3 + step as f64).sin().reshape([4, 3]);
            trainer.step(&x, &x.sum(1).reshape([4, 1])).unwrap();
        }
        model.parameters().iter().map(|p| p.to_bytes()).collect::<Vec<_>>()
    };
    for eager in [false, true] {
        let expected = train(eager, &[]);
        for moves in [[(1, toy(0)), (5, toy(1))], [(2, toy(1)), (4, Device::cpu())], [(3, toy(0)), (6, toy(1))]] {
            assert!(train(eager, &moves) == expected, "eager: {eager}, moves: {moves:?}");
        }
    }
}
