//! Order statistics.

use crate::table::nd::Nd;
use crate::table::row::{Row, Rule, argument_rejected, axis_rejected, real, shape_rejected};
use ops::{Axes, QuantileInterpolation, over};
use pellucid_tensor::{DType, Error, Result, Tensor, ops};

fn sorted(x: &[f64]) -> Vec<f64> {
    let mut x = x.to_vec();
    x.sort_by(f64::total_cmp);
    x
}

fn lower_median(x: &[f64]) -> f64 {
    sorted(x)[(x.len() - 1) / 2]
}

fn first_index(x: &[f64], value: f64) -> f64 {
    x.iter().position(|&v| v == value).expect("the value must be an element") as f64
}

fn between(x: &[f64], q: f64, how: QuantileInterpolation) -> f64 {
    let (x, rank) = (sorted(x), q * (x.len() - 1) as f64);
    let (low, high) = (x[rank.floor() as usize], x[rank.ceil() as usize]);
    match how {
        QuantileInterpolation::Lower => low,
        QuantileInterpolation::Higher => high,
        QuantileInterpolation::Midpoint => 0.5 * (low + high),
        QuantileInterpolation::Nearest => x[rank.round_ties_even() as usize],
        QuantileInterpolation::Linear => low + rank.fract() * (high - low),
    }
}

/// Returns a row of a value and its position over every kind of axes.
fn pairs(name: &'static str, call: fn(&Tensor, Axes) -> Result<(Tensor, Tensor)>, value: fn(&[f64]) -> f64) -> Row {
    let both = move |x: &Nd, axes: &[usize]| vec![x.reduce(axes, value), x.reduce(axes, |x| first_index(x, value(x)))];
    let pair = move |x: &Tensor, axes: Axes| call(x, axes).map(|(value, position)| vec![value, position]);
    Row::new(name)
        .rules([Rule::Any, Rule::Always(DType::I64)])
        .outputs("the last axis", [real([2, 5])], move |x| pair(&x[0], (-1).into()), move |x| both(&x[0], &[1]))
        .floats_only()
        .outputs(
            "the first axis, kept",
            [real([4, 2])],
            move |x| pair(&x[0], over(0).keepdims()),
            move |x| both(&x[0], &[0]).into_iter().map(|y| y.reshape(&[1, 2])).collect(),
        )
        .floats_only()
        .outputs("two axes", [real([2, 3, 2])], move |x| pair(&x[0], [0, 2].into()), move |x| both(&x[0], &[0, 2]))
        .floats_only()
        .outputs("all", [real([2, 3])], move |x| pair(&x[0], (..).into()), move |x| both(&x[0], &[0, 1]))
        .floats_only()
        .ordinary()
        .check("integers", move || {
            let (value, position) = call(&Tensor::from([3i64, 1, 2]), 0.into())?;
            let want = value.item::<i64>();
            Ok(value.dtype() == DType::I64 && [3, 1, 2][position.item::<i64>() as usize] == want)
        })
        .check("an empty input", move || argument_rejected(call(&Tensor::zeros([0], DType::F32), 0.into())))
        .check("zero rows without elements", move || {
            Ok(call(&Tensor::zeros([0, 2], DType::F32), 1.into())?.0.shape()[..] == [0])
        })
        .check("an invalid axis must be an error", move || {
            axis_rejected(call(&Tensor::zeros([2], DType::F32), 1.into()))
        })
}

fn quantiles(name: &'static str, call: fn(&Tensor, &Tensor, Axes, QuantileInterpolation) -> Result<Tensor>) -> Row {
    use QuantileInterpolation::*;
    let probabilities = || Tensor::from([0.0, 0.3, 0.5, 1.0]);
    let row = [Linear, Lower, Higher, Midpoint, Nearest].into_iter().fold(Row::new(name), |row, how| {
        row.case(
            format!("{how:?}"),
            [real([2, 4])],
            move |x| call(&x[0], &probabilities().to_dtype(x[0].dtype()), (-1).into(), how),
            move |x| {
                let qs = [0.0, 0.3, 0.5, 1.0];
                Nd::from_fn(&[4, 2], |ix| between(&x[0].data[4 * ix[1]..4 * ix[1] + 4], qs[ix[0]], how))
            },
        )
        .floats_only()
    });
    row.rule(Rule::FloatsOnly)
        .scale(4.0)
        .case(
            "of two axes, kept, with a gradient to the probability",
            [real([2, 3]), real([]).within(0.25..=0.35)],
            move |x| call(&x[0], &x[1].to_dtype(x[0].dtype()), over(..).keepdims(), Linear),
            |x| Nd { shape: vec![1, 1], data: vec![between(&x[0].data, x[1].data[0], Linear)] },
        )
        .floats_only()
        .ordinary()
        .check("a probability outside [0, 1] must be an error", move || {
            argument_rejected(call(&Tensor::from([1.0]), &Tensor::from(1.5), 0.into(), Linear))
        })
        .check("a matrix of probabilities must be an error", move || {
            shape_rejected(call(&Tensor::from([1.0]), &Tensor::from([[0.5]]), 0.into(), Linear))
        })
        .check("an empty input", move || {
            argument_rejected(call(&Tensor::zeros([0], DType::F64), &Tensor::from(0.5), 0.into(), Linear))
        })
        .check("integers", move || {
            let rejected = call(&Tensor::from([1i64]), &Tensor::from(0.5), 0.into(), Linear);
            Ok(matches!(rejected, Err(Error::DTypeMismatch { .. })))
        })
}

pub(super) fn rows() -> Vec<Row> {
    let nan = || Tensor::from([2.0, f64::NAN, 1.0, 5.0]);
    let none = || Tensor::from([f64::NAN, f64::NAN]);
    vec![
        pairs("median", ops::median, lower_median).check("NaN must be the result, at its first position", move || {
            let (value, position) = ops::median(&nan(), 0)?;
            Ok(value.item::<f64>().is_nan() && position.item::<i64>() == 1)
        }),
        pairs("nanmedian", ops::nanmedian, lower_median).check("NaN must be ignored", move || {
            let (value, position) = ops::nanmedian(&nan(), 0)?;
            Ok(value.item::<f64>() == 2.0
                && position.item::<i64>() == 0
                && ops::nanmedian(&none(), 0)?.0.item::<f64>().is_nan())
        }),
        pairs("mode", ops::mode, |x| sorted(x)[0]).check(
            "the result must be the most frequent value at its last position",
            || {
                let (value, position) = ops::mode(&Tensor::from([[3i64, 1, 3, 1, 2], [5, 4, 4, 5, 5]]), 1)?;
                Ok(value.to_vec::<i64>() == [1, 5] && position.to_vec::<i64>() == [3, 4])
            },
        ),
        quantiles("quantile", |x, q, axes, how| ops::quantile(x, q, axes, how))
            .check("NaN must propagate", move || {
                Ok(ops::quantile(&nan(), 0.0, 0, QuantileInterpolation::Lower)?.item::<f64>().is_nan())
            }),
        quantiles("nanquantile", |x, q, axes, how| ops::nanquantile(x, q, axes, how)).check(
            "NaN must be ignored",
            move || {
                let y = ops::nanquantile(&nan(), 0.75, 0, QuantileInterpolation::Linear)?.item::<f64>();
                Ok(y == 3.5 && ops::nanquantile(&none(), 0.5, 0, QuantileInterpolation::Linear)?.item::<f64>().is_nan())
            },
        ),
    ]
}
