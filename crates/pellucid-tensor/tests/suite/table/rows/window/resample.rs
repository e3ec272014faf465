//! Resampling, compared with the weights of every element in every output.

use crate::table::nd::{Nd, indices};
use crate::table::row::{Input, Row, argument_rejected, real, shape_rejected};
use pellucid_tensor::ops::{InterpolationMode, Resize};
use pellucid_tensor::{DType, Error, Result, Tensor, ops};

/// Elements with their weights.
type WeightedElements = Vec<(usize, f64)>;

/// Computes Keys' cubic kernel with a = −0.75 at a distance.
pub fn keys(distance: f64) -> f64 {
    let (a, d) = (-0.75, distance.abs());
    match d {
        d if d <= 1.0 => (a + 2.0) * d.powi(3) - (a + 3.0) * d.powi(2) + 1.0,
        d if d < 2.0 => a * (d.powi(3) - 5.0 * d.powi(2) + 8.0 * d - 4.0),
        _ => 0.0,
    }
}

/// Returns the elements that output o of `to` reads from an axis of length `len`. Adjacent outputs are `scale` elements
/// apart.
fn weighted_elements(o: usize, len: usize, to: usize, scale: f64, mode: InterpolationMode) -> WeightedElements {
    let last = len as f64 - 1.0;
    let place = |align: bool| match (align, to) {
        (true, 1) => 0.0,
        (true, _) => o as f64 * last / (to as f64 - 1.0),
        (false, _) => (o as f64 + 0.5) * scale - 0.5,
    };
    let nearest = |at: f64| vec![(at.floor().min(last) as usize, 1.0)];
    match mode {
        InterpolationMode::Nearest => nearest(o as f64 * scale),
        InterpolationMode::NearestExact => nearest((o as f64 + 0.5) * scale),
        InterpolationMode::Linear { align_corners } => {
            let at = place(align_corners).clamp(0.0, last);
            (0..len).map(|i| (i, (1.0 - (at - i as f64).abs()).max(0.0))).collect()
        }
        InterpolationMode::Cubic { align_corners } => {
            let at = place(align_corners);
            let element = |k: i64| (k as f64).clamp(0.0, last) as usize;
            (at.floor() as i64 - 1..=at.floor() as i64 + 2).map(|k| (element(k), keys(at - k as f64))).collect()
        }
        InterpolationMode::LinearAntialias => filtered(o, len, scale, |d| (1.0 - d.abs()).max(0.0)),
        InterpolationMode::CubicAntialias => filtered(o, len, scale, |d| match d.abs() {
            d if d <= 1.0 => 1.5 * d.powi(3) - 2.5 * d.powi(2) + 1.0,
            d if d < 2.0 => -0.5 * (d.powi(3) - 5.0 * d.powi(2) + 8.0 * d - 4.0),
            _ => 0.0,
        }),
        InterpolationMode::Area => {
            let overlaps = |i: &usize| (i + 1) * to > o * len && i * to < (o + 1) * len;
            let all: Vec<usize> = (0..len).filter(overlaps).collect();
            all.iter().map(|&i| (i, 1.0 / all.len() as f64)).collect()
        }
    }
}

/// Returns the normalized weights of a filter around the center of output o. Downsampling stretches the filter by
/// `scale`.
fn filtered(o: usize, len: usize, scale: f64, filter: impl Fn(f64) -> f64) -> WeightedElements {
    let center = (o as f64 + 0.5) * scale;
    let weights: Vec<f64> = (0..len).map(|i| filter((i as f64 + 0.5 - center) / scale.max(1.0))).collect();
    let total: f64 = weights.iter().sum();
    weights.into_iter().map(|w| w / total).enumerate().collect()
}

/// Returns the output lengths and scales of the spatial axes.
fn lengths_and_scales(x: &Nd, size: &Resize) -> Vec<(usize, f64)> {
    let dims = x.shape[2..].iter().enumerate();
    dims.map(|(a, &len)| match size {
        Resize::To(to) => (to[a], len as f64 / to[a] as f64),
        Resize::By(by) => ((len as f64 * by[a]).floor() as usize, 1.0 / by[a]),
    })
    .collect()
}

fn interpolated(x: &Nd, size: &Resize, mode: InterpolationMode) -> Nd {
    let lengths_and_scales = lengths_and_scales(x, size);
    let lengths: Vec<usize> = lengths_and_scales.iter().map(|e| e.0).collect();
    Nd::from_fn(&[&x.shape[..2], &lengths[..]].concat(), |ix| {
        let axes: Vec<WeightedElements> = lengths_and_scales
            .iter()
            .enumerate()
            .map(|(a, &(to, scale))| weighted_elements(ix[2 + a], x.shape[2 + a], to, scale, mode))
            .collect();
        let counts: Vec<usize> = axes.iter().map(Vec::len).collect();
        let parts = indices(&counts).into_iter().map(|taps| {
            let place: Vec<usize> =
                taps.iter().zip(&axes).map(|(&t, weighted_elements)| weighted_elements[t].0).collect();
            let weight: f64 = taps.iter().zip(&axes).map(|(&t, weighted_elements)| weighted_elements[t].1).product();
            // Elements of weight 0 are not read, even if they are infinite.
            if weight == 0.0 { 0.0 } else { weight * x.at(&[&ix[..2], &place[..]].concat()) }
        });
        parts.sum()
    })
}

fn case(row: Row, label: &str, shape: &[usize], size: Resize, mode: InterpolationMode) -> Row {
    let to = size.clone();
    row.case(
        label,
        [Input { shape: shape.to_vec(), ..real([]) }],
        move |x| ops::interpolate(&x[0], to.clone(), mode),
        move |x| interpolated(&x[0], &size, mode),
    )
    .floats_only()
}

pub(super) fn rows() -> Vec<Row> {
    let to = |lengths: &[usize]| Resize::To(lengths.to_vec());
    let by = |factors: &[f64]| Resize::By(factors.to_vec());
    let [linear, corners] = [false, true].map(|align_corners| InterpolationMode::Linear { align_corners });
    let [cubic, cubic_corners] = [false, true].map(|align_corners| InterpolationMode::Cubic { align_corners });
    let (nearest, exact, area) = (InterpolationMode::Nearest, InterpolationMode::NearestExact, InterpolationMode::Area);
    let mut row = Row::new("interpolate").scale(4.0).ulps(16.0);
    for (label, mode) in [
        ("nearest", nearest),
        ("nearest, exactly", exact),
        ("linear", linear),
        ("linear, corners", corners),
        ("cubic", cubic),
        ("cubic, corners", cubic_corners),
        ("linear, antialias", InterpolationMode::LinearAntialias),
        ("cubic, antialias", InterpolationMode::CubicAntialias),
        ("area", area),
    ] {
        row = case(row, &format!("{label}: more"), &[1, 2, 3], to(&[7]), mode);
        row = case(row, &format!("{label}: fewer"), &[1, 2, 5], to(&[3]), mode);
        row = case(row, &format!("{label}: one of several"), &[1, 1, 4], to(&[1]), mode);
        row = case(row, &format!("{label}: several of one"), &[1, 1, 1], to(&[3]), mode);
        row = case(row, &format!("{label}: two axes"), &[1, 1, 3, 4], to(&[4, 3]), mode);
        row = case(row, &format!("{label}: three axes"), &[1, 1, 2, 1, 3], to(&[3, 2, 2]), mode);
        row = case(row, &format!("{label}: by a factor"), &[1, 1, 4], by(&[1.6]), mode);
        row = case(row, &format!("{label}: by factors"), &[1, 1, 3, 4], by(&[2.0, 0.6]), mode);
        row = case(row, &format!("{label}: no image"), &[0, 2, 3], to(&[2]), mode);
    }
    let image = || Tensor::ones([1, 1, 3], DType::F64);
    let result =
        |size: Resize| ops::interpolate(&Tensor::ones([1, 1, 3], DType::F64), size, InterpolationMode::Nearest);
    vec![
        row.check("a wrong number of lengths must be an error", move || argument_rejected(result(to(&[2, 2]))))
            .check("a wrong number of factors must be an error", move || argument_rejected(result(by(&[]))))
            .check("a length of 0 must be an error", move || argument_rejected(result(to(&[0]))))
            .check("a factor that gives length 0 must be an error", move || argument_rejected(result(by(&[0.2]))))
            .check("a negative factor must be an error", move || argument_rejected(result(by(&[-1.0]))))
            .check("a NaN factor must be an error", move || argument_rejected(result(by(&[f64::NAN]))))
            .check("an infinite factor must be an error", move || argument_rejected(result(by(&[f64::INFINITY]))))
            .check("a result beyond the memory must be an error", move || {
                Ok(matches!(result(to(&[usize::MAX])), Err(Error::OutOfMemory { .. })))
            })
            .check("another rank must be an error", move || {
                shape_rejected(ops::interpolate(&Tensor::ones([1, 2], DType::F64), to(&[]), nearest))
            })
            .check("an empty axis must be an error", move || {
                shape_rejected(ops::interpolate(&Tensor::ones([1, 2, 0], DType::F64), to(&[2]), nearest))
            })
            .check("integers must be copied by nearest elements, and rejected by interpolation", move || {
                let x = image().to_dtype(DType::U8);
                let picked: Result<Tensor> = ops::interpolate(&x, to(&[2]), nearest);
                let mixed = ops::interpolate(&x, to(&[2]), linear);
                Ok(picked?.to_vec::<u8>() == [1, 1] && matches!(mixed, Err(Error::DTypeMismatch { .. })))
            }),
    ]
}
