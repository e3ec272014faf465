//! Derivatives of random expressions to any order, compared with finite differences of the next lower order.

pub mod catalogue;
pub mod check;
pub mod expression;
pub mod memory;
pub mod random;
