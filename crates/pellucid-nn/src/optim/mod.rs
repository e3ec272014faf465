//! Optimizers, learning rate schedules, gradient clipping, loss scaling and weight averaging.
//!
//! An update is usually one kernel over all parameters: a formula that reads the parameter, its gradient and its state,
//! and writes parameter and state in place. Learning rate, momentum, step count and derived numbers are 0-d tensors
//! that the formula reads, and all state is allocated before the step. A captured step can therefore be replayed, and
//! uses a new learning rate. [`Optimizer::lr`] returns a rate as it was set: 0.01, not its rounding to `f32`
//! ([`ParamGroup`] documents the rule).
//!
//! | module | contents |
//! | --- | --- |
//! | `rule` | [`Rule`]: options, state and formula of one optimizer |
//! | `rule_optimizer` | [`RuleOptimizer`]: an optimizer from a rule and groups of parameters |
//! | `deferred` | parameters that a recorded step adds to an optimizer |
//! | `optimizer_core` | groups, names, state dicts and half precision for all rules |
//! | `parameter_list` | [`ParameterList`]: parameters with or without names |
//! | `param_group` | [`ParamGroup`]: the learning rate and the momentum of a group |
//! | `hyperparameter` | numbers that the host sets and kernels read |
//! | `clock` | per-parameter step counts and rates derived from them |
//! | `step_modifiers` | scaled gradients and skipped updates, added to a rule's formula |
//! | `sgd`, `adam`, ... | the rules, one per module |
//! | `lbfgs`, `line_search` | L-BFGS, which evaluates the loss several times |
//! | `schedule` | learning rate schedules |
//! | `clip`, `scaler`, `average` | gradient clipping, loss scaling, averaging of weights |
//!
//! Gradients accumulate over several backward passes until [`Optimizer::zero_grad`]. With a factor of 1/k
//! ([`Optimizer::set_grad_scale`]), the sum of k passes becomes the mean over k batches.

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
mod deferred;
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
mod param_group;
mod parameter_list;
mod radam;
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
pub use param_group::ParamGroup;
pub use parameter_list::ParameterList;
pub use rule::{Momentum, Rule, RuleState, UpdateContext};
pub use rule_optimizer::{RuleOptimizer, is_bias_or_norm};
pub use scaler::{GradScaler, GradScalerOptions, Unscaled};

use crate::parameter::Parameter;
use crate::state::{self, StateDict, StateLoad, Stateful};
use crate::visit::short_type_name;
use deferred::DeferredParameters;
use pellucid_derive::panicking_form;
use pellucid_tensor::ops::TensorOrScalar;
use pellucid_tensor::{Error, Result, Tensor, no_grad, ops, unwrap};
use std::any::type_name;
use std::sync::Arc;

/// The interface of all optimizers, which schedules, the scaler and training loops use.
///
/// Parameters are in one or several groups, each with its own learning rate (and momentum). An optimizer of your own
/// has the four required methods. It works with schedules, captured steps, loss scaling and checkpoints. If one formula
/// updates each parameter, a [`Rule`] is enough.
///
/// ```
/// use pellucid::nn::graph::GraphTrainer;
/// use pellucid::nn::optim::{Momentum, Optimizer, ParamGroup};
/// use pellucid::nn::{Linear, Module, Parameter, loss::MseLoss};
/// use pellucid::{DType, Result, Tensor, no_grad, ops};
/// use std::sync::Arc;
///
/// /// Gradient descent with momentum: v ← μ·v + g, p ← p − η·v.
/// struct HeavyBall {
///     parameters: Arc<[Parameter]>,
///     velocities: Vec<Tensor>,
///     group: ParamGroup,
/// }
///
/// impl HeavyBall {
///     fn new(parameters: Vec<Parameter>, lr: f64, momentum: f64) -> HeavyBall {
///         let velocities = parameters.iter().map(|p| Tensor::zeros(p.shape(), DType::F32)).collect();
///         let group = ParamGroup::new(lr, Some(Momentum::Kept(momentum)), DType::F32);
///         HeavyBall { parameters: parameters.into(), velocities, group }
///     }
/// }
///
/// impl Optimizer for HeavyBall {
///     fn parameters(&self) -> Arc<[Parameter]> {
///         self.parameters.clone()
///     }
///
///     // A schedule sets the numbers of the groups.
///     fn groups(&self) -> &[ParamGroup] {
///         std::slice::from_ref(&self.group)
///     }
///
///     // A checkpoint saves and restores these tensors.
///     fn state(&self) -> Vec<(String, Tensor)> {
///         let numbers = [("lr", Some(self.group.lr_tensor())), ("momentum", self.group.momentum_tensor())];
///         let numbers = numbers.into_iter().filter_map(|(name, t)| Some((format!("groups.0.{name}"), t?.clone())));
///         let velocities = self.velocities.iter().enumerate();
///         numbers.chain(velocities.map(|(i, v)| (format!("state.{i}.velocity"), v.clone()))).collect()
///     }
///
///     // The update reads numbers as tensors and writes in place, so a captured step can contain it.
///     fn try_step_scaled(&self, scale: Option<&Tensor>, skip: Option<&Tensor>) -> Result<()> {
///         let _off = no_grad();
///         let momentum = self.group.momentum_tensor().expect("new() must create the group with a momentum");
///         for (p, v) in self.parameters.iter().zip(&self.velocities) {
///             let Some(mut gradient) = p.grad() else { continue };
///             if let Some(scale) = scale {
///                 gradient = ops::mul(&gradient, scale)?;
///             }
///             let velocity = ops::add(&ops::mul(v, momentum)?, &gradient)?;
///             let value = ops::sub(p, &ops::mul(&velocity, self.group.lr_tensor())?)?;
///             for (old, new) in [(v, velocity), (p.tensor(), value)] {
///                 match skip {
///                     Some(skip) => ops::copy_(old, &ops::where_(skip, old, &new)?)?,
///                     None => ops::copy_(old, &new)?,
///                 }
///             }
///         }
///         Ok(())
///     }
/// }
///
/// let p = Parameter::new(Tensor::from([1.0f32, -1.0]));
/// let optimizer = HeavyBall::new(vec![p.clone()], 0.25, 0.5);
/// for expected in [[0.5, -0.5], [0.0, 0.0]] {
///     optimizer.zero_grad();
///     p.square().sum(..).backward();
///     optimizer.step();
///     assert_eq!(p.to_vec::<f32>(), expected);
/// }
///
/// // A captured step.
/// let model = Linear::new(3, 1);
/// let optimizer = HeavyBall::new(model.parameters(), 0.1, 0.9);
/// let mut trainer = GraphTrainer::new(&model, MseLoss::default(), &optimizer);
/// trainer.step(&Tensor::ones([8, 3], DType::F32), &Tensor::zeros([8, 1], DType::F32))?;
/// assert!(trainer.captured().is_some());
/// # Ok::<(), pellucid::Error>(())
/// ```
pub trait Optimizer: Send + Sync {
    /// Returns the parameters of all groups.
    fn parameters(&self) -> Arc<[Parameter]>;

    /// Returns the groups: handles of their learning rates and momenta.
    ///
    /// ```
    /// use pellucid::nn::{Linear, Module, optim::{Optimizer, Sgd, SgdOptions}};
    /// let options = SgdOptions { momentum: 0.9, ..Default::default() };
    /// let optimizer = Sgd::new(Linear::new(4, 2).parameters(), options);
    /// optimizer.groups()[0].set_momentum(0.8);
    /// assert_eq!((optimizer.groups().len(), optimizer.groups()[0].momentum()), (1, Some(0.8)));
    /// # Ok::<(), pellucid::Error>(())
    /// ```
    #[doc(alias = "param_groups")]
    fn groups(&self) -> &[ParamGroup];

    /// Returns all state by name: learning rates, step counts, running means. `groups.0.lr` is the learning rate of
    /// the first group. `state.head.weight.mean` is the state `mean` of the parameter `head.weight`; `state.0.mean`
    /// belongs to the first parameter if it has no name.
    fn state(&self) -> Vec<(String, Tensor)>;

    /// Runs one step with gradients multiplied by `scale`, a 0-d tensor. If `skip`, a 0-d boolean tensor, is true,
    /// nothing changes; the device decides this.
    ///
    /// # Errors
    /// The errors of [`Optimizer::try_step`].
    fn try_step_scaled(&self, scale: Option<&Tensor>, skip: Option<&Tensor>) -> Result<()>;

    /// Returns the name of the optimizer in the checkpoint of a training run, by default the name of its type.
    fn name(&self) -> &'static str {
        short_type_name(type_name::<Self>())
    }

    #[doc(hidden)]
    fn deferred_parameters(&self) -> Option<&dyn DeferredParameters> {
        None
    }

    /// Returns the parameters that the optimizer cannot update, because they were frozen when they were added.
    #[doc(hidden)]
    fn stateless_parameters(&self) -> Vec<Parameter> {
        Vec::new()
    }

    /// Multiplies every gradient within the update by a number or a 0-d tensor; 1 is the initial factor. A tensor is
    /// read in every step, so replayed steps use its new values. A captured step is recorded again after a call.
    ///
    /// ```
    /// use pellucid::Tensor;
    /// use pellucid::nn::{Parameter, optim::{Optimizer, Sgd, SgdOptions}};
    /// let p = Parameter::new(Tensor::from([1.0f32]));
    /// let optimizer = Sgd::new(vec![p.clone()], SgdOptions { lr: 1.0, ..Default::default() });
    /// // The mean of two passes.
    /// optimizer.set_grad_scale(0.5.into());
    /// (&p * 0.25).sum(..).backward();
    /// (&p * 0.75).sum(..).backward();
    /// optimizer.step();
    /// assert_eq!(p.item::<f32>(), 0.5);
    /// # Ok::<(), pellucid::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] if a tensor is not 0-d, [`Error::DTypeMismatch`] if its dtype is not a float;
    /// [`Error::InvalidArgument`] for a number that is not finite, and for an optimizer without such a factor.
    #[panicking_form]
    fn try_set_grad_scale(&self, scale: TensorOrScalar<'_>) -> Result<()> {
        let _ = scale;
        Err(Error::invalid("set_grad_scale", "this optimizer does not scale its gradients; scale the loss instead"))
    }

    /// Updates every parameter that has a gradient, and its state, in place.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the optimizer has no parameter, if no parameter has a gradient, or if a parameter
    /// has a gradient but no state, see [`RuleOptimizer::ensure_initialized`]. On error nothing is changed, except that
    /// [`Muon`], [`Adafactor`] and [`Lamb`], whose updates need memory, may have updated some parameters when it runs
    /// out.
    #[panicking_form]
    fn try_step(&self) -> Result<()> {
        self.try_step_scaled(None, None)
    }

    /// Runs one step with a closure, which computes the loss, calls `backward` on it and returns it. The gradients are
    /// cleared before each call of the closure. [`Lbfgs`] calls it several times, all others once. Returns the first
    /// loss.
    ///
    /// While its closure runs, [`Lbfgs`] has no history: the closure must not save, load or step the optimizer.
    ///
    /// # Errors
    /// The errors of [`Optimizer::try_step`], and of reading the loss: [`Error::ReadInCapture`], [`Error::NotAScalar`];
    /// [`Error::InvalidArgument`] if no parameter has a gradient after the closure.
    #[panicking_form]
    fn try_step_with(&self, closure: &mut dyn FnMut() -> Tensor) -> Result<f64> {
        self.zero_grad();
        let loss = closure().try_item::<f64>()?;
        check_closure("step_with", &self.parameters())?;
        self.try_step()?;
        Ok(loss)
    }

    /// Removes the gradient of every parameter.
    fn zero_grad(&self) {
        for parameter in &*self.parameters() {
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
        for parameter in &*self.parameters() {
            if let Some(gradient) = parameter.grad() {
                ops::copy_(&gradient, &zero)?;
            }
        }
        Ok(())
    }

    /// Returns the learning rate of the first group as it was set, see [`ParamGroup::lr`].
    ///
    /// # Panics
    /// Panics while a step is captured, since values cannot be read then, and if there is no group.
    #[track_caller]
    fn lr(&self) -> f64 {
        self.groups()[0].lr()
    }

    /// Sets the learning rate of all groups in place, see [`ParamGroup::set_lr`].
    ///
    /// # Errors
    /// The errors of [`ParamGroup::try_set_lr`]; if a group rejects the rate, no group is changed.
    #[panicking_form]
    fn try_set_lr(&self, lr: f64) -> Result<()> {
        self.groups().iter().try_for_each(|group| group.check_lr("set_lr", lr))?;
        self.groups().iter().try_for_each(|group| group.try_set_lr(lr))
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
        check_rates(self.groups().len(), state)?;
        StateLoad::new(&self.state(), state)
    }

    /// Loads a snapshot in place.
    ///
    /// # Errors
    /// [`Error::StateDict`] if the state dict is not from an optimizer of this kind over parameters of these names and
    /// shapes; [`Error::InvalidArgument`] for a learning rate that is negative or not finite, and for a momentum
    /// outside [0, 1). On error nothing is changed.
    fn load_state_dict(&self, state: &StateDict) -> Result<()> {
        self.prepare_load(state)?.commit()
    }
}

/// The state consists of the tensors of [`Optimizer::state`].
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

/// Returns an error if a learning rate or a momentum of the state is out of its range.
fn check_rates(groups: usize, state: &StateDict) -> Result<()> {
    let op = "load_state_dict";
    for group in 0..groups {
        let number = |name: &str| {
            let number = state.get(&format!("groups.{group}.{name}")).filter(|number| number.size() == 1);
            number.map(|number| number.try_item::<f64>()).transpose()
        };
        if let Some(lr) = number("lr")? {
            param_group::check_lr(op, lr)?;
        }
        for momentum in [Momentum::Kept(0.0), Momentum::Mean(0.0)] {
            if let Some(stored) = number(momentum.name())? {
                param_group::check_momentum(op, momentum.conversion()(stored))?;
            }
        }
    }
    Ok(())
}

/// Implements every method of [`Optimizer`] by a call of the same method of `$target`, so that no override is lost.
macro_rules! delegate_optimizer {
    ($self:ident => $target:expr) => {
        crate::delegate::delegate! {
            [$target]
            fn parameters($self: &Self) -> std::sync::Arc<[Parameter]>;
            fn groups($self: &Self) -> &[ParamGroup];
            fn state($self: &Self) -> Vec<(String, Tensor)>;
            fn try_step_scaled($self: &Self, scale: Option<&Tensor>, skip: Option<&Tensor>) -> Result<()>;
            fn name($self: &Self) -> &'static str;
            fn deferred_parameters($self: &Self) -> Option<&dyn crate::optim::deferred::DeferredParameters>;
            fn stateless_parameters($self: &Self) -> Vec<Parameter>;
            fn try_set_grad_scale($self: &Self, scale: TensorOrScalar<'_>) -> Result<()>;
            #[track_caller]
            fn set_grad_scale($self: &Self, scale: TensorOrScalar<'_>);
            fn try_step($self: &Self) -> Result<()>;
            #[track_caller]
            fn step($self: &Self);
            #[track_caller]
            fn try_step_with($self: &Self, closure: &mut dyn FnMut() -> Tensor) -> Result<f64>;
            #[track_caller]
            fn step_with($self: &Self, closure: &mut dyn FnMut() -> Tensor) -> f64;
            fn zero_grad($self: &Self);
            fn try_zero_grad_with($self: &Self, set_to_none: bool) -> Result<()>;
            #[track_caller]
            fn zero_grad_with($self: &Self, set_to_none: bool);
            #[track_caller]
            fn lr($self: &Self) -> f64;
            fn try_set_lr($self: &Self, lr: f64) -> Result<()>;
            #[track_caller]
            fn set_lr($self: &Self, lr: f64);
            fn try_state_dict($self: &Self) -> Result<StateDict>;
            #[track_caller]
            fn state_dict($self: &Self) -> StateDict;
            fn prepare_load($self: &Self, state: &StateDict) -> Result<StateLoad<'_>>;
            fn load_state_dict($self: &Self, state: &StateDict) -> Result<()>;
        }
    };
}
use delegate_optimizer;

/// Implements `Optimizer` for pointers.
macro_rules! pointers {
    ($($(#[$doc:meta])* $pointer:ty;)*) => {$(
        $(#[$doc])*
        #[deny(clippy::missing_trait_methods)]
        impl<O: Optimizer + ?Sized> Optimizer for $pointer {
            delegate_optimizer! { self => **self }
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
