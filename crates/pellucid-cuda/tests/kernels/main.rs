//! Compares every native kernel with the CPU backend on a GPU, or on the test device. All GPU backends have these
//! tests.
//!
//! Without a device the tests print the reason and pass, unless the environment variable `PELLUCID_REQUIRE_CUDA` is 1.

// The tests of all backends print errors for the documents.
#![allow(clippy::print_stdout)]

mod backend;
#[path = "../../../pellucid-gpu/tests/kernels/mod.rs"]
mod kernels;
