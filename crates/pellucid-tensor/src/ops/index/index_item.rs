//! The items of an index (integers, ranges with steps, new axes, an ellipsis, masks and index tensors), their
//! conversions, and the values of an indexed write.

use crate::ops::elementwise::operand::TensorOrScalar;
use crate::ops::primitive::fill;
use crate::tensor::{Nested, Tensor};
use pellucid_ir::{DType, Error, Integer, Result};
use std::ops::{Range, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

/// A new axis of length 1.
#[derive(Clone, Copy, Debug)]
pub struct NewAxis;

/// All axes that the other items of the index do not cover, in full (NumPy's `...`).
#[derive(Clone, Copy, Debug)]
pub struct Ellipsis;

/// A range of indices of an axis, from `start` (included) to `stop` (excluded) with stride `step`. Negative bounds
/// count from the end; bounds beyond the axis are clamped; a negative step goes backwards.
#[derive(Clone, Copy, Debug)]
pub struct Slice {
    start: Option<isize>,
    stop: Option<isize>,
    step: isize,
}

/// A bound of a [`slice()`]: a number of any integer type, or `None` for the start or the end of the axis.
#[derive(Clone, Copy, Debug)]
pub struct SliceBound(Option<isize>);

impl From<Option<isize>> for SliceBound {
    fn from(bound: Option<isize>) -> SliceBound {
        SliceBound(bound)
    }
}

/// Creates NumPy's `start:stop:step`. With `None` the slice starts at the first or ends after the last element of the
/// axis, in the direction of the step.
///
/// ```
/// use pellucid::{Tensor, slice};
/// let x = Tensor::from([0, 1, 2, 3]);
/// assert_eq!(x.i(slice(None, None, -2)).to_vec::<i64>(), [3, 1]);
/// ```
pub fn slice(start: impl Into<SliceBound>, stop: impl Into<SliceBound>, step: isize) -> Slice {
    Slice { start: start.into().0, stop: stop.into().0, step }
}

impl Slice {
    /// Returns true for `..`, which selects all elements in order.
    pub(super) fn is_full(&self) -> bool {
        matches!(self, Slice { start: None, stop: None, step: 1 })
    }

    /// Returns (start, step, length) within an axis of length `len`.
    pub(super) fn resolve(self, op: &'static str, len: usize) -> Result<(usize, isize, usize)> {
        let Slice { start, stop, step } = self;
        if step == 0 {
            return Err(Error::invalid(op, "the step of a slice must not be 0; 1 selects all elements, -1 reverses"));
        }
        let n = len as isize;
        let (low, high) = if step > 0 { (0, n) } else { (-1, n - 1) };
        let bound = |b: Option<isize>, open: isize| match b {
            None => open,
            Some(b) => (if b < 0 { b.saturating_add(n) } else { b }).clamp(low, high),
        };
        let start_index = bound(start, if step > 0 { low } else { high });
        let stop_index = bound(stop, if step > 0 { high } else { low });
        let span = if step > 0 { stop_index - start_index } else { start_index - stop_index };
        let count = if span <= 0 { 0 } else { (span as usize).div_ceil(step.unsigned_abs()) };
        Ok((if count == 0 { 0 } else { start_index as usize }, step, count))
    }
}

/// An item of an index (see [`IntoIndex`]).
#[derive(Clone, Debug)]
pub enum IndexItem {
    /// A single index. The result does not have the indexed axis.
    At(isize),
    /// A range of indices.
    Slice(Slice),
    /// A new axis of length 1.
    NewAxis,
    /// All axes that the other items of the index do not cover, in full (NumPy's `...`).
    Ellipsis,
    /// An index tensor. The axes of an integer tensor replace the indexed axis. A bool tensor covers as many axes as it
    /// has, and selects the true positions. A 0-d bool tensor, or a `bool`, covers no axis and adds an axis of length 1
    /// (true) or 0.
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

/// Creates an index tensor from a list of positions, or a mask from a list of booleans.
fn tensor_list<T: Nested>(list: &[T]) -> IndexItem {
    IndexItem::Tensor(Tensor::from(list))
}

/// Creates an index tensor from positions of an integer type that is not a dtype.
fn converted_list<T: Integer>(positions: &[T]) -> IndexItem {
    IndexItem::Tensor(Tensor::from(positions.iter().map(|position| position.to_isize() as i64).collect::<Vec<_>>()))
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

// No axis is longer than isize::MAX. So an integer beyond it is out of bounds, and a bound beyond it exceeds every
// axis.
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

/// An index of a tensor: one item, or a tuple of items.
pub trait IntoIndex {
    /// Returns the items.
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
