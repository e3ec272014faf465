//! NaN, infinities and values near the ends of their range follow IEEE 754, C99 and PyTorch.

use crate::support::{bits, leaf};
use pellucid_tensor::ops::{CovOptions, PoissonNllLossOptions, QuantileInterpolation, Reduction, ScatterReduceOp};
use pellucid_tensor::{DType, Generator, GradOptions, Tensor, capture, formula, grad_one, ops};

const NAN: f64 = f64::NAN;
const INF: f64 = f64::INFINITY;

#[track_caller]
fn assert_same(got: &Tensor, expected: &[f64]) {
    let got = got.to_vec::<f64>();
    // Zeros are compared with their signs.
    let same = |a: f64, b: f64| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
    assert!(
        got.len() == expected.len() && got.iter().zip(expected).all(|(&a, &b)| same(a, b)),
        "got {got:?}, expected {expected:?}"
    );
}

#[test]
fn nan_is_the_largest_everywhere() {
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        // A short row that is sorted completely, and a long one from which a few elements are selected.
        for len in [3usize, 40] {
            let mut numbers = vec![1.0, NAN, 3.0];
            numbers.resize(len, 0.5);
            let x = Tensor::new(numbers, [len]).to_dtype(dtype);
            let (values, positions) = x.topk(2, 0, true);
            assert_same(&values.to_dtype(DType::F64), &[NAN, 3.0]);
            assert_eq!(positions.to_vec::<i64>(), [1, 2]);
            assert!(!x.topk(len - 1, 0, false).0.isnan().any(..).item::<bool>());
            assert_eq!(x.argsort(0, true).i(0).item::<i64>(), 1);
            assert_eq!(x.argsort(0, false).i(-1).item::<i64>(), 1);
            assert!(x.sort(0, true).0.i(0).item::<f64>().is_nan() && x.sort(0, false).0.i(-1).item::<f64>().is_nan());
            assert!(x.kthvalue(len, 0).0.item::<f64>().is_nan() && x.median(..).0.item::<f64>().is_nan());
            assert!(x.max(..).item::<f64>().is_nan() && x.min(..).item::<f64>().is_nan());
            assert_eq!((x.argmax(..).item::<i64>(), x.argmin(..).item::<i64>()), (1, 1));
            assert!(x.cummax(0).0.i(-1).item::<f64>().is_nan() && x.cummin(0).0.i(-1).item::<f64>().is_nan());
            let infinite = Tensor::from([INF, NAN, -INF]).to_dtype(dtype);
            assert_eq!(infinite.argsort(0, true).to_vec::<i64>(), [1, 0, 2]);
            assert_eq!(infinite.argsort(0, false).to_vec::<i64>(), [2, 0, 1]);
        }
    }
    // Several NaNs keep their order in both directions.
    let x = Tensor::from([NAN, 2.0, NAN, 1.0]);
    assert_eq!(x.argsort(0, true).to_vec::<i64>(), [0, 2, 1, 3]);
    assert_eq!(x.argsort(0, false).to_vec::<i64>(), [3, 1, 0, 2]);
}

/// The identity of a reduction replaces elements that are not selected. They have no share of the gradient if the
/// selected elements are the identity, too.
#[test]
fn selected_elements_that_equal_the_identity_have_the_whole_gradient() {
    type MaskedReduction = fn(&Tensor, &Tensor) -> Tensor;
    type NanReduction = fn(&Tensor) -> Tensor;
    let by_mask: [(f64, MaskedReduction); 3] = [
        (-INF, |x, mask| ops::masked_max(x, mask, ..).unwrap()),
        (INF, |x, mask| ops::masked_min(x, mask, ..).unwrap()),
        (INF, |x, mask| ops::masked_norm(x, mask, -INF, ..).unwrap()),
    ];
    for (identity, reduce) in by_mask {
        for (mask, gradient) in [([false, true, false], [0.0, 1.0, 0.0]), ([false, true, true], [0.0, 0.5, 0.5])] {
            let x = leaf([5.0, identity, identity]);
            let y = reduce(&x, &Tensor::from(mask));
            assert_same(&y.detach(), &[identity]);
            y.backward();
            assert_same(&x.grad().unwrap(), &gradient);
        }
        let x = leaf([5.0, identity, 1.0]);
        reduce(&x, &Tensor::from([false; 3])).backward();
        assert_same(&x.grad().unwrap(), &[0.0; 3]);
    }
    let by_nan: [(f64, NanReduction); 2] = [(-INF, |x| x.nanmax(..)), (INF, |x| x.nanmin(..))];
    for (identity, reduce) in by_nan {
        let x = leaf([NAN, identity, NAN]);
        reduce(&x).backward();
        assert_same(&x.grad().unwrap(), &[0.0, 1.0, 0.0]);
        let x = leaf([NAN; 3]);
        reduce(&x).backward();
        assert_same(&x.grad().unwrap(), &[0.0; 3]);
    }
    for (identity, reduce) in [(-INF, ScatterReduceOp::Max), (INF, ScatterReduceOp::Min)] {
        for (include_self, gradients) in [(false, [[0.0, 1.0], [1.0, 0.0]]), (true, [[0.5, 1.0], [0.5, 0.0]])] {
            let (x, values) = (leaf([identity, 2.0]), leaf([identity, 3.0]));
            let index = Tensor::from([0i64]);
            let y = ops::scatter_reduce(&x, 0, &index, &values, reduce, include_self).unwrap();
            y.sum(..).backward();
            assert_same(&x.grad().unwrap(), &gradients[0]);
            assert_same(&values.grad().unwrap(), &gradients[1]);
        }
    }
}

#[test]
fn every_one_of_many_classes_is_drawn_with_its_probability() {
    let _random = Generator::new(4).scope();
    // In f32, a uniform value is a multiple of 2⁻²⁴: every second of 2²⁵ equal classes would never be drawn.
    let drawn = Tensor::ones([1 << 25], DType::F32).multinomial(4000, true).to_vec::<i64>();
    let odd = drawn.iter().filter(|class| *class % 2 == 1).count();
    assert!((1800..2200).contains(&odd), "{odd}");
}

#[test]
fn ranks_and_bins_above_2_to_the_24_are_exact() {
    let n = (1 << 24) + 4;
    let x = Tensor::arange(0, n, 1).to_dtype(DType::F32);
    let quantiles = x.quantile(Tensor::from([1.0f32, 0.5]), .., QuantileInterpolation::Higher);
    assert_eq!(quantiles.to_vec::<f32>(), [(n - 1) as f32, (n / 2) as f32]);
    let bins = 1 << 25;
    let counts = Tensor::from([0.0f32, 1.0]).histc(bins, 0.0, 1.0);
    assert_eq!([0, -1].map(|end| counts.select(0, end).item::<f32>()), [1.0, 1.0]);
}

#[test]
fn a_selection_between_equal_values_is_the_value() {
    let x = Tensor::arange(0, 100, 1).to_dtype(DType::F32);
    let same = formula!(|x, y| {
        let v = x * 2.0 + y;
        x.lt(y).select(v, v) - y
    });
    let y = Tensor::full([100], 50.0, DType::F32);
    let values = ops::map(same, &[&x, &y], &[]).unwrap();
    assert_eq!(values.to_vec::<f32>(), (0..100).map(|k| 2.0 * k as f32).collect::<Vec<_>>());
}

#[test]
fn classes_without_weight_are_never_drawn() {
    let _random = Generator::new(3).scope();
    // The least positive numbers: a product with a uniform value rounds to 0 or to the number.
    for (dtype, least) in [(DType::F32, f64::from(f32::from_bits(1))), (DType::F64, f64::from_bits(1))] {
        let weights = Tensor::from([[least, 0.0], [0.0, least]]).to_dtype(dtype);
        let drawn = weights.multinomial(500, true);
        assert!(drawn.eq(Tensor::from([[0i64], [1]])).all(..).item::<bool>(), "{dtype}");
        let weights = Tensor::from([0.0, least, 1.0, 0.0]).to_dtype(dtype);
        for _ in 0..50 {
            assert_eq!(weights.multinomial(2, false).to_vec::<i64>(), [2, 1], "{dtype}");
        }
    }
}

#[test]
fn bounds_that_are_nan_give_nan() {
    let x = Tensor::from([-1.0, 0.5, 2.0]);
    for (low, high) in [(NAN, 1.0), (0.0, NAN), (NAN, NAN)] {
        assert_same(&x.clamp(low, high), &[NAN; 3]);
        assert_same(&x.hardtanh(low, high), &[NAN; 3]);
        let x = leaf([-1.0, 0.5, 2.0]);
        x.clamp(low, high).sum(..).backward();
        assert_same(&x.grad().unwrap(), &[0.0; 3]);
        let integers = Tensor::from([1i32, 2]).clamp(low, high);
        assert!(integers.dtype().is_float() && integers.isnan().all(..).item::<bool>());
    }
    assert_same(&Tensor::from([NAN, -2.0, 3.0]).clamp(-1.0, 1.0), &[NAN, -1.0, 1.0]);
    assert_same(&Tensor::from([NAN, -2.0, 8.0]).relu6(), &[NAN, 0.0, 6.0]);
    assert_same(&Tensor::from([NAN, 1.0]).maximum(Tensor::from([1.0, NAN])), &[NAN; 2]);
    assert_same(&Tensor::from([NAN, 1.0]).minimum(NAN), &[NAN; 2]);
    assert_same(&Tensor::from([NAN, 1.0, NAN]).fmax(Tensor::from([1.0, NAN, NAN])), &[1.0, 1.0, NAN]);
    assert_same(&Tensor::from([NAN, 1.0, NAN]).fmin(Tensor::from([1.0, NAN, NAN])), &[1.0, 1.0, NAN]);
}

/// a, b, ⌊a/b⌋, the remainder of b's sign, the remainder of a's sign (Python, NumPy, C).
const DIVISIONS: [[f64; 5]; 16] = [
    [7.0, 2.0, 3.0, 1.0, 1.0],
    [-7.0, 2.0, -4.0, 1.0, -1.0],
    [7.0, -2.0, -4.0, -1.0, 1.0],
    [-4.0, 2.0, -2.0, 0.0, -0.0],
    [4.0, -2.0, -2.0, -0.0, 0.0],
    [0.0, 2.0, 0.0, 0.0, 0.0],
    [-0.0, 2.0, -0.0, 0.0, -0.0],
    [5.0, 0.0, INF, NAN, NAN],
    [-5.0, 0.0, -INF, NAN, NAN],
    [0.0, 0.0, NAN, NAN, NAN],
    [INF, 1.0, NAN, NAN, NAN],
    [-INF, -2.0, NAN, NAN, NAN],
    [INF, INF, NAN, NAN, NAN],
    [5.0, INF, 0.0, 5.0, 5.0],
    [-5.0, INF, -1.0, INF, -5.0],
    [NAN, 1.0, NAN, NAN, NAN],
];

#[test]
fn floor_division_agrees_with_python() {
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        let column = |k: usize| DIVISIONS.map(|d| d[k]);
        let (a, b) = (Tensor::from(column(0)).to_dtype(dtype), Tensor::from(column(1)).to_dtype(dtype));
        let wide = |t: Tensor| t.to_dtype(DType::F64);
        assert_same(&wide(a.floor_div(&b)), &column(2));
        assert_same(&wide(a.rem(&b)), &column(3));
        assert_same(&wide(a.fmod(&b)), &column(4));
    }
    for dtype in [DType::I8, DType::I16, DType::I32, DType::I64] {
        let least = Tensor::full([1], 1, dtype).mul(if dtype == DType::I64 {
            i64::MIN
        } else {
            -(1 << (8 * dtype.size() - 1))
        });
        let minus = Tensor::full([1], -1, dtype);
        assert_eq!(
            least.floor_div(&minus).to_vec::<i64>(),
            least.to_vec::<i64>(),
            "{dtype}: the quotient of the least integer by -1 must wrap"
        );
        assert_eq!(least.rem(&minus).to_vec::<i64>(), [0]);
        assert_eq!(least.fmod(&minus).to_vec::<i64>(), [0]);
        let zero = Tensor::zeros([1], dtype);
        for y in [minus.floor_div(&zero), minus.rem(&zero), minus.fmod(&zero)] {
            assert_eq!(y.to_vec::<i64>(), [0], "{dtype}");
        }
        assert_eq!(minus.fmod(3).to_vec::<i64>(), [-1]);
    }
}

#[test]
fn hypot_neither_overflows_nor_underflows() {
    let cases = [
        [3.0, 4.0, 5.0],
        [3e30, -4e30, 5e30],
        [3e-30, 4e-30, 5e-30],
        [1e38, 1e-38, 1e38],
        [1e-40, 0.0, 1e-40],
        [0.0, -0.0, 0.0],
        [3e19, 4e-19, 3e19],
    ];
    let of = |k: usize| cases.map(|c| c[k]);
    for dtype in [DType::F32, DType::F64] {
        let (a, b) = (Tensor::from(of(0)).to_dtype(dtype), Tensor::from(of(1)).to_dtype(dtype));
        for y in [a.hypot(&b), b.hypot(&a)] {
            for (y, c) in y.to_vec::<f64>().into_iter().zip(of(2)) {
                assert!((y - c).abs() <= 3e-7 * c + 2e-45, "{dtype}: {y} {c}");
            }
        }
    }
    let (a, b) = (Tensor::from([3e200, 1e308, 5e-324, 4e-200]), Tensor::from([4e200, 1e308, 0.0, 3e-200]));
    for (y, c) in a.hypot(&b).to_vec::<f64>().into_iter().zip([5e200, 2f64.sqrt() * 1e308, 5e-324, 5e-200]) {
        assert!((y - c).abs() <= 4e-16 * c, "{y} {c}");
    }
    // An infinite argument wins over NaN (C99 F.10.4.3).
    let (a, b) = (Tensor::from([INF, NAN, -INF, NAN, 1.0]), Tensor::from([NAN, -INF, INF, 1.0, NAN]));
    assert_same(&a.hypot(&b), &[INF, INF, INF, NAN, NAN]);
    let half = Tensor::from([30000.0, 1e-7]).to_dtype(DType::F16);
    assert_eq!(half.hypot(&half).to_vec::<f64>(), [42432.0, 3.0 * 2f64.powi(-24)]);
    // The gradient is side/hypotenuse for sides of any size.
    let (a, b) = (leaf([3e200, 3e-200, 0.0, 5.0]), leaf([4e200, 4e-200, 0.0, 0.0]));
    a.hypot(&b).sum(..).backward();
    for (g, share) in [(a.grad().unwrap(), [0.6, 0.6, 0.0, 1.0]), (b.grad().unwrap(), [0.8, 0.8, 0.0, 0.0])] {
        for (g, share) in g.to_vec::<f64>().into_iter().zip(share) {
            assert!((g - share).abs() < 1e-15, "{g} {share}");
        }
    }
}

/// A running sum is accumulated in more bits than the result stores, in both memory layouts.
#[test]
fn running_sums_accumulate_beyond_the_precision_of_the_result() {
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        let (start, ones) = if dtype == DType::F16 { (2048.0, 2048) } else { (16777216.0, 1 << 18) };
        let start = Tensor::full([1], start, dtype);
        let x = ops::concatenate(&[&start, &Tensor::ones([ones], dtype)], 0).unwrap();
        let expected = start.item::<f64>() + ones as f64;
        assert_eq!(x.cumsum(0).i(-1).item::<f64>(), expected, "{dtype}");
        let columns = ops::stack(&[&x, &x, &x], 1).unwrap();
        assert_eq!(columns.cumsum(0).i(-1).to_vec::<f64>(), [expected; 3], "{dtype}");
        let mut step = capture(|x| x[0].cumsum(0), &[&columns]).unwrap();
        let launched = step.launch(&[&columns]).unwrap().to_tensor(0);
        assert_eq!(bits(&[launched]), bits(&[columns.cumsum(0)]), "{dtype}");
    }
    let x = Tensor::from([1e30f32, 1e30, 1e-30]);
    assert_eq!(x.cumprod(0).to_vec::<f32>(), [1e30, f32::INFINITY, 1e30]);
    let few = ops::concatenate(&[&Tensor::from([16.635532f32]), &Tensor::zeros([100_000], DType::F32)], 0).unwrap();
    let (got, exact) = (few.logcumsumexp(0).i(-1).item::<f64>(), (16.635532f32 as f64).exp() + 1e5);
    assert!((got - exact.ln()).abs() < 4e-6, "{got} {}", exact.ln());
}

#[test]
fn losses_at_the_ends_of_their_parameters() {
    let first = |call: &dyn Fn(&Tensor) -> Tensor, x: f64, dtype: DType| {
        let x = Tensor::from(x).to_dtype(dtype).requires_grad_(true);
        let y = call(&x);
        let gradient = grad_one(&y, &x, Default::default()).unwrap();
        [y.item::<f64>(), gradient.item::<f64>()]
    };
    let check = |what: &str, [value, slope]: [f64; 2], expected: [f64; 2]| {
        for (got, expected) in [value, slope].into_iter().zip(expected) {
            let is_near = got == expected || (got - expected).abs() <= 1e-5 * expected.abs();
            assert!(is_near, "{what}: {value:e} and slope {slope:e}, expected {expected:e}");
        }
    };
    for dtype in [DType::F32, DType::F64] {
        let number = |value: f64| Tensor::from(value).to_dtype(dtype);
        let zero = &number(0.0);
        for x in [-3.0, 0.0, 2.0, 1e10] {
            let huber = |x: &Tensor| x.huber_loss(zero, INF, Reduction::Sum);
            check("huber_loss", first(&huber, x, dtype), [0.5 * x * x, x]);
            check("huber_loss at infinity", first(&huber, INF, dtype), [INF; 2]);
            let smooth = |x: &Tensor| x.smooth_l1_loss(zero, INF, Reduction::Sum);
            check("smooth_l1_loss", first(&smooth, x, dtype), [0.0, 0.0]);
        }
        for (x, beta) in [(1e20, 1e30), (-1e37, 3e38), (1e-20, 1e-30), (1e-30, 1e-20), (2e-30, 1e-30)] {
            let smooth = |x: &Tensor| x.smooth_l1_loss(zero, beta, Reduction::Sum);
            let expected = if f64::abs(x) < beta { [0.5 * x * (x / beta), x / beta] } else { [x - 0.5 * beta, 1.0] };
            check(&format!("smooth_l1_loss of {x:e}, {beta:e}"), first(&smooth, x, dtype), expected);
        }
        // In `f32` β is 0, and must not divide.
        let x = leaf([0.5, -2.0]).to_dtype(dtype);
        let options = GradOptions { create_graph: true, ..Default::default() };
        let slope = grad_one(&x.smooth_l1_loss(zero, 1e-60, Reduction::Sum), &x, options).unwrap();
        let second = grad_one(&slope.sum(..), &x, Default::default()).unwrap();
        assert_eq!((slope.to_vec::<f64>(), second.to_vec::<f64>()), (vec![1.0, -1.0], vec![0.0, 0.0]));
        // Probabilities of 0 on both sides.
        for x in [-1.5, -INF] {
            let certain = |x: &Tensor| x.kl_div(&number(-INF), true, Reduction::Sum);
            check("kl_div of logarithms", first(&certain, x, dtype), [0.0, 0.0]);
            let certain = |x: &Tensor| x.kl_div(zero, false, Reduction::Sum);
            check("kl_div", first(&certain, x, dtype), [0.0, 0.0]);
            let of_target = |t: &Tensor| number(x).kl_div(t, true, Reduction::Sum);
            check("kl_div by logarithms of targets", first(&of_target, -INF, dtype), [0.0, 0.0]);
        }
        let rates = PoissonNllLossOptions { log_input: false, eps: 0.0, ..Default::default() };
        check("poisson_nll_loss", first(&|x| x.poisson_nll_loss(zero, rates), 0.0, dtype), [0.0, 1.0]);
        check("poisson_nll_loss", first(&|x| x.poisson_nll_loss(zero, rates), INF, dtype), [INF, 1.0]);
        let of_zero = |x: &Tensor| x.poisson_nll_loss(zero, PoissonNllLossOptions::default());
        check("poisson_nll_loss of logarithms", first(&of_zero, -INF, dtype), [0.0, 0.0]);
        let logarithms = |x: &Tensor| x.poisson_nll_loss(&number(3.5), PoissonNllLossOptions::default());
        let largest = if dtype == DType::F64 { 1e308 } else { 2e38 };
        check("poisson_nll_loss of logarithms", first(&logarithms, largest, dtype), [INF; 2]);
    }
}

/// g·x overflows where the derivative is g or 0.
#[test]
fn gradients_of_gated_activations_at_large_magnitudes() {
    type Call = fn(&Tensor) -> Tensor;
    let calls: [(&str, Call); 5] = [
        ("silu", Tensor::silu),
        ("gelu", Tensor::gelu),
        ("gelu_tanh", Tensor::gelu_tanh),
        ("mish", Tensor::mish),
        ("hardswish", Tensor::hardswish),
    ];
    for (name, call) in calls {
        for (dtype, large) in [(DType::F32, 3e38), (DType::F64, 1.7e308)] {
            for g in [1.0, 2.0, 1e10] {
                let x = Tensor::from([large, -large, 1e30, -1e30]).to_dtype(dtype).requires_grad_(true);
                let incoming = Tensor::from(g).to_dtype(dtype).broadcast_to([4]);
                let options =
                    GradOptions { grad_outputs: vec![Some(incoming)], create_graph: true, ..Default::default() };
                let first = grad_one(&call(&x), &x, options).unwrap();
                let second = grad_one(&first.sum(..), &x, Default::default()).unwrap();
                let expected = Tensor::from([g, 0.0, g, 0.0]).to_dtype(dtype);
                assert!(first.eq(&expected).all(..).item::<bool>(), "{name}, {dtype}, {g}: {first}");
                assert!(second.eq(0.0).all(..).item::<bool>(), "{name}, {dtype}, {g}: {second}");
            }
        }
    }
    let x = leaf([INF, -INF, 3.0, -3.0]);
    let gradient = grad_one(&x.hardswish().sum(..), &x, Default::default()).unwrap();
    assert_eq!(gradient.to_vec::<f64>(), [1.0, 0.0, 1.0, 0.0]);
}

/// Powers of the points overflow or underflow, but the coefficients do not.
#[test]
fn polynomials_of_large_and_small_points() {
    let (points, y) = (Tensor::from([1.0, 2.0, 3.0, 4.0, 6.0]), Tensor::from([1.0, 3.0, 2.0, 5.0, 4.0]));
    for (dtype, tolerance, exponents) in [(DType::F32, 1e-4, [-40, 60, 100]), (DType::F64, 1e-11, [-300, 400, 900])] {
        for exponent in exponents {
            for degree in 1..=3 {
                let fit = |points: &Tensor| {
                    let x = points.detach().requires_grad_(true);
                    let c = x.polyfit(&y.to_dtype(x.dtype()), degree);
                    let slope = grad_one(&c.i(degree as isize), &x, Default::default()).unwrap();
                    (c.to_vec::<f64>(), slope.to_vec::<f64>())
                };
                let (expected, expected_slope) = fit(&points);
                let (found, slope) = fit(&(&points * 2f64.powi(exponent)).to_dtype(dtype));
                for (k, (found, expected)) in found.iter().zip(expected).enumerate() {
                    let power = exponent * (k as i32 - degree as i32);
                    let (highest, lowest) = if dtype == DType::F64 { (1020, -1020) } else { (124, -122) };
                    if (lowest..=highest).contains(&power) {
                        let error = (found * 2f64.powi(-power) - expected).abs();
                        assert!(
                            error <= tolerance * expected.abs(),
                            "{dtype}, 2^{exponent}, degree {degree}: {found:e}"
                        );
                    }
                }
                for (found, expected) in slope.iter().zip(expected_slope) {
                    let error = (found * 2f64.powi(exponent) - expected).abs();
                    let is_near = exponent > 100 || error <= 30.0 * tolerance;
                    assert!(is_near, "{dtype}, 2^{exponent}, degree {degree}: slope {found:e}, expected {expected:e}");
                }
            }
        }
    }
}

#[test]
fn covariances_without_freedom_are_sums_divided_by_zero() {
    let x = Tensor::from([1.0, 2.0, 3.0]);
    for correction in [3.0, 4.0] {
        let y = ops::cov(&x, CovOptions { correction, ..Default::default() }).unwrap();
        assert_eq!(y.item::<f64>(), INF); // 2 / 0
    }
    let constant = ops::cov(&Tensor::from([2.0, 2.0]), CovOptions { correction: 2.0, ..Default::default() }).unwrap();
    assert_same(&constant, &[NAN]);
    let none = Tensor::zeros([2, 0], DType::F64);
    assert_same(&ops::cov(&none, CovOptions::default()).unwrap().ravel(), &[NAN; 4]);
    assert_same(&ops::corrcoef(&none).unwrap().ravel(), &[NAN; 4]);
    assert_same(&ops::corrcoef(&Tensor::zeros([0], DType::F64)).unwrap(), &[NAN]);
    // The result overflows only if the covariance does.
    let large = ops::cov(&Tensor::from([1e200, -1e200]), CovOptions { correction: -1e200, ..Default::default() });
    assert!((large.unwrap().item::<f64>() / 2e200 - 1.0).abs() < 1e-15);
}
