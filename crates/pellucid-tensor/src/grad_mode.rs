//! Grad mode: whether operations on this thread are recorded.

use std::cell::Cell;
use std::marker::PhantomData;

thread_local! {
    static ENABLED: Cell<bool> = const { Cell::new(true) };
}

/// Guard that restores the thread's previous grad mode when it is dropped.
#[must_use = "the mode lasts as long as the guard: let _guard = no_grad();"]
pub struct GradMode {
    before: bool,
    /// The mode belongs to this thread, so the guard must not leave it.
    _not_send: PhantomData<*const ()>,
}

impl Drop for GradMode {
    fn drop(&mut self) {
        ENABLED.set(self.before);
    }
}

/// Returns true if operations on tracked tensors are recorded (the default).
#[inline]
pub fn is_grad_enabled() -> bool {
    ENABLED.get()
}

/// Sets the thread's grad mode until the guard is dropped.
#[inline]
pub fn set_grad_enabled(enabled: bool) -> GradMode {
    GradMode { before: ENABLED.replace(enabled), _not_send: PhantomData }
}

/// Disables recording until the guard is dropped: results are leaves that require no gradient.
///
/// ```
/// use pellucid_tensor::{no_grad, Tensor};
/// let x = Tensor::from([1.0f32]).requires_grad_(true);
/// let _guard = no_grad();
/// assert!(!(&x * &x).requires_grad());
/// ```
#[doc(alias = "inference_mode")]
pub fn no_grad() -> GradMode {
    set_grad_enabled(false)
}

/// Enables recording until the guard is dropped, inside a [`no_grad`] too.
pub fn enable_grad() -> GradMode {
    set_grad_enabled(true)
}
