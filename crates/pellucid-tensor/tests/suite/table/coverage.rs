//! Coverage: compares the names of the rows with the registry of operations. An operation without a row is a failure.

use super::rows;
use pellucid_tensor::operations;

/// Returns the names that occur more often in `names` than in `others`.
fn surplus(names: &[&'static str], others: &[&'static str]) -> Vec<&'static str> {
    let mut rest = others.to_vec();
    let mut is_matched =
        |name: &&str| rest.iter().position(|other| other == name).map(|k| rest.swap_remove(k)).is_some();
    names.iter().copied().filter(|name| !is_matched(name)).collect()
}

#[test]
fn every_operation_has_a_row() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let defined: Vec<&str> = operations().map(|op| op.name).collect();
    let rows: Vec<&str> = rows::all().iter().map(|row| row.name).collect();
    let (missing, unknown) = (surplus(&defined, &rows), surplus(&rows, &defined));
    assert!(missing.is_empty(), "every operation must have a row in the table; without a row: {missing:?}");
    assert!(unknown.is_empty(), "every row must belong to an operation without another row; wrong rows: {unknown:?}");
}
