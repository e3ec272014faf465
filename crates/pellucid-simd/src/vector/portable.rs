//! Portable vectors: arrays that the compiler maps to the vector registers of the target.

use super::{Element, FloatVector, Vector};
use crate::math::Real;

/// The number of lanes of the vectors of [`Portable`](crate::Portable).
///
/// If the target has no fused multiply-add, each multiply-add of floats is a call to the C library for each lane, so
/// wider vectors would make the code longer and not faster.
pub(crate) const PORTABLE_LANES: usize = if HAS_FMA { 8 } else { 4 };

/// True if the compilation target has a fused multiply-add. The baseline of x86-64 has none.
const HAS_FMA: bool = !cfg!(all(target_arch = "x86_64", not(target_feature = "fma")));

/// A vector of N elements in an array, where N is a power of two. Eight elements are two NEON registers of `f32`, or
/// one AVX2 register of `i32`.
///
/// Its methods need no special instructions, so the clause *instruction set* of [`Vector`] always holds.
#[derive(Clone, Copy)]
pub struct Lanes<T, const N: usize>([T; N]);

// SAFETY: the type is an array of its lanes.
unsafe impl<T: Element, const N: usize> Vector for Lanes<T, N> {
    type Scalar = T;
    /// The half-open range of selected lanes: (first, end).
    type Mask = (usize, usize);
    const LANES: usize = N;
    const SIDE: usize = N;

    #[inline(always)]
    unsafe fn zero() -> Self {
        Self([T::ZERO; N])
    }

    #[inline(always)]
    unsafe fn splat(p: *const T) -> Self {
        // SAFETY: *pointer validity* of `Vector`: `p` is valid for one unaligned read.
        Self([unsafe { p.read_unaligned() }; N])
    }

    #[inline(always)]
    unsafe fn mask(n: usize) -> (usize, usize) {
        debug_assert!(n <= N, "{n} lanes must fit the {N} lanes of a vector");
        (0, n)
    }

    #[inline(always)]
    unsafe fn mask_from(first: usize, n: usize) -> (usize, usize) {
        debug_assert!(first + n <= N, "{n} lanes from lane {first} on must fit the {N} lanes of a vector");
        (first, first + n)
    }

    #[inline(always)]
    unsafe fn load(p: *const T) -> Self {
        // SAFETY: *pointer validity* of `Vector`: `p` is valid for one unaligned read of N elements.
        Self(unsafe { p.cast::<[T; N]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn load_part(p: *const T, mask: (usize, usize)) -> Self {
        if mask == (0, N) {
            // SAFETY: the mask selects all lanes, so *pointer validity* of `Vector` covers reads of all lanes.
            return unsafe { Self::load(p) };
        }
        // SAFETY: `load_over` and this method have the same contract: *pointer validity* of `Vector` for the lanes in
        // the mask.
        unsafe { Self([T::ZERO; N]).load_over(p, mask) }
    }

    #[inline(always)]
    unsafe fn load_over(mut self, p: *const T, (first, end): (usize, usize)) -> Self {
        for (i, lane) in self.0.iter_mut().enumerate().take(end).skip(first) {
            // SAFETY: *pointer validity* of `Vector`: lane `i` is in the mask, so `p + i` is valid for a read.
            *lane = unsafe { p.wrapping_add(i).read_unaligned() };
        }
        self
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut T) {
        // SAFETY: *pointer validity* of `Vector`: `p` is valid for one unaligned write of N elements.
        unsafe { p.cast::<[T; N]>().write_unaligned(self.0) }
    }

    #[inline(always)]
    unsafe fn store_part(self, p: *mut T, (first, end): (usize, usize)) {
        if (first, end) == (0, N) {
            // SAFETY: the mask selects all lanes, so *pointer validity* of `Vector` covers writes of all lanes.
            return unsafe { self.store(p) };
        }
        for (i, &lane) in self.0.iter().enumerate().take(end).skip(first) {
            // SAFETY: *pointer validity* of `Vector`: lane `i` is in the mask, so `p + i` is valid for a write.
            unsafe { p.add(i).write_unaligned(lane) }
        }
    }

    #[inline(always)]
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        let mut sum = c.0;
        if const { T::HALF.is_some() && !HAS_FMA } {
            mul_add_out_of_line(&self.0, &b.0, &mut sum);
        } else {
            mul_add_lanes(&self.0, &b.0, &mut sum);
        }
        Self(sum)
    }

    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        let mut sum = self.0;
        for (sum, b) in sum.iter_mut().zip(b.0) {
            *sum = sum.add(b);
        }
        Self(sum)
    }

    #[inline(always)]
    unsafe fn sub(self, b: Self) -> Self {
        let mut difference = self.0;
        for (difference, b) in difference.iter_mut().zip(b.0) {
            *difference = difference.sub(b);
        }
        Self(difference)
    }

    #[inline(always)]
    unsafe fn fold(mut self) -> T {
        let mut half = N / 2;
        while half > 0 {
            for l in 0..half {
                self.0[l] = self.0[l].add(self.0[l + half]);
            }
            half /= 2;
        }
        self.0[0]
    }

    #[inline(always)]
    unsafe fn transpose(from: *const T, from_row: isize, to: *mut T, to_row: isize) {
        for i in 0..N {
            for j in 0..N {
                // SAFETY: *pointer validity* of `transpose`: both pointers are aligned and valid for the N×N block at
                // their row strides, and `i, j < N`.
                unsafe { *to.offset(j as isize * to_row).add(i) = *from.offset(i as isize * from_row).add(j) }
            }
        }
    }
}

/// Adds the products of the lanes of `a` and `b` to the lanes of `sum`. Each result is rounded once.
#[inline(always)]
fn mul_add_lanes<T: Element, const N: usize>(a: &[T; N], b: &[T; N], sum: &mut [T; N]) {
    for ((sum, a), b) in sum.iter_mut().zip(a).zip(b) {
        *sum = a.mul_add(*b, *sum);
    }
}

/// Computes [`mul_add_lanes`]. Without a fused multiply-add, every lane is a call to the C library, so inlining would
/// gain nothing.
#[inline(never)]
fn mul_add_out_of_line<T: Element, const N: usize>(a: &[T; N], b: &[T; N], sum: &mut [T; N]) {
    mul_add_lanes(a, b, sum);
}

/// Calls a function of an element without inlining it.
#[inline(never)]
fn call<T: Real>(x: T, f: impl Fn(T) -> T) -> T {
    f(x)
}

impl<T: Element + Real, const N: usize> FloatVector for Lanes<T, N> {
    const HAS_FMA: bool = HAS_FMA;
    type LaneMask = [bool; N];

    #[inline(always)]
    unsafe fn less(self, b: Self) -> [bool; N] {
        std::array::from_fn(|i| self.0[i] < b.0[i])
    }

    #[inline(always)]
    unsafe fn less_equal(self, b: Self) -> [bool; N] {
        std::array::from_fn(|i| self.0[i] <= b.0[i])
    }

    #[inline(always)]
    unsafe fn equal(self, b: Self) -> [bool; N] {
        std::array::from_fn(|i| self.0[i] == b.0[i])
    }

    #[inline(always)]
    unsafe fn not_equal(self, b: Self) -> [bool; N] {
        std::array::from_fn(|i| self.0[i] != b.0[i])
    }

    #[inline(always)]
    unsafe fn select(self, b: Self, mask: [bool; N]) -> Self {
        Self(std::array::from_fn(|i| if mask[i] { self.0[i] } else { b.0[i] }))
    }

    #[inline(always)]
    unsafe fn both(a: [bool; N], b: [bool; N]) -> [bool; N] {
        std::array::from_fn(|i| a[i] & b[i])
    }

    #[inline(always)]
    unsafe fn either(a: [bool; N], b: [bool; N]) -> [bool; N] {
        std::array::from_fn(|i| a[i] | b[i])
    }

    #[inline(always)]
    unsafe fn is_true(mask: [bool; N]) -> bool {
        mask == [true; N]
    }

    #[inline(always)]
    unsafe fn exp<const R: usize>(v: [Self; R]) -> Option<[Self; R]> {
        if HAS_FMA { None } else { Some(v.map(|v| Self(v.0.map(|x| call(x, T::exp))))) }
    }

    #[inline(always)]
    unsafe fn tanh<const R: usize>(v: [Self; R]) -> Option<[Self; R]> {
        if HAS_FMA { None } else { Some(v.map(|v| Self(v.0.map(|x| call(x, T::tanh))))) }
    }

    #[inline(always)]
    unsafe fn mul(self, b: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] * b.0[i]))
    }

    #[inline(always)]
    unsafe fn div(self, b: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] / b.0[i]))
    }

    #[inline(always)]
    unsafe fn neg(self) -> Self {
        Self(self.0.map(|x| -x))
    }

    #[inline(always)]
    unsafe fn sqrt(self) -> Self {
        Self(self.0.map(T::sqrt))
    }

    #[inline(always)]
    unsafe fn stream(self, p: *mut T) {
        debug_assert!(p.is_aligned(), "the pointer {p:?} of a non-temporal store must be aligned");
        // SAFETY: `stream` and `store` require the same clause, *pointer validity* of `Vector`: writes of all lanes.
        unsafe { self.store(p) }
    }
}
