//! Results near the ends of the range, and results of cancellation: normalizations and tails of activations.

use crate::support::bits;
use pellucid_tensor::ops::{BatchNormOptions, ConvOptions, Reduction};
use pellucid_tensor::{DType, GradOptions, Tensor, capture, capture_local, grad_one, lazy, ops};

const INFINITY: f64 = f64::INFINITY;

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

/// x, Φ(x), ln Φ(x) and its derivative φ(x)/Φ(x), computed with 90 digits.
const NORMAL_DISTRIBUTION: [[f64; 4]; 12] = [
    [-37.5, 4.605353009581955e-308, -707.6689893175072, 37.526628874883656],
    [-30.25, 2.6086402857412604e-201, -461.86077456953467, 30.282985990213152],
    [-22.125, 9.08189985492759e-109, -248.77549173050022, 22.17001493520944],
    [-13.0, 6.11716439954988e-39, -87.98971997102252, 13.07603856060398],
    [-9.75, 9.223413524939418e-23, -50.73771193934228, 9.850511730185426],
    [-4.5, 3.3976731247300603e-06, -12.59241973571308, 4.704319844827732],
    [-3.5, 0.00023262907903552504, -8.366065308344092, 3.7513912648576997],
    [-1.5, 0.06680720126885807, -2.7059444008238898, 1.938677166622543],
    [-0.5, 0.3085375387259869, -1.1759117615936185, 1.1410777703680646],
    [0.75, 0.7733726476231318, -0.25699426683836524, 0.389382056735927],
    [3.0, 0.9986501019683699, -0.0013508099647481938, 0.004437839042125664],
    [8.5, 1.0, -9.479534822203318e-18, 8.16623563166955e-17],
];

#[test]
fn functions_of_the_normal_distribution_are_accurate_in_both_tails() {
    // The error of φ grows with x², because e^(−x²/2) multiplies the error of x² by it.
    for (dtype, unit, smallest) in [(DType::F32, 2f64.powi(-23), 1e-37), (DType::F64, 2f64.powi(-52), 1e-306)] {
        for [x, mass, logarithm, slope] in NORMAL_DISTRIBUTION {
            let density = slope * mass;
            if density < smallest {
                continue;
            }
            let t = Tensor::from([x]).to_dtype(dtype);
            let near = |name: &str, call: fn(&Tensor) -> Tensor, value: f64, derivative: f64, units: [f64; 2]| {
                let what = format!("{name} at {x} in {dtype}");
                assert_relative(&what, &in_all_modes(&what, &t, call), value, units[0] * unit);
                let gradient = in_all_modes(&what, &t, |t| {
                    let leaf = t.detach().requires_grad_(true);
                    call(&leaf).sum(..).backward();
                    leaf.grad().unwrap()
                });
                assert_relative(&format!("derivative of {what}"), &gradient, derivative, units[1] * unit);
            };
            let tail = 4.0 + 0.5 * x * x;
            near("ndtr", |t| t.ndtr(), mass, density, [4.0, tail]);
            near("gelu", |t| t.gelu(), x * mass, mass + x * density, [5.0, 4.0 * tail]);
            near("log_ndtr", |t| t.log_ndtr(), logarithm, slope, [8.0, 16.0]);
        }
    }
}

/// The differences of large terms near the negative zeros of ln |Γ| and ψ have the documented absolute errors. Columns:
/// x, ln |Γ(x)|, ψ(x), computed with 90 digits.
#[test]
fn gamma_functions_near_their_negative_zeros() {
    let values: [(f64, f64, f64); 11] = [
        (-2.4570247382208006, 5.619192358950097e-17, 1.5156034480216576),
        (-2.45702474, -2.6965607562849653e-09, 1.5156034307338138),
        (-2.7476826467274127, 1.733509244024501e-16, -1.9143501856116005),
        (-3.14358088834998, 1.6978655906121085e-15, 7.7818846581313625),
        (-3.955294284858598, -4.14382750757705e-16, -20.725060845803696),
        (-5.0082181, 8.428458997656863e-06, 123.36319639691601),
        (-9.70267254, -13.046599300249941, 2.8269388321571906e-11),
        (-0.504083008264455, 1.2654376221108656, 4.042965717222496e-15),
        (-1.5734984731623904, 0.8339552096562821, 1.5649788481838454e-16),
        (-2.6107208684441447, -0.11862999102044386, -1.0720275936410002e-15),
        (-5.66716244155689, -4.675099801516901, -5.7784792943192e-14),
    ];
    for (x, logarithm, derivative) in values {
        let t = Tensor::from([x]);
        let errors = [t.lgamma().item::<f64>() - logarithm, t.digamma().item::<f64>() - derivative].map(f64::abs);
        assert!(errors[0] <= 1e-15 * x.abs().max(1.0) + 4e-16 * logarithm.abs(), "lgamma({x}): {:e}", errors[0]);
        assert!(errors[1] <= 4e-15 * derivative.abs().max(1.0), "digamma({x}): {:e}", errors[1]);
    }
}

/// sin(πx)/(πx) is 0 at integers, and relatively accurate near them.
#[test]
fn sinc_is_accurate_near_its_zeros() {
    for (dtype, bits) in [(DType::F32, 23), (DType::F64, 52), (DType::F16, 10), (DType::BF16, 7)] {
        let integers = Tensor::arange(-9.0, 10.0, 1.0).to_dtype(dtype);
        let expected: Vec<f64> = (-9..10).map(|k| f64::from(u8::from(k == 0))).collect();
        assert_eq!(in_all_modes("sinc", &integers, |x| x.sinc()).abs().to_vec::<f64>(), expected, "{dtype}");
        let slopes = in_all_modes("gradient of sinc", &integers, |x| {
            let x = x.detach().requires_grad_(true);
            x.sinc().sum(..).backward();
            x.grad().unwrap()
        });
        let unit = 2f64.powi(-bits);
        for (k, slope) in (-9..10).zip(slopes.to_vec::<f64>()).filter(|(k, _)| *k != 0) {
            let exact = if k % 2 == 0 { 1.0 } else { -1.0 } / f64::from(k);
            assert!((slope - exact).abs() <= 4.0 * unit * exact.abs(), "the slope at {k} is {slope} in {dtype}");
        }
        for k in [1.0, 2.0, 3.0, 7.0] {
            let d = 2f64.powi(4 - bits);
            // sin πd = πd·(1 − (πd)²/6 + ..)
            let t = std::f64::consts::PI * d;
            let exact = if k == 2.0 { 1.0 } else { -1.0 } * d * (1.0 - t * t / 6.0) / (k + d);
            let x = Tensor::from([k + d]).to_dtype(dtype);
            assert_relative(&format!("sinc({}) in {dtype}", k + d), &x.sinc(), exact, 4.0 * unit + t.powi(4) / 100.0);
        }
    }
}

#[test]
fn ldexp_uses_the_whole_range() {
    let cases: [(DType, f64, f64, f64); 10] = [
        (DType::F32, f64::from(1e-30f32), 200.0, f64::from(1e-30f32) * 2f64.powi(200)),
        (DType::F32, 2f64.powi(-149), 276.0, 2f64.powi(127)),
        (DType::F32, 1.5 * 2f64.powi(127), -276.0, 2f64.powi(-148)),
        (DType::F32, 1.75, -149.0, 2f64.powi(-148)),
        (DType::F32, 1e30, 200.0, INFINITY),
        (DType::F32, 1.0, -200.0, 0.0),
        (DType::F64, 1e-300, 1500.0, 1e-300 * 2f64.powi(1000) * 2f64.powi(500)),
        (DType::F64, 5e-324, 2097.0, 2f64.powi(1023)),
        (DType::F64, 1.5 * 2f64.powi(1023), -2097.0, 1e-323),
        (DType::F64, -3.0, 0.5, -3.0 * std::f64::consts::SQRT_2),
    ];
    for (dtype, a, b, expected) in cases {
        let b = Tensor::from([b]).to_dtype(dtype);
        let y = in_all_modes("ldexp", &Tensor::from([a]).to_dtype(dtype), |a| a.ldexp(&b)).item::<f64>();
        assert!(y == expected || (y - expected).abs() <= 3e-16 * expected.abs(), "{a:e}·2^{b}: {y:e}, {expected:e}");
    }
    // 0 and ∞ are preserved for every power.
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        let a = Tensor::from([0.0, -0.0, INFINITY, -INFINITY]).to_dtype(dtype);
        for b in [3000.0, -3000.0, 300.0, INFINITY, -INFINITY] {
            assert_eq!(bits(&[a.ldexp(b)]), bits(std::slice::from_ref(&a)), "{b} in {dtype}");
        }
    }
    let (a, b) = (Tensor::from([1e-30f32]).requires_grad_(true), Tensor::from([200f32]).requires_grad_(true));
    (a.ldexp(&b) * 1e-30).sum(..).backward();
    let slopes = [a.grad().unwrap(), b.grad().unwrap()].map(|g| g.item::<f64>());
    assert_relative("the gradient of a", &Tensor::from([slopes[0]]), 1e-30 * 2f64.powi(200), 1e-6);
    assert_relative(
        "the gradient of b",
        &Tensor::from([slopes[1]]),
        1e-60 * 2f64.powi(200) * std::f64::consts::LN_2,
        1e-6,
    );
}

/// The documented limits of the normalizations: above some magnitude the result is 0 for eps > 0; for eps = 0 there is
/// no limit.
#[test]
fn normalisations_have_the_documented_range() {
    let n = 64;
    let pattern: Vec<f64> = (0..n).map(|i| if i % 2 == 0 { 1.0 } else { -1.0 }).collect();
    for (dtype, limit, smallest, largest) in [(DType::F32, 2.9e20, 1e-38, 1e38), (DType::F64, 1.4e163, 1e-307, 1e308)] {
        let x = |scale: f64| (Tensor::from(pattern.clone()) * scale).to_dtype(dtype).reshape([2, 2, n / 4]);
        let options = |eps: f64| BatchNormOptions { eps, ..Default::default() };
        type Call<'a> = (&'a str, f64, &'a dyn Fn(&Tensor, f64) -> Tensor);
        // The second column is the number of elements of a row.
        let calls: [Call<'_>; 5] = [
            ("layer_norm", 16.0, &|x, eps| x.layer_norm([n / 4], None, None, eps)),
            ("rms_norm", 16.0, &|x, eps| x.rms_norm([n / 4], None, eps)),
            ("group_norm", 32.0, &|x, eps| x.group_norm(1, None, None, eps)),
            ("batch_norm", 32.0, &|x, eps| x.batch_norm(None, None, None, options(eps))),
            ("instance_norm", 16.0, &|x, eps| x.instance_norm(None, None, None, options(eps))),
        ];
        for (name, count, call) in calls {
            let value =
                |scale: f64, eps: f64| in_all_modes(name, &x(scale), |x| call(x, eps)).abs().max(..).item::<f64>();
            let limit = limit / f64::sqrt(count);
            for (scale, eps, expected) in [
                (0.9 * limit, 1e-5, 1.0),
                (0.9 * limit, 1e-27, 1.0),
                (1.2 * limit, 1e-5, 0.0),
                (1e-30, 1e-10, 1e-25),
                (largest, 0.0, 1.0),
                (smallest, 0.0, 1.0),
                (smallest * 1e-5, 0.0, 1.0),
            ] {
                let y = value(scale, eps);
                assert!((y - expected).abs() <= 1e-3 * expected, "{name} of {scale:e} in {dtype}: {y}, not {expected}");
            }
            let equal = (x(0.0) + largest * 1e-3).to_dtype(dtype);
            let y = in_all_modes(name, &equal, |x| call(x, 1e-5)).abs().max(..).item::<f64>();
            assert!(y <= 1.0, "{name} of equal elements in {dtype}: {y}");
        }
    }
}

/// Gradients of the normalizations at large magnitudes s: the gradients at magnitude 1, divided by s.
#[test]
fn gradients_of_normalisations_at_large_magnitudes() {
    for (dtype, scale) in [(DType::F32, 2f64.powi(57)), (DType::F64, 2f64.powi(520))] {
        for n in [5, 300, 2048] {
            let base: Vec<f64> = (0..2 * n).map(|i| ((i * 37) % 23) as f64 - 9.0).collect();
            let base = Tensor::from(base).reshape([2, n]).to_dtype(dtype);
            let weight = (&base.i(0) * 0.1 + 1.0).detach();
            type Call<'a> = (&'a str, &'a dyn Fn(&Tensor) -> Tensor);
            let calls: [Call<'_>; 3] = [
                ("layer_norm", &|x| x.layer_norm([n], None, None, 1e-5)),
                ("layer_norm with bias", &|x| x.layer_norm([n], Some(&weight), Some(&weight), 1e-5)),
                ("rms_norm", &|x| x.rms_norm([n], Some(&weight), 1e-5)),
            ];
            for (name, call) in calls {
                let slope = |scale: f64| {
                    let gradient = |x: &Tensor| {
                        let x = x.detach().requires_grad_(true);
                        (call(&x) * (&base * 0.3).sin()).sum(..).backward();
                        x.grad().unwrap() * scale
                    };
                    in_all_modes(name, &(&base * scale).to_dtype(dtype), gradient).to_dtype(DType::F64)
                };
                let (moderate, scaled) = (slope(1024.0), slope(scale));
                let error = ((&moderate - scaled).abs().max(..) / moderate.abs().max(..)).item::<f64>();
                assert!(error <= 1e-4, "{name} of {n} elements in {dtype}: {error:e}");
            }
        }
    }
}

#[test]
fn cosine_embedding_losses_of_long_vectors() {
    let (a, b) = (Tensor::from([[3e15f32, 4e15]]), Tensor::from([[4e15f32, 3e15]]));
    let y = in_all_modes("cosine_embedding_loss", &a, |a| {
        a.cosine_embedding_loss(&b, &Tensor::from([1i64]), 0.0, Reduction::Mean)
    });
    assert_relative("cosine_embedding_loss", &y, 0.04, 1e-5);
}

/// ln(1 − p) of a small probability, and a square that overflows although its quotient by the variance does not.
#[test]
fn likelihoods_use_the_whole_range() {
    let x = Tensor::from([1e-9f32, 1e-20]);
    let y = in_all_modes("binary_cross_entropy", &x, |x| {
        x.binary_cross_entropy(&Tensor::zeros([2], DType::F32), None, Reduction::None)
    });
    assert_relative("binary_cross_entropy of 1e-9", &y.i(0), 1e-9, 1e-6);
    assert_relative("binary_cross_entropy of 1e-20", &y.i(1), 1e-20, 1e-6);

    let (x, target) = (Tensor::from([3e25f32]), Tensor::from([1e25f32]));
    let gradients = |t: &Tensor| {
        let [x, v] = [t.detach(), Tensor::from([1e25f32])].map(|t| t.requires_grad_(true));
        let y = x.gaussian_nll_loss(&target, &v, false, 1e-6, Reduction::Sum);
        y.backward();
        ops::stack(&[y.detach(), x.grad().unwrap().squeeze(0), v.grad().unwrap().squeeze(0)], 0).unwrap()
    };
    let y = in_all_modes("gaussian_nll_loss", &x, gradients);
    for (k, expected) in [2e25, 2.0, -2.0].into_iter().enumerate() {
        assert_relative(&format!("gaussian_nll_loss, {k}"), &y.i(k as isize), expected, 1e-5);
    }
}

/// The documented limits: errors relative to the largest element, and to the amplitude of an oscillation.
#[test]
fn documented_errors_near_roots() {
    let (low, high) = (-0.7f32, -0.686_344_2_f32);
    let x = Tensor::from([low, high]);
    let exact = (f64::from(low).exp() + f64::from(high).exp()).ln();
    let both = |x: &Tensor| ops::stack(&[x.logsumexp(..), x.i(0).logaddexp(x.i(1))], 0).unwrap();
    for got in in_all_modes("logsumexp", &x, both).to_vec::<f64>() {
        assert!((got - exact).abs() < 2.0 * 1.2e-7 * 0.7, "{got:e}, expected {exact:e}");
    }
    let x = Tensor::from((1..200).map(|k| -3.0 * f64::from(k)).collect::<Vec<f64>>());
    let single = x.to_dtype(DType::F32).airy_ai().to_vec::<f64>();
    for ((x, got), exact) in x.to_vec::<f64>().into_iter().zip(single).zip(x.airy_ai().to_vec::<f64>()) {
        let bound = (2.0 * 1.2e-7 * x.abs().powf(1.5) + 1e-6) * x.abs().powf(-0.25);
        assert!((got - exact).abs() < bound, "airy_ai({x}): {got:e}, expected {exact:e}");
    }
}

/// max + ln(1 + e^−d) with a maximum near −e^−d: the sum 1 + e^−d must not be rounded to `f32`.
#[test]
fn logcumsumexp_keeps_its_sign_near_zero() {
    for dtype in [DType::F32, DType::F64] {
        for (max, other) in [(-1e-9, -20.0), (-1e-12, -27.6), (-1e-5, -12.0)] {
            let x = Tensor::from([[max, other], [other, max]]).to_dtype(dtype);
            let (max, other) = (x.i((0, 0)).item::<f64>(), x.i((0, 1)).item::<f64>());
            let exact = max + (other - max).exp().ln_1p();
            // The sum has 52 bits after the 1.
            let tolerance = 1e-5 + 4e-16 / exact.abs();
            for (axis, x) in [(1, x.clone()), (0, x.t())] {
                let y = in_all_modes("logcumsumexp", &x, |x| x.logcumsumexp(axis)).select(axis, 1);
                assert_relative(&format!("logcumsumexp of {max} and {other} in {dtype}"), &y, exact, tolerance);
            }
        }
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

/// The rows of a matrix: some are usual, some overflow, some underflow, and one is zero.
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
        // One row alone is bit-identical.
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
            let largest = if x.dtype() == DType::F64 { f64::MAX } else { f64::from(f32::MAX) };
            let g = in_all_modes(&what, x, |x| gradient(call, x)).to_vec::<f64>();
            for (k, g) in g.chunks(n).enumerate().filter(|(k, _)| scales[*k] * length < largest) {
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

/// The sums of the elements and of the squares overflow, but the results do not.
#[test]
fn masked_moments_at_the_end_of_the_range() {
    let mask = Tensor::from([true, true, false, true, true]);
    let base = Tensor::from([3.0, 2.5, INFINITY, 1.0, 2.0]);
    type Call = fn(&Tensor, &Tensor) -> Tensor;
    let calls: [(Call, f64, i32); 3] = [
        (|x, mask| x.masked_std(mask, -1), 1e38, 1),
        (|x, mask| x.masked_std(mask, ops::over(-1).ddof(1)), 1e38, 1),
        (|x, mask| x.masked_var(mask, -1), 2e19, 2),
    ];
    for (call, scale, degree) in calls {
        let derivatives = |x: &Tensor, mask: &Tensor| {
            let x = x.detach().requires_grad_(true);
            let y = call(&x, mask);
            let first = grad_one(&y, &x, GradOptions { create_graph: true, ..Default::default() }).unwrap();
            let weights = Tensor::from([1.0, -2.0, 0.5, 0.25, 3.0]).to_dtype(x.dtype());
            let second = grad_one(&(&first * weights).sum(..), &x, Default::default()).unwrap();
            [y, first, second].map(|t| t.detach())
        };
        let expected = derivatives(&base, &mask);
        let x = (&base * scale).to_dtype(DType::F32);
        let eager = derivatives(&x, &mask);
        let mut step = capture_local(|t: &[Tensor]| derivatives(&t[0], &t[1]).to_vec(), &[&x, &mask]).unwrap();
        let results = step.launch(&[&x, &mask]).unwrap();
        assert_eq!(bits(&[0, 1, 2].map(|k| results.to_tensor(k))), bits(&eager));
        for (order, (got, expected)) in eager.iter().zip(&expected).enumerate() {
            // The second derivative of the deviation underflows.
            if degree == 2 || order < 2 {
                let expected = (expected * scale.powi(degree - order as i32)).to_vec::<f64>();
                let largest = expected.iter().fold(0.0, |m: f64, e| m.max(e.abs()));
                for (got, expected) in got.to_vec::<f64>().into_iter().zip(expected) {
                    assert!((got - expected).abs() <= 1e-5 * largest, "order {order}: {got:e}, expected {expected:e}");
                }
            }
        }
    }
}

/// One scale for an entire column of channels would underflow for its small elements, and overflow in second
/// derivatives.
#[test]
fn local_response_norm_beside_a_large_channel() {
    let norm = |x: &Tensor| x.local_response_norm(2, 1e-4, 0.75, 1.0);
    let x = Tensor::from([[[1e17f32], [1.0], [1e-30], [2.0]]]);
    let y = norm(&x).to_vec::<f32>();
    assert!((y[2] / 1e-30 - 1.0).abs() < 1e-4, "{y:?}");
    let seconds = |dtype: DType| {
        let x = Tensor::from([[[1e10], [1.0], [0.5], [2.0]]]).to_dtype(dtype).requires_grad_(true);
        let options = GradOptions { create_graph: true, ..Default::default() };
        let first = grad_one(&norm(&x).sum(..), &x, options).unwrap();
        grad_one(&first.sum(..), &x, Default::default()).unwrap().to_dtype(DType::F64).to_vec::<f64>()
    };
    for (got, expected) in seconds(DType::F32).into_iter().zip(seconds(DType::F64)) {
        assert!((got - expected).abs() <= 1e-4 * expected.abs() + 1e-30, "{got:e}, expected {expected:e}");
    }
}

/// A constant added to the logits changes no loss: nothing is added to the maximum.
#[test]
fn cross_entropy_of_large_logits_keeps_its_digits() {
    let logits = Tensor::from([[0.5, 0.25, -1.0], [0.0, -12.0, -14.5]]);
    let weight = Tensor::from([0.5, 2.0, 1.5]);
    let (classes, shares) = (Tensor::from([1i64, 0]), Tensor::from([[0.25, 0.5, 0.25], [1.0, 0.0, 0.0]]));
    let reference = logits.log_softmax(1).to_vec::<f64>();
    for dtype in [DType::F32, DType::F64] {
        let (shift, tolerance) = if dtype == DType::F32 { (131072.0, 2e-7) } else { (1e12, 2e-4) };
        for (smoothing, is_weighted, has_classes) in [0.0, 0.25]
            .into_iter()
            .flat_map(|s| [true, false].into_iter().flat_map(move |w| [(s, w, true), (s, w, false)]))
        {
            let loss = |x: &Tensor| {
                let weight = weight.to_dtype(dtype);
                let options = ops::CrossEntropyOptions {
                    label_smoothing: smoothing,
                    reduction: ops::Reduction::None,
                    weight: is_weighted.then_some(&weight),
                    ..Default::default()
                };
                let targets = if has_classes { classes.clone() } else { shares.to_dtype(dtype) };
                ops::cross_entropy(x, &targets, options).unwrap()
            };
            // The shift of the logits is exact in both rows.
            let shifted = (&logits + shift).to_dtype(dtype);
            let what = format!("{dtype}, smoothing {smoothing}, weights {is_weighted}, classes {has_classes}");
            let found = in_all_modes(&what, &shifted, loss).to_dtype(DType::F64).to_vec::<f64>();
            for row in 0..2 {
                let expected: f64 = (0..3)
                    .map(|c| {
                        let hit = f64::from(u8::from(classes.i(row).item::<i64>() == c as i64));
                        let share = if has_classes { hit } else { shares.i((row, c)).item::<f64>() };
                        let weight = if is_weighted { weight.i(c).item::<f64>() } else { 1.0 };
                        let share = (1.0 - smoothing) * share + smoothing / 3.0;
                        -weight * share * reference[3 * row as usize + c as usize]
                    })
                    .sum();
                let error = (found[row as usize] - expected).abs();
                // The sum of the exponentials is rounded to a multiple of the rounding error of 1.
                assert!(error <= tolerance * expected.abs().max(0.7), "{what}: {found:?}, expected {expected}");
            }
        }
    }
    let equal = Tensor::from([[1e16, 1e16]]);
    let loss = ops::cross_entropy(&equal, &Tensor::from([0i64]), Default::default()).unwrap();
    assert!((loss.item::<f64>() - std::f64::consts::LN_2).abs() < 1e-15, "{loss}");
}

/// The window is clamped to the channels: memory and time do not depend on its size.
#[test]
fn local_response_norm_of_a_huge_window() {
    let x = Tensor::from([[[1.0], [-2.0], [0.5]]]);
    for (size, same) in [(6, None), (7, None), (1 << 40, Some(5)), ((1 << 40) + 1, Some(5))] {
        // All channels are in all windows; only the divisor differs.
        let wide = x.local_response_norm(size, size as f64, 0.75, 1.0);
        let narrow = same.map_or(wide.clone(), |same| x.local_response_norm(same, same as f64, 0.75, 1.0));
        let expected = &x / (1.0 + 5.25f64).powf(0.75);
        for y in [wide, narrow] {
            assert!((y - &expected).abs().max(..).item::<f64>() < 1e-15, "{size}");
        }
    }
    let [even, odd] = [2usize, 3].map(|size| x.local_response_norm(size, size as f64, 1.0, 0.0));
    assert!((even * Tensor::from([[[1.0], [5.0], [4.25]]]) - &x).abs().max(..).item::<f64>() < 1e-15);
    assert!((odd * Tensor::from([[[5.0], [5.25], [4.25]]]) - &x).abs().max(..).item::<f64>() < 1e-15);
}

/// A single element has no deviation: 0/0, even in the gradient.
#[test]
fn deviations_without_degrees_of_freedom_have_nan_gradients() {
    let x = Tensor::from([[1.0, 2.0, 4.0], [3.0, f64::NAN, f64::NAN], [5.0, 5.0, f64::NAN]]).requires_grad_(true);
    let mask = Tensor::from([[true, true, true], [true, false, false], [true, true, false]]);
    let axes = || ops::over(-1).ddof(1);
    for y in [x.masked_std(&mask, axes()), x.nanstd(axes())] {
        let gradient = grad_one(&y.sum(..), &x, Default::default()).unwrap().to_vec::<f64>();
        assert!(y.i(1).item::<f64>().is_nan() && gradient[3].is_nan(), "{y} {gradient:?}");
        assert!(gradient[..3].iter().all(|g| g.is_finite()) && gradient[6..] == [0.0; 3], "{gradient:?}");
        assert_eq!(gradient[4..6], [0.0; 2], "elements outside the mask");
    }
}

/// The gradient is the softmax even if the precision of the result is lower.
#[test]
fn gradients_of_logsumexp_of_large_elements() {
    for (dtype, shift) in [(DType::F32, 1e8), (DType::F64, 1e17), (DType::F32, -1e8), (DType::F32, 0.0)] {
        let x = (Tensor::from([0.0, 64.0, 64.0]) + shift).to_dtype(dtype).requires_grad_(true);
        let call = |x: &Tensor| grad_one(&x.logsumexp(..), x, Default::default()).unwrap();
        let found = call(&x);
        assert_eq!(bits(&[lazy(|| call(&x))]), bits(std::slice::from_ref(&found)));
        let expected = x.softmax(0).detach();
        assert!((found - expected).abs().max(..).item::<f64>() < 1e-7, "{dtype}, {shift}");
    }
}
