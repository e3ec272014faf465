//! Pooling: the maximum, the mean, or the p-norm of every window.

use super::conv::window_sums;
use super::shuffle::concat_dims;
use super::{Spatial, SpatialImages, check_lengths};
use crate::array::host_values;
use crate::autograd::{apply, apply_one, interface::*};
use crate::engine;
use crate::ops::elementwise::arithmetic;
use crate::ops::formula::over_axes::as_float;
use crate::ops::formula::{full_range, map, map_sum, power};
use crate::ops::index::scatter::scatter_from_start;
use crate::ops::primitive::gather::gather_along;
use crate::ops::primitive::precision::in_single;
use crate::ops::primitive::{copy, create, fill, gather, view};
use crate::tensor::{AsStrided, Tensor};
use pellucid_derive::tensor_method;
use pellucid_ir::formula::Formula;
use pellucid_ir::kernel::{self, Kernel, PoolPart, PoolWindows, Window};
use pellucid_ir::{DType, Error, Layout, Result, Scalar, Shape};

/// The windows of a pooling operation. By default, windows are adjacent.
///
/// ```
/// use pellucid::{DType, Tensor, ops::PoolOptions};
/// let x = Tensor::ones([1, 4, 7, 7], DType::F32);
/// assert_eq!(x.max_pool2d(PoolOptions::new(2)).0.shape().dims(), [1, 4, 3, 3]);
/// assert_eq!(x.max_pool2d(PoolOptions { ceil: true, ..PoolOptions::new(2) }).0.shape().dims(), [1, 4, 4, 4]);
/// let options = PoolOptions { stride: Some(1.into()), padding: [1, 0].into(), ..PoolOptions::new([3, 2]) };
/// assert_eq!(x.max_pool2d(options).0.shape().dims(), [1, 4, 7, 6]);
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PoolOptions {
    /// The size of a window.
    pub size: Spatial,
    /// The stride between windows; the default is the size.
    pub stride: Option<Spatial>,
    /// The padding at both ends of each axis, at most half the window.
    pub padding: Spatial,
    /// The spacing of the elements of a window.
    pub dilation: Spatial,
    /// Whether a last window that extends beyond the padded input is included if it starts inside the input or in the
    /// padding before it.
    pub ceil: bool,
}

impl PoolOptions {
    /// Creates adjacent windows of this size.
    pub fn new(size: impl Into<Spatial>) -> PoolOptions {
        PoolOptions { size: size.into(), stride: None, padding: 0.into(), dilation: 1.into(), ceil: false }
    }

    /// Returns the window, and the number of windows along each axis.
    fn window(&self, op: &'static str, spatial: usize, dims: [usize; 3]) -> Result<(Window, [usize; 3])> {
        let size = self.size.to_positive(op, "the size", spatial, Spatial::ONE_ELEMENT)?;
        check_lengths(&size)?;
        let stride = self
            .stride
            .as_ref()
            .map_or(Ok(size), |stride| stride.to_positive(op, "stride", spatial, Spatial::DEFAULT_IS_SIZE))?;
        let dilation = self.dilation.to_positive(op, "dilation", spatial, Spatial::DEFAULT_IS_ONE)?;
        let before = self.padding.to_three(op, "padding", spatial, 0)?;
        let window = Window { size, stride, dilation, before };
        let mut outputs = [0; 3];
        for a in 0..3 {
            let extent = window.extent(a);
            if 2 * before[a] > extent {
                let reason = format!("padding {} exceeds half of a window of {extent}; use pad()", before[a]);
                return Err(Error::invalid(op, reason));
            }
            let more = if self.ceil { stride[a] - 1 } else { 0 };
            let fitting = window.outputs(a, dims[a] + 2 * before[a] + more).filter(|_| dims[a] > 0);
            outputs[a] = fitting.ok_or_else(|| {
                let reason = format!(
                    "a window of {extent} does not fit into axis {} of the spatial shape {:?}; add padding, or make the \
                     window smaller",
                    a + spatial - 3,
                    &dims[3 - spatial..]
                );
                Error::invalid(op, reason)
            })?;
            // The last window must start inside the input, or in the padding before it.
            if self.ceil && (outputs[a] - 1) * stride[a] >= dims[a] + before[a] {
                outputs[a] -= 1;
            }
        }
        Ok((window, outputs))
    }
}

/// Computes the maximum of every window, and its position in the three spatial axes. The gradient goes to the
/// positions.
pub(super) struct MaxPoolOp {
    pub(super) windows: PoolWindows,
    /// The number of windows along each axis.
    pub(super) outputs: [usize; 3],
}

impl Operation for MaxPoolOp {
    fn name(&self) -> &'static str {
        "max_pool"
    }
    fn forward(&self, inputs: &[&Array], saves: &mut SaveForBackward) -> Result<Arrays> {
        let x = inputs[0];
        let shape: Shape = x.shape()[..2].iter().chain(&self.outputs).copied().collect();
        let values = Array::new(x.device(), x.dtype(), shape.clone())?;
        let positions = Array::new(x.device(), DType::I64, shape)?;
        let kernel = kernel::Pool { windows: self.windows, part: PoolPart::Maximum };
        engine::submit(&Kernel::Pool(kernel), inputs, &[&values, &positions])?;
        saves.output(1);
        Ok(smallvec![values, positions])
    }
    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        let gradient = MaxPoolGradient { windows: self.windows, shape: saved.input_shape(0) };
        Ok(smallvec![Some(apply_one(gradient, &[&grads.get(0)?, &saved.output(1)?])?)])
    }
}

/// Computes the gradient of x in a max pooling, from the gradient of the maxima and from their positions.
struct MaxPoolGradient {
    windows: PoolWindows,
    /// The shape of x.
    shape: Shape,
}

impl Operation for MaxPoolGradient {
    fn name(&self) -> &'static str {
        "max_pool'"
    }
    fn forward(&self, inputs: &[&Array], saves: &mut SaveForBackward) -> Result<Arrays> {
        saves.input(1);
        let out = Array::new(inputs[0].device(), inputs[0].dtype(), self.shape.clone())?;
        let kernel = kernel::Pool { windows: self.windows, part: PoolPart::Gradient };
        engine::submit(&Kernel::Pool(kernel), inputs, &[&out])?;
        Ok(smallvec![out])
    }
    /// The gradient is linear in the gradient of the maxima. Its transpose selects the elements at the positions.
    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        let flat = |t: &Tensor| view::flatten(t, 2, -1);
        let positions = saved.input(1)?;
        let selected = gather::take_along_axis(&flat(&grads.get(0)?)?, &flat(&positions)?, 2)?;
        Ok(smallvec![Some(view::reshape_to(&selected, positions.shape())?), None])
    }
}

fn max_pool(op: &'static str, spatial: usize, x: &Tensor, pool: &PoolOptions) -> Result<(Tensor, Tensor)> {
    let images = SpatialImages::new(op, x, spatial)?;
    if images.x.shape()[1] == 0 {
        return Err(Error::shapes(op, [x.shape()], "the input must have at least one channel"));
    }
    let (window, outputs) = pool.window(op, spatial, images.dims())?;
    let dims = images.dims();
    if !(0..3).all(|a| window.has_taps(a, dims[a], outputs[a])) {
        return Err(Error::invalid(op, "a window contains only padding; use less padding or dilation"));
    }
    let y = apply(MaxPoolOp { windows: window.into(), outputs }, &[&images.x])?;
    Ok((images.restore_axes(&y[0])?, images.restore_axes(&y[1])?))
}

fn max_unpool(op: &'static str, spatial: usize, x: &Tensor, positions: &Tensor, dims: &[usize]) -> Result<Tensor> {
    let (values, indices) = (SpatialImages::new(op, x, spatial)?, SpatialImages::new(op, positions, spatial)?);
    if values.x.shape() != indices.x.shape() || dims.len() != spatial {
        let help = "values and positions must have the same shape, and there must be one length per spatial axis";
        return Err(Error::shapes(op, [x.shape(), positions.shape()], help));
    }
    check_lengths(dims).map_err(|error| {
        let outer_axes = x.rank() - spatial;
        error.with_shape(&concat_dims(&x.shape()[..outer_axes], dims))
    })?;
    if !positions.dtype().is_int() {
        return Err(Error::dtypes(op, [positions.dtype()], "positions must have an integer dtype"));
    }
    let indices = copy::to_dtype(&indices.x, DType::I64)?;
    let len = dims.iter().product();
    let mut shape = [values.x.shape()[0], values.x.shape()[1], 1, 1, 1];
    shape[5 - spatial..].copy_from_slice(dims);
    let flat = |t: &Tensor| view::flatten(t, 2, -1);
    let y = apply_one(MaxUnpoolOp { op, plane_size: len }, &[&flat(&values.x)?, &flat(&indices)?])?;
    values.restore_axes(&view::reshape_to(&y, &shape.into())?)
}

/// Writes values at their positions into planes of zeros. The gradient of a value is the gradient at its position. If
/// several values share a position, each receives the full gradient at this position, as in PyTorch. So the gradient
/// does not depend on which value is stored.
struct MaxUnpoolOp {
    op: &'static str,
    plane_size: usize,
}

impl Operation for MaxUnpoolOp {
    fn name(&self) -> &'static str {
        "max_unpool"
    }
    fn forward(&self, inputs: &[&Array], saves: &mut SaveForBackward) -> Result<Arrays> {
        saves.input(1);
        let (values, positions) = (Tensor::from(inputs[0].clone()), Tensor::from(inputs[1].clone()));
        let planes = fill::zeros([values.shape()[0], values.shape()[1], self.plane_size], values.dtype())?;
        Ok(smallvec![scatter_from_start(self.op, &planes, &positions, &values, 2)?.array().clone()])
    }
    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        Ok(smallvec![Some(gather_along(self.op, &grads.get(0)?, &saved.input(1)?, 2)?), None])
    }
}

/// The divisor of an average.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub enum AvgPoolDivisor {
    /// The number of window elements inside the padded input.
    #[default]
    Window,
    /// The number of window elements inside the input.
    Inside,
    /// The given number, for every window.
    Number(f64),
}

fn avg_pool(
    op: &'static str,
    spatial: usize,
    x: &Tensor,
    pool: &PoolOptions,
    divisor: AvgPoolDivisor,
) -> Result<Tensor> {
    let images = SpatialImages::new(op, x, spatial)?;
    if pool.dilation.to_three(op, "dilation", spatial, 1)? != [1; 3] {
        return Err(Error::invalid(op, "average pooling does not support dilation"));
    }
    if let AvgPoolDivisor::Number(divisor) = divisor
        && (divisor == 0.0 || !divisor.is_finite())
    {
        return Err(Error::invalid(op, format!("the divisor must be finite and nonzero, got {divisor}")));
    }
    let (window, outputs) = pool.window(op, spatial, images.dims())?;
    in_single!(op, [x] => avg_pool(op, spatial, x, pool, divisor));
    images.restore_axes(&window_means(op, &images.x, window, outputs, divisor)?)
}

/// Divides the sums of the windows by the divisor.
fn window_means(
    op: &'static str,
    x: &Tensor,
    window: Window,
    outputs: [usize; 3],
    divisor: AvgPoolDivisor,
) -> Result<Tensor> {
    let dims: [usize; 3] = std::array::from_fn(|a| x.shape()[x.rank() - 3 + a]);
    let sums = window_sums(op, x, window, outputs)?;
    // The number of elements of window o along axis a.
    let count = |a: usize, o: usize| {
        let (start, before) = (window.stride[a] * o, window.before[a]);
        let end = (start + window.size[a]).min(dims[a] + 2 * before);
        match divisor {
            AvgPoolDivisor::Inside => end.min(dims[a] + before) - start.max(before).min(end),
            _ => end - start,
        }
    };
    let along = |a: usize| host_values(outputs[a], (0..outputs[a]).map(|o| count(a, o)));
    let counts = [along(0)?, along(1)?, along(2)?];
    match divisor {
        AvgPoolDivisor::Number(number) => arithmetic::div(&sums, number),
        _ if counts.iter().all(|c| c.iter().all(|n| *n == c[0])) => {
            arithmetic::div(&sums, counts.iter().map(|c| c[0]).product::<usize>() as f64)
        }
        _ => {
            let [z, y, x] = &counts;
            let each = z.iter().flat_map(|z| y.iter().flat_map(move |y| x.iter().map(move |x| (z * y * x) as f64)));
            let divisors = host_values(outputs.iter().fold(1, |n, &len| n.saturating_mul(len)), each)?;
            let divisors = copy::to_dtype(&create::from_host(&divisors[..], outputs)?, sums.dtype())?;
            arithmetic::div(&sums, &divisors)
        }
    }
}

/// Returns x `[N, C, z, y, x]` as windows `[N, C, z', kz, y', ky, x', kx]` without a copy, or `None` if windows overlap
/// or extend beyond x.
fn disjoint_windows(x: &Tensor, window: Window, outputs: [usize; 3]) -> Result<Option<Tensor>> {
    let dims = &x.shape()[2..];
    let is_inside = |a: usize| outputs[a] == 0 || (outputs[a] - 1) * window.stride[a] + window.size[a] <= dims[a];
    if !(0..3).all(|a| window.stride[a] >= window.size[a] && is_inside(a)) {
        return Ok(None);
    }
    let contiguous = Layout::contiguous(x.shape().clone());
    let strides = contiguous.strides();
    let axes = (0..3).flat_map(|a| {
        let stride = strides[2 + a];
        [(outputs[a], stride * window.stride[a] as isize), (window.size[a], stride)]
    });
    let axes: Vec<(usize, isize)> = (0..2).map(|a| (x.shape()[a], strides[a])).chain(axes).collect();
    let lengths: Shape = axes.iter().map(|axis| axis.0).collect();
    let layout = Layout::strided(lengths, axes.iter().map(|axis| axis.1).collect(), 0);
    Ok(Some(apply_one(AsStrided { layout, shape: x.shape().clone() }, &[x])?))
}

/// The largest number of elements for which the windows of a p-norm are summed as a strided view, by one kernel. The
/// kernel visits short runs of elements. Sums along one axis after the other need several kernels, but less time for
/// each element.
const MAX_STRIDED_ELEMENTS: usize = 512;

fn lp_pool(op: &'static str, spatial: usize, x: &Tensor, p: f64, pool: &PoolOptions) -> Result<Tensor> {
    let images = SpatialImages::new(op, x, spatial)?;
    if p == 0.0 || p.is_nan() {
        return Err(Error::invalid(op, format!("p must be a nonzero number, got {p}")));
    }
    let plain = pool.padding.to_three(op, "padding", spatial, 0)? == [0; 3]
        && pool.dilation.to_three(op, "dilation", spatial, 1)? == [1; 3];
    if !plain {
        return Err(Error::invalid(op, "p-norm pooling supports neither padding nor dilation"));
    }
    let (window, outputs) = pool.window(op, spatial, images.dims())?;
    if p.is_infinite() {
        // The largest element dominates the sum for p = ∞, and the smallest for p = −∞.
        let x = as_float(x)?;
        return match p > 0.0 {
            true => Ok(max_pool(op, spatial, &x, pool)?.0),
            false => arithmetic::neg(&max_pool(op, spatial, &arithmetic::neg(&x)?, pool)?.0),
        };
    }
    in_single!(op, [x] => lp_pool(op, spatial, x, p, pool));
    let x = as_float(&images.x)?;
    if p != 1.0
        && let Some(windows) = disjoint_windows(&x, window, outputs)?
    {
        let axes = [3, 5, 7].into_iter().collect();
        let sum = |power: &Formula, params: &[Scalar]| {
            if windows.size() <= MAX_STRIDED_ELEMENTS {
                return map_sum(power, &[&windows.detach()], params, axes, None);
            }
            let sums = window_sums(op, &map(power, &[&x.detach()], params)?, window, outputs)?;
            let shape = sums.shape();
            view::reshape_to(&sums, &[shape[0], shape[1], shape[2], 1, shape[3], 1, shape[4], 1].into())
        };
        let norms = full_range::signed_norm_by(&windows, p, axes, &sum)?;
        let shape: Shape = x.shape()[..2].iter().chain(&outputs).copied().collect();
        return images.restore_axes(&view::reshape_to(&norms, &shape)?);
    }
    let powers = if p == 1.0 { x } else { map(power::signed_power(p), &[&x], &[p.into()])? };
    let sums = if pool.ceil {
        let means = window_means(op, &powers, window, outputs, AvgPoolDivisor::Inside)?;
        arithmetic::mul(&means, window.size.iter().product::<usize>() as f64)?
    } else {
        window_sums(op, &powers, window, outputs)?
    };
    // For p = 1 no root is computed, because the derivative of `root` at 0 is 0 instead of 1.
    images.restore_axes(&if p == 1.0 { sums } else { map(power::root(), &[&sums], &[(1.0 / p).into()])? })
}

macro_rules! pools {
    ($($max:ident, $unpool:ident, $avg:ident, $lp:ident: $spatial:literal, $size:literal;)*) => {$(
        /// Computes the maximum of every window, and its `i64` position in the spatial axes of x (row-major).
        ///
        /// NaN is the largest value. Of equal elements, the first one is selected. The gradient goes to the position.
        /// Padding is never selected.
        ///
        #[doc = concat!("x is `[N, C, ", $size, "]` or `[C, ", $size, "]`; an axis of length L becomes")]
        /// `⌊(L + 2·padding − dilation·(size − 1) − 1) / stride⌋ + 1`; [`PoolOptions::ceil`] rounds up.
        ///
        /// # Errors
        /// [`Error::ShapeMismatch`], also for an x without channels; [`Error::InvalidArgument`] for an invalid window.
        #[tensor_method]
        pub fn $max(x: &Tensor, pool: PoolOptions) -> Result<(Tensor, Tensor)> {
            max_pool(stringify!($max), $spatial, x, &pool)
        }

        #[doc = concat!("Writes every element of x to its position from [`", stringify!($max), "`], in a tensor of zeros.")]
        ///
        /// `dims` are the spatial lengths of the result. If several elements have the same position, the last one is
        /// stored, but each of them receives the gradient at this position.
        ///
        /// # Errors
        /// [`Error::ShapeMismatch`], [`Error::IndexOutOfBounds`], [`Error::DTypeMismatch`]; [`Error::OutOfMemory`].
        #[tensor_method]
        pub fn $unpool(x: &Tensor, positions: &Tensor, dims: &[usize]) -> Result<Tensor> {
            max_unpool(stringify!($unpool), $spatial, x, positions, dims)
        }

        /// Computes the mean of every window. Padding counts as zeros. The result of integers is `f32`.
        ///
        #[doc = concat!("x is `[N, C, ", $size, "]` or `[C, ", $size, "]`; the result has the shape of")]
        #[doc = concat!("[`", stringify!($max), "`].")]
        ///
        /// # Errors
        #[doc = concat!("The errors of [`", stringify!($max), "`];")]
        /// [`Error::InvalidArgument`] for dilation, or a divisor that is 0 or not finite.
        #[tensor_method]
        pub fn $avg(x: &Tensor, pool: PoolOptions, divisor: AvgPoolDivisor) -> Result<Tensor> {
            avg_pool(stringify!($avg), $spatial, x, &pool, divisor)
        }

        /// Computes (Σ xᵖ)^(1/p) over every window; NaN for a root of a negative sum.
        ///
        /// For p = ∞ it is the maximum, for −∞ the minimum. The gradient of a window whose sum is 0 is 0, except for
        /// p = 1.
        ///
        /// On the CPU, windows that neither overlap nor extend beyond x are scaled as in [`norm`](crate::ops::norm),
        /// and the result is accurate over the full range. Other windows are summed without scaling. Their sum Σ xᵖ
        /// must be representable, as in PyTorch. For p = 2 and windows of n elements, this holds for magnitudes from
        /// 1e-19 to 1.8e19/√n in `f32` and from 1e-154 to 1.3e154/√n in `f64`. Derivatives of order k compute powers of
        /// order 1 − p·k, which must also be representable.
        ///
        #[doc = concat!("The result has the shape of [`", stringify!($max), "`].")]
        /// The result of integers and booleans is `f32`. The region of a window beyond the input (with
        /// [`PoolOptions::ceil`]) counts as if it had the mean of the region inside, as in PyTorch.
        ///
        /// # Errors
        #[doc = concat!("The errors of [`", stringify!($max), "`];")]
        /// [`Error::InvalidArgument`] for padding, dilation, or p = 0.
        #[tensor_method(autocast = Single)]
        pub fn $lp(x: &Tensor, p: f64, pool: PoolOptions) -> Result<Tensor> {
            lp_pool(stringify!($lp), $spatial, x, p, &pool)
        }
    )*};
}

pools! {
    max_pool1d, max_unpool1d, avg_pool1d, lp_pool1d: 1, "L";
    max_pool2d, max_unpool2d, avg_pool2d, lp_pool2d: 2, "H, W";
    max_pool3d, max_unpool3d, avg_pool3d, lp_pool3d: 3, "D, H, W";
}
