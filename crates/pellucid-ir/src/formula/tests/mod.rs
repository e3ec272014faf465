//! Tests of formulas, grouped by subject, and their shared functions.

mod gradients;
mod limits;
mod programs;
mod rows;
mod splice;
mod structure;

use super::*;

/// A formula and a point at which it is smooth: a row of values for every input.
pub(super) struct Case {
    formula: Formula,
    inputs: Vec<Vec<f64>>,
    params: Vec<f64>,
}

pub(super) fn case(formula: Formula, inputs: &[&[f64]], params: &[f64]) -> Case {
    Case { formula, inputs: inputs.iter().map(|x| x.to_vec()).collect(), params: params.to_vec() }
}

/// Returns the outputs of a formula for a row of `elements` elements.
pub(super) fn evaluate(f: &Formula, inputs: &[Vec<f64>], params: &[f64], elements: usize) -> Vec<Vec<f64>> {
    let inputs: Vec<&[f64]> = inputs.iter().map(|x| &x[..]).collect();
    f.evaluate_row(&inputs, params, elements)
}

/// Returns the length of the rows.
pub(super) fn elements(values: &[Vec<f64>]) -> usize {
    values.iter().map(Vec::len).max().unwrap_or(1)
}

/// Returns the values that a gradient reads, from the inputs, outputs and incoming gradients of its formula.
pub(super) fn read(gradient: &Gradient, x: &[Vec<f64>], y: &[Vec<f64>], g: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let pick = |read: &GradientInput| match *read {
        GradientInput::Input(i) => x[i].clone(),
        GradientInput::Output(j) => y[j].clone(),
        GradientInput::Gradient(j) => g[j].clone(),
    };
    gradient.reads.iter().map(pick).collect()
}

/// Returns the gradient of every number input at a point, from incoming gradients `g`.
pub(super) fn gradient_at(f: &Formula, x: &[Vec<f64>], params: &[f64], g: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let gradient = f.gradient(GradientRequest::all(f.inputs().len()));
    let y = evaluate(f, x, params, elements(x));
    evaluate(&gradient.formula, &read(gradient, x, &y, g), params, elements(x))
}

/// Returns the derivative of a formula of one input at x.
pub(super) fn slope(f: &Formula, x: f64, params: &[f64]) -> f64 {
    gradient_at(f, &[vec![x]], params, &[vec![1.0]])[0][0]
}

/// The formulas for the tests of gradients and programs.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = primitives();
    cases.extend(compositions());
    cases.extend(rows::cases());
    cases
}

fn primitives() -> Vec<Case> {
    let everywhere: &[f64] = &[-1.7, -0.6, 0.3, 1.2, 2.6];
    let positive: &[f64] = &[0.2, 0.8, 1.3, 2.5, 7.1];
    let inside: &[f64] = &[-0.9, -0.4, 0.1, 0.5, 0.8];
    let mut cases = Vec::new();
    for op in Unary::ALL.into_iter().filter(|op| !op.gives_mask() && *op != Unary::Not) {
        use Unary::*;
        let points = match op {
            Sqrt | Ln | Log2 | Log10 | Ln1p | Lgamma | Digamma => positive,
            Asin | Acos | Atanh | Erfinv => inside,
            Ndtri => &[0.1, 0.35, 0.5, 0.8, 0.95],
            Acosh => &[1.1, 1.5, 2.0, 3.0, 5.0],
            _ => everywhere,
        };
        cases.push(case(Formula::new(op.name(), &[Input::NUMBER], 0, |x, _| vec![x[0].unary(op)]), &[points], &[]));
    }
    for op in Binary::ALL.into_iter().filter(|op| !op.gives_mask()) {
        use Binary::*;
        let (a, b): (&[f64], &[f64]) = match op {
            And | Or | Xor | Shl | Shr => continue,
            Pow => (positive, &[2.3, -1.4, 0.7, 1.2, 3.4]),
            Igamma | Igammac => (&[1.0, 2.0, 1.5, 4.0, 2.5], positive),
            Zeta => (&[2.0, 3.0, 1.5, 4.0, 2.5], positive),
            _ if op.is_special() => (&[0.0, 1.0, 2.0, 3.0, 1.0], positive),
            _ => (&[0.7, -2.3, 3.8, 1.1, -4.2], &[1.9, 0.4, -1.3, 2.7, -0.8]),
        };
        let f = Formula::new(op.name(), &[Input::NUMBER; 2], 0, |x, _| vec![Expr::binary(op, x[0], x[1])]);
        cases.push(case(f, &[a, b], &[]));
    }
    cases
}

fn compositions() -> Vec<Case> {
    use std::f64::consts::FRAC_1_SQRT_2;
    let x: &[f64] = &[-1.7, -0.6, 0.3, 1.2, 2.6];
    let z: &[f64] = &[0.4, -1.1, 2.2, -0.3, 1.5];
    let mask: &[f64] = &[1.0, 0.0, 1.0, 1.0, 0.0];
    vec![
        case(formula!(gelu(x) = 0.5 * x * (1.0 + (x * FRAC_1_SQRT_2).erf())), &[x], &[]),
        case(formula!(silu(x) = x * x.sigmoid()), &[x], &[]),
        case(formula!(relu(x) = x.relu()), &[x], &[]),
        case(formula! { softplus(x) = x.relu() + (-x.abs()).exp().ln_1p(); d x = g * x.sigmoid(); }, &[x], &[]),
        case(formula!(mish(x) = x * (x.relu() + (-x.abs()).exp().ln_1p()).tanh()), &[x], &[]),
        case(formula!(elu(x; alpha) = x.gt(0).select(x, alpha * x.exp_m1())), &[x], &[0.7]),
        case(formula!(hardtanh(x; lo, hi) = x.clamp(lo, hi)), &[x], &[-1.0, 1.5]),
        case(formula!(powers(x) = x.square() + x.cube() - x.powi(-4) + x.powi(5)), &[x], &[]),
        case(formula!(cube(x) = x.pow(3.0) + x.pow(2) * x.pow(1) + x.pow(0)), &[&[0.5, 1.5, 2.0, 0.1, 3.0]], &[]),
        case(formula!(exponential(x) = Expr::literal(2.5, ValueKind::Number).pow(x)), &[x], &[]),
        case(formula!(lerp(a, b, t) = t.mul_add(b - a, a)), &[x, z, &[0.1, 0.5, 0.9, 0.2, 0.4]], &[]),
        case(formula!(where_(c: mask, a, b) = c.select(a * b, a / b)), &[mask, x, z], &[]),
        case(formula!(polar(r, t) = (r * t.cos(), r * t.sin())), &[x, z], &[]),
        case(
            formula!(adamw(p, g, m, v; lr, b1, b2, eps) = {
                let m = b1 * m + (1.0 - b1) * g;
                let v = b2 * v + (1.0 - b2) * g * g;
                (p - lr * m / (v.sqrt() + eps), m, v)
            }),
            &[x, z, x, &[0.3, 0.2, 0.8, 0.5, 0.1]],
            &[0.01, 0.9, 0.99, 1e-3],
        ),
    ]
}
