//! `MatMul`: batched matrix products with an epilogue.
//!
//! The products are computed in [tiles](super::shared::tile). Half precision is multiplied as `f32` and small integers
//! as `i32`; the product is rounded or wrapped once.

use super::GpuFamily;
use super::shared::tile::{TiledArray, TiledProduct, epilogue_iterations};
use crate::dispatch_list::DispatchList;
use crate::operand::{DeviceArray, DeviceOperands};
use crate::shader::is_elementwise_supported;
use pellucid_ir::backend::OperandMeta;
use pellucid_ir::kernel::MatMul;
use pellucid_ir::{Result, Shape};

impl GpuFamily for MatMul {
    fn is_supported(&self) -> bool {
        self.epilogue.as_deref().is_none_or(is_elementwise_supported)
    }

    fn iterations(&self, _: &[OperandMeta<'_>], _: &[OperandMeta<'_>]) -> usize {
        epilogue_iterations(self.epilogue.as_deref())
    }

    fn describe(&self, list: &mut DispatchList<'_>, operands: &DeviceOperands<'_>) -> Result<()> {
        let DeviceOperands { inputs, outputs } = operands;
        let (shape, depth) = (outputs[0].shape(), inputs[0].shape());
        let rank = shape.rank();
        let [m, n, k] = [shape[rank - 2], shape[rank - 1], depth[depth.rank() - 1]];
        let batch = &shape[..rank - 2];
        let factors = [matrices(&inputs[0], batch, [m, k]), matrices(&inputs[1], batch, [k, n])];
        let others = inputs[2..].iter().map(|array| matrices(array, batch, [m, n]));
        let product = TiledProduct {
            op: "matmul",
            sizes: [m, n, k],
            batch: batch.to_vec(),
            dtype: self.product_dtype(inputs[0].dtype),
            inputs: factors.into_iter().chain(others).collect(),
            outputs: outputs.iter().map(|array| matrices(array, batch, [m, n])).collect(),
            epilogue: self.epilogue.as_deref(),
        };
        product.describe(list);
        Ok(())
    }
}

/// Returns the matrices of an array broadcast to `[batch.., rows, columns]`.
fn matrices<'a>(array: &DeviceArray<'a>, batch: &[usize], [rows, columns]: [usize; 2]) -> TiledArray<'a> {
    let full: Shape = batch.iter().copied().chain([rows, columns]).collect();
    let mut strides = array.broadcast_strides(&full);
    let matrix = strides.split_off(batch.len());
    TiledArray::matrix(*array, strides, [(rows, matrix[0]), (columns, matrix[1])])
}
