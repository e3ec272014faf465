//! Scalar primitives: every unary and binary function that a formula can name.
//!
//! Each is a plain function of scalars of type `f32` ([`single`]) or `f64` ([`double`]). Functions that the compiler
//! should vectorize contain selects instead of branches; a loop over such a function then compiles to vector code of
//! the width that the caller's `#[target_feature]` allows.
//!
//! # Bit-identical results
//!
//! A result depends on the bits of the operands only. It does not depend on the processor, the vector width or the
//! neighbouring lanes, because the code uses IEEE operations only, each of which is exactly defined: + − × ÷ √, fused
//! multiply-add where the code says `mul_add`, rounding to integers, and bit casts. No function calls the `libm` of the
//! platform. Arithmetic on bit patterns wraps, because a lane whose result a select discards may hold any value. Only
//! the sign and the payload of a NaN are unspecified.

// Coefficients are written with every digit of their source.
#![allow(clippy::excessive_precision)]

#[cfg(test)]
mod accuracy;
pub mod bessel;
pub mod double;
mod f32_lanes;
pub mod gamma;
pub mod half;
pub mod integer;
mod real;
pub mod single;

pub use f32_lanes::F32Lanes;
pub use real::Real;
