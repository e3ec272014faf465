//! Vectors of x86-64: 512 bits (AVX-512F) and 256 bits (AVX2 with FMA).

use super::interleaved::{self, SingleVector};
use super::{FloatVector, Vector};
use std::arch::x86_64::*;

/// Sixteen `f32` in a 512-bit register.
#[derive(Clone, Copy)]
pub struct F32x16(__m512);
/// Eight `f64` in a 512-bit register.
#[derive(Clone, Copy)]
pub struct F64x8(__m512d);
/// Eight `f32` in a 256-bit register.
#[derive(Clone, Copy)]
pub struct F32x8(__m256);
/// Four `f64` in a 256-bit register.
#[derive(Clone, Copy)]
pub struct F64x4(__m256d);

/// Maps the vocabulary of [`Vector`] to intrinsics; what differs in form between the sets (masks)
/// is given as expressions.
macro_rules! vector {
    (
        $name:ident, $scalar:ty, lanes $lanes:literal, mask $mask:ty, side $side:literal by $transpose:ident;
        $zero:ident, $set:ident, $load:ident, $store:ident, $stream:ident, $fma:ident, $add:ident, $sub:ident, $mul:ident, $div:ident, $sqrt:ident, $fold:ident;
        |$n:ident| $make_mask:expr, |$from:ident, $to:ident| $between:expr, |$lp:ident, $lm:ident| $load_part:expr,
        |$op:ident, $om:ident, $ov:ident| $load_over:expr, |$sp:ident, $sm:ident, $sv:ident| $store_part:expr
        $(; $functions:ident)?
    ) => {
        impl Vector for $name {
            type Scalar = $scalar;
            type Mask = $mask;
            const LANES: usize = $lanes;
            const SIDE: usize = $side;

            #[inline(always)]
            unsafe fn zero() -> Self {
                // SAFETY: the caller runs with the instruction set, as the trait asks.
                Self(unsafe { $zero() })
            }

            #[inline(always)]
            unsafe fn splat(p: *const $scalar) -> Self {
                // SAFETY: as above, and `p` is valid for one number.
                Self(unsafe { $set(p.read_unaligned()) })
            }

            #[inline(always)]
            unsafe fn mask($n: usize) -> $mask {
                debug_assert!($n <= $lanes);
                // SAFETY: as above.
                #[allow(unused_unsafe)]
                unsafe {
                    $make_mask
                }
            }

            #[inline(always)]
            unsafe fn mask_from(first: usize, n: usize) -> $mask {
                // SAFETY: as above.
                unsafe {
                    let ($from, $to) = (Self::mask(first), Self::mask(first + n));
                    #[allow(unused_unsafe)]
                    {
                        $between
                    }
                }
            }

            #[inline(always)]
            unsafe fn load_over(self, $op: *const $scalar, $om: $mask) -> Self {
                let $ov = self.0;
                // SAFETY: as for `load_part`.
                Self(unsafe { $load_over })
            }

            #[inline(always)]
            unsafe fn load(p: *const $scalar) -> Self {
                // SAFETY: as above, and `p` is valid for all lanes.
                Self(unsafe { $load(p) })
            }

            #[inline(always)]
            unsafe fn load_part($lp: *const $scalar, $lm: $mask) -> Self {
                // SAFETY: as above, and `p` is valid for the lanes of the mask; a masked load
                // suppresses faults of the others.
                Self(unsafe { $load_part })
            }

            #[inline(always)]
            unsafe fn store(self, p: *mut $scalar) {
                // SAFETY: as above, and `p` is valid for all lanes.
                unsafe { $store(p, self.0) }
            }

            #[inline(always)]
            unsafe fn store_part(self, $sp: *mut $scalar, $sm: $mask) {
                let $sv = self.0;
                // SAFETY: as above, and `p` is valid for the lanes of the mask.
                unsafe { $store_part }
            }

            #[inline(always)]
            unsafe fn mul_add(self, b: Self, c: Self) -> Self {
                // SAFETY: as above.
                Self(unsafe { $fma(self.0, b.0, c.0) })
            }

            #[inline(always)]
            unsafe fn add(self, b: Self) -> Self {
                // SAFETY: as above.
                Self(unsafe { $add(self.0, b.0) })
            }

            #[inline(always)]
            unsafe fn sub(self, b: Self) -> Self {
                // SAFETY: as above.
                Self(unsafe { $sub(self.0, b.0) })
            }

            #[inline(always)]
            unsafe fn fold(self) -> $scalar {
                // SAFETY: as above.
                unsafe { $fold(self.0) }
            }

            #[inline(always)]
            unsafe fn transpose(from: *const $scalar, from_row: isize, to: *mut $scalar, to_row: usize) {
                // SAFETY: both sets include AVX, and the pointers are valid for the square block.
                unsafe { $transpose(from, from_row, to, to_row) }
            }
        }

        impl FloatVector for $name {
            #[inline(always)]
            unsafe fn mul(self, b: Self) -> Self {
                // SAFETY: as above.
                Self(unsafe { $mul(self.0, b.0) })
            }

            #[inline(always)]
            unsafe fn div(self, b: Self) -> Self {
                // SAFETY: as above.
                Self(unsafe { $div(self.0, b.0) })
            }

            #[inline(always)]
            unsafe fn neg(self) -> Self {
                // SAFETY: as above. −0 − x is −x for every x.
                Self(unsafe { $sub($set(-0.0), self.0) })
            }

            #[inline(always)]
            unsafe fn sqrt(self) -> Self {
                // SAFETY: as above.
                Self(unsafe { $sqrt(self.0) })
            }

            #[inline(always)]
            unsafe fn stream(self, p: *mut $scalar) {
                debug_assert!(p.addr().is_multiple_of(size_of::<Self>()), "{p:?}");
                // SAFETY: as above, and `p` is valid for all lanes and aligned to the vector.
                unsafe { $stream(p, self.0) }
            }

            $($functions!();)?
        }
    };
}

/// The functions that vectors of `f32` have.
macro_rules! functions {
    () => {
        #[inline(always)]
        unsafe fn exp<const R: usize>(v: [Self; R]) -> Option<[Self; R]> {
            // SAFETY: the caller's promise.
            unsafe { interleaved::exp(v) }
        }

        #[inline(always)]
        unsafe fn tanh<const R: usize>(v: [Self; R]) -> Option<[Self; R]> {
            // SAFETY: the caller's promise.
            Some(unsafe { interleaved::tanh(v) })
        }
    };
}

/// Maps the vocabulary of [`SingleVector`] to intrinsics.
macro_rules! single {
    ($name:ident; $cast:ident, $back:ident, $and:ident, $andnot:ident, $or:ident, $shift:ident, $add:ident, $set:ident, $min:ident;
     |$x:ident, $limit:ident| $beyond:expr) => {
        impl SingleVector for $name {
            #[inline(always)]
            unsafe fn abs(self) -> Self {
                // SAFETY: the caller runs with the instruction set, as the trait asks.
                Self(unsafe { $back($and($cast(self.0), $set(i32::MAX))) })
            }

            #[inline(always)]
            unsafe fn at_most(self, c: Self) -> Self {
                // SAFETY: as above. The second operand is taken where one is NaN.
                Self(unsafe { $min(c.0, self.0) })
            }

            #[inline(always)]
            unsafe fn copysign(self, s: Self) -> Self {
                // SAFETY: as above.
                unsafe {
                    let sign = $set(i32::MIN);
                    Self($back($or($andnot(sign, $cast(self.0)), $and(sign, $cast(s.0)))))
                }
            }

            #[inline(always)]
            unsafe fn low_bits_as_exponent(self) -> Self {
                // SAFETY: as above.
                Self(unsafe { $back($shift::<23>($cast(self.0))) })
            }

            #[inline(always)]
            unsafe fn add_bits(self, b: Self) -> Self {
                // SAFETY: as above.
                Self(unsafe { $back($add($cast(self.0), $cast(b.0))) })
            }

            #[inline(always)]
            unsafe fn any_beyond(self, limit: Self) -> bool {
                // SAFETY: as above.
                unsafe {
                    let ($x, $limit) = (self.abs().0, limit.0);
                    $beyond
                }
            }
        }
    };
}

single! {
    F32x16; _mm512_castps_si512, _mm512_castsi512_ps, _mm512_and_si512, _mm512_andnot_si512, _mm512_or_si512, _mm512_slli_epi32,
    _mm512_add_epi32, _mm512_set1_epi32, _mm512_min_ps;
    |x, limit| _mm512_cmp_ps_mask::<_CMP_NLE_UQ>(x, limit) != 0
}

single! {
    F32x8; _mm256_castps_si256, _mm256_castsi256_ps, _mm256_and_si256, _mm256_andnot_si256, _mm256_or_si256, _mm256_slli_epi32,
    _mm256_add_epi32, _mm256_set1_epi32, _mm256_min_ps;
    |x, limit| _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_NLE_UQ>(x, limit)) != 0
}

vector! {
    F32x16, f32, lanes 16, mask __mmask16, side 8 by transpose_f32;
    _mm512_setzero_ps, _mm512_set1_ps, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_stream_ps, _mm512_fmadd_ps, _mm512_add_ps,
    _mm512_sub_ps, _mm512_mul_ps, _mm512_div_ps, _mm512_sqrt_ps,
    fold512_ps;
    |n| ((1u32 << n) - 1) as __mmask16,
    |before, end| end & !before,
    |p, mask| _mm512_maskz_loadu_ps(mask, p),
    |p, mask, value| _mm512_mask_loadu_ps(value, mask, p),
    |p, mask, value| _mm512_mask_storeu_ps(p, mask, value);
    functions
}

vector! {
    F64x8, f64, lanes 8, mask __mmask8, side 4 by transpose_f64;
    _mm512_setzero_pd, _mm512_set1_pd, _mm512_loadu_pd, _mm512_storeu_pd, _mm512_stream_pd, _mm512_fmadd_pd, _mm512_add_pd,
    _mm512_sub_pd, _mm512_mul_pd, _mm512_div_pd, _mm512_sqrt_pd,
    fold512_pd;
    |n| ((1u32 << n) - 1) as __mmask8,
    |before, end| end & !before,
    |p, mask| _mm512_maskz_loadu_pd(mask, p),
    |p, mask, value| _mm512_mask_loadu_pd(value, mask, p),
    |p, mask, value| _mm512_mask_storeu_pd(p, mask, value)
}

vector! {
    F32x8, f32, lanes 8, mask __m256i, side 8 by transpose_f32;
    _mm256_setzero_ps, _mm256_set1_ps, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_stream_ps, _mm256_fmadd_ps, _mm256_add_ps,
    _mm256_sub_ps, _mm256_mul_ps, _mm256_div_ps, _mm256_sqrt_ps,
    fold256_ps;
    |n| _mm256_cmpgt_epi32(_mm256_set1_epi32(n as i32), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)),
    |before, end| _mm256_andnot_si256(before, end),
    |p, mask| _mm256_maskload_ps(p, mask),
    |p, mask, value| _mm256_blendv_ps(value, _mm256_maskload_ps(p, mask), _mm256_castsi256_ps(mask)),
    |p, mask, value| _mm256_maskstore_ps(p, mask, value);
    functions
}

vector! {
    F64x4, f64, lanes 4, mask __m256i, side 4 by transpose_f64;
    _mm256_setzero_pd, _mm256_set1_pd, _mm256_loadu_pd, _mm256_storeu_pd, _mm256_stream_pd, _mm256_fmadd_pd, _mm256_add_pd,
    _mm256_sub_pd, _mm256_mul_pd, _mm256_div_pd, _mm256_sqrt_pd,
    fold256_pd;
    |n| _mm256_cmpgt_epi64(_mm256_set1_epi64x(n as i64), _mm256_setr_epi64x(0, 1, 2, 3)),
    |before, end| _mm256_andnot_si256(before, end),
    |p, mask| _mm256_maskload_pd(p, mask),
    |p, mask, value| _mm256_blendv_pd(value, _mm256_maskload_pd(p, mask), _mm256_castsi256_pd(mask)),
    |p, mask, value| _mm256_maskstore_pd(p, mask, value)
}

/// # Safety
///
/// AVX-512F is on.
#[inline(always)]
unsafe fn fold512_ps(v: __m512) -> f32 {
    // SAFETY: the caller's; a 512-bit register is extracted by halves of doubles in AVX-512F.
    unsafe {
        let upper = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(v)));
        fold256_ps(_mm256_add_ps(_mm512_castps512_ps256(v), upper))
    }
}

/// # Safety
///
/// AVX-512F is on.
#[inline(always)]
unsafe fn fold512_pd(v: __m512d) -> f64 {
    // SAFETY: the caller's.
    unsafe { fold256_pd(_mm256_add_pd(_mm512_castpd512_pd256(v), _mm512_extractf64x4_pd::<1>(v))) }
}

/// # Safety
///
/// AVX is on.
#[inline(always)]
unsafe fn fold256_ps(v: __m256) -> f32 {
    // SAFETY: the caller's.
    unsafe {
        let four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
    }
}

/// # Safety
///
/// AVX is on.
#[inline(always)]
unsafe fn fold256_pd(v: __m256d) -> f64 {
    // SAFETY: the caller's.
    unsafe {
        let two = _mm_add_pd(_mm256_castpd256_pd128(v), _mm256_extractf128_pd::<1>(v));
        _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)))
    }
}

/// Turns an 8×8 block: pairs of half rows are joined while loading, which leaves two in-lane
/// shuffles per row instead of three.
///
/// # Safety
///
/// AVX is on, and the pointers are valid for the block at their row strides.
#[inline(always)]
unsafe fn transpose_f32(from: *const f32, from_row: isize, to: *mut f32, to_row: usize) {
    // SAFETY: the caller's.
    unsafe {
        for j in [0, 4] {
            // Columns j..j+4: row i in the low half, row i + 4 in the high half.
            let mut rows = [_mm256_setzero_ps(); 4];
            for (i, row) in rows.iter_mut().enumerate() {
                let at = from.offset(i as isize * from_row).add(j);
                *row = _mm256_castps128_ps256(_mm_loadu_ps(at));
                *row = _mm256_insertf128_ps::<1>(*row, _mm_loadu_ps(at.offset(4 * from_row)));
            }
            let [r0, r1, r2, r3] = rows;
            let (t0, t1) = (_mm256_unpacklo_ps(r0, r1), _mm256_unpackhi_ps(r0, r1));
            let (t2, t3) = (_mm256_unpacklo_ps(r2, r3), _mm256_unpackhi_ps(r2, r3));
            _mm256_storeu_ps(to.add(j * to_row), _mm256_shuffle_ps::<0x44>(t0, t2));
            _mm256_storeu_ps(to.add((j + 1) * to_row), _mm256_shuffle_ps::<0xee>(t0, t2));
            _mm256_storeu_ps(to.add((j + 2) * to_row), _mm256_shuffle_ps::<0x44>(t1, t3));
            _mm256_storeu_ps(to.add((j + 3) * to_row), _mm256_shuffle_ps::<0xee>(t1, t3));
        }
    }
}

/// Turns a 4×4 block; rows are joined by halves as in [`transpose_f32`].
///
/// # Safety
///
/// AVX is on, and the pointers are valid for the block at their row strides.
#[inline(always)]
unsafe fn transpose_f64(from: *const f64, from_row: isize, to: *mut f64, to_row: usize) {
    // SAFETY: the caller's.
    unsafe {
        for j in [0, 2] {
            let mut rows = [_mm256_setzero_pd(); 2];
            for (i, row) in rows.iter_mut().enumerate() {
                let at = from.offset(i as isize * from_row).add(j);
                *row = _mm256_castpd128_pd256(_mm_loadu_pd(at));
                *row = _mm256_insertf128_pd::<1>(*row, _mm_loadu_pd(at.offset(2 * from_row)));
            }
            let [r0, r1] = rows;
            _mm256_storeu_pd(to.add(j * to_row), _mm256_unpacklo_pd(r0, r1));
            _mm256_storeu_pd(to.add((j + 1) * to_row), _mm256_unpackhi_pd(r0, r1));
        }
    }
}
