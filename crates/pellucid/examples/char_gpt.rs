//! A character-level GPT (Radford et al. 2019): trains on Shakespeare, then continues a line in his style.
//!
//! ```text
//! cargo run --release --example char_gpt -- path/to/tinyshakespeare.txt.gz
//! cargo run --release --example char_gpt -- --quick
//! ```
//!
//! The text is `tinyshakespeare` (1,115,394 characters), plain or compressed by gzip. The last tenth is for validation.
//! Without a path, the program reads the bundled excerpt of 200,000 characters.
//!
//! Result, on 2 cores of an AMD EPYC (Zen 5): a validation loss of 1.595 nats per character, after 78 s (144 CPU
//! seconds).
#![allow(clippy::print_stdout, reason = "an example program prints to standard output")]

use flate2::read::GzDecoder;
use pellucid::data::from_fn;
use pellucid::nn::{AttentionMasks, KvCache, MultiheadAttention, Rotary, RotaryPairing, init, loss};
use pellucid::prelude::*;
use std::fs::File;
use std::io::Read;
use std::time::Instant;

const SEED: u64 = 0;
const CONTEXT: usize = 128;
/// The number of validations.
const EPOCHS: usize = 5;
const EXCERPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/data/shakespeare/excerpt.txt.gz");

/// The sizes of the model and of its training.
struct Sizes {
    blocks: usize,
    width: usize,
    heads: usize,
    batch: usize,
    steps: usize,
    /// The peak learning rate.
    lr: f64,
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let quick = arguments.iter().any(|argument| argument == "--quick");
    let path = arguments.iter().find(|argument| !argument.starts_with("--")).map_or(EXCERPT, String::as_str);
    let sizes = match quick {
        true => Sizes { blocks: 2, width: 64, heads: 2, batch: 16, steps: 100, lr: 4e-3 },
        false => Sizes { blocks: 4, width: 128, heads: 4, batch: 16, steps: 1500, lr: 4e-3 },
    };

    manual_seed(SEED);
    let text = Text::read(path);
    let (train, validation) = text.split();
    let model = CharGpt::new(text.alphabet.len(), &sizes);
    println!("{} characters, {} weights", text.characters.len(), model.parameter_count());

    let begun = Instant::now();
    let loss = train_model(&model, &sizes, train, validation)?;
    println!("trained in {:.0} s", begun.elapsed().as_secs_f64());

    let begun = Instant::now();
    let length = if quick { 200 } else { 800 };
    println!("{}", text.decode(&model.write(text.encode("ROMEO:\n"), length)?));
    println!("{:.0} characters per second", length as f64 / begun.elapsed().as_secs_f64());

    println!("result: validation loss {loss:.3} nats per character");
    if quick {
        // The entropy of single characters is 3.3 nats.
        assert!(loss < 2.8, "the model must learn more than the frequencies of characters");
    }
    Ok(())
}

/// Minimizes the loss on random windows of `train`, and returns the loss on all windows of `validation`.
fn train_model(model: &CharGpt, sizes: &Sizes, train: &[i64], validation: &[i64]) -> Result<f64> {
    let &Sizes { batch, steps, lr, .. } = sizes;
    let mut train = random_windows(train.to_vec(), steps / EPOCHS * batch, batch);
    let mut validation = all_windows(validation, batch);

    let options = AdamWOptions { lr, betas: (0.9, 0.99), weight_decay: 0.1, ..Default::default() };
    let optimizer = AdamW::new(model.parameters(), options);
    let schedule = CosineWithWarmupLr { warmup_steps: steps / 20, total_steps: steps, eta_min: lr / 50.0 };
    let mut trainer = Trainer::new(model, loss::from_fn(character_cross_entropy), optimizer)
        .epochs(EPOCHS)
        .clip_grad_norm(1.0)
        .schedule(schedule, ScheduleUnit::Step);
    let history = trainer.fit(&mut train, Some(&mut validation))?;
    Ok(history.last("validation_loss").expect("the run has a validation"))
}

/// Returns the mean of −ln p(yᵢ) over all characters yᵢ, for logits `[N, L, V]` and targets `[N, L]`.
fn character_cross_entropy(logits: &Tensor, y: &Tensor) -> Result<Tensor> {
    let (logits, y) = (ops::flatten(logits, 0, 1)?, ops::flatten(y, 0, 1)?);
    ops::cross_entropy(&logits, &y, ops::CrossEntropyOptions::default())
}

/// A decoder of characters: x ← x + attention(norm(x)), x ← x + mlp(norm(x)) in each block.
#[derive(Clone, Module)]
struct CharGpt {
    embedding: Embedding,
    blocks: Vec<GptBlock>,
    norm: RmsNorm,
    head: Linear,
}

#[derive(Clone, Module)]
struct GptBlock {
    norm1: RmsNorm,
    attention: MultiheadAttention,
    norm2: RmsNorm,
    mlp: Sequential,
}

impl GptBlock {
    fn new(width: usize, heads: usize) -> GptBlock {
        // Rotary embeddings encode positions in the angles of queries and keys, so no position embeddings are needed.
        let rotary = Rotary { pairs: RotaryPairing::Halves, ..Default::default() };
        GptBlock {
            norm1: RmsNorm::new(width),
            attention: MultiheadAttention::new(width, heads).bias(false).rotary(rotary),
            norm2: RmsNorm::new(width),
            mlp: sequential![
                Linear::new(width, 4 * width).bias(false),
                Gelu,
                Linear::new(4 * width, width).bias(false)
            ],
        }
    }

    /// Runs the block; `attend` is the causal attention, with or without a cache.
    fn run(&self, x: &Tensor, attend: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
        let x = ops::add(x, &attend(&self.norm1.try_forward(x)?)?)?;
        ops::add(&x, &self.mlp.try_forward(&self.norm2.try_forward(&x)?)?)
    }
}

impl Layer for CharGpt {
    /// Returns the logits of the next characters `[N, L, V]` for characters `[N, L]`.
    fn compute(&self, characters: &Tensor) -> Result<Tensor> {
        let x = self.embedding.try_forward(characters)?;
        let causal = AttentionMasks::causal();
        let x = self
            .blocks
            .iter()
            .try_fold(x, |x, block| block.run(&x, |x| block.attention.try_forward_qkv(x, x, x, causal)))?;
        self.head.try_forward(&self.norm.try_forward(&x)?)
    }
}

impl CharGpt {
    fn new(alphabet: usize, sizes: &Sizes) -> CharGpt {
        let &Sizes { blocks, width, heads, .. } = sizes;
        CharGpt {
            embedding: Embedding::new(alphabet, width),
            blocks: (0..blocks).map(|_| GptBlock::new(width, heads)).collect(),
            norm: RmsNorm::new(width),
            head: Linear { weight: init::normal([alphabet, width], 0.0, 0.02), bias: None },
        }
    }

    /// Returns the logits after the last of the characters `[n]`. The caches contain the earlier characters.
    fn next_logits(&self, characters: &[i64], caches: &[KvCache]) -> Result<Tensor> {
        let x = self.embedding.try_forward(&Tensor::new(characters, [1, characters.len()]))?;
        let x = self
            .blocks
            .iter()
            .zip(caches)
            .try_fold(x, |x, (block, cache)| block.run(&x, |x| block.attention.try_forward_cached(x, cache)))?;
        self.head.try_forward(&self.norm.try_forward(&x.i((0, -1)))?)
    }

    /// Continues a text by `count` characters, which are sampled from the distribution of the model.
    fn write(&self, mut text: Vec<i64>, count: usize) -> Result<Vec<i64>> {
        let _off = no_grad();
        self.eval();
        let caches: Vec<KvCache> = self.blocks.iter().map(|block| block.attention.cache(1, CONTEXT)).collect();
        let (mut cached, end) = (0, text.len() + count);
        while text.len() < end {
            let mut new = text.len() - cached;
            if new + caches[0].length().item::<i64>() as usize > CONTEXT {
                // The caches are full. The second half of the context becomes the first half.
                caches.iter().for_each(KvCache::clear);
                new = CONTEXT / 2;
            }
            let logits = self.next_logits(&text[text.len() - new..], &caches)?;
            cached = text.len();
            text.push(logits.softmax(-1).multinomial(1, false).item());
        }
        Ok(text)
    }
}

/// A text, encoded as character indices.
struct Text {
    /// The distinct characters, sorted.
    alphabet: Vec<char>,
    characters: Vec<i64>,
}

impl Text {
    fn read(path: &str) -> Text {
        let mut text = String::new();
        let mut file = File::open(path).unwrap_or_else(|error| panic!("{path}: {error}"));
        let read = if path.ends_with(".gz") {
            GzDecoder::new(file).read_to_string(&mut text)
        } else {
            file.read_to_string(&mut text)
        };
        read.unwrap_or_else(|error| panic!("{path}: {error}"));
        let mut alphabet: Vec<char> = text.chars().collect();
        alphabet.sort_unstable();
        alphabet.dedup();
        let mut read = Text { alphabet, characters: Vec::new() };
        read.characters = read.encode(&text);
        read
    }

    fn encode(&self, text: &str) -> Vec<i64> {
        let index = |c| self.alphabet.binary_search(&c).expect("the character must occur in the text");
        text.chars().map(|c| index(c) as i64).collect()
    }

    fn decode(&self, characters: &[i64]) -> String {
        characters.iter().map(|&c| self.alphabet[c as usize]).collect()
    }

    /// Splits the text into the first nine tenths and the last tenth.
    fn split(&self) -> (&[i64], &[i64]) {
        self.characters.split_at(self.characters.len() * 9 / 10)
    }
}

/// Characters and their successors, `[N, L]` each.
type Pair = (Tensor, Tensor);

/// Returns batches of random windows, `count` per epoch. A window is a pair of characters and their successors.
fn random_windows(text: Vec<i64>, count: usize, batch: usize) -> DataLoader<Pair> {
    let windows = from_fn(count, move |_| {
        let start = Tensor::randint(0, (text.len() - CONTEXT) as i64, ()).item::<i64>() as usize;
        let window = |start: usize| Tensor::from(&text[start..start + CONTEXT]);
        Ok((window(start), window(start + 1)))
    });
    DataLoader::new(windows, LoaderOptions { batch_size: batch, seed: Some(SEED), ..Default::default() })
}

/// Returns batches of consecutive windows that cover the text.
fn all_windows(text: &[i64], batch: usize) -> Batches {
    let count = (text.len() - 1) / CONTEXT;
    let windows = |start: usize| Tensor::new(&text[start..start + count * CONTEXT], [count, CONTEXT]);
    Batches::new(&[windows(0), windows(1)], batch)
}
