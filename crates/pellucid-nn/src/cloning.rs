//! Clones of models with other tensors: an independent copy, or a model that uses given tensors.
//!
//! A clone of a layer holds handles of the layer's parameters. While a [`CloneScope`] is active, clones that this
//! thread makes of parameters and buffers hold other tensors instead. A model that is `Clone` is thus copied by its own
//! `clone()`, regardless of its structure.

use pellucid_tensor::{Error, HostFlag, Layout, Result, StorageId, Tensor, TensorId, is_capturing, no_grad, ops};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;

/// The tensors of the clones.
enum CloneTensors {
    /// The copies. Each is created when its original is first cloned.
    Copies(TensorCopies),
    /// The replacement of each original. Tensors without a replacement are shared.
    Given(HashMap<TensorId, Tensor>),
}

#[derive(Default)]
struct TensorCopies {
    by_tensor: HashMap<TensorId, Tensor>,
    /// The layout of the first original with this storage, and its copy. Copies of originals that share a storage also
    /// share one storage.
    by_storage: HashMap<StorageId, (Layout, Tensor)>,
    /// The flags of the originals, each with its copy.
    flags: Vec<[Arc<HostFlag>; 2]>,
    /// The first error, since `clone()` cannot return it.
    error: Option<Error>,
}

thread_local! {
    /// The active scope of the thread.
    static CURRENT: RefCell<Option<CloneTensors>> = const { RefCell::new(None) };
    /// Whether there is an active scope.
    static IS_ACTIVE: Cell<bool> = const { Cell::new(false) };
}

/// A guard: until it is dropped, clones of parameters and buffers that this thread makes hold other tensors.
pub(crate) struct CloneScope {
    before: Option<CloneTensors>,
}

impl CloneScope {
    /// Starts a scope in which clones are independent copies.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] inside a captured step, where values do not exist.
    pub(crate) fn copies() -> Result<CloneScope> {
        if is_capturing() {
            let reason = "a captured step cannot copy a model; copy it before the step";
            return Err(Error::invalid("deep_copy", reason));
        }
        Ok(CloneScope::enter(CloneTensors::Copies(TensorCopies::default())))
    }

    /// Starts a scope in which clones hold the given tensors, and share training modes and path choices with their
    /// originals.
    pub(crate) fn given(tensors: HashMap<TensorId, Tensor>) -> CloneScope {
        CloneScope::enter(CloneTensors::Given(tensors))
    }

    fn enter(tensors: CloneTensors) -> CloneScope {
        IS_ACTIVE.set(true);
        CloneScope { before: CURRENT.replace(Some(tensors)) }
    }

    /// Ends the scope, and returns the first error of a clone in it.
    pub(crate) fn finish(self) -> Result<()> {
        let error = CURRENT.with_borrow_mut(|current| match current {
            Some(CloneTensors::Copies(copies)) => copies.error.take(),
            _ => None,
        });
        error.map_or(Ok(()), Err)
    }
}

impl Drop for CloneScope {
    fn drop(&mut self) {
        IS_ACTIVE.set(self.before.is_some());
        CURRENT.replace(self.before.take());
    }
}

/// Returns the tensor of a clone of a parameter or a buffer.
#[inline]
pub(crate) fn clone_tensor(original: &Tensor) -> Tensor {
    if IS_ACTIVE.get() { clone_in_scope(original) } else { original.clone() }
}

/// Returns the flag of a clone of a training mode or a path choice.
pub(crate) fn clone_flag(original: &HostFlag) -> HostFlag {
    let is_shared = CURRENT.with_borrow(|current| matches!(current, Some(CloneTensors::Given(_))));
    if is_shared { original.handle() } else { original.clone() }
}

/// Returns the flag of a clone that shares parameters with the original: the same flag, except in an independent copy.
pub(crate) fn clone_state_flag(original: &Arc<HostFlag>) -> Arc<HostFlag> {
    CURRENT.with_borrow_mut(|current| match current {
        Some(CloneTensors::Copies(copies)) => {
            let known = copies.flags.iter().find(|[known, _]| Arc::ptr_eq(known, original));
            if let Some([_, copy]) = known {
                return copy.clone();
            }
            let copy = Arc::new(HostFlag::clone(original));
            copies.flags.push([original.clone(), copy.clone()]);
            copy
        }
        _ => original.clone(),
    })
}

#[cold]
fn clone_in_scope(original: &Tensor) -> Tensor {
    CURRENT.with_borrow_mut(|current| match current {
        Some(CloneTensors::Copies(copies)) => copies.copy_of(original).unwrap_or_else(|error| {
            copies.error.get_or_insert(error);
            original.clone()
        }),
        Some(CloneTensors::Given(given)) => given.get(&original.id()).unwrap_or(original).clone(),
        None => original.clone(),
    })
}

impl TensorCopies {
    fn copy_of(&mut self, original: &Tensor) -> Result<Tensor> {
        if let Some(copy) = self.by_tensor.get(&original.id()) {
            return Ok(copy.clone());
        }
        let layout = original.array().layout();
        let copy = match self.by_storage.get(&original.storage_id()) {
            None => {
                let _off = no_grad();
                let copy = ops::copy(&original.detach())?.pinned();
                self.by_storage.insert(original.storage_id(), (layout.clone(), copy.clone()));
                copy
            }
            Some((known, copy)) if known == layout => copy.detach(),
            Some(_) => {
                let shape = original.shape();
                let reason = format!(
                    "a parameter or buffer of shape {shape} is a view of another parameter or buffer with a different layout; create \
                     one of them from a copy()"
                );
                return Err(Error::invalid("deep_copy", reason));
            }
        };
        copy.set_requires_grad(original.requires_grad())?;
        self.by_tensor.insert(original.id(), copy.clone());
        Ok(copy)
    }
}
