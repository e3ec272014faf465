//! Runs kernels on a device, or on the CPU if the backend does not implement them, and prepares plans for such
//! backends.

use super::stats;
use crate::device::Device;
use crate::warning::warn;
use pellucid_ir::backend::{
    BorrowedSlots, CheckedKernel, CompiledPlan, LaunchFailure, OperandMeta, Readable, Storage, Support, View,
};
use pellucid_ir::kernel::Kernel;
use pellucid_ir::plan::{Launch, Plan, SlotAccess, slot_access};
use pellucid_ir::{DType, Layout, Overlap, Result, lock};
use smallvec::SmallVec;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// Runs one kernel on a device.
#[inline]
pub(super) fn run_on(device: Device, launch: CheckedKernel<'_>) -> Result<()> {
    #[cfg(pellucid_unoptimized)]
    crate::warning::warn_of_unoptimized_build();
    let kernel = launch.kernel();
    if device.is_cpu() || is_native(device, kernel, launch.inputs(), launch.outputs()) {
        return device.backend().run_checked(launch);
    }
    warn_once(device, kernel.name());
    stats::count_fallback();
    run_on_cpu(device, launch)
}

/// Returns true if the backend of a device implements the kernel for these operands.
fn is_native<'a, O: 'a>(device: Device, kernel: &Kernel, inputs: &'a [O], outputs: &'a [O]) -> bool
where
    OperandMeta<'a>: From<&'a O>,
{
    let metas = |operands: &'a [O]| operands.iter().map(OperandMeta::from).collect::<SmallVec<[_; 6]>>();
    device.backend().support(kernel, &metas(inputs), &metas(outputs)) == Support::Native
}

/// Warns, once for each operation, that the CPU runs it.
#[cold]
fn warn_once(device: Device, op: &'static str) {
    static WARNED: Mutex<Option<HashSet<&'static str>>> = Mutex::new(None);
    let mut warned = lock(&WARNED);
    if warned.get_or_insert_default().insert(op) {
        warn(format_args!(
            "{device} has no kernel for these operands of `{op}`; the CPU runs it, and its operands are copied"
        ));
    }
}

/// Runs a kernel on the CPU: copies the operands to the CPU, and the outputs back. Only the bytes from the first to the
/// last element of an operand are copied.
///
/// Outputs whose elements alternate in one storage share one copy. If each output had a separate copy, copying it back
/// would overwrite the results of the others with old bytes.
fn run_on_cpu(device: Device, launch: CheckedKernel<'_>) -> Result<()> {
    let cpu = Device::cpu().backend();
    check_memory(device, &launch)?;
    let mut outputs: SmallVec<[OperandCopy; 2]> = SmallVec::new();
    for (k, view) in launch.outputs().iter().enumerate() {
        let range = joined_range(launch.outputs(), view);
        let is_same = |other: &View<'_>| {
            std::ptr::eq(view.storage, other.storage) && joined_range(launch.outputs(), other) == range
        };
        let copy = match launch.outputs()[..k].iter().position(is_same) {
            Some(other) if !range.is_empty() => outputs[other].with_view(view),
            _ => OperandCopy::new(device, view, launch.output_storage(k).readable(), range, true)?,
        };
        outputs.push(copy);
    }
    // A kernel's input may overlap an output only if both contain the same elements, so the output's copy serves as the
    // input.
    let output_of = |view: &View<'_>| {
        let is_same = |output: &View<'_>| {
            let (size, output_size) = (view.dtype.size(), output.dtype.size());
            std::ptr::eq(view.storage, output.storage)
                && view.layout.overlap(size, output.layout, output_size) != Overlap::Disjoint
        };
        launch.outputs().iter().position(is_same)
    };
    let inputs: SmallVec<[OperandCopy; 4]> = (launch.inputs().iter().enumerate())
        .map(|(k, view)| match output_of(view) {
            Some(output) => Ok(outputs[output].with_view(view)),
            None => OperandCopy::new(device, view, launch.input_storage(k), byte_range(view), false),
        })
        .collect::<Result<_>>()?;
    let views: SmallVec<[View<'_>; 4]> = inputs.iter().chain(&outputs).map(OperandCopy::view).collect();
    let (input_views, output_views) = views.split_at(inputs.len());
    cpu.run(launch.kernel(), input_views, output_views)?;
    let is_first = |k: usize| outputs[..k].iter().all(|other| !Arc::ptr_eq(&other.storage, &outputs[k].storage));
    for (k, output) in outputs.iter().enumerate().filter(|&(k, _)| is_first(k)) {
        let mut contents = host_bytes(output.storage.buffer().bytes())?;
        cpu.download(&output.storage, 0, &mut contents)?;
        device.backend().upload_borrowed(&contents, launch.output_storage(k), output.start * output.dtype.size())?;
    }
    Ok(())
}

/// The size in bytes of the outputs for which the device must have memory before the CPU computes them.
const LARGE_OUTPUT: usize = 64 << 20;

/// Returns the error of a device that has no memory for a large output, before the host needs as much.
fn check_memory(device: Device, launch: &CheckedKernel<'_>) -> Result<()> {
    let is_new = |k: &usize| {
        let storage = launch.outputs()[*k].storage;
        storage.buffer().bytes() >= LARGE_OUTPUT && !storage.buffer().is_allocated()
    };
    (0..launch.outputs().len()).filter(is_new).try_for_each(|k| {
        // The first write allocates the memory.
        device.backend().upload_borrowed(&[], launch.output_storage(k), 0)?;
        launch.output_storage(k).discard();
        Ok(())
    })
}

/// Returns the bytes from the first to the last element of an operand, as a range of its storage.
fn byte_range(view: &View<'_>) -> Range<usize> {
    let (extent, size) = (view.layout.extent(), view.dtype.size());
    // A view without elements may begin beyond the end of its storage.
    if extent.is_empty() { 0..0 } else { extent.start as usize * size..extent.end as usize * size }
}

/// Returns the smallest range of bytes that contains an output and all outputs of its storage that overlap the range.
fn joined_range(outputs: &[View<'_>], view: &View<'_>) -> Range<usize> {
    let mut range = byte_range(view);
    loop {
        let overlaps = |other: &Range<usize>| other.start < range.end && range.start < other.end;
        let others = outputs.iter().filter(|other| std::ptr::eq(other.storage, view.storage)).map(byte_range);
        let joined = others.filter(overlaps).fold(range.clone(), |a, b| a.start.min(b.start)..a.end.max(b.end));
        if joined == range {
            return range;
        }
        range = joined;
    }
}

/// A copy of an operand on the CPU.
struct OperandCopy {
    storage: Arc<Storage>,
    layout: Layout,
    dtype: DType,
    /// The start of the copy in the original storage, in elements.
    start: usize,
}

impl OperandCopy {
    /// Copies the bytes `range` of `from`, which contain a view. An output may have no values yet.
    ///
    /// # Errors
    /// The errors of the devices.
    fn new(
        device: Device,
        view: &View<'_>,
        from: Readable<'_>,
        range: Range<usize>,
        is_output: bool,
    ) -> Result<OperandCopy> {
        let (bytes, size) = (range.len(), view.dtype.size());
        let storage = Device::cpu().backend().storage(bytes)?;
        let is_written = from.buffer().is_allocated();
        // The bytes between the elements of an output are copied back too, so they must be initialized.
        if is_written || is_output && bytes > view.layout.shape().size() * size {
            let mut contents = host_bytes(bytes)?;
            if is_written {
                device.backend().download_borrowed(from, range.start, &mut contents)?;
            }
            Device::cpu().backend().upload(&contents, &storage)?;
        }
        let start = range.start / size;
        Ok(OperandCopy { storage, layout: shift_layout(view.layout, start), dtype: view.dtype, start })
    }

    /// Returns another view of the copied bytes. The sizes of the elements are equal.
    fn with_view(&self, view: &View<'_>) -> OperandCopy {
        let (storage, layout) = (self.storage.clone(), shift_layout(view.layout, self.start));
        OperandCopy { storage, layout, dtype: view.dtype, start: self.start }
    }

    /// Returns the copy as an operand.
    fn view(&self) -> View<'_> {
        View { storage: &self.storage, layout: &self.layout, dtype: self.dtype }
    }
}

/// Returns the layout with its offset reduced by `start` elements.
fn shift_layout(layout: &Layout, start: usize) -> Layout {
    Layout::strided(layout.shape().clone(), layout.strides(), layout.offset() - start)
}

/// Returns zeroed host memory.
fn host_bytes(bytes: usize) -> Result<Vec<u8>> {
    let mut contents = crate::array::host_vec(bytes)?;
    contents.resize(bytes, 0);
    Ok(contents)
}

/// Compiles a plan for repeated launches on a device. Launches that the backend does not compile run one by one.
///
/// # Errors
/// The errors of [`pellucid_ir::backend::Backend::prepare`].
pub(crate) fn prepare(device: Device, plan: &Plan) -> Result<Box<dyn CompiledPlan>> {
    let native =
        |launch: &Launch| device.is_cpu() || is_native(device, &launch.kernel, &launch.inputs, &launch.outputs);
    if plan.launches.iter().all(native)
        && let Some(compiled) = compile(device, plan)?
    {
        return Ok(compiled);
    }
    let mut sections = Vec::new();
    let mut section = Plan { setup: Vec::new(), ..plan.clone() };
    for launches in plan.launches.chunk_by(|a, b| native(a) == native(b)) {
        section.launches = launches.to_vec();
        let compiled = if native(&launches[0]) { compile(device, &section)? } else { None };
        sections.push(match compiled {
            Some(compiled) => PlanSection::Compiled { compiled, launches: launches.len() },
            None => PlanSection::OneByOne(std::mem::take(&mut section.launches)),
        });
    }
    Ok(Box::new(PlanSections { device, access: slot_access(plan.slots.len(), &plan.launches), sections }))
}

/// Compiles a plan by the backend of a device, and prints the notice of the backend.
fn compile(device: Device, plan: &Plan) -> Result<Option<Box<dyn CompiledPlan>>> {
    let compiled = device.backend().prepare(plan)?;
    if let Some(notice) = device.backend().take_notice() {
        warn(format_args!("{notice}"));
    }
    Ok(compiled)
}

/// A plan of which the backend compiles only some sections.
struct PlanSections {
    device: Device,
    access: Vec<SlotAccess>,
    sections: Vec<PlanSection>,
}

/// Consecutive launches of a plan.
enum PlanSection {
    Compiled { compiled: Box<dyn CompiledPlan>, launches: usize },
    OneByOne(Vec<Launch>),
}

impl CompiledPlan for PlanSections {
    fn access(&self) -> &[SlotAccess] {
        &self.access
    }

    fn launch(&self, slots: &BorrowedSlots<'_>) -> Result<(), LaunchFailure> {
        let mut first_launch = 0;
        for section in &self.sections {
            let (launched, launches) = match section {
                PlanSection::Compiled { compiled, launches } => (compiled.launch(slots), *launches),
                PlanSection::OneByOne(list) => (run_launches(self.device, list, slots), list.len()),
            };
            launched.map_err(|failed| match failed.launch() {
                Some(launch) => LaunchFailure::new(first_launch + launch, failed.error),
                None => failed,
            })?;
            first_launch += launches;
        }
        Ok(())
    }
}

/// Runs launches over slots one by one.
pub(super) fn run_launches(
    device: Device,
    launches: &[Launch],
    slots: &BorrowedSlots<'_>,
) -> Result<(), LaunchFailure> {
    for (index, launch) in launches.iter().enumerate() {
        let outcome = slots.with_launch(launch, |checked| run_on(device, checked));
        outcome.map_err(|error| LaunchFailure::new(index, error))?;
    }
    Ok(())
}
