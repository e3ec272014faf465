//! Padding of sequences of different lengths to one tensor.

use pellucid_tensor::{Error, Result, Scalar, Tensor, ops};

/// Stacks sequences `[Tᵢ, ..]` to `[T, N, ..]` (or `[N, T, ..]`), padded with `value` to the longest. Also returns the
/// lengths of the sequences, `i64 [N]`. Gradients flow to each sequence. The list has tensors or references.
///
/// ```
/// use pellucid::nn::{pad_sequence, unpad_sequence};
/// use pellucid::Tensor;
/// let (a, b) = (Tensor::from([1.0f32, 2.0, 3.0]), Tensor::from([4.0f32]));
/// let (padded, lengths) = pad_sequence(&[&a, &b], true, 0.0)?;
/// assert_eq!(padded.to_vec::<f32>(), [1.0, 2.0, 3.0, 4.0, 0.0, 0.0]);
/// assert_eq!(lengths.to_vec::<i64>(), [3, 1]);
/// assert_eq!(unpad_sequence(&padded, &[3, 1], true)?[1].to_vec::<f32>(), [4.0]);
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// # Errors
/// [`Error::ShapeMismatch`] if the sequences differ in other axes; [`Error::InvalidArgument`] for no sequence, and for a
/// value that the dtype cannot represent.
#[doc(alias = "pack_sequence")]
pub fn pad_sequence<T: AsRef<Tensor>>(
    sequences: &[T],
    batch_first: bool,
    value: impl Into<Scalar>,
) -> Result<(Tensor, Tensor)> {
    pad_all(&sequences.iter().map(AsRef::as_ref).collect::<Vec<_>>(), batch_first, value.into())
}

fn pad_all(sequences: &[&Tensor], batch_first: bool, value: Scalar) -> Result<(Tensor, Tensor)> {
    let op = "pad_sequence";
    let misfit = || {
        Error::shapes(
            op,
            sequences.iter().map(|t| t.shape()),
            "the sequences [T, ..] must have equal shapes except for the length T",
        )
    };
    let lengths = sequences.iter().map(|t| t.shape().first().copied().ok_or_else(misfit));
    let lengths: Vec<usize> = lengths.collect::<Result<_>>()?;
    let Some(&longest) = lengths.iter().max() else {
        return Err(Error::invalid(op, "the list of sequences must not be empty"));
    };
    if sequences.iter().any(|t| t.shape()[1..] != sequences[0].shape()[1..]) {
        return Err(misfit());
    }
    let padded = sequences.iter().zip(&lengths).map(|(t, &length)| {
        let rest = ops::full(t.shape().with_axis(0, longest - length), value, t.dtype())?;
        ops::concatenate(&[t, &rest], 0)
    });
    let padded: Vec<Tensor> = padded.collect::<Result<_>>()?;
    let padded = ops::stack(&padded, if batch_first { 0 } else { 1 })?;
    let lengths: Vec<i64> = lengths.iter().map(|&l| l as i64).collect();
    Ok((padded, Tensor::new(&lengths[..], [lengths.len()])))
}

/// Returns the sequences that [`pad_sequence`] stacked, as views.
///
/// # Errors
/// [`Error::ShapeMismatch`] if the number of lengths is not N; [`Error::InvalidArgument`] for a length above T.
#[doc(alias = "pad_packed_sequence")]
pub fn unpad_sequence(padded: &Tensor, lengths: &[usize], batch_first: bool) -> Result<Vec<Tensor>> {
    let batch = if batch_first { 0 } else { 1 };
    if padded.rank() < 2 || padded.shape()[batch] != lengths.len() {
        let help = format!(
            "for N = {} lengths, the tensor must have shape [T, N, ..], or [N, T, ..] with batch_first",
            lengths.len()
        );
        return Err(Error::shapes("unpad_sequence", [padded.shape()], help));
    }
    let steps = padded.shape()[1 - batch];
    if let Some(length) = lengths.iter().find(|&&length| length > steps) {
        let reason = format!("length {length} exceeds the {steps} time steps of the shape {}", padded.shape());
        return Err(Error::invalid("unpad_sequence", reason));
    }
    let one =
        |(k, &length): (usize, &usize)| ops::narrow(&ops::select(padded, batch as isize, k as isize)?, 0, 0, length);
    lengths.iter().enumerate().map(one).collect()
}
