//! The operands of row programs: how their rows are stored, and how values are loaded and stored.
//!
//! Contiguous elements are read and written in the memory of the operand where the program allows it. Other elements go
//! through buffers: inputs are gathered or converted before the program runs, and outputs are converted or scattered
//! afterwards.

use super::columns::TransposedBlocks;
use super::{RowBlock, RowExecution};
use crate::program::execute::TileExtent;
use crate::program::loader::{fill, gather, scatter};
use crate::program::prepared::{PreparedOutput, PreparedProgram};
use crate::program::slot::{Granularity, ValueSlot};
use crate::strided::{self, AccessPattern, StridedAxis};
use pellucid_runtime::list::List;

/// How the rows of an operand are stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RowAccess {
    /// All rows are contiguous, one after another.
    Dense,
    /// Each row is contiguous.
    Rows,
    /// The elements of each transposed tile are contiguous, in the order of the tile.
    Tiles,
    /// The elements of each line of a transposed tile are contiguous, and used in place.
    Lines,
    /// Any other layout.
    Strided,
}

/// Returns the layout of each operand (inputs first) over the axes that number the rows, over the axes of a row, and
/// over all axes. Only the elements of entire transposed tiles can be contiguous.
pub(super) fn row_access(
    program: &PreparedProgram,
    outer: &[StridedAxis],
    inner: &[StridedAxis],
    all: &[StridedAxis],
    columns: Option<&TransposedBlocks<'_>>,
) -> List<RowAccess, 8> {
    let dense = |axes: &[StridedAxis], k: usize, size: usize| {
        strided::element_count(axes) == 1 || strided::access_pattern(axes, k, size) == AccessPattern::Dense
    };
    let slot = |k: usize| match k.checked_sub(program.inputs.len()) {
        Some(o) => program.outputs[o].slot,
        None => k as ValueSlot,
    };
    let access = |(k, (size, per_row)): (usize, (usize, bool))| match per_row {
        true if dense(outer, k, size) => RowAccess::Dense,
        true => RowAccess::Strided,
        false if columns.is_some_and(|columns| columns.are_entire() && dense(&columns.axes, k, size)) => {
            RowAccess::Tiles
        }
        false if columns.is_some_and(|columns| columns.uses_lines(slot(k))) => RowAccess::Lines,
        false if columns.is_some() => RowAccess::Strided,
        false if dense(all, k, size) => RowAccess::Dense,
        false if dense(inner, k, size) => RowAccess::Rows,
        false => RowAccess::Strided,
    };
    let sizes = program.inputs.iter().map(|i| (i.size, i.per_row));
    sizes.chain(program.outputs.iter().map(|o| (o.size, o.per_row))).enumerate().map(access).collect()
}

impl RowExecution<'_> {
    /// Loads the inputs with one value per row.
    ///
    /// # Safety
    /// The rows of `block` are within the operands. `addresses` and `raw` are the addresses from
    /// [`RowExecution::place_slots`].
    pub(super) unsafe fn load_row_inputs(&self, block: &RowBlock<'_>, addresses: &mut [*mut u8], raw: *mut u8) {
        for (k, input) in self.program.inputs.iter().enumerate().filter(|(_, i)| i.per_row) {
            // SAFETY: the operand has a value for each row of the block, and the cell and `raw` have memory for
            // `screened` ≥ `rows` values.
            unsafe {
                let cell = addresses[k];
                let dense = self.access[k] == RowAccess::Dense;
                let from = if dense { self.bases[k].add(block.first * input.size) } else { raw };
                if !dense {
                    gather(from, input.size, self.outer, k, self.bases[k], block.first, block.rows);
                }
                match input.load {
                    Some(load) => load.run(cell, from, block.rows),
                    None => std::ptr::copy_nonoverlapping(from, cell, block.rows * input.size),
                }
                self.repeat_values(cell, block.rows * self.program.sizes[k] as usize);
            }
        }
    }

    /// Stores the outputs with one value per row.
    ///
    /// # Safety
    /// The rows of `block` are within the operands. `addresses` and `raw` are the addresses from
    /// [`RowExecution::place_slots`].
    pub(super) unsafe fn store_row_outputs(&self, block: &RowBlock<'_>, addresses: &[*mut u8], raw: *mut u8) {
        let inputs = self.program.inputs.len();
        for (o, output) in self.program.outputs.iter().enumerate().filter(|(_, o)| o.per_row) {
            let (k, from) = (inputs + o, addresses[output.slot as usize]);
            // SAFETY: the operand has an element for each row of the block, the cell holds `rows` values (one if
            // uniform), and `raw` has memory for `rows` values.
            unsafe {
                let dense = self.access[k] == RowAccess::Dense;
                let to = if dense { self.bases[k].add(block.first * output.size) } else { raw };
                if self.schedule.granularity[output.slot as usize] == Granularity::Uniform {
                    let mut one = 0u64;
                    fill(to, converted_value(output, from, &mut one), output.size, block.rows);
                } else {
                    store_values(output, to, from, block.rows);
                }
                if !dense {
                    scatter(to, output.size, self.outer, k, self.bases[k], block.first, block.rows);
                }
            }
        }
    }

    /// Returns the address of elements `first..` of the rows of `block` in operand `k`, if they are contiguous there.
    pub(super) fn dense_address(&self, k: usize, block: &RowBlock<'_>, size: usize, first: usize) -> Option<*mut u8> {
        match self.access[k] {
            RowAccess::Dense => Some(self.bases[k].wrapping_add((block.first * self.length + first) * size)),
            RowAccess::Rows if block.rows == 1 => Some(block.starts[k].wrapping_add(first * size)),
            RowAccess::Tiles | RowAccess::Lines => Some(block.starts[k]),
            _ => None,
        }
    }

    /// Returns the address of the first line of a transposed tile in operand `k`, and the distance in bytes between two
    /// lines, if each line is contiguous there.
    fn contiguous_lines(&self, k: usize, block: &RowBlock<'_>, size: usize) -> Option<(*mut u8, isize)> {
        match block.transposed {
            [element, column] if column.strides[k] == size as isize => Some((block.starts[k], element.strides[k])),
            _ => None,
        }
    }

    /// Returns the index space whose order is the order of the elements in a tile, the address of its first element in
    /// operand `k`, and the index of element `first` of the first row of `block`.
    fn element_space<'a>(
        &'a self,
        k: usize,
        block: &RowBlock<'a>,
        first: usize,
    ) -> (&'a [StridedAxis], *mut u8, usize) {
        if self.columns.is_some() {
            return (block.transposed, block.starts[k], first * block.rows);
        }
        (self.all, self.bases[k], block.first * self.length + first)
    }

    /// Returns the address of elements `first..first + n` of the rows of `block` of input `k`: in the operand itself,
    /// or in `buffer`, to which they are loaded.
    ///
    /// # Safety
    /// * Elements: the elements are within the operand.
    /// * Buffers: `buffer` and `raw` are valid for writes of `n` values.
    pub(super) unsafe fn load_input(
        &self,
        k: usize,
        block: &RowBlock<'_>,
        first: usize,
        n: usize,
        buffer: *mut u8,
        raw: *mut u8,
    ) -> *mut u8 {
        let input = &self.program.inputs[k];
        // SAFETY: by this method's contract, *Elements* covers all reads and *Buffers* all writes. The buffers are
        // scratch memory and do not overlap the operand.
        unsafe {
            match (self.dense_address(k, block, input.size, first), input.load) {
                (Some(from), Some(load)) => load.run(buffer, from, n),
                (Some(from), None) if self.staged[k] => std::ptr::copy_nonoverlapping(from, buffer, n * input.size),
                (Some(from), None) => return from,
                (None, Some(load)) if let Some((start, stride)) = self.contiguous_lines(k, block, input.size) => {
                    let line_bytes = block.rows * self.program.sizes[k] as usize;
                    for line in 0..self.length {
                        load.run(buffer.add(line * line_bytes), start.offset(line as isize * stride), block.rows);
                    }
                }
                (None, load) => {
                    let to = if load.is_some() { raw } else { buffer };
                    let (axes, base, start) = self.element_space(k, block, first);
                    gather(to, input.size, axes, k, base, start, n);
                    if let Some(load) = load {
                        load.run(buffer, to, n);
                    }
                }
            }
            buffer
        }
    }

    /// Returns the address of the elements of output `o` starting at `first`, if the instruction that computes them
    /// writes directly to this address.
    pub(super) fn direct_address(
        &self,
        o: usize,
        output: &PreparedOutput,
        block: &RowBlock<'_>,
        first: usize,
    ) -> Option<*mut u8> {
        let slot = output.slot as usize;
        let tile =
            self.schedule.granularity[slot] == Granularity::PerElement && !output.per_row && output.direct.is_some();
        if !tile || self.stream.is_some() && !(self.chains_stream && self.schedule.is_streamed[slot]) {
            return None;
        }
        self.dense_address(self.program.inputs.len() + o, block, output.size, first)
    }

    /// Stores the elements of `tile` of each row of `block` to output `o`.
    ///
    /// # Safety
    /// * Elements: the elements are within the operand.
    /// * Source: `from` is valid for reads of the values of the tile: one for each element, one for each row, or one
    ///   for the entire execution, as the granularity of the output says.
    /// * Buffer: `raw` is valid for writes of one value per element.
    pub(super) unsafe fn store_output(
        &self,
        o: usize,
        output: &PreparedOutput,
        block: &RowBlock<'_>,
        tile: &TileExtent<'_>,
        from: *mut u8,
        raw: *mut u8,
    ) {
        let k = self.program.inputs.len() + o;
        let n = tile.elements;
        // SAFETY: by this method's contract, *Source* covers all reads, *Elements* and *Buffer* all writes.
        unsafe {
            let dense = self.dense_address(k, block, output.size, tile.first);
            let size = self.program.sizes[output.slot as usize] as usize;
            let is_element = self.schedule.granularity[output.slot as usize] == Granularity::PerElement;
            if let (None, true, Some(store)) = (dense, is_element, output.store)
                && let Some((start, stride)) = self.contiguous_lines(k, block, output.size)
            {
                for line in 0..self.length {
                    let from = from.add(line * block.rows * size);
                    store.run(start.offset(line as isize * stride), from, block.rows);
                }
                return;
            }
            let to = dense.unwrap_or(raw);
            match self.schedule.granularity[output.slot as usize] {
                Granularity::PerElement => match (self.stream, output.store) {
                    (Some(stream), None) if dense.is_some() && to != from => stream(to, from, n * output.size, []),
                    _ => store_values(output, to, from, n),
                },
                granularity => {
                    for row in 0..tile.rows {
                        let value = if granularity == Granularity::PerRow { from.add(row * size) } else { from };
                        let mut one = 0u64;
                        let value = converted_value(output, value, &mut one);
                        fill(to.add(row * tile.len * output.size), value, output.size, tile.len);
                    }
                }
            }
            if dense.is_none() {
                let (axes, base, start) = self.element_space(k, block, tile.first);
                scatter(to, output.size, axes, k, base, start, n);
            }
        }
    }
}

/// Returns the address of a value in the dtype of `output`: `from` itself, or `one` with the converted value.
///
/// # Safety
/// `from` is valid for reads of one value in the compute type of `output`.
unsafe fn converted_value(output: &PreparedOutput, from: *mut u8, one: &mut u64) -> *const u8 {
    let Some(store) = output.store else { return from };
    let to = (&raw mut *one).cast::<u8>();
    // SAFETY: the caller guarantees one value at `from` (this function's contract), and `one` has eight bytes, enough
    // for any dtype.
    unsafe { store.run(to, from, 1) };
    to
}

/// Stores `n` values contiguously, converted to the dtype of `output`.
///
/// # Safety
/// * Source: `from` is valid for reads of `n` values in the compute type of `output`.
/// * Destination: `to` is valid for writes of `n` elements.
/// * Aliasing: with a conversion, `to` does not overlap `from`, unless it equals `from` and the element sizes are
///   equal.
unsafe fn store_values(output: &PreparedOutput, to: *mut u8, from: *const u8, n: usize) {
    // SAFETY: the caller guarantees *Source*, *Destination* and *Aliasing* (this function's contract).
    unsafe {
        match output.store {
            Some(store) => store.run(to, from, n),
            None if std::ptr::eq(to, from) => {}
            None => std::ptr::copy(from, to, n * output.size),
        }
    }
}
