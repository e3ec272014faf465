//! A compiled step trains all parameters, or compiling fails with an error that names the untrained parameters.

use crate::models::*;
use pellucid_nn::graph::*;
use pellucid_nn::loss::{
    AdaptiveLogSoftmaxWithLoss, CrossEntropyLoss, LinearCrossEntropyLoss, Loss, MseLoss, cross_entropy,
};
use pellucid_nn::optim::{AdamW, AdamWOptions, Optimizer, ParameterList, Sgd, SgdOptions};
use pellucid_nn::*;
use pellucid_tensor::{DType, Error, Result, Tensor, capture, manual_seed, ops};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

fn adamw(parameters: Vec<Parameter>) -> AdamW {
    AdamW::try_new(parameters, AdamWOptions { lr: 0.01, ..Default::default() }).unwrap()
}

fn lazy() -> Sequential {
    manual_seed(9);
    sequential![Linear::lazy(16), Relu, BatchNorm1d::lazy(), Linear::lazy(CLASSES)]
}

/// The names in an `UntrainedParameters` error.
#[track_caller]
fn untrained<T>(result: Result<T>) -> Vec<String> {
    match result {
        Err(Error::UntrainedParameters { parameters, .. }) => parameters,
        Err(other) => panic!("expected Error::UntrainedParameters, got: {other}"),
        Ok(_) => panic!("the call must return an error"),
    }
}

#[test]
fn an_optimizer_without_parameters_is_filled_with_those_of_a_lazy_model() {
    for eager in [false, true] {
        let (model, other) = (lazy(), built(&("lazy", lazy, &[BATCH, 6])));
        let (empty, hand) = (adamw(vec![]), adamw(other.parameters()));
        empty.set_lr(0.02);
        hand.set_lr(0.02);
        let mut trainer = trainer(&model, CrossEntropyLoss::default(), &empty, eager);
        trainer.prepare(&Tensor::zeros([BATCH, 6], DType::F32)).unwrap();
        assert_eq!(empty.parameters().len(), model.parameters().len());
        other.load_state_dict(&model.state_dict()).unwrap();
        assert_eq!(model.parameters().iter().filter(|p| p.grad().is_some()).count(), 6);
        for seed in 0..4 {
            let (x, y) = batch(&[BATCH, 6], seed);
            trainer.step(&x, &y).unwrap();
            hand.zero_grad();
            cross_entropy(&other.forward(&x), &y).backward();
            hand.step();
            assert_eq!(
                bits(model.state_dict()),
                bits(other.state_dict()),
                "batch {seed}: the recorded model differs from the eager model"
            );
            empty.set_lr(0.01);
            hand.set_lr(0.01);
        }
        // Compiling a second shape uses the same optimizer, whose state has the names of the model.
        trainer.prepare(&Tensor::zeros([4, 6], DType::F32)).unwrap();
        let state = empty.state_dict();
        assert!(state.contains_key("state.0.weight.mean") && state.contains_key("state.3.bias.square"), "{state:?}");
        empty.load_state_dict(&state).unwrap();
        // Parameters that are added later are listed after those that compiling added.
        drop(trainer);
        let mut empty = empty;
        empty.add_params(vec![Parameter::new(Tensor::ones([2], DType::F32))]);
        assert_eq!(empty.parameters().len(), 7);
        assert_eq!(empty.state_dict()["state.0.weight.mean"].to_bytes(), state["state.0.weight.mean"].to_bytes());
    }
}

#[test]
fn half_and_double_precision_models_are_filled() {
    for (dtype, state) in [(DType::BF16, DType::F32), (DType::F64, DType::F64)] {
        let model = init::in_dtype(dtype, mlp);
        let boxed: Box<dyn Optimizer> = Box::new(adamw(vec![]));
        let mut trainer = GraphTrainer::new(&model, CrossEntropyLoss::default(), &boxed);
        trainer.prepare(&Tensor::zeros([BATCH, 6], dtype)).unwrap();
        assert_eq!((boxed.groups()[0].lr_tensor().dtype(), boxed.parameters().len()), (state, 4));
        let (x, y) = batch(&[BATCH, 6], 1);
        let before = bits(model.state_dict());
        trainer.step(&x.to_dtype(dtype), &y).unwrap();
        assert_ne!(bits(model.state_dict()), before);
    }
}

#[test]
fn an_optimizer_of_another_model_is_rejected() {
    for eager in [false, true] {
        let (model, other, loss) = (mlp(), mlp(), CrossEntropyLoss::default());
        let optimizer = sgd(&other, 0.1, 0.9);
        let all = ["0.weight", "0.bias", "2.weight", "2.bias"];
        let trainer = || trainer(&model, &loss, &optimizer, eager);
        assert_eq!(untrained(trainer().prepare(&Tensor::zeros([BATCH, 6], DType::F32))), all);
        let (x, y) = batch(&[BATCH, 6], 1);
        assert_eq!(untrained(trainer().step(&x, &y)), all);
        assert!(model.parameters().iter().chain(&other.parameters()).all(|p| p.grad().is_none()));
        // A step that trains nothing is rejected, even if untrained parameters are allowed.
        let options = StepOptions { eager, allow_untrained_parameters: true, ..Default::default() };
        let mut allowed = trainer().with_options(options);
        let rejected = match allowed.prepare(&Tensor::zeros([BATCH, 6], DType::F32)) {
            Err(error) => error,
            Ok(_) => allowed.step(&x, &y).unwrap_err(),
        };
        assert!(rejected.to_string().contains("nothing would be trained"), "{rejected}");
        // The optimizer was created before the layers were replaced.
        let mut replaced = mlp();
        let optimizer = sgd(&replaced, 0.1, 0.0);
        replaced = mlp();
        let rejected = GraphTrainer::new(&replaced, &loss, optimizer)
            .prepare(&Tensor::zeros([BATCH, 6], DType::F32))
            .err()
            .unwrap();
        assert!(rejected.to_string().contains("belong to another model, or were replaced"), "{rejected}");
    }
}

/// A parameter of the optimizer without state has the name of the model.
#[test]
fn parameters_without_state_are_named() {
    for (eager, allow_untrained_parameters) in [(false, false), (false, true), (true, false)] {
        let model = mlp();
        let first = model.parameters().remove(0);
        first.set_requires_grad(false).unwrap();
        let optimizer = sgd(&model, 0.1, 0.9);
        let options = StepOptions { eager, allow_untrained_parameters, ..Default::default() };
        let mut trainer = GraphTrainer::new(&model, CrossEntropyLoss::default(), &optimizer).with_options(options);
        let (x, y) = batch(&[BATCH, 6], 1);
        trainer.step(&x, &y).unwrap();
        first.set_requires_grad(true).unwrap();
        assert_eq!(untrained(trainer.step(&x, &y)), ["0.weight"]);
    }
}

#[test]
fn untrained_parameters_are_named_or_allowed() {
    let (model, loss) = (mlp(), CrossEntropyLoss::default());
    let some = Sgd::try_new(model.parameters()[2..].to_vec(), SgdOptions { lr: 0.1, ..Default::default() }).unwrap();
    let mut trainer = GraphTrainer::new(&model, &loss, &some);
    assert_eq!(untrained(trainer.prepare(&Tensor::zeros([BATCH, 6], DType::F32))), ["0.weight", "0.bias"]);
    assert!(model.parameters().iter().all(|p| p.grad().is_none()), "a failed call must not set a gradient");
    let (x, y) = batch(&[BATCH, 6], 1);
    let before = bits(model.state_dict());
    let moved = || -> Vec<bool> {
        model.state_dict().into_iter().zip(&before).map(|((_, v), (_, old))| v.to_bytes() != *old).collect()
    };
    let options = StepOptions { allow_untrained_parameters: true, ..Default::default() };
    let mut trainer = GraphTrainer::new(&model, &loss, &some).with_options(options);
    trainer.prepare(&Tensor::zeros([BATCH, 6], DType::F32)).unwrap();
    trainer.step(&x, &y).unwrap();
    assert_eq!(moved(), [false, false, true, true]);
}

#[test]
fn frozen_parameters_need_no_optimizer_while_they_are_frozen() {
    for eager in [false, true] {
        let (model, loss) = (mlp(), CrossEntropyLoss::default());
        model.layers()[0].freeze();
        let optimizer = adamw(vec![]);
        let mut trainer = trainer(&model, &loss, &optimizer, eager);
        trainer.prepare(&Tensor::zeros([BATCH, 6], DType::F32)).unwrap();
        assert_eq!(optimizer.parameters().len(), 2, "the optimizer must not contain the frozen parameters");
        let (x, y) = batch(&[BATCH, 6], 1);
        trainer.step(&x, &y).unwrap();
        let before = bits(model.state_dict());
        model.unfreeze();
        assert_eq!(untrained(trainer.step(&x, &y)), ["0.weight", "0.bias"]);
        assert_eq!(bits(model.state_dict()), before);
        model.layers()[0].freeze();
        trainer.step(&x, &y).unwrap();
        assert_ne!(bits(model.state_dict()), before);
        // All parameters are frozen, so the step has nothing to train.
        model.freeze();
        assert!(
            GraphTrainer::new(&model, &loss, adamw(vec![])).prepare(&Tensor::zeros([BATCH, 6], DType::F32)).is_err()
        );
    }
}

/// A layer whose output depends on a value.
#[derive(Clone, Module)]
struct Reading;

impl Layer for Reading {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        let mean = x.mean(..).item::<f32>();
        ops::mul(x, f64::from(mean))
    }
}

#[test]
fn a_failed_compile_leaves_the_optimizer_empty() {
    let (optimizer, loss) = (adamw(vec![]), CrossEntropyLoss::default());
    let compile = |model: &Sequential, update: &(dyn Fn(&[Parameter]) -> Result<()> + Sync)| {
        let options = StepOptions { before_update: Some(Arc::new(|p| update(p))), ..Default::default() };
        let mut trainer = GraphTrainer::new(model, &loss, &optimizer).with_options(options);
        trainer.prepare(&Tensor::zeros([BATCH, 6], DType::F32))
    };
    let reading = sequential![Linear::new(6, 6), Reading, Linear::new(6, CLASSES)];
    assert!(compile(&reading, &|_| Ok(())).is_err());
    assert!(optimizer.parameters().is_empty());
    // The error occurs at recording, after the optimizer was filled.
    let model = mlp();
    let reject = |_: &[Parameter]| Err(Error::invalid("test", "rejected"));
    assert!(compile(&model, &reject).is_err());
    assert!(optimizer.parameters().is_empty() && model.parameters().iter().all(|p| p.grad().is_none()));
    optimizer.set_lr(0.5);
    compile(&model, &|_| Ok(())).unwrap();
    assert_eq!((optimizer.parameters().len(), optimizer.lr()), (4, 0.5));
    // The optimizer now has the parameters of another model.
    assert_eq!(untrained(compile(&mlp(), &|_| Ok(()))).len(), 4);
    let state = optimizer.state_dict();
    let rejected = adamw(vec![]).load_state_dict(&state).unwrap_err().to_string();
    assert!(rejected.contains("no parameters yet"), "{rejected}");
}

#[test]
fn an_optimizer_that_cannot_be_filled_returns_an_error() {
    let mut several = adamw(vec![]);
    several.add_group(ParameterList::default(), AdamWOptions::default());
    let model = mlp();
    let rejected = GraphTrainer::new(&model, MseLoss::default(), several)
        .prepare(&Tensor::zeros([BATCH, 6], DType::F32))
        .err()
        .unwrap();
    assert!(
        matches!(&rejected, Error::InvalidArgument { .. }) && rejected.to_string().contains("several groups"),
        "{rejected}"
    );
    let full = adamw(model.parameters());
    let deferred = full.deferred_parameters().unwrap();
    assert!(matches!(deferred.add(model.named_parameters()), Err(Error::InvalidArgument { .. })));
    deferred.remove_added();
    assert_eq!(full.parameters().len(), 4);
}

#[test]
fn parameters_of_a_loss_are_trained_or_named() {
    let model = sequential![Linear::new(6, 8)];
    let loss = LinearCrossEntropyLoss::new(8, CLASSES, &[]).bias(true);
    let custom = |loss| Loss::with_targets(loss, [BATCH], DType::I64);
    let rejected = GraphTrainer::new(&model, custom(loss.clone()), sgd(&model, 0.1, 0.0))
        .prepare(&Tensor::zeros([BATCH, 6], DType::F32))
        .map(drop);
    assert_eq!(untrained(rejected), ["loss.linear.weight", "loss.linear.bias"]);
    let optimizer = adamw(vec![]);
    let mut trainer = GraphTrainer::new(&model, custom(loss.clone()), &optimizer);
    trainer.prepare(&Tensor::zeros([BATCH, 6], DType::F32)).unwrap();
    assert_eq!(optimizer.parameters().len(), 4);
    let before = loss.linear.weight.to_vec::<f32>();
    let (x, y) = batch(&[BATCH, 6], 1);
    trainer.step(&x, &y).unwrap();
    assert_ne!(loss.linear.weight.to_vec::<f32>(), before);
    let adaptive = AdaptiveLogSoftmaxWithLoss::new(8, CLASSES, &[2], 2.0);
    let targets = Loss::with_targets(&adaptive, [BATCH], DType::I64);
    let rejected = GraphTrainer::new(&model, &targets, sgd(&model, 0.1, 0.0))
        .prepare(&Tensor::zeros([BATCH, 6], DType::F32))
        .map(drop);
    assert_eq!(untrained(rejected).len(), adaptive.parameters().len());
}

/// Two parameters over one storage have separate gradients.
#[test]
fn a_parameter_over_the_same_memory_is_another_parameter() {
    let model = Linear::new(6, 1);
    let twins = vec![Parameter::new(model.weight.tensor().clone()), model.bias.clone().unwrap()];
    let optimizer = Sgd::try_new(twins, SgdOptions { lr: 0.1, ..Default::default() }).unwrap();
    let rejected = GraphTrainer::new(&model, MseLoss::default(), &optimizer)
        .prepare(&Tensor::zeros([BATCH, 6], DType::F32))
        .map(drop);
    assert_eq!(untrained(rejected), ["weight"]);
    // The weights are tied by hand: both layers contribute to the gradient.
    let tied = Linear { weight: Parameter::new(model.weight.tensor().clone()), bias: None };
    let both = (model, tied);
    assert_eq!(both.parameters().len(), 3);
    let optimizer = Sgd::try_new(both.parameters(), SgdOptions { lr: 1.0, ..Default::default() }).unwrap();
    let before = both.0.weight.to_vec::<f32>();
    let x = Tensor::ones([1, 6], DType::F32);
    (both.0.forward(&x) + both.1.forward(&x)).sum(..).backward();
    optimizer.step();
    let moved: Vec<f32> = both.1.weight.to_vec::<f32>().iter().zip(before).map(|(now, old)| old - now).collect();
    assert!(moved.iter().all(|m| (m - 2.0).abs() < 1e-6), "every parameter must move by 2, but they move by {moved:?}");
}

#[test]
fn a_step_without_parameters_or_gradients_is_reported() {
    let empty = adamw(vec![]);
    assert!(empty.try_step().unwrap_err().to_string().contains("no parameters"));
    let (model, other) = (mlp(), mlp());
    let (x, y) = batch(&[BATCH, 6], 1);
    let stranger = adamw(other.parameters());
    // A step without gradients is rejected, since the loop would never train.
    let rejected = stranger.try_step().unwrap_err().to_string();
    assert!(["backward()", "parameters()", "unfreeze()"].iter().all(|remedy| rejected.contains(remedy)), "{rejected}");
    // Some parameters with gradients are enough.
    other.parameters()[0].square().sum(..).backward();
    stranger.step();
    let trained = other.state_dict();
    other.zero_grad();
    assert!(stranger.try_step().unwrap_err().to_string().contains("after zero_grad() and before the step"));
    assert!(other.state_dict().iter().all(|(name, value)| value.to_vec::<f32>() == trained[name].to_vec::<f32>()));
    let rejected = capture(
        |i| {
            stranger.zero_grad();
            let loss = cross_entropy(&model.forward(&i[0]), &i[1]);
            loss.backward();
            stranger.step();
            model.zero_grad();
            loss
        },
        &[&x, &y],
    );
    let rejected = rejected.expect_err("capturing a step without gradients must be an error").to_string();
    assert!(rejected.contains("never train"), "{rejected}");
}

#[test]
fn a_closure_without_backward_is_rejected_by_lbfgs() {
    let p = Parameter::new(Tensor::from([1.0f32]));
    let optimizer = optim::Lbfgs::try_new(vec![p.clone()], Default::default()).unwrap();
    let rejected = optimizer.try_step_with(&mut || p.square().sum(..)).unwrap_err();
    assert!(rejected.to_string().contains("backward()"), "{rejected}");
}

#[test]
fn steps_with_a_closure_use_no_old_gradients() {
    let p = Parameter::new(Tensor::from([1.0f32]));
    let loss = || {
        let loss = p.square().sum(..);
        loss.backward();
        loss
    };
    // The closure does not clear the gradients; the steps use fresh gradients 2·p.
    let optimizer = optim::Sgd::try_new(vec![p.clone()], SgdOptions { lr: 0.25, ..Default::default() }).unwrap();
    for _ in 0..2 {
        optimizer.step_with(&mut { loss });
    }
    assert_eq!(p.to_vec::<f32>(), [0.25]);
    let rejected = optimizer.try_step_with(&mut || p.square().sum(..)).unwrap_err();
    assert!(rejected.to_string().contains("backward()"), "{rejected}");
    // L-BFGS with a stale gradient does not move.
    loss();
    let optimizer = optim::Lbfgs::try_new(vec![p.clone()], Default::default()).unwrap();
    optimizer.step_with(&mut || p.square().sum(..));
    assert_eq!(p.to_vec::<f32>(), [0.25]);
    optimizer.step_with(&mut { loss });
    assert_eq!(p.to_vec::<f32>(), [-0.25]);
}

/// The options of a trainer replace all earlier ones.
#[test]
fn options_replace_earlier_ones() {
    let (model, calls) = (mlp(), AtomicUsize::new(0));
    let before_update: BeforeUpdate<'_> = Arc::new(|_| {
        calls.fetch_add(1, Ordering::Relaxed);
        Ok(())
    });
    let some = Sgd::new(model.parameters()[2..].to_vec(), SgdOptions::default());
    let options =
        StepOptions { before_update: Some(before_update), allow_untrained_parameters: true, ..Default::default() };
    let mut trainer = GraphTrainer::new(&model, CrossEntropyLoss::default(), some).with_options(options);
    let x = Tensor::zeros([BATCH, 6], DType::F32);
    trainer.prepare(&x).unwrap();
    let before = calls.load(Ordering::Relaxed);
    assert!(before > 0);
    trainer.set_options(StepOptions::default());
    assert_eq!(untrained(trainer.prepare(&x)), ["0.weight", "0.bias"]);
    trainer.set_options(StepOptions { allow_untrained_parameters: true, ..Default::default() });
    trainer.prepare(&x).unwrap();
    assert_eq!(calls.load(Ordering::Relaxed), before);
}
