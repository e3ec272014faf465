//! Running reductions along an axis.

use crate::array::Array;
use crate::autograd::{Arrays, Gradients, InputGradients, Needed, Operation, Saved, Saves, apply_one};
use crate::engine;
use crate::ops;
use crate::tensor::Tensor;
use pellucid_derive::face;
use pellucid_ir::kernel::{self, Kernel, ScanOp};
use pellucid_ir::{DType, Result};
use smallvec::smallvec;

/// yᵢ = Σ_{j ≤ i} xⱼ, or from the other end. Its gradient is itself from the other end.
struct CumSum {
    axis: usize,
    reverse: bool,
}

impl Operation for CumSum {
    fn name(&self) -> &'static str {
        "cumsum"
    }
    fn forward(&self, inputs: &[&Array], _: &mut Saves) -> Result<Arrays> {
        let x = inputs[0];
        let out = Array::new(x.device(), x.dtype(), x.shape().clone())?;
        let kernel = kernel::Scan { op: ScanOp::Sum, axis: self.axis, reverse: self.reverse };
        engine::submit(&Kernel::Scan(kernel), inputs, &[&out])?;
        Ok(smallvec![out])
    }
    fn backward(&self, _: &Saved, grads: &Gradients, _: Needed) -> Result<InputGradients> {
        let reversed = CumSum { axis: self.axis, reverse: !self.reverse };
        Ok(smallvec![Some(apply_one(reversed, &[&grads.get(0)?])?)])
    }
}

/// The running sum along an axis; integers and truth values sum in `i64`.
///
/// # Errors
/// [`Error::AxisOutOfRange`](crate::Error::AxisOutOfRange).
#[face]
pub fn cumsum(x: &Tensor, axis: isize) -> Result<Tensor> {
    let axis = x.shape().axis("cumsum", axis)?;
    let x = if x.dtype().is_float() { x.clone() } else { ops::to_dtype(x, DType::I64)? };
    apply_one(CumSum { axis, reverse: false }, &[&x])
}
