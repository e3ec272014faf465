//! W6 and W10: long chains of elementwise operations, as separate operations and as one formula.

use crate::harness::{Run, Work, Workload};
use pellucid::prelude::*;
use pellucid::{Formula, ops};

pub(crate) fn workloads() -> Vec<Workload> {
    vec![
        Workload::new("W6", "", || forward(gelu)),
        Workload::new("W6", "formula", || forward(gelu_formula)),
        Workload::new("W6b", "", || backward(gelu)),
        Workload::new("W6b", "formula", || backward(gelu_formula)),
        Workload::new("W10", "", || second(wave)),
        Workload::new("W10", "formula", || second(wave_formula)),
    ]
}

const LARGE: usize = 4 * 1024 * 1024;

/// ½x·(1 + tanh(√(2/π)·(x + 0.044715·x³))), out of primitive operations.
fn gelu(x: &Tensor) -> Tensor {
    let inner = (x + x * 0.044715f64 * x * x) * 0.7978845608028654f64;
    x * 0.5f64 * (inner.tanh() + 1.0f64)
}

fn gelu_formula(x: &Tensor) -> Tensor {
    let gelu = formula!(|x| 0.5 * x * (1.0 + (0.7978845608028654 * (x + 0.044715 * x * x * x)).tanh()));
    apply(gelu, x)
}

/// sin x · exp(−x²)
fn wave(x: &Tensor) -> Tensor {
    x.sin() * (-(x * x)).exp()
}

fn wave_formula(x: &Tensor) -> Tensor {
    apply(formula!(|x| x.sin() * (-(x * x)).exp()), x)
}

fn apply(formula: &'static Formula, x: &Tensor) -> Tensor {
    ops::map(formula, &[x], &[]).expect("one input, one output").remove(0)
}

/// Every element read and written once.
fn forward(f: fn(&Tensor) -> Tensor) -> Run {
    let x = Tensor::randn([LARGE], DType::F32);
    Run::new(Work::Copy((2 * 4 * LARGE) as f64), move || {
        let _guard = no_grad();
        f(&x);
    })
}

/// Forward as above; backward reads x and the incoming gradient and writes one.
fn backward(f: fn(&Tensor) -> Tensor) -> Run {
    let x = Tensor::randn([LARGE], DType::F32).requires_grad_(true);
    let g = Tensor::ones([LARGE], DType::F32);
    Run::new(Work::Copy((5 * 4 * LARGE) as f64), move || {
        x.zero_grad();
        f(&x).backward_with(Backward { gradient: Some(g.clone()), ..Default::default() });
    })
}

/// The second derivative of Σ f(x).
fn second(f: fn(&Tensor) -> Tensor) -> Run {
    let x = Tensor::randn([1024 * 1024], DType::F32).requires_grad_(true);
    Run::new(Work::Overhead, move || {
        let y = f(&x).sum(..);
        let first = grad(&[&y], &[&x], Grad { create_graph: true, ..Default::default() }).expect("a gradient");
        grad(&[&first[0].sum(..)], &[&x], Grad::default()).expect("a second gradient");
    })
}
