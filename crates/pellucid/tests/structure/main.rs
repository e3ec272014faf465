//! The structure of the repository: dependencies between source files and folders, the sizes of files and functions,
//! links and examples of the documents, and planted faults.
//!
//! `UPDATE_EXCEPTIONS=1 cargo test -p pellucid --test structure` writes the list of exceptions, whose counts may only
//! decrease.

mod cycles;
mod examples;
mod failures;
mod folders;
mod forwards;
mod links;
mod modules;
#[path = "../repository/mod.rs"]
mod repository;
mod sizes;
mod types;

use cycles::FileGraph;
use repository::{compare, files, root};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

/// Crates in which a cycle of dependencies must stay within one folder: every crate with `unsafe` code.
const ONE_FOLDER: [&str; 4] = ["pellucid-cpu", "pellucid-gemm", "pellucid-runtime", "pellucid-simd"];

/// Crates whose public items are used by programs.
const LIBRARY_CRATES: [&str; 7] = [
    "pellucid-tensor",
    "pellucid-nn",
    "pellucid-io",
    "pellucid-data",
    "pellucid-train",
    "pellucid-distributions",
    "pellucid",
];

/// Cycles that are intended: the crate, the files, and the reason.
const INTENDED: [(&str, &[&str], &str); 4] = [
    (
        "pellucid-ir",
        &["error.rs", "error/help.rs", "error/state_dict.rs", "shape.rs"],
        "an error contains shapes, and a shape rule returns an error",
    ),
    (
        "pellucid-ir",
        &["formula/builder.rs", "formula/expr.rs", "formula/real.rs"],
        "an `Expr` is an index into the `Builder`, which returns expressions; `Expr` and `f64` implement `Real`",
    ),
    (
        "pellucid-nn",
        &["call/mod.rs", "call/trace.rs", "hook.rs", "layer.rs"],
        "a call of a `Layer` runs hooks or is traced, a hook sees a call, and a trace calls a `Layer`",
    ),
    (
        "pellucid-nn",
        &["module.rs", "module/dyn_module.rs", "state.rs", "visit.rs"],
        "a `Module` is visited by a `Visitor`, which visits modules without their types; a state dict is the result of a visit",
    ),
];

/// Returns the source files of every crate, with paths relative to `src/`.
fn sources() -> BTreeMap<String, Vec<(String, String)>> {
    let mut crates: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    for (name, text) in files(&["rs"]) {
        let source = name.strip_prefix("crates/").and_then(|name| name.split_once("/src/"));
        if let Some((crate_name, file)) = source {
            crates.entry(crate_name.to_string()).or_default().push((file.to_string(), text));
        }
    }
    crates
}

#[test]
fn folders_of_operations_have_no_circular_dependencies() {
    let files = &sources()["pellucid-tensor"];
    let (_, text) = files.iter().find(|(name, _)| name == "ops/mod.rs").expect("ops/mod.rs must exist");
    let errors = folders::folder_errors(&FileGraph::new(files), "ops", text);
    assert!(errors.is_empty(), "{}", errors.join("\n"));
}

#[test]
fn files_and_functions_are_short() {
    let crates = sources();
    let named = crates.iter().flat_map(|(name, files)| files.iter().map(move |(file, text)| (name, file, text)));
    let errors: Vec<String> =
        named.flat_map(|(name, file, text)| sizes::size_errors(&format!("crates/{name}/src/{file}"), text)).collect();
    assert!(errors.is_empty(), "{}", errors.join("\n"));
}

#[test]
fn files_have_no_circular_dependencies() {
    let crates = sources();
    let mut counts = BTreeMap::new();
    let mut places = BTreeMap::new();
    for (name, files) in crates {
        let graph = FileGraph::new(&files);
        let mut cycles = graph.forbidden(ONE_FOLDER.contains(&name.as_str()));
        cycles.retain(|cycle| {
            let files: BTreeSet<&str> = cycle.iter().map(|&file| graph.names[file].as_str()).collect();
            !INTENDED.iter().any(|(of, intended, _)| *of == name && files.iter().all(|file| intended.contains(file)))
        });
        if !cycles.is_empty() {
            let text = |cycle| format!("  {}\n", graph.cycle(cycle));
            places.insert(name.clone(), cycles.iter().map(text).collect::<String>());
            counts.insert(name, cycles.iter().map(BTreeSet::len).sum());
        }
    }
    compare("structure/cycles.txt", counts, |name| places[name].clone());
}

#[test]
fn failures_follow_one_rule() {
    let (mut functions, mut ops) = (Vec::new(), Vec::new());
    for (name, text) in files(&["rs"]) {
        let is_library = LIBRARY_CRATES.map(|c| format!("crates/{c}/src/"));
        if is_library.iter().any(|folder| name.starts_with(folder)) {
            let found = failures::public_functions(&text);
            if name.contains("/src/ops/") {
                ops.extend(found.iter().filter(|f| f.owner.is_empty() && f.returns_result).map(|f| f.name.clone()));
            }
            functions.extend(found);
        }
    }
    let list = include_str!("failures.txt");
    let mut found = failures::exceptions(&functions, &ops);
    found.sort();
    found.dedup();
    let mut listed: Vec<&str> = list.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    listed.sort_unstable();
    assert_eq!(
        found, listed,
        "a method or constructor panics, and its `try_` form returns the error; see docs/errors.md"
    );
}

#[test]
fn forward_passes_of_layers_are_calls() {
    let files = &sources()["pellucid-nn"];
    let uncalled: Vec<String> = files
        .iter()
        .flat_map(|(file, text)| forwards::without_call(text).into_iter().map(move |name| format!("{file}: {name}")))
        .collect();
    assert!(uncalled.is_empty(), "begin these forward passes with call::call(): {uncalled:?}");
    let other =
        "impl A {\n    pub fn try_forward_to(&self, x: &Tensor) -> Result<Tensor> {\n        ops::exp(x)\n    }\n}\n";
    assert_eq!(forwards::without_call(other), ["try_forward_to"]);
}

/// All options are structs of public fields, which are written `Options { field, ..Default::default() }`.
#[test]
fn options_are_structs_without_setters() {
    let mut setters = Vec::new();
    for (name, text) in files(&["rs"]).iter().filter(|(name, _)| name.starts_with("crates/")) {
        let methods = failures::public_functions(text).into_iter();
        let methods = methods.filter(|method| method.consumes && method.owner.ends_with("Options"));
        setters.extend(methods.map(|method| format!("{name}: {}::{}", method.owner, method.name)));
    }
    assert!(setters.is_empty(), "options have public fields and no methods that set them: {setters:#?}");
}

/// Public types that programs cannot name or that only macros use.
const NOT_SHARED: [&str; 6] =
    ["CallLocationGuard", "CellKind", "EinopsReduction", "HookList", "ThreadStream", "ThreadStreamGuard"];

#[test]
fn every_public_type_is_tested_for_send_and_sync() {
    let tested = include_str!("../threads/send.rs");
    let tested: BTreeSet<&str> = tested.split(|c: char| !c.is_alphanumeric() && c != '_').chain(NOT_SHARED).collect();
    let files = files(&["rs"]);
    let sources =
        files.iter().filter(|(name, _)| LIBRARY_CRATES.iter().any(|c| name.starts_with(&format!("crates/{c}/src/"))));
    let (types, thread_safe): (Vec<_>, Vec<_>) = sources.map(|(_, text)| types::public_types(text)).unzip();
    let thread_safe: BTreeSet<&str> = thread_safe.into_iter().flatten().collect();
    let types: BTreeSet<&str> = types.into_iter().flatten().collect();
    let missing: Vec<_> = types.iter().filter(|name| !tested.contains(*name) && !thread_safe.contains(*name)).collect();
    assert!(missing.is_empty(), "tests/threads/send.rs must name these types: {missing:?}");
    assert!(NOT_SHARED.iter().all(|name| types.contains(name)), "a type of NOT_SHARED does not exist");
}

#[test]
fn links_and_paths_in_documents_exist() {
    let files = files(&["rs", "md", "py", "txt"]);
    let known = links::KnownPaths::new(files.iter().map(|(name, _)| name.as_str()));
    let root = root();
    let mut wrong = String::new();
    for (name, text) in files.iter().filter(|(name, _)| name.ends_with(".md")) {
        for (line, target) in links::links(text).into_iter().filter(|(_, target)| !links::exists(&root, name, target)) {
            wrong += &format!("{name}:{line}: the target {target} of the link does not exist\n");
        }
        // The changelog names files that no longer exist.
        let paths = if name.ends_with("CHANGELOG.md") { Vec::new() } else { links::quoted_paths(text) };
        for (line, path) in paths.into_iter().filter(|(_, path)| !known.contains(path) && !root.join(path).exists()) {
            wrong += &format!("{name}:{line}: there is no `{path}`\n");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn every_crate_lists_its_modules() {
    let mut wrong = String::new();
    for (name, text) in files(&["rs"]).iter().filter(|(name, _)| name.ends_with("/src/lib.rs")) {
        let documents = |module: &str| {
            let marked = [format!("`{module}`"), format!("[`{module}`]")];
            text.lines()
                .filter_map(|line| line.strip_prefix("//! | "))
                .any(|row| row.split(" | ").next().is_some_and(|cell| marked.iter().any(|mark| cell.contains(mark))))
        };
        let mut is_test = false;
        for line in text.lines() {
            let module = line.trim_start_matches("pub ").strip_prefix("mod ").and_then(|rest| rest.strip_suffix(';'));
            if let Some(module) = module.filter(|module| !is_test && !documents(module)) {
                wrong += &format!("{name}: no row of the table of modules has `{module}`\n");
            }
            is_test = line == "#[cfg(test)]";
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn planted_faults_still_apply() {
    let root = root();
    let list = fs::read_to_string(root.join(".ci/faults/list.txt")).expect(".ci/faults/list.txt must be readable");
    let entries: Vec<&str> = list.split("\nfault ").skip(1).collect();
    assert!(entries.len() >= 20, "the list must have at least 20 faults, but has {}", entries.len());
    for entry in entries {
        let lines = |prefix: &str| entry.lines().filter_map(|l| l.strip_prefix(prefix)).collect::<Vec<_>>().join("\n");
        let (fault, file) = (entry.lines().next().unwrap_or_default().trim(), lines("file "));
        let (old, new) = (lines("- "), lines("+ "));
        let text = fs::read_to_string(root.join(file.trim())).unwrap_or_default();
        assert_eq!(text.matches(&old).count(), 1, "{fault}: the replaced text must occur once in {file}");
        assert!(!old.is_empty() && old != new, "{fault}: the fault must change the text");
        assert!(lines("test ").contains("-p pellucid"), "{fault}: the fault must have a test command");
    }
}

/// Returns the forbidden cycles of source files with these names and contents.
fn forbidden_cycles(files: &[(&str, &str)], one_folder: bool) -> Vec<String> {
    let files: Vec<(String, String)> = files.iter().map(|(name, text)| (name.to_string(), text.to_string())).collect();
    let graph = FileGraph::new(&files);
    graph.forbidden(one_folder).iter().map(|cycle| graph.cycle(cycle)).collect()
}

#[test]
fn the_check_of_folders_finds_cycles_and_differences_to_the_table() {
    let row = |number: usize, name: &str, uses: &str| format!("//! | {number} | `{name}` | contents | {uses} |\n");
    let errors = |table: &str, low: &str, high: &str| {
        let modules = "pub mod low;\npub mod high;\n#[macro_use]\nlist! { high::g }\npub use low::a::f;";
        let files = [
            ("lib.rs", "mod ops;"),
            ("ops/mod.rs", &*(table.to_string() + modules)),
            ("ops/low/mod.rs", "pub mod a;"),
            ("ops/low/a.rs", low),
            ("ops/high/mod.rs", "pub mod b;"),
            ("ops/high/b.rs", high),
        ];
        let files = files.map(|(name, text)| (name.to_string(), text.to_string()));
        folders::folder_errors(&FileGraph::new(&files), "ops", table)
    };
    let table = row(1, "low", "–") + &row(2, "high", "1");
    let user = "use crate::ops::low::a;\npub fn g() { a::f() }";
    assert!(errors(&table, "pub fn f() {}", user).is_empty());
    let cycle = errors(&table, "use crate::ops::high::b::g;\npub fn f() { g() }", user);
    let steps = "the folders of ops/ form a cycle:\n    high/ uses low/: ops/high/b.rs:2 -> ops/low/a.rs\n    \
                 low/ uses high/: ops/low/a.rs:1 -> ops/high/b.rs";
    assert_eq!(cycle[0], steps);
    assert_eq!(cycle.len(), 2, "the table does not list the reverse use: {cycle:?}");
    let through = errors(&table, "use crate::ops;\npub fn f() { ops::g() }", user);
    assert_eq!(through, ["ops/low/a.rs:2 uses ops/mod.rs: import the file that defines the item"]);
    let wrong = errors(&(row(1, "high", "1–2") + &row(3, "low", "–")), "pub fn f() {}", "pub fn g() {}");
    assert_eq!(wrong.len(), 2, "a row lists a later row, and a number is wrong: {wrong:?}");
    assert_eq!(errors(&row(1, "low", "–"), "pub fn f() {}", "pub fn g() {}").len(), 1);
}

#[test]
fn the_checks_find_what_they_look_for() {
    let siblings = [
        ("lib.rs", "mod a;\nmod b;\npub use a::Alpha;\npub use b::Beta;"),
        ("a.rs", "// use crate::c::No;\nuse super::Beta;\npub struct Alpha<'a>(&'a Beta, char);"),
        ("b.rs", "pub struct Beta;\n\nfn f(_: crate::Alpha) {}\n"),
    ];
    assert_eq!(forbidden_cycles(&siblings, false), ["a.rs:2 -> b.rs:3 -> a.rs"]);
    let family = [
        ("lib.rs", "mod a;\nfn f() { a::g() }"),
        ("a/mod.rs", "mod x;\npub fn g() { x::h() }\npub const N: usize = 1;"),
        ("a/x.rs", "use super::*;\npub fn h() -> usize { super::N }"),
    ];
    assert!(forbidden_cycles(&family, true).is_empty());
    let across = [
        ("lib.rs", "mod a;\nmod b;"),
        ("a/mod.rs", "mod x;\npub use x::X;\nuse crate::b;\nfn f() { b::g() }"),
        ("a/x.rs", "pub struct X;\nuse super::f;"),
        ("b.rs", "use crate::a::X;\npub fn g() {}"),
    ];
    assert_eq!(forbidden_cycles(&across, false).len(), 1);
    let tests = [
        ("lib.rs", "mod a;\nmod b;"),
        ("a.rs", "pub struct A;\n#[cfg(test)]\nmod tests { use crate::b::B; }"),
        ("b.rs", "use crate::a::{A as C};\npub struct B(C);"),
    ];
    assert!(forbidden_cycles(&tests, true).is_empty());
    let macros = [
        ("lib.rs", "mod a;\nmod b;"),
        ("a/mod.rs", "mod m;\nuse crate::b::B;"),
        ("a/m.rs", "macro_rules! m { () => { mod t { pub use super::{X}; fn f() { super::g() } } } }\npub struct M;"),
        ("b.rs", "use crate::a::m::M;\npub struct B;"),
    ];
    assert!(forbidden_cycles(&macros, true).is_empty());
    let source = "impl<T: Into<f64>> Layer<T> {\n    /// # Panics\n    pub fn wide(&self) {}\n    pub fn run(\n        &self,\n    \
                  ) -> Result<()> {\n    }\n    /// # Errors\n    #[panicking_form]\n    pub fn try_new() -> Result<T> {\n    }\n}\n\
                  pub trait Step {\n    fn launch(&self) -> Result<()>;\n}\n/// # Panics\npub fn seed() {}\n";
    let rule = failures::exceptions(&failures::public_functions(source), &[]);
    let setter =
        failures::public_functions("impl StepOptions {\n    pub fn stride(mut self, n: usize) -> Self {\n    }\n}\n");
    assert!(setter.len() == 1 && setter[0].consumes && setter[0].owner == "StepOptions");
    assert_eq!(rule, ["panics Layer::wide", "returns Layer::run", "returns Step::launch", "panics seed"]);
    let source = "/// A layer.\n#[derive(Module)]\n#[module(\n    x\n)]\npub struct A<T>(T);\npub enum B {}\nstruct C;\n\
                  impl<T: Loss> Loss for D<T> {}\nimpl Into<B> for E {}\nmod tests {\npub struct F;\n";
    assert_eq!(types::public_types(source), (vec!["A", "B"], vec!["A", "D"]));
    assert_eq!(links::links("[a](b.md) and [c](d.rs#e)\n```\n[f](g)\n```\n"), [(1, "b.md"), (1, "d.rs#e")]);
    assert_eq!(links::quoted_paths("`a/b.rs` `a/` `x/y` `a/{b,c}.rs`"), [(1, "a/b.rs"), (1, "a/")]);
}
