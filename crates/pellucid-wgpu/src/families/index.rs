//! The operands of the kernel families that index: `Gather` and `Scatter`.

use super::bounds::check_bounds;
use crate::dispatch_list::DispatchList;
use crate::operand::DeviceArray;
use crate::shader::ShaderBuilder;
use pellucid_ir::Result;
use pellucid_ir::kernel::Index;

/// Adds the dispatches that set the status word if an index is out of bounds. If `from_end`, negative indices count
/// from the end.
pub(super) fn check_indices(
    list: &mut DispatchList<'_>,
    op: &'static str,
    index: &Index,
    from_end: bool,
    array: &DeviceArray<'_>,
    indices: &[DeviceArray<'_>],
) -> Result<()> {
    let mut checked = indices.iter().zip(index.axes());
    checked.try_for_each(|(index, &axis)| check_bounds(list, op, index, from_end, axis, array.shape()[axis]))
}

/// Appends the length and the stride of every indexed axis of `array` to the parameters, in the order that
/// [`indexed_position`] expects.
pub(super) fn push_indexed_axes(index: &Index, array: &DeviceArray<'_>, to: &mut Vec<u32>) {
    let (shape, strides) = (array.shape(), array.layout.strides());
    to.extend(index.axes().iter().flat_map(|&axis| [shape[axis] as u32, strides[axis] as u32]));
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
