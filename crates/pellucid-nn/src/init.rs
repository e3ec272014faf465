//! First values of parameters, from the thread's generator ([`manual_seed`](pellucid_tensor::manual_seed)).

use crate::parameter::Parameter;
use pellucid_tensor::{DType, Shape, formula, ops, unwrap};

/// Uniform on [−bound, bound), `f32`.
///
/// # Panics
/// With [`Error::OutOfMemory`](pellucid_tensor::Error::OutOfMemory).
#[track_caller]
pub fn uniform(shape: impl Into<Shape>, bound: f64) -> Parameter {
    let draw = || {
        let u = ops::rand(shape, DType::F32)?;
        Ok(ops::map(formula!(|u; bound| (2.0 * u - 1.0) * bound), &[&u], &[bound.into()])?.remove(0))
    };
    Parameter::new(unwrap(draw()))
}

/// Normal with mean 0 and this standard deviation, `f32`.
///
/// # Panics
/// With [`Error::OutOfMemory`](pellucid_tensor::Error::OutOfMemory).
#[track_caller]
pub fn normal(shape: impl Into<Shape>, std: f64) -> Parameter {
    Parameter::new(unwrap(ops::randn(shape, DType::F32).and_then(|z| ops::mul(&z, std))))
}

/// Every value 0, `f32`.
///
/// # Panics
/// With [`Error::OutOfMemory`](pellucid_tensor::Error::OutOfMemory).
#[track_caller]
pub fn zeros(shape: impl Into<Shape>) -> Parameter {
    Parameter::new(unwrap(ops::zeros(shape, DType::F32)))
}

/// Every value 1, `f32`.
///
/// # Panics
/// With [`Error::OutOfMemory`](pellucid_tensor::Error::OutOfMemory).
#[track_caller]
pub fn ones(shape: impl Into<Shape>) -> Parameter {
    Parameter::new(unwrap(ops::ones(shape, DType::F32)))
}
