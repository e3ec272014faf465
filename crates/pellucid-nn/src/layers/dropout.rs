//! Dropout: of elements, of channels, of whole samples.
//!
//! What is left out is drawn from the thread's generator on the device, so that a replayed step draws anew. In
//! evaluation everything passes.

use super::spatial::{batched, by_axes};
use crate::layer::Layer;
use crate::parameter::Training;
use pellucid_derive::Module;
use pellucid_tensor::{Error, Result, Tensor, ops, unwrap};

/// A probability p, whether there is training, and what happens to x then.
macro_rules! dropouts {
    ($($(#[$doc:meta])* $name:ident $([$n:ident: $one:ident, $two:ident, $three:ident])? ($x:ident, $p:ident) $drop:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Module)]
        $(#[module(class = by_axes::<_, $n>([stringify!($one), stringify!($two), stringify!($three)]))])?
        pub struct $name $(<const $n: usize>)? {
            p: f64,
            training: Training,
        }

        impl $(<const $n: usize>)? $name $(<$n>)? {
            /// Drops with probability `p`.
            ///
            /// # Panics
            /// If `p` is not in [0, 1].
            #[track_caller]
            pub fn new(p: f64) -> Self {
                $name { p: probability(p), training: Training::new() }
            }

            /// The probability with which something is dropped.
            pub fn p(&self) -> f64 {
                self.p
            }
        }

        impl $(<const $n: usize>)? Layer for $name $(<$n>)? {
            /// Of the input's shape and dtype, which is a float.
            fn compute(&self, $x: &Tensor) -> Result<Tensor> {
                let $p = self.p;
                if self.training.get() && $p > 0.0 { $drop } else { Ok($x.clone()) }
            }
        }
    )*};
}

dropouts! {
    /// In training, sets each element to 0 with probability p and divides the others by 1 − p, so that
    /// the expectation stays; passes everything on in evaluation (Srivastava et al. 2014).
    Dropout(x, p) ops::dropout(x, p);
    /// In training, sets each channel of x `[B, C, spatial..]` or `[C, spatial..]` to 0 with probability p and divides the
    /// others by 1 − p (Tompson et al. 2015); N is the number of spatial axes.
    ChannelDropout[N: Dropout1d, Dropout2d, Dropout3d](x, p)
        batched::<N>("dropout", x, |x| ops::feature_dropout(x, p));
    /// Dropout for self-normalising networks (Klambauer et al. 2017): in training, elements that are dropped get the value
    /// of `selu` at −∞, and all is scaled and moved so that a mean of 0 and a variance of 1 stay.
    AlphaDropout(x, p) ops::alpha_dropout(x, p);
    /// [`AlphaDropout`] of whole channels of x `[B, C, ..]`.
    FeatureAlphaDropout(x, p) ops::feature_alpha_dropout(x, p);
    /// Stochastic depth (Huang et al. 2016): in training, sets each sample of x `[B, ..]` to 0 with probability p and divides
    /// the others by 1 − p. Around a residual branch, samples leave it out.
    DropPath(x, p) ops::squeeze(&ops::feature_dropout(&ops::unsqueeze(x, 0)?, p)?, 0);
}

/// [`ChannelDropout`] of `[B, C, L]` or `[C, L]`.
pub type Dropout1d = ChannelDropout<1>;
/// [`ChannelDropout`] of `[B, C, H, W]` or `[C, H, W]`.
pub type Dropout2d = ChannelDropout<2>;
/// [`ChannelDropout`] of `[B, C, D, H, W]` or `[C, D, H, W]`.
pub type Dropout3d = ChannelDropout<3>;

#[track_caller]
fn probability(p: f64) -> f64 {
    if !(0.0..=1.0).contains(&p) {
        unwrap::<()>(Err(Error::invalid("dropout", format!("p must be in [0, 1], got {p}"))));
    }
    p
}
