//! Links and paths in the documents.

use std::collections::BTreeSet;
use std::path::Path;

/// Returns the line and the target of every link `[text](target)` of a Markdown document, without code blocks.
pub(crate) fn links(text: &str) -> Vec<(usize, &str)> {
    outside_of_code(text)
        .flat_map(|(line, text)| {
            let targets = text.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
            targets.map(move |(target, _)| (line, target))
        })
        .collect()
}

/// Returns the line and the contents of every path in backquotes: `folder/file.rs` or `folder/`.
pub(crate) fn quoted_paths(text: &str) -> Vec<(usize, &str)> {
    let is_path = |quoted: &&str| {
        let plain = quoted.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-./".contains(&b));
        let has_ending = [".rs", ".md", ".py", ".txt", "/"].iter().any(|end| quoted.ends_with(end));
        plain && quoted.contains('/') && has_ending && !quoted.starts_with(['.', '/'])
    };
    outside_of_code(text)
        .flat_map(|(line, text)| {
            let quoted = text.split('`').skip(1).step_by(2).filter(is_path);
            quoted.map(move |quoted| (line, quoted)).collect::<Vec<_>>()
        })
        .collect()
}

/// Returns the numbered lines of a document that are not in a code block.
fn outside_of_code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    text.lines().enumerate().filter_map(move |(i, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        (!is_code && !is_fence).then_some((i + 1, line))
    })
}

/// Returns true if the target of a link in `document` exists, or is not a file.
pub(crate) fn exists(root: &Path, document: &str, target: &str) -> bool {
    let file = target.split('#').next().unwrap_or_default();
    let folder = Path::new(document).parent().unwrap_or(Path::new(""));
    file.is_empty() || file.contains("://") || root.join(folder).join(file).exists()
}

/// The paths of the files of the repository, and of their folders with a `/` at the end.
pub(crate) struct KnownPaths(BTreeSet<String>);

impl KnownPaths {
    pub(crate) fn new<'a>(files: impl Iterator<Item = &'a str>) -> KnownPaths {
        let mut known = BTreeSet::new();
        for file in files {
            let ends = file.match_indices('/').map(|(at, _)| at + 1).chain([file.len()]);
            known.extend(ends.map(|end| format!("/{}", &file[..end])));
        }
        KnownPaths(known)
    }

    /// Returns true if `path` is the end of the path of a file or folder.
    pub(crate) fn contains(&self, path: &str) -> bool {
        let end = format!("/{path}");
        self.0.iter().any(|known| known.ends_with(&end))
    }
}
