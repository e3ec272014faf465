//! The operators: `+ - * / % -` and `& | ^ !`, for tensors and numbers on both sides.
//!
//! An operand that is given away, and that nobody else can see, lends its memory to the result.

use super::Tensor;
use crate::autograd::called;
use crate::ops;
use crate::panic;

macro_rules! binary_operators {
    ($($trait:ident $method:ident $op:path;)*) => {$(
        impl std::ops::$trait<&Tensor> for &Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: &Tensor) -> Tensor {
                let _call = called();
                panic::unwrap($op(self, other))
            }
        }
        impl std::ops::$trait<Tensor> for &Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: Tensor) -> Tensor {
                let _call = called();
                panic::unwrap($op(self, other))
            }
        }
        impl std::ops::$trait<&Tensor> for Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: &Tensor) -> Tensor {
                let _call = called();
                panic::unwrap($op(self, other))
            }
        }
        impl std::ops::$trait<Tensor> for Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: Tensor) -> Tensor {
                let _call = called();
                panic::unwrap($op(self, other))
            }
        }
        // One type for each kind of literal: with two, `(&x * 2.0).sin()` would not know its type.
        binary_operators!(@scalar $trait $method $op, f64 i64 bool);
    )*};
    (@scalar $trait:ident $method:ident $op:path, $($t:ty)*) => {$(
        impl std::ops::$trait<$t> for &Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: $t) -> Tensor {
                let _call = called();
                panic::unwrap($op(self, other))
            }
        }
        impl std::ops::$trait<$t> for Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: $t) -> Tensor {
                let _call = called();
                panic::unwrap($op(self, other))
            }
        }
        impl std::ops::$trait<&Tensor> for $t {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: &Tensor) -> Tensor {
                let _call = called();
                panic::unwrap($op(self, other))
            }
        }
        impl std::ops::$trait<Tensor> for $t {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: Tensor) -> Tensor {
                let _call = called();
                panic::unwrap($op(self, other))
            }
        }
    )*};
}

binary_operators! {
    Add add ops::add;
    Sub sub ops::sub;
    Mul mul ops::mul;
    Div div ops::div;
    Rem rem ops::rem;
    BitAnd bitand ops::bitwise_and;
    BitOr bitor ops::bitwise_or;
    BitXor bitxor ops::bitwise_xor;
}

macro_rules! unary_operators {
    ($($trait:ident $method:ident $op:path;)*) => {$(
        impl std::ops::$trait for &Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self) -> Tensor {
                let _call = called();
                panic::unwrap($op(self))
            }
        }
        impl std::ops::$trait for Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self) -> Tensor {
                let _call = called();
                panic::unwrap($op(&self))
            }
        }
    )*};
}

unary_operators! {
    Neg neg ops::neg;
    Not not ops::bitwise_not;
}

impl std::iter::Sum for Tensor {
    /// The sum of tensors, from left to right; 0 (`f32`, 0-d) of none.
    fn sum<I: Iterator<Item = Tensor>>(tensors: I) -> Tensor {
        tensors.reduce(|a, b| a + b).unwrap_or_else(|| Tensor::scalar(0, pellucid_ir::DType::F32))
    }
}
