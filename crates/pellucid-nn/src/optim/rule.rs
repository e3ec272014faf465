//! [`Rule`]: options, state and formula of one optimizer. [`RuleOptimizer`](super::RuleOptimizer) implements the
//! optimizer.

use super::step_modifiers::{StepModifiers, with_modifiers};
use crate::parameter::Buffer;
use pellucid_tensor::{Error, Formula, Result, Scalar, Tensor, formula, ops};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt;

/// Tensors by name: the state of one parameter.
pub type RuleState = Vec<(&'static str, Tensor)>;

/// The momentum of a rule: a number that a schedule may change between steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Momentum {
    /// The factor μ of the previous velocity. The 0-d tensor holds μ.
    Kept(f64),
    /// The decay rate β₁ of a running mean. The 0-d tensor holds 1 − β₁, computed in f64: in f32, 1 − 0.999
    /// loses three digits.
    Mean(f64),
}

impl Momentum {
    /// Returns μ or β₁.
    pub fn value(self) -> f64 {
        match self {
            Momentum::Kept(value) | Momentum::Mean(value) => value,
        }
    }

    /// Returns the function that converts a momentum to the value of the tensor, or back.
    pub(super) fn conversion(self) -> fn(f64) -> f64 {
        match self {
            Momentum::Kept(_) => |value| value,
            Momentum::Mean(_) => |value| 1.0 - value,
        }
    }

    /// Returns the tensor's name in a state dict.
    pub(super) fn name(self) -> &'static str {
        match self {
            Momentum::Kept(_) => "momentum",
            Momentum::Mean(_) => "one_minus_beta1",
        }
    }
}

/// The rule of an optimizer, implemented by its options: the state of a parameter, the advance of its clock in
/// a step, and the update. [`RuleOptimizer<YourRule>`](super::RuleOptimizer) makes an optimizer of your own rule.
///
/// ```
/// use pellucid::nn::Parameter;
/// use pellucid::nn::optim::{RuleOptimizer, Optimizer, UpdateContext, Rule, RuleState};
/// use pellucid::{formula, Result, Tensor};
///
/// /// Sign descent: p ← p − η·sign(g).
/// #[derive(Debug)]
/// struct Signs {
///     lr: f64,
/// }
///
/// impl Rule for Signs {
///     fn name(&self) -> &'static str {
///         "signs"
///     }
///     fn check(&self) -> Result<()> {
///         Ok(())
///     }
///     fn lr(&self) -> f64 {
///         self.lr
///     }
///     fn state(&self, _: &Tensor) -> Result<RuleState> {
///         Ok(vec![])
///     }
///     fn update(&self, context: &UpdateContext<'_>) -> Result<()> {
///         context.update(formula!(|p, g, lr| p - lr * g.signum()), &[])
///     }
/// }
///
/// let p = Parameter::new(Tensor::from([1.0f64, -1.0]));
/// let optimizer = RuleOptimizer::new(vec![p.clone()], Signs { lr: 0.25 });
/// p.square().sum(..).backward();
/// optimizer.step();
/// assert_eq!(p.to_vec::<f64>(), [0.75, -0.75]);
/// # Ok::<(), pellucid::Error>(())
/// ```
pub trait Rule: Any + fmt::Debug + Send + Sync {
    /// Returns the optimizer's name in errors.
    fn name(&self) -> &'static str;

    /// Checks the options.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](pellucid_tensor::Error::InvalidArgument) for an option out of range.
    fn check(&self) -> Result<()>;

    /// Returns the initial learning rate η.
    fn lr(&self) -> f64;

    /// Returns the initial momentum, if a schedule may change it.
    fn momentum(&self) -> Option<Momentum> {
        None
    }

    /// Returns true if the optimizer maximizes the loss, by negating every gradient.
    fn maximize(&self) -> bool {
        false
    }

    /// Returns this rule without weight decay, for parameters that are exempt from it; by default `None`, with which
    /// [`RuleOptimizer::exempting`](super::RuleOptimizer::exempting) fails.
    #[must_use]
    fn without_decay(&self) -> Option<Self>
    where
        Self: Sized,
    {
        None
    }

    /// Returns the initial state of a parameter; `like` has its shape and the dtype of the state.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`](pellucid_tensor::Error::ShapeMismatch) if the rule is not defined for this shape,
    /// [`Error::OutOfMemory`](pellucid_tensor::Error::OutOfMemory).
    fn state(&self, like: &Tensor) -> Result<RuleState>;

    /// Returns the counters of a parameter's clock, which become 0-d tensors: names and initial values.
    fn clock(&self) -> Vec<(&'static str, f64)> {
        Vec::new()
    }

    /// Returns the formula that advances a parameter's clock in a step in which the parameter has a gradient. It maps
    /// the clock, η and the momentum's tensor (if there is one) to the new clock and to the numbers that the update
    /// reads, its *rates*. Without a tick, η is the only rate.
    fn tick(&self) -> Option<(&'static Formula, Vec<Scalar>)> {
        None
    }

    /// Updates a parameter and its state.
    ///
    /// # Errors
    /// The errors of the kernels.
    fn update(&self, context: &UpdateContext<'_>) -> Result<()>;
}

/// The arguments of an update: one parameter in one step.
pub struct UpdateContext<'a> {
    /// The parameter, or its `f32` master copy.
    pub(super) parameter: &'a Tensor,
    /// The half-precision parameter, if `parameter` is its master copy.
    pub(super) half: Option<&'a Tensor>,
    pub(super) state: &'a [(&'static str, Buffer)],
    pub(super) gradient: &'a Tensor,
    /// The rates, then the momentum's tensor.
    pub(super) rates: &'a [Tensor],
    pub(super) scale: Option<&'a Tensor>,
    pub(super) skip: Option<&'a Tensor>,
    pub(super) negates_gradient: bool,
    pub(super) clock: &'a ClockTick<'a>,
    /// The queue of updates that run at the end of the step.
    pub(super) queue: &'a RefCell<QueuedUpdates<'a>>,
}

impl fmt::Debug for UpdateContext<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpdateContext").field("parameter", &self.parameter).finish_non_exhaustive()
    }
}

/// Advances all clocks once per step: before the first rule reads a rate, or, if no rule reads one, before the queued
/// updates run. If a rule that only queues updates fails, the step has therefore changed nothing.
pub(super) struct ClockTick<'a> {
    is_done: Cell<bool>,
    run: &'a dyn Fn() -> Result<()>,
}

impl<'a> ClockTick<'a> {
    pub(super) fn new(run: &'a dyn Fn() -> Result<()>) -> ClockTick<'a> {
        ClockTick { is_done: Cell::new(false), run }
    }

    /// Advances the clocks, unless this step has advanced them.
    pub(super) fn ensure(&self) -> Result<()> {
        if self.is_done.replace(true) { Ok(()) } else { (self.run)() }
    }
}

/// The queued updates of a step, in order. Updates of several parameters by the same formula run together.
#[derive(Default)]
pub(super) struct QueuedUpdates<'a>(Vec<QueuedBatch<'a>>);

/// Updates by the same formula.
struct QueuedBatch<'a> {
    formula: &'static Formula,
    /// The number of targets among the operands of each update.
    targets: usize,
    params: Vec<Scalar>,
    operands: Vec<&'a Tensor>,
}

impl<'a> QueuedUpdates<'a> {
    /// Queues an update.
    fn push(
        &mut self,
        formula: &'static Formula,
        targets: usize,
        operands: impl Iterator<Item = &'a Tensor>,
        params: &[Scalar],
    ) {
        let is_alike = |last: &QueuedBatch<'_>| {
            std::ptr::eq(last.formula, formula) && last.targets == targets && last.params == params
        };
        if !self.0.last().is_some_and(is_alike) {
            self.0.push(QueuedBatch { formula, targets, params: params.to_vec(), operands: Vec::new() });
        }
        self.0.last_mut().expect("a batch must exist because it was pushed above").operands.extend(operands);
    }

    /// Runs all queued updates.
    pub(super) fn run(self) -> Result<()> {
        let run =
            |batch: QueuedBatch<'_>| ops::update_many(batch.formula, batch.targets, &batch.operands, &batch.params);
        self.0.into_iter().try_for_each(run)
    }
}

impl<'a> UpdateContext<'a> {
    /// Returns the parameter, in the dtype of its state.
    ///
    /// # Errors
    /// The errors of [`ops::update`].
    pub fn parameter(&self) -> Result<&Tensor> {
        if self.half.is_some() {
            // The parameter may have been written since its `f32` copy was updated.
            self.update_parameter(formula!(renew | p | p), &[], &[])?;
        }
        Ok(self.parameter)
    }

    /// Returns the tensors of the parameter's state, in the order of [`Rule::state`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if their number is not `N`.
    pub fn states<const N: usize>(&self) -> Result<[&Tensor; N]> {
        numbered("states", self.state.iter().map(|(_, buffer)| buffer.tensor()))
    }

    /// Returns the rates, in the order of the results of [`Rule::tick`]; the momentum's tensor comes last.
    ///
    /// ```
    /// use pellucid::nn::optim::UpdateContext;
    /// use pellucid::{Result, Tensor};
    /// fn learning_rate<'a>(context: &'a UpdateContext<'_>) -> Result<&'a Tensor> {
    ///     let [lr, _momentum] = context.rates()?;
    ///     Ok(lr)
    /// }
    /// # Ok::<(), pellucid::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if their number is not `N`.
    pub fn rates<const N: usize>(&self) -> Result<[&Tensor; N]> {
        let rates = numbered("rates", self.rates.iter())?;
        self.clock.ensure()?;
        Ok(rates)
    }

    /// Returns the gradient in the dtype of the state, scaled and negated as the step requires.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](pellucid_tensor::Error::OutOfMemory).
    pub fn gradient(&self) -> Result<Tensor> {
        let sign = if self.negates_gradient { -1.0 } else { 1.0 };
        let gradient = ops::to_dtype(self.gradient, self.parameter.dtype())?;
        match self.scale {
            Some(scale) => ops::map(formula!(|g, s; sign| sign * (g * s)), &[&gradient, scale], &[sign.into()]),
            None if self.negates_gradient => ops::neg(&gradient),
            None => Ok(gradient),
        }
    }

    /// Queues the entire update as one kernel: a formula from (p, state.., g, rates.., momentum; params) to (p,
    /// state..). It runs together with the updates of other parameters at the end of the step, so it must be the last
    /// call of a rule.
    ///
    /// # Errors
    /// The errors of [`ops::update_many`].
    pub fn update(&self, formula: &'static Formula, params: &[Scalar]) -> Result<()> {
        let modifiers = StepModifiers {
            half: self.half.map(Tensor::dtype),
            negates_gradient: self.negates_gradient,
            has_scale: self.scale.is_some(),
            can_skip: self.skip.is_some(),
        };
        let updated = 1 + self.state.len();
        let state = self.state.iter().map(|(_, buffer)| buffer.tensor());
        let targets = [self.parameter].into_iter().chain(state).chain(self.half);
        let inputs = [self.gradient].into_iter().chain(self.rates).chain(self.scale).chain(self.skip);
        let count = updated + usize::from(modifiers.half.is_some());
        let formula = with_modifiers(formula, updated, modifiers);
        self.queue.borrow_mut().push(formula, count, targets.chain(inputs), params);
        Ok(())
    }

    /// Overwrites the parameter with a formula of (p, inputs..; params).
    ///
    /// # Errors
    /// The errors of [`ops::update`].
    pub fn update_parameter(&self, formula: &'static Formula, inputs: &[&Tensor], params: &[Scalar]) -> Result<()> {
        let modifiers =
            StepModifiers { half: self.half.map(Tensor::dtype), can_skip: self.skip.is_some(), ..Default::default() };
        let targets: Vec<&Tensor> = [self.parameter].into_iter().chain(self.half).collect();
        let inputs: Vec<&Tensor> = inputs.iter().copied().chain(self.skip).collect();
        ops::update(with_modifiers(formula, 1, modifiers), &targets, &inputs, params)
    }

    /// Overwrites [`states`](UpdateContext::states) with a formula of (states.., inputs..; params).
    ///
    /// # Errors
    /// The errors of [`ops::update`].
    pub fn update_states(
        &self,
        formula: &'static Formula,
        states: &[&Tensor],
        inputs: &[&Tensor],
        params: &[Scalar],
    ) -> Result<()> {
        let modifiers = StepModifiers { can_skip: self.skip.is_some(), ..Default::default() };
        let inputs: Vec<&Tensor> = inputs.iter().copied().chain(self.skip).collect();
        ops::update(with_modifiers(formula, states.len(), modifiers), states, &inputs, params)
    }
}

/// Returns `N` tensors as an array, or an error for a different number of tensors.
fn numbered<'t, const N: usize>(
    what: &'static str,
    tensors: impl Iterator<Item = &'t Tensor>,
) -> Result<[&'t Tensor; N]> {
    tensors.collect::<Vec<_>>().try_into().map_err(|all: Vec<&Tensor>| {
        Error::invalid(what, format!("the rule has {} {what}, but its update reads {N}", all.len()))
    })
}

/// Returns states of zeros with the shape of a parameter, with these names.
pub(super) fn zeros(like: &Tensor, names: &[&'static str]) -> Result<RuleState> {
    names.iter().map(|&name| Ok((name, ops::zeros_like(like)?))).collect()
}

/// Returns ln β, for β = 0 the logarithm of the smallest positive normal number: ln 0 = −∞ would make β⁰ = exp(0·ln β)
/// NaN instead of 1.
pub(super) fn ln(beta: f64) -> Scalar {
    beta.max(f64::MIN_POSITIVE).ln().into()
}
