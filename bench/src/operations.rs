//! Operations of networks and of data, with their gradients: convolutions, attention, embeddings, sorting, sums.
//!
//! Not part of the peers' list; PyTorch's side of them is in `torch_operations.py` beside this crate.

use crate::harness::{Run, Work, Workload};
use pellucid::ops::{Attention, Conv};
use pellucid::prelude::*;

pub(crate) fn workloads() -> Vec<Workload> {
    vec![
        Workload::new("conv-3x3", "", || conv(64, 1)),
        Workload::new("conv-forward", "", conv_forward),
        Workload::new("conv-depthwise", "", || conv(1, 64)),
        Workload::new("attention-128", "", || attention(128)),
        Workload::new("attention-1024", "", || attention(1024)),
        Workload::new("embedding", "", embedding),
        Workload::new("sort", "", || along(|x| drop(x.sort(-1, false)))),
        Workload::new("topk", "", || along(|x| drop(x.topk(10, -1, true)))),
        Workload::new("cumsum", "", || along(|x| drop(x.cumsum(-1)))),
        Workload::new("cumsum-0", "", || along(|x| drop(x.cumsum(0)))),
        Workload::new("einsum", "", einsum),
        Workload::new("einsum", "matmul", einsum_as_matmul),
    ]
}

/// Forward, and the gradients of input and weight: 64 images of 64 channels, 14 × 14, windows of 3 × 3.
fn conv(each: usize, groups: usize) -> Run {
    let x = Tensor::randn([64, 64, 14, 14], DType::F32).requires_grad_(true);
    let w = Tensor::randn([64, each, 3, 3], DType::F32).requires_grad_(true);
    let flops = 3.0 * 2.0 * (64 * 64 * 14 * 14) as f64 * (each * 9) as f64;
    Run::new(Work::Flops(flops), move || {
        x.zero_grad();
        w.zero_grad();
        x.conv2d(&w, None, Conv::default().padding(1).groups(groups)).sum(..).backward();
    })
}

fn conv_forward() -> Run {
    let (x, w) = (Tensor::randn([64, 64, 14, 14], DType::F32), Tensor::randn([64, 64, 3, 3], DType::F32));
    Run::new(Work::Flops(2.0 * (64 * 64 * 14 * 14) as f64 * (64 * 9) as f64), move || {
        x.conv2d(&w, None, Conv::default().padding(1));
    })
}

/// Forward and all gradients of 8 heads, 64 wide.
fn attention(tokens: usize) -> Run {
    let [q, k, v] = [(); 3].map(|()| Tensor::randn([1, 8, tokens, 64], DType::F32).requires_grad_(true));
    // Two products forward, and five backward if the scores are computed again.
    Run::new(Work::Flops(7.0 * 2.0 * (8 * tokens * tokens * 64) as f64), move || {
        [&q, &k, &v].into_iter().for_each(Tensor::zero_grad);
        q.scaled_dot_product_attention(&k, &v, Attention::default()).sum(..).backward();
    })
}

/// 4096 rows of a table of 4096 × 1024, picked and given their gradients back.
fn embedding() -> Run {
    let table = Tensor::randn([4096, 1024], DType::F32).requires_grad_(true);
    let index = Tensor::randint(0, 4096, [4096]);
    Run::new(Work::Copy(4.0 * 4.0 * (4096 * 1024) as f64), move || {
        table.zero_grad();
        table.index_select(0, &index).sum(..).backward();
    })
}

/// Something along the rows, or the columns, of [4096, 1024].
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
        pellucid::ops::einsum("bij,bjk->bik", &[&a, &b]).expect("shapes that fit");
    })
}

fn einsum_as_matmul() -> Run {
    let [a, b] = factors();
    Run::new(Work::Flops(2.0 * 8.0 * 256f64.powi(3)), move || {
        a.matmul(&b);
    })
}
