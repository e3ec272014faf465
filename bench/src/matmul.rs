//! W8: matrix products: square, batched, with transposed operands as in backward passes, and the products of the layers
//! of W5.

use crate::harness::{Run, Work, Workload};
use crate::place::{compute, placed};
use pellucid::prelude::*;
use std::hint::black_box;

pub(crate) fn workloads() -> Vec<Workload> {
    vec![
        Workload::new("W8-256", "", || square(256, OperandLayout::Plain)),
        Workload::new("W8-512", "", || square(512, OperandLayout::Plain)),
        Workload::new("W8-1024", "", || square(1024, OperandLayout::Plain)),
        Workload::new("W8-2048", "", || square(2048, OperandLayout::Plain)),
        Workload::new("W8-256", "bf16", || product([256; 3], OperandLayout::Plain, DType::BF16)),
        Workload::new("W8-512", "bf16", || product([512; 3], OperandLayout::Plain, DType::BF16)),
        Workload::new("W8-1024", "bf16", || product([1024; 3], OperandLayout::Plain, DType::BF16)),
        Workload::new("W8-2048", "bf16", || product([2048; 3], OperandLayout::Plain, DType::BF16)),
        Workload::new("W8-bmm", "", || batched(DType::F32)),
        Workload::new("W8-bmm", "bf16", || batched(DType::BF16)),
        Workload::new("W8-512-AtB", "bf16", || product([512; 3], OperandLayout::TransposedA, DType::BF16)),
        Workload::new("W8-512-ABt", "bf16", || product([512; 3], OperandLayout::SecondTransposed, DType::BF16)),
        Workload::new("W8-512-AtB", "", || square(512, OperandLayout::TransposedA)),
        Workload::new("W8-512-ABt", "", || square(512, OperandLayout::SecondTransposed)),
        Workload::new("widen", "", || product([1024, 256, 1024], OperandLayout::SecondTransposed, DType::F32)),
        Workload::new("widen-input", "", || product([1024, 1024, 256], OperandLayout::Plain, DType::F32)),
        Workload::new("widen-weight", "", || product([1024, 1024, 256], OperandLayout::TransposedA, DType::F32)),
        Workload::new("narrow", "", || product([1024, 1024, 256], OperandLayout::SecondTransposed, DType::F32)),
        Workload::new("narrow-input", "", || product([1024, 256, 1024], OperandLayout::Plain, DType::F32)),
        Workload::new("narrow-weight", "", || product([256, 1024, 1024], OperandLayout::TransposedA, DType::F32)),
    ]
}

enum OperandLayout {
    /// A·B
    Plain,
    /// Aᵀ·B, the gradient of a weight.
    TransposedA,
    /// A·Bᵀ, the gradient of an input.
    SecondTransposed,
}

fn square(n: usize, layout: OperandLayout) -> Run {
    product([n; 3], layout, DType::F32)
}

/// Times C[m × n] = A[m × k]·B[k × n].
fn product([m, k, n]: [usize; 3], layout: OperandLayout, dtype: DType) -> Run {
    let matrix = |rows, columns, is_transposed| match is_transposed {
        true => placed(Tensor::randn([columns, rows], dtype)).t(),
        false => placed(Tensor::randn([rows, columns], dtype)),
    };
    let a = matrix(m, k, matches!(layout, OperandLayout::TransposedA));
    let b = matrix(k, n, matches!(layout, OperandLayout::SecondTransposed));
    Run::new(Work::Flops((2 * m * k * n) as f64), move || {
        compute([&black_box(a.matmul(&b))]);
    })
}

/// Times a batch of 64 products of `[128, 64]` and `[64, 128]`.
fn batched(dtype: DType) -> Run {
    let a = placed(Tensor::randn([64, 128, 64], dtype));
    let b = placed(Tensor::randn([64, 64, 128], dtype));
    Run::new(Work::Flops((2 * 64 * 128 * 64 * 128) as f64), move || {
        compute([&black_box(a.matmul(&b))]);
    })
}
