//! Digits in a browser: trains a small network, and writes a page that recognizes digits with it.
//!
//! ```text
//! cargo build --release --target wasm32-unknown-unknown --no-default-features --example browser_page
//! page=target/wasm32-unknown-unknown/release/examples/browser_page.wasm
//! cargo run --release --example browser -- $page digits.html
//! ```
//!
//! The page needs no server: the program, the weights and 200 digits are part of it. It compares its scores bit by bit
//! with the scores of this native program, and recognizes digits that are drawn with the mouse.
#![allow(clippy::print_stdout, reason = "an example program prints to standard output")]

mod model;

use pellucid::data::Mnist;
use pellucid::{io, nn::graph::InferenceModel, prelude::*};
use std::fs;

/// The number of digits on the page.
const SHOWN: usize = 200;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [program, page] = &arguments[..] else {
        eprintln!("usage: browser PROGRAM.wasm PAGE.html");
        std::process::exit(2);
    };
    manual_seed(0);
    let mnist = Mnist::load(concat!(env!("CARGO_MANIFEST_DIR"), "/data/mnist10k"))?;
    let model = model::classifier();
    let optimizer = AdamW::new(model.parameters(), AdamWOptions { lr: 3e-3, ..Default::default() });
    let mut batches = Batches::new(&[&mnist.train.images, &mnist.train.labels], 32).shuffled(0);
    for _ in 0..2 {
        for [images, labels] in batches.epoch() {
            optimizer.zero_grad();
            cross_entropy(&model.forward(&images), &labels).backward();
            optimizer.step();
        }
    }

    let digits = mnist.test.images.narrow(0, 0, SHOWN);
    let mut recognizer = InferenceModel::new(&model, &[1]);
    let scores = recognizer.run(&digits)?;
    let labels = mnist.test.labels.narrow(0, 0, SHOWN);
    let right = scores.argmax(-1).eq(&labels).to_dtype(DType::F64).sum(..);
    println!("{} of {SHOWN} digits are recognized", right.item::<f64>());

    let read = |path: &String| fs::read(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let parts = [
        ("PROGRAM", read(program)),
        ("WEIGHTS", io::to_bytes(&model.state_dict())?),
        ("DIGITS", digits.to_bytes()),
        ("SCORES", scores.to_bytes()),
        ("LABELS", labels.to_dtype(DType::U8).to_bytes()),
    ];
    let text = parts.iter().fold(include_str!("page.html").to_string(), |text, (name, bytes)| {
        text.replace(&format!("{{{name}}}"), &base64(bytes))
    });
    fs::write(page, &text).unwrap_or_else(|error| panic!("{page}: {error}"));
    println!("wrote {page}, {} KiB", text.len() >> 10);
    Ok(())
}

/// Encodes bytes in Base64 (RFC 4648).
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let group = |group: &[u8]| {
        let bits = (0..3).fold(0, |bits, at| bits << 8 | usize::from(group.get(at).copied().unwrap_or(0)));
        let digit = move |at: usize| if at <= group.len() { DIGITS[bits >> (18 - 6 * at) & 63] } else { b'=' };
        (0..4).map(digit).map(char::from).collect::<String>()
    };
    bytes.chunks(3).map(group).collect()
}
