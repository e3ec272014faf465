//! Shapes and strided layouts, which map indices to positions in a storage.
//!
//! Element (i₀, i₁, ..) of an array is at position `offset + Σ iₖ·strideₖ`, counted in elements. Views
//! (transposes, slices, flips, broadcasts) are new layouts over the same storage and need no
//! kernel. A stride may be negative (flip) or 0 (broadcast).

use crate::error::Error;
use crate::inline_vec::InlineVec;
use smallvec::SmallVec;
use std::fmt;

/// The number of axes that are stored inline; higher ranks need a heap allocation.
pub const INLINE_AXES: usize = 6;

/// The length of every axis, outermost first. A 0-d array has the empty shape and one element.
///
/// A shape is written as a number, an array, a tuple, a slice or a vector of any integer type:
///
/// ```
/// # extern crate pellucid_ir as pellucid;
/// use pellucid::Shape;
/// let (rows, columns) = (2usize, 3i64);
/// assert_eq!(Shape::from((rows, columns)), [2, 3]);
/// assert_eq!(Shape::from([2, 3]), Shape::from(vec![2usize, 3]));
/// assert_eq!((Shape::from(4).rank(), Shape::from(()).rank()), (1, 0));
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Shape(InlineVec<usize, INLINE_AXES>);

impl Shape {
    /// Returns the shape of a 0-d array.
    #[inline]
    pub fn scalar() -> Shape {
        Shape::default()
    }

    /// Returns the length of every axis.
    #[inline]
    pub fn dims(&self) -> &[usize] {
        &self.0
    }

    /// Returns the number of axes.
    #[inline]
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// Returns the number of elements, the product of the lengths. Array constructors check that eight times this
    /// number fits `isize`.
    #[inline]
    pub fn size(&self) -> usize {
        self.0.iter().product()
    }

    /// Returns true if a length was negative when the shape was created.
    #[inline]
    pub fn has_negative_length(&self) -> bool {
        self.0.iter().any(|&d| (d as isize) < 0)
    }

    /// Returns the number of elements; `None` if a length is negative, or if the size in bytes, at 8 bytes for each
    /// element, does not fit `isize`.
    ///
    /// Axes of length 0 count as 1 for this check.
    #[inline]
    pub fn checked_size(&self) -> Option<usize> {
        let (mut bytes, mut any) = (8isize, true);
        for &d in self.0.iter() {
            any &= d != 0;
            bytes = bytes.checked_mul(isize::try_from(d.max(1)).ok()?)?;
        }
        Some(if any { bytes as usize / 8 } else { 0 })
    }

    /// Returns row-major (C order) strides, in elements.
    #[inline]
    pub fn contiguous_strides(&self) -> Strides {
        let mut strides = Strides::repeated(0, self.rank());
        let mut step = 1isize;
        for (stride, &dim) in strides.iter_mut().zip(&**self).rev() {
            *stride = step;
            step *= dim.max(1) as isize;
        }
        strides
    }

    /// Broadcasts two shapes by NumPy's rule: axes are aligned from the last axis, and an axis that is missing or of
    /// length 1 is repeated. Returns `None` if the shapes do not broadcast.
    #[inline]
    pub fn broadcast(&self, other: &Shape) -> Option<Shape> {
        if self == other {
            return Some(self.clone());
        }
        let (long, short) = if self.rank() >= other.rank() { (self, other) } else { (other, self) };
        let new_axes = long.rank() - short.rank();
        let mut out = long.clone();
        for (o, &s) in out.0[new_axes..].iter_mut().zip(&**short) {
            match (*o, s) {
                (a, b) if a == b => {}
                (1, b) => *o = b,
                (_, 1) => {}
                _ => return None,
            }
        }
        Some(out)
    }

    /// Returns the shape to which all `shapes` broadcast; `None` if there is no such shape.
    pub fn broadcast_all<'a>(shapes: impl IntoIterator<Item = &'a Shape>) -> Option<Shape> {
        let mut shapes = shapes.into_iter();
        let first = shapes.next().cloned().unwrap_or_else(Shape::scalar);
        shapes.try_fold(first, |all, shape| all.broadcast(shape))
    }

    /// Returns true if this shape broadcasts to `target` by NumPy's rule.
    #[inline]
    pub fn broadcasts_to(&self, target: &Shape) -> bool {
        let fits = |new_axes: usize| self.iter().zip(&target[new_axes..]).all(|(&dim, &len)| dim == len || dim == 1);
        self == target || target.rank().checked_sub(self.rank()).is_some_and(fits)
    }

    /// Returns true if both shapes broadcast to a shape with as many elements as each of them has, so that no element
    /// repeats.
    fn aligns_without_repetition(&self, other: &Shape) -> bool {
        let size = self.size();
        size == other.size() && self.broadcast(other).is_some_and(|shape| shape.size() == size)
    }

    /// Resolves a signed axis index; −1 is the last axis.
    ///
    /// # Errors
    /// [`Error::AxisOutOfRange`], which names the operation `op`.
    pub fn axis(&self, op: &'static str, axis: isize) -> Result<usize, Error> {
        let rank = self.rank() as isize;
        if axis >= -rank && axis < rank {
            Ok((if axis < 0 { axis + rank } else { axis }) as usize)
        } else {
            Err(Error::AxisOutOfRange { op, axis, shape: self.clone() })
        }
    }

    /// Returns the shape with the length of `axis` replaced by `len`.
    pub fn with_axis(&self, axis: usize, len: usize) -> Shape {
        let mut out = self.clone();
        out.0[axis] = len;
        out
    }
}

impl std::ops::Deref for Shape {
    type Target = [usize];
    #[inline]
    fn deref(&self) -> &[usize] {
        &self.0
    }
}

impl std::ops::DerefMut for Shape {
    fn deref_mut(&mut self) -> &mut [usize] {
        &mut self.0
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "shape {}, strides {:?}, offset {}", self.shape, self.strides(), self.offset)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, d) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            // A length above `isize::MAX` represents a negative one, see `from_lengths`.
            write!(f, "{}", *d as isize)?;
        }
        f.write_str("]")
    }
}

impl FromIterator<usize> for Shape {
    fn from_iter<I: IntoIterator<Item = usize>>(iter: I) -> Shape {
        Shape(iter.into_iter().collect())
    }
}

/// Creates a shape from the lengths of its axes. A negative length is stored as a number above the limit of all
/// lengths, which [`Shape::checked_size`] rejects.
#[inline]
fn from_lengths(lengths: impl Iterator<Item = isize>) -> Shape {
    lengths.map(|len| len as usize).collect()
}

crate::from_integers!(Shape, number: |len| from_lengths([len].into_iter()), list: from_lengths);

impl From<&Shape> for Shape {
    fn from(shape: &Shape) -> Shape {
        shape.clone()
    }
}

impl PartialEq<[usize]> for Shape {
    #[inline]
    fn eq(&self, other: &[usize]) -> bool {
        self.dims() == other
    }
}

impl<const N: usize> PartialEq<[usize; N]> for Shape {
    #[inline]
    fn eq(&self, other: &[usize; N]) -> bool {
        self.dims() == other
    }
}

impl<const N: usize> PartialEq<[usize; N]> for &Shape {
    #[inline]
    fn eq(&self, other: &[usize; N]) -> bool {
        self.dims() == other
    }
}

/// Strides in elements, one for each axis.
pub type Strides = InlineVec<isize, INLINE_AXES>;

/// How the elements of two operands overlap in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Overlap {
    /// No element shares a byte with an element of the other operand.
    Disjoint,
    /// Both operands have the same elements in the same order, even after both are broadcast to a common shape. For a
    /// column and a row over the same memory this is false.
    Same,
    /// Elements may share bytes, with different indices in the two operands.
    Partial,
}

/// The shape, strides and offset of an array in its storage, in elements.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Layout {
    shape: Shape,
    offset: usize,
    /// `None` for row-major order without gaps, the most frequent case: the shape then determines the strides.
    strides: Option<Box<Strides>>,
}

impl Layout {
    /// Creates the row-major layout of `shape` at the start of a storage.
    #[inline]
    pub fn contiguous(shape: Shape) -> Layout {
        Layout::contiguous_from(shape, 0)
    }

    /// Creates the row-major layout of `shape` at element `offset` of a storage.
    #[inline]
    pub fn contiguous_from(shape: Shape, offset: usize) -> Layout {
        Layout { shape, offset, strides: None }
    }

    /// Creates a layout with the given strides and offset, in elements.
    ///
    /// # Panics
    /// Panics if the number of strides differs from the rank, or an element has a negative position.
    #[track_caller]
    pub fn strided(shape: Shape, strides: Strides, offset: usize) -> Layout {
        assert_eq!(shape.rank(), strides.len(), "a layout must have one stride for each axis");
        let strides = (!is_contiguous(&shape, &strides)).then(|| Box::new(strides));
        let layout = Layout { shape, offset, strides };
        let start = layout.extent().start;
        assert!(start >= 0, "a layout must not have elements before the start of its storage, got position {start}");
        layout
    }

    /// Returns the length of every axis.
    #[inline]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Returns the stride of each axis, in elements.
    #[inline]
    pub fn strides(&self) -> Strides {
        match &self.strides {
            None => self.shape.contiguous_strides(),
            Some(strides) => (**strides).clone(),
        }
    }

    /// Returns the position of element (0, 0, ..) in the storage.
    #[inline]
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Returns true if the elements are stored in row-major order without gaps, at any offset.
    #[inline]
    pub fn is_contiguous(&self) -> bool {
        self.strides.is_none()
    }

    /// Returns true if an axis longer than 1 has stride 0; several indices then refer to one element.
    #[inline]
    pub fn is_broadcast(&self) -> bool {
        let stretched = |strides: &Strides| self.shape.iter().zip(&**strides).any(|(&d, &s)| s == 0 && d > 1);
        self.strides.as_deref().is_some_and(stretched)
    }

    /// Returns the half-open range of element positions of the layout, empty if and only if the layout has no element.
    /// Positions saturate at the limits of `isize`.
    #[inline]
    pub fn extent(&self) -> std::ops::Range<isize> {
        let start = self.offset as isize;
        if self.shape.contains(&0) {
            return start..start;
        }
        let (mut low, mut high) = (start, start);
        match &self.strides {
            None => high = high.saturating_add(self.shape.size() as isize - 1),
            Some(strides) => {
                for (&dim, &stride) in self.shape.iter().zip(&***strides) {
                    let reach = (dim as isize - 1).saturating_mul(stride);
                    if reach < 0 { low = low.saturating_add(reach) } else { high = high.saturating_add(reach) }
                }
            }
        }
        low.min(isize::MAX - 1)..high.saturating_add(1)
    }

    /// Returns the number of elements of the storage that a kernel with this operand reads or writes. Elements that a
    /// broadcast or windows repeat count once.
    pub fn accessed_elements(&self) -> usize {
        if self.may_repeat() { self.extent().len() } else { self.shape.size() }
    }

    /// Returns the positions of all elements in the storage, in row-major order, counted in elements.
    pub fn positions(&self) -> impl Iterator<Item = usize> + '_ {
        let (dims, strides) = (self.shape().dims(), self.strides());
        (0..self.shape().size()).map(move |flat| {
            let step = |(quotient, sum): (usize, isize), axis: usize| {
                (quotient / dims[axis], sum + (quotient % dims[axis]) as isize * strides[axis])
            };
            (0..dims.len()).rev().fold((flat, self.offset() as isize), step).1 as usize
        })
    }

    /// Returns how the elements of this layout, of `size` bytes each, overlap the elements of `other`, of `other_size`
    /// bytes each, in one storage.
    ///
    /// Only the extents are compared, so interleaved elements count as a partial overlap.
    pub fn overlap(&self, size: usize, other: &Layout, other_size: usize) -> Overlap {
        let bytes = |layout: &Layout, size: usize| {
            let (extent, size) = (layout.extent(), size as i128);
            extent.start as i128 * size..extent.end as i128 * size
        };
        let (a, b) = (bytes(self, size), bytes(other, other_size));
        if a.is_empty() || b.is_empty() || a.end <= b.start || b.end <= a.start {
            return Overlap::Disjoint;
        }
        let is_same_order = self == other
            || self.is_contiguous() && other.is_contiguous() && self.shape.aligns_without_repetition(&other.shape);
        let is_same = size == other_size && self.offset == other.offset && is_same_order;
        if is_same { Overlap::Same } else { Overlap::Partial }
    }

    /// Returns true if two indices may have the same position, that is, if a stride does not exceed the extent of the
    /// axes with shorter strides. For slices, transposes and diagonals of row-major tensors the result is false.
    pub fn may_repeat(&self) -> bool {
        let Some(strides) = &self.strides else { return false };
        let steps = self.shape.iter().zip(&***strides).map(|(&len, &stride)| (stride.unsigned_abs(), len));
        let mut steps: SmallVec<[(usize, usize); 8]> = steps.filter(|&(_, len)| len != 1).collect();
        steps.sort_unstable();
        let mut extent = 0usize;
        let is_beyond = |&(stride, len): &(usize, usize)| {
            let is_beyond = stride > extent;
            extent = extent.saturating_add(stride.saturating_mul(len.saturating_sub(1)));
            is_beyond
        };
        !self.shape.contains(&0) && !steps.iter().all(is_beyond)
    }

    /// Permutes the axes: axis k of the result is axis `order[k]` of this layout.
    pub fn permute(&self, order: &[usize]) -> Layout {
        let shape = order.iter().map(|&a| self.shape[a]).collect();
        let strides = self.strides();
        Layout::strided(shape, order.iter().map(|&a| strides[a]).collect(), self.offset)
    }

    /// Broadcasts the layout to `shape` by NumPy's rule, with strides of 0; `None` if the shapes do not broadcast.
    pub fn broadcast_to(&self, shape: &Shape) -> Option<Layout> {
        if self.shape == *shape {
            return Some(self.clone());
        }
        let new_axes = shape.rank().checked_sub(self.shape.rank())?;
        let mut strides = Strides::repeated(0, shape.rank());
        for (axis, (&dim, &stride)) in self.shape.iter().zip(&*self.strides()).enumerate() {
            if dim == shape[new_axes + axis] {
                strides[new_axes + axis] = stride;
            } else if dim != 1 {
                return None;
            }
        }
        Some(Layout::strided(shape.clone(), strides, self.offset))
    }

    /// Returns the stride along an axis of a shape of `rank` axes to which the layout broadcasts, 0 if the layout is
    /// repeated along it.
    #[inline]
    pub fn broadcast_stride(&self, axis: usize, rank: usize) -> isize {
        match (axis + self.shape.rank()).checked_sub(rank) {
            Some(own) if self.shape[own] != 1 => match &self.strides {
                None => self.shape.contiguous_strides()[own],
                Some(strides) => strides[own],
            },
            _ => 0,
        }
    }

    /// Returns a view of the same elements in another shape; `None` if that requires a copy, or if the numbers of
    /// elements differ.
    pub fn reshape(&self, shape: &Shape) -> Option<Layout> {
        if self.shape.size() != shape.size() {
            return None;
        }
        if self.is_contiguous() || shape.size() == 0 {
            return Some(Layout { shape: shape.clone(), offset: self.offset, strides: None });
        }
        // Both shapes are split into the shortest groups of axes with equal numbers of elements. A group can be
        // reshaped if its old axes are in row-major order among themselves.
        let strides_before = self.strides();
        let old: SmallVec<[(usize, isize); INLINE_AXES]> =
            self.shape.iter().copied().zip(strides_before.iter().copied()).filter(|&(d, _)| d != 1).collect();
        let mut strides = Strides::repeated(0, shape.rank());
        let (mut i, mut j) = (0, 0);
        while j < shape.rank() {
            let (i0, j0) = (i, j);
            let mut new_size = shape[j];
            j += 1;
            let mut old_size = 1;
            while old_size != new_size {
                if old_size < new_size {
                    old_size *= old.get(i)?.0;
                    i += 1;
                } else {
                    new_size *= *shape.get(j)?;
                    j += 1;
                }
            }
            let group = &old[i0..i];
            if !group.windows(2).all(|w| are_one_axis(w[0].1, w[1].1, w[1].0)) {
                return None;
            }
            let mut step = group.last().map_or(0, |&(_, s)| s);
            for axis in (j0..j).rev() {
                strides[axis] = step;
                step *= shape[axis] as isize;
            }
        }
        Some(Layout::strided(shape.clone(), strides, self.offset))
    }

    /// Selects the `len` indices `start`, `start + step`, .. of one axis.
    pub fn slice(&self, axis: usize, start: usize, step: isize, len: usize) -> Layout {
        let mut strides = self.strides();
        let first = if len > 0 { start as isize * strides[axis] } else { 0 };
        // The step of a single index has no effect, and its product with the stride could overflow.
        if len > 1 {
            strides[axis] *= step;
        }
        Layout::strided(self.shape.with_axis(axis, len), strides, (self.offset as isize + first) as usize)
    }

    /// Selects all windows of `size` indices of an axis, which begin at the indices 0, `step`, 2·`step`, ... The axis
    /// then enumerates the windows, and a new last axis the indices of a window. An element that several windows
    /// contain occurs in each of them, at the same position of the storage.
    ///
    /// # Panics
    /// Panics if `step` is 0, or `size` is larger than the axis.
    #[track_caller]
    pub fn windows(&self, axis: usize, size: usize, step: usize) -> Layout {
        let count = (self.shape[axis] - size) / step + 1;
        let mut strides = self.strides();
        let within = strides[axis];
        // The step of a single window has no effect, and its product with the stride could overflow.
        if count > 1 {
            strides[axis] *= step as isize;
        }
        let shape = self.shape.with_axis(axis, count).iter().copied().chain([size]).collect();
        Layout::strided(shape, strides.iter().copied().chain([within]).collect(), self.offset)
    }

    /// Selects `index` of `axis` and removes the axis.
    pub fn select(&self, axis: usize, index: usize) -> Layout {
        let strides_before = self.strides();
        let offset = (self.offset as isize + index as isize * strides_before[axis]) as usize;
        let keep = |k: &usize| *k != axis;
        let shape = (0..self.shape.rank()).filter(keep).map(|k| self.shape[k]).collect();
        let strides = (0..self.shape.rank()).filter(keep).map(|k| strides_before[k]).collect();
        Layout::strided(shape, strides, offset)
    }
}

/// Returns true if one stride, `inner`, traverses two neighbouring axes with these strides. The inner axis has
/// `inner_len` indices.
#[inline]
pub fn are_one_axis(outer: isize, inner: isize, inner_len: usize) -> bool {
    inner.checked_mul(inner_len as isize) == Some(outer)
}

fn is_contiguous(shape: &Shape, strides: &[isize]) -> bool {
    let mut step = 1;
    for (&dim, &stride) in shape.iter().zip(strides).rev() {
        if dim == 0 {
            return true;
        }
        if dim != 1 && stride != step {
            return false;
        }
        step *= dim as isize;
    }
    true
}

#[cfg(test)]
mod tests;
