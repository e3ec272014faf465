//! The families by name, created from named parameters.

use pellucid::Tensor;
use pellucid::distributions::*;

/// Creates a distribution of a family with these parameters.
pub(crate) fn distribution(family: &str, parameter: &dyn Fn(&str) -> Tensor) -> Box<dyn Distribution> {
    macro_rules! create {
        ($family:ident($($name:literal),+)) => { Box::new($family::new($(&parameter($name)),+)) };
    }
    let total_count = || parameter("total_count").item::<usize>();
    match family {
        "normal" => create!(Normal("loc", "scale")),
        "log_normal" => create!(LogNormal("loc", "scale")),
        "half_normal" => create!(HalfNormal("scale")),
        "laplace" => create!(Laplace("loc", "scale")),
        "logistic" => create!(Logistic("loc", "scale")),
        "gumbel" => create!(Gumbel("loc", "scale")),
        "cauchy" => create!(Cauchy("loc", "scale")),
        "half_cauchy" => create!(HalfCauchy("scale")),
        "exponential" => create!(Exponential("rate")),
        "weibull" => create!(Weibull("scale", "concentration")),
        "pareto" => create!(Pareto("scale", "alpha")),
        "uniform" => create!(Uniform("low", "high")),
        "kumaraswamy" => create!(Kumaraswamy("concentration1", "concentration0")),
        "gamma" => create!(Gamma("concentration", "rate")),
        "chi2" => create!(Chi2("df")),
        "student_t" => create!(StudentT("df", "loc", "scale")),
        "beta" => create!(Beta("concentration1", "concentration0")),
        "dirichlet" => create!(Dirichlet("concentration")),
        "von_mises" => create!(VonMises("loc", "concentration")),
        "bernoulli" => create!(Bernoulli("probs")),
        "continuous_bernoulli" => create!(ContinuousBernoulli("probs")),
        "binomial" => Box::new(Binomial::new(total_count(), parameter("probs"))),
        "geometric" => create!(Geometric("probs")),
        "negative_binomial" => create!(NegativeBinomial("total_count", "probs")),
        "poisson" => create!(Poisson("rate")),
        "categorical" => create!(Categorical("probs")),
        "one_hot_categorical" => create!(OneHotCategorical("probs")),
        "multinomial" => Box::new(Multinomial::new(total_count(), parameter("probs"))),
        "relaxed_bernoulli" => create!(RelaxedBernoulli("temperature", "probs")),
        "relaxed_one_hot_categorical" => create!(RelaxedOneHotCategorical("temperature", "probs")),
        "multivariate_normal" => create!(MultivariateNormal("loc", "covariance_matrix")),
        _ => panic!("the table of families has no {family}"),
    }
}

/// Runs `$then` with the type of each pair of families that has a divergence in the fixture.
macro_rules! divergence_of_pair {
    ($p:expr, $q:expr; $($name:literal $family:ident => $($other_name:literal $other:ident),+;)*; $then:ident) => {
        match ($p, $q) {
            $($(($name, $other_name) => $then!($family, $other),)+)*
            (p, q) => panic!("the table of divergences has no ({p}, {q})"),
        }
    };
}
pub(crate) use divergence_of_pair;
