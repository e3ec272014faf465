//! Softmax and its logarithm: row formulas, whose gradients are row formulas again.

use super::axes::Axes;
use super::formula::rows;
use crate::ops;
use crate::tensor::Tensor;
use pellucid_derive::face;
use pellucid_ir::formula::Formula;
use pellucid_ir::{DType, Result, formula};
use std::sync::OnceLock;

fn floats(x: &Tensor) -> Result<Tensor> {
    if x.dtype().is_float() { Ok(x.clone()) } else { ops::to_dtype(x, DType::F32) }
}

/// yᵢ = exp xᵢ / Σⱼ exp xⱼ over `axes`, stable for any size of x. The gradient is
/// yᵢ·(gᵢ − Σⱼ gⱼ·yⱼ).
///
/// # Errors
/// [`Error::AxisOutOfRange`](crate::Error::AxisOutOfRange).
#[face]
pub fn softmax(x: &Tensor, axes: impl Into<Axes>) -> Result<Tensor> {
    static SOFTMAX: OnceLock<Formula> = OnceLock::new();
    let formula = SOFTMAX.get_or_init(|| {
        formula! {
            softmax(x) = {
                let e = (x - x.row_max()).exp();
                e * e.row_sum().recip()
            };
            d x = y * (g - (g * y).row_sum());
        }
        .eternal()
    });
    let axes = axes.into().resolve("softmax", x.shape())?;
    rows(formula, &[&floats(x)?], &[], axes.set)
}

/// yᵢ = xᵢ − ln Σⱼ exp xⱼ over `axes`, stable for any size of x. The gradient is
/// gᵢ − exp(yᵢ)·Σⱼ gⱼ.
///
/// # Errors
/// [`Error::AxisOutOfRange`](crate::Error::AxisOutOfRange).
#[face]
pub fn log_softmax(x: &Tensor, axes: impl Into<Axes>) -> Result<Tensor> {
    static LOG_SOFTMAX: OnceLock<Formula> = OnceLock::new();
    let formula = LOG_SOFTMAX.get_or_init(|| {
        formula! {
            log_softmax(x) = {
                let shifted = x - x.row_max();
                shifted - shifted.exp().row_sum().ln()
            };
            d x = g - y.exp() * g.row_sum();
        }
        .eternal()
    });
    let axes = axes.into().resolve("log_softmax", x.shape())?;
    rows(formula, &[&floats(x)?], &[], axes.set)
}
