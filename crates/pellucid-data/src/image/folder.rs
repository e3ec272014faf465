//! [`ImageFolder`]: a directory of images for each class.

use super::Image;
use crate::dataset::{Dataset, check_index};
use pellucid_derive::panicking_form;
use pellucid_tensor::{Error, Result, unwrap};
use std::path::{Path, PathBuf};

const OP: &str = "image_folder";

/// The images of a directory with one subdirectory per class, whose name is the class: `root/cat/1.png`,
/// `root/dog/2.jpg`. A sample is an RGB image and its class index in the sorted list of names.
///
/// Subdirectories of a class are searched recursively. Hidden files and files without an image extension are ignored.
/// Images of unsupported formats, such as `.webp` and `.gif`, return an error, because otherwise the data set would
/// silently be smaller than the directory.
///
/// ```no_run
/// use pellucid::data::transforms::{ImageTransform, Normalize, RandomHorizontalFlip, RandomResizedCrop};
/// use pellucid::data::{DataLoader, Dataset, ImageFolder, LoaderOptions};
///
/// let images = ImageFolder::new("pets/train")?;
/// println!("{} images of the classes {:?}", images.len(), images.classes());
/// let augment = (RandomResizedCrop::new([224, 224]), RandomHorizontalFlip::default());
/// let normalize = Normalize::imagenet();
/// let samples = images.map(move |(image, class)| Ok((normalize.to_tensor(&augment.apply(image)?)?, class)));
/// let options = LoaderOptions { batch_size: 64, shuffle: true, workers: 4, ..Default::default() };
/// for batch in DataLoader::new(samples, options).epoch() {
///     let (images, classes) = batch?;
/// }
/// # Ok::<(), pellucid::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ImageFolder {
    classes: Vec<String>,
    /// The path and the class of each image.
    samples: Vec<(PathBuf, i64)>,
    is_grayscale: bool,
}

impl ImageFolder {
    /// Lists the images of a directory. An image is read when its sample is accessed.
    ///
    /// # Errors
    /// [`Error::File`] if the directory cannot be read or has no subdirectories, a subdirectory contains no image, or
    /// an image is neither a PNG nor a JPEG.
    pub fn new(root: impl AsRef<Path>) -> Result<ImageFolder> {
        let root = root.as_ref();
        let folders: Vec<PathBuf> = entries(root)?.into_iter().filter(|path| path.is_dir()).collect();
        if folders.is_empty() {
            let reason = "the directory contains no subdirectories; create one per class";
            return Err(Error::file(OP, root, reason));
        }
        let (mut classes, mut samples, mut unsupported) = (Vec::new(), Vec::new(), Vec::new());
        for folder in folders {
            let before = samples.len();
            let class = classes.len() as i64;
            list_images(&folder, &mut |path| samples.push((path, class)), &mut unsupported)?;
            if samples.len() == before && unsupported.is_empty() {
                let reason = "the directory of a class contains no image (.png, .jpg or .jpeg); remove it, or add \
                              images";
                return Err(Error::file(OP, &folder, reason));
            }
            classes.push(folder.file_name().unwrap_or_default().to_string_lossy().into_owned());
        }
        if let Some(first) = unsupported.first() {
            let reason = format!(
                "the directory has {} images that are neither PNG nor JPEG, such as this one; convert them, or move them \
                 to another directory",
                unsupported.len()
            );
            return Err(Error::file(OP, first, reason));
        }
        Ok(ImageFolder { classes, samples, is_grayscale: false })
    }

    /// Sets the index of each class to the position of its name in this list, such as the
    /// [`classes`](ImageFolder::classes) of the training images. Otherwise, the indices change if a class is missing
    /// from the directory.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if a class of this directory is not in the list, or a name is repeated.
    #[panicking_form]
    pub fn try_with_classes<S: AsRef<str>>(self, classes: &[S]) -> Result<Self> {
        let classes: Vec<String> = classes.iter().map(|class| class.as_ref().to_string()).collect();
        if let Some((_, name)) = classes.iter().enumerate().find(|(k, name)| classes[..*k].contains(name)) {
            return Err(Error::invalid(OP, format!("the list of classes contains {name:?} twice")));
        }
        let class_index = |name: &String| {
            let position = classes.iter().position(|class| class == name);
            position.map(|position| position as i64).ok_or_else(|| {
                Error::invalid(OP, format!("the folder has the class {name:?}, which is not in the list {classes:?}"))
            })
        };
        let numbers = self.classes.iter().map(class_index).collect::<Result<Vec<i64>>>()?;
        let samples = self.samples.into_iter().map(|(path, class)| (path, numbers[class as usize])).collect();
        Ok(ImageFolder { classes, samples, ..self })
    }

    /// Converts all images to grayscale instead of RGB.
    #[must_use]
    pub fn grayscale(self) -> Self {
        ImageFolder { is_grayscale: true, ..self }
    }

    /// Returns the names of the classes in sorted order.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// Returns the path and the class of each image.
    #[doc(alias = "imgs")]
    pub fn samples(&self) -> &[(PathBuf, i64)] {
        &self.samples
    }
}

impl Dataset for ImageFolder {
    type Item = (Image, i64);

    fn len(&self) -> usize {
        self.samples.len()
    }

    fn get(&self, index: usize) -> Result<(Image, i64)> {
        check_index(index, self.samples.len())?;
        let (path, class) = &self.samples[index];
        let image = Image::read(path)?;
        let image = match (self.is_grayscale, image.channels()) {
            (true, 1) | (false, 3) => image,
            (true, _) => image.to_grayscale(),
            (false, _) => image.to_rgb(),
        };
        Ok((image, *class))
    }

    fn location(&self, index: usize) -> Option<String> {
        self.samples.get(index).map(|(path, _)| path.display().to_string())
    }
}

/// Returns the paths in a directory in sorted order, without hidden files.
fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let unreadable = |error| Error::unreadable_file(OP, folder, &error);
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        if !entry.file_name().as_encoded_bytes().starts_with(b".") {
            paths.push(entry.path());
        }
    }
    paths.sort();
    Ok(paths)
}

/// The file name extensions of supported image formats.
const SUPPORTED_EXTENSIONS: [&str; 3] = ["png", "jpg", "jpeg"];

/// The file name extensions of known image formats that are not supported.
const UNSUPPORTED_EXTENSIONS: [&str; 11] =
    ["avif", "bmp", "gif", "heic", "jfif", "jxl", "pgm", "ppm", "tif", "tiff", "webp"];

/// Calls `add` with the paths of all images in a directory and its subdirectories. Adds images of other formats to
/// `unsupported`.
fn list_images(folder: &Path, add: &mut impl FnMut(PathBuf), unsupported: &mut Vec<PathBuf>) -> Result<()> {
    for path in entries(folder)? {
        let extension = path.extension().map(|extension| extension.to_string_lossy().to_ascii_lowercase());
        let has_extension =
            |extensions: &[&str]| extension.as_deref().is_some_and(|extension| extensions.contains(&extension));
        // A link to a directory is not followed, because links can form a cycle.
        match path.is_dir() {
            true if path.is_symlink() => {}
            true => list_images(&path, add, unsupported)?,
            false if has_extension(&SUPPORTED_EXTENSIONS) => add(path),
            false if has_extension(&UNSUPPORTED_EXTENSIONS) => unsupported.push(path),
            false => {}
        }
    }
    Ok(())
}
