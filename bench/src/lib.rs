//! Code that several benchmark programs share: a catalogue of differentiable operations, a check of derivatives of any
//! order, a network, and the sweep.
//!
//! `fuzz_gradients` checks random expressions of these operations; `derivative_orders` measures each operation.
//!
//! | module | contents |
//! | --- | --- |
//! | [`derivatives`] | the catalogue, and the check by differences |
//! | [`resnet`] | ResNet-18 |
//! | [`sweep`] | every operation, compared with PyTorch |
#![forbid(unsafe_code)]

pub mod derivatives;
pub mod resnet;
pub mod sweep;
