//! Images read at given places, and affine maps of places.

use super::resample::keys;
use crate::table::nd::{Nd, indices};
use crate::table::row::{Input, Kind, Row, Rule, real, shape_refused};
use pellucid_tensor::ops::InterpolationMode::{Cubic, Linear, Nearest};
use pellucid_tensor::ops::PaddingMode::{Border, Reflection, Zeros};
use pellucid_tensor::ops::{InterpolationMode, PaddingMode};
use pellucid_tensor::{DType, Error, Tensor, ops};

/// How places are read.
#[derive(Clone, Copy, Debug)]
struct Reading {
    mode: InterpolationMode,
    outside: PaddingMode,
    align: bool,
}

impl Reading {
    /// A coordinate of an axis of `len`, brought into it if that is asked for.
    fn bounded(&self, at: f64, len: usize) -> f64 {
        let last = len as f64 - 1.0;
        let (low, high) = if self.align { (0.0, last) } else { (-0.5, last + 0.5) };
        let mut at = at;
        match self.outside {
            Zeros => return at,
            Border => {}
            Reflection if low == high => at = 0.0,
            // Mirrored at one end and the other until it is inside.
            Reflection => {
                while at < low || at > high {
                    at = if at < low { 2.0 * low - at } else { 2.0 * high - at };
                }
            }
        }
        at.clamp(0.0, last)
    }

    /// Elements and weights along an axis, at a place from −1 to 1; elements may lie outside.
    fn seen(&self, place: f64, len: usize) -> Vec<(f64, f64)> {
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

fn sampled(x: &Nd, grid: &Nd, how: Reading) -> Nd {
    let (dims, spatial) = (&x.shape[2..], x.shape.len() - 2);
    Nd::from_fn(&[&x.shape[..2], &grid.shape[1..=spatial]].concat(), |ix| {
        let place = |a: usize| grid.at(&[&ix[..1], &ix[2..], &[spatial - 1 - a]].concat());
        let axes: Vec<Vec<(f64, f64)>> = (0..spatial).map(|a| how.seen(place(a), dims[a])).collect();
        let counts: Vec<usize> = axes.iter().map(Vec::len).collect();
        let part = |taps: Vec<usize>| {
            let seen: Vec<(f64, f64)> = taps.iter().zip(&axes).map(|(&t, axis)| axis[t]).collect();
            let inside = seen.iter().zip(dims).all(|((e, _), &len)| *e >= 0.0 && *e < len as f64);
            let element: Vec<usize> = seen.iter().map(|(e, _)| *e as usize).collect();
            let weight: f64 = seen.iter().map(|(_, w)| w).product();
            if inside { weight * x.at(&[&ix[..2], &element[..]].concat()) } else { 0.0 }
        };
        indices(&counts).into_iter().map(part).sum()
    })
}

/// Where the places of axes of three and two elements pass from one element to the next: there are the kinks.
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

fn case(row: Row, label: String, inputs: [Input; 2], how: Reading) -> Row {
    row.case(
        label,
        inputs,
        move |x| ops::grid_sample(&x[0], &x[1].to_dtype(x[0].dtype()), how.mode, how.outside, how.align),
        move |x| sampled(&x[0], &x[1], how),
    )
    .floats_only()
}

/// Every way to read, with corners in their places or not.
fn modes() -> impl Iterator<Item = (InterpolationMode, PaddingMode, bool)> {
    let each = |mode| [Zeros, Border, Reflection].into_iter().map(move |outside| (mode, outside));
    let all = [Nearest, Linear, Cubic].into_iter().flat_map(each);
    all.flat_map(|(mode, outside)| [false, true].map(|align| (mode, outside, align)))
}

fn grid_sample() -> Row {
    // Products with a weight of 0, and places that are no numbers, promise nothing.
    let mut row = Row::new("grid_sample").scale(8.0).ulps(64.0).ordinary();
    for (mode, outside, align) in modes() {
        let how = Reading { mode, outside, align };
        row = case(row, format!("a plane, {how:?}"), [real([1, 2, 3, 2]), places([1, 1, 3, 2])], how);
        row = case(row, format!("a space, {how:?}"), [real([1, 1, 2, 3, 2]), places([1, 1, 2, 1, 3])], how);
    }
    let how = Reading { mode: Linear, outside: Zeros, align: false };
    row = case(row, "several images".into(), [real([2, 1, 2, 3]), places([2, 2, 1, 2])], how);
    row = case(row, "no image".into(), [real([0, 1, 2, 3]), places([0, 2, 2, 2])], how);
    row = case(row, "no place".into(), [real([1, 1, 2, 3]), places([1, 0, 2, 2])], how);
    let reflected = Reading { outside: Reflection, align: true, ..how };
    row = case(row, "reflected in one element".into(), [real([1, 1, 1, 3]), places([1, 2, 2, 2])], reflected);
    let image = || Tensor::ones([1, 1, 2, 2], DType::F64);
    let sample = |x: &Tensor, grid: &Tensor| ops::grid_sample(x, grid, Linear, Zeros, false);
    row.also("a grid of another batch", move || {
        shape_refused(sample(&image(), &Tensor::zeros([2, 1, 1, 2], DType::F64)))
    })
    .also("a place of three numbers in a plane", move || {
        shape_refused(sample(&image(), &Tensor::zeros([1, 1, 1, 3], DType::F64)))
    })
    .also("another rank", move || {
        shape_refused(sample(&Tensor::ones([1, 1, 2], DType::F64), &Tensor::zeros([1, 1, 1], DType::F64)))
    })
    .also("an image of nothing", move || {
        shape_refused(sample(&Tensor::ones([1, 1, 0, 2], DType::F64), &Tensor::zeros([1, 1, 1, 2], DType::F64)))
    })
    .also("two dtypes", move || {
        let refused = sample(&image(), &Tensor::zeros([1, 1, 1, 2], DType::F32));
        Ok(matches!(refused, Err(Error::DTypeMismatch { .. })))
    })
    .also("integers", move || {
        let refused = sample(&image().to_dtype(DType::I64), &Tensor::zeros([1, 1, 1, 2], DType::I64));
        Ok(matches!(refused, Err(Error::DTypeMismatch { .. })))
    })
    .also("no place is read out of bounds, and NaN holds NaN", move || {
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
    .also("the nearest element has the gradient 0 with respect to the grid", move || {
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
            // An infinity that meets the middle is no number.
            row = row.case(
                label,
                [real(shape)],
                move |x| ops::affine_grid(&x[0], dims, align),
                move |x| affine(&x[0], dims, align),
            );
        }
    }
    let theta = || Tensor::ones([1, 2, 3], DType::F64);
    row.also("as many lengths as the map has rows", move || shape_refused(ops::affine_grid(&theta(), &[2, 2, 2], true)))
        .also("one axis", || shape_refused(ops::affine_grid(&Tensor::ones([1, 1, 2], DType::F64), &[2], true)))
        .also("beyond any memory", move || {
            Ok(matches!(ops::affine_grid(&theta(), &[1 << 40, 1 << 40], true), Err(Error::OutOfMemory { .. })))
        })
        .also("no place", move || Ok(ops::affine_grid(&theta(), &[0, 2], false)?.shape()[..] == [1, 0, 2, 2]))
}

pub(super) fn rows() -> Vec<Row> {
    vec![grid_sample(), affine_grid()]
}
