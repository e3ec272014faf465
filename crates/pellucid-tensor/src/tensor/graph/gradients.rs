//! The gradients that a backward computation receives, and the gradients that it returns.

use super::{GraphNode, OutputMeta};
use crate::array::Array;
use crate::device::Device;
use crate::tensor::Tensor;
use pellucid_ir::kernel::Meta;
use pellucid_ir::{Error, Result, Shape};
use smallvec::SmallVec;
use std::sync::Arc;

/// The gradient of every input; `None` if it is zero or is not needed.
pub type InputGradients = SmallVec<[Option<Tensor>; 2]>;

/// The set of inputs that need a gradient. Inputs beyond the 64th are always included.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NeedsInputGrad(pub(crate) u64);

impl NeedsInputGrad {
    /// Returns true if input `index` needs a gradient.
    pub fn contains(self, index: usize) -> bool {
        index >= 64 || self.0 >> index & 1 == 1
    }

    pub(crate) fn insert(&mut self, index: usize) {
        if index < 64 {
            self.0 |= 1 << index;
        }
    }
}

/// The incoming gradients of an operation's outputs.
pub struct OutputGradients<'a> {
    pub(crate) node: &'a Arc<GraphNode>,
    pub(crate) values: &'a [Option<Tensor>],
    /// Takes the sum of the gradients that an input has received so far.
    pub(crate) sums: &'a dyn Fn(usize) -> Option<Tensor>,
}

impl OutputGradients<'_> {
    /// Returns the gradient of output `index`, or zeros if the output has no gradient in this pass.
    #[inline]
    pub fn get(&self, index: usize) -> Result<Tensor> {
        match self.values.get(index) {
            Some(Some(gradient)) => Ok(gradient.clone()),
            None => {
                let outputs = self.values.len();
                let reason =
                    format!("backward() reads the gradient of output {index}, but there are {outputs} outputs");
                Err(Error::invalid(self.node.derivative().name(), reason))
            }
            Some(None) => {
                let OutputMeta { meta, device } = &self.node.outputs_meta[index];
                self.zeros(meta.clone(), *device)
            }
        }
    }

    /// Returns a tensor of zeros. It is pinned if the incoming gradients are pinned.
    pub(crate) fn zeros(&self, meta: Meta, device: Device) -> Result<Tensor> {
        let first = self.values.iter().flatten().next();
        let zeros = Array::filled(device, meta.dtype, meta.shape, 0.into()).map_err(|mut error| {
            error.set_operation("zeros");
            error
        })?;
        zeros.set_pinned(first.is_some_and(|gradient| !gradient.is_free()));
        Ok(Tensor::from(zeros))
    }

    /// Returns the gradient of output `index`, or `None` if the output has no gradient in this pass.
    pub fn try_get(&self, index: usize) -> Option<&Tensor> {
        self.values.get(index)?.as_ref()
    }

    /// Takes the sum of the gradients that input `index` has received from other operations, so that a kernel can add
    /// to it. The caller must return the complete sum. The sum is not recorded, and has the input's shape and dtype.
    pub(crate) fn take_sum(&self, index: usize) -> Option<Tensor> {
        (self.sums)(index)
    }

    /// Returns the number of outputs.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Returns true for an operation without outputs.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Returns the shape of output `index`.
    pub fn shape(&self, index: usize) -> &Shape {
        &self.node.outputs_meta[index].meta.shape
    }
}
