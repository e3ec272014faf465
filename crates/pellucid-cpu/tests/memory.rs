//! Tests of the caching allocator by its public interface, and of the memory that kernels allocate. The allocator is
//! global, so the tests run one at a time.

use pellucid_cpu::{Cpu, CpuBuffer};
use pellucid_ir::backend::{Backend, Buffer, View};
use pellucid_ir::kernel::{Kernel, MatMul, Params, Reduce, ReduceOp};
use pellucid_ir::{DType, Error, Layout, formula};
use pellucid_runtime::threads::with_threads;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A lock of the allocator for one test. Dropping it resets the cap and empties the cache of the thread.
struct AllocatorTestGuard(
    #[allow(dead_code, reason = "the lock is held until the guard is dropped")] MutexGuard<'static, ()>,
);

impl Drop for AllocatorTestGuard {
    fn drop(&mut self) {
        Cpu.set_memory_cap(usize::MAX);
        Cpu.trim();
    }
}

/// Waits until no other test uses the allocator.
fn lock_allocator() -> AllocatorTestGuard {
    static LOCK: Mutex<()> = Mutex::new(());
    AllocatorTestGuard(LOCK.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Allocates a buffer and asserts that it is aligned to 64 bytes.
fn buffer(bytes: usize) -> CpuBuffer {
    let buffer = CpuBuffer::new(bytes).unwrap();
    let start = buffer.ensure().unwrap();
    assert_eq!(start.addr().get() % 64, 0);
    buffer
}

#[test]
fn memory_is_allocated_by_the_first_write_and_counted() {
    let _guard = lock_allocator();
    let before = Cpu.memory_stats();
    let lazy = CpuBuffer::new(100).unwrap();
    assert!(!lazy.is_allocated() && Cpu.memory_stats() == before);
    lazy.ensure().unwrap();
    let (large, empty) = (buffer(1 << 20), buffer(0));
    let now = Cpu.memory_stats();
    assert_eq!((lazy.bytes(), empty.bytes()), (100, 0));
    assert_eq!(now.in_use - before.in_use, 128 + (1 << 20));
    assert_eq!(now.allocations - before.allocations, 2);
    assert!(now.peak >= now.in_use);
    drop((lazy, large, empty));
    let after = Cpu.memory_stats();
    assert_eq!((after.in_use, after.cached), (before.in_use, now.in_use - before.in_use));
    assert_eq!(after.peak, now.peak);
    Cpu.trim();
    assert_eq!(Cpu.memory_stats().cached, 0);
}

#[test]
fn a_loop_with_the_same_sizes_allocates_from_the_system_once() {
    let _guard = lock_allocator();
    let step = || {
        let mut live: Vec<_> = [64, 4, 3000, 70_000, 1 << 20, 5 << 20].map(buffer).into();
        live.extend((0..500).map(|i| buffer(i * 7)));
        live.remove(3);
        live.push(buffer(1 << 20));
    };
    step();
    let first = Cpu.memory_stats();
    (0..2000).for_each(|_| step());
    let last = Cpu.memory_stats();
    assert_eq!(last.system_allocations, first.system_allocations);
    assert_eq!((last.in_use, last.cached, last.peak), (first.in_use, first.cached, first.peak));
}

#[test]
fn exceeding_the_cap_is_an_error_and_empties_the_cache_first() {
    let _guard = lock_allocator();
    let used = Cpu.memory_stats().in_use;
    drop(buffer(8 << 20));
    Cpu.set_memory_cap(used + (4 << 20));
    let three = buffer(3 << 20);
    assert!(Cpu.memory_stats().cached < 8 << 20, "the cached 8 MiB must be released");
    let buffer_over_cap = CpuBuffer::new(2 << 20).unwrap();
    let error = buffer_over_cap.ensure().unwrap_err();
    let (in_use, cap) = (used + (3 << 20), used + (4 << 20));
    let expected = Error::OutOfMemory { op: "", shape: None, requested: 2 << 20, in_use, cap };
    assert_eq!(error, expected);
    assert!(!buffer_over_cap.is_allocated());
    let small: Vec<_> = (0..(1 << 20) / 64).map(|_| buffer(64)).collect();
    assert!(CpuBuffer::new(1).unwrap().ensure().is_err(), "a small buffer above the cap must be an error");
    drop(three);
    buffer_over_cap.ensure().unwrap();
    drop(small);
}

#[test]
fn sizes_beyond_the_address_space_are_errors() {
    let _guard = lock_allocator();
    for bytes in [usize::MAX, isize::MAX as usize + 1, isize::MAX as usize, 1 << 62, 1 << 55] {
        let error = CpuBuffer::new(bytes).and_then(|b| b.ensure().map(|_| ())).unwrap_err();
        assert!(matches!(error, Error::OutOfMemory { requested, .. } if requested == bytes), "{error}");
    }
    assert_eq!(Cpu.memory_stats().in_use, 0);
}

#[test]
fn blocks_freed_by_another_thread_are_reused() {
    let _guard = lock_allocator();
    let before = Cpu.memory_stats();
    let (send, receive) = std::sync::mpsc::sync_channel::<CpuBuffer>(100);
    let other = std::thread::spawn(move || receive.into_iter().for_each(drop));
    (0..20_000).for_each(|i| send.send(buffer(1 + i % 5 * 1000)).unwrap());
    drop(send);
    other.join().unwrap();
    let stats = Cpu.memory_stats();
    assert_eq!(stats.in_use, 0);
    assert!(stats.system_allocations < before.system_allocations + 2000 && stats.cached < 4 << 20, "{stats:?}");
}

#[test]
fn blocks_of_a_finished_thread_are_reused() {
    let _guard = lock_allocator();
    let live = || drop((0..50).map(|_| buffer(1000)).collect::<Vec<_>>());
    std::thread::spawn(live).join().unwrap();
    let stats = Cpu.memory_stats();
    assert_eq!(stats.in_use, 0);
    live();
    live();
    assert_eq!(Cpu.memory_stats().system_allocations, stats.system_allocations);
}

#[test]
fn the_peak_includes_small_blocks() {
    let _guard = lock_allocator();
    let before = Cpu.memory_stats();
    let live: Vec<_> = (0..100_000).map(|_| buffer(256)).collect();
    drop(live);
    let peak = Cpu.memory_stats().peak;
    assert!(peak >= (100_000 * 256 - (64 << 10)).max(before.peak), "{peak}");
}

/// A kernel over views of one storage of ones, of which it needs copies or partial results.
struct WorkspaceCase {
    kernel: Kernel,
    /// The number of elements of the storage.
    elements: usize,
    inputs: Vec<Layout>,
    output: Vec<usize>,
    /// Every element of the result.
    expected: f32,
}

/// Returns the sum of a tensor over axes.
fn sum(axes: impl IntoIterator<Item = usize>) -> Kernel {
    let program = formula!(|x| x).uniform_program(DType::F32).unwrap().clone();
    let (params, finish_params) = (Params::new(), Params::new());
    let axes = axes.into_iter().collect();
    Kernel::Reduce(Reduce { op: ReduceOp::Sum, axes, program, params, finish: None, finish_params, output: DType::F32 })
}

/// Returns kernels whose workspaces exceed the stack of scratch memory.
fn workspace_cases() -> Vec<WorkspaceCase> {
    let (rows, k) = (20_000, 300_000);
    let layout =
        |shape: Vec<usize>, strides: Vec<isize>| Layout::strided(shape.into(), strides.into_iter().collect(), 0);
    let product = || Kernel::MatMul(MatMul::default());
    vec![
        WorkspaceCase {
            kernel: sum([0, 1]),
            elements: rows * 128,
            inputs: vec![layout(vec![128, rows], vec![1, 128])],
            output: vec![1, 1],
            expected: 128.0 * rows as f32,
        },
        // The middle axis is kept and repeats the values.
        WorkspaceCase {
            kernel: sum([2]),
            elements: 2 * k,
            inputs: vec![layout(vec![k, 2, 2], vec![2, 0, 1])],
            output: vec![k, 2, 1],
            expected: 2.0,
        },
        // A strided row and a strided column.
        WorkspaceCase {
            kernel: product(),
            elements: 2 * k,
            inputs: vec![layout(vec![1, k], vec![1, 2]), layout(vec![k, 1], vec![2, 1])],
            output: vec![1, 1],
            expected: k as f32,
        },
    ]
}

#[test]
fn large_workspaces_are_counted_and_freed() {
    let _guard = lock_allocator();
    for case in workspace_cases() {
        let x = Cpu.storage(4 * case.elements).unwrap();
        Cpu.upload(bytemuck::cast_slice(&vec![1.0f32; case.elements]), &x).unwrap();
        let layout = Layout::contiguous(case.output.into());
        let count = layout.shape().size();
        let y = Cpu.storage(4 * count).unwrap();
        Cpu.upload(&vec![0; 4 * count], &y).unwrap();
        let view = |storage, layout| View { storage, layout, dtype: DType::F32 };
        let inputs: Vec<View<'_>> = case.inputs.iter().map(|layout| view(&*x, layout)).collect();
        // A helper thread would free memory at a later time.
        let run = || with_threads(1, || Cpu.run(&case.kernel, &inputs, &[view(&*y, &layout)]));
        let name = case.kernel.name();

        Cpu.trim();
        let before = Cpu.memory_stats();
        Cpu.set_memory_cap(before.in_use + (1 << 20));
        let error = run().expect_err("the workspace exceeds the cap");
        assert!(matches!(error, Error::OutOfMemory { .. }), "{name}: {error}");
        Cpu.set_memory_cap(usize::MAX);
        run().unwrap();
        assert_eq!(Cpu.memory_stats().in_use, before.in_use, "{name}");
        let mut found = vec![0.0f32; count];
        Cpu.download(&y, 0, bytemuck::cast_slice_mut(&mut found)).unwrap();
        assert!(found.iter().all(|&value| value == case.expected), "{name}: {:?}", found[0]);
    }
}

/// A batch of small products needs no memory for each product.
#[test]
fn a_batch_of_products_allocates_nothing_for_its_products() {
    let _guard = lock_allocator();
    let count = 200_000;
    let a = Cpu.storage(8 * count).unwrap();
    Cpu.upload(bytemuck::cast_slice(&vec![2.0f32; 2 * count]), &a).unwrap();
    let c = Cpu.storage(4 * count).unwrap();
    Cpu.upload(&vec![0; 4 * count], &c).unwrap();
    let [rows, columns, results] =
        [[count, 1, 2], [count, 2, 1], [count, 1, 1]].map(|shape| Layout::contiguous(shape.into()));
    let view = |storage, layout| View { storage, layout, dtype: DType::F32 };
    Cpu.trim();
    let before = Cpu.memory_stats();
    let kernel = Kernel::MatMul(MatMul::default());
    let inputs = [view(&*a, &rows), view(&*a, &columns)];
    with_threads(1, || Cpu.run(&kernel, &inputs, &[view(&*c, &results)])).unwrap();
    let after = Cpu.memory_stats();
    let allocated = after.in_use + after.cached - before.in_use - before.cached;
    assert!(allocated < 64 << 10, "{allocated} bytes");
    let mut found = vec![0.0f32; count];
    Cpu.download(&c, 0, bytemuck::cast_slice_mut(&mut found)).unwrap();
    assert!(found.iter().all(|&value| value == 8.0));
}
