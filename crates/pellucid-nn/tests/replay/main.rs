//! Captured training runs. Recorded or lazy training is bit-identical to eager training: the losses of every step, and
//! the final parameters, optimizer state, statistics and generator state.
//!
//! | module | contents |
//! | --- | --- |
//! | `training` | a training, and the modes of running it |
//! | `models` | training runs of several kinds, in `f32` and `f64`, alone and side by side, and on other devices |
//! | `changes` | one test for each value that may change between launches |
//! | `device` | other devices |

mod changes;
#[path = "../reference/device.rs"]
mod device;
mod models;
mod training;
