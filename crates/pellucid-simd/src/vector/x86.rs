//! Vectors of x86-64: 512-bit (AVX-512F) and 256-bit (AVX2 with FMA).
//!
//! The SAFETY comments refer to the clauses *instruction set*, *pointer validity* and *mask* of [`Vector`].

use super::interleaved::{self, SingleVector};
use super::{FloatVector, Vector};
use std::arch::x86_64::*;

/// A vector of sixteen `f32` in a 512-bit register.
#[derive(Clone, Copy)]
pub struct F32x16(pub(super) __m512);
/// A vector of eight `f64` in a 512-bit register.
#[derive(Clone, Copy)]
pub struct F64x8(__m512d);
/// A vector of eight `f32` in a 256-bit register.
#[derive(Clone, Copy)]
pub struct F32x8(pub(super) __m256);
/// A vector of four `f64` in a 256-bit register.
#[derive(Clone, Copy)]
pub struct F64x4(__m256d);

/// Implements [`Vector`] and [`FloatVector`] with intrinsics.
///
/// Operations with masks differ in form between the instruction sets; the macro therefore receives them as expressions.
macro_rules! impl_vector {
    (
        $name:ident, $scalar:ty, lanes $lanes:literal, mask $mask:ty, side $side:literal by $transpose:ident;
        $zero:ident, $set:ident, $load:ident, $store:ident, $stream:ident, $fma:ident,
        $add:ident, $sub:ident, $mul:ident, $div:ident, $sqrt:ident, $max:ident, $min:ident, $fold:ident;
        |$n:ident| $make_mask:expr, |$from:ident, $to:ident| $make_range_mask:expr,
        |$lp:ident, $lm:ident| $load_part:expr,
        |$op:ident, $om:ident, $ov:ident| $load_over:expr, |$sp:ident, $sm:ident, $sv:ident| $store_part:expr,
        lane mask $lane_mask:ty, $compare:ident, |$bm:ident, $bx:ident, $by:ident| $blend:expr,
        |$p:ident, $q:ident| $both:expr, $either:expr, $bits:expr
        $(; $functions:ident)?
    ) => {
        // SAFETY: the register type has the layout of an array of its lanes.
        unsafe impl Vector for $name {
            type Scalar = $scalar;
            type Mask = $mask;
            const LANES: usize = $lanes;
            const SIDE: usize = $side;

            #[inline(always)]
            unsafe fn zero() -> Self {
                // SAFETY: *instruction set* of `Vector` covers the intrinsic.
                Self(unsafe { $zero() })
            }

            #[inline(always)]
            unsafe fn splat(p: *const $scalar) -> Self {
                // SAFETY: *instruction set* of `Vector` covers the intrinsic; *pointer validity* covers one read at
                // `p`.
                Self(unsafe { $set(p.read_unaligned()) })
            }

            #[inline(always)]
            unsafe fn mask($n: usize) -> $mask {
                debug_assert!($n <= $lanes);
                // SAFETY: *instruction set* of `Vector` covers the intrinsics.
                #[allow(unused_unsafe)]
                unsafe {
                    $make_mask
                }
            }

            #[inline(always)]
            unsafe fn mask_from(first: usize, n: usize) -> $mask {
                // SAFETY: *instruction set* of `Vector` covers the intrinsics; `first + n <= LANES` (*mask*) implies
                // `first <= LANES`.
                unsafe {
                    let ($from, $to) = (Self::mask(first), Self::mask(first + n));
                    #[allow(unused_unsafe)]
                    {
                        $make_range_mask
                    }
                }
            }

            #[inline(always)]
            unsafe fn load_over(self, $op: *const $scalar, $om: $mask) -> Self {
                let $ov = self.0;
                // SAFETY: *instruction set* of `Vector` covers the intrinsics; *pointer validity* covers the lanes in
                // the mask. A masked load suppresses faults of the other lanes.
                Self(unsafe { $load_over })
            }

            #[inline(always)]
            unsafe fn load(p: *const $scalar) -> Self {
                // SAFETY: *instruction set* of `Vector` covers the intrinsic; *pointer validity* covers reads of all
                // lanes.
                Self(unsafe { $load(p) })
            }

            #[inline(always)]
            unsafe fn load_part($lp: *const $scalar, $lm: $mask) -> Self {
                // SAFETY: *instruction set* of `Vector` covers the intrinsic; *pointer validity* covers the lanes in
                // the mask. A masked load suppresses faults of the other lanes.
                Self(unsafe { $load_part })
            }

            #[inline(always)]
            unsafe fn store(self, p: *mut $scalar) {
                // SAFETY: *instruction set* of `Vector` covers the intrinsic; *pointer validity* covers writes of all
                // lanes.
                unsafe { $store(p, self.0) }
            }

            #[inline(always)]
            unsafe fn store_part(self, $sp: *mut $scalar, $sm: $mask) {
                let $sv = self.0;
                // SAFETY: *instruction set* of `Vector` covers the intrinsic; *pointer validity* covers the lanes in
                // the mask. A masked store suppresses faults of the other lanes.
                unsafe { $store_part }
            }

            #[inline(always)]
            unsafe fn mul_add(self, b: Self, c: Self) -> Self {
                // SAFETY: *instruction set* of `Vector` covers the intrinsics.
                Self(unsafe { $fma(self.0, b.0, c.0) })
            }

            #[inline(always)]
            unsafe fn add(self, b: Self) -> Self {
                // SAFETY: *instruction set* of `Vector` covers the intrinsics.
                Self(unsafe { $add(self.0, b.0) })
            }

            #[inline(always)]
            unsafe fn sub(self, b: Self) -> Self {
                // SAFETY: *instruction set* of `Vector` covers the intrinsics.
                Self(unsafe { $sub(self.0, b.0) })
            }

            #[inline(always)]
            unsafe fn fold(self) -> $scalar {
                // SAFETY: the clause *instruction set* of `Vector` implies the instructions that the reduction
                // requires.
                unsafe { $fold(self.0) }
            }

            #[inline(always)]
            unsafe fn transpose(from: *const $scalar, from_row: isize, to: *mut $scalar, to_row: isize) {
                // SAFETY: *instruction set* of `Vector` implies AVX; *pointer validity* covers the square block at its
                // row strides.
                unsafe { $transpose(from, from_row, to, to_row) }
            }
        }

        impl FloatVector for $name {
            type LaneMask = $lane_mask;

            #[inline(always)]
            unsafe fn less(self, b: Self) -> $lane_mask {
                // SAFETY: *instruction set* of `Vector` covers the intrinsic.
                unsafe { $compare::<_CMP_LT_OQ>(self.0, b.0) }
            }

            #[inline(always)]
            unsafe fn less_equal(self, b: Self) -> $lane_mask {
                // SAFETY: *instruction set* of `Vector` covers the intrinsic.
                unsafe { $compare::<_CMP_LE_OQ>(self.0, b.0) }
            }

            #[inline(always)]
            unsafe fn equal(self, b: Self) -> $lane_mask {
                // SAFETY: *instruction set* of `Vector` covers the intrinsic.
                unsafe { $compare::<_CMP_EQ_OQ>(self.0, b.0) }
            }

            #[inline(always)]
            unsafe fn not_equal(self, b: Self) -> $lane_mask {
                // SAFETY: *instruction set* of `Vector` covers the intrinsic.
                unsafe { $compare::<_CMP_NEQ_UQ>(self.0, b.0) }
            }

            #[inline(always)]
            unsafe fn select(self, b: Self, $bm: $lane_mask) -> Self {
                let ($bx, $by) = (self.0, b.0);
                // SAFETY: *instruction set* of `Vector` covers the intrinsic.
                Self(unsafe { $blend })
            }

            #[inline(always)]
            unsafe fn both($p: $lane_mask, $q: $lane_mask) -> $lane_mask {
                // SAFETY: *instruction set* of `Vector` covers the intrinsic.
                #[allow(unused_unsafe)]
                unsafe {
                    $both
                }
            }

            #[inline(always)]
            unsafe fn either($p: $lane_mask, $q: $lane_mask) -> $lane_mask {
                // SAFETY: *instruction set* of `Vector` covers the intrinsic.
                #[allow(unused_unsafe)]
                unsafe {
                    $either
                }
            }

            #[inline(always)]
            unsafe fn is_true($p: $lane_mask) -> bool {
                // SAFETY: *instruction set* of `Vector` covers the intrinsic.
                #[allow(unused_unsafe)]
                let bits = unsafe { $bits };
                bits == (1 << $lanes) - 1
            }

            // The minimum and maximum instructions return their second operand if the operands are equal or one of them
            // is NaN.

            #[inline(always)]
            unsafe fn max(self, b: Self) -> Self {
                // SAFETY: *instruction set* of `Vector` covers the intrinsic, and is the clause of the methods.
                unsafe { Self($max(self.0, b.0)).select(self, self.equal(self)) }
            }

            #[inline(always)]
            unsafe fn min(self, b: Self) -> Self {
                // SAFETY: *instruction set* of `Vector` covers the intrinsic, and is the clause of the methods.
                unsafe { Self($min(self.0, b.0)).select(self, self.equal(self)) }
            }

            #[inline(always)]
            unsafe fn raise(self, b: Self) -> Self {
                // SAFETY: *instruction set* of `Vector` covers the intrinsic.
                Self(unsafe { $max(b.0, self.0) })
            }

            #[inline(always)]
            unsafe fn lower(self, b: Self) -> Self {
                // SAFETY: *instruction set* of `Vector` covers the intrinsic.
                Self(unsafe { $min(b.0, self.0) })
            }

            #[inline(always)]
            unsafe fn mul(self, b: Self) -> Self {
                // SAFETY: *instruction set* of `Vector` covers the intrinsics.
                Self(unsafe { $mul(self.0, b.0) })
            }

            #[inline(always)]
            unsafe fn div(self, b: Self) -> Self {
                // SAFETY: *instruction set* of `Vector` covers the intrinsics.
                Self(unsafe { $div(self.0, b.0) })
            }

            #[inline(always)]
            unsafe fn neg(self) -> Self {
                // SAFETY: *instruction set* of `Vector` covers the intrinsics. (−0 − x is −x for every x.)
                Self(unsafe { $sub($set(-0.0), self.0) })
            }

            #[inline(always)]
            unsafe fn sqrt(self) -> Self {
                // SAFETY: *instruction set* of `Vector` covers the intrinsics.
                Self(unsafe { $sqrt(self.0) })
            }

            #[inline(always)]
            unsafe fn stream(self, p: *mut $scalar) {
                debug_assert!(p.addr().is_multiple_of(size_of::<Self>()), "the pointer {p:?} must be aligned");
                // SAFETY: *instruction set* of `Vector` covers the intrinsic; *pointer validity* covers writes of all
                // lanes, and *alignment* of `stream` covers the alignment that a non-temporal store requires.
                unsafe { $stream(p, self.0) }
            }

            $($functions!();)?
        }
    };
}

/// Implements the functions of [`FloatVector`] that only vectors of `f32` implement.
macro_rules! f32_functions {
    () => {
        #[inline(always)]
        unsafe fn exp<const R: usize>(v: [Self; R]) -> Option<[Self; R]> {
            // SAFETY: this method and the function require the same clause, *instruction set* of `Vector`.
            unsafe { interleaved::exp(v) }
        }

        #[inline(always)]
        unsafe fn tanh<const R: usize>(v: [Self; R]) -> Option<[Self; R]> {
            // SAFETY: this method and the function require the same clause, *instruction set* of `Vector`.
            Some(unsafe { interleaved::tanh(v) })
        }

        #[inline(always)]
        unsafe fn sigmoid<const R: usize>(v: [Self; R]) -> Option<[Self; R]> {
            // SAFETY: this method and the function require the same clause, *instruction set* of `Vector`.
            unsafe { interleaved::sigmoid(v) }
        }

        #[inline(always)]
        unsafe fn ndtr<const R: usize>(v: [Self; R]) -> Option<[Self; R]> {
            // SAFETY: this method and the function require the same clause, *instruction set* of `Vector`.
            unsafe { interleaved::ndtr(v) }
        }
    };
}

/// Implements [`SingleVector`] with intrinsics.
macro_rules! impl_single_vector {
    (
        $name:ident; $to_bits:ident, $from_bits:ident, $and:ident, $andnot:ident, $or:ident, $shift:ident, $add:ident,
        $set:ident, $min:ident;
        |$x:ident, $limit:ident| $any_exceeds:expr
    ) => {
        impl SingleVector for $name {
            #[inline(always)]
            unsafe fn abs(self) -> Self {
                // SAFETY: *instruction set* of `Vector` covers the intrinsics.
                Self(unsafe { $from_bits($and($to_bits(self.0), $set(i32::MAX))) })
            }

            #[inline(always)]
            unsafe fn at_most(self, c: Self) -> Self {
                // SAFETY: *instruction set* of `Vector` covers the intrinsic. (It returns the second operand if either
                // is NaN.)
                Self(unsafe { $min(c.0, self.0) })
            }

            #[inline(always)]
            unsafe fn copysign(self, s: Self) -> Self {
                // SAFETY: *instruction set* of `Vector` covers the intrinsics.
                unsafe {
                    let sign = $set(i32::MIN);
                    Self($from_bits($or($andnot(sign, $to_bits(self.0)), $and(sign, $to_bits(s.0)))))
                }
            }

            #[inline(always)]
            unsafe fn low_bits_as_exponent(self) -> Self {
                // SAFETY: *instruction set* of `Vector` covers the intrinsics.
                Self(unsafe { $from_bits($shift::<23>($to_bits(self.0))) })
            }

            #[inline(always)]
            unsafe fn add_bits(self, b: Self) -> Self {
                // SAFETY: *instruction set* of `Vector` covers the intrinsics.
                Self(unsafe { $from_bits($add($to_bits(self.0), $to_bits(b.0))) })
            }

            #[inline(always)]
            unsafe fn any_exceeds(self, limit: Self) -> bool {
                // SAFETY: *instruction set* of `Vector` covers the intrinsics.
                unsafe {
                    let ($x, $limit) = (self.abs().0, limit.0);
                    $any_exceeds
                }
            }
        }
    };
}

impl_single_vector! {
    F32x16; _mm512_castps_si512, _mm512_castsi512_ps, _mm512_and_si512, _mm512_andnot_si512, _mm512_or_si512,
    _mm512_slli_epi32, _mm512_add_epi32, _mm512_set1_epi32, _mm512_min_ps;
    |x, limit| _mm512_cmp_ps_mask::<_CMP_NLE_UQ>(x, limit) != 0
}

impl_single_vector! {
    F32x8; _mm256_castps_si256, _mm256_castsi256_ps, _mm256_and_si256, _mm256_andnot_si256, _mm256_or_si256,
    _mm256_slli_epi32, _mm256_add_epi32, _mm256_set1_epi32, _mm256_min_ps;
    |x, limit| _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_NLE_UQ>(x, limit)) != 0
}

impl_vector! {
    F32x16, f32, lanes 16, mask __mmask16, side 8 by transpose_f32;
    _mm512_setzero_ps, _mm512_set1_ps, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_stream_ps, _mm512_fmadd_ps,
    _mm512_add_ps, _mm512_sub_ps, _mm512_mul_ps, _mm512_div_ps, _mm512_sqrt_ps, _mm512_max_ps,
    _mm512_min_ps, fold512_ps;
    |n| ((1u32 << n) - 1) as __mmask16,
    |before, end| end & !before,
    |p, mask| _mm512_maskz_loadu_ps(mask, p),
    |p, mask, value| _mm512_mask_loadu_ps(value, mask, p),
    |p, mask, value| _mm512_mask_storeu_ps(p, mask, value),
    lane mask __mmask16, _mm512_cmp_ps_mask, |mask, x, y| _mm512_mask_blend_ps(mask, y, x),
    |a, b| a & b, a | b, u32::from(a);
    f32_functions
}

impl_vector! {
    F64x8, f64, lanes 8, mask __mmask8, side 4 by transpose_f64;
    _mm512_setzero_pd, _mm512_set1_pd, _mm512_loadu_pd, _mm512_storeu_pd, _mm512_stream_pd, _mm512_fmadd_pd,
    _mm512_add_pd, _mm512_sub_pd, _mm512_mul_pd, _mm512_div_pd, _mm512_sqrt_pd, _mm512_max_pd,
    _mm512_min_pd, fold512_pd;
    |n| ((1u32 << n) - 1) as __mmask8,
    |before, end| end & !before,
    |p, mask| _mm512_maskz_loadu_pd(mask, p),
    |p, mask, value| _mm512_mask_loadu_pd(value, mask, p),
    |p, mask, value| _mm512_mask_storeu_pd(p, mask, value),
    lane mask __mmask8, _mm512_cmp_pd_mask, |mask, x, y| _mm512_mask_blend_pd(mask, y, x),
    |a, b| a & b, a | b, u32::from(a)
}

impl_vector! {
    F32x8, f32, lanes 8, mask __m256i, side 8 by transpose_f32;
    _mm256_setzero_ps, _mm256_set1_ps, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_stream_ps, _mm256_fmadd_ps,
    _mm256_add_ps, _mm256_sub_ps, _mm256_mul_ps, _mm256_div_ps, _mm256_sqrt_ps, _mm256_max_ps,
    _mm256_min_ps, fold256_ps;
    |n| _mm256_cmpgt_epi32(_mm256_set1_epi32(n as i32), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)),
    |before, end| _mm256_andnot_si256(before, end),
    |p, mask| _mm256_maskload_ps(p, mask),
    |p, mask, value| _mm256_blendv_ps(value, _mm256_maskload_ps(p, mask), _mm256_castsi256_ps(mask)),
    |p, mask, value| _mm256_maskstore_ps(p, mask, value),
    lane mask __m256, _mm256_cmp_ps, |mask, x, y| _mm256_blendv_ps(y, x, mask),
    |a, b| _mm256_and_ps(a, b), _mm256_or_ps(a, b), _mm256_movemask_ps(a);
    f32_functions
}

impl_vector! {
    F64x4, f64, lanes 4, mask __m256i, side 4 by transpose_f64;
    _mm256_setzero_pd, _mm256_set1_pd, _mm256_loadu_pd, _mm256_storeu_pd, _mm256_stream_pd, _mm256_fmadd_pd,
    _mm256_add_pd, _mm256_sub_pd, _mm256_mul_pd, _mm256_div_pd, _mm256_sqrt_pd, _mm256_max_pd,
    _mm256_min_pd, fold256_pd;
    |n| _mm256_cmpgt_epi64(_mm256_set1_epi64x(n as i64), _mm256_setr_epi64x(0, 1, 2, 3)),
    |before, end| _mm256_andnot_si256(before, end),
    |p, mask| _mm256_maskload_pd(p, mask),
    |p, mask, value| _mm256_blendv_pd(value, _mm256_maskload_pd(p, mask), _mm256_castsi256_pd(mask)),
    |p, mask, value| _mm256_maskstore_pd(p, mask, value),
    lane mask __m256d, _mm256_cmp_pd, |mask, x, y| _mm256_blendv_pd(y, x, mask),
    |a, b| _mm256_and_pd(a, b), _mm256_or_pd(a, b), _mm256_movemask_pd(a)
}

/// Returns the sum of the lanes, reduced by halving.
///
/// # Safety
/// *AVX-512F*: the calling function has AVX-512F enabled.
#[inline(always)]
unsafe fn fold512_ps(v: __m512) -> f32 {
    // SAFETY: the caller guarantees *AVX-512F*, which implies AVX. (The extraction goes through `f64` lanes, because
    // the extraction of `f32` lanes requires AVX-512DQ.)
    unsafe {
        let upper = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(v)));
        fold256_ps(_mm256_add_ps(_mm512_castps512_ps256(v), upper))
    }
}

/// Returns the sum of the lanes, reduced by halving.
///
/// # Safety
/// *AVX-512F*: the calling function has AVX-512F enabled.
#[inline(always)]
unsafe fn fold512_pd(v: __m512d) -> f64 {
    // SAFETY: the caller guarantees *AVX-512F*, which implies AVX.
    unsafe { fold256_pd(_mm256_add_pd(_mm512_castpd512_pd256(v), _mm512_extractf64x4_pd::<1>(v))) }
}

/// Returns the sum of the lanes, reduced by halving.
///
/// # Safety
/// *AVX*: the calling function has AVX enabled.
#[inline(always)]
unsafe fn fold256_ps(v: __m256) -> f32 {
    // SAFETY: the caller guarantees *AVX*.
    unsafe {
        let four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
    }
}

/// Returns the sum of the lanes, reduced by halving.
///
/// # Safety
/// *AVX*: the calling function has AVX enabled.
#[inline(always)]
unsafe fn fold256_pd(v: __m256d) -> f64 {
    // SAFETY: the caller guarantees *AVX*.
    unsafe {
        let two = _mm_add_pd(_mm256_castpd256_pd128(v), _mm256_extractf128_pd::<1>(v));
        _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)))
    }
}

/// Transposes an 8×8 block.
///
/// Each load combines halves of two rows in one register, so that two in-lane shuffles per row suffice instead of
/// three.
///
/// # Safety
/// - *AVX*: the calling function has AVX enabled.
/// - *Block*: `from` is valid for reads, and `to` for writes, of the block at their row strides.
#[inline(always)]
unsafe fn transpose_f32(from: *const f32, from_row: isize, to: *mut f32, to_row: isize) {
    // SAFETY: the caller guarantees *AVX*; *block* covers all loads and stores, which stay inside the block.
    unsafe {
        for j in [0, 4] {
            // rows[i] holds columns j..j + 4: of row i in its low half, of row i + 4 in its high half.
            let mut rows = [_mm256_setzero_ps(); 4];
            for (i, row) in rows.iter_mut().enumerate() {
                let row_start = from.offset(i as isize * from_row + j);
                *row = _mm256_castps128_ps256(_mm_loadu_ps(row_start));
                *row = _mm256_insertf128_ps::<1>(*row, _mm_loadu_ps(row_start.offset(4 * from_row)));
            }
            let [r0, r1, r2, r3] = rows;
            let (t0, t1) = (_mm256_unpacklo_ps(r0, r1), _mm256_unpackhi_ps(r0, r1));
            let (t2, t3) = (_mm256_unpacklo_ps(r2, r3), _mm256_unpackhi_ps(r2, r3));
            _mm256_storeu_ps(to.offset(j * to_row), _mm256_shuffle_ps::<0x44>(t0, t2));
            _mm256_storeu_ps(to.offset((j + 1) * to_row), _mm256_shuffle_ps::<0xee>(t0, t2));
            _mm256_storeu_ps(to.offset((j + 2) * to_row), _mm256_shuffle_ps::<0x44>(t1, t3));
            _mm256_storeu_ps(to.offset((j + 3) * to_row), _mm256_shuffle_ps::<0xee>(t1, t3));
        }
    }
}

/// Transposes a 4×4 block. Each load combines halves of two rows, as in [`transpose_f32`].
///
/// # Safety
/// - *AVX*: the calling function has AVX enabled.
/// - *Block*: `from` is valid for reads, and `to` for writes, of the block at their row strides.
#[inline(always)]
unsafe fn transpose_f64(from: *const f64, from_row: isize, to: *mut f64, to_row: isize) {
    // SAFETY: the caller guarantees *AVX*; *block* covers all loads and stores, which stay inside the block.
    unsafe {
        for j in [0, 2] {
            // rows[i] holds columns j..j + 2: of row i in its low half, of row i + 2 in its high half.
            let mut rows = [_mm256_setzero_pd(); 2];
            for (i, row) in rows.iter_mut().enumerate() {
                let row_start = from.offset(i as isize * from_row + j);
                *row = _mm256_castpd128_pd256(_mm_loadu_pd(row_start));
                *row = _mm256_insertf128_pd::<1>(*row, _mm_loadu_pd(row_start.offset(2 * from_row)));
            }
            let [r0, r1] = rows;
            _mm256_storeu_pd(to.offset(j * to_row), _mm256_unpacklo_pd(r0, r1));
            _mm256_storeu_pd(to.offset((j + 1) * to_row), _mm256_unpackhi_pd(r0, r1));
        }
    }
}
