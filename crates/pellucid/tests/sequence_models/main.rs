//! Attention, transformers and recurrent layers: equal to PyTorch's on its weights, forward and backward; decoding step by
//! step equal to decoding at once; replayed steps equal to eager ones.

mod decoding;
mod fixtures;
mod replay;
