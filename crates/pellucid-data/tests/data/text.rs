//! Text files, character tokens and token windows.

use pellucid::data::{CharTokenizer, Dataset, TokenWindows, read_text};
use pellucid::{Error, Result};

#[test]
fn characters_are_encoded_and_decoded() {
    let text = "naïve café\n";
    let tokenizer = CharTokenizer::from_text(text);
    assert_eq!((tokenizer.len(), tokenizer.is_empty()), (10, false));
    assert_eq!(tokenizer.decode(&tokenizer.encode(text).unwrap()).unwrap(), text);
    let restored = CharTokenizer::from_text(&tokenizer.characters().iter().collect::<String>());
    assert_eq!(restored, tokenizer);
    let error = tokenizer.encode("nave x").unwrap_err().to_string();
    assert!(error.contains("'x', character 5"), "{error}");
    for token in [-1, 10] {
        assert!(matches!(tokenizer.decode(&[0, token]), Err(Error::InvalidArgument { .. })));
    }
}

#[test]
fn windows_cover_the_tokens() {
    let tokens: Vec<i64> = (0..10).collect();
    let starts =
        |windows: &TokenWindows| -> Vec<i64> { (0..windows.len()).map(|i| windows.get(i).unwrap().0[0]).collect() };
    let windows = TokenWindows::new(tokens.clone(), 4);
    assert_eq!(starts(&windows), [0, 1, 2, 3, 4, 5]);
    assert_eq!(windows.get(5).unwrap(), (vec![5, 6, 7, 8], vec![6, 7, 8, 9]));
    assert!(matches!(windows.get(6), Err(Error::IndexOutOfBounds { len: 6, .. })));
    assert_eq!(starts(&windows.clone().stride(4)), [0, 4]);
    assert_eq!(starts(&windows.stride(5)), [0, 5]);
    for context in [10, 11, usize::MAX] {
        assert!(TokenWindows::new(tokens.clone(), context).is_empty());
        assert!(TokenWindows::try_new(tokens.clone(), 0).is_err());
    }
}

#[test]
fn text_is_read_from_files() {
    let path = std::env::temp_dir().join(format!("pellucid-text-{}", std::process::id()));
    let read = |bytes: &[u8]| -> Result<String> {
        std::fs::write(&path, bytes).unwrap();
        read_text(&path)
    };
    assert_eq!(read("a\nß".as_bytes()).unwrap(), "a\nß");
    assert_eq!(read("\u{feff}a\u{feff}".as_bytes()).unwrap(), "a\u{feff}");
    assert!(read(b"a\nb\n\xff").unwrap_err().to_string().contains("line 3: the text is not UTF-8"));
    std::fs::remove_file(&path).unwrap();
    assert!(read_text(&path).unwrap_err().to_string().contains("does not exist"));
}
