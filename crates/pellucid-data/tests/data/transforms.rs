//! Image transforms: comparison with torchvision, and random transforms.

use crate::image_reference::{assert_near, images};
use pellucid::data::transforms::functional::*;
use pellucid::data::transforms::*;
use pellucid::data::{CutMix, DataLoader, Dataset, Image, LoaderOptions, MixUp, from_fn};
use pellucid::ops::{InterpolationMode, PaddingMode};
use pellucid::{DType, Error, Generator, Result, Tensor, manual_seed};
use std::collections::BTreeSet;

/// Returns the result of the computation `name` of the reference, and the maximum allowed difference of a byte.
fn computed(image: &Image, name: &str) -> Result<(Image, u8)> {
    let (family, rest) = name.split_once('_').unwrap_or((name, ""));
    let parse_number = || rest.parse::<f64>().unwrap();
    let copy = image.clone();
    let modes = [
        ("linear", InterpolationMode::LinearAntialias),
        ("cubic", InterpolationMode::CubicAntialias),
        ("nearest", InterpolationMode::NearestExact),
    ];
    let nearest = |matrix| affine(image, matrix, InterpolationMode::NearestExact, 0);
    let shear = |x: f64, y: f64| [x.atan().to_degrees(), y.atan().to_degrees()];
    let corner = [-(image.width() as f64) / 2.0, -(image.height() as f64) / 2.0];
    let exact = |image: Image| Ok((image, 0));
    match family {
        "resize" => {
            let (mode, size) = rest.split_once('_').unwrap();
            let mode = modes.into_iter().find(|(name, _)| *name == mode).unwrap().1;
            let size = match size {
                "small" => [4, 3],
                "large" => [13, 10],
                "wide" => [9, 21],
                _ => [30, 8],
            };
            exact(resize(image, size, mode)?)
        }
        "shorter" => exact(ResizeImage::shorter_side(5).apply(copy)?),
        "center" => exact(center_crop(image, if rest == "crop" { [4, 5] } else { [12, 5] })?),
        "crop" => exact(crop(image, [-2, 3], [6, 8], PaddingMode::Constant(0.into()))?),
        "pad" => {
            let mode = match rest {
                "constant" => PaddingMode::Constant(9.into()),
                "edge" => PaddingMode::Replicate,
                _ => PaddingMode::Reflect,
            };
            exact(pad(image, [1, 2, 3, 4], mode)?)
        }
        "horizontal" => exact(horizontal_flip(copy)),
        "vertical" => exact(vertical_flip(copy)),
        "rotate" if rest == "nearest" => exact(nearest(AffineMatrix::new(-20.0, [0.0; 2], [0.0; 2], [0.0; 2]))?),
        "rotate" => Ok((rotate(image, parse_number(), 0)?, 1)),
        "shear" if rest == "x" => exact(nearest(AffineMatrix::new(0.0, [0.0; 2], shear(0.3, 0.0), corner))?),
        "shear" => exact(nearest(AffineMatrix::new(0.0, [0.0; 2], shear(0.0, -0.25), corner))?),
        "translate" => exact(nearest(AffineMatrix::new(0.0, [2.0, -1.0], [0.0; 2], [0.0; 2]))?),
        "brightness" => Ok((adjust_brightness(copy, parse_number())?, 1)),
        "contrast" => Ok((adjust_contrast(copy, parse_number())?, 1)),
        "saturation" => Ok((adjust_saturation(copy, parse_number())?, 1)),
        "sharpness" => Ok((adjust_sharpness(copy, parse_number())?, 1)),
        "hue" => Ok((adjust_hue(copy, parse_number())?, 1)),
        "blur" => Ok((gaussian_blur(image, parse_number() as usize, if rest == "3" { 0.8 } else { 2.0 })?, 1)),
        "erase" => exact(erase(copy, [2, 3], [4, 2], 77)?),
        "invert" => exact(invert(copy)),
        "posterize" => exact(posterize(copy, 3)?),
        "solarize" => exact(solarize(copy, 128.0)),
        "autocontrast" => Ok((autocontrast(copy), 1)),
        "equalize" => exact(equalize(copy)),
        "grayscale" => Ok((grayscale(image, if rest.is_empty() { 1 } else { 3 })?, 1)),
        _ => panic!("there is no computation for {name}"),
    }
}

#[test]
fn transforms_have_the_values_of_torchvision() {
    let images = images();
    let mut families = BTreeSet::new();
    for (name, expected) in images.iter().filter(|(name, _)| name.contains('_')) {
        let (source, transform) = name.split_once('_').unwrap();
        if source == "decoded" || transform == "large" {
            continue;
        }
        let image = if transform == "equalize" { &images[format!("{source}_large").as_str()] } else { &images[source] };
        let (actual, tolerance) = computed(image, transform).unwrap();
        assert_near(name, &actual, expected, tolerance);
        families.insert(transform.split('_').next().unwrap());
    }
    assert_eq!(families.len(), 23, "{families:?}");
}

#[test]
fn the_alpha_channel_keeps_its_colours() {
    let images = images();
    let (rgb, rgba) = (&images["rgb"], &images["rgba"]);
    let opaque = |image: Image| image.to_rgb();
    let alpha = |image: &Image| image.pixels().iter().skip(3).step_by(4).copied().collect::<Vec<u8>>();
    for name in ["brightness_1.7", "contrast_0.6", "saturation_1.7", "hue_0.3", "sharpness_0.6", "invert", "posterize"]
    {
        let (changed, _) = computed(rgba, name).unwrap();
        assert_eq!(alpha(&changed), alpha(rgba), "{name}");
        assert_eq!(opaque(changed), computed(rgb, name).unwrap().0, "{name}");
    }
    for name in ["horizontal_flip", "crop", "rotate_30", "blur_3", "resize_nearest_small", "pad_reflect"] {
        assert_eq!(opaque(computed(rgba, name).unwrap().0), computed(rgb, name).unwrap().0, "{name}");
    }
}

/// A rotation with a fill value equals a rotation of the padded image.
#[test]
fn pixels_outside_of_an_image_have_the_value_of_the_fill() {
    let image = &images()["rgb"];
    let padded = pad(image, [9, 9, 9, 9], PaddingMode::Constant(200.into())).unwrap();
    let expected = center_crop(&rotate(&padded, 33.0, 0).unwrap(), [9, 8]).unwrap();
    assert_near("fill", &rotate(image, 33.0, 200).unwrap(), &expected, 0);
    let circular = crop(image, [0, -3], [9, 8], PaddingMode::Circular).unwrap();
    assert_eq!(circular.pixel(4, 0), image.pixel(4, 5));
    // Reflections beyond the length of the image alternate.
    let line = Image::new(vec![1, 2, 3], [1, 3, 1]);
    let reflected = crop(&line, [0, -5], [1, 13], PaddingMode::Reflect).unwrap();
    assert_eq!(reflected.pixels(), [2, 1, 2, 3, 2, 1, 2, 3, 2, 1, 2, 3, 2]);
}

#[test]
fn rejected_transforms_name_the_size() {
    let image = &images()["rgb"];
    let text = |result: Result<Image>| result.map(|_| ()).unwrap_err().to_string();
    assert!(text(RandomCrop::new([10, 8]).apply(image.clone())).contains("10 × 8 does not fit in an image of 9 × 8"));
    assert!(text(resize(image, [0, 3], InterpolationMode::LinearAntialias)).contains("0 × 3"));
    let invalid = [
        CenterCrop::try_new([0, 3]).map(drop),
        RandomCrop::try_new([3, 0]).map(drop),
        ResizeImage::try_new([0, 3]).map(drop),
        ResizeImage::try_shorter_side(0).map(drop),
        RandomResizedCrop::try_new([3, 0]).map(drop),
    ];
    for error in invalid.map(Result::unwrap_err) {
        assert!(error.to_string().contains("must be at least 1, got 0"), "{error}");
    }
    assert!(text(resize(image, [usize::MAX, 3], InterpolationMode::LinearAntialias)).contains("pixels"));
    assert!(text(resize(image, [3, 3], InterpolationMode::Nearest)).contains("NearestExact"));
    assert!(text(gaussian_blur(image, 4, 1.0)).contains("must be odd"));
    assert!(text(gaussian_blur(image, 17, 1.0)).contains("less than 16"));
    assert!(text(adjust_hue(image.clone(), 0.6)).contains("[-0.5, 0.5]"));
    assert!(text(adjust_contrast(image.clone(), -1.0)).contains("not negative"));
    assert!(text(erase(image.clone(), [5, 0], [5, 1], 0)).contains("inside"));
    assert!(text(pad(image, [usize::MAX, 0, 0, 1], PaddingMode::Reflect)).contains("must be less than 2^63"));
    assert!(text(crop(image, [0, 0], [1, 1], PaddingMode::Constant(0.5.into()))).contains("integer from 0 to 255"));
}

/// Numbers outside their range are rejected where they are given, not in a worker thread.
#[test]
fn options_of_transforms_are_checked_at_once() {
    let rejected = |found: Result<()>, text: &str| {
        let found = found.unwrap_err().to_string();
        assert!(found.contains(text), "the error must contain {text:?}: {found}");
    };
    for probability in [1.5, -0.1, f64::NAN] {
        rejected(RandomHorizontalFlip::try_new(probability).map(drop), "the probability must be in [0, 1]");
        rejected(RandomVerticalFlip::try_new(probability).map(drop), "random_vertical_flip");
        rejected(RandomErasing::try_new(probability).map(drop), "random_erasing");
        rejected(RandomApply::try_new(probability, Grayscale::new()).map(drop), "random_apply");
    }
    rejected(RandomErasing::default().try_scale(0.0, 0.5).map(drop), "the lower bound of scale");
    rejected(RandomErasing::default().try_ratio(3.0, 0.3).map(drop), "must be at most the upper one, got 3 and 0.3");
    rejected(RandomResizedCrop::new([2, 2]).try_scale(0.5, f64::INFINITY).map(drop), "the upper bound of scale");
    rejected(RandomResizedCrop::new([2, 2]).try_ratio(-1.0, 1.0).map(drop), "the lower bound of ratio");
    rejected(GaussianBlur::try_new(4).map(drop), "must be odd");
    rejected(GaussianBlur::new(3).try_sigma(0.0, 1.0).map(drop), "the lower bound of sigma");
    rejected(ColorJitter::try_new(0.1, -0.1, 0.0, 0.0).map(drop), "the strength of contrast must be finite");
    rejected(ColorJitter::try_new(0.0, 0.0, 0.0, 0.6).map(drop), "at most 0.5");
    rejected(RandomRotation::try_new(f64::NAN).map(drop), "degrees must be finite and not negative");
    rejected(RandAugment::try_new(2, 31).map(drop), "at most 30");
    rejected(Grayscale::new().try_channels(2).map(drop), "1 or 3 channels");
    rejected(Normalize::try_new(&[], &[1.0]).map(drop), "the number of means must be at least 1");
    rejected(Normalize::try_new(&[0.5], &[0.0]).map(drop), "a standard deviation must be finite and above 0");
    rejected(Normalize::try_new(&[f64::NAN], &[1.0]).map(drop), "a mean must be finite");
}

#[test]
fn normalisation_of_images_and_tensors_has_equal_bits() {
    let image = &images()["rgb"];
    let normalize = Normalize::imagenet();
    let fused = normalize.to_tensor(image).unwrap();
    assert_eq!(fused.to_bytes(), normalize.apply_to(&image.to_tensor()).unwrap().to_bytes());
    let batch = normalize.apply_to(&image.to_tensor().unsqueeze(0)).unwrap();
    assert_eq!(batch.to_bytes(), fused.to_bytes());
    let text = |result: Result<Tensor>| result.map(|_| ()).unwrap_err().to_string();
    assert!(text(normalize.to_tensor(&images()["grey"])).contains("1 channels, but there are 3 means"));
    assert!(text(normalize.apply_to(&Tensor::from([[[1u8]]]))).contains("float dtype"));
    assert!(Normalize::new(&[0.5], &[0.5]).to_tensor(image).is_ok());
}

/// A composition of all random transforms.
fn augmentation() -> impl ImageTransform + Clone + 'static {
    let spatial = (
        RandomCrop::new([9, 8]).padding(2),
        RandomHorizontalFlip::default(),
        RandomVerticalFlip::new(0.3),
        RandomRotation::new(20.0),
        RandomResizedCrop::new([9, 8]),
    );
    let automatic = (RandAugment::default(), TrivialAugmentWide, AutoAugment::default());
    let colors = (ColorJitter::new(0.4, 0.4, 0.4, 0.1), GaussianBlur::new(3), RandomErasing::new(0.7));
    let closure = |image: Image| Ok(if image.pixel(0, 0)[0] > 128 { invert(image) } else { image });
    let parts = std::sync::Arc::new((spatial, automatic, RandomApply::new(0.8, colors), closure));
    move |image: Image| parts.apply(image)
}

#[test]
fn augmented_batches_are_equal_for_any_number_of_workers() {
    let image = images()["rgb"].clone();
    let samples = from_fn(40, move |index| Ok((image.clone(), index as i64)));
    let augment = augmentation();
    let samples = samples.map(move |(image, class)| Ok((augment.apply(image)?.try_to_tensor()?, class)));
    let samples = std::sync::Arc::new(samples);
    let epochs = |workers| {
        let options = LoaderOptions { batch_size: 8, shuffle: true, seed: Some(3), workers, ..Default::default() };
        let mix = |samples: Vec<(Tensor, i64)>| {
            let (images, labels) = pellucid::data::Collate::collate(samples)?;
            MixUp::new(0.5, 40).apply(&images, &labels)
        };
        let mut loader = DataLoader::with_collate(samples.clone(), options, mix);
        let bytes = |batch: Result<(Tensor, Tensor)>| batch.map(|(x, y)| (x.to_bytes(), y.to_bytes())).unwrap();
        (0..2).map(|_| loader.epoch().map(bytes).collect::<Vec<_>>()).collect::<Vec<_>>()
    };
    let expected = epochs(0);
    assert_ne!(expected[0], expected[1]);
    assert_eq!(epochs(1), expected);
    assert_eq!(epochs(3), expected);
}

/// Outside a loader, transforms follow the seed of the thread's generator.
#[test]
fn transforms_outside_of_a_loader_follow_the_seed() {
    let image = images()["rgb"].clone();
    let augment = augmentation();
    let _random = Generator::new(0).scope();
    let draw = || (0..5).map(|_| augment.apply(image.clone()).unwrap()).collect::<Vec<_>>();
    manual_seed(5);
    let first = draw();
    assert_ne!(first, draw());
    manual_seed(5);
    assert_eq!(first, draw());
}

#[test]
fn random_crops_and_flips_are_uniform() {
    let image = Image::new((0..9).collect(), [3, 3, 1]);
    let _random = Generator::new(1).scope();
    let crops: Vec<u8> = (0..900).map(|_| RandomCrop::new([1, 1]).apply(image.clone()).unwrap().pixels()[0]).collect();
    for value in 0..9 {
        let count = crops.iter().filter(|crop| **crop == value).count();
        assert!((60..140).contains(&count), "the crop {value} must be drawn about 100 times, but was {count} times");
    }
    let flip = RandomHorizontalFlip::new(0.25);
    let flipped = (0..1000).filter(|_| flip.apply(image.clone()).unwrap() != image).count();
    assert!((190..310).contains(&flipped), "{flipped} of 1000 images are flipped, expected about 250");
    let crop = RandomResizedCrop::new([2, 5]).scale(0.5, 1.0);
    assert_eq!(crop.apply(image).unwrap().shape(), [2, 5, 1]);
}

#[test]
fn batches_are_mixed_with_the_sample_before() {
    let _random = Generator::new(2).scope();
    let images = Tensor::arange(0.0f32, 4.0, 1.0).reshape([4, 1, 1, 1]).expand([4, 2, 6, 6]).copy();
    let labels = Tensor::from([0i64, 1, 2, 3]);
    let (mixed, probabilities) = MixUp::new(1.0, 4).apply(&images, &labels).unwrap();
    let probability: f32 = probabilities.i((1, 1)).item();
    assert!((probabilities.i((1, 0)).item::<f32>() - (1.0 - probability)).abs() < 1e-6);
    let expected = probability + (1.0 - probability) * 0.0;
    assert!((mixed.i((1, 0, 3, 3)).item::<f32>() - expected).abs() < 1e-6);
    assert_eq!(probabilities.sum([1]).to_vec::<f32>(), [1.0; 4]);
    for _ in 0..20 {
        let (mixed, probabilities) = CutMix::new(1.0, 4).apply(&images, &labels).unwrap();
        // The fraction of pixels from the previous sample is the probability of its class.
        let replaced = mixed.i((2, 0)).eq(1.0).to_dtype(DType::F32).mean(..).item::<f32>();
        assert!((probabilities.i((2, 1)).item::<f32>() - replaced).abs() < 1e-6);
    }
    let text = |result: Result<(Tensor, Tensor)>| result.map(|_| ()).unwrap_err().to_string();
    assert!(MixUp::try_new(0.0, 4).unwrap_err().to_string().contains("alpha"));
    assert!(CutMix::try_new(1.0, 0).unwrap_err().to_string().contains("classes"));
    assert!(text(MixUp::new(1.0, 4).apply(&images, &Tensor::from([0i64]))).contains("same number of samples"));
    assert!(text(MixUp::new(1.0, 3).apply(&images, &labels)).contains('3'));
    for labels in [labels.to_dtype(DType::I32), Tensor::zeros([images.shape()[0], 4], DType::I64)] {
        let error = MixUp::new(1.0, 4).apply(&images, &labels).unwrap_err();
        assert!(matches!(error, Error::DTypeMismatch { .. }), "{error}");
    }
    assert!(text(CutMix::new(1.0, 4).apply(&Tensor::from([1.0f32]), &Tensor::from([0i64]))).contains("[N, C, H, W]"));
}
