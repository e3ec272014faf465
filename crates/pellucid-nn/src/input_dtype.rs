//! The check that the inputs of a layer have the dtype of its parameters.

use pellucid_tensor::{DType, Error, Result, Tensor, autocast_dtype};

/// Returns an error if a layer with parameters of this dtype would compute in a different dtype: operations promote
/// their operands, so one `f64` input makes an entire `f32` model compute in `f64`.
///
/// Integers and booleans are rejected. Half-precision inputs are accepted with `f32` parameters and computed in `f32`,
/// as norms need. Under [`autocast`](pellucid_tensor::autocast), operations cast all operands but `f64`.
#[inline]
pub(crate) fn check_input_dtype(op: &'static str, x: &Tensor, parameter: &Tensor) -> Result<()> {
    if x.dtype() == parameter.dtype() { Ok(()) } else { check_dtypes(op, x.dtype(), parameter.dtype()) }
}

/// [`check_input_dtype`] for a layer whose parameters are optional; without parameters, every dtype is allowed.
#[inline]
pub(crate) fn check_optional_dtype<'p>(
    op: &'static str,
    x: &Tensor,
    parameters: impl IntoIterator<Item = Option<&'p Tensor>>,
) -> Result<()> {
    match parameters.into_iter().flatten().next() {
        Some(parameter) => check_input_dtype(op, x, parameter),
        None => Ok(()),
    }
}

#[cold]
fn check_dtypes(op: &'static str, x: DType, parameter: DType) -> Result<()> {
    if !parameter.is_float() {
        return Ok(());
    }
    if !x.is_float() {
        let help = format!(
            "the input is {x} and the parameters of the layer are {parameter}: convert the input by \
             x.to_dtype(DType::{parameter:?})"
        );
        return Err(Error::dtypes(op, [x, parameter], help));
    }
    let is_half = matches!(x, DType::F16 | DType::BF16);
    let is_double = x == DType::F64 || parameter == DType::F64;
    let is_mixed = !is_double && (autocast_dtype().is_some() || is_half && parameter == DType::F32);
    if is_mixed {
        return Ok(());
    }
    let literal = match (x, parameter) {
        (DType::F64, DType::F32) => "; float literals are f64 unless one of them has a suffix, as in [1.0f32, 2.0]",
        _ => "",
    };
    let help = format!(
        "the input is {x} and the parameters of the layer are {parameter}: convert the input by \
         x.to_dtype(DType::{parameter:?}), or the model by model.to_dtype_(DType::{x:?}){literal}"
    );
    Err(Error::dtypes(op, [x, parameter], help))
}
