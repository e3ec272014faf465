//! Probability distributions: samples with gradients, densities, entropies, divergences.
//!
//! ```
//! use pellucid::Tensor;
//! use pellucid::distributions::{Distribution, Normal, kl_divergence};
//!
//! let mean = Tensor::from([0.5, -1.0]).requires_grad_(true);
//! let posterior = Normal::new(&mean, 0.5);
//! let z = posterior.rsample([16]);
//! let loss = (&z * &z).mean(..) + kl_divergence(&posterior, &Normal::new(0.0, 1.0))?.sum(..);
//! loss.backward();
//! assert_eq!(mean.grad().unwrap().shape(), [2]);
//! # Ok::<(), pellucid::Error>(())
//! ```
//!
//! Names and parameters are PyTorch's. Parameters are tensors or numbers, and broadcast. Their values are checked if
//! they can be read without waiting, which excludes captured steps and devices that defer their kernels.
//!
//! Every result has its own graph: results of one object can be differentiated one after another. A backward pass frees
//! only the graph in which the caller has computed a parameter.
//!
//! `log_prob` is −∞ outside the support, where PyTorch raises an error. At a bound of the support it is the limit from
//! inside, which can be ∞. `cdf` is 0 below and 1 above the support. `log_prob` and `cdf` of NaN are NaN, and `icdf` is
//! NaN outside of [0, 1]. If a sample would round to a bound at which the density is not finite, it is replaced by the
//! nearest number inside the support.
//!
//! Gradients at a probability of 0 or 1 are the limits from inside. A class or an outcome that x does not contain adds
//! nothing, even if its probability is 0. Entropies and divergences have an infinite derivative with respect to a
//! probability of 0.
//!
//! | module | contents |
//! | --- | --- |
//! | `constraint` | [`Constraint`]: ranges of parameters, supports |
//! | `distribution` | the trait [`Distribution`] |
//! | `parameters` | conversion and checks of parameters; macros that define families |
//! | `noise` | base random numbers of samples |
//! | `gamma_quantile` | quantiles of the gamma distribution, with their derivatives |
//! | `support` | bounds of supports: values outside, clamped samples |
//! | `stirling` | remainders of Stirling's formula, without cancellation |
//! | `success_probability` | the probability of success of one trial |
//! | `normal` | [`Normal`], [`LogNormal`], [`HalfNormal`] |
//! | `location_scale` | [`Laplace`], [`Logistic`], [`Gumbel`], [`Cauchy`], [`HalfCauchy`] |
//! | `exponential` | [`Exponential`], [`Weibull`], [`Pareto`] |
//! | `interval` | [`Uniform`], [`Kumaraswamy`] |
//! | `gamma` | [`Gamma`], [`Chi2`], [`StudentT`] |
//! | `beta` | [`Beta`], [`Dirichlet`] |
//! | `fisher_snedecor` | [`FisherSnedecor`] |
//! | `von_mises` | [`VonMises`] |
//! | `multivariate_normal` | [`MultivariateNormal`] |
//! | `bernoulli` | [`Bernoulli`], [`ContinuousBernoulli`] |
//! | `count` | [`Binomial`], [`Geometric`], [`NegativeBinomial`], [`Poisson`] |
//! | `categorical` | [`Categorical`], [`OneHotCategorical`], [`Multinomial`] |
//! | `relaxed` | [`RelaxedBernoulli`], [`RelaxedOneHotCategorical`] |
//! | `composed` | [`Independent`], [`MixtureSameFamily`], [`TransformedDistribution`] |
//! | `transform` | the trait [`Transform`] and its functions |
//! | `kl` | [`kl_divergence`]: the Kullback-Leibler divergence of two distributions |
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]

mod bernoulli;
mod beta;
mod categorical;
mod composed;
mod constraint;
mod count;
mod distribution;
mod exponential;
mod fisher_snedecor;
mod gamma;
mod gamma_quantile;
mod interval;
mod kl;
mod location_scale;
mod multivariate_normal;
mod noise;
mod normal;
mod parameters;
mod relaxed;
mod stirling;
mod success_probability;
mod support;
mod transform;
mod von_mises;

pub use bernoulli::{Bernoulli, ContinuousBernoulli};
pub use beta::{Beta, Dirichlet};
pub use categorical::{Categorical, Multinomial, OneHotCategorical};
pub use composed::{Independent, MixtureSameFamily, TransformedDistribution};
pub use constraint::Constraint;
pub use count::{Binomial, Geometric, NegativeBinomial, Poisson};
pub use distribution::Distribution;
pub use exponential::{Exponential, Pareto, Weibull};
pub use fisher_snedecor::FisherSnedecor;
pub use gamma::{Chi2, Gamma, StudentT};
pub use interval::{Kumaraswamy, Uniform};
pub use kl::{KlDivergence, kl_divergence};
pub use location_scale::{Cauchy, Gumbel, HalfCauchy, Laplace, Logistic};
pub use multivariate_normal::MultivariateNormal;
pub use normal::{HalfNormal, LogNormal, Normal};
pub use relaxed::{RelaxedBernoulli, RelaxedOneHotCategorical};
pub use transform::{
    AffineTransform, ComposeTransform, ExpTransform, PowerTransform, SigmoidTransform, SoftplusTransform,
    TanhTransform, Transform,
};
pub use von_mises::VonMises;
