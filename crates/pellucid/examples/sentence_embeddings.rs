//! Sentence embeddings with a published BERT encoder, read from its original files.
//!
//! ```text
//! cargo run --release --example sentence_embeddings -- DIRECTORY "A sentence." "Another one."
//! cargo run --release --example sentence_embeddings -- DIRECTORY --ids FILE
//! ```
//!
//! The directory contains `model.safetensors`, `config.json` and `vocab.txt` (uncased), as published for models like
//! `all-MiniLM-L6-v2`. With `--ids`, a JSON file contains the token ids of each sentence, and no vocabulary is needed.
//! The program prints one embedding per line as JSON. An embedding is the mean over the tokens, normalized to length 1
//! with `--normalize` or if `modules.json` of the model specifies it.
#![allow(clippy::print_stdout, reason = "an example program prints to standard output")]

mod bert;

use bert::{Bert, WordPiece, padded};
use pellucid::nn::graph::Model;
use pellucid::prelude::*;
use std::fs;
use std::path::Path;

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut flag = |name: &str| arguments.iter().position(|a| a == name).map(|at| arguments.remove(at)).is_some();
    let (normalize, ids) = (flag("--normalize"), flag("--ids"));
    let [directory, rest @ ..] = &arguments[..] else {
        return Err("usage: sentence_embeddings DIRECTORY [--normalize] (--ids FILE | SENTENCE ..)".into());
    };
    let directory = Path::new(directory);
    let sentences: Vec<Vec<i64>> = if ids {
        serde_json::from_str(&fs::read_to_string(rest.first().ok_or("--ids must have a file")?)?)?
    } else {
        let tokenizer = WordPiece::new(&fs::read_to_string(directory.join("vocab.txt"))?)?;
        rest.iter().map(|text| tokenizer.ids(text)).collect()
    };
    let mut bert = Bert::load(directory)?;
    bert.normalize |= normalize;
    for embedding in embed(&bert, &sentences)?.unbind(0) {
        println!("{}", serde_json::to_string(&embedding.to_vec::<f32>())?);
    }
    Ok(())
}

/// Returns the embeddings of sentences, which are given as token ids: `[N, E]`.
fn embed(bert: &Bert, sentences: &[Vec<i64>]) -> Result<Tensor> {
    let _off = no_grad();
    bert.compute(&padded(sentences, bert.max_length()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    /// Returns the directory with the test model and its PyTorch embeddings, which `make.py` creates.
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
        let found = embed(&Bert::load(directory()).unwrap(), &ids).unwrap();
        assert_eq!(found.shape().dims(), [reference.len(), reference[0].len()]);
        for (a, b) in found.to_vec::<f32>().iter().zip(reference.concat()) {
            assert!((a - b).abs() < 1e-5, "an element of the embedding is {a}, expected {b}");
        }
    }
}
