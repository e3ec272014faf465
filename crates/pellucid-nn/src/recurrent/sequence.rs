//! Sequences of different lengths as one tensor: padded, or packed with their lengths.

use pellucid_tensor::{DType, Error, Result, Scalar, Tensor, ops};

/// Stacks sequences `[Tᵢ, ..]` to `[T, N, ..]` (or `[N, T, ..]`), padded with `value` to the longest. Also returns the
/// lengths of the sequences, `i64 [N]`. Gradients flow to each sequence. The list contains tensors or references.
///
/// ```
/// use pellucid::nn::{pad_sequence, unpad_sequence};
/// use pellucid::Tensor;
/// let (a, b) = (Tensor::from([1.0f32, 2.0, 3.0]), Tensor::from([4.0f32]));
/// let (padded, lengths) = pad_sequence(&[&a, &b], true, 0.0)?;
/// assert_eq!(padded.to_vec::<f32>(), [1.0, 2.0, 3.0, 4.0, 0.0, 0.0]);
/// assert_eq!(lengths.to_vec::<i64>(), [3, 1]);
/// assert_eq!(unpad_sequence(&padded, &lengths, true)?[1].to_vec::<f32>(), [4.0]);
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// # Errors
/// [`Error::ShapeMismatch`] if the sequences differ in an axis after the first; [`Error::DTypeMismatch`] if their
/// dtypes differ; [`Error::InvalidArgument`] for no sequence, and for a value that the dtype cannot represent.
pub fn pad_sequence<T: AsRef<Tensor>>(
    sequences: &[T],
    batch_first: bool,
    value: impl Into<Scalar>,
) -> Result<(Tensor, Tensor)> {
    let sequences: Vec<&Tensor> = sequences.iter().map(AsRef::as_ref).collect();
    pad_all("pad_sequence", &sequences, batch_first, value.into())
}

/// Computes [`pad_sequence`]. Errors name the operation `op`.
fn pad_all(op: &'static str, sequences: &[&Tensor], batch_first: bool, value: Scalar) -> Result<(Tensor, Tensor)> {
    let first = sequences.first().ok_or_else(|| Error::invalid(op, "the list of sequences must not be empty"))?;
    let differs = |t: &&Tensor| t.rank() == 0 || t.shape().get(1..) != first.shape().get(1..);
    if let Some(other) = sequences.iter().position(differs) {
        let help = format!("sequence {other}: the sequences must have shapes [T, ..] that differ in T only");
        return Err(Error::shapes(op, [first.shape(), sequences[other].shape()], help));
    }
    if let Some(other) = sequences.iter().position(|t| t.dtype() != first.dtype()) {
        let help = format!("sequence {other}: the sequences must have the same dtype; to_dtype() converts a sequence");
        return Err(Error::dtypes(op, [first.dtype(), sequences[other].dtype()], help));
    }
    let lengths: Vec<usize> = sequences.iter().map(|t| t.shape()[0]).collect();
    let longest = lengths.iter().copied().max().unwrap_or(0);
    let padded = sequences.iter().zip(&lengths).map(|(t, &length)| {
        let padding = ops::full(t.shape().with_axis(0, longest - length), value, t.dtype())?;
        ops::concatenate(&[t, &padding], 0)
    });
    let padded: Vec<Tensor> = padded.collect::<Result<_>>()?;
    let padded = ops::stack(&padded, if batch_first { 0 } else { 1 })?;
    let lengths: Vec<i64> = lengths.iter().map(|&l| l as i64).collect();
    Ok((padded, Tensor::new(&lengths[..], [lengths.len()])))
}

/// Returns the sequences that [`pad_sequence`] stacked, as views. The lengths are integers `[N]`.
///
/// # Errors
/// [`Error::ShapeMismatch`] if the number of lengths is not N; [`Error::DTypeMismatch`] unless the lengths are
/// integers; [`Error::InvalidArgument`] for a negative length and for one above T; [`Error::ReadInCapture`] in a
/// captured step, because the shapes depend on the lengths.
pub fn unpad_sequence(padded: &Tensor, lengths: &Tensor, batch_first: bool) -> Result<Vec<Tensor>> {
    if !lengths.dtype().is_int() {
        let help = "the lengths must be integers; use to_dtype(DType::I64)";
        return Err(Error::dtypes("unpad_sequence", [lengths.dtype()], help));
    }
    let lengths: Vec<i64> = ops::to_dtype(lengths, DType::I64)?.try_to_vec()?;
    let batch = if batch_first { 0 } else { 1 };
    if padded.rank() < 2 || padded.shape()[batch] != lengths.len() {
        let help = format!(
            "for N = {} lengths, the tensor must have shape [T, N, ..], or [N, T, ..] with batch_first",
            lengths.len()
        );
        return Err(Error::shapes("unpad_sequence", [padded.shape()], help));
    }
    let steps = padded.shape()[1 - batch];
    if let Some(length) = lengths.iter().find(|&&length| !(0..=steps as i64).contains(&length)) {
        let reason = format!("length {length} is not in 0..={steps}, the time steps of the shape {}", padded.shape());
        return Err(Error::invalid("unpad_sequence", reason));
    }
    let sequences = lengths.iter().enumerate().map(|(k, &length)| {
        let steps = ops::select(padded, batch as isize, k as isize)?;
        ops::narrow(&steps, 0, 0, length as usize)
    });
    sequences.collect()
}

/// Sequences of different lengths, each of which a recurrent layer runs to its own end
/// ([`forward_packed`](crate::RecurrentNetwork::try_forward_packed)).
///
/// Unlike PyTorch's type, it stores the padding: kernels run all sequences for T steps and ignore the padding. Apply
/// elementwise functions and layers over the features to `padded`:
/// `PackedSequence { padded: linear.forward(&y.padded), ..y }`.
#[derive(Clone, Debug)]
pub struct PackedSequence {
    /// The padded sequences, `[T, N, ..]`. Elements beyond the length of a sequence may have any value.
    pub padded: Tensor,
    /// The lengths of the sequences, integers `[N]`.
    pub lengths: Tensor,
}

/// Packs sequences `[Tᵢ, ..]`, in any order of their lengths. Gradients flow to each sequence. The list contains
/// tensors or references.
///
/// ```
/// use pellucid::nn::{Gru, pack_sequence, pad_packed_sequence, unpack_sequence};
/// use pellucid::{DType, Tensor};
/// let gru = Gru::new(3, 4);
/// let (short, long) = (Tensor::randn([2, 3], DType::F32), Tensor::randn([5, 3], DType::F32));
/// let (y, h) = gru.forward_packed(&pack_sequence(&[&short, &long])?, None);
/// let (padded, lengths) = pad_packed_sequence(&y, true, 0.0)?;
/// assert_eq!((padded.shape().dims(), h.shape().dims()), ([2, 5, 4].as_slice(), [1, 2, 4].as_slice()));
/// assert_eq!(lengths.to_vec::<i64>(), [2, 5]);
/// assert_eq!(unpack_sequence(&y)?[0].to_vec::<f32>(), gru.forward_sequence(&short, None).0.to_vec::<f32>());
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// # Errors
/// The errors of [`pad_sequence`].
pub fn pack_sequence<T: AsRef<Tensor>>(sequences: &[T]) -> Result<PackedSequence> {
    let sequences: Vec<&Tensor> = sequences.iter().map(AsRef::as_ref).collect();
    let (padded, lengths) = pad_all("pack_sequence", &sequences, false, Scalar::Int(0))?;
    Ok(PackedSequence { padded, lengths })
}

/// Packs sequences that are padded to one tensor, `[T, N, ..]` (or `[N, T, ..]`), in any order of their lengths. Unlike
/// in PyTorch, T may exceed the longest length, and the lengths may be on the device of x.
///
/// # Errors
/// [`Error::ShapeMismatch`] unless x has at least two axes and the lengths are `[N]`; [`Error::DTypeMismatch`] unless
/// the lengths are integers. A recurrent layer checks that they are in 0..=T.
pub fn pack_padded_sequence(x: &Tensor, lengths: &Tensor, batch_first: bool) -> Result<PackedSequence> {
    let op = "pack_padded_sequence";
    let batch = usize::from(!batch_first);
    if x.rank() < 2 || *lengths.shape() != [x.shape()[batch]] {
        let help = "x must have shape [T, N, ..], or [N, T, ..] with batch_first, and the lengths [N]";
        return Err(Error::shapes(op, [x.shape(), lengths.shape()], help));
    }
    if !lengths.dtype().is_int() {
        return Err(Error::dtypes(op, [lengths.dtype()], "the lengths must be integers; use to_dtype(DType::I64)"));
    }
    let padded = if batch_first { ops::transpose(x, 0, 1)? } else { x.clone() };
    Ok(PackedSequence { padded, lengths: lengths.clone() })
}

/// Returns packed sequences as one tensor `[T, N, ..]` (or `[N, T, ..]`) that contains `value` beyond the length of
/// each sequence, and the lengths. T is the length of the packed tensor.
///
/// # Errors
/// [`Error::InvalidArgument`] for a value that the dtype cannot represent; the errors of [`pack_padded_sequence`] for
/// fields that do not match.
pub fn pad_packed_sequence(
    packed: &PackedSequence,
    batch_first: bool,
    value: impl Into<Scalar>,
) -> Result<(Tensor, Tensor)> {
    let PackedSequence { padded: x, lengths } = pack_padded_sequence(&packed.padded, &packed.lengths, false)?;
    let step = ops::unsqueeze(&ops::arange(0, x.shape()[0] as i64, 1, DType::I64)?, 1)?;
    let mut is_padding = ops::ge(&step, &lengths)?;
    for _ in 2..x.rank() {
        is_padding = ops::unsqueeze(&is_padding, -1)?;
    }
    let padded = ops::masked_fill(&x, &is_padding, value)?;
    Ok((if batch_first { ops::transpose(&padded, 0, 1)? } else { padded }, lengths))
}

/// Returns the sequences of a packed tensor, as views.
///
/// # Errors
/// The errors of [`unpad_sequence`].
pub fn unpack_sequence(packed: &PackedSequence) -> Result<Vec<Tensor>> {
    unpad_sequence(&packed.padded, &packed.lengths, false)
}
