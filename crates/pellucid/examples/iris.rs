//! Classification of tabular data: Fisher's irises.
//!
//! ```text
//! cargo run --release --features bundled --example iris
//! ```
//!
//! The model trains on 120 flowers and classifies 29 or 30 of the 30 test flowers correctly, in less than a second on
//! an AMD EPYC. The checkpoint contains the weights and the scaler of the features.
#![allow(clippy::print_stdout, reason = "an example program prints to standard output")]

use pellucid::data::{StandardScaler, iris};
use pellucid::nn::Checkpoint;
use pellucid::prelude::*;
use pellucid::train::metrics::{Accuracy, ConfusionMatrix};
use std::{env, fs, process};

const SEED: u64 = 0;

/// The columns of the features, in centimetres.
const FEATURES: [&str; 4] = ["sepal_length", "sepal_width", "petal_length", "petal_width"];

fn main() -> Result<()> {
    manual_seed(SEED);
    let table = iris()?;
    let [train, test] = table.split([0.8, 0.2], 1)?;

    // Scales to mean 0 and variance 1 on the training rows; the test rows get the same transform.
    let scaler = StandardScaler::new();
    let x = scaler.fit_transform(&train.tensor(&FEATURES)?)?;
    let mut batches = Batches::new(&[&x, &train.labels("species")?], 16).shuffled(0);
    let (x, y) = (scaler.transform(&test.tensor(&FEATURES)?)?, test.labels("species")?);
    let mut validation = Batches::new(&[&x, &y], 30);

    let model = sequential![Linear::new(4, 16), Tanh, Linear::new(16, 3)];
    let optimizer = AdamW::new(model.parameters(), AdamWOptions { lr: 0.02, ..Default::default() });
    let mut trainer = Trainer::new(&model, CrossEntropyLoss::default(), optimizer).epochs(40).metric(Accuracy::new());
    let history = trainer.fit(&mut batches, Some(&mut validation))?;

    let mut confusion = ConfusionMatrix::new(3).class_names(table.categories("species")?);
    confusion.update(&trainer.predict(&x)?, &y)?;
    println!("{confusion}");
    let accuracy = history.last("validation_accuracy").expect("the metric must be in the history");
    println!("result: accuracy {accuracy:.3} on {} other flowers", test.len());
    assert!(accuracy > 0.9, "most of the flowers must be classified correctly");

    // A program that classifies a flower needs the weights and the scaler.
    let path = env::temp_dir().join(format!("pellucid-iris-{}.safetensors", process::id()));
    io::save_checkpoint(&path, Checkpoint::new().model(&model).part("scaler", &scaler))?;
    let (other, other_scaler) = (sequential![Linear::new(4, 16), Tanh, Linear::new(16, 3)], StandardScaler::new());
    let loaded = io::load_checkpoint(&path, Checkpoint::new().model(&other).part("scaler", &other_scaler));
    fs::remove_file(&path).expect("removing the file that was written must succeed");
    loaded?;
    let flower = other_scaler.transform(&Tensor::from([[5.1f32, 3.5, 1.4, 0.2]]))?;
    let class = other.forward(&flower).argmax(-1).item::<i64>();
    println!("a flower of 5.1, 3.5, 1.4 and 0.2 cm: {}", table.categories("species")?[class as usize]);
    Ok(())
}
