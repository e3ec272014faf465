//! The loops around the micro-kernel: which panels are packed when, and where they stay.
//!
//! ```text
//! for each block of columns          (≤ COLUMNS wide)
//!   for each block of the depth      (≤ DEPTH deep)
//!     for each strip of rows         (register tile high)
//!       pack a panel of A[strip × depth]               stays in L1
//!       for each panel of columns    (register tile wide)
//!         first strip: pack a panel of B[depth × columns]
//!         micro-kernel                                 streams the panels of B from L2
//!       epilogue on the strip of C, after the last block of the depth
//! ```
//!
//! This is the order of Goto and van de Geijn with A and B in each other's places, because rows
//! of C are contiguous here. A panel of A is packed right before its use and is small, so there
//! is no block of A to keep.

use super::element::Element;
use super::level::Kernels;
use super::pack::{Source, Strided};
use super::tile::Tile;
use super::{Epilogue, Finished, scratch};
use crate::list::List;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Deepest block of k. The order of summation hangs on it, so it is one number for all types and
/// machines: 14 rows of A (f32) fill half of a 32 KiB L1, and a pass over C costs about 2 %.
const DEPTH: usize = 272;

/// Widest block of columns: with the depth, half a megabyte of f32 in a 1 MiB L2.
const COLUMNS: usize = 512;

/// Largest register tile of all levels.
const TILE: usize = 14 * 32;

/// The depth in blocks of equal size (but the last), a function of k alone.
pub(super) fn depth_blocks(k: usize) -> impl Iterator<Item = Range<usize>> + Clone {
    let count = k.div_ceil(DEPTH).max(1);
    let size = k.div_ceil(count).next_multiple_of(8).max(8);
    (0..k).step_by(size).map(move |start| start..k.min(start + size))
}

/// C[m × n] and what it is the product of, with vectors along n.
pub(super) struct Product<'a, T> {
    pub(super) a: &'a dyn Source<T>,
    pub(super) b: &'a dyn Source<T>,
    pub(super) k: usize,
    pub(super) c: *mut T,
    pub(super) c_row: isize,
    pub(super) c_col: isize,
    pub(super) accumulate: bool,
    pub(super) epilogue: Option<Epilogue<'a, T>>,
    /// Index of the batch element, and whether C is the transpose of what the caller sees: both
    /// for the epilogue only.
    pub(super) batch: usize,
    pub(super) transposed: bool,
}

impl<T: Element> Product<'_, T> {
    /// Computes one rectangle of C, on this thread.
    ///
    /// # Safety
    ///
    /// The sources cover the rectangle, C is valid there and nobody else touches it; the machine
    /// has the instruction set of `kernels`.
    pub(super) unsafe fn rectangle(&self, kernels: &Kernels<T>, rows: Range<usize>, cols: Range<usize>) {
        if rows.is_empty() || cols.is_empty() {
            return;
        }
        if self.k == 0 {
            // SAFETY: the caller's.
            return unsafe { self.empty_sum(rows, cols) };
        }
        let width = kernels.width();
        let panel = panel_of(kernels);
        if self.b.strided().is_none() {
            let strips = rows.len().div_ceil(kernels.rows);
            return scratch::with(strips * panel + DEPTH * width, |room: *mut T| {
                // SAFETY: the scratch has room for all panels of A and one of B.
                unsafe { self.panels(kernels, rows, cols, room, room.add(strips * panel)) }
            });
        }
        let pack_b = !self.read_b_in_place(kernels, rows.len());
        let block = if pack_b { DEPTH * COLUMNS.min(cols.len()).next_multiple_of(width) } else { 0 };
        if self.read_a_in_place(kernels, cols.len()) && !pack_b {
            // SAFETY: nothing is packed, so nothing is written to the scratch pointers.
            return unsafe { self.blocks(kernels, rows, cols, None, None) };
        }
        scratch::with(panel + block, |room: *mut T| {
            // SAFETY: the scratch has room for a panel of A and a block of B.
            unsafe {
                let a = (!self.read_a_in_place(kernels, cols.len())).then_some(room);
                let b = pack_b.then(|| room.add(panel));
                self.blocks(kernels, rows, cols, a, b);
            }
        });
    }

    /// Whether the kernel reads A where it is: when few tiles share a panel, packing costs more
    /// than it saves.
    fn read_a_in_place(&self, kernels: &Kernels<T>, cols: usize) -> bool {
        self.a.strided().is_some_and(|a| {
            // Rows half a page apart share the sets of an 8-way L1, and 14 of them evict each other.
            let crowded = a.depth == 1 && (a.lane.unsigned_abs() * size_of::<T>()).is_multiple_of(2048) && self.k >= 64;
            cols <= 2 * kernels.width() && !crowded
        })
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
        // Panels of equal height: a last panel of one row would be bound by latency.
        let height = rows.len().div_ceil(rows.len().div_ceil(kernels.rows));
        for j in cols.clone().step_by(COLUMNS) {
            let cols = j..cols.end.min(j + COLUMNS);
            for depth in depth_blocks(self.k) {
                // A panel that only one strip reads stays in L1: the next one takes its place.
                let panel = if height < rows.len() { width * depth.len() } else { 0 };
                for i in rows.clone().step_by(height) {
                    let strip = i..rows.end.min(i + height);
                    // SAFETY: the caller's; the strip, the columns and the depth are a part, and
                    // the block has room for its panels.
                    unsafe {
                        let a = self.panel_of_a(kernels, strip.clone(), depth.clone(), a_room);
                        for (at, j) in cols.clone().step_by(width).enumerate() {
                            let lanes = width.min(cols.end - j);
                            let b = match (b_room, self.b.strided()) {
                                (Some(room), _) => {
                                    let to = room.add(at * panel);
                                    if i == rows.start {
                                        self.b.pack(kernels, j, lanes, depth.start, depth.len(), width, to);
                                    }
                                    Strided { data: to.cast_const(), lane: 1, depth: width as isize }
                                }
                                (None, Some(b)) => Strided { data: b.at(j, depth.start), ..b },
                                (None, None) => unreachable!("without a strided view there is room"),
                            };
                            self.tile(kernels, i, strip.len(), j, lanes, &depth, a, b);
                        }
                        if depth.end == self.k {
                            self.finish(strip, cols.clone());
                        }
                    }
                }
            }
        }
    }

    /// The loops for an operand B that is dear to pack, or packed, with its panels outermost: a panel stays in L1 from its packing to
    /// its last use, and the panels of A, all packed, in L2.
    ///
    /// # Safety
    ///
    /// As for [`rectangle`](Self::rectangle), with room for all panels of A and one of B.
    unsafe fn panels(
        &self,
        kernels: &Kernels<T>,
        rows: Range<usize>,
        cols: Range<usize>,
        a_room: *mut T,
        b_room: *mut T,
    ) {
        let width = kernels.width();
        let height = rows.len().div_ceil(rows.len().div_ceil(kernels.rows));
        let strips = || rows.clone().step_by(height).map(|i| i..rows.end.min(i + height));
        for depth in depth_blocks(self.k) {
            // SAFETY: the caller's; every strip has a panel of its own, and the columns are a part.
            unsafe {
                let room = |s: usize| Some(a_room.add(s * panel_of(kernels)));
                let panels: List<Strided<T>, 8> = strips()
                    .enumerate()
                    .map(|(s, strip)| self.panel_of_a(kernels, strip, depth.clone(), room(s)))
                    .collect();
                for j in cols.clone().step_by(width) {
                    let lanes = width.min(cols.end - j);
                    let data = self.b.panel(j, depth.start, width).unwrap_or_else(|| {
                        self.b.pack(kernels, j, lanes, depth.start, depth.len(), width, b_room);
                        b_room.cast_const()
                    });
                    let b = Strided { data, lane: 1, depth: width as isize };
                    for (strip, &a) in strips().zip(&panels) {
                        self.tile(kernels, strip.start, strip.len(), j, lanes, &depth, a, b);
                    }
                }
            }
        }
        self.finish(rows, cols);
    }

    /// A panel of A as the kernel reads it: in place, or packed into `room`.
    ///
    /// # Safety
    ///
    /// As for [`blocks`](Self::blocks).
    #[inline]
    unsafe fn panel_of_a(
        &self,
        kernels: &Kernels<T>,
        rows: Range<usize>,
        depth: Range<usize>,
        room: Option<*mut T>,
    ) -> Strided<T> {
        let Some(room) = room else {
            let a = self.a.strided().expect("without a strided view there is room");
            return Strided { data: a.at(rows.start, depth.start), ..a };
        };
        // The kernel takes rows as gladly as columns, so rows are copied, not transposed. Without, it is columns.
        let (lane, step) =
            if self.a.in_rows() { (DEPTH_PADDED, 1) } else { (1, kernels.rows.next_multiple_of(kernels.lanes)) };
        // SAFETY: the room is for the deepest block and the padding of so many rows.
        unsafe {
            let (first, lanes, start, depth) = (rows.start, rows.len(), depth.start, depth.len());
            match step {
                1 => self.a.pack_rows(kernels, first, lanes, start, depth, lane, room),
                _ => self.a.pack(kernels, first, lanes, start, depth, step, room),
            }
        }
        Strided { data: room, lane: lane as isize, depth: step as isize }
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
        let add = self.accumulate || depth.start > 0;
        let c = self.c.wrapping_offset(i as isize * self.c_row + j as isize * self.c_col);
        let kernel = kernels.tiles[usize::from(cols > kernels.lanes)][rows - 1];
        let (a, a_row, a_col, b, b_row) = (a.data, a.lane, a.depth, b.data, b.depth);
        if self.c_col == 1 {
            let tile = Tile { depth: depth.len(), a, a_row, a_col, b, b_row, c, c_row: self.c_row, cols, add };
            // SAFETY: the caller's.
            return unsafe { kernel(&tile) };
        }
        // Columns of C are apart: the tile is made aside and scattered, with the same sums.
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
    pub(super) fn finish(&self, rows: Range<usize>, cols: Range<usize>) {
        let Some(epilogue) = self.epilogue else { return };
        let data = self.c.wrapping_offset(rows.start as isize * self.c_row + cols.start as isize * self.c_col);
        let (rows, cols, row_stride, col_stride) =
            if self.transposed { (cols, rows, self.c_col, self.c_row) } else { (rows, cols, self.c_row, self.c_col) };
        epilogue(Finished { batch: self.batch, rows, cols, data, row_stride, col_stride });
    }
}

/// Estimated vector instructions per step of k for C[m × n] in this orientation, to choose one.
///
/// A thin product wastes lanes if its vectors lie along the short side; the other orientation may
/// cost a transposition of B, and a scatter of C. Measured: a transposed number costs a third of
/// an instruction, a scattered one about three.
pub(super) fn cost<T>(kernels: &Kernels<T>, (m, n, k): (usize, usize, usize), b: &Strided<T>, c_col: isize) -> f32 {
    let pack = match b {
        Strided { lane: 1, .. } if m <= 2 * kernels.rows => 0.0,
        Strided { lane: 1, .. } => 1.0 / kernels.lanes as f32,
        Strided { depth: 1, .. } => 0.33,
        _ => 2.0,
    };
    let scatter = if c_col == 1 { 0.0 } else { 3.0 / k.min(DEPTH) as f32 };
    (m * n.div_ceil(kernels.lanes)) as f32 + pack * n as f32 + scatter * (m * n) as f32
}

/// Numbers of the largest panel of A.
fn panel_of<T>(kernels: &Kernels<T>) -> usize {
    DEPTH_PADDED * kernels.rows.next_multiple_of(kernels.lanes)
}

/// Stride of a packed row of A: an odd number of cache lines, so that rows spread over the sets.
const DEPTH_PADDED: usize = DEPTH + 16;
