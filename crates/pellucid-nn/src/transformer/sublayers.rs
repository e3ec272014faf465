//! The sublayers of encoder and decoder layers: attention and feed-forward, each with a residual connection and a norm.

use super::TransformerOptions;
use crate::layer::Layer;
use crate::layers::{Dropout, LayerNorm, Linear};
use crate::visit::Visitor;
use pellucid_tensor::{Result, Tensor, ops};

/// The dropouts and settings that all sublayers of a layer share.
#[derive(Clone, Debug)]
pub(super) struct Sublayers {
    /// The dropout after the activation.
    hidden_dropout: Dropout,
    /// The dropout of each sublayer's output.
    residual_dropout: Dropout,
    norm_first: bool,
    activation: fn(&Tensor) -> Result<Tensor>,
}

impl Sublayers {
    pub(super) fn new(options: &TransformerOptions) -> Result<Sublayers> {
        Ok(Sublayers {
            hidden_dropout: Dropout::try_new(options.dropout)?,
            residual_dropout: Dropout::try_new(options.dropout)?,
            norm_first: options.norm_first,
            activation: options.activation,
        })
    }

    /// Visits the dropouts as fields of the current module.
    pub(super) fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.field("dropout", &self.hidden_dropout);
        visitor.field("dropout1", &self.residual_dropout);
    }

    /// Returns x + dropout(f(norm(x))) with `norm_first`, else norm(x + dropout(f(x))).
    pub(super) fn residual(
        &self,
        x: &Tensor,
        norm: &LayerNorm,
        f: impl FnOnce(&Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        if self.norm_first {
            let y = f(&norm.try_forward(x)?)?;
            return ops::add(x, self.residual_dropout.try_forward(&y)?);
        }
        let y = f(x)?;
        norm.try_forward(&ops::add(x, self.residual_dropout.try_forward(&y)?)?)
    }

    /// Runs the feed-forward sublayer, linear2(dropout(activation(linear1(x)))) with residual connection and norm.
    pub(super) fn feed_forward(&self, x: &Tensor, norm: &LayerNorm, linear: [&Linear; 2]) -> Result<Tensor> {
        self.residual(x, norm, |x| {
            let hidden = (self.activation)(&linear[0].try_forward(x)?)?;
            linear[1].try_forward(&self.hidden_dropout.try_forward(&hidden)?)
        })
    }
}
