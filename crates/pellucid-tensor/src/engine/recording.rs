//! Recorded kernels: the content of a deferred list, and of a captured step.

use super::address_hasher::AddressHasher;
use super::call_scope::{call_number, called_operation};
use super::host_dependencies::HostDependencies;
use crate::array::Array;
use pellucid_ir::backend::{READY, Storage};
use pellucid_ir::kernel::Kernel;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

/// A kernel that has not run yet. It owns handles to its operands, so they outlive the caller's handles.
pub(crate) struct RecordedKernel {
    pub(crate) kernel: Kernel,
    pub(crate) inputs: Vec<Array>,
    pub(crate) outputs: Vec<Array>,
    /// For each output, whether the call of the operation creates its storage. Such a result has values only after the
    /// last kernel of the call that writes it.
    pub(crate) results: SmallVec<[bool; 4]>,
    /// The operation that was called; `None` outside of operations.
    pub(crate) operation: Option<&'static str>,
    /// Whether the result is a constant of a captured step that runs on another device.
    pub(crate) is_host_constant: bool,
}

/// A storage that recorded kernels write, and its computed value; see `host_constants`.
pub(super) struct HostConstant {
    pub(super) recorded: Array,
    pub(super) value: Array,
    /// The number of kernels that had written the storage when the value was computed. A later write makes the value
    /// outdated.
    pub(super) writers: usize,
}

/// Kernels in the order of submission, and the host values that a captured step depends on.
pub(crate) struct Recording {
    /// The value of [`Storage::pending`](pellucid_ir::backend::Storage::pending) for storages that the kernels write.
    pub(crate) id: u64,
    pub(crate) kernels: Vec<RecordedKernel>,
    /// Arrays that a captured step creates from host values.
    pub(crate) constants: Vec<Array>,
    pub(crate) dependencies: HostDependencies,
    /// The storages that the kernels of a captured step write, by address, with the version after the last write.
    written: HashMap<usize, u64, BuildHasherDefault<AddressHasher>>,
    /// The number of the call that has submitted the last kernel, and the addresses of the storages that this call
    /// creates.
    call: u64,
    created: Vec<usize>,
    /// The number of uploaded bytes since the kernels last ran.
    pub(super) uploaded: usize,
    /// Computed values of storages that the kernels of a captured step write.
    pub(super) host_constants: Vec<HostConstant>,
}

impl Recording {
    pub(super) fn new(id: u64) -> Recording {
        Recording {
            id,
            kernels: Vec::new(),
            constants: Vec::new(),
            dependencies: HostDependencies::default(),
            written: HashMap::default(),
            call: 0,
            created: Vec::new(),
            uploaded: 0,
            host_constants: Vec::new(),
        }
    }

    pub(super) fn note(&mut self, flag: &Arc<AtomicUsize>, value: Option<usize>) {
        self.dependencies.note_flag(flag, value);
    }

    /// Appends a kernel. The caller marks the outputs as pending.
    pub(crate) fn push(&mut self, kernel: Kernel, inputs: &[&Array], outputs: &[&Array]) {
        let call = call_number();
        if self.call != call {
            self.call = call;
            self.created.clear();
        }
        let address = |storage: &Arc<Storage>| Arc::as_ptr(storage).addr();
        let is_unwritten = |storage: &&Arc<Storage>| !storage.buffer().is_allocated() && storage.pending() == READY;
        self.created.extend(outputs.iter().map(|out| out.storage()).filter(is_unwritten).map(address));
        let results = outputs.iter().map(|out| self.created.contains(&address(out.storage()))).collect();
        let clone_arrays = |list: &[&Array]| list.iter().map(|&a| a.clone()).collect();
        let (inputs, outputs) = (clone_arrays(inputs), clone_arrays(outputs));
        let operation = called_operation();
        let kernel = RecordedKernel { kernel, inputs, outputs, results, operation, is_host_constant: false };
        self.kernels.push(kernel);
    }

    /// Records the versions of these arrays, which the last kernel of a captured step writes.
    pub(super) fn note_writes(&mut self, outputs: &[&Array]) {
        let versions = outputs.iter().map(|out| (Arc::as_ptr(out.storage()).addr(), out.storage().version()));
        self.written.extend(versions);
    }

    /// Returns true if a kernel of this captured step has written the array since its storage had this version. Writes
    /// by other threads do not count.
    pub(super) fn has_written_since(&self, array: &Array, version: u64) -> bool {
        self.written.get(&Arc::as_ptr(array.storage()).addr()).is_some_and(|&last| last > version)
    }

    /// Returns how many kernels, counted from the start of the list, run when the list is full. If the end of the list
    /// repeats its start, as in a loop, the repetition stays in the list. So the lists of a loop have the same
    /// structure, and their plans are cached. Otherwise all kernels run.
    pub(super) fn repetition(&self) -> usize {
        let count = self.kernels.len();
        let same = |a: &RecordedKernel, b: &RecordedKernel| a.kernel == b.kernel && metas(a).eq(metas(b));
        let repeats = |at: &usize| (*at..count).all(|k| same(&self.kernels[k], &self.kernels[k - at]));
        (count / 2..count).find(repeats).unwrap_or(count)
    }
}

/// Iterates over the dtypes and layouts of the operands.
fn metas(kernel: &RecordedKernel) -> impl Iterator<Item = impl PartialEq> {
    kernel.inputs.iter().chain(&kernel.outputs).map(|array| (array.dtype(), array.layout()))
}
