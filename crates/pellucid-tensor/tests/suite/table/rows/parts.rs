//! Parts of numbers: rounding to decimals, quotient with remainder, integral with fractional part.

use super::unary_row as unary;
use crate::table::nd::zip;
use crate::table::row::{Gradient::Zero, Row, Rule, real, shape_rejected};
use pellucid_tensor::{DType, Tensor, ops};

pub(super) fn rows() -> Vec<Row> {
    vec![
        unary!(around(1), |x: f64| if x.is_finite() { (x * 10.0).round_ties_even() / 10.0 } else { x })
            .within(0.31..=0.34)
            .gradient(Zero)
            .integers(|x| x[0])
            .check("ties must be rounded to even", || {
                let y = ops::around(&Tensor::from([0.25, 0.75, -0.25, 2.5]), 1)?;
                Ok(y.to_vec::<f64>() == [0.2, 0.8, -0.2, 2.5])
            })
            .check("tens and hundreds", || {
                let x = Tensor::from([14.0, 25.0, -26.0, 1e300, f64::INFINITY]);
                Ok(ops::around(&x, -1)?.to_vec::<f64>() == [10.0, 20.0, -30.0, 1e300, f64::INFINITY]
                    && ops::around(&Tensor::from([149.9f32, -151.0]), -2)?.to_vec::<f64>() == [100.0, -200.0])
            })
            .check("large numbers have no decimals, so they must not change", || {
                let x = [1e300, 0.1 + 1e14, -f64::MAX, 123456789.123];
                Ok(ops::around(&Tensor::from(x), 20)?.to_vec::<f64>() == x)
            })
            .check("powers of 10 beyond the range of the dtype", || {
                let x = Tensor::from([1.5f32, f32::MAX, -3e-39]);
                let (more, fewer) = (ops::around(&x, 400)?, ops::around(&x, -400)?);
                Ok(more.to_vec::<f32>() == x.to_vec::<f32>() && fewer.to_vec::<f32>() == [0.0; 3])
            })
            .check("integers must be rounded exactly", || {
                let (most, least) = (i64::MAX, i64::MIN);
                let y = ops::around(&Tensor::from([most - 7, 15, 25, -25, -26, least + 8]), -1)?;
                let bytes = ops::around(&Tensor::from([127i8, -128, 49, 51]), -2)?;
                Ok(y.to_vec::<i64>() == [9223372036854775800, 20, 20, -20, -30, -9223372036854775800]
                    && bytes.to_vec::<i64>() == [100, -100, 0, 100]
                    && ops::around(&Tensor::from([255u8, 3]), -3)?.to_vec::<i64>() == [0, 0]
                    && ops::around(&Tensor::from([true]), -1)?.to_vec::<bool>() == [false])
            }),
        Row::new("divmod")
            .rules([Rule::Numbers, Rule::Numbers])
            .outputs(
                "tensors",
                [real([2, 3]).within(2.1..=2.9), real([3]).within(1.1..=1.4)],
                |x| ops::divmod(&x[0], &x[1]).map(|(q, r)| vec![q, r]),
                |x| vec![zip(x, |v| (v[0] / v[1]).floor()), zip(x, |v| v[0] - v[1] * (v[0] / v[1]).floor())],
            )
            .floats_only()
            .ordinary()
            .check("quotients and remainders of integers", || {
                let (q, r) = ops::divmod(&Tensor::from([7i64, -7, 6]), 3)?;
                Ok(q.to_vec::<i64>() == [2, -3, 2] && r.to_vec::<i64>() == [1, 2, 0] && q.dtype() == DType::I64)
            })
            .check("shapes that do not broadcast must be an error", || {
                shape_rejected(ops::divmod(&Tensor::from([1.0, 2.0]), Tensor::from([1.0; 3])))
            }),
        Row::new("modf")
            .rules([Rule::Floats, Rule::Floats])
            .outputs(
                "numbers",
                [real([2, 3])],
                |x| ops::modf(&x[0]).map(|(f, i)| vec![f, i]),
                |x| vec![x[0].map(|v| if v.is_infinite() { 0.0 } else { v - v.trunc() }), x[0].map(f64::trunc)],
            )
            .away(&[-2.0, -1.0, 0.0, 1.0, 2.0])
            .check("both parts must have the sign of the number", || {
                let (f, i) = ops::modf(&Tensor::from([-0.5, -3.0, f64::NEG_INFINITY, -0.0]))?;
                let (f, i) = (f.to_vec::<f64>(), i.to_vec::<f64>());
                Ok(f == [-0.5, 0.0, 0.0, 0.0]
                    && i == [0.0, -3.0, f64::NEG_INFINITY, 0.0]
                    && f.iter().chain(&i).all(|v| v.is_sign_negative()))
            }),
    ]
}
