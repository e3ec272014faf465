//! Random number generators: a key and a counter, on the device.

use crate::engine;
use crate::ops;
use crate::tensor::Tensor;
use std::cell::RefCell;

/// A stream of random numbers (Philox 4×32-10; Salmon et al. 2011): the same on every device and for
/// every number of threads. Its state is an `i64 [2]` tensor, (key, counter), that every draw reads
/// and advances on the device, so a replayed step goes on drawing. Clones share the stream.
#[derive(Clone, Debug)]
pub struct Generator {
    state: Tensor,
}

thread_local! {
    static DEFAULT: RefCell<Option<Generator>> = const { RefCell::new(None) };
}

impl Generator {
    /// The stream of this key, from its start; one that is made inside a captured step starts in every launch.
    pub fn new(seed: u64) -> Generator {
        Generator { state: Tensor::from([seed as i64, 0]) }
    }

    /// (key, counter), `i64 [2]`.
    pub fn state(&self) -> &Tensor {
        &self.state
    }

    /// Restarts the stream with another key.
    ///
    /// # Panics
    /// While a step is captured.
    #[track_caller]
    pub fn reseed(&self, seed: u64) {
        crate::panic::unwrap(ops::copy_(&self.state, &Tensor::from([seed as i64, 0])));
    }
}

impl Default for Generator {
    /// The thread's own generator, which operations use that are given none. Its key is 0 until
    /// [`manual_seed`] sets another.
    fn default() -> Generator {
        // It goes on from launch to launch, though a captured step be the first to ask for it.
        DEFAULT.with_borrow_mut(|g| g.get_or_insert_with(|| engine::eager(|| Generator::new(0))).clone())
    }
}

/// Restarts the thread's generator with this key.
///
/// ```
/// use pellucid_tensor::{manual_seed, DType, Tensor};
/// manual_seed(7);
/// let a = Tensor::rand([3], DType::F32);
/// manual_seed(7);
/// assert_eq!(a.to_vec::<f32>(), Tensor::rand([3], DType::F32).to_vec::<f32>());
/// ```
#[track_caller]
pub fn manual_seed(seed: u64) {
    Generator::default().reseed(seed);
}
