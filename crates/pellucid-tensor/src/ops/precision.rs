//! Half precision: an operation that needs several kernels computes in `f32` and rounds its result once.
//!
//! A kernel already accumulates in `f32` and rounds what it stores. Between the kernels of one operation nothing may be
//! rounded either: the squares of a norm overflow `f16` where the norm does not, and a count above 256 is no `bf16`.
//! [`in_single!`] widens the operands, runs the operation on them, and rounds the result; [`single`] and [`rounded`] do
//! the same where the first kernel reads half-precision operands as `f32` without a copy. Gradients follow: a cast is
//! the last step of every gradient, so that each is rounded once too.

use crate::autocast::{self, Autocast, Policy};
use crate::autograd::{Gradients, Saved};
use crate::ops;
use crate::tensor::Tensor;
use pellucid_ir::formula::Read;
use pellucid_ir::{DType, Result};

fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

/// How the result of widened operands is rounded. Autocast is off as long as this exists.
pub(crate) struct Rounding {
    result: Option<DType>,
    _off: Autocast,
}

impl Rounding {
    /// The result in the dtype that the operands have together.
    pub(crate) fn round(&self, y: Tensor) -> Result<Tensor> {
        match self.result {
            Some(dtype) if y.dtype().is_float() => ops::to_dtype(&y, dtype),
            _ => Ok(y),
        }
    }
}

/// How the result is rounded, the widened operands, and the widened optional operands.
pub(crate) type Widened<const N: usize, const M: usize> = (Rounding, [Tensor; N], [Option<Tensor>; M]);

/// Casts `f16` and `bf16` operands to `f32`; `None` if there are none, or if autocast computes the operation in half
/// precision on purpose. Under autocast, an operation of [`Policy::Single`] keeps its result in `f32`.
#[inline]
pub(crate) fn widened<const N: usize, const M: usize>(
    op: &str,
    operands: [&Tensor; N],
    optional: [Option<&Tensor>; M],
) -> Result<Option<Widened<N, M>>> {
    let has_half = |t: &Tensor| is_half(t.dtype());
    if operands.iter().any(|t| has_half(t)) || optional.iter().flatten().any(|t| has_half(t)) {
        return widen(op, operands, optional);
    }
    Ok(None)
}

/// [`widened`] for any number of operands.
pub(crate) fn widened_all(op: &str, operands: &[&Tensor]) -> Result<Option<(Rounding, Vec<Tensor>)>> {
    if !operands.iter().any(|t| is_half(t.dtype())) {
        return Ok(None);
    }
    let Some(rounding) = rounding(op, operands.iter().map(|t| t.dtype())) else { return Ok(None) };
    Ok(Some((rounding, operands.iter().map(|t| single_of(t)).collect::<Result<_>>()?)))
}

/// How a result of operands of these dtypes is rounded; `None` if it is computed in half precision on purpose.
fn rounding(op: &str, dtypes: impl Iterator<Item = DType>) -> Option<Rounding> {
    let policy = autocast::autocast_dtype().map(|_| autocast::policy(op));
    if policy == Some(Policy::Half) {
        return None;
    }
    let result = dtypes.filter(|d| d.is_float()).reduce(DType::promote);
    let result = result.filter(|&d| is_half(d) && policy != Some(Policy::Single));
    Some(Rounding { result, _off: autocast::autocast_off() })
}

fn single_of(t: &Tensor) -> Result<Tensor> {
    if is_half(t.dtype()) { ops::to_dtype(t, DType::F32) } else { Ok(t.clone()) }
}

#[cold]
fn widen<const N: usize, const M: usize>(
    op: &str,
    operands: [&Tensor; N],
    optional: [Option<&Tensor>; M],
) -> Result<Option<Widened<N, M>>> {
    let dtypes = operands.iter().chain(optional.iter().flatten()).map(|t| t.dtype());
    let Some(rounding) = rounding(op, dtypes) else { return Ok(None) };
    let mut wide = operands.map(Tensor::clone);
    for t in &mut wide {
        *t = single_of(t)?;
    }
    let mut others = optional.map(|t| t.cloned());
    for t in others.iter_mut().flatten() {
        *t = single_of(t)?;
    }
    Ok(Some((rounding, wide, others)))
}

/// Returns from the function with `$call` on widened operands, rounded once, if an operand is of half precision.
/// Operands are `&Tensor` variables, optional ones `Option<&Tensor>` variables; `$call` sees them under their names.
macro_rules! in_single {
    ($op:expr, [$($x:ident),+ $(; $($o:ident),+)?] => $call:expr) => {
        if let Some((rounding, [$($x),+], [$($($o),+)?])) =
            $crate::ops::precision::widened($op, [$($x),+], [$($($o),+)?])?
        {
            $(let $x = &$x;)+
            $($(let $o = $o.as_ref();)+)?
            return rounding.round($call?);
        }
    };
}

pub(crate) use in_single;

/// The dtype in which a kernel computes and stores numbers of these operands, if that is not their own: `f32` for half
/// precision. The result of the operation is [`rounded`].
#[inline]
pub(crate) fn single(operands: &[&Tensor]) -> Option<DType> {
    operands.iter().map(|t| t.dtype()).reduce(DType::promote).filter(|&d| is_half(d)).map(|_| DType::F32)
}

/// The `f32` result of an operation rounded to the dtype of half-precision operands; under autocast, the result of an
/// operation of [`Policy::Single`] stays as it is.
#[inline]
pub(crate) fn rounded(op: &str, operands: &[&Tensor], y: Tensor) -> Result<Tensor> {
    let result = operands.iter().map(|t| t.dtype()).reduce(DType::promote).filter(|&d| is_half(d));
    match result {
        Some(dtype) if autocast::autocast_dtype().is_none() || autocast::policy(op) != Policy::Single => {
            ops::to_dtype(&y, dtype)
        }
        _ => Ok(y),
    }
}

/// [`single`] for the operands of a gradient formula.
pub(crate) fn single_for(reads: &[Read], saved: &Saved, grads: &Gradients) -> Result<Option<DType>> {
    for read in reads {
        let dtype = match *read {
            Read::Input(i) => saved.input_array(i)?.dtype(),
            Read::Output(j) => saved.output_array(j)?.dtype(),
            Read::Gradient(j) => grads.get(j)?.dtype(),
        };
        if dtype.is_float() && !is_half(dtype) {
            return Ok(None);
        }
    }
    Ok(Some(DType::F32))
}
