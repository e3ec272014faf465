//! Indexing as in NumPy: integers, ranges with steps, new axes, an ellipsis, masks and index tensors.
//!
//! Integers, ranges and new axes return views; masks and index tensors copy. [`Tensor::set`] writes through an index.

use crate::array::Array;
use crate::autograd::{note_call_location, on_device_of};
use crate::engine::is_capturing;
use crate::ops::call::check;
use crate::ops::elementwise::arithmetic;
use crate::ops::elementwise::operand::TensorOrScalar;
use crate::ops::formula::broadcast;
use crate::ops::index::{in_place, nonzero};
use crate::ops::primitive::view::AxisSlices;
use crate::ops::primitive::{copy, fill, gather, view};
use crate::panic;
use crate::tensor::{Nested, Tensor};
use pellucid_ir::kernel::Index;
use pellucid_ir::{DType, Error, Integer, Result, Shape};
use smallvec::SmallVec;
use std::ops::{Range, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

/// A new axis of length 1.
#[derive(Clone, Copy, Debug)]
pub struct NewAxis;

/// The full axes that the other parts of the index do not cover.
#[derive(Clone, Copy, Debug)]
pub struct Ellipsis;

/// A range of indices of an axis: from `start` (included) to `stop` (excluded), `step` apart. Negative bounds count
/// from the end; bounds beyond the axis are clamped; a negative step goes backwards.
#[derive(Clone, Copy, Debug)]
pub struct Slice {
    start: Option<isize>,
    stop: Option<isize>,
    step: isize,
}

/// A bound of a [`slice()`]: a number of any integer type, or `None` for the end of the axis.
#[derive(Clone, Copy, Debug)]
pub struct SliceBound(Option<isize>);

impl From<Option<isize>> for SliceBound {
    fn from(bound: Option<isize>) -> SliceBound {
        SliceBound(bound)
    }
}

/// Creates NumPy's `start:stop:step`. `None` is the end of the axis, in the direction of the step.
///
/// ```
/// use pellucid::{Tensor, slice};
/// let x = Tensor::from([0, 1, 2, 3]);
/// assert_eq!(x.i(slice(None, None, -2)).to_vec::<i64>(), [3, 1]);
/// ```
pub fn slice(start: impl Into<SliceBound>, stop: impl Into<SliceBound>, step: isize) -> Slice {
    Slice { start: start.into().0, stop: stop.into().0, step }
}

/// An index of one or several axes, a part of an [`IntoIndex`].
#[derive(Clone, Debug)]
pub enum IndexItem {
    /// One index; the axis is removed.
    At(isize),
    /// A range of indices.
    Slice(Slice),
    /// A new axis of length 1.
    NewAxis,
    /// The full axes that the other parts of the index do not cover.
    Ellipsis,
    /// An index tensor. The axes of an integer tensor replace the indexed axis. A bool tensor covers as many axes as it
    /// has and selects the true positions; a 0-d one, or a `bool`, covers none and adds an axis of length 1 (true) or
    /// 0.
    Tensor(Tensor),
}

impl From<Slice> for IndexItem {
    fn from(slice: Slice) -> IndexItem {
        IndexItem::Slice(slice)
    }
}
impl From<NewAxis> for IndexItem {
    fn from(_: NewAxis) -> IndexItem {
        IndexItem::NewAxis
    }
}
impl From<Ellipsis> for IndexItem {
    fn from(_: Ellipsis) -> IndexItem {
        IndexItem::Ellipsis
    }
}
impl From<&Tensor> for IndexItem {
    fn from(tensor: &Tensor) -> IndexItem {
        IndexItem::Tensor(tensor.clone())
    }
}
impl From<Tensor> for IndexItem {
    fn from(tensor: Tensor) -> IndexItem {
        IndexItem::Tensor(tensor)
    }
}
impl From<bool> for IndexItem {
    fn from(picks: bool) -> IndexItem {
        IndexItem::Tensor(Tensor::from(picks))
    }
}

/// Creates an index tensor of a list of positions, or of booleans, which is a mask.
fn tensor_list<T: Nested>(list: &[T]) -> IndexItem {
    IndexItem::Tensor(Tensor::from(list))
}

/// Creates an index tensor of positions of an integer type that no tensor has.
fn converted_list<T: Integer>(positions: &[T]) -> IndexItem {
    IndexItem::Tensor(Tensor::from(positions.iter().map(|at| at.to_isize() as i64).collect::<Vec<_>>()))
}

macro_rules! lists {
    ($($create:ident: $($t:ty),*;)*) => {$($(
        impl From<&[$t]> for IndexItem {
            fn from(list: &[$t]) -> IndexItem {
                $create(list)
            }
        }
        impl<const N: usize> From<&[$t; N]> for IndexItem {
            fn from(list: &[$t; N]) -> IndexItem {
                $create(list)
            }
        }
        impl From<Vec<$t>> for IndexItem {
            fn from(list: Vec<$t>) -> IndexItem {
                $create(&list)
            }
        }
        impl From<&Vec<$t>> for IndexItem {
            fn from(list: &Vec<$t>) -> IndexItem {
                $create(list)
            }
        }
        impl<const N: usize> From<[$t; N]> for IndexItem {
            fn from(list: [$t; N]) -> IndexItem {
                $create(&list)
            }
        }
    )*)*};
}
lists! {
    tensor_list: bool, i32, i64;
    converted_list: isize, usize, u32, u64;
}

impl From<RangeFull> for IndexItem {
    fn from(_: RangeFull) -> IndexItem {
        IndexItem::Slice(slice(None, None, 1))
    }
}

/// Returns the stop of a range that includes `end`; `None` for `..=-1`, which includes the last element.
fn stop_after(end: isize) -> SliceBound {
    SliceBound(end.checked_add(1).filter(|&stop| stop != 0))
}

// No axis is longer than isize::MAX, so a number beyond it is out of bounds either way, and a bound beyond every axis.
macro_rules! integers {
    ($($t:ty),*) => {$(
        impl From<$t> for SliceBound {
            fn from(bound: $t) -> SliceBound {
                SliceBound(Some(bound.to_isize()))
            }
        }
        impl From<$t> for IndexItem {
            fn from(at: $t) -> IndexItem {
                IndexItem::At(at.to_isize())
            }
        }
        impl From<Range<$t>> for IndexItem {
            fn from(r: Range<$t>) -> IndexItem {
                slice(r.start, r.end, 1).into()
            }
        }
        impl From<RangeFrom<$t>> for IndexItem {
            fn from(r: RangeFrom<$t>) -> IndexItem {
                slice(r.start, None, 1).into()
            }
        }
        impl From<RangeTo<$t>> for IndexItem {
            fn from(r: RangeTo<$t>) -> IndexItem {
                slice(None, r.end, 1).into()
            }
        }
        impl From<RangeInclusive<$t>> for IndexItem {
            fn from(r: RangeInclusive<$t>) -> IndexItem {
                let (start, end) = r.into_inner();
                slice(start, stop_after(end.to_isize()), 1).into()
            }
        }
        impl From<RangeToInclusive<$t>> for IndexItem {
            fn from(r: RangeToInclusive<$t>) -> IndexItem {
                slice(None, stop_after(r.end.to_isize()), 1).into()
            }
        }
    )*};
}
integers!(isize, usize, i32, i64, u32, u64);

/// An index of a tensor: one part, or a tuple with one part for each axis.
pub trait IntoIndex {
    /// Returns the parts.
    fn into_index(self) -> Vec<IndexItem>;
}

impl<T: Into<IndexItem>> IntoIndex for T {
    fn into_index(self) -> Vec<IndexItem> {
        vec![self.into()]
    }
}

impl IntoIndex for Vec<IndexItem> {
    fn into_index(self) -> Vec<IndexItem> {
        self
    }
}

macro_rules! tuples {
    ($($($name:ident)*;)*) => {$(
        impl<$($name: Into<IndexItem>),*> IntoIndex for ($($name,)*) {
            #[allow(non_snake_case)]
            fn into_index(self) -> Vec<IndexItem> {
                let ($($name,)*) = self;
                vec![$($name.into()),*]
            }
        }
    )*};
}
tuples! { A; A B; A B C; A B C D; A B C D E; A B C D E F; }

/// The values that [`Tensor::set`] writes: a tensor, a number, or nested lists of numbers.
pub trait IntoValues<'a> {
    /// Returns the tensor or the number, which is written into a tensor of `dtype`.
    ///
    /// # Errors
    /// The errors of [`Tensor::try_from_nested`]; [`Error::InvalidArgument`] for a number of a list that an integer
    /// dtype cannot represent.
    fn into_values(self, dtype: DType) -> Result<TensorOrScalar<'a>>;
}

impl<'a, T: Into<TensorOrScalar<'a>>> IntoValues<'a> for T {
    fn into_values(self, _dtype: DType) -> Result<TensorOrScalar<'a>> {
        Ok(self.into())
    }
}

macro_rules! value_lists {
    ($([$($n:tt)*] $list:ty;)*) => {$(
        impl<'a, T: Nested, $($n)*> IntoValues<'a> for $list {
            fn into_values(self, dtype: DType) -> Result<TensorOrScalar<'a>> {
                let values = Tensor::try_from_nested(self)?;
                fill::check_written_list("set", &values, dtype)?;
                Ok(TensorOrScalar::Owned(values))
            }
        }
    )*};
}
value_lists! {
    [const N: usize] [T; N];
    [const N: usize] &[T; N];
    [] &[T];
    [] Vec<T>;
    [] &Vec<T>;
}

/// An index, resolved against a shape: slices are applied first, then axes are removed or added, then index tensors.
struct ResolvedIndex {
    slices: AxisSlices,
    /// The shape after the slices, without the axes of single indices and with new ones.
    shape: pellucid_ir::Shape,
    /// Index tensors with the axes of `shape` that they index.
    picks: Vec<(usize, Tensor)>,
    /// A mask that selects the elements of a fill, with its first axis in `shape`. It is not converted to positions.
    mask: Option<(usize, Tensor)>,
    /// NumPy's rule: if a new axis or a range separates index tensors, their axes come first in the result.
    adjacent: bool,
}

impl Slice {
    /// Returns (start, step, length) within an axis of length `len`.
    fn resolve(self, op: &'static str, len: usize) -> Result<(usize, isize, usize)> {
        let Slice { start, stop, step } = self;
        if step == 0 {
            return Err(Error::invalid(op, "a slice needs a nonzero step; 1 takes all elements, -1 reverses"));
        }
        let n = len as isize;
        let (low, high) = if step > 0 { (0, n) } else { (-1, n - 1) };
        let bound = |b: Option<isize>, open: isize| match b {
            None => open,
            Some(b) => (if b < 0 { b.saturating_add(n) } else { b }).clamp(low, high),
        };
        let first = bound(start, if step > 0 { low } else { high });
        let last = bound(stop, if step > 0 { high } else { low });
        let span = if step > 0 { last - first } else { first - last };
        let count = if span <= 0 { 0 } else { (span as usize).div_ceil(step.unsigned_abs()) };
        Ok((if count == 0 { 0 } else { first as usize }, step, count))
    }
}

/// Returns the items of an index with its tensors on the device of x. If x is free and an index tensor is not, x
/// follows later.
///
/// # Errors
/// [`Error::DeviceMismatch`] names the position of an index tensor that is pinned to a device other than x's.
fn on_device_of_tensor(op: &'static str, x: &Tensor, mut index: Vec<IndexItem>) -> Result<Vec<IndexItem>> {
    for (position, item) in index.iter_mut().enumerate() {
        let IndexItem::Tensor(tensor) = item else { continue };
        if tensor.device() == x.device() || (x.is_free() && !tensor.is_free()) {
            continue;
        }
        if !tensor.is_free() {
            let devices =
                vec![x.device().name().into(), format!("{} at position {position} of the index", tensor.device())];
            return Err(Error::DeviceMismatch { op, devices });
        }
        *tensor = on_device_of(op, x, tensor)?;
    }
    Ok(index)
}

impl ResolvedIndex {
    /// Resolves an index. If `keeps_mask` is set and the only index tensor is a mask, it is kept as a mask.
    #[track_caller]
    fn new(op: &'static str, x: &Tensor, mut index: Vec<IndexItem>, keeps_mask: bool) -> Result<ResolvedIndex> {
        // `..` alone is all of the tensor, also of one without axes.
        if x.rank() == 0 && matches!(index[..], [IndexItem::Slice(Slice { start: None, stop: None, step: 1 })]) {
            index.clear();
        }
        let covers = |item: &IndexItem| match item {
            IndexItem::NewAxis | IndexItem::Ellipsis => 0,
            IndexItem::Tensor(t) if t.dtype() == DType::Bool => t.rank(),
            _ => 1,
        };
        let covered: usize = index.iter().map(covers).sum();
        let ellipses = index.iter().filter(|item| matches!(item, IndexItem::Ellipsis)).count();
        if covered > x.rank() {
            let axes = if x.rank() == 1 { "1 axis" } else { &format!("{} axes", x.rank()) };
            let reason = format!(
                "too many indices: {covered} for a tensor with {axes}, shape {}; remove some, or add axes by unsqueeze()",
                x.shape()
            );
            return Err(Error::invalid(op, reason));
        }
        if ellipses > 1 {
            return Err(Error::invalid(op, format!("an index has at most one ellipsis, got {ellipses}")));
        }
        let missing = x.rank() - covered;
        let mut parts = on_device_of_tensor(op, x, index)?;
        if ellipses == 0 {
            parts.push(IndexItem::Ellipsis);
        }
        let mut axis = 0;
        let mut out = ResolvedIndex {
            slices: SmallVec::new(),
            shape: pellucid_ir::Shape::scalar(),
            picks: vec![],
            mask: None,
            adjacent: true,
        };
        let mut shape: Vec<usize> = Vec::new();
        let tensors = parts.iter().filter(|item| matches!(item, IndexItem::Tensor(_))).count();
        let (with_tensors, keeps_mask) = (tensors > 0, keeps_mask && tensors == 1);
        let (mut picking, mut gap) = (false, false);
        for part in parts {
            let len = x.shape().get(axis).copied().unwrap_or(0);
            match part {
                IndexItem::NewAxis => {
                    gap = true;
                    shape.push(1);
                    continue;
                }
                IndexItem::Ellipsis => {
                    gap |= missing > 0;
                    shape.extend(&x.shape()[axis..axis + missing]);
                    axis += missing;
                    continue;
                }
                IndexItem::At(at) => {
                    let n = len as isize;
                    if at < -n || at >= n {
                        return Err(Error::IndexOutOfBounds { op, index: at as i64, axis, len });
                    }
                    // If the index contains index tensors, an integer counts as an index tensor.
                    if with_tensors {
                        out.adjacent &= !picking || !gap;
                        (picking, gap) = (true, false);
                    }
                    out.slices.push((axis, at.rem_euclid(n) as usize, 1, 1));
                }
                IndexItem::Slice(s) => {
                    gap = true;
                    let (start, step, count) = s.resolve(op, len)?;
                    if (start, step, count) != (0, 1, len) {
                        out.slices.push((axis, start, step, count));
                    }
                    shape.push(count);
                }
                IndexItem::Tensor(mask) if mask.dtype() == DType::Bool && mask.rank() == 0 => {
                    // A 0-d mask covers no axis: it selects from a new axis of length 1.
                    out.adjacent &= !picking || !gap;
                    (picking, gap) = (true, false);
                    let mask = view::reshape_to(&mask, &[1].into())?;
                    if keeps_mask {
                        out.mask = Some((shape.len(), mask));
                    } else {
                        let positions = nonzero::nonzero_as(op, &mask)?;
                        out.picks.extend(positions.into_iter().map(|positions| (shape.len(), positions)));
                    }
                    shape.push(1);
                    continue;
                }
                IndexItem::Tensor(mask) if mask.dtype() == DType::Bool => {
                    if mask.shape()[..] != x.shape()[axis..axis + mask.rank()] {
                        let help = format!(
                            "a mask must have the shape of the axes that it covers, from axis {axis} on; reshape() it, \
                             or put `..` before it"
                        );
                        return Err(Error::shapes(op, [x.shape(), mask.shape()], help));
                    }
                    out.adjacent &= !picking || !gap;
                    (picking, gap) = (true, false);
                    if keeps_mask {
                        shape.extend(&mask.shape()[..]);
                        axis += mask.rank();
                        out.mask = Some((shape.len() - mask.rank(), mask));
                        continue;
                    }
                    for positions in nonzero::nonzero_as(op, &mask)? {
                        out.picks.push((shape.len(), positions));
                        shape.push(x.shape()[axis]);
                        axis += 1;
                    }
                    continue;
                }
                IndexItem::Tensor(positions) => {
                    if !positions.dtype().is_int() {
                        let help = "index tensors must be integers: use to_dtype(DType::I64); masks must be bool: use a comparison";
                        return Err(Error::dtypes(op, [positions.dtype()], help));
                    }
                    out.adjacent &= !picking || !gap;
                    (picking, gap) = (true, false);
                    out.picks.push((shape.len(), copy::to_dtype(&positions, DType::I64)?));
                    shape.push(len);
                }
            }
            axis += 1;
        }
        out.shape = shape.into();
        Ok(out)
    }

    /// Returns the indexed axes, and the index tensors broadcast to a common shape.
    fn broadcast_indices(&self, op: &'static str) -> Result<(SmallVec<[usize; 4]>, Vec<Tensor>)> {
        let mut common = pellucid_ir::Shape::scalar();
        for (_, t) in &self.picks {
            common = common.broadcast(t.shape()).ok_or_else(|| {
                let help = "the index tensors of an index must broadcast to one shape";
                Error::shapes(op, self.picks.iter().map(|(_, t)| t.shape()), help)
            })?;
        }
        let indices = self.picks.iter().map(|(_, t)| broadcast::broadcast_to(t, &common)).collect::<Result<_>>()?;
        Ok((self.picks.iter().map(|(axis, _)| *axis).collect(), indices))
    }

    /// Returns the permutation that moves the indexed axes from the front to their position in the result, if they
    /// move.
    fn result_permutation(&self, picked: usize, rank: usize) -> Option<Vec<isize>> {
        let first = self.picks.first()?.0;
        (self.adjacent && first > 0).then(|| {
            let front = (picked..picked + first).chain(0..picked).chain(picked + first..rank);
            front.map(|a| a as isize).collect()
        })
    }

    /// Returns the shape of the result from the shape of the sliced tensor, and the axes and the shape of the indices.
    fn picked_shape(&self, view: &Shape, axes: &SmallVec<[usize; 4]>, indices: &Shape) -> Shape {
        let front = Index::Axes(axes.clone()).shape(view, indices);
        match self.result_permutation(indices.rank(), front.rank()) {
            Some(order) => order.iter().map(|&a| front[a as usize]).collect(),
            None => front,
        }
    }
}

impl Tensor {
    /// Returns the elements at an index: `x.i(0)`, `x.i((.., 1..3))`, `x.i((Ellipsis, NewAxis))`, `x.i(&mask)`,
    /// `x.i((&rows, slice(None, None, -1)))`. Integers, ranges and new axes return views. Gradients flow through all of
    /// them, and accumulate at repeated indices.
    ///
    /// ```
    /// use pellucid::Tensor;
    /// let x = Tensor::arange(0i64, 6, 1).reshape([2, 3]);
    /// assert_eq!(x.i((1, ..2)).to_vec::<i64>(), [3, 4]);
    /// assert_eq!(x.i(x.gt(3)).to_vec::<i64>(), [4, 5]);
    /// ```
    ///
    /// # Panics
    /// Panics if [`Tensor::try_i`] returns an error.
    #[doc(alias("index", "__getitem__"))]
    #[track_caller]
    pub fn i(&self, index: impl IntoIndex) -> Tensor {
        let _call = note_call_location();
        panic::unwrap(self.try_i(index))
    }

    /// Returns the elements at an index as [`Tensor::i`] does, and errors as values.
    ///
    /// # Errors
    /// [`Error::IndexOutOfBounds`]; [`Error::InvalidArgument`] for too many parts;
    /// [`Error::ShapeMismatch`] for a mask of another shape; [`Error::ReadInCapture`] for a mask while
    /// a step is captured, since the result's shape depends on its values.
    #[track_caller]
    pub fn try_i(&self, index: impl IntoIndex) -> Result<Tensor> {
        check::named("index", self.indexed(index.into_index(), |_| Ok(())))
    }

    /// Returns the elements at an index. `check` has their shape, before their values are read.
    #[track_caller]
    pub(crate) fn indexed(&self, index: Vec<IndexItem>, check: impl FnOnce(&Shape) -> Result<()>) -> Result<Tensor> {
        let resolved = ResolvedIndex::new("index", self, index, false)?;
        let view = view::reshape_to(&view::slice_axes(self, resolved.slices.clone())?, &resolved.shape)?;
        if resolved.picks.is_empty() {
            check(view.shape())?;
            return Ok(view);
        }
        let (axes, indices) = resolved.broadcast_indices("index")?;
        check(&resolved.picked_shape(view.shape(), &axes, indices[0].shape()))?;
        let picked = gather::gather_axes("index", &view, axes, &indices)?;
        match resolved.result_permutation(indices[0].rank(), picked.rank()) {
            Some(order) => view::permute(&picked, &order),
            None => Ok(picked),
        }
    }

    /// Writes `values` at an index, in place. `values` is a tensor or a list of numbers, which broadcasts and is
    /// converted as by [`Tensor::to_dtype`], or a number that the dtype can represent. All views of the storage see the
    /// new elements; for repeated indices, the last value is stored. Under one mask, one value is a fill, which a
    /// captured step may contain. Gradients flow to the written values, and to the elements that were not overwritten
    /// (see [`copy_`](crate::ops::copy_)).
    ///
    /// ```
    /// use pellucid::{DType, Tensor};
    /// let x = Tensor::zeros([2, 3], DType::F32);
    /// x.set((.., 1), 5.0);
    /// assert_eq!(x.to_vec::<f32>(), [0.0, 5.0, 0.0, 0.0, 5.0, 0.0]);
    /// x.set((1, [0, 2]), [7.0, 8.0]);
    /// assert_eq!(x.to_vec::<f32>(), [0.0, 5.0, 0.0, 7.0, 5.0, 8.0]);
    /// ```
    ///
    /// # Panics
    /// Panics if [`Tensor::try_set`] returns an error.
    #[doc(alias("__setitem__", "index_put_", "setitem"))]
    #[track_caller]
    pub fn set<'a>(&self, index: impl IntoIndex, values: impl IntoValues<'a>) {
        let _call = note_call_location();
        panic::unwrap(self.try_set(index, values));
    }

    /// Writes at an index as [`Tensor::set`] does, and returns errors as values.
    ///
    /// # Errors
    /// [`Error::InPlaceOnTracked`] for a leaf that requires a gradient, or a view of one, outside of `no_grad`;
    /// [`Error::InvalidArgument`] for a tensor that repeats elements, and for a number, also in a list, that an integer
    /// dtype cannot represent, such as 2.7, or 300 for `u8` (elements of a tensor are converted); those of
    /// [`Tensor::try_i`]. After an error nothing is written.
    #[track_caller]
    pub fn try_set<'a>(&self, index: impl IntoIndex, values: impl IntoValues<'a>) -> Result<()> {
        check::named("set", values.into_values(self.dtype()).and_then(|values| self.assign(index.into_index(), values)))
    }

    #[track_caller]
    fn assign(&self, index: Vec<IndexItem>, values: TensorOrScalar<'_>) -> Result<()> {
        in_place::check_writable("set", self)?;
        let values = values.tensor_or_else(|number| fill::written_scalar("set", number, self.dtype()))?;
        // Elsewhere a mask is read, so that a write of no elements does not count as a modification.
        let keeps_mask = values.size() == 1 && is_capturing();
        let resolved = ResolvedIndex::new("set", self, index, keeps_mask)?;
        let layout = resolved
            .slices
            .iter()
            .fold(self.array().layout().clone(), |l, &(axis, start, step, len)| l.slice(axis, start, step, len));
        let layout = layout
            .reshape(&resolved.shape)
            .expect("a layout must allow a reshape that removes and adds only axes of length 1");
        let view: Array = self.array().view(layout);
        if let Some((axis, mask)) = &resolved.mask {
            return self.fill(&resolved, &view, *axis, mask, &values);
        }
        if resolved.picks.is_empty() {
            return in_place::put_view("set", self, &view, &values);
        }
        let (axes, indices) = resolved.broadcast_indices("set")?;
        let values = match resolved
            .result_permutation(indices[0].rank(), indices[0].rank() + view.shape().rank() - axes.len())
        {
            // The indexed axes are in the middle of the result; the kernel needs them first.
            Some(order) => {
                let shape = resolved.picked_shape(view.shape(), &axes, indices[0].shape());
                let expanded = broadcast::broadcast_to(&values, shape)?;
                let mut inverse = vec![0isize; order.len()];
                order.iter().enumerate().for_each(|(k, &a)| inverse[a as usize] = k as isize);
                view::permute(&expanded, &inverse)?
            }
            None => values,
        };
        in_place::put_axes("set", self, &view, axes, &indices, &values)
    }

    /// Writes one value where a mask is true. The mask covers the axes of `view` from `axis` on. The count of the
    /// selected elements is not needed, so a captured step may contain the fill.
    fn fill(&self, index: &ResolvedIndex, view: &Array, axis: usize, mask: &Tensor, value: &Tensor) -> Result<()> {
        let rest = view.shape().rank() - axis - mask.rank();
        // The mask selects along one axis.
        let selected = Shape::from(vec![1; axis + 1 + rest]);
        value.array().broadcast_to("set", &selected)?;
        let value = view::reshape_to(&on_device_of("set", self, value)?, &Shape::scalar())?;
        let mask = view::reshape_to(mask, &mask.shape().iter().copied().chain(std::iter::repeat_n(1, rest)).collect())?;
        let old = view::reshape_to(&view::slice_axes(self, index.slices.clone())?, &index.shape)?;
        let new = arithmetic::where_(&mask, &copy::to_dtype(&value, self.dtype())?, &old)?;
        in_place::put_view("set", self, view, &new)
    }
}
