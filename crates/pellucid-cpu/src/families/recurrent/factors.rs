//! The factors of the products of a step: weights that are packed once, and rows that may be rounded to `bf16`.

use crate::factor_groups::PairMatrices;
use pellucid_gemm::{FactorRange, OwnedPanels, PackGroups, Strided, pair_isa, round_to_bf16};
use pellucid_ir::Result;
use pellucid_runtime::CpuBuffer;
use pellucid_runtime::list::List;
use pellucid_runtime::threads::SharedPtr;
use pellucid_simd::tiles::TILE_SIDE;
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
    /// The weights as pairs, if the processor multiplies pairs.
    pairs: Option<PairedWeights>,
    /// The memory for the left factors: `depth` elements for each sequence.
    rows: SharedPtr<T>,
    _memory: [CpuBuffer; 2],
}

/// The pairs of the factors of the products of a step.
struct PairedWeights {
    /// The instruction set of the products. With [`Isa::Amx`], the bits of a product of pairs differ from those of the
    /// product of single factors.
    isa: Isa,
    /// The panels of pairs of weights.
    panels: OwnedPanels<BF16Pair>,
    /// The range of the weights.
    range: FactorRange,
    /// The memory for the left factors: ⌈`depth` / 2⌉ pairs for each sequence.
    rows: SharedPtr<BF16Pair>,
    _memory: CpuBuffer,
}

/// The left factor of a product, with all rows of the batch.
pub(super) enum StepRows<T> {
    /// Elements of the type of the arrays.
    Single(Strided<T>),
    /// Pairs of elements that are rounded to `bf16`.
    Pairs(Strided<BF16Pair>),
}

/// Ranges of rows with their left factors.
pub(super) type StepRowRanges<T> = List<(Range<usize>, StepRows<T>), 2>;

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

    /// Returns the number of sequences of a block. A thread computes entire blocks: a block of rows is multiplied as
    /// pairs or as single factors. Without AMX, these have equal bits, and a block is one sequence.
    pub(super) fn row_granule(&self) -> usize {
        match self.rounded.as_ref().and_then(|factors| factors.pairs.as_ref()) {
            Some(PairedWeights { isa: Isa::Amx, .. }) => TILE_SIDE,
            _ => 1,
        }
    }

    /// Returns the rows `range` of `a` as the left factors of products, in ranges of rows. If the weights are rounded
    /// to `bf16`, the rows are copied and rounded too, and packed as pairs if the weights are and no product can be
    /// subnormal. With AMX, every [block](Self::row_granule) decides this for itself, from all of its rows, so that the
    /// bits do not depend on the rows of a thread. `range` starts with a block; the rows of the thread end at `end`.
    ///
    /// # Safety
    /// `a` is valid for reads of the rows from `range.start` to `end`, of `depth` contiguous elements. No other thread
    /// uses these rows of the memory for left factors until the products are computed.
    pub(super) unsafe fn left_factors(&self, a: Strided<T>, range: &Range<usize>, end: usize) -> StepRowRanges<T> {
        let mut ranges = StepRowRanges::new();
        let Some(factors) = &self.rounded else {
            ranges.push((range.clone(), StepRows::Single(a)));
            return ranges;
        };
        let (granule, end) = match self.row_granule() {
            1 => (range.len().max(1), range.end),
            granule => (granule, end),
        };
        for first in range.clone().step_by(granule) {
            let block = first..end.min(first + granule);
            // SAFETY: `a` has the rows, and only this call uses them in the memory for left factors (this function's
            // contract).
            let left = unsafe { self.left_factor(factors, a, &block) };
            let rows = first..block.end.min(range.end);
            match (ranges.last_mut(), &left) {
                (Some((last, StepRows::Single(_))), StepRows::Single(_))
                | (Some((last, StepRows::Pairs(_))), StepRows::Pairs(_)) => last.end = rows.end,
                _ => ranges.push((rows, left)),
            }
        }
        ranges
    }

    /// Returns the rows `range` of `a`, rounded, as the left factor of a product.
    ///
    /// # Safety
    /// The contract of [`left_factors`](Self::left_factors) holds for these rows.
    unsafe fn left_factor(&self, factors: &RoundedFactors<T>, a: Strided<T>, range: &Range<usize>) -> StepRows<T> {
        let (depth, first) = (self.depth, a.data.wrapping_offset(range.start as isize * a.lane));
        if let Some(pairs) = &factors.pairs {
            let from = Strided { data: first.cast::<f32>(), lane: a.lane, depth: a.depth };
            let half = depth.div_ceil(2);
            let to = pairs.rows.offset((range.start * half) as isize);
            let work = PackGroups { from, lanes: range.len(), depth, to };
            // SAFETY: the pair packing contract. *Source*: `a` has the rows, whose elements are `f32` if factors are
            // rounded. *Target*: the memory has `half` pairs for each row, which only this call accesses. The processor
            // supports `isa` (contract of `new`).
            let rows_range = unsafe { work.pack(self.isa, 0..work.rows()) };
            if rows_range.excludes_subnormals(pairs.range) {
                return StepRows::Pairs(Strided { data: pairs.rows.get().cast_const(), lane: half as isize, depth: 1 });
            }
        }
        for row in range.clone() {
            let from = a.data.wrapping_offset(row as isize * a.lane).cast::<f32>();
            let to = factors.rows.offset((row * depth) as isize).cast::<f32>();
            // SAFETY: `a` has the row, whose elements are `f32` if factors are rounded, and the memory has `depth`
            // elements for it, which only this call accesses. The processor supports `isa` (contract of `new`).
            unsafe { round_to_bf16(self.isa)(from, to, depth) }
        }
        StepRows::Single(Strided { data: factors.rows.get().cast_const(), lane: depth as isize, depth: 1 })
    }

    /// Computes the rows `rows` and the columns `cols` of C = A·B, or C + A·B if `add`. The rows of C are contiguous
    /// and `stride` elements apart.
    ///
    /// # Safety
    /// `a` is a [left factor](Self::left_factors) of these weights with these rows. C is valid for writing the
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
        // function's contract). The processor supports `isa` and the instruction set of pairs (contract of `new`).
        // Pairs have half the depth, and their sums are `f32`, like the elements of C.
        unsafe {
            match (a, rounded.and_then(|factors| factors.pairs.as_ref()), &self.panels) {
                (StepRows::Pairs(a), Some(PairedWeights { isa, panels, .. }), _) => {
                    let panels: &pellucid_gemm::PackedPanels<BF16Pair> = panels;
                    pellucid_gemm::multiply(*isa, a, panels, (rows, cols, depth.div_ceil(2)), c.cast(), stride, add);
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
                let single = Strided { data: weights.data.cast::<f32>(), lane: matrix.lane, depth: matrix.depth };
                // SAFETY: the matrix of the rounded weights was written above; the processor supports `isa` (this
                // function's contract), which multiplies pairs.
                Some(unsafe { PairedWeights::new(isa, single, (lanes, depth), batch) }?)
            }
            false => None,
        };
        Ok(RoundedFactors { weights, pairs, rows: SharedPtr(rows), _memory: memory })
    }
}

impl PairedWeights {
    /// Packs a matrix of (lanes, depth) elements for products with `batch` rows, and allocates the memory for the left
    /// factors.
    ///
    /// # Errors
    /// Returns an error if memory cannot be allocated.
    ///
    /// # Safety
    /// `matrix` is valid for reads of its elements, which no thread writes during the call. The processor supports
    /// `isa`, which multiplies pairs.
    unsafe fn new(isa: Isa, matrix: Strided<f32>, (lanes, depth): (usize, usize), batch: usize) -> Result<Self> {
        let (isa, half) = (pair_isa(isa, (batch, lanes, depth)), depth.div_ceil(2));
        let memory = CpuBuffer::scratch(batch.saturating_mul(half).saturating_mul(size_of::<BF16Pair>()))?;
        let rows = SharedPtr(memory.ensure()?.as_ptr().cast::<BF16Pair>());
        let from = SharedPtr(matrix.data.cast_mut());
        // SAFETY: `matrix` is valid for reads of its elements (this function's contract), and the pairs are valid for
        // reads. The processor supports both instruction sets (this function's contract).
        unsafe {
            let pairs =
                PairMatrices::new((1, 1), (lanes, depth), |_| Strided { data: from.get().cast_const(), ..matrix })?;
            let panels = OwnedPanels::new(isa, pairs.first, (lanes, half))?;
            Ok(PairedWeights { isa, panels, range: pairs.range(), rows, _memory: memory })
        }
    }
}
