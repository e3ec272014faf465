//! `Recurrent`: all time steps of a recurrent layer in one kernel, forward and backward.
//!
//! - `cell`: the equations of one step, vectorized;
//! - `factors`: the factors of the products, which may be rounded to `bf16`;
//! - `steps`: the loop over time, with weights that are packed once;
//! - this file: operand checks, dtypes and dispatch.
//!
//! Sequences are distributed over threads. If there are fewer sequences than threads and the products of a step are
//! large, the columns of these products are distributed instead. Neither choice changes a bit of the results.

mod cell;
mod factors;
mod steps;
#[cfg(test)]
mod sweep;
#[cfg(test)]
mod tests;

use crate::dense::DenseArray;
use crate::family::CpuFamily;
use crate::operand::Operand;
use crate::program;
use pellucid_ir::kernel::{Recurrent, RecurrentPart, RecurrentSizes, metas};
use pellucid_ir::{DType, Error, Result};
use pellucid_runtime::list::List;
use pellucid_runtime::threads::SharedPtr;
use pellucid_simd::Float;
use pellucid_simd::Isa;
use steps::{RecurrentGradientArrays, RecurrentProblem, RecurrentStateArrays};

impl CpuFamily for Recurrent {
    fn run(&self, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
        run_with_isa(Isa::best(), self, inputs, outputs)
    }
}

/// Runs the kernel with the instruction set `isa`, which the processor supports, on operands that its rule
/// accepts.
///
/// # Errors
/// Returns an error if a length is out of range or if memory cannot be allocated.
fn run_with_isa(isa: Isa, kernel: &Recurrent, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
    let sizes = kernel.sizes(&metas(inputs)).expect("the sizes must be valid after `check`");
    match inputs[0].dtype {
        DType::F64 => run_typed::<f64>(isa, kernel, sizes, inputs, outputs),
        _ => run_typed::<f32>(isa, kernel, sizes, inputs, outputs),
    }
}

/// Runs the kernel for elements of type `T`.
///
/// # Errors
/// Returns an error if a length is out of range or if memory cannot be allocated.
fn run_typed<T: Float>(
    isa: Isa,
    kernel: &Recurrent,
    sizes: RecurrentSizes,
    inputs: &[Operand<'_>],
    outputs: &[Operand<'_>],
) -> Result<()> {
    let is_forward = kernel.part == RecurrentPart::States;
    // The first input of the forward pass, the contribution to the gates, is copied to the first output below.
    let sources = if is_forward { [&outputs[..1], &inputs[1..]] } else { [inputs, &[]] };
    let mut dense = List::<DenseArray<'_>, 9>::new();
    for source in sources.into_iter().flatten() {
        dense.push(DenseArray::of_input(source, source.dtype)?);
    }
    let lengths = kernel.lengths(&dense).map(|lengths| {
        // SAFETY: the lengths are contiguous `i64` values, one per sequence: `check` has compared shape and dtype, and
        // a non-contiguous operand was copied.
        unsafe { std::slice::from_raw_parts(lengths.first::<i64>().get(), sizes.batch) }
    });
    if let Some(&length) = lengths.into_iter().flatten().find(|&&n| n < 0 || n as usize > sizes.steps) {
        let reason = format!("lengths must be in 0..={}, the number of steps; got {length}", sizes.steps);
        return Err(Error::invalid(kernel.op, reason));
    }
    let absent = SharedPtr(std::ptr::null_mut());
    let input = |array: &DenseArray<'_>| array.first::<T>();
    let optional_input = |array: Option<&DenseArray<'_>>| array.map_or(absent, input);
    let output = |array: &Operand<'_>| array.first::<T>();
    let optional_output = |array: Option<&Operand<'_>>| array.map_or(absent, output);
    let problem = |weights: &DenseArray<'_>, projection: Option<&DenseArray<'_>>| {
        let (weights, projection) = (input(weights), optional_input(projection));
        RecurrentProblem { isa, kernel, sizes, weights, projection, lengths }
    };
    if is_forward {
        if inputs[0].first::<T>().get() != outputs[0].first().get() || !inputs[0].layout.is_contiguous() {
            program::copy(&inputs[0], &outputs[0])?;
        }
        let operands = kernel.state_operands(&dense, outputs);
        let arrays = RecurrentStateArrays {
            bias: input(operands.bias),
            initial: [input(operands.initial_state), optional_input(operands.initial_cell)],
            gates: output(operands.gates),
            states: output(operands.states),
            cells: optional_output(operands.cells),
        };
        // SAFETY: the array contract. *shape*: `check` has compared the shapes, the outputs are contiguous, and
        // non-contiguous inputs were copied. *exclusive*: an output overlaps no other operand, except that the first
        // output may be the first input, which is not read again; a kernel owns its outputs while it runs. *isa*: the
        // processor supports the instruction set (this function's precondition).
        return unsafe { problem(operands.weights, operands.projection).compute_states(&arrays) };
    }
    let operands = kernel.gradient_operands(&dense, outputs);
    let arrays = RecurrentGradientArrays {
        gates: input(operands.gates),
        states: input(operands.states),
        cells: optional_input(operands.cells),
        state_grads: input(operands.state_grads),
        final_grads: [input(operands.final_state_grad), optional_input(operands.final_cell_grad)],
        gate_grads: output(operands.gate_grads),
        initial_grads: [output(operands.initial_state_grad), optional_output(operands.initial_cell_grad)],
        total_grads: optional_output(operands.total_grads),
    };
    // SAFETY: the array contract. *shape*: `check` has compared the shapes, the outputs are contiguous, and
    // non-contiguous inputs were copied. *exclusive*: an output overlaps no other operand, and a kernel owns its
    // outputs while it runs. *isa*: the processor supports the instruction set (this function's precondition).
    unsafe { problem(operands.weights, operands.projection).compute_gradient(&arrays) }
}
