//! Metrics: comparison with scikit-learn, splits into batches, forms of inputs, and failed calls.

mod forms;
mod references;
mod rejected;
