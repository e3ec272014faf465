//! Registers: which values share memory, by when they are last read.

use super::program::{Op, Operand, Step, Store};
use crate::dtype::Compute;
use smallvec::SmallVec;

/// A value of a program before it has a register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Value {
    Input(u8),
    Uniform(usize),
    /// What the step of this number computes.
    Step(usize),
}

struct DraftStep {
    op: Op,
    compute: Compute,
    args: SmallVec<[Value; 3]>,
    result: Compute,
    per_row: bool,
}

/// Steps in their order, each with a result of its own.
#[derive(Default)]
pub(super) struct Draft {
    steps: Vec<DraftStep>,
}

impl Draft {
    pub(super) fn push(&mut self, op: Op, compute: Compute, args: &[Value], result: Compute, per_row: bool) -> Value {
        self.steps.push(DraftStep { op, compute, args: args.into(), result, per_row });
        Value::Step(self.steps.len() - 1)
    }
}

/// The draft with registers.
pub(super) struct Allocated {
    pub(super) steps: Vec<Step>,
    pub(super) registers: Vec<Compute>,
    pub(super) row_registers: Vec<Compute>,
    pub(super) outputs: Vec<Store>,
}

/// Registers of one sort: the type of each, and those that are free.
#[derive(Default)]
struct File {
    types: Vec<Compute>,
    free: Vec<usize>,
}

impl File {
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

/// Gives every value a register that no other value of its lifetime has.
///
/// A result gets its register before those of its operands become free, so it never shares one with
/// them. Numbers beyond 16 bits wrap here: the caller looks at the number of steps.
pub(super) fn allocate(draft: &Draft, outputs: Vec<(Value, Store)>) -> Allocated {
    let mut last_read = vec![0; draft.steps.len()];
    for (i, step) in draft.steps.iter().enumerate() {
        for arg in &step.args {
            if let Value::Step(s) = arg {
                last_read[*s] = i;
            }
        }
    }
    for (value, _) in &outputs {
        if let Value::Step(s) = value {
            last_read[*s] = usize::MAX;
        }
    }
    let (mut tiles, mut rows) = (File::default(), File::default());
    let mut place: Vec<usize> = Vec::with_capacity(draft.steps.len());
    let operand = |place: &[usize], value: Value| match value {
        Value::Input(i) => Operand::Input(i),
        Value::Uniform(u) => Operand::Uniform(u as u16),
        Value::Step(s) if draft.steps[s].per_row => Operand::Row(place[s] as u16),
        Value::Step(s) => Operand::Register(place[s] as u16),
    };
    let mut steps = Vec::with_capacity(draft.steps.len());
    for (i, step) in draft.steps.iter().enumerate() {
        let file = if step.per_row { &mut rows } else { &mut tiles };
        place.push(file.take(step.result));
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
    let outputs = outputs.into_iter().map(|(value, store)| Store { value: operand(&place, value), ..store }).collect();
    Allocated { steps, registers: tiles.types, row_registers: rows.types, outputs }
}
