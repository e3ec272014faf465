//! Layers that rearrange elements, and the identity.

use super::spatial::{PerAxis, positive};
use crate::layer::Layer;
use pellucid_derive::{Module, panicking_form};
use pellucid_tensor::ops::{FoldOptions, Spatial};
use pellucid_tensor::{Result, Tensor, ops, unwrap};

/// The identity: returns x.
#[derive(Clone, Copy, Debug, Default, Module)]
#[module(display)]
pub struct Identity;

impl Layer for Identity {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.clone())
    }
}

/// Flattens a range of axes to one: by default `[N, d..]` becomes `[N, Πd]`.
#[derive(Clone, Copy, Debug, Module)]
#[module(display)]
pub struct Flatten {
    /// The first axis of the range; default 1.
    pub start: isize,
    /// The last axis of the range; default −1.
    pub end: isize,
}

impl Flatten {
    /// Creates a layer that flattens every sample to a vector.
    pub fn new() -> Flatten {
        Flatten { start: 1, end: -1 }
    }
}

impl Default for Flatten {
    fn default() -> Flatten {
        Flatten::new()
    }
}

impl Layer for Flatten {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        ops::flatten(x, self.start, self.end)
    }
}

/// Splits one axis into several.
#[derive(Clone, Debug, Module)]
#[module(display)]
pub struct Unflatten {
    /// The axis.
    pub axis: isize,
    /// The new lengths; one may be −1.
    pub lengths: Vec<isize>,
}

impl Unflatten {
    /// Creates a layer that splits an axis into these lengths; one may be −1.
    pub fn new(axis: isize, lengths: impl Into<Vec<isize>>) -> Unflatten {
        Unflatten { axis, lengths: lengths.into() }
    }
}

impl Layer for Unflatten {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        ops::unflatten(x, self.axis, &self.lengths[..])
    }
}

/// Defines layers with windows over the last two axes.
macro_rules! windows {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident),* };)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Module)]
        #[module(display)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: [usize; 2],)*
            /// The size of the windows.
            pub size: [usize; 2],
            /// The distance between windows.
            pub stride: [usize; 2],
            /// The padding at both ends of each axis.
            pub padding: [usize; 2],
            /// The distance between elements of a window.
            pub dilation: [usize; 2],
        }

        impl $name {
            /// Creates a layer with windows of this size; stride 1, no padding, dilation 1.
            ///
            /// # Errors
            /// [`Error::InvalidArgument`](pellucid_tensor::Error::InvalidArgument) for a size of 0.
            #[panicking_form]
            pub fn try_new($($field: impl Into<PerAxis<2>>,)* size: impl Into<PerAxis<2>>) -> Result<$name> {
                let (size, one) = (positive(stringify!($name), "size", size, Spatial::ONE_ELEMENT)?, [1, 1]);
                Ok($name { $($field: $field.into().0,)* size, stride: one, padding: [0, 0], dilation: one })
            }

            fn options(&self) -> FoldOptions {
                FoldOptions {
                    size: self.size.into(),
                    dilation: self.dilation.into(),
                    padding: self.padding.into(),
                    stride: self.stride.into(),
                }
            }

            /// Sets the stride.
            ///
            /// # Errors
            /// [`Error::InvalidArgument`](pellucid_tensor::Error::InvalidArgument) for a stride of 0.
            #[panicking_form]
            pub fn try_stride(self, stride: impl Into<PerAxis<2>>) -> Result<$name> {
                Ok($name { stride: positive(stringify!($name), "stride", stride, Spatial::DEFAULT_IS_ONE)?, ..self })
            }

            /// Sets the padding.
            pub fn padding(self, padding: impl Into<PerAxis<2>>) -> $name {
                $name { padding: padding.into().0, ..self }
            }

            /// Sets the dilation, the distance between elements of a window.
            ///
            /// # Errors
            /// [`Error::InvalidArgument`](pellucid_tensor::Error::InvalidArgument) for a dilation of 0.
            #[panicking_form]
            pub fn try_dilation(self, dilation: impl Into<PerAxis<2>>) -> Result<$name> {
                Ok($name { dilation: positive(stringify!($name), "dilation", dilation, Spatial::DEFAULT_IS_ONE)?, ..self })
            }
        }
    )*};
}

windows! {
    /// Extracts every window of images as a column: `[B, C, H, W]` becomes `[B, C·taps, windows]`.
    Unfold {};
    /// The transpose of the linear map [`Unfold`]: `[B, C·taps, windows]` becomes images `[B, C, H, W]` of given
    /// lengths. Values of overlapping windows are summed.
    Fold {
        /// The lengths H and W of the images.
        dims
    };
}

impl Layer for Unfold {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        ops::unfold(x, self.options(), 2)
    }
}

impl Layer for Fold {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        ops::fold(x, &self.dims, self.options())
    }
}
