//! The slots of a recording: numbered storages with their origins and uses.

use crate::array::{Array, StorageId};
use crate::device::Device;
use crate::engine::{RecordedKernel, Recording, StorageNumbers};
use pellucid_ir::backend::{POISONED, Storage};
use pellucid_ir::plan::{Launch, Plan, SlotRole, SlotView};
use pellucid_ir::{DType, Error, Layout, Result, Shape};
use std::ops::Range;
use std::sync::Arc;

/// The origin of the tensor in a slot of the plan.
#[derive(Clone)]
pub(super) enum SlotOrigin {
    Input(usize),
    /// A tensor that the step creates and owns.
    Own,
    /// A tensor from outside the step.
    Bound,
    /// A tensor that the step creates from these host bytes.
    Constant(Vec<u8>),
}

impl SlotOrigin {
    pub(super) fn role(&self) -> SlotRole {
        match self {
            SlotOrigin::Input(_) => SlotRole::Input,
            SlotOrigin::Own => SlotRole::Scratch,
            SlotOrigin::Bound => SlotRole::State,
            SlotOrigin::Constant(_) => SlotRole::Constant,
        }
    }
}

/// An in-place write to a tensor outside the step.
pub(super) struct StateWrite {
    pub(super) storage: StorageId,
    /// The index of the launch in the plan before all passes.
    pub(super) launch: usize,
    /// The range of bytes that contains all written elements.
    pub(super) bytes: Range<isize>,
}

/// Returns the range of bytes that contains all elements of the layout.
pub(super) fn byte_range(layout: &Layout, dtype: DType) -> Range<isize> {
    let (Range { start, end }, size) = (layout.extent(), dtype.size() as isize);
    start * size..end * size
}

/// The plan of a recording before all passes, with the storages and the origins of its slots.
pub(super) struct NumberedPlan {
    pub(super) plan: Plan,
    pub(super) origins: Vec<SlotOrigin>,
    pub(super) storages: Vec<Arc<Storage>>,
    pub(super) device: Device,
}

impl NumberedPlan {
    /// Numbers the storages in the order of their first use.
    ///
    /// # Errors
    /// [`Error::DeviceMismatch`] if the step uses tensors on several devices.
    pub(super) fn from_recording(recording: &Recording, inputs: &[Array], outputs: &[Array]) -> Result<NumberedPlan> {
        let (table, constants) = (StorageNumbers::default(), &recording.constants[..]);
        let mut numbering = SlotNumbering { table, origins: Vec::new(), inputs, constants, devices: Vec::new() };
        let mut plan = Plan::default();
        let device = device_of(recording, outputs);
        for kernel in &recording.kernels {
            let is_elsewhere = device.is_some_and(|device| kernel.outputs[0].device() != device);
            if is_elsewhere && is_unneeded(kernel, outputs) {
                continue;
            }
            let RecordedKernel { kernel, inputs, outputs, operation, .. } = kernel;
            let (inputs, outputs) = (numbering.operands(inputs)?, numbering.operands(outputs)?);
            plan.launches.push(Launch::new(kernel.clone(), inputs, outputs).of_operation(*operation));
        }
        plan.outputs = numbering.operands(outputs)?;
        let device = numbering.device()?;
        let SlotNumbering { table, origins, .. } = numbering;
        Ok(NumberedPlan { plan, origins, storages: table.into_storages(), device })
    }
}

/// The accesses of a recording to its inputs and to tensors from outside.
pub(super) struct RecordedAccesses {
    /// The last launch that reads each input. The outputs of the step count as read after the last launch.
    pub(super) last_reads: Vec<Option<usize>>,
    /// The writes to tensors from outside, in order.
    pub(super) writes: Vec<StateWrite>,
}

impl RecordedAccesses {
    /// Collects the accesses of a plan. Returns an error if the step writes into an input.
    pub(super) fn from_plan(
        plan: &Plan,
        origins: &[SlotOrigin],
        storages: &[Arc<Storage>],
        inputs: &[Array],
    ) -> Result<RecordedAccesses> {
        let mut accesses = RecordedAccesses { last_reads: vec![None; inputs.len()], writes: Vec::new() };
        for (launch, kernel) in plan.launches.iter().enumerate() {
            accesses.read(&kernel.inputs, origins, launch);
            for operand in &kernel.outputs {
                match origins[operand.slot] {
                    SlotOrigin::Input(input) => return Err(input_written_error(input, inputs[input].shape())),
                    SlotOrigin::Bound => {
                        let storage = StorageId::from_storage(&storages[operand.slot]);
                        let bytes = byte_range(&operand.layout, operand.dtype);
                        accesses.writes.push(StateWrite { storage, launch, bytes });
                    }
                    _ => {}
                }
            }
        }
        accesses.read(&plan.outputs, origins, plan.launches.len());
        Ok(accesses)
    }

    fn read(&mut self, operands: &[SlotView], origins: &[SlotOrigin], launch: usize) {
        for operand in operands {
            if let SlotOrigin::Input(input) = origins[operand.slot] {
                self.last_reads[input] = Some(launch);
            }
        }
    }
}

/// Replaces each constant that the step overwrites by a second slot in the plan. Every launch first copies the constant
/// to this slot.
pub(super) fn restore_constants(
    plan: &mut Plan,
    origins: &mut Vec<SlotOrigin>,
    storages: &mut Vec<Arc<Storage>>,
    device: Device,
) -> Result<()> {
    for (slot, is_written) in written_slots(&plan.launches, origins.len()).into_iter().enumerate() {
        if is_written && matches!(origins[slot], SlotOrigin::Constant(_)) {
            let bytes = storages[slot].buffer().bytes();
            storages.push(device.backend().storage(bytes)?);
            origins.push(SlotOrigin::Own);
            plan.copy_first(slot, origins.len() - 1, bytes);
        }
    }
    Ok(())
}

/// Marks the inputs that the step only reads and does not return. A launch may use their storages in place.
pub(super) fn mark_in_place_inputs(plan: &mut Plan, origins: &[SlotOrigin], is_written: &[bool]) {
    for (slot, origin) in origins.iter().enumerate() {
        let is_input = matches!(origin, SlotOrigin::Input(_));
        if is_input && !is_written[slot] && plan.outputs.iter().all(|o| o.slot != slot) {
            plan.roles[slot] = SlotRole::ExternalRead;
        }
    }
}

/// Returns the location of an input: the slot of the step's buffer for the input, the slot of the input's own storage
/// if that can be used in place, and the offset of the input in the buffer, in elements. Returns `None` for an input
/// that no kernel reads.
pub(super) fn input_slots(
    plan: &Plan,
    origins: &[SlotOrigin],
    input: usize,
    dtype: DType,
) -> Option<(usize, Option<usize>, usize)> {
    let slot = origins.iter().position(|o| matches!(o, SlotOrigin::Input(n) if *n == input))?;
    let in_place = (plan.role(slot) == SlotRole::ExternalRead).then_some(slot);
    match &plan.arena {
        Some(arena) if in_place.is_none() => {
            Some((arena.slot, in_place, arena.allocation(slot)?.offset / dtype.size()))
        }
        _ => Some((slot, in_place, 0)),
    }
}

/// Returns a flag for every slot: true if a launch writes the slot.
pub(super) fn written_slots(launches: &[Launch], slots: usize) -> Vec<bool> {
    let mut is_written = vec![false; slots];
    launches.iter().flat_map(|launch| &launch.outputs).for_each(|operand| is_written[operand.slot] = true);
    is_written
}

/// Returns the error for a step that writes to one of its inputs.
fn input_written_error(input: usize, shape: &Shape) -> Error {
    let reason = format!(
        "the step writes in place into its input {input} of shape {shape}, and a launch would lose the written values; \
         use the tensor in the step as a captured variable, or write into a copy() of the input"
    );
    Error::invalid("capture", reason)
}

/// Returns the device on which the kernels of a recording run. Only kernels that have inputs, and whose results are not
/// constants, determine it: it is the first GPU among their devices, or the first device if none is a GPU. For a step
/// of constants alone, it is the first GPU among the devices of its outputs, or `None`.
fn device_of(recording: &Recording, outputs: &[Array]) -> Option<Device> {
    let mut kernels = recording.kernels.iter().filter(|k| !k.inputs.is_empty() && !k.is_host_constant);
    let device = |k: &RecordedKernel| k.outputs[0].device();
    let Some(first) = kernels.next().map(device) else { return outputs.iter().map(Array::device).find(Device::is_gpu) };
    Some(if first.is_gpu() { first } else { kernels.map(device).find(Device::is_gpu).unwrap_or(first) })
}

/// Returns true if a kernel on a device other than the step's can be omitted: it neither computes an output of the step
/// nor writes an outside tensor. Kernels of the step cannot read its results. Such a kernel created the scalar operand
/// of a failed call, or computes a constant that was copied to the device of the step.
fn is_unneeded(kernel: &RecordedKernel, outputs: &[Array]) -> bool {
    let is_needed = |array: &Array| {
        array.storage().pending() != POISONED || outputs.iter().any(|output| output.shares_storage(array))
    };
    !kernel.outputs.iter().any(is_needed)
}

/// Numbers the storages of a recording as slots.
struct SlotNumbering<'a> {
    table: StorageNumbers,
    origins: Vec<SlotOrigin>,
    inputs: &'a [Array],
    constants: &'a [Array],
    devices: Vec<Device>,
}

impl SlotNumbering<'_> {
    /// Returns the device of all arrays of the step; the CPU if there are no arrays.
    fn device(&self) -> Result<Device> {
        match self.devices[..] {
            [] => Ok(Device::cpu()),
            [device] => Ok(device),
            _ => {
                let devices = self.devices.iter().map(|device| device.name().to_string()).collect();
                Err(Error::DeviceMismatch { op: "capture", devices })
            }
        }
    }

    fn operands(&mut self, arrays: &[Array]) -> Result<Vec<SlotView>> {
        let operand = |a: &Array| Ok(SlotView { slot: self.slot(a)?, layout: a.layout().clone(), dtype: a.dtype() });
        arrays.iter().map(operand).collect()
    }

    fn slot(&mut self, array: &Array) -> Result<usize> {
        let (slot, is_new) = self.table.slot(array.storage());
        if !is_new {
            return Ok(slot);
        }
        let shares = |a: &Array| a.shares_storage(array);
        let origin = if let Some(i) = self.inputs.iter().position(shares) {
            SlotOrigin::Input(i)
        } else if let Some(constant) = self.constants.iter().find(|c| shares(c)) {
            SlotOrigin::Constant(constant.to_bytes("capture")?)
        } else if array.storage().pending() == POISONED {
            SlotOrigin::Own
        } else {
            SlotOrigin::Bound
        };
        if !self.devices.contains(&array.device()) {
            self.devices.push(array.device());
        }
        self.origins.push(origin);
        Ok(slot)
    }
}
