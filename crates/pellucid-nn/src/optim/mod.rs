//! Optimizers, learning rate schedules, gradient clipping, loss scaling and weight averaging.
//!
//! An update is one kernel over all parameters: a formula that reads the parameter, its gradient and its state, and
//! writes parameter and state in place. Learning rate, momentum, step count and derived numbers are 0-d tensors that
//! the formula reads, and all state is allocated at construction. A captured step can therefore be replayed, and uses a
//! new learning rate. [`Optimizer::lr`] returns a rate as it was set: 0.01, not its rounding to `f32`
//! ([`Hyperparameter`] has the rule).
//!
//! | module | contents |
//! | --- | --- |
//! | `rule` | [`Rule`]: options, state and formula of one optimizer |
//! | `rule_optimizer` | [`RuleOptimizer`]: an optimizer from a rule and groups of parameters |
//! | `optimizer_core` | groups, names, state dicts and half precision for all rules |
//! | `parameter_list` | [`ParameterList`]: parameters with or without names |
//! | `hyperparameter` | [`Hyperparameter`]: learning rates and momenta, set by the host and read by kernels |
//! | `clock` | per-parameter step counts and rates derived from them |
//! | `step_modifiers` | scaled gradients and skipped updates, added to a rule's formula |
//! | `sgd`, `adam`, ... | the rules, one per module |
//! | `lbfgs`, `line_search` | L-BFGS, which evaluates the loss several times |
//! | `schedule` | learning rate schedules |
//! | `clip`, `scaler`, `average` | gradient clipping, loss scaling, averaging of weights |
//!
//! Gradients accumulate over several backward passes until [`Optimizer::zero_grad`]. With
//! [`RuleOptimizer::set_grad_scale`] of 1/k, k passes give the mean over k batches.

mod adadelta;
mod adafactor;
mod adagrad;
mod adam;
mod adamax;
mod adamw;
mod asgd;
mod average;
mod clip;
mod clock;
mod free_buffer;
mod hyperparameter;
mod lamb;
mod lbfgs;
mod line_search;
mod lion;
mod muon;
mod nadam;
mod optimizer_core;
mod options;
mod parameter_list;
mod radam;
mod replaceable;
mod rmsprop;
mod rprop;
mod rule;
mod rule_optimizer;
mod scaler;
pub mod schedule;
mod sgd;
mod step_modifiers;

crate::exports::exports! {
    /// The names of all optimizers; `tests/optim` compares each with PyTorch or its paper.
    OPTIMIZERS:
    adadelta::{Adadelta} and {AdadeltaOptions};
    adafactor::{Adafactor} and {AdafactorOptions};
    adagrad::{Adagrad} and {AdagradOptions};
    adam::{Adam} and {AdamOptions};
    adamax::{Adamax} and {AdamaxOptions};
    adamw::{AdamW} and {AdamWOptions};
    asgd::{Asgd} and {AsgdOptions};
    lamb::{Lamb} and {LambOptions};
    lbfgs::{Lbfgs} and {LbfgsOptions};
    lion::{Lion} and {LionOptions};
    muon::{Muon} and {MuonLr, MuonOptions};
    nadam::{NAdam} and {NAdamOptions};
    radam::{RAdam} and {RAdamOptions};
    rmsprop::{RmsProp} and {RmsPropOptions};
    rprop::{Rprop} and {RpropOptions};
    sgd::{Sgd} and {SgdOptions};
}
pub use average::{Average, AveragedModel, update_bn};
pub use clip::{ClipGradNormOptions, clip_grad_norm, clip_grad_norm_with, clip_grad_value, grad_norm};
pub use hyperparameter::Hyperparameter;
pub use parameter_list::ParameterList;
pub use rule::{Momentum, Rule, RuleState, UpdateContext};
pub use rule_optimizer::RuleOptimizer;
pub use scaler::{GradScaler, GradScalerOptions, Unscaled};

use crate::delegate::delegate;
use crate::parameter::Parameter;
use crate::state::{self, StateDict, StateLoad, Stateful};
use pellucid_derive::panicking_form;
use pellucid_tensor::{Error, Result, Tensor, no_grad, ops, unwrap};
use std::sync::Arc;

/// The interface of all optimizers, which schedules, the scaler and training loops use.
///
/// Parameters are in one or several groups, each with its own learning rate (and momentum).
pub trait Optimizer: Send + Sync {
    /// Returns the parameters of all groups.
    fn parameters(&self) -> &[Parameter];

    /// Returns the number of groups.
    fn group_count(&self) -> usize;

    /// Returns the learning rate of a group, with the 0-d tensor of the dtype of its state that kernels read.
    /// [`Optimizer::set_group_lr`] checks the value that it sets; [`Hyperparameter::set`] does not.
    ///
    /// # Panics
    /// Panics if there is no such group.
    fn group_lr_hyperparameter(&self, group: usize) -> &Hyperparameter;

    /// Returns the momentum of a group (β₁ for Adam and its variants) as it was set; `None` if the rule has none, or
    /// was created without.
    ///
    /// # Panics
    /// Panics if there is no such group.
    fn group_momentum(&self, group: usize) -> Option<f64>;

    /// Sets the momentum of a group in place; replays of a captured step use it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a value outside [0, 1),
    /// or if [`Optimizer::group_momentum`] is `None`.
    fn try_set_group_momentum(&self, group: usize, momentum: f64) -> Result<()>;

    /// Returns all state by name: learning rates, step counts, running means. `groups.0.lr` is the learning rate of
    /// the first group. `state.head.weight.mean` is the state `mean` of the parameter `head.weight`; `state.0.mean`
    /// belongs to the first parameter if it has no name.
    fn state(&self) -> Vec<(String, Tensor)>;

    /// Adds parameters with these names to an optimizer without parameters. A [recorded](crate::graph) step calls it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the optimizer has parameters or several groups, or is of a kind that cannot be
    /// filled; the errors of the constructor. On error nothing is changed.
    fn fill(&self, parameters: Vec<(String, Parameter)>) -> Result<()> {
        let _ = parameters;
        let reason = "parameters cannot be added to this optimizer; create the optimizer with the model's parameters()";
        Err(Error::invalid("fill", reason))
    }

    /// Undoes [`Optimizer::fill`]; has no effect on an optimizer that was not filled.
    fn unfill(&self) {}

    /// Runs one step with gradients multiplied by `scale`, a 0-d tensor. If `skip`, a 0-d boolean tensor, is true,
    /// nothing changes; the device decides this.
    ///
    /// # Errors
    /// The errors of [`Optimizer::try_step`].
    fn try_step_scaled(&self, scale: Option<&Tensor>, skip: Option<&Tensor>) -> Result<()>;

    /// Updates every parameter that has a gradient, and its state, in place.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the optimizer has no parameter, if no parameter has a gradient, or if a parameter
    /// has a gradient but no state, see [`RuleOptimizer::ensure_initialized`]. On error nothing is changed.
    #[panicking_form]
    fn try_step(&self) -> Result<()> {
        self.try_step_scaled(None, None)
    }

    /// Runs one step with a closure, which computes the loss, calls `backward` on it and returns it. The gradients are
    /// cleared before each call of the closure. [`Lbfgs`] calls it several times, all others once. Returns the first
    /// loss.
    ///
    /// Panics while its closure runs, [`Lbfgs`] has no history: the closure must not save, load or step the optimizer.
    ///
    /// # Errors
    /// The errors of [`Optimizer::try_step`], and of reading the loss: [`Error::ReadInCapture`], [`Error::NotAScalar`];
    /// [`Error::InvalidArgument`] if no parameter has a gradient after the closure.
    #[panicking_form]
    fn try_step_with(&self, closure: &mut dyn FnMut() -> Tensor) -> Result<f64> {
        self.zero_grad();
        let loss = closure().try_item::<f64>()?;
        check_closure("step_with", self.parameters())?;
        self.try_step()?;
        Ok(loss)
    }

    /// Removes the gradient of every parameter.
    fn zero_grad(&self) {
        for parameter in self.parameters() {
            parameter.tensor().zero_grad();
        }
    }

    /// Removes gradients, as [`Optimizer::zero_grad`] does, if `set_to_none`; else writes zeros into existing
    /// gradients, which keep their memory.
    ///
    /// # Errors
    /// The errors of [`ops::copy_`] for a gradient that is a broadcast view or part of a recorded computation.
    #[panicking_form]
    fn try_zero_grad_with(&self, set_to_none: bool) -> Result<()> {
        if set_to_none {
            self.zero_grad();
            return Ok(());
        }
        let _guard = no_grad();
        let zero = Tensor::from(0.0f32);
        for parameter in self.parameters() {
            if let Some(gradient) = parameter.grad() {
                ops::copy_(&gradient, &zero)?;
            }
        }
        Ok(())
    }

    /// Binds the gradient of each parameter to one of these buffers, in order: the buffer becomes the gradient tensor.
    ///
    /// A step reads it without a copy, and a captured step writes its gradients there. An eager backward pass does not
    /// write to it, since other tensors may share it; it stores the sum in a new tensor.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the number of buffers is wrong,
    /// [`Error::ShapeMismatch`] if one differs from its parameter in
    /// shape or dtype; on error nothing is changed.
    #[panicking_form]
    fn try_rebind_grads(&self, gradients: &[Tensor]) -> Result<()> {
        let op = "rebind_grads";
        let parameters = self.parameters();
        if gradients.len() != parameters.len() {
            let (n, k) = (parameters.len(), gradients.len());
            let reason = format!("the list must contain one gradient tensor for each of the {n} parameters, got {k}");
            return Err(Error::invalid(op, reason));
        }
        for (p, g) in parameters.iter().zip(gradients) {
            let help = "a gradient must have the shape and dtype of its parameter";
            if g.shape() != p.shape() {
                return Err(Error::shapes(op, [g.shape(), p.shape()], help));
            }
            if g.dtype() != p.dtype() {
                return Err(Error::dtypes(op, [g.dtype(), p.dtype()], help));
            }
        }
        parameters.iter().zip(gradients).for_each(|(p, g)| p.set_grad(Some(g.clone())));
        Ok(())
    }

    /// Returns the learning rate of the first group as it was set. If the tensor was written since, the result is the
    /// shortest decimal number that rounds to its value, see [`Hyperparameter`].
    ///
    /// # Panics
    /// Panics while a step is captured, since values cannot be read then.
    #[track_caller]
    fn lr(&self) -> f64 {
        self.group_lr(0)
    }

    /// Returns the learning rate of a group; see [`Optimizer::lr`].
    ///
    /// # Panics
    /// Panics if there is no such group, or while a step is captured.
    #[doc(alias = "param_groups")]
    #[track_caller]
    fn group_lr(&self, group: usize) -> f64 {
        self.group_lr_hyperparameter(group).get()
    }

    /// Sets the learning rate of all groups in place; replays of a captured step use it. Call it between
    /// launches: inside a captured step it would be a constant of that step.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `lr` is negative or not finite.
    #[panicking_form]
    fn try_set_lr(&self, lr: f64) -> Result<()> {
        (0..self.group_count()).try_for_each(|group| self.try_set_group_lr(group, lr))
    }

    /// Sets the learning rate of one group; see [`Optimizer::set_lr`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `lr` is negative or not finite, or there is no such group.
    #[panicking_form]
    fn try_set_group_lr(&self, group: usize, lr: f64) -> Result<()> {
        if group >= self.group_count() {
            let reason = format!("there is no group {group}; the optimizer has {} groups", self.group_count());
            return Err(Error::invalid("set_lr", reason));
        }
        rule::check_lr("set_lr", lr)?;
        self.group_lr_hyperparameter(group).try_set(lr)
    }

    /// Sets the momentum of a group.
    ///
    /// # Panics
    /// Panics if [`Optimizer::try_set_group_momentum`] returns an error.
    #[track_caller]
    fn set_group_momentum(&self, group: usize, momentum: f64) {
        unwrap(self.try_set_group_momentum(group, momentum));
    }

    /// Returns a snapshot of [`Optimizer::state`], from which training resumes exactly.
    ///
    /// # Errors
    /// The errors of [`Module::try_state_dict`](crate::Module::try_state_dict).
    #[panicking_form]
    fn try_state_dict(&self) -> Result<StateDict> {
        state::snapshot(&self.state())
    }

    /// Checks a snapshot without changing the optimizer. [`StateLoad::commit`] of the result loads it.
    ///
    /// # Errors
    /// The errors of [`Optimizer::load_state_dict`].
    fn prepare_load(&self, state: &StateDict) -> Result<StateLoad<'_>> {
        check_rates(self.group_count(), state)?;
        StateLoad::new(&self.state(), state)
    }

    /// Loads a snapshot in place.
    ///
    /// # Errors
    /// [`Error::StateDict`] if the state dict is not from an optimizer of this kind over parameters of these names and
    /// shapes; [`Error::InvalidArgument`] for a learning rate that is negative or not finite. On error nothing is
    /// changed.
    fn load_state_dict(&self, state: &StateDict) -> Result<()> {
        self.prepare_load(state)?.commit()
    }
}

/// The state of [`Optimizer::state`].
impl Stateful for dyn Optimizer + '_ {
    fn state(&self) -> Result<Vec<(String, Tensor)>> {
        Ok(Optimizer::state(self))
    }

    fn prepare_load(&self, state: &StateDict) -> Result<StateLoad<'_>> {
        Optimizer::prepare_load(self, state)
    }
}

/// Returns an error if no parameter has a gradient after the closure of a step.
fn check_closure(op: &'static str, parameters: &[Parameter]) -> Result<()> {
    if parameters.iter().any(|p| p.requires_grad() && p.grad().is_some()) {
        return Ok(());
    }
    let reason = "no parameter of the optimizer has a gradient after the closure, which must call backward() on a loss \
                  of these parameters";
    Err(Error::invalid(op, reason))
}

/// Returns an error if a learning rate of the state is negative or not finite.
fn check_rates(groups: usize, state: &StateDict) -> Result<()> {
    for group in 0..groups {
        if let Some(lr) = state.get(&format!("groups.{group}.lr")).filter(|lr| lr.size() == 1) {
            rule::check_lr("load_state_dict", lr.try_item::<f64>()?)?;
        }
    }
    Ok(())
}

/// Implements `Optimizer` for pointers.
macro_rules! pointers {
    ($($(#[$doc:meta])* $pointer:ty;)*) => {$(
        $(#[$doc])*
        impl<O: Optimizer + ?Sized> Optimizer for $pointer {
            delegate! {
                [**self]
                fn parameters(self: &Self) -> &[Parameter];
                fn group_count(self: &Self) -> usize;
                fn group_lr_hyperparameter(self: &Self, group: usize) -> &Hyperparameter;
                fn group_momentum(self: &Self, group: usize) -> Option<f64>;
                fn try_set_group_momentum(self: &Self, group: usize, momentum: f64) -> Result<()>;
                fn state(self: &Self) -> Vec<(String, Tensor)>;
                fn fill(self: &Self, parameters: Vec<(String, Parameter)>) -> Result<()>;
                fn unfill(self: &Self);
                fn try_step_scaled(self: &Self, scale: Option<&Tensor>, skip: Option<&Tensor>) -> Result<()>;
                #[track_caller]
                fn try_step_with(self: &Self, closure: &mut dyn FnMut() -> Tensor) -> Result<f64>;
                fn prepare_load(self: &Self, state: &StateDict) -> Result<StateLoad<'_>>;
            }
        }
    )*};
}
pointers! {
    /// An optimizer of a type that is chosen at run time: `Box<dyn Optimizer>`.
    Box<O>;
    /// A mutably borrowed optimizer.
    &mut O;
    /// A borrowed optimizer.
    &O;
    /// A shared optimizer.
    Arc<O>;
}
