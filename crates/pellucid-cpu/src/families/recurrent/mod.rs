//! `Recurrent`: all steps of a layer in one kernel, forward and backward.
//!
//! - `cell`: the equations of one step, on vectors;
//! - `steps`: the loop over time, with weights that are packed once;
//! - this file: what fits, and the dtypes.
//!
//! Threads take sequences, and, where there are few of them, the columns of a step's products. No choice changes a bit.

mod cell;
mod steps;
#[cfg(test)]
mod sweep;
#[cfg(test)]
mod tests;

use crate::family::CpuFamily;
use crate::operand::Operand;
use crate::program;
use pellucid_ir::kernel::{Cell, Kernel, Meta, Recurrent, RecurrentPart, RecurrentSizes};
use pellucid_ir::{DType, Error, Layout, Result};
use pellucid_runtime::CpuBuffer;
use pellucid_runtime::list::List;
use pellucid_runtime::threads::SharedPtr;
use pellucid_simd::Float;
use pellucid_simd::Isa;
use steps::{Gradient, Problem, States};

/// What an operand is.
fn meta(operand: &Operand<'_>) -> Meta {
    Meta { shape: operand.shape().clone(), dtype: operand.dtype }
}

impl CpuFamily for Recurrent {
    fn check(&self, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
        let metas: List<Meta, 9> = inputs.iter().map(meta).collect();
        let made = Kernel::Recurrent(*self).infer(&metas)?;
        let fits = |(o, m): (&Operand<'_>, &Meta)| meta(o) == *m && o.layout.is_contiguous();
        if outputs.len() != made.len() || !outputs.iter().zip(&made).all(fits) {
            let shapes = outputs.iter().map(|o| o.shape());
            return Err(Error::shapes("recurrent", shapes, "outputs are dense, and those that the inputs ask for"));
        }
        Ok(())
    }

    fn run(&self, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
        recurrent_at(Isa::best(), self, inputs, outputs)
    }
}

/// The same by one instruction set, which the machine has, on operands that [`check`] accepts.
fn recurrent_at(isa: Isa, kernel: &Recurrent, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
    let metas: List<Meta, 9> = inputs.iter().map(meta).collect();
    let sizes = kernel.sizes(&metas).expect("the shapes have been inferred from them");
    match inputs[0].dtype {
        DType::F64 => run::<f64>(isa, kernel, sizes, inputs, outputs),
        _ => run::<f32>(isa, kernel, sizes, inputs, outputs),
    }
}

fn run<T: Float>(
    isa: Isa,
    kernel: &Recurrent,
    sizes: RecurrentSizes,
    inputs: &[Operand<'_>],
    outputs: &[Operand<'_>],
) -> Result<()> {
    let states = kernel.part == RecurrentPart::States;
    let mut rooms = List::<CpuBuffer, 4>::new();
    let mut dense = List::<*mut u8, 9>::new();
    for (k, input) in inputs.iter().enumerate() {
        // The gates are brought where they are to be, below.
        let there = input.layout.is_contiguous() || states && k == 0;
        dense.push(if there { first_byte(input) } else { copied(input, &mut rooms)? });
    }
    let lengths = kernel.lengths.then(|| {
        let numbers = *dense.last().expect("the lengths are the last input");
        // SAFETY: the lengths are dense, and as many as sequences.
        unsafe { std::slice::from_raw_parts(numbers.cast::<i64>(), sizes.batch) }
    });
    if let Some(&length) = lengths.into_iter().flatten().find(|&&n| n < 0 || n as usize > sizes.steps) {
        let reason = format!("lengths are in 0..={}, the number of steps; got {length}", sizes.steps);
        return Err(Error::invalid("recurrent", reason));
    }
    let x = |k: usize| SharedPtr(dense[k].cast::<T>());
    let y = |k: usize| SharedPtr(first_byte(&outputs[k]).cast::<T>());
    let lstm = kernel.cell == Cell::Lstm;
    let nothing = SharedPtr(std::ptr::null_mut());
    let when = |there: bool, p: &dyn Fn() -> SharedPtr<T>| if there { p() } else { nothing };
    let weights = if states { x(1) } else { x(2) };
    let projection = when(kernel.projected, &|| x(kernel.inputs() - 1 - usize::from(kernel.lengths)));
    let problem = Problem { isa, kernel, sizes, weights, projection, lengths };
    if states {
        if first_byte(&inputs[0]) != first_byte(&outputs[0]) || !inputs[0].layout.is_contiguous() {
            program::copy(&inputs[0], &outputs[0])?;
        }
        let arrays = States {
            bias: x(2),
            first: [x(3), when(lstm, &|| x(4))],
            gates: y(0),
            states: y(1),
            cells: when(lstm, &|| y(2)),
        };
        // SAFETY: all arrays are dense, and have the shapes that the family asks for; outputs overlap no input, but
        // for the gates, which are read no more.
        return unsafe { problem.states(&arrays) };
    }
    let arrays = Gradient {
        gates: x(0),
        states: x(1),
        cells: when(lstm, &|| x(5)),
        grads: x(3),
        last: [x(4), when(lstm, &|| x(6))],
        to: y(0),
        first: [y(1), when(lstm, &|| y(2))],
        whole: when(kernel.projected, &|| y(3)),
    };
    // SAFETY: as above.
    unsafe { problem.gradient(&arrays) }
}

/// Where the first element lies.
fn first_byte(o: &Operand<'_>) -> *mut u8 {
    o.base.wrapping_add(o.layout.offset() * o.dtype.size())
}

/// A dense copy, in a room of its own.
fn copied(input: &Operand<'_>, rooms: &mut List<CpuBuffer, 4>) -> Result<*mut u8> {
    let layout = Layout::contiguous(input.shape().clone());
    let room = CpuBuffer::scratch(input.shape().size().saturating_mul(input.dtype.size()))?;
    let base = room.ensure()?.as_ptr();
    rooms.push(room);
    program::copy(input, &Operand { base, layout: &layout, dtype: input.dtype })?;
    Ok(base)
}
