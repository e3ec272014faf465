//! The products of a head: the packed right factors that all blocks of queries share, and the conversion of left
//! factors to pairs of `bf16`.

use super::scratch::{ScratchCursor, round_to_cache_lines};
use pellucid_gemm::{
    FactorRange, Gemm, GemmOperands, PackGroups, PackSource, PackedPanels, Strided, Threads, pair_isa,
};
use pellucid_runtime::threads::SharedPtr;
use pellucid_simd::vector::BF16Pair;
use pellucid_simd::{Float, Isa};

/// How right factors are packed for products with `rows` rows.
#[derive(Clone, Copy)]
pub(super) struct FactorPacking {
    /// The instruction set of products of single factors.
    pub(super) isa: Isa,
    /// The number of rows of a product.
    pub(super) rows: usize,
    /// Whether factors are packed as pairs of `bf16`. The elements are then `f32`.
    pub(super) is_paired: bool,
}

impl FactorPacking {
    /// Returns the number of elements of scratch memory for a right factor of `lanes` × `depth` (n × k) elements.
    pub(super) fn right_len<T: Float>(&self, (lanes, depth): (usize, usize)) -> usize {
        match self.is_paired {
            true => {
                let (isa, half) = (self.pair_isa((lanes, depth)), depth.div_ceil(2));
                let panels = PackedPanels::<BF16Pair>::packed_len(isa, (lanes, half));
                round_to_cache_lines::<T>(lanes.saturating_mul(half)) + round_to_cache_lines::<T>(panels)
            }
            false => round_to_cache_lines::<T>(PackedPanels::<T>::packed_len(self.isa, (lanes, depth))),
        }
    }

    /// Returns the number of elements of scratch memory that [`RightFactor::multiply`] needs for left factors with at
    /// most `depth` columns.
    pub(super) fn left_len<T: Float>(&self, depth: usize) -> usize {
        if self.is_paired { round_to_cache_lines::<T>(self.rows.saturating_mul(depth.div_ceil(2))) } else { 0 }
    }

    /// Returns the instruction set of products of pairs with a right factor of `lanes` × `depth` elements.
    fn pair_isa(&self, (lanes, depth): (usize, usize)) -> Isa {
        pair_isa(self.isa, (self.rows, lanes, depth))
    }

    /// Packs a right factor of `lanes` × `depth` elements into [`right_len`](Self::right_len) elements of `scratch`.
    ///
    /// # Safety
    /// `from` is valid for reading `lanes` × `depth` elements while the factor is used. The scratch memory is valid for
    /// writing, and no other code accesses it while the factor is used. The processor supports `self.isa`; if factors
    /// are paired, it also multiplies pairs, and `T` is `f32`.
    pub(super) unsafe fn pack<T: Float>(
        &self,
        from: Strided<T>,
        (lanes, depth): (usize, usize),
        scratch: &mut ScratchCursor<T>,
    ) -> RightFactor<T> {
        if !self.is_paired {
            let to = scratch.take(PackedPanels::<T>::packed_len(self.isa, (lanes, depth)));
            // SAFETY: `from` is valid for these elements, the memory has `packed_len` elements, and the processor
            // supports the instruction set (this function's contract).
            return RightFactor::Panels(unsafe { PackedPanels::pack(self.isa, from, (lanes, depth), to) });
        }
        let (isa, half) = (self.pair_isa((lanes, depth)), depth.div_ceil(2));
        let [pairs, panels] = [lanes * half, PackedPanels::<BF16Pair>::packed_len(isa, (lanes, half))]
            .map(|count| SharedPtr(scratch.take(count).get().cast::<BF16Pair>()));
        let work = PackGroups { from: as_f32(from), lanes, depth, to: pairs.get() };
        // SAFETY: the pair packing contract. *Source*: `from` is valid for these elements, which are `f32`. *Target*:
        // the memory has an element, which is as large as a pair, for each pair. The panels have `packed_len` pairs.
        // The processor supports both instruction sets (this function's contract).
        unsafe {
            let range = work.pack(self.isa, 0..work.rows());
            let panels = PackedPanels::pack(isa, work.groups(), (lanes, half), panels);
            RightFactor::Pairs(PairedFactor { isa, panels, range, matrix: from, depth })
        }
    }
}

/// The right factor B[k × n] of a product.
#[derive(Clone, Copy)]
pub(super) enum RightFactor<T> {
    /// A matrix that is read in place.
    InPlace(Strided<T>),
    /// Packed panels.
    Panels(PackedPanels<T>),
    /// Packed panels of pairs.
    Pairs(PairedFactor<T>),
}

/// A right factor whose elements are pairs of `bf16`.
#[derive(Clone, Copy)]
pub(super) struct PairedFactor<T> {
    /// The instruction set of products of pairs.
    isa: Isa,
    /// The pairs.
    panels: PackedPanels<BF16Pair>,
    /// The smallest nonzero magnitude of the factor.
    range: FactorRange,
    /// The unpacked factor, for left factors with which the products of pairs could be subnormal.
    matrix: Strided<T>,
    /// The number of k indices.
    depth: usize,
}

impl<T: Float> RightFactor<T> {
    /// Returns the factor without its first `start` k indices, an even number.
    pub(super) fn skip(self, start: usize) -> RightFactor<T> {
        debug_assert!(start.is_multiple_of(2), "{start} k indices cannot be skipped: pairs would be split");
        let skipped = |b: Strided<T>| Strided { data: b.data.wrapping_offset(start as isize * b.depth), ..b };
        match self {
            RightFactor::InPlace(b) => RightFactor::InPlace(skipped(b)),
            RightFactor::Panels(panels) => RightFactor::Panels(panels.skip(start)),
            RightFactor::Pairs(b) => RightFactor::Pairs(PairedFactor {
                panels: b.panels.skip(start / 2),
                matrix: skipped(b.matrix),
                depth: b.depth - start,
                ..b
            }),
        }
    }

    /// Computes C = A·B, or C = C + A·B if `add`, for A[m × k] and the first k indices of B[k × n], on this thread.
    /// Rows of C are contiguous and `row_stride` elements apart. If B consists of pairs, all elements of A are
    /// representable as `bf16`.
    ///
    /// Pairs are multiplied unless a sum could be subnormal, and unless k is odd and B has further k indices: the
    /// product of the padding of A with an infinity in B would be NaN.
    ///
    /// # Safety
    /// A is valid for reading m × k elements. C is valid for writing m × n elements, it overlaps neither A nor B, and
    /// no other thread accesses C. `scratch` is valid for writing [`FactorPacking::left_len`] elements for this depth,
    /// and no other code accesses it during the call. The processor supports `isa`.
    pub(super) unsafe fn multiply(
        &self,
        isa: Isa,
        a: Strided<T>,
        (m, n, k): (usize, usize, usize),
        (to, row_stride): (*mut T, isize),
        add: bool,
        scratch: SharedPtr<T>,
    ) {
        let multiply_single = |b: &dyn PackSource<T>| {
            // SAFETY: the contract of `multiply` is this function's contract.
            unsafe { pellucid_gemm::multiply(isa, &a, b, (0..m, 0..n, k), to, row_stride, add) }
        };
        match self {
            RightFactor::InPlace(b) => {
                let (a_strides, b_strides) = ((a.lane, a.depth), (b.depth, b.lane));
                let shape = Gemm { m, n, k, a_strides, b_strides, c_strides: (row_stride, 1), accumulate: add };
                let operands = GemmOperands { a: a.data, b: b.data, packed_b: None, c: Some(to), epilogue: None };
                // SAFETY: the pointers are valid for the elements of `shape`, and C is exclusive to this call (this
                // function's contract); there is one product, at offset 0. The processor supports `isa`.
                unsafe {
                    pellucid_gemm::gemm_batched_for_isa(isa, &shape, &Default::default(), &operands, Threads::One)
                }
            }
            RightFactor::Panels(b) => multiply_single(b),
            RightFactor::Pairs(b) => {
                let work = PackGroups { from: as_f32(a), lanes: m, depth: k, to: scratch.get().cast() };
                // SAFETY: the pair packing contract. *Source*: A has the elements, which are `f32`, because B consists
                // of pairs. *Target*: the scratch memory has an element for each pair. The processor supports `isa`.
                let range = unsafe { work.pack(isa, 0..work.rows()) };
                if !range.excludes_subnormals(b.range) || k % 2 == 1 && k < b.depth {
                    return multiply_single(&b.matrix);
                }
                let (pairs, size) = (work.groups(), (0..m, 0..n, k.div_ceil(2)));
                // SAFETY: the pairs are the elements of both factors, and the sums of pairs are `f32`, like the
                // elements of C; the other clauses are this function's contract.
                unsafe { pellucid_gemm::multiply(b.isa, &pairs, &b.panels, size, to.cast(), row_stride, add) }
            }
        }
    }
}

/// Returns a matrix of `f32`.
fn as_f32<T: Float>(matrix: Strided<T>) -> Strided<f32> {
    debug_assert_eq!(size_of::<T>(), size_of::<f32>(), "only `f32` factors are rounded");
    Strided { data: matrix.data.cast(), lane: matrix.lane, depth: matrix.depth }
}
