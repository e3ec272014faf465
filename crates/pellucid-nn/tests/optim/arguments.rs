//! Arguments of optimizers and schedules outside their ranges.

use pellucid_nn::optim::schedule::{
    ConstantLr, CosineAnnealingLr, CosineAnnealingWarmRestarts, CosineWithWarmupLr, CyclicLr, CyclicMode,
    ExponentialLr, LinearLr, NoamLr, OneCycleLr, PerGroup, PolynomialLr, ReduceLrOnPlateau, ReduceLrOnPlateauOptions,
    Schedule, Scheduler, SequentialLr, StepLr, ThresholdMode, WarmupLr,
};
use pellucid_nn::optim::{
    Adafactor, AdafactorOptions, Adam, AdamOptions, Lbfgs, LbfgsOptions, Optimizer, RAdam, RAdamOptions, Rule,
    RuleOptimizer, RuleState, Sgd, SgdOptions, UpdateContext, is_bias_or_norm,
};
use pellucid_nn::{Checkpoint, Dropout, Linear, Module, Parameter, StateDict};
use pellucid_tensor::{DType, Formula, Result, Scalar, Tensor, formula};
use std::panic::{AssertUnwindSafe, catch_unwind};

fn sgd() -> Sgd {
    let options = SgdOptions { lr: 0.1, momentum: 0.5, ..Default::default() };
    Sgd::new(vec![Parameter::new(Tensor::from([1.0f32]))], options)
}

fn message<T>(result: Result<T>) -> String {
    result.err().map(|error| error.to_string()).unwrap_or_default()
}

#[test]
fn a_group_that_does_not_exist_is_an_error() {
    let payload = catch_unwind(|| sgd().options(9).lr).unwrap_err();
    let text = payload.downcast::<String>().expect("the payload of the panic must be a String");
    assert!(text.contains("there is no group 9; the optimizer has 1"), "{text}");
}

/// An error names the option, its value and an example value.
#[test]
fn optimizers_and_dropout_check_their_options() {
    let parameters = || vec![Parameter::new(Tensor::from([1.0f32]))];
    let sgd_with = |options| message(Sgd::try_new(parameters(), options));
    let adam_with = |options| message(Adam::try_new(parameters(), options));
    let adafactor_with = |options| message(Adafactor::try_new(parameters(), options));
    for (found, expected) in [
        (
            sgd_with(SgdOptions { lr: f64::NAN, ..Default::default() }),
            "lr must be finite and not negative, got NaN; try 0.001",
        ),
        (sgd_with(SgdOptions { dampening: 2.0, ..Default::default() }), "dampening must be in [0, 1], got 2; try 0"),
        (
            adam_with(AdamOptions { betas: (0.9, 1.0), ..Default::default() }),
            "betas.1 must be in [0, 1), got 1; try 0.999",
        ),
        (
            adafactor_with(AdafactorOptions { beta2_decay: 0.5, ..Default::default() }),
            "beta2_decay must be finite and not positive, got 0.5; try -0.8",
        ),
        (
            adafactor_with(AdafactorOptions { d: 0.5, ..Default::default() }),
            "d must be finite and at least 1, got 0.5; try 1",
        ),
        (message(sgd().try_set_lr(-1.0)), "lr must be finite and not negative, got -1; try 0.001"),
        (message(sgd().groups()[0].try_set_momentum(1.0)), "momentum must be in [0, 1), got 1; try 0.9"),
        (message(Dropout::try_new(1.5)), "p must be in [0, 1], got 1.5; try 0.5"),
    ] {
        assert!(found.contains(expected), "{found}");
    }
}

#[test]
fn schedules_check_their_options() {
    let rejected = |schedule: Box<dyn Schedule>| message(Scheduler::try_new(schedule, &sgd()));
    let nested = SequentialLr::new(StepLr::new(1)).then(2, StepLr::new(0));
    let descending = SequentialLr::new(StepLr::new(1)).then(2, StepLr::new(1)).then(2, StepLr::new(1));
    let linear = |start_factor, end_factor| LinearLr { start_factor, end_factor, total_iters: 4 };
    let unused = SequentialLr::new(StepLr::new(1)).then(0, StepLr::new(1));
    let cases: [(Box<dyn Schedule>, &str); 22] = [
        (Box::new(StepLr { step_size: 0, gamma: 0.1 }), "StepLr: step_size must be at least 1, got 0; try 30"),
        (Box::new(StepLr { step_size: 1, gamma: -1.0 }), "gamma must be finite and not negative, got -1; try 0.1"),
        (Box::new(nested), "step_size must be at least 1"),
        (Box::new(descending), "starts at epoch 2; got the milestone 2"),
        (Box::new(unused), "starts at epoch 0; got the milestone 0"),
        (Box::new(ExponentialLr { gamma: f64::NAN }), "gamma must be finite and not negative, got NaN; try 0.9"),
        (Box::new(ConstantLr { factor: 0.0, total_iters: 2 }), "factor must be in (0, 1], got 0; try 0.1"),
        (Box::new(linear(0.0, 1.0)), "start_factor must be in (0, 1], got 0; try 0.1"),
        (Box::new(linear(1.0, 1.5)), "end_factor must be in [0, 1], got 1.5; try 1"),
        (Box::new(CosineAnnealingLr { t_max: 0, eta_min: 0.0 }), "t_max must be at least 1, got 0; try 100"),
        (
            Box::new(CosineAnnealingWarmRestarts { t_0: 0, t_mult: 1, eta_min: 0.0 }),
            "t_0 must be at least 1, got 0; try 10",
        ),
        (
            Box::new(CosineAnnealingWarmRestarts { t_0: 1, t_mult: 0, eta_min: 0.0 }),
            "t_mult must be at least 1, got 0; try 1",
        ),
        (Box::new(OneCycleLr::new(1.0, 0)), "total_steps must be at least 1, got 0; try 1000"),
        (Box::new(OneCycleLr::new(-1.0, 5)), "max_lr must be finite and not negative, got -1; try 0.1"),
        (
            Box::new(OneCycleLr { pct_start: 1.5, ..OneCycleLr::new(1.0, 5) }),
            "pct_start must be in [0, 1], got 1.5; try 0.3",
        ),
        (
            Box::new(CyclicLr { step_size_up: 0, ..CyclicLr::new(0.1, 1.0) }),
            "step_size_up must be at least 1, got 0; try 2000",
        ),
        (
            Box::new(CosineWithWarmupLr { warmup_steps: 0, total_steps: 0, eta_min: 0.0 }),
            "total_steps must be at least 1, got 0; try 1000",
        ),
        (Box::new(PolynomialLr { total_iters: 5, power: f64::NAN }), "power must be finite and not negative, got NaN"),
        (Box::new(WarmupLr { warmup_steps: 0 }), "WarmupLr: warmup_steps must be at least 1, got 0"),
        (Box::new(NoamLr { d_model: 0, warmup_steps: 1 }), "NoamLr: d_model must be at least 1, got 0"),
        (
            Box::new(OneCycleLr { final_div_factor: 0.0, ..OneCycleLr::new(1.0, 5) }),
            "final_div_factor must be finite and above 0, got 0; try 10000",
        ),
        (
            Box::new(CyclicLr { mode: CyclicMode::ExpRange(-1.0), ..CyclicLr::new(0.1, 1.0) }),
            "the factor of mode must be finite and not negative, got -1",
        ),
    ];
    for (schedule, expected) in cases {
        let found = rejected(schedule);
        assert!(found.contains(expected), "{found}");
    }
}

#[test]
fn plateaus_check_their_options() {
    let rejected = |options| message(ReduceLrOnPlateau::try_new(options, &sgd()));
    let default = ReduceLrOnPlateauOptions::default;
    assert!(rejected(ReduceLrOnPlateauOptions { factor: f64::NAN, ..default() }).contains("factor must be in [0, 1)"));
    assert!(rejected(ReduceLrOnPlateauOptions { eps: f64::NAN, ..default() }).contains("eps must be finite"));
    for threshold in [ThresholdMode::Relative(-1.0), ThresholdMode::Absolute(f64::INFINITY)] {
        assert!(rejected(ReduceLrOnPlateauOptions { threshold, ..default() }).contains("threshold must be finite"));
    }
    let factor = rejected(ReduceLrOnPlateauOptions { factor: 1.0, ..default() });
    assert!(factor.contains("factor must be in [0, 1), got 1; try 0.1"), "{factor}");
    let min_lr = |min_lr| rejected(ReduceLrOnPlateauOptions { min_lr, ..default() });
    assert!(min_lr(PerGroup::Each(Vec::new())).contains("the number of values of min_lr must be at least 1"));
    assert!(min_lr(PerGroup::All(-1.0)).contains("min_lr must be finite and not negative, got -1; try 0"));
}

#[test]
fn a_state_with_an_invalid_learning_rate_is_rejected() {
    let optimizer = sgd();
    for lr in [f32::NAN, -1.0] {
        let mut state: StateDict = optimizer.state_dict();
        state.insert("groups.0.lr".to_string(), Tensor::from(lr));
        assert!(
            message(optimizer.load_state_dict(&state)).contains("lr"),
            "the learning rate {lr} must be an error that names lr"
        );
        assert_eq!(optimizer.lr() as f32, 0.1);
    }
}

#[test]
fn a_state_with_an_invalid_momentum_is_rejected() {
    let parameters = || vec![Parameter::new(Tensor::from([1.0f32]))];
    let optimizers: [Box<dyn Optimizer>; 2] =
        [Box::new(sgd()), Box::new(Adam::new(parameters(), AdamOptions::default()))];
    for (optimizer, name) in optimizers.iter().zip(["momentum", "one_minus_beta1"]) {
        for momentum in [f32::NAN, -1.0, 7.0] {
            let mut state: StateDict = optimizer.state_dict();
            assert!(state.insert(format!("groups.0.{name}"), Tensor::from(momentum)).is_some());
            let text = message(optimizer.load_state_dict(&state));
            assert!(text.contains("momentum must be in [0, 1)"), "{name} = {momentum}: {text}");
        }
        optimizer.load_state_dict(&optimizer.state_dict()).unwrap();
    }
}

/// A rule with a step count that rejects matrices in its update.
#[derive(Debug)]
struct VectorsOnly;

impl Rule for VectorsOnly {
    fn name(&self) -> &'static str {
        "vectors_only"
    }

    fn check(&self) -> Result<()> {
        Ok(())
    }

    fn lr(&self) -> f64 {
        0.5
    }

    fn state(&self, _: &Tensor) -> Result<RuleState> {
        Ok(Vec::new())
    }

    fn clock(&self) -> Vec<(&'static str, f64)> {
        vec![("step", 0.0)]
    }

    fn tick(&self) -> Option<(&'static Formula, Vec<Scalar>)> {
        Some((formula!(tick | t, lr | (t + 1.0, lr / (t + 1.0))), Vec::new()))
    }

    fn update(&self, context: &UpdateContext<'_>) -> Result<()> {
        if context.gradient()?.rank() == 2 {
            let [_first, _second, _third] = context.rates()?;
        }
        context.update(formula!(vectors | p, g, rate | p - rate * g), &[])
    }
}

/// The error of a later parameter changes neither the earlier ones nor the step counts.
#[test]
fn a_rejected_update_of_a_rule_changes_nothing() {
    let ones = |shape: &[usize]| Parameter::new(Tensor::ones(shape, DType::F32));
    let (vector, matrix) = (ones(&[2]), ones(&[2, 2]));
    let optimizer = RuleOptimizer::new(vec![vector.clone(), matrix.clone()], VectorsOnly);
    let set_gradients = |parameters: &[&Parameter]| {
        parameters.iter().for_each(|p| p.set_grad(Some(Tensor::ones(p.shape(), DType::F32))));
    };
    set_gradients(&[&vector, &matrix]);
    let before = copied(&optimizer.state_dict());
    let text = message(optimizer.try_step());
    assert!(text.contains("the rule has 1 rates, but its update reads 3"), "{text}");
    assert_eq!(vector.to_vec::<f32>(), [1.0; 2]);
    for (name, value) in optimizer.state_dict() {
        assert_eq!(value.to_bytes(), before[&name].to_bytes(), "{name}");
    }
    matrix.zero_grad();
    optimizer.step();
    assert_eq!(vector.to_vec::<f32>(), [0.5; 2]);
}

/// The rectification of RAdam begins in step 6 for β₂ near 1, also in f32.
#[test]
fn radam_is_rectified_from_the_same_step_in_every_dtype() {
    let steps = |dtype: DType| {
        let p = Parameter::new(Tensor::from([1.0f64]).to_dtype(dtype));
        let options = RAdamOptions { lr: 0.1, betas: (0.9, 0.999_999_9), ..Default::default() };
        let optimizer = RAdam::new(vec![p.clone()], options);
        let step = |k: usize| {
            p.set_grad(Some(Tensor::from([1.0 + 0.1 * k as f64]).to_dtype(dtype)));
            optimizer.step();
            p.item::<f64>()
        };
        (0..9).map(step).collect::<Vec<f64>>()
    };
    for (single, double) in steps(DType::F32).iter().zip(steps(DType::F64)) {
        assert!((single - double).abs() < 1e-4, "{single} and {double}");
    }
}

#[test]
fn lbfgs_accepts_any_number_of_iterations() {
    let p = Parameter::new(Tensor::from([3.0f64, -2.0]));
    let options = LbfgsOptions { max_iter: usize::MAX, line_search: true, ..Default::default() };
    Lbfgs::new(vec![p.clone()], options).step_with(&mut || {
        let loss = p.square().sum(..);
        loss.backward();
        loss
    });
    assert!(p.to_vec::<f64>().iter().all(|x| x.abs() < 1e-6));
}

/// The parameters are at a trial point while the loss is evaluated.
#[test]
fn a_panic_of_the_loss_in_a_line_search_restores_the_parameters() {
    let p = Parameter::new(Tensor::from([3.0f64, -2.0]));
    let optimizer = Lbfgs::new(vec![p.clone()], LbfgsOptions { line_search: true, ..Default::default() });
    let mut calls = 0;
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        optimizer.step_with(&mut || {
            calls += 1;
            assert!(calls < 2, "the second evaluation panics");
            let loss = p.square().sum(..);
            loss.backward();
            loss
        })
    }));
    assert!(panicked.is_err());
    assert_eq!(p.to_vec::<f64>(), [3.0, -2.0]);
}

#[test]
fn gradients_of_another_dtype_are_named() {
    let found = message(sgd().parameters()[0].try_set_grad(Some(Tensor::from([1.0f64]))));
    assert!(found.contains("f64") && found.contains("f32"), "{found}");
}

/// A rule whose update reads more states than it has.
#[derive(Debug)]
struct Misread;

impl Rule for Misread {
    fn name(&self) -> &'static str {
        "misread"
    }

    fn check(&self) -> Result<()> {
        Ok(())
    }

    fn lr(&self) -> f64 {
        0.1
    }

    fn state(&self, like: &Tensor) -> Result<RuleState> {
        Ok(vec![("velocity", like.copy())])
    }

    fn update(&self, context: &UpdateContext<'_>) -> Result<()> {
        let ([_lr], [_velocity]) = (context.rates()?, context.states()?);
        let [_mean, _square] = context.states()?;
        Ok(())
    }
}

#[test]
fn a_rule_reads_the_states_that_it_has() {
    let parameter = Parameter::new(Tensor::from([1.0f32]));
    let optimizer = RuleOptimizer::new(vec![parameter.clone()], Misread);
    parameter.sum(..).backward();
    let found = message(optimizer.try_step());
    assert!(found.contains("the rule has 1 states, but its update reads 2"), "{found}");
    let exempting = RuleOptimizer::try_exempting(vec![parameter], Misread, is_bias_or_norm);
    assert!(message(exempting).contains("Rule::without_decay"));
    let none: Vec<(Vec<Parameter>, Misread)> = Vec::new();
    assert!(message(RuleOptimizer::try_with_groups(none)).contains("at least one group"));
}

/// A state that L-BFGS cannot use is rejected before another part of a checkpoint changes.
#[test]
fn an_invalid_state_of_lbfgs_changes_nothing() {
    let model = Linear::new(2, 1);
    let optimizer = Lbfgs::new(model.parameters(), LbfgsOptions::default());
    let checkpoint = Checkpoint::new().model(&model).optimizer(&optimizer);
    let state = copied(&checkpoint.state().unwrap());
    for (name, value) in [("lr", -1.0), ("lr", f64::NAN), ("iterations", 0.5), ("evaluations", -1.0)] {
        let mut invalid = state.clone();
        invalid.insert("model.weight".into(), Tensor::full([1, 2], 9.0, DType::F32));
        invalid.insert(format!("optimizer.{name}"), Tensor::scalar(value, DType::F64));
        assert!(checkpoint.load_state_dict(&invalid).is_err(), "{name} = {value}");
        assert_eq!(model.weight.to_bytes(), state["model.weight"].to_bytes(), "{name} = {value}");
    }
    checkpoint.load_state_dict(&state).unwrap();
}

fn copied(state: &StateDict) -> StateDict {
    state.iter().map(|(name, tensor)| (name.clone(), tensor.detach().copy())).collect()
}
