//! The CUDA backend of Pellucid.
//!
//! The libraries of CUDA are loaded at run time: the driver (`libcuda`), NVRTC (`libnvrtc`), which compiles kernels,
//! and cuBLASLt (`libcublasLt`), which computes large matrix products. A program that is built with this crate runs on
//! machines without them.
//!
//! Tests run without a GPU on a test device that provides the same libraries; `docs/cuda.md` describes it.

/// Returns true if the driver, NVRTC and cuBLASLt can be loaded.
///
/// The call initialises no device: with the libraries but without a GPU, it is true. `cudarc` panics at the first use
/// of a missing library, so a backend calls this function before all others.
pub fn is_available() -> bool {
    // SAFETY: loading a library runs its initialisation code, which must be sound. NVIDIA's libraries
    // and the test device have these names; as for every shared library, the system's search path selects the files.
    unsafe {
        cudarc::driver::sys::is_culib_present()
            && cudarc::nvrtc::sys::is_culib_present()
            && cudarc::cublaslt::sys::is_culib_present()
    }
}
