//! `Conv`: convolutions and their derivatives, as matrix products with windows that are never laid out.
//!
//! - `stage`: the images with their padding, so that an element of a window lies at the sum of two offsets;
//! - `product`: outputs and input gradients, `weights × windows`, packed straight into the matrix product, or, for one
//!   or two rows, without packing;
//! - `weight`: weight gradients, `windows × outputs`;
//! - `winograd`: all three for windows of 3 × 3 over many channels, by fewer multiplications;
//! - this file: what fits, and the dtypes.
//!
//! A window matrix has a lane for every position and a step of the depth for every channel and tap. The bits of a
//! result depend on the shapes and the values only.

mod product;
mod stage;
#[cfg(test)]
mod sweep;
#[cfg(test)]
mod tests;
mod weight;
mod winograd;

use crate::family::CpuFamily;
use crate::operand::Operand;
use crate::program;
use pellucid_ir::kernel::{Conv, ConvPart, Window};
use pellucid_ir::{DType, Error, Layout, Result, Shape};
use pellucid_runtime::CpuBuffer;
use pellucid_runtime::list::List;
use pellucid_runtime::threads::{self, SharedPtr};
use pellucid_simd::Element;
use pellucid_simd::Isa;

/// Channels and spatial lengths of the images of a batch.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    channels: usize,
    dims: [usize; 3],
}

impl Sizes {
    fn of(shape: &Shape) -> Sizes {
        Sizes { channels: shape[1], dims: [shape[2], shape[3], shape[4]] }
    }

    /// Elements of one channel.
    fn plane(&self) -> usize {
        self.dims.iter().product()
    }
}

/// What is convolved, whichever of the three arrays is computed.
#[derive(Clone, Copy, Debug)]
struct Problem {
    isa: Isa,
    window: Window,
    images: usize,
    groups: usize,
    x: Sizes,
    y: Sizes,
}

impl Problem {
    /// Channels of x, and of y, in one group.
    fn channels(&self) -> (usize, usize) {
        (self.x.channels / self.groups, self.y.channels / self.groups)
    }
}

/// x, w and y, of which two are given, in this order, and one is computed.
fn arrays<'o, 'a>(
    part: ConvPart,
    a: &'o Operand<'a>,
    b: &'o Operand<'a>,
    out: &'o Operand<'a>,
) -> [&'o Operand<'a>; 3] {
    match part {
        ConvPart::Output => [a, b, out],
        ConvPart::Input => [out, a, b],
        ConvPart::Weight => [a, out, b],
    }
}

/// Runs a convolution: of x, w and y, `a` and `b` are those that are given, in this order. They are what [`check_conv`] accepts.
fn run_conv(kernel: &Conv, a: &Operand<'_>, b: &Operand<'_>, out: &Operand<'_>) -> Result<()> {
    let [x, _, y] = arrays(kernel.part, a, b, out);
    if out.shape().size() == 0 {
        return Ok(());
    }
    let compute = match out.dtype {
        DType::F16 | DType::BF16 => DType::F32,
        DType::U8 | DType::I8 | DType::I16 => DType::I32,
        other => other,
    };
    let problem = Problem {
        isa: Isa::best(),
        window: kernel.window,
        images: x.shape()[0],
        groups: kernel.groups,
        x: Sizes::of(x.shape()),
        y: Sizes::of(y.shape()),
    };
    dense(compute, [a, b], out, |a, b, out| match compute {
        DType::F32 => run::<f32>(&problem, kernel.part, a, b, out),
        DType::F64 => run::<f64>(&problem, kernel.part, a, b, out),
        DType::I32 => run::<i32>(&problem, kernel.part, a, b, out),
        _ => run::<i64>(&problem, kernel.part, a, b, out),
    })
}

impl CpuFamily for Conv {
    fn check(&self, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
        check_conv(self, &inputs[0], &inputs[1], &outputs[0])
    }

    fn run(&self, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
        run_conv(self, &inputs[0], &inputs[1], &outputs[0])
    }
}

/// Refuses operands of [`run_conv`] that do not fit.
fn check_conv(kernel: &Conv, a: &Operand<'_>, b: &Operand<'_>, out: &Operand<'_>) -> Result<()> {
    let [x, w, y] = arrays(kernel.part, a, b, out);
    let (window, groups) = (&kernel.window, kernel.groups);
    let shapes = || [x.shape(), w.shape(), y.shape()];
    if x.dtype != w.dtype || x.dtype != y.dtype || x.dtype == DType::Bool {
        return Err(Error::dtypes("conv", [x.dtype, w.dtype, y.dtype], "all have one dtype, of numbers"));
    }
    let fits = shapes().iter().all(|s| s.rank() == 5)
        && x.shape()[0] == y.shape()[0]
        && w.shape()[0] == y.shape()[1]
        && groups > 0
        && w.shape()[0] % groups == 0
        && w.shape()[1].checked_mul(groups) == Some(x.shape()[1])
        && w.shape()[2..] == window.size;
    if !fits {
        let help = format!("x is [n, c, ...], w [k, c/{groups}, {:?}], y [n, k, ...]", window.size);
        return Err(Error::shapes("conv", shapes(), help));
    }
    // Positions must be numbers that can be added and subtracted without thought.
    let limit = isize::MAX as usize / 8;
    let reach = |a: usize| {
        let last = window.stride[a].checked_mul(y.shape()[2 + a])?;
        let taps = window.dilation[a].checked_mul(window.size[a])?;
        last.checked_add(taps)?.checked_add(window.before[a])?.checked_add(x.shape()[2 + a])
    };
    let sane = |a: usize| window.stride[a] > 0 && window.dilation[a] > 0 && reach(a).is_some_and(|r| r < limit);
    if (0..3).all(sane) { Ok(()) } else { Err(Error::invalid("conv", format!("an impossible window {window:?}"))) }
}

/// Calls `work` with row-major operands of dtype `compute`: they themselves, or copies.
fn dense(
    compute: DType,
    inputs: [&Operand<'_>; 2],
    out: &Operand<'_>,
    work: impl FnOnce(*mut u8, *mut u8, *mut u8) -> Result<()>,
) -> Result<()> {
    let layouts = [inputs[0], inputs[1], out].map(|o| Layout::contiguous(o.shape().clone()));
    let mut rooms: List<CpuBuffer, 3> = List::new();
    let mut own = |o: &Operand<'_>, i: usize| -> Result<Option<Operand<'_>>> {
        if o.dtype == compute && o.layout.is_contiguous() {
            return Ok(None);
        }
        let room = CpuBuffer::scratch(o.shape().size().saturating_mul(compute.size()))?;
        let base = room.ensure()?.as_ptr();
        rooms.push(room);
        Ok(Some(Operand { base, layout: &layouts[i], dtype: compute }))
    };
    let copies = [own(inputs[0], 0)?, own(inputs[1], 1)?, own(out, 2)?];
    for (copy, input) in copies.iter().zip(inputs) {
        copy.as_ref().map_or(Ok(()), |copy| program::copy(input, copy))?;
    }
    let first = |o: &Operand<'_>| o.base.wrapping_add(o.layout.offset() * o.dtype.size());
    let [a, b, c] = [0, 1, 2].map(|i| first(copies[i].as_ref().unwrap_or([inputs[0], inputs[1], out][i])));
    work(a, b, c)?;
    copies[2].as_ref().map_or(Ok(()), |copy| program::copy(copy, out))
}

/// Computes one of the three arrays from the two others; all are row-major.
fn run<T: Element>(problem: &Problem, part: ConvPart, a: *mut u8, b: *mut u8, out: *mut u8) -> Result<()> {
    let (a, b, out) = (SharedPtr(a.cast::<T>()), SharedPtr(b.cast::<T>()), SharedPtr(out.cast::<T>()));
    let arrays = match part {
        ConvPart::Output => [a, b, out],
        ConvPart::Input => [out, a, b],
        ConvPart::Weight => [a, out, b],
    };
    // SAFETY: `check` has seen that the arrays have the shapes of the problem.
    unsafe {
        if winograd::applies::<T>(problem) && winograd::run(problem, part, arrays)? {
            Ok(())
        } else {
            direct(problem, part, arrays)
        }
    }
}

/// The same by products with windows.
///
/// # Safety
/// The arrays have the shapes of the problem, row-major; nobody else touches the one that is computed.
unsafe fn direct<T: Element>(problem: &Problem, part: ConvPart, [x, w, y]: [SharedPtr<T>; 3]) -> Result<()> {
    // SAFETY: the caller's.
    unsafe {
        match part {
            ConvPart::Output => product::output(problem, x, w, y),
            ConvPart::Input => product::input(problem, y, w, x),
            ConvPart::Weight => weight::weight(problem, x, y, w),
        }
    }
}

/// Multiply-adds that are worth a task of their own.
const TASK: usize = 1 << 19;

/// Runs `work(worker, i)` for every number below `count`, each of so many multiply-adds, on several threads if it is
/// worth it. A worker is below [`worker_ids`], and one thread's at a time.
fn each(count: usize, cost: usize, work: impl Fn(usize, usize) -> Result<()> + Sync) -> Result<()> {
    if worker_ids(count, cost) == 1 {
        return (0..count).try_for_each(|i| work(0, i));
    }
    threads::try_each(count, (TASK / cost.max(1)).clamp(1, count), work)
}

/// How many worker_ids there are for such work.
fn worker_ids(count: usize, cost: usize) -> usize {
    if count < 2 || cost.saturating_mul(count) < 2 * TASK { 1 } else { threads::worker_ids(count) }
}
