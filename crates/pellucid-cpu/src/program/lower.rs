//! A program, prepared: every instruction resolved to the loop that runs it, every register to the
//! one instruction that wrote it.

use crate::program::fold::Fold;
use crate::program::loops::{self, BinaryLoop, ChainLoop, Form, Opcode, TernaryLoop, UnaryLoop};
use crate::program::map::dense::{Single, SingleArg};
use crate::program::schedule::{Granularity, KernelSchedule, KernelScheduleCache, Rows};
use pellucid_ir::formula::{self, Binary, Op, Program, Uniform, UniformSource};
use pellucid_ir::kernel::Params;
use pellucid_ir::{Compute, DType, Element, Error, Result, Scalar};
use pellucid_runtime::list::List;
use pellucid_simd::Isa;

/// The number of a value of a program: its inputs first, then its uniforms, then its steps.
///
/// A register may be written several times; a value is written once, so it can lie anywhere (in a
/// tile, in the output's memory, in one cell) and steps can be ordered anew.
pub(crate) type Slot = u16;

/// A program ready to be linked.
pub(crate) struct Prepared {
    pub(crate) inputs: Vec<Input>,
    pub(crate) uniforms: Vec<Uniform>,
    pub(crate) steps: Vec<Step>,
    pub(crate) outputs: Vec<Output>,
    /// Bytes of one value, for every slot.
    pub(crate) sizes: Vec<u8>,
    /// The program as one loop over contiguous memory, if it is that simple.
    pub(crate) single: Option<Single>,
    /// The number of the uniform that is the only output, as it is stored, of a program without instructions.
    pub(crate) constant: Option<usize>,
    links: KernelScheduleCache,
}

/// How an input reaches its compute type.
pub(crate) struct Input {
    /// Bytes in memory.
    pub(crate) size: usize,
    /// `None` where memory holds the compute type.
    pub(crate) load: Option<UnaryLoop>,
    pub(crate) per_row: bool,
    /// The last step that reads it, counted from 1; beyond all where an output stores it.
    pub(crate) last_read: usize,
}

/// What an instruction calls.
#[derive(Clone, Copy)]
pub(crate) enum KernelFn {
    Unary(UnaryLoop),
    /// Tile with tile, tile with one value, one value with tile.
    Binary([BinaryLoop; 3]),
    /// By which operands are tiles (bit k for operand k); not all exist.
    Ternary([Option<TernaryLoop>; 8]),
    /// With the two factors, if it sums products.
    Reduce(Fold, Option<[Slot; 2]>),
    RowIndex,
}

/// One instruction.
pub(crate) struct Step {
    pub(crate) call: KernelFn,
    /// What it is in a chain, with the loop for chains of its type.
    pub(crate) part: Option<(Opcode, ChainLoop)>,
    pub(crate) args: List<Slot, 3>,
}

/// What is stored.
pub(crate) struct Output {
    pub(crate) slot: Slot,
    /// `None` where memory holds the compute type.
    pub(crate) store: Option<UnaryLoop>,
    /// Bytes in memory.
    pub(crate) size: usize,
    pub(crate) per_row: bool,
    /// The step that makes it, counted from 1, if it may write it straight to memory.
    pub(crate) direct: Option<usize>,
}

impl Prepared {
    /// The CPU's form of `program`, made on first use.
    pub(crate) fn of(program: &Program) -> Result<&Prepared> {
        let made: &Result<Prepared> = program.prepared(0, || Prepared::new(program));
        made.as_ref().map_err(Clone::clone)
    }

    fn new(program: &Program) -> Result<Prepared> {
        let isa = Isa::best();
        let missing = |what: &str, compute: Compute| {
            Error::dtypes(program.name, [compute.storage()], format!("{what} is not defined for this dtype; cast it"))
        };
        let first_step = program.inputs.len() + program.uniforms.len();
        let mut sizes: Vec<u8> = program.inputs.iter().map(|i| i.compute.size() as u8).collect();
        sizes.extend(program.uniforms.iter().map(|u| u.compute.size() as u8));
        // The slot that each register holds at this point of the program.
        let mut registers: Vec<Slot> = vec![0; program.registers.len()];
        let mut rows: Vec<Slot> = vec![0; program.row_registers.len()];
        let mut steps: Vec<Step> = Vec::with_capacity(program.steps.len());
        let slot_of = |operand: formula::Operand, registers: &[Slot], rows: &[Slot]| match operand {
            formula::Operand::Input(i) => i as Slot,
            formula::Operand::Uniform(u) => (program.inputs.len() + u as usize) as Slot,
            formula::Operand::Register(r) => registers[r as usize],
            formula::Operand::Row(r) => rows[r as usize],
        };
        for (number, step) in program.steps.iter().enumerate() {
            let compute = step.compute;
            let name = || format!("{:?}", step.op);
            let none = || missing(&name(), compute);
            let call = match step.op {
                Op::Unary(op) => KernelFn::Unary(loops::unary(op, compute, isa).ok_or_else(none)?),
                Op::Binary(op) => {
                    let form = |f| loops::binary(op, compute, f, isa).ok_or_else(none);
                    KernelFn::Binary([form(Form::TileTile)?, form(Form::TileUniform)?, form(Form::UniformTile)?])
                }
                Op::Select => KernelFn::Ternary(forms(|tiles| loops::select(compute, tiles, isa))),
                Op::MulAdd if compute.is_float() => {
                    KernelFn::Ternary(forms(|tiles| loops::mul_add(compute, tiles, isa)))
                }
                Op::MulAdd => return Err(none()),
                Op::Convert(to) => KernelFn::Unary(loops::convert(compute.storage(), to, isa)),
                Op::Round(dtype) => KernelFn::Unary(loops::round(compute, dtype, isa).ok_or_else(none)?),
                Op::Reduce(op) => {
                    let made = (slot_of(step.args[0], &registers, &rows) as usize).checked_sub(first_step);
                    let product = made.filter(|&m| program.steps[m].op == Op::Binary(Binary::Mul));
                    let factors = product.map(|m| [steps[m].args[0], steps[m].args[1]]);
                    let fold = Fold::of_row(op, compute).ok_or_else(none)?;
                    KernelFn::Reduce(fold, factors.filter(|_| fold.loops.accumulate_products.is_some()))
                }
                Op::RowIndex => KernelFn::RowIndex,
            };
            let args = step.args.iter().map(|&a| slot_of(a, &registers, &rows)).collect();
            let part = Opcode::of(step.op, compute, isa).zip(loops::chain(compute, isa));
            steps.push(Step { call, part, args });
            let slot = (first_step + number) as Slot;
            let compute = match step.into {
                formula::Operand::Register(r) => {
                    registers[r as usize] = slot;
                    program.registers[r as usize]
                }
                formula::Operand::Row(r) => {
                    rows[r as usize] = slot;
                    program.row_registers[r as usize]
                }
                _ => return Err(Error::invalid(program.name, "a step writes to a register")),
            };
            sizes.push(compute.size() as u8);
        }
        let mut outputs: Vec<Output> = Vec::with_capacity(program.outputs.len());
        for output in &program.outputs {
            let slot = slot_of(output.value, &registers, &rows);
            let same = output.compute.storage() == output.storage;
            let first = outputs.iter().all(|o| o.slot != slot);
            let step = (slot as usize + 1).checked_sub(first_step).filter(|&s| s > 0);
            outputs.push(Output {
                slot,
                store: (!same).then(|| loops::store(output.compute, output.storage, isa)),
                size: output.storage.size(),
                per_row: output.per_row,
                direct: step.filter(|_| same && first),
            });
        }
        let last_read = |slot: usize| {
            let stored = outputs.iter().any(|o| o.slot as usize == slot);
            let read = steps.iter().rposition(|s| s.args.contains(&(slot as Slot)));
            if stored { usize::MAX } else { read.map_or(0, |s| s + 1) }
        };
        let inputs = program.inputs.iter().enumerate().map(|(i, load)| Input {
            size: load.storage.size(),
            load: (load.compute.storage() != load.storage).then(|| loops::convert(load.storage, load.compute, isa)),
            per_row: load.per_row,
            last_read: last_read(i),
        });
        let inputs: Vec<Input> = inputs.collect();
        let uniforms = program.uniforms.clone();
        let single = single(&inputs, &steps, &outputs, &sizes);
        let constant = match &outputs[..] {
            [o] if steps.is_empty() && o.store.is_none() => (o.slot as usize).checked_sub(inputs.len()),
            _ => None,
        };
        Ok(Prepared {
            inputs,
            uniforms,
            steps,
            outputs,
            sizes,
            single,
            constant,
            links: KernelScheduleCache::default(),
        })
    }

    /// The conversion of `from` to `to`: what is loaded is exact, what is stored is rounded once.
    pub(crate) fn cast(from: DType, to: DType) -> Prepared {
        let (isa, compute) = (Isa::best(), from.compute());
        let load = (from != to && compute.storage() != from).then(|| loops::convert(from, compute, isa));
        let store = (from != to && compute.storage() != to).then(|| loops::store(compute, to, isa));
        let kept = if from == to { from.size() } else { compute.size() };
        Prepared {
            inputs: vec![Input { size: from.size(), load, per_row: false, last_read: usize::MAX }],
            uniforms: Vec::new(),
            steps: Vec::new(),
            outputs: vec![Output { slot: 0, store, size: to.size(), per_row: false, direct: None }],
            sizes: vec![kept as u8],
            single: None,
            constant: None,
            links: KernelScheduleCache::default(),
        }
    }

    /// The slot of the first step.
    pub(crate) fn first_step(&self) -> usize {
        self.inputs.len() + self.uniforms.len()
    }

    /// The link for inputs of these classes.
    pub(crate) fn link(&self, class: impl Fn(usize) -> Granularity) -> &KernelSchedule {
        self.links.get(self, Rows::Short, class)
    }

    /// The link for rows of `length` elements and inputs of these classes.
    pub(crate) fn link_rows(&self, length: usize, class: impl Fn(usize) -> Granularity) -> &KernelSchedule {
        self.links.get(self, Rows::of(length), class)
    }

    /// The value of every uniform, rounded to its compute type.
    pub(crate) fn uniform_values(&self, params: &Params, row_length: usize) -> List<u64, 8> {
        self.uniforms.iter().map(|u| self.uniform_value(u, params, row_length)).collect()
    }

    /// The value of one uniform.
    #[inline]
    pub(crate) fn uniform_value(&self, uniform: &Uniform, params: &Params, row_length: usize) -> u64 {
        let scalar = match uniform.source {
            UniformSource::Param(p) => params[p as usize],
            UniformSource::Literal(v) => v,
            UniformSource::RowLength => Scalar::from(row_length),
        };
        cell(scalar, uniform.compute)
    }
}

/// The only step, if all memory holds compute types and one array comes out.
fn single(inputs: &[Input], steps: &[Step], outputs: &[Output], sizes: &[u8]) -> Option<Single> {
    let ([step], [output]) = (steps, outputs) else { return None };
    let plain = inputs.iter().all(|i| i.load.is_none() && !i.per_row) && output.direct.is_some() && !output.per_row;
    if !plain || !matches!(step.call, KernelFn::Unary(_) | KernelFn::Binary(_)) {
        return None;
    }
    let mut args = [SingleArg::None; 2];
    for (to, &slot) in args.iter_mut().zip(&step.args) {
        *to = match (slot as usize).checked_sub(inputs.len()) {
            None => SingleArg::Input(slot as u8, sizes[slot as usize]),
            Some(u) => SingleArg::Uniform(u as u8),
        };
    }
    Some(Single { call: step.call, args, size: output.size })
}

/// A loop of three operands in every form.
fn forms(of: impl Fn([bool; 3]) -> Option<TernaryLoop>) -> [Option<TernaryLoop>; 8] {
    std::array::from_fn(|bits| of([bits & 1 != 0, bits & 2 != 0, bits & 4 != 0]))
}

/// The bytes of `scalar`, rounded once to a compute type, at the start of eight.
pub(crate) fn cell(scalar: Scalar, compute: Compute) -> u64 {
    let mut bytes = [0; 8];
    match compute {
        Compute::Mask => bytes[0] = bool::from_scalar(scalar) as u8,
        Compute::I32 => bytes[..4].copy_from_slice(&i32::from_scalar(scalar).to_ne_bytes()),
        Compute::I64 => bytes = i64::from_scalar(scalar).to_ne_bytes(),
        Compute::F32 => bytes[..4].copy_from_slice(&f32::from_scalar(scalar).to_ne_bytes()),
        Compute::F64 => bytes = f64::from_scalar(scalar).to_ne_bytes(),
    }
    u64::from_ne_bytes(bytes)
}
