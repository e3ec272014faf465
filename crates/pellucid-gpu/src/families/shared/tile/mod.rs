//! Products in tiles: the mechanism of [`MatMul`](pellucid_ir::kernel::MatMul), convolutions, attention and recurrent
//! layers.
//!
//! A workgroup of 64 invocations computes a tile of the product; each invocation computes blocks of 4 × 4 elements in
//! registers. Tiles of both factors pass through shared memory. The offset of an element of a factor is the sum of a
//! part that depends on the row or column of the product and a part that depends on k. So the windows of a convolution
//! are loaded from the image itself.
//!
//! | file | contents |
//! | --- | --- |
//! | `array` | [`TiledArray`]: an operand, its offsets and loads |
//! | `block_loads` | loads of blocks of 4 × 4 elements |
//! | `depth_table` | the parts of offsets that depend on k, in shared memory |
//! | `registers` | [`SharedTile`], [`WorkgroupTile`] and the multiplication of tiles |
//! | `unit` | [`MatrixUnit`]: whether a product uses matrix units |
//! | `matrix_unit` | half-precision products on matrix units |
//! | `product` | [`TiledProduct`]: the choice of tiles, the division of k, the epilogue |

mod array;
mod block_loads;
mod depth_table;
mod matrix_unit;
mod product;
mod registers;
mod unit;

pub(in crate::families) use array::{ArrayExprs, Coordinate, FactorSide, IndexDigit, TiledArray, quad_type};
pub(in crate::families) use product::{TiledProduct, choose_tile, epilogue_iterations};
pub(in crate::families) use registers::{
    FactorLoader, SharedTile, TileBounds, WIDE_PRODUCT_ITERATIONS, WorkgroupTile, declare_shared, is_narrow,
};
pub(in crate::families) use unit::MatrixUnit;
