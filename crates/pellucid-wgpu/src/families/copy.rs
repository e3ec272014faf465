//! `Copy`: writes the values of an array to another layout or dtype.

use super::GpuFamily;
use super::map::describe_map;
use crate::dispatch_list::DispatchList;
use crate::operand::DeviceOperands;
use crate::shader::access::same_size_integer;
use pellucid_ir::Result;
use pellucid_ir::formula::{InstructionOperand, Load, Program, Store};
use pellucid_ir::kernel::CopyValues;

impl GpuFamily for CopyValues {
    /// Runs a program without instructions: the load is exact, the store rounds once.
    fn describe(&self, list: &mut DispatchList<'_>, operands: &DeviceOperands<'_>) -> Result<()> {
        copy(list, operands)
    }
}

/// Copies the input to the output.
pub(super) fn copy(list: &mut DispatchList<'_>, operands: &DeviceOperands<'_>) -> Result<()> {
    let (mut input, mut output) = (operands.inputs[0], operands.outputs[0]);
    if input.dtype == output.dtype {
        // Copies without conversion move integers of the same size, so that all bit patterns are preserved.
        let integer = same_size_integer(input.dtype);
        (input.dtype, output.dtype) = (integer, integer);
    }
    let compute = input.dtype.compute();
    let program = Program::new(
        "copy",
        vec![Load { storage: input.dtype, compute, per_row: false }],
        Vec::new(),
        Vec::new(),
        Default::default(),
        vec![Store { value: InstructionOperand::Input(0), compute, storage: output.dtype, per_row: false }],
    );
    describe_map(list, &program, &DeviceOperands { inputs: vec![input], outputs: vec![output] })
}
