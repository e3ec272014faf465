//! Random tensors: their range and moments, and the stream they come from.

use crate::table::row::{Row, one, real};
use pellucid_tensor::{DType, Error, Generator, Result, Tensor, manual_seed, ops};

/// Mean and variance.
fn moments(x: &Tensor) -> (f64, f64) {
    let values = x.to_vec::<f64>();
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    (mean, values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / values.len() as f64)
}

const N: usize = 20_000;
const FLOATS: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];

/// Every float dtype is drawn with these moments, and no other dtype at all.
fn drawn(
    call: fn(DType, &Generator) -> Result<Tensor>,
    mean: f64,
    variance: f64,
    within: fn(f64) -> bool,
) -> Result<bool> {
    let good = FLOATS.into_iter().try_fold(true, |all, dtype| {
        let x = call(dtype, &Generator::new(5))?;
        let (m, v) = moments(&x);
        // Five standard errors, and the coarse steps of half types.
        Ok(all
            && x.dtype() == dtype
            && (m - mean).abs() < 0.04
            && (v - variance).abs() < 0.06
            && x.to_vec::<f64>().into_iter().all(within))
    });
    let refused = |d: DType| matches!(call(d, &Generator::new(5)), Err(Error::DTypeMismatch { .. }));
    Ok(good? && DType::ALL.into_iter().filter(|d| !d.is_float()).all(refused))
}

/// A stream goes on, starts again with its seed, and differs from another seed's.
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

pub(super) fn rows() -> Vec<Row> {
    vec![
        Row::new("rand").also("seeded", || seeded(|| ops::rand([50], DType::F32))).also("nothing and a number", || {
            Ok(ops::rand([0], DType::F32)?.size() == 0 && ops::rand((), DType::F64)?.size() == 1)
        }),
        Row::new("rand_with")
            .also("uniform", move || {
                drawn(|d, g| ops::rand_with([N], d, g), 0.5, 1.0 / 12.0, |u| (0.0..=1.0).contains(&u))
            })
            .also("1 is never drawn", || {
                Ok(ops::rand_with([N], DType::F32, &Generator::new(1))?.to_vec::<f64>().into_iter().all(|u| u < 1.0))
            })
            .also("streams", || streams(|g| ops::rand_with([50], DType::F64, g))),
        Row::new("randn").also("seeded", || seeded(|| ops::randn([50], DType::F64))),
        Row::new("randn_with")
            .also("normal", || drawn(|d, g| ops::randn_with([N], d, g), 0.0, 1.0, f64::is_finite))
            .also("streams", || streams(|g| ops::randn_with([50], DType::F32, g))),
        Row::new("randint")
            .also("seeded", || seeded(|| ops::randint(-5, 90, [50])))
            .also("every integer of the range, about as often", || {
                manual_seed(8);
                let values = ops::randint(-2, 3, [N])?.to_vec::<i64>();
                let count = |k| values.iter().filter(|&&v| v == k).count() as f64 / N as f64;
                Ok((-2..3).all(|k| (count(k) - 0.2).abs() < 0.02) && values.iter().all(|v| (-2..3).contains(v)))
            })
            .also("one value", || Ok(ops::randint(7, 8, [3])?.to_vec::<i64>() == [7; 3]))
            .also("an empty range is refused", || {
                Ok(matches!(ops::randint(2, 2, [3]), Err(Error::InvalidArgument { .. })))
            })
            .also("far from zero", || {
                let low = i64::MAX - 3;
                Ok(ops::randint(low, i64::MAX, [100])?.to_vec::<i64>().into_iter().all(|v| v >= low))
            }),
        dropout(),
    ]
}

fn dropout() -> Row {
    // The mask is drawn anew in every call, so differences need the seed set before each.
    let seeded = |p: f64| {
        move |x: &[Tensor]| {
            manual_seed(11);
            one(ops::dropout(&x[0], p))
        }
    };
    Row::new("dropout")
        .outputs("keeps all at 0", [real([2, 3])], seeded(0.0), |x| vec![x[0].clone()])
        .floats_only()
        .outputs("keeps none at 1", [real([2, 3])], seeded(1.0), |x| vec![x[0].map(|_| 0.0)])
        .floats_only()
        .ordinary()
        .also("kept elements are scaled, the others 0", || {
            let y = ops::dropout(&Tensor::ones([N], DType::F32), 0.25)?.to_vec::<f64>();
            let kept = y.iter().filter(|&&v| v != 0.0).count() as f64 / N as f64;
            Ok((kept - 0.75).abs() < 0.02 && y.iter().all(|&v| v == 0.0 || (v - 1.0 / 0.75).abs() < 1e-6))
        })
        .also("the gradient passes where elements do", || {
            let x = Tensor::ones([100], DType::F64).requires_grad_(true);
            let y = ops::dropout(&x, 0.5)?;
            y.backward();
            Ok(x.grad().expect("a gradient").to_vec::<f64>() == y.to_vec::<f64>())
        })
        .also("integers are refused", || {
            Ok(matches!(ops::dropout(&[1i64].into(), 0.5), Err(Error::DTypeMismatch { .. })))
        })
        .also("p is a probability", || {
            Ok(matches!(ops::dropout(&[1.0].into(), 1.5), Err(Error::InvalidArgument { .. })))
        })
}
