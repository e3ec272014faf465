//! What a device must be able to do, as traits; no implementation lives here.
//!
//! A backend runs kernel families over [`View`]s of [`Storage`]s. Storages are made without memory
//! and get it at the first write, so that recording a list of kernels allocates nothing.

use crate::borrow::{BorrowWord, Borrowed, Native, Version};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::formula::Program;
use crate::kernel::{Kernel, Map, Params};
use crate::plan::Plan;
use crate::shape::{Layout, Shape, Strides};
use std::any::TypeId;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Memory of a device, given when it is first needed and returned when it is dropped.
pub trait Buffer: Typed + Send + Sync {
    /// The number of bytes, memory present or not.
    fn bytes(&self) -> usize;
    /// True once there is memory behind it.
    fn is_allocated(&self) -> bool;
}

/// What knows its own type. Every type does, and none can say something else.
///
/// Every operand of every kernel is asked: [`Any`](std::any::Any) would answer with an id in memory, which is read
/// back before it is written.
pub trait Typed: 'static {
    /// True if this is the type of `id`.
    fn is_of(&self, id: &TypeId) -> bool;
}

impl<T: 'static> Typed for T {
    #[inline]
    fn is_of(&self, id: &TypeId) -> bool {
        *id == TypeId::of::<T>()
    }
}

/// A buffer with the bookkeeping that every view of it shares.
///
/// The **borrow word** counts readers, or marks one writer, while a kernel runs; the **version**
/// counts the writes, so that autograd notices a saved value that has changed; **pending** names
/// the list of recorded kernels that will fill it; **kept** counts the handles of recorded steps, which
/// hold it for themselves.
pub struct Storage<B: ?Sized = dyn Buffer> {
    version: Version,
    pending: AtomicU64,
    borrows: BorrowWord,
    kept: AtomicU32,
    buffer: B,
}

impl<B: Buffer> Storage<B> {
    /// A storage over `buffer`, at version 0.
    #[inline]
    pub fn new(buffer: B) -> Storage<B> {
        let (version, pending) = (Version::default(), AtomicU64::new(READY));
        Storage { version, pending, borrows: BorrowWord::default(), kept: AtomicU32::new(0), buffer }
    }
}

/// The value of [`Storage::pending`] when the contents are there.
pub const READY: u64 = 0;
/// The value of [`Storage::pending`] when the contents will never be there.
pub const POISONED: u64 = u64::MAX;

impl<B: Buffer + ?Sized> Storage<B> {
    /// The buffer.
    #[inline]
    pub fn buffer(&self) -> &B {
        &self.buffer
    }

    /// The number of writes so far.
    #[inline]
    pub fn version(&self) -> u64 {
        self.version.get()
    }

    /// Counts a write that was recorded. A write that runs is counted by the guard of its borrow words.
    #[inline]
    pub fn bump(&self) {
        self.version.bump();
    }

    /// [`READY`], [`POISONED`], or the number of the list whose kernels will fill the buffer.
    #[inline]
    pub fn pending(&self) -> u64 {
        self.pending.load(Ordering::Acquire)
    }

    /// Sets [`Storage::pending`].
    #[inline]
    pub fn set_pending(&self, list: u64) {
        self.pending.store(list, Ordering::Release);
    }

    /// Says that so many handles of this storage are a recorded step's own.
    pub fn keep(&self, handles: u32) {
        self.kept.fetch_add(handles, Ordering::Relaxed);
    }

    /// Ends a [`Storage::keep`].
    pub fn end_keep(&self, handles: u32) {
        self.kept.fetch_sub(handles, Ordering::Relaxed);
    }

    /// The number of handles that are recorded steps' own.
    #[inline]
    pub fn kept(&self) -> u32 {
        self.kept.load(Ordering::Relaxed)
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
    Dense<'_>: self => self.storage;
}

/// An array as a kernel sees it. Shape and strides travel as arguments, never as device buffers.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// Where the elements lie.
    pub storage: &'a Storage,
    /// How they lie there; offset and strides in elements.
    pub layout: &'a Layout,
    /// What they are.
    pub dtype: DType,
}

/// An array without gaps, or a single value that stands for one.
#[derive(Clone, Copy, Debug)]
pub struct Dense<'a> {
    /// Where the elements lie.
    pub storage: &'a Storage,
    /// The first of them, in elements from the storage's start.
    pub offset: usize,
    /// There is only one.
    pub once: bool,
}

/// The operands of a map of `size` elements, all of them dense.
#[derive(Clone, Copy, Debug)]
pub struct DenseMap<'a> {
    /// The elements of every operand that is not a single value.
    pub size: usize,
    /// What is read.
    pub inputs: &'a [Dense<'a>],
    /// What is written: of full size, and possibly one of the inputs.
    pub outputs: &'a [Dense<'a>],
}

impl<'a> DenseMap<'a> {
    /// Inputs, then outputs.
    pub fn operands(&self) -> impl Iterator<Item = &'a Dense<'a>> {
        self.inputs.iter().chain(self.outputs)
    }
}

/// How much memory a device's tensors use, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// Held by live buffers (rounded up to their size classes).
    pub in_use: usize,
    /// The most that `in_use` has been.
    pub peak: usize,
    /// Kept for reuse.
    pub cached: usize,
    /// Kept by threads for what a kernel needs while it runs (tiles, panels); neither in use nor cached.
    pub scratch: usize,
    /// Buffers given out so far.
    pub allocations: u64,
    /// How many of them had to be asked of the system.
    pub system_allocations: u64,
}

/// A device that runs kernels.
///
/// The caller (the engine) has checked shapes and dtypes against the family's rule, holds the borrow
/// words of every storage, and never passes an output that overlaps an input, except one that is the
/// very same view (same storage, same layout).
pub trait Backend: Send + Sync + 'static {
    /// `cpu`, `wgpu:0`, `cuda:1`, ...
    fn name(&self) -> &str;
    /// A storage of `bytes` bytes, without memory until it is first written.
    fn storage(&self, bytes: usize) -> Result<Arc<Storage>>;
    /// Runs one kernel, giving memory to outputs that have none.
    fn run(&self, kernel: &Kernel, inputs: &[View<'_>], outputs: &[View<'_>]) -> Result<()>;
    /// Runs a [`Map`] of one output whose operands are all dense, over `size` elements: what `run`
    /// does for it, where a shape would say nothing. The output may be one of the inputs.
    fn map_dense(
        &self,
        program: &Arc<Program>,
        params: &Params,
        size: usize,
        inputs: &[Dense<'_>],
        output: Dense<'_>,
    ) -> Result<()> {
        self.maps_dense(program, params, &[DenseMap { size, inputs, outputs: &[output] }])
    }
    /// Runs one program over several sets of dense operands: the step of an optimizer over all its parameters. No
    /// set writes what another one touches, so that their order means nothing.
    fn maps_dense(&self, program: &Arc<Program>, params: &Params, maps: &[DenseMap<'_>]) -> Result<()> {
        let absurd = |m: &DenseMap<'_>| m.operands().any(|d| d.offset.saturating_add(m.size) > isize::MAX as usize / 8);
        if maps.iter().any(absurd) {
            return Err(Error::invalid(program.name, "an operand reaches beyond any memory"));
        }
        let kernel = Kernel::Map(Map { program: program.clone(), params: params.clone() });
        for map in maps {
            let shape = |once: bool| Shape::from([if once { 1 } else { map.size }]);
            let layout = |d: &Dense<'_>| Layout::strided(shape(d.once), Strides::from([1]), d.offset);
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
    /// [`Backend::map_dense`] into a new storage, which holds the output and nothing else.
    fn map_new(
        &self,
        program: &Arc<Program>,
        params: &Params,
        size: usize,
        inputs: &[Dense<'_>],
    ) -> Result<Arc<Storage>> {
        let storage = self.storage(program.output_bytes(size)?)?;
        self.map_dense(program, params, size, inputs, Dense { storage: &storage, offset: 0, once: false })?;
        Ok(storage)
    }
    /// Copies host bytes to the start of a storage, giving it memory.
    fn upload(&self, bytes: &[u8], to: &Storage) -> Result<()>;
    /// Copies `into.len()` bytes of a storage, from byte `offset` on, to the host.
    fn download(&self, from: &Storage, offset: usize, into: &mut [u8]) -> Result<()>;
    /// Waits until everything submitted so far is done.
    fn synchronize(&self) -> Result<()>;
    /// Makes a plan ready to be launched many times.
    fn prepare(&self, plan: &Plan) -> Result<Box<dyn Prepared>>;
    /// Memory in use.
    fn memory_stats(&self) -> MemoryStats;
    /// Limits the memory in use; `usize::MAX` for no limit.
    fn set_memory_cap(&self, bytes: usize);
    /// Returns cached memory to the system.
    fn trim(&self);
}

/// A plan made ready by its backend.
pub trait Prepared: Send + Sync {
    /// Runs every kernel of the plan, in order, over the storages of its slots
    /// (`slots[i]` for slot `i`; their borrow words are held by the caller).
    fn launch(&self, slots: &[Arc<Storage>]) -> Result<()>;
}
