//! Compares every native kernel with the CPU backend on an adapter of this machine.
//!
//! Without an adapter the tests print the reason and pass, unless the environment variable `PELLUCID_REQUIRE_GPU` is 1.

// The table of errors is written for `docs/wgpu.md`.
#![allow(clippy::print_stdout)]

#[path = "../../../pellucid-gpu/tests/kernels/accuracy.rs"]
mod accuracy;
#[path = "../../../pellucid-gpu/tests/kernels/attention.rs"]
mod attention;
mod backend;
mod bind_groups;
#[path = "../../../pellucid-gpu/tests/kernels/conv.rs"]
mod conv;
#[path = "../../../pellucid-gpu/tests/kernels/copy.rs"]
mod copy;
#[path = "../../../pellucid-gpu/tests/kernels/devices.rs"]
mod devices;
mod errors;
mod features;
#[path = "../../../pellucid-gpu/tests/kernels/gather.rs"]
mod gather;
#[path = "../../../pellucid-gpu/tests/kernels/harness.rs"]
mod harness;
#[path = "../../../pellucid-gpu/tests/kernels/map.rs"]
mod map;
#[path = "../../../pellucid-gpu/tests/kernels/matmul.rs"]
mod matmul;
#[path = "../../../pellucid-gpu/tests/kernels/max_pool.rs"]
mod max_pool;
#[path = "../../../pellucid-gpu/tests/kernels/plans.rs"]
mod plans;
#[path = "../../../pellucid-gpu/tests/kernels/random.rs"]
mod random;
#[path = "../../../pellucid-gpu/tests/kernels/recurrent.rs"]
mod recurrent;
#[path = "../../../pellucid-gpu/tests/kernels/reduce.rs"]
mod reduce;
#[path = "../../../pellucid-gpu/tests/kernels/row.rs"]
mod row;
#[path = "../../../pellucid-gpu/tests/kernels/scan.rs"]
mod scan;
#[path = "../../../pellucid-gpu/tests/kernels/scatter.rs"]
mod scatter;
#[path = "../../../pellucid-gpu/tests/kernels/search.rs"]
mod search;
#[path = "../../../pellucid-gpu/tests/kernels/sort.rs"]
mod sort;
#[path = "../../../pellucid-gpu/tests/kernels/sparse_product.rs"]
mod sparse_product;
mod timings;
