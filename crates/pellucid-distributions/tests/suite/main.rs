//! Tests of distributions: values against PyTorch and SciPy, gradients, samples, shapes, errors, captured steps.

mod captured;
mod errors;
mod families;
mod gradients;
mod samples;
mod values;
