//! Evaluation of a program over one segment of an index space, tile by tile.
//!
//! Within a segment, an input is contiguous (read in place), uniform, or strided (gathered into the tile first). The
//! caller consumes the results: `map` stores them, `reduce` accumulates them.

use crate::program::execute::{TileExtent, execute};
use crate::program::kernel_schedule::KernelSchedule;
use crate::program::loader::gather;
use crate::program::prepared::{PreparedInput, PreparedProgram};
use crate::program::slot::Granularity;
use crate::strided::{self, AccessPattern, StridedAxis, access_pattern, period};
use pellucid_ir::kernel::Params;
use pellucid_runtime::list::List;
use pellucid_runtime::scratch::padded;

/// The approximate size of all buffers of a tile together, in bytes. It determines the length of a tile.
///
/// Values that a fused chain passes on in registers have no buffer, so only a few buffers are in use at a time. Longer
/// loop calls save more time than keeping all buffers in L1.
const BUFFER_BYTES: usize = 64 << 10;

/// A program, scheduled for the access patterns of its inputs in a segment.
pub(crate) struct Evaluator<'a> {
    /// The program.
    pub(crate) program: &'a PreparedProgram,
    /// The schedule of the program for these inputs.
    pub(crate) schedule: &'a KernelSchedule,
    /// The axes of a segment.
    pub(crate) inner: &'a [StridedAxis],
    /// The access pattern of every input.
    patterns: List<AccessPattern, 8>,
    /// True for each input whose elements are copied to a buffer before the results of a tile are written.
    staged: List<bool, 8>,
    /// For each input, the number of elements after which it repeats, if [`Evaluator::begin_segment`] copies it to a
    /// buffer for all tiles; otherwise 0.
    periods: List<usize, 8>,
    /// The bytes of every uniform.
    uniforms: List<u64, 8>,
    /// The maximum number of elements in a tile; `usize::MAX` if no value needs a buffer.
    pub(crate) tile_len: usize,
    /// Whether results are written with non-temporal stores, where the schedule allows it.
    pub(crate) stream: bool,
}

/// The addresses of all values while a segment is evaluated.
pub(crate) struct TileFrame {
    /// The address of every slot's values.
    pub(crate) addresses: List<*mut u8, 32>,
    /// The scratch memory for one tile of values of any type. Its contents are not used by a later instruction.
    pub(crate) raw: *mut u8,
    /// For each input, the buffer of its repeated elements; unused if the input is not repeated.
    repeated: List<*mut u8, 8>,
}

/// Returns the number of elements in a tile whose buffers take `width` bytes per element.
pub(crate) fn tile_capacity(width: usize) -> usize {
    let fits = BUFFER_BYTES / width.max(1);
    (fits / 128 * 128).clamp(128, 2048)
}

impl<'a> Evaluator<'a> {
    /// Schedules a program for segments over the axes `inner`.
    ///
    /// `staged(k)` is true if input `k` must be copied to a buffer although it is contiguous. `own_results` returns
    /// true if the evaluator needs no memory for the results of a schedule, because there are none or the caller
    /// replaces their addresses by its own. Buffers then do not limit the length of a tile, unless other values need
    /// them.
    pub(crate) fn new(
        program: &'a PreparedProgram,
        params: &Params,
        inner: &'a [StridedAxis],
        staged: impl Fn(usize) -> bool,
        own_results: impl Fn(&KernelSchedule) -> bool,
    ) -> Evaluator<'a> {
        let staged: List<bool, 8> = (0..program.inputs.len()).map(staged).collect();
        let pattern = |(k, input): (usize, &PreparedInput)| match access_pattern(inner, k, input.size) {
            AccessPattern::Dense if staged[k] => AccessPattern::Strided,
            other => other,
        };
        let patterns: List<AccessPattern, 8> = program.inputs.iter().enumerate().map(pattern).collect();
        let granularity = |k: usize| match patterns[k] {
            AccessPattern::Uniform => Granularity::Uniform,
            _ => Granularity::PerElement,
        };
        let schedule = program.schedule(&granularity);
        let in_place = program.inputs.iter().zip(&patterns).enumerate().all(|(k, (input, &pattern))| {
            // Starting with the 65th input, a uniform input is scheduled as a tile and gathered with stride 0.
            schedule.granularity[k] == Granularity::Uniform || pattern == AccessPattern::Dense && input.load.is_none()
        });
        let unbounded = in_place && !schedule.has_inner && own_results(schedule);
        let tile_len = if unbounded { usize::MAX } else { tile_capacity(schedule.buffer_width) };
        Evaluator {
            program,
            schedule,
            inner,
            patterns,
            periods: staged.iter().map(|_| 0).collect(),
            staged,
            uniforms: program.uniform_values(params, 0),
            tile_len,
            stream: false,
        }
    }

    /// Gathers inputs that repeat within a tile only once in each segment, instead of for each tile.
    pub(crate) fn gather_repeated_inputs_once(&mut self) {
        for (k, input) in self.program.inputs.iter().enumerate() {
            let is_gathered = self.patterns[k] == AccessPattern::Strided && !self.staged[k] && input.load.is_none();
            if is_gathered && self.schedule.granularity[k] == Granularity::PerElement {
                let period = period(self.inner, k, input.size);
                self.periods[k] = period.filter(|&period| period <= self.tile_len).unwrap_or(0);
            }
        }
    }

    /// Returns for each input the number of elements of its buffer of repeated elements: a tile can begin at any
    /// element of the period.
    fn repeated_len(&self, k: usize) -> usize {
        if self.periods[k] == 0 { 0 } else { self.periods[k] + self.tile_len }
    }

    /// Returns true if only the first segment needs [`Evaluator::begin_segment`]: all inputs are read in place, and no
    /// instruction computes a value that is constant in a segment and differs between segments.
    pub(crate) fn reads_in_place(&self) -> bool {
        let inputs = self.program.inputs.iter().zip(&self.staged).zip(&self.schedule.granularity);
        let has_head = self.schedule.phases[0].head.end > 0;
        let mut are_in_place = inputs.map(|((input, &staged), &granularity)| {
            !staged && input.load.is_none() && (granularity == Granularity::PerElement || !has_head)
        });
        self.tile_len == usize::MAX && are_in_place.all(|is_in_place| is_in_place)
    }

    /// Evaluates elements `start..start + n` of a segment, if [`Evaluator::reads_in_place`]. The frame has the
    /// addresses of the results.
    ///
    /// # Safety
    /// [`Evaluator::begin_segment`] was called for one segment. *Frame* and *Operands* of that method hold, and *Range*
    /// and *Results* of [`Evaluator::run_tile`].
    #[inline]
    pub(crate) unsafe fn run_in_place(&self, frame: &mut TileFrame, bases: &[*mut u8], start: usize, n: usize) {
        let inputs = self.program.inputs.iter().zip(&self.patterns).zip(bases);
        for (address, ((input, &pattern), &base)) in frame.addresses.iter_mut().zip(inputs) {
            *address = match pattern {
                AccessPattern::Dense => base.wrapping_add(start * input.size),
                _ => base,
            };
        }
        let instrs = &self.schedule.instrs[self.schedule.phases[0].tiles.clone()];
        // SAFETY: every input is contiguous or one value (*Operands*), and its slot has its address; every other slot
        // has the address of a cell or of a result (*Frame*, *Results*), because an evaluator without a maximum tile
        // length has no buffers. The tile has one row and no reductions.
        unsafe { execute(instrs, &frame.addresses, &TileExtent { stream: self.stream, ..TileExtent::single_row(n) }) };
    }

    /// Returns the size of an element and the access pattern of every input.
    pub(crate) fn input_patterns(&self) -> impl Iterator<Item = (usize, AccessPattern)> {
        self.program.inputs.iter().zip(&self.patterns).map(|(input, &pattern)| (input.size, pattern))
    }

    /// Returns the number of elements for which buffers are allocated.
    fn buffer_len(&self) -> usize {
        if self.tile_len == usize::MAX { 0 } else { self.tile_len }
    }

    /// Returns the bytes of scratch that a frame needs.
    pub(crate) fn scratch_bytes(&self) -> usize {
        let inputs = self.program.inputs.iter().enumerate();
        let repeated: usize = inputs.map(|(k, input)| padded(self.repeated_len(k) * input.size)).sum();
        padded(self.schedule.granularity.len() * 8) + self.buffer_len() * (8 + self.schedule.buffer_width) + repeated
    }

    /// Lays out a frame in `scratch`.
    ///
    /// # Safety
    /// `scratch` is aligned to 64 bytes and valid for reads and writes of [`Evaluator::scratch_bytes`] bytes while the
    /// frame is in use.
    pub(crate) unsafe fn frame(&self, scratch: *mut u8) -> TileFrame {
        let slots = self.schedule.granularity.len();
        let raw = scratch.wrapping_add(padded(slots * 8));
        let len = self.buffer_len();
        let buffers = raw.wrapping_add(len * 8);
        let address = |slot: usize| match self.schedule.granularity[slot] {
            Granularity::PerElement => buffers.wrapping_add(self.schedule.buffer_offset[slot] * len),
            _ => scratch.wrapping_add(slot * 8),
        };
        let mut next = buffers.wrapping_add(len * self.schedule.buffer_width);
        let buffer = |(k, input): (usize, &PreparedInput)| {
            let buffer = next;
            next = next.wrapping_add(padded(self.repeated_len(k) * input.size));
            buffer
        };
        let repeated = self.program.inputs.iter().enumerate().map(buffer).collect();
        let frame = TileFrame { addresses: (0..slots).map(address).collect(), raw, repeated };
        let first = self.program.inputs.len();
        for (address, value) in frame.addresses[first..].iter().zip(&self.uniforms) {
            // SAFETY: a uniform is not a per-element value, so its address is one of the eight-byte cells at the start
            // of the scratch, which is valid for writes (this function's contract).
            unsafe { address.cast::<u64>().write(*value) };
        }
        frame
    }

    /// Begins a segment: loads the uniform inputs and executes the instructions that run once per segment.
    ///
    /// # Safety
    /// - *Frame*: `frame` was created by [`Evaluator::frame`] of this evaluator, and its scratch is still valid.
    /// - *Operands*: `bases[k]` is the address of the first element of input `k` in the segment, whose elements over
    ///   the axes of the evaluator are aligned to their size and valid for reads.
    pub(crate) unsafe fn begin_segment(&self, frame: &mut TileFrame, bases: &[*mut u8]) {
        for (k, input) in self.program.inputs.iter().enumerate() {
            if self.schedule.granularity[k] == Granularity::Uniform {
                match input.load {
                    // SAFETY: by this function's contract, the input is valid for reads of one element (*Operands*),
                    // and its cell for writes of one value (*Frame*).
                    Some(load) => unsafe { load.run(frame.addresses[k], bases[k], 1) },
                    None if self.staged[k] => {
                        // SAFETY: by this function's contract, the input is valid for reads of one element
                        // (*Operands*), and its cell in the scratch for writes of eight bytes (*Frame*).
                        unsafe { frame.addresses[k].copy_from_nonoverlapping(bases[k], input.size) }
                    }
                    None => frame.addresses[k] = bases[k],
                }
            }
            if self.periods[k] > 0 {
                let n = self.repeated_len(k).min(strided::element_count(self.inner));
                // SAFETY: by this function's contract, the first `n` elements of the input are valid for reads
                // (*Operands*), and the buffer in the scratch for writes of `repeated_len` elements (*Frame*).
                unsafe { gather(frame.repeated[k], input.size, self.inner, k, bases[k], 0, n) }
            }
        }
        let len = if self.tile_len == usize::MAX { 1 } else { self.tile_len };
        let head = ..self.schedule.phases[0].head.end;
        // SAFETY: by this function's contract, every slot has the address of its cell or of its buffer of `len`
        // elements, all disjoint (*Frame*), or of the input's element (*Operands*). The tile has one row, no streaming
        // and no reductions.
        unsafe { execute(&self.schedule.instrs[head], &frame.addresses, &TileExtent::single_row(len)) };
    }

    /// Evaluates elements `start..start + n` of the segment; `n` is at most [`Evaluator::tile_len`].
    ///
    /// Before the call, the caller may replace the address of a result in the frame by an address in its own memory.
    ///
    /// # Safety
    /// - *Segment*: [`Evaluator::begin_segment`] was called for this segment with this frame and these `bases`, and the
    ///   clauses of that method still hold.
    /// - *Range*: `start + n` is at most the number of elements of the segment.
    /// - *Results*: every result address that the caller replaced is valid for writes of `n` values. With
    ///   [`Evaluator::stream`], it is aligned to the size of a value. A result overlaps an input only if the input is
    ///   staged, or if both have the same address and element size and no later instruction reads the input.
    #[inline]
    pub(crate) unsafe fn run_tile(&self, frame: &mut TileFrame, bases: &[*mut u8], start: usize, n: usize) {
        // SAFETY: by this function's contract, elements `start..start + n` of every input are valid for reads
        // (*Segment*, *Range*); buffers and `raw` hold `n <= tile_len` values. A buffer of repeated elements has `n`
        // elements from each element of the period on, or all elements of the segment. Every slot then has the address
        // of a cell, a buffer, input elements or memory of the caller (*Results*), as `execute` requires for one row
        // without reductions.
        unsafe {
            for (k, input) in self.program.inputs.iter().enumerate() {
                match (self.patterns[k], self.schedule.granularity[k]) {
                    (_, Granularity::Uniform) => continue,
                    _ if self.periods[k] > 0 => {
                        frame.addresses[k] = frame.repeated[k].add(start % self.periods[k] * input.size);
                    }
                    (AccessPattern::Dense, _) => {
                        let from = bases[k].add(start * input.size);
                        match input.load {
                            Some(load) => load.run(frame.addresses[k], from, n),
                            None => frame.addresses[k] = from,
                        }
                    }
                    _ => {
                        let to = if input.load.is_some() { frame.raw } else { frame.addresses[k] };
                        gather(to, input.size, self.inner, k, bases[k], start, n);
                        if let Some(load) = input.load {
                            load.run(frame.addresses[k], to, n);
                        }
                    }
                }
            }
            let instrs = &self.schedule.instrs[self.schedule.phases[0].tiles.clone()];
            execute(instrs, &frame.addresses, &TileExtent { stream: self.stream, ..TileExtent::single_row(n) });
        }
    }
}
