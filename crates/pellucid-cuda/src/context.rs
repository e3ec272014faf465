//! [`Context`]: a device with its context, its streams and its errors.

use cudarc::driver::sys::{self, CUdevice_attribute, CUresult};
use pellucid_gpu::{AtomicCounters, DeviceFailure};
use pellucid_ir::{Error, Result};
use std::ffi::{CStr, c_char, c_int};
use std::num::NonZeroUsize;
use std::ptr::{null, null_mut};

/// The errors after which a context cannot be used.
const FATAL: [CUresult; 18] = [
    CUresult::CUDA_ERROR_DEINITIALIZED,
    CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED,
    CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
    CUresult::CUDA_ERROR_LAUNCH_TIMEOUT,
    CUresult::CUDA_ERROR_LAUNCH_FAILED,
    CUresult::CUDA_ERROR_ASSERT,
    CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR,
    CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION,
    CUresult::CUDA_ERROR_MISALIGNED_ADDRESS,
    CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE,
    CUresult::CUDA_ERROR_INVALID_PC,
    CUresult::CUDA_ERROR_ECC_UNCORRECTABLE,
    CUresult::CUDA_ERROR_NVLINK_UNCORRECTABLE,
    CUresult::CUDA_ERROR_CONTAINED,
    CUresult::CUDA_ERROR_TENSOR_MEMORY_LEAK,
    CUresult::CUDA_ERROR_EXTERNAL_DEVICE,
    CUresult::CUDA_ERROR_MPS_CLIENT_TERMINATED,
    CUresult::CUDA_ERROR_UNKNOWN,
];

/// The oldest version of the driver's interface with all calls of the backend, as `cuDriverGetVersion` returns it.
const MIN_DRIVER: c_int = 12_030;

/// The primary context of a device, the stream that runs all work of the backend in the order of the calls, and a
/// stream for copies from the host.
pub(crate) struct Context {
    device: sys::CUdevice,
    context: sys::CUcontext,
    stream: sys::CUstream,
    copy_stream: sys::CUstream,
    /// The description of the device.
    pub(crate) adapter: String,
    /// The size of the memory of the device in bytes.
    pub(crate) total_memory: usize,
    /// The compute capability, such as 90 for 9.0.
    pub(crate) architecture: u32,
    pub(crate) failure: DeviceFailure,
    pub(crate) counters: AtomicCounters,
    /// The function that tells the test device which bytes of an allocation are in use. NVIDIA's driver does not have
    /// it.
    pub(crate) mark: Option<MarkFunction>,
}

/// Tells the test device how many bytes of an allocation later work of a stream may use.
type MarkFunction = unsafe extern "C" fn(sys::CUdeviceptr, usize, sys::CUstream) -> CUresult;

// SAFETY: the driver's calls are thread-safe, and the handles stay valid until the context is dropped.
unsafe impl Send for Context {}
// SAFETY: the calls of the driver are thread-safe, so several threads may share a reference.
unsafe impl Sync for Context {}

/// Returns the driver's text of an error.
pub(crate) fn error_text(error: CUresult) -> String {
    let mut text: *const c_char = null();
    // SAFETY: the pointer to the result is valid for a write. On success, the text is a constant C string.
    match unsafe { sys::cuGetErrorString(error, &raw mut text) } {
        // SAFETY: the driver has returned a C string.
        CUresult::CUDA_SUCCESS => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
        _ => format!("{error:?}"),
    }
}

/// Returns the number of devices, or the reason why there is none.
pub(crate) fn device_count() -> Result<NonZeroUsize, String> {
    if !crate::is_available() {
        return Err("the libraries of CUDA (libcuda and libnvrtc) cannot be loaded; install NVIDIA's driver and the \
                    CUDA Toolkit, or add their directories to the library search path"
            .into());
    }
    let mut count: c_int = 0;
    // SAFETY: the library is loaded, and the pointer to the result is valid for a write.
    let results = unsafe { [sys::cuInit(0), sys::cuDeviceGetCount(&raw mut count)] };
    match results.into_iter().find(|&result| result != CUresult::CUDA_SUCCESS) {
        Some(error) => Err(format!("the CUDA driver cannot be initialized: {}", error_text(error))),
        None => NonZeroUsize::new(count as usize).ok_or_else(|| "this machine has no GPU of NVIDIA".into()),
    }
}

impl Context {
    /// Opens device `index`, which must be below [`device_count`].
    ///
    /// # Errors
    /// [`Error::DeviceUnavailable`] if the driver cannot create a context or a stream.
    pub(crate) fn open(index: usize, name: String) -> Result<Context> {
        let failure = DeviceFailure::new(name);
        let checked = |result: CUresult| match result {
            CUresult::CUDA_SUCCESS => Ok(()),
            error => Err(failure.unavailable(error_text(error))),
        };
        let mut version = 0;
        // SAFETY: the pointer to the result is valid for a write.
        checked(unsafe { sys::cuDriverGetVersion(&raw mut version) })?;
        if version < MIN_DRIVER {
            return Err(failure.unavailable("the driver is older than CUDA 12.3; update it"));
        }
        let (mut device, mut context, mut streams) = (0, null_mut(), [null_mut(); 2]);
        let (mut total_memory, mut text) = (0, [0 as c_char; 128]);
        // SAFETY: the pointers to the results are valid for writes, the text of the name for 127 characters and a zero.
        unsafe {
            checked(sys::cuDeviceGet(&raw mut device, index as c_int))?;
            checked(sys::cuDeviceGetName(text.as_mut_ptr(), 127, device))?;
            checked(sys::cuDeviceTotalMem_v2(&raw mut total_memory, device))?;
        }
        let attribute = |attribute: CUdevice_attribute| {
            let mut value: c_int = 0;
            // SAFETY: the pointer to the result is valid for a write.
            checked(unsafe { sys::cuDeviceGetAttribute(&raw mut value, attribute, device) }).map(|()| value as u32)
        };
        let major = attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        if attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)? == 0 {
            return Err(failure.unavailable("the device has no memory pools"));
        }
        // SAFETY: the pointers to the results are valid for writes. The streams are created in the current context, and
        // destroyed once if a call fails.
        unsafe {
            checked(sys::cuDevicePrimaryCtxRetain(&raw mut context, device))?;
            let mut created = checked(sys::cuCtxSetCurrent(context));
            for stream in &mut streams {
                created = created.and_then(|()| checked(sys::cuStreamCreate(stream, STREAM_FLAGS)));
            }
            if let Err(error) = created {
                streams.iter().filter(|stream| !stream.is_null()).for_each(|&stream| {
                    let _ = sys::cuStreamDestroy_v2(stream);
                });
                let _ = sys::cuDevicePrimaryCtxRelease_v2(device);
                return Err(error);
            }
        }
        let [stream, copy_stream] = streams;
        keep_freed_memory(device);
        // SAFETY: the driver has ended the name with a zero.
        let adapter = unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned();
        let (architecture, counters) = (10 * major + minor, AtomicCounters::default());
        // SAFETY: the driver is loaded, and only the test device has the symbol, with this type.
        let mark = unsafe { sys::culib().get::<MarkFunction>(b"pellucid_test_device_mark") }.ok().map(|mark| *mark);
        Ok(Context {
            device,
            context,
            stream,
            copy_stream,
            adapter,
            total_memory,
            architecture,
            failure,
            counters,
            mark,
        })
    }

    /// Makes this the current context of the thread.
    ///
    /// # Errors
    /// [`Error::DeviceUnavailable`] if the device has failed.
    pub(crate) fn enter(&self) -> Result<()> {
        self.failure.check()?;
        // SAFETY: the context is retained until `self` is dropped.
        self.check("enter", unsafe { sys::cuCtxSetCurrent(self.context) })
    }

    /// Returns the stream of all launches.
    pub(crate) fn stream(&self) -> sys::CUstream {
        self.stream
    }

    /// Returns the stream of copies that overlap with launches.
    pub(crate) fn copy_stream(&self) -> sys::CUstream {
        self.copy_stream
    }

    /// Returns the context.
    pub(crate) fn raw(&self) -> sys::CUcontext {
        self.context
    }

    /// Returns the error of a call of the driver.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`]; [`Error::DeviceUnavailable`], now and in later calls, if the context cannot be used any
    /// more; [`Error::InvalidArgument`] otherwise.
    pub(crate) fn check(&self, op: &'static str, result: CUresult) -> Result<()> {
        match result {
            CUresult::CUDA_SUCCESS => Ok(()),
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => Err(Error::out_of_memory(0)),
            error if FATAL.contains(&error) => Err(self.failure.fail(error_text(error))),
            error => {
                let reason = format!("the device {} rejected a command: {}", self.failure.device(), error_text(error));
                Err(Error::invalid(op, reason))
            }
        }
    }

    /// Submits work by a call of the driver. If there is no memory for it, waits for earlier work, returns unused
    /// memory to the system, and calls once more. A call that finds no memory must submit nothing.
    ///
    /// # Errors
    /// The errors of [`check`](Context::check).
    pub(crate) fn submit(&self, op: &'static str, call: impl Fn() -> CUresult) -> Result<()> {
        let mut result = call();
        if result == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            self.release_unused_memory()?;
            result = call();
        }
        self.check(op, result)
    }

    /// Waits until all work of the stream of launches is done, even after a failure of the device. The context must be
    /// current.
    ///
    /// # Errors
    /// The errors of [`check`](Context::check).
    pub(crate) fn wait(&self) -> Result<()> {
        // SAFETY: the stream is valid as long as the context.
        self.check("synchronize", unsafe { sys::cuStreamSynchronize(self.stream) })
    }

    /// Tells the test device that later work of the stream of launches may use the first `bytes` bytes of an
    /// allocation.
    pub(crate) fn mark_memory(&self, address: sys::CUdeviceptr, bytes: usize) -> Result<()> {
        let Some(mark) = self.mark else { return Ok(()) };
        self.enter()?;
        // SAFETY: the test device checks the arguments.
        self.check("mark", unsafe { mark(address, bytes, self.stream) })
    }

    /// Returns the unused memory of the pool to the system, after all work of the streams.
    ///
    /// # Errors
    /// The errors of [`check`](Context::check).
    pub(crate) fn release_unused_memory(&self) -> Result<()> {
        self.enter()?;
        self.wait_for_all_streams()?;
        // SAFETY: the pool belongs to the device. Memory that is allocated stays allocated.
        let trim = |pool| self.check("trim", unsafe { sys::cuMemPoolTrimTo(pool, 0) });
        memory_pool(self.device).map_or(Ok(()), trim)
    }

    /// Waits until all work of both streams is done, even after a failure of the device. The context must be current.
    ///
    /// # Errors
    /// The errors of [`check`](Context::check).
    pub(crate) fn wait_for_all_streams(&self) -> Result<()> {
        // SAFETY: the stream is valid as long as the context.
        let copies = self.check("synchronize", unsafe { sys::cuStreamSynchronize(self.copy_stream) });
        self.wait().and(copies)
    }
}

/// Returns the memory pool of a device, from which streams allocate.
fn memory_pool(device: sys::CUdevice) -> Option<sys::CUmemoryPool> {
    let mut pool = null_mut();
    // SAFETY: the pointer to the result is valid for a write.
    (unsafe { sys::cuDeviceGetMemPool(&raw mut pool, device) } == CUresult::CUDA_SUCCESS).then_some(pool)
}

/// Lets the memory pool of a device keep all freed memory. Otherwise, it returns the memory to the system at every
/// synchronisation, and later allocations are slow. An error changes only the times.
fn keep_freed_memory(device: sys::CUdevice) {
    if let Some(pool) = memory_pool(device) {
        let (attribute, threshold) = (sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, u64::MAX);
        // SAFETY: the value of this attribute has 64 bits, and the driver only reads it.
        let _ = unsafe { sys::cuMemPoolSetAttribute(pool, attribute, (&raw const threshold).cast_mut().cast()) };
    }
}

/// The streams do not wait for work of other streams, such as the default stream of other libraries.
const STREAM_FLAGS: u32 = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the streams belong to the context. All were created by `open`, and nothing uses them any more:
        // memory, kernels and graphs hold the context.
        unsafe {
            if sys::cuCtxSetCurrent(self.context) == CUresult::CUDA_SUCCESS {
                for stream in [self.copy_stream, self.stream] {
                    let _ = sys::cuStreamSynchronize(stream);
                    let _ = sys::cuStreamDestroy_v2(stream);
                }
            }
            let _ = sys::cuDevicePrimaryCtxRelease_v2(self.device);
        }
    }
}
