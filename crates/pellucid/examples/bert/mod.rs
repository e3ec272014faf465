//! A published BERT encoder with its tokenizer, read from the original files.
//!
//! The directory of a model contains `model.safetensors`, `config.json` and `vocab.txt` (uncased).

mod word_piece;

pub(crate) use word_piece::WordPiece;

use pellucid::nn::graph::Model;
use pellucid::nn::{AttentionMasks, Embedding, LayerNorm, TransformerEncoder, concatenate_entries, rename_keys};
use pellucid::prelude::*;
use pellucid::{Result, io};
use serde_json::Value;
use std::fs;
use std::path::Path;

/// The bidirectional encoder of Devlin et al. (2019): the embeddings of words, positions and segments are added and
/// normalized, and then processed by post-norm layers.
#[derive(Module)]
pub(crate) struct Bert {
    words: Embedding,
    positions: Embedding,
    /// The two segment embeddings; only the first is used.
    types: Embedding,
    norm: LayerNorm,
    encoder: TransformerEncoder,
    /// Whether embeddings are normalized to length 1.
    pub(crate) normalize: bool,
}

impl Bert {
    /// Loads a model. The shapes of the weights determine most sizes; `config.json` and, if it exists, `modules.json`
    /// contain the other options.
    pub(crate) fn load(directory: &Path) -> std::result::Result<Bert, Box<dyn std::error::Error>> {
        let config: Value = serde_json::from_str(&fs::read_to_string(directory.join("config.json"))?)?;
        let heads = config["num_attention_heads"].as_u64().ok_or("config.json has no num_attention_heads")? as usize;
        let eps = config["layer_norm_eps"].as_f64().unwrap_or(1e-12);

        let theirs = rename_keys(&io::load(directory.join("model.safetensors"))?, map_name);
        let parts = ["self_attn.query.", "self_attn.key.", "self_attn.value."];
        let state = concatenate_entries(&theirs, &parts, "self_attn.in_proj_")?;
        let get = |name: &str| state.get(name).cloned().ok_or(format!("model.safetensors has no {name}"));
        let hidden = get("encoder.layers.0.linear1.weight")?.shape()[0];
        let layers = (0..).take_while(|k| state.contains_key(&format!("encoder.layers.{k}.linear1.weight"))).count();

        let table = |name: &str| Ok::<_, String>(Embedding::from_table(Parameter::new(get(name)?)));
        let words = table("words.weight")?;
        let width = words.weight.shape()[1];
        let encoder = TransformerEncoder::try_new(width, heads, layers)?.try_hidden(hidden)?.try_layer_norm_eps(eps)?;
        let model = Bert {
            words,
            positions: table("positions.weight")?,
            types: table("types.weight")?,
            norm: LayerNorm::new(width).eps(eps),
            encoder: encoder.activation(ops::gelu),
            normalize: fs::read_to_string(directory.join("modules.json")).is_ok_and(|list| list.contains("Normalize")),
        };
        model.load_state_dict(&state)?;
        model.eval();
        Ok(model)
    }

    /// Returns the maximum number of tokens of a sentence.
    pub(crate) fn max_length(&self) -> usize {
        self.positions.weight.shape()[0]
    }
}

/// Computes the mean of the encoder outputs over the tokens of each sentence, `[N, E]`, from token ids `[N, L]` and a
/// mask `[N, L]`, which is false at padding.
impl Model<(Tensor, Tensor)> for Bert {
    fn compute(&self, (ids, visible): &(Tensor, Tensor)) -> Result<Tensor> {
        let positions = self.positions.weight.narrow(0, 0, ids.shape()[1]);
        let x = self.words.try_forward(ids)? + positions + self.types.weight.select(0, 0);
        let x = self.encoder.try_forward_masked(&self.norm.try_forward(&x)?, AttentionMasks::padding(visible))?;
        let counted = visible.to_dtype(x.dtype()).unsqueeze(-1);
        let mean = (x * &counted).sum(1) / counted.sum(1);
        if self.normalize { ops::normalize(&mean, 2.0, 1, 1e-12) } else { Ok(mean) }
    }
}

/// Returns the token ids and the mask of sentences, `[N, L]`, padded to the longest sentence or truncated to `longest`
/// tokens.
pub(crate) fn padded(sentences: &[Vec<i64>], longest: usize) -> (Tensor, Tensor) {
    let longest = sentences.iter().map(Vec::len).max().unwrap_or(0).min(longest);
    let all = sentences.iter().flat_map(|sentence| (0..longest).map(|k| sentence.get(k).copied()));
    let (ids, visible): (Vec<i64>, Vec<bool>) = all.map(|id| (id.unwrap_or(0), id.is_some())).unzip();
    let shape = [sentences.len(), longest];
    (Tensor::new(&ids[..], shape), Tensor::new(&visible[..], shape))
}

/// Maps a tensor name of the published file to a name of this model; `None` if the tensor is not needed.
fn map_name(name: &str) -> Option<String> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_but_the_pooler_of_a_published_file_is_used() {
        let name = map_name("bert.encoder.layer.3.attention.output.dense.bias");
        assert_eq!(name.as_deref(), Some("encoder.layers.3.self_attn.out_proj.bias"));
        assert_eq!(map_name("encoder.layer.0.output.dense.weight").as_deref(), Some("encoder.layers.0.linear2.weight"));
        assert_eq!(map_name("pooler.dense.weight"), None);
        assert_eq!(map_name("embeddings.position_ids"), None);
    }
}
