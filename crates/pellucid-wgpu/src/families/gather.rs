//! `Gather`: elements selected by integer indices.
//!
//! The first dispatches check the indices. The last one copies one element in each invocation.

use super::GpuFamily;
use super::copy::same_size_integer;
use super::index::{check_indices, indexed_position, push_indexed_axes};
use crate::dispatch_list::DispatchList;
use crate::operand::{Bindings, DeviceArray, DeviceOperands};
use crate::shader::access::{self, MergedAxes, position_lines};
use crate::shader::{ShaderBuilder, WORKGROUP};
use pellucid_ir::Result;
use pellucid_ir::kernel::{Gather, Index};

impl GpuFamily for Gather {
    fn is_supported(&self) -> bool {
        true
    }

    fn describe(&self, list: &mut DispatchList<'_>, operands: &DeviceOperands<'_>) -> Result<()> {
        let (x, indices, y) = (&operands.inputs[0], &operands.inputs[1..], &operands.outputs[0]);
        check_indices(list, self.op, &self.index, self.from_end, x, indices)?;
        if y.shape().size() == 0 {
            return Ok(());
        }
        gather(list, &self.index, x, indices, y)
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
    let own = x.layout.strides();
    let rank = indices[0].shape().rank();
    // The strides of the array over the axes of the result, without the axes that are indexed.
    let array_strides: Vec<isize> = match index {
        Index::Axes(_) => {
            let axes = index.axes();
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
    push_indexed_axes(index, x, &mut parameters);
    let space_at = parameters.len();
    space.push_params(&mut parameters);

    shader.line("if (thread >= params[0]) { return; }");
    let starts: Vec<String> = (0..strides.len()).map(|k| format!("params[{}]", starts_at + k)).collect();
    let positions = position_lines(&mut shader, (space.dims.len(), space_at), "thread", &starts);
    let selected: Vec<(usize, &str)> =
        (0..indices.len()).map(|k| (bindings.input(k + 1), &*positions[k + 2])).collect();
    let at = indexed_position(&mut shader, &positions[1], &selected, indexed_at);
    let dtype = same_size_integer(x.dtype);
    let text = access::load(&shader, bindings.input(0), dtype, dtype.compute(), &at);
    let value = shader.define(text);
    access::store(&mut shader, bindings.output(0), dtype.compute(), dtype, &value, &positions[0]);
    list.dispatch("gather", shader, parameters, &bindings.buffers, count.div_ceil(WORKGROUP as usize))
}
