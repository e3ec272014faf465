//! CIFAR-10 and CIFAR-100: small photographs (Krizhevsky 2009), in the format that their web page calls "binary
//! version".

use crate::random::vec_with_capacity;
use pellucid_tensor::{DType, Error, Result, Tensor};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

const OP: &str = "cifar";

/// The bytes of an image: three planes of 32 × 32 pixels.
const IMAGE_BYTES: usize = 3 * 32 * 32;

/// The names of the classes of CIFAR-10.
const CIFAR10_CLASSES: [&str; 10] =
    ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"];

/// Labelled photographs. With the feature `image`, the type implements `Dataset`: a sample is an image and its class
/// index.
#[derive(Clone, Debug)]
pub struct CifarImages {
    /// The pixels, 0 to 255: `u8` `[N, 3, 32, 32]`. `images.to_dtype(DType::F32) / 255.0` scales them to [0, 1].
    pub images: Tensor,
    /// The class indices: `i64` `[N]`.
    pub labels: Tensor,
    /// The superclass indices of CIFAR-100: `i64` `[N]`.
    pub coarse_labels: Option<Tensor>,
}

/// The training and test images of CIFAR-10.
///
/// ```no_run
/// use pellucid::DType;
/// use pellucid::data::{Batches, Cifar10};
/// let cifar = Cifar10::load("cifar-10-batches-bin")?;
/// for [images, labels] in Batches::new(&[&cifar.train.images, &cifar.train.labels], 128).shuffled(0).epoch() {
///     let images = images.to_dtype(DType::F32) / 255.0;
/// }
/// # Ok::<(), pellucid::Error>(())
/// ```
#[doc(alias = "CIFAR10")]
#[derive(Clone, Debug)]
pub struct Cifar10 {
    /// The 50,000 training images.
    pub train: CifarImages,
    /// The 10,000 test images.
    pub test: CifarImages,
}

/// The training and test images of CIFAR-100, with 100 classes in 20 superclasses.
#[doc(alias = "CIFAR100")]
#[derive(Clone, Debug)]
pub struct Cifar100 {
    /// The 50,000 training images.
    pub train: CifarImages,
    /// The 10,000 test images.
    pub test: CifarImages,
}

impl Cifar10 {
    /// Reads the files `data_batch_1.bin` to `data_batch_5.bin` and `test_batch.bin` of a directory.
    ///
    /// # Errors
    /// [`Error::File`] if a file is missing, or has an unexpected size or an invalid label; [`Error::OutOfMemory`].
    pub fn load(directory: impl AsRef<Path>) -> Result<Cifar10> {
        let directory = directory.as_ref();
        let batches: Vec<PathBuf> = (1..=5).map(|i| directory.join(format!("data_batch_{i}.bin"))).collect();
        let read = |paths: &[PathBuf]| CifarImages::read(paths, 10_000, &[10]);
        Ok(Cifar10 { train: read(&batches)?, test: read(&[directory.join("test_batch.bin")])? })
    }

    /// Returns the names of the classes.
    pub fn classes() -> [&'static str; 10] {
        CIFAR10_CLASSES
    }
}

impl Cifar100 {
    /// Reads the files `train.bin` and `test.bin` of a directory.
    ///
    /// # Errors
    /// [`Error::File`] if a file is missing, or has an unexpected size or an invalid label; [`Error::OutOfMemory`].
    pub fn load(directory: impl AsRef<Path>) -> Result<Cifar100> {
        let directory = directory.as_ref();
        let read = |name: &str, images| CifarImages::read(&[directory.join(name)], images, &[20, 100]);
        Ok(Cifar100 { train: read("train.bin", 50_000)?, test: read("test.bin", 10_000)? })
    }
}

impl CifarImages {
    /// Reads files of `images` records each. A record consists of one byte for each kind of label (the last kind is the
    /// class), and the pixels. `classes` is the number of classes of each kind.
    fn read(paths: &[PathBuf], images: usize, classes: &[u8]) -> Result<CifarImages> {
        let n = paths.len() * images;
        let record = classes.len() + IMAGE_BYTES;
        let mut pixels = vec_with_capacity(n * IMAGE_BYTES)?;
        let mut labels: Vec<Vec<i64>> = vec![Vec::new(); classes.len()];
        for path in paths {
            let file_error = |reason: String| Error::file(OP, path, reason);
            let mut bytes = vec_with_capacity(images * record + 1)?;
            // Reading one byte beyond the expected size detects surplus data.
            let read =
                File::open(path).and_then(|file| file.take((images * record) as u64 + 1).read_to_end(&mut bytes));
            read.map_err(|error| Error::unreadable_file(OP, path, &error))?;
            if bytes.len() != images * record {
                let actual = if bytes.len() > images * record { "more".to_string() } else { bytes.len().to_string() };
                let expected = images * record;
                return Err(file_error(format!(
                    "{images} images must have {expected} bytes, but the file has {actual}"
                )));
            }
            for (index, record) in bytes.chunks_exact(record).enumerate() {
                let (kinds, image) = record.split_at(classes.len());
                for ((label, count), list) in kinds.iter().zip(classes).zip(&mut labels) {
                    if label >= count {
                        return Err(file_error(format!(
                            "the label of image {index} must be below {count}, but is {label}"
                        )));
                    }
                    list.push(i64::from(*label));
                }
                pixels.extend_from_slice(image);
            }
        }
        let mut labels = labels.into_iter().rev().map(|list| Tensor::try_new(list, [n]));
        let (fine, coarse) = (labels.next().transpose()?, labels.next().transpose()?);
        let fine = fine.ok_or_else(|| Error::invalid(OP, "a record must have a label"))?;
        Ok(CifarImages {
            images: Tensor::try_from_bytes(&pixels, DType::U8, [n, 3, 32, 32])?,
            labels: fine,
            coarse_labels: coarse,
        })
    }
}

#[cfg(feature = "image")]
impl crate::dataset::Dataset for CifarImages {
    type Item = (crate::image::Image, i64);

    fn len(&self) -> usize {
        self.labels.size()
    }

    fn get(&self, index: usize) -> Result<Self::Item> {
        use pellucid_tensor::ops;
        crate::dataset::check_index(index, self.len())?;
        let image = crate::image::Image::from_tensor(&ops::select(&self.images, 0, index as isize)?)?;
        Ok((image, ops::select(&self.labels, 0, index as isize)?.try_item()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes a file of three records with two labels each.
    fn file(name: &str, change: impl Fn(&mut Vec<u8>)) -> PathBuf {
        let mut bytes = Vec::new();
        for image in 0..3u8 {
            bytes.extend([image, 10 * image]);
            bytes.extend((0..IMAGE_BYTES).map(|i| (i / 1024) as u8 + image));
        }
        change(&mut bytes);
        let path = std::env::temp_dir().join(format!("pellucid-cifar-{name}-{}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        path
    }

    #[test]
    fn records_are_read_from_several_files() {
        let path = file("good", |_| ());
        let data = CifarImages::read(&[path.clone(), path.clone()], 3, &[20, 100]).unwrap();
        std::fs::remove_file(path).unwrap();
        assert_eq!(data.images.shape().dims(), [6, 3, 32, 32]);
        assert_eq!(data.labels.to_vec::<i64>(), [0, 10, 20, 0, 10, 20]);
        assert_eq!(data.coarse_labels.as_ref().unwrap().to_vec::<i64>(), [0, 1, 2, 0, 1, 2]);
        assert_eq!(data.images.i((4, 2, 31, 31)).item::<i64>(), 3);
        #[cfg(feature = "image")]
        {
            let (image, class) = crate::dataset::Dataset::get(&data, 5).unwrap();
            assert_eq!((image.pixel(7, 7), class), (&[2, 3, 4][..], 20));
        }
    }

    #[test]
    fn files_of_another_size_and_invalid_labels_are_rejected() {
        for (name, change, expected) in [
            ("short", (|bytes| bytes.truncate(9221)) as fn(&mut Vec<u8>), "but the file has 9221"),
            ("long", |bytes| bytes.push(0), "but the file has more"),
            ("label", |bytes| bytes[1 + 2 + IMAGE_BYTES] = 100, "label of image 1 must be below 100, but is 100"),
        ] {
            let path = file(name, change);
            let error = CifarImages::read(std::slice::from_ref(&path), 3, &[20, 100]).unwrap_err().to_string();
            std::fs::remove_file(path).unwrap();
            assert!(error.contains(expected), "{error:?} does not contain {expected:?}");
        }
        assert!(Cifar10::load("absent").unwrap_err().to_string().contains("data_batch_1.bin"));
    }
}
