//! Code that several kernel families share.
//!
//! | file | contents |
//! | --- | --- |
//! | `axes` | the axes of operands |
//! | `indices` | index arrays: their checks, and the offsets that they select |
//! | `key_sort` | stable sorting of integer keys |
//! | `parts` | the division of long sequences into parts |
//! | `tile` | products in tiles |
//! | `window` | the spatial axes of windows |

pub(super) mod axes;
pub(super) mod indices;
pub(super) mod key_sort;
pub(super) mod parts;
pub(super) mod tile;
pub(super) mod window;
