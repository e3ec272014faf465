//! Errors of calls, which name the path of the layer that failed.

use crate::module::{DynModule, Module, as_dyn};
use crate::visit::{ModuleId, ModulePart};
use pellucid_tensor::Error;
use std::cell::RefCell;

/// The innermost module whose call failed.
struct FailedCall {
    id: ModuleId,
    /// The original error.
    source: Error,
    /// The error as the enclosing modules have returned it so far, with the path within the outermost of them.
    returned: Error,
}

thread_local! {
    /// The last failure of this thread, while its error passes through the enclosing calls.
    static FAILURE: RefCell<Option<FailedCall>> = const { RefCell::new(None) };
}

/// Returns the error of a module's computation. If a part of the module failed, the error names its path in the module.
///
/// A module does not know whether it is the outermost one, so each module replaces the path that an inner module has
/// set by its own, longer path. The function is called only after a failure.
#[inline]
pub(crate) fn with_failed_path<M: Module + ?Sized>(module: &M, error: Error) -> Error {
    add_failed_path(ModuleId::new(module), as_dyn(&module), error)
}

/// Implements [`with_failed_path`] for the type-erased module with this id.
#[cold]
#[inline(never)]
pub(super) fn add_failed_path(id: Option<ModuleId>, module: &dyn DynModule, error: Error) -> Error {
    // An error that the module caught or created itself is unrelated to an earlier failure of a part.
    let Some(mut failure) = FAILURE.take().filter(|failure| failure.returned == error) else {
        FAILURE.set(id.map(|id| FailedCall { id, source: error.clone(), returned: error.clone() }));
        return error;
    };
    let mut found = None;
    module.walk(&mut |name, part| {
        if let ModulePart::Module(info) = part
            && info.id() == Some(failure.id)
            && !name.is_empty()
        {
            found.get_or_insert_with(|| info.label(name));
        }
    });
    match found {
        Some(layer) => failure.returned = Error::Layer { layer, source: Box::new(failure.source.clone()) },
        // No named part failed, so this module did.
        None if failure.returned == failure.source => failure.id = id.unwrap_or(failure.id),
        None => {}
    }
    let error = failure.returned.clone();
    FAILURE.set(Some(failure));
    error
}
