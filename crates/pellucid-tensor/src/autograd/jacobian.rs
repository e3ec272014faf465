//! Matrices of derivatives, computed row by row: `jacobian`, `hessian`.

use super::transform::{GradOptions, REDUCE_THE_VALUE, grad_one, track_inputs};
use crate::grad_mode::{enable_grad, is_grad_enabled};
use crate::ops;
use crate::ops::primitive::fill::full_on_device_of;
use crate::tensor::Tensor;
use pellucid_ir::{Error, Result, Shape};

/// Computes the Jacobian of f at x: (f(x), J) with J of shape `[f(x)'s axes.., x's axes..]`.
///
/// There is one backward pass for each element of f(x). If grad mode is on and x requires a gradient, the result is
/// differentiable. If f(x) does not depend on x, J is zero.
///
/// ```
/// use pellucid::{jacobian, Tensor};
/// let x = Tensor::from([1.0f64, 2.0]);
/// let (_, j) = jacobian(|x| Ok(x.square()), &x)?;
/// assert_eq!(j.to_vec::<f64>(), [2.0, 0.0, 0.0, 4.0]);
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// # Errors
/// The errors of `f` and of [`grad`](super::grad); [`Error::DTypeMismatch`] if x is not a float.
pub fn jacobian(f: impl FnOnce(&Tensor) -> Result<Tensor>, x: &Tensor) -> Result<(Tensor, Tensor)> {
    jacobian_as("jacobian", f, x)
}

/// Computes the Jacobian. Errors name the operation `op`.
fn jacobian_as(op: &'static str, f: impl FnOnce(&Tensor) -> Result<Tensor>, x: &Tensor) -> Result<(Tensor, Tensor)> {
    let create_graph = is_grad_enabled();
    let _on = enable_grad();
    let x = track_inputs(op, create_graph, &[x])?.remove(0);
    let y = f(&x)?;
    let shape: Shape = y.shape().iter().chain(x.shape().iter()).copied().collect();
    if !y.requires_grad() || y.size() == 0 {
        let zeros = full_on_device_of(&x, shape, 0, x.dtype())?;
        return Ok((y, zeros));
    }
    let indices = ops::reshape(&Tensor::arange(0, y.size() as i64, 1), y.shape())?;
    let row = |k: usize| {
        let seed = ops::to_dtype(&ops::eq(&indices, k as i64)?, y.dtype())?;
        let retain_graph = k + 1 < y.size();
        let options = GradOptions { grad_outputs: vec![Some(seed)], create_graph, retain_graph, allow_unused: true };
        grad_one(&y, &x, options)
    };
    let rows: Vec<Tensor> = (0..y.size()).map(row).collect::<Result<_>>()?;
    let matrix = ops::stack(&rows, 0)?;
    Ok((y, ops::reshape(&matrix, &shape)?))
}

/// Computes the Hessian of a scalar function at x, the Jacobian of its gradient: (f(x), H) with H of shape `[x's
/// axes.., x's axes..]`. If f(x) or its gradient does not depend on x, H is zero.
///
/// ```
/// use pellucid::{hessian, Tensor};
/// let x = Tensor::from([1.0f64, 2.0]);
/// let (value, h) = hessian(|x| Ok(x.prod(..) + x.cube().sum(..)), &x)?;
/// assert_eq!(value.item::<f64>(), 11.0);
/// assert_eq!(h.to_vec::<f64>(), [6.0, 1.0, 1.0, 12.0]);
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// # Errors
/// The errors of `f` and of [`grad`](super::grad); [`Error::NotAScalar`] if f's value has more than one element;
/// [`Error::DTypeMismatch`] if x is not a float.
pub fn hessian(f: impl FnOnce(&Tensor) -> Result<Tensor>, x: &Tensor) -> Result<(Tensor, Tensor)> {
    let mut value = None;
    let gradient = |x: &Tensor| {
        let y = f(x)?;
        if y.size() != 1 {
            return Err(Error::NotAScalar { op: "hessian", shape: y.shape().clone(), help: REDUCE_THE_VALUE });
        }
        let options = GradOptions { create_graph: true, allow_unused: true, ..Default::default() };
        let gradient = grad_one(&y, x, options)?;
        value = Some(y);
        Ok(gradient)
    };
    let (_, hessian) = jacobian_as("hessian", gradient, x)?;
    Ok((value.expect("jacobian() must call the gradient function"), hessian))
}
