//! `Reduce`: reduces the values of a program over axes, and runs a finishing program on the results.
//!
//! The elements of the reduced axes form one sequence in row-major order, which is reduced in the order of
//! [`crate::program::fold`]. If the reduced axes are innermost in memory, each sequence is a row and is reduced by
//! itself (`rows`), after a transposition if another reduced axis is contiguous (`transposed`). If a kept axis is
//! innermost, many sequences are reduced together, one per column (`columns`). Sums over pairs of values, such as
//! distances, are computed in registers (`pairs`). The choice affects only the speed, not the results.

mod arg;
mod columns;
mod contiguous;
mod pairs;
mod rows;
mod transposed;

use crate::operand::Operand;
use crate::program::copy::copy;
use crate::program::evaluate::Evaluator;
use crate::program::fold::FoldKernel;
use crate::program::loader::{fill, scatter};
use crate::program::loops::{self, UnaryLoop};
use crate::program::map::run_map;
use crate::program::prepared::PreparedProgram;
use crate::program::row::common_shape;
use crate::program::slot::Granularity;
use crate::strided::{self, StridedAxes, StridedAxis};
use arg::ArgReduction;
use pellucid_ir::formula::Program;
use pellucid_ir::kernel::{Map, Params, Reduce, ReduceOp};
use pellucid_ir::{Compute, Error, Layout, Result};
use pellucid_runtime::list::List;
use pellucid_runtime::scratch::padded;
use pellucid_runtime::workspace::with_workspace;
use pellucid_simd::Isa;
use std::sync::Arc;

/// The number of results that are finished and stored together.
const RESULTS: usize = 512;

/// The minimum number of sequences of one value that are reduced as columns. Fewer sequences cost less one by one.
const MIN_SINGLE_VALUES: usize = if cfg!(test) { 16 } else { 256 };

/// The operation that reduces a sequence.
#[derive(Clone, Copy)]
enum PreparedReduction {
    /// Combines all values.
    Fold(FoldKernel),
    /// Finds the index of the extremum.
    Arg(ArgReduction),
}

/// A reduction of `count` sequences of `length` values, resolved for its operands.
struct SequenceReduction<'a> {
    /// The program that computes the values.
    program: &'a PreparedProgram,
    /// The parameters of `program`.
    params: &'a Params,
    /// The operation.
    operation: PreparedReduction,
    /// The conversion from the compute type of the program to the type of the accumulator, if they differ.
    widen: Option<UnaryLoop>,
    /// The size of a value in the compute type of the accumulator, in bytes.
    size: usize,
    /// The kept axes, with the strides of the inputs and then of the output, in the memory order of the output.
    kept: StridedAxes,
    /// The reduced axes, with the same strides.
    reduced: StridedAxes,
    /// The addresses of the first element of each input and of the output.
    bases: List<*mut u8, 8>,
    /// The number of values of each sequence.
    length: usize,
    /// The number of sequences.
    count: usize,
    /// The finishing program and its parameters.
    finish: Option<(&'a PreparedProgram, &'a Params)>,
    /// The conversion from the type of the finished result to the dtype of the output, if they differ.
    store: Option<UnaryLoop>,
    /// The size of an element of the output, in bytes.
    output: usize,
}

// SAFETY: the raw pointers refer to the operands, which outlive the run. Threads only read the inputs. They reduce
// disjoint sequences, whose results are stored in disjoint memory, or write disjoint partial results.
unsafe impl Sync for SequenceReduction<'_> {}

/// Reduces `inputs` to `outputs`. The inputs of the program broadcast to a common shape.
///
/// # Errors
/// Returns an error if the operands do not broadcast to a common shape, or the operation or the finishing program is
/// not defined for the dtypes.
pub(crate) fn run_reduce(kernel: &Reduce, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
    match kernel.wide_finish() {
        None => reduce_to(kernel, inputs, &outputs[0]),
        Some(finish) => reduce_and_map(kernel, finish, inputs, outputs),
    }
}

/// Reduces to scratch memory, then runs the finishing program as a map.
///
/// # Errors
/// Returns an error if the memory cannot be allocated, or an error of [`run_reduce`].
fn reduce_and_map(
    kernel: &Reduce,
    finish: &Arc<Program>,
    inputs: &[Operand<'_>],
    outputs: &[Operand<'_>],
) -> Result<()> {
    let (reduced, others) = inputs.split_at(kernel.program.inputs.len());
    let (_, result, _) = select_reduction(kernel, finish.inputs[0].compute)?;
    check_finish(finish, result)?;
    let dtype = result.storage();
    let plain = Reduce { finish: None, finish_params: Params::new(), output: dtype, ..kernel.clone() };
    let layout = Layout::contiguous(outputs[0].shape().clone());
    let finish_result = |base: *mut u8| {
        let result = Operand { base, layout: &layout, dtype };
        reduce_to(&plain, reduced, &result)?;
        let inputs: List<Operand<'_>, 8> = [result].into_iter().chain(others.iter().copied()).collect();
        run_map(&Map { program: finish.clone(), params: kernel.finish_params.clone() }, &inputs, outputs)
    };
    with_workspace(layout.shape().size().saturating_mul(dtype.size()), finish_result)
}

/// Runs a reduction with one output. Its finishing program, if any, has no input other than the result.
fn reduce_to(kernel: &Reduce, inputs: &[Operand<'_>], output: &Operand<'_>) -> Result<()> {
    let name = kernel.program.name;
    let program = PreparedProgram::for_program(&kernel.program)?;
    let finish = kernel.finish.as_deref().map(|f| Ok::<_, Error>((PreparedProgram::for_program(f)?, f))).transpose()?;
    let first = finish.as_ref().map(|(p, _)| *p);
    if let [x] = inputs
        && contiguous::reduce_contiguous(kernel, program, first, x, output)
    {
        return Ok(());
    }
    let shape = common_shape(name, inputs.iter().chain([output]))?;
    let operands = || inputs.iter().chain([output]);
    let mut bases: List<*mut u8, 8> = operands().map(strided::base_address).collect();
    let mut kept = strided::broadcast_axes(&shape, operands(), |a| !kernel.axes.contains(a));
    let mut reduced = strided::broadcast_axes(&shape, operands(), |a| kernel.axes.contains(a));
    let (count, length) = (strided::element_count(&kept), strided::element_count(&reduced));
    if count == 0 {
        return Ok(());
    }
    if kept.iter().any(|axis| axis.strides[..inputs.len()].iter().all(|&stride| stride == 0)) {
        return reduce_repeated(kernel, inputs, output);
    }
    strided::reorder(&mut kept, inputs.len(), &mut bases);
    strided::merge(&mut kept);
    strided::merge(&mut reduced);

    let isa = Isa::best();
    let value = kernel.program.outputs[0].compute;
    let consumer = finish.map_or(output.dtype.compute(), |(_, f)| f.inputs[0].compute);
    let (accumulator, result, operation) = select_reduction(kernel, consumer)?;
    let finished = match finish {
        Some((_, f)) => {
            check_finish(f, result)?;
            f.outputs[0].compute
        }
        None => result,
    };
    let mut reduction = SequenceReduction {
        program,
        params: &kernel.params,
        operation,
        widen: (value != accumulator).then(|| loops::convert(value.storage(), accumulator, isa)),
        size: accumulator.size(),
        kept,
        reduced,
        bases,
        length,
        count,
        finish: finish.map(|(f, _)| (f, &kernel.finish_params)),
        store: (finished.storage() != output.dtype).then(|| loops::store(finished, output.dtype, isa)),
        output: output.dtype.size(),
    };
    if reduction.reduce_pairs() {
        return Ok(());
    }
    if length == 1 && count >= MIN_SINGLE_VALUES {
        // Sequences of one value are the columns of one row.
        let strides = (0..=inputs.len()).map(|_| 0).collect();
        reduction.reduced.push(StridedAxis { len: 1, strides });
    }
    if reduction.prefers_columns(inputs.len()) {
        return reduction.reduce_columns();
    }
    if !reduction.reduce_transposed()? {
        reduction.reduce_rows();
    }
    Ok(())
}

/// Runs a reduction whose inputs repeat their values along kept axes. Results that differ only in their indices along
/// these axes are equal, so one of them is computed and copied to the others.
///
/// # Errors
/// Returns an error if memory cannot be allocated, or an error of [`run_reduce`].
fn reduce_repeated(kernel: &Reduce, inputs: &[Operand<'_>], output: &Operand<'_>) -> Result<()> {
    let rank = output.shape().rank();
    let repeats = |a: usize| inputs.iter().all(|x| x.layout.broadcast_stride(a, rank) == 0);
    let is_repeated = |a: &usize| output.shape()[*a] > 1 && repeats(*a);
    let first = |layout: &Layout| {
        let missing = rank - layout.shape().rank();
        (missing..rank).filter(is_repeated).fold(layout.clone(), |layout, a| layout.slice(a - missing, 0, 1, 1))
    };
    let layouts: List<Layout, 8> = inputs.iter().map(|x| first(x.layout)).collect();
    let layout = Layout::contiguous(first(output.layout).shape().clone());
    with_workspace(layout.shape().size().saturating_mul(output.dtype.size()), |base| {
        let result = Operand { base, layout: &layout, dtype: output.dtype };
        let inputs: List<Operand<'_>, 8> =
            inputs.iter().zip(&layouts).map(|(x, layout)| Operand { layout, ..*x }).collect();
        reduce_to(kernel, &inputs, &result)?;
        copy(&result, output)
    })
}

/// Returns an error unless the first input of `finish` has the dtype of `result`.
fn check_finish(finish: &Program, result: Compute) -> Result<()> {
    if finish.inputs[0].storage == result.storage() {
        return Ok(());
    }
    let rule = "the first input of the finishing program must have this dtype, the dtype of the reduction's result";
    Err(Error::dtypes(finish.name, [result.storage()], rule))
}

/// Returns the compute types of the accumulator and of the result, and the operation. `consumer` is the compute type of
/// the consumer of the result.
///
/// # Errors
/// Returns an error if the operation is not defined for the values of the program.
fn select_reduction(kernel: &Reduce, consumer: Compute) -> Result<(Compute, Compute, PreparedReduction)> {
    let (op, value) = (kernel.op, kernel.program.outputs[0].compute);
    let prepared = |accumulator| match (arg_op(op), fold_op(op)) {
        (Some(largest), _) => ArgReduction::new(largest, accumulator).map(PreparedReduction::Arg),
        (_, Some(fold)) => FoldKernel::new(fold, accumulator).map(PreparedReduction::Fold),
        (None, None) => None,
    };
    let accumulator = op.accumulator(value, consumer);
    let selected = accumulator.and_then(|compute| Some((compute, op.result(compute), prepared(compute)?)));
    selected.ok_or_else(|| {
        let rule = format!("the reduction {} is not defined for this dtype; cast the input", op.name());
        Error::dtypes(kernel.program.name, [value.storage()], rule)
    })
}

/// Returns `Some(true)` for arg max, `Some(false)` for arg min and `None` for other operations.
fn arg_op(op: ReduceOp) -> Option<bool> {
    match op {
        ReduceOp::ArgMax => Some(true),
        ReduceOp::ArgMin => Some(false),
        _ => None,
    }
}

/// Returns the operation that combines values, or `None` for arg max and arg min.
fn fold_op(op: ReduceOp) -> Option<loops::FoldOp> {
    match op {
        ReduceOp::Sum => Some(loops::FoldOp::Sum),
        ReduceOp::Prod => Some(loops::FoldOp::Prod),
        ReduceOp::Max => Some(loops::FoldOp::Max),
        ReduceOp::Min => Some(loops::FoldOp::Min),
        ReduceOp::Any => Some(loops::FoldOp::Or),
        ReduceOp::All => Some(loops::FoldOp::And),
        ReduceOp::ArgMax | ReduceOp::ArgMin => None,
    }
}

impl SequenceReduction<'_> {
    /// Returns true if the innermost kept axis has smaller strides than the innermost reduced axis, summed over the
    /// inputs, or if every sequence is one value.
    fn prefers_columns(&self, inputs: usize) -> bool {
        let (Some(kept), Some(reduced)) = (self.kept.last(), self.reduced.last()) else { return false };
        let total_stride = |a: &StridedAxis| a.strides[..inputs].iter().map(|s| s.unsigned_abs()).sum::<usize>();
        // The axis of sequences of one value exists only if they are reduced as columns.
        let is_closer = self.length == 1 || total_stride(kept) < total_stride(reduced);
        self.length > 0 && kept.len >= 4 && total_stride(kept) > 0 && is_closer
    }

    /// Returns the estimated work per value, in bytes of memory traffic.
    fn work_per_value(&self) -> usize {
        self.program.inputs.iter().map(|i| i.size).sum::<usize>() + 2 * self.program.steps.len()
    }

    /// Returns the bytes of a result before the finishing program.
    fn result_size(&self) -> usize {
        match self.operation {
            PreparedReduction::Fold(fold) => fold.size,
            PreparedReduction::Arg(_) => 8,
        }
    }

    /// Returns the bytes of scratch memory for [`SequenceReduction::store_results`].
    fn store_scratch(&self) -> usize {
        let axes = self.finish_axes();
        let finish = self.finish.map_or(0, |(f, p)| Evaluator::new(f, p, &axes, |_| false, |_| false).scratch_bytes());
        padded(RESULTS * 8) + padded(finish)
    }

    /// Returns the index space of the results that are finished together.
    fn finish_axes(&self) -> [StridedAxis; 1] {
        let size = self.result_size() as isize;
        [StridedAxis { len: RESULTS, strides: [size].into_iter().collect() }]
    }

    /// Finishes results `first..first + n` of the kept index space and stores them.
    ///
    /// # Safety
    /// * Results: `results` is valid for reads of `n` results. Sequences `first..first + n` exist.
    /// * Scratch: `scratch` is 64-byte aligned and valid for [`SequenceReduction::store_scratch`] bytes.
    /// * Exclusive: no other thread accesses these outputs, `results` or `scratch`.
    unsafe fn store_results(&self, results: *mut u8, first: usize, n: usize, scratch: *mut u8) {
        let k = self.program.inputs.len();
        let axes = self.finish_axes();
        let dense = strided::access_pattern(&self.kept, k, self.output) == strided::AccessPattern::Dense;
        let finish = self.finish.map(|(f, p)| (f, Evaluator::new(f, p, &axes, |_| false, |_| false)));
        let mut done = 0;
        while done < n {
            // SAFETY: by this method's contract, `done + count` ≤ n, so *Results* covers all reads, and the output has
            // an element for each result (*Exclusive*). *Scratch* covers `RESULTS` converted elements of at most 8
            // bytes, followed by the frame of the finishing program, whose only input are these results.
            unsafe {
                let mut from = results.add(done * self.result_size());
                let mut count = RESULTS.min(n - done);
                let to = if dense { self.bases[k].add((first + done) * self.output) } else { scratch };
                let mut once = false;
                if let Some((program, eval)) = &finish {
                    count = count.min(eval.tile_len);
                    let mut frame = eval.frame(scratch.add(padded(RESULTS * 8)));
                    eval.begin_segment(&mut frame, &[from]);
                    eval.run_tile(&mut frame, &[from], 0, count);
                    let slot = program.outputs[0].slot as usize;
                    once = eval.schedule.granularity[slot] == Granularity::Uniform;
                    from = frame.addresses[slot];
                }
                let mut one = 0u64;
                if let Some(store) = self.store.filter(|_| once) {
                    store.run((&raw mut one).cast(), from, 1);
                    from = (&raw mut one).cast();
                }
                match self.store {
                    _ if once => fill(to, from, self.output, count),
                    Some(store) => store.run(to, from, count),
                    None => std::ptr::copy_nonoverlapping(from, to, count * self.output),
                }
                if !dense {
                    scatter(to, self.output, &self.kept, k, self.bases[k], first + done, count);
                }
                done += count;
            }
        }
    }
}
