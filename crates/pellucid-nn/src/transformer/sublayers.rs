//! The sublayers of encoder and decoder layers: attention and feed-forward, each with a residual connection and a norm.

use super::TransformerOptions;
use crate::layer::Layer;
use crate::layers::{Dropout, LayerNorm, Linear};
use pellucid_tensor::{Result, Tensor, ops};

/// A sublayer that is being run: its norm, and the dropout of its output.
pub(super) struct Sublayer<'a> {
    pub(super) options: &'a TransformerOptions,
    pub(super) norm: &'a LayerNorm,
    pub(super) dropout: &'a Dropout,
}

impl Sublayer<'_> {
    /// Returns x + dropout(f(norm(x))) with `norm_first`, else norm(x + dropout(f(x))).
    pub(super) fn run(&self, x: &Tensor, f: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
        if self.options.norm_first {
            let y = f(&self.norm.try_forward(x)?)?;
            return ops::add(x, self.dropout.try_forward(&y)?);
        }
        let y = f(x)?;
        self.norm.try_forward(&ops::add(x, self.dropout.try_forward(&y)?)?)
    }

    /// Runs the feed-forward sublayer, linear2(dropout(activation(linear1(x)))) with residual connection and norm.
    pub(super) fn feed_forward(&self, x: &Tensor, linear: [&Linear; 2], hidden_dropout: &Dropout) -> Result<Tensor> {
        self.run(x, |x| {
            let hidden = (self.options.activation)(&linear[0].try_forward(x)?)?;
            linear[1].try_forward(&hidden_dropout.try_forward(&hidden)?)
        })
    }
}
