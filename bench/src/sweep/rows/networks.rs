//! Operations of network layers: normalization, windows, recurrent layers, attention.

use super::shape::images;
use crate::sweep::OperandValues::{Normal, Uniform};
use crate::sweep::SweepRow;
use pellucid::ops::{self, ConvOptions, PoolOptions};
use pellucid::{Result, Tensor};

fn valid(result: Result<Tensor>) -> Tensor {
    result.expect("the shapes of the sweep must be valid")
}

/// Returns the shapes of a batch of rows, and of a weight and a bias per feature.
fn rows_and_features(n: usize) -> Vec<Vec<usize>> {
    let (rows, features) = [(4, 16), (128, 512), (1024, 1024)][n];
    vec![vec![rows, features], vec![features], vec![features]]
}

/// Returns the shapes of images, and of a weight and a bias per channel.
fn images_and_channels(n: usize) -> Vec<Vec<usize>> {
    let channels = images(n)[0][1];
    vec![images(n).remove(0), vec![channels], vec![channels]]
}

/// A signal `[N, C, L]`.
fn signals(n: usize) -> Vec<Vec<usize>> {
    vec![[vec![1, 4, 16], vec![8, 16, 512], vec![16, 64, 1024]][n].clone()]
}

/// A volume `[N, C, D, H, W]`.
fn volumes(n: usize) -> Vec<Vec<usize>> {
    vec![[vec![1, 4, 4, 4, 4], vec![2, 8, 16, 16, 16], vec![4, 16, 24, 24, 24]][n].clone()]
}

/// Returns the shapes of an input, and of a kernel with the same number of channels and 3 taps per axis.
fn with_kernel(input: Vec<usize>) -> Vec<Vec<usize>> {
    let channels = input[1];
    let kernel = [vec![channels; 2], vec![3; input.len() - 2]].concat();
    vec![input, kernel]
}

fn padded() -> ConvOptions {
    ConvOptions { padding: 1.into(), ..Default::default() }
}

pub(super) fn rows() -> Vec<SweepRow> {
    let groups = [normalisations(), convolutions(), pools(), resampling(), attention_and_recurrence()];
    groups.into_iter().flatten().map(|row| row.of_all(Normal)).chain(between()).collect()
}

fn normalisations() -> Vec<SweepRow> {
    vec![
        SweepRow::new("layer_norm", "F.layer_norm(a, a.shape[1:], b, c)", |t, _| {
            t[0].layer_norm(t[0].shape()[1], Some(&t[1]), Some(&t[2]), 1e-5)
        })
        .shapes(rows_and_features),
        SweepRow::new("rms_norm", "F.rms_norm(a, a.shape[1:], b, 1e-5)", |t, _| {
            t[0].rms_norm(t[0].shape()[1], Some(&t[1]), 1e-5)
        })
        .shapes(rows_and_features),
        SweepRow::new("batch_norm", "F.batch_norm(a, None, None, b, c, training=True)", |t, _| {
            t[0].batch_norm(None, Some(&t[1]), Some(&t[2]), ops::BatchNormOptions::default())
        })
        .shapes(images_and_channels),
        SweepRow::new("instance_norm", "F.instance_norm(a, None, None, b, c)", |t, _| {
            t[0].instance_norm(None, Some(&t[1]), Some(&t[2]), ops::BatchNormOptions::default())
        })
        .shapes(images_and_channels),
        SweepRow::new("group_norm", "F.group_norm(a, 2, b, c)", |t, _| {
            t[0].group_norm(2, Some(&t[1]), Some(&t[2]), 1e-5)
        })
        .shapes(images_and_channels),
        SweepRow::new("local_response_norm", "F.local_response_norm(a, 3)", |t, _| {
            t[0].local_response_norm(3, 1e-4, 0.75, 1.0)
        })
        .shapes(images),
        SweepRow::new("glu", "F.glu(a, 1)", |t, _| t[0].glu(1)).shapes(|n| rows_and_features(n)[..1].to_vec()),
        SweepRow::new("prelu", "F.prelu(a, b)", |t, _| t[0].prelu(&t[1]))
            .shapes(|n| images_and_channels(n)[..2].to_vec()),
    ]
}

fn convolutions() -> Vec<SweepRow> {
    vec![
        SweepRow::new("conv1d", "F.conv1d(a, b, padding=1)", |t, _| t[0].conv1d(&t[1], None, padded()))
            .shapes(|n| with_kernel(signals(n).remove(0))),
        SweepRow::new("conv2d", "F.conv2d(a, b, padding=1)", |t, _| t[0].conv2d(&t[1], None, padded()))
            .shapes(|n| with_kernel(images(n).remove(0))),
        SweepRow::new("conv2d", "F.conv2d(a, b, padding=2, dilation=2)", |t, _| {
            t[0].conv2d(&t[1], None, ConvOptions { padding: 2.into(), dilation: 2.into(), ..Default::default() })
        })
        .shapes(|n| with_kernel(images(n).remove(0))),
        SweepRow::new("conv2d", "F.conv2d(a, b[:, :1], padding=1, groups=a.shape[1])", |t, _| {
            let groups = t[0].shape()[1];
            t[0].conv2d(&t[1].narrow(1, 0, 1), None, ConvOptions { groups, ..padded() })
        })
        .shapes(|n| with_kernel(images(n).remove(0))),
        SweepRow::new("conv3d", "F.conv3d(a, b, padding=1)", |t, _| t[0].conv3d(&t[1], None, padded()))
            .shapes(|n| with_kernel(volumes(n).remove(0))),
        SweepRow::new("conv_transpose1d", "F.conv_transpose1d(a, b, stride=2)", |t, _| {
            t[0].conv_transpose1d(&t[1], None, ConvOptions { stride: 2.into(), ..Default::default() })
        })
        .shapes(|n| with_kernel(signals(n).remove(0))),
        SweepRow::new("conv_transpose2d", "F.conv_transpose2d(a, b, stride=2)", |t, _| {
            t[0].conv_transpose2d(&t[1], None, ConvOptions { stride: 2.into(), ..Default::default() })
        })
        .shapes(|n| with_kernel(images(n).remove(0))),
        SweepRow::new("conv_transpose3d", "F.conv_transpose3d(a, b, stride=2)", |t, _| {
            t[0].conv_transpose3d(&t[1], None, ConvOptions { stride: 2.into(), ..Default::default() })
        })
        .shapes(|n| with_kernel(volumes(n).remove(0))),
        SweepRow::new("unfold", "F.unfold(a, 3)", |t, _| t[0].unfold(ops::FoldOptions::new(3), 2)).shapes(images),
        SweepRow::new("fold", "F.fold(F.unfold(a, 3), a.shape[2:], 3)", |t, _| {
            let dims = &t[0].shape().dims()[2..];
            t[0].unfold(ops::FoldOptions::new(3), 2).fold(dims, ops::FoldOptions::new(3))
        })
        .shapes(images),
    ]
}

fn pools() -> Vec<SweepRow> {
    vec![
        SweepRow::new("max_pool1d", "F.max_pool1d(a, 2)", |t, _| t[0].max_pool1d(PoolOptions::new(2)).0)
            .shapes(signals),
        SweepRow::new("max_pool2d", "F.max_pool2d(a, 2)", |t, _| t[0].max_pool2d(PoolOptions::new(2)).0).shapes(images),
        SweepRow::new("max_pool2d", "F.max_pool2d(a, 3, 1, 1)", |t, _| {
            t[0].max_pool2d(PoolOptions { stride: Some(1.into()), padding: 1.into(), ..PoolOptions::new(3) }).0
        })
        .shapes(images),
        SweepRow::new("max_pool3d", "F.max_pool3d(a, 2)", |t, _| t[0].max_pool3d(PoolOptions::new(2)).0)
            .shapes(volumes),
        SweepRow::new("avg_pool1d", "F.avg_pool1d(a, 2)", |t, _| {
            t[0].avg_pool1d(PoolOptions::new(2), Default::default())
        })
        .shapes(signals),
        SweepRow::new("avg_pool2d", "F.avg_pool2d(a, 2)", |t, _| {
            t[0].avg_pool2d(PoolOptions::new(2), Default::default())
        })
        .shapes(images),
        SweepRow::new("avg_pool2d", "F.avg_pool2d(a, 3, 1, 1)", |t, _| {
            let options = PoolOptions { stride: Some(1.into()), padding: 1.into(), ..PoolOptions::new(3) };
            t[0].avg_pool2d(options, Default::default())
        })
        .shapes(images),
        SweepRow::new("avg_pool3d", "F.avg_pool3d(a, 2)", |t, _| {
            t[0].avg_pool3d(PoolOptions::new(2), Default::default())
        })
        .shapes(volumes),
        SweepRow::new("lp_pool1d", "F.lp_pool1d(a, 2.0, 2)", |t, _| t[0].lp_pool1d(2.0, PoolOptions::new(2)))
            .shapes(signals),
        SweepRow::new("lp_pool2d", "F.lp_pool2d(a, 2.0, 2)", |t, _| t[0].lp_pool2d(2.0, PoolOptions::new(2)))
            .shapes(images),
        SweepRow::new("lp_pool3d", "F.lp_pool3d(a, 2.0, 2)", |t, _| t[0].lp_pool3d(2.0, PoolOptions::new(2)))
            .shapes(volumes),
        SweepRow::new("adaptive_avg_pool1d", "F.adaptive_avg_pool1d(a, 3)", |t, _| {
            t[0].adaptive_avg_pool1d(&[Some(3)])
        })
        .shapes(signals),
        SweepRow::new("adaptive_avg_pool2d", "F.adaptive_avg_pool2d(a, 3)", |t, _| {
            t[0].adaptive_avg_pool2d(&[Some(3); 2])
        })
        .shapes(images),
        SweepRow::new("adaptive_avg_pool2d", "F.adaptive_avg_pool2d(a, 1)", |t, _| {
            t[0].adaptive_avg_pool2d(&[Some(1); 2])
        })
        .shapes(images),
        SweepRow::new("adaptive_avg_pool3d", "F.adaptive_avg_pool3d(a, 3)", |t, _| {
            t[0].adaptive_avg_pool3d(&[Some(3); 3])
        })
        .shapes(volumes),
        SweepRow::new("adaptive_max_pool1d", "F.adaptive_max_pool1d(a, 3)", |t, _| {
            t[0].adaptive_max_pool1d(&[Some(3)]).0
        })
        .shapes(signals),
        SweepRow::new("adaptive_max_pool2d", "F.adaptive_max_pool2d(a, 3)", |t, _| {
            t[0].adaptive_max_pool2d(&[Some(3); 2]).0
        })
        .shapes(images),
        SweepRow::new("adaptive_max_pool3d", "F.adaptive_max_pool3d(a, 3)", |t, _| {
            t[0].adaptive_max_pool3d(&[Some(3); 3]).0
        })
        .shapes(volumes),
        SweepRow::new("max_unpool1d", "F.max_unpool1d(*F.max_pool1d(a, 2, return_indices=True), 2)", |t, _| {
            let (y, indices) = t[0].max_pool1d(PoolOptions::new(2));
            y.max_unpool1d(&indices, &t[0].shape()[2..])
        })
        .shapes(signals),
        SweepRow::new("max_unpool2d", "F.max_unpool2d(*F.max_pool2d(a, 2, return_indices=True), 2)", |t, _| {
            let (y, indices) = t[0].max_pool2d(PoolOptions::new(2));
            y.max_unpool2d(&indices, &t[0].shape()[2..])
        })
        .shapes(images),
        SweepRow::new("max_unpool3d", "F.max_unpool3d(*F.max_pool3d(a, 2, return_indices=True), 2)", |t, _| {
            let (y, indices) = t[0].max_pool3d(PoolOptions::new(2));
            y.max_unpool3d(&indices, &t[0].shape()[2..])
        })
        .shapes(volumes),
    ]
}

fn resampling() -> Vec<SweepRow> {
    vec![
        SweepRow::new("interpolate", "F.interpolate(a, scale_factor=2)", |t, _| {
            t[0].interpolate(ops::Resize::By(vec![2.0; 2]), ops::InterpolationMode::Nearest)
        })
        .shapes(images),
        SweepRow::new("interpolate", "F.interpolate(a, scale_factor=2, mode='bilinear')", |t, _| {
            t[0].interpolate(ops::Resize::By(vec![2.0; 2]), ops::InterpolationMode::Linear { align_corners: false })
        })
        .shapes(images),
        SweepRow::new("interpolate", "F.interpolate(a, scale_factor=2, mode='bicubic')", |t, _| {
            t[0].interpolate(ops::Resize::By(vec![2.0; 2]), ops::InterpolationMode::Cubic { align_corners: false })
        })
        .shapes(images),
        SweepRow::new("interpolate", "F.interpolate(a, scale_factor=0.5, mode='bilinear', antialias=True)", |t, _| {
            t[0].interpolate(ops::Resize::By(vec![0.5; 2]), ops::InterpolationMode::LinearAntialias)
        })
        .shapes(images),
        SweepRow::new("affine_grid", "F.affine_grid(a, (a.shape[0], 1, 64, 64), align_corners=False)", |t, _| {
            t[0].affine_grid(&[64, 64], false)
        })
        .shapes(|n| vec![vec![[1, 8, 128][n], 2, 3]]),
    ]
}

/// Returns the rows whose operands have bounded values.
fn between() -> Vec<SweepRow> {
    vec![
        SweepRow::new("grid_sample", "F.grid_sample(a, b, align_corners=False)", |t, _| {
            t[0].grid_sample(&t[1], ops::GridSampleMode::Linear, ops::GridSamplePadding::Zeros, false)
        })
        .of([Normal, Uniform(-1.0, 1.0)])
        .shapes(|n| {
            let [batch, _, height, width] = images(n)[0][..] else { unreachable!("an image has 4 axes") };
            vec![images(n).remove(0), vec![batch, height, width, 2]]
        }),
        SweepRow::new("fractional_max_pool2d", "F.fractional_max_pool2d(a, 2, output_ratio=(0.5, 0.5))", |t, _| {
            let [height, width] = [t[0].shape()[2] / 2, t[0].shape()[3] / 2];
            t[0].fractional_max_pool2d(2, [height, width], None).0
        })
        .of([Normal])
        .shapes(images),
        SweepRow::new(
            "fractional_max_pool3d",
            "F.fractional_max_pool3d(a, 2, output_ratio=(0.5, 0.5, 0.5))",
            |t, _| {
                let half = t[0].shape()[2] / 2;
                t[0].fractional_max_pool3d(2, [half; 3], None).0
            },
        )
        .of([Normal])
        .shapes(volumes),
    ]
}

/// Returns the shapes of queries, keys and values, `[N, H, L, E]`.
fn heads(n: usize) -> Vec<Vec<usize>> {
    vec![[vec![1, 2, 4, 8], vec![2, 4, 64, 64], vec![2, 8, 256, 64]][n].clone(); 3]
}

/// Returns the shapes of inputs `[L, N, I]` and of the weights of a layer with `gates` gates.
fn sequence(n: usize, gates: usize) -> Vec<Vec<usize>> {
    let (steps, batch, width) = [(4, 2, 8), (16, 16, 64), (32, 32, 256)][n];
    let rows = gates * width;
    vec![vec![steps, batch, width], vec![rows, width], vec![rows, width], vec![rows], vec![rows]]
}

fn weights(t: &[Tensor]) -> ops::RecurrentWeights<'_> {
    ops::RecurrentWeights {
        weight_ih: &t[1],
        weight_hh: &t[2],
        bias_ih: Some(&t[3]),
        bias_hh: Some(&t[4]),
        weight_hr: None,
    }
}

fn attention_and_recurrence() -> Vec<SweepRow> {
    vec![
        SweepRow::new("scaled_dot_product_attention", "F.scaled_dot_product_attention(a, b, c)", |t, _| {
            t[0].scaled_dot_product_attention(&t[1], &t[2], Default::default())
        })
        .shapes(heads),
        SweepRow::new("scaled_dot_product_attention", "F.scaled_dot_product_attention(a, b, c, is_causal=True)", |t, _| {
            let options = ops::AttentionOptions { causal: true, ..Default::default() };
            t[0].scaled_dot_product_attention(&t[1], &t[2], options)
        })
        .shapes(heads),
        SweepRow::new("rnn", "torch.rnn_tanh(a, zeros(1, a.shape[1], c.shape[1]), (b, c, e, f), True, 1, 0.0, False, False, False)[0]", |t, _| {
            t[0].rnn(weights(t), None, ops::RnnNonlinearity::Tanh, Default::default()).0
        })
        .shapes(|n| sequence(n, 1)),
        SweepRow::new("gru", "torch.gru(a, zeros(1, a.shape[1], c.shape[1]), (b, c, e, f), True, 1, 0.0, False, False, False)[0]", |t, _| {
            t[0].gru(weights(t), None, Default::default()).0
        })
        .shapes(|n| sequence(n, 3)),
        SweepRow::new("lstm", "torch.lstm(a, (zeros(1, a.shape[1], c.shape[1]),) * 2, (b, c, e, f), True, 1, 0.0, False, False, False)[0]", |t, _| {
            t[0].lstm(weights(t), None, Default::default()).0
        })
        .shapes(|n| sequence(n, 4)),
        SweepRow::new("map", "F.gelu(a @ b.t() + c)", |t, _| valid(ops::linear(&t[0], &t[1], Some(&t[2]))).gelu()).shapes(|n| {
            let (rows, features) = [(4, 16), (128, 256), (1024, 512)][n];
            vec![vec![rows, features], vec![features; 2], vec![features]]
        }),
    ]
}
