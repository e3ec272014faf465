//! `Gather`: elements selected by integer indices.
//!
//! The first dispatches check the indices. The last one copies one element in each invocation.

use super::GpuFamily;
use super::shared::indices::{IndexedAxes, check_indices, unindexed_strides};
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
    let rank = indices[0].shape().rank();
    // The strides of the array over the axes of the result, without the axes that are indexed.
    let slice_strides = index.slice_axes(x.shape().rank()).map(|axis| x.layout.strides()[axis]);
    let array_strides = unindexed_strides(index, x, rank).into_iter().chain(slice_strides).collect();
    let mut strides = vec![y.broadcast_strides(shape), array_strides];
    for index in indices {
        let mut index_strides = index.layout.strides().to_vec();
        index_strides.resize(shape.rank(), 0);
        strides.push(index_strides);
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

    shader.return_unless_item("thread");
    let offsets = space.offsets(&mut shader, "thread", &starts);
    let selected: Vec<(usize, &str)> = (0..indices.len()).map(|k| (bindings.input(k + 1), &*offsets[k + 2])).collect();
    let offset = indexed.offset(&mut shader, &offsets[1], &selected);
    let dtype = same_size_integer(x.dtype);
    let value = shader.define(access::load(&shader, bindings.input(0), dtype, dtype.compute(), &offset));
    access::store(&mut shader, bindings.output(0), dtype.compute(), dtype, &value, &offsets[0]);
    list.dispatch("gather", shader, parameters, &bindings.buffers, count.div_ceil(WORKGROUP as usize))
}
