//! The operators `+ - * / %`, unary `-`, and `& | ^ !`, for tensors and numbers on both sides, and the corresponding
//! assignment operators.
//!
//! The result may reuse the storage of an operand that is uniquely owned, and passed by value or assigned to.

use crate::autograd::note_call_location;
use crate::ops::elementwise::arithmetic;
use crate::ops::elementwise::operand::TensorOrScalar;
use crate::panic;
use crate::tensor::Tensor;
use pellucid_ir::{Error, Result};

/// Implements a binary operator for pairs of operand types.
macro_rules! binary_operator {
    ($trait:ident $method:ident $op:path: $($left:ty, $right:ty;)*) => {$(
        impl std::ops::$trait<$right> for $left {
            type Output = Tensor;
            #[inline]
            #[track_caller]
            fn $method(self, other: $right) -> Tensor {
                let _call = note_call_location();
                panic::unwrap($op(self, other))
            }
        }
    )*};
}

macro_rules! binary_operators {
    ($($trait:ident $method:ident $op:path;)*) => {$(
        binary_operator! { $trait $method $op:
            &Tensor, &Tensor;
            &Tensor, Tensor;
            Tensor, &Tensor;
            Tensor, Tensor;
        }
        // The operators are implemented for only one type of each kind of literal. With two float types, the compiler
        // could not infer the type of the literal in `(&x * 2.0).sin()`.
        binary_operators!(@scalar $trait $method $op, f64 i64 bool);
    )*};
    (@scalar $trait:ident $method:ident $op:path, $($number:ty)*) => {$(
        binary_operator! { $trait $method $op:
            &Tensor, $number;
            Tensor, $number;
            $number, &Tensor;
            $number, Tensor;
        }
    )*};
}

binary_operators! {
    Add add arithmetic::add;
    Sub sub arithmetic::sub;
    Mul mul arithmetic::mul;
    Div div arithmetic::div;
    Rem rem arithmetic::rem;
    BitAnd bitand arithmetic::bitwise_and;
    BitOr bitor arithmetic::bitwise_or;
    BitXor bitxor arithmetic::bitwise_xor;
}

/// Returns the result of a compound assignment such as `+=`, or an error if it does not have the shape and dtype of the
/// old tensor.
#[inline]
fn check_replacement(operator: &'static str, old: &Tensor, result: Tensor) -> Result<Tensor> {
    match result.dtype() == old.dtype() && result.shape() == old.shape() {
        true => Ok(result),
        false => Err(changed_by(operator, old, &result)),
    }
}

#[cold]
fn changed_by(operator: &'static str, old: &Tensor, result: &Tensor) -> Error {
    let binary = operator.trim_end_matches('=');
    if result.shape() != old.shape() {
        let help = format!(
            "the result has shape {}, but `x {operator} y` cannot change the shape of x; write x = &x {binary} y",
            result.shape(),
        );
        return Error::shapes(operator, [old.shape(), result.shape()], help);
    }
    let help = format!(
        "the result has dtype {}, but `x {operator} y` cannot change the dtype of x; use to_dtype(), or write x = &x {binary} y",
        result.dtype(),
    );
    Error::dtypes(operator, [old.dtype(), result.dtype()], help)
}

macro_rules! assigning_operators {
    ($($trait:ident $method:ident $symbol:literal $op:path;)*) => {$(
        impl<'a, T: Into<TensorOrScalar<'a>>> std::ops::$trait<T> for Tensor {
            #[doc = concat!("Replaces this handle by the result: `x ", $symbol, "= y` is `x = &x ", $symbol, " y`.")]
            ///
            /// The result is a new tensor, recorded as by the binary operator. Other handles and views of the old
            /// tensor do not change; `copy_` and `set` write in place. Without other handles, the result may reuse the
            /// storage of the old tensor.
            ///
            /// # Panics
            /// Panics if the binary operator panics, or if the shape or dtype of the result differs from the shape or
            /// dtype of x. The handle is then unchanged.
            #[inline]
            #[track_caller]
            fn $method(&mut self, other: T) {
                let _call = note_call_location();
                let other: TensorOrScalar<'a> = other.into();
                let result = $op(TensorOrScalar::Replaced(self), other);
                *self = panic::unwrap(result.and_then(|result| check_replacement(concat!($symbol, "="), self, result)));
            }
        }
    )*};
}

assigning_operators! {
    AddAssign add_assign "+" arithmetic::add;
    SubAssign sub_assign "-" arithmetic::sub;
    MulAssign mul_assign "*" arithmetic::mul;
    DivAssign div_assign "/" arithmetic::div;
    RemAssign rem_assign "%" arithmetic::rem;
    BitAndAssign bitand_assign "&" arithmetic::bitwise_and;
    BitOrAssign bitor_assign "|" arithmetic::bitwise_or;
    BitXorAssign bitxor_assign "^" arithmetic::bitwise_xor;
}

macro_rules! unary_operators {
    ($($trait:ident $method:ident $op:path;)*) => {$(
        impl std::ops::$trait for &Tensor {
            type Output = Tensor;
            #[inline]
            #[track_caller]
            fn $method(self) -> Tensor {
                let _call = note_call_location();
                panic::unwrap($op(self))
            }
        }
        impl std::ops::$trait for Tensor {
            type Output = Tensor;
            #[inline]
            #[track_caller]
            fn $method(self) -> Tensor {
                let _call = note_call_location();
                panic::unwrap($op(&self))
            }
        }
    )*};
}

unary_operators! {
    Neg neg arithmetic::neg;
    Not not arithmetic::bitwise_not;
}

impl std::iter::Sum for Tensor {
    /// Computes the sum of tensors, from left to right. The sum of no tensors is 0 (`f32`, 0-d).
    fn sum<I: Iterator<Item = Tensor>>(tensors: I) -> Tensor {
        tensors.reduce(|a, b| a + b).unwrap_or_else(|| Tensor::scalar(0, pellucid_ir::DType::F32))
    }
}

impl<'a> std::iter::Sum<&'a Tensor> for Tensor {
    /// Computes the sum of tensors, from left to right. The sum of no tensors is 0 (`f32`, 0-d), and the sum of one
    /// tensor is another handle to it.
    fn sum<I: Iterator<Item = &'a Tensor>>(tensors: I) -> Tensor {
        tensors.cloned().sum()
    }
}
