//! Storing gradients in the plan's buffers, from which an optimizer reads them without a copy.

use super::plan::{PlannedBuffer, StepPlan};
use crate::module::{Module, ModuleParts, identity, parts};
use crate::optim::Optimizer;
use crate::parameter::Parameter;
use pellucid_tensor::{Result, Tensor, TensorId, no_grad, ops};
use std::collections::{HashMap, HashSet};

/// The parameters whose gradients [`StepPlan::bind_gradients`] bound to the buffers of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BoundGradients {
    /// Names of the parameters whose gradient is stored in the plan's buffer.
    pub bound: Vec<String>,
    /// Names of the model's parameters with a planned gradient that the optimizer does not update; they are not bound.
    pub not_updated: Vec<String>,
    /// Indices of the optimizer's parameters without a buffer in the plan: frozen, or not part of this model.
    pub not_planned: Vec<usize>,
}

impl BoundGradients {
    /// Returns which gradients of the updated parameters are stored in the buffers of a plan now.
    pub(super) fn current(model: &dyn ModuleParts, updated: &[Parameter], plan: &StepPlan) -> BoundGradients {
        let mut updated: HashMap<_, usize> = updated.iter().enumerate().map(|(i, p)| (p.id(), i)).collect();
        let mut current = BoundGradients::default();
        for (name, parameter) in model.parameters() {
            let Some(buf) = plan.gradient(&name) else { continue };
            if updated.remove(&parameter.id()).is_none() {
                current.not_updated.push(name);
            } else if let (Some(buf), Some(gradient)) = (buf.pinned(), parameter.grad())
                && identity(buf) == identity(&gradient)
            {
                current.bound.push(name);
            }
        }
        current.not_planned = sorted(updated);
        current
    }
}

fn sorted(indices: HashMap<TensorId, usize>) -> Vec<usize> {
    let mut indices: Vec<usize> = indices.into_values().collect();
    indices.sort_unstable();
    indices
}

impl StepPlan {
    /// Stores the gradient of every parameter that the optimizer updates in the plan's buffer.
    ///
    /// A recorded step writes the gradient into this buffer, and the optimizer reads it from there. Between launches
    /// [`Tensor::grad`] returns it. Parameters that cannot be bound are reported and stay unchanged.
    ///
    /// # Errors
    /// The errors of [`PlannedBuffer::pin`]; then no parameter is bound.
    pub fn bind_gradients(
        &self,
        model: &(impl Module + ?Sized),
        optimizer: &(impl Optimizer + ?Sized),
    ) -> Result<BoundGradients> {
        self.bind(parts(&model), optimizer.parameters())
    }

    /// Implements [`bind_gradients`](StepPlan::bind_gradients) for an optimizer of these parameters.
    pub(super) fn bind(&self, model: &dyn ModuleParts, updated: &[Parameter]) -> Result<BoundGradients> {
        let mut updated: HashMap<_, usize> = updated.iter().enumerate().map(|(i, p)| (p.id(), i)).collect();
        let mut bound = BoundGradients::default();
        for (name, parameter, gradient) in self.pinned_gradients(model)? {
            match updated.remove(&parameter.id()) {
                Some(_) => {
                    parameter.set_grad(Some(gradient));
                    bound.bound.push(name);
                }
                None => bound.not_updated.push(name),
            }
        }
        bound.not_planned = sorted(updated);
        Ok(bound)
    }

    /// Returns the model's trained parameters that have a gradient buffer in the plan, in order, each with its name and
    /// the buffer, which this call pins.
    pub(super) fn pinned_gradients(&self, model: &dyn ModuleParts) -> Result<Vec<(String, Parameter, Tensor)>> {
        let named = model.parameters().into_iter();
        let planned = named.filter_map(|(name, parameter)| Some((self.gradient(&name)?, name, parameter)));
        planned.map(|(buf, name, parameter)| Ok((name, parameter, buf.pin()?))).collect()
    }
}

/// The gradient buffers of all parameters that a step trains.
pub(super) struct GradientBindings(Vec<GradientBinding>);

/// The gradient buffer of one parameter.
struct GradientBinding {
    parameter: Parameter,
    /// The plan's buffer if it is pinned, else the gradient that existed at recording.
    buf: Option<Tensor>,
    /// Whether the gradient is kept between launches.
    stays: bool,
}

impl GradientBindings {
    /// Returns the gradient buffers of a model and of the parameters that are updated.
    pub(super) fn of(model: &dyn ModuleParts, updated: &[Parameter], plan: &StepPlan) -> GradientBindings {
        let pinned = |name: &str| plan.gradient(name).and_then(PlannedBuffer::pinned).cloned();
        let own = model.parameters().into_iter().map(|(name, parameter)| (pinned(&name), parameter));
        let others = updated.iter().map(|parameter| (None, parameter.clone()));
        let mut seen = HashSet::new();
        let once = own.chain(others).filter(|(_, p)| p.requires_grad() && seen.insert(p.id()));
        let gradient = |(pinned, parameter): (Option<Tensor>, Parameter)| {
            let entry = parameter.grad();
            GradientBinding { stays: entry.is_some(), buf: pinned.or(entry), parameter }
        };
        GradientBindings(once.map(gradient).collect())
    }

    /// Whether the gradient of every updated parameter is kept in a buffer.
    pub(super) fn are_bound(&self, updated: &[Parameter]) -> bool {
        let lasting: HashSet<_> = self.0.iter().filter(|g| g.stays).map(|g| g.parameter.id()).collect();
        updated.iter().all(|p| !p.requires_grad() || lasting.contains(&p.id()))
    }

    /// Restores buffers whose gradient was removed between launches, for example by `zero_grad`. With `zeroed`, the
    /// restored buffers are set to zero, for accumulation.
    pub(super) fn put_back(&self, zeroed: bool) -> Result<()> {
        for GradientBinding { parameter, buf, stays } in &self.0 {
            if let Some(buf) = buf
                && *stays
                && parameter.grad().is_none()
            {
                if zeroed {
                    zero(buf)?;
                }
                parameter.set_grad(Some(buf.clone()));
            }
        }
        Ok(())
    }

    /// Returns the parameters.
    pub(super) fn parameters(&self) -> impl Iterator<Item = &Parameter> {
        self.0.iter().map(|g| &g.parameter)
    }

    pub(super) fn clear(&self) {
        self.0.iter().for_each(|g| g.parameter.zero_grad());
    }

    /// Copies the gradients of a backward pass into their buffers.
    pub(super) fn collect(&self) -> Result<()> {
        let _off = no_grad();
        for GradientBinding { parameter, buf, .. } in &self.0 {
            if let (Some(buf), Some(found)) = (buf, parameter.grad())
                && identity(buf) != identity(&found)
            {
                ops::copy_(buf, &found)?;
                parameter.set_grad(Some(buf.clone()));
            }
        }
        Ok(())
    }

    /// Restores the state before the step: a kept buffer holds the gradient, or zeros if there is none; others are
    /// removed.
    pub(super) fn restore(&self) -> Result<()> {
        for GradientBinding { parameter, buf, stays } in &self.0 {
            match buf {
                Some(buf) if *stays => {
                    if parameter.grad().is_none() {
                        zero(buf)?;
                        parameter.set_grad(Some(buf.clone()));
                    }
                }
                _ => parameter.zero_grad(),
            }
        }
        Ok(())
    }

    /// Zeroes all buffers, and gradients that were bound to other tensors.
    pub(super) fn zero(&self) -> Result<()> {
        for GradientBinding { parameter, buf, .. } in &self.0 {
            buf.iter().try_for_each(zero)?;
            let is_other = |found: &Tensor| buf.as_ref().is_none_or(|buf| identity(buf) != identity(found));
            parameter.grad().filter(is_other).iter().try_for_each(zero)?;
        }
        Ok(())
    }
}

fn zero(buf: &Tensor) -> Result<()> {
    ops::copy_(buf, &ops::zeros_like(buf)?)
}
