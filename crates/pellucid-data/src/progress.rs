//! The position of a loader in its epochs, which a checkpoint contains.

use pellucid_nn::{StateDict, StateLoad};
use pellucid_tensor::{DType, Error, Result, Tensor, lock};
use std::sync::{Arc, Mutex, MutexGuard};

/// The position of a batch: the epoch, and the index in the epoch.
///
/// An epoch ends when its iterator has returned `None` or is dropped, for example after a `break`. In the loop body of
/// the last batch, `batch` is therefore the number of batches; after the loop, the position is the beginning of the
/// next epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchPosition {
    /// The epoch number, from 0.
    pub epoch: usize,
    /// The index of the batch in the epoch, from 0.
    pub batch: usize,
}

impl BatchPosition {
    /// Returns an error if the epoch does not contain the batch.
    pub(crate) fn check(self, op: &'static str, sizes: LoaderSizes) -> Result<()> {
        if self.batch < sizes.batches {
            return Ok(());
        }
        let reason = format!("batch {} does not exist; an epoch has {} batches", self.batch, sizes.batches);
        Err(Error::invalid(op, reason))
    }
}

/// The sizes of a loader, and the order of its samples. A loader loads only a snapshot with the same sizes and the same
/// order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoaderSizes {
    /// The number of samples of an epoch.
    pub(crate) samples: usize,
    /// The number of samples of a batch.
    pub(crate) size: usize,
    /// The number of batches of an epoch.
    pub(crate) batches: usize,
    /// Whether an incomplete last batch is dropped.
    pub(crate) drop_last: bool,
    /// The name of the sampler.
    pub(crate) order: &'static str,
    /// The number that identifies the settings of the sampler, or of the stream.
    pub(crate) settings: u64,
}

impl LoaderSizes {
    /// Returns the sizes by name.
    fn named(&self) -> [(&'static str, i64); 5] {
        let LoaderSizes { samples, size, batches, drop_last, settings, .. } = *self;
        [
            ("drop_last", i64::from(drop_last)),
            ("samples", samples as i64),
            ("size", size as i64),
            ("batches", batches as i64),
            (SETTINGS, settings as i64),
        ]
    }
}

/// The name of [`LoaderSizes::settings`].
const SETTINGS: &str = "sampler_settings";

/// The prefix of the snapshot key that contains [`LoaderSizes::order`].
const ORDER: &str = "order=";

/// The progress of a loader, which it shares with the iterator of the current epoch.
#[derive(Clone, Debug)]
pub(crate) struct LoaderProgress(Arc<Mutex<ProgressState>>);

#[derive(Clone, Copy, Debug)]
struct ProgressState {
    /// The seed of the order of the samples; `None` if they are not shuffled.
    seed: Option<u64>,
    position: BatchPosition,
    /// The number of iterators that were created.
    iterators: usize,
    /// The id of the iterator that advances the position; `None` between epochs and after a load.
    current: Option<usize>,
}

impl ProgressState {
    /// Ends the epoch of the current iterator, if there is one.
    fn end_current(&mut self) {
        if self.current.is_some() {
            self.end_epoch();
        }
    }

    fn end_epoch(&mut self) {
        self.position = BatchPosition { epoch: self.position.epoch + 1, batch: 0 };
        self.current = None;
    }
}

/// The handle with which an iterator advances the position of its loader.
#[derive(Debug)]
pub(crate) struct EpochProgress {
    progress: LoaderProgress,
    id: usize,
}

impl LoaderProgress {
    pub(crate) fn new(seed: Option<u64>) -> LoaderProgress {
        let state = ProgressState { seed, position: BatchPosition::default(), iterators: 0, current: None };
        LoaderProgress(Arc::new(Mutex::new(state)))
    }

    fn lock(&self) -> MutexGuard<'_, ProgressState> {
        lock(&self.0)
    }

    pub(crate) fn set_seed(&self, seed: u64) {
        self.lock().seed = Some(seed);
    }

    pub(crate) fn seed(&self) -> Option<u64> {
        self.lock().seed
    }

    pub(crate) fn position(&self) -> BatchPosition {
        self.lock().position
    }

    /// Returns an independent copy of the progress.
    pub(crate) fn fork(&self) -> LoaderProgress {
        let state = ProgressState { iterators: 0, current: None, ..*self.lock() };
        LoaderProgress(Arc::new(Mutex::new(state)))
    }

    /// Returns the position of the first batch of the next iterator.
    pub(crate) fn next_position(&self) -> BatchPosition {
        let mut state = *self.lock();
        state.end_current();
        state.position
    }

    /// Begins an epoch, and ends the epoch of the earlier iterator.
    pub(crate) fn begin_epoch(&self) -> EpochProgress {
        let mut state = self.lock();
        state.end_current();
        state.iterators += 1;
        state.current = Some(state.iterators);
        EpochProgress { progress: self.clone(), id: state.iterators }
    }

    /// Returns the state by name: `epoch`, `batch`, the sizes, the order, and the `seed` if there is one.
    pub(crate) fn values(&self, sizes: LoaderSizes) -> Vec<(String, Tensor)> {
        let ProgressState { seed, position, .. } = *self.lock();
        let position = [("epoch", position.epoch as i64), ("batch", position.batch as i64)];
        let seed = seed.map(|seed| ("seed", seed as i64));
        let named = position.into_iter().chain(sizes.named()).chain(seed);
        let named = named.map(|(name, value)| (name.to_string(), Tensor::scalar(value, DType::I64)));
        named.chain([(format!("{ORDER}{}", sizes.order), Tensor::zeros(0, DType::Bool))]).collect()
    }

    /// Checks a state from [`values`](Self::values). `commit` of the result sets the position.
    pub(crate) fn prepare_load(
        &self,
        op: &'static str,
        sizes: LoaderSizes,
        state: &StateDict,
    ) -> Result<StateLoad<'_>> {
        let invalid = |reason: String| Error::invalid(op, reason);
        let saved_order = state.keys().find_map(|name| name.strip_prefix(ORDER));
        if let Some(saved) = saved_order.filter(|saved| *saved != sizes.order) {
            return Err(invalid(format!(
                "the saved loader has the order of `{saved}`, but this loader has the order of `{}`; load the state \
                 into a loader with the same sampler and the same option `shuffle`",
                sizes.order
            )));
        }
        // The tensors of `values` are new: the copies into them have no effect, and only the names and shapes matter.
        let load = StateLoad::new(&self.values(sizes), state)?;
        let read_i64 = |name: &str| state[name].try_item::<i64>();
        for (name, value) in sizes.named() {
            let saved = read_i64(name)?;
            if saved != value && name == SETTINGS {
                let reason = "the sampler or stream of the saved loader has the same type but different settings, such \
                              as weights, labels, rank or shuffle buffer; load the state into a loader with the same \
                              settings";
                return Err(invalid(reason.to_string()));
            }
            if saved != value {
                return Err(invalid(format!(
                    "the state was saved with `{name}` = {saved}, but this loader has `{name}` = {value}; load it into \
                     a loader with the same data set, batch size, sampler and options"
                )));
            }
        }
        let (epoch, batch) = (read_i64("epoch")?, read_i64("batch")?);
        if epoch < 0 || batch < 0 || batch > sizes.batches as i64 {
            let reason =
                format!("batch {batch} of epoch {epoch} does not exist; an epoch has {} batches", sizes.batches);
            return Err(invalid(reason));
        }
        let position = BatchPosition { epoch: epoch as usize, batch: batch as usize };
        let seed = if state.contains_key("seed") { Some(read_i64("seed")? as u64) } else { None };
        Ok(load.then(move || {
            let mut state_guard = self.lock();
            (state_guard.seed, state_guard.position, state_guard.current) = (seed, position, None);
            Ok(())
        }))
    }
}

impl EpochProgress {
    /// Changes the progress of the loader, unless a later iterator or a load has replaced this iterator.
    fn update(&self, change: impl FnOnce(&mut ProgressState)) {
        let mut state = self.progress.lock();
        if state.current == Some(self.id) {
            change(&mut state);
        }
    }

    /// Sets the index of the next batch.
    pub(crate) fn advance_to(&self, batch: usize) {
        self.update(|state| state.position.batch = batch);
    }

    /// Ends the epoch.
    pub(crate) fn end(&self) {
        self.update(ProgressState::end_epoch);
    }
}

/// Implements the position methods and `Stateful` for a loader with a field `progress` and a method `sizes`.
macro_rules! positioned_loader {
    (($op:expr) [$($generics:tt)*] $loader:ty) => {
        impl<$($generics)*> $loader {
            /// Returns the position of the next batch.
            pub fn position(&self) -> $crate::BatchPosition {
                self.progress.position()
            }

            /// Returns a snapshot of the position in `i64`: `epoch`, `batch`, and the `seed` if the loader has one. It
            /// also contains the properties that must be equal in a loader that loads it: the `samples`, the batch
            /// `size`, the number of `batches`, `drop_last`, and the name and the settings of the sampler.
            ///
            /// A batch counts as consumed when the iterator has returned it. Save the state after the step that trains
            /// on the batch.
            pub fn state_dict(&self) -> pellucid_nn::StateDict {
                self.progress.values(self.sizes()).into_iter().collect()
            }

            /// Restores the position and the seed of a snapshot. The next call of `epoch` returns the rest of the saved
            /// epoch, with bit-identical batches. An existing iterator continues unchanged, but no longer advances the
            /// position.
            ///
            /// # Errors
            /// [`Error::StateDict`](pellucid_tensor::Error::StateDict) if the state dict is not from a loader;
            /// [`Error::InvalidArgument`](pellucid_tensor::Error::InvalidArgument) if only one of the two loaders
            /// shuffles, if their samplers or streams have different names or settings, if the size of the data set,
            /// the size or the number of the batches or `drop_last` differ, or if the position does not exist. On
            /// error nothing is changed.
            pub fn load_state_dict(&self, state: &pellucid_nn::StateDict) -> pellucid_tensor::Result<()> {
                pellucid_nn::Stateful::prepare_load(self, state)?.commit()
            }
        }

        /// The state is the position, as in [`state_dict`](Self::state_dict).
        impl<$($generics)*> pellucid_nn::Stateful for $loader {
            fn state(&self) -> pellucid_tensor::Result<Vec<(String, pellucid_tensor::Tensor)>> {
                Ok(self.progress.values(self.sizes()))
            }

            fn prepare_load(
                &self,
                state: &pellucid_nn::StateDict,
            ) -> pellucid_tensor::Result<pellucid_nn::StateLoad<'_>> {
                self.progress.prepare_load($op, self.sizes(), state)
            }
        }
    };
}
pub(crate) use positioned_loader;

/// Returns an error for a loader whose epoch has no batches: a loop over it would train nothing.
pub(crate) fn check_not_empty(op: &'static str, sizes: LoaderSizes) -> Result<()> {
    if sizes.batches > 0 {
        return Ok(());
    }
    let help = match sizes.samples {
        0 => "; the data set is empty: check how it was loaded",
        _ => "; make the batches smaller, or do not drop the last batch",
    };
    let reason = format!("an epoch of {} samples in batches of {} has no batch{help}", sizes.samples, sizes.size);
    Err(Error::invalid(op, reason))
}
