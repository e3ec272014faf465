//! Devices, memory and errors.

use super::harness::{PairedArray, TestLayout, device, run_both};
use crate::backend::{is_available, open};
use pellucid_cpu::Cpu;
use pellucid_ir::backend::{Backend, OperandMeta, Support, View};
use pellucid_ir::kernel::{Gather, Index, Kernel, Sort};
use pellucid_ir::{DType, Error, Layout, Scalar};

#[test]
fn devices_of_one_gpu_are_different_devices() {
    let Some(gpu) = device() else { return };
    assert!(is_available());
    let other = open(3).unwrap();
    assert_eq!(gpu.name().replace(":0", ":3"), other.name());
    let storage = other.storage(16).unwrap();
    assert!(matches!(gpu.upload(&[0; 4], &storage), Err(Error::DeviceMismatch { .. })));
    let on_cpu = Cpu.storage(16).unwrap();
    assert!(matches!(gpu.upload(&[0; 4], &on_cpu), Err(Error::DeviceMismatch { .. })));
}

#[test]
fn transfers_have_any_size_and_offset() {
    let Some(gpu) = device() else { return };
    for size in 0..19 {
        let storage = gpu.storage(19).unwrap();
        gpu.upload(&[7; 19], &storage).unwrap();
        let bytes: Vec<u8> = (1..=size as u8).map(|b| b * 10).collect();
        gpu.upload(&bytes, &storage).unwrap();
        let expected: Vec<u8> = bytes.iter().copied().chain(std::iter::repeat(7)).take(19).collect();
        for offset in 0..19 {
            for end in offset..=19 {
                let mut got = vec![0; end - offset];
                gpu.download(&storage, offset, &mut got).unwrap();
                assert_eq!(got, expected[offset..end], "{size} bytes, {offset}..{end}");
            }
        }
    }
}

#[test]
fn invalid_calls_are_typed_errors() {
    let Some(gpu) = device() else { return };
    let storage = gpu.storage(8).unwrap();
    assert!(matches!(gpu.upload(&[0; 9], &storage), Err(Error::InvalidArgument { .. })));
    assert!(matches!(gpu.download(&storage, 0, &mut [0; 8]), Err(Error::InvalidArgument { .. })));
    gpu.upload(&[0; 8], &storage).unwrap();
    assert!(matches!(gpu.download(&storage, 1, &mut [0; 8]), Err(Error::InvalidArgument { .. })));
    let x = PairedArray::new(gpu, [4], DType::F32, TestLayout::Plain, || Scalar::Int(1));
    let unwritten = gpu.storage(16).unwrap();
    let layout = Layout::contiguous([4].into());
    let view = View { storage: &unwritten, layout: &layout, dtype: DType::F32 };
    assert!(matches!(gpu.run(&Kernel::Copy, &[view], &[x.on_gpu()]), Err(Error::InvalidArgument { .. })));
    let long = Layout::contiguous([40].into());
    let wide = PairedArray::new(gpu, [40], DType::F32, TestLayout::Plain, || Scalar::Int(1));
    let beyond = View { layout: &long, ..x.on_gpu() };
    assert!(matches!(gpu.run(&Kernel::Copy, &[beyond], &[wide.on_gpu()]), Err(Error::InvalidArgument { .. })));
    let stretched = x.broadcast([3, 4]);
    assert!(matches!(gpu.run(&Kernel::Copy, &[x.on_gpu()], &[stretched.on_gpu()]), Err(Error::InvalidArgument { .. })));
    let other = PairedArray::new(gpu, [5], DType::F32, TestLayout::Plain, || Scalar::Int(1));
    assert!(matches!(run_both(gpu, &Kernel::Copy, &[&x], &[&other]), Err(Error::ShapeMismatch { .. })));
    assert!(matches!(gpu.run(&Kernel::Copy, &[], &[]), Err(Error::InvalidArgument { .. })));
}

/// The cache of freed memory is emptied while a kernel may still be running.
#[test]
fn memory_is_freed_after_the_kernels_that_use_it() {
    if device().is_none() {
        return;
    }
    let gpu = open(1).unwrap();
    let array = |value| PairedArray::new(&gpu, [1000], DType::F32, TestLayout::Plain, || Scalar::Int(value));
    let (x, y) = (array(7), array(0));
    gpu.run(&Kernel::Copy, &[x.on_gpu()], &[y.on_gpu()]).unwrap();
    drop(x);
    gpu.trim();
    assert_eq!(y.device_values::<f32>(&gpu)[..1000], [7.0; 1000]);
    // The device has reported no error.
    gpu.synchronize().unwrap();
}

#[test]
fn memory_is_lazy_cached_and_limited() {
    if device().is_none() {
        return;
    }
    let gpu = open(1).unwrap();
    gpu.trim();
    let start = gpu.memory_stats();
    let storage = gpu.storage(1000).unwrap();
    assert_eq!(gpu.memory_stats().in_use, start.in_use, "a storage must have no memory before it is written");
    gpu.upload(&[1; 10], &storage).unwrap();
    assert_eq!(gpu.memory_stats().in_use, start.in_use + 1024);
    drop(storage);
    let freed = gpu.memory_stats();
    assert_eq!((freed.in_use, freed.cached), (start.in_use, start.cached + 1024));
    let again = gpu.storage(1020).unwrap();
    gpu.upload(&[1; 10], &again).unwrap();
    assert_eq!(
        gpu.memory_stats().system_allocations,
        freed.system_allocations,
        "a cached buffer of the size class must be reused"
    );
    gpu.set_memory_cap(2000);
    let more = gpu.storage(1000).unwrap();
    assert!(matches!(gpu.upload(&[1; 10], &more), Err(Error::OutOfMemory { cap: 2000, .. })));
    gpu.set_memory_cap(usize::MAX);
    let huge = gpu.storage(usize::MAX / 2).unwrap();
    assert!(matches!(gpu.upload(&[1; 10], &huge), Err(Error::OutOfMemory { .. })));
    gpu.upload(&[1; 10], &more).unwrap();
    gpu.synchronize().unwrap();
}

#[test]
fn outputs_of_a_failed_kernel_have_no_memory() {
    if device().is_none() {
        return;
    }
    let gpu = &open(2).unwrap();
    let view = |storage, layout, dtype| View { storage, layout, dtype };
    let layout = &Layout::contiguous([2].into());
    let [x, index] = [PairedArray::of(gpu, [2], &[1.0f32, 2.0]), PairedArray::of(gpu, [2], &[0i64, 2])];
    let kernel = Kernel::Gather(Gather { op: "gather", from_end: true, index: Index::Axes([0].into_iter().collect()) });
    let y = gpu.storage(8).unwrap();
    let failed = gpu.run(&kernel, &[x.on_gpu(), index.on_gpu()], &[view(&y, layout, DType::F32)]);
    assert!(matches!(failed, Err(Error::IndexOutOfBounds { index: 2, .. })), "{failed:?}");
    assert!(
        matches!(gpu.download(&y, 0, &mut [0; 8]), Err(Error::InvalidArgument { .. })),
        "the output of a skipped kernel must have no memory"
    );

    // The outputs fit below the cap, but the keys of the sort do not.
    let x = PairedArray::of(gpu, [2], &[1.0f32, 2.0]);
    let positions = gpu.storage(16).unwrap();
    gpu.set_memory_cap(gpu.memory_stats().in_use + 512);
    let outputs = [view(&y, layout, DType::F32), view(&positions, layout, DType::I64)];
    let sort = Kernel::Sort(Sort { axis: 0, k: 2, descending: false });
    let failed = gpu.run(&sort, &[x.on_gpu()], &outputs);
    assert!(matches!(failed, Err(Error::OutOfMemory { .. })), "{failed:?}");
    assert!(
        !y.buffer().is_allocated() && !positions.buffer().is_allocated(),
        "the outputs must have no memory after an error"
    );
    gpu.set_memory_cap(usize::MAX);
    gpu.run(&sort, &[x.on_gpu()], &outputs).unwrap();
    gpu.download(&y, 0, &mut [0; 8]).unwrap();
}

#[test]
fn kernels_that_shaders_cannot_count_are_left_to_the_cpu() {
    let Some(gpu) = device() else { return };
    let support = |kernel: &Kernel, inputs: &[(&[usize], DType)], outputs: &[(&[usize], DType)]| {
        let layouts = [inputs, outputs].map(|operands| {
            operands.iter().map(|&(shape, dtype)| (Layout::contiguous(shape.into()), dtype)).collect::<Vec<_>>()
        });
        let [inputs, outputs] = layouts.each_ref().map(|operands| {
            operands.iter().map(|(layout, dtype)| OperandMeta { layout, dtype: *dtype }).collect::<Vec<_>>()
        });
        gpu.support(kernel, &inputs, &outputs)
    };
    let copy = |len: usize| support(&Kernel::Copy, &[(&[len], DType::U8)], &[(&[len], DType::U8)]);
    assert_eq!([(1 << 31) - 1, 1 << 31].map(copy), [Support::Native, Support::Fallback]);
    let sort = Kernel::Sort(Sort { axis: 0, k: 1, descending: false });
    let first: [(&[usize], DType); 2] = [(&[1], DType::U8), (&[1], DType::I64)];
    let sorts = |len: usize| support(&sort, &[(&[len], DType::U8)], &first);
    assert_eq!([1 << 30, (1 << 30) + 1].map(sorts), [Support::Native, Support::Fallback]);
}
