//! The operands of the kernel families that index: `Gather` and `Scatter`.

use super::bounds::check_bounds;
use crate::dispatch_list::DispatchList;
use crate::operand::DeviceArray;
use crate::shader::ShaderBuilder;
use pellucid_ir::kernel::Index;
use pellucid_ir::{DType, Error, Result};

/// Returns an error unless the shapes and dtypes of the operands fit together. `values` is the output of a gather, or
/// the values of a scatter.
pub(super) fn check_shapes(
    op: &'static str,
    index: &Index,
    array: &DeviceArray<'_>,
    values: &DeviceArray<'_>,
    indices: &[DeviceArray<'_>],
) -> Result<()> {
    let (shape, index_shape) = (array.shape(), indices[0].shape());
    let axes = indexed_axes(index);
    let along = matches!(index, Index::Along(_));
    let fits = axes.len() == indices.len()
        && axes.windows(2).all(|w| w[0] < w[1])
        && axes.iter().all(|&a| a < shape.rank())
        && indices.iter().all(|i| i.shape() == index_shape)
        && (!along || index_shape.rank() == shape.rank())
        && (!along || (0..shape.rank()).all(|a| a == axes[0] || index_shape[a] <= shape[a]))
        && *values.shape() == index.shape(shape, index_shape);
    if !fits {
        let help =
            "there must be one index array per indexed axis, all of one shape, and values with the shape of the result";
        return Err(Error::shapes(op, [shape, values.shape(), index_shape], help));
    }
    if values.dtype != array.dtype || indices.iter().any(|i| i.dtype != DType::I64) {
        let dtypes = [array.dtype, values.dtype].into_iter().chain(indices.iter().map(|i| i.dtype));
        let help = "indices must be i64, and the array and the values must have the same dtype";
        return Err(Error::dtypes(op, dtypes, help));
    }
    Ok(())
}

/// Returns the indexed axes.
pub(super) fn indexed_axes(index: &Index) -> &[usize] {
    match index {
        Index::Axes(axes) => axes,
        Index::Along(axis) => std::slice::from_ref(axis),
    }
}

/// Adds the dispatches that set the status word if an index is out of bounds. If `from_end`, negative indices count from
/// the end.
pub(super) fn check_indices(
    list: &mut DispatchList<'_>,
    op: &'static str,
    index: &Index,
    from_end: bool,
    array: &DeviceArray<'_>,
    indices: &[DeviceArray<'_>],
) -> Result<()> {
    let mut checked = indices.iter().zip(indexed_axes(index));
    checked.try_for_each(|(index, &axis)| check_bounds(list, op, index, from_end, axis, array.shape()[axis]))
}

/// Appends the length and the stride of every indexed axis of `array` to the parameters, in the order that
/// [`indexed_position`] expects.
pub(super) fn push_indexed_axes(index: &Index, array: &DeviceArray<'_>, to: &mut Vec<u32>) {
    let (shape, strides) = (array.shape(), array.layout.strides());
    to.extend(indexed_axes(index).iter().flat_map(|&axis| [shape[axis] as u32, strides[axis] as u32]));
}

/// Adds the lines that compute the position of the element that indices select, and returns its name. `start` is the
/// position for indices 0. `indices` has the binding of every index array and the position of the index. The
/// parameters of the indexed axes start at `at`. All indices are in bounds.
pub(super) fn indexed_position(
    shader: &mut ShaderBuilder,
    start: &str,
    indices: &[(usize, &str)],
    at: usize,
) -> String {
    let mut position = start.to_string();
    for (k, (binding, index_at)) in indices.iter().enumerate() {
        // The lower word determines an index in bounds.
        let value = shader.define(shader.word(*binding, &format!("2u * {index_at}")));
        let len = format!("params[{}]", at + 2 * k);
        let wrapped = shader.define(format!("select({value}, {value} + {len}, {value} >= 0x80000000u)"));
        position = shader.define(format!("{position} + {wrapped} * params[{}]", at + 2 * k + 1));
    }
    position
}
