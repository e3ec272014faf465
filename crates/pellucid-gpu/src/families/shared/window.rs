//! The spatial axes of `Conv` and `Pool`.

use pellucid_ir::Shape;
use pellucid_ir::kernel::Window;

/// The largest coordinate. Shaders compute coordinates modulo 2³², and compare sums of two coordinates.
const MAX_COORDINATE: usize = i32::MAX as usize / 2;

/// Returns true if shaders can compute the coordinates of all windows. `x` and `y` are the lengths of the spatial axes.
pub(in crate::families) fn fits_shader_coordinates(window: &Window, [x, y]: [[usize; 3]; 2]) -> bool {
    (0..3).all(|axis| window.has_coordinates(axis, x[axis], y[axis], MAX_COORDINATE))
}

/// Returns the lengths of the last three axes.
pub(in crate::families) fn spatial_lengths(shape: &Shape) -> [usize; 3] {
    [3, 2, 1].map(|back| shape[shape.rank() - back])
}
