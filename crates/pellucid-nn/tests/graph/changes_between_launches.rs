//! Changes between launches: gradients that are removed or rebound, parameters that are loaded, frozen or
//! replaced.

use crate::models::*;
use pellucid_nn::graph::*;
use pellucid_nn::loss::{CrossEntropyLoss, Loss};
use pellucid_nn::optim::Optimizer;
use pellucid_nn::paths::*;
use pellucid_nn::*;
use pellucid_tensor::{DType, Device, Error, Result, Tensor};
use std::sync::RwLock;

type Step<'f> = GraphTrainer<'f, &'f Sequential, &'f dyn Optimizer>;

fn step_of<'f>(model: &'f Sequential, optimizer: &'f dyn Optimizer, eager: bool) -> Step<'f> {
    let mut step = trainer(model, CrossEntropyLoss::default(), optimizer, eager);
    launch(&mut step, 0);
    step
}

fn launch(step: &mut Step<'_>, seed: u64) {
    let (x, y) = batch(&[BATCH, 6], seed);
    step.step(&x, &y).unwrap();
}

/// Runs an eager step on the same batch.
fn by_hand(model: &Sequential, optimizer: &dyn Optimizer, seed: u64) {
    let (x, y) = batch(&[BATCH, 6], seed);
    optimizer.zero_grad();
    CrossEntropyLoss::default().forward(&model.forward(&x), &y).backward();
    optimizer.step();
}

fn gradients(model: &Sequential) -> Vec<Tensor> {
    model
        .parameters()
        .iter()
        .map(|p| p.grad().expect("a launch must compute the gradient of every parameter"))
        .collect()
}

fn values(tensors: &[Tensor]) -> Vec<Vec<f32>> {
    tensors.iter().map(|t| t.to_vec()).collect()
}

/// Calling `zero_grad` between launches is harmless: gradients are restored to the plan's buffers.
#[test]
fn removed_gradients_are_restored() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    for eager in [false, true] {
        let (model, other) = (built(&KINDS[0]), built(&KINDS[0]));
        let (optimizer, hand) = (sgd(&model, 0.1, 0.9), sgd(&other, 0.1, 0.9));
        let mut step = step_of(&model, &optimizer, eager);
        by_hand(&other, &hand, 0);
        let bound = gradients(&model);
        for seed in 1..5 {
            match seed {
                1 => optimizer.zero_grad(),
                2 => model.zero_grad(),
                3 => optimizer.zero_grad_with(false),
                _ => model.parameters()[1].set_grad(None),
            }
            launch(&mut step, seed);
            by_hand(&other, &hand, seed);
            assert_eq!(values(&gradients(&model)), values(&gradients(&other)));
            assert!(gradients(&model).iter().zip(&bound).all(|(a, b)| a.array().shares_storage(b.array())));
            assert_eq!(step.cache_stats().misses, u64::from(!eager), "a launch must not record the step again");
        }
        assert!(bits(model.state_dict()) == bits(other.state_dict()));
    }
}

/// If gradients accumulate over launches, a removed gradient restarts at zero.
#[test]
fn accumulated_gradients_that_are_removed() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    for eager in [false, true] {
        let (model, other) = (built(&KINDS[0]), built(&KINDS[0]));
        let (optimizer, hand) = (sgd(&model, 0.1, 0.9), sgd(&other, 0.1, 0.9));
        let (loss, options) = (CrossEntropyLoss::default(), StepOptions { eager, accumulate: 2, ..Default::default() });
        let mut trainer = GraphTrainer::new(&model, &loss, &optimizer).with_options(options);
        for seed in 0..6 {
            let (x, y) = batch(&[BATCH, 6], seed);
            trainer.step(&x, &y).unwrap();
            (loss.forward(&other.forward(&x), &y) * 0.5).backward();
            if seed % 2 == 1 {
                hand.step();
                hand.zero_grad_with(false);
            } else if seed == 2 {
                optimizer.zero_grad();
                hand.zero_grad();
                continue;
            }
            assert_eq!(values(&gradients(&model)), values(&gradients(&other)));
        }
        assert!(bits(model.state_dict()) == bits(other.state_dict()));
    }
}

/// Loading writes in place, and moving a model to the device on which it is changes nothing.
#[test]
fn loaded_or_moved_parameters_are_the_same_tensors() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let (model, other) = (built(&KINDS[0]), mlp());
    let (optimizer, hand) = (sgd(&model, 0.1, 0.0), sgd(&other, 0.1, 0.0));
    let mut step = step_of(&model, &optimizer, false);
    model.load_state_dict(&other.state_dict()).unwrap();
    model.to_(Device::cpu()).unwrap();
    for seed in 1..4 {
        launch(&mut step, seed);
        by_hand(&other, &hand, seed);
    }
    assert!(bits(model.state_dict()) == bits(other.state_dict()));
    assert_eq!(step.cache_stats().misses, 1);
}

#[test]
fn parameters_frozen_between_launches_are_unchanged() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    for eager in [false, true] {
        let (model, other) = (built(&KINDS[0]), built(&KINDS[0]));
        let (optimizer, hand) = (sgd(&model, 0.1, 0.9), sgd(&other, 0.1, 0.9));
        let mut step = step_of(&model, &optimizer, eager);
        by_hand(&other, &hand, 0);
        for (seed, frozen) in [(1, true), (2, true), (3, false)] {
            for model in [&model, &other] {
                model.parameters()[..2].iter().for_each(|p| p.set_requires_grad(!frozen).unwrap());
            }
            launch(&mut step, seed);
            by_hand(&other, &hand, seed);
            assert!(
                bits(model.state_dict()) == bits(other.state_dict()),
                "batch {seed}: the recorded model differs from the eager model"
            );
        }
    }
}

/// A layer whose parameters can be replaced while others borrow it.
pub(crate) struct Changing(pub(crate) RwLock<Linear>);

impl Changing {
    pub(crate) fn replace(&self, layer: Linear) -> Linear {
        std::mem::replace(&mut self.0.write().unwrap(), layer)
    }
}

impl Module for Changing {}

impl Visit for Changing {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.module(self, None);
        visitor.field("layer", &*self.0.read().unwrap());
    }
}

impl Layer for Changing {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        self.0.read().unwrap().try_forward(x)
    }
}

/// After a parameter is replaced, the optimizer and the plan still refer to the old tensor, which is rejected.
#[test]
fn a_replaced_parameter_is_rejected_by_name() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    for eager in [false, true] {
        let model = Changing(RwLock::new(Linear::new(6, CLASSES)));
        let optimizer = pellucid_nn::optim::Sgd::try_new(model.parameters(), Default::default()).unwrap();
        let mut trainer = trainer(&model, CrossEntropyLoss::default(), optimizer, eager);
        trainer.prepare(&Tensor::zeros([BATCH, 6], DType::F32)).unwrap();
        let (x, y) = batch(&[BATCH, 6], 1);
        trainer.step_and_evaluate(&x, &y).unwrap();
        let old = model.replace(Linear::new(6, CLASSES));
        let before = bits(model.state_dict());
        for rejected in [trainer.step(&x, &y).err(), trainer.evaluate(&x, &y).err()] {
            match rejected {
                Some(Error::Rebound { slot }) => assert!(slot.contains("layer.weight"), "{slot}"),
                other => panic!("expected Error::Rebound, got {other:?}"),
            }
        }
        assert_eq!(bits(model.state_dict()), before);
        // With the old parameter restored, launches succeed again.
        model.replace(old);
        trainer.step_and_evaluate(&x, &y).unwrap();
    }
}

/// A captured step without a trainer follows the selected path.
#[test]
fn a_captured_step_follows_choices_and_modes() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let branch = If::new(Linear::new(6, 3), Linear::new(6, 3));
    let model = sequential![branch.clone(), Dropout::new(0.5)];
    let (x, eager) = (batch(&[BATCH, 6], 1).0, sequential![branch]);
    let choose = |way: usize| {
        let mut meet = |_: &str, part: ModulePart<'_>| {
            if let ModulePart::PathChoice(choice) = part {
                choice.set(way);
            }
        };
        [&model, &eager].into_iter().for_each(|m| m.visit(&mut Visitor::new(&mut meet)));
    };
    model.eval();
    let mut step = pellucid_tensor::capture(|i| model.forward(&i[0]), &[&x]).unwrap();
    for way in [1, 0, 1, 0, 0, 1] {
        choose(way);
        assert_eq!(step.launch(&[&x]).unwrap().to_vec::<f32>(0), eager.forward(&x).to_vec::<f32>());
    }
    assert_eq!((step.cache_stats().misses, step.cache_stats().len), (1, 2));
}
