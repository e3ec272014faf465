//! What several programs share: a catalogue of differentiable operations with a check of derivatives of any order, and
//! a network.
//!
//! `fuzz_gradients` checks random expressions of these operations; `derivative_orders` measures each operation.
//!
//! | module | contents |
//! | --- | --- |
//! | [`derivatives`] | the catalogue, and the check by differences |
//! | [`resnet`] | ResNet-18 |
//! | [`sweep`] | every operation beside PyTorch |
#![forbid(unsafe_code)]

pub mod derivatives;
pub mod resnet;
pub mod sweep;
