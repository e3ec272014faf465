//! The von Mises distribution of angles.

use crate::constraint::Constraint;
use crate::distribution::Distribution;
use crate::noise::{open_uniform, open_uniform_f64, properties};
use crate::parameters::{elementwise, family};
use pellucid_tensor::formula::Expr;
use pellucid_tensor::{DType, Result, Shape, Tensor, formula, ops, unwrap};
use std::f64::consts::PI;

family! {
    /// The von Mises distribution of an angle with density e^(κ cos(x − μ)) / (2π·I₀(κ)) for −π ≤ x < π.
    ///
    /// Samples have no gradient. They are drawn by 33 rounds of the rejection method of Best & Fisher (1979); the
    /// probability that all rounds fail is below 5e-16.
    ///
    /// ```
    /// use pellucid::Tensor;
    /// use pellucid::distributions::{Distribution, VonMises};
    ///
    /// let direction = VonMises::new(&Tensor::from(0.5), 4.0);
    /// assert_eq!(direction.mean().item::<f64>(), 0.5);
    /// assert!(direction.sample([50]).abs().max(..).item::<f64>() <= 3.1416);
    /// ```
    VonMises("von_mises") {
        /// Returns μ, the mean direction in radians.
        loc: Real,
        /// Returns κ, the inverse of the variance for large κ.
        concentration: Positive,
    }
}

/// The number of rounds of the rejection method. One round accepts with a probability of at least 0.657.
const ROUNDS: usize = 33;

/// Draws cos(x − μ) for samples of this shape, in `f64`.
fn sample_cosine(concentration: &Tensor, shape: &Shape) -> Result<Tensor> {
    let kappa = ops::to_dtype(&concentration.detach(), DType::F64)?;
    // The parameter r of the wrapped Cauchy proposal. A series replaces the formula for small κ, where the formula
    // cancels.
    let r = elementwise!(von_mises_proposal(k = &kappa) => {
        let tau = 1.0 + (1.0 + 4.0 * k * k).sqrt();
        let rho = (tau - (2.0 * tau).sqrt()) / (2.0 * k);
        k.lt(1e-5).select(k.recip() + k, (1.0 + rho * rho) / (2.0 * rho))
    })?;
    // The value 2 marks samples that have not been accepted yet.
    let round = formula! {
        static von_mises_round(accepted, u, v, k, r) = {
            let z = (u * PI).cos();
            let f = (1.0 + r * z) / (r + z);
            let c = k * (r - f);
            let accepts = (c * (2.0 - c) - v).gt(0.0) | ((c / v).ln() + 1.0 - c).ge(0.0);
            (accepted.gt(1.0) & accepts).select(f, accepted)
        };
    };
    let mut cosine = ops::full_like(&open_uniform_f64(&kappa, shape)?, 2.0)?;
    for _ in 0..ROUNDS {
        let (u, v) = (open_uniform_f64(&kappa, shape)?, open_uniform_f64(&kappa, shape)?);
        cosine = ops::map(round, &[&cosine, &u, &v, &kappa, &r], &[])?;
    }
    ops::clamp(&cosine, -1.0, 1.0)
}

impl Distribution for VonMises {
    properties!("von_mises", batch: loc, rsample: false);

    fn support(&self) -> Constraint {
        Constraint::Real
    }
    fn try_draw(&self, shape: &Shape) -> Result<Tensor> {
        let cosine = sample_cosine(&self.concentration, shape)?;
        let side = open_uniform(&self.loc, shape)?;
        let x = elementwise!(von_mises_sample(cosine = &cosine, side = &side, loc = &self.loc) => {
            let angle = cosine.acos();
            let x = loc + side.lt(0.5).select(angle, -angle);
            x - 2.0 * PI * ((x + PI) / (2.0 * PI)).floor()
        })?;
        ops::to_dtype(&x, self.loc.dtype())
    }
    fn try_log_prob(&self, x: &Tensor) -> Result<Tensor> {
        // κ(cos d − 1) is −2κ·sin²(d/2), and I₀ scaled by e^(−κ) does not overflow.
        let norm = ops::i0e(&self.concentration)?;
        let inputs = (&self.loc, &self.concentration);
        elementwise!(von_mises_log_prob(x = x, loc = inputs.0, k = inputs.1, norm = &norm) => {
            let s = (0.5 * (x - loc)).sin();
            -2.0 * k * s * s - norm.ln() - (2.0 * PI).ln()
        })
    }
    fn try_mean(&self) -> Result<Tensor> {
        Ok(self.loc.clone())
    }
    fn try_entropy(&self) -> Result<Tensor> {
        let (norm, variance) = (ops::i0e(&self.concentration)?, self.try_variance()?);
        elementwise!(von_mises_entropy(k = &self.concentration, norm = &norm, variance = &variance) => {
            k * variance + norm.ln() + (2.0 * PI).ln()
        })
    }
    /// Returns the circular variance 1 − I₁(κ)/I₀(κ).
    fn try_variance(&self) -> Result<Tensor> {
        let k = &self.concentration;
        let ratio = ops::div(&ops::i1e(k)?, &ops::i0e(k)?)?;
        elementwise!(von_mises_variance(k = k, ratio = &ratio) => {
            let is_large = k.gt(LARGE);
            let u = is_large.select(k, LARGE).recip();
            let [total, difference] = bessel_series(u);
            is_large.select(difference / total, 1.0 - ratio)
        })
    }
}

/// The smallest κ for which the asymptotic series of the Bessel functions is used.
const LARGE: f64 = 30.0;

/// Returns I₀ and I₀ − I₁ for κ = 1/u, both times √(2πκ)·e^(−κ), by their asymptotic series (Abramowitz & Stegun
/// 9.7.1). All terms are positive.
fn bessel_series(u: Expr) -> [Expr; 2] {
    let mut terms = [1.0f64, 1.0];
    let (mut total, mut difference) = (vec![1.0], vec![0.0]);
    for k in 1..=20 {
        let odd = f64::from(2 * k - 1);
        for (order, term) in terms.iter_mut().enumerate() {
            *term *= (odd * odd - 4.0 * order as f64) / f64::from(8 * k);
        }
        total.push(terms[0]);
        difference.push(terms[0] - terms[1]);
    }
    [total, difference].map(|c| c[..20].iter().rev().fold(0.0 * u + c[20], |sum, &c| sum * u + c))
}
