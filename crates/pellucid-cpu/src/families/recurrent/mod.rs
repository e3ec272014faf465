//! `Recurrent`: all time steps of a recurrent layer in one kernel, forward and backward.
//!
//! - `cell`: the equations of one step, vectorized;
//! - `steps`: the loop over time, with weights that are packed once;
//! - this file: operand checks, dtypes and dispatch.
//!
//! Sequences are distributed over threads; if there are fewer sequences than threads, the columns of the products of a
//! step are distributed instead. Neither choice changes a bit of the results.

mod cell;
mod steps;
#[cfg(test)]
mod sweep;
#[cfg(test)]
mod tests;

use crate::dense::DenseArray;
use crate::family::CpuFamily;
use crate::operand::Operand;
use crate::program;
use pellucid_ir::kernel::{Recurrent, RecurrentPart, RecurrentSizes, RnnMode, metas};
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
    // The first input of the forward pass, the contribution to the gates, is copied to the output below.
    let copied = usize::from(is_forward);
    let mut dense = List::<DenseArray<'_>, 9>::new();
    for input in &inputs[copied..] {
        dense.push(DenseArray::of_input(input, input.dtype)?);
    }
    let lengths = kernel.lengths.then(|| {
        let data = dense.last().expect("a kernel with lengths must have an input").first::<i64>();
        // SAFETY: the lengths are contiguous `i64` values, one per sequence: `check` has compared shape and dtype, and
        // a non-contiguous operand was copied.
        unsafe { std::slice::from_raw_parts(data.get(), sizes.batch) }
    });
    if let Some(&length) = lengths.into_iter().flatten().find(|&&n| n < 0 || n as usize > sizes.steps) {
        let reason = format!("lengths must be in 0..={}, the number of steps; got {length}", sizes.steps);
        return Err(Error::invalid(kernel.op, reason));
    }
    let input = |k: usize| dense[k - copied].first::<T>();
    let output = |k: usize| outputs[k].first::<T>();
    let lstm = kernel.cell == RnnMode::Lstm;
    let absent = SharedPtr(std::ptr::null_mut());
    let if_present = |is_present: bool, data: &dyn Fn() -> SharedPtr<T>| if is_present { data() } else { absent };
    let weights = if is_forward { input(1) } else { input(2) };
    let projection = if_present(kernel.projected, &|| input(kernel.inputs() - 1 - usize::from(kernel.lengths)));
    let problem = RecurrentProblem { isa, kernel, sizes, weights, projection, lengths };
    if is_forward {
        if inputs[0].first::<T>().get() != outputs[0].first().get() || !inputs[0].layout.is_contiguous() {
            program::copy(&inputs[0], &outputs[0])?;
        }
        let arrays = RecurrentStateArrays {
            bias: input(2),
            initial: [input(3), if_present(lstm, &|| input(4))],
            gates: output(0),
            states: output(1),
            cells: if_present(lstm, &|| output(2)),
        };
        // SAFETY: the array contract. *shape*: `check` has compared the shapes, the outputs are contiguous, and
        // non-contiguous inputs were copied. *exclusive*: an output overlaps no other operand, except that the first
        // output may be the first input, which is not read again; a kernel owns its outputs while it runs. *isa*: the
        // processor supports the instruction set (this function's precondition).
        return unsafe { problem.compute_states(&arrays) };
    }
    let arrays = RecurrentGradientArrays {
        gates: input(0),
        states: input(1),
        cells: if_present(lstm, &|| input(5)),
        state_grads: input(3),
        final_grads: [input(4), if_present(lstm, &|| input(6))],
        gate_grads: output(0),
        initial_grads: [output(1), if_present(lstm, &|| output(2))],
        total_grads: if_present(kernel.projected, &|| output(3)),
    };
    // SAFETY: the array contract. *shape*: `check` has compared the shapes, the outputs are contiguous, and
    // non-contiguous inputs were copied. *exclusive*: an output overlaps no other operand, and a kernel owns its
    // outputs while it runs. *isa*: the processor supports the instruction set (this function's precondition).
    unsafe { problem.compute_gradient(&arrays) }
}
