//! Memory: the number of heap allocations of a small operation, and constant memory in training.
//!
//! The device statistics and the counting allocator are shared by the process, so these tests have their own binary and
//! run one at a time.

use pellucid_tensor::{
    BackwardOptions, DType, Device, Error, Generator, GradOptions, Tensor, capture, checkpoint, formula, grad, lazy,
    no_grad, ops, trace,
};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::{Mutex, MutexGuard, PoisonError};

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

/// The system allocator, with a counter of the allocations of this thread.
struct Counting;

// SAFETY: every call is forwarded unchanged to the system allocator; the counter does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
        // SAFETY: the contract of `GlobalAlloc::alloc` holds for `layout` and is passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: `ptr` and `layout` come from `alloc`, which forwards to the system allocator.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Counts the heap allocations of this thread in `f`.
fn allocations<R>(f: impl FnOnce() -> R) -> (usize, R) {
    let before = ALLOCATIONS.get();
    let result = f();
    (ALLOCATIONS.get() - before, result)
}

/// Waits until no other test of this binary runs, and blocks the other tests.
fn lock_statistics() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn in_use() -> usize {
    Device::cpu().memory_stats().in_use
}

/// Asserts that `steps` calls of `step` use no more memory than three calls.
#[track_caller]
fn assert_flat(steps: usize, mut step: impl FnMut()) {
    (0..3).for_each(|_| step());
    let (before, asked) = (in_use(), Device::cpu().memory_stats().system_allocations);
    (0..steps).for_each(|_| step());
    assert_eq!(in_use(), before, "a step must not use more device memory");
    assert_eq!(Device::cpu().memory_stats().system_allocations, asked, "a step must not allocate system memory");
}

fn wave<const N: usize>(shape: [usize; N]) -> Tensor {
    let n: usize = shape.iter().product();
    Tensor::new((0..n).map(|i| (0.3 + i as f32).sin()).collect::<Vec<_>>(), shape)
}

#[test]
fn a_small_recorded_operation_allocates_at_most_three_times() {
    let _turn = lock_statistics();
    let x = wave([2, 3]).requires_grad_(true);
    let y = wave([2, 3]);
    type Small = fn(&Tensor, &Tensor) -> Tensor;
    let operations: [(&str, Small); 8] = [
        ("x + y", |x, y| x + y),
        ("x * y, which saves its operands", |x, y| x * y),
        ("x * 2", |x, _| x * 2.0),
        ("tanh", |x, _| x.tanh()),
        ("clamp", |x, _| x.clamp(-0.5, 0.5)),
        ("permute", |x, _| x.t()),
        ("reshape", |x, _| x.reshape([3, 2])),
        ("softmax", |x, _| x.softmax(-1)),
    ];
    let mut over = vec![];
    for (name, f) in operations {
        // The first calls compile the formula and fill the pool.
        (0..3).for_each(|_| drop(f(&x, &y)));
        let (count, result) = allocations(|| f(&x, &y));
        assert!(result.requires_grad());
        if count > 3 {
            over.push(format!("{name} made {count}"));
        }
    }
    assert!(over.is_empty(), "an operation must make at most 3 heap allocations: {over:?}");
}

#[test]
fn training_uses_constant_memory() {
    let _turn = lock_statistics();
    let (x, t) = (wave([8, 4]), wave([8, 2]));
    let parameters = [wave([4, 5]), wave([5]), wave([5, 2])].map(|p| p.requires_grad_(true));
    assert_flat(100_000, || {
        let [w, b, v] = &parameters;
        parameters.iter().for_each(Tensor::zero_grad);
        let loss = ((x.matmul(w) + b).gelu().matmul(v) - &t).square().mean(..);
        loss.backward();
        let _off = no_grad();
        for p in &parameters {
            ops::update(formula!(|p, g| p - 0.01 * g), &[p], &[&p.grad().unwrap()], &[]).unwrap();
        }
    });
}

#[test]
fn a_thousand_recorded_passes_with_live_parameters_leak_nothing() {
    let _turn = lock_statistics();
    let (x, w) = (wave([6, 3]), wave([3, 3]).requires_grad_(true));
    let before = in_use();
    assert_flat(1000, || {
        let loss = x.matmul(&w).softmax(-1).square().sum(..);
        loss.backward_with(BackwardOptions { create_graph: true, ..Default::default() });
        let first = w.grad().unwrap();
        w.zero_grad();
        first.square().sum(..).backward();
        w.zero_grad();
    });
    // One graph is dropped unused. The other one is kept alive by the gradient that it has computed.
    assert_flat(300, || {
        let loss = x.matmul(&w).tanh().sum(..);
        loss.backward_with(BackwardOptions { create_graph: true, ..Default::default() });
        w.zero_grad();
        let g = grad(&[&w.cube()], &[&w], GradOptions { create_graph: true, ..Default::default() }).unwrap();
        drop((g, loss));
    });
    assert_eq!(in_use(), before);
}

#[test]
fn a_stored_gradient_does_not_keep_its_tensor_alive() {
    let _turn = lock_statistics();
    let before = in_use();
    {
        let w = wave([100]).requires_grad_(true);
        w.cube().sum(..).backward_with(BackwardOptions { create_graph: true, ..Default::default() });
        let y = w.sin();
        y.retain_grad();
        y.register_hook(|g| Some(g * 2.0));
        y.sum(..).backward_with(BackwardOptions { create_graph: true, retain_grad: true, ..Default::default() });
    }
    assert_eq!(in_use(), before);
}

#[test]
fn ten_thousand_deferred_steps_use_constant_memory() {
    let _turn = lock_statistics();
    let (x, w) = (wave([8, 4]), wave([4, 2]).requires_grad_(true));
    let step = |_| {
        w.zero_grad();
        x.matmul(&w).square().mean(..).backward();
        let _off = no_grad();
        w.copy_(&(&w - w.grad().unwrap() * 0.01));
    };
    lazy(|| {
        (0..1000).for_each(step);
        let (before, asked) = (in_use(), Device::cpu().memory_stats().system_allocations);
        for _ in 0..9 {
            (0..1000).for_each(step);
            let after = (in_use(), Device::cpu().memory_stats().system_allocations);
            assert!(
                after.0 <= before + (1 << 14) && after.1 <= asked + 4,
                "{after:?} instead of {:?}",
                (before, asked)
            );
        }
    });
}

#[test]
fn lazy_training_uses_constant_memory() {
    let _turn = lock_statistics();
    let (x, w) = (wave([8, 4]), wave([4, 2]).requires_grad_(true));
    assert_flat(300, || {
        lazy(|| {
            w.zero_grad();
            x.matmul(&w).square().mean(..).backward();
            let _off = no_grad();
            w.copy_(&(&w - w.grad().unwrap() * 0.01));
        });
    });
}

#[test]
fn a_launch_allocates_nothing() {
    let _turn = lock_statistics();
    let (x, w, g) = (wave([8, 4]), wave([4, 2]).requires_grad_(true), Generator::new(1));
    let mut step = capture(
        |inputs| {
            w.zero_grad();
            let noise = ops::randn_with([8, 4], DType::F32, &g).unwrap();
            let loss = (&inputs[0] + noise).matmul(&w).square().mean(..);
            loss.backward();
            let _off = no_grad();
            w.copy_(&(&w - w.grad().unwrap() * 0.01));
            w.zero_grad();
            loss.detach()
        },
        &[&x],
    )
    .unwrap();
    // Debug builds record again before launches 2 and 3, to compare.
    let mut launch = || assert_eq!(step.launch(&[&x]).unwrap().len(), 1);
    (0..4).for_each(|_| launch());
    let (before, given) = (in_use(), Device::cpu().memory_stats().allocations);
    let (host, ()) = allocations(|| (0..100).for_each(|_| launch()));
    assert_eq!(
        (in_use(), Device::cpu().memory_stats().allocations),
        (before, given),
        "a launch must not allocate device memory"
    );
    assert_eq!(host, 0, "a launch must not allocate host memory");
}

#[test]
fn rejected_calls_and_panics_leak_nothing() {
    let _turn = lock_statistics();
    let x = wave([10, 10]);
    assert_flat(200, || {
        assert!(ops::matmul(&x, &wave([3])).is_err());
        assert!(x.try_set(20, 1.0).is_err());
        assert!(capture(|i| Tensor::from(i[0].sum(..).item::<f32>()), &[&x]).is_err());
    });
}

#[test]
fn a_checkpoint_keeps_only_its_inputs() {
    let _alone = lock_statistics();
    // The thread-local generator is freed with its thread, which is joined before the lock is released.
    let work = std::thread::spawn(|| {
        let x = Tensor::rand([1 << 16], DType::F32).requires_grad_(true);
        let deep = |x: &[Tensor]| Ok(vec![(0..10).fold(x[0].clone(), |y, _| y.sin())]);
        let kept = |through: bool| {
            let before = in_use();
            let _y = if through { checkpoint(deep, &[&x]).unwrap() } else { deep(std::slice::from_ref(&x)).unwrap() };
            in_use() - before
        };
        (kept(false), kept(true))
    });
    let (plain, through) = work.join().unwrap();
    // The plain chain keeps nine arrays of 256 KiB. The checkpoint keeps its result and the generator state.
    assert!(
        through + 9 * (1 << 18) <= plain + (1 << 12),
        "the checkpoint must use 9 arrays less than the plain chain; it uses {through} bytes, the plain chain {plain}"
    );
}

#[test]
fn filling_a_buffer_step_by_step_allocates_nothing_per_step() {
    let _turn = lock_statistics();
    let (steps, width) = (200, 1000);
    let x = Tensor::zeros([width], DType::F32).requires_grad_(true);
    let (before, peak) = (in_use(), Device::cpu().memory_stats().peak);
    let buffer = Tensor::zeros([steps, width], DType::F32);
    (0..steps).for_each(|step| buffer.set(step, &(&x + step as f64)));
    let filled = in_use() - before;
    buffer.sum(..).backward();
    let bytes = 4 * steps * width;
    assert!(filled < 2 * bytes, "the writes must save no copies: {filled} bytes in use for a buffer of {bytes}");
    let now = Device::cpu().memory_stats().peak;
    // If each step needed a gradient of the entire buffer, the peak would be two hundred times the size of the buffer.
    assert!(
        now <= peak.max(before + 8 * bytes),
        "the peak grew too much, from {peak} to {now} bytes, with {before} in use before"
    );
    assert_eq!(x.grad().unwrap().to_vec::<f32>(), vec![steps as f32; width]);
}

/// An array of the differences of all pairs of rows would be 512 times as large as the distances.
#[test]
fn distances_of_all_pairs_do_not_store_the_differences() {
    let _turn = lock_statistics();
    let (count, width) = (160, 512);
    let (x, y) = (wave([count, width]).requires_grad_(true), wave([count, width]).mul(0.5));
    type Distance = fn(&Tensor, &Tensor) -> Tensor;
    let calls: [(&str, Distance); 9] = [
        ("cdist of order 0", |x, y| x.cdist(y, 0.0)),
        ("cdist of order 1", |x, y| x.cdist(y, 1.0)),
        ("cdist of order 2", |x, y| x.cdist(y, 2.0)),
        ("cdist of order 3", |x, y| y.cdist(x, 3.0)),
        ("cdist of order ∞", |x, y| x.cdist(y, f64::INFINITY)),
        ("pdist of order 2", |x, _| x.pdist(2.0)),
        ("pdist of order ∞", |x, _| x.pdist(f64::INFINITY)),
        ("vecdot", |x, y| x.unsqueeze(1).vecdot(&y.unsqueeze(0), -1)),
        ("cosine_similarity", |x, y| x.unsqueeze(1).cosine_similarity(&y.unsqueeze(0), -1, 1e-8)),
    ];
    for (name, call) in calls {
        for second in [false, true] {
            x.zero_grad();
            let (before, peak) = (in_use(), Device::cpu().memory_stats().peak);
            let y = call(&x, &y).square().sum(..);
            match second {
                false => y.backward(),
                true => {
                    let options = GradOptions { create_graph: true, allow_unused: true, ..Default::default() };
                    let first = grad(&[&y], &[&x], options).unwrap();
                    first[0].square().sum(..).backward();
                }
            }
            let (now, bytes) = (Device::cpu().memory_stats().peak, 4 * (count * count).max(count * width));
            let what = if second { "the second derivative of " } else { "" };
            assert!(now <= peak.max(before + 32 * bytes), "{what}{name}: the peak grew from {peak} to {now} bytes");
        }
    }
}

/// An array of the terms would be 200 times as large as the argument.
#[test]
fn a_sum_of_log_gamma_functions_does_not_store_its_terms() {
    let _turn = lock_statistics();
    let x = wave([4096]).add(200.0).requires_grad_(true);
    let sum = || {
        let y = ops::sum(&ops::multigammaln(&x, 200)?, ..)?;
        grad(&[&y], &[&x], GradOptions::default())
    };
    let (_, work) = trace(sum).unwrap();
    assert!(work.allocated_bytes < 32 * 4 * 4096, "{work:?}");
}

/// An array of the pairs of classes would be 256 times as large as the scores.
#[test]
fn a_loss_of_pairs_of_classes_does_not_store_the_pairs() {
    let _turn = lock_statistics();
    let x = wave([16, 256]).requires_grad_(true);
    let target = ops::full([16, 256], -1, DType::I64).unwrap();
    target.set((.., 0), 3);
    let loss = || {
        let y = ops::multilabel_margin_loss(&x, &target, Default::default())?;
        grad(&[&y], &[&x], GradOptions::default())
    };
    let (_, work) = trace(loss).unwrap();
    assert!(work.allocated_bytes < 32 * 4 * 16 * 256, "{work:?}");
}

/// Arrays of the values of every order or power would be `ORDER` times as large as the argument, in every derivative.
#[test]
fn polynomials_do_not_store_the_values_of_lower_orders() {
    const ORDER: i64 = 200;
    let _turn = lock_statistics();
    let x = wave([1 << 16]).mul(0.25).requires_grad_(true);
    let coefficients = wave([ORDER as usize + 1]).requires_grad_(true);
    let order = Tensor::from(ORDER);
    type Polynomial = fn(&Tensor, &Tensor, &Tensor) -> Tensor;
    let calls: [(&str, Polynomial); 5] = [
        ("polyval", |x, coefficients, _| coefficients.polyval(x)),
        ("legendre_p", |x, _, order| x.legendre_p(order)),
        ("chebyshev_t", |x, _, order| x.chebyshev_t(order)),
        ("hermite_he", |x, _, order| x.mul(1e-3).hermite_he(order)),
        ("laguerre_l", |x, _, order| x.laguerre_l(order)),
    ];
    for (name, call) in calls {
        let variables = if name == "polyval" { vec![&x, &coefficients] } else { vec![&x] };
        for derivatives in 1..=3 {
            let (before, peak) = (in_use(), Device::cpu().memory_stats().peak);
            let mut y = call(&x, &coefficients, &order);
            for _ in 0..derivatives {
                let options = GradOptions { create_graph: true, ..Default::default() };
                let gradients = grad(&[&y.sum(..)], &variables, options).unwrap();
                y = gradients.iter().map(|g| g.sum(..)).sum::<Tensor>() + &gradients[0];
            }
            drop(y);
            let (now, bytes) = (Device::cpu().memory_stats().peak, 4 * (1 << 16));
            assert!(
                now <= peak.max(before + 24 * bytes),
                "{name}, derivative {derivatives}: the peak grew from {peak} to {now} bytes"
            );
        }
    }
}

/// Attention stores only blocks of the scores, up to its first derivative. Higher derivatives store all scores.
#[test]
fn attention_stores_scores_in_second_derivatives_only() {
    let _turn = lock_statistics();
    let (length, width) = (1024, 8);
    let [q, k, v] = [1.0, 0.5, 0.25].map(|scale| wave([1, length, width]).mul(scale).requires_grad_(true));
    let scores = 4 * length * length;
    for (derivatives, bound) in [(0, scores / 2), (1, scores / 2), (2, 12 * scores)] {
        let (before, peak) = (in_use(), Device::cpu().memory_stats().peak);
        let mut y = q.scaled_dot_product_attention(&k, &v, Default::default());
        for _ in 0..derivatives {
            let options = GradOptions { create_graph: true, ..Default::default() };
            let gradients = grad(&[&y.square().sum(..)], &[&q, &k, &v], options).unwrap();
            y = gradients.iter().map(|g| g.square().sum(..)).sum();
        }
        drop(y);
        let now = Device::cpu().memory_stats().peak;
        assert!(now <= peak.max(before + bound), "derivative {derivatives}: the peak grew from {peak} to {now} bytes");
    }
}

#[test]
fn a_pass_that_runs_out_of_memory_changes_no_gradient() {
    let _turn = lock_statistics();
    let cpu = Device::cpu();
    let leaves = || [4, 1 << 20].map(|n| Tensor::zeros([n], DType::F32).requires_grad_(true));
    let fails = |a: &Tensor, b: &Tensor| {
        let loss = a.sum(..) + b.sum(..);
        cpu.set_memory_cap(in_use() + (1 << 20));
        let error = loss.try_backward();
        cpu.set_memory_cap(usize::MAX);
        assert!(matches!(error, Err(Error::OutOfMemory { .. })), "{error:?}");
    };
    for is_first in [true, false] {
        let [small, large] = leaves();
        let run = || if is_first { fails(&small, &large) } else { fails(&large, &small) };
        run();
        assert!(small.grad().is_none() && large.grad().is_none());
        // The caller holds the gradients, so a sum is not stored in their memory.
        (small.sum(..) + large.sum(..)).backward();
        let held = [&small, &large].map(|leaf| leaf.grad().unwrap());
        run();
        for (leaf, before) in [&small, &large].into_iter().zip(&held) {
            assert_eq!(
                (leaf.grad().unwrap().sum(..).item::<f32>(), before.i(0).item::<f32>()),
                (leaf.size() as f32, 1.0)
            );
        }
        (small.sum(..) + large.sum(..)).backward();
        let (after, before) = (large.grad().unwrap(), &held[1]);
        assert_eq!((after.i(0).item::<f32>(), before.i(0).item::<f32>()), (2.0, 1.0));
    }
}

/// Lists of host values are compared with the cap before they are filled.
#[test]
fn values_beyond_the_memory_cap_are_rejected_before_they_are_computed() {
    let _turn = lock_statistics();
    let cpu = Device::cpu();
    cpu.set_memory_cap(in_use() + (64 << 20));
    let (x, long) = (Tensor::from([0.5f32, 1.5]), 1usize << 40);
    let results = [
        ("arange", ops::arange(0, 1i64 << 40, 1, DType::I64).err()),
        ("arange", ops::arange(0.0, -(1i64 << 40) as f64, -1.0, DType::F32).err()),
        ("linspace", ops::linspace(0.0, 1.0, 1 << 28, DType::F32).err()),
        ("signal_window", ops::signal_window(ops::WindowFunction::Hann, long, true, DType::F64).err()),
        ("histc", ops::histc(&x, 1 << 28, 0.0, 1.0).err()),
        ("histogram", ops::histogram(&x, ops::Bins::Count(1 << 28), None, false).err()),
    ];
    cpu.set_memory_cap(usize::MAX);
    for (op, error) in results {
        let error = error.unwrap_or_else(|| panic!("{op} must be rejected"));
        assert!(matches!(&error, Error::OutOfMemory { op: named, .. } if *named == op), "{op}: {error}");
    }
    assert_eq!(ops::linspace(0.0, 1.0, 3, DType::F32).unwrap().to_vec::<f32>(), [0.0, 0.5, 1.0]);
}
