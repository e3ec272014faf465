//! Gradients of orders 1 to 3 against central differences.

use super::*;

/// Σ over outputs and elements of g·y.
fn pairing(f: &Formula, x: &[Vec<f64>], params: &[f64], g: &[Vec<f64>], elements: usize) -> f64 {
    let y = evaluate(f, x, params, elements);
    y.iter().zip(g).flat_map(|(y, g)| y.iter().zip(g)).map(|(y, g)| y * g).sum()
}

/// Compares the gradient of `f` at x with central differences, then does the same for the gradient, with all of its
/// inputs as independent variables, until `order` is 0.
fn check_gradients(f: &Formula, x: &[Vec<f64>], params: &[f64], elements: usize, order: usize) {
    let y = evaluate(f, x, params, elements);
    let weight = |j: usize, e: usize| 0.7 + 0.31 * j as f64 - 0.23 * e as f64;
    let g: Vec<Vec<f64>> = y.iter().enumerate().map(|(j, y)| (0..y.len()).map(|e| weight(j, e)).collect()).collect();
    let gradient = f.gradient(GradientRequest::all(f.inputs().len()));
    let values = read(gradient, x, &y, &g);
    let symbolic = evaluate(&gradient.formula, &values, params, elements);
    for (i, input) in f.inputs().iter().enumerate() {
        assert_eq!(symbolic[i].len(), x[i].len(), "gradient {i} of {f} must have the shape of the input");
        for e in 0..x[i].len() {
            let h = 3e-6 * x[i][e].abs().max(1.0);
            let at = |step: f64| {
                let mut x = x.to_vec();
                x[i][e] += step;
                pairing(f, &x, params, &g, elements)
            };
            let numeric = match input.kind {
                ValueKind::Number if !gradient.is_zero(i) => {
                    (8.0 * (at(h) - at(-h)) - at(2.0 * h) + at(-2.0 * h)) / (12.0 * h)
                }
                ValueKind::Number => (at(h) - at(-h)) / (2.0 * h),
                _ => 0.0,
            };
            let error = (numeric - symbolic[i][e]).abs();
            let scale = 1.0 + numeric.abs() + pairing(f, x, params, &g, elements).abs();
            assert!(
                error <= 2e-7 * scale,
                "d{i}[{e}] of {elements}: {numeric} by differences, {} by\n  {gradient}\nof\n  {f}\nat {x:?}",
                symbolic[i][e],
            );
        }
    }
    if order > 1 && !values.is_empty() {
        check_gradients(&gradient.formula, &values, params, elements, order - 1);
    }
}

#[test]
fn every_primitive_and_composition_up_to_order_three() {
    for c in cases() {
        // Special functions are not differentiated with respect to their parameter, so it is a run-time parameter here.
        if let Some(op) = Binary::ALL.into_iter().find(|op| op.is_special() && op.name() == c.formula.name()) {
            let text = |x: &[Expr], n: &[Expr]| vec![Expr::binary(op, n[0], x[0]) + Expr::binary(op, 3, x[0])];
            check_gradients(&Formula::new(op.name(), &[Input::NUMBER], 1, text), &c.inputs[1..], &[2.0], 5, 3);
        } else {
            // The gradient of the minimum compares x with the saved minimum: perturbing only one of them
            // breaks the tie.
            let order = if c.formula.name() == "row_min" { 1 } else { 3 };
            check_gradients(&c.formula, &c.inputs, &c.params, elements(&c.inputs), order);
        }
    }
}

#[test]
fn one_tensor_used_twice_gets_one_fused_gradient() {
    let f = formula!(|a, b| a * b);
    let fused = f.gradient(GradientRequest(0x11));
    assert_eq!(fused.formula.outputs().len(), 1);
    assert_eq!(fused.to_string(), "formula'(x0, x1, g) = g * x1 + g * x0".replace("x0", "a").replace("x1", "b"));
    let x: &[f64] = &[3.0];
    assert_eq!(fused.formula.evaluate(&[x, x, &[2.0]], &[]), [[12.0]]);
}

#[test]
fn absent_incoming_gradients_count_as_zero() {
    let f = formula!(|r, t| (r * t.cos(), r * t.sin()));
    let gradient = f.gradient_given(GradientRequest(0x21), 0b10);
    assert_eq!(gradient.reads, [GradientInput::Input(0), GradientInput::Input(1), GradientInput::Gradient(1)]);
    assert_eq!(gradient.to_string(), "formula'(r, t, g1) = (g1 * sin(t), g1 * r * cos(t))");
    assert!(std::ptr::eq(f.gradient_given(GradientRequest(0x21), 0b11), f.gradient(GradientRequest(0x21))));
    let none = f.gradient_given(GradientRequest(0x21), 0);
    assert!(none.is_zero(0) && none.is_zero(1) && none.reads.is_empty());
}

#[test]
fn gradients_read_only_the_needed_values() {
    let f = formula!(|a, b| a / b);
    assert_eq!(f.gradient(GradientRequest(0x01)).reads, [GradientInput::Input(1), GradientInput::Gradient(0)]);
    assert_eq!(
        f.gradient(GradientRequest(0x10)).reads,
        [GradientInput::Input(1), GradientInput::Output(0), GradientInput::Gradient(0)]
    );
    let reads = |f: &Formula| f.gradient(GradientRequest::for_input(0)).reads.clone();
    let output = [GradientInput::Output(0), GradientInput::Gradient(0)];
    let input = [GradientInput::Input(0), GradientInput::Gradient(0)];
    for f in [formula!(|x| x.exp()), formula!(|x| x.sqrt()), formula!(|x| x.sigmoid()), formula!(|x| x.tan())] {
        assert_eq!(reads(f), output, "the gradient must read the output of {f}");
    }
    for f in [formula!(|x| x * x), formula!(|x| x.ln()), formula!(|x| x * x.sigmoid()), formula!(|x| x.relu())] {
        assert_eq!(reads(f), input, "the gradient must read the input of {f}");
    }
}

#[test]
fn gradients_report_zero_and_passed_results() {
    let f = formula!(|a, b, t: index, c: mask| c.select(a + b, a - b) + t.to_number());
    let gradient = f.gradient(GradientRequest::all(4));
    assert!(gradient.is_zero(2) && gradient.is_zero(3) && !gradient.is_zero(1));
    assert_eq!((gradient.passes(0), gradient.passes(1)), (None, None));
    let sum = formula!(|a, b| a + b).gradient(GradientRequest(0x21));
    assert_eq!((sum.passes(0), sum.passes(1)), (Some(0), Some(0)));
    assert!(formula!(|x| x.floor()).gradient(GradientRequest(1)).is_zero(0));
    assert!(formula!(|x| x.gt(0).to_number()).gradient(GradientRequest(1)).is_zero(0));
    assert_eq!(formula!(|x| x.row_sum()).gradient(GradientRequest(1)).passes(0), None);
}

#[test]
fn uncommon_requests_are_cached_too() {
    let f = formula!(|a, b, c, d| a * b + c * d);
    let all = f.gradient(GradientRequest::all(4));
    assert!(std::ptr::eq(all, f.gradient(GradientRequest::all(4))));
    assert!(std::ptr::eq(f.gradient(GradientRequest(0x21)), f.gradient(GradientRequest(0x21))));
    assert_eq!(all.formula.outputs().len(), 4);
}

#[test]
fn programs_of_higher_orders_stay_short() {
    let steps = |f: &Formula| f.uniform_program(crate::DType::F32).unwrap().steps.len();
    let mut report = String::new();
    let mut too_long = Vec::new();
    for c in compositions() {
        let mut f = c.formula.clone();
        let mut counts = vec![steps(&f)];
        for _ in 0..3 {
            f = f.gradient(GradientRequest::all(f.inputs().len())).formula.clone();
            counts.push(steps(&f));
        }
        report += &format!("{:<12} {counts:?}\n", c.formula.name());
        let bound = match c.formula.name() {
            "relu" => [2, 2, 2, 2],
            "gelu" => [5, 13, 26, 58],
            "silu" => [2, 7, 18, 52],
            "softplus" => [7, 2, 6, 17],
            _ => [20, 60, 160, 500],
        };
        if counts.iter().zip(bound).any(|(&n, most)| n > most) {
            too_long.push(c.formula.name());
        }
    }
    assert!(too_long.is_empty(), "the gradient programs of {too_long:?} are too long; all lengths:\n{report}");
    let tanh = formula!(|x| x.tanh()).gradient(GradientRequest(1));
    assert_eq!(steps(&tanh.formula), 3, "{tanh}");
}
