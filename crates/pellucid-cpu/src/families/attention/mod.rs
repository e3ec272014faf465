//! `Attention`: scaled dot-product attention and its gradient, computed separately for each head.
//!
//! ```text
//! for each head of keys and values              (packed once for all queries, unless these are few)
//!   for each block of BLOCK_ROWS queries
//!     scores = queries · keysᵀ                  up to the last key that is visible to a query of the block
//!     weights, in place of the scores           `rows`
//!     output = weights · values
//! ```
//!
//! The backward pass has the same loops. It keeps the weights and the gradients of the scores of as many blocks of
//! queries as fit the cache; each block of keys then adds the contribution of these queries to its gradients.
//!
//! - `blocks`: these loops;
//! - `rows`: the softmax of the scores and its gradient;
//! - `factors`: the products, whose right factors are packed once for each head;
//! - `matrices`: the matrices of the heads of an operand;
//! - `scratch`: slices of scratch memory;
//! - this file: operand checks, dtypes and dispatch.
//!
//! Heads are distributed over threads; if there are fewer heads than threads, the blocks of each head are distributed
//! instead. Neither choice changes a bit of the results.

#[cfg(test)]
mod bf16_tests;
mod blocks;
mod factors;
mod matrices;
mod rows;
mod scratch;
#[cfg(test)]
mod sweep;
#[cfg(test)]
mod tests;

use crate::family::CpuFamily;
use crate::operand::Operand;
use blocks::{AttentionGradientArrays, AttentionProblem};
use matrices::MatrixStack;
use pellucid_ir::kernel::{Attention, AttentionPart, metas};
use pellucid_ir::{DType, Result};
use pellucid_runtime::threads::SharedPtr;
use pellucid_simd::Float;
use pellucid_simd::Isa;
use rows::AttentionMask;

impl CpuFamily for Attention {
    fn run(&self, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
        run_with_isa(Isa::best(), self, inputs, outputs)
    }
}

/// Runs the kernel with the instruction set `isa`, which the processor supports, on operands that its rule
/// accepts.
///
/// # Errors
/// Returns an error if scratch memory cannot be allocated.
fn run_with_isa(isa: Isa, kernel: &Attention, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
    match inputs[0].dtype {
        DType::F64 => run_typed::<f64>(isa, kernel, inputs, outputs),
        _ => run_typed::<f32>(isa, kernel, inputs, outputs),
    }
}

/// Runs the kernel for elements of type `T`.
///
/// # Errors
/// Returns an error if scratch memory cannot be allocated.
fn run_typed<T: Float>(isa: Isa, kernel: &Attention, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
    let sizes = kernel.sizes(&metas(&inputs[..3])).expect("the sizes must be valid after `check`");
    let (input, output) = (|i: usize| matrix_stack::<T>(&inputs[i]), |i: usize| matrix_stack::<T>(&outputs[i]));
    let mask = kernel.mask(inputs).map(|mask| match mask.dtype {
        DType::Bool => AttentionMask::Boolean(matrix_stack(mask)),
        _ => AttentionMask::Additive(matrix_stack(mask)),
    });
    let problem = AttentionProblem {
        isa,
        kernel,
        sizes,
        q: input(Attention::Q),
        k: input(Attention::K),
        v: input(Attention::V),
        mask,
    };
    // SAFETY: the array contract. *shape* and *contiguous*: `check` has compared shapes, dtypes and strides.
    // *exclusive*: an output overlaps no other operand, and a kernel owns its outputs while it runs. *isa*: the
    // processor supports the instruction set (this function's precondition).
    unsafe {
        match kernel.part {
            AttentionPart::Result => problem.compute_output(output(0), output(1)),
            AttentionPart::Gradient => problem.compute_gradient(&AttentionGradientArrays {
                g: input(Attention::GRADIENT),
                o: input(Attention::RESULT),
                log_sums: input(Attention::LOG_SUMS),
                dq: output(0),
                dk: output(1),
                dv: output(2),
            }),
        }
    }
}

/// Returns the matrices of an operand, indexed by sequence and head. For an operand without a fourth axis, the matrix
/// of a head is one column.
fn matrix_stack<T>(o: &Operand<'_>) -> MatrixStack<T> {
    let mut strides = [0; 4];
    strides.iter_mut().zip(&*o.layout.strides()).for_each(|(to, &stride)| *to = stride);
    let [sequence, head, row, column] = strides;
    MatrixStack { data: SharedPtr(o.first::<T>().get()), sequence, head, row, column }
}
