//! [`RuleOptimizer`]: an optimizer from any [`Rule`].

use super::optimizer_core::OptimizerCore;
use super::param_group::ParamGroup;
use super::parameter_list::ParameterList;
use super::rule::Rule;
use super::{Optimizer, delegate_optimizer};
use crate::parameter::Parameter;
use crate::state::{StateDict, StateLoad};
use pellucid_derive::panicking_form;
use pellucid_tensor::ops::TensorOrScalar;
use pellucid_tensor::{Error, Result, Tensor, unwrap};
use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

/// An optimizer: parameters in groups, and a rule for each group.
///
/// The parameters of a group are all `f32`, `f16` or `bf16`, or all `f64`. State is `f64` for `f64` and `f32`
/// otherwise. A parameter in half precision has a master copy in `f32`, which the rule updates; the same kernel writes
/// its rounding to the parameter (Micikevicius et al. 2018). An element that was written since the last step, for
/// example by [`load_state_dict`](crate::Module::load_state_dict), replaces its copy in the next step.
///
/// Every parameter has its own clock, which advances in steps in which the parameter has a gradient: a parameter that
/// is added later, or was frozen, starts at its own step 1. The clocks of parameters that were added together are one
/// vector and advance in one kernel; their updates are launched together as well.
///
/// The first [recorded](crate::graph) step adds the parameters of the model to an optimizer without parameters:
///
/// ```
/// use pellucid::nn::graph::GraphTrainer;
/// use pellucid::nn::{Linear, Relu, loss::MseLoss, optim::{AdamW, AdamWOptions, Optimizer, ParameterList}, sequential};
/// use pellucid::{DType, Tensor};
/// let model = sequential![Linear::lazy(8), Relu, Linear::lazy(1)];
/// let optimizer = AdamW::new(ParameterList::default(), AdamWOptions::default());
/// let mut trainer = GraphTrainer::new(model, MseLoss::default(), optimizer);
/// trainer.prepare(&Tensor::zeros([16, 3], DType::F32))?;
/// assert_eq!(trainer.optimizer().parameters().len(), 4);
/// # Ok::<(), pellucid::Error>(())
/// ```
pub struct RuleOptimizer<R: Rule> {
    core: OptimizerCore,
    rule: PhantomData<fn() -> R>,
}

impl<R: Rule> RuleOptimizer<R> {
    /// Creates an optimizer of these parameters, with or without names. The list may be empty.
    ///
    /// ```
    /// use pellucid::nn::{Linear, Module, optim::{AdamW, AdamWOptions, Optimizer}};
    /// let model = Linear::new(4, 2);
    /// let optimizer = AdamW::new(model.parameters(), AdamWOptions::default());
    /// assert!(optimizer.state_dict().contains_key("state.0.mean"));
    /// let optimizer = AdamW::new(model.named_parameters(), AdamWOptions::default());
    /// assert!(optimizer.state_dict().contains_key("state.weight.mean"));
    /// # Ok::<(), pellucid::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for options out of range, a duplicate name or a parameter listed twice,
    /// [`Error::DTypeMismatch`] for `f64` mixed with other dtypes, [`Error::ShapeMismatch`] for a parameter
    /// for which the rule is not defined.
    #[panicking_form]
    pub fn try_new(parameters: impl Into<ParameterList>, options: R) -> Result<RuleOptimizer<R>> {
        RuleOptimizer::try_with_groups(vec![(parameters, options)])
    }

    /// Creates an optimizer of several groups of parameters, each with its own options.
    ///
    /// ```
    /// use pellucid::nn::{Linear, Module, Relu, optim::{AdamW, AdamWOptions, Optimizer}, sequential};
    /// let (body, head) = (sequential![Linear::new(4, 8), Relu], Linear::new(8, 2));
    /// let options = AdamWOptions { lr: 1e-3, ..Default::default() };
    /// let slow = AdamWOptions { lr: 1e-5, ..options };
    /// let optimizer = AdamW::with_groups(vec![(body.parameters(), slow), (head.parameters(), options)]);
    /// assert_eq!((optimizer.groups().len(), optimizer.options(1).lr), (2, 1e-3));
    /// # Ok::<(), pellucid::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`RuleOptimizer::new`], and [`Error::InvalidArgument`] if there is no group.
    #[panicking_form]
    pub fn try_with_groups(groups: Vec<(impl Into<ParameterList>, R)>) -> Result<RuleOptimizer<R>> {
        let Some((_, first)) = groups.first() else {
            return Err(Error::invalid("with_groups", "the list of groups must contain at least one group"));
        };
        let mut core = OptimizerCore::new(first.name());
        for (parameters, options) in groups {
            core.add_group(parameters.into(), Arc::new(options))?;
        }
        Ok(RuleOptimizer { core, rule: PhantomData })
    }

    /// Creates an optimizer of parameters, some of which are exempt from weight decay: the exempt parameters are the
    /// last group, whose other options are the same. [`is_bias_or_norm`] is the usual choice.
    ///
    /// ```
    /// use pellucid::nn::{optim::{AdamW, AdamWOptions, Optimizer, is_bias_or_norm}, sequential, Linear, Module, Relu};
    /// let model = sequential![Linear::new(4, 8), Relu, Linear::new(8, 2)];
    /// let optimizer = AdamW::exempting(model.named_parameters(), AdamWOptions::default(), is_bias_or_norm);
    /// assert_eq!(optimizer.groups().len(), 2);
    /// assert_eq!(optimizer.parameters().len(), 4);
    /// # Ok::<(), pellucid::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`RuleOptimizer::new`]; [`Error::InvalidArgument`] if the rule has no [`Rule::without_decay`].
    #[panicking_form]
    pub fn try_exempting(
        parameters: impl Into<ParameterList>,
        options: R,
        exempt: impl Fn(&str, &Parameter) -> bool,
    ) -> Result<RuleOptimizer<R>> {
        let Some(without_decay) = options.without_decay() else {
            let reason = "the rule has no form without weight decay: create the optimizer with new(), or implement \
                          Rule::without_decay";
            return Err(Error::invalid(options.name(), reason));
        };
        let named = parameters.into().into_named(0);
        let (exempt, others): (Vec<_>, Vec<_>) = named.into_iter().partition(|(name, p)| exempt(name, p));
        let mut groups = vec![(others, options), (exempt, without_decay)];
        match groups.iter().all(|(parameters, _)| parameters.is_empty()) {
            // An optimizer without parameters has one group, which can be filled.
            true => groups.truncate(1),
            false => groups.retain(|(parameters, _)| !parameters.is_empty()),
        }
        RuleOptimizer::try_with_groups(groups)
    }

    /// Adds a group of parameters with its own options.
    ///
    /// # Errors
    /// The errors of [`RuleOptimizer::new`]; then no parameter is added.
    #[doc(alias = "add_param_group")]
    #[panicking_form]
    pub fn try_add_group(&mut self, parameters: impl Into<ParameterList>, options: R) -> Result<()> {
        self.core.add_group(parameters.into(), Arc::new(options))
    }

    /// Adds parameters to the last group.
    ///
    /// # Errors
    /// The errors of [`RuleOptimizer::new`]; then no parameter is added.
    #[panicking_form]
    pub fn try_add_params(&mut self, parameters: impl Into<ParameterList>) -> Result<()> {
        self.core.add_params(parameters.into())
    }

    /// Creates the missing state of parameters that required no gradient when they were added. Call it
    /// after they are unfrozen, and before a step is captured.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    #[panicking_form]
    pub fn try_ensure_initialized(&mut self) -> Result<()> {
        self.core.ensure_initialized()
    }

    /// Returns the options of a group as they were given. The current rate is `groups()[group].lr()`.
    ///
    /// # Panics
    /// Panics if there is no such group.
    #[track_caller]
    pub fn options(&self, group: usize) -> &R {
        let rule: &dyn Any = self.core.rule(group);
        rule.downcast_ref().expect("every group must have the rule of the optimizer")
    }

    /// Returns a counter of a parameter's clock, a 0-d tensor: `step` for most rules. `parameter` is the index in
    /// [`Optimizer::parameters`].
    pub fn clock_tensor(&self, parameter: usize, name: &str) -> Option<Tensor> {
        self.core.clock_tensor(parameter, name)
    }
}

/// Returns true for a parameter of at most one axis, as biases and the weights of normalizations have; see
/// [`RuleOptimizer::exempting`].
pub fn is_bias_or_norm(_: &str, parameter: &Parameter) -> bool {
    parameter.rank() <= 1
}

// The core is compiled once for all rules.
#[deny(clippy::missing_trait_methods)]
impl<R: Rule> Optimizer for RuleOptimizer<R> {
    delegate_optimizer! { self => self.core }
}

impl<R: Rule> fmt::Debug for RuleOptimizer<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rules: Vec<&R> = (0..self.groups().len()).map(|group| self.options(group)).collect();
        let parameters = self.parameters().len();
        f.debug_struct("RuleOptimizer").field("parameters", &parameters).field("groups", &rules).finish()
    }
}
