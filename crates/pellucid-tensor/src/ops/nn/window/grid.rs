//! Sampling of images at grid points.

use super::check_lengths;
use super::resample::cubic_at;
use crate::array::host_vec;
use crate::ops::call::check;
use crate::ops::elementwise::{arithmetic, compare};
use crate::ops::formula::{broadcast, map, map_all, map_reusing};
use crate::ops::primitive::precision::in_single;
use crate::ops::primitive::view::reshape_to;
use crate::ops::primitive::{copy, create, fill, gather, view};
use crate::ops::products::matmul::matmul;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::formula::{Expr, Formula};
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
    let flat = reshape_to(grid, &[n, 1, points, spatial].into())?;
    let axes: Vec<SampledAxis> =
        (0..spatial).map(|a| SampledAxis { len: dims[a], outside, align: align_corners }).collect();
    // The coordinates of the points along each axis, in elements, as [N, 1, P].
    let coordinates: Vec<Tensor> = axes
        .iter()
        .enumerate()
        .map(|(a, axis)| axis.to_elements(&view::select(&flat, 3, (spatial - 1 - a) as isize)?))
        .collect::<Result<_>>()?;
    let taps: Vec<Vec<Tap>> =
        axes.iter().zip(&coordinates).map(|(axis, coordinates)| axis.taps(coordinates, mode)).collect::<Result<_>>()?;
    // The value of elements outside the image: 0, or NaN for a point that is NaN. In the mode `Nearest`, this value
    // also carries the gradient of the grid, which is 0.
    let zero = fill::zeros((), x.dtype())?;
    let zero_or_nan = |coordinates: &Tensor| arithmetic::clamp(&arithmetic::round(coordinates)?, 0.0, 0.0);
    let beyond = match mode {
        GridSampleMode::Nearest => {
            coordinates.iter().try_fold(zero, |sum, coordinates| arithmetic::add(&sum, &zero_or_nan(coordinates)?))?
        }
        GridSampleMode::Linear | GridSampleMode::Cubic => zero,
    };
    let image = reshape_to(x, &[n, channels, dims.iter().product()].into())?;
    let mut sum: Option<Tensor> = None;
    for number in 0..taps.iter().map(Vec::len).product() {
        let tap = joint_tap(&axes, &taps, number)?;
        let each = broadcast::broadcast_to(&tap.element, [n, channels, points])?;
        let elements = gather::take_along_axis(&image, &each, 2)?;
        sum = Some(tap.add_weighted(sum, &elements, &beyond)?);
    }
    let shape: Shape = [n, channels].iter().chain(&grid.shape()[1..=spatial]).copied().collect();
    reshape_to(&sum.expect("an output must read at least one element"), &shape)
}

/// An element that the interpolation of each point reads.
#[derive(Clone)]
struct Tap {
    /// The row-major index of the element within the image, `i64`.
    element: Tensor,
    /// The weight; `None` means 1.
    weight: Option<Tensor>,
    /// Whether the element is in the image.
    is_inside: Tensor,
}

impl Tap {
    /// Adds the weighted elements of the image to `sum`. `beyond` replaces the elements outside the image.
    fn add_weighted(&self, sum: Option<Tensor>, elements: &Tensor, beyond: &Tensor) -> Result<Tensor> {
        let weighted = formula! {
            static weighted(element, beyond, weight, is_inside: mask) = is_inside.select(element, beyond) * weight;
        };
        let add_weighted = formula! {
            static add_weighted(sum, element, beyond, weight, is_inside: mask) = {
                sum + is_inside.select(element, beyond) * weight
            };
        };
        match (&self.weight, &sum) {
            (None, _) => arithmetic::where_(&self.is_inside, elements, beyond),
            (Some(weight), None) => map(weighted, &[elements, beyond, weight, &self.is_inside], &[]),
            (Some(weight), Some(sum)) => {
                let reuse = sum.is_unique().then_some(0);
                map_reusing(add_weighted, &[sum, elements, beyond, weight, &self.is_inside], &[], reuse)
            }
        }
    }
}

/// Combines one tap of each axis to a tap of the flat image. `combination` is the index of the combination.
fn joint_tap(axes: &[SampledAxis], taps: &[Vec<Tap>], combination: usize) -> Result<Tap> {
    let mut remaining = combination;
    let mut one_of_axis = axes.iter().zip(taps).map(|(axis, taps)| {
        let tap = &taps[remaining % taps.len()];
        remaining /= taps.len();
        (axis.len, tap)
    });
    let (_, first) = one_of_axis.next().expect("an image must have at least one spatial axis");
    one_of_axis.try_fold(first.clone(), |joint, (len, tap)| {
        let flat_index = formula! { static flat_index(outer, inner; len) = outer * len + inner; };
        let element = map(flat_index, &[&joint.element, &tap.element], &[Scalar::from(len as i64)])?;
        let (Some(outer), Some(inner)) = (&joint.weight, &tap.weight) else {
            let is_inside = compare::logical_and(&joint.is_inside, &tap.is_inside)?;
            return Ok(Tap { element, weight: None, is_inside });
        };
        let joint_weight = formula! {
            static joint_weight(outer, inner, outer_inside: mask, inner_inside: mask) = {
                (outer * inner, outer_inside & inner_inside)
            };
        };
        let mut outputs = map_all(joint_weight, &[outer, inner, &joint.is_inside, &tap.is_inside], &[])?;
        let is_inside = outputs.remove(1);
        Ok(Tap { element, weight: outputs.pop(), is_inside })
    })
}

/// An axis of the image, with the options that determine which elements a point reads.
struct SampledAxis {
    len: usize,
    outside: GridSamplePadding,
    align: bool,
}

impl SampledAxis {
    /// Converts coordinates in [−1, 1] to coordinates in elements: element i has coordinate i.
    fn to_elements(&self, x: &Tensor) -> Result<Tensor> {
        let len = self.len as f64;
        let half = if self.align { (len - 1.0) / 2.0 } else { len / 2.0 };
        let shift = if self.align { 0.0 } else { -0.5 };
        let to_elements = formula! { static to_elements(x; half, shift) = (x + 1.0) * half + shift; };
        map(to_elements, &[x], &[half.into(), shift.into()])
    }

    /// Returns the elements that are read along this axis for the coordinates x, with their weights.
    fn taps(&self, x: &Tensor, mode: GridSampleMode) -> Result<Vec<Tap>> {
        let last = [Scalar::from((self.len - 1) as f64)];
        let tap = |x: &Tensor, weight: Option<Tensor>| {
            let nearest_tap = formula! { static nearest_tap(x; last) = element_and_is_inside(x, last); };
            let [element, is_inside] = outputs_of(nearest_tap, x, &last)?;
            Ok(Tap { element, weight, is_inside })
        };
        match mode {
            GridSampleMode::Nearest => {
                let nearest = arithmetic::round(&self.padded_coordinates(x)?.detach())?;
                Ok(vec![tap(&nearest, None)?])
            }
            GridSampleMode::Linear => {
                let linear_taps = formula! {
                    static linear_taps(x; last) = {
                        let low = x.floor();
                        let weight = x - low;
                        let (element, is_inside) = element_and_is_inside(low, last);
                        let (next_element, is_next_inside) = element_and_is_inside(low + 1.0, last);
                        (element, 1.0 - weight, is_inside, next_element, weight, is_next_inside)
                    };
                };
                let outputs = outputs_of(linear_taps, &self.padded_coordinates(x)?, &last)?;
                let [low, weight_low, is_low_inside, high, weight_high, is_high_inside] = outputs;
                Ok(vec![
                    Tap { element: low, weight: Some(weight_low), is_inside: is_low_inside },
                    Tap { element: high, weight: Some(weight_high), is_inside: is_high_inside },
                ])
            }
            GridSampleMode::Cubic => {
                let low = arithmetic::floor(&x.detach())?;
                let weights = cubic_at(&arithmetic::sub(x, &low)?)?;
                // The padding mode replaces an element outside the image by an element inside.
                let padded = |k: usize| self.padded_coordinates(&arithmetic::add(&low, k as f64 - 1.0)?);
                weights.into_iter().enumerate().map(|(k, weight)| tap(&padded(k)?, Some(weight))).collect()
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

/// Returns the index of the element at the integer x, clamped to [0, `last`], and whether x is in this range.
fn element_and_is_inside(x: Expr, last: Expr) -> (Expr, Expr) {
    (x.clamp(0.0, last).to_index(), x.ge(0.0) & x.le(last))
}

/// Returns the outputs of a formula of x.
fn outputs_of<const N: usize>(formula: &Formula, x: &Tensor, params: &[Scalar]) -> Result<[Tensor; N]> {
    let outputs = map_all(formula, &[x], params)?;
    Ok(<[Tensor; N]>::try_from(outputs.into_vec()).expect("the formula must have N outputs"))
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
