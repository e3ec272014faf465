//! New tensors, copies, conversions, and writes in place.

use crate::table::data;
use crate::table::nd::Nd;
use crate::table::row::{Row, Rule, real};
use pellucid_tensor::{DType, Error, Result, Scalar, Tensor, ops};

/// Returns a constant with the shape of the input.
fn like(value: f64) -> impl Fn(&[Nd]) -> Nd {
    move |x| x[0].map(|_| value)
}

pub(super) fn rows() -> Vec<Row> {
    let mut rows = vec![
        Row::new("full_like").case("2", [real([2, 3])], |x| ops::full_like(&x[0], 2.0), like(2.0)),
        Row::new("zeros_like").case("0", [real([2, 3])], |x| ops::zeros_like(&x[0]), like(0.0)),
        Row::new("ones_like").case("1", [real([2, 0, 3])], |x| ops::ones_like(&x[0]), like(1.0)),
    ]
    .into_iter()
    .map(|row| row.untracked().ordinary())
    .collect::<Vec<_>>();
    rows.extend(filled());
    rows.extend(copies());
    rows
}

/// Checks that every dtype that represents the value stores it, rounded once.
fn stores_value(call: fn(DType) -> Result<Tensor>, value: f64) -> Result<bool> {
    let represents = |dtype: &DType| dtype.represents(Scalar::Float(value));
    DType::ALL.into_iter().filter(represents).try_fold(true, |all, dtype| {
        let t = call(dtype)?;
        let right = data::values(&t).iter().all(|&v| v == data::round(value, dtype));
        Ok(all && right && t.dtype() == dtype && t.shape()[..] == [2, 3] && t.is_leaf() && !t.requires_grad())
    })
}

fn filled() -> Vec<Row> {
    vec![
        Row::new("full")
            .check("every dtype", || stores_value(|d| ops::full([2, 3], 2.7, d), 2.7))
            .check("an integer dtype must reject fractions", || {
                let x = ops::zeros([2], DType::I32)?;
                let rejected =
                    [ops::full([1], 7.5, DType::I64), ops::full((), -0.5, DType::U8), ops::full_like(&x, 7.5)];
                Ok(rejected.iter().all(|result| matches!(result, Err(Error::InvalidArgument { .. }))))
            })
            .check("negative numbers", || stores_value(|d| ops::full([2, 3], -3, d), -3.0))
            .check("a 0-d and an empty tensor", || {
                Ok(ops::full((), 1.5, DType::F64)?.item::<f64>() == 1.5 && ops::full(0, 1, DType::I8)?.size() == 0)
            })
            .check("all 64 bits of an integer", || {
                Ok(ops::full(1, i64::MAX - 1, DType::I64)?.item::<i64>() == i64::MAX - 1)
            })
            .check("a shape beyond the address space must be an error", || {
                let result = ops::full([usize::MAX, 2], 0, DType::F32);
                Ok(matches!(result, Err(Error::OutOfMemory { .. })))
            }),
        Row::new("arange")
            .check("the end must be exclusive", || {
                let (up, down) = (ops::arange(0, 5, 2, DType::I32)?, ops::arange(1.0, 0.0, -0.25, DType::F64)?);
                Ok(up.to_vec::<i64>() == [0, 2, 4] && down.to_vec::<f64>() == [1.0, 0.75, 0.5, 0.25])
            })
            .check("no element", || Ok(ops::arange(3, 1, 1, DType::F32)?.size() == 0))
            .check("a step of 0 or NaN must be an error", || {
                Ok(matches!(ops::arange(0, 1, 0, DType::I64), Err(Error::InvalidArgument { .. })))
            }),
        Row::new("linspace")
            .check("both ends must be included", || {
                let (some, one) = (ops::linspace(0.0, 1.0, 5, DType::F64)?, ops::linspace(2.0, 9.0, 1, DType::F64)?);
                Ok(some.to_vec::<f64>() == [0.0, 0.25, 0.5, 0.75, 1.0] && one.to_vec::<f64>() == [2.0])
            })
            .check("integers", || {
                Ok(matches!(ops::linspace(0.0, 1.0, 2, DType::I64), Err(Error::DTypeMismatch { .. })))
            }),
        Row::new("logspace")
            .check(
                "powers",
                || Ok(ops::logspace(0.0, 3.0, 4, 2.0, DType::F64)?.to_vec::<f64>() == [1.0, 2.0, 4.0, 8.0]),
            )
            .check("integers", || {
                Ok(matches!(ops::logspace(0.0, 1.0, 2, 2.0, DType::I8), Err(Error::DTypeMismatch { .. })))
            }),
        Row::new("geomspace")
            .check("equal factors of either sign, with an exact end", || {
                let up = ops::geomspace(1.0, 1000.0, 4, DType::F64)?.to_vec::<f64>();
                let down = ops::geomspace(-0.3, -0.1, 3, DType::F64)?.to_vec::<f64>();
                let near = |a: f64, b: f64| (a - b).abs() <= 1e-14 * b.abs();
                Ok(up[0] == 1.0 && near(up[1], 10.0) && near(up[2], 100.0) && up[3] == 1000.0)
                    .map(|right| right && down[0] == -0.3 && near(down[1], -(0.03f64.sqrt())) && down[2] == -0.1)
            })
            .check("no element", || Ok(ops::geomspace(1.0, 2.0, 0, DType::F32)?.size() == 0))
            .check("a range through 0 and integer dtypes must be errors", || {
                let argument = |a, b| matches!(ops::geomspace(a, b, 3, DType::F32), Err(Error::InvalidArgument { .. }));
                let dtype = matches!(ops::geomspace(1.0, 2.0, 3, DType::I64), Err(Error::DTypeMismatch { .. }));
                Ok(argument(0.0, 1.0) && argument(1.0, 0.0) && argument(-1.0, 1.0) && argument(1.0, f64::NAN) && dtype)
            }),
        Row::new("eye").check("more columns than rows", || {
            Ok(ops::eye(2, 3, DType::I64)?.to_vec::<i64>() == [1, 0, 0, 0, 1, 0]
                && ops::eye(0, 0, DType::F32)?.size() == 0)
        }),
        Row::new("zeros").check("every dtype", || stores_value(|d| ops::zeros([2, 3], d), 0.0)),
        Row::new("ones").check("every dtype", || stores_value(|d| ops::ones([2, 3], d), 1.0)),
    ]
}

/// Checks the conversion of `x` between every two dtypes.
fn conversions() -> Result<bool> {
    let values = Nd { shape: vec![9], data: vec![0.0, 1.0, -1.0, 2.7, -2.7, 300.0, -40_000.0, 1e10, 0.3] };
    for from in DType::ALL {
        let x = data::tensor(&values, from);
        let held = data::values(&x);
        for to in DType::ALL {
            let got = data::values(&ops::to_dtype(&x, to)?);
            let expected: Vec<f64> = held.iter().map(|&v| convert(v, from, to)).collect();
            if got != expected {
                return Err(Error::invalid("to_dtype", format!("{from} to {to}: got {got:?}, expected {expected:?}")));
            }
        }
    }
    Ok(true)
}

/// Converts a value: floats saturate in a conversion to integers, integers wrap.
fn convert(value: f64, from: DType, to: DType) -> f64 {
    let saturate =
        |low: f64, high: f64| if from.is_float() { value.trunc().clamp(low, high) } else { data::round(value, to) };
    match to {
        DType::U8 => saturate(0.0, 255.0),
        DType::I8 => saturate(-128.0, 127.0),
        DType::I16 => saturate(-32768.0, 32767.0),
        DType::I32 => saturate(-2147483648.0, 2147483647.0),
        to => data::round(value, to),
    }
}

fn copies() -> Vec<Row> {
    let written = |x: &[Tensor]| {
        let target = x[0].detach().copy();
        ops::copy_(&target, &x[1].detach())?;
        Ok(target)
    };
    vec![
        Row::new("to_dtype")
            .case("f64", [real([2, 3])], |x| ops::to_dtype(&x[0], DType::F64), |x| x[0].clone())
            .rule(Rule::Always(DType::F64))
            .check("conversions between all pairs of dtypes must be correct", conversions)
            .check("the result must be the same tensor if the dtype is equal", || {
                let x = Tensor::from([1.5f32]);
                Ok(ops::to_dtype(&x, DType::F32)?.array().shares_storage(x.array()))
            })
            .check("NaN must become 0, and infinities the extreme values", || {
                let x = Tensor::from([f64::NAN, f64::INFINITY, f64::NEG_INFINITY]);
                Ok(ops::to_dtype(&x, DType::I64)?.to_vec::<i64>() == [0, i64::MAX, i64::MIN])
            })
            .check("a conversion to integers must be untracked", || {
                Ok(!ops::to_dtype(&Tensor::from([1.5]).requires_grad_(true), DType::I32)?.requires_grad())
            }),
        Row::new("contiguous").case("a matrix", [real([2, 3])], |x| ops::contiguous(&x[0]), |x| x[0].clone()).check(
            "a transposed tensor must be copied",
            || {
                let x = Tensor::from([[1i64, 2], [3, 4]]);
                let y = ops::contiguous(&x.t())?;
                Ok(y.array().layout().is_contiguous()
                    && !y.array().shares_storage(x.array())
                    && y.to_vec::<i64>() == [1, 3, 2, 4])
            },
        ),
        Row::new("copy")
            .case("a matrix", [real([2, 3])], |x| ops::copy(&x[0]), |x| x[0].clone())
            .case("a number", [real([])], |x| ops::copy(&x[0]), |x| x[0].clone())
            .check("the copy must have its own storage", || {
                let x = Tensor::from([1.5]);
                Ok(!ops::copy(&x)?.array().shares_storage(x.array()))
            }),
        Row::new("copy_")
            .untracked()
            .case("broadcast", [real([2, 3]), real([3])], written, |x| x[1].broadcast(&[2, 3]))
            .floats_only()
            .case("nothing", [real([0, 3]), real([3])], written, |x| x[1].broadcast(&[0, 3]))
            .floats_only()
            .check("converts", || {
                let x = Tensor::zeros([2], DType::I8);
                ops::copy_(&x, &Tensor::from([2.7, -1e9]))?;
                Ok(x.to_vec::<i64>() == [2, -128])
            })
            .check("a failed copy must change nothing", || {
                let x = Tensor::from([1.0, 2.0]);
                let rejected =
                    matches!(ops::copy_(&x, &Tensor::from([1.0, 2.0, 3.0])), Err(Error::ShapeMismatch { .. }));
                Ok(rejected && x.to_vec::<f64>() == [1.0, 2.0])
            })
            .check("a broadcast target must be an error", || {
                let x = Tensor::from([1.0]).broadcast_to([3]);
                Ok(matches!(ops::copy_(&x, &Tensor::from([1.0, 2.0, 3.0])), Err(Error::InvalidArgument { .. })))
            })
            .check("a source must be allowed to be the transpose of the target", || {
                let x = Tensor::from([[1i64, 2], [3, 4]]);
                ops::copy_(&x, &x.t())?;
                Ok(x.to_vec::<i64>() == [1, 3, 2, 4])
            }),
    ]
}
