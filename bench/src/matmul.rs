//! W8: matrix products, square, batched, and of transposed matrices as backward passes have them.

use crate::harness::{Run, Work, Workload};
use pellucid::prelude::*;

pub(crate) fn workloads() -> Vec<Workload> {
    vec![
        Workload::new("W8-256", "", || square(256, Form::Plain)),
        Workload::new("W8-512", "", || square(512, Form::Plain)),
        Workload::new("W8-1024", "", || square(1024, Form::Plain)),
        Workload::new("W8-bmm", "", batched),
        Workload::new("W8-512-AtB", "", || square(512, Form::FirstTransposed)),
        Workload::new("W8-512-ABt", "", || square(512, Form::SecondTransposed)),
    ]
}

enum Form {
    /// A·B
    Plain,
    /// Aᵀ·B, a weight's gradient.
    FirstTransposed,
    /// A·Bᵀ, an input's gradient.
    SecondTransposed,
}

fn square(n: usize, form: Form) -> Run {
    let a = Tensor::randn([n, n], DType::F32);
    let b = Tensor::randn([n, n], DType::F32);
    Run::new(Work::Flops(2.0 * (n as f64).powi(3)), move || {
        match form {
            Form::Plain => a.matmul(&b),
            Form::FirstTransposed => a.t().matmul(&b),
            Form::SecondTransposed => a.matmul(&b.t()),
        };
    })
}

/// 64 products `[128, 64]` by `[64, 128]`.
fn batched() -> Run {
    let a = Tensor::randn([64, 128, 64], DType::F32);
    let b = Tensor::randn([64, 64, 128], DType::F32);
    Run::new(Work::Flops((2 * 64 * 128 * 64 * 128) as f64), move || {
        a.matmul(&b);
    })
}
