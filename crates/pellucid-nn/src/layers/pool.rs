//! Pooling: the maximum, the mean or the p-norm of windows, given by their size or by their number.

use super::spatial::{PerAxis, by_axes, positive};
use crate::call;
use crate::layer::Layer;
use pellucid_derive::{Module, panicking_form};
use pellucid_tensor::ops::{AvgPoolDivisor, PoolOptions, Spatial};
use pellucid_tensor::{Error, OptionRange, Result, Tensor, ops, unwrap};

/// Defines pooling layers with a window size, and their common options.
macro_rules! windows {
    ($($(#[$doc:meta])* $name:ident: $one:ident, $two:ident, $three:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty),* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Module)]
        #[module(display)]
        #[module(class = by_axes::<_, N>([stringify!($one), stringify!($two), stringify!($three)]))]
        pub struct $name<const N: usize> {
            pool: PoolOptions,
            $($(#[$field_doc])* pub $field: $type,)*
        }

        #[doc = concat!("[`", stringify!($name), "`] over one axis: x is `[B, C, L]` or `[C, L]`.")]
        pub type $one = $name<1>;
        #[doc = concat!("[`", stringify!($name), "`] over two axes: x is `[B, C, H, W]` or `[C, H, W]`.")]
        pub type $two = $name<2>;
        #[doc = concat!("[`", stringify!($name), "`] over three axes: x is `[B, C, D, H, W]` or `[C, D, H, W]`.")]
        pub type $three = $name<3>;

        impl<const N: usize> $name<N> {
            /// The name of the layer in errors.
            const NAME: &'static str = by_axes::<_, N>([stringify!($one), stringify!($two), stringify!($three)]);

            /// Sets the stride, by default the window size.
            ///
            /// # Errors
            /// [`Error::InvalidArgument`] for a stride of 0.
            #[panicking_form]
            pub fn try_stride(mut self, stride: impl Into<PerAxis<N>>) -> Result<$name<N>> {
                self.pool.stride = Some(positive(Self::NAME, "stride", stride, Spatial::DEFAULT_IS_SIZE)?.into());
                Ok(self)
            }

            /// Sets whether output lengths are rounded up: a last window that extends beyond the input counts if it
            /// starts inside the input.
            pub fn ceil_mode(mut self, ceil: bool) -> $name<N> {
                self.pool.ceil = ceil;
                self
            }

            /// Returns the size of the windows and their options. If the stride is `None`, it equals the size.
            pub fn options(&self) -> &PoolOptions {
                &self.pool
            }
        }
    )*};
}

windows! {
    /// Max pooling: the maximum of every window.
    ///
    /// An axis of length L becomes `⌊(L + 2·padding − dilation·(size − 1) − 1) / stride⌋ + 1`; with
    /// [`ceil_mode`](MaxPool::ceil_mode), the quotient is rounded up.
    ///
    /// ```
    /// use pellucid::nn::{Layer, MaxPool2d};
    /// let pool = MaxPool2d::new(3).stride(2).padding(1);
    /// assert_eq!(pool.output_shape(&[1, 64, 112, 112])?.dims(), [1, 64, 56, 56]);
    /// # Ok::<(), pellucid::Error>(())
    /// ```
    MaxPool: MaxPool1d, MaxPool2d, MaxPool3d {}
    /// Average pooling: the mean of every window. Padding counts as zeros. Output lengths are computed as for
    /// [`MaxPool`].
    AvgPool: AvgPool1d, AvgPool2d, AvgPool3d {
        /// The divisor of the sum of a window.
        divisor: AvgPoolDivisor
    }
    /// Power-average pooling: (Σ xᵖ)^(1/p) over every window. Output lengths are computed as for [`MaxPool`].
    LpPool: LpPool1d, LpPool2d, LpPool3d {
        /// The order of the norms.
        p: f64
    }
}

/// Returns the options of adjacent windows of this size.
fn windows<const N: usize>(layer: &'static str, size: impl Into<PerAxis<N>>) -> Result<PoolOptions> {
    Ok(PoolOptions::new(positive(layer, "size", size, Spatial::ONE_ELEMENT)?))
}

impl<const N: usize> MaxPool<N> {
    /// Creates a layer with windows of this size; the stride is the size.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a size of 0.
    #[panicking_form]
    pub fn try_new(size: impl Into<PerAxis<N>>) -> Result<MaxPool<N>> {
        Ok(MaxPool { pool: windows(Self::NAME, size)? })
    }

    /// Sets the padding, at most half the window size; it counts as −∞. A dilation enlarges the window; therefore the
    /// padding is checked when the layer is called.
    pub fn padding(self, padding: impl Into<PerAxis<N>>) -> MaxPool<N> {
        MaxPool { pool: PoolOptions { padding: padding.into().0.into(), ..self.pool } }
    }

    /// Sets the dilation, the distance between elements of a window.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a dilation of 0.
    #[panicking_form]
    pub fn try_dilation(self, dilation: impl Into<PerAxis<N>>) -> Result<MaxPool<N>> {
        let dilation = positive(Self::NAME, "dilation", dilation, Spatial::DEFAULT_IS_ONE)?.into();
        Ok(MaxPool { pool: PoolOptions { dilation, ..self.pool } })
    }

    /// Returns the maxima and their `i64` indices in the flattened (row-major) spatial axes, which
    /// [`MaxUnpool`](crate::MaxUnpool) needs.
    ///
    /// # Errors
    /// The errors of [`ops::max_pool2d`].
    #[panicking_form]
    pub fn try_forward_with_indices(&self, x: &Tensor) -> Result<(Tensor, Tensor)> {
        call::call_unary_with_extra(self, x, |x| self.pooled(x))
    }

    fn pooled(&self, x: &Tensor) -> Result<(Tensor, Tensor)> {
        by_axes::<_, N>([ops::max_pool1d, ops::max_pool2d, ops::max_pool3d])(x, self.pool.clone())
    }
}

impl<const N: usize> Layer for MaxPool<N> {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        Ok(self.pooled(x)?.0)
    }
}

impl<const N: usize> AvgPool<N> {
    /// Creates a layer with windows of this size; the stride is the size.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a size of 0.
    #[panicking_form]
    pub fn try_new(size: impl Into<PerAxis<N>>) -> Result<AvgPool<N>> {
        Ok(AvgPool { pool: windows(Self::NAME, size)?, divisor: AvgPoolDivisor::default() })
    }

    /// Sets the padding, at most half the window size.
    pub fn padding(self, padding: impl Into<PerAxis<N>>) -> AvgPool<N> {
        AvgPool { pool: PoolOptions { padding: padding.into().0.into(), ..self.pool }, ..self }
    }

    /// Sets the divisor of sums; by default the window size including padding.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a number that is 0 or not finite.
    #[panicking_form]
    pub fn try_divisor(self, divisor: AvgPoolDivisor) -> Result<AvgPool<N>> {
        if let AvgPoolDivisor::Number(number) = divisor
            && (number == 0.0 || !number.is_finite())
        {
            let help = "the default is AvgPoolDivisor::Window, the size of the window";
            let reason = format!("divisor must be finite and nonzero, got {number}; {help}");
            return Err(Error::invalid(Self::NAME, reason));
        }
        Ok(AvgPool { divisor, ..self })
    }
}

impl<const N: usize> Layer for AvgPool<N> {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        by_axes::<_, N>([ops::avg_pool1d, ops::avg_pool2d, ops::avg_pool3d])(x, self.pool.clone(), self.divisor)
    }
}

impl<const N: usize> LpPool<N> {
    /// Creates a layer that computes the p-norms of windows of this size; the stride is the size.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a size of 0, and for p = 0 or NaN.
    #[panicking_form]
    pub fn try_new(p: f64, size: impl Into<PerAxis<N>>) -> Result<LpPool<N>> {
        OptionRange::NONZERO.check(Self::NAME, "p", p, 2.0)?;
        Ok(LpPool { pool: windows(Self::NAME, size)?, p })
    }
}

impl<const N: usize> Layer for LpPool<N> {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        by_axes::<_, N>([ops::lp_pool1d, ops::lp_pool2d, ops::lp_pool3d])(x, self.p, self.pool.clone())
    }
}

/// The number of windows along each of N spatial axes: one number for all axes, or one for each. `None` keeps the
/// length of an axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Windows<const N: usize>(pub [Option<usize>; N]);

impl<const N: usize> From<usize> for Windows<N> {
    fn from(all: usize) -> Windows<N> {
        Windows([Some(all); N])
    }
}

impl<const N: usize> From<[usize; N]> for Windows<N> {
    fn from(each: [usize; N]) -> Windows<N> {
        Windows(each.map(Some))
    }
}

impl<const N: usize> From<[Option<usize>; N]> for Windows<N> {
    fn from(each: [Option<usize>; N]) -> Windows<N> {
        Windows(each)
    }
}

macro_rules! adaptive {
    ($($(#[$doc:meta])* $name:ident: $one:ident, $two:ident, $three:ident;)*) => {$(
        $(#[$doc])*
        /// Window o of O covers the elements ⌊o·L/O⌋ .. ⌈(o + 1)·L/O⌉ of an axis of length L.
        #[derive(Clone, Copy, Debug, Module)]
        #[module(display)]
        #[module(class = by_axes::<_, N>([stringify!($one), stringify!($two), stringify!($three)]))]
        pub struct $name<const N: usize> {
            /// The number of windows along each axis; `None` keeps its length.
            #[module(setting)]
            pub windows: [Option<usize>; N],
        }

        #[doc = concat!("[`", stringify!($name), "`] over one axis: x is `[B, C, L]` or `[C, L]`.")]
        pub type $one = $name<1>;
        #[doc = concat!("[`", stringify!($name), "`] over two axes: x is `[B, C, H, W]` or `[C, H, W]`.")]
        pub type $two = $name<2>;
        #[doc = concat!("[`", stringify!($name), "`] over three axes: x is `[B, C, D, H, W]` or `[C, D, H, W]`.")]
        pub type $three = $name<3>;

        impl<const N: usize> $name<N> {
            /// Creates a layer with this number of windows along each axis: `1`, `[7, 7]`, `[Some(7), None]`. With 0
            /// windows along an axis, the result is empty, as in PyTorch.
            pub fn new(windows: impl Into<Windows<N>>) -> $name<N> {
                $name { windows: windows.into().0 }
            }
        }
    )*};
}

adaptive! {
    /// Adaptive average pooling: the means of a given number of windows of about equal size.
    AdaptiveAvgPool: AdaptiveAvgPool1d, AdaptiveAvgPool2d, AdaptiveAvgPool3d;
    /// Adaptive max pooling: the maxima of a given number of windows of about equal size.
    AdaptiveMaxPool: AdaptiveMaxPool1d, AdaptiveMaxPool2d, AdaptiveMaxPool3d;
}

impl<const N: usize> Layer for AdaptiveAvgPool<N> {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        let pool = by_axes::<_, N>([ops::adaptive_avg_pool1d, ops::adaptive_avg_pool2d, ops::adaptive_avg_pool3d]);
        pool(x, &self.windows)
    }
}

impl<const N: usize> AdaptiveMaxPool<N> {
    /// Returns the maxima and their `i64` indices in the flattened (row-major) spatial axes.
    ///
    /// # Errors
    /// The errors of [`ops::adaptive_max_pool2d`].
    #[panicking_form]
    pub fn try_forward_with_indices(&self, x: &Tensor) -> Result<(Tensor, Tensor)> {
        call::call_unary_with_extra(self, x, |x| self.pooled(x))
    }

    fn pooled(&self, x: &Tensor) -> Result<(Tensor, Tensor)> {
        let pool = by_axes::<_, N>([ops::adaptive_max_pool1d, ops::adaptive_max_pool2d, ops::adaptive_max_pool3d]);
        pool(x, &self.windows)
    }
}

impl<const N: usize> Layer for AdaptiveMaxPool<N> {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        Ok(self.pooled(x)?.0)
    }
}
