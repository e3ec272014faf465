//! Compares every native kernel with the CPU backend on an adapter of this machine.
//!
//! Without an adapter the tests print the reason and pass, unless the environment variable `PELLUCID_REQUIRE_GPU` is 1.

// The table of errors is written for `docs/wgpu.md`.
#![allow(clippy::print_stdout)]

mod backend;
mod bind_groups;
mod errors;
mod features;
#[path = "../../../pellucid-gpu/tests/kernels/mod.rs"]
mod kernels;
mod timings;
