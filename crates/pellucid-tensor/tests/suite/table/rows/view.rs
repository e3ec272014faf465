//! Views: the same elements with other shapes.

use crate::table::nd::{Nd, with};
use crate::table::row::{Row, Rule, argument_rejected, axis_rejected, real, shape_rejected};
use pellucid_tensor::{DType, Error, Result, Tensor, ops};

fn matrix() -> Tensor {
    Tensor::zeros([2, 3], DType::F32)
}

fn index_rejected(result: Result<Tensor>) -> Result<bool> {
    Ok(matches!(result, Err(Error::IndexOutOfBounds { .. })))
}

pub(super) fn rows() -> Vec<Row> {
    let mut rows = shape_rows();
    rows.extend(permutation_rows());
    rows.extend(broadcasts());
    rows.extend(slice_rows());
    rows
}

fn shape_rows() -> Vec<Row> {
    vec![
        Row::new("reshape")
            .case("another shape", [real([2, 3])], |x| ops::reshape(&x[0], [3, 2]), |x| x[0].reshape(&[3, 2]))
            .case("an open length", [real([2, 3, 2])], |x| ops::reshape(&x[0], [-1, 4]), |x| x[0].reshape(&[3, 4]))
            .floats_only()
            .case("to a number", [real([1, 1])], |x| ops::reshape(&x[0], ()), |x| x[0].reshape(&[]))
            .floats_only()
            .case("from a number", [real([])], |x| ops::reshape(&x[0], -1), |x| x[0].reshape(&[1]))
            .floats_only()
            .case("nothing", [real([0, 3])], |x| ops::reshape(&x[0], [2, 0, 5]), |x| x[0].reshape(&[2, 0, 5]))
            .floats_only()
            .check("unequal sizes must be an error", || shape_rejected(ops::reshape(&matrix(), [4, 2])))
            .check("an indivisible unknown length must be an error", || {
                shape_rejected(ops::reshape(&matrix(), [4, -1]))
            })
            .check("the error must show the requested lengths", || {
                Ok(ops::reshape(&matrix(), [4, -1]).is_err_and(|error| error.to_string().contains("[4, -1]")))
            })
            .check("two unknown lengths must be an error", || argument_rejected(ops::reshape(&matrix(), [-1, -1])))
            .check("a negative length", || argument_rejected(ops::reshape(&matrix(), [-2, 3])))
            .check("the result must be a view if the layout allows it", || {
                let x = Tensor::zeros([2, 3], DType::F32);
                Ok(ops::reshape(&x, 6)?.array().shares_storage(x.array()))
            }),
        Row::new("flatten")
            .case("all", [real([2, 3])], |x| ops::flatten(&x[0], 0, -1), |x| x[0].reshape(&[6]))
            .case("the last two", [real([2, 3, 2])], |x| ops::flatten(&x[0], 1, 2), |x| x[0].reshape(&[2, 6]))
            .floats_only()
            .case("one", [real([2, 3])], |x| ops::flatten(&x[0], 1, 1), |x| x[0].clone())
            .floats_only()
            .case("a number", [real([])], |x| ops::flatten(&x[0], 0, -1), |x| x[0].reshape(&[1]))
            .floats_only()
            .check("start after end must be an error", || argument_rejected(ops::flatten(&matrix(), 1, 0)))
            .check("an invalid axis must be an error", || axis_rejected(ops::flatten(&matrix(), 0, 2))),
        Row::new("squeeze")
            .case("the middle", [real([2, 1, 3])], |x| ops::squeeze(&x[0], 1), |x| x[0].reshape(&[2, 3]))
            .case("the last", [real([2, 1])], |x| ops::squeeze(&x[0], -1), |x| x[0].reshape(&[2]))
            .floats_only()
            .case("two", [real([1, 3, 1, 1])], |x| ops::squeeze(&x[0], [-1, 0]), |x| x[0].reshape(&[3, 1]))
            .floats_only()
            .case("all of length 1", [real([1, 3, 1])], |x| ops::squeeze(&x[0], ..), |x| x[0].reshape(&[3]))
            .floats_only()
            .case("none", [real([1, 3])], |x| ops::squeeze(&x[0], ()), |x| x[0].clone())
            .floats_only()
            .check("a repeated axis must be an error", || {
                argument_rejected(ops::squeeze(&Tensor::zeros([1, 2], DType::F32), [0, -2]))
            })
            .check("an axis of another length must be an error", || shape_rejected(ops::squeeze(&matrix(), 0)))
            .check("an invalid axis must be an error", || axis_rejected(ops::squeeze(&matrix(), 2))),
        Row::new("unsqueeze")
            .case("the front", [real([2, 3])], |x| ops::unsqueeze(&x[0], 0), |x| x[0].reshape(&[1, 2, 3]))
            .case("the back", [real([2, 3])], |x| ops::unsqueeze(&x[0], -1), |x| x[0].reshape(&[2, 3, 1]))
            .floats_only()
            .case("a number", [real([])], |x| ops::unsqueeze(&x[0], 0), |x| x[0].reshape(&[1]))
            .floats_only()
            .case("both ends", [real([2, 3])], |x| ops::unsqueeze(&x[0], [-1, 0]), |x| x[0].reshape(&[1, 2, 3, 1]))
            .floats_only()
            .case("neighbours", [real([2, 3])], |x| ops::unsqueeze(&x[0], (1, 2)), |x| x[0].reshape(&[2, 1, 1, 3]))
            .floats_only()
            .check("a repeated axis must be an error", || argument_rejected(ops::unsqueeze(&matrix(), [0, -4])))
            .check("unnamed axes must be an error", || argument_rejected(ops::unsqueeze(&matrix(), ..)))
            .check("an invalid axis must be an error", || axis_rejected(ops::unsqueeze(&matrix(), 3))),
    ]
}

fn permutation_rows() -> Vec<Row> {
    let flipped = |x: &Nd, axes: &[usize]| {
        let turn = |ix: &[usize]| axes.iter().fold(ix.to_vec(), |ix, &a| with(&ix, a, x.shape[a] - 1 - ix[a]));
        Nd::from_fn(&x.shape, |ix| x.at(&turn(ix)))
    };
    vec![
        Row::new("permute")
            .case("three axes", [real([2, 3, 2])], |x| ops::permute(&x[0], [2, 0, -2]), |x| x[0].permute(&[2, 0, 1]))
            .case("a number", [real([])], |x| ops::permute(&x[0], ()), |x| x[0].clone())
            .floats_only()
            .case("nothing", [real([0, 3])], |x| ops::permute(&x[0], [1, 0]), |x| x[0].permute(&[1, 0]))
            .floats_only()
            .check("a repeated axis must be an error", || argument_rejected(ops::permute(&matrix(), [0, 0])))
            .check("a missing axis must be an error", || argument_rejected(ops::permute(&matrix(), [0])))
            .check("an invalid axis must be an error", || axis_rejected(ops::permute(&matrix(), [0, 2]))),
        Row::new("transpose")
            .case("the ends", [real([2, 3, 2])], |x| ops::transpose(&x[0], 0, -1), |x| x[0].permute(&[2, 1, 0]))
            .case("itself", [real([2, 3])], |x| ops::transpose(&x[0], 1, 1), |x| x[0].clone())
            .floats_only()
            .check("an invalid axis must be an error", || axis_rejected(ops::transpose(&matrix(), 0, 2))),
        Row::new("swapaxes")
            .case("the ends", [real([2, 3, 2])], |x| ops::swapaxes(&x[0], 0, -1), |x| x[0].permute(&[2, 1, 0]))
            .check("an invalid axis must be an error", || axis_rejected(ops::swapaxes(&matrix(), 0, 2))),
        Row::new("t")
            .case("a matrix", [real([2, 3])], |x| ops::t(&x[0]), |x| x[0].permute(&[1, 0]))
            .case("three axes", [real([2, 1, 3])], |x| ops::t(&x[0]), |x| x[0].permute(&[2, 1, 0]))
            .floats_only()
            .case("a number", [real([])], |x| ops::t(&x[0]), |x| x[0].clone())
            .floats_only(),
        Row::new("flip")
            .case("one axis", [real([2, 3])], |x| ops::flip(&x[0], 1), move |x| flipped(&x[0], &[1]))
            .case("all axes", [real([2, 3])], |x| ops::flip(&x[0], ..), move |x| flipped(&x[0], &[0, 1]))
            .floats_only()
            .case("nothing", [real([0, 3])], |x| ops::flip(&x[0], 0), |x| x[0].clone())
            .floats_only()
            .check("an invalid axis must be an error", || axis_rejected(ops::flip(&matrix(), 2)))
            .check("a repeated axis must be an error", || argument_rejected(ops::flip(&matrix(), [0, -2]))),
    ]
}

fn broadcasts() -> Vec<Row> {
    vec![
        Row::new("broadcast_tensors")
            .outputs(
                "three",
                [real([2, 1]), real([3]), real([])],
                |x| ops::broadcast_tensors(x),
                |x| x.iter().map(|t| t.broadcast(&[2, 3])).collect(),
            )
            .rules([Rule::Any, Rule::Any, Rule::Any])
            .floats_only()
            .check("no tensor", || Ok(ops::broadcast_tensors(&[] as &[Tensor])?.is_empty()))
            .check("shapes that do not broadcast must be an error", || {
                Ok(matches!(ops::broadcast_tensors(&[matrix(), matrix().t()]), Err(Error::ShapeMismatch { .. })))
            }),
        Row::new("broadcast_to")
            .case(
                "in the middle",
                [real([2, 1, 3])],
                |x| ops::broadcast_to(&x[0], [2, 2, 3]),
                |x| x[0].broadcast(&[2, 2, 3]),
            )
            .case("in front", [real([3])], |x| ops::broadcast_to(&x[0], [2, 3]), |x| x[0].broadcast(&[2, 3]))
            .floats_only()
            .case("a number", [real([])], |x| ops::broadcast_to(&x[0], [2, 2]), |x| x[0].broadcast(&[2, 2]))
            .floats_only()
            .case("to nothing", [real([1, 3])], |x| ops::broadcast_to(&x[0], [0, 3]), |x| x[0].broadcast(&[0, 3]))
            .floats_only()
            .check("a length that is neither equal nor 1 must be an error", || {
                shape_rejected(ops::broadcast_to(&matrix(), [2, 6]))
            })
            .check("fewer axes must be an error", || shape_rejected(ops::broadcast_to(&matrix(), [3]))),
        Row::new("expand")
            .case("kept lengths", [real([2, 1])], |x| ops::expand(&x[0], [-1, 3]), |x| x[0].broadcast(&[2, 3]))
            .case("a new axis", [real([3])], |x| ops::expand(&x[0], [2, -1]), |x| x[0].broadcast(&[2, 3]))
            .floats_only()
            .check("a new axis without a length must be an error", || {
                argument_rejected(ops::expand(&matrix(), [-1, 2, 3]))
            }),
    ]
}

fn slice_rows() -> Vec<Row> {
    vec![
        Row::new("narrow")
            .case("the middle of an axis", [real([2, 5])], |x| ops::narrow(&x[0], 1, 1, 3), |x| x[0].narrow(1, 1, 3))
            .case("nothing of it", [real([2, 5])], |x| ops::narrow(&x[0], -1, 5, 0), |x| x[0].narrow(1, 5, 0))
            .floats_only()
            .case("all of it", [real([2, 3])], |x| ops::narrow(&x[0], 0, 0, 2), |x| x[0].clone())
            .floats_only()
            .check("a range beyond the end must be an error", || index_rejected(ops::narrow(&matrix(), 1, 2, 2)))
            .check("an extreme start must be an error", || index_rejected(ops::narrow(&matrix(), 1, usize::MAX, 2)))
            .check("an invalid axis must be an error", || axis_rejected(ops::narrow(&matrix(), 2, 0, 1))),
        Row::new("select")
            .case("an index", [real([2, 3])], |x| ops::select(&x[0], 1, 2), |x| x[0].narrow(1, 2, 1).reshape(&[2]))
            .case("from the end", [real([3, 2])], |x| ops::select(&x[0], 0, -3), |x| x[0].narrow(0, 0, 1).reshape(&[2]))
            .floats_only()
            .check("an index out of bounds must be an error", || index_rejected(ops::select(&matrix(), 1, 3)))
            .check("a negative index out of bounds must be an error", || index_rejected(ops::select(&matrix(), 1, -4)))
            .check("an empty input", || index_rejected(ops::select(&Tensor::zeros([0], DType::F32), 0, 0))),
        Row::new("split")
            .outputs(
                "three parts",
                [real([2, 5])],
                |x| ops::split(&x[0], [2, 0, 3], 1),
                |x| vec![x[0].narrow(1, 0, 2), x[0].narrow(1, 2, 0), x[0].narrow(1, 2, 3)],
            )
            .outputs("one part", [real([2, 3])], |x| ops::split(&x[0], [2], 0), |x| vec![x[0].clone()])
            .floats_only()
            .outputs(
                "parts of one length",
                [real([2, 5])],
                |x| ops::split(&x[0], 2, 1),
                |x| vec![x[0].narrow(1, 0, 2), x[0].narrow(1, 2, 2), x[0].narrow(1, 4, 1)],
            )
            .floats_only()
            .outputs("a longer part", [real([2, 3])], |x| ops::split(&x[0], 9, 0), |x| vec![x[0].clone()])
            .floats_only()
            .outputs("of nothing", [real([0, 3])], |x| ops::split(&x[0], 2, 0), |x| vec![x[0].clone()])
            .floats_only()
            .check("parts of length 0 must be an error", || Ok(ops::split(&matrix(), 0, 0).is_err()))
            .check("a negative length must be an error", || Ok(ops::split(&matrix(), [-1, 3], 0).is_err()))
            .check("lengths with another sum must be an error", || {
                Ok(matches!(ops::split(&matrix(), [1, 1], 1), Err(Error::InvalidArgument { .. })))
            })
            .check("lengths that overflow must be an error", || Ok(ops::split(&matrix(), [usize::MAX, 4], 1).is_err())),
    ]
}
