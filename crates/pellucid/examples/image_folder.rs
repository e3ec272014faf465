//! A classifier of a directory of images, with augmentation on a worker thread.
//!
//! ```text
//! cargo run --release --features image --example image_folder
//! ```
//!
//! The program writes its own images: 600 PNG files of circles, squares and triangles. The directory has one
//! subdirectory per class. It prints the accuracy on test images: 1.0, in a second on an AMD EPYC.
#![allow(clippy::print_stdout, reason = "an example program prints to standard output")]

use pellucid::data::transforms::{ColorJitter, ImageTransform, Normalize, RandomCrop, RandomHorizontalFlip};
use pellucid::data::{Image, ImageFolder, random_split};
use pellucid::prelude::*;
use pellucid::train::metrics::Accuracy;
use std::path::Path;
use std::{env, fs, process};

const SEED: u64 = 0;
const SIZE: usize = 32;
const SHAPES: [&str; 3] = ["circle", "square", "triangle"];

fn main() -> Result<()> {
    manual_seed(SEED);
    let folder = env::temp_dir().join(format!("pellucid-shapes-{}", process::id()));
    write_images(&folder)?;

    // The training images are augmented; all images become tensors [3, 32, 32] with a mean of about 0.
    let images = ImageFolder::new(&folder)?;
    println!("classes {:?}, {} images", images.classes(), images.len());
    let [train, test] = random_split(images, [0.8, 0.2], 0)?;
    let augment = (
        RandomCrop::new([SIZE, SIZE]).padding(3),
        RandomHorizontalFlip::default(),
        ColorJitter::new(0.3, 0.3, 0.3, 0.0),
    );
    let normalize = Normalize::new(&[0.5; 3], &[0.25; 3]);
    let to_tensor = normalize.clone();
    let train = train.map(move |(image, class)| Ok((to_tensor.to_tensor(&augment.apply(image)?)?, class)));
    let test = test.map(move |(image, class)| Ok((normalize.to_tensor(&image)?, class)));

    let options = LoaderOptions { batch_size: 32, shuffle: true, workers: 1, ..Default::default() };
    let mut batches = DataLoader::new(train, options);
    let mut validation = DataLoader::new(test, LoaderOptions { batch_size: 60, ..Default::default() });
    let model = classifier();
    let optimizer = AdamW::new(model.parameters(), AdamWOptions { lr: 3e-3, ..Default::default() });
    let mut trainer = Trainer::new(&model, CrossEntropyLoss::default(), optimizer).epochs(12).metric(Accuracy::new());
    let history = trainer.fit(&mut batches, Some(&mut validation))?;
    fs::remove_dir_all(&folder).expect("removing the directory that was written must succeed");

    let accuracy = history.last("validation_accuracy").expect("the metric must be in the history");
    println!("result: accuracy {accuracy:.3} on images that were not trained on");
    assert!(accuracy > 0.9, "most of the shapes must be recognized");
    Ok(())
}

/// Returns the model: two convolutions with pooling, the mean of each feature over the image, and 3 scores.
fn classifier() -> Sequential {
    sequential![
        Conv2d::new(3, 16, 5), // [N, 16, 28, 28]
        Relu,
        MaxPool2d::new(2),      // [N, 16, 14, 14]
        Conv2d::new(16, 32, 5), // [N, 32, 10, 10]
        Relu,
        MaxPool2d::new(2), // [N, 32, 5, 5]
        Flatten::new(),
        Linear::new(32 * 5 * 5, 64),
        Relu,
        Linear::new(64, 3)
    ]
}

/// Writes 200 images of each shape, with random colours, positions and sizes.
fn write_images(folder: &Path) -> Result<()> {
    for (class, name) in SHAPES.iter().enumerate() {
        fs::create_dir_all(folder.join(name)).expect("the directory of temporary files must be writable");
        for index in 0..200 {
            let random = Tensor::rand([9], DType::F32).to_vec::<f32>();
            draw(class, &random)?.save_png(folder.join(name).join(format!("{index:03}.png")))?;
        }
    }
    Ok(())
}

/// Draws a shape of a random colour on a background of a different colour.
fn draw(class: usize, random: &[f32]) -> Result<Image> {
    let [x0, y0, size] = [10.0 + 12.0 * random[0], 10.0 + 12.0 * random[1], 5.0 + 5.0 * random[2]];
    let is_inside = |x: f32, y: f32| match class {
        0 => x * x + y * y < size * size,
        1 => x.abs().max(y.abs()) < 0.9 * size,
        _ => y.abs() < size && x.abs() < 0.5 * (size - y),
    };
    let mut pixels = Vec::with_capacity(SIZE * SIZE * 3);
    for row in 0..SIZE {
        for column in 0..SIZE {
            let inside = is_inside(column as f32 - x0, row as f32 - y0);
            let colour = if inside { &random[3..6] } else { &random[6..9] };
            // The shape is bright, the background dark.
            let base = if inside { 128.0 } else { 0.0 };
            pixels.extend(colour.iter().map(|part| (base + 127.0 * part) as u8));
        }
    }
    Image::try_new(pixels, [SIZE, SIZE, 3])
}
