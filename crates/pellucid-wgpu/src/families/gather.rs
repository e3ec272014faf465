//! `Gather`: elements selected by integer indices.
//!
//! The first dispatches check the indices. The last one copies one element in each invocation.

use super::GpuFamily;
use super::bounds::check_bounds;
use super::copy::same_size_integer;
use crate::dispatch_list::DispatchList;
use crate::operand::{Bindings, DeviceArray, DeviceOperands};
use crate::shader::access::{self, MergedAxes, position_lines};
use crate::shader::{ShaderBuilder, WORKGROUP};
use pellucid_ir::kernel::{Gather, Index};
use pellucid_ir::{DType, Error, Result};

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

    fn describe(&self, list: &mut DispatchList<'_>, operands: &DeviceOperands<'_>) -> Result<()> {
        let (x, indices, y) = (&operands.inputs[0], &operands.inputs[1..], &operands.outputs[0]);
        for (index, &axis) in indices.iter().zip(indexed_axes(&self.index)) {
            check_bounds(list, "gather", index, axis, x.shape()[axis])?;
        }
        if y.shape().size() == 0 {
            return Ok(());
        }
        gather(list, &self.index, x, indices, y)
    }
}

/// Returns the indexed axes.
fn indexed_axes(index: &Index) -> &[usize] {
    match index {
        Index::Axes(axes) => axes,
        Index::Along(axis) => std::slice::from_ref(axis),
    }
}

/// Adds the dispatch that copies the selected elements.
fn gather(
    list: &mut DispatchList<'_>,
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
    list.dispatch("gather", shader, parameters, &bindings.buffers, count.div_ceil(WORKGROUP as usize))
}
