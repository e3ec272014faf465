//! The folders of a module: their dependencies have no cycle, and the table in the documentation of the module lists
//! them.

use crate::cycles::FileGraph;
use std::collections::{BTreeMap, BTreeSet};

/// Dependencies between folders (user, used folder), each with the use by one file.
type FolderUses<'a> = BTreeMap<(&'a str, &'a str), String>;

/// Returns the errors in the dependencies between the folders of `root`, a module whose documentation is `text`. A
/// folder uses only folders above it in the table, which the last column of its row lists.
pub(crate) fn folder_errors(graph: &FileGraph, root: &str, text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    let mut uses = FolderUses::new();
    let mut folders = BTreeSet::new();
    let module = format!("{root}/mod.rs");
    for name in &graph.names {
        match folder(root, name) {
            Some(folder) => drop(folders.insert(folder)),
            None if name.starts_with(&format!("{root}/")) && *name != module => {
                errors.push(format!("{name} is in no folder of {root}/"));
            }
            None => {}
        }
    }
    for (user, line, used) in graph.uses_of_files() {
        match (folder(root, user), folder(root, used)) {
            (Some(_), None) if used == module => {
                errors.push(format!("{user}:{line} uses {module}: import the file that defines the item"));
            }
            (Some(from), Some(to)) if from != to => {
                uses.entry((from, to)).or_insert_with(|| format!("{user}:{line} -> {used}"));
            }
            _ => {}
        }
    }
    errors.extend(cycle(&uses).map(|cycle| format!("the folders of {root}/ form a cycle:{cycle}")));
    errors.extend(table_errors(&uses, &folders, &module, text));
    errors
}

/// Returns the folder of a file of `root`.
fn folder<'a>(root: &str, file: &'a str) -> Option<&'a str> {
    let (folder, _) = file.strip_prefix(root)?.strip_prefix('/')?.split_once('/')?;
    Some(folder)
}

/// Returns a shortest cycle of folders, with the files of each step.
fn cycle(uses: &FolderUses) -> Option<String> {
    let starts: BTreeSet<&str> = uses.keys().map(|&(from, _)| from).collect();
    let shortest = starts.into_iter().filter_map(|start| shortest_cycle(uses, start)).min_by_key(Vec::len)?;
    let step = |pair: &[&str]| format!("\n    {}/ uses {}/: {}", pair[0], pair[1], uses[&(pair[0], pair[1])]);
    Some(shortest.windows(2).map(step).collect())
}

/// Returns the folders of a shortest cycle through `start`, which is the first and the last element.
fn shortest_cycle<'a>(uses: &FolderUses<'a>, start: &'a str) -> Option<Vec<&'a str>> {
    let mut paths = vec![vec![start]];
    let mut seen = BTreeSet::new();
    while !paths.is_empty() {
        let mut longer = Vec::new();
        for path in paths {
            for &(_, to) in uses.keys().filter(|(from, _)| path.last() == Some(from)) {
                let next: Vec<&str> = path.iter().copied().chain([to]).collect();
                if to == start {
                    return Some(next);
                }
                if seen.insert(to) {
                    longer.push(next);
                }
            }
        }
        paths = longer;
    }
    None
}

/// Compares the table `number | folder | contents | may use` with the folders and their uses. The last column lists the
/// numbers of allowed rows, such as `1–3, 5`, which must precede the row.
fn table_errors(uses: &FolderUses, folders: &BTreeSet<&str>, module: &str, text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    let mut rows: Vec<&str> = Vec::new();
    for row in text.lines().filter_map(|line| line.strip_prefix("//! | ")) {
        let cells: Vec<&str> = row.trim_end_matches(" |").split(" | ").collect();
        let &[number, name, _, may_use] = &cells[..] else { continue };
        let Ok(number) = number.parse::<usize>() else { continue };
        let name = name.trim_matches('`');
        rows.push(name);
        if number != rows.len() {
            errors.push(format!("{module}: the row of `{name}` must have the number {}", rows.len()));
        }
        let allowed = numbers(may_use);
        if allowed.iter().any(|used| *used >= number) {
            errors.push(format!("{module}: the row of `{name}` lists a row that is not above it"));
        }
        let is_allowed =
            |used: &str| rows.iter().position(|row| *row == used).is_some_and(|k| allowed.contains(&(k + 1)));
        for ((_, to), place) in uses.iter().filter(|((from, to), _)| *from == name && !is_allowed(to)) {
            errors.push(format!("{module}: the row of `{name}` does not list `{to}` ({place})"));
        }
    }
    for name in folders.symmetric_difference(&rows.iter().copied().collect()) {
        errors.push(format!("{module}: the rows and the folders differ in `{name}`"));
    }
    errors
}

/// Parses a list of numbers such as `1–3, 5`.
fn numbers(list: &str) -> BTreeSet<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('–').unwrap_or((part, part));
        first.parse().unwrap_or(1)..=last.parse().unwrap_or(0)
    };
    list.split(", ").flat_map(range).collect()
}
