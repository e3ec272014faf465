//! The packing of A, and the register tiles of C that the loops compute from panels of A and B.

use crate::block_sizes::chunks;
use crate::blocked_product::BlockedProduct;
use crate::kernels::{Kernels, TileKernel};
use crate::panel_layout::{ColumnPanel, PACKED_ROW_STRIDE, a_panel_len, a_panel_width};
use crate::register_tile::RegisterTile;
use crate::source::{PanelRange, pack_panels};
use crate::strided::Strided;
use pellucid_simd::Element;
use std::mem::MaybeUninit;
use std::ops::Range;

/// The number of elements of the largest register tile of all instruction sets.
const MAX_TILE_ELEMENTS: usize = 14 * 32;

impl<T: Element> BlockedProduct<'_, T> {
    /// Packs strips of A of `height` rows, each into its own panel.
    ///
    /// # Safety
    ///
    /// - *Operands* and *Isa* of the product contract hold for these rows, and `depth` is one block of k.
    /// - *Scratch*: `scratch` is valid for one panel of [`a_panel_len`] elements for each strip. They do not overlap
    ///   the operands.
    pub(crate) unsafe fn pack_a(
        &self,
        kernels: &Kernels<T>,
        rows: Range<usize>,
        height: usize,
        depth: Range<usize>,
        scratch: *mut T,
    ) {
        let panel_len = a_panel_len(kernels);
        // SAFETY: *Operands* covers the rows and the k indices. A panel of *Scratch* covers the largest block of k
        // with the padding of its lanes, or of its rows.
        unsafe {
            if !self.a.in_rows() {
                let (range, width) = (PanelRange::new(rows, depth), a_panel_width(kernels));
                return pack_panels(self.a, kernels, range, height, width, scratch, panel_len);
            }
            // The micro-kernel reads rows as fast as columns, so rows are copied, not transposed.
            for (s, strip) in chunks(rows, height).enumerate() {
                let range = PanelRange::new(strip, depth.clone());
                self.a.pack_rows(kernels, range, PACKED_ROW_STRIDE, scratch.add(s * panel_len));
            }
        }
    }

    /// Returns the strip of A from row `i` and k index `start` as the kernel reads it: in place in `matrix`,
    /// or packed as panel `s` of the scratch.
    #[inline]
    pub(crate) fn a_panel(
        &self,
        kernels: &Kernels<T>,
        matrix: Option<Strided<T>>,
        (s, i, start): (usize, usize, usize),
        scratch: Option<*mut T>,
    ) -> Strided<T> {
        let Some(scratch) = scratch else {
            let a = matrix.expect("an operand without a strided view has scratch");
            return Strided { data: a.element_ptr(i, start), ..a };
        };
        let (lane, depth) = if self.a.in_rows() { (PACKED_ROW_STRIDE, 1) } else { (1, a_panel_width(kernels)) };
        let data = scratch.wrapping_add(s * a_panel_len(kernels)).cast_const();
        Strided { data, lane: lane as isize, depth: depth as isize }
    }

    /// Computes the register tile `rows × cols` of C, for one block of k.
    ///
    /// # Safety
    ///
    /// - *C* and *Isa* of the product contract hold for the tile.
    /// - *Panels*: `a` is valid for reads of `rows` lanes and `b` of `cols` contiguous lanes, both over the length of
    ///   `depth`. A padded `b` is valid for reads of full panels. They do not overlap C.
    /// - *Size*: `1 ≤ rows ≤ kernels.rows` and `1 ≤ cols ≤ kernels.width()`.
    #[inline]
    pub(crate) unsafe fn compute_tile(
        &self,
        kernels: &Kernels<T>,
        rows: Range<usize>,
        cols: Range<usize>,
        depth: &Range<usize>,
        a: Strided<T>,
        b: ColumnPanel<T>,
    ) {
        let (i, j, rows, cols) = (rows.start, cols.start, rows.len(), cols.len());
        debug_assert!(
            (1..=kernels.rows).contains(&rows) && (1..=kernels.width()).contains(&cols),
            "a tile of {rows} × {cols} does not fit the registers"
        );
        debug_assert!(
            kernels.rows * kernels.width() <= MAX_TILE_ELEMENTS,
            "a register tile is larger than its buffer on the stack"
        );
        let accumulate = self.accumulate || depth.start > 0;
        let c = self.c.wrapping_offset(i as isize * self.c_row_stride + j as isize * self.c_col_stride);
        let kernel = match cols > kernels.lanes {
            true if b.is_padded || cols == kernels.width() => kernels.unmasked_tiles[rows - 1],
            two_vectors => kernels.tiles[usize::from(two_vectors)][rows - 1],
        };
        let tile = RegisterTile {
            depth: depth.len(),
            a: a.data,
            a_row_stride: a.lane,
            a_col_stride: a.depth,
            b: b.data,
            b_row_stride: b.depth,
            c,
            c_row_stride: self.c_row_stride,
            cols,
            accumulate,
        };
        // SAFETY: the tile contract. *Reads* is *Panels*, *Writes* is *C*, and *Width* holds because the kernel was
        // chosen by *Size*. Kernels that load full vectors read a padded panel or a full tile. The caller guarantees
        // *Isa*. If the columns of C are not adjacent, the same clauses imply the contract of `scatter_tile`.
        unsafe { if self.c_col_stride == 1 { kernel(&tile) } else { self.scatter_tile(kernel, tile, rows) } }
    }

    /// Computes a register tile of a C whose columns are not adjacent: on the stack, and then scatters the same sums.
    ///
    /// # Safety
    ///
    /// The tile contract of [`RegisterTile`] holds for `kernel`, which has `rows` rows, except that the columns of C
    /// have the stride `c_col_stride`. The processor has the instruction set of the kernel.
    #[inline(never)]
    unsafe fn scatter_tile(&self, kernel: TileKernel<T>, tile: RegisterTile<T>, rows: usize) {
        debug_assert!(rows * tile.cols <= MAX_TILE_ELEMENTS, "the tile is larger than its buffer");
        let RegisterTile { c, cols, accumulate, .. } = tile;
        let mut buffer = [const { MaybeUninit::<T>::uninit() }; MAX_TILE_ELEMENTS];
        let sums: *mut T = buffer.as_mut_ptr().cast();
        // SAFETY: the caller guarantees *Reads* and *Width* of the tile contract. *Writes* holds for the buffer, which
        // fits the largest tile. The kernel writes the `rows × cols` elements of the buffer that the loop reads. The
        // caller's *Writes* covers the loop's accesses to C.
        unsafe {
            kernel(&RegisterTile { c: sums, c_row_stride: cols as isize, accumulate: false, ..tile });
            // The loop runs down the columns, which are contiguous if C is stored by columns.
            for s in 0..cols {
                let column = c.wrapping_offset(s as isize * self.c_col_stride);
                for r in 0..rows {
                    let (c, sum) = (column.wrapping_offset(r as isize * self.c_row_stride), *sums.add(r * cols + s));
                    *c = if accumulate { (*c).add(sum) } else { sum };
                }
            }
        }
    }
}
