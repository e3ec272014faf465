//! `Gather`: elements selected by integer indices.
//!
//! The first dispatches check the indices. The last one copies one element in each invocation.

use super::GpuFamily;
use super::shared::indices::{IndexedAxes, check_indices, unindexed_strides};
use crate::dispatch_list::DispatchList;
use crate::operand::{Bindings, DeviceOperands, declare_starts};
use crate::shader::{MergedAxes, ShaderBuilder};
use pellucid_ir::Result;
use pellucid_ir::kernel::Gather;

impl GpuFamily for Gather {
    fn describe(&self, list: &mut DispatchList<'_>, operands: &DeviceOperands<'_>) -> Result<()> {
        let (x, indices) = (&operands.inputs[0], &operands.inputs[1..]);
        check_indices(list, self.op, &self.index, self.from_end, x, indices);
        if operands.outputs[0].shape().size() > 0 {
            gather(list, self, operands);
        }
        Ok(())
    }
}

/// Adds the dispatch that copies the selected elements.
fn gather(list: &mut DispatchList<'_>, kernel: &Gather, operands: &DeviceOperands<'_>) {
    let (x, indices, y) = (&operands.inputs[0], &operands.inputs[1..], &operands.outputs[0]);
    let (shape, rank, index) = (y.shape(), indices[0].shape().rank(), &kernel.index);
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
    let mut shader = ShaderBuilder::for_threads(shape.size());
    let bindings = Bindings::new(&mut shader, &operands.inputs, &operands.outputs);
    let starts = declare_starts(&mut shader, [y, x].into_iter().chain(indices));
    let indexed = IndexedAxes::declare(&mut shader, index, x);
    let space = space.declare(&mut shader);

    let offsets = space.offsets(&mut shader, "thread", &starts);
    let selected = (0..indices.len()).map(|k| (bindings.input(k + 1), &*offsets[k + 2]));
    let offset = indexed.offset(&mut shader, &offsets[1], selected);
    let value = bindings.input(0).as_bits().define(&mut shader, &offset);
    bindings.output(0).as_bits().store(&mut shader, &value, &offsets[0]);
    list.dispatch(kernel.op, shader);
}
