//! `trace`: counts the work of a computation without running it.

use super::recording::record_closure;
use crate::array::Array;
use crate::device::Device;
use crate::engine::{RecordedKernel, Recording, is_capturing, with_current};
use crate::tensor::Tensor;
use pellucid_ir::kernel::Meta;
use pellucid_ir::{DType, Error, Result, Shape};
use smallvec::SmallVec;
use std::collections::HashSet;
use std::sync::Arc;

/// The cost of a computation, counted from shapes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct KernelWork {
    /// The number of kernels.
    pub kernels: u64,
    /// The number of arithmetic operations on elements. A multiply-add counts as two.
    pub flops: u64,
    /// The bytes that kernels read and write. An operand counts each time it is used.
    pub bytes: u64,
    /// The bytes of new buffers, if no buffer is reused.
    pub allocated_bytes: u64,
}

impl std::ops::Sub for KernelWork {
    type Output = KernelWork;

    fn sub(self, before: KernelWork) -> KernelWork {
        KernelWork {
            kernels: self.kernels - before.kernels,
            flops: self.flops - before.flops,
            bytes: self.bytes - before.bytes,
            allocated_bytes: self.allocated_bytes - before.allocated_bytes,
        }
    }
}

/// Runs `f` without running any kernel, and returns its result with the work of its kernels.
///
/// Shapes and dtypes are the same as in a real run. Tensors that `f` creates never have values. Parameters, gradients,
/// statistics and generators do not change.
///
/// ```
/// use pellucid::{DType, Tensor};
/// use pellucid::engine::trace;
/// let (a, b) = (Tensor::ones([64, 100], DType::F32), Tensor::ones([100, 10], DType::F32));
/// let (shape, work) = trace(|| Ok(a.matmul(&b).shape().clone()))?;
/// assert_eq!(shape.dims(), [64, 10]);
/// assert_eq!(work.flops, 2 * 64 * 100 * 10);
/// assert_eq!(work.allocated_bytes, 4 * 64 * 10);
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// # Errors
/// The errors of `f`, whether returned or raised by a panicking method; [`Error::ReadInCapture`] if `f` reads a value,
/// or if a shape depends on one; [`Error::InvalidArgument`] inside a captured step or another trace.
pub fn trace<R>(f: impl FnOnce() -> Result<R>) -> Result<(R, KernelWork)> {
    if is_capturing() {
        return Err(Error::invalid("trace", "trace() cannot be used inside a captured step or another trace"));
    }
    let (value, recording, _) = record_closure(Vec::new(), f)?;
    Ok((value?, kernel_work(&recording)))
}

/// Returns a tensor on `device` without memory, as an input of a traced function.
///
/// # Errors
/// The errors of an allocation, for a shape that is too large.
pub fn placeholder(device: Device, shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
    Ok(Tensor::from(Array::new(device, dtype, shape.into())?).pinned())
}

/// Returns the work that this thread has recorded so far inside [`trace`] or a captured step, and `None` elsewhere.
pub fn traced() -> Option<KernelWork> {
    is_capturing().then(|| with_current(|recording| kernel_work(recording)))
}

/// Returns the recorded kernels except those whose results are constants on another device.
fn device_kernels(recording: &Recording) -> impl Iterator<Item = &RecordedKernel> {
    recording.kernels.iter().filter(|k| !k.is_host_constant)
}

/// Counts the work of the recorded kernels.
fn kernel_work(recording: &Recording) -> KernelWork {
    let metas = |arrays: &[Array]| -> SmallVec<[Meta; 4]> {
        arrays.iter().map(|a| Meta { shape: a.shape().clone(), dtype: a.dtype() }).collect()
    };
    let mut work = KernelWork { kernels: device_kernels(recording).count() as u64, ..KernelWork::default() };
    let mut counted = HashSet::new();
    for k in device_kernels(recording) {
        let (inputs, outputs) = (metas(&k.inputs), metas(&k.outputs));
        work.flops += k.kernel.flops(&inputs, &outputs);
        let bytes = |m: &Meta| (m.shape.size() * m.dtype.size()) as u64;
        work.bytes += inputs.iter().chain(&outputs).map(bytes).sum::<u64>();
        let new = |a: &&Array| !a.storage().buffer().is_allocated() && counted.insert(Arc::as_ptr(a.storage()));
        work.allocated_bytes += k.outputs.iter().filter(new).map(|a| a.storage().buffer().bytes() as u64).sum::<u64>();
    }
    work
}
