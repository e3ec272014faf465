//! Comparisons and logic.

use super::{binary_row as binary, unary_row as unary};
use crate::table::nd::zip;
use crate::table::row::{Row, Rule, argument_rejected, real};
use pellucid_tensor::{DType, Tensor, ops};

pub(super) fn rows() -> Vec<Row> {
    let both = |f: fn(f64, f64) -> bool| move |a, b| f64::from(f(a, b));
    let truth = |f: fn(f64) -> bool| move |x| f64::from(f(x));
    let rows = vec![
        binary!(eq, both(|a, b| a == b)),
        binary!(ne, both(|a, b| a != b)),
        binary!(lt, both(|a, b| a < b)),
        binary!(le, both(|a, b| a <= b)),
        binary!(gt, both(|a, b| a > b)),
        binary!(ge, both(|a, b| a >= b)),
        binary!(logical_and, both(|a, b| a != 0.0 && b != 0.0)),
        binary!(logical_or, both(|a, b| a != 0.0 || b != 0.0)),
        binary!(logical_xor, both(|a, b| (a != 0.0) != (b != 0.0))),
        unary!(logical_not, truth(|x| x == 0.0)),
        unary!(isnan, truth(f64::is_nan)),
        unary!(isfinite, truth(f64::is_finite)),
        unary!(isinf, truth(f64::is_infinite)),
        unary!(isposinf, truth(|x| x == f64::INFINITY)),
        unary!(signbit, truth(f64::is_sign_negative)),
        unary!(isneginf, truth(|x| x == f64::NEG_INFINITY)),
    ];
    rows.into_iter()
        .chain(tensor_comparison_rows())
        .map(|row| row.rule(Rule::Always(DType::Bool)).untracked())
        .collect()
}

/// Comparisons of entire tensors, and with tolerances.
fn tensor_comparison_rows() -> Vec<Row> {
    let x = || Tensor::from([1.0, 2.0, f64::NAN, f64::INFINITY, 1e-9]);
    let y = || Tensor::from([1.05, 2.5, f64::NAN, f64::INFINITY, 0.0]);
    let truths = |t: Tensor| t.to_vec::<bool>();
    vec![
        Row::new("isclose")
            .case(
                "numbers",
                [real([2, 3]), real([3])],
                |x| ops::isclose(&x[0], &x[1], 0.2, 0.3, false),
                |x| zip(x, |v| f64::from((v[0] - v[1]).abs() <= 0.3 + 0.2 * v[1].abs())),
            )
            .floats_only()
            .ordinary()
            .check("infinities, and NaN on request", move || {
                let (without, with) =
                    (ops::isclose(&x(), &y(), 0.1, 1e-8, false)?, ops::isclose(&x(), &y(), 0.1, 1e-8, true)?);
                Ok(truths(without) == [true, false, false, true, true]
                    && truths(with) == [true, false, true, true, true])
            })
            .check("a negative tolerance must be an error", move || {
                argument_rejected(ops::isclose(&x(), &y(), -0.1, 0.0, false))
            }),
        Row::new("allclose")
            .check("the result must be true only if all elements are close", move || {
                let some = ops::allclose(&x(), &y(), 0.1, 1e-8, true)?.item::<bool>();
                Ok(!some && ops::allclose(&x(), &y(), 0.1, 0.5, true)?.item::<bool>())
            })
            .check("a negative tolerance must be an error", move || {
                argument_rejected(ops::allclose(&x(), &y(), 0.1, f64::NAN, false))
            }),
        Row::new("equal").check("the result must be true only for equal shapes and elements", || {
            let (a, b) = (Tensor::from([1i64, 2]), Tensor::from([1i64, 3]));
            let same = ops::equal(&a, &a)?.item::<bool>();
            Ok(same && !ops::equal(&a, &b)?.item::<bool>() && !ops::equal(&a, &a.reshape([1, 2]))?.item::<bool>())
        }),
        Row::new("isin").check("the result must be true for members of the list", move || {
            let (x, these) = (Tensor::from([[1i64, 2], [3, 4]]), Tensor::from([[4i64, 1]]));
            let none = ops::isin(&x, &Tensor::zeros([0], DType::I64))?;
            Ok(truths(ops::isin(&x, &these)?) == [true, false, false, true] && truths(none) == [false; 4])
        }),
    ]
}
