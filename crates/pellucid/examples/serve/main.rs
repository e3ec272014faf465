//! A server of sentence embeddings: answers requests over HTTP in batches, with a published BERT encoder.
//!
//! ```text
//! cargo run --release --features serve --example serve -- DIRECTORY [--port 8080] [--max-batch 32] [--max-wait-ms 2]
//! curl localhost:8080/embed -d '{"texts": ["A sentence.", "Another one."]}'
//! ```
//!
//! `DIRECTORY` contains the files of a model like `all-MiniLM-L6-v2`: `model.safetensors`, `config.json`, `vocab.txt`,
//! and optionally `modules.json` and `sentence_bert_config.json`. Texts of all requests that arrive within
//! `--max-wait-ms` of each other run as one batch, of at most `--max-batch`. One thread computes, with a captured
//! forward pass for each of a few batch sizes and lengths ([`InferenceModel`]).
//!
//! | request | answer |
//! | --- | --- |
//! | `POST /embed`, `{"texts": [..], "truncate": true}` | `{"embeddings": [[..], ..], "tokens": [..]}` |
//! | `GET /latency` | `{"requests": n, "p50_ms": .., "p99_ms": ..}` |
//!
//! A text that exceeds the token limit of the model is truncated, or rejected with status 400 if `truncate` is false.
//! Invalid JSON returns status 400, a full queue 503, and a request that takes longer than `--timeout-ms` 504. Ctrl-C
//! or SIGTERM stops the server: it answers the requests that it has received, and prints the latencies.
//!
//! With `--bench COMMAND`, the program times the encoder instead, alternating with another program that implements the
//! protocol of `bench/onnx_encoder.py`:
//!
//! ```text
//! PELLUCID_NUM_THREADS=1 taskset -c 1 cargo run --release --features serve --example serve -- DIRECTORY \
//!     --bench "python bench/onnx_encoder.py DIRECTORY"
//! ```
#![allow(clippy::print_stdout, reason = "an example program prints to standard output")]

mod batching;
#[path = "../bert/mod.rs"]
mod bert;
mod http;
mod latency;
mod versus;
mod worker;

use bert::{Bert, WordPiece};
use pellucid::nn::graph::InferenceModel;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

/// A result with any error.
type AnyResult<T> = Result<T, Box<dyn std::error::Error>>;

/// The recorded batch sizes. A larger batch is split.
const BATCH_SIZES: [usize; 6] = [1, 2, 4, 8, 16, 32];

/// The maximum number of queued texts.
const QUEUE: usize = 1024;

/// The command line.
struct ServerOptions {
    directory: String,
    port: u16,
    max_batch: usize,
    max_wait: Duration,
    timeout: Duration,
    bench: Option<String>,
    rounds: usize,
}

impl ServerOptions {
    fn parse(mut given: impl Iterator<Item = String>) -> AnyResult<ServerOptions> {
        let mut parsed = ServerOptions {
            directory: given.next().ok_or("usage: serve DIRECTORY [--port N] [--max-batch N] [--bench COMMAND]")?,
            port: 8080,
            max_batch: 32,
            max_wait: Duration::from_millis(2),
            timeout: Duration::from_secs(5),
            bench: None,
            rounds: 7,
        };
        while let Some(name) = given.next() {
            let value = given.next().ok_or(format!("{name} must have a value"))?;
            let number = || value.parse::<u64>().map_err(|_| format!("{name} must be a number, got {value}"));
            match name.as_str() {
                "--port" => parsed.port = value.parse()?,
                "--max-batch" => parsed.max_batch = number()?.max(1) as usize,
                "--max-wait-ms" => parsed.max_wait = Duration::from_millis(number()?),
                "--timeout-ms" => parsed.timeout = Duration::from_millis(number()?),
                "--rounds" => parsed.rounds = number()?.max(1) as usize,
                "--bench" => parsed.bench = Some(value),
                _ => return Err(format!("unknown argument {name}").into()),
            }
        }
        Ok(parsed)
    }
}

/// The tokenizer of the published files, and the maximum number of tokens per text.
struct Tokenizer {
    pieces: WordPiece,
    max_length: usize,
}

impl Tokenizer {
    fn load(directory: &Path, positions: usize) -> AnyResult<Tokenizer> {
        let pieces = WordPiece::new(&fs::read_to_string(directory.join("vocab.txt"))?)?;
        let config = fs::read_to_string(directory.join("sentence_bert_config.json")).unwrap_or_else(|_| "{}".into());
        let config: serde_json::Value = serde_json::from_str(&config)?;
        let longest = config["max_seq_length"].as_u64().unwrap_or(u64::MAX);
        Ok(Tokenizer { pieces, max_length: positions.min(longest as usize) })
    }

    /// Returns the token ids of a text. A text that is too long is truncated before its final token if `truncate` is
    /// true; otherwise the error is its number of tokens.
    fn ids(&self, text: &str, truncate: bool) -> Result<Vec<i64>, usize> {
        let mut ids = self.pieces.ids(text);
        if ids.len() > self.max_length {
            if !truncate {
                return Err(ids.len());
            }
            ids.drain(self.max_length - 1..ids.len() - 1);
        }
        Ok(ids)
    }
}

/// Returns the recorded sequence lengths: powers of two from 16, and the maximum number of tokens.
fn sequence_lengths(longest: usize) -> Vec<usize> {
    let powers = std::iter::successors(Some(16), |length| Some(2 * length));
    powers.take_while(|&length| length < longest).chain([longest]).collect()
}

/// Creates the inference model of the encoder.
fn inference_model(bert: Bert, longest: usize) -> worker::Encoder {
    InferenceModel::new(bert, &BATCH_SIZES).with_lengths(&sequence_lengths(longest))
}

fn main() -> AnyResult<()> {
    let arguments = ServerOptions::parse(std::env::args().skip(1))?;
    let directory = Path::new(&arguments.directory);
    let bert = Bert::load(directory)?;
    if let Some(command) = &arguments.bench {
        let longest = bert.max_length();
        return versus::run(inference_model(bert, longest), command, arguments.rounds);
    }
    let tokenizer = Tokenizer::load(directory, bert.max_length())?;
    let longest = tokenizer.max_length;
    let latencies = Arc::new(latency::Latencies::default());
    let (sender, jobs) = sync_channel(QUEUE);
    let (max_batch, max_wait) = (arguments.max_batch, arguments.max_wait);
    let mut encoder = inference_model(bert, longest);
    encoder.prepare(&bert::padded(&[vec![0]], longest))?;
    let worker = std::thread::spawn(move || worker::run(&mut encoder, &jobs, max_batch, max_wait));
    let service = http::Service { tokenizer, jobs: sender, timeout: arguments.timeout, latencies: latencies.clone() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", arguments.port)).await?;
        println!("listening on http://{}", listener.local_addr()?);
        http::serve(listener, service, http::stop_signal()).await
    })?;
    // The server has dropped its sender, so the worker stops after the last job.
    worker.join().expect("the worker must not panic");
    println!("{}", latencies.summary());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_before_its_last_token_or_rejected() {
        let directory = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/tiny_bert"));
        let mut tokenizer = Tokenizer::load(directory, 24).unwrap();
        let ids = tokenizer.ids("a cat sat on the mat.", false).unwrap();
        assert_eq!((tokenizer.max_length, ids.len()), (24, 9));
        tokenizer.max_length = 5;
        assert_eq!(tokenizer.ids("a cat sat on the mat.", true).unwrap(), [&ids[..4], &ids[8..]].concat());
        assert_eq!(tokenizer.ids("a cat sat on the mat.", false), Err(9));
        assert_eq!(tokenizer.ids("a cat sat", false).unwrap().len(), 5);
    }

    #[test]
    fn sequence_lengths_end_with_the_longest_text() {
        assert_eq!(sequence_lengths(100), [16, 32, 64, 100]);
        assert_eq!(sequence_lengths(64), [16, 32, 64]);
        assert_eq!(sequence_lengths(8), [8]);
    }

    #[test]
    fn arguments_are_checked() {
        let parse = |text: &str| ServerOptions::parse(text.split_whitespace().map(String::from));
        let parsed = parse("model --port 80 --max-wait-ms 7").unwrap();
        assert_eq!((parsed.port, parsed.max_wait, parsed.max_batch), (80, Duration::from_millis(7), 32));
        for wrong in ["", "model --port", "model --port x", "model --what 1", "model --port 70000"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
