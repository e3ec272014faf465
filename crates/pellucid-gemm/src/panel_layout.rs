//! The panels of A and B that a register tile reads.

use super::block_sizes::MAX_DEPTH_BLOCK;
use super::kernels::Kernels;

/// The columns of B that one register tile reads, with contiguous rows.
#[derive(Clone, Copy)]
pub(crate) struct ColumnPanel<T> {
    /// Element (0, 0).
    pub(crate) data: *const T,
    /// The stride between k indices.
    pub(crate) depth: isize,
    /// True if every row has the width of a full register tile. Columns past the last column of B are then zeros.
    pub(crate) is_padded: bool,
}

impl<T> ColumnPanel<T> {
    /// Returns a packed panel of `width` columns.
    pub(crate) fn packed(data: *const T, width: usize) -> ColumnPanel<T> {
        ColumnPanel { data, depth: width as isize, is_padded: true }
    }
}

/// Returns the number of elements of the largest panel of A.
pub(crate) fn a_panel_len<T>(kernels: &Kernels<T>) -> usize {
    PACKED_ROW_STRIDE * a_panel_width(kernels)
}

/// Returns the number of elements per k index of a panel of A that is packed by columns.
pub(crate) fn a_panel_width<T>(kernels: &Kernels<T>) -> usize {
    kernels.rows.next_multiple_of(kernels.lanes)
}

/// The stride between packed rows of A, in elements: 18 cache lines of `f32`. It is not a power of two, so that the
/// rows are distributed over the cache sets.
pub(crate) const PACKED_ROW_STRIDE: usize = MAX_DEPTH_BLOCK + 16;
