//! The symbols by which tests read reports and counters and change settings. No library of CUDA has them.

use std::ffi::{CStr, c_char, c_int};

use cudarc::driver::sys::CUresult;

use crate::memory::Lifetime;
use crate::work::Work;
use crate::{context_call, lock_device};

/// Returns the text of a C string, empty for a null pointer.
///
/// # Safety
/// *C string:* `text` is null or points to a string that ends with a zero byte and is not changed during `'a`.
pub(crate) unsafe fn text_of<'a>(text: *const c_char) -> &'a str {
    if text.is_null() {
        return "";
    }
    // SAFETY: the pointer is not null; the rest is the clause *C string*.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap_or("")
}

/// Copies the reports, one a line, to `buffer` and returns their length. At most `capacity` bytes are written.
///
/// # Safety
/// *Buffer:* `buffer` is valid for writes of `capacity` bytes, or `capacity` is 0.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pellucid_test_device_reports(buffer: *mut c_char, capacity: usize) -> usize {
    let text = lock_device().reports.text();
    let bytes = text.len().min(capacity);
    if bytes > 0 {
        // SAFETY: `bytes` is at most the length of `text` and, by the clause *Buffer*, of `buffer`.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr().cast(), buffer, bytes) };
    }
    text.len()
}

/// Removes all reports and the sticky error. After a sticky error, work that has not run is dropped.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pellucid_test_device_clear() {
    let mut device = lock_device();
    if device.reports.check().is_err() {
        device.abandon_work();
    }
    device.reports.clear();
}

/// Returns the value of a counter: `launches` that were enqueued, `kernel runs` of them and of nodes of graphs, `graph
/// launches`, `allocations`, `frees`, `copies`, `driver calls`, `compilations`, `products`, or the count of live
/// objects: `live allocations`, `live streams`, `live events`, `live modules`, `live graphs`, `live executable graphs`,
/// `live bytes`, `live pinned bytes`.
///
/// # Safety
/// `name` satisfies *C string* of [`text_of`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pellucid_test_device_counter(name: *const c_char) -> u64 {
    // SAFETY: the clause *C string* is the caller's for `name`.
    let name = unsafe { text_of(name) };
    let device = lock_device();
    match name {
        "live allocations" => device.memory.live_count() as u64,
        "live pinned bytes" => device.memory.live_pinned_bytes() as u64,
        "live bytes" => device.memory.live_bytes() as u64,
        "live streams" => device.streams.len() as u64 - 1,
        "live events" => device.events.len() as u64,
        "live modules" => device.modules.len() as u64,
        "live graphs" => device.graphs.len() as u64,
        "live executable graphs" => device.execs.len() as u64,
        _ => device.reports.counter(name),
    }
}

/// Changes a setting: `schedule` to `ascending`, `descending` or `both`; `streams` to `lazy` or `eager`; `memory` to
/// `margins` or `guards`; `arguments` to `counted` or `terminated`; `architecture` to a compute capability such as 90;
/// `graphs` to `available` or `missing`; `exhausted` to the count of launches that fail because memory is exhausted.
/// The value `default` is the environment's. Returns 1, or 0 for other names or values.
///
/// # Safety
/// `name` and `value` satisfy *C string* of [`text_of`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pellucid_test_device_set(name: *const c_char, value: *const c_char) -> c_int {
    // SAFETY: the clause *C string* is the caller's for both pointers.
    let (name, value) = unsafe { (text_of(name), text_of(value)) };
    c_int::from(lock_device().settings.set(name, value))
}

/// Tells that a pool of the program hands out `bytes` bytes of an allocation on a stream, or takes it back (0 bytes).
/// Its bytes become poison in the order of the stream, bytes beyond `bytes` are a margin, and uses while it is in the
/// pool are reported. The allocation is not changed while the stream captures. Returns an error of the driver.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pellucid_test_device_mark(pointer: usize, bytes: usize, stream: usize) -> CUresult {
    context_call(|device| {
        let record = device.memory.find_base(pointer).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        if bytes > record.capacity {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        if device.stream(stream)?.capture.is_some() {
            return Ok(());
        }
        device.enqueue(stream, Work::Resize { base: pointer, bytes })?;
        let record = device.memory.find_base(pointer).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        (record.lifetime, record.size) = match bytes {
            0 => (Lifetime::Pooled, record.capacity),
            _ => (Lifetime::Live, bytes),
        };
        Ok(())
    })
}
