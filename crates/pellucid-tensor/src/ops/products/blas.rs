//! Matrix products that are added to a tensor, β·x + α·A·B (BLAS levels 2 and 3), and the inner product of tensors.
//!
//! Half precision is rounded once, after the addition.

use crate::autocast::autocast_off;
use crate::ops::formula::map;
use crate::ops::primitive::copy::to_dtype;
use crate::ops::primitive::{precision, view};
use crate::ops::products::matmul;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::{DType, Error, Result, Scalar, Shape, formula};

/// The factors β of the addend and α of the product.
#[derive(Clone, Copy)]
struct ProductFactors {
    beta: Scalar,
    alpha: Scalar,
}

impl ProductFactors {
    /// Returns true if β is 0. The addend then has no effect, even if it contains NaN.
    fn ignores_addend(self) -> bool {
        self.beta.to_f64() == 0.0
    }
}

/// Computes β·x + α·`product`(a, b). The operands are promoted to a common dtype.
fn add_product(
    op: &'static str,
    [x, a, b]: [&Tensor; 3],
    factors: ProductFactors,
    product: fn(&Tensor, &Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    in_common_dtype(op, [x, a, b], |[x, a, b]| {
        let product = product(a, b)?;
        check_addend(op, [x, a, b], product.shape())?;
        if factors.ignores_addend() {
            return map(formula! { static scaled_product(p; alpha) = alpha * p; }, &[&product], &[factors.alpha]);
        }
        let sum = formula! { static add_product(x, p; beta, alpha) = beta * x + alpha * p; };
        map(sum, &[x, &product], &[factors.beta, factors.alpha])
    })
}

/// Calls `compute` with the operands in a common dtype, half precision in `f32`. The result is rounded once.
fn in_common_dtype(
    op: &'static str,
    operands: [&Tensor; 3],
    compute: impl FnOnce([&Tensor; 3]) -> Result<Tensor>,
) -> Result<Tensor> {
    let promoted = operands.iter().map(|t| t.dtype()).fold(operands[0].dtype(), DType::promote);
    let dtype = precision::autocast_operand_dtype(op, &operands).unwrap_or(promoted);
    let _off = autocast_off();
    let single = if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype };
    // Operands that autocast narrows are rounded first.
    let [x, a, b] = operands.map(|t| to_dtype(&to_dtype(t, dtype)?, single));
    let result = compute([&x?, &a?, &b?])?;
    if single == dtype { Ok(result) } else { to_dtype(&result, dtype) }
}

/// Returns an error unless the first tensor broadcasts to the shape of the product of the others.
fn check_addend(op: &'static str, tensors: [&Tensor; 3], product: &Shape) -> Result<()> {
    if tensors[0].shape().broadcasts_to(product) {
        return Ok(());
    }
    let help = format!("the first tensor must broadcast to the shape of the product, {product}");
    Err(Error::shapes(op, tensors.map(|t| t.shape()), &help))
}

/// Returns an error unless the operands of the product have these ranks.
fn check_ranks(op: &'static str, tensors: [&Tensor; 3], ranks: [usize; 2], help: &str) -> Result<()> {
    match tensors[1].rank() == ranks[0] && tensors[2].rank() == ranks[1] {
        true => Ok(()),
        false => Err(Error::shapes(op, tensors.map(|t| t.shape()), help)),
    }
}

/// Computes β·x + α·A·B for matrices A `[n, k]` and B `[k, m]`; x broadcasts to `[n, m]`.
///
/// With β = 0, x has no effect, even where it is NaN. Dtypes are promoted.
///
/// ```
/// use pellucid::Tensor;
/// let (x, a) = (Tensor::from([10.0, 20.0]), Tensor::from([[1.0, 2.0], [3.0, 4.0]]));
/// assert_eq!(x.addmm(&a, &a, 1.0, 1.0).to_vec::<f64>(), [17.0, 30.0, 25.0, 42.0]);
/// ```
///
/// # Errors
/// [`Error::ShapeMismatch`] unless A and B are matrices of equal inner lengths and x broadcasts to the product;
/// [`Error::DTypeMismatch`] for bool.
#[tensor_method(autocast = Half)]
pub fn addmm(x: &Tensor, a: &Tensor, b: &Tensor, beta: impl Into<Scalar>, alpha: impl Into<Scalar>) -> Result<Tensor> {
    let factors = ProductFactors { beta, alpha };
    check_ranks(
        "addmm",
        [x, a, b],
        [2, 2],
        "the factors must be two matrices; baddbmm() multiplies batches, addmv() a matrix and a vector",
    )?;
    add_product("addmm", [x, a, b], factors, matmul::matmul)
}

/// Computes β·x + α·A·v for a matrix A `[n, k]` and a vector v `[k]`; x broadcasts to `[n]`. See [`addmm`].
///
/// # Errors
/// [`Error::ShapeMismatch`] unless A is a matrix, v is a vector whose length is A's column count, and x broadcasts to
/// the product;
/// [`Error::DTypeMismatch`] for bool.
#[tensor_method(autocast = Half)]
pub fn addmv(x: &Tensor, a: &Tensor, v: &Tensor, beta: impl Into<Scalar>, alpha: impl Into<Scalar>) -> Result<Tensor> {
    let factors = ProductFactors { beta, alpha };
    check_ranks(
        "addmv",
        [x, a, v],
        [2, 1],
        "the factors must be a matrix and a vector; addmm() multiplies two matrices",
    )?;
    add_product("addmv", [x, a, v], factors, matmul::matmul)
}

/// Computes β·x + α·u·vᵀ for vectors u `[n]` and v `[m]`; x broadcasts to `[n, m]`. See [`addmm`].
///
/// # Errors
/// [`Error::ShapeMismatch`] unless u and v are vectors and x broadcasts to their outer product.
#[tensor_method]
pub fn addr(x: &Tensor, u: &Tensor, v: &Tensor, beta: impl Into<Scalar>, alpha: impl Into<Scalar>) -> Result<Tensor> {
    let factors = ProductFactors { beta, alpha };
    check_ranks("addr", [x, u, v], [1, 1], "the factors must be two vectors; ravel() them first")?;
    in_common_dtype("addr", [x, u, v], |[x, u, v]| {
        check_addend("addr", [x, u, v], &[u.size(), v.size()].into())?;
        let column = &view::unsqueeze(u, 1)?;
        if factors.ignores_addend() {
            let product = formula! { static scaled_outer(u, v; alpha) = alpha * (u * v); };
            return map(product, &[column, v], &[factors.alpha]);
        }
        if factors.beta.to_f64() == 1.0 {
            let sum = formula! { static addr(x, u, v; alpha) = x + alpha * (u * v); };
            return map(sum, &[x, column, v], &[factors.alpha]);
        }
        let sum = formula! { static addr(x, u, v; beta, alpha) = beta * x + alpha * (u * v); };
        map(sum, &[x, column, v], &[factors.beta, factors.alpha])
    })
}

/// Computes β·x + α·A·B for each pair of matrices of A `[N, n, k]` and B `[N, k, m]`; x broadcasts to `[N, n, m]`. See
/// [`addmm`].
///
/// # Errors
/// [`Error::ShapeMismatch`] unless A and B are batches of the same length with equal inner lengths, and x broadcasts to
/// the product; [`Error::DTypeMismatch`] for bool.
#[tensor_method(autocast = Half)]
pub fn baddbmm(
    x: &Tensor,
    a: &Tensor,
    b: &Tensor,
    beta: impl Into<Scalar>,
    alpha: impl Into<Scalar>,
) -> Result<Tensor> {
    let factors = ProductFactors { beta, alpha };
    check_batches("baddbmm", [x, a, b])?;
    add_product("baddbmm", [x, a, b], factors, matmul::matmul)
}

/// Computes β·x + α·Σ Aᵢ·Bᵢ over the pairs of matrices of A `[N, n, k]` and B `[N, k, m]`; x broadcasts to `[n, m]`.
/// See [`addmm`].
///
/// The sum is one product of `[n, N·k]` and `[N·k, m]`.
///
/// # Errors
/// The errors of [`baddbmm`].
#[tensor_method(autocast = Half)]
pub fn addbmm(x: &Tensor, a: &Tensor, b: &Tensor, beta: impl Into<Scalar>, alpha: impl Into<Scalar>) -> Result<Tensor> {
    let factors = ProductFactors { beta, alpha };
    check_batches("addbmm", [x, a, b])?;
    add_product("addbmm", [x, a, b], factors, |a, b| {
        let ([batch, n, k], m) = ([a.shape()[0], a.shape()[1], a.shape()[2]], b.shape()[2]);
        let rows = view::reshape(&view::transpose(a, 0, 1)?, [n, batch * k])?;
        matmul::matmul(&rows, &view::reshape(b, [batch * k, m])?)
    })
}

/// Returns an error unless A and B are batches of matrices with compatible shapes.
fn check_batches(op: &'static str, tensors: [&Tensor; 3]) -> Result<()> {
    check_ranks(
        op,
        tensors,
        [3, 3],
        "the factors must be batches [N, n, k] and [N, k, m]; addmm() multiplies two matrices",
    )?;
    let (a, b) = (tensors[1].shape(), tensors[2].shape());
    match a[0] == b[0] && a[2] == b[1] {
        true => Ok(()),
        false => {
            let help = "the batches [N, n, k] and [N, k, m] must have equal N and equal k";
            Err(Error::shapes(op, tensors.map(|t| t.shape()), help))
        }
    }
}

/// Computes the inner product Σ aᵢ·bᵢ of two tensors with the same number of elements, in row-major order.
///
/// This is NumPy's `vdot`: shapes may differ. [`dot`](crate::ops::dot) accepts only vectors.
///
/// # Errors
/// [`Error::ShapeMismatch`] if the element counts differ; [`Error::DTypeMismatch`] for bool.
#[tensor_method]
pub fn vdot(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    if a.size() != b.size() {
        let help = "both tensors must have the same number of elements";
        return Err(Error::shapes("vdot", [a.shape(), b.shape()], help));
    }
    matmul::matmul(&view::ravel(a)?, &view::ravel(b)?)
}
