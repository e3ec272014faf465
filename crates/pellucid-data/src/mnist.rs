//! MNIST: handwritten digits (LeCun, Bottou, Bengio & Haffner 1998).

use crate::digits::Digits;
use crate::idx;
use pellucid_tensor::{DType, Error, Result, Tensor, ops};
use std::path::{Path, PathBuf};

/// The training and test digits of MNIST.
#[doc(alias = "MNIST")]
#[derive(Clone, Debug)]
pub struct Mnist {
    /// The training digits, of 28 × 28 pixels.
    pub train: Digits,
    /// The test digits.
    pub test: Digits,
}

impl Mnist {
    /// Reads the four files of a directory: `train-images-idx3-ubyte`, `train-labels-idx1-ubyte`, and the two files
    /// with the prefix `t10k` instead of `train`, each gzip-compressed (`.gz`) or not.
    ///
    /// # Errors
    /// [`Error::File`] if a file is missing, damaged, or of an unexpected kind.
    pub fn load(directory: impl AsRef<Path>) -> Result<Mnist> {
        let directory = directory.as_ref();
        Ok(Mnist { train: Digits::load(directory, "train")?, test: Digits::load(directory, "t10k")? })
    }
}

impl Digits {
    fn load(directory: &Path, part: &str) -> Result<Digits> {
        let images_path = find(directory, &format!("{part}-images-idx3-ubyte"));
        let labels_path = find(directory, &format!("{part}-labels-idx1-ubyte"));
        let images = idx::read(&images_path, 3)?;
        let labels = idx::read(&labels_path, 1)?;
        let file_error = |path: &Path, reason: String| Err(Error::file("mnist", path, reason));
        if images.dims[1..] != [28, 28] {
            return file_error(
                &images_path,
                format!("the images must be 28 by 28, but their size is {:?}", &images.dims[1..]),
            );
        }
        if images.dims[0] != labels.dims[0] {
            let (labels, images) = (labels.dims[0], images.dims[0]);
            return file_error(
                &labels_path,
                format!("got {labels} labels for {images} images; the counts must be equal"),
            );
        }
        if let Some(label) = labels.bytes.iter().find(|&&l| l > 9) {
            return file_error(&labels_path, format!("the labels must be digits from 0 to 9, got {label}"));
        }
        let bytes = Tensor::try_from_bytes(&images.bytes, DType::U8, images.dims)?;
        let labels = Tensor::try_from_bytes(&labels.bytes, DType::U8, labels.dims)?;
        Ok(Digits {
            images: ops::div(&ops::to_dtype(&bytes, DType::F32)?, 255.0)?,
            labels: ops::to_dtype(&labels, DType::I64)?,
        })
    }
}

/// Returns the path of the compressed file if it exists, otherwise the path of the uncompressed file.
fn find(directory: &Path, name: &str) -> PathBuf {
    let packed = directory.join(format!("{name}.gz"));
    if packed.exists() { packed } else { directory.join(name) }
}
