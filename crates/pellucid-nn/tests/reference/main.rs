//! Layers and losses against references, of PyTorch in `reference.safetensors` or in Rust in `own.rs`, and other checks
//! of all layers and losses.

mod device;
mod file;
mod layers;
mod losses;
mod near;
mod own;
mod replay;
mod table;
mod two_inputs;
