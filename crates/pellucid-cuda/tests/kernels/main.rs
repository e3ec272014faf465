//! Compares every native kernel with the CPU backend on a GPU, or on the test device. All GPU backends have these
//! tests.
//!
//! Without a device the tests print the reason and pass, unless the environment variable `PELLUCID_REQUIRE_CUDA` is 1.

// The tests of all backends print errors for the documents.
#![allow(clippy::print_stdout)]

mod backend;

#[path = "../../../pellucid-gpu/tests/kernels/accuracy.rs"]
mod accuracy;
#[path = "../../../pellucid-gpu/tests/kernels/attention.rs"]
mod attention;
#[path = "../../../pellucid-gpu/tests/kernels/conv.rs"]
mod conv;
#[path = "../../../pellucid-gpu/tests/kernels/copy.rs"]
mod copy;
#[path = "../../../pellucid-gpu/tests/kernels/devices.rs"]
mod devices;
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
