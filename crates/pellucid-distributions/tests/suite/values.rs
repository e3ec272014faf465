//! Comparison with PyTorch and SciPy. `fixtures/distributions.py` writes the fixture.

use crate::families::{distribution, divergence_of_pair};
use pellucid::distributions::*;
use pellucid::{Result, Shape, Tensor};
use std::collections::BTreeMap;

/// A case of the fixture: its first line and its named tensors.
struct Case {
    head: String,
    tensors: BTreeMap<String, Tensor>,
}

fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for line in include_str!("fixtures/values.txt").lines() {
        let Some((name, values)) = line.split_once(" : ") else {
            cases.push(Case { head: line.to_string(), tensors: BTreeMap::new() });
            continue;
        };
        let (name, shape) = name.rsplit_once(' ').expect("a line has a name and a shape");
        let shape: Shape = shape.split('x').filter_map(|len| len.parse::<usize>().ok()).collect();
        let parse = |text: &str| text.parse::<f64>().expect("a value must be a number");
        let values: Vec<f64> = values.split(' ').map(parse).collect();
        let case = cases.last_mut().expect("a case begins with its name");
        case.tensors.insert(name.to_string(), Tensor::new(values, shape));
    }
    cases
}

/// Compares values with a relative tolerance and an absolute tolerance of 1e-14.
fn assert_equal(label: &str, actual: Result<Tensor>, expected: &Tensor, tolerance: f64) {
    let actual = actual.unwrap_or_else(|error| panic!("{label}: {error}"));
    assert_eq!(actual.shape(), expected.shape(), "{label}");
    for (a, b) in actual.to_vec::<f64>().into_iter().zip(expected.to_vec::<f64>()) {
        let close = (a - b).abs() <= tolerance * b.abs() + 1e-14;
        assert!(close || a == b || a.is_nan() && b.is_nan(), "{label}: {a} instead of {b}\n{actual}\n{expected}");
    }
}

#[test]
fn values_match_pytorch_and_scipy() {
    let mut count = 0;
    for case in cases() {
        let Some(family) = case.head.strip_prefix("case ") else { continue };
        let parameter = |name: &str| {
            let tensor = case.tensors.get(&format!("parameter {name}"));
            tensor.unwrap_or_else(|| panic!("{family} has no {name}")).clone()
        };
        let d = distribution(family, &parameter);
        let x = &case.tensors["x"];
        for (property, expected) in &case.tensors {
            let actual = match property.as_str() {
                "log_prob" => d.try_log_prob(x),
                "cdf" => d.try_cdf(x),
                "icdf" => d.try_icdf(&case.tensors["p"]),
                "entropy" => d.try_entropy(),
                "mean" => d.try_mean(),
                "variance" => d.try_variance(),
                _ => continue,
            };
            count += 1;
            assert_equal(&format!("{family} {property}"), actual, expected, 1e-10);
        }
        if case.tensors.contains_key("variance") {
            let std = case.tensors["variance"].sqrt();
            assert_equal(&format!("{family} std"), d.try_std(), &std, 1e-10);
        }
    }
    assert!(count > 120, "the fixture has {count} values");
}

#[test]
fn divergences_match_pytorch() {
    for case in cases() {
        let Some((p, q)) = case.head.strip_prefix("kl ").and_then(|pair| pair.split_once(' ')) else { continue };
        let side = |side: &'static str| {
            let tensors = &case.tensors;
            move |name: &str| tensors[&format!("{side} {name}")].clone()
        };
        let (p_parameters, q_parameters) = (side("p"), side("q"));
        let actual = divergence(p, q, &p_parameters, &q_parameters);
        assert_equal(&case.head, actual, &case.tensors["kl"], 1e-10);
    }
}

/// Creates a family of a pair from named parameters.
trait Named {
    fn named(parameter: &dyn Fn(&str) -> Tensor) -> Self;
}

macro_rules! named {
    ($($family:ident($($name:literal),+);)*) => {$(
        impl Named for $family {
            fn named(parameter: &dyn Fn(&str) -> Tensor) -> Self {
                $family::new($(&parameter($name)),+)
            }
        }
    )*};
}

named! {
    Normal("loc", "scale");
    LogNormal("loc", "scale");
    HalfNormal("scale");
    Laplace("loc", "scale");
    Gumbel("loc", "scale");
    Cauchy("loc", "scale");
    Exponential("rate");
    Pareto("scale", "alpha");
    Uniform("low", "high");
    Gamma("concentration", "rate");
    Beta("concentration1", "concentration0");
    Dirichlet("concentration");
    Bernoulli("probs");
    ContinuousBernoulli("probs");
    Geometric("probs");
    Poisson("rate");
    Categorical("probs");
    MultivariateNormal("loc", "covariance_matrix");
}

impl Named for Binomial {
    fn named(parameter: &dyn Fn(&str) -> Tensor) -> Self {
        Binomial::new(parameter("total_count").item::<usize>(), parameter("probs"))
    }
}

fn divergence(
    p: &str,
    q: &str,
    p_parameters: &dyn Fn(&str) -> Tensor,
    q_parameters: &dyn Fn(&str) -> Tensor,
) -> Result<Tensor> {
    macro_rules! divergence_of {
        ($p:ident, $q:ident) => {
            kl_divergence(&$p::named(p_parameters), &$q::named(q_parameters))
        };
    }
    divergence_of_pair! {
        p, q;
        "normal" Normal => "normal" Normal, "gumbel" Gumbel, "laplace" Laplace;
        "log_normal" LogNormal => "log_normal" LogNormal;
        "half_normal" HalfNormal => "half_normal" HalfNormal;
        "cauchy" Cauchy => "cauchy" Cauchy;
        "laplace" Laplace => "laplace" Laplace, "normal" Normal;
        "gumbel" Gumbel => "gumbel" Gumbel, "normal" Normal;
        "uniform" Uniform => "uniform" Uniform, "normal" Normal, "exponential" Exponential, "gumbel" Gumbel;
        "exponential" Exponential => "exponential" Exponential, "gamma" Gamma, "gumbel" Gumbel, "normal" Normal;
        "gamma" Gamma => "gamma" Gamma, "exponential" Exponential, "gumbel" Gumbel, "normal" Normal;
        "pareto" Pareto => "pareto" Pareto, "exponential" Exponential, "normal" Normal;
        "beta" Beta => "beta" Beta, "normal" Normal, "exponential" Exponential, "gamma" Gamma, "uniform" Uniform;
        "poisson" Poisson => "poisson" Poisson;
        "bernoulli" Bernoulli => "bernoulli" Bernoulli, "poisson" Poisson;
        "binomial" Binomial => "binomial" Binomial;
        "geometric" Geometric => "geometric" Geometric;
        "continuous_bernoulli" ContinuousBernoulli => "continuous_bernoulli" ContinuousBernoulli, "normal" Normal,
            "exponential" Exponential, "uniform" Uniform;
        "categorical" Categorical => "categorical" Categorical;
        "dirichlet" Dirichlet => "dirichlet" Dirichlet;
        "multivariate_normal" MultivariateNormal => "multivariate_normal" MultivariateNormal;
        ; divergence_of
    }
}

#[test]
fn densities_are_minus_infinity_outside_of_the_support() {
    let one = || Tensor::from(1.0);
    let outside = |d: &dyn Distribution, x: f64| {
        assert_eq!(d.log_prob(&Tensor::from(x)).item::<f64>(), f64::NEG_INFINITY, "{} at {x}", d.name());
    };
    for x in [-1.0, f64::NEG_INFINITY] {
        outside(&HalfNormal::new(one()), x);
        outside(&LogNormal::new(one(), 1.0), x);
        outside(&Exponential::new(one()), x);
        outside(&Weibull::new(one(), 1.0), x);
        outside(&Pareto::new(one(), 1.0), x);
        outside(&Gamma::new(one(), 1.0), x);
        outside(&Beta::new(one(), 1.0), x);
        outside(&FisherSnedecor::new(one(), 1.0), x);
        outside(&Kumaraswamy::new(one(), 1.0), x);
        outside(&Uniform::new(Tensor::from(0.0), 1.0), x);
        outside(&Poisson::new(one()), x);
        outside(&Categorical::new(Tensor::from([0.5, 0.5])), x);
    }
    outside(&Bernoulli::new(Tensor::from(0.5)), 0.3);
    outside(&Binomial::new(3, Tensor::from(0.5)), 4.0);
    outside(&Categorical::new(Tensor::from([0.5, 0.5])), 2.0);
}

#[test]
fn tails_in_single_precision_are_finite() {
    let x = Tensor::from([1e20f32, -1e20]);
    let log_prob = Cauchy::new(0.0, 1.0).log_prob(&x).to_vec::<f32>();
    assert!(log_prob.iter().all(|&l| (l + 93.25).abs() < 0.01), "{log_prob:?}");
    assert_eq!(Logistic::new(0.0, 1.0).log_prob(&Tensor::from(-500f32)).item::<f32>(), -500.0);
    assert!(VonMises::new(0.0, 1e4).log_prob(&Tensor::from(0.01f32)).item::<f32>().is_finite());
    assert_eq!(Bernoulli::from_logits(-200.0).log_prob(&Tensor::from(1f32)).item::<f32>(), -200.0);
}
