//! `Row`: a program with reductions over rows among its steps.
//!
//! Short rows are worked on in blocks of several, in one tile; a row whose values fit the scratch
//! makes a tile of its own; a longer one is walked tile by tile once a phase, and only values that a
//! later phase reads are kept for the whole row.

use crate::operand::Operand;
use crate::program::evaluate::tile_capacity;
use crate::program::fold::{CHUNK, RunningFold};
use crate::program::loader::{fill, gather, scatter};
use crate::program::loops::{self, StreamLoop};
use crate::program::lower::{Prepared, PreparedInput, PreparedOutput};
use crate::program::schedule::{Extent, Granularity, KernelSchedule, execute};
use crate::program::strided::{self, AccessPattern, Cursor, StridedAxes, StridedAxis};
use pellucid_ir::kernel::Row;
use pellucid_ir::{Error, Result, Shape};
use pellucid_runtime::list::List;
use pellucid_runtime::scratch::{self, padded};
use pellucid_runtime::threads::{GRAIN, split};
use std::ops::Range;

/// Bytes of buffers for a block of rows; one row alone may take twice as many before it is cut.
const BLOCK_BYTES: usize = 32 << 10;

/// Rows of at least so many elements are worth being used where they lie, one by one.
const LONG: usize = 128;

/// Values between buffers: were they a whole number of pages apart, as rows of 1024 values are, loads
/// would wait for stores to other buffers whose addresses end alike.
const STAGGER: usize = 64;

/// Rows in a block at most.
const MAX_ROWS: usize = 64;

/// How an operand is reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RowAccess {
    /// All rows one after the other.
    Dense,
    /// Every row is dense.
    Rows,
    /// Any other way.
    Strided,
}

/// The shape to which all operands broadcast.
pub(crate) fn common_shape<'a>(
    op: &'static str,
    operands: impl Iterator<Item = &'a Operand<'a>> + Clone,
) -> Result<Shape> {
    let mut shape = Shape::scalar();
    for operand in operands.clone() {
        if *operand.layout.shape() != shape {
            shape = shape.broadcast(operand.layout.shape()).ok_or_else(|| {
                Error::shapes(op, operands.clone().map(|o| o.layout.shape()), "they must broadcast to one shape")
            })?;
        }
    }
    Ok(shape)
}

/// Runs a row program.
pub(crate) fn run_row(kernel: &Row, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
    let program = Prepared::for_program(&kernel.program)?;
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

    let class = |k: usize| if program.inputs[k].per_row { Granularity::PerRow } else { Granularity::PerElement };
    let linked = program.schedule_rows(length, class);
    let sizes = program.inputs.iter().map(|i| (i.size, i.per_row));
    let sizes = sizes.chain(program.outputs.iter().map(|o| (o.size, o.per_row)));
    let dense = |axes: &[StridedAxis], k: usize, size: usize| {
        strided::element_count(axes) == 1 || strided::access_pattern(axes, k, size) == AccessPattern::Dense
    };
    let reach = |(k, (size, per_row)): (usize, (usize, bool))| match per_row {
        true if dense(&outer, k, size) => RowAccess::Dense,
        true => RowAccess::Strided,
        false if dense(&all, k, size) => RowAccess::Dense,
        false if dense(&inner, k, size) => RowAccess::Rows,
        false => RowAccess::Strided,
    };
    let reach: List<RowAccess, 8> = sizes.enumerate().map(reach).collect();

    let fits = BLOCK_BYTES / (linked.buffer_width + 8);
    let phased = length > 2 * fits;
    let one_by_one = length >= LONG && reach.contains(&RowAccess::Rows);
    let block = if phased || one_by_one { 1 } else { (fits / length.max(1)).clamp(1, MAX_ROWS).min(rows) };
    let widest = program.outputs.iter().filter(|o| !o.per_row).map(|o| o.size).max().unwrap_or(0);
    let stream = loops::streaming(rows * length * widest, || {
        bases[inputs.len()..].iter().any(|to| bases[..inputs.len()].contains(to))
    });
    let chains_stream = stream.is_some()
        && (inputs.len()..).zip(&program.outputs).filter(|(_, o)| linked.streams[o.slot as usize]).all(|(k, o)| {
            let dense = reach[k] == RowAccess::Dense || block == 1 && reach[k] == RowAccess::Rows;
            dense && bases[k].addr().is_multiple_of(o.size)
        });
    let job = Job {
        program,
        linked,
        uniforms: program.uniform_values(&kernel.params, length),
        outer: &outer,
        all: &all,
        bases: &bases,
        reach,
        length,
        block,
        tile: if phased {
            tile_capacity(linked.buffer_width + 8)
        } else {
            (block * length).next_multiple_of(64) + STAGGER
        },
        phased,
        staged: (0..inputs.len()).map(|k| must_stage(program, linked, &bases, k)).collect(),
        stream,
        chains_stream,
        in_place: false,
    };
    let in_place = job.can_work_in_place();
    let job = Job { in_place, ..job };
    let bytes: usize = operands().map(|o| o.dtype.size()).sum::<usize>() + 2 * program.steps.len();
    let grain = GRAIN.div_ceil((bytes * length * block).max(64));
    split(rows.div_ceil(block), grain, |r| job.rows(r.start * block..rows.min(r.end * block)));
    Ok(())
}

/// True if an output in the memory of input `k` may be written before `k` is read for the last time.
fn must_stage(program: &Prepared, linked: &KernelSchedule, bases: &[*mut u8], k: usize) -> bool {
    let slot = k as u16;
    let aliases = |o: usize| bases[program.inputs.len() + o] == bases[k];
    let stored = program.outputs.iter().any(|o| o.slot == slot);
    let last_phase = linked.phases.iter().rposition(|p| p.reads.contains(&slot)).unwrap_or(0);
    let last_read = linked.instrs.iter().rposition(|c| c.operands().contains(&slot)).unwrap_or(0);
    let folded = linked.folds.iter().any(|f| f.operands().any(|s| s == slot));
    (0..program.outputs.len()).filter(|&o| aliases(o)).any(|o| {
        let output = &program.outputs[o];
        let made = output.slot as usize;
        let written = linked.instrs.iter().position(|c| c.into == output.slot).unwrap_or(usize::MAX);
        let same_phase_fold = folded && linked.phase.get(made).is_some_and(|&p| p <= last_phase);
        program.inputs[k].per_row || stored || written < last_read || linked.phase[made] < last_phase || same_phase_fold
    })
}

struct Job<'a> {
    program: &'a Prepared,
    linked: &'a KernelSchedule,
    uniforms: List<u64, 8>,
    outer: &'a [StridedAxis],
    /// Outer and inner axes as one space, merged.
    all: &'a [StridedAxis],
    bases: &'a [*mut u8],
    reach: List<RowAccess, 8>,
    /// Elements of a row.
    length: usize,
    /// Rows of a block.
    block: usize,
    /// Elements of a tile.
    tile: usize,
    /// True if a row takes several tiles.
    phased: bool,
    /// Inputs that are copied aside before anything is written.
    staged: List<bool, 8>,
    /// For outputs too large to be kept in any cache.
    stream: Option<StreamLoop>,
    /// True if chains write those past the caches themselves.
    chains_stream: bool,
    /// True if one row after the other is used and made where it lies, and no value is there once a row.
    in_place: bool,
}

// SAFETY: threads work on disjoint rows, which lie in disjoint memory of every output and, in place,
// of the input that is the same view.
unsafe impl Sync for Job<'_> {}

/// The rows at hand, and where their values lie.
struct Block<'a> {
    /// The number of the first row, and how many there are.
    first: usize,
    rows: usize,
    /// Where each operand's first row begins.
    starts: &'a [*mut u8],
}

impl Job<'_> {
    fn rows(&self, range: Range<usize>) {
        scratch::with(self.scratch(), |scratch: *mut u8| {
            // SAFETY: `scratch` has the size asked for, and the rows lie within the operands.
            unsafe {
                let (places, raw) = self.frame(scratch);
                let mut at = places.clone();
                let mut cursor = Cursor::new(self.outer, self.bases, range.start);
                let mut first = range.start;
                while first < range.end {
                    let rows = self.block.min(range.end - first);
                    let block = Block { first, rows, starts: &cursor.addresses };
                    if !self.in_place {
                        self.load_row_inputs(&block, &mut at, raw);
                    }
                    if self.phased {
                        self.phases(&block, &places, &mut at, raw);
                    } else {
                        self.whole(&block, &places, &mut at, raw);
                    }
                    if !self.in_place {
                        self.store_row_outputs(&block, &at, raw);
                    }
                    first += rows;
                    if self.block == 1 {
                        cursor.advance();
                    } else if first < range.end {
                        cursor = Cursor::new(self.outer, self.bases, first);
                    }
                }
            }
        });
        if self.stream.is_some() {
            loops::store_fence();
        }
    }

    /// Bytes of scratch that [`Job::frame`] lays out.
    fn scratch(&self) -> usize {
        let cells = self.linked.granularity.len() * padded(self.block * 8);
        let whole = if self.phased { self.linked.granularity.len() * padded(self.length * 8) } else { 0 };
        cells + (self.tile * 8).max(padded(self.block * 8)) + padded(self.tile * self.linked.buffer_width) + whole
    }

    /// A place for every value, and one for raw elements.
    unsafe fn frame(&self, scratch: *mut u8) -> (List<*mut u8, 32>, *mut u8) {
        let slots = self.linked.granularity.len();
        let cell = padded(self.block * 8);
        let raw = scratch.wrapping_add(slots * cell);
        let buffers = raw.wrapping_add((self.tile * 8).max(cell));
        let mut whole = buffers.wrapping_add(padded(self.tile * self.linked.buffer_width));
        let mut place = |slot: usize| match self.linked.granularity[slot] {
            Granularity::PerElement if self.phased && self.keeps_row(slot) => {
                let at = whole;
                whole = whole.wrapping_add(padded(self.length * 8));
                at
            }
            Granularity::PerElement => buffers.wrapping_add(self.linked.buffer_offset[slot] * self.tile),
            _ => scratch.wrapping_add(slot * cell),
        };
        let at: List<*mut u8, 32> = (0..slots).map(&mut place).collect();
        let first = self.program.inputs.len();
        for (at, value) in at[first..].iter().zip(&self.uniforms) {
            // SAFETY: a uniform's cell has eight bytes.
            unsafe { at.cast::<u64>().write(*value) };
        }
        (at, raw)
    }

    /// True if a slot's buffer holds the row, not a tile of it, where rows take several tiles.
    fn keeps_row(&self, slot: usize) -> bool {
        self.linked.crosses[slot] && slot >= self.program.inputs.len()
            || self.staged.get(slot).copied().unwrap_or(false)
    }

    /// Makes the inputs of one value a row available.
    unsafe fn load_row_inputs(&self, block: &Block<'_>, at: &mut [*mut u8], raw: *mut u8) {
        for (k, input) in self.program.inputs.iter().enumerate().filter(|(_, i)| i.per_row) {
            // SAFETY: `rows` values of the operand, and cells for as many.
            unsafe {
                let cell = at[k];
                let dense = self.reach[k] == RowAccess::Dense;
                let from = if dense { self.bases[k].add(block.first * input.size) } else { raw };
                if !dense {
                    gather(from, input.size, self.outer, k, self.bases[k], block.first, block.rows);
                }
                match input.load {
                    Some(load) => load.run(cell, from, block.rows),
                    None => std::ptr::copy_nonoverlapping(from, cell, block.rows * input.size),
                }
            }
        }
    }

    /// Stores the outputs of one value a row.
    unsafe fn store_row_outputs(&self, block: &Block<'_>, at: &[*mut u8], raw: *mut u8) {
        let inputs = self.program.inputs.len();
        for (o, output) in self.program.outputs.iter().enumerate().filter(|(_, o)| o.per_row) {
            let (k, from) = (inputs + o, at[output.slot as usize]);
            // SAFETY: `rows` values of the operand, and as many cells.
            unsafe {
                let dense = self.reach[k] == RowAccess::Dense;
                let to = if dense { self.bases[k].add(block.first * output.size) } else { raw };
                if self.linked.granularity[output.slot as usize] == Granularity::Uniform {
                    let mut one = 0u64;
                    fill(to, stored(output, from, &mut one), output.size, block.rows);
                } else {
                    store_values(output, to, from, block.rows);
                }
                if !dense {
                    scatter(to, output.size, self.outer, k, self.bases[k], block.first, block.rows);
                }
            }
        }
    }

    /// Where elements `first..` of the block's rows lie in operand `k`, if they lie there densely.
    fn dense(&self, k: usize, block: &Block<'_>, size: usize, first: usize) -> Option<*mut u8> {
        match self.reach[k] {
            RowAccess::Dense => Some(self.bases[k].wrapping_add((block.first * self.length + first) * size)),
            RowAccess::Rows if block.rows == 1 => Some(block.starts[k].wrapping_add(first * size)),
            _ => None,
        }
    }

    /// Makes elements `first..first + n` of the block's rows of input `k` available in `buffer`, or
    /// where they lie.
    unsafe fn load(
        &self,
        k: usize,
        input: &PreparedInput,
        block: &Block<'_>,
        first: usize,
        n: usize,
        buffer: *mut u8,
        raw: *mut u8,
    ) -> *mut u8 {
        // SAFETY: the elements lie within the operand, the buffers have room for `n`.
        unsafe {
            match (self.dense(k, block, input.size, first), input.load) {
                (Some(from), Some(load)) => load.run(buffer, from, n),
                (Some(from), None) if self.staged[k] => std::ptr::copy_nonoverlapping(from, buffer, n * input.size),
                (Some(from), None) => return from,
                (None, load) => {
                    let to = if load.is_some() { raw } else { buffer };
                    let start = block.first * self.length + first;
                    gather(to, input.size, self.all, k, self.bases[k], start, n);
                    if let Some(load) = load {
                        load.run(buffer, to, n);
                    }
                }
            }
            buffer
        }
    }

    /// Stores elements `first..first + len` of each of the block's rows of output `o`.
    unsafe fn store(
        &self,
        o: usize,
        output: &PreparedOutput,
        block: &Block<'_>,
        tile: &Extent<'_>,
        from: *mut u8,
        raw: *mut u8,
    ) {
        let k = self.program.inputs.len() + o;
        let n = tile.rows * tile.len;
        // SAFETY: the elements lie within the operand, `raw` has room for `n`.
        unsafe {
            let place = self.dense(k, block, output.size, tile.first);
            let to = place.unwrap_or(raw);
            let size = self.program.sizes[output.slot as usize] as usize;
            match self.linked.granularity[output.slot as usize] {
                Granularity::PerElement => match (self.stream, output.store) {
                    (Some(stream), None) if place.is_some() && to != from => stream(to, from, n * output.size),
                    _ => store_values(output, to, from, n),
                },
                class => {
                    for row in 0..tile.rows {
                        let value = if class == Granularity::PerRow { from.add(row * size) } else { from };
                        let mut one = 0u64;
                        let value = stored(output, value, &mut one);
                        fill(to.add(row * tile.len * output.size), value, output.size, tile.len);
                    }
                }
            }
            if place.is_none() {
                let start = block.first * self.length + tile.first;
                scatter(to, output.size, self.all, k, self.bases[k], start, n);
            }
        }
    }

    /// Whether output `o` is written by its last instruction, and where for elements from `first` on.
    fn direct(&self, o: usize, output: &PreparedOutput, block: &Block<'_>, first: usize) -> Option<*mut u8> {
        let slot = output.slot as usize;
        let tile =
            self.linked.granularity[slot] == Granularity::PerElement && !output.per_row && output.direct.is_some();
        if !tile || self.stream.is_some() && !(self.chains_stream && self.linked.streams[slot]) {
            return None;
        }
        self.dense(self.program.inputs.len() + o, block, output.size, first)
    }

    /// The slots of inputs and outputs.
    fn slots(&self) -> impl Iterator<Item = usize> {
        (0..self.program.inputs.len()).chain(self.program.outputs.iter().map(|o| o.slot as usize))
    }

    fn can_work_in_place(&self) -> bool {
        let used = |k: usize| {
            let input = &self.program.inputs[k];
            !input.per_row && input.load.is_none() && !self.staged[k]
        };
        let made = |output: &PreparedOutput| {
            let slot = output.slot as usize;
            let streams = self.stream.is_none() || self.chains_stream && self.linked.streams[slot];
            self.linked.granularity[slot] == Granularity::PerElement
                && !output.per_row
                && output.direct.is_some()
                && streams
        };
        self.block == 1
            && self.length > 0
            && !self.reach.contains(&RowAccess::Strided)
            && (0..self.program.inputs.len()).all(used)
            && self.program.outputs.iter().all(made)
    }

    /// Full outputs with their numbers.
    fn full_outputs(&self) -> impl Iterator<Item = (usize, &PreparedOutput)> {
        self.program.outputs.iter().enumerate().filter(|(_, o)| !o.per_row)
    }

    /// Runs the program on whole rows.
    unsafe fn whole(&self, block: &Block<'_>, places: &[*mut u8], at: &mut [*mut u8], raw: *mut u8) {
        let folds = if self.length <= CHUNK { &self.linked.folds[..] } else { &[] };
        let tile =
            &Extent { rows: block.rows, len: self.length, first: 0, scratch: raw, stream: self.chains_stream, folds };
        let n = tile.rows * tile.len;
        // SAFETY: every slot has room for its values of the block.
        unsafe {
            if self.in_place {
                for (slot, &start) in self.slots().zip(block.starts) {
                    at[slot] = start;
                }
            } else {
                if n > 0 {
                    for (k, input) in self.program.inputs.iter().enumerate().filter(|(_, i)| !i.per_row) {
                        at[k] = self.load(k, input, block, 0, n, places[k], raw);
                    }
                }
                for (o, output) in self.full_outputs() {
                    if let Some(to) = self.direct(o, output, block, 0) {
                        at[output.slot as usize] = to;
                    }
                }
            }
            for phase in &self.linked.phases {
                execute(&self.linked.instrs[phase.head.start..phase.tiles.end], at, tile);
                for f in self.linked.folds[phase.folds.clone()].iter().filter(|f| !f.chained || folds.is_empty()) {
                    f.fold.reduce_rows(at[f.into as usize], f.values(at), tile.rows, tile.len, raw);
                }
            }
            if n > 0 && !self.in_place {
                for (o, output) in self.full_outputs() {
                    let from = at[output.slot as usize];
                    if self.direct(o, output, block, 0) != Some(from) {
                        self.store(o, output, block, tile, from, raw);
                    }
                }
            }
        }
    }

    /// Runs the program on one long row, phase by phase, each tile by tile.
    unsafe fn phases(&self, block: &Block<'_>, places: &[*mut u8], at: &mut [*mut u8], raw: *mut u8) {
        // SAFETY: every slot has room for a tile of the row, or the row.
        unsafe {
            for (k, input) in self.program.inputs.iter().enumerate().filter(|(k, i)| self.staged[*k] && !i.per_row) {
                for first in (0..self.length).step_by(self.tile) {
                    let n = self.tile.min(self.length - first);
                    let size = self.program.sizes[k] as usize;
                    self.load(k, input, block, first, n, places[k].add(first * size), raw);
                }
            }
            let last = self.linked.phases.len() - 1;
            for (p, phase) in self.linked.phases.iter().enumerate() {
                let head = &Extent::single_row(self.tile);
                execute(&self.linked.instrs[phase.head.clone()], at, head);
                let folds = &self.linked.folds[phase.folds.clone()];
                let mut running: List<RunningFold, 2> = folds.iter().map(|_| RunningFold::new()).collect();
                let stored = |slot: usize| {
                    if self.linked.granularity[slot] == Granularity::PerElement {
                        self.linked.phase[slot] == p
                    } else {
                        p == last
                    }
                };
                for first in (0..self.length).step_by(self.tile) {
                    let len = self.tile.min(self.length - first);
                    let tile = &Extent { first, stream: self.chains_stream, ..Extent::single_row(len) };
                    for (slot, place) in places
                        .iter()
                        .enumerate()
                        .filter(|(s, _)| self.linked.granularity[*s] == Granularity::PerElement && self.keeps_row(*s))
                    {
                        at[slot] = place.add(first * self.program.sizes[slot] as usize);
                    }
                    for &k in &phase.reads {
                        let k = k as usize;
                        if !self.staged[k] {
                            at[k] = self.load(k, &self.program.inputs[k], block, first, tile.len, places[k], raw);
                        }
                    }
                    for (o, output) in self.full_outputs() {
                        if let Some(to) = self.direct(o, output, block, first) {
                            at[output.slot as usize] = to;
                        }
                    }
                    execute(&self.linked.instrs[phase.tiles.clone()], at, tile);
                    for (f, running) in folds.iter().zip(&mut running) {
                        running.push(&f.fold, f.values(at), tile.len);
                    }
                    for (o, output) in self.full_outputs().filter(|(_, o)| stored(o.slot as usize)) {
                        let from = at[output.slot as usize];
                        if self.direct(o, output, block, first) != Some(from) {
                            self.store(o, output, block, tile, from, raw);
                        }
                    }
                }
                for (f, running) in folds.iter().zip(&mut running) {
                    running.finish(&f.fold, at[f.into as usize]);
                }
            }
        }
    }
}

/// The bytes of one value as they are stored.
unsafe fn stored(output: &PreparedOutput, from: *mut u8, one: &mut u64) -> *const u8 {
    let Some(store) = output.store else { return from };
    let place = (&raw mut *one).cast::<u8>();
    // SAFETY: one value, and room for one of any type.
    unsafe { store.run(place, from, 1) };
    place
}

/// Stores `n` values densely.
unsafe fn store_values(output: &PreparedOutput, to: *mut u8, from: *const u8, n: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        match output.store {
            Some(store) => store.run(to, from, n),
            None if std::ptr::eq(to, from) => {}
            None => std::ptr::copy(from, to, n * output.size),
        }
    }
}
