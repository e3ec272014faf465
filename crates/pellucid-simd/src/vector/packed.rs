//! Vectors of elements that hold several factors: [`BF16Pair`] and [`I8Quad`].

use super::{BF16Pair, F32x8, F32x16, I8Quad, Vector};
use std::arch::x86_64::*;
use std::mem::transmute;

/// Implements [`Vector`] for a vector of 32-bit elements in the register of a vector of `f32`. That vector has the
/// methods that only move elements; the others are expressions of the registers.
macro_rules! impl_packed_vector {
    (
        $name:ident($base:ident), $scalar:ty;
        mul_add |$a:ident, $b:ident, $c:ident| $mul_add:expr,
        add |$x:ident, $y:ident| $add:expr, sub |$p:ident, $q:ident| $sub:expr, fold |$v:ident| $fold:expr
        $(; biased |$ba:ident, $bb:ident, $bc:ident| $biased:expr, bias |$tb:ident, $tc:ident| $bias:expr)?
    ) => {
        // SAFETY: the element has the size and alignment of an `f32`, and the register has the layout of an array of
        // its lanes.
        unsafe impl Vector for $name {
            type Scalar = $scalar;
            type Mask = <$base as Vector>::Mask;
            const LANES: usize = $base::LANES;
            const SIDE: usize = $base::SIDE;
            $(
                const IS_BIASED: bool = true;

                #[inline(always)]
                unsafe fn mul_add_biased(self, b: Self, c: Self) -> Self {
                    let ($ba, $bb, $bc) = (self.0, b.0, c.0);
                    // SAFETY: *instruction set* covers the intrinsics.
                    Self(unsafe { $biased })
                }

                #[inline(always)]
                unsafe fn add_bias(self, c: Self) -> Self {
                    let ($tb, $tc) = (self.0, c.0);
                    // SAFETY: *instruction set* covers the intrinsics.
                    Self(unsafe { $bias })
                }
            )?

            #[inline(always)]
            unsafe fn mul_add(self, $b: Self, $c: Self) -> Self {
                let $a = self;
                // SAFETY: *instruction set* covers the intrinsics and the methods.
                unsafe { $mul_add }
            }

            #[inline(always)]
            unsafe fn add(self, $y: Self) -> Self {
                let ($x, $y) = (self.0, $y.0);
                // SAFETY: *instruction set* covers the operation.
                Self(unsafe { $add })
            }

            #[inline(always)]
            unsafe fn sub(self, $q: Self) -> Self {
                let ($p, $q) = (self.0, $q.0);
                // SAFETY: *instruction set* covers the operation.
                Self(unsafe { $sub })
            }

            #[inline(always)]
            unsafe fn fold(self) -> $scalar {
                let $v = self.0;
                // SAFETY: *instruction set* covers the operation.
                unsafe { $fold }
            }

            #[inline(always)]
            unsafe fn zero() -> Self {
                // SAFETY: both methods have the same contract, because both scalars have the same size and alignment.
                Self(unsafe { $base::zero() })
            }

            #[inline(always)]
            unsafe fn splat(p: *const $scalar) -> Self {
                // SAFETY: both methods have the same contract, because both scalars have the same size and alignment.
                Self(unsafe { $base::splat(p.cast()) })
            }

            #[inline(always)]
            unsafe fn mask(n: usize) -> Self::Mask {
                // SAFETY: both methods have the same contract, because both scalars have the same size and alignment.
                unsafe { $base::mask(n) }
            }

            #[inline(always)]
            unsafe fn mask_from(first: usize, n: usize) -> Self::Mask {
                // SAFETY: both methods have the same contract, because both scalars have the same size and alignment.
                unsafe { $base::mask_from(first, n) }
            }

            #[inline(always)]
            unsafe fn load(p: *const $scalar) -> Self {
                // SAFETY: both methods have the same contract, because both scalars have the same size and alignment.
                Self(unsafe { $base::load(p.cast()) })
            }

            #[inline(always)]
            unsafe fn load_part(p: *const $scalar, mask: Self::Mask) -> Self {
                // SAFETY: both methods have the same contract, because both scalars have the same size and alignment.
                Self(unsafe { $base::load_part(p.cast(), mask) })
            }

            #[inline(always)]
            unsafe fn load_over(self, p: *const $scalar, mask: Self::Mask) -> Self {
                // SAFETY: both methods have the same contract, because both scalars have the same size and alignment.
                Self(unsafe { self.0.load_over(p.cast(), mask) })
            }

            #[inline(always)]
            unsafe fn store(self, p: *mut $scalar) {
                // SAFETY: both methods have the same contract, because both scalars have the same size and alignment.
                unsafe { self.0.store(p.cast()) }
            }

            #[inline(always)]
            unsafe fn store_part(self, p: *mut $scalar, mask: Self::Mask) {
                // SAFETY: both methods have the same contract, because both scalars have the same size and alignment.
                unsafe { self.0.store_part(p.cast(), mask) }
            }

            #[inline(always)]
            unsafe fn transpose(from: *const $scalar, from_row: isize, to: *mut $scalar, to_row: isize) {
                // SAFETY: both methods have the same contract, because both scalars have the same size and alignment.
                unsafe { $base::transpose(from.cast(), from_row, to.cast(), to_row) }
            }
        }
    };
}

/// A vector of sixteen [`BF16Pair`] in a 512-bit register.
///
/// - The clause *instruction set* of [`Vector`] also requires AVX512-BF16.
/// - [`mul_add`](Vector::mul_add) is bit-identical to [`Element::mul_add`](super::Element::mul_add) if no factor and no
///   sum is subnormal. The instruction flushes subnormal numbers to zero.
#[derive(Clone, Copy)]
pub struct BF16PairX16(F32x16);

impl_packed_vector! {
    BF16PairX16(F32x16), BF16Pair;
    mul_add |a, b, c| {
        let [x, y] = [a.0, b.0].map(|v| transmute::<__m512, __m512bh>(v.0));
        Self(F32x16(_mm512_dpbf16_ps(c.0.0, x, y)))
    },
    add |x, y| x.add(y), sub |x, y| x.sub(y), fold |v| BF16Pair::from_sum(v.fold())
}

/// A vector of sixteen [`I8Quad`] in a 512-bit register.
///
/// The clause *instruction set* of [`Vector`] also requires AVX512-VNNI. Its instruction multiplies unsigned by signed
/// bytes, so [`mul_add_biased`](Vector::mul_add_biased) adds (a + 128)·b.
#[derive(Clone, Copy)]
pub struct I8QuadX16(F32x16);

impl_packed_vector! {
    I8QuadX16(F32x16), I8Quad;
    mul_add |a, b, c| a.mul_add_biased(b, c).sub(b.add_bias(Self::zero())),
    add |x, y| float512(_mm512_add_epi32(int512(x), int512(y))),
    sub |x, y| float512(_mm512_sub_epi32(int512(x), int512(y))),
    fold |v| I8Quad::from_sum(_mm512_reduce_add_epi32(int512(v)));
    biased |a, b, c| {
        let unsigned = _mm512_xor_si512(int512(a), sign_bits());
        float512(_mm512_dpbusd_epi32(int512(c), unsigned, int512(b)))
    },
    bias |b, c| float512(_mm512_dpbusd_epi32(int512(c), _mm512_set1_epi8(i8::MIN), int512(b)))
}

/// Returns a vector of the bytes 0x80, but hides their value from the optimizer.
///
/// Otherwise, the optimizer exchanges the broadcast of `a` and the exclusive or in
/// [`mul_add_biased`](Vector::mul_add_biased), so that two instructions of the vector unit compute each row instead of
/// one: a broadcast from memory needs none.
///
/// # Safety
/// The clause *instruction set* of [`Vector`] holds for 512-bit vectors.
#[inline(always)]
unsafe fn sign_bits() -> __m512i {
    static SIGN_BITS: [u8; 64] = [0x80; 64];
    let mut start = SIGN_BITS.as_ptr();
    #[allow(clippy::pointers_in_nomem_asm_block)] // The assembly uses the address only.
    // SAFETY: the assembly is empty: it leaves the register, the memory, the stack and the flags unchanged. The array
    // has the size of a vector, and *instruction set* covers the intrinsic.
    unsafe {
        std::arch::asm!("/* {0} */", inout(reg) start, options(pure, nomem, nostack, preserves_flags));
        _mm512_loadu_si512(start.cast())
    }
}

/// A vector of eight [`I8Quad`] in a 256-bit register.
#[derive(Clone, Copy)]
pub struct I8QuadX8(F32x8);

impl_packed_vector! {
    I8QuadX8(F32x8), I8Quad;
    mul_add |a, b, c| {
        let ([a_even, a_odd], [b_even, b_odd]) = (bytes_as_words(a.0), bytes_as_words(b.0));
        let products = _mm256_add_epi32(_mm256_madd_epi16(a_even, b_even), _mm256_madd_epi16(a_odd, b_odd));
        Self(float256(_mm256_add_epi32(int256(c.0), products)))
    },
    add |x, y| float256(_mm256_add_epi32(int256(x), int256(y))),
    sub |x, y| float256(_mm256_sub_epi32(int256(x), int256(y))),
    fold |v| I8Quad::from_sum(transmute::<__m256, [i32; 8]>(v.0).into_iter().fold(0, i32::wrapping_add))
}

/// Returns the bytes with even and with odd numbers of all 16-bit words, each extended to a word with its sign.
///
/// # Safety
/// The clause *instruction set* of [`Vector`] holds for 256-bit vectors.
#[inline(always)]
unsafe fn bytes_as_words(v: F32x8) -> [__m256i; 2] {
    // SAFETY: *instruction set* covers the intrinsics.
    unsafe { [_mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(int256(v))), _mm256_srai_epi16::<8>(int256(v))] }
}

/// Returns the bits of a vector of `f32` as a vector of integers.
#[inline(always)]
fn int512(v: F32x16) -> __m512i {
    // SAFETY: the registers have the same size, and every bit pattern is valid.
    unsafe { transmute(v.0) }
}

/// Returns the vector of `f32` with the bits of a vector of integers.
#[inline(always)]
fn float512(v: __m512i) -> F32x16 {
    // SAFETY: the registers have the same size, and every bit pattern is valid.
    F32x16(unsafe { transmute::<__m512i, __m512>(v) })
}

/// Returns the bits of a vector of `f32` as a vector of integers.
#[inline(always)]
fn int256(v: F32x8) -> __m256i {
    // SAFETY: the registers have the same size, and every bit pattern is valid.
    unsafe { transmute(v.0) }
}

/// Returns the vector of `f32` with the bits of a vector of integers.
#[inline(always)]
fn float256(v: __m256i) -> F32x8 {
    // SAFETY: the registers have the same size, and every bit pattern is valid.
    F32x8(unsafe { transmute::<__m256i, __m256>(v) })
}
