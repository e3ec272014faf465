//! `Row`: a program whose steps include reductions over rows.
//!
//! Short rows are processed in blocks of several rows, in one tile. If the values of one row fit the scratch memory,
//! the row is one tile. A longer row is processed tile by tile, once per phase, and only values that a later phase
//! reads are kept for the entire row.
//!
//! If the elements of adjacent rows are contiguous in memory and those of one row are not, a block is a transposed tile
//! (`columns`): loops run over rows, and reductions over the lines of the tile. Lines that are contiguous in memory are
//! used in place.
//!
//! A guarded phase is skipped if no row of the block needs it (`screen`). The loads and stores of operands are in
//! `operands`.

mod columns;
mod memory;
mod operands;
mod screen;

use crate::operand::Operand;
use crate::program::evaluate::tile_capacity;
use crate::program::execute::{TileExtent, execute, execute_lines};
use crate::program::fold::{CHUNK, RunningFold};
use crate::program::kernel_schedule::{KernelSchedule, Phase, RowReduction};
use crate::program::loops::{self, StreamLoop};
use crate::program::prepared::{PreparedOutput, PreparedProgram};
use crate::program::slot::Granularity;
use crate::strided::{self, Cursor, StridedAxes, StridedAxis};
use columns::TransposedBlocks;
use memory::must_stage;
use operands::{RowAccess, row_access};
use pellucid_ir::kernel::Row;
use pellucid_ir::{Error, Result, Shape};
use pellucid_runtime::list::List;
use pellucid_runtime::threads::GRAIN;
use pellucid_runtime::workspace::parallel_ranges_with_workspace;
use pellucid_simd::vector::prefetch_run;
use screen::{MAX_SCREENED_ROWS, can_screen};
use std::ops::Range;

/// The size of the buffers for a block of rows, in bytes. A single row is divided into tiles if its buffers exceed
/// twice this size.
const BLOCK_BYTES: usize = 32 << 10;

/// The minimum length of rows that are used in place, one by one. Shorter rows are gathered into blocks.
const LONG_ROW: usize = 128;

/// The number of values of padding between buffers. Without padding, the distance of buffers for rows of, for example,
/// 1024 values would be a multiple of the page size, and loads would wait for stores to other buffers with the same low
/// address bits (4K aliasing).
const STAGGER: usize = 64;

/// The maximum number of bytes of each input that are prefetched for the next block.
const PREFETCHED_BYTES: usize = 4096;

/// The maximum number of rows of a block.
const MAX_BLOCK_ROWS: usize = 64;

/// The number of rows whose elements fill a cache line, for elements of four bytes.
const LINE_ROWS: usize = 16;

/// Returns the shape to which all operands broadcast.
///
/// # Errors
/// Returns a shape mismatch of operation `op` if the operands do not broadcast to a common shape.
pub(crate) fn common_shape<'a>(
    op: &'static str,
    operands: impl Iterator<Item = &'a Operand<'a>> + Clone,
) -> Result<Shape> {
    let mut shape = Shape::scalar();
    for operand in operands.clone() {
        if *operand.layout.shape() != shape {
            shape = shape.broadcast(operand.layout.shape()).ok_or_else(|| {
                Error::shapes(
                    op,
                    operands.clone().map(|o| o.layout.shape()),
                    "all operands must broadcast to a common shape",
                )
            })?;
        }
    }
    Ok(shape)
}

/// Runs a row program on `inputs` and writes `outputs`.
///
/// # Errors
/// Returns an error if the operands do not broadcast to a common shape, or the program is not defined for its dtypes.
pub(crate) fn run_row(kernel: &Row, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
    let program = PreparedProgram::for_program(&kernel.program)?;
    let operands = || inputs.iter().chain(outputs);
    let shape = common_shape(kernel.program.name, operands())?;
    let mut bases: List<*mut u8, 8> = operands().map(strided::base_address).collect();
    let mut outer = strided::broadcast_axes(&shape, operands(), |a| !kernel.axes.contains(a));
    let mut inner = strided::broadcast_axes(&shape, operands(), |a| kernel.axes.contains(a));
    let (rows, length) = (strided::element_count(&outer), strided::element_count(&inner));
    if rows == 0 || outputs.is_empty() {
        return Ok(());
    }
    strided::reorder(&mut outer, inputs.len(), &mut bases);
    strided::merge(&mut outer);
    strided::merge(&mut inner);
    let mut all: StridedAxes = outer.iter().chain(&inner).cloned().collect();
    strided::merge(&mut all);

    let widest = program.outputs.iter().filter(|o| !o.per_row).map(|o| o.size).max().unwrap_or(0);
    let stream = loops::streaming(rows * length * widest, || {
        bases[inputs.len()..].iter().any(|to| bases[..inputs.len()].contains(to))
    });
    let granularity = |k: usize| if program.inputs[k].per_row { Granularity::PerRow } else { Granularity::PerElement };
    let columns = TransposedBlocks::new(program, &granularity, [&outer, &inner], length, &bases, stream.is_some());
    let schedule = match &columns {
        Some(columns) => columns.schedule,
        None => program.schedule_rows(length, &granularity),
    };
    let access = row_access(program, &outer, &inner, &all, columns.as_ref());

    let fits = BLOCK_BYTES / (schedule.buffer_width + 8);
    let phased = columns.is_none() && length > 2 * fits;
    let block = match &columns {
        Some(columns) => columns.width,
        None if phased => 1,
        None => block_rows(&access, length, fits).min(rows),
    };
    let chains_stream = stream.is_some()
        && (inputs.len()..).zip(&program.outputs).filter(|(_, o)| schedule.is_streamed[o.slot as usize]).all(
            |(k, o)| {
                let dense = access[k] == RowAccess::Dense || block == 1 && access[k] == RowAccess::Rows;
                dense && bases[k].addr().is_multiple_of(o.size)
            },
        );
    let execution = RowExecution {
        program,
        schedule,
        uniforms: program.uniform_values(&kernel.params, length),
        outer: &outer,
        all: &all,
        bases: &bases,
        access,
        length,
        rows,
        columns,
        block,
        tile: if phased {
            tile_capacity(schedule.buffer_width + 8)
        } else {
            (block * length).next_multiple_of(64) + STAGGER
        },
        phased,
        staged: (0..inputs.len()).map(|k| must_stage(program, schedule, &bases, k)).collect(),
        stream,
        chains_stream,
        in_place: false,
        screened: if can_screen(program, schedule) { MAX_SCREENED_ROWS.min(rows).max(block) } else { block },
    };
    let in_place = execution.can_work_in_place();
    let execution = RowExecution { in_place, ..execution };
    let bytes: usize = operands().map(|o| o.dtype.size()).sum::<usize>() + 2 * program.steps.len();
    let (unit, elements) = (execution.screened, if execution.is_screened() { 1 } else { length });
    let grain = GRAIN.div_ceil((bytes * elements * unit).max(64));
    execution.run_all(unit, grain)
}

/// Returns the number of rows of a block that is not transposed and whose buffers hold about `fits` elements. Strided
/// rows are gathered in full cache lines.
fn block_rows(access: &[RowAccess], length: usize, fits: usize) -> usize {
    if length >= LONG_ROW && access.contains(&RowAccess::Rows) {
        return 1;
    }
    let block = (fits / length.max(1)).clamp(1, MAX_BLOCK_ROWS);
    if block > LINE_ROWS && access.contains(&RowAccess::Strided) { block - block % LINE_ROWS } else { block }
}

/// A row program, resolved for its operands.
struct RowExecution<'a> {
    /// The program.
    program: &'a PreparedProgram,
    /// The schedule of the program for these operands.
    schedule: &'a KernelSchedule,
    /// The values of the uniforms.
    uniforms: List<u64, 8>,
    /// The axes that number the rows.
    outer: &'a [StridedAxis],
    /// The outer and inner axes as one index space, merged.
    all: &'a [StridedAxis],
    /// The addresses of the first element of each operand, inputs first.
    bases: &'a [*mut u8],
    /// The layout of each operand.
    access: List<RowAccess, 8>,
    /// The number of elements of a row.
    length: usize,
    /// The number of rows.
    rows: usize,
    /// The division into transposed tiles, if the rows are computed in such tiles.
    columns: Option<TransposedBlocks<'a>>,
    /// The number of rows of a block.
    block: usize,
    /// The number of elements of a tile.
    tile: usize,
    /// Whether a row has several tiles.
    phased: bool,
    /// For each input: true if it is copied to a buffer before any output is written.
    staged: List<bool, 8>,
    /// The non-temporal copy, if outputs exceed the caches.
    stream: Option<StreamLoop>,
    /// Whether fused chains write outputs with non-temporal stores, without a buffer.
    chains_stream: bool,
    /// Whether the program reads and writes rows directly in the memory of the operands, and no operand has one value
    /// per row.
    in_place: bool,
    /// The number of rows that are screened at a time; `block` if rows are not screened.
    screened: usize,
}

// SAFETY: the raw pointers refer to the operands, which outlive the run. Threads process disjoint rows. Different rows
// have disjoint memory in every output, and in an input that an output overwrites in place.
unsafe impl Sync for RowExecution<'_> {}

/// A block of consecutive rows.
struct RowBlock<'a> {
    /// The index of the first row.
    first: usize,
    /// The number of rows.
    rows: usize,
    /// The address of the first row in each operand.
    starts: &'a [*mut u8],
    /// The axes of the elements in the order of a transposed tile; empty for other tiles.
    transposed: &'a [StridedAxis],
}

impl RowExecution<'_> {
    /// Runs the program on all rows, in tasks of at least `grain` units of `unit` rows.
    ///
    /// # Errors
    /// Returns an error if memory for long rows cannot be allocated.
    fn run_all(&self, unit: usize, grain: usize) -> Result<()> {
        let group = self.group_rows();
        let group_units = group.div_ceil(unit);
        let first_row = |u: usize| u / group_units * group + u % group_units * unit;
        let rows_of = |units: Range<usize>| first_row(units.start)..first_row(units.end);
        let units = self.rows / group * group_units;
        parallel_ranges_with_workspace(units, grain, self.scratch_bytes(), |units, workspace| {
            // SAFETY: the workspace belongs to this call, and the tasks have different rows.
            unsafe { self.run_rows(rows_of(units), workspace) }
        })
    }

    /// Runs the program on the rows `range`, block by block.
    ///
    /// # Safety
    /// The rows are within the operands, and no other task accesses their outputs. `scratch` is 64-byte aligned and
    /// valid for [`RowExecution::scratch_bytes`] bytes, which only this call uses.
    unsafe fn run_rows(&self, range: Range<usize>, scratch: *mut u8) {
        // SAFETY: the contract of this method implies the contract of every called method.
        unsafe {
            let (slot_addresses, raw) = self.place_slots(scratch);
            let mut addresses = slot_addresses.clone();
            let group = if self.is_screened() { self.screened } else { range.len() };
            for first in range.clone().step_by(group) {
                let rows = first..range.end.min(first + group);
                if !(self.is_screened() && self.screen(rows.clone(), &mut addresses, raw)) {
                    self.run_blocks(rows, &slot_addresses, &mut addresses, raw);
                }
            }
        }
        if self.stream.is_some() {
            loops::store_fence();
        }
    }

    /// Runs the program on the rows `range`, block by block.
    ///
    /// # Safety
    /// The rows are within the operands, and no other task accesses their outputs. `slot_addresses` and `raw` are the
    /// addresses from [`RowExecution::place_slots`], and `addresses` is a copy of `slot_addresses`.
    unsafe fn run_blocks(
        &self,
        range: Range<usize>,
        slot_addresses: &[*mut u8],
        addresses: &mut [*mut u8],
        raw: *mut u8,
    ) {
        // SAFETY: the contract of this method implies the contract of every called method.
        unsafe {
            let mut cursor = Cursor::at(self.outer, self.bases, range.start);
            let mut first = range.start;
            let group = self.group_rows();
            let mut axes = self.columns.as_ref().map_or_else(StridedAxes::new, |columns| columns.axes.clone());
            while first < range.end {
                let rows = self.block.min(range.end - first).min(group - first % group);
                if let Some(column) = axes.last_mut() {
                    column.len = rows;
                }
                let block = RowBlock { first, rows, starts: &cursor.positions, transposed: &axes };
                if !self.in_place {
                    self.load_row_inputs(&block, addresses, raw);
                }
                if self.phased {
                    self.run_in_phases(&block, slot_addresses, addresses, raw);
                } else {
                    self.run_block(&block, slot_addresses, addresses, raw);
                }
                if !self.in_place {
                    self.store_row_outputs(&block, addresses, raw);
                }
                first += rows;
                if self.block == 1 {
                    cursor.advance();
                } else if first < range.end {
                    cursor = Cursor::at(self.outer, self.bases, first);
                }
            }
        }
    }

    /// Returns the number of consecutive rows that are divided into blocks together.
    fn group_rows(&self) -> usize {
        self.outer.last().filter(|_| self.columns.is_some()).map_or(self.rows, |column| column.len)
    }

    /// Returns the slots of the inputs and outputs.
    fn slots(&self) -> impl Iterator<Item = usize> {
        (0..self.program.inputs.len()).chain(self.program.outputs.iter().map(|o| o.slot as usize))
    }

    /// Returns true if every row can be read and written directly in the memory of the operands.
    fn can_work_in_place(&self) -> bool {
        let used = |k: usize| {
            let input = &self.program.inputs[k];
            !input.per_row && input.load.is_none() && !self.staged[k]
        };
        let is_direct = |output: &PreparedOutput| {
            let slot = output.slot as usize;
            let is_streamed = self.stream.is_none() || self.chains_stream && self.schedule.is_streamed[slot];
            self.schedule.granularity[slot] == Granularity::PerElement
                && !output.per_row
                && output.direct.is_some()
                && is_streamed
        };
        self.block == 1
            && self.length > 0
            && !self.access.contains(&RowAccess::Strided)
            && (0..self.program.inputs.len()).all(used)
            && self.program.outputs.iter().all(is_direct)
    }

    /// Returns the outputs with one value per element, with their indices.
    fn full_outputs(&self) -> impl Iterator<Item = (usize, &PreparedOutput)> {
        self.program.outputs.iter().enumerate().filter(|(_, o)| !o.per_row)
    }

    /// Runs the program on a block of entire rows.
    ///
    /// # Safety
    /// The rows of `block` are within the operands. `slot_addresses` and `raw` are the addresses from
    /// [`RowExecution::place_slots`], and `addresses` is a copy of `slot_addresses`, with the inputs of one value per
    /// row loaded.
    unsafe fn run_block(
        &self,
        block: &RowBlock<'_>,
        slot_addresses: &[*mut u8],
        addresses: &mut [*mut u8],
        raw: *mut u8,
    ) {
        let tile = &self.block_extent(block, raw);
        let n = tile.elements;
        // SAFETY: the rows are within the operands, and every slot has memory for its values of a block (the contract
        // of this method). The operands that replace slots in place have the elements of the row.
        unsafe {
            if self.in_place {
                for (slot, &start) in self.slots().zip(block.starts) {
                    addresses[slot] = start;
                }
            } else {
                if n > 0 {
                    let is_first = |&k: &usize| !self.program.inputs[k].per_row && !self.is_guarded_input(k);
                    for k in (0..self.program.inputs.len()).filter(is_first) {
                        addresses[k] = self.load_input(k, block, 0, n, slot_addresses[k], raw);
                    }
                }
                for (o, output) in self.full_outputs() {
                    if let Some(to) = self.direct_address(o, output, block, 0) {
                        addresses[output.slot as usize] = to;
                    }
                }
            }
            for (p, phase) in self.schedule.phases.iter().enumerate() {
                if p == 1 && self.stream.is_some() {
                    self.prefetch_next_block(block);
                }
                if phase.guard.is_some() {
                    if self.can_skip(phase, block.rows, addresses) {
                        continue;
                    }
                    for k in phase.reads.iter().map(|&k| k as usize).filter(|&k| n > 0 && self.is_guarded_input(k)) {
                        addresses[k] = self.load_input(k, block, 0, n, slot_addresses[k], raw);
                    }
                }
                let instrs = &self.schedule.instrs[phase.head.start..phase.tiles.end];
                match &self.columns {
                    Some(columns) => execute_lines(instrs, addresses, tile, &columns.line_strides),
                    None => execute(instrs, addresses, tile),
                }
                let is_separate = |f: &&RowReduction| !f.chained || tile.folds.is_empty();
                for fold in self.schedule.folds[phase.folds.clone()].iter().filter(is_separate) {
                    self.reduce_block(fold, addresses, block.rows, tile);
                }
            }
            if n > 0 && !self.in_place {
                for (o, output) in self.full_outputs() {
                    let from = addresses[output.slot as usize];
                    if self.direct_address(o, output, block, 0) != Some(from) {
                        self.store_output(o, output, block, tile, from, raw);
                    }
                }
            }
        }
    }

    /// Returns the extent of a block of entire rows; `raw` is scratch for its elements.
    fn block_extent(&self, block: &RowBlock<'_>, raw: *mut u8) -> TileExtent<'_> {
        let common = TileExtent {
            rows: block.rows,
            len: self.length,
            elements: block.rows * self.length,
            scratch: raw,
            stream: self.chains_stream,
            ..TileExtent::single_row(0)
        };
        match &self.columns {
            Some(columns) => TileExtent {
                rows: self.length.div_ceil(columns.repeats),
                len: block.rows * columns.repeats,
                transposed: true,
                ..common
            },
            None if self.length <= CHUNK => TileExtent { folds: &self.schedule.folds, ..common },
            None => common,
        }
    }

    /// Prefetches the inputs of the next block, at most [`PREFETCHED_BYTES`] of each.
    ///
    /// The first phase reads the inputs of a block from memory, and later phases read them from the caches. Memory can
    /// therefore be read ahead during the later phases.
    #[inline(never)]
    fn prefetch_next_block(&self, block: &RowBlock<'_>) {
        let Some(axis) = self.outer.last() else { return };
        for (k, input) in self.program.inputs.iter().enumerate() {
            let is_run = !matches!(self.access[k], RowAccess::Strided | RowAccess::Lines);
            if is_run && !input.per_row && axis.strides[k] != 0 {
                // At the end of this axis, `next` is not the address of the next block. A prefetch of a wrong address
                // does not affect the results.
                let next = block.starts[k].wrapping_offset(block.rows as isize * axis.strides[k]);
                prefetch_run(next.cast_const(), PREFETCHED_BYTES.min(block.rows * self.length * input.size));
            }
        }
    }

    /// Runs the program on one long row, phase by phase, and each phase tile by tile.
    ///
    /// # Safety
    /// The contract of [`RowExecution::run_block`] holds, with a block of one row.
    unsafe fn run_in_phases(
        &self,
        block: &RowBlock<'_>,
        slot_addresses: &[*mut u8],
        addresses: &mut [*mut u8],
        raw: *mut u8,
    ) {
        // SAFETY: the row is within the operands, and every slot has memory for a tile, or for the row if `keeps_row`
        // (the contract of this method). All tiles are within the row.
        unsafe {
            for (k, _) in self.program.inputs.iter().enumerate().filter(|(k, i)| self.staged[*k] && !i.per_row) {
                for first in (0..self.length).step_by(self.tile) {
                    let n = self.tile.min(self.length - first);
                    let size = self.program.sizes[k] as usize;
                    self.load_input(k, block, first, n, slot_addresses[k].add(first * size), raw);
                }
            }
            for (p, phase) in self.schedule.phases.iter().enumerate() {
                if self.can_skip(phase, 1, addresses) {
                    continue;
                }
                let head = &TileExtent::single_row(self.tile);
                execute(&self.schedule.instrs[phase.head.clone()], addresses, head);
                let computes = !(phase.tiles.is_empty() && phase.folds.is_empty());
                if !computes && p > 0 && p + 1 < self.schedule.phases.len() {
                    continue;
                }
                let folds = &self.schedule.folds[phase.folds.clone()];
                let mut running: List<RunningFold, 2> = folds.iter().map(|_| RunningFold::new()).collect();
                for first in (0..self.length).step_by(self.tile) {
                    let len = self.tile.min(self.length - first);
                    let tile = &TileExtent { first, stream: self.chains_stream, ..TileExtent::single_row(len) };
                    self.load_tile(phase, block, tile, slot_addresses, addresses, raw);
                    execute(&self.schedule.instrs[phase.tiles.clone()], addresses, tile);
                    for (f, running) in folds.iter().zip(&mut running) {
                        running.push(&f.fold, f.values(addresses), len);
                    }
                    self.store_tile(p, block, tile, addresses, raw);
                }
                for (f, running) in folds.iter().zip(&mut running) {
                    running.finish(&f.fold, addresses[f.result as usize]);
                }
            }
        }
    }

    /// Sets the addresses of all values of one tile of a long row, and loads the inputs that `phase` reads.
    ///
    /// # Safety
    /// The contract of [`RowExecution::run_block`] holds, with a block of one row and a tile of this row.
    unsafe fn load_tile(
        &self,
        phase: &Phase,
        block: &RowBlock<'_>,
        tile: &TileExtent<'_>,
        slot_addresses: &[*mut u8],
        addresses: &mut [*mut u8],
        raw: *mut u8,
    ) {
        let keeps_row = |s: usize| self.schedule.granularity[s] == Granularity::PerElement && self.keeps_row(s);
        // SAFETY: the tile is within the row and the row within the operands, and every slot has memory for a tile, or
        // for the row if `keeps_row` (the contract of this method).
        unsafe {
            for (slot, place) in slot_addresses.iter().enumerate().filter(|(s, _)| keeps_row(*s)) {
                addresses[slot] = place.add(tile.first * self.program.sizes[slot] as usize);
            }
            for k in phase.reads.iter().map(|&k| k as usize).filter(|&k| !self.staged[k]) {
                addresses[k] = self.load_input(k, block, tile.first, tile.len, slot_addresses[k], raw);
            }
        }
        for (o, output) in self.full_outputs() {
            if let Some(to) = self.direct_address(o, output, block, tile.first) {
                addresses[output.slot as usize] = to;
            }
        }
    }

    /// Stores the outputs that phase `p` computes for one tile of a long row.
    ///
    /// # Safety
    /// The contract of [`RowExecution::run_block`] holds, with a block of one row and a tile of this row, whose values
    /// are at `addresses`.
    unsafe fn store_tile(
        &self,
        p: usize,
        block: &RowBlock<'_>,
        tile: &TileExtent<'_>,
        addresses: &[*mut u8],
        raw: *mut u8,
    ) {
        let is_last = p + 1 == self.schedule.phases.len();
        let is_stored = |slot: usize| match self.schedule.granularity[slot] {
            Granularity::PerElement => self.schedule.phase[slot] == p,
            Granularity::Uniform | Granularity::PerRow => is_last,
        };
        for (o, output) in self.full_outputs().filter(|(_, o)| is_stored(o.slot as usize)) {
            let from = addresses[output.slot as usize];
            if self.direct_address(o, output, block, tile.first) != Some(from) {
                // SAFETY: the tile is within the row and the row within the operands, and the output's slot and `raw`
                // have memory for a tile (the contract of this method).
                unsafe { self.store_output(o, output, block, tile, from, raw) };
            }
        }
    }
}
