//! The micro-kernel for tile registers: the product of pairs of `bf16` or quads of `i8` for 32 × 32 elements of C.
//!
//! Of the eight registers, four hold 2 × 2 parts of C, two hold rows of A, and two hold columns of B. So each operand
//! is loaded once for two products:
//!
//! ```text
//!          B: 6   7
//!      A: 4   0   1
//!         5   2   3
//! ```

use super::register_tile::RegisterTile;
use pellucid_simd::Element;
use pellucid_simd::tiles::{TILE_SIDE, TileUnit};
use pellucid_simd::vector::Vector;

/// The largest number of rows and of columns of C.
pub(crate) const BLOCK_SIDE: usize = 2 * TILE_SIDE;

impl<T: Element> RegisterTile<T> {
    /// Computes the tile with the tile registers of `U`. If `UNMASKED`, rows of B are loaded as full vectors.
    ///
    /// The sum starts with zero, or with C if the product is added to it. Each step adds the products of 16 pairs
    /// in the order of [`TileUnit::multiply_add`], or of 16 quads. Missing elements of the last step are zeros.
    ///
    /// # Safety
    ///
    /// - The tile contract of [`RegisterTile`] holds, with entire rows of B if `UNMASKED`, except for *Width*: there
    ///   are at most [`BLOCK_SIDE`] rows and columns.
    /// - *Rows of A*: `a_col_stride` is 1.
    /// - *Registers*: the clauses *processor* and *configured* of [`TileUnit`] hold.
    /// - The contract of [`Vector`] holds: the instruction set of `V` is enabled in the calling function.
    #[inline(always)]
    pub(crate) unsafe fn multiply_in_tile_registers<V, U, const UNMASKED: bool>(&self)
    where
        V: Vector<Scalar = T>,
        U: TileUnit,
    {
        const { assert!(T::FACTORS > 1 && size_of::<T>() == 4, "tile registers multiply pairs and quads") }
        let &Self { depth, rows, cols, a, a_row_stride, b, b_row_stride, c, c_row_stride, accumulate, .. } = self;
        debug_assert!(self.a_col_stride == 1 || depth == 1, "the pairs of a row of A have gaps");
        debug_assert!(
            (1..=BLOCK_SIDE).contains(&rows) && (1..=BLOCK_SIDE).contains(&cols),
            "a tile of {rows} × {cols} does not fit the registers"
        );
        let [lower, right] = [rows, cols].map(|len| len.saturating_sub(TILE_SIDE));
        let [upper, left] = [rows, cols].map(|len| len.min(TILE_SIDE));
        let c_part = |i: usize, j: usize, rows: usize, cols: usize| {
            let data = c.wrapping_offset(i as isize * c_row_stride).wrapping_add(j);
            RegisterPart { data, row_stride: c_row_stride, rows, cols }
        };
        let c00 = c_part(0, 0, upper, left);
        let c01 = c_part(0, TILE_SIDE, upper, right);
        let c10 = c_part(TILE_SIDE, 0, lower, left);
        let c11 = c_part(TILE_SIDE, TILE_SIDE, lower, right);
        let mut unit = U::new();
        // SAFETY: a part is within the tile: its rows and columns end at `rows` and `cols`, and its pairs at `depth`,
        // or, if `UNMASKED`, its columns at the full width. *Reads* and *Writes* of the tile contract and *Rows of A*
        // cover these elements. Empty parts are not accessed. The caller guarantees *Registers* and the contract of
        // `Vector`.
        unsafe {
            c00.load_sum::<V, U, 0>(&mut unit, accumulate);
            c01.load_sum::<V, U, 1>(&mut unit, accumulate);
            c10.load_sum::<V, U, 2>(&mut unit, accumulate);
            c11.load_sum::<V, U, 3>(&mut unit, accumulate);
            for start in (0..depth).step_by(TILE_SIDE) {
                let pairs = TILE_SIDE.min(depth - start);
                let a_part = |i: usize, rows: usize| {
                    let data = a.wrapping_offset(i as isize * a_row_stride).wrapping_add(start).cast_mut();
                    RegisterPart { data, row_stride: a_row_stride, rows, cols: pairs }
                };
                let b_part = |j: usize, cols: usize| {
                    let data = b.wrapping_offset(start as isize * b_row_stride).wrapping_add(j).cast_mut();
                    let cols = if UNMASKED { TILE_SIDE } else { cols };
                    RegisterPart { data, row_stride: b_row_stride, rows: pairs, cols }
                };
                a_part(0, upper).load::<V, U, 4>(&mut unit);
                b_part(0, left).load::<V, U, 6>(&mut unit);
                multiply_add::<T, U, 0, 4, 6>(&mut unit);
                if right > 0 {
                    b_part(TILE_SIDE, right).load::<V, U, 7>(&mut unit);
                    multiply_add::<T, U, 1, 4, 7>(&mut unit);
                }
                if lower > 0 {
                    a_part(TILE_SIDE, lower).load::<V, U, 5>(&mut unit);
                    multiply_add::<T, U, 2, 5, 6>(&mut unit);
                }
                if lower > 0 && right > 0 {
                    multiply_add::<T, U, 3, 5, 7>(&mut unit);
                }
            }
            c00.store::<V, U, 0>(&mut unit);
            c01.store::<V, U, 1>(&mut unit);
            c10.store::<V, U, 2>(&mut unit);
            c11.store::<V, U, 3>(&mut unit);
        }
    }
}

/// Adds the product of the registers `A` and `B`, which hold elements of type `T`, to register `C`.
///
/// # Safety
/// The clauses *processor* and *configured* of [`TileUnit`] hold.
#[inline(always)]
unsafe fn multiply_add<T: Element, U: TileUnit, const C: usize, const A: usize, const B: usize>(unit: &mut U) {
    // SAFETY: the caller guarantees the clauses.
    unsafe {
        match T::FACTORS {
            2 => unit.multiply_add::<C, A, B>(),
            _ => unit.multiply_add_i8::<C, A, B>(),
        }
    }
}

/// The part of a matrix that belongs to one tile register. Its rows are contiguous. A part with fewer rows or columns
/// than a register passes through a buffer of the size of a register, in which all other elements are zeros.
///
/// # Part contract
///
/// - *Part*: `data` is valid for reads, and in `store` for writes, of `rows × cols` elements, `row_stride` elements
///   between rows.
/// - *Registers*: the clauses *processor* and *configured* of [`TileUnit`] hold.
/// - The contract of [`Vector`] holds: the instruction set of `V` is enabled in the calling function.
struct RegisterPart<T> {
    data: *mut T,
    row_stride: isize,
    rows: usize,
    cols: usize,
}

/// The elements of a register, aligned like cache lines.
#[repr(align(64))]
struct RegisterBuffer<T>([[T; TILE_SIDE]; TILE_SIDE]);

impl<T: Element> RegisterPart<T> {
    /// The bytes between two rows of a [`RegisterBuffer`].
    const BUFFER_ROW_BYTES: isize = (TILE_SIDE * size_of::<T>()) as isize;

    fn is_empty(&self) -> bool {
        self.rows == 0 || self.cols == 0
    }

    fn is_full(&self) -> bool {
        self.rows == TILE_SIDE && self.cols == TILE_SIDE
    }

    fn row_bytes(&self) -> isize {
        self.row_stride * size_of::<T>() as isize
    }

    /// Sets register `R` to the initial value of the sums: this part of C, or zero.
    ///
    /// # Safety
    /// The part contract of [`RegisterPart`] holds.
    #[inline(always)]
    unsafe fn load_sum<V: Vector<Scalar = T>, U: TileUnit, const R: usize>(&self, unit: &mut U, accumulate: bool) {
        // SAFETY: the caller guarantees the part contract.
        unsafe { if accumulate && !self.is_empty() { self.load::<V, U, R>(unit) } else { unit.zero::<R>() } }
    }

    /// Loads register `R`.
    ///
    /// # Safety
    /// The part contract of [`RegisterPart`] holds.
    #[inline(always)]
    unsafe fn load<V: Vector<Scalar = T>, U: TileUnit, const R: usize>(&self, unit: &mut U) {
        // SAFETY: *Part* covers the rows of a full part, and the elements that are copied to the buffer, which are
        // selected by the mask. The buffer has all rows of a register. The caller guarantees the other clauses.
        unsafe {
            if self.is_full() {
                return unit.load::<R>(self.data.cast(), self.row_bytes());
            }
            let mut buffer = RegisterBuffer([[T::ZERO; TILE_SIDE]; TILE_SIDE]);
            self.for_each_vector::<V>(&mut buffer, |element, copy, mask| V::load_part(element, mask).store(copy));
            unit.load::<R>(buffer.0.as_ptr().cast(), Self::BUFFER_ROW_BYTES);
        }
    }

    /// Stores register `R`, unless the part is empty.
    ///
    /// # Safety
    /// The part contract of [`RegisterPart`] holds.
    #[inline(always)]
    unsafe fn store<V: Vector<Scalar = T>, U: TileUnit, const R: usize>(&self, unit: &mut U) {
        // SAFETY: *Part* covers the rows of a full part, and the elements that are copied from the buffer, which are
        // selected by the mask. The buffer has all rows of a register. The caller guarantees the other clauses.
        unsafe {
            if self.is_full() {
                return unit.store::<R>(self.data.cast(), self.row_bytes());
            }
            if self.is_empty() {
                return;
            }
            let mut buffer = RegisterBuffer([[T::ZERO; TILE_SIDE]; TILE_SIDE]);
            unit.store::<R>(buffer.0.as_mut_ptr().cast(), Self::BUFFER_ROW_BYTES);
            self.for_each_vector::<V>(&mut buffer, |element, copy, mask| V::load(copy).store_part(element, mask));
        }
    }

    /// Calls `f` for each vector of each row, with the address of its first element, the matching address in the
    /// buffer, and the mask of the columns of the part.
    ///
    /// # Safety
    /// The contract of [`Vector`] holds: the instruction set of `V` is enabled in the calling function.
    #[inline(always)]
    unsafe fn for_each_vector<V: Vector<Scalar = T>>(
        &self,
        buffer: &mut RegisterBuffer<T>,
        f: impl Fn(*mut T, *mut T, V::Mask),
    ) {
        for (r, copy) in buffer.0[..self.rows].iter_mut().enumerate() {
            let row = self.data.wrapping_offset(r as isize * self.row_stride);
            for first in (0..self.cols).step_by(V::LANES) {
                // SAFETY: the caller guarantees the contract of `Vector`; the number of lanes is at most `LANES`.
                let mask = unsafe { V::mask((self.cols - first).min(V::LANES)) };
                f(row.wrapping_add(first), copy[first..].as_mut_ptr(), mask);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::bf16_pairs::tests::{factors, packed, stored};
    use crate::block_sizes::depth_blocks;
    use crate::blocked_product::BlockedProduct;
    use crate::kernels::Kernels;
    use crate::packed_panels::PackedPanels;
    use crate::{
        Gemm, GemmOperands, ImplicitIm2col, OffsetList, OutputBlock, ProductBatch, Strided, Threads, gemm_batched_by,
        pair_isa,
    };
    use pellucid_runtime::testing::{Choices, Guarded};
    use pellucid_runtime::threads::{SharedPtr, with_threads};
    use pellucid_simd::Isa;
    use pellucid_simd::math::half::BF16;
    use pellucid_simd::vector::BF16Pair;

    static EMULATED: Kernels<BF16Pair> = Kernels::<BF16Pair>::EMULATED_AMX;

    /// Returns the emulated kernels if this processor has AVX512-BF16, and the kernels of AMX if this process can use
    /// it.
    fn tile_kernels() -> Vec<&'static Kernels<BF16Pair>> {
        let mut kernels = Vec::new();
        match Isa::best().has_bf16_products() {
            true => kernels.push(&EMULATED),
            false => eprintln!("not tested: the processor has no AVX512-BF16"),
        }
        match Isa::has_amx() {
            true => kernels.push(Kernels::for_isa(Isa::Amx)),
            false => eprintln!("not tested: the process cannot use AMX"),
        }
        kernels
    }

    /// The call with which a test computes a product.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum ProductCall {
        Gemm(Threads),
        /// A product with panels of B that were packed before.
        PackedPanels,
        /// A product of operands that are given by offset lists.
        ImplicitIm2col,
        /// A product without C, for an epilogue.
        Epilogue,
    }

    const CALLS: [ProductCall; 5] = [
        ProductCall::Gemm(Threads::One),
        ProductCall::Gemm(Threads::Pool),
        ProductCall::PackedPanels,
        ProductCall::ImplicitIm2col,
        ProductCall::Epilogue,
    ];

    /// Computes a product with operands that are given by offset lists.
    ///
    /// # Safety
    /// The contract of `gemm_batched_for_isa` holds for the operands [a, b] and C.
    unsafe fn multiply_by_offsets(
        kernels: &Kernels<BF16Pair>,
        shape: &Gemm,
        [a, b]: [Strided<BF16Pair>; 2],
        c: *mut BF16Pair,
    ) {
        let list = |len: usize, stride: isize| OffsetList::new((0..len as isize).map(|i| i * stride).collect());
        let [rows, columns] = [list(shape.m, a.lane), list(shape.n, b.lane)];
        let [a_depths, b_depths] = [a, b].map(|matrix| list(shape.k, matrix.depth));
        let product = BlockedProduct {
            a: &ImplicitIm2col { data: a.data, lanes: &rows, depths: &a_depths },
            b: &ImplicitIm2col { data: b.data, lanes: &columns, depths: &b_depths },
            k: shape.k,
            c,
            c_row_stride: shape.c_strides.0,
            c_col_stride: shape.c_strides.1,
            accumulate: shape.accumulate,
            epilogue: None,
            batch: 0,
            is_transposed: false,
        };
        // SAFETY: the caller guarantees the contract of `gemm_batched_for_isa`, which implies the product contract for
        // all elements of C.
        unsafe { product.compute(kernels, 0..shape.m, 0..shape.n) }
    }

    /// A product C[m × n] = A·B, or C + A·B, with the factors of A and B by lanes.
    struct TestProduct {
        shape: (usize, usize, usize),
        a: Vec<BF16>,
        b: Vec<BF16>,
        c: Vec<f32>,
    }

    impl TestProduct {
        fn new(shape @ (m, n, k): (usize, usize, usize)) -> TestProduct {
            let c = factors(m * n, 3, 120..130).iter().map(|x| x.to_f32()).collect();
            TestProduct { shape, a: factors(m * k, 1, 110..130), b: factors(n * k, 2, 110..130), c }
        }

        /// Computes each element in the documented order.
        fn reference(&self, accumulate: bool) -> Vec<f32> {
            let (m, n, k) = self.shape;
            let element = |i: usize, j: usize| {
                let factor = |p: usize| (self.a[i * k + p].to_f32(), self.b[j * k + p].to_f32());
                let chain = |indices: std::ops::Range<usize>| {
                    indices.step_by(2).map(factor).fold(0.0, |sum, (a, b)| a.mul_add(b, sum))
                };
                let start = if accumulate { self.c[i * n + j] } else { 0.0 };
                depth_blocks::<BF16Pair>(k.div_ceil(2))
                    .flat_map(|block| block.clone().step_by(16).map(move |s| (2 * s, 2 * block.end.min(s + 16))))
                    .fold(start, |c, (start, end)| c + (chain(start..k.min(end)) + chain(start + 1..k.min(end))))
            };
            (0..m * n).map(|i| element(i / n, i % n)).collect()
        }

        /// Checks a result against sums in `f64`.
        fn check_accuracy(&self, found: &[f32], accumulate: bool) {
            let (_, n, k) = self.shape;
            for (i, &found) in found.iter().enumerate() {
                let terms = || (0..k).map(|p| (self.a[i / n * k + p], self.b[i % n * k + p]));
                let products = || terms().map(|(a, b)| f64::from(a.to_f32()) * f64::from(b.to_f32()));
                let start = if accumulate { f64::from(self.c[i]) } else { 0.0 };
                let (exact, bound) =
                    (products().sum::<f64>() + start, products().map(f64::abs).sum::<f64>() + start.abs());
                assert!((f64::from(found) - exact).abs() <= bound * 2e-6, "{found} instead of {exact}");
            }
        }

        /// Computes the product with operands in memory with these layouts.
        fn compute(
            &self,
            kernels: &'static Kernels<BF16Pair>,
            layouts: [usize; 3],
            accumulate: bool,
            call: ProductCall,
        ) -> Vec<u32> {
            let (m, n, k) = self.shape;
            let pairs = k.div_ceil(2);
            let (a, a_strides) = stored((m, k), layouts[0], |i| self.a[i]);
            let (b, b_strides) = stored((n, k), layouts[1], |i| self.b[i]);
            let (_a, a, _) = packed(Isa::best(), &a, a_strides, (m, k));
            let (_b, b, _) = packed(Isa::best(), &b, b_strides, (n, k));
            let c_strides = [(n, 1), (1, m), (2 * n + 1, 2)][layouts[2]];
            let c_index = |i: usize, j: usize| i * c_strides.0 + j * c_strides.1;
            let mut c = Guarded::<u32>::unwritten(c_index(m - 1, n - 1) + 1);
            if accumulate {
                (0..m * n).for_each(|i| c[c_index(i / n, i % n)] = self.c[i].to_bits());
            }
            let c_start = c.as_mut_ptr().cast::<BF16Pair>();
            let (c_row_stride, c_col_stride) = (c_strides.0 as isize, c_strides.1 as isize);
            let shape = Gemm {
                m,
                n,
                k: pairs,
                a_strides: (a.lane, a.depth),
                b_strides: (b.depth, b.lane),
                c_strides: (c_row_stride, c_col_stride),
                accumulate,
            };
            let mut operands = GemmOperands { a: a.data, b: b.data, packed_b: None, c: Some(c_start), epilogue: None };
            let c_memory = SharedPtr(c_start);
            let copy_part = |part: OutputBlock<BF16Pair>| {
                for (r, s) in part.rows.clone().flat_map(|r| part.cols.clone().map(move |s| (r, s))) {
                    let (i, j) = ((r - part.rows.start) as isize, (s - part.cols.start) as isize);
                    // SAFETY: the element is in the part, and each element of C is in one part.
                    unsafe {
                        *c_memory.offset(c_index(r, s) as isize) =
                            *part.data.offset(i * part.row_stride + j * part.col_stride);
                    }
                }
            };
            // SAFETY: the contract of `gemm_batched_for_isa` and the product contract: the memory holds the three
            // matrices, which only this test accesses, and the processor has the instruction set of the kernels.
            unsafe {
                let multiply = |operands: &GemmOperands<'_, BF16Pair>, threads: Threads| {
                    gemm_batched_by(kernels, &shape, &ProductBatch::default(), operands, threads);
                };
                match call {
                    ProductCall::Gemm(threads) => multiply(&operands, threads),
                    ProductCall::PackedPanels => {
                        let mut memory = Guarded::<u32>::unwritten(PackedPanels::len(kernels, (n, pairs)));
                        let start = SharedPtr(memory.as_mut_ptr().cast());
                        operands.packed_b = Some(PackedPanels::pack_range(kernels, b, 0..n, pairs, start));
                        multiply(&operands, Threads::One);
                    }
                    ProductCall::ImplicitIm2col => multiply_by_offsets(kernels, &shape, [a, b], c_start),
                    ProductCall::Epilogue => {
                        operands.c = None;
                        operands.epilogue = Some(&copy_part);
                        multiply(&operands, Threads::Pool);
                    }
                }
            }
            let found = (0..m * n).map(|i| c[c_index(i / n, i % n)]).collect();
            (0..m * n).for_each(|i| c[c_index(i / n, i % n)] = u32::MAX);
            assert!(c.iter().all(|&gap| gap == u32::MAX), "the memory between the elements of C must be unchanged");
            found
        }

        /// Checks the bits of the product for several layouts, calls and kernels.
        fn check(&self, kernels: &[&'static Kernels<BF16Pair>], choices: &Choices, count: usize) {
            for accumulate in [false, true] {
                let expected = self.reference(accumulate);
                self.check_accuracy(&expected, accumulate);
                let expected: Vec<u32> = expected.iter().map(|sum| sum.to_bits()).collect();
                for &kernels in kernels {
                    for _ in 0..count {
                        let layouts = [(); 3].map(|()| choices.below(3));
                        let call = choices.of(&CALLS);
                        if accumulate && call == ProductCall::Epilogue {
                            continue;
                        }
                        let found = with_threads(3, || self.compute(kernels, layouts, accumulate, call));
                        let case = || format!("{:?} {layouts:?} {call:?} accumulate: {accumulate}", self.shape);
                        assert!(found == expected, "{}", case());
                    }
                }
            }
        }
    }

    #[test]
    fn products_around_registers_and_blocks() {
        let (kernels, choices) = (tile_kernels(), Choices::new(1));
        for m in [2, 3, 15, 16, 17, 31, 32, 33, 48, 65] {
            for n in [2, 5, 16, 17, 31, 32, 33, 64, 65] {
                for k in [1, 2, 31, 32, 33, 64, 65, 271, 272, 273, 300] {
                    TestProduct::new((m, n, k)).check(&kernels, &choices, 2);
                }
            }
        }
    }

    #[test]
    fn products_of_several_blocks() {
        let kernels = tile_kernels();
        for shape in [(130, 530, 100), (600, 40, 545), (40, 1030, 64), (257, 65, 273), (33, 270, 1100)] {
            TestProduct::new(shape).check(&kernels, &Choices::new(2), 10);
        }
    }

    #[test]
    fn nan_and_infinity_propagate() {
        for kernels in tile_kernels() {
            for (value, position) in [(f32::NAN, 0), (f32::INFINITY, 37), (f32::NEG_INFINITY, 66)] {
                let mut product = TestProduct::new((20, 33, 67));
                let one = BF16::from_f32(1.0);
                product.a.fill(one);
                product.b.fill(one);
                product.a[3 * 67 + position] = BF16::from_f32(value);
                let found = product.compute(kernels, [0, 0, 0], false, ProductCall::Gemm(Threads::One));
                for (i, found) in found.into_iter().map(f32::from_bits).enumerate() {
                    let expected = if i / 33 == 3 { value } else { 67.0 };
                    assert!(found == expected || found.is_nan() && expected.is_nan(), "{i}: {found}");
                }
            }
        }
    }

    /// The choice of the instruction set depends only on the shape, the processor and the caller's instruction set.
    #[test]
    fn large_products_of_pairs_use_tile_registers() {
        let widest = if Isa::has_amx() { Isa::Amx } else { Isa::best() };
        assert_eq!(pair_isa(Isa::best(), (16, 16, 64)), widest);
        for shape in [(15, 99, 99), (99, 15, 99), (99, 99, 63)] {
            assert_eq!(pair_isa(Isa::best(), shape), Isa::best(), "{shape:?}");
        }
        for isa in [Isa::Portable, Isa::Avx2] {
            assert_eq!(pair_isa(isa, (99, 99, 99)), isa);
        }
    }
}
