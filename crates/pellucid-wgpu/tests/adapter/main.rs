//! Compares every native kernel with the CPU backend on an adapter of this machine.
//!
//! Without an adapter the tests print the reason and pass, unless the environment variable `PELLUCID_REQUIRE_GPU` is 1.

// The table of errors is written for `docs/wgpu.md`.
#![allow(clippy::print_stdout)]

mod accuracy;
mod attention;
mod conv;
mod copy;
mod devices;
mod errors;
mod features;
mod gather;
mod harness;
mod map;
mod matmul;
mod max_pool;
mod plans;
mod random;
mod recurrent;
mod reduce;
mod row;
mod scan;
mod scatter;
mod search;
mod sort;
mod sparse_product;
mod timings;
