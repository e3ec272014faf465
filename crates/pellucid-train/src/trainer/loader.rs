//! [`EpochLoader`]: loaders from which a trainer reads batches.

use super::caught::CaughtResult;
use pellucid_data::{BatchPosition, Batches, DataLoader, StreamLoader};
use pellucid_nn::{StateDict, Stateful};
use pellucid_tensor::{Result, Tensor};

/// The batches of an epoch. Each item may be an error.
pub type EpochBatchIter<B> = Box<dyn Iterator<Item = Result<B>>>;

/// A loader from which a [`Trainer`](super::Trainer) reads batches, epoch by epoch. [`Batches`], [`DataLoader`] and
/// [`StreamLoader`] implement it if their batches implement [`IntoBatch`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a loader of batches `{B}`",
    note = "a trainer of a model and a loss reads `Batches` of two tensors, or a `DataLoader` or `StreamLoader` of pairs (inputs, targets)",
    note = "implement `IntoBatch<{B}>` for the batches of your loader, or map its samples to pairs"
)]
pub trait EpochLoader<B> {
    /// Returns the number of batches of an epoch, or `None` if it is unknown.
    fn batch_count(&self) -> Option<usize>;

    /// Returns the position of the next batch.
    fn position(&self) -> BatchPosition;

    /// Begins the next epoch, or the rest of an epoch after a load. The iterator advances the position.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](pellucid_tensor::Error::InvalidArgument) for an epoch without batches.
    fn begin_epoch(&mut self) -> Result<EpochBatchIter<B>>;

    /// Returns the sample indices of a batch.
    ///
    /// # Errors
    /// The errors of the sampler.
    fn sample_indices(&self, position: BatchPosition) -> Result<Vec<usize>>;

    /// Returns the loader as a part of a checkpoint.
    fn as_stateful(&self) -> &dyn Stateful;
}

/// An entire epoch of a loader for an evaluation.
pub(super) struct EntireEpoch<B> {
    pub(super) batches: EpochBatchIter<B>,
    /// The position to which the loader returns.
    before: Option<StateDict>,
}

impl<B> EntireEpoch<B> {
    /// Begins an epoch with its first batch. After the epoch, the loader returns to its earlier position if `returns`
    /// is true or the loader is in the middle of an epoch.
    pub(super) fn begin(loader: &mut dyn EpochLoader<B>, returns: bool) -> Result<EntireEpoch<B>> {
        let is_interrupted = loader.position().batch > 0;
        let before = (returns || is_interrupted).then(|| state_of(loader.as_stateful())).transpose()?;
        let begun = CaughtResult::call(|| {
            if is_interrupted {
                drop(loader.begin_epoch()?);
            }
            loader.begin_epoch()
        });
        let restored = match begun.value() {
            Some(_) => Ok(()),
            None => load_state(loader, before.as_ref()),
        };
        Ok(EntireEpoch { batches: begun.resume_after(restored)?, before })
    }

    /// Ends the epoch, even if batches remain.
    pub(super) fn end(self, loader: &dyn EpochLoader<B>) -> Result<()> {
        drop(self.batches);
        load_state(loader, self.before.as_ref())
    }
}

/// Loads a state into a loader, if there is one.
fn load_state<B>(loader: &dyn EpochLoader<B>, state: Option<&StateDict>) -> Result<()> {
    state.map_or(Ok(()), |state| loader.as_stateful().prepare_load(state)?.commit())
}

/// Returns the state of a loader.
pub(super) fn state_of(loader: &dyn Stateful) -> Result<StateDict> {
    Ok(loader.state()?.into_iter().collect())
}

/// Conversion of a batch of a loader to a batch `B` of a training task.
///
/// | batch of a loader | batch of a task |
/// | --- | --- |
/// | `[Tensor; 2]`, `(X, Tensor)` | `(X, Tensor)`: inputs and targets |
/// | `[Tensor; 3]`, `(Tensor, Tensor, Tensor)` | `((Tensor, Tensor), Tensor)`: two inputs and targets |
/// | `Tensor`, `[Tensor; K]` | itself |
///
/// ```
/// use pellucid::Tensor;
/// use pellucid::data::Collate;
/// use pellucid::train::IntoBatch;
///
/// #[derive(Collate)]
/// struct Digit {
///     image: Tensor,
///     class: i64,
/// }
///
/// impl IntoBatch<(Tensor, Tensor)> for DigitBatch {
///     fn into_batch(self) -> (Tensor, Tensor) {
///         (self.image, self.class)
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "a batch `{Self}` of the loader does not convert to the batch `{B}` of the trainer",
    note = "implement `IntoBatch<{B}>` for it, or map the samples of the data set to pairs (inputs, targets)"
)]
pub trait IntoBatch<B> {
    /// Converts the batch.
    fn into_batch(self) -> B;
}

impl<X, Y> IntoBatch<(X, Y)> for (X, Y) {
    fn into_batch(self) -> (X, Y) {
        self
    }
}

impl IntoBatch<(Tensor, Tensor)> for [Tensor; 2] {
    fn into_batch(self) -> (Tensor, Tensor) {
        self.into()
    }
}

impl IntoBatch<((Tensor, Tensor), Tensor)> for [Tensor; 3] {
    fn into_batch(self) -> ((Tensor, Tensor), Tensor) {
        let [a, b, y] = self;
        ((a, b), y)
    }
}

impl IntoBatch<((Tensor, Tensor), Tensor)> for (Tensor, Tensor, Tensor) {
    fn into_batch(self) -> ((Tensor, Tensor), Tensor) {
        let (a, b, y) = self;
        ((a, b), y)
    }
}

impl IntoBatch<Tensor> for Tensor {
    fn into_batch(self) -> Tensor {
        self
    }
}

impl IntoBatch<Tensor> for [Tensor; 1] {
    fn into_batch(self) -> Tensor {
        let [x] = self;
        x
    }
}

impl<const K: usize> IntoBatch<[Tensor; K]> for [Tensor; K] {
    fn into_batch(self) -> [Tensor; K] {
        self
    }
}

/// Implements [`EpochLoader`] by delegating to the methods of a loader.
macro_rules! epoch_loader {
    ([$($generics:tt)*] $loader:ty, $batch:ty, |$loader_ref:ident| $count:expr, |$item:ident| $converted:expr) => {
        impl<B, $($generics)*> EpochLoader<B> for $loader
        where
            $batch: IntoBatch<B>,
        {
            fn batch_count(&self) -> Option<usize> {
                let $loader_ref = self;
                $count
            }

            fn position(&self) -> BatchPosition {
                <$loader>::position(self)
            }

            fn begin_epoch(&mut self) -> Result<EpochBatchIter<B>> {
                Ok(Box::new(self.try_epoch()?.map(|$item| $converted)))
            }

            fn sample_indices(&self, position: BatchPosition) -> Result<Vec<usize>> {
                <$loader>::sample_indices(self, position)
            }

            fn as_stateful(&self) -> &dyn Stateful {
                self
            }
        }
    };
}

epoch_loader!([const K: usize] Batches<K>, [Tensor; K], |loader_ref| Some(loader_ref.len()), |batch| batch.map(IntoBatch::into_batch));
epoch_loader!([T: Send + 'static] DataLoader<T>, T, |loader_ref| Some(loader_ref.len()), |batch| batch.map(T::into_batch));
epoch_loader!([T: Send + 'static] StreamLoader<T>, T, |_own| None, |batch| batch.map(T::into_batch));
