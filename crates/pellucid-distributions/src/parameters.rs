//! Parameters of distributions: conversion, broadcasting and checks. Macros that define families.

use crate::constraint::Constraint;
use pellucid_tensor::ops::TensorOrScalar;
use pellucid_tensor::{DType, Error, Result, Shape, Tensor, ops};

/// Returns the parameters as float tensors of the same dtype, without broadcasting. Numbers take the dtype of the
/// tensors, or `f32` if there are none.
pub(crate) fn float_tensors<const N: usize>(
    op: &'static str,
    parameters: [(&str, TensorOrScalar<'_>); N],
) -> Result<[Tensor; N]> {
    let tensor = |parameter: &TensorOrScalar<'_>| match parameter {
        TensorOrScalar::Borrowed(tensor) => Some((*tensor).clone()),
        TensorOrScalar::Owned(tensor) => Some(tensor.clone()),
        TensorOrScalar::Replaced(tensor) => Some((**tensor).clone()),
        TensorOrScalar::Scalar(_) => None,
    };
    let dtypes = parameters.iter().filter_map(|(_, parameter)| tensor(parameter)).map(|tensor| tensor.dtype());
    let dtype = dtypes.reduce(DType::promote).unwrap_or(DType::F32);
    if !dtype.is_float() {
        // Numbers have no dtype, so a parameter is a tensor.
        let name = parameters.iter().find(|(_, parameter)| tensor(parameter).is_some()).map_or("", |(name, _)| name);
        return Err(Error::dtypes(
            op,
            [dtype],
            format!("`{name}` must have a float dtype, got {dtype}; use to_dtype()"),
        ));
    }
    let mut tensors = Vec::with_capacity(N);
    for (_, parameter) in &parameters {
        tensors.push(match (tensor(parameter), parameter) {
            (Some(tensor), _) => ops::to_dtype(&tensor, dtype)?,
            (None, TensorOrScalar::Scalar(number)) => ops::full(Shape::scalar(), *number, dtype)?,
            (None, _) => unreachable!("an operand is a tensor or a number"),
        });
    }
    Ok(tensors.try_into().unwrap_or_else(|_| unreachable!("one tensor is created for each parameter")))
}

/// Returns the parameters as float tensors of the same dtype, broadcast to one shape, and checks their values.
pub(crate) fn broadcast_parameters<const N: usize>(
    op: &'static str,
    parameters: [(&str, TensorOrScalar<'_>, Constraint); N],
) -> Result<[Tensor; N]> {
    let names = parameters.each_ref().map(|(name, ..)| *name);
    let constraints = parameters.each_ref().map(|(.., constraint)| constraint.clone());
    let tensors = float_tensors(op, parameters.map(|(name, parameter, _)| (name, parameter)))?;
    for ((name, constraint), tensor) in names.iter().zip(&constraints).zip(&tensors) {
        constraint.check(op, name, tensor)?;
    }
    let shape = tensors.iter().try_fold(Shape::scalar(), |shape, tensor| shape.broadcast(tensor.shape()));
    let Some(shape) = shape else {
        let help = format!("{} must broadcast", names.map(|name| format!("`{name}`")).join(" and "));
        return Err(Error::shapes(op, tensors.iter().map(Tensor::shape), help));
    };
    let mut expanded = Vec::with_capacity(N);
    for tensor in &tensors {
        expanded.push(ops::broadcast_to(tensor, shape.clone())?);
    }
    Ok(expanded.try_into().unwrap_or_else(|_| unreachable!("one tensor is created for each parameter")))
}

/// Defines a family with broadcasting parameters: the struct, its constructors, and a method for each parameter.
macro_rules! family {
    (
        $(#[$doc:meta])*
        $family:ident($op:literal) { $($(#[$parameter_doc:meta])* $parameter:ident: $constraint:ident),+ $(,)? }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $family {
            $($parameter: pellucid_tensor::Tensor),+
        }

        impl $family {
            /// Creates the distribution from tensors or numbers, which broadcast.
            ///
            /// # Errors
            /// [`Error::InvalidArgument`](pellucid_tensor::Error::InvalidArgument) for a value outside the range of its
            /// parameter, if values can be read; [`Error::ShapeMismatch`](pellucid_tensor::Error::ShapeMismatch),
            /// [`Error::DTypeMismatch`](pellucid_tensor::Error::DTypeMismatch) for integers.
            #[pellucid_derive::panicking_form]
            pub fn try_new<'a>(
                $($parameter: impl Into<pellucid_tensor::ops::TensorOrScalar<'a>>),+
            ) -> pellucid_tensor::Result<$family> {
                let [$($parameter),+] = crate::parameters::broadcast_parameters(
                    $op,
                    [$((stringify!($parameter), $parameter.into(), crate::Constraint::$constraint)),+],
                )?;
                Ok($family { $($parameter),+ })
            }

            $(
                $(#[$parameter_doc])*
                pub fn $parameter(&self) -> &pellucid_tensor::Tensor {
                    &self.$parameter
                }
            )+
        }
    };
}

/// Applies an elementwise formula to tensors that broadcast. `d` lines declare derivatives, as in `formula!`.
macro_rules! elementwise {
    ($name:ident($($x:ident = $tensor:expr),+ $(,)?) => $body:expr $(; $(d $wrt:ident = $derivative:expr;)+)?) => {
        pellucid_tensor::ops::map(
            pellucid_tensor::formula! { static $name($($x),+) = $body; $($(d $wrt = $derivative;)+)? },
            &[$($tensor),+],
            &[],
        )
    };
}

pub(crate) use {elementwise, family};
