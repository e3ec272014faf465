//! Operations below formulas, with separate gradients: copies, fills, views, concatenation and gather.

pub(super) mod concatenate;
pub(crate) mod copy;
pub(super) mod create;
pub(crate) mod fill;
pub(super) mod gather;
pub(super) mod precision;
pub(super) mod sparse;
pub(crate) mod tensor_options;
pub(super) mod via_definition;
pub(super) mod view;
