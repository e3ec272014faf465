//! Fractional max pooling.

use super::spatial::{PerAxis, channels, positive};
use crate::call;
use crate::layer::Layer;
use crate::module::{Module, display_as_tree};
use crate::parameter::Buffer;
use crate::visit::{Visit, Visitor};
use pellucid_derive::panicking_form;
use pellucid_tensor::ops::Spatial;
use pellucid_tensor::{Error, Result, Tensor, ops, unwrap};

/// The name of the layers in errors.
const FRACTIONAL: &str = "fractional_max_pool";

/// The number of windows along each axis.
#[derive(Clone, Copy, Debug)]
enum WindowCount<const N: usize> {
    Outputs([usize; N]),
    /// A fraction of each length, rounded down.
    Ratio([f64; N]),
}

/// Fractional max pooling (Graham 2014) over N axes: maxima of windows of one size at random positions, drawn for every
/// channel and input. A length may shrink by any factor, such as √2. See [`FractionalMaxPool2d`] and
/// [`FractionalMaxPool3d`].
///
/// ```
/// use pellucid::nn::{FractionalMaxPool2d, Layer};
/// let pool = FractionalMaxPool2d::of_ratio(3, [0.5, 0.75]);
/// assert_eq!(pool.output_shape(&[1, 8, 20, 20])?.dims(), [1, 8, 10, 15]);
/// # Ok::<(), pellucid::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct FractionalMaxPool<const N: usize> {
    size: [usize; N],
    count: WindowCount<N>,
    samples: Option<Buffer>,
}

impl<const N: usize> Module for FractionalMaxPool<N> {}

impl<const N: usize> Visit for FractionalMaxPool<N> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.module_as(self, if N == 2 { "FractionalMaxPool2d" } else { "FractionalMaxPool3d" }, None);
        visitor.setting("size", &self.size);
        visitor.field("_random_samples", &self.samples);
    }
}

display_as_tree! {
    [const N: usize] FractionalMaxPool<N>;
}

/// [`FractionalMaxPool`] over two axes: x is `[B, C, H, W]` or `[C, H, W]`.
pub type FractionalMaxPool2d = FractionalMaxPool<2>;
/// [`FractionalMaxPool`] over three axes: x is `[B, C, D, H, W]` or `[C, D, H, W]`.
pub type FractionalMaxPool3d = FractionalMaxPool<3>;

impl<const N: usize> FractionalMaxPool<N> {
    /// Creates a layer with this window size and number of windows.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a size or a number of 0.
    #[panicking_form]
    pub fn try_new(size: impl Into<PerAxis<N>>, outputs: impl Into<PerAxis<N>>) -> Result<FractionalMaxPool<N>> {
        let outputs = positive(FRACTIONAL, "outputs", outputs, "use 1 for an axis with one window")?;
        Self::with_count(size, WindowCount::Outputs(outputs))
    }

    /// Creates a layer with this window size and a number of windows that is a fraction in (0, 1) of each length.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a size of 0 or a ratio outside (0, 1).
    #[panicking_form]
    pub fn try_of_ratio(size: impl Into<PerAxis<N>>, ratio: [f64; N]) -> Result<FractionalMaxPool<N>> {
        if !ratio.iter().all(|r| *r > 0.0 && *r < 1.0) {
            let reason = format!("ratio must be in (0, 1) on every axis, got {ratio:?}; try 0.5");
            return Err(Error::invalid(FRACTIONAL, reason));
        }
        Self::with_count(size, WindowCount::Ratio(ratio))
    }

    fn with_count(size: impl Into<PerAxis<N>>, count: WindowCount<N>) -> Result<FractionalMaxPool<N>> {
        Ok(FractionalMaxPool { size: positive(FRACTIONAL, "size", size, Spatial::ONE_ELEMENT)?, count, samples: None })
    }

    /// Returns the size of the windows.
    pub fn size(&self) -> [usize; N] {
        self.size
    }

    /// Returns the number of windows along each axis; `None` if it is a fraction of each length.
    pub fn outputs(&self) -> Option<[usize; N]> {
        match self.count {
            WindowCount::Outputs(outputs) => Some(outputs),
            WindowCount::Ratio(_) => None,
        }
    }

    /// Returns the number of windows as a fraction of each length; `None` if the number itself is given.
    pub fn ratio(&self) -> Option<[f64; N]> {
        match self.count {
            WindowCount::Outputs(_) => None,
            WindowCount::Ratio(ratio) => Some(ratio),
        }
    }

    /// Uses the samples `[B, C, N]` in [0, 1) instead of random numbers; see [`ops::fractional_max_pool2d`]. The
    /// samples are a buffer, `_random_samples`, as in PyTorch.
    pub fn samples(self, samples: Tensor) -> FractionalMaxPool<N> {
        FractionalMaxPool { samples: Some(Buffer::new(samples)), ..self }
    }

    /// Returns the maxima and their `i64` indices in the flattened (row-major) spatial axes.
    ///
    /// # Errors
    /// The errors of [`ops::fractional_max_pool2d`].
    #[panicking_form]
    pub fn try_forward_with_indices(&self, x: &Tensor) -> Result<(Tensor, Tensor)> {
        call::call_unary_with_extra(self, x, |x| self.pooled(x))
    }

    fn pooled(&self, x: &Tensor) -> Result<(Tensor, Tensor)> {
        const { assert!(N == 2 || N == 3, "the number of spatial axes must be 2 or 3") };
        let outputs = match self.count {
            WindowCount::Outputs(outputs) => outputs,
            WindowCount::Ratio(ratio) => {
                channels::<N>(FRACTIONAL, x.shape())?;
                let mut outputs = [0; N];
                for a in 0..N {
                    outputs[a] = (x.shape()[x.rank() - N + a] as f64 * ratio[a]) as usize;
                }
                outputs
            }
        };
        let (size, samples) = (self.size, self.samples.as_deref());
        match N {
            2 => ops::fractional_max_pool2d(x, size, outputs, samples),
            _ => ops::fractional_max_pool3d(x, size, outputs, samples),
        }
    }
}

impl<const N: usize> Layer for FractionalMaxPool<N> {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        Ok(self.pooled(x)?.0)
    }
}
