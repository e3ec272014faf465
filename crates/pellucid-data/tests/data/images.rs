//! Images, their files, and directories of them.

use crate::image_reference::{assert_near, files, images};
use crate::scratch::Scratch;
use pellucid::data::{DataLoader, Dataset, DecodeOptions, Image, ImageFolder, LoaderOptions};
use pellucid::{DType, Error, Tensor};
use std::fs;

#[test]
fn files_have_the_pixels_of_pillow() {
    let images = images();
    for (name, bytes) in files() {
        // The inverse cosine transforms of two decoders differ by 1. Subsampled chroma is interpolated.
        let tolerance = match name {
            "rgb.jpg" | "grey.jpg" => 3,
            "half.jpg" | "progressive.jpg" => 12,
            _ => 0,
        };
        let decoded = Image::decode(&bytes).unwrap();
        assert_near(name, &decoded, &images[format!("decoded_{name}").as_str()], tolerance);
    }
}

#[test]
fn every_cut_off_file_is_an_error() {
    for (name, bytes) in files() {
        // The last bytes of a JPEG file are the end-of-image marker.
        for len in 0..bytes.len() - 2 {
            let Err(error) = Image::decode(&bytes[..len]) else {
                panic!("{name} of {} bytes is decoded from {len}", bytes.len());
            };
            assert_eq!(error.to_string(), error.to_string().trim(), "{name} of {len} bytes");
        }
    }
}

#[test]
fn damaged_files_do_not_panic() {
    for (_, bytes) in files() {
        for i in 0..bytes.len() {
            for change in [0x01, 0x80, 0xff] {
                let mut damaged = bytes.clone();
                damaged[i] ^= change;
                let _ = Image::decode_with(&damaged, DecodeOptions { max_pixels: 1 << 16, ..Default::default() });
            }
        }
    }
}

/// Returns a JPEG file of gray pixels: each block of 8 × 8 pixels is two bits, the codes of "no change" and "end".
fn gray_jpeg(width: u16, height: u16) -> Vec<u8> {
    let segment = |marker: u8, content: &[u8]| {
        let len = (content.len() as u16 + 2).to_be_bytes();
        [&[0xff, marker][..], &len, content].concat()
    };
    let [width_bytes, height_bytes] = [width, height].map(u16::to_be_bytes);
    let frame = [&[8][..], &height_bytes, &width_bytes, &[1, 1, 0x11, 0]].concat();
    // One code of one bit for the value 0.
    let table = |class: u8| [&[class, 1][..], &[0; 16]].concat();
    let blocks = usize::from(width.div_ceil(8)) * usize::from(height.div_ceil(8));
    assert_eq!(blocks % 4, 0, "the last byte of the scan has no padding");
    let parts = [
        segment(0xdb, &[&[0][..], &[1; 64]].concat()),
        segment(0xc0, &frame),
        segment(0xc4, &table(0x00)),
        segment(0xc4, &table(0x10)),
        segment(0xda, &[1, 1, 0, 0, 63, 0]),
        vec![0; blocks / 4],
    ];
    [&[0xff, 0xd8][..], &parts.concat(), &[0xff, 0xd9]].concat()
}

/// The limit of a panorama is its number of pixels.
#[test]
fn images_may_have_one_long_side() {
    for (width, height) in [(20_000, 16), (16, 65_504)] {
        let image = Image::decode(&gray_jpeg(width, height)).unwrap();
        assert_eq!(image.shape(), [usize::from(height), usize::from(width), 1]);
        assert!(image.pixels().iter().all(|&pixel| pixel == 128));
        let limit = DecodeOptions { max_pixels: 1000, ..Default::default() };
        let error = Image::decode_with(&gray_jpeg(width, height), limit).unwrap_err().to_string();
        assert!(error.contains(&format!("{width} × {height} pixels")), "{error}");
    }
}

#[test]
fn sizes_are_checked_before_memory_is_allocated() {
    let limit = DecodeOptions { max_pixels: 71, ..Default::default() };
    for (name, bytes) in files() {
        let error = Image::decode_with(&bytes, limit).unwrap_err().to_string();
        assert!(error.contains("8 × 9 pixels; it must have from 1 to `max_pixels` = 71"), "{name}: {error}");
    }
    let (_, png) = files().into_iter().find(|(name, _)| *name == "rgb.png").unwrap();
    let short = DecodeOptions { max_bytes: 100, ..Default::default() };
    assert!(Image::decode_with(&png, short).unwrap_err().to_string().contains("max_bytes"));
    // Headers that claim huge sizes, with a valid checksum.
    for side in [1u32 << 30, (1 << 31) - 1] {
        let mut header = png[..33].to_vec();
        header[16..20].copy_from_slice(&side.to_be_bytes());
        header[20..24].copy_from_slice(&side.to_be_bytes());
        let checksum = crc32(&header[12..29]);
        header[29..33].copy_from_slice(&checksum.to_be_bytes());
        header.extend_from_slice(&png[33..]);
        let error = Image::decode(&header).unwrap_err().to_string();
        assert!(error.contains(&format!("{side} × {side}")), "{error}");
    }
}

/// The checksum of PNG.
fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32, byte: &u8| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 })
    };
    !bytes.iter().fold(!0, step)
}

#[test]
fn images_and_tensors_are_converted_without_loss() {
    for image in images().values().filter(|image| image.height() > 8) {
        let tensor = image.to_tensor();
        assert_eq!(tensor.shape().dims(), [image.channels(), image.height(), image.width()]);
        assert_eq!(&Image::from_tensor(&tensor).unwrap(), image);
        assert_eq!(&Image::from_tensor(&(&tensor * 255.0).round().to_dtype(DType::U8)).unwrap(), image);
        assert_eq!(&Image::decode(&image.encode_png().unwrap()).unwrap(), image);
    }
    let beyond = Tensor::from([[[-1.0f32, 0.5, 2.0]]]);
    assert_eq!(Image::from_tensor(&beyond).unwrap().pixels(), [0, 128, 255]);
    let text = |tensor: Tensor| Image::from_tensor(&tensor).unwrap_err().to_string();
    assert!(text(Tensor::zeros([2, 3, 3], DType::F32)).contains("1, 3 or 4 channels"));
    assert!(text(Tensor::zeros([3, 0, 3], DType::F32)).contains("at least one pixel"));
    assert!(text(Tensor::zeros([3, 1, 1], DType::I64)).contains("u8"));
    assert!(text(Tensor::from([[[f32::NAN]]])).contains("NaN"));
    for (pixels, shape) in [(vec![0; 8], [2, 2, 2]), (vec![0; 5], [2, 2, 1]), (vec![], [0, 2, 3])] {
        assert!(matches!(Image::try_new(pixels, shape), Err(Error::InvalidArgument { .. })), "{shape:?}");
    }
}

/// A directory with two classes.
fn folder(scratch: &Scratch) -> std::path::PathBuf {
    let root = scratch.0.join("pets");
    let images = images();
    for (path, name) in [("dog/a.PNG", "rgb.png"), ("cat/b.jpeg", "grey.jpg"), ("cat/deep/a.png", "rgba.png")] {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let (_, bytes) = files().into_iter().find(|(file, _)| *file == name).unwrap();
        fs::write(path, bytes).unwrap();
    }
    images["rgb"].save_png(root.join("dog/b.png")).unwrap();
    fs::write(root.join("dog/readme.txt"), "no image").unwrap();
    fs::write(root.join("dog/.hidden.png"), "no image").unwrap();
    root
}

#[test]
fn a_folder_has_a_class_for_each_folder() {
    let scratch = Scratch::new("image-folder");
    let data = ImageFolder::new(folder(&scratch)).unwrap();
    assert_eq!(data.classes(), ["cat", "dog"]);
    let names: Vec<_> =
        data.samples().iter().map(|(path, class)| (path.file_name().unwrap().to_str(), *class)).collect();
    assert_eq!(names, [(Some("b.jpeg"), 0), (Some("a.png"), 0), (Some("a.PNG"), 1), (Some("b.png"), 1)]);
    let options = LoaderOptions { batch_size: 4, workers: 1, ..Default::default() };
    assert!(data.location(1).unwrap().ends_with("a.png"));
    let tensors = data.clone().map(|(image, class)| Ok((image.try_to_tensor()?, class)));
    let (images, classes) = DataLoader::new(tensors, options).epoch().next().unwrap().unwrap();
    assert_eq!(images.shape().dims(), [4, 3, 9, 8]);
    assert_eq!(classes.to_vec::<i64>(), [0, 0, 1, 1]);
    assert_eq!(data.clone().grayscale().get(1).unwrap().0.channels(), 1);

    // Class indices follow a longer list of classes.
    let numbered = data.clone().with_classes(&["ant", "dog", "cat"]);
    assert_eq!(numbered.classes(), ["ant", "dog", "cat"]);
    assert_eq!(numbered.samples().iter().map(|(_, class)| *class).collect::<Vec<_>>(), [2, 2, 1, 1]);
    for (classes, text) in [(vec!["cat"], "\"dog\""), (vec!["cat", "dog", "cat"], "\"cat\" twice")] {
        let error = data.clone().try_with_classes(&classes).unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
}

#[test]
fn errors_of_folders_name_the_path() {
    let scratch = Scratch::new("image-folder-errors");
    let root = folder(&scratch);
    fs::write(root.join("cat/c.png"), "not an image").unwrap();
    let data = ImageFolder::new(&root).unwrap();
    let bad = data.samples().iter().position(|(path, _)| path.ends_with("cat/c.png")).unwrap();
    let error = data.get(bad).unwrap_err();
    assert!(matches!(error, Error::File { .. }));
    assert!(error.to_string().contains("c.png") && error.to_string().contains("neither PNG nor JPEG"), "{error}");
    assert!(matches!(data.get(99), Err(Error::IndexOutOfBounds { .. })));
    // Images of other formats are not ignored silently.
    fs::write(root.join("cat/d.WebP"), "webp").unwrap();
    fs::write(root.join("dog/e.gif"), "gif").unwrap();
    let error = ImageFolder::new(&root).unwrap_err().to_string();
    assert!(error.contains("d.WebP") && error.contains("2 images that are neither PNG nor JPEG"), "{error}");
    fs::remove_file(root.join("cat/d.WebP")).unwrap();
    fs::remove_file(root.join("dog/e.gif")).unwrap();
    fs::create_dir(root.join("bird")).unwrap();
    let error = ImageFolder::new(&root).unwrap_err().to_string();
    assert!(error.contains("bird") && error.contains("contains no image"), "{error}");
    let error = ImageFolder::new(root.join("bird")).unwrap_err().to_string();
    assert!(error.contains("no subdirectories"), "{error}");
    assert!(ImageFolder::new(root.join("fish")).unwrap_err().to_string().contains("fish"));
    assert!(Image::read(root.join("fish.png")).unwrap_err().to_string().contains("does not exist"));
    assert!(images()["rgb"].save_png(root.join("fish/a.png")).unwrap_err().to_string().contains("directory"));
}
