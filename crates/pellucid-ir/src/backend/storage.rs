//! [`Storage`], the memory of arrays, and the values that prove that its borrow word is held.

use crate::borrow::{BorrowGuard, BorrowWord, Borrowed, Native, StorageOperand, Version};
use std::any::{Any, TypeId};
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::{ptr, slice};

/// Memory of a device, allocated when it is first needed and freed when the buffer is dropped.
pub trait Buffer: Typed + Send + Sync {
    /// Returns the size in bytes, whether allocated or not.
    fn bytes(&self) -> usize;
    /// Returns true once memory is allocated.
    fn is_allocated(&self) -> bool;
    /// Releases the memory; the contents are lost. `storage` is the storage of this buffer. A backend may keep the
    /// memory until the buffer is dropped.
    fn discard(&self, storage: Writable<'_>) {
        let _ = storage;
    }
}

/// A type that can be compared with a type id. The blanket implementation covers every `'static` type, so no type can
/// override it.
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
/// captured steps own. **idle** counts the handles whose owners do not need the contents.
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

    /// Returns the borrow word and the version.
    #[inline]
    pub(super) fn words(&self) -> (&BorrowWord, &Version) {
        (&self.borrows, &self.version)
    }

    /// Returns the number of writes so far.
    #[inline]
    pub fn version(&self) -> u64 {
        self.version.get()
    }

    /// Counts a write that is recorded. A write that runs immediately is counted by the guard of its borrow words.
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
    /// buffer. A kernel outside of this list that writes the buffer must run after these kernels.
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
        // If the list is already a reader, `joined` returns `None` and the value stays unchanged.
        let _ = self.readers.fetch_update(Ordering::AcqRel, Ordering::Acquire, joined);
    }

    /// Removes all recorded lists from [`Storage::readers`]; they must have run.
    pub fn clear_readers(&self) {
        self.readers.store(NO_READERS, Ordering::Release);
    }

    /// Registers `handles` handles of this storage as owned by a captured step.
    pub fn keep(&self, handles: u32) {
        self.kept.fetch_add(handles, Ordering::Relaxed);
    }

    /// Ends the registration of `handles` handles by [`Storage::keep`].
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

    /// Ends the registration of a handle by [`Storage::add_idle`].
    pub fn remove_idle(&self) {
        self.idle.fetch_sub(1, Ordering::AcqRel);
    }

    /// Returns the number of handles that are idle.
    pub fn idle(&self) -> u32 {
        self.idle.load(Ordering::Acquire)
    }
}

impl Storage {
    /// Calls `read` while a shared borrow of the storage is held.
    pub fn with_read<R>(&self, read: impl FnOnce(Readable<'_>) -> R) -> R {
        let _guard = BorrowGuard::acquire(slice::from_ref(&self), &[]);
        read(Readable::from_held(self))
    }

    /// Calls `write` while the exclusive borrow of the storage is held.
    pub fn with_write<R>(&self, write: impl FnOnce(Writable<'_>) -> R) -> R {
        let _guard = BorrowGuard::acquire(&[], slice::from_ref(&self));
        write(Writable::from_held(self))
    }
}

/// A storage that no other thread writes while this value exists.
#[derive(Clone, Copy, Debug)]
pub struct Readable<'a> {
    storage: &'a Storage,
    _not_send: PhantomData<*const ()>,
}

/// A storage that no other thread reads or writes while this value exists.
#[derive(Clone, Copy, Debug)]
pub struct Writable<'a> {
    storage: &'a Storage,
    _not_send: PhantomData<*const ()>,
}

impl<'a> Readable<'a> {
    /// Creates a `Readable`. The caller must hold the borrow word of `storage` for `'a`.
    pub(super) fn from_held(storage: &'a Storage) -> Readable<'a> {
        Readable { storage, _not_send: PhantomData }
    }
}

impl<'a> Writable<'a> {
    /// Creates a `Writable`. The caller must hold the borrow word of `storage` for `'a` as its writer.
    pub(super) fn from_held(storage: &'a Storage) -> Writable<'a> {
        Writable { storage, _not_send: PhantomData }
    }

    /// Returns the storage for reading.
    pub fn readable(self) -> Readable<'a> {
        Readable::from_held(self.storage)
    }

    /// Releases the memory of the storage; the contents are lost.
    pub fn discard(self) {
        self.storage.buffer.discard(self);
    }

    /// Returns true if `buffer` is the buffer of the storage.
    pub fn contains(self, buffer: &dyn Buffer) -> bool {
        ptr::addr_eq(&raw const self.storage.buffer, buffer)
    }
}

/// Implements [`Deref`] for values that refer to a storage.
macro_rules! deref_storage {
    ($($held:ident),*) => {$(
        impl Deref for $held<'_> {
            type Target = Storage;
            #[inline]
            fn deref(&self) -> &Storage {
                self.storage
            }
        }
    )*};
}

deref_storage!(Readable, Writable);

impl<B: Buffer + ?Sized> fmt::Debug for Storage<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Storage({} bytes, version {})", self.buffer.bytes(), self.version())
    }
}

borrowed! {
    &Storage: self => self;
    Arc<Storage>: self => self;
}
