//! [`Context`]: a device with its context, its stream and its errors.

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
const MIN_DRIVER: c_int = 12_080;

/// The primary context of a device, and the stream that runs all work of the backend in the order of the calls.
pub(crate) struct Context {
    device: sys::CUdevice,
    context: sys::CUcontext,
    stream: sys::CUstream,
    /// The description of the device.
    pub(crate) adapter: String,
    /// The size of the memory of the device in bytes.
    pub(crate) total_memory: usize,
    /// The compute capability, such as 90 for 9.0.
    pub(crate) architecture: u32,
    pub(crate) failure: DeviceFailure,
    pub(crate) counters: AtomicCounters,
}

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
            return Err(failure.unavailable("the driver is older than CUDA 12.8; update it"));
        }
        let (mut device, mut context, mut stream) = (0, null_mut(), null_mut());
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
        // SAFETY: the pointers to the results are valid for writes. The stream is created in the current context.
        unsafe {
            checked(sys::cuDevicePrimaryCtxRetain(&raw mut context, device))?;
            let created = checked(sys::cuCtxSetCurrent(context))
                .and_then(|()| checked(sys::cuStreamCreate(&raw mut stream, STREAM_FLAGS)));
            if let Err(error) = created {
                let _ = sys::cuDevicePrimaryCtxRelease_v2(device);
                return Err(error);
            }
        }
        // SAFETY: the driver has ended the name with a zero.
        let adapter = unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned();
        let (architecture, counters) = (10 * major + minor, AtomicCounters::default());
        Ok(Context { device, context, stream, adapter, total_memory, architecture, failure, counters })
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

    /// Returns the stream.
    pub(crate) fn stream(&self) -> sys::CUstream {
        self.stream
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
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => Err(Error::out_of_memory(usize::MAX)),
            error if FATAL.contains(&error) => Err(self.failure.fail(error_text(error))),
            error => {
                let reason = format!("the device {} rejected a command: {}", self.failure.device(), error_text(error));
                Err(Error::invalid(op, reason))
            }
        }
    }

    /// Waits until all work of the stream is done, even after a failure of the device. The context must be current.
    ///
    /// # Errors
    /// The errors of [`check`](Context::check).
    pub(crate) fn wait(&self) -> Result<()> {
        // SAFETY: the stream is valid as long as the context.
        self.check("synchronize", unsafe { sys::cuStreamSynchronize(self.stream) })
    }
}

/// The stream does not wait for work of other streams, such as the default stream of other libraries.
const STREAM_FLAGS: u32 = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the stream belongs to the context. Both were created by `open`, and nothing uses them any more:
        // memory, kernels and graphs hold the context.
        unsafe {
            if sys::cuCtxSetCurrent(self.context) == CUresult::CUDA_SUCCESS {
                let _ = sys::cuStreamSynchronize(self.stream);
                let _ = sys::cuStreamDestroy_v2(self.stream);
            }
            let _ = sys::cuDevicePrimaryCtxRelease_v2(self.device);
        }
    }
}
