//! Norms and deviations over the full range of a dtype.
//!
//! The sum of squares of a row may overflow or underflow although its root is representable. A plain kernel computes
//! the sum s, and the formulas of this file finish it. If s is neither infinite nor small, the plain definition
//! computes the result, and the row is not read again. Any other row is scaled so that no square overflows and only
//! negligible squares underflow, and summed again. The scale is a power of two, which is exact. In norms with p ≠ 2,
//! the row is divided by its largest magnitude instead, or by its smallest if p < 0.
//!
//! A norm y = (Σ |x|ᵖ)^(1/p) has the derivatives of the root of t = Σ |x|·|x/c|ᵖ⁻¹ with a constant c, since t is a
//! multiple of Σ |x|ᵖ. For c = y they read neither s nor a scale:
//!
//! ```text
//! ∂t/∂x: p·sign(x)·|x/c|ᵖ⁻¹     ∂y/∂t: y/(p·t)     t = y
//! ```
//!
//! Derivatives of order k are then products of ratios divided by yᵏ⁻¹, and nothing else over- or underflows. For p = 2,
//! c is 1 in rows with moderate sums. If all rows have moderate sums, the plain definition is differentiated, which
//! needs no divisions.
//!
//! Distances of all pairs of rows, (Σ |a − b|ᵖ)^(1/p), are finished likewise, without an array of the differences. The
//! differences are multiplied by r = 1/c. A sum of 0 is kept if no element is so small that a power of a difference
//! could underflow, because the rows are then equal.

use crate::autograd::{is_recorded, on_one_device};
use crate::ops::formula::{apply_rows_in, map, map_all, map_sum, power, record_result};
use crate::ops::primitive::precision::widened_dtype;
use crate::tensor::Tensor;
use bytemuck::Pod;
use pellucid_ir::formula::{Expr, Formula};
use pellucid_ir::kernel::AxisSet;
use pellucid_ir::{DType, Element, Result, Scalar, formula};
use smallvec::SmallVec;

/// The limits of a dtype that decide whether a row is rescaled, and by how much.
struct FloatLimits {
    /// Half a unit in the last place of 1.
    epsilon: f64,
    /// The smallest sum that is accurate to the last place even if some of its terms underflow.
    min_exact_sum: f64,
    /// The largest exponent of a scale.
    max_scale_exponent: f64,
    /// A sum s is moderate if neither s nor 1/s is above this bound; the derivatives of its root are then in range for
    /// several orders.
    max_moderate_sum: f64,
}

impl FloatLimits {
    /// Returns the limits of a dtype, `f32` or `f64`.
    fn new(dtype: DType) -> FloatLimits {
        // Rounding a term to a subnormal number has an error of up to half of the smallest number. The errors of all
        // terms are less than half a unit in the last place of `min_exact_sum`, for rows of up to 2²⁵ elements in `f32`
        // and 2⁴¹ in `f64`.
        match dtype {
            DType::F64 => FloatLimits {
                epsilon: 2f64.powi(-53),
                min_exact_sum: 2f64.powi(-980),
                max_scale_exponent: 1022.0,
                max_moderate_sum: 2f64.powi(300),
            },
            _ => FloatLimits {
                epsilon: 2f64.powi(-24),
                min_exact_sum: 2f64.powi(-100),
                max_scale_exponent: 126.0,
                max_moderate_sum: 2f64.powi(40),
            },
        }
    }

    /// Applies a row formula with the parameters `low`, `max_exponent` and `params`. The last input contains the sums.
    fn apply(&self, formula: &Formula, inputs: &[&Tensor], params: &[Scalar], axes: AxisSet) -> Result<Tensor> {
        let limits = [self.min_exact_sum, self.max_scale_exponent].map(Scalar::from);
        let params: SmallVec<[Scalar; 4]> = limits.iter().chain(params).copied().collect();
        apply_rows_in(formula, inputs, &params, axes, inputs.last().map(|sums| sums.dtype()))
    }

    /// Returns true if the sums can be read, and no underflow or overflow affects any of them.
    fn are_in_range(&self, sums: &Tensor) -> Result<bool> {
        are_within(sums, [self.min_exact_sum, f64::MAX], false)
    }

    /// Returns true if the sums can be read, and neither a sum nor its inverse is above `max_moderate_sum`.
    fn are_moderate(&self, sums: &Tensor) -> Result<bool> {
        are_within(sums, [self.max_moderate_sum.recip(), self.max_moderate_sum], false)
    }
}

/// Returns true if the elements of x can be read, and all magnitudes are finite and in `low..=high`. With
/// `with_zeros`, 0 is also allowed.
fn are_within(x: &Tensor, [low, high]: [f64; 2], with_zeros: bool) -> Result<bool> {
    fn none<T: Element + Pod>(x: &Tensor, is_outside: impl Fn(T) -> bool) -> Result<bool> {
        Ok(x.array().find("find", is_outside)?.is_none())
    }
    match x.dtype() {
        _ if !x.is_readable() => Ok(false),
        DType::F64 => none(x, |v: f64| !((low..=high).contains(&v.abs()) || (with_zeros && v == 0.0))),
        DType::F32 => {
            let (low, high) = (low as f32, high.min(f64::from(f32::MAX)) as f32);
            none(x, |v: f32| !((low..=high).contains(&v.abs()) || (with_zeros && v == 0.0)))
        }
        _ => Ok(false),
    }
}

/// Returns the mask of the rows whose sum needs no rescaling.
fn is_in_range(s: Expr, low: Expr) -> Expr {
    s.is_finite() & s.ge(low)
}

/// Returns two powers of two: the scale with which the largest magnitude of the row becomes about 1, and its inverse.
fn scales(x: Expr, max_exponent: Expr) -> (Expr, Expr) {
    let largest = x.abs().row_max();
    let exponent = largest.gt(0.0).select(largest, 1.0).log2().floor().clamp(-max_exponent, max_exponent);
    ((-exponent).exp2(), exponent.exp2())
}

/// Returns Σ (u − mean)² of the row of scaled elements u = x·scale, and the inverse of the scale.
fn scaled_squares(x: Expr, max_exponent: Expr) -> (Expr, Expr) {
    let (down, up) = scales(x, max_exponent);
    let u = x * down;
    let d = u - u.row_mean();
    ((d * d).row_sum(), up)
}

/// Computes results from the sums s of rows over `axes`, without history: by `plain`, or by `formula` from `rows`, s
/// and `params`.
///
/// If all sums are in range, both compute the same results. `plain` is faster, but on the CPU it requires that the sums
/// can be read. A GPU always uses `plain`, because a shader of `formula` reads the rows even if it skips the phase that
/// sums them again. The second result is true if all sums are moderate, or on a GPU.
fn finish_sums(
    rows: &[&Tensor],
    s: &Tensor,
    plain: impl FnOnce(&Tensor) -> Result<Tensor>,
    formula: &Formula,
    params: &[Scalar],
    axes: AxisSet,
) -> Result<(Tensor, bool)> {
    let limits = FloatLimits::new(s.dtype());
    let is_moderate = !s.device().is_cpu() || limits.are_moderate(s)?;
    if is_moderate || limits.are_in_range(s)? {
        return Ok((plain(s)?, is_moderate));
    }
    Ok((limits.apply(formula, &[rows, &[s]].concat(), params, axes)?, false))
}

/// Records y, the square roots of the row sums s. Its derivatives come from `plain` if `is_moderate` is set (see the
/// module documentation), otherwise from `relative`. Both formulas read `inputs`; `relative` also reads the constant c.
///
/// `params` and `reduced` are the arguments of [`record_result`].
fn record_square_root(
    inputs: &[&Tensor],
    s: &Tensor,
    (y, is_moderate): (Tensor, bool),
    [plain, relative]: [&Formula; 2],
    params: &[Scalar],
    reduced: [Option<AxisSet>; 2],
) -> Result<Tensor> {
    if !is_recorded(inputs) {
        return Ok(y);
    }
    let sum = match is_moderate {
        true => record_result(plain, inputs, params, reduced, s)?,
        false => {
            // The outputs are c and t of the module documentation. In a row of zeros, c is infinite, so that the
            // derivatives are 0.
            let constants = formula! {
                static row_constants(s, y; low, high) = {
                    let moderate = s.ge(low) & s.le(high);
                    (moderate.select(1.0, y.eq(0.0).select(f64::INFINITY, y)), moderate.select(s, y))
                };
            };
            let limits = FloatLimits::new(s.dtype());
            let bounds = [limits.max_moderate_sum.recip().into(), limits.max_moderate_sum.into()];
            let constants = map_all(constants, &[s, &y], &bounds)?;
            record_result(relative, &[inputs, &[&constants[0]]].concat(), params, reduced, &constants[1])?
        }
    };
    record_result(power::root(), &[&sum], &[0.5.into()], [None; 2], &y)
}

/// Computes (Σ |x|ᵖ)^(1/p) over axes, which keep length 1; p is neither 0 nor infinite. The result of half precision is
/// `f32`.
pub(in crate::ops) fn norm(x: &Tensor, p: f64, axes: AxisSet) -> Result<Tensor> {
    let (rows, compute_dtype) = (&x.detach(), widened_dtype(&[x]));
    norm_by(x, p, axes, &|power, params| map_sum(power, &[rows], params, axes, compute_dtype))
}

/// Computes [`norm`] with the function `sum`, which applies a formula with parameters to x, without history, and sums
/// the results over the axes.
fn norm_by(x: &Tensor, p: f64, axes: AxisSet, sum: &dyn Fn(&Formula, &[Scalar]) -> Result<Tensor>) -> Result<Tensor> {
    let (rows, reduced) = (&x.detach(), [Some(axes), None]);
    if p == 2.0 {
        let squares = &sum(square(), &[])?;
        let finished = finish_sums(&[rows], squares, square_root, euclidean_norm(), &[], axes)?;
        return record_square_root(&[x], squares, finished, [square(), relative_square()], &[], reduced);
    }
    let params = [p.into(), (1.0 / p).into()];
    let [order, inverse] = params.each_ref().map(std::slice::from_ref);
    let powers = &sum(power::absolute_power(p), order)?;
    let (y, _) = finish_sums(&[rows], powers, |s| map(power::root(), &[s], inverse), power_norm(p), &params, axes)?;
    let sum = record_result(power::relative_power(p), &[x, &y], order, reduced, &y)?;
    record_result(power::root(), &[&sum], inverse, [None; 2], &y)
}

/// Computes (Σ xᵖ)^(1/p) over axes, which keep length 1; p is neither 0 nor infinite. A root of a negative sum is NaN.
/// `sum` is the function of [`norm_by`].
pub(in crate::ops) fn signed_norm_by(
    x: &Tensor,
    p: f64,
    axes: AxisSet,
    sum: &dyn Fn(&Formula, &[Scalar]) -> Result<Tensor>,
) -> Result<Tensor> {
    if power::is_even(p) {
        return norm_by(x, p, axes, sum);
    }
    let (rows, reduced) = (&x.detach(), [Some(axes), None]);
    let params = [p.into(), (1.0 / p).into()];
    let [order, inverse] = params.each_ref().map(std::slice::from_ref);
    let powers = &sum(power::signed_power(p), order)?;
    let (y, _) =
        finish_sums(&[rows], powers, |s| map(power::root(), &[s], inverse), signed_power_norm(p), &params, axes)?;
    let sum = record_result(power::relative_signed_power(p), &[x, &y], order, reduced, &y)?;
    record_result(power::root(), &[&sum], inverse, [None; 2], &y)
}

/// Computes Σ (x − mean)² / n over axes, which keep length 1. The result of half precision is `f32`.
pub(in crate::ops) fn variance(x: &Tensor, n: f64, axes: AxisSet) -> Result<Tensor> {
    let (rows, params) = (&x.detach(), [n.into()]);
    let plain = &plain_variance(rows, n, axes)?;
    let (y, _) = finish_sums(&[rows], plain, |s| Ok(s.clone()), scaled_variance(), &params, axes)?;
    record_result(variance_of_rows(), &[x], &params, [None, Some(axes)], &y)
}

/// Computes √(Σ (x − mean)² / n) over axes, which keep length 1. The result of half precision is `f32`.
pub(in crate::ops) fn deviation(x: &Tensor, n: f64, axes: AxisSet) -> Result<Tensor> {
    let (rows, params) = (&x.detach(), [n.into()]);
    let plain = &plain_variance(rows, n, axes)?;
    let finished = finish_sums(&[rows], plain, square_root, scaled_deviation(), &params, axes)?;
    let variances = [variance_of_rows(), relative_variance()];
    record_square_root(&[x], plain, finished, variances, &params, [None, Some(axes)])
}

/// Computes Σ x / n over axes, for the elements where the mask is true. The axes keep length 1; n has the shape of the
/// result.
pub(in crate::ops) fn masked_mean(x: &Tensor, mask: &Tensor, n: &Tensor, axes: AxisSet) -> Result<Tensor> {
    if let Some(moved) = on_one_device("masked_mean", &[x, mask, n])? {
        return masked_mean(&moved[0], &moved[1], &moved[2], axes);
    }
    let mean = formula! {
        static masked_mean(x, m: mask, n: per_row) = m.select(x, 0.0).row_sum() / n;
        d x = m.select(g / n, 0.0);
    };
    let selected = formula! { static masked_sum(x, m: mask) = m.select(x, 0.0); };
    let quotient = formula! { static masked_mean(s, n) = s / n; };
    let rows = &x.detach();
    let plain = map(quotient, &[&map_sum(selected, &[rows, mask], &[], axes, None)?, n], &[])?;
    let y = match !plain.device().is_cpu() || are_within(&plain, [0.0, f64::MAX], false)? {
        true => plain,
        false => {
            // If the sum overflows, the terms that underflow after the scaling are negligible.
            let scaled = formula! {
                static masked_mean(x, m: mask, n: per_row, y: per_row; down, up) =
                    y.is_finite().select(y, (m.select(x, 0.0) * down).row_sum() / n * up);
            };
            let scales = [2f64.powi(-40), 2f64.powi(40)].map(Scalar::from);
            apply_rows_in(scaled, &[rows, mask, n, &plain], &scales, axes, None)?
        }
    };
    record_result(mean, &[x, mask, n], &[], [None, Some(axes)], &y)
}

/// Computes Σ x² / n over axes, which keep length 1; n has the shape of the result.
pub(in crate::ops) fn mean_square_of(x: &Tensor, n: &Tensor, axes: AxisSet) -> Result<Tensor> {
    if let Some(moved) = on_one_device("masked_var", &[x, n])? {
        return mean_square_of(&moved[0], &moved[1], axes);
    }
    let plain = formula! {
        static masked_var(x, n: per_row) = (x * x).row_sum() / n;
        d x = 2.0 * g / n * x;
    };
    let scaled = formula! {
        static masked_var(x, n: per_row, s: per_row; low, max_exponent) = {
            let (down, up) = scales(x, max_exponent);
            let u = x * down;
            is_in_range(s, low).select(s, (u * u).row_sum() / n * up * up)
        };
    };
    let rows = &x.detach();
    let squares = map_sum(square(), &[rows], &[], axes, None)?;
    let quotient = formula! { static masked_var(s, n) = s / n; };
    let quotients = &map(quotient, &[&squares, n], &[])?;
    let (y, _) = finish_sums(&[rows, n], quotients, |s| Ok(s.clone()), scaled, &[], axes)?;
    record_result(plain, &[x, n], &[], [None, Some(axes)], &y)
}

/// Computes (Σ |a − b|ᵖ)^(1/p) over axes, which keep length 1, without an array of the differences. p is positive,
/// finite and not 1. a and b broadcast.
pub(in crate::ops) fn distance(a: &Tensor, b: &Tensor, p: f64, axes: AxisSet) -> Result<Tensor> {
    if let Some(moved) = on_one_device("cdist", &[a, b])? {
        return distance(&moved[0], &moved[1], p, axes);
    }
    let power = power::difference_power(p);
    let (order, inverse) = ([p.into()], [(1.0 / p).into()]);
    let order = &order[..power.params()];
    let rows = [&a.detach(), &b.detach()];
    let sums = &map_sum(power, &rows, order, axes, None)?;
    let root = |s: &Tensor| if p == 2.0 { square_root(s) } else { map(power::root(), &[s], &inverse) };
    // For p < 2, derivatives contain powers with negative exponents of the differences.
    let limits = FloatLimits::new(sums.dtype());
    let limits = FloatLimits { max_moderate_sum: limits.max_moderate_sum.powf((0.5 * p).min(1.0)), ..limits };
    let record = |formula: &Formula, inputs: &[&Tensor], sums: &Tensor, y: &Tensor| {
        let sum = record_result(formula, inputs, order, [Some(axes), None], sums)?;
        record_result(power::root(), &[&sum], &inverse, [None; 2], y)
    };
    if !sums.device().is_cpu() || limits.are_moderate(sums)? {
        return record(power, &[a, b], sums, &root(sums)?);
    }
    // A nonzero difference is at least `epsilon` times the smaller operand. So if all elements are 0 or at least
    // `min_difference`, no power of a nonzero difference underflows.
    let min_difference = limits.min_exact_sum.powf(1.0 / p) / limits.epsilon;
    let zeros_are_in_range = || -> Result<bool> {
        Ok(are_within(rows[0], [min_difference, f64::MAX], true)?
            && are_within(rows[1], [min_difference, f64::MAX], true)?)
    };
    let are_within_or_zero =
        |ends: [f64; 2]| -> Result<bool> { Ok(are_within(sums, ends, true)? && zeros_are_in_range()?) };
    if are_within_or_zero([limits.max_moderate_sum.recip(), limits.max_moderate_sum])? {
        return record(power, &[a, b], sums, &root(sums)?);
    }
    let y = &match limits.are_in_range(sums)? || are_within_or_zero([limits.min_exact_sum, f64::MAX])? {
        true => root(sums)?,
        false => {
            let small = formula! { static small_elements(x; min_difference) = (x.ne(0.0) & x.abs().lt(min_difference)).to_number(); };
            let count = |x: &Tensor| map_sum(small, &[x], &[min_difference.into()], AxisSet::all(x.rank()), None);
            let sum = formula! { static small_elements(m, n) = m + n; };
            let small = &map(sum, &[&count(rows[0])?, &count(rows[1])?], &[])?;
            let params = [order, &inverse[..order.len()]].concat();
            limits.apply(distance_norm(p), &[rows[0], rows[1], small, sums], &params, axes)?
        }
    };
    if !is_recorded(&[a, b]) {
        return Ok(y.clone());
    }
    // The outputs are r and t of the module documentation.
    let constants = formula! {
        static distance_constants(s, y; low, high, min_difference, p) = {
            let plain = (s.ge(low) & s.le(high)) | y.eq(0.0) | !y.is_finite();
            let r = plain.select(1.0, y.max(min_difference)).recip();
            (r, plain.select(s, y * (y * r).pow(p - 1.0)))
        };
    };
    let ends = [limits.max_moderate_sum.recip(), limits.max_moderate_sum, (-limits.max_scale_exponent).exp2(), p]
        .map(Scalar::from);
    let constants = map_all(constants, &[sums, y], &ends)?;
    record(power::relative_difference_power(p), &[a, b, &constants[0]], &constants[1], y)
}

fn square() -> &'static Formula {
    formula! {
        static square(x) = x * x;
        d x = 2.0 * g * x;
    }
}

/// Returns the formula of x²/c for a constant c > 0. For c = 1 its derivatives are bit-identical to those of the
/// square.
fn relative_square() -> &'static Formula {
    formula! {
        static square(x, c) = x * (x / c);
        d x = 2.0 * g * (x / c);
    }
}

fn square_root(s: &Tensor) -> Result<Tensor> {
    map(power::square_root(), &[s], &[])
}

fn plain_variance(x: &Tensor, n: f64, axes: AxisSet) -> Result<Tensor> {
    apply_rows_in(variance_of_rows(), &[x], &[n.into()], axes, widened_dtype(&[x]))
}

fn variance_of_rows() -> &'static Formula {
    formula! {
        static var(x; n) = {
            let d = x - x.row_mean();
            (d * d).row_sum() / n
        };
        d x = {
            let slope = 2.0 * g / n * (x - x.row_mean());
            slope - slope.row_mean()
        };
    }
}

/// Returns the formula of Σ (x − mean)²/c / n for a constant c > 0. For c = 1 its derivatives are bit-identical to
/// those of the variance.
fn relative_variance() -> &'static Formula {
    formula! {
        static std(x, c: per_row; n) = {
            let d = x - x.row_mean();
            (d * (d / c)).row_sum() / n
        };
        d x = {
            // The sum of large elements must not overflow. For c > 1, elements that underflow are negligible. A
            // selection is used, because a factor that is constant in the row would be moved out of the sum.
            let reduced = |v: Expr| c.gt(1.0).select(v * 2f64.powi(-30), v);
            let slope = 2.0 * g / n * ((reduced(x) - reduced(x).row_mean()) / reduced(c));
            slope - slope.row_mean()
        };
    }
}

/// Returns the formula of √Σ x² from x and s = Σ x².
fn euclidean_norm() -> &'static Formula {
    formula! {
        static norm(x, s: per_row; low, max_exponent) =
            is_in_range(s, low).select(s.sqrt(), scaled_euclidean_norm(x, max_exponent));
    }
}

/// Returns the formula of (Σ |x|ᵖ)^q from x and s = Σ |x|ᵖ, with q = 1/p.
fn power_norm(p: f64) -> &'static Formula {
    match p > 0.0 {
        true => formula! {
            static norm(x, s: per_row; low, max_exponent, p, q) = {
                let unit = x.abs().row_max();
                is_in_range(s, low).select(s.pow(q), scaled_power_norm(unit, x, p, q))
            };
        },
        false => formula! {
            static norm(x, s: per_row; low, max_exponent, p, q) = {
                let unit = x.abs().row_min();
                is_in_range(s, low).select(s.pow(q), scaled_power_norm(unit, x, p, q))
            };
        },
    }
}

/// Returns the norm of a row, computed from the elements divided by `unit`. `unit` is the largest |x| for p > 0 and the
/// smallest for p < 0, so that no scaled power is above 1.
fn scaled_power_norm(unit: Expr, x: Expr, p: Expr, q: Expr) -> Expr {
    let unit = (unit.is_finite() & unit.gt(0.0)).select(unit, 1.0);
    (x.abs() / unit).pow(p).row_sum().pow(q) * unit
}

/// Returns the formula of (Σ xᵖ)^q from x and s = Σ xᵖ, with q = 1/p.
fn signed_power_norm(p: f64) -> &'static Formula {
    match p > 0.0 {
        true => formula! {
            static lp_pool(x, s: per_row; low, max_exponent, p, q) =
                is_in_range(s, low).select(s.pow(q), scaled_signed_norm(x.abs().row_max(), x, p, q));
        },
        false => formula! {
            static lp_pool(x, s: per_row; low, max_exponent, p, q) =
                is_in_range(s, low).select(s.pow(q), scaled_signed_norm(x.abs().row_min(), x, p, q));
        },
    }
}

/// Returns the root of Σ xᵖ, scaled as in [`scaled_power_norm`]. The powers keep their signs.
fn scaled_signed_norm(unit: Expr, x: Expr, p: Expr, q: Expr) -> Expr {
    let unit = (unit.is_finite() & unit.gt(0.0)).select(unit, 1.0);
    (x / unit).pow(p).row_sum().pow(q) * unit
}

/// Returns √Σ x² of a row, scaled by a power of two.
fn scaled_euclidean_norm(x: Expr, max_exponent: Expr) -> Expr {
    let (down, up) = scales(x, max_exponent);
    let u = x * down;
    (u * u).row_sum().sqrt() * up
}

/// Returns the formula of (Σ |a − b|ᵖ)^q from a, b, the number of small elements and s = Σ |a − b|ᵖ, with q = 1/p.
fn distance_norm(p: f64) -> &'static Formula {
    match p == 2.0 {
        true => formula! {
            static cdist(a, b, small: per_row, s: per_row; low, max_exponent) =
                is_distance_in_range(s, low, small).select(s.sqrt(), scaled_euclidean_norm(a - b, max_exponent));
        },
        false => formula! {
            static cdist(a, b, small: per_row, s: per_row; low, max_exponent, p, q) = {
                let x = (a - b).abs();
                is_distance_in_range(s, low, small).select(s.pow(q), scaled_power_norm(x.row_max(), x, p, q))
            };
        },
    }
}

/// Returns the mask of the pairs of rows whose sum needs no rescaling. It includes a sum of 0 if no element is small.
fn is_distance_in_range(s: Expr, low: Expr, small: Expr) -> Expr {
    is_in_range(s, low) | (s.eq(0.0) & small.eq(0.0))
}

/// Returns the formula of the variance Σ (x − mean)² / n from x and the value s of the plain definition.
fn scaled_variance() -> &'static Formula {
    formula! {
        static var(x, s: per_row; low, max_exponent, n) = {
            let (squares, up) = scaled_squares(x, max_exponent);
            is_in_range(s, low).select(s, squares / n * up * up)
        };
    }
}

/// Returns the formula of the standard deviation √(Σ (x − mean)² / n) from x and the variance s.
fn scaled_deviation() -> &'static Formula {
    formula! {
        static std(x, s: per_row; low, max_exponent, n) = {
            let (squares, up) = scaled_squares(x, max_exponent);
            is_in_range(s, low).select(s.sqrt(), (squares / n).sqrt() * up)
        };
    }
}
