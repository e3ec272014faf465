//! Every result of an object has its own graph, so a backward pass leaves the object usable.

use crate::families::{FAMILIES, distribution};
use pellucid::distributions::*;
use pellucid::{DType, Generator, Result, Tensor, no_grad};

/// Computes a result and its gradients twice, with a backward pass each time, and compares the gradients. Returns false
/// if the result does not exist or has no gradient.
fn has_equal_gradients(label: &str, leaves: &[Tensor], result: impl Fn() -> Result<Tensor>) -> bool {
    let gradients = || {
        let _seed = Generator::new(3).scope();
        leaves.iter().for_each(Tensor::zero_grad);
        let y = result().ok().filter(Tensor::requires_grad)?;
        y.sum(..).try_backward().unwrap_or_else(|error| panic!("{label}: {error}"));
        Some(leaves.iter().map(|leaf| format!("{:?}", leaf.grad().map(|g| g.to_vec::<f64>()))).collect::<Vec<_>>())
    };
    let first = gradients();
    assert_eq!(first, gradients(), "{label}");
    first.is_some()
}

/// Returns the number of properties with a gradient. Each is computed and differentiated twice.
fn check_properties(label: &str, leaves: &[Tensor], d: &dyn Distribution) -> usize {
    let (x, p) = {
        let (_off, _seed) = (no_grad(), Generator::new(1).scope());
        (d.try_draw(&d.batch_shape()).expect("a sample exists"), Tensor::from(0.3))
    };
    let properties: [(&str, &dyn Fn() -> Result<Tensor>); 7] = [
        ("log_prob", &|| d.try_log_prob(&x)),
        ("cdf", &|| d.try_cdf(&x)),
        ("icdf", &|| d.try_icdf(&p)),
        ("entropy", &|| d.try_entropy()),
        ("mean", &|| d.try_mean()),
        ("variance", &|| d.try_variance()),
        ("draw", &|| d.try_draw(&d.batch_shape())),
    ];
    let has_gradient =
        |(name, f): &(&str, &dyn Fn() -> Result<Tensor>)| has_equal_gradients(&format!("{name} of {label}"), leaves, f);
    properties.iter().filter(|&property| has_gradient(property)).count()
}

/// The first parameter is broadcast to the shape of the last, which has another dtype.
#[test]
fn families_can_be_differentiated_again() {
    let mut count = 0;
    for (family, parameters) in FAMILIES {
        let is_scalar = distribution(family, &|name| {
            let (_, values) = parameters.iter().find(|(of, _)| *of == name).expect("the row has the parameter");
            Tensor::from(values.to_vec())
        })
        .event_shape()
        .rank()
            == 0;
        let leaf = |&(name, values): &(&str, &[f64])| {
            let is_last = name == parameters[parameters.len() - 1].0;
            let values = if is_last && is_scalar { values.repeat(2) } else { values.to_vec() };
            let dtype = if is_last && parameters.len() > 1 { DType::F32 } else { DType::F64 };
            Tensor::from(values).to_dtype(dtype).requires_grad_(true)
        };
        let leaves: Vec<Tensor> = parameters.iter().map(leaf).collect();
        let d = distribution(family, &|name| {
            leaves[parameters.iter().position(|(of, _)| *of == name).expect("the row has the parameter")].clone()
        });
        let with_gradient = check_properties(family, &leaves, d.as_ref());
        assert!(with_gradient > 0, "{family}");
        count += with_gradient;
    }
    assert!(count > 150, "{count} properties have a gradient");
}

#[test]
fn other_constructors_and_compositions_can_be_differentiated_again() {
    type Constructor = fn(&Tensor) -> Box<dyn Distribution>;
    let constructors: [(&str, Constructor); 16] = [
        ("bernoulli", |l| Box::new(Bernoulli::from_logits(l))),
        ("continuous_bernoulli", |l| Box::new(ContinuousBernoulli::from_logits(l))),
        ("binomial", |l| Box::new(Binomial::from_logits(5, l))),
        ("geometric", |l| Box::new(Geometric::from_logits(l))),
        ("negative_binomial", |l| Box::new(NegativeBinomial::from_logits(2.5, l))),
        ("relaxed_bernoulli", |l| Box::new(RelaxedBernoulli::from_logits(0.5, l))),
        ("categorical", |l| Box::new(Categorical::from_logits(l))),
        ("one_hot_categorical", |l| Box::new(OneHotCategorical::from_logits(l))),
        ("multinomial", |l| Box::new(Multinomial::from_logits(5, l))),
        ("relaxed_one_hot_categorical", |l| Box::new(RelaxedOneHotCategorical::from_logits(0.5, l))),
        ("relaxed_one_hot_categorical of weights", |w| Box::new(RelaxedOneHotCategorical::new(0.5, w))),
        ("independent", |a| Box::new(Independent::new(Gamma::new(a, 2.0), 1))),
        ("mixture", |w| Box::new(MixtureSameFamily::new(Categorical::new(w), StudentT::new(3.0, w, 1.0)))),
        ("affine", |l| Box::new(TransformedDistribution::new(Normal::new(l, 1.0), AffineTransform::new(l, 2.0)))),
        ("power", |a| Box::new(TransformedDistribution::new(Chi2::new(a), PowerTransform::new(a)))),
        ("gamma of chi2", |df| Box::new(Chi2::new(df).to_gamma())),
    ];
    for (label, create) in constructors {
        let leaf = Tensor::from([0.4, 0.9]).requires_grad_(true);
        assert!(check_properties(label, std::slice::from_ref(&leaf), create(&leaf).as_ref()) > 0, "{label}");
    }
    let matrix = Tensor::from([[2.0, 0.0], [0.4, 1.0]]).requires_grad_(true);
    let of_factor = MultivariateNormal::from_scale_tril(Tensor::from([0.5, 1.0]), &matrix);
    assert!(check_properties("multivariate_normal of a factor", std::slice::from_ref(&matrix), &of_factor) > 0);
    let matrix = Tensor::from([[2.0, 0.4], [0.4, 1.0]]).requires_grad_(true);
    let of_covariance = MultivariateNormal::new(Tensor::from([0.5, 1.0]), &matrix);
    assert!(check_properties("multivariate_normal", std::slice::from_ref(&matrix), &of_covariance) > 0);
}

#[test]
fn divergences_can_be_differentiated_again() {
    let leaves = [Tensor::from([0.3, 0.6]), Tensor::from([0.7, 0.4])].map(|leaf| leaf.requires_grad_(true));
    macro_rules! check {
        ($($create:expr),+ $(,)?) => {$({
            let [p, q] = leaves.each_ref().map($create);
            assert!(has_equal_gradients(stringify!($create), &leaves, || kl_divergence(&p, &q)));
        })+};
    }
    check! {
        |a| Normal::new(a, a), |a| Gamma::new(a, 2.0), |a| Chi2::new(a), |a| Beta::new(a, a), |a| Dirichlet::new(a),
        |p| Bernoulli::new(p), |l| Bernoulli::from_logits(l), |l| Binomial::from_logits(3, l),
        |p| Geometric::new(p), |l| Geometric::from_logits(l), |l| ContinuousBernoulli::from_logits(l),
        |w| Categorical::new(w), |l| Categorical::from_logits(l), |r| Poisson::new(r), |s| Cauchy::new(0.0, s),
    }
    let matrices = [1.0, 2.0].map(|x| Tensor::from([[2.0, 0.4], [0.4, x]]).requires_grad_(true));
    let [p, q] = matrices.each_ref().map(|matrix| MultivariateNormal::new(Tensor::from([0.5, 1.0]), matrix));
    assert!(has_equal_gradients("multivariate_normal", &matrices, || kl_divergence(&p, &q)));
}
