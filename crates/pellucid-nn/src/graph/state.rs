//! The parameters and buffers of a model, and a check at each launch that they are still the same tensors.

use crate::module::DynModule;
use crate::parameter::{Parameter, first_device};
use crate::visit::ModulePart;
use pellucid_tensor::{DType, Device, Error, Result, Tensor};
use std::sync::Arc;

/// The parameters and buffers that a model had when a step was recorded.
pub(super) struct ModelState<'f> {
    model: Arc<dyn DynModule + Send + Sync + 'f>,
    /// The visited tensors, in order. Holding them keeps their ids from being reused.
    known: Vec<Tensor>,
    /// The dtypes that these tensors had when the step was recorded.
    dtypes: Vec<DType>,
    /// The first parameter, which is on the device of the model.
    parameter: Option<Parameter>,
}

impl<'f> ModelState<'f> {
    pub(super) fn new(model: Arc<dyn DynModule + Send + Sync + 'f>) -> ModelState<'f> {
        let mut known = Vec::new();
        each_tensor(&*model, &mut |_, tensor| known.push(tensor.clone()));
        let dtypes = known.iter().map(Tensor::dtype).collect();
        let parts: &dyn DynModule = &*model;
        let parameter = parts.parameters().first().map(|(_, parameter)| parameter.clone());
        ModelState { model, known, dtypes, parameter }
    }

    /// Returns the device of the first parameter, or the CPU if there is none.
    pub(super) fn device(&self) -> Device {
        first_device(&self.parameter)
    }

    /// Returns the parameters and buffers.
    pub(super) fn tensors(&self) -> &[Tensor] {
        &self.known
    }

    /// Returns true if a tensor was converted to another dtype since the recording.
    pub(super) fn is_converted(&self) -> bool {
        self.known.iter().map(Tensor::dtype).ne(self.dtypes.iter().copied())
    }

    /// Returns an error if a tensor of the model was replaced since recording.
    pub(super) fn check(&self) -> Result<()> {
        let (mut known, mut replaced) = (self.known.iter(), None);
        each_tensor(&*self.model, &mut |name, tensor| {
            if known.next().map(Tensor::id) != Some(tensor.id()) && replaced.is_none() {
                replaced = Some(format!("`{name}` of the model"));
            }
        });
        if known.next().is_some() && replaced.is_none() {
            replaced = Some("the last parameter or buffer of the model".into());
        }
        replaced.map_or(Ok(()), |slot| Err(Error::Rebound { slot }))
    }
}

/// Calls `f` with the name and the tensor of every parameter and buffer; a shared tensor once for each of its names.
fn each_tensor(model: &dyn DynModule, f: &mut dyn FnMut(&str, &Tensor)) {
    model.walk(&mut |name, part| match part {
        ModulePart::Parameter(parameter) => f(name, parameter.tensor()),
        ModulePart::Buffer(buffer) => f(name, buffer.tensor()),
        _ => (),
    });
}
