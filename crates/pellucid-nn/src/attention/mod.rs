//! Multi-head attention, and what belongs to it: masks, positions, and a cache of keys and values.
//!
//! The mathematics of one head is `pellucid_tensor::ops::scaled_dot_product_attention`; here are the projections, and the
//! way to heads and back.

mod cache;
mod mask;
mod multihead;
mod positions;
mod rotary;

pub use cache::KvCache;
pub use mask::{Masks, causal_mask};
pub use multihead::{InProj, MultiheadAttention, MultiheadAttentionOptions};
pub use positions::{LearntPositions, SinusoidalPositions, sinusoidal_positions};
pub use rotary::{Pairs, Rotary};
