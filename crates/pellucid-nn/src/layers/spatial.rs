//! Helpers for layers over spatial axes: numbers for each axis, and inputs with or without a batch.

use pellucid_tensor::{Error, Result, Shape, Tensor, ops};

/// One number for each of N spatial axes, in their order. A single number applies to all axes.
///
/// ```
/// use pellucid::nn::PerAxis;
/// assert_eq!(PerAxis::<2>::from(3), PerAxis([3, 3]));
/// assert_eq!(PerAxis::from([3, 5]), PerAxis([3, 5]));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PerAxis<const N: usize>(pub [usize; N]);

impl<const N: usize> From<usize> for PerAxis<N> {
    fn from(all: usize) -> PerAxis<N> {
        PerAxis([all; N])
    }
}

impl<const N: usize> From<[usize; N]> for PerAxis<N> {
    fn from(each: [usize; N]) -> PerAxis<N> {
        PerAxis(each)
    }
}

/// Returns the values of an option of a layer, or an error with the remedy `help` if one of them is 0.
pub(super) fn positive<const N: usize>(
    layer: &'static str,
    option: &str,
    numbers: impl Into<PerAxis<N>>,
    help: &str,
) -> Result<[usize; N]> {
    let PerAxis(numbers) = numbers.into();
    ops::check_positive(layer, option, &numbers, help)?;
    Ok(numbers)
}

/// Selects one of three values for N = 1, 2 or 3 spatial axes.
pub(super) const fn by_axes<T: Copy, const N: usize>(each: [T; 3]) -> T {
    const { assert!(1 <= N && N <= 3, "the number of spatial axes must be 1, 2 or 3") };
    each[N - 1]
}

/// Returns the number of channels of an image `[C, spatial..]`, or of a batch `[N, C, spatial..]`.
pub(super) fn channels<const N: usize>(op: &'static str, input: &Shape) -> Result<usize> {
    match input.rank().checked_sub(N) {
        Some(lead @ (1 | 2)) => Ok(input[lead - 1]),
        _ => Err(Error::shapes(
            op,
            [input],
            format!("the input must have shape [N, C, ..] or [C, ..] with {N} spatial axes"),
        )),
    }
}

/// Returns an error if an input does not have the layer's number of channels. `make` returns the text of the call that
/// creates a layer for a number of channels.
pub(super) fn check_channels(
    op: &'static str,
    x: &Tensor,
    given: usize,
    expected: usize,
    make: impl FnOnce(usize) -> String,
) -> Result<()> {
    if given == expected {
        return Ok(());
    }
    let help = format!("the input has {given} channels, but the layer expects {expected}: {}", make(given));
    Err(Error::shapes(op, [x.shape()], help))
}

/// Applies `f` to a batch `[N, C, spatial..]`; a single image `[C, spatial..]` is passed as a batch of one.
pub(super) fn batched<const N: usize>(
    op: &'static str,
    x: &Tensor,
    f: impl FnOnce(&Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    channels::<N>(op, x.shape())?;
    if x.rank() == N + 2 { f(x) } else { ops::squeeze(&f(&ops::unsqueeze(x, 0)?)?, 0) }
}
