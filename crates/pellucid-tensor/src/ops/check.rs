//! Checks of argument values that several operations use.
//!
//! The values of a tensor are known only in eager mode. In lazy and captured steps a check of values passes; each
//! operation documents its result for invalid values.

use crate::device::Device;
use crate::engine;
use crate::ops;
use crate::ops::formula::map;
use crate::tensor::Tensor;
use pellucid_ir::{Error, Result, Shape, formula};
use std::ops::RangeInclusive;
use std::panic::Location;

/// Sets the operation and the line that an error names.
#[track_caller]
pub(crate) fn named<T>(op: &'static str, mut result: Result<T>) -> Result<T> {
    if let Err(error) = &mut result {
        error.set_operation(op);
        error.set_location(Location::caller());
    }
    result
}

/// Returns an error if a constant argument such as eps or a momentum is not finite.
pub(super) fn finite(op: &'static str, name: &str, value: f64) -> Result<()> {
    match value.is_finite() {
        true => Ok(()),
        false => Err(Error::invalid(op, format!("{name} must be finite, got {value}"))),
    }
}

/// Returns an error unless all operands are floats.
pub(super) fn floats(op: &'static str, operands: &[&Tensor]) -> Result<()> {
    match operands.iter().all(|x| x.dtype().is_float()) {
        true => Ok(()),
        false => Err(Error::dtypes(op, operands.iter().map(|x| x.dtype()), "takes floats; use to_dtype()")),
    }
}

/// Returns an error unless the values have the dtype of x.
pub(super) fn values_dtype(op: &'static str, x: &Tensor, values: &Tensor) -> Result<()> {
    match values.dtype() == x.dtype() {
        true => Ok(()),
        false => Err(Error::dtypes(op, [x.dtype(), values.dtype()], "values need the tensor's dtype; use to_dtype()")),
    }
}

/// Returns an error unless the shapes broadcast. Checks of values follow those of shapes, whose errors name the cause.
pub(super) fn broadcasts(op: &'static str, operands: &[&Tensor]) -> Result<()> {
    let shape = operands.iter().try_fold(Shape::default(), |shape, x| shape.broadcast(x.shape()));
    match shape {
        Some(_) => Ok(()),
        None => Err(Error::shapes(op, operands.iter().map(|x| x.shape()), "the shapes must broadcast")),
    }
}

/// Returns true if the values of `x` can be read now.
pub(super) fn is_readable(x: &Tensor) -> bool {
    engine::is_eager() && x.device() == Device::cpu()
}

/// Returns an error if an element of `x` is outside `range`, whose start is finite. Passes if an element is NaN.
/// `what` is the subject of the message: "probabilities".
///
/// The check costs two reductions.
pub(super) fn in_range(op: &'static str, what: &str, x: &Tensor, range: RangeInclusive<f64>) -> Result<()> {
    within(op, what, x, range, true)
}

/// Like [`in_range`], but NaN is an error too.
pub(super) fn in_range_without_nan(op: &'static str, what: &str, x: &Tensor, range: RangeInclusive<f64>) -> Result<()> {
    within(op, what, x, range, false)
}

fn within(op: &'static str, what: &str, x: &Tensor, range: RangeInclusive<f64>, nan_passes: bool) -> Result<()> {
    if !is_readable(x) || x.size() == 0 {
        return Ok(());
    }
    let (least, most) = ops::aminmax(&x.detach(), ..)?;
    let outside = |value: &f64| !(range.contains(value) || nan_passes && value.is_nan());
    match [least.try_item::<f64>()?, most.try_item::<f64>()?].into_iter().find(outside) {
        None => Ok(()),
        Some(value) => {
            let (low, high) = (range.start(), range.end());
            let allowed = match *high {
                f64::MAX if *low == f64::MIN => "finite".to_string(),
                f64::INFINITY => format!("at least {low}"),
                f64::MAX => format!("finite and at least {low}"),
                high => format!("from {low} to {high}"),
            };
            Err(Error::invalid(op, format!("{what} must be {allowed}, got {value}")))
        }
    }
}

/// Returns x where `valid` is true, and NaN with a gradient of NaN elsewhere. `valid` broadcasts to x.
///
/// Lazy and captured steps cannot read the values of arguments; NaN makes invalid values visible there.
pub(super) fn nan_unless(valid: &Tensor, x: &Tensor) -> Result<Tensor> {
    let formula = formula! {
        static nan_unless(valid: mask, x) = valid.select(x, f64::NAN);
        d x = valid.select(g, f64::NAN);
    };
    map(formula, &[valid, x], &[])
}

/// Returns the shape, or an error if the number of its elements or bytes overflows.
pub(super) fn representable(shape: Shape) -> Result<Shape> {
    crate::array::checked_size(&shape)?;
    Ok(shape)
}

/// Returns an error if memory cannot hold `count` result tensors, before the first one is created.
pub(super) fn affordable_parts(count: usize) -> Result<()> {
    /// Bytes of a tensor and its handle, without its elements.
    const EACH: usize = 256;
    crate::array::host_vec::<[u8; EACH]>(count).map(drop)
}
