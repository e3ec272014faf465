//! Max unpooling, the partial inverse of max pooling.

use super::spatial::{PerAxis, by_axes, channels, positive};
use crate::call;
use pellucid_derive::{Module, panicking_form};
use pellucid_tensor::ops::Spatial;
use pellucid_tensor::{Error, Result, Tensor, ops, unwrap};

/// The partial inverse of a [`MaxPool`](crate::MaxPool) with the same options: maxima at their positions, zeros
/// elsewhere.
///
/// ```
/// use pellucid::nn::{MaxPool2d, MaxUnpool2d};
/// use pellucid::Tensor;
/// let x = Tensor::from([[[[1.0f32, 2.0], [4.0, 3.0]]]]);
/// let (y, indices) = MaxPool2d::new(2).forward_with_indices(&x);
/// assert_eq!(MaxUnpool2d::new(2).forward(&y, &indices).to_vec::<f32>(), [0.0, 0.0, 4.0, 0.0]);
/// # Ok::<(), pellucid::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Module)]
#[module(display)]
#[module(class = by_axes::<_, N>(["MaxUnpool1d", "MaxUnpool2d", "MaxUnpool3d"]))]
pub struct MaxUnpool<const N: usize> {
    /// The size of the windows.
    pub size: [usize; N],
    /// The distance between windows.
    pub stride: [usize; N],
    /// The padding of the pooling.
    pub padding: [usize; N],
}

/// [`MaxUnpool`] over one axis: x is `[B, C, L]` or `[C, L]`.
pub type MaxUnpool1d = MaxUnpool<1>;
/// [`MaxUnpool`] over two axes: x is `[B, C, H, W]` or `[C, H, W]`.
pub type MaxUnpool2d = MaxUnpool<2>;
/// [`MaxUnpool`] over three axes: x is `[B, C, D, H, W]` or `[C, D, H, W]`.
pub type MaxUnpool3d = MaxUnpool<3>;

impl<const N: usize> MaxUnpool<N> {
    /// The name of the layer in errors.
    const NAME: &'static str = by_axes::<_, N>(["MaxUnpool1d", "MaxUnpool2d", "MaxUnpool3d"]);

    /// Creates a layer with windows of this size; the stride is the size.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a size of 0.
    #[panicking_form]
    pub fn try_new(size: impl Into<PerAxis<N>>) -> Result<MaxUnpool<N>> {
        let size = positive(Self::NAME, "size", size, Spatial::ONE_ELEMENT)?;
        Ok(MaxUnpool { size, stride: size, padding: [0; N] })
    }

    /// Sets the stride.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a stride of 0.
    #[panicking_form]
    pub fn try_stride(self, stride: impl Into<PerAxis<N>>) -> Result<MaxUnpool<N>> {
        Ok(MaxUnpool { stride: positive(Self::NAME, "stride", stride, Spatial::DEFAULT_IS_SIZE)?, ..self })
    }

    /// Sets the padding of the pooling.
    pub fn padding(self, padding: impl Into<PerAxis<N>>) -> MaxUnpool<N> {
        MaxUnpool { padding: padding.into().0, ..self }
    }

    /// Places the elements of x at their `indices`, with the spatial lengths (L − 1)·stride − 2·padding + size.
    ///
    /// # Errors
    /// The errors of [`ops::max_unpool2d`].
    #[panicking_form]
    pub fn try_forward(&self, x: &Tensor, indices: &Tensor) -> Result<Tensor> {
        call::call(self, &[x, indices], || self.unpooled(x, indices, self.dims_for(x)?))
    }

    /// Places the elements of x at their `indices` in an output of these spatial lengths. Pooling maps several input
    /// lengths to the same output length, so the lengths of [`forward`](Self::forward) may differ from the lengths
    /// of the tensor that was pooled.
    ///
    /// # Errors
    /// The errors of [`ops::max_unpool2d`].
    #[panicking_form]
    pub fn try_forward_to(&self, x: &Tensor, indices: &Tensor, dims: [usize; N]) -> Result<Tensor> {
        call::call(self, &[x, indices], || self.unpooled(x, indices, dims))
    }

    fn unpooled(&self, x: &Tensor, indices: &Tensor, dims: [usize; N]) -> Result<Tensor> {
        by_axes::<_, N>([ops::max_unpool1d, ops::max_unpool2d, ops::max_unpool3d])(x, indices, &dims)
    }

    /// Returns the spatial lengths of the output for x, if they are not given.
    fn dims_for(&self, x: &Tensor) -> Result<[usize; N]> {
        channels::<N>("max_unpool", x.shape())?;
        let mut dims = [0; N];
        for a in 0..N {
            let steps = x.shape()[x.rank() - N + a].saturating_sub(1).saturating_mul(self.stride[a]);
            let help = || {
                Error::shapes(
                    "max_unpool",
                    [x.shape()],
                    "2 * padding must be at most (length - 1) * stride + size on every axis; reduce the padding",
                )
            };
            let full = steps.saturating_add(self.size[a]);
            dims[a] = full.checked_sub(self.padding[a].saturating_mul(2)).ok_or_else(help)?;
        }
        Ok(dims)
    }
}
