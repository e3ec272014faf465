//! [`IntList`]: lists of lengths, axes and counts, as callers write them.

use pellucid_ir::{Error, Result, Shape, from_integers};
use smallvec::SmallVec;

/// A list of integers: `2`, `[2, 3]`, `(2, 3)`, a slice or a vector of any integer type, or `()` for the empty list.
///
/// ```
/// use pellucid::{DType, Tensor};
/// let x = Tensor::zeros((2, 3, 4), DType::F32);
/// assert_eq!(x.reshape((6, -1)).shape().dims(), [6, 4]);
/// assert_eq!(x.permute([2, 0, 1]).shape().dims(), [4, 2, 3]);
/// assert_eq!(x.tile(2).shape().dims(), [2, 3, 8]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IntList(SmallVec<[isize; 6]>);

from_integers!(IntList, number: |n| IntList(SmallVec::from_slice(&[n])), list: |list| IntList(Iterator::collect(list)));

impl From<&Shape> for IntList {
    fn from(shape: &Shape) -> IntList {
        IntList::from(shape.dims())
    }
}

impl From<Shape> for IntList {
    fn from(shape: Shape) -> IntList {
        IntList::from(shape.dims())
    }
}

impl std::ops::Deref for IntList {
    type Target = [isize];
    fn deref(&self) -> &[isize] {
        &self.0
    }
}

impl IntList {
    /// Returns the integers as counts; an error names the operation and the first negative number.
    pub(in crate::ops) fn counts(&self, op: &'static str) -> Result<SmallVec<[usize; 6]>> {
        let count =
            |&n: &isize| usize::try_from(n).map_err(|_| Error::invalid(op, format!("counts must be ≥ 0, got {n}")));
        self.iter().map(count).collect()
    }

    /// Resolves the integers as distinct axes of `shape`.
    pub(in crate::ops) fn axes(&self, op: &'static str, shape: &Shape) -> Result<SmallVec<[usize; 6]>> {
        distinct_axes(op, self, shape.rank(), shape)
    }

    /// Returns the lengths as a shape. A length of −1 is replaced by the length with which the shape has `size`
    /// elements. Without −1, the number of elements is not checked. Errors show `from`, the shape of the tensor.
    pub(in crate::ops) fn infer_shape(&self, op: &'static str, from: &Shape, size: usize) -> Result<Shape> {
        let IntList(dims) = self;
        let open = dims.iter().filter(|&&d| d == -1).count();
        if open > 1 || dims.iter().any(|&d| d < -1) {
            let reason = format!("each length must be ≥ 0, and at most one may be -1, got {dims:?}");
            return Err(Error::invalid(op, reason));
        }
        let others_size = dims.iter().filter(|&&d| d >= 0).fold(1usize, |n, &d| n.saturating_mul(d as usize));
        if open == 1 && others_size == 0 {
            let reason = format!("a length of -1 cannot be inferred if another length is 0, got {dims:?}");
            return Err(Error::invalid(op, reason));
        }
        let inferred = size.checked_div(others_size).unwrap_or(0);
        if open == 1 && inferred.saturating_mul(others_size) != size {
            let help = format!(
                "{size} elements cannot fill {dims:?}, because the product of the other lengths, {others_size}, does \
                 not divide {size}; change a length"
            );
            return Err(Error::shapes(op, [from], help));
        }
        Ok(dims.iter().map(|&d| if d == -1 { inferred } else { d as usize }).collect())
    }
}

/// Resolves signed, distinct axes of a tensor of rank `rank`. Errors show `shape`.
pub(in crate::ops) fn distinct_axes(
    op: &'static str,
    list: &[isize],
    rank: usize,
    shape: &Shape,
) -> Result<SmallVec<[usize; 6]>> {
    let mut axes = SmallVec::new();
    for &axis in list {
        let index = if axis < 0 { axis.saturating_add(rank as isize) } else { axis };
        if index < 0 || index >= rank as isize {
            return Err(Error::AxisOutOfRange { op, axis, shape: shape.clone() });
        }
        if axes.contains(&(index as usize)) {
            return Err(Error::invalid(op, format!("axis {index} is named twice in {list:?}; remove one")));
        }
        axes.push(index as usize);
    }
    Ok(axes)
}
