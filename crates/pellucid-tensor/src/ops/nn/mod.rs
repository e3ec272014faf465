//! Neural network operations: windows, attention, recurrence, normalization, embeddings, losses.

pub(super) mod attention;
pub(super) mod distance;
pub(super) mod dropout;
pub(super) mod embedding;
pub(super) mod embedding_bag;
pub(super) mod gate;
pub(super) mod gumbel_softmax;
pub(super) mod loss;
pub(super) mod normalize;
pub(super) mod recurrent;
mod row_sums;
pub(super) mod window;
