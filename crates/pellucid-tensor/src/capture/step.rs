//! `CompiledStep`: one recording, compiled to a plan with its storages.

use super::CaptureOptions;
use super::recording::record_closure;
use super::slots::{
    NumberedPlan, RecordedAccesses, SlotOrigin, StateWrite, byte_range, input_slots, mark_in_place_inputs,
    restore_constants, written_slots,
};
use crate::array::{Array, StorageId};
use crate::autocast::autocast_dtype;
use crate::device::Device;
use crate::engine::{
    self, HostDependencies, Recording, VersionUpdate, ensure_ready, ensure_unread, requires_grad_changes, run_kernel,
};
use crate::grad_mode::is_grad_enabled;
use crate::tensor::{EntryGradients, Tensor};
use pellucid_ir::backend::{BorrowedSlots, CheckedPlan, CompiledPlan, POISONED, READY, Storage};
use pellucid_ir::kernel::{Kernel, Meta};
use pellucid_ir::plan::{Plan, SlotView};
use pellucid_ir::{DType, Error, Layout, Result};
use std::sync::Arc;

/// The inputs and modes for which a step was recorded.
#[derive(Clone)]
pub(super) struct StepKey {
    metas: Vec<(Meta, Device)>,
    grad: bool,
    half: Option<DType>,
}

impl StepKey {
    pub(super) fn new(inputs: &[&Tensor]) -> StepKey {
        let meta = |t: &&Tensor| (Meta { shape: t.shape().clone(), dtype: t.dtype() }, t.device());
        StepKey { metas: inputs.iter().map(meta).collect(), grad: is_grad_enabled(), half: autocast_dtype() }
    }

    /// Returns the number of inputs.
    pub(super) fn inputs(&self) -> usize {
        self.metas.len()
    }

    /// Returns the index of the first input that is not on its device in this key, and that device.
    pub(super) fn moved_input(&self, inputs: &[&Tensor]) -> Option<(usize, Device)> {
        let mut devices = self.metas.iter().map(|(_, device)| *device).zip(inputs).enumerate();
        devices.find(|(_, (device, t))| *device != t.device()).map(|(index, (device, _))| (index, device))
    }

    /// Returns true if the inputs have this key. It allocates nothing, because every launch calls it.
    pub(super) fn is_key_of(&self, inputs: &[&Tensor]) -> bool {
        let same = |(meta, device): &(Meta, Device), t: &Tensor| {
            meta.shape == *t.shape() && meta.dtype == t.dtype() && *device == t.device()
        };
        self.grad == is_grad_enabled()
            && self.half == autocast_dtype()
            && self.metas.len() == inputs.len()
            && self.metas.iter().zip(inputs).all(|(meta, t)| same(meta, t))
    }
}

/// An input that the step reads.
struct StepInput {
    /// The buffer of the step to which the input is copied if its storage cannot be used in place.
    buffer: Array,
    /// The slot of the input if the plan can use the storage of the input in place, because the step only reads it.
    in_place: Option<usize>,
}

/// A recording, compiled to a plan and prepared by the backend.
pub(super) struct CompiledStep {
    key: StepKey,
    /// The id among the recordings of the captured step; 0 for a recording that is not cached.
    number: u64,
    /// The plan before all passes. It is compared with later recordings.
    recorded: Plan,
    plan: Plan,
    /// The kernels that run once, before the first launch.
    setup: Option<Box<dyn CompiledPlan>>,
    prepared: Box<dyn CompiledPlan>,
    /// One storage for each slot of the plan. Storages in the arena have no memory of their own.
    storages: Vec<Arc<Storage>>,
    origins: Vec<SlotOrigin>,
    /// The outside storages and constants that the step only reads.
    read: Vec<Arc<Storage>>,
    /// The outside storages that a launch writes, and the storages of outputs that are not in `read`.
    written: Vec<Arc<Storage>>,
    /// The inputs; `None` for an input that no kernel reads.
    inputs: Vec<Option<StepInput>>,
    /// The last launch of the recorded plan that reads each input.
    last_reads: Vec<Option<usize>>,
    /// The writes to tensors from outside, in the order of the recording.
    writes: Vec<StateWrite>,
    /// The outputs. Other code may hold handles to them.
    outputs: Vec<Tensor>,
    /// The gradient slots that the step uses, with their gradients before the step.
    slots: EntryGradients,
    /// The slots of outside storages that had handles outside recorded steps when the step was recorded. If one of
    /// these storages later has no such handle, the program has replaced its tensor.
    outside_slots: Vec<usize>,
    /// The host state that the closure reads.
    dependencies: HostDependencies,
    /// The count of `requires_grad` changes at which the recording was last validated.
    requires_grad_changes: u64,
}

impl CompiledStep {
    /// Records a step. Gradient slots start with their gradients in `entries`, or otherwise with their current ones.
    pub(super) fn record(
        step: &mut dyn FnMut(&[Tensor]) -> Result<Vec<Tensor>>,
        key: &StepKey,
        entries: EntryGradients,
        options: CaptureOptions,
    ) -> Result<CompiledStep> {
        let empty = |(meta, device): &(Meta, Device)| Array::new(*device, meta.dtype, meta.shape.clone());
        let inputs: Vec<Array> = key.metas.iter().map(empty).collect::<Result<_>>()?;
        let handles: Vec<Tensor> = inputs.iter().map(|a| Tensor::from(a.clone())).collect();
        let (outputs, mut recording, changed) = record_closure(entries, || step(&handles))?;
        inputs.iter().for_each(|a| a.storage().set_pending(POISONED));
        let (outputs, slots) = (outputs?, changed?);
        let arrays: Vec<Array> = outputs.iter().map(|t| t.array().clone()).collect();
        let mut step = CompiledStep::compile(key.clone(), &recording, &inputs, &arrays, slots, options)?;
        step.dependencies = std::mem::take(&mut recording.dependencies);
        // After this drop, only the step holds tensors of the recording, so handles can be counted.
        drop((outputs, arrays, recording));
        step.register_handles();
        Ok(step)
    }

    /// Registers the handles of this step with the outside storages.
    fn register_handles(&mut self) {
        let bound = |slot: &usize| matches!(self.origins[*slot], SlotOrigin::Bound);
        (0..self.origins.len()).filter(bound).for_each(|slot| self.storages[slot].keep(self.handles(slot)));
        self.outside_slots =
            (0..self.origins.len()).filter(bound).filter(|&slot| self.has_outside_handles(slot)).collect();
    }

    /// Returns the number of handles that the step holds to an outside storage.
    fn handles(&self, slot: usize) -> u32 {
        let outputs = self.outputs.iter().filter(|o| Arc::ptr_eq(o.array().storage(), &self.storages[slot])).count();
        // The step has one handle in `storages`, and one in `read` or `written`.
        2 + outputs as u32
    }

    /// Returns true if a storage has handles that belong to no recorded step.
    fn has_outside_handles(&self, slot: usize) -> bool {
        Arc::strong_count(&self.storages[slot]) > self.storages[slot].kept() as usize
    }

    /// Numbers the storages in the order of their first use, checks the kernels, runs the passes, and prepares a plan.
    fn compile(
        key: StepKey,
        recording: &Recording,
        inputs: &[Array],
        outputs: &[Array],
        slots: EntryGradients,
        options: CaptureOptions,
    ) -> Result<CompiledStep> {
        let NumberedPlan { plan: mut recorded, mut origins, mut storages, device } =
            NumberedPlan::from_recording(recording, inputs, outputs)?;
        let RecordedAccesses { last_reads, writes } =
            RecordedAccesses::from_plan(&recorded, &origins, &storages, inputs)?;
        restore_constants(&mut recorded, &mut origins, &mut storages, device)?;
        recorded.is_launch_bound = device.is_deferred();
        recorded.packs_weights = options.pack_weights;
        recorded.slots = storages.iter().map(|s| s.buffer().bytes()).collect();
        recorded.roles = origins.iter().map(SlotOrigin::role).collect();
        let is_written = written_slots(&recorded.launches, origins.len());
        mark_in_place_inputs(&mut recorded, &origins, &is_written);

        CheckedPlan::new(&recorded)?;
        let plan = recorded.clone().after(options.passes);
        if let Some(arena) = &plan.arena {
            let memory = device.backend().storage(arena.bytes);
            storages.push(memory.map_err(|error| plan.named(false, Some(0), error))?);
        }
        let view = |slot: usize, layout: Layout, dtype| {
            Array::dense(storages[slot].clone(), 0, dtype, layout.shape().clone(), device).view(layout)
        };
        let output = |o: &SlotView| Tensor::from(view(o.slot, o.layout.clone(), o.dtype)).pinned();
        let outputs: Vec<Tensor> = plan.outputs.iter().map(output).collect();
        let metas = key.metas.iter().map(|(meta, _)| meta).enumerate();
        let own_input = |(number, meta): (usize, &Meta)| {
            let (slot, in_place, offset) = input_slots(&plan, &origins, number, meta.dtype)?;
            Some(StepInput {
                buffer: view(slot, Layout::contiguous_from(meta.shape.clone(), offset), meta.dtype),
                in_place,
            })
        };
        let inputs: Vec<Option<StepInput>> = metas.map(own_input).collect();

        let outside = |i: &usize| matches!(origins[*i], SlotOrigin::Bound | SlotOrigin::Constant(_));
        let (write, read): (Vec<usize>, Vec<usize>) =
            (0..origins.len()).filter(outside).partition(|slot| is_written[*slot]);
        let [mut read, mut written] =
            [read, write].map(|list| list.into_iter().map(|i| storages[i].clone()).collect::<Vec<_>>());
        for storage in outputs.iter().map(|output| output.array().storage()) {
            if !read.iter().chain(&written).any(|listed| Arc::ptr_eq(listed, storage)) {
                written.push(storage.clone());
            }
        }
        // Each launch adds the storages of its inputs, and must not allocate.
        read.reserve_exact(inputs.len());
        let setup = (!plan.setup.is_empty()).then(|| {
            let launches = plan.setup.clone();
            engine::prepare(device, &Plan { slots: plan.slots.clone(), launches, ..Plan::default() })
        });
        let prepared = engine::prepare(device, &plan)?;
        let setup = setup.transpose()?;
        Ok(CompiledStep {
            key,
            number: 0,
            recorded,
            plan,
            setup,
            prepared,
            storages,
            origins,
            read,
            written,
            inputs,
            last_reads,
            writes,
            outputs,
            slots,
            outside_slots: Vec::new(),
            dependencies: HostDependencies::default(),
            requires_grad_changes: requires_grad_changes(),
        })
    }

    /// Returns true if the recording has the key of these inputs, and the host flags and the tensors on other devices
    /// have the values that the closure has read.
    pub(super) fn fits(&self, inputs: &[&Tensor]) -> bool {
        self.key.is_key_of(inputs) && self.dependencies.all_unchanged()
    }

    /// Returns false if a host flag that the closure has read can never have that value again.
    pub(super) fn can_match_again(&self) -> bool {
        self.dependencies.can_match_again()
    }

    /// Returns true if no tensor of a captured step had a `requires_grad` change since the last validation.
    pub(super) fn is_current(&self) -> bool {
        self.requires_grad_changes == requires_grad_changes()
    }

    /// Marks the recording as valid for the current count of `requires_grad` changes.
    pub(super) fn mark_current(&mut self) {
        self.requires_grad_changes = requires_grad_changes();
    }

    pub(super) fn key(&self) -> &StepKey {
        &self.key
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn set_number(&mut self, number: u64) {
        self.number = number;
    }

    pub(super) fn plan(&self) -> &Plan {
        &self.plan
    }

    pub(super) fn outputs(&self) -> &[Tensor] {
        &self.outputs
    }

    fn slot(&self, id: StorageId) -> Option<usize> {
        self.storages.iter().position(|s| StorageId::from_storage(s) == id)
    }

    pub(super) fn name(&mut self, id: StorageId, name: &str) {
        if let Some(slot) = self.slot(id) {
            self.plan.names.insert(slot, name.into());
        }
    }

    /// Returns the gradient slots that the step uses, with their gradients before the step.
    pub(super) fn entry_gradients(&self) -> &EntryGradients {
        &self.slots
    }

    /// Returns true while the gradients of the step have the same storages and layouts, and the storages of
    /// `outside_slots` still have handles that belong to no recorded step.
    pub(super) fn has_current_bindings(&self) -> bool {
        let bound = self.slots.iter().all(|(slot, entry)| match (slot.get_untracked(), &entry.gradient) {
            (Some(now), Some(then)) => {
                now.array().shares_storage(then.array()) && now.array().layout() == then.array().layout()
            }
            (None, None) => true,
            _ => false,
        });
        bound && self.outside_slots.iter().all(|&slot| self.has_outside_handles(slot))
    }

    pub(super) fn launch(&mut self, inputs: &[&Tensor]) -> Result<()> {
        for output in self.outputs.iter().map(|output| output.array().storage()) {
            // An output has values after its first launch.
            if output.pending() == POISONED {
                output.set_pending(READY);
            }
        }
        // Other threads may have deferred reads of tensors that the launch writes.
        self.written.iter().for_each(|storage| ensure_unread(storage));
        for storage in inputs.iter().map(|t| t.array().storage()).chain(&self.read).chain(&self.written) {
            ensure_ready("launch", storage)?;
        }
        self.check_stale_inputs(inputs)?;
        let bound = self.read.len();
        let launched = self.bind_inputs(inputs).and_then(|()| self.run());
        self.read.truncate(bound);
        for input in self.inputs.iter().flatten() {
            if let Some(slot) = input.in_place {
                self.storages[slot] = input.buffer.storage().clone();
            }
        }
        launched
    }

    /// Returns an error for inputs that share memory with a tensor that the step writes before its last read of the
    /// input. A launch may use a copy from before the write, but eager execution would read the new values.
    fn check_stale_inputs(&self, inputs: &[&Tensor]) -> Result<()> {
        for (index, (tensor, last)) in inputs.iter().zip(&self.last_reads).enumerate() {
            let (array, Some(last)) = (tensor.array(), last) else { continue };
            // If no captured step uses a storage, this step does not write it.
            if array.storage().kept() == 0 {
                continue;
            }
            let bytes = byte_range(array.layout(), array.dtype());
            let stale = |write: &&StateWrite| {
                write.storage == StorageId::from_storage(array.storage())
                    && write.launch < *last
                    && write.bytes.start < bytes.end
                    && bytes.start < write.bytes.end
            };
            if self.writes.iter().any(|write| stale(&write)) {
                let reason = format!(
                    "input {index} of shape {} shares its memory with a tensor that the step writes in place before it \
                     reads the input; pass a copy() of it, or use that tensor in the step as a captured variable",
                    tensor.shape()
                );
                return Err(Error::invalid("launch", reason));
            }
        }
        Ok(())
    }

    /// Binds the inputs to their slots: read-only dense inputs in place, all others by a copy.
    fn bind_inputs(&mut self, inputs: &[&Tensor]) -> Result<()> {
        for (tensor, input) in inputs.iter().zip(&self.inputs) {
            let (array, Some(input)) = (tensor.array(), input) else { continue };
            let dense = array.layout().is_contiguous() && array.layout().offset() == 0;
            match input.in_place.filter(|_| dense && !self.is_written(array)) {
                Some(slot) => {
                    self.storages[slot] = array.storage().clone();
                    self.read.push(array.storage().clone());
                }
                None => run_kernel(&Kernel::Copy, &[array], &[&input.buffer], VersionUpdate::Skip)?,
            }
        }
        Ok(())
    }

    /// Returns true if a launch writes the storage of this array.
    fn is_written(&self, array: &Array) -> bool {
        self.written.iter().any(|storage| Arc::ptr_eq(storage, array.storage()))
    }

    /// Runs the setup before the first launch, and then the kernels of the plan.
    fn run(&mut self) -> Result<()> {
        if let Some(setup) = &self.setup {
            let launched = setup.run(&self.storages);
            launched.map_err(|failed| self.plan.named(true, failed.launch(), failed.error))?;
            self.setup = None;
        }
        let slots = BorrowedSlots::acquire(&self.storages, self.prepared.access())?;
        let launched = self.prepared.launch(&slots);
        // A launch that failed may also have written tensors.
        self.written.iter().for_each(|storage| storage.bump());
        launched.map_err(|failed| self.plan.named(false, failed.launch(), failed.error))
    }

    pub(super) fn difference(&self, other: &CompiledStep) -> Option<String> {
        if let Some(difference) = self.recorded.difference(&other.recorded) {
            return Some(difference);
        }
        let same = |i: usize| match (&self.origins[i], &other.origins[i]) {
            (SlotOrigin::Input(a), SlotOrigin::Input(b)) => a == b,
            (SlotOrigin::Own, SlotOrigin::Own) => true,
            (SlotOrigin::Bound, SlotOrigin::Bound) => Arc::ptr_eq(&self.storages[i], &other.storages[i]),
            (SlotOrigin::Constant(a), SlotOrigin::Constant(b)) => a == b,
            _ => false,
        };
        let slot = (0..self.origins.len()).find(|&i| !same(i))?;
        let launches = &self.recorded.launches;
        let launch = launches.iter().position(|l| l.inputs.iter().chain(&l.outputs).any(|o| o.slot == slot));
        let user = launch.map_or("the result".to_string(), |k| format!("`{}`", launches[k].kernel.name()));
        Some(match &self.origins[slot] {
            SlotOrigin::Constant(_) => {
                format!("{user} reads a tensor that was created from different host values than in the recording")
            }
            _ => format!("{user} uses a different tensor than in the recording"),
        })
    }
}

impl Drop for CompiledStep {
    fn drop(&mut self) {
        let bound = (0..self.origins.len()).filter(|&slot| matches!(self.origins[slot], SlotOrigin::Bound));
        bound.for_each(|slot| self.storages[slot].end_keep(self.handles(slot)));
    }
}
