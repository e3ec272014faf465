//! Models as text: a tree of their modules.

use std::fmt::{self, Write};

/// The modules of a model as an indented tree, as [`Module::tree`](crate::Module::tree) returns it.
///
/// It implements `Display` and `Debug`.
#[derive(Clone)]
pub struct ModelTree {
    nodes: Vec<TreeNode>,
}

/// A module with its own parameters, buffers and settings.
#[derive(Clone)]
struct TreeNode {
    /// The path from the root: the names of the enclosing modules and the module's own, separated by dots.
    path: String,
    /// The name within the enclosing module.
    name: String,
    type_name: String,
    entries: Vec<(String, EntryValue)>,
    children: Vec<usize>,
}

#[derive(Clone)]
enum EntryValue {
    Text(String),
    /// The elements of an array.
    List(Vec<String>),
}

impl ModelTree {
    /// Creates the tree of a root without parts.
    pub(crate) fn new(type_name: &str) -> ModelTree {
        let root = TreeNode::new("", "", type_name);
        ModelTree { nodes: vec![root] }
    }

    /// Adds a module; for the root itself, sets its class.
    pub(crate) fn add_module(&mut self, path: &str, type_name: String) {
        if path.is_empty() {
            self.nodes[0].type_name = type_name;
            return;
        }
        let (parent, name) = self.owner(path);
        let node = TreeNode::new(path, name, &type_name);
        let index = self.nodes.len();
        self.nodes[parent].children.push(index);
        self.nodes.push(node);
    }

    /// Adds a parameter or a buffer of a module that was added before.
    pub(crate) fn add_tensor(&mut self, path: &str, text: String) {
        let (owner, name) = self.owner(path);
        let name = name.to_string();
        self.nodes[owner].entries.push((name, EntryValue::Text(text)));
    }

    /// Adds a setting of a module that was added before. Elements of an array become one entry.
    pub(crate) fn add_setting(&mut self, path: &str, value: String) {
        let (owner, name) = self.owner(path);
        let (outer, last) = name.rsplit_once('.').unwrap_or(("", name));
        let is_index = !outer.is_empty() && last.parse::<usize>().is_ok();
        let name = if is_index { outer.rsplit('.').next().unwrap_or(outer) } else { last };
        let name = name.to_string();
        let entries = &mut self.nodes[owner].entries;
        match entries.last_mut() {
            Some((known, EntryValue::List(values))) if is_index && *known == name => values.push(value),
            _ if is_index => entries.push((name, EntryValue::List(vec![value]))),
            _ => entries.push((name, EntryValue::Text(value))),
        }
    }

    /// Returns the index of the innermost module that contains a part, and the name of the part in this module.
    fn owner<'p>(&self, path: &'p str) -> (usize, &'p str) {
        let within = |(index, node): (usize, &TreeNode)| {
            let path_in_module =
                if node.path.is_empty() { path } else { path.strip_prefix(&node.path)?.strip_prefix('.')? };
            Some((index, path_in_module))
        };
        let modules = self.nodes.iter().enumerate().filter_map(within);
        modules.min_by_key(|(_, rest)| rest.len()).unwrap_or((0, path))
    }

    fn write(&self, index: usize, indent: usize, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let node = &self.nodes[index];
        write!(f, "{}(", node.type_name)?;
        if node.children.is_empty() {
            for (k, (name, value)) in node.entries.iter().enumerate() {
                write!(f, "{}{name}: {value}", if k > 0 { ", " } else { "" })?;
            }
            return f.write_char(')');
        }
        let indented = indent + 2;
        for (name, value) in &node.entries {
            write!(f, "\n{:indented$}{name}: {value}", "")?;
        }
        for &child in &node.children {
            write!(f, "\n{:indented$}({}): ", "", self.nodes[child].name)?;
            self.write(child, indented, f)?;
        }
        write!(f, "\n{:indent$})", "")
    }
}

impl TreeNode {
    fn new(path: &str, name: &str, type_name: &str) -> TreeNode {
        let (path, name, type_name) = (path.to_string(), name.to_string(), type_name.to_string());
        TreeNode { path, name, type_name, entries: Vec::new(), children: Vec::new() }
    }
}

impl fmt::Display for EntryValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EntryValue::Text(text) => f.write_str(text),
            EntryValue::List(values) => write!(f, "[{}]", values.join(", ")),
        }
    }
}

impl fmt::Display for ModelTree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(0, 0, f)
    }
}

impl fmt::Debug for ModelTree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
