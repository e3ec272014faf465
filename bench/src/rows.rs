//! W7: reductions along the rows and the columns of a matrix.

use crate::harness::{Run, Work, Workload};
use crate::place::{compute, placed};
use pellucid::prelude::*;
use std::hint::black_box;

pub(crate) fn workloads() -> Vec<Workload> {
    vec![
        Workload::new("W7-softmax", "", softmax),
        Workload::new("W7-layernorm", "", layernorm),
        Workload::new("W7-sum0", "", sum0),
        Workload::new("W7-argmax", "", argmax),
    ]
}

const ROWS: usize = 4096;

fn softmax() -> Run {
    let x = placed(Tensor::randn([ROWS, 1024], DType::F32));
    Run::new(Work::Copy((2 * 4 * ROWS * 1024) as f64), move || {
        compute([&black_box(x.softmax(-1))]);
    })
}

fn layernorm() -> Run {
    let x = placed(Tensor::randn([ROWS, 1024], DType::F32));
    let (weight, bias) = (placed(Tensor::ones([1024], DType::F32)), placed(Tensor::zeros([1024], DType::F32)));
    Run::new(Work::Copy((2 * 4 * ROWS * 1024) as f64), move || {
        compute([&black_box(x.layer_norm([1024], Some(&weight), Some(&bias), 1e-5))]);
    })
}

fn sum0() -> Run {
    let x = placed(Tensor::randn([ROWS, ROWS], DType::F32));
    Run::new(Work::Read((4 * ROWS * ROWS) as f64), move || {
        compute([&black_box(x.sum(0))]);
    })
}

fn argmax() -> Run {
    let x = placed(Tensor::randn([ROWS, ROWS], DType::F32));
    Run::new(Work::Read((4 * ROWS * ROWS) as f64), move || {
        compute([&black_box(x.argmax(-1))]);
    })
}
