//! [`Rule`]: what one optimizer is. Everything else is [`RuleOptimizer`](super::RuleOptimizer)'s.

use super::step_modifiers::{StepModifiers, with_modifiers};
use crate::parameter::Buffer;
use pellucid_tensor::{Error, Formula, Result, Scalar, Tensor, formula, ops};
use std::cell::RefCell;
use std::fmt;

/// Tensors by name: the state of one parameter.
pub type State = Vec<(&'static str, Tensor)>;

/// The momentum of a rule: a number between steps that a schedule may change.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Momentum {
    /// μ: how much of the past is kept. The 0-d tensor holds μ.
    Kept(f64),
    /// β₁ of a running mean. The 0-d tensor holds 1 − β₁, taken at full width: in f32, 1 − 0.999 would
    /// have lost three digits.
    Mean(f64),
}

impl Momentum {
    /// μ or β₁.
    pub fn value(self) -> f64 {
        match self {
            Momentum::Kept(value) | Momentum::Mean(value) => value,
        }
    }

    /// The same kind with another value.
    pub(super) fn with(self, value: f64) -> Momentum {
        match self {
            Momentum::Kept(_) => Momentum::Kept(value),
            Momentum::Mean(_) => Momentum::Mean(value),
        }
    }

    /// What the tensor holds; the way back is the same.
    pub(super) fn held(self) -> f64 {
        match self {
            Momentum::Kept(value) => value,
            Momentum::Mean(value) => 1.0 - value,
        }
    }

    /// The tensor's name in a state dict.
    pub(super) fn name(self) -> &'static str {
        match self {
            Momentum::Kept(_) => "momentum",
            Momentum::Mean(_) => "one_minus_beta1",
        }
    }
}

/// An optimizer's options, which are its rule: what it keeps for a parameter, how its clock moves in
/// a step, and how a parameter is updated. A rule of your own is an optimizer by
/// [`RuleOptimizer<YourRule>`](super::RuleOptimizer).
///
/// ```
/// use pellucid_nn::Parameter;
/// use pellucid_nn::optim::{RuleOptimizer, Optimizer, UpdateContext, Rule, State};
/// use pellucid_tensor::{formula, Result, Tensor};
///
/// /// RuleOptimizer by signs: p ← p − η·sign(g).
/// #[derive(Clone, Debug)]
/// struct Signs {
///     lr: f64,
/// }
///
/// impl Rule for Signs {
///     const NAME: &'static str = "signs";
///     fn check(&self) -> Result<()> {
///         Ok(())
///     }
///     fn lr(&self) -> f64 {
///         self.lr
///     }
///     fn state(&self, _: &Tensor) -> Result<State> {
///         Ok(vec![])
///     }
///     fn update(&self, at: &UpdateContext<'_>) -> Result<()> {
///         at.fused(formula!(|p, g, lr| p - lr * g.signum()), &[])
///     }
/// }
///
/// let p = Parameter::new(Tensor::from([1.0f64, -1.0]));
/// let optimizer = RuleOptimizer::new(vec![p.clone()], Signs { lr: 0.25 })?;
/// p.square().sum(..).backward();
/// optimizer.step();
/// assert_eq!(p.to_vec::<f64>(), [0.75, -0.75]);
/// # Ok::<(), pellucid_tensor::Error>(())
/// ```
pub trait Rule: Clone + fmt::Debug + Send + Sync + 'static {
    /// The optimizer's name, for errors.
    const NAME: &'static str;

    /// Whether the options are in range.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`].
    fn check(&self) -> Result<()>;

    /// The learning rate η to begin with.
    fn lr(&self) -> f64;

    /// The momentum to begin with, if a schedule may change it.
    fn momentum(&self) -> Option<Momentum> {
        None
    }

    /// Whether the loss is to grow: every gradient changes its sign.
    fn maximize(&self) -> bool {
        false
    }

    /// The same rule without weight decay, for parameters that are exempt from it.
    #[must_use]
    fn without_decay(&self) -> Self {
        self.clone()
    }

    /// The state to begin with of a parameter that looks like `like`, of the dtype that state has.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] if the rule has no meaning for this shape, [`Error::OutOfMemory`].
    fn state(&self, like: &Tensor) -> Result<State>;

    /// What is counted for every parameter from step to step, as 0-d tensors: names and first values.
    fn clock(&self) -> Vec<(&'static str, f64)> {
        Vec::new()
    }

    /// How a parameter's clock moves on in a step in which it has a gradient: a formula from the clock, η and the
    /// momentum's tensor (if there is one) to the clock and whatever numbers the update reads, its *rates*. Without one
    /// the rates are η alone.
    fn tick(&self) -> Option<(&'static Formula, Vec<Scalar>)> {
        None
    }

    /// Updates a parameter and its state.
    ///
    /// # Errors
    /// Those of the kernels.
    fn update(&self, at: &UpdateContext<'_>) -> Result<()>;
}

/// One parameter in one step, as a rule sees it.
pub struct UpdateContext<'a> {
    /// The parameter, or its master in full width.
    pub(super) parameter: &'a Tensor,
    /// The half-width parameter of a master.
    pub(super) half: Option<&'a Tensor>,
    pub(super) state: &'a [(&'static str, Buffer)],
    pub(super) gradient: &'a Tensor,
    /// The rates, then the momentum's tensor.
    pub(super) rates: &'a [Tensor],
    pub(super) scale: Option<&'a Tensor>,
    pub(super) skip: Option<&'a Tensor>,
    pub(super) flip: bool,
    /// Where updates wait for those of other parameters.
    pub(super) batch: &'a RefCell<Batch<'a>>,
}

/// Updates by one formula, of parameter after parameter, that run together.
#[derive(Default)]
pub(super) struct Batch<'a> {
    /// The formula, and how many of the operands of each update are its targets.
    formula: Option<(&'static Formula, usize)>,
    params: Vec<Scalar>,
    operands: Vec<&'a Tensor>,
}

impl<'a> Batch<'a> {
    /// Puts an update to those that wait, which run now if they are of another kind.
    fn push(
        &mut self,
        formula: &'static Formula,
        targets: usize,
        operands: impl Iterator<Item = &'a Tensor>,
        params: &[Scalar],
    ) -> Result<()> {
        let alike =
            self.formula.is_some_and(|(f, n)| std::ptr::eq(f, formula) && n == targets) && self.params == params;
        if !alike {
            self.run()?;
            self.formula = Some((formula, targets));
            self.params.extend(params);
        }
        self.operands.extend(operands);
        Ok(())
    }

    /// Runs all that wait.
    pub(super) fn run(&mut self) -> Result<()> {
        let Some((formula, targets)) = self.formula.take() else { return Ok(()) };
        let done = ops::update_many(formula, targets, &self.operands, &self.params);
        self.operands.clear();
        self.params.clear();
        done
    }
}

impl<'a> UpdateContext<'a> {
    /// The parameter, in the dtype of its state.
    pub fn parameter(&self) -> &Tensor {
        self.parameter
    }

    /// State number `i`.
    pub fn state(&self, i: usize) -> &Tensor {
        &self.state[i].1
    }

    /// Rate number `i`; the momentum's tensor comes last.
    pub fn rate(&self, i: usize) -> &Tensor {
        &self.rates[i]
    }

    /// The gradient in the dtype of the state, scaled and turned as the step asks.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn gradient(&self) -> Result<Tensor> {
        let sign = if self.flip { -1.0 } else { 1.0 };
        let gradient = ops::to_dtype(self.gradient, self.parameter.dtype())?;
        match self.scale {
            Some(scale) => {
                Ok(ops::map(formula!(|g, s; sign| sign * (g * s)), &[&gradient, scale], &[sign.into()])?.remove(0))
            }
            None if self.flip => ops::neg(&gradient),
            None => Ok(gradient),
        }
    }

    /// The whole update by one kernel: a formula from (p, state.., g, rates.., momentum; params) to
    /// (p, state..). It runs together with those of other parameters, at the end of the step; so it is the last thing
    /// that a rule asks for.
    ///
    /// # Errors
    /// Those of [`ops::update_many`].
    pub fn fused(&self, formula: &'static Formula, params: &[Scalar]) -> Result<()> {
        let around = StepModifiers {
            half: self.half.is_some(),
            flip: self.flip,
            scale: self.scale.is_some(),
            skip: self.skip.is_some(),
        };
        let own = 1 + self.state.len();
        let state = self.state.iter().map(|(_, buffer)| buffer.tensor());
        let targets = [self.parameter].into_iter().chain(state).chain(self.half);
        let inputs = [self.gradient].into_iter().chain(self.rates).chain(self.scale).chain(self.skip);
        let count = own + usize::from(around.half);
        self.batch.borrow_mut().push(with_modifiers(formula, own, around), count, targets.chain(inputs), params)
    }

    /// Overwrites the parameter with a formula of (p, inputs..; params).
    ///
    /// # Errors
    /// Those of [`ops::update`].
    pub fn write(&self, formula: &'static Formula, inputs: &[&Tensor], params: &[Scalar]) -> Result<()> {
        let around = StepModifiers { half: self.half.is_some(), skip: self.skip.is_some(), ..Default::default() };
        let targets: Vec<&Tensor> = [self.parameter].into_iter().chain(self.half).collect();
        let inputs: Vec<&Tensor> = inputs.iter().copied().chain(self.skip).collect();
        ops::update(with_modifiers(formula, 1, around), &targets, &inputs, params)
    }

    /// Overwrites states with a formula of (states.., inputs..; params).
    ///
    /// # Errors
    /// Those of [`ops::update`].
    pub fn keep(
        &self,
        formula: &'static Formula,
        states: &[usize],
        inputs: &[&Tensor],
        params: &[Scalar],
    ) -> Result<()> {
        let around = StepModifiers { skip: self.skip.is_some(), ..Default::default() };
        let targets: Vec<&Tensor> = states.iter().map(|&i| self.state(i)).collect();
        let inputs: Vec<&Tensor> = inputs.iter().copied().chain(self.skip).collect();
        ops::update(with_modifiers(formula, targets.len(), around), &targets, &inputs, params)
    }
}

/// Zeros like a parameter, by these names.
pub(super) fn zeros(like: &Tensor, names: &[&'static str]) -> Result<State> {
    names.iter().map(|&name| Ok((name, ops::zeros_like(like)?))).collect()
}

/// ln β. ln 0 = −∞ has no product with 0; the smallest number stands in, and β⁰ stays 1.
pub(super) fn ln(beta: f64) -> Scalar {
    beta.max(f64::MIN_POSITIVE).ln().into()
}

/// Refuses what is not a finite number from 0 up.
pub(super) fn nonnegative(op: &'static str, name: &str, value: f64) -> Result<()> {
    if value >= 0.0 && value.is_finite() {
        return Ok(());
    }
    Err(Error::invalid(op, format!("{name} must be finite and not negative, got {value}")))
}

/// Refuses what is not in [0, 1).
pub(super) fn fraction(op: &'static str, name: &str, value: f64) -> Result<()> {
    if (0.0..1.0).contains(&value) {
        return Ok(());
    }
    Err(Error::invalid(op, format!("{name} must be in [0, 1), got {value}")))
}

/// The checks of everything like Adam.
pub(super) fn check_adam(op: &'static str, lr: f64, betas: (f64, f64), eps: f64, decay: f64) -> Result<()> {
    nonnegative(op, "lr", lr)?;
    nonnegative(op, "eps", eps)?;
    nonnegative(op, "weight_decay", decay)?;
    fraction(op, "betas.0", betas.0)?;
    fraction(op, "betas.1", betas.1)
}

/// What rules of Adam's kind answer alike, from options `lr`, `betas`, `eps`, `weight_decay` and `maximize`.
macro_rules! answers_like_adam {
    () => {
        fn check(&self) -> Result<()> {
            $crate::optim::rule::check_adam(Self::NAME, self.lr, self.betas, self.eps, self.weight_decay)
        }

        fn lr(&self) -> f64 {
            self.lr
        }

        fn momentum(&self) -> Option<$crate::optim::Momentum> {
            Some($crate::optim::Momentum::Mean(self.betas.0))
        }

        fn maximize(&self) -> bool {
            self.maximize
        }

        fn without_decay(&self) -> Self {
            Self { weight_decay: 0.0, ..*self }
        }
    };
}
pub(super) use answers_like_adam;
