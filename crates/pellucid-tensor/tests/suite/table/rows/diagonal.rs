//! Diagonals and triangles.

use crate::table::nd::Nd;
use crate::table::row::{Row, argument_rejected, axis_rejected, real, shape_rejected};
use pellucid_tensor::{DType, Tensor, ops};

fn matrix() -> Tensor {
    Tensor::zeros([2, 3], DType::F32)
}

/// Returns the elements of matrices with `keep(column − row)`, and 0 elsewhere.
fn matrices(x: &Nd, keep: impl Fn(isize) -> bool) -> Nd {
    let rank = x.shape.len();
    Nd::from_fn(&x.shape, |ix| if keep(ix[rank - 1] as isize - ix[rank - 2] as isize) { x.at(ix) } else { 0.0 })
}

fn embedded(x: &Nd, offset: isize) -> Nd {
    let side = x.shape[0] + offset.unsigned_abs();
    Nd::from_fn(&[side, side], |ix| {
        let hit = ix[1] as isize - ix[0] as isize == offset;
        if hit { x.at(&[ix[0].min(ix[1])]) } else { 0.0 }
    })
}

pub(super) fn rows() -> Vec<Row> {
    vec![
        Row::new("diagonal")
            .case(
                "the main diagonal",
                [real([3, 3])],
                |x| ops::diagonal(&x[0], 0, 0, 1),
                |x| Nd::from_fn(&[3], |ix| x[0].at(&[ix[0], ix[0]])),
            )
            .case(
                "above",
                [real([2, 4])],
                |x| ops::diagonal(&x[0], 1, 0, 1),
                |x| Nd::from_fn(&[2], |ix| x[0].at(&[ix[0], ix[0] + 1])),
            )
            .floats_only()
            .case(
                "below, of other axes",
                [real([3, 2, 2])],
                |x| ops::diagonal(&x[0], -1, 0, -1),
                |x| Nd::from_fn(&[2, 2], |ix| x[0].at(&[ix[1] + 1, ix[0], ix[1]])),
            )
            .floats_only()
            .case(
                "axes the other way round",
                [real([2, 3])],
                |x| ops::diagonal(&x[0], -1, 1, 0),
                |x| Nd::from_fn(&[2], |ix| x[0].at(&[ix[0], ix[0] + 1])),
            )
            .floats_only()
            .case(
                "beyond the corner",
                [real([2, 3])],
                |x| ops::diagonal(&x[0], 3, 0, 1),
                |_| Nd::from_fn(&[0], |_| 0.0),
            )
            .floats_only()
            .check("an extreme offset must give an empty diagonal", || {
                Ok(ops::diagonal(&matrix(), isize::MIN, 0, 1)?.size() == 0)
            })
            .check("a view", || {
                let x = matrix();
                Ok(ops::diagonal(&x, 0, 0, 1)?.array().shares_storage(x.array()))
            })
            .check("a repeated axis must be an error", || argument_rejected(ops::diagonal(&matrix(), 0, 1, -1)))
            .check("an invalid axis must be an error", || axis_rejected(ops::diagonal(&matrix(), 0, 0, 2))),
        Row::new("diag_embed")
            .case("the main diagonal", [real([3])], |x| ops::diag_embed(&x[0], 0, 0, 1), |x| embedded(&x[0], 0))
            .case("below", [real([2])], |x| ops::diag_embed(&x[0], -1, -2, -1), |x| embedded(&x[0], -1))
            .floats_only()
            .case(
                "of several vectors, in front",
                [real([2, 3])],
                |x| ops::diag_embed(&x[0], 0, 0, 1),
                |x| Nd::from_fn(&[3, 3, 2], |ix| if ix[0] == ix[1] { x[0].at(&[ix[2], ix[0]]) } else { 0.0 }),
            )
            .floats_only()
            .check("a 0-d tensor must be an error, since it has no axis", || {
                axis_rejected(ops::diag_embed(&Tensor::from(1.0), 0, 0, 1))
            })
            .check("a repeated axis must be an error", || argument_rejected(ops::diag_embed(&matrix(), 0, 2, -1)))
            .check("an invalid axis must be an error", || axis_rejected(ops::diag_embed(&matrix(), 0, 0, 3))),
        Row::new("diag")
            .case("of a vector", [real([3])], |x| ops::diag(&x[0], 1), |x| embedded(&x[0], 1))
            .case(
                "of a matrix",
                [real([3, 2])],
                |x| ops::diag(&x[0], -1),
                |x| Nd::from_fn(&[2], |ix| x[0].at(&[ix[0] + 1, ix[0]])),
            )
            .floats_only()
            .check("a 0-d tensor must be an error", || shape_rejected(ops::diag(&Tensor::from(1.0), 0))),
        Row::new("tril")
            .case("a matrix", [real([3, 4])], |x| ops::tril(&x[0], 0), |x| matrices(&x[0], |d| d <= 0))
            .case("several, further up", [real([2, 3, 2])], |x| ops::tril(&x[0], 1), |x| matrices(&x[0], |d| d <= 1))
            .floats_only()
            .case("nothing of it", [real([2, 3])], |x| ops::tril(&x[0], -2), |x| matrices(&x[0], |_| false))
            .floats_only()
            .check("a vector must be an error", || shape_rejected(ops::tril(&Tensor::zeros([3], DType::F32), 0))),
        Row::new("triu")
            .case("a matrix", [real([3, 4])], |x| ops::triu(&x[0], 0), |x| matrices(&x[0], |d| d >= 0))
            .case(
                "several, further down",
                [real([2, 3, 2])],
                |x| ops::triu(&x[0], -1),
                |x| matrices(&x[0], |d| d >= -1),
            )
            .floats_only()
            .case("nothing", [real([0, 3])], |x| ops::triu(&x[0], 0), |x| x[0].clone())
            .floats_only()
            .check("a vector must be an error", || shape_rejected(ops::triu(&Tensor::zeros([3], DType::F32), 0))),
    ]
}
