//! Plans are CUDA graphs: the calls of a launch, and the objects of a plan. The test device counts both; on a GPU, only
//! the results are compared. The counts concern the process, so this program has one test.

use cudarc::driver::sys;
use pellucid_cuda::{Cuda, CudaDriver};
use pellucid_ir::backend::{Backend, Storage};
use pellucid_ir::kernel::Kernel;
use pellucid_ir::plan::{Launch, Plan, SlotView};
use pellucid_ir::{DType, Layout};
use std::ffi::{CString, c_char};
use std::sync::Arc;

/// Returns counters of the test device, or zeros on a GPU.
fn counters<const N: usize>(names: [&str; N]) -> [u64; N] {
    type Counter = unsafe extern "C" fn(*const c_char) -> u64;
    // SAFETY: the library is loaded, and the symbol has this type (`tests/device/src/report_calls.rs`).
    let counter = unsafe { sys::culib().get::<Counter>(b"pellucid_test_device_counter") };
    names.map(|name| {
        let name = CString::new(name).unwrap();
        // SAFETY: the name is a C string.
        counter.as_ref().map_or(0, |counter| unsafe { counter(name.as_ptr()) })
    })
}

/// Returns true on the test device.
fn counts() -> bool {
    counters(["driver calls"]) != [0]
}

/// Returns a plan that transposes the matrix of slot 0 to slot 1, and copies slot 1 to slot 2.
fn plan() -> Plan {
    let matrix = Layout::contiguous([3, 4].into());
    let view = |slot, layout: &Layout| SlotView { slot, layout: layout.clone(), dtype: DType::F32 };
    let transposed = matrix.permute(&[1, 0]);
    let launches = vec![
        Launch::new(Kernel::Copy, vec![view(0, &transposed)], vec![view(1, &Layout::contiguous([4, 3].into()))]),
        Launch::new(Kernel::Copy, vec![view(1, &matrix)], vec![view(2, &matrix)]),
    ];
    Plan { slots: vec![48; 3], launches, ..Plan::default() }
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|&value| f32::from_ne_bytes(value)).collect()
}

fn storage(gpu: &Cuda, first: f32) -> Arc<Storage> {
    let storage = gpu.storage(48).unwrap();
    let values: Vec<u8> = (0..12).flat_map(|k| (first + k as f32).to_ne_bytes()).collect();
    gpu.upload(&values, &storage).unwrap();
    storage
}

/// Asserts that `y` is the transpose of the matrix of [`storage`] with this first element.
fn assert_transposed(gpu: &Cuda, y: &Storage, first: f32) {
    let mut bytes = [0; 48];
    gpu.download(y, 0, &mut bytes).unwrap();
    let expected: Vec<f32> = (0..12).map(|k| first + (k % 3 * 4 + k / 3) as f32).collect();
    assert_eq!(floats(&bytes), expected);
}

#[test]
fn a_launch_is_one_call_and_a_plan_frees_its_graph() {
    let gpu = match CudaDriver.open_device(0) {
        Ok(gpu) => gpu,
        Err(error) => {
            let is_required = std::env::var("PELLUCID_REQUIRE_CUDA").is_ok_and(|value| value == "1");
            assert!(!is_required, "PELLUCID_REQUIRE_CUDA is 1, but {error}");
            eprintln!("skipped: {error}");
            return;
        }
    };
    let compiled = gpu.prepare(&plan()).unwrap().expect("the plan must be compiled");
    let mut slots = [storage(&gpu, 1.0), gpu.storage(48).unwrap(), gpu.storage(48).unwrap()];
    compiled.run(&slots).unwrap();
    assert_transposed(&gpu, &slots[2], 1.0);

    let names = ["driver calls", "graph launches", "allocations"];
    let before = counters(names);
    for _ in 0..3 {
        compiled.run(&slots).unwrap();
    }
    let after = counters(names);
    if counts() {
        let added: [u64; 3] = std::array::from_fn(|k| after[k] - before[k]);
        assert_eq!(added, [3, 3, 0], "a launch must be one call and allocate nothing");
        assert_eq!(counters(["live executable graphs", "live graphs"]), [1, 1]);
    }
    assert_transposed(&gpu, &slots[2], 1.0);

    // Other memory of a slot changes the arguments of the graph, while an earlier launch may still be running.
    for first in [20.0, 40.0] {
        let previous = std::mem::replace(&mut slots[0], storage(&gpu, first));
        compiled.run(&slots).unwrap();
        assert_transposed(&gpu, &slots[2], first);
        drop(previous);
    }
    slots[2] = gpu.storage(48).unwrap();
    compiled.run(&slots).unwrap();
    assert_transposed(&gpu, &slots[2], 40.0);
    if counts() {
        assert_eq!(counters(["live executable graphs", "live graphs"]), [1, 1], "a graph must be used again");
    }

    // A plan is launched on any thread. No context is current on a new one.
    std::thread::scope(|scope| scope.spawn(|| compiled.run(&slots).unwrap()).join().unwrap());
    assert_transposed(&gpu, &slots[2], 40.0);

    drop(compiled);
    drop(slots);
    drop(gpu);
    if counts() {
        let live = ["live executable graphs", "live graphs", "live allocations", "live modules", "live streams"];
        assert_eq!(counters(live), [0; 5], "a closed device must own nothing");
    }
}
