//! Clocks: per-parameter counters of a rule, such as the step count, and rates derived from them.

use super::free_buffer::{free_buffer, move_free};
use super::rule::Rule;
use super::step_modifiers::clock_update;
use crate::parameter::Buffer;
use pellucid_tensor::{DType, Device, Result, Tensor, ops};
use std::ops::Range;

/// The clocks of parameters that were added to the optimizer in one call. For n parameters every counter is a vector
/// `[n]`, so that one kernel advances all of them.
pub(super) struct Clocks {
    /// The indices of the clocks' parameters in the optimizer.
    members: Range<usize>,
    counters: Vec<(&'static str, Buffer)>,
    /// The rates that a tick computes for the updates of the same step.
    rates: Vec<Buffer>,
}

impl Clocks {
    pub(super) fn new(rule: &dyn Rule, dtype: DType, members: Range<usize>) -> Result<Clocks> {
        // The parameters may be on several devices, so the counters and rates are free.
        let all = |value: f64| ops::full(members.len(), value, dtype).map(free_buffer);
        let counters = rule.clock().into_iter().map(|(name, value)| Ok((name, all(value)?)));
        let counters: Vec<_> = counters.collect::<Result<_>>()?;
        let rates = rule.tick().map_or(0, |(formula, _)| formula.outputs().len() - counters.len());
        let rates = (0..rates).map(|_| all(0.0)).collect::<Result<_>>()?;
        Ok(Clocks { members, counters, rates })
    }

    /// Returns the counters of parameter `i` of these clocks.
    pub(super) fn counters_of(&self, i: usize) -> Result<Vec<(&'static str, Buffer)>> {
        let counter = |all: &Buffer| ops::select(all, 0, i as isize).map(free_buffer);
        self.counters.iter().map(|(name, all)| Ok((*name, counter(all)?))).collect()
    }

    /// Returns the rates of parameter `i` of these clocks; empty for a rule without a tick.
    pub(super) fn rates_of(&self, i: usize) -> Result<Vec<Tensor>> {
        self.rates.iter().map(|all| ops::select(all, 0, i as isize)).collect()
    }

    /// Returns the indices of the clocks' parameters in the optimizer.
    pub(super) fn members(&self) -> Range<usize> {
        self.members.clone()
    }

    /// Moves the counters and rates to `device`.
    pub(super) fn to_(&self, device: Device) -> Result<()> {
        let mut all = self.counters.iter().map(|(_, all)| all).chain(&self.rates);
        all.try_for_each(|all| move_free(all, device))
    }

    /// Makes the counters and rates of one parameter views of the clocks again, after the clocks were moved.
    pub(super) fn follow(&self, counters: &[(&'static str, Buffer)], rates: &[Tensor]) {
        self.counters.iter().zip(counters).for_each(|((_, all), (_, counter))| counter.move_view_to_base_(all));
        self.rates.iter().zip(rates).for_each(|(all, rate)| rate.move_view_to_base_(all));
    }

    /// Advances the clocks of the parameters that have a gradient, unless the step is skipped.
    pub(super) fn tick(
        &self,
        rule: &dyn Rule,
        tick_inputs: &[&Tensor],
        gradients: &[Option<Tensor>],
        skip: Option<&Tensor>,
    ) -> Result<()> {
        let gradients = &gradients[self.members.clone()];
        let idle = gradients.iter().filter(|g| g.is_none()).count();
        let Some((formula, params)) = rule.tick().filter(|_| idle < gradients.len()) else { return Ok(()) };
        let mask = || {
            let idle = Tensor::new(gradients.iter().map(Option::is_none).collect::<Vec<bool>>(), gradients.len());
            skip.map_or(Ok(idle.clone()), |skip| ops::logical_or(&idle, skip))
        };
        let mask = if idle > 0 { Some(mask()?) } else { None };
        let skip = mask.as_ref().or(skip);
        let targets: Vec<&Tensor> =
            self.counters.iter().map(|(_, all)| all).chain(&self.rates).map(Buffer::tensor).collect();
        let inputs: Vec<&Tensor> = tick_inputs.iter().copied().chain(skip).collect();
        ops::update(clock_update(formula, self.counters.len(), skip.is_some()), &targets, &inputs, &params)
    }
}
