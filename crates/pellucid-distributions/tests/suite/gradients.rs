//! Gradients of densities and samples: central differences of first and second order.

use crate::families::distribution;
use pellucid::distributions::*;
use pellucid::{Generator, GradCheckOptions, GradOptions, Result, Shape, Tensor, grad_one, gradcheck, gradgradcheck};
use std::collections::BTreeMap;

/// A family, its parameters, and a value in its support.
type Row = (&'static str, &'static [(&'static str, Value)], Value);

/// A parameter or value: a scalar, a vector or a matrix.
#[derive(Clone, Copy)]
enum Value {
    Vector(&'static [f64]),
    Matrix(&'static [f64], usize),
}

impl Value {
    fn tensor(self) -> Tensor {
        match self {
            Value::Vector(values) => Tensor::new(values.to_vec(), [values.len()]),
            Value::Matrix(values, columns) => Tensor::new(values.to_vec(), [values.len() / columns, columns]),
        }
    }
}

use Value::{Matrix as M, Vector as V};

/// Families whose samples are differentiable.
const REPARAMETRIZED: &[Row] = &[
    ("normal", &[("loc", V(&[0.3, -1.0])), ("scale", V(&[0.7, 2.0]))], V(&[0.5, 1.5])),
    ("log_normal", &[("loc", V(&[0.3, -1.0])), ("scale", V(&[0.7, 0.5]))], V(&[0.5, 1.5])),
    ("half_normal", &[("scale", V(&[0.7, 2.0]))], V(&[0.5, 1.5])),
    ("laplace", &[("loc", V(&[0.3, -1.0])), ("scale", V(&[0.7, 2.0]))], V(&[0.5, 1.5])),
    ("logistic", &[("loc", V(&[0.3, -1.0])), ("scale", V(&[0.7, 2.0]))], V(&[0.5, 1.5])),
    ("gumbel", &[("loc", V(&[0.3, -1.0])), ("scale", V(&[0.7, 2.0]))], V(&[0.5, 1.5])),
    ("cauchy", &[("loc", V(&[0.3, -1.0])), ("scale", V(&[0.7, 2.0]))], V(&[0.5, 1.5])),
    ("half_cauchy", &[("scale", V(&[0.7, 2.0]))], V(&[0.5, 1.5])),
    ("exponential", &[("rate", V(&[0.7, 2.0]))], V(&[0.5, 1.5])),
    ("weibull", &[("scale", V(&[0.7, 2.0])), ("concentration", V(&[1.7, 0.9]))], V(&[0.5, 1.5])),
    ("pareto", &[("scale", V(&[0.7, 0.5])), ("alpha", V(&[1.7, 3.0]))], V(&[0.9, 1.5])),
    ("uniform", &[("low", V(&[-0.7, 0.5])), ("high", V(&[1.7, 3.0]))], V(&[0.9, 1.5])),
    ("kumaraswamy", &[("concentration1", V(&[0.7, 2.0])), ("concentration0", V(&[1.7, 0.9]))], V(&[0.2, 0.6])),
    ("gamma", &[("concentration", V(&[0.3, 7.0])), ("rate", V(&[1.7, 0.9]))], V(&[0.5, 1.5])),
    ("chi2", &[("df", V(&[0.9, 4.0]))], V(&[0.5, 1.5])),
    ("student_t", &[("df", V(&[2.5])), ("loc", V(&[0.3])), ("scale", V(&[0.7]))], V(&[0.5])),
    ("beta", &[("concentration1", V(&[0.7, 4.0])), ("concentration0", V(&[1.7, 0.9]))], V(&[0.2, 0.6])),
    ("fisher_snedecor", &[("df1", V(&[0.9, 24.0])), ("df2", V(&[5.5, 31.0]))], V(&[0.2, 1.3])),
    ("dirichlet", &[("concentration", V(&[0.7, 4.0, 1.2]))], V(&[0.2, 0.5, 0.3])),
    ("continuous_bernoulli", &[("probs", V(&[0.2, 0.501, 0.9]))], V(&[0.2, 0.6, 0.5])),
    ("relaxed_bernoulli", &[("temperature", V(&[0.7])), ("probs", V(&[0.2]))], V(&[0.6])),
    (
        "multivariate_normal",
        &[("loc", V(&[0.3, -1.0])), ("covariance_matrix", M(&[2.0, 0.4, 0.4, 1.0], 2))],
        V(&[0.5, 1.5]),
    ),
];

/// Families whose samples have no gradient.
const DISCRETE: &[Row] = &[
    ("bernoulli", &[("probs", V(&[0.2, 0.7]))], V(&[0.0, 1.0])),
    ("geometric", &[("probs", V(&[0.2, 0.7]))], V(&[0.0, 3.0])),
    ("negative_binomial", &[("total_count", V(&[2.5, 0.7])), ("probs", V(&[0.2, 0.7]))], V(&[0.0, 3.0])),
    ("poisson", &[("rate", V(&[0.2, 5.0]))], V(&[0.0, 3.0])),
    ("categorical", &[("probs", V(&[0.2, 0.3, 0.5]))], V(&[2.0])),
    ("one_hot_categorical", &[("probs", V(&[0.2, 0.3, 0.5]))], V(&[0.0, 1.0, 0.0])),
    ("von_mises", &[("loc", V(&[0.2, -1.0])), ("concentration", V(&[0.7, 9.0]))], V(&[0.0, 1.0])),
];

/// Checks the gradients of a function with respect to the parameters of a row and to x.
fn check_gradients(row: &Row, with_x: bool, f: impl Fn(&dyn Distribution, Option<&Tensor>) -> Result<Tensor>) {
    let (family, parameters, x) = row;
    let names: Vec<&str> = parameters.iter().map(|(name, _)| *name).collect();
    let mut leaves: Vec<Tensor> = parameters.iter().map(|(_, value)| value.tensor().requires_grad_(true)).collect();
    if with_x {
        leaves.push(x.tensor().requires_grad_(true));
    }
    let leaves: Vec<&Tensor> = leaves.iter().collect();
    let objective = |tensors: &[Tensor]| {
        let by_name: BTreeMap<&str, &Tensor> = names.iter().copied().zip(tensors).collect();
        let symmetric = |x: &Tensor| (x + x.transpose(-1, -2)) * 0.5;
        let d = distribution(family, &|name| match name {
            "covariance_matrix" => symmetric(by_name[name]),
            _ => by_name[name].clone(),
        });
        Ok(vec![f(d.as_ref(), tensors.get(names.len()))?])
    };
    let tight = GradCheckOptions { eps: 1e-6, atol: 1e-6, rtol: 1e-5 };
    gradcheck(objective, &leaves, tight).unwrap_or_else(|error| panic!("{family}: {error}"));
    gradgradcheck(objective, &leaves, tight).unwrap_or_else(|error| panic!("{family}: {error}"));
}

#[test]
fn densities_have_gradients_of_two_orders() {
    for row in REPARAMETRIZED {
        check_gradients(row, true, |d, x| d.try_log_prob(x.unwrap()));
    }
    for row in DISCRETE {
        let x = row.2.tensor();
        check_gradients(row, false, |d, _| d.try_log_prob(&x));
    }
}

#[test]
fn distribution_functions_have_gradients_of_two_orders() {
    let exists = |row: &Row| distribution(row.0, &|name| parameter(row, name)).try_cdf(&row.2.tensor()).is_ok();
    for row in REPARAMETRIZED.iter().filter(|row| exists(row)) {
        check_gradients(row, true, |d, x| d.try_cdf(x.expect("a row has x")));
    }
    for row in DISCRETE.iter().filter(|row| exists(row)) {
        let x = row.2.tensor();
        check_gradients(row, false, |d, _| d.try_cdf(&x));
    }
    for family in ["gamma", "chi2", "student_t", "beta", "fisher_snedecor"] {
        assert!(REPARAMETRIZED.iter().any(|row| row.0 == family && exists(row)), "{family}");
    }
    assert!(DISCRETE.iter().any(|row| row.0 == "negative_binomial" && exists(row)));
    for x in [-1.0, 0.0, 3.5, 7.0, 9.0] {
        let p = Tensor::from([0.3, 0.5, 0.9]).requires_grad_(true);
        let cdf = |p: &[Tensor]| Ok(vec![Binomial::new(7, &p[0]).try_cdf(&Tensor::from(x))?]);
        gradcheck(cdf, &[&p], GradCheckOptions::default()).unwrap_or_else(|error| panic!("binomial at {x}: {error}"));
    }
}

/// The third derivative is a sum over 3·48 nodes of a quadrature, in a program with many values.
#[test]
fn the_distribution_function_of_gamma_has_a_third_derivative() {
    let x = Tensor::from([[0.5, 1.0, 2.0], [2.0, 3.0, 5.0]]);
    let derivatives = |a: &Tensor| {
        let options = || GradOptions { create_graph: true, ..Default::default() };
        let next = |y: &Tensor| grad_one(&y.sum(..), a, options()).expect("a derivative exists");
        let second = next(&next(&Gamma::new(a, 1.0).cdf(&x)));
        let third = next(&second);
        (second, third)
    };
    let (a, h) = (Tensor::from([[0.7], [3.0]]), 1e-4);
    let at = |step: f64| derivatives(&(&a + step).requires_grad_(true));
    let expected = (at(h).0 - at(-h).0) / (2.0 * h);
    let difference = (at(0.0).1 - &expected).abs().max(..).item::<f64>();
    assert!(difference < 1e-6, "{difference}");
}

#[test]
fn entropies_and_moments_have_gradients_of_two_orders() {
    for row in REPARAMETRIZED.iter().chain(DISCRETE) {
        let d = distribution(row.0, &|name| parameter(row, name));
        let is_finite = |value: Result<Tensor>| value.is_ok_and(|y| y.isfinite().all(..).item::<bool>());
        if is_finite(d.try_entropy()) {
            check_gradients(row, false, |d, _| d.try_entropy());
        }
        if is_finite(d.try_variance()) {
            check_gradients(row, false, |d, _| d.try_variance());
        }
    }
}

#[test]
fn samples_have_gradients_of_two_orders() {
    for row in REPARAMETRIZED {
        assert!(distribution(row.0, &|name| parameter(row, name)).has_rsample());
        check_gradients(row, false, |d, _| {
            let _seed = Generator::new(5).scope();
            let shape: Shape = [2].into_iter().chain(d.batch_shape().iter().copied()).collect();
            d.try_draw(&shape)
        });
    }
    for row in DISCRETE {
        assert!(!distribution(row.0, &|name| parameter(row, name)).has_rsample());
    }
}

fn parameter(row: &Row, name: &str) -> Tensor {
    row.1.iter().find(|(of, _)| *of == name).expect("the row has the parameter").1.tensor()
}

/// Compares the slope of ln x in the concentration with central differences of the quantile, over the entire range.
#[test]
fn gamma_samples_have_accurate_gradients_for_all_concentrations() {
    for a in [1e-3, 0.05, 0.4, 1.0, 1.7, 6.0, 40.0, 1e3, 1e5] {
        let p = Tensor::from([1e-6, 0.01, 0.3, 0.5, 0.9, 0.999, 1.0 - 1e-9]);
        let log = |a: f64| Gamma::new(Tensor::from(a), 1.0).icdf(&p).log();
        let concentration = Tensor::from(a).requires_grad_(true);
        let x = Gamma::new(&concentration, 1.0).icdf(&p);
        let h = 1e-5 * a;
        let difference = (log(a + h) - log(a - h)) / (2.0 * h);
        for (k, expected) in difference.to_vec::<f64>().into_iter().enumerate() {
            concentration.zero_grad();
            if x.to_vec::<f64>()[k] < 1e-290 {
                continue;
            }
            let again = Gamma::new(&concentration, 1.0).icdf(&p);
            again.log().select(0, k as isize).backward();
            let slope = concentration.grad().unwrap().item::<f64>();
            assert!((slope - expected).abs() < 2e-6 * expected.abs() + 1e-9, "a = {a}, {k}: {slope}, not {expected}");
        }
    }
}
