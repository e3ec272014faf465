//! Compares every native kernel with the CPU backend on an adapter of this machine.
//!
//! Without an adapter the tests print the reason and pass, unless the environment variable `PELLUCID_REQUIRE_GPU` is 1.

// The table of errors is written for `docs/wgpu.md`.
#![allow(clippy::print_stdout)]

mod accuracy;
mod attentions;
mod convs;
mod copies;
mod devices;
mod errors;
mod features;
mod gathers;
mod harness;
mod maps;
mod plans;
mod pools;
mod products;
mod randoms;
mod recurrents;
mod reductions;
mod rows;
mod scans;
mod scatters;
mod sorts;
mod sparse_products;
mod timings;
