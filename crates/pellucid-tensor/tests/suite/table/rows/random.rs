//! Random tensors: their range and moments, and their generator streams.

use crate::table::row::{Row, one, real};
use pellucid_tensor::{DType, Error, Generator, Result, Tensor, capture, lazy, manual_seed, ops};

/// Returns mean and variance.
fn moments(x: &Tensor) -> (f64, f64) {
    let values = x.to_vec::<f64>();
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    (mean, values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / values.len() as f64)
}

const N: usize = 20_000;
const FLOATS: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];

/// Checks that draws of every float dtype have these moments, and that other dtypes are errors.
fn drawn(
    call: fn(DType, &Generator) -> Result<Tensor>,
    mean: f64,
    variance: f64,
    within: fn(f64) -> bool,
) -> Result<bool> {
    let good = FLOATS.into_iter().try_fold(true, |all, dtype| {
        let x = call(dtype, &Generator::new(5))?;
        let (m, v) = moments(&x);
        // Five standard errors, plus the rounding error of half precision.
        Ok(all
            && x.dtype() == dtype
            && (m - mean).abs() < 0.04
            && (v - variance).abs() < 0.06
            && x.to_vec::<f64>().into_iter().all(within))
    });
    let rejected = |d: DType| matches!(call(d, &Generator::new(5)), Err(Error::DTypeMismatch { .. }));
    Ok(good? && DType::ALL.into_iter().filter(|d| !d.is_float()).all(rejected))
}

/// Checks that a stream advances, restarts with its seed, and differs from the stream of another seed.
fn streams(call: fn(&Generator) -> Result<Tensor>) -> Result<bool> {
    let (one, same, other) = (Generator::new(1), Generator::new(1), Generator::new(2));
    let draw = |g: &Generator| Ok::<_, Error>(call(g)?.to_vec::<f64>());
    let first = draw(&one)?;
    let goes_on = draw(&one)? != first;
    let repeats = draw(&same)? == first && draw(&other)? != first;
    one.reseed(1);
    Ok(goes_on && repeats && draw(&one)? == first)
}

fn seeded(call: fn() -> Result<Tensor>) -> Result<bool> {
    manual_seed(3);
    let first = call()?.to_vec::<f64>();
    let next = call()?.to_vec::<f64>();
    manual_seed(3);
    Ok(call()?.to_vec::<f64>() == first && next != first)
}

/// Returns a row of draws with the shape and the dtype of another tensor.
fn like(name: &'static str, call: fn(&Tensor) -> Result<Tensor>, mean: f64, variance: f64) -> Row {
    Row::new(name)
        .check("shape, dtype and moments", move || {
            manual_seed(2);
            FLOATS.into_iter().try_fold(true, |all, dtype| {
                let x = Tensor::zeros([N / 10, 10], dtype).requires_grad_(true);
                let y = call(&x)?;
                let (m, v) = moments(&y);
                let near = (m - mean).abs() < 0.04 && (v - variance).abs() < 0.06;
                Ok(all && near && y.dtype() == dtype && y.shape() == x.shape() && !y.requires_grad())
            })
        })
        .check("integers must be an error", move || {
            Ok(matches!(call(&Tensor::from([1i64])), Err(Error::DTypeMismatch { .. })))
        })
}

pub(super) fn rows() -> Vec<Row> {
    vec![
        Row::new("rand")
            .check("equal seeds must give equal numbers", || seeded(|| ops::rand([50], DType::F32)))
            .check("an empty and a 0-d tensor", || {
                Ok(ops::rand([0], DType::F32)?.size() == 0 && ops::rand((), DType::F64)?.size() == 1)
            }),
        Row::new("rand_with")
            .check("uniform", move || {
                drawn(|d, g| ops::rand_with([N], d, g), 0.5, 1.0 / 12.0, |u| (0.0..=1.0).contains(&u))
            })
            .check("1 must never be drawn", || {
                Ok(ops::rand_with([N], DType::F32, &Generator::new(1))?.to_vec::<f64>().into_iter().all(|u| u < 1.0))
            })
            .check("a stream must advance and restart with its seed", || {
                streams(|g| ops::rand_with([50], DType::F64, g))
            }),
        Row::new("randn").check("equal seeds must give equal numbers", || seeded(|| ops::randn([50], DType::F64))),
        Row::new("randn_with")
            .check("normal", || drawn(|d, g| ops::randn_with([N], d, g), 0.0, 1.0, f64::is_finite))
            .check("a stream must advance and restart with its seed", || {
                streams(|g| ops::randn_with([50], DType::F32, g))
            }),
        Row::new("randint")
            .check("equal seeds must give equal numbers", || seeded(|| ops::randint(-5, 90, [50])))
            .check("every integer of the range must be drawn uniformly", || {
                manual_seed(8);
                let values = ops::randint(-2, 3, [N])?.to_vec::<i64>();
                let count = |k| values.iter().filter(|&&v| v == k).count() as f64 / N as f64;
                Ok((-2..3).all(|k| (count(k) - 0.2).abs() < 0.02) && values.iter().all(|v| (-2..3).contains(v)))
            })
            .check("one value", || Ok(ops::randint(7, 8, [3])?.to_vec::<i64>() == [7; 3]))
            .check("an empty range must be an error", || {
                Ok(matches!(ops::randint(2, 2, [3]), Err(Error::InvalidArgument { .. })))
            })
            .check("ranges far from zero", || {
                let low = i64::MAX - 3;
                Ok(ops::randint(low, i64::MAX, [100])?.to_vec::<i64>().into_iter().all(|v| v >= low))
            }),
        like("rand_like", ops::rand_like, 0.5, 1.0 / 12.0),
        like("randn_like", ops::randn_like, 0.0, 1.0),
        Row::new("randint_like")
            .check("every dtype that represents the range must be kept", || {
                manual_seed(4);
                DType::ALL.into_iter().filter(|&d| d != DType::Bool).try_fold(true, |all, dtype| {
                    let y = ops::randint_like(&Tensor::zeros([100, 3], dtype), 2, 5)?;
                    let values = y.to_vec::<i64>();
                    let right = (2..5).all(|k| values.contains(&k)) && values.iter().all(|v| (2..5).contains(v));
                    Ok(all && right && y.dtype() == dtype && y.shape()[..] == [100, 3])
                })
            })
            .check("a range outside the dtype must be an error, and so must an empty one", || {
                let rejected = |low, high| {
                    let x = Tensor::zeros([2], DType::U8);
                    Ok::<_, Error>(matches!(ops::randint_like(&x, low, high), Err(Error::InvalidArgument { .. })))
                };
                Ok(rejected(-1, 3)? && rejected(0, 257)? && rejected(3, 3)? && !rejected(0, 256)?)
            }),
        dropout(),
    ]
    .into_iter()
    .chain(draws())
    .chain(channels())
    .collect()
}

/// Rows of further distributions.
fn draws() -> Vec<Row> {
    let sorted = |mut x: Vec<i64>| {
        x.sort_unstable();
        x
    };
    let shares = |x: &Tensor, n: i64| -> Vec<f64> {
        let values = x.to_vec::<i64>();
        (0..n).map(|k| values.iter().filter(|&&v| v == k).count() as f64 / values.len() as f64).collect()
    };
    let near = |got: &[f64], want: &[f64]| got.iter().zip(want).all(|(a, b)| (a - b).abs() < 0.02);
    vec![
        Row::new("normal")
            .check("tensors of means and deviations", || {
                manual_seed(6);
                let (mean, std) = (Tensor::from([[5.0], [-1.0]]), Tensor::full([1, N], 2, DType::F64));
                let y = ops::normal(&mean, &std)?;
                let both = [moments(&y.i(0)), moments(&y.i(1))];
                Ok(both.iter().zip([5.0, -1.0]).all(|((m, v), want)| (m - want).abs() < 0.07 && (v - 4.0).abs() < 0.25))
            })
            .check("gradients", || {
                let std = Tensor::from([1.0, 2.0]).requires_grad_(true);
                let y = ops::normal(&Tensor::from([0.0, 0.0]), &std)?;
                y.backward();
                let z = std.grad().expect("the tensor must have a gradient").to_vec::<f64>();
                Ok(y.to_vec::<f64>() == [z[0], 2.0 * z[1]])
            })
            .check("shapes that do not broadcast must be an error", || {
                Ok(matches!(
                    ops::normal(&Tensor::from([0.0, 0.0]), &Tensor::from([1.0; 3])),
                    Err(Error::ShapeMismatch { .. })
                ))
            }),
        Row::new("bernoulli")
            .check("frequencies must match the probabilities", move || {
                manual_seed(7);
                let y = ops::bernoulli(&Tensor::full([N], 0.3, DType::F32))?;
                Ok(near(&shares(&y.to_dtype(DType::I64), 2), &[0.7, 0.3]) && y.dtype() == DType::F32)
            })
            .check("the probabilities 0 and 1 must give 0 and 1", || {
                Ok(ops::bernoulli(&Tensor::from([0.0, 1.0]))?.to_vec::<f64>() == [0.0, 1.0])
            })
            .check("the result must be untracked", || {
                Ok(!ops::bernoulli(&Tensor::from([0.5]).requires_grad_(true))?.requires_grad())
            })
            .check("integers", || {
                Ok(matches!(ops::bernoulli(&Tensor::from([1i64])), Err(Error::DTypeMismatch { .. })))
            }),
        Row::new("randperm")
            .check("a permutation must contain every integer once", move || {
                Ok(sorted(ops::randperm(100)?.to_vec::<i64>()) == (0..100).collect::<Vec<_>>())
            })
            .check("equal seeds must give equal numbers", || seeded(|| ops::randperm(50)))
            .check("no element", || Ok(ops::randperm(0)?.size() == 0)),
        Row::new("multinomial")
            .check("the frequencies with replacement must match the weights", move || {
                manual_seed(9);
                let weights = Tensor::from([[1.0, 0.0, 3.0], [0.0, 2.0, 2.0]]);
                let y = ops::multinomial(&weights, N, true)?;
                Ok(near(&shares(&y.i(0), 3), &[0.25, 0.0, 0.75]) && near(&shares(&y.i(1), 3), &[0.0, 0.5, 0.5]))
            })
            .check("without replacement no class must repeat", move || {
                let y = ops::multinomial(&Tensor::from([0.5, 1.0, 2.0, 4.0]), 4, false)?.to_vec::<i64>();
                Ok(sorted(y) == [0, 1, 2, 3])
            })
            .check("the frequency of the first class must match its probability", move || {
                manual_seed(10);
                let weights = Tensor::from([1.0, 3.0]).broadcast_to([N, 2]);
                let first = ops::multinomial(&weights, 1, false)?;
                Ok(near(&shares(&first, 2), &[0.25, 0.75]))
            })
            .check("fewer positive weights than samples must be an error in every mode", || {
                let weights = || Tensor::from([[1.0, 2.0, 0.5], [0.0, 3.0, 0.0]]);
                let eager = ops::multinomial(&weights(), 2, false);
                let deferred = lazy(|| ops::multinomial(&weights(), 2, false))?.try_to_vec::<i64>();
                let x = weights();
                let mut step = capture(|x: &[Tensor]| ops::multinomial(&x[0], 2, false), &[&x])?;
                let rejected = |error: Error| matches!(error, Error::IndexOutOfBounds { op: "multinomial", .. });
                Ok(matches!(eager, Err(Error::InvalidArgument { .. }))
                    && deferred.is_err_and(rejected)
                    && step.launch(&[&x]).is_err_and(rejected)
                    && ops::multinomial(&weights(), 1, false)?.i(1).item::<i64>() == 1
                    && ops::multinomial(&weights(), 5, true)?.shape()[..] == [2, 5])
            })
            .check("more elements than available must be an error", || {
                Ok(matches!(ops::multinomial(&Tensor::from([1.0]), 2, false), Err(Error::InvalidArgument { .. })))
            })
            .check("no class must be an error", || {
                Ok(matches!(
                    ops::multinomial(&Tensor::zeros([0], DType::F32), 1, true),
                    Err(Error::ShapeMismatch { .. })
                ))
            }),
    ]
}

/// Rows of dropout of channels, and of alpha dropout, which preserves moments.
fn channels() -> Vec<Row> {
    let ones = || Tensor::ones([50, 40, 3], DType::F64);
    // Every channel is either dropped or kept completely.
    let is_uniform = |y: &Tensor| y.to_vec::<f64>().chunks(3).all(|c| c[0] == c[1] && c[1] == c[2]);
    let vector = || Tensor::from([1.0, 2.0]);
    let rejected = |result: Result<Tensor>| Ok(matches!(result, Err(Error::ShapeMismatch { .. })));
    let unlikely = |result: Result<Tensor>| Ok(matches!(result, Err(Error::InvalidArgument { .. })));
    let kept = |y: Tensor, low: f64| {
        let y = y.to_vec::<f64>();
        y.iter().filter(|v| (**v - low).abs() > 1e-9).count() as f64 / y.len() as f64
    };
    vec![
        Row::new("feature_dropout")
            .check("complete channels must be dropped or scaled", move || {
                let y = ops::feature_dropout(&ones(), 0.25)?;
                let scaled = y.to_vec::<f64>().iter().all(|&v| v == 0.0 || (v - 1.0 / 0.75).abs() < 1e-12);
                Ok(is_uniform(&y) && scaled && (kept(y, 0.0) - 0.75).abs() < 0.05)
            })
            .check("a vector must be an error", move || rejected(ops::feature_dropout(&vector(), 0.5)))
            .check("an invalid probability must be an error", move || unlikely(ops::feature_dropout(&ones(), -0.5))),
        Row::new("alpha_dropout")
            .check("mean and variance must be preserved", || {
                manual_seed(12);
                let (mean, variance) = moments(&ops::alpha_dropout(&ops::randn([N], DType::F64)?, 0.3)?);
                Ok(mean.abs() < 0.04 && (variance - 1.0).abs() < 0.06)
            })
            .check("the gradient must flow to the kept elements only", || {
                let x = Tensor::full([100], 5, DType::F64).requires_grad_(true);
                let y = ops::alpha_dropout(&x, 0.5)?;
                y.backward();
                let slopes = x.grad().expect("the tensor must have a gradient").to_vec::<f64>();
                Ok(y.to_vec::<f64>().iter().zip(slopes).all(|(&y, slope)| (y > 1.0) == (slope > 0.0)))
            })
            .check("an invalid probability must be an error", move || unlikely(ops::alpha_dropout(&vector(), 1.5))),
        Row::new("feature_alpha_dropout")
            .check("complete channels must be dropped", move || {
                Ok(is_uniform(&ops::feature_alpha_dropout(&ones(), 0.5)?))
            })
            .check("a vector must be an error", move || rejected(ops::feature_alpha_dropout(&vector(), 0.5))),
    ]
}

fn dropout() -> Row {
    // Every call draws a new mask, so finite differences need the seed set before each call.
    let seeded = |p: f64| {
        move |x: &[Tensor]| {
            let _random = Generator::new(11).scope();
            one(ops::dropout(&x[0], p))
        }
    };
    Row::new("dropout")
        .outputs("keeps all at 0", [real([2, 3])], seeded(0.0), |x| vec![x[0].clone()])
        .floats_only()
        .outputs("keeps none at 1", [real([2, 3])], seeded(1.0), |x| vec![x[0].map(|_| 0.0)])
        .floats_only()
        .ordinary()
        .check("kept elements must be scaled, and the others must be 0", || {
            let y = ops::dropout(&Tensor::ones([N], DType::F32), 0.25)?.to_vec::<f64>();
            let kept = y.iter().filter(|&&v| v != 0.0).count() as f64 / N as f64;
            Ok((kept - 0.75).abs() < 0.02 && y.iter().all(|&v| v == 0.0 || (v - 1.0 / 0.75).abs() < 1e-6))
        })
        .check("the gradient must flow to the kept elements only", || {
            let x = Tensor::ones([100], DType::F64).requires_grad_(true);
            let y = ops::dropout(&x, 0.5)?;
            y.backward();
            Ok(x.grad().expect("the tensor must have a gradient").to_vec::<f64>() == y.to_vec::<f64>())
        })
        .check("integers must be an error", || {
            Ok(matches!(ops::dropout(&[1i64].into(), 0.5), Err(Error::DTypeMismatch { .. })))
        })
        .check("an invalid probability must be an error", || {
            Ok(matches!(ops::dropout(&[1.0].into(), 1.5), Err(Error::InvalidArgument { .. })))
        })
}

/// Dropping a guard ends the scope of that guard, in any order of drops.
#[test]
fn scopes_that_end_out_of_order() {
    let draw = || Tensor::rand([3], DType::F64).to_vec::<f64>();
    let expected = {
        let _scope = Generator::new(8).scope();
        draw()
    };
    let outer = Generator::new(7).scope();
    let inner = Generator::new(8).scope();
    drop(outer);
    assert_eq!(draw(), expected);
    let last = Generator::new(9).scope();
    drop(inner);
    let _scope = Generator::new(8).scope();
    drop(last);
    assert_eq!(draw(), expected);
}
