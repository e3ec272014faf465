//! The translation of the tokens of a kernel text.
//!
//! Both languages have the same expressions. They differ in declarations (`let`, `var`, functions and their types),
//! literals, swizzles (`v.xy`), `loop`, and `switch`, whose cases end without `break` in WGSL.

use super::tokens::{Token, TokenKind, is_float, tokens};
use std::fmt::Write;

/// The reason why a text cannot be translated.
pub(super) type UntranslatedConstruct = String;

/// A function in CUDA C++.
pub(super) struct TranslatedFunction {
    /// The declaration without a body.
    pub(super) signature: String,
    /// The body with its braces.
    pub(super) body: String,
}

/// Translates the text of a function.
pub(super) fn translate_function(text: &str) -> Result<TranslatedFunction, UntranslatedConstruct> {
    Translator { tokens: tokens(text), next: 0 }.function()
}

/// Translates the statements of a kernel.
pub(super) fn translate_body(text: &str) -> Result<String, UntranslatedConstruct> {
    let (mut translator, mut out) = (Translator { tokens: tokens(text), next: 0 }, String::new());
    while translator.next < translator.tokens.len() {
        translator.statement(&mut out)?;
    }
    Ok(out)
}

/// A text that is being translated.
struct Translator<'a> {
    tokens: Vec<Token<'a>>,
    /// The index of the next token.
    next: usize,
}

/// The keywords of C++ that are names in kernel texts.
const KEYWORDS: [&str; 12] =
    ["auto", "char", "double", "float", "half", "int", "long", "new", "register", "short", "signed", "unsigned"];

impl<'a> Translator<'a> {
    fn peek(&self) -> Option<&Token<'a>> {
        self.tokens.get(self.next)
    }

    fn is_next(&self, text: &str) -> bool {
        self.peek().is_some_and(|token| token.is(text))
    }

    fn take(&mut self) -> Result<Token<'a>, UntranslatedConstruct> {
        let token = *self.peek().ok_or("the text ends early")?;
        self.next += 1;
        Ok(token)
    }

    /// Takes the next token if it is `text`.
    fn skip(&mut self, text: &str) -> bool {
        let is_next = self.is_next(text);
        self.next += usize::from(is_next);
        is_next
    }

    fn expect(&mut self, text: &str) -> Result<Token<'a>, UntranslatedConstruct> {
        let token = self.take()?;
        if token.is(text) { Ok(token) } else { Err(format!("`{}` in place of `{text}`", token.text)) }
    }

    /// Returns the tokens up to a symbol outside of brackets for which `ends` is true. The symbol stays.
    fn until(&mut self, ends: impl Fn(&str) -> bool) -> Result<&[Token<'a>], UntranslatedConstruct> {
        let (start, mut depth) = (self.next, 0);
        loop {
            let token = self.peek().ok_or("a bracket is not closed")?;
            if depth == 0 && ends(token.text) {
                return Ok(&self.tokens[start..self.next]);
            }
            match token.text {
                "(" | "[" | "{" | "<" => depth += 1,
                ")" | "]" | "}" | ">" => depth -= 1,
                _ => {}
            }
            self.next += 1;
        }
    }

    /// Translates a function.
    fn function(&mut self) -> Result<TranslatedFunction, UntranslatedConstruct> {
        self.expect("fn")?;
        let name = self.take()?.text.to_string();
        self.expect("(")?;
        let mut parameters = Vec::new();
        while !self.skip(")") {
            let parameter = name_of(self.take()?);
            self.expect(":")?;
            let ty = join(self.until(|text| text == "," || text == ")")?);
            parameters.push(format!("{} {parameter}", ty.trim()));
            self.skip(",");
        }
        let result = if self.skip("->") { join(self.until(|text| text == "{")?) } else { "void".into() };
        let signature = format!("DEVICE {} {name}({})", result.trim(), parameters.join(", "));
        let body = self.block()?;
        Ok(TranslatedFunction { signature, body })
    }

    /// Translates a block with its braces.
    fn block(&mut self) -> Result<String, UntranslatedConstruct> {
        let mut out = String::from(self.expect("{")?.text);
        loop {
            if self.is_next("}") {
                let _ = write!(out, "{}", self.take()?);
                return Ok(out);
            }
            self.statement(&mut out)?;
        }
    }

    /// Translates a statement, or a part of one.
    fn statement(&mut self, out: &mut String) -> Result<(), UntranslatedConstruct> {
        let token = self.take()?;
        match (token.kind, token.text) {
            (_, "{") => {
                self.next -= 1;
                let block = self.block()?;
                let _ = write!(out, "{}{block}", token.space);
            }
            (TokenKind::Name, "let" | "const") => {
                let declaration = self.declaration("const ")?;
                let _ = write!(out, "{}{declaration}", token.space);
            }
            (TokenKind::Name, "var") => {
                let declaration = self.declaration("")?;
                let _ = write!(out, "{}{declaration}", token.space);
            }
            (TokenKind::Name, "loop") => {
                let _ = write!(out, "{}for (;;)", token.space);
            }
            (TokenKind::Name, "switch") => self.switch(token, out)?,
            (TokenKind::Name, "continuing" | "struct" | "ptr") => return Err(format!("`{}`", token.text)),
            _ => expression_token(token, out, self.tokens.get(self.next.wrapping_sub(2))),
        }
        Ok(())
    }

    /// Translates a declaration after `let` or `var`, up to its semicolon.
    fn declaration(&mut self, qualifier: &str) -> Result<String, UntranslatedConstruct> {
        let name = name_of(self.take()?);
        let ty = match self.skip(":") {
            true => Some(join(self.until(|text| text == "=" || text == ";")?).trim().to_string()),
            false => None,
        };
        if !self.skip("=") {
            let ty = ty.ok_or_else(|| format!("`{name}` without a type and a value"))?;
            return Ok(format!("{qualifier}{ty} {name} = {{}}"));
        }
        let start = self.next;
        let value = self.value()?;
        let is_integer =
            |token: &Token<'_>| token.is_untyped_integer() || matches!(token.text, "+" | "-" | "*" | "(" | ")");
        let ty = ty.unwrap_or_else(|| match self.tokens[start..self.next].iter().all(is_integer) {
            // An integer literal without a type has the type i32.
            true => "i32".into(),
            false => "auto".into(),
        });
        Ok(format!("{qualifier}{ty} {name} ={value}"))
    }

    /// Translates an expression up to its semicolon.
    fn value(&mut self) -> Result<String, UntranslatedConstruct> {
        let (start, mut out) = (self.next, String::new());
        while !self.is_next(";") {
            self.take()?;
        }
        for k in start..self.next {
            expression_token(self.tokens[k], &mut out, k.checked_sub(1).and_then(|k| self.tokens.get(k)));
        }
        Ok(out)
    }

    /// Translates a `switch` after the keyword. Every case is a block.
    fn switch(&mut self, keyword: Token<'a>, out: &mut String) -> Result<(), UntranslatedConstruct> {
        let condition = join(self.until(|text| text == "{")?);
        let _ = write!(out, "{}switch ({}) {{", keyword.space, condition.trim());
        self.expect("{")?;
        while !self.is_next("}") {
            let case = self.take()?;
            let _ = write!(out, "{}", case.space);
            if case.is("case") {
                let labels = join(self.until(|text| text == ":" || text == "{")?);
                labels.split(',').for_each(|label| {
                    let _ = write!(out, "case {}: ", label.trim());
                });
            } else {
                let _ = write!(out, "default: ");
            }
            self.skip(":");
            let block = self.block()?;
            let _ = write!(out, "{block} break;");
        }
        let _ = write!(out, "{}", self.take()?);
        Ok(())
    }
}

/// Returns the concatenation of tokens.
fn join(tokens: &[Token<'_>]) -> String {
    tokens.iter().map(Token::to_string).collect()
}

/// Returns a name that is not a keyword of C++.
fn name_of(token: Token<'_>) -> String {
    if KEYWORDS.contains(&token.text) { format!("{}_", token.text) } else { token.text.to_string() }
}

/// Translates a token of an expression. `previous` is the token before it.
fn expression_token(token: Token<'_>, out: &mut String, previous: Option<&Token<'_>>) {
    out.push_str(token.space);
    let follows_dot = previous.is_some_and(|previous| previous.is("."));
    match token.kind {
        TokenKind::Number => out.push_str(&number(token.text)),
        TokenKind::Name if follows_dot && token.text.len() > 1 => {
            let _ = write!(out, "{}()", token.text);
        }
        TokenKind::Name if token.is("zero") => out.push_str("0u"),
        TokenKind::Name => out.push_str(&name_of(token)),
        TokenKind::Symbol => out.push_str(token.text),
    }
}

/// Translates the literal of a number.
fn number(text: &str) -> String {
    match text {
        // The smallest integer is the negation of a literal that `int` does not represent.
        "2147483648" => "2147483648u".into(),
        _ if is_float(text) && !text.ends_with('f') => format!("{}f", text.trim_end_matches('h')),
        _ => text.trim_end_matches('i').into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(text: &str) -> String {
        translate_body(text).unwrap()
    }

    #[test]
    fn declarations_have_types_of_cpp() {
        assert_eq!(body("let x = a + 1u;"), "const auto x = a + 1u;");
        assert_eq!(body("var sum: vec2<u32>;"), "vec2<u32> sum = {};");
        assert_eq!(body("var y: f32 = 1.0;"), "f32 y = 1.0f;");
        assert_eq!(body("var power = -(1 + 2);"), "i32 power = -(1 + 2);");
        assert_eq!(body("let float = 2;\nf(float);"), "const i32 float_ = 2;\nf(float_);");
    }

    #[test]
    fn literals_and_parts_of_vectors_are_translated() {
        assert_eq!(body("x = 0x1fu + 3u;"), "x = 0x1fu + 3u;");
        assert_eq!(body("y = -1e-3 + 2.0f;"), "y = -1e-3f + 2.0f;");
        assert_eq!(body("i = i32(-2147483648);"), "i = i32(-2147483648u);");
        assert_eq!(body("p = v.xy + w.zw[0];"), "p = v.xy() + w.zw()[0];");
        assert_eq!(body("p.x = v.y;"), "p.x = v.y;");
        assert_eq!(body("f = bitcast<f32>(1u ^ zero);"), "f = bitcast<f32>(1u ^ 0u);");
    }

    #[test]
    fn control_flow_is_translated() {
        assert_eq!(body("loop { if (a) { break; } }"), "for (;;) { if (a) { break; } }");
        assert_eq!(
            body("for (var i = 0u; i < 3u; i = i + 1u) { s = s + i; }"),
            "for (auto i = 0u; i < 3u; i = i + 1u) { s = s + i; }"
        );
        assert_eq!(
            body("switch k { case 0u, 1u: { x = 1u; } default: { x = 2u; } }"),
            "switch (k) { case 0u: case 1u: { x = 1u; } break; default: { x = 2u; } break; }"
        );
    }

    #[test]
    fn functions_have_a_signature_and_a_body() {
        let text = "fn f_upper(x: f32, n: vec2<u32>) -> array<u32, 4> {\n    return g(x);\n}\n";
        let TranslatedFunction { signature, body } = translate_function(text).unwrap();
        assert_eq!(signature, "DEVICE array<u32, 4> f_upper(f32 x, vec2<u32> n)");
        assert_eq!(body, "{\n    return g(x);\n}");
        assert_eq!(translate_function("fn f(int: i32) { g(int); }").unwrap().signature, "DEVICE void f(i32 int_)");
    }

    #[test]
    fn constructs_that_are_not_translated_are_refused() {
        for (text, what) in [
            ("loop { continuing { i = i + 1u; } }", "`continuing`"),
            ("var x;", "`x` without a type and a value"),
            ("let x = (1u", "the text ends early"),
            ("{ x = 1u;", "the text ends early"),
        ] {
            assert_eq!(translate_body(text), Err(what.into()), "{text}");
        }
        assert_eq!(translate_function("struct A { x: u32 }").err(), Some("`struct` in place of `fn`".into()));
    }
}
