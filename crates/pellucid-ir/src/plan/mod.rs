//! Plans: lists of kernels over numbered buffer slots, in the order in which they run.
//!
//! In a recorded plan, every result of a kernel is in a separate slot. The [passes](PASSES) transform it into a plan
//! with bit-identical results, fewer kernels and less memory. A plan is pure data: it refers to no device and holds no
//! tensor values.
//!
//! | file | contents |
//! | --- | --- |
//! | `passes` | the list of passes, and the selection of passes to run |
//! | `order` | order dependencies between launches, and moving a launch |
//! | `dead`, `constants`, `copies`, `fuse`, `early` | one pass each |
//! | `arena` | buffer lifetimes, and offsets in one arena |
//! | `verify` | checks of a plan after every pass, in debug builds |
//! | `print`, `svg` | the text and the picture of a plan |

mod arena;
mod constants;
mod copies;
mod dead;
mod early;
mod fuse;
mod order;
mod passes;
mod print;
mod slot_use;
mod svg;
#[cfg(test)]
mod tests;
mod verify;

pub use arena::{Arena, BufferAllocation};
pub use passes::{PASSES, Pass, Passes};
pub use slot_use::{SlotAccess, SlotUse, slot_access};

use crate::dtype::DType;
use crate::error::Error;
use crate::kernel::{Kernel, Meta};
use crate::shape::{Layout, Overlap};
use std::collections::BTreeMap;
use std::fmt;

/// The number of a buffer slot.
pub type Slot = usize;

/// One operand of a launch: a view into a slot.
#[derive(Clone, Debug, PartialEq)]
pub struct SlotView {
    /// The buffer.
    pub slot: Slot,
    /// The layout of the elements in the buffer.
    pub layout: Layout,
    /// The type of the elements.
    pub dtype: DType,
}

/// One kernel with its operands.
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    /// The kernel.
    pub kernel: Kernel,
    /// The operands that the kernel reads.
    pub inputs: Vec<SlotView>,
    /// The operands that the kernel writes. Kernel families with state outputs also read them.
    pub outputs: Vec<SlotView>,
    /// The names of the recorded kernels that were fused into this kernel; empty if no kernels were fused.
    pub parts: Vec<&'static str>,
    /// The operation whose call recorded the kernel; `None` outside of operations.
    pub operation: Option<&'static str>,
    /// Whether the kernel may fail because of values (such as an index out of bounds) that no earlier launch of the
    /// plan has checked.
    pub(crate) can_fail: bool,
    /// Whether several launches of one operation write an output of this launch, such as the copy of a tensor and the
    /// scatter into this copy. The output is complete only after the last of these launches.
    pub shares_result: bool,
}

impl Launch {
    /// Formats the kernel's name and the dtypes and shapes of its operands: `relu(f32 [3]) -> f32 [3]`.
    fn signature(&self) -> String {
        let list = |views: &[SlotView]| {
            let each = views.iter().map(|view| format!("{} {}", view.dtype, view.layout.shape()));
            each.collect::<Vec<_>>().join(", ")
        };
        format!("`{}({}) -> {}`", self.kernel.name(), list(&self.inputs), list(&self.outputs))
    }
}

/// The owner of a slot's memory, and whether the plan may write it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SlotRole {
    /// Memory that the plan writes and that is not visible outside.
    #[default]
    Scratch,
    /// Memory of an input, which is written before every run; the plan may overwrite it.
    Input,
    /// Memory that the caller passes to every run; the plan only reads it.
    ExternalRead,
    /// Memory that the caller passes to every run and reads after it. The plan writes it; its contents before a run are
    /// not defined.
    ExternalWrite,
    /// Memory of a constant, which no launch of a run writes.
    Constant,
    /// The memory of a tensor that exists outside the plan; the plan may read and write it.
    State,
}

/// A list of kernels over slots.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// The size of every slot in bytes.
    pub slots: Vec<usize>,
    /// The role of every slot; slots beyond the list are [`SlotRole::Scratch`].
    pub roles: Vec<SlotRole>,
    /// The launches that run once before the first run, because they depend only on constants.
    pub setup: Vec<Launch>,
    /// The launches of one run, in order.
    pub launches: Vec<Launch>,
    /// The operands that the caller reads at the end of a run.
    pub outputs: Vec<SlotView>,
    /// The names of slots in the printed plan.
    pub names: BTreeMap<Slot, String>,
    /// The offsets of the inputs and of the buffers that the plan owns, if the arena pass ran.
    pub arena: Option<Arena>,
    /// Whether a launch takes longer than writing and reading a typical value in memory, as on a GPU. Kernels are then
    /// fused even if only the time of a launch is saved.
    pub is_launch_bound: bool,
    /// Whether a backend may keep the right factors of matrix products in a faster layout, in additional memory of the
    /// same size, if the plan only reads them and they are [`State`](SlotRole::State) or
    /// [`Constant`](SlotRole::Constant).
    pub packs_weights: bool,
    /// A report of the changes that the passes made.
    pub report: PassReport,
}

/// A report of the changes that the passes made to a recorded plan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PassReport {
    /// The number of kernels before the passes.
    pub recorded: usize,
    /// The slots that no longer need memory, each with the reason.
    pub elided: Vec<(Slot, Elision)>,
    /// The kernels that were not fused: the producer, the consumer, and the reason.
    pub unfused: Vec<(&'static str, &'static str, &'static str)>,
}

/// The reason why a slot needs no memory.
#[derive(Clone, Debug, PartialEq)]
pub enum Elision {
    /// No launch reads the slot, and its value is not needed after a run.
    Dead,
    /// Launches read or write this other slot instead.
    Same(Slot),
    /// The value stays in registers of a fused kernel with these parts.
    Fused(Vec<&'static str>),
}

impl fmt::Display for Elision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Elision::Dead => write!(f, "it is never read"),
            Elision::Same(slot) => write!(f, "buffer {slot} is used instead"),
            Elision::Fused(parts) => write!(f, "{}", parts.join(" + ")),
        }
    }
}

impl SlotView {
    /// Returns shape and dtype.
    pub fn meta(&self) -> Meta {
        Meta { shape: self.layout.shape().clone(), dtype: self.dtype }
    }

    /// Returns the size of all elements in bytes; a broadcast element counts once for each index.
    pub fn bytes(&self) -> usize {
        self.layout.shape().size() * self.dtype.size()
    }

    /// Returns how this operand and `other` overlap in memory.
    pub fn overlap(&self, other: &SlotView) -> Overlap {
        if self.slot != other.slot {
            return Overlap::Disjoint;
        }
        self.layout.overlap(self.dtype.size(), &other.layout, other.dtype.size())
    }
}

impl Launch {
    /// Creates a launch of a recorded (unfused) kernel.
    pub fn new(kernel: Kernel, inputs: Vec<SlotView>, outputs: Vec<SlotView>) -> Launch {
        let parts = Vec::new();
        Launch { kernel, inputs, outputs, parts, operation: None, can_fail: false, shares_result: false }
    }

    /// Sets [`Launch::operation`].
    pub fn of_operation(self, operation: Option<&'static str>) -> Launch {
        Launch { operation, ..self }
    }

    /// Creates the launch of a kernel that computes the launches `a` and `b`.
    fn fused(kernel: Kernel, inputs: Vec<SlotView>, outputs: Vec<SlotView>, (a, b): (&Launch, &Launch)) -> Launch {
        let parts = [a.parts(), b.parts()].concat();
        let (can_fail, shares_result) = (a.can_fail || b.can_fail, a.shares_result || b.shares_result);
        Launch { kernel, inputs, outputs, parts, operation: b.operation, can_fail, shares_result }
    }

    /// Returns the names of the recorded kernels that this launch computes.
    pub fn parts(&self) -> Vec<&'static str> {
        if self.parts.is_empty() { vec![self.kernel.name()] } else { self.parts.clone() }
    }

    /// Returns the largest output.
    fn largest_output(&self) -> Option<&SlotView> {
        self.outputs.iter().max_by_key(|out| out.bytes())
    }

    /// Adds the name of the operation to an [`Error::OutOfMemory`] without an operation, or the name of the kernel if
    /// the operation is unknown.
    fn name_memory(&self, error: &mut Error) {
        if matches!(error, Error::OutOfMemory { op: "", .. }) {
            error.set_operation(self.operation.or_else(|| self.parts().pop()).unwrap_or_default());
        }
    }

    /// Names the operation in an error of this launch, unless the launch computes several kernels: their errors name
    /// the kernel. Adds the operation and the shape of the largest output to an [`Error::OutOfMemory`] that lacks them.
    #[cold]
    pub fn named(&self, mut error: Error) -> Error {
        self.name_memory(&mut error);
        if let Some(operation) = self.operation.filter(|_| self.parts.is_empty()) {
            error.set_operation(operation);
        }
        match self.largest_output() {
            Some(out) => error.with_shape(out.layout.shape()),
            None => error,
        }
    }

    /// Returns the number of arithmetic operations on values (see [`Kernel::flops`]).
    pub fn flops(&self) -> u64 {
        let metas = |operands: &[SlotView]| operands.iter().map(SlotView::meta).collect::<Vec<_>>();
        self.kernel.flops(&metas(&self.inputs), &metas(&self.outputs))
    }

    /// Returns the number of bytes that the kernel reads and writes.
    pub fn bytes(&self) -> usize {
        self.operands().map(|o| o.layout.accessed_elements() * o.dtype.size()).sum()
    }

    /// Iterates over the inputs, then the outputs.
    fn operands(&self) -> impl Iterator<Item = &SlotView> {
        self.inputs.iter().chain(&self.outputs)
    }

    fn operands_mut(&mut self) -> impl Iterator<Item = &mut SlotView> {
        self.inputs.iter_mut().chain(&mut self.outputs)
    }

    fn writes(&self, slot: Slot) -> bool {
        self.outputs.iter().any(|o| o.slot == slot)
    }

    fn touches(&self, slot: Slot) -> bool {
        self.operands().any(|o| o.slot == slot)
    }

    /// Returns true if the kernel also reads its outputs.
    fn updates(&self) -> bool {
        self.kernel.info().state_outputs > 0
    }

    /// Returns true if no two outputs overlap, and every overlap of an output and an input is one that the kernel
    /// [allows](crate::kernel::ReadOrder::allows).
    pub fn is_sound(&self) -> bool {
        let reads = self.kernel.info().reads;
        self.outputs.iter().enumerate().all(|(i, out)| {
            self.outputs[i + 1..].iter().all(|other| other.overlap(out) == Overlap::Disjoint)
                && self.inputs.iter().enumerate().all(|(k, input)| reads.allows(k, out.overlap(input)))
        })
    }
}

impl Plan {
    /// Returns `error` with the name of an operation: of the failed launch or, if the memory of the arena cannot be
    /// allocated outside of the setup, of the first launch that uses the largest buffer of the arena.
    #[cold]
    pub fn named(&self, is_setup: bool, launch: Option<usize>, mut error: Error) -> Error {
        let launches = if is_setup { &self.setup } else { &self.launches };
        let is_memory =
            |arena: &&Arena| matches!(error, Error::OutOfMemory { requested, .. } if requested == arena.bytes);
        let buffers = self.arena.iter().filter(is_memory).flat_map(|arena| &arena.allocations);
        let Some(largest) = buffers.max_by_key(|buffer| buffer.bytes) else {
            return launch.and_then(|index| launches.get(index)).map_or(error.clone(), |launch| launch.named(error));
        };
        // All buffers of the setup are live at the first launch.
        let writer = if is_setup { launch } else { Some(largest.first) };
        if let Some(writer) = writer.and_then(|index| launches.get(index)) {
            writer.name_memory(&mut error);
        }
        error
    }

    /// Returns the role of `slot`.
    pub fn role(&self, slot: Slot) -> SlotRole {
        self.roles.get(slot).copied().unwrap_or_default()
    }

    /// Replaces slot `from` by `to` in all launches and outputs, and inserts a first launch that copies all `bytes`
    /// bytes of `from` to `to`.
    pub fn copy_first(&mut self, from: Slot, to: Slot, bytes: usize) {
        let operands = self.launches.iter_mut().flat_map(Launch::operands_mut).chain(&mut self.outputs);
        operands.filter(|o| o.slot == from).for_each(|o| o.slot = to);
        let all_bytes = |slot| SlotView { slot, layout: Layout::contiguous([bytes].into()), dtype: DType::U8 };
        self.launches.insert(0, Launch::new(Kernel::Copy, vec![all_bytes(from)], vec![all_bytes(to)]));
    }

    /// Returns the number of arithmetic operations of one run.
    pub fn flops(&self) -> u64 {
        self.launches.iter().map(Launch::flops).sum()
    }

    /// Returns the number of bytes that the kernels of one run read and write.
    pub fn traffic(&self) -> usize {
        self.launches.iter().map(Launch::bytes).sum()
    }

    /// Returns true if the final value of `slot` is needed: it is an output, or visible outside the plan.
    fn is_wanted(&self, slot: Slot) -> bool {
        matches!(self.role(slot), SlotRole::State | SlotRole::ExternalWrite)
            || self.outputs.iter().any(|o| o.slot == slot)
    }

    /// Iterates over the indices of the launches that read or write `slot`.
    fn users(&self, slot: Slot) -> impl DoubleEndedIterator<Item = usize> {
        (0..self.launches.len()).filter(move |&k| self.launches[k].touches(slot))
    }

    /// Adds each slot of `before` that no launch uses any more to the elided slots of the report, with the reason
    /// `why`.
    fn elide(&mut self, before: impl IntoIterator<Item = Slot>, why: &Elision) {
        for slot in before {
            let known = self.report.elided.iter().any(|(s, _)| *s == slot);
            if self.role(slot) == SlotRole::Scratch
                && !known
                && self.users(slot).next().is_none()
                && !self.is_wanted(slot)
            {
                self.report.elided.push((slot, why.clone()));
            }
        }
    }

    /// Describes the first difference between two plans; `None` if they are equal.
    pub fn difference(&self, other: &Plan) -> Option<String> {
        for (i, (a, b)) in self.launches.iter().zip(&other.launches).enumerate() {
            if a != b {
                let (was, is) = (a.signature(), b.signature());
                return Some(match (was == is, a.kernel == b.kernel) {
                    (false, _) => format!("kernel {i} is {is} instead of {was}"),
                    (true, false) => format!("kernel {i}, {is}, has different host values or a different formula"),
                    (true, true) => {
                        format!("kernel {i}, {is}, reads or writes different tensors or different parts of them")
                    }
                });
            }
        }
        let (a, b) = (self.launches.len(), other.launches.len());
        if a != b {
            return Some(format!("{b} kernels instead of {a}"));
        }
        (self.slots != other.slots).then(|| "the sizes of the buffers differ".to_string())
    }
}
