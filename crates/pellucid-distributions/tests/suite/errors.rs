//! Rejected parameters and undefined properties.

use pellucid::distributions::*;
use pellucid::{DType, Error, Tensor};

fn text<T: std::fmt::Debug>(result: pellucid::Result<T>) -> String {
    result.expect_err("the call must be rejected").to_string()
}

#[test]
fn parameters_outside_of_their_range_are_named() {
    let one = || Tensor::from([1.0, -1.0]);
    let texts = [
        text(Normal::try_new(0.0, one())),
        text(Normal::try_new(Tensor::from(f64::NAN), 1.0)),
        text(Gamma::try_new(0.0, 1.0)),
        text(Bernoulli::try_new(1.5)),
        text(Geometric::try_new(0.0)),
        text(NegativeBinomial::try_new(1.0, 1.0)),
        text(Uniform::try_new(1.0, 1.0)),
        text(Dirichlet::try_new(one())),
        text(Categorical::try_new(one())),
        text(Categorical::try_new(Tensor::from([0.0, 0.0]))),
        text(Categorical::try_from_logits(Tensor::from([0.0, f64::INFINITY]))),
        text(MultivariateNormal::try_from_scale_tril(one(), Tensor::from([[1.0, 2.0], [0.0, 1.0]]))),
        text(RelaxedBernoulli::try_new(0.0, 0.5)),
        text(MultivariateNormal::try_new(one(), Tensor::from([[2.0, 1.0], [0.5, 2.0]]))),
        text(Normal::try_new(Tensor::from([1, 2]), 1.0)),
        text(Normal::try_new(1.0, Tensor::from([1, 2]))),
    ];
    let expected = [
        "normal: `scale` must be finite and above 0, got -1.0",
        "normal: `loc` must be finite, got NaN",
        "gamma: `concentration` must be finite and above 0, got 0.0",
        "bernoulli: `probs` must be in [0, 1], got 1.5",
        "geometric: `probs` must be in (0, 1], got 0.0",
        "negative_binomial: `probs` must be in [0, 1), got 1.0",
        "uniform: `low` must be below `high`, got 1.0 and 1.0",
        "dirichlet: `concentration` must be finite and above 0, got -1.0",
        "categorical: `probs` must be finite and at least 0, got -1.0",
        "categorical: `probs` must have a positive sum along the last axis",
        "categorical: `logits` must be finite, got inf",
        "multivariate_normal: `scale_tril` must be lower triangular with a positive diagonal",
        "relaxed_bernoulli: `temperature` must be finite and above 0, got 0.0",
        "multivariate_normal: `covariance_matrix` must be symmetric",
    ];
    for (text, expected) in texts.iter().zip(expected) {
        assert!(text.starts_with(expected), "{text}");
    }
    assert!(texts[14].contains("`loc` must have a float dtype"), "{}", texts[14]);
    assert!(texts[15].contains("`scale` must have a float dtype"), "{}", texts[15]);
}

/// A class with logit −∞ is masked: values and gradients equal the results without the class.
#[test]
fn classes_can_be_masked() {
    let free = Tensor::from([0.5, -1.0, 2.0]).requires_grad_(true);
    let masked = Tensor::from([0.5, -1.0, f64::NEG_INFINITY, 2.0]).requires_grad_(true);
    let at = |logits: &Tensor, class: i64| {
        let policy = Categorical::from_logits(logits);
        let old = Categorical::from_logits(logits.detach() * 0.5);
        let regular = kl_divergence(&policy, &old).unwrap() - policy.entropy() * 0.5;
        let loss = policy.log_prob(&Tensor::from(class)) + regular;
        loss.backward();
        let close = |x: f64| (x * 1e12).round() / 1e12;
        (close(loss.item()), logits.grad().unwrap().to_vec::<f64>().into_iter().map(close).collect::<Vec<f64>>())
    };
    let ((loss, expected), (with_mask, mut gradient)) = (at(&free, 2), at(&masked, 3));
    assert_eq!((gradient.remove(2), with_mask), (0.0, loss));
    assert_eq!(gradient, expected);
    let samples = Categorical::from_logits(&masked).sample([200]).to_vec::<i64>();
    assert!(!samples.contains(&2));
    let all = Tensor::from([f64::NEG_INFINITY; 2]);
    assert!(text(Categorical::try_from_logits(&all)).contains("must be finite, got -inf"));
}

#[test]
fn shapes_that_do_not_fit_are_rejected() {
    let (a, b) = (Tensor::zeros([2], DType::F64), Tensor::ones([3], DType::F64));
    assert!(matches!(Normal::try_new(&a, &b), Err(Error::ShapeMismatch { op: "normal", .. })));
    assert!(matches!(Dirichlet::try_new(1.0), Err(Error::ShapeMismatch { .. })));
    assert!(matches!(Categorical::try_new(1.0), Err(Error::ShapeMismatch { .. })));
    assert!(matches!(
        MultivariateNormal::try_from_scale_tril(&a, Tensor::eye(3, DType::F64)),
        Err(Error::ShapeMismatch { .. })
    ));
    assert!(matches!(Independent::try_new(Normal::new(&a, 1.0), 2), Err(Error::InvalidArgument { .. })));
    let normal = Normal::new(&a, 1.0);
    assert!(matches!(normal.try_log_prob(&b), Err(Error::ShapeMismatch { .. })));
    let mixture = MixtureSameFamily::try_new(Categorical::new(&b), normal);
    assert!(matches!(mixture, Err(Error::ShapeMismatch { .. })));
}

#[test]
fn undefined_properties_are_errors() {
    let poisson = Poisson::new(2.0);
    assert!(matches!(poisson.try_rsample(()), Err(Error::NoGradient { op: "poisson" })));
    assert!(text(poisson.try_entropy()).starts_with("poisson: entropy is not defined"));
    assert!(text(Dirichlet::new(Tensor::from([1.0, 1.0])).try_cdf(&Tensor::from(1.0))).contains("cdf is not defined"));
    assert!(!poisson.sample([3]).requires_grad());
}

#[test]
fn constraints_contain_their_values() {
    let contains = |constraint: &Constraint, x: Tensor| constraint.contains(&x).to_vec::<bool>();
    assert_eq!(contains(&Constraint::Simplex, Tensor::from([[0.5, 0.5], [0.5, 0.6]])), [true, false]);
    assert_eq!(contains(&Constraint::OneHot, Tensor::from([[0.0, 1.0], [1.0, 1.0]])), [true, false]);
    assert_eq!(contains(&Constraint::NonNegativeInteger, Tensor::from([0.0, 0.5, -1.0])), [true, false, false]);
    let between = Constraint::Interval(Tensor::from(0.0), Tensor::from(2.0));
    assert_eq!(contains(&between, Tensor::from([0.0, 2.5, f64::NAN])), [true, false, false]);
    assert_eq!(Constraint::Positive.to_string(), "finite and above 0");
}
