//! Parameters that an option of a layer adds or removes.

use crate::call;
use crate::init::{self, uniform_bound};
use crate::module::as_dyn;
use crate::parameter::Parameter;
use crate::visit::Visit;
use pellucid_tensor::{Result, Shape, Tensor};

/// Returns an optional parameter of a layer: `None` unless it is `enabled`, otherwise the current one, or the result of
/// `make` if there is none.
pub(crate) fn switched<T>(enabled: bool, current: Option<T>, make: impl FnOnce() -> Result<T>) -> Result<Option<T>> {
    match (enabled, current) {
        (false, _) => Ok(None),
        (true, Some(current)) => Ok(Some(current)),
        (true, None) => make().map(Some),
    }
}

/// Returns the bias of a layer, as [`switched`] does. An added bias has `len` elements, uniform on ±1/√inputs, with the
/// dtype and the device of the weight.
#[track_caller]
pub(crate) fn uniform_bias(
    layer: &'static str,
    enabled: bool,
    current: Option<Parameter>,
    weight: &Parameter,
    len: usize,
    inputs: usize,
) -> Result<Option<Parameter>> {
    let bound = uniform_bound(inputs);
    switched(enabled, current, || values_like(layer, Some(weight), || init::try_uniform(len, -bound, bound)))
}

/// Returns the weight and the bias of a norm: none unless they are `enabled`, otherwise the current ones, or ones and
/// zeros if there is no weight. New parameters have the dtype and device of `other`, another value of the norm.
pub(crate) fn switched_affine(
    layer: &'static str,
    enabled: bool,
    [weight, bias]: [Option<Parameter>; 2],
    other: Option<&Tensor>,
    shape: impl Into<Shape>,
) -> Result<[Option<Parameter>; 2]> {
    match (enabled, weight) {
        (false, _) => Ok([None, None]),
        (true, Some(weight)) => Ok([Some(weight), bias]),
        (true, None) => values_like(layer, other, || init::try_affine(layer, shape)).map(|both| both.map(Some)),
    }
}

/// Creates parameters, buffers or a module with the dtype and on the device of another value of the same layer. If the
/// layer has no other value, the dtype is the default one and the device is the CPU.
pub(crate) fn values_like<V: Visit>(
    layer: &'static str,
    other: Option<&Tensor>,
    make: impl FnOnce() -> Result<V>,
) -> Result<V> {
    let Some(other) = other else { return call::name_layer(layer, make()) };
    let values = call::name_layer(layer, init::in_dtype(other.dtype(), make))?;
    as_dyn(&&values).to_(other.device())?;
    Ok(values)
}
