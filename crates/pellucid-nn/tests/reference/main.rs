//! Layers and losses against PyTorch, whose values are in `reference.safetensors`, and other checks of all layers and
//! losses.

mod device;
mod file;
mod layers;
mod losses;
mod replay;
mod table;
mod two_inputs;
