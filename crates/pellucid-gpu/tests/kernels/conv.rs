//! Convolutions and their derivatives.

use super::harness::{PairedArray, Rng, TestLayout, Tolerance, device, run_both};
use pellucid_ir::DType;
use pellucid_ir::kernel::{Conv, ConvPart, Kernel, Window};

const PARTS: [ConvPart; 3] = [ConvPart::Output, ConvPart::Input, ConvPart::Weight];

/// The shapes of a convolution: images, channels, outputs and groups, the spatial lengths of x and the window.
#[derive(Clone, Copy, Debug)]
struct ConvShapes {
    images: usize,
    channels: usize,
    outputs: usize,
    groups: usize,
    x: [usize; 3],
    window: Window,
}

impl ConvShapes {
    /// Returns the shapes of x, w and y.
    fn shapes(&self) -> [Vec<usize>; 3] {
        let Window { size, stride, before, .. } = self.window;
        let y = [0, 1, 2].map(|a| {
            let padded = self.x[a] + 2 * before[a];
            padded.checked_sub(self.window.span(a) + 1).map_or(0, |rest| rest / stride[a] + 1)
        });
        [
            [&[self.images, self.channels][..], &self.x].concat(),
            [&[self.outputs, self.channels / self.groups][..], &size].concat(),
            [&[self.images, self.outputs][..], &y].concat(),
        ]
    }
}

/// Returns a case in one, two or three dimensions.
fn case(
    [images, channels, outputs, groups]: [usize; 4],
    x: [usize; 3],
    [size, stride, dilation, before]: [[usize; 3]; 4],
) -> ConvShapes {
    ConvShapes { images, channels, outputs, groups, x, window: Window { size, stride, dilation, before } }
}

fn check_conv(rng: &mut Rng, case: &ConvShapes, part: ConvPart, dtype: DType, plain: bool) {
    let Some(gpu) = device() else { return };
    let shapes = case.shapes();
    let arrays = shapes.each_ref().map(|shape| {
        let layout = if plain { TestLayout::Plain } else { TestLayout::ALL[rng.below(5)] };
        PairedArray::new(gpu, shape.as_slice(), dtype, layout, || rng.finite())
    });
    let inputs: Vec<&PairedArray> = (0..3).filter(|&k| k != part.output_index()).map(|k| &arrays[k]).collect();
    let output = &arrays[part.output_index()];
    let kernel = Kernel::Conv(Conv { window: case.window, groups: case.groups, part });
    run_both(gpu, &kernel, &inputs, &[output]).unwrap();
    let terms = match part {
        ConvPart::Output => shapes[1][1..].iter().product::<usize>(),
        ConvPart::Input => case.outputs * case.window.taps(),
        ConvPart::Weight => case.images * shapes[2][2..].iter().product::<usize>(),
    };
    // The elements are below 4. The errors of the CPU's Winograd convolution are relative to the largest elements.
    let rounding = if dtype == DType::F32 || dtype == DType::F64 { 1e-5 } else { 2f64.powi(-6) };
    let tolerance = match dtype.is_float() {
        true => Tolerance::Relative(rounding, terms as f64 * 16.0 * 2f64.powi(-22)),
        false => Tolerance::Bits,
    };
    output.assert_same(gpu, tolerance, &format!("{part:?} of {dtype}: {case:?}"));
}

#[test]
fn convolutions_match_the_cpu() {
    let rng = &mut Rng(61);
    let cases = [
        // One dimension, without and with padding.
        case([1, 1, 1, 1], [1, 1, 1], [[1, 1, 1], [1, 1, 1], [1, 1, 1], [0, 0, 0]]),
        case([2, 3, 4, 1], [1, 1, 9], [[1, 1, 3], [1, 1, 1], [1, 1, 1], [0, 0, 1]]),
        case([2, 4, 6, 2], [1, 1, 11], [[1, 1, 3], [1, 1, 2], [1, 1, 3], [0, 0, 2]]),
        // Two dimensions: strides, dilations, groups, a depthwise convolution, windows of one element.
        case([2, 3, 5, 1], [1, 7, 6], [[1, 3, 2], [1, 2, 1], [1, 1, 2], [0, 1, 1]]),
        case([1, 6, 6, 6], [1, 5, 5], [[1, 3, 3], [1, 1, 1], [1, 1, 1], [0, 1, 1]]),
        case([2, 4, 40, 1], [1, 4, 4], [[1, 1, 1], [1, 1, 1], [1, 1, 1], [0, 0, 0]]),
        case([1, 34, 3, 1], [1, 6, 6], [[1, 3, 3], [1, 3, 2], [1, 1, 1], [0, 2, 0]]),
        // Strides equal to the window size and larger, without and with padding.
        case([1, 2, 3, 1], [1, 8, 9], [[1, 4, 3], [1, 4, 3], [1, 1, 1], [0, 0, 0]]),
        case([2, 4, 2, 2], [1, 7, 11], [[1, 2, 4], [1, 3, 4], [1, 1, 1], [0, 1, 2]]),
        // Three dimensions.
        case([2, 2, 3, 1], [4, 3, 5], [[2, 3, 2], [2, 1, 1], [1, 1, 2], [1, 1, 1]]),
        // A window that is larger than the image, and empty arrays.
        case([1, 2, 3, 1], [1, 2, 2], [[1, 3, 3], [1, 1, 1], [1, 1, 1], [0, 0, 0]]),
        case([0, 2, 3, 1], [1, 3, 3], [[1, 2, 2], [1, 1, 1], [1, 1, 1], [0, 0, 0]]),
    ];
    for case in &cases {
        for part in PARTS {
            check_conv(rng, case, part, DType::F32, false);
            check_conv(rng, case, part, DType::F32, true);
        }
    }
    for part in PARTS {
        for dtype in DType::ALL.into_iter().filter(|&dtype| dtype != DType::Bool) {
            check_conv(rng, &cases[3], part, dtype, false);
        }
    }
}

#[test]
fn convolutions_in_large_tiles_match_the_cpu() {
    let rng = &mut Rng(63);
    let small_window = [[1, 3, 3], [1, 1, 1], [1, 1, 1], [0, 1, 1]];
    let with_gaps = [[2, 3, 2], [1, 2, 1], [1, 2, 3], [1, 2, 0]];
    let cases = [
        (ConvPart::Output, case([4, 4, 64, 1], [1, 16, 16], small_window)),
        (ConvPart::Input, case([4, 64, 4, 1], [1, 16, 16], small_window)),
        (ConvPart::Weight, case([2, 64, 128, 1], [1, 9, 8], small_window)),
        (ConvPart::Weight, case([1, 64, 128, 1], [1, 17, 18], small_window)),
        (ConvPart::Output, case([2, 6, 72, 2], [3, 30, 13], with_gaps)),
        (ConvPart::Input, case([2, 80, 6, 2], [3, 30, 13], with_gaps)),
        (ConvPart::Weight, case([2, 48, 160, 2], [3, 12, 9], with_gaps)),
        // A window with many taps, and one of a single element with padding.
        (ConvPart::Output, case([1, 2, 3, 1], [1, 1, 70], [[1, 1, 41], [1, 1, 1], [1, 1, 1], [0, 0, 7]])),
        (ConvPart::Output, case([1, 5, 64, 1], [1, 63, 63], [[1, 1, 1], [1, 2, 2], [1, 1, 1], [0, 1, 1]])),
    ];
    for (part, case) in &cases {
        for dtype in [DType::F32, DType::BF16] {
            check_conv(rng, case, *part, dtype, false);
        }
    }
}

#[test]
fn long_sums_of_a_weight_gradient_are_divided() {
    // 2 · 18² positions are three parts.
    let case = case([2, 2, 3, 1], [1, 18, 18], [[1, 3, 3], [1, 1, 1], [1, 1, 1], [0, 1, 1]]);
    for dtype in [DType::F32, DType::F16, DType::I32] {
        check_conv(&mut Rng(62), &case, ConvPart::Weight, dtype, false);
    }
}

#[test]
fn misfitting_convolutions_are_rejected() {
    let Some(gpu) = device() else { return };
    let array = |shape: &[usize], dtype| PairedArray::new(gpu, shape, dtype, TestLayout::Plain, || 1.into());
    let good = case([1, 2, 4, 2], [1, 5, 5], [[1, 3, 3], [1, 1, 1], [1, 1, 1], [0, 0, 0]]);
    let [x, w, y] = good.shapes();
    let zero_stride = Window { stride: [1, 0, 1], ..good.window };
    let wide = Window { before: [0, usize::MAX / 2, 0], ..good.window };
    let cases = [
        (good.window, 2, x.clone(), w.clone(), y.clone(), DType::F32, true),
        (good.window, 1, x.clone(), w.clone(), y.clone(), DType::F32, false),
        (good.window, 0, x.clone(), w.clone(), y.clone(), DType::F32, false),
        (good.window, 2, x.clone(), w.clone(), vec![1, 3, 1, 3, 3], DType::F32, false),
        (good.window, 2, x.clone(), vec![4, 1, 1, 3, 2], y.clone(), DType::F32, false),
        (good.window, 2, x[1..].to_vec(), w.clone(), y.clone(), DType::F32, false),
        (good.window, 2, x.clone(), w.clone(), y.clone(), DType::F64, false),
        (zero_stride, 2, x.clone(), w.clone(), y.clone(), DType::F32, false),
        (wide, 2, x, w, y, DType::F32, false),
    ];
    for (window, groups, x, w, y, dtype, is_valid) in cases {
        let kernel = Kernel::Conv(Conv { window, groups, part: ConvPart::Output });
        let [x, w, y] = [array(&x, DType::F32), array(&w, dtype), array(&y, DType::F32)];
        assert_eq!(run_both(gpu, &kernel, &[&x, &w], &[&y]).is_ok(), is_valid, "{kernel:?}");
    }
}
