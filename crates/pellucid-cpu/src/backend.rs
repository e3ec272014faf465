//! The backend: views become addresses, checked against their buffers, and kernels find their family.

use crate::families;
use crate::operand::{self, Operand, Operands};
use crate::program;
use crate::sequence::Sequence;
use pellucid_ir::backend::{Backend, Buffer, Dense, DenseMap, MemoryStats, Prepared, Storage, View};
use pellucid_ir::formula::Program;
use pellucid_ir::kernel::{Kernel, Params};
use pellucid_ir::plan::Plan;
use pellucid_ir::{Error, Result};
use pellucid_runtime::CpuBuffer;
use pellucid_runtime::allocator;
use pellucid_runtime::list::List;
use std::ptr::NonNull;
use std::sync::Arc;

/// The CPU of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cpu;

impl Backend for Cpu {
    fn name(&self) -> &str {
        "cpu"
    }

    fn storage(&self, bytes: usize) -> Result<Arc<Storage>> {
        Ok(Arc::new(Storage::new(CpuBuffer::new(bytes)?)))
    }

    fn run(&self, kernel: &Kernel, inputs: &[View<'_>], outputs: &[View<'_>]) -> Result<()> {
        let (needed, made) = arity(kernel);
        if inputs.len() < needed || outputs.len() < made {
            return Err(too_few(kernel, inputs.len(), outputs.len()));
        }
        let op = kernel.name();
        // Nearly all kernels are of one of these shapes, and then need no list.
        match (inputs, outputs) {
            ([a], [y]) => check_and_run(kernel, &[input(op, a)?], &[output(kernel, 0, y)?]),
            ([a, b], [y]) => check_and_run(kernel, &[input(op, a)?, input(op, b)?], &[output(kernel, 0, y)?]),
            _ => {
                let (mut x, mut y) = (Operands::new(), Operands::new());
                for view in inputs {
                    x.push(input(op, view)?);
                }
                for (k, view) in outputs.iter().enumerate() {
                    y.push(output(kernel, k, view)?);
                }
                check_and_run(kernel, &x, &y)
            }
        }
    }

    #[inline]
    fn map_dense(
        &self,
        program: &Arc<Program>,
        params: &Params,
        size: usize,
        inputs: &[Dense<'_>],
        output: Dense<'_>,
    ) -> Result<()> {
        let to = operand::dense_output(program.name, &output, size, program.output_bytes(1)?)?;
        // SAFETY: the output lies within its buffer, and the caller passes none that overlaps an input other
        // than exactly.
        unsafe { run_dense(program, params, size, inputs, to) }
    }

    fn maps_dense(&self, program: &Arc<Program>, params: &Params, maps: &[DenseMap<'_>]) -> Result<()> {
        crate::program::maps(program, params, maps)
    }

    #[inline]
    fn map_new(
        &self,
        program: &Arc<Program>,
        params: &Params,
        size: usize,
        inputs: &[Dense<'_>],
    ) -> Result<Arc<Storage>> {
        // The storage comes first, while the little that goes into it is in registers.
        let storage = Arc::new(Storage::new(CpuBuffer::scratch(program.output_bytes(size)?)?));
        // SAFETY: the output fills a buffer that nobody else knows.
        unsafe { run_dense(program, params, size, inputs, storage.buffer().ensure()?) }?;
        Ok(storage)
    }

    fn upload(&self, bytes: &[u8], to: &Storage) -> Result<()> {
        let buffer = operand::cpu_buffer("upload", to)?;
        if bytes.len() > buffer.bytes() {
            let reason = format!("{} bytes do not fit a buffer of {}", bytes.len(), buffer.bytes());
            return Err(Error::invalid("upload", reason));
        }
        let start = buffer.ensure()?;
        // SAFETY: the buffer has at least so many bytes, and nobody else uses them: the caller
        // holds the storage's borrow word. A slice of Rust cannot overlap memory of the pool.
        unsafe { start.copy_from_nonoverlapping(std::ptr::NonNull::from(bytes).cast(), bytes.len()) };
        Ok(())
    }

    fn download(&self, from: &Storage, offset: usize, into: &mut [u8]) -> Result<()> {
        let buffer = operand::cpu_buffer("download", from)?;
        if offset.checked_add(into.len()).is_none_or(|end| end > buffer.bytes()) {
            let reason = format!("bytes {offset}.. ({}) are not in a buffer of {}", into.len(), buffer.bytes());
            return Err(Error::invalid("download", reason));
        }
        if into.is_empty() {
            return Ok(());
        }
        let start = buffer.start().ok_or_else(|| operand::no_value("download"))?;
        // SAFETY: the bytes lie in the buffer, and nobody writes them meanwhile: the caller holds
        // the storage's borrow word.
        unsafe { start.add(offset).copy_to_nonoverlapping(std::ptr::NonNull::from(&mut *into).cast(), into.len()) };
        Ok(())
    }

    fn synchronize(&self) -> Result<()> {
        Ok(())
    }

    fn prepare(&self, plan: &Plan) -> Result<Box<dyn Prepared>> {
        Ok(Box::new(Sequence::new(plan)?))
    }

    fn memory_stats(&self) -> MemoryStats {
        allocator::stats()
    }

    fn set_memory_cap(&self, bytes: usize) {
        allocator::set_cap(bytes);
    }

    fn trim(&self) {
        allocator::trim();
    }
}

/// Runs a map of one output whose operands are all dense.
///
/// # Safety
/// `to` has room for `size` elements of the program's output, which overlap no input other than exactly.
#[inline(always)]
unsafe fn run_dense(
    program: &Program,
    params: &Params,
    size: usize,
    inputs: &[Dense<'_>],
    to: NonNull<u8>,
) -> Result<()> {
    if program.outputs.len() != 1 || inputs.len() != program.inputs.len() || program.is_row() {
        return Err(Error::invalid(program.name, "not a map of so many inputs and one output"));
    }
    let mut from: List<program::Dense, 4> = List::new();
    for (input, load) in inputs.iter().zip(&program.inputs) {
        let at = operand::dense_input(program.name, input, size, load.storage.size())?.as_ptr();
        from.push(program::Dense { at, once: input.once });
    }
    // SAFETY: the inputs lie within their buffers, all operands are of the program's dtypes, and the rest is the
    // caller's promise.
    unsafe { program::dense(program, params, size, &from, &[program::Dense::full(to.as_ptr())]) }
}

/// An operand that a kernel reads.
#[inline]
fn input<'a>(op: &'static str, view: &View<'a>) -> Result<Operand<'a>> {
    let base = operand::input(op, view)?.as_ptr();
    Ok(Operand { base, layout: view.layout, dtype: view.dtype })
}

/// The operand that a kernel writes as its output `k`.
#[inline]
fn output<'a>(kernel: &Kernel, k: usize, view: &View<'a>) -> Result<Operand<'a>> {
    let start =
        if is_state(kernel, k) { operand::state(kernel.name(), view) } else { operand::output(kernel.name(), view) };
    Ok(Operand { base: start?.as_ptr(), layout: view.layout, dtype: view.dtype })
}

/// Whether a kernel reads its output `k` before it writes it.
pub(crate) fn is_state(kernel: &Kernel, k: usize) -> bool {
    k == 0 && matches!(kernel, Kernel::Scatter(_) | Kernel::Random(_))
}

fn check_and_run(kernel: &Kernel, x: &[Operand<'_>], y: &[Operand<'_>]) -> Result<()> {
    families::check(kernel, x, y).and_then(|()| families::run(kernel, x, y))
}

/// The least number of inputs and outputs that a kernel has.
pub(crate) fn arity(kernel: &Kernel) -> (usize, usize) {
    match kernel {
        Kernel::Map(k) => (k.program.inputs.len(), k.program.outputs.len()),
        Kernel::Row(k) => (k.program.inputs.len(), k.program.outputs.len()),
        Kernel::Reduce(k) => (k.program.inputs.len(), 1),
        Kernel::Scan(_) | Kernel::Copy => (1, 1),
        Kernel::MatMul(_) | Kernel::Conv(_) | Kernel::Gather(_) | Kernel::Scatter(_) => (2, 1),
        Kernel::Sort(_) | Kernel::Pool(_) => (1, 2),
        Kernel::Factor(k) => (k.inputs(), k.outputs()),
        Kernel::Recurrent(k) => (k.inputs(), k.outputs()),
        Kernel::Attention(k) => (k.inputs(), k.outputs()),
        Kernel::Random(_) => (0, 2),
    }
}

#[cold]
pub(crate) fn too_few(kernel: &Kernel, inputs: usize, outputs: usize) -> Error {
    let (needed, made) = arity(kernel);
    let reason = format!("needs {needed} inputs and {made} outputs, got {inputs} and {outputs}");
    Error::invalid(kernel.name(), reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Array, TestLayout, run};
    use pellucid_ir::kernel::{Distribution, Map, MatMul, Random};
    use pellucid_ir::plan;
    use pellucid_ir::{DType, Layout, Shape, formula};

    fn add() -> Kernel {
        let program = formula!(|x, y| x + y).uniform_program(DType::F32).unwrap().clone();
        Kernel::Map(Map { program, params: Default::default() })
    }

    #[test]
    fn outputs_get_memory_and_inputs_must_have_it() {
        let (x, y) =
            (Array::of([2, 3], TestLayout::Plain, &[1.0f32; 6]), Array::new([2, 3], DType::F32, TestLayout::Gaps));
        assert!(matches!(run(add(), &[&x, &y], &[&y]), Err(Error::InvalidArgument { .. })));
        run(add(), &[&x, &x], &[&y]).unwrap();
        assert_eq!(y.values::<f32>(), [2.0; 6]);
    }

    #[test]
    fn no_view_reaches_beyond_its_buffer() {
        let x = Array::of([4], TestLayout::Plain, &[1.0f32; 4]);
        let wild = |layout: Layout| Array { layout, ..x.clone() };
        let strided = |shape: Shape, stride, offset| Layout::strided(shape, [stride].into_iter().collect(), offset);
        for layout in [
            Layout::contiguous([5].into()),
            strided([4].into(), 1, 1),
            strided([2].into(), 4, 0),
            Layout::contiguous([1].into()).slice(0, 0, 1, 1 << 62),
            Layout::contiguous([1, 1].into()).slice(0, 0, 1, 1 << 33).slice(1, 0, 1, 1 << 31),
        ] {
            let bad = wild(layout);
            assert!(matches!(run(add(), &[&bad, &bad], &[&bad]), Err(Error::InvalidArgument { .. })), "{bad:?}");
        }
        let row = wild(Layout::contiguous([1].into()).broadcast_to(&[4].into()).unwrap());
        run(add(), &[&row, &row], &[&x]).unwrap();
        assert!(run(add(), &[&x, &x], &[&row]).is_err(), "an output that means one element four times");
    }

    #[test]
    fn operands_that_break_the_familys_rule_are_refused() {
        let (x, y) = (Array::of([4], TestLayout::Plain, &[1.0f32; 4]), Array::of([3], TestLayout::Plain, &[1.0f32; 3]));
        assert!(matches!(run(add(), &[&x, &y], &[&x]), Err(Error::ShapeMismatch { .. })));
        assert!(matches!(run(add(), &[&x, &x], &[&y]), Err(Error::ShapeMismatch { .. })));
        assert!(matches!(run(add(), &[&x], &[&x]), Err(Error::InvalidArgument { .. })));
        let integers = Array::of([4], TestLayout::Plain, &[1i32; 4]);
        assert!(matches!(run(add(), &[&x, &integers], &[&x]), Err(Error::DTypeMismatch { .. })));
        assert!(matches!(run(Kernel::Copy, &[&x], &[&y]), Err(Error::ShapeMismatch { .. })));
    }

    /// The CPU without its own way for dense maps.
    struct Plain;

    impl Backend for Plain {
        fn name(&self) -> &str {
            Cpu.name()
        }
        fn storage(&self, bytes: usize) -> Result<Arc<Storage>> {
            Cpu.storage(bytes)
        }
        fn run(&self, kernel: &Kernel, inputs: &[View<'_>], outputs: &[View<'_>]) -> Result<()> {
            Cpu.run(kernel, inputs, outputs)
        }
        fn upload(&self, bytes: &[u8], to: &Storage) -> Result<()> {
            Cpu.upload(bytes, to)
        }
        fn download(&self, from: &Storage, offset: usize, into: &mut [u8]) -> Result<()> {
            Cpu.download(from, offset, into)
        }
        fn synchronize(&self) -> Result<()> {
            Cpu.synchronize()
        }
        fn prepare(&self, plan: &Plan) -> Result<Box<dyn Prepared>> {
            Cpu.prepare(plan)
        }
        fn memory_stats(&self) -> MemoryStats {
            Cpu.memory_stats()
        }
        fn set_memory_cap(&self, bytes: usize) {
            Cpu.set_memory_cap(bytes);
        }
        fn trim(&self) {
            Cpu.trim();
        }
    }

    #[test]
    fn dense_maps_are_maps_and_stay_inside() {
        let Kernel::Map(map) = add() else { unreachable!() };
        let storage = Cpu.storage(16).unwrap();
        Cpu.upload(bytemuck::bytes_of(&[1.0f32, 2.0, 3.0, 4.0]), &storage).unwrap();
        let empty = Cpu.storage(16).unwrap();
        let at = |offset, once| Dense { storage: &storage, offset, once };
        let go = |backend: &dyn Backend, size, inputs: &[Dense<'_>], to: &Storage| {
            backend.map_dense(&map.program, &map.params, size, inputs, Dense { storage: to, offset: 0, once: false })
        };
        for backend in [&Cpu as &dyn Backend, &Plain] {
            let (out, mut bytes) = (Cpu.storage(12).unwrap(), [0; 12]);
            go(backend, 3, &[at(1, false), at(3, true)], &out).unwrap();
            Cpu.download(&out, 0, &mut bytes).unwrap();
            assert_eq!(bytemuck::cast::<_, [f32; 3]>(bytes), [6.0, 7.0, 8.0]);
            for size in [4, usize::MAX / 4, usize::MAX] {
                assert!(go(backend, size, &[at(0, false); 2], &out).is_err(), "an output of three");
            }
            assert!(go(backend, 3, &[at(2, false), at(0, false)], &out).is_err(), "an input of two");
            assert!(go(backend, 3, &[at(usize::MAX, true), at(0, false)], &out).is_err());
            assert!(go(backend, 3, &[at(0, false)], &out).is_err(), "one input for two");
            let unwritten = Dense { storage: &empty, offset: 0, once: false };
            assert!(go(backend, 3, &[unwritten, at(0, false)], &out).is_err());
            let new = |size, inputs: &[Dense<'_>]| backend.map_new(&map.program, &map.params, size, inputs);
            Cpu.download(&new(3, &[at(1, false), at(3, true)]).unwrap(), 0, &mut bytes).unwrap();
            assert_eq!(bytemuck::cast::<_, [f32; 3]>(bytes), [6.0, 7.0, 8.0]);
            for size in [5, usize::MAX / 4, usize::MAX] {
                assert!(new(size, &[at(0, false); 2]).is_err(), "inputs of four");
                assert!(new(size, &[at(0, true)]).is_err(), "one input for two");
            }
        }
    }

    #[test]
    fn uploads_and_downloads_stay_inside() {
        let storage = Cpu.storage(8).unwrap();
        assert!(Cpu.download(&storage, 0, &mut [0; 1]).is_err(), "never written");
        assert!(Cpu.upload(&[0; 9], &storage).is_err());
        Cpu.upload(&[1, 2, 3, 4, 5, 6, 7, 8], &storage).unwrap();
        let mut bytes = [0; 3];
        Cpu.download(&storage, 5, &mut bytes).unwrap();
        assert_eq!(bytes, [6, 7, 8]);
        assert!(Cpu.download(&storage, 6, &mut bytes).is_err());
        assert!(Cpu.download(&storage, usize::MAX, &mut bytes).is_err());
    }

    #[test]
    fn a_prepared_plan_runs_its_kernels_in_order_every_time() {
        let operand =
            |slot, shape: &[usize], dtype| plan::Operand { slot, layout: Layout::contiguous(shape.into()), dtype };
        let x = operand(1, &[2, 2], DType::F32);
        let launch = |kernel, inputs: &[&plan::Operand], outputs: &[&plan::Operand]| {
            let own = |list: &[&plan::Operand]| list.iter().map(|&o| o.clone()).collect();
            plan::Launch::new(kernel, own(inputs), own(outputs))
        };
        let state = operand(0, &[2], DType::I64);
        let (y, z) = (operand(2, &[2, 2], DType::F32), operand(3, &[2, 2], DType::F32));
        let random = Kernel::Random(Random { distribution: Distribution::Uniform });
        let plan = Plan {
            slots: vec![16; 4],
            launches: vec![
                launch(random, &[], &[&state, &x]),
                launch(add(), &[&x, &x], &[&y]),
                launch(Kernel::MatMul(MatMul::default()), &[&x, &y], &[&z]),
            ],
            ..Plan::default()
        };
        let prepared = Cpu.prepare(&plan).unwrap();
        let slots: Vec<_> = plan.slots.iter().map(|&bytes| Cpu.storage(bytes).unwrap()).collect();
        Cpu.upload(bytemuck::bytes_of(&[3i64, 0]), &slots[0]).unwrap();
        let mut seen = vec![];
        for _ in 0..2 {
            prepared.launch(&slots).unwrap();
            let of = |slot: usize| {
                Array { storage: slots[slot].clone(), layout: x.layout.clone(), dtype: DType::F32 }.values::<f32>()
            };
            let (x, z) = (of(1), of(3));
            let product = |i: usize, j: usize| 2.0 * (x[2 * i] * x[j] + x[2 * i + 1] * x[2 + j]);
            (0..4).for_each(|i| assert!((z[i] - product(i / 2, i % 2)).abs() < 1e-5));
            seen.push(z);
        }
        assert_ne!(seen[0], seen[1], "the generator went on");
        assert!(prepared.launch(&slots[..2]).is_err());
        let outside = Plan { slots: vec![16, 12, 16, 16], ..plan };
        assert!(Cpu.prepare(&outside).is_err());
    }
}
