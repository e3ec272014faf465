//! The spatial axes of `Conv` and `Pool`.

use crate::operand::DeviceArray;
use pellucid_ir::kernel::Window;

/// The largest coordinate. Shaders compute coordinates modulo 2³², and compare sums of two of them.
const MAX_COORDINATE: usize = i32::MAX as usize / 2;

/// Returns true if shaders can compute the coordinates of all windows. `lengths` are the lengths of the spatial axes of
/// x and of y. Larger coordinates than [`Window::MAX_COORDINATE`] are left to the rules of the families, which reject
/// them.
pub(in crate::families) fn fits_shader_coordinates(window: &Window, [x, y]: [&[usize]; 2]) -> bool {
    let is_within = |axis: usize, limit| window.has_coordinates(axis, x[axis], y[axis], limit);
    (0..3).all(|axis| is_within(axis, MAX_COORDINATE) || !is_within(axis, Window::MAX_COORDINATE))
}

/// Returns the lengths of the last three axes.
pub(in crate::families) fn spatial_lengths(array: &DeviceArray<'_>) -> [usize; 3] {
    [3, 2, 1].map(|back| array.shape()[array.shape().rank() - back])
}
