//! Copies: other dtypes, dense layouts, and writes into existing tensors.

use crate::array::Array;
use crate::autograd::{Arrays, Gradients, InputGradients, Needed, Operation, Saved, Saves, apply_one, is_grad_enabled};
use crate::engine;
use crate::tensor::Tensor;
use pellucid_derive::face;
use pellucid_ir::kernel::Kernel;
use pellucid_ir::{DType, Error, Result};
use smallvec::smallvec;

/// Converts and writes `x`, of equal shape, into the elements of `target`.
pub(crate) fn write(x: &Array, target: &Array) -> Result<()> {
    engine::submit(&Kernel::Copy, &[x], &[target])
}

/// Whether `target` may be written in place.
pub(crate) fn writable(op: &'static str, target: &Tensor) -> Result<()> {
    if !target.is_leaf() || (target.requires_grad() && is_grad_enabled()) {
        return Err(Error::InPlaceOnTracked { op, shape: target.shape().clone() });
    }
    if target.array().layout().is_broadcast() {
        let reason = "the target repeats elements by broadcasting; call contiguous() first";
        return Err(Error::invalid(op, reason));
    }
    Ok(())
}

struct Cast {
    dtype: DType,
}

impl Operation for Cast {
    fn name(&self) -> &'static str {
        "to_dtype"
    }
    fn forward(&self, inputs: &[&Array], _: &mut Saves) -> Result<Arrays> {
        Ok(smallvec![inputs[0].cast(self.dtype)?])
    }
    fn backward(&self, saved: &Saved, grads: &Gradients, _: Needed) -> Result<InputGradients> {
        Ok(smallvec![Some(to_dtype(&grads.get(0)?, saved.input_dtype(0))?)])
    }
}

/// Every element converted to `dtype`: floats to integers truncate towards zero and saturate (NaN
/// gives 0), wider integers wrap, bool is "not zero". The same tensor if it has the dtype already.
///
/// # Errors
/// [`Error::OutOfMemory`].
#[face]
pub fn to_dtype(x: &Tensor, dtype: DType) -> Result<Tensor> {
    if x.dtype() == dtype { Ok(x.clone()) } else { apply_one(Cast { dtype }, &[x]) }
}

/// The same elements in row-major order without gaps; the same tensor if they lie so already.
///
/// # Errors
/// [`Error::OutOfMemory`].
#[face]
pub fn contiguous(x: &Tensor) -> Result<Tensor> {
    if x.array().layout().is_contiguous() { Ok(x.clone()) } else { copy(x) }
}

/// A copy in a storage of its own, through which gradients flow.
///
/// # Errors
/// [`Error::OutOfMemory`].
#[face]
pub fn copy(x: &Tensor) -> Result<Tensor> {
    apply_one(Cast { dtype: x.dtype() }, &[x])
}

struct Identity;

impl Operation for Identity {
    fn name(&self) -> &'static str {
        "identity"
    }
    fn forward(&self, inputs: &[&Array], _: &mut Saves) -> Result<Arrays> {
        Ok(smallvec![inputs[0].clone()])
    }
    fn backward(&self, _: &Saved, grads: &Gradients, _: Needed) -> Result<InputGradients> {
        Ok(smallvec![Some(grads.get(0)?)])
    }
}

/// A new tensor of the same elements, linked to x: a node without a kernel.
pub(crate) fn identity(x: &Tensor) -> Result<Tensor> {
    apply_one(Identity, &[x])
}

/// Overwrites x in place with `source`, which is broadcast and converted. Every view of x's storage
/// sees the new values.
///
/// # Errors
/// [`Error::InPlaceOnTracked`] if x is a result, or requires a gradient outside `no_grad`;
/// [`Error::ShapeMismatch`]. Nothing is written then.
#[face]
pub fn copy_(x: &Tensor, source: &Tensor) -> Result<()> {
    writable("copy_", x)?;
    let source = source.array().broadcast_to("copy_", x.shape())?;
    write(&source, x.array())
}
