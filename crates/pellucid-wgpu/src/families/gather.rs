//! `Gather`: elements selected by integer indices.
//!
//! A first dispatch finds the first index out of bounds, and its result is read back before any element is written.
//! This family is therefore the only one that waits for the device. A second dispatch copies one element in each
//! invocation.

use super::GpuFamily;
use super::copy::same_size_integer;
use crate::buffer::DeviceMemory;
use crate::device::Gpu;
use crate::operand::{Bindings, DeviceArray, DeviceOperands};
use crate::shader::access::{self, MergedAxes, position_lines};
use crate::shader::{BindingUse, ShaderBuilder, WORKGROUP};
use pellucid_ir::kernel::{Gather, Index};
use pellucid_ir::{Compute, DType, Error, Result};
use std::sync::Arc;

impl GpuFamily for Gather {
    fn is_supported(&self) -> bool {
        true
    }

    fn check(&self, operands: &DeviceOperands<'_>) -> Result<()> {
        let (x, indices, y) = (&operands.inputs[0], &operands.inputs[1..], &operands.outputs[0]);
        let (shape, index_shape) = (x.shape(), indices[0].shape());
        let axes = indexed_axes(&self.index);
        let along = matches!(self.index, Index::Along(_));
        let fits = axes.len() == indices.len()
            && axes.windows(2).all(|w| w[0] < w[1])
            && axes.iter().all(|&a| a < shape.rank())
            && indices.iter().all(|i| i.shape() == index_shape)
            && (!along || index_shape.rank() == shape.rank())
            && (!along || (0..shape.rank()).all(|a| a == axes[0] || index_shape[a] <= shape[a]))
            && *y.shape() == self.index.shape(shape, index_shape);
        if !fits {
            let help = "there must be one index array per indexed axis, all of one shape, and an output with the \
                        shape of the result";
            return Err(Error::shapes("gather", [shape, y.shape(), index_shape], help));
        }
        if y.dtype != x.dtype || indices.iter().any(|i| i.dtype != DType::I64) {
            let dtypes = [x.dtype, y.dtype].into_iter().chain(indices.iter().map(|i| i.dtype));
            let help = "indices must be i64, and the array and the output must have the same dtype";
            return Err(Error::dtypes("gather", dtypes, help));
        }
        Ok(())
    }

    fn run(&self, gpu: &Arc<Gpu>, operands: &DeviceOperands<'_>) -> Result<()> {
        let (x, indices, y) = (&operands.inputs[0], &operands.inputs[1..], &operands.outputs[0]);
        for (index, &axis) in indices.iter().zip(indexed_axes(&self.index)) {
            check_bounds(gpu, index, axis, x.shape()[axis])?;
        }
        if y.shape().size() == 0 {
            return Ok(());
        }
        gather(gpu, &self.index, x, indices, y)
    }
}

/// Returns the indexed axes.
fn indexed_axes(index: &Index) -> &[usize] {
    match index {
        Index::Axes(axes) => axes,
        Index::Along(axis) => std::slice::from_ref(axis),
    }
}

/// Returns an error if an index is not in `-len..len`. Waits for the device.
fn check_bounds(gpu: &Arc<Gpu>, index: &DeviceArray<'_>, axis: usize, len: usize) -> Result<()> {
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
    gpu.dispatch("gather", shader, &parameters, &buffers, count.div_ceil(WORKGROUP as usize))?;
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
    Err(Error::IndexOutOfBounds { op: "gather", index: value, axis, len })
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

/// Records the dispatch that copies the selected elements.
fn gather(
    gpu: &Arc<Gpu>,
    index: &Index,
    x: &DeviceArray<'_>,
    indices: &[DeviceArray<'_>],
    y: &DeviceArray<'_>,
) -> Result<()> {
    let shape = y.shape();
    let axes = indexed_axes(index);
    let own = x.layout.strides();
    let rank = indices[0].shape().rank();
    // The strides of the array over the axes of the result, without the axes that are indexed.
    let array_strides: Vec<isize> = match index {
        Index::Axes(_) => {
            let rest = (0..x.shape().rank()).filter(|a| !axes.contains(a)).map(|a| own[a]);
            std::iter::repeat_n(0, rank).chain(rest).collect()
        }
        Index::Along(axis) => (0..rank).map(|a| if a == *axis { 0 } else { own[a] }).collect(),
    };
    let mut strides = vec![y.broadcast_strides(shape), array_strides];
    for index in indices {
        let own = index.layout.strides();
        strides.push((0..shape.rank()).map(|a| if a < rank { own[a] } else { 0 }).collect());
    }
    let space = MergedAxes::new(shape, &strides);
    let count = shape.size();
    let mut shader = ShaderBuilder::default();
    let inputs: Vec<DeviceArray<'_>> = [*x].into_iter().chain(indices.iter().copied()).collect();
    let bindings = Bindings::new(&mut shader, &inputs, std::slice::from_ref(y));
    let mut parameters = vec![count as u32, 0];
    let starts_at = parameters.len();
    parameters.extend([y, x].into_iter().chain(indices).map(|array| array.layout.offset() as u32));
    let indexed_at = parameters.len();
    parameters.extend(axes.iter().flat_map(|&axis| [x.shape()[axis] as u32, own[axis] as u32]));
    let space_at = parameters.len();
    space.push_params(&mut parameters);

    shader.line("if (thread >= params[0]) { return; }");
    let starts: Vec<String> = (0..strides.len()).map(|k| format!("params[{}]", starts_at + k)).collect();
    let positions = position_lines(&mut shader, (space.dims.len(), space_at), "thread", &starts);
    let mut at = positions[1].clone();
    for k in 0..indices.len() {
        // All indices are in bounds, so their lower words determine them.
        let value = shader.define(shader.word(bindings.input(k + 1), &format!("2u * {}", positions[k + 2])));
        let len = format!("params[{}]", indexed_at + 2 * k);
        let wrapped = shader.define(format!("select({value}, {value} + {len}, {value} >= 0x80000000u)"));
        at = shader.define(format!("{at} + {wrapped} * params[{}]", indexed_at + 2 * k + 1));
    }
    let dtype = same_size_integer(x.dtype);
    let text = access::load(&shader, bindings.input(0), dtype, dtype.compute(), &at);
    let value = shader.define(text);
    access::store(&mut shader, bindings.output(0), dtype.compute(), dtype, &value, &positions[0]);
    gpu.dispatch("gather", shader, &parameters, &bindings.buffers, count.div_ceil(WORKGROUP as usize))
}
