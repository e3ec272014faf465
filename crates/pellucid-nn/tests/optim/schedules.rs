//! Every schedule against PyTorch's rates in every epoch, in the chainable and the closed form.

use crate::{close, flat, numbers_of, parameters, set_gradients};
use pellucid_nn::optim::schedule;
use pellucid_nn::optim::schedule::*;
use pellucid_nn::optim::{Adagrad, AdagradOptions, AdamW, AdamWOptions, Optimizer, Sgd, SgdOptions};
use pellucid_tensor::{DType, Error};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

fn fixture() -> BTreeMap<(&'static str, &'static str), Vec<f64>> {
    let lines = include_str!("fixtures/schedules.txt").lines();
    let parse = |line: &'static str| {
        let mut fields = line.split(' ');
        let key = (fields.next().unwrap(), fields.next().unwrap());
        (key, numbers_of(fields))
    };
    lines.map(parse).collect()
}

/// Two groups with rates of 0.1 and 0.02.
fn two_groups() -> Sgd {
    let [w, b]: [_; 2] = parameters(false, DType::F64).try_into().unwrap();
    let options = |lr| SgdOptions { lr, momentum: 0.5, ..Default::default() };
    let mut sgd = Sgd::new(vec![w], options(0.1));
    sgd.try_add_group(vec![b], options(0.02)).unwrap();
    sgd
}

fn schedule(name: &str) -> Box<dyn Schedule> {
    let exponential = ExponentialLr { gamma: 0.9 };
    match name {
        "lambda" => Box::new(LambdaLr::per_group(|group, epoch| match group {
            0 => 0.95f64.powi(epoch as i32),
            _ => 1.0 / (1.0 + epoch as f64),
        })),
        "multiplicative" => Box::new(MultiplicativeLr::new(|epoch| 1.0 - 0.01 * epoch as f64)),
        "step" => Box::new(StepLr { step_size: 7, gamma: 0.3 }),
        "multistep" => Box::new(MultiStepLr { milestones: vec![3, 8, 8, 20], gamma: 0.5 }),
        "constant" => Box::new(ConstantLr { factor: 0.25, total_iters: 6 }),
        "linear" => Box::new(LinearLr { start_factor: 0.2, end_factor: 0.9, total_iters: 8 }),
        "exponential" => Box::new(exponential),
        "polynomial" => Box::new(PolynomialLr { total_iters: 12, power: 2.5 }),
        "cosine" => Box::new(CosineAnnealingLr { t_max: 8, eta_min: 0.001 }),
        "cosine_long" => Box::new(CosineAnnealingLr { t_max: 50, eta_min: 0.0 }),
        "restarts" => Box::new(CosineAnnealingWarmRestarts { t_0: 5, t_mult: 1, eta_min: 0.0 }),
        "restarts_longer" => Box::new(CosineAnnealingWarmRestarts { t_0: 4, t_mult: 2, eta_min: 0.002 }),
        "onecycle" => Box::new(OneCycleLr::new(PerGroup::Each(vec![0.3, 0.1]), 30)),
        "onecycle_linear" => Box::new(OneCycleLr {
            pct_start: 0.4,
            anneal_strategy: AnnealStrategy::Linear,
            three_phase: true,
            div_factor: 5.0,
            final_div_factor: 50.0,
            base_momentum: 0.7,
            max_momentum: 0.9,
            ..OneCycleLr::new(0.3, 25)
        }),
        "cyclic" => Box::new(CyclicLr {
            step_size_up: 4,
            step_size_down: Some(7),
            ..CyclicLr::new(0.01, PerGroup::Each(vec![0.1, 0.2]))
        }),
        "cyclic2" => Box::new(CyclicLr { step_size_up: 5, mode: CyclicMode::Triangular2, ..CyclicLr::new(0.01, 0.1) }),
        "cyclic_exp" => Box::new(CyclicLr {
            step_size_up: 5,
            mode: CyclicMode::ExpRange(0.97),
            cycle_momentum: false,
            ..CyclicLr::new(0.01, 0.1)
        }),
        "cyclic_own" => Box::new(CyclicLr {
            step_size_up: 5,
            mode: CyclicMode::OfCycle(|c| 1.0 / (c * c)),
            ..CyclicLr::new(0.01, 0.1)
        }),
        "sequential" => Box::new(
            SequentialLr::new(LinearLr { start_factor: 0.1, ..Default::default() })
                .then(5, exponential)
                .then(15, CosineAnnealingLr::new(6)),
        ),
        "sequential_multiplicative" => Box::new(
            SequentialLr::new(ConstantLr { factor: 0.5, total_iters: 4 })
                .then(8, MultiplicativeLr::new(|epoch| 0.9 - 0.01 * epoch as f64)),
        ),
        "swa" => Box::new(SwaLr::new(0.05)),
        "swa_linear" => Box::new(SwaLr {
            anneal_epochs: 7,
            anneal_strategy: AnnealStrategy::Linear,
            ..SwaLr::new(PerGroup::Each(vec![0.3, 0.001]))
        }),
        "swa_at_once" => Box::new(SwaLr { anneal_epochs: 0, ..SwaLr::new(0.05) }),
        "chained" => Box::new(ChainedScheduler::new(ConstantLr { factor: 0.1, total_iters: 4 }).and(exponential)),
        "chained_more" => Box::new(
            ChainedScheduler::new(LinearLr { start_factor: 0.5, total_iters: 6, ..Default::default() })
                .and(StepLr { gamma: 0.5, ..StepLr::new(5) })
                .and(PolynomialLr { total_iters: 25, ..Default::default() }),
        ),
        other => panic!("add the schedule {other} of the fixture to this test"),
    }
}

fn names() -> Vec<&'static str> {
    let lr = |(name, kind): &(&'static str, &'static str)| {
        (*kind == "lr.0" && !name.starts_with("plateau")).then_some(*name)
    };
    fixture().keys().filter_map(lr).collect()
}

#[test]
fn rates_match_pytorch_in_every_epoch() {
    let fixture = fixture();
    assert!(names().len() > 20);
    for name in names() {
        let optimizer = two_groups();
        let mut scheduler = Scheduler::new(schedule(name), &optimizer);
        let epochs = fixture[&(name, "lr.0")].len();
        let mut rows = [vec![], vec![], vec![]];
        for epoch in 0..epochs {
            rows[0].push(optimizer.groups()[0].lr());
            rows[1].push(optimizer.groups()[1].lr());
            rows[2].push(optimizer.groups()[0].momentum().unwrap());
            assert_eq!(scheduler.last_lr(), [optimizer.groups()[0].lr(), optimizer.groups()[1].lr()]);
            // Another scheduler continues from a snapshot.
            if epoch == 4 {
                let state = scheduler.state_dict();
                scheduler = Scheduler::new(schedule(name), &optimizer);
                scheduler.load_state_dict(&state).unwrap();
            }
            if epoch + 1 < epochs {
                scheduler.step();
            }
        }
        close(&rows[0], &fixture[&(name, "lr.0")], 1e-12, name);
        close(&rows[1], &fixture[&(name, "lr.1")], 1e-12, name);
        let momenta = fixture.get(&(name, "momentum")).cloned().unwrap_or(vec![0.5; epochs]);
        close(&rows[2], &momenta, 1e-12, name);
    }
}

#[test]
fn jumps_match_pytorch() {
    let fixture = fixture();
    let closed: Vec<_> = fixture.keys().filter(|(_, kind)| *kind == "closed").collect();
    assert_eq!(closed.len(), 9);
    for &(name, kind) in closed {
        let optimizer = two_groups();
        let mut scheduler = Scheduler::new(schedule(name), &optimizer);
        let rates: Vec<f64> = [9, 2, 25, 0, 13]
            .into_iter()
            .map(|epoch| {
                scheduler.set_epoch(epoch);
                optimizer.groups()[1].lr()
            })
            .collect();
        close(&rates, &fixture[&(name, kind)], 1e-12, name);
        assert_eq!(scheduler.epoch(), 13);
    }
}

#[test]
fn plateaus_match_pytorch() {
    let fixture = fixture();
    let measured =
        [1.0, 0.9, 0.9, 0.95, 0.9, 0.5, 0.6, 0.6, 0.6, 0.6, 0.49999, 0.7, 0.7, 0.7, 0.7, 0.7, 0.4, 0.3, 0.3, 0.3];
    let first = ReduceLrOnPlateauOptions { patience: 2, factor: 0.3, ..Default::default() };
    let second = ReduceLrOnPlateauOptions {
        goal: Goal::Maximize,
        patience: 1,
        threshold: ThresholdMode::Absolute(0.05),
        cooldown: 2,
        min_lr: PerGroup::Each(vec![0.004, 0.01]),
        ..Default::default()
    };
    for (name, options) in [("plateau", first), ("plateau_max", second)] {
        let optimizer = two_groups();
        let mut schedule = ReduceLrOnPlateau::new(options.clone(), &optimizer);
        let (mut first, mut second) = (vec![], vec![]);
        for (i, &value) in measured.iter().enumerate() {
            if i == 7 {
                let state = schedule.state_dict();
                schedule = ReduceLrOnPlateau::new(options.clone(), &optimizer);
                schedule.load_state_dict(&state).unwrap();
            }
            schedule.step(value);
            first.push(optimizer.groups()[0].lr());
            second.push(optimizer.groups()[1].lr());
        }
        close(&first, &fixture[&(name, "lr.0")], 1e-12, name);
        close(&second, &fixture[&(name, "lr.1")], 1e-12, name);
    }
    let grows = ReduceLrOnPlateauOptions { factor: 1.0, ..Default::default() };
    assert!(matches!(ReduceLrOnPlateau::try_new(grows, &two_groups()), Err(Error::InvalidArgument { .. })));
}

/// One cycle changes Adam's β₁, bias corrections included.
#[test]
fn a_cycle_changes_the_first_beta() {
    let options = AdamWOptions { lr: 0.05, ..Default::default() };
    let optimizer = AdamW::new(parameters(false, DType::F64), options);
    let mut scheduler = Scheduler::new(OneCycleLr::new(0.1, 20), &optimizer);
    for t in 1..=20 {
        set_gradients(&optimizer, f64::from(t));
        optimizer.step();
        scheduler.step();
    }
    close(&flat(&optimizer.parameters()), &fixture()[&("onecycle_adamw", "parameters")], 1e-11, "onecycle");
}

#[test]
fn optimizers_without_momentum_are_rejected() {
    let plain = Sgd::new(parameters(false, DType::F64), SgdOptions::default());
    let adagrad = Adagrad::new(parameters(false, DType::F64), AdagradOptions::default());
    let cycle = || OneCycleLr::new(0.1, 20);
    assert!(matches!(Scheduler::try_new(cycle(), &plain), Err(Error::InvalidArgument { .. })));
    assert!(matches!(Scheduler::try_new(cycle(), &adagrad), Err(Error::InvalidArgument { .. })));
    let later = SequentialLr::new(StepLr::new(5)).then(20, cycle());
    assert!(matches!(Scheduler::try_new(later, &plain), Err(Error::InvalidArgument { .. })));
    assert!(Scheduler::try_new(OneCycleLr { cycle_momentum: false, ..cycle() }, &plain).is_ok());
    assert!(adagrad.groups()[0].try_set_momentum(0.5).is_err());
}

/// Vaswani et al. 2017: d^(−½)·min(t^(−½), t·w^(−3/2)).
#[test]
fn noam_matches_its_paper() {
    let optimizer = Sgd::new(parameters(false, DType::F64), SgdOptions { lr: 1.0, ..Default::default() });
    let mut scheduler = Scheduler::new(NoamLr { d_model: 512, warmup_steps: 10 }, &optimizer);
    for t in 1..=30 {
        let t = f64::from(t);
        let expected = 1.0 / 512f64.sqrt() * (1.0 / t.sqrt()).min(t / 10f64.powi(3).sqrt());
        close(&[optimizer.lr()], &[expected], 1e-14, "noam");
        scheduler.step();
    }
}

#[test]
fn a_warmup_ends_in_the_full_rate_alone_or_chained() {
    let optimizer = two_groups();
    let both = ChainedScheduler::new(WarmupLr::new(4)).and(ExponentialLr::new(0.5));
    let mut chained = Scheduler::new(both, &optimizer);
    for epoch in 0..8 {
        let expected = 0.1 * (f64::from(epoch + 1) / 4.0).min(1.0) * 0.5f64.powi(epoch);
        close(&[optimizer.lr()], &[expected], 1e-14, "warmup");
        chained.step();
    }
}

/// η₀·(t + 1)/w, then half a cosine to η_min, for each group from its own initial rate.
#[test]
fn a_cosine_with_warmup_rises_and_falls() {
    let optimizer = two_groups();
    let schedule = CosineWithWarmupLr { warmup_steps: 2, total_steps: 10, eta_min: 0.01 };
    let mut scheduler = Scheduler::new(schedule, &optimizer);
    let rates: Vec<Vec<f64>> = (0..12)
        .map(|_| {
            let rates = scheduler.last_lr();
            scheduler.step();
            rates
        })
        .collect();
    assert_eq!(rates[..3], [[0.05, 0.01], [0.1, 0.02], [0.1, 0.02]]);
    close(&rates[6], &[0.055, 0.015], 1e-15, "half");
    assert!(rates[2..11].windows(2).all(|w| w[1][0] < w[0][0] && w[1][1] < w[0][1]));
    assert_eq!(rates[10..], [[0.01; 2], [0.01; 2]]);
    let rejected = CosineWithWarmupLr { warmup_steps: 11, ..schedule };
    assert!(Scheduler::try_new(rejected, &optimizer).err().unwrap().to_string().contains("11 warm-up steps of 10"));
    // A warm-up without a decay.
    let only = Scheduler::new(CosineWithWarmupLr { warmup_steps: 10, ..schedule }, &two_groups());
    close(&only.last_lr(), &[0.01, 0.002], 1e-15, "warm-up");
}

/// A jump to an epoch and as many steps have the same bits, where the rate does not depend on the previous one.
#[test]
fn jumps_and_steps_have_the_same_bits() {
    let previous =
        ["multiplicative", "swa", "swa_linear", "swa_at_once", "chained", "chained_more", "sequential_multiplicative"];
    for name in names().into_iter().filter(|name| !previous.contains(name)) {
        let (optimizer, other) = (two_groups(), two_groups());
        let (mut steps, mut jumps) =
            (Scheduler::new(schedule(name), &optimizer), Scheduler::new(schedule(name), &other));
        for epoch in 1..40 {
            steps.step();
            jumps.set_epoch(epoch);
            assert_eq!(steps.last_lr(), jumps.last_lr(), "{name}, epoch {epoch}");
        }
    }
}

/// A chained schedule whose previous factor is 0 continues from the lowest rate: η(t) of a cosine that rises again.
#[test]
fn a_chain_leaves_a_rate_of_zero() {
    let optimizer = two_groups();
    let chain = ChainedScheduler::new(CosineAnnealingLr::new(3)).and(ExponentialLr::new(1.0));
    let mut chained = Scheduler::new(chain, &optimizer);
    for epoch in 0..10 {
        let expected = 0.1 * (1.0 + (std::f64::consts::PI * f64::from(epoch) / 3.0).cos()) / 2.0;
        assert!((optimizer.lr() - expected).abs() < 1e-15, "epoch {epoch}: {} for {expected}", optimizer.lr());
        chained.step();
    }
}

/// A linear schedule that ends at 0 may go below it by rounding, which counts as 0.
#[test]
fn negative_and_non_finite_rates_are_rejected() {
    let optimizer = two_groups();
    let mut falls = Scheduler::new(LambdaLr::new(|epoch| 1.0 - epoch as f64), &optimizer);
    falls.step();
    assert_eq!(falls.last_lr(), [0.0; 2]);
    let rejected = catch_unwind(AssertUnwindSafe(|| falls.step())).unwrap_err();
    assert!(rejected.downcast_ref::<String>().unwrap().contains("at least 0"));
    assert_eq!((falls.epoch(), optimizer.groups()[0].lr(), optimizer.groups()[1].lr()), (1, 0.0, 0.0));
    let optimizer = two_groups();
    let rounded = Scheduler::new(LambdaLr::new(|_| -1e-15), &optimizer);
    assert_eq!(rounded.last_lr(), [0.0; 2]);
    assert!(Scheduler::try_new(LambdaLr::new(|_| -1e-6), &two_groups()).is_err());
    for percent in 1..100 {
        let optimizer = two_groups();
        let ends = schedule::LinearLr { start_factor: f64::from(percent) / 100.0, end_factor: 0.0, total_iters: 7 };
        let mut scheduler = Scheduler::new(ends, &optimizer);
        (0..9).for_each(|_| scheduler.step());
        assert!((0.0..1e-15).contains(&optimizer.lr()), "the rate after a decay to 0 must be about 0 ({percent} %)");
    }
    // A non-finite rate changes nothing.
    let optimizer = two_groups();
    let breaks = |epoch| if epoch == 0 { 0.5 } else { f64::NAN };
    let mut scheduler = Scheduler::new(LambdaLr::per_group(move |group, epoch| breaks(group * epoch)), &optimizer);
    assert!(catch_unwind(AssertUnwindSafe(|| scheduler.step())).is_err());
    assert_eq!((scheduler.epoch(), optimizer.groups()[0].lr(), optimizer.groups()[1].lr()), (0, 0.05, 0.01));
    assert!(matches!(Scheduler::try_new(LambdaLr::new(|_| f64::NAN), &optimizer), Err(Error::InvalidArgument { .. })));
}

/// `CosineAnnealingWarmRestarts(T_0=3, T_mult=2, eta_min=0.01)` of PyTorch 2.15, `step(epoch)` with fractional epochs.
#[test]
fn warm_restarts_move_within_epochs() {
    let optimizer = two_groups();
    let mut scheduler = Scheduler::new(CosineAnnealingWarmRestarts { t_0: 3, t_mult: 2, eta_min: 0.01 }, &optimizer);
    for (epoch, lr) in [
        (0.25, 0.09846666218300808),
        (2.9, 0.010246514708427702),
        (3.0, 0.1),
        (3.5, 0.09846666218300808),
        (8.75, 0.010384981238178534),
        (9.0, 0.1),
        (20.125, 0.011175535932519987),
    ] {
        scheduler.set_epoch_within(epoch);
        close(&[optimizer.lr()], &[lr], 1e-15, "within");
        assert_eq!(scheduler.epoch(), epoch as usize);
    }
}

/// A new scheduler sets the rates of epoch 0. A resumed one keeps the optimizer's rates, for both orders of loading the
/// snapshots.
#[test]
fn a_resumed_scheduler_keeps_the_optimizers_rates() {
    let cycle = || OneCycleLr { pct_start: 0.1, ..OneCycleLr::new(0.1, 10) };
    let optimizer = two_groups();
    let mut scheduler = Scheduler::new(cycle(), &optimizer);
    (0..4).for_each(|_| scheduler.step());
    let (own, state) = (optimizer.state_dict(), scheduler.state_dict());
    let other = two_groups();
    other.load_state_dict(&own).unwrap();
    let mut resumed = Scheduler::resume(cycle(), &other, &state);
    for _ in 0..5 {
        assert_eq!((other.lr(), other.groups()[0].momentum()), (optimizer.lr(), optimizer.groups()[0].momentum()));
        assert_eq!(resumed.state_dict()["lr.1"].item::<f64>(), optimizer.groups()[1].lr());
        scheduler.step();
        resumed.step();
    }
    assert!(matches!(Scheduler::try_resume(cycle(), &other, &own), Err(Error::StateDict { .. })));
}

/// A scheduler keeps handles of the groups: it sets the rates of a boxed optimizer, and of no other one.
#[test]
fn a_scheduler_steps_without_its_optimizer() {
    let (optimizer, other) = (Box::new(two_groups()) as Box<dyn Optimizer>, two_groups());
    let mut scheduler = Scheduler::new(OneCycleLr { cycle_momentum: false, ..OneCycleLr::new(0.1, 5) }, &optimizer);
    let before = optimizer.lr();
    scheduler.step();
    assert!(optimizer.lr() > before);
    assert_eq!((other.lr(), scheduler.last_lr()[0]), (two_groups().lr(), optimizer.lr()));
}

/// A schedule in a sequence that changes the momentum later is rejected when the scheduler is created.
#[test]
fn a_later_cycle_needs_a_momentum() {
    let plain = Sgd::new(parameters(false, DType::F64), SgdOptions::default());
    let later = || SequentialLr::new(ConstantLr::default()).then(5, OneCycleLr::new(0.1, 10));
    let chained = || ChainedScheduler::new(ConstantLr::default()).and(later());
    for rejected in [Scheduler::try_new(later(), &plain).err(), Scheduler::try_new(chained(), &plain).err()] {
        assert!(rejected.expect("the optimizer has no momentum").to_string().contains("cycle_momentum: false"));
    }
}

#[test]
fn the_state_of_a_scheduler_belongs_to_its_schedule() {
    let optimizer = two_groups();
    let scheduler = Scheduler::new(StepLr { step_size: 1, gamma: 0.1 }, &optimizer);
    let mut state = scheduler.state_dict();
    let constant = Scheduler::new(ConstantLr { factor: 0.5, total_iters: 2 }, &optimizer);
    let rejected = constant.load_state_dict(&state).unwrap_err().to_string();
    assert!(
        rejected.contains("StepLr") && rejected.contains("ConstantLr") && rejected.contains("schedule.StepLr"),
        "{rejected}"
    );
    // A state without the entry fits every schedule.
    state.remove("schedule.StepLr").expect("the state must name the schedule");
    constant.load_state_dict(&state).unwrap();
    // A boxed schedule has the name of its type.
    let boxed: Box<dyn Schedule> = Box::new(StepLr { step_size: 1, gamma: 0.1 });
    assert!(Scheduler::new(boxed, &optimizer).state_dict().contains_key("schedule.StepLr"));
}

#[test]
fn a_rate_outside_the_range_of_its_dtype_is_rejected() {
    let options = |lr| SgdOptions { lr, ..Default::default() };
    assert!(Sgd::try_new(parameters(false, DType::F64), options(1e300)).is_ok());
    let rejected = Sgd::try_new(parameters(false, DType::F32), options(1e300)).expect_err("1e300 is infinite in f32");
    assert!(rejected.to_string().contains("outside the range of f32"), "{rejected}");
    let optimizer = Sgd::new(parameters(false, DType::F32), options(0.5));
    assert!(catch_unwind(AssertUnwindSafe(|| optimizer.set_lr(1e300))).is_err());
    assert_eq!(optimizer.lr(), 0.5);
}

#[test]
fn options_outside_of_their_ranges_are_rejected() {
    let optimizer = two_groups();
    let linear = |start_factor, end_factor| LinearLr { start_factor, end_factor, total_iters: 4 };
    for (start, end) in [(0.0, 1.0), (-0.5, 1.0), (1.5, 1.0), (f64::NAN, 1.0), (0.5, 1.5), (0.5, -0.1)] {
        assert!(Scheduler::try_new(linear(start, end), &optimizer).is_err(), "{start} to {end}");
    }
    assert!(Scheduler::try_new(linear(1.0, 0.0), &optimizer).is_ok());
    for pct_start in [-0.1, 1.5, f64::NAN] {
        assert!(Scheduler::try_new(OneCycleLr { pct_start, ..OneCycleLr::new(0.1, 10) }, &optimizer).is_err());
    }
    assert!(Scheduler::try_new(NoamLr { d_model: 512, warmup_steps: 0 }, &optimizer).is_err());
}

/// A composed schedule in a sequence begins at its own first rate, not at the last rate of the schedule before it.
#[test]
fn composed_schedules_begin_in_a_sequence() {
    let constant = || SequentialLr::new(ConstantLr { factor: 0.1, total_iters: 5 });
    let exponential = || ExponentialLr::new(0.9);
    let rates = |schedule: SequentialLr| {
        let optimizer = Sgd::new(parameters(false, DType::F64), SgdOptions { lr: 1.0, ..Default::default() });
        let mut scheduler = Scheduler::new(schedule, &optimizer);
        let next = |_| {
            let lr = optimizer.lr();
            scheduler.step();
            lr
        };
        (0..9).map(next).collect::<Vec<f64>>()
    };
    let plain = rates(constant().then(5, exponential()));
    close(&plain[3..8], &[0.1, 0.1, 1.0, 0.9, 0.81], 1e-12, "plain");
    let chained = ChainedScheduler::new(StepLr::new(10)).and(exponential());
    close(&rates(constant().then(5, chained)), &plain, 1e-12, "chained");
    let nested = SequentialLr::new(ChainedScheduler::new(exponential())).then(50, StepLr::new(10));
    close(&rates(constant().then(5, nested)), &plain, 1e-12, "nested");
}

/// A schedule behind a pointer has the rates, the momentum and the name of the schedule itself.
#[test]
fn pointers_to_schedules_are_schedules() {
    let rates = |schedule: &dyn Schedule| {
        let sgd = two_groups();
        let mut scheduler = Scheduler::new(schedule, &sgd);
        let rates: Vec<_> = (0..8)
            .map(|_| {
                scheduler.step();
                (scheduler.last_lr(), sgd.groups()[0].momentum())
            })
            .collect();
        (rates, scheduler.state_dict().into_keys().collect::<Vec<_>>())
    };
    let schedule = || OneCycleLr::new(0.3, 10);
    let expected = rates(&schedule());
    assert!(expected.1.contains(&"schedule.OneCycleLr".to_string()), "{:?}", expected.1);
    let shared: Arc<dyn Schedule> = Arc::new(schedule());
    let boxed: Box<dyn Schedule> = Box::new(shared.clone());
    for pointer in [&shared as &dyn Schedule, &boxed, &&*boxed] {
        assert_eq!(rates(pointer), expected);
    }
}
