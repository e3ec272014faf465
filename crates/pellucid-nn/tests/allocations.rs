//! The launch of a captured step allocates no memory, on any thread.
//!
//! The allocator counts for the entire process, so one test runs all steps in turn.

use pellucid_nn::graph::{GraphTrainer, InferenceModel, StepOptions};
use pellucid_nn::optim::{Adam, AdamOptions, AdamW, AdamWOptions, Optimizer, Sgd, SgdOptions, clip_grad_norm};
use pellucid_nn::{
    BatchNorm2d, Conv2d, Dropout, Embedding, Flatten, Layer, Linear, Lstm, MaxPool2d, Module, Relu, Sequential,
    TransformerEncoder, loss, sequential,
};
use pellucid_tensor::{DType, Device, Tensor, autocast, capture_local, manual_seed, ops};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, with a count of all threads' allocations.
struct Counting;

// SAFETY: every call is forwarded to the system's allocator unchanged; the counter allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: `layout` has a non-zero size, by the contract of `GlobalAlloc::alloc`, which `System` shares.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: `alloc` above got the pointer from `System` for this `layout`, by the contract of `dealloc`.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Launches the step a few times after two warm-up launches, and adds its allocations to `found`.
fn launches(name: &str, found: &mut Vec<String>, step: impl FnMut(&[Tensor]) -> Tensor, inputs: &[&Tensor]) {
    let mut step = capture_local(step, inputs).unwrap();
    let mut launch = || assert_eq!(step.launch(inputs).unwrap().len(), 1);
    // Debug builds record again in launches 2 and 3, to compare.
    let warm = if cfg!(debug_assertions) { 4 } else { 2 };
    (0..warm).for_each(|_| launch());
    let memory = Device::cpu().memory_stats();
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    (0..10).for_each(|_| launch());
    let count = ALLOCATIONS.load(Ordering::Relaxed) - before;
    let after = Device::cpu().memory_stats();
    if count > 0 {
        found.push(format!("{name}: {count} allocations in 10 launches"));
    }
    if (after.in_use, after.cached) != (memory.in_use, memory.cached) {
        found.push(format!("{name}: the memory in use changed from {memory:?} to {after:?}"));
    }
}

/// A training step of a loss.
fn training<'a>(
    optimizer: &'a dyn Optimizer,
    loss: impl Fn(&[Tensor]) -> Tensor + 'a,
) -> impl FnMut(&[Tensor]) -> Tensor + 'a {
    move |inputs| {
        optimizer.zero_grad();
        let loss = loss(inputs);
        loss.backward();
        clip_grad_norm(&optimizer.parameters(), 1.0).unwrap();
        optimizer.step();
        loss.detach()
    }
}

fn randn<const N: usize>(shape: [usize; N]) -> Tensor {
    Tensor::randn(shape, DType::F32)
}

fn mlp(found: &mut Vec<String>) {
    let model = sequential![Linear::new(256, 512), Relu, Linear::new(512, 512), Relu, Linear::new(512, 10)];
    let options = SgdOptions { lr: 0.05, momentum: 0.9, weight_decay: 1e-3, ..Default::default() };
    let optimizer = Sgd::new(model.parameters(), options);
    let (x, y) = (randn([128, 256]), Tensor::randint(0, 10, [128]));
    let loss = |i: &[Tensor]| loss::cross_entropy(&model.forward(&i[0]), &i[1]);
    launches("mlp", found, training(&optimizer, loss), &[&x, &y]);
    let half = |i: &[Tensor]| {
        let _half = autocast(DType::BF16);
        loss(i)
    };
    launches("bf16", found, training(&optimizer, half), &[&x, &y]);
}

fn cnn(found: &mut Vec<String>) {
    let model: Sequential = sequential![
        Conv2d::new(3, 16, 3).padding(1),
        BatchNorm2d::new(16),
        Relu,
        Conv2d::new(16, 32, 3).padding(1),
        BatchNorm2d::new(32),
        Relu,
        MaxPool2d::new(2),
        Conv2d::new(32, 32, 3).stride(2).padding(1),
        Relu,
        Conv2d::new(32, 32, 3).padding(1).groups(32),
        Conv2d::new(32, 1, 5),
        Dropout::new(0.2),
        Flatten::new(),
        Linear::new(16, 10)
    ];
    let optimizer = AdamW::new(model.parameters(), AdamWOptions::default());
    let (x, y) = (randn([16, 3, 32, 32]), Tensor::randint(0, 10, [16]));
    let loss = |i: &[Tensor]| loss::cross_entropy(&model.forward(&i[0]), &i[1]);
    launches("cnn", found, training(&optimizer, loss), &[&x, &y]);
}

fn transformer(found: &mut Vec<String>) {
    let words = Embedding::new(100, 64);
    let model = TransformerEncoder::new(64, 4, 2).hidden(128);
    let head = Linear::new(64, 100);
    let parameters = [words.parameters(), model.parameters(), head.parameters()].concat();
    let optimizer = AdamW::new(parameters, AdamWOptions::default());
    let (x, y) = (Tensor::randint(0, 100, [12, 40]), Tensor::randint(0, 100, [12 * 40]));
    let loss = |i: &[Tensor]| {
        let y = head.forward(&model.forward(&words.forward(&i[0])));
        loss::cross_entropy(&y.reshape([12 * 40, 100]), &i[1])
    };
    launches("transformer", found, training(&optimizer, loss), &[&x, &y]);
}

fn recurrent(found: &mut Vec<String>) {
    let model = Lstm::new(32, 64);
    let optimizer = Adam::new(model.parameters(), AdamOptions::default());
    for batch in [2, 16] {
        let x = randn([batch, 30, 32]);
        let loss = |i: &[Tensor]| model.forward_sequence(&i[0], None).0.square().mean(..);
        launches("lstm", found, training(&optimizer, loss), &[&x]);
    }
}

fn others(found: &mut Vec<String>) {
    let (x, wide) = (randn([40, 3000]), randn([20, 6, 70, 50]));
    let positions = Tensor::randint(0, 3000, [40, 500]);
    let table = randn([5000, 64]);
    let rows = Tensor::randint(0, 5000, [3000]);
    let step = |i: &[Tensor]| {
        let [x, wide, positions, table, rows] = i else { unreachable!() };
        let (sorted, order) = ops::sort(x, 1, false).unwrap();
        let (turned, _) = ops::sort(x, 0, true).unwrap();
        let (top, _) = ops::topk(x, 5, 1, true).unwrap();
        let sums = ops::cumsum(x, 1).unwrap() + ops::cumsum(x, 0).unwrap() + sorted + turned;
        let taken = ops::take_along_axis(&sums, positions, 1).unwrap();
        let put = ops::scatter_add_along(&taken, positions, 1, [40, 3000]).unwrap();
        let picked = ops::index_add(table, 0, rows, &randn([3000, 64]), 1.0).unwrap();
        let batches = wide.matmul(&wide.transpose(2, 3)).softmax(-1).permute([3, 1, 0, 2]);
        let total = batches.sum([0, 2]).mean(..) + wide.max([1, 3]).sum(..) + wide.argmax(2).sum(..);
        total + put.sum(..) + picked.square().mean(..) + top.sum(..) + order.sum(..) + batches.std(1).sum(..)
    };
    launches("others", found, step, &[&x, &wide, &positions, &table, &rows]);
}

/// A trainer: batches are copied into the buffers of a step for one of two shapes, and launched.
fn trainer(found: &mut Vec<String>) {
    let model = sequential![Linear::new(64, 96), Relu, Dropout::new(0.1), Linear::new(96, 10)];
    let optimizer = AdamW::new(model.parameters(), AdamWOptions::default());
    let options = StepOptions {
        before_update: Some(Arc::new(|parameters| clip_grad_norm(parameters, 1.0).map(drop))),
        ..Default::default()
    };
    let mut trainer = GraphTrainer::new(&model, loss::CrossEntropyLoss::default(), optimizer).with_options(options);
    let batches = [32, 16].map(|size| (randn([size, 64]), Tensor::randint(0, 10, [size])));
    for (x, _) in &batches {
        trainer.prepare(&Tensor::zeros(x.shape(), DType::F32)).unwrap();
    }
    let mut steps = || batches.iter().for_each(|(x, y)| trainer.step(x, y).unwrap());
    (0..4).for_each(|_| steps());
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    (0..10).for_each(|_| steps());
    let count = ALLOCATIONS.load(Ordering::Relaxed) - before;
    if count > 0 {
        found.push(format!("trainer: {count} allocations in 10 epochs"));
    }
}

/// An inference model: batches of two batch sizes.
fn inference(found: &mut Vec<String>) {
    let model = sequential![Linear::new(64, 96), Relu, Dropout::new(0.1), Linear::new(96, 10)];
    let mut inference = InferenceModel::new(&model, &[1, 16]);
    let batches = [16, 1].map(|size| randn([size, 64]));
    let mut launch = || batches.iter().for_each(|x| assert_eq!(inference.launch(x).unwrap().len(), 1));
    (0..4).for_each(|_| launch());
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    (0..10).for_each(|_| launch());
    let count = ALLOCATIONS.load(Ordering::Relaxed) - before;
    if count > 0 {
        found.push(format!("inference: {count} allocations in 20 launches"));
    }
}

#[test]
fn launches_allocate_nothing_with_any_number_of_threads() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    std::thread::spawn(|| drop(Box::new(1))).join().unwrap();
    assert!(ALLOCATIONS.load(Ordering::Relaxed) > before, "the allocator must count the allocations of other threads");
    for threads in [1, 2, 3] {
        let found = pellucid_cpu::with_threads(threads, || {
            manual_seed(1);
            let mut found = Vec::new();
            [mlp, cnn, transformer, recurrent, others, trainer, inference].iter().for_each(|steps| steps(&mut found));
            found
        });
        assert!(found.is_empty(), "with {threads} threads, launches must allocate nothing, but: {found:#?}");
    }
}
