//! Multi-head attention with masks, position encodings, and a key-value cache.
//!
//! Each head computes `pellucid_tensor::ops::scaled_dot_product_attention`; this module adds the projections, and
//! splits and joins the heads.

mod cache;
mod mask;
mod multihead;
mod positions;
mod rotary;

pub use cache::KvCache;
pub(crate) use cache::append_after;
pub use mask::{AttentionMasks, causal_mask, try_causal_mask};
pub use multihead::{InProj, MultiheadAttention, MultiheadAttentionOptions};
pub use positions::{LearnedPositions, SinusoidalPositions, sinusoidal_positions};
pub use rotary::{Rotary, RotaryPairing};
