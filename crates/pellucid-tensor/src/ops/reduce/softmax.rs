//! Softmax and its logarithm. Both are row formulas, and so are their gradients.

use crate::ops::elementwise::arithmetic;
use crate::ops::formula::over_axes::{as_float, over_axes, row_formula};

row_formula! {
    errors = "[`Error::AxisOutOfRange`](crate::Error::AxisOutOfRange).";

    /// Computes the softmax yᵢ = exp xᵢ / Σⱼ exp xⱼ over `axes`, stable for any magnitude of x.
    ///
    /// The gradient is yᵢ·(gᵢ − Σⱼ gⱼ·yⱼ).
    softmax(x; axes) = {
        let e = (x - x.row_max()).exp();
        e * e.row_sum().recip()
    }, autocast = Single,
        d x = y * (g - (g * y).row_sum());
    /// Computes the logarithm of the softmax, yᵢ = xᵢ − ln Σⱼ exp xⱼ over `axes`, stable for any magnitude of x.
    ///
    /// The gradient is gᵢ − exp(yᵢ)·Σⱼ gⱼ.
    log_softmax(x; axes) = {
        let shifted = x - x.row_max();
        shifted - shifted.exp().row_sum().ln()
    }, autocast = Single,
        d x = g - y.exp() * g.row_sum();
}

over_axes! {
    errors = "[`Error::AxisOutOfRange`](crate::Error::AxisOutOfRange).";

    /// Computes the softmax of −x over `axes`.
    softmin(x; axes) = softmax(&arithmetic::neg(&as_float(x)?)?, axes);
}
