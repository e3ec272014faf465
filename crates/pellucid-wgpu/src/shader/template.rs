//! Templates of WGSL: `$name` stands for a value, which has one or several lines.

use super::ShaderBuilder;

/// Returns the values of a template: variables with the text of their names.
macro_rules! values {
    ($($name:ident),+ $(,)?) => {
        &[$((stringify!($name), &*$name)),+]
    };
}

pub(crate) use values;

/// Adds `text` to `to`, with every name replaced by its value. Values may contain names.
fn fill(to: &mut String, text: &str, value: &dyn Fn(&str) -> Option<String>) {
    let mut parts = text.split('$');
    to.extend(parts.next());
    for part in parts {
        let end = part.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(part.len());
        let (name, rest) = part.split_at(end);
        match value(name) {
            Some(value_text) => fill(to, &value_text, value),
            // The shader does not compile, and the error shows the name.
            None => to.extend(["$", name]),
        }
        to.push_str(rest);
    }
}

impl ShaderBuilder {
    /// Adds the lines of a template, without comments.
    pub(crate) fn template(&mut self, text: &str, values: &[(&str, &str)]) {
        self.fill_template(text, |name| Some(values.iter().find(|(own, _)| *own == name)?.1.into()));
    }

    /// Returns the lines that `lines` adds, as a value of a template, and its result.
    pub(crate) fn part<T>(&mut self, lines: impl FnOnce(&mut ShaderBuilder) -> T) -> (String, T) {
        let before = std::mem::take(&mut self.body);
        let result = lines(self);
        (std::mem::replace(&mut self.body, before), result)
    }

    /// Adds the lines of a template, without comments. `value` returns the value of a name.
    pub(crate) fn fill_template(&mut self, text: &str, value: impl Fn(&str) -> Option<String>) {
        let mut filled = String::new();
        fill(&mut filled, text, &value);
        let is_code = |line: &&str| !line.is_empty() && !line.starts_with("//");
        filled.lines().map(str::trim).filter(is_code).for_each(|line| self.line(line));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_replaced_by_values_that_may_contain_names() {
        let mut shader = ShaderBuilder::default();
        let (first, sum, lines) = ("x", String::from("$first + 1u"), "\n    a;\n    b;\n");
        shader.template("let y = f($sum);\n// A comment.\n$lines\n$unknown;", values![first, sum, lines]);
        assert_eq!(shader.body, "    let y = f(x + 1u);\n    a;\n    b;\n    $unknown;\n");
    }
}
