//! Methods of every layer other than the computation: build, shapes, capture, hooks, freezing, summaries.

mod building;
mod caches;
mod errors;
mod hooks;
mod options;
mod structure;

use pellucid_nn::{Linear, Relu, Sequential, sequential};

fn mlp() -> Sequential {
    sequential![Linear::new(4, 3), Relu, Linear::new(3, 2)]
}
