//! Orthogonal polynomials, evaluated by recurrences (Abramowitz & Stegun 22.7).
//!
//! The recurrences are differentiated too, so that no derivative stores the polynomials of lower degree.

use crate::autograd::{apply_one, interface::*};
use crate::ops::call::check;
use crate::ops::elementwise::{arithmetic, compare};
use crate::ops::formula::{broadcast, map};
use crate::ops::primitive::precision::in_single;
use crate::ops::primitive::{copy, fill};
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::{DType, Error, Result, formula};

/// A family of polynomials: P₀ = 1, P₁ = slope·x + offset, and a recurrence for P_k from x, P_{k−1} and P_{k−2}.
struct PolynomialFamily {
    name: &'static str,
    slope: f64,
    offset: f64,
    /// P_k = (a + b/k)·x·P_{k−1} + (c + d/k)·P_{k−1} + (e + f/k)·P_{k−2} + (h·k)·P_{k−2}, as (a, b, c, d, e, f, h).
    step: [f64; 7],
}

/// The maximum order. It is limited because the recurrence also computes all lower orders.
const MAX_ORDER: i64 = 10_000;

/// The derivative of order `derivative` of P_n(x) with respect to x, for x and `i64` orders n of the same shape.
#[derive(Clone, Copy)]
struct PolynomialDerivative {
    family: &'static PolynomialFamily,
    /// The largest n.
    max_order: i64,
    /// True if all n are equal.
    has_one_order: bool,
    derivative: usize,
}

impl PolynomialDerivative {
    /// Computes the derivatives of all orders up to `derivative` together: by Leibniz' rule, the derivative of order d
    /// of (s·x + o)·P is (s·x + o)·P⁽ᵈ⁾ + d·s·P⁽ᵈ⁻¹⁾.
    fn compute(&self, x: &Tensor, orders: &Tensor) -> Result<Tensor> {
        let &PolynomialFamily { slope, offset, step: [a, b, c, d, e, f, h], .. } = self.family;
        let recurrence =
            formula! { static recurrence(x, p, q; slope, offset, back) = (slope * x + offset) * p + back * q; };
        let derivative = formula! {
            static recurrence_derivative(x, p, q, below; slope, offset, back, order) =
                (slope * x + offset) * p + back * q + order * slope * below;
        };
        if self.has_one_order && self.max_order < self.derivative as i64 {
            return fill::zeros_like(x);
        }
        // Replaces the elements of y whose order is k by `values`.
        let select = |k: i64, values: &Tensor, y: &Tensor| match self.has_one_order {
            true => Ok(values.clone()),
            false => arithmetic::where_(&compare::eq(orders, k)?, values, y),
        };
        let zero = fill::zeros((), x.dtype())?;
        let line = formula! { static line(x; slope, offset) = slope * x + offset; };
        let (mut previous, mut current) =
            (vec![fill::ones_like(x)?], vec![map(line, &[x], &[slope.into(), offset.into()])?]);
        for order in 1..=self.derivative {
            previous.push(zero.clone());
            current.push(if order == 1 { fill::full_like(x, slope)? } else { zero.clone() });
        }
        let mut y = select(0, &previous[self.derivative], &zero)?;
        for k in 1..=self.max_order {
            y = select(k, &current[self.derivative], &y)?;
            if k == self.max_order {
                break;
            }
            let next = (k + 1) as f64;
            let params = [a + b / next, c + d / next, e + f / next + h * next];
            let ahead = |i: usize| match i {
                0 => map(recurrence, &[x, &current[0], &previous[0]], &params.map(Into::into)),
                _ => {
                    let [slope, offset, back] = params;
                    let params = [slope, offset, back, i as f64].map(Into::into);
                    map(derivative, &[x, &current[i], &previous[i], &current[i - 1]], &params)
                }
            };
            let ahead = (0..=self.derivative).map(ahead).collect::<Result<Vec<_>>>()?;
            (previous, current) = (current, ahead);
        }
        Ok(y)
    }
}

impl Operation for PolynomialDerivative {
    fn name(&self) -> &'static str {
        self.family.name
    }

    fn forward(&self, inputs: &[&Array], saves: &mut SaveForBackward) -> Result<Arrays> {
        (0..2).for_each(|i| saves.input(i));
        let y = self.compute(&Tensor::from(inputs[0].clone()), &Tensor::from(inputs[1].clone()))?;
        Ok(smallvec![y.array().clone()])
    }

    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        let higher = PolynomialDerivative { derivative: self.derivative + 1, ..*self };
        let slope = apply_one(higher, &[&saved.input(0)?, &saved.input(1)?])?;
        Ok(smallvec![Some(arithmetic::mul(&grads.get(0)?, &slope)?), None])
    }
}

/// Computes P_n(x); x and n broadcast. Orders are integers (floats are truncated). The polynomial of a negative order
/// is 0.
#[track_caller]
fn evaluate(family: &'static PolynomialFamily, x: &Tensor, n: &Tensor) -> Result<Tensor> {
    let name = family.name;
    check::floats(name, &[x])?;
    in_single!(name, [x] => evaluate(family, x, n));
    let shape = check::common_shape(name, &[x, n], "points and orders must broadcast")?;
    let orders = copy::to_dtype(&n.detach(), DType::I64)?;
    let values = orders.array().to_vec::<i64>(name)?;
    let max_order = values.iter().copied().max().unwrap_or(-1);
    let has_one_order = values.iter().all(|&n| n == max_order);
    if max_order > MAX_ORDER {
        return Err(Error::invalid(name, format!("orders must be at most {MAX_ORDER}, got {max_order}")));
    }
    let operation = PolynomialDerivative { family, max_order, has_one_order, derivative: 0 };
    apply_one(operation, &[&broadcast::broadcast_to(x, &shape)?, &broadcast::broadcast_to(&orders, &shape)?])
}

/// Defines the operations of families from the slope and the offset of P₁, and the step of the recurrence.
macro_rules! families {
    ($($(#[$doc:meta])* $name:ident: $slope:expr, $offset:expr, $step:expr;)*) => {$(
        $(#[$doc])*
        ///
        /// x and the integer orders n broadcast. The first derivative uses about 9 times the memory of the result for
        /// every n, and each further order 4 times more.
        ///
        /// # Errors
        /// [`Error::ShapeMismatch`]; [`Error::DTypeMismatch`] for integer points; [`Error::InvalidArgument`] for orders
        /// above 10,000; [`Error::ReadInCapture`], since the values of n are read.
        #[tensor_method]
        #[track_caller]
        pub fn $name(x: &Tensor, n: &Tensor) -> Result<Tensor> {
            static FAMILY: PolynomialFamily =
                PolynomialFamily { name: stringify!($name), slope: $slope, offset: $offset, step: $step };
            evaluate(&FAMILY, x, n)
        }
    )*};
}

families! {
    /// Computes T_n(x), the Chebyshev polynomial of the first kind: T_n(cos θ) = cos nθ.
    chebyshev_t: 1.0, 0.0, [2.0, 0.0, 0.0, 0.0, -1.0, 0.0, 0.0];
    /// Computes U_n(x), the Chebyshev polynomial of the second kind: U_n(cos θ) = sin (n + 1)θ / sin θ.
    chebyshev_u: 2.0, 0.0, [2.0, 0.0, 0.0, 0.0, -1.0, 0.0, 0.0];
    /// Computes V_n(x), the Chebyshev polynomial of the third kind: V_n(cos θ) = cos (n + ½)θ / cos ½θ.
    chebyshev_v: 2.0, -1.0, [2.0, 0.0, 0.0, 0.0, -1.0, 0.0, 0.0];
    /// Computes W_n(x), the Chebyshev polynomial of the fourth kind: W_n(cos θ) = sin (n + ½)θ / sin ½θ.
    chebyshev_w: 2.0, 1.0, [2.0, 0.0, 0.0, 0.0, -1.0, 0.0, 0.0];
    /// Computes T_n(2x − 1), the Chebyshev polynomial of the first kind on [0, 1].
    shifted_chebyshev_t: 2.0, -1.0, [4.0, 0.0, -2.0, 0.0, -1.0, 0.0, 0.0];
    /// Computes U_n(2x − 1), the Chebyshev polynomial of the second kind on [0, 1].
    shifted_chebyshev_u: 4.0, -2.0, [4.0, 0.0, -2.0, 0.0, -1.0, 0.0, 0.0];
    /// Computes V_n(2x − 1), the Chebyshev polynomial of the third kind on [0, 1].
    shifted_chebyshev_v: 4.0, -3.0, [4.0, 0.0, -2.0, 0.0, -1.0, 0.0, 0.0];
    /// Computes W_n(2x − 1), the Chebyshev polynomial of the fourth kind on [0, 1].
    shifted_chebyshev_w: 4.0, -1.0, [4.0, 0.0, -2.0, 0.0, -1.0, 0.0, 0.0];
    /// Computes H_n(x), the physicists' Hermite polynomial, orthogonal with the weight e^(−x²).
    hermite_h: 2.0, 0.0, [2.0, 0.0, 0.0, 0.0, 2.0, 0.0, -2.0];
    /// Computes He_n(x), the probabilists' Hermite polynomial, orthogonal with the weight e^(−x²/2).
    hermite_he: 1.0, 0.0, [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, -1.0];
    /// Computes L_n(x), the Laguerre polynomial, orthogonal with the weight e^(−x) on x ≥ 0.
    laguerre_l: -1.0, 1.0, [0.0, -1.0, 2.0, -1.0, -1.0, 1.0, 0.0];
    /// Computes P_n(x), the Legendre polynomial, orthogonal on [−1, 1].
    legendre_p: 1.0, 0.0, [2.0, -1.0, 0.0, 0.0, -1.0, 1.0, 0.0];
}
