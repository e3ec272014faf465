//! `autocast`: mixed precision, with a policy for each operation (Micikevicius et al. 2018).
//!
//! Matrix products are computed in half precision. It halves the memory traffic and is many times as fast on devices
//! with units for it. Operations that sum or amplify are computed in `f32`. Parameters keep their dtype: a product
//! casts its operands, and the gradient is returned in the parameter's dtype.

use crate::ops;
use crate::ops::registry::named_operations;
use crate::tensor::Tensor;
use pellucid_ir::{DType, Error, Result};
use std::cell::Cell;
use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::LazyLock;

thread_local! {
    static AUTOCAST_DTYPE: Cell<Option<DType>> = const { Cell::new(None) };
}

/// The dtype in which an operation under [`autocast`] reads its `f32`, `f16` and `bf16` operands. An operation with an
/// `f64` operand is not affected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    /// Half precision, for products and recurrent layers.
    Half,
    /// `f32`, for operations that sum many values or need a wide range. Their results are `f32` too.
    Single,
    /// The dtype of type promotion, as without `autocast`.
    Promote,
}

/// Returns the policy of an operation, by the name that its errors and its graph node show. It is stated at the
/// operation's definition, and is [`Policy::Promote`] for all other names.
///
/// ```
/// use pellucid_tensor::{Policy, policy};
/// assert_eq!(policy("matmul"), Policy::Half);
/// assert_eq!(policy("softmax"), Policy::Single);
/// assert_eq!(policy("relu"), Policy::Promote);
/// ```
pub fn policy(op: &str) -> Policy {
    registered_policy(op).unwrap_or(Policy::Promote)
}

/// Returns the policy of a built-in operation, which must be in the registry.
pub(crate) fn builtin_policy(op: &str) -> Policy {
    let policy = registered_policy(op);
    debug_assert!(policy.is_some(), "no operation has the name `{op}`");
    policy.unwrap_or(Policy::Promote)
}

/// Returns the policy of an operation of the registry.
fn registered_policy(op: &str) -> Option<Policy> {
    static BY_NAME: LazyLock<HashMap<&str, Policy>> =
        LazyLock::new(|| named_operations().map(|op| (op.name, op.autocast)).collect());
    BY_NAME.get(op).copied()
}

/// Guard that restores the thread's previous autocast dtype when it is dropped.
#[must_use = "mixed precision lasts as long as the guard: let _guard = autocast(DType::BF16);"]
pub struct Autocast {
    before: Option<DType>,
    /// The mode belongs to this thread, so the guard must not leave it.
    _not_send: PhantomData<*const ()>,
}

impl Drop for Autocast {
    fn drop(&mut self) {
        AUTOCAST_DTYPE.set(self.before);
    }
}

/// Enables mixed precision until the guard is dropped: operations cast their operands by their [`policy`], to `half`
/// (`bf16` or `f16`) or to `f32`. Enable it for the forward pass and the loss. A backward pass computes in the dtypes
/// of its forward pass, also outside of the guard. With `f16`, scale the loss, so that small gradients are not rounded
/// to 0.
///
/// ```
/// use pellucid_tensor::{DType, Tensor, autocast};
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
/// If `half` is neither `f16` nor `bf16`.
#[track_caller]
pub fn autocast(half: DType) -> Autocast {
    if !matches!(half, DType::F16 | DType::BF16) {
        let error = Error::dtypes("autocast", [half], "autocast needs a half-precision dtype, bf16 or f16");
        crate::panic::unwrap::<()>(Err(error));
    }
    set_autocast(Some(half))
}

/// Disables mixed precision until the guard is dropped, inside of an [`autocast`] too.
pub fn autocast_off() -> Autocast {
    set_autocast(None)
}

/// Returns the half-precision dtype of the thread's [`autocast`], or `None` outside of it.
#[inline]
pub fn autocast_dtype() -> Option<DType> {
    AUTOCAST_DTYPE.get()
}

/// Sets the autocast dtype of the thread until the guard is dropped; `None` disables autocast.
pub(crate) fn set_autocast(half: Option<DType>) -> Autocast {
    Autocast { before: AUTOCAST_DTYPE.replace(half), _not_send: PhantomData }
}

/// Returns the dtype to which autocast casts the operands of `op`, or `None` if no cast is needed.
#[inline]
pub(crate) fn wanted_dtype(op: &str, operands: &[&Tensor]) -> Option<DType> {
    AUTOCAST_DTYPE.get().and_then(|half| cast_dtype_by_policy(op, half, operands))
}

#[cold]
fn cast_dtype_by_policy(op: &str, half: DType, operands: &[&Tensor]) -> Option<DType> {
    let dtype = match policy(op) {
        Policy::Half => half,
        Policy::Single => DType::F32,
        Policy::Promote => return None,
    };
    let wide = operands.iter().any(|t| t.dtype() == DType::F64);
    let other = operands.iter().any(|t| is_castable(t) && t.dtype() != dtype);
    (!wide && other).then_some(dtype)
}

fn is_castable(operand: &Tensor) -> bool {
    matches!(operand.dtype(), DType::F32 | DType::F16 | DType::BF16)
}

/// Casts a float operand to the dtype of [`wanted_dtype`]. Integers and booleans are returned as they are.
pub(crate) fn cast(operand: &Tensor, dtype: DType) -> Result<Tensor> {
    if is_castable(operand) { ops::to_dtype(operand, dtype) } else { Ok(operand.clone()) }
}

/// Casts an optional operand as [`cast`] does.
pub(crate) fn cast_some(operand: Option<&Tensor>, dtype: DType) -> Result<Option<Tensor>> {
    operand.map(|operand| cast(operand, dtype)).transpose()
}

/// Casts the operand of the unary operation `op` by its policy.
pub(crate) fn cast_operand(op: &str, operand: &Tensor) -> Result<Tensor> {
    wanted_dtype(op, &[operand]).map_or(Ok(operand.clone()), |dtype| cast(operand, dtype))
}
