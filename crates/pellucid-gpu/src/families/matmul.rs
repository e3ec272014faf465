//! `MatMul`: batched matrix products with an epilogue.
//!
//! The products are computed in [tiles](super::shared::tile). Half precision is multiplied as `f32` and small integers
//! as `i32`; the product is rounded or wrapped once.
//!
//! If the API has a library, it computes large products of floats. Its factors are always in the order of rows without
//! gaps; other layouts are copied first. So the algorithm, and every bit, depends on the shape alone.

use super::GpuFamily;
use super::copy::copy;
use super::shared::tile::{TiledArray, TiledProduct, epilogue_iterations};
use crate::api::LibraryProduct;
use crate::dispatch_list::DispatchList;
use crate::operand::{DeviceArray, DeviceOperands};
use crate::shader::{BufferRef, is_elementwise_supported};
use pellucid_ir::backend::OperandMeta;
use pellucid_ir::kernel::MatMul;
use pellucid_ir::{Layout, Result, Shape};

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
        match LibraryFactors::new(list, operands, batch.iter().product(), [m, n, k]) {
            Some(factors) => product.describe_by_library(list, factors.product, factors.buffers),
            None => product.describe(list),
        }
        Ok(())
    }
}

/// The minimum of m, n and k, and of m·n·k, of a product by a library. Smaller products take longer with its launches.
const MIN_LIBRARY_SIZE: usize = 128;
const MIN_LIBRARY_PRODUCTS: usize = 1 << 24;

/// The factors of a product by a library.
struct LibraryFactors {
    product: LibraryProduct,
    buffers: [BufferRef; 2],
}

impl LibraryFactors {
    /// Adds the copies of factors with other layouts. Returns `None` if no library computes the product.
    fn new(
        list: &mut DispatchList<'_>,
        operands: &DeviceOperands<'_>,
        batch: usize,
        sizes: [usize; 3],
    ) -> Option<LibraryFactors> {
        let factors = operands.inputs[0].dtype;
        let is_large = sizes.iter().all(|&size| size >= MIN_LIBRARY_SIZE)
            && sizes.iter().product::<usize>() >= MIN_LIBRARY_PRODUCTS
            && batch > 0;
        if !(list.features.library_products && factors.is_float() && is_large) {
            return None;
        }
        let output = operands.outputs[0].shape();
        let found = [0, 1].map(|k| LibraryFactor::new(list, &operands.inputs[k], &output[..output.rank() - 2]));
        let (is_shared, offsets) = (found.each_ref().map(|f| f.is_shared), found.each_ref().map(|f| f.offset));
        let product = LibraryProduct { factors, sizes, batch, is_shared, offsets };
        Some(LibraryFactors { product, buffers: found.map(|factor| factor.buffer) })
    }
}

/// A factor of a product by a library.
struct LibraryFactor {
    buffer: BufferRef,
    /// The offset in bytes.
    offset: usize,
    /// Whether all products have the same matrix.
    is_shared: bool,
}

impl LibraryFactor {
    /// Returns a factor, or a copy of it without gaps.
    fn new(list: &mut DispatchList<'_>, array: &DeviceArray<'_>, batch: &[usize]) -> LibraryFactor {
        let (shape, size) = (array.shape(), array.dtype.size());
        let (own_batch, matrix) = shape.split_at(shape.rank() - 2);
        let is_shared = own_batch.iter().all(|&len| len == 1);
        let full: Shape = if is_shared { shape.clone() } else { batch.iter().chain(matrix).copied().collect() };
        let offset = array.layout.offset() * size;
        let is_aligned = offset.is_multiple_of(LibraryProduct::ALIGNMENT);
        if is_aligned && *shape == full && array.layout.is_contiguous() {
            return LibraryFactor { buffer: array.buffer, offset, is_shared };
        }
        let layout = Layout::contiguous(full);
        let buffer = list.scratch(layout.shape().size() * size);
        let copied = DeviceArray { buffer, layout: &layout, dtype: array.dtype };
        copy(list, &DeviceOperands { inputs: vec![*array], outputs: vec![copied] });
        LibraryFactor { buffer, offset: 0, is_shared }
    }
}

/// Returns the matrices of an array broadcast to `[batch.., rows, columns]`.
fn matrices<'a>(array: &DeviceArray<'a>, batch: &[usize], [rows, columns]: [usize; 2]) -> TiledArray<'a> {
    let full: Shape = batch.iter().copied().chain([rows, columns]).collect();
    let mut strides = array.broadcast_strides(&full);
    let matrix = strides.split_off(batch.len());
    TiledArray::matrix(*array, strides, [(rows, matrix[0]), (columns, matrix[1])])
}
