//! Softmax and the normalizations.

use crate::table::nd::{Nd, zip};
use crate::table::row::{Gradient::Third, Input, Row, Rule, argument_rejected, real, shape_rejected};
use ops::{BatchNormOptions, RunningStatistics};
use pellucid_tensor::{DType, Error, Result, Tensor, ops};

pub(super) fn rows() -> Vec<Row> {
    vec![
        softmax(),
        log_softmax(),
        layer_norm(),
        rms_norm(),
        batch_norm(),
        instance_norm(),
        group_norm(),
        local_response_norm(),
    ]
}

/// Returns the largest element, or NaN if there is one.
fn largest(x: &[f64]) -> f64 {
    x.iter().fold(f64::NEG_INFINITY, |m, &v| if v.is_nan() || m.is_nan() { f64::NAN } else { m.max(v) })
}

fn softmax_of(x: &[f64]) -> Vec<f64> {
    let e: Vec<f64> = x.iter().map(|v| (v - largest(x)).exp()).collect();
    e.iter().map(|v| v / e.iter().sum::<f64>()).collect()
}

fn log_softmax_of(x: &[f64]) -> Vec<f64> {
    let m = largest(x);
    let sum: f64 = x.iter().map(|v| (v - m).exp()).sum();
    x.iter().map(|v| v - m - sum.ln()).collect()
}

/// Returns a row of a normalizing function over several choices of axes.
fn over_axes(
    name: &'static str,
    call: fn(&Tensor, ops::Axes) -> pellucid_tensor::Result<Tensor>,
    row_of: fn(&[f64]) -> Vec<f64>,
) -> Row {
    Row::new(name)
        .case("the last axis", [real([2, 3])], move |x| call(&x[0], (-1).into()), move |x| x[0].rows(&[1], row_of))
        .case("the first axis", [real([3, 2])], move |x| call(&x[0], 0.into()), move |x| x[0].rows(&[0], row_of))
        .floats_only()
        .case("the middle axis", [real([2, 3, 2])], move |x| call(&x[0], 1.into()), move |x| x[0].rows(&[1], row_of))
        .floats_only()
        .case("two axes", [real([2, 2, 2])], move |x| call(&x[0], [0, 2].into()), move |x| x[0].rows(&[0, 2], row_of))
        .floats_only()
        .case("all axes", [real([2, 3])], move |x| call(&x[0], (..).into()), move |x| x[0].rows(&[0, 1], row_of))
        .floats_only()
        .case("a number", [real([])], move |x| call(&x[0], (..).into()), move |x| x[0].rows(&[], row_of))
        .floats_only()
        .case("long", [real([2, 1500])], move |x| call(&x[0], (-1).into()), move |x| x[0].rows(&[1], row_of))
        .long()
        .case("no row", [real([0, 3])], move |x| call(&x[0], (-1).into()), move |x| x[0].rows(&[1], row_of))
        .floats_only()
        .case("empty rows", [real([2, 0])], move |x| call(&x[0], (-1).into()), move |x| x[0].rows(&[1], row_of))
        .floats_only()
        .gradient(Third)
        .ulps(16.0)
}

fn softmax() -> Row {
    over_axes("softmax", ops::softmax, softmax_of)
        .rule(Rule::Floats)
        .check("large inputs", || {
            Ok(ops::softmax(&Tensor::from([1e4f32, 1e4, -1e4]), 0)?.to_vec::<f32>() == [0.5, 0.5, 0.0])
        })
        .check("an element of −∞", || {
            Ok(ops::softmax(&Tensor::from([0.0, f64::NEG_INFINITY, 0.0]), 0)?.to_vec::<f64>() == [0.5, 0.0, 0.5])
        })
}

fn log_softmax() -> Row {
    over_axes("log_softmax", ops::log_softmax, log_softmax_of).rule(Rule::Floats).scale(2.0).check(
        "large inputs",
        || Ok(ops::log_softmax(&Tensor::from([1e4f32, -1e4]), 0)?.to_vec::<f32>() == [0.0, -2e4]),
    )
}

const EPS: f64 = 0.01;

/// Computes the mean of f over the last `count` axes, broadcast back.
fn mean_of(x: &Nd, count: usize, f: impl Fn(f64) -> f64) -> Nd {
    let axes: Vec<usize> = (x.shape.len() - count..x.shape.len()).collect();
    x.fold(&axes, |row| row.iter().map(|&v| f(v)).sum::<f64>() / row.len() as f64).broadcast(&x.shape)
}

/// Computes (x − mean) / √(var + eps) over the last `count` axes, times a weight, plus a bias.
fn layer_norm_of(x: &[Nd], count: usize) -> Nd {
    let centred = zip(&[x[0].clone(), mean_of(&x[0], count, |v| v)], |v| v[0] - v[1]);
    affine(&centred, &mean_of(&centred, count, |v| v * v), &x[1..])
}

fn rms_norm_of(x: &[Nd], count: usize) -> Nd {
    affine(&x[0], &mean_of(&x[0], count, |v| v * v), &x[1..])
}

fn affine(x: &Nd, square: &Nd, rest: &[Nd]) -> Nd {
    let mut all = vec![x.clone(), square.clone()];
    all.extend_from_slice(rest);
    zip(&all, |v| v[0] / (v[1] + EPS).sqrt() * v.get(2).unwrap_or(&1.0) + v.get(3).unwrap_or(&0.0))
}

fn layer_norm() -> Row {
    Row::new("layer_norm")
        .rule(Rule::FloatsOnly)
        .ulps(64.0)
        .scale(1.0)
        .case("plain", [real([2, 3])], |x| ops::layer_norm(&x[0], 3, None, None, EPS), |x| layer_norm_of(x, 1))
        .case(
            "weight",
            [real([2, 3]), real([3])],
            |x| ops::layer_norm(&x[0], 3, Some(&x[1]), None, EPS),
            |x| layer_norm_of(x, 1),
        )
        .floats_only()
        .case(
            "weight and bias",
            [real([2, 3]), real([3]), real([3])],
            |x| ops::layer_norm(&x[0], 3, Some(&x[1]), Some(&x[2]), EPS),
            |x| layer_norm_of(x, 1),
        )
        .floats_only()
        .case(
            "bias",
            [real([2, 3]), real([3])],
            |x| ops::layer_norm(&x[0], 3, None, Some(&x[1]), EPS),
            |x| layer_norm_of(&[x[0].clone(), Nd::from_fn(&[3], |_| 1.0), x[1].clone()], 1),
        )
        .floats_only()
        .case(
            "two axes",
            [real([2, 2, 2]), real([2, 2]), real([2, 2])],
            |x| ops::layer_norm(&x[0], [2, 2], Some(&x[1]), Some(&x[2]), EPS),
            |x| layer_norm_of(x, 2),
        )
        .floats_only()
        .case(
            "no row",
            [real([0, 3]), real([3]), real([3])],
            |x| ops::layer_norm(&x[0], 3, Some(&x[1]), Some(&x[2]), EPS),
            |x| layer_norm_of(x, 1),
        )
        .floats_only()
        .check("a shape that differs from the last axes must be an error", || {
            Ok(ops::layer_norm(&Tensor::zeros([2, 3], DType::F32), 2, None, None, EPS).is_err())
        })
        .check("a weight of another shape must be an error", || {
            let x = Tensor::zeros([2, 3], DType::F32);
            Ok(ops::layer_norm(&x, 3, Some(&x), None, EPS).is_err())
        })
}

fn rms_norm() -> Row {
    Row::new("rms_norm")
        .rule(Rule::FloatsOnly)
        .ulps(64.0)
        .scale(1.0)
        .case("plain", [real([2, 3])], |x| ops::rms_norm(&x[0], 3, None, EPS), |x| rms_norm_of(x, 1))
        .case("weight", [real([2, 3]), real([3])], |x| ops::rms_norm(&x[0], 3, Some(&x[1]), EPS), |x| rms_norm_of(x, 1))
        .floats_only()
        .case(
            "two axes",
            [real([2, 2, 2]), real([2, 2])],
            |x| ops::rms_norm(&x[0], [2, 2], Some(&x[1]), EPS),
            |x| rms_norm_of(x, 2),
        )
        .floats_only()
        .case("no row", [real([0, 3]), real([3])], |x| ops::rms_norm(&x[0], 3, Some(&x[1]), EPS), |x| rms_norm_of(x, 1))
        .floats_only()
}

/// Reshapes one number for each channel so that it broadcasts to `[N, C, ..]`.
fn per_channel(values: &Nd, rank: usize) -> Nd {
    let shape: Vec<usize> = (0..rank).map(|a| if a == 1 { values.data.len() } else { 1 }).collect();
    values.reshape(&shape)
}

/// Computes (x − mean) / √(square + EPS)·weight + bias with optional weight and bias, one number for each channel.
fn scaled(centred: &Nd, square: &Nd, rest: &[Option<&Nd>; 2]) -> Nd {
    let rank = centred.shape.len();
    let [weight, bias] = rest.map(|values| values.map(|v| per_channel(v, rank)));
    let y = zip(&[centred.clone(), square.clone()], |v| v[0] / (v[1] + EPS).sqrt());
    let y = weight.map_or(y.clone(), |w| zip(&[y, w], |v| v[0] * v[1]));
    bias.map_or(y.clone(), |b| zip(&[y, b], |v| v[0] + v[1]))
}

/// Normalizes by the mean and biased variance of x over `axes`.
fn standard(x: &Nd, axes: &[usize], rest: &[Option<&Nd>; 2]) -> Nd {
    let mean = |row: &[f64]| row.iter().sum::<f64>() / row.len() as f64;
    let centred = zip(&[x.clone(), x.fold(axes, mean)], |v| v[0] - v[1]);
    let square = centred.map(|v| v * v).fold(axes, mean);
    scaled(&centred, &square, rest)
}

/// Normalizes by the given means and variances.
fn by_running(x: &[Nd], rest: &[Option<&Nd>; 2]) -> Nd {
    let [mean, var] = [1, 2].map(|i| per_channel(&x[i], x[0].shape.len()));
    scaled(&zip(&[x[0].clone(), mean], |v| v[0] - v[1]), &var, rest)
}

const TRAINING: BatchNormOptions = BatchNormOptions { training: true, momentum: 0.25, eps: EPS };
const FIXED: BatchNormOptions = BatchNormOptions { training: false, ..TRAINING };

type OverChannels =
    fn(&Tensor, Option<RunningStatistics<'_>>, Option<&Tensor>, Option<&Tensor>, BatchNormOptions) -> Result<Tensor>;

/// Returns a row of a normalization by the statistics over `axes` of each shape, or by running statistics.
fn over_channels(name: &'static str, call: OverChannels, axes: fn(usize) -> Vec<usize>) -> Row {
    let own = move |x: &Nd, rest: [Option<&Nd>; 2]| standard(x, &axes(x.shape.len()), &rest);
    let shapes: [&'static [usize]; 4] = [&[2, 2, 3], &[2, 1, 2, 2], &[1, 2, 1, 2, 2], &[2, 0, 3]];
    let mut row = Row::new(name).rule(Rule::FloatsOnly).ulps(64.0).scale(4.0);
    for shape in shapes {
        let inputs = [Input { shape: shape.to_vec(), ..real([]) }];
        row = row
            .case(
                format!("plain, {shape:?}"),
                inputs,
                move |x| call(&x[0], None, None, None, TRAINING),
                move |x| own(&x[0], [None, None]),
            )
            .floats_only();
    }
    row.case(
        "weight and bias",
        [real([2, 2, 3]), real([2]), real([2])],
        move |x| call(&x[0], None, Some(&x[1]), Some(&x[2]), TRAINING),
        move |x| own(&x[0], [Some(&x[1]), Some(&x[2])]),
    )
    .floats_only()
    .case(
        "weight",
        [real([2, 2, 2]), real([2])],
        move |x| call(&x[0], None, Some(&x[1]), None, TRAINING),
        move |x| own(&x[0], [Some(&x[1]), None]),
    )
    .floats_only()
    .case(
        "bias",
        [real([2, 2, 2]), real([2])],
        move |x| call(&x[0], None, None, Some(&x[1]), TRAINING),
        move |x| own(&x[0], [None, Some(&x[1])]),
    )
    .floats_only()
    .case(
        "running statistics",
        [real([2, 2, 2]), real([2]), real([2]).within(0.5..=2.0)],
        move |x| call(&x[0], Some(RunningStatistics { mean: &x[1], var: &x[2] }), None, None, FIXED),
        |x| by_running(x, &[None, None]),
    )
    .floats_only()
    .case(
        "running statistics, weight and bias",
        [real([2, 2, 1]), real([2]), real([2]).within(0.5..=2.0), real([2]), real([2])],
        move |x| call(&x[0], Some(RunningStatistics { mean: &x[1], var: &x[2] }), Some(&x[3]), Some(&x[4]), FIXED),
        |x| by_running(x, &[Some(&x[3]), Some(&x[4])]),
    )
    .floats_only()
    .check("evaluation without running statistics must be an error", move || {
        argument_rejected(call(&Tensor::ones([2, 2, 2], DType::F64), None, None, None, FIXED))
    })
    .check("a weight of another length must be an error", move || {
        shape_rejected(call(
            &Tensor::ones([2, 2, 2], DType::F64),
            None,
            Some(&Tensor::ones([3], DType::F64)),
            None,
            TRAINING,
        ))
    })
    .check("a running mean of another length must be an error", move || {
        let (mean, var) = (Tensor::ones([3], DType::F64), Tensor::ones([2], DType::F64));
        let running = Some(RunningStatistics { mean: &mean, var: &var });
        shape_rejected(call(&Tensor::ones([2, 2, 2], DType::F64), running, None, None, TRAINING))
    })
    .check("training with one value for each channel must be an error", move || {
        argument_rejected(call(&Tensor::ones([1, 2, 1], DType::F64), None, None, None, TRAINING))
    })
    .check("a 0-d tensor must be an error", move || {
        shape_rejected(call(&Tensor::from(1.0), None, None, None, TRAINING))
    })
    .check("an empty batch must not change running statistics", move || {
        let (mean, var) = (Tensor::from([0.5, 1.5]), Tensor::from([1.0, 2.0]));
        let running = Some(RunningStatistics { mean: &mean, var: &var });
        let y = call(&Tensor::ones([0, 2, 3], DType::F64), running, None, None, TRAINING)?;
        Ok(y.shape()[..] == [0, 2, 3] && mean.to_vec::<f64>() == [0.5, 1.5] && var.to_vec::<f64>() == [1.0, 2.0])
    })
}

fn batch_norm() -> Row {
    over_channels("batch_norm", ops::batch_norm, |rank| (0..rank).filter(|&a| a != 1).collect())
        .case(
            "vectors",
            [real([3, 2])],
            |x| ops::batch_norm(&x[0], None, None, None, TRAINING),
            |x| standard(&x[0], &[0], &[None, None]),
        )
        .floats_only()
        .check("running statistics must move towards the batch statistics", || {
            // Channel 0 contains 1, 3, 5, 7: mean 4, variance 20 / 3; all elements of channel 1 are 4.
            let x = Tensor::from([[[1.0, 3.0], [4.0, 4.0]], [[5.0, 7.0], [4.0, 4.0]]]);
            let (mean, var) = (Tensor::from([0.0, 8.0]), Tensor::from([1.0, 2.0]));
            let running = Some(RunningStatistics { mean: &mean, var: &var });
            ops::batch_norm(&x, running, None, None, TRAINING)?;
            let near = |t: &Tensor, want: [f64; 2]| {
                t.to_vec::<f64>().iter().zip(want).all(|(got, want)| (got - want).abs() < 1e-12)
            };
            Ok(near(&mean, [1.0, 7.0]) && near(&var, [0.75 + 5.0 / 3.0, 1.5]))
        })
        .check("a failed call must not change running statistics", || {
            let (mean, var) = (Tensor::from([0.5]), Tensor::from([1.0]));
            let running = Some(RunningStatistics { mean: &mean, var: &var });
            let rejected = ops::batch_norm(&Tensor::ones([1, 1], DType::F64), running, None, None, TRAINING);
            Ok(rejected.is_err() && mean.item::<f64>() == 0.5 && var.item::<f64>() == 1.0)
        })
}

fn instance_norm() -> Row {
    over_channels("instance_norm", ops::instance_norm, |rank| (2..rank).collect()).check(
        "running statistics must move towards the mean of the statistics of the images",
        || {
            // The means are 2 and 6, the variances 2 and 8.
            let x = Tensor::from([[[1.0, 3.0]], [[4.0, 8.0]]]);
            let (mean, var) = (Tensor::from([0.0]), Tensor::from([1.0]));
            let running = Some(RunningStatistics { mean: &mean, var: &var });
            ops::instance_norm(&x, running, None, None, TRAINING)?;
            Ok(mean.item::<f64>() == 1.0 && var.item::<f64>() == 2.0)
        },
    )
}

/// Normalizes every group of channels of every image.
fn grouped(x: &Nd, groups: usize, rest: &[Option<&Nd>; 2]) -> Nd {
    let inside: usize = x.shape[2..].iter().product();
    let parts = x.reshape(&[x.shape[0], groups, x.shape[1] / groups * inside]);
    let y = standard(&parts, &[2], &[None, None]).reshape(&x.shape);
    let [weight, bias] = rest.map(|values| values.map(|v| per_channel(v, x.shape.len())));
    let y = weight.map_or(y.clone(), |w| zip(&[y, w], |v| v[0] * v[1]));
    bias.map_or(y.clone(), |b| zip(&[y, b], |v| v[0] + v[1]))
}

fn group_norm() -> Row {
    let ones = || Tensor::ones([1, 4, 2], DType::F64);
    Row::new("group_norm")
        .rule(Rule::FloatsOnly)
        .ulps(64.0)
        .scale(4.0)
        .case(
            "two groups",
            [real([2, 4, 2])],
            |x| ops::group_norm(&x[0], 2, None, None, EPS),
            |x| grouped(&x[0], 2, &[None, None]),
        )
        .case(
            "weight and bias",
            [real([1, 4, 2]), real([4]), real([4])],
            |x| ops::group_norm(&x[0], 2, Some(&x[1]), Some(&x[2]), EPS),
            |x| grouped(&x[0], 2, &[Some(&x[1]), Some(&x[2])]),
        )
        .floats_only()
        .case(
            "weight",
            [real([1, 4, 2]), real([4])],
            |x| ops::group_norm(&x[0], 1, Some(&x[1]), None, EPS),
            |x| grouped(&x[0], 1, &[Some(&x[1]), None]),
        )
        .floats_only()
        .case(
            "bias, no spatial axis",
            [real([2, 4]), real([4])],
            |x| ops::group_norm(&x[0], 2, None, Some(&x[1]), EPS),
            |x| grouped(&x[0], 2, &[None, Some(&x[1])]),
        )
        .floats_only()
        .case(
            "a group a channel, a plane",
            [real([1, 2, 2, 2])],
            |x| ops::group_norm(&x[0], 2, None, None, EPS),
            |x| grouped(&x[0], 2, &[None, None]),
        )
        .floats_only()
        .case(
            "no image",
            [real([0, 4, 2]), real([4])],
            |x| ops::group_norm(&x[0], 2, Some(&x[1]), None, EPS),
            |x| x[0].clone(),
        )
        .floats_only()
        .check("an indivisible number of groups must be an error", move || {
            shape_rejected(ops::group_norm(&ones(), 3, None, None, EPS))
        })
        .check("channels without elements", || {
            shape_rejected(ops::group_norm(&Tensor::ones([1, 2, 0], DType::F64), 1, None, None, EPS))
        })
        .check("zero groups must be an error", move || shape_rejected(ops::group_norm(&ones(), 0, None, None, EPS)))
        .check("another rank must be an error", || {
            shape_rejected(ops::group_norm(&Tensor::ones([4], DType::F64), 2, None, None, EPS))
        })
        .check("a bias of another length must be an error", move || {
            shape_rejected(ops::group_norm(&ones(), 2, None, Some(&Tensor::ones([2], DType::F64)), EPS))
        })
}

/// Computes x / (k + alpha·m)^beta with the mean m of x² over `size` channels starting at c − ⌊size / 2⌋.
fn responses(x: &Nd, size: usize, [alpha, beta, k]: [f64; 3]) -> Nd {
    Nd::from_fn(&x.shape, |ix| {
        let neighbours = (0..size).filter_map(|d| (ix[1] + d).checked_sub(size / 2)).filter(|&c| c < x.shape[1]);
        let squares = neighbours.map(|c| x.at(&[&ix[..1], &[c], &ix[2..]].concat()).powi(2));
        x.at(ix) / (k + alpha * squares.sum::<f64>() / size as f64).powf(beta)
    })
}

fn local_response_norm() -> Row {
    let mut row = Row::new("local_response_norm").rule(Rule::FloatsOnly).ulps(32.0);
    let cases: [(&str, &'static [usize], usize, [f64; 3]); 6] = [
        ("three neighbours", &[1, 4, 2], 3, [0.5, 0.75, 1.0]),
        ("an even number", &[1, 4, 2], 2, [0.5, 0.75, 1.0]),
        ("more than there are", &[1, 2, 2], 5, [0.5, 0.5, 2.0]),
        ("itself", &[2, 2, 1], 1, [0.5, 2.0, 1.5]),
        ("a plane", &[1, 3, 1, 2], 3, [1.0, 1.0, 1.0]),
        ("no image", &[0, 3, 2], 3, [0.5, 0.75, 1.0]),
    ];
    for (label, shape, size, [alpha, beta, k]) in cases {
        let input = Input { shape: shape.to_vec(), ..real([]) };
        row = row
            .case(
                label,
                [input],
                move |x| ops::local_response_norm(&x[0], size, alpha, beta, k),
                move |x| responses(&x[0], size, [alpha, beta, k]),
            )
            .floats_only();
    }
    let ones = || Tensor::ones([1, 2, 2], DType::F64);
    row.check("a size of 0 must be an error", move || {
        argument_rejected(ops::local_response_norm(&ones(), 0, 1.0, 1.0, 1.0))
    })
    .check("another rank must be an error", || {
        shape_rejected(ops::local_response_norm(&Tensor::ones([2, 2], DType::F64), 3, 1.0, 1.0, 1.0))
    })
    .check("integers", move || {
        let rejected = ops::local_response_norm(&ones().to_dtype(DType::I64), 3, 1.0, 1.0, 1.0);
        Ok(matches!(rejected, Err(Error::DTypeMismatch { .. })))
    })
}
