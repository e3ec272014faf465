//! Operations that create tensors of evenly spaced values, and tensors of host values.

use crate::array::{Array, host_values};
use crate::device::Device;
use crate::engine;
use crate::ops::primitive::copy;
use crate::panic;
use crate::tensor::Tensor;
use pellucid_derive::operation;
use pellucid_ir::formula::{Formula, Signature};
use pellucid_ir::kernel::{Kernel, Map};
use pellucid_ir::{DType, Element, Error, Layout, Result, Scalar, Shape, formula};

/// Returns start, start + step, .. below `end` (above it for a negative step): ⌈(end − start)/step⌉ values, computed as
/// start + i·step.
///
/// # Errors
/// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if the step is 0 or a bound is not finite; for an integer
/// dtype, if an argument is not an integer, or the dtype cannot represent an element of the result.
#[doc(alias = "range")]
#[operation]
pub fn arange(
    start: impl Into<Scalar>,
    end: impl Into<Scalar>,
    step: impl Into<Scalar>,
    dtype: DType,
) -> Result<Tensor> {
    evenly_stepped(start.into(), end.into(), step.into(), dtype)
}

/// Returns `count` evenly spaced values from `start` to `end`, both included. Element i is
/// start + i·(end − start)/(count − 1), computed from the nearer end, so that both ends are exact.
///
/// # Errors
/// [`Error::DTypeMismatch`](crate::Error::DTypeMismatch) if `dtype` is not a float.
#[operation]
pub fn linspace(start: f64, end: f64, count: usize, dtype: DType) -> Result<Tensor> {
    evenly_spaced("linspace", start, end, count, dtype, None)
}

/// Returns `count` values from base^start to base^end: the powers of `base` with the exponents of [`linspace`].
///
/// # Errors
/// The errors of [`linspace`].
#[operation]
pub fn logspace(start: f64, end: f64, count: usize, base: f64, dtype: DType) -> Result<Tensor> {
    evenly_spaced("logspace", start, end, count, dtype, Some(&|x| base.powf(x)))
}

/// Returns `count` values from `start` to `end`, both included, with a constant ratio: start·(end/start)^(i/(count −
/// 1)).
///
/// # Errors
/// [`Error::InvalidArgument`](crate::Error::InvalidArgument) unless both ends are finite, nonzero and of the same sign;
/// the errors of [`linspace`].
#[operation]
pub fn geomspace(start: f64, end: f64, count: usize, dtype: DType) -> Result<Tensor> {
    if !(start.is_finite() && end.is_finite() && start != 0.0 && end != 0.0 && start.signum() == end.signum()) {
        let reason = format!("both ends must be finite, nonzero and of the same sign; got {start} and {end}");
        return Err(Error::invalid("geomspace", reason));
    }
    let (low, high) = (start.abs().ln(), end.abs().ln());
    let power = |x: f64| match x {
        x if x == low => start,
        x if x == high => end,
        x => x.exp().copysign(start),
    };
    evenly_spaced("geomspace", low, high, count, dtype, Some(&power))
}

/// Returns the integers 0, 1, .., count − 1 (`i64`).
pub(crate) fn indices(count: usize) -> Result<Tensor> {
    if count >= MIN_KERNEL_RANGE {
        return from_indices(count, stepped(), &[0.into(), 1.into()], DType::I64);
    }
    from_host(&host_values(count, 0i64..)?, [count])
}

/// The smallest number of elements for which a kernel computes a range.
const MIN_KERNEL_RANGE: usize = 1 << 14;

/// Returns the formula start + i·step.
fn stepped() -> &'static Formula {
    formula! { static stepped(row, column; start, step) = start + (row + column) * step; }
}

/// Computes `count` elements by a formula of the index i, which is the sum of its two inputs. A float is computed in
/// `f64` and rounded once, an integer in `i64`. A captured step contains the result as a constant.
pub(in crate::ops) fn from_indices(count: usize, formula: &Formula, params: &[Scalar], dtype: DType) -> Result<Tensor> {
    const ROW: usize = 1024;
    let (width, rows) = (count.min(ROW), count.div_ceil(ROW));
    let compute = if dtype.is_float() { DType::F64 } else { DType::I64 };
    let signature =
        Signature::new([compute; 2], compute).with_output_dtypes([if dtype.is_float() { dtype } else { compute }]);
    let operand = |count: usize, step: usize, shape: [usize; 2]| -> Result<Tensor> {
        copy::to_dtype(&from_host(&host_values(count, (0..).step_by(step).map(|i: i64| i))?, shape)?, compute)
    };
    let run = || -> Result<Array> {
        let (row, column) = (operand(rows, ROW, [rows, 1])?, operand(width, 1, [1, width])?);
        let program = formula.program(&signature)?.clone();
        let out = Array::new(Device::cpu(), program.outputs[0].storage, [rows, width].into())?;
        let kernel = Kernel::Map(Map { program, params: params.into() });
        engine::submit(&kernel, &[row.array(), column.array()], &[&out])?;
        // The last row may have elements beyond the result.
        Ok(out.view(Layout::contiguous([count].into())))
    };
    let array = if engine::mode() == engine::ExecutionMode::Capture { engine::eager(run) } else { run() };
    let array = array.map_err(|error| error.with_shape(&[count].into()))?;
    engine::record_constant(&array);
    copy::to_dtype(&Tensor::from(array), dtype)
}

/// Returns a tensor of `shape` with the given values.
pub(crate) fn from_host<T: Element>(values: &[T], shape: impl Into<Shape>) -> Result<Tensor> {
    Array::from_slice(Device::cpu(), values, shape.into()).map(Tensor::from)
}

/// Creates the values start, start + step, .. below `end` (above it for a negative step).
fn evenly_stepped(start: Scalar, end: Scalar, step: Scalar, dtype: DType) -> Result<Tensor> {
    let reason = |why: &str| Error::invalid("arange", format!("{why}: {start}..{end} by {step}"));
    if dtype.is_float() {
        let (a, b, s) = (start.to_f64(), end.to_f64(), step.to_f64());
        let count = ((b - a) / s).ceil();
        if !(a.is_finite() && b.is_finite() && count.is_finite()) {
            return Err(reason("the bounds must be finite, and the step not 0"));
        }
        let count = count.max(0.0) as usize;
        if count >= MIN_KERNEL_RANGE {
            return from_indices(count, stepped(), &[start, step], dtype);
        }
        return tensor_from_fn(count, |i| Scalar::Float(a + i as f64 * s), dtype);
    }
    let has_fraction = |x: &Scalar| !DType::I64.represents(*x);
    if let Some(x) = [start, end, step].iter().find(|x| has_fraction(x)) {
        let why = format!("{x} is not an integer, but the dtype is {dtype}; use a float dtype");
        return Err(reason(&why));
    }
    let (a, b, s) = (start.to_i64() as i128, end.to_i64() as i128, step.to_i64() as i128);
    if s == 0 {
        return Err(reason("the step must not be 0; full() repeats a value"));
    }
    let distance = (b - a) * s.signum();
    let count = if distance <= 0 { 0 } else { (distance - 1) / s.abs() + 1 };
    let last = a + (count - 1).max(0) * s;
    let fits = |x: i128| dtype.represents(Scalar::Int(x as i64));
    if count > 0 && !(fits(a) && fits(last)) {
        return Err(reason(&format!(
            "the first element {a} or the last element {last} is outside the range of {dtype}; use a wider dtype"
        )));
    }
    if count >= MIN_KERNEL_RANGE as i128 {
        return from_indices(count as usize, stepped(), &[start, step], dtype);
    }
    tensor_from_fn(count as usize, |i| Scalar::Int((a + i as i128 * s) as i64), dtype)
}

/// Computes f of `count` evenly spaced values from `start` to `end`. Without f, returns the values themselves.
fn evenly_spaced(
    op: &'static str,
    start: f64,
    end: f64,
    count: usize,
    dtype: DType,
    f: Option<&dyn Fn(f64) -> f64>,
) -> Result<Tensor> {
    if !dtype.is_float() {
        return Err(Error::dtypes(op, [dtype], "the dtype must be a float; arange() creates integers"));
    }
    let intervals = count.saturating_sub(1).max(1) as f64;
    // If the distance overflows, the ends are divided first.
    let distance = end - start;
    let step = if distance.is_finite() { distance / intervals } else { end / intervals - start / intervals };
    let (middle, last) = (count.div_ceil(2), count.saturating_sub(1));
    if f.is_none() && count >= MIN_KERNEL_RANGE {
        let formula = formula! {
            static spaced(row, column; start, end, step, middle, last) = {
                let i = row + column;
                i.lt(middle).select(start + i * step, end - (last - i) * step)
            };
        };
        let params = [start, end, step, middle as f64, last as f64].map(Scalar::Float);
        return from_indices(count, formula, &params, dtype);
    }
    let element = |i: usize| if i < middle { start + i as f64 * step } else { end - (last - i) as f64 * step };
    tensor_from_fn(count, |i| Scalar::Float(f.map_or(element(i), |f| f(element(i)))), dtype)
}

/// Computes `count` elements on the host: element i is `element(i)`.
pub(in crate::ops) fn tensor_from_fn(count: usize, element: impl Fn(usize) -> Scalar, dtype: DType) -> Result<Tensor> {
    let shape = Shape::from([count]);
    let sized = |error: Error| error.with_shape(&shape);
    match dtype {
        // Large tensors usually have this dtype, so they are created without an intermediate `f64` tensor.
        DType::F32 => {
            let values = host_values(count, (0..count).map(|i| element(i).to_f64() as f32)).map_err(sized)?;
            from_host(&values, &shape)
        }
        dtype if dtype.is_float() => {
            let values = host_values(count, (0..count).map(|i| element(i).to_f64())).map_err(sized)?;
            copy::to_dtype(&from_host(&values, &shape)?, dtype)
        }
        dtype => {
            let values = host_values(count, (0..count).map(|i| element(i).to_i64())).map_err(sized)?;
            copy::to_dtype(&from_host(&values, &shape)?, dtype)
        }
    }
}

impl Tensor {
    /// Creates the values start, start + step, .. below `end` (above it for a negative step): ⌈(end − start)/step⌉
    /// elements, each computed as start + i·step. The dtype is the arguments' dtype.
    ///
    /// # Panics
    /// If the step is 0 or a bound is not finite.
    #[doc(alias = "range")]
    #[track_caller]
    pub fn arange<T: Element + Into<Scalar>>(start: T, end: T, step: T) -> Tensor {
        panic::unwrap(arange(start, end, step, T::DTYPE))
    }

    /// Creates `count` evenly spaced values from `start` to `end`, both included. Element i is start + i·(end −
    /// start)/(count − 1), computed from the nearer end, so that both ends are exact.
    ///
    /// # Panics
    /// If `dtype` is not a float.
    #[track_caller]
    pub fn linspace(start: f64, end: f64, count: usize, dtype: DType) -> Tensor {
        panic::unwrap(linspace(start, end, count, dtype))
    }
}
