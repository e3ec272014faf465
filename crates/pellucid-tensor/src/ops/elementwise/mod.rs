//! Elementwise operations, each defined by a formula of one line.
//!
//! The formula generates the function here, the method of `Tensor`, the kernels, and the derivatives of every order. A
//! line declares a derivative only where the symbolic one is wrong at a limit. If a formula is not defined for
//! integers, they are converted to `f32` first, and booleans to `i64`.

pub(super) mod activation;
mod airy;
pub(super) mod arithmetic;
pub(super) mod compare;
mod numbers;
pub(super) mod special;
pub(super) mod transcendental;

pub use activation::{hardtanh, softshrink};
pub use airy::airy_ai;
pub use arithmetic::{addcdiv, addcmul, clamp, lerp, nan_to_num, where_};
pub use compare::{allclose, equal, isclose, isin};
pub use numbers::{frexp, gcd, lcm, nextafter};
pub use special::{igamma, igammac, multigammaln, zeta};

use super::formula::{map, map_reusing};
use crate::tensor::Tensor;
use pellucid_ir::formula::{Expr, LazyFormula};
use pellucid_ir::{Result, Scalar};

/// Defines operations of one tensor, with scalar parameters that the kernel reads as arguments. `autocast` is the policy
/// of the operation if it is not `Promote`.
macro_rules! unary {
    ($(
        $(#[$doc:meta])*
        $name:ident ($x:ident $(; $($k:ident),+)?) = $body:expr
            $(, autocast = $policy:ident)? $(, d $wrt:ident = $d:expr)? ;
    )*) => {
        $(
            $(#[$doc])*
            ///
            /// # Errors
            /// [`Error::DTypeMismatch`](crate::Error::DTypeMismatch) for a dtype that the formula is not defined for.
            #[pellucid_derive::tensor_method($(autocast = $policy)?)]
            pub fn $name(x: &crate::Tensor $(, $($k: impl Into<crate::Scalar>),+)?) -> crate::Result<crate::Tensor> {
                let formula = crate::formula! { static $name($x $(; $($k),+)?) = $body; $(d $wrt = $d;)? };
                super::super::formula::map(formula, &[x], &[$($($k.into()),+)?])
            }
        )*

        super::table!(unary_table: $($name),*);
    };
}

/// Defines operations of two operands, each a tensor or a scalar.
macro_rules! binary {
    ($(
        $(#[$doc:meta])*
        $name:ident ($a:ident, $b:ident) = $body:expr
            $(, autocast = $policy:ident)? $(, d $wa:ident = $da:expr, d $wb:ident = $db:expr)? ;
    )*) => {
        $(
            $(#[$doc])*
            ///
            /// Each operand is a tensor or a scalar; tensors broadcast, and scalars never widen a dtype.
            ///
            /// # Errors
            /// [`Error::ShapeMismatch`](crate::Error::ShapeMismatch) if the shapes do not broadcast,
            /// [`Error::DTypeMismatch`](crate::Error::DTypeMismatch) for a dtype that the formula is not defined for.
            #[pellucid_derive::operation($(autocast = $policy)?)]
            pub fn $name<'a>(
                a: impl Into<super::Operand<'a>>,
                b: impl Into<super::Operand<'a>>,
            ) -> crate::Result<crate::Tensor> {
                static FORMS: super::BinaryForms = super::BinaryForms {
                    both: super::LazyFormula::new(|| crate::formula! {
                        $name($a, $b) = $body; $(d $wa = $da; d $wb = $db;)?
                    }),
                    right: super::LazyFormula::new(|| crate::formula! { $name($a; $b) = $body; $(d $wa = $da;)? }),
                    left: super::LazyFormula::new(|| crate::formula! { $name($b; $a) = $body; $(d $wb = $db;)? }),
                };
                super::apply_binary(a.into(), b.into(), &FORMS)
            }

            impl crate::Tensor {
                $(#[$doc])*
                ///
                /// # Panics
                /// Panics if the function of this name in [`ops`](crate::ops) returns an error.
                #[track_caller]
                pub fn $name<'a>(&'a self, other: impl Into<super::Operand<'a>>) -> crate::Tensor {
                    crate::panic::unwrap(crate::ops::$name(self, other))
                }
            }
        )*

        super::table!(binary_table: $($name),*);
    };
}

/// Defines the module from which `ops` exports the operations of a table, with their registry entries.
macro_rules! table {
    ($module:ident: $($name:ident),*) => {
        pub(in crate::ops) mod $module {
            pub use super::{$($name),*};

            pub(in crate::ops) const ENTRIES: &[crate::ops::registry::OperationInfo] =
                &[$(crate::ops::registry::Entries::$name),*];
        }
    };
}

use {binary, table, unary};

/// Computes the derivative of y = sin(t)/t. For |t| < 4 it is the Taylor series −t/3·(1 − t²/(2·5)·(1 − t²/(4·7)·(1 −
/// ..))), which is free of cancellation in every derivative; 21 terms are exact up to order 12.
fn slope_of_sin_over(t: Expr, y: Expr) -> Expr {
    let is_near = t.abs().lt(4.0);
    let (near, far) = (is_near.select(t, 0.0), is_near.select(4.0, t));
    let square = near * near;
    let ratio = |k: i32| square * f64::from(2 * k * (2 * k + 3)).recip();
    let series = (1..21).rev().fold(1.0 - ratio(21), |rest, k| 1.0 - ratio(k) * rest);
    is_near.select(near * series * (-1.0 / 3.0), (far.cos() - y) / far)
}

/// An operand of a binary operation.
pub enum Operand<'a> {
    /// A tensor that the caller keeps.
    Borrowed(&'a Tensor),
    /// A tensor that the caller hands over. If no other handle shares its storage, the result reuses it.
    Owned(Tensor),
    /// A scalar, an argument of the kernel.
    Scalar(Scalar),
}

impl<'a> From<&'a Tensor> for Operand<'a> {
    fn from(tensor: &'a Tensor) -> Operand<'a> {
        Operand::Borrowed(tensor)
    }
}

impl From<Tensor> for Operand<'_> {
    fn from(tensor: Tensor) -> Self {
        Operand::Owned(tensor)
    }
}

macro_rules! operand_from {
    ($($t:ty),*) => {$(
        impl From<$t> for Operand<'_> {
            fn from(value: $t) -> Self {
                Operand::Scalar(value.into())
            }
        }
    )*};
}
operand_from!(Scalar, f64, f32, i32, i64, bool);

impl Operand<'_> {
    fn tensor(&self) -> Option<&Tensor> {
        match self {
            Operand::Borrowed(tensor) => Some(tensor),
            Operand::Owned(tensor) => Some(tensor),
            Operand::Scalar(_) => None,
        }
    }

    /// Returns true if the result may overwrite this operand.
    fn is_given(&self) -> bool {
        matches!(self, Operand::Owned(tensor) if tensor.is_unique())
    }
}

/// The variants of a binary formula: two tensors, a scalar on the right, a scalar on the left.
struct BinaryForms {
    both: LazyFormula,
    right: LazyFormula,
    left: LazyFormula,
}

/// Applies the variant that fits the operands. Not generic, so that it is compiled once for all operand types.
fn apply_binary<'a>(a: Operand<'a>, b: Operand<'a>, forms: &'static BinaryForms) -> Result<Tensor> {
    let given = |x: &Operand<'_>, i: usize| x.is_given().then_some(i);
    match (&a, &b) {
        (Operand::Scalar(x), Operand::Scalar(y)) => {
            let x = super::full((), *x, x.promote_into(pellucid_ir::DType::Bool))?;
            map(forms.right.get(), &[&x], &[*y])
        }
        (x, Operand::Scalar(k)) => map_reusing(forms.right.get(), &[x.tensor().expect("a tensor")], &[*k], given(x, 0)),
        (Operand::Scalar(k), y) => map_reusing(forms.left.get(), &[y.tensor().expect("a tensor")], &[*k], given(y, 0)),
        (x, y) => {
            let operands = [x.tensor().expect("a tensor"), y.tensor().expect("a tensor")];
            map_reusing(forms.both.get(), &operands, &[], given(x, 0).or(given(y, 1)))
        }
    }
}
