//! Sentence embeddings with a published BERT encoder, read from its original files.
//!
//! ```text
//! cargo run --release --example sentence_embeddings -- DIRECTORY "A sentence." "Another one."
//! cargo run --release --example sentence_embeddings -- DIRECTORY --ids FILE
//! ```
//!
//! The directory contains `model.safetensors`, `config.json` and `vocab.txt` (uncased), as published for models like
//! `all-MiniLM-L6-v2`. With `--ids`, a JSON file contains the token ids of each sentence, and no vocabulary is needed.
//! The program prints one embedding for each line as JSON: the mean over its tokens, scaled to length 1 if
//! `--normalize` or the model's `modules.json` says so.
#![allow(clippy::print_stdout, reason = "an example program prints to standard output")]

use pellucid::nn::{
    AttentionMasks, Embedding, LayerNorm, TransformerEncoder, TransformerOptions, concatenate_entries, rename_keys,
};
use pellucid::prelude::*;
use pellucid::{Result, io};
use serde_json::Value;
use std::collections::HashMap;
use std::fs;
use std::path::Path;
use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut flag = |name: &str| arguments.iter().position(|a| a == name).map(|at| arguments.remove(at)).is_some();
    let (normalize, ids) = (flag("--normalize"), flag("--ids"));
    let [directory, rest @ ..] = &arguments[..] else {
        return Err("usage: sentence_embeddings DIRECTORY [--normalize] (--ids FILE | SENTENCE ..)".into());
    };
    let directory = Path::new(directory);
    let sentences: Vec<Vec<i64>> = if ids {
        serde_json::from_str(&fs::read_to_string(rest.first().ok_or("--ids needs a file")?)?)?
    } else {
        let tokenizer = WordPiece::new(&fs::read_to_string(directory.join("vocab.txt"))?)?;
        rest.iter().map(|text| tokenizer.ids(text)).collect()
    };
    let modules = fs::read_to_string(directory.join("modules.json")).unwrap_or_default();
    let mut embeddings = Bert::load(directory)?.embed(&sentences)?;
    if normalize || modules.contains("Normalize") {
        embeddings = embeddings.normalize(2.0, 1, 1e-12);
    }
    for embedding in embeddings.unbind(0) {
        println!("{}", serde_json::to_string(&embedding.to_vec::<f32>())?);
    }
    Ok(())
}

/// The bidirectional encoder of Devlin et al. (2019): the embeddings of words, positions and segments are added and
/// normalised, and then processed by post-norm layers.
#[derive(Module)]
struct Bert {
    words: Embedding,
    positions: Embedding,
    /// The segment embeddings: two, of which the first is used.
    types: Embedding,
    norm: LayerNorm,
    encoder: TransformerEncoder,
}

impl Bert {
    /// Loads the weights, whose shapes give most sizes of the model, and the other options from `config.json`.
    fn load(directory: &Path) -> std::result::Result<Bert, Box<dyn std::error::Error>> {
        let config: Value = serde_json::from_str(&fs::read_to_string(directory.join("config.json"))?)?;
        let heads = config["num_attention_heads"].as_u64().ok_or("config.json has no num_attention_heads")? as usize;
        let eps = config["layer_norm_eps"].as_f64().unwrap_or(1e-12);

        let theirs = rename_keys(&io::load(directory.join("model.safetensors"))?, own_name);
        let parts = ["self_attn.query.", "self_attn.key.", "self_attn.value."];
        let state = concatenate_entries(&theirs, &parts, "self_attn.in_proj_")?;
        let get = |name: &str| state.get(name).cloned().ok_or(format!("model.safetensors has no {name}"));
        let hidden = get("encoder.layers.0.linear1.weight")?.shape()[0];
        let layers = (0..).take_while(|k| state.contains_key(&format!("encoder.layers.{k}.linear1.weight"))).count();

        let table = |name: &str| Ok::<_, String>(Embedding::from_table(Parameter::new(get(name)?)));
        let words = table("words.weight")?;
        let width = words.weight.shape()[1];
        let options = TransformerOptions { activation: ops::gelu, layer_norm_eps: eps, ..Default::default() };
        let model = Bert {
            words,
            positions: table("positions.weight")?,
            types: table("types.weight")?,
            norm: LayerNorm::new(width).eps(eps),
            encoder: TransformerEncoder::new(layers, width, heads, hidden, options)?,
        };
        model.load_state_dict(&state)?;
        model.eval();
        Ok(model)
    }

    /// Returns the mean of the encoder outputs over the tokens of each sentence: `[N, E]`.
    fn embed(&self, sentences: &[Vec<i64>]) -> Result<Tensor> {
        let _off = no_grad();
        let longest = sentences.iter().map(Vec::len).max().unwrap_or(0).min(self.positions.weight.shape()[0]);
        // Shorter sentences are padded, and a mask excludes the padding.
        let at = |sentence: &Vec<i64>, k: usize| sentence.get(k).copied();
        let all = sentences.iter().flat_map(|s| (0..longest).map(|k| at(s, k)));
        let (ids, there): (Vec<i64>, Vec<bool>) = all.map(|id| (id.unwrap_or(0), id.is_some())).unzip();
        let shape = [sentences.len(), longest];
        let (ids, there) = (Tensor::new(&ids[..], shape), Tensor::new(&there[..], shape));

        let positions = self.positions.weight.narrow(0, 0, longest);
        let x = self.words.try_forward(&ids)? + positions + self.types.weight.select(0, 0);
        let x = self.encoder.try_forward_masked(&self.norm.try_forward(&x)?, AttentionMasks::padding(&there))?;
        let counted = there.to_dtype(x.dtype()).unsqueeze(-1);
        Ok((x * &counted).sum(1) / counted.sum(1))
    }
}

/// Translates the name of a tensor of the published file; `None` if an embedding does not need the tensor.
fn own_name(name: &str) -> Option<String> {
    let name = name.strip_prefix("bert.").unwrap_or(name);
    if !name.ends_with("weight") && !name.ends_with("bias") || !name.starts_with("em") && !name.starts_with("en") {
        return None;
    }
    let names = [
        ("embeddings.word_embeddings.", "words."),
        ("embeddings.position_embeddings.", "positions."),
        ("embeddings.token_type_embeddings.", "types."),
        ("embeddings.LayerNorm.", "norm."),
        ("encoder.layer.", "encoder.layers."),
        ("attention.self.", "self_attn."),
        ("attention.output.dense.", "self_attn.out_proj."),
        ("attention.output.LayerNorm.", "norm1."),
        ("intermediate.dense.", "linear1."),
        ("output.dense.", "linear2."),
        ("output.LayerNorm.", "norm2."),
    ];
    Some(names.iter().fold(name.to_string(), |name, (theirs, ours)| name.replace(theirs, ours)))
}

/// The WordPiece tokenizer (Wu et al. 2016): splits words into the longest pieces of a vocabulary, in lower case and
/// without accents, like BERT's "uncased" models.
struct WordPiece {
    numbers: HashMap<String, i64>,
    /// `[UNK]`, `[CLS]`, `[SEP]`.
    special: [i64; 3],
}

impl WordPiece {
    /// Creates a tokenizer from a vocabulary with one piece in each line; pieces that continue a word begin with `##`.
    fn new(vocabulary: &str) -> std::result::Result<WordPiece, String> {
        let numbers: HashMap<String, i64> = vocabulary.lines().map(String::from).zip(0..).collect();
        let [unknown, begin, end] = ["[UNK]", "[CLS]", "[SEP]"]
            .map(|name| numbers.get(name).copied().ok_or(format!("the vocabulary has no {name}")));
        Ok(WordPiece { special: [unknown?, begin?, end?], numbers })
    }

    /// Returns the token ids of a sentence, between `[CLS]` and `[SEP]`.
    fn ids(&self, text: &str) -> Vec<i64> {
        let [_, begin, end] = self.special;
        let pieces = words(text).iter().flat_map(|word| self.pieces(word)).collect::<Vec<_>>();
        [vec![begin], pieces, vec![end]].concat()
    }

    fn pieces(&self, word: &str) -> Vec<i64> {
        let (mut found, mut start) = (Vec::new(), 0);
        while start < word.len() {
            let prefix = if start == 0 { "" } else { "##" };
            let ends = word[start..].char_indices().map(|(at, c)| start + at + c.len_utf8()).rev();
            let number = |end: usize| Some((*self.numbers.get(&format!("{prefix}{}", &word[start..end]))?, end));
            let Some((piece, end)) = ends.into_iter().find_map(number).filter(|_| word.chars().count() <= 100) else {
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

    /// The directory of the test model and its embeddings by PyTorch, which `make.py` creates.
    fn directory() -> &'static Path {
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/tiny_bert"))
    }

    #[test]
    fn embeddings_agree_with_pytorch() {
        let read = |name: &str| fs::read_to_string(directory().join(name)).unwrap();
        let expected: Value = serde_json::from_str(&read("expected.json")).unwrap();
        let tokenizer = WordPiece::new(&read("vocab.txt")).unwrap();
        let sentences: Vec<String> = serde_json::from_value(expected["sentences"].clone()).unwrap();
        let ids: Vec<Vec<i64>> = sentences.iter().map(|text| tokenizer.ids(text)).collect();
        assert_eq!(serde_json::to_value(&ids).unwrap(), expected["ids"]);
        let reference: Vec<Vec<f32>> = serde_json::from_value(expected["embeddings"].clone()).unwrap();
        let found = Bert::load(directory()).unwrap().embed(&ids).unwrap();
        assert_eq!(found.shape().dims(), [reference.len(), reference[0].len()]);
        for (a, b) in found.to_vec::<f32>().iter().zip(reference.concat()) {
            assert!((a - b).abs() < 1e-5, "an element of the embedding is {a}, expected {b}");
        }
    }

    #[test]
    fn words_are_split_as_in_uncased_models() {
        assert_eq!(
            words("  Café, s'il te plaît…\t中文\u{0}x "),
            ["cafe", ",", "s", "'", "il", "te", "plait", "…", "中", "文", "x"]
        );
    }

    #[test]
    fn everything_but_the_pooler_of_a_published_file_is_used() {
        let name = own_name("bert.encoder.layer.3.attention.output.dense.bias");
        assert_eq!(name.as_deref(), Some("encoder.layers.3.self_attn.out_proj.bias"));
        assert_eq!(own_name("encoder.layer.0.output.dense.weight").as_deref(), Some("encoder.layers.0.linear2.weight"));
        assert_eq!(own_name("pooler.dense.weight"), None);
        assert_eq!(own_name("embeddings.position_ids"), None);
    }
}
