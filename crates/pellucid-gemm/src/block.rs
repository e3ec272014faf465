//! The loops around the micro-kernel: which panels are packed when, and where they stay.
//!
//! ```text
//! for each block of columns          (COLUMNS wide, or more where the depth is less)
//!   for each block of the depth      (≤ DEPTH deep)
//!     for each strip of rows         (register tile high)
//!       pack a panel of A[strip × depth]               stays in L1
//!       for each panel of columns    (register tile wide)
//!         first strip: pack a panel of B[depth × columns]
//!         micro-kernel                                 streams the panels of B from L2;
//!                                                      what the epilogue takes is on its way
//!       epilogue on the last few strips of C, after the last block of the depth
//! ```
//!
//! This is the order of Goto and van de Geijn with A and B in each other's places, because rows
//! of C are contiguous here. RowMatVec of A that lie close together are not packed at all, others right before their
//! use, while the next strip is on its way from memory. Where columns of A are contiguous, a few strips are packed
//! together, since they share cache lines.

use super::kernels::Kernels;
use super::pack::{Panel, Source, Strided, pack_panels};
use super::tile::Tile;
use super::{Epilogue, Finished};
use pellucid_runtime::scratch;
use pellucid_simd::Element;
use pellucid_simd::vector::prefetch_run;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Deepest block of k. The order of summation hangs on it, so it is one number for all types and
/// machines: 14 rows of A (f32) fill half of a 32 KiB L1, and a pass over C costs about 2 %.
const DEPTH: usize = 272;

/// ColumnMatVec of a block that is as deep as can be: half a megabyte of f32 in a 1 MiB L2.
const COLUMNS: usize = 512;

/// Strips of A whose columns are contiguous that are packed together: about half a kilobyte of each column.
const STRIPS: usize = 8;

/// Elements of a block of A that are not likely to be in the cache all at once.
const FAR: usize = 32 << 10;

/// PackedPanels of B that are packed together.
const PANELS: usize = 4;

/// PackedPanels of B between one question of the epilogue's for what it takes and the next.
const ASKED: usize = 4;

/// Elements of C that are worth a call of the epilogue: they are still in L2 by then.
const PART: usize = 32 << 10;

/// Elements of a block of a product that is not kept: they stay in L2, or near it.
pub(crate) const UNKEPT: usize = 256 << 10;

/// Largest register tile of all isas.
const TILE: usize = 14 * 32;

/// The depth in blocks of equal size (but the last), a function of k alone.
pub(crate) fn depth_blocks(k: usize) -> impl Iterator<Item = Range<usize>> + Clone {
    let size = deepest(k);
    (0..k).step_by(size).map(move |start| start..k.min(start + size))
}

/// Their size.
fn deepest(k: usize) -> usize {
    let count = k.div_ceil(DEPTH).max(1);
    k.div_ceil(count).next_multiple_of(8).max(8)
}

/// ColumnMatVec of a block, in whole panels of `width`.
pub(crate) fn columns(k: usize, width: usize) -> usize {
    DEPTH * COLUMNS / deepest(k) / width * width
}

/// C[m × n] and what it is the product of, with vectors along n.
pub(crate) struct BlockedProduct<'a, T> {
    pub(crate) a: &'a dyn Source<T>,
    pub(crate) b: &'a dyn Source<T>,
    pub(crate) k: usize,
    pub(crate) c: *mut T,
    pub(crate) c_row: isize,
    pub(crate) c_col: isize,
    pub(crate) accumulate: bool,
    pub(crate) epilogue: Option<&'a dyn Epilogue<T>>,
    /// Index of the batch element, and whether C is the transpose of what the caller sees: both
    /// for the epilogue only.
    pub(crate) batch: usize,
    pub(crate) transposed: bool,
}

impl<T: Element> BlockedProduct<'_, T> {
    /// Computes one rectangle of C, on this thread.
    ///
    /// # Safety
    ///
    /// The sources cover the rectangle, C is valid there and nobody else touches it; the machine
    /// has the instruction set of `kernels`.
    pub(crate) unsafe fn rectangle(&self, kernels: &Kernels<T>, rows: Range<usize>, cols: Range<usize>) {
        if rows.is_empty() || cols.is_empty() {
            return;
        }
        if self.k == 0 {
            // SAFETY: the caller's.
            return unsafe { self.empty_sum(rows, cols) };
        }
        if self.c_col > 1 && self.c_row == 1 && !self.accumulate {
            // SAFETY: the caller's.
            return unsafe { self.turned(kernels, rows, cols) };
        }
        let width = kernels.width();
        let panel = panel_of(kernels);
        if self.b.strided().is_none() {
            // PackedPanels of A stay in the cache as they lie, if they are not deeper than they would be packed.
            let in_place = self.read_a_in_place(kernels, cols.len())
                || self.k <= DEPTH && self.a.strided().is_some_and(|a| a.depth == 1 && !self.is_crowded(&a));
            let a_room = if in_place { 0 } else { rows.len().div_ceil(kernels.rows) * panel };
            return scratch::with(a_room + DEPTH * width, |room: *mut T| {
                // SAFETY: the scratch has room for all panels of A, where they are packed, and one of B.
                unsafe { self.panels(kernels, rows, cols, (a_room > 0).then_some(room), room.add(a_room)) }
            });
        }
        let b_room = match self.read_b_in_place(kernels, rows.len()) {
            true => 0,
            false => deepest(self.k) * columns(self.k, width).min(cols.len()).next_multiple_of(width),
        };
        let a_room = match self.read_a_in_place(kernels, cols.len()) {
            true => 0,
            false => self.strips(kernels, rows.len()) * panel,
        };
        let work = |room: *mut T| {
            // SAFETY: the scratch has room for the panels of A and a block of B, where they are packed.
            unsafe {
                let (a, b) = ((a_room > 0).then_some(room), (b_room > 0).then(|| room.add(a_room)));
                self.blocks(kernels, rows, cols, a, b);
            }
        };
        if a_room + b_room == 0 { work(std::ptr::null_mut()) } else { scratch::with(a_room + b_room, work) }
    }

    /// A rectangle whose columns are contiguous: some rows at a time are made aside, and turned when all their sums are there.
    ///
    /// # Safety
    ///
    /// As for [`rectangle`](Self::rectangle).
    unsafe fn turned(&self, kernels: &Kernels<T>, rows: Range<usize>, cols: Range<usize>) {
        let width = cols.len();
        let height = (UNKEPT / width).next_multiple_of(kernels.rows).max(kernels.rows);
        for i in rows.clone().step_by(height) {
            let rows = i..rows.end.min(i + height);
            scratch::with(rows.len() * width, |room: *mut T| {
                let c = room.wrapping_sub(rows.start * width + cols.start);
                let aside = BlockedProduct { c, c_row: width as isize, c_col: 1, epilogue: None, ..*self };
                let from = Strided { data: room.cast_const(), lane: width as isize, depth: 1 };
                let to = self.c.wrapping_offset(rows.start as isize + cols.start as isize * self.c_col);
                // SAFETY: the room is for these rows and columns, the first element at its start; the rest is the caller's.
                unsafe {
                    aside.rectangle(kernels, rows.clone(), cols.clone());
                    let lanes = (rows.len(), rows.len());
                    (kernels.transpose)(&Panel::to_transpose(from, lanes, width, to, self.c_col as usize));
                }
            });
            self.finish(rows, cols.clone());
        }
    }

    /// How many strips of A are packed together.
    fn strips(&self, kernels: &Kernels<T>, rows: usize) -> usize {
        if self.a.in_rows() { 1 } else { rows.div_ceil(kernels.rows).min(STRIPS) }
    }

    /// Whether the kernel reads A where it is: where its rows lie no farther apart than packed ones, or
    /// when few tiles share a panel, so that packing costs more than it saves.
    fn read_a_in_place(&self, kernels: &Kernels<T>, cols: usize) -> bool {
        self.a.strided().is_some_and(|a| {
            a.depth == 1 && a.lane.unsigned_abs() <= DEPTH_PADDED || cols <= 2 * kernels.width() && !self.is_crowded(&a)
        })
    }

    /// Whether rows of A, half a page apart, share the sets of an 8-way L1, so that 14 of them evict each other.
    fn is_crowded(&self, a: &Strided<T>) -> bool {
        a.depth == 1 && (a.lane.unsigned_abs() * size_of::<T>()).is_multiple_of(2048) && self.k >= 64
    }

    /// Whether the kernel reads B where it is: its rows must be contiguous, and few.
    fn read_b_in_place(&self, kernels: &Kernels<T>, rows: usize) -> bool {
        self.b.strided().is_some_and(|b| b.lane == 1) && rows <= 2 * kernels.rows
    }

    /// The loops of the module's documentation; `None` for room reads in place.
    ///
    /// # Safety
    ///
    /// As for [`rectangle`](Self::rectangle), with room for one panel of A and one block of B.
    unsafe fn blocks(
        &self,
        kernels: &Kernels<T>,
        rows: Range<usize>,
        cols: Range<usize>,
        a_room: Option<*mut T>,
        b_room: Option<*mut T>,
    ) {
        let width = kernels.width();
        // PackedPanels of equal height: a last panel of one row would be bound by latency.
        let height = rows.len().div_ceil(rows.len().div_ceil(kernels.rows));
        let group = self.strips(kernels, rows.len()) * height;
        let wide = columns(self.k, width);
        for j in cols.clone().step_by(wide) {
            let cols = j..cols.end.min(j + wide);
            let across = cols.len().div_ceil(width);
            for depth in depth_blocks(self.k) {
                // A panel that only one strip reads stays in L1: the next one takes its place.
                let (panel, together) = if height < rows.len() { (width * depth.len(), PANELS) } else { (0, 1) };
                let mut finished_to = rows.start;
                let far = rows.len() * depth.len() >= FAR;
                for i in rows.clone().step_by(height) {
                    let strip = i..rows.end.min(i + height);
                    let next = strip.end..rows.end.min(strip.end + height);
                    let within = (i - rows.start) % group;
                    // SAFETY: the caller's; strips, columns and depth are a part, and the rooms are for their panels.
                    unsafe {
                        if let Some(room) = a_room
                            && within == 0
                        {
                            self.pack_a(kernels, i..rows.end.min(i + group), height, depth.clone(), room);
                        }
                        let a = self.panel_of_a(kernels, within / height, i, depth.start, a_room);
                        for (at, j) in cols.clone().step_by(width).enumerate() {
                            if far {
                                self.prefetch_a(&next, &depth, (at, across));
                            }
                            if depth.end == self.k && at.is_multiple_of(ASKED) {
                                self.prefetch_epilogue(&strip, &cols, (at / ASKED, across.div_ceil(ASKED)));
                            }
                            let lanes = width.min(cols.end - j);
                            let b = match (b_room, self.b.strided()) {
                                (Some(room), _) => {
                                    if i == rows.start && at.is_multiple_of(together) {
                                        let lanes = j..cols.end.min(j + together * width);
                                        let to = room.add(at * panel);
                                        pack_panels(self.b, kernels, lanes, width, depth.clone(), width, to, panel);
                                    }
                                    Strided { data: room.add(at * panel), lane: 1, depth: width as isize }
                                }
                                (None, Some(b)) => Strided { data: b.at(j, depth.start), ..b },
                                (None, None) => unreachable!("without a strided view there is room"),
                            };
                            self.tile(kernels, i, strip.len(), j, lanes, &depth, a, b);
                        }
                        let finished = finished_to..strip.end;
                        if depth.end == self.k && (strip.end == rows.end || finished.len() * cols.len() >= PART) {
                            finished_to = strip.end;
                            self.finish(finished, cols.clone());
                        }
                    }
                }
            }
        }
    }

    /// Asks for a part of the rows of A that come next, so that they are near when they are wanted: they lie in short
    /// runs, which the processor does not foresee.
    #[inline]
    fn prefetch_a(&self, rows: &Range<usize>, depth: &Range<usize>, (part, parts): (usize, usize)) {
        if let Some(a @ Strided { depth: 1, .. }) = self.a.strided() {
            for i in rows.len() * part / parts..rows.len() * (part + 1) / parts {
                prefetch_run(a.at(rows.start + i, depth.start), depth.len());
            }
        }
    }

    /// Lets the epilogue ask for a part of what it takes besides these rows and columns of C.
    #[inline]
    fn prefetch_epilogue(&self, rows: &Range<usize>, cols: &Range<usize>, (part, parts): (usize, usize)) {
        let rows = rows.start + rows.len() * part / parts..rows.start + rows.len() * (part + 1) / parts;
        if let Some(epilogue) = self.epilogue.filter(|_| !rows.is_empty()) {
            let (rows, cols) = if self.transposed { (cols.clone(), rows) } else { (rows, cols.clone()) };
            epilogue.prefetch_epilogue(self.batch, rows, cols);
        }
    }

    /// The loops for an operand B that is dear to pack, or packed, with its panels outermost: a panel stays in L1 from its packing to
    /// its last use, and the panels of A, packed or in place, in L2.
    ///
    /// # Safety
    ///
    /// As for [`rectangle`](Self::rectangle), with room for all panels of A, unless they are read in place, and one of B.
    unsafe fn panels(
        &self,
        kernels: &Kernels<T>,
        rows: Range<usize>,
        cols: Range<usize>,
        a_room: Option<*mut T>,
        b_room: *mut T,
    ) {
        let width = kernels.width();
        let height = rows.len().div_ceil(rows.len().div_ceil(kernels.rows));
        for depth in depth_blocks(self.k) {
            // SAFETY: the caller's; every strip has a panel of its own, and the columns are a part.
            unsafe {
                if let Some(room) = a_room {
                    self.pack_a(kernels, rows.clone(), height, depth.clone(), room);
                }
                for j in cols.clone().step_by(width) {
                    let lanes = width.min(cols.end - j);
                    let data = self.b.panel(j, depth.start, width).unwrap_or_else(|| {
                        self.b.pack(kernels, j, lanes, depth.start, depth.len(), width, b_room);
                        b_room.cast_const()
                    });
                    let b = Strided { data, lane: 1, depth: width as isize };
                    for (s, i) in rows.clone().step_by(height).enumerate() {
                        let a = self.panel_of_a(kernels, s, i, depth.start, a_room);
                        self.tile(kernels, i, height.min(rows.end - i), j, lanes, &depth, a, b);
                    }
                }
            }
        }
        self.finish(rows, cols);
    }

    /// Packs strips of A, each into a panel of its own.
    ///
    /// # Safety
    ///
    /// As for [`blocks`](Self::blocks), with room for so many panels.
    unsafe fn pack_a(
        &self,
        kernels: &Kernels<T>,
        rows: Range<usize>,
        height: usize,
        depth: Range<usize>,
        room: *mut T,
    ) {
        let panel = panel_of(kernels);
        // SAFETY: a panel's room is for the deepest block and the padding of its rows.
        unsafe {
            if !self.a.in_rows() {
                return pack_panels(self.a, kernels, rows, height, depth, row_of(kernels), room, panel);
            }
            // The kernel takes rows as gladly as columns, so rows are copied, not transposed.
            for (s, i) in rows.clone().step_by(height).enumerate() {
                let (lanes, to) = (height.min(rows.end - i), room.add(s * panel));
                self.a.pack_rows(kernels, i, lanes, depth.start, depth.len(), DEPTH_PADDED, to);
            }
        }
    }

    /// The panel of the strip from row `i` on as the kernel reads it: in place, or where it was packed as number `s`.
    #[inline]
    fn panel_of_a(&self, kernels: &Kernels<T>, s: usize, i: usize, start: usize, room: Option<*mut T>) -> Strided<T> {
        let Some(room) = room else {
            let a = self.a.strided().expect("without a strided view there is room");
            return Strided { data: a.at(i, start), ..a };
        };
        let (lane, depth) = if self.a.in_rows() { (DEPTH_PADDED, 1) } else { (1, row_of(kernels)) };
        let data = room.wrapping_add(s * panel_of(kernels)).cast_const();
        Strided { data, lane: lane as isize, depth: depth as isize }
    }

    /// Multiplies one register tile into C.
    ///
    /// # Safety
    ///
    /// As for [`blocks`](Self::blocks).
    #[inline]
    #[allow(clippy::too_many_arguments, reason = "it is the innermost loop's state")]
    unsafe fn tile(
        &self,
        kernels: &Kernels<T>,
        i: usize,
        rows: usize,
        j: usize,
        cols: usize,
        depth: &Range<usize>,
        a: Strided<T>,
        b: Strided<T>,
    ) {
        debug_assert!((1..=kernels.rows).contains(&rows) && (1..=kernels.width()).contains(&cols), "{rows} × {cols}");
        debug_assert!(kernels.rows * kernels.width() <= TILE, "a register tile is larger than its copy");
        let add = self.accumulate || depth.start > 0;
        let c = self.c.wrapping_offset(i as isize * self.c_row + j as isize * self.c_col);
        let kernel = kernels.tiles[usize::from(cols > kernels.lanes)][rows - 1];
        let (a, a_row, a_col, b, b_row) = (a.data, a.lane, a.depth, b.data, b.depth);
        if self.c_col == 1 {
            let tile = Tile { depth: depth.len(), a, a_row, a_col, b, b_row, c, c_row: self.c_row, cols, add };
            // SAFETY: the caller's.
            return unsafe { kernel(&tile) };
        }
        // ColumnMatVec of C are apart: the tile is made aside and scattered, with the same sums.
        let mut aside = [const { MaybeUninit::<T>::uninit() }; TILE];
        let sums: *mut T = aside.as_mut_ptr().cast();
        let width = kernels.width();
        let tile =
            Tile { depth: depth.len(), a, a_row, a_col, b, b_row, c: sums, c_row: width as isize, cols, add: false };
        // SAFETY: the caller's; the largest tile fits aside, and the kernel writes all of it that
        // is read here.
        unsafe {
            kernel(&tile);
            // Down the columns, which are contiguous in the transpose.
            for s in 0..cols {
                let column = c.wrapping_offset(s as isize * self.c_col);
                for r in 0..rows {
                    let (c, sum) = (column.wrapping_offset(r as isize * self.c_row), *sums.add(r * width + s));
                    *c = if add { (*c).add(sum) } else { sum };
                }
            }
        }
    }

    /// The product of nothing: zero, or C as it was.
    ///
    /// # Safety
    ///
    /// As for [`rectangle`](Self::rectangle).
    unsafe fn empty_sum(&self, rows: Range<usize>, cols: Range<usize>) {
        if !self.accumulate {
            for i in rows.clone() {
                for j in cols.clone() {
                    // SAFETY: the element lies in the rectangle.
                    unsafe { *self.c.wrapping_offset(i as isize * self.c_row + j as isize * self.c_col) = T::ZERO }
                }
            }
        }
        self.finish(rows, cols);
    }

    /// Hands a finished part of C to the epilogue, as the caller sees it.
    #[inline]
    pub(crate) fn finish(&self, rows: Range<usize>, cols: Range<usize>) {
        let Some(epilogue) = self.epilogue else { return };
        let data = self.c.wrapping_offset(rows.start as isize * self.c_row + cols.start as isize * self.c_col);
        let (rows, cols, row_stride, col_stride) =
            if self.transposed { (cols, rows, self.c_col, self.c_row) } else { (rows, cols, self.c_row, self.c_col) };
        epilogue.finish(Finished { batch: self.batch, rows, cols, data, row_stride, col_stride });
    }
}

/// Estimated vector instructions per step of k for C[m × n] in this orientation, to choose one.
///
/// A thin product wastes lanes if its vectors lie along the short side; the other orientation may
/// cost a transposition of B, and one of C. Measured: a transposed number costs a third of an instruction.
pub(crate) fn cost<T>(kernels: &Kernels<T>, (m, n, k): (usize, usize, usize), b: &Strided<T>, c_col: isize) -> f32 {
    let pack = match b {
        Strided { lane: 1, .. } if m <= 2 * kernels.rows => 0.0,
        Strided { lane: 1, .. } => 1.0 / kernels.lanes as f32,
        Strided { depth: 1, .. } => 0.33,
        _ => 2.0,
    };
    let turn = if c_col == 1 { 0.0 } else { 0.33 / k.max(1) as f32 };
    (m * n.div_ceil(kernels.lanes)) as f32 + pack * n as f32 + turn * (m * n) as f32
}

/// Numbers of the largest panel of A.
fn panel_of<T>(kernels: &Kernels<T>) -> usize {
    DEPTH_PADDED * row_of(kernels)
}

/// Numbers of a row of a panel of A that is packed in columns.
fn row_of<T>(kernels: &Kernels<T>) -> usize {
    kernels.rows.next_multiple_of(kernels.lanes)
}

/// Stride of a packed row of A: an odd number of cache lines, so that rows spread over the sets.
const DEPTH_PADDED: usize = DEPTH + 16;
