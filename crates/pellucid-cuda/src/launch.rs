//! [`CudaWork`]: a kernel or a product of the library, and the arguments of kernels.

use crate::compiler::CudaKernel;
use crate::product::LtProduct;
use cudarc::driver::sys::{self, CUdeviceptr};
use pellucid_gpu::WORKGROUP;
use std::ffi::c_void;
use std::ptr::{from_ref, null_mut};

/// The work of a dispatch.
pub enum CudaWork {
    /// A compiled kernel.
    Kernel(CudaKernel),
    /// A matrix product of cuBLASLt.
    Product(LtProduct),
}

impl CudaWork {
    /// Returns true if the work reads no parameters on the device.
    pub(crate) fn passes_values(&self) -> bool {
        match self {
            CudaWork::Kernel(kernel) => kernel.passes_values,
            CudaWork::Product(_) => true,
        }
    }
}

/// The parameters of dispatches: the words on the host, and for kernels that do not receive them by value also on the
/// device.
#[derive(Clone, Copy)]
pub(crate) struct ParameterMemory<'a> {
    pub(crate) bytes: &'a [u8],
    /// The address of the same bytes on the device.
    pub(crate) address: CUdeviceptr,
}

/// The arguments of a kernel. The pointers refer to `values` and to the bytes of the parameters.
pub(crate) struct KernelArguments<'a> {
    /// The address of the parameters, of the status and of the buffers.
    values: Vec<CUdeviceptr>,
    parameters: Option<&'a [u8]>,
}

impl<'a> KernelArguments<'a> {
    /// Collects the arguments of a kernel whose parameters start at byte `offset`.
    ///
    /// # Panics
    /// If the parameters end beyond the bytes, or the number of buffers differs from the number of bindings.
    pub(crate) fn new(
        kernel: &CudaKernel,
        parameters: ParameterMemory<'a>,
        offset: u32,
        status: CUdeviceptr,
        buffers: impl Iterator<Item = CUdeviceptr>,
    ) -> KernelArguments<'a> {
        let words = |bytes: &'a [u8]| &bytes[offset as usize..][..4 * kernel.parameter_words];
        let address = parameters.address + CUdeviceptr::from(offset);
        let values: Vec<CUdeviceptr> = [address, status].into_iter().chain(buffers).collect();
        assert_eq!(values.len(), 2 + kernel.bindings, "a kernel must have one buffer for each binding");
        KernelArguments { values, parameters: kernel.passes_values.then(|| words(parameters.bytes)) }
    }

    /// Calls `launch` with the pointers to the arguments, which are valid during the call.
    pub(crate) fn with_pointers<R>(&self, launch: impl FnOnce(*mut *mut c_void) -> R) -> R {
        let pointer = |value: &CUdeviceptr| from_ref(value).cast_mut().cast::<c_void>();
        let mut pointers: Vec<*mut c_void> = self.values.iter().map(pointer).collect();
        if let Some(bytes) = self.parameters {
            pointers[0] = bytes.as_ptr().cast_mut().cast();
        }
        launch(pointers.as_mut_ptr())
    }
}

/// Launches a kernel on a stream with these numbers of workgroups.
///
/// # Safety
/// * Context: the context of the kernel and of the stream is current.
/// * Arguments: `arguments` was created for `kernel`, and the memory of the buffers stays allocated until the work of
///   the stream is done.
pub(crate) unsafe fn launch(
    kernel: &CudaKernel,
    arguments: &KernelArguments<'_>,
    [x, y]: [u32; 2],
    stream: sys::CUstream,
) -> sys::CUresult {
    arguments.with_pointers(|pointers| {
        // SAFETY: *Context* and *Arguments* of this function; the driver copies the arguments before it returns.
        unsafe { sys::cuLaunchKernel(kernel.function(), x, y, 1, WORKGROUP, 1, 1, 0, stream, pointers, null_mut()) }
    })
}

/// Returns the description of a kernel node with these numbers of workgroups. `pointers` are the pointers to the
/// arguments.
pub(crate) fn node_parameters(
    kernel: &CudaKernel,
    [x, y]: [u32; 2],
    pointers: *mut *mut c_void,
) -> sys::CUDA_KERNEL_NODE_PARAMS {
    sys::CUDA_KERNEL_NODE_PARAMS {
        func: kernel.function(),
        gridDimX: x,
        gridDimY: y,
        gridDimZ: 1,
        blockDimX: WORKGROUP,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: 0,
        kernelParams: pointers,
        extra: null_mut(),
        kern: null_mut(),
        ctx: null_mut(),
    }
}
