//! A catalogue of differentiable operations, and a check of derivatives of any order, shared by two programs.
//!
//! `fuzz_gradients` checks random expressions of these operations; `derivative_orders` measures each operation.
//!
//! | module | contents |
//! | --- | --- |
//! | [`derivatives`] | the catalogue, and the check by differences |
#![forbid(unsafe_code)]

pub mod derivatives;
