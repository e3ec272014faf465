//! Kernels on a device: native, or on the CPU if the backend does not implement them; and plans of such backends.

use super::stats;
use crate::device::Device;
use crate::warning::warn;
use pellucid_ir::backend::{CompiledPlan, LaunchFailure, OperandMeta, Storage, Support, View};
use pellucid_ir::kernel::Kernel;
use pellucid_ir::plan::{Launch, Plan, SlotView};
use pellucid_ir::{Error, Result, lock};
use smallvec::SmallVec;
use std::collections::HashSet;
use std::sync::{Arc, Mutex};

/// Runs one kernel on a device. The caller holds the borrows of all operands.
#[inline]
pub(super) fn run_on(device: Device, kernel: &Kernel, inputs: &[View<'_>], outputs: &[View<'_>]) -> Result<()> {
    #[cfg(pellucid_unoptimized)]
    crate::warning::warn_of_unoptimized_build();
    if device.is_cpu() || is_native(device, kernel, inputs, outputs) {
        return device.backend().run(kernel, inputs, outputs);
    }
    warn_once(device, kernel.name());
    stats::count_fallback();
    run_on_cpu(device, kernel, inputs, outputs)
}

/// Returns true if the backend of a device implements the kernel for these operands.
fn is_native<'a, O: 'a>(device: Device, kernel: &Kernel, inputs: &'a [O], outputs: &'a [O]) -> bool
where
    OperandMeta<'a>: From<&'a O>,
{
    let metas = |operands: &'a [O]| operands.iter().map(OperandMeta::from).collect::<SmallVec<[_; 6]>>();
    device.backend().support(kernel, &metas(inputs), &metas(outputs)) == Support::Native
}

/// Reports once for each operation that the CPU runs it.
#[cold]
fn warn_once(device: Device, op: &'static str) {
    static WARNED: Mutex<Option<HashSet<&'static str>>> = Mutex::new(None);
    let mut warned = lock(&WARNED);
    if warned.get_or_insert_default().insert(op) {
        warn(format_args!("{device} has no kernel for `{op}`; it runs on the cpu, with copies in both directions"));
    }
}

/// Runs a kernel on the CPU: copies the storages of all operands to the CPU, and the storages of the outputs back.
fn run_on_cpu(device: Device, kernel: &Kernel, inputs: &[View<'_>], outputs: &[View<'_>]) -> Result<()> {
    let cpu = Device::cpu();
    // Views of one storage must be views of one copy.
    let mut copies: SmallVec<[(&Storage, Arc<Storage>); 4]> = SmallVec::new();
    for view in inputs.iter().chain(outputs) {
        if copies.iter().any(|(storage, _)| std::ptr::eq(*storage, view.storage)) {
            continue;
        }
        let bytes = view.storage.buffer().bytes();
        let copy = cpu.backend().storage(bytes)?;
        if view.storage.buffer().is_allocated() {
            let mut contents = host_bytes(bytes)?;
            device.backend().download(view.storage, 0, &mut contents)?;
            cpu.backend().upload(&contents, &copy)?;
        }
        copies.push((view.storage, copy));
    }
    let copy_of = |storage: &Storage| {
        let copy = copies.iter().find(|(copied, _)| std::ptr::eq(*copied, storage));
        &*copy.expect("the loop above must copy every storage").1
    };
    let views: SmallVec<[View<'_>; 4]> =
        inputs.iter().chain(outputs).map(|view| View { storage: copy_of(view.storage), ..*view }).collect();
    let (inputs_on_cpu, outputs_on_cpu) = views.split_at(inputs.len());
    cpu.backend().run(kernel, inputs_on_cpu, outputs_on_cpu)?;
    for (k, view) in outputs.iter().enumerate() {
        let repeated = outputs[..k].iter().any(|other| std::ptr::eq(other.storage, view.storage));
        if !repeated {
            let mut contents = host_bytes(view.storage.buffer().bytes())?;
            cpu.backend().download(outputs_on_cpu[k].storage, 0, &mut contents)?;
            device.backend().upload(&contents, view.storage)?;
        }
    }
    Ok(())
}

/// Returns zeroed host memory.
fn host_bytes(bytes: usize) -> Result<Vec<u8>> {
    let mut contents = crate::array::host_vec(bytes)?;
    contents.resize(bytes, 0);
    Ok(contents)
}

/// Compiles a plan for repeated launches on a device. If the backend does not compile launches, they run one by one.
///
/// # Errors
/// The errors of [`pellucid_ir::backend::Backend::prepare`].
pub(crate) fn prepare(device: Device, plan: &Plan) -> Result<Box<dyn CompiledPlan>> {
    let native =
        |launch: &Launch| device.is_cpu() || is_native(device, &launch.kernel, &launch.inputs, &launch.outputs);
    if plan.launches.iter().all(native)
        && let Some(compiled) = device.backend().prepare(plan)?
    {
        return Ok(compiled);
    }
    let mut sections = Vec::new();
    for launches in plan.launches.chunk_by(|a, b| native(a) == native(b)) {
        let section = Plan { launches: launches.to_vec(), setup: Vec::new(), ..plan.clone() };
        let compiled = if native(&launches[0]) { device.backend().prepare(&section)? } else { None };
        sections.push((
            launches.len(),
            compiled.unwrap_or_else(|| Box::new(LaunchList { device, launches: section.launches })),
        ));
    }
    Ok(Box::new(PlanSections(sections)))
}

/// The compiled sections of a plan, each with its number of launches.
struct PlanSections(Vec<(usize, Box<dyn CompiledPlan>)>);

impl CompiledPlan for PlanSections {
    fn launch(&self, slots: &[Arc<Storage>]) -> Result<(), LaunchFailure> {
        let mut first_launch = 0;
        for (launches, section) in &self.0 {
            section.launch(slots).map_err(|failed| match failed.launch() {
                Some(launch) => LaunchFailure::new(first_launch + launch, failed.error),
                None => failed,
            })?;
            first_launch += launches;
        }
        Ok(())
    }
}

/// Launches that are run one by one.
struct LaunchList {
    device: Device,
    launches: Vec<Launch>,
}

impl CompiledPlan for LaunchList {
    fn launch(&self, slots: &[Arc<Storage>]) -> Result<(), LaunchFailure> {
        run_launches(self.device, &self.launches, slots)
    }
}

/// Runs launches one by one. `slots[i]` is the storage of slot `i`. The caller holds the borrows.
pub(super) fn run_launches(device: Device, launches: &[Launch], slots: &[Arc<Storage>]) -> Result<(), LaunchFailure> {
    for (index, launch) in launches.iter().enumerate() {
        let failed = |error| LaunchFailure::new(index, error);
        let missing = || Error::invalid("launch", format!("`{}` uses a slot without storage", launch.kernel.name()));
        let storage = |operand: &SlotView| slots.get(operand.slot).ok_or_else(missing).map(|storage| &**storage);
        let operands = || launch.inputs.iter().chain(&launch.outputs);
        let storages: SmallVec<[&Storage; 6]> = operands().map(storage).collect::<Result<_>>().map_err(failed)?;
        let views: SmallVec<[View<'_>; 6]> = operands()
            .zip(&storages)
            .map(|(o, &storage)| View { storage, layout: &o.layout, dtype: o.dtype })
            .collect();
        let (inputs, outputs) = views.split_at(launch.inputs.len());
        run_on(device, &launch.kernel, inputs, outputs).map_err(failed)?;
    }
    Ok(())
}
