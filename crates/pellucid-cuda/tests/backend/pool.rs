//! The memory pool of the driver, from which the backend allocates.

use crate::harness::device;
use cudarc::driver::sys::{self, CUmemPool_attribute as Attribute, CUresult};
use pellucid_ir::backend::Backend;

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
