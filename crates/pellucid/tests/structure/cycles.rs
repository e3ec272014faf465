//! Circular dependencies between the source files of a crate.

use crate::modules::Crate;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Dependencies between files (user, used file), each with the line of one use.
type Edges = BTreeMap<(usize, usize), usize>;

/// The source files of a crate and their dependencies.
pub(crate) struct FileGraph {
    /// The paths from `src/`.
    pub(crate) names: Vec<String>,
    edges: Edges,
}

impl FileGraph {
    pub(crate) fn new(files: &[(String, String)]) -> FileGraph {
        let names = files.iter().map(|(name, _)| name.clone()).collect();
        FileGraph { names, edges: Crate::new(files).dependencies() }
    }

    /// Returns the strongly connected components with more than one file, for the dependencies among `files`.
    fn components(&self, files: &BTreeSet<usize>) -> Vec<BTreeSet<usize>> {
        let reach = |start: usize| {
            let mut found = BTreeSet::new();
            let mut open = vec![start];
            while let Some(from) = open.pop() {
                for to in self.uses(from).filter(|to| files.contains(to)) {
                    if found.insert(to) {
                        open.push(to);
                    }
                }
            }
            found
        };
        let reached: BTreeMap<usize, BTreeSet<usize>> = files.iter().map(|&file| (file, reach(file))).collect();
        let mut components: Vec<BTreeSet<usize>> = Vec::new();
        for &file in files {
            let mutual: BTreeSet<usize> =
                reached[&file].iter().copied().filter(|other| reached[other].contains(&file)).collect();
            if mutual.len() > 1 && mutual.first() == Some(&file) {
                components.push(mutual);
            }
        }
        components
    }

    /// Returns the dependencies between files: the user, the line of one use, and the used file.
    pub(crate) fn uses_of_files(&self) -> impl Iterator<Item = (&str, usize, &str)> {
        self.edges.iter().map(|(&(from, to), &line)| (&*self.names[from], line, &*self.names[to]))
    }

    fn uses(&self, from: usize) -> impl Iterator<Item = usize> {
        self.edges.range((from, 0)..(from + 1, 0)).map(|(&(_, to), _)| to)
    }

    /// Returns the cycles that break the rule. A component is allowed if it consists of a parent module with its
    /// children and has no cycles without the parent. With `one_folder`, a cycle must not leave a folder.
    pub(crate) fn forbidden(&self, one_folder: bool) -> Vec<BTreeSet<usize>> {
        let mut open = vec![(0..self.names.len()).collect::<BTreeSet<usize>>()];
        let mut forbidden = Vec::new();
        while let Some(files) = open.pop() {
            for component in self.components(&files) {
                let folders: BTreeSet<&str> = component.iter().map(|&file| folder(&self.names[file])).collect();
                match self.parent(&component) {
                    Some(parent) if !one_folder || folders.len() == 1 => {
                        open.push(component.into_iter().filter(|&file| file != parent).collect());
                    }
                    _ => forbidden.push(component),
                }
            }
        }
        forbidden.sort();
        forbidden
    }

    /// Returns the file of the component whose module contains the modules of all other files, if the component also
    /// contains the parent modules in between.
    fn parent(&self, component: &BTreeSet<usize>) -> Option<usize> {
        let modules: BTreeSet<&str> = component.iter().map(|&file| module(&self.names[file])).collect();
        let has_parent = |file: &usize| {
            let name = module(&self.names[*file]);
            !name.is_empty() && modules.contains(name.rsplit_once('/').map_or("", |(parent, _)| parent))
        };
        let mut roots = component.iter().copied().filter(|file| !has_parent(file));
        roots.next().filter(|_| roots.next().is_none())
    }

    /// Formats a shortest cycle of a component: `a.rs:12 -> b.rs:3 -> a.rs`.
    pub(crate) fn cycle(&self, component: &BTreeSet<usize>) -> String {
        let shortest = component.iter().filter_map(|&start| self.shortest_cycle(start, component)).min_by_key(Vec::len);
        let path = shortest.expect("every file of a component must be in a cycle");
        let steps = path.windows(2).map(|w| format!("{}:{}", self.names[w[0]], self.edges[&(w[0], w[1])]));
        steps.chain([self.names[path[0]].clone()]).collect::<Vec<_>>().join(" -> ")
    }

    fn shortest_cycle(&self, start: usize, within: &BTreeSet<usize>) -> Option<Vec<usize>> {
        let mut before = BTreeMap::new();
        let mut open = VecDeque::from([start]);
        while let Some(from) = open.pop_front() {
            for to in self.uses(from).filter(|to| within.contains(to)) {
                if before.contains_key(&to) {
                    continue;
                }
                before.insert(to, from);
                if to == start {
                    let mut path = vec![start];
                    while path.len() == 1 || path.last() != Some(&start) {
                        path.push(before[path.last().expect("the path must not be empty")]);
                    }
                    path.reverse();
                    return Some(path);
                }
                open.push_back(to);
            }
        }
        None
    }
}

/// Returns the module of a file as a path from the root, which is empty.
fn module(file: &str) -> &str {
    let path = file.trim_end_matches(".rs").trim_end_matches("/mod");
    if path == "lib" { "" } else { path }
}

fn folder(file: &str) -> &str {
    file.rsplit_once('/').map_or("", |(folder, _)| folder)
}
