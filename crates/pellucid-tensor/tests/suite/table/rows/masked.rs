//! Selection of elements by masks and by flat positions.

use crate::table::nd::{Nd, zip};
use crate::table::row::{Row, Rule, class, index, mask, real};
use pellucid_tensor::{DType, Error, Tensor, ops};

pub(super) fn rows() -> Vec<Row> {
    // The reference keeps the elements where the mask is false. The elements of a mask are 0 or 1.
    let kept = |x: &[Nd]| zip(x, |v| if v[1] != 0.0 { 1.0 } else { v[0] });
    let fill = |x: &[Tensor]| ops::masked_fill(&x[0], &x[1], 1);
    let odd = |len: usize| Tensor::arange(0i64, len as i64, 1).rem(2).eq(1);
    vec![
        Row::new("masked_fill")
            .case("one shape", [real([2, 3]), mask([2, 3])], fill, kept)
            .case("broadcast", [real([2, 1]), mask([3])], fill, kept)
            .floats_only()
            .check("the result must have the dtype of the tensor", || {
                let x = Tensor::zeros([2], DType::I32);
                Ok(ops::masked_fill(&x, &[true, false].into(), 2.0)?.to_vec::<i32>() == [2, 0])
            })
            .check("a fraction for an integer tensor must be an error", || {
                let x = Tensor::zeros([2], DType::I32);
                let rejected = ops::masked_fill(&x, &[true, false].into(), 2.9);
                Ok(matches!(rejected, Err(Error::InvalidArgument { .. })))
            })
            .check("a mask of another dtype must be an error", || {
                let x = Tensor::zeros([2], DType::F32);
                Ok(matches!(ops::masked_fill(&x, &x, 0), Err(Error::DTypeMismatch { .. })))
            }),
        Row::new("masked_select")
            .case(
                "every second element",
                [real([2, 3])],
                move |x| ops::masked_select(&x[0], &odd(6).reshape([2, 3])),
                |x| Nd::from_fn(&[3], |ix| x[0].data[2 * ix[0] + 1]),
            )
            .case(
                "broadcast",
                [real([2, 1])],
                move |x| ops::masked_select(&x[0], &odd(4)),
                |x| Nd::from_fn(&[4], |ix| x[0].data[ix[0] / 2]),
            )
            .floats_only()
            .check("an empty tensor", || {
                let x = Tensor::zeros([2], DType::F32);
                Ok(ops::masked_select(&x, &[false, false].into())?.shape().dims() == [0])
            })
            .check("a mask of another dtype must be an error", || {
                let x = Tensor::zeros([2], DType::F32);
                Ok(matches!(ops::masked_select(&x, &x), Err(Error::DTypeMismatch { .. })))
            })
            .check("shapes that do not broadcast must be an error", || {
                let x = Tensor::zeros([2], DType::F32);
                Ok(matches!(ops::masked_select(&x, &[true; 3].into()), Err(Error::ShapeMismatch { .. })))
            }),
        Row::new("take")
            .case(
                "positions",
                [real([2, 3]), index([4], 6)],
                |x| ops::take(&x[0], &x[1]),
                |x| Nd::from_fn(&[4], |ix| x[0].data[(x[1].data[ix[0]] as isize).rem_euclid(6) as usize]),
            )
            .case(
                "their shape",
                [real([5]), index([2, 1], 5)],
                |x| ops::take(&x[0], &x[1]),
                |x| Nd::from_fn(&[2, 1], |ix| x[0].data[(x[1].at(ix) as isize).rem_euclid(5) as usize]),
            )
            .floats_only()
            .check("an index out of bounds must be an error", || {
                let x = Tensor::zeros([2, 2], DType::F32);
                let is_out_of_bounds =
                    |i: i64| matches!(ops::take(&x, &[i].into()), Err(Error::IndexOutOfBounds { .. }));
                Ok(is_out_of_bounds(4) && is_out_of_bounds(-5) && is_out_of_bounds(i64::MIN))
            }),
        Row::new("one_hot")
            .rule(Rule::Always(DType::I64))
            .untracked()
            .case(
                "classes",
                [class([2, 2], 3)],
                |x| ops::one_hot(&x[0], 3),
                |x| Nd::from_fn(&[2, 2, 3], |ix| f64::from(x[0].at(&ix[..2]) == ix[2] as f64)),
            )
            .check("an invalid class must give zeros", || {
                Ok(ops::one_hot(&[-1i64, 2].into(), 2)?.to_vec::<i64>() == [0, 0, 0, 0])
            })
            .check("floats must be an error", || {
                Ok(matches!(ops::one_hot(&Tensor::from([1.0]), 2), Err(Error::DTypeMismatch { .. })))
            }),
    ]
}
