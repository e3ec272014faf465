//! Templates of WGSL: `$name` stands for a value, which has one or several lines.

use super::{ITEM_COUNT, ShaderBuilder};

/// Returns the values of a template: pairs of a variable's name and contents.
macro_rules! values {
    ($($name:ident),+ $(,)?) => {
        &[$((stringify!($name), &*$name)),+]
    };
}

/// Returns the values of a template for each of three axes: pairs of a variable's name and contents.
macro_rules! axis_values {
    ($($name:ident),+ $(,)?) => {
        &[$((stringify!($name), &$name)),+]
    };
}

pub(crate) use {axis_values, values};

/// Adds `source` to `to`, with every name replaced by its value. Values may contain names.
fn fill(to: &mut String, source: &str, value: &dyn Fn(&str) -> Option<String>) {
    let mut parts = source.split('$');
    to.extend(parts.next());
    for part in parts {
        let end = part.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(part.len());
        let (name, rest) = part.split_at(end);
        match value(name) {
            Some(filled) => fill(to, &filled, value),
            // The shader does not compile, and the error shows the name.
            None => to.extend(["$", name]),
        }
        to.push_str(rest);
    }
}

/// Returns the value of a name.
pub(crate) fn named_value(values: &[(&str, &str)], name: &str) -> Option<String> {
    Some(values.iter().find(|(other, _)| *other == name)?.1.into())
}

/// A shader under construction whose lines can be collected as a value of a template.
pub(crate) trait CollectLines: AsMut<ShaderBuilder> + Sized {
    /// Returns the lines that `lines` adds, and its result.
    fn collect_result<T>(&mut self, lines: impl FnOnce(&mut Self) -> T) -> (String, T) {
        let before = std::mem::take(&mut self.as_mut().body);
        let result = lines(self);
        (std::mem::replace(&mut self.as_mut().body, before), result)
    }

    /// Returns the lines that `lines` adds.
    fn collect_lines(&mut self, lines: impl FnOnce(&mut Self)) -> String {
        self.collect_result(lines).0
    }
}

impl<B: AsMut<ShaderBuilder>> CollectLines for B {}

impl AsMut<ShaderBuilder> for ShaderBuilder {
    fn as_mut(&mut self) -> &mut ShaderBuilder {
        self
    }
}

impl ShaderBuilder {
    /// Adds the lines of a template, without comments. In addition to `values`, the template can use `$item_count`.
    pub(crate) fn template(&mut self, source: &str, values: &[(&str, &str)]) {
        self.fill_template(source, |name| named_value(values, name));
    }

    /// Adds the lines of a template with values for each of three axes: `$stride1` is the value of `stride` for axis 1.
    pub(crate) fn axis_template(&mut self, source: &str, axes: &[(&str, &[String; 3])], values: &[(&str, &str)]) {
        self.fill_template(source, |name| {
            let axis_value = || {
                let (name, axis) = name.split_at_checked(name.len().checked_sub(1)?)?;
                let (_, values) = axes.iter().find(|(other, _)| *other == name)?;
                values.get(axis.parse::<usize>().ok()?).cloned()
            };
            named_value(values, name).or_else(axis_value)
        });
    }

    /// Adds the lines of a template, without comments. `value` returns the value of a name.
    pub(crate) fn fill_template(&mut self, source: &str, value: impl Fn(&str) -> Option<String>) {
        let mut filled = String::new();
        fill(&mut filled, source, &|name| if name == "item_count" { Some(ITEM_COUNT.into()) } else { value(name) });
        let is_code = |line: &&str| !line.is_empty() && !line.starts_with("//");
        filled.lines().map(str::trim).filter(is_code).for_each(|line| self.line(line));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shader::has_function;
    use std::fs;
    use std::path::PathBuf;

    #[test]
    fn names_are_replaced_by_values_that_may_contain_names() {
        let mut shader = ShaderBuilder::default();
        let (first, sum, lines) = ("x", String::from("$first + 1u"), "\n    a;\n    b;\n");
        shader.template("let y = f($sum);\n// A comment.\n$lines\n$unknown;", values![first, sum, lines]);
        assert_eq!(shader.body, "    let y = f(x + 1u);\n    a;\n    b;\n    $unknown;\n");
    }

    /// Returns the paths and the code of all source files, without comments and tests.
    fn sources() -> Vec<(PathBuf, String)> {
        let mut sources = Vec::new();
        let mut open = vec![PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/src"))];
        while let Some(path) = open.pop() {
            if path.is_dir() {
                open.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default().lines();
                let code = code.filter(|line| !line.trim_start().starts_with("//")).map(|line| format!("{line}\n"));
                sources.push((path, code.collect()));
            }
        }
        sources
    }

    #[test]
    fn every_name_in_a_template_is_a_value_a_constant_or_a_function() {
        let constants = ["item_count", "real", "zero", "one", "infinity", "negative_infinity"];
        let sources = sources();
        let with_templates = sources.iter().filter(|(_, code)| code.contains("&str = \"\n"));
        let mut files = 0;
        for (path, code) in with_templates {
            // A file that contains only templates gets its values from the other files of its directory.
            let is_source_of_values = |other: &PathBuf| match code.contains("values![") {
                true => other == path,
                false => other.parent() == path.parent(),
            };
            let values: Vec<&str> = sources
                .iter()
                .filter(|(other, _)| is_source_of_values(other))
                .flat_map(|(_, code)| code.split("values![").skip(1))
                .flat_map(|rest| rest.split(']').next().unwrap_or_default().split(','))
                .map(str::trim)
                .collect();
            let names = code.split('$').skip(1).map(|rest| {
                let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
                &rest[..end]
            });
            let is_function = |name: &str| ["f", "d"].iter().all(|prefix| has_function(&format!("{prefix}_{name}")));
            for name in names {
                let is_value = values.contains(&name) || values.contains(&name.trim_end_matches(['0', '1', '2']));
                let is_known = is_value || constants.contains(&name) || is_function(name);
                assert!(is_known, "`${name}` in a template of {} has no value", path.display());
            }
            files += 1;
        }
        assert!(files >= 16, "only {files} files have templates");
    }
}
