//! Vectors as plain arrays, which the compiler turns into whatever registers the target has.

use super::{FloatVector, Vector};
use crate::math::Real;
use crate::matmul::Element;

/// Eight numbers in an array: two NEON registers of `f32`, one AVX2 register of `i32`.
#[derive(Clone, Copy)]
pub(crate) struct Lanes<T>([T; 8]);

impl<T: Element> Vector for Lanes<T> {
    type Scalar = T;
    type Mask = usize;
    const LANES: usize = 8;
    const SIDE: usize = 8;

    #[inline(always)]
    unsafe fn zero() -> Self {
        Self([T::ZERO; 8])
    }

    #[inline(always)]
    unsafe fn splat(p: *const T) -> Self {
        // SAFETY: the caller's pointer is valid for one number.
        Self([unsafe { p.read_unaligned() }; 8])
    }

    #[inline(always)]
    unsafe fn mask(n: usize) -> usize {
        n
    }

    #[inline(always)]
    unsafe fn load(p: *const T) -> Self {
        // SAFETY: the caller's pointer is valid for eight numbers.
        Self(unsafe { p.cast::<[T; 8]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn load_part(p: *const T, n: usize) -> Self {
        if n == 8 {
            // SAFETY: all eight lanes are selected.
            return unsafe { Self::load(p) };
        }
        let mut lanes = [T::ZERO; 8];
        for (i, lane) in lanes.iter_mut().enumerate().take(n) {
            // SAFETY: the caller's pointer is valid for the first `n` numbers.
            *lane = unsafe { p.add(i).read_unaligned() };
        }
        Self(lanes)
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut T) {
        // SAFETY: the caller's pointer is valid for eight numbers.
        unsafe { p.cast::<[T; 8]>().write_unaligned(self.0) }
    }

    #[inline(always)]
    unsafe fn store_part(self, p: *mut T, n: usize) {
        if n == 8 {
            // SAFETY: all eight lanes are selected.
            return unsafe { self.store(p) };
        }
        for (i, &lane) in self.0.iter().enumerate().take(n) {
            // SAFETY: the caller's pointer is valid for the first `n` numbers.
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
                // SAFETY: the caller's pointers are valid for the square block.
                unsafe { *to.add(j * to_row + i) = *from.offset(i as isize * from_row).add(j) }
            }
        }
    }
}

impl<T: Element + Real> FloatVector for Lanes<T> {
    #[inline(always)]
    unsafe fn sub(self, b: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] - b.0[i]))
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
    unsafe fn stream(self, p: *mut T) {
        // SAFETY: the caller's pointer is valid for eight numbers.
        unsafe { self.store(p) }
    }
}
