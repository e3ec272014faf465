//! The tokenizer of "uncased" BERT models.

use std::collections::HashMap;
use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;

/// The WordPiece tokenizer (Wu et al. 2016): splits words into the longest pieces of a vocabulary, in lower case and
/// without accents, like BERT's "uncased" models.
pub(crate) struct WordPiece {
    numbers: HashMap<String, i64>,
    /// `[UNK]`, `[CLS]`, `[SEP]`.
    special: [i64; 3],
}

impl WordPiece {
    /// Creates a tokenizer from a vocabulary with one piece per line; pieces that continue a word begin with `##`.
    pub(crate) fn new(vocabulary: &str) -> std::result::Result<WordPiece, String> {
        let numbers: HashMap<String, i64> = vocabulary.lines().map(String::from).zip(0..).collect();
        let [unknown, begin, end] = ["[UNK]", "[CLS]", "[SEP]"]
            .map(|name| numbers.get(name).copied().ok_or(format!("the vocabulary has no {name}")));
        Ok(WordPiece { special: [unknown?, begin?, end?], numbers })
    }

    /// Returns the token ids of a sentence, between `[CLS]` and `[SEP]`.
    pub(crate) fn ids(&self, text: &str) -> Vec<i64> {
        let [_, begin, end] = self.special;
        let pieces = words(text).iter().flat_map(|word| self.pieces(word)).collect::<Vec<_>>();
        [vec![begin], pieces, vec![end]].concat()
    }

    fn pieces(&self, word: &str) -> Vec<i64> {
        let (mut found, mut start) = (Vec::new(), 0);
        while start < word.len() {
            let prefix = if start == 0 { "" } else { "##" };
            let ends = word[start..].char_indices().map(|(at, c)| start + at + c.len_utf8()).rev();
            let piece_id = |end: usize| Some((*self.numbers.get(&format!("{prefix}{}", &word[start..end]))?, end));
            let Some((piece, end)) = ends.into_iter().find_map(piece_id).filter(|_| word.chars().count() <= 100) else {
                return vec![self.special[0]];
            };
            found.push(piece);
            start = end;
        }
        found
    }
}

/// Splits at spaces; punctuation and Chinese characters are separate words.
fn words(text: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    for c in text.to_lowercase().nfd().filter(|&c| !is_combining_mark(c) && c != '\u{fffd}') {
        let alone = c.is_ascii_punctuation()
            || matches!(c, '¡' | '§' | '«' | '¶' | '·' | '»' | '¿' | '‐'..='‧' | '‰'..='⁞' | '、'..='〃' | '〈'..='】')
            || matches!(c, '\u{3400}'..='\u{4dbf}' | '\u{4e00}'..='\u{9fff}' | '\u{f900}'..='\u{faff}' | '！'..='／');
        if alone {
            words.extend([c.to_string(), String::new()]);
        } else if c.is_whitespace() {
            words.push(String::new());
        } else if !c.is_control() {
            words.last_mut().expect("the list of words must not be empty").push(c);
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_split_as_in_uncased_models() {
        assert_eq!(
            words("  Café, s'il te plaît…\t中文\u{0}x "),
            ["cafe", ",", "s", "'", "il", "te", "plait", "…", "中", "文", "x"]
        );
    }
}
