//! W8: matrix products: square, batched, with transposed operands as in backward passes, and the products of the layers
//! of W5.

use crate::harness::{Run, Work, Workload};
use pellucid::prelude::*;
use std::hint::black_box;

pub(crate) fn workloads() -> Vec<Workload> {
    vec![
        Workload::new("W8-256", "", || square(256, OperandLayout::Plain)),
        Workload::new("W8-512", "", || square(512, OperandLayout::Plain)),
        Workload::new("W8-1024", "", || square(1024, OperandLayout::Plain)),
        Workload::new("W8-bmm", "", batched),
        Workload::new("W8-512-AtB", "", || square(512, OperandLayout::TransposedA)),
        Workload::new("W8-512-ABt", "", || square(512, OperandLayout::SecondTransposed)),
        Workload::new("widen", "", || product([1024, 256, 1024], OperandLayout::SecondTransposed)),
        Workload::new("widen-input", "", || product([1024, 1024, 256], OperandLayout::Plain)),
        Workload::new("widen-weight", "", || product([1024, 1024, 256], OperandLayout::TransposedA)),
        Workload::new("narrow", "", || product([1024, 1024, 256], OperandLayout::SecondTransposed)),
        Workload::new("narrow-input", "", || product([1024, 256, 1024], OperandLayout::Plain)),
        Workload::new("narrow-weight", "", || product([256, 1024, 1024], OperandLayout::TransposedA)),
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
    product([n; 3], layout)
}

/// Times C[m × n] = A[m × k]·B[k × n].
fn product([m, k, n]: [usize; 3], layout: OperandLayout) -> Run {
    let matrix = |rows, columns, is_transposed| match is_transposed {
        true => Tensor::randn([columns, rows], DType::F32).t(),
        false => Tensor::randn([rows, columns], DType::F32),
    };
    let a = matrix(m, k, matches!(layout, OperandLayout::TransposedA));
    let b = matrix(k, n, matches!(layout, OperandLayout::SecondTransposed));
    Run::new(Work::Flops((2 * m * k * n) as f64), move || {
        black_box(a.matmul(&b));
    })
}

/// Times a batch of 64 products of `[128, 64]` and `[64, 128]`.
fn batched() -> Run {
    let a = Tensor::randn([64, 128, 64], DType::F32);
    let b = Tensor::randn([64, 64, 128], DType::F32);
    Run::new(Work::Flops((2 * 64 * 128 * 64 * 128) as f64), move || {
        black_box(a.matmul(&b));
    })
}
