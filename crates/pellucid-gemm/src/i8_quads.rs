//! Quads of `i8` factors, which the kernels of AVX2, AVX512-VNNI and AMX multiply.
//!
//! A product of [`I8Quad`] matrices has a quarter of the depth and four multiply-adds per step. All sums are exact
//! modulo 2³², so the bits do not depend on the instruction set or on the order.

use super::bf16_pairs::pair_isa;
use super::factor_groups::FactorElement;
use pellucid_simd::Isa;
use pellucid_simd::vector::I8Quad;

/// Returns the instruction set for a product C[m × n] = A[m × k]·B[k × n] of matrices that are stored as quads: the
/// widest one up to `isa` whose vectors multiply quads, or [`Isa::Amx`] for products that are large enough.
pub fn quad_isa(isa: Isa, (m, n, k): (usize, usize, usize)) -> Isa {
    // An instruction of AMX computes the products of 32 pairs or of 64 factors of quads.
    match pair_isa(isa, (m, n, k / 2)) {
        Isa::Amx => Isa::Amx,
        isa if isa.has_i8_products() => isa,
        isa => isa.min(Isa::Avx2),
    }
}

impl FactorElement for i8 {
    type Group = I8Quad;

    #[inline(always)]
    unsafe fn group(count: usize, at: impl Fn(usize) -> *const i8) -> I8Quad {
        // SAFETY: the caller guarantees that the factors below `count` can be read.
        I8Quad::new([0, 1, 2, 3].map(|i| if i < count { unsafe { *at(i) } } else { 0 }))
    }

    #[inline(always)]
    unsafe fn neighbours(from: *const i8) -> I8Quad {
        // SAFETY: the caller guarantees that four elements can be read.
        I8Quad::from_neighbours(unsafe { from.cast::<u32>().read_unaligned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::Kernels;
    use crate::{Gemm, GemmOperands, PackGroups, ProductBatch, Strided, Threads, gemm_batched_by};
    use pellucid_runtime::testing::{Choices, Guarded};
    use pellucid_runtime::threads::with_threads;

    /// Returns the kernels of the available instruction sets with products of quads, the portable ones, and the
    /// emulation of the tile registers.
    fn quad_kernels() -> Vec<(Isa, &'static Kernels<I8Quad>)> {
        static EMULATED: Kernels<I8Quad> = Kernels::<I8Quad>::EMULATED_AMX;
        let available = Isa::available().iter().copied();
        let vectors = available.filter(|&isa| isa == Isa::Portable || isa.has_i8_products());
        let mut kernels: Vec<_> = vectors.map(|isa| (isa, Kernels::for_isa(isa))).collect();
        // The table of the emulation has vectors of 512 bits, and its functions enable AVX512-BF16.
        match Isa::best().has_bf16_products() {
            true => kernels.push((Isa::best(), &EMULATED)),
            false => eprintln!("not tested: the processor has no AVX512-BF16"),
        }
        match Isa::has_amx() {
            true => kernels.push((Isa::best(), Kernels::for_isa(Isa::Amx))),
            false => eprintln!("not tested: the process cannot use AMX"),
        }
        kernels
    }

    /// Returns a matrix of lanes × depth in one of three layouts: lane after lane, k after k, or with gaps.
    fn stored((lanes, depth): (usize, usize), layout: usize, factors: &[i8]) -> (Guarded<i8>, [isize; 2]) {
        let strides = [(depth, 1), (1, lanes), (2 * depth + 1, 2)][layout];
        let mut data = Guarded::from_slice(&vec![99; (lanes - 1) * strides.0 + (depth - 1) * strides.1 + 1]);
        for (i, &factor) in factors.iter().enumerate() {
            data[i / depth * strides.0 + i % depth * strides.1] = factor;
        }
        (data, [strides.0 as isize, strides.1 as isize])
    }

    /// Converts a matrix that [`stored`] returns, in two parts.
    fn packed(
        isa: Isa,
        data: &Guarded<i8>,
        [lane, depth_stride]: [isize; 2],
        (lanes, depth): (usize, usize),
    ) -> (Guarded<u32>, Strided<I8Quad>) {
        let from = Strided { data: data.as_ptr(), lane, depth: depth_stride };
        let mut memory = Guarded::<u32>::unwritten(lanes * depth.div_ceil(4));
        let work = PackGroups { from, lanes, depth, to: memory.as_mut_ptr().cast() };
        assert_eq!(work.group_count(), memory.len());
        let middle = work.rows() / 2;
        // SAFETY: the group packing contract: the matrix has `lanes × depth` elements and the memory `group_count`
        // groups. The instruction set is available.
        unsafe {
            work.pack(isa, 0..middle);
            work.pack(isa, middle..work.rows());
        }
        (memory, work.groups())
    }

    /// Checks C = A·B, or C + A·B, for all kernels and several layouts.
    fn check_product((m, n, k): (usize, usize, usize), [a, b]: [&[i8]; 2], choices: &Choices) {
        let initial = |i: usize| (i as i32).wrapping_mul(0x5bd1_e995);
        let sum = |i: usize| {
            let (row, column) = (&a[i / n * k..][..k], &b[i % n * k..][..k]);
            row.iter().zip(column).map(|(&a, &b)| i32::from(a) * i32::from(b)).fold(0, i32::wrapping_add)
        };
        let sums: Vec<i32> = (0..m * n).map(sum).collect();
        for (isa, kernels) in quad_kernels() {
            for accumulate in [false, true] {
                let layouts = [(); 2].map(|()| choices.below(3));
                let ((a, a_strides), (b, b_strides)) = (stored((m, k), layouts[0], a), stored((n, k), layouts[1], b));
                let (_a, a) = packed(isa, &a, a_strides, (m, k));
                let (_b, b) = packed(isa, &b, b_strides, (n, k));
                let (row_stride, col_stride) = choices.of(&[(n, 1), (n + 3, 1), (1, m)]);
                let at = |i: usize| i / n * row_stride + i % n * col_stride;
                let mut c = Guarded::<u32>::from_slice(&vec![7; at(m * n - 1) + 1]);
                (0..m * n).for_each(|i| c[at(i)] = initial(i) as u32);
                let shape = Gemm {
                    m,
                    n,
                    k: k.div_ceil(4),
                    a_strides: (a.lane, a.depth),
                    b_strides: (b.depth, b.lane),
                    c_strides: (row_stride as isize, col_stride as isize),
                    accumulate,
                };
                let c_start = Some(c.as_mut_ptr().cast::<I8Quad>());
                let operands = GemmOperands { a: a.data, b: b.data, packed_b: None, c: c_start, epilogue: None };
                let threads = choices.of(&[Threads::One, Threads::Pool]);
                // SAFETY: the contract of `gemm_batched_by`: the memory holds the three matrices, which only this test
                // accesses, and the processor has the instruction set of the kernels.
                unsafe { gemm_batched_by(kernels, &shape, &ProductBatch::default(), &operands, threads) }
                for (i, sum) in sums.iter().enumerate() {
                    let expected = if accumulate { sum.wrapping_add(initial(i)) } else { *sum };
                    assert_eq!(c[at(i)] as i32, expected, "{isa:?} {m} {n} {k} {layouts:?} accumulate: {accumulate}");
                }
            }
        }
    }

    /// Returns factors of all values, reproducible for each seed.
    fn factors(count: usize, seed: u64) -> Vec<i8> {
        let choices = Choices::new(seed);
        (0..count).map(|_| choices.below(256) as u8 as i8).collect()
    }

    #[test]
    fn products_around_registers_and_blocks_are_exact() {
        with_threads(2, check_products_around_registers_and_blocks);
    }

    fn check_products_around_registers_and_blocks() {
        let choices = Choices::new(1);
        for m in [2, 3, 4, 5, 11, 12, 13, 25, 33] {
            for n in [2, 7, 8, 9, 16, 17, 31, 32, 33, 65] {
                for k in [1, 2, 3, 4, 5, 63, 64, 65, 130] {
                    check_product((m, n, k), [&factors(m * k, 2), &factors(n * k, 3)], &choices);
                }
            }
        }
        for (m, n, k) in [(70, 530, 100), (300, 40, 1100), (33, 65, 2300)] {
            check_product((m, n, k), [&factors(m * k, 4), &factors(n * k, 5)], &choices);
        }
    }

    /// The largest products, and sums that wrap: 2¹⁷ products of (−128)² are 2³¹.
    #[test]
    fn extreme_factors_are_exact() {
        let choices = Choices::new(6);
        for (x, y) in [(-128, -128), (-128, 127), (127, -128), (127, 127), (-1, -128)] {
            let (m, n, k) = (13, 33, 70);
            check_product((m, n, k), [&vec![x; m * k], &vec![y; n * k]], &choices);
        }
        let (m, n, k) = (2, 2, (1 << 17) + 4);
        check_product((m, n, k), [&vec![-128; m * k], &vec![-128; n * k]], &choices);
    }

    /// The choice depends only on the shape, the processor and the caller's instruction set.
    #[test]
    fn the_instruction_set_has_products_of_quads() {
        for &isa in Isa::available() {
            for shape in [(2, 2, 4), (64, 64, 256)] {
                let chosen = quad_isa(isa, shape);
                assert!(chosen == Isa::Portable || chosen == Isa::Amx || chosen.has_i8_products(), "{chosen:?}");
                assert!(isa != Isa::Portable || chosen == Isa::Portable);
            }
        }
        assert_eq!(quad_isa(Isa::best(), (64, 64, 256)) == Isa::Amx, Isa::has_amx());
        assert_ne!(quad_isa(Isa::best(), (64, 64, 127)), Isa::Amx);
    }
}
