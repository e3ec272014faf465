//! `capture`: operations that a step must not contain, and the state after an error.

use super::programs::wave;
use crate::support::{bits, payload_of};
use pellucid_tensor::ops::{self, CtcLossOptions};
use pellucid_tensor::{
    DType, Error, Generator, Result, Tensor, autocast, autocast_dtype, capture, capture_local, is_grad_enabled, lazy,
    manual_seed, no_grad, unwrap,
};
use std::cell::{Cell, RefCell};
use std::slice::from_ref;

/// Computes a CTC loss with the labels in one list, or as a matrix.
#[track_caller]
fn ctc(labels: &Tensor) -> Result<Tensor> {
    let steps = Tensor::zeros([4, 2, 3], DType::F32).log_softmax(-1);
    let lengths = Tensor::from([4i64, 4]);
    ops::ctc_loss(&steps, labels, &lengths, &Tensor::from([1i64, 2]), CtcLossOptions::default())
}

/// An operation that needs values: its name, its line, the alternative that the error names, and the call.
type Read = (&'static str, u32, &'static str, fn(&Tensor, &Tensor));

const READS: [Read; 19] = [
    ("item", line!(), "where_", |x, _| assert!(x.sum(..).item::<f32>() > 0.0)),
    ("item", line!(), "where_", |x, _| assert!(unwrap(x.sum(..).try_item::<f64>()) > 0.0)),
    ("to_vec", line!(), "where_", |x, _| drop(x.to_vec::<f32>())),
    ("to_vec", line!(), "return the tensor", |x, _| drop(unwrap(x.try_to_vec::<i64>()))),
    ("to_bytes", line!(), "return the tensor", |x, _| drop(unwrap(x.try_to_bytes()))),
    ("item", line!(), "where_", |x, _| assert!(x.gt(0.0).all(..).item::<bool>())),
    ("nonzero", line!(), "masked_sum", |x, _| drop(unwrap(ops::nonzero(x)))),
    ("flatnonzero", line!(), "masked_sum", |x, _| drop(x.flatnonzero())),
    ("index", line!(), "where_", |x, _| drop(x.i(x.gt(0.0)))),
    ("index", line!(), "where_", |x, _| drop(unwrap(x.try_i(x.gt(0.0))))),
    ("set", line!(), "masked_fill", |x, _| x.set(x.gt(0.0), [1.0, 2.0, 3.0])),
    ("masked_select", line!(), "where_", |x, _| drop(x.masked_select(&x.gt(0.0)))),
    ("masked_select", line!(), "where_", |x, _| drop(unwrap(ops::masked_select(x, &x.gt(0.0))))),
    ("unique", line!(), "sort", |_, n| drop(n.unique(None))),
    ("unique_consecutive", line!(), "sort", |x, _| drop(unwrap(ops::unique_consecutive(x, Some(0))))),
    ("bincount", line!(), "scatter_add_along", |_, n| drop(n.bincount(None, 0))),
    ("bincount", line!(), "scatter_add_along", |_, n| drop(unwrap(ops::bincount(n, None, 9)))),
    ("ctc_loss", line!(), "[N, S]", |_, n| drop(unwrap(ctc(n)))),
    ("legendre_p", line!(), "outside", |x, n| drop(x.legendre_p(n))),
];

#[test]
fn reads_of_values_name_operation_line_and_alternative() {
    let (x, n, state) = (wave([3]), Tensor::from([1i64, 1, 2]), wave([3]));
    let before = bits(from_ref(&state));
    for (op, line, instead, read) in READS {
        let step = |inputs: &[Tensor]| {
            state.copy_(&(&state + &inputs[0]));
            read(&inputs[0], &inputs[1]);
        };
        match capture(step, &[&x, &n]).err() {
            Some(Error::ReadInCapture { op: named, location, help }) => {
                assert_eq!((named, location.file(), location.line()), (op, file!(), line));
                assert!(help.contains(instead), "{op}: {help}");
            }
            other => panic!("{op}, line {line}: {other:?}"),
        }
    }
    assert_eq!(bits(&[state]), before);
}

/// Printing never fails: a tensor without values prints a placeholder.
#[test]
fn a_tensor_is_printed_without_values() {
    let text = RefCell::new(String::new());
    let step = |inputs: &[Tensor]| {
        text.replace(format!("{} {:?}", inputs[0], &inputs[0] * 2.0));
        inputs[0].clone()
    };
    drop(capture_local(step, &[&wave([3, 2])]).unwrap());
    let text = text.into_inner();
    assert_eq!(text.matches("no values yet: shape [3, 2], f32").count(), 2, "{text}");
}

/// The alternatives that the errors name can be captured.
#[test]
fn the_named_alternatives_can_be_captured() {
    let ways: [fn(&Tensor, &Tensor) -> Tensor; 7] = [
        |x, _| ops::where_(&x.gt(0.0), x, 0.0).unwrap(),
        |x, _| x.masked_fill(&x.gt(0.0), -1.0),
        |x, _| x.masked_sum(&x.gt(0.0), ..),
        |_, n| n.sort(0, false).0,
        |_, n| ops::scatter_add_along(&Tensor::ones([3], DType::I64), n, 0, [4]).unwrap(),
        |_, n| n.one_hot(4).sum(0),
        |_, n| unwrap(ctc(&ops::stack(&[n, n], 0).unwrap())),
    ];
    for (k, way) in ways.into_iter().enumerate() {
        let start = (wave([3]), Tensor::from([1i64, 1, 2]));
        let mut step = capture(|i| way(&i[0], &i[1]), &[&start.0, &start.1]).unwrap();
        for n in [[1i64, 1, 2], [2, 1, 1]] {
            let (x, n) = (wave([3]) * n[0] as f64, Tensor::from(n));
            let found = step.launch(&[&x, &n]).unwrap().to_tensor(0);
            assert_eq!(
                bits(&[found]),
                bits(&[way(&x, &n)]),
                "the captured result of alternative {k} differs from the eager one"
            );
        }
    }
}

/// A parameter and a generator, and the bits of both and of the gradient.
struct ParameterState {
    w: Tensor,
    generator: Generator,
}

impl ParameterState {
    fn new() -> ParameterState {
        ParameterState { w: wave([3]).requires_grad_(true), generator: Generator::new(4) }
    }

    fn bits(&self) -> Vec<Vec<u8>> {
        let state = [self.w.detach(), self.generator.state().clone(), Generator::default().state().clone()];
        bits(&state.into_iter().chain(self.w.grad()).collect::<Vec<_>>())
    }

    /// Draws, computes a gradient, writes to the parameter, changes the modes of the thread, and calls `last`.
    fn work(&self, x: &Tensor, last: impl FnOnce()) -> Tensor {
        let noise = ops::rand_with([3], DType::F32, &self.generator).unwrap().dropout(0.5);
        (&self.w * x * noise).backward();
        let _off = no_grad();
        let _half = autocast(DType::BF16);
        self.w.copy_(&(&self.w - self.w.grad().unwrap()));
        last();
        self.w.zero_grad();
        self.w.detach()
    }
}

#[track_caller]
fn assert_modes_are_restored() {
    assert!(is_grad_enabled() && autocast_dtype().is_none());
    assert_eq!((Tensor::from([1.0f32]) + 1.0).item::<f32>(), 2.0, "kernels must run eagerly again");
}

#[test]
fn a_panic_propagates_and_restores_all_state() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    manual_seed(3);
    let (state, x) = (ParameterState::new(), wave([3]));
    let before = state.bits();
    let caught = payload_of(|| capture(|i| state.work(&i[0], || panic!("mine")), &[&x]).map(drop));
    assert_eq!(caught.downcast_ref::<&str>(), Some(&"mine"));
    assert_eq!(state.bits(), before);
    assert_modes_are_restored();
    // An error of an operation restores the same state and is returned.
    let rejected = capture(|i| state.work(&i[0], || drop(x.reshape(7))), &[&x]).err();
    assert!(matches!(rejected, Some(Error::ShapeMismatch { op: "reshape", .. })));
    assert_eq!(state.bits(), before);
    assert_modes_are_restored();
}

#[test]
fn a_panic_while_a_step_is_recorded_again_leaves_the_step_usable() {
    let (state, x, bad) = (ParameterState::new(), wave([3]), Cell::new(false));
    let mut step = capture_local(|i| state.work(&i[0].i(..3), || assert!(!bad.get(), "mine")), &[&x]).unwrap();
    step.launch(&[&x]).unwrap();
    bad.set(true);
    let before = state.bits();
    payload_of(|| step.launch(&[&wave([5])]).map(drop));
    payload_of(|| step.verify());
    assert_eq!(state.bits(), before);
    assert_modes_are_restored();
    bad.set(false);
    step.launch(&[&x]).unwrap();
    step.launch(&[&wave([5])]).unwrap();
    assert_ne!(state.bits(), before);
}

#[test]
fn a_step_cannot_be_launched_or_verified_inside_another() {
    let (x, total) = (wave([3]), Tensor::zeros([3], DType::F32));
    let inner = RefCell::new(capture(|i| total.copy_(&(&total + &i[0])), &[&x]).unwrap());
    let launched = RefCell::new(None);
    let mut outer = capture_local(
        |i| {
            launched.replace(inner.borrow_mut().launch(&[&i[0]]).err());
            &i[0] * 2.0
        },
        &[&x],
    )
    .unwrap();
    assert!(matches!(launched.take(), Some(Error::InvalidArgument { op: "launch", .. })));
    assert_eq!(outer.launch(&[&x]).unwrap().to_vec::<f32>(0), (&x * 2.0).to_vec::<f32>());
    assert_eq!(total.to_vec::<f32>(), [0.0; 3]);
    inner.borrow_mut().launch(&[&x]).unwrap();
    assert_eq!(total.to_vec::<f32>(), x.to_vec::<f32>());
}

/// A step may be captured and launched inside a lazy scope. Deferred values that it needs are computed first.
#[test]
fn a_step_can_be_captured_inside_lazy_work() {
    let run = |captured: bool| {
        let (x, w) = (wave([3]) * 2.0, wave([3]) + 1.0);
        let work = |x: &Tensor| {
            w.copy_(&(&w + x));
            &w * 3.0
        };
        if !captured {
            return vec![work(&x), work(&x), &w + 0.0];
        }
        let mut step = capture(|i| work(&i[0]), &[&x]).unwrap();
        let mut launch = || step.launch(&[&x]).unwrap().to_tensor(0);
        let (first, second) = (launch(), launch());
        drop(step);
        vec![first, second, &w + 0.0]
    };
    assert_eq!(bits(&lazy(|| run(true))), bits(&run(false)));
}

/// The state after launches with these indices, eager and captured. Indices out of bounds are rejected.
fn states_after(step: impl Fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>, launches: &[i64]) -> (Vec<f32>, Vec<f32>) {
    let x = Tensor::from([[1.0f32, 2.0], [3.0, 4.0]]);
    let index = |i: i64| Tensor::from([0, i]);
    let (eager, state) = (Tensor::from([0.0f32]), Tensor::from([0.0f32]));
    let mut captured = capture_local(|v: &[Tensor]| unwrap(step(&v[0], &v[1], &state)), &[&x, &index(0)]).unwrap();
    for &i in launches {
        let rejected = step(&x, &index(i), &eager).is_err();
        assert_eq!(rejected, i > 1, "the eager call must be rejected only for an index above 1, here {i}");
        assert_eq!(
            captured.launch(&[&x, &index(i)]).is_err(),
            rejected,
            "launch and eager call must agree for index {i}"
        );
    }
    (eager.to_vec(), state.to_vec())
}

#[test]
fn a_rejected_launch_leaves_the_state_as_an_eager_error_does() {
    let launches = [1, 9, 0, 7, 1];
    // The write to the state comes after the kernel that rejects the index. The second step also computes a gradient,
    // whose scatter kernel has the same index.
    let (eager, state) = states_after(
        |x, index, state| {
            let y = ops::index_select(x, 0, index)?;
            state.copy_(&(state + 1.0));
            Ok(y)
        },
        &launches,
    );
    assert_eq!((&state, &state), (&eager, &vec![3.0]));
    let (eager, state) = states_after(
        |x, index, state| {
            let x = x.detach().requires_grad_(true);
            let y = ops::index_select(&x, 0, index)?;
            (&y * &y).sum(..).backward();
            let gradient = x.grad().expect("x must have a gradient, because the loss depends on x");
            state.copy_(&(state + gradient.sum(..)));
            Ok(gradient)
        },
        &launches,
    );
    assert_eq!(state, eager);
    // The write to the state comes before the kernel that rejects the index.
    let (eager, state) = states_after(
        |x, index, state| {
            state.copy_(&(state + 1.0));
            ops::take_along_axis(x, &ops::unsqueeze(index, 1)?, 1)
        },
        &launches,
    );
    assert_eq!((&state, &state), (&eager, &vec![5.0]));
}

#[test]
fn a_step_may_return_an_error() {
    let (x, total) = (Tensor::from([1.0f32, 2.0]), Tensor::from([0.0f32, 0.0]));
    let limit = Cell::new(3);
    let step = |inputs: &[Tensor]| {
        total.copy_(&ops::add(&total, 1.0)?);
        if inputs[0].size() > limit.get() {
            return Err(Error::InvalidArgument { op: "step", reason: "too many elements".into() });
        }
        Ok((ops::matmul(&inputs[0], &inputs[0])?, inputs[0].clone()))
    };
    let long = Tensor::from([1.0f32, 2.0, 3.0, 4.0]);
    let rejected = capture_local(step, &[&long]).expect_err("the step returns an error");
    assert_eq!(rejected.operation(), Some("step"));
    let mut captured = capture_local(step, &[&x]).unwrap();
    assert_eq!(captured.launch(&[&x]).unwrap().to_vec::<f32>(0), [5.0]);
    assert_eq!(captured.launch(&[&long]).err().and_then(|error| error.operation()), Some("step"));
    assert_eq!(total.to_vec::<f32>(), [1.0, 1.0], "a rejected recording must not write");
    limit.set(4);
    assert_eq!(captured.launch(&[&long]).unwrap().to_vec::<f32>(0), [30.0]);
    assert_eq!(captured.launch(&[&x]).unwrap().to_vec::<f32>(0), [5.0]);
    assert_eq!(total.to_vec::<f32>(), [3.0, 3.0]);
    // The operations of a rejected step have no values.
    let kept = RefCell::new(None);
    let failing = |inputs: &[Tensor]| -> Result<Tensor> {
        kept.replace(Some(&inputs[0] * 2.0));
        ops::reshape(&inputs[0], [5])
    };
    assert!(matches!(
        capture_local(failing, &[&x]).err(),
        Some(Error::ShapeMismatch { .. } | Error::InvalidArgument { .. })
    ));
    let inside = kept.take().expect("the step stores a tensor");
    assert!(matches!(inside.try_to_vec::<f32>(), Err(Error::Poisoned { .. })));
}
