//! The contract of CUDA that the backend relies on, against the libraries that are loaded: the test device
//! (`.ci/cuda`) or those of a GPU. Both must agree. The module `reports` tests what only the test device reports.
//!
//! Without the libraries the tests print the reason and pass, unless the environment variable `PELLUCID_REQUIRE_CUDA`
//! is 1.

// Tests that do not run print the reason.
#![allow(clippy::print_stdout)]

mod capture;
mod capture_errors;
mod cublaslt;
mod device;
mod graph_updates;
mod graphs;
mod harness;
mod kernels;
mod launches;
mod memory;
mod modules;
mod pools;
mod reports;
mod safe_types;
mod streams;
mod symbols;
mod warps;
