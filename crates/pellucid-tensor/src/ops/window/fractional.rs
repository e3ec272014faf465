//! Fractional max pools: windows of one size, whose starts random numbers spread over an axis.
//!
//! Of L elements, O windows of K and a number u in [0, 1), with α = (L − K) / (O − 1), window o begins at ⌊(o + u)·α⌋ −
//! ⌊u·α⌋, and the last one ends with the axis. Neighbours are ⌊α⌋ or ⌈α⌉ apart, and may overlap.

use super::{Images, Spatial, affordable, positive};
use crate::array::host_values;
use crate::autograd::no_grad;
use crate::ops;
use crate::ops::formula::map;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::formula::Formula;
use pellucid_ir::{DType, Error, Result, Shape, formula};
use std::sync::OnceLock;

/// Where the windows along one axis begin, `[N, C, O]`, for numbers `[N, C]`.
fn starts(u: &Tensor, len: usize, size: usize, outputs: usize) -> Result<Tensor> {
    static STARTS: OnceLock<Formula> = OnceLock::new();
    let formula = STARTS.get_or_init(|| {
        formula! { fractional_starts(u, o; alpha) = ((o + u) * alpha).trunc() - (u * alpha).trunc(); }.eternal()
    });
    let (room, lead) = ((len - size) as i64, [u.shape()[0], u.shape()[1]]);
    let last = ops::full([lead[0], lead[1], 1], room, DType::I64)?;
    if outputs == 1 {
        return Ok(last);
    }
    let (rest, alpha) = (outputs - 1, room as f64 / (outputs - 1) as f64);
    let o = ops::arange(0, rest as i64, 1, u.dtype())?;
    let others = map(formula, &[&ops::unsqueeze(u, -1)?, &o], &[alpha.into()])?;
    // Whatever the numbers are, windows lie inside.
    let others = ops::maximum(&ops::minimum(&ops::to_dtype(&others, DType::I64)?, room)?, 0)?;
    ops::concatenate(&[&others, &last], 2)
}

fn fractional_max(
    op: &'static str,
    spatial: usize,
    x: &Tensor,
    size: Spatial,
    outputs: Spatial,
    samples: Option<&Tensor>,
) -> Result<(Tensor, Tensor)> {
    let images = Images::new(op, x, spatial)?;
    let (dims, n, c) = (images.dims(), images.x.shape()[0], images.x.shape()[1]);
    let size = positive(op, "the size", size.three(op, "size", spatial, 1)?)?;
    let outputs = positive(op, "the number of windows", outputs.three(op, "the number of windows", spatial, 1)?)?;
    affordable(&outputs)?;
    if let Some(a) = (0..3).find(|&a| outputs[a] + size[a] > dims[a] + 1) {
        let (windows, size, len) = (outputs[a], size[a], dims[a]);
        return Err(Error::invalid(
            op,
            format!("{windows} windows of {size} begin at as many places of an axis of {len}"),
        ));
    }
    let drawn;
    let samples = match samples {
        Some(samples) => samples,
        None => {
            drawn = ops::rand([n, c, spatial], if x.dtype() == DType::F64 { DType::F64 } else { DType::F32 })?;
            &drawn
        }
    };
    if samples.shape()[..] != [n, c, spatial] {
        let help = format!("there are {spatial} numbers for every channel, [{n}, {c}, {spatial}]");
        return Err(Error::shapes(op, [x.shape(), samples.shape()], help));
    }
    if !samples.dtype().is_float() {
        return Err(Error::dtypes(op, [samples.dtype()], "the numbers are floats"));
    }
    let flat = ops::flatten(&images.x, 2, -1)?;
    let (windows, taps) = (outputs.iter().product::<usize>(), size.iter().product::<usize>());
    let chosen = {
        let _off = no_grad();
        // The position of every tap of every window, from that of its first.
        let steps = [(dims[1] * dims[2]) as i64, dims[2] as i64, 1];
        let tap = |t: usize| {
            let t = [t / (size[1] * size[2]), t / size[2] % size[1], t % size[2]];
            (0..3).map(|a| t[a] as i64 * steps[a]).sum::<i64>()
        };
        let taps_at = host_values(taps, (0..taps).map(tap))?;
        let mut positions = ops::from_host(&taps_at[..], [taps])?;
        for a in 3 - spatial..3 {
            // Numbers come last axis first of a plane, and first axis first of a space, as in the field.
            let k = if spatial == 3 { a } else { 2 - a };
            let starts = starts(&ops::select(&samples.detach(), 2, k as isize)?, dims[a], size[a], outputs[a])?;
            let mut shape = [n, c, 1, 1, 1, 1];
            shape[2 + a] = outputs[a];
            positions = ops::add(&ops::mul(&ops::reshape_to(&starts, &shape.into())?, steps[a])?, &positions)?;
        }
        let all = ops::broadcast_to(&positions, [n, c, outputs[0], outputs[1], outputs[2], taps])?;
        let places = ops::reshape_to(&all, &[n, c, windows * taps].into())?;
        let seen = ops::take_along_axis(&flat.detach(), &places, 2)?;
        let apart = |t: &Tensor| ops::reshape_to(t, &[n, c, windows, taps].into());
        let largest = ops::unsqueeze(&ops::argmax(&apart(&seen)?, 3)?, 3)?;
        ops::squeeze(&ops::take_along_axis(&apart(&places)?, &largest, 3)?, 3)?
    };
    let values = ops::take_along_axis(&flat, &chosen, 2)?;
    let shape: Shape = [n, c].iter().chain(&outputs).copied().collect();
    Ok((images.back(&ops::reshape_to(&values, &shape)?)?, images.back(&ops::reshape_to(&chosen, &shape)?)?))
}

macro_rules! fractional {
    ($($name:ident: $spatial:literal, $size:literal, $numbers:literal;)*) => {$(
        #[doc = concat!("Fractional max pooling (Graham 2014) of x, `[N, C, ", $size, "]` or `[C, ", $size, "]`: the largest elements of so many windows of")]
        /// one size along each axis, and their `i64` positions in the spatial axes (row-major); there goes the
        /// gradient.
        ///
        /// Of L elements, O windows of K and a number u in [0, 1), with α = (L − K) / (O − 1), window o begins at
        /// ⌊(o + u)·α⌋ − ⌊u·α⌋, and the last one ends with the axis.
        #[doc = concat!("The numbers are `samples`, `[N, C, ", $spatial, "]` (N = 1 for one image), ", $numbers, "; drawn uniformly if none are given.")]
        ///
        /// # Errors
        /// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`] for numbers that are no floats;
        /// [`Error::InvalidArgument`] for a size or a count of 0, or more windows than places where one can begin.
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
    fractional_max_pool2d: 2, "H, W", "that of W and that of H";
    fractional_max_pool3d: 3, "D, H, W", "those of D, H and W";
}
