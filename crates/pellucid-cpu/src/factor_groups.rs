//! Matrices of groups of factors, which one instruction multiplies: pairs of `bf16` and quads of `i8`.

use pellucid_gemm::{FactorElement, FactorRange, PackGroups, Strided};
use pellucid_ir::{Result, lock};
use pellucid_runtime::CpuBuffer;
use pellucid_runtime::list::List;
use pellucid_runtime::threads::{GRAIN, SharedPtr, parallel_ranges};
use pellucid_simd::vector::BF16Pair;
use pellucid_simd::{Element, Isa};
use std::sync::{Mutex, PoisonError};

/// Matrices of pairs of `bf16` factors.
pub(crate) type PairMatrices = GroupMatrices<BF16Pair>;

/// Matrices of equal size whose elements are groups of factors with consecutive k indices, one matrix after another.
pub(crate) struct GroupMatrices<G> {
    memory: CpuBuffer,
    /// The first matrix, with the strides of every matrix.
    pub(crate) first: Strided<G>,
    /// The number of groups of a matrix.
    pub(crate) len: usize,
    /// The smallest nonzero magnitude among the factors of each set of consecutive matrices.
    pub(crate) ranges: List<FactorRange, 8>,
}

impl<G: Element> GroupMatrices<G> {
    /// Converts `count` matrices of `lanes` × `depth` factors, in sets of `set` matrices. `matrix(i)` is matrix i.
    ///
    /// # Errors
    /// Returns an error if memory cannot be allocated.
    ///
    /// # Safety
    /// Every matrix is valid for reads of `lanes` × `depth` elements, and no thread writes them during the call. All
    /// matrices have the same strides.
    pub(crate) unsafe fn new<E: FactorElement<Group = G>>(
        (count, set): (usize, usize),
        (lanes, depth): (usize, usize),
        matrix: impl Fn(usize) -> Strided<E> + Sync,
    ) -> Result<GroupMatrices<G>> {
        let one = PackGroups { from: matrix(0), lanes, depth, to: std::ptr::null_mut() };
        let (len, rows, row_bytes) = (one.group_count(), one.rows(), one.row_len() * size_of::<G>());
        let memory = CpuBuffer::scratch(count.saturating_mul(len).saturating_mul(size_of::<G>()))?;
        let to = SharedPtr(memory.ensure()?.as_ptr().cast::<G>());
        let ranges: List<FactorRange, 8> = (0..count.div_ceil(set).max(1)).map(|_| FactorRange::EMPTY).collect();
        let ranges = Mutex::new(ranges);
        let join = |set: usize, range: FactorRange| {
            let joined = &mut lock(&ranges)[set];
            *joined = joined.join(range);
        };
        parallel_ranges(count * rows, GRAIN / row_bytes.max(1) + 1, |part| {
            let (mut row, mut part_set, mut part_range) = (part.start, 0, FactorRange::EMPTY);
            while row < part.end {
                let (index, first) = (row / rows, row % rows);
                let end = rows.min(first + part.end - row);
                let work = PackGroups { from: matrix(index), lanes, depth, to: to.offset((index * len) as isize) };
                if index / set != part_set {
                    join(part_set, part_range);
                    (part_set, part_range) = (index / set, FactorRange::EMPTY);
                }
                // SAFETY: the group packing contract. *Source* is this function's contract. *Target*: the memory has
                // `len` groups for each matrix, and each row is in one part. *Isa*: the processor has `Isa::best()`.
                part_range = part_range.join(unsafe { work.pack(Isa::best(), first..end) });
                row += end - first;
            }
            join(part_set, part_range);
        });
        let first = PackGroups { to: to.get(), ..one }.groups();
        Ok(GroupMatrices { memory, first, len, ranges: ranges.into_inner().unwrap_or_else(PoisonError::into_inner) })
    }

    /// Returns the smallest nonzero magnitude among all factors.
    pub(crate) fn range(&self) -> FactorRange {
        self.ranges.iter().copied().fold(FactorRange::EMPTY, FactorRange::join)
    }

    /// Returns the groups of all matrices.
    pub(crate) fn data(&self) -> SharedPtr<G> {
        let start = self.memory.start().expect("the memory of the groups must be allocated");
        SharedPtr(start.as_ptr().cast())
    }
}
