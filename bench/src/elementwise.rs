//! W6 and W10: chains of elementwise operations, as separate operations and as one formula.

use crate::harness::{Run, Work, Workload};
use crate::place::{compute, placed};
use crate::training::captured;
use pellucid::prelude::*;
use pellucid::{Formula, grad_one, ops};

pub(crate) fn workloads() -> Vec<Workload> {
    vec![
        Workload::new("W6", "", || forward(gelu)),
        Workload::new("W6", "formula", || forward(gelu_formula)),
        Workload::new("W6", "captured", || forward_captured(gelu)),
        Workload::new("W6b", "", || backward(gelu)),
        Workload::new("W6b", "formula", || backward(gelu_formula)),
        Workload::new("W6b", "captured", || backward_captured(gelu)),
        Workload::new("W10", "", || second(wave)),
        Workload::new("W10", "formula", || second(wave_formula)),
        Workload::new("W10", "captured", || second_captured(wave)),
    ]
}

const LARGE: usize = 4 * 1024 * 1024;

/// Computes ½x·(1 + tanh(√(2/π)·(x + 0.044715·x³))) with primitive operations.
fn gelu(x: &Tensor) -> Tensor {
    let inner = (x + x * 0.044715f64 * x * x) * 0.7978845608028654f64;
    x * 0.5f64 * (inner.tanh() + 1.0f64)
}

fn gelu_formula(x: &Tensor) -> Tensor {
    let gelu = formula!(|x| 0.5 * x * (1.0 + (0.7978845608028654 * (x + 0.044715 * x * x * x)).tanh()));
    apply(gelu, x)
}

/// Computes sin x · exp(−x²).
fn wave(x: &Tensor) -> Tensor {
    x.sin() * (-(x * x)).exp()
}

fn wave_formula(x: &Tensor) -> Tensor {
    apply(formula!(|x| x.sin() * (-(x * x)).exp()), x)
}

fn apply(formula: &'static Formula, x: &Tensor) -> Tensor {
    ops::map(formula, &[x], &[]).expect("the formula must have one input and one output")
}

fn normal(size: usize) -> Tensor {
    placed(Tensor::randn([size], DType::F32))
}

/// The work of reading and writing every element once.
const FORWARD: Work = Work::Copy((2 * 4 * LARGE) as f64);

/// The work of the forward pass, and of a backward pass that reads x and the incoming gradient and writes one tensor.
const BACKWARD: Work = Work::Copy((5 * 4 * LARGE) as f64);

fn forward(f: fn(&Tensor) -> Tensor) -> Run {
    let x = normal(LARGE);
    Run::new(FORWARD, move || {
        let _guard = no_grad();
        compute([&f(&x)]);
    })
}

fn forward_captured(f: fn(&Tensor) -> Tensor) -> Run {
    let x = normal(LARGE);
    captured(FORWARD, move || {
        let _guard = no_grad();
        f(&x)
    })
}

fn backward(f: fn(&Tensor) -> Tensor) -> Run {
    let (x, g) = (normal(LARGE).requires_grad_(true), placed(Tensor::ones([LARGE], DType::F32)));
    Run::new(BACKWARD, move || {
        x.zero_grad();
        f(&x).backward_with(BackwardOptions { gradient: Some(g.clone()), ..Default::default() });
    })
}

/// Times a captured backward pass. The gradient is an output of the step, because unused values are not computed.
fn backward_captured(f: fn(&Tensor) -> Tensor) -> Run {
    let (x, g) = (normal(LARGE).requires_grad_(true), placed(Tensor::ones([LARGE], DType::F32)));
    captured(BACKWARD, move || {
        let y = f(&x);
        let options = GradOptions { grad_outputs: vec![Some(g.clone())], ..Default::default() };
        let gradient = grad_one(&y, &x, options).expect("the tensor must have a gradient");
        (y, gradient)
    })
}

/// Computes the second derivative of Σ f(x).
fn second_derivative(f: fn(&Tensor) -> Tensor, x: &Tensor) -> Tensor {
    let y = f(x).sum(..);
    let options = GradOptions { create_graph: true, ..Default::default() };
    let first = grad_one(&y, x, options).expect("the tensor must have a gradient");
    grad_one(&first.sum(..), x, GradOptions::default()).expect("the gradient must be differentiable")
}

fn second(f: fn(&Tensor) -> Tensor) -> Run {
    let x = normal(1024 * 1024).requires_grad_(true);
    Run::new(Work::Overhead, move || {
        compute([&second_derivative(f, &x)]);
    })
}

fn second_captured(f: fn(&Tensor) -> Tensor) -> Run {
    let x = normal(1024 * 1024).requires_grad_(true);
    captured(Work::Overhead, move || second_derivative(f, &x))
}
