//! Products and powers of matrices.

use super::inv::inv;
use crate::autocast::autocast_off;
use crate::ops::call::axes::check_reduction_rank;
use crate::ops::call::check;
use crate::ops::elementwise::arithmetic;
use crate::ops::formula::map_sum;
use crate::ops::primitive::precision::{self, in_single, widen_all_operands};
use crate::ops::primitive::{copy, fill, view};
use crate::ops::products::matmul::matmul;
use crate::ops::reduce::reductions;
use crate::ops::shape::{diagonal, join};
use crate::tensor::Tensor;
use pellucid_derive::{operation, tensor_method};
use pellucid_ir::{DType, Error, Result, formula};

/// Computes the n-th power of square matrices: the identity for n = 0, and the |n|-th power of the inverse for n < 0.
///
/// # Errors
/// [`Error::ShapeMismatch`] unless they are square; for n < 0 the errors of [`inv`].
#[tensor_method(autocast = Half)]
pub fn matrix_power(x: &Tensor, n: isize) -> Result<Tensor> {
    let square = x.rank() >= 2 && x.shape()[x.rank() - 1] == x.shape()[x.rank() - 2];
    if !square {
        return Err(Error::shapes("matrix_power", [x.shape()], "the matrices must be square"));
    }
    if n == 0 {
        let ones = fill::full_on_device_of(x, &x.shape()[..x.rank() - 1], 1, x.dtype())?;
        return diagonal::diag_embed(&ones, 0, -2, -1);
    }
    let dtype = precision::autocast_operand_dtype("matrix_power", &[x]).unwrap_or(x.dtype());
    if matches!(dtype, DType::F16 | DType::BF16) {
        let x = copy::to_dtype(&copy::to_dtype(x, dtype)?, DType::F32)?;
        let _off = autocast_off();
        return copy::to_dtype(&matrix_power(&x, n)?, dtype);
    }
    // Binary exponentiation, from the highest bit of n.
    let (base, n) = (if n < 0 { inv(x)? } else { x.clone() }, n.unsigned_abs());
    let mut power = base.clone();
    for digit in (0..n.ilog2()).rev() {
        power = matmul(&power, &power)?;
        if n >> digit & 1 == 1 {
            power = matmul(&power, &base)?;
        }
    }
    Ok(power)
}

/// Multiplies two or more matrices in the order with the fewest scalar multiplications (Cormen et al., 15.2).
///
/// The first operand may be a vector (a row), and so may the last (a column). For a vector, the result does not have
/// the corresponding axis of length 1. Dtypes are promoted.
///
/// # Errors
/// [`Error::ShapeMismatch`] for unsupported ranks, and if inner lengths differ; [`Error::InvalidArgument`] for fewer
/// than two matrices; [`Error::DTypeMismatch`] for booleans.
#[operation(autocast = Half)]
pub fn multi_dot(matrices: &[&Tensor]) -> Result<Tensor> {
    let op = "multi_dot";
    if matrices.len() > 2
        && let Some((rounding, matrices)) = widen_all_operands(op, matrices)?
    {
        return rounding.round(multi_dot(&matrices.iter().collect::<Vec<_>>())?);
    }
    let shapes = || matrices.iter().map(|m| m.shape());
    let [first, .., last] = matrices else {
        return Err(Error::invalid(op, format!("the list must contain at least two matrices, got {}", matrices.len())));
    };
    let count = matrices.len();
    let dtype = matrices.iter().fold(first.dtype(), |dtype, m| dtype.promote(m.dtype()));
    let mut factors: Vec<Tensor> = matrices.iter().map(|m| copy::to_dtype(m, dtype)).collect::<Result<_>>()?;
    if first.rank() == 1 {
        factors[0] = view::unsqueeze(&factors[0], 0)?;
    }
    if last.rank() == 1 {
        factors[count - 1] = view::unsqueeze(&factors[count - 1], 1)?;
    }
    let fits = |pair: &[Tensor]| pair[0].shape()[1] == pair[1].shape()[0];
    if factors.iter().any(|f| f.rank() != 2) || !factors.windows(2).all(fits) {
        return Err(Error::shapes(
            op,
            shapes(),
            "neighbouring matrices must have equal inner lengths, and only the first and the last may be vectors",
        ));
    }
    let lengths: Vec<usize> = factors.iter().map(|f| f.shape()[0]).chain([factors[count - 1].shape()[1]]).collect();
    let product = multiply_chain(&factors, &best_splits(&lengths), 0, count - 1)?;
    let product = if first.rank() == 1 { view::squeeze(&product, 0)? } else { product };
    if last.rank() == 1 { view::squeeze(&product, -1) } else { Ok(product) }
}

/// Returns the best split of each product of the factors i..=j: `cuts[i][j]` is the last factor of the left product.
fn best_splits(lengths: &[usize]) -> Vec<Vec<usize>> {
    let count = lengths.len() - 1;
    let (mut cost, mut cut) = (vec![vec![0u128; count]; count], vec![vec![0; count]; count]);
    for span in 1..count {
        for i in 0..count - span {
            let j = i + span;
            let total = |k: usize| {
                cost[i][k] + cost[k + 1][j] + [i, k + 1, j + 1].map(|a| lengths[a] as u128).iter().product::<u128>()
            };
            let (best, split_point) =
                (i..j).map(|k| (total(k), k)).min().expect("a product must have at least one split, since i < j");
            (cost[i][j], cut[i][j]) = (best, split_point);
        }
    }
    cut
}

fn multiply_chain(factors: &[Tensor], cuts: &[Vec<usize>], i: usize, j: usize) -> Result<Tensor> {
    if i == j {
        return Ok(factors[i].clone());
    }
    let k = cuts[i][j];
    matmul(&multiply_chain(factors, cuts, i, k)?, &multiply_chain(factors, cuts, k + 1, j)?)
}

/// Computes the powers 0, 1, .., n − 1 of every element, along a new last axis (the Vandermonde matrix).
///
/// The default of n is the length of the last axis.
///
/// # Errors
/// [`Error::ShapeMismatch`] for a 0-d tensor; [`Error::InvalidArgument`] for n = 0; [`Error::OutOfMemory`].
#[tensor_method]
pub fn vander(x: &Tensor, n: Option<usize>) -> Result<Tensor> {
    let Some(&len) = x.shape().last() else {
        return Err(Error::shapes(
            "vander",
            [x.shape()],
            "the input must have at least one axis; unsqueeze() adds one",
        ));
    };
    let n = n.unwrap_or(len);
    if n == 0 && len != 0 {
        return Err(Error::invalid("vander", "the number of powers must be at least 1, got 0"));
    }
    let shape = check::representable(x.shape().iter().copied().chain([n]).collect())?;
    in_single!("vander", [x] => vander(x, Some(n)));
    let powers = powers(x, n.max(1)).map_err(|error| error.with_shape(&shape))?;
    join::stack(&powers.iter().collect::<Vec<_>>(), -1)
}

/// Computes the powers 0, 1, .., n − 1 of every element, for n of at least 1.
///
/// # Errors
/// [`Error::OutOfMemory`].
pub(in crate::ops) fn powers(x: &Tensor, n: usize) -> Result<Vec<Tensor>> {
    check::affordable_parts(n)?;
    let mut powers = vec![fill::ones_like(x)?];
    for k in 1..n {
        powers.push(arithmetic::mul(&powers[k - 1], x)?);
    }
    Ok(powers)
}

/// Computes Σ aᵢ·bᵢ along an axis of the broadcast shape, which the result does not keep. Products of floats are summed
/// in the kernel that computes them, and are not stored.
///
/// # Errors
/// [`Error::ShapeMismatch`] if the shapes do not broadcast; [`Error::AxisOutOfRange`].
#[tensor_method(autocast = Single)]
pub fn vecdot(a: &Tensor, b: &Tensor, axis: isize) -> Result<Tensor> {
    let op = "vecdot";
    let shape = check::common_shape(op, &[a, b], "the shapes must broadcast")?;
    let axis_from_end = shape.axis(op, axis)? as isize - shape.rank() as isize;
    check_reduction_rank(op, &shape)?;
    in_single!(op, [a, b] => vecdot(a, b, axis_from_end));
    if !a.dtype().promote(b.dtype()).is_float() {
        return reductions::sum(&arithmetic::mul(a, b)?, axis_from_end);
    }
    let product = formula! { static vecdot(a, b) = a * b; };
    let axis = std::iter::once(shape.axis(op, axis_from_end)?).collect();
    view::squeeze(&map_sum(product, &[a, b], &[], axis, None)?, axis_from_end)
}
