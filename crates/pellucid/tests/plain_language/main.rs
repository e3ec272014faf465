//! The language of the repository: denied words, types that share a name, vague names of variables and functions, and
//! long lines of text.
//!
//! Each check has a list of exceptions, whose counts may only decrease. If the number of findings is below its count,
//! the list must be updated: `UPDATE_EXCEPTIONS=1 cargo test -p pellucid --test plain_language` writes the lists.

#[path = "../repository/mod.rs"]
mod repository;

use repository::{compare, files};
use std::collections::BTreeMap;

/// Words that CONTRIBUTING.md forbids in comments, documents, messages and identifiers. `(a|b)` means one of several
/// words. A phrase of several words matches the words in this order.
const DENIED: [&str; 20] = [
    "(room|rooms)",
    "(seat|seats)",
    "(mend|mends|mended)",
    "truth (value|values)",
    "first (value|values)",
    "half (type|types)",
    "nobody",
    "whoever",
    "in its stead",
    "so many",
    "where it lies",
    "what lies",
    "past the caches",
    "(ask|asks) for what",
    "also (if|where)",
    "besides",
    "(is|was) that of",
    "(are|were) those of",
    "another (axis|device|dtype|shape|tensor|type|value) than",
    "other (axis|axes|device|devices|dtype|dtypes|input|inputs|shape|tensors|value|values) than",
];

/// Names of variables, parameters, fields and functions that do not describe the value.
const VAGUE_NAMES: [&str; 7] = ["act", "apart", "copy_turned", "far", "linked", "made", "whole"];

/// Names of free functions that describe neither the action nor the operand.
const VAGUE_FUNCTIONS: [&str; 3] = ["check", "of", "run"];

/// Longest line of a Markdown document or of a comment, in characters. Rows of tables may be longer.
const LONGEST_LINE: usize = 120;

/// A word of a text, in lower case.
struct Word {
    text: String,
    line: usize,
    /// True if only spaces, comment markers or an underscore separate the word from the previous word.
    follows: bool,
}

/// Splits a text into words. An identifier is split too: `first_values` and `FirstValues` are two words.
fn words(text: &str) -> Vec<Word> {
    let mut words: Vec<Word> = Vec::new();
    let (mut line, mut follows, mut before) = (1, true, ' ');
    for c in text.chars() {
        if c.is_alphabetic() {
            let continues = before.is_alphabetic() && !(c.is_uppercase() && before.is_lowercase());
            match words.last_mut() {
                Some(word) if continues => word.text.extend(c.to_lowercase()),
                _ => {
                    words.push(Word { text: c.to_lowercase().collect(), line, follows });
                    follows = true;
                }
            }
        } else {
            follows &= c.is_whitespace() || "/!*#>_".contains(c);
            line += usize::from(c == '\n');
        }
        before = c;
    }
    words
}

/// Returns the lines on which a denied phrase begins, with the phrase.
fn denied(text: &str) -> Vec<(usize, String)> {
    let words = words(text);
    let mut found = Vec::new();
    for phrase in DENIED {
        let wanted: Vec<Vec<&str>> =
            phrase.split(' ').map(|w| w.trim_matches(['(', ')']).split('|').collect()).collect();
        for window in words.windows(wanted.len()) {
            let is_here = window.iter().zip(&wanted).all(|(word, any)| any.contains(&word.text.as_str()));
            if is_here && window[1..].iter().all(|word| word.follows) {
                found.push((window[0].line, window.iter().map(|w| w.text.as_str()).collect::<Vec<_>>().join(" ")));
            }
        }
    }
    found.sort();
    found
}

/// Returns the names of the types that a source file defines, including aliases.
fn types(text: &str) -> Vec<&str> {
    let definition = |line: &'_ str| -> Option<usize> {
        let code = line.trim_start();
        let start = line.len() - code.len();
        let visibility = match code.strip_prefix("pub") {
            Some(rest) if rest.starts_with('(') => "pub".len() + rest.find(") ")? + 2,
            Some(rest) if rest.starts_with(' ') => "pub ".len(),
            _ => 0,
        };
        let keyword = ["struct ", "enum ", "trait ", "union ", "type "];
        let keyword = keyword.iter().find(|keyword| code[visibility..].starts_with(**keyword))?;
        // An indented `type` belongs to a trait or to its implementation.
        if *keyword == "type " && start > 0 {
            return None;
        }
        Some(start + visibility + keyword.len())
    };
    let name =
        |line: &'_ str| definition(line).map(|at| (at, line[at..].find(|c: char| !c.is_alphanumeric() && c != '_')));
    text.lines()
        .filter_map(|line| name(line).map(|(at, end)| &line[at..end.map_or(line.len(), |end| at + end)]))
        .filter(|name| name.starts_with(char::is_uppercase))
        .collect()
}

/// Returns the lines that define a variable, parameter, field, constant or free function with a vague name, with the
/// name.
fn vague_names(text: &str) -> Vec<(usize, &str)> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let mut found = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let code = line.split("//").next().expect("split() must return at least one part");
        let (mut end, mut pattern) = (0, None);
        while let Some(start) = code[end..].find(is_name).map(|at| end + at) {
            end = code[start..].find(|c| !is_name(c)).map_or(code.len(), |len| start + len);
            let (before, name, after) = (code[..start].trim_end(), &code[start..end], code[end..].trim_start());
            if name == "let" {
                pattern = Some(end);
                continue;
            }
            let is_text = before.matches('"').count() % 2 == 1 || before.ends_with('$');
            let is_bound = pattern.is_some_and(|from| !code[from..start].contains('='));
            let is_argument = before.ends_with('|') && after.starts_with(['|', ',']);
            let is_typed = after.starts_with(':') && !after.starts_with("::");
            let is_function = before.ends_with("fn");
            let is_defined = is_bound || is_argument || is_typed || is_function;
            let is_vague = VAGUE_NAMES.contains(&name) && is_defined
                || VAGUE_FUNCTIONS.contains(&name) && is_function && !line.starts_with(' ')
                || (name == "MOST" || name.starts_with("MOST_")) && before.ends_with("const");
            if is_vague && !is_text {
                found.push((i + 1, name));
            }
        }
    }
    found
}

/// Returns true for the files of this check, which contain the denied words.
fn is_own(name: &str) -> bool {
    name.starts_with("crates/pellucid/tests/plain_language/")
}

#[test]
fn no_new_denied_words() {
    let files = files(&["rs", "md", "py", "toml"]);
    let found: BTreeMap<&str, Vec<(usize, String)>> =
        files.iter().filter(|(name, _)| !is_own(name)).map(|(name, text)| (name.as_str(), denied(text))).collect();
    let counts = found.iter().filter(|(_, f)| !f.is_empty()).map(|(name, f)| (name.to_string(), f.len())).collect();
    compare("plain_language/words.txt", counts, |name| {
        found[name].iter().map(|(line, phrase)| format!("  {name}:{line}: {phrase}\n")).collect()
    });
}

#[test]
fn no_new_vague_names() {
    let files = files(&["rs"]);
    let found: BTreeMap<&str, Vec<(usize, &str)>> =
        files.iter().filter(|(name, _)| !is_own(name)).map(|(name, text)| (name.as_str(), vague_names(text))).collect();
    let counts = found.iter().filter(|(_, f)| !f.is_empty()).map(|(name, f)| (name.to_string(), f.len())).collect();
    compare("plain_language/names.txt", counts, |name| {
        found[name].iter().map(|(line, vague)| format!("  {name}:{line}: {vague}\n")).collect()
    });
}

#[test]
fn no_new_types_of_one_name() {
    let mut defined: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, text) in files(&["rs"]) {
        // A type that a test defines is visible only in its file.
        if name.contains("/tests/") || name.contains("/tests.rs") || name.contains("/testing") {
            continue;
        }
        let code = text.split("#[cfg(test)]\nmod tests {").next().expect("split() must return at least one part");
        for type_name in types(code) {
            defined.entry(type_name.to_string()).or_default().push(name.clone());
        }
    }
    defined.retain(|_, files| files.len() > 1);
    let counts = defined.iter().map(|(name, files)| (name.clone(), files.len())).collect();
    compare("plain_language/types.txt", counts, |name| {
        defined[name].iter().map(|file| format!("  {file}\n")).collect()
    });
}

/// Returns the line numbers of text lines that are too long, in a document or in the comments of a source file.
fn long_lines(name: &str, text: &str) -> Vec<usize> {
    let is_text = |line: &str| match name.ends_with(".rs") {
        true => line.trim_start().starts_with("//") && !line.trim_start_matches(['/', '!', ' ']).starts_with('|'),
        false => !line.starts_with('|'),
    };
    let is_long = |(_, line): &(usize, &str)| line.chars().count() > LONGEST_LINE && is_text(line);
    text.lines().enumerate().filter(is_long).map(|(i, _)| i + 1).collect()
}

#[test]
fn no_new_long_lines_of_text() {
    let files = files(&["md", "rs"]);
    let found: BTreeMap<&str, Vec<usize>> =
        files.iter().map(|(name, text)| (name.as_str(), long_lines(name, text))).collect();
    let counts = found.iter().filter(|(_, f)| !f.is_empty()).map(|(name, f)| (name.to_string(), f.len())).collect();
    compare("plain_language/lines.txt", counts, |name| {
        found[name].iter().map(|line| format!("  {name}:{line}\n")).collect()
    });
}

#[test]
fn the_checks_find_what_they_look_for() {
    let phrases =
        |text: &str| denied(text).into_iter().map(|(line, phrase)| format!("{line} {phrase}")).collect::<Vec<_>>();
    assert_eq!(phrases("let mend = 1;\n// There is Room."), ["1 mend", "2 room"]);
    assert_eq!(phrases("/// the truth\n/// values of"), ["1 truth values"]);
    assert_eq!(phrases("fn first_values() {}\nstruct HalfTypes;"), ["1 first values", "2 half types"]);
    assert!(phrases("amend, mushroom, seated; (first, values); so. Many").is_empty());
    assert_eq!(phrases("valid, also if empty; the shape is that of x"), ["1 also if", "1 is that of"]);
    assert_eq!(phrases("on another\n// device than y"), ["1 another device than"]);
    let source = "let (far, near) = x;\nfn copy_turned(act: u8) { let y = whole; }\nlist.map(|made| made + 1)\n\
                  const MOST_STEPS: usize = 1;\npub fn run() {}\n    fn check(&self) {}\n// let far = 1;\n\
                  const UTMOST: u8 = whole::LEN;\nformat!(\"whole: {x}\")";
    let names = [(1, "far"), (2, "copy_turned"), (2, "act"), (3, "made"), (4, "MOST_STEPS"), (5, "run")];
    assert_eq!(vague_names(source), names);
    let source = "pub(crate) struct Alpha<T>(T);\n    enum Beta {\npub trait Gamma: Sized {\nstruct $name;\n// struct Delta\n\
                  fn structure() {}\ntype Epsilon = u8;\n    type Output = u8;";
    assert_eq!(types(source), ["Alpha", "Beta", "Gamma", "Epsilon"]);
    let (text, row) = ("a ".repeat(61), format!("|{}", "-".repeat(121)));
    assert_eq!(long_lines("a.md", &format!("{text}\n{row}\nshort")), [1]);
    assert_eq!(long_lines("a.rs", &format!("    // {text}\nlet x = \"{text}\";\n//! short\n//! {row}")), [1]);
}
