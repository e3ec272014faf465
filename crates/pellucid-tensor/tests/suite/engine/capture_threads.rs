//! `capture`: other threads that use gradients and write tensors while a step is recorded.

use super::programs::wave;
use pellucid_tensor::{
    BackwardOptions, DType, Error, GradOptions, Result, Tensor, capture, capture_local, grad_one, lazy, no_grad, trace,
};
use std::cell::Cell;
use std::thread;

/// Runs `f` on a new thread until it ends.
fn on_new_thread<R: Send>(f: impl FnOnce() -> R + Send) -> R {
    thread::scope(|scope| scope.spawn(f).join().unwrap())
}

/// Returns a leaf of two ones.
fn weight() -> Tensor {
    Tensor::ones([2], DType::F32).requires_grad_(true)
}

fn constant(value: f64) -> Tensor {
    Tensor::full([2], value, DType::F32)
}

/// Returns the elements of the gradient.
fn gradient(w: &Tensor) -> Option<Vec<f32>> {
    w.grad().map(|gradient| gradient.to_vec::<f32>())
}

/// Adds `value` to the gradient of each element by a backward pass.
fn add_gradient(w: &Tensor, value: f64) {
    (w * value).sum(..).backward();
}

/// Calls `f` in the first recording only.
fn in_first_recording(called: &mut bool, f: impl FnOnce()) {
    if !std::mem::replace(called, true) {
        f();
    }
}

#[test]
fn a_gradient_of_another_thread_during_a_recording_is_kept() {
    let (w, x) = (weight(), constant(1.0));
    let mut called = false;
    let step = |i: &[Tensor]| {
        w.zero_grad();
        in_first_recording(&mut called, || {
            on_new_thread(|| {
                add_gradient(&w, 3.0);
                assert_eq!(gradient(&w), Some(vec![3.0; 2]));
                add_gradient(&w, 4.0);
            });
        });
        assert!(w.grad().is_none(), "the step must not see gradients of other threads");
        i[0].sum(..)
    };
    drop(capture(step, &[&x]).unwrap());
    assert!(called);
    assert_eq!(gradient(&w), Some(vec![7.0; 2]));
}

/// The gradient is another tensor after the backward pass of the other thread, as between two launches, so the launch
/// records the step again.
#[test]
fn a_launch_adds_to_a_gradient_that_changed_during_the_recording() {
    let (w, x) = (weight(), constant(1.0));
    w.set_grad(Some(constant(0.0)));
    let mut called = false;
    let step = |i: &[Tensor]| {
        add_gradient(&(&w * &i[0]), 1.0);
        in_first_recording(&mut called, || on_new_thread(|| add_gradient(&w, 3.0)));
        i[0].sum(..)
    };
    let mut step = capture(step, &[&x]).unwrap();
    assert_eq!(gradient(&w), Some(vec![3.0; 2]));
    for launch in 1..=4 {
        assert_eq!(step.launch(&[&x]).unwrap().item::<f32>(0), 2.0);
        assert_eq!(gradient(&w), Some(vec![3.0 + launch as f32; 2]), "launch {launch}");
    }
    assert_eq!((step.cache_stats().hits, step.cache_stats().misses), (3, 1));
}

#[test]
fn another_thread_reads_the_gradient_from_before_the_step() {
    let (w, x) = (weight(), constant(2.0));
    w.set_grad(Some(constant(7.0)));
    let step = |i: &[Tensor]| {
        w.zero_grad();
        add_gradient(&(&w * &i[0]), 1.0);
        assert!(w.grad().is_some_and(|gradient| gradient.try_to_vec::<f32>().is_err()), "a recording has no values");
        assert_eq!(on_new_thread(|| gradient(&w)), Some(vec![7.0; 2]));
    };
    let mut step = capture(step, &[&x]).unwrap();
    assert_eq!(gradient(&w), Some(vec![7.0; 2]));
    step.launch(&[&x]).unwrap();
    assert_eq!(gradient(&w), Some(vec![2.0; 2]));
}

/// Removing or replacing a gradient during the recording has the same effect as doing so between the recording and the
/// next launch.
#[test]
fn another_thread_replaces_the_gradient_of_a_step() {
    for (replaced, expected) in [(None, None), (Some(constant(5.0)), Some(vec![5.0; 2]))] {
        let (w, x) = (weight(), constant(1.0));
        w.set_grad(Some(constant(7.0)));
        let mut called = false;
        let step = |i: &[Tensor]| {
            add_gradient(&(&w * &i[0]), 1.0);
            in_first_recording(&mut called, || on_new_thread(|| w.set_grad(replaced.clone())));
        };
        let mut step = capture(step, &[&x]).unwrap();
        assert_eq!(gradient(&w), expected);
        match step.launch(&[&x]).err() {
            None => assert_eq!(gradient(&w), Some(vec![6.0; 2])),
            // The gradient would be empty before the step and set after it.
            error => assert!(matches!(error, Some(Error::NotAFixedPoint { .. })) && expected.is_none(), "{error:?}"),
        }
        w.set_grad(Some(constant(1.0)));
        step.launch(&[&x]).unwrap();
        assert_eq!(gradient(&w), Some(vec![2.0; 2]));
    }
}

/// Debug builds verify a step before its second and third launch. The second recording starts with the gradients of the
/// first one, even if another thread replaces a gradient in the meantime.
#[test]
fn verify_does_not_depend_on_gradients_of_other_threads() {
    let (w, v, x) = (weight(), weight(), constant(1.0));
    w.set_grad(Some(constant(0.0)));
    v.set_grad(Some(constant(0.0)));
    let step = |i: &[Tensor]| {
        // The first slot that the step uses belongs to `v`; the gradient of `w` is replaced before its first use.
        add_gradient(&(&v * &i[0]), 1.0);
        on_new_thread(|| w.set_grad(Some(constant(10.0))));
        add_gradient(&(&w * &i[0]), 1.0);
    };
    let mut step = capture(step, &[&x]).unwrap();
    assert_eq!(step.verify(), Ok(()));
    step.launch(&[&x]).unwrap();
    assert_eq!(step.verify(), Ok(()));
    // A replaced gradient is not a changed host value.
    w.set_grad(None);
    assert_eq!(step.verify(), Ok(()));
}

/// Results that retain their gradients, hooks, and passes that start with a set gradient.
#[test]
fn other_slots_of_a_step_are_its_own() {
    let (w, x) = (weight(), constant(3.0));
    let y = &w * 2.0;
    y.retain_grad();
    y.set_grad(Some(constant(5.0)));
    w.set_grad(Some(constant(0.0)));
    let handle = w.register_hook(|gradient| Some(gradient * 10.0));
    let mut called = false;
    let step = |i: &[Tensor]| {
        let mine = y.grad().unwrap() * &i[0];
        y.set_grad(Some(mine));
        y.try_backward_with(BackwardOptions { retain_graph: true, ..Default::default() })?;
        in_first_recording(&mut called, || {
            on_new_thread(|| {
                assert_eq!((gradient(&y), gradient(&w)), (Some(vec![5.0; 2]), Some(vec![0.0; 2])));
                // The pass of this thread does not start with the gradient that the step has set.
                y.backward_with(BackwardOptions { retain_graph: true, ..Default::default() });
                assert_eq!(gradient(&w), Some(vec![100.0; 2]));
                w.set_grad(Some(constant(0.0)));
            });
        });
        Ok(w.grad().unwrap() * 1.0)
    };
    let mut step = capture(step, &[&x]).unwrap();
    assert_eq!((gradient(&y), gradient(&w)), (Some(vec![5.0; 2]), Some(vec![0.0; 2])));
    assert_eq!(step.launch(&[&x]).unwrap().to_vec::<f32>(0), [300.0; 2]);
    assert_eq!((gradient(&y), gradient(&w)), (Some(vec![15.0; 2]), Some(vec![300.0; 2])));
    handle.remove();
}

#[test]
fn a_trace_changes_no_gradient_of_another_thread() {
    let w = weight();
    w.set_grad(Some(constant(7.0)));
    trace(|| {
        w.zero_grad();
        add_gradient(&w, 1.0);
        assert_eq!(on_new_thread(|| gradient(&w)), Some(vec![7.0; 2]));
        on_new_thread(|| add_gradient(&w, 1.0));
        Ok(())
    })
    .unwrap();
    assert_eq!(gradient(&w), Some(vec![8.0; 2]));
}

/// A scope of `lazy` computes values, so all threads see its gradients.
#[test]
fn gradients_of_a_lazy_scope_and_of_other_threads_add_up() {
    let w = weight();
    lazy(|| {
        add_gradient(&w, 2.0);
        on_new_thread(|| {
            add_gradient(&w, 3.0);
            assert_eq!(gradient(&w), Some(vec![5.0; 2]));
        });
    });
    assert_eq!(gradient(&w), Some(vec![5.0; 2]));
}

/// A tensor of a recording has no values for another thread, which must not run the kernels of the step.
#[test]
fn another_thread_cannot_run_a_recording() {
    let x = wave([3]);
    let step = |i: &[Tensor]| {
        let y = &i[0] * 2.0;
        let rejected = on_new_thread(|| y.try_to_vec::<f32>().err());
        assert!(matches!(rejected, Some(Error::Poisoned { .. })), "{rejected:?}");
        y + 1.0
    };
    let mut step = capture(step, &[&x]).unwrap();
    assert_eq!(step.launch(&[&x]).unwrap().to_vec::<f32>(0), (&x * 2.0 + 1.0).to_vec::<f32>());
}

/// A recording saves no elements, so a write of another thread modifies no saved value.
#[test]
fn another_thread_may_write_while_a_step_is_recorded() {
    let (w, x) = (wave([3]), wave([3]));
    let step = |i: &[Tensor]| {
        let x = i[0].detach().requires_grad_(true);
        let y = (&x * &w).sin() * &w;
        on_new_thread(|| w.copy_(&(&w * 2.0)));
        grad_one(&y.sum(..), &x, GradOptions::default())
    };
    let mut step = capture(step, &[&x]).unwrap();
    for launch in 1..=4 {
        let launched = step.launch(&[&x]).unwrap().to_vec::<f32>(0);
        // Debug builds record the step again before launches 2 and 3.
        let leaf = x.detach().requires_grad_(true);
        let y = (&leaf * &w).sin() * &w;
        let expected = grad_one(&y.sum(..), &leaf, GradOptions::default()).unwrap();
        assert_eq!(launched, expected.to_vec::<f32>(), "launch {launch}");
    }
}

/// A recorded write of the step itself modifies a saved value, as in eager mode, with and without a concurrent writer.
#[test]
fn a_write_of_the_step_modifies_its_saved_values() {
    let x = wave([3]);
    for (has_writer, saves_later) in [(false, false), (true, false), (false, true), (true, true)] {
        let w = wave([3]);
        let work = |x: &Tensor, write: &dyn Fn()| -> Result<Tensor> {
            let x = x.detach().requires_grad_(true);
            let early = &x * &w;
            write();
            {
                let _off = no_grad();
                w.copy_(&(&w + 1.0));
            }
            write();
            let late = &x * &w;
            write();
            grad_one(&(if saves_later { late } else { early }).sum(..), &x, GradOptions::default())
        };
        let beside = || {
            if has_writer {
                on_new_thread(|| w.copy_(&(&w + 0.0)));
            }
        };
        let (eager, captured) = (work(&x, &|| ()), capture(|i| work(&i[0], &beside), &[&x]));
        let is_modified = |error: &Error| matches!(error, Error::SavedValueModified { node: "mul", .. });
        assert_eq!(eager.as_ref().err().is_some_and(is_modified), !saves_later);
        assert_eq!(captured.as_ref().err().is_some_and(is_modified), !saves_later, "{has_writer}");
        assert_eq!(captured.is_ok(), saves_later);
    }
}

/// A value that was saved before the recording is checked as in eager mode.
#[test]
fn a_graph_from_before_the_step_notices_writes() {
    let w = wave([3]);
    let graph = || {
        let x = wave([3]).requires_grad_(true);
        (x.clone(), (&x * &w).sum(..))
    };
    let options = || GradOptions { retain_graph: true, ..Default::default() };
    let (x, y) = graph();
    let is_written = Cell::new(false);
    let mut step = capture_local(
        |_| {
            if is_written.get() {
                w.copy_(&(&w + 1.0));
            }
            grad_one(&y, &x, options())
        },
        &[],
    )
    .unwrap();
    assert_eq!(step.launch(&[]).unwrap().to_vec::<f32>(0), w.to_vec::<f32>());
    is_written.set(true);
    assert!(matches!(step.verify(), Err(Error::SavedValueModified { .. })), "the step writes the saved value");
    let (x, y) = graph();
    w.copy_(&(&w + 1.0));
    let rejected = capture(|_| grad_one(&y, &x, options()), &[]).err();
    assert!(matches!(rejected, Some(Error::SavedValueModified { .. })), "{rejected:?}");
}
