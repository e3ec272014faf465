//! Eager, lazy and captured execution compute the same bits, and a captured step keeps its contract.

mod capture;
mod capture_errors;
mod captured_tensors;
mod deferred;
mod lazy;
pub mod programs;
mod random;
mod recapture;

pub use random::SplitMix64;
