//! cuBLASLt: descriptors, and matrix products in streams.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::rc::Rc;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use cudarc::cublaslt::sys::{
    cublasLtMatmulAlgo_t, cublasLtMatmulDescAttributes_t as DescAttribute, cublasLtMatmulHeuristicResult_t,
    cublasLtMatmulPreferenceAttributes_t as PreferenceAttribute, cublasLtMatrixLayoutAttribute_t as LayoutAttribute,
    cublasStatus_t as Status,
};
use cudarc::driver::sys::CUresult;

use crate::handles::HandleTable;
use crate::interface::Out;
use crate::products::{Activation, ElementType, MatrixOperand, ProductCall};
use crate::reports::FaultKind;
use crate::work::Work;
use crate::{context_call, lock_device};

/// The kinds of objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LtKind {
    Handle,
    Description,
    Layout,
    Preference,
}

/// An object with its attributes as bytes.
struct LtObject {
    kind: LtKind,
    attributes: BTreeMap<u32, Vec<u8>>,
}

/// The workspace that the algorithm of the device wants.
const WORKSPACE_BYTES: usize = 512;

/// The first word of an algorithm of the device.
const ALGORITHM_MARK: u64 = 0x7065_6c6c_7563_6964;

static OBJECTS: LazyLock<Mutex<HandleTable<LtObject>>> = LazyLock::new(Mutex::default);

fn objects() -> MutexGuard<'static, HandleTable<LtObject>> {
    OBJECTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the count of objects that exist.
pub(crate) fn live_objects() -> usize {
    objects().len()
}

impl LtObject {
    fn number(&self, attribute: u32) -> Option<u64> {
        let bytes = self.attributes.get(&attribute)?;
        let mut word = [0; 8];
        word.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(u64::from_le_bytes(word))
    }

    fn number_or(&self, attribute: u32, default: u64) -> u64 {
        self.number(attribute).unwrap_or(default)
    }
}

fn create(out: Out<'_, usize>, kind: LtKind, attributes: &[(u32, u64)]) -> Status {
    let Some(out) = out else { return Status::CUBLAS_STATUS_INVALID_VALUE };
    let attributes = attributes.iter().map(|(name, value)| (*name, value.to_le_bytes().to_vec())).collect();
    out.write(objects().insert(LtObject { kind, attributes }));
    Status::CUBLAS_STATUS_SUCCESS
}

fn destroy(handle: usize, kind: LtKind) -> Status {
    let mut objects = objects();
    if objects.get(handle).is_none_or(|object| object.kind != kind) {
        return Status::CUBLAS_STATUS_INVALID_VALUE;
    }
    objects.remove(handle);
    Status::CUBLAS_STATUS_SUCCESS
}

/// Sets an attribute.
///
/// # Safety
/// *Buffer:* `buffer` is valid for reads of `bytes` bytes.
unsafe fn set_attribute(handle: usize, kind: LtKind, attribute: u32, buffer: *const c_void, bytes: usize) -> Status {
    let mut objects = objects();
    let object = objects.get_mut(handle).filter(|object| object.kind == kind);
    match object {
        Some(object) if !buffer.is_null() && bytes <= 8 => {
            // SAFETY: the pointer is not null; the rest is the clause *Buffer*.
            let value = unsafe { std::slice::from_raw_parts(buffer.cast::<u8>(), bytes) };
            object.attributes.insert(attribute, value.to_vec());
            Status::CUBLAS_STATUS_SUCCESS
        }
        _ => Status::CUBLAS_STATUS_INVALID_VALUE,
    }
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cublasLtCreate(handle: Out<'_, usize>) -> Status {
    let refused = lock_device().settings.refused_products[0];
    match refused {
        Some(status) => status,
        None => create(handle, LtKind::Handle, &[]),
    }
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cublasLtDestroy(handle: usize) -> Status {
    destroy(handle, LtKind::Handle)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cublasLtGetVersion() -> usize {
    130_000
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cublasLtMatmulDescCreate(out: Out<'_, usize>, compute: c_uint, scale: c_uint) -> Status {
    let attributes = [
        (DescAttribute::CUBLASLT_MATMUL_DESC_COMPUTE_TYPE as u32, compute.into()),
        (DescAttribute::CUBLASLT_MATMUL_DESC_SCALE_TYPE as u32, scale.into()),
    ];
    create(out, LtKind::Description, &attributes)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cublasLtMatmulDescDestroy(description: usize) -> Status {
    destroy(description, LtKind::Description)
}

/// # Safety
/// *Buffer* of [`set_attribute`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cublasLtMatmulDescSetAttribute(
    description: usize,
    attribute: c_uint,
    buffer: *const c_void,
    bytes: usize,
) -> Status {
    // SAFETY: the clause *Buffer* is the caller's.
    unsafe { set_attribute(description, LtKind::Description, attribute, buffer, bytes) }
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cublasLtMatrixLayoutCreate(
    out: Out<'_, usize>,
    element: c_uint,
    rows: u64,
    columns: u64,
    leading: i64,
) -> Status {
    let attributes = [
        (LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_TYPE as u32, element.into()),
        (LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_ROWS as u32, rows),
        (LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_COLS as u32, columns),
        (LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_LD as u32, leading as u64),
    ];
    create(out, LtKind::Layout, &attributes)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cublasLtMatrixLayoutDestroy(layout: usize) -> Status {
    destroy(layout, LtKind::Layout)
}

/// # Safety
/// *Buffer* of [`set_attribute`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cublasLtMatrixLayoutSetAttribute(
    layout: usize,
    attribute: c_uint,
    buffer: *const c_void,
    bytes: usize,
) -> Status {
    // SAFETY: the clause *Buffer* is the caller's.
    unsafe { set_attribute(layout, LtKind::Layout, attribute, buffer, bytes) }
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cublasLtMatmulPreferenceCreate(out: Out<'_, usize>) -> Status {
    create(out, LtKind::Preference, &[])
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cublasLtMatmulPreferenceDestroy(preference: usize) -> Status {
    destroy(preference, LtKind::Preference)
}

/// # Safety
/// *Buffer* of [`set_attribute`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cublasLtMatmulPreferenceSetAttribute(
    preference: usize,
    attribute: c_uint,
    buffer: *const c_void,
    bytes: usize,
) -> Status {
    // SAFETY: the clause *Buffer* is the caller's.
    unsafe { set_attribute(preference, LtKind::Preference, attribute, buffer, bytes) }
}

/// Returns the matrix of a layout.
fn operand(handle: usize, address: usize) -> Result<MatrixOperand, Status> {
    let objects = objects();
    let layout = objects
        .get(handle)
        .filter(|object| object.kind == LtKind::Layout)
        .ok_or(Status::CUBLAS_STATUS_INVALID_VALUE)?;
    let number = |attribute: LayoutAttribute, default| layout.number_or(attribute as u32, default) as usize;
    let element = ElementType::from_number(number(LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_TYPE, 0) as u32)
        .ok_or(Status::CUBLAS_STATUS_NOT_SUPPORTED)?;
    let rows = number(LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_ROWS, 0);
    let columns = number(LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_COLS, 0);
    let leading = number(LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_LD, 0);
    let (row_stride, column_stride, least) = match number(LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_ORDER, 0) {
        0 => (1, leading, rows),
        1 => (leading, 1, columns),
        _ => return Err(Status::CUBLAS_STATUS_NOT_SUPPORTED),
    };
    if rows == 0 || columns == 0 || leading < least || !address.is_multiple_of(element.bytes()) {
        return Err(Status::CUBLAS_STATUS_INVALID_VALUE);
    }
    Ok(MatrixOperand {
        address,
        element,
        rows,
        columns,
        row_stride,
        column_stride,
        batch_stride: number(LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, 0),
        batches: number(LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, 1),
    })
}

/// The addresses and layouts of a call.
struct ProductOperands {
    a: (usize, usize),
    b: (usize, usize),
    c: (usize, usize),
    d: (usize, usize),
}

/// Returns the product of a description, without scalars and workspace.
fn product(description: usize, operands: &ProductOperands) -> Result<ProductCall, Status> {
    let matrix = |(address, layout): (usize, usize)| operand(layout, address);
    let (mut a, mut b) = (matrix(operands.a)?, matrix(operands.b)?);
    let (c, d) = (matrix(operands.c)?, matrix(operands.d)?);
    let objects = objects();
    let description = objects
        .get(description)
        .filter(|object| object.kind == LtKind::Description)
        .ok_or(Status::CUBLAS_STATUS_INVALID_VALUE)?;
    let number = |attribute: DescAttribute, default| description.number_or(attribute as u32, default);
    if number(DescAttribute::CUBLASLT_MATMUL_DESC_TRANSA, 0) != 0 {
        a = a.transposed();
    }
    if number(DescAttribute::CUBLASLT_MATMUL_DESC_TRANSB, 0) != 0 {
        b = b.transposed();
    }
    let has_shapes =
        (a.rows, a.columns, b.columns) == (d.rows, b.rows, d.columns) && (c.rows, c.columns) == (d.rows, d.columns);
    let has_batches = [a, b, c].iter().all(|matrix| matrix.batches == d.batches);
    if !has_shapes || !has_batches || d.batches == 0 {
        return Err(Status::CUBLAS_STATUS_INVALID_VALUE);
    }
    let is_double = matches!(number(DescAttribute::CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, 68), 70 | 71);
    let is_f64 = |matrix: &MatrixOperand| matrix.element == ElementType::F64;
    let has_types = a.element == b.element && [a, b, c, d].iter().all(|matrix| is_f64(matrix) == is_double);
    let is_host_pointer = number(DescAttribute::CUBLASLT_MATMUL_DESC_POINTER_MODE, 0) == 0;
    if !has_types || !is_host_pointer || number(DescAttribute::CUBLASLT_MATMUL_DESC_TRANSC, 0) != 0 {
        return Err(Status::CUBLAS_STATUS_NOT_SUPPORTED);
    }
    let epilogue = number(DescAttribute::CUBLASLT_MATMUL_DESC_EPILOGUE, 1);
    let activation = match epilogue & !4 {
        0 | 1 => Activation::Identity,
        2 => Activation::Relu,
        32 => Activation::Gelu,
        _ => return Err(Status::CUBLAS_STATUS_NOT_SUPPORTED),
    };
    let bias_type = number(DescAttribute::CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, u64::MAX);
    let bias_type = ElementType::from_number(bias_type as u32).unwrap_or(d.element);
    let bias = number(DescAttribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, 0) as usize;
    Ok(ProductCall {
        a,
        b,
        c,
        d,
        alpha: 0.0,
        beta: 0.0,
        bias: (epilogue & 4 != 0).then_some((bias, bias_type)),
        bias_stride: number(DescAttribute::CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, 0) as usize,
        activation,
        is_double,
        is_tf32: number(DescAttribute::CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, 68) == 77,
        workspace: None,
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cublasLtMatmulAlgoGetHeuristic(
    _handle: usize,
    description: usize,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    preference: usize,
    requested: c_int,
    results: Out<'_, cublasLtMatmulHeuristicResult_t>,
    count: Out<'_, c_int>,
) -> Status {
    let operands = ProductOperands { a: (0, a), b: (0, b), c: (0, c), d: (0, d) };
    let (Some(results), Some(count), true) = (results, count, requested > 0) else {
        return Status::CUBLAS_STATUS_INVALID_VALUE;
    };
    count.write(0);
    let refused = lock_device().settings.refused_products[1];
    if let Some(status) = refused {
        return status;
    }
    if let Err(status) = product(description, &operands) {
        return status;
    }
    let limit = objects().get(preference).map_or(0, |object| {
        object.number_or(PreferenceAttribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES as u32, 0) as usize
    });
    let workspace = if limit >= WORKSPACE_BYTES { WORKSPACE_BYTES } else { 0 };
    let mut data = [0; 8];
    (data[0], data[1]) = (ALGORITHM_MARK, workspace as u64);
    results.write(cublasLtMatmulHeuristicResult_t {
        algo: cublasLtMatmulAlgo_t { data },
        workspaceSize: workspace,
        state: Status::CUBLAS_STATUS_SUCCESS,
        wavesCount: 1.0,
        reserved: [0; 4],
    });
    count.write(1);
    Status::CUBLAS_STATUS_SUCCESS
}

/// Reads a scalar of the scale type.
///
/// # Safety
/// *Scalar:* `pointer` is null or points to an `f64` if `is_double`, else to an `f32`.
unsafe fn read_scalar(pointer: *const c_void, is_double: bool) -> Result<f64, Status> {
    if pointer.is_null() {
        return Err(Status::CUBLAS_STATUS_INVALID_VALUE);
    }
    // SAFETY: the pointer is not null; the rest is the clause *Scalar*.
    Ok(unsafe { if is_double { pointer.cast::<f64>().read() } else { f64::from(pointer.cast::<f32>().read()) } })
}

/// Returns the workspace that an algorithm overwrites.
fn algorithm_workspace(
    algorithm: Option<&cublasLtMatmulAlgo_t>,
    address: usize,
    bytes: usize,
) -> Result<usize, Status> {
    let Some(algorithm) = algorithm else { return Ok(0) };
    let needed = algorithm.data[1] as usize;
    if algorithm.data[0] != ALGORITHM_MARK || needed > bytes || (needed > 0 && address == 0) {
        return Err(Status::CUBLAS_STATUS_INVALID_VALUE);
    }
    Ok(needed)
}

/// # Safety
/// *Scalar* of [`read_scalar`], for `alpha` and `beta` and the scale type of the description.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cublasLtMatmul(
    _handle: usize,
    description: usize,
    alpha: *const c_void,
    a: usize,
    a_layout: usize,
    b: usize,
    b_layout: usize,
    beta: *const c_void,
    c: usize,
    c_layout: usize,
    d: usize,
    d_layout: usize,
    algorithm: Option<&cublasLtMatmulAlgo_t>,
    workspace: usize,
    workspace_bytes: usize,
    stream: usize,
) -> Status {
    let operands = ProductOperands { a: (a, a_layout), b: (b, b_layout), c: (c, c_layout), d: (d, d_layout) };
    let checked = product(description, &operands).and_then(|mut call| {
        // SAFETY: the clause *Scalar* is the caller's.
        (call.alpha, call.beta) = unsafe { (read_scalar(alpha, call.is_double)?, read_scalar(beta, call.is_double)?) };
        let needed = algorithm_workspace(algorithm, workspace, workspace_bytes)?;
        call.workspace = (needed > 0).then_some((workspace, needed));
        Ok(call)
    });
    let call = match checked {
        Ok(call) => call,
        Err(status) => return status,
    };
    let enqueued = context_call(|device| {
        for access in call.accesses() {
            if let Err((kind, text)) = device.memory.resolve(access.address, access.bytes, false) {
                let kind = if access.address == 0 { FaultKind::Arguments } else { kind };
                return Err(device.reports.report(kind, format!("a matrix product: {text}")));
            }
        }
        device.reports.count("products");
        device.enqueue(stream, Work::Product(Rc::new(call)))
    });
    match enqueued {
        CUresult::CUDA_SUCCESS => Status::CUBLAS_STATUS_SUCCESS,
        CUresult::CUDA_ERROR_INVALID_VALUE => Status::CUBLAS_STATUS_INVALID_VALUE,
        _ => Status::CUBLAS_STATUS_EXECUTION_FAILED,
    }
}
