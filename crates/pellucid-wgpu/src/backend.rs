//! [`Wgpu`], the backend of one device.

use crate::buffer::{DeviceMemory, UnwrittenBuffers, WgpuBuffer};
use crate::counters::WgpuCounters;
use crate::description::{KernelDescription, check_scalars};
use crate::gpu::Gpu;
use crate::operand_memory::{BoundOperands, device_buffer};
use crate::prepared::WgpuPlan;
use crate::{families, transfer};
use pellucid_ir::backend::{
    Backend, CheckedKernel, CheckedPlan, CompiledPlan, MemoryStats, OperandMeta, Readable, Storage, Support, Writable,
};
use pellucid_ir::kernel::Kernel;
use pellucid_ir::plan::{Launch, SlotView};
use pellucid_ir::{Result, lock};
use std::sync::Arc;
use std::time::Duration;

/// A device of [`WgpuDriver`](crate::WgpuDriver).
///
/// [`Backend::run`] records a kernel and returns; only for a kernel that checks indices, it waits for the result of the
/// checks. Recorded kernels are submitted in the order of the calls, several at a time, at the latest before the next
/// transfer or wait. For a kernel of [`Support::Fallback`], [`Backend::run`] returns an error.
#[derive(Clone)]
pub struct Wgpu {
    gpu: Arc<Gpu>,
}

impl Wgpu {
    pub(crate) fn new(gpu: Arc<Gpu>) -> Wgpu {
        Wgpu { gpu }
    }

    /// Returns true if the adapter's `fma` rounds once. Otherwise shaders emulate it with sums, products and their
    /// rounding errors, with bit-identical results.
    pub fn has_fused_multiply_add(&self) -> bool {
        self.gpu.shader_features().fused
    }

    /// Returns true if reductions over a workgroup exchange values within subgroups, with bit-identical results.
    pub fn has_subgroups(&self) -> bool {
        self.gpu.shader_features().subgroups
    }

    /// Returns true if instructions of the adapter convert `f16`, bit-identically to the integer arithmetic that
    /// shaders use otherwise.
    pub fn has_native_f16(&self) -> bool {
        self.gpu.shader_features().native_f16
    }

    /// Runs `work` and returns the time that the device spends on it, from the end of all earlier work to the end of
    /// the work that `work` submits. Work of other threads counts too. Waits for the device. Returns `None` if the
    /// adapter has no timestamps.
    ///
    /// # Errors
    /// The error of `work`, or of the device.
    pub fn device_time(&self, work: impl FnOnce() -> Result<()>) -> Result<Option<Duration>> {
        self.gpu.device_time(work)
    }

    /// Returns the counts of work since the device was opened.
    pub fn counters(&self) -> WgpuCounters {
        self.gpu.graphics.counters.snapshot()
    }
}

impl Wgpu {
    /// Records the dispatches of a kernel. If it has checks, waits for their results.
    fn run_described(&self, kernel: &Kernel, bound: &BoundOperands<'_>, description: &KernelDescription) -> Result<()> {
        let gpu = &self.gpu;
        let mut memory = bound.memory(kernel)?;
        // Scratch memory is freed at the end of this function. Its reuse is safe, because the device runs work in
        // submission order.
        let scratch: Vec<DeviceMemory> =
            description.scratch.iter().map(|&bytes| DeviceMemory::allocate(gpu, bytes)).collect::<Result<_>>()?;
        memory.extend(scratch.iter().map(|memory| memory.raw().clone()));
        let (graphics, status) = (&gpu.graphics, &gpu.status);
        let mut recorded = lock(&gpu.recorded);
        recorded.record(graphics, kernel, description, &memory)?;
        if description.checks == 0 {
            return Ok(());
        }
        let copied = recorded.submit_with_status(graphics, Some(status));
        recorded.status.confirm(graphics, status, description.checks as usize, copied).map_err(|failed| failed.error)
    }
}

impl Backend for Wgpu {
    fn name(&self) -> &str {
        &self.gpu.graphics.name
    }

    fn adapter(&self) -> &str {
        &self.gpu.graphics.adapter.name
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        Wgpu::counters(self).named()
    }

    fn is_software(&self) -> bool {
        self.gpu.graphics.adapter.device_type == wgpu::DeviceType::Cpu
    }

    fn storage(&self, bytes: usize) -> Result<Arc<Storage>> {
        Ok(Arc::new(Storage::new(WgpuBuffer::new(self.gpu.clone(), bytes))))
    }

    fn support(&self, kernel: &Kernel, inputs: &[OperandMeta<'_>], outputs: &[OperandMeta<'_>]) -> Support {
        self.gpu.dispatch_limits().support(kernel, inputs, outputs)
    }

    /// Records the dispatches of a kernel. If it has checks, waits for their results. After an error, outputs that had
    /// no memory before still have none.
    fn run_checked(&self, launch: CheckedKernel<'_>) -> Result<()> {
        let (gpu, kernel) = (&self.gpu, launch.kernel());
        let bound = BoundOperands::new(gpu, launch)?;
        let description = families::describe_kernel(gpu, kernel, &bound.operands)?;
        check_scalars(kernel, &description)?;
        let unwritten = UnwrittenBuffers::new(bound.buffers.iter().copied());
        self.run_described(kernel, &bound, &description).inspect_err(|_| unwritten.discard())
    }

    /// Compiles a plan. Returns `None` unless all its kernels are [`Support::Native`].
    ///
    /// A launch waits for the checks of indices in its kernels, but not for the kernels after the last check. If a
    /// check fails, the later kernels of the launch are skipped, and the launch returns
    /// [`pellucid_ir::Error::IndexOutOfBounds`].
    fn prepare_checked(&self, plan: CheckedPlan<'_>) -> Result<Option<Box<dyn CompiledPlan>>> {
        fn metas(operands: &[SlotView]) -> Vec<OperandMeta<'_>> {
            operands.iter().map(OperandMeta::from).collect()
        }
        let limits = self.gpu.dispatch_limits();
        let is_native =
            |launch: &Launch| limits.are_met(&launch.kernel, &metas(&launch.inputs), &metas(&launch.outputs));
        match plan.launches.iter().all(is_native) {
            true => Ok(Some(Box::new(WgpuPlan::new(&self.gpu, plan)?))),
            false => Ok(None),
        }
    }

    fn upload_borrowed(&self, bytes: &[u8], to: Writable<'_>, offset: usize) -> Result<()> {
        transfer::upload(&self.gpu, bytes, device_buffer("upload", &self.gpu, &to)?, offset)
    }

    fn download_borrowed(&self, from: Readable<'_>, offset: usize, into: &mut [u8]) -> Result<()> {
        transfer::download(&self.gpu, device_buffer("download", &self.gpu, &from)?, offset, into)
    }

    /// Returns true: a submission costs more than a small kernel.
    fn is_deferred(&self) -> bool {
        true
    }

    fn synchronize(&self) -> Result<()> {
        self.gpu.wait()
    }

    fn memory_stats(&self) -> MemoryStats {
        lock(&self.gpu.allocator).stats()
    }

    fn set_memory_cap(&self, bytes: usize) {
        lock(&self.gpu.allocator).set_cap(bytes);
    }

    fn trim(&self) {
        lock(&self.gpu.allocator).trim();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::WgpuDriver;
    use pellucid_ir::backend::View;
    use pellucid_ir::borrow::BorrowGuard;
    use pellucid_ir::kernel::{Gather, Index};
    use pellucid_ir::{DType, Error, Layout};

    /// Creates a storage with these contents.
    fn uploaded(device: &Wgpu, bytes: &[u8]) -> Arc<Storage> {
        let storage = device.storage(bytes.len()).unwrap();
        device.upload(bytes, &storage).unwrap();
        storage
    }

    #[test]
    fn a_rejected_submission_fails_the_device() {
        let Ok(device) = WgpuDriver.open_device(0) else { return };
        let (gpu, kernel, layout) = (&device.gpu, &Kernel::Copy, &Layout::contiguous([8].into()));
        let [x, y] = [1, 2].map(|value| uploaded(&device, &[value; 8]));
        let [inputs, outputs] = [&x, &y].map(|storage| [View { storage, layout, dtype: DType::U8 }]);
        let guard = BorrowGuard::acquire(&inputs, &outputs);
        let bound = BoundOperands::new(gpu, CheckedKernel::new(kernel, &guard).unwrap()).unwrap();
        let description = families::describe_kernel(gpu, kernel, &bound.operands).unwrap();
        let mut memory = bound.memory(kernel).unwrap();
        // The graphics API rejects a binding of a buffer that is not a storage buffer.
        memory[1] = gpu.graphics.create_buffer("rejected", 8, wgpu::BufferUsages::COPY_DST);
        lock(&gpu.recorded).record(&gpu.graphics, kernel, &description, &memory).unwrap();
        drop(bound);
        drop(guard);
        let is_unavailable = |result: Result<()>| matches!(result, Err(Error::DeviceUnavailable { .. }));
        assert!(is_unavailable(device.synchronize()), "a wait must return an error if a recorded kernel is lost");
        assert!(
            is_unavailable(device.run(kernel, &inputs, &outputs)),
            "a later kernel must be rejected, because it could read a lost result"
        );
        assert!(is_unavailable(device.download(&y, 0, &mut [0; 8])), "a download of a lost result must be an error");
    }

    #[test]
    fn a_check_whose_result_is_not_read_skips_no_later_kernel() {
        let Ok(device) = WgpuDriver.open_device(0) else { return };
        let x = uploaded(&device, &[1.0f32, 2.0].map(f32::to_ne_bytes).concat());
        let index = uploaded(&device, &[0i64, 2].map(i64::to_ne_bytes).concat());
        let y = device.storage(8).unwrap();
        let layout = &Layout::contiguous([2].into());
        let view = |storage, dtype| View { storage, layout, dtype };
        let (inputs, outputs) = ([view(&x, DType::F32), view(&index, DType::I64)], [view(&y, DType::F32)]);
        let index_axes = Index::Axes([0].into_iter().collect());
        let kernel = Kernel::Gather(Gather { op: "gather", from_end: true, index: index_axes });

        let gpu = &device.gpu;
        let guard = BorrowGuard::acquire(&inputs, &outputs);
        let bound = BoundOperands::new(gpu, CheckedKernel::new(&kernel, &guard).unwrap()).unwrap();
        let description = families::describe_kernel(gpu, &kernel, &bound.operands).unwrap();
        let memory = bound.memory(&kernel).unwrap();
        let mut recorded = lock(&gpu.recorded);
        recorded.record(&gpu.graphics, &kernel, &description, &memory).unwrap();
        recorded.submit_with_status(&gpu.graphics, Some(&gpu.status)).unwrap();
        let failure = recorded.status.confirm(&gpu.graphics, &gpu.status, 1, Err(Error::out_of_memory(8)));
        let failure = failure.expect_err("a failed submission must be an error");
        assert!(failure.passed.is_none() && matches!(failure.error, Error::OutOfMemory { .. }));
        drop(recorded);
        drop(bound);
        drop(guard);

        device.upload(&[1i64, 0].map(i64::to_ne_bytes).concat(), &index).unwrap();
        device.run(&kernel, &inputs, &outputs).unwrap();
        let mut selected = [0; 8];
        device.download(&y, 0, &mut selected).unwrap();
        assert_eq!(selected[..], [2.0f32, 1.0].map(f32::to_ne_bytes).concat());
    }
}
