//! The F distribution: [`FisherSnedecor`].

use crate::beta::{beta_entropy, log_logit_density};
use crate::constraint::Constraint;
use crate::distribution::Distribution;
use crate::gamma_quantile::sample_log_gamma;
use crate::noise::properties;
use crate::parameters::{elementwise, family};
use crate::stirling::{SERIES_BEGIN, log_beta};
use crate::support::{clamp_inside, log_density, xlogy};
use pellucid_tensor::formula::Expr;
use pellucid_tensor::{DType, Result, Shape, Tensor, ops, unwrap};

family! {
    /// The F distribution: the distribution of (X/m)/(Y/n) for independent χ² variables X and Y with m and n degrees of
    /// freedom. m·x/(m·x + n) has the distribution [`Beta`](crate::Beta) with a = m/2 and b = n/2.
    ///
    /// A sample is computed from the logarithms of two gamma samples. Gradients are computed as for
    /// [`Gamma`](crate::Gamma). The mean is ∞ for n ≤ 2, and the variance is ∞ for n ≤ 4, where PyTorch returns NaN.
    ///
    /// ```
    /// use pellucid::Tensor;
    /// use pellucid::distributions::{Distribution, FisherSnedecor};
    ///
    /// let ratio = FisherSnedecor::new(2.0, &Tensor::from([6.0, 4.0, 2.0]));
    /// assert_eq!(ratio.mean().to_vec::<f64>(), [1.5, 2.0, f64::INFINITY]);
    /// assert_eq!(ratio.rsample([5]).shape(), [5, 3]);
    /// ```
    FisherSnedecor("fisher_snedecor") {
        /// Returns m, the degrees of freedom of the numerator.
        df1: Positive,
        /// Returns n, the degrees of freedom of the denominator.
        df2: Positive,
    }
}

/// Returns p = w/(1 + w) and 1 − p for odds w ≥ 0, which may be infinite.
fn shares(odds: Expr) -> [Expr; 2] {
    let is_below = odds.lt(1.0);
    let (below, inverse) = (is_below.select(odds, 1.0), is_below.select(1.0, odds).recip());
    let (one, other) = ((1.0 + below).recip(), (1.0 + inverse).recip());
    [is_below.select(below * one, other), is_below.select(one, inverse * other)]
}

/// Returns the logarithm of the density of the odds w = p/(1 − p) for p ~ Beta(a, b).
fn log_odds_density(a: Expr, b: Expr, odds: Expr) -> Expr {
    let is_large = a.ge(SERIES_BEGIN) & b.ge(SERIES_BEGIN) & odds.gt(0.0);
    let (c, d, w) = (is_large.select(a, SERIES_BEGIN), is_large.select(b, SERIES_BEGIN), is_large.select(odds, 1.0));
    let [share, rest] = shares(w);
    let large = log_logit_density(c, d, share, rest) - w.ln();
    // w^(a−1)/(1 + w)^(a+b) is w^(−b−1)/(1 + 1/w)^(a+b), which does not cancel for a large w.
    let (c, d, w) = (is_large.select(1.0, a), is_large.select(1.0, b), is_large.select(1.0, odds));
    let is_below = w.lt(1.0);
    let (below, above) = (is_below.select(w, 1.0), is_below.select(1.0, w));
    let power = is_below.select(xlogy(c - 1.0, below), -(d + 1.0) * above.ln());
    let sum = is_below.select(below, above.recip()).ln_1p();
    is_large.select(large, power - (c + d) * sum - log_beta(c, d))
}

impl FisherSnedecor {
    /// Returns m/2 and n/2 in `f64`.
    fn halves(&self) -> Result<[Tensor; 2]> {
        let half = |df: &Tensor| ops::mul(&ops::to_dtype(df, DType::F64)?, 0.5);
        Ok([half(&self.df1)?, half(&self.df2)?])
    }
}

impl Distribution for FisherSnedecor {
    properties!("fisher_snedecor", batch: df1, rsample: true);

    fn support(&self) -> Constraint {
        Constraint::NonNegative
    }
    fn try_draw(&self, shape: &Shape) -> Result<Tensor> {
        let [a, b] = self.halves()?;
        let (x, y) = (sample_log_gamma(&a, shape)?, sample_log_gamma(&b, shape)?);
        let ratio = elementwise!(fisher_snedecor_sample(x = &x, y = &y, a = &a, b = &b) => (x - y).exp() * (b / a))?;
        clamp_inside(&ops::to_dtype(&ratio, self.df1.dtype())?, &self.support())
    }
    fn try_log_prob(&self, x: &Tensor) -> Result<Tensor> {
        elementwise!(fisher_snedecor_log_prob(x = x, m = &self.df1, n = &self.df2) => {
            let inside = x.ge(0.0) & x.lt(f64::INFINITY);
            let odds = m / n * inside.select(x, 1.0);
            let is_finite = odds.lt(f64::INFINITY);
            let density = log_odds_density(0.5 * m, 0.5 * n, is_finite.select(odds, 1.0));
            log_density(x, inside & is_finite, (m / n).ln() + density)
        })
    }
    fn try_cdf(&self, x: &Tensor) -> Result<Tensor> {
        let [a, b] = self.halves()?;
        let odds = elementwise!(fisher_snedecor_odds(x = x, a = &a, b = &b) => (a / b * x).max(0.0))?;
        let share = elementwise!(fisher_snedecor_share(w = &odds) => shares(w)[0])?;
        let rest = elementwise!(fisher_snedecor_rest(w = &odds) => shares(w)[1])?;
        let dtype = DType::promote(self.df1.dtype(), x.dtype());
        ops::to_dtype(&ops::betainc_of_pair(&a, &b, &share, &rest)?, dtype)
    }
    fn try_entropy(&self) -> Result<Tensor> {
        elementwise!(fisher_snedecor_entropy(m = &self.df1, n = &self.df2) => {
            let (a, b) = (0.5 * m, 0.5 * n);
            // The expectation of the logarithm of the slope of x with respect to p.
            let slope = 2.0 * ((a + b).digamma() - b.digamma()) + (b / a).ln();
            beta_entropy(a, b) + slope
        })
    }
    fn try_mean(&self) -> Result<Tensor> {
        elementwise!(fisher_snedecor_mean(n = &self.df2) => {
            let exists = n.gt(2.0);
            let n = exists.select(n, 3.0);
            exists.select(n / (n - 2.0), f64::INFINITY)
        })
    }
    fn try_variance(&self) -> Result<Tensor> {
        elementwise!(fisher_snedecor_variance(m = &self.df1, n = &self.df2) => {
            let exists = n.gt(4.0);
            let n = exists.select(n, 5.0);
            let mean = n / (n - 2.0);
            exists.select(2.0 * mean * mean * (m + n - 2.0) / (m * (n - 4.0)), f64::INFINITY)
        })
    }
}
