//! The sizes of files and functions.

use std::iter;

/// The maximum number of lines of a source file.
const MAX_FILE_LINES: usize = 600;
/// The maximum number of lines of a function, including its signature.
const MAX_FUNCTION_LINES: usize = 80;

/// Returns an error for a source file that is too long, and for each function that is too long.
pub(crate) fn size_errors(name: &str, text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().collect();
    let file = (lines.len() > MAX_FILE_LINES)
        .then(|| format!("{name} has {} lines; split it, the limit is {MAX_FILE_LINES}", lines.len()));
    let functions = (0..lines.len()).filter_map(|first| {
        let function = function_name(lines[first])?;
        let len = function_len(&lines[first..])?;
        (len > MAX_FUNCTION_LINES).then(|| {
            let line = first + 1;
            format!("{name}:{line}: `{function}` has {len} lines; split it, the limit is {MAX_FUNCTION_LINES}")
        })
    });
    file.into_iter().chain(functions).collect()
}

/// Returns the name of the function whose signature begins in this line.
fn function_name(line: &str) -> Option<&str> {
    let qualifiers = |word: &&str| matches!(*word, "const" | "unsafe" | "async" | "pub") || word.starts_with("pub(");
    let mut words = line.split_whitespace().skip_while(qualifiers);
    if words.next()? != "fn" {
        return None;
    }
    words.next()?.split(|c: char| !(c.is_alphanumeric() || c == '_')).next()
}

/// Returns the number of lines of a function; `None` for a declaration without a body. rustfmt aligns the closing brace
/// with the first character of the signature.
fn function_len(lines: &[&str]) -> Option<usize> {
    let opens = lines.iter().position(|line| line.ends_with(['{', ';', '}']))?;
    if !lines[opens].ends_with('{') {
        return None;
    }
    let indent = lines[0].len() - lines[0].trim_start().len();
    let end: String = iter::repeat_n(' ', indent).chain(['}']).collect();
    let rest = lines[opens + 1..].iter().position(|line| line.starts_with(&end))?;
    Some(opens + rest + 2)
}

#[test]
fn long_functions_and_files_are_found() {
    let function =
        |lines: usize| format!("impl X {{\n    pub(crate) fn long(\n    ) {{\n{}    }}\n}}\n", "    ;\n".repeat(lines));
    assert!(size_errors("a.rs", &function(MAX_FUNCTION_LINES - 3)).is_empty());
    let errors = size_errors("a.rs", &function(MAX_FUNCTION_LINES - 2));
    assert_eq!(errors, ["a.rs:2: `long` has 81 lines; split it, the limit is 80"]);
    assert_eq!(size_errors("a.rs", &"//\n".repeat(MAX_FILE_LINES + 1)).len(), 1);
    assert!(size_errors("a.rs", &format!("fn declared();\n{}", "//\n".repeat(MAX_FILE_LINES - 1))).is_empty());
}
