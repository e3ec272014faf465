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
use crate::ops::index::in_place;
use crate::ops::index::index_item::{IndexItem, IntoIndex, IntoValues};
use crate::ops::index::resolved_index::ResolvedIndex;
use crate::ops::primitive::{copy, fill, gather, view};
use crate::panic;
use crate::tensor::Tensor;
use pellucid_ir::{Result, Shape};

impl Tensor {
    /// Returns the elements at an index: `x.i(0)`, `x.i((.., 1..3))`, `x.i((Ellipsis, NewAxis))`, `x.i(&mask)`,
    /// `x.i((&rows, slice(None, None, -1)))`. Integers, ranges and new axes return views. Gradients flow through every
    /// item, and accumulate at repeated indices.
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

    /// Returns the elements at an index as [`Tensor::i`] does, and returns errors as values.
    ///
    /// # Errors
    /// [`Error::IndexOutOfBounds`]; [`Error::InvalidArgument`] for too many items;
    /// [`Error::ShapeMismatch`] for a mask of a different shape; [`Error::ReadInCapture`] for a mask while a step is
    /// captured, since the result's shape depends on its values.
    ///
    /// [`Error::IndexOutOfBounds`]: pellucid_ir::Error::IndexOutOfBounds
    /// [`Error::InvalidArgument`]: pellucid_ir::Error::InvalidArgument
    /// [`Error::ShapeMismatch`]: pellucid_ir::Error::ShapeMismatch
    /// [`Error::ReadInCapture`]: pellucid_ir::Error::ReadInCapture
    #[track_caller]
    pub fn try_i(&self, index: impl IntoIndex) -> Result<Tensor> {
        check::named("index", self.indexed(index.into_index(), |_| Ok(())))
    }

    /// Returns the elements at an index. `check` is called with the shape of the result, before values are read.
    #[track_caller]
    pub(crate) fn indexed(&self, index: Vec<IndexItem>, check: impl FnOnce(&Shape) -> Result<()>) -> Result<Tensor> {
        self.at_resolved(&ResolvedIndex::new("index", self, index, false)?, check)
    }

    /// Implements [`Tensor::indexed`] for an index that is resolved against the shape of this tensor.
    pub(super) fn at_resolved(
        &self,
        resolved: &ResolvedIndex,
        check: impl FnOnce(&Shape) -> Result<()>,
    ) -> Result<Tensor> {
        let view = view::reshape_to(&view::slice_axes(self, resolved.slices.clone())?, &resolved.shape)?;
        if resolved.index_tensors.is_empty() {
            check(view.shape())?;
            return Ok(view);
        }
        let (axes, indices) = resolved.broadcast_indices("index")?;
        check(&resolved.indexed_shape(view.shape(), &axes, indices[0].shape()))?;
        gather::gather_axes("index", &view, axes, &indices, resolved.axes_before_indices())
    }

    /// Writes `values` at an index, in place. `values` is a tensor or a list of numbers, which broadcasts and is
    /// converted as by [`Tensor::to_dtype`], or a number that the dtype can represent. All views of the storage see the
    /// new elements; for repeated indices, the last value is stored. In a captured step, an index may contain a mask
    /// only if the mask is its only index tensor, and a single value is written. Gradients flow to the written values,
    /// and to the elements that were not overwritten (see [`copy_`](crate::ops::copy_)).
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
    /// [`Error::InPlaceOnTracked`] for a leaf that requires a gradient, or a view of one, outside `no_grad`;
    /// [`Error::InvalidArgument`] for a tensor that repeats elements, and for a number, even in a list, that an integer
    /// dtype cannot represent, such as 2.7, or 300 for `u8` (elements of a tensor are converted); the errors of
    /// [`Tensor::try_i`]. After an error nothing is written.
    ///
    /// [`Error::InPlaceOnTracked`]: pellucid_ir::Error::InPlaceOnTracked
    /// [`Error::InvalidArgument`]: pellucid_ir::Error::InvalidArgument
    #[track_caller]
    pub fn try_set<'a>(&self, index: impl IntoIndex, values: impl IntoValues<'a>) -> Result<()> {
        check::named("set", values.into_values(self.dtype()).and_then(|values| self.assign(index.into_index(), values)))
    }

    #[track_caller]
    fn assign(&self, index: Vec<IndexItem>, values: TensorOrScalar<'_>) -> Result<()> {
        in_place::check_writable("set", self)?;
        let values = values.tensor_or_else(|number| fill::written_scalar("set", number, self.dtype()))?;
        // The mask is kept in a captured step, which cannot read it, and in a recorded write, whose derivative does not
        // need positions. Otherwise the mask is read, so that a write of no elements does not count as a modification.
        let keeps_mask = values.size() == 1 && (is_capturing() || in_place::is_recorded_write(self, &values));
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
        if resolved.index_tensors.is_empty() {
            return in_place::put_view("set", self, &view, &values);
        }
        let (axes, indices) = resolved.broadcast_indices("set")?;
        let values = match resolved
            .result_permutation(indices[0].rank(), indices[0].rank() + view.shape().rank() - axes.len())
        {
            // In the values, the axes of the index tensors follow other axes, but the kernel needs them first.
            Some(order) => {
                let shape = resolved.indexed_shape(view.shape(), &axes, indices[0].shape());
                let expanded = broadcast::broadcast_to(&values, shape)?;
                let mut inverse = vec![0isize; order.len()];
                order.iter().enumerate().for_each(|(k, &a)| inverse[a as usize] = k as isize);
                view::permute(&expanded, &inverse)?
            }
            None => values,
        };
        in_place::put_axes("set", self, &view, axes, &indices, &values)
    }

    /// Writes one value where a mask is true. The mask covers the axes of `view` starting at `axis`.
    fn fill(&self, index: &ResolvedIndex, view: &Array, axis: usize, mask: &Tensor, value: &Tensor) -> Result<()> {
        let trailing_axes = view.shape().rank() - axis - mask.rank();
        // The selected elements have one axis in place of the axes of the mask. The value must broadcast to a shape of
        // this rank.
        let selected = Shape::from(vec![1; axis + 1 + trailing_axes]);
        value.array().broadcast_to("set", &selected)?;
        let value = view::reshape_to(&on_device_of("set", self, value)?, &Shape::scalar())?;
        let mask = view::reshape_to(
            mask,
            &mask.shape().iter().copied().chain(std::iter::repeat_n(1, trailing_axes)).collect(),
        )?;
        let old = view::reshape_to(&view::slice_axes(self, index.slices.clone())?, &index.shape)?;
        let new = arithmetic::where_(&mask, &copy::to_dtype(&value, self.dtype())?, &old)?;
        in_place::put_view("set", self, view, &new)
    }
}
