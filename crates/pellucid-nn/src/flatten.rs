//! Layers that only rearrange.

use crate::layer::Layer;
use pellucid_derive::Module;
use pellucid_tensor::{Result, Tensor, ops};

/// One axis of several: `[N, d..]` becomes `[N, Πd]`, or any other run of axes one axis.
#[derive(Clone, Copy, Debug, Module)]
pub struct Flatten {
    /// The first axis of the run; 1.
    pub start: isize,
    /// The last one; −1, the last.
    pub end: isize,
}

impl Flatten {
    /// Every sample as a vector.
    pub fn new() -> Flatten {
        Flatten { start: 1, end: -1 }
    }
}

impl Default for Flatten {
    fn default() -> Flatten {
        Flatten::new()
    }
}

impl Layer for Flatten {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        ops::flatten(x, self.start, self.end)
    }
}
