//! Checks of the kernel families that index: `Gather` and `Scatter`.
//!
//! A dispatch finds the first index out of bounds, and its result is read back before any element is written. These
//! families are therefore the only ones that wait for the device.

use crate::buffer::DeviceMemory;
use crate::device::Gpu;
use crate::operand::{Bindings, DeviceArray};
use crate::shader::access::{self, MergedAxes, position_lines};
use crate::shader::{BindingUse, ShaderBuilder, WORKGROUP};
use pellucid_ir::kernel::Index;
use pellucid_ir::{Compute, DType, Error, Result};
use std::sync::Arc;

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

/// Returns an error if an index is out of bounds. Waits for the device.
pub(super) fn check_indices(
    op: &'static str,
    gpu: &Arc<Gpu>,
    index: &Index,
    array: &DeviceArray<'_>,
    indices: &[DeviceArray<'_>],
) -> Result<()> {
    for (index, &axis) in indices.iter().zip(indexed_axes(index)) {
        check_bounds(op, gpu, index, axis, array.shape()[axis])?;
    }
    Ok(())
}

/// Returns an error if an index is not in `-len..len`.
fn check_bounds(op: &'static str, gpu: &Arc<Gpu>, index: &DeviceArray<'_>, axis: usize, len: usize) -> Result<()> {
    let count = index.shape().size();
    if count == 0 {
        return Ok(());
    }
    let strides = index.broadcast_strides(index.shape());
    let space = MergedAxes::new(index.shape(), &[strides]);
    let mut shader = ShaderBuilder::default();
    let bindings = Bindings::new(&mut shader, std::slice::from_ref(index), &[]);
    let found = shader.binding(BindingUse::Atomic);
    let mut parameters = vec![count as u32, 0, len as u32, index.layout.offset() as u32];
    let space_at = parameters.len();
    space.push_params(&mut parameters);
    shader.line("if (thread >= params[0]) { return; }");
    let at = position_lines(&mut shader, (space.dims.len(), space_at), "thread", &["params[3]".into()]).remove(0);
    let text = access::load(&shader, bindings.input(0), DType::I64, Compute::I64, &at);
    let value = shader.define(text);
    shader.line(format!("if ({}) {{", out_of_bounds_text(&value)));
    shader.line(format!("    atomicMin(&b{found}[0], thread);"));
    shader.line("}");
    let memory = DeviceMemory::allocate(gpu, 4)?;
    gpu.write(memory.raw(), 0, &u32::MAX.to_ne_bytes())?;
    let buffers: Vec<&wgpu::Buffer> = bindings.buffers.iter().copied().chain([memory.raw()]).collect();
    gpu.dispatch(op, shader, &parameters, &buffers, count.div_ceil(WORKGROUP as usize))?;
    let mut first = u32::MAX;
    gpu.read(memory.raw(), 0, 4, |bytes| first = word(bytes))?;
    if first == u32::MAX {
        return Ok(());
    }
    let mut position = index.layout.offset() as isize;
    let mut rest = first as usize;
    for (&dim, &stride) in index.shape().iter().zip(&*index.layout.strides()).rev() {
        position += (rest % dim) as isize * stride;
        rest /= dim;
    }
    let mut value = 0;
    gpu.read(index.buffer, position as usize * 8, 8, |bytes| {
        value = (u64::from(word(&bytes[4..])) << 32 | u64::from(word(bytes))) as i64;
    })?;
    Err(Error::IndexOutOfBounds { op, index: value, axis, len })
}

/// Returns the first word of `bytes`.
fn word(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |word| u32::from_ne_bytes(*word))
}

/// Returns the condition that a 64-bit index is not in `-len..len`; `params[2]` is the length.
fn out_of_bounds_text(index: &str) -> String {
    let low = "l_neg(vec2<u32>(params[2], 0u))";
    format!("l_le(vec2<u32>(params[2], 0u), {index}) || l_lt({index}, {low})")
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
