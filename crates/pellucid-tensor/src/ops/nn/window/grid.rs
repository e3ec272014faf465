//! Sampling of images at grid points.

use super::check_lengths;
use super::resample::cubic_weight;
use crate::array::{host_values, host_vec};
use crate::autograd::{apply_one, interface::*};
use crate::ops::call::check;
use crate::ops::elementwise::arithmetic;
use crate::ops::formula::{map, map_all};
use crate::ops::nn::row_sums::{RowTerms, SumIndices, row_sums};
use crate::ops::primitive::precision::in_single;
use crate::ops::primitive::view::reshape_to;
use crate::ops::primitive::{copy, create, fill, gather, view};
use crate::ops::products::matmul::matmul;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::formula::Expr;
use pellucid_ir::{Error, Result, Scalar, Shape, formula};

/// The interpolation of [`grid_sample`] between elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GridSampleMode {
    /// The nearest element; in a tie, the element with the even index.
    Nearest,
    /// Linear interpolation between the two nearest elements along every axis.
    Linear,
    /// Cubic interpolation of the four nearest elements along every axis (Keys 1981, a = −0.75).
    Cubic,
}

/// The values that [`grid_sample`] reads outside the image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GridSamplePadding {
    /// Elements outside the image are zeros.
    Zeros,
    /// Elements outside the image are equal to the nearest border element.
    Border,
    /// The image is reflected at its border.
    Reflection,
}

/// Samples images at the points of a grid (Jaderberg et al., "Spatial Transformer Networks", 2015).
///
/// x is `[N, C, H, W]` (or `[N, C, D, H, W]`) and the grid `[N, H', W', 2]` (`[N, D', H', W', 3]`); the result is
/// `[N, C, H', W']` (`[N, C, D', H', W']`). A point is (x, y) or (x, y, z), the last spatial axis first, from −1 to 1.
/// With `align_corners` −1 and 1 are the centers of the first and the last element, otherwise their outer edges.
///
/// The gradient with respect to the grid is the gradient of the interpolation weights. At an element, it is the right
/// derivative. It is 0 in the mode `Nearest`. With the paddings `Border` and `Reflection` it is also 0 at the first and
/// the last element of an axis, except in the mode `Cubic` (PyTorch's convention). The result of a NaN point is NaN.
/// Cubic interpolation reads 16 elements for each point, and its gradient uses about 20 times the memory of the result.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`].
#[tensor_method]
pub fn grid_sample(
    x: &Tensor,
    grid: &Tensor,
    mode: GridSampleMode,
    outside: GridSamplePadding,
    align_corners: bool,
) -> Result<Tensor> {
    let op = "grid_sample";
    let spatial = x.rank().wrapping_sub(2);
    let fits = (2..=3).contains(&spatial)
        && grid.rank() == x.rank()
        && grid.shape()[0] == x.shape()[0]
        && grid.shape()[spatial + 1] == spatial;
    if !fits {
        let help =
            "x must be [N, C, H, W] and the grid [N, H', W', 2], or x [N, C, D, H, W] and the grid [N, D', H', W', 3]";
        return Err(Error::shapes(op, [x.shape(), grid.shape()], help));
    }
    if x.shape()[1..].contains(&0) {
        return Err(Error::shapes(op, [x.shape(), grid.shape()], "x must have at least one channel and one pixel"));
    }
    if x.dtype() != grid.dtype() || !x.dtype().is_float() {
        let help = "x and the grid must have the same float dtype; use to_dtype()";
        return Err(Error::dtypes(op, [x.dtype(), grid.dtype()], help));
    }
    in_single!(op, [x, grid] => grid_sample(x, grid, mode, outside, align_corners));
    let (n, channels) = (x.shape()[0], x.shape()[1]);
    let dims = &x.shape()[2..];
    let points = grid.shape()[1..=spatial].iter().product::<usize>();
    let flat = reshape_to(grid, &[n, points, spatial].into())?;
    let axes: Vec<SampledAxis> =
        (0..spatial).map(|a| SampledAxis { len: dims[a], outside, align: align_corners }).collect();
    // The coordinates of the points along each axis, in elements, as [N, P].
    let coordinates: Vec<Tensor> = axes
        .iter()
        .enumerate()
        .map(|(a, axis)| axis.to_elements(&view::select(&flat, 2, (spatial - 1 - a) as isize)?))
        .collect::<Result<_>>()?;
    let elements = dims.iter().product::<usize>();
    let image = reshape_to(x, &[n, channels, elements].into())?;
    let terms = Terms::new(&axes, &coordinates, mode, [n, points, elements])?;
    // The values of a point are adjacent, [N, P, C].
    let rows = reshape_to(&terms.sums(op, &apply_one(PixelRows, &[&image])?)?, &[n, points, channels].into())?;
    let mut y = copy::contiguous(&view::transpose(&rows, 1, 2)?)?;
    if mode == GridSampleMode::Nearest {
        y = nan_at_nan_points(&y, &coordinates)?;
    }
    let shape: Shape = [n, channels].iter().chain(&grid.shape()[1..=spatial]).copied().collect();
    reshape_to(&y, &shape)
}

/// Copies images `[N, C, P]` to the rows of a table `[N·P + 1, C]`: the channels of each pixel, and a last row of
/// zeros.
struct PixelRows;

impl Operation for PixelRows {
    fn name(&self) -> &'static str {
        "pixel_rows"
    }
    fn forward(&self, inputs: &[&Array], _: &mut SaveForBackward) -> Result<Arrays> {
        let x = inputs[0];
        let &[n, channels, pixels] = &x.shape()[..] else { unreachable!("images must be [N, C, P]") };
        let count = n * pixels;
        let out = Array::new(x.device(), x.dtype(), [count + 1, channels].into())?;
        let zero = Array::filled(x.device(), x.dtype(), [1, 1].into(), 0.into())?;
        let zeros = zero.broadcast_to(self.name(), &[1, channels].into())?;
        copy::write_array(&zeros, &out.view(out.layout().slice(0, count, 1, 1)))?;
        let rows = out.layout().slice(0, 0, 1, count).reshape(&[n, pixels, channels].into());
        let rows = rows.expect("the rows of a contiguous table must be divisible into images");
        copy::write_array(x, &out.view(rows.permute(&[0, 2, 1])))?;
        Ok(smallvec![out])
    }
    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        let &[n, channels, pixels] = &saved.input_shape(0)[..] else { unreachable!("images must be [N, C, P]") };
        let rows = reshape_to(&view::narrow(&grads.get(0)?, 0, 0usize, n * pixels)?, &[n, pixels, channels].into())?;
        Ok(smallvec![Some(view::transpose(&rows, 1, 2)?)])
    }
}

/// The terms of the weighted sums that interpolate: K for each of the N·P points, in the order of the points.
struct Terms {
    /// `i64 [N·P·K]`: the row of the table of [`PixelRows`]. Elements outside the image are its last row.
    rows: Tensor,
    /// `[N·P·K]`; `None` if every point reads one element.
    weights: Option<Tensor>,
    points: usize,
    each: usize,
}

impl Terms {
    /// Returns the terms for coordinates `[N, P]` along each axis, in elements.
    fn new(
        axes: &[SampledAxis],
        coordinates: &[Tensor],
        mode: GridSampleMode,
        [n, points, elements]: [usize; 3],
    ) -> Result<Terms> {
        let taps = axes.iter().zip(coordinates).enumerate().map(|(a, (axis, x))| axis.taps(x, mode, (a, axes.len())));
        let taps = taps.collect::<Result<Vec<[Tensor; 2]>>>()?;
        let first_rows: Vec<i64> = (0..n).map(|image| (image * elements) as i64).collect();
        let first_rows = create::from_host(&first_rows[..], [n, 1])?;
        let zeros = create::from_host(&[(n * elements) as i64], [1])?;
        let operands: Vec<&Tensor> = taps.iter().flatten().chain([&first_rows, &zeros]).collect();
        let last: Vec<Scalar> = axes.iter().map(|axis| axis.last()).collect();
        let formula = match (mode, axes.len()) {
            (GridSampleMode::Linear, 2) => formula! {
                static linear_terms_2d(x0, k0: index, x1, k1: index, first: index, zeros: index; last0, last1) = {
                    joint_term(&[linear_tap(x0, k0), linear_tap(x1, k1)], &[last0, last1], first, zeros)
                };
            },
            (GridSampleMode::Linear, _) => formula! {
                static linear_terms_3d(
                    x0, k0: index, x1, k1: index, x2, k2: index, first: index, zeros: index; last0, last1, last2
                ) = {
                    let taps = [linear_tap(x0, k0), linear_tap(x1, k1), linear_tap(x2, k2)];
                    joint_term(&taps, &[last0, last1, last2], first, zeros)
                };
            },
            (_, 2) => formula! {
                static terms_2d(x0, w0, x1, w1, first: index, zeros: index; last0, last1) = {
                    joint_term(&[(x0, w0), (x1, w1)], &[last0, last1], first, zeros)
                };
            },
            _ => formula! {
                static terms_3d(x0, w0, x1, w1, x2, w2, first: index, zeros: index; last0, last1, last2) = {
                    joint_term(&[(x0, w0), (x1, w1), (x2, w2)], &[last0, last1, last2], first, zeros)
                };
            },
        };
        // The last axes of the results are the axes of the points.
        let mut results = map_all(formula, &operands, &last)?;
        let by_point = |t: &Tensor| {
            let rank = t.rank() as isize;
            let order: Vec<isize> = [rank - 2, rank - 1].into_iter().chain(0..rank - 2).collect();
            reshape_to(&view::permute(t, &order[..])?, &[t.size()].into())
        };
        let weights = results.remove(1);
        let weights = if mode == GridSampleMode::Nearest { None } else { Some(by_point(&weights)?) };
        let each = results[0].shape()[..axes.len()].iter().product();
        Ok(Terms { rows: by_point(&results[0])?, weights, points: n * points, each })
    }

    /// Returns the weighted sum of the rows of `table` for each point, `[N·P, C]`.
    fn sums(&self, op: &'static str, table: &Tensor) -> Result<Tensor> {
        let Some(weights) = &self.weights else { return gather::index_select(table, 0, &self.rows) };
        let starts = host_values(self.points + 1, (0..).step_by(self.each).map(|start: i64| start))?;
        let starts = create::from_host(&starts[..], [starts.len()])?;
        row_sums(
            op,
            table,
            &RowTerms { starts: &starts, rows: &self.rows, weights, sums: SumIndices::EqualCounts(self.each) },
        )
    }
}

/// Returns the element and the weight of tap k for linear interpolation at x: the element before x if k is 0, otherwise
/// the next one.
fn linear_tap(x: Expr, k: Expr) -> (Expr, Expr) {
    let low = x.floor();
    let fraction = x - low;
    (k.eq(0).select(low, low + 1.0), k.eq(0).select(1.0 - fraction, fraction))
}

/// Combines one tap of each axis, an element and a weight, to a row of the table and a weight. The elements are
/// integers. `first` is the first row of the image, and `zeros` the row for elements outside it.
fn joint_term(taps: &[(Expr, Expr)], last: &[Expr], first: Expr, zeros: Expr) -> (Expr, Expr) {
    let inside = |a: usize| taps[a].0.ge(0.0) & taps[a].0.le(last[a]);
    let index = |a: usize| taps[a].0.clamp(0.0, last[a]).to_index();
    let (mut flat_index, mut is_inside, mut weight) = (index(0), inside(0), taps[0].1);
    for a in 1..taps.len() {
        flat_index = flat_index * (last[a].to_index() + 1) + index(a);
        is_inside = is_inside & inside(a);
        weight = weight * taps[a].1;
    }
    (is_inside.select(first + flat_index, zeros), weight)
}

/// Replaces the results of points that have a NaN coordinate by NaN. The gradient of the coordinates is 0.
fn nan_at_nan_points(y: &Tensor, coordinates: &[Tensor]) -> Result<Tensor> {
    let zero_or_nan = formula! { static zero_or_nan(sum, x) = sum + x.round().clamp(0.0, 0.0); };
    let zero = fill::zeros((), y.dtype())?;
    let sum = coordinates.iter().try_fold(zero, |sum, x| map(zero_or_nan, &[&sum, x], &[]))?;
    let replace = formula! { static nan_at_nan_points(y, zero) = zero.is_nan().select(zero, y); };
    map(replace, &[y, &view::unsqueeze(&sum, 1)?], &[])
}

/// An axis of the image, with the options that determine which elements a point reads.
struct SampledAxis {
    len: usize,
    outside: GridSamplePadding,
    align: bool,
}

impl SampledAxis {
    /// Returns the index of the last element.
    fn last(&self) -> Scalar {
        Scalar::from((self.len - 1) as f64)
    }

    /// Converts coordinates in [−1, 1] to coordinates in elements: element i has coordinate i.
    fn to_elements(&self, x: &Tensor) -> Result<Tensor> {
        let len = self.len as f64;
        let half = if self.align { (len - 1.0) / 2.0 } else { len / 2.0 };
        let shift = if self.align { 0.0 } else { -0.5 };
        let to_elements = formula! { static to_elements(x; half, shift) = (x + 1.0) * half + shift; };
        map(to_elements, &[x], &[half.into(), shift.into()])
    }

    /// Returns the elements that are read along this axis for the coordinates x `[N, P]`, and their weights. Both
    /// broadcast to `[.., K, .., N, P]`, where the K taps of the last spatial axis are numbered by the first axis.
    ///
    /// In the mode `Linear`, the results are the coordinates and the numbers of the taps, from which [`linear_tap`]
    /// computes elements and weights. `position` is the index of the axis, and the number of axes.
    fn taps(&self, x: &Tensor, mode: GridSampleMode, position: (usize, usize)) -> Result<[Tensor; 2]> {
        let (axis, axes) = position;
        let numbers = |count: usize| {
            let shape: Shape = (0..axes + 2).map(|a| if a == axes - 1 - axis { count } else { 1 }).collect();
            create::from_host(&[0i64, 1, 2, 3][..count], shape)
        };
        match mode {
            GridSampleMode::Nearest => {
                let nearest = arithmetic::round(&self.padded_coordinates(&x.detach())?)?;
                let shape: Shape = std::iter::repeat_n(1, axes).chain(x.shape().iter().copied()).collect();
                Ok([reshape_to(&nearest, &shape)?, fill::ones((), x.dtype())?])
            }
            GridSampleMode::Linear => Ok([self.padded_coordinates(x)?, numbers(2)?]),
            GridSampleMode::Cubic => {
                let taps = numbers(4)?;
                // The padding mode replaces an element outside the image by an element inside.
                let elements = formula! { static cubic_elements(x, k: index) = x.floor() + (k.to_number() - 1.0); };
                let elements = self.padded_coordinates(&map(elements, &[&x.detach(), &taps], &[])?)?;
                let weights = formula! { static cubic_weights(x, k: index) = cubic_weight(x - x.floor(), k); };
                Ok([elements, map(weights, &[x, &taps], &[])?])
            }
        }
    }

    /// Moves coordinates into the image, unless the padding mode is zeros.
    fn padded_coordinates(&self, x: &Tensor) -> Result<Tensor> {
        let last = (self.len - 1) as f64;
        match self.outside {
            GridSamplePadding::Zeros => Ok(x.clone()),
            GridSamplePadding::Border => clip(x, last),
            GridSamplePadding::Reflection => {
                let (low, span) = if self.align { (0.0, last) } else { (-0.5, self.len as f64) };
                if span == 0.0 {
                    return arithmetic::mul(x, 0.0);
                }
                let reflected = formula! {
                    static reflected(x; low, span) = {
                        let distance = (x - low).abs();
                        let times = (distance / span).floor();
                        let extra = distance - times * span;
                        times.rem(2.0).ne(0.0).select(span - extra, extra) + low
                    };
                };
                clip(&map(reflected, &[x], &[low.into(), span.into()])?, last)
            }
        }
    }
}

/// Clamps coordinates to [0, `last`]. The derivative is 0 at both ends and beyond them, because the interpolation has
/// no element beyond an end whose weight could grow.
fn clip(x: &Tensor, last: f64) -> Result<Tensor> {
    let formula = formula! {
        static clip(x; last) = x.max(0.0).min(last);
        d x = (x.gt(0.0) & x.lt(last)).select(g, 0.0);
    };
    map(formula, &[x], &[last.into()])
}

/// Computes a grid for [`grid_sample`] from affine maps `theta` `[N, 2, 3]` (`[N, 3, 4]`).
///
/// Each map is applied to the regular grid with spatial lengths `dims`.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`] for integers; [`Error::OutOfMemory`].
#[tensor_method]
pub fn affine_grid(theta: &Tensor, dims: &[usize], align_corners: bool) -> Result<Tensor> {
    let (op, spatial) = ("affine_grid", dims.len());
    let fits = (2..=3).contains(&spatial) && theta.rank() == 3 && theta.shape()[1..] == [spatial, spatial + 1];
    if !fits {
        let help = format!(
            "`theta` must be [N, 2, 3] for the lengths [H, W], or [N, 3, 4] for [D, H, W]; the number of lengths is \
             {spatial}"
        );
        return Err(Error::shapes(op, [theta.shape()], help));
    }
    check::floats(op, &[theta])?;
    check_lengths(dims)?;
    in_single!(op, [theta] => affine_grid(theta, dims, align_corners));
    let coordinate = |i: usize, len: usize| match (align_corners, len) {
        (true, 1) => 0.0,
        (true, _) => 2.0 * i as f64 / (len - 1) as f64 - 1.0,
        (false, _) => (2 * i + 1) as f64 / len as f64 - 1.0,
    };
    let points: usize = dims.iter().product();
    let mut base = host_vec(points * (spatial + 1))?;
    for flat in 0..points {
        let mut remaining = flat;
        // A row contains the coordinates of a point, last axis first, and a 1 for the translation.
        for &len in dims.iter().rev() {
            base.push(coordinate(remaining % len, len));
            remaining /= len;
        }
        base.push(1.0);
    }
    let base = copy::to_dtype(&create::from_host(&base[..], [points, spatial + 1])?, theta.dtype())?;
    let grid = matmul(&base, &view::transpose(theta, 1, 2)?)?;
    let shape: Shape = [theta.shape()[0]].iter().chain(dims).chain(&[spatial]).copied().collect();
    reshape_to(&grid, &shape)
}
