//! The intermediate representation of Pellucid: element types ([`DType`]), memory layouts ([`Shape`], [`Layout`]),
//! formulas and kernels ([`formula`](mod@formula), [`kernel`]), plans of kernels ([`plan`]), and the interface of a
//! device ([`backend`]).
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
