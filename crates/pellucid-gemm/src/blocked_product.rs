//! The loops around the micro-kernel: when panels are packed, and in which cache they stay.
//!
//! ```text
//! for each block of columns          (half of L2)
//!   for each block of k              (≤ MAX_DEPTH_BLOCK deep)
//!     for each strip of rows         (register tile high)
//!       pack a panel of A[strip × depth]               stays in L1
//!       for each panel of columns    (register tile wide)
//!         first strip: pack a panel of B[depth × columns]
//!         micro-kernel                                 streams the panels of B from L2;
//!                                                      the operands of the epilogue are being prefetched
//!       epilogue on the last few strips of C, after the last block of k
//! ```
//!
//! This is the loop order of Goto and van de Geijn with A and B exchanged, because the rows of C are contiguous here.
//!
//! Rows of A that are close together, or that few tiles read, are not packed. Other rows are packed right before their
//! use, while the next strip is being prefetched. If the columns of A are contiguous, a few strips are packed together,
//! since they share cache lines.
//!
//! If B is packed entirely for one product, or is not a strided matrix, the panels of B are outermost, and the strips
//! of A stay in L2. Panels that were packed before (`compute_packed`) are read in the order of the loops above.

use super::block_sizes::{MAX_DEPTH_BLOCK, chunks, column_block_width, depth_block_size, depth_blocks};
use super::kernels::Kernels;
use super::pack::PackPanels;
use super::packed_panels::PackedPanels;
use super::panel_layout::{ColumnPanel, a_panel_len};
use super::source::{PackSource, PanelRange, pack_panels};
use super::strided::Strided;
use super::{Epilogue, OutputBlock};
use pellucid_runtime::scratch;
use pellucid_runtime::threads::SharedPtr;
use pellucid_simd::Element;
use pellucid_simd::vector::prefetch_run;
use std::ops::Range;

/// The smallest block of A, in elements, that is prefetched. Smaller blocks are probably in the cache already.
const A_PREFETCH_ELEMENTS: usize = 32 << 10;

/// The number of strips of a transposed C that are computed at a time if B is packed entirely. The sums of these strips
/// stay in L2.
const STRIPS_PER_TRANSPOSE: usize = 8;

/// The number of elements of the largest B that is packed entirely for a transposed C: 4 MiB of `f32`.
const MAX_PACKED_ELEMENTS: usize = 1 << 20;

/// The number of panels of B that are packed together.
const PANELS_PER_PACK: usize = 4;

/// The number of panels of B between two prefetches of the epilogue's operands.
const PANELS_PER_PREFETCH: usize = 4;

/// The number of finished elements of C after which the epilogue is called: enough to amortize the call, and few enough
/// to be still in L2. The last call may process fewer elements.
const EPILOGUE_ELEMENTS: usize = 32 << 10;

/// The number of elements of a block of C that is computed in scratch: 1 MiB of `f32`, most of which stays in L2.
pub(crate) const SCRATCH_ELEMENTS: usize = 256 << 10;

/// A product C[m × n] = A·B, or C + A·B, with vectors along n. Strides are in elements.
///
/// # Product contract
///
/// For a rectangle `rows × cols` of C:
///
/// - *Operands*: `a` has the lanes `rows`, and `b` the lanes `cols`, each with `k` k indices. No thread writes their
///   memory during the call.
/// - *C*: the elements of C in the rectangle are valid for reads and writes, are distinct, and do not overlap the
///   operands. No other thread accesses them during the call.
/// - *Isa*: the processor has the instruction set of the kernels.
pub(crate) struct BlockedProduct<'a, T> {
    /// A, whose lanes are its rows.
    pub(crate) a: &'a dyn PackSource<T>,
    /// B, whose lanes are its columns.
    pub(crate) b: &'a dyn PackSource<T>,
    /// The number of k indices: columns of A, rows of B.
    pub(crate) k: usize,
    /// Element (0, 0) of C.
    pub(crate) c: *mut T,
    /// The stride between rows of C.
    pub(crate) c_row_stride: isize,
    /// The stride between columns of C.
    pub(crate) c_col_stride: isize,
    /// True if the product is added to C, false if it overwrites C.
    pub(crate) accumulate: bool,
    /// The operation on the finished sums.
    pub(crate) epilogue: Option<&'a dyn Epilogue<T>>,
    /// The index of the product in its batch, for the epilogue.
    pub(crate) batch: usize,
    /// True if C is the transpose of the caller's C. The arguments of the epilogue are then transposed back.
    pub(crate) is_transposed: bool,
}

impl<T: Element> BlockedProduct<'_, T> {
    /// Computes one rectangle of C, on this thread.
    ///
    /// # Safety
    ///
    /// The product contract of [`BlockedProduct`] holds for the rectangle.
    pub(crate) unsafe fn compute(&self, kernels: &Kernels<T>, rows: Range<usize>, cols: Range<usize>) {
        if rows.is_empty() || cols.is_empty() {
            return;
        }
        if self.k == 0 {
            // SAFETY: the caller guarantees the product contract for the rectangle.
            return unsafe { self.store_empty_sums(rows, cols) };
        }
        if self.c_col_stride > 1 && self.c_row_stride == 1 && !self.accumulate {
            // SAFETY: the caller guarantees the product contract for the rectangle.
            return unsafe { self.compute_transposed(kernels, rows, cols) };
        }
        if self.b.strided().is_none() {
            let next_rows = rows.end..rows.end;
            // SAFETY: the caller guarantees the product contract for the rectangle, which is not empty.
            return unsafe { self.compute_panels(kernels, rows, cols, next_rows) };
        }
        // SAFETY: the caller guarantees the product contract for the rectangle, which is not empty. B is strided.
        unsafe { self.compute_strips(kernels, rows, cols) }
    }

    /// Computes one rectangle of C, on this thread, with an operand B that is packed entirely and read by strips.
    ///
    /// With the panels of B outermost, the loops would be slower: they would access the rows of A and C, which are in
    /// many pages, once per panel.
    ///
    /// # Safety
    ///
    /// - The product contract of [`BlockedProduct`] holds for the rectangle.
    /// - *Packed*: B is packed for these kernels.
    pub(crate) unsafe fn compute_packed(&self, kernels: &Kernels<T>, rows: Range<usize>, cols: Range<usize>) {
        if rows.is_empty() || cols.is_empty() || self.k == 0 {
            // SAFETY: the caller guarantees the product contract for the rectangle.
            return unsafe { self.compute(kernels, rows, cols) };
        }
        // SAFETY: the caller guarantees the product contract for the rectangle, which is not empty, and *Packed*.
        unsafe { self.compute_strips(kernels, rows, cols) }
    }

    /// Computes one rectangle of C with the strips of A outermost.
    ///
    /// # Safety
    ///
    /// - The product contract of [`BlockedProduct`] holds for the rectangle, which is not empty, and `k > 0`.
    /// - *Packed*: B is strided, or packed for these kernels.
    unsafe fn compute_strips(&self, kernels: &Kernels<T>, rows: Range<usize>, cols: Range<usize>) {
        let width = kernels.width();
        let panel_len = a_panel_len(kernels);
        let b_len = match self.b.strided().is_none() || self.is_b_read_in_place(kernels, rows.len()) {
            true => 0,
            false => {
                depth_block_size::<T>(self.k)
                    * column_block_width::<T>(self.k, cols.len(), width).next_multiple_of(width)
            }
        };
        let a_len = match self.is_a_read_in_place(kernels, cols.len()) {
            true => 0,
            false => self.strips_per_pack(kernels, rows.len()) * panel_len,
        };
        // SAFETY: the caller guarantees *Isa*. Neither the packing nor the epilogue configures registers.
        let _configured = unsafe { kernels.configure() };
        let work = |workspace: *mut T| {
            // SAFETY: the caller guarantees the product contract. *Scratch* holds: the workspace has `a_len` elements
            // for the panels of A and `b_len` elements for a block of B. An operand without scratch is strided, or it
            // is B and packed (*Packed*). *Registers* holds until the end of this function.
            unsafe {
                let (a, b) = ((a_len > 0).then_some(workspace), (b_len > 0).then(|| workspace.add(a_len)));
                self.compute_strip_major(kernels, rows, cols, a, b);
            }
        };
        if a_len + b_len == 0 { work(std::ptr::null_mut()) } else { scratch::with_buffer(a_len + b_len, work) }
    }

    /// Computes one rectangle of C for an operand B that is not strided. Prefetches `next_rows` of A, which the caller
    /// multiplies next.
    ///
    /// # Safety
    ///
    /// The product contract of [`BlockedProduct`] holds for the rectangle, which is not empty.
    unsafe fn compute_panels(
        &self,
        kernels: &Kernels<T>,
        rows: Range<usize>,
        cols: Range<usize>,
        next_rows: Range<usize>,
    ) {
        let a_len = match self.is_a_kept_in_place(kernels, cols.len()) {
            true => 0,
            false => rows.len().div_ceil(kernels.rows) * a_panel_len(kernels),
        };
        // SAFETY: the caller guarantees *Isa*. Neither the packing nor the epilogue configures registers.
        let _configured = unsafe { kernels.configure() };
        scratch::with_buffer(a_len + MAX_DEPTH_BLOCK * kernels.width(), |workspace: *mut T| {
            let (a, b) = ((a_len > 0).then_some(workspace), workspace.wrapping_add(a_len));
            // SAFETY: the caller guarantees the product contract. *Scratch* holds: the workspace has `a_len` elements
            // for all panels of A, unless they are read in place, and then the elements of one panel of B.
            // *Registers* holds until the end of this function.
            unsafe { self.compute_panel_major(kernels, (rows, cols), next_rows, a, b) }
        });
    }

    /// Computes a rectangle of a C with contiguous columns: computes a few strips at a time in scratch, and transposes
    /// their finished sums into C.
    ///
    /// All strips read the same panels of B. Therefore all of B is packed first, if it is strided and not too large,
    /// and if A is read in place. Otherwise, more strips are computed at a time, so that B is packed less often.
    ///
    /// # Safety
    ///
    /// The product contract of [`BlockedProduct`] holds for the rectangle, `c_row_stride` is 1, and `k > 0`. The
    /// rectangle is not empty.
    unsafe fn compute_transposed(&self, kernels: &Kernels<T>, rows: Range<usize>, cols: Range<usize>) {
        let few_rows = STRIPS_PER_TRANSPOSE * kernels.rows;
        let len = PackedPanels::<T>::len(kernels, (cols.len(), self.k));
        if let Some(b) = self.b.strided()
            && rows.len() > few_rows
            && len <= MAX_PACKED_ELEMENTS
            && cols.start.is_multiple_of(kernels.width())
            && !self.is_b_read_in_place(kernels, rows.len())
            && self.is_a_kept_in_place(kernels, cols.len())
        {
            return scratch::with_buffer(len, |memory: *mut T| {
                // SAFETY: the contract of `pack_range`: *Range* follows from *Operands* of the product contract,
                // *Memory* holds because the scratch has `len` elements and outlives the panels, *Lanes* because the
                // product uses the lanes `cols`, and the caller guarantees *Isa*. The contract of the product: its
                // operand B is the same matrix in other memory, and the caller guarantees the other clauses.
                unsafe {
                    let panels = PackedPanels::pack_range(kernels, b, cols.clone(), self.k, SharedPtr(memory));
                    BlockedProduct { b: &panels, ..*self }.compute_transposed_by(few_rows, kernels, rows, cols);
                }
            });
        }
        let height = (SCRATCH_ELEMENTS / cols.len()).next_multiple_of(kernels.rows).max(kernels.rows);
        // SAFETY: the caller guarantees the contract of this function.
        unsafe { self.compute_transposed_by(height, kernels, rows, cols) }
    }

    /// Computes a rectangle of a C with contiguous columns, `height` rows at a time.
    ///
    /// # Safety
    ///
    /// The contract of [`compute_transposed`](Self::compute_transposed) holds.
    unsafe fn compute_transposed_by(
        &self,
        height: usize,
        kernels: &Kernels<T>,
        rows: Range<usize>,
        cols: Range<usize>,
    ) {
        let (width, end) = (cols.len(), rows.end);
        let mut finished_to = rows.start;
        for rows in chunks(rows, height) {
            scratch::with_buffer(rows.len() * width, |workspace: *mut T| {
                let c = workspace.wrapping_sub(rows.start * width + cols.start);
                let in_scratch =
                    BlockedProduct { c, c_row_stride: width as isize, c_col_stride: 1, epilogue: None, ..*self };
                let from = Strided { data: workspace.cast_const(), lane: width as isize, depth: 1 };
                let to = self.c.wrapping_offset(rows.start as isize + cols.start as isize * self.c_col_stride);
                let lanes = (rows.len(), rows.len());
                // SAFETY: the caller guarantees *Operands* and *Isa* of the product contract. Its *C* holds for the
                // workspace, which holds exactly these rows and columns, with the first element at its start. The
                // packing contract: the product initializes the workspace, whose rows are contiguous, and *C* of this
                // function covers the target. Rows of `rows.len()` lanes need no padding.
                unsafe {
                    if self.b.strided().is_none() {
                        let next_rows = rows.end..end.min(rows.end + height);
                        in_scratch.compute_panels(kernels, rows.clone(), cols.clone(), next_rows);
                    } else {
                        in_scratch.compute(kernels, rows.clone(), cols.clone());
                    }
                    (kernels.transpose_panel)(&PackPanels::to_transpose(
                        from,
                        lanes,
                        width,
                        to,
                        self.c_col_stride as usize,
                    ));
                }
            });
            let finished = finished_to..rows.end;
            if rows.end == end || finished.len() * width >= EPILOGUE_ELEMENTS {
                finished_to = rows.end;
                self.finish(finished, cols.clone());
            }
        }
    }

    /// Runs the loops that the module documentation describes, with the strips of A outermost within a block. An
    /// operand without scratch is read in place.
    ///
    /// # Safety
    ///
    /// - The product contract of [`BlockedProduct`] holds for the rectangle, which is not empty, and `k > 0`.
    /// - *Scratch*: `a_scratch` is valid for [`strips_per_pack`](Self::strips_per_pack) panels of A, and `b_scratch`
    ///   for one block of B. They do not overlap each other or the operands. An operand without scratch is strided, or
    ///   it is B and packed for these kernels.
    /// - *Registers*: the registers of this thread are [configured](Kernels::configure).
    unsafe fn compute_strip_major(
        &self,
        kernels: &Kernels<T>,
        rows: Range<usize>,
        cols: Range<usize>,
        a_scratch: Option<*mut T>,
        b_scratch: Option<*mut T>,
    ) {
        let width = kernels.width();
        let height = kernels.strip_height(rows.len());
        let group_height = self.strips_per_pack(kernels, rows.len()) * height;
        let (a_matrix, b_matrix) = (self.a.strided(), self.b.strided());
        let block_width = column_block_width::<T>(self.k, cols.len(), width);
        for cols in chunks(cols, block_width) {
            let panels = cols.len().div_ceil(width);
            for depth in depth_blocks::<T>(self.k) {
                // If there is only one strip, all panels use the same scratch, which stays in L1.
                let (panel_stride, panels_per_pack) =
                    if height < rows.len() { (width * depth.len(), PANELS_PER_PACK) } else { (0, 1) };
                let mut finished_to = rows.start;
                let prefetched_a = a_matrix.filter(|_| rows.len() * depth.len() >= A_PREFETCH_ELEMENTS);
                let prefetches_epilogue = self.epilogue.is_some() && depth.end == self.k;
                for group in chunks(rows.clone(), group_height) {
                    if let Some(scratch) = a_scratch {
                        // SAFETY: the group and the k indices are within the rectangle, so the caller's product
                        // contract covers them. *Scratch* covers the panels of one group of strips.
                        unsafe { self.pack_a(kernels, group.clone(), height, depth.clone(), scratch) }
                    }
                    for (s, strip) in chunks(group, height).enumerate() {
                        let next_strip = strip.end..rows.end.min(strip.end + height);
                        let a = self.a_panel(kernels, a_matrix, (s, strip.start, depth.start), a_scratch);
                        for (panel, lanes) in chunks(cols.clone(), width).enumerate() {
                            if let Some(a) = &prefetched_a {
                                prefetch_a(a, &next_strip, &depth, (panel, panels));
                            }
                            if prefetches_epilogue && panel.is_multiple_of(PANELS_PER_PREFETCH) {
                                let portion = (panel / PANELS_PER_PREFETCH, panels.div_ceil(PANELS_PER_PREFETCH));
                                self.prefetch_epilogue(&strip, &cols, portion);
                            }
                            // SAFETY: the strip, the columns and the k indices are within the rectangle, so the
                            // caller's product contract covers them. *Scratch* covers the panels of one block of B,
                            // which are written when the first strip reads them.
                            unsafe {
                                let b = match (b_scratch, b_matrix) {
                                    (Some(scratch), _) => {
                                        if strip.start == rows.start && panel.is_multiple_of(panels_per_pack) {
                                            let end = cols.end.min(lanes.start + panels_per_pack * width);
                                            let range = PanelRange::new(lanes.start..end, depth.clone());
                                            let to = scratch.add(panel * panel_stride);
                                            pack_panels(self.b, kernels, range, width, width, to, panel_stride);
                                        }
                                        ColumnPanel::packed(scratch.add(panel * panel_stride), width)
                                    }
                                    (None, Some(b)) => ColumnPanel {
                                        data: b.element_ptr(lanes.start, depth.start),
                                        depth: b.depth,
                                        is_padded: false,
                                    },
                                    (None, None) => {
                                        let panel = self.b.panel(lanes.start, depth.start, width);
                                        let panel = panel.expect("an operand without a strided view must be packed");
                                        ColumnPanel::packed(panel, width)
                                    }
                                };
                                self.compute_tile(kernels, strip.clone(), lanes, &depth, a, b);
                            }
                        }
                        let finished = finished_to..strip.end;
                        if depth.end == self.k
                            && (strip.end == rows.end || finished.len() * cols.len() >= EPILOGUE_ELEMENTS)
                        {
                            finished_to = strip.end;
                            self.finish(finished, cols.clone());
                        }
                    }
                }
            }
        }
    }

    /// Prefetches the operands that the epilogue reads in addition to C, for part number `part` of `parts` of these
    /// rows.
    #[inline]
    fn prefetch_epilogue(&self, rows: &Range<usize>, cols: &Range<usize>, (part, parts): (usize, usize)) {
        let rows = rows.start + rows.len() * part / parts..rows.start + rows.len() * (part + 1) / parts;
        if let Some(epilogue) = self.epilogue.filter(|_| !rows.is_empty()) {
            let (rows, cols) = if self.is_transposed { (cols.clone(), rows) } else { (rows, cols.clone()) };
            epilogue.prefetch_epilogue(self.batch, rows, cols);
        }
    }

    /// Runs the loops for an operand B that is expensive to pack, or already packed, with the panels of B outermost.
    ///
    /// A panel of B stays in L1 from its packing to its last use. The panels of A, packed or in place, stay in L2.
    ///
    /// # Safety
    ///
    /// - The product contract of [`BlockedProduct`] holds for the rectangle, which is not empty.
    /// - *Scratch*: `a_scratch` is valid for one panel of A for each strip, or absent if A is strided and read in
    ///   place. `b_scratch` is valid for one panel of B. They do not overlap each other or the operands.
    /// - *Registers*: the registers of this thread are [configured](Kernels::configure).
    unsafe fn compute_panel_major(
        &self,
        kernels: &Kernels<T>,
        (rows, cols): (Range<usize>, Range<usize>),
        next_rows: Range<usize>,
        a_scratch: Option<*mut T>,
        b_scratch: *mut T,
    ) {
        let width = kernels.width();
        let height = kernels.strip_height(rows.len());
        let a_matrix = self.a.strided();
        // If the caller passes no next rows, A is small or shared by many rectangles, and therefore in the cache.
        let prefetched_a = a_matrix.filter(|_| !next_rows.is_empty());
        let tiles = cols.len().div_ceil(width) * rows.len().div_ceil(height);
        for depth in depth_blocks::<T>(self.k) {
            let next_depth = depth.end..self.k.min(depth.end + depth.len());
            let next = match next_depth.is_empty() {
                true => (&next_rows, 0..depth_block_size::<T>(self.k).min(self.k)),
                false => (&rows, next_depth),
            };
            let mut tile = 0;
            // SAFETY: the strips, the columns and the k indices are within the rectangle, so the caller's product
            // contract covers them. *Scratch* covers one panel for each strip, and one panel of B.
            unsafe {
                if let Some(scratch) = a_scratch {
                    self.pack_a(kernels, rows.clone(), height, depth.clone(), scratch);
                }
                for lanes in chunks(cols.clone(), width) {
                    let data = self.b.panel(lanes.start, depth.start, width).unwrap_or_else(|| {
                        let range = PanelRange::new(lanes.clone(), depth.clone());
                        self.b.pack(kernels, range, width, b_scratch);
                        b_scratch.cast_const()
                    });
                    let b = ColumnPanel::packed(data, width);
                    for (s, strip) in chunks(rows.clone(), height).enumerate() {
                        if let Some(a) = &prefetched_a {
                            prefetch_a(a, next.0, &next.1, (tile, tiles));
                            tile += 1;
                        }
                        let a = self.a_panel(kernels, a_matrix, (s, strip.start, depth.start), a_scratch);
                        self.compute_tile(kernels, strip, lanes.clone(), &depth, a, b);
                    }
                }
            }
        }
        self.finish(rows, cols);
    }

    /// Computes a product with k = 0: sets C to zero, or leaves it unchanged if the product is added to it.
    ///
    /// # Safety
    ///
    /// *C* of the product contract of [`BlockedProduct`] holds for the rectangle.
    unsafe fn store_empty_sums(&self, rows: Range<usize>, cols: Range<usize>) {
        if !self.accumulate {
            for i in rows.clone() {
                for j in cols.clone() {
                    // SAFETY: the element is in the rectangle, which *C* covers.
                    unsafe {
                        *self.c.wrapping_offset(i as isize * self.c_row_stride + j as isize * self.c_col_stride) =
                            T::ZERO
                    }
                }
            }
        }
        self.finish(rows, cols);
    }

    /// Passes a finished part of C to the epilogue, in the caller's orientation.
    #[inline]
    pub(crate) fn finish(&self, rows: Range<usize>, cols: Range<usize>) {
        let Some(epilogue) = self.epilogue else { return };
        let data =
            self.c.wrapping_offset(rows.start as isize * self.c_row_stride + cols.start as isize * self.c_col_stride);
        let (rows, cols, row_stride, col_stride) = if self.is_transposed {
            (cols, rows, self.c_col_stride, self.c_row_stride)
        } else {
            (rows, cols, self.c_row_stride, self.c_col_stride)
        };
        epilogue.finish(OutputBlock { batch: self.batch, rows, cols, data, row_stride, col_stride });
    }
}

/// Prefetches part number `part` of `parts` of the next rows of A, if the elements of a row are adjacent. The hardware
/// prefetcher does not detect short rows.
#[inline]
fn prefetch_a<T>(a: &Strided<T>, rows: &Range<usize>, depth: &Range<usize>, (part, parts): (usize, usize)) {
    if a.depth == 1 {
        for i in rows.len() * part / parts..rows.len() * (part + 1) / parts {
            prefetch_run(a.element_ptr(rows.start + i, depth.start), depth.len());
        }
    }
}
