//! First values of parameters, from the thread's generator ([`manual_seed`](pellucid_tensor::manual_seed)).

use crate::parameter::Parameter;
use pellucid_tensor::{DType, Shape, formula, ops, unwrap};
use std::cell::Cell;

thread_local! {
    static DTYPE: Cell<DType> = const { Cell::new(DType::F32) };
}

/// The dtype of new parameters and buffers of this thread: `f32`, but inside of [`in_dtype`].
pub fn default_dtype() -> DType {
    DTYPE.get()
}

/// Runs `make` with new parameters and buffers of this float dtype.
///
/// ```
/// use pellucid_nn::{Linear, init};
/// use pellucid_tensor::DType;
/// assert_eq!(init::in_dtype(DType::F64, || Linear::new(2, 3)).weight.dtype(), DType::F64);
/// ```
///
/// # Panics
/// If the dtype is not a float.
#[track_caller]
pub fn in_dtype<R>(dtype: DType, make: impl FnOnce() -> R) -> R {
    struct Before(DType);
    impl Drop for Before {
        fn drop(&mut self) {
            DTYPE.set(self.0);
        }
    }
    assert!(dtype.is_float(), "parameters are floats, not {dtype}");
    let _before = Before(DTYPE.replace(dtype));
    make()
}

/// Uniform on [−bound, bound), of the [default dtype](in_dtype).
///
/// # Panics
/// With [`Error::OutOfMemory`](pellucid_tensor::Error::OutOfMemory).
#[track_caller]
pub fn uniform(shape: impl Into<Shape>, bound: f64) -> Parameter {
    let draw = || {
        let u = ops::rand(shape, default_dtype())?;
        Ok(ops::map(formula!(|u; bound| (2.0 * u - 1.0) * bound), &[&u], &[bound.into()])?.remove(0))
    };
    Parameter::new(unwrap(draw()))
}

/// Normal with mean 0 and this standard deviation, of the [default dtype](in_dtype).
///
/// # Panics
/// With [`Error::OutOfMemory`](pellucid_tensor::Error::OutOfMemory).
#[track_caller]
pub fn normal(shape: impl Into<Shape>, std: f64) -> Parameter {
    Parameter::new(unwrap(ops::randn(shape, default_dtype()).and_then(|z| ops::mul(&z, std))))
}

/// Every value 0, of the [default dtype](in_dtype).
///
/// # Panics
/// With [`Error::OutOfMemory`](pellucid_tensor::Error::OutOfMemory).
#[track_caller]
pub fn zeros(shape: impl Into<Shape>) -> Parameter {
    Parameter::new(unwrap(ops::zeros(shape, default_dtype())))
}

/// Every value 1, of the [default dtype](in_dtype).
///
/// # Panics
/// With [`Error::OutOfMemory`](pellucid_tensor::Error::OutOfMemory).
#[track_caller]
pub fn ones(shape: impl Into<Shape>) -> Parameter {
    Parameter::new(unwrap(ops::ones(shape, default_dtype())))
}
