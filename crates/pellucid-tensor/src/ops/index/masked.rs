//! Selection by masks, and one-hot vectors.

use crate::ops::call::check;
use crate::ops::elementwise::arithmetic;
use crate::ops::formula::{broadcast, map};
use crate::ops::index::nonzero;
use crate::ops::primitive::{create, fill, gather, view};
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::{Error, Result, Scalar, formula};

/// Replaces the elements of x where the mask is true by `value`. x and the mask broadcast; the result has the dtype of
/// x.
///
/// # Errors
/// [`Error::DTypeMismatch`] if the mask does not have dtype bool; [`Error::ShapeMismatch`]; [`Error::InvalidArgument`]
/// for a value that an integer dtype cannot represent.
#[tensor_method]
pub fn masked_fill(x: &Tensor, mask: &Tensor, value: impl Into<Scalar>) -> Result<Tensor> {
    let value = fill::written_scalar("masked_fill", value.into(), x.dtype())?;
    arithmetic::where_(mask, &value, x)
}

/// Returns the elements where the mask is true, as a vector in row-major order. x and the mask broadcast.
///
/// The number of selected elements depends on values, so a captured step cannot contain this operation.
///
/// # Errors
/// [`Error::DTypeMismatch`] if the mask does not have dtype bool; [`Error::ShapeMismatch`]; [`Error::ReadInCapture`].
#[doc(alias("boolean_mask", "extract", "compress"))]
#[tensor_method]
#[track_caller]
pub fn masked_select(x: &Tensor, mask: &Tensor) -> Result<Tensor> {
    let op = "masked_select";
    check::mask_dtype(op, mask)?;
    let shape = check::common_shape(op, &[x, mask], "x and the mask must broadcast")?;
    let positions = nonzero::nonzero_as(op, &view::ravel(&broadcast::broadcast_to(mask, &shape)?)?)?;
    gather::index_select(&view::ravel(&broadcast::broadcast_to(x, &shape)?)?, 0, &positions[0])
}

/// Encodes class indices as one-hot vectors of length `classes`, of dtype `i64`, along a new last axis.
///
/// For an index outside 0..classes, the vector is zero.
///
/// # Errors
/// [`Error::DTypeMismatch`] for class indices without an integer dtype; [`Error::OutOfMemory`].
#[tensor_method]
pub fn one_hot(x: &Tensor, classes: usize) -> Result<Tensor> {
    if !x.dtype().is_int() {
        let help = "class indices must have an integer dtype; use to_dtype(DType::I64)";
        return Err(Error::dtypes("one_hot", [x.dtype()], help));
    }
    let shape = check::representable(x.shape().iter().copied().chain([classes]).collect())?;
    let indices = create::indices(classes).map_err(|error| error.with_shape(&shape))?;
    let is_class = formula! { static one_hot(x, class) = x.eq(class).to_number(); };
    map(is_class, &[&view::unsqueeze(x, -1)?, &indices], &[])
}
