//! Reductions over axes.
//!
//! The order of accumulation depends on the shape and the axes only. The same values give the same bits in any layout
//! and on any number of threads.

use super::axes::{Axes, ResolvedAxes};
use super::formula::{map_sum, rows, rows_in};
use super::precision::{in_single, rounded, single};
use super::{check, reshape_to};
use crate::array::Array;
use crate::autocast;
use crate::autograd::{Arrays, Gradients, InputGradients, Needed, Operation, Saved, Saves, apply_one};
use crate::engine;
use crate::ops;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::formula::Formula;
use pellucid_ir::kernel::{AxisSet, Kernel, Params, Reduce, ReduceOp};
use pellucid_ir::{DType, Error, Result, Shape, formula};
use smallvec::{SmallVec, smallvec};
use std::sync::{Arc, OnceLock};

fn identity_formula() -> &'static Formula {
    static IDENTITY: OnceLock<Formula> = OnceLock::new();
    IDENTITY.get_or_init(|| formula! { sum(x) = x; }.eternal())
}

/// Returns the dtype of sums and products: `i64` for integers and booleans.
fn accumulator(dtype: DType) -> DType {
    if dtype.is_float() { dtype } else { DType::I64 }
}

/// Computes the sum over `axes`.
///
/// Integers and booleans sum in `i64`; `f16` and `bf16` accumulate in `f32`. The gradient is g for every element.
///
/// # Errors
/// [`Error::AxisOutOfRange`].
#[tensor_method]
pub fn sum(x: &Tensor, axes: impl Into<Axes>) -> Result<Tensor> {
    let axes = axes.into().resolve("sum", x.shape())?;
    sum_of(identity_formula(), x, axes, None)
}

/// Computes Σ f(x) over axes in one kernel, in the dtype `number`, by default that of [`sum`].
fn sum_of(f: &'static Formula, x: &Tensor, axes: ResolvedAxes, number: Option<DType>) -> Result<Tensor> {
    let kept = map_sum(f, &[x], &[], axes.set, number.or(Some(accumulator(x.dtype()))))?;
    reshape_to(&kept, &axes.shape(x.shape()))
}

/// Sums x to `shape`, which broadcasts to x's shape: the transpose of broadcasting.
pub(crate) fn sum_to(x: &Tensor, shape: &Shape) -> Result<Tensor> {
    if x.shape() == shape {
        return Ok(x.clone());
    }
    if shape.size() == x.size() {
        return reshape_to(x, shape);
    }
    check::reducible("sum", x.shape())?;
    let axes = broadcast_axes(shape, x.shape());
    reshape_to(&map_sum(identity_formula(), &[x], &[], axes, None)?, shape)
}

/// Returns the axes of `full` along which `shape` broadcasts.
pub(crate) fn broadcast_axes(shape: &Shape, full: &Shape) -> AxisSet {
    let lead = full.rank() - shape.rank();
    (0..full.rank()).filter(|&a| a < lead || (shape[a - lead] == 1 && full[a] != 1)).collect()
}

/// Computes the arithmetic mean over `axes`, Σ x / N. Integers give `f32`.
///
/// # Errors
/// [`Error::AxisOutOfRange`].
#[tensor_method]
pub fn mean(x: &Tensor, axes: impl Into<Axes>) -> Result<Tensor> {
    let axes = axes.into().resolve("mean", x.shape())?;
    let number = single(&[x]).unwrap_or(if x.dtype().is_float() { x.dtype() } else { DType::F32 });
    let total = map_sum(identity_formula(), &[x], &[], axes.set, Some(number))?;
    let mean = ops::div(&total, axes.set.count(x.shape()) as f64)?;
    reshape_to(&rounded("mean", &[x], mean)?, &axes.shape(x.shape()))
}

/// Computes the variance over `axes`, Σ (x − mean)² / (N − ddof), in two passes over the row.
/// `ddof` is 0 unless [`Axes::ddof`] sets it.
///
/// # Errors
/// [`Error::AxisOutOfRange`]; [`Error::DTypeMismatch`] for integers.
#[tensor_method]
pub fn var(x: &Tensor, axes: impl Into<Axes>) -> Result<Tensor> {
    moments("var", x, axes.into(), None)
}

/// Computes the standard deviation over `axes`, the square root of [`var`]. Its derivative at 0 is infinite.
///
/// # Errors
/// Those of [`var`].
#[tensor_method]
pub fn std(x: &Tensor, axes: impl Into<Axes>) -> Result<Tensor> {
    rounded("std", &[x], ops::sqrt(&moments("std", x, axes.into(), single(&[x]))?)?)
}

fn moments(op: &'static str, x: &Tensor, axes: Axes, number: Option<DType>) -> Result<Tensor> {
    static VAR: OnceLock<Formula> = OnceLock::new();
    if !x.dtype().is_float() {
        return Err(Error::dtypes(op, [x.dtype()], "takes floats; use to_dtype()"));
    }
    let (axes, ddof) = axes.resolve_moments(op, x.shape())?;
    let formula = VAR.get_or_init(|| {
        formula! { var(x; free) = {
            let d = x - x.row_mean();
            (d * d).row_sum() / free
        }; }
        .eternal()
    });
    // For N ≤ ddof the estimate is undefined: x/0 gives NaN or infinity, as in NumPy.
    let free = (axes.set.count(x.shape()) as f64 - ddof as f64).max(0.0);
    let kept = rows_in(formula, &[x], &[free.into()], axes.set, number)?;
    reshape_to(&kept, &axes.shape(x.shape()))
}

/// Returns the largest element over `axes`; NaN if one is NaN. Equal maxima share the gradient evenly.
///
/// # Errors
/// [`Error::AxisOutOfRange`]; [`Error::InvalidArgument`] over zero elements.
#[tensor_method]
pub fn max(x: &Tensor, axes: impl Into<Axes>) -> Result<Tensor> {
    ExtremumReduction { op: ReduceOp::Max, name: "max", axes: axes.into().resolve("max", x.shape())? }.apply(x)
}

/// Returns the smallest element over `axes`; NaN if one is NaN. Equal minima share the gradient evenly.
///
/// # Errors
/// [`Error::AxisOutOfRange`]; [`Error::InvalidArgument`] over zero elements.
#[tensor_method]
pub fn min(x: &Tensor, axes: impl Into<Axes>) -> Result<Tensor> {
    ExtremumReduction { op: ReduceOp::Min, name: "min", axes: axes.into().resolve("min", x.shape())? }.apply(x)
}

struct ExtremumReduction {
    op: ReduceOp,
    name: &'static str,
    axes: ResolvedAxes,
}

impl ExtremumReduction {
    fn apply(self, x: &Tensor) -> Result<Tensor> {
        let shape = self.axes.shape(x.shape());
        reshape_to(&apply_one(self, &[x])?, &shape)
    }
}

impl Operation for ExtremumReduction {
    fn name(&self) -> &'static str {
        self.name
    }
    fn forward(&self, inputs: &[&Array], saves: &mut Saves) -> Result<Arrays> {
        saves.input(0);
        saves.output(0);
        Ok(smallvec![reduce(self.name, self.op, inputs[0], self.axes.set, inputs[0].dtype())?])
    }
    fn backward(&self, saved: &Saved, grads: &Gradients, _: Needed) -> Result<InputGradients> {
        static SHARE: OnceLock<Formula> = OnceLock::new();
        let share = SHARE.get_or_init(|| {
            formula! { extremum_gradient(x, y: per_row, g: per_row) = {
                let ties = x.eq(y).to_number();
                ties * (g / ties.row_sum())
            }; }
            .eternal()
        });
        let (x, y) = (saved.input(0)?, saved.output(0)?);
        Ok(smallvec![Some(rows(share, &[&x, &y, &grads.get(0)?], &[], self.axes.set)?)])
    }
}

/// Submits a reduction of the elements of an array. The reduced axes keep length 1.
fn reduce(name: &'static str, op: ReduceOp, x: &Array, axes: AxisSet, output: DType) -> Result<Array> {
    let empty = axes.count(x.shape()) == 0 && axes.keepdims(x.shape()).size() != 0;
    if empty && matches!(op, ReduceOp::Max | ReduceOp::Min | ReduceOp::ArgMax | ReduceOp::ArgMin) {
        let reason = format!("the extremum over zero elements is undefined (shape {})", x.shape());
        return Err(Error::invalid(name, reason));
    }
    let program = program_for(op, x.dtype(), output)?;
    let out = Array::new(x.device(), output, axes.keepdims(x.shape()))?;
    let kernel =
        Reduce { op, axes, program, params: Params::new(), finish: None, finish_params: Params::new(), output };
    engine::submit(&Kernel::Reduce(kernel), &[x], &[&out])?;
    Ok(out)
}

/// Returns the program that converts the elements for a reduction: to booleans for `Any` and `All`, to `output` for
/// `Prod`.
fn program_for(op: ReduceOp, dtype: DType, output: DType) -> Result<Arc<pellucid_ir::formula::Program>> {
    static MASK: OnceLock<Formula> = OnceLock::new();
    static IS_NONZERO: OnceLock<Formula> = OnceLock::new();
    use pellucid_ir::formula::Signature;
    let is_nonzero = IS_NONZERO.get_or_init(|| formula! { is_nonzero(x) = x.ne(0); }.eternal());
    let mask = MASK.get_or_init(|| formula! { is_nonzero(x: mask) = x; }.eternal());
    match op {
        ReduceOp::Any | ReduceOp::All if dtype == DType::Bool => {
            mask.program(&Signature::new([dtype], DType::F32)).cloned()
        }
        ReduceOp::Any | ReduceOp::All => is_nonzero.program(&Signature::new([dtype], dtype)).cloned(),
        ReduceOp::Prod => identity_formula().program(&Signature::new([dtype], output)).cloned(),
        // Booleans are compared as integers.
        _ if dtype == DType::Bool => identity_formula().program(&Signature::new([dtype], DType::I32)).cloned(),
        _ => identity_formula().uniform_program(dtype).cloned(),
    }
}

/// A reduction with an integer or boolean result, which has no gradient.
struct UntrackedReduction {
    name: &'static str,
    op: ReduceOp,
    axes: AxisSet,
    output: DType,
}

impl Operation for UntrackedReduction {
    fn name(&self) -> &'static str {
        self.name
    }
    fn forward(&self, inputs: &[&Array], _: &mut Saves) -> Result<Arrays> {
        Ok(smallvec![reduce(self.name, self.op, inputs[0], self.axes, self.output)?])
    }
    fn backward(&self, _: &Saved, grads: &Gradients, _: Needed) -> Result<InputGradients> {
        Ok(SmallVec::from_elem(None, grads.len()))
    }
}

fn untracked(name: &'static str, op: ReduceOp, x: &Tensor, axes: Axes, output: DType) -> Result<Tensor> {
    let axes = axes.resolve(name, x.shape())?;
    let kept = apply_one(UntrackedReduction { name, op, axes: axes.set, output }, &[x])?;
    reshape_to(&kept, &axes.shape(x.shape()))
}

/// Returns the index (`i64`) of the first maximum over `axes`, in row-major order over them; of the first NaN if there
/// is one.
///
/// # Errors
/// [`Error::AxisOutOfRange`]; [`Error::InvalidArgument`] over zero elements.
#[tensor_method]
pub fn argmax(x: &Tensor, axes: impl Into<Axes>) -> Result<Tensor> {
    untracked("argmax", ReduceOp::ArgMax, x, axes.into(), DType::I64)
}

/// Returns the index (`i64`) of the first minimum over `axes`, in row-major order over them; of the first NaN if there
/// is one.
///
/// # Errors
/// [`Error::AxisOutOfRange`]; [`Error::InvalidArgument`] over zero elements.
#[tensor_method]
pub fn argmin(x: &Tensor, axes: impl Into<Axes>) -> Result<Tensor> {
    untracked("argmin", ReduceOp::ArgMin, x, axes.into(), DType::I64)
}

/// Returns true where at least one element over `axes` is nonzero; false over zero elements.
///
/// # Errors
/// [`Error::AxisOutOfRange`].
#[tensor_method]
pub fn any(x: &Tensor, axes: impl Into<Axes>) -> Result<Tensor> {
    untracked("any", ReduceOp::Any, x, axes.into(), DType::Bool)
}

/// Returns true where all elements over `axes` are nonzero; true over zero elements.
///
/// # Errors
/// [`Error::AxisOutOfRange`].
#[tensor_method]
pub fn all(x: &Tensor, axes: impl Into<Axes>) -> Result<Tensor> {
    untracked("all", ReduceOp::All, x, axes.into(), DType::Bool)
}

/// Computes the product over `axes`. Integers and booleans multiply in `i64`, wrapping.
///
/// The gradient g·Π_{j≠i} xⱼ is exact where elements are zero, in every order.
///
/// # Errors
/// [`Error::AxisOutOfRange`].
#[tensor_method]
pub fn prod(x: &Tensor, axes: impl Into<Axes>) -> Result<Tensor> {
    let axes = axes.into().resolve("prod", x.shape())?;
    let kept = apply_one(Prod { axes: axes.set }, &[&autocast::cast_operand("prod", x)?])?;
    reshape_to(&kept, &axes.shape(x.shape()))
}

struct Prod {
    axes: AxisSet,
}

impl Prod {
    /// Multiplies by a tree of products of halves, as the kernel does, in operations whose gradients divide by nothing.
    fn definition(&self, x: &Tensor) -> Result<Tensor> {
        in_single!("prod", [x] => self.definition(x));
        let mut y = x.clone();
        for axis in self.axes.iter() {
            if y.shape()[axis] == 0 {
                return ops::broadcast_to(&ops::ones((), y.dtype())?, self.axes.keepdims(x.shape()));
            }
            while y.shape()[axis] > 1 {
                let (len, half) = (y.shape()[axis], y.shape()[axis] / 2);
                let low = ops::narrow(&y, axis as isize, 0, half)?;
                let product = ops::mul(&low, &ops::narrow(&y, axis as isize, half, half)?)?;
                y = match len % 2 {
                    0 => product,
                    _ => ops::concatenate(&[&product, &ops::narrow(&y, axis as isize, len - 1, 1)?], axis as isize)?,
                };
            }
        }
        Ok(y)
    }
}

impl Operation for Prod {
    fn name(&self) -> &'static str {
        "prod"
    }
    fn forward(&self, inputs: &[&Array], saves: &mut Saves) -> Result<Arrays> {
        saves.input(0);
        let output = accumulator(inputs[0].dtype());
        Ok(smallvec![reduce("prod", ReduceOp::Prod, inputs[0], self.axes, output)?])
    }
    fn backward(&self, saved: &Saved, grads: &Gradients, _: Needed) -> Result<InputGradients> {
        let x = saved.input(0)?;
        if x.size() == 0 {
            // The empty product is constant.
            return Ok(smallvec![Some(ops::zeros_like(&x)?)]);
        }
        let gradients = ops::via_definition(&[&x], &[&grads.get(0)?], |x| Ok(vec![self.definition(&x[0])?]))?;
        Ok(gradients.into_iter().map(Some).collect())
    }
}

/// Computes the vector norm of order p over `axes`, (Σ |x|ᵖ)^(1/p).
///
/// For p = ∞ it is the largest |x|, for −∞ the smallest, for 0 the number of nonzero elements. The derivative of the
/// 2-norm at the zero vector is 0.
///
/// # Errors
/// [`Error::AxisOutOfRange`]; [`Error::DTypeMismatch`] for integers.
#[tensor_method]
pub fn norm(x: &Tensor, p: f64, axes: impl Into<Axes>) -> Result<Tensor> {
    static SQUARES: OnceLock<Formula> = OnceLock::new();
    static ROOT: OnceLock<Formula> = OnceLock::new();
    if !x.dtype().is_float() {
        return Err(Error::dtypes("norm", [x.dtype()], "takes floats; use to_dtype()"));
    }
    let axes: Axes = axes.into();
    let resolved = axes.resolve("norm", x.shape())?;
    if p == f64::INFINITY {
        return max(&ops::abs(x)?, axes);
    }
    if p == f64::NEG_INFINITY {
        return min(&ops::abs(x)?, axes);
    }
    if p == 0.0 {
        static COUNT: OnceLock<Formula> = OnceLock::new();
        let count = COUNT.get_or_init(|| formula! { count(x) = x.eq(0.0).select(0.0, 1.0); }.eternal());
        return sum_of(count, x, resolved, None);
    }
    if p == 1.0 {
        return sum(&ops::abs(x)?, axes);
    }
    if p == 2.0 {
        let squares = SQUARES.get_or_init(|| formula! { square(x) = x * x; }.eternal());
        // √s has an infinite derivative at 0, where the norm's subgradient of least length is 0.
        let root = ROOT.get_or_init(|| {
            formula! { root(s) = s.sqrt(); d s = y.gt(0.0).select(g * 0.5 / y.gt(0.0).select(y, 1.0), 0.0); }.eternal()
        });
        let root = super::formula::map(root, &[&sum_of(squares, x, resolved, single(&[x]))?], &[])?;
        return rounded("norm", &[x], root);
    }
    in_single!("norm", [x] => norm(x, p, axes));
    static POWER: OnceLock<Formula> = OnceLock::new();
    // The derivative at 0 is 0 for other powers as well.
    let power = POWER.get_or_init(|| {
        formula! { root(s; p) = s.pow(p); d s = y.gt(0.0).select(g * p * y / y.gt(0.0).select(s, 1.0), 0.0); }.eternal()
    });
    super::formula::map(power, &[&sum(&ops::pow(&ops::abs(x)?, p)?, axes)?], &[(1.0 / p).into()])
}

/// Computes ln Σ exp x over `axes`, stable for any magnitude of x. The gradient is the softmax.
///
/// # Errors
/// [`Error::AxisOutOfRange`]; [`Error::DTypeMismatch`] for integers.
#[tensor_method]
pub fn logsumexp(x: &Tensor, axes: impl Into<Axes>) -> Result<Tensor> {
    static LOGSUMEXP: OnceLock<Formula> = OnceLock::new();
    let formula = LOGSUMEXP.get_or_init(|| {
        formula! {
            logsumexp(x) = {
                let m = x.row_max();
                // A maximum of ±∞ must not be subtracted from itself.
                let m = m.is_finite().select(m, 0.0);
                (x - m).exp().row_sum().ln() + m
            };
            d x = g * (x - y).exp();
        }
        .eternal()
    });
    if !x.dtype().is_float() {
        return Err(Error::dtypes("logsumexp", [x.dtype()], "takes floats; use to_dtype()"));
    }
    let axes = axes.into().resolve("logsumexp", x.shape())?;
    let kept = rows_in(formula, &[x], &[], axes.set, single(&[x]))?;
    reshape_to(&rounded("logsumexp", &[x], kept)?, &axes.shape(x.shape()))
}

/// Counts the nonzero elements over `axes`, in `i64`.
///
/// # Errors
/// [`Error::AxisOutOfRange`].
#[tensor_method]
pub fn count_nonzero(x: &Tensor, axes: impl Into<Axes>) -> Result<Tensor> {
    sum(&ops::ne(x, 0)?, axes)
}

/// Returns the smallest and the largest element over `axes`; NaN if one is NaN. Equal extrema share the gradient
/// evenly.
///
/// # Errors
/// [`Error::AxisOutOfRange`]; [`Error::InvalidArgument`] over zero elements.
#[tensor_method]
pub fn aminmax(x: &Tensor, axes: impl Into<Axes>) -> Result<(Tensor, Tensor)> {
    let axes = axes.into();
    Ok((min(x, axes.clone())?, max(x, axes)?))
}

/// Computes the sum over `axes` of the elements that are not NaN.
///
/// # Errors
/// [`Error::AxisOutOfRange`].
#[tensor_method]
pub fn nansum(x: &Tensor, axes: impl Into<Axes>) -> Result<Tensor> {
    if !x.dtype().is_float() {
        return sum(x, axes);
    }
    sum(&ops::masked_fill(x, &ops::isnan(x)?, 0)?, axes)
}

/// Computes the mean over `axes` of the elements that are not NaN; NaN if all are NaN.
///
/// # Errors
/// [`Error::AxisOutOfRange`].
#[tensor_method]
pub fn nanmean(x: &Tensor, axes: impl Into<Axes>) -> Result<Tensor> {
    if !x.dtype().is_float() {
        return mean(x, axes);
    }
    let axes = axes.into();
    in_single!("nanmean", [x] => nanmean(x, axes));
    let count = sum(&ops::logical_not(&ops::isnan(x)?)?, axes.clone())?;
    ops::div(&nansum(x, axes)?, &ops::to_dtype(&count, x.dtype())?)
}
