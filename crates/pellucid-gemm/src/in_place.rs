//! The choice of operands that the micro-kernel reads in place, and of the orientation of a product.

use super::block_sizes::MAX_DEPTH_BLOCK;
use super::blocked_product::BlockedProduct;
use super::kernels::Kernels;
use super::panel_layout::PACKED_ROW_STRIDE;
use super::strided::Strided;
use pellucid_simd::Element;

/// The number of strips that are packed together if the columns of A are contiguous: about half a kilobyte of each
/// column.
const STRIPS_PER_PACK: usize = 8;

/// The maximum extent in memory, in bytes, of a small B that is read in place.
const SMALL_B_BYTES: usize = 32 << 10;

/// The smallest k of a small B that is read in place.
const MIN_SMALL_B_DEPTH: usize = 16;

/// The maximum number of panels of B for which A is read in place, unless its rows map to the same cache sets.
const FEW_PANELS: usize = 2;

/// The maximum number of panels of B for which rows of A are read in place if the rows are distributed over the cache
/// sets.
///
/// In place, the loads of A for the first panel overlap with multiply-adds; a copy would wait for its loads. Measured
/// for `f32` with A in L3: products with 128 and 256 columns take 0.91 to 0.97 of the time with a copy.
const SOME_PANELS: usize = 8;

impl<T: Element> BlockedProduct<'_, T> {
    /// Returns true if strips of A are packed by rows: if packing by rows is faster, or if the kernel reads rows only.
    /// Vector kernels read rows as fast as columns.
    pub(crate) fn is_a_packed_in_rows(&self, kernels: &Kernels<T>) -> bool {
        self.a.in_rows() || kernels.tile_registers.is_some()
    }

    /// Returns the number of strips of A that are packed together.
    pub(crate) fn strips_per_pack(&self, kernels: &Kernels<T>, rows: usize) -> usize {
        if self.is_a_packed_in_rows(kernels) { 1 } else { rows.div_ceil(kernels.rows).min(STRIPS_PER_PACK) }
    }

    /// Returns true if the kernel reads A in place: if its rows are as close together as packed rows, or if so few
    /// tiles share a panel that packing costs more than it saves. The k indices of a row must be contiguous for tile
    /// registers.
    pub(crate) fn is_a_read_in_place(&self, kernels: &Kernels<T>, cols: usize) -> bool {
        self.a.strided().filter(|a| a.depth == 1 || kernels.tile_registers.is_none()).is_some_and(|a| {
            let panels = cols.div_ceil(kernels.width());
            a.depth == 1 && a.lane.unsigned_abs() <= PACKED_ROW_STRIDE
                || panels <= FEW_PANELS && !self.has_set_conflicts(&a)
                || panels <= SOME_PANELS && a.depth == 1 && self.are_rows_distributed(&a)
        })
    }

    /// Returns true if the kernel reads A in place while panels of B are outermost, so that all panels read A from L2.
    /// It does so if [`is_a_read_in_place`](Self::is_a_read_in_place) is true, or if the rows are contiguous and either
    /// short and without set conflicts, or distributed over the cache sets.
    pub(crate) fn is_a_kept_in_place(&self, kernels: &Kernels<T>, cols: usize) -> bool {
        self.is_a_read_in_place(kernels, cols)
            || self.a.strided().is_some_and(|a| {
                let is_short = self.k <= MAX_DEPTH_BLOCK && !self.has_set_conflicts(&a);
                a.depth == 1 && (is_short || self.are_rows_distributed(&a))
            })
    }

    /// Returns true if the stride between rows of A is not close to a multiple of half a page. 14 rows of a depth block
    /// then use at most half of the ways of an 8-way L1.
    fn are_rows_distributed(&self, a: &Strided<T>) -> bool {
        let remainder = a.lane.unsigned_abs() * size_of::<T>() % 2048;
        (256..=2048 - 256).contains(&remainder)
    }

    /// Returns true if the rows of A are long and contiguous, and their stride is a multiple of half a page. 14 rows
    /// then map to the same sets of an 8-way L1 and evict each other.
    fn has_set_conflicts(&self, a: &Strided<T>) -> bool {
        a.depth == 1 && (a.lane.unsigned_abs() * size_of::<T>()).is_multiple_of(2048) && self.k >= 64
    }

    /// Returns true if the kernel reads B in place: if its rows are contiguous, and either at most two strips of A read
    /// them or all of B fits in L1.
    ///
    /// For a small k, only the number of strips counts: C is stored so often that loads of B from the same offset in a
    /// page would wait for the stores (4K aliasing).
    pub(crate) fn is_b_read_in_place(&self, kernels: &Kernels<T>, rows: usize) -> bool {
        self.b.strided().is_some_and(|b| {
            let is_small = self.k >= MIN_SMALL_B_DEPTH
                && self.k.saturating_mul(b.depth.unsigned_abs()) <= SMALL_B_BYTES / size_of::<T>();
            b.lane == 1 && (rows <= 2 * kernels.rows || is_small)
        })
    }
}

/// Estimates the number of vector instructions per k index of a product C[m × n] in one of its two orientations. The
/// orientation with the lower estimate is computed.
///
/// A thin product wastes lanes if its vectors are along the short side. An orientation may need transpositions of B and
/// of C. Measured: they cost a third of an instruction per element.
pub(crate) fn cost<T>(
    kernels: &Kernels<T>,
    (m, n, k): (usize, usize, usize),
    b: &Strided<T>,
    c_col_stride: isize,
) -> f32 {
    let pack = match b {
        Strided { lane: 1, .. } if m <= 2 * kernels.rows => 0.0,
        Strided { lane: 1, .. } => 1.0 / kernels.lanes as f32,
        Strided { depth: 1, .. } => 0.33,
        _ => 2.0,
    };
    let transpose = if c_col_stride == 1 { 0.0 } else { 0.33 / k.max(1) as f32 };
    (m * n.div_ceil(kernels.lanes)) as f32 + pack * n as f32 + transpose * (m * n) as f32
}
