//! [`LtProduct`]: matrix products of cuBLASLt.
//!
//! cuBLASLt has matrices in the order of columns, in which a matrix of ours is its transpose. So C = A·B is computed as
//! Cᵀ = Bᵀ·Aᵀ, without any transposition.

use crate::context::Context;
use cudarc::cublaslt::sys::{self as lt, cublasComputeType_t as Compute, cublasStatus_t as Status, cudaDataType_t};
use cudarc::driver::sys::{CUdeviceptr, CUstream};
use pellucid_gpu::LibraryProduct;
use pellucid_ir::{DType, Error, Result};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Arc;

/// The environment variable that allows TF32 for factors of `f32` if it is 1.
const TF32_VARIABLE: &str = "PELLUCID_CUDA_TF32";

/// The largest workspace that an algorithm may need, in bytes.
const MAX_WORKSPACE: usize = 32 << 20;

/// A handle of cuBLASLt for one context.
pub(crate) struct LtLibrary {
    context: Arc<Context>,
    handle: lt::cublasLtHandle_t,
    /// Whether factors of `f32` may be rounded to TF32.
    allows_tf32: bool,
}

// SAFETY: the calls of cuBLASLt that use a handle are thread-safe.
unsafe impl Send for LtLibrary {}
// SAFETY: the calls of cuBLASLt that use a handle are thread-safe.
unsafe impl Sync for LtLibrary {}

/// Returns the error of a call of cuBLASLt.
fn check_status(context: &Context, op: &'static str, status: Status) -> Result<()> {
    match status {
        Status::CUBLAS_STATUS_SUCCESS => Ok(()),
        Status::CUBLAS_STATUS_ALLOC_FAILED => Err(Error::out_of_memory(MAX_WORKSPACE)),
        other => {
            let device = context.failure.device();
            Err(Error::invalid(op, format!("cuBLASLt rejected a product of the device {device}: {other:?}")))
        }
    }
}

impl LtLibrary {
    /// Returns true if cuBLASLt can be loaded.
    pub(crate) fn is_present() -> bool {
        // SAFETY: loading a library runs its initialisation code, which must be sound, as for the other libraries.
        unsafe { lt::is_culib_present() }
    }

    /// Creates a handle. The library must be present.
    ///
    /// # Errors
    /// The errors of the device and of the library.
    pub(crate) fn new(context: &Arc<Context>) -> Result<LtLibrary> {
        context.enter()?;
        let mut handle = null_mut();
        // SAFETY: the pointer to the result is valid for a write.
        check_status(context, "matmul", unsafe { lt::cublasLtCreate(&raw mut handle) })?;
        let allows_tf32 = std::env::var_os(TF32_VARIABLE).is_some_and(|value| value == "1");
        Ok(LtLibrary { context: context.clone(), handle, allows_tf32 })
    }
}

impl Drop for LtLibrary {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: the handle was created in this context and is destroyed once. Products hold the library.
            let _ = unsafe { lt::cublasLtDestroy(self.handle) };
        }
    }
}

/// A product with its algorithm, which is chosen once.
pub struct LtProduct {
    library: Arc<LtLibrary>,
    op: &'static str,
    description: lt::cublasLtMatmulDesc_t,
    /// The layouts of Bᵀ, Aᵀ and Cᵀ.
    layouts: [lt::cublasLtMatrixLayout_t; 3],
    algorithm: lt::cublasLtMatmulAlgo_t,
    /// The size of the workspace in bytes.
    workspace: usize,
    /// The offsets of A and B in bytes.
    offsets: [usize; 2],
    /// Whether the scale factors are `f64`.
    is_double: bool,
}

// SAFETY: a product is not changed after its creation, and the calls of cuBLASLt that read it are thread-safe.
unsafe impl Send for LtProduct {}
// SAFETY: a product is not changed after its creation, and the calls of cuBLASLt that read it are thread-safe.
unsafe impl Sync for LtProduct {}

impl LtProduct {
    /// Chooses the algorithm of a product. Returns `None` if cuBLASLt has none.
    ///
    /// # Errors
    /// The errors of the device and of the library.
    pub(crate) fn new(
        library: &Arc<LtLibrary>,
        op: &'static str,
        problem: &LibraryProduct,
    ) -> Result<Option<LtProduct>> {
        library.context.enter()?;
        let (factors, result, compute) = match problem.factors {
            DType::F64 => (cudaDataType_t::CUDA_R_64F, cudaDataType_t::CUDA_R_64F, Compute::CUBLAS_COMPUTE_64F),
            DType::F16 => (cudaDataType_t::CUDA_R_16F, cudaDataType_t::CUDA_R_32F, Compute::CUBLAS_COMPUTE_32F),
            DType::BF16 => (cudaDataType_t::CUDA_R_16BF, cudaDataType_t::CUDA_R_32F, Compute::CUBLAS_COMPUTE_32F),
            DType::F32 if library.allows_tf32 => {
                (cudaDataType_t::CUDA_R_32F, cudaDataType_t::CUDA_R_32F, Compute::CUBLAS_COMPUTE_32F_FAST_TF32)
            }
            DType::F32 => (cudaDataType_t::CUDA_R_32F, cudaDataType_t::CUDA_R_32F, Compute::CUBLAS_COMPUTE_32F),
            _ => return Ok(None),
        };
        let [m, n, k] = problem.sizes;
        let mut product = LtProduct {
            library: library.clone(),
            op,
            description: null_mut(),
            layouts: [null_mut(); 3],
            // SAFETY: an algorithm is an array of numbers, for which zeros are valid.
            algorithm: unsafe { std::mem::zeroed() },
            workspace: 0,
            offsets: problem.offsets,
            is_double: problem.factors == DType::F64,
        };
        // SAFETY: the pointer to the result is valid for a write.
        let created = unsafe { lt::cublasLtMatmulDescCreate(&raw mut product.description, compute, result) };
        check_status(&library.context, op, created)?;
        let matrices =
            [(factors, [n, k], problem.is_shared[1]), (factors, [k, m], problem.is_shared[0]), (result, [n, m], false)];
        for (layout, (element, [rows, columns], is_shared)) in product.layouts.iter_mut().zip(matrices) {
            let stride = if is_shared { 0 } else { rows * columns };
            *layout = batched_layout(library, op, (element, rows, columns), (problem.batch, stride))?;
        }
        Ok(product.choose_algorithm()?.then_some(product))
    }

    /// Chooses the fastest algorithm by the estimate of the library. Returns false if there is none.
    fn choose_algorithm(&mut self) -> Result<bool> {
        let mut preference = null_mut();
        // SAFETY: the pointer to the result is valid for a write.
        let created = unsafe { lt::cublasLtMatmulPreferenceCreate(&raw mut preference) };
        check_status(&self.library.context, self.op, created)?;
        let attribute = lt::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        let [b, a, c] = self.layouts;
        let mut found = std::mem::MaybeUninit::<lt::cublasLtMatmulHeuristicResult_t>::uninit();
        let mut count = 0;
        // SAFETY: all objects were created; the attribute has 8 bytes; there is space for one result, and its count is
        // valid for a write; the preference is destroyed once.
        let status = unsafe {
            let bytes = MAX_WORKSPACE as u64;
            let set = lt::cublasLtMatmulPreferenceSetAttribute(preference, attribute, (&raw const bytes).cast(), 8);
            let found = match set {
                Status::CUBLAS_STATUS_SUCCESS => lt::cublasLtMatmulAlgoGetHeuristic(
                    self.library.handle,
                    self.description,
                    b,
                    a,
                    c,
                    c,
                    preference,
                    1,
                    found.as_mut_ptr(),
                    &raw mut count,
                ),
                failed => failed,
            };
            let _ = lt::cublasLtMatmulPreferenceDestroy(preference);
            found
        };
        // The device has kernels for every product, so any refusal is an answer.
        match check_status(&self.library.context, self.op, status) {
            Err(Error::InvalidArgument { .. }) => return Ok(false),
            checked => checked?,
        }
        if count == 0 {
            return Ok(false);
        }
        // SAFETY: the library has written one result.
        let found = unsafe { found.assume_init() };
        (self.algorithm, self.workspace) = (found.algo, found.workspaceSize);
        Ok(found.state == Status::CUBLAS_STATUS_SUCCESS)
    }

    /// Returns the size of the workspace in bytes.
    pub(crate) fn workspace_bytes(&self) -> usize {
        self.workspace
    }

    /// Enqueues the product.
    ///
    /// # Errors
    /// The errors of the device and of the library.
    ///
    /// # Safety
    /// * Context: the context of the library and of the stream is current.
    /// * Memory: `memory` are the addresses of the buffers of A, B and C, which contain the matrices of the problem,
    ///   and of a workspace. They stay allocated until the work of the stream is done.
    pub(crate) unsafe fn enqueue(&self, memory: [CUdeviceptr; 4], stream: CUstream) -> Result<()> {
        let [a, b, c, workspace] = memory;
        let [a, b] = [(a, self.offsets[0]), (b, self.offsets[1])].map(|(address, offset)| address + offset as u64);
        let pointer = |address: CUdeviceptr| address as *mut c_void;
        let (single, double) = ([1f32, 0.0], [1f64, 0.0]);
        let scale = |k: usize| match self.is_double {
            true => (&raw const double[k]).cast::<c_void>(),
            false => (&raw const single[k]).cast(),
        };
        let [b_layout, a_layout, c_layout] = self.layouts;
        // SAFETY: *Context* and *Memory* of this function; the scale factors have the type of the description, and the
        // library reads them before it returns.
        let status = unsafe {
            lt::cublasLtMatmul(
                self.library.handle,
                self.description,
                scale(0),
                pointer(b),
                b_layout,
                pointer(a),
                a_layout,
                scale(1),
                pointer(c),
                c_layout,
                pointer(c),
                c_layout,
                &raw const self.algorithm,
                pointer(workspace),
                self.workspace,
                stream.cast(),
            )
        };
        check_status(&self.library.context, self.op, status)
    }
}

/// Creates the layout of `batch` matrices in the order of columns, each `stride` elements after the one before it.
fn batched_layout(
    library: &LtLibrary,
    op: &'static str,
    (element, rows, columns): (cudaDataType_t, usize, usize),
    (batch, stride): (usize, usize),
) -> Result<lt::cublasLtMatrixLayout_t> {
    let mut layout = null_mut();
    // SAFETY: the pointer to the result is valid for a write.
    let created =
        unsafe { lt::cublasLtMatrixLayoutCreate(&raw mut layout, element, rows as u64, columns as u64, rows as i64) };
    check_status(&library.context, op, created)?;
    let (count, stride) = (batch as i32, stride as i64);
    let attributes: [(_, *const c_void, usize); 2] = [
        (lt::cublasLtMatrixLayoutAttribute_t::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, (&raw const count).cast(), 4),
        (
            lt::cublasLtMatrixLayoutAttribute_t::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
            (&raw const stride).cast(),
            8,
        ),
    ];
    for (attribute, value, bytes) in attributes {
        // SAFETY: the layout exists, and the attributes have these sizes.
        let set = unsafe { lt::cublasLtMatrixLayoutSetAttribute(layout, attribute, value, bytes) };
        if set != Status::CUBLAS_STATUS_SUCCESS {
            // SAFETY: the layout exists and is destroyed once.
            let _ = unsafe { lt::cublasLtMatrixLayoutDestroy(layout) };
            check_status(&library.context, op, set)?;
        }
    }
    Ok(layout)
}

impl Drop for LtProduct {
    fn drop(&mut self) {
        // SAFETY: the objects that were created are destroyed once. They belong to the host; work that was enqueued
        // does not use them.
        unsafe {
            for layout in self.layouts.into_iter().filter(|layout| !layout.is_null()) {
                let _ = lt::cublasLtMatrixLayoutDestroy(layout);
            }
            if !self.description.is_null() {
                let _ = lt::cublasLtMatmulDescDestroy(self.description);
            }
        }
    }
}
