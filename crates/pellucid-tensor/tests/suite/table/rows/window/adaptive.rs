//! Adaptive pooling: a specified number of windows of almost equal size.

use super::{batched, largest};
use crate::table::nd::{Nd, indices};
use crate::table::row::{Input, Row, Rule, argument_rejected, real, shape_rejected};
use pellucid_tensor::{DType, Error, Result, Tensor, ops};

type Average = fn(&Tensor, &[Option<usize>]) -> Result<Tensor>;
type Largest = fn(&Tensor, &[Option<usize>]) -> Result<(Tensor, Tensor)>;
type Lengths = &'static [Option<usize>];

/// Applies `f` to every window, given as elements with their flat spatial positions.
fn windows(x: &Nd, lengths: Lengths, f: impl Fn(&[(usize, f64)]) -> f64) -> Nd {
    let dims = &x.shape[2..];
    let outputs: Vec<usize> =
        (0..dims.len()).map(|a| lengths[if lengths.len() == 1 { 0 } else { a }].unwrap_or(dims[a])).collect();
    Nd::from_fn(&[&x.shape[..2], &outputs[..]].concat(), |ix| {
        // Element i of L belongs to window o of O if their intervals of the axis overlap.
        let belongs = |place: &[usize]| {
            (0..dims.len()).all(|a| {
                let (i, o) = (place[a], ix[2 + a]);
                (i + 1) * outputs[a] > o * dims[a] && i * outputs[a] < (o + 1) * dims[a]
            })
        };
        let all = indices(dims);
        let own = all.iter().enumerate().filter(|(_, place)| belongs(place));
        f(&own.map(|(flat, place)| (flat, x.at(&[&ix[..2], &place[..]].concat()))).collect::<Vec<_>>())
    })
}

fn mean(all: &[(usize, f64)]) -> f64 {
    all.iter().map(|(_, v)| v).sum::<f64>() / all.len() as f64
}

/// Returns the rows of both pools of one rank, with these shapes and output lengths.
fn rows_of(
    names: [&'static str; 2],
    calls: (Average, Largest),
    spatial: usize,
    cases: &[(&'static str, &[usize], Lengths)],
) -> [Row; 2] {
    let (average, maximum) = calls;
    let mut rows = names.map(Row::new);
    for &(label, shape, lengths) in cases {
        let input = || [Input { shape: shape.to_vec(), ..real([]) }];
        let [avg, max] = rows;
        rows = [
            avg.case(
                label,
                input(),
                move |x| average(&x[0], lengths),
                move |x| batched(&x[0], spatial, |x| windows(x, lengths, mean)),
            )
            .floats_only(),
            max.outputs(
                label,
                input(),
                move |x| maximum(&x[0], lengths).map(|(values, positions)| vec![values, positions]),
                move |x| {
                    let values = batched(&x[0], spatial, |x| windows(x, lengths, |all| largest(all).1));
                    vec![values, batched(&x[0], spatial, |x| windows(x, lengths, |all| largest(all).0 as f64))]
                },
            )
            .floats_only(),
        ];
    }
    let ones = move |len: usize| {
        let shape: Vec<usize> = [1, 2].into_iter().chain(std::iter::repeat_n(len, spatial)).collect();
        Tensor::ones(shape, DType::F64)
    };
    let [avg, max] = rows;
    let avg = avg
        .scale(2.0)
        .check("another rank must be an error", move || {
            shape_rejected(average(&Tensor::ones([2], DType::F64), &[Some(1)]))
        })
        .check("a wrong number of lengths must be an error", move || {
            argument_rejected(average(&ones(2), &[Some(1); 4]))
        })
        .check("the mean of an empty image must be an error", move || shape_rejected(average(&ones(0), &[Some(1)])))
        .check("a result beyond the memory must be an error", move || {
            Ok(matches!(average(&ones(2), &[Some(usize::MAX)]), Err(Error::OutOfMemory { .. })))
        })
        .check("zero windows", move || Ok(average(&ones(2), &[Some(0)])?.size() == 0))
        .check("integers", move || {
            Ok(matches!(average(&ones(2).to_dtype(DType::I64), &[Some(1)]), Err(Error::DTypeMismatch { .. })))
        });
    let max = max
        .rules([Rule::Any, Rule::Always(DType::I64)])
        .check("another rank must be an error", move || {
            shape_rejected(maximum(&Tensor::ones([2], DType::F64), &[Some(1)]))
        })
        .check("a wrong number of lengths must be an error", move || {
            argument_rejected(maximum(&ones(2), &[Some(1); 4]))
        })
        .check("the maximum of an empty image must be an error", move || shape_rejected(maximum(&ones(0), &[Some(1)])))
        .check("a result beyond the memory must be an error", move || {
            Ok(matches!(maximum(&ones(2), &[Some(usize::MAX)]), Err(Error::OutOfMemory { .. })))
        })
        .check("zero windows", move || Ok(maximum(&ones(2), &[Some(0)])?.0.size() == 0))
        .check("integers", move || Ok(maximum(&ones(2).to_dtype(DType::I64), &[Some(1)])?.0.to_vec::<i64>() == [1, 1]));
    [avg, max]
}

pub(super) fn rows() -> Vec<Row> {
    let line = rows_of(
        ["adaptive_avg_pool1d", "adaptive_max_pool1d"],
        (ops::adaptive_avg_pool1d, ops::adaptive_max_pool1d),
        1,
        &[
            ("equal windows", &[2, 2, 6], &[Some(3)]),
            ("overlapping windows", &[1, 2, 5], &[Some(3)]),
            ("one window", &[1, 2, 5], &[Some(1)]),
            ("more windows than elements", &[1, 1, 3], &[Some(5)]),
            ("the same length", &[1, 2, 4], &[None]),
            ("one image", &[2, 5], &[Some(2)]),
            ("no image", &[0, 2, 5], &[Some(2)]),
        ],
    );
    let plane = rows_of(
        ["adaptive_avg_pool2d", "adaptive_max_pool2d"],
        (ops::adaptive_avg_pool2d, ops::adaptive_max_pool2d),
        2,
        &[
            ("one length for both", &[1, 2, 4, 3], &[Some(2)]),
            ("a length for each", &[1, 1, 5, 4], &[Some(3), Some(2)]),
            ("one axis kept", &[1, 1, 3, 5], &[None, Some(2)]),
            ("one image", &[2, 3, 3], &[Some(2)]),
            ("no image", &[0, 2, 3, 3], &[Some(2)]),
        ],
    );
    let space = rows_of(
        ["adaptive_avg_pool3d", "adaptive_max_pool3d"],
        (ops::adaptive_avg_pool3d, ops::adaptive_max_pool3d),
        3,
        &[
            ("one length for all", &[1, 1, 3, 2, 3], &[Some(2)]),
            ("a length for each", &[1, 1, 3, 2, 4], &[Some(2), None, Some(3)]),
            ("one image", &[1, 2, 3, 2], &[Some(1)]),
        ],
    );
    [line, plane, space].into_iter().flatten().collect()
}
