//! [`TrainingTask`]: the steps and the state of a training procedure.

use pellucid_nn::loss::BatchWeight;
use pellucid_nn::optim::Optimizer;
use pellucid_nn::{Checkpoint, StateDict};
use pellucid_tensor::{Result, Tensor};

/// Named 0-d tensors that a step computes, such as losses.
pub type NamedScalars = Vec<(&'static str, Tensor)>;

/// A training procedure that a [`Trainer`](super::Trainer) runs: its steps and its state.
/// [`Supervised`](super::Supervised) is the task of a model and a loss. A custom task can train several models with
/// several optimizers, for example the networks of a GAN:
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
///         let models = Checkpoint::new().named_model("generator", &self.generator);
///         let models = models.named_model("discriminator", &self.discriminator);
///         let models = models.named_optimizer("generator_adam", self.generate.optimizer());
///         models.named_optimizer("discriminator_adam", self.discriminate.optimizer())
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
/// let mut trainer = Trainer::from_task(Gan::new()).epochs(2).quiet(true);
/// let history = trainer.fit(&mut points, None)?;
/// assert_eq!(history.column("train_generator_loss").unwrap().len(), 2);
/// # Ok::<(), Error>(())
/// ```
pub trait TrainingTask {
    /// The type of a batch.
    type Batch: 'static;

    /// Trains on a batch, and returns losses and other scalars. The first scalar is the training loss, which must be
    /// finite. The next step may overwrite the tensors.
    ///
    /// # Errors
    /// The errors of the computation.
    fn train_step(&mut self, batch: &Self::Batch) -> Result<NamedScalars>;

    /// Returns the outputs of the model that the last [`train_step`](TrainingTask::train_step) has computed, for this
    /// batch, and the targets. [Training metrics](super::Trainer::train_metric) are computed from them. By default
    /// `None`: the task has no outputs.
    ///
    /// # Errors
    /// The errors of the computation.
    fn train_predictions(&self, batch: &Self::Batch) -> Result<Option<(Tensor, Tensor)>> {
        let _ = batch;
        Ok(None)
    }

    /// Evaluates a batch in evaluation mode, without training.
    ///
    /// # Errors
    /// The default implementation returns [`Error::InvalidArgument`](pellucid_tensor::Error::InvalidArgument): the task
    /// has no evaluation.
    fn evaluate_step(&mut self, batch: &Self::Batch) -> Result<BatchScores> {
        let _ = batch;
        let reason = "the task does not define evaluate_step(); define it, or train without validation";
        Err(pellucid_tensor::Error::invalid("evaluate", reason))
    }

    /// Returns the names of the losses of a step and of an evaluation, if they are known. The names of metrics and of
    /// the [monitored](super::Trainer::monitor) value are then checked before the first step. By default `None`.
    fn loss_names(&self) -> Option<&[&'static str]> {
        None
    }

    /// Returns the number of samples of a batch, which is the default of [`batch_weight`](TrainingTask::batch_weight).
    /// By default 1, so that all batches have equal weights.
    fn batch_size(&self, batch: &Self::Batch) -> usize {
        let _ = batch;
        1
    }

    /// Returns the weight of a batch in the mean losses of an epoch, by default its number of samples.
    ///
    /// # Errors
    /// The errors of the computation.
    fn batch_weight(&self, batch: &Self::Batch) -> Result<BatchWeight> {
        let _ = batch;
        Ok(BatchWeight::Samples)
    }

    /// Returns the models, optimizers and other parts that a resumed run needs. The trainer adds further parts.
    fn checkpoint(&self) -> Checkpoint<'_>;

    /// Returns the settings on which the state depends, by name, such as the number of steps per update. A run with
    /// different settings cannot resume a saved run. By default there are none. The names of the optimizers and
    /// schedules are compared as well.
    fn settings(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// Returns the weights that the file of the best epoch contains.
    ///
    /// # Errors
    /// The errors of [`Module::try_state_dict`](pellucid_nn::Module::try_state_dict).
    fn weights(&self) -> Result<StateDict>;

    /// Returns the optimizers with their names. The trainer schedules and logs their learning rates.
    fn optimizers(&self) -> Vec<(&'static str, &dyn Optimizer)>;

    /// Prepares the task for training, at the beginning of each [`fit`](super::Trainer::fit) and each
    /// [`find_lr`](super::Trainer::find_lr). A [`Supervised`](super::Supervised) task sets its model to training mode
    /// if all modules are in evaluation mode.
    ///
    /// # Errors
    /// The errors of the preparation.
    fn begin_fit(&mut self) -> Result<()> {
        Ok(())
    }

    /// Ends an epoch, for example by an update with the gradients that were accumulated so far.
    ///
    /// # Errors
    /// The errors of the update.
    fn end_epoch(&mut self) -> Result<()> {
        Ok(())
    }

    /// Returns true if no accumulated gradients are pending, so that the state can be saved.
    fn is_between_updates(&self) -> bool {
        true
    }

    /// Returns the number of consecutive updates that were skipped because of non-finite gradients; `None` if the task
    /// skips no updates. A run of a task that skips them continues after a loss that is not finite, until more than 100
    /// consecutive updates were skipped.
    ///
    /// # Errors
    /// The errors of reading the number from a device.
    fn skipped_updates(&self) -> Result<Option<usize>> {
        Ok(None)
    }

    /// Creates the state that the first step would otherwise create, so that a load can copy into it.
    ///
    /// # Errors
    /// The errors of the optimizer.
    fn prepare_load(&mut self) -> Result<()> {
        Ok(())
    }

    /// Returns the reason why the steps run eagerly, if capturing a step failed.
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

    /// Returns the name of the first non-finite tensor in the computation of a batch whose loss is not finite.
    fn first_non_finite(&mut self, batch: &Self::Batch) -> Option<String> {
        let _ = batch;
        None
    }
}

/// The results of an evaluated batch.
#[derive(Clone, Debug)]
pub struct BatchScores {
    /// The losses by name.
    pub losses: NamedScalars,
    /// The outputs of the model and the targets, from which metrics are computed.
    pub predictions: Option<(Tensor, Tensor)>,
}
