//! Pairs of `bf16` factors, which the kernels of AVX512-BF16 and AMX multiply.
//!
//! A product of [`BF16Pair`] matrices has half the depth and two multiply-adds per step. With AVX512-BF16, it is
//! bit-identical to the product of the factors as `f32`, because the products of a pair are added one after the other
//! in the order of k, and blocks of k have even sizes. Subnormal numbers are the exception: the instruction flushes
//! them to zero. Therefore pairs are used only if
//! [`excludes_subnormals`](super::FactorRange::excludes_subnormals) returns true.

use super::factor_groups::FactorElement;
use pellucid_simd::math::half::BF16;
use pellucid_simd::tiles::TILE_SIDE;
use pellucid_simd::vector::BF16Pair;
use pellucid_simd::{Isa, per_isa};

/// Returns the instruction set for a product C[m × n] = A[m × k]·B[k × n] of matrices that are stored as pairs. It is
/// [`Isa::Amx`] if `isa` includes AVX-512, the process can use AMX, and the product is large enough; otherwise, it is
/// `isa`.
///
/// AMX computes 8192 multiply-adds in 16 cycles, 16 times as many as AVX512-BF16, but with a granularity of 16 rows, 16
/// columns and 32 factors, and its configuration takes about 200 cycles. The smallest product that uses AMX, 16 × 16 ×
/// 64, takes about as long with AVX512-BF16.
pub fn pair_isa(isa: Isa, (m, n, k): (usize, usize, usize)) -> Isa {
    let is_large = m >= TILE_SIDE && n >= TILE_SIDE && k >= 4 * TILE_SIDE;
    if isa >= Isa::Avx512 && is_large && Isa::has_amx() { Isa::Amx } else { isa }
}

impl FactorElement for f32 {
    type Group = BF16Pair;

    #[inline(always)]
    unsafe fn group(count: usize, at: impl Fn(usize) -> *const f32) -> BF16Pair {
        // SAFETY: the caller guarantees that the factors can be read.
        let factor = |i: usize| unsafe { BF16::from_f32(*at(i)) };
        BF16Pair::new(factor(0), if count > 1 { factor(1) } else { BF16(0) })
    }

    #[inline(always)]
    fn least_magnitude(pair: BF16Pair) -> u32 {
        pair.least_magnitude()
    }
}

impl FactorElement for BF16 {
    type Group = BF16Pair;

    #[inline(always)]
    unsafe fn group(count: usize, at: impl Fn(usize) -> *const BF16) -> BF16Pair {
        // SAFETY: the caller guarantees that the factors can be read.
        unsafe { BF16Pair::new(*at(0), if count > 1 { *at(1) } else { BF16(0) }) }
    }

    #[cfg(target_endian = "little")]
    #[inline(always)]
    unsafe fn neighbours(from: *const BF16) -> BF16Pair {
        // SAFETY: the caller guarantees that two elements can be read.
        BF16Pair::from_neighbours(unsafe { from.cast::<u32>().read_unaligned() })
    }

    #[inline(always)]
    fn least_magnitude(pair: BF16Pair) -> u32 {
        pair.least_magnitude()
    }
}

per_isa! {
    /// Stores elements rounded to the nearest `bf16`.
    ///
    /// # Safety of the returned function pointer
    /// - *Isa*: the processor supports the instruction set.
    /// - `from` is valid for reads of `len` elements, and `to` for writes. They do not overlap, and no other thread
    ///   accesses them.
    pub fn round_to_bf16 [] [] (from: *const f32, to: *mut f32, len: usize) {
        // SAFETY: the caller guarantees that the elements below `len` can be read and written.
        (0..len).for_each(|i| unsafe { *to.add(i) = BF16::from_f32(*from.add(i)).to_f32() });
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::tests::{SHAPES, reference_product};
    use crate::{FactorRange, Gemm, GemmOperands, PackGroups, ProductBatch, Strided, Threads, gemm_batched_for_isa};
    use pellucid_runtime::testing::{Choices, Guarded};
    use std::ops::Range;

    /// Returns the instruction sets whose kernels multiply pairs.
    fn instruction_sets() -> impl Iterator<Item = Isa> {
        Isa::available().iter().copied().filter(|&isa| isa != Isa::Avx512 || isa.has_bf16_products())
    }

    /// Returns a matrix of lanes × depth, stored in one of three layouts, and its strides (lane, depth).
    pub(crate) fn stored(
        (lanes, depth): (usize, usize),
        layout: usize,
        factor: impl Fn(usize) -> BF16,
    ) -> (Guarded<u16>, (usize, usize)) {
        let strides = [(depth, 1), (1, lanes), (2 * depth + 1, 2)][layout];
        let mut data = Guarded::from_slice(&vec![0x7fc0; (lanes - 1) * strides.0 + (depth - 1) * strides.1 + 1]);
        (0..lanes * depth).for_each(|i| data[i / depth * strides.0 + i % depth * strides.1] = factor(i).0);
        (data, strides)
    }

    /// Converts a matrix that [`stored`] returns.
    pub(crate) fn packed(
        isa: Isa,
        data: &Guarded<u16>,
        (lane, depth_stride): (usize, usize),
        (lanes, depth): (usize, usize),
    ) -> (Guarded<u32>, Strided<BF16Pair>, FactorRange) {
        let data = data.as_ptr().cast::<BF16>();
        let from = Strided { data, lane: lane as isize, depth: depth_stride as isize };
        let mut memory = Guarded::<u32>::unwritten(lanes * depth.div_ceil(2));
        let work = PackGroups { from, lanes, depth, to: memory.as_mut_ptr().cast() };
        assert_eq!(work.group_count(), memory.len());
        let middle = work.rows() / 2;
        // SAFETY: the group packing contract: the matrix has `lanes × depth` elements and the memory `group_count`
        // pairs. The instruction set is available.
        let ranges = unsafe { [work.pack(isa, 0..middle), work.pack(isa, middle..work.rows())] };
        (memory, work.groups(), ranges[0].join(ranges[1]))
    }

    /// Multiplies A[m × k] and B[k × n] with the kernels of an instruction set. `a(i)` and `b(i)` return factor i in
    /// the order of the lanes.
    fn multiplied(
        isa: Isa,
        (m, n, k): (usize, usize, usize),
        layouts: [usize; 2],
        [a, b]: [&dyn Fn(usize) -> BF16; 2],
    ) -> (Vec<u32>, bool) {
        let ((a, a_strides), (b, b_strides)) = (stored((m, k), layouts[0], a), stored((n, k), layouts[1], b));
        let (_a, a, a_range) = packed(isa, &a, a_strides, (m, k));
        let (_b, b, b_range) = packed(isa, &b, b_strides, (n, k));
        let mut c = Guarded::<u32>::unwritten(m * n);
        let shape = Gemm {
            m,
            n,
            k: k.div_ceil(2),
            a_strides: (a.lane, a.depth),
            b_strides: (b.depth, b.lane),
            c_strides: (n as isize, 1),
            accumulate: false,
        };
        let c_start = Some(c.as_mut_ptr().cast::<BF16Pair>());
        let operands = GemmOperands { a: a.data, b: b.data, packed_b: None, c: c_start, epilogue: None };
        // SAFETY: the contract of `gemm_batched_for_isa`: the memory holds the three matrices, which only this test
        // accesses, and the instruction set is available.
        unsafe { gemm_batched_for_isa(isa, &shape, &ProductBatch::default(), &operands, Threads::One) }
        (c.to_vec(), a_range.excludes_subnormals(b_range))
    }

    /// Returns factors with exponents from a range, and some zeros, reproducible for each seed.
    pub(crate) fn factors(count: usize, seed: u64, exponents: Range<usize>) -> Vec<BF16> {
        let choices = Choices::new(seed);
        let factor = |_| match choices.below(20) {
            0 => BF16((choices.below(2) << 15) as u16),
            _ => {
                let exponent = exponents.start + choices.below(exponents.len());
                BF16((choices.below(2) << 15 | exponent << 7 | choices.below(128)) as u16)
            }
        };
        (0..count).map(factor).collect()
    }

    fn assert_bits(shape @ (m, n, k): (usize, usize, usize), [a, b]: [&[BF16]; 2], expects_pairs: bool) {
        let wide = [a, b].map(|factors| factors.iter().map(|x| x.to_f32()).collect::<Vec<f32>>());
        // B is given by lanes (columns) here, and by k in the reference.
        let by_depth: Vec<f32> = (0..k * n).map(|i| wide[1][i % n * k + i / n]).collect();
        let expected = reference_product(shape, &wide[0], &by_depth);
        for isa in instruction_sets() {
            for layouts in [[0, 0], [0, 1], [1, 0], [1, 1], [2, 2]] {
                let (actual, uses_pairs) = multiplied(isa, shape, layouts, [&|i| a[i], &|i| b[i]]);
                assert_eq!(uses_pairs, expects_pairs, "{shape:?}");
                for (i, (&actual, expected)) in actual.iter().zip(&expected).enumerate() {
                    let both_nan = f32::from_bits(actual).is_nan() && expected.is_nan();
                    let case = || format!("{m} × {n} × {k} {isa:?} {layouts:?}, element {i}");
                    assert!(actual == expected.to_bits() || both_nan, "{}", case());
                }
            }
        }
    }

    #[test]
    fn products_of_pairs_have_the_bits_of_single_factors() {
        for shape @ (m, n, k) in SHAPES.into_iter().filter(|&(m, n, _)| m > 1 && n > 1) {
            let (a, b) = (factors(m * k, 1, 110..130), factors(n * k, 2, 110..130));
            assert_bits(shape, [&a, &b], true);
        }
        for k in 1..20 {
            assert_bits((5, 40, k), [&factors(5 * k, 3, 71..230), &factors(40 * k, 4, 71..230)], true);
        }
    }

    /// Elements of `f32` are rounded to the nearest `bf16`, in all layouts and for odd depths.
    #[test]
    fn f32_elements_are_rounded() {
        let choices = Choices::new(9);
        for (lanes, depth) in [(1, 1), (3, 7), (16, 40), (33, 5)] {
            let values: Vec<f32> = (0..lanes * depth).map(|_| choices.below(1 << 24) as f32 / 777.0 - 9000.0).collect();
            for (lane, step) in [(depth, 1), (1, lanes)] {
                let mut data = Guarded::from_slice(&values);
                (0..lanes * depth).for_each(|i| data[i / depth * lane + i % depth * step] = values[i]);
                for isa in instruction_sets() {
                    let from = Strided { data: data.as_ptr(), lane: lane as isize, depth: step as isize };
                    let mut memory = Guarded::<u32>::unwritten(lanes * depth.div_ceil(2));
                    let work = PackGroups { from, lanes, depth, to: memory.as_mut_ptr().cast() };
                    // SAFETY: the group packing contract: the matrix has `lanes × depth` elements and the memory
                    // `group_count` pairs. The instruction set is available.
                    unsafe { work.pack(isa, 0..work.rows()) };
                    let pairs = work.groups();
                    for (i, p) in (0..lanes).flat_map(|i| (0..depth.div_ceil(2)).map(move |p| (i, p))) {
                        let factor = |k: usize| if k < depth { BF16::from_f32(values[i * depth + k]) } else { BF16(0) };
                        let at = i as isize * pairs.lane + p as isize * pairs.depth;
                        let expected = (u32::from(factor(2 * p).0) << 16) | u32::from(factor(2 * p + 1).0);
                        assert_eq!(memory[at as usize], expected, "{lanes} × {depth}, {isa:?}, lane {i}, pair {p}");
                    }
                    let mut rounded = Guarded::<f32>::unwritten(values.len());
                    // SAFETY: both arrays have `values.len()` elements, and the instruction set is available.
                    unsafe { round_to_bf16(isa)(values.as_ptr(), rounded.as_mut_ptr(), values.len()) };
                    assert!(
                        values.iter().zip(rounded.iter()).all(|(&x, &y)| BF16::from_f32(x).to_f32() == y),
                        "{isa:?}"
                    );
                }
            }
        }
    }

    /// Tests factors of both signs with the smallest exponents that exclude subnormal sums, and large factors, whose
    /// products overflow to infinity and sum to NaN.
    #[test]
    fn the_smallest_and_the_largest_factors_have_the_same_bits() {
        for (low, high) in [(71, 71), (40, 102), (1, 141), (141, 1)] {
            assert_bits((20, 40, 33), [&factors(20 * 33, 5, low..low + 2), &factors(40 * 33, 6, high..high + 2)], true);
        }
        assert_bits((20, 40, 33), [&factors(20 * 33, 7, 180..256), &factors(40 * 33, 8, 180..256)], true);
    }

    #[test]
    fn products_with_subnormal_sums_are_excluded() {
        let range = |bits: &[u16]| FactorRange {
            least: bits.iter().map(|&b| BF16Pair::new(BF16(b), BF16(0)).least_magnitude()).min().unwrap_or(u32::MAX),
        };
        let (one, zero) = (range(&[0x3f80, 0xbf80, 0]), range(&[0, 0x8000]));
        assert!(one.excludes_subnormals(one) && zero.excludes_subnormals(one) && zero.excludes_subnormals(zero));
        let exponent = |e: u16| range(&[0x4000, e << 7]);
        assert!(exponent(71).excludes_subnormals(exponent(71)) && !exponent(71).excludes_subnormals(exponent(70)));
        assert!(!range(&[0x0001]).excludes_subnormals(range(&[0x7f00])), "a subnormal factor must be detected");
        assert!(!range(&[0x007f]).excludes_subnormals(zero), "a subnormal factor must be detected");
        let small = |e: usize| move |_: usize| BF16((e << 7) as u16);
        for isa in instruction_sets().filter(|isa| isa.has_bf16_products()) {
            let (flushed, uses_pairs) = multiplied(isa, (2, 2, 1), [0, 0], [&small(64), &small(63)]);
            assert!(!uses_pairs && flushed == [0; 4], "the instruction must replace 2⁻¹²⁷ by zero: {flushed:x?}");
        }
    }
}
