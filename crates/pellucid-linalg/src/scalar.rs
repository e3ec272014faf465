//! [`MatrixElement`], the element type of matrices, and loops over vectors of them.

use pellucid_gemm::TILE;
use pellucid_simd::Float;

/// `f32` or `f64`. All arithmetic of a factorization is in this type.
pub trait MatrixElement: Float {
    /// The difference between 1 and the next larger value.
    const EPSILON: Self;

    /// The smallest positive normal value.
    const MIN_POSITIVE: Self;

    /// Not a number.
    const NAN: Self;

    /// Returns 0.
    #[inline(always)]
    fn zero() -> Self {
        Self::from_f64(0.0)
    }

    /// Returns 1.
    #[inline(always)]
    fn one() -> Self {
        Self::from_f64(1.0)
    }

    /// Returns the value as `f64`.
    fn to_f64(self) -> f64;
}

impl MatrixElement for f32 {
    const EPSILON: f32 = f32::EPSILON;
    const MIN_POSITIVE: f32 = f32::MIN_POSITIVE;
    const NAN: f32 = f32::NAN;

    #[inline(always)]
    fn to_f64(self) -> f64 {
        f64::from(self)
    }
}

impl MatrixElement for f64 {
    const EPSILON: f64 = f64::EPSILON;
    const MIN_POSITIVE: f64 = f64::MIN_POSITIVE;
    const NAN: f64 = f64::NAN;

    #[inline(always)]
    fn to_f64(self) -> f64 {
        self
    }
}

/// Returns Σ xᵢ·yᵢ, computed as 16 partial sums that a tree adds.
#[inline(always)]
pub(crate) fn dot<T: MatrixElement>(x: &[T], y: &[T]) -> T {
    let mut sums = [T::zero(); TILE];
    let ((x, x_rest), (y, y_rest)) = (x.as_chunks::<TILE>(), y.as_chunks::<TILE>());
    for (x, y) in x.iter().zip(y) {
        for lane in 0..TILE {
            sums[lane] = sums[lane] + x[lane] * y[lane];
        }
    }
    for (lane, (&x, &y)) in x_rest.iter().zip(y_rest).enumerate() {
        sums[lane] = sums[lane] + x * y;
    }
    sum_lanes(sums)
}

/// Returns the sum of 16 values, computed by a tree: to value l, it adds value l + 8, then l + 4, l + 2 and l + 1.
#[inline(always)]
pub(crate) fn sum_lanes<T: MatrixElement>(mut sums: [T; TILE]) -> T {
    let mut width = TILE / 2;
    while width > 0 {
        for lane in 0..width {
            sums[lane] = sums[lane] + sums[lane + width];
        }
        width /= 2;
    }
    sums[0]
}

/// Subtracts `by`·x from y.
#[inline(always)]
pub(crate) fn subtract_scaled<T: MatrixElement>(y: &mut [T], by: T, x: &[T]) {
    y.iter_mut().zip(x).for_each(|(y, &x)| *y = *y - by * x);
}

/// Subtracts a·x + b·y from a row, and adds the new row times c to `sum`. The second argument is `[a, b, c]`.
///
/// With it, the reductions to tridiagonal and bidiagonal form apply the update of one step and compute a product of the
/// next step in one pass over the matrix.
#[inline(always)]
pub(crate) fn update_row<T: MatrixElement>(row: &mut [T], [a, b, c]: [T; 3], [x, y]: [&[T]; 2], sum: &mut [T]) {
    // The loop is over single elements, because LLVM would vectorize a loop over chunks with gathers.
    for (((row, sum), &x), &y) in row.iter_mut().zip(sum).zip(x).zip(y) {
        *row = *row - (a * x + b * y);
        *sum = *sum + *row * c;
    }
}

/// Returns the largest magnitude; 0 for an empty slice.
#[inline(always)]
pub(crate) fn largest<T: MatrixElement>(x: &[T]) -> T {
    let larger = |most: T, x: T| if x.abs() > most { x.abs() } else { most };
    let (chunks, rest) = x.as_chunks::<TILE>();
    let mut most = [T::zero(); TILE];
    for chunk in chunks {
        for lane in 0..TILE {
            most[lane] = larger(most[lane], chunk[lane]);
        }
    }
    most.iter().chain(rest).copied().fold(T::zero(), larger)
}

/// Returns the power of two that scales a magnitude to [1, 2), or the nearest power of two that is a normal number and
/// has a normal inverse.
pub(crate) fn scale_to_one<T: MatrixElement>(magnitude: T) -> T {
    // The exponent field is read, because a logarithm of the standard library would depend on the C library.
    let exponent = |x: T| (x.to_f64().to_bits() >> 52) as i32 - 1023;
    let limit = exponent(T::MIN_POSITIVE) + 2;
    T::from_f64(2f64.powi((-exponent(magnitude)).clamp(limit, -limit)))
}

/// Computes the plane rotation with c·x + s·y = r and c·y − s·x = 0. Returns (c, s, r).
#[inline(always)]
pub(crate) fn plane_rotation<T: MatrixElement>(x: T, y: T) -> (T, T, T) {
    if y == T::zero() {
        return (T::one(), T::zero(), x);
    }
    let square = x * x + y * y;
    let least = T::MIN_POSITIVE / (T::EPSILON * T::EPSILON);
    if square > least && square.is_finite() {
        let r = square.sqrt();
        return (x / r, y / r, r);
    }
    // The squares are scaled, so that they neither overflow nor lose digits to underflow.
    let size = if x.abs() > y.abs() { x.abs() } else { y.abs() };
    let (x, y) = (x / size, y / size);
    let r = (x * x + y * y).sqrt();
    (x / r, y / r, r * size)
}
