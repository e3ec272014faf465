//! `MatMul`: batched matrix products with an epilogue.
//!
//! The products are computed in [tiles](super::tile). Half precision is multiplied as `f32` and small integers as `i32`;
//! the product is rounded or wrapped once.

use super::GpuFamily;
use super::map::check_dtypes;
use super::tile::{TiledArray, TiledProduct, epilogue_iterations};
use crate::dispatch_list::DispatchList;
use crate::operand::{DeviceArray, DeviceOperands};
use crate::shader::program::is_supported;
use pellucid_ir::backend::OperandMeta;
use pellucid_ir::kernel::MatMul;
use pellucid_ir::{DType, Error, Result, Shape};

impl GpuFamily for MatMul {
    fn is_supported(&self) -> bool {
        match &self.epilogue {
            Some(program) => is_supported(program) && !program.is_row(),
            None => true,
        }
    }

    fn iterations(&self, _: &[OperandMeta<'_>]) -> usize {
        epilogue_iterations(self.epilogue.as_deref())
    }

    fn check(&self, operands: &DeviceOperands<'_>) -> Result<()> {
        let DeviceOperands { inputs, outputs } = operands;
        let (a, b) = (&inputs[0], &inputs[1]);
        let shape = product_shape(a.shape(), b.shape()).filter(|shape| outputs.iter().all(|o| o.shape() == shape));
        let Some(shape) = shape else {
            let help = "the product of factors [.., m, k] and [.., k, n] must have the shape [.., m, n]";
            return Err(Error::shapes("matmul", [a.shape(), b.shape(), outputs[0].shape()], help));
        };
        if a.dtype == DType::Bool || a.dtype != b.dtype {
            let help = "the factors must have one dtype other than bool; use to_dtype()";
            return Err(Error::dtypes("matmul", [a.dtype, b.dtype], help));
        }
        let Some(program) = &self.epilogue else {
            let help = "both factors and the product must have the same dtype";
            let same = outputs[0].dtype == a.dtype;
            return if same { Ok(()) } else { Err(Error::dtypes("matmul", [a.dtype, outputs[0].dtype], help)) };
        };
        let others = &inputs[2..];
        if let Some(bad) = others.iter().find(|o| shape.broadcast(o.shape()).as_ref() != Some(&shape)) {
            let help = "the inputs of the epilogue must broadcast to the shape of the product";
            return Err(Error::shapes("matmul", [bad.shape(), &shape], help));
        }
        let product = DeviceArray { layout: outputs[0].layout, dtype: self.product_dtype(a.dtype), ..*a };
        let program_inputs: Vec<DeviceArray<'_>> = [product].into_iter().chain(others.iter().copied()).collect();
        check_dtypes(program, &program_inputs, outputs)
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
        product.describe(list)
    }
}

/// Returns the shape of `[batch.., m, k]` times `[batch.., k, n]`, or `None` if they do not fit.
fn product_shape(a: &Shape, b: &Shape) -> Option<Shape> {
    let (i, j) = (a.rank().checked_sub(2)?, b.rank().checked_sub(2)?);
    let batch = Shape::from(&a[..i]).broadcast(&Shape::from(&b[..j]))?;
    (a[i + 1] == b[j]).then(|| batch.iter().copied().chain([a[i], b[j + 1]]).collect())
}

/// Returns an array broadcast to `[batch.., rows, columns]`.
fn matrices<'a>(array: &DeviceArray<'a>, batch: &[usize], [rows, columns]: [usize; 2]) -> TiledArray<'a> {
    let full: Shape = batch.iter().copied().chain([rows, columns]).collect();
    let mut strides = array.broadcast_strides(&full);
    let matrix = strides.split_off(batch.len());
    TiledArray::matrix(*array, strides, [(rows, matrix[0]), (columns, matrix[1])])
}
