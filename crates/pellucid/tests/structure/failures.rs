//! The rule of failures: a method or constructor that can fail panics, and its `try_` form returns the error.
//! `failures.txt` lists the exceptions with their reasons.

/// A public function: its owner (a type or trait; empty for a free function), its name, and its behaviour on failure.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PublicFn {
    pub(crate) owner: String,
    pub(crate) name: String,
    /// Whether the documentation has a section `# Panics`.
    pub(crate) panics: bool,
    /// Whether the return type is a `Result`.
    pub(crate) returns_result: bool,
    /// Whether the first parameter is `self` by value.
    pub(crate) consumes: bool,
}

/// Reads the public functions of a source file: `pub fn`, and the functions of public traits.
pub(crate) fn public_functions(text: &str) -> Vec<PublicFn> {
    let lines: Vec<&str> = text.lines().collect();
    let mut owners: Vec<(usize, String, bool)> = Vec::new();
    let (mut found, mut panics, mut generated) = (Vec::new(), false, false);
    for (at, line) in lines.iter().enumerate() {
        let code = line.trim_start();
        let indent = line.len() - code.len();
        if code.starts_with('}') {
            while owners.last().is_some_and(|(opened, ..)| indent <= *opened) {
                owners.pop();
            }
        }
        if code.starts_with("///") {
            panics |= code.starts_with("/// # Panics");
            continue;
        }
        if code.starts_with("#[") {
            generated |= code.starts_with("#[panicking_form]");
            continue;
        }
        if let Some(owner) = opened_owner(code) {
            owners.push((indent, owner, code.starts_with("pub trait ")));
        }
        let (owner, in_trait) = owners.last().map_or(("", false), |(_, owner, in_trait)| (owner, *in_trait));
        let is_public = code.starts_with("pub fn ") || code.starts_with("pub const fn ") || in_trait;
        if let Some((_, rest)) = code.split_once("fn ").filter(|(before, _)| is_public && before.len() <= 10) {
            let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || matches!(c, '_' | '$')).collect();
            let mut signature = String::new();
            for line in &lines[at..] {
                signature += line;
                if line.ends_with(['{', '}', ';']) {
                    break;
                }
            }
            let result = signature.rsplit_once("-> ").map_or("", |(_, result)| result);
            let returns_result = result.starts_with("Result<") || result.starts_with("crate::Result<");
            let consumes = ["(self", "(mut self"].iter().any(|start| signature.contains(start));
            if generated && let Some(short) = name.strip_prefix("try_") {
                let (owner, name) = (owner.to_string(), short.to_string());
                found.push(PublicFn { owner, name, panics: true, returns_result: false, consumes });
            }
            let (owner, panics) = (owner.to_string(), panics && !generated);
            found.push(PublicFn { owner, name, panics, returns_result, consumes });
        }
        if !code.is_empty() && !code.starts_with("//") {
            (panics, generated) = (false, false);
        }
    }
    found
}

/// Returns the name of the type or trait whose block this line opens.
fn opened_owner(code: &str) -> Option<String> {
    if !code.ends_with('{') {
        return None;
    }
    let header = ["impl", "pub trait ", "pub unsafe trait "].iter().find_map(|start| code.strip_prefix(start))?;
    let header = skip_generics(header.trim_start());
    let subject = header.split(" for ").last().unwrap_or(header).trim_start();
    let path: String = subject.chars().take_while(|c| c.is_alphanumeric() || matches!(c, '_' | ':' | '$')).collect();
    Some(path.trim_end_matches(':').rsplit("::").next().unwrap_or_default().to_string())
}

/// Skips the generic parameters at the start of `text`.
fn skip_generics(text: &str) -> &str {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        match c {
            '<' => depth += 1,
            '>' if !text[..at].ends_with('-') => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return if c == '>' { text[at + 1..].trim_start() } else { text };
        }
    }
    text
}

/// Returns the functions that break the rule, as `returns Owner::name` and `panics Owner::name`. `ops` contains the
/// names of the functions of `ops` that return a `Result`, which are the fallible forms of methods and constructors of
/// `Tensor`.
pub(crate) fn exceptions(functions: &[PublicFn], ops: &[String]) -> Vec<String> {
    let has_try = |of: &PublicFn| {
        let name = format!("try_{}", of.name);
        functions.iter().any(|f| f.owner == of.owner && f.name == name && f.returns_result)
    };
    let mut found = Vec::new();
    for function in functions.iter().filter(|f| !f.name.starts_with("try_") && !f.name.starts_with('$')) {
        let PublicFn { owner, name, panics, returns_result, .. } = function;
        if *returns_result && !owner.is_empty() {
            found.push(format!("returns {owner}::{name}"));
        }
        if *panics && !has_try(function) && !(owner == "Tensor" && ops.contains(name)) {
            found.push(format!("panics {owner}::{name}").replace(" ::", " "));
        }
    }
    found
}
