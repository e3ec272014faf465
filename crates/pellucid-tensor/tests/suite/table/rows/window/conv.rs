//! Convolutions and transposed convolutions, compared with a sum over every tap.

use super::batched;
use crate::table::nd::{Nd, indices};
use crate::table::row::{Input, Row, argument_rejected, real, shape_rejected};
use pellucid_tensor::ops::{ConvOptions, ConvPadding};
use pellucid_tensor::{DType, Error, Result, Tensor, ops};

type Call = fn(&Tensor, &Tensor, Option<&Tensor>, ConvOptions) -> Result<Tensor>;

/// The options of a convolution, one value for each spatial axis.
#[derive(Clone, Copy)]
struct ConvConfig {
    stride: &'static [usize],
    padding: &'static [usize],
    dilation: &'static [usize],
    more: &'static [usize],
    groups: usize,
    same: bool,
}

const LINE: ConvConfig = ConvConfig { stride: &[1], padding: &[0], dilation: &[1], more: &[0], groups: 1, same: false };
const PLANE: ConvConfig =
    ConvConfig { stride: &[1, 1], padding: &[0, 0], dilation: &[1, 1], more: &[0, 0], groups: 1, same: false };
const SPACE: ConvConfig = ConvConfig {
    stride: &[1, 1, 1],
    padding: &[0, 0, 0],
    dilation: &[1, 1, 1],
    more: &[0, 0, 0],
    groups: 1,
    same: false,
};

impl ConvConfig {
    fn options(&self) -> ConvOptions {
        ConvOptions {
            stride: self.stride.into(),
            padding: if self.same { ConvPadding::Same } else { self.padding.into() },
            dilation: self.dilation.into(),
            groups: self.groups,
            output_padding: self.more.into(),
        }
    }

    /// Returns the padding at both ends of axis `a`.
    fn padding_of_axis(&self, a: usize, taps: usize) -> (usize, usize) {
        let total = self.dilation[a] * (taps - 1);
        if self.same { (total / 2, total - total / 2) } else { (self.padding[a], self.padding[a]) }
    }
}

fn biased(bias: Option<&Nd>, channel: usize) -> f64 {
    bias.map_or(0.0, |b| b.data[channel])
}

/// Computes a convolution: every output gathers its inputs, and the padding is zero.
fn conv_of(x: &Nd, w: &Nd, bias: Option<&Nd>, way: ConvConfig) -> Nd {
    let spatial = w.shape.len() - 2;
    let outputs = |a: usize| {
        let (before, after) = way.padding_of_axis(a, w.shape[2 + a]);
        let reach = way.dilation[a] * (w.shape[2 + a] - 1) + 1;
        (x.shape[2 + a] + before + after - reach) / way.stride[a] + 1
    };
    let shape: Vec<usize> = [x.shape[0], w.shape[0]].into_iter().chain((0..spatial).map(outputs)).collect();
    let per_group = w.shape[0] / way.groups;
    Nd::from_fn(&shape, |ix| {
        let product = |tap: &Vec<usize>| {
            let channel = ix[1] / per_group * w.shape[1] + tap[0];
            let place = |a: usize| {
                let place = ix[2 + a] * way.stride[a] + tap[1 + a] * way.dilation[a];
                place.checked_sub(way.padding_of_axis(a, w.shape[2 + a]).0).filter(|&i| i < x.shape[2 + a])
            };
            let inside: Option<Vec<usize>> = (0..spatial).map(place).collect();
            let element = inside.map_or(0.0, |place| x.at(&[&[ix[0], channel], &place[..]].concat()));
            element * w.at(&[&ix[1..2], &tap[..]].concat())
        };
        indices(&w.shape[1..]).iter().map(product).sum::<f64>() + biased(bias, ix[1])
    })
}

/// Computes a transposed convolution: every input scatters to its outputs.
fn transposed(x: &Nd, w: &Nd, bias: Option<&Nd>, way: ConvConfig) -> Nd {
    let spatial = w.shape.len() - 2;
    let len = |a: usize| {
        let reach = way.dilation[a] * (w.shape[2 + a] - 1) + 1;
        (x.shape[2 + a] - 1) * way.stride[a] + reach + way.more[a] - 2 * way.padding[a]
    };
    let shape: Vec<usize> = [x.shape[0], w.shape[1] * way.groups].into_iter().chain((0..spatial).map(len)).collect();
    let mut y = Nd::from_fn(&shape, |ix| biased(bias, ix[1]));
    for ix in indices(&x.shape) {
        for tap in indices(&w.shape[1..]) {
            let channel = ix[1] / (w.shape[0] / way.groups) * w.shape[1] + tap[0];
            let place = |a: usize| {
                let place = ix[2 + a] * way.stride[a] + tap[1 + a] * way.dilation[a];
                place.checked_sub(way.padding[a]).filter(|&i| i < shape[2 + a])
            };
            if let Some(place) = (0..spatial).map(place).collect::<Option<Vec<usize>>>() {
                let to = [&[ix[0], channel], &place[..]].concat();
                y.set(&to, y.at(&to) + x.at(&ix) * w.at(&[&ix[1..2], &tap[..]].concat()));
            }
        }
    }
    y
}

/// Adds a case of a convolution or a transposed convolution, with x, weight and bias of these shapes.
fn with(row: Row, label: &str, call: Call, shapes: [&[usize]; 3], way: ConvConfig) -> Row {
    let inputs = shapes.iter().filter(|s| !s.is_empty()).map(|s| Input { shape: s.to_vec(), ..real([]) });
    let spatial = shapes[1].len() - 2;
    let reference = if row.name.contains("transpose") { transposed } else { conv_of };
    row.case(
        label,
        inputs.collect::<Vec<_>>(),
        move |x| {
            // All operands have the dtype of x.
            let rest: Vec<Tensor> = x[1..].iter().map(|t| t.to_dtype(x[0].dtype())).collect();
            call(&x[0], &rest[0], rest.get(1), way.options())
        },
        move |x| batched(&x[0], spatial, |image| reference(image, &x[1], x.get(2), way)),
    )
    .floats_only()
}

fn row(name: &'static str) -> Row {
    Row::new(name).ulps(16.0).scale(4.0)
}

/// Adds the checks of errors that all convolutions share, and of integers.
fn with_error_checks(row: Row, call: Call, spatial: usize) -> Row {
    let filled = move |channels: usize, len: usize| {
        let shape: Vec<usize> = [2, channels].into_iter().chain(std::iter::repeat_n(len, spatial)).collect();
        Tensor::ones(shape, DType::F64)
    };
    row.check("a wrong number of channels must be an error", move || {
        shape_rejected(call(&filled(3, 4), &filled(2, 2), None, ConvOptions::default()))
    })
    .check("zero groups must be an error", move || {
        shape_rejected(call(&filled(2, 4), &filled(2, 2), None, ConvOptions { groups: 0, ..Default::default() }))
    })
    .check("an indivisible number of groups must be an error", move || {
        shape_rejected(call(&filled(3, 4), &filled(3, 2), None, ConvOptions { groups: 2, ..Default::default() }))
    })
    .check("a bias of another length must be an error", move || {
        let bias = Tensor::ones([5], DType::F64);
        shape_rejected(call(&filled(2, 4), &filled(2, 2), Some(&bias), ConvOptions::default()))
    })
    .check("another rank must be an error", move || {
        shape_rejected(call(&Tensor::ones([2], DType::F64), &filled(2, 2), None, ConvOptions::default()))
    })
    .check("a stride of 0 must be an error", move || {
        argument_rejected(call(
            &filled(2, 4),
            &filled(2, 2),
            None,
            ConvOptions { stride: 0.into(), ..Default::default() },
        ))
    })
    .check("a dilation of 0 must be an error", move || {
        argument_rejected(call(
            &filled(2, 4),
            &filled(2, 2),
            None,
            ConvOptions { dilation: 0.into(), ..Default::default() },
        ))
    })
    .check("a wrong number of values must be an error", move || {
        argument_rejected(call(
            &filled(2, 4),
            &filled(2, 2),
            None,
            ConvOptions { stride: [1, 1, 1, 1].into(), ..Default::default() },
        ))
    })
    .check("\"same\" with a stride", move || {
        argument_rejected(call(
            &filled(2, 4),
            &filled(2, 2),
            None,
            ConvOptions { stride: 2.into(), padding: ConvPadding::Same, ..Default::default() },
        ))
    })
    .check("unequal dtypes must be an error", move || {
        let w = filled(2, 2).to_dtype(DType::F32);
        Ok(matches!(call(&filled(2, 4), &w, None, ConvOptions::default()), Err(Error::DTypeMismatch { .. })))
    })
    .check("an empty window must be an error", move || {
        argument_rejected(call(&filled(2, 4), &filled(2, 0), None, ConvOptions::default()))
    })
    .check("an extreme padding must be an error", move || {
        Ok(call(&filled(2, 4), &filled(2, 2), None, ConvOptions { padding: usize::MAX.into(), ..Default::default() })
            .is_err())
    })
}

pub(super) fn rows() -> Vec<Row> {
    vec![conv1d(), conv2d(), conv3d(), conv_transpose1d(), conv_transpose2d(), conv_transpose3d()]
}

fn conv1d() -> Row {
    let call: Call = ops::conv1d;
    let case = |row, label, shapes, way| with(row, label, call, shapes, way);
    let row = row("conv1d");
    let row = case(row, "plain", [&[2, 2, 5], &[3, 2, 3], &[]], LINE);
    let row = case(row, "bias", [&[1, 2, 4], &[2, 2, 2], &[2]], LINE);
    let row = case(row, "stride", [&[1, 2, 6], &[2, 2, 3], &[2]], ConvConfig { stride: &[2], ..LINE });
    let row = case(row, "padding", [&[1, 2, 3], &[2, 2, 3], &[2]], ConvConfig { padding: &[2], ..LINE });
    let row = case(row, "dilation", [&[1, 2, 6], &[1, 2, 3], &[]], ConvConfig { dilation: &[2], ..LINE });
    let all = ConvConfig { stride: &[2], padding: &[3], dilation: &[2], ..LINE };
    let row = case(row, "all of them", [&[1, 1, 7], &[2, 1, 3], &[]], all);
    let row = case(row, "groups", [&[1, 4, 3], &[2, 2, 2], &[2]], ConvConfig { groups: 2, ..LINE });
    let row =
        case(row, "depthwise, twice", [&[1, 2, 4], &[4, 1, 2], &[4]], ConvConfig { groups: 2, padding: &[1], ..LINE });
    let row = case(row, "same, odd", [&[1, 1, 5], &[1, 1, 4], &[]], ConvConfig { same: true, ..LINE });
    let row =
        case(row, "same, dilated", [&[1, 1, 5], &[1, 1, 2], &[]], ConvConfig { same: true, dilation: &[3], ..LINE });
    let row = case(row, "one image", [&[2, 4], &[3, 2, 2], &[3]], LINE);
    let row = case(row, "one tap", [&[2, 2, 3], &[3, 2, 1], &[]], LINE);
    let row = case(row, "as wide as the axis", [&[2, 2, 3], &[2, 2, 3], &[2]], LINE);
    let row = case(row, "no image", [&[0, 2, 4], &[3, 2, 2], &[3]], LINE);
    let row = case(row, "long", [&[2, 7, 130], &[19, 7, 5], &[19]], ConvConfig { padding: &[2], ..LINE })
        .long()
        .case_scale(20.0);
    with_error_checks(row, call, 1)
        .check("a window larger than the axis must be an error", || {
            let (x, w) = (Tensor::ones([1, 1, 2], DType::F64), Tensor::ones([1, 1, 3], DType::F64));
            shape_rejected(ops::conv1d(&x, &w, None, ConvOptions::default()))
        })
        .check("integers", || {
            let (x, w) = (Tensor::from([[[1i64, 2, 3, 4]]]), Tensor::from([[[1i64, 0, -2]]]));
            let y = ops::conv1d(&x, &w, None, ConvOptions::default())?;
            Ok(y.dtype() == DType::I64 && y.to_vec::<i64>() == [-5, -6])
        })
}

fn conv2d() -> Row {
    let call: Call = ops::conv2d;
    let case = |row, label, shapes, way| with(row, label, call, shapes, way);
    let row = row("conv2d");
    let row = case(row, "plain", [&[1, 2, 3, 3], &[2, 2, 2, 2], &[2]], PLANE);
    let uneven = ConvConfig { stride: &[2, 1], padding: &[1, 2], dilation: &[1, 2], ..PLANE };
    let row = case(row, "a number for each axis", [&[1, 1, 4, 3], &[2, 1, 2, 3], &[2]], uneven);
    let row = case(row, "groups", [&[1, 2, 3, 2], &[2, 1, 2, 2], &[]], ConvConfig { groups: 2, ..PLANE });
    let row = case(row, "same", [&[1, 1, 3, 3], &[1, 1, 2, 3], &[]], ConvConfig { same: true, ..PLANE });
    let row = case(row, "one image", [&[1, 3, 3], &[2, 1, 2, 2], &[2]], PLANE);
    let row = case(row, "one tap", [&[2, 2, 2, 2], &[2, 2, 1, 1], &[]], PLANE);
    let row =
        case(row, "one tap, stride", [&[1, 2, 3, 3], &[2, 2, 1, 1], &[]], ConvConfig { stride: &[2, 2], ..PLANE });
    let row = case(row, "no image", [&[0, 2, 3, 3], &[2, 2, 2, 2], &[2]], PLANE);
    let same = ConvConfig { padding: &[1, 1], ..PLANE };
    let row = case(row, "large", [&[2, 19, 9, 11], &[21, 19, 3, 3], &[21]], same).long().case_scale(60.0);
    let depthwise = ConvConfig { groups: 19, ..same };
    let row =
        case(row, "large, depthwise", [&[2, 19, 9, 11], &[19, 1, 3, 3], &[19]], depthwise).long().case_scale(20.0);
    with_error_checks(row, call, 2)
}

fn conv3d() -> Row {
    let call: Call = ops::conv3d;
    let case = |row, label, shapes, way| with(row, label, call, shapes, way);
    let row = row("conv3d");
    let row = case(row, "plain", [&[1, 1, 2, 2, 3], &[2, 1, 2, 1, 2], &[2]], SPACE);
    let uneven = ConvConfig { stride: &[2, 1, 1], padding: &[1, 0, 1], dilation: &[1, 1, 2], ..SPACE };
    let row = case(row, "a number for each axis", [&[1, 1, 2, 2, 2], &[1, 1, 2, 2, 2], &[1]], uneven);
    let row = case(row, "groups", [&[1, 2, 2, 2, 1], &[2, 1, 1, 2, 1], &[]], ConvConfig { groups: 2, ..SPACE });
    let row = case(row, "same", [&[1, 1, 2, 2, 2], &[1, 1, 2, 2, 1], &[]], ConvConfig { same: true, ..SPACE });
    let row = case(row, "one image", [&[1, 2, 2, 2], &[1, 1, 1, 2, 2], &[]], SPACE);
    let row = case(row, "no image", [&[0, 1, 2, 2, 2], &[2, 1, 2, 2, 2], &[2]], SPACE);
    with_error_checks(row, call, 3)
}

/// Adds the checks of transposed convolutions. A NaN or ∞ in the weight may or may not be multiplied by the implicit
/// zeros between and around the elements of x; a NaN or ∞ in x affects only its own outputs.
fn with_transposed_checks(row: Row, call: Call, spatial: usize) -> Row {
    let ones = move |len: usize| {
        let shape: Vec<usize> = [2, 2].into_iter().chain(std::iter::repeat_n(len, spatial)).collect();
        Tensor::ones(shape, DType::F64)
    };
    with_error_checks(row.ordinary(), call, spatial)
        .check("NaN must affect only the outputs that read it", move || {
            let x = ones(3);
            x.set((0, 0), f64::NAN);
            let y = call(&x, &ones(2), None, ConvOptions::default())?;
            Ok(y.i(0).isnan().all(..).item::<bool>() && !y.i(1).isnan().any(..).item::<bool>())
        })
        .check("an output padding of at least the stride must be an error", move || {
            argument_rejected(call(
                &ones(3),
                &ones(2),
                None,
                ConvOptions { stride: 2.into(), output_padding: 2.into(), ..Default::default() },
            ))
        })
        .check("a padding that gives length 0 must be an error", move || {
            shape_rejected(call(&ones(1), &ones(2), None, ConvOptions { padding: 1.into(), ..Default::default() }))
        })
}

fn conv_transpose1d() -> Row {
    let call: Call = ops::conv_transpose1d;
    let case = |row, label, shapes, way| with(row, label, call, shapes, way);
    let row = row("conv_transpose1d");
    let row = case(row, "plain", [&[2, 2, 3], &[2, 3, 2], &[3]], LINE);
    let row = case(row, "stride", [&[1, 2, 3], &[2, 1, 3], &[1]], ConvConfig { stride: &[2], ..LINE });
    let row = case(row, "padding", [&[1, 1, 4], &[1, 2, 3], &[]], ConvConfig { padding: &[2], ..LINE });
    let row = case(row, "dilation", [&[1, 2, 2], &[2, 1, 3], &[]], ConvConfig { dilation: &[2], ..LINE });
    let more = ConvConfig { stride: &[3], padding: &[1], more: &[2], ..LINE };
    let row = case(row, "more outputs", [&[1, 2, 2], &[2, 1, 2], &[1]], more);
    let dilated = ConvConfig { dilation: &[3], more: &[2], ..LINE };
    let row = case(row, "more outputs below the dilation", [&[1, 1, 2], &[1, 1, 2], &[]], dilated);
    let row = case(row, "groups", [&[1, 4, 2], &[4, 1, 2], &[2]], ConvConfig { groups: 2, ..LINE });
    let row = case(row, "one image", [&[2, 3], &[2, 1, 2], &[1]], LINE);
    let row = case(row, "no image", [&[0, 2, 3], &[2, 1, 2], &[1]], LINE);
    with_transposed_checks(row, call, 1)
}

fn conv_transpose2d() -> Row {
    let call: Call = ops::conv_transpose2d;
    let case = |row, label, shapes, way| with(row, label, call, shapes, way);
    let row = row("conv_transpose2d");
    let row = case(row, "plain", [&[1, 2, 2, 2], &[2, 2, 2, 2], &[2]], PLANE);
    let uneven = ConvConfig { stride: &[2, 1], padding: &[1, 0], dilation: &[1, 2], more: &[1, 1], ..PLANE };
    let row = case(row, "a number for each axis", [&[1, 1, 2, 3], &[1, 2, 3, 2], &[2]], uneven);
    let row = case(row, "groups", [&[1, 2, 2, 2], &[2, 2, 1, 2], &[]], ConvConfig { groups: 2, ..PLANE });
    let row = case(row, "one image", [&[1, 2, 2], &[1, 2, 2, 2], &[]], PLANE);
    let row = case(row, "no image", [&[0, 1, 2, 2], &[1, 2, 2, 2], &[]], PLANE);
    let wide = ConvConfig { stride: &[2, 2], padding: &[1, 1], ..PLANE };
    let row = case(row, "large", [&[2, 18, 7, 9], &[18, 17, 3, 3], &[17]], wide).long().case_scale(40.0);
    with_transposed_checks(row, call, 2)
}

fn conv_transpose3d() -> Row {
    let call: Call = ops::conv_transpose3d;
    let case = |row, label, shapes, way| with(row, label, call, shapes, way);
    let row = row("conv_transpose3d");
    let row = case(row, "plain", [&[1, 1, 2, 1, 2], &[1, 2, 1, 2, 2], &[2]], SPACE);
    let uneven =
        ConvConfig { stride: &[2, 1, 1], padding: &[0, 1, 0], dilation: &[1, 2, 1], more: &[1, 1, 0], ..SPACE };
    let row = case(row, "a number for each axis", [&[1, 1, 2, 2, 2], &[1, 1, 1, 2, 2], &[1]], uneven);
    let row = case(row, "groups", [&[1, 2, 1, 2, 2], &[2, 1, 1, 2, 1], &[]], ConvConfig { groups: 2, ..SPACE });
    let row = case(row, "one image", [&[1, 1, 2, 2], &[1, 1, 2, 2, 1], &[]], SPACE);
    let row = case(row, "no image", [&[0, 1, 2, 2, 2], &[1, 1, 1, 2, 2], &[]], SPACE);
    with_transposed_checks(row, call, 3)
}
