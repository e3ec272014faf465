//! Hooks receive the complete gradient, may replace it, and can be removed.

use crate::support::{leaf, number, panic_of, slope};
use pellucid_tensor::{BackwardOptions, Error, GradOptions, Tensor, grad};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

#[test]
fn a_hook_sees_the_sum_of_all_paths_once() {
    let x = number(3.0);
    let seen = Arc::new(Mutex::new(vec![]));
    let list = seen.clone();
    x.register_hook(move |g| {
        list.lock().unwrap().push(g.item::<f64>());
        None
    });
    (x.square() + &x * 4.0).backward();
    assert_eq!(*seen.lock().unwrap(), [10.0]);
    x.sin().backward();
    assert_eq!(seen.lock().unwrap().len(), 2, "the hook must run once in each pass, with the gradient of this pass");
    assert!((seen.lock().unwrap()[1] - 3f64.cos()).abs() < 1e-15);
}

/// A tensor that a hook keeps or returns is not written to by later accumulation.
#[test]
fn tensors_of_a_hook_are_not_written_to() {
    let (x, kept) = (number(3.0), Arc::new(Mutex::new(vec![])));
    let late = &x * 1.0;
    let list = kept.clone();
    late.register_hook(move |g| {
        let replaced = g * 2.0;
        list.lock().unwrap().extend([g.clone(), replaced.clone()]);
        Some(replaced)
    });
    let list = kept.clone();
    x.register_hook(move |g| {
        list.lock().unwrap().push(g.clone());
        None
    });
    // x receives the tensor that `late`'s hook returns, and then the gradient of its own square.
    let early = &x * &x;
    (late + early).backward();
    assert_eq!(slope(&x), 8.0);
    (&x * &x).backward();
    assert_eq!(slope(&x), 14.0);
    let kept: Vec<f64> = kept.lock().unwrap().iter().map(Tensor::item).collect();
    assert_eq!(kept, [1.0, 2.0, 8.0, 6.0]);
}

#[test]
fn a_hook_replaces_the_gradient_and_several_run_in_order() {
    let x = number(3.0);
    x.register_hook(|g| Some(g * 10.0));
    x.register_hook(|g| Some(g + 1.0));
    x.square().backward();
    assert_eq!(slope(&x), 61.0);
}

#[test]
fn a_hook_can_be_removed() {
    let x = number(3.0);
    let first = x.register_hook(|g| Some(g * 10.0));
    let second = x.register_hook(|g| Some(g + 1.0));
    first.remove();
    x.square().backward();
    assert_eq!(slope(&x), 7.0);
    second.remove();
    x.zero_grad();
    x.square().backward();
    assert_eq!(slope(&x), 6.0);
    // The hook of a dropped tensor can be removed too.
    let handle = number(1.0).register_hook(|_| None);
    handle.remove();
}

#[test]
fn a_hook_of_a_result_outlives_its_handle() {
    let x = number(2.0);
    let count = Arc::new(AtomicUsize::new(0));
    let calls = count.clone();
    let z = {
        let y = x.square();
        y.register_hook(move |g| {
            calls.fetch_add(1, Ordering::Relaxed);
            Some(g * 3.0)
        });
        y.sin()
    };
    z.backward();
    assert_eq!(count.load(Ordering::Relaxed), 1);
    assert!((slope(&x) - 3.0 * 4.0 * 4f64.cos()).abs() < 1e-13);
}

#[test]
fn a_hook_sees_gradients_of_grad_and_of_the_next_order() {
    let x = number(2.0);
    let y = x.square();
    y.register_hook(|g| Some(g * 2.0));
    let z = y.square();
    let got = grad(&[&z], &[&x], GradOptions { retain_graph: true, ..Default::default() }).unwrap();
    assert_eq!(got[0].item::<f64>(), 2.0 * 2.0 * 4.0 * 4.0, "2·z′(y)·y′(x)");
    z.backward_with(BackwardOptions { create_graph: true, ..Default::default() });
    let first = x.grad().unwrap();
    x.zero_grad();
    first.backward();
    // first = 2·2y·2x = 8x³; the hook of y also runs in the second pass, which reaches y through 2y.
    assert!(slope(&x) > 0.0);
}

#[test]
fn a_wrong_hook_is_a_typed_error() {
    let x = leaf([1.0, 2.0]);
    x.register_hook(|_| Some(Tensor::from(1.0)));
    assert!(matches!(x.square().try_backward_with(BackwardOptions::default()), Err(Error::ShapeMismatch { .. })));
    assert!(x.grad().is_none());
    assert!(panic_of(|| Tensor::from([1.0]).register_hook(|_| None)).contains("does not require a gradient"));
}

#[test]
fn only_a_tracked_tensor_retains_its_gradient() {
    let (x, constant) = (leaf([1.0, 2.0]), Tensor::from([1.0]));
    let text = panic_of(|| constant.retain_grad());
    assert!(text.starts_with("retain_grad: the tensor of shape [1] does not require a gradient"), "{text}");
    assert!(!constant.retains_grad(), "a failed call must change nothing");
    assert!(panic_of(|| x.detach().exp().retain_grad()).contains("detach()"));
    x.retain_grad();
    let y = x.exp();
    y.retain_grad();
    assert!(x.retains_grad() && y.retains_grad());
    // A leaf that requires no gradient yet may become a result by a write in place.
    constant.set_retain_grad(true);
    assert!(constant.retains_grad());
}
