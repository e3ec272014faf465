//! Anomaly mode: names the first kernel that produces NaN, and the forward call to which it belongs.

use crate::engine::{self, ExecutionMode, NanCheckGuard};
use crate::tensor::{GraphNode, address};
use std::backtrace::Backtrace;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::marker::PhantomData;
use std::panic::Location;
use std::path::Path;
use std::sync::Arc;

/// Guard that ends the thread's anomaly mode when it is dropped.
#[must_use = "the mode lasts as long as the guard: let _guard = detect_anomaly();"]
#[derive(Debug)]
pub struct AnomalyMode {
    watch: Option<NanCheckGuard>,
    /// The mode is thread-local, so the guard must not be sent to another thread.
    _not_send: PhantomData<*const ()>,
}

thread_local! {
    /// The source location of the outermost method call in progress.
    static CALL: Cell<Option<&'static Location<'static>>> = const { Cell::new(None) };
    /// The source locations of the forward calls that created nodes, by the address of the node.
    static LINES: RefCell<HashMap<usize, String>> = RefCell::default();
}

/// Checks the results of this thread's kernels for NaN until the guard is dropped. If a result contains NaN and no
/// input of the kernel does, the operation fails with [`Error::Anomaly`](crate::Error::Anomaly), which names the
/// kernel. In a backward pass the error also names the operation whose gradient is computed. If the mode was on in the
/// forward pass, the error also contains the file and line of that operation's forward call. The checks are slow. On a
/// device that otherwise defers its kernels, each kernel runs immediately. Kernels without inputs, kernels inside
/// [`lazy`](crate::lazy), and launches of captured steps are not checked: run the closure of the step eagerly instead.
///
/// ```
/// use pellucid::{detect_anomaly, BackwardOptions, Error, Tensor};
/// let _guard = detect_anomaly();
/// let x = Tensor::from([0.0f64, 1.0]).requires_grad_(true);
/// let y = (x.sqrt() * 0.0).sum(..);
/// let error = y.try_backward_with(BackwardOptions::default()).unwrap_err();
/// assert!(matches!(&error, Error::Anomaly { node: Some("sqrt"), location: Some(_), .. }));
/// ```
pub fn detect_anomaly() -> AnomalyMode {
    AnomalyMode { watch: engine::enable_nan_check(), _not_send: PhantomData }
}

impl Drop for AnomalyMode {
    fn drop(&mut self) {
        self.watch = None;
        if engine::mode() != ExecutionMode::NanChecked {
            LINES.with_borrow_mut(HashMap::clear);
        }
    }
}

/// Guard of the outermost method call in progress, in anomaly mode. The call ends when the guard is dropped.
#[derive(Debug)]
pub struct CallLocationGuard(());

impl Drop for CallLocationGuard {
    fn drop(&mut self) {
        CALL.set(None);
    }
}

/// Records the caller's source location in anomaly mode, for nodes that are created while the guard exists. If calls
/// are nested, only the outermost call is recorded.
#[inline]
#[track_caller]
pub fn note_call_location() -> Option<CallLocationGuard> {
    if engine::mode() == ExecutionMode::NanChecked { set_call_location(Location::caller()) } else { None }
}

#[cold]
fn set_call_location(location: &'static Location<'static>) -> Option<CallLocationGuard> {
    if CALL.get().is_some() {
        return None;
    }
    CALL.set(Some(location));
    Some(CallLocationGuard(()))
}

/// Records the source location of the forward call that created a node, in anomaly mode.
#[inline]
pub(crate) fn note_forward_location(node: impl FnOnce() -> Option<Arc<GraphNode>>) {
    if engine::mode() == ExecutionMode::NanChecked
        && let Some(node) = node()
    {
        remember_line(&node);
    }
}

#[cold]
fn remember_line(node: &Arc<GraphNode>) {
    let line = CALL.get().map(|at| at.to_string()).or_else(caller_frame);
    LINES.with_borrow_mut(|lines| match line {
        Some(line) => drop(lines.insert(address(node).addr(), line)),
        // The address may have belonged to an earlier node.
        None => drop(lines.remove(&address(node).addr())),
    });
}

/// Returns the source location of the forward call that created a node, if it was recorded.
pub(crate) fn forward_location(node: &Arc<GraphNode>) -> Option<String> {
    LINES.with_borrow(|lines| lines.get(&address(node).addr()).cloned())
}

/// Returns the file and line of the innermost stack frame outside the library, for calls to functions of `ops`, which
/// do not record the caller. The program must be compiled with line tables.
fn caller_frame() -> Option<String> {
    let trace = Backtrace::force_capture().to_string();
    let files = trace.lines().filter_map(|line| line.trim().strip_prefix("at "));
    files.into_iter().find(|file| !is_library_file(file)).map(str::to_string)
}

/// Returns true for a source file of this workspace's libraries, of their dependencies or of the standard library.
fn is_library_file(file: &str) -> bool {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    // Backtraces print paths below the working directory relative to it.
    let absolute = std::path::absolute(file).unwrap_or_else(|_| file.into());
    let relative = crates.and_then(|crates| absolute.strip_prefix(crates).ok());
    // A frame of code without line tables names a C source file or no file.
    !file.contains(".rs:")
        || file.contains("/rustc/")
        || file.contains("/registry/src/")
        || relative
            .is_some_and(|relative| relative.components().nth(1).is_some_and(|folder| folder.as_os_str() == "src"))
}
