//! Formulas over rows.

use super::*;

/// ln Σ exp(x), numerically stable.
fn logsumexp() -> Formula {
    formula!(
        logsumexp(x) = {
            let m = x.row_max();
            (x - m).exp().row_sum().ln() + m
        }
    )
}

fn softmax() -> Formula {
    formula!(
        softmax(x) = {
            let e = (x - x.row_max()).exp();
            e / e.row_sum()
        }
    )
}

fn declared_softmax() -> Formula {
    formula! {
        softmax(x) = { let e = (x - x.row_max()).exp(); e / e.row_sum() };
        d x = y * (g - (g * y).row_sum());
    }
}

fn layer_norm() -> Formula {
    formula!(layer_norm(x, gamma, beta; eps) = {
        let centred = x - x.row_mean();
        let variance = centred.square().row_mean();
        centred / (variance + eps).sqrt() * gamma + beta
    })
}

pub(super) fn cases() -> Vec<Case> {
    let x: &[f64] = &[0.4, -1.3, 2.1, 0.9, -0.2];
    let z: &[f64] = &[1.4, 0.3, -0.8, 0.5, 1.1];
    vec![
        case(formula!(row_sum(x) = x.row_sum()), &[x], &[]),
        case(formula!(row_max(x) = x.row_max() * x), &[x], &[]),
        case(formula!(row_min(x) = x.row_min()), &[x], &[]),
        case(formula!(row_of_row(x) = (x.row_max() * x.row_mean()).row_sum()), &[x], &[]),
        case(logsumexp(), &[x], &[]),
        case(softmax(), &[x], &[]),
        case(declared_softmax(), &[x], &[]),
        case(
            formula! {
                log_softmax(x) = { let m = x - x.row_max(); m - m.exp().row_sum().ln() };
                d x = g - y.exp() * g.row_sum();
            },
            &[x],
            &[],
        ),
        case(layer_norm(), &[x, z, z], &[1e-2]),
        case(formula!(rms_norm(x, gamma; eps) = x / (x.square().row_mean() + eps).sqrt() * gamma), &[x, z], &[1e-2]),
        case(formula!(standardize(x, mean: per_row, rstd: per_row) = (x - mean) * rstd), &[x, &[0.3], &[1.7]], &[]),
        case(
            formula!(
                moments(x) = {
                    let mean = x.row_mean();
                    (mean, (x - mean).square().row_mean(), x - mean)
                }
            ),
            &[x],
            &[],
        ),
        case(
            formula!(cross_entropy(x, t: per_row index) = {
                let m = x - x.row_max();
                m.exp().row_sum().ln() - row_index().eq(t).select(m, 0).row_sum()
            }),
            &[x, &[2.0]],
            &[],
        ),
    ]
}

#[test]
fn softmax_declared_and_symbolic_agree() {
    let x = vec![vec![0.4, -1.3, 2.1, 0.9, -0.2]];
    let g = vec![vec![1.0, -2.0, 0.5, 0.25, 3.0]];
    let symbolic = gradient_at(&softmax(), &x, &[], &g);
    let declared = gradient_at(&declared_softmax(), &x, &[], &g);
    for (a, b) in symbolic[0].iter().zip(&declared[0]) {
        assert!((a - b).abs() < 1e-15, "{a} differs from {b}");
    }
    let softmax = declared_softmax();
    let gradient = softmax.gradient(GradientRequest(1));
    assert_eq!(gradient.reads, [GradientInput::Output(0), GradientInput::Gradient(0)]);
    assert_eq!(gradient.to_string(), "softmax'(y, g) = y * (g - row_sum(g * y))");
}

#[test]
fn outputs_of_per_row_values_are_per_row() {
    let f = formula!(|x, m: per_row| (x - m, m * 2.0, x.row_max()));
    let per_row: Vec<bool> = f.outputs().iter().map(|o| o.per_row).collect();
    assert_eq!(per_row, [false, true, true]);
    let gradient = f.gradient(GradientRequest(0x21));
    assert_eq!(gradient.formula.outputs().iter().map(|o| o.per_row).collect::<Vec<_>>(), [false, true]);
    let constant = formula!(|x; k| { let _ = x; k * 2.0 });
    assert!(!constant.is_row() && !constant.outputs()[0].per_row);
}

#[test]
fn ties_of_a_row_maximum_share_the_gradient() {
    let f = formula!(|x| x.row_max());
    let g = gradient_at(f, &[vec![1.0, 7.0, 7.0, 2.0]], &[], &[vec![3.0]]);
    assert_eq!(g[0], [0.0, 1.5, 1.5, 0.0]);
}

#[test]
fn the_row_sum_of_a_per_row_value_multiplies_by_the_length() {
    let f = formula!(|x, m: per_row| x.row_sum() + m.row_sum());
    let x: &[f64] = &[1.0, 2.0, 4.0];
    assert_eq!(f.evaluate(&[x, &[10.0]], &[]), [[37.0]]);
    let g = gradient_at(f, &[x.to_vec(), vec![10.0]], &[], &[vec![2.0]]);
    assert_eq!(g, [vec![2.0, 2.0, 2.0], vec![6.0]]);
}

#[test]
fn an_empty_row_sums_to_zero() {
    let f = formula!(|x; k| (k * x.row_sum() + k, x * 2));
    assert_eq!(f.evaluate(&[&[]], &[3.0]), [vec![3.0], vec![]]);
}

#[test]
fn masked_positions_have_zero_gradients() {
    // The value at a masked position is −∞, so its weight and its gradient are exactly zero.
    let x = vec![vec![0.5, f64::NEG_INFINITY, 1.5]];
    let g = vec![vec![1.0, 5.0, -2.0]];
    for f in [softmax(), declared_softmax()] {
        let gradient = gradient_at(&f, &x, &[], &g);
        assert_eq!(gradient[0][1], 0.0, "{f}");
        assert!(gradient[0].iter().all(|v| v.is_finite()), "the gradient must be finite: {gradient:?}");
    }
}
