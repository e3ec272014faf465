//! The module tree of a crate and the paths in its source files, read without a compiler.

use std::collections::{BTreeMap, BTreeSet};

/// A token of a source file: an identifier, `::`, or one character. Comments and literals are not tokens.
pub(crate) struct Token<'a> {
    text: &'a str,
    line: usize,
}

/// Splits source text into tokens.
pub(crate) fn tokens(text: &str) -> Vec<Token<'_>> {
    let bytes = text.as_bytes();
    let (mut tokens, mut line, mut at) = (Vec::new(), 1, 0);
    while at < bytes.len() {
        let start = at;
        let end = literal_or_comment(&text[at..]).map_or(at, |len| at + len);
        if end > start {
            at = end;
        } else if is_word(bytes[at]) {
            at += bytes[at..].iter().take_while(|b| is_word(**b)).count();
            tokens.push(Token { text: &text[start..at], line });
        } else {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
            at += usize::from(text[start..].starts_with("::"));
            if !bytes[start].is_ascii_whitespace() {
                tokens.push(Token { text: &text[start..at], line });
            }
        }
        line += bytes[start..at].iter().filter(|b| **b == b'\n').count();
    }
    tokens
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Returns the length of the comment, string or character literal at the start of `text`.
fn literal_or_comment(text: &str) -> Option<usize> {
    let find = |from: usize, end: &str| text[from..].find(end).map_or(text.len(), |at| from + at + end.len());
    if text.starts_with("//") {
        return Some(find(0, "\n") - usize::from(text.contains('\n')));
    }
    if text.starts_with("/*") {
        return Some(find(2, "*/"));
    }
    let prefix = text.len() - text.trim_start_matches(['r', 'b', 'c']).len();
    let hashes = text[prefix..].bytes().take_while(|b| *b == b'#').count();
    if prefix > 0 && text[..prefix].contains('r') && text[prefix + hashes..].starts_with('"') {
        return Some(find(prefix + hashes + 1, &format!("\"{}", "#".repeat(hashes))));
    }
    let quoted = &text[prefix.min(1)..];
    let escaped_end = |quote: u8| {
        let mut bytes = quoted.bytes().enumerate().skip(1);
        while let Some((at, byte)) = bytes.next() {
            match byte {
                b'\\' => drop(bytes.next()),
                _ if byte == quote => return prefix.min(1) + at + 1,
                _ => {}
            }
        }
        text.len()
    };
    if quoted.starts_with('"') {
        return Some(escaped_end(b'"'));
    }
    // A lifetime has no closing quote.
    let is_char = quoted.starts_with("'\\") || quoted.starts_with('\'') && quoted.chars().nth(2) == Some('\'');
    is_char.then(|| escaped_end(b'\''))
}

/// A path in the source: its segments, and the line.
#[derive(Clone)]
pub(crate) struct PathUse {
    pub(crate) segments: Vec<String>,
    pub(crate) line: usize,
}

/// An import: the name that it introduces (`*` for a glob import), and the path.
struct Import {
    name: String,
    path: PathUse,
}

/// A module of a crate: a file, or an inline module of a file.
#[derive(Default)]
struct Module {
    file: usize,
    items: BTreeSet<String>,
    /// Identifiers in macro calls of the module, which may be names of generated items.
    generated: BTreeSet<String>,
    imports: Vec<Import>,
    paths: Vec<PathUse>,
}

/// The modules of a crate, by their paths relative to the crate root.
pub(crate) struct Crate {
    modules: BTreeMap<Vec<String>, Module>,
}

/// The resolved target of a path.
enum Target {
    Module(Vec<String>),
    /// An item, by the index of the file that defines it.
    Item(usize),
}

/// The names that are being resolved, each with the path of its module.
type VisitedNames<'a> = BTreeSet<(Vec<String>, &'a str)>;

impl Crate {
    /// Reads the files of a crate, with paths relative to `src/`. Test modules are omitted.
    pub(crate) fn new(files: &[(String, String)]) -> Crate {
        let mut modules = BTreeMap::new();
        let mut tests: Vec<Vec<String>> = Vec::new();
        for (file, (name, text)) in files.iter().enumerate() {
            let path = module_path(name);
            let mut reader = Reader { tokens: &tokens(text), at: 0, file, modules: &mut modules, tests: &mut tests };
            reader.module(&path, false);
        }
        modules.retain(|path: &Vec<String>, _| !tests.iter().any(|test| path.starts_with(test)));
        Crate { modules }
    }

    /// Returns the uses of one file by another: `(from, to, line)`, sorted and with one line for each pair.
    pub(crate) fn dependencies(&self) -> BTreeMap<(usize, usize), usize> {
        let mut found = BTreeMap::new();
        for (path, module) in &self.modules {
            let imports = module.imports.iter().map(|import| (&import.path, import.name == "*"));
            for (used, is_glob) in imports.chain(module.paths.iter().map(|p| (p, false))) {
                let to = match self.resolve(path, &used.segments, &mut VisitedNames::new()) {
                    Some(Target::Item(file)) => file,
                    Some(Target::Module(target)) if is_glob => self.modules[&target].file,
                    // Paths that begin with the name of an imported module are counted separately.
                    _ => continue,
                };
                if to != module.file {
                    found.entry((module.file, to)).or_insert(used.line);
                }
            }
        }
        found
    }

    /// Resolves a path in module `from`. Returns `None` if it begins with the name of another crate. `visited` contains
    /// the names that are being resolved.
    fn resolve<'a>(
        &'a self,
        from: &[String],
        segments: &'a [String],
        visited: &mut VisitedNames<'a>,
    ) -> Option<Target> {
        let mut module = from.to_vec();
        let mut rest = segments;
        match rest.first()?.as_str() {
            "crate" => module.clear(),
            "self" => {}
            "super" => drop(module.pop()),
            first => match self.member(&module, first, visited)? {
                Target::Module(target) => module = target,
                item => return Some(item),
            },
        }
        rest = &rest[1..];
        while let Some((name, after)) = rest.split_first() {
            if name == "super" {
                module.pop();
            } else {
                match self.member(&module, name, visited) {
                    Some(Target::Module(target)) => module = target,
                    Some(item) => return Some(item),
                    None => return Some(Target::Item(self.modules.get(&module)?.file)),
                }
            }
            rest = after;
        }
        Some(Target::Module(module))
    }

    /// Resolves a name in a module.
    fn member<'a>(&'a self, path: &[String], name: &'a str, visited: &mut VisitedNames<'a>) -> Option<Target> {
        let module = self.modules.get(path)?;
        let child: Vec<String> = path.iter().cloned().chain([name.to_string()]).collect();
        if self.modules.contains_key(&child) {
            return Some(Target::Module(child));
        }
        if module.items.contains(name) {
            return Some(Target::Item(module.file));
        }
        // Imports may be circular.
        if !visited.insert((path.to_vec(), name)) {
            return None;
        }
        if let Some(import) = module.imports.iter().find(|import| import.name == name) {
            return self.resolve(path, &import.path.segments, visited);
        }
        for import in module.imports.iter().filter(|import| import.name == "*") {
            if let Some(Target::Module(target)) = self.resolve(path, &import.path.segments, visited)
                && let Some(found) = self.member(&target, name, visited)
            {
                return Some(found);
            }
        }
        module.generated.contains(name).then_some(Target::Item(module.file))
    }
}

/// Returns the module path of a file, given its path in `src/`.
fn module_path(file: &str) -> Vec<String> {
    let path = file.trim_end_matches(".rs").trim_end_matches("/mod");
    if path == "lib" || path == "main" { Vec::new() } else { path.split('/').map(String::from).collect() }
}

/// A parser of the tokens of one file.
struct Reader<'a> {
    tokens: &'a [Token<'a>],
    at: usize,
    file: usize,
    modules: &'a mut BTreeMap<Vec<String>, Module>,
    tests: &'a mut Vec<Vec<String>>,
}

impl Reader<'_> {
    fn text(&self, ahead: usize) -> &str {
        self.tokens.get(self.at + ahead).map_or("", |token| token.text)
    }

    /// Returns true if the next tokens equal `tokens`.
    fn is_next(&self, tokens: &[&str]) -> bool {
        tokens.iter().enumerate().all(|(k, token)| self.text(k) == *token)
    }

    /// Reads a module to its end.
    fn module(&mut self, path: &[String], is_inline: bool) {
        let mut module = Module { file: self.file, ..Module::default() };
        let mut depth = 0;
        // The nesting depth inside a macro call at module level, if any.
        let mut call = None;
        // The nesting depth inside a macro definition, if any. There, `self` and `super` are modules of the caller.
        let mut definition = None;
        while self.at < self.tokens.len() {
            match self.text(0) {
                "{" => depth += 1,
                "}" if depth == 0 && is_inline => break,
                "}" => {
                    depth -= 1;
                    call = call.filter(|&start| depth >= start);
                    definition = definition.filter(|&start| depth >= start);
                }
                "#" if self.is_test_attribute() => {
                    self.skip_test_item(path);
                    continue;
                }
                // A visibility is not a use of the module that it names.
                "pub" if self.is_next(&["pub", "(", "in"]) => self.skip_to(")"),
                // `use<..>` is the list of captured lifetimes of a return type.
                "use" if definition.is_some() && ["self", "super"].contains(&self.text(1)) => self.skip_to(";"),
                "use" if self.text(1) != "<" => {
                    self.at += 1;
                    self.imports(&mut Vec::new(), &mut module.imports);
                }
                "mod" if definition.is_none() && self.text(2) == "{" => {
                    let child: Vec<String> = path.iter().cloned().chain([self.text(1).to_string()]).collect();
                    self.at += 3;
                    self.module(&child, true);
                }
                "struct" | "enum" | "union" | "trait" | "fn" | "const" | "static" | "type" if depth == 0 => {
                    let is_modified = self.text(0) == "const" && ["fn", "unsafe"].contains(&self.text(1));
                    let name = usize::from(!is_modified) + usize::from(self.text(1) == "mut");
                    module.items.insert(self.text(name).to_string());
                }
                "macro_rules" => {
                    module.items.insert(self.text(2).to_string());
                    definition = Some(depth + 1);
                }
                _ if depth == 0 && self.text(1) == "!" && ["{", "("].contains(&self.text(2)) => call = Some(1),
                "self" | "super" if definition.is_some() => self.path(&mut Vec::new()),
                "crate" | "self" | "super" => self.path(&mut module.paths),
                word if word.bytes().all(is_word) => {
                    if call.is_some() {
                        module.generated.insert(word.to_string());
                    }
                    self.path(&mut module.paths);
                }
                _ => {}
            }
            self.at += 1;
        }
        self.modules.insert(path.to_vec(), module);
    }

    /// Reads a path of several segments. The reader stays at its last token.
    fn path(&mut self, paths: &mut Vec<PathUse>) {
        let line = self.tokens[self.at].line;
        let mut segments = vec![self.text(0).to_string()];
        while self.text(1) == "::" && self.text(2).bytes().all(is_word) {
            self.at += 2;
            segments.push(self.text(0).to_string());
        }
        if segments.len() > 1 {
            paths.push(PathUse { segments, line });
        }
    }

    /// Reads an import after `use`, or one branch of a group.
    fn imports(&mut self, prefix: &mut Vec<String>, imports: &mut Vec<Import>) {
        let len = prefix.len();
        let mut name = None;
        let line = self.tokens[self.at].line;
        loop {
            match self.text(0) {
                "::" => {}
                "as" => {
                    self.at += 1;
                    name = Some(self.text(0).to_string());
                }
                "*" => name = Some("*".to_string()),
                "{" => {
                    self.at += 1;
                    while !["}", ""].contains(&self.text(0)) {
                        self.imports(prefix, imports);
                        self.at += usize::from(self.text(0) == ",");
                    }
                    self.at += 1;
                    break;
                }
                "," | ";" | "}" | "" => {
                    // `a::{self}` imports `a`.
                    if prefix.len() > 1 && prefix.last().is_some_and(|last| last == "self") {
                        prefix.pop();
                    }
                    let name = name.or_else(|| prefix.last().cloned()).unwrap_or_default();
                    imports.push(Import { name, path: PathUse { segments: prefix.clone(), line } });
                    break;
                }
                segment => prefix.push(segment.to_string()),
            }
            self.at += 1;
        }
        prefix.truncate(len);
    }

    /// Returns true at `#[cfg(.. test ..)]`.
    fn is_test_attribute(&self) -> bool {
        let inside = self.tokens[self.at..].iter().map(|token| token.text).take_while(|text| *text != "]");
        let words: Vec<&str> = inside.collect();
        words.starts_with(&["#", "[", "cfg", "("]) && words.contains(&"test") && !words.contains(&"not")
    }

    /// Skips a test item with its attributes. A module with a file is recorded.
    fn skip_test_item(&mut self, path: &[String]) {
        while self.text(0) == "#" {
            self.skip_to("]");
            self.at += 1;
        }
        let mut depth = 0;
        while self.at < self.tokens.len() {
            match self.text(0) {
                "mod" if depth == 0 => {
                    self.tests.push(path.iter().cloned().chain([self.text(1).to_string()]).collect());
                }
                "{" => depth += 1,
                "}" => depth -= 1,
                _ => {}
            }
            let ends = depth == 0 && ["}", ";"].contains(&self.text(0));
            self.at += 1;
            if ends {
                return;
            }
        }
    }

    /// Moves to the next token that equals `text`.
    fn skip_to(&mut self, text: &str) {
        while self.at < self.tokens.len() && self.text(0) != text {
            self.at += 1;
        }
    }
}
