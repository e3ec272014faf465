//! How the backend uses the driver: copies, memory and failures. The test device counts calls and reports faults; on a
//! GPU, only the results are compared.
//!
//! Without a device the tests print the reason and pass, unless the environment variable `PELLUCID_REQUIRE_CUDA` is 1.

// Tests that do not run print the reason.
#![allow(clippy::print_stdout)]

mod failures;
mod harness;
mod pool;
mod products;
#[path = "../contract/symbols.rs"]
mod symbols;
mod timer;
mod uploads;
