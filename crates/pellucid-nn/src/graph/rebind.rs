//! Gradients in the plan's buffers: an optimizer reads them there, without a copy.

use super::plan::{Buf, CapturePlan};
use crate::module::{Module, identity, parameters_so_far};
use crate::optim::Optimizer;
use crate::parameter::Parameter;
use pellucid_tensor::{Result, Tensor, no_grad, ops};
use std::collections::{HashMap, HashSet};

/// Every trained parameter of the model for which the plan has a gradient's buffer, by name: the parameter, the buffer, which
/// is pinned by this, and whether the parameter is usually exempt from weight decay, as those with at most one axis are
/// (biases, normalisations).
///
/// # Errors
/// Those of [`Buf::pin`](super::Buf::pin).
pub fn collect_params_from_plan(
    model: &(impl Module + ?Sized),
    plan: &CapturePlan,
) -> Result<Vec<(Parameter, Tensor, bool)>> {
    let named = parameters_so_far(model).into_iter();
    let planned = named.filter_map(|(name, parameter)| Some((plan.grad(&name)?, parameter)));
    planned.map(|(buf, parameter)| Ok((parameter.clone(), buf.pin()?, parameter.rank() <= 1))).collect()
}

/// What [`try_rebind_grads`] did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rebound {
    /// Parameters whose gradient is the plan's buffer now, by name.
    pub bound: Vec<String>,
    /// Parameters of the model with a planned gradient that the optimizer does not update: they have none.
    pub not_updated: Vec<String>,
    /// Positions of the optimizer's parameters for which the plan has no buffer, because they are frozen or not this model's.
    pub not_planned: Vec<usize>,
}

/// Lets the gradient of every parameter that the optimizer updates be the plan's buffer for it: a recorded step writes it
/// there, any optimizer reads it there, and it can be read between launches as [`Tensor::grad`]. What is not bound is
/// reported, and stays as it is.
///
/// The pairs are those of the optimizer's own list, [`Optimizer::parameters`], with the buffers that
/// [`collect_params_from_plan`] finds by name.
///
/// # Errors
/// Those of [`Buf::pin`](super::Buf::pin); nothing is bound then.
pub fn try_rebind_grads(
    model: &(impl Module + ?Sized),
    optimizer: &(impl Optimizer + ?Sized),
    plan: &CapturePlan,
) -> Result<Rebound> {
    let names = parameters_so_far(model).into_iter().map(|(name, p)| (p.id(), name));
    let names: HashMap<_, String> = names.collect();
    let positions = optimizer.parameters().iter().enumerate().map(|(i, p)| (p.id(), i));
    let mut updated: HashMap<_, usize> = positions.collect();
    let mut rebound = Rebound::default();
    for (parameter, gradient, _) in collect_params_from_plan(model, plan)? {
        let name = names[&parameter.id()].clone();
        match updated.remove(&parameter.id()) {
            Some(_) => {
                parameter.set_grad(Some(gradient));
                rebound.bound.push(name);
            }
            None => rebound.not_updated.push(name),
        }
    }
    rebound.not_planned = updated.into_values().collect();
    rebound.not_planned.sort_unstable();
    Ok(rebound)
}

/// The gradients that a step touches.
pub(super) struct Gradients(Vec<Gradient>);

/// One parameter's.
struct Gradient {
    parameter: Parameter,
    /// Where it goes: the plan's buffer if that was asked for, else where the gradient lies already.
    buf: Option<Tensor>,
    /// There is a gradient between launches.
    stays: bool,
}

impl Gradients {
    pub(super) fn of(
        model: &(impl Module + ?Sized),
        optimizer: &(impl Optimizer + ?Sized),
        plan: &CapturePlan,
    ) -> Gradients {
        let named = parameters_so_far(model).into_iter();
        let own = named.map(|(name, parameter)| (plan.grad(&name).and_then(Buf::pinned).cloned(), parameter));
        let others = optimizer.parameters().iter().map(|parameter| (None, parameter.clone()));
        let mut seen = HashSet::new();
        let once = own.chain(others).filter(|(_, p)| p.requires_grad() && seen.insert(p.id()));
        let gradient = |(pinned, parameter): (Option<Tensor>, Parameter)| {
            let entry = parameter.grad();
            Gradient { stays: entry.is_some(), buf: pinned.or(entry), parameter }
        };
        Gradients(once.map(gradient).collect())
    }

    /// Whether there is a lasting buffer for every gradient that the optimizer reads.
    pub(super) fn are_bound(&self, optimizer: &(impl Optimizer + ?Sized)) -> bool {
        let lasting: HashSet<_> = self.0.iter().filter(|g| g.stays).map(|g| g.parameter.id()).collect();
        optimizer.parameters().iter().all(|p| !p.requires_grad() || lasting.contains(&p.id()))
    }

    /// Puts the buffers back that were taken from their parameters between launches, as by `zero_grad`; zeros where
    /// gradients add up.
    pub(super) fn put_back(&self, zeroed: bool) -> Result<()> {
        for Gradient { parameter, buf, stays } in &self.0 {
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

    pub(super) fn clear(&self) {
        self.0.iter().for_each(|g| g.parameter.zero_grad());
    }

    /// Brings what a backward pass has found to where it belongs, for all to read.
    pub(super) fn collect(&self) -> Result<()> {
        let _off = no_grad();
        for Gradient { parameter, buf, .. } in &self.0 {
            if let (Some(buf), Some(found)) = (buf, parameter.grad())
                && identity(buf) != identity(&found)
            {
                ops::copy_(buf, &found)?;
                parameter.set_grad(Some(buf.clone()));
            }
        }
        Ok(())
    }

    /// Leaves each as it was found: there, and zero where the step has none, or not there.
    pub(super) fn leave(&self) -> Result<()> {
        for Gradient { parameter, buf, stays } in &self.0 {
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

    /// Makes all zeros: the buffers, and gradients that were bound in their stead.
    pub(super) fn zero(&self) -> Result<()> {
        for Gradient { parameter, buf, .. } in &self.0 {
            buf.iter().try_for_each(zero)?;
            let is_other = |found: &Tensor| buf.as_ref().is_none_or(|buf| identity(buf) != identity(found));
            parameter.grad().filter(is_other).iter().try_for_each(zero)?;
        }
        Ok(())
    }
}

fn zero(buf: &Tensor) -> Result<()> {
    ops::copy_(buf, &ops::zeros((), buf.dtype())?)
}
