//! Predictions: the outputs of the model of a trainer.

use super::caught::CaughtResult;
use super::loader::{EntireEpoch, EpochLoader};
use super::{Supervised, Trainer};
use pellucid_nn::graph::{Batch, Model};
use pellucid_nn::optim::Optimizer;
use pellucid_tensor::{Error, Result, Tensor, ops};

impl<'f, M, O, X> Trainer<'f, Supervised<'f, M, O, X>>
where
    M: Model<X> + 'f,
    O: Optimizer + 'f,
    X: Batch + 'static,
{
    /// Returns the outputs of the model for the inputs `x`, in evaluation mode. If the model draws random numbers in
    /// evaluation mode, as a VAE does, the random state is restored, so predictions between two calls of `fit` do not
    /// change the run.
    ///
    /// # Errors
    /// The errors of the model; [`Error::InvalidArgument`] before the `fit` that [resumes](Trainer::resume) a run.
    pub fn predict(&self, x: &X) -> Result<Tensor> {
        self.run.keep_random("predict", || self.task.predict(x))
    }

    /// Returns the outputs of the model for all samples of an epoch, concatenated along the first axis in the order of
    /// the loader, in evaluation mode. The targets are not used. The loader then returns to its earlier position.
    ///
    /// ```
    /// use pellucid::prelude::*;
    ///
    /// let (x, y) = (Tensor::randn([10, 4], DType::F32), Tensor::zeros([10, 1], DType::F32));
    /// let model = Linear::new(4, 1);
    /// let sgd = Sgd::new(model.parameters(), SgdOptions::default());
    /// let trainer = Trainer::new(model, MseLoss::default(), sgd);
    /// let outputs = trainer.predict_batches(&mut Batches::new(&[&x, &y], 4))?;
    /// assert_eq!(outputs.to_vec::<f32>(), trainer.predict(&x)?.to_vec::<f32>());
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Evaluation`] with the failed batch; the errors of the loader; [`Error::InvalidArgument`] before the
    /// `fit` that [resumes](Trainer::resume) a run.
    pub fn predict_batches(&self, batches: &mut dyn EpochLoader<(X, Tensor)>) -> Result<Tensor> {
        self.predict_all("predict_batches", batches, |(x, y)| (x, y.shape().first().copied().unwrap_or(1)))
    }

    /// Returns the outputs of the model as [`predict_batches`](Trainer::predict_batches) does, for batches without
    /// targets, such as `Batches` of one tensor.
    ///
    /// ```
    /// use pellucid::prelude::*;
    ///
    /// let x = Tensor::randn([10, 4], DType::F32);
    /// let model = Linear::new(4, 1);
    /// let sgd = Sgd::new(model.parameters(), SgdOptions::default());
    /// let trainer = Trainer::new(model, MseLoss::default(), sgd);
    /// let outputs = trainer.predict_inputs(&mut Batches::new(&[&x], 4))?;
    /// assert_eq!(outputs.to_vec::<f32>(), trainer.predict(&x)?.to_vec::<f32>());
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`predict_batches`](Trainer::predict_batches).
    pub fn predict_inputs(&self, batches: &mut dyn EpochLoader<X>) -> Result<Tensor> {
        self.predict_all("predict_inputs", batches, |x| (x, 0))
    }

    /// Predicts the batches of an epoch. `split` returns the inputs of a batch, and its number of samples for error
    /// messages (0 if it is unknown).
    fn predict_all<B>(
        &self,
        op: &'static str,
        batches: &mut dyn EpochLoader<B>,
        split: impl Fn(B) -> (X, usize),
    ) -> Result<Tensor> {
        self.run.keep_random(op, || {
            let mut epoch = EntireEpoch::begin(batches, true)?;
            let outputs = (&mut epoch.batches).enumerate().map(|(index, batch)| {
                let error_of = |samples: usize| {
                    move |error| Error::Evaluation { batch: index + 1, samples, source: Box::new(error) }
                };
                let (x, samples) = split(batch.map_err(error_of(0))?);
                self.task.predict(&x).map_err(error_of(samples))
            });
            let outputs = CaughtResult::call(|| outputs.collect::<Result<Vec<Tensor>>>());
            ops::concatenate(&outputs.resume_after(epoch.end(batches))?, 0)
        })
    }
}
