//! Covariances and correlations, and pairs of moments.

use crate::ops::call::{axes, check};
use crate::ops::elementwise::{arithmetic, compare};
use crate::ops::formula::over_axes::over_axes;
use crate::ops::primitive::precision::in_single;
use crate::ops::primitive::{copy, fill, view};
use crate::ops::products::matmul::matmul;
use crate::ops::reduce::{reductions, value_range};
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::{Error, Result};

/// Options of [`cov`].
#[derive(Clone, Copy, Debug)]
pub struct CovOptions<'a> {
    /// The number to subtract from the number of observations in the denominator.
    pub correction: f64,
    /// How often each observation was made: a vector of integers.
    pub frequencies: Option<&'a Tensor>,
    /// The weight of each observation: a vector of floats ≥ 0.
    pub weights: Option<&'a Tensor>,
}

impl Default for CovOptions<'_> {
    fn default() -> Self {
        CovOptions { correction: 1.0, frequencies: None, weights: None }
    }
}

/// Computes the covariance matrix `[V, V]` of variables `[V, N]`. For one variable, `[N]` or `[1, N]`, the result is
/// its variance (0-d).
///
/// The covariances are Σₖ wₖ·(xᵢₖ − x̄ᵢ)(xⱼₖ − x̄ⱼ) / n. With frequencies f and weights a, w = f·a and
/// n = Σ w − correction·Σ w·a / Σ w (NumPy's `cov`).
///
/// # Errors
/// [`Error::ShapeMismatch`] for rank 3 or more, or frequencies or weights that are not vectors of length N;
/// [`Error::DTypeMismatch`] for integer variables; [`Error::InvalidArgument`] for a negative frequency or weight in
/// eager mode on the CPU (otherwise the result is NaN).
#[tensor_method]
pub fn cov(x: &Tensor, options: CovOptions<'_>) -> Result<Tensor> {
    let op = "cov";
    let rows = variables(op, x)?;
    let (single, count) = (rows.shape()[0] == 1, rows.shape()[1]);
    for vector in [options.frequencies, options.weights].into_iter().flatten() {
        if vector.rank() > 1 || vector.size() != count {
            let help = format!("frequencies and weights must have one element for each of the {count} observations");
            return Err(Error::shapes(op, [x.shape(), vector.shape()], help));
        }
    }
    if let Some(frequencies) = options.frequencies.filter(|f| !f.dtype().is_int()) {
        return Err(Error::dtypes(
            op,
            [frequencies.dtype()],
            "frequencies must have an integer dtype; pass floats as weights",
        ));
    }
    if let Some(weights) = options.weights.filter(|a| !a.dtype().is_float()) {
        return Err(Error::dtypes(
            op,
            [weights.dtype()],
            "weights must have a float dtype; pass integer counts as frequencies",
        ));
    }
    let (dtype, weights) = (x.dtype(), options.weights);
    in_single!(op, [x; weights] => copy::to_dtype(&cov(x, CovOptions { weights, ..options })?, dtype));
    let mut is_valid = None;
    for (what, vector) in [("frequencies", options.frequencies), ("weights", options.weights)] {
        if let Some(vector) = vector {
            let mask = value_range::in_range_or_mask(op, what, vector, 0.0..=f64::INFINITY, true)?;
            is_valid = value_range::both(is_valid, mask)?;
        }
    }
    // Weights keep their dtype, and are promoted with the observations like other operands.
    let dtype = options.weights.map_or(x.dtype(), |a| a.dtype());
    let frequencies = options.frequencies.map(|f| copy::to_dtype(&view::reshape(f, [count])?, dtype)).transpose()?;
    let weights = options.weights.map(|a| view::reshape(a, [count])).transpose()?;
    let w = match (&frequencies, &weights) {
        (Some(f), Some(a)) => arithmetic::mul(f, a)?,
        (Some(w), None) | (None, Some(w)) => w.clone(),
        (None, None) => fill::ones([count], dtype)?,
    };
    let total = reductions::sum(&w, ..)?;
    let centred = arithmetic::sub(
        &rows,
        &arithmetic::div(&reductions::sum(&arithmetic::mul(&rows, &w)?, axes::over(1).keepdims())?, &total)?,
    )?;
    let lost = match &weights {
        Some(a) => arithmetic::div(
            &arithmetic::mul(&reductions::sum(&arithmetic::mul(&w, a)?, ..)?, options.correction)?,
            &total,
        )?,
        None => fill::full((), options.correction, dtype)?,
    };
    let free = arithmetic::maximum(&arithmetic::sub(&total, &lost)?, 0.0)?;
    // The deviations are divided before they are multiplied, so their products overflow only if a covariance does. With
    // at most `correction` observations the estimate is undefined: the sums are divided by 0, and the result is NaN or
    // ∞.
    let divisor = arithmetic::where_(&compare::gt(&free, 0.0)?, &free, 1.0)?;
    let weighted = arithmetic::div(&arithmetic::mul(&centred, &w)?, &divisor)?;
    let products = matmul(&weighted, &copy::to_dtype(&view::transpose(&centred, 0, 1)?, weighted.dtype())?)?;
    let covariances = copy::to_dtype(&arithmetic::div(&products, &arithmetic::sign(&free)?)?, x.dtype())?;
    let covariances = match &is_valid {
        Some(is_valid) => value_range::nan_unless(is_valid, &covariances)?,
        None => covariances,
    };
    if single { view::reshape(&covariances, ()) } else { Ok(covariances) }
}

/// Returns variables as the rows of a matrix.
fn variables(op: &'static str, x: &Tensor) -> Result<Tensor> {
    check::floats(op, &[x])?;
    match x.rank() {
        0 | 1 => view::reshape(x, [1, x.size()]),
        2 => Ok(x.clone()),
        _ => Err(Error::shapes(op, [x.shape()], "variables must be [V, N] or [N]")),
    }
}

/// Computes the correlation coefficients covᵢⱼ / √(covᵢᵢ·covⱼⱼ) of variables `[V, N]`, clamped to [−1, 1]. For one
/// variable it is 1.
///
/// # Errors
/// The errors of [`cov`].
#[tensor_method]
pub fn corrcoef(x: &Tensor) -> Result<Tensor> {
    let rows = variables("corrcoef", x)?;
    in_single!("corrcoef", [x] => corrcoef(x));
    // Products of deviations that are normalized to length 1 do not overflow, in contrast to covariances.
    let along = || axes::over(1).keepdims();
    let centred = arithmetic::sub(&rows, &reductions::mean(&rows, along())?)?;
    let units = arithmetic::div(&centred, &reductions::norm(&centred, 2.0, along())?)?;
    let products = matmul(&units, &view::transpose(&units, 0, 1)?)?;
    match rows.shape()[0] {
        // Without observations, the products are 0, and the coefficients are 0/0.
        variables if rows.shape()[1] == 0 && variables != 1 => arithmetic::div(&products, 0.0),
        1 => view::reshape(&arithmetic::div(&products, &products)?, ()),
        _ => arithmetic::clamp(&products, -1.0, 1.0),
    }
}

over_axes! {
    errors = "The errors of [`var`](crate::ops::var).";

    /// Computes the variance and the mean over `axes` (see [`var`](crate::ops::var)).
    var_mean(x; axes) -> (Tensor, Tensor) = Ok((reductions::var(x, axes.clone())?, reductions::mean(x, axes.ddof(0))?));
    /// Computes the standard deviation and the mean over `axes` (see [`std`](crate::ops::std)).
    std_mean(x; axes) -> (Tensor, Tensor) = Ok((reductions::std(x, axes.clone())?, reductions::mean(x, axes.ddof(0))?));
}
