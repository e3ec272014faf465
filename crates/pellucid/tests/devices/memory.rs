//! The memory of tensors that move between devices: a move releases the memory on the source device.
//!
//! Other tests run concurrently. The device indices are used only by these tests. Sizes on the CPU, which all tests
//! share, are compared in a separate process.

use crate::{gpus, real_gpus};
use pellucid::nn::graph::GraphTrainer;
use pellucid::nn::loss::MseLoss;
use pellucid::nn::optim::Optimizer;
use pellucid::prelude::*;
use pellucid::{Generator, ops};
use std::process::Command;

fn in_use(device: Device) -> [usize; 2] {
    device.synchronize().unwrap();
    [Device::cpu(), device].map(|device| device.memory_stats().in_use)
}

/// Runs a test in a separate process, in which no other test uses the CPU.
fn in_separate_process(name: &str, test: impl FnOnce()) {
    const IS_ALONE: &str = "PELLUCID_TEST_IS_ALONE";
    if std::env::var_os(IS_ALONE).is_some() {
        return test();
    }
    let program = std::env::current_exe().unwrap();
    let name = format!("memory::{name}");
    let output = Command::new(program).args([&name, "--exact"]).env(IS_ALONE, "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}{}", String::from_utf8_lossy(&output.stderr));
}

struct Training {
    model: Sequential,
    optimizer: AdamW,
}

impl Training {
    fn new() -> Training {
        let _random = Generator::new(3).scope();
        let model = sequential![Linear::new(64, 32), BatchNorm1d::new(32), Relu, Linear::new(32, 1)];
        let optimizer = AdamW::new(model.parameters(), AdamWOptions { lr: 0.05, ..Default::default() });
        Training { model, optimizer }
    }

    fn loss(&self) -> Tensor {
        let x: Vec<f32> = (0..256).map(|i| (i as f32 * 0.37).sin()).collect();
        (self.model.forward(&Tensor::new(x, [4, 64])) - 1.0).square().mean(..)
    }

    fn step(&self) {
        self.optimizer.zero_grad();
        self.loss().backward();
        self.optimizer.step();
    }
}

/// Runs `trip` often, and checks that the memory in use does not grow after the first trips.
fn check_constant(device: Device, trip: &dyn Fn()) {
    (0..3).for_each(|_| trip());
    let before = in_use(device);
    for k in 0..20 {
        trip();
        assert_eq!(in_use(device), before, "trip {k}, {device}");
    }
}

#[test]
fn round_trips_of_a_model_use_constant_memory() {
    in_separate_process("round_trips_of_a_model_use_constant_memory", || {
        for device in gpus(10) {
            let training = Training::new();
            training.step();
            // With gradients and optimizer state.
            check_constant(device, &|| {
                training.model.to_(device).unwrap();
                training.step();
                training.model.to_(Device::cpu()).unwrap();
                training.step();
            });
            // The model is not used between the moves.
            check_constant(device, &|| {
                training.model.to_(device).unwrap();
                training.model.to_(Device::cpu()).unwrap();
            });
            // A graph that was recorded before the move uses the elements on both devices.
            check_constant(device, &|| {
                let on_cpu = training.loss();
                training.model.to_(device).unwrap();
                let on_device = training.loss();
                training.model.to_(Device::cpu()).unwrap();
                drop((on_cpu, on_device));
            });
        }
    });
}

#[test]
fn a_move_releases_all_memory_of_the_old_place() {
    in_separate_process("a_move_releases_all_memory_of_the_old_place", || {
        for device in gpus(11) {
            let [cpu_before, before] = in_use(device);
            let x = Tensor::zeros([1024], DType::F32);
            let one = in_use(device)[0] - cpu_before;
            assert!(one >= 4096);
            x.to_(device);
            let moved = in_use(device)[1] - before;
            assert!(moved >= 4096, "{device}");
            assert_eq!(in_use(device)[0], cpu_before, "{device}");
            // A view keeps the elements on the source device alive until it is dropped.
            let view = x.i(2..4);
            x.to_(Device::cpu());
            assert_eq!(in_use(device), [cpu_before + one, before + moved], "{device}");
            assert_eq!((view.device(), view.to_vec::<f32>()), (device, vec![0.0, 0.0]));
            drop(view);
            assert_eq!(in_use(device), [cpu_before + one, before], "{device}");
            drop(x);
            assert_eq!(in_use(device), [cpu_before, before], "{device}");
        }
    });
}

#[test]
fn a_dropped_model_that_moved_releases_its_memory() {
    in_separate_process("a_dropped_model_that_moved_releases_its_memory", || {
        for device in gpus(12) {
            let run = || {
                let training = Training::new();
                training.step();
                training.model.to_(device).unwrap();
                training.step();
            };
            // The first runs compile plans, which own scratch memory.
            (0..2).for_each(|_| run());
            let before = in_use(device);
            run();
            assert_eq!(in_use(device), before, "{device}");
        }
    });
}

#[test]
fn a_trainer_from_before_the_moves_uses_constant_memory() {
    in_separate_process("a_trainer_from_before_the_moves_uses_constant_memory", || {
        for device in gpus(13) {
            let training = Training::new();
            let (x, y) = (Tensor::zeros([4, 64], DType::F32), Tensor::ones([4, 1], DType::F32));
            let mut trainer = GraphTrainer::new(&training.model, MseLoss::default(), &training.optimizer);
            trainer.prepare(&Tensor::zeros([4, 64], DType::F32)).unwrap();
            trainer.step(&x, &y).unwrap();
            let trainer = std::cell::RefCell::new(trainer);
            check_constant(device, &|| {
                training.model.to_(device).unwrap();
                training.model.to_(Device::cpu()).unwrap();
            });
            check_constant(device, &|| {
                for device in [device, Device::cpu()] {
                    training.model.to_(device).unwrap();
                    trainer.borrow_mut().step(&x, &y).unwrap();
                }
            });
        }
    });
}

#[test]
fn a_move_without_memory_names_the_operation_and_the_shape() {
    let device = crate::toy(40);
    let x = Tensor::zeros([16, 8], DType::F32);
    device.set_memory_cap(256);
    let leaf = x.copy().requires_grad_(true);
    for error in [x.try_to(device).unwrap_err(), leaf.try_to_(device).unwrap_err()] {
        let Error::OutOfMemory { op, shape, requested, .. } = &error else { panic!("{error}") };
        assert_eq!((*op, shape.as_deref(), *requested), ("to", Some(x.shape()), 512));
    }
    device.set_memory_cap(usize::MAX);
    assert_eq!(x.to(device).device(), device);
}

/// The CPU runs kernels that a backend lacks. It needs as much memory as their results.
#[test]
fn a_result_that_exceeds_the_device_is_an_error_before_the_cpu_computes_it() {
    in_separate_process("a_result_that_exceeds_the_device_is_an_error_before_the_cpu_computes_it", || {
        for device in real_gpus(0) {
            let x = Tensor::from([12i64, 18]).to(device);
            let gcd = |x: &Tensor| ops::gcd(x, &x.narrow(0, 0, 1)).and_then(|y| y.try_to_vec::<i64>());
            assert_eq!(gcd(&x).unwrap(), [12, 6]);
            device.set_memory_cap(64 << 20);
            let bytes = 128 << 20;
            let large = ops::broadcast_to(&x.narrow(0, 1, 1), [bytes / 8usize]).unwrap();
            let error = gcd(&large).unwrap_err();
            assert!(matches!(error, Error::OutOfMemory { .. }), "{device}: {error}");
            let peak = Device::cpu().memory_stats().peak;
            assert!(peak < bytes, "{device}: the CPU has used {peak} bytes");
            device.set_memory_cap(usize::MAX);
            assert_eq!(gcd(&x).unwrap(), [12, 6]);
        }
    });
}
