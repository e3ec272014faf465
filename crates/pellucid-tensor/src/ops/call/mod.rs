//! Arguments of a call: axes and integer lists, their checks, and the registry.

pub(super) mod axes;
pub(super) mod check;
pub(super) mod int_list;
pub(crate) mod registry;
