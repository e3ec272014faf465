//! Dense maps: every operand is contiguous and of full size, or one value. Nearly all maps are.
//!
//! One instruction runs as one call of its loop, a small map in one tile, any other over one axis.

use super::{UNIT, small};
use crate::program::loader::fill;
use crate::program::loops::{self, BinaryLoop, are_apart};
use crate::program::lower::{KernelFn, Prepared};
use crate::program::strided::{Axis, MANY};
use pellucid_gemm::Threads;
use pellucid_ir::Result;
use pellucid_ir::formula::Program;
use pellucid_ir::kernel::Params;
use pellucid_runtime::list::List;
use pellucid_runtime::scratch;
use pellucid_runtime::threads::{GRAIN, SharedPtr, split};
use std::ops::Range;

/// Values of the only instruction of a program that are made at once, to be streamed.
const STREAM_TILE: usize = 1024;

/// A dense operand.
#[derive(Clone, Copy)]
pub(crate) struct Dense {
    /// Its first element.
    pub(crate) at: *mut u8,
    /// It is one value, which stands for all.
    pub(crate) once: bool,
}

// SAFETY: a pointer is a number; whoever writes through it says why nobody else writes there.
unsafe impl Sync for Dense {}

impl Dense {
    /// An operand of full size.
    #[inline]
    pub(crate) fn full(at: *mut u8) -> Dense {
        Dense { at, once: false }
    }
}

/// Runs a program on `n` elements, of which there may be none.
///
/// # Safety
/// As [`run`].
#[inline]
pub(crate) unsafe fn dense(
    program: &Program,
    params: &Params,
    n: usize,
    inputs: &[Dense],
    outputs: &[Dense],
) -> Result<()> {
    let program = Prepared::of(program)?;
    if n > 0 {
        // SAFETY: the caller's promise.
        unsafe { run(program, params, n, inputs, outputs) };
    }
    Ok(())
}

/// Runs a program on several sets of operands, the inputs and outputs of one after those of the other, which the
/// threads share: set i has `sizes[i]` elements.
///
/// # Safety
/// As [`run`], for every set; none writes what another one touches.
pub(crate) unsafe fn several(program: &Program, params: &Params, sizes: &[usize], operands: &[Dense]) -> Result<()> {
    let program = Prepared::of(program)?;
    let (inputs, outputs) = (program.inputs.len(), program.outputs.len());
    let element = program.inputs.iter().map(|i| i.size).chain(program.outputs.iter().map(|o| o.size)).sum::<usize>();
    let bytes = sizes.iter().sum::<usize>() * element;
    // So many sets are worth a task; one that is worth several is split once more.
    let grain = (GRAIN * sizes.len() / bytes.max(1)).max(1);
    split(sizes.len(), grain, |range| {
        for (operands, &n) in operands.chunks_exact(inputs + outputs).zip(sizes).take(range.end).skip(range.start) {
            if n > 0 {
                let (inputs, outputs) = operands.split_at(inputs);
                // SAFETY: the caller's promise.
                unsafe { run(program, params, n, inputs, outputs) };
            }
        }
    });
    Ok(())
}

/// Whether outputs overlap no operand but an input that is at the same address.
fn are_allowed(program: &Prepared, n: usize, inputs: &[Dense], outputs: &[Dense]) -> bool {
    let run = |o: &Dense, size: usize| (o.at.cast_const(), if o.once { size } else { n * size });
    let read = inputs.iter().zip(&program.inputs).map(|(o, i)| run(o, i.size));
    let written = || outputs.iter().zip(&program.outputs).map(|(o, out)| run(o, out.size));
    let apart = |a: usize, to| written().enumerate().all(|(b, other)| a == b || are_apart(to, other));
    written().enumerate().all(|(a, to)| apart(a, to) && read.clone().all(|from| from.0 == to.0 || are_apart(from, to)))
}

/// Runs a program on `n` elements, at least one.
///
/// # Safety
/// The operands are what the program says, of `n` elements or one, outputs of `n`; they overlap only
/// where an input and an output are the same.
#[inline]
pub(crate) unsafe fn run(program: &Prepared, params: &Params, n: usize, inputs: &[Dense], outputs: &[Dense]) {
    debug_assert_eq!((inputs.len(), outputs.len()), (program.inputs.len(), program.outputs.len()), "operands");
    debug_assert!(are_allowed(program, n, inputs, outputs), "an output overlaps another operand");
    // SAFETY: the caller's promise.
    unsafe {
        if let Some(uniform) = program.constant
            && n < GRAIN / 16
        {
            let value = program.uniform_value(&program.uniforms[uniform], params, 0);
            return fill(outputs[0].at, (&raw const value).cast(), program.outputs[0].size, n);
        }
        if run_single(program, params, n, inputs, outputs)
            || n <= small::MOST && small::run(program, params, n, inputs, outputs)
        {
            return;
        }
    }
    let operands = || program.inputs.iter().map(|i| i.size).chain(program.outputs.iter().map(|o| o.size));
    let places = inputs.iter().chain(outputs);
    let steps = operands().zip(places.clone()).map(|(size, d)| if d.once || n == 1 { 0 } else { size as isize });
    let axis = Axis { len: n, steps: steps.collect() };
    super::run(program, params, &[axis], &places.map(|d| d.at).collect::<List<*mut u8, MANY>>(), Threads::Pool);
}

/// Runs a program of one instruction; false if it is not that simple.
#[inline]
unsafe fn run_single(program: &Prepared, params: &Params, n: usize, inputs: &[Dense], outputs: &[Dense]) -> bool {
    let Some(single) = &program.single else { return false };
    let mut cells = [0u64; 2];
    let mut from = [SharedPtr(std::ptr::null_mut::<u8>()); 2];
    // Bytes from one element to the next; 0 for a value that holds for all.
    let mut steps = [0; 2];
    for (k, arg) in single.args.iter().enumerate() {
        match *arg {
            SingleArg::None => {}
            SingleArg::Input(i, size) => {
                let x = &inputs[i as usize];
                steps[k] = if x.once && n > 1 { 0 } else { size as usize };
                from[k] = SharedPtr(x.at);
            }
            SingleArg::Uniform(u) => {
                cells[k] = program.uniform_value(&program.uniforms[u as usize], params, 0);
                from[k] = SharedPtr((&raw mut cells[k]).cast());
            }
        }
    }
    let to = outputs[0].at;
    let run: BinaryLoop = match (single.call, steps[0] != 0, steps[1] != 0) {
        (KernelFn::Unary(f), true, _) => {
            single.go(n, to, steps, from, |to, a, _, n| {
                // SAFETY: see `go`.
                unsafe { f.run(to, a, n) }
            });
            return true;
        }
        (KernelFn::Binary(forms), true, true) => forms[0],
        (KernelFn::Binary(forms), true, false) => forms[1],
        (KernelFn::Binary(forms), false, true) => forms[2],
        _ => return false,
    };
    single.go(n, to, steps, from, |to, a, b, n| {
        // SAFETY: see `go`.
        unsafe { run(to, a, b, n) }
    });
    true
}

/// An operand of the only instruction.
#[derive(Clone, Copy)]
pub(crate) enum SingleArg {
    None,
    /// The number of the input, and the bytes of an element.
    Input(u8, u8),
    Uniform(u8),
}

/// A program of one instruction that neither loads nor stores through a conversion.
pub(crate) struct Single {
    pub(crate) call: KernelFn,
    pub(crate) args: [SingleArg; 2],
    /// Bytes of a result.
    pub(crate) size: usize,
}

impl Single {
    /// Calls `run(to, a, b, n)` for all `n` elements, in as many pieces as threads are worth it.
    #[inline]
    fn go(
        &self,
        n: usize,
        to: *mut u8,
        steps: [usize; 2],
        from: [SharedPtr<u8>; 2],
        run: impl Fn(*mut u8, *const u8, *const u8, usize) + Sync,
    ) {
        if n < GRAIN / 16 {
            return run(to, from[0].get(), from[1].get(), n);
        }
        let to = SharedPtr(to);
        let stream = loops::streaming(n * self.size, || from.iter().any(|f| f.get() == to.get()));
        // The loop is called over ranges of contiguous operands of `n` elements, each range once.
        let piece = |range: Range<usize>| {
            let at = |p: &SharedPtr<u8>, step: usize, index: usize| p.at((index * step) as isize);
            let from = |index: usize| [at(&from[0], steps[0], index), at(&from[1], steps[1], index)];
            let Some(stream) = stream else {
                let [a, b] = from(range.start);
                return run(at(&to, self.size, range.start), a, b, range.len());
            };
            scratch::with(STREAM_TILE * self.size, |tile: *mut u8| {
                for first in range.clone().step_by(STREAM_TILE) {
                    let (n, [a, b]) = (STREAM_TILE.min(range.end - first), from(first));
                    run(tile, a, b, n);
                    // SAFETY: `n` results, and their place in the output, which no input shares.
                    unsafe { stream(at(&to, self.size, first), tile, n * self.size) };
                }
            });
            loops::store_fence();
        };
        let grain = GRAIN / (self.size + steps[0] + steps[1]).max(1);
        split(n.div_ceil(UNIT), grain.div_ceil(UNIT), |r| piece(r.start * UNIT..n.min(r.end * UNIT)));
    }
}
