//! Collation of samples into batches: stacking, and padding of sequences.

use crate::random::{name_pair, vec_with_capacity};
use pellucid_nn::pad_sequence;
use pellucid_tensor::{DType, Device, Element, Error, Result, Shape, Tensor, bf16, f16, no_grad, ops};

/// A type of samples that can be collated into a batch. An error names the first sample and a sample that differs from
/// it.
///
/// | sample | batch |
/// | --- | --- |
/// | tensor of shape S | tensor `[N, S..]` |
/// | number or `bool` | tensor `[N]`; `usize` becomes `i64` |
/// | `[T; K]` or `Vec<T>` of numbers | tensor `[N, K]` |
/// | `String` | `Vec<String>` |
/// | tuple, array of tensors | tuple, array of batches |
/// | struct with `#[derive(Collate)]` | struct of batches |
///
/// ```
/// use pellucid::Tensor;
/// use pellucid::data::Collate;
///
/// /// A sample. The derive macro defines the struct `DigitBatch`, in which both fields are tensors.
/// #[derive(Collate)]
/// struct Digit {
///     image: Tensor,
///     class: i64,
/// }
///
/// let digit = |class| Digit { image: Tensor::from([0.5f32, 1.0]), class };
/// let batch: DigitBatch = Digit::collate(vec![digit(3), digit(7)])?;
/// assert_eq!(batch.image.shape().dims(), [2, 2]);
/// assert_eq!(batch.class.to_vec::<i64>(), [3, 7]);
/// # Ok::<(), pellucid::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be collated into a batch",
    note = "derive `Collate` for a struct, map the samples to tensors, or pass a function to `DataLoader::with_collate`"
)]
pub trait Collate: Sized {
    /// The type of a batch of these samples.
    type Batch: BatchToDevice + Send + 'static;

    /// Collates samples into a batch.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] and [`Error::DTypeMismatch`] if the shapes or dtypes of the samples differ;
    /// [`Error::InvalidArgument`] for an empty list; [`Error::OutOfMemory`].
    fn collate(samples: Vec<Self>) -> Result<Self::Batch>;
}

/// A batch that can be copied to a device.
pub trait BatchToDevice: Sized {
    /// Copies the tensors of the batch to a device.
    ///
    /// # Errors
    /// The errors of the device.
    fn to_device(self, device: Device) -> Result<Self>;
}

impl BatchToDevice for Tensor {
    fn to_device(self, device: Device) -> Result<Tensor> {
        self.try_to(device)
    }
}

impl<const K: usize> BatchToDevice for [Tensor; K] {
    fn to_device(self, device: Device) -> Result<Self> {
        try_each(&self, |tensor| tensor.try_to(device))
    }
}

/// Applies `f` to each element. Returns the first error.
pub(crate) fn try_each<T, R, const K: usize>(values: &[T; K], f: impl FnMut(&T) -> Result<R>) -> Result<[R; K]> {
    let results = values.iter().map(f).collect::<Result<Vec<R>>>()?;
    Ok(results.try_into().unwrap_or_else(|_| unreachable!("an array of K elements has K results")))
}

/// Values that are not tensors stay on the host.
impl BatchToDevice for Vec<String> {
    fn to_device(self, _: Device) -> Result<Self> {
        Ok(self)
    }
}

const OP: &str = "collate";

fn no_samples() -> Error {
    Error::invalid(OP, "a batch must have at least one sample")
}

impl Collate for Tensor {
    type Batch = Tensor;

    fn collate(samples: Vec<Tensor>) -> Result<Tensor> {
        let first = samples.first().ok_or_else(no_samples)?;
        if let Some(other) = samples.iter().position(|sample| sample.shape() != first.shape()) {
            let help = "the samples of a batch must have the same shape; resize or crop them, or pad sequences with \
                 pad_sequences";
            let help = format!("{} differ: {help}", name_pair([0, other], samples.len()));
            return Err(Error::shapes(OP, [first.shape(), samples[other].shape()], help));
        }
        if let Some(other) = samples.iter().position(|sample| sample.dtype() != first.dtype()) {
            let help = "the samples of a batch must have the same dtype; to_dtype converts a sample";
            let help = format!("{} differ: {help}", name_pair([0, other], samples.len()));
            return Err(Error::dtypes(OP, [first.dtype(), samples[other].dtype()], help));
        }
        ops::stack(&samples, 0)
    }
}

impl<const K: usize> Collate for [Tensor; K] {
    type Batch = [Tensor; K];

    fn collate(samples: Vec<[Tensor; K]>) -> Result<[Tensor; K]> {
        let fields: [usize; K] = std::array::from_fn(|field| field);
        try_each(&fields, |&field| Tensor::collate(samples.iter().map(|sample| sample[field].clone()).collect()))
    }
}

impl Collate for String {
    type Batch = Vec<String>;

    fn collate(samples: Vec<String>) -> Result<Vec<String>> {
        Ok(samples)
    }
}

/// Returns a tensor `[N, K]` from N lists of K numbers.
fn collate_rows<E: Element>(rows: &[impl AsRef<[E]>]) -> Result<Tensor> {
    let len = rows.first().ok_or_else(no_samples)?.as_ref().len();
    if let Some(other) = rows.iter().position(|row| row.as_ref().len() != len) {
        let shapes = [len, rows[other].as_ref().len()].map(|len| Shape::from([len]));
        let help = "the samples of a batch must have the same length; pad sequences with pad_sequences";
        let help = format!("{} differ: {help}", name_pair([0, other], rows.len()));
        return Err(Error::shapes(OP, shapes.iter(), help));
    }
    let mut values = vec_with_capacity(rows.len().saturating_mul(len))?;
    rows.iter().for_each(|row| values.extend_from_slice(row.as_ref()));
    Tensor::try_new(values, [rows.len(), len])
}

macro_rules! collate_numbers {
    ($($number:ty),*) => {$(
        impl Collate for $number {
            type Batch = Tensor;

            fn collate(samples: Vec<$number>) -> Result<Tensor> {
                let len = samples.len();
                Tensor::try_new(samples, [len])
            }
        }

        impl<const K: usize> Collate for [$number; K] {
            type Batch = Tensor;

            fn collate(samples: Vec<[$number; K]>) -> Result<Tensor> {
                collate_rows(&samples)
            }
        }

        impl Collate for Vec<$number> {
            type Batch = Tensor;

            fn collate(samples: Vec<Vec<$number>>) -> Result<Tensor> {
                collate_rows(&samples)
            }
        }
    )*};
}
collate_numbers!(f64, f32, f16, bf16, i64, i32, u8, bool);

impl Collate for usize {
    type Batch = Tensor;

    fn collate(samples: Vec<usize>) -> Result<Tensor> {
        let to_i64 = |sample: usize| {
            i64::try_from(sample)
                .map_err(|_| Error::invalid(OP, format!("a `usize` sample must be less than 2^63, got {sample}")))
        };
        i64::collate(samples.into_iter().map(to_i64).collect::<Result<_>>()?)
    }
}

macro_rules! collate_tuples {
    ($(($($part:ident $list:ident $field:tt),+)),+) => {$(
        impl<$($part: Collate),+> Collate for ($($part,)+) {
            type Batch = ($($part::Batch,)+);

            fn collate(samples: Vec<Self>) -> Result<Self::Batch> {
                $(let mut $list = vec_with_capacity(samples.len())?;)+
                for sample in samples {
                    $($list.push(sample.$field);)+
                }
                Ok(($($part::collate($list)?,)+))
            }
        }

        impl<$($part: BatchToDevice),+> BatchToDevice for ($($part,)+) {
            fn to_device(self, device: Device) -> Result<Self> {
                Ok(($(self.$field.to_device(device)?,)+))
            }
        }
    )+};
}
collate_tuples!(
    (A a 0),
    (A a 0, B b 1),
    (A a 0, B b 1, C c 2),
    (A a 0, B b 1, C c 2, D d 3),
    (A a 0, B b 1, C c 2, D d 3, E e 4)
);

/// Sequences of different lengths, padded to one tensor; see [`pad_sequences`].
#[derive(Clone, Debug)]
pub struct PaddedSequences {
    /// The sequences, padded to the longest: `[N, L, ..]`.
    pub values: Tensor,
    /// The length of each sequence: `i64` `[N]`.
    pub lengths: Tensor,
    /// True for the elements of a sequence, false for padding: `bool` `[N, L]`.
    pub mask: Tensor,
}

impl BatchToDevice for PaddedSequences {
    fn to_device(self, device: Device) -> Result<Self> {
        let [values, lengths, mask] = [self.values, self.lengths, self.mask].to_device(device)?;
        Ok(PaddedSequences { values, lengths, mask })
    }
}

/// Collates sequences `[Lᵢ, ..]` into one tensor `[N, max Lᵢ, ..]`, padded with `padding` at the end, as
/// [`pad_sequence`] does, without gradients and with a mask.
///
/// ```
/// use pellucid::Tensor;
/// use pellucid::data::pad_sequences;
/// let padded = pad_sequences(&[Tensor::from([1i64, 2, 3]), Tensor::from([4i64])], 0)?;
/// assert_eq!(padded.values.to_vec::<i64>(), [1, 2, 3, 4, 0, 0]);
/// assert_eq!(padded.lengths.to_vec::<i64>(), [3, 1]);
/// assert_eq!(padded.mask.to_vec::<bool>(), [true, true, true, true, false, false]);
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// # Errors
/// [`Error::InvalidArgument`] for an empty list; [`Error::ShapeMismatch`] if a sequence has no axes, or its other axes
/// differ; [`Error::DTypeMismatch`] if the dtypes differ; [`Error::OutOfMemory`].
#[doc(alias = "pad_sequence")]
pub fn pad_sequences(sequences: &[Tensor], padding: impl Into<pellucid_tensor::Scalar>) -> Result<PaddedSequences> {
    let _off = no_grad();
    let (values, lengths) = pad_sequence(sequences, true, padding).map_err(|mut error| {
        error.set_operation("pad_sequences");
        error
    })?;
    let positions = ops::arange(0i64, values.shape()[1] as i64, 1, DType::I64)?;
    let mask = ops::lt(&ops::unsqueeze(&positions, 0)?, &ops::unsqueeze(&lengths, 1)?)?;
    Ok(PaddedSequences { values, lengths, mask })
}
