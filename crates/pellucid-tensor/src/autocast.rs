//! `autocast`: mixed precision, by a policy per operation (Micikevicius et al. 2018).
//!
//! Products are computed of half types, which are half the memory traffic and, where a device has units for them,
//! many times as fast; what sums or amplifies, in `f32`. Parameters stay as they are: a product casts
//! what it reads, and the gradient comes back in the parameter's dtype.

use crate::ops;
use crate::tensor::Tensor;
use pellucid_ir::{DType, Error, Result};
use std::cell::Cell;
use std::marker::PhantomData;

thread_local! {
    static HALF: Cell<Option<DType>> = const { Cell::new(None) };
}

/// What [`autocast`] does with the `f32`, `f16` and `bf16` operands of an operation. An operation with an operand of
/// `f64` is left alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    /// They are cast to the half type: products, and recurrent layers.
    Half,
    /// They are read as `f32`, and so are the results: what sums many values, or has a range of its own.
    Single,
    /// Nothing: operands of several dtypes are promoted as ever.
    Promote,
}

/// The policy of an operation, by the name that its errors and its node have.
///
/// ```
/// use pellucid_tensor::{Policy, policy};
/// assert_eq!(policy("matmul"), Policy::Half);
/// assert_eq!(policy("softmax"), Policy::Single);
/// assert_eq!(policy("relu"), Policy::Promote);
/// ```
pub fn policy(op: &str) -> Policy {
    match op {
        "matmul" | "linear" | "scaled_dot_product_attention" | "einsum" | "multi_dot" | "matrix_power" => Policy::Half,
        "conv1d" | "conv2d" | "conv3d" | "conv_transpose1d" | "conv_transpose2d" | "conv_transpose3d" => Policy::Half,
        // Products at every step; between the steps nothing is rounded.
        "rnn" | "gru" | "lstm" => Policy::Half,
        // Functions that amplify, or whose range is wider than their argument's.
        "acos" | "asin" | "acosh" | "cosh" | "sinh" | "tan" | "exp" | "exp2" | "expm1" | "ln" | "log" | "log2"
        | "log10" | "log1p" | "pow" | "reciprocal" | "rsqrt" | "erfinv" | "lgamma" | "digamma" | "softplus"
        | "logaddexp" | "logaddexp2" => Policy::Single,
        // Sums.
        "sum" | "square" | "root" | "var" | "prod" | "cumsum" | "cumprod" | "logcumsumexp" | "logsumexp" => {
            Policy::Single
        }
        "mean"
        | "std"
        | "norm"
        | "nanmean"
        | "masked_mean"
        | "masked_var"
        | "masked_std"
        | "vecdot"
        | "trapezoid"
        | "cumulative_trapezoid"
        | "lp_pool1d"
        | "lp_pool2d"
        | "lp_pool3d"
        | "interpolate"
        | "adaptive_avg_pool1d"
        | "adaptive_avg_pool2d"
        | "adaptive_avg_pool3d" => Policy::Single,
        // Normalisation.
        "softmax"
        | "log_softmax"
        | "standardized"
        | "rms_norm"
        | "batch_norm"
        | "instance_norm"
        | "local_response_norm"
        | "normalize"
        | "masked_normalize"
        | "renorm" => Policy::Single,
        // Differences of what is near.
        "cdist" | "pdist" | "pairwise_distance" | "cosine_similarity" => Policy::Single,
        // Losses.
        "mse_loss"
        | "l1_loss"
        | "huber_loss"
        | "smooth_l1_loss"
        | "multilabel_soft_margin_loss"
        | "ctc_loss"
        | "hinge_embedding_loss"
        | "margin_ranking_loss"
        | "cosine_embedding_loss"
        | "triplet_margin_loss"
        | "soft_margin_loss"
        | "multi_margin_loss"
        | "multilabel_margin_loss"
        | "poisson_nll_loss"
        | "kl_div"
        | "nll_loss"
        | "gaussian_nll_loss"
        | "stirling"
        | "xlogy"
        | "binary_cross_entropy"
        | "binary_cross_entropy_with_logits"
        | "cross_entropy" => Policy::Single,
        _ => Policy::Promote,
    }
}

/// Restores the thread's mixed precision when it is dropped.
#[must_use = "mixed precision lasts as long as the guard: let _guard = autocast(DType::BF16);"]
pub struct Autocast {
    before: Option<DType>,
    /// The mode belongs to this thread, so the guard must not leave it.
    _not_send: PhantomData<*const ()>,
}

impl Drop for Autocast {
    fn drop(&mut self) {
        HALF.set(self.before);
    }
}

/// Mixed precision until the guard is dropped: operations cast their operands by their [`policy`], to `half` (`bf16`
/// or `f16`) or `f32`. Put forward and loss under it; a backward pass computes in the dtypes of its forward, under it or not.
/// With `f16`, scale the loss, so that small gradients are not rounded to 0.
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
        let error = Error::dtypes("autocast", [half], "mixed precision is of f32 and a half type, bf16 or f16");
        crate::panic::unwrap::<()>(Err(error));
    }
    set_autocast(Some(half))
}

/// No mixed precision until the guard is dropped, inside of an [`autocast`] too.
pub fn autocast_off() -> Autocast {
    set_autocast(None)
}

/// The half type of the thread's [`autocast`].
#[inline]
pub fn autocast_dtype() -> Option<DType> {
    HALF.get()
}

/// Mixed precision with this half type, or none, until the guard is dropped.
pub(crate) fn set_autocast(half: Option<DType>) -> Autocast {
    Autocast { before: HALF.replace(half), _not_send: PhantomData }
}

/// The dtype in which an operation is to read these operands, if it is not theirs.
#[inline]
pub(crate) fn wanted(op: &str, operands: &[&Tensor]) -> Option<DType> {
    HALF.get().and_then(|half| by_policy(op, half, operands))
}

#[cold]
fn by_policy(op: &str, half: DType, operands: &[&Tensor]) -> Option<DType> {
    let dtype = match policy(op) {
        Policy::Half => half,
        Policy::Single => DType::F32,
        Policy::Promote => return None,
    };
    let wide = operands.iter().any(|t| t.dtype() == DType::F64);
    let other = operands.iter().any(|t| is_cast(t) && t.dtype() != dtype);
    (!wide && other).then_some(dtype)
}

fn is_cast(operand: &Tensor) -> bool {
    matches!(operand.dtype(), DType::F32 | DType::F16 | DType::BF16)
}

/// An operand in the dtype that was [`wanted`]; integers and truth values stay.
pub(crate) fn cast(operand: &Tensor, dtype: DType) -> Result<Tensor> {
    if is_cast(operand) { ops::to_dtype(operand, dtype) } else { Ok(operand.clone()) }
}

/// [`cast`] for an operand that may be missing.
pub(crate) fn cast_some(operand: Option<&Tensor>, dtype: DType) -> Result<Option<Tensor>> {
    operand.map(|operand| cast(operand, dtype)).transpose()
}

/// The operand of an operation of one, in the dtype in which it is to be read.
pub(crate) fn read(op: &str, operand: &Tensor) -> Result<Tensor> {
    wanted(op, &[operand]).map_or(Ok(operand.clone()), |dtype| cast(operand, dtype))
}
