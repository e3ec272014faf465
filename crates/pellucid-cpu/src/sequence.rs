//! A plan on the CPU: its kernels one after the other, ready to run.
//!
//! What can be known without the buffers is looked at once: operands that lie in their slots, have the shapes and dtypes
//! of their family and overlap nothing that is written; and maps over dense operands become addresses and a size. What
//! is left for a launch is to look up where each slot begins, and to run.

use crate::backend::{self, arity};
use crate::families;
use crate::operand::{self, Operand, Operands};
use crate::program;
use pellucid_ir::backend::{Buffer, Prepared, Storage};
use pellucid_ir::formula::Program;
use pellucid_ir::kernel::{Kernel, Params};
use pellucid_ir::plan::{self, Plan};
use pellucid_ir::{Error, Layout, Result};
use pellucid_runtime::CpuBuffer;
use pellucid_runtime::list::List;
use pellucid_runtime::threads;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A plan that has been looked at.
pub(crate) struct Sequence {
    slots: Box<[Slot]>,
    steps: Box<[Step]>,
    launched: AtomicBool,
}

/// What a launch must find in a slot.
struct Slot {
    bytes: usize,
    is_used: bool,
    /// The first kernel that uses it reads it.
    is_read_first: bool,
}

/// One kernel.
enum Step {
    /// A map whose operands are all dense.
    Dense {
        program: Arc<Program>,
        params: Params,
        size: usize,
        inputs: Box<[Place]>,
        outputs: Box<[Place]>,
    },
    Any {
        kernel: Kernel,
        inputs: Box<[plan::Operand]>,
        outputs: Box<[plan::Operand]>,
    },
}

/// A dense operand.
struct Place {
    slot: usize,
    /// Bytes from the slot's start to the first element.
    offset: usize,
    once: bool,
}

impl Sequence {
    pub(crate) fn new(plan: &Plan) -> Result<Sequence> {
        let mut slots: Vec<Slot> =
            plan.slots.iter().map(|&bytes| Slot { bytes, is_used: false, is_read_first: false }).collect();
        let mut steps = Vec::with_capacity(plan.launches.len());
        for launch in &plan.launches {
            let op = launch.kernel.name();
            let (needed, made) = arity(&launch.kernel);
            if launch.inputs.len() < needed || launch.outputs.len() < made {
                return Err(backend::too_few(&launch.kernel, launch.inputs.len(), launch.outputs.len()));
            }
            for (k, o) in launch.inputs.iter().chain(&launch.outputs).enumerate() {
                let Some(slot) = slots.get_mut(o.slot).filter(|s| operand::fits(&o.layout, o.dtype.size(), s.bytes))
                else {
                    return Err(Error::invalid("prepare", format!("an operand of `{op}` lies outside its slot")));
                };
                let output = k.checked_sub(launch.inputs.len());
                let reads = output.is_none_or(|k| backend::is_state(&launch.kernel, k));
                slot.is_read_first |= reads && !slot.is_used && o.layout.shape().size() > 0;
                slot.is_used = true;
                if output.is_some() {
                    operand::check_writable(op, &o.layout)?;
                }
            }
            for output in &launch.outputs {
                if launch.inputs.iter().any(|input| overlap(output, input)) {
                    return Err(Error::invalid("prepare", format!("`{op}` would write over what it reads")));
                }
            }
            // Where the operands are does not matter to their shapes.
            let nowhere = |o| at(o, std::ptr::null_mut());
            let x: Operands<'_> = launch.inputs.iter().map(nowhere).collect();
            let y: Operands<'_> = launch.outputs.iter().map(nowhere).collect();
            families::check(&launch.kernel, &x, &y)?;
            steps.push(Step::new(launch));
        }
        Ok(Sequence { slots: slots.into(), steps: steps.into(), launched: AtomicBool::new(false) })
    }

    /// Where every slot begins; those that are written first get memory if they have none.
    fn bases(&self, slots: &[Arc<Storage>]) -> Result<List<*mut u8, 64>> {
        if slots.len() < self.slots.len() {
            let reason = format!("the plan has {} slots, got {}", self.slots.len(), slots.len());
            return Err(Error::invalid("launch", reason));
        }
        let mut bases = List::new();
        for (slot, storage) in self.slots.iter().zip(slots) {
            if !slot.is_used {
                bases.push(std::ptr::null_mut());
                continue;
            }
            let buffer: &CpuBuffer = operand::cpu_buffer("launch", storage)?;
            if buffer.bytes() < slot.bytes {
                let reason = format!("a slot of {} bytes, got a buffer of {}", slot.bytes, buffer.bytes());
                return Err(Error::invalid("launch", reason));
            }
            bases.push(match buffer.start() {
                Some(start) => start.as_ptr(),
                None if slot.is_read_first => return Err(operand::no_value("launch")),
                None => buffer.ensure()?.as_ptr(),
            });
        }
        Ok(bases)
    }
}

impl Prepared for Sequence {
    fn launch(&self, slots: &[Arc<Storage>]) -> Result<()> {
        let bases = self.bases(slots)?;
        self.steps.iter().try_for_each(|step| step.run(&bases))?;
        // A task of this launch may be another thread's in the next one.
        if !self.launched.swap(true, Ordering::Relaxed) {
            threads::warm_up();
        }
        threads::reserve_scratch();
        Ok(())
    }
}

impl Step {
    fn new(launch: &plan::Launch) -> Step {
        let plan::Launch { kernel, inputs, outputs, .. } = launch;
        if let (Kernel::Map(map), Some(first)) = (kernel, outputs.first()) {
            let shape = first.layout.shape();
            let place = |o: &plan::Operand| {
                let full = o.layout.shape() == shape;
                let dense = o.layout.is_contiguous() && (full || o.layout.shape().size() == 1);
                dense.then(|| Place { slot: o.slot, offset: o.layout.offset() * o.dtype.size(), once: !full })
            };
            let places = |list: &[plan::Operand]| list.iter().map(place).collect::<Option<_>>();
            if let (Some(inputs), Some(outputs)) = (places(inputs), places(outputs)) {
                let (program, params) = (map.program.clone(), map.params.clone());
                return Step::Dense { program, params, size: shape.size(), inputs, outputs };
            }
        }
        Step::Any { kernel: kernel.clone(), inputs: inputs.as_slice().into(), outputs: outputs.as_slice().into() }
    }

    #[inline]
    fn run(&self, bases: &[*mut u8]) -> Result<()> {
        match self {
            Step::Dense { program, params, size, inputs, outputs } => {
                let place = |p: &Place| program::Dense { at: bases[p.slot].wrapping_add(p.offset), once: p.once };
                // Nearly all maps have one output.
                if let ([a, b], [y]) = (&**inputs, &**outputs) {
                    // SAFETY: `new` has seen that the operands lie in their slots, are what the program says, and
                    // overlap only where an input and an output are the same; `bases` that slots are so large.
                    return unsafe { program::dense(program, params, *size, &[place(a), place(b)], &[place(y)]) };
                }
                let x: List<program::Dense, 8> = inputs.iter().map(place).collect();
                let y: List<program::Dense, 4> = outputs.iter().map(place).collect();
                // SAFETY: as above.
                unsafe { program::dense(program, params, *size, &x, &y) }
            }
            Step::Any { kernel, inputs, outputs } => {
                let operand = |o| at(o, bases[o.slot]);
                let x: Operands<'_> = inputs.iter().map(operand).collect();
                let y: Operands<'_> = outputs.iter().map(operand).collect();
                families::run(kernel, &x, &y)
            }
        }
    }
}

/// An operand whose slot begins at `base`.
fn at(operand: &plan::Operand, base: *mut u8) -> Operand<'_> {
    Operand { base, layout: &operand.layout, dtype: operand.dtype }
}

/// Whether the memory of an output is that of an input, but for the very same view.
fn overlap(output: &plan::Operand, input: &plan::Operand) -> bool {
    if output.layout.shape().size() == 0 || input.layout.shape().size() == 0 {
        return false;
    }
    let bytes = |o: &plan::Operand| {
        let (extent, size) = (o.layout.extent(), o.dtype.size() as isize);
        extent.start.saturating_mul(size)..extent.end.saturating_mul(size)
    };
    let same = |a: &Layout, b: &Layout| {
        a.offset() == b.offset()
            && (a == b || a.is_contiguous() && b.is_contiguous() && a.shape().size() == b.shape().size())
    };
    let (a, b) = (bytes(output), bytes(input));
    let view = output.dtype.size() == input.dtype.size() && same(&output.layout, &input.layout);
    output.slot == input.slot && !view && a.start < b.end && b.start < a.end
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cpu;
    use pellucid_ir::backend::Backend;
    use pellucid_ir::kernel::{Map, MatMul};
    use pellucid_ir::{DType, formula};

    fn operand(slot: usize, layout: Layout) -> plan::Operand {
        plan::Operand { slot, layout, dtype: DType::F32 }
    }

    /// `len` elements from `offset` on, of slot 0.
    fn part(offset: usize, len: usize) -> plan::Operand {
        operand(0, Layout::contiguous_from([len].into(), offset))
    }

    fn add(inputs: [plan::Operand; 2], output: plan::Operand) -> plan::Launch {
        let program = formula!(|x, y| x + y).uniform_program(DType::F32).unwrap().clone();
        let kernel = Kernel::Map(Map { program, params: Default::default() });
        plan::Launch::new(kernel, inputs.into(), vec![output])
    }

    fn prepare(launch: plan::Launch) -> Result<Sequence> {
        Sequence::new(&Plan { slots: vec![40], launches: vec![launch], ..Plan::default() })
    }

    #[test]
    fn operands_may_share_a_slot_if_nothing_is_written_that_is_read() {
        prepare(add([part(0, 3), part(3, 3)], part(6, 3))).unwrap();
        prepare(add([part(0, 3), part(3, 1)], part(0, 3))).unwrap();
        // What has no elements lies nowhere.
        prepare(add([part(4, 0), part(3, 0)], part(4, 0))).unwrap();
        let nothing = |rows, columns| operand(0, Layout::contiguous([rows, columns].into()));
        let kernel = Kernel::MatMul(MatMul::default());
        prepare(plan::Launch::new(kernel, vec![nothing(3, 0), nothing(0, 3)], vec![nothing(3, 3)])).unwrap();
        for (a, b, y) in [(0, 3, 1), (0, 3, 5), (2, 2, 4)] {
            assert!(prepare(add([part(a, 3), part(b, 3)], part(y, 3))).is_err(), "{y}");
        }
        let turned = operand(0, Layout::contiguous([2, 3].into()).permute(&[1, 0]));
        let square = operand(0, Layout::contiguous([3, 2].into()));
        assert!(prepare(add([turned, part(9, 1)], square)).is_err(), "the same memory in another order");
    }

    #[test]
    fn what_does_not_fit_is_refused_before_it_runs() {
        assert!(prepare(add([part(0, 3), part(3, 3)], part(8, 3))).is_err(), "outside of the slot");
        assert!(prepare(add([part(0, 3), part(3, 2)], part(6, 3))).is_err(), "shapes");
        let stretched = operand(0, Layout::contiguous_from([1].into(), 9).broadcast_to(&[3].into()).unwrap());
        assert!(prepare(add([part(0, 3), part(3, 3)], stretched)).is_err(), "one element three times");
        let mut launch = add([part(0, 3), part(3, 3)], part(6, 3));
        launch.inputs[1].slot = 1;
        assert!(prepare(launch.clone()).is_err(), "no such slot");
        launch.inputs.pop();
        assert!(prepare(launch).is_err(), "one input");
    }

    #[test]
    fn a_launch_looks_at_its_buffers() {
        let square = |slot, offset| operand(slot, Layout::contiguous_from([2, 2].into(), offset));
        let (kernel, inputs) = (Kernel::MatMul(MatMul::default()), vec![square(0, 0), square(0, 4)]);
        let product = plan::Launch::new(kernel, inputs, vec![square(1, 1)]);
        let twice = add([square(1, 1), square(1, 1)], square(1, 1));
        let sequence =
            Sequence::new(&Plan { slots: vec![32, 20], launches: vec![product, twice], ..Plan::default() }).unwrap();
        let [input, output, small] = [32, 20, 16].map(|bytes| Cpu.storage(bytes).unwrap());
        assert!(sequence.launch(std::slice::from_ref(&input)).is_err(), "one of two slots");
        assert!(sequence.launch(&[input.clone(), output.clone()]).is_err(), "an input without a value");
        Cpu.upload(bytemuck::cast_slice(&[1.0f32, 2.0, 3.0, 4.0, 0.0, 1.0, 1.0, 0.0]), &input).unwrap();
        assert!(sequence.launch(&[input.clone(), small]).is_err(), "a buffer that is too small");
        for _ in 0..2 {
            sequence.launch(&[input.clone(), output.clone()]).unwrap();
            let mut values = [0.0f32; 4];
            Cpu.download(&output, 4, bytemuck::cast_slice_mut(&mut values)).unwrap();
            assert_eq!(values, [4.0, 2.0, 8.0, 6.0]);
        }
    }
}
