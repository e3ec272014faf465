//! Vector types, and the register operations that the kernels of matmul and of fused programs use.
//!
//! A kernel is written once, generic over [`Vector`], and compiled once per instruction set. All instruction sets
//! compute bit-identical results, except for subnormal numbers in products of [`BF16Pair`]. Every operation on numbers
//! rounds once on every processor, and an element's result does not depend on the other elements of its vector. The
//! only sum across lanes is the reduction tree of [`fold`](Vector::fold), which does not depend on how many registers
//! hold the lanes.

mod bf16_pair;
mod element;
mod i8_quad;
#[cfg(target_arch = "x86_64")]
mod interleaved;
#[cfg(target_arch = "x86_64")]
mod packed;
mod portable;
mod scalars;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use bf16_pair::BF16Pair;
pub use element::{Element, Float};
pub use i8_quad::I8Quad;
#[cfg(target_arch = "x86_64")]
pub use packed::{BF16PairX16, I8QuadX8, I8QuadX16};
pub use portable::Lanes;
pub(crate) use portable::PORTABLE_LANES;
#[cfg(target_arch = "x86_64")]
pub use x86::{F32x8, F32x16, F64x4, F64x8};

use crate::math::Real;

/// A vector register of [`LANES`](Self::LANES) elements.
///
/// # Safety
///
/// *Layout*: the memory of a vector consists of its lanes in order, without padding.
///
/// # Safety of the methods
///
/// The contract of a method consists of those of the following clauses that it names.
///
/// - *Instruction set*: the methods are `#[inline(always)]`. The caller inlines them into a function that has the
///   instruction set of the vector type enabled, on a processor that supports it.
/// - *Pointer validity*: a pointer is valid for reads or writes of every lane that the method reads or writes: of all
///   lanes, or of the lanes in the mask. Lane l is at `p + l`. Pointers need no alignment unless the method states one.
/// - *Mask*: the lanes that [`mask`](Self::mask) and [`mask_from`](Self::mask_from) select are below
///   [`LANES`](Self::LANES).
pub unsafe trait Vector: Copy {
    /// The element type of the lanes.
    type Scalar: Element;

    /// A mask that selects consecutive lanes.
    type Mask: Copy;

    /// The number of lanes.
    const LANES: usize;

    /// The side length of the square block that [`transpose`](Self::transpose) transposes.
    const SIDE: usize;

    /// Returns a vector of zeros.
    ///
    /// # Safety
    /// The clause *instruction set* of [`Vector`] holds.
    unsafe fn zero() -> Self;

    /// Returns a vector with the element at `p` broadcast to all lanes.
    ///
    /// # Safety
    /// The clauses *instruction set* and *pointer validity* (one read at `p`) of [`Vector`] hold.
    unsafe fn splat(p: *const Self::Scalar) -> Self;

    /// Returns the mask of the lanes `0..n`.
    ///
    /// # Safety
    /// The clauses *instruction set* and *mask* (`n <= LANES`) of [`Vector`] hold.
    unsafe fn mask(n: usize) -> Self::Mask;

    /// Returns the mask of the lanes `first..first + n`.
    ///
    /// # Safety
    /// The clauses *instruction set* and *mask* (`first + n <= LANES`) of [`Vector`] hold.
    unsafe fn mask_from(first: usize, n: usize) -> Self::Mask;

    /// Loads all lanes from memory.
    ///
    /// # Safety
    /// The clauses *instruction set* and *pointer validity* (reads of all lanes) of [`Vector`] hold.
    unsafe fn load(p: *const Self::Scalar) -> Self;

    /// Loads the lanes in the mask and sets all other lanes to zero. The memory of the other lanes is not accessed.
    ///
    /// # Safety
    /// The clauses *instruction set* and *pointer validity* (reads of the lanes in the mask) of [`Vector`] hold.
    unsafe fn load_part(p: *const Self::Scalar, mask: Self::Mask) -> Self;

    /// Returns `self` with the lanes in the mask loaded from memory. The memory of the other lanes is not accessed.
    ///
    /// # Safety
    /// The clauses *instruction set* and *pointer validity* (reads of the lanes in the mask) of [`Vector`] hold.
    unsafe fn load_over(self, p: *const Self::Scalar, mask: Self::Mask) -> Self;

    /// Stores all lanes to memory.
    ///
    /// # Safety
    /// The clauses *instruction set* and *pointer validity* (writes of all lanes) of [`Vector`] hold.
    unsafe fn store(self, p: *mut Self::Scalar);

    /// Stores the lanes in the mask. The memory of the other lanes is not accessed.
    ///
    /// # Safety
    /// The clauses *instruction set* and *pointer validity* (writes of the lanes in the mask) of [`Vector`] hold.
    unsafe fn store_part(self, p: *mut Self::Scalar, mask: Self::Mask);

    /// Returns `self · b + c` in every lane, as [`Element::mul_add`] does.
    ///
    /// # Safety
    /// The clause *instruction set* of [`Vector`] holds.
    unsafe fn mul_add(self, b: Self, c: Self) -> Self;

    /// True if [`mul_add_biased`](Self::mul_add_biased) adds a bias to the sums.
    const IS_BIASED: bool = false;

    /// Returns `self · b + c` in every lane, plus the bias that [`b.add_bias(z)`](Self::add_bias) adds to z.
    ///
    /// The bias depends on `b` alone, so that a kernel that multiplies b by many vectors subtracts it once.
    ///
    /// # Safety
    /// The clause *instruction set* of [`Vector`] holds.
    #[inline(always)]
    unsafe fn mul_add_biased(self, b: Self, c: Self) -> Self {
        // SAFETY: both methods have the same contract.
        unsafe { self.mul_add(b, c) }
    }

    /// Returns `c` plus the bias of a product with `self`.
    ///
    /// # Safety
    /// The clause *instruction set* of [`Vector`] holds.
    #[inline(always)]
    unsafe fn add_bias(self, c: Self) -> Self {
        c
    }

    /// Returns `self + b` in every lane (wrapping for integers).
    ///
    /// # Safety
    /// The clause *instruction set* of [`Vector`] holds.
    unsafe fn add(self, b: Self) -> Self;

    /// Returns `self − b` in every lane (wrapping for integers).
    ///
    /// # Safety
    /// The clause *instruction set* of [`Vector`] holds.
    unsafe fn sub(self, b: Self) -> Self;

    /// Returns the sum of all lanes, reduced by halving: lane l + LANES/2 is added to lane l, then lane l + LANES/4,
    /// and so on.
    ///
    /// # Safety
    /// The clause *instruction set* of [`Vector`] holds.
    unsafe fn fold(self) -> Self::Scalar;

    /// Transposes a square block: `to[j·to_row + i] = from[i·from_row + j]` for `i, j < SIDE`.
    ///
    /// The row strides are in elements. If the two blocks overlap, the result is unspecified.
    ///
    /// # Safety
    /// The clauses *instruction set* and *pointer validity* of [`Vector`] hold: `from` is valid for reads, and `to` for
    /// writes, of the `SIDE` × `SIDE` elements at their row strides. Both pointers are aligned to the element type.
    unsafe fn transpose(from: *const Self::Scalar, from_row: isize, to: *mut Self::Scalar, to_row: isize);
}

/// A vector register of floats, with the arithmetic that only floats have.
///
/// # Safety of the methods
///
/// The clauses *instruction set*, *pointer validity* and *mask* are defined in [`Vector`].
pub trait FloatVector: Vector<Scalar: Real> {
    /// True if the instruction set has a fused multiply-add. Without one, every multiply-add is a call to the C
    /// library; kernels then call scalar functions for each lane instead of inlining them.
    const HAS_FMA: bool = true;

    /// A boolean for each lane, the result of a comparison.
    type LaneMask: Copy;

    /// Returns `self < b` in every lane.
    ///
    /// # Safety
    /// The clause *instruction set* of [`Vector`] holds.
    unsafe fn less(self, b: Self) -> Self::LaneMask;

    /// Returns `self ≤ b` in every lane.
    ///
    /// # Safety
    /// The clause *instruction set* of [`Vector`] holds.
    unsafe fn less_equal(self, b: Self) -> Self::LaneMask;

    /// Returns `self = b` in every lane.
    ///
    /// # Safety
    /// The clause *instruction set* of [`Vector`] holds.
    unsafe fn equal(self, b: Self) -> Self::LaneMask;

    /// Returns `self ≠ b` in every lane.
    ///
    /// # Safety
    /// The clause *instruction set* of [`Vector`] holds.
    unsafe fn not_equal(self, b: Self) -> Self::LaneMask;

    /// Returns `self` in the lanes of the mask, and `b` in all others.
    ///
    /// # Safety
    /// The clause *instruction set* of [`Vector`] holds.
    unsafe fn select(self, b: Self, mask: Self::LaneMask) -> Self;

    /// Returns the mask of the lanes that are in both masks.
    ///
    /// # Safety
    /// The clause *instruction set* of [`Vector`] holds.
    unsafe fn both(a: Self::LaneMask, b: Self::LaneMask) -> Self::LaneMask;

    /// Returns the mask of the lanes that are in at least one of the masks.
    ///
    /// # Safety
    /// The clause *instruction set* of [`Vector`] holds.
    unsafe fn either(a: Self::LaneMask, b: Self::LaneMask) -> Self::LaneMask;

    /// Returns whether the mask is true in all lanes.
    ///
    /// # Safety
    /// The clause *instruction set* of [`Vector`] holds.
    unsafe fn is_true(mask: Self::LaneMask) -> bool;

    /// Returns the larger operand in every lane, like [`Real::max`].
    ///
    /// # Safety
    /// The clause *instruction set* of [`Vector`] holds.
    #[inline(always)]
    unsafe fn max(self, b: Self) -> Self {
        // SAFETY: all methods require the same clause, *instruction set* of `Vector`.
        unsafe { self.select(b, b.less(self)).select(self, self.equal(self)) }
    }

    /// Returns the smaller operand in every lane, like [`Real::min`].
    ///
    /// # Safety
    /// The clause *instruction set* of [`Vector`] holds.
    #[inline(always)]
    unsafe fn min(self, b: Self) -> Self {
        // SAFETY: all methods require the same clause, *instruction set* of `Vector`.
        unsafe { self.select(b, self.less(b)).select(self, self.equal(self)) }
    }

    /// Returns `b` in the lanes where `self < b`, and `self` in all others.
    ///
    /// # Safety
    /// The clause *instruction set* of [`Vector`] holds.
    #[inline(always)]
    unsafe fn raise(self, b: Self) -> Self {
        // SAFETY: all methods require the same clause, *instruction set* of `Vector`.
        unsafe { b.select(self, self.less(b)) }
    }

    /// Returns `b` in the lanes where `self > b`, and `self` in all others.
    ///
    /// # Safety
    /// The clause *instruction set* of [`Vector`] holds.
    #[inline(always)]
    unsafe fn lower(self, b: Self) -> Self {
        // SAFETY: all methods require the same clause, *instruction set* of `Vector`.
        unsafe { b.select(self, b.less(self)) }
    }

    /// Returns `self · b` in every lane.
    ///
    /// # Safety
    /// The clause *instruction set* of [`Vector`] holds.
    unsafe fn mul(self, b: Self) -> Self;

    /// Returns `self / b` in every lane.
    ///
    /// # Safety
    /// The clause *instruction set* of [`Vector`] holds.
    unsafe fn div(self, b: Self) -> Self;

    /// Returns `−self`: every lane with its sign changed.
    ///
    /// # Safety
    /// The clause *instruction set* of [`Vector`] holds.
    unsafe fn neg(self) -> Self;

    /// Returns √x of every lane, rounded once.
    ///
    /// # Safety
    /// The clause *instruction set* of [`Vector`] holds.
    unsafe fn sqrt(self) -> Self;

    /// Returns eˣ of every lane of R vectors, with the steps of the vectors interleaved.
    ///
    /// Returns `None` if a lane exceeds [`Real::EXP_LIMIT`] in magnitude or is NaN, or if this vector type has no
    /// vector implementation.
    ///
    /// # Safety
    /// The clause *instruction set* of [`Vector`] holds.
    #[inline(always)]
    unsafe fn exp<const R: usize>(_: [Self; R]) -> Option<[Self; R]> {
        None
    }

    /// Returns tanh x of every lane of R vectors, with the steps of the vectors interleaved.
    ///
    /// Returns `None` if this vector type has no vector implementation.
    ///
    /// # Safety
    /// The clause *instruction set* of [`Vector`] holds.
    #[inline(always)]
    unsafe fn tanh<const R: usize>(_: [Self; R]) -> Option<[Self; R]> {
        None
    }

    /// Returns 1 / (1 + e⁻ˣ) of every lane of R vectors, with the steps of the vectors interleaved.
    ///
    /// Returns `None` if a lane exceeds [`Real::EXP_LIMIT`] in magnitude or is NaN, or if this vector type has no
    /// vector implementation.
    ///
    /// # Safety
    /// The clause *instruction set* of [`Vector`] holds.
    #[inline(always)]
    unsafe fn sigmoid<const R: usize>(_: [Self; R]) -> Option<[Self; R]> {
        None
    }

    /// Returns the standard normal distribution function Φ(x) of every lane of R vectors, with the steps of the vectors
    /// interleaved.
    ///
    /// Returns `None` if a lane exceeds [`NDTR_LIMIT`](crate::math::single::NDTR_LIMIT) in magnitude or is NaN, or if
    /// this vector type has no vector implementation.
    ///
    /// # Safety
    /// The clause *instruction set* of [`Vector`] holds.
    #[inline(always)]
    unsafe fn ndtr<const R: usize>(_: [Self; R]) -> Option<[Self; R]> {
        None
    }

    /// Stores all lanes with a non-temporal store, or with an ordinary store if the target has none.
    ///
    /// # Safety
    /// - The clauses *instruction set* and *pointer validity* (writes of all lanes) of [`Vector`] hold.
    /// - *Alignment*: `p` is aligned to the size of the vector.
    unsafe fn stream(self, p: *mut Self::Scalar);
}

/// A unary function with a branch-free fast path, for elementwise loops.
pub trait Function<T> {
    /// The type of the result.
    type Out;

    /// True if [`is_rare`](Self::is_rare) returns true for at least one operand.
    const HAS_RARE: bool = false;

    /// Returns the result without branches. It is correct for every operand for which `is_rare` is false.
    fn at(x: T) -> Self::Out;

    /// Returns true for an operand that [`at`](Self::at) does not support.
    #[inline(always)]
    fn is_rare(_: T) -> bool {
        false
    }

    /// Returns the result for a rare operand. This function may branch and may be slow.
    #[inline(always)]
    fn rare(x: T) -> Self::Out {
        Self::at(x)
    }
}

/// Returns the elements of an array of vectors, in order.
#[inline(always)]
pub fn lanes<V: FloatVector, const R: usize>(v: &mut [V; R]) -> &mut [V::Scalar] {
    // SAFETY: the memory of a vector consists of its `LANES` elements in order, without padding (the clause *Layout* of
    // `Vector`), so `R * LANES` elements are valid. The result borrows `v` exclusively.
    unsafe { std::slice::from_raw_parts_mut(v.as_mut_ptr().cast(), R * V::LANES) }
}

/// Prefetches the cache line at `p` into the first-level cache. Any address is allowed.
#[inline(always)]
pub fn prefetch<T>(p: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch has no effect that the program can observe and never faults, whatever the address. SSE is part
    // of the x86-64 baseline.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(p.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = p;
}

/// Prefetches the cache lines of `len` elements starting at `p` into the second-level cache.
///
/// The first-level cache is left to the data that the kernel needs before these elements.
#[inline(always)]
pub fn prefetch_run<T>(p: *const T, len: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (p.addr() & !63..p.wrapping_add(len).addr()).step_by(64) {
        // SAFETY: a prefetch has no effect that the program can observe and never faults, whatever the address. SSE is
        // part of the x86-64 baseline.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T1>(p.with_addr(line).cast());
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (p, len);
}
