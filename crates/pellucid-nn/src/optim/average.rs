//! Averages of weights over training, which often predict better than the last ones.

use super::rule::nonnegative;
use crate::module::Module;
use crate::parameter::{Buffer, Parameter};
use crate::state::{self, StateDict};
use pellucid_tensor::{DType, Error, Result, Tensor, formula, no_grad, ops};

/// How weights are averaged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Average {
    /// All alike: a ← a + (p − a)/(n + 1) (SWA: Izmailov et al. 2018).
    Equal,
    /// The past fades: a ← a + (1 − d)·(p − a) with this d in [0, 1] (EMA: Polyak & Juditsky 1992).
    Exponential(f64),
}

/// Averages of a module's parameters. Counts and averages are tensors, so an update may stand in a
/// captured step. The average of a half-width parameter is `f32`.
///
/// ```
/// use pellucid_nn::optim::{Average, AveragedModel};
/// use pellucid_nn::{Linear, Module};
/// let model = Linear::new(2, 1);
/// let mut averaged = AveragedModel::new(&model, Average::Exponential(0.999))?;
/// averaged.update()?; // after every step
/// averaged.apply()?; // the model has the averages: evaluate it
/// averaged.restore()?; // and goes on training with its own weights
/// # Ok::<(), pellucid_tensor::Error>(())
/// ```
pub struct AveragedModel {
    parameters: Vec<(String, Parameter)>,
    averages: Vec<Buffer>,
    /// How many weights are in the averages.
    count: Buffer,
    average: Average,
    /// The model's own weights, while it has the averages.
    aside: Option<Vec<Tensor>>,
}

impl AveragedModel {
    /// Averages of this module's parameters, of nothing yet: the first update takes the weights over.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a decay outside [0, 1].
    pub fn new(module: &(impl Module + ?Sized), average: Average) -> Result<AveragedModel> {
        if let Average::Exponential(decay) = average {
            nonnegative("averaged_model", "decay", decay)?;
            nonnegative("averaged_model", "1 - decay", 1.0 - decay)?;
        }
        let parameters = module.named_parameters();
        let zeros = |p: &Parameter| ops::zeros(p.shape(), p.dtype().promote(DType::F32)).map(Buffer::new);
        Ok(AveragedModel {
            averages: parameters.iter().map(|(_, p)| zeros(p)).collect::<Result<_>>()?,
            count: Buffer::new(ops::zeros((), DType::F32)?),
            parameters,
            average,
            aside: None,
        })
    }

    /// Takes the present weights into the averages.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] between [`AveragedModel::apply`] and [`AveragedModel::restore`].
    pub fn update(&self) -> Result<()> {
        if self.aside.is_some() {
            return Err(Error::invalid("averaged_model", "the model has the averages now; call restore() first"));
        }
        let _guard = no_grad();
        let equal = formula!(|a, p, n; _rest| n.eq(0.0).select(p, a + (p - a) / (n + 1.0)));
        let exponential = formula!(|a, p, n; rest| n.eq(0.0).select(p, a + rest * (p - a)));
        let (formula, rest) = match self.average {
            Average::Equal => (equal, 0.0),
            Average::Exponential(decay) => (exponential, 1.0 - decay),
        };
        for ((_, p), a) in self.parameters.iter().zip(&self.averages) {
            ops::update(formula, &[a], &[p, &self.count], &[rest.into()])?;
        }
        ops::update(formula!(|n| n + 1.0), &[&self.count], &[], &[])
    }

    /// The averages by the names of their parameters.
    pub fn averages(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.parameters.iter().zip(&self.averages).map(|((name, _), a)| (name.as_str(), a.tensor()))
    }

    /// How many weights are in the averages, a 0-d tensor.
    pub fn count_tensor(&self) -> &Tensor {
        &self.count
    }

    /// Gives the model the averages, in place, and puts its own weights aside. (Running statistics of
    /// normalisations are not averaged; let them run over some batches.)
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if it has them already.
    pub fn apply(&mut self) -> Result<()> {
        if self.aside.is_some() {
            return Err(Error::invalid("averaged_model", "the model has the averages already"));
        }
        let _guard = no_grad();
        let own: Vec<Tensor> = self.parameters.iter().map(|(_, p)| ops::copy(&p.detach())).collect::<Result<_>>()?;
        for ((_, p), a) in self.parameters.iter().zip(&self.averages) {
            ops::copy_(p, a)?;
        }
        self.aside = Some(own);
        Ok(())
    }

    /// Gives the model its own weights back.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if it has them.
    pub fn restore(&mut self) -> Result<()> {
        let own = self.aside.take().ok_or_else(|| Error::invalid("averaged_model", "the model has its own weights"))?;
        let _guard = no_grad();
        self.parameters.iter().zip(&own).try_for_each(|((_, p), own)| ops::copy_(p, own))
    }

    /// A snapshot: `count`, and `average.` with the name of every parameter.
    ///
    /// # Panics
    /// As [`Module::state_dict`].
    #[track_caller]
    pub fn state_dict(&self) -> StateDict {
        state::snapshot(&self.state())
    }

    /// Takes over a snapshot, in place.
    ///
    /// # Errors
    /// [`Error::StateDict`] if it is not of averages of these parameters; nothing has changed then.
    pub fn load_state_dict(&self, state: &StateDict) -> Result<()> {
        state::load(&self.state(), state)
    }

    fn state(&self) -> Vec<(String, Tensor)> {
        let averages = self.averages().map(|(name, a)| (format!("average.{name}"), a.clone()));
        averages.chain([("count".to_string(), self.count.tensor().clone())]).collect()
    }
}
