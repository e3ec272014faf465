//! [`ComputeApi`]: the calls of a graphics or compute API that a backend needs.

use crate::counters::AtomicCounters;
use crate::failure::DeviceFailure;
use crate::shader::{KernelSource, Language};
use crate::status::STATUS_WORDS;
use pellucid_ir::{DType, Error, Result};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// The maximum size in bytes of the parameters of a dispatch, and of the parameters of a [`DispatchBatch`].
pub const PARAMETER_BYTES: usize = 256 << 10;

/// A device of a graphics or compute API, and its status buffer of [`STATUS_WORDS`] words.
///
/// A device runs its work in the order of the calls. [`submit`](ComputeApi::submit), [`launch`](ComputeApi::launch),
/// [`write`](ComputeApi::write) and [`reset_status`](ComputeApi::reset_status) may return before their work is done.
///
/// After an error of the API that no call returns, and after [`DeviceFailure::fail`], every call returns
/// [`Error::DeviceUnavailable`](pellucid_ir::Error::DeviceUnavailable).
pub trait ComputeApi: Send + Sync + Sized + 'static {
    /// The language of the kernels.
    type Language: Language;
    /// A buffer in device memory. A clone is the same buffer. The API frees it after the last clone has been dropped
    /// and the last work that uses it is done.
    type Memory: Clone + PartialEq + Send + Sync;
    /// A compiled kernel.
    type Kernel: Send + Sync;
    /// The dispatches of a plan, prepared for repeated launches: their bind groups, or a graph.
    type Prepared: Send;
    /// Submitted work that copies the status.
    type Submission;
    /// A measurement of device time that has started.
    type Timer;

    /// Returns the description of the hardware for display.
    fn adapter(&self) -> &str;

    /// Returns true if the host's processor emulates the device.
    fn is_software(&self) -> bool;

    /// Returns the limits of the device.
    fn limits(&self) -> DeviceLimits;

    /// Returns the features that the device offers. A probe tests whether they compute the required bits.
    fn optional_features(&self) -> OptionalFeatures;

    /// Returns the name of the device and its failure.
    fn failure(&self) -> &DeviceFailure;

    /// Returns the counters of the device. The API counts the buffers, bind groups and pipelines that it creates, and
    /// the dispatches and submissions of [`submit`](ComputeApi::submit) and [`launch`](ComputeApi::launch).
    fn counters(&self) -> &AtomicCounters;

    /// Allocates a buffer of `bytes` bytes, a multiple of 16. Its contents are undefined.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](pellucid_ir::Error::OutOfMemory) if the device has no memory left.
    fn allocate(&self, bytes: usize) -> Result<Self::Memory>;

    /// Returns the memory of dropped buffers to the system, if the API keeps it. May wait for submitted work.
    ///
    /// # Errors
    /// The error of the device.
    fn release_unused_memory(&self) -> Result<()> {
        Ok(())
    }

    /// Returns true if [`DispatchBatch::marks`] and [`mark_memory`](ComputeApi::mark_memory) have an effect: a device
    /// for tests reports accesses to memory that is not in use.
    fn checks_memory_use(&self) -> bool {
        false
    }

    /// Tells a device that checks accesses how much of a buffer the work after all submitted work may use.
    ///
    /// # Errors
    /// The error of the device.
    fn mark_memory(&self, _: &MemoryMark<Self::Memory>) -> Result<()> {
        Ok(())
    }

    /// Copies host bytes, a multiple of 4, to a buffer. `offset` is a multiple of 4. The bytes may change after the
    /// call.
    ///
    /// # Errors
    /// The error of the device.
    fn write(&self, to: &Self::Memory, offset: usize, bytes: &[u8]) -> Result<()>;

    /// Waits for earlier work and passes the bytes in a range of a buffer to `receive`. The bounds of the range are
    /// multiples of 4.
    ///
    /// # Errors
    /// The error of the device.
    fn read(&self, from: &Self::Memory, range: Range<usize>, receive: impl FnOnce(&[u8])) -> Result<()>;

    /// Waits until all submitted work is done.
    ///
    /// # Errors
    /// The error of the device.
    fn wait(&self) -> Result<()>;

    /// Compiles a kernel. `text` is the text that [`Language::text`] returns for `source`. Compiled kernels are cached
    /// by their text, so the result must be the same for all sources with this text.
    ///
    /// # Errors
    /// Returns an error if the compiler rejects the text.
    fn compile(&self, op: &'static str, text: &str, source: &KernelSource<'_>) -> Result<Self::Kernel>;

    /// Returns the work that computes a product by a library of the API, and the size of its workspace in bytes, or
    /// `None` if no library computes it. The buffers of the work are A, B, C and the workspace, and it has no
    /// parameters. Unlike a kernel, it also runs after a failed check. A device computes equal problems by the same
    /// algorithm.
    ///
    /// # Errors
    /// The error of the device.
    fn library_product(&self, op: &'static str, problem: &LibraryProduct) -> Result<Option<(Self::Kernel, usize)>> {
        let _ = (op, problem);
        Ok(None)
    }

    /// Runs dispatches in their order. With `copies_status`, also copies the status, which
    /// [`read_status`](ComputeApi::read_status) reads before any other submission that copies it.
    ///
    /// # Errors
    /// Returns an error if the API rejects the submission, with the number of dispatches that it has accepted, if the
    /// others may be submitted later.
    fn submit(
        &self,
        batch: DispatchBatch<'_, Self::Kernel, Self::Memory>,
        copies_status: bool,
    ) -> Result<Self::Submission, SubmissionFailure>;

    /// Returns a message for the user of the program about how the device runs work, and `None` from then on.
    fn take_notice(&self) -> Option<String> {
        None
    }

    /// Prepares the dispatches of a plan.
    ///
    /// # Errors
    /// Returns an error if the API rejects them.
    fn prepare(&self, plan: PlannedDispatches<Self::Kernel, Self::Memory>) -> Result<Self::Prepared>;

    /// Runs prepared dispatches in their order. `slots` is the memory of the slots that the dispatches use. If the plan
    /// has checks, copies the status after the last check and returns this submission: the host may wait for it while
    /// the device runs the other dispatches.
    ///
    /// # Errors
    /// Returns an error if the API rejects the launch.
    fn launch(&self, prepared: &mut Self::Prepared, slots: &[Option<Self::Memory>])
    -> Result<Option<Self::Submission>>;

    /// Waits for a submission and returns its copy of the status.
    ///
    /// # Errors
    /// The error of the device.
    fn read_status(&self, copied: Self::Submission) -> Result<[u32; STATUS_WORDS]>;

    /// Sets the status to [`NO_FAILURE`](crate::NO_FAILURE) before the next submission.
    ///
    /// # Errors
    /// The error of the device.
    fn reset_status(&self) -> Result<()>;

    /// Starts a measurement after all submitted work. Returns `None` if the device cannot measure time.
    ///
    /// # Errors
    /// The error of the device.
    fn start_timer(&self) -> Result<Option<Self::Timer>>;

    /// Returns the time of the device from the start of the measurement to the end of all submitted work. Waits for it.
    ///
    /// # Errors
    /// The error of the device.
    fn stop_timer(&self, timer: Self::Timer) -> Result<Duration>;
}

/// The limits of a device.
#[derive(Clone, Copy, Debug)]
pub struct DeviceLimits {
    /// The number of buffers that a dispatch can bind in addition to its parameters and the status buffer.
    pub bindings: usize,
    /// The maximum number of workgroups along one axis.
    pub groups: usize,
    /// The size in bytes of the largest buffer that a kernel can bind, a multiple of 16.
    pub buffer_bytes: usize,
    /// The alignment of the parameters of a dispatch in bytes.
    pub parameter_alignment: usize,
}

/// The features that a device offers in addition to the ones that all devices have.
#[derive(Clone, Copy, Debug)]
pub struct OptionalFeatures {
    /// Whether kernels can exchange values within a subgroup.
    pub subgroups: bool,
    /// Whether kernels can compute with `f16`.
    pub f16: bool,
    /// Whether the language has the functions `h_multiply_units_f16` and `h_multiply_units_bf16`. Subgroups then have
    /// 32 invocations.
    pub matrix_units: bool,
    /// Whether [`ComputeApi::library_product`] computes products.
    pub library_products: bool,
    /// Whether a workgroup has 48 KiB of shared memory. Otherwise it has at least 16 KiB.
    pub large_shared_memory: bool,
}

/// A batch of products C = A·B of matrices A `[m, k]`, B `[k, n]` and C `[m, n]`, whose rows follow each other without
/// gaps. C is `f32` for factors of half precision, otherwise it has the dtype of the factors.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LibraryProduct {
    /// The dtype of the factors: `f16`, `bf16`, `f32` or `f64`.
    pub factors: DType,
    /// m, n and k.
    pub sizes: [usize; 3],
    /// The number of products.
    pub batch: usize,
    /// Whether all products have the same A, or B. Otherwise the matrices of a batch follow each other without gaps.
    pub is_shared: [bool; 2],
    /// The offsets of A and B in their buffers in bytes, multiples of [`LibraryProduct::ALIGNMENT`].
    pub offsets: [usize; 2],
}

impl LibraryProduct {
    /// The alignment of matrices in bytes.
    pub const ALIGNMENT: usize = 256;
}

/// A dispatch of a compiled kernel `K` whose buffers are known.
pub struct RecordedDispatch<K> {
    /// The kernel.
    pub kernel: Arc<K>,
    /// The offset of the parameters in bytes.
    pub offset: u32,
    /// The range of the buffers in [`DispatchBatch::memory`], one for each binding of the kernel.
    pub memory: Range<usize>,
    /// The numbers of workgroups along the first and the second axis.
    pub groups: [u32; 2],
}

/// Dispatches of compiled kernels `K` with buffers `M` that are submitted together.
pub struct DispatchBatch<'a, K, M> {
    /// The parameters of all dispatches, at most [`PARAMETER_BYTES`] bytes.
    pub parameters: &'a [u8],
    /// The buffers of all dispatches.
    pub memory: &'a [M],
    /// The dispatches.
    pub dispatches: &'a [RecordedDispatch<K>],
    /// The marks, in the order of their dispatches. Only a device that
    /// [checks the use of memory](ComputeApi::checks_memory_use) has some.
    pub marks: &'a [MemoryMark<M>],
}

/// The failure of [`ComputeApi::submit`].
#[derive(Debug)]
pub struct SubmissionFailure {
    /// The number of dispatches that were submitted before the failure, if the others can be submitted later; `None` if
    /// it is not known which dispatches will run. In 32 bits, so that a `Result` with this error stays small.
    pub submitted: Option<u32>,
    /// The error.
    pub error: Error,
}

impl From<Error> for SubmissionFailure {
    fn from(error: Error) -> SubmissionFailure {
        SubmissionFailure { submitted: None, error }
    }
}

/// A change of the bytes of a buffer `M` that kernels may use.
pub struct MemoryMark<M> {
    /// The index of the first dispatch of the batch after the change.
    pub before: usize,
    /// The buffer.
    pub memory: M,
    /// The bytes from the start of the buffer that are in use, or 0 if the buffer is unused.
    pub bytes: usize,
}

/// A buffer of a plan.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PlanBuffer {
    /// The buffer of a slot.
    Slot(usize),
    /// A scratch buffer, which all kernels share.
    Scratch(usize),
}

/// A dispatch of a plan.
pub struct PlannedDispatch<K> {
    /// The kernel.
    pub kernel: Arc<K>,
    /// The offset of the parameters in bytes.
    pub offset: u32,
    /// The buffers, one for each binding of the kernel.
    pub buffers: Vec<PlanBuffer>,
    /// The numbers of workgroups along the first and the second axis.
    pub groups: [u32; 2],
}

/// The dispatches of a plan in their order, with compiled kernels `K` and buffers `M`.
pub struct PlannedDispatches<K, M> {
    /// The dispatches.
    pub dispatches: Vec<PlannedDispatch<K>>,
    /// The number of dispatches up to the last check.
    pub checked: usize,
    /// The parameters of all dispatches.
    pub parameters: Vec<u8>,
    /// The largest size of the parameters of a dispatch in bytes.
    pub window: usize,
    /// The scratch buffers. The caller keeps them until the prepared dispatches are dropped.
    pub scratch: Vec<M>,
}
