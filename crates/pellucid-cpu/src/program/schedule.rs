//! Scheduling: the instructions of a lowered program, in execution order, for operands of given granularities.
//!
//! Every value has a [`Granularity`]: one value for the entire run (or segment), one for each row, or one for each
//! element. An instruction runs at the finest granularity among its operands, so uniform subexpressions are computed
//! once. If an instruction combines a tile with a single value, the schedule selects the form of its loop that
//! broadcasts the value.
//!
//! Row reductions divide a program into phases: an instruction that depends on the result of a reduction runs in a
//! later phase than the reduction. Instructions that only one operand of a selection needs have phases of their own if
//! they contain a reduction: a kernel skips these phases for rows that select the other operand. If only a sum reads a
//! product, the sum computes the product itself; short rows are the exception, because they are summed side by side.
//!
//! A schedule depends only on the granularities of the inputs and on how tiles store their rows. The schedules of a
//! program are cached in it.

use crate::program::fuse;
use crate::program::kernel_schedule::{
    KernelSchedule, LoopKind, Phase, RowLayout, RowReduction, ScheduleKey, ScheduledInstr,
};
use crate::program::loops;
use crate::program::prepared::{KernelFn, PreparedProgram};
use crate::program::shortcut;
use crate::program::slot::{Granularity, ValueSlot};
use pellucid_ir::Compute;
use pellucid_simd::Isa;

impl PreparedProgram {
    /// Returns the schedule for an elementwise run; `granularity(k)` is the granularity of input `k`.
    pub(crate) fn schedule(&self, granularity: &dyn Fn(usize) -> Granularity) -> &KernelSchedule {
        self.cached_schedule(RowLayout::Short, granularity)
    }

    /// Returns the schedule for rows of `length` elements; `granularity(k)` is the granularity of input `k`.
    pub(crate) fn schedule_rows(&self, length: usize, granularity: &dyn Fn(usize) -> Granularity) -> &KernelSchedule {
        self.cached_schedule(RowLayout::classify(length), granularity)
    }

    /// Returns the schedule for transposed tiles; `granularity(k)` is the granularity of input `k`.
    pub(crate) fn schedule_transposed(&self, granularity: &dyn Fn(usize) -> Granularity) -> &KernelSchedule {
        self.cached_schedule(RowLayout::Transposed, granularity)
    }

    /// Returns the schedule for a layout of the rows. The schedule is built on first use.
    ///
    /// `granularity(k)` is the granularity of input `k`. Inputs with an index of at least 64 are scheduled as
    /// per-element inputs.
    fn cached_schedule(&self, rows: RowLayout, granularity: &dyn Fn(usize) -> Granularity) -> &KernelSchedule {
        let granularity = |i: usize| if i < 64 { granularity(i) } else { Granularity::PerElement };
        let count = self.inputs.len().min(64);
        let granularities = (0..count).fold(0u128, |bits, i| bits << 2 | granularity(i) as u128);
        let key = ScheduleKey { rows, granularities };
        self.schedules.get_or_init(key, || KernelSchedule::new(self, rows, &granularity))
    }
}

/// The slots of a schedule under construction.
struct SlotTable {
    /// The size of one value of every slot, in bytes.
    sizes: Vec<u8>,
    /// For each slot of the program, the slot that holds its value broadcast to all elements. A value is broadcast once
    /// for all instructions that read it.
    broadcast: Vec<Option<ValueSlot>>,
}

/// Returns the guard of every slot: a mask with one value per row, if no row for which the mask is true needs the
/// value.
///
/// A mask guards the values that are needed only for the operands that its selections choose where the mask is false.
/// Guards of values without a reduction are left out, because a phase without a reduction costs little.
fn guards(program: &PreparedProgram, granularity: &[Granularity]) -> Vec<Option<ValueSlot>> {
    #[derive(Clone, Copy, PartialEq)]
    enum Usage {
        Never,
        Unless(ValueSlot),
        Always,
    }
    let first_step = program.first_step();
    let mut usages = vec![Usage::Never; granularity.len()];
    for output in &program.outputs {
        usages[output.slot as usize] = Usage::Always;
    }
    for (s, step) in program.steps.iter().enumerate().rev() {
        let result_usage = usages[first_step + s];
        for (k, &arg) in step.args.iter().enumerate() {
            let mask = step.args[0];
            let guarded = step.selects && k == 2 && granularity[mask as usize] == Granularity::PerRow;
            let usage = if guarded && result_usage == Usage::Always { Usage::Unless(mask) } else { result_usage };
            let known = &mut usages[arg as usize];
            *known = match (*known, usage) {
                (Usage::Never, other) | (other, Usage::Never) => other,
                (a, b) if a == b => a,
                _ => Usage::Always,
            };
        }
    }
    let guard = |slot: usize| match usages[slot] {
        Usage::Unless(mask) if slot >= first_step => Some(mask),
        _ => None,
    };
    let reduces = |s: &usize| matches!(program.steps[*s].kernel, KernelFn::Reduce(..));
    let useful: Vec<ValueSlot> =
        (0..program.steps.len()).filter(reduces).filter_map(|s| guard(first_step + s)).collect();
    (0..granularity.len()).map(|slot| guard(slot).filter(|mask| useful.contains(mask))).collect()
}

/// Returns the level of every slot, a lower bound of its phase: the number of reductions in sequence before it. A
/// guarded value has at least the level of its mask, and a value that all rows need is on a later level than a guarded
/// operand. A value per element that is computed from inputs and values per row has the level of its first use, so that
/// no buffer holds it in between.
fn levels(program: &PreparedProgram, guards: &[Option<ValueSlot>], granularity: &[Granularity]) -> Vec<usize> {
    let first_step = program.first_step();
    let reduces = |slot: usize| {
        slot.checked_sub(first_step).is_some_and(|s| matches!(program.steps[s].kernel, KernelFn::Reduce(..)))
    };
    let mut levels = vec![0; guards.len()];
    // In the program, a mask can come after a value that it guards. The level of the value then changes in the next
    // round.
    loop {
        let mut changed = false;
        for (s, step) in program.steps.iter().enumerate() {
            let slot = first_step + s;
            let ready = |a: ValueSlot| {
                let after_guarded = guards[slot].is_none() && guards[a as usize].is_some();
                levels[a as usize] + usize::from(reduces(a as usize) || after_guarded)
            };
            let level = step.args.iter().copied().chain(guards[slot]).map(ready).max().unwrap_or(0);
            changed |= levels[slot] != level;
            levels[slot] = level;
        }
        if !changed {
            break;
        }
    }
    let mut first_use: Vec<Option<usize>> = vec![None; guards.len()];
    for (s, step) in program.steps.iter().enumerate().rev() {
        let slot = first_step + s;
        let is_element = |slot: usize| granularity[slot] == Granularity::PerElement;
        let from_inputs = step.args.iter().all(|&a| (a as usize) < first_step || !is_element(a as usize));
        if let Some(level) = first_use[slot].filter(|_| is_element(slot) && from_inputs) {
            levels[slot] = level;
        }
        for &arg in &step.args {
            let known = &mut first_use[arg as usize];
            *known = Some(known.map_or(levels[slot], |level| level.min(levels[slot])));
        }
    }
    levels
}

impl KernelSchedule {
    /// Schedules a program for one layout of the rows and inputs of the given granularities.
    fn new(
        program: &PreparedProgram,
        rows: RowLayout,
        input_granularity: &dyn Fn(usize) -> Granularity,
    ) -> KernelSchedule {
        let (mut schedule, guards) = KernelSchedule::with_phases(program, rows, input_granularity);
        let mut slots = SlotTable { sizes: program.sizes.clone(), broadcast: vec![None; program.sizes.len()] };
        schedule.add_row_instrs(program, |_, granularity| granularity == Granularity::Uniform, &slots.sizes);
        schedule.uniform = schedule.instrs.len();
        for (phase, guard) in guards.into_iter().enumerate() {
            let broadcast = slots.broadcast.clone();
            schedule.add_phase(program, phase, &mut slots);
            schedule.phases[phase].guard = guard;
            if guard.is_some() {
                // The phase may be skipped, so later phases cannot use its broadcasts.
                slots.broadcast = broadcast;
            }
        }
        let in_registers = fuse::move_comparisons(&mut schedule, program);
        shortcut::add_shortcuts(&mut schedule, program, &in_registers);
        fuse::fuse_chains(&mut schedule, program, &in_registers);
        schedule.allocate_buffers(program, &slots.sizes);
        let direct = |slot: ValueSlot| program.outputs.iter().any(|o| o.slot == slot && o.direct.is_some());
        let buffered = |i: &ScheduledInstr| {
            i.granularity == Granularity::PerElement && !direct(i.result) && i.fused.is_none_or(|f| f.is_stored)
        };
        schedule.has_inner = schedule.instrs.iter().any(buffered);
        schedule
    }

    /// Determines the granularity and the phase of every slot. Returns a schedule without instructions, and the guard
    /// of every phase.
    fn with_phases(
        program: &PreparedProgram,
        rows: RowLayout,
        input_granularity: &dyn Fn(usize) -> Granularity,
    ) -> (KernelSchedule, Vec<Option<ValueSlot>>) {
        let inputs = program.inputs.len();
        let first_step = program.first_step();
        let mut granularity: Vec<Granularity> =
            (0..first_step).map(|s| if s < inputs { input_granularity(s) } else { Granularity::Uniform }).collect();
        for step in &program.steps {
            granularity.push(match step.kernel {
                KernelFn::Reduce(..) => Granularity::PerRow,
                KernelFn::RowIndex => Granularity::PerElement,
                _ => step.args.iter().map(|&a| granularity[a as usize]).max().unwrap_or(Granularity::Uniform),
            });
        }
        let guards = guards(program, &granularity);
        let levels = levels(program, &guards, &granularity);
        // The instructions of a level that every row needs come first: they compute the masks that guard the others.
        let mut keys: Vec<(usize, Option<ValueSlot>)> = levels.iter().copied().zip(guards).collect();
        let mut phases = keys.clone();
        // The last phase can read the results of all reductions.
        let ready = program
            .steps
            .iter()
            .enumerate()
            .map(|(s, step)| levels[first_step + s] + usize::from(matches!(step.kernel, KernelFn::Reduce(..))));
        phases.extend([(0, None), (ready.max().unwrap_or(0), None)]);
        phases.sort_unstable();
        phases.dedup();
        keys.drain(..first_step);
        let phase_of = |key| phases.binary_search(&key).unwrap_or(0);
        let phase = std::iter::repeat_n(0, first_step).chain(keys.into_iter().map(phase_of)).collect();
        let schedule = KernelSchedule {
            instrs: Vec::new(),
            uniform: 0,
            rows,
            folds: Vec::new(),
            phases: Vec::new(),
            granularity,
            phase,
            buffer_offset: Vec::new(),
            buffer_width: 0,
            is_live_across_phases: Vec::new(),
            is_streamed: Vec::new(),
            has_inner: false,
        };
        (schedule, phases.into_iter().map(|(_, guard)| guard).collect())
    }

    /// Appends the instructions on uniform or per-row values for which `is_chosen` returns true. Its arguments are the
    /// slot and the granularity of the result.
    fn add_row_instrs(
        &mut self,
        program: &PreparedProgram,
        is_chosen: impl Fn(usize, Granularity) -> bool,
        sizes: &[u8],
    ) {
        let first_step = program.first_step();
        for (s, step) in program.steps.iter().enumerate() {
            let slot = first_step + s;
            if !matches!(step.kernel, KernelFn::Reduce(..)) && is_chosen(slot, self.granularity[slot]) {
                let instr = self.resolve(program, s, sizes);
                self.instrs.push(instr.expect("every instruction must have a loop for operands of one granularity"));
            }
        }
    }

    /// Appends the instructions and the reductions of one phase.
    fn add_phase(&mut self, program: &PreparedProgram, phase: usize, slots: &mut SlotTable) {
        let inputs = program.inputs.len();
        let first_step = program.first_step();
        let steps = (0..program.steps.len()).filter(|s| self.phase[first_step + s] == phase);
        let is_fold = |s: &usize| matches!(program.steps[*s].kernel, KernelFn::Reduce(..));
        let (folds, plain): (Vec<usize>, Vec<usize>) = steps.partition(is_fold);
        let is_element = |s: &usize| self.granularity[first_step + s] == Granularity::PerElement;
        let is_read = |s: &usize| !self.is_unread_index(program, *s);
        let mut tile_steps: Vec<usize> = plain.into_iter().filter(is_element).filter(is_read).collect();
        let product_factors = |s: usize| self.product_factors(program, s).filter(|_| self.rows == RowLayout::Long);
        let factors: Vec<Option<[ValueSlot; 2]>> = folds.iter().map(|&s| product_factors(s)).collect();
        for (&s, _) in folds.iter().zip(&factors).filter(|(_, f)| f.is_some()) {
            tile_steps.retain(|&t| first_step + t != program.steps[s].args[0] as usize);
        }
        let head = self.instrs.len();
        let in_phase = self.phase.clone();
        let is_own = |slot: usize, granularity| granularity == Granularity::PerRow && in_phase[slot] == phase;
        self.add_row_instrs(program, is_own, &slots.sizes);
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
            let result = (first_step + s) as ValueSlot;
            if let Some([operand, factor]) = factors {
                reductions.push(RowReduction { fold, result, operand, factor: Some(factor), chained: false });
                continue;
            }
            let arg = program.steps[s].args[0];
            if self.granularity[arg as usize] != Granularity::PerElement && slots.broadcast[arg as usize].is_none() {
                self.add_broadcast(arg, phase, slots);
            }
            let operand = slots.broadcast[arg as usize].unwrap_or(arg);
            reductions.push(RowReduction { fold, result, operand, factor: None, chained: false });
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
            guard: None,
        });
    }

    /// Returns the factors of the products that reduction `s` sums, if the sum can compute the products itself.
    ///
    /// That requires that no other instruction and no output reads the products, and that both factors are per-element
    /// values.
    fn product_factors(&self, program: &PreparedProgram, s: usize) -> Option<[ValueSlot; 2]> {
        let KernelFn::Reduce(_, Some(factors)) = program.steps[s].kernel else { return None };
        let product = program.steps[s].args[0];
        let reads = program.steps.iter().flat_map(|s| &s.args).filter(|&&a| a == product).count();
        let stored = program.outputs.iter().any(|o| o.slot == product);
        let tiles = factors.iter().all(|&f| self.granularity[f as usize] == Granularity::PerElement);
        (tiles && reads == 1 && !stored).then_some(factors)
    }

    /// Returns the value that step `s` compares with the index within the row, if that value is the same for all
    /// elements of a row. One loop then compares an entire row.
    fn row_index_test(&self, program: &PreparedProgram, s: usize) -> Option<ValueSlot> {
        let is_constant = |&other: &ValueSlot| self.granularity[other as usize] != Granularity::PerElement;
        program.steps[s].equals_row_index.filter(is_constant).filter(|_| self.rows != RowLayout::Transposed)
    }

    /// Returns true if step `s` computes indices that only [tests](KernelSchedule::row_index_test) read.
    fn is_unread_index(&self, program: &PreparedProgram, s: usize) -> bool {
        let slot = (program.first_step() + s) as ValueSlot;
        let reads = |t: usize| program.steps[t].args.contains(&slot) && self.row_index_test(program, t).is_none();
        matches!(program.steps[s].kernel, KernelFn::RowIndex)
            && !(0..program.steps.len()).any(reads)
            && !program.outputs.iter().any(|output| output.slot == slot)
    }

    /// Returns the instruction of step `s` without broadcasts, or `None` if its loop lacks the form for the operands.
    fn resolve(&self, program: &PreparedProgram, s: usize, sizes: &[u8]) -> Option<ScheduledInstr> {
        self.resolve_with(program, s, sizes, &vec![None; sizes.len()]).ok()
    }

    /// Returns the instruction of step `s`. The error is the operand that must be broadcast first, because the loop
    /// lacks the form for these operands.
    fn resolve_with(
        &self,
        program: &PreparedProgram,
        s: usize,
        sizes: &[u8],
        broadcast: &[Option<ValueSlot>],
    ) -> Result<ScheduledInstr, ValueSlot> {
        let step = &program.steps[s];
        let result = (program.first_step() + s) as ValueSlot;
        let granularity = self.granularity[result as usize];
        let mut args = [0; 3];
        for (to, &arg) in args.iter_mut().zip(&step.args) {
            let tile = broadcast.get(arg as usize).copied().flatten();
            *to = tile.filter(|_| granularity == Granularity::PerElement).unwrap_or(arg);
        }
        if let Some(other) = self.row_index_test(program, s) {
            return Ok(self.instr(LoopKind::RowIndexEquals, result, [other, 0, 0], 1, sizes));
        }
        let full = |arg: ValueSlot| self.is_vector(arg, granularity);
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
                // Only the multiply-add a·b + c lacks a form, and its factors may be swapped.
                if form(&args).is_none() && full(args[1]) && !full(args[0]) {
                    args.swap(0, 1);
                }
                let coarser = args.iter().copied().find(|&a| !full(a));
                LoopKind::Ternary(form(&args).ok_or_else(|| coarser.unwrap_or(args[0]))?)
            }
            KernelFn::RowIndex => LoopKind::RowIndex,
            KernelFn::Reduce(..) => return Err(args[0]),
        };
        Ok(self.instr(kernel, result, args, step.args.len(), sizes))
    }

    /// Returns an instruction of `count` operands.
    fn instr(
        &self,
        kernel: LoopKind,
        result: ValueSlot,
        args: [ValueSlot; 3],
        count: usize,
        sizes: &[u8],
    ) -> ScheduledInstr {
        let layout = |slot: ValueSlot| (sizes[slot as usize], self.granularity[slot as usize]);
        let none = (0, Granularity::Uniform);
        let mut layouts = [layout(result), none, none, none];
        for k in 0..count {
            layouts[k + 1] = layout(args[k]);
        }
        let granularity = self.granularity[result as usize];
        let mixed = granularity == Granularity::PerElement && layouts[1..].iter().any(|a| a.1 == Granularity::PerRow);
        ScheduledInstr { kernel, granularity, mixed, result, args, layouts, fused: None, shortcut: None }
    }

    /// Appends an instruction that broadcasts the value of `slot` to every element, to the head of phase `phase`.
    fn add_broadcast(&mut self, slot: ValueSlot, phase: usize, slots: &mut SlotTable) {
        let result = self.granularity.len() as ValueSlot;
        let size = slots.sizes[slot as usize];
        slots.sizes.push(size);
        self.granularity.push(Granularity::PerElement);
        self.phase.push(phase);
        slots.broadcast[slot as usize] = Some(result);
        let compute = match size {
            1 => Compute::Mask,
            4 => Compute::F32,
            _ => Compute::F64,
        };
        let kernel = LoopKind::Broadcast(loops::splat(compute, Isa::best()));
        let instr = self.instr(kernel, result, [slot, 0, 0], 1, &slots.sizes);
        self.instrs.push(instr);
    }

    /// Allocates a buffer for every per-element value that is stored. Buffers of dead values are reused.
    fn allocate_buffers(&mut self, program: &PreparedProgram, sizes: &[u8]) {
        let slots = sizes.len();
        // The slots of the program come first, followed by the slots of broadcast values.
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
        // A broadcast value is the same for all elements of a row, so its buffer has the size of one tile.
        let is_live_across_phases =
            |s: usize| s < own && self.granularity[s] == Granularity::PerElement && last_phase[s] > self.phase[s];
        self.is_live_across_phases = (0..slots).map(is_live_across_phases).collect();
        self.buffer_offset = vec![0; slots];
        // Inputs and broadcast values are live for the entire run.
        let is_tile = |s: &usize| self.granularity[*s] == Granularity::PerElement;
        for s in (0..program.inputs.len()).chain(own..slots).filter(is_tile) {
            self.buffer_offset[s] = self.buffer_width;
            self.buffer_width += sizes[s] as usize;
        }
        let mut free: Vec<(u8, usize)> = Vec::new();
        let mut has_buffer = vec![false; slots];
        for phase in &self.phases {
            for i in phase.head.start..phase.tiles.end {
                let instr = &self.instrs[i];
                let slot = instr.result as usize;
                // A comparison of a shortcut computes its mask again, into the same buffer.
                if is_tile(&slot) && slot < own && !has_buffer[slot] && instr.fused.is_none_or(|op| op.is_stored) {
                    has_buffer[slot] = true;
                    let is_live_across_phases = self.is_live_across_phases[slot];
                    let reused = free.iter().position(|f| f.0 == sizes[slot]).filter(|_| !is_live_across_phases);
                    self.buffer_offset[slot] = match reused {
                        Some(k) => free.swap_remove(k).1,
                        None => {
                            self.buffer_width += sizes[slot] as usize;
                            self.buffer_width - sizes[slot] as usize
                        }
                    };
                }
                let dead = instr.operands().iter().filter(|&&a| last_use[a as usize] == i && has_buffer[a as usize]);
                self.free_buffers(program, sizes, &mut free, dead);
            }
            let folded = self.folds[phase.folds.clone()].iter().flat_map(RowReduction::operands);
            let dead: Vec<ValueSlot> = folded.filter(|&a| last_use[a as usize] == phase.tiles.end).collect();
            self.free_buffers(program, sizes, &mut free, dead.iter());
        }
    }

    /// Adds the buffers of dead values to the free list. Inputs, outputs, values that a later phase reads, and values
    /// that are never read keep their buffers.
    fn free_buffers<'a>(
        &self,
        program: &PreparedProgram,
        sizes: &[u8],
        free: &mut Vec<(u8, usize)>,
        dead: impl Iterator<Item = &'a ValueSlot>,
    ) {
        let steps = program.first_step()..program.sizes.len();
        for a in dead.map(|&a| a as usize) {
            let buffer = (sizes[a], self.buffer_offset[a]);
            let reusable =
                steps.contains(&a) && self.granularity[a] == Granularity::PerElement && !self.is_live_across_phases[a];
            if reusable && !free.contains(&buffer) {
                free.push(buffer);
            }
        }
    }
}
