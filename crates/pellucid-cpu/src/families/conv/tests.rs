use crate::testing::{self, TestLayout, numbers};
use crate::with_threads;
use pellucid_ir::kernel::{Conv, ConvPart, Kernel, Window};
use pellucid_ir::{DType, Error, Shape};

/// A convolution with its sizes.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConvCase {
    /// The number of images of the batch.
    pub(super) images: usize,
    /// The number of groups.
    pub(super) groups: usize,
    /// The numbers of input channels and of output channels of a group.
    pub(super) channels: [usize; 2],
    /// The spatial lengths of x.
    pub(super) x: [usize; 3],
    /// The padding after the image along every axis.
    pub(super) after: [usize; 3],
    /// The window, with the padding before the image.
    pub(super) window: Window,
}

impl ConvCase {
    /// Returns the shapes of x, w and y.
    pub(super) fn shapes(&self) -> [Shape; 3] {
        let Window { size: k, stride, before, .. } = self.window;
        let y = [0, 1, 2].map(|a| (self.x[a] + before[a] + self.after[a] - self.window.span(a) - 1) / stride[a] + 1);
        let [c, o] = self.channels;
        let image_shape =
            |channels: usize, d: [usize; 3]| Shape::from([self.images, channels * self.groups, d[0], d[1], d[2]]);
        [image_shape(c, self.x), Shape::from([o * self.groups, c, k[0], k[1], k[2]]), image_shape(o, y)]
    }

    /// Returns the values of one [`ConvPart`] (y, or the gradient of x or w), computed from the values of x, w and y by
    /// naive loops over all products.
    pub(super) fn naive(&self, part: ConvPart, [x, w, y]: [&[f64]; 3]) -> Vec<f64> {
        let [xs, ws, ys] = self.shapes();
        let size = match part {
            ConvPart::Output => ys.size(),
            ConvPart::Input => xs.size(),
            ConvPart::Weight => ws.size(),
        };
        let mut out = vec![0.0; size];
        let [c, o] = self.channels;
        let k = self.window.size;
        for yi in 0..ys.size() {
            let at = [yi / ys[4] / ys[3] % ys[2], yi / ys[4] % ys[3], yi % ys[4]];
            let (image, channel) = (yi / (ys[1] * ys[2] * ys[3] * ys[4]), yi / (ys[2] * ys[3] * ys[4]) % ys[1]);
            for wi in 0..c * k.iter().product::<usize>() {
                let t = [wi / k[2] / k[1] % k[0], wi / k[2] % k[1], wi % k[2]];
                let from = [0, 1, 2].map(|a| {
                    (self.window.stride[a] * at[a] + self.window.dilation[a] * t[a]).wrapping_sub(self.window.before[a])
                });
                if (0..3).any(|a| from[a] >= self.x[a]) {
                    continue;
                }
                let source = channel / o * c + wi / k.iter().product::<usize>();
                let xi = (((image * xs[1] + source) * xs[2] + from[0]) * xs[3] + from[1]) * xs[4] + from[2];
                let wi = channel * c * k.iter().product::<usize>() + wi;
                match part {
                    ConvPart::Output => out[yi] += x[xi] * w[wi],
                    ConvPart::Input => out[xi] += w[wi] * y[yi],
                    ConvPart::Weight => out[wi] += x[xi] * y[yi],
                }
            }
        }
        out
    }

    /// Computes one [`ConvPart`] with the kernel, in an array of the given layout.
    pub(super) fn compute(
        &self,
        part: ConvPart,
        arrays: &[testing::TestArray; 3],
        layout: TestLayout,
    ) -> testing::TestArray {
        let index = |part| match part {
            ConvPart::Input => 0,
            ConvPart::Weight => 1,
            ConvPart::Output => 2,
        };
        let inputs: Vec<&testing::TestArray> = (0..3).filter(|&i| i != index(part)).map(|i| &arrays[i]).collect();
        let out = testing::TestArray::new(self.shapes()[index(part)].clone(), arrays[0].dtype, layout);
        let kernel = Conv { window: self.window, groups: self.groups, part };
        testing::run_kernel(Kernel::Conv(kernel), &inputs, &[&out]).unwrap();
        out
    }
}

/// All values of [`ConvPart`]: the output and the two gradients.
pub(super) const ALL_PARTS: [ConvPart; 3] = [ConvPart::Output, ConvPart::Input, ConvPart::Weight];

/// Returns a window.
pub(super) fn window(size: [usize; 3], stride: [usize; 3], dilation: [usize; 3], before: [usize; 3]) -> Window {
    Window { size, stride, dilation, before }
}

/// Returns convolutions that cover the code paths of direct products.
fn cases() -> Vec<ConvCase> {
    let case = |images, groups, channels, x, after, window| ConvCase { images, groups, channels, x, after, window };
    let one = [1; 3];
    vec![
        case(2, 1, [3, 5], [1, 6, 7], [0, 1, 1], window([1, 3, 3], one, one, [0, 1, 1])),
        case(3, 1, [16, 20], [1, 14, 14], [0, 1, 1], window([1, 3, 3], one, one, [0, 1, 1])),
        case(2, 2, [17, 16], [1, 9, 6], [0, 0, 2], window([1, 3, 3], one, one, [0, 2, 1])),
        case(2, 1, [4, 3], [1, 9, 11], [0, 2, 0], window([1, 3, 2], [1, 2, 3], [1, 2, 1], [0, 1, 3])),
        case(5, 1, [3, 4], [1, 1, 40], [0, 0, 2], window([1, 1, 5], [1, 1, 2], [1, 1, 3], [0, 0, 4])),
        case(1, 1, [2, 40], [1, 30, 37], [0, 0, 0], window([1, 2, 2], one, one, [0; 3])),
        case(2, 2, [3, 4], [4, 5, 6], [1, 0, 2], window([2, 3, 2], [2, 1, 2], [1, 1, 2], [1, 0, 1])),
        // Depthwise, with one and with two outputs per channel.
        case(2, 6, [1, 1], [1, 14, 21], [0, 1, 1], window([1, 3, 3], one, one, [0, 1, 1])),
        case(2, 3, [1, 2], [1, 9, 70], [0, 2, 0], window([1, 5, 3], [1, 2, 2], one, [0, 2, 1])),
        case(2, 3, [2, 1], [1, 5, 8], [0, 0, 0], window([1, 2, 2], one, one, [0; 3])),
        // 1 × 1 windows, without and with a stride; windows that do not reach the last elements; a stride larger than
        // the window.
        case(3, 1, [8, 9], [1, 7, 7], [0; 3], window(one, one, one, [0; 3])),
        case(3, 1, [8, 9], [1, 7, 7], [0; 3], window(one, [1, 2, 2], one, [0; 3])),
        case(1, 1, [3, 4], [1, 10, 10], [0; 3], window([1, 2, 2], [1, 4, 5], one, [0, 1, 0])),
        // The window covers the entire image; the padding is larger than the window.
        case(9, 1, [5, 6], [1, 4, 4], [0; 3], window([1, 4, 4], one, one, [0; 3])),
        case(2, 1, [2, 3], [1, 2, 2], [0, 3, 4], window([1, 2, 2], one, one, [0, 4, 3])),
        case(2, 1, [300, 3], [1, 1, 3], [0, 0, 1], window([1, 1, 2], one, one, [0, 0, 0])),
        case(1, 1, [1, 1], [1, 1, 1], [0; 3], window(one, one, one, [0; 3])),
        // The images of an input gradient with a stride are computed in several parts.
        case(40, 1, [3, 4], [1, 36, 40], [0, 1, 1], window([1, 3, 3], [1, 2, 2], one, [0, 1, 1])),
    ]
}

#[test]
fn all_parts_equal_naive_loops_in_all_layouts_and_dtypes() {
    let mut which = 0;
    for case in cases() {
        let shapes = case.shapes();
        let values = [0, 1, 2].map(|i| numbers(shapes[i].size(), 2, i as u64 + 7));
        for part in ALL_PARTS {
            let expected = case.naive(part, [&values[0], &values[1], &values[2]]);
            for (k, dtype) in [DType::F32, DType::F64, DType::I64, DType::I8, DType::BF16].into_iter().enumerate() {
                which += 1;
                let layout = if k == 0 { TestLayout::Plain } else { TestLayout::ALL[which % 5] };
                let arrays = [0, 1, 2].map(|i| testing::TestArray::cast(shapes[i].clone(), layout, dtype, &values[i]));
                let found = case.compute(part, &arrays, layout).reals();
                let round = |v: f64| match dtype {
                    DType::I8 => v as i64 as i8 as f64,
                    DType::BF16 => pellucid_ir::bf16::from_f64(v).to_f64(),
                    _ => v,
                };
                let expected: Vec<f64> = expected.iter().map(|&v| round(v)).collect();
                assert_eq!(found, expected, "{part:?} {dtype} {layout:?} {case:?}");
            }
        }
    }
}

#[test]
fn bits_are_independent_of_threads_and_layout() {
    for case in [1, 2, 3, 8].map(|i| cases()[i]) {
        let shapes = case.shapes();
        let reals = |i: usize| -> Vec<f64> {
            numbers(shapes[i].size(), 1000, i as u64 + 3).into_iter().map(|v| v / 777.0).collect()
        };
        for part in ALL_PARTS {
            let bits = |threads: usize, layout: TestLayout| {
                let arrays =
                    [0, 1, 2].map(|i| testing::TestArray::cast(shapes[i].clone(), layout, DType::F32, &reals(i)));
                with_threads(threads, || case.compute(part, &arrays, layout).values::<f32>())
            };
            let expected = bits(1, TestLayout::Plain);
            for threads in [2, 8] {
                TestLayout::ALL
                    .into_iter()
                    .for_each(|layout| assert_eq!(bits(threads, layout), expected, "{part:?} {threads} {layout:?}"));
            }
        }
    }
}

#[test]
fn nan_affects_only_the_windows_that_contain_it() {
    let case = ConvCase {
        images: 1,
        groups: 1,
        channels: [1, 3],
        x: [1, 5, 5],
        after: [0, 1, 1],
        window: window([1, 3, 3], [1; 3], [1; 3], [0, 1, 1]),
    };
    let mut x = vec![0.0f32; 25];
    x[0] = f32::NAN;
    let ones = |shape: &Shape| testing::TestArray::of(shape.clone(), TestLayout::Plain, &vec![1.0f32; shape.size()]);
    let [xs, ws, ys] = case.shapes();
    let arrays = [testing::TestArray::of(xs, TestLayout::Plain, &x), ones(&ws), ones(&ys)];
    let y = case.compute(ConvPart::Output, &arrays, TestLayout::Plain).values::<f32>();
    let nan: Vec<usize> = (0..25).filter(|&i| y[i].is_nan()).collect();
    assert_eq!(nan, [0, 1, 5, 6]);
}

#[test]
fn check_rejects_mismatched_operands() {
    let array = |shape: &[usize], dtype| {
        testing::TestArray::cast(shape, TestLayout::Plain, dtype, &vec![1.0; shape.iter().product()])
    };
    let conv = |size, stride, groups| {
        let window = Window { size: [1, 1, size], stride: [1, 1, stride], dilation: [1; 3], before: [0; 3] };
        Kernel::Conv(Conv { window, groups, part: ConvPart::Output })
    };
    let (x, w, y) =
        (array(&[2, 4, 1, 1, 8], DType::F32), array(&[6, 2, 1, 1, 3], DType::F32), array(&[2, 6, 1, 1, 6], DType::F32));
    testing::run_kernel(conv(3, 1, 2), &[&x, &w], &[&y]).unwrap();
    let rejected = |kernel: Kernel, x, w, y| testing::run_kernel(kernel, &[x, w], &[y]).unwrap_err();
    assert!(matches!(rejected(conv(2, 1, 2), &x, &w, &y), Error::ShapeMismatch { .. }));
    assert!(matches!(rejected(conv(3, 1, 1), &x, &w, &y), Error::ShapeMismatch { .. }));
    assert!(matches!(rejected(conv(3, 1, 0), &x, &w, &y), Error::ShapeMismatch { .. }));
    assert!(matches!(rejected(conv(3, 0, 2), &x, &w, &y), Error::InvalidArgument { .. }));
    assert!(matches!(rejected(conv(3, usize::MAX, 2), &x, &w, &y), Error::InvalidArgument { .. }));
    assert!(matches!(rejected(conv(3, 1, 2), &w, &x, &y), Error::ShapeMismatch { .. }));
    let wide = array(&[6, 2, 1, 1, 3], DType::F64);
    assert!(matches!(rejected(conv(3, 1, 2), &x, &wide, &y), Error::DTypeMismatch { .. }));
    let mask = |shape: &[usize]| array(shape, DType::Bool);
    let masks = [mask(&[2, 4, 1, 1, 8]), mask(&[6, 2, 1, 1, 3]), mask(&[2, 6, 1, 1, 6])];
    assert!(matches!(rejected(conv(3, 1, 2), &masks[0], &masks[1], &masks[2]), Error::DTypeMismatch { .. }));
    // Outputs far beyond the input read only padding.
    let padded = array(&[2, 6, 1, 1, 40], DType::F32);
    testing::run_kernel(conv(3, 1, 2), &[&x, &w], &[&padded]).unwrap();
    assert!(padded.reals()[39] == 0.0);
}

/// Every element of a `bf16` convolution is the exact sum, rounded to `bf16`, up to the error of the `f32` sum. The
/// number of threads and the layout change no bit. Products of small factors are subnormal, so they are not computed
/// from pairs.
#[test]
fn bf16_convolutions_match_naive_sums() {
    for (case, scale) in cases().into_iter().flat_map(|case| [(case, 1.0), (case, 1e-20)]) {
        let shapes = case.shapes();
        let values = [0, 1, 2].map(|i| {
            let values = numbers(shapes[i].size(), 1000, i as u64 + 1).into_iter();
            values.map(|v| pellucid_ir::bf16::from_f64(v / 777.0 * scale).to_f64()).collect::<Vec<f64>>()
        });
        let magnitudes = values.each_ref().map(|v| v.iter().map(|x| x.abs()).collect::<Vec<f64>>());
        for part in ALL_PARTS {
            let exact = case.naive(part, values.each_ref().map(|v| &v[..]));
            let bounds = case.naive(part, magnitudes.each_ref().map(|v| &v[..]));
            let compute = |layout, threads| {
                let array = |i: usize| testing::TestArray::cast(shapes[i].clone(), layout, DType::BF16, &values[i]);
                with_threads(threads, || case.compute(part, &[0, 1, 2].map(array), layout).reals())
            };
            let found = compute(TestLayout::Plain, 1);
            for ((found, exact), bound) in found.iter().zip(&exact).zip(&bounds) {
                let tolerance = exact.abs() / 256.0 + bound * 2e-6 + 1e-40;
                assert!((found - exact).abs() <= tolerance, "{part:?} {case:?}: {found} {exact}");
            }
            TestLayout::ALL.into_iter().for_each(|layout| assert_eq!(compute(layout, 3), found, "{part:?} {case:?}"));
        }
    }
}

/// The results of an image of a `bf16` convolution do not change with the other images of the batch, although products
/// of small factors are not computed from pairs.
#[test]
fn bf16_images_are_independent_of_each_other() {
    let winograd = window([1, 3, 3], [1; 3], [1; 3], [0, 1, 1]);
    let direct = window([1, 2, 3], [1; 3], [1; 3], [0, 1, 1]);
    for (groups, channels, window) in [(1, [32, 32], winograd), (2, [17, 16], winograd), (2, [9, 12], direct)] {
        let case = ConvCase { images: 3, groups, channels, x: [1, 12, 11], after: [0, 1, 1], window };
        let shapes = case.shapes();
        let values = [0, 1, 2].map(|i| {
            let values = numbers(shapes[i].size(), 1000, i as u64 + 5).into_iter();
            values.map(|v| v / 777.0).collect::<Vec<f64>>()
        });
        for (part, read, written) in [(ConvPart::Output, 0, 2), (ConvPart::Input, 2, 0)] {
            let [read_len, written_len] = [read, written].map(|i| shapes[i].size() / 3);
            // Computes the results of all images, of which some have a subnormal element.
            let images = |is_small: [bool; 3]| {
                let mut values = values.clone();
                for image in (0..3).filter(|&image| is_small[image]) {
                    values[read][image * read_len + 5] = 1e-39;
                }
                let array =
                    |i: usize| testing::TestArray::cast(shapes[i].clone(), TestLayout::Plain, DType::BF16, &values[i]);
                let found = case.compute(part, &[0, 1, 2].map(array), TestLayout::Plain).reals();
                found.chunks(written_len).map(<[f64]>::to_vec).collect::<Vec<_>>()
            };
            let [normal, mixed, small] = [[false; 3], [false, true, false], [true; 3]].map(images);
            for (image, expected) in [&normal[0], &small[1], &normal[2]].into_iter().enumerate() {
                assert!(mixed[image] == *expected, "{part:?} {case:?}: image {image}");
            }
        }
    }
}
