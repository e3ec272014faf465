//! Tables of elementwise operations. An entry consists of the documentation and the formula of an operation.

/// Defines operations of one tensor, with scalar parameters that the kernel reads. `autocast` is the policy of the
/// operation if it is not `Promote`.
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
            pub fn $name(
                x: &crate::Tensor $(, $($k: impl Into<pellucid_ir::Scalar>),+)?
            ) -> pellucid_ir::Result<crate::Tensor> {
                let formula = pellucid_ir::formula! { static $name($x $(; $($k),+)?) = $body; $(d $wrt = $d;)? };
                crate::ops::formula::map(formula, &[x], &[$($($k.into()),+)?])
            }
        )*

        crate::ops::elementwise::table::table!(unary_table: $($name),*);
    };
}

/// Defines operations of two operands, each a tensor or a scalar. `where b` lists simpler formulas of a float tensor
/// for some values of a scalar on the right.
macro_rules! binary {
    ($(
        $(#[$doc:meta])*
        $name:ident ($a:ident, $b:ident) = $body:expr
            $(, autocast = $policy:ident)? $(, d $wa:ident = $da:expr, d $wb:ident = $db:expr)?
            $(, where $right:ident { $($value:literal => $simple:expr),+ $(,)? })? ;
    )*) => {
        $(
            $(#[$doc])*
            ///
            /// Each operand is a tensor or a scalar; tensors broadcast. A scalar never widens a float tensor, and an
            /// integer scalar never widens an integer tensor. A float scalar promotes an integer tensor to `f32`.
            ///
            /// # Errors
            /// [`Error::ShapeMismatch`](crate::Error::ShapeMismatch) if the shapes do not broadcast,
            /// [`Error::DTypeMismatch`](crate::Error::DTypeMismatch) for a dtype that the formula is not defined for.
            #[pellucid_derive::operation($(autocast = $policy)?)]
            pub fn $name<'a>(
                a: impl Into<crate::ops::elementwise::operand::TensorOrScalar<'a>>,
                b: impl Into<crate::ops::elementwise::operand::TensorOrScalar<'a>>,
            ) -> pellucid_ir::Result<crate::Tensor> {
                use crate::ops::elementwise::operand::{BinaryForms, apply_binary};
                use pellucid_ir::formula::LazyFormula;
                static SIMPLE: [(f64, LazyFormula); <[f64]>::len(&[$($($value),+)?])] = [$($(
                    ($value, LazyFormula::new(|| pellucid_ir::formula! { $name($a) = $simple; })),
                )+)?];
                static FORMS: BinaryForms = BinaryForms {
                    tensors: LazyFormula::new(|| pellucid_ir::formula! {
                        $name($a, $b) = $body; $(d $wa = $da; d $wb = $db;)?
                    }),
                    right: LazyFormula::new(|| pellucid_ir::formula! { $name($a; $b) = $body; $(d $wa = $da;)? }),
                    left: LazyFormula::new(|| pellucid_ir::formula! { $name($b; $a) = $body; $(d $wb = $db;)? }),
                    simple: &SIMPLE,
                };
                apply_binary(a.into(), b.into(), &FORMS)
            }

            impl crate::Tensor {
                $(#[$doc])*
                ///
                /// # Panics
                /// Panics if the function with the same name in [`ops`](crate::ops) returns an error.
                #[track_caller]
                pub fn $name<'a>(
                    &'a self,
                    other: impl Into<crate::ops::elementwise::operand::TensorOrScalar<'a>>,
                ) -> crate::Tensor {
                    crate::panic::unwrap(crate::ops::$name(self, other))
                }
            }
        )*

        crate::ops::elementwise::table::table!(binary_table: $($name),*);
    };
}

/// Defines the module from which `ops` exports the operations of a table, with their registry entries.
macro_rules! table {
    ($module:ident: $($name:ident),*) => {
        pub(in crate::ops) mod $module {
            pub use super::{$($name),*};

            pub(in crate::ops) const ENTRIES: &[crate::ops::call::registry::OperationInfo] =
                &[$(crate::ops::call::registry::Entries::$name),*];
        }
    };
}

pub(super) use {binary, table, unary};
