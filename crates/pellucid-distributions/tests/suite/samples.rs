//! Samples: statistics, shapes and supports.

use crate::families::distribution;
use pellucid::distributions::*;
use pellucid::{Generator, Result, Tensor};

/// A family and its parameters, as scalars or vectors.
type Row = (&'static str, &'static [(&'static str, &'static [f64])]);

/// Families with a finite variance.
const ROWS: &[Row] = &[
    ("normal", &[("loc", &[0.3]), ("scale", &[2.0])]),
    ("log_normal", &[("loc", &[0.3]), ("scale", &[0.4])]),
    ("half_normal", &[("scale", &[2.0])]),
    ("laplace", &[("loc", &[0.3]), ("scale", &[2.0])]),
    ("logistic", &[("loc", &[0.3]), ("scale", &[2.0])]),
    ("gumbel", &[("loc", &[0.3]), ("scale", &[2.0])]),
    ("exponential", &[("rate", &[2.0])]),
    ("weibull", &[("scale", &[2.0]), ("concentration", &[1.5])]),
    ("pareto", &[("scale", &[2.0]), ("alpha", &[9.0])]),
    ("uniform", &[("low", &[-2.0]), ("high", &[9.0])]),
    ("kumaraswamy", &[("concentration1", &[0.6]), ("concentration0", &[1.5])]),
    ("gamma", &[("concentration", &[0.3, 1.0, 60.0]), ("rate", &[2.0, 2.0, 0.5])]),
    ("chi2", &[("df", &[3.0])]),
    ("student_t", &[("df", &[9.0]), ("loc", &[0.5]), ("scale", &[2.0])]),
    ("beta", &[("concentration1", &[0.6, 30.0]), ("concentration0", &[1.5, 20.0])]),
    ("fisher_snedecor", &[("df1", &[0.9, 40.0]), ("df2", &[20.0, 70.0])]),
    ("dirichlet", &[("concentration", &[0.5, 2.0, 7.0])]),
    ("bernoulli", &[("probs", &[0.2])]),
    ("continuous_bernoulli", &[("probs", &[0.2, 0.5, 0.99])]),
    ("binomial", &[("total_count", &[7.0]), ("probs", &[0.2])]),
    ("geometric", &[("probs", &[0.2])]),
    ("negative_binomial", &[("total_count", &[2.5]), ("probs", &[0.6])]),
    ("poisson", &[("rate", &[0.1, 3.0, 700.0])]),
    ("one_hot_categorical", &[("probs", &[0.2, 0.3, 0.5])]),
    ("multinomial", &[("total_count", &[7.0]), ("probs", &[0.2, 0.3, 0.5])]),
];

/// Compares the mean and the variance of samples. The standard error of the mean is σ/√n, and the standard error of the
/// variance is at most σ²·√(κ/n) with the kurtosis κ of the sample.
#[test]
fn means_and_variances_of_samples_match_the_family() {
    let n = 4000;
    for (k, (family, parameters)) in ROWS.iter().enumerate() {
        let d = distribution(family, &|name| {
            let (_, values) = parameters.iter().find(|(of, _)| *of == name).unwrap();
            Tensor::new(values.to_vec(), [values.len()])
        });
        let _seed = Generator::new(100 + k as u64).scope();
        let shape = [n].into_iter().chain(d.batch_shape().iter().copied()).collect();
        let x = d.try_draw(&shape).unwrap();
        assert!(d.support().contains(&x).all(..).item::<bool>(), "{family}: the support");
        let (mean, variance) = (d.mean(), d.variance());
        assert_eq!(&x.shape()[1..], mean.shape().dims(), "{family}");
        let z = &x - &mean;
        let z = z.to_vec::<f64>();
        let width = mean.size();
        for (at, (mean, variance)) in mean.to_vec::<f64>().into_iter().zip(variance.to_vec::<f64>()).enumerate() {
            let column: Vec<f64> = z.iter().skip(at).step_by(width).copied().collect();
            let count = column.len() as f64;
            let average = column.iter().sum::<f64>() / count;
            let squares = column.iter().map(|z| z * z).sum::<f64>() / count;
            let fourth = column.iter().map(|z| z.powi(4)).sum::<f64>() / count;
            let error = (variance / count).sqrt();
            assert!(average.abs() < 5.0 * error, "{family}[{at}]: mean {} instead of {mean}", mean + average);
            let error = ((fourth - squares * squares).max(1e-30) / count).sqrt();
            assert!((squares - variance).abs() < 5.0 * error, "{family}[{at}]: variance {squares}, not {variance}");
        }
    }
}

/// Compares medians and quartiles for families without a variance, or with a circular variance.
#[test]
fn quartiles_of_samples_match_the_family() -> Result<()> {
    let _seed = Generator::new(3).scope();
    let cauchy = Cauchy::new(1.0, Tensor::from(2.0));
    let half = HalfCauchy::new(Tensor::from(2.0));
    let quarter = |x: &Tensor, bound: f64| x.lt(bound).to_dtype(pellucid::DType::F64).mean(..).item::<f64>();
    let n = 10_000;
    for p in [0.25, 0.5, 0.75] {
        for (x, d) in [(cauchy.sample([n]), &cauchy as &dyn Distribution), (half.sample([n]), &half)] {
            let share = quarter(&x, d.icdf(&Tensor::from(p)).item());
            assert!((share - p).abs() < 0.025, "{}: {share}", d.name());
        }
    }
    for kappa in [1e-7, 0.3, 4.0, 1e3] {
        let angles = VonMises::new(Tensor::from(2.5), kappa);
        let x = angles.sample([n]);
        assert!(x.abs().max(..).item::<f64>() <= std::f64::consts::PI);
        let mean_cosine = (&x - 2.5).cos().mean(..).item::<f64>();
        let expected = 1.0 - angles.variance().item::<f64>();
        assert!((mean_cosine - expected).abs() < 0.04, "κ = {kappa}: {mean_cosine}, not {expected}");
    }
    let classes = Categorical::new(Tensor::from([[0.1, 0.9], [1.0, 0.0]])).sample([n]);
    let means = classes.to_dtype(pellucid::DType::F64).mean(0).to_vec::<f64>();
    assert!((means[0] - 0.9).abs() < 0.015 && means[1] == 0.0);
    let relaxed = RelaxedBernoulli::new(0.1, Tensor::from(0.3)).sample([n]);
    assert!((quarter(&relaxed, 0.5) - 0.7).abs() < 0.025);
    let relaxed = RelaxedOneHotCategorical::new(0.5, Tensor::from([0.2, 0.3, 0.5])).sample([n]);
    let winners = relaxed.argmax(-1);
    assert!((quarter(&winners.to_dtype(pellucid::DType::F64), 0.5) - 0.2).abs() < 0.02);
    Ok(())
}

/// Compares the covariance of samples, which the moments of single elements do not determine.
#[test]
fn multivariate_samples_have_the_covariance() {
    let _seed = Generator::new(8).scope();
    let covariance = Tensor::from([[2.0, 0.9], [0.9, 1.0]]);
    let d = MultivariateNormal::new(Tensor::from([1.0, -1.0]), &covariance);
    let x = d.sample([20_000]);
    let z = &x - &d.mean();
    let found = z.transpose(0, 1).matmul(&z) / 20_000.0;
    assert!((&found - &covariance).abs().max(..).item::<f64>() < 0.1, "{found}");
}

#[test]
fn shapes_are_sample_batch_event() -> Result<()> {
    let normal = Normal::new(Tensor::zeros([4, 1], pellucid::DType::F32), Tensor::ones([3], pellucid::DType::F32));
    assert_eq!((normal.batch_shape(), normal.event_shape()), ([4, 3].into(), ().into()));
    assert_eq!(normal.sample([2, 5]).shape(), [2, 5, 4, 3]);
    assert_eq!(normal.sample(()).shape(), [4, 3]);
    assert_eq!(normal.log_prob(&normal.sample([2])).shape(), [2, 4, 3]);
    assert_eq!((normal.entropy().shape(), normal.mean().shape()), (&[4, 3].into(), &[4, 3].into()));
    let rows = Independent::new(normal, 1);
    assert_eq!((rows.batch_shape(), rows.event_shape()), ([4].into(), [3].into()));
    assert_eq!(rows.sample([2]).shape(), [2, 4, 3]);
    assert_eq!(rows.log_prob(&rows.sample([2])).shape(), [2, 4]);
    assert_eq!(rows.entropy().shape(), [4]);
    assert_eq!(kl_divergence(&rows, &rows)?.to_vec::<f32>(), [0.0; 4]);

    let votes = Multinomial::new(6, Tensor::ones([2, 3], pellucid::DType::F32));
    assert_eq!((votes.batch_shape(), votes.event_shape()), ([2].into(), [3].into()));
    assert_eq!(votes.sample([5]).shape(), [5, 2, 3]);
    assert_eq!(votes.log_prob(&votes.sample([5])).shape(), [5, 2]);

    let components = Independent::new(Normal::new(Tensor::zeros([2, 5, 3], pellucid::DType::F32), 1.0), 1);
    let mixture = MixtureSameFamily::new(Categorical::new(Tensor::ones([5], pellucid::DType::F32)), components);
    assert_eq!((mixture.batch_shape(), mixture.event_shape()), ([2].into(), [3].into()));
    assert_eq!(mixture.sample([7]).shape(), [7, 2, 3]);
    assert_eq!(mixture.log_prob(&mixture.sample([7])).shape(), [7, 2]);
    assert_eq!((mixture.mean().shape(), mixture.variance().shape()), (&[2, 3].into(), &[2, 3].into()));
    assert_eq!(Gamma::new(2.0f32, 1.0).sample([3]).dtype(), pellucid::DType::F32);
    Ok(())
}

/// Mixtures and transformed distributions equal known closed-form families.
#[test]
fn composed_distributions_are_equal_to_simple_ones() {
    let close = |a: &Tensor, b: &Tensor| assert!((a - b).abs().max(..).item::<f64>() < 1e-12, "{a}\n{b}");
    let x = Tensor::from([0.1, 0.5, 0.93]);
    let normal = || Normal::new(Tensor::from(0.3), 0.8);
    let log_normal = LogNormal::new(Tensor::from(0.3), 0.8);
    let by_exp = TransformedDistribution::new(normal(), ExpTransform);
    close(&by_exp.log_prob(&x), &log_normal.log_prob(&x));
    close(&by_exp.cdf(&x), &log_normal.cdf(&x));
    close(&by_exp.icdf(&x), &log_normal.icdf(&x));
    let affine = || AffineTransform::new(1.0, Tensor::from(-2.0));
    let scaled = TransformedDistribution::new(normal(), affine());
    let expected = Normal::new(Tensor::from(0.4), 1.6);
    close(&scaled.log_prob(&x), &expected.log_prob(&x));
    close(&scaled.cdf(&x), &expected.cdf(&x));
    close(&scaled.icdf(&x), &expected.icdf(&x));
    let parts = [ComposeTransform::part(affine()), ComposeTransform::part(ExpTransform)];
    let composed = TransformedDistribution::new(normal(), ComposeTransform::new(parts));
    close(&composed.log_prob(&x), &LogNormal::new(Tensor::from(0.4), 1.6).log_prob(&x));
    close(&composed.cdf(&x), &LogNormal::new(Tensor::from(0.4), 1.6).cdf(&x));
    let uniform = || Uniform::new(Tensor::from(0.0), 1.0);
    let power = TransformedDistribution::new(uniform(), PowerTransform::new(Tensor::from(2.0)));
    close(&power.log_prob(&x), &Beta::new(Tensor::from(0.5), 1.0).log_prob(&x));
    let logistic = Logistic::new(Tensor::from(0.0), 1.0);
    let squashed = TransformedDistribution::new(logistic, SigmoidTransform);
    close(&squashed.log_prob(&x), &Tensor::from([0.0, 0.0, 0.0]));
    for transform in [ComposeTransform::part(TanhTransform), ComposeTransform::part(SoftplusTransform)] {
        let (y, h) = (transform.forward(&x), 1e-6);
        close(&transform.inverse(&y), &x);
        let slope = (transform.forward(&(&x + h)) - transform.forward(&(&x - h))) / (2.0 * h);
        assert!((slope.log() - transform.log_abs_det_jacobian(&x, &y)).abs().max(..).item::<f64>() < 1e-8);
    }
    let weights = Categorical::new(Tensor::from([1.0, 1.0]));
    let mixture = MixtureSameFamily::new(weights, Normal::new(Tensor::from([0.3, 0.3]), 0.8));
    close(&mixture.log_prob(&x), &normal().log_prob(&x));
    close(&mixture.cdf(&x), &normal().cdf(&x));
}
