//! Tables of operations over axes. An entry consists of the documentation, signature and definition of an operation.

use crate::ops::call::axes::Axes;
use crate::ops::formula::apply_rows_in;
use crate::ops::primitive::copy::to_dtype;
use crate::ops::primitive::precision::{round_to_operands, widened_dtype};
use crate::ops::primitive::view::reshape_to;
use crate::tensor::Tensor;
use pellucid_ir::formula::Formula;
use pellucid_ir::{DType, Result};

/// Defines operations of one tensor over axes, each by an expression that returns a `Result`.
///
/// The axes follow a semicolon, after all other arguments. `x: floats` rejects other dtypes. The result is one tensor
/// unless the entry declares its type. `autocast` is the policy of the operation if it is not `Promote`. All operations
/// of a table document the same errors.
macro_rules! over_axes {
    (errors = $errors:literal; $(
        $(#[$doc:meta])*
        $name:ident ($x:ident $(: $domain:ident)? $(, $k:ident: $t:ty)*; $axes:ident) $(-> $y:ty)? = $definition:expr
            $(, autocast = $policy:ident)?;
    )*) => {$(
        $(#[$doc])*
        ///
        /// # Errors
        #[doc = $errors]
        #[pellucid_derive::tensor_method($(autocast = $policy)?)]
        pub fn $name(
            $x: &$crate::Tensor $(, $k: $t)*, $axes: impl Into<$crate::ops::call::axes::Axes>
        ) -> pellucid_ir::Result<$crate::ops::formula::over_axes::over_axes!(@result $($y)?)> {
            $($crate::ops::call::check::$domain(stringify!($name), &[$x])?;)?
            $definition
        }
    )*};

    (@result) => { $crate::Tensor };
    (@result $y:ty) => { $y };
}

/// Defines operations over axes by row formulas. A formula with one value per row reduces the axes. The result of any
/// other formula has the shape of x.
///
/// An entry may declare a derivative that reads the result, if it is cheaper than the symbolic derivative.
macro_rules! row_formula {
    (errors = $errors:literal; $(
        $(#[$doc:meta])*
        $name:ident ($x:ident $(: $domain:ident)?; $axes:ident) = $body:expr
            $(, autocast = $policy:ident)? $(, d $wrt:ident = $d:expr)?;
    )*) => {
        $crate::ops::formula::over_axes::over_axes! {
            errors = $errors;
            $(
                $(#[$doc])*
                $name($x $(: $domain)?; $axes) = $crate::ops::formula::over_axes::apply_row_formula(
                    pellucid_ir::formula! { static $name($x) = $body; $(d $wrt = $d;)? }, $x, $axes
                ) $(, autocast = $policy)?;
            )*
        }
    };
}

pub(in crate::ops) use {over_axes, row_formula};

/// Returns floats unchanged, and converts other dtypes to `f32`.
pub(in crate::ops) fn as_float(x: &Tensor) -> Result<Tensor> {
    if x.dtype().is_float() { Ok(x.clone()) } else { to_dtype(x, DType::F32) }
}

/// Applies a row formula to rows over `axes`. Half precision is rounded once, after the kernel. The gradients of these
/// formulas contain cancellation or amplify rounding errors, so they read the unrounded result.
pub(in crate::ops) fn apply_row_formula(formula: &Formula, x: &Tensor, axes: Axes) -> Result<Tensor> {
    let axes = axes.resolve(formula.name(), x.shape())?;
    let y = apply_rows_in(formula, &[&as_float(x)?], &[], axes.set, widened_dtype(&[x]))?;
    let y = round_to_operands(formula.name(), &[x], y)?;
    if formula.outputs()[0].per_row { reshape_to(&y, &axes.shape(x.shape())) } else { Ok(y) }
}
