//! The intermediate representation of Pellucid: element types ([`DType`]), memory layouts ([`Shape`], [`Layout`]),
//! formulas and kernels ([`formula`](mod@formula), [`kernel`]), plans of kernels ([`plan`]), and the interface of a
//! device ([`backend`]).
//!
//! This crate is pure: it runs no kernel, reads and writes no file, and contains no `unsafe`. A scalar evaluator of
//! formulas is the reference for tests.
//!
//! | module | contents |
//! | --- | --- |
//! | [`backend`] | the interface of a device: [`Backend`](backend::Backend) and its storages |
//! | [`borrow`] | the borrow protocol of storages: many readers or one writer while a kernel runs |
//! | `dtype` | [`DType`] and type promotion; [`Scalar`] |
//! | `error` | [`Error`], the error type of all operations |
//! | [`formula`](mod@formula) | the language of elementwise and row operations: build, simplify, differentiate, compile, print |
//! | `inline_vec` | [`InlineVec`], a vector that stores short lists inline |
//! | `integer` | [`Integer`], the integer types in which lengths and axes are written |
//! | [`kernel`] | the kernel families, with their arguments and shape rules |
//! | `lock` | [`lock()`], which ignores the poisoning of a mutex |
//! | [`plan`] | lists of kernels over numbered buffers, and the passes that fuse them and place their memory |
//! | `shape` | [`Shape`], [`Layout`] and [`Strides`] |
#![forbid(unsafe_code)]

pub mod backend;
pub mod borrow;
mod dtype;
mod error;
pub mod formula;
mod inline_vec;
mod integer;
pub mod kernel;
mod lock;
pub mod plan;
mod shape;

pub use dtype::{Compute, DType, Element, ReadElement, Scalar};
pub use error::{Error, Result, WrongShape};
pub use half::{bf16, f16};
pub use inline_vec::InlineVec;
pub use integer::Integer;
pub use lock::lock;
pub use shape::{INLINE_AXES, Layout, Overlap, Shape, Strides, are_one_axis};
