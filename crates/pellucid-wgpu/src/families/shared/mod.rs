//! Parts of several kernel families.
//!
//! | file | contents |
//! | --- | --- |
//! | `axes` | the axes of operands |
//! | `indices` | index arrays: their checks, and the positions that they select |
//! | `key_sort` | stable sorting of integer keys |
//! | `tile` | products in tiles |

pub(super) mod axes;
pub(super) mod indices;
pub(super) mod key_sort;
pub(super) mod tile;
