//! Creation of tensors: from numbers, slices and nested arrays, and by formulas.

use super::Tensor;
use crate::array::{Array, host_values};
use crate::device::Device;
use crate::ops;
use crate::panic;
use pellucid_ir::{DType, Element, Error, Result, Scalar, Shape};

/// A number, or nested arrays of numbers whose nesting is the shape.
pub trait Nested {
    /// The type of the numbers.
    type Item: Element;
    /// The number of levels.
    const RANK: usize;
    /// Appends the numbers in row-major order.
    fn flatten(&self, into: &mut Vec<Self::Item>);
    /// Appends the lengths of the levels.
    fn lengths(into: &mut Vec<usize>);
}

macro_rules! nested_numbers {
    ($($t:ty),*) => {$(
        impl Nested for $t {
            type Item = $t;
            const RANK: usize = 0;
            fn flatten(&self, into: &mut Vec<$t>) {
                into.push(*self);
            }
            fn lengths(_: &mut Vec<usize>) {}
        }

        impl From<Vec<$t>> for Tensor {
            /// Creates a 1-d leaf on the CPU, with the dtype of the numbers: `Tensor::from(vec![1.0f32, 2.0])`.
            #[track_caller]
            fn from(numbers: Vec<$t>) -> Tensor {
                numbers.as_slice().into()
            }
        }

        impl From<&[$t]> for Tensor {
            /// Creates a 1-d leaf on the CPU, with the dtype of the numbers.
            #[track_caller]
            fn from(numbers: &[$t]) -> Tensor {
                panic::unwrap(Array::from_slice(Device::cpu(), numbers, [numbers.len()].into())).into()
            }
        }
    )*};
}
nested_numbers!(bool, u8, i8, i16, i32, i64, pellucid_ir::f16, pellucid_ir::bf16, f32, f64);

impl<T: Nested, const N: usize> Nested for [T; N] {
    type Item = T::Item;
    const RANK: usize = T::RANK + 1;
    fn flatten(&self, into: &mut Vec<T::Item>) {
        self.iter().for_each(|t| t.flatten(into));
    }
    fn lengths(into: &mut Vec<usize>) {
        into.push(N);
        T::lengths(into);
    }
}

impl<T: Nested> From<T> for Tensor {
    /// Creates a leaf on the CPU, with the dtype of the numbers: `Tensor::from([[1.0f32, 2.0], [3.0, 4.0]])`.
    #[track_caller]
    fn from(nested: T) -> Tensor {
        let (mut data, mut lengths) = (Vec::new(), Vec::new());
        nested.flatten(&mut data);
        T::lengths(&mut lengths);
        panic::unwrap(Array::from_slice(Device::cpu(), &data, Shape::from(lengths))).into()
    }
}

/// A conversion of host data into a tensor of a given shape.
pub trait IntoTensor {
    /// Creates a tensor from the numbers, in row-major order.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the data does not fill the shape.
    fn into_tensor(self, shape: Shape) -> Result<Tensor>;
}

impl<T: Element> IntoTensor for &[T] {
    fn into_tensor(self, shape: Shape) -> Result<Tensor> {
        Array::from_slice(Device::cpu(), self, shape).map(Tensor::from)
    }
}

impl<T: Element> IntoTensor for Vec<T> {
    fn into_tensor(self, shape: Shape) -> Result<Tensor> {
        self.as_slice().into_tensor(shape)
    }
}

impl<T: Element> IntoTensor for &Vec<T> {
    fn into_tensor(self, shape: Shape) -> Result<Tensor> {
        self.as_slice().into_tensor(shape)
    }
}

impl Tensor {
    /// Creates a tensor from numbers in row-major order: `Tensor::new(vec![1.0f32; 6], [2, 3])`.
    ///
    /// # Panics
    /// If the numbers do not fill the shape.
    #[track_caller]
    pub fn new(data: impl IntoTensor, shape: impl Into<Shape>) -> Tensor {
        panic::unwrap(data.into_tensor(shape.into()))
    }

    /// Creates a tensor from bytes, in row-major order and native byte order.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the data does not fill the shape, or a `bool` is not 0 or 1.
    pub fn from_bytes(bytes: &[u8], dtype: DType, shape: impl Into<Shape>) -> Result<Tensor> {
        if dtype == DType::Bool
            && let Some(byte) = bytes.iter().find(|&&b| b > 1)
        {
            return Err(Error::invalid("from_bytes", format!("a bool must be 0 or 1, got {byte}")));
        }
        Array::from_bytes(Device::cpu(), dtype, bytes, shape.into()).map(Tensor::from)
    }

    /// Creates a 0-d tensor.
    ///
    /// # Panics
    /// With the errors of [`ops::full`].
    #[track_caller]
    pub fn scalar(value: impl Into<Scalar>, dtype: DType) -> Tensor {
        panic::unwrap(ops::full((), value, dtype))
    }

    /// Creates a tensor of `shape` with every element equal to `value`.
    ///
    /// # Panics
    /// With the errors of [`ops::full`].
    #[track_caller]
    pub fn full(shape: impl Into<Shape>, value: impl Into<Scalar>, dtype: DType) -> Tensor {
        panic::unwrap(ops::full(shape, value, dtype))
    }

    /// Creates a tensor of zeros.
    ///
    /// # Panics
    /// With the errors of [`ops::zeros`].
    #[track_caller]
    pub fn zeros(shape: impl Into<Shape>, dtype: DType) -> Tensor {
        panic::unwrap(ops::zeros(shape, dtype))
    }

    /// Creates a tensor of ones.
    ///
    /// # Panics
    /// With the errors of [`ops::ones`].
    #[track_caller]
    pub fn ones(shape: impl Into<Shape>, dtype: DType) -> Tensor {
        panic::unwrap(ops::ones(shape, dtype))
    }

    /// Draws from the uniform distribution on [0, 1), with the thread's generator.
    ///
    /// # Panics
    /// With the errors of [`ops::rand`].
    #[track_caller]
    pub fn rand(shape: impl Into<Shape>, dtype: DType) -> Tensor {
        panic::unwrap(ops::rand(shape, dtype))
    }

    /// Draws from the standard normal distribution, with the thread's generator.
    ///
    /// # Panics
    /// With the errors of [`ops::randn`].
    #[track_caller]
    pub fn randn(shape: impl Into<Shape>, dtype: DType) -> Tensor {
        panic::unwrap(ops::randn(shape, dtype))
    }

    /// Draws integers (`i64`) uniformly from `low..high`, with the thread's generator.
    ///
    /// # Panics
    /// With the errors of [`ops::randint`].
    #[track_caller]
    pub fn randint(low: i64, high: i64, shape: impl Into<Shape>) -> Tensor {
        panic::unwrap(ops::randint(low, high, shape))
    }

    /// Creates the `n × n` identity matrix.
    ///
    /// # Panics
    /// With the errors of [`ops::zeros`].
    #[track_caller]
    pub fn eye(n: usize, dtype: DType) -> Tensor {
        panic::unwrap(ops::eye(n, n, dtype))
    }

    /// Creates the numbers start, start + step, .. below `end` (above it for a negative step): ⌈(end − start)/step⌉
    /// elements, each computed as start + i·step. The dtype is that of the arguments.
    ///
    /// # Panics
    /// If the step is 0 or a bound is not finite.
    #[track_caller]
    pub fn arange<T: Element + Into<Scalar>>(start: T, end: T, step: T) -> Tensor {
        panic::unwrap(ops::arange(start, end, step, T::DTYPE))
    }

    pub(crate) fn try_arange(start: Scalar, end: Scalar, step: Scalar, dtype: DType) -> Result<Tensor> {
        let reason = |why: &str| Error::invalid("arange", format!("{why}: {start}..{end} by {step}"));
        if dtype.is_float() {
            let (a, b, s) = (start.to_f64(), end.to_f64(), step.to_f64());
            let count = ((b - a) / s).ceil();
            if !(a.is_finite() && b.is_finite() && count.is_finite()) {
                return Err(reason("needs finite bounds and a nonzero step"));
            }
            return Tensor::counted(count.max(0.0) as usize, |i| Scalar::Float(a + i as f64 * s), dtype);
        }
        let has_fraction = |x: &Scalar| !DType::I64.represents(*x);
        if let Some(x) = [start, end, step].iter().find(|x| has_fraction(x)) {
            let why = format!("{x} is not an integer, and the dtype is {dtype}; use a float dtype");
            return Err(reason(&why));
        }
        let (a, b, s) = (start.to_i64() as i128, end.to_i64() as i128, step.to_i64() as i128);
        if s == 0 {
            return Err(reason("needs a nonzero step"));
        }
        let distance = (b - a) * s.signum();
        let count = if distance <= 0 { 0 } else { (distance - 1) / s.abs() + 1 };
        let last = a + (count - 1).max(0) * s;
        let fits = |x: i128| dtype.represents(Scalar::Int(x as i64));
        if count > 0 && !(fits(a) && fits(last)) {
            return Err(reason(&format!("{a} or {last} is outside of the range of {dtype}; use a wider dtype")));
        }
        Tensor::counted(count as usize, |i| Scalar::Int((a + i as i128 * s) as i64), dtype)
    }

    /// Creates `count` evenly spaced numbers from `start` to `end`, both included. Element i is start + i·(end −
    /// start)/(count − 1), computed from the nearer end, so that both ends are exact.
    ///
    /// # Panics
    /// If `dtype` is not a float.
    #[track_caller]
    pub fn linspace(start: f64, end: f64, count: usize, dtype: DType) -> Tensor {
        panic::unwrap(ops::linspace(start, end, count, dtype))
    }

    /// Computes f of evenly spaced numbers.
    pub(crate) fn try_linspace(
        op: &'static str,
        start: f64,
        end: f64,
        count: usize,
        dtype: DType,
        f: impl Fn(f64) -> f64,
    ) -> Result<Tensor> {
        if !dtype.is_float() {
            return Err(Error::dtypes(op, [dtype], "the result has a float dtype; arange() creates integers"));
        }
        let parts = count.saturating_sub(1).max(1) as f64;
        // The ends are divided first if their distance overflows.
        let distance = end - start;
        let step = if distance.is_finite() { distance / parts } else { end / parts - start / parts };
        let at = |i: usize| {
            if i < count.div_ceil(2) { start + i as f64 * step } else { end - (count - 1 - i) as f64 * step }
        };
        Tensor::counted(count, |i| Scalar::Float(f(at(i))), dtype)
    }

    /// Computes `count` elements on the host: element i is `at(i)`.
    pub(crate) fn counted(count: usize, at: impl Fn(usize) -> Scalar, dtype: DType) -> Result<Tensor> {
        let shape = Shape::from([count]);
        let sized = |error: Error| error.with_shape(&shape);
        if dtype.is_float() {
            let values = host_values(count, (0..count).map(|i| at(i).to_f64())).map_err(sized)?;
            ops::to_dtype(&ops::from_host(&values, &shape)?, dtype)
        } else {
            let values = host_values(count, (0..count).map(|i| at(i).to_i64())).map_err(sized)?;
            ops::to_dtype(&ops::from_host(&values, &shape)?, dtype)
        }
    }
}
