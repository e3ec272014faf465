//! The learning-rate finder.

use super::caught::CaughtResult;
use super::finite::is_non_finite_loss;
use super::loader::EpochLoader;
use super::scores::short_number;
use super::{Trainer, TrainingTask};
use pellucid_data::BatchPosition;
use pellucid_nn::StateDict;
use pellucid_tensor::{Error, Result, ops};
use std::fmt;

/// The options of [`Trainer::find_lr`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FindLrOptions {
    /// The first learning rate. Default: 10⁻⁷.
    pub first: f64,
    /// The last learning rate. Default: 10.
    pub last: f64,
    /// The number of steps from the first to the last rate. Default: 100.
    pub steps: usize,
    /// The search ends at a loss above this multiple of the smallest loss. If the smallest loss is negative, the search
    /// ends at a loss that exceeds it by `divergence` − 1 times the larger of two numbers: the magnitude of the
    /// smallest loss, and the difference between the first and the smallest loss. Default: 4.
    pub divergence: f64,
}

impl Default for FindLrOptions {
    fn default() -> FindLrOptions {
        FindLrOptions { first: 1e-7, last: 10.0, steps: 100, divergence: 4.0 }
    }
}

/// The losses of a learning-rate search. `Display` prints a table.
#[derive(Clone, Debug, PartialEq)]
pub struct LrCurve {
    /// The learning rates, ascending.
    pub rates: Vec<f64>,
    /// The smoothed losses at these rates: the exponential moving average with decay 0.9 and bias correction.
    pub losses: Vec<f64>,
}

impl LrCurve {
    /// Returns the rate with the steepest descent of the loss over the logarithm of the rate; the first tenth of the
    /// rates, where the moving average starts, is ignored. Returns `None` if the loss never decreases at the other
    /// rates.
    pub fn steepest(&self) -> Option<f64> {
        let slopes = self.losses.windows(2).map(|pair| pair[1] - pair[0]).enumerate().skip(self.losses.len() / 10);
        let (index, slope) = slopes.min_by(|(_, a), (_, b)| a.total_cmp(b))?;
        (slope < 0.0).then(|| self.rates[index])
    }

    /// Returns a tenth of the rate with the smallest loss, or `None` for a curve without losses.
    pub fn tenth_of_best(&self) -> Option<f64> {
        let best = self.losses.iter().enumerate().min_by(|(_, a), (_, b)| a.total_cmp(b))?;
        Some(self.rates[best.0] / 10.0)
    }
}

impl fmt::Display for LrCurve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (rate, loss) in self.rates.iter().zip(&self.losses) {
            writeln!(f, "lr {rate:.3e}  loss {}", short_number(*loss))?;
        }
        Ok(())
    }
}

/// The decay of the average of losses.
const DECAY: f64 = 0.9;

impl<'f, T: TrainingTask> Trainer<'f, T> {
    /// Trains for a few steps with exponentially increasing learning rates, and returns the losses (the range test of
    /// Smith 2015). A good rate is below the rate at which the loss increases again; see [`LrCurve::steepest`]. The
    /// rate applies to all groups of all optimizers.
    ///
    /// A model in evaluation mode is set to training mode, as by [`fit`](Trainer::fit). The search ends early when the
    /// loss diverges. The state that a checkpoint contains is restored, even after an error or a panic: parameters,
    /// persistent buffers, optimizers, random numbers and the position of the loader.
    ///
    /// ```
    /// use pellucid::prelude::*;
    /// use pellucid::train::FindLrOptions;
    ///
    /// let x = Tensor::randn([256, 4], DType::F32);
    /// let mut batches = Batches::new(&[&x, &x.sum(1).unsqueeze(1)], 16).shuffled(0);
    /// let model = Linear::new(4, 1);
    /// let sgd = Sgd::new(model.parameters(), SgdOptions { lr: 0.01, ..Default::default() });
    /// let mut trainer = Trainer::new(model, MseLoss::default(), sgd).epochs(3).quiet(true);
    /// let curve = trainer.find_lr(&mut batches, FindLrOptions { first: 1e-5, ..Default::default() })?;
    /// let rate = curve.steepest().unwrap();
    /// assert!((1e-3..1.0).contains(&rate), "{curve}");
    /// trainer.optimizer().set_lr(rate);
    /// trainer.fit(&mut batches, None)?;
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for rates that are not positive and ascending, fewer than 2 steps, or a `divergence`
    /// of at most 1, and before the `fit` that [resumes](Trainer::resume) a run; the errors of batches and steps,
    /// except for losses that are not finite.
    pub fn find_lr(&mut self, batches: &mut dyn EpochLoader<T::Batch>, options: FindLrOptions) -> Result<LrCurve> {
        options.check()?;
        self.run.files.check_loaded("find_lr")?;
        let _random = self.run.enter_random();
        self.task.prepare_load()?;
        self.task.begin_fit()?;
        let saved = self.search_state(batches)?;
        // The rates are saved separately, because the state may contain them rounded to `f32`.
        let groups = self.task.optimizers().into_iter().flat_map(|(_, optimizer)| optimizer.groups().to_vec());
        let rates = groups.map(|group| Ok((group.try_lr()?, group))).collect::<Result<Vec<_>>>()?;
        let curve = CaughtResult::call(|| self.search(batches, options));
        // Without this update, accumulated gradients would be added to the gradients of the next step.
        let ended = CaughtResult::call(|| self.task.end_epoch());
        let loaded = self.task.checkpoint().batches(batches.as_stateful()).load_state_dict(&saved);
        let restored = loaded.and_then(|_| rates.iter().try_for_each(|(lr, group)| group.try_set_lr(*lr)));
        curve.resume_after(ended.resume_after(restored))
    }

    /// Returns copies of all state that a search changes.
    fn search_state(&self, batches: &dyn EpochLoader<T::Batch>) -> Result<StateDict> {
        let state = self.task.checkpoint().batches(batches.as_stateful()).state()?;
        state.into_iter().map(|(name, tensor)| Ok((name, ops::copy(&tensor.detach())?))).collect()
    }

    fn search(&mut self, batches: &mut dyn EpochLoader<T::Batch>, options: FindLrOptions) -> Result<LrCurve> {
        let FindLrOptions { first, last, steps, divergence } = options;
        let mut curve = LrCurve { rates: Vec::new(), losses: Vec::new() };
        let (mut average, mut weight, mut best) = (0.0, 0.0, f64::INFINITY);
        let mut epoch = batches.begin_epoch()?;
        while curve.rates.len() < steps {
            let position = batches.position();
            let Some(batch) = epoch.next() else {
                epoch = batches.begin_epoch()?;
                continue;
            };
            let batch = batch.map_err(|error| self.search_error(&curve, position, error))?;
            let rate = first * (last / first).powf(curve.rates.len() as f64 / (steps - 1) as f64);
            self.task.optimizers().iter().try_for_each(|(_, optimizer)| optimizer.try_set_lr(rate))?;
            let loss = match self.task.train_step(&batch) {
                Ok(scalars) => scalars.first().map_or(Ok(f64::NAN), |(_, loss)| loss.try_item())?,
                Err(error) if is_non_finite_loss(&error) => f64::NAN,
                Err(error) => return Err(self.search_error(&curve, position, error)),
            };
            average = DECAY * average + (1.0 - DECAY) * loss;
            weight = DECAY * weight + (1.0 - DECAY);
            let smooth = average / weight;
            let scale = if best < 0.0 { best.abs().max(curve.losses[0] - best) } else { best };
            if !smooth.is_finite() || smooth - best > (divergence - 1.0) * scale {
                break;
            }
            best = best.min(smooth);
            curve.rates.push(rate);
            curve.losses.push(smooth);
        }
        Ok(curve)
    }

    fn search_error(&self, curve: &LrCurve, position: BatchPosition, source: Error) -> Error {
        Error::Step {
            step: curve.rates.len() + 1,
            epoch: position.epoch + 1,
            batch: position.batch + 1,
            samples: 0,
            source: Box::new(source),
        }
    }
}

impl FindLrOptions {
    fn check(&self) -> Result<()> {
        let FindLrOptions { first, last, steps, divergence } = *self;
        let reason = if !(first > 0.0 && last > first && last.is_finite()) {
            format!("the rates must be positive and ascending, got `first` {first:e} and `last` {last:e}")
        } else if steps < 2 {
            format!("`steps` must be at least 2, got {steps}")
        } else if divergence.is_nan() || divergence <= 1.0 {
            format!("`divergence` must be above 1, got {divergence}")
        } else {
            return Ok(());
        };
        Err(Error::invalid("find_lr", reason))
    }
}
