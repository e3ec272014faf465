//! [`OptimizerCore`]: an optimizer of any rule, without the type of the rule.

use super::Optimizer;
use super::clock::Clocks;
use super::free_buffer::move_free;
use super::hyperparameter::Hyperparameter;
use super::parameter_list::{NamedParameters, ParameterList};
use super::replaceable::Replaceable;
use super::rule::{Momentum, QueuedUpdates, Rule, UpdateContext, check_lr};
use crate::parameter::{Buffer, Parameter};
use crate::state::{StateDict, StateLoad};
use pellucid_tensor::OptionRange;
use pellucid_tensor::{DType, Error, Result, Shape, Tensor, eager, flush, is_capturing, no_grad, ops, unwrap};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;

/// An optimizer of any rule. It is not generic, so programs that name several optimizers compile it once.
pub(super) struct OptimizerCore {
    contents: Replaceable<OptimizerContents>,
}

// Rules are trait objects, which are not known to be unwind safe. They are only read.
impl UnwindSafe for OptimizerCore {}
impl RefUnwindSafe for OptimizerCore {}

/// The parameters of an optimizer and all its state.
struct OptimizerContents {
    /// The optimizer's name in errors.
    name: &'static str,
    parameters: Vec<Parameter>,
    /// The data of each parameter, in their order.
    members: Vec<ParameterData>,
    groups: Vec<ParameterGroup>,
    scale: Option<Tensor>,
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
    kept: Option<ParameterState>,
}

struct ParameterState {
    master: Option<Buffer>,
    state: Vec<(&'static str, Buffer)>,
}

/// Parameters with the same options.
struct ParameterGroup {
    rule: Arc<dyn Rule>,
    /// The dtype of the state.
    dtype: DType,
    lr: Hyperparameter,
    momentum: Option<Hyperparameter>,
    /// The clocks, one for each set of parameters that were added together.
    clocks: Vec<Clocks>,
}

impl OptimizerCore {
    /// Creates an optimizer without groups.
    pub(super) fn new(name: &'static str) -> OptimizerCore {
        let contents =
            OptimizerContents { name, parameters: Vec::new(), members: Vec::new(), groups: Vec::new(), scale: None };
        OptimizerCore { contents: Replaceable::new(contents) }
    }

    /// Adds parameters to the last group.
    pub(super) fn add_params(&mut self, parameters: ParameterList) -> Result<()> {
        let first = self.parameters().len();
        self.contents.get_mut().add_named(parameters.into_named(first))
    }

    /// Creates the missing state of parameters that were frozen when they were added.
    pub(super) fn ensure_initialized(&mut self) -> Result<()> {
        let OptimizerContents { parameters, members, groups, .. } = self.contents.get_mut();
        for (member, parameter) in members.iter_mut().zip(parameters) {
            if member.kept.is_none() {
                let ParameterGroup { rule, dtype, .. } = &groups[member.group];
                member.kept = Some(ParameterState::new(&**rule, parameter, *dtype)?);
            }
        }
        Ok(())
    }

    /// Sets the factor of all gradients.
    pub(super) fn set_grad_scale(&mut self, scale: Option<Tensor>) -> Result<()> {
        let op = "set_grad_scale";
        if let Some(scale) = &scale {
            if *scale.shape() != Shape::scalar() {
                return Err(Error::shapes(op, [scale.shape()], "the scale must be a 0-d tensor"));
            }
            if !scale.dtype().is_float() {
                return Err(Error::dtypes(op, [scale.dtype()], "the scale must have a float dtype; use to_dtype()"));
            }
        }
        self.contents.get_mut().scale = scale.map(|s| s.detach());
        Ok(())
    }

    /// Returns the rule of a group.
    #[track_caller]
    pub(super) fn rule(&self, group: usize) -> &dyn Rule {
        &*unwrap(self.group("options", group)).rule
    }

    /// Returns the counter of a parameter in a clock of its group.
    pub(super) fn clock_tensor(&self, parameter: usize, name: &str) -> Option<&Tensor> {
        let named = self.contents.get().members.get(parameter)?.clock.iter().find(|(own, _)| *own == name);
        named.map(|(_, buffer)| buffer.tensor())
    }

    pub(super) fn name(&self) -> &'static str {
        self.contents.original().name
    }

    /// Adds a group.
    pub(super) fn add_group(&mut self, parameters: ParameterList, rule: Arc<dyn Rule>) -> Result<()> {
        rule.check()?;
        let parameters = parameters.into_named(self.parameters().len());
        check_lr(self.name(), rule.lr())?;
        // The rates of a group without parameters are stored in f64.
        let group = ParameterGroup::new(rule, state_dtype(&parameters).unwrap_or(DType::F64))?;
        let contents = self.contents.get_mut();
        contents.groups.push(group);
        let added = contents.add_named(parameters);
        if added.is_err() {
            contents.groups.pop();
        }
        added
    }

    /// Returns the group of this index.
    fn group(&self, op: &'static str, group: usize) -> Result<&ParameterGroup> {
        let groups = &self.contents.get().groups;
        let missing = || {
            Error::invalid(op, format!("there is no group {group}; the optimizer has {}, counted from 0", groups.len()))
        };
        groups.get(group).ok_or_else(missing)
    }

    /// Updates parameters and state. See [`Optimizer::try_step_scaled`].
    fn update(&self, scale: Option<&Tensor>, skip: Option<&Tensor>) -> Result<()> {
        let _guard = no_grad();
        let contents = self.contents.get();
        let OptimizerContents { parameters, members, groups, .. } = contents;
        if parameters.is_empty() {
            let reason = "the optimizer has no parameters; create it with the model's parameters(), or record a step";
            return Err(Error::invalid(self.name(), reason));
        }
        // A frozen parameter may still have an old gradient, which is ignored.
        let gradients: Vec<Option<Tensor>> =
            parameters.iter().map(|p| p.grad().filter(|_| p.requires_grad())).collect();
        if gradients.iter().all(Option::is_none) {
            if is_capturing() {
                let reason = "no parameter of the optimizer has a gradient, so the captured step would never train; \
                              before the optimizer's step, call backward() on a loss of its parameters";
                return Err(Error::invalid(self.name(), reason));
            }
            let reason = "no parameter of the optimizer has a gradient, so the step would change nothing; call \
                          backward() on the loss after zero_grad() and before the step, create the optimizer with the \
                          parameters() of the model that computes the loss, and unfreeze() the parameters to train";
            return Err(Error::invalid(self.name(), reason));
        }
        if let Some((member, _)) = members.iter().zip(&gradients).find(|(m, g)| m.kept.is_none() && g.is_some()) {
            let name = &member.name;
            let reason = format!(
                "parameter `{name}` was frozen when the optimizer was created, so it has no state; create the optimizer \
                 before freezing, or call ensure_initialized() of the optimizer before it moves into a trainer"
            );
            return Err(Error::invalid(self.name(), reason));
        }
        contents.check_dtypes()?;
        contents.follow_parameters()?;
        let scale = contents.scale(scale)?;
        let factor_for_gradient =
            |group: &ParameterGroup| scale.as_ref().map(|s| ops::to_dtype(s, group.dtype)).transpose();
        let scales: Vec<Option<Tensor>> = groups.iter().map(factor_for_gradient).collect::<Result<_>>()?;
        for group in groups {
            let tick_inputs: Vec<&Tensor> = group.tick_inputs().collect();
            group.clocks.iter().try_for_each(|clocks| clocks.tick(&*group.rule, &tick_inputs, &gradients, skip))?;
        }
        let batch = RefCell::new(QueuedUpdates::default());
        for ((member, parameter), gradient) in members.iter().zip(parameters).zip(&gradients) {
            let (Some(gradient), Some(kept)) = (gradient, &member.kept) else { continue };
            let rule = &*groups[member.group].rule;
            let master = kept.master.as_ref().map(Buffer::tensor);
            rule.update(&UpdateContext {
                parameter: master.unwrap_or(parameter.tensor()),
                half: master.map(|_| parameter.tensor()),
                state: &kept.state,
                gradient,
                rates: &member.rates,
                scale: scales[member.group].as_ref(),
                skip,
                negates_gradient: rule.maximize(),
                batch: &batch,
            })?;
        }
        batch.borrow_mut().run()
    }
}

impl OptimizerContents {
    fn add_named(&mut self, parameters: NamedParameters) -> Result<()> {
        self.refuse_doubles(&parameters)?;
        let last = self.groups.len() - 1;
        let is_empty = self.members.iter().all(|m| m.group != last);
        let own = if is_empty { state_dtype(&parameters) } else { None };
        let dtype = own.unwrap_or(self.groups[last].dtype);
        let fits = |p: &Parameter| state_of(p.dtype()) == Some(dtype);
        if !parameters.iter().all(|(_, p)| fits(p)) {
            let mut dtypes: Vec<DType> = parameters.iter().map(|(_, p)| p.dtype()).collect();
            dtypes.sort_unstable();
            dtypes.dedup();
            let help = "the parameters of a group must be all f32, f16 or bf16, or all f64; add a group for the \
                        others with add_group()";
            return Err(Error::dtypes(self.name, dtypes, help));
        }
        let rule = &*self.groups[last].rule;
        let keep = |p: &Parameter| ParameterState::new(rule, p, dtype).map(|kept| p.requires_grad().then_some(kept));
        let kept: Vec<Option<ParameterState>> = parameters.iter().map(|(_, p)| keep(p)).collect::<Result<_>>()?;
        let clocks = Clocks::new(rule, dtype, self.members.len()..self.members.len() + parameters.len())?;
        let converted = if self.groups[last].dtype == dtype { None } else { Some(self.groups[last].converted(dtype)?) };
        let group = converted.as_ref().unwrap_or(&self.groups[last]);
        let place = |i: usize| Ok((clocks.of(i)?, group.rates(&clocks, i)?));
        let places: Vec<_> = (0..parameters.len()).map(place).collect::<Result<_>>()?;
        if let Some(converted) = converted {
            self.groups[last] = converted;
        }
        self.groups[last].clocks.push(clocks);
        for (((name, parameter), kept), (clock, rates)) in parameters.into_iter().zip(kept).zip(places) {
            let dtype = parameter.dtype();
            self.parameters.push(parameter);
            self.members.push(ParameterData { name, dtype, group: last, clock, rates, kept });
        }
        Ok(())
    }

    fn refuse_doubles(&self, new: &[(String, Parameter)]) -> Result<()> {
        let existing = self.parameters.iter().zip(&self.members).map(|(p, member)| (p.id(), member.name.as_str()));
        let mut seen: HashMap<_, &str> = existing.collect();
        for (name, parameter) in new {
            if let Some(first) = seen.insert(parameter.id(), name) {
                return Err(Error::invalid(self.name, listed_twice(first, name)));
            }
        }
        let mut names: HashSet<&str> = self.members.iter().map(|m| m.name.as_str()).collect();
        match new.iter().find(|(name, _)| !names.insert(name)) {
            Some((name, _)) => {
                Err(Error::invalid(self.name, format!("two parameters have the name `{name}`; names must be unique")))
            }
            None => Ok(()),
        }
    }

    /// Returns these groups with the given parameters, if there are none yet.
    fn filled(&self, parameters: Vec<(String, Parameter)>) -> Result<OptimizerContents> {
        if self.groups.len() > 1 {
            let reason = "the optimizer has several groups without parameters and cannot be filled; add parameters to \
                          the groups";
            return Err(Error::invalid(self.name, reason));
        }
        let groups = self.groups.iter().map(ParameterGroup::without_clocks).collect();
        let (members, scale) = (Vec::new(), self.scale.clone());
        let mut filled = OptimizerContents { name: self.name, parameters: Vec::new(), members, groups, scale };
        filled.add_named(parameters)?;
        Ok(filled)
    }

    /// Returns an error if a parameter was converted to another dtype after it was added.
    fn check_dtypes(&self) -> Result<()> {
        let mut members = self.members.iter().zip(&self.parameters);
        let Some((ParameterData { name, dtype, .. }, parameter)) = members.find(|(m, p)| m.dtype != p.dtype()) else {
            return Ok(());
        };
        let help = format!(
            "the parameter `{name}` was {dtype} when it was added and was then converted; create the optimizer after \
             converting the model with to_dtype_()"
        );
        Err(Error::dtypes(self.name, [*dtype, parameter.dtype()], help))
    }

    /// Moves the state of every parameter to the parameter's device, and the state of a group to the device of its
    /// first parameter.
    fn follow_parameters(&self) -> Result<()> {
        let OptimizerContents { parameters, members, groups, .. } = self;
        let stays = |(member, parameter): (&ParameterData, &Parameter)| {
            let group = &groups[member.group];
            let state = member.kept.iter().flat_map(|kept| kept.state.iter().map(|(_, b)| b).chain(&kept.master));
            let mut all = state.chain([group.lr.buffer()]);
            all.all(|buffer| buffer.device() == parameter.device())
        };
        if members.iter().zip(parameters).all(stays) {
            return Ok(());
        }
        // The error of a deferred kernel must be returned before the step changes anything.
        flush()?;
        // A captured step only references the state, which moves before the first launch.
        eager(|| self.move_to_parameters())
    }

    fn move_to_parameters(&self) -> Result<()> {
        let OptimizerContents { parameters, members, groups, .. } = self;
        for (member, parameter) in members.iter().zip(parameters) {
            let device = parameter.device();
            if let Some(kept) = &member.kept {
                kept.state.iter().map(|(_, b)| b).chain(&kept.master).try_for_each(|buffer| buffer.try_to_(device))?;
            }
        }
        for (index, group) in groups.iter().enumerate() {
            for clocks in &group.clocks {
                let own = clocks.members();
                let Some(device) = parameters[own.clone()].first().map(|p| p.device()) else { continue };
                clocks.to_(device)?;
                members[own].iter().for_each(|member| clocks.follow(&member.clock, &member.rates));
            }
            let first = members.iter().position(|member| member.group == index);
            if let Some(first) = first {
                let device = parameters[first].device();
                group.hyperparameters().try_for_each(|(_, number)| move_free(number.tensor(), device))?;
            }
        }
        Ok(())
    }

    /// Returns the product of the optimizer's gradient scale and the scale of the step.
    fn scale(&self, own: Option<&Tensor>) -> Result<Option<Tensor>> {
        Ok(match (&self.scale, own) {
            (Some(a), Some(b)) => Some(ops::mul(a, b)?),
            (one, None) => one.clone(),
            (None, Some(one)) => Some(one.clone()),
        })
    }
}

impl ParameterState {
    fn new(rule: &dyn Rule, parameter: &Parameter, dtype: DType) -> Result<ParameterState> {
        let _guard = no_grad();
        let own = parameter.detach();
        let is_half = parameter.dtype() != dtype;
        let like = ops::to_dtype(&own, dtype)?;
        let state = rule.state(&like)?.into_iter().map(|(name, value)| (name, Buffer::new(value))).collect();
        Ok(ParameterState { master: is_half.then(|| Buffer::new(like)), state })
    }
}

impl ParameterGroup {
    fn new(rule: Arc<dyn Rule>, dtype: DType) -> Result<ParameterGroup> {
        let held = |m: Momentum| Hyperparameter::stored_as(m.value(), dtype, m.conversion());
        let (lr, momentum) = (Hyperparameter::try_new(rule.lr(), dtype)?, rule.momentum().map(held).transpose()?);
        Ok(ParameterGroup { dtype, lr, momentum, clocks: Vec::new(), rule })
    }

    /// Returns this group without parameters.
    fn without_clocks(&self) -> ParameterGroup {
        let ParameterGroup { rule, dtype, lr, momentum, .. } = self;
        ParameterGroup {
            rule: rule.clone(),
            dtype: *dtype,
            lr: lr.clone(),
            momentum: momentum.clone(),
            clocks: Vec::new(),
        }
    }

    /// Returns this group, which has no parameters, with another dtype of the state.
    fn converted(&self, dtype: DType) -> Result<ParameterGroup> {
        let momentum = self.momentum.as_ref().map(|momentum| momentum.with_dtype(dtype)).transpose()?;
        let (lr, rule) = (self.lr.with_dtype(dtype)?, self.rule.clone());
        Ok(ParameterGroup { dtype, lr, momentum, clocks: Vec::new(), rule })
    }

    /// Copies the learning rate and the momentum of `other`, a group with the same rule.
    fn copy_hyperparameters(&self, other: &ParameterGroup) -> Result<()> {
        self.hyperparameters().zip(other.hyperparameters()).try_for_each(|((_, new), (_, old))| new.copy_from(old))
    }

    /// Returns the inputs of a tick other than the clock: η, and the momentum's tensor.
    fn tick_inputs(&self) -> impl Iterator<Item = &Tensor> {
        self.hyperparameters().map(|(_, number)| number.tensor())
    }

    /// Returns the inputs of the update of parameter `i` of these clocks other than the gradient.
    fn rates(&self, clocks: &Clocks, i: usize) -> Result<Vec<Tensor>> {
        let mut rates = clocks.rates_of(i)?;
        // The rates of the tick, or η without a tick; then the momentum's tensor.
        rates.extend(self.tick_inputs().skip(usize::from(!rates.is_empty())).cloned());
        Ok(rates)
    }

    /// Returns the learning rate and the momentum with the names of their tensors. The parameters of a group may be on
    /// several devices, so these tensors are free.
    fn hyperparameters(&self) -> impl Iterator<Item = (&'static str, &Hyperparameter)> {
        let momentum = self.rule.momentum().map(Momentum::name).zip(self.momentum.as_ref());
        [("lr", &self.lr)].into_iter().chain(momentum)
    }
}

impl Optimizer for OptimizerCore {
    fn parameters(&self) -> &[Parameter] {
        &self.contents.get().parameters
    }

    fn group_count(&self) -> usize {
        self.contents.get().groups.len()
    }

    #[track_caller]
    fn group_lr_hyperparameter(&self, group: usize) -> &Hyperparameter {
        &unwrap(self.group("group_lr", group)).lr
    }

    #[track_caller]
    fn group_momentum(&self, group: usize) -> Option<f64> {
        unwrap(self.group("momentum", group)).momentum.as_ref().map(Hyperparameter::get)
    }

    fn try_set_group_momentum(&self, group: usize, momentum: f64) -> Result<()> {
        let op = "set_group_momentum";
        OptionRange::FRACTION.check(op, "momentum", momentum, 0.9)?;
        match &self.group(op, group)?.momentum {
            Some(held) => held.try_set(momentum),
            None => Err(Error::invalid(op, format!("{} has no momentum, or was created with momentum 0", self.name()))),
        }
    }

    fn state(&self) -> Vec<(String, Tensor)> {
        let OptimizerContents { groups, members, .. } = self.contents.get();
        let mut all = Vec::new();
        for (i, group) in groups.iter().enumerate() {
            let named = group.hyperparameters();
            all.extend(named.map(|(name, number)| (format!("groups.{i}.{name}"), number.tensor().clone())));
        }
        for ParameterData { name: parameter, clock, kept, .. } in members {
            let Some(ParameterState { master, state }) = kept else { continue };
            let state = clock.iter().chain(state).map(|(name, buffer)| (*name, buffer));
            let named = master.iter().map(|buffer| ("master", buffer)).chain(state);
            all.extend(named.map(|(name, b)| (format!("state.{parameter}.{name}"), b.tensor().clone())));
        }
        all
    }

    fn fill(&self, parameters: Vec<(String, Parameter)>) -> Result<()> {
        if !self.parameters().is_empty() {
            let reason = "the optimizer already has parameters; add other parameters with add_params()";
            return Err(Error::invalid(self.name(), reason));
        }
        let own = self.contents.original();
        let is_same = |(p, (_, q)): (&Parameter, &(String, Parameter))| p.id() == q.id();
        let fits = |filled: &OptimizerContents| {
            filled.parameters.len() == parameters.len() && filled.parameters.iter().zip(&parameters).all(is_same)
        };
        match self.contents.select(fits) {
            // The optimizer was filled before for a step that could not be recorded; rates may have changed since.
            Some(filled) => {
                filled.groups.iter().zip(&own.groups).try_for_each(|(new, old)| new.copy_hyperparameters(old))
            }
            None => own.filled(parameters).map(|filled| self.contents.replace(filled)),
        }
    }

    fn unfill(&self) {
        self.contents.reset();
    }

    fn prepare_load(&self, state: &StateDict) -> Result<StateLoad<'_>> {
        if self.parameters().is_empty() && state.keys().any(|name| name.starts_with("state.")) {
            let reason = "the optimizer has no parameters yet, so no state can be loaded; record the step that \
                          adds them first, or create the optimizer with the model's parameters()";
            return Err(Error::invalid(self.name(), reason));
        }
        super::check_rates(self.group_count(), state)?;
        StateLoad::new(&self.state(), state)
    }

    fn try_step_scaled(&self, scale: Option<&Tensor>, skip: Option<&Tensor>) -> Result<()> {
        self.update(scale, skip)?;
        // Deferred kernels run once in every step, so that the next step can reuse the plan.
        flush()
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

/// Returns the dtype of these parameters' state, from the first of them.
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
