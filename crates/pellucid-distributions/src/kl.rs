//! The Kullback-Leibler divergence KL(p ‖ q) = E[ln p(x) − ln q(x)] for x ~ p, in closed form for pairs of families.

use crate::bernoulli::{centred_mean, log_normalizer, variance};
use crate::beta::beta_entropy;
use crate::composed::{Independent, TransformedDistribution};
use crate::distribution::Distribution;
use crate::gamma::{gamma_entropy, standard_gamma_entropy};
use crate::location_scale::EULER_GAMMA;
use crate::parameters::elementwise;
use crate::stirling::{HALF_LN_2PI, deviance, shape_divergence_rest};
use crate::support::{quotient, xlogy};
use crate::{
    Bernoulli, Beta, Binomial, Categorical, Cauchy, Chi2, ContinuousBernoulli, Dirichlet, Exponential, Gamma,
    Geometric, Gumbel, HalfNormal, Laplace, LogNormal, MultivariateNormal, Normal, OneHotCategorical, Pareto, Poisson,
    Transform, Uniform,
};
use pellucid_tensor::formula::Expr;
use pellucid_tensor::formula::remainders::{exp_m1_minus, log_ratio, log_ratio_minus};
use pellucid_tensor::{Error, Result, Tensor, formula, ops, unwrap};
use std::f64::consts::PI;

/// A family with a closed-form divergence to the family `Q`. For a pair of families without an implementation,
/// `kl_divergence` does not compile.
pub trait KlDivergence<Q> {
    /// Returns KL(self ‖ q). The result has the broadcast batch shape.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] if the batch shapes do not broadcast.
    fn try_kl_divergence(&self, q: &Q) -> Result<Tensor>;

    /// Returns KL(self ‖ q). The result has the broadcast batch shape.
    ///
    /// # Panics
    /// Panics if [`try_kl_divergence`](Self::try_kl_divergence) returns an error.
    #[track_caller]
    fn kl_divergence(&self, q: &Q) -> Tensor {
        unwrap(self.try_kl_divergence(q))
    }
}

/// Returns KL(p ‖ q). The result has the broadcast batch shape.
///
/// ```
/// use pellucid::Tensor;
/// use pellucid::distributions::{Normal, kl_divergence};
///
/// let p = Normal::new(&Tensor::from([0.0, 1.0]), 1.0);
/// assert_eq!(kl_divergence(&p, &Normal::new(0.0, 1.0))?.to_vec::<f64>(), [0.0, 0.5]);
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// # Errors
/// [`Error::ShapeMismatch`] if the batch shapes do not broadcast.
pub fn kl_divergence<P: KlDivergence<Q>, Q>(p: &P, q: &Q) -> Result<Tensor> {
    p.try_kl_divergence(q)
}

/// Implements the divergences of pairs as formulas in the parameters of p and q.
macro_rules! divergences {
    ($($name:ident: $p:ident => $q:ident, |$($x:ident = $side:ident.$parameter:ident),+| $body:expr;)*) => {$(
        impl KlDivergence<$q> for $p {
            fn try_kl_divergence(&self, q: &$q) -> Result<Tensor> {
                let p = self;
                elementwise!($name($($x = divergences!(@tensor p, q, $side.$parameter)),+) => $body)
            }
        }
    )*};
    (@tensor $p:ident, $q:ident, p.$parameter:ident) => { $p.$parameter() };
    (@tensor $p:ident, $q:ident, q.$parameter:ident) => { $q.$parameter() };
}

/// Implements infinite divergences, for pairs in which the support of p is not contained in the support of q.
macro_rules! infinite {
    ($($p:ident => $($q:ident),+;)*) => {$($(
        impl KlDivergence<$q> for $p {
            fn try_kl_divergence(&self, q: &$q) -> Result<Tensor> {
                infinite_divergence(self, q)
            }
        }
    )+)*};
}

fn infinite_divergence(p: &impl Distribution, q: &impl Distribution) -> Result<Tensor> {
    let (a, b) = (p.batch_shape(), q.batch_shape());
    let Some(shape) = a.broadcast(&b) else {
        return Err(Error::shapes("kl_divergence", [&a, &b], "the batch shapes must broadcast"));
    };
    ops::full(shape, f64::INFINITY, p.try_mean()?.dtype())
}

infinite! {
    Exponential => Beta, ContinuousBernoulli, Pareto, Uniform;
    Gamma => Beta, ContinuousBernoulli, Pareto, Uniform;
    Normal => Beta, ContinuousBernoulli, Exponential, Gamma, Pareto, Uniform;
    Laplace => Beta, ContinuousBernoulli, Exponential, Gamma, Pareto, Uniform;
    Gumbel => Beta, ContinuousBernoulli, Exponential, Gamma, Pareto, Uniform;
    Pareto => Beta, ContinuousBernoulli, Uniform;
    Beta => Pareto;
    ContinuousBernoulli => Pareto;
    Poisson => Bernoulli, Binomial;
}

/// Returns −E[ln q(x)] for a normal q, from the mean and the variance of x.
fn cross_entropy_with_normal(mean: Expr, variance: Expr, loc: Expr, scale: Expr) -> Expr {
    let z = (mean - loc) / scale;
    scale.ln() + HALF_LN_2PI + 0.5 * (variance / (scale * scale) + z * z)
}

/// Returns the divergence of centred normal distributions with the standard deviations s and t.
fn scale_divergence(s: Expr, t: Expr) -> Expr {
    let u = (s - t) / t;
    0.5 * u * u - log_ratio_minus(u, s / t)
}

/// Returns r − 1 − ln r for r = s/t.
fn ratio_divergence(s: Expr, t: Expr) -> Expr {
    -log_ratio_minus((s - t) / t, s / t)
}

/// Returns c·ln(c/m) + m − c for m = c·r, from u = r − 1 and r. The caller computes u without cancellation.
fn shape_deviance(c: Expr, u: Expr, r: Expr) -> Expr {
    -c * log_ratio_minus(u, r)
}

/// Returns the divergence of Gamma(a, b) and Gamma(c, d).
fn gamma_divergence(a: Expr, b: Expr, c: Expr, d: Expr) -> Expr {
    let ratio = a / c * (d / b);
    let change = a / c * ((d - b) / b) + (a - c) / c;
    shape_deviance(c, change, ratio) + shape_divergence_rest(a, c, c - a)
}

divergences! {
    kl_normal_normal: Normal => Normal, |m = p.loc, s = p.scale, n = q.loc, t = q.scale| {
        let z = (m - n) / t;
        scale_divergence(s, t) + 0.5 * z * z
    };
    kl_log_normal: LogNormal => LogNormal, |m = p.loc, s = p.scale, n = q.loc, t = q.scale| {
        let z = (m - n) / t;
        scale_divergence(s, t) + 0.5 * z * z
    };
    kl_half_normal: HalfNormal => HalfNormal, |s = p.scale, t = q.scale| scale_divergence(s, t);
    kl_normal_gumbel: Normal => Gumbel, |m = p.loc, s = p.scale, n = q.loc, t = q.scale| {
        let (z, ratio) = ((m - n) / t, s / t);
        z + (0.5 * ratio * ratio - z).exp() - ratio.ln() - (0.5 + HALF_LN_2PI)
    };
    kl_normal_laplace: Normal => Laplace, |m = p.loc, s = p.scale, n = q.loc, t = q.scale| {
        let z = (m - n) / s;
        // E|x − n| for a normal x.
        let distance = s * ((2.0 / PI).sqrt() * (-0.5 * z * z).exp() + z * (z * 0.5f64.sqrt()).erf());
        distance / t + (2.0 * t / s).ln() - (0.5 + HALF_LN_2PI)
    };
    kl_cauchy_cauchy: Cauchy => Cauchy, |m = p.loc, s = p.scale, n = q.loc, t = q.scale| {
        let (difference, d) = (s - t, m - n);
        (0.25 * (difference / s * (difference / t) + d / s * (d / t))).ln_1p()
    };
    kl_laplace_laplace: Laplace => Laplace, |m = p.loc, s = p.scale, n = q.loc, t = q.scale| {
        ratio_divergence(s, t) + s / t * exp_m1_minus(-(m - n).abs() / s)
    };
    kl_laplace_normal: Laplace => Normal, |m = p.loc, s = p.scale, n = q.loc, t = q.scale| {
        cross_entropy_with_normal(m, 2.0 * s * s, n, t) - (2.0 * s).ln() - 1.0
    };
    kl_gumbel_gumbel: Gumbel => Gumbel, |m = p.loc, s = p.scale, n = q.loc, t = q.scale| {
        let (ratio, u, z) = (s / t, (s - t) / t, (m - n) / t);
        // ln Γ(r) + γ·(r − 1) for r = s/t, the divergence of gamma distributions of the shapes 1 and r; ψ(1) is −γ.
        let rest = shape_divergence_rest(0.0 * u + 1.0, ratio, u);
        let divergence = shape_deviance(ratio, -u / ratio, ratio.recip()) + rest;
        // The logarithm of E[e^(−(x − n)/t)], ln Γ(1 + r) − z.
        let exponent = log_ratio(u, ratio) + (divergence - EULER_GAMMA * u) - z;
        exp_m1_minus(exponent) + divergence
    };
    kl_gumbel_normal: Gumbel => Normal, |m = p.loc, s = p.scale, n = q.loc, t = q.scale| {
        cross_entropy_with_normal(m + s * EULER_GAMMA, s * s * (PI * PI / 6.0), n, t) - s.ln() - (1.0 + EULER_GAMMA)
    };
    kl_uniform_uniform: Uniform => Uniform, |a = p.low, b = p.high, c = q.low, d = q.high| {
        (c.le(a) & b.le(d)).select(((d - c) / (b - a)).ln(), f64::INFINITY)
    };
    kl_uniform_normal: Uniform => Normal, |a = p.low, b = p.high, n = q.loc, t = q.scale| {
        let width = b - a;
        cross_entropy_with_normal(0.5 * (a + b), width * width / 12.0, n, t) - width.ln()
    };
    kl_uniform_exponential: Uniform => Exponential, |a = p.low, b = p.high, r = q.rate| {
        a.ge(0.0).select(0.5 * r * (a + b) - ((b - a) * r).ln(), f64::INFINITY)
    };
    kl_uniform_gumbel: Uniform => Gumbel, |a = p.low, b = p.high, n = q.loc, t = q.scale| {
        let (low, high) = ((a - n) / t, (b - n) / t);
        let width = high - low;
        0.5 * (low + high) - ((-high).exp() - (-low).exp()) / width - width.ln()
    };
    kl_exponential_exponential: Exponential => Exponential, |r = p.rate, s = q.rate| ratio_divergence(s, r);
    kl_exponential_gamma: Exponential => Gamma, |r = p.rate, a = q.concentration, b = q.rate| {
        gamma_divergence(0.0 * r + 1.0, r, a, b)
    };
    kl_exponential_gumbel: Exponential => Gumbel, |r = p.rate, n = q.loc, t = q.scale| {
        let s = r * t;
        s.ln() - 1.0 + (1.0 / s) - n / t + (n / t).exp() * s / (s + 1.0)
    };
    kl_exponential_normal: Exponential => Normal, |r = p.rate, n = q.loc, t = q.scale| {
        let mean = r.recip();
        cross_entropy_with_normal(mean, mean * mean, n, t) + r.ln() - 1.0
    };
    kl_gamma_gamma: Gamma => Gamma, |a = p.concentration, b = p.rate, c = q.concentration, d = q.rate| {
        gamma_divergence(a, b, c, d)
    };
    kl_gamma_exponential: Gamma => Exponential, |a = p.concentration, b = p.rate, r = q.rate| {
        gamma_divergence(a, b, 0.0 * r + 1.0, r)
    };
    kl_gamma_gumbel: Gamma => Gumbel, |a = p.concentration, b = p.rate, n = q.loc, t = q.scale| {
        let s = b * t;
        s.ln() - standard_gamma_entropy(a) + a / s - n / t + (n / t - a * s.recip().ln_1p()).exp()
    };
    kl_gamma_normal: Gamma => Normal, |a = p.concentration, b = p.rate, n = q.loc, t = q.scale| {
        cross_entropy_with_normal(a / b, a / (b * b), n, t) - gamma_entropy(a, b)
    };
    kl_pareto_pareto: Pareto => Pareto, |s = p.scale, a = p.alpha, t = q.scale, c = q.alpha| {
        let value = c * (s / t).ln() + ratio_divergence(c, a);
        s.ge(t).select(value, f64::INFINITY)
    };
    kl_pareto_exponential: Pareto => Exponential, |s = p.scale, a = p.alpha, r = q.rate| {
        let exists = a.gt(1.0);
        let b = exists.select(a, 2.0);
        exists.select((b / (s * r)).ln() + r * s * b / (b - 1.0) - (1.0 + b) / b, f64::INFINITY)
    };
    kl_pareto_normal: Pareto => Normal, |s = p.scale, a = p.alpha, n = q.loc, t = q.scale| {
        let exists = a.gt(2.0);
        let b = exists.select(a, 3.0);
        let mean = s * b / (b - 1.0);
        let variance = s * s * b / ((b - 1.0) * (b - 1.0) * (b - 2.0));
        exists.select(cross_entropy_with_normal(mean, variance, n, t) + (b / s).ln() - 1.0 - b.recip(), f64::INFINITY)
    };
    kl_beta_beta: Beta => Beta,
        |a = p.concentration1, b = p.concentration0, c = q.concentration1, d = q.concentration0|
    {
        let (n, m) = (a + b, c + d);
        // a·d − b·c, divided by n.
        let change = a / n * (d - b) + b / n * (a - c);
        shape_deviance(c, change / c, m / c * (a / n)) + shape_deviance(d, -change / d, m / d * (b / n))
            + shape_divergence_rest(a, c, c - a)
            + shape_divergence_rest(b, d, d - b)
            - shape_divergence_rest(n, m, (c - a) + (d - b))
    };
    kl_beta_normal: Beta => Normal, |a = p.concentration1, b = p.concentration0, n = q.loc, t = q.scale| {
        let sum = a + b;
        cross_entropy_with_normal(a / sum, (a / sum) * (b / sum) / (sum + 1.0), n, t) - beta_entropy(a, b)
    };
    kl_beta_exponential: Beta => Exponential, |a = p.concentration1, b = p.concentration0, r = q.rate| {
        -beta_entropy(a, b) - r.ln() + r * a / (a + b)
    };
    kl_beta_gamma: Beta => Gamma,
        |a = p.concentration1, b = p.concentration0, c = q.concentration, d = q.rate|
    {
        let log_mean = a.digamma() - (a + b).digamma();
        -beta_entropy(a, b) + c.lgamma() - c * d.ln() - (c - 1.0) * log_mean + d * a / (a + b)
    };
    kl_beta_uniform: Beta => Uniform, |a = p.concentration1, b = p.concentration0, c = q.low, d = q.high| {
        (c.le(0.0) & d.ge(1.0)).select((d - c).ln() - beta_entropy(a, b), f64::INFINITY)
    };
}

impl KlDivergence<Chi2> for Chi2 {
    fn try_kl_divergence(&self, q: &Chi2) -> Result<Tensor> {
        self.try_to_gamma()?.try_kl_divergence(&q.try_to_gamma()?)
    }
}

impl KlDivergence<Bernoulli> for Bernoulli {
    fn try_kl_divergence(&self, q: &Bernoulli) -> Result<Tensor> {
        self.success().divergence(q.success())
    }
}

impl KlDivergence<Poisson> for Poisson {
    fn try_kl_divergence(&self, q: &Poisson) -> Result<Tensor> {
        elementwise!(kl_poisson_poisson(a = self.rate(), b = q.rate()) => deviance(a, b);
            d a = g * (a.eq(0.0) & b.eq(0.0)).select(0.0, a.ln() - b.ln());
            d b = g * (1.0 - quotient(a, b));)
    }
}

impl KlDivergence<Poisson> for Bernoulli {
    fn try_kl_divergence(&self, q: &Poisson) -> Result<Tensor> {
        let (entropy, p) = (self.try_entropy()?, self.try_probs()?);
        elementwise!(kl_bernoulli_poisson(h = &entropy, p = &p, r = q.rate()) => r - h - xlogy(p, r))
    }
}

impl KlDivergence<Binomial> for Binomial {
    /// Returns ∞ if p has more trials than q, and an error if p has fewer trials.
    fn try_kl_divergence(&self, q: &Binomial) -> Result<Tensor> {
        if self.total_count() > q.total_count() {
            return infinite_divergence(self, q);
        }
        if self.total_count() < q.total_count() {
            let reason = format!(
                "the KL divergence of a distribution with {} trials from one with {} trials has no closed form; use \
                 the same number of trials, or estimate the divergence from sample()",
                self.total_count(),
                q.total_count()
            );
            return Err(Error::invalid("binomial", reason));
        }
        let one = self.success().divergence(q.success())?;
        ops::mul(&one, self.total_count() as f64)
    }
}

impl KlDivergence<Geometric> for Geometric {
    fn try_kl_divergence(&self, q: &Geometric) -> Result<Tensor> {
        ops::div(&self.success().divergence(q.success())?, &self.try_probs()?)
    }
}

impl KlDivergence<ContinuousBernoulli> for ContinuousBernoulli {
    fn try_kl_divergence(&self, q: &ContinuousBernoulli) -> Result<Tensor> {
        let (l, m) = (self.try_logits()?, q.try_logits()?);
        let (failure, rest) = (self.success().log_failure()?, q.success().log_failure()?);
        elementwise!(kl_continuous_bernoulli(l = &l, m = &m, failure = &failure, rest = &rest) => {
            let mean = 0.5 + centred_mean(l);
            mean * (l - m) + failure - rest + log_normalizer(l) - log_normalizer(m)
        })
    }
}

impl KlDivergence<Normal> for ContinuousBernoulli {
    fn try_kl_divergence(&self, q: &Normal) -> Result<Tensor> {
        let (entropy, l) = (self.try_entropy()?, self.try_logits()?);
        elementwise!(kl_continuous_bernoulli_normal(h = &entropy, l = &l, n = q.loc(), t = q.scale()) => {
            cross_entropy_with_normal(0.5 + centred_mean(l), variance(l), n, t) - h
        })
    }
}

impl KlDivergence<Exponential> for ContinuousBernoulli {
    fn try_kl_divergence(&self, q: &Exponential) -> Result<Tensor> {
        let (entropy, mean) = (self.try_entropy()?, self.try_mean()?);
        elementwise!(kl_continuous_bernoulli_exponential(h = &entropy, m = &mean, r = q.rate()) => {
            r * m - r.ln() - h
        })
    }
}

impl KlDivergence<Uniform> for ContinuousBernoulli {
    fn try_kl_divergence(&self, q: &Uniform) -> Result<Tensor> {
        let entropy = self.try_entropy()?;
        elementwise!(kl_continuous_bernoulli_uniform(h = &entropy, c = q.low(), d = q.high()) => {
            (c.le(0.0) & d.ge(1.0)).select((d - c).ln() - h, f64::INFINITY)
        })
    }
}

impl KlDivergence<Categorical> for Categorical {
    fn try_kl_divergence(&self, q: &Categorical) -> Result<Tensor> {
        self.class_probabilities().divergence(q.class_probabilities())
    }
}

impl KlDivergence<OneHotCategorical> for OneHotCategorical {
    fn try_kl_divergence(&self, q: &OneHotCategorical) -> Result<Tensor> {
        self.class_probabilities().divergence(q.class_probabilities())
    }
}

impl KlDivergence<Dirichlet> for Dirichlet {
    fn try_kl_divergence(&self, q: &Dirichlet) -> Result<Tensor> {
        let divergence = formula! {
            static kl_dirichlet_dirichlet(a, b) = {
                let (sum, other) = (a.row_sum(), b.row_sum());
                let growth = (b - a).row_sum();
                let change = (a * growth / sum + (a - b)) / b;
                let terms = shape_deviance(b, change, other / b * (a / sum)) + shape_divergence_rest(a, b, b - a);
                terms.row_sum() - shape_divergence_rest(sum, other, growth)
            };
        };
        let inputs = [self.concentration(), q.concentration()];
        ops::squeeze(&ops::map_rows(divergence, &inputs, &[], -1)?, -1)
    }
}

impl KlDivergence<MultivariateNormal> for MultivariateNormal {
    /// Returns ½(‖L_q⁻¹L_p‖² + ‖L_q⁻¹(μ_p − μ_q)‖² − d) + ln det L_q − ln det L_p.
    fn try_kl_divergence(&self, q: &MultivariateNormal) -> Result<Tensor> {
        let (factor, other) = (&self.try_scale_tril()?, &q.try_scale_tril()?);
        let ratio = ops::solve_triangular(other, factor, false, true, false)?;
        let offset = MultivariateNormal::whitened(other, &ops::sub(self.loc(), q.loc())?)?;
        let squares = ops::add(&ops::sum(&ops::square(&ratio)?, [-2, -1])?, &ops::sum(&ops::square(&offset)?, -1)?)?;
        let [volume, other_volume] = [factor, other].map(MultivariateNormal::half_log_det);
        let volumes = ops::sub(&other_volume?, &volume?)?;
        ops::add(&ops::mul(&ops::sub(&squares, self.dimension())?, 0.5)?, &volumes)
    }
}

impl<Q: Distribution, P: Distribution + KlDivergence<Q>> KlDivergence<Independent<Q>> for Independent<P> {
    fn try_kl_divergence(&self, q: &Independent<Q>) -> Result<Tensor> {
        if self.axes() != q.axes() {
            let reason =
                format!("the distributions must have the same value of `axes`, got {} and {}", self.axes(), q.axes());
            return Err(Error::invalid("independent", reason));
        }
        self.summed(&self.base().try_kl_divergence(q.base())?)
    }
}

/// The result is the divergence of the bases, because an invertible function of both variables does not change it.
impl<Q: Distribution, P: Distribution + KlDivergence<Q>, T: Transform> KlDivergence<TransformedDistribution<Q, T>>
    for TransformedDistribution<P, T>
{
    /// Returns an error unless the transforms are equal; see [`Transform::try_is_equal`].
    fn try_kl_divergence(&self, q: &TransformedDistribution<Q, T>) -> Result<Tensor> {
        if !self.transform().try_is_equal(q.transform())? {
            let reason = "the transforms must be equal and define signature(); estimate the divergence from sample()";
            return Err(Error::invalid("kl_divergence", reason));
        }
        self.base().try_kl_divergence(q.base())
    }
}
