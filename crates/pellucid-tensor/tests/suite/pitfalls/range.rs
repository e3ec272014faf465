//! Results near the ends of the range, and those of a cancellation: normalisations and tails of activations.

use crate::support::bits;
use pellucid_tensor::ops::ConvOptions;
use pellucid_tensor::{DType, Tensor, capture, lazy};

#[track_caller]
fn assert_relative(what: &str, got: &Tensor, expected: f64, tolerance: f64) {
    for got in got.to_vec::<f64>() {
        assert!((got - expected).abs() <= tolerance * expected.abs(), "{what}: {got:e}, expected {expected:e}");
    }
}

#[test]
fn tails_of_activations_keep_their_relative_accuracy() {
    let x: Vec<f64> = (1..=26).map(|i| -0.5 * f64::from(i)).collect();
    for (dtype, tolerance) in [(DType::F32, 3e-5), (DType::F64, 1e-13)] {
        let t = Tensor::from(x.clone()).to_dtype(dtype);
        for (i, &x) in x.iter().enumerate() {
            let exact = 0.5 * x * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2);
            assert_relative(&format!("gelu({x}) in {dtype}"), &t.gelu().i(i as isize), exact, tolerance);
            let u = 2.0 * (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            let exact = x * libm::exp(u) / (1.0 + libm::exp(u));
            if exact.abs() > 1e-37 {
                assert_relative(&format!("gelu_tanh({x}) in {dtype}"), &t.gelu_tanh().i(i as isize), exact, tolerance);
            }
        }
    }
}

#[test]
fn tanhshrink_is_accurate_near_zero() {
    for (dtype, tolerance) in [(DType::F32, 8.0 * 1.2e-7), (DType::F64, 12.0 * 2.3e-16)] {
        for k in 0..60 {
            let x = 3.0 * 0.75f64.powi(k);
            let x = Tensor::from([x, -x]).to_dtype(dtype);
            let v = x.i(0).item::<f64>();
            // The Taylor series below ½, and the difference above.
            let coefficients = [1.0 / 3.0, -2.0 / 15.0, 17.0 / 315.0, -62.0 / 2835.0, 1382.0 / 155925.0];
            let series = coefficients.iter().rev().fold(0.0, |y, c| y * v * v + c) * v * v * v;
            let (exact, tolerance) =
                if v < 0.02 { (series, tolerance) } else { (v - libm::tanh(v), tolerance + 2e-12) };
            assert_relative(&format!("{v:e}"), &x.tanhshrink().i(0), exact, tolerance);
            assert_eq!(x.tanhshrink().i(1).item::<f64>(), -x.tanhshrink().i(0).item::<f64>());
        }
    }
}

/// 2048 + 1 rounds to 2048 in f16, and 256 + 1 to 256 in bf16.
#[test]
fn a_bias_is_added_before_the_product_is_rounded() {
    for (dtype, large) in [(DType::F16, 2048.0), (DType::BF16, 256.0)] {
        let half = |values: &[f64]| Tensor::from(values.to_vec()).to_dtype(dtype);
        let (x, w, b) = (half(&[large, 1.0]), half(&[1.0, 1.0]), half(&[-large]));
        let inputs = [&x, &w, &b];
        type Call = fn(&[Tensor]) -> Tensor;
        let calls: [(&str, Call); 6] = [
            ("linear", |t| t[0].reshape([1, 2]).linear(&t[1].reshape([1, 2]), Some(&t[2]))),
            ("linear of a batch", |t| t[0].reshape([1, 1, 2]).linear(&t[1].reshape([1, 2]), Some(&t[2])).relu()),
            ("linear of a vector", |t| t[0].linear(&t[1].reshape([1, 2]), Some(&t[2]))),
            ("linear of one output", |t| t[0].reshape([1, 2]).linear(&t[1], Some(&t[2].reshape(())))),
            ("conv1d", |t| {
                t[0].reshape([1, 2, 1]).conv1d(&t[1].reshape([1, 2, 1]), Some(&t[2]), ConvOptions::default())
            }),
            ("conv_transpose1d", |t| {
                t[0].reshape([1, 2, 1]).conv_transpose1d(&t[1].reshape([2, 1, 1]), Some(&t[2]), ConvOptions::default())
            }),
        ];
        for (name, call) in calls {
            let tensors = inputs.map(Tensor::clone);
            let eager = call(&tensors);
            assert_eq!((eager.dtype(), eager.to_vec::<f64>()), (dtype, vec![1.0]), "{name} in {dtype}");
            let deferred = lazy(|| call(&tensors));
            let mut step = capture(call, &inputs).unwrap();
            let captured = step.launch(&inputs).unwrap().to_tensor(0);
            assert_eq!(bits(&[deferred, captured]), bits(&[eager.clone(), eager]), "{name} in {dtype}");
            let leaves = inputs.map(|t| t.clone().detach().requires_grad_(true));
            call(&leaves).sum(..).backward();
            let slopes = leaves.each_ref().map(|t| t.grad().unwrap());
            assert_eq!(slopes.each_ref().map(|g| g.dtype()), [dtype; 3], "{name}");
            let slopes = slopes.map(|g| g.to_vec::<f64>());
            assert_eq!(slopes, [vec![1.0, 1.0], vec![large, 1.0], vec![1.0]], "{name} in {dtype}");
        }
    }
}

#[test]
fn log_odds_are_accurate_near_one_half() {
    for k in 3..22 {
        let d = 0.5f64.powi(k);
        for x in [0.5 - d, 0.5 + d] {
            let exact = ((2.0 * x - 1.0) / (1.0 - x)).ln_1p();
            let t = Tensor::from([x as f32]);
            assert_relative(&format!("logit({x})"), &t.logit(), exact, 8.0 * 1.2e-7);
            assert_relative(&format!("logit_with({x})"), &t.logit_with(0.1), exact, 8.0 * 1.2e-7);
        }
    }
}

#[test]
fn log_ndtr_keeps_its_tail() {
    for x in [6.0f64, 9.0, 12.0, 13.0] {
        let exact = -0.5 * libm::erfc(x * std::f64::consts::FRAC_1_SQRT_2);
        assert_relative(&format!("log_ndtr({x})"), &Tensor::from([x as f32]).log_ndtr(), exact, 1e-4);
    }
}
