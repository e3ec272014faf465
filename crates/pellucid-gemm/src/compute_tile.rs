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
const MAX_TILE_ELEMENTS: usize = 32 * 32;

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
            if !self.is_a_packed_in_rows(kernels) {
                let (range, width) = (PanelRange::new(rows, depth), a_panel_width(kernels));
                return pack_panels(self.a, kernels, range, height, width, scratch, panel_len);
            }
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
            let a = matrix.expect("an operand without a strided view must have scratch");
            return Strided { data: a.element_ptr(i, start), ..a };
        };
        let (lane, depth) =
            if self.is_a_packed_in_rows(kernels) { (PACKED_ROW_STRIDE, 1) } else { (1, a_panel_width(kernels)) };
        let data = scratch.wrapping_add(s * a_panel_len(kernels)).cast_const();
        Strided { data, lane: lane as isize, depth: depth as isize }
    }

    /// Computes the register tile `rows × cols` of C, for one block of k.
    ///
    /// # Safety
    ///
    /// - *C* and *Isa* of the product contract hold for the tile.
    /// - *Panels*: `a` is valid for reads of `rows` lanes and `b` of `cols` contiguous lanes, both over the length of
    ///   `depth`. A padded `b` is valid for reads of full panels. Neither operand overlaps C.
    /// - *Rows of A* and *Registers*: if the kernels use tile registers, the k indices of a lane of `a` are contiguous,
    ///   and the registers of this thread are configured.
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
        let two_vectors = cols > kernels.lanes;
        let kernel = match two_vectors || kernels.tile_registers.is_some() {
            true if b.is_padded || cols == kernels.width() => kernels.unmasked_tiles[rows - 1],
            _ => kernels.tiles[usize::from(two_vectors)][rows - 1],
        };
        let tile = RegisterTile {
            depth: depth.len(),
            rows,
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
        // SAFETY: the tile contract. *Reads* follows from *Panels* and *Writes* from *C*, and *Width* holds because the
        // kernel was chosen for `cols`, which *Size* limits. Kernels that load full vectors read a padded panel or a
        // full tile. Kernels for tile registers also require *Rows of A* and *Registers*. The caller guarantees *Isa*.
        // If the columns of C are not adjacent, the same clauses imply the contract of `scatter_tile`.
        unsafe { if self.c_col_stride == 1 { kernel(&tile) } else { self.scatter_tile(kernel, &tile) } }
    }

    /// Computes a register tile in a buffer on the stack, for a C whose columns are not adjacent.
    ///
    /// # Safety
    ///
    /// The contract of `kernel` holds for the tile, except that the columns of C have the stride `c_col_stride`.
    #[inline(never)]
    unsafe fn scatter_tile(&self, kernel: TileKernel<T>, tile: &RegisterTile<T>) {
        let &RegisterTile { c, rows, cols, accumulate, .. } = tile;
        debug_assert!(rows * cols <= MAX_TILE_ELEMENTS, "the tile is larger than its buffer");
        let mut buffer = [const { MaybeUninit::<T>::uninit() }; MAX_TILE_ELEMENTS];
        let sums: *mut T = buffer.as_mut_ptr().cast();
        // The loop runs down the columns, which are contiguous if C is stored by columns.
        let elements = (0..cols).flat_map(|s| (0..rows).map(move |r| (r, s)));
        let element_ptr =
            |(r, s): (usize, usize)| c.wrapping_offset(r as isize * self.c_row_stride + s as isize * self.c_col_stride);
        // SAFETY: the caller guarantees the contract of the kernel except for *Writes*, which holds for the buffer,
        // because it fits the largest tile. The kernel writes the `rows × cols` elements of the buffer that are copied,
        // and reads them only if they were copied from C. The caller's *Writes* covers the accesses to C.
        unsafe {
            if accumulate {
                elements.clone().for_each(|at| *sums.add(at.0 * cols + at.1) = *element_ptr(at));
            }
            kernel(&RegisterTile { c: sums, c_row_stride: cols as isize, ..*tile });
            elements.for_each(|at| *element_ptr(at) = *sums.add(at.0 * cols + at.1));
        }
    }
}
