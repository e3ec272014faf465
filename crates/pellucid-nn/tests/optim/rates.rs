//! Learning rates, momenta and scales are returned as they were set.

use crate::numbers::KINDS;
use crate::parameters;
use pellucid_nn::Parameter;
use pellucid_nn::optim::schedule::{
    ExponentialLr, OneCycleLr, PerGroup, ReduceLrOnPlateau, ReduceLrOnPlateauOptions, Schedule, Scheduler,
};
use pellucid_nn::optim::{
    Adam, AdamOptions, AdamW, AdamWOptions, GradScaler, GradScalerOptions, Lbfgs, LbfgsOptions, Momentum, Optimizer,
    ParamGroup, ParameterList, Sgd, SgdOptions,
};
use pellucid_tensor::{DType, Error, Tensor, capture, lazy, ops};

fn sgd(lr: f64) -> Sgd {
    Sgd::new(vec![Parameter::new(Tensor::from([1.0f32]))], SgdOptions { lr, momentum: 0.9, ..Default::default() })
}

#[test]
fn every_optimizer_returns_numbers_as_they_were_set() {
    for &(kind, cases, make) in KINDS {
        for case in 0..cases {
            // In f64, the tensor holds the rate of the options exactly.
            let exact = make(parameters(kind == "muon", DType::F64), case);
            for dtype in [DType::F32, DType::F16, DType::BF16, DType::F64] {
                let what = format!("{kind}.{case} {dtype}");
                let optimizer = make(parameters(kind == "muon", dtype), case);
                assert_eq!(optimizer.lr(), exact.groups()[0].lr_tensor().item::<f64>(), "{what}");
                assert_eq!(optimizer.groups()[0].momentum(), exact.groups()[0].momentum(), "{what}");
                assert!(optimizer.groups()[0].momentum().is_none_or(|m| [0.5, 0.8, 0.9, 0.95].contains(&m)), "{what}");
                for lr in [0.01, 0.1 / 3.0, 1e-9, 0.0] {
                    optimizer.set_lr(lr);
                    assert_eq!(optimizer.lr(), lr, "{what}");
                    assert!((optimizer.groups()[0].lr_tensor().item::<f64>() - lr).abs() <= 1e-7 * lr, "{what}");
                }
                for momentum in [0.1, 0.999, 1.0 / 3.0] {
                    if optimizer.groups()[0].momentum().is_some() {
                        optimizer.groups()[0].set_momentum(momentum);
                        assert_eq!(optimizer.groups()[0].momentum(), Some(momentum), "{what}");
                    }
                }
            }
        }
    }
    let lbfgs =
        Lbfgs::new(vec![Parameter::new(Tensor::from([1.0f32]))], LbfgsOptions { lr: 0.3, ..Default::default() });
    let lbfgs = lbfgs;
    assert_eq!(lbfgs.lr(), 0.3);
    lbfgs.set_lr(0.1 / 3.0);
    assert_eq!(lbfgs.lr(), 0.1 / 3.0);
}

#[test]
fn a_loaded_number_is_the_shortest_decimal() {
    for &(kind, cases, make) in KINDS {
        for case in 0..cases {
            let saved = make(parameters(kind == "muon", DType::F32), case);
            let loaded = make(parameters(kind == "muon", DType::F32), case);
            saved.set_lr(0.0123);
            if saved.groups()[0].momentum().is_some() {
                saved.groups()[0].set_momentum(0.3);
            }
            loaded.load_state_dict(&saved.state_dict()).unwrap();
            assert_eq!(
                (loaded.lr(), loaded.groups()[0].momentum()),
                (0.0123, saved.groups()[0].momentum()),
                "{kind}.{case}"
            );
            saved.set_lr(0.1 / 3.0);
            loaded.load_state_dict(&saved.state_dict()).unwrap();
            assert_eq!(loaded.lr(), 0.033333335, "{kind}.{case}: f32 stores about seven digits");
        }
    }
}

/// Schedules set a rate before the first step. With rate 0 no parameter changes; Rprop has a smallest step.
#[test]
fn the_first_step_has_the_current_rate() {
    for &(kind, cases, make) in KINDS {
        for case in 0..cases {
            let own = parameters(kind == "muon", DType::F64);
            let before: Vec<Vec<f64>> = own.iter().map(|p| p.to_vec()).collect();
            let optimizer = make(own.clone(), case);
            optimizer.set_lr(0.0);
            own.iter().for_each(|p| p.set_grad(Some(p.detach() + 0.5)));
            optimizer.step();
            let least = if kind == "rprop" { 0.0011 } else { 0.0 };
            for (p, before) in own.iter().zip(&before) {
                let moved = p.to_vec::<f64>().iter().zip(before).map(|(p, b)| (p - b).abs()).fold(0.0, f64::max);
                assert!(moved <= least, "{kind}.{case}: moved by {moved}");
            }
        }
    }
}

#[test]
fn a_write_to_the_tensor_is_read() {
    let optimizer = sgd(0.01);
    ops::copy_(optimizer.groups()[0].lr_tensor(), &Tensor::from(0.07f32)).unwrap();
    assert_eq!(optimizer.lr(), 0.07);
    // The number that was set before is not returned for another value of the tensor.
    ops::copy_(optimizer.groups()[0].lr_tensor(), &Tensor::from(0.010000001f32)).unwrap();
    assert_eq!(optimizer.lr(), 0.010000001);
    ops::copy_(optimizer.groups()[0].lr_tensor(), &Tensor::from(f32::NAN)).unwrap();
    assert!(optimizer.lr().is_nan());
    ops::copy_(optimizer.groups()[0].lr_tensor(), &Tensor::from(f32::INFINITY)).unwrap();
    assert_eq!(optimizer.lr(), f64::INFINITY);
    lazy(|| optimizer.set_lr(0.03));
    assert_eq!(optimizer.lr(), 0.03);
}

#[test]
fn a_captured_step_changes_the_rate() {
    let optimizer = sgd(0.1);
    let halve = || {
        let half = optimizer.groups()[0].lr_tensor() * 0.5;
        ops::copy_(optimizer.groups()[0].lr_tensor(), &half).unwrap();
        half
    };
    let mut captured = capture(|_: &[Tensor]| halve(), &[]).unwrap();
    assert_eq!(optimizer.lr(), 0.1, "a capture must not change the rate");
    for expected in [0.05, 0.025, 0.0125] {
        captured.launch(&[]).unwrap();
        assert_eq!(optimizer.lr(), expected);
    }
    optimizer.set_lr(0.1 / 3.0);
    assert_eq!(optimizer.lr(), 0.1 / 3.0);
    captured.launch(&[]).unwrap();
    let half = (0.1 / 3.0) as f32 * 0.5;
    assert_eq!(optimizer.lr(), half.to_string().parse::<f64>().unwrap());
    // A rate that is set inside a captured step is set by each launch.
    let set = |_: &[Tensor]| {
        optimizer.set_lr(0.3);
        optimizer.groups()[0].lr_tensor() * 1.0
    };
    let before = optimizer.lr();
    let mut captured = capture(set, &[]).unwrap();
    assert_eq!(optimizer.lr(), before);
    captured.launch(&[]).unwrap();
    assert_eq!(optimizer.lr(), 0.3);
}

#[test]
fn schedules_set_and_read_exact_rates() {
    let options = AdamOptions { lr: 0.1, ..Default::default() };
    let mut adam = Adam::new(parameters(false, DType::F32), options);
    adam.try_add_group(vec![Parameter::new(Tensor::from([1.0f32]))], AdamOptions { lr: 0.7, ..options }).unwrap();
    let mut scheduler = Scheduler::new(ExponentialLr { gamma: 0.9 }, &adam);
    assert_eq!(scheduler.last_lr(), [0.1, 0.7]);
    for epoch in 1..=30 {
        scheduler.step();
        let expected = [0.1, 0.7].map(|lr| lr * 0.9f64.powf(f64::from(epoch)));
        assert_eq!(scheduler.last_lr(), expected);
        assert_eq!([adam.lr(), adam.groups()[1].lr()], expected);
    }
    let schedule = OneCycleLr::new(PerGroup::All(0.3), 10);
    let mut scheduler = Scheduler::new(schedule.clone(), &adam);
    for epoch in 1..10 {
        scheduler.step();
        assert_eq!(adam.groups()[1].lr(), scheduler.last_lr()[1]);
        assert_eq!(adam.groups()[0].momentum(), schedule.momentum(0, epoch));
    }
    let other = Adam::new(parameters(false, DType::F32), options);
    assert!(Scheduler::try_resume(schedule, &other, &scheduler.state_dict()).is_err(), "the number of groups differs");
}

#[test]
fn parameters_that_are_added_later_keep_the_rate() {
    let mut optimizer = AdamW::new(ParameterList::default(), AdamWOptions { lr: 0.1 / 3.0, ..Default::default() });
    let named = vec![("w".to_string(), Parameter::new(Tensor::from([1.0f32])))];
    optimizer.deferred_parameters().unwrap().add(named.clone()).unwrap();
    assert_eq!((optimizer.groups()[0].lr_tensor().dtype(), optimizer.lr()), (DType::F32, 0.1 / 3.0));
    assert_eq!(optimizer.groups()[0].momentum(), Some(0.9));
    optimizer.deferred_parameters().unwrap().remove_added();
    optimizer.set_lr(0.7 / 3.0);
    optimizer.deferred_parameters().unwrap().add(named).unwrap();
    assert_eq!(optimizer.lr(), 0.7 / 3.0);
    optimizer.add_params(vec![Parameter::new(Tensor::from([2.0f32]))]);
    assert_eq!(optimizer.lr(), 0.7 / 3.0);
}

/// A schedule continues with the parameters that an optimizer receives later, whose rates are then stored in `f32`.
#[test]
fn a_schedule_of_an_empty_optimizer_continues_with_its_parameters() {
    let optimizer = AdamW::new(ParameterList::default(), AdamWOptions { lr: 0.5, ..Default::default() });
    let mut scheduler = Scheduler::new(ExponentialLr { gamma: 0.5 }, &optimizer);
    let p = Parameter::new(Tensor::from([1.0f32]));
    for rate in [0.25, 0.125] {
        optimizer.deferred_parameters().unwrap().add(vec![("w".to_string(), p.clone())]).unwrap();
        scheduler.step();
        assert_eq!((optimizer.lr(), optimizer.groups()[0].lr_tensor().dtype()), (rate, DType::F32));
        // The step reads the rate of the schedule: Adam's first step changes a parameter by the rate.
        let before: f64 = p.item();
        p.set_grad(Some(Tensor::from([1.0f32])));
        optimizer.step();
        let expected = before * (1.0 - 0.01 * rate) - rate;
        assert!((p.item::<f64>() - expected).abs() < 1e-6, "{} for {expected}", p.item::<f64>());
        optimizer.deferred_parameters().unwrap().remove_added();
        assert_eq!((optimizer.parameters().len(), optimizer.lr()), (0, rate));
    }
}

#[test]
fn a_rate_is_stored_in_single_or_double_precision() {
    for dtype in [DType::F16, DType::BF16, DType::I64] {
        assert!(matches!(ParamGroup::try_new(0.1, None, dtype), Err(Error::DTypeMismatch { .. })), "{dtype}");
    }
}

#[test]
fn the_loss_scale_is_returned_as_it_was_set() {
    let scaler = GradScaler::new(GradScalerOptions { init_scale: 1000.1, growth_interval: 1, ..Default::default() });
    assert_eq!(scaler.get_scale(), 1000.1);
    let parameter = Parameter::new(Tensor::from([1.0f32]));
    let optimizer = Sgd::new(vec![parameter.clone()], SgdOptions::default());
    scaler.scale(&parameter.sum(..)).backward();
    scaler.step(&optimizer);
    scaler.update();
    assert_eq!(scaler.get_scale(), 2000.2);
    let other = GradScaler::new(GradScalerOptions::default());
    assert_eq!(other.get_scale(), 65536.0);
    other.load_state_dict(&scaler.state_dict()).unwrap();
    assert_eq!(other.get_scale(), 2000.2);
}

/// A number that was stored in `f32` has all its digits in `f64`.
#[test]
fn a_filled_optimizer_has_the_exact_numbers() {
    let named = |dtype| {
        let names = ["w", "b"].map(String::from).into_iter();
        names.zip(parameters(false, dtype)).collect::<Vec<(String, Parameter)>>()
    };
    let options = AdamOptions { lr: 0.01, betas: (0.9, 0.999), ..Default::default() };
    let exact = Adam::new(named(DType::F64), options);
    let adam = Adam::new(ParameterList::default(), options);
    for dtype in [DType::F32, DType::F64, DType::F32, DType::F64] {
        adam.deferred_parameters().unwrap().add(named(dtype)).unwrap();
        assert_eq!((adam.lr(), adam.groups()[0].momentum()), (0.01, Some(0.9)), "{dtype}");
        if dtype == DType::F64 {
            let tensors = |adam: &Adam| {
                let group = &adam.groups()[0];
                [group.lr_tensor().to_bytes(), group.momentum_tensor().unwrap().to_bytes()]
            };
            assert_eq!(tensors(&adam), tensors(&exact));
        }
        adam.deferred_parameters().unwrap().remove_added();
    }
}

#[test]
fn a_rate_that_underflows_is_read_as_zero() {
    for (dtype, rate, read) in [(DType::F32, 1e-50, 0.0), (DType::F32, 1e-44, 1e-44), (DType::F64, 1e-50, 1e-50)] {
        let group = ParamGroup::new(rate, Some(Momentum::Kept(rate)), dtype);
        assert_eq!((group.lr(), group.momentum()), (read, Some(read)), "{dtype}");
        group.set_lr(0.1);
        group.set_lr(rate);
        assert_eq!((group.lr(), group.lr_tensor().item::<f64>() > 0.0), (read, read > 0.0), "{dtype}");
    }
    let rejected = GradScaler::try_new(GradScalerOptions { init_scale: 1e-50, ..Default::default() }).err();
    assert!(rejected.is_some_and(|error| error.to_string().contains("`init_scale` must not underflow in f32")));
}

/// A rate that one group cannot store changes no group.
#[test]
fn a_rejected_rate_changes_no_group() {
    let options = SgdOptions { lr: 0.5, momentum: 0.9, ..Default::default() };
    let mut sgd = Sgd::new(parameters(false, DType::F64), options);
    sgd.try_add_group(vec![Parameter::new(Tensor::from([1.0f32]))], options).unwrap();
    let numbers = |sgd: &Sgd| sgd.groups().iter().map(|group| (group.lr(), group.momentum())).collect::<Vec<_>>();
    let before = numbers(&sgd);
    let rejected = sgd.try_set_lr(1e300).unwrap_err().to_string();
    assert!(rejected.contains("set_lr: 1e300 is outside the range of f32, in which it is stored"), "{rejected}");
    assert_eq!(numbers(&sgd), before);
    let mut scheduler = Scheduler::new(ExponentialLr { gamma: 1e300 }, &sgd);
    assert!(matches!(scheduler.try_step(), Err(Error::InvalidArgument { op: "scheduler", .. })));
    assert_eq!((numbers(&sgd), scheduler.epoch()), (before, 0));
}

#[test]
fn a_number_outside_the_range_names_its_operation() {
    let rejected = GradScaler::try_new(GradScalerOptions { init_scale: 1e300, ..Default::default() }).err();
    let rejected = rejected.expect("1e300 is infinite in f32").to_string();
    assert!(rejected.contains("grad_scaler: 1e300 is outside the range of f32, in which it is stored"), "{rejected}");
}

/// Reductions after a load have the bits of an uninterrupted run, although `f32` rounds the rates.
#[test]
fn a_plateau_resumes_bit_equal() {
    let options = || ReduceLrOnPlateauOptions { factor: 0.9, patience: 0, ..Default::default() };
    let reduce = |plateau: &mut ReduceLrOnPlateau, count: usize| (0..count).for_each(|_| plateau.step(1.0));
    let rate = |sgd: &Sgd| sgd.groups()[0].lr_tensor().to_bytes();
    let reductions = 20;
    let own = sgd(0.01);
    reduce(&mut ReduceLrOnPlateau::new(options(), &own), 2);
    assert!((own.lr() - 0.009).abs() < 1e-15, "{}", own.lr());
    for saved in 0..reductions {
        let (first, loaded) = (sgd(0.01), sgd(0.01));
        let mut plateau = ReduceLrOnPlateau::new(options(), &first);
        reduce(&mut plateau, saved);
        let mut resumed = ReduceLrOnPlateau::new(options(), &loaded);
        resumed.load_state_dict(&plateau.state_dict()).unwrap();
        loaded.load_state_dict(&first.state_dict()).unwrap();
        reduce(&mut plateau, reductions - saved);
        reduce(&mut resumed, reductions - saved);
        assert_eq!(rate(&loaded), rate(&first), "saved after {saved} measurements");
    }
}
