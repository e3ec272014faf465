//! Data sets and batches.

mod batches;
#[cfg(feature = "data")]
mod idx;
#[cfg(feature = "data")]
mod mnist;

pub use batches::{BatchPosition, Batches};
#[cfg(feature = "data")]
pub use mnist::{Digits, Mnist};
