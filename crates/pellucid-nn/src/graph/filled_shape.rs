//! Compiled shapes, and the filling of batches up to them.

use pellucid_tensor::{Error, Result, Shape, Tensor, ops};

/// The name of the operation in errors.
pub(super) const INFERENCE: &str = "inference";

/// The compiled shape on which a batch runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct FilledShape {
    pub(super) rows: usize,
    /// The length of axis 1; `None` without compiled lengths, or if no input has an axis 1.
    pub(super) length: Option<usize>,
}

impl FilledShape {
    /// Returns the shape of an input that is filled up to this shape.
    pub(super) fn of(self, shape: &Shape) -> Shape {
        let filled = shape.with_axis(0, self.rows);
        match self.length {
            Some(length) if shape.rank() > 1 => filled.with_axis(1, length),
            _ => filled,
        }
    }
}

/// Returns an input that is filled up to a compiled shape: with zeros along axis 1, with its last row along axis 0.
///
/// Rows of zeros would be simpler, but may give NaN (a mean over no elements), which selects slower kernels.
pub(super) fn filled(x: &Tensor, fill: FilledShape) -> Result<Tensor> {
    let (shape, mut x) = (fill.of(x.shape()), x.clone());
    let more = |x: &Tensor, axis: usize| shape[axis] - x.shape()[axis];
    if x.rank() > 1 && more(&x, 1) > 0 {
        let zeros = ops::zeros(x.shape().with_axis(1, more(&x, 1)), x.dtype())?.try_to(x.device())?;
        x = ops::concatenate(&[&x, &zeros], 1)?;
    }
    match more(&x, 0) {
        0 => Ok(x),
        more => {
            let last = ops::narrow(&x, 0, x.shape()[0] - 1, 1)?;
            ops::concatenate(&[&x, &ops::broadcast_to(&last, x.shape().with_axis(0, more))?], 0)
        }
    }
}

/// Returns the values in ascending order, each once.
pub(super) fn ascending(what: &str, values: &[usize]) -> Result<Vec<usize>> {
    if values.is_empty() || values.contains(&0) {
        let reason =
            format!("the list of compiled {what}s must contain at least one, and none may be 0; got {values:?}");
        return Err(Error::invalid(INFERENCE, reason));
    }
    let mut values = values.to_vec();
    values.sort_unstable();
    values.dedup();
    Ok(values)
}
