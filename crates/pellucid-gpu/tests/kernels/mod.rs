//! The tests of all kernel families, for every GPU backend. A test program includes this module and has a module
//! `backend` with the device under test: `tests/adapter` of `pellucid-wgpu`, and `tests/kernels` of `pellucid-cuda`.

mod accuracy;
mod attention;
mod conv;
mod copy;
mod devices;
mod gather;
pub(crate) mod harness;
mod map;
mod matmul;
mod max_pool;
pub(crate) mod plans;
mod random;
mod recurrent;
mod reduce;
pub(crate) mod row;
mod scan;
mod scatter;
mod search;
mod sort;
mod sparse_product;
