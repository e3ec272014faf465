//! Splicing: joins programs that run one after the other on the same elements into one program.
//!
//! A value that one program stores and the next one loads is rounded to the dtype in which it would have been stored.
//! The spliced program is therefore bit-identical to the separate programs.

use super::graph::MAX_OPERANDS;
use super::primitive::{Binary, Unary};
use super::program::{InstructionOperand, Load, MAX_STEPS, Op, Program, Step, Store, Uniform, UniformSource};
use super::registers::{self, UnallocatedProgram, Value};
use crate::dtype::{Compute, DType, Scalar};
use crate::kernel::Params;
use smallvec::SmallVec;

/// A builder that joins programs into one.
#[derive(Default)]
pub struct Splice {
    /// The loads of the program so far, each with the number of the array that it reads.
    loads: Vec<(usize, Load)>,
    uniforms: Vec<Uniform>,
    params: Vec<Scalar>,
    draft: UnallocatedProgram,
    /// The operations and operands of the instructions of the draft, for reusing equal instructions.
    seen_steps: Vec<(Op, Compute, SmallVec<[Value; 3]>)>,
    /// For every instruction, whether its result has one value for each row.
    per_row: Vec<bool>,
    rows: bool,
}

/// An output of a spliced part, with the dtype in which it would have been stored.
#[derive(Clone, Copy, Debug)]
pub struct SplicedValue {
    value: Value,
    compute: Compute,
    storage: DType,
    per_row: bool,
}

/// The source of an input of a part.
#[derive(Clone, Copy, Debug)]
pub enum SpliceOperand {
    /// The array with this number.
    Array(usize),
    /// An output of an earlier part.
    Value(SplicedValue),
}

/// A finished [`Splice`].
#[derive(Debug)]
pub struct Spliced {
    /// The program.
    pub program: Program,
    /// The run-time parameters of the program.
    pub params: Params,
    /// For every input of the program, the number of its array.
    pub arrays: Vec<usize>,
}

impl Splice {
    /// Creates an empty splice. `rows` is true if any part is a row program; all parts then have the same rows.
    pub fn new(rows: bool) -> Splice {
        Splice { rows, ..Splice::default() }
    }

    /// Returns true if the splice was created for row programs.
    pub fn has_rows(&self) -> bool {
        self.rows
    }

    /// Adds an array of `dtype` as an input of the program, even if no part reads it.
    pub fn load(&mut self, array: usize, dtype: DType) -> SplicedValue {
        self.load_as(array, Load { storage: dtype, compute: dtype.compute(), per_row: false }, dtype)
    }

    /// Adds an array as an input of the program. A part that reads the value treats it as stored in dtype `storage`.
    pub fn load_as(&mut self, array: usize, load: Load, storage: DType) -> SplicedValue {
        SplicedValue { value: self.input(array, load), compute: load.compute, storage, per_row: false }
    }

    /// Appends `program` to the parts so far and returns its outputs, or the reason why it cannot be spliced.
    pub fn append(
        &mut self,
        program: &Program,
        params: &Params,
        inputs: &[SpliceOperand],
    ) -> Result<Vec<SplicedValue>, &'static str> {
        let first_param = self.params.len();
        self.params.extend(params.iter());
        let mut values = Vec::with_capacity(inputs.len());
        for (load, source) in program.inputs.iter().zip(inputs) {
            values.push(match *source {
                SpliceOperand::Array(array) => self.input(array, *load),
                SpliceOperand::Value(value) => self.reload(value, load)?,
            });
        }
        let mut uniforms = Vec::with_capacity(program.uniforms.len());
        for uniform in &program.uniforms {
            let source = match uniform.source {
                UniformSource::Param(k) => {
                    let k = first_param + k as usize;
                    UniformSource::Param(
                        u8::try_from(k).map_err(|_| "the fused program would have too many parameters")?,
                    )
                }
                other => other,
            };
            uniforms.push(self.uniform(Uniform { source, ..*uniform }));
        }
        let mut registers: Vec<Option<Value>> = vec![None; program.registers.len()];
        let mut rows: Vec<Option<Value>> = vec![None; program.row_registers.len()];
        let value_of = |operand: InstructionOperand, registers: &[Option<Value>], rows: &[Option<Value>]| match operand
        {
            InstructionOperand::Input(i) => values[i as usize],
            InstructionOperand::Uniform(u) => uniforms[u as usize],
            InstructionOperand::Register(r) => {
                registers[r as usize].expect("a register must be written before it is read")
            }
            InstructionOperand::Row(r) => rows[r as usize].expect("a register must be written before it is read"),
        };
        for Step { op, compute, into, args } in &program.steps {
            let args: SmallVec<[Value; 3]> = args.iter().map(|&a| value_of(a, &registers, &rows)).collect();
            if matches!(op, Op::Reduce(_)) && args.iter().all(|a| self.is_per_row(*a)) {
                return Err("a per-row value would be reduced over the row");
            }
            let value = self.step(*op, *compute, &args);
            match *into {
                InstructionOperand::Register(r) => registers[r as usize] = Some(value),
                InstructionOperand::Row(r) => rows[r as usize] = Some(value),
                InstructionOperand::Input(_) | InstructionOperand::Uniform(_) => {
                    return Err("an instruction would write to an input or a uniform");
                }
            }
        }
        let output = |store: &Store| {
            let value = value_of(store.value, &registers, &rows);
            SplicedValue { value, compute: store.compute, storage: store.storage, per_row: store.per_row }
        };
        Ok(program.outputs.iter().map(output).collect())
    }

    /// Returns the program that stores these values, in order, or the limit that it would exceed.
    pub fn finish(self, name: &'static str, outputs: &[SplicedValue]) -> Result<Spliced, &'static str> {
        let store = |m: &SplicedValue| {
            (
                m.value,
                Store {
                    value: InstructionOperand::Input(0),
                    compute: m.compute,
                    storage: m.storage,
                    per_row: m.per_row,
                },
            )
        };
        let allocated = registers::allocate(&self.draft, outputs.iter().map(store).collect());
        let largest = [self.loads.len(), self.uniforms.len(), allocated.registers.len(), allocated.row_registers.len()];
        if largest.into_iter().any(|n| n > MAX_OPERANDS) || allocated.steps.len() > MAX_STEPS {
            return Err("the fused program would have too many operands or instructions");
        }
        let (arrays, loads) = self.loads.into_iter().unzip();
        let registers = (allocated.registers, allocated.row_registers);
        let program = Program::new(name, loads, self.uniforms, allocated.steps, registers, allocated.outputs);
        Ok(Spliced { program, params: self.params.into_iter().collect(), arrays })
    }

    fn input(&mut self, array: usize, load: Load) -> Value {
        let existing = self.loads.iter().position(|existing| *existing == (array, load));
        let position = existing.unwrap_or_else(|| {
            self.loads.push((array, load));
            self.loads.len() - 1
        });
        // The number of an input wraps beyond 255; `finish` rejects programs with more inputs.
        Value::Input(position as u8)
    }

    fn uniform(&mut self, uniform: Uniform) -> Value {
        let literal = |u: &Uniform| match u.source {
            UniformSource::Literal(v) => Some(v.to_f64().to_bits()),
            _ => None,
        };
        let same = |u: &Uniform| *u == uniform && literal(u) == literal(&uniform);
        let position = self.uniforms.iter().position(same).unwrap_or_else(|| {
            self.uniforms.push(uniform);
            self.uniforms.len() - 1
        });
        Value::Uniform(position)
    }

    /// Returns true if the value has one element for each row.
    fn is_per_row(&self, value: Value) -> bool {
        match value {
            Value::Input(i) => self.loads[i as usize].1.per_row,
            Value::Uniform(_) => true,
            Value::Step(s) => self.per_row[s],
        }
    }

    fn step(&mut self, op: Op, compute: Compute, args: &[Value]) -> Value {
        let same = |(o, c, a): &(Op, Compute, SmallVec<[Value; 3]>)| *o == op && *c == compute && a[..] == *args;
        if let Some(existing) = self.seen_steps.iter().position(same) {
            return Value::Step(existing);
        }
        let per_row = match op {
            Op::Reduce(_) => true,
            Op::RowIndex => false,
            _ => self.rows && args.iter().all(|a| self.is_per_row(*a)),
        };
        self.seen_steps.push((op, compute, args.into()));
        self.per_row.push(per_row);
        self.draft.push(op, compute, args, op.result(compute), per_row)
    }

    /// Returns the value that a program would load as `load` if `stored` had been stored, or the reason why no
    /// instruction can compute this value.
    fn reload(&mut self, stored: SplicedValue, load: &Load) -> Result<Value, &'static str> {
        if load.per_row && !stored.per_row {
            return Err("an input with one value per row would have one value per element");
        }
        let (from, to) = (stored.compute, load.compute);
        let exact = from.storage() == stored.storage;
        let is_float_rounding = from.is_float() && stored.storage.is_float();
        if !exact && !is_float_rounding {
            return Err("the intermediate value is an integer that would wrap when stored");
        }
        // The value and its current compute type.
        let (mut value, mut compute) = (stored.value, from);
        let mut convert = |splice: &mut Splice, value: Value, to: Compute| match (compute == to, value) {
            (true, _) => Ok(value),
            // A uniform must be rounded once, from full width.
            (_, Value::Uniform(_)) => Err("a uniform value would be read in a compute type that differs from its own"),
            _ => Ok(splice.step(Op::Convert(to), std::mem::replace(&mut compute, to), &[value])),
        };
        if !exact && stored.storage.size() < from.size() {
            value = match stored.storage {
                DType::F32 => convert(self, value, Compute::F32)?,
                half if half.compute() == from => self.step(Op::Round(half), from, &[value]),
                _ => return Err("a 64-bit value would be stored in a 16-bit float"),
            };
        }
        match to {
            Compute::I32 | Compute::I64 | Compute::Mask if from.is_float() => {
                Err("a float value would be read as an integer")
            }
            _ => convert(self, value, to),
        }
    }
}

impl Op {
    /// Returns the type of the result for operands of type `compute`.
    pub(super) fn result(self, compute: Compute) -> Compute {
        match self {
            Op::Convert(to) => to,
            Op::Unary(op) if Unary::gives_mask(op) => Compute::Mask,
            Op::Binary(op) if Binary::gives_mask(op) => Compute::Mask,
            Op::RowIndex => Compute::I64,
            _ => compute,
        }
    }
}

impl Program {
    /// Returns this program with inputs and outputs that have one value for each row.
    pub fn with_per_row_operands(&self) -> Program {
        let inputs = self.inputs.iter().map(|load| Load { per_row: true, ..*load }).collect();
        let outputs = self.outputs.iter().map(|store| Store { per_row: true, ..*store }).collect();
        let registers = (self.registers.clone(), self.row_registers.clone());
        Program::new(self.name, inputs, self.uniforms.clone(), self.steps.clone(), registers, outputs)
    }

    /// Returns the program that converts one input from `from` to `to` like a copy: it loads the value in the compute
    /// type of `from` and rounds it once.
    pub fn cast(from: DType, to: DType) -> Program {
        let compute = from.compute();
        let load = Load { storage: from, compute, per_row: false };
        let store = Store { value: InstructionOperand::Input(0), compute, storage: to, per_row: false };
        Program::new("cast", vec![load], Vec::new(), Vec::new(), Default::default(), vec![store])
    }
}
