//! Dropout of elements or of entire channels.

use crate::ops::call::check;
use crate::ops::formula::map;
use crate::ops::primitive::precision::{in_single, widened_dtype};
use crate::ops::random::uniform_on;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::{Error, Result, Shape, formula};

/// Draws the uniform values that determine which elements are kept.
fn uniform_values(op: &'static str, x: &Tensor, shape: Shape, p: f64) -> Result<Tensor> {
    if !(0.0..=1.0).contains(&p) {
        return Err(Error::invalid(op, format!("p must be in [0, 1], got {p}; try 0.5")));
    }
    check::floats(op, &[x])?;
    // Half precision has too few values in [0, 1): a uniform bf16 value is one of 256.
    uniform_on(x.device(), shape, widened_dtype(&[x]).unwrap_or(x.dtype()))
}

/// Returns the shape of a mask with one value for every channel of `[N, C, d..]`.
fn channel_mask_shape(op: &'static str, x: &Tensor) -> Result<Shape> {
    if x.rank() < 2 {
        return Err(Error::shapes(
            op,
            [x.shape()],
            "the input must be [N, C, ..]; dropout() drops elements of any shape",
        ));
    }
    Ok(x.shape().iter().enumerate().map(|(k, &len)| if k < 2 { len } else { 1 }).collect())
}

/// Computes x/(1 − p) where u ≥ p, else 0.
fn dropout_by(x: &Tensor, u: &Tensor, p: f64) -> Result<Tensor> {
    in_single!("dropout", [x] => dropout_by(x, u, p));
    let formula = formula! { static dropout(x, u; p, scale) = u.ge(p).select(x * scale, 0.0); };
    // With p = 1 no element is kept, and the scale is unused.
    let scale = if p < 1.0 { 1.0 / (1.0 - p) } else { 0.0 };
    map(formula, &[x, u], &[p.into(), scale.into()])
}

/// Computes [`alpha_dropout`] from uniform values u; elements with u < p are dropped.
fn alpha_dropout_by(x: &Tensor, u: &Tensor, p: f64) -> Result<Tensor> {
    in_single!("alpha_dropout", [x] => alpha_dropout_by(x, u, p));
    let formula = formula! { static alpha_dropout(x, u; p, a, b, low) = u.ge(p).select(x, low) * a + b; };
    // The limit of `selu` at −∞, −λα.
    let low = -1.7580993408473766;
    let a = if p < 1.0 { ((1.0 - p) * (1.0 + p * low * low)).sqrt().recip() } else { 0.0 };
    map(formula, &[x, u], &[p.into(), a.into(), (-a * low * p).into(), low.into()])
}

/// Zeroes each element with probability p, and divides the other elements by 1 − p (Srivastava et al. 2014).
///
/// The mask is drawn on the device, so a replayed step draws a new one.
///
/// # Errors
/// [`Error::InvalidArgument`] if `p` is not in [0, 1]; [`Error::DTypeMismatch`] for integers.
#[tensor_method]
pub fn dropout(x: &Tensor, p: f64) -> Result<Tensor> {
    dropout_by(x, &uniform_values("dropout", x, x.shape().clone(), p)?, p)
}

/// Applies [`dropout`] to entire channels of `[N, C, d..]` (Tompson et al. 2015).
///
/// # Errors
/// The errors of [`dropout`]; [`Error::ShapeMismatch`] for fewer than two axes.
#[tensor_method]
pub fn feature_dropout(x: &Tensor, p: f64) -> Result<Tensor> {
    let op = "feature_dropout";
    dropout_by(x, &uniform_values(op, x, channel_mask_shape(op, x)?, p)?, p)
}

/// Applies dropout for self-normalizing networks (Klambauer et al. 2017).
///
/// Dropped elements are replaced by the limit of `selu` at −∞. The result is scaled and shifted so that a mean of 0 and
/// a variance of 1 are preserved.
///
/// # Errors
/// The errors of [`dropout`].
#[tensor_method]
pub fn alpha_dropout(x: &Tensor, p: f64) -> Result<Tensor> {
    alpha_dropout_by(x, &uniform_values("alpha_dropout", x, x.shape().clone(), p)?, p)
}

/// Applies [`alpha_dropout`] to entire channels of `[N, C, d..]`.
///
/// # Errors
/// The errors of [`feature_dropout`].
#[tensor_method]
pub fn feature_alpha_dropout(x: &Tensor, p: f64) -> Result<Tensor> {
    let op = "feature_alpha_dropout";
    alpha_dropout_by(x, &uniform_values(op, x, channel_mask_shape(op, x)?, p)?, p)
}
