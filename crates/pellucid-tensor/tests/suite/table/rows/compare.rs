//! Comparisons and logic.

use super::{binary_row as binary, unary_row as unary};
use crate::table::row::{Row, Rule};
use pellucid_tensor::DType;

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
        unary!(isneginf, truth(|x| x == f64::NEG_INFINITY)),
    ];
    rows.into_iter().map(|row| row.rule(Rule::Always(DType::Bool)).untracked()).collect()
}
