//! Storing gradients in the plan's buffers, from which an optimizer reads them without a copy.

use super::plan::{Buf, CapturePlan};
use crate::module::{Module, identity, parameters_so_far};
use crate::optim::Optimizer;
use crate::parameter::Parameter;
use pellucid_tensor::{Result, Tensor, no_grad, ops};
use std::collections::{HashMap, HashSet};

/// Returns the model's trained parameters that have a gradient buffer in the plan, in order.
///
/// Each entry holds the parameter, its buffer, which this call pins, and whether the parameter is usually exempt from
/// weight decay: true for rank 0 and 1 (biases, normalisation weights).
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

/// The result of [`try_rebind_grads`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rebound {
    /// Names of the parameters whose gradient is stored in the plan's buffer.
    pub bound: Vec<String>,
    /// Names of the model's parameters with a planned gradient that the optimizer does not update; they are not bound.
    pub not_updated: Vec<String>,
    /// Positions of the optimizer's parameters without a buffer in the plan: frozen, or not part of this model.
    pub not_planned: Vec<usize>,
}

/// Stores the gradient of every parameter that the optimizer updates in the plan's buffer.
///
/// A recorded step writes the gradient there and the optimizer reads it there. Between launches [`Tensor::grad`]
/// returns it. Parameters that cannot be bound are reported and stay unchanged. Buffers from
/// [`collect_params_from_plan`] are matched with [`Optimizer::parameters`] by tensor.
///
/// # Errors
/// Those of [`Buf::pin`](super::Buf::pin); then no parameter is bound.
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
    pub(super) fn of(
        model: &(impl Module + ?Sized),
        optimizer: &(impl Optimizer + ?Sized),
        plan: &CapturePlan,
    ) -> GradientBindings {
        let named = parameters_so_far(model).into_iter();
        let own = named.map(|(name, parameter)| (plan.grad(&name).and_then(Buf::pinned).cloned(), parameter));
        let others = optimizer.parameters().iter().map(|parameter| (None, parameter.clone()));
        let mut seen = HashSet::new();
        let once = own.chain(others).filter(|(_, p)| p.requires_grad() && seen.insert(p.id()));
        let gradient = |(pinned, parameter): (Option<Tensor>, Parameter)| {
            let entry = parameter.grad();
            GradientBinding { stays: entry.is_some(), buf: pinned.or(entry), parameter }
        };
        GradientBindings(once.map(gradient).collect())
    }

    /// Whether every gradient that the optimizer reads is kept in a buffer.
    pub(super) fn are_bound(&self, optimizer: &(impl Optimizer + ?Sized)) -> bool {
        let lasting: HashSet<_> = self.0.iter().filter(|g| g.stays).map(|g| g.parameter.id()).collect();
        optimizer.parameters().iter().all(|p| !p.requires_grad() || lasting.contains(&p.id()))
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
    ops::copy_(buf, &ops::zeros((), buf.dtype())?)
}
