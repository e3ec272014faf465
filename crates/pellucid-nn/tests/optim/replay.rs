//! N eager and N replayed steps of every optimizer end bit-equal, with a schedule between launches.

use crate::numbers::{KINDS, Make};
use crate::parameters;
use pellucid_nn::graph::GraphTrainer;
use pellucid_nn::loss::{self, MseLoss};
use pellucid_nn::optim::schedule::{ExponentialLr, OneCycleLr, PerGroup, Schedule, Scheduler};
use pellucid_nn::optim::{Adam, AdamOptions, Average, AveragedModel, Lbfgs, LbfgsOptions, Optimizer, Sgd, SgdOptions};
use pellucid_nn::{Layer, Linear, Module, Parameter, Sequential, Tanh, sequential};
use pellucid_tensor::{DType, Tensor, capture};

const STEPS: usize = 20;

fn schedule(optimizer: &dyn Optimizer) -> Box<dyn Schedule> {
    match optimizer.groups()[0].momentum() {
        Some(_) => Box::new(OneCycleLr::new(PerGroup::All(0.1), STEPS)),
        None => Box::new(ExponentialLr { gamma: 0.9 }),
    }
}

/// Returns all bytes of parameters, optimizer state and averages after some steps.
fn run_steps(make: Make, case: usize, matrices: bool, dtype: DType, replayed: bool) -> Vec<Vec<u8>> {
    let optimizer = make(parameters(matrices, dtype), case);
    let average = AveragedModel::new(&optimizer.parameters().to_vec(), Average::Exponential(0.9));
    let mut scheduler = Scheduler::new(schedule(&*optimizer), &*optimizer);
    let step = |x: &Tensor| {
        optimizer.zero_grad();
        let parameters = optimizer.parameters();
        let own = parameters.iter().map(|p| (p.to_dtype(DType::F32) * x).sin().sum(..));
        let loss = own.reduce(|a, b| a + b).unwrap();
        loss.backward();
        optimizer.step();
        average.update().unwrap();
        loss
    };
    let inputs: Vec<Tensor> = (0..STEPS).map(|i| Tensor::from(1.0 + 0.3 * i as f32)).collect();
    if replayed {
        let mut captured = capture(|inputs| step(&inputs[0]), &[&inputs[0]]).unwrap();
        for x in &inputs {
            captured.launch(&[x]).unwrap();
            drop(Tensor::full([64, 3], 1e30, DType::F32));
            scheduler.step();
        }
    } else {
        for x in &inputs {
            step(x);
            scheduler.step();
        }
    }
    let parameters = optimizer.parameters();
    let parameters = parameters.iter().map(|p| p.to_bytes());
    let state = optimizer.state_dict().into_iter().chain(average.state_dict());
    parameters.chain(state.map(|(_, t)| t.to_bytes())).collect()
}

#[test]
fn all_kinds_replay_bit_equal() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    for (kind, cases, make) in KINDS.iter().copied() {
        for case in 0..cases {
            for dtype in [DType::F32, DType::BF16] {
                let eager = run_steps(make, case, kind == "muon", dtype, false);
                assert_eq!(
                    run_steps(make, case, kind == "muon", dtype, true),
                    eager,
                    "{kind}.{case} in {dtype}: the captured steps differ from the eager steps"
                );
            }
        }
    }
}

/// A trainer's steps equal eager ones for every optimizer, which reads its gradients from the plan's buffers. Checks of
/// the step in between restore the state of every optimizer.
#[test]
fn all_kinds_train_a_model_bit_equal() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let make_model = || {
        pellucid_tensor::manual_seed(3);
        sequential![Linear::new(6, 5).bias(false), Tanh, Linear::new(5, 2).bias(false)]
    };
    let batches: Vec<_> = (0..8)
        .map(|i| (Tensor::arange(0.0f32, 24.0, 1.0) * 0.3 + i as f64).sin().reshape([4, 6]))
        .map(|x| (x.clone(), x.i((.., ..2)).cos()))
        .collect();
    for (kind, _, make) in KINDS.iter().copied() {
        let (model, other) = (make_model(), make_model());
        let hand = make(other.parameters(), 0);
        let mut trainer = GraphTrainer::new(&model, MseLoss::default(), make(model.parameters(), 0));
        trainer.prepare(&Tensor::zeros([4, 6], DType::F32)).unwrap();
        assert_eq!(
            model.parameters().iter().filter(|p| p.grad().is_some()).count(),
            2,
            "{kind}: both gradients must be bound to buffers"
        );
        for (i, (x, y)) in batches.iter().enumerate() {
            if i % 4 < 2 {
                assert!(trainer.check_step(x, y).unwrap().loss_before.is_finite());
            }
            trainer.step(x, y).unwrap();
            hand.zero_grad();
            let value = loss::mse_loss(&other.forward(x), y);
            value.backward();
            hand.step();
            assert_eq!(trainer.loss().unwrap(), value.item::<f64>(), "{kind}: the losses differ");
        }
        let bits = |model: &Sequential, optimizer: &dyn Optimizer| {
            let state = model.state_dict().into_iter().chain(optimizer.state_dict());
            state.map(|(name, t)| (name, t.to_bytes())).collect::<Vec<_>>()
        };
        assert!(bits(&model, trainer.optimizer()) == bits(&other, &hand), "{kind}: the final values differ");
    }
}

/// The clock of a parameter without a gradient does not advance, in a replayed step too.
#[test]
fn idle_clocks_do_not_advance_in_launches() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let run = |replayed: bool| {
        let own = parameters(false, DType::F64);
        let adam = Adam::new(own.clone(), AdamOptions { lr: 0.1, ..Default::default() });
        let step = |inputs: &[Tensor]| {
            adam.zero_grad();
            (own[0].tensor() * &inputs[0]).sin().sum(..).backward();
            adam.step();
        };
        let x = Tensor::from(1.5f64);
        if replayed {
            let mut captured = capture(step, &[&x]).unwrap();
            for _ in 0..4 {
                captured.launch(&[&x]).unwrap();
            }
        } else {
            (0..4).for_each(|_| step(std::slice::from_ref(&x)));
        }
        let steps = [0, 1].map(|i| adam.clock_tensor(i, "step").unwrap().item::<f64>());
        (steps, own.iter().map(|p| p.to_bytes()).collect::<Vec<_>>())
    };
    let eager = run(false);
    assert_eq!(eager.0, [4.0, 0.0]);
    assert_eq!(run(true), eager);
}

/// A captured step accumulates into external gradient buffers, and reads a scale in every launch.
#[test]
fn launches_use_external_gradients_and_new_scales() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let p = Parameter::new(Tensor::from([1.0f64, 2.0]));
    let sgd = Sgd::new(vec![p.clone()], SgdOptions { lr: 1.0, ..Default::default() });
    let (buffer, scale) = (Tensor::zeros([2], DType::F64), Tensor::from(0.5f64));
    p.set_grad(Some(buffer.clone()));
    sgd.set_grad_scale((&scale).into());
    let step = |inputs: &[Tensor]| {
        sgd.zero_grad_with(false);
        (p.tensor() * &inputs[0]).sum(..).backward();
        sgd.step();
    };
    let x = Tensor::from([1.0f64, 0.5]);
    let mut captured = capture(step, &[&x]).unwrap();
    captured.launch(&[&x]).unwrap();
    assert_eq!((p.to_vec::<f64>(), buffer.to_vec::<f64>()), (vec![0.5, 1.75], vec![1.0, 0.5]));
    scale.copy_(&Tensor::from(-1.0f64));
    captured.launch(&[&x]).unwrap();
    captured.launch(&[&x]).unwrap();
    assert_eq!((p.to_vec::<f64>(), buffer.to_vec::<f64>()), (vec![2.5, 2.75], vec![1.0, 0.5]));
}

/// A scale is set through the trait, and a step that was recorded before uses it.
#[test]
fn a_recorded_step_uses_a_scale_that_is_set_later() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let model = Linear::new(2, 1);
    let sgd: Box<dyn Optimizer> = Box::new(Sgd::new(model.parameters(), SgdOptions { lr: 0.1, ..Default::default() }));
    let mut trainer = GraphTrainer::new(&model, MseLoss::default(), sgd);
    let (x, y) = (Tensor::ones([4, 2], DType::F32), Tensor::ones([4, 1], DType::F32));
    let mut change = |scale: f64| {
        trainer.optimizer().set_grad_scale(scale.into());
        let before = model.weight.to_vec::<f32>();
        trainer.step(&x, &y).unwrap();
        model.weight.to_vec::<f32>() != before
    };
    assert_eq!([1.0, 0.0, 0.5].map(&mut change), [true, false, true]);
}

/// The number of evaluations in a step of L-BFGS depends on values, but the loss with its gradients can be a captured
/// step.
#[test]
fn lbfgs_over_a_captured_loss() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let run = |replayed: bool| {
        let own = parameters(false, DType::F64);
        let options = LbfgsOptions { line_search: true, max_iter: 6, ..Default::default() };
        let lbfgs = Lbfgs::new(own.clone(), options);
        own.iter().for_each(|p| p.set_grad(Some(Tensor::zeros(p.shape(), p.dtype()))));
        let loss = |inputs: &[Tensor]| {
            own.iter().for_each(|p| p.grad().unwrap().copy_(&Tensor::from(0.0)));
            let loss = own.iter().map(|p| (p.tensor() * &inputs[0]).cos().sum(..)).reduce(|a, b| a + b).unwrap();
            loss.backward();
            loss.detach()
        };
        let x = Tensor::from(1.5f64);
        let mut captured = capture(loss, &[&x]).unwrap();
        let mut evaluate = || match replayed {
            true => captured.launch(&[&x]).unwrap().to_tensor(0),
            false => loss(std::slice::from_ref(&x)),
        };
        let losses: Vec<f64> = (0..3).map(|_| lbfgs.step_with(&mut evaluate)).collect();
        let state = lbfgs.state_dict().into_values().map(|t| t.to_bytes());
        (losses, own.iter().map(|p| p.to_bytes()).chain(state).collect::<Vec<_>>())
    };
    let eager = run(false);
    assert!(eager.0[2] < eager.0[0], "the loss must fall: {:?}", eager.0);
    assert!(run(true) == eager);
    // Capturing the entire step fails with an error that names the alternative.
    let lbfgs = Lbfgs::new(parameters(false, DType::F64), LbfgsOptions::default());
    let rejected = capture(|_| lbfgs.step(), &[]).err().unwrap().to_string();
    assert!(rejected.contains("captured loss"), "{rejected}");
}
