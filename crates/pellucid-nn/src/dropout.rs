//! Dropout.

use crate::layer::Layer;
use crate::parameter::Training;
use pellucid_derive::Module;
use pellucid_tensor::{Error, Result, Tensor, ops, unwrap};

/// In training, sets each element to 0 with probability p and divides the others by 1 − p, so that
/// the expectation stays; passes everything on in evaluation (Srivastava et al. 2014).
///
/// The mask comes from the thread's generator on the device, so that a replayed step draws a new one.
#[derive(Clone, Debug, Module)]
pub struct Dropout {
    p: f64,
    training: Training,
}

impl Dropout {
    /// Drops with probability `p`.
    ///
    /// # Panics
    /// If `p` is not in [0, 1].
    #[track_caller]
    pub fn new(p: f64) -> Dropout {
        if !(0.0..=1.0).contains(&p) {
            unwrap::<()>(Err(Error::invalid("dropout", format!("p must be in [0, 1], got {p}"))));
        }
        Dropout { p, training: Training::new() }
    }

    /// The probability with which an element is dropped.
    pub fn p(&self) -> f64 {
        self.p
    }
}

impl Layer for Dropout {
    /// Of the input's shape and dtype, which is a float.
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        if self.training.get() && self.p > 0.0 { ops::dropout(x, self.p) } else { Ok(x.clone()) }
    }
}
