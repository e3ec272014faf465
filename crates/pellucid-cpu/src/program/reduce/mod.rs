//! `Reduce`: a program's values, reduced over axes, and a program on the result.
//!
//! The reduced axes are one sequence in row-major order, reduced in the order of [`crate::program::fold`]. It is
//! walked row by row where the reduced axes are innermost in memory (`rows`), and many sequences at
//! once where a kept axis is (`columns`); which, is a question of speed alone.

mod arg;
mod columns;
mod quick;
mod rows;

use crate::operand::Operand;
use crate::program::evaluate::Evaluator;
use crate::program::fold::FoldKernel;
use crate::program::loader::{fill, scatter};
use crate::program::loops::{self, UnaryLoop};
use crate::program::lower::Prepared;
use crate::program::row::common_shape;
use crate::program::schedule::Granularity;
use crate::program::strided::{self, StridedAxes, StridedAxis};
use arg::Arg;
use pellucid_ir::kernel::{Params, Reduce, ReduceOp};
use pellucid_ir::{Compute, Error, Result};
use pellucid_runtime::list::List;
use pellucid_runtime::scratch::padded;
use pellucid_simd::Isa;

/// Results that are finished and stored together.
const RESULTS: usize = 512;

/// What happens to the values.
#[derive(Clone, Copy)]
enum Action {
    Fold(FoldKernel),
    Arg(Arg),
}

/// A reduction, resolved.
struct Job<'a> {
    program: &'a Prepared,
    params: &'a Params,
    action: Action,
    /// From the program's type to the accumulator's, if they differ.
    widen: Option<UnaryLoop>,
    /// Bytes of a value of the accumulator.
    size: usize,
    /// The kept axes, for the inputs and then the output, in the order of the output's memory.
    kept: StridedAxes,
    /// The reduced axes, for the inputs.
    reduced: StridedAxes,
    /// Where the inputs and the output begin.
    bases: List<*mut u8, 8>,
    /// Values of each sequence, and how many sequences there are.
    length: usize,
    count: usize,
    finish: Option<(&'a Prepared, &'a Params)>,
    /// From the type of the finished result to that of the output, if they differ.
    store: Option<UnaryLoop>,
    /// Bytes of an element of the output.
    output: usize,
}

// SAFETY: threads work on disjoint sequences, whose results lie in disjoint memory, or write partial
// results to disjoint places.
unsafe impl Sync for Job<'_> {}

/// Runs a reduction.
pub(crate) fn run_reduce(kernel: &Reduce, inputs: &[Operand<'_>], output: &Operand<'_>) -> Result<()> {
    let name = kernel.program.name;
    let program = Prepared::for_program(&kernel.program)?;
    let finish = kernel.finish.as_deref().map(|f| Ok::<_, Error>((Prepared::for_program(f)?, f))).transpose()?;
    let first = finish.as_ref().map(|(p, _)| *p);
    if let [x] = inputs
        && quick::run(kernel, program, first, x, output)
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
    strided::reorder(&mut kept, inputs.len(), &mut bases);
    strided::merge(&mut kept);
    strided::merge(&mut reduced);

    let isa = Isa::best();
    let value = kernel.program.outputs[0].compute;
    let wanted = finish.map_or(output.dtype.compute(), |(_, f)| f.inputs[0].compute);
    let unsupported =
        || Error::dtypes(name, [value.storage()], format!("{:?} is not defined for it; cast it", kernel.op));
    let (accumulator, result, action) = match (arg_of(kernel.op), fold_of(kernel.op)) {
        (Some(largest), _) => {
            let compute = if value == Compute::Mask { Compute::I32 } else { value };
            (compute, Compute::I64, Action::Arg(Arg::new(largest, compute).ok_or_else(unsupported)?))
        }
        (_, Some(op)) => {
            // Integers that are summed into a wider type are widened first.
            let adds = matches!(kernel.op, ReduceOp::Sum | ReduceOp::Prod);
            let compute = match (value, wanted) {
                (Compute::Mask, Compute::Mask) if adds => Compute::I32,
                (Compute::Mask, wider) if adds => wider,
                (Compute::I32, Compute::I64) if adds => Compute::I64,
                _ => value,
            };
            (compute, compute, Action::Fold(FoldKernel::new(op, compute).ok_or_else(unsupported)?))
        }
        _ => return Err(unsupported()),
    };
    let finished = match finish {
        Some((_, f)) if f.inputs[0].storage != result.storage() => {
            return Err(Error::dtypes(f.name, [result.storage()], "the finishing program takes another type"));
        }
        Some((_, f)) => f.outputs[0].compute,
        None => result,
    };
    let job = Job {
        program,
        params: &kernel.params,
        action,
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
    if job.prefers_columns(inputs.len()) {
        job.columns()
    } else {
        job.rows()
    }
    Ok(())
}

fn arg_of(op: ReduceOp) -> Option<bool> {
    match op {
        ReduceOp::ArgMax => Some(true),
        ReduceOp::ArgMin => Some(false),
        _ => None,
    }
}

fn fold_of(op: ReduceOp) -> Option<loops::Fold> {
    match op {
        ReduceOp::Sum => Some(loops::Fold::Sum),
        ReduceOp::Prod => Some(loops::Fold::Prod),
        ReduceOp::Max => Some(loops::Fold::Max),
        ReduceOp::Min => Some(loops::Fold::Min),
        ReduceOp::Any => Some(loops::Fold::Or),
        ReduceOp::All => Some(loops::Fold::And),
        ReduceOp::ArgMax | ReduceOp::ArgMin => None,
    }
}

impl Job<'_> {
    /// True if a step along the innermost kept axis is shorter, in memory, than one along the
    /// innermost reduced axis.
    fn prefers_columns(&self, inputs: usize) -> bool {
        let (Some(kept), Some(reduced)) = (self.kept.last(), self.reduced.last()) else { return false };
        let reach = |a: &StridedAxis| a.strides[..inputs].iter().map(|s| s.unsigned_abs()).sum::<usize>();
        self.length > 0 && kept.len >= 4 && reach(kept) > 0 && reach(kept) < reach(reduced)
    }

    /// The bytes of work for one value.
    fn work(&self) -> usize {
        self.program.inputs.iter().map(|i| i.size).sum::<usize>() + 2 * self.program.steps.len()
    }

    /// The type of results, in bytes.
    fn result_size(&self) -> usize {
        match self.action {
            Action::Fold(fold) => fold.size,
            Action::Arg(_) => 8,
        }
    }

    /// Bytes of scratch that [`Job::emit`] needs.
    fn emit_scratch(&self) -> usize {
        let axes = self.finish_axes();
        let finish = self.finish.map_or(0, |(f, p)| Evaluator::new(f, p, &axes, |_| false, |_| false).scratch_bytes());
        padded(RESULTS * 8) + padded(finish)
    }

    /// The index space of results that are finished together.
    fn finish_axes(&self) -> [StridedAxis; 1] {
        let size = self.result_size() as isize;
        [StridedAxis { len: RESULTS, strides: [size].into_iter().collect() }]
    }

    /// Finishes results number `first..first + n` of the kept space and stores them.
    ///
    /// # Safety
    /// `results` holds `n` of them, and `scratch` has [`Job::emit_scratch`] bytes.
    unsafe fn emit(&self, results: *mut u8, first: usize, n: usize, scratch: *mut u8) {
        let k = self.program.inputs.len();
        let axes = self.finish_axes();
        let dense = strided::access_pattern(&self.kept, k, self.output) == strided::AccessPattern::Dense;
        let finish = self.finish.map(|(f, p)| (f, Evaluator::new(f, p, &axes, |_| false, |_| false)));
        let mut done = 0;
        while done < n {
            // SAFETY: the results from `done` on, and the elements of the output that they are.
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
