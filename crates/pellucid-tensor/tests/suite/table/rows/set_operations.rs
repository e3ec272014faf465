//! Sets of unique elements, compared with sets of integers.

use crate::table::row::Row;
use pellucid_tensor::{DType, Error, Result, Tensor, capture, ops};
use std::collections::BTreeSet;

type Call = fn(&Tensor, &Tensor) -> Result<Tensor>;

fn row(name: &'static str, call: Call, reference: fn(&BTreeSet<i64>, &BTreeSet<i64>) -> Vec<i64>) -> Row {
    Row::new(name)
        .check("the result must have the elements of the set, in ascending order", move || {
            let lists: [&[i64]; 5] = [&[3, 1, 3, -7], &[1, 9, 9, -7, 0], &[], &[5], &[0, 1, 2, 3, 4, 5, 6, 7]];
            lists.iter().flat_map(|a| lists.iter().map(move |b| (a, b))).try_fold(true, |all, (a, b)| {
                let [x, y] = [a, b].map(|v| Tensor::new(&v[..], [v.len()]));
                let [u, v] = [a, b].map(|v| v.iter().copied().collect::<BTreeSet<i64>>());
                Ok(all && call(&x, &y)?.to_vec::<i64>() == reference(&u, &v))
            })
        })
        .check("other shapes must be flattened, and dtypes promoted", move || {
            let y = call(&Tensor::from([[3i32, 1], [3, 2]]), &Tensor::from(2.5f64))?;
            let (u, v) = (BTreeSet::from([1, 2, 3]), BTreeSet::from([25]));
            Ok(y.rank() == 1 && y.dtype() == DType::F64 && y.numel() == reference(&u, &v).len())
        })
        .check("the length depends on values, so a captured step must reject it", move || {
            let x = Tensor::from([1i64, 2]);
            let rejected = capture(|x| call(&x[0], &x[0]), &[&x]);
            Ok(matches!(rejected, Err(Error::ReadInCapture { .. })))
        })
        .check("the gradient must go to the elements", move || {
            let x = Tensor::from([2.0, 1.0, 2.0]).requires_grad_(true);
            let y = call(&x, &Tensor::from([1.0]))?;
            let selected = y.to_vec::<f64>();
            if y.size() > 0 {
                ops::sum(&y, ..)?.backward();
            }
            let g = x.grad().map_or(vec![0.0; 3], |g| g.to_vec::<f64>());
            Ok(g.iter().sum::<f64>() <= selected.len() as f64 && g.iter().all(|v| [0.0, 1.0].contains(v)))
        })
}

pub(super) fn rows() -> Vec<Row> {
    vec![
        row("union1d", ops::union1d, |a, b| a.union(b).copied().collect()),
        row("intersect1d", ops::intersect1d, |a, b| a.intersection(b).copied().collect()),
        row("setdiff1d", ops::setdiff1d, |a, b| a.difference(b).copied().collect()),
        row("setxor1d", ops::setxor1d, |a, b| a.symmetric_difference(b).copied().collect()),
    ]
}
