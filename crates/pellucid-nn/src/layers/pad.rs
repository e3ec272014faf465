//! Padding of spatial axes.

use super::spatial::by_axes;
use crate::layer::Layer;
use pellucid_derive::Module;
use pellucid_tensor::ops::{PadMode, PadWidth};
use pellucid_tensor::{Error, Result, Scalar, Tensor, ops, unwrap};

/// x with its last N axes padded.
pub(super) fn pad_last<const N: usize>(x: &Tensor, width: [(isize, isize); N], mode: PadMode) -> Result<Tensor> {
    let Some(lead) = x.rank().checked_sub(N) else {
        return Err(Error::shapes("pad", [x.shape()], format!("has {N} spatial axes, the last ones")));
    };
    let width: Vec<(isize, isize)> = std::iter::repeat_n((0, 0), lead).chain(width).collect();
    ops::pad(x, &width[..], mode)
}

/// (before, after) each of N axes.
#[track_caller]
fn each<const N: usize>(width: PadWidth) -> [(isize, isize); N] {
    match width {
        PadWidth::Same(n) => [(n, n); N],
        PadWidth::Both(before, after) => [(before, after); N],
        PadWidth::Each(pairs) => unwrap(pairs.as_slice().try_into().map_err(|_| {
            Error::invalid("pad", format!("takes one (before, after) for each of {N} axes, got {pairs:?}"))
        })),
    }
}

macro_rules! pads {
    ($($(#[$doc:meta])* $name:ident: $one:ident, $two:ident, $three:ident = $mode:expr;)*) => {$(
        $(#[$doc])*
        ///
        /// The width is one number for all ends, a pair (before, after) for all axes, or a pair for each, the first axis
        /// first; a negative number takes away.
        #[derive(Clone, Copy, Debug, Module)]
        #[module(class = by_axes::<_, N>([stringify!($one), stringify!($two), stringify!($three)]))]
        pub struct $name<const N: usize> {
            #[module(skip)]
            width: [(isize, isize); N],
        }

        #[doc = concat!("[`", stringify!($name), "`] of the last axis.")]
        pub type $one = $name<1>;
        #[doc = concat!("[`", stringify!($name), "`] of the last two axes.")]
        pub type $two = $name<2>;
        #[doc = concat!("[`", stringify!($name), "`] of the last three axes.")]
        pub type $three = $name<3>;

        impl<const N: usize> $name<N> {
            /// So much more at the ends of the last N axes.
            ///
            /// # Panics
            /// For a number of pairs that is not that of the axes.
            #[track_caller]
            pub fn new(width: impl Into<PadWidth>) -> $name<N> {
                $name { width: each(width.into()) }
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
    /// Zeros at the ends of the last N axes.
    ZeroPad: ZeroPad1d, ZeroPad2d, ZeroPad3d = PadMode::Constant(Scalar::Int(0));
    /// The last N axes mirrored at their ends, without the ends themselves.
    ReflectionPad: ReflectionPad1d, ReflectionPad2d, ReflectionPad3d = PadMode::Reflect;
    /// The ends of the last N axes, repeated.
    ReplicationPad: ReplicationPad1d, ReplicationPad2d, ReplicationPad3d = PadMode::Replicate;
    /// The other ends of the last N axes.
    CircularPad: CircularPad1d, CircularPad2d, CircularPad3d = PadMode::Circular;
}

/// A number at the ends of the last N axes.
///
/// ```
/// use pellucid_nn::{ConstantPad2d, Layer};
/// use pellucid_tensor::{DType, Tensor};
/// let y = ConstantPad2d::new([(0, 0), (1, 2)], 7.0).forward(&Tensor::zeros([1, 1, 1, 1], DType::F32));
/// assert_eq!(y.to_vec::<f32>(), [7.0, 0.0, 7.0, 7.0]);
/// ```
#[derive(Clone, Copy, Debug, Module)]
#[module(class = by_axes::<_, N>(["ConstantPad1d", "ConstantPad2d", "ConstantPad3d"]))]
pub struct ConstantPad<const N: usize> {
    #[module(skip)]
    width: [(isize, isize); N],
    #[module(skip)]
    value: Scalar,
}

/// [`ConstantPad`] of the last axis.
pub type ConstantPad1d = ConstantPad<1>;
/// [`ConstantPad`] of the last two axes.
pub type ConstantPad2d = ConstantPad<2>;
/// [`ConstantPad`] of the last three axes.
pub type ConstantPad3d = ConstantPad<3>;

impl<const N: usize> ConstantPad<N> {
    /// So much more of this value; the width is that of [`ZeroPad`].
    ///
    /// # Panics
    /// For a number of pairs that is not that of the axes.
    #[track_caller]
    pub fn new(width: impl Into<PadWidth>, value: impl Into<Scalar>) -> ConstantPad<N> {
        ConstantPad { width: each(width.into()), value: value.into() }
    }
}

impl<const N: usize> Layer for ConstantPad<N> {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        pad_last(x, self.width, PadMode::Constant(self.value))
    }
}
