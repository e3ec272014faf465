//! The output lines of a sweep, and their summary.
#![allow(clippy::print_stdout, reason = "the report is the output of the program")]

use serde_json::Value;
use std::collections::BTreeMap;

/// The ratio above which a case is listed.
const SLOW: f64 = 1.2;

/// Prints a case as JSON, with three digits of each number.
pub(super) fn print_line(line: &Value) {
    let mut rounded = line.clone();
    for name in ["us", "peer_us", "ratio", "share"] {
        if let Some(number) = line[name].as_f64() {
            rounded[name] = format!("{number:.3e}").parse::<f64>().unwrap_or(number).into();
        }
    }
    println!("{rounded}");
}

/// Prints Markdown tables: a summary of all ratios and of each pass and size, and the slow cases, slowest first.
pub(super) fn print_summary(lines: &[Value]) {
    let with_ratio: Vec<&Value> = lines.iter().filter(|line| line["ratio"].is_number()).collect();
    let rejected = lines.iter().filter(|line| line["rejected"].is_string()).count();
    println!(
        "\n| cases | number | geometric mean | median | above {SLOW} | above 1 |\n| --- | --- | --- | --- | --- | --- |"
    );
    print_group("all", &with_ratio);
    let mut groups: BTreeMap<String, Vec<&Value>> = BTreeMap::new();
    for line in &with_ratio {
        let elements: u64 = line["shape"].as_array().map_or(0, |dims| dims.iter().filter_map(Value::as_u64).product());
        let size = if elements <= 512 {
            "small"
        } else if elements <= 200_000 {
            "medium"
        } else {
            "large"
        };
        let pass = line["pass"].as_str().unwrap_or_default();
        groups.entry(format!("{pass}, {size}")).or_default().push(line);
    }
    groups.iter().for_each(|(name, group)| print_group(name, group));
    println!(
        "\n{} cases have no expression of PyTorch, or it rejected them ({rejected}).",
        lines.len() - with_ratio.len()
    );
    let mut slow: Vec<&Value> = with_ratio.into_iter().filter(|line| ratio(line) > SLOW).collect();
    slow.sort_by(|a, b| ratio(b).total_cmp(&ratio(a)));
    println!(
        "\n| operation | expression | first operand | pass | us | PyTorch | ratio |\n| --- | --- | --- | --- | --- | --- | --- |"
    );
    for line in slow {
        let text = |name: &str| line[name].as_str().unwrap_or_default().replace('|', "\\|");
        let number = |name: &str| line[name].as_f64().unwrap_or(f64::NAN);
        println!(
            "| {} | `{}` | {} {} {} | {} | {:.4} | {:.4} | {:.2} |",
            text("op"),
            text("expression"),
            line["shape"],
            text("dtype"),
            text("layout"),
            text("pass"),
            number("us"),
            number("peer_us"),
            ratio(line)
        );
    }
}

fn ratio(line: &Value) -> f64 {
    line["ratio"].as_f64().unwrap_or(f64::NAN)
}

fn print_group(name: &str, lines: &[&Value]) {
    let mut ratios: Vec<f64> = lines.iter().map(|line| ratio(line)).collect();
    ratios.sort_by(f64::total_cmp);
    let Some(&median) = ratios.get(ratios.len() / 2) else { return };
    let mean = (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64).exp();
    let above = |bound: f64| ratios.iter().filter(|ratio| **ratio > bound).count();
    println!("| {name} | {} | {mean:.2} | {median:.2} | {} | {} |", ratios.len(), above(SLOW), above(1.0));
}
