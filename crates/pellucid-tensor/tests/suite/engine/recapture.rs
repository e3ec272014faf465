//! `capture`: every launch checks the state on which a step depends in addition to its inputs: tensors that its closure
//! replaces, host flags, and `requires_grad`.

use super::programs::wave;
use crate::support::bits;
use pellucid_tensor::{CacheStats, CaptureOptions, Captured, DType, HostFlag, Tensor, capture, capture_local, no_grad};
use std::cell::{Cell, RefCell};

/// Launches until further launches record nothing.
fn launch_until_stable(mut launch: impl FnMut()) {
    // Debug builds record again before launches 2 and 3, to compare.
    (0..4).for_each(|_| launch());
}

#[test]
fn a_launch_notices_a_replaced_tensor() {
    let (x, scale, total) = (wave([3]), RefCell::new(wave([3])), RefCell::new(Tensor::zeros([3], DType::F32)));
    let work = |i: &[Tensor]| {
        let total = total.borrow();
        total.copy_(&(&*total + &i[0] * &*scale.borrow()));
    };
    let mut step = capture_local(work, &[&x]).unwrap();
    launch_until_stable(|| assert!(step.launch(&[&x]).unwrap().is_empty()));
    assert_eq!(step.cache_stats(), CacheStats { hits: 4, misses: 0, len: 1 });
    // The test first replaces a tensor that the step reads, then one that the step writes.
    scale.replace(Tensor::full([3], 2.0, DType::F32));
    let before = total.borrow().copy();
    step.launch(&[&x]).unwrap();
    assert_eq!(bits(&[total.borrow().clone()]), bits(&[&before + &x * 2.0]));
    total.replace(Tensor::zeros([3], DType::F32));
    step.launch(&[&x]).unwrap();
    assert_eq!(bits(&[total.borrow().clone()]), bits(&[Tensor::zeros([3], DType::F32) + &x * 2.0]));
    step.launch(&[&x]).unwrap();
    assert_eq!(step.cache_stats(), CacheStats { hits: 5, misses: 2, len: 1 });
}

/// If two steps hold one tensor, neither counts the handles of the other as handles of the caller.
#[test]
fn a_launch_notices_a_replaced_tensor_that_several_steps_hold() {
    let (x, w) = (wave([3]), RefCell::new(wave([3])));
    let mut first = capture_local(|i| &i[0] * &*w.borrow(), &[&x]).unwrap();
    let mut second = capture_local(|i| [&i[0] + &*w.borrow(), w.borrow().clone()], &[&x]).unwrap();
    launch_until_stable(|| {
        assert_eq!((first.launch(&[&x]).unwrap().len(), second.launch(&[&x]).unwrap().len()), (1, 2))
    });
    w.replace(Tensor::full([3], 5.0, DType::F32));
    assert_eq!(bits(&[first.launch(&[&x]).unwrap().to_tensor(0)]), bits(&[&x * 5.0]));
    assert_eq!(bits(&[second.launch(&[&x]).unwrap().to_tensor(0)]), bits(&[&x + 5.0]));
    // A step that is dropped releases its handles.
    drop(second);
    w.replace(Tensor::full([3], 7.0, DType::F32));
    assert_eq!(bits(&[first.launch(&[&x]).unwrap().to_tensor(0)]), bits(&[&x * 7.0]));
}

/// A tensor that only the step has held was not replaced.
#[test]
fn a_tensor_that_only_the_step_holds_does_not_cause_recording() {
    let (x, runs) = (wave([3]), Cell::new(0));
    let work = |i: &[Tensor]| {
        runs.set(runs.get() + 1);
        &i[0] * pellucid_tensor::eager(|| wave([3]) * 2.0)
    };
    let mut step = capture_local(work, &[&x]).unwrap();
    step.launch(&[&x]).unwrap();
    assert_eq!((runs.get(), step.cache_stats().misses), (1, 0));
}

#[test]
fn a_host_flag_has_a_recording_for_each_value() {
    let (x, branch, runs) = (wave([3]), HostFlag::new(0), Cell::new(0));
    let work = |x: &Tensor| match branch.get() {
        0 => x.sin(),
        1 => x.cos(),
        _ => x.exp(),
    };
    let mut step = capture_local(
        |i| {
            runs.set(runs.get() + 1);
            work(&i[0])
        },
        &[&x],
    )
    .unwrap();
    launch_until_stable(|| assert_eq!(step.launch(&[&x]).unwrap().len(), 1));
    let recorded = runs.get();
    for value in [1, 0, 2, 1, 0, 2, 2] {
        branch.set(value);
        assert_eq!(bits(&[step.launch(&[&x]).unwrap().to_tensor(0)]), bits(&[work(&x)]), "{value}");
    }
    assert_eq!((step.cache_stats().misses, step.cache_stats().len, runs.get() - recorded), (2, 3, 2));
    // A clone of a flag is independent of the flag.
    let other = branch.clone();
    other.set(1);
    assert_eq!((branch.get(), other.get()), (2, 1));
}

/// A flag that the step itself sets is not part of the state that selects a recording.
#[test]
fn a_host_flag_that_the_step_sets_does_not_select_a_recording() {
    let (x, branch) = (wave([3]), HostFlag::new(0));
    let work = |i: &[Tensor]| {
        let before = branch.replace(1);
        let y = if branch.get() == 1 { i[0].sin() } else { i[0].cos() };
        branch.set(before);
        y
    };
    let mut step = capture(work, &[&x]).unwrap();
    for value in [0, 1, 2] {
        branch.set(value);
        assert_eq!(bits(&[step.launch(&[&x]).unwrap().to_tensor(0)]), bits(&[x.sin()]));
    }
    assert_eq!((step.cache_stats().misses, branch.get()), (0, 2));
}

#[test]
fn only_requires_grad_of_tensors_of_the_step_matters() {
    let (x, w, runs) = (wave([3]), wave([3]).requires_grad_(true), Cell::new(0));
    let work = |i: &[Tensor]| {
        runs.set(runs.get() + 1);
        w.zero_grad();
        let loss = (&i[0] * &w).square().sum(..);
        if loss.requires_grad() {
            loss.backward();
            let _off = no_grad();
            w.copy_(&(&w - w.grad().unwrap()));
        }
        w.zero_grad();
        loss.detach()
    };
    let mut step = capture_local(work, &[&x]).unwrap();
    launch_until_stable(|| assert_eq!(step.launch(&[&x]).unwrap().len(), 1));
    let recorded = runs.get();
    // A `requires_grad` change of a tensor that the step does not use records nothing.
    let other = wave([3]).requires_grad_(true);
    step.launch(&[&x]).unwrap();
    other.set_requires_grad(false).unwrap();
    step.launch(&[&x]).unwrap();
    assert_eq!(runs.get(), recorded);
    // A `requires_grad` change of a tensor of the step records the step again.
    w.set_requires_grad(false).unwrap();
    let before = w.to_vec::<f32>();
    step.launch(&[&x]).unwrap();
    assert_eq!(w.to_vec::<f32>(), before);
    w.set_requires_grad(true).unwrap();
    step.launch(&[&x]).unwrap();
    assert_ne!(w.to_vec::<f32>(), before);
}

/// Recordings are numbered, and `outputs` belongs to the latest launch, not to a recording that was only prepared.
#[test]
fn outputs_belong_to_the_latest_launch() {
    let (x, wide) = (Tensor::from([2.0f32]), Tensor::from([1.0f32, 3.0]));
    let options = CaptureOptions { max_recordings: 2, ..CaptureOptions::default() };
    let mut step = Captured::unrecorded(options, |inputs| inputs[0].square());
    assert_eq!((step.outputs().tensors().len(), step.recordings().len()), (0, 0));
    assert!(step.prepare(&[&x]).unwrap());
    assert_eq!(step.outputs().tensors().len(), 0);
    step.launch(&[&x]).unwrap();
    assert!(step.prepare(&[&wide]).unwrap());
    assert_eq!(step.outputs().to_vec::<f32>(0), [4.0]);
    assert_eq!(step.recordings().collect::<Vec<_>>(), [1, 2]);
    step.launch(&[&wide]).unwrap();
    assert!(!step.prepare(&[&x]).unwrap());
    assert_eq!(step.outputs().to_vec::<f32>(0), [1.0, 9.0]);
    assert_eq!(step.recordings().collect::<Vec<_>>(), [2, 1]);
    assert!(step.prepare(&[&Tensor::zeros([3], DType::F32)]).unwrap());
    assert_eq!(step.recordings().collect::<Vec<_>>(), [1, 3]);
    assert_eq!(step.outputs().tensors().len(), 0, "the recording that was launched last was dropped");
    step.drop_recordings();
    step.launch(&[&x]).unwrap();
    assert_eq!(step.recordings().collect::<Vec<_>>(), [4]);
}
