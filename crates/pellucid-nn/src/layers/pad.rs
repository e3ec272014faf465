//! Padding of spatial axes.

use super::spatial::by_axes;
use crate::layer::Layer;
use pellucid_derive::{Module, panicking_form};
use pellucid_tensor::ops::{PadWidth, PaddingMode};
use pellucid_tensor::{Error, Result, Scalar, Tensor, ops, unwrap};

/// Pads the last N axes of x.
pub(super) fn pad_last<const N: usize>(x: &Tensor, width: [(isize, isize); N], mode: PaddingMode) -> Result<Tensor> {
    let Some(unpadded_axes) = x.rank().checked_sub(N) else {
        let help = format!("the input must have at least {N} axes, because the last {N} are padded");
        return Err(Error::shapes("pad", [x.shape()], help));
    };
    let width: Vec<(isize, isize)> = std::iter::repeat_n((0, 0), unpadded_axes).chain(width).collect();
    ops::pad(x, &width[..], mode)
}

/// Returns the widths (before, after) of each of N axes.
fn width_per_axis<const N: usize>(width: PadWidth) -> Result<[(isize, isize); N]> {
    let pairs = width.pairs(N).and_then(|pairs| pairs.try_into().ok());
    pairs.ok_or_else(|| {
        let reason = format!("the padding must be one pair (before, after), or one for each of {N} axes; got {width}");
        Error::invalid("pad", reason)
    })
}

macro_rules! pads {
    ($($(#[$doc:meta])* $name:ident: $one:ident, $two:ident, $three:ident = $mode:expr;)*) => {$(
        $(#[$doc])*
        ///
        /// The width is one number for all ends, a pair (before, after) for all axes, or one pair for each axis in
        /// order. A negative number crops.
        #[derive(Clone, Copy, Debug, Module)]
        #[module(display)]
        #[module(class = by_axes::<_, N>([stringify!($one), stringify!($two), stringify!($three)]))]
        pub struct $name<const N: usize> {
            /// The padding (before, after) of each axis.
            #[module(setting)]
            pub width: [(isize, isize); N],
        }

        #[doc = concat!("[`", stringify!($name), "`] of the last axis.")]
        pub type $one = $name<1>;
        #[doc = concat!("[`", stringify!($name), "`] of the last two axes.")]
        pub type $two = $name<2>;
        #[doc = concat!("[`", stringify!($name), "`] of the last three axes.")]
        pub type $three = $name<3>;

        impl<const N: usize> $name<N> {
            /// Creates a layer with this padding of the last N axes.
            ///
            /// # Errors
            /// [`Error::InvalidArgument`] if the number of pairs differs from the number of axes.
            #[panicking_form]
            pub fn try_new(width: impl Into<PadWidth>) -> Result<$name<N>> {
                Ok($name { width: width_per_axis(width.into())? })
            }
        }

        impl<const N: usize> Layer for $name<N> {
            fn compute(&self, x: &Tensor) -> Result<Tensor> {
                pad_last(x, self.width, $mode)
            }
        }
    )*};
}

pads! {
    /// Zero padding of the last N axes.
    ZeroPad: ZeroPad1d, ZeroPad2d, ZeroPad3d = PaddingMode::Constant(Scalar::Int(0));
    /// Reflection padding of the last N axes; the end element itself is not repeated.
    ReflectionPad: ReflectionPad1d, ReflectionPad2d, ReflectionPad3d = PaddingMode::Reflect;
    /// Replication padding of the last N axes: the end element is repeated.
    ReplicationPad: ReplicationPad1d, ReplicationPad2d, ReplicationPad3d = PaddingMode::Replicate;
    /// Circular padding of the last N axes, with elements from the opposite end.
    CircularPad: CircularPad1d, CircularPad2d, CircularPad3d = PaddingMode::Circular;
}

/// Padding of the last N axes with a constant.
///
/// ```
/// use pellucid::nn::{ConstantPad2d, Layer};
/// use pellucid::{DType, Tensor};
/// let y = ConstantPad2d::new([(0, 0), (1, 2)], 7.0).forward(&Tensor::zeros([1, 1, 1, 1], DType::F32));
/// assert_eq!(y.to_vec::<f32>(), [7.0, 0.0, 7.0, 7.0]);
/// ```
#[derive(Clone, Copy, Debug, Module)]
#[module(display)]
#[module(class = by_axes::<_, N>(["ConstantPad1d", "ConstantPad2d", "ConstantPad3d"]))]
pub struct ConstantPad<const N: usize> {
    /// The padding (before, after) of each axis.
    #[module(setting)]
    pub width: [(isize, isize); N],
    /// The value of padding.
    pub value: Scalar,
}

/// [`ConstantPad`] of the last axis.
pub type ConstantPad1d = ConstantPad<1>;
/// [`ConstantPad`] of the last two axes.
pub type ConstantPad2d = ConstantPad<2>;
/// [`ConstantPad`] of the last three axes.
pub type ConstantPad3d = ConstantPad<3>;

impl<const N: usize> ConstantPad<N> {
    /// Creates a layer with this padding value; the width is as in [`ZeroPad`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the number of pairs differs from the number of axes.
    #[panicking_form]
    pub fn try_new(width: impl Into<PadWidth>, value: impl Into<Scalar>) -> Result<ConstantPad<N>> {
        Ok(ConstantPad { width: width_per_axis(width.into())?, value: value.into() })
    }
}

impl<const N: usize> Layer for ConstantPad<N> {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        pad_last(x, self.width, PaddingMode::Constant(self.value))
    }
}
