//! Parameter groups, names, state dicts, parameters that are added later, external gradient buffers.

use crate::numbers::KINDS;
use crate::{close, flat, parameters, set_gradients};
use pellucid_nn::optim::*;
use pellucid_nn::{Linear, Module, Parameter, Relu, sequential};
use pellucid_tensor::{DType, Error, Tensor};

fn bits(optimizer: &dyn Optimizer) -> Vec<Vec<u8>> {
    let parameters = optimizer.parameters();
    let parameters = parameters.iter().map(|p| p.to_bytes());
    parameters.chain(optimizer.state().iter().map(|(_, t)| t.to_bytes())).collect()
}

/// Every optimizer resumes bit for bit from its snapshot, including master copies.
#[test]
fn all_kinds_resume_bit_equal() {
    for (kind, cases, make) in KINDS.iter().copied() {
        for (case, dtype) in
            (0..cases).flat_map(|case| [DType::F32, DType::BF16, DType::F64].map(|dtype| (case, dtype)))
        {
            let first = make(parameters(kind == "muon", dtype), case);
            let go_on = |optimizer: &dyn Optimizer| {
                for t in 6..=10 {
                    set_gradients(optimizer, f64::from(t));
                    optimizer.step();
                }
                bits(optimizer)
            };
            for t in 1..=5 {
                set_gradients(&*first, f64::from(t));
                first.step();
            }
            first.set_lr(0.03);
            let own = first.parameters().iter().map(|p| Parameter::new(p.copy())).collect();
            let second = make(own, case);
            second.load_state_dict(&first.state_dict()).unwrap();
            assert_eq!(go_on(&*first), go_on(&*second), "{kind}.{case} in {dtype}: the restored optimizer differs");
        }
    }
}

#[test]
fn groups_have_their_own_rates_and_decays() {
    let [w, b]: [Parameter; 2] = parameters(false, DType::F64).try_into().unwrap();
    let mut both = AdamW::new(vec![w], AdamWOptions { lr: 0.1, weight_decay: 0.5, ..Default::default() });
    both.try_add_group(vec![b], AdamWOptions { lr: 0.02, weight_decay: 0.0, ..Default::default() }).unwrap();
    let alone: Vec<AdamW> = parameters(false, DType::F64)
        .into_iter()
        .enumerate()
        .map(|(i, p)| AdamW::new(vec![p], *both.options(i)))
        .collect();
    for t in 1..=10 {
        set_gradients(&both, f64::from(t));
        both.step();
        for own in &alone {
            set_gradients(own, f64::from(t));
            own.step();
        }
    }
    assert_eq!(flat(&both.parameters()), [flat(&alone[0].parameters()), flat(&alone[1].parameters())].concat());
    both.groups()[1].set_lr(0.5);
    assert_eq!((both.lr(), both.groups()[1].lr()), (0.1, 0.5));
    both.set_lr(0.25);
    assert_eq!((both.lr(), both.groups()[1].lr()), (0.25, 0.25));
}

#[test]
fn biases_can_be_exempt_and_state_goes_by_name() {
    let model = sequential![Linear::new(3, 4), Relu, Linear::new(4, 2)];
    let options = AdamWOptions { weight_decay: 0.3, ..Default::default() };
    let optimizer = AdamW::exempting(model.named_parameters(), options, is_bias_or_norm);
    assert_eq!(optimizer.options(0).weight_decay, 0.3);
    assert_eq!(optimizer.options(1).weight_decay, 0.0);
    assert!(optimizer.parameters()[..2].iter().all(|p| p.rank() == 2));
    assert!(optimizer.parameters()[2..].iter().all(|p| p.rank() == 1));
    let state = optimizer.state_dict();
    for name in ["groups.0.lr", "state.0.weight.step", "state.0.weight.mean", "state.2.bias.square"] {
        assert!(state.contains_key(name), "the state must contain {name}, but its names are {:?}", state.keys());
    }
    // State is matched by name: another order of parameters loads the same state.
    let mut reversed = model.named_parameters();
    reversed.reverse();
    AdamW::exempting(reversed, options, is_bias_or_norm).load_state_dict(&state).unwrap();
    let twice: Vec<_> = parameters(false, DType::F32).into_iter().map(|p| ("same".to_string(), p)).collect();
    assert!(matches!(AdamW::try_new(twice, options), Err(Error::InvalidArgument { .. })));
}

#[test]
fn a_mismatched_state_dict_changes_nothing() {
    let optimizer = Adam::new(parameters(false, DType::F64), AdamOptions::default());
    let mut state = optimizer.state_dict();
    state.remove("state.0.mean");
    state.insert("state.1.mean".into(), Tensor::zeros([3], DType::F64));
    state.insert("groups.0.lr".into(), Tensor::from(7.0));
    state.insert("groups.4.lr".into(), Tensor::from(7.0));
    let Err(Error::StateDict { missing, unexpected, wrong_shapes, .. }) = optimizer.load_state_dict(&state) else {
        panic!("the error must be Error::StateDict");
    };
    assert_eq!((missing, unexpected), (vec!["state.0.mean".to_string()], vec!["groups.4.lr".to_string()]));
    assert_eq!(wrong_shapes.iter().map(|m| m.name.as_str()).collect::<Vec<_>>(), ["state.1.mean"]);
    assert_eq!(optimizer.lr(), 1e-3);
}

/// An optimizer whose parameters are added later equals one that had them from the start.
#[test]
fn parameters_may_be_added_later() {
    let options = AdamOptions { lr: 0.1, ..Default::default() };
    for dtype in [DType::F32, DType::F64] {
        let at_once = Adam::new(parameters(false, dtype), options);
        let mut late = Adam::new(ParameterList::default(), AdamOptions { lr: 7.0, ..options });
        late.set_lr(0.1);
        for p in parameters(false, dtype) {
            late.add_params(vec![p]);
        }
        for optimizer in [&at_once, &late] {
            for t in 1..=3 {
                set_gradients(optimizer, f64::from(t));
                optimizer.step();
            }
        }
        assert_eq!(bits(&at_once), bits(&late));
    }
    // A parameter's step count starts when it is added.
    let mut late = Adam::new(ParameterList::default(), options);
    assert!(
        matches!(late.try_step(), Err(Error::InvalidArgument { .. })),
        "a step of an optimizer without parameters must be an error"
    );
    late.add_params(parameters(false, DType::F64));
    assert_eq!(late.clock_tensor(1, "step").unwrap().item::<f64>(), 0.0);
    // A failed addition changes nothing.
    let known = late.parameters()[0].clone();
    assert!(matches!(late.try_add_params(vec![known]), Err(Error::InvalidArgument { .. })));
    assert!(matches!(late.try_add_params(parameters(false, DType::F32)), Err(Error::DTypeMismatch { .. })));
    let bad = AdamOptions { eps: -1.0, ..options };
    assert!(matches!(late.try_add_group(parameters(false, DType::F64), bad), Err(Error::InvalidArgument { .. })));
    assert_eq!((late.parameters().len(), late.groups().len()), (2, 1));
}

#[test]
fn frozen_parameters_have_no_state_until_they_need_it() {
    let own = parameters(false, DType::F64);
    own[0].set_requires_grad(false).unwrap();
    let mut optimizer = Adam::new(own.clone(), AdamOptions { lr: 0.1, ..Default::default() });
    assert!(!optimizer.state_dict().contains_key("state.0.mean"));
    own[0].set_requires_grad(true).unwrap();
    set_gradients(&optimizer, 1.0);
    let before = flat(&own);
    assert!(matches!(optimizer.try_step(), Err(Error::InvalidArgument { .. })));
    assert_eq!((flat(&own), optimizer.clock_tensor(0, "step").unwrap().item::<f64>()), (before.clone(), 0.0));
    optimizer.ensure_initialized();
    optimizer.step();
    assert!(flat(&own).iter().zip(&before).all(|(a, b)| a != b));
}

#[test]
fn gradients_can_be_stored_in_external_buffers() {
    let own = parameters(false, DType::F64);
    let optimizer = Sgd::new(own.clone(), SgdOptions { lr: 0.5, ..Default::default() });
    let buffers: Vec<Tensor> = own.iter().map(|p| Tensor::zeros(p.shape(), DType::F64)).collect();
    own.iter().zip(&buffers).for_each(|(p, buffer)| p.set_grad(Some(buffer.clone())));
    let before = flat(&own);
    // The step reads the gradient that the test writes to the buffer.
    buffers[0].copy_(&Tensor::full([3, 2], 2.0, DType::F64));
    optimizer.step();
    let expected: Vec<f64> = before.iter().enumerate().map(|(i, b)| if i < 6 { b - 1.0 } else { *b }).collect();
    close(&flat(&own), &expected, 0.0, "buffers");
    assert!(matches!(own[0].try_set_grad(Some(buffers[1].clone())), Err(Error::ShapeMismatch { .. })));
    // `zero_grad_with(false)` writes zeros in place.
    optimizer.zero_grad_with(false);
    assert_eq!(buffers[0].to_vec::<f64>(), [0.0; 6]);
    optimizer.zero_grad_with(true);
    assert!(own[0].grad().is_none());
}

/// k passes with a scale of 1/k are one pass over the mean.
#[test]
fn gradients_accumulate() {
    for (kind, cases, make) in KINDS.iter().copied() {
        for case in 0..cases {
            let (several, one) = (
                make(parameters(kind == "muon", DType::F64), case),
                make(parameters(kind == "muon", DType::F64), case),
            );
            several.set_grad_scale(0.25.into());
            for t in 0..3 {
                several.zero_grad();
                one.zero_grad();
                for k in 0..4 {
                    let loss = |o: &dyn Optimizer| {
                        o.parameters()
                            .iter()
                            .map(|p| (p.tensor() * f64::from(t + k)).sin().sum(..))
                            .reduce(|a, b| a + b)
                    };
                    loss(&*several).unwrap().backward();
                    (loss(&*one).unwrap() * 0.25).backward();
                }
                several.step();
                one.step();
            }
            close(&flat(&several.parameters()), &flat(&one.parameters()), 1e-9, &format!("{kind}.{case}"));
        }
    }
    let sgd = Sgd::new(parameters(false, DType::F32), SgdOptions::default());
    assert!(matches!(sgd.try_set_grad_scale(Tensor::from([1.0f32]).into()), Err(Error::ShapeMismatch { .. })));
    assert!(matches!(sgd.try_set_grad_scale(Tensor::from(1i64).into()), Err(Error::DTypeMismatch { .. })));
    assert!(matches!(sgd.try_set_grad_scale(f64::NAN.into()), Err(Error::InvalidArgument { .. })));
    assert!(sgd.try_set_grad_scale(Tensor::from(1.0f64).into()).is_ok());
    set_gradients(&sgd, 1.0);
    sgd.step();
}

#[test]
fn muon_is_for_matrices() {
    let rejected = Muon::try_new(parameters(false, DType::F32), MuonOptions::default());
    assert!(matches!(rejected, Err(Error::ShapeMismatch { .. })));
    let integers = MuonOptions { ns_dtype: Some(DType::I64), ..Default::default() };
    assert!(matches!(Muon::try_new(parameters(true, DType::F32), integers), Err(Error::DTypeMismatch { .. })));
}

#[test]
fn options_out_of_range_are_rejected() {
    let p = || parameters(true, DType::F32);
    macro_rules! rejected {
        ($($kind:ident $options:ident { $field:ident: $value:expr }),* $(,)?) => {$(
            let options = $options { $field: $value, ..Default::default() };
            let result = $kind::try_new(p(), options);
            assert!(matches!(result, Err(Error::InvalidArgument { .. })), "{options:?} must be an error");
        )*};
    }
    rejected!(
        Sgd SgdOptions { dampening: 2.0 },
        Adam AdamOptions { betas: (1.0, 0.9) },
        Adam AdamOptions { lr: f64::INFINITY },
        NAdam NAdamOptions { momentum_decay: -1.0 },
        RAdam RAdamOptions { eps: -1.0 },
        Adamax AdamaxOptions { weight_decay: -0.1 },
        Adagrad AdagradOptions { lr_decay: -0.1 },
        Adadelta AdadeltaOptions { rho: 1.5 },
        RmsProp RmsPropOptions { alpha: -0.5 },
        Rprop RpropOptions { etas: (1.5, 0.5) },
        Asgd AsgdOptions { lambd: f64::NAN },
        Lion LionOptions { betas: (0.9, 1.0) },
        Lamb LambOptions { eps: f64::NAN },
        Adafactor AdafactorOptions { d: 0.5 },
        Muon MuonOptions { momentum: 1.0 },
    );
}

/// An old gradient of a frozen parameter does not change it, nor do its momentum and its decay.
#[test]
fn frozen_parameters_with_old_gradients_are_unchanged() {
    let options = SgdOptions { lr: 0.1, momentum: 0.9, weight_decay: 0.1, ..Default::default() };
    let [p, q] = [1.0, 2.0].map(|x| Parameter::new(Tensor::from([x])));
    let optimizer = Sgd::new(vec![p.clone(), q.clone()], options);
    (&*p * &*q).sum(..).backward();
    optimizer.step();
    p.requires_grad_(false);
    let (before, state) = (p.item::<f64>(), optimizer.state_dict());
    optimizer.step();
    assert_eq!(p.item::<f64>(), before);
    let velocity = |name: &str| (state[name].item::<f64>(), optimizer.state_dict()[name].item::<f64>());
    assert_eq!(velocity("state.0.velocity").0, velocity("state.0.velocity").1);
    assert_ne!(velocity("state.1.velocity").0, velocity("state.1.velocity").1);
    // L-BFGS, with a closure that keeps old gradients.
    let mut closure = || {
        q.zero_grad();
        let loss = (&*p * &*q).square().sum(..);
        loss.backward();
        loss
    };
    let moved = q.item::<f64>();
    Lbfgs::new(vec![p.clone(), q.clone()], LbfgsOptions::default()).step_with(&mut closure);
    assert!(p.grad().is_some());
    assert_eq!(p.item::<f64>(), before);
    assert_ne!(q.item::<f64>(), moved);
    p.requires_grad_(true);
    optimizer.step();
    assert_ne!(p.item::<f64>(), before);
}
