//! Text for language models: files, character tokens, and token windows.

use crate::dataset::{Dataset, check_index};
use pellucid_derive::panicking_form;
use pellucid_tensor::{Error, OptionRange, Result, unwrap};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

/// The maximum size of a text file in bytes.
const MAX_BYTES: u64 = 8 << 30;

/// The UTF-8 byte order mark, which some programs write at the beginning of a file.
pub(crate) const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Reads a UTF-8 text file. A byte order mark at the beginning is removed.
///
/// # Errors
/// [`Error::File`] if the file cannot be read, or is not UTF-8 (the error contains the line number).
pub fn read_text(path: impl AsRef<Path>) -> Result<String> {
    let (op, path) = ("read_text", path.as_ref());
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes));
    read.map_err(|error| Error::unreadable_file(op, path, &error))?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(Error::file(op, path, format!("the file has more than {MAX_BYTES} bytes; split it")));
    }
    if bytes.starts_with(BYTE_ORDER_MARK) {
        bytes.drain(..BYTE_ORDER_MARK.len());
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let line = 1 + error.as_bytes()[..valid].iter().filter(|byte| **byte == b'\n').count();
        Error::file(op, path, format!("line {line}: the text is not UTF-8; convert the file"))
    })
}

/// A vocabulary of characters: the token of a character is its index in the sorted list of all characters.
///
/// ```
/// use pellucid::data::CharTokenizer;
/// let tokenizer = CharTokenizer::from_text("hello");
/// assert_eq!(tokenizer.characters(), ['e', 'h', 'l', 'o']);
/// let tokens = tokenizer.encode("hole")?;
/// assert_eq!(tokens, [1, 3, 2, 0]);
/// assert_eq!(tokenizer.decode(&tokens)?, "hole");
/// # Ok::<(), pellucid::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CharTokenizer {
    characters: Vec<char>,
}

impl CharTokenizer {
    /// Creates a vocabulary of the characters of a text. A string that consists of the [`characters`](Self::characters)
    /// of a vocabulary creates the same vocabulary.
    pub fn from_text(text: &str) -> CharTokenizer {
        CharTokenizer { characters: text.chars().collect::<BTreeSet<char>>().into_iter().collect() }
    }

    /// Returns the number of characters.
    #[doc(alias = "vocab_size")]
    pub fn len(&self) -> usize {
        self.characters.len()
    }

    /// Returns true if the vocabulary has no characters.
    pub fn is_empty(&self) -> bool {
        self.characters.is_empty()
    }

    /// Returns the characters in sorted order.
    pub fn characters(&self) -> &[char] {
        &self.characters
    }

    /// Encodes a string as tokens.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a character that is not in the vocabulary.
    pub fn encode(&self, text: &str) -> Result<Vec<i64>> {
        let token = |(position, character): (usize, char)| {
            self.characters.binary_search(&character).map(|token| token as i64).map_err(|_| {
                let reason = format!("the vocabulary does not contain {character:?}, character {position} of the text");
                Error::invalid("encode", reason)
            })
        };
        text.chars().enumerate().map(token).collect()
    }

    /// Decodes tokens to a string.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a token that is not in the vocabulary.
    pub fn decode(&self, tokens: &[i64]) -> Result<String> {
        let character = |token: &i64| {
            let character = usize::try_from(*token).ok().and_then(|token| self.characters.get(token).copied());
            character
                .ok_or_else(|| Error::invalid("decode", format!("a token must be in 0..{}, got {token}", self.len())))
        };
        tokens.iter().map(character).collect()
    }
}

/// Windows of a token list, for language models: x is a window of `context` tokens, and y is the same window shifted by
/// one.
///
/// ```
/// use pellucid::data::{DataLoader, Dataset, LoaderOptions, TokenWindows};
/// let windows = TokenWindows::new(vec![5, 6, 7, 8, 9], 3);
/// assert_eq!(windows.len(), 2);
/// assert_eq!(windows.get(1)?, (vec![6, 7, 8], vec![7, 8, 9]));
/// let options = LoaderOptions { batch_size: 2, shuffle: true, ..Default::default() };
/// for batch in DataLoader::new(windows, options).epoch() {
///     let (x, y) = batch?;
///     assert_eq!((x.shape().dims(), y.shape().dims()), (&[2, 3][..], &[2, 3][..]));
/// }
/// # Ok::<(), pellucid::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct TokenWindows {
    tokens: Arc<[i64]>,
    context: usize,
    stride: usize,
}

impl TokenWindows {
    /// Creates windows that begin at each token. A list of at most `context` tokens has no windows.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a context of 0.
    #[panicking_form]
    pub fn try_new(tokens: impl Into<Arc<[i64]>>, context: usize) -> Result<TokenWindows> {
        OptionRange::COUNT.check("token_windows", "context", context as f64, 128.0)?;
        Ok(TokenWindows { tokens: tokens.into(), context, stride: 1 })
    }

    /// Sets the stride between the starts of two windows, 1 by default. With a stride of `context`, the windows do not
    /// overlap.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a stride of 0.
    #[panicking_form]
    pub fn try_stride(self, stride: usize) -> Result<Self> {
        match stride {
            0 => Err(Error::invalid("token_windows", "the stride must be at least 1, got 0")),
            _ => Ok(TokenWindows { stride, ..self }),
        }
    }
}

impl Dataset for TokenWindows {
    type Item = (Vec<i64>, Vec<i64>);

    fn len(&self) -> usize {
        self.tokens.len().saturating_sub(self.context).div_ceil(self.stride)
    }

    fn get(&self, index: usize) -> Result<Self::Item> {
        check_index(index, self.len())?;
        let start = index * self.stride;
        let part = |start: usize| self.tokens[start..start + self.context].to_vec();
        Ok((part(start), part(start + 1)))
    }
}
