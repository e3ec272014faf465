//! The scalar primitives: every function of one or two numbers that a formula can name.
//!
//! Each is a plain function of one `f32` ([`single`]) or one `f64` ([`double`]), written without
//! branches (selects only) wherever the vectoriser is to run it on many lanes at once, so that a loop
//! over it compiles to vector code at whatever width the caller's `#[target_feature]` grants.
//!
//! # The same bits everywhere
//!
//! A result depends on the operand's bits only: never on the processor, the vector width, or the
//! neighbouring lanes. That holds because the code uses IEEE operations alone (+ − × ÷ √, fused
//! multiply-add where `mul_add` is written, rounding to integers, bit casts), each exactly defined;
//! nothing here may call the platform's `libm`. Arithmetic on bit patterns wraps, since lanes whose
//! result a select drops may hold anything. Only the sign and payload of a NaN are unspecified.

// Coefficients stand here with all the digits they were computed or published with.
#![allow(clippy::excessive_precision)]

pub mod bessel;
pub mod double;
pub mod gamma;
pub mod half;
pub mod integer;
mod number;
mod real;
pub mod single;
#[cfg(test)]
mod ulp;

pub use number::Single;
pub use real::Real;
