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
        "fisher_snedecor" => create!(FisherSnedecor("df1", "df2")),
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

/// A family and its parameters.
pub(crate) type NamedParameters = (&'static str, &'static [(&'static str, &'static [f64])]);

/// Every family with valid parameters.
pub(crate) const FAMILIES: &[NamedParameters] = &[
    ("normal", &[("loc", &[0.5]), ("scale", &[2.0])]),
    ("log_normal", &[("loc", &[0.5]), ("scale", &[2.0])]),
    ("half_normal", &[("scale", &[2.0])]),
    ("laplace", &[("loc", &[0.5]), ("scale", &[2.0])]),
    ("logistic", &[("loc", &[0.5]), ("scale", &[2.0])]),
    ("gumbel", &[("loc", &[0.5]), ("scale", &[2.0])]),
    ("cauchy", &[("loc", &[0.5]), ("scale", &[2.0])]),
    ("half_cauchy", &[("scale", &[2.0])]),
    ("exponential", &[("rate", &[2.0])]),
    ("weibull", &[("scale", &[2.0]), ("concentration", &[1.5])]),
    ("pareto", &[("scale", &[2.0]), ("alpha", &[9.0])]),
    ("uniform", &[("low", &[-2.0]), ("high", &[9.0])]),
    ("kumaraswamy", &[("concentration1", &[0.6]), ("concentration0", &[1.5])]),
    ("gamma", &[("concentration", &[0.5]), ("rate", &[2.0])]),
    ("gamma", &[("concentration", &[50.0]), ("rate", &[2.0])]),
    ("chi2", &[("df", &[3.0])]),
    ("student_t", &[("df", &[3.0]), ("loc", &[0.5]), ("scale", &[2.0])]),
    ("beta", &[("concentration1", &[0.6]), ("concentration0", &[1.5])]),
    ("beta", &[("concentration1", &[60.0]), ("concentration0", &[15.0])]),
    ("fisher_snedecor", &[("df1", &[3.0]), ("df2", &[9.0])]),
    ("fisher_snedecor", &[("df1", &[60.0]), ("df2", &[45.0])]),
    ("dirichlet", &[("concentration", &[0.5, 2.0])]),
    ("von_mises", &[("loc", &[0.5]), ("concentration", &[2.0])]),
    ("bernoulli", &[("probs", &[0.2])]),
    ("continuous_bernoulli", &[("probs", &[0.2])]),
    ("binomial", &[("total_count", &[7.0]), ("probs", &[0.2])]),
    ("geometric", &[("probs", &[0.2])]),
    ("negative_binomial", &[("total_count", &[2.5]), ("probs", &[0.6])]),
    ("poisson", &[("rate", &[3.0])]),
    ("categorical", &[("probs", &[0.2, 0.8])]),
    ("one_hot_categorical", &[("probs", &[0.2, 0.8])]),
    ("multinomial", &[("total_count", &[7.0]), ("probs", &[0.2, 0.8])]),
    ("relaxed_bernoulli", &[("temperature", &[0.5]), ("probs", &[0.2])]),
];

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
