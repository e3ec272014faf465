//! Recorded training steps: plans, recordings, trainers, paths.

mod accumulation;
mod changes_between_launches;
mod check;
mod coverage;
mod errors;
mod hooks;
mod inference;
mod inference_axes;
mod models;
mod paths;
mod plan;
mod pointers;
mod steps;
mod targets;
mod trainer;
mod training_step;
mod updates;
