//! Fractional max pooling: windows of the same size, at pseudorandom positions.
//!
//! For L elements, O windows of size K and a random number u in [0, 1), with α = (L − K) / (O − 1), window o starts at
//! ⌊(o + u)·α⌋ − ⌊u·α⌋, and the last one ends at the end of the axis. The stride is ⌊α⌋ or ⌈α⌉, and windows may
//! overlap.

use super::{Spatial, SpatialImages, check_lengths};
use crate::array::host_values;
use crate::grad_mode::no_grad;
use crate::ops::elementwise::arithmetic;
use crate::ops::formula::{broadcast, map};
use crate::ops::primitive::concatenate::concatenate;
use crate::ops::primitive::{copy, create, fill, gather, view};
use crate::ops::random::uniform_on;
use crate::ops::reduce::reductions;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::{DType, Error, Result, Shape, formula};

/// Computes the starts of the windows along one axis, `[N, C, O]`, from random numbers `[N, C]`.
fn window_starts(u: &Tensor, len: usize, size: usize, outputs: usize) -> Result<Tensor> {
    let formula = formula! { static fractional_starts(u, o; alpha) = ((o + u) * alpha).trunc() - (u * alpha).trunc(); };
    let (free, batch) = ((len - size) as i64, [u.shape()[0], u.shape()[1]]);
    let last_start = fill::full([batch[0], batch[1], 1], free, DType::I64)?;
    if outputs == 1 {
        return Ok(last_start);
    }
    let (steps, alpha) = (outputs - 1, free as f64 / (outputs - 1) as f64);
    let o = create::arange(0, steps as i64, 1, u.dtype())?;
    let starts = map(formula, &[&view::unsqueeze(u, -1)?, &o], &[alpha.into()])?;
    // For random numbers outside [0, 1), a window could start outside the axis, so the starts are clamped.
    let starts = arithmetic::maximum(&arithmetic::minimum(&copy::to_dtype(&starts, DType::I64)?, free)?, 0)?;
    concatenate(&[&starts, &last_start], 2)
}

fn fractional_max(
    op: &'static str,
    spatial: usize,
    x: &Tensor,
    size: Spatial,
    outputs: Spatial,
    samples: Option<&Tensor>,
) -> Result<(Tensor, Tensor)> {
    let images = SpatialImages::new(op, x, spatial)?;
    let (dims, n, c) = (images.dims(), images.x.shape()[0], images.x.shape()[1]);
    let size = size.to_positive(op, "the size", spatial, Spatial::ONE_ELEMENT)?;
    let outputs = outputs.to_positive(op, "the number of windows", spatial, "use 1 for one window")?;
    check_lengths(&outputs)?;
    if let Some(a) = (0..3).find(|&a| outputs[a] + size[a] > dims[a] + 1) {
        let (windows, size, len) = (outputs[a], size[a], dims[a]);
        return Err(Error::invalid(
            op,
            format!("{windows} windows of size {size} do not fit into an axis of length {len} at different positions"),
        ));
    }
    let drawn_samples;
    let samples = match samples {
        Some(samples) => samples,
        None => {
            let dtype = if x.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
            drawn_samples = uniform_on(x.device(), [n, c, spatial].into(), dtype)?;
            &drawn_samples
        }
    };
    if samples.shape()[..] != [n, c, spatial] {
        let help = format!("the samples must be [{n}, {c}, {spatial}], one for each image, channel and spatial axis");
        return Err(Error::shapes(op, [x.shape(), samples.shape()], help));
    }
    if !samples.dtype().is_float() {
        return Err(Error::dtypes(op, [samples.dtype()], "the samples must be floats; use to_dtype()"));
    }
    let flat = view::flatten(&images.x, 2, -1)?;
    let (windows, taps) = (outputs.iter().product::<usize>(), size.iter().product::<usize>());
    let max_positions = {
        let _off = no_grad();
        // The position of every tap of every window: the position of the first tap plus an offset.
        let steps = [(dims[1] * dims[2]) as i64, dims[2] as i64, 1];
        let tap = |t: usize| {
            let t = [t / (size[1] * size[2]), t / size[2] % size[1], t % size[2]];
            (0..3).map(|a| t[a] as i64 * steps[a]).sum::<i64>()
        };
        let tap_offsets = host_values(taps, (0..taps).map(tap))?;
        // The axis of the taps is before the axes of the windows: a kernel then finds the maxima of adjacent windows
        // together.
        let mut positions = create::from_host(&tap_offsets[..], [taps, 1, 1, 1])?;
        for a in 3 - spatial..3 {
            // Samples are in the order W, H in 2-D, but D, H, W in 3-D, as in PyTorch.
            let k = if spatial == 3 { a } else { 2 - a };
            let starts = window_starts(&view::select(&samples.detach(), 2, k as isize)?, dims[a], size[a], outputs[a])?;
            let mut shape = [n, c, 1, 1, 1, 1];
            shape[3 + a] = outputs[a];
            positions =
                arithmetic::add(&arithmetic::mul(&view::reshape_to(&starts, &shape.into())?, steps[a])?, &positions)?;
        }
        let broadcast_positions =
            broadcast::broadcast_to(&positions, [n, c, taps, outputs[0], outputs[1], outputs[2]])?;
        let flat_positions = view::reshape_to(&broadcast_positions, &[n, c, taps * windows].into())?;
        let window_values = gather::take_along_axis(&flat.detach(), &flat_positions, 2)?;
        let per_window = |t: &Tensor| view::reshape_to(t, &[n, c, taps, windows].into());
        let largest = view::unsqueeze(&reductions::argmax(&per_window(&window_values)?, 2)?, 2)?;
        view::squeeze(&gather::take_along_axis(&per_window(&flat_positions)?, &largest, 2)?, 2)?
    };
    let values = gather::take_along_axis(&flat, &max_positions, 2)?;
    let shape: Shape = [n, c].iter().chain(&outputs).copied().collect();
    Ok((
        images.restore_axes(&view::reshape_to(&values, &shape)?)?,
        images.restore_axes(&view::reshape_to(&max_positions, &shape)?)?,
    ))
}

macro_rules! fractional {
    ($($name:ident: $spatial:literal, $size:literal, $numbers:literal;)*) => {$(
        /// Computes fractional max pooling (Graham 2014): the maxima of windows at pseudorandom positions.
        ///
        #[doc = concat!("x is `[N, C, ", $size, "]` or `[C, ", $size, "]`.")]
        /// Returns the maxima, and their `i64` positions in the spatial axes (row-major). The gradient goes to these
        /// positions.
        ///
        /// For L elements, O windows of size K and a random number u in [0, 1), with α = (L − K) / (O − 1), window o
        /// starts at ⌊(o + u)·α⌋ − ⌊u·α⌋, and the last one ends at the end of the axis. The random numbers are
        /// `samples`,
        #[doc = concat!("`[N, C, ", $spatial, "]` (N = 1 for one image), in the order ", $numbers, ".")]
        /// Without samples, the random numbers are drawn uniformly.
        ///
        /// # Errors
        /// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`] for samples that are not floats;
        /// [`Error::InvalidArgument`] for a size or a count of 0, or more windows than start positions.
        #[tensor_method]
        pub fn $name(
            x: &Tensor,
            size: impl Into<Spatial>,
            outputs: impl Into<Spatial>,
            samples: Option<&Tensor>,
        ) -> Result<(Tensor, Tensor)> {
            fractional_max(stringify!($name), $spatial, x, size.into(), outputs.into(), samples)
        }
    )*};
}

fractional! {
    fractional_max_pool2d: 2, "H, W", "W, H";
    fractional_max_pool3d: 3, "D, H, W", "D, H, W";
}
