//! Derivatives at elements that are 0 or equal: of norms, distances, norm pools, deviations and losses.

use super::gradients;
use crate::support::{assert_close, leaf};
use pellucid_tensor::ops::{self, PoissonNllLossOptions, PoolOptions, Reduction};
use pellucid_tensor::{DType, GradCheckOptions, GradOptions, Result, Tensor, grad, gradgradcheck, hessian, lazy};

/// Asserts that the gradients of Σ y·weights equal the expected ones up to rounding.
fn assert_gradients<const N: usize>(y: &Tensor, weights: Tensor, leaves: [&Tensor; N], expected: [&[f64]; N]) {
    for (got, expected) in gradients(y, weights, leaves).iter().zip(expected) {
        let near = got.iter().zip(expected).all(|(a, b)| (a - b).abs() <= 1e-14);
        assert!(near && got.len() == expected.len(), "{got:?}, expected {expected:?}");
    }
}

#[test]
fn norms_of_an_element_of_zero() {
    // ‖(0, 3)‖ of order ½ is 3, and its derivative with respect to the second element is 1.
    for (p, slope) in [(0.5, 1.0), (0.9, 1.0), (1.5, 1.0), (3.0, 1.0), (4.0, 1.0), (-0.5, 0.0), (-2.0, 0.0)] {
        let x = leaf([0.0, 3.0]);
        assert_gradients(&x.norm(p, ..), Tensor::from(1.0), [&x], [&[0.0, slope]]);
        assert_gradients(&(&x * 0.0).norm(p, ..), Tensor::from(1.0), [&x], [&[0.0, 0.0]]);
    }
    let nan = leaf([f64::NAN, 3.0]);
    let [slopes] = gradients(&nan.norm(0.5, ..), Tensor::from(1.0), [&nan]);
    assert!(slopes.iter().all(|s| s.is_nan()), "{slopes:?}");
}

#[test]
fn distances_of_vectors_with_an_equal_element() {
    let (a, b) = (leaf([1.0, 3.0]), leaf([1.0, 0.0]));
    let (row, other) = (|t: &Tensor| t.reshape([1, 2]), Tensor::from([[1.0]]));
    assert_gradients(&row(&a).cdist(&row(&b), 0.5), other, [&a, &b], [&[0.0, 1.0], &[0.0, -1.0]]);
    let pairs = ops::vstack(&[&row(&a), &row(&b)]).unwrap().pdist(0.5);
    assert_gradients(&pairs, Tensor::from([1.0]), [&a, &b], [&[0.0, 1.0], &[0.0, -1.0]]);
    let distance = a.pairwise_distance(&b, 0.5, 0.0, false);
    assert_gradients(&distance, Tensor::from(1.0), [&a, &b], [&[0.0, 1.0], &[0.0, -1.0]]);
    let x = leaf([0.0, 3.0]);
    // (0, 3) / 3: the first element is x₀/3, the second 1 for every x₁.
    assert_gradients(&x.normalize(0.5, 0, 1e-12), Tensor::from([1.0, 1.0]), [&x], [&[1.0 / 3.0, 0.0]]);
    let rows = row(&x).renorm(0.5, 0, 2.0);
    let [slopes] = gradients(&rows, Tensor::from([[1.0, 1.0]]), [&x]);
    assert!(slopes.iter().all(|s| s.is_finite()) && (slopes[0] - 2.0 / 3.0).abs() < 1e-6, "{slopes:?}");
}

#[test]
fn high_derivatives_of_a_norm_by_an_element_of_zero() {
    // (t⁴ + 1)^¼ = 1 + t⁴/4 + O(t⁸); (|t|³ + 1)^⅓ = 1 + |t|³/3 + O(t⁶); (t² + 1)^½ = 1 + t²/2 − t⁴/8 + O(t⁶).
    for (p, expected) in [(4.0, [0.0, 0.0, 0.0, 6.0]), (3.0, [0.0; 4]), (2.0, [0.0, 1.0, 0.0, -3.0]), (0.5, [0.0; 4])] {
        let t = leaf([0.0]);
        let one = Tensor::from([1.0]);
        let mut y = ops::concatenate(&[&t, &one], 0).unwrap().norm(p, ..);
        for (order, expected) in expected.into_iter().enumerate() {
            let options = GradOptions { create_graph: true, ..Default::default() };
            y = grad(&[&y], &[&t], options).unwrap().remove(0).sum(..);
            assert_close(&y, &[expected]);
            assert_eq!(y.item::<f64>(), expected, "derivative {} of order {p}", order + 1);
        }
    }
}

#[test]
fn norm_pools_of_windows_of_zeros() {
    for p in [0.5, 1.0, 1.5, 2.0, 3.0, 4.0] {
        for dtype in [DType::F64, DType::F32, DType::BF16] {
            let x = Tensor::zeros([1, 1, 2, 4], dtype).requires_grad_(true);
            let [slopes] = gradients(&x.lp_pool2d(p, PoolOptions::new(2)), Tensor::ones([1, 1, 1, 2], dtype), [&x]);
            assert_eq!(slopes, [if p == 1.0 { 1.0 } else { 0.0 }; 8], "p = {p}, {dtype}");
        }
    }
    let x = leaf([0.0, 3.0]);
    let y = x.reshape([1, 1, 2]).lp_pool1d(0.5, PoolOptions::new(2));
    assert_gradients(&y, Tensor::ones([1, 1, 1], DType::F64), [&x], [&[0.0, 1.0]]);
}

#[test]
fn norm_pools_of_infinite_order() {
    let x = leaf([1.0, -5.0, 2.0, 4.0, 3.0]);
    let pooled = |p: f64| x.reshape([1, 1, 5]).lp_pool1d(p, PoolOptions { ceil: true, ..PoolOptions::new(2) });
    assert_eq!(pooled(f64::INFINITY).to_vec::<f64>(), [1.0, 4.0, 3.0]);
    assert_eq!(pooled(f64::NEG_INFINITY).to_vec::<f64>(), [-5.0, 2.0, 3.0]);
    let ones = || Tensor::ones([1, 1, 3], DType::F64);
    assert_gradients(&pooled(f64::INFINITY), ones(), [&x], [&[1.0, 0.0, 0.0, 1.0, 1.0]]);
    assert_gradients(&pooled(f64::NEG_INFINITY), ones(), [&x], [&[0.0, 1.0, 1.0, 0.0, 1.0]]);
}

#[test]
fn masked_deviation_of_equal_elements() {
    let x = leaf([2.0, 2.0, 7.0]);
    let mask = Tensor::from([true, true, false]);
    assert_gradients(&x.masked_std(&mask, ..), Tensor::from(1.0), [&x], [&[0.0; 3]]);
}

/// A loss that is smooth at a perfect prediction, or at a score of 0, has a second derivative there.
#[test]
fn smooth_losses_have_second_derivatives_at_zero() {
    type Loss = fn(&Tensor) -> Result<Tensor>;
    fn like(x: &Tensor, value: f64) -> Tensor {
        Tensor::from([value]).to_dtype(x.dtype())
    }
    const SUM: Reduction = Reduction::Sum;
    let losses: [(&str, Loss, f64); 6] = [
        ("huber_loss", |x| ops::huber_loss(x, &like(x, 0.0), 1.5, SUM), 1.0),
        ("smooth_l1_loss", |x| ops::smooth_l1_loss(x, &like(x, 0.0), 0.5, SUM), 2.0),
        ("mse_loss", |x| ops::mse_loss(x, &like(x, 0.0), SUM), 2.0),
        ("soft_margin_loss", |x| ops::soft_margin_loss(x, &like(x, 1.0), SUM), 0.25),
        (
            "binary_cross_entropy_with_logits",
            |x| ops::binary_cross_entropy_with_logits(x, &like(x, 1.0), None, None, SUM),
            0.25,
        ),
        ("poisson_nll_loss", |x| ops::poisson_nll_loss(x, &like(x, 1.0), PoissonNllLossOptions::default()), 1.0),
    ];
    for (name, loss, expected) in losses {
        for dtype in [DType::F64, DType::F32] {
            let x = Tensor::from([0.0]).to_dtype(dtype).requires_grad_(true);
            let eager = hessian(loss, &x).unwrap().1.item::<f64>();
            assert_eq!(eager, expected, "{name}, {dtype}");
            let deferred = lazy(|| hessian(loss, &x).unwrap().1);
            assert_eq!(deferred.item::<f64>(), expected, "{name}, {dtype}, deferred");
        }
        let x = Tensor::from([0.0]).requires_grad_(true);
        gradgradcheck(|x: &[Tensor]| Ok(vec![loss(&x[0])?]), &[&x], GradCheckOptions::default()).unwrap();
    }
}
