//! Parameters as one vector, for optimizers, line searches and averages that work on flat arrays.

use crate::parameter::Parameter;
use pellucid_tensor::{Error, Result, Tensor, no_grad, ops};

/// Concatenates the elements of all parameters to one vector, in order: PyTorch's `nn.utils.parameters_to_vector`. The
/// vector is differentiable in the parameters.
///
/// ```
/// use pellucid::nn::{Linear, Module, parameters_to_vector, vector_to_parameters};
/// let layer = Linear::new(3, 2);
/// let parameters = layer.parameters();
/// let vector = parameters_to_vector(&parameters)?;
/// assert_eq!(vector.shape().dims(), [2 * 3 + 2]);
/// vector_to_parameters(&(vector * 0.5), &parameters)?;
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// # Errors
/// [`Error::InvalidArgument`] if there is no parameter; [`Error::DTypeMismatch`] for parameters of several dtypes;
/// [`Error::DeviceMismatch`] for parameters on several devices.
pub fn parameters_to_vector(parameters: &[Parameter]) -> Result<Tensor> {
    let op = "parameters_to_vector";
    let Some(first) = parameters.first() else {
        return Err(Error::invalid(op, "the list of parameters must not be empty; use the parameters() of a model"));
    };
    if let Some(other) = parameters.iter().find(|other| other.dtype() != first.dtype()) {
        let help = "all parameters must have the same dtype; convert the model with to_dtype_()";
        return Err(Error::dtypes(op, [first.dtype(), other.dtype()], help));
    }
    let parts: Vec<Tensor> = parameters.iter().map(|parameter| ops::ravel(parameter)).collect::<Result<_>>()?;
    ops::concatenate(&parts, 0)
}

/// Overwrites all parameters in place with the elements of a vector, in the order of [`parameters_to_vector`]:
/// PyTorch's `nn.utils.vector_to_parameters`. The parameters stay the same tensors, so optimizers stay attached. The
/// write is not recorded for autograd; a captured step may contain it.
///
/// # Errors
/// [`Error::ShapeMismatch`] unless the vector has one axis, whose length is the number of elements of all parameters;
/// [`Error::DTypeMismatch`] if its dtype is not the dtype of every parameter; [`Error::DeviceMismatch`] if it is pinned
/// to another device. On error no parameter is changed.
pub fn vector_to_parameters(vector: &Tensor, parameters: &[Parameter]) -> Result<()> {
    let op = "vector_to_parameters";
    let sizes: Vec<usize> = parameters.iter().map(|parameter| parameter.size()).collect();
    let size: usize = sizes.iter().sum();
    if vector.shape().dims() != [size] {
        let help = format!("the vector must have one axis of length {size}, the number of elements of all parameters");
        return Err(Error::shapes(op, [vector.shape()], help));
    }
    if let Some(other) = parameters.iter().find(|other| other.dtype() != vector.dtype()) {
        let help =
            format!("the vector must have the dtype of the parameters; use to_dtype(DType::{:?})", other.dtype());
        return Err(Error::dtypes(op, [vector.dtype(), other.dtype()], help));
    }
    if let Some(other) = parameters.iter().find(|other| other.device() != vector.device() && !vector.is_free()) {
        let devices = [vector, other.tensor()].map(|tensor| tensor.device().name().to_string()).into();
        return Err(Error::DeviceMismatch { op, devices });
    }
    let _off = no_grad();
    let mut start = 0;
    for (parameter, size) in parameters.iter().zip(sizes) {
        let values = ops::narrow(&vector.detach(), 0, start, size)?;
        ops::copy_(parameter, &ops::reshape(&values, parameter.shape())?)?;
        start += size;
    }
    Ok(())
}
