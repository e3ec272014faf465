//! An LSTM (Hochreiter & Schmidhuber 1997) classifies whether brackets are well nested: `([]())` is well nested, `([)]`
//! is not.
//!
//! ```text
//! cargo run --release --example lstm_classifier
//! cargo run --release --example lstm_classifier -- --quick
//! ```
//!
//! The words have 2 to 40 brackets. A sampler collects words of similar lengths into a batch, which is padded to a
//! multiple of 8, so that five captured steps cover all lengths. A linear layer classifies the final state of each
//! word.
//!
//! Result, on 2 cores of an AMD EPYC (Zen 5): all 1,984 test words are classified correctly, after 9 s (15 CPU
//! seconds).
#![allow(clippy::print_stdout, reason = "an example program prints to standard output")]

use pellucid::data::{BucketBatchSampler, SplitMix64, from_vec, pad_sequences};
use pellucid::nn::Lstm;
use pellucid::nn::graph::Model;
use pellucid::nn::loss::BceWithLogitsLoss;
use pellucid::prelude::*;
use pellucid::train::metrics::Accuracy;

const SEED: u64 = 0;
const BATCH: usize = 64;
const MAX_PAIRS: usize = 20;
const MAX_DEPTH: usize = 5;

/// The symbols by index; 0 is padding.
const SYMBOLS: [char; 5] = [' ', '(', ')', '[', ']'];

fn main() -> Result<()> {
    let quick = std::env::args().any(|argument| argument == "--quick");
    let (words, epochs) = if quick { (4_000, 3) } else { (20_000, 10) };
    manual_seed(SEED);
    let mut rng = SplitMix64::new(SEED);
    let mut train = batches(random_words(words, &mut rng));
    let mut test = batches(random_words(2_000, &mut rng));

    let model = Classifier::new(32, 128);
    let optimizer = AdamW::new(model.parameters(), AdamWOptions { lr: 3e-3, ..Default::default() });
    let steps = epochs * train.len();
    let mut trainer = Trainer::new(&model, BceWithLogitsLoss::default(), optimizer)
        .epochs(epochs)
        .clip_grad_norm(1.0)
        .schedule(CosineWithWarmupLr { warmup_steps: steps / 20, total_steps: steps, eta_min: 0.0 }, ScheduleUnit::Step)
        .metric(Accuracy::new());
    let history = trainer.fit(&mut train, Some(&mut test))?;

    for text in ["()[]", "([()][])", "([)]", "())(", "[[[]]]()", "[[[]])()"] {
        println!("{text:10} well nested: {:.3}", probability(&model, text)?);
    }
    let accuracy = history.last("validation_accuracy").expect("the trainer has this metric");
    println!("result: accuracy {:.2} % on new words", 100.0 * accuracy);
    assert!(accuracy > if quick { 0.5 } else { 0.97 }, "the network must learn to count brackets");
    Ok(())
}

/// A word of brackets, and whether it is well nested.
#[derive(Clone)]
struct Word {
    symbols: Vec<i64>,
    is_nested: bool,
}

/// Returns random words, half of them well nested. In the other half, two brackets are swapped, so that counting the
/// symbols is not enough.
fn random_words(count: usize, rng: &mut SplitMix64) -> Vec<Word> {
    let word = |index: usize| {
        let mut symbols = nested_brackets(1 + rng.below(MAX_PAIRS), rng);
        let is_unchanged = index.is_multiple_of(2);
        if !is_unchanged {
            while is_nested(&symbols) {
                let (a, b) = (rng.below(symbols.len()), rng.below(symbols.len()));
                symbols.swap(a, b);
            }
        }
        Word { symbols, is_nested: is_unchanged }
    };
    (0..count).map(word).collect()
}

/// Returns true if a word is well nested. The stack contains the expected closing brackets.
fn is_nested(word: &[i64]) -> bool {
    let mut stack = Vec::new();
    let closes_well = word.iter().all(|&symbol| match symbol % 2 {
        1 => {
            stack.push(symbol + 1);
            true
        }
        _ => stack.pop() == Some(symbol),
    });
    closes_well && stack.is_empty()
}

/// Returns a well-nested word with `pairs` pairs.
fn nested_brackets(pairs: usize, rng: &mut SplitMix64) -> Vec<i64> {
    let (mut word, mut open) = (Vec::new(), Vec::new());
    let mut unopened = pairs;
    while unopened > 0 || !open.is_empty() {
        let opens = open.is_empty() || open.len() < MAX_DEPTH && unopened > 0 && rng.below(2) == 0;
        if opens {
            let bracket = 1 + 2 * rng.below(2) as i64;
            open.push(bracket + 1);
            word.push(bracket);
            unopened -= 1;
        } else {
            word.extend(open.pop());
        }
    }
    word
}

/// The symbols `[N, L]` and the lengths `[N]` of words, and their labels `[N]`.
type WordBatch = ((Tensor, Tensor), Tensor);

/// Returns batches of words of similar lengths.
fn batches(words: Vec<Word>) -> DataLoader<WordBatch> {
    let lengths: Vec<usize> = words.iter().map(|word| word.symbols.len()).collect();
    let options = LoaderOptions { seed: Some(SEED), ..Default::default() };
    let sampler = BucketBatchSampler::new(&lengths, BATCH).drop_last(true);
    DataLoader::with_collate(from_vec(words), options, collate).batch_sampler(sampler)
}

fn collate(words: Vec<Word>) -> Result<WordBatch> {
    let symbols: Vec<Tensor> = words.iter().map(|word| Tensor::from(&word.symbols[..])).collect();
    let padded = pad_sequences(&symbols, 0)?;
    let longest = padded.values.shape()[1];
    let more = longest.next_multiple_of(8) - longest;
    let values = padded.values.pad([(0, 0), (0, more)], ops::PaddingMode::Constant(0.into()));
    let labels: Vec<f32> = words.iter().map(|word| f32::from(u8::from(word.is_nested))).collect();
    Ok(((values, padded.lengths), Tensor::from(labels)))
}

#[derive(Clone, Module)]
struct Classifier {
    embedding: Embedding,
    lstm: Lstm,
    head: Linear,
}

impl Classifier {
    fn new(width: usize, hidden: usize) -> Classifier {
        Classifier {
            embedding: Embedding::new(SYMBOLS.len(), width).padding_index(0),
            lstm: Lstm::new(width, hidden).batch_first(true),
            head: Linear::new(hidden, 1),
        }
    }
}

impl Model<(Tensor, Tensor)> for Classifier {
    /// Returns a logit for each word, `[N]`.
    fn compute(&self, (symbols, lengths): &(Tensor, Tensor)) -> Result<Tensor> {
        let x = self.embedding.try_forward(symbols)?;
        // The last state of a word is the state at its own end: padding changes nothing.
        let (_, (h, _)) = self.lstm.try_forward_padded(&x, lengths, None)?;
        ops::squeeze(&self.head.try_forward(&h.i(-1))?, -1)
    }
}

/// Returns the predicted probability that a string is well nested.
fn probability(model: &Classifier, text: &str) -> Result<f64> {
    let _off = no_grad();
    let index = |c| SYMBOLS.iter().position(|&symbol| symbol == c).expect("the text must consist of brackets");
    let symbols: Vec<i64> = text.chars().map(|c| index(c) as i64).collect();
    let lengths = Tensor::from([symbols.len() as i64]);
    let logits = model.compute(&(Tensor::new(&symbols, [1, symbols.len()]), lengths))?;
    Ok(logits.sigmoid().i(0).item())
}
