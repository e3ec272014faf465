//! Half precision (`f16`, `bf16`): an operation of several kernels computes in `f32` and rounds its result once.
//!
//! A kernel accumulates in `f32` and rounds its result. Intermediate results between the kernels of one operation must
//! not be rounded: the squares of a norm may overflow `f16` although the norm does not, and `bf16` cannot represent all
//! counts above 256. [`in_single!`] widens the operands, runs the operation on them, and rounds the result.
//! [`widened_dtype`] and [`round_to_operands`] have the same effect without a copy: the first kernel reads
//! half-precision operands as `f32`. Each gradient is also rounded once, because its last step is a cast.
//!
//! Under [`autocast`](crate::autocast()), an operation first casts its operands by its [`AutocastPolicy`].

use crate::autocast::{Autocast, autocast_dtype, autocast_off};
use crate::autograd::{OutputGradients, SavedTensors};
use crate::ops::call::registry::{AutocastPolicy, autocast_policy, builtin_policy};
use crate::ops::primitive::copy::to_dtype;
use crate::tensor::Tensor;
use pellucid_ir::formula::GradientInput;
use pellucid_ir::{DType, Result};

fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

/// The dtype to which the result of widened operands is rounded. Autocast is off while a value of this type exists.
pub(crate) struct Rounding {
    result: Option<DType>,
    _off: Autocast,
}

impl Rounding {
    /// Rounds a float result to the promoted dtype of the operands, unless autocast keeps it in `f32`.
    pub(crate) fn round(&self, y: Tensor) -> Result<Tensor> {
        match self.result {
            Some(dtype) if y.dtype().is_float() => to_dtype(&y, dtype),
            _ => Ok(y),
        }
    }
}

/// The rounding of the result, the widened operands, and the widened optional operands.
pub(crate) type Widened<const N: usize, const M: usize> = (Rounding, [Tensor; N], [Option<Tensor>; M]);

/// Casts `f16` and `bf16` operands to `f32`. Returns `None` if no operand has these dtypes, or if the autocast policy
/// of the operation is half precision. Under autocast, an operation of [`AutocastPolicy::Single`] keeps its result in
/// `f32`.
#[inline]
pub(crate) fn widen_operands<const N: usize, const M: usize>(
    op: &str,
    operands: [&Tensor; N],
    optional: [Option<&Tensor>; M],
) -> Result<Option<Widened<N, M>>> {
    if !has_half(&operands, &optional) {
        return Ok(None);
    }
    let (mut operands, mut optional) = (operands.map(Tensor::clone), optional.map(|t| t.cloned()));
    Ok(widen_in_place(op, &mut operands, &mut optional)?.map(|rounding| (rounding, operands, optional)))
}

fn has_half(operands: &[&Tensor], optional: &[Option<&Tensor>]) -> bool {
    operands.iter().any(|t| is_half(t.dtype())) || optional.iter().flatten().any(|t| is_half(t.dtype()))
}

/// Implements [`widen_operands`] for any number of operands.
pub(crate) fn widen_all_operands(op: &str, operands: &[&Tensor]) -> Result<Option<(Rounding, Vec<Tensor>)>> {
    if !operands.iter().any(|t| is_half(t.dtype())) {
        return Ok(None);
    }
    let Some(rounding) = rounding(op, operands.iter().map(|t| t.dtype())) else { return Ok(None) };
    Ok(Some((rounding, operands.iter().map(|t| single_of(t)).collect::<Result<_>>()?)))
}

/// Returns the rounding of a result whose operands have these dtypes. Returns `None` if the autocast policy is half
/// precision.
fn rounding(op: &str, dtypes: impl Iterator<Item = DType>) -> Option<Rounding> {
    let policy = autocast_dtype().map(|_| builtin_policy(op));
    if policy == Some(AutocastPolicy::Half) {
        return None;
    }
    let result = dtypes.filter(|d| d.is_float()).reduce(DType::promote);
    let result = result.filter(|&d| is_half(d) && policy != Some(AutocastPolicy::Single));
    Some(Rounding { result, _off: autocast_off() })
}

fn single_of(t: &Tensor) -> Result<Tensor> {
    if is_half(t.dtype()) { to_dtype(t, DType::F32) } else { Ok(t.clone()) }
}

/// Casts `f16` and `bf16` operands in place, unless the autocast policy of the operation is half precision.
#[cold]
fn widen_in_place(op: &str, operands: &mut [Tensor], optional: &mut [Option<Tensor>]) -> Result<Option<Rounding>> {
    let dtypes = operands.iter().chain(optional.iter().flatten()).map(|t| t.dtype());
    let Some(rounding) = rounding(op, dtypes) else { return Ok(None) };
    for t in operands.iter_mut().chain(optional.iter_mut().flatten()) {
        *t = single_of(t)?;
    }
    Ok(Some(rounding))
}

/// If an operand has half precision, returns from the enclosing function with the result of `$call` on widened
/// operands, rounded once. Operands are variables of type `&Tensor`, optional operands of type `Option<&Tensor>`.
/// `$call` refers to them by their names.
macro_rules! in_single {
    ($op:expr, [$($x:ident),+ $(; $($o:ident),+)?] => $call:expr) => {
        if let Some((rounding, [$($x),+], [$($($o),+)?])) =
            $crate::ops::primitive::precision::widen_operands($op, [$($x),+], [$($($o),+)?])?
        {
            $(let $x = &$x;)+
            $($(let $o = $o.as_ref();)+)?
            return rounding.round($call?);
        }
    };
}

pub(crate) use in_single;

/// Returns the result of `$call` with the operands cast by the policy of the operation, if autocast casts them. The
/// operands after the semicolon are optional. They do not affect this decision.
macro_rules! in_policy_dtype {
    ($op:expr, [$($x:ident),+ $(; $($o:ident),+)?] => $call:expr) => {
        if let Some(dtype) = $crate::ops::primitive::precision::autocast_operand_dtype($op, &[$($x),+]) {
            $(let $x = &$crate::ops::primitive::precision::cast($x, dtype)?;)+
            $($(
                let $o = $crate::ops::primitive::precision::cast_some($o, dtype)?;
                let $o = $o.as_ref();
            )+)?
            return $call;
        }
    };
}

pub(crate) use in_policy_dtype;

/// Returns the dtype in which a kernel computes and stores results of these operands, if it differs from their promoted
/// dtype: `f32` for half precision. [`round_to_operands`] must round the result of the operation.
#[inline]
pub(crate) fn widened_dtype(operands: &[&Tensor]) -> Option<DType> {
    operands.iter().map(|t| t.dtype()).reduce(DType::promote).filter(|&d| is_half(d)).map(|_| DType::F32)
}

/// Rounds the `f32` result of an operation to the dtype of half-precision operands. Under autocast, the result of an
/// operation of [`AutocastPolicy::Single`] stays `f32`.
#[inline]
pub(crate) fn round_to_operands(op: &str, operands: &[&Tensor], y: Tensor) -> Result<Tensor> {
    let result = operands.iter().map(|t| t.dtype()).reduce(DType::promote).filter(|&d| is_half(d));
    match result {
        Some(dtype) if autocast_dtype().is_none() || builtin_policy(op) != AutocastPolicy::Single => {
            to_dtype(&y, dtype)
        }
        _ => Ok(y),
    }
}

/// Returns `f32` if no operand that a gradient formula reads is `f32` or `f64`, otherwise `None`.
pub(crate) fn single_for(
    reads: &[GradientInput],
    saved: &SavedTensors,
    grads: &OutputGradients,
) -> Result<Option<DType>> {
    for read in reads {
        let dtype = match *read {
            GradientInput::Input(i) => saved.input_array(i)?.dtype(),
            GradientInput::Output(j) => saved.output_array(j)?.dtype(),
            GradientInput::Gradient(j) => grads.get(j)?.dtype(),
        };
        if dtype.is_float() && !is_half(dtype) {
            return Ok(None);
        }
    }
    Ok(Some(DType::F32))
}

/// Returns the dtype to which autocast casts the operands of `op`, or `None` if no cast is needed.
#[inline]
pub(crate) fn autocast_operand_dtype(op: &str, operands: &[&Tensor]) -> Option<DType> {
    autocast_dtype().and_then(|half| cast_dtype_by_policy(op, half, operands))
}

#[cold]
fn cast_dtype_by_policy(op: &str, half: DType, operands: &[&Tensor]) -> Option<DType> {
    let dtype = match autocast_policy(op) {
        AutocastPolicy::Half => half,
        AutocastPolicy::Single => DType::F32,
        AutocastPolicy::Promote => return None,
    };
    let wide = operands.iter().any(|t| t.dtype() == DType::F64);
    let other = operands.iter().any(|t| is_castable(t) && t.dtype() != dtype);
    (!wide && other).then_some(dtype)
}

fn is_castable(operand: &Tensor) -> bool {
    matches!(operand.dtype(), DType::F32 | DType::F16 | DType::BF16)
}

/// Casts a float operand to the result of [`autocast_operand_dtype`]. Integers and booleans are returned unchanged.
pub(crate) fn cast(operand: &Tensor, dtype: DType) -> Result<Tensor> {
    if is_castable(operand) { to_dtype(operand, dtype) } else { Ok(operand.clone()) }
}

/// Casts an optional operand as [`cast`] does.
pub(crate) fn cast_some(operand: Option<&Tensor>, dtype: DType) -> Result<Option<Tensor>> {
    operand.map(|operand| cast(operand, dtype)).transpose()
}

/// Casts the operand of the unary operation `op` by its policy.
pub(crate) fn cast_operand(op: &str, operand: &Tensor) -> Result<Tensor> {
    autocast_operand_dtype(op, &[operand]).map_or(Ok(operand.clone()), |dtype| cast(operand, dtype))
}
