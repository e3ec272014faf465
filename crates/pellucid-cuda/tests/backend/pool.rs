//! The memory pool of the driver, from which the backend allocates.

use crate::harness::device;
use cudarc::driver::sys::{self, CUmemPool_attribute as Attribute, CUresult};
use pellucid_ir::backend::Backend;
use pellucid_ir::kernel::{Kernel, Sort};
use pellucid_ir::plan::{Launch, Plan, SlotView};
use pellucid_ir::{DType, Layout};

/// Returns an attribute of the pool of the first device.
fn attribute(attribute: Attribute) -> u64 {
    let (mut pool, mut value) = (std::ptr::null_mut(), 0_u64);
    // SAFETY: the pointers to the results are valid for writes, and the attributes of these tests have 64 bits.
    let results = unsafe {
        [sys::cuDeviceGetMemPool(&mut pool, 0), sys::cuMemPoolGetAttribute(pool, attribute, (&raw mut value).cast())]
    };
    assert_eq!(results, [CUresult::CUDA_SUCCESS; 2]);
    value
}

#[test]
fn a_synchronisation_keeps_freed_memory() {
    let Some(device) = device() else { return };
    let reserved = || attribute(Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
    // More than the backend itself keeps.
    let bytes = 300 << 20;
    let storage = device.gpu().storage(bytes).unwrap();
    device.gpu().upload(&[1; 4], &storage).unwrap();
    device.gpu().synchronize().unwrap();
    let before = reserved();
    assert!(before >= bytes as u64);
    drop(storage);
    device.gpu().synchronize().unwrap();
    assert_eq!(reserved(), before, "a synchronisation must not return freed memory to the system");
    device.gpu().trim();
    assert!(reserved() <= before - bytes as u64, "unused memory must be returned to the system");
}

#[test]
fn reused_memory_has_no_old_values() {
    let Some(device) = device() else { return };
    let old = device.storage(&[7; 250]);
    let copied = device.storage(&[0; 250]);
    // The kernel is recorded when the storage is dropped.
    device.copy(250, &old, &copied).unwrap();
    drop(old);
    let new = device.gpu().storage(1000).unwrap();
    device.gpu().upload(&[1, 0, 0, 0], &new).unwrap();
    assert_eq!(device.values(&copied), [7; 250]);
    let values = device.values(&new);
    assert_eq!(values[0], 1);
    if device.symbols().is_some() {
        // The test device fills memory that is handed out with NaNs, which shows that it knows of the reuse.
        assert!(values[1..].iter().all(|&word| f32::from_bits(word).is_nan()), "{values:?}");
    }
}

#[test]
fn the_scratch_memory_of_a_plan_stays_in_use() {
    let Some(device) = device() else { return };
    let view = |slot, dtype| SlotView { slot, layout: Layout::contiguous([64].into()), dtype };
    let sort = Kernel::Sort(Sort { axis: 0, k: 64, descending: false });
    let outputs = vec![view(1, DType::I32), view(2, DType::I64)];
    let launches = vec![Launch::new(sort, vec![view(0, DType::I32)], outputs)];
    let plan = Plan { slots: vec![256, 256, 512], launches, ..Plan::default() };
    let values: Vec<u32> = (0..64).rev().collect();
    let slots = [device.storage(&values), device.storage(&[0; 64]), device.storage(&[0; 128])];
    let compiled = device.gpu().prepare(&plan).unwrap().expect("the plan must be compiled");
    for sizes in [6..6, 6..12, 6..12] {
        // Storages of several sizes, which would receive the memory if it were free. Without them, the test device
        // reports the use of a free block.
        let others: Vec<_> = sizes.map(|bits| (bits, device.storage(&vec![bits; 1 << bits]))).collect();
        compiled.run(&slots).unwrap();
        assert_eq!(device.values(&slots[1]), (0..64).collect::<Vec<u32>>());
        for (bits, other) in others {
            assert_eq!(device.values(&other), vec![bits; 1 << bits]);
        }
    }
}
