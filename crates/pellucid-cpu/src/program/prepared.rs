//! A lowered program, and the values that it computes once per run.

use crate::program::fold::FoldKernel;
use crate::program::kernel_schedule::KernelScheduleCache;
use crate::program::loops::{BinaryLoop, ChainLoop, Opcode, TernaryLoop, UnaryLoop};
use crate::program::slot::ValueSlot;
use pellucid_ir::formula::{Uniform, UniformSource};
use pellucid_ir::kernel::Params;
use pellucid_ir::{Compute, Element, Scalar};
use pellucid_runtime::list::List;

/// A lowered program, ready to be scheduled.
pub(crate) struct PreparedProgram {
    /// The inputs and their conversions.
    pub(crate) inputs: Vec<PreparedInput>,
    /// The values that are the same for every element of one run.
    pub(crate) uniforms: Vec<Uniform>,
    /// The instructions, in the order of the program.
    pub(crate) steps: Vec<PreparedStep>,
    /// The outputs and their conversions.
    pub(crate) outputs: Vec<PreparedOutput>,
    /// The size of one value of every slot, in bytes.
    pub(crate) sizes: Vec<u8>,
    /// The only instruction, if the program is one loop over the memory of its operands.
    pub(crate) single: Option<SingleInstr>,
    /// The index of the uniform that is the only output, if the program has no instructions and stores it unconverted.
    pub(crate) constant: Option<usize>,
    /// The schedules built so far.
    pub(crate) schedules: KernelScheduleCache,
}

/// An input and its conversion to a compute type.
pub(crate) struct PreparedInput {
    /// The size of one element in memory, in bytes.
    pub(crate) size: usize,
    /// The conversion to the compute type; `None` if memory holds the compute type.
    pub(crate) load: Option<UnaryLoop>,
    /// Whether the input has one value for each row instead of one for each element.
    pub(crate) per_row: bool,
    /// The last step that reads the input, counted from 1; `usize::MAX` if an output stores the input.
    pub(crate) last_read: usize,
}

/// The loop of an instruction, in every form that its operands may require.
#[derive(Clone, Copy)]
pub(crate) enum KernelFn {
    /// An instruction of one operand.
    Unary(UnaryLoop),
    /// An instruction of two operands: tile with tile, tile with one value, one value with tile.
    Binary([BinaryLoop; 3]),
    /// An instruction of three operands. Bit k of the index is set if operand k is a tile; some forms do not exist.
    Ternary([Option<TernaryLoop>; 8]),
    /// A row reduction, with the two factors if it sums products.
    Reduce(FoldKernel, Option<[ValueSlot; 2]>),
    /// The index of each element within its row.
    RowIndex,
}

/// A lowered instruction.
pub(crate) struct PreparedStep {
    /// The loop.
    pub(crate) kernel: KernelFn,
    /// The opcode within a fused chain and the loop that runs chains of its type, if the instruction can be fused.
    pub(crate) fusable: Option<(Opcode, ChainLoop)>,
    /// The slots of the operands.
    pub(crate) args: List<ValueSlot, 3>,
    /// True if the instruction is a selection, whose operands are a mask, the value where it is true, and the value
    /// where it is false.
    pub(crate) selects: bool,
    /// The other operand, if the instruction tests whether it equals the index within the row.
    pub(crate) equals_row_index: Option<ValueSlot>,
}

/// An output and its conversion from a compute type.
pub(crate) struct PreparedOutput {
    /// The value that is stored.
    pub(crate) slot: ValueSlot,
    /// The conversion to the dtype in memory; `None` if memory holds the compute type.
    pub(crate) store: Option<UnaryLoop>,
    /// The size of one element in memory, in bytes.
    pub(crate) size: usize,
    /// Whether the output has one value for each row instead of one for each element.
    pub(crate) per_row: bool,
    /// The step, counted from 1, that can write its result directly to the memory of the output.
    pub(crate) direct: Option<usize>,
}

/// An operand of the only instruction of a program.
#[derive(Clone, Copy)]
pub(crate) enum SingleArg {
    /// The instruction does not have this operand.
    None,
    /// The index of an input and the bytes of one element.
    Input(u8, u8),
    /// The index of a uniform.
    Uniform(u8),
}

/// The only instruction of a program whose loads and stores need no conversion, or are part of its loop.
pub(crate) struct SingleInstr {
    /// The loop: unary or binary.
    pub(crate) kernel: KernelFn,
    /// The opcode and the fused loop that overwrite an operand without a copy of it. `None` if the fused loop lacks the
    /// instruction, or computes it through memory.
    pub(crate) in_place: Option<(Opcode, ChainLoop)>,
    /// The operands.
    pub(crate) args: [SingleArg; 2],
    /// The size of one result, in bytes.
    pub(crate) size: usize,
}

impl PreparedProgram {
    /// Returns the slot of the first step's result.
    pub(crate) fn first_step(&self) -> usize {
        self.inputs.len() + self.uniforms.len()
    }

    /// Returns the bytes of every uniform, rounded to its compute type.
    pub(crate) fn uniform_values(&self, params: &Params, row_length: usize) -> List<u64, 8> {
        self.uniforms.iter().map(|u| self.uniform_value(u, params, row_length)).collect()
    }

    /// Returns the bytes of one uniform, rounded to its compute type.
    #[inline]
    pub(crate) fn uniform_value(&self, uniform: &Uniform, params: &Params, row_length: usize) -> u64 {
        let scalar = match uniform.source {
            UniformSource::Param(p) => params[p as usize],
            UniformSource::Literal(v) => v,
            UniformSource::RowLength => Scalar::from(row_length),
        };
        scalar_bits(scalar, uniform.compute)
    }
}

/// Returns `scalar`, rounded once to a compute type, in the first bytes of a `u64`.
pub(crate) fn scalar_bits(scalar: Scalar, compute: Compute) -> u64 {
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
