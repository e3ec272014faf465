//! Grad mode: whether operations on this thread are recorded.

use crate::scope_stack::{ScopeStack, SettingScope};
use std::marker::PhantomData;

thread_local! {
    static ENABLED: ScopeStack<bool> = const { ScopeStack::new(true) };
}

/// Guard that ends a grad mode scope of the thread when it is dropped. The latest live guard determines the mode.
#[must_use = "the mode lasts as long as the guard: let _guard = no_grad();"]
#[derive(Debug)]
pub struct GradMode {
    scope: SettingScope<bool>,
    /// The mode is thread-local, so the guard must not be sent to another thread.
    _not_send: PhantomData<*const ()>,
}

impl Drop for GradMode {
    fn drop(&mut self) {
        ENABLED.with(|enabled| enabled.end(&self.scope));
    }
}

/// Returns true if operations on tracked tensors are recorded (the default).
#[inline]
pub fn is_grad_enabled() -> bool {
    ENABLED.with(ScopeStack::get)
}

/// Sets the thread's grad mode until the guard is dropped.
#[inline]
pub fn set_grad_enabled(enabled: bool) -> GradMode {
    GradMode { scope: ENABLED.with(|mode| mode.begin(enabled)), _not_send: PhantomData }
}

/// Disables recording until the guard is dropped: results are leaves that require no gradient.
///
/// ```
/// use pellucid::{no_grad, Tensor};
/// let x = Tensor::from([1.0f32]).requires_grad_(true);
/// let _guard = no_grad();
/// assert!(!(&x * &x).requires_grad());
/// ```
#[doc(alias = "inference_mode")]
pub fn no_grad() -> GradMode {
    set_grad_enabled(false)
}

/// Enables recording until the guard is dropped, even inside a [`no_grad`].
pub fn enable_grad() -> GradMode {
    set_grad_enabled(true)
}
