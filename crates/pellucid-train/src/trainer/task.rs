//! [`TrainingTask`]: what a trainer does with a batch.

use pellucid_nn::loss::BatchWeight;
use pellucid_nn::optim::Optimizer;
use pellucid_nn::{Checkpoint, StateDict};
use pellucid_tensor::{Result, Tensor};

/// Named scalars that a step has computed, such as losses: 0-d tensors.
pub type NamedScalars = Vec<(&'static str, Tensor)>;

/// What a [`Trainer`](super::Trainer) does with a batch. [`Supervised`](super::Supervised) is the task of a model and a
/// loss. A task of your own trains several models with several optimizers, for example the networks of a GAN:
///
/// ```
/// use pellucid::nn::graph::TrainingStep;
/// use pellucid::nn::loss::{BceWithLogitsLoss, Loss};
/// use pellucid::nn::optim::{Adam, AdamOptions, Optimizer};
/// use pellucid::nn::{Checkpoint, StateDict};
/// use pellucid::prelude::*;
/// use pellucid::train::{BatchScores, NamedScalars, Trainer, TrainingTask};
///
/// /// A generator of points, and a discriminator that tells them from the points of the data set.
/// struct Gan {
///     generator: Linear,
///     discriminator: Linear,
///     generate: TrainingStep<'static>,
///     discriminate: TrainingStep<'static>,
/// }
///
/// impl Gan {
///     fn new() -> Gan {
///         let (generator, discriminator) = (Linear::new(2, 3), Linear::new(3, 1));
///         let loss = |logits: &Tensor, y: f64| BceWithLogitsLoss::default().forward(logits, &logits.full_like(y));
///         let (g, d) = (generator.clone(), discriminator.clone());
///         let adam = Adam::new(d.parameters(), AdamOptions::default());
///         let discriminate = TrainingStep::new(adam, move |x| {
///             loss(&d.forward(&x[0]), 1.0) + loss(&d.forward(&g.forward(&x[1])), 0.0)
///         });
///         let (g, d) = (generator.clone(), discriminator.clone());
///         let adam = Adam::new(g.parameters(), AdamOptions::default());
///         let generate = TrainingStep::new(adam, move |x| loss(&d.forward(&g.forward(&x[0])), 1.0));
///         Gan { generator, discriminator, generate, discriminate }
///     }
/// }
///
/// impl TrainingTask for Gan {
///     type Batch = [Tensor; 1];
///
///     fn train_step(&mut self, [points]: &[Tensor; 1]) -> Result<NamedScalars> {
///         let noise = Tensor::randn([points.shape()[0], 2], DType::F32);
///         let discriminator = self.discriminate.launch(&[points, &noise])?[0].clone();
///         let generator = self.generate.launch(&[&noise])?[0].clone();
///         Ok(vec![("discriminator_loss", discriminator), ("generator_loss", generator)])
///     }
///
///     fn checkpoint(&self) -> Checkpoint<'_> {
///         let models = Checkpoint::new().named_model("g", &self.generator).named_model("d", &self.discriminator);
///         let models = models.named_optimizer("g_adam", self.generate.optimizer());
///         models.named_optimizer("d_adam", self.discriminate.optimizer())
///     }
///
///     fn weights(&self) -> Result<StateDict> {
///         Ok(self.generator.state_dict())
///     }
///
///     fn optimizers(&self) -> Vec<(&'static str, &dyn Optimizer)> {
///         vec![("generator", self.generate.optimizer()), ("discriminator", self.discriminate.optimizer())]
///     }
/// }
///
/// let mut points = Batches::new(&[&Tensor::randn([64, 3], DType::F32)], 16).shuffled(0);
/// let mut trainer = Trainer::of_task(Gan::new()).epochs(2).quiet();
/// let history = trainer.fit(&mut points, None)?;
/// assert_eq!(history.column("train_generator_loss").unwrap().len(), 2);
/// # Ok::<(), Error>(())
/// ```
pub trait TrainingTask {
    /// The batches of the task.
    type Batch: 'static;

    /// Trains on a batch, and returns its losses and other scalars. The first one is *the* loss, which must be finite.
    /// A tensor may be overwritten by the next step.
    ///
    /// # Errors
    /// The errors of the computation.
    fn train_step(&mut self, batch: &Self::Batch) -> Result<NamedScalars>;

    /// Evaluates a batch in evaluation mode, without training.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](pellucid_tensor::Error::InvalidArgument) by default, for a task without evaluation.
    fn evaluate_step(&mut self, batch: &Self::Batch) -> Result<BatchScores> {
        let _ = batch;
        let reason = "the task does not define evaluate_step(); define it, or train without validation";
        Err(pellucid_tensor::Error::invalid("evaluate", reason))
    }

    /// Returns the number of samples of a batch, by which means over an epoch are weighted unless
    /// [`batch_weight`](TrainingTask::batch_weight) returns something else. By default all batches count equally.
    fn batch_size(&self, batch: &Self::Batch) -> usize {
        let _ = batch;
        1
    }

    /// Returns the weight of a batch in the means of its losses over an epoch, by default its number of samples.
    ///
    /// # Errors
    /// The errors of the computation.
    fn batch_weight(&self, batch: &Self::Batch) -> Result<BatchWeight> {
        let _ = batch;
        Ok(BatchWeight::Samples)
    }

    /// Returns the models, optimizers and other parts that a resumed run needs. The trainer adds its own parts.
    fn checkpoint(&self) -> Checkpoint<'_>;

    /// Returns the weights that the file of the best epoch contains.
    ///
    /// # Errors
    /// Those of [`Module::try_state_dict`](pellucid_nn::Module::try_state_dict).
    fn weights(&self) -> Result<StateDict>;

    /// Returns the optimizers with their names, whose learning rates the trainer schedules and logs.
    fn optimizers(&self) -> Vec<(&'static str, &dyn Optimizer)>;

    /// Prepares a run, before its first step or after an interruption. A [`Supervised`](super::Supervised) task sets
    /// its model to training mode, unless a part of the model has it already.
    ///
    /// # Errors
    /// The errors of the preparation.
    fn begin_fit(&mut self) -> Result<()> {
        Ok(())
    }

    /// Ends an epoch, for example by an update with gradients that were accumulated over fewer steps than usual.
    ///
    /// # Errors
    /// The errors of the update.
    fn end_epoch(&mut self) -> Result<()> {
        Ok(())
    }

    /// Returns true if all gradients so far are in the parameters, so that the state may be saved.
    fn is_between_updates(&self) -> bool {
        true
    }

    /// Returns true if an update with gradients that are not finite is skipped, so that a run continues.
    fn skips_updates(&self) -> bool {
        false
    }

    /// Creates what a loaded state is copied into, if the first step does so otherwise.
    ///
    /// # Errors
    /// The errors of the optimizer.
    fn prepare_load(&mut self) -> Result<()> {
        Ok(())
    }

    /// Returns why the steps run eagerly, if they do and a captured step was tried.
    fn eager_reason(&self) -> Option<&str> {
        None
    }

    /// Replaces the weights by their averages until [`restore_weights`](TrainingTask::restore_weights), if the task
    /// averages them.
    ///
    /// # Errors
    /// The errors of the copies.
    fn apply_averages(&mut self) -> Result<()> {
        Ok(())
    }

    /// Undoes [`apply_averages`](TrainingTask::apply_averages).
    ///
    /// # Errors
    /// The errors of the copies.
    fn restore_weights(&mut self) -> Result<()> {
        Ok(())
    }

    /// Returns the name of the first tensor that is not finite in the computation of a batch, after its loss was not.
    fn first_non_finite(&mut self, batch: &Self::Batch) -> Option<String> {
        let _ = batch;
        None
    }
}

/// The results of an evaluated batch.
pub struct BatchScores {
    /// The losses by name.
    pub losses: NamedScalars,
    /// The outputs of the model and the targets, from which metrics are computed.
    pub predictions: Option<(Tensor, Tensor)>,
}
