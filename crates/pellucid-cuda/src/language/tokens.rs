//! Tokens of a kernel text.

use std::fmt;

/// The kind of a token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TokenKind {
    /// A name or a keyword.
    Name,
    /// A literal of a number.
    Number,
    /// An operator, a bracket or a separator.
    Symbol,
}

/// A token with the white space before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Token<'a> {
    pub(super) kind: TokenKind,
    /// The white space between the previous token and this one.
    pub(super) space: &'a str,
    pub(super) text: &'a str,
}

impl Token<'_> {
    /// Returns true if the token is this symbol, name or keyword.
    pub(super) fn is(&self, text: &str) -> bool {
        self.text == text
    }

    /// Returns true for a literal of an integer without a type.
    pub(super) fn is_untyped_integer(&self) -> bool {
        self.kind == TokenKind::Number && !is_float(self.text) && !self.text.ends_with(['u', 'i'])
    }
}

impl fmt::Display for Token<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.space, self.text)
    }
}

/// Returns true if a literal of a number is a float.
pub(super) fn is_float(text: &str) -> bool {
    !text.starts_with("0x") && text.contains(['.', 'e', 'E', 'f', 'h'])
}

/// The symbols of several characters, longer ones first.
const LONG_SYMBOLS: [&str; 20] = [
    "<<=", ">>=", "->", "==", "!=", "<=", ">=", "&&", "||", "<<", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "++",
    "--",
];

/// Returns the tokens of a text, without comments.
pub(super) fn tokens(text: &str) -> Vec<Token<'_>> {
    let (mut tokens, mut rest) = (Vec::new(), text);
    loop {
        let start = rest;
        rest = rest.trim_start();
        // The line break after a comment is part of the space before the next token.
        let mut space = &start[..start.len() - rest.len()];
        while let Some(comment) = rest.strip_prefix("//") {
            let after = &comment[comment.find('\n').unwrap_or(comment.len())..];
            rest = after.trim_start();
            space = &after[..after.len() - rest.len()];
        }
        let Some(first) = rest.chars().next() else { return tokens };
        let (kind, len) = match first {
            c if c.is_ascii_alphabetic() || c == '_' => (TokenKind::Name, name_len(rest)),
            c if c.is_ascii_digit() => (TokenKind::Number, number_len(rest)),
            _ => {
                let long = LONG_SYMBOLS.iter().find(|symbol| rest.starts_with(**symbol));
                (TokenKind::Symbol, long.map_or(first.len_utf8(), |symbol| symbol.len()))
            }
        };
        tokens.push(Token { kind, space, text: &rest[..len] });
        rest = &rest[len..];
    }
}

fn name_len(text: &str) -> usize {
    text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len())
}

/// Returns the length of the number at the start of a text, with its suffix.
fn number_len(text: &str) -> usize {
    let is_hexadecimal = text.starts_with("0x");
    let mut previous = ' ';
    let is_part = |c: &char| {
        let in_exponent = matches!(c, '+' | '-') && !is_hexadecimal && matches!(previous, 'e' | 'E');
        previous = *c;
        c.is_ascii_alphanumeric() || *c == '.' || in_exponent
    };
    text.chars().take_while(is_part).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_the_concatenation_of_its_tokens_and_spaces() {
        let text = "let x = -1.5e-3f + f(a.xy)[0x1fu]; // a comment\nif (i<=3&&j>>1u != 0) { i++; }\n";
        let all = tokens(text);
        let joined: String = all.iter().map(Token::to_string).collect();
        assert_eq!(joined, "let x = -1.5e-3f + f(a.xy)[0x1fu];\nif (i<=3&&j>>1u != 0) { i++; }");
        let numbers = all.iter().filter(|token| token.kind == TokenKind::Number);
        assert_eq!(numbers.map(|token| token.text).collect::<Vec<_>>(), ["1.5e-3f", "0x1fu", "3", "1u", "0"]);
        assert_eq!(all.iter().filter(|token| token.is_untyped_integer()).count(), 2);
    }

    #[test]
    fn comments_between_tokens_are_dropped() {
        let texts: Vec<&str> = tokens("// a\n// b\nx // c\n\n = 1;//").iter().map(|token| token.text).collect();
        assert_eq!(texts, ["x", "=", "1", ";"]);
    }
}
