//! One engine, two modes: what is deferred computes the same bits, and a captured step keeps its
//! contract.

mod bound;
mod capture;
mod lazy;
pub mod programs;
mod random;
mod refused;
mod replaced;

pub use random::Dice;
