//! Derivatives of any order of random expressions, compared with finite differences of the order below.

pub mod catalogue;
pub mod check;
pub mod expression;
pub mod memory;
pub mod random;
