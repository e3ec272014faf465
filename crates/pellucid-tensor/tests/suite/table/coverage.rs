//! Coverage: compares the names of the rows with the source of `ops`. An operation without a row is a failure.

use super::rows;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Public functions of `ops` that are not operations.
const NO_OPERATIONS: [(&str, &str); 1] = [("over", "writes down axes with their options")];

/// Collects the operations that a file defines: its public functions, and the lines of its tables.
///
/// A table is an unindented macro call. Its lines are `tanh(x) = ..;` with a formula, or `conv1d, conv_transpose1d:
/// ..;` with the common part of several operations. Doc comments and more deeply indented lines are skipped.
fn operations(source: &str, into: &mut BTreeSet<String>) {
    let name = |text: &str| -> String { text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect() };
    let mut in_table = false;
    for line in source.lines() {
        if line.starts_with(char::is_alphabetic) && line.ends_with("! {") {
            in_table = true;
        } else if line == "}" {
            in_table = false;
        }
        if let Some(rest) = line.strip_prefix("pub fn ") {
            into.insert(name(rest));
        }
        let Some(rest) = line.strip_prefix("    ").filter(|_| in_table) else { continue };
        let first = name(rest);
        if first.is_empty() {
            continue;
        }
        if rest[first.len()..].starts_with('(') && rest.contains(") =") {
            into.insert(first);
        } else if let Some((names, _)) = rest.split_once(": ") {
            into.extend(names.split(", ").map(name));
        }
    }
}

/// Passes every source file below a folder to `read`.
fn sources(folder: &Path, read: &mut dyn FnMut(&str)) {
    for entry in fs::read_dir(folder).expect("the source directory is readable") {
        let path = entry.expect("the directory entry is readable").path();
        if path.is_dir() {
            sources(&path, read);
        } else if path.extension().is_some_and(|e| e == "rs") {
            read(&fs::read_to_string(&path).expect("the source file is readable"));
        }
    }
}

/// Returns the public functions of `ops` with a parameter that is a size, an axis, a count, or a list of these.
pub fn with_sizes() -> BTreeSet<String> {
    const TYPES: [&str; 14] = [
        "usize",
        "isize",
        "Into<Shape>",
        "Into<Target>",
        "Into<Axes>",
        "Into<super::Axes>",
        "Spatial",
        "Pool,",
        "Conv)",
        "Sections",
        "Repeats",
        "PadWidth",
        "Bins",
        "Resize",
    ];
    let mut found = BTreeSet::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/ops"), &mut |source| {
        for function in source.split("\npub fn ").skip(1) {
            let signature = function.split_once("{\n").map_or(function, |(signature, _)| signature);
            let name = signature.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            if TYPES.iter().any(|ty| signature.contains(ty)) {
                found.insert(name);
            }
        }
    });
    found
}

#[test]
fn every_operation_has_a_row() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let mut defined = BTreeSet::new();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/ops");
    sources(&folder, &mut |source| operations(source, &mut defined));
    assert!(defined.len() > 100, "too few operations found in the source: {defined:?}");
    for (name, reason) in NO_OPERATIONS {
        assert!(defined.remove(name), "`{name}` ({reason}) does not exist: remove it from the list");
    }
    let rows: Vec<String> = rows::all().iter().map(|r| r.name.to_string()).collect();
    let named: BTreeSet<String> = rows.iter().cloned().collect();
    assert_eq!(named.len(), rows.len(), "two rows have the same name");
    let missing: Vec<_> = defined.difference(&named).collect();
    let unknown: Vec<_> = named.difference(&defined).collect();
    assert!(missing.is_empty(), "operations without a row in the table: {missing:?}");
    assert!(unknown.is_empty(), "rows without an operation: {unknown:?}");
}
