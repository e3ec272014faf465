//! Steps that accumulate gradients over several launches.

use crate::models::*;
use pellucid_nn::graph::*;
use pellucid_nn::loss::MseLoss;
use pellucid_nn::optim::{GradScaler, GradScalerOptions, Optimizer, Sgd, SgdOptions};
use pellucid_nn::paths::If;
use pellucid_nn::*;
use pellucid_tensor::{Error, Result, Tensor, manual_seed, ops};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// An optimizer whose update also changes parameters without a gradient of other than zero.
fn decaying(parameters: Vec<Parameter>) -> Sgd {
    Sgd::new(parameters, SgdOptions { lr: 0.1, weight_decay: 0.5, ..Default::default() })
}

fn accumulating<'f>(eager: bool, accumulate: usize) -> StepOptions<'f> {
    StepOptions { eager, accumulate, ..Default::default() }
}

/// A function before the update that fails or panics while the flag is set.
fn failing<'f>(fails: &Arc<AtomicBool>, panics: bool) -> Option<BeforeUpdate<'f>> {
    let fails = fails.clone();
    Some(Arc::new(move |_| match fails.load(Ordering::Relaxed) {
        true if panics => panic!("the function before the update panics"),
        true => Err(Error::InvalidArgument { op: "clip", reason: "not now".into() }),
        false => Ok(()),
    }))
}

fn mean_square(model: &impl Layer, inputs: &[Tensor]) -> Result<Tensor> {
    ops::mean(&ops::square(&model.try_forward(&inputs[0])?)?, ..)
}

fn inputs(count: u64) -> Vec<Tensor> {
    (0..count).map(|seed| batch(&[BATCH, 6], seed).0).collect()
}

/// Returns the state after one step with the mean loss over these batches.
fn after_one_update(batches: &[&Tensor]) -> Vec<(String, Vec<u8>)> {
    let model = built(&KINDS[0]);
    let mut step = TrainingStep::new(decaying(model.parameters()), |inputs| {
        let losses = inputs.iter().map(|x| mean_square(&model, std::slice::from_ref(x)));
        let weight = 1.0 / inputs.len() as f64;
        losses.map(|loss| ops::mul(&loss?, Tensor::from(weight as f32))).reduce(|a, b| ops::add(&a?, &b?)).unwrap()
    });
    step.launch(batches).unwrap();
    bits(model.state_dict())
}

#[track_caller]
fn assert_close(state: &[(String, Vec<u8>)], expected: &[(String, Vec<u8>)]) {
    let floats =
        |bytes: &[u8]| -> Vec<f32> { bytes.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect() };
    for ((name, own), (_, expected)) in state.iter().zip(expected) {
        let close = floats(own).iter().zip(floats(expected)).all(|(a, b)| (a - b).abs() < 1e-6);
        assert!(close, "{name}: {:?} and {:?}", floats(own), floats(expected));
    }
}

/// New options begin a new accumulation, without the gradients of launches before.
#[test]
fn a_change_of_the_options_begins_a_new_accumulation() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let x = inputs(3);
    for eager in [false, true] {
        let model = built(&KINDS[0]);
        let before = bits(model.state_dict());
        let step = TrainingStep::new(decaying(model.parameters()), |inputs| mean_square(&model, inputs));
        let mut step = step.with_options(accumulating(eager, 3));
        step.launch(&[&x[0]]).unwrap();
        step.launch(&[&x[0]]).unwrap();
        let mut step = step.with_options(accumulating(eager, 2));
        step.launch(&[&x[1]]).unwrap();
        assert_eq!(bits(model.state_dict()), before);
        step.launch(&[&x[2]]).unwrap();
        assert_close(&bits(model.state_dict()), &after_one_update(&[&x[1], &x[2]]));
    }
}

/// Another step of the same parameters, and a gradient that is bound between launches, change nothing.
#[test]
fn steps_of_the_same_parameters_have_gradients_of_their_own() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let x = inputs(4);
    for eager in [false, true] {
        let model = built(&KINDS[0]);
        let compute = |inputs: &[Tensor]| mean_square(&model, inputs);
        let step = TrainingStep::new(decaying(model.parameters()), compute);
        let mut step = step.with_options(accumulating(eager, 2));
        let still = Sgd::new(model.parameters(), SgdOptions { lr: 0.0, ..Default::default() });
        let mut other = TrainingStep::new(still, compute).with_options(accumulating(eager, 1));
        other.launch(&[&x[3]]).unwrap();
        step.launch(&[&x[0]]).unwrap();
        other.launch(&[&x[3]]).unwrap();
        model.parameters().iter().for_each(|p| p.set_grad(Some(Tensor::ones(p.shape(), p.dtype()))));
        step.launch(&[&x[1]]).unwrap();
        assert_close(&bits(model.state_dict()), &after_one_update(&[&x[0], &x[1]]));
        (0..4).for_each(|_| {
            other.launch(&[&x[3]]).unwrap();
            step.launch(&[&x[2]]).unwrap();
        });
        let recorded = u64::from(!eager);
        assert_eq!((other.cache_stats().misses, step.cache_stats().misses), (recorded, recorded));
    }
}

/// An update that cannot be recorded changes neither parameters nor the gradients so far.
#[test]
fn a_rejected_update_changes_nothing() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let x = inputs(2);
    let model = built(&KINDS[0]);
    let before = bits(model.state_dict());
    let rejects = Arc::new(AtomicBool::new(true));
    let options = StepOptions { before_update: failing(&rejects, false), ..accumulating(false, 2) };
    let step = TrainingStep::new(decaying(model.parameters()), |inputs| mean_square(&model, inputs));
    let mut step = step.with_options(options);
    step.launch(&[&x[0]]).unwrap();
    for _ in 0..2 {
        assert!(matches!(step.launch(&[&x[1]]), Err(Error::InvalidArgument { op: "clip", .. })));
        assert_eq!(bits(model.state_dict()), before);
    }
    rejects.store(false, Ordering::Relaxed);
    step.launch(&[&x[1]]).unwrap();
    assert_close(&bits(model.state_dict()), &after_one_update(&[&x[0], &x[1]]));
}

/// A parameter is updated if one of the losses depends on it, and else it does not decay.
#[test]
fn parameters_that_no_loss_reaches_are_not_updated() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let x = inputs(2);
    for (eager, accumulate) in [false, true].into_iter().flat_map(|eager| [(eager, 1), (eager, 2)]) {
        manual_seed(1);
        let model = If::new(Linear::new(6, 4), Linear::new(6, 4));
        let mut parameters = model.parameters();
        let frozen = Parameter::new(Tensor::ones([3], x[0].dtype()));
        frozen.requires_grad_(false);
        frozen.set_grad(Some(Tensor::ones([3], x[0].dtype())));
        parameters.push(frozen.clone());
        let step = TrainingStep::new(decaying(parameters), |inputs| mean_square(&model, inputs));
        let mut step = step.with_options(accumulating(eager, accumulate));
        let mut changed = |ways: [bool; 2]| {
            let before: Vec<Vec<f32>> = model.parameters().iter().map(|p| p.to_vec()).collect();
            for (way, x) in ways.iter().zip(&x) {
                model.choose(*way);
                step.launch(&[x]).unwrap();
            }
            let after = model.parameters();
            let changed = after.iter().zip(before).map(|(p, before)| p.to_vec::<f32>() != before);
            let changed: Vec<bool> = changed.collect();
            [changed[0], changed[2]]
        };
        for _ in 0..2 {
            assert_eq!(changed([true, true]), [true, false]);
            assert_eq!(changed([false, true]), [true, true]);
            assert_eq!(changed([false, false]), [false, true]);
        }
        assert_eq!(frozen.to_vec::<f32>(), [1.0; 3]);
    }
}

/// A parameter that is frozen for the update keeps no gradient for the next accumulation.
#[test]
fn a_frozen_parameter_keeps_no_accumulated_gradient() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let one = Tensor::from([1.0f32]);
    for eager in [false, true] {
        let [p, q] = [(); 2].map(|()| Parameter::new(Tensor::from([0.0f32])));
        let sgd = Sgd::new(vec![p.clone(), q.clone()], SgdOptions { lr: 1.0, ..Default::default() });
        let compute = |i: &[Tensor]| ops::sum(&((&p + &q) * &i[0]), ..);
        let mut step = TrainingStep::new(sgd, compute).with_options(accumulating(eager, 2));
        step.launch(&[&Tensor::from([1000.0f32])]).unwrap();
        p.requires_grad_(false);
        step.launch(&[&one]).unwrap();
        assert_eq!((p.item::<f32>(), q.item::<f32>()), (0.0, -500.5));
        p.requires_grad_(true);
        (0..2).for_each(|_| assert_eq!(step.launch(&[&one]).unwrap().len(), 1));
        assert_eq!((p.item::<f32>(), q.item::<f32>()), (-1.0, -501.5));
    }
}

/// Freezing a parameter that the loss does not reach changes nothing, between any two launches.
#[test]
fn parameters_off_the_path_may_be_frozen_and_unfrozen() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let x = inputs(1).remove(0);
    for (eager, accumulate) in [false, true].into_iter().flat_map(|eager| [(eager, 1), (eager, 2)]) {
        manual_seed(1);
        let model = If::new(Linear::new(6, 3), Linear::new(6, 3));
        let step = TrainingStep::new(decaying(model.parameters()), |inputs| mean_square(&model, inputs));
        let mut step = step.with_options(accumulating(eager, accumulate));
        for launch in 0..12 {
            model.choose(launch / 3 % 2 == 0);
            let other = &model.parameters()[if launch / 3 % 2 == 0 { 2 } else { 0 }];
            other.set_requires_grad(launch % 3 != 1).unwrap();
            step.launch(&[&x]).unwrap();
            if accumulate == 1 {
                assert!(other.grad().is_none_or(|grad| grad.to_vec::<f32>().iter().all(|g| *g == 0.0)));
                if launch % 2 == 0 {
                    model.parameters().iter().for_each(|p| p.set_grad(None));
                }
            }
        }
    }
}

/// An update may fail in the launch that creates the buffer of an unfrozen parameter.
#[test]
fn a_failed_update_beside_a_new_buffer_is_an_error() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let x = Tensor::from([1.0f32]);
    for eager in [false, true] {
        let [p, q] = [(); 2].map(|()| Parameter::new(Tensor::from([0.5f32])));
        let fails = Arc::new(AtomicBool::new(false));
        let options = StepOptions { before_update: failing(&fails, false), ..accumulating(eager, 2) };
        let compute = |i: &[Tensor]| ops::sum(&((&p + &q) * &i[0]), ..);
        let mut step = TrainingStep::new(decaying(vec![p.clone(), q.clone()]), compute).with_options(options);
        p.requires_grad_(false);
        (0..3).for_each(|_| assert_eq!(step.launch(&[&x]).unwrap().len(), 1));
        p.requires_grad_(true);
        fails.store(true, Ordering::Relaxed);
        assert!(step.launch(&[&x]).is_err());
        fails.store(false, Ordering::Relaxed);
        (0..4).for_each(|_| assert_eq!(step.launch(&[&x]).unwrap().len(), 1));
    }
}

/// Without gradients there is nothing to update, and the next launch is the first of an accumulation.
#[test]
fn an_early_update_after_zero_grad_changes_nothing() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let (x, y) = (Tensor::from([[1.0f32, 2.0]]), Tensor::from([[3.0f32]]));
    for (eager, freezes) in [(false, false), (false, true), (true, false), (true, true)] {
        let model = Linear::new(2, 1);
        let trainer = GraphTrainer::new(&model, MseLoss::default(), decaying(model.parameters()));
        let mut trainer = trainer.with_options(accumulating(eager, 2));
        trainer.step(&x, &y).unwrap();
        let before = bits(model.state_dict());
        if freezes {
            model.freeze();
        } else {
            trainer.optimizer().zero_grad();
        }
        assert!(!trainer.update_early().unwrap());
        assert!(!trainer.update_early().unwrap());
        model.unfreeze();
        trainer.step(&x, &y).unwrap();
        assert_eq!(bits(model.state_dict()), before, "one launch must not update");
        assert!(trainer.update_early().unwrap());
        assert_ne!(bits(model.state_dict()), before);
    }
}

/// The last update of an epoch uses the mean of the gradients that it has, as the updates before.
#[test]
fn an_early_update_uses_the_mean_of_its_gradients() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let x = inputs(2);
    for eager in [false, true] {
        let model = built(&KINDS[0]);
        let step = TrainingStep::new(decaying(model.parameters()), |inputs| mean_square(&model, inputs));
        let mut step = step.with_options(accumulating(eager, 5));
        step.launch(&[&x[0]]).unwrap();
        step.launch(&[&x[1]]).unwrap();
        assert!(step.update_early().unwrap());
        assert_close(&bits(model.state_dict()), &after_one_update(&[&x[0], &x[1]]));
    }
}

/// A recording whose first launch failed trains the parameters on its own path later.
#[test]
fn a_recording_is_used_after_its_first_launch_failed() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    for eager in [false, true] {
        let [p, q] = [(); 2].map(|()| Parameter::new(Tensor::from([1.0f32])));
        // One index reads p, two indices read q.
        let compute = |i: &[Tensor]| {
            let table = if i[0].shape().size() == 1 { &p } else { &q };
            ops::sum(&ops::index_select(table, 0, &i[0])?, ..)
        };
        let step = TrainingStep::new(decaying(vec![p.clone(), q.clone()]), compute);
        let mut step = step.with_options(accumulating(eager, 2));
        assert!(step.launch(&[&Tensor::from([7i64])]).is_err());
        (0..2).for_each(|_| assert_eq!(step.launch(&[&Tensor::from([0i64, 0])]).unwrap().len(), 1));
        let before = (p.item::<f32>(), q.item::<f32>());
        assert!(before.0 == 1.0 && before.1 < 1.0);
        (0..2).for_each(|_| assert_eq!(step.launch(&[&Tensor::from([0i64])]).unwrap().len(), 1));
        assert!(p.item::<f32>() < before.0 && q.item::<f32>() == before.1, "{before:?}");
    }
}

/// An update that fails once, eager or captured, with a scaler, runs later.
#[test]
fn a_failed_update_with_a_scaler_can_be_repeated() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let x = inputs(1).remove(0);
    for (eager, accumulate) in [false, true].into_iter().flat_map(|eager| [(eager, 1), (eager, 3)]) {
        for panics in [false, true] {
            let model = built(&KINDS[0]);
            let fails = Arc::new(AtomicBool::new(true));
            let options = StepOptions {
                scaler: Some(Arc::new(GradScaler::new(GradScalerOptions::default()))),
                before_update: failing(&fails, panics),
                ..accumulating(eager, accumulate)
            };
            let step = TrainingStep::new(decaying(model.parameters()), |inputs| mean_square(&model, inputs));
            let mut step = step.with_options(options);
            let mut launch = || {
                let launched = catch_unwind(AssertUnwindSafe(|| step.launch(&[&x]).map(drop)));
                launched.is_ok_and(|result| result.is_ok())
            };
            assert!(!(0..accumulate).all(|_| launch()));
            fails.store(false, Ordering::Relaxed);
            assert!((0..3 * accumulate).all(|_| launch()));
        }
    }
}

/// An update that fails ends its accumulation, so that the next one has as many steps.
#[test]
fn the_steps_since_an_update_are_counted() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let (x, y) = (inputs(1).remove(0), Tensor::zeros([BATCH, CLASSES], pellucid_tensor::DType::F32));
    for eager in [false, true] {
        let model = built(&KINDS[0]);
        let fails = Arc::new(AtomicBool::new(false));
        // A captured function runs once, when the update is recorded.
        let options = StepOptions { before_update: failing(&fails, false), ..accumulating(eager, 3) };
        let optimizer = decaying(model.parameters());
        let mut trainer = GraphTrainer::new(&model, MseLoss::default(), optimizer).with_options(options);
        fails.store(true, Ordering::Relaxed);
        let mut step = || (trainer.step(&x, &y).is_ok(), trainer.steps_since_update());
        assert_eq!([step(), step()], [(true, 1), (true, 2)]);
        let failed = step();
        assert!(!failed.0, "the update must fail");
        fails.store(false, Ordering::Relaxed);
        // A captured update fails when it is recorded, before the launch that would be the last.
        let expected = if eager { [(true, 1), (true, 2), (true, 0)] } else { [(true, 0), (true, 1), (true, 2)] };
        assert_eq!([step(), step(), step()], expected, "eager {eager}");
    }
}

/// After an update that fails or panics once, in any place, the next accumulation has as many batches as the others.
#[test]
fn an_update_that_fails_or_panics_ends_its_accumulation() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let x = inputs(4);
    for is_panic in [false, true] {
        for is_early in [false, true] {
            let model = built(&KINDS[0]);
            let fails = AtomicBool::new(true);
            let options = StepOptions {
                before_update: Some(Arc::new(move |parameters| {
                    if !fails.swap(false, Ordering::Relaxed) {
                        return Ok(());
                    }
                    let gradient = parameters[0].grad().unwrap();
                    ops::copy_(&gradient, &ops::mul(&gradient, 2.0)?)?;
                    assert!(!is_panic, "the function before the update panics");
                    Err(Error::InvalidArgument { op: "clip", reason: "not now".into() })
                })),
                ..accumulating(true, 2)
            };
            let before = bits(model.state_dict());
            let step = TrainingStep::new(decaying(model.parameters()), |inputs| mean_square(&model, inputs));
            let mut step = step.with_options(options);
            step.launch(&[&x[0]]).unwrap();
            let failed = catch_unwind(AssertUnwindSafe(|| match is_early {
                true => step.update_early().map(drop),
                false => step.launch(&[&x[1]]).map(drop),
            }));
            assert!(!failed.is_ok_and(|result| result.is_ok()));
            assert_eq!(bits(model.state_dict()), before);
            assert!(!step.update_early().unwrap(), "the gradients are discarded");
            step.launch(&[&x[2]]).unwrap();
            assert_eq!(bits(model.state_dict()), before);
            step.launch(&[&x[3]]).unwrap();
            assert_close(&bits(model.state_dict()), &after_one_update(&[&x[2], &x[3]]));
        }
    }
}
