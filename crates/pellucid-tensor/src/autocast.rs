//! `autocast`: the mixed precision of a thread (Micikevicius et al. 2018).
//!
//! Matrix products are computed in half precision. Compared with `f32`, this halves the memory traffic, and is many
//! times faster on devices with hardware support. Operations that sum many elements or amplify rounding errors are
//! computed in `f32`. Parameters keep their dtype: a product casts its operands, and the gradient is returned in the
//! parameter's dtype.

use crate::scope_stack::{ScopeStack, SettingScope};
use pellucid_ir::{DType, Error};
use std::marker::PhantomData;

thread_local! {
    static AUTOCAST_DTYPE: ScopeStack<Option<DType>> = const { ScopeStack::new(None) };
}

/// Guard that ends an autocast scope of the thread when it is dropped. The latest live guard determines the dtype.
#[must_use = "mixed precision lasts as long as the guard: let _guard = autocast(DType::BF16);"]
#[derive(Debug)]
pub struct Autocast {
    scope: SettingScope<Option<DType>>,
    /// The mode is thread-local, so the guard must not be sent to another thread.
    _not_send: PhantomData<*const ()>,
}

impl Drop for Autocast {
    fn drop(&mut self) {
        AUTOCAST_DTYPE.with(|dtype| dtype.end(&self.scope));
    }
}

/// Enables mixed precision until the guard is dropped: operations cast their operands by their
/// [`autocast_policy`](crate::autocast_policy), to `half` (`bf16` or `f16`) or to `f32`. Enable it for the forward pass
/// and the loss. A backward pass computes in the dtypes of its forward pass, even outside the guard. With `f16`,
/// scale the loss, so that small gradients are not rounded to 0.
///
/// ```
/// use pellucid::{DType, Tensor, autocast};
/// let w = Tensor::ones([4, 3], DType::F32).requires_grad_(true);
/// let x = Tensor::ones([2, 4], DType::F32);
/// let loss = {
///     let _guard = autocast(DType::BF16);
///     let h = x.matmul(&w);
///     assert_eq!(h.dtype(), DType::BF16);
///     h.sum(..)
/// };
/// assert_eq!(loss.dtype(), DType::F32);
/// loss.backward();
/// assert_eq!(w.grad().unwrap().dtype(), DType::F32);
/// ```
///
/// # Panics
/// Panics if `half` is neither `f16` nor `bf16`.
#[doc(alias = "amp")]
#[track_caller]
pub fn autocast(half: DType) -> Autocast {
    if !matches!(half, DType::F16 | DType::BF16) {
        let error = Error::dtype_argument("autocast", half, "the dtype must be a half-precision dtype, bf16 or f16");
        crate::panic::unwrap::<()>(Err(error));
    }
    set_autocast(Some(half))
}

/// Disables mixed precision until the guard is dropped, even inside an [`autocast`].
pub fn autocast_off() -> Autocast {
    set_autocast(None)
}

/// Returns the half-precision dtype of the thread's [`autocast`], or `None` outside it.
#[inline]
pub fn autocast_dtype() -> Option<DType> {
    AUTOCAST_DTYPE.with(ScopeStack::get)
}

/// Sets the autocast dtype of the thread until the guard is dropped; `None` disables autocast.
pub(crate) fn set_autocast(half: Option<DType>) -> Autocast {
    Autocast { scope: AUTOCAST_DTYPE.with(|dtype| dtype.begin(half)), _not_send: PhantomData }
}
