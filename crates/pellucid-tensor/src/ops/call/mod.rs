//! Arguments of a call: axes and integer lists, their checks, the scope of the operation, and the registry.

pub(super) mod axes;
pub(super) mod check;
pub(super) mod int_list;
pub(crate) mod operation_scope;
pub(crate) mod registry;
