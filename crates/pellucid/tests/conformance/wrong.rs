//! Tests of the check itself: an error in one order is reported for that order.

use crate::bindings::Binding;
use crate::cases;
use crate::check::{rejected, sample};
use crate::data::Case;
use pellucid::{Result, Tensor, ops};

/// Returns the results of the check for a binding of `sin`, in every run.
fn verdicts(f: impl Fn(&Tensor) -> Result<Tensor> + Send + Sync + 'static) -> Vec<Result<(), String>> {
    let binding: Binding = Box::new(move |c| Ok(vec![f(c.x()?)?]));
    let case = case("sin");
    sample(&binding, case, &case.operation.samples[0]).into_iter().map(|(_, verdict)| verdict).collect()
}

fn case(name: &str) -> &'static Case {
    cases().iter().find(|case| case.operation.name == name).expect("the test data must contain the operation")
}

#[test]
fn a_correct_binding_passes() {
    assert!(verdicts(ops::sin).iter().all(Result::is_ok));
}

#[test]
fn a_wrong_derivative_is_found_in_its_order() {
    for (order, kind) in [(1, "grad of"), (2, "ggrad of"), (3, "g3 of")] {
        // (x − x₀)ⁿ and its derivatives below the n-th are 0 at x₀.
        let bent = move |x: &Tensor| {
            let offset = ops::sub(x, x.detach())?;
            ops::add(ops::sin(x)?, (1..order).try_fold(offset.clone(), |power, _| ops::mul(power, &offset))?)
        };
        for verdict in verdicts(bent) {
            assert!(
                verdict.as_ref().is_err_and(|why| why.starts_with(kind)),
                "a wrong derivative of order {order} must be reported as `{kind} ..`, but the result is {verdict:?}"
            );
        }
    }
}

#[test]
fn a_wrong_value_is_found_in_either_precision() {
    let scaled = |by: f64| verdicts(move |x| ops::mul(ops::sin(x)?, by));
    let wrong = |verdict: &Result<(), String>| verdict.as_ref().is_err_and(|why| why.starts_with("output 0"));
    assert!(scaled(1.0 + 1e-8).iter().take(4).all(wrong));
    assert!(scaled(1.0 + 1e-3).iter().all(wrong));
}

#[test]
fn a_missing_error_is_found() {
    let accepts: Binding = Box::new(|c| Ok(vec![c.x()?.clone()]));
    let case = case("dot");
    assert!(rejected(&accepts, case, &case.operation.rejections[0]).is_err_and(|why| why.starts_with("accepted")));
}

#[test]
fn a_panic_is_a_failure_with_its_text() {
    let verdict = verdicts(|_| panic!("no such kernel")).remove(0);
    assert_eq!(verdict, Err("panicked: no such kernel".to_string()));
}
