//! Tensors that a captured step computes on the CPU from fills and host values alone, for use on the step's device.
//!
//! Operations create tensors of host values (indices, fills), and compute with them before they are combined with an
//! operand on a device. In eager mode these kernels run on the CPU, and the result is copied. A captured step has one
//! device: the kernels run once, while the step is recorded, and their result is a constant of the step, bit-identical
//! to eager execution. A single fill or copy is recorded on the device of the step instead.

use super::recording::{HostConstant, Recording};
use super::{OperandArrays, eager, list, record_constant, record_source, submit};
use crate::array::Array;
use crate::device::Device;
use pellucid_ir::Result;
use pellucid_ir::backend::READY;
use pellucid_ir::kernel::Kernel;

impl Recording {
    /// Returns the indices of the kernels that write into the storage of an array.
    fn writers<'a>(&'a self, array: &'a Array) -> impl Iterator<Item = usize> + 'a {
        let writes = |k: &usize| self.kernels[*k].outputs.iter().any(|out| out.shares_storage(array));
        (0..self.kernels.len()).filter(writes)
    }

    /// Returns the value of a recorded array, if the recording has computed it.
    fn host_constant(&self, array: &Array) -> Option<Array> {
        let constant = self.host_constants.iter().rfind(|constant| constant.recorded.shares_storage(array))?;
        (constant.writers == self.writers(array).count()).then(|| constant.value.view(array.layout().clone()))
    }

    /// Returns true if the array has a value that the step does not change.
    fn is_host_value(&self, array: &Array) -> bool {
        let storage = array.storage();
        storage.pending() == READY && storage.buffer().is_allocated() && self.writers(array).next().is_none()
    }

    /// Returns the kernels that compute an array from fills and host values, in order, without kernels whose results
    /// are computed already. Returns `None` if the array depends on an input of the step, on random numbers, or on an
    /// outside tensor that the step writes.
    fn sources(&self, array: &Array) -> Option<Vec<usize>> {
        let (mut sources, mut visited, mut open) = (Vec::new(), Vec::<&Array>::new(), vec![array]);
        while let Some(array) = open.pop() {
            if visited.iter().any(|other| other.shares_storage(array)) || self.host_constant(array).is_some() {
                continue;
            }
            visited.push(array);
            if self.is_host_value(array) {
                continue;
            }
            let writers: Vec<usize> = self.writers(array).collect();
            if array.storage().pending() != self.id || writers.is_empty() {
                return None;
            }
            for k in writers.into_iter().filter(|k| !sources.contains(k)).collect::<Vec<_>>() {
                if matches!(self.kernels[k].kernel, Kernel::Random(_)) {
                    return None;
                }
                sources.push(k);
                open.extend(self.kernels[k].inputs.iter().chain(&self.kernels[k].outputs));
            }
        }
        sources.sort_unstable();
        Some(sources)
    }

    /// Returns the only kernel that writes an array, if it writes the entire array with a value that is the same on
    /// every device: a fill, or a copy of host values.
    fn exact_source(&self, array: &Array, sources: &[usize]) -> Option<usize> {
        let &[k] = sources else { return None };
        let kernel = &self.kernels[k];
        let is_exact = kernel.inputs.is_empty() || kernel.kernel == Kernel::Copy;
        let is_whole = |out: &Array| {
            out.layout().is_contiguous() && out.shares_storage(array) && {
                out.shape().size() * out.dtype().size() == out.storage().buffer().bytes()
            }
        };
        (is_exact && kernel.outputs.len() == 1 && is_whole(&kernel.outputs[0])).then_some(k)
    }
}

/// Copies an array that a captured step computes on the CPU, from fills and host values alone, to another device.
/// `upload` copies a value to the device.
///
/// Returns `None`, with the recording unchanged, for any other array.
pub(super) fn host_constant_on(
    array: &Array,
    device: Device,
    upload: impl Fn(&Array) -> Result<Array>,
) -> Result<Option<Array>> {
    if !array.device().is_cpu() {
        return Ok(None);
    }
    let Some(sources) = list::with_current(|r| r.sources(array)) else { return Ok(None) };
    if let Some(k) = list::with_current(|r| r.exact_source(array, &sources)) {
        let (kernel, inputs, shape) = list::with_current(|r| {
            r.kernels[k].is_host_constant = true;
            (r.kernels[k].kernel.clone(), r.kernels[k].inputs.clone(), r.kernels[k].outputs[0].shape().clone())
        });
        let inputs: Vec<Array> = inputs.iter().map(|input| input.copy_to_device(device)).collect::<Result<_>>()?;
        let moved = Array::new(device, array.dtype(), shape)?;
        submit(&kernel, &inputs.iter().collect::<OperandArrays>(), &[&moved])?;
        return Ok(Some(moved.view(array.layout().clone())));
    }
    compute(&sources)?;
    let Some(value) = list::with_current(|r| r.host_constant(array)) else { return Ok(None) };
    let copy = upload(&value)?;
    record_constant(&copy);
    Ok(Some(copy))
}

/// Runs recorded kernels immediately, into new arrays, and stores the values of their results.
fn compute(kernels: &[usize]) -> Result<()> {
    let mut values: Vec<(Array, Array)> = Vec::new();
    for &k in kernels {
        let (kernel, inputs, outputs) = list::with_current(|r| {
            r.kernels[k].is_host_constant = true;
            (r.kernels[k].kernel.clone(), r.kernels[k].inputs.clone(), r.kernels[k].outputs.clone())
        });
        let mut operands = |arrays: &[Array]| -> Result<Vec<Array>> {
            arrays.iter().map(|array| operand(array, &mut values)).collect()
        };
        let (inputs, outputs) = (operands(&inputs)?, operands(&outputs)?);
        let [inputs, outputs] = [&inputs, &outputs].map(|list| list.iter().collect::<OperandArrays>());
        eager(|| submit(&kernel, &inputs, &outputs))?;
    }
    list::with_current(|r| {
        for (recorded, value) in values {
            let writers = r.writers(&recorded).count();
            r.host_constants.push(HostConstant { recorded, value, writers });
        }
    });
    Ok(())
}

/// Returns an operand of a kernel that runs immediately, in place of the recorded array. `values` contains a recorded
/// array, and an array with its values, for each storage that such kernels write.
fn operand(array: &Array, values: &mut Vec<(Array, Array)>) -> Result<Array> {
    if let Some((_, value)) = values.iter().find(|(recorded, _)| recorded.shares_storage(array)) {
        return Ok(value.view(array.layout().clone()));
    }
    if let Some(value) = list::with_current(|r| r.host_constant(array)) {
        return Ok(value);
    }
    if list::with_current(|r| r.is_host_value(array)) {
        record_source(array);
        return Ok(array.clone());
    }
    let size = array.storage().buffer().bytes() / array.dtype().size();
    let value = Array::new(array.device(), array.dtype(), [size].into())?;
    values.push((array.clone(), value.clone()));
    Ok(value.view(array.layout().clone()))
}
