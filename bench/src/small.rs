//! W1 and W2: the overhead of operations on single elements.

use crate::harness::{Run, Work, Workload};
use crate::place::{compute, placed};
use pellucid::prelude::*;

pub(crate) fn workloads() -> Vec<Workload> {
    vec![Workload::new("W1", "", w1), Workload::new("W2", "", w2)]
}

/// Computes y = x·x + x for one element, forward and backward.
fn w1() -> Run {
    let x = placed(Tensor::from([1.5f32])).requires_grad_(true);
    Run::new(Work::Overhead, move || {
        for _ in 0..100 {
            x.zero_grad();
            (&x * &x + &x).backward();
            compute(x.grad().as_ref());
        }
    })
    .repeated(100)
}

/// Computes 10,000 successive additions and a sum, forward and backward.
fn w2() -> Run {
    let x = placed(Tensor::randn([16], DType::F32)).requires_grad_(true);
    let c = placed(Tensor::randn([16], DType::F32));
    Run::new(Work::Overhead, move || {
        x.zero_grad();
        let mut y = x.clone();
        for _ in 0..10_000 {
            y += &c;
        }
        y.sum(..).backward();
    })
}
