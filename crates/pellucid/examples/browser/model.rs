//! The model, which the native program trains and the page runs.

use pellucid::prelude::*;

/// Returns the model: 784 pixels, 128 features, 10 scores.
pub(crate) fn classifier() -> Sequential {
    sequential![Flatten::new(), Linear::new(784, 128), Relu, Linear::new(128, 10)]
}
