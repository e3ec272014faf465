//! `Conv`: convolutions and their derivatives, as [tiled products](super::shared::tile) with implicit im2col.
//!
//! | part | rows | columns | k |
//! | --- | --- | --- | --- |
//! | y | outputs | images and positions of y | channels and taps |
//! | gradient of x | channels | images and positions of x | outputs and taps |
//! | gradient of w | outputs | channels and taps | images and positions of y |
//!
//! Groups are a batch axis. An element of a window is at position `stride·o + dilation·t − before` of the image. The
//! first term depends on the output position o, the second on the tap t. In the gradient of x, `(x + before −
//! dilation·t)/stride` is the position of y. It is an integer only for some taps, which depend on the remainder of x
//! modulo the stride. There is one product for each remainder, with these taps only. Products of neighbouring
//! remainders that differ only in offsets form one batch. For windows without overlap and padding, such as the patches
//! of an image, the gradient of x is one dispatch.

use super::GpuFamily;
use super::shared::tile::{Coordinate, IndexDigit, TiledArray, TiledProduct};
use super::shared::window::{fits_shader_coordinates, spatial_lengths};
use crate::dispatch_list::DispatchList;
use crate::operand::{DeviceArray, DeviceOperands};
use pellucid_ir::Result;
use pellucid_ir::backend::OperandMeta;
use pellucid_ir::kernel::{Conv, ConvPart};

impl GpuFamily for Conv {
    fn supports_operands(&self, inputs: &[OperandMeta<'_>], outputs: &[OperandMeta<'_>]) -> bool {
        let [x, _, y] = self.part.sorted([&inputs[0], &inputs[1]], &outputs[0]);
        fits_shader_coordinates(&self.window, [x, y].map(|array| spatial_lengths(array.layout.shape())))
    }

    fn describe(&self, list: &mut DispatchList<'_>, operands: &DeviceOperands<'_>) -> Result<()> {
        let (inputs, out) = (&operands.inputs, operands.outputs[0]);
        let arrays = ConvArrays::new(self, self.part.sorted([inputs[0], inputs[1]], out));
        if self.part != ConvPart::Input {
            arrays.describe_windows(list);
            return Ok(());
        }
        let [z, y, x] = [0, 1, 2].map(|axis| residue_runs(arrays.residues(axis)));
        for (a, b, c) in
            z.iter().flat_map(|a| y.iter().map(move |b| (a, b))).flat_map(|(a, b)| x.iter().map(move |c| (a, b, c)))
        {
            arrays.describe_input_gradient(list, [a, b, c]);
        }
        Ok(())
    }
}

/// The positions of x along one axis with one remainder modulo the stride, and the taps that connect them with y.
#[derive(Clone, Copy, Debug, PartialEq)]
struct ResidueClass {
    /// The first position; further positions follow in steps of the stride.
    first: usize,
    /// The number of positions.
    count: usize,
    /// The first tap that connects the positions with y.
    first_tap: usize,
    /// The step between taps.
    tap_step: usize,
    /// The number of taps.
    taps: usize,
    /// The position of y that the first tap connects with the first position; 0 without taps.
    start: isize,
}

/// Neighbouring residue classes whose products differ only in the offsets of x and w.
#[derive(Clone, Copy, Debug, PartialEq)]
struct ResidueRun {
    first: ResidueClass,
    /// The number of classes.
    len: usize,
    /// The difference of the first taps of neighbouring classes.
    tap_stride: isize,
}

/// Combines neighbouring classes into runs.
fn residue_runs(classes: Vec<ResidueClass>) -> Vec<ResidueRun> {
    let mut runs: Vec<ResidueRun> = Vec::new();
    for class in classes {
        if let Some(ResidueRun { first, len, tap_stride }) = runs.last_mut() {
            let moved = class.first_tap as isize - first.first_tap as isize;
            let stride = if *len == 1 { moved } else { *tap_stride };
            let like_first = ResidueClass { first: first.first, first_tap: first.first_tap, ..class };
            if like_first == *first && moved == stride * *len as isize {
                (*len, *tap_stride) = (*len + 1, stride);
                continue;
            }
        }
        runs.push(ResidueRun { first: class, len: 1, tap_stride: 0 });
    }
    runs
}

/// The operands of a convolution, and the [`IndexDigit`] of each axis.
struct ConvArrays<'a, 'k> {
    kernel: &'k Conv,
    x: DeviceArray<'a>,
    w: DeviceArray<'a>,
    y: DeviceArray<'a>,
    /// The number of input channels of a group.
    channels: usize,
    /// The number of output channels of a group.
    outputs: usize,
    /// The digits of the axes that are not spatial.
    w_output: IndexDigit,
    w_channel: IndexDigit,
    x_image: IndexDigit,
    y_image: IndexDigit,
    x_channel: IndexDigit,
    y_output: IndexDigit,
}

impl<'a, 'k> ConvArrays<'a, 'k> {
    fn new(kernel: &'k Conv, [x, w, y]: [DeviceArray<'a>; 3]) -> ConvArrays<'a, 'k> {
        let (channels, outputs, images) = (w.shape()[1], w.shape()[0] / kernel.groups, x.shape()[0]);
        let [w_output, w_channel] = [(0, outputs), (1, channels)].map(|(axis, len)| digit(&w, axis, len));
        let [x_image, x_channel] = [(0, images), (1, channels)].map(|(axis, len)| digit(&x, axis, len));
        let [y_image, y_output] = [(0, images), (1, outputs)].map(|(axis, len)| digit(&y, axis, len));
        ConvArrays { kernel, x, w, y, channels, outputs, w_output, w_channel, x_image, y_image, x_channel, y_output }
    }

    /// Adds the product that computes the output, or the gradient of w.
    fn describe_windows(&self, list: &mut DispatchList<'_>) {
        let ConvArrays { kernel, x, w, y, channels, outputs, .. } = self;
        let ConvArrays { w_output, w_channel, x_image, y_image, x_channel, y_output, .. } = *self;
        let [taps, positions] = [w, y].map(|array| array.shape()[2..].iter().product::<usize>());
        let window = &kernel.window;
        // The windows of x as a matrix: its rows are channels and taps, its columns images and positions of y.
        let x_taps = with_lead(x_channel, along_axes(window.size, window.dilation.map(|d| d as isize)));
        let x_steps = with_lead(x_image, along_axes(spatial_lengths(y.shape()), window.stride.map(|s| s as isize)));
        let coordinates = [0, 1, 2].map(|axis| Coordinate {
            len: x.shape()[2 + axis],
            start: -(window.before[axis] as isize),
            stride: x.layout.strides()[2 + axis],
        });
        let weights = || tiled(w, (0, *outputs), 0, [vec![w_output], with_lead(w_channel, position_digits(w))], &[]);
        let results = || tiled(y, (1, *outputs), 0, [vec![y_output], with_lead(y_image, position_digits(y))], &[]);
        let windows = |digits| tiled(x, (1, *channels), 0, digits, &coordinates);
        let (columns, depth) = (x_image.len * positions, channels * taps);
        match kernel.part {
            ConvPart::Weight => {
                let sizes = [*outputs, depth, columns];
                self.describe_product(list, (sizes, &[]), [results(), windows([x_steps, x_taps])], weights());
            }
            _ => {
                let sizes = [*outputs, columns, depth];
                self.describe_product(list, (sizes, &[]), [weights(), windows([x_taps, x_steps])], results());
            }
        }
    }

    /// Returns the residue classes of the positions of x along an axis.
    fn residues(&self, axis: usize) -> Vec<ResidueClass> {
        let window = &self.kernel.window;
        let (stride, dilation) = (window.stride[axis], window.dilation[axis]);
        let (size, len) = (window.size[axis], self.x.shape()[2 + axis]);
        // Taps at this distance connect a position of y with positions of x that have the same remainder.
        let tap_step = stride / greatest_common_divisor(stride, dilation);
        let class = |first: usize| {
            let shifted = |tap: usize| (first + window.before[axis]) as isize - (dilation * tap) as isize;
            let first_tap = (0..size.min(tap_step)).find(|&tap| shifted(tap) % stride as isize == 0);
            let taps = first_tap.map_or(0, |tap| (size - tap).div_ceil(tap_step));
            let first_tap = first_tap.unwrap_or(0);
            let start = if taps > 0 { shifted(first_tap) / stride as isize } else { 0 };
            ResidueClass { first, count: (len - first).div_ceil(stride), first_tap, tap_step, taps, start }
        };
        (0..stride.min(len)).map(class).collect()
    }

    /// Adds the products that compute the gradient of x for one run of residue classes along each axis.
    fn describe_input_gradient(&self, list: &mut DispatchList<'_>, runs: [&ResidueRun; 3]) {
        let ConvArrays { kernel, x, w, y, channels, outputs, .. } = self;
        let ConvArrays { w_output, w_channel, x_image, y_image, x_channel, y_output, .. } = *self;
        let (window, classes) = (&kernel.window, runs.map(|run| run.first));
        let (counts, taps) = (classes.map(|class| class.count), classes.map(|class| class.taps));
        // The next tap of a class is at an earlier position of y.
        let earlier = [0, 1, 2].map(|a| -((window.dilation[a] * classes[a].tap_step / window.stride[a]) as isize));
        let coordinates = [0, 1, 2].map(|axis| Coordinate {
            len: y.shape()[2 + axis],
            start: classes[axis].start,
            stride: y.layout.strides()[2 + axis],
        });
        let windows = [with_lead(y_output, along_axes(taps, earlier)), with_lead(y_image, along_axes(counts, [1; 3]))];
        // The elements of w and of x in the class.
        let part =
            |array: &DeviceArray<'_>, lead: IndexDigit, first: [usize; 3], step: [usize; 3], count: [usize; 3]| {
                let stride = |axis: usize| array.layout.strides()[2 + axis];
                let offset: isize = (0..3).map(|axis| first[axis] as isize * stride(axis)).sum();
                let digits = [0, 1, 2].map(|axis| IndexDigit::plain(count[axis], step[axis] as isize * stride(axis)));
                (offset, with_lead(lead, digits))
            };
        let first_taps = classes.map(|class| class.first_tap);
        let (w_offset, w_taps) = part(w, w_output, first_taps, classes.map(|class| class.tap_step), taps);
        let (x_offset, x_positions) = part(x, x_image, classes.map(|class| class.first), window.stride, counts);
        let [count, taps] = [counts, taps].map(|lengths| lengths.iter().product::<usize>());
        // The classes of a run are batch axes.
        let batch: Vec<usize> = (0..3).filter(|&axis| runs[axis].len > 1).collect();
        let with_classes = |mut array: TiledArray<'a>, stride: &dyn Fn(usize) -> isize| {
            array.batch.extend(batch.iter().map(|&axis| stride(axis)));
            array
        };
        let spatial_stride = |array: &DeviceArray<'_>, axis: usize| array.layout.strides()[2 + axis];
        let factors = [
            with_classes(tiled(w, (0, *outputs), w_offset, [vec![w_channel], w_taps], &[]), &|axis| {
                runs[axis].tap_stride * spatial_stride(w, axis)
            }),
            with_classes(tiled(y, (1, *outputs), 0, windows, &coordinates), &|_| 0),
        ];
        let result = tiled(x, (1, *channels), x_offset, [vec![x_channel], x_positions], &[]);
        let result = with_classes(result, &|axis| spatial_stride(x, axis));
        let classes: Vec<usize> = batch.iter().map(|&axis| runs[axis].len).collect();
        let sizes = [*channels, x_image.len * count, outputs * taps];
        self.describe_product(list, (sizes, &classes), factors, result);
    }

    /// Adds the products of all groups, with further batch axes of lengths `batch`.
    fn describe_product(
        &self,
        list: &mut DispatchList<'_>,
        (sizes, batch): ([usize; 3], &[usize]),
        factors: [TiledArray<'a>; 2],
        result: TiledArray<'a>,
    ) {
        let product = TiledProduct {
            op: "conv",
            sizes,
            batch: [&[self.kernel.groups][..], batch].concat(),
            dtype: result.array.dtype,
            inputs: factors.into(),
            outputs: vec![result],
            epilogue: None,
        };
        product.describe(list);
    }
}

/// Returns the greatest common divisor of two positive numbers.
fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

/// Returns the digit of an axis.
fn digit(array: &DeviceArray<'_>, axis: usize, len: usize) -> IndexDigit {
    IndexDigit::plain(len, array.layout.strides()[axis])
}

/// Returns the digits of the spatial axes of an array.
fn position_digits(array: &DeviceArray<'_>) -> [IndexDigit; 3] {
    [2, 3, 4].map(|axis| digit(array, axis, array.shape()[axis]))
}

/// Returns the digits of coordinates along the spatial axes, with the factor of each.
fn along_axes(lengths: [usize; 3], factors: [isize; 3]) -> [IndexDigit; 3] {
    [0, 1, 2].map(|axis| IndexDigit::along(lengths[axis], axis, factors[axis]))
}

/// Returns the digits of an index whose most significant digit is `lead`.
fn with_lead(lead: IndexDigit, digits: [IndexDigit; 3]) -> Vec<IndexDigit> {
    [lead].into_iter().chain(digits).collect()
}

/// Returns the matrices of all groups: `len` neighbouring elements along `axis` belong to one group. The first element
/// is `offset` elements after the first element of the array.
fn tiled<'a>(
    array: &DeviceArray<'a>,
    (axis, len): (usize, usize),
    offset: isize,
    [rows, columns]: [Vec<IndexDigit>; 2],
    coordinates: &[Coordinate],
) -> TiledArray<'a> {
    TiledArray {
        array: *array,
        start: array.layout.offset() as isize + offset,
        batch: vec![array.layout.strides()[axis] * len as isize],
        rows,
        columns,
        coordinates: coordinates.to_vec(),
    }
    .simplified()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operand::UncheckedOperand;
    use crate::shader::KernelFeatures;
    use crate::status::CheckedOperations;
    use pellucid_ir::kernel::{Kernel, Window};
    use pellucid_ir::{DType, Layout};

    /// Returns the number of dispatches that compute the gradient of x, for images of 48 positions along two axes and
    /// windows with this size, stride and padding `before`.
    fn dispatches([size, stride, before]: [usize; 3]) -> usize {
        let window = Window {
            size: [1, size, size],
            stride: [1, stride, stride],
            dilation: [1; 3],
            before: [0, before, before],
        };
        let steps = (48 + 2 * before - size) / stride + 1;
        let layouts = [[4, 3, 1, size, size], [2, 4, 1, steps, steps], [2, 3, 1, 48, 48]];
        let layouts = layouts.map(|shape| Layout::contiguous(shape.into()));
        let unchecked: Vec<UncheckedOperand<'_, usize>> = layouts
            .iter()
            .enumerate()
            .map(|(identity, layout)| UncheckedOperand { identity, bytes: 1 << 20, layout, dtype: DType::F32 })
            .collect();
        let kernel = Conv { window, groups: 1, part: ConvPart::Input };
        let operands = DeviceOperands::new(&Kernel::Conv(kernel), &unchecked, 2).unwrap();
        let operations = CheckedOperations::default();
        let mut list = DispatchList::new(KernelFeatures::default(), &operations);
        kernel.describe(&mut list, &operands).unwrap();
        list.dispatch_count()
    }

    #[test]
    fn remainders_whose_products_differ_in_offsets_only_share_a_dispatch() {
        assert_eq!(dispatches([16, 16, 0]), 1, "the gradient of patches must be one dispatch");
        assert_eq!(dispatches([1, 2, 0]), 4, "remainders without taps and with one tap must not share a dispatch");
        assert_eq!(dispatches([3, 2, 1]), 4, "remainders with one tap and with two taps must not share a dispatch");
        assert_eq!(
            dispatches([8, 8, 3]),
            4,
            "remainders whose first taps differ in the position of y must not share a dispatch"
        );
        assert_eq!(
            dispatches([7, 7, 0]),
            4,
            "remainders with different counts of positions of x must not share a dispatch"
        );
    }
}
