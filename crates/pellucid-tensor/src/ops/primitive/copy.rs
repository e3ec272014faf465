//! Copies: dtype conversion and dense layouts.

use crate::array::{inverse_order, storage_order};
use crate::autograd::{apply_one, copy_to, interface::*};
use crate::device::IntoDevice;
use crate::engine;
use crate::grad_mode::no_grad;
use crate::panic::unwrap;
use crate::tensor::Tensor;
use pellucid_derive::{panicking_form, tensor_method};
use pellucid_ir::kernel::Kernel;
use pellucid_ir::{DType, Error, Result};

/// Converts `x` and writes it into the elements of `target`, which has the same shape.
pub(crate) fn write_array(x: &Array, target: &Array) -> Result<()> {
    engine::submit(&Kernel::Copy, &[x], &[target])
}

/// A dense copy: a conversion to another dtype in the memory order of the input, or a row-major copy in the same dtype.
struct CopyAs {
    dtype: DType,
}

impl Operation for CopyAs {
    fn name(&self) -> &'static str {
        "to_dtype"
    }
    fn forward(&self, inputs: &[&Array], _: &mut SaveForBackward) -> Result<Arrays> {
        let x = inputs[0];
        if x.dtype() != self.dtype
            && let Some(order) = storage_order(x.shape(), &[x])
        {
            let converted = x.view(x.layout().permute(&order)).cast(self.dtype)?;
            return Ok(smallvec![converted.view(converted.layout().permute(&inverse_order(&order)))]);
        }
        Ok(smallvec![x.cast(self.dtype)?])
    }
    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        Ok(smallvec![Some(to_dtype(&grads.get(0)?, saved.input_dtype(0))?)])
    }
}

/// Converts every element to `dtype`. Returns the same tensor if it already has this dtype.
///
/// A conversion to an integer dtype truncates floats towards zero and saturates (NaN becomes 0), and wraps wider
/// integers. A conversion to bool makes nonzero elements true.
///
/// # Errors
/// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
#[doc(alias("astype", "type", "to", "float", "double", "half", "bfloat16", "long", "int", "short", "bool"))]
#[tensor_method]
pub fn to_dtype(x: &Tensor, dtype: DType) -> Result<Tensor> {
    if x.dtype() == dtype { Ok(x.clone()) } else { apply_one(CopyAs { dtype }, &[x]) }
}

/// Returns the same elements in a contiguous layout, or the same tensor if it is contiguous.
///
/// # Errors
/// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
#[doc(alias = "ascontiguousarray")]
#[tensor_method]
pub fn contiguous(x: &Tensor) -> Result<Tensor> {
    if x.array().layout().is_contiguous() { Ok(x.clone()) } else { copy(x) }
}

/// Returns a copy with its own storage, through which gradients flow (PyTorch's `clone`).
///
/// # Errors
/// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
#[doc(alias = "clone")]
#[tensor_method]
pub fn copy(x: &Tensor) -> Result<Tensor> {
    apply_one(CopyAs { dtype: x.dtype() }, &[x])
}

struct IdentityView;

impl Operation for IdentityView {
    fn name(&self) -> &'static str {
        "identity"
    }
    fn forward(&self, inputs: &[&Array], _: &mut SaveForBackward) -> Result<Arrays> {
        Ok(smallvec![inputs[0].clone()])
    }
    fn backward(&self, _: &SavedTensors, grads: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        Ok(smallvec![Some(grads.get(0)?)])
    }
    fn is_view(&self) -> bool {
        true
    }
}

impl Tensor {
    /// Copies the tensor to `device` and pins the copy there. The copy has the history of the tensor: its gradient
    /// flows back to this tensor, on this tensor's device.
    ///
    /// A tensor that is already on the device is not copied: the result shares its storage. This tensor stays
    /// [free](Tensor::is_free) if it is free. For a pinned tensor on this device, the result is another handle to the
    /// tensor.
    ///
    /// ```
    /// use pellucid::{Device, Tensor};
    /// let device = Device::best();
    /// let x = Tensor::from([1.0f32, 2.0]).requires_grad_(true);
    /// let y = x.to(device) * 3.0; // or a name: x.to("gpu")
    /// y.sum(..).backward();
    /// assert_eq!(y.device(), device);
    /// assert_eq!(x.grad().unwrap().device(), x.device());
    /// # Ok::<(), pellucid::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ReadInCapture`](crate::Error::ReadInCapture) for a copy between devices inside a captured step;
    /// [`Error::DeviceUnavailable`](crate::Error::DeviceUnavailable) for the name of a device that does not exist;
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory) and other errors of the device.
    #[panicking_form]
    #[doc(alias("cuda", "cpu"))]
    pub fn try_to(&self, device: impl IntoDevice) -> Result<Tensor> {
        let device = device.into_device()?;
        if self.device() != device {
            return copy_to(self, device);
        }
        if self.is_free() { Ok(identity(self)?.pinned()) } else { Ok(self.clone()) }
    }

    /// Converts a leaf and its gradient to another dtype in place. It stays the same tensor: all its handles use the
    /// new elements. Existing views keep the old elements. If a graph was recorded before the conversion, its gradient
    /// is converted when a backward pass accumulates it.
    ///
    /// ```
    /// use pellucid::{DType, Tensor};
    /// let weight = Tensor::from([1.0f32, 2.0]).requires_grad_(true);
    /// let handle = weight.clone();
    /// weight.to_dtype_(DType::F64);
    /// assert_eq!(handle.to_vec::<f64>(), [1.0, 2.0]);
    /// # Ok::<(), pellucid::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`] if the tensor requires a gradient and `dtype` is not a float. If the dtype differs,
    /// [`Error::InvalidArgument`] for a tensor that is not a leaf (use [`Tensor::to_dtype`]), for a view, for a tensor
    /// with views and a layout that is not contiguous, and inside a captured step; errors of the device.
    #[panicking_form]
    pub fn try_to_dtype_(&self, dtype: DType) -> Result<()> {
        if self.dtype() == dtype {
            return Ok(());
        }
        self.check_movable("to_dtype_")?;
        if self.requires_grad() && !dtype.is_float() {
            let help = "a tensor that requires a gradient must have a float dtype; call requires_grad_(false) first";
            return Err(Error::dtypes("to_dtype_", [self.dtype(), dtype], help));
        }
        let _off = no_grad();
        let convert = |tensor: &Tensor| to_dtype(&tensor.detach(), dtype);
        let gradient = self.grad_untracked().filter(|_| dtype.is_float());
        let gradient = gradient.map(|gradient| convert(&gradient)).transpose()?;
        self.set_converted(convert(self)?.array(), gradient)
    }
}

/// Returns a new tensor with the same elements, connected to x by a graph node without a kernel.
pub(crate) fn identity(x: &Tensor) -> Result<Tensor> {
    apply_one(IdentityView, &[x])
}
