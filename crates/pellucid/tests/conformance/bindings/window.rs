//! Convolutions, pooling, and other windows over images.

use super::Binder;
use crate::call::Call;
use pellucid::ops::{
    self, AvgPoolDivisor, ConvOptions, ConvPadding, FoldOptions, GridSampleMode, GridSamplePadding, InterpolationMode,
    PoolOptions, Resize, Spatial,
};
use pellucid::{Error, GradOptions, Result, Tensor, grad};

type Convolution = fn(&Tensor, &Tensor, Option<&Tensor>, ConvOptions) -> Result<Tensor>;
type MaxPool = fn(&Tensor, PoolOptions) -> Result<(Tensor, Tensor)>;
type AvgPool = fn(&Tensor, PoolOptions, AvgPoolDivisor) -> Result<Tensor>;
type LpPool = fn(&Tensor, f64, PoolOptions) -> Result<Tensor>;
type Unpool = fn(&Tensor, &Tensor, &[usize]) -> Result<Tensor>;
type AdaptiveAvg = fn(&Tensor, &[Option<usize>]) -> Result<Tensor>;
type AdaptiveMax = fn(&Tensor, &[Option<usize>]) -> Result<(Tensor, Tensor)>;

pub(super) fn bind(table: &mut Binder) {
    convolutions(table);
    pools(table);
    adaptive(table);
    resampled(table);
    table.one("nn.functional.unfold", |c| ops::unfold(c.x()?, folds(c, 1)?, 2));
    table.one("nn.functional.fold", |c| {
        let dims = numbers(c.ints(1, "output_size").unwrap_or_default())?;
        let dims = if dims.len() == 1 { vec![dims[0]; 2] } else { dims };
        ops::fold(c.x()?, &dims, folds(c, 2)?)
    });
    table.one("nn.functional.pixel_shuffle", |c| ops::pixel_shuffle(c.x()?, c.count(1, "upscale_factor")?));
    table.one("nn.functional.pixel_unshuffle", |c| ops::pixel_unshuffle(c.x()?, c.count(1, "downscale_factor")?));
    table.one("nn.functional.channel_shuffle", |c| ops::channel_shuffle(c.x()?, c.count(1, "groups")?));
}

fn numbers(list: Vec<isize>) -> Result<Vec<usize>> {
    let number = |n: &isize| usize::try_from(*n).map_err(|_| Error::invalid("call", format!("{n} is negative")));
    list.iter().map(number).collect()
}

/// Returns one number per spatial axis, or a single number for all axes.
fn spatial(c: &Call, at: usize, name: &str) -> Result<Option<Spatial>> {
    Ok(match c.ints(at, name) {
        Some(list) if !list.is_empty() => Some(numbers(list)?.into()),
        _ => None,
    })
}

fn folds(c: &Call, at: usize) -> Result<FoldOptions> {
    let lengths = |k, name, default: usize| Result::Ok(spatial(c, at + k, name)?.unwrap_or(default.into()));
    Ok(FoldOptions {
        size: lengths(0, "kernel_size", 1)?,
        dilation: lengths(1, "dilation", 1)?,
        padding: lengths(2, "padding", 0)?,
        stride: lengths(3, "stride", 1)?,
    })
}

fn convolutions(table: &mut Binder) {
    let plain: [(&str, Convolution); 3] = [
        ("nn.functional.conv1d", ops::conv1d),
        ("nn.functional.conv2d", ops::conv2d),
        ("nn.functional.conv3d", ops::conv3d),
    ];
    for (name, conv) in plain {
        table.one(name, move |c| {
            let padding = match c.text(4, "padding") {
                Some("same") => ConvPadding::Same,
                Some("valid") => 0.into(),
                _ => spatial(c, 4, "padding")?.map_or(0.into(), ConvPadding::Both),
            };
            let options = ConvOptions {
                stride: spatial(c, 3, "stride")?.unwrap_or(1.into()),
                padding,
                dilation: spatial(c, 5, "dilation")?.unwrap_or(1.into()),
                groups: c.int(6, "groups").unwrap_or(1) as usize,
                output_padding: 0.into(),
            };
            conv(c.x()?, c.tensor(1, "weight")?, c.optional(2, "bias"), options)
        });
    }
    let transposed: [(&str, Convolution); 3] = [
        ("nn.functional.conv_transpose1d", ops::conv_transpose1d),
        ("nn.functional.conv_transpose2d", ops::conv_transpose2d),
        ("nn.functional.conv_transpose3d", ops::conv_transpose3d),
    ];
    for (name, conv) in transposed {
        table.one(name, move |c| {
            let options = ConvOptions {
                stride: spatial(c, 3, "stride")?.unwrap_or(1.into()),
                padding: spatial(c, 4, "padding")?.map_or(0.into(), ConvPadding::Both),
                output_padding: spatial(c, 5, "output_padding")?.unwrap_or(0.into()),
                groups: c.int(6, "groups").unwrap_or(1) as usize,
                dilation: spatial(c, 7, "dilation")?.unwrap_or(1.into()),
            };
            conv(c.x()?, c.tensor(1, "weight")?, c.optional(2, "bias"), options)
        });
    }
}

/// Returns size, stride, padding and rounding from argument `at` on, in the order that all pooling operations share.
fn pool(c: &Call, at: usize, with_padding: bool) -> Result<PoolOptions> {
    let size = spatial(c, at, "kernel_size")?.ok_or_else(|| Error::invalid("call", "the call has no kernel_size"))?;
    let mut pool = PoolOptions::new(size);
    pool.stride = spatial(c, at + 1, "stride")?;
    if with_padding && let Some(padding) = spatial(c, at + 2, "padding")? {
        pool.padding = padding;
    }
    Ok(pool)
}

fn pools(table: &mut Binder) {
    let max: [(&str, MaxPool); 3] = [
        ("nn.functional.max_pool1d", ops::max_pool1d),
        ("nn.functional.max_pool2d", ops::max_pool2d),
        ("nn.functional.max_pool3d", ops::max_pool3d),
    ];
    for (name, max) in max {
        table.many(name, move |c| {
            let mut pool = pool(c, 1, true)?;
            pool.dilation = spatial(c, 4, "dilation")?.unwrap_or(1.into());
            pool.ceil = c.flag(5, "ceil_mode");
            let (values, positions) = max(c.x()?, pool)?;
            Ok(if c.flag(6, "return_indices") { vec![values, positions] } else { vec![values] })
        });
    }
    table.one("max_pool2d_with_indices_backward", |c| {
        // The gradient of the sum is constant if no two elements of a window are equal.
        let x = c.x()?.detach().requires_grad_(true);
        let mut pool = pool(c, 1, true)?;
        pool.dilation = spatial(c, 4, "dilation")?.unwrap_or(1.into());
        pool.ceil = c.flag(5, "ceil_mode");
        let (values, _) = ops::max_pool2d(&x, pool)?;
        Ok(grad(&[&ops::sum(&values, ..)?], &[&x], GradOptions::default())?.remove(0))
    });
    let avg: [(&str, AvgPool); 3] = [
        ("nn.functional.avg_pool1d", ops::avg_pool1d),
        ("nn.functional.avg_pool2d", ops::avg_pool2d),
        ("nn.functional.avg_pool3d", ops::avg_pool3d),
    ];
    for (name, avg) in avg {
        table.one(name, move |c| {
            let mut pool = pool(c, 1, true)?;
            pool.ceil = c.flag(4, "ceil_mode");
            let inside = c.get(5, "count_include_pad").is_some() && !c.flag(5, "count_include_pad");
            let divisor = match c.float(6, "divisor_override") {
                Some(number) => AvgPoolDivisor::Number(number),
                None if inside => AvgPoolDivisor::Inside,
                None => AvgPoolDivisor::Window,
            };
            avg(c.x()?, pool, divisor)
        });
    }
    let lp: [(&str, LpPool); 3] = [
        ("nn.functional.lp_pool1d", ops::lp_pool1d),
        ("nn.functional.lp_pool2d", ops::lp_pool2d),
        ("nn.functional.lp_pool3d", ops::lp_pool3d),
    ];
    for (name, lp) in lp {
        table.one(name, move |c| {
            let mut pool = pool(c, 2, false)?;
            pool.ceil = c.flag(4, "ceil_mode");
            lp(c.x()?, c.float(1, "norm_type").unwrap_or(2.0), pool)
        });
    }
    let unpool: [(&str, &str, usize, Unpool); 3] = [
        ("nn.functional.max_unpool1d", "nn.functional.max_unpool1d.grad", 1, ops::max_unpool1d),
        ("nn.functional.max_unpool2d", "nn.functional.max_unpool2d.grad", 2, ops::max_unpool2d),
        ("nn.functional.max_unpool3d", "nn.functional.max_unpool3d.grad", 3, ops::max_unpool3d),
    ];
    for (name, with_gradient, axes, unpool) in unpool {
        let both = move |c: &Call| -> Result<Tensor> {
            let (x, positions) = (c.x()?, c.tensor(1, "indices")?);
            let all = |list: Option<Vec<isize>>| list.map(|l| if l.len() == 1 { vec![l[0]; axes] } else { l });
            let dims = match c.ints(5, "output_size") {
                Some(dims) => numbers(dims)?,
                None => {
                    let size = all(c.ints(2, "kernel_size")).unwrap_or_default();
                    let stride = all(c.ints(3, "stride")).filter(|s| !s.is_empty()).unwrap_or(size.clone());
                    if stride.iter().any(|&s| s <= 0) {
                        return Err(Error::invalid("max_unpool", "strides must be positive"));
                    }
                    let padding = all(c.ints(4, "padding")).unwrap_or(vec![0; axes]);
                    let given = &x.shape()[x.rank().saturating_sub(axes)..];
                    let dim = |a: usize| (given[a] as isize - 1) * stride[a] - 2 * padding[a] + size[a];
                    numbers((0..given.len().min(size.len())).map(dim).collect())?
                }
            };
            unpool(x, positions, &dims[dims.len().saturating_sub(axes)..])
        };
        table.one(name, both);
        table.one(with_gradient, both);
    }
}

fn adaptive(table: &mut Binder) {
    let lengths = |c: &Call| -> Result<Vec<Option<usize>>> { c.optional_counts(1, "output_size") };
    let avg: [(&str, AdaptiveAvg); 3] = [
        ("nn.functional.adaptive_avg_pool1d", ops::adaptive_avg_pool1d),
        ("nn.functional.adaptive_avg_pool2d", ops::adaptive_avg_pool2d),
        ("nn.functional.adaptive_avg_pool3d", ops::adaptive_avg_pool3d),
    ];
    for (name, avg) in avg {
        table.one(name, move |c| avg(c.x()?, &lengths(c)?));
    }
    let max: [(&str, AdaptiveMax); 3] = [
        ("nn.functional.adaptive_max_pool1d", ops::adaptive_max_pool1d),
        ("nn.functional.adaptive_max_pool2d", ops::adaptive_max_pool2d),
        ("nn.functional.adaptive_max_pool3d", ops::adaptive_max_pool3d),
    ];
    for (name, max) in max {
        table.many(name, move |c| {
            let (values, positions) = max(c.x()?, &lengths(c)?)?;
            Ok(if c.flag(2, "return_indices") { vec![values, positions] } else { vec![values] })
        });
    }
}

fn resampled(table: &mut Binder) {
    for name in [
        "nn.functional.interpolate.nearest",
        "nn.functional.interpolate.nearest-exact",
        "nn.functional.interpolate.linear",
        "nn.functional.interpolate.bilinear",
        "nn.functional.interpolate.trilinear",
        "nn.functional.interpolate.bicubic",
        "nn.functional.interpolate.area",
        "nn.functional.upsample_nearest",
        "nn.functional.upsample_bilinear",
    ] {
        table.one(name, move |c| {
            let x = c.x()?;
            let axes = x.rank().saturating_sub(2);
            let align_corners = c.flag(4, "align_corners") || name.ends_with("upsample_bilinear");
            let mode = match c.text(3, "mode").unwrap_or(name.rsplit(['.', '_']).next().unwrap_or_default()) {
                "nearest-exact" => InterpolationMode::NearestExact,
                "linear" | "bilinear" | "trilinear" => InterpolationMode::Linear { align_corners },
                "bicubic" => InterpolationMode::Cubic { align_corners },
                "area" => InterpolationMode::Area,
                _ => InterpolationMode::Nearest,
            };
            let size = match c.ints(1, "size") {
                Some(size) if size.len() == 1 => Resize::To(numbers(vec![size[0]; axes])?),
                Some(size) => Resize::To(numbers(size)?),
                None => {
                    let factors = c.floats(2, "scale_factor").unwrap_or_default();
                    let factors = if factors.len() == 1 { vec![factors[0]; axes] } else { factors };
                    if c.flag(5, "recompute_scale_factor") {
                        let len = |(f, &len): (&f64, &usize)| (len as f64 * f).floor() as usize;
                        Resize::To(factors.iter().zip(&x.shape()[2..]).map(len).collect())
                    } else {
                        Resize::By(factors)
                    }
                }
            };
            ops::interpolate(x, size, mode)
        });
    }
    table.one("nn.functional.grid_sample", |c| {
        let mode = match c.text(2, "mode") {
            Some("nearest") => GridSampleMode::Nearest,
            Some("bicubic") => GridSampleMode::Cubic,
            _ => GridSampleMode::Linear,
        };
        let outside = match c.text(3, "padding_mode") {
            Some("border") => GridSamplePadding::Border,
            Some("reflection") => GridSamplePadding::Reflection,
            _ => GridSamplePadding::Zeros,
        };
        ops::grid_sample(c.x()?, c.tensor(1, "grid")?, mode, outside, c.flag(4, "align_corners"))
    });
    for name in ["grid_sampler_2d", "grid_sampler_3d"] {
        table.one(name, |c| {
            let mode = match c.int(2, "interpolation_mode") {
                Some(1) => GridSampleMode::Nearest,
                Some(2) => GridSampleMode::Cubic,
                _ => GridSampleMode::Linear,
            };
            let outside = match c.int(3, "padding_mode") {
                Some(1) => GridSamplePadding::Border,
                Some(2) => GridSamplePadding::Reflection,
                _ => GridSamplePadding::Zeros,
            };
            ops::grid_sample(c.x()?, c.tensor(1, "grid")?, mode, outside, c.flag(4, "align_corners"))
        });
    }
    table.one("nn.functional.affine_grid", |c| {
        let dims = numbers(c.ints(1, "size").unwrap_or_default())?;
        ops::affine_grid(c.x()?, dims.get(2..).unwrap_or(&[]), c.flag(2, "align_corners"))
    });
}
