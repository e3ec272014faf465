//! `Gather`: elements selected by integer indices.
//!
//! The first dispatches check the indices. The last one copies one element in each invocation.

use super::GpuFamily;
use super::shared::indices::{IndexedAxes, check_indices};
use crate::dispatch_list::DispatchList;
use crate::operand::{Bindings, DeviceArray, DeviceOperands, declare_starts};
use crate::shader::access::{self, MergedAxes, same_size_integer};
use crate::shader::parameters::Parameters;
use crate::shader::{ShaderBuilder, WORKGROUP};
use pellucid_ir::Result;
use pellucid_ir::kernel::{Gather, Index};

impl GpuFamily for Gather {
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
    let mut parameters = Parameters::for_items(count);
    let starts = declare_starts(&mut parameters, [y, x].into_iter().chain(indices));
    let indexed = IndexedAxes::declare(&mut parameters, index, x);
    let space = space.declare(&mut parameters);

    shader.line("if (thread >= params[0]) { return; }");
    let positions = space.positions(&mut shader, "thread", &starts);
    let selected: Vec<(usize, &str)> =
        (0..indices.len()).map(|k| (bindings.input(k + 1), &*positions[k + 2])).collect();
    let at = indexed.position(&mut shader, &positions[1], &selected);
    let dtype = same_size_integer(x.dtype);
    let value = shader.define(access::load(&shader, bindings.input(0), dtype, dtype.compute(), &at));
    access::store(&mut shader, bindings.output(0), dtype.compute(), dtype, &value, &positions[0]);
    list.dispatch("gather", shader, parameters, &bindings.buffers, count.div_ceil(WORKGROUP as usize))
}
