//! Layers with several paths. The host selects a path before a step; the path never depends on a value that the step
//! computes.
//!
//! A recording contains one path. [`path_of`] returns the path that a model is set to. A
//! [`GraphTrainer`](crate::graph::GraphTrainer) keeps one recording for each path that it has run, all with the same
//! parameters, gradients and optimizer.

use crate::layer::Layer;
use crate::module::{Module, as_dyn};
use crate::parameter::PathChoice;
use crate::sequential::BoxedLayer;
use crate::visit::ModulePart;
use pellucid_derive::{Module, panicking_form};
use pellucid_tensor::{DType, Error, Result, Tensor, unwrap};

/// The path that a model is set to: the name and the value of each [`PathChoice`] in it.
pub type ModelPath = Vec<(String, usize)>;

/// Returns the path that a model is set to; empty for a model without choices.
///
/// ```
/// use pellucid::nn::paths::{If, path_of};
/// use pellucid::nn::{Identity, Linear, Relu, sequential};
/// let model = sequential![Linear::new(2, 2), If::new(Relu, Identity)];
/// assert_eq!(path_of(&model), [("1.choice".to_string(), 1)]);
/// ```
pub fn path_of(model: &(impl Module + ?Sized)) -> ModelPath {
    let mut path = ModelPath::new();
    as_dyn(&model).walk(&mut |name, part| {
        if let ModulePart::PathChoice(choice) = part {
            path.push((name.to_string(), choice.get()));
        }
    });
    path
}

/// A layer that applies one of two layers: the first, unless [`choose`](If::choose) selects the second.
#[derive(Clone, Debug, Module)]
#[module(display)]
pub struct If<A, B> {
    then: A,
    otherwise: B,
    choice: PathChoice,
}

impl<A: Layer, B: Layer> If<A, B> {
    /// Creates a layer that applies `then` or `otherwise`.
    pub fn new(then: A, otherwise: B) -> If<A, B> {
        If { then, otherwise, choice: PathChoice::new(1) }
    }

    /// Selects the first layer if the condition is true, otherwise the second.
    pub fn choose(&self, condition: bool) {
        self.choice.set(usize::from(condition));
    }
}

impl<A: Layer, B: Layer> Layer for If<A, B> {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        if self.choice.get() == 1 { self.then.try_forward(x) } else { self.otherwise.try_forward(x) }
    }

    fn input_dtype(&self) -> DType {
        self.then.input_dtype()
    }
}

/// A layer applied n times, with the same parameters: f(f(..f(x))).
#[derive(Clone, Debug, Module)]
#[module(display)]
pub struct Repeat<L> {
    layer: L,
    choice: PathChoice,
}

impl<L: Layer> Repeat<L> {
    /// Creates a layer that applies `layer` `times` times.
    pub fn new(layer: L, times: usize) -> Repeat<L> {
        Repeat { layer, choice: PathChoice::new(times) }
    }

    /// Sets how many times the layer is applied.
    pub fn choose(&self, times: usize) {
        self.choice.set(times);
    }
}

impl<L: Layer> Layer for Repeat<L> {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        (0..self.choice.get()).try_fold(x.clone(), |x, _| self.layer.try_forward(&x))
    }

    fn input_dtype(&self) -> DType {
        self.layer.input_dtype()
    }
}

/// Stages in sequence with early exit at a stage k: headₖ(stageₖ(..stage₀(x))). The exit is at the last stage unless
/// [`choose`](EarlyExit::choose) selects another.
#[derive(Clone, Debug, Module)]
#[module(display)]
pub struct EarlyExit<S = BoxedLayer, H = BoxedLayer> {
    stages: Vec<S>,
    heads: Vec<H>,
    choice: PathChoice,
}

impl<S: Layer, H: Layer> EarlyExit<S, H> {
    /// Creates the layer from stages, each with its head.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no stage.
    #[panicking_form]
    pub fn try_new(stages: impl IntoIterator<Item = (S, H)>) -> Result<EarlyExit<S, H>> {
        let (stages, heads): (Vec<S>, Vec<H>) = stages.into_iter().unzip();
        let Some(last) = stages.len().checked_sub(1) else {
            let reason = "the list of stages must contain at least one stage with its head";
            return Err(Error::invalid("EarlyExit", reason));
        };
        Ok(EarlyExit { stages, heads, choice: PathChoice::new(last) })
    }

    /// Selects the stage of the exit; the first stage is 0.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no such stage.
    #[panicking_form]
    pub fn try_choose(&self, stage: usize) -> Result<()> {
        if stage >= self.stages.len() {
            let reason =
                format!("stage {stage} does not exist; the layer has {} stages, counted from 0", self.stages.len());
            return Err(Error::invalid("EarlyExit", reason));
        }
        self.choice.set(stage);
        Ok(())
    }
}

impl<S: Layer, H: Layer> Layer for EarlyExit<S, H> {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        let last = self.choice.get();
        let x = self.stages[..=last].iter().try_fold(x.clone(), |x, stage| stage.try_forward(&x))?;
        self.heads[last].try_forward(&x)
    }

    fn input_dtype(&self) -> DType {
        self.stages[0].input_dtype()
    }
}
