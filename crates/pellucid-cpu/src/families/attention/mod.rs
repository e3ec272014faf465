//! `Attention`: what queries find at keys, and its gradient, one head after the other.
//!
//! ```text
//! for each head of keys and values              (packed once, for all queries)
//!   for each block of ROWS queries
//!     scores = queries · keysᵀ                  up to the last key that a query of the block sees
//!     weights, in place of the scores           `rows`
//!     result = weights · values
//! ```
//!
//! Backward goes the same way, and keeps the weights and the gradients of the scores of as many blocks as stay in the cache;
//! then each block of keys takes its share of them.
//!
//! - `blocks`: these loops;
//! - `rows`: from scores to weights, and back;
//! - this file: what fits, and the dtypes.
//!
//! Threads take heads, and, where there are few of them, blocks. No choice changes a bit.

mod blocks;
mod rows;
#[cfg(test)]
mod sweep;
#[cfg(test)]
mod tests;

use crate::family::CpuFamily;
use crate::operand::Operand;
use blocks::{Gradient, Problem, Stack};
use pellucid_ir::kernel::{Attention, AttentionPart, Kernel, Meta};
use pellucid_ir::{DType, Error, Result};
use pellucid_runtime::list::List;
use pellucid_runtime::threads::SharedPtr;
use pellucid_simd::Float;
use pellucid_simd::Isa;
use rows::Mask;

/// Shapes and dtypes.
fn metas(operands: &[Operand<'_>]) -> List<Meta, 8> {
    operands.iter().map(|o| Meta { shape: o.shape().clone(), dtype: o.dtype }).collect()
}

impl CpuFamily for Attention {
    fn check(&self, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
        let made = Kernel::Attention(*self).infer(&metas(inputs))?;
        // Vectors of a result lie along its last axis.
        let dense =
            |o: &Operand<'_>| o.shape().last().is_none_or(|&len| len <= 1) || o.layout.strides().last() == Some(&1);
        if metas(outputs)[..] != made[..] || !outputs.iter().all(dense) {
            let help = "outputs are those that the inputs ask for, and dense along the last axis";
            return Err(Error::shapes("attention", outputs.iter().map(|o| o.shape()), help));
        }
        Ok(())
    }

    fn run(&self, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
        attention_at(Isa::best(), self, inputs, outputs)
    }
}

/// The same by one instruction set, which the machine has.
fn attention_at(isa: Isa, kernel: &Attention, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
    match inputs[0].dtype {
        DType::F64 => run::<f64>(isa, kernel, inputs, outputs),
        _ => run::<f32>(isa, kernel, inputs, outputs),
    }
}

fn run<T: Float>(isa: Isa, kernel: &Attention, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
    let sizes = kernel.sizes(&metas(&inputs[..3])).expect("the shapes have been inferred from them");
    let (x, y) = (|i: usize| stack::<T>(&inputs[i]), |i: usize| stack::<T>(&outputs[i]));
    let mask = inputs.last().filter(|_| kernel.masked).map(|mask| match mask.dtype {
        DType::Bool => Mask::Seen(stack(mask)),
        _ => Mask::Added(stack(mask)),
    });
    let problem = Problem { isa, kernel, sizes, q: x(0), k: x(1), v: x(2), mask };
    // SAFETY: the arrays have the shapes that the family asks for, outputs overlap nothing, and are dense along their last
    // axis; the isa is this machine's.
    unsafe {
        match kernel.part {
            AttentionPart::Result => problem.result(y(0), y(1)),
            AttentionPart::Gradient => {
                problem.gradient(&Gradient { g: x(3), o: x(4), logs: x(5), dq: y(0), dk: y(1), dv: y(2) })
            }
        }
    }
}

/// The matrices of an operand, by sequence and head; one without a fourth axis is a column each.
fn stack<T>(o: &Operand<'_>) -> Stack<T> {
    let mut strides = [0; 4];
    strides.iter_mut().zip(&*o.layout.strides()).for_each(|(to, &stride)| *to = stride);
    let [sequence, head, row, column] = strides;
    Stack { data: SharedPtr(o.first::<T>().get()), sequence, head, row, column }
}
