//! Estimates of the iterations of loops.
//!
//! An adapter may terminate the loops of an invocation after a total number of iterations, without an error
//! ([`DispatchLimits`](crate::gpu::DispatchLimits)). Families therefore split long loops, depending on the iterations
//! of the loop bodies. Functions of the library contribute most of these: a division of 64-bit values is a loop over
//! its bits.

use super::special_functions::special_function;
use super::{called_functions, function_source};
use crate::shader::KernelFeatures;
use pellucid_ir::lock;
use std::collections::HashMap;
use std::sync::{LazyLock, Mutex};

/// The maximum number of loop iterations of an invocation on an adapter that terminates long loops. The limit of
/// llvmpipe is higher, which leaves a margin for short loops that the estimates omit.
pub(crate) const MAX_ITERATIONS: usize = 60_000;

/// The assumed number of iterations of a loop without a constant bound, such as the sum of a series.
const SERIES_TERMS: usize = 256;

/// Returns the number of items that one invocation can process in a loop, if the loops of an item have `per_item`
/// iterations. The result is at least 1.
pub(crate) fn max_items(per_item: usize) -> usize {
    (MAX_ITERATIONS / per_item.saturating_add(1)).max(1)
}

/// Returns an estimate of the iterations of all loops that `source` executes, including the loops of the functions that
/// it calls.
///
/// The length of a loop is the constant in its condition, or the number in the comment `at most N iterations`.
pub(crate) fn iterations(source: &str) -> usize {
    let mut total = 0usize;
    // The number of executions of the statements in every open block.
    let mut open = vec![1usize];
    for line in source.lines() {
        let outside = open.last().copied().unwrap_or(1);
        let is_loop = ["for (", "while (", "loop {"].iter().any(|start| line.trim_start().starts_with(start));
        let times = if is_loop { outside.saturating_mul(length(line)) } else { outside };
        if is_loop {
            total = total.saturating_add(times);
        }
        for name in called_functions(line) {
            total = total.saturating_add(times.saturating_mul(function_iterations(name)));
        }
        for brace in line.split("//").next().unwrap_or_default().matches(['{', '}']) {
            match brace {
                "{" => open.push(times),
                _ => drop(open.pop()),
            }
        }
    }
    total
}

/// Returns the iterations of a loop that `line` begins.
fn length(line: &str) -> usize {
    let number_after = |marker: &str| {
        let rest = &line[line.find(marker)? + marker.len()..];
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        rest[..digits].parse::<usize>().ok()
    };
    // A loop that counts down begins with its length.
    let counts_down = line.contains(" > ") || line.contains(" >= ");
    let start = || number_after(" = ").filter(|_| counts_down);
    number_after("at most ").or_else(|| number_after(" < ")).or_else(start).unwrap_or(SERIES_TERMS)
}

/// Returns the iterations of a function of the library.
fn function_iterations(name: &str) -> usize {
    static CACHED: LazyLock<Mutex<HashMap<String, usize>>> = LazyLock::new(Mutex::default);
    if let Some(function) = name.strip_prefix("f_").and_then(special_function) {
        return function.iterations;
    }
    let cached = lock(&CACHED).get(name).copied();
    if let Some(count) = cached {
        return count;
    }
    // The functions for adapters without optional features have the most iterations.
    let source = function_source(name, KernelFeatures::default()).unwrap_or_default();
    let count = source.split_once('{').map_or(0, |(_, body)| iterations(body));
    lock(&CACHED).insert(name.into(), count);
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iterations_of_nested_loops_are_multiplied() {
        assert_eq!(iterations("let x = 1.0;\nlet y = f_add(x, x);"), 0);
        assert_eq!(iterations("for (var i = 0u; i < 4u; i = i + 1u) {\nfor (var j = 0u; j < 3u; j++) {\n}\n}"), 16);
        assert_eq!(iterations("for (var i = 7u - 1u; i > 0u; i = i - 1u) {\n}\nloop {\n}"), 7 + SERIES_TERMS);
        let parameter_limit = "for (var i = 0u; i < params[3]; i = i + 1u) {\n}";
        assert_eq!(iterations(parameter_limit), SERIES_TERMS);
        assert_eq!(iterations("while (x > y) { // at most 9 iterations\nif (z) {\n}\n}"), 9);
    }

    #[test]
    fn iterations_of_functions_are_included() {
        assert_eq!(iterations("let q = l_divide_unsigned(a, b);"), 64);
        assert!((64..200).contains(&iterations("let q = d_div(a, b);")), "{}", iterations("d_div(a, b)"));
        let twice = "for (var i = 0u; i < 2u; i = i + 1u) {\nlet q = d_div(a, b);\n}";
        assert_eq!(iterations(twice), 2 + 2 * iterations("d_div(a, b)"));
        assert!(iterations("let y = f_igamma(a, x);") > 500);
        for short in ["f_exp(x)", "f_tanh(x)", "f_erf(x)", "f_ln(x)", "d_add(x, y)", "d_mul(x, y)", "l_mul(x, y)"] {
            assert!(iterations(short) < 64, "{short}: {}", iterations(short));
        }
        // Products of `f64` execute them for every pair of factors.
        for straight in ["d_add(x, y)", "d_mul(x, y)", "d_fma(x, y, z)", "l_add(x, y)", "l_mul(x, y)"] {
            assert_eq!(iterations(straight), 0, "{straight}");
        }
    }
}
