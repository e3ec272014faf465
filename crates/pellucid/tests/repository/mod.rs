//! The files of the repository, and lists of exceptions whose counts may only decrease.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// Returns the root of the workspace.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace directory must exist")
}

/// Returns the files of the repository with one of these extensions, with paths relative to the root.
pub(crate) fn files(extensions: &[&str]) -> Vec<(String, String)> {
    fn visit(folder: &Path, extensions: &[&str], found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder)
            .expect("the directory must be readable")
            .map(|e| e.expect("the directory entry must be readable"))
        {
            let (path, name) = (entry.path(), entry.file_name());
            let name = name.to_string_lossy();
            if path.is_dir() {
                if !name.starts_with('.') && name != "target" {
                    visit(&path, extensions, found);
                }
            } else if path.extension().is_some_and(|e| extensions.iter().any(|known| e == *known)) {
                found.push(path);
            }
        }
    }
    let root = root();
    let mut paths = Vec::new();
    visit(&root, extensions, &mut paths);
    paths.sort();
    let read = |path: PathBuf| {
        let name = path
            .strip_prefix(&root)
            .expect("every path must start with the root of the workspace")
            .to_string_lossy()
            .replace('\\', "/");
        (name, fs::read_to_string(&path).expect("the file must be UTF-8 text"))
    };
    paths.into_iter().map(read).collect()
}

/// Compares counts by name with the list of exceptions in `file` of `tests/`, or writes the list. `locations` returns
/// the locations of the findings of one name.
#[track_caller]
pub(crate) fn compare(file: &str, counts: BTreeMap<String, usize>, locations: impl Fn(&str) -> String) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(file);
    if env::var_os("UPDATE_EXCEPTIONS").is_some() {
        let mut list = String::new();
        for (name, count) in &counts {
            writeln!(list, "{count} {name}").expect("writing to a String cannot fail");
        }
        return fs::write(path, list).expect("writing the list of exceptions must succeed");
    }
    let list = fs::read_to_string(&path).expect("the list of exceptions must be readable");
    let allowed: BTreeMap<&str, usize> = list
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(n, name)| (name, n.parse().expect("a line of the list of exceptions must start with a count")))
        .collect();
    let mut wrong = String::new();
    for (name, &count) in &counts {
        let most = allowed.get(name.as_str()).copied().unwrap_or(0);
        if count > most {
            writeln!(wrong, "{name}: {count} findings, expected at most {most}\n{}", locations(name))
                .expect("writing to a String cannot fail");
        }
    }
    for (name, most) in allowed {
        let count = counts.get(name).copied().unwrap_or(0);
        if count < most {
            writeln!(
                wrong,
                "{name}: {count} findings, fewer than the {most} in {file}; lower that count (UPDATE_EXCEPTIONS=1)"
            )
            .expect("writing to a String cannot fail");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}
