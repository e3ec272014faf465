//! [`TensorOptions`]: dtype, device and gradient options of a new tensor.

use crate::device::Device;
use crate::grad_mode::no_grad;
use crate::ops::primitive::copy::to_dtype;
use crate::panic;
use crate::tensor::Tensor;
use pellucid_ir::{DType, Result};

/// Options of [`Tensor::with_options`].
#[derive(Clone, Copy, Debug, Default)]
pub struct TensorOptions {
    /// The dtype; by default, the dtype of the data.
    pub dtype: Option<DType>,
    /// The device, to which the tensor is pinned; by default, the tensor is [free](Tensor::is_free) on the CPU.
    pub device: Option<Device>,
    /// Whether the tensor requires a gradient; see [`Tensor::set_requires_grad`].
    pub requires_grad: bool,
    /// Whether backward passes keep the gradient even after a recorded write in place, which makes the leaf a result;
    /// see [`Tensor::set_retain_grad`].
    pub retain_grad: bool,
}

impl Tensor {
    /// Creates a leaf from data. Options set dtype, device, `requires_grad` and `retain_grad`.
    ///
    /// The data are scalars, nested arrays, slices or vectors, as for `Tensor::from`, or a tensor, whose history is
    /// ignored. The leaf shares the storage of a tensor with this dtype on this device.
    ///
    /// ```
    /// use pellucid::{DType, Device, Tensor, TensorOptions};
    /// let options = TensorOptions {
    ///     dtype: Some(DType::F32),
    ///     device: Some(Device::cpu()),
    ///     requires_grad: true,
    ///     ..Default::default()
    /// };
    /// let x = Tensor::with_options([[1, 2], [3, 4]], options);
    /// assert_eq!((x.dtype(), x.shape().dims(), x.requires_grad()), (DType::F32, &[2, 2][..], true));
    /// ```
    ///
    /// # Panics
    /// Panics if [`Tensor::try_with_options`] returns an error, and if nested arrays at the same depth differ in
    /// length.
    #[track_caller]
    pub fn with_options(data: impl Into<Tensor>, options: TensorOptions) -> Tensor {
        panic::unwrap(leaf_with_options(data.into(), options))
    }

    /// Runs [`Tensor::with_options`] and returns errors as values.
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`](crate::Error::DTypeMismatch) if a tensor that requires a gradient would not be of a
    /// float dtype; the errors of [`ops::to_dtype`](crate::ops::to_dtype) and [`Tensor::to`].
    #[track_caller]
    pub fn try_with_options(data: impl Into<Tensor>, options: TensorOptions) -> Result<Tensor> {
        leaf_with_options(data.into(), options)
    }
}

#[track_caller]
fn leaf_with_options(data: Tensor, options: TensorOptions) -> Result<Tensor> {
    let TensorOptions { dtype, device, requires_grad, retain_grad } = options;
    let _guard = no_grad();
    let mut leaf = data.detach();
    if let Some(dtype) = dtype {
        leaf = to_dtype(&leaf, dtype)?;
    }
    if let Some(device) = device {
        leaf = leaf.try_to(device)?;
    }
    // A view would link the leaf to the other views of its storage.
    let leaf = leaf.detach();
    leaf.set_requires_grad(requires_grad)?;
    leaf.set_retain_grad(retain_grad);
    Ok(leaf)
}
