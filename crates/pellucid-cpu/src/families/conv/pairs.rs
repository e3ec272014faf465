//! Convolutions of `bf16` arrays on processors that multiply pairs of factors.
//!
//! A pair consists of the elements of two neighbouring channels or, for a weight gradient, of two consecutive images.
//! The convolution is computed as a direct convolution of arrays of pairs, with half as many channels or images. An odd
//! number of channels or images is padded with zeros.

use super::compute_direct;
use super::problem::{ConvProblem, ImageSizes};
use super::product::MAX_UNPACKED_ROWS;
use super::weight::MAX_UNPACKED_COLUMNS;
use crate::factor_groups::PairMatrices;
use pellucid_gemm::{Strided, pair_isa};
use pellucid_ir::Result;
use pellucid_ir::kernel::ConvPart;
use pellucid_runtime::list::List;
use pellucid_runtime::threads::SharedPtr;
use pellucid_simd::math::half::BF16;
use std::ops::Range;

/// The axis of an array along which two elements form a pair: the product of the lengths of the axes before it, its
/// length, and the product of the lengths of the axes after it.
type PairedAxis = (usize, usize, usize);

/// Runs of consecutive images.
pub(super) type ImageRuns = List<Range<usize>, 4>;

/// Computes one [`ConvPart`] in `f32` from pairs. `a` and `b` are the two arrays that are read.
///
/// Returns the images whose results are not computed: those with factors whose products may be subnormal, which the
/// instruction does not support. For a weight gradient, to which all images contribute, it returns all images or none.
/// No image is computed if the processor has no products of pairs, if the factors are not packed into panels, or if the
/// paired axis is shorter than 2. Whether an image is computed depends on its own values, on the weights and on the
/// shapes.
///
/// # Errors
/// Returns an error if scratch memory cannot be allocated.
///
/// # Safety
/// The [array contract](ConvProblem#the-array-contract) holds.
pub(super) unsafe fn compute(
    problem: &ConvProblem,
    part: ConvPart,
    [a, b]: [SharedPtr<BF16>; 2],
    out: SharedPtr<f32>,
) -> Result<ImageRuns> {
    let &ConvProblem { groups, images, x, y, .. } = problem;
    let all_images = || Ok(std::iter::once(0..images).collect());
    let ((cin, cout), taps) = (problem.group_channels(), problem.window.taps());
    let [x_positions, y_positions] = [x, y].map(|sizes| images * sizes.plane_len());
    let halved = |sizes: ImageSizes, channels: usize| ImageSizes { channels: groups * channels.div_ceil(2), ..sizes };
    // The shape (m, n, k) of the entire product determines the instruction set, which is then the same for all blocks.
    let (is_packed, product, axes, pair_problem): (bool, _, [PairedAxis; 2], _) = match part {
        ConvPart::Output => (
            cout > MAX_UNPACKED_ROWS,
            (cout, y_positions, cin * taps),
            [(images * groups, cin, x.plane_len()), (groups * cout, cin, taps)],
            ConvProblem { x: halved(x, cin), ..*problem },
        ),
        ConvPart::Input => (
            cin > MAX_UNPACKED_ROWS,
            (cin, x_positions, cout * taps),
            [(groups, cout, cin * taps), (images * groups, cout, y.plane_len())],
            ConvProblem { y: halved(y, cout), ..*problem },
        ),
        ConvPart::Weight => (
            cout > MAX_UNPACKED_COLUMNS,
            (cin * taps, cout, y_positions),
            [(1, images, x.channels * x.plane_len()), (1, images, y.channels * y.plane_len())],
            ConvProblem { images: images.div_ceil(2), ..*problem },
        ),
    };
    if !is_packed || axes[0].1 < 2 || !problem.isa.has_bf16_products() {
        return all_images();
    }
    // For an output or an input gradient, the array of the images has a separate `FactorRange` for each image.
    let sets = match part {
        ConvPart::Output => [groups, axes[1].0],
        ConvPart::Input => [axes[0].0, groups],
        ConvPart::Weight => [1; 2],
    };
    // SAFETY: the arrays have the axes of their shapes and are valid for reads (array contract, *shape*).
    let [a, b] = unsafe { [pair_axis(a, axes[0], sets[0])?, pair_axis(b, axes[1], sets[1])?] };
    let (by_image, common) = if part == ConvPart::Input { (&b.ranges, a.range()) } else { (&a.ranges, b.range()) };
    let mut others = ImageRuns::new();
    for image in 0..images {
        let range = by_image[if part == ConvPart::Weight { 0 } else { image }];
        match others.last_mut() {
            _ if range.excludes_subnormals(common) => {}
            Some(run) if run.end == image => run.end += 1,
            _ => others.push(image..image + 1),
        }
    }
    if others.first().is_some_and(|run| run.len() == images) {
        return Ok(others);
    }
    let pair_problem = ConvProblem { isa: pair_isa(problem.isa, product), ..pair_problem };
    let arrays = part.sorted([a.data(), b.data()], SharedPtr(out.get().cast()));
    // SAFETY: the array contract for the problem of pairs. *shape*: the pairs have the shapes of the problem, in which
    // the paired axis has half the length. *isa*: `pair_isa` returns `isa`, or an instruction set of this
    // processor. The other clauses are in this function's contract.
    unsafe { compute_direct(&pair_problem, part, arrays)? };
    Ok(others)
}

/// Converts an array to pairs along an axis. The result has one [`FactorRange`](pellucid_gemm::FactorRange) for each
/// `set` consecutive outer indices.
///
/// # Errors
/// Returns an error if memory cannot be allocated.
///
/// # Safety
/// `data` is valid for reads of an array with these axes, which no thread writes during the call.
unsafe fn pair_axis(data: SharedPtr<BF16>, (outer, len, inner): PairedAxis, set: usize) -> Result<PairMatrices> {
    let matrix = |i: usize| {
        let data = data.offset((i * len * inner) as isize).cast_const();
        Strided { data, lane: 1, depth: inner as isize }
    };
    // SAFETY: matrix i has `inner` lanes of `len` elements, which `data` contains (this function's contract).
    unsafe { PairMatrices::new((outer, set), (inner, len), matrix) }
}
