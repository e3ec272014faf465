//! The resolution of an index against the shape of a tensor.

use crate::autograd::on_device_of;
use crate::engine::outermost_operation;
use crate::ops::call::check;
use crate::ops::formula::broadcast;
use crate::ops::index::index_item::IndexItem;
use crate::ops::index::nonzero;
use crate::ops::primitive::gather::Selection;
use crate::ops::primitive::view::AxisSlices;
use crate::ops::primitive::{copy, view};
use crate::tensor::Tensor;
use pellucid_ir::kernel::Index;
use pellucid_ir::{DType, Error, Result, Shape};
use smallvec::SmallVec;

/// An index, resolved against a shape: slices are applied first, then axes are removed or added, then index tensors are
/// applied.
pub(super) struct ResolvedIndex {
    pub(super) slices: AxisSlices,
    /// The shape after the slices, without the axes that single integers index, and with new axes.
    pub(super) shape: Shape,
    /// Index tensors, each with the axis of `shape` that it indexes.
    pub(super) index_tensors: Vec<(usize, Tensor)>,
    /// A mask for a fill, with its first axis in `shape`. It is not converted to positions.
    pub(super) mask: Option<(usize, Tensor)>,
    /// Whether no new axis or range separates the index tensors. Otherwise, their axes come first in the result
    /// (NumPy's rule). An ellipsis that covers no axis separates nothing.
    are_adjacent: bool,
}

/// Returns the items of an index, with index tensors on the device of x. A free x is copied later if an index tensor is
/// pinned to another device.
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
    /// Resolves an index. If `keeps_mask` is set and the only index tensor is a mask, it is not converted to positions.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for too many items and for a step of 0; [`Error::IndexOutOfBounds`];
    /// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`] and [`Error::DeviceMismatch`] for an index tensor;
    /// [`Error::ReadInCapture`] for a mask that is converted to positions.
    #[track_caller]
    pub(super) fn new(
        op: &'static str,
        x: &Tensor,
        mut index: Vec<IndexItem>,
        keeps_mask: bool,
    ) -> Result<ResolvedIndex> {
        // `..` alone selects the entire tensor, even without axes.
        if x.rank() == 0 && matches!(&index[..], [IndexItem::Slice(slice)] if slice.is_full()) {
            index.clear();
        }
        let uncovered = uncovered_axes(op, x, &index)?;
        let mut items = on_device_of_tensor(op, x, index)?;
        if !items.iter().any(|item| matches!(item, IndexItem::Ellipsis)) {
            items.push(IndexItem::Ellipsis);
        }
        let tensors = items.iter().filter(|item| matches!(item, IndexItem::Tensor(_))).count();
        let mut resolver = IndexResolver {
            op,
            x,
            axis: 0,
            shape: Vec::new(),
            uncovered,
            has_tensors: tensors > 0,
            keeps_mask: keeps_mask && tensors == 1,
            has_index_tensors: false,
            has_gap: false,
            resolved: ResolvedIndex {
                slices: SmallVec::new(),
                shape: Shape::scalar(),
                index_tensors: Vec::new(),
                mask: None,
                are_adjacent: true,
            },
        };
        items.into_iter().try_for_each(|item| resolver.add(item))?;
        let IndexResolver { shape, resolved, .. } = resolver;
        Ok(ResolvedIndex { shape: shape.into(), ..resolved })
    }

    /// Returns the indexed axes, and the index tensors broadcast to a common shape.
    pub(super) fn broadcast_indices(&self, op: &'static str) -> Result<(SmallVec<[usize; 4]>, Vec<Tensor>)> {
        let tensors: Vec<&Tensor> = self.index_tensors.iter().map(|(_, t)| t).collect();
        let common =
            check::common_shape(op, &tensors, "the index tensors of an index must broadcast to the same shape")?;
        let indices =
            self.index_tensors.iter().map(|(_, t)| broadcast::broadcast_to(t, &common)).collect::<Result<_>>()?;
        Ok((self.index_tensors.iter().map(|(axis, _)| *axis).collect(), indices))
    }

    /// Returns the number of result axes before the axes of the index tensors.
    pub(super) fn axes_before_indices(&self) -> usize {
        self.index_tensors.first().map_or(0, |(axis, _)| if self.are_adjacent { *axis } else { 0 })
    }

    /// Returns the selection, the index tensors, and the shape of the selected elements. Returns `None` if the index
    /// has items other than index tensors and full ranges.
    pub(super) fn selection(&self, op: &'static str, x: &Tensor) -> Result<Option<(Selection, Vec<Tensor>, Shape)>> {
        let sliced = view::slice_axes(x, self.slices.clone())?;
        if self.index_tensors.is_empty() || self.shape != *x.shape() || sliced.array().layout() != x.array().layout() {
            return Ok(None);
        }
        let (axes, indices) = self.broadcast_indices(op)?;
        let part = self.indexed_shape(x.shape(), &axes, indices[0].shape());
        let (op, index) = (outermost_operation(op), Index::Axes(axes));
        Ok(Some((Selection { op, from_end: true, index, place: self.axes_before_indices() }, indices, part)))
    }

    /// Returns the permutation that moves the indexed axes from the front to their position in the result, or `None` if
    /// the order does not change.
    pub(super) fn result_permutation(&self, picked: usize, rank: usize) -> Option<Vec<isize>> {
        let first = self.axes_before_indices();
        (first > 0).then(|| {
            let order = (picked..picked + first).chain(0..picked).chain(picked + first..rank);
            order.map(|a| a as isize).collect()
        })
    }

    /// Returns the shape of the result. The arguments are the shape of the sliced tensor, the indexed axes, and the
    /// shape of the indices.
    pub(super) fn indexed_shape(&self, view: &Shape, axes: &SmallVec<[usize; 4]>, indices: &Shape) -> Shape {
        let indices_first = Index::Axes(axes.clone()).shape(view, indices);
        match self.result_permutation(indices.rank(), indices_first.rank()) {
            Some(order) => order.iter().map(|&a| indices_first[a as usize]).collect(),
            None => indices_first,
        }
    }
}

/// Returns the number of axes that the ellipsis of an index covers.
fn uncovered_axes(op: &'static str, x: &Tensor, index: &[IndexItem]) -> Result<usize> {
    let covers = |item: &IndexItem| match item {
        IndexItem::NewAxis | IndexItem::Ellipsis => 0,
        IndexItem::Tensor(t) if t.dtype() == DType::Bool => t.rank(),
        _ => 1,
    };
    let covered: usize = index.iter().map(covers).sum();
    let Some(uncovered) = x.rank().checked_sub(covered) else {
        let axes = if x.rank() == 1 { "1 axis" } else { &format!("{} axes", x.rank()) };
        let reason = format!(
            "too many indices: {covered} for a tensor with {axes}, shape {}; remove some, or add axes with unsqueeze()",
            x.shape()
        );
        return Err(Error::invalid(op, reason));
    };
    match index.iter().filter(|item| matches!(item, IndexItem::Ellipsis)).count() {
        0 | 1 => Ok(uncovered),
        many => Err(Error::invalid(op, format!("an index can contain at most one ellipsis, got {many}"))),
    }
}

/// Resolves the items of an index, one after another.
struct IndexResolver<'x> {
    op: &'static str,
    x: &'x Tensor,
    /// The first axis of x that no item has covered yet.
    axis: usize,
    /// The shape of the result of the items so far, before index tensors are applied.
    shape: Vec<usize>,
    /// The number of axes that the ellipsis covers.
    uncovered: usize,
    has_tensors: bool,
    keeps_mask: bool,
    /// Whether an earlier item was an index tensor.
    has_index_tensors: bool,
    /// Whether a range or a new axis followed the last index tensor.
    has_gap: bool,
    resolved: ResolvedIndex,
}

impl IndexResolver<'_> {
    #[track_caller]
    fn add(&mut self, item: IndexItem) -> Result<()> {
        match item {
            IndexItem::NewAxis => {
                self.has_gap = true;
                self.shape.push(1);
            }
            IndexItem::Ellipsis => {
                self.has_gap |= self.uncovered > 0;
                self.shape.extend(&self.x.shape()[self.axis..self.axis + self.uncovered]);
                self.axis += self.uncovered;
            }
            IndexItem::At(at) => return self.add_position(at),
            IndexItem::Slice(slice) => {
                self.has_gap = true;
                let len = self.x.shape()[self.axis];
                let (start, step, count) = slice.resolve(self.op, len)?;
                if (start, step, count) != (0, 1, len) {
                    self.resolved.slices.push((self.axis, start, step, count));
                }
                self.shape.push(count);
                self.axis += 1;
            }
            IndexItem::Tensor(mask) if mask.dtype() == DType::Bool && mask.rank() == 0 => {
                return self.add_scalar_mask(&mask);
            }
            IndexItem::Tensor(mask) if mask.dtype() == DType::Bool => return self.add_mask(mask),
            IndexItem::Tensor(positions) => return self.add_positions(&positions),
        }
        Ok(())
    }

    fn add_position(&mut self, index: isize) -> Result<()> {
        let (op, axis, len) = (self.op, self.axis, self.x.shape()[self.axis]);
        let n = len as isize;
        if index < -n || index >= n {
            return Err(Error::IndexOutOfBounds { op, index: index as i64, axis, len });
        }
        // If the index contains index tensors, an integer is treated as an index tensor.
        if self.has_tensors {
            self.begin_index_tensor();
        }
        self.resolved.slices.push((axis, index.rem_euclid(n) as usize, 1, 1));
        self.axis += 1;
        Ok(())
    }

    /// Adds a 0-d mask, which covers no axis: it selects from a new axis of length 1.
    #[track_caller]
    fn add_scalar_mask(&mut self, mask: &Tensor) -> Result<()> {
        self.begin_index_tensor();
        let (axis, mask) = (self.shape.len(), view::reshape_to(mask, &[1].into())?);
        if self.keeps_mask {
            self.resolved.mask = Some((axis, mask));
        } else {
            let positions = nonzero::nonzero_as(self.op, &mask)?;
            self.resolved.index_tensors.extend(positions.into_iter().map(|positions| (axis, positions)));
        }
        self.shape.push(1);
        Ok(())
    }

    #[track_caller]
    fn add_mask(&mut self, mask: Tensor) -> Result<()> {
        let covered = &self.x.shape()[self.axis..self.axis + mask.rank()];
        if mask.shape()[..] != *covered {
            let help = format!(
                "a mask must have the shape of the axes that it covers, starting at axis {}; reshape() it, or put `..` \
                 before it",
                self.axis
            );
            return Err(Error::shapes(self.op, [self.x.shape(), mask.shape()], help));
        }
        self.begin_index_tensor();
        let first = self.shape.len();
        self.shape.extend(covered);
        self.axis += mask.rank();
        if self.keeps_mask {
            self.resolved.mask = Some((first, mask));
        } else {
            let positions = nonzero::nonzero_as(self.op, &mask)?;
            self.resolved.index_tensors.extend((first..).zip(positions));
        }
        Ok(())
    }

    fn add_positions(&mut self, positions: &Tensor) -> Result<()> {
        if !positions.dtype().is_int() {
            let help = "index tensors must be integers: use to_dtype(DType::I64); masks must be bool: use a comparison";
            return Err(Error::dtypes(self.op, [positions.dtype()], help));
        }
        self.begin_index_tensor();
        self.resolved.index_tensors.push((self.shape.len(), copy::to_dtype(positions, DType::I64)?));
        self.shape.push(self.x.shape()[self.axis]);
        self.axis += 1;
        Ok(())
    }

    /// Notes that the current item is an index tensor, or an integer that is treated as an index tensor.
    fn begin_index_tensor(&mut self) {
        self.resolved.are_adjacent &= !self.has_index_tensors || !self.has_gap;
        (self.has_index_tensors, self.has_gap) = (true, false);
    }
}
