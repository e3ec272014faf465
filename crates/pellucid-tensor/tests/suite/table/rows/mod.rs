//! The rows, in files named after the files of `src/ops`.

mod activation;
mod arithmetic;
mod attention;
mod blas;
mod combinatorics;
mod compare;
mod convolve;
mod create;
mod diagonal;
mod distance;
mod einops;
mod einsum;
mod gate;
mod gather;
mod gradient;
mod join;
mod linalg;
mod loss;
mod losses;
mod masked;
mod masked_reduce;
mod matmul;
mod nan_reduce;
mod normalize;
mod numbers;
mod pad;
mod parts;
mod polyfit;
mod polynomial;
mod quantile;
mod random;
mod rearrange;
mod recurrent;
mod reduce;
mod scan;
mod scatter;
mod search;
mod set_operations;
mod signal;
mod sort;
mod special;
mod statistics;
mod transcendental;
mod user;
mod view;
mod window;

use super::driver::run_rows;
use super::row::Row;

/// A row of an elementwise operation of one tensor: `unary!(tanh, f64::tanh)`, and
/// `unary!(clamp(-0.5, 0.5), reference)` with its parameters.
macro_rules! unary_row {
    ($name:ident, $reference:expr) => {
        $crate::table::row::unary(stringify!($name), |x| pellucid_tensor::ops::$name(x), $reference)
    };
    ($name:ident ($($k:expr),*), $reference:expr) => {
        $crate::table::row::unary(stringify!($name), |x| pellucid_tensor::ops::$name(x, $($k),*), $reference)
    };
}

/// A row of an elementwise operation of two operands.
macro_rules! binary_row {
    ($name:ident, $reference:expr) => {
        $crate::table::row::binary(
            stringify!($name),
            |a, b| pellucid_tensor::ops::$name(a, b),
            (|a, k| pellucid_tensor::ops::$name(a, k), |k, b| pellucid_tensor::ops::$name(k, b)),
            $reference,
        )
    };
}

use {binary_row, unary_row};

macro_rules! tables {
    ($($module:ident),*) => {
        /// Returns all rows.
        pub fn all() -> Vec<Row> {
            [$($module::rows()),*].into_iter().flatten().collect()
        }

        $(
            #[test]
            fn $module() {
                run_rows($module::rows());
            }
        )*
    };
}

tables!(
    activation,
    arithmetic,
    attention,
    blas,
    combinatorics,
    compare,
    convolve,
    create,
    diagonal,
    distance,
    einops,
    einsum,
    gate,
    gather,
    gradient,
    join,
    linalg,
    loss,
    losses,
    masked,
    masked_reduce,
    matmul,
    nan_reduce,
    normalize,
    numbers,
    pad,
    parts,
    polyfit,
    polynomial,
    quantile,
    random,
    rearrange,
    recurrent,
    reduce,
    scan,
    scatter,
    search,
    set_operations,
    signal,
    sort,
    special,
    statistics,
    transcendental,
    user,
    view,
    window
);
