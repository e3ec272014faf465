//! [`Cpu`], the CPU backend. It checks that each view is within its buffer, converts views to addresses, and runs each
//! kernel by its family.

use crate::families;
use crate::operand::{self, Operand, Operands};
use crate::program;
use crate::sequence::PreparedPlan;
use pellucid_ir::backend::{
    Backend, Buffer, CheckedKernel, CheckedPlan, CompiledPlan, DenseView, MemoryStats, Readable, Storage, View,
    Writable,
};
use pellucid_ir::borrow::{BatchBorrowGuard, BorrowGuard};
use pellucid_ir::formula::Program;
use pellucid_ir::kernel::{Kernel, Params};
use pellucid_ir::{Error, Result};
use pellucid_runtime::CpuBuffer;
use pellucid_runtime::allocator;
use pellucid_runtime::list::List;
use std::ptr::NonNull;
use std::sync::Arc;

/// The backend of the CPU on which this process runs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cpu;

impl Backend for Cpu {
    fn name(&self) -> &str {
        "cpu"
    }

    fn storage(&self, bytes: usize) -> Result<Arc<Storage>> {
        Ok(Arc::new(Storage::new(CpuBuffer::new(bytes)?)))
    }

    fn run_checked(&self, launch: CheckedKernel<'_>) -> Result<()> {
        let (kernel, inputs, outputs) = (launch.kernel(), launch.inputs(), launch.outputs());
        let op = kernel.name();
        // Nearly all kernels have one or two inputs and one output, which are checked without building a list.
        match (inputs, outputs) {
            ([a], [y]) => families::run_kernel(kernel, &[input(op, a)?], &[output(kernel, 0, y)?]),
            ([a, b], [y]) => families::run_kernel(kernel, &[input(op, a)?, input(op, b)?], &[output(kernel, 0, y)?]),
            _ => {
                let (mut x, mut y) = (Operands::new(), Operands::new());
                for view in inputs {
                    x.push(input(op, view)?);
                }
                for (k, view) in outputs.iter().enumerate() {
                    y.push(output(kernel, k, view)?);
                }
                families::run_kernel(kernel, &x, &y)
            }
        }
    }

    #[inline]
    fn map_dense(
        &self,
        program: &Arc<Program>,
        params: &Params,
        size: usize,
        operands: &BorrowGuard<'_, DenseView<'_>>,
    ) -> Result<()> {
        let (inputs, [output]) = (operands.inputs(), operands.outputs()) else { return Err(unfit_map(program)) };
        let element = program.output_bytes(1)?;
        let to = operand::dense_output(program.name, output, size, element)?;
        for (input, load) in inputs.iter().zip(&program.inputs) {
            operand::check_dense_overlap(program.name, (input, load.storage.size()), (output, element), size)?;
        }
        // SAFETY: `dense_output` returns a pointer that is valid for `size` elements. The guard holds the borrow words
        // of all storages (clauses 1 and 3 of `run_dense`). The output overlaps an input only if both have the same
        // elements, as checked above (clause 2).
        unsafe { run_dense(program, params, size, inputs, to) }
    }

    fn maps_dense(
        &self,
        program: &Arc<Program>,
        params: &Params,
        sizes: &[usize],
        operands: &BatchBorrowGuard<'_, DenseView<'_>>,
    ) -> Result<()> {
        crate::program::run_dense_maps(program, params, sizes, operands)
    }

    #[inline]
    fn map_new(
        &self,
        program: &Arc<Program>,
        params: &Params,
        size: usize,
        inputs: &BorrowGuard<'_, DenseView<'_>>,
    ) -> Result<Arc<Storage>> {
        // Creating the storage first is faster, because its few arguments are still in registers here.
        let storage = Arc::new(Storage::new(CpuBuffer::scratch(program.output_bytes(size)?)?));
        // SAFETY: the new buffer has space for `size` output elements, and no other thread or input refers to it
        // (clauses 1 and 2 of `run_dense`). The guard holds the borrow words of the inputs (clause 3).
        unsafe { run_dense(program, params, size, inputs.inputs(), storage.buffer().ensure()?) }?;
        Ok(storage)
    }

    fn upload_borrowed(&self, bytes: &[u8], to: Writable<'_>, offset: usize) -> Result<()> {
        let buffer = operand::cpu_buffer("upload", &to)?;
        check_copy("upload", buffer, offset, bytes.len())?;
        let start = buffer.ensure()?;
        // SAFETY: the bytes are within the buffer, as checked above. No other thread uses them, because `Writable`
        // proves that this thread is the only user of the storage. The slice does not overlap the buffer, whose memory
        // belongs to the buffer alone.
        unsafe { start.add(offset).copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
        Ok(())
    }

    fn download_borrowed(&self, from: Readable<'_>, offset: usize, into: &mut [u8]) -> Result<()> {
        let buffer = operand::cpu_buffer("download", &from)?;
        check_copy("download", buffer, offset, into.len())?;
        if into.is_empty() {
            return Ok(());
        }
        let start = buffer.start().ok_or_else(|| operand::no_value("download"))?;
        // SAFETY: the bytes are within the buffer, as checked above. No other thread writes them, because `Readable`
        // proves that the storage has no writer. The slice does not overlap the buffer, whose memory belongs to the
        // buffer alone.
        unsafe { start.add(offset).copy_to_nonoverlapping(NonNull::from(&mut *into).cast(), into.len()) };
        Ok(())
    }

    fn synchronize(&self) -> Result<()> {
        Ok(())
    }

    fn prepare_checked(&self, plan: CheckedPlan<'_>) -> Result<Option<Box<dyn CompiledPlan>>> {
        Ok(Some(Box::new(PreparedPlan::new(plan)?)))
    }

    fn memory_stats(&self) -> MemoryStats {
        allocator::stats()
    }

    fn set_memory_cap(&self, bytes: usize) {
        allocator::set_cap(bytes);
    }

    fn check_memory(&self, bytes: usize) -> Result<()> {
        allocator::check_cap(bytes)
    }

    fn trim(&self) {
        allocator::trim();
    }
}

/// Returns an error if `len` bytes at `offset` exceed a buffer.
fn check_copy(op: &'static str, buffer: &CpuBuffer, offset: usize, len: usize) -> Result<()> {
    match offset.checked_add(len).is_some_and(|end| end <= buffer.bytes()) {
        true => Ok(()),
        false => {
            let reason = format!("{len} bytes at offset {offset} exceed a buffer of {} bytes", buffer.bytes());
            Err(Error::invalid(op, reason))
        }
    }
}

/// Returns the error for a program that is not elementwise, or does not have one output and one input per operand.
#[cold]
fn unfit_map(program: &Program) -> Error {
    let (inputs, outputs) = (program.inputs.len(), program.outputs.len());
    let reason = format!(
        "the program must be elementwise (without row reductions), with one output and one input per operand; it has \
         {inputs} inputs and {outputs} outputs"
    );
    Error::invalid(program.name, reason)
}

/// Runs a map with one output whose operands are all contiguous or single values.
///
/// # Errors
/// Returns an error if the program is not elementwise or does not have one output and one input per operand, or if an
/// input exceeds its buffer or has no memory.
///
/// # Safety
/// 1. `to` is valid for writes of `size` elements of the program's output, and no other thread uses them.
/// 2. These elements overlap no input, except an input that consists of the same elements.
/// 3. No other thread writes the inputs.
#[inline(always)]
unsafe fn run_dense(
    program: &Program,
    params: &Params,
    size: usize,
    inputs: &[DenseView<'_>],
    to: NonNull<u8>,
) -> Result<()> {
    if program.outputs.len() != 1 || inputs.len() != program.inputs.len() || program.is_row() {
        return Err(unfit_map(program));
    }
    let mut operands: List<program::DensePtr, 4> = List::new();
    for (input, load) in inputs.iter().zip(&program.inputs) {
        let address = operand::dense_input(program.name, input, size, load.storage.size())?.as_ptr();
        operands.push(program::DensePtr { address, once: input.once });
    }
    // SAFETY: `dense_input` returns addresses of elements of the dtypes that the program loads: `size` elements, or one
    // if the operand is a single value. The output is valid and no other thread uses it (clause 1 of this function), it
    // overlaps an input only if both have the same elements (clause 2), and no other thread writes the inputs (clause
    // 3).
    unsafe { program::dense(program, params, size, &operands, &[program::DensePtr::full(to.as_ptr())]) }
}

/// Converts an input view to an operand; see [`operand::input`] for the errors.
#[inline]
fn input<'a>(op: &'static str, view: &View<'a>) -> Result<Operand<'a>> {
    let base = operand::input(op, view)?.as_ptr();
    Ok(Operand { base, layout: view.layout, dtype: view.dtype })
}

/// Converts the view of output `k` to an operand. See [`operand::input`] for the errors if the kernel reads the output
/// before it writes it, otherwise [`operand::output`].
#[inline]
fn output<'a>(kernel: &Kernel, k: usize, view: &View<'a>) -> Result<Operand<'a>> {
    let is_read = k < kernel.info().state_outputs;
    let start = if is_read { operand::input(kernel.name(), view) } else { operand::output(kernel.name(), view) };
    Ok(Operand { base: start?.as_ptr(), layout: view.layout, dtype: view.dtype })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forwarding::ForwardingCpu;
    use crate::testing::{TestArray, TestLayout, run_kernel};
    use pellucid_ir::kernel::{Distribution, Map, MatMul, Random};
    use pellucid_ir::plan::{self, Plan};
    use pellucid_ir::{DType, Layout, Shape, formula};

    fn add() -> Kernel {
        let program = formula!(|x, y| x + y).uniform_program(DType::F32).unwrap().clone();
        Kernel::Map(Map { program, params: Default::default() })
    }

    #[test]
    fn outputs_are_allocated_and_unwritten_inputs_are_errors() {
        let (x, y) = (
            TestArray::of([2, 3], TestLayout::Plain, &[1.0f32; 6]),
            TestArray::new([2, 3], DType::F32, TestLayout::Gaps),
        );
        assert!(matches!(run_kernel(add(), &[&x, &y], &[&y]), Err(Error::InvalidArgument { .. })));
        run_kernel(add(), &[&x, &x], &[&y]).unwrap();
        assert_eq!(y.values::<f32>(), [2.0; 6]);
    }

    #[test]
    fn views_that_exceed_their_buffer_are_errors() {
        let x = TestArray::of([4], TestLayout::Plain, &[1.0f32; 4]);
        let with_layout = |layout: Layout| TestArray { layout, ..x.clone() };
        let strided = |shape: Shape, stride, offset| Layout::strided(shape, [stride].into_iter().collect(), offset);
        for layout in [
            Layout::contiguous([5].into()),
            strided([4].into(), 1, 1),
            strided([2].into(), 4, 0),
            Layout::contiguous([1].into()).slice(0, 0, 1, 1 << 62),
            Layout::contiguous([1, 1].into()).slice(0, 0, 1, 1 << 33).slice(1, 0, 1, 1 << 31),
        ] {
            let bad = with_layout(layout);
            assert!(matches!(run_kernel(add(), &[&bad, &bad], &[&bad]), Err(Error::InvalidArgument { .. })), "{bad:?}");
        }
        let row = with_layout(Layout::contiguous([1].into()).broadcast_to(&[4].into()).unwrap());
        let sum = TestArray::new([4], DType::F32, TestLayout::Plain);
        run_kernel(add(), &[&row, &row], &[&sum]).unwrap();
        assert!(run_kernel(add(), &[&x, &x], &[&row]).is_err(), "a broadcast output must be an error");
    }

    #[test]
    fn wrong_shapes_dtypes_and_arities_are_errors() {
        let (x, y) =
            (TestArray::of([4], TestLayout::Plain, &[1.0f32; 4]), TestArray::of([3], TestLayout::Plain, &[1.0f32; 3]));
        assert!(matches!(run_kernel(add(), &[&x, &y], &[&x]), Err(Error::ShapeMismatch { .. })));
        assert!(matches!(run_kernel(add(), &[&x, &x], &[&y]), Err(Error::ShapeMismatch { .. })));
        assert!(matches!(run_kernel(add(), &[&x], &[&x]), Err(Error::InvalidArgument { .. })));
        let integers = TestArray::of([4], TestLayout::Plain, &[1i32; 4]);
        assert!(matches!(run_kernel(add(), &[&x, &integers], &[&x]), Err(Error::DTypeMismatch { .. })));
        assert!(matches!(run_kernel(Kernel::Copy, &[&x], &[&y]), Err(Error::ShapeMismatch { .. })));
    }

    #[test]
    fn dense_maps_equal_maps_and_check_bounds() {
        // `ForwardingCpu` computes dense maps by the default methods of the trait.
        let forwarding = ForwardingCpu { name: "forwarding".into(), ..ForwardingCpu::default() };
        let Kernel::Map(map) = add() else { unreachable!() };
        let storage = Cpu.storage(16).unwrap();
        Cpu.upload(bytemuck::bytes_of(&[1.0f32, 2.0, 3.0, 4.0]), &storage).unwrap();
        let empty = Cpu.storage(16).unwrap();
        let operand = |offset, once| DenseView { storage: &storage, offset, once };
        let map_dense = |backend: &dyn Backend, size, inputs: &[DenseView<'_>], to: &Storage| {
            let to = [DenseView { storage: to, offset: 0, once: false }];
            backend.map_dense(&map.program, &map.params, size, &BorrowGuard::acquire(inputs, &to))
        };
        for backend in [&Cpu as &dyn Backend, &forwarding] {
            let (out, mut bytes) = (Cpu.storage(12).unwrap(), [0; 12]);
            map_dense(backend, 3, &[operand(1, false), operand(3, true)], &out).unwrap();
            Cpu.download(&out, 0, &mut bytes).unwrap();
            assert_eq!(bytemuck::cast::<_, [f32; 3]>(bytes), [6.0, 7.0, 8.0]);
            for size in [4, usize::MAX / 4, usize::MAX] {
                assert!(
                    map_dense(backend, size, &[operand(0, false); 2], &out).is_err(),
                    "a map of {size} elements into an output of three must be an error"
                );
            }
            assert!(
                map_dense(backend, 3, &[operand(2, false), operand(0, false)], &out).is_err(),
                "reading three elements from element 2 of an input with four must be an error"
            );
            assert!(map_dense(backend, 3, &[operand(usize::MAX, true), operand(0, false)], &out).is_err());
            assert!(
                map_dense(backend, 3, &[operand(0, false)], &out).is_err(),
                "a map without its second input must be an error"
            );
            let unwritten = DenseView { storage: &empty, offset: 0, once: false };
            assert!(map_dense(backend, 3, &[unwritten, operand(0, false)], &out).is_err());
            let new = |size, inputs: &[DenseView<'_>]| {
                backend.map_new(&map.program, &map.params, size, &BorrowGuard::acquire(inputs, &[]))
            };
            // Output elements 0 to 2 overlap input elements 1 to 3 of the same storage.
            let shifted = map_dense(backend, 3, &[operand(1, false), operand(1, false)], &storage);
            assert!(shifted.is_err(), "a partial overlap of an output and an input must be an error");
            let single = map_dense(backend, 3, &[operand(0, false), operand(0, true)], &storage);
            assert!(single.is_err(), "an output that overwrites a single value must be an error");
            Cpu.download(&new(3, &[operand(1, false), operand(3, true)]).unwrap(), 0, &mut bytes).unwrap();
            assert_eq!(bytemuck::cast::<_, [f32; 3]>(bytes), [6.0, 7.0, 8.0]);
            for size in [5, usize::MAX / 4, usize::MAX] {
                assert!(
                    new(size, &[operand(0, false); 2]).is_err(),
                    "a map of {size} elements over inputs of four must be an error"
                );
                assert!(new(size, &[operand(0, true)]).is_err(), "a map without its second input must be an error");
            }
        }
    }

    #[test]
    fn an_output_that_overlaps_another_operand_is_an_error() {
        let x = TestArray::of([6], TestLayout::Plain, &[1.0f32; 6]);
        let part = |start| TestArray { layout: Layout::contiguous_from([4].into(), start), ..x.clone() };
        run_kernel(add(), &[&part(0), &part(1)], &[&TestArray::new([4], DType::F32, TestLayout::Plain)]).unwrap();
        run_kernel(add(), &[&part(0), &part(0)], &[&part(0)]).unwrap();
        let overlapping = run_kernel(add(), &[&part(0), &part(0)], &[&part(1)]);
        assert!(matches!(overlapping, Err(Error::InvalidArgument { .. })));
        let square = TestArray::of([2, 2], TestLayout::Plain, &[1.0f32; 4]);
        let product = run_kernel(Kernel::MatMul(MatMul::default()), &[&square, &square], &[&square]);
        assert!(matches!(product, Err(Error::InvalidArgument { .. })), "a product must not overwrite its factor");
    }

    #[test]
    fn uploads_and_downloads_check_bounds() {
        let storage = Cpu.storage(8).unwrap();
        assert!(
            Cpu.download(&storage, 0, &mut [0; 1]).is_err(),
            "the download of a buffer without memory must be an error"
        );
        assert!(Cpu.upload(&[0; 9], &storage).is_err());
        Cpu.upload(&[1, 2, 3, 4, 5, 6, 7, 8], &storage).unwrap();
        let mut bytes = [0; 3];
        Cpu.download(&storage, 5, &mut bytes).unwrap();
        assert_eq!(bytes, [6, 7, 8]);
        assert!(Cpu.download(&storage, 6, &mut bytes).is_err());
        assert!(Cpu.download(&storage, usize::MAX, &mut bytes).is_err());
    }

    #[test]
    fn a_prepared_plan_runs_its_kernels_in_order_at_every_launch() {
        let operand =
            |slot, shape: &[usize], dtype| plan::SlotView { slot, layout: Layout::contiguous(shape.into()), dtype };
        let x = operand(1, &[2, 2], DType::F32);
        let launch = |kernel, inputs: &[&plan::SlotView], outputs: &[&plan::SlotView]| {
            let owned = |list: &[&plan::SlotView]| list.iter().map(|&o| o.clone()).collect();
            plan::Launch::new(kernel, owned(inputs), owned(outputs))
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
        let prepared = Cpu.prepare(&plan).unwrap().expect("the CPU must prepare every plan");
        let slots: Vec<_> = plan.slots.iter().map(|&bytes| Cpu.storage(bytes).unwrap()).collect();
        Cpu.upload(bytemuck::bytes_of(&[3i64, 0]), &slots[0]).unwrap();
        let mut seen = vec![];
        for _ in 0..2 {
            prepared.run(&slots).unwrap();
            let values = |slot: usize| {
                TestArray { storage: slots[slot].clone(), layout: x.layout.clone(), dtype: DType::F32 }.values::<f32>()
            };
            let (x, z) = (values(1), values(3));
            let product = |i: usize, j: usize| 2.0 * (x[2 * i] * x[j] + x[2 * i + 1] * x[2 + j]);
            (0..4).for_each(|i| assert!((z[i] - product(i / 2, i % 2)).abs() < 1e-5));
            seen.push(z);
        }
        assert_ne!(seen[0], seen[1], "each launch must advance the state of the generator");
        assert!(prepared.run(&slots[..2]).is_err());
        let outside = Plan { slots: vec![16, 12, 16, 16], ..plan };
        assert!(Cpu.prepare(&outside).is_err());
    }
}
