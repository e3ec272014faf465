//! The words of Pellucid: what a tensor's elements are ([`DType`]), how they lie in memory
//! ([`Shape`], [`Layout`]), what can be computed ([`formula`](mod@formula), [`kernel`]), in which order
//! ([`plan`]), and what a device must be able to do ([`backend`]).
//!
//! This crate is pure: it executes nothing, reads and writes no file, and contains no `unsafe`.
#![forbid(unsafe_code)]

pub mod backend;
pub mod borrow;
mod dtype;
mod error;
pub mod formula;
mod inline_vec;
pub mod kernel;
pub mod plan;
mod shape;

pub use dtype::{Compute, DType, Element, Scalar};
pub use error::{Error, Misshaped, Result};
pub use half::{bf16, f16};
pub use inline_vec::InlineVec;
pub use shape::{INLINE_AXES, Layout, Shape, Strides};
