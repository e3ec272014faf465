//! Launch counts of deferred work, compared with burn 0.22.1 (wgpu, with fusion).

#[cfg(any(feature = "cuda", feature = "wgpu"))]
use crate::real_gpus;
use crate::toy;
use pellucid::nn::optim::{Adam, AdamOptions, Optimizer};
use pellucid::nn::{Conv2d, Flatten, LayerNorm, MaxPool2d};
use pellucid::prelude::*;
use pellucid::{capture_local, deferred_stats, eval, ops};

/// A counter of a device, and the way to run the counted work.
struct WorkCounter<'a> {
    count: &'a dyn Fn() -> u64,
    is_captured: bool,
}

/// Returns the increase of the counter in the third run of `step`, on a device that defers its kernels.
fn counted(counter: &WorkCounter<'_>, step: &dyn Fn() -> Vec<Tensor>) -> u64 {
    let third = |run: &mut dyn FnMut()| {
        (0..2).for_each(|_| run());
        let before = (counter.count)();
        run();
        (counter.count)() - before
    };
    if !counter.is_captured {
        return third(&mut || eval(&step()).unwrap());
    }
    let mut captured = capture_local(|_: &[Tensor]| step(), &[]).unwrap();
    third(&mut || {
        captured.launch(&[]).unwrap();
    })
}

fn training_step(counter: &WorkCounter<'_>, model: &Sequential, optimizer: &dyn Optimizer, x: &Tensor) -> u64 {
    let y = Tensor::new((0..x.shape()[0] as i64).map(|i| i % 10).collect::<Vec<_>>(), [x.shape()[0]]);
    let y = y.to(x.device());
    model.to_(x.device()).unwrap();
    counted(counter, &|| {
        optimizer.zero_grad();
        let loss = ops::cross_entropy(&model.forward(x), &y, Default::default()).unwrap();
        loss.backward();
        optimizer.step();
        vec![loss.detach()]
    })
}

/// Workloads with their launches, GPU dispatches, and launches of burn. The bounds are the measured counts: an increase
/// fails.
const WORK: [(&str, u64, u64, u64); 6] = [
    ("MLP", 15, 16, 37),
    ("CNN", 30, 36, 76),
    ("chain of ten with gradient", 1, 1, 2),
    ("chain of ten with mean and gradient", 2, 3, 3),
    ("softmax", 1, 1, 4),
    ("layer norm", 1, 1, 3),
];

/// Returns the increase of the counter in one run of each workload on a device.
fn count_work(device: Device, counter: &WorkCounter<'_>) -> [u64; 6] {
    let wave = |shape: &[usize]| {
        let values: Vec<f32> = (0..shape.iter().product()).map(|i| (i as f32 * 0.37).sin()).collect();
        Tensor::new(values, shape).to(device)
    };
    let mlp = sequential![Linear::new(784, 256), Relu, Linear::new(256, 128), Relu, Linear::new(128, 10)];
    let sgd = Sgd::new(mlp.parameters(), SgdOptions { lr: 0.1, ..Default::default() });
    let cnn = sequential![
        Conv2d::new(1, 32, 3).padding(1),
        Relu,
        MaxPool2d::new(2),
        Conv2d::new(32, 64, 3).padding(1),
        Relu,
        MaxPool2d::new(2),
        Flatten::new(),
        Linear::new(3136, 128),
        Relu,
        Linear::new(128, 10),
    ];
    let adam = Adam::new(cnn.parameters(), AdamOptions::default());
    let x = wave(&[16, 32]);
    let norm = LayerNorm::new(32);
    norm.to_(device).unwrap();
    let chain = |finish: &dyn Fn(Tensor) -> Tensor| {
        let x = x.detach().requires_grad_(true);
        let (a, half) = (x.tanh(), &x * 0.5);
        let y = finish((((&a * &x + &a).exp().neg().sigmoid() - &half).abs() + 1e-3).sqrt() * &x);
        y.backward();
        vec![y.detach(), x.grad().unwrap()]
    };
    [
        training_step(counter, &mlp, &sgd, &wave(&[64, 784])),
        training_step(counter, &cnn, &adam, &wave(&[4, 1, 28, 28])),
        counted(counter, &|| chain(&|y| y)),
        counted(counter, &|| chain(&|y| y.mean(..))),
        counted(counter, &|| vec![x.softmax(-1)]),
        counted(counter, &|| vec![norm.forward(&x).detach()]),
    ]
}

#[test]
fn deferred_steps_need_few_launches() {
    let counter = WorkCounter { count: &|| deferred_stats().launches, is_captured: false };
    let found = count_work(toy(1), &counter);
    for ((name, launches, _, of_burn), found) in WORK.iter().zip(found) {
        assert!(launches <= of_burn, "{name}");
        assert!(found <= *launches, "{name} takes {found} launches instead of {launches}");
    }
}

/// A launch may consist of several dispatches, which may read an operand more than once and store intermediate values.
#[cfg(any(feature = "cuda", feature = "wgpu"))]
#[test]
fn deferred_steps_need_few_dispatches_and_bytes_on_a_gpu() {
    // Separate devices, because other tests dispatch concurrently.
    real_gpus(3).for_each(assert_few_dispatches_and_bytes);
}

#[cfg(any(feature = "cuda", feature = "wgpu"))]
fn assert_few_dispatches_and_bytes(device: Device) {
    let counter = |name: &str| device.counters().iter().find(|(n, _)| *n == name).expect("a counter of the device").1;
    let deferred = |count: &dyn Fn() -> u64| count_work(device, &WorkCounter { count, is_captured: false });
    let dispatches = deferred(&|| counter("dispatches"));
    let captured = count_work(device, &WorkCounter { count: &|| counter("dispatches"), is_captured: true });
    let moved = deferred(&|| counter("bytes"));
    let needed = deferred(&|| deferred_stats().bytes);
    for (k, (name, _, bound, _)) in WORK.iter().enumerate() {
        let (found, captured, moved, needed) = (dispatches[k], captured[k], moved[k], needed[k]);
        assert!(found <= *bound, "{name} on {device} takes {found} dispatches instead of {bound}");
        assert!(
            captured <= *bound,
            "{name} on {device} takes {captured} dispatches instead of {bound} if it is captured"
        );
        assert!(
            moved as f64 <= 1.2 * needed as f64,
            "{name} on {device} moves {moved} bytes, where its plan needs {needed}"
        );
    }
}
