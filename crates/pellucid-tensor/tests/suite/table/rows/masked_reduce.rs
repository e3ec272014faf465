//! Masked reductions, compared with reductions of shorter rows.

use crate::table::nd::Nd;
use crate::table::row::{Gradient::Third, Row, Rule, real, shape_rejected};
use ops::{Axes, over};
use pellucid_tensor::{DType, Error, Result, Tensor, ops};

/// A mask that keeps some elements of both rows, and at least one of every column.
const LEFT: [[bool; 4]; 2] = [[true, false, true, true], [true, true, false, true]];

type Call = fn(&Tensor, &Tensor, Axes) -> Result<Tensor>;

/// Returns a row with the checks that all masked reductions share.
fn row(name: &'static str, call: Call) -> Row {
    Row::new(name)
        .scale(2.0)
        .ulps(32.0)
        .ordinary()
        .check("masked elements must have no effect and gradient 0", move || {
            let x = Tensor::from([f64::NAN, 0.5, 1.25]).requires_grad_(true);
            let y = call(&x, &[false, true, true].into(), 0.into())?;
            if !y.requires_grad() {
                return Ok(y.item::<i64>() >= 1);
            }
            ops::sum(&ops::narrow(&ops::ravel(&y)?, 0, y.size() - 1, 1)?, ..)?.backward();
            let gradient = x.grad().expect("the tensor must have a gradient").to_vec::<f64>();
            Ok(gradient[0] == 0.0 && gradient[2].is_finite())
        })
        .check("a mask of another dtype must be an error", move || {
            let x = Tensor::zeros([2], DType::F32);
            Ok(matches!(call(&x, &x, 0.into()), Err(Error::DTypeMismatch { .. })))
        })
        .check("the mask must broadcast to the tensor, and not vice versa", move || {
            let x = Tensor::zeros([2], DType::F32);
            let mask = Tensor::full([3, 2], true, DType::Bool);
            Ok(shape_rejected(call(&x, &mask, 0.into()))? && shape_rejected(call(&x, &[true; 3].into(), 0.into()))?)
        })
        .check("an invalid axis must be an error", move || {
            Ok(call(&Tensor::zeros([2], DType::F32), &[true, false].into(), 1.into()).is_err())
        })
}

/// Returns the unmasked elements of the given rows as one list, and their positions.
fn unmasked(x: &Nd, rows: &[usize], columns: &[usize]) -> (Vec<f64>, Vec<usize>) {
    let all = rows.iter().flat_map(|&i| columns.iter().map(move |&j| [i, j]));
    all.enumerate().filter(|(_, [i, j])| LEFT[*i][*j]).map(|(at, ix)| (x.at(&ix), at)).unzip()
}

/// Returns a row of a masked reduction: `call` over the last axis, the first axis and all axes. The reference of a
/// result is `value` of the unmasked elements that it reduces, and of their positions among the reduced elements.
fn reduction(name: &'static str, call: Call, value: fn(&[f64], &[usize]) -> f64) -> Row {
    let of = move |x: &Nd, rows: &[usize], columns: &[usize]| {
        let (x, places) = unmasked(x, rows, columns);
        value(&x, &places)
    };
    row(name, call)
        .case(
            "the last axis",
            [real([2, 4])],
            move |x| call(&x[0], &LEFT.into(), (-1).into()),
            move |x| Nd::from_fn(&[2], |ix| of(&x[0], &[ix[0]], &[0, 1, 2, 3])),
        )
        .case(
            "the first, kept",
            [real([2, 4])],
            move |x| call(&x[0], &LEFT.into(), over(0).keepdims()),
            move |x| Nd::from_fn(&[1, 4], |ix| of(&x[0], &[0, 1], &[ix[1]])),
        )
        .floats_only()
        .case(
            "all",
            [real([2, 4])],
            move |x| call(&x[0], &LEFT.into(), (..).into()),
            move |x| Nd::scalar(of(&x[0], &[0, 1], &[0, 1, 2, 3])),
        )
        .floats_only()
        .case(
            "one mask for all rows",
            [real([2, 4])],
            move |x| call(&x[0], &LEFT[0].into(), 1.into()),
            move |x| {
                let columns: [f64; 2] = std::array::from_fn(|i| {
                    let places = [0, 2, 3];
                    value(&places.map(|j| x[0].at(&[i, j])), &places)
                });
                Nd { shape: vec![2], data: columns.to_vec() }
            },
        )
        .floats_only()
}

/// Returns a row whose reference is `value` at unmasked positions, and `other` elsewhere.
fn rowwise(name: &'static str, call: Call, other: f64, value: fn(&[f64]) -> Vec<f64>) -> Row {
    row(name, call)
        .case(
            "the last axis",
            [real([2, 4])],
            move |x| call(&x[0], &LEFT.into(), (-1).into()),
            move |x| {
                let mut y = x[0].map(|_| other);
                for i in 0..2 {
                    let (x, places) = unmasked(&x[0], &[i], &[0, 1, 2, 3]);
                    places.iter().zip(value(&x)).for_each(|(&j, v)| y.set(&[i, j], v));
                }
                y
            },
        )
        .floats_only()
}

/// Returns a row whose reference at each position is `value` of the unmasked elements up to this position.
fn running(name: &'static str, call: Call, value: fn(&[f64]) -> f64) -> Row {
    row(name, call)
        .case(
            "the last axis",
            [real([2, 4])],
            move |x| call(&x[0], &LEFT.into(), (-1).into()),
            move |x| Nd::from_fn(&[2, 4], |ix| value(&unmasked(&x[0], &[ix[0]], &(0..=ix[1]).collect::<Vec<_>>()).0)),
        )
        .rule(Rule::Counts)
        .any_zero()
}

fn best(x: &[f64], better: fn(f64, f64) -> bool) -> usize {
    (1..x.len()).fold(0, |best, i| if better(x[i], x[best]) { i } else { best })
}

fn mean(x: &[f64]) -> f64 {
    x.iter().sum::<f64>() / x.len() as f64
}

fn variance(x: &[f64]) -> f64 {
    mean(&x.iter().map(|v| (v - mean(x)).powi(2)).collect::<Vec<_>>())
}

fn log_sum(x: &[f64]) -> f64 {
    x.iter().map(|v| v.exp()).sum::<f64>().ln()
}

fn euclid(x: &[f64]) -> f64 {
    x.iter().map(|v| v * v).sum::<f64>().sqrt()
}

/// Returns the result for a fully masked row.
fn of_fully_masked_row(call: Call) -> Result<f64> {
    Ok(call(&Tensor::from([1.0, 2.0]), &[false, false].into(), 0.into())?.to_vec::<f64>()[0])
}

pub(super) fn rows() -> Vec<Row> {
    let mut rows = simple();
    rows.extend(moments());
    rows
}

fn simple() -> Vec<Row> {
    let positions = |row: Row| row.rule(Rule::Always(DType::I64)).untracked();
    let floats = |row: Row| row.rule(Rule::FloatsOnly).gradient(Third);
    vec![
        reduction("masked_sum", ops::masked_sum, |x, _| x.iter().sum()).rule(Rule::Counts).any_zero(),
        reduction("masked_prod", ops::masked_prod, |x, _| x.iter().product()).rule(Rule::Counts).any_zero(),
        reduction("masked_max", ops::masked_max, |x, _| x[best(x, |a, b| a > b)])
            .check("the result for a fully masked row", || {
                Ok(of_fully_masked_row(ops::masked_max)? == f64::NEG_INFINITY)
            }),
        reduction("masked_min", ops::masked_min, |x, _| x[best(x, |a, b| a < b)]).check(
            "the result for a fully masked row, in every dtype",
            || {
                let x = Tensor::from([1i64, 2]).to_dtype(DType::U8);
                Ok(ops::masked_min(&x, &[false, false].into(), 0)?.item::<u8>() == 255)
            },
        ),
        positions(reduction("masked_argmax", ops::masked_argmax, |x, places| places[best(x, |a, b| a > b)] as f64))
            .check("elements that equal the neutral element, and NaN, must be found where they are selected", || {
                let mask = Tensor::from([false, true, true]);
                let at = |x: Tensor| ops::masked_argmax(&x, &mask, 0).map(|at| at.item::<i64>());
                let ends = [at(Tensor::from([f64::NEG_INFINITY; 3]))?, at(Tensor::from([i64::MIN; 3]))?];
                let nan = [at(Tensor::from([f64::NAN; 3]))?, at(Tensor::from([f64::NAN, 0.0, f64::NAN]))?];
                let nothing = ops::masked_argmax(&Tensor::from([1.0, 2.0]), &[false, false].into(), 0)?.item::<i64>();
                Ok((ends, nan, nothing) == ([1, 1], [1, 2], 0))
            }),
        positions(reduction("masked_argmin", ops::masked_argmin, |x, places| places[best(x, |a, b| a < b)] as f64))
            .check("elements that equal the neutral element, and NaN, must be found where they are selected", || {
                let mask = Tensor::from([false, true, true]);
                let at = |x: Tensor| ops::masked_argmin(&x, &mask, 0).map(|at| at.item::<i64>());
                let ends = [at(Tensor::from([f64::INFINITY; 3]))?, at(Tensor::from([i64::MAX; 3]))?];
                let nan = [at(Tensor::from([f64::NAN; 3]))?, at(Tensor::from([f64::NAN, 0.0, f64::NAN]))?];
                let nothing = ops::masked_argmin(&Tensor::from([1.0, 2.0]), &[false, false].into(), 0)?.item::<i64>();
                Ok((ends, nan, nothing) == ([1, 1], [1, 2], 0))
            }),
        floats(reduction("masked_logsumexp", ops::masked_logsumexp, |x, _| log_sum(x)))
            .check("the result for a fully masked row", || {
                Ok(of_fully_masked_row(ops::masked_logsumexp)? == f64::NEG_INFINITY)
            }),
        rowwise("masked_softmax", ops::masked_softmax, 0.0, |x| x.iter().map(|v| (v - log_sum(x)).exp()).collect())
            .gradient(Third)
            .rule(Rule::Floats),
        rowwise("masked_softmin", ops::masked_softmin, 0.0, |x| {
            let negative: Vec<f64> = x.iter().map(|v| -v).collect();
            negative.iter().map(|v| (v - log_sum(&negative)).exp()).collect()
        })
        .gradient(Third)
        .rule(Rule::Floats),
        // Masked elements are −∞, for which finite differences are undefined.
        rowwise(
            "masked_log_softmax",
            |x, m, a| ops::where_(m, &ops::masked_log_softmax(x, m, a)?, 0.0),
            0.0,
            |x| x.iter().map(|v| v - log_sum(x)).collect(),
        )
        .gradient(Third)
        .rule(Rule::Floats)
        .check("masked elements must be −∞", || {
            let y = ops::masked_log_softmax(&Tensor::from([1.0, 2.0]), &[false, true].into(), 0)?;
            Ok(y.to_vec::<f64>() == [f64::NEG_INFINITY, 0.0])
        }),
        running("masked_cumsum", ops::masked_cumsum, |x| x.iter().sum()),
        running("masked_cumprod", ops::masked_cumprod, |x| x.iter().product()),
    ]
}

fn moments() -> Vec<Row> {
    let rooted = |row: Row| row.rule(Rule::FloatsOnly);
    vec![
        reduction("masked_mean", ops::masked_mean, |x, _| mean(x))
            .rule(Rule::Floats)
            .check("the result for a fully masked row", || Ok(of_fully_masked_row(ops::masked_mean)?.is_nan())),
        reduction("masked_var", ops::masked_var, |x, _| variance(x))
            .rule(Rule::FloatsOnly)
            .any_zero()
            .check("degrees of freedom", || {
                let x = Tensor::from([1.0, 9.0, 4.0]);
                Ok(ops::masked_var(&x, &[true, false, true].into(), over(0).ddof(1))?.item::<f64>() == 4.5)
            })
            .check("the result for a fully masked row", || Ok(of_fully_masked_row(ops::masked_var)?.is_nan())),
        // The square root of a variance of one element is 0, where its derivative is infinite.
        rooted(reduction("masked_std", ops::masked_std, |x, _| variance(x).sqrt())).without("the first, kept"),
        Row::new("masked_median")
            .rules([Rule::Any, Rule::Always(DType::I64)])
            .outputs(
                "the last axis",
                [real([2, 4])],
                |x| ops::masked_median(&x[0], &LEFT.into(), 1).map(|(value, position)| vec![value, position]),
                |x| {
                    let middle = |i: usize| {
                        let (x, places) = unmasked(&x[0], &[i], &[0, 1, 2, 3]);
                        let mut order: Vec<usize> = (0..x.len()).collect();
                        order.sort_by(|&a, &b| x[a].total_cmp(&x[b]));
                        (x[order[1]], places[order[1]] as f64)
                    };
                    let of = |f: fn((f64, f64)) -> f64| Nd { shape: vec![2], data: vec![f(middle(0)), f(middle(1))] };
                    vec![of(|pair| pair.0), of(|pair| pair.1)]
                },
            )
            .floats_only()
            .ordinary()
            .check("the result for a fully masked row", || {
                Ok(ops::masked_median(&Tensor::from([1.0]), &[false].into(), 0)?.0.item::<f64>().is_nan())
            }),
        reduction("masked_norm", |x, m, a| ops::masked_norm(x, m, 2.0, a), |x, _| euclid(x))
            .rule(Rule::FloatsOnly)
            .away(&[0.0])
            .check("the norm of order −∞ must be the smallest magnitude, and ∞ for a fully masked row", || {
                let (x, mask) = (Tensor::from([3.0, -0.5, -2.0]), Tensor::from([true, false, true]));
                let least = |mask: &Tensor| Ok(ops::masked_norm(&x, mask, f64::NEG_INFINITY, 0)?.item::<f64>());
                Ok(least(&mask)? == 2.0 && least(&[false; 3].into())? == f64::INFINITY)
            }),
        rowwise(
            "masked_normalize",
            |x, m, a| ops::masked_normalize(x, m, 2.0, if a == 0.into() { 0 } else { 1 }, 1e-12),
            0.0,
            |x| x.iter().map(|v| v / euclid(x)).collect(),
        )
        .rule(Rule::FloatsOnly),
    ]
}
