//! Dropout of elements, of channels, and of entire samples.
//!
//! Dropout masks are drawn from the thread's generator on the device, so a replayed step draws new ones. In evaluation
//! the layers are the identity.

use super::spatial::{batched, by_axes};
use crate::layer::Layer;
use crate::parameter::TrainingMode;
use pellucid_derive::{Module, panicking_form};
use pellucid_tensor::OptionRange;
use pellucid_tensor::{Result, Tensor, ops, unwrap};

/// Defines dropout layers: a probability p, the training mode, and the operation in training.
macro_rules! dropouts {
    ($($(#[$doc:meta])* $name:ident $([$n:ident: $one:ident, $two:ident, $three:ident])? ($x:ident, $p:ident) $drop:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Module)]
        #[module(display)]
        $(#[module(class = by_axes::<_, $n>([stringify!($one), stringify!($two), stringify!($three)]))])?
        pub struct $name $(<const $n: usize>)? {
            /// The probability of dropping an element, a channel or a sample.
            pub p: f64,
            training: TrainingMode,
        }

        impl $(<const $n: usize>)? $name $(<$n>)? {
            /// Creates a layer that drops with probability `p`.
            ///
            /// # Errors
            /// [`Error::InvalidArgument`] if `p` is not in [0, 1].
            #[panicking_form]
            pub fn try_new(p: f64) -> Result<Self> {
                Ok($name { p: probability(p)?, training: TrainingMode::new() })
            }
        }

        impl $(<const $n: usize>)? Layer for $name $(<$n>)? {
            /// Returns a tensor of the input's shape and dtype, which must be a float.
            fn compute(&self, $x: &Tensor) -> Result<Tensor> {
                let $p = self.p;
                if self.training.get() && $p > 0.0 { $drop } else { Ok($x.clone()) }
            }
        }
    )*};
}

dropouts! {
    /// In training, sets each element to 0 with probability p and divides the others by 1 − p, which
    /// keeps expectations unchanged; the identity in evaluation (Srivastava et al. 2014).
    Dropout(x, p) ops::dropout(x, p);
    /// In training, sets each channel of x `[B, C, spatial..]` or `[C, spatial..]` to 0 with probability p and divides
    /// the others by 1 − p (Tompson et al. 2015); N is the number of spatial axes.
    ChannelDropout[N: Dropout1d, Dropout2d, Dropout3d](x, p)
        batched::<N>("dropout", x, |x| ops::feature_dropout(x, p));
    /// Dropout for self-normalizing networks (Klambauer et al. 2017): in training, dropped elements are replaced by the
    /// limit of `selu` at −∞; an affine map then restores mean 0 and variance 1.
    AlphaDropout(x, p) ops::alpha_dropout(x, p);
    /// [`AlphaDropout`] of entire channels of x `[B, C, ..]`.
    FeatureAlphaDropout(x, p) ops::feature_alpha_dropout(x, p);
    /// Stochastic depth (Huang et al. 2016): in training, sets each sample of x `[B, ..]` to 0 with probability p and
    /// divides the others by 1 − p. In a residual branch, dropped samples skip the branch.
    #[doc(alias = "StochasticDepth")]
    DropPath(x, p) ops::squeeze(&ops::feature_dropout(&ops::unsqueeze(x, 0)?, p)?, 0);
}

/// [`ChannelDropout`] of `[B, C, L]` or `[C, L]`.
pub type Dropout1d = ChannelDropout<1>;
/// [`ChannelDropout`] of `[B, C, H, W]` or `[C, H, W]`.
pub type Dropout2d = ChannelDropout<2>;
/// [`ChannelDropout`] of `[B, C, D, H, W]` or `[C, D, H, W]`.
pub type Dropout3d = ChannelDropout<3>;

/// Returns `p` if it is a probability.
fn probability(p: f64) -> Result<f64> {
    OptionRange::PROBABILITY.check("dropout", "p", p, 0.5).map(|()| p)
}
