//! Tests of distributions: comparison with PyTorch and SciPy, gradients, samples, shapes, errors, captured steps.

mod accuracy;
mod captured;
mod edges;
mod errors;
mod families;
mod gradients;
mod large;
mod repeated;
mod samples;
mod values;
