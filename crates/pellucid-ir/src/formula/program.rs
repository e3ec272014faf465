//! Programs: formulas compiled for the dtypes of their inputs and outputs.
//!
//! A program is a short list of register instructions that a backend runs tile by tile over a broadcast index space, or
//! row by row if it contains row reductions. It is pure data: the same program becomes a loop over SIMD kernels on the
//! CPU and a shader on a GPU.

use super::primitive::{Binary, RowOp, Unary};
use crate::dtype::{Compute, DType, Scalar};
use crate::error::{Error, Result};
use smallvec::SmallVec;
use std::any::Any;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::OnceLock;

/// A formula compiled for given dtypes.
pub struct Program {
    /// The name of the formula, for messages and profiles.
    pub name: &'static str,
    /// The inputs and their conversions.
    pub inputs: Vec<Load>,
    /// The uniforms: values that are the same for every element of one run.
    pub uniforms: Vec<Uniform>,
    /// The instructions in order. Every register is written before it is read.
    pub steps: Vec<Step>,
    /// The type of every tile register. A register is never both destination and source of one instruction.
    pub registers: Vec<Compute>,
    /// The type of every row register, which holds one value for each row.
    pub row_registers: Vec<Compute>,
    /// The outputs and their conversions.
    pub outputs: Vec<Store>,
    is_row: bool,
    /// The hash of all fields that equality compares.
    digest: OnceLock<u64>,
    prepared: [OnceLock<Box<dyn Any + Send + Sync>>; BACKENDS],
}

/// The maximum number of instructions: backends number inputs, uniforms and results of instructions with 16 bits.
pub(super) const MAX_STEPS: usize = 60_000;

/// The number of backend kinds. The backend of each kind can cache its own form of a program in the program.
const BACKENDS: usize = 3;

/// An input: its dtype in memory and the type to which it is converted when it is loaded.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Load {
    /// The dtype in memory.
    pub storage: DType,
    /// The type after conversion.
    pub compute: Compute,
    /// Whether the input has one value for each row instead of one for each element.
    pub per_row: bool,
}

/// A value that is the same for every element of one run.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Uniform {
    /// The source of the value.
    pub source: UniformSource,
    /// The type to which the value is rounded. It is rounded only once.
    pub compute: Compute,
}

/// The source of a uniform.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum UniformSource {
    /// The run-time parameter with this index.
    Param(u8),
    /// A literal of the formula.
    Literal(Scalar),
    /// The number of elements of a row.
    RowLength,
}

/// An operand of an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum InstructionOperand {
    /// An input, after conversion to its compute type: a tile, or one value for each row.
    Input(u8),
    /// A tile register.
    Register(u16),
    /// A value that is constant during one run.
    Uniform(u16),
    /// A row register: a value that is constant along the row.
    Row(u16),
}

/// The operation of an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Op {
    /// A unary function.
    Unary(Unary),
    /// A binary function of one type.
    Binary(Binary),
    /// `args[0] ? args[1] : args[2]`; the first is a mask, and `compute` is the type of the other two.
    Select,
    /// a·b + c, rounded once.
    MulAdd,
    /// Conversion from `compute` to this type.
    Convert(Compute),
    /// Rounding through a storage dtype and back.
    Round(DType),
    /// A reduction over the row; the destination is a row register.
    Reduce(RowOp),
    /// The index of the element within the row, as `I64`; this operation has no operands.
    RowIndex,
}

impl Op {
    /// Returns true for functions such as tanh and pow, which need many machine instructions.
    pub(crate) fn is_transcendental(self) -> bool {
        match self {
            Op::Unary(op) => op.is_transcendental(),
            Op::Binary(op) => op.is_transcendental(),
            _ => false,
        }
    }
}

/// One instruction.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Step {
    /// The operation.
    pub op: Op,
    /// The type of its operands; for `Select`, the type of the last two.
    pub compute: Compute,
    /// The destination: a `Row` if all operands are uniforms or per-row values, otherwise a `Register`.
    pub into: InstructionOperand,
    /// The operands.
    pub args: SmallVec<[InstructionOperand; 3]>,
}

/// An output: a value that is converted to a dtype and stored.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Store {
    /// The value.
    pub value: InstructionOperand,
    /// The type of the value.
    pub compute: Compute,
    /// The dtype in memory.
    pub storage: DType,
    /// Whether the output has one value for each row instead of one for each element.
    pub per_row: bool,
}

impl Program {
    /// Creates a program.
    pub fn new(
        name: &'static str,
        inputs: Vec<Load>,
        uniforms: Vec<Uniform>,
        steps: Vec<Step>,
        (registers, row_registers): (Vec<Compute>, Vec<Compute>),
        outputs: Vec<Store>,
    ) -> Program {
        let is_row = !row_registers.is_empty()
            || inputs.iter().any(|i| i.per_row)
            || outputs.iter().any(|o| o.per_row)
            || steps.iter().any(|s| s.op == Op::RowIndex)
            || uniforms.iter().any(|u| u.source == UniformSource::RowLength);
        let (digest, prepared) = Default::default();
        Program { name, inputs, uniforms, steps, registers, row_registers, outputs, is_row, digest, prepared }
    }

    /// Returns true if the program contains row reductions, per-row values, positions within a row or the length of a
    /// row. It must then run as a [`Row`](crate::kernel::Row) kernel.
    #[inline]
    pub fn is_row(&self) -> bool {
        self.is_row
    }

    /// Returns true if the program stores its only input unchanged.
    pub fn is_identity(&self) -> bool {
        match (&self.inputs[..], &self.outputs[..]) {
            ([input], [output]) => {
                output.value == InstructionOperand::Input(0)
                    && (input.storage, input.per_row) == (output.storage, false)
            }
            _ => false,
        }
    }

    /// Returns the number of run-time parameters that the program needs: one more than the largest index.
    #[inline]
    pub fn params(&self) -> usize {
        let needed = |uniform: &Uniform| match uniform.source {
            UniformSource::Param(index) => usize::from(index) + 1,
            UniformSource::Literal(_) | UniformSource::RowLength => 0,
        };
        self.uniforms.iter().map(needed).max().unwrap_or(0)
    }

    /// Returns the size in bytes of `size` elements of the first output.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the number of bytes does not fit `usize`.
    #[inline]
    pub fn output_bytes(&self, size: usize) -> Result<usize> {
        let element = self.outputs.first().map_or(0, |o| o.storage.size());
        size.checked_mul(element).ok_or_else(Error::size_overflow)
    }

    /// Returns the backend's own form of this program, which is cached in the program; `make` creates it on first use.
    /// `backend` is the kind of the backend: 0 for CPU, 1 for wgpu, 2 for any other backend. A backend must always use
    /// the same `T`.
    #[inline]
    pub fn prepared<T: Any + Send + Sync>(&self, backend: usize, make: impl FnOnce() -> T) -> &T {
        let form = self.prepared[backend].get_or_init(|| Box::new(make()));
        form.downcast_ref().expect("each backend kind must always use the same type")
    }
}

impl PartialEq for Program {
    fn eq(&self, other: &Program) -> bool {
        self.inputs == other.inputs
            && self.uniforms == other.uniforms
            && self.steps == other.steps
            && self.outputs == other.outputs
    }
}

impl Eq for Program {}

impl Hash for Program {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(*self.digest.get_or_init(|| {
            let mut state = DefaultHasher::new();
            (&self.inputs, &self.uniforms, &self.steps, &self.outputs).hash(&mut state);
            state.finish()
        }));
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for InstructionOperand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InstructionOperand::Input(i) => write!(f, "x{i}"),
            InstructionOperand::Register(r) => write!(f, "r{r}"),
            InstructionOperand::Uniform(u) => write!(f, "u{u}"),
            InstructionOperand::Row(s) => write!(f, "s{s}"),
        }
    }
}

impl fmt::Display for UniformSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UniformSource::Param(i) => write!(f, "parameter {i}"),
            UniformSource::Literal(value) => value.fmt(f),
            UniformSource::RowLength => f.write_str("row length"),
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Op::Unary(op) => f.write_str(op.name()),
            Op::Binary(op) => f.write_str(op.name()),
            Op::Select => f.write_str("select"),
            Op::MulAdd => f.write_str("mul_add"),
            Op::Convert(to) => write!(f, "convert_to_{}", to.storage()),
            Op::Round(dtype) => write!(f, "round_to_{dtype}"),
            Op::Reduce(op) => f.write_str(op.name()),
            Op::RowIndex => f.write_str("row_index"),
        }
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |items: Vec<String>| items.join(", ");
        let inputs = self.inputs.iter().map(|i| format!("{}{}", i.storage, if i.per_row { "/row" } else { "" }));
        writeln!(f, "{}({})", self.name, list(inputs.collect()))?;
        for (i, u) in self.uniforms.iter().enumerate() {
            writeln!(f, "  u{i} = {} as {}", u.source, u.compute.storage())?;
        }
        for s in &self.steps {
            let args = list(s.args.iter().map(|a| a.to_string()).collect());
            writeln!(f, "  {} = {}.{} {args}", s.into, s.op, s.compute.storage())?;
        }
        let outputs = self.outputs.iter().map(|o| format!("{} as {}", o.value, o.storage));
        writeln!(f, "  store {}", list(outputs.collect()))
    }
}
