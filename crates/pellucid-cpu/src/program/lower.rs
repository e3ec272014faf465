//! Lowering: converts a program to static single assignment form, and resolves every instruction to the loop that runs
//! it.
//!
//! A register of a [`Program`] may be written several times. After lowering, every value has its own slot, which is
//! written once. A value can therefore be stored anywhere (in a tile buffer, in the memory of an output, in one cell),
//! and the schedule can reorder instructions.

use crate::program::fold::FoldKernel;
use crate::program::kernel_schedule::KernelScheduleCache;
use crate::program::loops::{self, ChainLoop, Opcode, OperandForm, TernaryLoop};
use crate::program::prepared::{
    KernelFn, PreparedInput, PreparedOutput, PreparedProgram, PreparedStep, SingleArg, SingleInstr,
};
use crate::program::slot::ValueSlot;
use pellucid_ir::formula::{self, Binary, Op, Program};
use pellucid_ir::{Compute, DType, Error, Result};
use pellucid_runtime::list::List;
use pellucid_simd::Isa;

impl PreparedProgram {
    /// Returns the lowered form of `program`, which is built on first use and cached in the program.
    ///
    /// # Errors
    /// Returns [`Error::DTypeMismatch`] if an instruction is not defined for its compute type.
    pub(crate) fn for_program(program: &Program) -> Result<&PreparedProgram> {
        let prepared: &Result<PreparedProgram> = program.prepared(0, || PreparedProgram::new(program));
        prepared.as_ref().map_err(Clone::clone)
    }

    /// Lowers `program`.
    fn new(program: &Program) -> Result<PreparedProgram> {
        let mut lowering = ProgramLowering::new(program);
        for step in &program.steps {
            lowering.lower_step(step)?;
        }
        let outputs = lowering.lower_outputs();
        let inputs = lowering.lower_inputs(&outputs);
        let ProgramLowering { steps, sizes, .. } = lowering;
        let uniforms = program.uniforms.clone();
        let single =
            single_instr(&inputs, &steps, &outputs, &sizes).or_else(|| half_precision_sign(program, Isa::best()));
        let constant = match &outputs[..] {
            [o] if steps.is_empty() && o.store.is_none() => (o.slot as usize).checked_sub(inputs.len()),
            _ => None,
        };
        Ok(PreparedProgram {
            inputs,
            uniforms,
            steps,
            outputs,
            sizes,
            single,
            constant,
            schedules: KernelScheduleCache::default(),
        })
    }

    /// Returns the program that converts `from` to `to`: the load is exact, the store rounds once.
    pub(crate) fn cast(from: DType, to: DType) -> PreparedProgram {
        let (isa, compute) = (Isa::best(), from.compute());
        let load = (from != to && compute.storage() != from).then(|| loops::convert(from, compute, isa));
        let store = (from != to && compute.storage() != to).then(|| loops::store(compute, to, isa));
        let size = if from == to { from.size() } else { compute.size() };
        PreparedProgram {
            inputs: vec![PreparedInput { size: from.size(), load, per_row: false, last_read: usize::MAX }],
            uniforms: Vec::new(),
            steps: Vec::new(),
            outputs: vec![PreparedOutput { slot: 0, store, size: to.size(), per_row: false, direct: None }],
            sizes: vec![size as u8],
            single: None,
            constant: None,
            schedules: KernelScheduleCache::default(),
        }
    }
}

/// The state of the lowering of one program.
struct ProgramLowering<'a> {
    program: &'a Program,
    isa: Isa,
    /// The slot of the first step's result.
    first_step: usize,
    /// For each tile register, the slot of the value that it holds at this point of the program.
    registers: Vec<ValueSlot>,
    /// For each row register, the slot of the value that it holds at this point of the program.
    row_registers: Vec<ValueSlot>,
    /// The steps lowered so far.
    steps: Vec<PreparedStep>,
    /// The size of one value of every slot defined so far, in bytes.
    sizes: Vec<u8>,
}

impl<'a> ProgramLowering<'a> {
    /// Creates the state before the first step.
    fn new(program: &'a Program) -> Self {
        let mut sizes: Vec<u8> = program.inputs.iter().map(|i| i.compute.size() as u8).collect();
        sizes.extend(program.uniforms.iter().map(|u| u.compute.size() as u8));
        ProgramLowering {
            program,
            isa: Isa::best(),
            first_step: program.inputs.len() + program.uniforms.len(),
            registers: vec![0; program.registers.len()],
            row_registers: vec![0; program.row_registers.len()],
            steps: Vec::with_capacity(program.steps.len()),
            sizes,
        }
    }

    /// Returns the slot of an operand.
    fn slot_of(&self, operand: formula::InstructionOperand) -> ValueSlot {
        match operand {
            formula::InstructionOperand::Input(i) => i as ValueSlot,
            formula::InstructionOperand::Uniform(u) => (self.program.inputs.len() + u as usize) as ValueSlot,
            formula::InstructionOperand::Register(r) => self.registers[r as usize],
            formula::InstructionOperand::Row(r) => self.row_registers[r as usize],
        }
    }

    /// Lowers the next step and assigns a slot to its result.
    fn lower_step(&mut self, step: &formula::Step) -> Result<()> {
        let kernel = self.kernel_fn(step)?;
        let args: List<ValueSlot, 3> = step.args.iter().map(|&a| self.slot_of(a)).collect();
        let opcode = Opcode::of(step.op, step.compute, self.isa);
        let fusable = opcode.zip(self.chain_loop(step, &args));
        let slot = (self.first_step + self.steps.len()) as ValueSlot;
        let is_index = |arg: ValueSlot| {
            let producer = (arg as usize).checked_sub(self.first_step);
            producer.is_some_and(|s| matches!(self.steps[s].kernel, KernelFn::RowIndex))
        };
        let equals_row_index = match (step.op, &args[..]) {
            (Op::Binary(Binary::Eq), &[index, other] | &[other, index]) if is_index(index) && !is_index(other) => {
                Some(other)
            }
            _ => None,
        };
        self.steps.push(PreparedStep { kernel, fusable, args, selects: step.op == Op::Select, equals_row_index });
        let compute = match step.into {
            formula::InstructionOperand::Register(r) => {
                self.registers[r as usize] = slot;
                self.program.registers[r as usize]
            }
            formula::InstructionOperand::Row(r) => {
                self.row_registers[r as usize] = slot;
                self.program.row_registers[r as usize]
            }
            _ => return Err(Error::invalid(self.program.name, "the destination of a step must be a register")),
        };
        self.sizes.push(compute.size() as u8);
        Ok(())
    }

    /// Returns the loop of the chains that can contain a step. A step on masks belongs to the same chain loop as the
    /// step that computes its first mask.
    fn chain_loop(&self, step: &formula::Step, args: &[ValueSlot]) -> Option<ChainLoop> {
        if step.compute != Compute::Mask {
            return loops::chain(step.compute, self.isa);
        }
        let producer = (*args.first()? as usize).checked_sub(self.first_step)?;
        let (_, chain_loop) = self.steps[producer].fusable?;
        match step.op {
            Op::Convert(to) => loops::chain(to, self.isa).filter(|&own| std::ptr::fn_addr_eq(own, chain_loop)),
            _ => Some(chain_loop),
        }
    }

    /// Returns the loop of a step.
    fn kernel_fn(&self, step: &formula::Step) -> Result<KernelFn> {
        let (isa, compute) = (self.isa, step.compute);
        let undefined = || {
            let help = format!("{} is not defined for this dtype; cast its operands", step.op);
            Error::dtypes(self.program.name, [compute.storage()], help)
        };
        Ok(match step.op {
            Op::Unary(op) => KernelFn::Unary(loops::unary(op, compute, isa).ok_or_else(undefined)?),
            Op::Binary(op) => {
                let form = |f| loops::binary(op, compute, f, isa).ok_or_else(undefined);
                KernelFn::Binary([
                    form(OperandForm::TileTile)?,
                    form(OperandForm::TileUniform)?,
                    form(OperandForm::UniformTile)?,
                ])
            }
            Op::Select => KernelFn::Ternary(ternary_forms(|tiles| loops::select(compute, tiles, isa))),
            Op::MulAdd if compute.is_float() => {
                KernelFn::Ternary(ternary_forms(|tiles| loops::mul_add(compute, tiles, isa)))
            }
            Op::MulAdd => return Err(undefined()),
            Op::Convert(to) => KernelFn::Unary(loops::convert(compute.storage(), to, isa)),
            Op::Round(dtype) => KernelFn::Unary(loops::round(compute, dtype, isa).ok_or_else(undefined)?),
            Op::Reduce(op) => {
                let producer = (self.slot_of(step.args[0]) as usize).checked_sub(self.first_step);
                let product = producer.filter(|&p| self.program.steps[p].op == Op::Binary(Binary::Mul));
                let factors = product.map(|p| [self.steps[p].args[0], self.steps[p].args[1]]);
                let fold = FoldKernel::for_row_op(op, compute).ok_or_else(undefined)?;
                KernelFn::Reduce(fold, factors.filter(|_| fold.loops.accumulate_products.is_some()))
            }
            Op::RowIndex => KernelFn::RowIndex,
        })
    }

    /// Lowers the outputs, after all steps.
    fn lower_outputs(&self) -> Vec<PreparedOutput> {
        let mut outputs: Vec<PreparedOutput> = Vec::with_capacity(self.program.outputs.len());
        for output in &self.program.outputs {
            let slot = self.slot_of(output.value);
            let same = output.compute.storage() == output.storage;
            let first = outputs.iter().all(|o| o.slot != slot);
            let step = (slot as usize + 1).checked_sub(self.first_step).filter(|&s| s > 0);
            outputs.push(PreparedOutput {
                slot,
                store: (!same).then(|| loops::store(output.compute, output.storage, self.isa)),
                size: output.storage.size(),
                per_row: output.per_row,
                direct: step.filter(|_| same && first),
            });
        }
        outputs
    }

    /// Lowers the inputs, after all steps and outputs.
    fn lower_inputs(&self, outputs: &[PreparedOutput]) -> Vec<PreparedInput> {
        let last_read = |slot: usize| {
            let stored = outputs.iter().any(|o| o.slot as usize == slot);
            let read = self.steps.iter().rposition(|s| s.args.contains(&(slot as ValueSlot)));
            if stored { usize::MAX } else { read.map_or(0, |s| s + 1) }
        };
        let convert = |load: &formula::Load| {
            let converts = load.compute.storage() != load.storage;
            converts.then(|| loops::convert(load.storage, load.compute, self.isa))
        };
        let inputs = self.program.inputs.iter().enumerate().map(|(i, load)| PreparedInput {
            size: load.storage.size(),
            load: convert(load),
            per_row: load.per_row,
            last_read: last_read(i),
        });
        inputs.collect()
    }
}

/// Returns the step of a program of one unary or binary step and one output, if no operand is converted.
fn single_instr(
    inputs: &[PreparedInput],
    steps: &[PreparedStep],
    outputs: &[PreparedOutput],
    sizes: &[u8],
) -> Option<SingleInstr> {
    let ([step], [output]) = (steps, outputs) else { return None };
    let plain = inputs.iter().all(|i| i.load.is_none() && !i.per_row) && output.direct.is_some() && !output.per_row;
    if !plain || !matches!(step.kernel, KernelFn::Unary(_) | KernelFn::Binary(_)) {
        return None;
    }
    let mut args = [SingleArg::None; 2];
    for (to, &slot) in args.iter_mut().zip(&step.args) {
        *to = match (slot as usize).checked_sub(inputs.len()) {
            None => SingleArg::Input(slot as u8, sizes[slot as usize]),
            Some(u) => SingleArg::Uniform(u as u8),
        };
    }
    let in_place = step.fusable.filter(|(opcode, _)| opcode.is_arithmetic());
    Some(SingleInstr { kernel: step.kernel, in_place, args, size: output.size })
}

/// Returns the only step of a program that changes the sign of half-precision numbers: the loop changes the bits in
/// memory, without conversions.
fn half_precision_sign(program: &Program, isa: Isa) -> Option<SingleInstr> {
    let ([input], [step], [output]) = (&program.inputs[..], &program.steps[..], &program.outputs[..]) else {
        return None;
    };
    let is_half = matches!(input.storage, DType::F16 | DType::BF16) && output.storage == input.storage;
    let is_direct = step.args[..] == [formula::InstructionOperand::Input(0)] && output.value == step.into;
    let Op::Unary(op) = step.op else { return None };
    if !is_half || !is_direct || input.per_row || output.per_row {
        return None;
    }
    let kernel = KernelFn::Unary(loops::half_precision_sign(op, isa)?);
    let size = input.storage.size();
    let args = [SingleArg::Input(0, size as u8), SingleArg::None];
    Some(SingleInstr { kernel, in_place: None, args, size })
}

/// Returns every form of a loop of three operands. The argument of `form` states which operands are tiles.
fn ternary_forms(form: impl Fn([bool; 3]) -> Option<TernaryLoop>) -> [Option<TernaryLoop>; 8] {
    std::array::from_fn(|bits| form([bits & 1 != 0, bits & 2 != 0, bits & 4 != 0]))
}
