//! Eager, lazy and captured execution are bit-identical, and a captured step keeps its contract.

mod capture;
mod capture_errors;
mod capture_threads;
mod captured_tensors;
mod deferred;
mod fallback;
mod fusion;
mod lazy;
pub mod plan_fuzz;
mod plans;
pub mod programs;
mod recapture;

pub use plan_fuzz::rng::SplitMix64;
