//! `Conv`: convolutions and their derivatives, as matrix products with implicit im2col.
//!
//! A convolution is the product of the weights with the matrix of all windows. That matrix has one column per output
//! position and one row (k index) per pair of a channel and a tap. It is never stored.
//!
//! - `problem`: the shapes of a convolution, and the contract of its arrays;
//! - `stage`: *staged images*, which are copies with padding in a layout in which the offset of a window element is the
//!   sum of the offset of the window and the offset of the tap;
//! - `product`: outputs and input gradients, `weights × windows`. The windows are packed straight into the matrix
//!   product; products of one or two rows are computed without packing;
//! - `weight`: weight gradients, `windows × outputs`;
//! - `winograd`: outputs and both gradients for 3 × 3 windows over many channels, with fewer multiplications;
//! - `tasks`: the distribution to threads;
//! - this file: operand checks, dtypes and dispatch.
//!
//! The bits of a result depend only on the shapes and the values.

mod problem;
mod product;
mod stage;
#[cfg(test)]
mod sweep;
mod tasks;
#[cfg(test)]
mod tests;
mod weight;
mod winograd;

use crate::family::CpuFamily;
use crate::operand::Operand;
use crate::program;
use pellucid_ir::kernel::{Conv, ConvPart};
use pellucid_ir::{DType, Error, Layout, Result};
use pellucid_runtime::CpuBuffer;
use pellucid_runtime::list::List;
use pellucid_runtime::threads::SharedPtr;
use pellucid_simd::Element;
use pellucid_simd::Isa;
use problem::{ConvProblem, ImageSizes};

/// Returns the operands `a` and `b` and the result `out` of a [`ConvPart`] in the order x, w, y.
fn sort_x_w_y<A>(part: ConvPart, a: A, b: A, out: A) -> [A; 3] {
    match part {
        ConvPart::Output => [a, b, out],
        ConvPart::Input => [out, a, b],
        ConvPart::Weight => [a, out, b],
    }
}

/// Computes the [`ConvPart`] that `kernel` names: the output y, or the gradient of x or w. `a` and `b` are the two
/// arrays among x, w and y that are read, in this order.
///
/// The operands satisfy [`check_conv`].
///
/// # Errors
/// Returns an error if scratch memory cannot be allocated.
fn run_conv(kernel: &Conv, a: &Operand<'_>, b: &Operand<'_>, out: &Operand<'_>) -> Result<()> {
    let [x, _, y] = sort_x_w_y(kernel.part, a, b, out);
    if out.shape().size() == 0 {
        return Ok(());
    }
    let compute = match out.dtype {
        DType::F16 | DType::BF16 => DType::F32,
        DType::U8 | DType::I8 | DType::I16 => DType::I32,
        other => other,
    };
    let problem = ConvProblem {
        isa: Isa::best(),
        window: kernel.window,
        images: x.shape()[0],
        groups: kernel.groups,
        x: ImageSizes::from_shape(x.shape()),
        y: ImageSizes::from_shape(y.shape()),
    };
    with_dense_operands(compute, [a, b], out, |a, b, out| match compute {
        DType::F32 => run_typed::<f32>(&problem, kernel.part, a, b, out),
        DType::F64 => run_typed::<f64>(&problem, kernel.part, a, b, out),
        DType::I32 => run_typed::<i32>(&problem, kernel.part, a, b, out),
        _ => run_typed::<i64>(&problem, kernel.part, a, b, out),
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

/// Returns an error unless the operands fit [`run_conv`].
///
/// # Errors
/// Returns an error unless the dtypes are equal and numeric, the shapes fit the window and the groups, and stride and
/// dilation are positive.
fn check_conv(kernel: &Conv, a: &Operand<'_>, b: &Operand<'_>, out: &Operand<'_>) -> Result<()> {
    let [x, w, y] = sort_x_w_y(kernel.part, a, b, out);
    let (window, groups) = (&kernel.window, kernel.groups);
    let shapes = || [x.shape(), w.shape(), y.shape()];
    if x.dtype != w.dtype || x.dtype != y.dtype || x.dtype == DType::Bool {
        return Err(Error::dtypes("conv", [x.dtype, w.dtype, y.dtype], "x, w and y must have the same numeric dtype"));
    }
    let fits = shapes().iter().all(|s| s.rank() == 5)
        && x.shape()[0] == y.shape()[0]
        && w.shape()[0] == y.shape()[1]
        && groups > 0
        && w.shape()[0] % groups == 0
        && w.shape()[1].checked_mul(groups) == Some(x.shape()[1])
        && w.shape()[2..] == window.size;
    if !fits {
        let help = format!("x must be [n, c, ...], w [k, c/{groups}, {:?}] and y [n, k, ...]", window.size);
        return Err(Error::shapes("conv", shapes(), help));
    }
    // Coordinates are bounded, so their sums and differences cannot overflow.
    let limit = isize::MAX as usize / 8;
    let extent = |axis: usize| {
        let last = window.stride[axis].checked_mul(y.shape()[2 + axis])?;
        let taps = window.dilation[axis].checked_mul(window.size[axis])?;
        last.checked_add(taps)?.checked_add(window.before[axis])?.checked_add(x.shape()[2 + axis])
    };
    let is_valid = |axis: usize| {
        window.stride[axis] > 0 && window.dilation[axis] > 0 && extent(axis).is_some_and(|extent| extent < limit)
    };
    if !(0..3).all(is_valid) {
        let reason = format!("stride and dilation must be positive, and the window must not overflow; got {window:?}");
        return Err(Error::invalid("conv", reason));
    }
    Ok(())
}

/// Calls `compute(a, b, out)` with the addresses of row-major arrays of dtype `dtype`.
///
/// An operand that has this dtype and is row-major is passed itself, other operands are copied. A copied output is
/// converted back to `out` afterwards.
///
/// # Errors
/// Returns the error of `compute`, or an error if scratch memory cannot be allocated.
fn with_dense_operands(
    dtype: DType,
    inputs: [&Operand<'_>; 2],
    out: &Operand<'_>,
    compute: impl FnOnce(*mut u8, *mut u8, *mut u8) -> Result<()>,
) -> Result<()> {
    let layouts = [inputs[0], inputs[1], out].map(|o| Layout::contiguous(o.shape().clone()));
    let mut buffers: List<CpuBuffer, 3> = List::new();
    let mut dense_copy = |o: &Operand<'_>, i: usize| -> Result<Option<Operand<'_>>> {
        if o.dtype == dtype && o.layout.is_contiguous() {
            return Ok(None);
        }
        let buffer = CpuBuffer::scratch(o.shape().size().saturating_mul(dtype.size()))?;
        let base = buffer.ensure()?.as_ptr();
        buffers.push(buffer);
        Ok(Some(Operand { base, layout: &layouts[i], dtype }))
    };
    let copies = [dense_copy(inputs[0], 0)?, dense_copy(inputs[1], 1)?, dense_copy(out, 2)?];
    for (copy, input) in copies.iter().zip(inputs) {
        copy.as_ref().map_or(Ok(()), |copy| program::copy(input, copy))?;
    }
    let first_element = |o: &Operand<'_>| o.base.wrapping_add(o.layout.offset() * o.dtype.size());
    let [a, b, c] = [0, 1, 2].map(|i| first_element(copies[i].as_ref().unwrap_or([inputs[0], inputs[1], out][i])));
    compute(a, b, c)?;
    copies[2].as_ref().map_or(Ok(()), |copy| program::copy(copy, out))
}

/// Computes one [`ConvPart`] for elements of type `T`. The arrays are row-major.
///
/// # Errors
/// Returns an error if scratch memory cannot be allocated.
fn run_typed<T: Element>(problem: &ConvProblem, part: ConvPart, a: *mut u8, b: *mut u8, out: *mut u8) -> Result<()> {
    let (a, b, out) = (SharedPtr(a.cast::<T>()), SharedPtr(b.cast::<T>()), SharedPtr(out.cast::<T>()));
    let arrays = sort_x_w_y(part, a, b, out);
    // SAFETY: the array contract. *shape*: `check_conv` has compared the shapes, and `with_dense_operands` passes
    // row-major arrays of type `T`. *exclusive* and *unchanged*: an output overlaps no input, and a kernel owns its
    // output while it runs. *isa*: `Isa::best` returns an instruction set that the processor supports.
    unsafe {
        // The transforms halve elements, so they are compiled for floats only.
        if const { T::HALF.is_some() }
            && winograd::is_applicable::<T>(problem)
            && winograd::compute(problem, part, arrays)?
        {
            return Ok(());
        }
        compute_direct(problem, part, arrays)
    }
}

/// Computes one [`ConvPart`] by matrix products with windows.
///
/// # Safety
/// The [array contract](ConvProblem#the-array-contract) holds.
unsafe fn compute_direct<T: Element>(
    problem: &ConvProblem,
    part: ConvPart,
    [x, w, y]: [SharedPtr<T>; 3],
) -> Result<()> {
    // SAFETY: the called functions require the array contract, which is this function's contract.
    unsafe {
        match part {
            ConvPart::Output => product::compute_output(problem, x, w, y),
            ConvPart::Input => product::compute_input_gradient(problem, y, w, x),
            ConvPart::Weight => weight::compute_weight_gradient(problem, x, y, w),
        }
    }
}
