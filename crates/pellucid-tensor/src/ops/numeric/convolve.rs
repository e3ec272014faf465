//! Discrete convolution and correlation of sequences, as in NumPy.

use crate::ops::call::int_list::IntList;
use crate::ops::nn::window;
use crate::ops::nn::window::ConvOptions;
use crate::ops::primitive::{copy, view};
use crate::ops::products::matmul::matmul;
use crate::ops::shape::pad::{PaddingMode, pad};
use crate::ops::shape::rearrange;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::{DType, Error, Result};

/// The elements that [`convolve`] and [`correlate`] return, for sequences of lengths n and m.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConvolveMode {
    /// All n + m − 1 elements, including those for which the sequences overlap only partly.
    Full,
    /// The middle max(n, m) elements of the full result.
    Same,
    /// The |n − m| + 1 elements whose sums contain all elements of the shorter sequence.
    Valid,
}

/// Computes the elements `start..start + len` of the full correlation cₖ = Σⱼ aₖ₊ⱼ₋₍ₘ₋₁₎·vⱼ.
fn correlation_range(a: &Tensor, v: &Tensor, start: usize, len: usize) -> Result<Tensor> {
    let (n, m) = (a.size() as isize, v.size());
    // A negative padding crops the result.
    let ends = (m as isize - 1 - start as isize, (start + len) as isize - n);
    let padded = pad(a, [ends], PaddingMode::Constant(0.into()))?;
    if !a.dtype().is_float() {
        return matmul(&rearrange::windows(&padded, 0, m, 1)?, v);
    }
    let row = |t: &Tensor| view::reshape(t, IntList::from([1, 1, t.size()]));
    view::reshape(&window::conv1d(&row(&padded)?, &row(v)?, None, ConvOptions::default())?, [len])
}

/// Returns both sequences in their promoted dtype.
fn sequences(op: &'static str, a: &Tensor, v: &Tensor) -> Result<[Tensor; 2]> {
    if a.rank() != 1 || v.rank() != 1 || a.size() == 0 || v.size() == 0 {
        let help = "both inputs must be vectors of at least one element; conv1d() convolves batches";
        return Err(Error::shapes(op, [a.shape(), v.shape()], help));
    }
    let dtype = a.dtype().promote(v.dtype());
    if dtype == DType::Bool {
        return Err(Error::dtypes(
            op,
            [a.dtype(), v.dtype()],
            "the inputs must be numbers, not booleans; use to_dtype()",
        ));
    }
    Ok([copy::to_dtype(a, dtype)?, copy::to_dtype(v, dtype)?])
}

/// Returns the start and the length of the range of the full result that `mode` selects. `same` is the start for the
/// mode `Same`.
fn range(mode: ConvolveMode, n: usize, m: usize, same: usize) -> (usize, usize) {
    match mode {
        ConvolveMode::Full => (0, n + m - 1),
        ConvolveMode::Same => (same, n.max(m)),
        ConvolveMode::Valid => (n.min(m) - 1, n.abs_diff(m) + 1),
    }
}

/// Computes the convolution cₖ = Σⱼ aₖ₋ⱼ·vⱼ of two sequences.
///
/// ```
/// use pellucid::{Tensor, ops::ConvolveMode};
/// let (a, v) = (Tensor::from([1.0, 2.0, 3.0]), Tensor::from([0.0, 1.0, 0.5]));
/// assert_eq!(a.convolve(&v, ConvolveMode::Full).to_vec::<f64>(), [0.0, 1.0, 2.5, 4.0, 1.5]);
/// assert_eq!(a.convolve(&v, ConvolveMode::Same).to_vec::<f64>(), [1.0, 2.5, 4.0]);
/// ```
///
/// # Errors
/// [`Error::ShapeMismatch`] unless both are vectors with at least one element; [`Error::DTypeMismatch`] for bool.
#[tensor_method(autocast = Half)]
pub fn convolve(a: &Tensor, v: &Tensor, mode: ConvolveMode) -> Result<Tensor> {
    let [a, v] = sequences("convolve", a, v)?;
    let (start, len) = range(mode, a.size(), v.size(), (a.size().min(v.size()) - 1) / 2);
    correlation_range(&a, &view::flip(&v, 0)?, start, len)
}

/// Computes the cross-correlation cₖ = Σⱼ aₖ₊ⱼ·vⱼ of two sequences. In mode [`ConvolveMode::Full`], k starts at
/// 1 − m, where m is the length of v.
///
/// NumPy's default mode is [`ConvolveMode::Valid`].
///
/// # Errors
/// The errors of [`convolve`].
#[tensor_method(autocast = Half)]
pub fn correlate(a: &Tensor, v: &Tensor, mode: ConvolveMode) -> Result<Tensor> {
    let [a, v] = sequences("correlate", a, v)?;
    let (n, m) = (a.size(), v.size());
    let same = if n < m { n / 2 } else { (m - 1) / 2 };
    let (start, len) = range(mode, n, m, same);
    correlation_range(&a, &v, start, len)
}
