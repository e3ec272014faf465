//! A plan prepared for repeated launches on the CPU.
//!
//! The kernel families accept the operands of a [`CheckedPlan`]. Preparation also checks once that the operands are
//! within their slots. A map over dense operands is stored as slot offsets and a size. A launch looks up the start of
//! each slot, checks the sizes of the buffers, and runs the kernels in order.

use crate::families::{self, WeightOfProduct};
use crate::operand::{self, Operand, Operands};
use crate::program;
use pellucid_ir::backend::{BorrowedSlots, Buffer, CheckedPlan, CompiledPlan, LaunchFailure, Storage};
use pellucid_ir::formula::Program;
use pellucid_ir::kernel::{Kernel, Params};
use pellucid_ir::plan::{self, Plan, SlotAccess, SlotRole, SlotUse, SlotView, slot_access};
use pellucid_ir::{Error, Result};
use pellucid_runtime::CpuBuffer;
use pellucid_runtime::list::List;
use pellucid_runtime::threads;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A plan whose operands have been checked.
pub(crate) struct PreparedPlan {
    slots: Box<[SlotUse]>,
    access: Box<[SlotAccess]>,
    launches: Box<[PreparedLaunch]>,
    /// True after the first launch.
    launched: AtomicBool,
}

/// A kernel with its operands.
enum PreparedLaunch {
    /// A map whose operands are all dense.
    Dense {
        program: Arc<Program>,
        params: Params,
        size: usize,
        inputs: Box<[DenseOperand]>,
        outputs: Box<[DenseOperand]>,
    },
    /// Any other kernel.
    Any {
        kernel: Kernel,
        inputs: Box<[SlotView]>,
        outputs: Box<[SlotView]>,
        /// The right factor of a product, if it is packed once and kept.
        weight: Option<WeightOfProduct>,
    },
}

/// A contiguous array in a slot, or a single value that broadcasts.
struct DenseOperand {
    slot: usize,
    /// The offset of the first element from the start of the slot, in bytes.
    offset: usize,
    /// Whether the operand is a single value.
    once: bool,
}

impl PreparedPlan {
    /// Prepares the launches of a plan.
    ///
    /// # Errors
    /// Returns an error if an operand exceeds its slot.
    pub(crate) fn new(plan: CheckedPlan<'_>) -> Result<PreparedPlan> {
        let slots = SlotUse::from_plan(&plan)?;
        let mut launches = Vec::with_capacity(plan.launches.len());
        for launch in &plan.launches {
            let fits = |o: &SlotView| operand::fits_buffer(&o.layout, o.dtype.size(), slots[o.slot].bytes);
            if !launch.inputs.iter().chain(&launch.outputs).all(fits) {
                let op = launch.kernel.name();
                return Err(Error::invalid("prepare", format!("an operand of `{op}` exceeds its slot")));
            }
            // `for_product` does not read the addresses of the operands.
            let without_address = |o| bind_operand(o, std::ptr::null_mut());
            let x: Operands<'_> = launch.inputs.iter().map(without_address).collect();
            let y: Operands<'_> = launch.outputs.iter().map(without_address).collect();
            let is_product = matches!(launch.kernel, Kernel::MatMul(_)) && is_weight(&plan, launch.inputs[1].slot);
            let weight = if is_product { WeightOfProduct::for_product(&x[0], &x[1], &y) } else { None };
            launches.push(PreparedLaunch::new(launch, weight));
        }
        let access = slot_access(slots.len(), &plan.launches).into();
        Ok(PreparedPlan { slots: slots.into(), access, launches: launches.into(), launched: AtomicBool::new(false) })
    }

    /// Returns the start of every slot, or null if the slot is unused. Allocates memory for slots whose first use is a
    /// write.
    fn slot_bases(&self, slots: &[Arc<Storage>]) -> Result<List<*mut u8, 64>> {
        let mut bases = List::new();
        for (slot, storage) in self.slots.iter().zip(slots) {
            if !slot.is_used {
                bases.push(std::ptr::null_mut());
                continue;
            }
            let buffer: &CpuBuffer = operand::cpu_buffer("launch", storage)?;
            let start = buffer.start();
            slot.check(buffer.bytes(), start.is_some())?;
            bases.push(match start {
                Some(start) => start.as_ptr(),
                None => buffer.ensure()?.as_ptr(),
            });
        }
        Ok(bases)
    }
}

impl CompiledPlan for PreparedPlan {
    fn access(&self) -> &[SlotAccess] {
        &self.access
    }

    fn launch(&self, slots: &BorrowedSlots<'_>) -> Result<(), LaunchFailure> {
        slots.check_access(&self.access).map_err(LaunchFailure::before_all)?;
        let slots = slots.storages();
        let bases = self.slot_bases(slots).map_err(LaunchFailure::before_all)?;
        let run = |(launch, prepared): (usize, &PreparedLaunch)| {
            prepared.run(&bases, slots).map_err(|error| LaunchFailure::new(launch, error))
        };
        self.launches.iter().enumerate().try_for_each(run)?;
        // A task that ran on a worker in this launch may run on this thread in the next one, so this thread reserves
        // the memory that the tasks need.
        if !self.launched.swap(true, Ordering::Relaxed) {
            threads::warm_up();
        }
        threads::reserve_scratch();
        Ok(())
    }
}

impl PreparedLaunch {
    fn new(launch: &plan::Launch, weight: Option<WeightOfProduct>) -> PreparedLaunch {
        let plan::Launch { kernel, inputs, outputs, .. } = launch;
        if let (Kernel::Map(map), Some(first)) = (kernel, outputs.first()) {
            let shape = first.layout.shape();
            let dense_operand = |o: &SlotView| {
                let full = o.layout.shape() == shape;
                let dense = o.layout.is_contiguous() && (full || o.layout.shape().size() == 1);
                dense.then(|| DenseOperand { slot: o.slot, offset: o.layout.offset() * o.dtype.size(), once: !full })
            };
            let dense_operands = |list: &[SlotView]| list.iter().map(dense_operand).collect::<Option<_>>();
            if let (Some(inputs), Some(outputs)) = (dense_operands(inputs), dense_operands(outputs)) {
                let (program, params) = (map.program.clone(), map.params.clone());
                return PreparedLaunch::Dense { program, params, size: shape.size(), inputs, outputs };
            }
        }
        let (inputs, outputs) = (inputs.as_slice().into(), outputs.as_slice().into());
        PreparedLaunch::Any { kernel: kernel.clone(), inputs, outputs, weight }
    }

    /// Runs the kernel. `bases` are the starts of the slots, and `slots` their storages.
    #[inline]
    fn run(&self, bases: &[*mut u8], slots: &[Arc<Storage>]) -> Result<()> {
        match self {
            PreparedLaunch::Dense { program, params, size, inputs, outputs } => {
                let bind = |o: &DenseOperand| program::DensePtr {
                    address: bases[o.slot].wrapping_add(o.offset),
                    once: o.once,
                };
                // This branch for two inputs and one output, the most frequent form, builds no lists.
                if let ([a, b], [y]) = (&**inputs, &**outputs) {
                    // SAFETY: the plan is a `CheckedPlan`, so the operands have the sizes and dtypes of the program,
                    // and overlap only if an output equals an input. `PreparedPlan::new` has checked that they are
                    // within their slots, and `slot_bases` has checked that the buffers are as large as the slots.
                    // `launch` has checked that the guard holds the borrow words of all slots, so no other thread uses
                    // the operands, and a written storage is in one slot only.
                    return unsafe { program::dense(program, params, *size, &[bind(a), bind(b)], &[bind(y)]) };
                }
                let x: List<program::DensePtr, 8> = inputs.iter().map(bind).collect();
                let y: List<program::DensePtr, 4> = outputs.iter().map(bind).collect();
                // SAFETY: `CheckedPlan` guarantees sizes, dtypes and overlap, `PreparedPlan::new` and `slot_bases` have
                // checked bounds, and the guard holds the borrow words, as in the previous branch.
                unsafe { program::dense(program, params, *size, &x, &y) }
            }
            PreparedLaunch::Any { kernel, inputs, outputs, weight } => {
                let operand = |o| bind_operand(o, bases[o.slot]);
                let x: Operands<'_> = inputs.iter().map(operand).collect();
                let y: Operands<'_> = outputs.iter().map(operand).collect();
                match (kernel, weight) {
                    (Kernel::MatMul(product), Some(weight)) => {
                        let packed = weight.packed(&slots[inputs[1].slot], &x[1])?;
                        families::run_matmul(product, &x, &y, Some(&packed))
                    }
                    _ => families::run_kernel(kernel, &x, &y),
                }
            }
        }
    }
}

/// Returns true if the plan packs weights and slot `slot` holds an external tensor that the plan only reads.
fn is_weight(plan: &Plan, slot: usize) -> bool {
    let is_written = || plan.launches.iter().flat_map(|launch| &launch.outputs).any(|o| o.slot == slot);
    plan.packs_weights && matches!(plan.role(slot), SlotRole::State | SlotRole::Constant) && !is_written()
}

/// Converts an operand of a plan to an operand of a kernel family. `base` is the start of its slot.
fn bind_operand(operand: &SlotView, base: *mut u8) -> Operand<'_> {
    Operand { base, layout: &operand.layout, dtype: operand.dtype }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cpu;
    use pellucid_ir::backend::Backend;
    use pellucid_ir::kernel::{Map, MatMul};
    use pellucid_ir::{DType, Layout, formula};

    fn operand(slot: usize, layout: Layout) -> SlotView {
        SlotView { slot, layout, dtype: DType::F32 }
    }

    /// Returns an operand of `len` elements at `offset` in slot 0.
    fn slice_of_slot(offset: usize, len: usize) -> SlotView {
        operand(0, Layout::contiguous_from([len].into(), offset))
    }

    fn add(inputs: [SlotView; 2], output: SlotView) -> plan::Launch {
        let program = formula!(|x, y| x + y).uniform_program(DType::F32).unwrap().clone();
        let kernel = Kernel::Map(Map { program, params: Default::default() });
        plan::Launch::new(kernel, inputs.into(), vec![output])
    }

    fn prepare_plan(plan: Plan) -> Result<PreparedPlan> {
        PreparedPlan::new(CheckedPlan::new(&plan)?)
    }

    fn prepare(launch: plan::Launch) -> Result<PreparedPlan> {
        prepare_plan(Plan { slots: vec![40], launches: vec![launch], ..Plan::default() })
    }

    #[test]
    fn operands_may_share_a_slot_unless_an_output_partially_overlaps_an_input() {
        prepare(add([slice_of_slot(0, 3), slice_of_slot(3, 3)], slice_of_slot(6, 3))).unwrap();
        prepare(add([slice_of_slot(0, 3), slice_of_slot(3, 1)], slice_of_slot(0, 3))).unwrap();
        // An operand without elements overlaps nothing.
        prepare(add([slice_of_slot(4, 0), slice_of_slot(3, 0)], slice_of_slot(4, 0))).unwrap();
        let empty = |rows, columns| operand(0, Layout::contiguous([rows, columns].into()));
        let kernel = Kernel::MatMul(MatMul::default());
        prepare(plan::Launch::new(kernel, vec![empty(3, 0), empty(0, 3)], vec![empty(3, 3)])).unwrap();
        for (a, b, y) in [(0, 3, 1), (0, 3, 5), (2, 2, 4)] {
            assert!(
                prepare(add([slice_of_slot(a, 3), slice_of_slot(b, 3)], slice_of_slot(y, 3))).is_err(),
                "a partly overlapping output must be an error: {y}"
            );
        }
        let transposed = operand(0, Layout::contiguous([2, 3].into()).permute(&[1, 0]));
        let square = operand(0, Layout::contiguous([3, 2].into()));
        assert!(
            prepare(add([transposed, slice_of_slot(9, 1)], square)).is_err(),
            "an output with the elements of an input in a different order must be an error"
        );
    }

    #[test]
    fn invalid_operands_are_errors_when_a_plan_is_prepared() {
        assert!(
            prepare(add([slice_of_slot(0, 3), slice_of_slot(3, 3)], slice_of_slot(8, 3))).is_err(),
            "an output beyond the end of its slot must be an error"
        );
        assert!(
            prepare(add([slice_of_slot(0, 3), slice_of_slot(3, 2)], slice_of_slot(6, 3))).is_err(),
            "operands of different shapes must be an error"
        );
        let broadcast = operand(0, Layout::contiguous_from([1].into(), 9).broadcast_to(&[3].into()).unwrap());
        assert!(
            prepare(add([slice_of_slot(0, 3), slice_of_slot(3, 3)], broadcast)).is_err(),
            "a broadcast output must be an error"
        );
        let mut launch = add([slice_of_slot(0, 3), slice_of_slot(3, 3)], slice_of_slot(6, 3));
        launch.inputs[1].slot = 1;
        assert!(prepare(launch.clone()).is_err(), "an operand in a slot that does not exist must be an error");
        launch.inputs.pop();
        assert!(prepare(launch).is_err(), "a map without its second input must be an error");
    }

    #[test]
    fn a_launch_checks_its_buffers() {
        let square = |slot, offset| operand(slot, Layout::contiguous_from([2, 2].into(), offset));
        let (kernel, inputs) = (Kernel::MatMul(MatMul::default()), vec![square(0, 0), square(0, 4)]);
        let product = plan::Launch::new(kernel, inputs, vec![square(1, 1)]);
        let twice = add([square(1, 1), square(1, 1)], square(1, 1));
        let prepared =
            prepare_plan(Plan { slots: vec![32, 20], launches: vec![product, twice], ..Plan::default() }).unwrap();
        let [input, output, small] = [32, 20, 16].map(|bytes| Cpu.storage(bytes).unwrap());
        assert!(prepared.run(std::slice::from_ref(&input)).is_err(), "a launch with too few slots must be an error");
        assert!(prepared.run(&[input.clone(), output.clone()]).is_err(), "an input without memory must be an error");
        Cpu.upload(bytemuck::cast_slice(&[1.0f32, 2.0, 3.0, 4.0, 0.0, 1.0, 1.0, 0.0]), &input).unwrap();
        assert!(
            prepared.run(&[input.clone(), small]).is_err(),
            "a buffer that is smaller than its slot must be an error"
        );
        assert!(
            prepared.run(&[input.clone(), input.clone()]).is_err(),
            "a storage that the plan writes in two slots must be an error"
        );
        let (both, read_only) = ([input.clone(), output.clone()], [SlotAccess::Read; 2]);
        let slots = BorrowedSlots::acquire(&both, &read_only).unwrap();
        assert!(prepared.launch(&slots).is_err(), "a written slot that is held for reading must be an error");
        drop(slots);
        for _ in 0..2 {
            prepared.run(&[input.clone(), output.clone()]).unwrap();
            let mut values = [0.0f32; 4];
            Cpu.download(&output, 4, bytemuck::cast_slice_mut(&mut values)).unwrap();
            assert_eq!(values, [4.0, 2.0, 8.0, 6.0]);
        }
    }

    #[test]
    fn a_plan_with_packed_weights_follows_writes_and_gives_the_same_bits() {
        let (m, k, n) = (20, 30, 40);
        let view = |slot, rows: usize, columns: usize| operand(slot, Layout::contiguous([rows, columns].into()));
        let launch = || {
            plan::Launch::new(
                Kernel::MatMul(MatMul::default()),
                vec![view(0, m, k), view(1, k, n)],
                vec![view(2, m, n)],
            )
        };
        let prepare = |packs_weights| {
            let roles = vec![SlotRole::Input, SlotRole::State, SlotRole::Scratch];
            let slots = vec![m * k * 4, k * n * 4, m * n * 4];
            prepare_plan(Plan { slots, roles, launches: vec![launch()], packs_weights, ..Plan::default() }).unwrap()
        };
        let (packed, plain) = (prepare(true), prepare(false));
        let has_weight = |plan: &PreparedPlan| matches!(plan.launches[0], PreparedLaunch::Any { weight: Some(_), .. });
        assert!(has_weight(&packed) && !has_weight(&plain));
        let upload = |seed: usize, count: usize, to: &Storage| {
            let values: Vec<f32> = (0..count).map(|i| ((i * 7 + seed) % 23) as f32 / 23.0).collect();
            Cpu.upload(bytemuck::cast_slice(&values), to).unwrap();
        };
        let storages = [m * k * 4, k * n * 4, m * n * 4].map(|bytes| Cpu.storage(bytes).unwrap());
        upload(1, m * k, &storages[0]);
        let mut results = Vec::new();
        for seed in [2, 3] {
            upload(seed, k * n, &storages[1]);
            storages[1].bump();
            for _ in 0..2 {
                let [from_panels, direct] = [&packed, &plain].map(|plan| {
                    plan.run(&storages).unwrap();
                    let mut values = vec![0.0f32; m * n];
                    Cpu.download(&storages[2], 0, bytemuck::cast_slice_mut(&mut values)).unwrap();
                    values
                });
                assert_eq!(from_panels, direct);
                results.push(from_panels);
            }
        }
        assert_ne!(results[0], results[2], "the launch must use the new weights");
    }
}
