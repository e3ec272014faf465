//! Attention, transformers and recurrent layers: equal to PyTorch with the same weights, forward and backward. Decoding
//! step by step equals decoding in one call, and replayed steps equal eager steps.

mod decoding;
mod fixtures;
mod replay;
