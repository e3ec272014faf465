//! Portable vectors: arrays that the compiler maps to the vector registers of the target.

use super::{FloatVector, Vector};
use crate::element::Element;
use crate::math::Real;

/// A vector of eight elements in an array: two NEON registers of `f32`, or one AVX2 register of `i32`.
///
/// Its methods need no enabled instruction set; the clause *instruction set* of [`Vector`] always holds.
#[derive(Clone, Copy)]
pub struct Lanes<T>([T; 8]);

// SAFETY: the type is an array of its lanes.
unsafe impl<T: Element> Vector for Lanes<T> {
    type Scalar = T;
    /// The half-open range of selected lanes: (first, end).
    type Mask = (usize, usize);
    const LANES: usize = 8;
    const SIDE: usize = 8;

    #[inline(always)]
    unsafe fn zero() -> Self {
        Self([T::ZERO; 8])
    }

    #[inline(always)]
    unsafe fn splat(p: *const T) -> Self {
        // SAFETY: *pointer validity* of `Vector`: `p` is valid for one unaligned read.
        Self([unsafe { p.read_unaligned() }; 8])
    }

    #[inline(always)]
    unsafe fn mask(n: usize) -> (usize, usize) {
        debug_assert!(n <= 8, "{n} lanes");
        (0, n)
    }

    #[inline(always)]
    unsafe fn mask_from(first: usize, n: usize) -> (usize, usize) {
        debug_assert!(first + n <= 8, "{n} lanes from lane {first} on");
        (first, first + n)
    }

    #[inline(always)]
    unsafe fn load(p: *const T) -> Self {
        // SAFETY: *pointer validity* of `Vector`: `p` is valid for one unaligned read of eight elements.
        Self(unsafe { p.cast::<[T; 8]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn load_part(p: *const T, mask: (usize, usize)) -> Self {
        if mask == (0, 8) {
            // SAFETY: the mask selects all eight lanes, so that *pointer validity* covers reads of all lanes.
            return unsafe { Self::load(p) };
        }
        // SAFETY: `load_over` and this method have the same contract: *pointer validity* for the lanes in the mask.
        unsafe { Self([T::ZERO; 8]).load_over(p, mask) }
    }

    #[inline(always)]
    unsafe fn load_over(mut self, p: *const T, (first, end): (usize, usize)) -> Self {
        for (i, lane) in self.0.iter_mut().enumerate().take(end).skip(first) {
            // SAFETY: *pointer validity* of `Vector`: lane `i` is in the mask, so that `p + i` is valid for a read.
            *lane = unsafe { p.wrapping_add(i).read_unaligned() };
        }
        self
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut T) {
        // SAFETY: *pointer validity* of `Vector`: `p` is valid for one unaligned write of eight elements.
        unsafe { p.cast::<[T; 8]>().write_unaligned(self.0) }
    }

    #[inline(always)]
    unsafe fn store_part(self, p: *mut T, (first, end): (usize, usize)) {
        if (first, end) == (0, 8) {
            // SAFETY: the mask selects all eight lanes, so that *pointer validity* covers writes of all lanes.
            return unsafe { self.store(p) };
        }
        for (i, &lane) in self.0.iter().enumerate().take(end).skip(first) {
            // SAFETY: *pointer validity* of `Vector`: lane `i` is in the mask, so that `p + i` is valid for a write.
            unsafe { p.add(i).write_unaligned(lane) }
        }
    }

    #[inline(always)]
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        let mut sum = c.0;
        for ((sum, a), b) in sum.iter_mut().zip(self.0).zip(b.0) {
            *sum = a.mul_add(b, *sum);
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
        for half in [4, 2, 1] {
            for l in 0..half {
                self.0[l] = self.0[l].add(self.0[l + half]);
            }
        }
        self.0[0]
    }

    #[inline(always)]
    unsafe fn transpose(from: *const T, from_row: isize, to: *mut T, to_row: usize) {
        for i in 0..8 {
            for j in 0..8 {
                // SAFETY: *pointer validity* of `transpose`: both pointers are aligned and valid for the 8×8 block at
                // their row strides, and `i, j < 8`.
                unsafe { *to.add(j * to_row + i) = *from.offset(i as isize * from_row).add(j) }
            }
        }
    }
}

impl<T: Element + Real> FloatVector for Lanes<T> {
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
        debug_assert!(p.is_aligned(), "{p:?}");
        // SAFETY: `stream` and `store` require the same *pointer validity*: writes of all lanes.
        unsafe { self.store(p) }
    }
}
