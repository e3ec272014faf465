//! Layers and losses against PyTorch's, whose values are in `reference.safetensors`; and what all of them can do
//! besides.

mod file;
mod layers;
mod losses;
mod replay;
mod table;
mod two;
