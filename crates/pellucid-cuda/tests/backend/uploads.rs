//! Uploads: the host does not wait for launches, and large transfers overlap with them.

use crate::harness::{TestedDevice, bytes_of, device};
use pellucid_ir::backend::{Backend, Storage};
use std::sync::Arc;

/// The words of an upload that runs beside the launches.
const LARGE: usize = 100_000;

/// The words of the largest part of an upload, and the number of parts that the device keeps.
const PART: usize = 1 << 20;
const PARTS: usize = 16;

fn numbered(first: u32, length: usize) -> Vec<u32> {
    (first..).take(length).collect()
}

/// Submits a chain of `count` kernels, each of which needs the result of the previous one, and returns its storages.
fn submit_chain(device: &TestedDevice, count: usize) -> [Arc<Storage>; 2] {
    let ends = [numbered(7, 64), vec![0; 64]].map(|values| device.storage(&values));
    for k in 0..count {
        device.copy(64, &ends[k % 2], &ends[(k + 1) % 2]).unwrap();
    }
    ends
}

fn kernel_runs(device: &TestedDevice) -> Option<u64> {
    device.symbols().map(|symbols| symbols.counter("kernel runs"))
}

#[test]
fn an_upload_does_not_wait_for_launches() {
    for length in [4, LARGE, 2 * PART + 3] {
        let Some(device) = device() else { return };
        let target = device.storage(&vec![0; length]);
        device.gpu().synchronize().unwrap();
        let chain = submit_chain(&device, 64);
        let before = kernel_runs(&device);
        let values = numbered(3, length);
        device.upload(&values, &target);
        if let (Some(before), Some(after)) = (before, kernel_runs(&device)) {
            // A question about an event runs at most one kernel.
            assert!(after < before + 32, "{} of 64 kernels have run after an upload of {length} words", after - before);
        }
        assert_eq!(device.values(&target), values);
        assert_eq!(device.values(&chain[0]), numbered(7, 64));
    }
}

#[test]
fn a_transfer_runs_before_earlier_launches() {
    let Some(device) = device() else { return };
    let target = device.gpu().storage(4 * PART * (PARTS + 8)).unwrap();
    let chain = submit_chain(&device, 64);
    let before = kernel_runs(&device);
    let values = numbered(9, PART * (PARTS + 8));
    // Parts beyond the number of blocks wait until the first transfers are done.
    device.upload(&values, &target);
    if let (Some(before), Some(after)) = (before, kernel_runs(&device)) {
        assert!(after < before + 32, "{} of 64 kernels have run before the transfer", after - before);
    }
    assert!(device.values(&target) == values);
    assert_eq!(device.values(&chain[0]), numbered(7, 64));
}

#[test]
fn the_caller_may_change_the_bytes_after_the_call() {
    for length in [1, 100, LARGE, PART + 1] {
        let Some(device) = device() else { return };
        let target = device.gpu().storage(4 * length).unwrap();
        let values = numbered(1, length);
        let mut bytes = bytes_of(&values);
        device.gpu().upload(&bytes, &target).unwrap();
        bytes.fill(0xff);
        assert_eq!(device.values(&target), values);
    }
}

#[test]
fn uploads_and_launches_run_in_the_order_of_the_calls() {
    let Some(device) = device() else { return };
    // 400 uploads of 16 KiB exceed the pinned memory of small uploads.
    for (length, steps) in [(64, 40), (4096, 400), (LARGE, 40), (PART + 5, 40)] {
        let [input, output] = [1, 2].map(|_| device.gpu().storage(4 * length).unwrap());
        let mut results = Vec::new();
        for step in 0..steps {
            // The memory is in use by the kernel of the previous step.
            device.upload(&numbered(step, length), &input);
            device.copy(length, &input, &output).unwrap();
            if step % 8 == 3 || length == 4096 {
                let result = device.gpu().storage(4 * length).unwrap();
                device.copy(length, &output, &result).unwrap();
                results.push((step, result));
            }
        }
        for (step, result) in results {
            assert!(device.values(&result) == numbered(step, length), "step {step} of {length} words");
        }
    }
}

#[test]
fn pinned_memory_is_bounded() {
    let Some(device) = device() else { return };
    let Some(symbols) = device.symbols() else { return };
    let small = device.gpu().storage(4096).unwrap();
    let copied = device.storage(&[0; 1024]);
    // 20 MiB of small uploads, and 100 MiB of large ones.
    for step in 0..5000 {
        device.upload(&numbered(step, 1024), &small);
        if step % 100 == 0 {
            device.copy(1024, &small, &copied).unwrap();
        }
    }
    let after_small = symbols.counter("live pinned bytes");
    assert!(after_small <= 3 << 20, "{after_small} bytes of pinned memory after small uploads");
    let large = device.gpu().storage(20 << 20).unwrap();
    for step in 0..5 {
        device.upload(&numbered(step, 5 << 20), &large);
        device.copy(1024, &small, &copied).unwrap();
    }
    let after_large = symbols.counter("live pinned bytes");
    assert!(after_large <= 67 << 20, "{after_large} bytes of pinned memory after large uploads");
    assert!(device.values(&large) == numbered(4, 5 << 20));
    assert_eq!(device.values(&copied), numbered(4999, 1024));
}

#[test]
fn threads_upload_at_the_same_time() {
    let Some(device) = device() else { return };
    let storages: Vec<Arc<Storage>> = (0..4).map(|_| device.gpu().storage(4 * LARGE).unwrap()).collect();
    std::thread::scope(|scope| {
        for (thread, storage) in storages.iter().enumerate() {
            let device = &device;
            scope.spawn(move || {
                (0..10).for_each(|step| device.upload(&numbered(1000 * thread as u32 + step, LARGE), storage));
            });
        }
    });
    for (thread, storage) in storages.iter().enumerate() {
        assert!(device.values(storage) == numbered(1000 * thread as u32 + 9, LARGE), "thread {thread}");
    }
}
