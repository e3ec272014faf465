//! Norms and deviations over the whole range of a dtype.
//!
//! The sum of squares of a row overflows or underflows where its root is representable. The formulas of this file
//! finish such a sum s, which a kernel without further measures has computed. A row whose sum is neither infinite nor
//! small keeps it: the result is that of the plain definition, and the row is not read again. Any other row is scaled
//! by a power of two, which is exact, so that its largest magnitude is about 1, and summed again.
//!
//! The derivatives are those of the plain definition, through s.

use super::formula::{apply_rows_in, map};
use crate::tensor::Tensor;
use bytemuck::Pod;
use pellucid_ir::formula::{Expr, Formula};
use pellucid_ir::kernel::AxisSet;
use pellucid_ir::{DType, Element, Result, Scalar, formula};
use smallvec::SmallVec;

/// The parameters `low` and `most` of the formulas.
struct Limits {
    /// The smallest sum that no underflow of its terms affects.
    low: f64,
    /// The largest exponent of a scale.
    most: f64,
}

impl Limits {
    /// Returns the limits of numbers of a dtype, `f32` or `f64`.
    fn new(number: DType) -> Limits {
        // Rounding a subnormal term loses half of the smallest number. All terms together lose less than half a unit in
        // the last place of `low`, for rows of up to 2²⁵ elements in `f32` and 2⁴¹ in `f64`.
        match number {
            DType::F64 => Limits { low: 2f64.powi(-980), most: 1022.0 },
            _ => Limits { low: 2f64.powi(-100), most: 126.0 },
        }
    }

    /// Returns true if the sums can be read, and all are usual.
    fn are_usual(&self, sums: &Tensor) -> Result<bool> {
        fn none<T: Element + Pod>(sums: &Tensor, is_unusual: impl Fn(T) -> bool) -> Result<bool> {
            Ok(sums.array().find("find", is_unusual)?.is_none())
        }
        let &Limits { low, .. } = self;
        match sums.dtype() {
            _ if !sums.is_readable() => Ok(false),
            DType::F64 => none(sums, |s: f64| !(low..=f64::MAX).contains(&s)),
            DType::F32 => none(sums, |s: f32| !(low as f32..=f32::MAX).contains(&s)),
            _ => Ok(false),
        }
    }
}

/// Returns the mask of the rows whose sum needs no further measures.
fn is_usual(s: Expr, low: Expr) -> Expr {
    s.is_finite() & s.ge(low)
}

/// Returns two powers of two: the scale with which the largest magnitude of the row becomes about 1, and its inverse.
fn scales(x: Expr, most: Expr) -> (Expr, Expr) {
    let largest = x.abs().row_max();
    let exponent = largest.gt(0.0).select(largest, 1.0).log2().floor().clamp(-most, most);
    ((-exponent).exp2(), exponent.exp2())
}

/// Returns Σ (u − mean)² of the row of scaled elements u = x·scale, and the inverse of the scale.
fn scaled_squares(x: Expr, most: Expr) -> (Expr, Expr) {
    let (down, up) = scales(x, most);
    let u = x * down;
    let d = u - u.row_mean();
    ((d * d).row_sum(), up)
}

/// Returns the formula of √Σ x² from x and s = Σ x².
pub(super) fn euclidean_norm() -> &'static Formula {
    formula! {
        static norm(x, s: per_row; low, most) = {
            let (down, up) = scales(x, most);
            let u = x * down;
            is_usual(s, low).select(s.sqrt(), (u * u).row_sum().sqrt() * up)
        };
    }
}

/// Returns the formula of (Σ |x|ᵖ)^q from x and s = Σ |x|ᵖ, with q = 1/p and p > 0.
pub(super) fn power_norm() -> &'static Formula {
    formula! {
        static norm(x, s: per_row; p, q, low, most) = {
            let (down, up) = scales(x, most);
            is_usual(s, low).select(s.pow(q), (x * down).abs().pow(p).row_sum().pow(q) * up)
        };
    }
}

/// Returns the formula of the variance Σ (x − mean)² / n from x and that value, s.
pub(super) fn variance() -> &'static Formula {
    formula! {
        static var(x, s: per_row; n, low, most) = {
            let (squares, up) = scaled_squares(x, most);
            is_usual(s, low).select(s, squares / n * up * up)
        };
    }
}

/// Returns the formula of the standard deviation √(Σ (x − mean)² / n) from x and the variance s.
pub(super) fn deviation() -> &'static Formula {
    formula! {
        static std(x, s: per_row; n, low, most) = {
            let (squares, up) = scaled_squares(x, most);
            is_usual(s, low).select(s.sqrt(), (squares / n).sqrt() * up)
        };
    }
}

/// Returns the formula of √s with the derivatives of [`root_slope`].
pub(super) fn root() -> &'static Formula {
    formula! {
        static root(s) = s.sqrt();
        d s = root_slope(y, g);
    }
}

/// Returns the formula of v, which is √s or what √s would be without overflow and underflow, with the derivatives of
/// [`root`].
pub(super) fn given_root() -> &'static Formula {
    formula! {
        static root(s, v) = v;
        d s = root_slope(y, g);
    }
}

/// Returns the formula of v, which is s^q or what s^q would be without overflow and underflow, with the derivatives of
/// [`power::root`](super::power::root). The derivative where s overflows is NaN.
pub(super) fn given_power() -> &'static Formula {
    formula! {
        static root(s, v; q) = v;
        d s = {
            let zero = s.eq(0.0);
            zero.select(0.0, g * q * y / zero.select(1.0, s.is_finite().select(s, f64::NAN)))
        };
    }
}

/// Returns the formula of v, with the derivative of s.
pub(super) fn given_identity() -> &'static Formula {
    formula! {
        static identity(s, v) = v;
        d s = g;
    }
}

/// Returns the gradient of s from the gradient g of y = √s, and 0 at 0, where the derivative of √s is infinite: the
/// subgradient of least length of a norm and of a standard deviation.
fn root_slope(y: Expr, g: Expr) -> Expr {
    let positive = y.gt(0.0);
    positive.select(g * 0.5 / positive.select(y, 1.0), 0.0)
}

/// Finishes the sums s of the rows of x over `axes`: by `plain`, or by `formula` from x, s and `params`. In the second
/// case `given` has the derivatives, with s and the result as inputs. They must be those of `plain` to the last bit.
///
/// The results of both are the same if all sums are usual. `plain` is faster, but requires that the sums can be read. A
/// GPU always uses it, because a shader reads the rows of a skipped phase too.
pub(super) fn finish(
    [x, s]: [&Tensor; 2],
    plain: impl FnOnce(&Tensor) -> Result<Tensor>,
    formula: &Formula,
    params: &[Scalar],
    axes: AxisSet,
    (given, given_params): (&Formula, &[Scalar]),
) -> Result<Tensor> {
    let limits = Limits::new(s.dtype());
    if !s.device().is_cpu() || limits.are_usual(s)? {
        return plain(s);
    }
    let params: SmallVec<[Scalar; 4]> = params.iter().copied().chain([limits.low.into(), limits.most.into()]).collect();
    let y = apply_rows_in(formula, &[&x.detach(), &s.detach()], &params, axes, Some(s.dtype()))?;
    if s.requires_grad() { map(given, &[s, &y], given_params) } else { Ok(y) }
}
