//! The registry of operations. The definition of every public operation states its entry, which contains its autocast
//! policy.
//!
//! `#[tensor_method]` and `#[operation]` define the entry next to the function, as a constant of [`Entries`].
//! [`registry!`] exports functions from `ops` and lists their entries. A function without an entry cannot be listed,
//! and a method of `Tensor` whose function is not exported does not compile.

use std::collections::HashMap;
use std::sync::LazyLock;

/// The dtype in which an operation under [`autocast`](crate::autocast()) reads its `f32`, `f16` and `bf16` operands. An
/// operation with an `f64` operand is not affected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AutocastPolicy {
    /// The half-precision dtype of `autocast`, for products and recurrent layers.
    Half,
    /// `f32`, for operations that sum many values or need a wide range. Their results are `f32` too.
    Single,
    /// The dtype of type promotion, as without `autocast`.
    Promote,
}

/// An operation of [`ops`](crate::ops).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct OperationInfo {
    /// The name of the function, which errors show. `ops::repeat` and `ops::einops::repeat` have the same name.
    pub name: &'static str,
    /// The dtype of the operands under [`autocast`](crate::autocast()).
    pub autocast: AutocastPolicy,
    /// Whether a parameter is a size, an axis or a count, or contains one.
    pub takes_sizes: bool,
}

/// The entries of all operations: associated constants, each with the name of its function or the name that the
/// attribute's argument `entry` specifies. [`registry!`] lists them in `PUBLIC` and `PARTS`.
pub(crate) struct Entries;

/// Exports operations from their modules and lists their entries. `ops` calls it once.
///
/// - `tables`: modules that a table macro generates. Each has the functions of the table, and their `ENTRIES`.
/// - `functions`: a module, and the functions that are exported from it.
/// - `elsewhere`: public operations that another module exports.
/// - `parts`: private functions with separate graph node names and autocast policies.
macro_rules! registry {
    (
        tables { $($($table:ident)::+;)+ }
        functions { $($($module:ident)::+: $($name:ident),+;)+ }
        elsewhere { $($elsewhere:ident;)* }
        parts { $($part:ident;)* }
    ) => {
        $(pub use $($table)::+::*;)+
        $(pub use $($module)::+::{$($name),+};)+

        impl $crate::ops::call::registry::Entries {
            /// The entries of the public operations, in several lists.
            pub(crate) const PUBLIC: &[&[$crate::ops::call::registry::OperationInfo]] = &[
                $($($table)::+::ENTRIES,)+
                &[$($(Self::$name,)+)+],
                &[$(Self::$elsewhere,)*],
            ];
            /// The entries of parts of operations.
            pub(crate) const PARTS: &[$crate::ops::call::registry::OperationInfo] = &[$(Self::$part,)*];
        }
    };
}

pub(in crate::ops) use registry;

/// Returns every public operation of [`ops`](crate::ops).
///
/// ```
/// use pellucid::{AutocastPolicy, operations};
/// let names: Vec<&str> = operations().filter(|op| op.autocast == AutocastPolicy::Half).map(|op| op.name).collect();
/// assert!(names.contains(&"matmul") && !names.contains(&"softmax"));
/// ```
pub fn operations() -> impl Iterator<Item = &'static OperationInfo> {
    Entries::PUBLIC.iter().copied().flatten()
}

/// Returns the public operations, and the parts of operations with separate names.
fn named_operations() -> impl Iterator<Item = &'static OperationInfo> {
    operations().chain(Entries::PARTS)
}

/// Returns the autocast policy of the operation with the name `op`, as its errors and its graph node show it. A name
/// without a registered policy has [`AutocastPolicy::Promote`].
///
/// ```
/// use pellucid::{AutocastPolicy, autocast_policy};
/// assert_eq!(autocast_policy("matmul"), AutocastPolicy::Half);
/// assert_eq!(autocast_policy("softmax"), AutocastPolicy::Single);
/// assert_eq!(autocast_policy("relu"), AutocastPolicy::Promote);
/// ```
pub fn autocast_policy(op: &str) -> AutocastPolicy {
    registered_policy(op).unwrap_or(AutocastPolicy::Promote)
}

/// Returns the policy of a built-in operation, which must be in the registry.
pub(crate) fn builtin_policy(op: &str) -> AutocastPolicy {
    let policy = registered_policy(op);
    debug_assert!(policy.is_some(), "no operation has the name `{op}`");
    policy.unwrap_or(AutocastPolicy::Promote)
}

/// Returns the policy of an operation of the registry.
fn registered_policy(op: &str) -> Option<AutocastPolicy> {
    static BY_NAME: LazyLock<HashMap<&str, AutocastPolicy>> =
        LazyLock::new(|| named_operations().map(|op| (op.name, op.autocast)).collect());
    BY_NAME.get(op).copied()
}
