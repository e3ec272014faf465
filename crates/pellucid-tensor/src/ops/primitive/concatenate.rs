//! Concatenation, and its transpose, split.

use crate::array::host_values;
use crate::autograd::{apply, apply_one, interface::*};
use crate::ops::call::check;
use crate::ops::primitive::copy::write_array;
use crate::ops::primitive::{copy, view};
use crate::tensor::Tensor;
use pellucid_derive::{operation, tensor_method};
use pellucid_ir::kernel::Meta;
use pellucid_ir::{DType, Error, Result, from_integers};
use smallvec::SmallVec;

struct Concatenate {
    axis: usize,
    lengths: Vec<usize>,
}

impl Operation for Concatenate {
    fn name(&self) -> &'static str {
        "concatenate"
    }
    fn forward(&self, inputs: &[&Array], _: &mut SaveForBackward) -> Result<Arrays> {
        let first = inputs[0];
        let device = Array::common_device("concatenate", inputs)?;
        let length = self.lengths.iter().fold(0usize, |sum, &len| sum.saturating_add(len));
        let shape = first.shape().with_axis(self.axis, length);
        let out = Array::new(device, first.dtype(), shape)?;
        let mut start = 0;
        for (array, &len) in inputs.iter().zip(&self.lengths) {
            write_array(array, &out.view(out.layout().slice(self.axis, start, 1, len)))?;
            start += len;
        }
        Ok(smallvec![out])
    }
    fn backward(&self, _: &SavedTensors, grads: &OutputGradients, needs: NeedsInputGrad) -> Result<InputGradients> {
        let g = grads.get(0)?;
        let mut start = 0;
        let mut gradients = InputGradients::new();
        for (i, &len) in self.lengths.iter().enumerate() {
            let part = needs.contains(i).then(|| view::narrow(&g, self.axis as isize, start, len));
            gradients.push(part.transpose()?);
            start += len;
        }
        Ok(gradients)
    }
}

/// Returns references to the tensors of a list of tensors or handles.
pub(in crate::ops) fn as_refs<T: AsRef<Tensor>>(tensors: &[T]) -> SmallVec<[&Tensor; 8]> {
    tensors.iter().map(AsRef::as_ref).collect()
}

/// Concatenates tensors along an existing axis. The ranks, and the lengths of all other axes, must be equal (no
/// broadcasting); dtypes are promoted. The list contains tensors or references.
///
/// ```
/// use pellucid::{Tensor, ops};
/// let (x, y) = (Tensor::from([1, 2]), Tensor::from([3]));
/// assert_eq!(ops::concatenate(&[&x, &y], 0)?.to_vec::<i64>(), [1, 2, 3]);
/// let list: Vec<Tensor> = vec![x, y];
/// assert_eq!(ops::concatenate(&list, 0)?.to_vec::<i64>(), [1, 2, 3]);
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// # Errors
/// [`Error::InvalidArgument`] for an empty list, [`Error::AxisOutOfRange`], [`Error::ShapeMismatch`].
#[doc(alias("cat", "concat"))]
#[operation]
pub fn concatenate<T: AsRef<Tensor>>(tensors: &[T], axis: isize) -> Result<Tensor> {
    concatenate_all(&as_refs(tensors), axis)
}

fn concatenate_all(tensors: &[&Tensor], axis: isize) -> Result<Tensor> {
    let Some(first) = tensors.first() else {
        return Err(Error::invalid(
            "concatenate",
            "the list of tensors is empty; create an empty result with zeros(shape, dtype)",
        ));
    };
    let axis = first.shape().axis("concatenate", axis)?;
    let fits =
        |t: &Tensor| t.rank() == first.rank() && (0..t.rank()).all(|k| k == axis || t.shape()[k] == first.shape()[k]);
    if let Some((index, other)) = tensors.iter().enumerate().find(|(_, t)| !fits(t)) {
        let (shape, expected) = (other.shape(), first.shape());
        let same_rank = other.rank() == first.rank();
        let differs = |&k: &usize| same_rank && k != axis && shape[k] != expected[k];
        let help = match (0..first.rank()).find(differs) {
            Some(k) => format!(
                "all axes except {axis} must have equal lengths, but axis {k} has length {} in tensor 0 and {} in tensor \
                 {index}; narrow() or pad() one of them, or concatenate along axis {k}",
                expected[k], shape[k]
            ),
            None => format!(
                "the ranks must be equal, but tensor 0 has rank {} and tensor {index} rank {}; unsqueeze() or reshape() \
                 one of them",
                first.rank(),
                other.rank()
            ),
        };
        return Err(Error::shapes("concatenate", tensors.iter().map(|t| t.shape()), help));
    }
    let dtype = tensors.iter().map(|t| t.dtype()).fold(first.dtype(), DType::promote);
    let cast: SmallVec<[Tensor; 4]> = tensors.iter().map(|t| copy::to_dtype(t, dtype)).collect::<Result<_>>()?;
    let lengths = tensors.iter().map(|t| t.shape()[axis]).collect();
    apply_one(Concatenate { axis, lengths }, &cast.iter().collect::<SmallVec<[&Tensor; 4]>>())
}

/// Computes all parts of a split as the outputs of one node. Its gradient is the concatenation of the gradients of the
/// parts. A separate node for each part would allocate one gradient of the full shape per part.
struct Split {
    axis: usize,
    lengths: Vec<usize>,
}

impl Operation for Split {
    fn name(&self) -> &'static str {
        "split"
    }
    fn forward(&self, inputs: &[&Array], _: &mut SaveForBackward) -> Result<Arrays> {
        let mut start = 0;
        let part = |&len: &usize| {
            let layout = inputs[0].layout().slice(self.axis, start, 1, len);
            start += len;
            inputs[0].view(layout)
        };
        Ok(self.lengths.iter().map(part).collect())
    }
    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        // Adjacent parts without a gradient become one part of zeros.
        let shape = saved.input_shape(0);
        let zeros = |len: usize| {
            let meta = Meta { shape: shape.with_axis(self.axis, len), dtype: saved.input_dtype(0) };
            grads.zeros(meta, saved.input_device(0))
        };
        let (mut parts, mut absent) = (Vec::new(), 0);
        for (i, &len) in self.lengths.iter().enumerate() {
            let Some(gradient) = grads.try_get(i) else {
                absent += len;
                continue;
            };
            if absent > 0 {
                parts.push(zeros(std::mem::take(&mut absent))?);
            }
            parts.push(gradient.clone());
        }
        if absent > 0 {
            parts.push(zeros(absent)?);
        }
        let parts: Vec<&Tensor> = parts.iter().collect();
        Ok(smallvec![Some(concatenate(&parts, self.axis as isize)?)])
    }
    fn is_view(&self) -> bool {
        true
    }
}

/// The lengths of the results of [`split`].
///
/// Can be created from an integer, the length of every result, or from a list of lengths.
#[derive(Clone, Debug)]
pub enum SplitSizes {
    /// The length of every result; the last one may be shorter.
    Each(isize),
    /// The length of each result.
    List(Vec<isize>),
}

from_integers!(SplitSizes, number: SplitSizes::Each, list: |list| SplitSizes::List(Iterator::collect(list)));

/// Splits x along an axis into views. `sizes` is the length of every view (the last one may be shorter), or a list of
/// the lengths.
///
/// [`tensor_split`](crate::ops::tensor_split) splits into a number of results or before indices, like NumPy's `split`.
///
/// ```
/// use pellucid::{DType, Tensor};
/// let lengths = |parts: Vec<Tensor>| parts.iter().map(|part| part.shape()[0]).collect::<Vec<_>>();
/// let x = Tensor::zeros([10, 2], DType::F32);
/// assert_eq!(lengths(x.split(4, 0)), [4, 4, 2]);
/// assert_eq!(lengths(x.split([2, 3, 5], 0)), [2, 3, 5]);
/// ```
///
/// # Errors
/// [`Error::AxisOutOfRange`]; [`Error::InvalidArgument`] for lengths that do not add up to the length of the axis, and
/// for a uniform length below 1; [`Error::OutOfMemory`] if memory cannot hold the results.
#[doc(alias = "split_with_sizes")]
#[tensor_method]
pub fn split(x: &Tensor, sizes: impl Into<SplitSizes>, axis: isize) -> Result<Vec<Tensor>> {
    let at = x.shape().axis("split", axis)?;
    let len = x.shape()[at];
    let lengths = match sizes.into() {
        SplitSizes::Each(_) if len == 0 => vec![0],
        SplitSizes::Each(size) if size < 1 => {
            return Err(Error::invalid("split", format!("parts must have a length of at least 1, got {size}")));
        }
        SplitSizes::Each(size) => {
            let size = size as usize;
            check::affordable_parts(len.div_ceil(size))?;
            host_values(len.div_ceil(size), (0..len).step_by(size).map(|start| size.min(len - start)))?
        }
        SplitSizes::List(list) => {
            let lengths: Vec<usize> = list.iter().filter_map(|&l| usize::try_from(l).ok()).collect();
            let sum = lengths.iter().try_fold(0usize, |sum, &l| sum.checked_add(l));
            if lengths.len() != list.len() || sum != Some(len) {
                let reason = format!(
                    "lengths {list:?} do not add up to {len}, the length of axis {at}; change them, or narrow() x"
                );
                return Err(Error::invalid("split", reason));
            }
            lengths
        }
    };
    if lengths.is_empty() {
        return Ok(Vec::new());
    }
    Ok(apply(Split { axis: at, lengths }, &[x])?.into_vec())
}
