//! Derivatives of high order: closed forms, derivatives that vanish above some order, and formulas of many inputs.

use crate::support::{assert_close, leaf, number};
use pellucid_ir::formula::{Expr, Input};
use pellucid_tensor::{BackwardOptions, DType, Error, Formula, GradOptions, Result, Tensor, grad, manual_seed, ops};

fn recorded() -> GradOptions {
    GradOptions { create_graph: true, ..Default::default() }
}

/// Returns the derivatives of f at x of orders 0 to `order`, elementwise.
fn derivatives(f: impl Fn(&Tensor) -> Tensor, x: &Tensor, order: usize) -> Vec<Tensor> {
    let mut all = vec![f(x)];
    for _ in 0..order {
        let next = grad(&[all.last().unwrap()], &[x], recorded()).unwrap().remove(0);
        all.push(next);
    }
    all
}

fn assert_relatively_close(got: &Tensor, expected: &[f64], tolerance: f64, what: &str) {
    for (a, b) in got.to_vec::<f64>().iter().zip(expected) {
        assert!((a - b).abs() <= tolerance * b.abs().max(1.0), "{what}: got {a}, expected {b}");
    }
}

/// Returns n! as `f64`.
fn factorial(n: usize) -> f64 {
    (1..=n).map(|i| i as f64).product()
}

/// x/(1 + x²) = Re 1/(x − i), so its n-th derivative is (−1)ⁿ·n!·Re (x − i)⁻⁽ⁿ⁺¹⁾.
#[test]
fn a_rational_function_in_twelve_orders() {
    let xs = [-1.5, -0.3, 0.05, 0.4, 1.0, 2.5];
    let x = leaf(xs);
    let all = derivatives(|x| x / (x * x + 1.0), &x, 8);
    let formula = pellucid_tensor::formula!(|x| x / (1 + x * x));
    let fused = derivatives(|x| ops::map(formula, &[x], &[]).unwrap(), &x, 12);
    for n in 0..=12 {
        let exact = xs.map(|x: f64| {
            // x − i in polar coordinates.
            let (radius, angle) = (x.hypot(1.0), (-1f64).atan2(x));
            let power = -(n as f64 + 1.0);
            (-1f64).powi(n as i32) * factorial(n) * radius.powf(power) * (angle * power).cos()
        });
        assert_relatively_close(&fused[n], &exact, 1e-9, &format!("order {n}, one formula"));
        if n < all.len() {
            assert_relatively_close(&all[n], &exact, 1e-9, &format!("order {n}"));
        }
    }
}

/// The n-th derivative of exp(−x²) is (−1)ⁿ·Hₙ(x)·exp(−x²), with Hₙ₊₁ = 2x·Hₙ − 2n·Hₙ₋₁.
#[test]
fn the_gaussian_by_hermite_polynomials() {
    let xs = [-2.0, -0.5, 0.1, 1.0, 1.7];
    let all = derivatives(|x| (-x.square()).exp(), &leaf(xs), 12);
    for (n, got) in all.iter().enumerate() {
        let exact = xs.map(|x: f64| {
            let (mut below, mut here) = (0.0, 1.0);
            for k in 0..n {
                (below, here) = (here, 2.0 * x * here - 2.0 * k as f64 * below);
            }
            (-1f64).powi(n as i32) * here * (-x * x).exp()
        });
        assert_relatively_close(got, &exact, 1e-8, &format!("order {n}"));
    }
}

/// The derivatives of ln x, √x, sin x, eˣ and x^2.5 equal their closed forms.
#[test]
fn closed_forms_in_twelve_orders() {
    let xs = [0.5, 1.0, 2.0, 3.5];
    let falling = |p: f64, n: usize| (0..n).map(|k| p - k as f64).product::<f64>();
    type Case = (&'static str, fn(&Tensor) -> Tensor, Box<dyn Fn(f64, usize) -> f64>);
    let cases: [Case; 5] = [
        ("exp", |x| x.exp(), Box::new(|x, _| x.exp())),
        ("sin", |x| x.sin(), Box::new(|x, n| (x + n as f64 * std::f64::consts::FRAC_PI_2).sin())),
        (
            "ln",
            |x| x.ln(),
            Box::new(|x, n| match n {
                0 => x.ln(),
                _ => -(-1f64).powi(n as i32) * factorial(n - 1) / x.powi(n as i32),
            }),
        ),
        ("sqrt", |x| x.sqrt(), Box::new(move |x, n| falling(0.5, n) * x.powf(0.5 - n as f64))),
        ("pow", |x| x.pow(2.5), Box::new(move |x, n| falling(2.5, n) * x.powf(2.5 - n as f64))),
    ];
    for (name, f, exact) in cases {
        for (n, got) in derivatives(f, &leaf(xs), 12).iter().enumerate() {
            assert_relatively_close(got, &xs.map(|x| exact(x, n)), 1e-9, &format!("{name}, order {n}"));
        }
    }
}

/// tanh satisfies y' = 1 − y², so its Taylor coefficients follow from a recurrence.
#[test]
fn tanh_in_twelve_orders() {
    for x in [-0.7, 0.2, 1.3] {
        let mut c = vec![f64::tanh(x)];
        for n in 0..12 {
            let product: f64 = (0..=n).map(|k| c[k] * c[n - k]).sum();
            c.push((f64::from(u8::from(n == 0)) - product) / (n as f64 + 1.0));
        }
        for (n, got) in derivatives(|x| x.tanh(), &number(x), 12).iter().enumerate() {
            assert_relatively_close(got, &[c[n] * factorial(n)], 1e-8, &format!("tanh {x}, order {n}"));
        }
    }
}

/// A derivative that is zero everywhere is a tensor of zeros that can be differentiated again.
#[test]
fn derivatives_that_are_zero_can_be_differentiated() {
    type Case = (&'static str, fn(&Tensor) -> Tensor, usize);
    let cases: [Case; 12] = [
        ("x·x", |x| x * x, 3),
        ("square", |x| x.square(), 3),
        ("pow(2)", |x| x.pow(2.0), 3),
        ("pow(3)", |x| x.pow(3.0), 4),
        ("cube", |x| x.cube(), 4),
        ("3·x", |x| x * 3.0, 2),
        ("-x", |x| -x, 2),
        ("relu", |x| x.relu(), 2),
        ("abs", |x| x.abs(), 2),
        ("sum", |x| x.sum(..), 2),
        ("reshape", |x| x.reshape([2, 2]), 2),
        ("matmul", |x| x.reshape([2, 2]).matmul(&Tensor::from([[1.0, 2.0], [3.0, 4.0]])), 2),
    ];
    for (name, f, first_zero) in cases {
        for x in [leaf([0.5, -1.0, 2.0, 3.0]), leaf([0.0, 1.0, 0.0, -2.0])] {
            let all = derivatives(f, &x, 6);
            for (n, got) in all.iter().enumerate().skip(1) {
                assert_eq!(got.shape(), x.shape(), "{name}");
                assert!(got.requires_grad(), "{name}, order {n}: the derivative must require a gradient");
                let zero = got.to_vec::<f64>().iter().all(|&v| v == 0.0);
                assert!(
                    zero || n < first_zero,
                    "{name}, order {n}: must be 0 for orders of at least {first_zero}, got {got:?}"
                );
            }
            // Backward passes into `.grad` compute the same derivatives.
            let mut y = f(&x).sum(..);
            for n in 1..=4 {
                x.zero_grad();
                y.backward_with(BackwardOptions { create_graph: true, ..Default::default() });
                let gradient = x.grad().unwrap();
                assert_close(&gradient, &all[n].to_vec::<f64>());
                y = gradient.sum(..);
            }
            x.zero_grad();
        }
    }
}

/// A constant gradient does not depend on the other inputs: mixed derivatives are zero.
#[test]
fn mixed_derivatives_of_a_sum_are_zero() {
    let (x, y) = (leaf([1.0, 2.0]), leaf([3.0, 4.0]));
    let z = x.square() + y.cube();
    let first = grad(&[&z], &[&x, &y], recorded()).unwrap();
    // The gradient 2x does not depend on y.
    assert!(matches!(grad(&[&first[0]], &[&y], recorded()), Err(Error::UnusedInput { input: 0, .. })));
    let by_y = grad(&[&first[0]], &[&y], GradOptions { allow_unused: true, ..recorded() }).unwrap();
    assert_close(&by_y[0], &[0.0, 0.0]);
    let again = grad(&[&by_y[0]], &[&x, &y], GradOptions { allow_unused: true, ..recorded() }).unwrap();
    assert!(again.iter().all(|g| g.to_vec::<f64>() == [0.0, 0.0]));
}

/// The derivatives of Π xᵢ for n tracked inputs, and of Σ sin(xᵢ)·xᵢ₊₁, equal their closed forms in every order.
#[test]
fn formulas_of_many_inputs_are_differentiable() {
    for n in [4, 6, 15, 16, 17, 40] {
        let formula = Formula::new("product", &vec![Input::NUMBER; n], 0, |x, _| {
            vec![x.iter().copied().reduce(|a, b| a * b).unwrap()]
        });
        let inputs: Vec<Tensor> = (0..n).map(|i| leaf([1.0 + 0.01 * i as f64, 0.9])).collect();
        let inputs: Vec<&Tensor> = inputs.iter().collect();
        let y = ops::map(&formula, &inputs, &[]).unwrap();
        let total = y.to_vec::<f64>();
        // ∂ᵏ/∂x₀…∂xₖ₋₁ is the product of the other inputs.
        let orders = if n <= 6 { n } else { 3 };
        let (mut current, mut expected) = (y, total);
        for k in 0..orders {
            let all = grad(&[&current], &inputs, GradOptions { allow_unused: k > 0, ..recorded() }).unwrap();
            current = all[k].clone();
            let x = inputs[k].to_vec::<f64>();
            expected = expected.iter().zip(&x).map(|(y, x)| y / x).collect();
            assert_relatively_close(&current, &expected, 1e-12, &format!("{n} inputs, order {}", k + 1));
        }
    }
}

#[test]
fn a_formula_of_too_many_inputs_is_an_error() {
    let formula = Formula::new("wide", &[Input::NUMBER; 65], 0, |x, _| vec![x[0] + x[64]]);
    let inputs = vec![leaf([1.0]); 65];
    let error = ops::map_all(&formula, &inputs.iter().collect::<Vec<_>>(), &[]).unwrap_err().to_string();
    assert!(error.contains("wide") && error.contains("65") && error.contains("split"), "{error}");
    let outputs = |x: &[Expr], _: &[Expr]| vec![x[0]; 130];
    let formula = Formula::new("tall", &[Input::NUMBER], 0, outputs);
    let error = ops::map_all(&formula, &[&leaf([1.0])], &[]).unwrap_err().to_string();
    assert!(error.contains("tall") && error.contains("261"), "{error}");
    assert_eq!(
        ops::map_all(&formula, &[&Tensor::from([1.0])], &[]).unwrap().len(),
        130,
        "the formula must be accepted for an untracked input"
    );
}

/// sin(t)/t = ∫₀¹ cos(ts) ds, so its n-th derivative is ∫₀¹ sⁿ·cos(ts + nπ/2) ds, computed by Taylor's series. Near 0
/// the quotient rule would divide a cancelled difference by tⁿ⁺¹.
#[test]
fn a_removable_singularity_in_twelve_orders() {
    let ts = [0.0, 1e-200, -1e-9, 1e-3, 0.3, -1.0, 3.9999, 4.0001, -9.0];
    let t = leaf(ts);
    let spherical = derivatives(|t| ops::spherical_bessel_j0(t).unwrap(), &t, 12);
    let normalized = derivatives(|t| (t / std::f64::consts::PI).sinc(), &t, 12);
    for n in 0..=12 {
        // The term of tᵏ is the derivative of order n + k of the cosine at 0, times ∫ sⁿ⁺ᵏ ds and tᵏ/k!.
        let expected = ts.map(|t: f64| {
            let sign = |m: usize| [1.0, 0.0, -1.0, 0.0][m % 4];
            let term = |k: usize| sign(n + k) * t.powi(k as i32) / factorial(k) / (n + k + 1) as f64;
            (0..60).map(term).sum::<f64>()
        });
        assert_relatively_close(&spherical[n], &expected, 1e-12, &format!("spherical_bessel_j0, order {n}"));
        assert_relatively_close(&normalized[n], &expected, 1e-12, &format!("sinc, order {n}"));
    }
}

/// y″ = x·y implies y⁽ⁿ⁺²⁾ = x·y⁽ⁿ⁾ + n·y⁽ⁿ⁻¹⁾. The points include the range of the asymptotic forms.
#[test]
fn airys_function_in_twelve_orders() {
    let xs = [-12.0, -2.1, -2.0, -0.4, 0.0, 1.3, 2.0, 2.1, 7.0];
    let x = leaf(xs);
    let all = derivatives(|x| ops::airy_ai(x).unwrap(), &x, 12);
    let y: Vec<Vec<f64>> = all.iter().map(|d| d.to_vec()).collect();
    // Ai′, computed with 30 digits.
    let slope = [
        1.0231104533679707,
        0.6583406928143435,
        0.618259020741691,
        -0.22503140930241503,
        -0.2588194037928068,
        -0.12033386559018358,
        -0.05309038443365363,
        -0.04645599403267459,
        -2.008150894738792e-6,
    ];
    assert_relatively_close(&all[1], &slope, 1e-13, "order 1");
    for n in 0..=10 {
        let expected: Vec<f64> =
            (0..xs.len()).map(|i| xs[i] * y[n][i] + if n == 0 { 0.0 } else { n as f64 * y[n - 1][i] }).collect();
        assert_relatively_close(&all[n + 2], &expected, 1e-13, &format!("order {}", n + 2));
    }
}

/// The references have 50 digits. In `f32`, derivatives up to order 4 are accurate.
#[test]
fn scaled_bessel_functions_of_large_arguments() {
    type Call = fn(&Tensor) -> Result<Tensor>;
    let cases: [(&str, Call, f64, [f64; 4]); 12] = [
        (
            "i0e",
            |x| ops::i0e(x),
            33.0,
            [-0.0010645391079138018, 4.877255016081837e-5, -3.7247299149770813e-6, 3.9829131300990166e-7],
        ),
        (
            "i0e",
            |x| ops::i0e(x),
            200.0,
            [-7.065655427899784e-5, 5.305915838311066e-7, -6.64076931555666e-9, 1.1636057506900332e-10],
        ),
        (
            "i0e",
            |x| ops::i0e(x),
            5000.0,
            [-5.642319057027533e-7, 1.692780377295348e-10, -8.464325250939089e-14, 5.925324075260967e-17],
        ),
        (
            "i1e",
            |x| ops::i1e(x),
            33.0,
            [-0.0010157665577529835, 4.504782024584129e-5, -3.3264386019671797e-6, 3.4352517646888507e-7],
        ),
        (
            "i1e",
            |x| ops::i1e(x),
            200.0,
            [-7.012596269516675e-5, 5.2395081451555e-7, -6.524408740487657e-9, 1.1373913947409972e-10],
        ),
        (
            "i1e",
            |x| ops::i1e(x),
            5000.0,
            [-5.640626276650239e-7, 1.691933944770254e-10, -8.458399926863827e-14, 5.919991016793548e-17],
        ),
        (
            "k0e",
            |x| ops::k0e(x),
            33.0,
            [-0.003269124710690621, 0.0001475189646921309, -1.1095769447741951e-5, 1.1685257046336863e-6],
        ),
        (
            "k0e",
            |x| ops::k0e(x),
            200.0,
            [-0.00022114324570702152, 1.656516510975338e-6, -2.068082876440019e-8, 3.614676770490747e-10],
        ),
        (
            "k0e",
            |x| ops::k0e(x),
            5000.0,
            [-1.7723209417845634e-6, 5.316697056932988e-10, -2.658215664178814e-13, 1.8606579738661808e-16],
        ),
        (
            "k1e",
            |x| ops::k1e(x),
            33.0,
            [-0.003416643675382752, 0.00015861473413987287, -1.2264295152375639e-5, 1.3267618393883865e-6],
        ),
        (
            "k1e",
            |x| ops::k1e(x),
            200.0,
            [-0.00022279976221799687, 1.6771973397397382e-6, -2.1042296441449265e-8, 3.695906832459135e-10],
        ),
        (
            "k1e",
            |x| ops::k1e(x),
            5000.0,
            [-1.7728526114902567e-6, 5.319355272597167e-10, -2.6600763221526807e-13, 1.8623324823632521e-16],
        ),
    ];
    for (name, call, at, expected) in cases {
        for (dtype, tolerance) in [(DType::F64, 2e-13), (DType::F32, 1e-5)] {
            let check = |at: f64, signs: [f64; 4]| {
                let x = Tensor::from([at]).to_dtype(dtype).requires_grad_(true);
                let all = derivatives(|x| call(x).unwrap(), &x, 4);
                for (k, expected) in expected.iter().enumerate() {
                    let (got, expected) = (all[k + 1].item::<f64>(), signs[k] * expected);
                    let what = format!("{name}({at}) in {dtype}, order {}", k + 1);
                    assert!(
                        (got - expected).abs() <= tolerance * expected.abs(),
                        "{what}: {got:e}, expected {expected:e}"
                    );
                }
            };
            check(at, [1.0; 4]);
            // I₀ is even, and I₁ odd.
            match name {
                "i0e" => check(-at, [-1.0, 1.0, -1.0, 1.0]),
                "i1e" => check(-at, [1.0, -1.0, 1.0, -1.0]),
                _ => {}
            }
        }
    }
}

/// A contraction with too many cotangents is split, even if some gradients are sums over a broadcast axis. A row
/// formula has the same derivatives as the operations that it consists of.
#[test]
fn a_split_contraction_counts_every_gradient_once() -> Result<()> {
    let g = Tensor::from([[0.9, 1.3], [0.7, 1.1], [1.4, 0.6]]);
    let weight = |n: usize, shape: &[usize]| {
        let size = shape.iter().product::<usize>();
        Tensor::new((0..size).map(|i| (0.7 * (i + 3 * n) as f64).cos()).collect::<Vec<_>>(), shape.to_vec())
    };
    let gradients = |softmax: &dyn Fn(&Tensor) -> Tensor| -> Result<Vec<Vec<f64>>> {
        let (x, g) =
            (Tensor::from([[0.6, 1.1, 0.8], [1.4, 0.5, 0.9]]).requires_grad_(true), g.copy().requires_grad_(true));
        let mut current = vec![softmax(&x.sin()).matmul(&g)];
        for order in 1..=7 {
            let outputs: Vec<&Tensor> = current.iter().collect();
            let grad_outputs = current.iter().map(|y| Some(weight(order, y.shape()))).collect();
            current = grad(&outputs, &[&x, &g], GradOptions { grad_outputs, ..recorded() })?;
        }
        Ok(current.iter().map(Tensor::to_vec::<f64>).collect())
    };
    let fused = pellucid_tensor::formula!(|x| {
        let e = x.exp();
        e / e.row_sum()
    });
    let fused = gradients(&|x| ops::map_rows(fused, &[x], &[], -1).unwrap())?;
    let composed = gradients(&|x| {
        let e = x.exp();
        &e / e.sum(ops::over(-1).keepdims())
    })?;
    for (fused, composed) in fused.iter().zip(&composed) {
        for (a, b) in fused.iter().zip(composed) {
            assert!((a - b).abs() <= 1e-9 * b.abs().max(1.0), "got {a}, expected {b}");
        }
    }
    Ok(())
}

/// Returns the gradients of orders 1 to `order` of f(x₀, x₁, ..), each summed over its elements.
fn sums_of_gradients(
    f: &dyn Fn(&[&Tensor]) -> Vec<Tensor>,
    shapes: &[&[usize]],
    order: usize,
) -> Result<Vec<Vec<f64>>> {
    let value = |n: usize, i: usize| 0.4 + 0.3 * ((7 * n + 3 * i) as f64).sin();
    let tensor = |n: usize, shape: &[usize]| {
        Tensor::new((0..shape.iter().product()).map(|i| value(n, i)).collect::<Vec<_>>(), shape.to_vec())
    };
    let leaves: Vec<Tensor> = shapes.iter().enumerate().map(|(n, s)| tensor(n, s).requires_grad_(true)).collect();
    let leaves: Vec<&Tensor> = leaves.iter().collect();
    let (mut current, mut sums) = (f(&leaves), Vec::new());
    for k in 1..=order {
        let outputs: Vec<&Tensor> = current.iter().collect();
        let grad_outputs = current.iter().enumerate().map(|(i, y)| Some(tensor(10 * k + i, y.shape()))).collect();
        current = grad(&outputs, &leaves, GradOptions { grad_outputs, ..recorded() })?;
        sums.push(current.iter().map(|g| g.to_vec::<f64>().iter().sum()).collect());
    }
    Ok(sums)
}

/// A reduction counts every element of the common shape, even if its operand is broadcast along the row, or has fewer
/// axes than the other inputs.
#[test]
fn reductions_of_broadcast_operands_in_four_orders() -> Result<()> {
    let row = ops::over(-1).keepdims();
    let formula = pellucid_tensor::formula!(|x, y| x.row_sum().sin() * y);
    let fused = |x: &[&Tensor]| ops::map_rows_all(formula, x, &[], -1).unwrap();
    let composed = |x: &[&Tensor]| {
        let shape = x[0].shape().broadcast(x[1].shape()).unwrap();
        vec![x[0].broadcast_to(shape.clone()).sum(row.clone()).sin() * x[1].broadcast_to(shape)]
    };
    let shapes: [[&[usize]; 2]; 6] = [
        [&[2, 1], &[2, 3]],
        [&[1], &[3]],
        [&[3], &[2, 1]],
        [&[2, 1, 3], &[2, 3]],
        [&[1, 1], &[2, 3]],
        [&[2, 3], &[2, 3]],
    ];
    for shapes in shapes {
        let (a, b) = (sums_of_gradients(&fused, &shapes, 4)?, sums_of_gradients(&composed, &shapes, 4)?);
        for (a, b) in a.iter().flatten().zip(b.iter().flatten()) {
            assert!((a - b).abs() <= 1e-10 * b.abs().max(1.0), "{shapes:?}: got {a}, expected {b}");
        }
    }
    Ok(())
}

/// A row formula whose gradients read more than 64 tensors is split, or is a typed error, but never wrong.
#[test]
fn wide_row_formulas_are_correct_or_errors() -> Result<()> {
    let (inputs, outputs) = (20, 6);
    let body = move |x: &[Expr], _: &[Expr]| -> Vec<Expr> {
        (0..outputs)
            .map(|o| (0..inputs).map(|i| (x[i] * x[(i + o) % inputs]).row_sum() * x[i]).reduce(|a, b| a + b).unwrap())
            .collect()
    };
    let formula = Formula::new("wide", &vec![Input::NUMBER; inputs], 0, body);
    let row = ops::over(-1).keepdims();
    let fused = |x: &[&Tensor]| ops::map_rows_all(&formula, x, &[], -1).unwrap();
    let composed = |x: &[&Tensor]| -> Vec<Tensor> {
        let term = |i: usize, o: usize| (x[i] * x[(i + o) % inputs]).sum(row.clone()) * x[i];
        (0..outputs).map(|o| (0..inputs).map(|i| term(i, o)).reduce(|a, b| a + b).unwrap()).collect()
    };
    let shapes = vec![&[2usize][..]; inputs];
    let expected = sums_of_gradients(&composed, &shapes, 3)?;
    for order in 1..=3 {
        match sums_of_gradients(&fused, &shapes, order) {
            Ok(found) => {
                for (a, b) in found.iter().flatten().zip(expected.iter().flatten()) {
                    assert!((a - b).abs() <= 1e-9 * b.abs().max(1.0), "order {order}: got {a}, expected {b}");
                }
            }
            Err(error) => {
                let text = error.to_string();
                assert!(order > 1 && text.contains("wide") && text.contains("order") && text.contains("64"), "{text}");
            }
        }
    }
    let many = Formula::new("many_sums", &[Input::NUMBER], 0, |x, _| {
        let term = |i: i32| (x[0] * (f64::from(i) * 0.01 + 0.5)).sin().row_sum();
        vec![(0..130).map(|i| term(i) * term(i)).reduce(|a, b| a + b).unwrap() * x[0]]
    });
    let error =
        sums_of_gradients(&|x| ops::map_rows_all(&many, x, &[], -1).unwrap(), &[&[2]], 3).unwrap_err().to_string();
    assert!(error.contains("many_sums") && error.contains("order 3"), "{error}");
    Ok(())
}

/// The limits of Airy's function and of sin(x)/x at infinity.
#[test]
fn derivatives_at_infinity() {
    let x = leaf([f64::INFINITY, 1e300, 2e3]);
    for d in derivatives(|x| ops::airy_ai(x).unwrap(), &x, 3) {
        assert_eq!(d.to_vec::<f64>(), [0.0; 3]);
    }
    let x = leaf([f64::INFINITY, f64::NEG_INFINITY]);
    for d in derivatives(|x| ops::spherical_bessel_j0(x).unwrap(), &x, 3) {
        assert_eq!(d.to_vec::<f64>(), [0.0; 2]);
    }
}

/// Row formulas, losses and attention have finite gradients of order 8 for any cotangents.
#[test]
fn rows_losses_products_and_attention_have_order_8() -> Result<()> {
    manual_seed(3);
    let draw = |shape: &[usize]| (Tensor::rand(shape.to_vec(), DType::F64) + 0.5).detach();
    type Case = (&'static str, Vec<Vec<usize>>, fn(&[Tensor]) -> Tensor);
    let cases: Vec<Case> = vec![
        ("softmax", vec![vec![2, 3]], |x| x[0].softmax(-1)),
        ("log_softmax", vec![vec![2, 3]], |x| x[0].log_softmax(-1)),
        ("logsumexp", vec![vec![2, 3]], |x| x[0].logsumexp(-1)),
        ("norm", vec![vec![2, 3]], |x| x[0].norm(3.0, -1)),
        ("std", vec![vec![2, 3]], |x| x[0].std(-1)),
        ("layer_norm", vec![vec![2, 3], vec![3]], |x| x[0].layer_norm([3], Some(&x[1]), None, 1e-5)),
        ("mse", vec![vec![2, 3], vec![2, 3]], |x| (&x[0] - &x[1]).square().mean(..)),
        ("matmul of itself", vec![vec![2, 2]], |x| x[0].matmul(&x[0]).matmul(&x[0]).tanh()),
        ("conv", vec![vec![1, 1, 3], vec![1, 1, 2]], |x| x[0].conv1d(&x[1], None, Default::default()).sin()),
    ];
    for (name, shapes, f) in cases {
        let inputs: Vec<Tensor> = shapes.iter().map(|s| draw(s).requires_grad_(true)).collect();
        let inputs: Vec<&Tensor> = inputs.iter().collect();
        let mut current = vec![f(&inputs.iter().map(|&t| t.clone()).collect::<Vec<_>>())];
        for order in 1..=8 {
            let outputs: Vec<&Tensor> = current.iter().collect();
            let grad_outputs = current.iter().map(|y| Some(draw(y.shape()))).collect();
            current =
                grad(&outputs, &inputs, GradOptions { grad_outputs, create_graph: order < 8, ..Default::default() })?;
            let finite = current.iter().all(|g| g.to_vec::<f64>().iter().all(|v| v.is_finite()));
            assert!(finite, "{name}, order {order}: a derivative is not finite: {current:?}");
        }
    }
    Ok(())
}

/// Mixed derivatives with respect to a variable with a declared derivative follow the declared one, in every order of
/// the variables.
#[test]
fn mixed_derivatives_follow_a_declared_derivative() {
    let formula = pellucid_tensor::formula! {
        static clamped_product(x, v) = x * v.max(1.0);
        d v = g * x;
    };
    let [x, v] = [[0.3, 1.7], [0.4, 3.0]].map(|values| Tensor::from(values).requires_grad_(true));
    let y = ops::map(formula, &[&x, &v], &[]).unwrap().sum(..);
    let first = grad(&[&y], &[&x, &v], recorded()).unwrap();
    assert_eq!(first[1].to_vec::<f64>(), [0.3, 1.7]);
    for (gradient, by) in [(&first[1], &x), (&first[0], &v)] {
        let second = grad(&[&gradient.sum(..)], &[by], recorded()).unwrap();
        assert_eq!(second[0].to_vec::<f64>(), [1.0, 1.0]);
    }
    // The variance below eps counts as eps, with a derivative of 1, as in PyTorch.
    let [x, v] = [0.3, 0.01].map(|value| Tensor::from([value]).requires_grad_(true));
    let loss = ops::gaussian_nll_loss(&x, &Tensor::from([0.8]), &v, false, 0.1, ops::Reduction::Sum).unwrap();
    let by_v = grad(&[&loss], &[&v], recorded()).unwrap().remove(0);
    let second = grad(&[&by_v.sum(..)], &[&x, &v], GradOptions::default()).unwrap();
    let values = [&by_v, &second[0], &second[1]].map(|t| t.item::<f64>());
    let close = values.iter().zip([-7.5, 50.0, 200.0]).all(|(a, b)| (a - b).abs() < 1e-9);
    assert!(close, "{values:?}");
}
