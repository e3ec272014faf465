//! The interface of a device: traits without implementations.
//!
//! A backend runs kernel families over [`View`]s of [`Storage`]s. A storage is created without memory and allocates it
//! at the first write, so recording a list of kernels allocates nothing.

use crate::borrow::{BorrowWord, Borrowed, Native, Version};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::formula::Program;
use crate::kernel::{Kernel, KernelOperand, Map, Params};
use crate::plan::{Plan, SlotView};
use crate::shape::{Layout, Shape, Strides};
use std::any::{Any, TypeId};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Memory of a device, allocated when it is first needed and freed when the buffer is dropped.
pub trait Buffer: Typed + Send + Sync {
    /// Returns the size in bytes, whether allocated or not.
    fn bytes(&self) -> usize;
    /// Returns true once memory is allocated.
    fn is_allocated(&self) -> bool;
    /// Releases the memory; the contents are lost. The caller holds the borrow word of the storage as its writer. A
    /// backend may keep the memory until the buffer is dropped.
    fn discard(&self) {}
}

/// A type that can be compared with a type id. The blanket implementation covers all types, so no type can override it.
///
/// Backends check the type of every operand of every kernel. [`Any`] would return the id through memory and stall on
/// store forwarding.
pub trait Typed: 'static {
    /// Returns true if `id` is the id of this type.
    fn is_type(&self, id: &TypeId) -> bool;
    /// Returns the value as [`Any`], for backends without `unsafe`.
    fn as_any(&self) -> &dyn Any;
}

impl<T: 'static> Typed for T {
    #[inline]
    fn is_type(&self, id: &TypeId) -> bool {
        *id == TypeId::of::<T>()
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A buffer with the state that all views of it share.
///
/// The **borrow word** counts readers, or marks one writer, while a kernel runs. The **version** counts writes, so that
/// autograd detects a modified saved value. **pending** identifies the list of recorded kernels that will write the
/// buffer. **readers** identifies the list of recorded kernels that will read it. **kept** counts the handles that
/// captured steps own. **idle** counts the handles that do not need the contents.
pub struct Storage<B: ?Sized = dyn Buffer> {
    version: Version,
    pending: AtomicU64,
    readers: AtomicU64,
    borrows: BorrowWord,
    kept: AtomicU32,
    idle: AtomicU32,
    buffer: B,
}

impl<B: Buffer> Storage<B> {
    /// Creates a storage over `buffer`, at version 0.
    #[inline]
    pub fn new(buffer: B) -> Storage<B> {
        let (version, pending, readers) = (Version::default(), AtomicU64::new(READY), AtomicU64::new(NO_READERS));
        let (borrows, kept, idle) = (BorrowWord::default(), AtomicU32::new(0), AtomicU32::new(0));
        Storage { version, pending, readers, borrows, kept, idle, buffer }
    }
}

/// The value of [`Storage::pending`] if the contents are valid.
pub const READY: u64 = 0;
/// The value of [`Storage::pending`] if the contents exist only inside a captured step, or no handle needs them.
pub const POISONED: u64 = u64::MAX;
/// The value of [`Storage::pending`] if the contents were not computed, because an earlier kernel failed.
pub const FAILED: u64 = u64::MAX - 1;

/// The value of [`Storage::readers`] if no recorded kernel will read the storage.
pub const NO_READERS: u64 = 0;
/// The value of [`Storage::readers`] if kernels of several lists may read the storage.
pub const MANY_READERS: u64 = u64::MAX;

impl<B: Buffer + ?Sized> Storage<B> {
    /// Returns the buffer.
    #[inline]
    pub fn buffer(&self) -> &B {
        &self.buffer
    }

    /// Returns the number of writes so far.
    #[inline]
    pub fn version(&self) -> u64 {
        self.version.get()
    }

    /// Counts a recorded write. The guard of the borrow words counts a write that runs.
    #[inline]
    pub fn bump(&self) {
        self.version.bump();
    }

    /// Returns [`READY`], [`POISONED`], [`FAILED`], or the number of the recorded list whose kernels will write the
    /// buffer.
    #[inline]
    pub fn pending(&self) -> u64 {
        self.pending.load(Ordering::Acquire)
    }

    /// Sets [`Storage::pending`].
    #[inline]
    pub fn set_pending(&self, list: u64) {
        self.pending.store(list, Ordering::Release);
    }

    /// Returns [`NO_READERS`], [`MANY_READERS`], or the number of the recorded list whose kernels may still read the
    /// buffer. A write from elsewhere must come after these kernels.
    #[inline]
    pub fn readers(&self) -> u64 {
        self.readers.load(Ordering::Acquire)
    }

    /// Adds a recorded list to [`Storage::readers`].
    #[inline]
    pub fn add_reader(&self, list: u64) {
        let joined = |readers| match readers {
            NO_READERS => Some(list),
            _ if readers == list => None,
            _ => Some(MANY_READERS),
        };
        // A list that is a reader already changes nothing.
        let _ = self.readers.fetch_update(Ordering::AcqRel, Ordering::Acquire, joined);
    }

    /// Removes all recorded lists from [`Storage::readers`], after they have run.
    pub fn clear_readers(&self) {
        self.readers.store(NO_READERS, Ordering::Release);
    }

    /// Registers `handles` handles of this storage as owned by a captured step.
    pub fn keep(&self, handles: u32) {
        self.kept.fetch_add(handles, Ordering::Relaxed);
    }

    /// Reverts a [`Storage::keep`] of `handles` handles.
    pub fn end_keep(&self, handles: u32) {
        self.kept.fetch_sub(handles, Ordering::Relaxed);
    }

    /// Returns the number of handles that captured steps own.
    #[inline]
    pub fn kept(&self) -> u32 {
        self.kept.load(Ordering::Relaxed)
    }

    /// Registers a handle of this storage as idle: its owner does not need the contents, because the tensor has moved
    /// to another device. If all handles are idle, the memory may be released.
    pub fn add_idle(&self) {
        self.idle.fetch_add(1, Ordering::AcqRel);
    }

    /// Reverts an [`Storage::add_idle`].
    pub fn remove_idle(&self) {
        self.idle.fetch_sub(1, Ordering::AcqRel);
    }

    /// Returns the number of handles that are idle.
    pub fn idle(&self) -> u32 {
        self.idle.load(Ordering::Acquire)
    }
}

impl<B: Buffer + ?Sized> fmt::Debug for Storage<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Storage({} bytes, version {})", self.buffer.bytes(), self.version())
    }
}

/// Implements [`Borrowed`] for an operand that refers to its storage.
macro_rules! borrowed {
    ($($operand:ty: $self:ident => $storage:expr;)*) => {$(
        impl Borrowed for $operand {
            type Atomics = Native;
            #[inline]
            fn borrow_word(&$self) -> &BorrowWord {
                &$storage.borrows
            }
            #[inline]
            fn version_word(&$self) -> &Version {
                &$storage.version
            }
        }
    )*};
}

borrowed! {
    &Storage: self => self;
    Arc<Storage>: self => self;
    View<'_>: self => self.storage;
    DenseView<'_>: self => self.storage;
}

/// An operand of a kernel. Shape and strides are passed as arguments, never as device buffers.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The storage of the elements.
    pub storage: &'a Storage,
    /// The layout in the storage; offset and strides in elements.
    pub layout: &'a Layout,
    /// The type of the elements.
    pub dtype: DType,
}

/// The layout and dtype of an operand, in a storage or in a slot of a plan.
#[derive(Clone, Copy, Debug)]
pub struct OperandMeta<'a> {
    /// The layout of the elements.
    pub layout: &'a Layout,
    /// The type of the elements.
    pub dtype: DType,
}

impl<'a> From<&View<'a>> for OperandMeta<'a> {
    fn from(view: &View<'a>) -> OperandMeta<'a> {
        OperandMeta { layout: view.layout, dtype: view.dtype }
    }
}

impl<'a> From<&'a SlotView> for OperandMeta<'a> {
    fn from(operand: &'a SlotView) -> OperandMeta<'a> {
        OperandMeta { layout: &operand.layout, dtype: operand.dtype }
    }
}

/// Implements [`KernelOperand`] for structs with a layout and a dtype.
macro_rules! kernel_operands {
    ($($operand:ty: $self:ident => $layout:expr;)*) => {$(
        impl KernelOperand for $operand {
            #[inline]
            fn layout(&$self) -> &Layout {
                $layout
            }
            #[inline]
            fn dtype(&$self) -> DType {
                $self.dtype
            }
        }
    )*};
}

kernel_operands! {
    View<'_>: self => self.layout;
    OperandMeta<'_>: self => self.layout;
    SlotView: self => &self.layout;
}

/// A kernel with operands that its family accepts. No output is broadcast.
#[derive(Clone, Copy, Debug)]
pub struct CheckedKernel<'a> {
    kernel: &'a Kernel,
    inputs: &'a [View<'a>],
    outputs: &'a [View<'a>],
}

impl<'a> CheckedKernel<'a> {
    /// Checks the operands of a kernel.
    ///
    /// # Errors
    /// The errors of [`Kernel::check`]; [`Error::InvalidArgument`] for an output that is a broadcast view.
    #[inline]
    pub fn new(kernel: &'a Kernel, inputs: &'a [View<'a>], outputs: &'a [View<'a>]) -> Result<CheckedKernel<'a>> {
        kernel.check(inputs, outputs)?;
        outputs.iter().try_for_each(|output| check_writable(kernel, output.layout))?;
        Ok(CheckedKernel { kernel, inputs, outputs })
    }

    /// Returns the kernel.
    #[inline]
    pub fn kernel(&self) -> &'a Kernel {
        self.kernel
    }

    /// Returns the inputs.
    #[inline]
    pub fn inputs(&self) -> &'a [View<'a>] {
        self.inputs
    }

    /// Returns the outputs.
    #[inline]
    pub fn outputs(&self) -> &'a [View<'a>] {
        self.outputs
    }
}

/// A plan whose launches all have operands that their families accept. No output is broadcast, and outputs overlap only
/// inputs that the kernel [allows](crate::kernel::ReadOrder::allows).
#[derive(Clone, Copy, Debug)]
pub struct CheckedPlan<'a>(&'a Plan);

impl<'a> CheckedPlan<'a> {
    /// Checks the launches of a plan, except the launches of its setup.
    ///
    /// # Errors
    /// The errors of [`Kernel::check`]; [`Error::InvalidArgument`] for an output that is a broadcast view, or that
    /// overlaps another operand.
    pub fn new(plan: &'a Plan) -> Result<CheckedPlan<'a>> {
        for launch in &plan.launches {
            launch.kernel.check(&launch.inputs, &launch.outputs)?;
            launch.outputs.iter().try_for_each(|output| check_writable(&launch.kernel, &output.layout))?;
            if !launch.is_sound() {
                let op = launch.kernel.name();
                let reason = format!("an output of `{op}` overlaps another operand that it must not overwrite");
                return Err(Error::invalid("prepare", reason));
            }
        }
        Ok(CheckedPlan(plan))
    }
}

impl Deref for CheckedPlan<'_> {
    type Target = Plan;

    fn deref(&self) -> &Plan {
        self.0
    }
}

/// Returns an error if several indices of an output refer to one element.
#[inline]
fn check_writable(kernel: &Kernel, layout: &Layout) -> Result<()> {
    match !layout.is_contiguous() && layout.is_broadcast() {
        true => Err(broadcast_output(kernel, layout)),
        false => Ok(()),
    }
}

#[cold]
fn broadcast_output(kernel: &Kernel, layout: &Layout) -> Error {
    let reason = format!("cannot write to a broadcast view of shape {}; copy it first", layout.shape());
    Error::invalid(kernel.name(), reason)
}

/// A contiguous array, or a single value that broadcasts.
#[derive(Clone, Copy, Debug)]
pub struct DenseView<'a> {
    /// The storage of the elements.
    pub storage: &'a Storage,
    /// The position of the first element, in elements from the start of the storage.
    pub offset: usize,
    /// Whether the array is a single value.
    pub once: bool,
}

/// The operands of a map over contiguous arrays of `size` elements.
#[derive(Clone, Copy, Debug)]
pub struct DenseMap<'a> {
    /// The number of elements of every operand that is not a single value.
    pub size: usize,
    /// The inputs.
    pub inputs: &'a [DenseView<'a>],
    /// The outputs, all of full size. An output may be one of the inputs.
    pub outputs: &'a [DenseView<'a>],
}

impl<'a> DenseMap<'a> {
    /// Iterates over the inputs, then the outputs.
    pub fn operands(&self) -> impl Iterator<Item = &'a DenseView<'a>> {
        self.inputs.iter().chain(self.outputs)
    }
}

/// Memory statistics of a device, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// Bytes of live buffers, rounded up to their size classes.
    pub in_use: usize,
    /// The maximum of `in_use` so far.
    pub peak: usize,
    /// Bytes cached for reuse.
    pub cached: usize,
    /// Bytes of per-thread scratch memory of kernels (tiles, panels); neither in use nor cached.
    pub scratch: usize,
    /// The number of buffers allocated so far.
    pub allocations: u64,
    /// The number of allocations that the cache could not serve.
    pub system_allocations: u64,
}

/// How a backend runs a kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Support {
    /// The backend has a kernel of its own.
    Native,
    /// The engine copies the operands to the CPU, runs the kernel there, and copies the results back.
    Fallback,
}

/// Whether a device computes on the host's processor or on a GPU. If no device was chosen for the operands, the device
/// rules prefer a GPU.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DeviceKind {
    /// The device shares the processor of the host.
    Cpu,
    /// The device has its own processor, which may be emulated.
    Gpu,
}

/// The devices of one kind of hardware interface, such as all adapters of one graphics API. A driver opens its devices
/// by their index.
pub trait Driver: Send + Sync + 'static {
    /// Returns the name before the colon in the names of the devices: `wgpu`.
    fn name(&self) -> &'static str;
    /// Returns the kind of its devices.
    fn kind(&self) -> DeviceKind;
    /// Returns true if [`Driver::open`] is likely to succeed. It initializes no more than this check needs.
    fn is_available(&self) -> bool;
    /// Opens the device of an index. Devices of different indices are different devices, even on one adapter.
    ///
    /// # Errors
    /// [`Error::DeviceUnavailable`] states what is missing.
    fn open(&self, index: usize) -> Result<Box<dyn Backend>>;
}

/// A device that runs kernels.
///
/// A backend receives kernels and plans whose operands the rules of the families accept ([`CheckedKernel`],
/// [`CheckedPlan`]), and checks only its memory. The caller (the engine) holds the borrow words of every storage. The
/// outputs of a kernel must not overlap each other. An output may overlap an input only if
/// [`ReadOrder::allows`](crate::kernel::ReadOrder::allows) permits their [`Layout::overlap`]: both have the same
/// elements in the same order, and the kernel reads this input elementwise.
pub trait Backend: Send + Sync + 'static {
    /// Returns the name of the device: `cpu`, `wgpu:0`, `cuda:1`, ...
    fn name(&self) -> &str;
    /// Returns the hardware or software that runs the kernels, for users: the name of a graphics card, for example.
    fn adapter(&self) -> &str {
        self.name()
    }
    /// Returns true if a GPU is computed by the processor of the host. It is then slower than the CPU backend.
    fn is_software(&self) -> bool {
        false
    }
    /// Returns counts of the work since the device was opened, by name: `dispatches`, for example.
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
    /// Checks the operands of one kernel and runs it; see [`Backend::run_checked`].
    ///
    /// # Errors
    /// The errors of [`CheckedKernel::new`] and of [`Backend::run_checked`].
    #[inline]
    fn run(&self, kernel: &Kernel, inputs: &[View<'_>], outputs: &[View<'_>]) -> Result<()> {
        self.run_checked(CheckedKernel::new(kernel, inputs, outputs)?)
    }
    /// Runs one kernel and allocates memory for outputs that have none.
    ///
    /// # Errors
    /// If a view exceeds its storage, belongs to another device, or is read and has no memory; if the kernel rejects a
    /// value; [`Error::OutOfMemory`].
    fn run_checked(&self, launch: CheckedKernel<'_>) -> Result<()>;
    /// Runs a [`Map`] with one output over contiguous operands of `size` elements. The output may be one of the inputs.
    fn map_dense(
        &self,
        program: &Arc<Program>,
        params: &Params,
        size: usize,
        inputs: &[DenseView<'_>],
        output: DenseView<'_>,
    ) -> Result<()> {
        self.maps_dense(program, params, &[DenseMap { size, inputs, outputs: &[output] }])
    }
    /// Runs one program over several sets of contiguous operands, such as an optimizer step over all parameters. No set
    /// writes an operand of another set, so the sets may run in any order.
    fn maps_dense(&self, program: &Arc<Program>, params: &Params, maps: &[DenseMap<'_>]) -> Result<()> {
        let absurd = |m: &DenseMap<'_>| m.operands().any(|d| d.offset.saturating_add(m.size) > isize::MAX as usize / 8);
        if maps.iter().any(absurd) {
            return Err(Error::invalid(program.name, "an operand ends beyond the address space"));
        }
        let kernel = Kernel::Map(Map { program: program.clone(), params: params.clone() });
        for map in maps {
            let shape = |once: bool| Shape::from([if once { 1 } else { map.size }]);
            let layout = |d: &DenseView<'_>| Layout::strided(shape(d.once), Strides::from([1]), d.offset);
            let layouts: Vec<Layout> = map.operands().map(layout).collect();
            let dtypes = program.inputs.iter().map(|i| i.storage).chain(program.outputs.iter().map(|o| o.storage));
            let operands = map.operands().zip(&layouts).zip(dtypes);
            let views: Vec<View<'_>> =
                operands.map(|((d, layout), dtype)| View { storage: d.storage, layout, dtype }).collect();
            let (inputs, outputs) = views.split_at(map.inputs.len().min(views.len()));
            self.run(&kernel, inputs, outputs)?;
        }
        Ok(())
    }
    /// Runs [`Backend::map_dense`] into a new storage that holds only the output.
    fn map_new(
        &self,
        program: &Arc<Program>,
        params: &Params,
        size: usize,
        inputs: &[DenseView<'_>],
    ) -> Result<Arc<Storage>> {
        let storage = self.storage(program.output_bytes(size)?)?;
        self.map_dense(program, params, size, inputs, DenseView { storage: &storage, offset: 0, once: false })?;
        Ok(storage)
    }
    /// Copies host bytes to the start of a storage and allocates its memory if necessary.
    fn upload(&self, bytes: &[u8], to: &Storage) -> Result<()>;
    /// Copies `into.len()` bytes of a storage, starting at byte `offset`, to the host.
    fn download(&self, from: &Storage, offset: usize, into: &mut [u8]) -> Result<()>;
    /// Returns true if the engine defers kernels of this device: it collects them and runs them as optimized plans,
    /// when a value is read or the list is long. This is right for devices whose launches cost more than small kernels.
    fn is_deferred(&self) -> bool {
        false
    }
    /// Waits until all submitted work is done.
    fn synchronize(&self) -> Result<()>;
    /// Checks a plan and compiles it; see [`Backend::prepare_checked`].
    ///
    /// # Errors
    /// The errors of [`CheckedPlan::new`] and of [`Backend::prepare_checked`].
    fn prepare(&self, plan: &Plan) -> Result<Option<Box<dyn CompiledPlan>>> {
        self.prepare_checked(CheckedPlan::new(plan)?)
    }
    /// Compiles a plan for repeated launches. `None` means that the engine runs the kernels of the plan one by one.
    ///
    /// # Errors
    /// If an operand exceeds its slot, or a kernel cannot be compiled.
    fn prepare_checked(&self, plan: CheckedPlan<'_>) -> Result<Option<Box<dyn CompiledPlan>>> {
        let _ = plan;
        Ok(None)
    }
    /// Returns the memory statistics.
    fn memory_stats(&self) -> MemoryStats;
    /// Limits the memory in use; `usize::MAX` removes the limit.
    fn set_memory_cap(&self, bytes: usize);
    /// Returns an error if `bytes` more would exceed the limit. Lists on the host are checked with the limit of the
    /// CPU.
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

/// A plan that its backend has compiled.
pub trait CompiledPlan: Send + Sync {
    /// Runs every kernel of the plan in order. `slots[i]` is the storage of slot `i`; the caller holds the borrow
    /// words.
    ///
    /// # Errors
    /// [`LaunchFailure`] names the launch that failed, if it is known: those before it have run, the others have not.
    /// A device that runs asynchronously waits for the launches that reject values, such as an index out of bounds.
    fn launch(&self, slots: &[Arc<Storage>]) -> Result<(), LaunchFailure>;
}

/// The failure of a launch of a [`CompiledPlan`].
#[derive(Clone, Debug, PartialEq)]
pub struct LaunchFailure {
    /// The index of the launch in the plan, in 32 bits so that results stay small.
    launch: Option<u32>,
    /// The error of the launch.
    pub error: Error,
}

// `From` between this type and `Error` would make the error type of `?` ambiguous in closures of users.
impl LaunchFailure {
    /// Returns the failure of the launch with this index in the plan.
    pub fn new(launch: usize, error: Error) -> LaunchFailure {
        LaunchFailure { launch: u32::try_from(launch).ok(), error }
    }
    /// Returns the failure of a plan before its first launch.
    pub fn before_all(error: Error) -> LaunchFailure {
        LaunchFailure::new(0, error)
    }
    /// Returns the failure of an unknown launch: any of the launches may have run.
    pub fn unknown(error: Error) -> LaunchFailure {
        LaunchFailure { launch: None, error }
    }
    /// Returns the index of the launch in the plan: 0 if no launch has run, `None` if it is unknown.
    pub fn launch(&self) -> Option<usize> {
        self.launch.map(|launch| launch as usize)
    }
}
