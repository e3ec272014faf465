//! Sampling of images at grid positions, and affine grids.

use super::resample::keys;
use crate::table::nd::{Nd, indices};
use crate::table::row::{Input, Kind, Row, Rule, real, shape_rejected};
use pellucid_tensor::ops::GridSampleMode::{Cubic, Linear, Nearest};
use pellucid_tensor::ops::GridSamplePadding::{Border, Reflection, Zeros};
use pellucid_tensor::ops::{GridSampleMode, GridSamplePadding};
use pellucid_tensor::{DType, Error, Tensor, ops};

/// The interpolation mode, padding mode and corner alignment of a sample.
#[derive(Clone, Copy, Debug)]
struct SampleConfig {
    mode: GridSampleMode,
    outside: GridSamplePadding,
    align: bool,
}

impl SampleConfig {
    /// Maps a coordinate into an axis of length `len` if the padding mode requires it.
    fn bounded(&self, at: f64, len: usize) -> f64 {
        let last = len as f64 - 1.0;
        let (low, high) = if self.align { (0.0, last) } else { (-0.5, last + 0.5) };
        let mut at = at;
        match self.outside {
            Zeros => return at,
            Border => {}
            Reflection if low == high => at = 0.0,
            // Reflected at the ends until it is inside.
            Reflection => {
                while at < low || at > high {
                    at = if at < low { 2.0 * low - at } else { 2.0 * high - at };
                }
            }
        }
        at.clamp(0.0, last)
    }

    /// Returns elements and weights along an axis for a coordinate from −1 to 1; the elements may be out of bounds.
    fn taps(&self, place: f64, len: usize) -> Vec<(f64, f64)> {
        let l = len as f64;
        let at = if self.align { (place + 1.0) / 2.0 * (l - 1.0) } else { ((place + 1.0) * l - 1.0) / 2.0 };
        match self.mode {
            Nearest => vec![(self.bounded(at, len).round_ties_even(), 1.0)],
            Linear => {
                let at = self.bounded(at, len);
                vec![(at.floor(), 1.0 - (at - at.floor())), (at.floor() + 1.0, at - at.floor())]
            }
            Cubic => {
                let elements = (-1..=2).map(|k| at.floor() + f64::from(k));
                elements.map(|e| (self.bounded(e, len), keys(at - e))).collect()
            }
        }
    }
}

fn sampled(x: &Nd, grid: &Nd, how: SampleConfig) -> Nd {
    let (dims, spatial) = (&x.shape[2..], x.shape.len() - 2);
    Nd::from_fn(&[&x.shape[..2], &grid.shape[1..=spatial]].concat(), |ix| {
        let place = |a: usize| grid.at(&[&ix[..1], &ix[2..], &[spatial - 1 - a]].concat());
        let axes: Vec<Vec<(f64, f64)>> = (0..spatial).map(|a| how.taps(place(a), dims[a])).collect();
        let counts: Vec<usize> = axes.iter().map(Vec::len).collect();
        let part = |taps: Vec<usize>| {
            let taps: Vec<(f64, f64)> = taps.iter().zip(&axes).map(|(&t, axis)| axis[t]).collect();
            let inside = taps.iter().zip(dims).all(|((e, _), &len)| *e >= 0.0 && *e < len as f64);
            let element: Vec<usize> = taps.iter().map(|(e, _)| *e as usize).collect();
            let weight: f64 = taps.iter().map(|(_, w)| w).product();
            if inside { weight * x.at(&[&ix[..2], &element[..]].concat()) } else { 0.0 }
        };
        indices(&counts).into_iter().map(part).sum()
    })
}

/// The kinks: coordinates at which the nearest elements of axes of lengths three and two change.
const KINKS: &[f64] = &[
    -5.0 / 3.0,
    -1.5,
    -4.0 / 3.0,
    -1.0,
    -2.0 / 3.0,
    -0.5,
    -1.0 / 3.0,
    0.0,
    1.0 / 3.0,
    0.5,
    2.0 / 3.0,
    1.0,
    4.0 / 3.0,
    1.5,
    5.0 / 3.0,
];

fn places<const N: usize>(shape: [usize; N]) -> Input {
    Input { shape: shape.into(), kind: Kind::Number { range: -1.7..=1.7, away: KINKS } }
}

fn case(row: Row, label: String, inputs: [Input; 2], how: SampleConfig) -> Row {
    row.case(
        label,
        inputs,
        move |x| ops::grid_sample(&x[0], &x[1].to_dtype(x[0].dtype()), how.mode, how.outside, how.align),
        move |x| sampled(&x[0], &x[1], how),
    )
    .floats_only()
}

/// Iterates over all combinations of modes, with and without aligned corners.
fn modes() -> impl Iterator<Item = (GridSampleMode, GridSamplePadding, bool)> {
    let each = |mode| [Zeros, Border, Reflection].into_iter().map(move |outside| (mode, outside));
    let all = [Nearest, Linear, Cubic].into_iter().flat_map(each);
    all.flat_map(|(mode, outside)| [false, true].map(|align| (mode, outside, align)))
}

fn grid_sample() -> Row {
    // Products with a weight of 0, and coordinates that are not finite, are unspecified.
    let mut row = Row::new("grid_sample").scale(8.0).ulps(64.0).ordinary();
    for (mode, outside, align) in modes() {
        let how = SampleConfig { mode, outside, align };
        row = case(row, format!("a plane, {how:?}"), [real([1, 2, 3, 2]), places([1, 1, 3, 2])], how);
        row = case(row, format!("a space, {how:?}"), [real([1, 1, 2, 3, 2]), places([1, 1, 2, 1, 3])], how);
    }
    let how = SampleConfig { mode: Linear, outside: Zeros, align: false };
    row = case(row, "several images".into(), [real([2, 1, 2, 3]), places([2, 2, 1, 2])], how);
    row = case(row, "no image".into(), [real([0, 1, 2, 3]), places([0, 2, 2, 2])], how);
    row = case(row, "no place".into(), [real([1, 1, 2, 3]), places([1, 0, 2, 2])], how);
    let reflected = SampleConfig { outside: Reflection, align: true, ..how };
    row = case(row, "reflected in one element".into(), [real([1, 1, 1, 3]), places([1, 2, 2, 2])], reflected);
    let image = || Tensor::ones([1, 1, 2, 2], DType::F64);
    let sample = |x: &Tensor, grid: &Tensor| ops::grid_sample(x, grid, Linear, Zeros, false);
    row.check("a grid of another batch size must be an error", move || {
        shape_rejected(sample(&image(), &Tensor::zeros([2, 1, 1, 2], DType::F64)))
    })
    .check("three coordinates for two axes must be an error", move || {
        shape_rejected(sample(&image(), &Tensor::zeros([1, 1, 1, 3], DType::F64)))
    })
    .check("another rank must be an error", move || {
        shape_rejected(sample(&Tensor::ones([1, 1, 2], DType::F64), &Tensor::zeros([1, 1, 1], DType::F64)))
    })
    .check("an empty image must be an error", move || {
        shape_rejected(sample(&Tensor::ones([1, 1, 0, 2], DType::F64), &Tensor::zeros([1, 1, 1, 2], DType::F64)))
    })
    .check("unequal dtypes must be an error", move || {
        let rejected = sample(&image(), &Tensor::zeros([1, 1, 1, 2], DType::F32));
        Ok(matches!(rejected, Err(Error::DTypeMismatch { .. })))
    })
    .check("integers", move || {
        let rejected = sample(&image().to_dtype(DType::I64), &Tensor::zeros([1, 1, 1, 2], DType::I64));
        Ok(matches!(rejected, Err(Error::DTypeMismatch { .. })))
    })
    .check("extreme coordinates must read inside the image, and NaN must give NaN", move || {
        let mut fits = true;
        for place in [1e300, -1e300, f64::INFINITY, f64::NEG_INFINITY, f64::NAN] {
            let grid = Tensor::full([1, 1, 1, 2], place, DType::F64);
            for (mode, outside, align) in modes() {
                let y = ops::grid_sample(&image(), &grid, mode, outside, align)?;
                fits &= !place.is_nan() || y.item::<f64>().is_nan();
            }
        }
        Ok(fits)
    })
    .check("the gradient of the nearest element with respect to the grid must be 0", move || {
        let grid = Tensor::zeros([1, 1, 1, 2], DType::F64).requires_grad_(true);
        ops::grid_sample(&image(), &grid, Nearest, Zeros, true)?.backward();
        Ok(grid.grad().is_some_and(|g| g.to_vec::<f64>() == [0.0, 0.0]))
    })
}

fn affine(theta: &Nd, dims: &[usize], align: bool) -> Nd {
    let spatial = dims.len();
    let place = |i: usize, len: usize| {
        let middle = (len as f64 - 1.0) / 2.0;
        let half = if align { middle } else { len as f64 / 2.0 };
        if half == 0.0 { 0.0 } else { (i as f64 - middle) / half }
    };
    Nd::from_fn(&[&theta.shape[..1], dims, &[spatial]].concat(), |ix| {
        let row = |k: usize| theta.at(&[ix[0], ix[spatial + 1], k]);
        (0..spatial).map(|k| row(k) * place(ix[spatial - k], dims[spatial - 1 - k])).sum::<f64>() + row(spatial)
    })
}

fn affine_grid() -> Row {
    let mut row = Row::new("affine_grid").rule(Rule::FloatsOnly).scale(4.0);
    let cases: [(&str, [usize; 3], &'static [usize]); 4] = [
        ("a plane", [2, 2, 3], &[2, 3]),
        ("a space", [1, 3, 4], &[2, 1, 3]),
        ("one element", [1, 2, 3], &[1, 1]),
        ("no map", [0, 2, 3], &[2, 2]),
    ];
    for (label, shape, dims) in cases {
        for align in [false, true] {
            let label = if align { format!("{label}, corners") } else { label.to_string() };
            // Infinity times the coordinate 0 is NaN.
            row = row.case(
                label,
                [real(shape)],
                move |x| ops::affine_grid(&x[0], dims, align),
                move |x| affine(&x[0], dims, align),
            );
        }
    }
    let theta = || Tensor::ones([1, 2, 3], DType::F64);
    row.check("a wrong number of lengths must be an error", move || {
        shape_rejected(ops::affine_grid(&theta(), &[2, 2, 2], true))
    })
    .check("one axis must be an error", || {
        shape_rejected(ops::affine_grid(&Tensor::ones([1, 1, 2], DType::F64), &[2], true))
    })
    .check("a result beyond the memory must be an error", move || {
        Ok(matches!(ops::affine_grid(&theta(), &[1 << 40, 1 << 40], true), Err(Error::OutOfMemory { .. })))
    })
    .check("zero positions", move || Ok(ops::affine_grid(&theta(), &[0, 2], false)?.shape()[..] == [1, 0, 2, 2]))
}

pub(super) fn rows() -> Vec<Row> {
    vec![grid_sample(), affine_grid()]
}
