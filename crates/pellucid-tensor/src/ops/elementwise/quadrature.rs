//! Integrals of log-concave functions, by Gauss-Legendre quadrature.
//!
//! The incomplete gamma and beta functions and their derivatives with respect to parameters are integrals over w > 0 of
//! e^(−f(w)) with a convex f and f(0) = 0. Beyond the end, where f reaches [`DEPTH`], the integrand is negligible.

use crate::array::host_values;
use crate::ops::call::axes::check_reduction_rank;
use crate::ops::formula::apply_rows;
use crate::ops::primitive::{copy, create, view};
use crate::tensor::Tensor;
use pellucid_ir::formula::{Expr, Formula};
use pellucid_ir::{DType, Result};
use std::f64::consts::PI;
use std::sync::LazyLock;

/// The exponent beyond which an integrand is negligible.
pub(super) const DEPTH: f64 = 38.0;

/// The largest end of an integral, before it is rounded up. e^w overflows from w = 710 on.
const MAX_END: f64 = 700.0;

/// Computes a formula in `f64` from the broadcast inputs and, as its last two inputs, the rows of all nodes and weights
/// of the quadrature on [0, 1].
pub(super) fn map_nodes(op: &'static str, formula: &Formula, inputs: &[&Tensor]) -> Result<Tensor> {
    let column = |x: &&Tensor| view::unsqueeze(&copy::to_dtype(x, DType::F64)?, -1);
    let mut columns = inputs.iter().map(column).collect::<Result<Vec<Tensor>>>()?;
    let rank = columns.iter().map(Tensor::rank).max().unwrap_or(0);
    for column in &columns {
        check_reduction_rank(op, column.shape())?;
    }
    for part in &*NODES {
        columns.push(create::from_host(&host_values(NODE_COUNT, part.iter().copied())?, [NODE_COUNT])?);
    }
    let columns: Vec<&Tensor> = columns.iter().collect();
    view::squeeze(&apply_rows(formula, &columns, &[], std::iter::once(rank - 1).collect())?, -1)
}

/// Returns the end: the w at which `f` reaches [`DEPTH`], with an error of about 10 %. `bound` is an upper bound of w.
///
/// `f` returns the value and the slope of a convex function whose logarithm is concave. Newton's method for the
/// logarithm then approaches the end from below, and one step for the function itself is at or above the end. The
/// result is rounded up to a power of 2^⅛ and therefore has the derivative 0.
pub(super) fn end_of_integral(bound: Expr, f: impl Fn(Expr) -> (Expr, Expr)) -> Expr {
    let mut end = bound.min(MAX_END);
    for _ in 0..8 {
        let (value, slope) = f(end);
        end = (end - value * (value / DEPTH).ln() / slope).max(0.1 * end).min(MAX_END);
    }
    let (value, slope) = f(end);
    let above = end + (DEPTH - value) / slope;
    ((8.0 * above.log2()).ceil() * 0.125).exp2()
}

/// Returns an upper bound of the w at which `slope`·w + `curvature`·w²/(2 + w) is [`DEPTH`].
pub(super) fn bound_of_end(slope: Expr, curvature: Expr) -> Expr {
    let (c, q) = (slope + curvature, DEPTH - 2.0 * slope);
    let root = (q * q + 8.0 * DEPTH * c).sqrt();
    q.gt(0.0).select((q + root) / (2.0 * c), 4.0 * DEPTH / (root - q))
}

const NODE_COUNT: usize = 48;

/// The nodes and the weights of the quadrature on [0, 1].
static NODES: LazyLock<[Vec<f64>; 2]> = LazyLock::new(|| {
    let (nodes, weights) = (0..NODE_COUNT).map(gauss_legendre).unzip();
    [nodes, weights]
});

/// Returns node i and its weight on [0, 1]. The nodes are zeros of a Legendre polynomial, computed by Newton's method.
fn gauss_legendre(i: usize) -> (f64, f64) {
    let n = NODE_COUNT as f64;
    let mut x = (PI * (i as f64 + 0.75) / (n + 0.5)).cos();
    let mut slope = 1.0;
    for _ in 0..10 {
        let (mut low, mut high) = (1.0, x);
        for k in 2..=NODE_COUNT {
            let k = k as f64;
            (low, high) = (high, ((2.0 * k - 1.0) * x * high - (k - 1.0) * low) / k);
        }
        slope = n * (x * high - low) / (x * x - 1.0);
        x -= high / slope;
    }
    (0.5 * (1.0 - x), 1.0 / ((1.0 - x * x) * slope * slope))
}
