//! Matrix products of operands of any rank.

use crate::autocast::autocast_off;
use crate::autograd::{apply_one, interface::*};
use crate::device::Device;
use crate::engine;
use crate::ops::call::check;
use crate::ops::elementwise::arithmetic;
use crate::ops::formula::broadcast::sum_to;
use crate::ops::formula::map_all;
use crate::ops::primitive::concatenate::{concatenate, split};
use crate::ops::primitive::precision::{in_policy_dtype, in_single};
use crate::ops::primitive::view::{reshape_to, transpose};
use crate::ops::primitive::{copy, precision, view};
use crate::ops::reduce::reductions;
use crate::ops::shape::diagonal::diagonal;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::formula::{Program, Signature};
use pellucid_ir::kernel::{Kernel, MatMul, Meta};
use pellucid_ir::{DType, Error, Result, formula};
use smallvec::SmallVec;
use std::sync::Arc;

/// Computes C = A·B over the last two axes, or A·B + b. The axes before the last two broadcast.
///
/// ∂A = g·Bᵀ and ∂B = Aᵀ·g, summed over broadcast batch axes. The gradient of an operand that is a transposed view is
/// computed transposed, as (B·gᵀ)ᵀ and (gᵀ·A)ᵀ. So it has the memory order of the operand: the gradient of a dense
/// weight is dense. This affects neither the graph nor the order in which higher-order gradients are summed.
struct MatrixProduct {
    transposed: [bool; 2],
    /// Whether the result is stored in column-major order, as the view (Bᵀ·Aᵀ)ᵀ.
    is_column_major: bool,
    /// Whether the result of small integers is the sum in `i32`.
    is_in_i32: bool,
}

impl Operation for MatrixProduct {
    fn name(&self) -> &'static str {
        "matmul"
    }
    fn forward(&self, inputs: &[&Array], saves: &mut SaveForBackward) -> Result<Arrays> {
        let device = Array::common_device("matmul", inputs)?;
        if saves.needs(1) {
            saves.input(0);
        }
        if saves.needs(0) {
            saves.input(1);
        }
        let out = match self.is_column_major {
            true => {
                transposed_view(&multiply(device, &[&transposed_view(inputs[1]), &transposed_view(inputs[0])], None)?)
            }
            false => {
                let epilogue = match inputs.get(2) {
                    Some(bias) => Some(added_bias(bias.dtype())?),
                    None => self.is_in_i32.then(stored_sums).transpose()?,
                };
                multiply(device, inputs, epilogue)?
            }
        };
        Ok(smallvec![out])
    }
    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, needs: NeedsInputGrad) -> Result<InputGradients> {
        let g = grads.get(0)?;
        let flip = |x: &Tensor| transpose(x, -1, -2);
        // The product of a number and a row or column is elementwise.
        let multiply = |a: &Tensor, b: &Tensor, g: &Tensor, is_column_major: bool| match g.shape()[g.rank() - 2..] {
            [1, 1] => arithmetic::mul(a, b),
            _ => product(a, b, None, is_column_major, false),
        };
        let mut gradients: InputGradients = SmallVec::from_elem(None, saved.inputs());
        if needs.contains(0) {
            let b = saved.input(1)?;
            let unreduced = multiply(&g, &flip(&b)?, &g, self.transposed[0])?;
            gradients[0] = Some(sum_to(&unreduced, &saved.input_shape(0))?);
        }
        if needs.contains(2) {
            gradients[2] = Some(sum_to(&g, &saved.input_shape(2))?);
        }
        if needs.contains(1) {
            let a = saved.input(0)?;
            // If all batch elements share the matrix, one product sums over the batch.
            let (a, g) = fold_batch_into_rows(&a, &g, saved.input_shape(1).rank())?.unwrap_or((a, g));
            let unreduced = multiply(&flip(&a)?, &g, &g, self.transposed[1])?;
            gradients[1] = Some(sum_to(&unreduced, &saved.input_shape(1))?);
        }
        Ok(gradients)
    }
}

/// Returns the epilogue that adds a bias block by block. In half precision it reads the product in `f32`, so the sum is
/// rounded once.
fn added_bias(dtype: DType) -> Result<Arc<Program>> {
    let added = formula!(|product, bias| product + bias);
    match dtype {
        half @ (DType::F16 | DType::BF16) => {
            added.program(&Signature::new([DType::F32, half], DType::F32).with_output_dtypes([half])).cloned()
        }
        dtype => added.uniform_program(dtype).cloned(),
    }
}

/// Returns the epilogue that stores the sums of products of small integers in `i32`.
fn stored_sums() -> Result<Arc<Program>> {
    formula!(|sum| sum).uniform_program(DType::I32).cloned()
}

/// Submits the kernel into a new array. `inputs` are A, B and the further inputs of the epilogue.
fn multiply(device: Device, inputs: &[&Array], epilogue: Option<Arc<Program>>) -> Result<Array> {
    let kernel = Kernel::MatMul(MatMul { epilogue, ..MatMul::default() });
    let metas: SmallVec<[Meta; 4]> = inputs.iter().map(|array| array.meta()).collect();
    let out = kernel.infer(&metas)?.pop().expect("a matrix product must have one output");
    let out = Array::new(device, out.dtype, out.shape)?;
    engine::submit(&kernel, inputs, &[&out])?;
    Ok(out)
}

/// Returns a view with the last two axes swapped.
fn transposed_view(x: &Array) -> Array {
    let mut order: SmallVec<[usize; 6]> = (0..x.shape().rank()).collect();
    let last = order.len() - 1;
    order.swap(last - 1, last);
    x.view(x.layout().permute(&order))
}

fn product(a: &Tensor, b: &Tensor, bias: Option<&Tensor>, is_column_major: bool, is_in_i32: bool) -> Result<Tensor> {
    let column_by_column = |x: &Tensor| {
        let layout = x.array().layout();
        !layout.is_contiguous() && layout.strides()[x.rank() - 2] == 1
    };
    let inputs: SmallVec<[&Tensor; 4]> = [a, b].into_iter().chain(bias).collect();
    let transposed = [column_by_column(a), column_by_column(b)];
    apply_one(MatrixProduct { transposed, is_column_major, is_in_i32 }, &inputs)
}

/// Merges the batch axes of A and g with their row axis, if B has rank 2 and all batch elements share it.
fn fold_batch_into_rows(a: &Tensor, g: &Tensor, rank: usize) -> Result<Option<(Tensor, Tensor)>> {
    let rows = |t: &Tensor| t.shape()[..t.rank() - 1].iter().product::<usize>();
    if rank != 2 || a.rank() == 2 || rows(a) != rows(g) {
        return Ok(None);
    }
    let flat = |t: &Tensor| reshape_to(t, &[rows(t), t.shape()[t.rank() - 1]].into());
    Ok(Some((flat(a)?, flat(g)?)))
}

/// Computes the matrix product, like NumPy's `@`.
///
/// The last two axes are matrices, and the axes before them broadcast. A 1-D first operand is a row, and a 1-D second
/// operand is a column; the result does not have this axis. Dtypes are promoted; two boolean operands are rejected.
///
/// # Errors
/// [`Error::ShapeMismatch`] if the inner lengths differ, for 0-d operands, and if batch axes do not broadcast;
/// [`Error::DTypeMismatch`] for two boolean operands.
#[doc(alias("mm", "bmm", "mv"))]
#[tensor_method(autocast = Half)]
pub fn matmul(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    matmul_with(a, b, None)
}

/// Computes the [matrix product](matmul) of integers with sums in `i32`, as layers with quantised weights need it.
///
/// The operands are `u8`, `i8`, `i16` or `i32`. The sums are exact modulo 2³². For factors x and y that represent
/// s·(x − p) and t·(y − q), the product of matrices is s·t times
///
/// > Σ xᵢₖ·yₖⱼ − q·Σ xᵢₖ − p·Σ yₖⱼ + k·p·q,
///
/// where the first sum is this product, and the others are sums of rows and of columns.
///
/// On processors with AVX2, AVX512-VNNI or AMX-INT8, `i8` is several times faster than the other dtypes.
///
/// # Errors
/// [`Error::DTypeMismatch`] for other dtypes, and the shape errors of [`matmul`].
#[doc(alias("MatMulInteger", "_int_mm"))]
#[tensor_method]
pub fn matmul_integer(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let dtype = a.dtype().promote(b.dtype());
    if !dtype.is_int() || dtype == DType::I64 {
        let help = "both operands must be integers of at most 32 bits; matmul() multiplies other dtypes";
        return Err(Error::dtypes("matmul_integer", [a.dtype(), b.dtype()], help));
    }
    matmul_in(true, a, b, None)
}

/// Computes A·B + b. A bias that is a vector over the columns is added in the kernel's epilogue.
fn matmul_with(a: &Tensor, b: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    matmul_in(false, a, b, bias)
}

/// Computes A·B + b. If `is_in_i32`, the operands are small integers and the result is `i32`.
fn matmul_in(is_in_i32: bool, a: &Tensor, b: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let op = if is_in_i32 { "matmul_integer" } else { "matmul" };
    let mismatch = |help: &str| Error::shapes(op, [a.shape(), b.shape()], help);
    if a.rank() == 0 || b.rank() == 0 {
        return Err(mismatch("0-d tensors have no matrix product; multiply with *"));
    }
    let inner = (a.shape()[a.rank() - 1], b.shape()[b.rank().max(2) - 2]);
    if inner.0 != inner.1 {
        let help = format!("the inner lengths {} and {} must be equal; transpose one operand?", inner.0, inner.1);
        return Err(mismatch(&help));
    }
    let dtype = a.dtype().promote(b.dtype());
    if dtype == DType::Bool {
        return Err(Error::dtypes("matmul", [a.dtype(), b.dtype()], "booleans have no matrix product; use to_dtype()"));
    }
    let dtype = precision::autocast_operand_dtype("matmul", &[a, b]).unwrap_or(dtype);
    // Adding the bias to the rounded product would round half precision twice.
    if let Some(bias) = bias.filter(|bias| matches!(dtype, DType::F16 | DType::BF16) && !is_epilogue(bias, dtype, b)) {
        let [a, b, wide] = [
            copy::to_dtype(a, dtype)?,
            copy::to_dtype(b, dtype)?,
            copy::to_dtype(bias, bias.dtype().promote(DType::F32))?,
        ];
        let [a, b] = [copy::to_dtype(&a, DType::F32)?, copy::to_dtype(&b, DType::F32)?];
        // Under autocast, the product of the wide operands would be cast again.
        let _off = autocast_off();
        return copy::to_dtype(&matmul_with(&a, &b, Some(&wide))?, dtype.promote(bias.dtype()));
    }
    let (x, y) = (copy::to_dtype(a, dtype)?, copy::to_dtype(b, dtype)?);
    let x = if a.rank() == 1 { view::unsqueeze(&x, 0)? } else { x };
    let y = if b.rank() == 1 { view::unsqueeze(&y, 1)? } else { y };
    let (inside, after) = match bias {
        Some(bias) if is_epilogue(bias, dtype, b) => (Some(bias), None),
        other => (None, other),
    };
    // A batch of rows times one matrix is computed as one product with more rows, for every layout, because products
    // with different row counts may sum in different orders.
    let joined = (x.rank() > 2 && y.rank() == 2).then(|| x.shape()[..x.rank() - 1].iter().product::<usize>());
    let product = match joined {
        Some(rows) => {
            let flat = product(&reshape_to(&x, &[rows, inner.0].into())?, &y, inside, false, is_in_i32)?;
            let shape = x.shape().with_axis(x.rank() - 1, y.shape()[1]);
            reshape_to(&flat, &shape)?
        }
        None => product(&x, &y, inside, false, is_in_i32)?,
    };
    let product = if a.rank() == 1 { view::squeeze(&product, -2)? } else { product };
    let product = if b.rank() == 1 { view::squeeze(&product, -1)? } else { product };
    match after {
        None => Ok(product),
        Some(bias) => arithmetic::add(product, bias),
    }
}

/// Returns true if the kernel of a product with B can add the bias: a vector over the columns of one matrix.
fn is_epilogue(bias: &Tensor, dtype: DType, b: &Tensor) -> bool {
    bias.dtype() == dtype && b.rank() == 2 && bias.shape()[..] == b.shape()[1..]
}

/// Computes the inner product Σ aᵢ·bᵢ of two vectors, a 0-d tensor.
///
/// # Errors
/// [`Error::ShapeMismatch`] unless both are 1-D with equal length.
#[tensor_method]
pub fn dot(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    if a.rank() != 1 || b.rank() != 1 {
        let help = "both inputs must be vectors; matmul() multiplies tensors of any rank";
        return Err(Error::shapes("dot", [a.shape(), b.shape()], help));
    }
    matmul(a, b)
}

/// Computes the outer product aᵢ·bⱼ of two vectors, `[n, m]`.
///
/// # Errors
/// [`Error::ShapeMismatch`] unless both are 1-D.
#[doc(alias = "ger")]
#[tensor_method]
pub fn outer(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    if a.rank() != 1 || b.rank() != 1 {
        return Err(Error::shapes(
            "outer",
            [a.shape(), b.shape()],
            "both inputs must be vectors; flatten() them first",
        ));
    }
    arithmetic::mul(&view::unsqueeze(a, 1)?, b)
}

/// Computes y = x·Wᵀ + b, for x `[.., in]`, W `[out, in]`, b `[out]`; y is `[.., out]`. For W `[in]`, y is `[..]`.
///
/// # Errors
/// [`Error::ShapeMismatch`] unless the last axes of x and W have equal lengths; the errors of [`matmul`] and of the
/// addition.
#[tensor_method(autocast = Half)]
pub fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    in_policy_dtype!("linear", [x, weight; bias] => linear(x, weight, bias));
    let mismatch = |help: &str| Err(Error::shapes("linear", [x.shape(), weight.shape()], help));
    match (x.shape().last(), weight.shape().last()) {
        (None, _) => mismatch("a 0-d input has no feature axis; add one with unsqueeze(0)"),
        (Some(given), Some(wanted)) if given != wanted => mismatch(&format!(
            "the last axis of the input has length {given}, but the weight [out, in] requires {wanted}; reshape the input, \
                 or transpose the weight if it is [in, out]"
        )),
        _ if weight.rank() == 1 => matmul_with(x, weight, bias),
        _ if weight.rank() == 2 => {
            let outputs = weight.shape()[0];
            if let Some(bias) = bias
                && bias.shape().last().is_some_and(|&len| len != outputs && len != 1 && outputs != 1)
            {
                let help =
                    format!("the bias must have length {outputs}, the number of outputs of the weight [out, in]");
                return Err(Error::shapes("linear", [x.shape(), weight.shape(), bias.shape()], help));
            }
            matmul_with(x, &view::t(weight)?, bias)
        }
        _ => mismatch("the weight must be [out, in] or [in]"),
    }
}

/// Computes the sum of the main diagonal of a matrix.
///
/// # Errors
/// [`Error::ShapeMismatch`] unless x is a matrix.
#[tensor_method]
pub fn trace(x: &Tensor) -> Result<Tensor> {
    if x.rank() != 2 {
        return Err(Error::shapes("trace", [x.shape()], "the input must be a matrix; for a batch, sum its diagonal()"));
    }
    reductions::sum(&diagonal(x, 0, 0, 1)?, ..)
}

/// Computes the cross product a × b along an axis of length 3, with broadcasting. `axis` is an axis of the broadcast
/// shape.
///
/// # Errors
/// [`Error::AxisOutOfRange`]; [`Error::ShapeMismatch`] unless the axis has length 3 in both.
#[tensor_method]
pub fn cross(a: &Tensor, b: &Tensor, axis: isize) -> Result<Tensor> {
    let mismatch = |help: &str| Error::shapes("cross", [a.shape(), b.shape()], help);
    let shape = check::common_shape("cross", &[a, b], "the shapes must broadcast")?;
    let axis_from_end = shape.axis("cross", axis)? as isize - shape.rank() as isize;
    let fits = |t: &Tensor| {
        t.rank() as isize + axis_from_end >= 0 && t.shape()[(t.rank() as isize + axis_from_end) as usize] == 3
    };
    if !fits(a) || !fits(b) {
        return Err(mismatch("the axis must have length 3 in both operands"));
    }
    in_single!("cross", [a, b] => cross(a, b, axis));
    // (a × b)ᵢ = aⱼ·bₖ − aₖ·bⱼ with j = i + 1 and k = i + 2, modulo 3.
    let formula = formula! {
        static cross(a0, a1, a2, b0, b1, b2) = (a1 * b2 - a2 * b1, a2 * b0 - a0 * b2, a0 * b1 - a1 * b0);
    };
    let (a, b) = (split(a, 1, axis_from_end)?, split(b, 1, axis_from_end)?);
    let components = map_all(formula, &a.iter().chain(&b).collect::<SmallVec<[&Tensor; 6]>>(), &[])?;
    concatenate(&components, axis_from_end)
}
