//! The examples of the documentation.

use crate::repository::files;

/// Crates below `pellucid`. Programs depend on `pellucid`, so their paths do not compile in a program.
const INNER: [&str; 4] = ["pellucid_derive", "pellucid_ir", "pellucid_nn", "pellucid_tensor"];

/// Returns the visible lines of examples that name an inner crate, with their line numbers. An example is a code block
/// that rustdoc compiles, in a Markdown document or, if `is_source`, in documentation comments.
fn lines_with_inner_crates(text: &str, is_source: bool) -> Vec<(usize, &str)> {
    let mut example: Option<bool> = None;
    let mut found = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let comment = line.trim_start();
        let comment = comment.strip_prefix("///").or_else(|| comment.strip_prefix("//!"));
        let Some(line) = (if is_source { comment } else { Some(line) }) else {
            example = None;
            continue;
        };
        let line = line.trim();
        if let Some(language) = line.strip_prefix("```") {
            let is_compiled = !["text", "sh", "bash", "toml", "python", "wgsl"].contains(&language);
            example = if example.is_some() { None } else { Some(is_compiled) };
        } else if example == Some(true) && !line.starts_with("# ") && INNER.iter().any(|name| line.contains(name)) {
            found.push((i + 1, line));
        }
    }
    found
}

#[test]
fn examples_name_no_inner_crate() {
    let mut wrong = String::new();
    for (name, text) in files(&["rs", "md"]) {
        let is_source = name.ends_with(".rs");
        if is_source && !name.contains("/src/") {
            continue;
        }
        for (line, code) in lines_with_inner_crates(&text, is_source) {
            wrong += &format!("{name}:{line}: `{code}`: name items by their paths in `pellucid`\n");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn the_check_of_examples_reads_visible_lines() {
    let source = "/// [`Linear`](pellucid_nn::Linear)\n///\n/// ```\n/// # extern crate pellucid_ir as pellucid;\n\
                  /// use pellucid_ir::Shape;\n/// ```\n/// `pellucid_nn`\n///\n/// ```text\n/// pellucid_nn\n/// ```\n\
                  use pellucid_nn::Linear;";
    assert_eq!(lines_with_inner_crates(source, true), [(5, "use pellucid_ir::Shape;")]);
    let page = "```rust\nuse pellucid_tensor::Tensor;\n```\n`pellucid_tensor`\n";
    assert_eq!(lines_with_inner_crates(page, false), [(2, "use pellucid_tensor::Tensor;")]);
}
