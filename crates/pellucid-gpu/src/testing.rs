//! A device for tests that runs no kernels: it stores bytes, counts calls, and fails where a test plans it.

use crate::api::{
    ComputeApi, DeviceLimits, DispatchBatch, OptionalFeatures, PARAMETER_BYTES, PlanBuffer, PlannedDispatches,
    SubmissionFailure,
};
use crate::counters::AtomicCounters;
use crate::failure::DeviceFailure;
use crate::gpu::Gpu;
use crate::shader::KernelSource;
use crate::shader::wgsl::Wgsl;
use crate::status::{NO_FAILURE, STATUS_WORDS};
use pellucid_ir::{Error, Result, lock};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The memory of a [`TestApi`]. Clones share the bytes.
#[derive(Clone, Debug)]
pub(crate) struct TestMemory(Arc<Mutex<Vec<u8>>>);

impl PartialEq for TestMemory {
    fn eq(&self, other: &TestMemory) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// The work that a [`TestApi`] received.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum TestWork {
    /// The numbers of dispatches and of parameter bytes of a batch, and whether it copies the status.
    Submitted(usize, usize, bool),
    /// The number of dispatches of a plan.
    Launched(usize),
    Reset,
}

/// The calls that a [`TestApi`] answers next with an error or another value.
#[derive(Default)]
pub(crate) struct PlannedAnswers {
    /// The number of dispatches that the next submission accepts before its error, if the others may be submitted
    /// later.
    pub(crate) accepted: Option<u32>,
    /// The error of the next submission or launch.
    pub(crate) submission: Option<Error>,
    /// The result of the next read of the status.
    pub(crate) status: Option<Result<[u32; STATUS_WORDS]>>,
}

/// A device that stores bytes and runs no kernels.
pub(crate) struct TestApi {
    failure: DeviceFailure,
    counters: AtomicCounters,
    pub(crate) work: Mutex<Vec<TestWork>>,
    pub(crate) answers: Mutex<PlannedAnswers>,
}

impl TestApi {
    /// Creates a device.
    pub(crate) fn new() -> TestApi {
        let (counters, work, answers) = Default::default();
        TestApi { failure: DeviceFailure::new("test:0".into()), counters, work, answers }
    }

    fn receive(&self, work: TestWork) -> Result<()> {
        self.failure.check()?;
        lock(&self.work).push(work);
        lock(&self.answers).submission.take().map_or(Ok(()), Err)
    }
}

/// Creates a device without features, which its tests need not probe.
pub(crate) fn test_gpu() -> Arc<Gpu<TestApi>> {
    Arc::new(Gpu::new(TestApi::new()))
}

impl ComputeApi for TestApi {
    type Language = Wgsl;
    type Memory = TestMemory;
    /// The text of the kernel.
    type Kernel = String;
    type Prepared = PlannedDispatches<String, TestMemory>;
    type Submission = ();
    type Timer = ();

    fn adapter(&self) -> &str {
        "test device"
    }

    fn is_software(&self) -> bool {
        true
    }

    fn limits(&self) -> DeviceLimits {
        DeviceLimits { bindings: 8, groups: 65_535, buffer_bytes: 1 << 27, parameter_alignment: 32 }
    }

    fn optional_features(&self) -> OptionalFeatures {
        OptionalFeatures {
            subgroups: false,
            f16: false,
            matrix_units: false,
            library_products: false,
            large_shared_memory: false,
        }
    }

    fn failure(&self) -> &DeviceFailure {
        &self.failure
    }

    fn counters(&self) -> &AtomicCounters {
        &self.counters
    }

    fn allocate(&self, bytes: usize) -> Result<TestMemory> {
        assert!(bytes.is_multiple_of(16));
        Ok(TestMemory(Arc::new(Mutex::new(vec![0; bytes]))))
    }

    fn write(&self, to: &TestMemory, offset: usize, bytes: &[u8]) -> Result<()> {
        assert!(offset.is_multiple_of(4) && bytes.len().is_multiple_of(4), "copies have full words");
        lock(&to.0)[offset..offset + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn read(&self, from: &TestMemory, range: Range<usize>, receive: impl FnOnce(&[u8])) -> Result<()> {
        assert!(range.start.is_multiple_of(4) && range.end.is_multiple_of(4), "copies have full words");
        receive(&lock(&from.0)[range]);
        Ok(())
    }

    fn wait(&self) -> Result<()> {
        self.failure.check()
    }

    fn compile(&self, _: &'static str, text: &str, _: &KernelSource<'_>) -> Result<String> {
        self.counters.pipelines.add(1);
        Ok(text.to_string())
    }

    fn submit(
        &self,
        batch: DispatchBatch<'_, String, TestMemory>,
        copies_status: bool,
    ) -> Result<(), SubmissionFailure> {
        assert!(batch.parameters.len() <= PARAMETER_BYTES);
        let ranges = batch.dispatches.iter().map(|dispatch| dispatch.memory.clone());
        assert!(ranges.flatten().eq(0..batch.memory.len()), "every buffer must belong to one dispatch");
        let received = self.receive(TestWork::Submitted(batch.dispatches.len(), batch.parameters.len(), copies_status));
        received.map_err(|error| SubmissionFailure { submitted: lock(&self.answers).accepted.take(), error })
    }

    fn prepare(&self, plan: Self::Prepared) -> Result<Self::Prepared> {
        Ok(plan)
    }

    fn launch(&self, prepared: &mut Self::Prepared, slots: &[Option<TestMemory>]) -> Result<Option<()>> {
        let buffers = prepared.dispatches.iter().flat_map(|dispatch| &dispatch.buffers);
        let is_bound = |buffer: &PlanBuffer| match *buffer {
            PlanBuffer::Slot(k) => slots[k].is_some(),
            PlanBuffer::Scratch(k) => k < prepared.scratch.len(),
        };
        assert!(buffers.into_iter().all(is_bound), "every buffer of a dispatch must have memory");
        self.receive(TestWork::Launched(prepared.dispatches.len()))?;
        Ok((prepared.checked > 0).then_some(()))
    }

    fn read_status(&self, (): ()) -> Result<[u32; STATUS_WORDS]> {
        lock(&self.answers).status.take().unwrap_or(Ok(NO_FAILURE))
    }

    fn reset_status(&self) -> Result<()> {
        lock(&self.work).push(TestWork::Reset);
        Ok(())
    }

    fn start_timer(&self) -> Result<Option<()>> {
        Ok(Some(()))
    }

    fn stop_timer(&self, (): ()) -> Result<Duration> {
        Ok(Duration::from_nanos(lock(&self.work).len() as u64))
    }
}
