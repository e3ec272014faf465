//! `Conv`: convolutions and their derivatives, as matrix products with implicit im2col.
//!
//! A convolution is the product of the weights with the matrix of all windows. That matrix has one column per output
//! position and one row (k index) per pair of a channel and a tap. It is never stored.
//!
//! - `problem`: the shapes of a convolution, and the contract of its arrays;
//! - `stage`: *staged images*, which are copies with padding in a layout in which the offset of a window element is the
//!   sum of the offset of the window and the offset of the tap;
//! - `product`: outputs and input gradients, `weights × windows`. The windows are packed directly into the panels of
//!   the matrix product; products of one or two rows are computed without packing;
//! - `weight`: weight gradients, `windows × outputs`;
//! - `winograd`: outputs and both gradients for 3 × 3 windows over many channels, with fewer multiplications;
//! - `pairs`: convolutions of `bf16` with instructions that multiply pairs of factors;
//! - `tasks`: the distribution to threads;
//! - this file: dtypes and dispatch.
//!
//! The bits of a result depend only on the shapes, on the weights, on the values of the image that it belongs to (for a
//! weight gradient, of all images), and for `bf16` on the presence of AVX512-BF16 and of AMX.

mod pairs;
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
use pairs::ImageRuns;
use pellucid_ir::kernel::{Conv, ConvPart};
use pellucid_ir::{DType, Result};
use pellucid_runtime::threads::SharedPtr;
use pellucid_simd::Element;
use pellucid_simd::Isa;
use problem::{ConvProblem, ImageSizes};
use std::ops::Range;

/// Computes the [`ConvPart`] that `kernel` selects: the output y, or the gradient of x or w. `a` and `b` are the two
/// arrays among x, w and y that are read, in this order.
///
/// The operands satisfy the rule of the family.
///
/// # Errors
/// Returns an error if scratch memory cannot be allocated.
fn run_conv(kernel: &Conv, a: &Operand<'_>, b: &Operand<'_>, out: &Operand<'_>) -> Result<()> {
    let [x, _, y] = kernel.part.sorted([a, b], out);
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
    let sums = DenseArray::of_output(out, compute)?;
    let mut runs: ImageRuns = std::iter::once(0..problem.images).collect();
    if a.dtype == DType::BF16 {
        let factors = [DenseArray::of_input(a, DType::BF16)?, DenseArray::of_input(b, DType::BF16)?];
        let [first, second] = factors.each_ref().map(DenseArray::first);
        // SAFETY: the array contract. *shape*: the rule of the family has compared the shapes, and the arrays are
        // row-major with elements of these types. *exclusive* and *unchanged*: an output overlaps no input, and a
        // kernel owns its output while it runs. *isa*: `Isa::best` returns an instruction set that the processor
        // supports.
        runs = unsafe { pairs::compute(&problem, kernel.part, [first, second], sums.first())? };
        if runs.is_empty() {
            return sums.store();
        }
    }
    let (a, b) = (DenseArray::of_input(a, compute)?, DenseArray::of_input(b, compute)?);
    for images in &runs {
        let images = images.clone();
        match compute {
            DType::F32 => run_typed::<f32>(&problem, images, kernel.part, &a, &b, &sums)?,
            DType::F64 => run_typed::<f64>(&problem, images, kernel.part, &a, &b, &sums)?,
            DType::I32 => run_typed::<i32>(&problem, images, kernel.part, &a, &b, &sums)?,
            _ => run_typed::<i64>(&problem, images, kernel.part, &a, &b, &sums)?,
        }
    }
    sums.store()
}

impl CpuFamily for Conv {
    fn run(&self, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
        run_conv(self, &inputs[0], &inputs[1], &outputs[0])
    }
}

/// Computes one [`ConvPart`] of the images `images` for elements of type `T`, which is the dtype of the arrays. The
/// choice of the algorithm depends on the entire problem. For a weight gradient, `images` are all images.
///
/// # Errors
/// Returns an error if scratch memory cannot be allocated.
fn run_typed<T: Element>(
    problem: &ConvProblem,
    images: Range<usize>,
    part: ConvPart,
    a: &DenseArray<'_>,
    b: &DenseArray<'_>,
    out: &DenseArray<'_>,
) -> Result<()> {
    let image_of = |array: SharedPtr<T>, sizes: ImageSizes, image: usize| {
        SharedPtr(array.offset((image * sizes.channels * sizes.plane_len()) as isize))
    };
    let images_from =
        |[x, w, y]: [SharedPtr<T>; 3], image: usize| [image_of(x, problem.x, image), w, image_of(y, problem.y, image)];
    let arrays = images_from(part.sorted([a.first::<T>(), b.first()], out.first()), images.start);
    let run = &ConvProblem { images: images.len(), ..*problem };
    // SAFETY: the array contract. *shape*: the rule of the family has compared the shapes, and the arrays are row-major
    // with elements of type `T`; the images are among those of the arrays. *exclusive* and *unchanged*: an output
    // overlaps no input, and a kernel owns its output while it runs. *isa*: `Isa::best` returns an instruction set that
    // the processor supports.
    unsafe {
        // The transforms halve elements, so they are compiled for floats only.
        if !(const { T::HALF.is_some() } && winograd::is_applicable::<T>(problem)) {
            return compute_direct(run, part, arrays);
        }
        let not_finite = winograd::compute(run, part, arrays)?;
        if part == ConvPart::Weight {
            return if not_finite.is_empty() { Ok(()) } else { compute_direct(run, part, arrays) };
        }
        let one_image = ConvProblem { images: 1, ..*problem };
        // The array contract of one image follows from the contract of all images.
        not_finite.into_iter().try_for_each(|image| compute_direct(&one_image, part, images_from(arrays, image)))
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
