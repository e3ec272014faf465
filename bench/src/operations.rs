//! Single operations with their gradients: convolutions, attention, embeddings, sorting, sums.
//!
//! `torch_operations.py` in the directory of this crate is the same benchmark in PyTorch.

use crate::harness::{Run, Work, Workload};
use pellucid::ops::{AttentionOptions, ConvOptions, RecurrenceOptions, RecurrentWeights};
use pellucid::prelude::*;
use std::hint::black_box;

pub(crate) fn workloads() -> Vec<Workload> {
    vec![
        Workload::new("conv-3x3", "", || conv(64, 1)),
        Workload::new("conv-forward", "", conv_forward),
        Workload::new("conv-depthwise", "", || conv(1, 64)),
        Workload::new("attention-128", "", || attention([1, 8, 128], false)),
        Workload::new("attention-1024", "", || attention([1, 8, 1024], false)),
        Workload::new("attention-causal", "", || attention([8, 4, 128], true)),
        Workload::new("lstm", "", lstm),
        Workload::new("gru", "", gru),
        Workload::new("embedding", "", embedding),
        Workload::new("sort", "", || along(|x| drop(x.sort(-1, false)))),
        Workload::new("topk", "", || along(|x| drop(x.topk(10, -1, true)))),
        Workload::new("cumsum", "", || along(|x| drop(x.cumsum(-1)))),
        Workload::new("cumsum-0", "", || along(|x| drop(x.cumsum(0)))),
        Workload::new("einsum", "", einsum),
        Workload::new("einsum", "matmul", einsum_as_matmul),
    ]
}

/// Times a convolution, forward and with the gradients of input and weight: 64 images of 64 channels, 14 × 14, windows
/// of 3 × 3.
fn conv(each: usize, groups: usize) -> Run {
    let x = Tensor::randn([64, 64, 14, 14], DType::F32).requires_grad_(true);
    let w = Tensor::randn([64, each, 3, 3], DType::F32).requires_grad_(true);
    let flops = 3.0 * 2.0 * (64 * 64 * 14 * 14) as f64 * (each * 9) as f64;
    Run::new(Work::Flops(flops), move || {
        x.zero_grad();
        w.zero_grad();
        x.conv2d(&w, None, ConvOptions { padding: 1.into(), groups, ..Default::default() }).sum(..).backward();
    })
}

fn conv_forward() -> Run {
    let (x, w) = (Tensor::randn([64, 64, 14, 14], DType::F32), Tensor::randn([64, 64, 3, 3], DType::F32));
    Run::new(Work::Flops(2.0 * (64 * 64 * 14 * 14) as f64 * (64 * 9) as f64), move || {
        black_box(x.conv2d(&w, None, ConvOptions { padding: 1.into(), ..Default::default() }));
    })
}

/// Times attention, forward and with all gradients. Heads of width 64 are adjacent in memory, as after a projection.
fn attention([batch, heads, tokens]: [usize; 3], causal: bool) -> Run {
    let rows = || Tensor::randn([batch, tokens, heads, 64], DType::F32).transpose(1, 2).detach();
    let [q, k, v] = [(); 3].map(|()| rows().requires_grad_(true));
    let pairs = if causal { tokens * (tokens + 1) / 2 } else { tokens * tokens };
    // Two products forward, and five backward including the recomputed scores.
    Run::new(Work::Flops(7.0 * 2.0 * (batch * heads * pairs * 64) as f64), move || {
        [&q, &k, &v].into_iter().for_each(Tensor::zero_grad);
        let options = AttentionOptions { causal, ..AttentionOptions::default() };
        q.scaled_dot_product_attention(&k, &v, options).sum(..).backward();
    })
}

/// Times a recurrent layer with 128 inputs and 256 units, forward and with the gradients of its weights: 32 sequences
/// of 64 steps.
fn recurrent(gates: usize, layer: impl Fn(&Tensor, RecurrentWeights<'_>) -> Tensor + 'static) -> Run {
    let x = Tensor::randn([64, 32, 128], DType::F32);
    let weight = |shape: &[usize]| (Tensor::randn(shape, DType::F32) / 16.0).detach().requires_grad_(true);
    let rows = gates * 256;
    let weights = [weight(&[rows, 128]), weight(&[rows, 256]), weight(&[rows]), weight(&[rows])];
    // The forward pass has products with inputs and states; the backward pass has gradients of states and of both
    // weights.
    let flops = 2.0 * (64 * 32 * rows) as f64 * (2 * 128 + 3 * 256) as f64;
    Run::new(Work::Flops(flops), move || {
        weights.iter().for_each(Tensor::zero_grad);
        let [weight_ih, weight_hh, bias_ih, bias_hh] = &weights;
        let (bias_ih, bias_hh) = (Some(bias_ih), Some(bias_hh));
        layer(&x, RecurrentWeights { weight_ih, weight_hh, bias_ih, bias_hh, weight_hr: None }).sum(..).backward();
    })
}

fn lstm() -> Run {
    recurrent(4, |x, weights| x.lstm(weights, None, RecurrenceOptions::default()).0)
}

fn gru() -> Run {
    recurrent(3, |x, weights| x.gru(weights, None, RecurrenceOptions::default()).0)
}

/// Selects 4096 rows of a table of 4096 × 1024, and computes the gradient of the table.
fn embedding() -> Run {
    let table = Tensor::randn([4096, 1024], DType::F32).requires_grad_(true);
    let index = Tensor::randint(0, 4096, [4096]);
    Run::new(Work::Copy(4.0 * 4.0 * (4096 * 1024) as f64), move || {
        table.zero_grad();
        table.index_select(0, &index).sum(..).backward();
    })
}

/// Applies an operation to the rows, or the columns, of [4096, 1024].
fn along(body: fn(&Tensor)) -> Run {
    let x = Tensor::randn([4096, 1024], DType::F32);
    Run::new(Work::Copy(2.0 * 4.0 * (4096 * 1024) as f64), move || body(&x))
}

fn factors() -> [Tensor; 2] {
    [Tensor::randn([8, 256, 256], DType::F32), Tensor::randn([8, 256, 256], DType::F32)]
}

fn einsum() -> Run {
    let [a, b] = factors();
    Run::new(Work::Flops(2.0 * 8.0 * 256f64.powi(3)), move || {
        pellucid::ops::einsum("bij,bjk->bik", &[&a, &b]).expect("the shapes must match the equation");
    })
}

fn einsum_as_matmul() -> Run {
    let [a, b] = factors();
    Run::new(Work::Flops(2.0 * 8.0 * 256f64.powi(3)), move || {
        black_box(a.matmul(&b));
    })
}
