//! Large parameters, for which the gamma functions in textbook formulas cancel: comparison with mpmath at 60 digits.

use pellucid::distributions::*;
use pellucid::{DType, Tensor};

/// Compares a result with a value, within a relative error of 1e-12 in `f64` and 1e-5 in `f32`.
fn assert_value(label: &str, expected: f64, f: impl Fn(DType) -> Tensor) {
    for (dtype, tolerance) in [(DType::F64, 1e-12), (DType::F32, 1e-5)] {
        let value = f(dtype).to_dtype(DType::F64).item::<f64>();
        assert!(
            (value - expected).abs() <= tolerance * expected.abs().max(0.1),
            "{label} in {dtype}: {value}, not {expected}"
        );
    }
}

/// Compares the derivative with respect to a scalar in `f64`.
fn assert_slope(label: &str, at: f64, expected: f64, f: impl Fn(&Tensor) -> Tensor) {
    let leaf = Tensor::from(at).requires_grad_(true);
    f(&leaf).backward();
    let slope = leaf.grad().unwrap().item::<f64>();
    assert!((slope - expected).abs() <= 1e-9 * expected.abs() + 1e-9, "{label}: {slope}, not {expected}");
}

fn t(x: f64, dtype: DType) -> Tensor {
    Tensor::from(x).to_dtype(dtype)
}

#[test]
fn student_t_approaches_the_normal_distribution() {
    let rows = [
        (3.0, -2.120120425494355, 1.773477571863291, 0.03238690563985301, -0.12320146702978621),
        (25.0, -2.0492459227670405, 1.459327578078393, 0.0002466127131042463, -0.001630675132653757),
        (1e4, -2.0439494770314512, 1.419038535704506, 1.0950152210497563e-09, -1.0000499949995002e-08),
        (1e8, -2.0439385342984226, 1.4189385432046728, 1.0937501265624959e-17, -1.000000005e-16),
        (1e15, -2.0439385332046727, 1.4189385332046738, 1.0937500000000126e-31, -1.0000000000000004e-30),
    ];
    for (df, log_prob, entropy, slope, entropy_slope) in rows {
        assert_value("log_prob", log_prob, |d| StudentT::new(t(df, d), 0.0, 1.0).log_prob(&t(1.5, d)));
        assert_value("entropy", entropy, |d| StudentT::new(t(df, d), 0.0, 1.0).entropy());
        assert_slope("log_prob", df, slope, |df| StudentT::new(df, 0.0, 1.0).log_prob(&Tensor::from(1.5)));
        assert_slope("entropy", df, entropy_slope, |df| StudentT::new(df, 0.0, 1.0).entropy());
    }
    let tail = StudentT::new(1.0f32, 0.0, 1.0).log_prob(&Tensor::from(1e20f32)).item::<f32>();
    assert!((tail + 93.25).abs() < 0.01, "{tail}");
}

#[test]
fn counts_near_the_mode() {
    for (x, rate, expected, slope) in [
        (1e7, 1e7, -8.977986367017166, 0.0),
        (1.0003e7, 1e7, -9.428091351267952, 0.0003),
        (3.0, 2.5, -1.5428872736055899, 0.2),
        (1000.0, 20.0, -2936.3959049341724, 49.0),
        (16777216.0, 1.6e7, -18587.81636162605, 0.048576),
    ] {
        assert_value("poisson", expected, |d| Poisson::new(t(rate, d)).log_prob(&t(x, d)));
        assert_slope("poisson", rate, slope, |rate| Poisson::new(rate).log_prob(&Tensor::from(x)));
    }
    for (x, n, p, expected, slope) in [
        (500_000.0, 1_000_000, 0.5, -7.133546881626865, 0.0),
        (501_500.0, 1_000_000, 0.5, -11.633549131633915, 6000.0),
        (3.0, 1_000_000, 3.814697265625e-6, -1.5898716430622726, -213568.81470037345),
        (250.0, 1000, 0.25, -3.536189066839433, 0.0),
    ] {
        let logit = f64::ln(p / (1.0 - p));
        assert_value("binomial", expected, |d| Binomial::new(n, t(p, d)).log_prob(&t(x, d)));
        assert_value("binomial from logits", expected, |d| Binomial::from_logits(n, t(logit, d)).log_prob(&t(x, d)));
        assert_slope("binomial", p, slope, |p| Binomial::new(n, p).log_prob(&Tensor::from(x)));
        let by_logit = slope * p * (1.0 - p);
        assert_slope("binomial", logit, by_logit, |l| Binomial::from_logits(n, l).log_prob(&Tensor::from(x)));
    }
    for (x, r, p, expected, slope) in [
        (1e6, 1e6, 0.5, -8.173267527466782, 0.0),
        (1.002e6, 1e6, 0.5, -9.173767444008682, 4000.0),
        (7.0, 0.5, 0.25, -11.411063631296507, 27.333333333333332),
        (0.0, 1e6, 9.313225746154785e-10, -0.0009313225750491594, -1000000.0009313226),
    ] {
        assert_value("negative binomial", expected, |d| NegativeBinomial::new(t(r, d), t(p, d)).log_prob(&t(x, d)));
        assert_slope("negative binomial", p, slope, |p| NegativeBinomial::new(r, p).log_prob(&Tensor::from(x)));
    }
    let votes = |d| Multinomial::new(1_000_000, Tensor::from([0.25, 0.25, 0.5]).to_dtype(d));
    let counts = Tensor::from([250_000.0, 250_000.0, 500_000.0]);
    assert_value("multinomial", -13.920520422973757, |d| votes(d).log_prob(&counts.to_dtype(d)));
    let logits = Tensor::from([0.25f64, 0.25, 0.5]).log();
    let from_logits = |d| Multinomial::from_logits(1_000_000, logits.to_dtype(d));
    assert_value("multinomial from logits", -13.920520422973757, |d| from_logits(d).log_prob(&counts.to_dtype(d)));
    // The probability of these log odds underflows.
    let rare = Binomial::from_logits(2, -200f32).log_prob(&Tensor::from([0f32, 1.0])).to_vec::<f32>();
    assert!(rare[0] == 0.0 && (rare[1] + 199.306_85).abs() < 1e-3, "{rare:?}");
}

#[test]
fn gamma_and_beta_approach_the_normal_distribution() {
    for (x, a, b, expected, entropy, by_a, by_x) in [
        (5e5, 1e6, 2.0, -7.133546714960198, 7.633546298293448, 5.000000833333334e-7, -2e-6),
        (5.01e5, 1e6, 2.0, -9.132882044566852, 7.633546298293448, 0.0019985026627563894, -0.003994011976047904),
        (12.0, 11.0, 1.0, -2.2553460751955123, 2.5868866824083043, 0.1331540607212792, -0.16666666666666666),
        (1e3, 20.0, 0.5, -421.9554774977378, 3.5930755151586076, 3.2440841061800425, -0.481),
    ] {
        assert_value("gamma", expected, |d| Gamma::new(t(a, d), b).log_prob(&t(x, d)));
        assert_value("gamma entropy", entropy, |d| Gamma::new(t(a, d), b).entropy());
        assert_slope("gamma by a", a, by_a, |a| Gamma::new(a, b).log_prob(&Tensor::from(x)));
        assert_slope("gamma by x", x, by_x, |x| Gamma::new(Tensor::from(a), b).log_prob(x));
    }
    for (x, a, b, expected, entropy) in [
        (0.5, 1e6, 1e6, 7.028537391617382, -6.528537766617507),
        (0.25, 1e6, 3e6, 7.518952052845467, -7.018952379234439),
        (0.3125, 12.0, 25.0, 1.6453556037006514, -1.1647324700795871),
    ] {
        assert_value("beta", expected, |d| Beta::new(t(a, d), t(b, d)).log_prob(&t(x, d)));
        assert_value("beta entropy", entropy, |d| Beta::new(t(a, d), t(b, d)).entropy());
        let dirichlet = |d| Dirichlet::new(Tensor::from([a, b]).to_dtype(d));
        assert_value("dirichlet", expected, |d| dirichlet(d).log_prob(&Tensor::from([x, 1.0 - x]).to_dtype(d)));
        assert_value("dirichlet entropy", entropy, |d| dirichlet(d).entropy());
    }
}

/// Compares a value that is far from 1, within a relative error of 1e-12.
fn assert_near(label: &str, actual: &Tensor, expected: f64) {
    let actual = actual.item::<f64>();
    assert!((actual - expected).abs() <= 1e-12 * expected.abs(), "{label}: {actual}, not {expected}");
}

/// Large log odds preserve the small probability of failure 1 − p.
#[test]
fn large_log_odds_keep_small_probabilities_of_failure() {
    let failure = 1.9287498479639178e-22; // e⁻⁵⁰
    for logits in [50.0, -50.0] {
        let logits = &Tensor::from(logits);
        let trial = Bernoulli::from_logits(logits);
        assert_near("variance", &trial.variance(), failure);
        assert_near("entropy", &trial.entropy(), 51.0 * failure);
        assert_near("binomial variance", &Binomial::from_logits(3, logits).variance(), 3.0 * failure);
        let other = Bernoulli::from_logits(&(logits * 0.9));
        // p·ln(p/q) + f·ln(f/g) ≈ g − f + f·ln(f/g) for the small f and g.
        let small = (-45f64).exp();
        assert_near("divergence", &kl_divergence(&trial, &other).unwrap(), small - failure - 5.0 * failure);
    }
    let large = Tensor::from(50.0);
    assert_near("geometric mean", &Geometric::from_logits(&large).mean(), failure);
    assert_near("geometric variance", &Geometric::from_logits(&large).variance(), failure);
    assert_near("negative binomial mean", &NegativeBinomial::from_logits(2.0, &large).mean(), 2.0 / failure);
    assert_near(
        "negative binomial variance",
        &NegativeBinomial::from_logits(2.0, &large).variance(),
        2.0 / failure / failure,
    );
}

#[test]
fn kumaraswamy_has_small_probabilities_near_0() {
    let share = Kumaraswamy::new(Tensor::from(2.0), 3.0);
    assert_near("cdf", &share.cdf(&Tensor::from(1e-10)), 3e-20);
    assert_near("cdf", &share.cdf(&Tensor::from(0.5)), 1.0 - 0.75f64.powi(3));
    assert_near("cdf", &share.cdf(&Tensor::from(1.0)), 1.0);
    assert_slope("cdf", 1e-10, 6e-10, |x| share.cdf(x));
}

#[test]
fn samples_of_large_concentrations_are_finite_and_differentiable() {
    let _random = pellucid::Generator::new(0).scope();
    for concentration in [1e8, 1e10, 1e15, 1e25, 1e30] {
        let a = Tensor::from(concentration).requires_grad_(true);
        let x = Gamma::new(&a, 1.0).rsample([64]);
        let z = ((&x - concentration) / concentration.sqrt()).detach();
        assert!(z.abs().max(..).item::<f64>() < 5.0, "{concentration}");
        x.mean(..).backward();
        // x ≈ a + z·√a.
        let expected = 1.0 + 0.5 * z.mean(..).item::<f64>() / concentration.sqrt();
        let slope = a.grad().unwrap().item::<f64>();
        assert!((slope - expected).abs() < 1e-7, "{concentration}: {slope}, not {expected}");
        let t = StudentT::new(concentration, 0.0, 1.0).sample([64]);
        assert!(t.abs().max(..).item::<f64>() < 5.0, "{concentration}");
    }
}

/// The density of a Dirichlet distribution is Π xₖ^(αₖ−1) / B(α) for any sum of x.
#[test]
fn gradients_of_a_dirichlet_density() {
    let a = Tensor::from([2.0, 0.5, 7.0]).requires_grad_(true);
    let x = Tensor::from([0.25, 0.25, 0.5]).requires_grad_(true);
    let value = Dirichlet::new(&a).log_prob(&x);
    let options = pellucid::GradOptions { create_graph: true, ..Default::default() };
    let by_x = pellucid::grad(&[&value], &[&x], options).unwrap().remove(0);
    let expected = (&a - 1.0) / &x;
    assert!((&by_x - &expected).abs().max(..).item::<f64>() < 1e-12);
    let mixed = pellucid::grad(&[&by_x.sum(..)], &[&a], Default::default()).unwrap().remove(0);
    assert!((&mixed - x.reciprocal()).abs().max(..).item::<f64>() < 1e-12);
}
