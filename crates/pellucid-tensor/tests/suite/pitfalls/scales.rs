//! Norms, deviations and distances of small and large elements, with their first and second derivatives.
//!
//! All functions of the table are homogeneous, f(s·x) = sᵈ·f(x) for s > 0. So their values and derivatives at s·x are
//! the `f64` values and derivatives at x, times powers of s.

use crate::support::bits;
use pellucid_tensor::ops::{BatchNormOptions, CovOptions, MatrixNorm, PoolOptions, Spatial};
use pellucid_tensor::{DType, GradOptions, Tensor, capture_local, grad, lazy, ops};

type Function = fn(&Tensor) -> Tensor;

/// A function of a matrix `[2, 6]`, and its degree d.
type Case = (&'static str, i32, Function);

const CASES: &[Case] = &[
    ("norm 2", 1, |x| x.norm(2.0, -1)),
    ("norm 2, columns", 1, |x| x.norm(2.0, 0)),
    ("norm 2, all", 1, |x| x.norm(2.0, ..)),
    ("norm 1", 1, |x| x.norm(1.0, -1)),
    ("norm 1.5", 1, |x| x.norm(1.5, -1)),
    ("norm 3", 1, |x| x.norm(3.0, -1)),
    ("norm 4", 1, |x| x.norm(4.0, 0)),
    ("norm 0.5", 1, |x| x.norm(0.5, -1)),
    ("norm 12", 1, |x| x.norm(12.0, -1)),
    ("norm -1", 1, |x| x.norm(-1.0, -1)),
    ("norm -2", 1, |x| x.norm(-2.0, -1)),
    ("norm -3.5", 1, |x| x.norm(-3.5, 0)),
    ("norm inf", 1, |x| x.norm(f64::INFINITY, -1)),
    ("norm -inf", 1, |x| x.norm(f64::NEG_INFINITY, -1)),
    ("var", 2, |x| x.var(-1)),
    ("std", 1, |x| x.std(-1)),
    ("std, columns", 1, |x| x.std(ops::over(0).ddof(1))),
    ("std_mean", 1, |x| x.std_mean(-1).0),
    ("var_mean", 2, |x| x.var_mean(-1).0),
    ("masked_var", 2, |x| x.masked_var(&mask(), -1)),
    ("masked_std", 1, |x| x.masked_std(&mask(), ops::over(-1).ddof(1))),
    ("masked_norm 2", 1, |x| x.masked_norm(&mask(), 2.0, -1)),
    ("masked_norm 3", 1, |x| x.masked_norm(&mask(), 3.0, -1)),
    ("masked_norm -2", 1, |x| x.masked_norm(&mask(), -2.0, -1)),
    ("masked_normalize", 0, |x| x.masked_normalize(&mask(), 2.0, -1, 0.0)),
    ("nanvar", 2, |x| x.masked_fill(&mask(), f64::NAN).nanvar(-1)),
    ("nanstd", 1, |x| x.masked_fill(&mask(), f64::NAN).nanstd(-1)),
    ("cov", 2, |x| x.cov(CovOptions::default())),
    ("corrcoef", 0, |x| x.corrcoef()),
    ("dist", 1, |x| x.i(0).dist(&x.i(1), 2.0)),
    ("pairwise_distance 2", 1, |x| x.i(0).pairwise_distance(&x.i(1), 2.0, 0.0, false)),
    ("pairwise_distance 3", 1, |x| x.i(0).pairwise_distance(&x.i(1), 3.0, 0.0, false)),
    ("cdist 2", 1, |x| pairs(x, 2.0)),
    ("cdist 1.5", 1, |x| pairs(x, 1.5)),
    ("cdist 3", 1, |x| pairs(x, 3.0)),
    ("cdist 4", 1, |x| pairs(x, 4.0)),
    ("cdist 0.5", 1, |x| pairs(x, 0.5)),
    ("cdist inf", 1, |x| pairs(x, f64::INFINITY)),
    ("cdist of x and itself", 1, |x| x.reshape([4, 3]).cdist(&x.reshape([4, 3]), 2.0)),
    ("pdist 2", 1, |x| x.reshape([4, 3]).pdist(2.0)),
    ("pdist 3", 1, |x| x.reshape([4, 3]).pdist(3.0)),
    ("cosine_similarity", 0, |x| x.i(0).cosine_similarity(&x.i(1), 0, 0.0)),
    ("layer_norm", 0, |x| x.layer_norm([6], None, None, 0.0)),
    ("layer_norm with weight", 0, |x| x.layer_norm([6], Some(&weights(&x.i(0))), None, 0.0)),
    ("layer_norm with bias", 0, |x| x.layer_norm([6], Some(&weights(&x.i(0))), Some(&weights(&x.i(0))), 0.0)),
    ("rms_norm", 0, |x| x.rms_norm([6], None, 0.0)),
    ("rms_norm with weight", 0, |x| x.rms_norm([6], Some(&weights(&x.i(0))), 0.0)),
    ("group_norm", 0, |x| x.group_norm(2, None, None, 0.0)),
    ("instance_norm", 0, |x| x.reshape([1, 2, 6]).instance_norm(None, None, None, without_eps())),
    ("batch_norm", 0, |x| x.reshape([3, 2, 2]).batch_norm(None, None, None, without_eps())),
    ("normalize 2", 0, |x| x.normalize(2.0, -1, 0.0)),
    ("normalize 3", 0, |x| x.normalize(3.0, 0, 0.0)),
    ("lp_pool1d 2", 1, |x| x.unsqueeze(0).lp_pool1d(2.0, PoolOptions::new(3))),
    ("lp_pool1d 3", 1, |x| x.abs().unsqueeze(0).lp_pool1d(3.0, PoolOptions::new(2))),
    ("lp_pool1d 3 with signs", 1, |x| (x + x.abs() * 3.0).unsqueeze(0).lp_pool1d(3.0, PoolOptions::new(6))),
    ("lp_pool1d 0.5", 1, |x| x.abs().unsqueeze(0).lp_pool1d(0.5, PoolOptions::new(2))),
    ("lp_pool1d -1", 1, |x| x.abs().unsqueeze(0).lp_pool1d(-1.0, PoolOptions::new(2))),
    ("lp_pool1d with gaps", 1, |x| x.unsqueeze(0).lp_pool1d(4.0, gapped(2, 3))),
    ("lp_pool2d 2", 1, |x| x.reshape([1, 1, 4, 3]).lp_pool2d(2.0, PoolOptions::new([2, 3]))),
    ("lp_pool2d 1.5", 1, |x| x.abs().reshape([1, 2, 3, 2]).lp_pool2d(1.5, PoolOptions::new(2))),
    ("lp_pool2d with gaps", 1, |x| x.reshape([1, 1, 3, 4]).lp_pool2d(2.0, gapped([1, 2], [2, 2]))),
    ("lp_pool3d 2", 1, |x| x.reshape([1, 3, 2, 2]).lp_pool3d(2.0, PoolOptions::new([1, 2, 2]))),
    ("lp_pool3d 4", 1, |x| x.reshape([1, 3, 2, 2]).lp_pool3d(4.0, PoolOptions::new([3, 2, 1]))),
    ("matrix_norm", 1, |x| matrix_norm(x, MatrixNorm::Frobenius)),
    ("matrix_norm nuclear", 1, |x| matrix_norm(x, MatrixNorm::Nuclear)),
    ("matrix_norm 1", 1, |x| matrix_norm(x, 1.0.into())),
    ("matrix_norm -inf", 1, |x| matrix_norm(x, f64::NEG_INFINITY.into())),
    ("matrix_norm 2", 1, |x| matrix_norm(x, 2.0.into())),
    ("matrix_norm -2", 1, |x| matrix_norm(x, (-2.0).into())),
];

/// Scales of a dtype: powers of two. Most of their squares overflow or underflow.
const SCALES: &[(DType, f64, [i32; 7])] = &[
    (DType::F64, 1e-12, [0, 340, -340, 531, -565, 1013, -1010]),
    (DType::F32, 5e-5, [0, 46, -46, 83, -83, 117, -114]),
    (DType::F16, 3e-2, [0, 2, -2, 4, -4, 9, -10]),
    (DType::BF16, 0.1, [0, 46, -46, 83, -83, 117, -114]),
];

fn mask() -> Tensor {
    Tensor::from([[true, false, true, true, false, true], [false, true, true, false, true, true]])
}

fn without_eps() -> BatchNormOptions {
    BatchNormOptions { eps: 0.0, ..Default::default() }
}

fn gapped(size: impl Into<Spatial>, stride: impl Into<Spatial>) -> PoolOptions {
    PoolOptions { stride: Some(stride.into()), ..PoolOptions::new(size) }
}

/// Returns the distances of the first two points of three numbers to the other two.
fn pairs(x: &Tensor, p: f64) -> Tensor {
    let points = x.reshape([4, 3]);
    points.narrow(0, 0, 2).cdist(&points.narrow(0, 2, 2), p)
}

/// Matrix norms reject half precision.
fn matrix_norm(x: &Tensor, order: MatrixNorm) -> Tensor {
    let number = x.dtype().promote(DType::F32);
    x.to_dtype(number).matrix_norm(order, [0, 1], false).to_dtype(x.dtype())
}

/// Returns distinct weights of a sum, between −1.5 and 1.5.
fn weights(like: &Tensor) -> Tensor {
    let values: Vec<f64> = (0..like.size()).map(|i| [1.0, -0.5, 1.5, 0.25, -1.25][i % 5]).collect();
    Tensor::from(values).reshape(&like.shape()[..]).to_dtype(like.dtype())
}

/// Returns the value at x, the gradient of a weighted sum, and the gradient of a weighted sum of this gradient.
fn derivatives(x: &Tensor, call: impl Fn(&Tensor) -> Tensor) -> [Tensor; 3] {
    let x = x.detach().requires_grad_(true);
    let y = call(&x);
    let slope = |y: &Tensor, create_graph| {
        let grad_outputs = vec![Some(weights(y))];
        let options = GradOptions { grad_outputs, create_graph, allow_unused: true, ..Default::default() };
        match y.requires_grad() {
            true => grad(&[y], &[&x], options).unwrap().remove(0),
            false => x.zeros_like(),
        }
    };
    let first = slope(&y, true);
    let second = slope(&first, false);
    [y, first, second].map(|t| t.detach())
}

/// Compares the value and derivatives of a function with a reference of degree d, at all scales that `is_chosen`
/// accepts, and appends the differences to `failures`.
fn compare(
    (name, degree, call): Case,
    reference: Function,
    is_chosen: impl Fn(i32) -> bool,
    failures: &mut Vec<String>,
) {
    let base = Tensor::from([[1.0, -2.5, 0.5, 3.0, -0.25, 1.5], [2.0, 0.75, -1.25, -3.5, 1.125, 0.375]]);
    let expected = derivatives(&base, reference).map(|t| t.to_vec::<f64>());
    for &(dtype, tolerance, exponents) in SCALES {
        // The exponents of the largest number and the smallest normal number.
        let (highest, lowest) = match dtype {
            DType::F64 => (1024, -1022),
            DType::F16 => (16, -14),
            _ => (128, -126),
        };
        for exponent in exponents.into_iter().filter(|&e| is_chosen(e)) {
            let what = format!("{name} of 2^{exponent} in {dtype}");
            let x = (&base * 2f64.powi(exponent)).to_dtype(dtype);
            let eager = derivatives(&x, call);
            let deferred = lazy(|| derivatives(&x, call));
            let mut step = capture_local(|t: &[Tensor]| derivatives(&t[0], call).to_vec(), &[&x]).unwrap();
            let results = step.launch(&[&x]).unwrap();
            let captured = [0, 1, 2].map(|k| results.to_tensor(k));
            for (mode, other) in [("deferred", &deferred), ("captured", &captured)] {
                if bits(other) != bits(&eager) {
                    failures.push(format!("{what}: other bits in a {mode} step"));
                }
            }
            for (order, (got, expected)) in eager.iter().zip(&expected).enumerate() {
                let power = exponent * (degree - order as i32);
                // Results near the ends of the range, or beyond them, are not compared.
                if power + 6 > highest || power - 6 < lowest {
                    continue;
                }
                let largest = expected.iter().fold(0.1, |m: f64, e| m.max(e.abs()));
                let errors =
                    got.to_vec::<f64>().into_iter().zip(expected).map(|(g, e)| (g * 2f64.powi(-power) - e).abs());
                let error = errors.fold(0.0, |m: f64, e| if e.is_nan() { f64::INFINITY } else { m.max(e) });
                if error > tolerance * largest {
                    failures.push(format!("{what}, order {order}: error {error:.1e}"));
                }
            }
        }
    }
}

#[test]
fn derivatives_at_all_scales() {
    let mut failures = Vec::new();
    CASES.iter().for_each(|&case| compare(case, case.2, |_| true, &mut failures));
    // A slice is scaled down only if it is long.
    let renorm: Case = ("renorm", 0, |x| x.renorm(2.0, 0, 1.0));
    compare(renorm, |x| x.normalize(2.0, -1, 0.0), |exponent| exponent > 30, &mut failures);
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Distances of pairs: some are usual, some overflow or underflow, and some are 0.
#[test]
fn distances_of_mixed_scales() {
    let scale = |k: i32| 2f64.powi(k);
    for (dtype, tolerance, [large, small]) in [(DType::F32, 1e-6, [100, -100]), (DType::F64, 1e-14, [900, -900])] {
        for width in [1, 3, 70] {
            let a: Vec<f64> = [1.0, scale(large), scale(small), 0.0, 1.5]
                .iter()
                .flat_map(|&s| (0..width).map(move |i| s * [3.0, -1.0, 2.0][i % 3]))
                .collect();
            let a = Tensor::from(a).reshape([5, width]).to_dtype(dtype);
            for p in [0.5, 2.0, 3.0, 4.0] {
                let call = |t: &[Tensor]| {
                    let [a, b] = [0, 1].map(|k| t[k].detach().requires_grad_(true));
                    let y = a.cdist(&b, p);
                    y.sum(..).backward();
                    vec![y.detach(), a.grad().unwrap(), b.grad().unwrap()]
                };
                let inputs = [&a, &a.flip(0)];
                let owned = inputs.map(Tensor::clone);
                let eager = call(&owned);
                let mut step = capture_local(call, &inputs).unwrap();
                let results = step.launch(&inputs).unwrap();
                let captured: Vec<Tensor> = (0..3).map(|k| results.to_tensor(k)).collect();
                let what = format!("order {p} of {width} in {dtype}");
                assert_eq!(bits(&captured), bits(&eager), "{what}");
                assert_eq!(bits(&lazy(|| call(&owned))), bits(&eager), "{what}");
                let differences = inputs[0].unsqueeze(1) - inputs[1].unsqueeze(0);
                let expected = differences.norm(p, -1).to_vec::<f64>();
                for (got, expected) in eager[0].to_vec::<f64>().into_iter().zip(expected) {
                    assert!((got - expected).abs() <= tolerance * expected, "{what}: {got:e}, expected {expected:e}");
                }
            }
        }
    }
}

/// Windows of zeros, small, usual and large elements in one image. A zero window has the gradient 0.
#[test]
fn lp_pools_of_mixed_windows() {
    let scale = |k: i32| 2f64.powi(k);
    for (dtype, tolerance, [large, small]) in [(DType::F32, 1e-6, [100, -100]), (DType::F64, 1e-14, [900, -900])] {
        let scales = [1.0, scale(large), 0.0, scale(small)];
        let x: Vec<f64> = (0..16).map(|i| scales[i / 4] * [3.0, 1.0, 2.0, 0.0][i % 4]).collect();
        let x = Tensor::from(x).reshape([1, 1, 16]).to_dtype(dtype);
        for p in [2.0, 3.0, 4.0, 1.5, 0.5] {
            let call = |t: &[Tensor]| derivatives(&t[0], |x| x.lp_pool1d(p, PoolOptions::new(4))).to_vec();
            let eager = call(std::slice::from_ref(&x));
            let what = format!("order {p} in {dtype}");
            assert_eq!(bits(&lazy(|| call(std::slice::from_ref(&x)))), bits(&eager), "{what}");
            let mut step = capture_local(call, &[&x]).unwrap();
            let results = step.launch(&[&x]).unwrap();
            assert_eq!(bits(&[0, 1, 2].map(|k| results.to_tensor(k))), bits(&eager), "{what}");
            let norm = [3.0f64, 1.0, 2.0].iter().map(|v| v.powf(p)).sum::<f64>().powf(1.0 / p);
            let slopes = [3.0, 1.0, 2.0, 0.0].map(|v: f64| if v == 0.0 { 0.0 } else { (v / norm).powf(p - 1.0) });
            for (window, scale) in scales.into_iter().enumerate() {
                let y = eager[0].reshape([4]).i(window as isize).item::<f64>();
                assert!((y - norm * scale).abs() <= tolerance * norm * scale, "{what}: {y:e}");
                for (k, slope) in slopes.into_iter().enumerate() {
                    let weight = [1.0, -0.5, 1.5, 0.25][window];
                    let expected = if scale == 0.0 { 0.0 } else { weight * slope };
                    let g = eager[1].reshape([16]).i((4 * window + k) as isize).item::<f64>();
                    assert!((g - expected).abs() <= 4.0 * tolerance * slope, "{what}: {g:e}, expected {expected:e}");
                }
            }
        }
    }
}

/// The power 300 of the largest element overflows, and the power of the smallest element underflows.
#[test]
fn norms_of_large_orders() {
    for dtype in [DType::F32, DType::F64] {
        for scale in [2f64.powi(-100), 1.0, 2f64.powi(100)] {
            let x = (Tensor::from([3.0, -1.5, 0.03125]) * scale).to_dtype(dtype);
            let orders: [(Function, f64, [f64; 3]); 2] =
                [(|x| x.norm(300.0, ..), 3.0, [1.0, 0.0, 0.0]), (|x| x.norm(-300.0, ..), 0.03125, [0.0, 0.0, 1.0])];
            for (call, norm, slopes) in orders {
                let [y, g, _] = derivatives(&x, call);
                assert_eq!(y.item::<f64>(), norm * scale, "{scale:e} in {dtype}");
                let g = g.to_vec::<f64>();
                assert!(g.iter().zip(slopes).all(|(g, e)| (g - e).abs() < 1e-6), "{scale:e} in {dtype}: {g:?}");
            }
        }
    }
}
