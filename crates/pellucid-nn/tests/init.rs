//! Initialization: moments of random schemes, exact values of the others.

use pellucid_nn::init::{self, Fan, Nonlinearity};
use pellucid_nn::{Bilinear, Conv2d, ConvTranspose2d, Embedding, Layer, Linear, Module, Padding, Parameter};
use pellucid_tensor::{DType, Error, Generator, Tensor, capture, manual_seed};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Mean, standard deviation, and the fourth moment in units of the deviation: 3 for a normal distribution, 1.8 for a
/// uniform one.
fn moments(values: &[f64]) -> [f64; 3] {
    let mean = |f: &dyn Fn(f64) -> f64| values.iter().map(|&v| f(v)).sum::<f64>() / values.len() as f64;
    let middle = mean(&|v| v);
    let std = mean(&|v| (v - middle).powi(2)).sqrt();
    [middle, std, mean(&|v| ((v - middle) / std).powi(4))]
}

const NORMAL: f64 = 3.0;
const UNIFORM: f64 = 1.8;

/// Checks each moment within five standard errors, which for the second and fourth are at most the normal
/// distribution's.
#[track_caller]
fn distributed(what: &str, values: &Tensor, std: f64, fourth: f64) {
    let values = values.to_vec::<f64>();
    let error = 5.0 / (values.len() as f64).sqrt();
    let [mean, found, kurtosis] = moments(&values);
    assert!(mean.abs() < error * std, "{what}: the mean is {mean}, expected about 0");
    assert!((found / std - 1.0).abs() < error, "{what}: the standard deviation is {found}, expected {std}");
    assert!((kurtosis - fourth).abs() < 5.0 * error, "{what}: the fourth moment is {kurtosis}, expected {fourth}");
    if fourth == UNIFORM {
        let bound = std * 3f64.sqrt();
        let most = values.iter().fold(0f64, |most, v| most.max(v.abs()));
        assert!(
            most <= bound * (1.0 + 1e-6) && most > 0.999 * bound,
            "{what}: the largest magnitude is {most}, expected {bound}"
        );
    }
}

#[test]
fn distributions_have_their_moments() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    manual_seed(1);
    let (shape, taps) = ([200, 300], [20, 30, 10, 12]);
    distributed("uniform", &init::uniform(shape, -0.5, 0.5), 0.5 / 3f64.sqrt(), UNIFORM);
    distributed("normal", &init::normal(shape, 0.0, 0.02), 0.02, NORMAL);
    let gain = Nonlinearity::Tanh.gain();
    distributed("xavier_uniform", &init::xavier_uniform(shape, gain), gain * (2.0 / 500f64).sqrt(), UNIFORM);
    distributed("xavier_normal", &init::xavier_normal(taps, 1.0), (2.0 / (50.0 * 120.0f64)).sqrt(), NORMAL);
    let relu = Nonlinearity::Relu;
    distributed("kaiming_uniform", &init::kaiming_uniform(shape, Fan::In, relu), (2.0 / 300f64).sqrt(), UNIFORM);
    distributed("kaiming_normal", &init::kaiming_normal(taps, Fan::Out, relu), (2.0 / 2400f64).sqrt(), NORMAL);
    let leaky = Nonlinearity::LeakyRelu(5f64.sqrt());
    distributed("leaky", &init::kaiming_uniform(taps, Fan::In, leaky), (1.0 / (3.0 * 3600f64)).sqrt(), UNIFORM);
    let selu = init::kaiming_normal(shape, Fan::In, Nonlinearity::Selu);
    distributed("selu", &selu, 0.75 / 300f64.sqrt(), NORMAL);
}

#[test]
fn distributions_have_their_range() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    manual_seed(4);
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let uniform = init::uniform([10_000], 3.0, 5.0).to_vec::<f64>();
    assert!(uniform.iter().all(|v| (3.0..=5.0).contains(v)) && (mean(&uniform) - 4.0).abs() < 0.05);
    let normal = init::normal([10_000], -2.0, 0.1).to_vec::<f64>();
    assert!((mean(&normal) + 2.0).abs() < 0.01);
    let half = init::trunc_normal([10_000], 7.0, 2.0, 7.0, 100.0).to_vec::<f64>();
    // The mean of a half-normal distribution: μ + σ·√(2/π).
    assert!(half.iter().all(|&v| v >= 7.0) && (mean(&half) - 7.0 - 2.0 * 0.7978845608).abs() < 0.1);
    type Scheme = fn(f64) -> pellucid_tensor::Result<Parameter>;
    let schemes: [(&str, Scheme); 4] = [
        ("xavier_uniform", |gain| init::try_xavier_uniform([2, 3], gain)),
        ("xavier_normal", |gain| init::try_xavier_normal([2, 3], gain)),
        ("kaiming_uniform", |slope| init::try_kaiming_uniform([2, 3], Fan::In, Nonlinearity::LeakyRelu(slope))),
        ("kaiming_normal", |slope| init::try_kaiming_normal([2, 3], Fan::In, Nonlinearity::LeakyRelu(slope))),
    ];
    for (name, scheme) in schemes {
        let error = scheme(f64::NAN).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{name}: gain")), "{error}");
    }
    for (name, scheme) in &schemes[..2] {
        let error = scheme(-1.0).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{name}: gain must be finite and not negative, got -1")), "{error}");
    }
    let rejected = catch_unwind(|| init::uniform([2], 1.0, 0.0)).unwrap_err();
    assert!(rejected.downcast_ref::<String>().unwrap().contains("`low` must be at most `high`"));
}

/// The standard deviation follows from the normal density and mass within ±1: 1 − 2φ(1)/0.6827.
#[test]
fn a_truncated_normal_stays_in_its_range() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    manual_seed(2);
    let values = init::trunc_normal([100_000], 0.0, 2.0, -2.0, 2.0);
    distributed(
        "trunc_normal",
        &values,
        2.0 * (1.0 - 2.0 * 0.24197072451914337 / 0.6826894921370859f64).sqrt(),
        1.94092,
    );
    assert!(values.to_vec::<f32>().iter().all(|v| (-2.0..=2.0).contains(v)));
    let tail = init::trunc_normal([10_000], 0.0, 1.0, 3.0, 100.0).to_vec::<f64>();
    assert!(tail.iter().all(|v| (3.0..=100.0).contains(v)));
    // E[z | z > 3] = φ(3) / Φ(−3)
    assert!((moments(&tail)[0] - 0.004431848411938008 / 0.0013498980316300933).abs() < 0.02);
}

#[test]
fn sparse_columns_have_their_zeros() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    manual_seed(3);
    let values = init::sparse([100, 50], 0.303, 0.01).t().to_vec::<f64>();
    let columns: Vec<&[f64]> = values.chunks(100).collect();
    assert!(
        columns.iter().all(|c| c.iter().filter(|v| **v == 0.0).count() == 31),
        "every column must have ⌈30.3⌉ zeros"
    );
    assert!(columns.windows(2).any(|pair| {
        let places = |c: &[f64]| c.iter().map(|v| *v == 0.0).collect::<Vec<_>>();
        places(pair[0]) != places(pair[1])
    }));
    let rest: Vec<f64> = values.iter().copied().filter(|v| *v != 0.0).collect();
    distributed("sparse", &Tensor::new(&rest, rest.len()), 0.01, NORMAL);
}

#[test]
fn deterministic_schemes_are_exact() {
    assert_eq!(init::constant([2, 2], 0.3).to_vec::<f32>(), [0.3; 4]);
    assert_eq!(init::zeros(2).to_vec::<f32>(), [0.0; 2]);
    assert_eq!(init::ones(2).to_vec::<f32>(), [1.0; 2]);
    assert_eq!(init::eye([2, 3]).to_vec::<f32>(), [1.0, 0.0, 0.0, 0.0, 1.0, 0.0]);
    // A convolution with this weight copies channels, group by group; output channels without an input channel are 0.
    let conv = Conv2d::new(4, 6, 3).groups(2).padding(1).bias(false);
    init::dirac_(&conv.weight, 2);
    let x = Tensor::randn([1, 4, 5, 5], DType::F32);
    let y = conv.forward(&x);
    let channel = |t: &Tensor, c: usize| t.select(1, c as isize).to_vec::<f32>();
    for (output, input) in [(0, Some(0)), (1, Some(1)), (2, None), (3, Some(2)), (4, Some(3)), (5, None)] {
        assert_eq!(
            channel(&y, output),
            input.map_or(vec![0.0; 25], |c| channel(&x, c)),
            "output channel {output} is wrong"
        );
    }
    let even = Conv2d::new(1, 1, [4, 1]).padding(Padding::Same).bias(false);
    init::dirac_(&even.weight, 1);
    assert_eq!(even.weight.to_vec::<f32>(), [0.0, 0.0, 1.0, 0.0]);
}

#[test]
fn a_parameter_is_refilled_in_place() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let parameter = init::in_dtype(DType::F64, || init::zeros([4, 3]));
    let other: Parameter = parameter.clone();
    manual_seed(4);
    init::kaiming_normal_(&parameter, Fan::In, Nonlinearity::Linear);
    assert!(parameter.requires_grad() && parameter.is_leaf() && parameter.grad().is_none());
    manual_seed(4);
    let created = init::in_dtype(DType::F64, || init::kaiming_normal([4, 3], Fan::In, Nonlinearity::Linear));
    assert_eq!(other.to_vec::<f64>(), created.to_vec::<f64>());
    let before = parameter.to_vec::<f64>();
    for rejected in [
        catch_unwind(AssertUnwindSafe(|| init::dirac_(&parameter, 1))),
        catch_unwind(AssertUnwindSafe(|| init::sparse_(&parameter, 1.5, 1.0))),
        catch_unwind(AssertUnwindSafe(|| init::trunc_normal_(&parameter, 0.0, 1.0, 2.0, 1.0))),
    ] {
        assert!(rejected.is_err());
    }
    assert_eq!(parameter.to_vec::<f64>(), before);
}

#[test]
fn from_generator_leaves_the_threads_generator_unchanged() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    manual_seed(5);
    let model = || (Linear::new(3, 4), Conv2d::new(1, 2, 3), Embedding::new(5, 2));
    let expected = model().state_dict();
    manual_seed(6);
    let first = Tensor::rand([4], DType::F32).to_vec::<f32>();
    manual_seed(6);
    let given = init::from_generator(&Generator::new(5), model);
    assert_eq!(Tensor::rand([4], DType::F32).to_vec::<f32>(), first);
    for (name, value) in given.state_dict() {
        assert_eq!(
            value.to_vec::<f32>(),
            expected[&name].to_vec::<f32>(),
            "{name} differs from its expected initial values"
        );
    }
}

#[test]
fn layers_are_initialised_as_in_pytorch() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    manual_seed(8);
    let uniform = |what: &str, values: &Tensor, fan: usize| {
        distributed(what, values, (fan as f64).sqrt().recip() / 3f64.sqrt(), UNIFORM);
    };
    let linear = Linear::new(100, 2000);
    uniform("linear weight", &linear.weight, 100);
    uniform("linear bias", linear.bias.as_ref().unwrap(), 100);
    let conv = Conv2d::new(16, 1000, 3).groups(4);
    uniform("conv weight", &conv.weight, 4 * 9);
    uniform("conv bias", conv.bias.as_ref().unwrap(), 4 * 9);
    let transposed = ConvTranspose2d::new(12, 1000, 3);
    uniform("transposed weight", &transposed.weight, 1000 * 9);
    uniform("transposed bias", transposed.bias.as_ref().unwrap(), 1000 * 9);
    let bilinear = Bilinear::new(50, 20, 1000);
    uniform("bilinear weight", &bilinear.weight, 50);
    uniform("bilinear bias", bilinear.bias.as_ref().unwrap(), 50);
    distributed("embedding", &Embedding::new(1000, 50).weight, 1.0, NORMAL);
    assert_eq!(Embedding::new(4, 2).padding_index(-1).weight.narrow(0, 3, 1).to_vec::<f32>(), [0.0; 2]);
}

#[test]
fn refilling_can_be_captured() {
    let parameter = init::zeros([3]);
    let generator = Generator::new(9);
    let refill = || init::from_generator(&generator, || init::normal_(&parameter, 0.0, 1.0));
    let mut step = capture(
        |_| {
            refill();
            parameter.tensor() * 1.0
        },
        &[],
    )
    .unwrap();
    let drawn: Vec<Vec<f32>> = (0..2).map(|_| step.launch(&[]).unwrap().to_vec::<f32>(0)).collect();
    generator.reseed(9);
    for drawn in drawn {
        refill();
        assert_eq!(parameter.to_vec::<f32>(), drawn);
    }
}

#[test]
fn shapes_without_a_fan_are_rejected() {
    let rejected = catch_unwind(|| init::xavier_uniform([3], 1.0)).unwrap_err();
    let text = rejected.downcast_ref::<String>().unwrap();
    assert!(text.starts_with("xavier_uniform: incompatible shapes"), "{text}");
    let error = Linear::lazy(3).try_forward(&Tensor::from(1.0f32)).unwrap_err();
    assert!(matches!(error, Error::ShapeMismatch { .. }));
}

#[test]
fn orthogonal_columns_are_drawn_for_every_float() {
    for (dtype, tolerance) in [(DType::F16, 0.01), (DType::BF16, 0.05), (DType::F32, 1e-5), (DType::F64, 1e-13)] {
        let q = init::in_dtype(dtype, || init::orthogonal([6, 4], 2.0));
        assert_eq!(q.dtype(), dtype);
        let q = q.to_dtype(DType::F64);
        for (i, x) in q.t().matmul(&q).to_vec::<f64>().into_iter().enumerate() {
            let expected = if i % 5 == 0 { 4.0 } else { 0.0 };
            assert!((x - expected).abs() < 4.0 * tolerance, "{dtype}: element {i} is {x}, expected {expected}");
        }
    }
}

/// In the tail, values of the distribution function round to 1.
#[test]
fn a_normal_may_be_truncated_to_its_tail() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    // E[z | z > a] = a + 1/a − 2/a³ + 10/a⁵ − ..
    for (a, b, expected) in [(10.0, 11.0, 10.0981), (10.0, f64::INFINITY, 10.0981), (40.0, 50.0, 40.02497)] {
        for (sign, mean, std) in [(1.0, 0.0, 1.0), (-1.0, 3.0, 0.5)] {
            let bounds = [mean + sign * a * std, mean + sign * b * std];
            let (low, high) = (bounds[0].min(bounds[1]), bounds[0].max(bounds[1]));
            let values = init::in_dtype(DType::F64, || init::trunc_normal([20_000], mean, std, low, high));
            let values: Vec<f64> = values.to_vec::<f64>().iter().map(|v| (v - mean) / std * sign).collect();
            assert!(values.iter().all(|z| (a * (1.0 - 1e-12)..b * (1.0 + 1e-12)).contains(z)), "{a}..{b}");
            let [found, spread, _] = moments(&values);
            // The tail is nearly exponential with the mean 1/a, so the standard error is 1/(a·√n).
            assert!((found - expected).abs() < 5.0 / a / 20_000f64.sqrt(), "{a}..{b}: {found}");
            assert!((spread * a - 1.0).abs() < 0.1, "{a}..{b}: {spread}");
        }
    }
    let half = init::trunc_normal([20_000], 0.0, 1.0, -1.0, f64::INFINITY).to_vec::<f64>();
    // φ(1) / Φ(1)
    assert!((moments(&half)[0] - 0.24197072 / 0.84134475).abs() < 0.03);
}

#[test]
fn numbers_that_would_fill_a_parameter_with_nan_are_rejected() {
    let (nan, infinity) = (f64::NAN, f64::INFINITY);
    let rejected = [
        init::try_normal([2], nan, 1.0),
        init::try_normal([2], infinity, 1.0),
        init::try_normal([2], 0.0, nan),
        init::try_trunc_normal([2], nan, 1.0, -1.0, 1.0),
        init::try_trunc_normal([2], 0.0, infinity, -1.0, 1.0),
        init::try_trunc_normal([2], 0.0, 1.0, nan, 1.0),
        init::try_orthogonal([2, 2], nan),
        init::try_xavier_uniform([2, 2], nan),
    ];
    for (case, rejected) in rejected.into_iter().enumerate() {
        assert!(matches!(rejected, Err(Error::InvalidArgument { .. })), "case {case}");
    }
    assert!(matches!(init::try_in_dtype(DType::I64, || ()), Err(Error::DTypeMismatch { .. })));
}
