//! Recorded training steps: plans, recordings, trainers, paths.

extern crate pellucid_nn as pellucid;

mod coverage;
mod models;
mod moved;
mod paths;
mod plan;
mod refused;
mod steps;
mod trainer;
