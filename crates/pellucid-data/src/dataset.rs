//! Map-style data sets: samples by index.

use crate::collate::{Collate, try_each};
use crate::random::{for_sample, in_order, vec_with_capacity};
use pellucid_derive::panicking_form;
use pellucid_tensor::{DType, Error, Result, Tensor, ops, unwrap};
use std::any::Any;
use std::sync::{Arc, OnceLock};

/// A data set with samples by index, such as the rows of a table or the images of a directory. The worker threads of a
/// [`DataLoader`](crate::DataLoader) share it.
///
/// ```
/// use pellucid::data::Dataset;
/// use pellucid::Result;
///
/// /// The points of a parabola.
/// struct Parabola;
///
/// impl Dataset for Parabola {
///     type Item = (f32, f32);
///
///     fn len(&self) -> usize {
///         11
///     }
///
///     fn get(&self, index: usize) -> Result<(f32, f32)> {
///         let x = index as f32 / 10.0;
///         Ok((x, x * x))
///     }
/// }
///
/// let data = Parabola.map(|(x, y)| Ok((2.0 * x, y)));
/// assert_eq!(data.get(10)?, (2.0, 1.0));
/// # Ok::<(), pellucid::Error>(())
/// ```
pub trait Dataset: Send + Sync {
    /// The type of a sample.
    type Item: Send;

    /// Returns the number of samples.
    fn len(&self) -> usize;

    /// Returns true if the data set has no samples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a sample.
    ///
    /// # Errors
    /// [`Error::IndexOutOfBounds`] if the index is out of bounds; the errors of the source, such as [`Error::File`].
    fn get(&self, index: usize) -> Result<Self::Item>;

    /// Returns several samples, in the order of the indices. Implement this method if reading several samples in one
    /// call is faster. Compute each sample inside [`for_sample`].
    ///
    /// # Errors
    /// The errors of [`get`](Dataset::get).
    fn get_many(&self, indices: &[usize]) -> Result<Vec<Self::Item>> {
        let samples = indices.iter().enumerate();
        samples.map(|(i, &index)| for_sample(i, || self.get(index))).collect()
    }

    /// Returns several samples as a batch. Implement this method if the data set can create a batch without separate
    /// samples.
    ///
    /// # Errors
    /// The errors of [`get`](Dataset::get) and of [`Collate::collate`].
    fn get_batch(&self, indices: &[usize]) -> Result<<Self::Item as Collate>::Batch>
    where
        Self::Item: Collate,
    {
        let samples = samples_of(self, indices)?;
        in_order(|| Self::Item::collate(samples))
    }

    /// Returns the origin of a sample for error messages: `sample 17 of the underlying data set`, or the path of a
    /// file. A derived data set returns the location in the underlying data set. By default `None`.
    fn location(&self, index: usize) -> Option<String> {
        let _ = index;
        None
    }

    /// Returns a data set whose samples are `f(sample)`, computed at each access.
    fn map<T: Send, F: Fn(Self::Item) -> Result<T> + Send + Sync>(self, f: F) -> MapDataset<Self, F>
    where
        Self: Sized,
    {
        MapDataset { dataset: self, f }
    }

    /// Returns a data set of the samples with these indices, in this order.
    ///
    /// # Errors
    /// [`Error::IndexOutOfBounds`] if an index does not exist.
    fn subset(self, indices: Vec<usize>) -> Result<Subset<Self>>
    where
        Self: Sized,
    {
        Subset::new(self, indices)
    }

    /// Returns a data set of the samples of this data set, followed by the samples of `other`.
    fn concat<D: Dataset<Item = Self::Item>>(self, other: D) -> ConcatDataset<Self, D>
    where
        Self: Sized,
    {
        ConcatDataset { first: self, second: other }
    }

    /// Returns a data set that caches each sample in memory at its first access. Apply random transforms after the
    /// cache, because a cached sample does not change.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the list of the samples does not fit into memory.
    fn cached(self) -> Result<CachedDataset<Self>>
    where
        Self: Sized,
        Self::Item: Clone + Sync,
    {
        let mut samples = vec_with_capacity(self.len())?;
        samples.extend(std::iter::repeat_with(OnceLock::new).take(self.len()));
        Ok(CachedDataset { dataset: self, samples })
    }
}

/// Returns the result of [`Dataset::get_many`].
///
/// # Errors
/// [`Error::InvalidArgument`] if it does not return one sample for each index.
pub(crate) fn samples_of<D: Dataset + ?Sized>(dataset: &D, indices: &[usize]) -> Result<Vec<D::Item>> {
    let samples = dataset.get_many(indices)?;
    if samples.len() != indices.len() {
        let reason = format!(
            "get_many() must return a sample for each of {} indices, got {} samples",
            indices.len(),
            samples.len()
        );
        return Err(Error::invalid("dataset", reason));
    }
    Ok(samples)
}

/// Returns an error if a sample index is out of bounds.
pub(crate) fn check_index(index: usize, len: usize) -> Result<()> {
    if index < len {
        return Ok(());
    }
    Err(Error::IndexOutOfBounds { op: "dataset", index: index as i64, axis: 0, len })
}

macro_rules! forward_to_target {
    ($($pointer:ty),*) => {$(
        impl<D: Dataset + ?Sized> Dataset for $pointer {
            type Item = D::Item;

            fn len(&self) -> usize {
                (**self).len()
            }

            fn get(&self, index: usize) -> Result<D::Item> {
                (**self).get(index)
            }

            fn get_many(&self, indices: &[usize]) -> Result<Vec<D::Item>> {
                (**self).get_many(indices)
            }

            fn get_batch(&self, indices: &[usize]) -> Result<<D::Item as Collate>::Batch>
            where
                D::Item: Collate,
            {
                (**self).get_batch(indices)
            }

            fn location(&self, index: usize) -> Option<String> {
                (**self).location(index)
            }
        }
    )*};
}
forward_to_target!(&D, Box<D>, Arc<D>);

/// A data set of clones of the elements of a list; see [`from_vec`].
#[derive(Clone, Debug)]
pub struct VecDataset<T> {
    samples: Vec<T>,
}

/// Returns a data set of clones of the elements of a list. (`Vec` does not implement [`Dataset`]: methods such as `get`
/// would hide those of slices.)
///
/// ```
/// use pellucid::data::{Dataset, from_vec};
/// let words = from_vec(vec!["a".to_string(), "b".to_string()]);
/// assert_eq!(words.get(1)?, "b");
/// # Ok::<(), pellucid::Error>(())
/// ```
pub fn from_vec<T: Clone + Send + Sync>(samples: Vec<T>) -> VecDataset<T> {
    VecDataset { samples }
}

impl<T: Clone + Send + Sync> Dataset for VecDataset<T> {
    type Item = T;

    fn len(&self) -> usize {
        self.samples.len()
    }

    fn get(&self, index: usize) -> Result<T> {
        check_index(index, self.samples.len())?;
        Ok(self.samples[index].clone())
    }
}

/// A data set of K tensors whose first axis is the sample axis. A sample and a batch are arrays of K tensors.
///
/// ```
/// use pellucid::data::{Dataset, TensorDataset};
/// use pellucid::{DType, Tensor};
///
/// let data = TensorDataset::new(&[Tensor::zeros([10, 3], DType::F32), Tensor::arange(0i64, 10, 1)]);
/// let [x, y] = data.get(4)?;
/// assert_eq!((x.shape().dims(), y.item::<i64>()), (&[3][..], 4));
/// # Ok::<(), pellucid::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct TensorDataset<const K: usize = 2> {
    tensors: [Tensor; K],
    samples: usize,
}

impl<const K: usize> TensorDataset<K> {
    /// Creates a data set of tensors `[N, ..]`. `tensors` contains tensors or references to tensors.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] if the tensors have different numbers of samples; [`Error::InvalidArgument`] if
    /// `tensors` is empty.
    #[panicking_form]
    pub fn try_new<T: AsRef<Tensor>>(tensors: &[T; K]) -> Result<Self> {
        let tensors = tensors.each_ref().map(|tensor| tensor.as_ref().detach());
        let samples = shared_samples("tensor_dataset", &tensors)?;
        Ok(TensorDataset { tensors, samples })
    }

    /// Returns the tensors.
    pub fn tensors(&self) -> &[Tensor; K] {
        &self.tensors
    }
}

/// Returns the length of the first axis, which all tensors share.
pub(crate) fn shared_samples(op: &'static str, tensors: &[Tensor]) -> Result<usize> {
    let Some(first) = tensors.first() else {
        return Err(Error::invalid(op, "the list of tensors must have at least one tensor"));
    };
    let samples = first.shape().first().copied();
    if let Some(samples) = samples
        && tensors.iter().all(|tensor| tensor.shape().first() == Some(&samples))
    {
        return Ok(samples);
    }
    let lengths = tensors.iter().map(|tensor| tensor.shape().first().copied());
    let help = match lengths.min().flatten() {
        Some(min_length) => format!(
            "all tensors must have the same number of samples, the length of the first axis; shorten the longer ones \
             with narrow(0, 0, {min_length})"
        ),
        None => "every tensor must have at least one axis, the sample axis; unsqueeze(0) adds it".to_string(),
    };
    Err(Error::shapes(op, tensors.iter().map(|tensor| tensor.shape()), help))
}

/// Returns the samples with these indices, which are in bounds: `[indices.len(), ..]`.
pub(crate) fn select_samples(tensor: &Tensor, indices: &[usize]) -> Result<Tensor> {
    let is_range = indices.windows(2).all(|pair| pair[0] + 1 == pair[1]);
    if let (true, Some(&first)) = (is_range, indices.first()) {
        // A write into a batch must not change the data set.
        return ops::narrow(tensor, 0, first, indices.len()).and_then(|part| ops::copy(&part));
    }
    let positions: Vec<i64> = indices.iter().map(|&index| index as i64).collect();
    ops::index_select(tensor, 0, &Tensor::try_new(positions, [indices.len()])?)
}

impl<const K: usize> Dataset for TensorDataset<K> {
    type Item = [Tensor; K];

    fn len(&self) -> usize {
        self.samples
    }

    fn get(&self, index: usize) -> Result<[Tensor; K]> {
        check_index(index, self.samples)?;
        let sample = |tensor: &Tensor| ops::select(tensor, 0, index as isize).and_then(|sample| ops::copy(&sample));
        try_each(&self.tensors, sample)
    }

    fn get_batch(&self, indices: &[usize]) -> Result<<[Tensor; K] as Collate>::Batch>
    where
        [Tensor; K]: Collate,
    {
        indices.iter().try_for_each(|&index| check_index(index, self.samples))?;
        let batch = try_each(&self.tensors, |tensor| select_samples(tensor, indices))?;
        // The compiler cannot conclude from the bound of this method that the batch type is `[Tensor; K]`.
        let batch: Box<dyn Any> = Box::new(batch);
        Ok(*batch.downcast().unwrap_or_else(|_| unreachable!("a batch of K tensors is an array of K tensors")))
    }
}

/// A data set of `f(index)` for the indices 0..`len`; see [`from_fn`].
#[derive(Clone, Debug)]
pub struct FnDataset<F> {
    len: usize,
    f: F,
}

/// Returns a data set of `f(index)` for each index from 0 to `len` - 1.
///
/// ```
/// use pellucid::data::{Dataset, from_fn};
/// let squares = from_fn(10, |index| Ok(index * index));
/// assert_eq!(squares.get(3)?, 9);
/// # Ok::<(), pellucid::Error>(())
/// ```
pub fn from_fn<T: Send, F: Fn(usize) -> Result<T> + Send + Sync>(len: usize, f: F) -> FnDataset<F> {
    FnDataset { len, f }
}

impl<T: Send, F: Fn(usize) -> Result<T> + Send + Sync> Dataset for FnDataset<F> {
    type Item = T;

    fn len(&self) -> usize {
        self.len
    }

    fn get(&self, index: usize) -> Result<T> {
        check_index(index, self.len)?;
        (self.f)(index)
    }
}

/// A data set that applies a function to each sample; see [`Dataset::map`].
#[derive(Clone, Debug)]
pub struct MapDataset<D, F> {
    dataset: D,
    f: F,
}

impl<D: Dataset, T: Send, F: Fn(D::Item) -> Result<T> + Send + Sync> Dataset for MapDataset<D, F> {
    type Item = T;

    fn len(&self) -> usize {
        self.dataset.len()
    }

    fn get(&self, index: usize) -> Result<T> {
        (self.f)(self.dataset.get(index)?)
    }

    fn get_many(&self, indices: &[usize]) -> Result<Vec<T>> {
        let samples = samples_of(&self.dataset, indices)?.into_iter().enumerate();
        samples.map(|(i, sample)| for_sample(i, || (self.f)(sample))).collect()
    }

    fn location(&self, index: usize) -> Option<String> {
        self.dataset.location(index)
    }
}

/// Some samples of a data set; see [`Dataset::subset`].
#[derive(Clone, Debug)]
pub struct Subset<D> {
    dataset: D,
    indices: Vec<usize>,
}

impl<D: Dataset> Subset<D> {
    fn new(dataset: D, indices: Vec<usize>) -> Result<Subset<D>> {
        let len = dataset.len();
        indices.iter().try_for_each(|&index| check_index(index, len))?;
        Ok(Subset::from_valid(dataset, indices))
    }

    /// Creates a subset from indices that exist.
    pub(crate) fn from_valid(dataset: D, indices: Vec<usize>) -> Subset<D> {
        Subset { dataset, indices }
    }

    /// Returns the index of each sample in the underlying data set.
    pub fn indices(&self) -> &[usize] {
        &self.indices
    }

    /// Returns the underlying data set.
    pub fn dataset(&self) -> &D {
        &self.dataset
    }

    fn underlying_indices(&self, indices: &[usize]) -> Result<Vec<usize>> {
        let index_of = |&index: &usize| check_index(index, self.indices.len()).map(|()| self.indices[index]);
        indices.iter().map(index_of).collect()
    }
}

impl<D: Dataset> Dataset for Subset<D> {
    type Item = D::Item;

    fn len(&self) -> usize {
        self.indices.len()
    }

    fn get(&self, index: usize) -> Result<D::Item> {
        check_index(index, self.indices.len())?;
        self.dataset.get(self.indices[index])
    }

    fn get_many(&self, indices: &[usize]) -> Result<Vec<D::Item>> {
        self.dataset.get_many(&self.underlying_indices(indices)?)
    }

    fn get_batch(&self, indices: &[usize]) -> Result<<D::Item as Collate>::Batch>
    where
        D::Item: Collate,
    {
        self.dataset.get_batch(&self.underlying_indices(indices)?)
    }

    fn location(&self, index: usize) -> Option<String> {
        self.indices.get(index).map(|&index| location_in(&self.dataset, index, "the underlying data set"))
    }
}

/// Returns the location of a sample of `dataset` in a data set that is derived from it.
fn location_in(dataset: &impl Dataset, index: usize, name: &str) -> String {
    let further = dataset.location(index).map(|location| format!(", {location}")).unwrap_or_default();
    format!("sample {index} of {name}{further}")
}

/// The concatenation of two data sets; see [`Dataset::concat`].
#[derive(Clone, Debug)]
pub struct ConcatDataset<D, E> {
    first: D,
    second: E,
}

impl<D: Dataset, E: Dataset<Item = D::Item>> Dataset for ConcatDataset<D, E> {
    type Item = D::Item;

    fn len(&self) -> usize {
        self.first.len().saturating_add(self.second.len())
    }

    fn get(&self, index: usize) -> Result<D::Item> {
        check_index(index, self.len())?;
        match index.checked_sub(self.first.len()) {
            None => self.first.get(index),
            Some(index) => self.second.get(index),
        }
    }

    fn location(&self, index: usize) -> Option<String> {
        Some(match index.checked_sub(self.first.len()) {
            None => location_in(&self.first, index, "the first data set"),
            Some(index) => location_in(&self.second, index, "the second data set"),
        })
    }
}

/// A data set that caches its samples in memory; see [`Dataset::cached`].
#[derive(Clone, Debug)]
pub struct CachedDataset<D: Dataset> {
    dataset: D,
    samples: Vec<OnceLock<D::Item>>,
}

impl<D: Dataset<Item: Clone + Sync>> Dataset for CachedDataset<D> {
    type Item = D::Item;

    fn len(&self) -> usize {
        self.samples.len()
    }

    fn get(&self, index: usize) -> Result<D::Item> {
        check_index(index, self.samples.len())?;
        let cell = &self.samples[index];
        match cell.get() {
            Some(sample) => Ok(sample.clone()),
            // If two threads compute the sample, both return the one that was stored first.
            None => self.dataset.get(index).map(|sample| cell.get_or_init(|| sample).clone()),
        }
    }

    fn location(&self, index: usize) -> Option<String> {
        self.dataset.location(index)
    }
}

/// Reads class labels from an integer tensor `[N]`.
///
/// # Errors
/// [`Error::ShapeMismatch`] if the tensor does not have one axis; [`Error::DTypeMismatch`] if its dtype is not an
/// integer dtype.
pub(crate) fn read_labels(op: &'static str, labels: &Tensor) -> Result<Vec<i64>> {
    if labels.shape().rank() != 1 {
        return Err(Error::shapes(op, [labels.shape()], "the labels must have exactly one axis, the sample axis"));
    }
    if labels.dtype().is_float() {
        return Err(Error::dtypes(
            op,
            [labels.dtype()],
            "the labels must be integers; to_dtype(DType::I64) converts them",
        ));
    }
    ops::to_dtype(labels, DType::I64)?.try_to_vec()
}
