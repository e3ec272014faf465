//! Measurements of the host time per kernel, which run only on request: `cargo test --release -p pellucid-wgpu --test
//! adapter timings -- --ignored --nocapture`.

use crate::kernels::harness::{PairedArray, ProgramBuilder, TestLayout, Tolerance, device, run_both};
use pellucid_ir::backend::{Backend, View};
use pellucid_ir::formula::{Binary, Op, UniformSource};
use pellucid_ir::kernel::{Kernel, Map};
use pellucid_ir::plan::{Launch, Plan, SlotView};
use pellucid_ir::{Compute, DType, Layout, Scalar};
use pellucid_wgpu::Wgpu;
use std::time::{Duration, Instant};

/// Returns the map y = x₀ + factor·x₁.
fn scaled_sum(factor: f64) -> Kernel {
    let mut b = ProgramBuilder::default();
    let (x, y) = (b.x(DType::F32), b.x(DType::F32));
    let scale = b.uniform(UniformSource::Param(0), Compute::F32);
    let scaled = b.step(Op::Binary(Binary::Mul), Compute::F32, Compute::F32, &[y, scale]);
    let sum = b.step(Op::Binary(Binary::Add), Compute::F32, Compute::F32, &[x, scaled]);
    let program = b.build(&[(sum, Compute::F32, DType::F32, false)]);
    Kernel::Map(Map { program, params: [Scalar::Float(factor)].into() })
}

/// Returns three arrays of four elements.
fn arrays(gpu: &Wgpu) -> [PairedArray; 3] {
    [2, 3, 0].map(|v| PairedArray::new(gpu, [4], DType::F32, TestLayout::Plain, || Scalar::Int(v)))
}

#[test]
fn a_new_value_of_a_parameter_changes_the_result_of_a_repeated_kernel() {
    let Some(gpu) = device() else { return };
    let [x, y, z] = arrays(gpu);
    let Kernel::Map(map) = scaled_sum(1.0) else { unreachable!() };
    for factor in [1.0, 2.0, -0.5] {
        let kernel = Kernel::Map(Map { program: map.program.clone(), params: [Scalar::Float(factor)].into() });
        run_both(gpu, &kernel, &[&x, &y], &[&z]).unwrap();
        z.assert_same(gpu, Tolerance::Bits, "a repeated kernel");
        assert_eq!(z.device_values::<f32>(gpu)[0], 2.0 + 3.0 * factor as f32);
    }
}

#[test]
fn the_time_of_the_device_is_within_the_time_of_the_host() {
    let Some(gpu) = device() else { return };
    let [x, y, z] = [0; 3].map(|v| PairedArray::new(gpu, [1 << 16], DType::F32, TestLayout::Plain, || Scalar::Int(v)));
    let kernel = scaled_sum(2.0);
    let views = [&x, &y, &z].map(PairedArray::on_gpu);
    let run = |times| {
        let start = Instant::now();
        let measured = gpu.device_time(&mut || (0..times).try_for_each(|_| gpu.run(&kernel, &views[..2], &views[2..])));
        measured.unwrap().map(|time| (time, start.elapsed()))
    };
    // Without timestamps there is nothing to compare.
    let Some((time, host)) = run(40) else { return };
    assert!(time > Duration::ZERO && time <= host, "{time:?} of {host:?}");
    let error = gpu.device_time(&mut || gpu.run(&kernel, &[], &[]));
    assert!(error.is_err(), "the error of the work must be returned");
}

/// Returns the shortest of 50 measurements of `count` calls to `run`, divided by `count`. The device is idle before
/// each measurement.
fn shortest(gpu: &Wgpu, count: u32, run: impl Fn()) -> Duration {
    let time = |_| {
        gpu.synchronize().unwrap();
        let start = Instant::now();
        (0..count).for_each(|_| run());
        start.elapsed() / count
    };
    (0..50).map(time).min().unwrap_or_default()
}

#[test]
#[ignore = "a measurement"]
fn host_time_of_a_repeated_kernel() {
    let Some(gpu) = device() else { return };
    let [x, y, z] = arrays(gpu);
    let kernel = scaled_sum(2.0);
    let views = [&x, &y, &z].map(PairedArray::on_gpu);
    let (inputs, outputs): (&[View<'_>], &[View<'_>]) = views.split_at(2);
    let recorded = shortest(gpu, 60, || gpu.run(&kernel, inputs, outputs).unwrap());
    let submitted = shortest(gpu, 65, || gpu.run(&kernel, inputs, outputs).unwrap());
    println!("recorded: {recorded:?}; recorded and submitted: {submitted:?} for each kernel");
}

#[test]
#[ignore = "a measurement"]
fn host_time_of_a_launch() {
    const KERNELS: u32 = 128;
    let Some(gpu) = device() else { return };
    // Chains of maps over the parts of one arena.
    let part = |k: u32| {
        let layout = Layout::contiguous_from([4].into(), 4 * (k % 8) as usize);
        SlotView { slot: 0, layout, dtype: DType::F32 }
    };
    let kernel = |k| Launch::new(scaled_sum(2.0), vec![part(k), part(k + 1)], vec![part(k + 2)]);
    let plan = Plan { slots: vec![128], launches: (0..KERNELS).map(kernel).collect(), ..Plan::default() };
    let compiled = gpu.prepare(&plan).unwrap().unwrap();
    let arena = gpu.storage(128).unwrap();
    gpu.upload(&[0; 128], &arena).unwrap();
    let launch = shortest(gpu, 1, || compiled.run(std::slice::from_ref(&arena)).unwrap());
    println!("a launch of {KERNELS} kernels: {:?} for each kernel", launch / KERNELS);
}
