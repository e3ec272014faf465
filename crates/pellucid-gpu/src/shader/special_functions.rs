//! The functions of `f32` that are computed with series in a wider arithmetic.

/// The arithmetic in which a series is computed. The result is rounded to `f32` once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SeriesArithmetic {
    /// Double-float arithmetic: unevaluated sums of two `f32`. The `f64` versions of these functions run on the CPU:
    /// drivers inline all calls, and take 20 s or more to compile the result.
    TwoFloats,
    /// `f64`, as on the CPU.
    F64,
}

/// A function of `f32` with a series.
pub(crate) struct SpecialFunction {
    /// The name, without the prefix of its type.
    pub(crate) name: &'static str,
    /// The iterations of all loops for the largest arguments, including the loops of divisions. They are listed because
    /// the loops end at a condition: estimates from the source code would multiply the assumed lengths of nested loops.
    pub(crate) iterations: usize,
    pub(crate) arithmetic: SeriesArithmetic,
}

const fn function(name: &'static str, iterations: usize, arithmetic: SeriesArithmetic) -> SpecialFunction {
    SpecialFunction { name, iterations, arithmetic }
}

/// All functions of `f32` with a series.
const SPECIAL_FUNCTIONS: [SpecialFunction; 11] = [
    function("polygamma", 1000, SeriesArithmetic::TwoFloats),
    function("zeta", 1000, SeriesArithmetic::TwoFloats),
    function("igamma", 4000, SeriesArithmetic::TwoFloats),
    function("igammac", 4000, SeriesArithmetic::TwoFloats),
    function("bessel_j", 10_000, SeriesArithmetic::TwoFloats),
    function("bessel_y", 10_000, SeriesArithmetic::TwoFloats),
    function("bessel_k", 800, SeriesArithmetic::TwoFloats),
    function("bessel_ke", 800, SeriesArithmetic::TwoFloats),
    function("bessel_i", 14_000, SeriesArithmetic::F64),
    function("bessel_ie", 14_000, SeriesArithmetic::F64),
    function("digamma", 1500, SeriesArithmetic::F64),
];

/// Returns the function of `f32` with this name, if it has a series.
pub(crate) fn special_function(name: &str) -> Option<&'static SpecialFunction> {
    SPECIAL_FUNCTIONS.iter().find(|function| function.name == name)
}

/// Returns true if the function of `f32` with this name is computed with sums of two `f32`.
pub(crate) fn has_two_floats(name: &str) -> bool {
    special_function(name).is_some_and(|function| function.arithmetic == SeriesArithmetic::TwoFloats)
}
