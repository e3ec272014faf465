//! Checkpoints of models on other devices.

use crate::gpus;
use pellucid::nn::graph::GraphTrainer;
use pellucid::nn::loss::CrossEntropyLoss;
use pellucid::nn::{Checkpoint, StateDict};
use pellucid::prelude::*;
use pellucid::{Generator, ops};

/// A model with dropout, trained by a captured step on a device.
struct DeviceRun {
    trainer: GraphTrainer<'static, Sequential, AdamW>,
}

impl DeviceRun {
    fn new(device: Device) -> DeviceRun {
        let model = sequential![Linear::new(6, 16), BatchNorm1d::new(16), Relu, Dropout::new(0.4), Linear::new(16, 3)];
        model.to_(device).unwrap();
        let optimizer = AdamW::new(model.parameters(), AdamWOptions { lr: 0.02, ..Default::default() });
        let mut trainer = GraphTrainer::new(model, CrossEntropyLoss::default(), optimizer);
        trainer.prepare(&Tensor::zeros([8, 6], DType::F32)).unwrap();
        DeviceRun { trainer }
    }

    fn checkpoint(&self) -> Checkpoint<'_> {
        Checkpoint::new().model(self.trainer.model()).optimizer(self.trainer.optimizer())
    }

    fn train(&mut self, steps: usize) {
        let x: Vec<f32> = (0..48).map(|i| (i as f32 * 0.37).sin()).collect();
        let y: Vec<i64> = (0..8).map(|i| i % 3).collect();
        let (x, y) = (Tensor::new(x, [8, 6]), Tensor::new(y, [8]));
        (0..steps).for_each(|_| self.trainer.step(&x, &y).unwrap());
    }

    /// Returns copies of all values on the CPU.
    fn snapshot(&self) -> StateDict {
        let copy = |value: &Tensor| Tensor::from_bytes(&value.to_bytes(), value.dtype(), value.shape().dims());
        self.checkpoint().state().unwrap().iter().map(|(name, value)| (name.clone(), copy(value))).collect()
    }
}

fn bits(state: &StateDict) -> Vec<(&str, Vec<u8>)> {
    state.iter().map(|(name, value)| (name.as_str(), value.to_bytes())).collect()
}

#[test]
fn a_captured_step_resumes_on_its_device() {
    for device in gpus(0) {
        let _random = Generator::new(3).scope();
        let mut run = DeviceRun::new(device);
        run.train(3);
        let middle = run.snapshot();
        assert!(middle.contains_key(&format!(".generator.{device}")), "{:?}", middle.keys());
        run.train(3);
        let end = run.snapshot();
        // The same run returns to the state, and a fresh run continues. The generator of the fresh run has not drawn on
        // the device.
        let _other = Generator::new(4).scope();
        let mut fresh = DeviceRun::new(device);
        for run in [&mut run, &mut fresh] {
            run.checkpoint().load_state_dict(&middle).unwrap();
            assert_eq!(bits(&run.snapshot()), bits(&middle), "{device}");
            let model = run.trainer.model();
            assert!(model.parameters().iter().all(|p| p.device() == device));
        }
        fresh.train(3);
        assert_eq!(bits(&fresh.snapshot()), bits(&end), "{device}");
    }
}

#[test]
fn a_checkpoint_moves_between_devices() {
    for device in gpus(0) {
        let _random = Generator::new(3).scope();
        let mut runs = [DeviceRun::new(Device::cpu()), DeviceRun::new(device)];
        runs.iter_mut().for_each(|run| run.train(2));
        let [on_cpu, there] = runs;
        for (from, to) in [(&on_cpu, &there), (&there, &on_cpu)] {
            let state = from.snapshot();
            let _other = Generator::new(9).scope();
            to.checkpoint().load_state_dict(&state).unwrap();
            assert_eq!(to.snapshot()[".generator.cpu"].to_bytes(), state[".generator.cpu"].to_bytes());
            let values = |state: &StateDict| state.iter().map(|(n, v)| (n.clone(), v.to_bytes())).collect::<Vec<_>>();
            let model =
                |state: StateDict| state.into_iter().filter(|(name, _)| !name.starts_with(".generator.")).collect();
            assert_eq!(values(&model(to.snapshot())), values(&model(state)), "{device}");
        }
    }
}

#[test]
fn states_of_a_generator_on_a_device() {
    for device in gpus(0) {
        let generator = Generator::new(5);
        let draw = || {
            let _scope = generator.scope();
            let drawn = ops::dropout(&Tensor::ones([64], DType::F32).to(device), 0.5).unwrap();
            drawn.to_vec::<f32>()
        };
        draw();
        let states: Vec<(Device, Tensor)> =
            generator.states().into_iter().map(|(device, state)| (device, state.copy())).collect();
        assert_eq!(states.len(), 2);
        let next = draw();
        generator.set_states(&states).unwrap();
        assert_eq!(draw(), next, "{device}");
        // Without a state on the device, the stream starts at its beginning.
        let first = {
            generator.reseed(6);
            draw()
        };
        draw();
        generator.set_state(&Tensor::from([6i64, 40])).unwrap();
        assert_eq!(generator.state().to_vec::<i64>(), [6, 40]);
        assert_eq!(draw(), first, "{device}");
        // A state tensor may be on any device. Without a state for the CPU, nothing changes.
        let error = generator.set_states(&[states[1].clone()]).unwrap_err();
        assert!(error.to_string().contains("CPU"), "{error}");
        generator.set_state(&states[1].1).unwrap();
        assert_eq!(generator.state().to_vec::<i64>(), states[1].1.to_vec::<i64>());
    }
}
