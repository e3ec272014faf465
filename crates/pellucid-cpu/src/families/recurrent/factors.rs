//! The factors of the products of a step: weights that are packed once, and rows that may be rounded to `bf16`.

use crate::pairs::PairMatrices;
use pellucid_gemm::{FactorRange, OwnedPanels, PackPairs, Strided, round_to_bf16};
use pellucid_ir::Result;
use pellucid_runtime::CpuBuffer;
use pellucid_runtime::threads::SharedPtr;
use pellucid_simd::vector::BF16Pair;
use pellucid_simd::{Float, Isa};
use std::ops::Range;

/// The right factor B[depth × lanes] of the products of all steps.
pub(super) struct StepWeights<T> {
    isa: Isa,
    /// The number of columns of a product.
    pub(super) lanes: usize,
    /// The size k of a product.
    depth: usize,
    /// The panels, unless pairs are multiplied.
    panels: Option<OwnedPanels<T>>,
    /// The additional memory of weights that are rounded to `bf16`.
    rounded: Option<RoundedFactors<T>>,
}

/// The rounded factors of the products of a step.
struct RoundedFactors<T> {
    /// The rounded weights.
    weights: Strided<T>,
    /// The panels of pairs of weights and the range of the weights, if the processor multiplies pairs.
    pairs: Option<(OwnedPanels<BF16Pair>, FactorRange)>,
    /// The memory for the left factors: `depth` elements for each sequence.
    rows: SharedPtr<T>,
    _memory: [CpuBuffer; 2],
}

/// The left factor of a product, with all rows of the batch.
pub(super) enum StepRows<T> {
    /// Elements of the type of the arrays.
    Single(Strided<T>),
    /// Pairs of elements that are rounded to `bf16`.
    Pairs(Strided<BF16Pair>),
}

impl<T: Float> StepWeights<T> {
    /// Packs the weights, a matrix of (lanes, depth) elements without gaps, for products with `batch` rows. With
    /// `rounds`, the factors are rounded to `bf16`.
    ///
    /// # Errors
    /// Returns an error if memory cannot be allocated.
    ///
    /// # Safety
    /// `matrix` is valid for reads of its `lanes · depth` contiguous elements, which no thread writes during the call.
    /// The processor supports `isa`. With `rounds`, `T` is `f32`.
    pub(super) unsafe fn new(
        isa: Isa,
        matrix: Strided<T>,
        (lanes, depth): (usize, usize),
        batch: usize,
        rounds: bool,
    ) -> Result<StepWeights<T>> {
        // SAFETY: the matrix and the rounded weights, which have its layout, are valid for reads, and the processor
        // supports `isa` (this function's contract). With `rounds`, `T` is `f32`.
        unsafe {
            let rounded = match rounds {
                true => Some(RoundedFactors::new(isa, matrix, (lanes, depth), batch)?),
                false => None,
            };
            let panels = match &rounded {
                Some(RoundedFactors { pairs: Some(_), .. }) => None,
                Some(factors) => Some(OwnedPanels::new(isa, factors.weights, (lanes, depth))?),
                None => Some(OwnedPanels::new(isa, matrix, (lanes, depth))?),
            };
            Ok(StepWeights { isa, lanes, depth, panels, rounded })
        }
    }

    /// Returns the rows `range` of `a` as the left factor of a product. If the weights are rounded to `bf16`, the rows
    /// are copied and rounded too, and packed as pairs if the weights are and no product can be subnormal.
    ///
    /// # Safety
    /// `a` is valid for reads of these rows of `depth` contiguous elements. No other thread uses these rows of the
    /// memory for left factors until the product is computed.
    pub(super) unsafe fn left_factor(&self, a: Strided<T>, range: &Range<usize>) -> StepRows<T> {
        let Some(factors) = &self.rounded else { return StepRows::Single(a) };
        let (depth, first) = (self.depth, a.data.wrapping_offset(range.start as isize * a.lane));
        if let Some((_, weights_range)) = &factors.pairs {
            let from = Strided { data: first.cast::<f32>(), lane: a.lane, depth: a.depth };
            let to = factors.rows.offset((range.start * depth) as isize).cast::<BF16Pair>();
            let work = PackPairs { from, lanes: range.len(), depth, to };
            // SAFETY: the pair packing contract. *Source*: `a` has the rows, whose elements are `f32` if factors are
            // rounded. *Target*: the memory has `depth` elements for each row, which only this call accesses. The
            // processor supports `isa` (contract of `new`).
            let rows_range = unsafe { work.pack(self.isa, 0..work.rows()) };
            if rows_range.excludes_subnormals(*weights_range) {
                let pairs = work.pairs();
                let data = pairs.data.wrapping_offset(-(range.start as isize * pairs.lane));
                return StepRows::Pairs(Strided { data, ..pairs });
            }
        }
        let rows = Strided { data: factors.rows.get().cast_const(), lane: depth as isize, depth: 1 };
        for row in range.clone() {
            let from = a.data.wrapping_offset(row as isize * a.lane).cast::<f32>();
            let to = factors.rows.offset((row * depth) as isize).cast::<f32>();
            // SAFETY: `a` has the row, whose elements are `f32` if factors are rounded, and the memory has `depth`
            // elements for it, which only this call accesses. The processor supports `isa` (contract of `new`).
            unsafe { round_to_bf16(self.isa)(from, to, depth) }
        }
        StepRows::Single(rows)
    }

    /// Computes the rows `rows` and the columns `cols` of C = A·B, or C + A·B if `add`. The rows of C are contiguous
    /// and `stride` elements apart.
    ///
    /// # Safety
    /// `a` is the [left factor](Self::left_factor) of these weights with these rows. C is valid for writing the
    /// elements, which no other thread accesses.
    pub(super) unsafe fn multiply(
        &self,
        a: &StepRows<T>,
        (rows, cols): (Range<usize>, Range<usize>),
        (to, stride): (SharedPtr<T>, usize),
        add: bool,
    ) {
        let (isa, depth, c, stride) = (self.isa, self.depth, to.get(), stride as isize);
        let rounded = self.rounded.as_ref();
        // SAFETY: the factors have the rows and columns of the product, and C is exclusive to this call (this
        // function's contract). The processor supports `isa` (contract of `new`). Pairs have half the depth, and their
        // sums are `f32`, like the elements of C.
        unsafe {
            match (a, rounded.and_then(|factors| factors.pairs.as_ref()), &self.panels) {
                (StepRows::Pairs(a), Some((pairs, _)), _) => {
                    let panels: &pellucid_gemm::PackedPanels<BF16Pair> = pairs;
                    pellucid_gemm::multiply(isa, a, panels, (rows, cols, depth.div_ceil(2)), c.cast(), stride, add);
                }
                (StepRows::Single(a), _, Some(panels)) => {
                    let panels: &pellucid_gemm::PackedPanels<T> = panels;
                    pellucid_gemm::multiply(isa, a, panels, (rows, cols, depth), c, stride, add);
                }
                (StepRows::Single(a), _, None) => {
                    let weights = &rounded.expect("weights without panels must be rounded").weights;
                    pellucid_gemm::multiply(isa, a, weights, (rows, cols, depth), c, stride, add);
                }
                (StepRows::Pairs(_), None, _) => {
                    unreachable!("the rows of a step must be pairs only if its weights are packed as pairs")
                }
            }
        }
    }
}

impl<T: Float> RoundedFactors<T> {
    /// Rounds the weights and allocates the memory for the left factors.
    ///
    /// # Errors
    /// Returns an error if memory cannot be allocated.
    ///
    /// # Safety
    /// The contract of [`StepWeights::new`] holds, and `T` is `f32`.
    unsafe fn new(isa: Isa, matrix: Strided<T>, (lanes, depth): (usize, usize), batch: usize) -> Result<Self> {
        debug_assert_eq!(size_of::<T>(), size_of::<f32>(), "only `f32` factors are rounded");
        let allocate = |rows: usize| CpuBuffer::scratch(rows.saturating_mul(depth).saturating_mul(size_of::<f32>()));
        let memory = [allocate(lanes)?, allocate(batch)?];
        let [to, rows] = [memory[0].ensure()?, memory[1].ensure()?].map(|start| start.as_ptr().cast::<T>());
        // SAFETY: the matrix has `lanes · depth` `f32` without gaps, and the memory is as long. The processor supports
        // `isa` (this function's contract).
        unsafe { round_to_bf16(isa)(matrix.data.cast(), to.cast(), lanes * depth) };
        let weights = Strided { data: to.cast_const(), ..matrix };
        let pairs = match isa.has_bf16_products() {
            true => {
                let from = SharedPtr(to.cast::<f32>());
                let single = |_| Strided { data: from.get().cast_const(), lane: matrix.lane, depth: matrix.depth };
                // SAFETY: the matrix of the rounded weights was written above; the processor supports `isa` (this
                // function's contract), which multiplies pairs.
                unsafe {
                    let pairs = PairMatrices::new((1, 1), (lanes, depth), single)?;
                    Some((OwnedPanels::new(isa, pairs.first, (lanes, depth.div_ceil(2)))?, pairs.range()))
                }
            }
            false => None,
        };
        Ok(RoundedFactors { weights, pairs, rows: SharedPtr(rows), _memory: memory })
    }
}
