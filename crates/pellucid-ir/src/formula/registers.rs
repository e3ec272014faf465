//! Register allocation: chooses the order of the instructions and the register of every value.

use super::program::{InstructionOperand, Op, Step, Store};
use crate::dtype::Compute;
use smallvec::SmallVec;

/// A value of a program before it has a register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Value {
    Input(u8),
    Uniform(usize),
    /// The result of the instruction with this index.
    Step(usize),
}

struct UnallocatedStep {
    op: Op,
    compute: Compute,
    args: SmallVec<[Value; 3]>,
    result: Compute,
    per_row: bool,
}

/// An ordered list of instructions, each with a result of its own, before register allocation.
#[derive(Default)]
pub(super) struct UnallocatedProgram {
    steps: Vec<UnallocatedStep>,
}

impl UnallocatedProgram {
    pub(super) fn push(&mut self, op: Op, compute: Compute, args: &[Value], result: Compute, per_row: bool) -> Value {
        self.steps.push(UnallocatedStep { op, compute, args: args.into(), result, per_row });
        Value::Step(self.steps.len() - 1)
    }
}

/// The result of register allocation.
pub(super) struct Allocated {
    pub(super) steps: Vec<Step>,
    pub(super) registers: Vec<Compute>,
    pub(super) row_registers: Vec<Compute>,
    pub(super) outputs: Vec<Store>,
}

/// A register file: the type of each register, and the free registers.
#[derive(Default)]
struct RegisterFile {
    types: Vec<Compute>,
    free: Vec<usize>,
}

impl RegisterFile {
    fn take(&mut self, compute: Compute) -> usize {
        match self.free.iter().position(|&r| self.types[r] == compute) {
            Some(i) => self.free.swap_remove(i),
            None => {
                self.types.push(compute);
                self.types.len() - 1
            }
        }
    }
}

/// Chooses the order of the instructions, and assigns a register to every value.
///
/// The CPU backend fuses an instruction with the next one if the next one reads its result, and stores its registers in
/// the cache. The instructions are ordered depth first if this order needs no more registers and has no fewer such
/// pairs than the draft. Drafts with row reductions keep their order, which minimizes the passes over a row.
pub(super) fn allocate(draft: &UnallocatedProgram, outputs: Vec<(Value, Store)>) -> Allocated {
    let draft_order: Vec<usize> = (0..draft.steps.len()).collect();
    let as_drafted = assign(draft, &draft_order, &outputs);
    if draft.steps.iter().any(|step| matches!(step.op, Op::Reduce(_))) {
        return as_drafted;
    }
    let depth_first_order = depth_first(draft, &outputs);
    let depth_first = assign(draft, &depth_first_order, &outputs);
    let is_better = depth_first.registers.len() <= as_drafted.registers.len()
        && linked_pairs(draft, &depth_first_order) >= linked_pairs(draft, &draft_order);
    if is_better { depth_first } else { as_drafted }
}

/// Returns the instructions that compute operands of `step`.
fn operands(step: &UnallocatedStep) -> impl Iterator<Item = usize> {
    step.args.iter().filter_map(|arg| if let Value::Step(s) = *arg { Some(s) } else { None })
}

/// Returns the number of instructions that read the result of the previous instruction.
fn linked_pairs(draft: &UnallocatedProgram, order: &[usize]) -> usize {
    order.windows(2).filter(|pair| operands(&draft.steps[pair[1]]).any(|s| s == pair[0])).count()
}

/// Returns the instructions that the outputs depend on, depth first. Among the operands of an instruction, the operand
/// whose computation needs the most registers comes first (Sethi & Ullman 1970).
fn depth_first(draft: &UnallocatedProgram, outputs: &[(Value, Store)]) -> Vec<usize> {
    let mut needed = vec![0; draft.steps.len()];
    let by_registers = |step: &UnallocatedStep, needed: &[usize]| {
        let mut operands: SmallVec<[usize; 3]> = operands(step).collect();
        operands.sort_by_key(|&s| std::cmp::Reverse(needed[s]));
        operands.dedup();
        operands
    };
    for (i, step) in draft.steps.iter().enumerate() {
        needed[i] = by_registers(step, &needed).iter().enumerate().map(|(k, &s)| needed[s] + k).max().unwrap_or(1);
    }
    let (mut order, mut placed) = (Vec::with_capacity(draft.steps.len()), vec![false; draft.steps.len()]);
    for (value, _) in outputs {
        let Value::Step(root) = *value else { continue };
        let mut stack = vec![root];
        while let Some(&next) = stack.last() {
            let open = by_registers(&draft.steps[next], &needed).into_iter().find(|&s| !placed[s]);
            match open {
                Some(operand) if !placed[next] => stack.push(operand),
                _ => {
                    stack.pop();
                    if !std::mem::replace(&mut placed[next], true) {
                        order.push(next);
                    }
                }
            }
        }
    }
    order
}

/// Assigns a register to every value of the instructions in `order`. Values with overlapping lifetimes get different
/// registers.
///
/// A result gets its register before the registers of its operands become free, so it never shares one with them.
/// Register numbers beyond 16 bits wrap here, because the caller rejects programs with too many instructions.
fn assign(draft: &UnallocatedProgram, order: &[usize], outputs: &[(Value, Store)]) -> Allocated {
    let mut last_read = vec![0; draft.steps.len()];
    for &i in order {
        operands(&draft.steps[i]).for_each(|s| last_read[s] = i);
    }
    for (value, _) in outputs {
        if let Value::Step(s) = value {
            last_read[*s] = usize::MAX;
        }
    }
    let (mut tiles, mut rows) = (RegisterFile::default(), RegisterFile::default());
    let mut place = vec![0; draft.steps.len()];
    let operand = |place: &[usize], value: Value| match value {
        Value::Input(i) => InstructionOperand::Input(i),
        Value::Uniform(u) => InstructionOperand::Uniform(u as u16),
        Value::Step(s) if draft.steps[s].per_row => InstructionOperand::Row(place[s] as u16),
        Value::Step(s) => InstructionOperand::Register(place[s] as u16),
    };
    let mut steps = Vec::with_capacity(order.len());
    for &i in order {
        let step = &draft.steps[i];
        let file = if step.per_row { &mut rows } else { &mut tiles };
        place[i] = file.take(step.result);
        let into = operand(&place, Value::Step(i));
        let args = step.args.iter().map(|&a| operand(&place, a)).collect();
        steps.push(Step { op: step.op, compute: step.compute, into, args });
        let mut done: SmallVec<[usize; 4]> = SmallVec::new();
        for arg in &step.args {
            if let Value::Step(s) = *arg
                && last_read[s] == i
                && !done.contains(&s)
            {
                done.push(s);
                let file = if draft.steps[s].per_row { &mut rows } else { &mut tiles };
                file.free.push(place[s]);
            }
        }
    }
    let outputs = outputs.iter().map(|&(value, store)| Store { value: operand(&place, value), ..store }).collect();
    Allocated { steps, registers: tiles.types, row_registers: rows.types, outputs }
}
