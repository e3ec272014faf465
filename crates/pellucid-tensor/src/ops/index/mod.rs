//! Indexing, scatter, writes in place, sorting, searching and sets.

pub(super) mod combinatorics;
pub(super) mod in_place;
pub(crate) mod index_item;
pub(super) mod indexing;
pub(super) mod masked;
pub(super) mod nonzero;
pub(super) mod put;
mod resolved_index;
pub(super) mod scatter;
pub(super) mod scatter_reduce;
pub(super) mod search;
pub(super) mod set_operations;
pub(super) mod sort;
pub(super) mod unique;
pub(super) mod update;
