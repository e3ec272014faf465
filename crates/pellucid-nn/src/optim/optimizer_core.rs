//! [`OptimizerCore`]: an optimizer of any rule, whose type is erased.

use super::Optimizer;
use super::clock::Clocks;
use super::deferred::DeferredParameters;
use super::free_buffer::{free_buffer, move_free};
use super::param_group::{ParamGroup, check_lr};
use super::parameter_list::{NamedParameters, ParameterList};
use super::rule::{ClockTick, Momentum, QueuedUpdates, Rule, UpdateContext};
use crate::parameter::{Buffer, Parameter};
use crate::state::{StateDict, StateLoad};
use pellucid_tensor::ops::TensorOrScalar;
use pellucid_tensor::{
    DType, Error, HostFlag, OptionRange, Result, Shape, Tensor, eager, flush, is_capturing, lock, no_grad, ops, unwrap,
};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// An optimizer of any rule. It is not generic, so programs that name several optimizers compile it once.
pub(super) struct OptimizerCore {
    /// The name of the optimizer in errors and checkpoints.
    name: &'static str,
    /// The learning rate and the momentum of each group, in the dtype of its state. The parameters of a group may be on
    /// several devices, so these tensors are free.
    groups: Vec<ParamGroup>,
    /// The rule of each group.
    rules: Vec<Arc<dyn Rule>>,
    members: RwLock<OptimizerMembers>,
    scale: GradScale,
}

// Rules are trait objects, which are not known to be unwind safe. They are only read.
impl UnwindSafe for OptimizerCore {}
impl RefUnwindSafe for OptimizerCore {}

/// The parameters of an optimizer and their state.
#[derive(Default)]
struct OptimizerMembers {
    parameters: Arc<[Parameter]>,
    /// The data of each parameter, in the order of the parameters.
    data: Vec<ParameterData>,
    /// The clocks with the index of their group; one entry for each set of parameters that were added together.
    clocks: Vec<(usize, Clocks)>,
    /// Whether [`DeferredParameters::add`] added the parameters.
    is_deferred: bool,
}

/// The data of one parameter in an optimizer.
struct ParameterData {
    name: String,
    /// The dtype of the parameter when it was added, which determines the dtype of the state.
    dtype: DType,
    group: usize,
    /// The counters of the parameter in the clocks of its group.
    clock: Vec<(&'static str, Buffer)>,
    /// The 0-d inputs of the update: the rates of the clock (or only η), and the momentum.
    rates: Vec<Tensor>,
    /// The state; `None` until the parameter first requires a gradient.
    state: Option<ParameterState>,
}

struct ParameterState {
    master: Option<Buffer>,
    buffers: Vec<(&'static str, Buffer)>,
}

/// The factor of all gradients.
#[derive(Default)]
struct GradScale {
    factor: Mutex<Option<Tensor>>,
    /// The number of changes, on which a captured step depends.
    changes: HostFlag,
}

impl OptimizerCore {
    /// Creates an optimizer without groups.
    pub(super) fn new(name: &'static str) -> OptimizerCore {
        let (groups, rules) = (Vec::new(), Vec::new());
        OptimizerCore { name, groups, rules, members: RwLock::default(), scale: GradScale::default() }
    }

    /// Adds parameters to the last group.
    pub(super) fn add_params(&mut self, parameters: ParameterList) -> Result<()> {
        let first = self.parameters().len();
        self.add_named(parameters.into_named(first))
    }

    /// Creates the missing state of parameters that were frozen when they were added.
    pub(super) fn ensure_initialized(&mut self) -> Result<()> {
        let OptimizerMembers { parameters, data, .. } = &mut *self.members_mut();
        for (member, parameter) in data.iter_mut().zip(&**parameters) {
            if member.state.is_none() {
                member.state =
                    Some(ParameterState::new(&*self.rules[member.group], parameter, self.dtype(member.group))?);
            }
        }
        Ok(())
    }

    /// Returns the rule of a group.
    #[track_caller]
    pub(super) fn rule(&self, group: usize) -> &dyn Rule {
        let missing = || {
            let count = self.rules.len();
            Error::invalid("options", format!("there is no group {group}; the optimizer has {count}, counted from 0"))
        };
        &**unwrap(self.rules.get(group).ok_or_else(missing))
    }

    /// Returns the counter of a parameter in a clock of its group.
    pub(super) fn clock_tensor(&self, parameter: usize, name: &str) -> Option<Tensor> {
        let members = self.members();
        let named = members.data.get(parameter)?.clock.iter().find(|(counter, _)| *counter == name);
        named.map(|(_, buffer)| buffer.tensor().clone())
    }

    /// Adds a group.
    pub(super) fn add_group(&mut self, parameters: ParameterList, rule: Arc<dyn Rule>) -> Result<()> {
        rule.check()?;
        check_lr(self.name, rule.lr())?;
        let parameters = parameters.into_named(self.parameters().len());
        // The rates of a group without parameters are stored in f64.
        let dtype = state_dtype(&parameters).unwrap_or(DType::F64);
        self.groups.push(ParamGroup::try_new(rule.lr(), rule.momentum(), dtype)?);
        self.rules.push(rule);
        let added = self.add_named(parameters);
        if added.is_err() {
            self.groups.pop();
            self.rules.pop();
        }
        added
    }

    fn members(&self) -> RwLockReadGuard<'_, OptimizerMembers> {
        self.members.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn members_mut(&self) -> RwLockWriteGuard<'_, OptimizerMembers> {
        self.members.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the dtype of the state of a group.
    fn dtype(&self, group: usize) -> DType {
        self.groups[group].lr_tensor().dtype()
    }

    /// Returns the inputs of a group's tick except the clock: η, and the momentum's tensor.
    fn tick_inputs(&self, group: usize) -> impl Iterator<Item = &Tensor> {
        let group = &self.groups[group];
        [group.lr_tensor()].into_iter().chain(group.momentum_tensor())
    }

    /// Returns the inputs, except the gradient, of the update of parameter `i` of `clocks`, which are clocks of the
    /// group.
    fn rates(&self, group: usize, clocks: &Clocks, i: usize) -> Result<Vec<Tensor>> {
        let mut rates = clocks.rates_of(i)?;
        // The rates of the tick, or η without a tick; then the momentum's tensor.
        rates.extend(self.tick_inputs(group).skip(usize::from(!rates.is_empty())).cloned());
        Ok(rates)
    }

    /// Adds parameters to the last group; on error nothing is changed.
    fn add_named(&self, parameters: NamedParameters) -> Result<()> {
        let members = &mut *self.members_mut();
        if parameters.is_empty() {
            return Ok(());
        }
        members.reject_doubles(self.name, &parameters)?;
        let last = self.groups.len() - 1;
        let is_empty = members.data.iter().all(|m| m.group != last);
        let own_dtype = if is_empty { state_dtype(&parameters) } else { None };
        let dtype = own_dtype.unwrap_or(self.dtype(last));
        let fits = |p: &Parameter| state_of(p.dtype()) == Some(dtype);
        if !parameters.iter().all(|(_, p)| fits(p)) {
            let mut dtypes: Vec<DType> = parameters.iter().map(|(_, p)| p.dtype()).collect();
            dtypes.sort_unstable();
            dtypes.dedup();
            let help = "the parameters of a group must be all f32, f16 or bf16, or all f64; add a group for the \
                        others with add_group()";
            return Err(Error::dtypes(self.name, dtypes, help));
        }
        let rule = &*self.rules[last];
        // A frozen parameter is checked too.
        let trained_state =
            |p: &Parameter| ParameterState::new(rule, p, dtype).map(|state| p.requires_grad().then_some(state));
        let states: Vec<_> = parameters.iter().map(|(_, p)| trained_state(p)).collect::<Result<_>>()?;
        let clocks = Clocks::new(rule, dtype, members.data.len()..members.data.len() + parameters.len())?;
        let clock_and_rates = |i: usize| Ok((clocks.counters_of(i)?, self.rates(last, &clocks, i)?));
        let clocks_and_rates: Vec<_> = (0..parameters.len()).map(clock_and_rates).collect::<Result<_>>()?;
        self.groups[last].try_to_dtype_(self.name, dtype)?;
        members.parameters = members.parameters.iter().chain(parameters.iter().map(|(_, p)| p)).cloned().collect();
        members.clocks.push((last, clocks));
        for (((name, parameter), state), (clock, rates)) in parameters.into_iter().zip(states).zip(clocks_and_rates) {
            members.data.push(ParameterData { name, dtype: parameter.dtype(), group: last, clock, rates, state });
        }
        Ok(())
    }

    /// Updates parameters and state. See [`Optimizer::try_step_scaled`].
    fn update(&self, scale: Option<&Tensor>, skip: Option<&Tensor>) -> Result<()> {
        let _guard = no_grad();
        let members = self.members();
        let OptimizerMembers { parameters, data, clocks, .. } = &*members;
        if parameters.is_empty() {
            let reason = "the optimizer has no parameters; create it with the model's parameters(), or record a step";
            return Err(Error::invalid(self.name, reason));
        }
        // A frozen parameter may still have an old gradient, which is ignored.
        let gradients: Vec<Option<Tensor>> =
            parameters.iter().map(|p| p.grad().filter(|_| p.requires_grad())).collect();
        if gradients.iter().all(Option::is_none) {
            if is_capturing() {
                let reason = "no parameter of the optimizer has a gradient, so the captured step would never train; \
                              before the optimizer's step, call backward() on a loss of its parameters";
                return Err(Error::invalid(self.name, reason));
            }
            let reason = "no parameter of the optimizer has a gradient, so the step would change nothing; call \
                          backward() on the loss after zero_grad() and before the step, create the optimizer with the \
                          parameters() of the model that computes the loss, and unfreeze() the parameters to train";
            return Err(Error::invalid(self.name, reason));
        }
        if let Some((member, _)) = data.iter().zip(&gradients).find(|(m, g)| m.state.is_none() && g.is_some()) {
            let name = &member.name;
            let reason = format!(
                "parameter `{name}` was frozen when the optimizer was created, so it has no state; create the optimizer \
                 before freezing, or call ensure_initialized() of the optimizer before it moves into a trainer"
            );
            return Err(Error::invalid(self.name, reason));
        }
        members.check_dtypes(self.name)?;
        self.follow_parameters(&members)?;
        let scale = self.scale.times(scale)?;
        let factor_for_gradient = |group| scale.as_ref().map(|s| ops::to_dtype(s, self.dtype(group))).transpose();
        let scales: Vec<Option<Tensor>> = (0..self.groups.len()).map(factor_for_gradient).collect::<Result<_>>()?;
        let tick = || {
            clocks.iter().try_for_each(|(group, clocks)| {
                let tick_inputs: Vec<&Tensor> = self.tick_inputs(*group).collect();
                clocks.tick(&*self.rules[*group], &tick_inputs, &gradients, skip)
            })
        };
        let clock = ClockTick::new(&tick);
        let queue = RefCell::new(QueuedUpdates::default());
        for ((member, parameter), gradient) in data.iter().zip(&**parameters).zip(&gradients) {
            let (Some(gradient), Some(state)) = (gradient, &member.state) else { continue };
            let rule = &*self.rules[member.group];
            let master = state.master.as_ref().map(Buffer::tensor);
            rule.update(&UpdateContext {
                parameter: master.unwrap_or(parameter.tensor()),
                half: master.map(|_| parameter.tensor()),
                state: &state.buffers,
                gradient,
                rates: &member.rates,
                scale: scales[member.group].as_ref(),
                skip,
                negates_gradient: rule.maximize(),
                clock: &clock,
                queue: &queue,
            })?;
        }
        clock.ensure()?;
        queue.take().run()
    }

    /// Moves the state of every parameter to the parameter's device, and the state of a group to the device of its
    /// first parameter.
    fn follow_parameters(&self, members: &OptimizerMembers) -> Result<()> {
        let stays = |(member, parameter): (&ParameterData, &Parameter)| {
            let device = parameter.device();
            let mut buffers = member.state.iter().flat_map(ParameterState::all_buffers);
            self.groups[member.group].lr_tensor().device() == device && buffers.all(|buffer| buffer.device() == device)
        };
        if members.data.iter().zip(&*members.parameters).all(stays) {
            return Ok(());
        }
        // The error of a deferred kernel must be returned before the step changes anything.
        flush()?;
        // A captured step only references the state: moving the state is not part of the step.
        eager(|| self.move_to_parameters(members))
    }

    fn move_to_parameters(&self, OptimizerMembers { parameters, data, clocks, .. }: &OptimizerMembers) -> Result<()> {
        for (member, parameter) in data.iter().zip(&**parameters) {
            let device = parameter.device();
            if let Some(state) = &member.state {
                state.all_buffers().try_for_each(|buffer| buffer.try_to_(device))?;
            }
        }
        for (_, clocks) in clocks {
            let members = clocks.members();
            let Some(device) = parameters[members.clone()].first().map(|p| p.device()) else { continue };
            clocks.to_(device)?;
            data[members].iter().for_each(|member| clocks.follow(&member.clock, &member.rates));
        }
        for group in 0..self.groups.len() {
            if let Some(first) = data.iter().position(|member| member.group == group) {
                let device = parameters[first].device();
                self.tick_inputs(group).try_for_each(|number| move_free(number, device))?;
            }
        }
        Ok(())
    }
}

impl GradScale {
    /// Sets the factor.
    fn set(&self, scale: TensorOrScalar<'_>) -> Result<()> {
        let op = "set_grad_scale";
        let factor = match scale {
            TensorOrScalar::Borrowed(tensor) => Some(tensor.detach()),
            TensorOrScalar::Replaced(tensor) => Some(tensor.detach()),
            TensorOrScalar::Owned(tensor) => Some(tensor.detach()),
            TensorOrScalar::Scalar(number) => {
                let number = number.to_f64();
                OptionRange::FINITE.check(op, "scale", number, 1.0)?;
                (number != 1.0).then(|| free_buffer(Tensor::from(number)).tensor().clone())
            }
        };
        if let Some(factor) = &factor {
            if *factor.shape() != Shape::scalar() {
                return Err(Error::shapes(op, [factor.shape()], "the scale must be a 0-d tensor"));
            }
            if !factor.dtype().is_float() {
                return Err(Error::dtypes(op, [factor.dtype()], "the scale must have a float dtype; use to_dtype()"));
            }
        }
        let mut current = lock(&self.factor);
        self.changes.set(self.changes.get() + 1);
        *current = factor;
        Ok(())
    }

    /// Returns the product of the factor and the scale of a step.
    fn times(&self, of_step: Option<&Tensor>) -> Result<Option<Tensor>> {
        let factor = {
            let factor = lock(&self.factor);
            self.changes.get();
            factor.clone()
        };
        Ok(match (factor, of_step) {
            (Some(factor), Some(of_step)) => Some(ops::mul(&factor, of_step)?),
            (factor, None) => factor,
            (None, Some(of_step)) => Some(of_step.clone()),
        })
    }
}

impl OptimizerMembers {
    fn reject_doubles(&self, op: &'static str, new: &[(String, Parameter)]) -> Result<()> {
        let existing = self.parameters.iter().zip(&self.data).map(|(p, member)| (p.id(), member.name.as_str()));
        let mut seen: HashMap<_, &str> = existing.collect();
        for (name, parameter) in new {
            if let Some(first) = seen.insert(parameter.id(), name) {
                return Err(Error::invalid(op, listed_twice(first, name)));
            }
        }
        let mut names: HashSet<&str> = self.data.iter().map(|m| m.name.as_str()).collect();
        match new.iter().find(|(name, _)| !names.insert(name)) {
            Some((name, _)) => {
                Err(Error::invalid(op, format!("two parameters have the name `{name}`; names must be unique")))
            }
            None => Ok(()),
        }
    }

    /// Returns an error if a parameter was converted to another dtype after it was added.
    fn check_dtypes(&self, op: &'static str) -> Result<()> {
        let mut members = self.data.iter().zip(&*self.parameters);
        let Some((ParameterData { name, dtype, .. }, parameter)) = members.find(|(m, p)| m.dtype != p.dtype()) else {
            return Ok(());
        };
        let help = format!(
            "the parameter `{name}` was {dtype} when it was added and was then converted; create the optimizer after \
             converting the model with to_dtype_()"
        );
        Err(Error::dtypes(op, [*dtype, parameter.dtype()], help))
    }
}

impl ParameterState {
    fn new(rule: &dyn Rule, parameter: &Parameter, dtype: DType) -> Result<ParameterState> {
        let _guard = no_grad();
        let values = parameter.detach();
        let is_half = parameter.dtype() != dtype;
        let like = ops::to_dtype(&values, dtype)?;
        let buffers = rule.state(&like)?.into_iter().map(|(name, value)| (name, Buffer::new(value))).collect();
        Ok(ParameterState { master: is_half.then(|| Buffer::new(like)), buffers })
    }

    /// Returns the state of the rule and the master copy.
    fn all_buffers(&self) -> impl Iterator<Item = &Buffer> {
        self.buffers.iter().map(|(_, buffer)| buffer).chain(&self.master)
    }
}

impl Optimizer for OptimizerCore {
    fn parameters(&self) -> Arc<[Parameter]> {
        self.members().parameters.clone()
    }

    fn groups(&self) -> &[ParamGroup] {
        &self.groups
    }

    fn state(&self) -> Vec<(String, Tensor)> {
        let mut all = Vec::new();
        for (i, (group, rule)) in self.groups.iter().zip(&self.rules).enumerate() {
            let momentum = rule.momentum().map(Momentum::name).zip(group.momentum_tensor());
            let named = [("lr", group.lr_tensor())].into_iter().chain(momentum);
            all.extend(named.map(|(name, number)| (format!("groups.{i}.{name}"), number.clone())));
        }
        for ParameterData { name: parameter, clock, state, .. } in &self.members().data {
            let Some(ParameterState { master, buffers }) = state else { continue };
            let state = clock.iter().chain(buffers).map(|(name, buffer)| (*name, buffer));
            let named = master.iter().map(|buffer| ("master", buffer)).chain(state);
            all.extend(named.map(|(name, b)| (format!("state.{parameter}.{name}"), b.tensor().clone())));
        }
        all
    }

    fn name(&self) -> &'static str {
        self.name
    }

    fn deferred_parameters(&self) -> Option<&dyn DeferredParameters> {
        Some(self)
    }

    fn stateless_parameters(&self) -> Vec<Parameter> {
        let members = self.members();
        let parameters = members.data.iter().zip(&*members.parameters);
        parameters.filter(|(member, _)| member.state.is_none()).map(|(_, parameter)| parameter.clone()).collect()
    }

    fn try_set_grad_scale(&self, scale: TensorOrScalar<'_>) -> Result<()> {
        self.scale.set(scale)
    }

    fn prepare_load(&self, state: &StateDict) -> Result<StateLoad<'_>> {
        if self.parameters().is_empty() && state.keys().any(|name| name.starts_with("state.")) {
            let reason = "the optimizer has no parameters yet, so no state can be loaded; record the step that \
                          adds them first, or create the optimizer with the model's parameters()";
            return Err(Error::invalid(self.name, reason));
        }
        super::check_rates(self.groups.len(), state)?;
        StateLoad::new(&self.state(), state)
    }

    fn try_step_scaled(&self, scale: Option<&Tensor>, skip: Option<&Tensor>) -> Result<()> {
        self.update(scale, skip)?;
        // Deferred kernels run at the end of every step, so that all steps defer the same kernels and can reuse their
        // plan.
        flush()
    }
}

impl DeferredParameters for OptimizerCore {
    fn add(&self, parameters: Vec<(String, Parameter)>) -> Result<()> {
        if !self.parameters().is_empty() {
            let reason = "the optimizer already has parameters; add other parameters with add_params()";
            return Err(Error::invalid(self.name, reason));
        }
        if self.groups.len() > 1 {
            let reason = "the optimizer has several groups without parameters and cannot be filled; add parameters to \
                          the groups";
            return Err(Error::invalid(self.name, reason));
        }
        self.add_named(parameters)?;
        self.members_mut().is_deferred = true;
        Ok(())
    }

    fn remove_added(&self) {
        let members = &mut *self.members_mut();
        if members.is_deferred {
            *members = OptimizerMembers::default();
        }
    }
}

/// Returns the dtype of the state of parameters of this dtype; `None` if they cannot be trained.
fn state_of(dtype: DType) -> Option<DType> {
    match dtype {
        DType::F16 | DType::BF16 | DType::F32 => Some(DType::F32),
        DType::F64 => Some(DType::F64),
        _ => None,
    }
}

/// Returns the dtype of the state of these parameters, which the first parameter determines; `None` if there are none.
fn state_dtype(parameters: &[(String, Parameter)]) -> Option<DType> {
    parameters.first().and_then(|(_, p)| state_of(p.dtype()))
}

/// Returns the error text for a parameter with two entries, given by their names or positions.
pub(super) fn listed_twice(first: &str, second: &str) -> String {
    format!(
        "a parameter is listed twice, as `{first}` and as `{second}`, and would be updated twice; remove one of the two \
         entries"
    )
}
