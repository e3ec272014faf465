//! Runs of `Trainer`: bit equality, files and errors.

#[path = "../../../pellucid/tests/scratch/mod.rs"]
#[allow(dead_code, reason = "other test programs use all of it")]
mod scratch;

mod bits;
mod changed;
mod continued;
mod endings;
mod evaluations;
mod failures;
mod killed;
mod logged;
mod losses;
mod moved;
mod restored;
mod resumed;
mod runs;
mod settings;
mod train_metrics;
mod validations;
mod weights;
