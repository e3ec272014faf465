//! A catalogue of differentiable operations, and the check of derivatives of any order that two programs share.
//!
//! `fuzz_gradients` checks random expressions of these operations; `derivative_orders` measures every operation alone.
#![forbid(unsafe_code)]

pub mod derivatives;
