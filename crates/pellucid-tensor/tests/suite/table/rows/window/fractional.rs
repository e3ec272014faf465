//! Fractional max pooling: windows at positions that random numbers determine.

use super::{batched, largest};
use crate::table::nd::{Nd, indices};
use crate::table::row::{Input, Row, Rule, argument_rejected, real, shape_rejected};
use pellucid_tensor::{DType, Error, Result, Tensor, manual_seed, ops};

type FractionalPool = fn(&Tensor, &[usize], &[usize], Option<&Tensor>) -> Result<(Tensor, Tensor)>;

/// The shape of x, the sizes and counts of the windows, and the random numbers of all channels.
type Case = (&'static str, &'static [usize], &'static [usize], &'static [usize], &'static [f64]);

/// Returns the first element of every window along an axis.
fn starts(u: f64, len: usize, size: usize, count: usize) -> Vec<usize> {
    let step = (len - size) as f64 / (count as f64 - 1.0);
    let spread = |o: usize| ((o as f64 + u) * step) as usize - (u * step) as usize;
    (0..count).map(|o| if o + 1 == count { len - size } else { spread(o) }).collect()
}

/// Returns the maximum of every window, and its flat spatial position.
fn pooled(x: &Nd, size: &[usize], counts: &[usize], numbers: &[f64]) -> [Nd; 2] {
    let (dims, axes) = (&x.shape[2..], size.len());
    // The first random number of a plane belongs to the columns.
    let number = |a: usize| if axes == 2 { 1 - a } else { a };
    let found = |ix: &[usize]| {
        let own = &numbers[(ix[0] * x.shape[1] + ix[1]) * axes..][..axes];
        let first: Vec<usize> =
            (0..axes).map(|a| starts(own[number(a)], dims[a], size[a], counts[a])[ix[2 + a]]).collect();
        let element = |tap: &Vec<usize>| {
            let place: Vec<usize> = (0..axes).map(|a| first[a] + tap[a]).collect();
            let flat = place.iter().zip(dims).fold(0, |flat, (&i, &len)| flat * len + i);
            (flat, x.at(&[&ix[..2], &place[..]].concat()))
        };
        largest(&indices(size).iter().map(element).collect::<Vec<_>>())
    };
    let shape = [&x.shape[..2], counts].concat();
    [Nd::from_fn(&shape, |ix| found(ix).1), Nd::from_fn(&shape, |ix| found(ix).0 as f64)]
}

fn row(name: &'static str, pool: FractionalPool, spatial: usize, cases: &[Case]) -> Row {
    let mut row = Row::new(name);
    for &(label, shape, size, counts, numbers) in cases {
        let lead = if shape.len() == spatial + 2 { shape[..2].to_vec() } else { vec![1, shape[0]] };
        let samples = move || Tensor::new(numbers, [lead[0], lead[1], spatial]);
        row = row.outputs(
            label,
            [Input { shape: shape.to_vec(), ..real([]) }],
            move |x| pool(&x[0], size, counts, Some(&samples())).map(|(values, positions)| vec![values, positions]),
            move |x| [0, 1].map(|k| batched(&x[0], spatial, |x| pooled(x, size, counts, numbers)[k].clone())).into(),
        );
    }
    let ones = move |len: usize| {
        let shape: Vec<usize> = [1, 2].into_iter().chain(std::iter::repeat_n(len, spatial)).collect();
        Tensor::ones(shape, DType::F64)
    };
    row.floats_only()
        .rules([Rule::Any, Rule::Always(DType::I64)])
        .check("different random numbers must give different windows", move || {
            manual_seed(4);
            let x = Tensor::rand([[8, 4].to_vec(), vec![13; spatial]].concat(), DType::F32);
            let positions = || pool(&x, &[2], &[5], None).map(|(_, positions)| positions.to_vec::<i64>());
            Ok(positions()? != positions()?)
        })
        .check("random numbers above 1 must give windows inside the image", move || {
            let samples = Tensor::full([1, 2, spatial], 1e30, DType::F64);
            let bad = pool(&ones(7), &[2], &[4], Some(&samples))?.0;
            let nan = pool(&ones(7), &[2], &[4], Some(&(samples * f64::NAN)))?.0;
            Ok(bad.to_vec::<f64>().iter().chain(&nan.to_vec::<f64>()).all(|&v| v == 1.0))
        })
        .check("another rank must be an error", move || {
            shape_rejected(pool(&Tensor::ones([2], DType::F64), &[1], &[1], None))
        })
        .check("a wrong number of random numbers must be an error", move || {
            shape_rejected(pool(&ones(5), &[2], &[2], Some(&Tensor::zeros([1, 3, spatial], DType::F64))))
        })
        .check("integer random numbers must be an error", move || {
            let samples = Tensor::zeros([1, 2, spatial], DType::I64);
            Ok(matches!(pool(&ones(5), &[2], &[2], Some(&samples)), Err(Error::DTypeMismatch { .. })))
        })
        .check("more windows than positions must be an error", move || {
            argument_rejected(pool(&ones(5), &[3], &[4], None))
        })
        .check("zero windows must be an error", move || argument_rejected(pool(&ones(5), &[3], &[0], None)))
        .check("a window size of 0 must be an error", move || argument_rejected(pool(&ones(5), &[0], &[2], None)))
}

pub(super) fn rows() -> Vec<Row> {
    let plane = row(
        "fractional_max_pool2d",
        |x, size, outputs, samples| ops::fractional_max_pool2d(x, size, outputs, samples),
        2,
        &[
            ("windows side by side", &[1, 2, 6, 4], &[2, 2], &[3, 2], &[0.1, 0.7, 0.9, 0.4]),
            ("windows that overlap", &[1, 1, 5, 7], &[3, 2], &[2, 5], &[0.35, 0.6]),
            ("one window", &[1, 1, 3, 4], &[2, 3], &[1, 1], &[0.5, 0.5]),
            ("one image", &[2, 4, 5], &[2, 2], &[3, 3], &[0.0, 0.99, 0.5, 0.25]),
            ("no image", &[0, 2, 4, 5], &[2, 2], &[3, 3], &[]),
        ],
    );
    let space = row(
        "fractional_max_pool3d",
        |x, size, outputs, samples| ops::fractional_max_pool3d(x, size, outputs, samples),
        3,
        &[
            ("a size and a count for each", &[1, 1, 3, 4, 5], &[2, 1, 2], &[2, 3, 3], &[0.2, 0.8, 0.55]),
            ("one image", &[1, 4, 3, 3], &[2, 2, 2], &[2, 2, 2], &[0.9, 0.1, 0.4]),
        ],
    );
    vec![plane, space]
}
