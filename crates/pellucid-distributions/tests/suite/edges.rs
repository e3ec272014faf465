//! Bounds of supports and parameters: values and gradients at probabilities of 0 and 1, at the bounds of intervals,
//! outside the support, and at NaN.

use crate::families::{FAMILIES, distribution};
use pellucid::distributions::*;
use pellucid::{DType, Generator, GradOptions, Result, Tensor, grad_one, ops};

const INF: f64 = f64::INFINITY;

/// Returns the values of a function and the gradient of their sum.
fn with_gradient(at: &[f64], f: impl Fn(&Tensor) -> Tensor) -> (Vec<f64>, Vec<f64>) {
    let leaf = Tensor::from(at.to_vec()).requires_grad_(true);
    let y = f(&leaf);
    y.sum(..).backward();
    (y.to_vec::<f64>(), leaf.grad().unwrap().to_vec::<f64>())
}

fn assert_close(label: &str, actual: &[f64], expected: &[f64]) {
    assert_eq!(actual.len(), expected.len(), "{label}: {actual:?}");
    for (a, b) in actual.iter().zip(expected) {
        let close = a == b || (a - b).abs() <= 1e-12 * (1.0 + b.abs()) || a.is_nan() && b.is_nan();
        assert!(close, "{label}: {actual:?} instead of {expected:?}");
    }
}

/// Compares the values of a function and the gradient of their sum.
fn assert_gradient(label: &str, at: &[f64], f: impl Fn(&Tensor) -> Tensor, values: &[f64], gradient: &[f64]) {
    let (y, g) = with_gradient(at, f);
    assert_close(label, &y, values);
    assert_close(&format!("the gradient of {label}"), &g, gradient);
}

/// Returns the first and second derivatives of the sum of a function of independent elements. The first is recorded.
fn two_derivatives(at: &[f64], f: impl Fn(&Tensor) -> Tensor) -> (Vec<f64>, Vec<f64>) {
    let leaf = Tensor::from(at.to_vec()).requires_grad_(true);
    let options = GradOptions { create_graph: true, ..Default::default() };
    let slope = grad_one(&f(&leaf).sum(..), &leaf, options).unwrap();
    slope.sum(..).backward();
    (slope.to_vec::<f64>(), leaf.grad().unwrap().to_vec::<f64>())
}

fn x(values: &[f64]) -> Tensor {
    Tensor::from(values.to_vec())
}

#[test]
fn trials_have_gradients_at_probabilities_of_0_and_1() {
    let sure = [0.0, 1.0];
    assert_gradient("bernoulli", &sure, |p| Bernoulli::new(p).log_prob(&x(&sure)), &[0.0, 0.0], &[-1.0, 1.0]);
    assert_gradient("bernoulli entropy", &sure, |p| Bernoulli::new(p).entropy(), &[0.0, 0.0], &[INF, -INF]);
    assert_gradient("binomial", &sure, |p| Binomial::new(4, p).log_prob(&x(&[0.0, 4.0])), &[0.0, 0.0], &[-4.0, 4.0]);
    assert_gradient("binomial entropy", &sure, |p| Binomial::new(4, p).entropy(), &[0.0, 0.0], &[INF, -INF]);
    assert_gradient("geometric", &[1.0], |p| Geometric::new(p).log_prob(&x(&[0.0])), &[0.0], &[1.0]);
    assert_gradient("geometric entropy", &[1.0], |p| Geometric::new(p).entropy(), &[0.0], &[-INF]);
    assert_gradient(
        "negative binomial",
        &[0.0],
        |p| NegativeBinomial::new(3.0, p).log_prob(&x(&[0.0])),
        &[0.0],
        &[-3.0],
    );
    assert_gradient("poisson", &[0.0], |r| Poisson::new(r).log_prob(&x(&[0.0])), &[0.0], &[-1.0]);
    // Outcomes of probability 0.
    assert_gradient(
        "bernoulli, other",
        &sure,
        |p| Bernoulli::new(p).log_prob(&x(&[1.0, 0.0])),
        &[-INF, -INF],
        &[INF, -INF],
    );
    assert_gradient("poisson, other", &[0.0], |r| Poisson::new(r).log_prob(&x(&[2.0])), &[-INF], &[INF]);
    // Second derivatives of ln(1 − p) and ln p.
    type Density = fn(&Tensor) -> Tensor;
    let rows: [(Density, f64); 3] = [
        (|p| Bernoulli::new(p).log_prob(&x(&[0.0, 1.0])), 1.0),
        (|p| Binomial::new(4, p).log_prob(&x(&[0.0, 4.0])), 4.0),
        (|p| Categorical::new(ops::stack(&[p, &(1.0 - p)], -1).unwrap()).log_prob(&Tensor::from([1i64, 0])), 1.0),
    ];
    for (density, n) in rows {
        let (slope, curvature) = two_derivatives(&sure, density);
        assert_close("the first derivative", &slope, &[-n, n]);
        assert_close("the second derivative", &curvature, &[-n, -n]);
    }
    assert_close("poisson", &two_derivatives(&[0.0], |r| Poisson::new(r).log_prob(&x(&[0.0]))).0, &[-1.0]);
    assert_close("entropy", &two_derivatives(&sure, |p| Bernoulli::new(p).entropy()).0, &[INF, -INF]);
    assert_close("entropy of n trials", &two_derivatives(&sure, |p| Binomial::new(4, p).entropy()).0, &[INF, -INF]);
}

#[test]
fn divergences_of_trials_have_gradients_at_0_and_1() {
    let kl = |p: &Tensor, q: &Tensor| kl_divergence(&Bernoulli::new(p), &Bernoulli::new(q)).unwrap();
    let (sure, half) = ([0.0, 1.0], x(&[0.5, 0.5]));
    let ln2 = 2f64.ln();
    assert_gradient("p of bernoulli", &sure, |p| kl(p, &half), &[ln2, ln2], &[-INF, INF]);
    assert_gradient("q of bernoulli", &[0.5, 0.5], |q| kl(&x(&sure), q), &[ln2, ln2], &[2.0, -2.0]);
    assert_gradient("q equal to p", &sure, |q| kl(&x(&sure), q), &[0.0, 0.0], &[1.0, -1.0]);
    assert_gradient("p equal to q", &sure, |p| kl(p, &x(&sure)), &[0.0, 0.0], &[0.0, 0.0]);
    assert_gradient("q without an outcome", &sure, |q| kl(&half, q), &[INF, INF], &[-INF, INF]);
    let logits = |p: &Tensor| kl_divergence(&Bernoulli::new(p), &Bernoulli::from_logits(x(&[0.0, 0.0]))).unwrap();
    assert_gradient("q from logits", &sure, logits, &[ln2, ln2], &[-INF, INF]);
    let binomial = |q: &Tensor| kl_divergence(&Binomial::new(3, x(&sure)), &Binomial::new(3, q)).unwrap();
    assert_gradient("binomial", &[0.5, 0.5], binomial, &[3.0 * ln2, 3.0 * ln2], &[6.0, -6.0]);
    let poisson = |a: &Tensor, b: &Tensor| kl_divergence(&Poisson::new(a), &Poisson::new(b)).unwrap();
    assert_gradient(
        "p of poisson",
        &[0.0, 0.0, 1.0],
        |a| poisson(a, &x(&[2.0, 0.0, 1.0])),
        &[2.0, 0.0, 0.0],
        &[-INF, 0.0, 0.0],
    );
    assert_gradient("q of poisson", &[2.0, 0.0], |b| poisson(&x(&[0.0, 0.0]), b), &[2.0, 0.0], &[1.0, 1.0]);
    let mixed = |p: &Tensor| kl_divergence(&Bernoulli::new(p), &Poisson::new(1.0)).unwrap();
    assert_gradient("bernoulli and poisson", &[0.0], mixed, &[1.0], &[-INF]);
}

#[test]
fn classes_of_probability_0_keep_the_gradients_of_the_others() {
    let (weights, h, ln2) = ([0.5, 0.0, 0.5], 0.5f64.ln(), 2f64.ln());
    let class = |w: &Tensor| Categorical::new(w).log_prob(&Tensor::from(0i64));
    assert_gradient("categorical", &weights, class, &[h], &[1.0, -1.0, -1.0]);
    let one_hot = |w: &Tensor| OneHotCategorical::new(w).log_prob(&x(&[1.0, 0.0, 0.0]));
    assert_gradient("one-hot", &weights, one_hot, &[h], &[1.0, -1.0, -1.0]);
    let counts = |w: &Tensor| Multinomial::new(3, w).log_prob(&x(&[1.0, 0.0, 2.0]));
    assert_gradient("multinomial", &weights, counts, &[3.0 * h + 3f64.ln()], &[-1.0, -3.0, 1.0]);
    assert_gradient("entropy", &weights, |w| Categorical::new(w).entropy(), &[ln2], &[0.0, INF, 0.0]);
    let entropy = |w: &Tensor| Multinomial::new(2, w).entropy();
    let (value, gradient) = with_gradient(&weights, entropy);
    assert_close("the entropy of multinomial", &value, &[1.5 * ln2]);
    assert!(gradient[0].is_finite() && gradient[1] == INF && gradient[2].is_finite(), "{gradient:?}");
    let kl = |p: &Tensor, q: &Tensor| kl_divergence(&Categorical::new(p), &Categorical::new(q)).unwrap();
    let (p, q) = (x(&weights), x(&[0.25, 0.25, 0.5]));
    let value = 0.5 * ln2;
    assert_gradient("p of kl", &weights, |p| kl(p, &q), &[value], &[value, -INF, -value]);
    assert_gradient("q of kl", &[0.25, 0.25, 0.5], |q| kl(&p, q), &[value], &[-1.0, 1.0, 0.0]);
    assert_gradient("both of kl", &weights, |p| kl(p, &x(&weights)), &[0.0], &[0.0, 0.0, 0.0]);
    assert_gradient("q equal to p", &weights, |q| kl(&p, q), &[0.0], &[0.0, 1.0, 0.0]);
    let logits = |p: &Tensor| kl_divergence(&Categorical::new(p), &Categorical::from_logits(x(&[0.0; 3]))).unwrap();
    assert_gradient("q from logits", &weights, logits, &[1.5f64.ln()], &[0.0, -INF, 0.0]);
    // In a batch, the row without a class of probability 0 is unchanged.
    let rows = Tensor::from([[0.5, 0.0, 0.5], [0.25, 0.25, 0.5]]).requires_grad_(true);
    Categorical::new(&rows).log_prob(&Tensor::from(0i64)).sum(..).backward();
    assert_close("rows", &rows.grad().unwrap().to_vec::<f64>(), &[1.0, -1.0, -1.0, 3.0, -1.0, -1.0]);
    let mixture = |w: &Tensor| {
        MixtureSameFamily::new(Categorical::new(w), Normal::new(x(&[0.0, 1.0, 0.0]), 1.0)).log_prob(&Tensor::from(0.0))
    };
    assert!(with_gradient(&weights, mixture).1.iter().all(|g| g.is_finite()));
}

#[test]
fn gradients_by_the_concentration_exist_at_1() {
    assert_gradient(
        "gamma",
        &[1.0],
        |a| Gamma::new(a, 1.0).log_prob(&x(&[2.0])),
        &[-2.0],
        &[2f64.ln() + 0.577_215_664_901_532_9],
    );
    assert_gradient("beta", &[1.0], |a| Beta::new(a, 1.0).log_prob(&x(&[0.5])), &[0.0], &[0.5f64.ln() + 1.0]);
    assert_gradient("weibull", &[1.0], |k| Weibull::new(1.0, k).log_prob(&x(&[2.0])), &[-2.0], &[1.0 - 2f64.ln()]);
    assert_gradient(
        "dirichlet",
        &[1.0, 1.0],
        |a| Dirichlet::new(a).log_prob(&x(&[0.5, 0.5])),
        &[0.0],
        &[1.0 + 0.5f64.ln(); 2],
    );
}

#[test]
fn densities_at_the_ends_of_the_support_are_limits() {
    let three = || x(&[0.5, 1.0, 2.0]);
    let at = |d: &dyn Distribution, x: f64| d.log_prob(&Tensor::from(x)).to_vec::<f64>();
    assert_close("weibull at 0", &at(&Weibull::new(2.0, three()), 0.0), &[INF, -2f64.ln(), -INF]);
    assert_close("weibull at ∞", &at(&Weibull::new(2.0, three()), INF), &[-INF; 3]);
    assert_close("gamma at 0", &at(&Gamma::new(three(), 2.0), 0.0), &[INF, 2f64.ln(), -INF]);
    assert_close("gamma at ∞", &at(&Gamma::new(three(), 2.0), INF), &[-INF; 3]);
    // The density at 0 for m = 2 is 1.
    let ratio = FisherSnedecor::new(three() * 2.0, 3.0);
    assert_close("fisher_snedecor at 0", &at(&ratio, 0.0), &[INF, 0.0, -INF]);
    assert_close("fisher_snedecor at ∞", &at(&ratio, INF), &[-INF; 3]);
    assert_close("fisher_snedecor", &ratio.cdf(&x(&[-1.0, 0.0, INF])).to_vec::<f64>(), &[0.0, 0.0, 1.0]);
    for d in [&Beta::new(three(), 1.0) as &dyn Distribution, &Kumaraswamy::new(three(), 1.0)] {
        assert_close(d.name(), &at(d, 0.0), &[INF, 0.0, -INF]);
        assert_close(d.name(), &at(d, 1.0), &[0.5f64.ln(), 0.0, 2f64.ln()]);
    }
    for d in [&Beta::new(1.0, three()) as &dyn Distribution, &Kumaraswamy::new(1.0, three())] {
        assert_close(d.name(), &at(d, 1.0), &[INF, 0.0, -INF]);
    }
    assert_gradient(
        "kumaraswamy by a",
        &[1.0],
        |a| Kumaraswamy::new(a, 1.0).log_prob(&x(&[0.5])),
        &[0.0],
        &[1.0 + 0.5f64.ln()],
    );
    let gradient = with_gradient(&[2.0], |b| Kumaraswamy::new(1.0, b).log_prob(&x(&[0.0]))).1;
    assert_close("kumaraswamy by b at 0", &gradient, &[0.5]);
    assert_close("gumbel", &at(&Gumbel::new(Tensor::from(1.0), 2.0), -INF), &[-INF]);
    assert_close("log-normal", &at(&LogNormal::new(Tensor::from(1.0), 2.0), INF), &[-INF]);
    assert_close("poisson", &at(&Poisson::new(Tensor::from(1.0)), INF), &[-INF]);
    let shares = Dirichlet::new(x(&[1.0, 1.0, 1.0]));
    let rows = Tensor::from([[0.2, 0.3, 0.5], [0.0, 0.5, 0.5], [0.2, 0.3, 0.6], [-0.2, 0.7, 0.5]]);
    assert_close("dirichlet", &shares.log_prob(&rows).to_vec::<f64>(), &[2f64.ln(), 2f64.ln(), -INF, -INF]);
    let relaxed = RelaxedOneHotCategorical::new(0.5, x(&[0.2, 0.3, 0.5]));
    assert!(relaxed.log_prob(&rows).to_vec::<f64>()[1..].iter().all(|&l| l == -INF));
}

#[test]
fn quantiles_exist_on_the_closed_unit_interval() {
    let one = || Tensor::from(1.0);
    let p = x(&[0.0, 1.0, -0.1, 1.1, f64::NAN]);
    let check = |d: &dyn Distribution, low: f64, high: f64| {
        let expected = [low, high, f64::NAN, f64::NAN, f64::NAN];
        assert_close(d.name(), &d.icdf(&p).to_vec::<f64>(), &expected);
    };
    check(&Normal::new(one(), 1.0), -INF, INF);
    check(&LogNormal::new(one(), 1.0), 0.0, INF);
    check(&HalfNormal::new(one()), 0.0, INF);
    check(&Laplace::new(one(), 1.0), -INF, INF);
    check(&Logistic::new(one(), 1.0), -INF, INF);
    check(&Gumbel::new(one(), 1.0), -INF, INF);
    check(&Cauchy::new(one(), 1.0), -INF, INF);
    check(&HalfCauchy::new(one()), 0.0, INF);
    check(&Exponential::new(one()), 0.0, INF);
    check(&Weibull::new(one(), 2.0), 0.0, INF);
    check(&Pareto::new(one(), 2.0), 1.0, INF);
    check(&Uniform::new(one(), 2.0), 1.0, 2.0);
    check(&Kumaraswamy::new(one(), 2.0), 0.0, 1.0);
    check(&Gamma::new(one(), 2.0), 0.0, INF);
    check(&Chi2::new(one()), 0.0, INF);
    check(&ContinuousBernoulli::new(Tensor::from(0.3)), 0.0, 1.0);
    check(&RelaxedBernoulli::new(one(), 0.3), 0.0, 1.0);
    let relaxed = RelaxedBernoulli::new(Tensor::from(0.5), 0.3);
    assert_close("cdf of icdf", &relaxed.cdf(&relaxed.icdf(&x(&[0.1, 0.5, 0.99]))).to_vec::<f64>(), &[0.1, 0.5, 0.99]);
    assert_close("cdf", &relaxed.cdf(&x(&[-1.0, 0.0, 1.0, 2.0])).to_vec::<f64>(), &[0.0, 0.0, 1.0, 1.0]);
    assert_close("probs", &relaxed.probs().to_vec::<f64>(), &[0.3]);
    let relaxed = RelaxedOneHotCategorical::new(0.5, x(&[0.25, 0.75]));
    assert_close("logits", &relaxed.logits().exp().to_vec::<f64>(), &[0.25, 0.75]);
    check(&TransformedDistribution::new(Normal::new(one(), 1.0), ExpTransform), 0.0, INF);
    check(&TransformedDistribution::new(Normal::new(one(), 1.0), AffineTransform::new(one(), -1.0)), -INF, INF);
    let half = [0.25, 0.5, 0.75];
    assert_close("cauchy", &Cauchy::new(0.0, one()).icdf(&x(&half)).to_vec::<f64>(), &[-1.0, 0.0, 1.0]);
    let (_, gradient) = with_gradient(&[1.0], |b| Gamma::new(1.0, b).icdf(&x(&[0.5, 0.0, 1.0])));
    assert!(!gradient[0].is_nan());
}

#[test]
fn quantiles_and_moments_exist_for_extreme_parameters() {
    let single = |values: &[f64]| x(values).to_dtype(DType::F32);
    // At l = ±100, the quantile of the other end is ln(p)/l.
    for dtype in [DType::F32, DType::F64] {
        let d = |logit: f64| ContinuousBernoulli::from_logits(Tensor::from(logit).to_dtype(dtype));
        let at = |logit, p: f64| d(logit).icdf(&Tensor::from(p).to_dtype(dtype)).item::<f64>();
        for (logit, p, expected) in [
            (100.0, 0.0, 0.0),
            (300.0, 0.0, 0.0),
            (100.0, 1.0, 1.0),
            (100.0, 2f64.powi(-25), 1.0 - 25.0 * std::f64::consts::LN_2 / 100.0),
            (-20.0, 1.0, 1.0),
            (-300.0, 1.0, 1.0),
            (-300.0, 0.0, 0.0),
            (-100.0, 1.0 - 2f64.powi(-20), 20.0 * std::f64::consts::LN_2 / 100.0),
        ] {
            let value = at(logit, p);
            assert!((value - expected).abs() < 1e-6, "{dtype}, logit {logit}, p = {p}: {value} instead of {expected}");
        }
        assert!(at(100.0, f64::NAN).is_nan() && at(-100.0, 1.5).is_nan());
        let _seed = Generator::new(3).scope();
        let samples = d(200.0).sample([1000]);
        assert!(samples.gt(0.8).all(..).item::<bool>() && samples.lt(1.0).all(..).item::<bool>());
    }
    let variance = |loc: f64, scale: f64| LogNormal::new(single(&[loc]), single(&[scale])).variance().item::<f64>();
    for (loc, scale) in [(-120.0f64, 10.0f64), (-100.0, 60f64.sqrt()), (0.3, 0.5)] {
        let v = scale * scale;
        let (value, expected) = (variance(loc, scale), (2.0 * loc + 2.0 * v).exp() - (2.0 * loc + v).exp());
        assert!((value / expected - 1.0).abs() < 1e-3, "{value} instead of {expected}");
    }
}

#[test]
fn samples_of_half_precision_have_the_tails_of_f32() {
    let _seed = Generator::new(8).scope();
    let draw = |dtype| Exponential::new(Tensor::ones((), dtype)).sample([20_000]).to_vec::<f64>();
    for dtype in [DType::BF16, DType::F16] {
        let mut x: Vec<f64> = draw(dtype);
        assert!(x.iter().any(|&x| x > 7.0), "{dtype}");
        x.sort_by(f64::total_cmp);
        x.dedup();
        assert!(x.len() > 600, "{dtype}: {} values", x.len());
        assert_eq!(Exponential::new(Tensor::ones((), dtype)).rsample([2]).dtype(), dtype);
    }
    let cauchy = Cauchy::new(Tensor::zeros((), DType::F16), Tensor::full((), 1000.0, DType::F16));
    assert!(cauchy.sample([5000]).isfinite().all(..).item::<bool>());
}

#[test]
fn nan_has_no_density_and_no_probability() {
    for (family, parameters) in FAMILIES {
        let d = distribution(family, &|name| {
            let (_, values) = parameters.iter().find(|(of, _)| *of == name).unwrap();
            x(values)
        });
        let nan = if d.event_shape().rank() == 1 { x(&[f64::NAN, 1.0]) } else { Tensor::from(f64::NAN) };
        assert!(d.log_prob(&nan).to_vec::<f64>().iter().all(|l| l.is_nan()), "log_prob of {family}");
        if let Ok(p) = d.try_cdf(&nan) {
            assert!(p.to_vec::<f64>().iter().all(|p| p.is_nan()), "cdf of {family}");
        }
        // Values far outside the support do not produce NaN in densities or gradients.
        for end in [-INF, INF] {
            let x = if d.event_shape().rank() == 1 { self::x(&[end, 1.0]) } else { Tensor::from(end) };
            assert!(d.log_prob(&x).to_vec::<f64>().iter().all(|&l| l == -INF) || *family == "von_mises", "{family}");
        }
    }
    let relaxed = RelaxedOneHotCategorical::new(0.5, x(&[0.2, 0.8]));
    assert!(relaxed.log_prob(&x(&[f64::NAN, 0.5])).item::<f64>().is_nan());
    for transform in [ComposeTransform::part(ExpTransform), ComposeTransform::part(TanhTransform)] {
        let d = TransformedDistribution::new(Normal::new(Tensor::from(0.0), 1.0), ComposeTransform::new([transform]));
        assert!(d.log_prob(&Tensor::from(f64::NAN)).item::<f64>().is_nan());
        assert!(d.cdf(&Tensor::from(f64::NAN)).item::<f64>().is_nan());
    }
}

#[test]
fn transformed_distributions_end_with_the_transform() -> Result<()> {
    let normal = || Normal::new(Tensor::from(0.0), 1.0);
    let check = |d: &dyn Distribution, at: &[f64], cdf: &[f64]| {
        assert_close("log_prob", &d.log_prob(&x(at)).to_vec::<f64>(), &vec![-INF; at.len()]);
        assert_close("cdf", &d.cdf(&x(at)).to_vec::<f64>(), cdf);
    };
    let unit = [0.0, 1.0, -0.5, 1.5];
    check(&TransformedDistribution::new(normal(), SigmoidTransform), &unit, &[0.0, 1.0, 0.0, 1.0]);
    check(&TransformedDistribution::new(normal(), ExpTransform), &[0.0, -1.0, -INF], &[0.0; 3]);
    check(&TransformedDistribution::new(normal(), SoftplusTransform), &[0.0, -1.0], &[0.0; 2]);
    check(&TransformedDistribution::new(normal(), TanhTransform), &[1.0, -1.0, 2.0, -2.0], &[1.0, 0.0, 1.0, 0.0]);
    let inverse = || PowerTransform::new(Tensor::from(-1.0));
    let exponential = || Exponential::new(Tensor::from(1.0));
    check(&TransformedDistribution::new(exponential(), inverse()), &[0.0, -1.0], &[0.0; 2]);
    let parts = [ComposeTransform::part(ExpTransform), ComposeTransform::part(AffineTransform::new(0.0, -1.0))];
    check(&TransformedDistribution::new(normal(), ComposeTransform::new(parts)), &[1.0, 0.0], &[1.0; 2]);
    let parts = [ComposeTransform::part(ExpTransform), ComposeTransform::part(SigmoidTransform)];
    check(&TransformedDistribution::new(normal(), ComposeTransform::new(parts)), &[0.4, 1.5], &[0.0, 1.0]);
    // Values outside the support do not affect the gradients of the parameters.
    let gradient = with_gradient(&[1.5], |a| {
        TransformedDistribution::new(Gamma::new(a, 1.0), ExpTransform).log_prob(&x(&[-1.0, 0.0, 0.5, 2.0]))
    });
    assert!(gradient.1[0].is_finite(), "{gradient:?}");
    let vectors = Independent::new(Normal::new(Tensor::zeros([2], DType::F64), 1.0), 1);
    let rows = TransformedDistribution::new(vectors, ExpTransform);
    let values = rows.log_prob(&Tensor::from([[1.0, 2.0], [1.0, -1.0], [f64::NAN, -1.0]])).to_vec::<f64>();
    assert!(values[0].is_finite() && values[1] == -INF && values[2].is_nan(), "{values:?}");
    Ok(())
}

#[test]
fn divergences_of_transformed_distributions_need_equal_transforms() -> Result<()> {
    let by = |scale: f64| {
        let base = Normal::new(Tensor::from(0.5), 1.0);
        TransformedDistribution::new(base, AffineTransform::new(Tensor::from(1.0), Tensor::from(scale)))
    };
    let standard = TransformedDistribution::new(Normal::new(Tensor::from(0.0), 1.0), AffineTransform::new(1.0, 2.0));
    assert_eq!(kl_divergence(&by(2.0), &standard)?.item::<f64>(), 0.125);
    assert!(kl_divergence(&by(3.0), &standard).is_err());
    let composed = |first: std::sync::Arc<dyn Transform>| {
        let parts = [first, ComposeTransform::part(AffineTransform::new(0.0, 2.0))];
        TransformedDistribution::new(Normal::new(Tensor::from(0.0), 1.0), ComposeTransform::new(parts))
    };
    let (exp, tanh) = (ComposeTransform::part(ExpTransform), ComposeTransform::part(TanhTransform));
    assert_eq!(kl_divergence(&composed(exp.clone()), &composed(exp.clone()))?.item::<f64>(), 0.0);
    assert!(kl_divergence(&composed(exp), &composed(tanh)).is_err());
    Ok(())
}

#[test]
fn the_base_is_expanded_to_the_parameters_of_the_transform() {
    let _seed = Generator::new(4).scope();
    let affine = AffineTransform::new(Tensor::from([0.0, 10.0, 20.0]), 2.0);
    let d = TransformedDistribution::new(Normal::new(Tensor::from(0.0), 1.0), affine.clone());
    let expected = Normal::new(Tensor::from([0.0, 10.0, 20.0]), 2.0);
    assert_eq!(d.batch_shape(), [3]);
    let y = d.sample([5]);
    assert_eq!(y.shape(), [5, 3]);
    let z = (&y - &expected.mean()).to_vec::<f64>();
    assert!(z[0] != z[1] && z[1] != z[2], "the elements are independent: {z:?}");
    assert!((d.log_prob(&y) - expected.log_prob(&y)).abs().max(..).item::<f64>() < 1e-12);
    let rows = Independent::new(Normal::new(Tensor::zeros([3], DType::F64), 1.0), 1);
    let affine = AffineTransform::new(Tensor::zeros([2, 1], DType::F64), 2.0);
    let d = TransformedDistribution::new(rows, affine);
    assert_eq!((d.batch_shape(), d.event_shape()), ([2].into(), [3].into()));
    let y = d.rsample([4]);
    assert_eq!((y.shape().dims(), d.log_prob(&y).shape().dims()), (&[4, 2, 3][..], &[4, 2][..]));
}

#[test]
fn distribution_functions_of_trials_are_steps() {
    let at = x(&[-0.5, 0.0, 0.7, 1.0, 2.5, INF]);
    let coin = Bernoulli::new(Tensor::from(0.25)).cdf(&at).to_vec::<f64>();
    assert_close("bernoulli", &coin, &[0.0, 0.75, 0.75, 1.0, 1.0, 1.0]);
    let failures = Geometric::new(Tensor::from(0.25)).cdf(&at).to_vec::<f64>();
    assert_close("geometric", &failures, &[0.0, 0.25, 0.25, 0.4375, 1.0 - 0.75f64.powi(3), 1.0]);
}

#[test]
fn affine_transforms_have_moments() {
    let base = || Gamma::new(Tensor::from(4.0), 2.0);
    let affine = |a: f64, b: f64| ComposeTransform::part(AffineTransform::new(Tensor::from([a, a + 1.0]), b));
    let d = TransformedDistribution::new(base(), ComposeTransform::new([affine(1.0, 3.0), affine(-1.0, 2.0)]));
    assert_eq!((d.mean().to_vec::<f64>(), d.variance().to_vec::<f64>()), (vec![13.0, 16.0], vec![36.0, 36.0]));
    assert!(TransformedDistribution::new(base(), ExpTransform).try_mean().is_err());
}

/// Checks samples in `f32` that would round to a bound of the support.
#[test]
fn samples_have_a_finite_density() {
    let _seed = Generator::new(9).scope();
    let n = 4000;
    let check = |d: &dyn Distribution| {
        let shape = [n].into_iter().chain(d.batch_shape().iter().copied()).collect();
        let x = d.try_draw(&shape).unwrap();
        let log_prob = d.log_prob(&x);
        assert!(log_prob.isfinite().all(..).item::<bool>(), "{}: {log_prob}", d.name());
        assert!(d.support().contains(&x).all(..).item::<bool>(), "{}: {x}", d.name());
    };
    let f = |x: f32| Tensor::from(x);
    check(&RelaxedBernoulli::new(f(0.02), 0.7));
    check(&RelaxedOneHotCategorical::new(f(0.02), Tensor::from([0.2f32, 0.3, 0.5])));
    check(&Beta::new(f(0.01), 0.01));
    check(&Beta::new(f(40.0), 1e-3));
    check(&FisherSnedecor::new(f(0.01), 0.01));
    check(&Dirichlet::new(Tensor::from([0.01f32, 0.01, 0.01])));
    check(&Kumaraswamy::new(f(0.01), 0.01));
    check(&Weibull::new(f(1.0), 0.01));
    check(&LogNormal::new(f(0.0), 60.0));
    check(&Pareto::new(f(1.0), 0.01));
    check(&Gamma::new(f(1e-3), 1.0));
    check(&TransformedDistribution::new(Normal::new(f(0.0), 30.0), SigmoidTransform));
    check(&TransformedDistribution::new(Normal::new(f(0.0), 30.0), TanhTransform));
    check(&TransformedDistribution::new(Normal::new(f(0.0), 90.0), ExpTransform));
    let parts = [ComposeTransform::part(TanhTransform), ComposeTransform::part(AffineTransform::new(0.0, 2.0))];
    check(&TransformedDistribution::new(Normal::new(f(0.0), 30.0), ComposeTransform::new(parts)));
    // The gradient of a clamped sample is 0; other gradients are unchanged.
    let temperature = f(0.02).requires_grad_(true);
    RelaxedBernoulli::new(&temperature, 0.7).rsample([n]).sum(..).backward();
    assert!(temperature.grad().unwrap().item::<f32>().is_finite());
}
