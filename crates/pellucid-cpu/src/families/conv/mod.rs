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

use crate::dense::DenseArray;
use crate::family::CpuFamily;
use crate::operand::Operand;
use pellucid_ir::kernel::{Conv, ConvPart};
use pellucid_ir::{DType, Error, Result};
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
    let compute = match a.dtype {
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
    let (a, b) = (DenseArray::of_input(a, compute)?, DenseArray::of_input(b, compute)?);
    let out = DenseArray::of_output(out, compute)?;
    match compute {
        DType::F32 => run_typed::<f32>(&problem, kernel.part, &a, &b, &out)?,
        DType::F64 => run_typed::<f64>(&problem, kernel.part, &a, &b, &out)?,
        DType::I32 => run_typed::<i32>(&problem, kernel.part, &a, &b, &out)?,
        _ => run_typed::<i64>(&problem, kernel.part, &a, &b, &out)?,
    }
    out.store()
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
/// Returns an error unless the dtypes are those that [`Conv`] permits, the shapes fit the window and the groups, and stride and
/// dilation are positive.
fn check_conv(kernel: &Conv, a: &Operand<'_>, b: &Operand<'_>, out: &Operand<'_>) -> Result<()> {
    let [x, w, y] = sort_x_w_y(kernel.part, a, b, out);
    let (window, groups) = (&kernel.window, kernel.groups);
    let shapes = || [x.shape(), w.shape(), y.shape()];
    if !kernel.permits([a.dtype, b.dtype], out.dtype) {
        return Err(Error::dtypes("conv", [x.dtype, w.dtype, y.dtype], "takes numbers of one dtype; use to_dtype()"));
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
        let reason = format!(
            "stride and dilation must be positive, and the window must not overflow; got size {:?}, stride {:?} and \
             dilation {:?}",
            window.size, window.stride, window.dilation
        );
        return Err(Error::invalid("conv", reason));
    }
    Ok(())
}

/// Computes one [`ConvPart`] for elements of type `T`, which is the dtype of the arrays.
///
/// # Errors
/// Returns an error if scratch memory cannot be allocated.
fn run_typed<T: Element>(
    problem: &ConvProblem,
    part: ConvPart,
    a: &DenseArray<'_>,
    b: &DenseArray<'_>,
    out: &DenseArray<'_>,
) -> Result<()> {
    let arrays = sort_x_w_y(part, a.first::<T>(), b.first(), out.first());
    // SAFETY: the array contract. *shape*: `check_conv` has compared the shapes, and the arrays are row-major with
    // elements of type `T`. *exclusive* and *unchanged*: an output overlaps no input, and a kernel owns its
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
