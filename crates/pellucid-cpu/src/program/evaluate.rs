//! Evaluating a program over one segment of an index space, tile after tile.
//!
//! Within a segment an input is dense (used where it lies), one value, or strided (gathered into the
//! tile first). What is done with the results is the caller's affair: `map` stores them, `reduce`
//! accumulates them.

use crate::program::loader::gather;
use crate::program::lower::Prepared;
use crate::program::schedule::{Extent, Granularity, KernelSchedule, execute};
use crate::program::strided::{AccessPattern, Axis, lie};
use pellucid_ir::kernel::Params;
use pellucid_runtime::list::List;
use pellucid_runtime::scratch::padded;

/// Bytes of all buffers of a tile together. What a chain hands on in registers has none, so few of them are in use at a time:
/// more values to a call are worth more than an L1 for all.
const BUDGET: usize = 64 << 10;

/// A program linked for the way its inputs lie in a segment.
pub(crate) struct Evaluator<'a> {
    pub(crate) program: &'a Prepared,
    pub(crate) linked: &'a KernelSchedule,
    /// The axes of a segment.
    pub(crate) inner: &'a [Axis],
    lies: List<AccessPattern, 8>,
    /// Inputs that are copied before anything is written.
    staged: List<bool, 8>,
    uniforms: List<u64, 8>,
    /// The most values that may be evaluated at once.
    pub(crate) tile: usize,
    /// True if results pass the caches by, where they can.
    pub(crate) stream: bool,
}

/// Where every value of a program lies at the moment.
pub(crate) struct Frame {
    pub(crate) at: List<*mut u8, 32>,
    /// Room for a tile of values of any type, free between the steps.
    pub(crate) raw: *mut u8,
}

/// The number of values for a tile, if each takes `width` bytes in buffers.
pub(crate) fn tile_of(width: usize) -> usize {
    let fits = BUDGET / width.max(1);
    (fits / 128 * 128).clamp(128, 2048)
}

impl<'a> Evaluator<'a> {
    /// `staged` names inputs that must be copied into the tile although they are dense;
    /// `own_results` says that the caller has room for the results of any number of values.
    pub(crate) fn new(
        program: &'a Prepared,
        params: &Params,
        inner: &'a [Axis],
        staged: impl Fn(usize) -> bool,
        own_results: impl Fn(&KernelSchedule) -> bool,
    ) -> Evaluator<'a> {
        let staged: List<bool, 8> = (0..program.inputs.len()).map(staged).collect();
        let how = |(k, input): (usize, &crate::program::lower::Input)| match lie(inner, k, input.size) {
            AccessPattern::Dense if staged[k] => AccessPattern::Strided,
            other => other,
        };
        let lies: List<AccessPattern, 8> = program.inputs.iter().enumerate().map(how).collect();
        let class =
            |k: usize| if lies[k] == AccessPattern::Once { Granularity::Uniform } else { Granularity::PerElement };
        let linked = program.link(class);
        let in_place = program.inputs.iter().zip(&lies).enumerate().all(|(k, (input, &lie))| {
            // A 65th input that is one value is treated as a strided tile of it.
            linked.class[k] == Granularity::Uniform || lie == AccessPattern::Dense && input.load.is_none()
        });
        let unbounded = in_place && !linked.has_inner && own_results(linked);
        let tile = if unbounded { usize::MAX } else { tile_of(linked.width) };
        Evaluator {
            program,
            linked,
            inner,
            lies,
            staged,
            uniforms: program.uniform_values(params, 0),
            tile,
            stream: false,
        }
    }

    /// Bytes of scratch that a frame needs.
    pub(crate) fn scratch(&self) -> usize {
        let tile = if self.tile == usize::MAX { 0 } else { self.tile };
        padded(self.linked.class.len() * 8) + tile * (8 + self.linked.width)
    }

    /// A frame over `scratch`.
    ///
    /// # Safety
    /// `scratch` has [`Evaluator::scratch`] bytes, 64-byte aligned, for as long as the frame is used.
    pub(crate) unsafe fn frame(&self, scratch: *mut u8) -> Frame {
        let slots = self.linked.class.len();
        let raw = scratch.wrapping_add(padded(slots * 8));
        let tile = if self.tile == usize::MAX { 0 } else { self.tile };
        let buffers = raw.wrapping_add(tile * 8);
        let place = |slot: usize| match self.linked.class[slot] {
            Granularity::PerElement => buffers.wrapping_add(self.linked.place[slot] * tile),
            _ => scratch.wrapping_add(slot * 8),
        };
        let frame = Frame { at: (0..slots).map(place).collect(), raw };
        let first = self.program.inputs.len();
        for (at, value) in frame.at[first..].iter().zip(&self.uniforms) {
            // SAFETY: a uniform is of class `Once`, its cell has eight bytes.
            unsafe { at.cast::<u64>().write(*value) };
        }
        frame
    }

    /// Begins a segment whose operands begin at `bases`.
    ///
    /// # Safety
    /// `bases` are addresses of the operands of the evaluator's axes.
    pub(crate) unsafe fn begin(&self, frame: &mut Frame, bases: &[*mut u8]) {
        for (k, input) in self.program.inputs.iter().enumerate() {
            if self.linked.class[k] == Granularity::Uniform {
                match input.load {
                    // SAFETY: one element at the base, and a cell for it.
                    Some(load) => unsafe { load.run(frame.at[k], bases[k], 1) },
                    // SAFETY: as above.
                    None if self.staged[k] => unsafe { frame.at[k].copy_from_nonoverlapping(bases[k], input.size) },
                    None => frame.at[k] = bases[k],
                }
            }
        }
        let len = if self.tile == usize::MAX { 1 } else { self.tile };
        let head = self.linked.phases[0].head.clone();
        // SAFETY: every slot has its cell or its buffer.
        unsafe { execute(&self.linked.code[head], &frame.at, &Extent::one(len)) };
    }

    /// Evaluates elements `start..start + n` of the segment; `n` is at most [`Evaluator::tile`].
    ///
    /// # Safety
    /// As [`Evaluator::begin`], which was called for this segment; the slots of results that the
    /// caller placed itself have room for `n` values.
    #[inline]
    pub(crate) unsafe fn tile(&self, frame: &mut Frame, bases: &[*mut u8], start: usize, n: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            for (k, input) in self.program.inputs.iter().enumerate() {
                match (self.lies[k], self.linked.class[k]) {
                    (_, Granularity::Uniform) => continue,
                    (AccessPattern::Dense, _) => {
                        let from = bases[k].add(start * input.size);
                        match input.load {
                            Some(load) => load.run(frame.at[k], from, n),
                            None => frame.at[k] = from,
                        }
                    }
                    _ => {
                        let to = if input.load.is_some() { frame.raw } else { frame.at[k] };
                        gather(to, input.size, self.inner, k, bases[k], start, n);
                        if let Some(load) = input.load {
                            load.run(frame.at[k], to, n);
                        }
                    }
                }
            }
            let code = &self.linked.code[self.linked.phases[0].tiles.clone()];
            execute(code, &frame.at, &Extent { stream: self.stream, ..Extent::one(n) });
        }
    }
}
