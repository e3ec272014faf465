//! Results near the ends of the range, and those of a cancellation: normalisations and tails of activations.

use crate::support::bits;
use pellucid_tensor::ops::ConvOptions;
use pellucid_tensor::{DType, Tensor, capture, capture_local, lazy};

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

/// Applies `call` eagerly, lazily and captured, compares the bits, and returns the result.
#[track_caller]
fn in_all_modes(what: &str, x: &Tensor, call: impl Fn(&Tensor) -> Tensor) -> Tensor {
    let eager = call(x);
    let deferred = lazy(|| call(x));
    let mut step = capture_local(|t: &[Tensor]| call(&t[0]), &[x]).unwrap();
    let captured = step.launch(&[x]).unwrap().to_tensor(0);
    assert_eq!(bits(&[deferred, captured]), bits(&[eager.clone(), eager.clone()]), "{what}");
    eager
}

/// The rows of a matrix, of which some are usual, some overflow, some underflow, and one is zero.
const SCALES: [f64; 9] = [1.0, 3e18, 1e-25, 0.0, 5e36, 3e-37, 1e-30, 2.0, 1e30];

/// The lengths cover rows that are reduced side by side, rows in blocks, single rows and rows of several tiles.
const LENGTHS: [usize; 6] = [2, 7, 60, 300, 1024, 20000];

/// Calls `check(x, scale, element)` for matrices whose rows are `element` times a scale. In `f64` the exponents of the
/// scales are 8 times larger.
fn for_each_matrix(check: impl Fn(&Tensor, &[f64], &dyn Fn(usize) -> f64)) {
    for dtype in [DType::F32, DType::F64, DType::BF16] {
        let scales = SCALES.map(|s: f64| if dtype == DType::F64 { s.powi(8) } else { s });
        // Values that all dtypes represent.
        let scales = scales.map(|s: f64| if s == 0.0 { 0.0 } else { 2f64.powi(s.log2().round() as i32) });
        for length in LENGTHS {
            let element = |i: usize| [1.0, 2.0, -0.5][i % 3];
            let rows = scales.iter().flat_map(|&s| (0..length).map(move |i| s * element(i)));
            let x = Tensor::from(rows.collect::<Vec<f64>>()).reshape([scales.len(), length]).to_dtype(dtype);
            check(&x, &scales, &element);
            // The same rows as columns, in memory with a stride.
            let columns = x.transpose(0, 1).contiguous();
            check(&columns.transpose(0, 1), &scales, &element);
        }
    }
}

/// Returns the tolerance of a statistic of a row in its dtype.
fn tolerance(x: &Tensor) -> f64 {
    match x.dtype() {
        DType::F64 => 1e-13,
        DType::F32 => 4e-6,
        _ => 6e-3,
    }
}

fn check_rows(name: &str, x: &Tensor, scales: &[f64], unit: f64, power: i32, call: impl Fn(&Tensor) -> Tensor) {
    let largest = if x.dtype() == DType::F64 { f64::MAX } else { f64::from(f32::MAX) };
    let smallest = if x.dtype() == DType::F64 { f64::MIN_POSITIVE } else { f64::from(f32::MIN_POSITIVE) };
    let y = in_all_modes(name, x, &call).to_vec::<f64>();
    for (k, (&got, &scale)) in y.iter().zip(scales).enumerate() {
        let expected = unit * scale.powi(power);
        let what = format!("{name} of {} in {}: row {k} is {got:e}, expected {expected:e}", x.shape(), x.dtype());
        match expected {
            e if e > largest => assert_eq!(got, f64::INFINITY, "{what}"),
            e if e < smallest => assert!((0.0..=smallest).contains(&got), "{what}"),
            e => assert!((got - e).abs() <= tolerance(x) * e, "{what}"),
        }
        // One row alone gives the same bits.
        let row = call(&x.narrow(0, k as isize, 1)).to_vec::<f64>();
        assert_eq!(row[0].to_bits(), got.to_bits(), "{what}, alone");
    }
}

#[test]
fn deviations_and_norms_use_the_whole_range() {
    for_each_matrix(|x, scales, element| {
        let n = x.shape()[1];
        let values: Vec<f64> = (0..n).map(element).collect();
        let mean = values.iter().sum::<f64>() / n as f64;
        let variance = values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / n as f64;
        let power = |p: f64| values.iter().map(|v| v.abs().powf(p)).sum::<f64>().powf(1.0 / p);
        check_rows("var", x, scales, variance, 2, |x| x.var(-1));
        check_rows("std", x, scales, variance.sqrt(), 1, |x| x.std(-1));
        check_rows("norm 2", x, scales, power(2.0), 1, |x| x.norm(2.0, -1));
        check_rows("norm 3", x, scales, power(3.0), 1, |x| x.norm(3.0, -1));
        check_rows("norm 1.5", x, scales, power(1.5), 1, |x| x.norm(1.5, -1));
    });
}

#[test]
fn gradients_of_deviations_and_norms_use_the_whole_range() {
    for_each_matrix(|x, scales, element| {
        let n = x.shape()[1];
        let values: Vec<f64> = (0..n).map(element).collect();
        let mean = values.iter().sum::<f64>() / n as f64;
        let variance = values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / n as f64;
        let length = values.iter().map(|v| v * v).sum::<f64>().sqrt();
        let gradient = |call: &dyn Fn(&Tensor) -> Tensor, x: &Tensor| {
            let x = x.detach().requires_grad_(true);
            call(&x).sum(..).backward();
            x.grad().unwrap()
        };
        let std = |x: &Tensor| x.std(-1);
        let norm = |x: &Tensor| x.norm(2.0, -1);
        let slopes = [
            ("std", &std as &dyn Fn(&Tensor) -> Tensor, mean, n as f64 * variance.sqrt()),
            ("norm", &norm, 0.0, length),
        ];
        for (name, call, shift, divisor) in slopes {
            let what = format!("gradient of {name}, {} in {}", x.shape(), x.dtype());
            let g = in_all_modes(&what, x, |x| gradient(call, x)).to_vec::<f64>();
            // The gradient of `std` contains the mean, whose sum must not overflow.
            let largest = if x.dtype() == DType::F64 { f64::MAX } else { f64::from(f32::MAX) };
            for (k, g) in g.chunks(n).enumerate().filter(|(k, _)| scales[*k] < largest / (2 * n) as f64) {
                for (i, &g) in g.iter().enumerate().take(7) {
                    let expected = if scales[k] == 0.0 { 0.0 } else { (values[i] - shift) / divisor };
                    let error = (g - expected).abs();
                    assert!(
                        error <= 4.0 * tolerance(x) * expected.abs() + 1e-7 / n as f64,
                        "{what}: {k}, {i}: {g:e}, {expected:e}"
                    );
                }
            }
        }
    });
}

#[test]
fn lengths_and_angles_use_the_whole_range() {
    for scale in [1e-30, 1e-25, 1.0, 1e19, 1e25, 1e30].map(|s: f64| 2f64.powi(s.log2().round() as i32)) {
        let element = |i: usize| if i.is_multiple_of(2) { 3.0 } else { -1.0 };
        for n in [2, 60, 1024] {
            let values: Vec<f32> = (0..n).map(|i| (scale * element(i)) as f32).collect();
            let x = Tensor::from(values).reshape([1, n]);
            let unit = in_all_modes("normalize", &x, |x| x.normalize(2.0, -1, 1e-38));
            assert_relative(&format!("normalize, {scale:e}"), &unit.i((0, 0)), 3.0 / (5.0 * n as f64).sqrt(), 1e-6);
            let cosine = in_all_modes("cosine", &x, |x| x.cosine_similarity(&(x * -2.0), -1, 1e-38));
            assert_relative(&format!("cosine, {scale:e}"), &cosine, -1.0, 1e-6);
            let distance = in_all_modes("distance", &x, |x| x.pairwise_distance(&(x * 3.0), 2.0, 0.0, false));
            assert_relative(&format!("distance, {scale:e}"), &distance, 2.0 * scale * (5.0 * n as f64).sqrt(), 1e-6);
        }
    }
}
