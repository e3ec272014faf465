//! Products and combinations of elements, and the indices of triangles.

use crate::table::nd::Nd;
use crate::table::row::{Row, argument_rejected, real, shape_rejected};
use pellucid_tensor::{DType, Error, Result, Tensor, ops};

/// Returns the rows of positions in `0..n` for which `keep` is true, in lexicographic order, by counting in base n.
fn rows_of_positions(n: usize, r: usize, keep: fn(usize, usize) -> bool) -> Vec<Vec<usize>> {
    let digits = |k: usize| (0..r).map(|d| k / n.pow((r - 1 - d) as u32) % n).collect::<Vec<_>>();
    (0..n.pow(r as u32)).map(digits).filter(|row| row.windows(2).all(|w| keep(w[0], w[1]))).collect()
}

fn picked(x: &Nd, r: usize, keep: fn(usize, usize) -> bool) -> Nd {
    let rows = rows_of_positions(x.data.len(), r, keep);
    Nd { shape: vec![rows.len(), r], data: rows.into_iter().flatten().map(|i| x.data[i]).collect() }
}

/// Checks all triangles of small matrices against a test of every element.
fn agrees(call: fn(usize, usize, isize) -> Result<Tensor>, keep: fn(isize, isize) -> bool) -> Result<bool> {
    let mut all = true;
    for (rows, columns) in [(0, 0), (0, 3), (3, 0), (1, 1), (2, 5), (5, 2), (4, 4)] {
        for offset in -7..=7 {
            let at = (0..rows as i64).flat_map(|i| (0..columns as i64).map(move |j| (i, j)));
            let at: Vec<(i64, i64)> = at.filter(|&(i, j)| keep((j - i) as isize, offset)).collect();
            let expected: Vec<i64> = at.iter().map(|p| p.0).chain(at.iter().map(|p| p.1)).collect();
            let y = call(rows, columns, offset)?;
            all &= y.to_vec::<i64>() == expected && y.shape()[..] == [2, at.len()] && y.dtype() == DType::I64;
        }
    }
    Ok(all)
}

pub(super) fn rows() -> Vec<Row> {
    vec![
        Row::new("cartesian_prod")
            .case(
                "three vectors",
                [real([2]), real([3]), real([1])],
                |x| ops::cartesian_prod(x),
                |x| {
                    Nd::from_fn(&[6, 3], |ix| match ix[1] {
                        0 => x[0].data[ix[0] / 3],
                        1 => x[1].data[ix[0] % 3],
                        _ => x[2].data[0],
                    })
                },
            )
            .case("one vector", [real([3])], |x| ops::cartesian_prod(x), |x| x[0].clone())
            .floats_only()
            .case(
                "an empty vector",
                [real([2]), real([0])],
                |x| ops::cartesian_prod(x),
                |_| Nd::from_fn(&[0, 2], |_| 0.0),
            )
            .floats_only()
            .check("matrices must be an error", || shape_rejected(ops::cartesian_prod(&[Tensor::from([[1.0]])])))
            .check("no vector must be an error", || argument_rejected(ops::cartesian_prod(&[] as &[Tensor]))),
        Row::new("combinations")
            .case("pairs", [real([4])], |x| ops::combinations(&x[0], 2, false), |x| picked(&x[0], 2, |a, b| a < b))
            .case("triples", [real([4])], |x| ops::combinations(&x[0], 3, false), |x| picked(&x[0], 3, |a, b| a < b))
            .floats_only()
            .case(
                "with replacement",
                [real([3])],
                |x| ops::combinations(&x[0], 3, true),
                |x| picked(&x[0], 3, |a, b| a <= b),
            )
            .floats_only()
            .case("too few", [real([2])], |x| ops::combinations(&x[0], 3, false), |_| Nd::from_fn(&[0, 3], |_| 0.0))
            .floats_only()
            .check("no element must give one empty combination", || {
                let x = Tensor::from([1.0, 2.0]);
                Ok([false, true].iter().all(|&again| x.combinations(0, again).shape()[..] == [1, 0]))
            })
            .check("nothing must have combinations of nothing only", || {
                let x = Tensor::zeros([0], DType::F32);
                Ok(x.combinations(2, true).shape()[..] == [0, 2] && x.combinations(0, true).shape()[..] == [1, 0])
            })
            .check("a matrix must be an error", || shape_rejected(ops::combinations(&Tensor::from([[1.0]]), 1, false)))
            .check("more combinations than memory must be an error", || {
                let many = Tensor::zeros([100], DType::U8);
                Ok(matches!(ops::combinations(&many, 50, false), Err(Error::OutOfMemory { .. })))
            }),
        Row::new("tril_indices")
            .check("the positions must form the triangle", || agrees(ops::tril_indices, |above, k| above <= k)),
        Row::new("diag_indices").check("the positions of the main diagonal, one row for each axis", || {
            let rows = ops::diag_indices(3, 2)?.to_vec2::<i64>();
            let is_empty = |n, axes| Ok::<_, Error>(ops::diag_indices(n, axes)?.shape()[..] == [axes, n]);
            Ok(rows == [[0, 1, 2], [0, 1, 2]] && is_empty(0, 3)? && is_empty(4, 0)?)
        }),
        Row::new("tri").check("ones on and below the diagonal, for every dtype", || {
            let fits = |dtype, k: isize| {
                let expected: Vec<i64> =
                    (0..3).flat_map(|i| (0..4).map(move |j| i64::from(j as isize - i as isize <= k))).collect();
                let y = ops::tri(3, 4, k, dtype)?;
                Ok::<_, Error>(y.dtype() == dtype && y.to_dtype(DType::I64).to_vec::<i64>() == expected)
            };
            let offsets = || [isize::MIN, -3, -1, 0, 2, 9, isize::MAX];
            let mut all = DType::ALL.into_iter().flat_map(|dtype| offsets().map(|k| (dtype, k)));
            all.try_fold(true, |so_far, (dtype, k)| Ok(so_far && fits(dtype, k)?))
        }),
        Row::new("triu_indices")
            .check("the positions must form the triangle", || agrees(ops::triu_indices, |above, k| above >= k)),
    ]
}
