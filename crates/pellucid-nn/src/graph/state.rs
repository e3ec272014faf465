//! The parameters and buffers of a model, and a check at each launch that they are still the same tensors.

use super::update::StepOptimizer;
use crate::module::ModuleParts;
use crate::visit::ModulePart;
use pellucid_tensor::{DType, Device, Error, Generator, Result, StorageId, Tensor};
use std::collections::HashMap;
use std::sync::Arc;

/// The parameters and buffers that a model had when a step was recorded.
pub(super) struct ModelState<'f> {
    model: Arc<dyn ModuleParts + Send + Sync + 'f>,
    /// The visited tensors, in order. Holding them keeps their ids from being reused.
    known: Vec<Tensor>,
    /// The dtypes of the visited tensors.
    dtypes: Vec<DType>,
}

impl<'f> ModelState<'f> {
    pub(super) fn of(model: Arc<dyn ModuleParts + Send + Sync + 'f>) -> ModelState<'f> {
        let mut state = ModelState { model, known: Vec::new(), dtypes: Vec::new() };
        let mut known = Vec::new();
        state.each(&mut |_, tensor| known.push(tensor.clone()));
        state.dtypes = known.iter().map(Tensor::dtype).collect();
        state.known = known;
        state
    }

    /// Visits every parameter and buffer with its name; a shared tensor once for each of its names.
    pub(super) fn each(&self, f: &mut dyn FnMut(&str, &Tensor)) {
        let model: &dyn ModuleParts = &*self.model;
        model.walk(&mut |name, part| match part {
            ModulePart::Parameter(parameter) => f(name, parameter.tensor()),
            ModulePart::Buffer(buffer) => f(name, buffer.tensor()),
            _ => (),
        });
    }

    /// Returns true if a tensor was converted to another dtype since the recording.
    pub(super) fn is_converted(&self) -> bool {
        self.known.iter().map(Tensor::dtype).ne(self.dtypes.iter().copied())
    }

    /// Returns an error if a tensor of the model was replaced since recording.
    pub(super) fn check(&self) -> Result<()> {
        let (mut known, mut replaced) = (self.known.iter(), None);
        self.each(&mut |name, tensor| {
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

/// Returns names for the tensors of a training step that are not part of the model: gradients, optimizer state, and the
/// random generator. State that several parameters share is named without a parameter. The printed form of a plan
/// contains these names.
pub(super) fn state_names(model: &dyn ModuleParts, optimizer: &StepOptimizer<'_>) -> Vec<(String, Tensor)> {
    let own = model.parameters();
    let name_of = |parameter: &str| {
        // The optimizer names a parameter by its index if it was not given a name.
        let known = parameter.parse::<usize>().ok().and_then(|i| optimizer.parameters().get(i));
        let found = known.and_then(|p| own.iter().find(|(_, q)| p.id() == q.id()));
        found.map_or_else(|| parameter.to_string(), |(name, _)| name.clone())
    };
    let state = optimizer.state();
    let mut uses: HashMap<StorageId, usize> = HashMap::new();
    state.iter().for_each(|(_, tensor)| *uses.entry(tensor.storage_id()).or_default() += 1);
    let kept = state.iter().map(|(name, tensor)| {
        let shared = uses[&tensor.storage_id()] > 1;
        let name = match name.strip_prefix("state.").and_then(|rest| rest.rsplit_once('.')) {
            Some((_, what)) if shared => what.to_string(),
            Some((parameter, what)) => format!("{what} of {}", name_of(parameter)),
            None => name.clone(),
        };
        (name, tensor.clone())
    });
    let gradients = own.iter().filter_map(|(name, p)| Some((format!("gradient of {name}"), p.grad()?)));
    let generators = Generator::default().states().into_iter().map(|(device, state)| match device == Device::cpu() {
        true => ("generator".to_string(), state),
        false => (format!("generator of {device}"), state),
    });
    gradients.chain(kept).chain(generators).collect()
}
