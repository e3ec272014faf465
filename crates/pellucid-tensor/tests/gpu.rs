//! Deferred and captured execution on a GPU. Needs the feature `wgpu`, and an adapter.
#![cfg(feature = "wgpu")]

use pellucid_tensor::{Device, Error, Tensor, capture, deferred_stats, flush, manual_seed, no_grad};

/// Returns the first GPU, or `None` without an adapter.
fn gpu() -> Option<Device> {
    match Device::gpu() {
        Ok(device) => Some(device),
        Err(why) => {
            assert!(std::env::var("PELLUCID_REQUIRE_GPU").is_err(), "a GPU is required: {why}");
            eprintln!("skipped: {why}");
            None
        }
    }
}

fn wave(shape: [usize; 2]) -> Tensor {
    let values: Vec<f32> = (0..shape[0] * shape[1]).map(|i| (i as f32 * 0.37).sin()).collect();
    Tensor::new(values, shape)
}

fn chain(x: &Tensor) -> Tensor {
    ((((x * 1.5).tanh() + 0.25).exp() - x).square().sigmoid() * x).sin().abs() / 3.0
}

#[track_caller]
fn assert_near(a: &Tensor, b: &Tensor) {
    let (a, b) = (a.to_vec::<f32>(), b.to_vec::<f32>());
    let largest = b.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    assert!(a.len() == b.len() && a.iter().zip(&b).all(|(a, b)| (a - b).abs() <= 1e-5 * largest), "{a:?} {b:?}");
}

#[test]
fn a_chain_of_ten_operations_with_its_gradient_takes_at_most_four_launches() {
    let Some(device) = gpu() else { return };
    let run = |x: &Tensor| {
        let y = chain(x);
        y.sum(..).backward();
        [y.detach(), x.grad().unwrap()]
    };
    let expected = run(&wave([3, 5]).requires_grad_(true));
    let x = wave([3, 5]).to(device).requires_grad_(true);
    let before = deferred_stats();
    let found = run(&x);
    drop(chain(&x).exp());
    flush().unwrap();
    let launches = deferred_stats().launches - before.launches;
    assert!(launches <= 4, "{launches} launches");
    found.iter().zip(&expected).for_each(|(a, b)| assert_near(a, b));
}

#[test]
fn the_best_device_is_never_a_software_adapter() {
    let Some(device) = gpu() else { return };
    assert!(!device.adapter().is_empty() && !Device::best().is_software());
    assert_eq!(Device::best(), if device.is_software() { Device::cpu() } else { device });
}

/// The greatest common divisor of `i64` needs 92 divisions of 64-bit values. Its shader would take minutes to compile.
#[test]
fn long_integer_programs_run_on_the_cpu() {
    let Some(device) = gpu() else { return };
    let [a, b] = [[12i64, 18, -7], [18, 27, 14]].map(|values| Tensor::from(values).to(device));
    assert_eq!(a.gcd(&b).to_vec::<i64>(), [6, 9, 7]);
}

#[test]
fn values_from_before_a_failed_kernel_stay() {
    let Some(device) = gpu() else { return };
    let x = wave([3, 4]).to(device);
    let before = &x * 2.0;
    let failed = x.i(vec![9i64]);
    let after = &failed + 1.0;
    assert!(matches!(failed.try_to_vec::<f32>(), Err(Error::IndexOutOfBounds { index: 9, .. })));
    assert_eq!(before.to_vec::<f32>(), (&wave([3, 4]) * 2.0).to_vec::<f32>());
    let error = after.try_to_vec::<f32>().unwrap_err();
    assert!(matches!(error, Error::NotComputed { .. }), "{error}");
    assert_near(&(&x + 1.0), &(wave([3, 4]) + 1.0));
}

#[test]
fn writes_before_an_impossible_allocation_happen() {
    if gpu().is_none() {
        return;
    }
    // A separate device, because another test compares the memory in use.
    let device: Device = "wgpu:2".parse().unwrap();
    let w = wave([1, 2]).to(device);
    w.copy_(&(&w + 1.0));
    let y = &w * 3.0;
    let wide = wave([1, 1 << 17]).to(device);
    let huge = wide.unsqueeze(2) + &wide;
    assert!(huge.exp().sum(..).try_to_vec::<f32>().is_err());
    assert_near(&w, &(wave([1, 2]) + 1.0));
    assert_near(&y, &((wave([1, 2]) + 1.0) * 3.0));
}

/// Kernels that a thread defers and never reads are dropped with the thread.
#[test]
fn ended_threads_leave_no_memory() {
    if gpu().is_none() {
        return;
    }
    // A separate device, because other tests change the memory in use.
    let device: Device = "wgpu:1".parse().unwrap();
    let work = || {
        std::thread::spawn(move || {
            let x = wave([64, 64]).to(device);
            x.eval();
            drop(&x + 1.0);
            &x * 2.0
        })
        .join()
        .unwrap()
    };
    assert_near(&work(), &(wave([64, 64]) * 2.0));
    let before = device.memory_stats().in_use;
    for _ in 0..20 {
        // The result is read, or is dropped without a read.
        drop(work());
        assert_near(&work(), &(wave([64, 64]) * 2.0));
    }
    assert_eq!(device.memory_stats().in_use, before);
}

#[test]
fn ten_thousand_steps_without_a_read_use_constant_memory() {
    let Some(device) = gpu() else { return };
    let (x, w) = (wave([4, 3]).to(device), wave([3, 2]).to(device).requires_grad_(true));
    let step = || {
        w.zero_grad();
        x.matmul(&w).square().sum(..).backward();
        let _off = no_grad();
        w.copy_(&(&w - w.grad().unwrap() * 0.01));
    };
    (0..1000).for_each(|_| step());
    let before = device.memory_stats();
    for _ in 0..9 {
        (0..1000).for_each(|_| step());
        let after = device.memory_stats();
        assert!(after.in_use + after.cached <= before.in_use + before.cached + (1 << 16), "{after:?} {before:?}");
    }
    assert!(w.to_vec::<f32>().iter().all(|v| v.is_finite()));
}

#[test]
fn threads_share_a_device() {
    let Some(device) = gpu() else { return };
    let w = wave([4, 4]).to(device);
    let expected: Vec<Tensor> = (0..4).map(|k| chain(&(wave([4, 4]) * k as f64)).matmul(&wave([4, 4]))).collect();
    std::thread::scope(|s| {
        for (k, expected) in expected.iter().enumerate() {
            let w = &w;
            s.spawn(move || {
                for _ in 0..10 {
                    assert_near(&chain(&(w * k as f64)).matmul(w), expected);
                }
            });
        }
    });
}

#[test]
fn an_index_out_of_bounds_is_an_error_of_the_read() {
    let Some(device) = gpu() else { return };
    let x = wave([3, 2]).to(device);
    let bad = Tensor::from([1i64, 7]);
    for _ in 0..3 {
        let y = x.index_select(0, &bad).sum(..) * 2.0;
        let error = y.try_to_vec::<f32>().unwrap_err();
        assert!(matches!(error, Error::IndexOutOfBounds { index: 7, len: 3, .. }), "{error}");
        assert_near(&(&x + 1.0), &(wave([3, 2]) + 1.0));
    }
}

/// A captured step is bit-identical to eager steps on the same device, with random numbers drawn there.
#[test]
fn replayed_steps_equal_eager_ones_in_every_bit() {
    let Some(device) = gpu() else { return };
    let x = wave([8, 4]).to(device);
    let start = || wave([4, 3]).to(device).requires_grad_(true);
    let step = |w: &Tensor| {
        w.zero_grad();
        let loss = x.dropout(0.3).matmul(w).tanh().square().mean(..);
        loss.backward();
        let _off = no_grad();
        w.copy_(&(w - w.grad().unwrap() * 0.1));
        loss.detach()
    };
    manual_seed(3);
    let w = start();
    let eager: Vec<u32> = (0..6).map(|_| step(&w).item::<f32>().to_bits()).collect();
    let eager_weights = w.to_vec::<f32>();
    manual_seed(3);
    let w = start();
    let mut captured = capture(|_: &[Tensor]| step(&w), &[]).unwrap();
    let replayed: Vec<u32> = (0..6).map(|_| captured.launch(&[]).unwrap().to_vec::<f32>(0)[0].to_bits()).collect();
    assert_eq!(replayed, eager);
    drop(captured);
    assert_eq!(w.to_vec::<f32>(), eager_weights);
}
