//! Recorded training steps: recordings, trainers, paths.

mod accumulation;
mod changes_between_launches;
mod check;
mod coverage;
mod errors;
mod hooks;
mod inference;
mod inference_axes;
mod mirror;
mod models;
mod paths;
mod pointers;
mod steps;
mod targets;
mod trainer;
mod training_step;
