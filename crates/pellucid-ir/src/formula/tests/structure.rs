//! How formulas are built, simplified and printed.

use super::*;
use crate::DType;
use std::panic::catch_unwind;

fn text(f: &Formula) -> String {
    let text = f.to_string();
    text.split_once(" = ").unwrap().1.to_string()
}

#[test]
fn equal_subexpressions_are_one_node() {
    let f = formula!(|x, y| (x + y).exp() * (y + x).exp());
    assert_eq!(
        f.graph().len(),
        5,
        "the graph must have 5 nodes: two inputs, their sum, its exponential, the square of that: {f}"
    );
    assert_eq!(text(f), "{ let a = exp(x + y); a * a }");
    let f = formula!(|x, y| (x - y) * (y - x));
    assert_eq!(f.graph().len(), 5, "the graph must keep both differences, which do not commute: {f}");
    let f = formula!(|x| (x + 2) * (x + 2.0));
    assert_eq!(f.graph().len(), 4, "2 and 2.0 must be one literal: {f}");
}

#[test]
fn values_are_simplified_only_where_no_bit_changes() {
    assert_eq!(text(formula!(|x| 1.0 * x * 1.0 / 1.0)), "x");
    assert_eq!(text(formula!(|x| -(-x))), "x");
    assert_eq!(text(formula!(|c: mask| !!c)), "c");
    assert_eq!(text(formula!(|x| x * (0.5 * Expr::literal(0.25, ValueKind::Number)))), "x * 0.125");
    // −0 + 0 is +0, 0·∞ is NaN, and 0.1 is rounded differently in every type.
    assert_eq!(text(formula!(|x| x + 0.0)), "x + 0");
    assert_eq!(text(formula!(|x| x * 0.0)), "x * 0");
    assert_eq!(text(formula!(|x| x * (0.1 * Expr::literal(3, ValueKind::Number)))), "x * (0.1 * 3)");
    assert_eq!(text(formula!(|x| (x * 2.0) * 3.0)), "x * 2 * 3");
    assert_eq!(text(formula!(|x| x - x)), "x - x");
}

#[test]
fn exact_folding_is_exact_in_single_precision() {
    // Every folded operation on two f32 numbers must give the result of f32 arithmetic.
    let values = [1.0_f32, 3.0, 7.0, 0.1, 1e-20, 1e-38, 16_777_215.0, -0.3, 5e-7];
    for a in values {
        for b in values {
            let f = Formula::new("folds", &[], 0, |_, _| {
                let (a, b) = (Expr::literal(a as f64, ValueKind::Number), Expr::literal(b as f64, ValueKind::Number));
                vec![a + b, a - b, a * b, a / b]
            });
            let single = [a + b, a - b, a * b, a / b];
            for (output, expected) in f.outputs().iter().zip(single) {
                if let FormulaNode::Literal(literal) = f.graph().node(output.node) {
                    assert_eq!(
                        (literal.value.to_f64() as f32).to_bits(),
                        expected.to_bits(),
                        "the folded result for {a} and {b} differs from f32 arithmetic"
                    );
                }
            }
        }
    }
}

#[test]
fn display_prints_mathematical_text() {
    use std::f64::consts::FRAC_1_SQRT_2;
    let gelu = formula!(gelu(x) = 0.5 * x * (1.0 + (x * FRAC_1_SQRT_2).erf()));
    assert_eq!(gelu.to_string(), "gelu(x) = 0.5 * x * (1 + erf(x * 0.7071067811865476))");
    assert_eq!(text(formula!(|a, b| a - (b - a) - b)), "a - (b - a) - b");
    assert_eq!(text(formula!(|a, b| a / (b * a) % -b)), "a / (b * a) % -b");
    assert_eq!(text(formula!(|a, b| (a.lt(b) & !a.is_nan()).select(a, b))), "select(a < b & !is_nan(a), a, b)");
    let f = formula!(|x, y; k| (x * k, y.row_sum() / row_len()));
    assert_eq!(f.to_string(), "formula(x, y; k) = (x * k, row_sum(y) / row_len)");
    assert_eq!(
        Formula::new("f", &[Input::NUMBER; 2], 1, |x, k| vec![x[0] + x[1] * k[0]]).to_string(),
        "f(x0, x1; k) = x0 + x1 * k"
    );
}

#[test]
fn a_formula_is_built_once_per_call_site() {
    let make = || formula!(|x| x + 1.0);
    assert!(std::ptr::eq(make(), make()));
    assert!(!std::ptr::eq(make(), formula!(|x| x + 1.0)));
}

#[test]
fn formulas_can_be_generic_over_real() {
    fn gelu<T: Real>(x: T) -> T
    where
        f64: Literals<T>,
    {
        0.5 * x * (1.0 + (x * std::f64::consts::FRAC_1_SQRT_2).erf())
    }
    fn relu<T: Real>(x: T) -> T
    where
        f64: Literals<T>,
    {
        x.le(0.0).select(0.0, x).max(x.clamp(-1.0, 0.0))
    }
    let f = formula!(|x| gelu(x) + relu(x));
    for x in [-2.0, 0.0, 0.3, 4.0] {
        assert_eq!(f.evaluate(&[&[x]], &[])[0][0], gelu(x) + relu(x));
        assert!((gelu(SingleFloat(x as f32)).0 - gelu(x) as f32).abs() < 1e-6);
    }
    assert!(Real::max(f64::NAN, 1.0).is_nan(), "Real::max must propagate NaN, unlike f64::max");
}

#[test]
fn derivative_lines_can_read_inputs_parameters_outputs_and_gradients() {
    // A name of an input that equals the name of an output or incoming gradient refers to the input.
    let f = formula! {
        two(x, y; k) = (x * y, k * x);
        d x = g0 * y + g1 * k;
        d y = g0 * y0 / y;
    };
    let gradient = f.gradient(GradientRequest(0x21));
    assert_eq!(gradient.to_string(), "two'(y, y0, g0, g1; k) = (g0 * y + g1 * k, g0 * y0 / y)");
    let per_row = formula! {
        scale(x, s: per_row) = x * s;
        d s = g * x;
    };
    let gradient = per_row.gradient(GradientRequest::for_input(1));
    assert_eq!(gradient.to_string(), "scale'(x, g) = row_sum(g * x)");
}

#[test]
fn formulas_call_formulas() {
    let square = formula!(|x; k| k * x * x);
    let f = Formula::new("outer", &[Input::NUMBER], 0, |x, _| {
        let three = Expr::literal(3, ValueKind::Number);
        square.call(&[x[0].round_to(DType::BF16)], &[three])
    });
    assert_eq!(f.evaluate(&[&[2.0]], &[]), [[12.0]]);
    assert_eq!(text(&f), "{ let a = bf16(x); 3 * a * a }");
}

#[test]
fn misuse_panics_with_a_help_text() {
    let message = |f: fn()| *catch_unwind(f).unwrap_err().downcast::<String>().unwrap();
    let kinds = message(|| drop(Formula::new("f", &[Input::MASK], 0, |c, _| vec![c[0].exp()])));
    assert!(
        kinds.contains("the operand of `exp` must be a number, got a mask") && kinds.contains("to_number()"),
        "{kinds}"
    );
    let mixed = message(|| drop(Formula::new("f", &[Input::NUMBER, Input::INDEX], 0, |x, _| vec![x[0] + x[1]])));
    assert!(mixed.contains("a number and an index"), "{mixed}");
    let outside = message(|| {
        let mut kept = None;
        Formula::new("f", &[Input::NUMBER], 0, |x, _| {
            kept = Some(x[0]);
            x.to_vec()
        });
        let _ = Formula::new("g", &[Input::NUMBER], 0, |_, _| vec![kept.unwrap().exp()]);
    });
    assert!(outside.contains("in a formula other than the one that created it"), "{outside}");
    let nowhere = catch_unwind(|| Expr::input(0).exp().kind()).unwrap_err();
    let nowhere =
        nowhere.downcast::<String>().map(|s| *s).unwrap_or_else(|s| s.downcast::<&str>().unwrap().to_string());
    assert!(nowhere.contains("only while its formula is built"), "{nowhere}");
    let early = message(|| drop(Formula::new("f", &[Input::NUMBER], 0, |_, _| vec![Expr::gradient(0)])));
    assert!(early.contains("incoming gradient 0 does not exist here"), "{early}");
    fn twice() -> Formula {
        Formula::new("twice", &[Input::NUMBER], 1, |x, k| vec![k[0] * x[0]])
    }
    let inputs = message(|| _ = formula!(|a, b| twice().call(&[a, b], &[])[0]));
    assert_eq!(inputs, "formula `twice`: expected 1 inputs, got 2");
    let parameters = message(|| drop(twice().evaluate(&[&[1.0]], &[])));
    assert_eq!(parameters, "formula `twice`: expected 1 parameters, got 0");
    let elements = message(|| drop(twice().evaluate_row(&[&[1.0]], &[2.0], 2)));
    assert_eq!(elements, "formula `twice`: input 0 must have 2 elements, got 1");
    // A panic does not affect the construction of the next formula.
    assert_eq!(text(formula!(|x| x + 1)), "x + 1");
}

#[test]
fn the_text_of_a_program_names_its_operations() {
    let program = formula! { static f(x; k) = (k * x + 0.5).exp().row_sum() }.uniform_program(DType::F32).unwrap();
    let text = program.to_string();
    for part in ["= parameter 0 as f32", "= 0.5 as f32", "exp.f32 ", "row_sum.f32 "] {
        assert!(text.contains(part), "{part} must be in\n{text}");
    }
}

#[test]
fn wanted_stores_four_bits_per_input() {
    assert_eq!(GradientRequest::all(3), GradientRequest(0x321));
    assert_eq!(GradientRequest(0x201).output_of(2), Some(1));
    assert_eq!(GradientRequest(0x201).output_of(1), None);
    assert_eq!(GradientRequest(0x11).outputs(), 1);
    assert_eq!(GradientRequest(0).outputs(), 0);
}
