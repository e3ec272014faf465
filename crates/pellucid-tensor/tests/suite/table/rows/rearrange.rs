//! Rearrangements: moved or repeated elements, and splits.

use crate::table::nd::{Nd, with};
use crate::table::row::{Row, argument_rejected, axis_rejected, real};
use pellucid_tensor::ops::MeshgridIndexing;
use pellucid_tensor::{DType, Error, Tensor, ops};

fn matrix() -> Tensor {
    Tensor::zeros([2, 3], DType::F32)
}

/// Rolls an axis: index i comes from index `(i − shift) mod len`.
fn rolled(x: &Nd, shift: usize, axis: usize) -> Nd {
    let len = x.shape[axis];
    Nd::from_fn(&x.shape, |ix| x.at(&with(ix, axis, (ix[axis] + len - shift) % len)))
}

/// Selects along an axis: index i comes from index `from[i]`.
fn picked(x: &Nd, axis: usize, from: &[usize]) -> Nd {
    Nd::from_fn(&with(&x.shape, axis, from.len()), |ix| x.at(&with(ix, axis, from[ix[axis]])))
}

pub(super) fn rows() -> Vec<Row> {
    let mut rows = move_rows();
    rows.extend(repeat_rows());
    rows.extend(split_rows());
    rows
}

fn move_rows() -> Vec<Row> {
    // A rotation by 90° from axis 0 towards axis 1: y[i, j] = x[j, columns − 1 − i].
    let quarter = |x: &Nd| Nd::from_fn(&[x.shape[1], x.shape[0]], |ix| x.at(&[ix[1], x.shape[1] - 1 - ix[0]]));
    vec![
        Row::new("roll")
            .case("an axis", [real([2, 5])], |x| ops::roll(&x[0], [2], [1]), |x| rolled(&x[0], 2, 1))
            .case("backwards", [real([5])], |x| ops::roll(&x[0], [-7], [-1]), |x| rolled(&x[0], 3, 0))
            .floats_only()
            .case(
                "two axes",
                [real([3, 4])],
                |x| ops::roll(&x[0], [1, 3], [0, 1]),
                |x| rolled(&rolled(&x[0], 1, 0), 3, 1),
            )
            .floats_only()
            .case(
                "all as one",
                [real([2, 3])],
                |x| ops::roll(&x[0], 1, ()),
                |x| rolled(&x[0].reshape(&[6]), 1, 0).reshape(&[2, 3]),
            )
            .floats_only()
            .case("nothing", [real([0, 3])], |x| ops::roll(&x[0], [1], [0]), |x| x[0].clone())
            .floats_only()
            .check("zero shifts must be an error", || argument_rejected(ops::roll(&matrix(), (), ())))
            .check("a wrong number of shifts must be an error", || argument_rejected(ops::roll(&matrix(), [1, 2], [0])))
            .check("an invalid axis must be an error", || axis_rejected(ops::roll(&matrix(), [1], [2]))),
        Row::new("rot90")
            .case("once", [real([2, 3])], |x| ops::rot90(&x[0], 1, [0, 1]), move |x| quarter(&x[0]))
            .case("twice", [real([2, 3])], |x| ops::rot90(&x[0], 2, [0, 1]), move |x| quarter(&quarter(&x[0])))
            .floats_only()
            .case(
                "backwards",
                [real([2, 3])],
                |x| ops::rot90(&x[0], -1, [0, 1]),
                move |x| quarter(&quarter(&quarter(&x[0]))),
            )
            .floats_only()
            .case(
                "the other way round",
                [real([2, 3])],
                |x| ops::rot90(&x[0], 1, [1, 0]),
                move |x| quarter(&quarter(&quarter(&x[0]))),
            )
            .floats_only()
            .case("four times", [real([2, 3])], |x| ops::rot90(&x[0], 4, [0, -1]), |x| x[0].clone())
            .floats_only()
            .check("a repeated axis must be an error", || argument_rejected(ops::rot90(&matrix(), 1, [1, -1])))
            .check("an invalid axis must be an error", || axis_rejected(ops::rot90(&matrix(), 1, [0, 2]))),
        Row::new("movedim")
            .case("one", [real([2, 3, 4])], |x| ops::movedim(&x[0], [0], [-1]), |x| x[0].permute(&[1, 2, 0]))
            .case("two", [real([2, 3, 4])], |x| ops::movedim(&x[0], [2, 0], [0, 1]), |x| x[0].permute(&[2, 0, 1]))
            .floats_only()
            .case("none", [real([2, 3])], |x| ops::movedim(&x[0], (), ()), |x| x[0].clone())
            .floats_only()
            .check("a wrong number of destinations must be an error", || {
                argument_rejected(ops::movedim(&matrix(), [0], [0, 1]))
            })
            .check("a repeated destination must be an error", || {
                argument_rejected(ops::movedim(&matrix(), [0, 1], [1, -1]))
            })
            .check("an invalid axis must be an error", || axis_rejected(ops::movedim(&matrix(), [2], [0]))),
        Row::new("ravel")
            .case("a matrix", [real([2, 3])], |x| ops::ravel(&x[0]), |x| x[0].reshape(&[6]))
            .case("a number", [real([])], |x| ops::ravel(&x[0]), |x| x[0].reshape(&[1]))
            .floats_only()
            .case("nothing", [real([2, 0])], |x| ops::ravel(&x[0]), |x| x[0].reshape(&[0]))
            .floats_only(),
        Row::new("unflatten")
            .case("an axis", [real([2, 6])], |x| ops::unflatten(&x[0], 1, [2, 3]), |x| x[0].reshape(&[2, 2, 3]))
            .case("an open one", [real([6, 2])], |x| ops::unflatten(&x[0], 0, [3, -1]), |x| x[0].reshape(&[3, 2, 2]))
            .floats_only()
            .check("a product other than the length must be an error", || {
                Ok(matches!(ops::unflatten(&matrix(), 1, [2, 2]), Err(Error::ShapeMismatch { .. })))
            })
            .check("two unknown lengths must be an error", || argument_rejected(ops::unflatten(&matrix(), 1, [-1, -1])))
            .check("an invalid axis must be an error", || axis_rejected(ops::unflatten(&matrix(), 2, [1, 1]))),
        Row::new("windows")
            .case(
                "overlapping",
                [real([2, 5])],
                |x| ops::windows(&x[0], 1, 3, 1),
                |x| Nd::from_fn(&[2, 3, 3], |ix| x[0].at(&[ix[0], ix[1] + ix[2]])),
            )
            .case(
                "of the first axis",
                [real([5, 2])],
                |x| ops::windows(&x[0], 0, 2, 2),
                |x| Nd::from_fn(&[2, 2, 2], |ix| x[0].at(&[2 * ix[0] + ix[2], ix[1]])),
            )
            .floats_only()
            .check("a step of 0 must be an error", || argument_rejected(ops::windows(&matrix(), 1, 2, 0)))
            .check("a window longer than the axis must be an error", || {
                argument_rejected(ops::windows(&matrix(), 1, 4, 1))
            })
            .check("an invalid axis must be an error", || axis_rejected(ops::windows(&matrix(), 2, 1, 1))),
    ]
}

fn repeat_rows() -> Vec<Row> {
    let tiled = |x: &Nd, shape: &[usize]| {
        let lead = shape.len() - x.shape.len();
        Nd::from_fn(shape, |ix| x.at(&ix[lead..].iter().zip(&x.shape).map(|(i, len)| i % len).collect::<Vec<_>>()))
    };
    let grid = |x: &[Tensor], indexing| ops::meshgrid(&x.iter().collect::<Vec<_>>(), indexing);
    vec![
        Row::new("repeat")
            .case("each", [real([2, 3])], |x| ops::repeat(&x[0], 2, Some(1)), |x| picked(&x[0], 1, &[0, 0, 1, 1, 2, 2]))
            .case(
                "by a list",
                [real([3, 2])],
                |x| ops::repeat(&x[0], [2, 0, 1], Some(0)),
                |x| picked(&x[0], 0, &[0, 0, 2]),
            )
            .floats_only()
            .case(
                "without an axis",
                [real([2, 2])],
                |x| ops::repeat(&x[0], 3, None),
                |x| picked(&x[0].reshape(&[4]), 0, &[0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]),
            )
            .floats_only()
            .case("never", [real([2, 3])], |x| ops::repeat(&x[0], 0, Some(-1)), |x| picked(&x[0], 1, &[]))
            .floats_only()
            .check("a wrong number of counts must be an error", || {
                argument_rejected(ops::repeat(&matrix(), [1, 2], Some(1)))
            })
            .case(
                "by a list of one number",
                [real([3, 2])],
                |x| ops::repeat(&x[0], [2], 0),
                |x| picked(&x[0], 0, &[0, 0, 1, 1, 2, 2]),
            )
            .floats_only()
            .check("a negative count must be an error", || argument_rejected(ops::repeat(&matrix(), [1, -1], 0)))
            .check("an invalid axis must be an error", || axis_rejected(ops::repeat(&matrix(), 1, Some(2)))),
        Row::new("tile")
            .case("both axes", [real([2, 3])], |x| ops::tile(&x[0], [2, 2]), move |x| tiled(&x[0], &[4, 6]))
            .case(
                "more numbers than axes",
                [real([3])],
                |x| ops::tile(&x[0], [2, 1, 2]),
                move |x| tiled(&x[0], &[2, 1, 6]),
            )
            .floats_only()
            .case("fewer numbers than axes", [real([2, 3])], |x| ops::tile(&x[0], [2]), move |x| tiled(&x[0], &[2, 6]))
            .floats_only()
            .case("never", [real([2, 3])], |x| ops::tile(&x[0], [0, 1]), move |x| tiled(&x[0], &[0, 3]))
            .floats_only()
            .case("a number", [real([])], |x| ops::tile(&x[0], 2), move |x| tiled(&x[0], &[2]))
            .floats_only()
            .check("a negative count must be an error", || argument_rejected(ops::tile(&matrix(), (2, -1)))),
        Row::new("meshgrid")
            .outputs(
                "ij",
                [real([2]), real([3])],
                move |x| grid(x, MeshgridIndexing::Ij),
                |x| vec![Nd::from_fn(&[2, 3], |ix| x[0].at(&[ix[0]])), Nd::from_fn(&[2, 3], |ix| x[1].at(&[ix[1]]))],
            )
            .floats_only()
            .outputs(
                "xy",
                [real([2]), real([3]), real([2])],
                move |x| grid(x, MeshgridIndexing::Xy),
                |x| {
                    let shape = [3, 2, 2];
                    vec![
                        Nd::from_fn(&shape, |ix| x[0].at(&[ix[1]])),
                        Nd::from_fn(&shape, |ix| x[1].at(&[ix[0]])),
                        Nd::from_fn(&shape, |ix| x[2].at(&[ix[2]])),
                    ]
                },
            )
            .floats_only()
            .outputs(
                "a number",
                [real([]), real([2])],
                move |x| grid(x, MeshgridIndexing::Ij),
                |x| vec![Nd::from_fn(&[1, 2], |_| x[0].at(&[])), Nd::from_fn(&[1, 2], |ix| x[1].at(&[ix[1]]))],
            )
            .floats_only()
            .check("every tensor must keep its dtype", || {
                let (a, b) = (Tensor::zeros([2], DType::Bool), Tensor::zeros([3], DType::F16));
                let grid = ops::meshgrid(&[&a, &b], MeshgridIndexing::Ij)?;
                Ok(grid[0].dtype() == DType::Bool && grid[1].dtype() == DType::F16)
            })
            .check("zero tensors", || Ok(ops::meshgrid(&[], MeshgridIndexing::Xy)?.is_empty()))
            .check("a matrix must be an error", || {
                Ok(matches!(ops::meshgrid(&[&matrix()], MeshgridIndexing::Ij), Err(Error::ShapeMismatch { .. })))
            }),
    ]
}

fn split_rows() -> Vec<Row> {
    let narrow = |x: &Nd, axis: usize, parts: &[(usize, usize)]| -> Vec<Nd> {
        parts.iter().map(|&(start, len)| x.narrow(axis, start, len)).collect()
    };
    vec![
        Row::new("chunk")
            .outputs(
                "a shorter last one",
                [real([2, 5])],
                |x| ops::chunk(&x[0], 2, 1),
                move |x| narrow(&x[0], 1, &[(0, 3), (3, 2)]),
            )
            .outputs(
                "fewer than asked for",
                [real([5])],
                |x| ops::chunk(&x[0], 4, 0),
                move |x| narrow(&x[0], 0, &[(0, 2), (2, 2), (4, 1)]),
            )
            .floats_only()
            .outputs("of nothing", [real([0, 2])], |x| ops::chunk(&x[0], 2, 0), |x| vec![x[0].clone(), x[0].clone()])
            .floats_only()
            .check("zero parts must be an error", || argument_rejected(ops::chunk(&matrix(), 0, 0)))
            .check("an invalid axis must be an error", || axis_rejected(ops::chunk(&matrix(), 1, 2))),
        Row::new("tensor_split")
            .outputs(
                "a count",
                [real([2, 5])],
                |x| ops::tensor_split(&x[0], 3, 1),
                move |x| narrow(&x[0], 1, &[(0, 2), (2, 2), (4, 1)]),
            )
            .outputs(
                "at indices",
                [real([5])],
                |x| ops::tensor_split(&x[0], [1, -1, 9, 2], 0),
                move |x| narrow(&x[0], 0, &[(0, 1), (1, 3), (4, 1), (5, 0), (2, 3)]),
            )
            .floats_only()
            .outputs("at none", [real([5])], |x| ops::tensor_split(&x[0], (), 0), |x| vec![x[0].clone()])
            .floats_only()
            .check("zero parts must be an error", || argument_rejected(ops::tensor_split(&matrix(), 0, 0)))
            .check("an invalid axis must be an error", || axis_rejected(ops::tensor_split(&matrix(), 1, 2))),
        Row::new("unbind")
            .outputs(
                "an axis",
                [real([2, 3])],
                |x| ops::unbind(&x[0], 1),
                |x| (0..3).map(|k| x[0].narrow(1, k, 1).reshape(&[2])).collect(),
            )
            .check("an invalid axis must be an error", || axis_rejected(ops::unbind(&matrix(), 2))),
    ]
}
