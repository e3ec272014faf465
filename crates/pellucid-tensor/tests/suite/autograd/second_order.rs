//! Gradients of gradients.

use crate::support::{assert_close, leaf, number, slope};
use pellucid_tensor::{BackwardOptions, DType, GradOptions, Tensor, grad, ops};

fn recorded() -> BackwardOptions {
    BackwardOptions { create_graph: true, ..Default::default() }
}

/// sin, cos, −sin, −cos, sin: the derivatives of the sine at 1.
fn derivatives() -> [f64; 5] {
    let (s, c) = 1f64.sin_cos();
    [s, c, -s, -c, s]
}

#[test]
fn the_sine_at_1_in_four_orders() {
    let x = number(1.0);
    let mut y = x.sin();
    assert!((y.item::<f64>() - 0.841_470_984_807_896_5).abs() < 1e-15);
    for expected in &derivatives()[1..] {
        x.zero_grad();
        y.backward_with(recorded());
        y = x.grad().unwrap();
        assert!((y.item::<f64>() - expected).abs() < 1e-15);
    }
}

/// Without `zero_grad`, each pass adds the derivative of the gradient to it: y₁ = cos x, then y₂ = y₁ + y₁′, and so on.
#[test]
fn without_zero_grad_the_orders_accumulate() {
    let x = number(1.0);
    let mut y = x.sin();
    // The gradient as a sum of derivatives of the sine: entry k is the coefficient of the k-th derivative.
    let mut sum = [0.0, 1.0, 0.0, 0.0, 0.0];
    for order in 1..=4 {
        y.backward_with(recorded());
        y = x.grad().unwrap();
        let expected: f64 = sum.iter().zip(derivatives()).map(|(c, d)| c * d).sum();
        assert!(
            (y.item::<f64>() - expected).abs() < 1e-14,
            "order {order}: got {}, expected {expected}",
            y.item::<f64>()
        );
        let shifted: Vec<f64> = std::iter::once(0.0).chain(sum).take(5).collect();
        sum.iter_mut().zip(shifted).for_each(|(s, d)| *s += d);
    }
}

#[test]
fn sine_of_a_square() {
    let x = number(2.0);
    let y = x.square().sin();
    assert!((y.item::<f64>() + 0.756_802_495_307_928_2).abs() < 1e-15);
    y.backward_with(recorded());
    let first = x.grad().unwrap();
    assert!((first.item::<f64>() - 4.0 * 4f64.cos()).abs() < 1e-14);
    x.zero_grad();
    first.backward();
    assert!((slope(&x) - (2.0 * 4f64.cos() - 16.0 * 4f64.sin())).abs() < 1e-13);
}

#[test]
fn high_derivatives_of_a_polynomial_are_zero() {
    let x = number(2.0);
    let mut y = x.pow(3.0);
    for expected in [12.0, 12.0, 6.0] {
        y = grad(&[&y], &[&x], GradOptions { create_graph: true, ..Default::default() }).unwrap().remove(0);
        assert_eq!(y.item::<f64>(), expected);
    }
    if y.requires_grad() {
        assert_eq!(grad(&[&y], &[&x], GradOptions::default()).unwrap()[0].item::<f64>(), 0.0);
    }
}

/// A gradient penalty: the loss depends on the norm of the gradient.
#[test]
fn a_gradient_penalty_is_differentiable() {
    let (x, w) = (leaf([1.0, 2.0]), leaf([0.3, -0.7]));
    let y = (&x * &w).sum(..).tanh();
    let g = grad(&[&y], &[&x], GradOptions { create_graph: true, ..Default::default() }).unwrap().remove(0);
    let penalty = g.square().sum(..);
    penalty.backward();
    // |g|² = (1 − t²)²·|w|², t = tanh(w·x)
    let (xs, ws) = ([1.0, 2.0], [0.3, -0.7f64]);
    let t = (xs[0] * ws[0] + xs[1] * ws[1]).tanh();
    let (s, n) = (1.0 - t * t, ws[0] * ws[0] + ws[1] * ws[1]);
    let expected = |i: usize| 2.0 * s * (-2.0 * t * s) * xs[i] * n + 2.0 * s * s * ws[i];
    assert_close(&w.grad().unwrap(), &[expected(0), expected(1)]);
}

/// Operations that known frameworks detach silently. Each has a second derivative that is not zero.
#[test]
fn no_composite_operation_drops_the_second_order() {
    type Loss = fn(&Tensor) -> Tensor;
    let losses: [(&str, Loss); 8] = [
        ("softmax", |x| x.softmax(-1).square().sum(..)),
        ("log_softmax", |x| x.log_softmax(-1).square().sum(..)),
        ("layer_norm", |x| x.layer_norm(3, None, None, 1e-3).pow(3.0).sum(..)),
        ("rms_norm", |x| x.rms_norm(3, None, 1e-3).pow(3.0).sum(..)),
        ("cross_entropy", |x| x.cross_entropy(&Tensor::from([2i64, 0]), ops::CrossEntropyOptions::default())),
        ("variance", |x| x.var(0).square().sum(..)),
        ("broadcast", |x| (x.sum(1) * x.t()).square().sum(..)),
        ("matmul", |x| x.matmul(&x.t()).square().sum(..)),
    ];
    for (name, loss) in losses {
        let x = Tensor::from([[0.3, -1.2, 0.8], [1.1, 0.4, -0.5]]).requires_grad_(true);
        loss(&x).backward_with(recorded());
        let first = x.grad().unwrap();
        assert!(first.requires_grad(), "{name}: the first gradient must require a gradient");
        x.zero_grad();
        first.square().sum(..).backward();
        let second = x.grad().unwrap().to_vec::<f64>();
        assert!(second.iter().any(|v| v.abs() > 1e-3), "{name}: the second derivative must not be 0, got {second:?}");
        // Compared with central differences of |∇|².
        let energy = |x: &Tensor| {
            let x = x.detach().requires_grad_(true);
            grad(&[&loss(&x)], &[&x], GradOptions::default()).unwrap()[0].square().sum(..).item::<f64>()
        };
        for (i, got) in second.iter().enumerate() {
            let step = |h: f64| {
                let mut values = x.to_vec::<f64>();
                values[i] += h;
                energy(&Tensor::new(values, [2, 3]))
            };
            let expected = (step(1e-6) - step(-1e-6)) / 2e-6;
            assert!(
                (got - expected).abs() < 1e-5 + 1e-4 * expected.abs(),
                "{name}, element {i}: got {got}, expected {expected}"
            );
        }
    }
}

#[test]
fn an_accumulated_gradient_is_part_of_the_graph() {
    let x = number(2.0);
    x.pow(2.0).backward_with(recorded());
    x.pow(3.0).backward_with(recorded());
    let sum = x.grad().unwrap();
    assert_eq!(sum.item::<f64>(), 4.0 + 12.0);
    x.zero_grad();
    sum.backward();
    assert_eq!(slope(&x), 2.0 + 12.0);
}

#[test]
fn narrow_dtypes_have_second_derivatives_too() {
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        let x = Tensor::full([2], 2.0, dtype).requires_grad_(true);
        x.cube().backward_with(recorded());
        let first = x.grad().unwrap();
        x.zero_grad();
        first.backward();
        assert_eq!((x.grad().unwrap().dtype(), x.grad().unwrap().to_vec::<f64>()), (dtype, vec![12.0, 12.0]));
    }
}
