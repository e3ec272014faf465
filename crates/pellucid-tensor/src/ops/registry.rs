//! The registry of operations: one entry for every public operation, which its definition states.
//!
//! `#[tensor_method]` and `#[operation]` define the entry beside the function, as a constant of [`Entries`].
//! [`registry!`] exports functions from `ops` and lists their entries. A function without an entry cannot be listed, and
//! a method of `Tensor` whose function is not exported does not compile.

use crate::autocast::Policy;

/// An operation of [`ops`](crate::ops).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct OperationInfo {
    /// The name of the function, which errors show. `ops::repeat` and `ops::einops::repeat` have the same name.
    pub name: &'static str,
    /// The dtype of the operands under [`autocast`](crate::autocast).
    pub autocast: Policy,
    /// Whether a parameter is a size, an axis or a count, or contains one.
    pub takes_sizes: bool,
}

/// The entries of all operations: associated constants with the names of the functions, or of the argument `entry`.
pub(crate) struct Entries;

/// Exports operations from their modules and lists their entries. `ops` calls it once.
///
/// - `tables`: modules that a table macro generates. Each has the functions of the table, and their `ENTRIES`.
/// - `functions`: a module, and the functions that are exported from it.
/// - `elsewhere`: public operations that are not exported from `ops`.
/// - `parts`: private functions whose graph nodes have names, and autocast policies, of their own.
macro_rules! registry {
    (
        tables { $($($table:ident)::+;)+ }
        functions { $($module:ident: $($name:ident),+;)+ }
        elsewhere { $($elsewhere:ident;)* }
        parts { $($part:ident;)* }
    ) => {
        $(pub use $($table)::+::*;)+
        $(pub use $module::{$($name),+};)+

        /// The entries of the public operations, in several lists.
        const PUBLIC: &[&[$crate::ops::registry::OperationInfo]] = &[
            $($($table)::+::ENTRIES,)+
            &[$($($crate::ops::registry::Entries::$name,)+)+],
            &[$($crate::ops::registry::Entries::$elsewhere,)*],
        ];
        /// The entries of parts of operations.
        const PARTS: &[$crate::ops::registry::OperationInfo] = &[$($crate::ops::registry::Entries::$part,)*];
    };
}

pub(super) use registry;

/// Returns every public operation of [`ops`](crate::ops).
///
/// ```
/// use pellucid_tensor::{Policy, operations};
/// let names: Vec<&str> = operations().filter(|op| op.autocast == Policy::Half).map(|op| op.name).collect();
/// assert!(names.contains(&"matmul") && !names.contains(&"softmax"));
/// ```
pub fn operations() -> impl Iterator<Item = &'static OperationInfo> {
    super::PUBLIC.iter().copied().flatten()
}

/// Returns the public operations, and the parts of operations that have names of their own.
pub(crate) fn named_operations() -> impl Iterator<Item = &'static OperationInfo> {
    operations().chain(super::PARTS)
}
