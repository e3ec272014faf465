//! The operands of kernels and plans: views of storages, and operands that are checked and whose borrow words are held.

use super::{Readable, Storage, Writable};
use crate::borrow::{BorrowGuard, BorrowWord, Borrowed, Native, SlotBorrowGuard, StorageOperand, Version};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::{Kernel, KernelOperand};
use crate::plan::{Launch, Plan, SlotAccess, SlotView};
use crate::shape::{Layout, Overlap};
use smallvec::SmallVec;
use std::collections::HashSet;
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr;
use std::sync::Arc;

borrowed! {
    View<'_>: self => self.storage;
    DenseView<'_>: self => self.storage;
}

/// An operand of a kernel. Shape and strides are passed as arguments, never as device buffers.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The storage of the elements.
    pub storage: &'a Storage,
    /// The layout in the storage; offset and strides in elements.
    pub layout: &'a Layout,
    /// The type of the elements.
    pub dtype: DType,
}

/// The layout and dtype of an operand, in a storage or in a slot of a plan.
#[derive(Clone, Copy, Debug)]
pub struct OperandMeta<'a> {
    /// The layout of the elements.
    pub layout: &'a Layout,
    /// The type of the elements.
    pub dtype: DType,
}

impl<'a> From<&View<'a>> for OperandMeta<'a> {
    fn from(view: &View<'a>) -> OperandMeta<'a> {
        OperandMeta { layout: view.layout, dtype: view.dtype }
    }
}

impl<'a> From<&'a SlotView> for OperandMeta<'a> {
    fn from(operand: &'a SlotView) -> OperandMeta<'a> {
        OperandMeta { layout: &operand.layout, dtype: operand.dtype }
    }
}

/// Implements [`KernelOperand`] for structs with a layout and a dtype.
macro_rules! kernel_operands {
    ($($operand:ty: $self:ident => $layout:expr;)*) => {$(
        impl KernelOperand for $operand {
            #[inline]
            fn layout(&$self) -> &Layout {
                $layout
            }
            #[inline]
            fn dtype(&$self) -> DType {
                $self.dtype
            }
        }
    )*};
}

kernel_operands! {
    View<'_>: self => self.layout;
    OperandMeta<'_>: self => self.layout;
    SlotView: self => &self.layout;
}

/// A kernel with operands that its family accepts and whose borrow words are held. No output is broadcast, and outputs
/// overlap only inputs that the kernel [allows](crate::kernel::ReadOrder::allows).
#[derive(Clone, Copy, Debug)]
pub struct CheckedKernel<'a> {
    kernel: &'a Kernel,
    inputs: &'a [View<'a>],
    outputs: &'a [View<'a>],
    _not_send: PhantomData<*const ()>,
}

impl<'a> CheckedKernel<'a> {
    /// Checks the operands of a kernel.
    ///
    /// # Errors
    /// The errors of [`Kernel::check`]; [`Error::InvalidArgument`] for an output that is a broadcast view, or that
    /// overlaps another operand.
    #[inline]
    pub fn new(kernel: &'a Kernel, operands: &'a BorrowGuard<'a, View<'a>>) -> Result<CheckedKernel<'a>> {
        CheckedKernel::from_held(kernel, operands.inputs(), operands.outputs())
    }

    /// Checks the operands of a kernel. The caller holds their borrow words for `'a`.
    #[inline]
    pub(super) fn from_held(
        kernel: &'a Kernel,
        inputs: &'a [View<'a>],
        outputs: &'a [View<'a>],
    ) -> Result<CheckedKernel<'a>> {
        kernel.check(inputs, outputs)?;
        outputs.iter().try_for_each(|output| check_writable(kernel, output.layout))?;
        for (k, output) in outputs.iter().enumerate() {
            let is_shared = |other: &View<'_>| ptr::eq(other.storage, output.storage);
            if outputs[..k].iter().chain(inputs).any(is_shared) {
                check_overlap(kernel, inputs, &outputs[..k], output)?;
            }
        }
        Ok(CheckedKernel { kernel, inputs, outputs, _not_send: PhantomData })
    }

    /// Returns the storage of input `k`.
    pub fn input_storage(&self, k: usize) -> Readable<'a> {
        Readable::from_held(self.inputs[k].storage)
    }

    /// Returns the storage of output `k`.
    pub fn output_storage(&self, k: usize) -> Writable<'a> {
        Writable::from_held(self.outputs[k].storage)
    }

    /// Returns the kernel.
    #[inline]
    pub fn kernel(&self) -> &'a Kernel {
        self.kernel
    }

    /// Returns the inputs.
    #[inline]
    pub fn inputs(&self) -> &'a [View<'a>] {
        self.inputs
    }

    /// Returns the outputs.
    #[inline]
    pub fn outputs(&self) -> &'a [View<'a>] {
        self.outputs
    }
}

/// A plan whose launches, except the launches of its setup, have operands that their families accept. No output is
/// broadcast, and outputs overlap only inputs that the kernel [allows](crate::kernel::ReadOrder::allows).
#[derive(Clone, Copy, Debug)]
pub struct CheckedPlan<'a>(&'a Plan);

impl<'a> CheckedPlan<'a> {
    /// Checks the launches of a plan, except the launches of its setup.
    ///
    /// # Errors
    /// The errors of [`Kernel::check`]; [`Error::InvalidArgument`] for an output that is a broadcast view, or that
    /// overlaps another operand. They name the operation of the launch, if it is known.
    pub fn new(plan: &'a Plan) -> Result<CheckedPlan<'a>> {
        let check = |launch: &'a Launch| check_launch(launch).map_err(|error| launch.named(error));
        plan.launches.iter().try_for_each(check)?;
        Ok(CheckedPlan(plan))
    }
}

/// Returns an error unless the kernel of a launch accepts its operands and may write its outputs.
fn check_launch(launch: &Launch) -> Result<()> {
    launch.kernel.check(&launch.inputs, &launch.outputs)?;
    launch.outputs.iter().try_for_each(|output| check_writable(&launch.kernel, &output.layout))?;
    match launch.is_sound() {
        true => Ok(()),
        false => Err(overlapping_output(&launch.kernel)),
    }
}

impl Deref for CheckedPlan<'_> {
    type Target = Plan;

    fn deref(&self) -> &Plan {
        self.0
    }
}

/// Returns an error if several indices of an output may refer to one element.
#[inline]
fn check_writable(kernel: &Kernel, layout: &Layout) -> Result<()> {
    match layout.may_repeat() {
        true => Err(broadcast_output(kernel, layout)),
        false => Ok(()),
    }
}

#[cold]
fn broadcast_output(kernel: &Kernel, layout: &Layout) -> Error {
    let reason = format!(
        "cannot write to a view of shape {} in which several indices refer to one element, such as a broadcast; copy \
         it first",
        layout.shape()
    );
    Error::invalid(kernel.name(), reason)
}

/// Returns an error if an output overlaps one of the outputs `others`, or an input in a way that the kernel does not
/// allow.
#[cold]
fn check_overlap(kernel: &Kernel, inputs: &[View<'_>], others: &[View<'_>], output: &View<'_>) -> Result<()> {
    let reads = kernel.info().reads;
    let overlap = |other: &View<'_>| match ptr::eq(other.storage, output.storage) {
        true => output.layout.overlap(output.dtype.size(), other.layout, other.dtype.size()),
        false => Overlap::Disjoint,
    };
    let shares_elements = |other: &View<'_>| {
        let has_other_size = other.dtype.size() != output.dtype.size();
        overlap(other) != Overlap::Disjoint && (has_other_size || share_elements(other.layout, output.layout))
    };
    let is_sound = !others.iter().any(shares_elements)
        && inputs.iter().enumerate().all(|(k, input)| reads.allows(k, overlap(input)));
    if is_sound { Ok(()) } else { Err(overlapping_output(kernel)) }
}

/// Returns true if two layouts in one storage, whose elements have the same size, have a common element.
pub fn share_elements(a: &Layout, b: &Layout) -> bool {
    let (first, second) = (a.extent(), b.extent());
    let ranges_overlap = first.start < second.end && second.start < first.end;
    if !ranges_overlap || a == b || a.is_contiguous() && b.is_contiguous() {
        return ranges_overlap;
    }
    let (smaller, larger) = if a.shape().size() <= b.shape().size() { (a, b) } else { (b, a) };
    let elements: HashSet<usize> = smaller.positions().collect();
    larger.positions().any(|position| elements.contains(&position))
}

#[cold]
fn overlapping_output(kernel: &Kernel) -> Error {
    Error::invalid(kernel.name(), "an output overlaps another operand that it must not overwrite; copy that operand")
}

/// The storages of a plan's slots, with their borrow words held for the access that each slot needs.
pub type BorrowedSlots<'v> = SlotBorrowGuard<'v, Arc<Storage>>;

impl BorrowedSlots<'_> {
    /// Checks the operands of a launch over these slots, and calls `run` with them.
    ///
    /// # Errors
    /// The errors of [`CheckedKernel::new`] and of `run`; [`Error::InvalidArgument`] if the slot of an operand is not
    /// held for the access of the launch.
    pub fn with_launch<R>(&self, launch: &Launch, run: impl FnOnce(CheckedKernel<'_>) -> Result<R>) -> Result<R> {
        let kernel = &launch.kernel;
        let inputs = launch.inputs.iter().map(|input| self.view(kernel, input, SlotAccess::Read));
        let outputs = launch.outputs.iter().map(|output| self.view(kernel, output, SlotAccess::Write));
        let views: SmallVec<[View<'_>; 6]> = inputs.chain(outputs).collect::<Result<_>>()?;
        let (inputs, outputs) = views.split_at(launch.inputs.len());
        run(CheckedKernel::from_held(kernel, inputs, outputs)?)
    }

    /// Returns the view of an operand, or an error unless its slot is held for the access `needed`.
    fn view<'a>(&'a self, kernel: &Kernel, operand: &'a SlotView, needed: SlotAccess) -> Result<View<'a>> {
        let SlotView { slot, layout, dtype } = operand;
        let storage = self.storage_with_access(*slot, needed).ok_or_else(|| {
            Error::invalid(
                kernel.name(),
                format!(
                    "slot {slot} is not held for the access {needed:?}; acquire the slots with the list that \
                     CompiledPlan::access() returns"
                ),
            )
        })?;
        Ok(View { storage, layout, dtype: *dtype })
    }
}

/// A contiguous operand: an array, or a single value that broadcasts.
#[derive(Clone, Copy, Debug)]
pub struct DenseView<'a> {
    /// The storage of the elements.
    pub storage: &'a Storage,
    /// The position of the first element, in elements from the start of the storage.
    pub offset: usize,
    /// Whether the operand is a single value that broadcasts.
    pub once: bool,
}
