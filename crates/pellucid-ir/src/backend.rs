//! The interface of a device: traits without implementations.
//!
//! A backend runs kernel families over [`View`]s of [`Storage`]s. A storage is created without memory and allocates it
//! at the first write, so recording a list of kernels allocates no memory for their outputs.
//!
//! A backend receives only operands whose borrow words the caller holds. The types of the operands prove this:
//! [`CheckedKernel`], [`BorrowedSlots`], [`Readable`], [`Writable`], and the guards of [`borrow`](crate::borrow). So
//! `unsafe` code of a backend may rely on the protocol, although the callers contain no `unsafe`. Values of these types
//! do not leave their thread, so no two threads use the same value at the same time.

use crate::borrow::{BatchBorrowGuard, BorrowGuard};
use crate::error::{Error, Result};
use crate::formula::Program;
use crate::kernel::{Kernel, Map, Params};
use crate::plan::{Plan, SlotAccess};
use crate::shape::{Layout, Shape, Strides};
use std::slice;
use std::sync::Arc;
use std::time::Duration;

/// Implements [`Borrowed`] for an operand that contains a reference to its storage.
macro_rules! borrowed {
    ($($operand:ty: $self:ident => $storage:expr;)*) => {$(
        impl StorageOperand for $operand {}

        impl Borrowed for $operand {
            type Atomics = Native;
            #[inline]
            fn borrow_word(&$self) -> &BorrowWord {
                $storage.words().0
            }
            #[inline]
            fn version_word(&$self) -> &Version {
                $storage.words().1
            }
        }
    )*};
}

mod operand;
mod storage;

pub use operand::{BorrowedSlots, CheckedKernel, CheckedPlan, DenseView, OperandMeta, View, share_elements};
pub use storage::{Buffer, FAILED, MANY_READERS, NO_READERS, POISONED, READY, Readable, Storage, Typed, Writable};

/// Memory statistics of a device, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// The bytes of live buffers, rounded up to their size classes.
    pub in_use: usize,
    /// The maximum of `in_use` so far.
    pub peak: usize,
    /// The bytes of freed memory that the cache keeps for reuse.
    pub cached: usize,
    /// The bytes of per-thread scratch memory of kernels (tiles, panels). `in_use` and `cached` do not include them.
    pub scratch: usize,
    /// The number of buffers allocated so far.
    pub allocations: u64,
    /// The number of allocations that the system served because the cache could not.
    pub system_allocations: u64,
}

/// How a backend runs a kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Support {
    /// The backend runs the kernel on its device.
    Native,
    /// The engine copies the operands to the CPU, runs the kernel there, and copies the results back.
    Fallback,
}

/// Whether a device computes on the host's processor or on a GPU. If no device was chosen for any operand of an
/// operation, the operation runs on a GPU if one stores an operand, and on the CPU if none does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DeviceKind {
    /// The device shares the processor of the host.
    Cpu,
    /// The device has its own processor, which the host may emulate.
    Gpu,
}

/// The devices of one kind of hardware interface, such as all adapters of one graphics API. A driver opens its devices
/// by their index.
pub trait Driver: Send + Sync + 'static {
    /// Returns the prefix of the device names, before the colon, for example `wgpu`.
    fn name(&self) -> &'static str;
    /// Returns the kind of its devices.
    fn kind(&self) -> DeviceKind;
    /// Returns true if [`Driver::open`] is likely to succeed. The check initializes as little as possible.
    fn is_available(&self) -> bool;
    /// Opens the device with this index. Devices of different indices are different devices, even on one adapter.
    ///
    /// # Errors
    /// [`Error::DeviceUnavailable`] states what is missing.
    fn open(&self, index: usize) -> Result<Box<dyn Backend>>;
}

/// A device that runs kernels.
///
/// A backend receives only kernels and plans whose operands satisfy the rules of their families ([`CheckedKernel`],
/// [`CheckedPlan`]) and whose borrow words are held. It checks only the storages of the operands: their device, their
/// size, and whether they have memory.
pub trait Backend: Send + Sync + 'static {
    /// Returns the name of the device: `cpu`, `wgpu:0`, `wgpu:1`, ...
    fn name(&self) -> &str;
    /// Returns a name of the hardware or software that runs the kernels, such as the name of a graphics card, for
    /// display.
    fn adapter(&self) -> &str {
        self.name()
    }
    /// Returns true if the device is a GPU that the processor of the host emulates. It is then slower than the CPU
    /// backend.
    fn is_software(&self) -> bool {
        false
    }
    /// Returns named counters of the work since the device was opened, for example `dispatches`.
    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
    /// Creates a storage of `bytes` bytes, which has no memory until it is first written.
    fn storage(&self, bytes: usize) -> Result<Arc<Storage>>;
    /// Returns how this backend runs `kernel` with these operands. [`Backend::run`] receives only kernels for which
    /// this is [`Support::Native`].
    fn support(&self, kernel: &Kernel, inputs: &[OperandMeta<'_>], outputs: &[OperandMeta<'_>]) -> Support {
        let _ = (kernel, inputs, outputs);
        Support::Native
    }
    /// Acquires the borrow words of the operands of one kernel, checks them and runs it; see [`Backend::run_checked`].
    ///
    /// # Errors
    /// The errors of [`CheckedKernel::new`] and of [`Backend::run_checked`].
    fn run(&self, kernel: &Kernel, inputs: &[View<'_>], outputs: &[View<'_>]) -> Result<()> {
        self.run_checked(CheckedKernel::new(kernel, &BorrowGuard::acquire(inputs, outputs))?)
    }
    /// Runs one kernel and allocates memory for outputs that have none.
    ///
    /// # Errors
    /// If a view exceeds its storage, belongs to another device, or is read and has no memory; if the kernel rejects a
    /// value; [`Error::OutOfMemory`].
    fn run_checked(&self, launch: CheckedKernel<'_>) -> Result<()>;
    /// Runs a [`Map`] with one output over contiguous operands of `size` elements. The output may be one of the inputs,
    /// which is then overwritten.
    fn map_dense(
        &self,
        program: &Arc<Program>,
        params: &Params,
        size: usize,
        operands: &BorrowGuard<'_, DenseView<'_>>,
    ) -> Result<()> {
        run_dense(self, program, params, size, (operands.inputs(), operands.outputs()))
    }
    /// Runs one program over several sets of contiguous operands, such as an optimizer step over all parameters.
    /// `sizes[i]` is the number of elements of set `i`. The first inputs of a set are its targets: output j overwrites
    /// target j.
    fn maps_dense(
        &self,
        program: &Arc<Program>,
        params: &Params,
        sizes: &[usize],
        operands: &BatchBorrowGuard<'_, DenseView<'_>>,
    ) -> Result<()> {
        let mut sets = operands.sets().zip(sizes);
        sets.try_for_each(|(set, &size)| run_dense(self, program, params, size, (set, &set[..operands.targets()])))
    }
    /// Runs a [`Map`] with one output, like [`Backend::map_dense`], and returns a new storage that contains only the
    /// output.
    fn map_new(
        &self,
        program: &Arc<Program>,
        params: &Params,
        size: usize,
        inputs: &BorrowGuard<'_, DenseView<'_>>,
    ) -> Result<Arc<Storage>> {
        let storage = self.storage(program.output_bytes(size)?)?;
        let output = DenseView { storage: &storage, offset: 0, once: false };
        let guard = BorrowGuard::acquire(&[], slice::from_ref(&output));
        run_dense(self, program, params, size, (inputs.inputs(), guard.outputs()))?;
        drop(guard);
        Ok(storage)
    }
    /// Copies host bytes to the start of a storage, whose borrow word it acquires; see [`Backend::upload_borrowed`].
    ///
    /// # Errors
    /// The errors of [`Backend::upload_borrowed`].
    fn upload(&self, bytes: &[u8], to: &Storage) -> Result<()> {
        to.with_write(|to| self.upload_borrowed(bytes, to, 0))
    }
    /// Copies host bytes to a storage, starting at byte `offset`, and allocates its memory if necessary.
    ///
    /// # Errors
    /// If the bytes exceed the storage, or it belongs to another device; [`Error::OutOfMemory`].
    fn upload_borrowed(&self, bytes: &[u8], to: Writable<'_>, offset: usize) -> Result<()>;
    /// Copies bytes of a storage, whose borrow word it acquires, to the host; see [`Backend::download_borrowed`].
    ///
    /// # Errors
    /// The errors of [`Backend::download_borrowed`].
    fn download(&self, from: &Storage, offset: usize, into: &mut [u8]) -> Result<()> {
        from.with_read(|from| self.download_borrowed(from, offset, into))
    }
    /// Copies `into.len()` bytes of a storage, starting at byte `offset`, to the host.
    ///
    /// # Errors
    /// If the bytes exceed the storage, it has no memory, or it belongs to another device.
    fn download_borrowed(&self, from: Readable<'_>, offset: usize, into: &mut [u8]) -> Result<()>;
    /// Returns true if the engine defers kernels of this device: it collects kernels in a list, and runs the list as an
    /// optimized plan when a value is read or the list is long. This is faster on devices where a launch takes longer
    /// than a small kernel.
    fn is_deferred(&self) -> bool {
        false
    }
    /// Waits until all submitted work is done.
    fn synchronize(&self) -> Result<()>;
    /// Runs `work` and returns the time that the device spends on it, from the end of all earlier work to the end of
    /// the work that `work` submits. Work of other threads counts too. Waits for the device. Returns `None` if the
    /// device cannot measure time, as in the default implementation, which does not wait.
    ///
    /// # Errors
    /// The error of `work`, or of the device.
    fn device_time(&self, work: &mut dyn FnMut() -> Result<()>) -> Result<Option<Duration>> {
        work()?;
        Ok(None)
    }
    /// Checks a plan and compiles it; see [`Backend::prepare_checked`].
    ///
    /// # Errors
    /// The errors of [`CheckedPlan::new`] and of [`Backend::prepare_checked`].
    fn prepare(&self, plan: &Plan) -> Result<Option<Box<dyn CompiledPlan>>> {
        self.prepare_checked(CheckedPlan::new(plan)?)
    }
    /// Compiles a plan for repeated runs. Returns `None` if the backend compiles no plans; the engine then runs the
    /// kernels of the plan one by one.
    ///
    /// # Errors
    /// If an operand exceeds its slot, or a kernel cannot be compiled.
    fn prepare_checked(&self, plan: CheckedPlan<'_>) -> Result<Option<Box<dyn CompiledPlan>>> {
        let _ = plan;
        Ok(None)
    }
    /// Returns a message for the user of the program about how the device runs work, and `None` from then on. The
    /// engine prints it after it has compiled a plan.
    fn take_notice(&self) -> Option<String> {
        None
    }
    /// Returns the memory statistics.
    fn memory_stats(&self) -> MemoryStats;
    /// Limits the memory in use; `usize::MAX` removes the limit.
    fn set_memory_cap(&self, bytes: usize);
    /// Returns an error if `bytes` more bytes in use would exceed the limit. The engine calls this function of the CPU
    /// backend before it allocates a large vector on the host. The default implementation accepts any size.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    fn check_memory(&self, bytes: usize) -> Result<()> {
        let _ = bytes;
        Ok(())
    }
    /// Returns cached memory to the system.
    fn trim(&self);
}

/// Runs a map over contiguous operands of `size` elements. An output may be one of the inputs. The caller holds the
/// borrow words of all operands.
fn run_dense<B: Backend + ?Sized>(
    backend: &B,
    program: &Arc<Program>,
    params: &Params,
    size: usize,
    (inputs, outputs): (&[DenseView<'_>], &[DenseView<'_>]),
) -> Result<()> {
    let operands = || inputs.iter().chain(outputs);
    if operands().any(|d| d.offset.saturating_add(size) > isize::MAX as usize / 8) {
        return Err(Error::invalid(program.name, "the end of an operand exceeds the address space"));
    }
    let kernel = Kernel::Map(Map { program: program.clone(), params: params.clone() });
    let shape = |once: bool| Shape::from([if once { 1 } else { size }]);
    let layout = |d: &DenseView<'_>| Layout::strided(shape(d.once), Strides::from([1]), d.offset);
    let layouts: Vec<Layout> = operands().map(layout).collect();
    let dtypes = program.inputs.iter().map(|i| i.storage).chain(program.outputs.iter().map(|o| o.storage));
    let typed = operands().zip(&layouts).zip(dtypes);
    let views: Vec<View<'_>> = typed.map(|((d, layout), dtype)| View { storage: d.storage, layout, dtype }).collect();
    let (inputs, outputs) = views.split_at(inputs.len().min(views.len()));
    backend.run_checked(CheckedKernel::from_held(&kernel, inputs, outputs)?)
}

/// A plan that a backend has compiled.
pub trait CompiledPlan: Send + Sync {
    /// Returns the access of the plan to each slot. A launch must hold the borrow word of the storage in the slot for
    /// this access.
    fn access(&self) -> &[SlotAccess];
    /// Runs every kernel of the plan in order.
    ///
    /// # Errors
    /// [`LaunchFailure`] names the launch that failed, if it is known: the launches before it have run, the later ones
    /// have not. A device that runs asynchronously waits for the launches that may reject values, such as an index out
    /// of bounds.
    fn launch(&self, slots: &BorrowedSlots<'_>) -> Result<(), LaunchFailure>;
    /// Acquires the borrow words of the storages and launches the plan. `storages[i]` is the storage of slot `i`.
    ///
    /// # Errors
    /// The errors of acquiring the words, and of [`CompiledPlan::launch`].
    fn run(&self, storages: &[Arc<Storage>]) -> Result<(), LaunchFailure> {
        self.launch(&BorrowedSlots::acquire(storages, self.access()).map_err(LaunchFailure::before_all)?)
    }
}

/// The failure of a run of a [`CompiledPlan`], with the launch that failed.
#[derive(Clone, Debug, PartialEq)]
pub struct LaunchFailure {
    /// The index of the launch in the plan, in 32 bits so that a `Result` with this error stays small.
    launch: Option<u32>,
    /// The error of the launch.
    pub error: Error,
}

// Implementations of `From` between this type and `Error` would make the error type of `?` ambiguous in the closures of
// callers.
impl LaunchFailure {
    /// Creates the failure of the launch with this index in the plan.
    pub fn new(launch: usize, error: Error) -> LaunchFailure {
        LaunchFailure { launch: u32::try_from(launch).ok(), error }
    }
    /// Creates the failure of a run that failed before its first launch.
    pub fn before_all(error: Error) -> LaunchFailure {
        LaunchFailure::new(0, error)
    }
    /// Creates the failure of an unknown launch: any of the launches may have run.
    pub fn unknown(error: Error) -> LaunchFailure {
        LaunchFailure { launch: None, error }
    }
    /// Returns the index of the launch in the plan: 0 if the plan failed before or in its first launch, `None` if the
    /// launch is unknown.
    pub fn launch(&self) -> Option<usize> {
        self.launch.map(|launch| launch as usize)
    }
}
