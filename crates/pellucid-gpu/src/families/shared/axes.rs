//! The axes of operands.

use crate::operand::DeviceArray;
use crate::shader::MergedAxes;
use pellucid_ir::Shape;

/// Returns the index space of the axes of `shape` that `keep` selects, with the strides of every array.
pub(in crate::families) fn axes_space<'a>(
    arrays: impl IntoIterator<Item = &'a DeviceArray<'a>>,
    shape: &Shape,
    keep: impl Fn(usize) -> bool,
) -> MergedAxes {
    let axes: Vec<usize> = (0..shape.rank()).filter(|&axis| keep(axis)).collect();
    let dims: Vec<usize> = axes.iter().map(|&axis| shape[axis]).collect();
    let strides = |array: &DeviceArray<'_>| {
        let strides = array.broadcast_strides(shape);
        axes.iter().map(|&axis| strides[axis]).collect()
    };
    MergedAxes::new(&dims, &arrays.into_iter().map(strides).collect::<Vec<_>>())
}
