//! Norms and distances.

use crate::table::nd::Nd;
use crate::table::row::{Row, Rule, real, shape_rejected};
use pellucid_tensor::{DType, Tensor, ops};

fn norm(x: impl Iterator<Item = f64>, p: f64) -> f64 {
    x.map(|v| v.abs().powf(p)).sum::<f64>().powf(1.0 / p)
}

fn row(x: &Nd, i: usize) -> impl Iterator<Item = f64> {
    let width = x.shape[x.shape.len() - 1];
    x.data[i * width..(i + 1) * width].iter().copied()
}

fn distance(a: &Nd, i: usize, b: &Nd, j: usize, p: f64) -> f64 {
    norm(row(a, i).zip(row(b, j)).map(|(a, b)| a - b), p)
}

fn cosine(a: &Nd, b: &Nd, i: usize) -> f64 {
    row(a, i).zip(row(b, i)).map(|(a, b)| a * b).sum::<f64>() / (norm(row(a, i), 2.0) * norm(row(b, i), 2.0))
}

/// Returns enough points for several blocks of `pdist` with different sizes.
fn points() -> Tensor {
    let coordinates: Vec<f64> = (0..780).map(|i| f64::from((i * i * 7 + 3 * i) % 101) / 10.0).collect();
    Tensor::from(&coordinates[..]).reshape([260, 3])
}

pub(super) fn rows() -> Vec<Row> {
    let pairs = || [real([2, 3]), real([2, 3])];
    let zero = || Tensor::zeros([2, 3], DType::F64);
    let rows = vec![
        Row::new("pairwise_distance")
            .case(
                "of order 2",
                pairs(),
                |x| ops::pairwise_distance(&x[0], &x[1], 2.0, 0.0, false),
                |x| Nd::from_fn(&[2], |ix| distance(&x[0], ix[0], &x[1], ix[0], 2.0)),
            )
            .floats_only()
            .case(
                "of order 3, kept",
                pairs(),
                |x| ops::pairwise_distance(&x[0], &x[1], 3.0, 0.0, true),
                |x| Nd::from_fn(&[2, 1], |ix| distance(&x[0], ix[0], &x[1], ix[0], 3.0)),
            )
            .floats_only()
            .check("eps must be added to every difference", move || {
                Ok((ops::pairwise_distance(&zero(), &zero(), 1.0, 0.5, false)?.to_vec::<f64>()[0] - 1.5).abs() < 1e-15)
            }),
        Row::new("dist")
            .case(
                "of order 2",
                pairs(),
                |x| ops::dist(&x[0], &x[1], 2.0),
                |x| Nd::scalar(norm(x[0].data.iter().zip(&x[1].data).map(|(a, b)| a - b), 2.0)),
            )
            .floats_only()
            .case(
                "of order 3, broadcast",
                [real([2, 3]), real([3])],
                |x| ops::dist(&x[0], &x[1], 3.0),
                |x| Nd::scalar(norm((0..6).map(|i| x[0].data[i] - x[1].data[i % 3]), 3.0)),
            )
            .floats_only()
            .check("shapes that do not broadcast must be an error", move || {
                shape_rejected(ops::dist(&zero(), &Tensor::zeros([2], DType::F64), 2.0))
            }),
        Row::new("cdist")
            .case(
                "of order 2",
                [real([2, 3]), real([4, 3])],
                |x| ops::cdist(&x[0], &x[1], 2.0),
                |x| Nd::from_fn(&[2, 4], |ix| distance(&x[0], ix[0], &x[1], ix[1], 2.0)),
            )
            .floats_only()
            .case(
                "of order 1.5",
                [real([2, 3]), real([1, 3])],
                |x| ops::cdist(&x[0], &x[1], 1.5),
                |x| Nd::from_fn(&[2, 1], |ix| distance(&x[0], ix[0], &x[1], ix[1], 1.5)),
            )
            .floats_only()
            .case(
                "of none",
                [real([0, 3]), real([2, 3])],
                |x| ops::cdist(&x[0], &x[1], 2.0),
                |_| Nd::from_fn(&[0, 2], |_| 0.0),
            )
            .floats_only()
            .check("unequal widths must be an error", move || {
                shape_rejected(ops::cdist(&zero(), &Tensor::zeros([2, 2], DType::F64), 2.0))
            }),
        Row::new("pdist")
            .case(
                "of order 2",
                [real([4, 2])],
                |x| ops::pdist(&x[0], 2.0),
                |x| {
                    let pairs: Vec<f64> = (0..4)
                        .flat_map(|i| (i + 1..4).map(move |j| (i, j)))
                        .map(|(i, j)| distance(&x[0], i, &x[0], j, 2.0))
                        .collect();
                    Nd { shape: vec![6], data: pairs }
                },
            )
            .floats_only()
            .check("the distances of many points must be elements of cdist", || {
                let (x, n) = (points(), points().shape()[0]);
                let all = ops::cdist(&x, &x, 2.0)?.to_vec::<f64>();
                let upper = (0..n).flat_map(|i| (i + 1..n).map(move |j| i * n + j)).map(|k| all[k].to_bits());
                Ok(ops::pdist(&x, 2.0)?.to_vec::<f64>().into_iter().map(f64::to_bits).eq(upper))
            })
            .check("the gradient of the sum of squares for n points must be 2n(x − mean x)", || {
                let x = points().requires_grad_(true);
                let squares = ops::mul(&ops::pdist(&x, 2.0)?, &ops::pdist(&x, 2.0)?)?;
                ops::sum(&squares, ..)?.backward();
                let n = x.shape()[0] as f64;
                let expected = ops::mul(&ops::sub(&x, x.mean(0))?, 2.0 * n)?;
                let differences = ops::sub(x.grad().expect("x must have a gradient"), &expected)?;
                Ok(differences.to_vec::<f64>().into_iter().all(|d| d.abs() < 1e-8 * n))
            })
            .check("one point must have no pairs", || {
                Ok(ops::pdist(&Tensor::zeros([1, 2], DType::F32), 2.0)?.size() == 0)
            })
            .check("a vector must be an error", || shape_rejected(ops::pdist(&Tensor::zeros([2], DType::F32), 2.0))),
        Row::new("cosine_similarity")
            .case(
                "of rows",
                pairs(),
                |x| ops::cosine_similarity(&x[0], &x[1], -1, 1e-8),
                |x| Nd::from_fn(&[2], |ix| cosine(&x[0], &x[1], ix[0])),
            )
            .floats_only()
            .check("an empty input must give 0", move || {
                Ok(ops::cosine_similarity(&zero(), &zero(), 1, 1e-8)?.to_vec::<f64>() == [0.0, 0.0])
            })
            .check("shapes that do not broadcast must be an error", move || {
                shape_rejected(ops::cosine_similarity(&zero(), &Tensor::zeros([4], DType::F64), 1, 1e-8))
            }),
        Row::new("normalize")
            .case(
                "rows",
                [real([2, 3])],
                |x| ops::normalize(&x[0], 2.0, 1, 1e-12),
                |x| Nd::from_fn(&[2, 3], |ix| x[0].at(ix) / norm(row(&x[0], ix[0]), 2.0)),
            )
            .floats_only()
            .case(
                "rows, of order 3",
                [real([2, 3])],
                |x| ops::normalize(&x[0], 3.0, -1, 1e-12),
                |x| Nd::from_fn(&[2, 3], |ix| x[0].at(ix) / norm(row(&x[0], ix[0]), 3.0)),
            )
            .floats_only(),
        Row::new("renorm")
            .case(
                "the longer rows",
                [real([3, 3])],
                |x| ops::renorm(&x[0], 2.0, 0, 1.5),
                |x| {
                    Nd::from_fn(&[3, 3], |ix| {
                        let length = norm(row(&x[0], ix[0]), 2.0);
                        x[0].at(ix) * if length > 1.5 { 1.5 / (length + 1e-7) } else { 1.0 }
                    })
                },
            )
            .floats_only()
            .check("a vector must be an error", || shape_rejected(ops::renorm(&Tensor::from([1.0]), 2.0, 0, 1.0)))
            .check("a negative norm must be an error", || {
                Ok(ops::renorm(&Tensor::zeros([1, 1], DType::F32), 2.0, 0, -1.0).is_err())
            }),
    ];
    rows.into_iter().map(|row| row.rule(Rule::FloatsOnly).ordinary().ulps(64.0).scale(2.0)).collect()
}
