//! Scheduling: the instructions of a lowered program, in execution order, for operands of given granularities.
//!
//! Every value has a [`Granularity`]: one value for the whole run (or segment), one for each row, or one for each
//! element. An instruction runs at the finest granularity among its operands, so that uniform subexpressions are
//! computed once. If an instruction combines a tile with a single value, the schedule selects the form of its loop that
//! broadcasts the value.
//!
//! Row reductions divide a program into phases: an instruction that depends on the result of a reduction runs in a
//! later phase than the reduction. If only a sum reads a product, the sum computes the product itself; short rows are
//! the exception, because they are summed side by side.
//!
//! A schedule depends only on the granularities of the inputs and on the length class of the rows. The schedules of a
//! program are kept in a list that only grows: a lookup takes no lock, and only the first run of each kind allocates.

use crate::program::fold::{FoldKernel, FoldValues, SHORT};
use crate::program::fuse::{self, FusedOp};
use crate::program::loops::{self, BinaryLoop, FillLoop, TernaryLoop, UnaryLoop};
use crate::program::lower::{KernelFn, Prepared, ValueSlot};
use pellucid_ir::Compute;
use pellucid_simd::Isa;
use std::ops::Range;
use std::sync::OnceLock;

/// The minimal length of rows that get loop calls of their own.
const LONG: usize = 128;

/// How many values a slot has.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Granularity {
    /// One value for the whole run or segment.
    Uniform,
    /// One value for each row.
    PerRow,
    /// One value for each element.
    PerElement,
}

/// The length of rows, as far as schedules depend on it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum RowLength {
    /// Rows that are reduced side by side.
    Short,
    /// Rows that are reduced one by one, but share loop calls.
    Medium,
    /// Rows that get loop calls of their own.
    Long,
}

impl RowLength {
    /// Returns the class of rows of `length` elements.
    pub(crate) fn classify(length: usize) -> RowLength {
        match length {
            ..=SHORT => RowLength::Short,
            _ if length < LONG => RowLength::Medium,
            _ => RowLength::Long,
        }
    }
}

/// The loop of a scheduled instruction, in the form that its operands require.
#[derive(Clone, Copy)]
pub(crate) enum LoopKind {
    /// A loop of one operand.
    Unary(UnaryLoop),
    /// A loop of two operands: the form for these operands, and the form for two tiles.
    Binary(BinaryLoop, BinaryLoop),
    /// A loop of three operands.
    Ternary(TernaryLoop),
    /// Repeats a value of a coarser granularity for every element of its row.
    Broadcast(FillLoop),
    /// Writes the position of every element within its row.
    RowIndex,
}

/// A scheduled instruction.
#[derive(Clone, Copy)]
pub(crate) struct ScheduledInstr {
    /// The loop.
    pub(crate) kernel: LoopKind,
    /// The granularity of the result.
    pub(crate) granularity: Granularity,
    /// The instruction reads per-row and per-element values. In a tile of several rows it runs row by row.
    pub(crate) mixed: bool,
    /// The slot of the result.
    pub(crate) into: ValueSlot,
    /// The slots of the operands.
    pub(crate) args: [ValueSlot; 3],
    /// The bytes of one value and the granularity, of the result and then of the operands.
    layouts: [(u8, Granularity); 4],
    /// The position of the instruction in a fused chain.
    pub(crate) fused: Option<FusedOp>,
}

/// A row reduction at the end of a phase.
pub(crate) struct RowReduction {
    /// The loops of the operation.
    pub(crate) fold: FoldKernel,
    /// The slot of the result.
    pub(crate) into: ValueSlot,
    /// The slot of the values, or of the first factors of the products that are summed.
    pub(crate) from: ValueSlot,
    /// The slot of the second factors, if products are summed.
    pub(crate) times: Option<ValueSlot>,
    /// A fused chain can compute the reduction: see [`Extent::folds`].
    pub(crate) chained: bool,
}

impl RowReduction {
    /// Returns the slots that the reduction reads.
    pub(crate) fn operands(&self) -> impl Iterator<Item = ValueSlot> {
        std::iter::once(self.from).chain(self.times)
    }

    /// Returns the values to reduce; `addresses` has the address of every slot.
    #[inline]
    pub(crate) fn values(&self, addresses: &[*mut u8]) -> FoldValues {
        let factors = self.times.map(|t| addresses[t as usize].cast_const());
        FoldValues { values: addresses[self.from as usize], factors }
    }
}

/// The instructions between two row reductions, and the reductions that end the phase.
pub(crate) struct Phase {
    /// The instructions on uniform and per-row values, and the broadcasts, which run first.
    pub(crate) head: Range<usize>,
    /// The other instructions on tiles.
    pub(crate) tiles: Range<usize>,
    /// The reductions that end the phase.
    pub(crate) folds: Range<usize>,
    /// The per-element inputs that the tiles and the reductions read.
    pub(crate) reads: Vec<ValueSlot>,
}

/// A program in execution order, with a buffer for every value.
pub(crate) struct KernelSchedule {
    /// The instructions of all phases.
    pub(crate) instrs: Vec<ScheduledInstr>,
    /// The row reductions of all phases.
    pub(crate) folds: Vec<RowReduction>,
    /// The phases, in execution order.
    pub(crate) phases: Vec<Phase>,
    /// The granularity of every slot. Broadcast values have slots after those of the program.
    pub(crate) granularity: Vec<Granularity>,
    /// The phase that computes every slot.
    pub(crate) phase: Vec<usize>,
    /// The start of the buffer of every per-element slot, in bytes per element of the tile.
    pub(crate) buffer_offset: Vec<usize>,
    /// The size of all buffers together, in bytes per element of the tile.
    pub(crate) buffer_width: usize,
    /// For every slot: a later phase reads the value, so that its buffer must hold a whole row.
    pub(crate) crosses: Vec<bool>,
    /// For every slot: an output that ends a fused chain and that no instruction reads. The chain can write it with
    /// non-temporal stores.
    pub(crate) streams: Vec<bool>,
    /// Some per-element result is not a direct output and not kept in registers by a chain, so that it needs a buffer.
    pub(crate) has_inner: bool,
}

/// The schedules of one program, one for each combination of row length and input granularities.
#[derive(Default)]
pub(crate) struct KernelScheduleCache {
    node: OnceLock<Box<ScheduleNode>>,
}

/// One element of the list of schedules.
struct ScheduleNode {
    /// The row length, and two bits for the granularity of each input.
    key: (RowLength, u128),
    schedule: KernelSchedule,
    next: KernelScheduleCache,
}

impl KernelScheduleCache {
    /// Returns the schedule of `program`, which is built on first use.
    ///
    /// `granularity(k)` is that of input `k`; inputs from index 64 on are scheduled as per-element inputs.
    pub(crate) fn get(
        &self,
        program: &Prepared,
        rows: RowLength,
        granularity: &dyn Fn(usize) -> Granularity,
    ) -> &KernelSchedule {
        let granularity = |i: usize| if i < 64 { granularity(i) } else { Granularity::PerElement };
        let count = program.inputs.len().min(64);
        let key = (rows, (0..count).fold(0u128, |key, i| key << 2 | granularity(i) as u128));
        let mut list = self;
        loop {
            let node = list.node.get_or_init(|| {
                Box::new(ScheduleNode {
                    key,
                    schedule: KernelSchedule::new(program, rows, &granularity),
                    next: KernelScheduleCache::default(),
                })
            });
            if node.key == key {
                return &node.schedule;
            }
            list = &node.next;
        }
    }
}

/// The slots of a schedule under construction.
struct SlotTable {
    /// The bytes of one value of every slot.
    sizes: Vec<u8>,
    /// The slot that holds the broadcast of each slot of the program. A value is broadcast once for all readers.
    broadcast: Vec<Option<ValueSlot>>,
}

impl KernelSchedule {
    /// Schedules a program for rows of one length class and inputs of the given granularities.
    fn new(program: &Prepared, rows: RowLength, input_granularity: &dyn Fn(usize) -> Granularity) -> KernelSchedule {
        let (mut schedule, phases) = KernelSchedule::with_phases(program, input_granularity);
        let mut slots = SlotTable { sizes: program.sizes.clone(), broadcast: vec![None; program.sizes.len()] };
        for phase in 0..phases {
            schedule.add_phase(program, rows, phase, &mut slots);
        }
        schedule.allocate_buffers(program, &slots.sizes);
        fuse::fuse_chains(&mut schedule, program, rows);
        let direct = |slot: ValueSlot| program.outputs.iter().any(|o| o.slot == slot && o.direct.is_some());
        let buffered = |i: &ScheduledInstr| {
            i.granularity == Granularity::PerElement && !direct(i.into) && i.fused.is_none_or(|f| f.is_stored)
        };
        schedule.has_inner = schedule.instrs.iter().any(buffered);
        schedule
    }

    /// Determines the granularity and the phase of every slot. Returns a schedule without instructions, and the number
    /// of phases.
    fn with_phases(program: &Prepared, input_granularity: &dyn Fn(usize) -> Granularity) -> (KernelSchedule, usize) {
        let inputs = program.inputs.len();
        let first_step = program.first_step();
        let mut granularity: Vec<Granularity> =
            (0..first_step).map(|s| if s < inputs { input_granularity(s) } else { Granularity::Uniform }).collect();
        // The phase that computes a slot, and the first phase that can read it.
        let mut phase = vec![0; first_step];
        let mut ready = vec![0; first_step];
        for step in &program.steps {
            let computed = step.args.iter().map(|&a| ready[a as usize]).max().unwrap_or(0);
            let reduces = matches!(step.kernel, KernelFn::Reduce(..));
            granularity.push(match step.kernel {
                KernelFn::Reduce(..) => Granularity::PerRow,
                KernelFn::RowIndex => Granularity::PerElement,
                _ => step.args.iter().map(|&a| granularity[a as usize]).max().unwrap_or(Granularity::Uniform),
            });
            phase.push(computed);
            ready.push(computed + reduces as usize);
        }
        let schedule = KernelSchedule {
            instrs: Vec::new(),
            folds: Vec::new(),
            phases: Vec::new(),
            granularity,
            phase,
            buffer_offset: Vec::new(),
            buffer_width: 0,
            crosses: Vec::new(),
            streams: Vec::new(),
            has_inner: false,
        };
        (schedule, ready.iter().copied().max().unwrap_or(0) + 1)
    }

    /// Appends the instructions and the reductions of one phase.
    fn add_phase(&mut self, program: &Prepared, rows: RowLength, phase: usize, slots: &mut SlotTable) {
        let inputs = program.inputs.len();
        let first_step = program.first_step();
        let steps = (0..program.steps.len()).filter(|s| self.phase[first_step + s] == phase);
        let is_fold = |s: &usize| matches!(program.steps[*s].kernel, KernelFn::Reduce(..));
        let (folds, plain): (Vec<usize>, Vec<usize>) = steps.partition(is_fold);
        let (mut tile_steps, row_steps): (Vec<usize>, Vec<usize>) =
            plain.into_iter().partition(|s| self.granularity[first_step + s] == Granularity::PerElement);
        let product_factors = |s: usize| self.product_factors(program, s).filter(|_| rows > RowLength::Short);
        let factors: Vec<Option<[ValueSlot; 2]>> = folds.iter().map(|&s| product_factors(s)).collect();
        for (&s, _) in folds.iter().zip(&factors).filter(|(_, f)| f.is_some()) {
            tile_steps.retain(|&t| first_step + t != program.steps[s].args[0] as usize);
        }
        let head = self.instrs.len();
        for s in row_steps {
            let instr = self.resolve(program, s, &slots.sizes);
            self.instrs.push(instr.expect("a loop exists for operands without tiles"));
        }
        let mut tiles: Vec<ScheduledInstr> = Vec::new();
        for s in tile_steps {
            loop {
                match self.resolve_with(program, s, &slots.sizes, &slots.broadcast) {
                    Ok(instr) => break tiles.push(instr),
                    Err(slot) => self.add_broadcast(slot, phase, slots),
                }
            }
        }
        let mut reductions: Vec<RowReduction> = Vec::new();
        for (s, factors) in folds.into_iter().zip(factors) {
            let KernelFn::Reduce(fold, _) = program.steps[s].kernel else { continue };
            let into = (first_step + s) as ValueSlot;
            if let Some([from, times]) = factors {
                reductions.push(RowReduction { fold, into, from, times: Some(times), chained: false });
                continue;
            }
            let arg = program.steps[s].args[0];
            if self.granularity[arg as usize] != Granularity::PerElement && slots.broadcast[arg as usize].is_none() {
                self.add_broadcast(arg, phase, slots);
            }
            let from = slots.broadcast[arg as usize].unwrap_or(arg);
            reductions.push(RowReduction { fold, into, from, times: None, chained: false });
        }
        let first_tile = self.instrs.len();
        let mut reads: Vec<ValueSlot> = tiles.iter().flat_map(|i| i.operands().to_vec()).collect();
        reads.extend(reductions.iter().flat_map(RowReduction::operands));
        reads.extend(program.outputs.iter().map(|o| o.slot).filter(|_| phase == 0));
        reads.retain(|&s| (s as usize) < inputs && self.granularity[s as usize] == Granularity::PerElement);
        reads.sort_unstable();
        reads.dedup();
        self.instrs.append(&mut tiles);
        let first_fold = self.folds.len();
        self.folds.append(&mut reductions);
        self.phases.push(Phase {
            head: head..first_tile,
            tiles: first_tile..self.instrs.len(),
            folds: first_fold..self.folds.len(),
            reads,
        });
    }

    /// Returns the factors of the products that reduction `s` sums, if the sum can compute the products itself.
    ///
    /// That requires that no other instruction and no output reads the products, and that both factors are per-element
    /// values.
    fn product_factors(&self, program: &Prepared, s: usize) -> Option<[ValueSlot; 2]> {
        let KernelFn::Reduce(_, Some(factors)) = program.steps[s].kernel else { return None };
        let product = program.steps[s].args[0];
        let reads = program.steps.iter().flat_map(|s| &s.args).filter(|&&a| a == product).count();
        let stored = program.outputs.iter().any(|o| o.slot == product);
        let tiles = factors.iter().all(|&f| self.granularity[f as usize] == Granularity::PerElement);
        (tiles && reads == 1 && !stored).then_some(factors)
    }

    /// Returns the instruction of step `s` without broadcasts, or `None` if its loop lacks the form.
    fn resolve(&self, program: &Prepared, s: usize, sizes: &[u8]) -> Option<ScheduledInstr> {
        self.resolve_with(program, s, sizes, &vec![None; sizes.len()]).ok()
    }

    /// Returns the instruction of step `s`. The error is the operand that must be broadcast first, because the loop
    /// lacks the form for the operands as they are.
    fn resolve_with(
        &self,
        program: &Prepared,
        s: usize,
        sizes: &[u8],
        broadcast: &[Option<ValueSlot>],
    ) -> Result<ScheduledInstr, ValueSlot> {
        let step = &program.steps[s];
        let into = (program.first_step() + s) as ValueSlot;
        let granularity = self.granularity[into as usize];
        let mut args = [0; 3];
        for (to, &arg) in args.iter_mut().zip(&step.args) {
            let tile = broadcast.get(arg as usize).copied().flatten();
            *to = tile.filter(|_| granularity == Granularity::PerElement).unwrap_or(arg);
        }
        let full = |arg: ValueSlot| self.granularity[arg as usize] == granularity;
        let kernel = match step.kernel {
            KernelFn::Unary(f) if full(args[0]) => LoopKind::Unary(f),
            KernelFn::Unary(_) => return Err(args[0]),
            KernelFn::Binary(forms) => match (full(args[0]), full(args[1])) {
                (true, true) => LoopKind::Binary(forms[0], forms[0]),
                (true, false) => LoopKind::Binary(forms[1], forms[0]),
                (false, true) => LoopKind::Binary(forms[2], forms[0]),
                (false, false) => return Err(args[0]),
            },
            KernelFn::Ternary(forms) => {
                let form = |args: &[ValueSlot; 3]| forms[(0..3).map(|k| (full(args[k]) as usize) << k).sum::<usize>()];
                // Only a·b + c lacks forms, and its factors commute.
                if form(&args).is_none() && full(args[1]) && !full(args[0]) {
                    args.swap(0, 1);
                }
                let coarser = args.iter().copied().find(|&a| !full(a));
                LoopKind::Ternary(form(&args).ok_or_else(|| coarser.unwrap_or(args[0]))?)
            }
            KernelFn::RowIndex => LoopKind::RowIndex,
            KernelFn::Reduce(..) => return Err(args[0]),
        };
        Ok(self.instr(kernel, into, args, step.args.len(), sizes))
    }

    /// Returns an instruction of `count` operands.
    fn instr(
        &self,
        kernel: LoopKind,
        into: ValueSlot,
        args: [ValueSlot; 3],
        count: usize,
        sizes: &[u8],
    ) -> ScheduledInstr {
        let layout = |slot: ValueSlot| (sizes[slot as usize], self.granularity[slot as usize]);
        let none = (0, Granularity::Uniform);
        let mut layouts = [layout(into), none, none, none];
        for k in 0..count {
            layouts[k + 1] = layout(args[k]);
        }
        let granularity = self.granularity[into as usize];
        let mixed = granularity == Granularity::PerElement && layouts[1..].iter().any(|a| a.1 == Granularity::PerRow);
        ScheduledInstr { kernel, granularity, mixed, into, args, layouts, fused: None }
    }

    /// Appends an instruction that broadcasts the value of `slot` to every element, to the head of phase `phase`.
    fn add_broadcast(&mut self, slot: ValueSlot, phase: usize, slots: &mut SlotTable) {
        let into = self.granularity.len() as ValueSlot;
        let size = slots.sizes[slot as usize];
        slots.sizes.push(size);
        self.granularity.push(Granularity::PerElement);
        self.phase.push(phase);
        slots.broadcast[slot as usize] = Some(into);
        let compute = match size {
            1 => Compute::Mask,
            4 => Compute::F32,
            _ => Compute::F64,
        };
        let kernel = LoopKind::Broadcast(loops::splat(compute, Isa::best()));
        let instr = self.instr(kernel, into, [slot, 0, 0], 1, &slots.sizes);
        self.instrs.push(instr);
    }

    /// Allocates a buffer for every per-element value. Buffers of dead values are reused.
    fn allocate_buffers(&mut self, program: &Prepared, sizes: &[u8]) {
        let slots = sizes.len();
        // Slots of the program; broadcast values follow.
        let own = program.sizes.len();
        let mut last_use = vec![0; slots];
        let mut last_phase = vec![0; slots];
        for (p, phase) in self.phases.iter().enumerate() {
            for (i, instr) in self.instrs.iter().enumerate().take(phase.tiles.end).skip(phase.head.start) {
                for &arg in instr.operands() {
                    last_use[arg as usize] = i;
                    last_phase[arg as usize] = p;
                }
            }
            for arg in self.folds[phase.folds.clone()].iter().flat_map(RowReduction::operands) {
                // The value is dead at the first instruction of the next phase.
                last_use[arg as usize] = phase.tiles.end;
                last_phase[arg as usize] = p;
            }
        }
        for output in &program.outputs {
            last_use[output.slot as usize] = usize::MAX;
        }
        // A broadcast value is the same for all elements of a row, so that its buffer needs one tile only.
        let crosses =
            |s: usize| s < own && self.granularity[s] == Granularity::PerElement && last_phase[s] > self.phase[s];
        self.crosses = (0..slots).map(crosses).collect();
        self.buffer_offset = vec![0; slots];
        // Inputs and broadcast values are live for the whole run.
        let is_tile = |s: &usize| self.granularity[*s] == Granularity::PerElement;
        for s in (0..program.inputs.len()).chain(own..slots).filter(is_tile) {
            self.buffer_offset[s] = self.buffer_width;
            self.buffer_width += sizes[s] as usize;
        }
        let mut free: Vec<(u8, usize)> = Vec::new();
        for phase in &self.phases {
            for i in phase.head.start..phase.tiles.end {
                let instr = &self.instrs[i];
                let into = instr.into as usize;
                if instr.granularity != Granularity::PerElement || into >= own {
                    continue;
                }
                let reused = free.iter().position(|f| f.0 == sizes[into]).filter(|_| !self.crosses[into]);
                self.buffer_offset[into] = match reused {
                    Some(k) => free.swap_remove(k).1,
                    None => {
                        self.buffer_width += sizes[into] as usize;
                        self.buffer_width - sizes[into] as usize
                    }
                };
                let dead = instr.operands().iter().filter(|&&a| last_use[a as usize] == i);
                self.free_buffers(program, sizes, &mut free, dead);
            }
            let folded = self.folds[phase.folds.clone()].iter().flat_map(RowReduction::operands);
            let dead: Vec<ValueSlot> = folded.filter(|&a| last_use[a as usize] == phase.tiles.end).collect();
            self.free_buffers(program, sizes, &mut free, dead.iter());
        }
    }

    /// Adds the buffers of dead values to the free list. Inputs, outputs and values that cross a phase keep their
    /// buffers, and so do values that are never read.
    fn free_buffers<'a>(
        &self,
        program: &Prepared,
        sizes: &[u8],
        free: &mut Vec<(u8, usize)>,
        dead: impl Iterator<Item = &'a ValueSlot>,
    ) {
        let steps = program.first_step()..program.sizes.len();
        for a in dead.map(|&a| a as usize) {
            let buffer = (sizes[a], self.buffer_offset[a]);
            let reusable = steps.contains(&a) && self.granularity[a] == Granularity::PerElement && !self.crosses[a];
            if reusable && !free.contains(&buffer) {
                free.push(buffer);
            }
        }
    }
}

impl ScheduledInstr {
    /// Returns the slots that the instruction reads.
    pub(crate) fn operands(&self) -> &[ValueSlot] {
        let count = match self.kernel {
            LoopKind::Unary(_) | LoopKind::Broadcast(_) => 1,
            LoopKind::Binary(..) => 2,
            LoopKind::Ternary(_) => 3,
            LoopKind::RowIndex => 0,
        };
        &self.args[..count]
    }

    /// Computes `n` results, the first of which has position `first` in its row.
    ///
    /// # Safety
    /// - *Operands*: every operand of the loop is valid for reads of `n` values if its granularity is that of the
    ///   result, else of one value.
    /// - *Result*: `into` is valid for writes of `n` values, aligned to 8 bytes for row indices.
    /// - *Aliasing*: `into` overlaps an operand only if both addresses and both element sizes are equal.
    #[inline]
    unsafe fn call(&self, into: *mut u8, [a, b, d]: [*mut u8; 3], n: usize, first: usize) {
        // SAFETY: the form of the loop was selected for the granularities of the operands and for this processor's
        // instruction set; *Operands*, *Result* and *Aliasing* are the contract of the loops.
        unsafe {
            match self.kernel {
                LoopKind::Unary(f) => f.run(into, a, n),
                LoopKind::Broadcast(f) => f(into, a, n),
                LoopKind::Binary(f, _) => f.run(into, a, b, n),
                LoopKind::Ternary(f) => f.run(into, a, b, d, n),
                LoopKind::RowIndex => {
                    let index = into.cast::<i64>();
                    (0..n).for_each(|i| *index.add(i) = (first + i) as i64);
                }
            }
        }
    }

    /// Returns the bytes of one result.
    #[inline]
    pub(crate) fn size(&self) -> usize {
        self.layouts[0].0 as usize
    }

    /// Returns the bytes between two rows of operand `k − 1`, for rows of `len` elements; `k = 0` is the result.
    #[inline]
    fn row_stride(&self, k: usize, len: usize) -> usize {
        let (size, granularity) = self.layouts[k];
        match granularity {
            Granularity::Uniform => 0,
            Granularity::PerRow => size as usize,
            Granularity::PerElement => size as usize * len,
        }
    }
}

/// The extent of a tile: several whole rows, or a segment of one row.
#[derive(Clone, Copy)]
pub(crate) struct Extent<'a> {
    /// The number of rows.
    pub(crate) rows: usize,
    /// The number of elements of each row that are in the tile.
    pub(crate) len: usize,
    /// The position of the first element in its row.
    pub(crate) first: usize,
    /// Scratch for `rows · len` values of any type, if there are several rows.
    pub(crate) scratch: *mut u8,
    /// Results for which [`KernelSchedule::streams`] is true are written with non-temporal stores.
    pub(crate) stream: bool,
    /// All reductions of the schedule if fused chains are to compute theirs, which requires whole rows no longer than
    /// a chunk; otherwise empty.
    pub(crate) folds: &'a [RowReduction],
}

impl Extent<'_> {
    /// Returns the extent of the first `n` elements of one row.
    pub(crate) fn single_row(n: usize) -> Self {
        Extent { rows: 1, len: n, first: 0, scratch: std::ptr::null_mut(), stream: false, folds: &[] }
    }
}

/// Executes instructions on one tile. `addresses` has the address of every slot's values.
///
/// # Safety
/// - *Slots*: for every slot that the instructions name, `addresses` has an address that is aligned to 8 bytes for row
///   indices and valid, for operands for reads and for results for writes, of as many values as the slot's granularity
///   says: one, `tile.rows`, or `tile.rows · tile.len`.
/// - *Aliasing*: a result overlaps an operand of the same instruction, or of the same fused chain, only if both
///   addresses and both element sizes are equal.
/// - *Scratch*: if `tile.rows > 1`, `tile.scratch` is aligned to 8 bytes, valid for `tile.rows · tile.len` values of
///   eight bytes, and disjoint from all slots.
/// - *Streaming*: if `tile.stream`, results with [`KernelSchedule::streams`] are aligned to their element size.
/// - *Reductions*: `tile.folds` is empty or has all reductions of the schedule, whose result slots are then valid for
///   writes of `tile.rows` values.
pub(crate) unsafe fn execute(instrs: &[ScheduledInstr], addresses: &[*mut u8], tile: &Extent<'_>) {
    debug_assert!(
        instrs.iter().all(|i| i.operands().iter().chain([&i.into]).all(|&s| (s as usize) < addresses.len())),
        "a slot has no address"
    );
    // SAFETY: every slot has an address (*Slots*; unused operands name slot 0). A chain is within the phase that is
    // executed, so that `split_at_unchecked` is in bounds. The addresses of row `row` are those of *Slots*, advanced by
    // `row` rows of the operand's granularity, which stay within its values. `broadcast_rows` writes
    // `rows · len` values to the scratch (*Scratch*). *Aliasing*, *Streaming* and *Reductions* are passed on.
    unsafe {
        let address = |slot: ValueSlot| *addresses.get_unchecked(slot as usize);
        let mut rest = instrs;
        while let Some((instr, others)) = rest.split_first() {
            if let Some(fused) = instr.fused.as_ref().filter(|f| f.is_profitable(tile)) {
                let (chain, others) = rest.split_at_unchecked(fused.count as usize);
                fuse::run_chain(chain, addresses, tile);
                rest = others;
                continue;
            }
            rest = others;
            let (into, [a, b, d]) = (address(instr.into), instr.args.map(address));
            if tile.rows == 1 {
                let n = if instr.granularity == Granularity::PerElement { tile.len } else { 1 };
                instr.call(into, [a, b, d], n, tile.first);
                continue;
            }
            let by_row = instr.mixed;
            if let (true, LoopKind::Binary(_, tiles)) = (by_row && tile.len < LONG, instr.kernel) {
                // The value of each short row is repeated for its elements, so that one call computes all rows.
                let to_tile = |from: *mut u8, k: usize| match instr.layouts[k] {
                    (size, Granularity::PerRow) => {
                        broadcast_rows(tile.scratch, from, size, tile);
                        tile.scratch
                    }
                    _ => from,
                };
                tiles.run(into, to_tile(a, 1), to_tile(b, 2), tile.rows * tile.len);
                continue;
            }
            let (calls, n) = match instr.granularity {
                Granularity::Uniform => (1, 1),
                Granularity::PerRow => (1, tile.rows),
                Granularity::PerElement
                    if by_row
                        || !matches!(
                            instr.kernel,
                            LoopKind::Unary(_) | LoopKind::Binary(..) | LoopKind::Ternary(_)
                        ) =>
                {
                    (tile.rows, tile.len)
                }
                Granularity::PerElement => (1, tile.rows * tile.len),
            };
            for row in 0..calls {
                let in_row =
                    |p: *mut u8, k: usize| if row == 0 { p } else { p.add(row * instr.row_stride(k, tile.len)) };
                instr.call(in_row(into, 0), [in_row(a, 1), in_row(b, 2), in_row(d, 3)], n, tile.first);
            }
        }
    }
}

/// Writes the value of every row to each element of that row.
///
/// # Safety
/// - *Source*: `from` is aligned to `size` and valid for reads of `tile.rows` values of `size` bytes.
/// - *Target*: `to` is aligned to `size`, valid for writes of `tile.rows · tile.len` values, and disjoint from `from`.
unsafe fn broadcast_rows(to: *mut u8, from: *const u8, size: u8, tile: &Extent<'_>) {
    /// # Safety
    /// *Source* and *Target* for values of type `T`.
    unsafe fn broadcast_as<T: Copy>(to: *mut T, from: *const T, tile: &Extent<'_>) {
        for row in 0..tile.rows {
            // SAFETY: row < tile.rows and i < tile.len, so the read is within *Source* and the writes within *Target*.
            unsafe {
                let value = *from.add(row);
                let to = to.add(row * tile.len);
                for i in 0..tile.len {
                    to.add(i).write(value);
                }
            }
        }
    }
    // SAFETY: the element type has `size` bytes; the caller guarantees *Source* and *Target*.
    unsafe {
        match size {
            1 => broadcast_as::<u8>(to, from, tile),
            4 => broadcast_as::<u32>(to.cast(), from.cast(), tile),
            _ => broadcast_as::<u64>(to.cast(), from.cast(), tile),
        }
    }
}
