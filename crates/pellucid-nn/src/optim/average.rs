//! Averaging of weights over training, which often improves predictions.

use super::free_buffer::free_buffer;
use crate::layer::Layer;
use crate::layers::{batch_norms, with_plain_averages};
use crate::module::{Module, as_dyn, walk};
use crate::parameter::{Buffer, Parameter};
use crate::state::{self, StateDict, StateLoad, Stateful};
use crate::visit::{ModulePart, Visit};
use pellucid_derive::panicking_form;
use pellucid_tensor::OptionRange;
use pellucid_tensor::{DType, Error, Result, Tensor, eager, formula, no_grad, ops, unwrap};
use std::collections::BTreeMap;
use std::fmt;

/// The kind of an average of weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Average {
    /// The equal average a ← a + (p − a)/(n + 1) (SWA: Izmailov et al. 2018).
    Equal,
    /// The exponential average a ← a + (1 − d)·(p − a), with this d in [0, 1] (EMA: Polyak & Juditsky 1992).
    Exponential(f64),
}

/// Averages of a module's parameters. Counts and averages are tensors, so an update can be part of a
/// captured step. The average of a parameter in half precision is `f32`.
///
/// ```
/// use pellucid::nn::optim::{Average, AveragedModel};
/// use pellucid::nn::{Linear, Module};
/// let model = Linear::new(2, 1);
/// let mut averaged = AveragedModel::new(&model, Average::Exponential(0.999));
/// averaged.update()?; // after every step
/// averaged.apply()?; // the model holds the averages: evaluate it
/// averaged.restore()?; // the model holds its own weights: continue training
/// # Ok::<(), pellucid::Error>(())
/// ```
#[doc(alias = "EMA")]
#[doc(alias = "SWA")]
pub struct AveragedModel {
    parameters: Vec<(String, Parameter)>,
    averages: Vec<Buffer>,
    /// The number of updates so far.
    count: Buffer,
    average: Average,
    /// The model's own weights, saved while the model contains the averages.
    saved_weights: Option<Vec<Tensor>>,
}

impl AveragedModel {
    /// Creates averages of this module's parameters, empty at first: the first update copies the weights.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a decay outside [0, 1]; the errors of
    /// [`try_named_parameters`](Module::try_named_parameters).
    #[panicking_form]
    pub fn try_new(module: &(impl Visit + ?Sized), average: Average) -> Result<AveragedModel> {
        if let Average::Exponential(decay) = average {
            OptionRange::PROBABILITY.check("averaged_model", "the decay", decay, 0.999)?;
        }
        let parameters = as_dyn(&module).built_parameters()?;
        let zeros = |p: &Parameter| ops::zeros(p.shape(), average_dtype(p)).map(Buffer::new);
        Ok(AveragedModel {
            averages: parameters.iter().map(|(_, p)| zeros(p)).collect::<Result<_>>()?,
            count: free_buffer(ops::zeros((), DType::F32)?),
            parameters,
            average,
            saved_weights: None,
        })
    }

    /// Adds the current weights to the averages.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] between [`AveragedModel::apply`] and [`AveragedModel::restore`].
    #[doc(alias = "update_parameters")]
    pub fn update(&self) -> Result<()> {
        self.check_restored()?;
        if let Some(((name, p), a)) =
            self.parameters.iter().zip(&self.averages).find(|((_, p), a)| a.dtype() != average_dtype(p))
        {
            let help = format!(
                "the parameter `{name}` was converted; create the averages after converting the model with to_dtype_()"
            );
            return Err(Error::dtypes("averaged_model", [a.dtype(), p.dtype()], help));
        }
        let _guard = no_grad();
        let equal = formula!(equal |a, p, n; _one_minus_decay| n.eq(0.0).select(p, a + (p - a) / (n + 1.0)));
        let exponential = formula!(exponential |a, p, n; one_minus_decay| {
            n.eq(0.0).select(p, a + one_minus_decay * (p - a))
        });
        let (formula, one_minus_decay) = match self.average {
            Average::Equal => (equal, 0.0),
            Average::Exponential(decay) => (exponential, 1.0 - decay),
        };
        for ((_, p), a) in self.parameters.iter().zip(&self.averages) {
            if a.device() != p.device() {
                // A captured step only references the averages: moving them is not part of the step.
                eager(|| a.try_to_(p.device()))?;
            }
            ops::update(formula, &[a], &[p, &self.count], &[one_minus_decay.into()])?;
        }
        ops::update(formula!(|n| n + 1.0), &[&self.count], &[], &[])
    }

    /// Returns the averages with the names of their parameters.
    pub fn averages(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.parameters.iter().zip(&self.averages).map(|((name, _), a)| (name.as_str(), a.tensor()))
    }

    /// Returns the number of updates, a 0-d tensor.
    pub fn count_tensor(&self) -> &Tensor {
        &self.count
    }

    /// Copies the averages into the model in place, and saves the model's own weights. Running statistics of
    /// normalizations are not averaged: [`update_bn`] recomputes them.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the model holds the averages already, and before the first update, when there are
    /// none; [`Error::ReadInCapture`] in a captured step.
    pub fn apply(&mut self) -> Result<()> {
        if self.saved_weights.is_some() {
            let reason = "the model already contains the averages; call restore() before the next apply()";
            return Err(Error::invalid("averaged_model", reason));
        }
        if self.count.try_item::<f64>()? == 0.0 {
            let reason = "there are no averages before the first update(); call it after a step, or load the averages";
            return Err(Error::invalid("averaged_model", reason));
        }
        let _guard = no_grad();
        let weights: Vec<Tensor> =
            self.parameters.iter().map(|(_, p)| ops::copy(&p.detach())).collect::<Result<_>>()?;
        let averages = self.averages.iter().map(|average| average.tensor().clone()).collect::<Vec<_>>();
        self.saved_weights = Some(weights);
        self.write_weights(&averages).inspect_err(|_| self.saved_weights = None)
    }

    /// Restores the model's own weights.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the model does not hold the averages.
    pub fn restore(&mut self) -> Result<()> {
        let weights = self.saved_weights.clone().ok_or_else(|| {
            Error::invalid(
                "averaged_model",
                "the model already contains its own weights; call apply() before restore()",
            )
        })?;
        let _guard = no_grad();
        self.write_weights(&weights)?;
        self.saved_weights = None;
        Ok(())
    }

    /// Writes values into the parameters. All values are moved to the devices of the parameters before the first write.
    fn write_weights(&self, values: &[Tensor]) -> Result<()> {
        let parameters = self.parameters.iter().map(|(_, parameter)| parameter);
        let moved = parameters.clone().zip(values).map(|(p, value)| value.try_to(p.device()));
        let moved = moved.collect::<Result<Vec<_>>>()?;
        parameters.zip(&moved).try_for_each(|(p, value)| ops::copy_(p, value))
    }

    /// Returns a snapshot: `count`, and an entry `average.<name>` for each parameter.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] between [`AveragedModel::apply`] and [`AveragedModel::restore`]; the errors of
    /// [`Module::try_state_dict`].
    #[panicking_form]
    pub fn try_state_dict(&self) -> Result<StateDict> {
        state::snapshot(&self.state()?)
    }

    /// Loads a snapshot in place.
    ///
    /// # Errors
    /// [`Error::StateDict`] if the state dict does not contain averages of these parameters; [`Error::InvalidArgument`]
    /// between [`AveragedModel::apply`] and [`AveragedModel::restore`]. On error nothing is changed.
    pub fn load_state_dict(&self, state: &StateDict) -> Result<()> {
        self.prepare_load(state)?.commit()
    }

    fn values(&self) -> Vec<(String, Tensor)> {
        let averages = self.averages().map(|(name, a)| (format!("average.{name}"), a.clone()));
        averages.chain([("count".to_string(), self.count.tensor().clone())]).collect()
    }

    /// Returns an error if the model contains the averages, because a checkpoint would not contain its own weights.
    fn check_restored(&self) -> Result<()> {
        match self.saved_weights {
            Some(_) => Err(Error::invalid(
                "averaged_model",
                "the model contains the averages instead of its own weights; call restore() first",
            )),
            None => Ok(()),
        }
    }
}

/// The state consists of the averages and their count. It can be neither read nor loaded between
/// [`AveragedModel::apply`] and [`AveragedModel::restore`].
impl Stateful for AveragedModel {
    fn state(&self) -> Result<Vec<(String, Tensor)>> {
        self.check_restored()?;
        Ok(self.values())
    }

    fn prepare_load(&self, state: &StateDict) -> Result<StateLoad<'_>> {
        self.check_restored()?;
        StateLoad::new(&self.values(), state)
    }
}

/// Returns the dtype of the average of a parameter.
fn average_dtype(parameter: &Parameter) -> DType {
    parameter.dtype().promote(DType::F32)
}

/// Recomputes the running statistics of all batch normalizations of a model, as plain averages over these batches.
/// After [`AveragedModel::apply`] the old statistics belong to other weights (Izmailov et al. 2018). No gradients are
/// computed, every layer keeps its mode, and a model without such statistics is unchanged.
///
/// ```
/// use pellucid::nn::optim::{Average, AveragedModel, update_bn};
/// use pellucid::nn::{BatchNorm1d, Linear, sequential};
/// use pellucid::{DType, Tensor};
/// let model = sequential![Linear::new(2, 3), BatchNorm1d::new(3)];
/// let mut averaged = AveragedModel::new(&model, Average::Equal);
/// averaged.update()?;
/// averaged.apply()?;
/// update_bn(&model, (0..4).map(|_| Tensor::randn([8, 2], DType::F32)))?;
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// # Errors
/// [`Error::InvalidArgument`] if there are no batches; the errors of the model, after which the statistics of earlier
/// batches are kept. [`Error::Layer`] names a [`Lazy`](crate::Lazy) layer that is not built.
pub fn update_bn(model: &(impl Layer + ?Sized), batches: impl IntoIterator<Item = Tensor>) -> Result<()> {
    let norms = batch_norms("update_bn", model)?;
    if norms.is_empty() {
        return Ok(());
    }
    let mut batches = batches.into_iter().peekable();
    if batches.peek().is_none() {
        let reason = "there are no batches to compute the statistics from; an iterator returns each batch only once";
        return Err(Error::invalid("update_bn", reason));
    }
    let _off = no_grad();
    for [mean, var, count] in &norms {
        for (buffer, first) in [(mean, 0.0), (var, 1.0), (count, 0.0)] {
            ops::copy_(buffer, &Tensor::from(first))?;
        }
    }
    let _modes = SavedModes::keep(model);
    model.train();
    with_plain_averages(|| batches.try_for_each(|x| model.try_forward(&x).map(drop)))
}

/// A guard that restores the training modes of all layers.
struct SavedModes<'m, M: Module + ?Sized> {
    model: &'m M,
    modes: BTreeMap<String, bool>,
}

impl<'m, M: Module + ?Sized> SavedModes<'m, M> {
    fn keep(model: &'m M) -> SavedModes<'m, M> {
        let mut modes = BTreeMap::new();
        walk(model, |name, part| {
            if let ModulePart::TrainingMode(mode) = part {
                modes.insert(name.to_string(), mode.own());
            }
        });
        SavedModes { model, modes }
    }
}

impl<M: Module + ?Sized> Drop for SavedModes<'_, M> {
    fn drop(&mut self) {
        walk(self.model, |name, part| {
            // A lazy layer that was built while this guard was alive has no saved mode.
            if let (ModulePart::TrainingMode(mode), Some(&before)) = (part, self.modes.get(name)) {
                mode.set(before);
            }
        });
    }
}

impl fmt::Debug for AveragedModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parameters = self.parameters.len();
        f.debug_struct("AveragedModel").field("average", &self.average).field("parameters", &parameters).finish()
    }
}
