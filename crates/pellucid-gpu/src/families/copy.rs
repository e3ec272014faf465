//! `Copy`: writes the values of an array to another layout or dtype.

use super::GpuFamily;
use super::map::describe_map;
use crate::dispatch_list::DispatchList;
use crate::operand::DeviceOperands;
use crate::shader::same_size_integer;
use pellucid_ir::Result;
use pellucid_ir::formula::{InstructionOperand, Load, Program, Store};
use pellucid_ir::kernel::CopyValues;

impl GpuFamily for CopyValues {
    fn describe(&self, list: &mut DispatchList<'_>, operands: &DeviceOperands<'_>) -> Result<()> {
        copy(list, operands);
        Ok(())
    }
}

/// Adds the dispatch that copies the input to the output: a program without instructions, whose load is exact and whose
/// store rounds once.
pub(super) fn copy(list: &mut DispatchList<'_>, operands: &DeviceOperands<'_>) {
    let (mut input, mut output) = (operands.inputs[0], operands.outputs[0]);
    if input.dtype == output.dtype {
        // Copies without conversion move integers of the same size, so that all bit patterns are preserved.
        let integer = same_size_integer(input.dtype);
        (input.dtype, output.dtype) = (integer, integer);
    }
    let compute = input.dtype.compute();
    let store = Store { value: InstructionOperand::Input(0), compute, storage: output.dtype, per_row: false };
    let load = Load { storage: input.dtype, compute, per_row: false };
    let program = Program::new("copy", vec![load], vec![], vec![], Default::default(), vec![store]);
    describe_map(list, &program, &DeviceOperands { inputs: vec![input], outputs: vec![output] });
}
