//! `Conv`: convolutions and their derivatives, as [tiled products](super::tile) with implicit im2col.
//!
//! | part | rows | columns | k |
//! | --- | --- | --- | --- |
//! | y | outputs | images and positions of y | channels and taps |
//! | gradient of x | channels | images and positions of x | outputs and taps |
//! | gradient of w | outputs | channels and taps | images and positions of y |
//!
//! Groups are a batch axis. An element of a window is at position `stride·o + dilation·t − before` of the image, a sum of
//! a part of the position and a part of the tap. In the gradient of x, the position of y is
//! `(x + before − dilation·t)/stride`, if it is an integer.

use super::GpuFamily;
use super::tile::{Coordinate, Digit, TiledArray, TiledProduct};
use crate::describe::DispatchList;
use crate::operand::{DeviceArray, DeviceOperands};
use pellucid_ir::kernel::{Conv, ConvPart};
use pellucid_ir::{DType, Error, Result};

/// The largest coordinate. Shaders compute coordinates modulo 2³².
const MAX_COORDINATE: usize = i32::MAX as usize / 2;

impl GpuFamily for Conv {
    fn is_supported(&self) -> bool {
        true
    }

    fn check(&self, operands: &DeviceOperands<'_>) -> Result<()> {
        let [x, w, y] = sorted(self.part, operands);
        let (window, groups) = (&self.window, self.groups);
        let shapes = [x.shape(), w.shape(), y.shape()];
        if x.dtype != w.dtype || x.dtype != y.dtype || x.dtype == DType::Bool {
            let help = "x, w and y must have the same numeric dtype";
            return Err(Error::dtypes("conv", [x.dtype, w.dtype, y.dtype], help));
        }
        let fits = shapes.iter().all(|s| s.rank() == 5)
            && x.shape()[0] == y.shape()[0]
            && w.shape()[0] == y.shape()[1]
            && groups > 0
            && w.shape()[0] % groups == 0
            && w.shape()[1].checked_mul(groups) == Some(x.shape()[1])
            && w.shape()[2..] == window.size;
        if !fits {
            let help = format!("x must be [n, c, ...], w [k, c/{groups}, {:?}] and y [n, k, ...]", window.size);
            return Err(Error::shapes("conv", shapes, help));
        }
        let extent = |axis: usize| {
            let last = window.stride[axis].checked_mul(y.shape()[2 + axis])?;
            let taps = window.dilation[axis].checked_mul(window.size[axis])?;
            last.checked_add(taps)?.checked_add(window.before[axis])?.checked_add(x.shape()[2 + axis])
        };
        let is_valid = |axis: usize| {
            window.stride[axis] > 0
                && window.dilation[axis] > 0
                && extent(axis).is_some_and(|extent| extent < MAX_COORDINATE)
        };
        if (0..3).all(is_valid) {
            return Ok(());
        }
        let reason = format!("stride and dilation must be positive, and the window must not overflow; got {window:?}");
        Err(Error::invalid("conv", reason))
    }

    fn describe(&self, list: &mut DispatchList<'_>, operands: &DeviceOperands<'_>) -> Result<()> {
        let [x, w, y] = sorted(self.part, operands);
        let (channels, outputs, images) = (w.shape()[1], w.shape()[0] / self.groups, x.shape()[0]);
        let [x_size, taps, y_size] = [&x, &w, &y].map(|array| array.shape()[2..].iter().product::<usize>());
        let digit = |array: &DeviceArray<'_>, axis: usize, len: usize| Digit::plain(len, array.layout.strides()[axis]);
        let positions = |array: &DeviceArray<'_>| [2, 3, 4].map(|axis| digit(array, axis, array.shape()[axis]));
        let [x_image, y_image] = [&x, &y].map(|array| digit(array, 0, images));
        let (x_channel, y_output) = (digit(&x, 1, channels), digit(&y, 1, outputs));
        let (w_output, w_channel) = (digit(&w, 0, outputs), digit(&w, 1, channels));
        // The windows of x over its channels, images and positions of y.
        let x_taps = with_lead(x_channel, along_axes(self.window.size, |axis| self.window.dilation[axis] as isize));
        let x_steps = with_lead(x_image, along_axes(spatial(&y), |axis| self.window.stride[axis] as isize));
        let in_image = |axis: usize| Coordinate {
            len: x.shape()[2 + axis],
            start: -(self.window.before[axis] as isize),
            divisor: 1,
            stride: x.layout.strides()[2 + axis],
        };
        let (sizes, factors, result) = match self.part {
            ConvPart::Output => (
                [outputs, images * y_size, channels * taps],
                [
                    tiled(&w, (0, outputs), [vec![w_output], with_lead(w_channel, positions(&w))], None),
                    tiled(&x, (1, channels), [x_taps, x_steps], Some(&in_image)),
                ],
                tiled(&y, (1, outputs), [vec![y_output], with_lead(y_image, positions(&y))], None),
            ),
            ConvPart::Input => {
                let y_taps = along_axes(self.window.size, |axis| -(self.window.dilation[axis] as isize));
                let y_steps = along_axes(spatial(&x), |_| 1);
                let in_result = |axis: usize| Coordinate {
                    len: y.shape()[2 + axis],
                    start: self.window.before[axis] as isize,
                    divisor: self.window.stride[axis],
                    stride: y.layout.strides()[2 + axis],
                };
                let windows = [with_lead(y_output, y_taps), with_lead(y_image, y_steps)];
                (
                    [channels, images * x_size, outputs * taps],
                    [
                        tiled(&w, (0, outputs), [vec![w_channel], with_lead(w_output, positions(&w))], None),
                        tiled(&y, (1, outputs), windows, Some(&in_result)),
                    ],
                    tiled(&x, (1, channels), [vec![x_channel], with_lead(x_image, positions(&x))], None),
                )
            }
            ConvPart::Weight => (
                [outputs, channels * taps, images * y_size],
                [
                    tiled(&y, (1, outputs), [vec![y_output], with_lead(y_image, positions(&y))], None),
                    tiled(&x, (1, channels), [x_steps, x_taps], Some(&in_image)),
                ],
                tiled(&w, (0, outputs), [vec![w_output], with_lead(w_channel, positions(&w))], None),
            ),
        };
        let product = TiledProduct {
            op: "conv",
            sizes,
            batch: vec![self.groups],
            dtype: x.dtype,
            inputs: factors.into(),
            outputs: vec![result],
            epilogue: None,
        };
        product.describe(list)
    }
}

/// Returns the operands in the order x, w, y.
fn sorted<'a>(part: ConvPart, operands: &DeviceOperands<'a>) -> [DeviceArray<'a>; 3] {
    let (a, b, out) = (operands.inputs[0], operands.inputs[1], operands.outputs[0]);
    match part {
        ConvPart::Output => [a, b, out],
        ConvPart::Input => [out, a, b],
        ConvPart::Weight => [a, out, b],
    }
}

/// Returns the lengths of the spatial axes.
fn spatial(array: &DeviceArray<'_>) -> [usize; 3] {
    [2, 3, 4].map(|axis| array.shape()[axis])
}

/// Returns the digits of coordinates along the spatial axes, with the factor of each.
fn along_axes(lengths: [usize; 3], factor: impl Fn(usize) -> isize) -> [Digit; 3] {
    [0, 1, 2].map(|axis| Digit::along(lengths[axis], axis, factor(axis)))
}

/// Returns the digits of an index whose most significant digit is `lead`.
fn with_lead(lead: Digit, digits: [Digit; 3]) -> Vec<Digit> {
    [lead].into_iter().chain(digits).collect()
}

/// Returns the matrices of all groups: `len` neighbouring elements along `axis` belong to one group.
fn tiled<'a>(
    array: &DeviceArray<'a>,
    (axis, len): (usize, usize),
    [rows, columns]: [Vec<Digit>; 2],
    coordinate: Option<&dyn Fn(usize) -> Coordinate>,
) -> TiledArray<'a> {
    TiledArray {
        array: *array,
        start: array.layout.offset() as isize,
        batch: vec![array.layout.strides()[axis] * len as isize],
        rows,
        columns,
        coordinates: coordinate.map_or_else(Vec::new, |coordinate| (0..3).map(coordinate).collect()),
    }
    .simplified()
}
