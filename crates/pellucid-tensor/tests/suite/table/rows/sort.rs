//! Sorting along an axis.

use crate::table::nd::Nd;
use crate::table::row::{Row, Rule, real};
use pellucid_tensor::{DType, Error, Tensor, ops};

/// Returns the positions of the elements of a row in stable order, with NaN as the largest.
fn order(x: &[f64], descending: bool) -> Vec<usize> {
    let mut positions: Vec<usize> = (0..x.len()).collect();
    let compare = |a: f64, b: f64| a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()));
    positions.sort_by(|&i, &j| if descending { compare(x[j], x[i]) } else { compare(x[i], x[j]) });
    positions
}

fn values(x: &Nd, axis: usize, descending: bool) -> Nd {
    x.rows(&[axis], |row| order(row, descending).into_iter().map(|i| row[i]).collect())
}

fn positions(x: &Nd, axis: usize, descending: bool) -> Nd {
    x.rows(&[axis], |row| order(row, descending).into_iter().map(|i| i as f64).collect())
}

fn pair(result: pellucid_tensor::Result<(Tensor, Tensor)>) -> pellucid_tensor::Result<Vec<Tensor>> {
    result.map(|(values, positions)| vec![values, positions])
}

pub(super) fn rows() -> Vec<Row> {
    let sort = |axis, down| move |x: &[Tensor]| pair(ops::sort(&x[0], axis, down));
    let sorted = |axis, down| move |x: &[Nd]| vec![values(&x[0], axis, down), positions(&x[0], axis, down)];
    let top = |k, axis, largest| move |x: &[Tensor]| pair(ops::topk(&x[0], k, axis, largest));
    let first = |k, axis, down| {
        move |x: &[Nd]| {
            vec![values(&x[0], axis, down).narrow(axis, 0, k), positions(&x[0], axis, down).narrow(axis, 0, k)]
        }
    };
    let both = [Rule::Any, Rule::Always(DType::I64)];
    vec![
        Row::new("sort")
            .rules(both)
            .outputs("up", [real([2, 5])], sort(-1, false), sorted(1, false))
            .outputs("down", [real([2, 5])], sort(-1, true), sorted(1, true))
            .outputs("along the first", [real([4, 2])], sort(0, false), sorted(0, false))
            .floats_only()
            .outputs("long", [real([1500])], sort(0, false), sorted(0, false))
            .long()
            .outputs("nothing", [real([0, 2])], sort(0, false), sorted(0, false))
            .floats_only()
            .check("a 0-d tensor must be an error, since it has no axis", || {
                Ok(ops::sort(&Tensor::from(1.0), 0, false).is_err())
            }),
        Row::new("msort")
            .case("the first axis", [real([4, 2])], |x| ops::msort(&x[0]), |x| values(&x[0], 0, false))
            .check("a 0-d tensor must be an error, since it has no axis", || {
                Ok(ops::msort(&Tensor::from(1.0)).is_err())
            }),
        Row::new("argsort")
            .rule(Rule::Always(DType::I64))
            .untracked()
            .case("up", [real([2, 5])], |x| ops::argsort(&x[0], -1, false), |x| positions(&x[0], 1, false))
            .case(
                "down along the first",
                [real([5, 2])],
                |x| ops::argsort(&x[0], 0, true),
                |x| positions(&x[0], 0, true),
            )
            .check("the sort must be stable in both directions", || {
                let x = Tensor::from([1i64, 0, 1, 0]);
                let (up, down) = (ops::argsort(&x, 0, false)?, ops::argsort(&x, 0, true)?);
                Ok(up.to_vec::<i64>() == [1, 3, 0, 2] && down.to_vec::<i64>() == [0, 2, 1, 3])
            }),
        Row::new("argpartition")
            .rule(Rule::Always(DType::I64))
            .untracked()
            .case("the middle", [real([2, 5])], |x| ops::argpartition(&x[0], 2, -1), |x| positions(&x[0], 1, false))
            .check("a position outside the axis must be an error", || {
                let rejected = |kth| Ok::<_, Error>(ops::argpartition(&Tensor::from([1.0, 2.0]), kth, 0).is_err());
                Ok(rejected(2)? && rejected(-3)? && !rejected(-2)?)
            }),
        Row::new("lexsort")
            .rule(Rule::Always(DType::I64))
            .untracked()
            .case("one key", [real([2, 5])], |x| ops::lexsort(&[&x[0]], -1), |x| positions(&x[0], 1, false))
            .check("the last key must be the primary one", || {
                let (minor, major) =
                    (Tensor::from([[9i64, 4, 0, 4], [1, 2, 1, 1]]), Tensor::from([[1i64, 5, 1, 4], [2, 2, 1, 2]]));
                let order = ops::lexsort(&[&minor, &major], 1)?;
                Ok(order.to_vec::<i64>() == [2, 0, 3, 1, 2, 0, 3, 1])
            })
            .check("no key must be an error", || Ok(ops::lexsort(&[] as &[Tensor], 0).is_err()))
            .check("keys of unequal shapes must be an error", || {
                let keys = [Tensor::from([1.0]), Tensor::from([1.0, 2.0])];
                Ok(matches!(ops::lexsort(&keys, 0), Err(Error::ShapeMismatch { .. })))
            }),
        Row::new("topk")
            .rules(both)
            .outputs("the largest", [real([2, 5])], top(2, -1, true), first(2, 1, true))
            .outputs("the smallest", [real([5, 2])], top(3, 0, false), first(3, 0, false))
            .floats_only()
            .outputs("none", [real([2, 3])], top(0, 1, true), first(0, 1, true))
            .floats_only()
            .check("more elements than available must be an error", || {
                Ok(matches!(ops::topk(&Tensor::from([1.0]), 2, 0, true), Err(Error::InvalidArgument { .. })))
            }),
        Row::new("kthvalue")
            .rules(both)
            .outputs(
                "the second",
                [real([2, 5])],
                |x| pair(ops::kthvalue(&x[0], 2, -1)),
                |x| {
                    vec![
                        values(&x[0], 1, false).narrow(1, 1, 1).reshape(&[2]),
                        positions(&x[0], 1, false).narrow(1, 1, 1).reshape(&[2]),
                    ]
                },
            )
            .check("k = 0 must be an error", || Ok(ops::kthvalue(&Tensor::from([1.0]), 0, 0).is_err()))
            .check("k beyond the axis must be an error", || Ok(ops::kthvalue(&Tensor::from([1.0]), 2, 0).is_err())),
    ]
}
