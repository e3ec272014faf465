//! Indexing, scatter, writes in place, sorting, searching and sets.

pub(super) mod combinatorics;
pub(super) mod in_place;
pub(crate) mod indexing;
pub(super) mod masked;
pub(super) mod nonzero;
pub(super) mod put;
pub(super) mod scatter;
pub(super) mod scatter_reduce;
pub(super) mod search;
pub(super) mod set_operations;
pub(super) mod sort;
pub(super) mod unique;
pub(super) mod update;
