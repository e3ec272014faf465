//! The public types of a source file, read without a compiler.

/// The traits that require `Send` and `Sync`.
const THREAD_SAFE: [&str; 4] = ["Module", "Layer", "Loss", "Optimizer"];

/// Returns the names of the top-level `pub` structs and enums of a file, without its tests, and the names of the types
/// that implement a trait of [`THREAD_SAFE`].
pub(crate) fn public_types(text: &str) -> (Vec<&str>, Vec<&str>) {
    let (mut types, mut thread_safe, mut derives) = (Vec::new(), Vec::new(), false);
    for line in text.lines().take_while(|line| *line != "mod tests {") {
        if let Some(name) = word_after(line, "pub struct ").or_else(|| word_after(line, "pub enum ")) {
            types.push(name);
            thread_safe.extend(derives.then_some(name));
        }
        let continues = line.starts_with(['#', '/', ' ', ')']);
        derives = line.starts_with("#[derive(") && line.contains("Module") || derives && continues;
        if let Some((of, implementor)) = line.strip_prefix("impl").and_then(|rest| rest.split_once(" for ")) {
            let of = of.split_once('<').filter(|(before, _)| !before.is_empty()).map_or(of, |(before, _)| before);
            if THREAD_SAFE.iter().any(|name| of.ends_with(&format!(" {name}"))) {
                thread_safe.extend(word_after(implementor, ""));
            }
        }
    }
    (types, thread_safe)
}

/// Returns the identifier that follows the prefix of a line.
fn word_after<'a>(line: &'a str, prefix: &str) -> Option<&'a str> {
    let rest = line.strip_prefix(prefix)?;
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    Some(&rest[..end]).filter(|name| !name.is_empty())
}
