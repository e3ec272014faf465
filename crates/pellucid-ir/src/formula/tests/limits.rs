//! Kinks, ties, large arguments and infinities, against limits written by hand.

use super::*;
use std::f64::consts::FRAC_1_SQRT_2;

const INF: f64 = f64::INFINITY;

fn slopes(f: &Formula, points: &[(f64, f64)]) {
    for &(x, expected) in points {
        let found = slope(f, x, &[]);
        let same = found == expected || (found.is_nan() && expected.is_nan());
        assert!(same, "{f} at {x}: the slope is {found}, expected {expected}");
    }
}

#[test]
fn derivatives_at_kinks_follow_the_conventions() {
    slopes(formula!(|x| x.relu()), &[(0.0, 0.0), (-0.0, 0.0), (1e4, 1.0), (-1e4, 0.0), (INF, 1.0), (-INF, 0.0)]);
    slopes(formula!(|x| x.abs()), &[(0.0, 0.0), (-1e4, -1.0), (1e4, 1.0), (-INF, -1.0)]);
    slopes(
        formula!(|x| x.clamp(-1.0, 1.0)),
        &[(-1.0, 1.0), (1.0, 1.0), (0.0, 1.0), (1.5, 0.0), (-1e4, 0.0), (INF, 0.0)],
    );
    slopes(formula!(|x| x.max(0.0)), &[(0.0, 0.5), (1.0, 1.0), (-1.0, 0.0)]);
    slopes(formula!(|x| x.max(x)), &[(3.0, 1.0)]);
    slopes(formula!(|x| x.sqrt()), &[(0.0, INF), (INF, 0.0)]);
    slopes(formula!(|x| x.pow(0.0)), &[(0.0, 0.0), (INF, 0.0)]);
    slopes(formula!(|x| x.pow(2.0)), &[(0.0, 0.0), (-3.0, -6.0)]);
    slopes(formula!(|x| x.pow(1.0)), &[(0.0, 1.0), (-2.0, 1.0)]);
}

#[test]
fn ties_of_two_inputs_are_split_evenly() {
    let f = formula!(|a, b| (a.max(b), a.min(b)));
    let at = |a: f64, b: f64| {
        let g = gradient_at(f, &[vec![a], vec![b]], &[], &[vec![1.0], vec![10.0]]);
        (g[0][0], g[1][0])
    };
    assert_eq!(at(2.0, 2.0), (5.5, 5.5));
    assert_eq!(at(3.0, 2.0), (1.0, 10.0));
    assert_eq!(at(INF, INF), (5.5, 5.5));
}

#[test]
fn powers_at_zero_have_finite_gradients() {
    let f = formula!(|a, b| a.pow(b));
    let at = |a: f64, b: f64| {
        let g = gradient_at(f, &[vec![a], vec![b]], &[], &[vec![1.0]]);
        (g[0][0], g[1][0])
    };
    assert_eq!(at(0.0, 0.0), (0.0, 0.0));
    assert_eq!(at(0.0, 1.0), (1.0, 0.0));
    assert_eq!(at(0.0, 2.0), (0.0, 0.0));
    assert_eq!(at(INF, 0.0).0, 0.0);
    assert_eq!(at(-2.0, 3.0).0, 12.0);
}

#[test]
fn the_unselected_operand_does_not_affect_gradients() {
    // The unselected operand is ln of a negative number, or has an infinite slope at zero.
    let f = formula!(|x| x.gt(0).select(x.gt(0).select(x, 1).ln(), 0));
    slopes(f, &[(0.0, 0.0), (-1.0, 0.0), (2.0, 0.5)]);
    let f = formula!(|x| x.gt(0).select(x, 0.0));
    let g = gradient_at(f, &[vec![-1.0]], &[], &[vec![INF]]);
    assert_eq!(
        g[0][0], 0.0,
        "the gradient of an unselected operand must be 0, even if the incoming gradient is infinite"
    );
}

#[test]
fn nan_propagates_through_values() {
    let nan = [f64::NAN];
    for f in [
        formula!(|x| x.relu()),
        formula!(|x| x.clamp(-1.0, 1.0)),
        formula!(|x| x.max(0.0)),
        formula!(|x| x.signum()),
        formula!(|x| x.abs()),
        formula!(|x| x.row_max()),
    ] {
        assert!(f.evaluate(&[&nan], &[])[0][0].is_nan(), "the result of {f} for NaN must be NaN");
    }
}

#[test]
fn clamp_with_crossed_bounds_returns_the_upper_one() {
    let f = formula!(|x| x.clamp(2.0, 1.0));
    assert_eq!(f.evaluate(&[&[0.0, 1.5, 5.0]], &[]), [[1.0, 1.0, 1.0]]);
}

#[test]
fn remainders_of_exp_are_infinite_at_both_ends() {
    let f = formula!(|v| remainders::exp_m1_minus(v));
    for (v, expected) in [(INF, INF), (1e5, INF), (-INF, INF), (-2e4, 19999.0), (0.0, 0.0)] {
        assert_eq!(f.evaluate(&[&[v]], &[]), [[expected]], "{v}");
    }
    slopes(f, &[(INF, INF), (1e5, INF), (-INF, -1.0), (0.0, 0.0)]);
}

#[test]
fn activations_are_accurate_for_large_arguments() {
    let softplus = formula! { softplus(x) = x.relu() + (-x.abs()).exp().ln_1p(); d x = g * x.sigmoid(); };
    slopes(&softplus, &[(0.0, 0.5), (1e4, 1.0), (-1e4, 0.0), (INF, 1.0), (-INF, 0.0)]);
    let gelu = formula!(|x| 0.5 * x * (1.0 + (x * FRAC_1_SQRT_2).erf()));
    slopes(gelu, &[(0.0, 0.5), (1e4, 1.0), (-1e4, 0.0)]);
    slopes(formula!(|x| x.sigmoid()), &[(0.0, 0.25), (1e4, 0.0), (-1e4, 0.0), (INF, 0.0), (-INF, 0.0)]);
    slopes(formula!(|x| x.tanh()), &[(0.0, 1.0), (1e4, 0.0), (-1e4, 0.0), (INF, 0.0)]);
    slopes(formula!(|x| x * x.sigmoid()), &[(0.0, 0.5), (1e4, 1.0), (-1e4, 0.0)]);
    slopes(formula!(|x| x.erf()), &[(1e4, 0.0), (INF, 0.0)]);
    slopes(formula!(|x| x.atan()), &[(INF, 0.0), (0.0, 1.0)]);
    slopes(formula!(|x| x.ln()), &[(0.0, INF), (INF, 0.0)]);
}
