//! Dense maps: every operand is contiguous and of full size, or one value. Nearly all maps are dense.
//!
//! A program of one instruction is one call of its loop, a small map is one tile, and any other map runs over one axis.

use super::dense_operand::DensePtr;
use super::{SPLIT_UNIT, small};
use crate::program::fuse::fused_instr;
use crate::program::loader::fill;
use crate::program::loops::{self, BinaryLoop, FusedOperands, are_apart};
use crate::program::prepared::{KernelFn, PreparedProgram, SingleArg, SingleInstr};
use crate::strided::{INLINE_OPERANDS, StridedAxis};
use pellucid_gemm::Threads;
use pellucid_ir::Result;
use pellucid_ir::formula::Program;
use pellucid_ir::kernel::Params;
use pellucid_runtime::list::List;
use pellucid_runtime::scratch;
use pellucid_runtime::threads::{GRAIN, SharedPtr, parallel_ranges};
use std::ops::Range;

/// The number of results of a single instruction that are computed in scratch at a time, and then written by
/// non-temporal stores.
const STREAM_TILE: usize = 1024;

/// Runs a program on `n` elements; `n` may be 0.
///
/// # Errors
/// Returns the error of lowering if the program is not supported.
///
/// # Safety
/// The clauses *Operands* and *Aliasing* of [`run_dense`] hold.
#[inline]
pub(crate) unsafe fn dense(
    program: &Program,
    params: &Params,
    n: usize,
    inputs: &[DensePtr],
    outputs: &[DensePtr],
) -> Result<()> {
    let program = PreparedProgram::for_program(program)?;
    if n > 0 {
        // SAFETY: the caller guarantees *Operands* and *Aliasing* (this function's contract), and `n > 0`.
        unsafe { run_dense(program, params, n, inputs, outputs) };
    }
    Ok(())
}

/// Runs a program on several sets of operands, which are distributed to the threads.
///
/// Set i has `sizes[i]` elements. `operands` has the inputs and outputs of the first set, then of the second set, and
/// so on.
///
/// # Errors
/// Returns the error of lowering if the program is not supported.
///
/// # Safety
/// - *Operands*, *Aliasing*: the clauses of these names of [`run_dense`] hold for every set.
/// - *Sets*: the outputs of one set overlap no operand of another.
pub(crate) unsafe fn dense_batch(
    program: &Program,
    params: &Params,
    sizes: &[usize],
    operands: &[DensePtr],
) -> Result<()> {
    let program = PreparedProgram::for_program(program)?;
    let (inputs, outputs) = (program.inputs.len(), program.outputs.len());
    let element = program.inputs.iter().map(|i| i.size).chain(program.outputs.iter().map(|o| o.size)).sum::<usize>();
    let bytes = sizes.iter().sum::<usize>() * element;
    // The average number of sets that make up a task. A set that is larger than a task is split again.
    let grain = (GRAIN * sizes.len() / bytes.max(1)).max(1);
    parallel_ranges(sizes.len(), grain, |range| {
        for (operands, &n) in operands.chunks_exact(inputs + outputs).zip(sizes).take(range.end).skip(range.start) {
            if n > 0 {
                let (inputs, outputs) = operands.split_at(inputs);
                // SAFETY: by this function's contract, *Operands* and *Aliasing* hold for this set, and *Sets* excludes
                // data races with the sets of other threads.
                unsafe { run_dense(program, params, n, inputs, outputs) };
            }
        }
    });
    Ok(())
}

/// Returns true if every output is disjoint from all other operands, except inputs at the same address.
fn satisfies_aliasing(program: &PreparedProgram, n: usize, inputs: &[DensePtr], outputs: &[DensePtr]) -> bool {
    let extent = |o: &DensePtr, size: usize| (o.address.cast_const(), if o.once { size } else { n * size });
    let read = inputs.iter().zip(&program.inputs).map(|(o, i)| extent(o, i.size));
    let written = || outputs.iter().zip(&program.outputs).map(|(o, out)| extent(o, out.size));
    let is_disjoint = |a: usize, to| written().enumerate().all(|(b, other)| a == b || are_apart(to, other));
    written()
        .enumerate()
        .all(|(a, to)| is_disjoint(a, to) && read.clone().all(|from| from.0 == to.0 || are_apart(from, to)))
}

/// Runs a program on `n > 0` elements.
///
/// # Safety
/// - *Operands*: there is one operand for each input and output of the program, aligned to its dtype. Inputs are valid
///   for reads of `n` elements, or of one with `once`; outputs are valid for writes of `n` elements.
/// - *Aliasing*: an output overlaps no other operand, except an input of the same address and extent.
#[inline]
pub(crate) unsafe fn run_dense(
    program: &PreparedProgram,
    params: &Params,
    n: usize,
    inputs: &[DensePtr],
    outputs: &[DensePtr],
) {
    debug_assert_eq!(
        (inputs.len(), outputs.len()),
        (program.inputs.len(), program.outputs.len()),
        "the operands must match the inputs and outputs of the program"
    );
    debug_assert!(
        satisfies_aliasing(program, n, inputs, outputs),
        "an output overlaps another output, or an input with another address"
    );
    // SAFETY: the output of a constant program is valid for `n` elements (*Operands* of this function's contract), and
    // the value has at least the size of an element. The contracts of `run_single` and `run_one_tile` are *Operands*
    // and *Aliasing*.
    unsafe {
        if let Some(uniform) = program.constant
            && n < GRAIN / 16
        {
            let value = program.uniform_value(&program.uniforms[uniform], params, 0);
            return fill(outputs[0].address, (&raw const value).cast(), program.outputs[0].size, n);
        }
        if run_single(program, params, n, inputs, outputs)
            || n <= small::MAX_LEN && small::run_one_tile(program, params, n, inputs, outputs)
        {
            return;
        }
    }
    let sizes = || program.inputs.iter().map(|i| i.size).chain(program.outputs.iter().map(|o| o.size));
    let operands = inputs.iter().chain(outputs);
    let strides = sizes().zip(operands.clone()).map(|(size, d)| if d.once || n == 1 { 0 } else { size as isize });
    let axis = StridedAxis { len: n, strides: strides.collect() };
    let bases = operands.map(|d| d.address).collect::<List<*mut u8, INLINE_OPERANDS>>();
    super::map_over_axes(program, params, &[axis], &bases, Threads::Pool);
}

/// Runs a program of one instruction. Returns false, without writing anything, if the program has more instructions or
/// its loop lacks the form for these operands.
///
/// # Safety
/// The clauses *Operands* and *Aliasing* of [`run_dense`] hold.
#[inline]
unsafe fn run_single(
    program: &PreparedProgram,
    params: &Params,
    n: usize,
    inputs: &[DensePtr],
    outputs: &[DensePtr],
) -> bool {
    let Some(single) = &program.single else { return false };
    let mut cells = [0u64; 2];
    let mut from = [SharedPtr(std::ptr::null_mut::<u8>()); 2];
    // The distance in bytes between two elements of each operand; 0 for a single value.
    let mut strides = [0; 2];
    for (k, arg) in single.args.iter().enumerate() {
        match *arg {
            SingleArg::None => {}
            SingleArg::Input(i, size) => {
                let x = &inputs[i as usize];
                strides[k] = if x.once && n > 1 { 0 } else { size as usize };
                from[k] = SharedPtr(x.address);
            }
            SingleArg::Uniform(u) => {
                cells[k] = program.uniform_value(&program.uniforms[u as usize], params, 0);
                from[k] = SharedPtr((&raw mut cells[k]).cast());
            }
        }
    }
    let to = outputs[0].address;
    let overwritten = (0..2).find(|&k| strides[k] != 0 && from[k].get() == to);
    if let (Some(k), Some((opcode, chain))) = (overwritten, single.in_place)
        && let Some(instr) = fused_instr(opcode, k, [strides[1 - k] != 0; 2])
    {
        single.for_each_piece(n, to, strides, from, |into, a, b, n| {
            let (chain_start, other) = if k == 0 { (a, b) } else { (b, a) };
            // SAFETY: `for_each_piece` passes pieces of the operands, which satisfy the contract of `ChainLoop` by
            // *Operands* and *Aliasing* of this function. There is no sum and no non-temporal store.
            unsafe {
                let link =
                    FusedOperands { chain_start, instr, operands: [other; 2], into, non_temporal: false, skip: None };
                chain(&[link], std::ptr::null_mut(), n);
            }
        });
        return true;
    }
    let binary: BinaryLoop = match (single.kernel, strides[0] != 0, strides[1] != 0) {
        (KernelFn::Unary(f), true, _) => {
            single.for_each_piece(n, to, strides, from, |to, a, _, n| {
                // SAFETY: `for_each_piece` passes pieces of the operands, or scratch instead of the output, which
                // satisfy the loop's contract by *Operands* and *Aliasing* of this function.
                unsafe { f.run(to, a, n) }
            });
            return true;
        }
        (KernelFn::Binary(forms), true, true) => forms[0],
        (KernelFn::Binary(forms), true, false) => forms[1],
        (KernelFn::Binary(forms), false, true) => forms[2],
        _ => return false,
    };
    single.for_each_piece(n, to, strides, from, |to, a, b, n| {
        // SAFETY: `for_each_piece` passes pieces of the operands, or scratch instead of the output, which satisfy the
        // loop's contract by *Operands* and *Aliasing* of this function. The form was selected for operands with these
        // strides.
        unsafe { binary.run(to, a, b, n) }
    });
    true
}

impl SingleInstr {
    /// Calls `run(to, a, b, n)` for pieces that cover all `n` elements. Large maps are distributed to threads.
    ///
    /// With non-temporal stores, `to` is scratch that is then copied to the output.
    #[inline]
    fn for_each_piece(
        &self,
        n: usize,
        to: *mut u8,
        strides: [usize; 2],
        from: [SharedPtr<u8>; 2],
        run: impl Fn(*mut u8, *const u8, *const u8, usize) + Sync,
    ) {
        if n < GRAIN / 16 {
            return run(to, from[0].get(), from[1].get(), n);
        }
        let to = SharedPtr(to);
        let stream = loops::streaming(n * self.size, || from.iter().any(|f| f.get() == to.get()));
        let run_range = |range: Range<usize>| {
            let element = |p: &SharedPtr<u8>, stride: usize, index: usize| p.offset((index * stride) as isize);
            let from = |index: usize| [element(&from[0], strides[0], index), element(&from[1], strides[1], index)];
            let Some(stream) = stream else {
                let [a, b] = from(range.start);
                return run(element(&to, self.size, range.start), a, b, range.len());
            };
            scratch::with_buffer(STREAM_TILE * self.size, |tile: *mut u8| {
                for first in range.clone().step_by(STREAM_TILE) {
                    let (n, [a, b]) = (STREAM_TILE.min(range.end - first), from(first));
                    run(tile, a, b, n);
                    let next = from(first + n).map(<*mut u8>::cast_const);
                    // SAFETY: the scratch holds the `n` results that `run` wrote, and elements `first..first + n` of
                    // the output are valid for writes. The two are disjoint.
                    unsafe { stream(element(&to, self.size, first), tile, n * self.size, next) };
                }
            });
            loops::store_fence();
        };
        let grain = GRAIN / (self.size + strides[0] + strides[1]).max(1);
        let run_units = |r: Range<usize>| run_range(r.start * SPLIT_UNIT..n.min(r.end * SPLIT_UNIT));
        parallel_ranges(n.div_ceil(SPLIT_UNIT), grain.div_ceil(SPLIT_UNIT), run_units);
    }
}
