//! Writes in place, and the graph operations that record these writes.

use crate::autograd::{InPlaceWrite, apply_one, interface::*, on_device_of};
use crate::engine;
use crate::engine::outermost_operation;
use crate::grad_mode::is_grad_enabled;
use crate::ops::elementwise::{arithmetic, compare};
use crate::ops::formula::broadcast;
use crate::ops::index::scatter;
use crate::ops::primitive::copy::write_array;
use crate::ops::primitive::{copy, create, fill, gather, view};
use crate::tensor::{AsStrided, AsStridedTranspose, Derivative, Tensor, offset_layout};
use pellucid_derive::tensor_method;
use pellucid_ir::kernel::{self, Index, Kernel, ScatterOp};
use pellucid_ir::{DType, Error, Layout, Result, Shape};
use smallvec::SmallVec;

/// Returns an error for a target that cannot be written in place: a leaf that requires a gradient or a view of one
/// (outside `no_grad`), or a tensor whose elements share memory.
pub(crate) fn check_writable(op: &'static str, target: &Tensor) -> Result<()> {
    if is_grad_enabled() && target.is_part_of_tracked_leaf() {
        return Err(Error::InPlaceOnTracked { op, shape: target.shape().clone() });
    }
    if target.array().layout().may_repeat() {
        let reason = format!(
            "elements of the target of shape {} share memory, by broadcasting or overlapping windows, so a write \
             would store several values in one element; write into a copy() of it",
            target.shape()
        );
        return Err(Error::invalid(op, reason));
    }
    Ok(())
}

/// Returns true if a write of `source` into `target` has to be recorded.
#[inline]
pub(crate) fn is_recorded_write(target: &Tensor, source: &Tensor) -> bool {
    is_grad_enabled() && target.dtype().is_float() && (source.requires_grad() || target.requires_grad())
}

/// Overwrites x in place with `source`, which is broadcast and converted. Every view of x's storage sees the new
/// values.
///
/// The write is recorded if x or the source is tracked: gradients of x, its views and its base then flow to the source.
/// Under `no_grad` the values are written and no autograd history changes.
///
/// ```
/// use pellucid::{DType, Tensor};
/// let x = Tensor::from([3.0f32]).requires_grad_(true);
/// let y = Tensor::zeros([1], DType::F32);
/// y.copy_(&x.square());
/// y.sum(..).backward();
/// assert_eq!(x.grad().unwrap().item::<f32>(), 6.0);
/// ```
///
/// # Errors
/// [`Error::InPlaceOnTracked`](pellucid_ir::Error::InPlaceOnTracked) if x is a leaf that requires a gradient, or a view
/// of one, outside `no_grad`; [`Error::ShapeMismatch`](pellucid_ir::Error::ShapeMismatch);
/// [`Error::InvalidArgument`](pellucid_ir::Error::InvalidArgument) if elements of x share memory. After an error
/// nothing is written.
#[doc(alias("assign", "copyto"))]
#[tensor_method]
pub fn copy_(x: &Tensor, source: &Tensor) -> Result<()> {
    check_writable("copy_", x)?;
    put_view("copy_", x, x.array(), source)
}

/// Writes `source` (broadcast, converted) into a view of the storage of x. The caller has called [`check_writable`].
pub(crate) fn put_view(op: &'static str, x: &Tensor, view: &Array, source: &Tensor) -> Result<()> {
    let source = &on_device_of(op, x, source)?;
    let values = source.array().broadcast_to(op, view.shape())?;
    if view.shape().size() == 0 || !is_recorded_write(x, source) {
        return write_array(&values, view);
    }
    let source = copy::to_dtype(&broadcast::broadcast_to(source, view.shape())?, x.dtype())?;
    let rewrite = InPlaceWrite::new(op, x, view)?;
    write_array(source.array(), view)?;
    let derivative = Overwrite { op, region: rewrite.region.clone(), shape: rewrite.shape.clone() };
    rewrite.record(x, &source, None, derivative);
    Ok(())
}

/// Writes `values` (broadcast, converted) in place, at index tensors for several axes of a view of x's storage. If
/// indices are equal, the last value in row-major order is stored.
pub(crate) fn put_axes(
    op: &'static str,
    x: &Tensor,
    view: &Array,
    axes: SmallVec<[usize; 4]>,
    indices: &[Tensor],
    values: &Tensor,
) -> Result<()> {
    check_writable(op, x)?;
    let values = &on_device_of(op, x, values)?;
    let indices: &[Tensor] = &indices.iter().map(|index| on_device_of(op, x, index)).collect::<Result<Vec<_>>>()?;
    let index = Index::Axes(axes.clone());
    let shape = index.shape(view.shape(), indices[0].shape());
    let (op, reduction) = (outermost_operation(op), ScatterOp::Set);
    let kernel = Kernel::Scatter(kernel::Scatter { op, from_end: true, index, reduction });
    let scatter = |values: &Array| {
        // A scatter reads and writes in different orders, so an operand in the target's memory is copied first.
        let copy_if_shared = |a: &Array| if a.shares_storage(view) { a.copy() } else { Ok(a.clone()) };
        let operands = std::iter::once(values).chain(indices.iter().map(|t| t.array()));
        let operands: SmallVec<[Array; 4]> = operands.map(copy_if_shared).collect::<Result<_>>()?;
        engine::submit(&kernel, &operands.iter().collect::<SmallVec<[&Array; 4]>>(), &[view])
    };
    let broadcast = values.array().broadcast_to(op, &shape)?;
    // Without index elements there is nothing to write or check.
    if shape.size() == 0 && view.shape().size() > 0 {
        return Ok(());
    }
    if shape.size() == 0 || !is_recorded_write(x, values) {
        return scatter(&broadcast.cast(x.dtype())?);
    }
    let values = copy::contiguous(&copy::to_dtype(&broadcast::broadcast_to(values, &shape)?, x.dtype())?)?;
    let rewrite = InPlaceWrite::new(op, x, view)?;
    let positions = copy::contiguous(&gather::gather_axes(
        op,
        &element_indices(&rewrite.shape, &rewrite.region)?,
        axes,
        indices,
        0,
    )?)?;
    scatter(values.array())?;
    let derivative = OverwriteAt { op, shape: rewrite.shape.clone() };
    rewrite.record(x, &values, Some(positions.array().clone()), derivative);
    Ok(())
}

/// Returns, for every element of a region, its row-major index in a value of shape `shape`.
fn element_indices(shape: &Shape, region: &Layout) -> Result<Tensor> {
    let indices = create::arange(0i64, shape.size() as i64, 1i64, DType::I64)?;
    Ok(Tensor::from(indices.array().view(region.clone())))
}

/// Returns a region of a contiguous value. `layout` is relative to the start of the value.
fn region_of(value: &Array, layout: &Layout) -> Array {
    debug_assert!(value.layout().is_contiguous());
    value.view(if layout.shape().contains(&0) {
        layout.clone()
    } else {
        offset_layout(layout, value.layout().offset() as isize)
    })
}

/// Overwrites a region of a contiguous value with zeros.
fn clear(value: &Array, region: &Layout) -> Result<()> {
    let zero = Array::filled(value.device(), value.dtype(), Shape::scalar(), 0.into())?;
    write_array(&zero.broadcast_to("zeros", region.shape())?, &region_of(value, region))
}

impl Operation for AsStrided {
    fn name(&self) -> &'static str {
        "as_strided"
    }
    fn forward(&self, inputs: &[&Array], _: &mut SaveForBackward) -> Result<Arrays> {
        Ok(smallvec![region_of(&inputs[0].contiguous()?, &self.layout)])
    }
    fn backward(&self, _: &SavedTensors, grads: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        let embedded = AsStridedTranspose { layout: self.layout.clone(), shape: self.shape.clone() };
        Ok(smallvec![Some(apply_one(embedded, &[&grads.get(0)?])?)])
    }
    fn is_view(&self) -> bool {
        true
    }
}

impl Operation for AsStridedTranspose {
    fn name(&self) -> &'static str {
        "embed"
    }
    fn forward(&self, inputs: &[&Array], _: &mut SaveForBackward) -> Result<Arrays> {
        let (x, layout) = (inputs[0], &self.layout);
        if layout.is_contiguous() && layout.offset() == 0 && layout.shape().size() == self.shape.size() {
            return Ok(smallvec![x.reshape(&self.shape)?]);
        }
        let filled = Array::filled(x.device(), x.dtype(), self.shape.clone(), 0.into())?;
        let stretched = |axis: &usize| layout.strides()[*axis] == 0 && layout.shape()[*axis] > 1;
        let axes: SmallVec<[usize; 4]> = (0..layout.shape().rank()).filter(stretched).collect();
        if axes.is_empty() && !layout.may_repeat() {
            write_array(x, &region_of(&filled, layout))?;
            return Ok(smallvec![filled]);
        }
        // The transpose of a view sums the gradients of the elements that the view repeats.
        let single = axes.iter().fold(layout.clone(), |l, &axis| l.slice(axis, 0, 1, 1));
        let sums = broadcast::sum_to(&Tensor::from(x.clone()), single.shape())?;
        if single.may_repeat() {
            let indices = view::ravel(&element_indices(&self.shape, &single)?)?;
            let totals = gather::scatter_add_axis(&view::ravel(&sums)?, 0, &indices, self.shape.size())?;
            return Ok(smallvec![totals.array().reshape(&self.shape)?]);
        }
        write_array(sums.array(), &region_of(&filled, &single))?;
        Ok(smallvec![filled])
    }
    fn backward(&self, _: &SavedTensors, grads: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        let strided = AsStrided { layout: self.layout.clone(), shape: self.shape.clone() };
        Ok(smallvec![Some(apply_one(strided, &[&grads.get(0)?])?)])
    }
    fn is_view(&self) -> bool {
        true
    }
}

/// The operation that copies a value of shape `shape` and overwrites a region of the copy with a source. The inputs are
/// the value and the source.
#[derive(Clone)]
struct Overwrite {
    op: &'static str,
    region: Layout,
    shape: Shape,
}

impl Operation for Overwrite {
    fn name(&self) -> &'static str {
        self.op
    }
    fn forward(&self, inputs: &[&Array], _: &mut SaveForBackward) -> Result<Arrays> {
        let out = inputs[0].copy()?;
        write_array(inputs[1], &region_of(&out, &self.region))?;
        Ok(smallvec![out])
    }
    fn backward(&self, _: &SavedTensors, grads: &OutputGradients, needs: NeedsInputGrad) -> Result<InputGradients> {
        if let Some(g) = grads.try_get(0)
            && !is_grad_enabled()
            && engine::is_immediate(g.device())
            && g.array().layout().is_contiguous()
            && g.is_unique()
        {
            // The gradient has no other owner and is updated in place. So a loop that writes a buffer region by region
            // costs only the size of the region in each step.
            let source = needs.contains(1).then(|| region_of(g.array(), &self.region).copy()).transpose()?;
            if needs.contains(0) {
                clear(g.array(), &self.region)?;
            }
            return Ok(smallvec![needs.contains(0).then(|| g.clone()), source.map(Tensor::from)]);
        }
        let g = grads.get(0)?;
        let value = match needs.contains(0) {
            true => {
                let zeros = fill::zeros(self.region.shape(), g.dtype())?;
                Some(apply_one(self.clone(), &[&g, &zeros])?)
            }
            false => None,
        };
        let strided = || AsStrided { layout: self.region.clone(), shape: self.shape.clone() };
        let source = needs.contains(1).then(|| apply_one(strided(), &[&g])).transpose()?;
        Ok(smallvec![value, source])
    }
}

/// The derivative of writing a source at saved row-major positions of a value of shape `shape`. If positions are equal,
/// the last one is stored. The inputs are the value, the source and the positions.
struct OverwriteAt {
    op: &'static str,
    shape: Shape,
}

impl Derivative for OverwriteAt {
    fn name(&self) -> &'static str {
        self.op
    }
    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, needs: NeedsInputGrad) -> Result<InputGradients> {
        let positions = saved.array(0)?;
        let shape = positions.shape().clone();
        let (g, positions) = (view::ravel(&grads.get(0)?)?, view::ravel(&positions)?);
        let mut gradients: InputGradients = smallvec![None, None, None];
        if needs.contains(0) {
            let zeros = fill::zeros(positions.shape(), g.dtype())?;
            gradients[0] = Some(view::reshape_to(&scatter::scatter(&g, 0, &positions, &zeros)?, &self.shape)?);
        }
        if needs.contains(1) {
            // If positions are equal, only the last source has a gradient. A scatter of the indices finds the last
            // ones.
            let indices = Tensor::arange(0, positions.size() as i64, 1);
            let last = scatter::scatter(&fill::zeros(g.shape(), DType::I64)?, 0, &positions, &indices)?;
            let is_last_write = compare::eq(&gather::take_along_axis(&last, &positions, 0)?, &indices)?;
            let source_gradient = arithmetic::where_(&is_last_write, &gather::take_along_axis(&g, &positions, 0)?, 0)?;
            gradients[1] = Some(view::reshape_to(&source_gradient, &shape)?);
        }
        Ok(gradients)
    }
}
