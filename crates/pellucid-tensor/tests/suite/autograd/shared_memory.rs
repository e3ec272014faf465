//! Tensors that share memory: operands of a write, gradients, and views created under `no_grad`.

use crate::support::{leaf, number};
use pellucid_tensor::{
    BackwardOptions, DType, Error, GradOptions, Tensor, capture, checkpoint, formula, grad, lazy, no_grad, ops, slice,
};

fn zeros<const N: usize>(shape: [usize; N]) -> Tensor {
    Tensor::zeros(shape, DType::F64)
}

fn recorded() -> BackwardOptions {
    BackwardOptions { create_graph: true, ..Default::default() }
}

#[test]
fn a_tensor_is_permuted_in_place_by_its_own_elements() {
    let reversed = || {
        let w = leaf([10.0, 20.0, 30.0, 40.0]);
        let x = &w * 1.0;
        x.set(Tensor::from([3i64, 2, 1, 0]), &x);
        (&x * Tensor::from([1.0, 10.0, 100.0, 1000.0])).sum(..).backward();
        (x, w.grad().unwrap())
    };
    let check = |(x, g): (Tensor, Tensor)| {
        assert_eq!(x.to_vec::<f64>(), [40.0, 30.0, 20.0, 10.0]);
        assert_eq!(g.to_vec::<f64>(), [1000.0, 100.0, 10.0, 1.0]);
    };
    check(reversed());
    check(lazy(reversed));
    let rows = Tensor::from([[1.0, 2.0], [3.0, 4.0]]);
    rows.set(Tensor::from([1i64, 0]), &rows);
    assert_eq!(rows.to_vec::<f64>(), [3.0, 4.0, 1.0, 2.0]);
    let numbers = Tensor::from([2i64, 0, 1]);
    numbers.set(&numbers, Tensor::from([7i64, 8, 9]));
    assert_eq!(numbers.to_vec::<i64>(), [8, 9, 7], "the index must be read before the write overwrites it");
    let mut step = capture(
        |_| {
            let x = leaf([10.0, 20.0, 30.0, 40.0]) * 1.0;
            x.set(Tensor::from([3i64, 2, 1, 0]), &x);
            x
        },
        &[],
    )
    .unwrap();
    assert_eq!(step.launch(&[]).unwrap().to_vec::<f64>(0), [40.0, 30.0, 20.0, 10.0]);
}

#[test]
fn recorded_gradients_of_two_leaves_share_no_memory() {
    let both = || {
        let (a, b) = (leaf([3.0, 4.0]), leaf([1.0, 1.0]));
        (&a + &b).square().sum(..).backward_with(recorded());
        let _off = no_grad();
        ops::copy_(&a.grad().unwrap(), &Tensor::from(0.0)).unwrap();
        b.grad().unwrap()
    };
    assert_eq!(both().to_vec::<f64>(), [8.0, 10.0]);
    assert_eq!(lazy(both).to_vec::<f64>(), [8.0, 10.0]);
    // A pass does not modify an incoming gradient that the caller provides.
    let (a, g) = (leaf([1.0, 2.0]), leaf([5.0, 6.0]));
    (&a + 1.0).backward_with(BackwardOptions { gradient: Some(g.clone()), ..recorded() });
    let off = no_grad();
    ops::copy_(&a.grad().unwrap(), &Tensor::from(0.0)).unwrap();
    drop(off);
    assert_eq!(g.to_vec::<f64>(), [5.0, 6.0]);
    // If one broadcast value is the gradient of two leaves, each leaf gets a separate copy, which remains
    // differentiable.
    let (a, b) = (leaf([3.0, 4.0]), leaf([1.0, 1.0]));
    let s = number(2.0);
    ((&a + &b).sum(..) * s.square()).backward_with(recorded());
    let (of_a, of_b) = (a.grad().unwrap(), b.grad().unwrap());
    assert_eq!((of_a.to_vec::<f64>(), of_b.to_vec::<f64>()), (vec![4.0; 2], vec![4.0; 2]));
    let second = grad(&[&of_a.sum(..)], &[&s], GradOptions { retain_graph: true, ..Default::default() }).unwrap();
    assert_eq!(second[0].item::<f64>(), 8.0);
    let _off = no_grad();
    of_a.set(0, 9.0);
    assert_eq!(of_b.to_vec::<f64>(), [4.0, 4.0]);
}

#[test]
fn a_captured_step_follows_a_gradient_to_another_part_of_a_buffer() {
    let flat = zeros([4]);
    let w = leaf([1.0, 2.0]);
    w.set_grad(Some(flat.narrow(0, 0, 2)));
    let mut step = capture(|_| w.square().sum(..).backward(), &[]).unwrap();
    step.launch(&[]).unwrap();
    w.set_grad(Some(flat.narrow(0, 2, 2)));
    step.launch(&[]).unwrap();
    assert_eq!(flat.to_vec::<f64>(), [2.0, 4.0, 2.0, 4.0]);
    // A step that replaces a gradient by another view of the same memory is an error.
    let flipped = capture(
        |_| {
            let g = w.grad().unwrap();
            w.set_grad(Some(g.flip(0)));
        },
        &[],
    );
    assert!(matches!(flipped.map(drop), Err(Error::NotAFixedPoint { .. })));
}

#[test]
fn recording_keeps_a_gradient_that_was_set() {
    let a = leaf([1.0]);
    let y = &a * 3.0;
    y.set_grad(Some(Tensor::from([10.0])));
    let rejected = capture(
        |_| {
            y.zero_grad();
            y.item::<f64>();
        },
        &[],
    );
    assert!(rejected.is_err());
    y.backward();
    assert_eq!(a.grad().unwrap().to_vec::<f64>(), [30.0]);
}

#[test]
fn a_hook_returns_a_gradient_of_its_tensors_shape_and_dtype() {
    for wrong in [Tensor::from([7.0f64]), Tensor::from([7.0f32, 7.0])] {
        let a = leaf([1.0, 2.0]);
        let own = wrong.clone();
        a.register_hook(move |_| Some(own.clone()));
        let error = grad(&[&a.square()], &[&a], GradOptions::default()).unwrap_err().to_string();
        assert!(error.contains("a hook must return a gradient of its tensor's"), "{error}");
        assert!(a.square().sum(..).try_backward_with(BackwardOptions::default()).is_err() && a.grad().is_none());
        let a = leaf([1.0, 2.0]);
        let y = &a * 3.0;
        y.register_hook(move |_| Some(wrong.clone()));
        assert!(y.sin().sum(..).try_backward_with(BackwardOptions::default()).is_err() && a.grad().is_none());
    }
}

#[test]
fn a_checkpoint_may_fill_a_buffer_of_its_own_in_a_captured_step() {
    let x = leaf([1.0, 2.0]);
    let f = || {
        let h = &x * 1.0;
        let filled = |t: &[Tensor]| {
            let buffer = zeros([2]);
            buffer.set(0, t[0].i(1).square());
            Ok(vec![&buffer + &t[0]])
        };
        checkpoint(filled, &[&h]).unwrap().remove(0)
    };
    assert_eq!(f().to_vec::<f64>(), [5.0, 2.0]);
    let mut step = capture(|_| f(), &[]).unwrap();
    assert_eq!(step.launch(&[]).unwrap().to_vec::<f64>(0), [5.0, 2.0]);
}

#[test]
fn a_rejected_checkpoint_leaves_no_history_behind() {
    let a = leaf([1.0, 2.0]);
    let (h, out) = (&a * 1.0, zeros([2]));
    let o = out.clone();
    let rejected = checkpoint(
        move |x| {
            o.copy_(&(&x[0] * 2.0));
            Ok(vec![x[0].sin()])
        },
        &[&h],
    );
    assert!(rejected.is_err());
    assert!(!out.requires_grad(), "the failed write changed the history of the target");
    assert!(out.sum(..).try_backward_with(BackwardOptions::default()).is_err());
}

#[test]
fn an_update_that_is_rejected_has_written_nothing() {
    let a = number(5.0);
    let p = &a * Tensor::from([1.0, 2.0]);
    let base = Tensor::from([7.0, 8.0, 9.0]);
    let q = {
        let _off = no_grad();
        base.i(slice(0, 2, 1))
    };
    assert!(ops::update(formula!(|p, q| (p + 100.0, q + 100.0)), &[&p, &q], &[], &[]).is_err());
    assert_eq!((p.to_vec::<f64>(), q.to_vec::<f64>()), (vec![5.0, 10.0], vec![7.0, 8.0]));
    // Elements that two targets share are detected under any layout.
    let b = Tensor::arange(0.0, 6.0, 1.0);
    let two = formula!(|p, q| (p + 10.0, q * 2.0));
    assert!(ops::update(two, &[&b.i(slice(0, 4, 2)), &b.i(slice(2, 6, 2))], &[], &[]).is_err());
    assert_eq!(b.to_vec::<f64>(), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    let m = zeros([3, 3]);
    assert!(ops::update(two, &[&m.i(0), &m.i((.., 0))], &[], &[]).is_err());
    ops::update(two, &[&b.i(slice(0, 6, 2)), &b.i(slice(1, 6, 2))], &[], &[]).unwrap();
    assert_eq!(
        b.to_vec::<f64>(),
        [10.0, 2.0, 12.0, 6.0, 14.0, 10.0],
        "interleaved slices share no elements, so both must be updated"
    );
}

#[test]
fn results_of_no_grad_can_be_written_when_their_base_is_gone() {
    let x = Tensor::from([[1.0f64, 2.0], [3.0, 4.0]]);
    let a = number(5.0);
    let functions: [fn(&Tensor) -> Tensor; 4] = [|x| x.sum(1), |x| x.mean(1), |x| x.var(1), |x| (x * 1.0).i((.., 0))];
    for f in functions {
        let written = || {
            let s = no_grad_result(|| f(&x));
            s.set(0, &a);
            ops::copy_(&s, &a).unwrap();
            s
        };
        assert_eq!(written().to_vec::<f64>(), [5.0, 5.0]);
        assert_eq!(lazy(written).to_vec::<f64>(), [5.0, 5.0]);
        let mut step = capture(|_| written(), &[]).unwrap();
        assert_eq!(step.launch(&[]).unwrap().to_vec::<f64>(0), [5.0, 5.0]);
    }
    let view = no_grad_result(|| x.i(0));
    assert!(
        view.try_set(0, &a).is_err() && ops::copy_(&view, &a).is_err(),
        "a tracked write to an untracked view must be an error"
    );
}

fn no_grad_result(f: impl FnOnce() -> Tensor) -> Tensor {
    let _off = no_grad();
    f()
}

#[test]
fn a_full_view_made_under_no_grad_has_no_history() {
    let x = leaf([1.0, 2.0]);
    let off = no_grad();
    let views = [x.reshape([2]), x.broadcast_to([2]), x.i(..)];
    drop(off);
    for view in views {
        assert!(!view.requires_grad());
    }
    assert!(x.reshape([2]).requires_grad());
}

#[test]
fn operations_that_copy_do_so_for_all_arguments() {
    let x = Tensor::from([1.0, 2.0]);
    let m = x.reshape([1, 2]);
    let results = [
        x.tile([1]),
        x.repeat(1, Some(0)),
        x.repeat(1, None),
        x.roll([0], [0]),
        x.roll(2, ()),
        x.diff(0, 0),
        m.rot90(0, [0, 1]).ravel(),
    ];
    for y in results {
        y.set(0, 9.0);
    }
    assert_eq!(x.to_vec::<f64>(), [1.0, 2.0]);
}
