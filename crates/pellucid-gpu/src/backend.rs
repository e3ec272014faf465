//! [`GpuBackend`], the backend of one device.

use crate::api::ComputeApi;
use crate::buffer::{DeviceMemory, GpuBuffer, UnwrittenBuffers};
use crate::counters::GpuCounters;
use crate::description::{KernelDescription, check_scalars};
use crate::gpu::Gpu;
use crate::operand_memory::{BoundOperands, device_buffer};
use crate::prepared::GpuPlan;
use crate::{families, transfer};
use pellucid_ir::backend::{
    Backend, CheckedKernel, CheckedPlan, CompiledPlan, MemoryStats, OperandMeta, Readable, Storage, Support, Writable,
};
use pellucid_ir::kernel::Kernel;
use pellucid_ir::plan::{Launch, SlotView};
use pellucid_ir::{Result, lock};
use std::sync::Arc;
use std::time::Duration;

/// The backend of a device of a compute API.
///
/// [`Backend::run`] records a kernel and returns; only for a kernel that checks indices, it waits for the result of the
/// checks. Recorded kernels are submitted in the order of the calls, several at a time, at the latest before the next
/// transfer or wait. For a kernel of [`Support::Fallback`], [`Backend::run`] returns an error.
pub struct GpuBackend<A: ComputeApi> {
    gpu: Arc<Gpu<A>>,
}

impl<A: ComputeApi> Clone for GpuBackend<A> {
    fn clone(&self) -> GpuBackend<A> {
        GpuBackend { gpu: self.gpu.clone() }
    }
}

impl<A: ComputeApi> GpuBackend<A> {
    /// Creates the backend of a device and finds its features.
    ///
    /// # Errors
    /// [`Error::DeviceUnavailable`](pellucid_ir::Error::DeviceUnavailable) if the device cannot run a test kernel.
    pub fn new(api: A) -> Result<GpuBackend<A>> {
        let backend = GpuBackend::without_features(api)?;
        backend.gpu.probe()?;
        Ok(backend)
    }

    /// Creates the backend of a device and uses none of its optional features: fused multiply-adds, subgroups and
    /// conversions of half precision. All results are bit-identical to those with them. Tests use it to run the kernels
    /// of devices without the features.
    ///
    /// # Errors
    /// The errors of [`new`](GpuBackend::new).
    pub fn without_features(api: A) -> Result<GpuBackend<A>> {
        let gpu = Arc::new(Gpu::new(api));
        gpu.probe_loops()?;
        Ok(GpuBackend { gpu })
    }

    /// Returns true if the device's `fma` rounds once. Otherwise kernels emulate it with sums, products and their
    /// rounding errors, with bit-identical results.
    pub fn has_fused_multiply_add(&self) -> bool {
        self.gpu.features().fused
    }

    /// Returns true if reductions over a workgroup exchange values within subgroups, with bit-identical results.
    pub fn has_subgroups(&self) -> bool {
        self.gpu.features().subgroups
    }

    /// Returns true if instructions of the device convert `f16`, bit-identically to the integer arithmetic that kernels
    /// use otherwise.
    pub fn has_native_f16(&self) -> bool {
        self.gpu.features().native_f16
    }

    /// Returns the counts of work since the device was opened.
    pub fn counters(&self) -> GpuCounters {
        self.gpu.api.counters().snapshot()
    }

    /// Records the dispatches of a kernel. If it has checks, waits for their results.
    fn run_described(
        &self,
        kernel: &Kernel,
        bound: &BoundOperands<'_, A>,
        description: &KernelDescription<A>,
    ) -> Result<()> {
        let gpu = &self.gpu;
        let mut memory = bound.memory(kernel)?;
        // Scratch memory is freed at the end of this function. Its reuse is safe, because the device runs work in
        // submission order.
        let scratch: Vec<DeviceMemory<A>> =
            description.scratch.iter().map(|&bytes| DeviceMemory::allocate(gpu, bytes)).collect::<Result<_>>()?;
        memory.extend(scratch.iter().map(|memory| memory.raw().clone()));
        let (api, operations) = (&gpu.api, &gpu.operations);
        let mut recorded = lock(&gpu.recorded);
        recorded.record(api, kernel, description, &memory)?;
        if description.checks == 0 {
            return Ok(());
        }
        let copied = recorded.submit_with_status(api, true);
        if copied.is_err() {
            recorded.discard_last(description.dispatches.len());
        }
        recorded.confirm(api, operations, description.checks as usize, copied).map_err(|failed| failed.error)
    }
}

impl<A: ComputeApi> Backend for GpuBackend<A> {
    fn name(&self) -> &str {
        self.gpu.api.failure().device()
    }

    fn adapter(&self) -> &str {
        self.gpu.api.adapter()
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        GpuBackend::counters(self).named()
    }

    fn is_software(&self) -> bool {
        self.gpu.api.is_software()
    }

    fn storage(&self, bytes: usize) -> Result<Arc<Storage>> {
        Ok(Arc::new(Storage::new(GpuBuffer::new(self.gpu.clone(), bytes))))
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
            true => Ok(Some(Box::new(GpuPlan::new(&self.gpu, plan)?))),
            false => Ok(None),
        }
    }

    fn take_notice(&self) -> Option<String> {
        self.gpu.api.take_notice()
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

    fn device_time(&self, work: &mut dyn FnMut() -> Result<()>) -> Result<Option<Duration>> {
        self.gpu.device_time(work)
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
        // The error of a failed device is the error of its next use.
        let _ = self.gpu.api.release_unused_memory();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{AXIS, INDEX, LENGTH, NO_FAILURE, OPERATION, PASSED};
    use crate::testing::{TestApi, TestWork, test_gpu};
    use pellucid_ir::backend::View;
    use pellucid_ir::kernel::{Gather, Index};
    use pellucid_ir::plan::Plan;
    use pellucid_ir::{DType, Error, Layout};

    /// Creates a backend that runs no kernels.
    fn test_backend() -> GpuBackend<TestApi> {
        GpuBackend { gpu: test_gpu() }
    }

    /// Creates a storage with these contents.
    fn uploaded(device: &GpuBackend<TestApi>, bytes: &[u8]) -> Arc<Storage> {
        let storage = device.storage(bytes.len()).unwrap();
        device.upload(bytes, &storage).unwrap();
        storage
    }

    /// Returns the work that the device has received since the last call.
    fn received(device: &GpuBackend<TestApi>) -> Vec<TestWork> {
        std::mem::take(&mut lock(&device.gpu.api.work))
    }

    fn gather() -> Kernel {
        Kernel::Gather(Gather { op: "gather", from_end: true, index: Index::Axes([0].into_iter().collect()) })
    }

    /// Runs a gather whose check answers as planned.
    fn run_gather(device: &GpuBackend<TestApi>) -> Result<()> {
        gather_from(device, &gather_operands(device))
    }

    /// Returns the operands of a gather.
    fn gather_operands(device: &GpuBackend<TestApi>) -> [Arc<Storage>; 3] {
        [8, 16, 8].map(|bytes| uploaded(device, &vec![0; bytes]))
    }

    fn gather_from(device: &GpuBackend<TestApi>, [x, index, y]: &[Arc<Storage>; 3]) -> Result<()> {
        let layout = &Layout::contiguous([2].into());
        let view = |storage, dtype| View { storage, layout, dtype };
        device.run(&gather(), &[view(x, DType::F32), view(index, DType::I64)], &[view(y, DType::F32)])
    }

    #[test]
    fn transfers_have_any_size_and_offset() {
        let device = test_backend();
        let storage = uploaded(&device, &[7; 19]);
        for (offset, size) in (0..19).flat_map(|offset| (0..=19 - offset).map(move |size| (offset, size))) {
            let mut expected = [7; 19];
            device.upload(&expected, &storage).unwrap();
            expected[offset..offset + size].fill(9);
            storage.with_write(|to| device.upload_borrowed(&vec![9; size], to, offset)).unwrap();
            let mut got = [0; 19];
            device.download(&storage, 0, &mut got).unwrap();
            assert_eq!(got, expected, "{size} bytes at {offset}");
            device.download(&storage, offset, &mut got[..size]).unwrap();
            assert_eq!(got[..size], vec![9; size], "{size} bytes at {offset}");
        }
    }

    #[test]
    fn recorded_kernels_are_submitted_together() {
        let device = test_backend();
        let [x, y] = [1, 2].map(|value| uploaded(&device, &[value; 8]));
        let layout = &Layout::contiguous([8].into());
        let [inputs, outputs] = [&x, &y].map(|storage| [View { storage, layout, dtype: DType::U8 }]);
        for _ in 0..70 {
            device.run(&Kernel::Copy, &inputs, &outputs).unwrap();
        }
        device.synchronize().unwrap();
        let work = received(&device);
        let [TestWork::Submitted(64, ..), TestWork::Submitted(6, parameters, false)] = work[..] else {
            panic!("{work:?}")
        };
        assert!(parameters > 5 * 32, "the parameters of a dispatch must have an alignment of 32 bytes");
        assert_eq!((device.counters().pipelines, device.counters().bytes), (1, 70 * 16));
        let time = device.device_time(&mut || device.run(&Kernel::Copy, &inputs, &outputs)).unwrap();
        assert_eq!(time, Some(Duration::from_nanos(1)), "the measurement must include the recorded kernel");
    }

    #[test]
    fn a_rejected_submission_fails_the_device() {
        let device = test_backend();
        let [x, y] = [1, 2].map(|value| uploaded(&device, &[value; 8]));
        let layout = &Layout::contiguous([8].into());
        let [inputs, outputs] = [&x, &y].map(|storage| [View { storage, layout, dtype: DType::U8 }]);
        device.run(&Kernel::Copy, &inputs, &outputs).unwrap();
        lock(&device.gpu.api.answers).submission = Some(Error::invalid("submit", "a rejected command"));
        let is_unavailable = |result: Result<()>| matches!(result, Err(Error::DeviceUnavailable { .. }));
        assert!(is_unavailable(device.synchronize()), "a wait must return an error if a recorded kernel is lost");
        assert!(
            is_unavailable(device.run(&Kernel::Copy, &inputs, &outputs)),
            "a later kernel must be rejected, because it could read a lost result"
        );
        assert!(is_unavailable(device.download(&y, 0, &mut [0; 8])), "a download of a lost result must be an error");
    }

    #[test]
    fn kernels_without_memory_stay_recorded() {
        let device = test_backend();
        let [x, y] = [1, 2].map(|value| uploaded(&device, &[value; 8]));
        let layout = &Layout::contiguous([8].into());
        let [inputs, outputs] = [&x, &y].map(|storage| [View { storage, layout, dtype: DType::U8 }]);
        for _ in 0..5 {
            device.run(&Kernel::Copy, &inputs, &outputs).unwrap();
        }
        let exhausted = Error::out_of_memory(8);
        lock(&device.gpu.api.answers).accepted = Some(2);
        lock(&device.gpu.api.answers).submission = Some(exhausted.clone());
        assert_eq!(device.synchronize(), Err(exhausted.clone()));
        device.synchronize().unwrap();
        let counts = |work: TestWork| if let TestWork::Submitted(count, ..) = work { count } else { 0 };
        assert_eq!(received(&device).into_iter().map(counts).collect::<Vec<_>>(), [5, 3]);

        // The dispatches of a kernel with checks are discarded with its error; those of an earlier kernel are not.
        let operands = gather_operands(&device);
        device.run(&Kernel::Copy, &inputs, &outputs).unwrap();
        lock(&device.gpu.api.answers).accepted = Some(0);
        lock(&device.gpu.api.answers).submission = Some(exhausted.clone());
        assert_eq!(gather_from(&device, &operands), Err(exhausted));
        device.synchronize().unwrap();
        assert!(matches!(received(&device).last(), Some(TestWork::Submitted(1, ..))));
    }

    #[test]
    fn a_failed_check_is_the_error_of_its_kernel_and_resets_the_status() {
        let device = test_backend();
        run_gather(&device).unwrap();
        assert!(matches!(received(&device)[..], [TestWork::Submitted(3, _, true)]));
        let mut status = NO_FAILURE;
        (status[OPERATION], status[INDEX], status[AXIS], status[LENGTH], status[PASSED]) = (1, 5, 0, 2, 1);
        lock(&device.gpu.api.answers).status = Some(Ok(status));
        let expected = Error::IndexOutOfBounds { op: "gather", index: 5, axis: 0, len: 2 };
        assert_eq!(run_gather(&device), Err(expected));
        assert_eq!(received(&device).last(), Some(&TestWork::Reset));
        run_gather(&device).unwrap();
        assert!(!received(&device).contains(&TestWork::Reset));
    }

    #[test]
    fn a_status_that_cannot_be_read_is_reset() {
        let device = test_backend();
        lock(&device.gpu.api.answers).status = Some(Err(Error::out_of_memory(8)));
        assert!(matches!(run_gather(&device), Err(Error::OutOfMemory { .. })));
        assert_eq!(received(&device).last(), Some(&TestWork::Reset));
    }

    #[test]
    fn the_failure_of_a_launch_names_the_launch_of_the_failed_check() {
        let device = test_backend();
        let slot = |slot, dtype| SlotView { slot, layout: Layout::contiguous([2].into()), dtype };
        let [x, index] = [slot(0, DType::F32), slot(1, DType::I64)];
        let launch = |to| Launch::new(gather(), vec![x.clone(), index.clone()], vec![slot(to, DType::F32)]);
        let plan = Plan { slots: vec![8, 16, 8, 8], launches: vec![launch(2), launch(3)], ..Plan::default() };
        let storages: Vec<Arc<Storage>> = plan.slots.iter().map(|&bytes| uploaded(&device, &vec![0; bytes])).collect();
        let compiled = device.prepare(&plan).unwrap().unwrap();
        compiled.run(&storages).unwrap();
        assert_eq!(received(&device), [TestWork::Launched(6)]);
        // Two checks have passed in the first launch of the plan, and one in the second.
        let mut status = NO_FAILURE;
        (status[OPERATION], status[INDEX], status[LENGTH], status[PASSED]) = (1, 7, 2, 3);
        lock(&device.gpu.api.answers).status = Some(Ok(status));
        let failed = compiled.run(&storages).unwrap_err();
        assert_eq!(failed.launch(), Some(1));
        assert!(matches!(failed.error, Error::IndexOutOfBounds { index: 7, .. }));
        lock(&device.gpu.api.answers).submission = Some(Error::invalid("launch", "a rejected command"));
        assert_eq!(compiled.run(&storages).unwrap_err().launch(), None, "any launch of the plan may have run");
    }
}
