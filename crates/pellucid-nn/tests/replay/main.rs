//! The proof of capture through the whole framework: training that is recorded once and launched many times, or run
//! lazily, ends where eager training does, bit for bit: losses of every step, parameters, optimizer state, statistics,
//! generator.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `training` | what a training is, and the ways to run it |
//! | `models` | trainings of several kinds, in `f32` and `f64`, alone and side by side |
//! | `changes` | whatever changes between launches, one by one: the step sees it |

// `#[derive(Module)]` names what it needs as `::pellucid::nn::..`.
extern crate pellucid_nn as pellucid;

mod changes;
mod models;
mod training;
