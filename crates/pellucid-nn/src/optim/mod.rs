//! Optimizers: how parameters follow their gradients.
//!
//! An update is one kernel, which runs over all parameters together: a formula that reads the parameter, its gradient and its
//! state and writes parameter and state in place. Learning rate, momentum, step count and whatever
//! follows from them are 0-d tensors that the formula reads, and all state exists from the start; so
//! a captured step can be replayed, and sees a new learning rate.
//!
//! | file | what it has |
//! | --- | --- |
//! | `rule` | [`Rule`], what one optimizer is: its options, its state, its formula |
//! | `descent` | [`RuleOptimizer`], everything else, once for all: groups, names, state dicts, half precision |
//! | `clock` | step counts and what follows from them, of every parameter its own |
//! | `circumstances` | a formula whose gradient is scaled, whose update may be skipped |
//! | `sgd`, `adam`, ... | the rules, one a file |
//! | `lbfgs`, `line_search` | the one that evaluates the loss again |
//! | `schedule` | learning rates over time |
//! | `clip`, `scaler`, `average` | what stands around a step |
//!
//! Gradients accumulate over several backward passes until [`Optimizer::zero_grad`];
//! [`Optimizer::set_grad_scale`] with 1/k makes k passes the mean over k batches.

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
mod fillable;
mod lamb;
mod lbfgs;
mod line_search;
mod lion;
mod muon;
mod nadam;
mod radam;
mod rmsprop;
mod rprop;
mod rule;
mod rule_optimizer;
mod scaler;
pub mod schedule;
mod sgd;
mod step_modifiers;

pub use adadelta::{Adadelta, AdadeltaOptions};
pub use adafactor::{Adafactor, AdafactorOptions};
pub use adagrad::{Adagrad, AdagradOptions};
pub use adam::{Adam, AdamOptions};
pub use adamax::{Adamax, AdamaxOptions};
pub use adamw::{AdamW, AdamWOptions};
pub use asgd::{Asgd, AsgdOptions};
pub use average::{Average, AveragedModel, update_bn};
pub use clip::{ClipGradNorm, clip_grad_norm, clip_grad_norm_with, clip_grad_value, grad_norm};
pub use lamb::{Lamb, LambOptions};
pub use lbfgs::{Lbfgs, LbfgsOptions};
pub use lion::{Lion, LionOptions};
pub use muon::{Muon, MuonLr, MuonOptions};
pub use nadam::{NAdam, NAdamOptions};
pub use radam::{RAdam, RAdamOptions};
pub use rmsprop::{RmsProp, RmsPropOptions};
pub use rprop::{Rprop, RpropOptions};
pub use rule::{Momentum, Rule, State, UpdateContext};
pub use rule_optimizer::RuleOptimizer;
pub use scaler::{GradScaler, GradScalerOptions, Unscaled};
pub use schedule::CosineSchedule;
pub use sgd::{Sgd, SgdOptions};

use crate::parameter::Parameter;
use crate::state::{self, StateDict};
use pellucid_tensor::{Error, Result, Tensor, no_grad, ops, unwrap};
use std::sync::Arc;

/// What every optimizer does, whichever its rule: the face that schedules, the scaler and training
/// loops see.
///
/// Its parameters are in one or several groups, each with a learning rate (and momentum) of its own.
pub trait Optimizer: Send + Sync {
    /// The parameters that it updates, of all groups.
    fn parameters(&self) -> &[Parameter];

    /// The number of groups.
    fn groups(&self) -> usize;

    /// The learning rate of a group, a 0-d tensor of the dtype of its state.
    ///
    /// # Panics
    /// If there is no such group.
    fn group_lr_tensor(&self, group: usize) -> &Tensor;

    /// The momentum of a group (of Adam and its kin β₁); `None` where its rule has none, or was made
    /// without.
    ///
    /// # Panics
    /// If there is no such group.
    fn momentum(&self, group: usize) -> Option<f64>;

    /// Sets the momentum of a group, in place: a captured step that is replayed uses it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a value outside [0, 1),
    /// or where [`Optimizer::momentum`] is `None`.
    fn try_set_momentum(&self, group: usize, momentum: f64) -> Result<()>;

    /// Everything that it remembers from step to step, by name: learning rates, step counts, running
    /// means. `groups.0.lr` is the learning rate of the first group, `state.head.weight.mean` the
    /// state `mean` of the parameter `head.weight`, or `state.0.mean` of the first one without a name.
    fn state(&self) -> Vec<(String, Tensor)>;

    /// Adds parameters to the last group.
    ///
    /// # Errors
    /// Those of making the optimizer; nothing was added then.
    fn add_params(&mut self, parameters: Vec<Parameter>) -> Result<()>;

    /// Gives an optimizer that has no parameters these, under these names. A [compiled](crate::graph) step calls it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if it has parameters or several groups, or is of a kind that cannot be filled; those of
    /// making the optimizer. Nothing has changed then.
    fn fill(&self, parameters: Vec<(String, Parameter)>) -> Result<()> {
        let _ = parameters;
        Err(Error::invalid("fill", "this optimizer cannot be filled; make it with the model's parameters()"))
    }

    /// Undoes [`Optimizer::fill`]; an optimizer that was not filled stays as it is.
    fn unfill(&self) {}

    /// Makes the state of all parameters that have none yet: those that required no gradient when
    /// they were added. Call it when they are unfrozen, and before a step is captured.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    fn ensure_initialized(&mut self) -> Result<()>;

    /// Multiplies every gradient by a 0-d tensor, within the update; `None` ends it. The tensor is
    /// read in every step, so that writing to it changes replayed steps too.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] if it is not 0-d,
    /// [`Error::DTypeMismatch`] if it is no float.
    fn set_grad_scale(&mut self, scale: Option<Tensor>) -> Result<()>;

    /// One step whose gradients are multiplied by `scale`, a 0-d tensor, and that changes nothing
    /// where `skip`, a 0-d tensor of truth values, holds: that is decided on the device.
    ///
    /// # Errors
    /// Those of [`Optimizer::try_step`].
    fn try_step_scaled(&self, scale: Option<&Tensor>, skip: Option<&Tensor>) -> Result<()>;

    /// Updates every parameter that has a gradient, and its state, in place; a parameter without one
    /// is left as it is. If none has a gradient, nothing changes; the first such step logs a warning (`tracing`).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no parameter; if a parameter has a gradient but no state, see
    /// [`Optimizer::ensure_initialized`]; if none has a gradient while a step is captured, which would then never train.
    /// Nothing has changed then.
    fn try_step(&self) -> Result<()> {
        self.try_step_scaled(None, None)
    }

    /// [`Optimizer::try_step`] as a panic.
    ///
    /// # Panics
    /// With the error of [`Optimizer::try_step`].
    #[track_caller]
    fn step(&self) {
        unwrap(self.try_step());
    }

    /// One step after a closure, which clears the gradients, computes the loss, calls `backward` on it and returns it: what
    /// an optimizer needs that evaluates the loss several times ([`Lbfgs`]). All others call it once. Returns the first loss.
    ///
    /// # Errors
    /// Those of [`Optimizer::try_step`], and of reading the loss: [`Error::ReadInCapture`],
    /// [`Error::NotAScalar`].
    fn try_step_with(&mut self, closure: &mut dyn FnMut() -> Tensor) -> Result<f64> {
        let loss = closure().try_item::<f64>()?;
        self.try_step()?;
        Ok(loss)
    }

    /// [`Optimizer::try_step_with`] as a panic.
    ///
    /// # Panics
    /// With the error of [`Optimizer::try_step_with`].
    #[track_caller]
    fn step_with(&mut self, closure: &mut dyn FnMut() -> Tensor) -> f64 {
        unwrap(self.try_step_with(closure))
    }

    /// Leaves every parameter without a gradient: the next backward pass starts from none.
    fn zero_grad(&self) {
        for parameter in self.parameters() {
            parameter.tensor().zero_grad();
        }
    }

    /// [`Optimizer::zero_grad`] if `set_to_none`; else writes zeros into the gradients that there are,
    /// so that they stay where they lie.
    ///
    /// # Panics
    /// If a gradient is a broadcast view or part of a recorded computation; none was written then.
    #[track_caller]
    fn zero_grad_with(&self, set_to_none: bool) {
        if set_to_none {
            return self.zero_grad();
        }
        let _guard = no_grad();
        let zero = Tensor::from(0.0f32);
        for parameter in self.parameters() {
            if let Some(gradient) = parameter.grad() {
                unwrap(ops::copy_(&gradient, &zero));
            }
        }
    }

    /// Lets the gradients live in these buffers, one a parameter in their order: each parameter's
    /// gradient *is* that tensor now, and a step reads it without a copy. A captured step writes its
    /// gradients there; an eager backward pass adds to what is there in a new tensor, since others
    /// can see this one.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for another number of buffers,
    /// [`Error::ShapeMismatch`] for one that has not its parameter's
    /// shape and dtype; nothing has changed then.
    fn rebind_grads(&self, gradients: &[Tensor]) -> Result<()> {
        let op = "rebind_grads";
        let parameters = self.parameters();
        if gradients.len() != parameters.len() {
            let reason = format!("takes one tensor a parameter: {}, got {}", parameters.len(), gradients.len());
            return Err(Error::invalid(op, reason));
        }
        for (p, g) in parameters.iter().zip(gradients) {
            let help = "a gradient has its parameter's shape and dtype";
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

    /// The learning rate of the first group, a 0-d tensor.
    fn lr_tensor(&self) -> &Tensor {
        self.group_lr_tensor(0)
    }

    /// The learning rate of the first group, as the state's dtype holds it.
    ///
    /// # Panics
    /// While a step is captured, when no value can be read.
    #[track_caller]
    fn lr(&self) -> f64 {
        self.lr_tensor().item::<f64>()
    }

    /// The learning rate of a group.
    ///
    /// # Panics
    /// As [`Optimizer::lr`], and if there is no such group.
    #[track_caller]
    fn group_lr(&self, group: usize) -> f64 {
        self.group_lr_tensor(group).item::<f64>()
    }

    /// Sets the learning rate of all groups, in place: a captured step that is replayed uses it. Inside
    /// a captured step it would be a constant of that step; call it between launches.
    ///
    /// # Panics
    /// If `lr` is negative or not finite.
    #[track_caller]
    fn set_lr(&self, lr: f64) {
        // A closure would hide the caller's line.
        for group in 0..self.groups() {
            self.set_group_lr(group, lr);
        }
    }

    /// Sets the learning rate of one group, as [`Optimizer::set_lr`].
    ///
    /// # Panics
    /// If `lr` is negative or not finite, or there is no such group.
    #[track_caller]
    fn set_group_lr(&self, group: usize, lr: f64) {
        let rate = self.group_lr_tensor(group);
        unwrap(rule::nonnegative("set_lr", "lr", lr).and_then(|()| ops::copy_(rate, &Tensor::from(lr))));
    }

    /// Sets the momentum of a group.
    ///
    /// # Panics
    /// With the errors of [`Optimizer::try_set_momentum`].
    #[track_caller]
    fn set_momentum(&self, group: usize, momentum: f64) {
        unwrap(self.try_set_momentum(group, momentum));
    }

    /// A snapshot of [`Optimizer::state`], with which training resumes exactly.
    ///
    /// # Panics
    /// As [`Module::state_dict`](crate::Module::state_dict).
    #[track_caller]
    fn state_dict(&self) -> StateDict {
        state::snapshot(&self.state())
    }

    /// Takes over a snapshot, in place.
    ///
    /// # Errors
    /// [`Error::StateDict`] if it is not of an optimizer of this kind
    /// over parameters of these names and shapes; [`Error::InvalidArgument`] for a learning rate that is negative or not
    /// finite. Nothing has changed then.
    fn load_state_dict(&self, state: &StateDict) -> Result<()> {
        for group in 0..self.groups() {
            if let Some(lr) = state.get(&format!("groups.{group}.lr")).filter(|lr| lr.size() == 1) {
                rule::nonnegative("load_state_dict", "lr", lr.try_item::<f64>()?)?;
            }
        }
        state::load(&self.state(), state)
    }
}

/// The methods that a pointer to an optimizer forwards, whether it is the only one or not.
macro_rules! forwarded {
    () => {
        fn parameters(&self) -> &[Parameter] {
            (**self).parameters()
        }

        fn groups(&self) -> usize {
            (**self).groups()
        }

        fn group_lr_tensor(&self, group: usize) -> &Tensor {
            (**self).group_lr_tensor(group)
        }

        fn momentum(&self, group: usize) -> Option<f64> {
            (**self).momentum(group)
        }

        fn try_set_momentum(&self, group: usize, momentum: f64) -> Result<()> {
            (**self).try_set_momentum(group, momentum)
        }

        fn state(&self) -> Vec<(String, Tensor)> {
            (**self).state()
        }

        fn fill(&self, parameters: Vec<(String, Parameter)>) -> Result<()> {
            (**self).fill(parameters)
        }

        fn unfill(&self) {
            (**self).unfill();
        }

        fn try_step_scaled(&self, scale: Option<&Tensor>, skip: Option<&Tensor>) -> Result<()> {
            (**self).try_step_scaled(scale, skip)
        }

        fn load_state_dict(&self, state: &StateDict) -> Result<()> {
            (**self).load_state_dict(state)
        }
    };
}

/// An optimizer that was chosen when the program ran: `Box<dyn Optimizer>`.
impl<O: Optimizer + ?Sized> Optimizer for Box<O> {
    forwarded!();

    fn add_params(&mut self, parameters: Vec<Parameter>) -> Result<()> {
        (**self).add_params(parameters)
    }

    fn ensure_initialized(&mut self) -> Result<()> {
        (**self).ensure_initialized()
    }

    fn set_grad_scale(&mut self, scale: Option<Tensor>) -> Result<()> {
        (**self).set_grad_scale(scale)
    }

    fn try_step_with(&mut self, closure: &mut dyn FnMut() -> Tensor) -> Result<f64> {
        (**self).try_step_with(closure)
    }
}

/// An optimizer that is shared: it steps, and methods that need it alone are refused.
macro_rules! shared {
    ($($pointer:ty, $name:literal;)*) => {$(
        #[doc = concat!($name, " optimizer steps and is filled; `add_params`, `ensure_initialized` and `set_grad_scale` need the")]
        /// optimizer itself and are refused, as is a step of [`Lbfgs`].
        impl<O: Optimizer + ?Sized> Optimizer for $pointer {
            forwarded!();

            fn add_params(&mut self, _: Vec<Parameter>) -> Result<()> {
                Err(alone_only("add_params"))
            }

            fn ensure_initialized(&mut self) -> Result<()> {
                Err(alone_only("ensure_initialized"))
            }

            fn set_grad_scale(&mut self, _: Option<Tensor>) -> Result<()> {
                Err(alone_only("set_grad_scale"))
            }
        }
    )*};
}
shared! {
    &O, "A borrowed";
    Arc<O>, "A shared";
}

fn alone_only(op: &'static str) -> Error {
    Error::invalid(op, "the optimizer is borrowed or shared; call it on the optimizer itself, before it is lent")
}
