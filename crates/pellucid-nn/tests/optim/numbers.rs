//! Every optimizer that PyTorch has against its values, over 50 steps and several sets of options.

use crate::device::{gpu, toy};
use crate::near::assert_near;
use crate::papers::PAPERS;
use crate::{close, flat, numbers_of, parameters, set_gradients};
use pellucid_nn::Parameter;
use pellucid_nn::optim::*;
use pellucid_tensor::{DType, Device, Tensor};
use std::collections::BTreeMap;

pub(crate) type Make = fn(Vec<Parameter>, usize) -> Box<dyn Changeable>;

/// The methods of `RuleOptimizer` that change it, for all rules.
pub(crate) trait Changeable: Optimizer {
    fn add_params(&mut self, parameters: Vec<Parameter>);
}

impl<R: Rule> Changeable for RuleOptimizer<R> {
    fn add_params(&mut self, parameters: Vec<Parameter>) {
        RuleOptimizer::add_params(self, parameters);
    }
}

macro_rules! kinds {
    ($($name:literal: $kind:ident($options:ident { $($of:ident: $all:expr),* })
        [$({ $($field:ident: $value:expr),* }),* $(,)?];)*) => {
        /// Every kind of optimizer, its number of cases, and its constructor.
        pub(crate) const KINDS: &[(&str, usize, Make)] = &[$((
            $name,
            [$(stringify!({ $($field),* })),*].len(),
            |parameters, case| {
                #[allow(clippy::needless_update)]
                let common = $options { $($of: $all,)* ..Default::default() };
                #[allow(clippy::needless_update)]
                let cases = [$($options { $($field: $value,)* ..common }),*];
                Box::new($kind::new(parameters, cases[case]))
            },
        )),*];

        /// The type of each kind.
        const TYPES: &[(&str, &str)] = &[$(($name, stringify!($kind))),*];
    };
}

kinds! {
    "sgd": Sgd(SgdOptions { lr: 0.1 }) [
        {}, { weight_decay: 0.05 }, { momentum: 0.9 }, { momentum: 0.9, dampening: 0.3, weight_decay: 0.05 },
        { momentum: 0.8, nesterov: true, weight_decay: 0.05 }, { lr: 0.01, momentum: 0.5, maximize: true },
    ];
    "adam": Adam(AdamOptions { lr: 0.05 }) [
        {}, { weight_decay: 0.1 }, { amsgrad: true, betas: (0.8, 0.9) }, { maximize: true, eps: 1e-3 },
    ];
    "adamw": AdamW(AdamWOptions { lr: 0.05 }) [
        {}, { weight_decay: 0.2 }, { amsgrad: true, betas: (0.8, 0.9) }, { maximize: true, eps: 1e-3 },
    ];
    "nadam": NAdam(NAdamOptions { lr: 0.05 }) [
        {}, { weight_decay: 0.1 }, { weight_decay: 0.1, decoupled_weight_decay: true, momentum_decay: 0.1 },
        { maximize: true, betas: (0.8, 0.9) },
    ];
    "radam": RAdam(RAdamOptions { lr: 0.05 }) [
        {}, { weight_decay: 0.1 }, { weight_decay: 0.1, decoupled_weight_decay: true, eps: 1e-3 },
        { maximize: true, betas: (0.8, 0.9) },
    ];
    "adamax": Adamax(AdamaxOptions { lr: 0.05 }) [
        {}, { weight_decay: 0.1, betas: (0.8, 0.9) }, { maximize: true },
    ];
    "adagrad": Adagrad(AdagradOptions { lr: 0.1 }) [
        {}, { weight_decay: 0.1, lr_decay: 0.01 }, { maximize: true, initial_accumulator: 0.5 },
    ];
    "adadelta": Adadelta(AdadeltaOptions {}) [
        {}, { weight_decay: 0.1, rho: 0.8, lr: 0.5 }, { maximize: true, eps: 1e-3 },
    ];
    "rmsprop": RmsProp(RmsPropOptions {}) [
        {}, { centered: true, weight_decay: 0.1 }, { momentum: 0.9 }, { centered: true, momentum: 0.5 },
        { maximize: true, alpha: 0.9, eps: 1e-3 },
    ];
    "rprop": Rprop(RpropOptions {}) [
        {}, { etas: (0.4, 1.3), step_sizes: (1e-3, 0.1) }, { maximize: true },
    ];
    "asgd": Asgd(AsgdOptions { lr: 0.1 }) [
        {}, { lambd: 0.1, alpha: 0.5, t0: 10.0, weight_decay: 0.1 }, { maximize: true, lr: 0.01 },
    ];
    "adafactor": Adafactor(AdafactorOptions {}) [
        {}, { lr: 0.1, weight_decay: 0.1, d: 2.0 }, { beta2_decay: -0.5, eps: (Some(1e-2), 1e-1) }, { maximize: true },
    ];
    "muon": Muon(MuonOptions { lr: 0.05 }) [
        { ns_dtype: None }, { ns_dtype: None, nesterov: false, weight_decay: 0.0 },
        { ns_dtype: None, adjust_lr: MuonLr::MatchRmsAdamW, momentum: 0.8 },
        { ns_dtype: None, adjust_lr: MuonLr::SpectralUnclamped, ns_steps: 3 },
        {}, { nesterov: false, momentum: 0.8 },
    ];
    "lion": Lion(LionOptions { lr: 0.01 }) [
        {}, { weight_decay: 0.3, betas: (0.8, 0.95) }, { maximize: true },
    ];
    "lamb": Lamb(LambOptions { lr: 0.02 }) [
        {}, { weight_decay: 0.3, betas: (0.8, 0.95), eps: 1e-3 }, { maximize: true, weight_decay: 0.0 },
    ];
}

/// Kinds that PyTorch does not have: `papers.rs` tests them.
const NOT_IN_PYTORCH: [&str; 2] = ["lion", "lamb"];

/// The kinds of the fixtures.
fn in_pytorch() -> impl Iterator<Item = (&'static str, usize, Make)> {
    KINDS.iter().copied().filter(|(kind, ..)| !NOT_IN_PYTORCH.contains(kind))
}

fn fixture() -> BTreeMap<(&'static str, usize), Vec<f64>> {
    let lines = include_str!("fixtures/optimizers.txt").lines();
    let parse = |line: &'static str| {
        let mut fields = line.split(' ');
        let (name, step) = (fields.next().unwrap(), fields.next().unwrap().parse().unwrap());
        ((name, step), numbers_of(fields))
    };
    lines.map(parse).collect()
}

/// Every public optimizer has a row in `kinds!`, and PyTorch's values or a reference in `papers.rs`. L-BFGS has tests
/// of its own.
#[test]
fn every_optimizer_is_compared() {
    let fixture = fixture();
    let has_fixture = |kind: &str| fixture.keys().any(|(name, _)| name.split('.').next() == Some(kind));
    for &name in OPTIMIZERS {
        let kind = TYPES.iter().find(|(_, kind)| *kind == name).map(|(kind, _)| *kind);
        let kind = kind.or((name == "Lbfgs").then_some("lbfgs"));
        let kind = kind.unwrap_or_else(|| panic!("add {name} to `kinds!` in tests/optim/numbers.rs"));
        assert!(
            has_fixture(kind) || PAPERS.iter().any(|(paper, _)| *paper == name),
            "{name}: add its cases to tests/optim/fixtures/optimizers.py, or its algorithm to tests/optim/papers.rs"
        );
        assert_eq!(
            has_fixture(kind),
            !NOT_IN_PYTORCH.contains(&kind),
            "{name}: an optimizer must have a fixture or be listed in NOT_IN_PYTORCH, not both"
        );
    }
    for (kind, name) in TYPES {
        assert!(OPTIMIZERS.contains(name), "{kind}: the list of optim/mod.rs must contain {name}");
    }
}

/// The parameters and the state of every optimizer are bit-identical on another device, even after a move; on a GPU
/// they agree within a tolerance.
#[test]
fn every_optimizer_equals_itself_on_another_device() {
    for &(kind, cases, make) in KINDS {
        for case in 0..cases {
            for dtype in [DType::F32, DType::BF16] {
                let run = |devices: [Device; 2]| -> Vec<Tensor> {
                    let optimizer = make(parameters(kind == "muon", dtype), case);
                    for (t, device) in [1.0, 2.0, 3.0, 4.0].into_iter().zip(devices.iter().cycle()) {
                        optimizer.parameters().iter().for_each(|p| p.to_(*device));
                        set_gradients(&*optimizer, t);
                        optimizer.step();
                        assert!(optimizer.parameters().iter().all(|p| p.device() == *device));
                    }
                    let state = optimizer.state();
                    let parameters = optimizer.parameters();
                    let all = parameters
                        .iter()
                        .map(|p| p.tensor().clone())
                        .chain(state.into_iter().map(|(_, tensor)| tensor));
                    all.map(|tensor| tensor.detach().to(Device::cpu()).copy()).collect()
                };
                let bits = |all: &[Tensor]| all.iter().map(|t| t.to_bytes()).collect::<Vec<_>>();
                let on_cpu = run([Device::cpu(); 2]);
                let expected = bits(&on_cpu);
                assert!(bits(&run([toy(0); 2])) == expected, "{kind}.{case} {dtype}");
                assert!(bits(&run([Device::cpu(), toy(0)])) == expected, "{kind}.{case} {dtype}, moved in every step");
                if let Some(gpu) = gpu().filter(|_| dtype == DType::F32) {
                    assert_near(&run([gpu; 2]), &on_cpu, &format!("{kind}.{case} on a GPU"));
                }
            }
        }
    }
}

#[test]
fn fifty_steps_match_pytorch() {
    let fixture = fixture();
    for (kind, cases, make) in in_pytorch() {
        for case in 0..cases {
            let name = format!("{kind}.{case}");
            let optimizer = make(parameters(kind == "muon", DType::F64), case);
            let mut compared = 0;
            for t in 1..=50usize {
                set_gradients(&*optimizer, t as f64);
                optimizer.step();
                if let Some(expected) = fixture.get(&(name.as_str(), t)) {
                    let tolerance = if kind == "muon" { 1e-9 } else { 1e-11 };
                    close(&flat(&optimizer.parameters()), expected, tolerance, &format!("{name} after {t} steps"));
                    compared += 1;
                }
            }
            assert_eq!(compared, 5, "{name}: the fixture must have 5 lines");
        }
    }
}

/// Every parameter counts its own steps, as in PyTorch, if it is added late or lacks a gradient in some steps.
#[test]
fn parameters_that_are_added_late_match_pytorch() {
    let fixture = fixture();
    for (kind, cases, make) in in_pytorch().filter(|(kind, ..)| *kind != "muon") {
        for case in 0..cases {
            let name = format!("late.{kind}.{case}");
            let expected = &fixture[&(name.as_str(), 10)];
            for added_late in [false, true] {
                let [w, b]: [Parameter; 2] = parameters(false, DType::F64).try_into().unwrap();
                let first = if added_late { vec![w] } else { vec![w, b.clone()] };
                let mut optimizer = make(first, case);
                for t in 1..=10 {
                    if added_late && t == 4 {
                        optimizer.add_params(vec![b.clone()]);
                    }
                    set_gradients(&*optimizer, f64::from(t));
                    if t < 4 || t == 7 {
                        b.zero_grad();
                    }
                    optimizer.step();
                }
                close(&flat(&optimizer.parameters()), expected, 1e-11, &format!("{kind}.{case}, {added_late}"));
            }
        }
    }
}

/// Rprop's initial step size is the learning rate at the first step, not at construction.
#[test]
fn rprop_starts_with_the_rate_of_its_first_step() {
    let options = RpropOptions { lr: 0.1, ..Default::default() };
    let (early, late) = (
        Rprop::new(parameters(false, DType::F64), options),
        Rprop::new(parameters(false, DType::F64), RpropOptions { lr: 7.0, ..options }),
    );
    late.set_lr(0.1);
    for t in 1..=5 {
        for optimizer in [&early, &late] {
            set_gradients(optimizer, f64::from(t));
            optimizer.step();
        }
        late.set_lr(3.0);
    }
    assert_eq!(flat(&early.parameters()), flat(&late.parameters()));
}

/// `f32` gives the same values within its precision, unless rounding changes a branch.
#[test]
fn single_precision_matches() {
    let fixture = fixture();
    for (kind, cases, make) in in_pytorch().filter(|(kind, ..)| !["rprop", "rmsprop"].contains(kind)) {
        for case in 0..cases {
            let optimizer = make(parameters(kind == "muon", DType::F32), case);
            for t in 1..=10 {
                set_gradients(&*optimizer, f64::from(t));
                optimizer.step();
            }
            let name = format!("{kind}.{case}");
            close(&flat(&optimizer.parameters()), &fixture[&(name.as_str(), 10)], 2e-4, &name);
        }
    }
}

#[test]
fn lbfgs_matches_pytorch() {
    let fixture = fixture();
    let cases = [
        LbfgsOptions { lr: 0.3, max_iter: 4, ..Default::default() },
        LbfgsOptions { lr: 0.3, max_iter: 5, history_size: 3, ..Default::default() },
        LbfgsOptions { max_iter: 5, line_search: true, ..Default::default() },
        LbfgsOptions { max_iter: 12, history_size: 4, line_search: true, ..Default::default() },
        LbfgsOptions { max_iter: 3, max_eval: Some(3), line_search: true, ..Default::default() },
    ];
    for (case, options) in cases.into_iter().enumerate() {
        let own = parameters(false, DType::F64);
        let loss = || {
            own.iter().for_each(|p| p.zero_grad());
            let (w, b) = (&own[0], &own[1]);
            let weights = Tensor::arange(1.0f64, 7.0, 1.0).reshape([3, 2]);
            let valley = (b.i(1..) - b.i(..3).square()).square().sum(..) * 5.0 + (1.0 - b.tensor()).square().sum(..);
            let loss = valley + (w.tensor() * weights).square().sum(..) + (w.tensor() * 2.0).sin().sum(..) * b.i(0);
            loss.backward();
            loss
        };
        let mut optimizer: Box<dyn Optimizer> = Box::new(Lbfgs::new(own.clone(), options));
        for t in 1..=5 {
            let name = format!("lbfgs.{case}");
            let expected = &fixture[&(name.as_str(), t)];
            // Another optimizer continues from a snapshot.
            if t == 3 {
                let state = optimizer.state_dict();
                optimizer = Box::new(Lbfgs::new(own.clone(), LbfgsOptions { lr: 9.0, ..options }));
                optimizer.load_state_dict(&state).unwrap();
                assert_eq!(optimizer.lr(), options.lr);
            }
            let found = optimizer.step_with(&mut || loss());
            close(&[found], &expected[..1], 1e-7, &name);
            close(&flat(&own), &expected[1..], 1e-6, &format!("{name} after {t} steps"));
        }
    }
}

#[test]
fn lbfgs_rejects_invalid_arguments() {
    use pellucid_tensor::{Error, capture, unwrap};
    assert!(matches!(
        Lbfgs::try_new(ParameterList::default(), LbfgsOptions::default()),
        Err(Error::InvalidArgument { .. })
    ));
    let own = parameters(false, DType::F64);
    let optimizer = Lbfgs::new(own.clone(), LbfgsOptions::default());
    let state = Lbfgs::new(own[..1].to_vec(), LbfgsOptions::default()).state_dict();
    let mut other = state.clone();
    other.insert("gradient".into(), Tensor::zeros([6], DType::F64));
    assert!(optimizer.load_state_dict(&state).is_ok());
    assert!(matches!(optimizer.load_state_dict(&other), Err(Error::StateDict { .. })));
    let step = |_: &[Tensor]| {
        let mut loss = || {
            let loss = own[0].square().sum(..);
            loss.backward();
            loss
        };
        unwrap(optimizer.try_step_with(&mut loss));
    };
    assert!(matches!(capture(step, &[]), Err(Error::ReadInCapture { .. })));
    // L-BFGS supports only some methods of `Optimizer`.
    assert!(matches!(optimizer.try_step(), Err(Error::InvalidArgument { .. })));
    assert!(matches!(optimizer.groups()[0].try_set_momentum(0.5), Err(Error::InvalidArgument { .. })));
    optimizer.set_lr(0.25);
    assert_eq!((optimizer.lr(), optimizer.groups().len(), optimizer.groups()[0].momentum()), (0.25, 1, None));
}

/// Other optimizers run one step after calling the closure.
#[test]
fn a_step_with_a_closure_is_a_step() {
    let make = || Adam::new(parameters(false, DType::F64), AdamOptions { lr: 0.1, ..Default::default() });
    let (plain, with) = (make(), make());
    let own = with.parameters().to_vec();
    let losses = |own: &[Parameter]| {
        own.iter().for_each(|p| p.zero_grad());
        let loss = own[0].square().sum(..) + own[1].sin().sum(..);
        loss.backward();
        loss
    };
    for _ in 0..3 {
        let loss = losses(&plain.parameters());
        plain.step();
        assert_eq!(with.step_with(&mut || losses(&own)), loss.item::<f64>());
    }
    assert_eq!(flat(&plain.parameters()), flat(&with.parameters()));
}
