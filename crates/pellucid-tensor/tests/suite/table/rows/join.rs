//! Joining tensors.

use crate::table::nd::{Nd, with};
use crate::table::row::{Row, real};
use pellucid_tensor::{DType, Error, Tensor, ops};

/// Concatenates along an axis.
fn joined(x: &[Nd], axis: usize) -> Nd {
    let total = x.iter().map(|t| t.shape[axis]).sum();
    Nd::from_fn(&with(&x[0].shape, axis, total), |ix| {
        let (mut rest, mut k) = (ix[axis], 0);
        while rest >= x[k].shape[axis] {
            rest -= x[k].shape[axis];
            k += 1;
        }
        x[k].at(&with(ix, axis, rest))
    })
}

/// Returns the block diagonal matrix.
fn blocks(x: &[Nd]) -> Nd {
    let total = |axis: usize| x.iter().map(|t| t.shape[axis]).sum();
    let mut joined = Nd::from_fn(&[total(0), total(1)], |_| 0.0);
    let (mut row, mut column) = (0, 0);
    for t in x {
        for (i, j) in (0..t.shape[0]).flat_map(|i| (0..t.shape[1]).map(move |j| (i, j))) {
            joined.set(&[row + i, column + j], t.at(&[i, j]));
        }
        (row, column) = (row + t.shape[0], column + t.shape[1]);
    }
    joined
}

fn stacked(x: &[Nd], axis: usize) -> Nd {
    let columns: Vec<Nd> = x
        .iter()
        .map(|t| {
            let mut shape = t.shape.clone();
            shape.insert(axis, 1);
            t.reshape(&shape)
        })
        .collect();
    joined(&columns, axis)
}

pub(super) fn rows() -> Vec<Row> {
    let refs = |x: &[Tensor]| -> Vec<Tensor> { x.to_vec() };
    let concatenate = move |axis| move |x: &[Tensor]| ops::concatenate(&refs(x).iter().collect::<Vec<_>>(), axis);
    let stack = move |axis| move |x: &[Tensor]| ops::stack(&refs(x).iter().collect::<Vec<_>>(), axis);
    let zeros = |shape: [usize; 2]| Tensor::zeros(shape, DType::F32);
    vec![
        Row::new("concatenate")
            .case("two", [real([2, 3]), real([2, 2])], concatenate(1), |x| joined(x, 1))
            .case("three", [real([1, 2]), real([2, 2]), real([3, 2])], concatenate(0), |x| joined(x, 0))
            .floats_only()
            .case("from the end", [real([2, 1, 2]), real([2, 3, 2])], concatenate(-2), |x| joined(x, 1))
            .floats_only()
            .case("one", [real([2, 3])], concatenate(0), |x| x[0].clone())
            .floats_only()
            .case("an empty one", [real([2, 0]), real([2, 3])], concatenate(1), |x| joined(x, 1))
            .floats_only()
            .check("zero tensors must be an error", || {
                Ok(matches!(ops::concatenate(&[] as &[&Tensor], 0), Err(Error::InvalidArgument { .. })))
            })
            .check("0-d tensors must be an error", || {
                Ok(matches!(ops::concatenate(&[&Tensor::from(1.0)], 0), Err(Error::AxisOutOfRange { .. })))
            })
            .check("unequal other axes must be an error", move || {
                Ok(matches!(ops::concatenate(&[&zeros([2, 3]), &zeros([3, 3])], 1), Err(Error::ShapeMismatch { .. })))
            }),
        Row::new("stack")
            .case("in front", [real([2, 3]), real([2, 3])], stack(0), |x| stacked(x, 0))
            .case("behind", [real([2]), real([2]), real([2])], stack(-1), |x| stacked(x, 1))
            .floats_only()
            .case("numbers", [real([]), real([])], stack(0), |x| stacked(x, 0))
            .floats_only()
            .case("nothing", [real([0]), real([0])], stack(1), |x| stacked(x, 1))
            .floats_only()
            .check("zero tensors must be an error", || {
                Ok(matches!(ops::stack(&[] as &[&Tensor], 0), Err(Error::InvalidArgument { .. })))
            })
            .check("unequal shapes must be an error", move || {
                Ok(matches!(ops::stack(&[&zeros([2, 3]), &zeros([1, 3])], 0), Err(Error::ShapeMismatch { .. })))
            }),
        Row::new("hstack")
            .case(
                "matrices of unequal widths",
                [real([2, 3]), real([2, 1])],
                |x| ops::hstack(&[&x[0], &x[1]]),
                |x| joined(x, 1),
            )
            .case("vectors", [real([2]), real([3])], |x| ops::hstack(&[&x[0], &x[1]]), |x| joined(x, 0))
            .floats_only()
            .case("numbers", [real([]), real([])], |x| ops::hstack(&[&x[0], &x[1]]), |x| stacked(x, 0))
            .floats_only()
            .check("zero tensors must be an error", || {
                Ok(matches!(ops::hstack(&[] as &[&Tensor]), Err(Error::InvalidArgument { .. })))
            }),
        Row::new("vstack")
            .case(
                "matrices of unequal heights",
                [real([2, 3]), real([1, 3])],
                |x| ops::vstack(&[&x[0], &x[1]]),
                |x| joined(x, 0),
            )
            .case(
                "a vector is a row",
                [real([3]), real([2, 3])],
                |x| ops::vstack(&[&x[0], &x[1]]),
                |x| joined(&[x[0].reshape(&[1, 3]), x[1].clone()], 0),
            )
            .floats_only()
            .case("numbers", [real([]), real([])], |x| ops::vstack(&[&x[0], &x[1]]), |x| stacked(x, 0).reshape(&[2, 1]))
            .floats_only()
            .check("zero tensors must be an error", || {
                Ok(matches!(ops::vstack(&[] as &[&Tensor]), Err(Error::InvalidArgument { .. })))
            }),
        Row::new("atleast_1d")
            .case("a number", [real([])], |x| ops::atleast_1d(&x[0]), |x| x[0].reshape(&[1]))
            .case("a matrix", [real([2, 3])], |x| ops::atleast_1d(&x[0]), |x| x[0].clone())
            .floats_only(),
        Row::new("atleast_2d")
            .case("a vector", [real([3])], |x| ops::atleast_2d(&x[0]), |x| x[0].reshape(&[1, 3]))
            .case("a number", [real([])], |x| ops::atleast_2d(&x[0]), |x| x[0].reshape(&[1, 1]))
            .floats_only()
            .case("a block", [real([1, 2, 3])], |x| ops::atleast_2d(&x[0]), |x| x[0].clone())
            .floats_only(),
        Row::new("atleast_3d")
            .case("a matrix", [real([2, 3])], |x| ops::atleast_3d(&x[0]), |x| x[0].reshape(&[2, 3, 1]))
            .case("a vector", [real([3])], |x| ops::atleast_3d(&x[0]), |x| x[0].reshape(&[1, 3, 1]))
            .floats_only()
            .case("a number", [real([])], |x| ops::atleast_3d(&x[0]), |x| x[0].reshape(&[1, 1, 1]))
            .floats_only()
            .check("the result must be a view", || {
                let x = Tensor::zeros([2, 3], DType::F32);
                Ok(ops::atleast_3d(&x)?.array().shares_storage(x.array()))
            }),
        Row::new("column_stack")
            .case(
                "a vector and a matrix",
                [real([2]), real([2, 3])],
                |x| ops::column_stack(&[&x[0], &x[1]]),
                |x| joined(&[x[0].reshape(&[2, 1]), x[1].clone()], 1),
            )
            .case(
                "numbers",
                [real([]), real([])],
                |x| ops::column_stack(&[&x[0], &x[1]]),
                |x| stacked(x, 0).reshape(&[1, 2]),
            )
            .floats_only()
            .check("zero tensors must be an error", || {
                Ok(matches!(ops::column_stack(&[] as &[&Tensor]), Err(Error::InvalidArgument { .. })))
            }),
        Row::new("block_diag")
            .case("matrices", [real([2, 3]), real([1, 1]), real([2, 1])], |x| ops::block_diag(x), blocks)
            .case(
                "a vector, a number and nothing",
                [real([3]), real([]), real([2, 0])],
                |x| ops::block_diag(x),
                |x| blocks(&[x[0].reshape(&[1, 3]), x[1].reshape(&[1, 1]), x[2].clone()]),
            )
            .floats_only()
            .check("zero tensors must be an error", || {
                Ok(matches!(ops::block_diag(&[] as &[&Tensor]), Err(Error::InvalidArgument { .. })))
            })
            .check("three axes must be an error", || {
                Ok(matches!(ops::block_diag(&[Tensor::from([[[1.0]]])]), Err(Error::ShapeMismatch { .. })))
            }),
        Row::new("dstack")
            .case("matrices", [real([2, 3]), real([2, 3])], |x| ops::dstack(&[&x[0], &x[1]]), |x| stacked(x, 2))
            .case("blocks", [real([1, 2, 2]), real([1, 2, 1])], |x| ops::dstack(&[&x[0], &x[1]]), |x| joined(x, 2))
            .floats_only()
            .case(
                "vectors",
                [real([3]), real([3])],
                |x| ops::dstack(&[&x[0], &x[1]]),
                |x| stacked(x, 1).reshape(&[1, 3, 2]),
            )
            .floats_only()
            .check("zero tensors must be an error", || {
                Ok(matches!(ops::dstack(&[] as &[&Tensor]), Err(Error::InvalidArgument { .. })))
            }),
    ]
}
