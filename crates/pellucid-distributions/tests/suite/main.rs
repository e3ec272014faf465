//! Tests of distributions: comparison with PyTorch and SciPy, gradients, samples, shapes, errors, captured steps.

mod captured;
mod edges;
mod errors;
mod families;
mod gradients;
mod large;
mod samples;
mod values;
