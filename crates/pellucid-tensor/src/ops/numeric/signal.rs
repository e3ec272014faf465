//! Window functions of signal processing.

use crate::ops::elementwise::{arithmetic, special, transcendental};
use crate::ops::primitive::create::{from_indices, tensor_from_fn};
use crate::ops::primitive::{copy, fill};
use crate::tensor::Tensor;
use pellucid_derive::operation;
use pellucid_ir::{DType, Error, Result, Scalar, formula};
use std::f64::consts::PI;

/// A window function of k from 0 to n (see [`signal_window`]).
#[derive(Clone, Copy, Debug)]
pub enum WindowFunction<'a> {
    /// 1 − |2k/n − 1|, a triangle.
    Bartlett,
    /// The Blackman window 0.42 − 0.5·cos(2πk/n) + 0.08·cos(4πk/n).
    Blackman,
    /// The cosine window sin(π(k + ½)/(n + 1)).
    Cosine,
    /// exp(−|k − center|/tau).
    Exponential {
        /// The index with weight 1. The default is n/2. Symmetric windows support only the default.
        center: Option<f64>,
        /// The number of steps in which the weight decays by the factor e.
        tau: f64,
    },
    /// exp(−(k − n/2)²/(2·std²)).
    Gaussian {
        /// The standard deviation, in steps.
        std: f64,
    },
    /// Σ (−1)ⁱ·aᵢ·cos(2πik/n).
    GeneralCosine(&'a [f64]),
    /// alpha − (1 − alpha)·cos(2πk/n).
    GeneralHamming {
        /// The mean weight.
        alpha: f64,
    },
    /// `GeneralHamming` with alpha 0.54.
    Hamming,
    /// `GeneralHamming` with alpha 0.5: sin²(πk/n).
    Hann,
    /// I₀(β·√(1 − (2k/n − 1)²)) / I₀(β) (Kaiser & Schafer 1980).
    Kaiser {
        /// The shape parameter β, at least 0; larger values narrow the window.
        beta: f64,
    },
    /// `GeneralCosine` with the coefficients 0.3635819, 0.4891775, 0.1365995 and 0.0106411 (Nuttall 1981).
    Nuttall,
}

/// Returns the `count` weights of a window function.
///
/// A symmetric window has n = count − 1. A periodic window, for spectral analysis, has n = count: it is one period of a
/// sequence. A single weight is 1, unless an exponential window has another center.
///
/// # Errors
/// [`Error::DTypeMismatch`] if `dtype` is neither `f32` nor `f64`; [`Error::InvalidArgument`] for a `tau` or `std` that
/// is not above 0, a negative β, a general cosine without terms, or a center for a symmetric window.
#[operation]
pub fn signal_window(window: WindowFunction<'_>, count: usize, symmetric: bool, dtype: DType) -> Result<Tensor> {
    let op = "signal_window";
    if !matches!(dtype, DType::F32 | DType::F64) {
        return Err(Error::dtypes(
            op,
            [dtype],
            "the dtype must be F32 or F64; create the window in F32, and convert it with to_dtype()",
        ));
    }
    let n = if symmetric || count <= 1 { count.saturating_sub(1) } else { count } as f64;
    // A single weight is at the center.
    let relative_position = |k: usize| if n > 0.0 { k as f64 / n } else { 0.5 };
    let from_formula = |f: &dyn Fn(usize) -> f64| tensor_from_fn(count, |k| Scalar::Float(f(k)), dtype);
    let cosines = |a: &[f64]| {
        if let (&[mean, first], true) = (a, n > 0.0) {
            let formula = formula! {
                static raised_cosine(row, column; n, turn, mean, first) =
                    mean - first * ((row + column) / n * turn).cos();
            };
            return from_indices(count, formula, &[n, 2.0 * PI, mean, first].map(Scalar::from), dtype);
        }
        if let (&[mean, first, second, ref third @ ..], true) = (a, n > 0.0 && a.len() <= 4) {
            let formula = formula! {
                static cosine_sum(row, column; n, turn, mean, first, second, third) = {
                    let position = (row + column) / n;
                    let harmonic = |k: f64| (position * (turn * k)).cos();
                    mean - first * harmonic(1.0) + second * harmonic(2.0) - third * harmonic(3.0)
                };
            };
            let third = third.first().copied().unwrap_or(0.0);
            let params = [n, 2.0 * PI, mean, first, second, third].map(Scalar::from);
            return from_indices(count, formula, &params, dtype);
        }
        let term = |i: usize, x: f64| if i.is_multiple_of(2) { x } else { -x };
        let at =
            |k: usize| (0..a.len()).map(|i| term(i, a[i] * (2.0 * PI * i as f64 * relative_position(k)).cos())).sum();
        // A window of one element is 1 for any coefficients.
        if n > 0.0 { from_formula(&at) } else { from_formula(&|_| 1.0) }
    };
    let rejected = |reason: String| Err(Error::invalid(op, reason));
    match window {
        WindowFunction::Bartlett => from_formula(&|k| 1.0 - (2.0 * relative_position(k) - 1.0).abs()),
        WindowFunction::Blackman => cosines(&[0.42, 0.5, 0.08]),
        WindowFunction::Cosine => from_formula(&|k| (PI * (k as f64 + 0.5) / (n + 1.0)).sin()),
        WindowFunction::Exponential { tau, .. } if tau.is_nan() || tau <= 0.0 => {
            rejected(format!("tau must be above 0, got {tau}"))
        }
        WindowFunction::Exponential { center: Some(_), .. } if symmetric => {
            rejected("`center` cannot be set for a symmetric window; omit it".to_string())
        }
        WindowFunction::Exponential { center, tau } => {
            from_formula(&|k| (-(k as f64 - center.unwrap_or(n / 2.0)).abs() / tau).exp())
        }
        WindowFunction::Gaussian { std } if std.is_nan() || std <= 0.0 => {
            rejected(format!("std must be above 0, got {std}"))
        }
        WindowFunction::Gaussian { std } => from_formula(&|k| (-0.5 * ((k as f64 - n / 2.0) / std).powi(2)).exp()),
        WindowFunction::GeneralCosine([]) => rejected("a general cosine must have at least one term".to_string()),
        WindowFunction::GeneralCosine(a) => cosines(a),
        WindowFunction::GeneralHamming { alpha } => cosines(&[alpha, 1.0 - alpha]),
        WindowFunction::Hamming => cosines(&[0.54, 0.46]),
        WindowFunction::Hann => cosines(&[0.5, 0.5]),
        WindowFunction::Kaiser { beta } if beta.is_nan() || beta < 0.0 => {
            rejected(format!("beta must be at least 0, got {beta}"))
        }
        WindowFunction::Kaiser { beta } => {
            let depth = |k| beta * (1.0 - (2.0 * relative_position(k) - 1.0).powi(2)).max(0.0).sqrt();
            let depths = tensor_from_fn(count, |k| Scalar::Float(depth(k)), DType::F64)?;
            // I₀(x)/I₀(β) = I₀ₑ(x)/I₀ₑ(β)·exp(x − β): I₀ alone overflows for x ≥ 714.
            let highest = special::i0e(&fill::full((), beta, DType::F64)?)?;
            let ratio = arithmetic::div(&special::i0e(&depths)?, &highest)?;
            copy::to_dtype(&arithmetic::mul(&ratio, &transcendental::exp(&arithmetic::sub(&depths, beta)?)?)?, dtype)
        }
        WindowFunction::Nuttall => cosines(&[0.3635819, 0.4891775, 0.1365995, 0.0106411]),
    }
}
