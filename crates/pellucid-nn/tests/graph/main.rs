//! Recorded training steps: plans, recordings, trainers, paths.

extern crate pellucid_nn as pellucid;

mod changes_between_launches;
mod coverage;
mod errors;
mod inference;
mod models;
mod paths;
mod plan;
mod steps;
mod trainer;
