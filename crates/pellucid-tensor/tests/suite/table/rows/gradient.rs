//! Derivatives of sampled functions.

use crate::table::nd::Nd;
use crate::table::row::{Row, Rule, argument_rejected, axis_rejected, real, shape_rejected};
use ops::Spacing;
use pellucid_tensor::{Tensor, ops};

/// Returns the slope at `at` of the polynomial through these points: Lagrange's formula, differentiated term by term.
fn slope(points: &[(f64, f64)], at: f64) -> f64 {
    let term = |i: usize| -> f64 {
        let others = || (0..points.len()).filter(move |&j| j != i);
        let scale: f64 = others().map(|j| points[i].0 - points[j].0).product();
        let without = |j: usize| others().filter(move |&k| k != j).map(|k| at - points[k].0).product::<f64>();
        points[i].1 / scale * others().map(without).sum::<f64>()
    };
    (0..points.len()).map(term).sum()
}

/// Returns the slopes at all samples.
fn slopes(y: &[f64], x: impl Fn(usize) -> f64, edge_order: usize) -> Vec<f64> {
    let points: Vec<(f64, f64)> = y.iter().enumerate().map(|(i, &v)| (x(i), v)).collect();
    let last = y.len() - 1;
    let around = |i: usize| match i {
        0 => &points[..=edge_order],
        i if i == last => &points[last - edge_order..],
        i => &points[i - 1..=i + 1],
    };
    (0..y.len()).map(|i| slope(around(i), x(i))).collect()
}

pub(super) fn rows() -> Vec<Row> {
    let at = |i: usize| [0.0, 1.0, 1.5, 4.0][i];
    let row = Row::new("gradient")
        .case(
            "of steps, down",
            [real([4, 2])],
            |x| ops::gradient(&x[0], Spacing::Step(0.5), 0, 1),
            |x| x[0].rows(&[0], |y| slopes(y, |i| 0.5 * i as f64, 1)),
        )
        .floats_only()
        .case(
            "parabolas at the ends",
            [real([2, 3])],
            |x| ops::gradient(&x[0], Spacing::Step(2.0), -1, 2),
            |x| x[0].rows(&[1], |y| slopes(y, |i| 2.0 * i as f64, 2)),
        )
        .floats_only()
        .case(
            "of points",
            [real([2, 4])],
            move |x| {
                let points = Tensor::from([0.0, 1.0, 1.5, 4.0]).to_dtype(x[0].dtype());
                ops::gradient(&x[0], Spacing::Points(&points), 1, 2)
            },
            move |x| x[0].rows(&[1], |y| slopes(y, at, 2)),
        )
        .floats_only()
        .case(
            "of two",
            [real([2])],
            |x| ops::gradient(&x[0], Spacing::Step(0.5), 0, 1),
            |x| Nd { shape: vec![2], data: vec![(x[0].data[1] - x[0].data[0]) / 0.5; 2] },
        )
        .floats_only()
        .case("of no sequence", [real([0, 3])], |x| ops::gradient(&x[0], Spacing::Step(1.0), 1, 2), |x| x[0].clone())
        .floats_only()
        .check("too few samples and invalid orders must be errors", || {
            let two = Tensor::from([1.0, 2.0]);
            Ok(argument_rejected(ops::gradient(&two, Spacing::Step(1.0), 0, 2))?
                && argument_rejected(ops::gradient(&two, Spacing::Step(1.0), 0, 0))?)
        })
        .check("an invalid axis must be an error", || {
            axis_rejected(ops::gradient(&Tensor::from([1.0, 2.0]), Spacing::Step(1.0), 1, 1))
        })
        .check("too few points must be an error", || {
            let (y, x) = (Tensor::from([1.0, 2.0, 4.0]), Tensor::from([0.0, 1.0]));
            shape_rejected(ops::gradient(&y, Spacing::Points(&x), 0, 1))
        });
    vec![row.rule(Rule::FloatsOnly).ordinary().ulps(64.0).scale(8.0)]
}
