//! Compares every native kernel with the CPU backend on an adapter of this machine.
//!
//! Without an adapter the tests print the reason and pass, unless the environment variable `PELLUCID_REQUIRE_GPU` is 1.

mod accuracy;
mod copies;
mod devices;
mod harness;
mod maps;
mod products;
mod reductions;
mod rows;
