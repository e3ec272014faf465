//! Convolution and correlation of sequences.

use crate::table::nd::Nd;
use crate::table::row::{Gradient::Third, Input, Row, Rule, real, shape_rejected};
use ops::ConvolveMode::{self, Full, Same, Valid};
use pellucid_tensor::{DType, Result, Tensor, ops};

type Call = fn(&Tensor, &Tensor, ConvolveMode) -> Result<Tensor>;

/// Computes Σ aᵢ·vⱼ over i + j = k.
fn full(a: &[f64], v: &[f64]) -> Vec<f64> {
    let mut sums = vec![0.0; a.len() + v.len() - 1];
    a.iter().enumerate().for_each(|(i, a)| v.iter().enumerate().for_each(|(j, v)| sums[i + j] += a * v));
    sums
}

/// Returns the part of the full result for a mode, as the documentation of NumPy and its results state it.
fn part(sums: &[f64], n: usize, m: usize, mode: ConvolveMode, reversed: bool) -> Nd {
    let (short, long) = (n.min(m), n.max(m));
    let range = match mode {
        Full => 0..sums.len(),
        Valid => short - 1..long,
        // If the second sequence is longer, NumPy correlates the sequences in reverse order and reverses the result.
        Same if reversed => short / 2..short / 2 + long,
        Same => (short - 1) / 2..(short - 1) / 2 + long,
    };
    let data = sums[range].to_vec();
    Nd { shape: vec![data.len()], data }
}

fn row(name: &'static str, call: Call, correlates: bool) -> Row {
    let mut row = Row::new(name).rule(Rule::NoTruth).scale(8.0).gradient(Third);
    for (n, m) in [(5, 3), (3, 5), (4, 2), (2, 4), (3, 3), (1, 1), (1, 3)] {
        for mode in [Full, Same, Valid] {
            let inputs = [n, m].map(|len| Input { shape: vec![len], ..real([]) });
            row = row.case(
                format!("{n} by {m}, {mode:?}"),
                inputs,
                move |x| call(&x[0], &x[1], mode),
                move |x| {
                    let mut v = x[1].data.clone();
                    if correlates {
                        v.reverse();
                    }
                    part(&full(&x[0].data, &v), n, m, mode, correlates && n < m)
                },
            );
            if (n, m) != (4, 2) {
                row = row.floats_only();
            }
        }
    }
    row.ordinary()
        .check("an empty sequence must be an error", move || {
            shape_rejected(call(&Tensor::zeros([0], DType::F32), &Tensor::from([1f32]), Full))
        })
        .check("matrices must be an error", move || {
            shape_rejected(call(&Tensor::from([[1.0]]), &Tensor::from([1.0]), Full))
        })
}

pub(super) fn rows() -> Vec<Row> {
    let (a, v) = (|| Tensor::from([1.0, 2.0, 3.0]), || Tensor::from([0.0, 1.0, 0.5]));
    vec![
        row("convolve", ops::convolve, false).check("the example of NumPy's documentation", move || {
            let of = |mode| ops::convolve(&a(), &v(), mode).map(|y| y.to_vec::<f64>());
            Ok(of(Full)? == [0.0, 1.0, 2.5, 4.0, 1.5] && of(Same)? == [1.0, 2.5, 4.0] && of(Valid)? == [2.5])
        }),
        row("correlate", ops::correlate, true).check("the example of NumPy's documentation", move || {
            let of = |mode| ops::correlate(&a(), &v(), mode).map(|y| y.to_vec::<f64>());
            Ok(of(Full)? == [0.5, 2.0, 3.5, 3.0, 0.0] && of(Same)? == [2.0, 3.5, 3.0] && of(Valid)? == [3.5])
        }),
    ]
}
