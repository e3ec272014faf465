//! Long chains on a small stack, concurrent threads, and results that do not depend on the number of threads.

use crate::engine::programs;
use crate::support::bits;
use pellucid_cpu::with_threads;
use pellucid_ir::Layout;
use pellucid_ir::kernel::{Kernel, MatMul, Params};
use pellucid_tensor::{BackwardOptions, DType, Error, Tensor, lazy, no_grad, submit};
use std::sync::atomic::{AtomicBool, Ordering};

/// Runs `f` on a stack on which a recursion over a long graph would overflow.
fn on_a_small_stack<R: Send + 'static>(f: impl FnOnce() -> R + Send + 'static) -> R {
    std::thread::Builder::new()
        .stack_size(1 << 20)
        .spawn(f)
        .expect("the start of the thread failed")
        .join()
        .expect("the thread must not panic")
}

fn chain(x: &Tensor, nodes: usize) -> Tensor {
    (0..nodes).fold(x * 1.0, |y, _| y + 1e-6)
}

const MILLION: usize = 1_000_000;

#[test]
fn a_million_nodes_are_built_differentiated_and_dropped() {
    on_a_small_stack(|| {
        let x = Tensor::from(0.5).requires_grad_(true);
        let y = chain(&x, MILLION);
        assert_eq!(y.generation() as usize, MILLION + 1);
        y.backward();
        assert_eq!(x.grad().unwrap().item::<f64>(), 1.0);
    });
}

#[test]
fn a_million_unused_nodes_are_dropped() {
    on_a_small_stack(|| drop(chain(&Tensor::from(0.5).requires_grad_(true), MILLION)));
}

#[test]
fn a_long_chain_is_differentiated_twice() {
    on_a_small_stack(|| {
        let x = Tensor::from(1.0).requires_grad_(true);
        // The gradient graph of ((x·c)·c)·.. is as long as the forward graph.
        let c = Tensor::from(1.0).requires_grad_(true);
        let y = (0..50_000).fold(&x * 1.0, |y, _| y * &c);
        y.backward_with(BackwardOptions { create_graph: true, ..Default::default() });
        let first = x.grad().unwrap();
        assert_eq!((first.item::<f64>(), c.grad().unwrap().item::<f64>()), (1.0, 50_000.0));
        c.zero_grad();
        first.backward();
        assert_eq!(c.grad().unwrap().item::<f64>(), 50_000.0, "the derivative of cⁿ at c = 1 must be n");
    });
}

/// A wide graph: many operations on one tensor, dropped and differentiated.
#[test]
fn a_wide_graph_is_differentiated_and_dropped() {
    on_a_small_stack(|| {
        let x = Tensor::from(2.0).requires_grad_(true);
        let y = &x * 1.0;
        let sum = (0..20_000).fold(&y * 1.0, |sum, _| &sum + &y);
        sum.backward();
        assert_eq!(x.grad().unwrap().item::<f64>(), 20_001.0);
    });
}

#[test]
fn tensors_are_send_and_sync() {
    fn crosses<T: Send + Sync>() {}
    crosses::<Tensor>();
    crosses::<pellucid_tensor::Node>();
    crosses::<pellucid_tensor::Generator>();
}

#[test]
fn four_threads_share_a_parameter_and_differentiate_at_once() {
    let w = programs::wave([16, 16]).requires_grad_(true);
    let batches: Vec<Tensor> = (0..4).map(|i| programs::wave([8, 16]) * (1.0 + i as f64)).collect();
    let expected: Vec<_> = batches.iter().map(|x| bits(&[x.matmul(&w).tanh()])).collect();
    std::thread::scope(|s| {
        for (x, expected) in batches.iter().zip(&expected) {
            let w = &w;
            s.spawn(move || {
                for _ in 0..50 {
                    assert_eq!(bits(&[x.matmul(w).tanh()]), *expected);
                    // A separate graph over the same values.
                    let own = w.detach().requires_grad_(true);
                    x.matmul(&own).tanh().sum(..).backward();
                    assert!(own.grad().is_some());
                }
            });
        }
    });
}

/// Concurrent backward passes into one leaf add every contribution.
#[test]
fn concurrent_passes_accumulate_in_a_shared_leaf() {
    let w = Tensor::zeros([64], DType::F64).requires_grad_(true);
    let passes = 1000;
    std::thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| (0..passes).for_each(|_| (&w * 1.0).backward()));
        }
    });
    assert_eq!(w.grad().unwrap().to_vec::<f64>(), [4000.0; 64]);
}

/// A reader sees the state before or after a write, never a mixture.
#[test]
fn reads_are_atomic_with_respect_to_writes() {
    let x = Tensor::zeros([512], DType::F32);
    let done = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            (0..2000).for_each(|i| x.set(.., i as f64));
            done.store(true, Ordering::Release);
        });
        for _ in 0..2 {
            s.spawn(|| {
                let _off = no_grad();
                while !done.load(Ordering::Acquire) {
                    for values in [x.to_vec::<f32>(), (&x + 0.0).to_vec::<f32>()] {
                        assert!(values.iter().all(|v| *v == values[0] && v.fract() == 0.0), "{values:?}");
                    }
                }
            });
        }
    });
    assert_eq!(x.to_vec::<f32>(), [1999.0; 512]);
}

/// Computes one operation of every kernel family, large enough to be split between threads.
fn families() -> Vec<Tensor> {
    let x = programs::wave([300, 400]);
    let long = programs::wave([200_000]);
    let (values, positions) = x.sort(1, false);
    vec![
        (&x * 2.0 + 1.0).tanh(),
        x.sum(0),
        x.sum(1),
        long.sum(..),
        x.t().sum(..),
        x.max(0),
        x.argmax(1),
        x.softmax(-1),
        x.softmax(0),
        x.layer_norm(400, None, None, 1e-5),
        x.logsumexp(..),
        long.cumsum(0),
        x.cumsum(0),
        x.matmul(&x.t()),
        x.t().matmul(&x),
        x.matmul(&programs::wave([400])),
        values,
        x.take_along_axis(&positions, 1),
        x.index_select(0, &Tensor::arange(0i64, 300, 7)),
        long.scatter_add_along(&(Tensor::arange(0i64, 200_000, 1) % 1000), 0, 1000),
        x.t().contiguous(),
        x.to_dtype(DType::BF16).exp(),
        pellucid_tensor::ops::randn_with([100_000], DType::F32, &pellucid_tensor::Generator::new(1))
            .expect("randn_with() must accept this shape and dtype"),
    ]
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let one = with_threads(1, || bits(&families()));
    for threads in [2, 8] {
        let many = with_threads(threads, || bits(&families()));
        for (i, (a, b)) in one.iter().zip(&many).enumerate() {
            assert!(a == b, "result {i} on {threads} threads differs from that on one thread");
        }
    }
}

/// A kernel is rejected if several elements of its output share memory, because their value would depend on the order
/// of the writes.
#[test]
fn outputs_that_overlap_themselves_are_rejected() {
    let (a, b) = (Tensor::ones([3, 4], DType::F32), Tensor::ones([4, 5], DType::F32));
    let memory = Tensor::zeros([64], DType::F32);
    let matmul = Kernel::MatMul(MatMul { epilogue: None, params: Params::new() });
    let product = |strides: [isize; 2]| {
        let out = memory.array().view(Layout::strided([3, 5].into(), strides.into_iter().collect(), 0));
        let run = || submit(&matmul, &[a.array(), b.array()], &[&out]);
        let results = [run(), lazy(run)];
        assert!(results.iter().all(|result| result.is_ok() == results[0].is_ok()));
        results.into_iter().next().expect("there are two results")
    };
    for strides in [[2, 1], [0, 1], [1, 1], [5, 0], [4, 1]] {
        assert!(matches!(product(strides), Err(Error::InvalidArgument { op: "matmul", .. })), "{strides:?}");
    }
    assert_eq!(memory.to_vec::<f32>()[..], [0.0; 64]);
    for strides in [[5, 1], [1, 3], [11, 2]] {
        product(strides).unwrap();
    }
}
