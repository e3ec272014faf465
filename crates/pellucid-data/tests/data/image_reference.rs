//! The reference images of torchvision and files of Pillow, written by `reference/images.py`.

use pellucid::data::Image;
use std::collections::BTreeMap;

fn bytes(hexadecimal: &str) -> Vec<u8> {
    let pairs = hexadecimal.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
    pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
}

/// The images by name.
pub(crate) fn images() -> BTreeMap<&'static str, Image> {
    let lines = include_str!("reference/images.txt").lines().filter(|line| !line.starts_with("file "));
    let image = |line: &'static str| {
        let [name, height, width, channels, pixels] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let shape = [height, width, channels].map(|len| len.parse().unwrap());
        (name, Image::new(bytes(pixels), shape))
    };
    lines.map(image).collect()
}

/// The files by name.
pub(crate) fn files() -> Vec<(&'static str, Vec<u8>)> {
    let lines = include_str!("reference/images.txt").lines().filter_map(|line| line.strip_prefix("file "));
    lines.map(|line| line.split_once(' ').unwrap()).map(|(name, data)| (name, bytes(data))).collect()
}

/// Asserts that two images have the same shape and that no byte differs by more than `tolerance`.
#[track_caller]
pub(crate) fn assert_near(name: &str, actual: &Image, expected: &Image, tolerance: u8) {
    assert_eq!(actual.shape(), expected.shape(), "{name}");
    for (i, (a, b)) in actual.pixels().iter().zip(expected.pixels()).enumerate() {
        let message = format!("{name}: byte {i} is {a}, expected {b}\n{:?}\n{:?}", actual.pixels(), expected.pixels());
        assert!(a.abs_diff(*b) <= tolerance, "{message}");
    }
}
