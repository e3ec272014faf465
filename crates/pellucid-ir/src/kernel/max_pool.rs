//! The kernel family [`Pool`]: the maximum of each window, and its gradient.

use super::{Family, FamilyInfo, KernelOperand, Meta, Window};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::shape::Shape;

/// The arrays that a [`Pool`] computes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PoolPart {
    /// The largest elements and their positions, from x.
    Maximum,
    /// The gradient of x, from the gradient of the largest elements and their positions.
    Gradient,
}

/// The windows of a [`Pool`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PoolWindows {
    /// A sliding window.
    Sliding(Window),
    /// [Adaptive windows](super::adaptive_window) along each axis. The number of windows is the length of the outputs
    /// along the axis.
    Adaptive,
}

impl From<Window> for PoolWindows {
    fn from(window: Window) -> PoolWindows {
        PoolWindows::Sliding(window)
    }
}

/// The largest element of each window over the last three axes of x, and its position.
///
/// x is `[.., z, y, x]`. A position is an `i64` index, row-major over the three axes of x. The first of equal elements
/// is selected; NaN is the largest. Padding is never selected: every window has at least one element inside x.
///
/// [`PoolPart::Maximum`] has the input x; its outputs are the largest elements, in x's dtype, and their positions.
///
/// [`PoolPart::Gradient`] has the inputs g, of a float dtype, and the positions, both with one element for each window.
/// Every element of its output is the sum of g over the windows that selected the element, added to 0 in row-major
/// order; `f16` and `bf16` accumulate in `f32`. The positions must be those that [`PoolPart::Maximum`] found for the
/// same windows and shape. For other positions the sums are unspecified.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Pool {
    /// The windows over x.
    pub windows: PoolWindows,
    /// The arrays that are computed.
    pub part: PoolPart,
}

impl Family for Pool {
    const FAMILY: &'static str = "max_pool";

    fn info(&self) -> FamilyInfo {
        let (inputs, outputs) = match self.part {
            PoolPart::Maximum => (1, 2),
            PoolPart::Gradient => (2, 1),
        };
        FamilyInfo::new(inputs, outputs)
    }

    fn check<O: KernelOperand>(&self, inputs: &[O], outputs: &[O]) -> Result<()> {
        let spatial = |shape: &Shape, a: usize| shape[shape.rank() - 3 + a];
        let fits = |wide: &Shape, narrow: &Shape, other: &Shape| {
            let rank = wide.rank();
            rank >= 3 && narrow == other && narrow.rank() == rank && narrow[..rank - 3] == wide[..rank - 3]
        };
        let (x, y) = match self.part {
            PoolPart::Maximum => {
                let (x, values, positions) = (&inputs[0], &outputs[0], &outputs[1]);
                let is_dense = values.layout().is_contiguous() && positions.layout().is_contiguous();
                if !(fits(x.shape(), values.shape(), positions.shape()) && is_dense) {
                    let rule = "values and positions must be contiguous, with the shape of the input except along the \
                                last three axes";
                    return Err(Error::shapes("max_pool", [x.shape(), values.shape(), positions.shape()], rule));
                }
                if values.dtype() != x.dtype() || positions.dtype() != DType::I64 {
                    let rule = "the values must have the dtype of the input, and the positions must be i64";
                    return Err(Error::dtypes("max_pool", [x.dtype(), values.dtype(), positions.dtype()], rule));
                }
                (x.shape(), values.shape())
            }
            PoolPart::Gradient => {
                let (g, positions, out) = (&inputs[0], &inputs[1], &outputs[0]);
                if !fits(out.shape(), g.shape(), positions.shape()) {
                    let rule =
                        "gradient and positions must have the shape of the output except along the last three axes";
                    return Err(Error::shapes("max_pool", [g.shape(), positions.shape(), out.shape()], rule));
                }
                if !g.dtype().is_float() || g.dtype() != out.dtype() || positions.dtype() != DType::I64 {
                    let rule = "gradient and output must have the same float dtype, and the positions must be i64";
                    return Err(Error::dtypes("max_pool", [g.dtype(), positions.dtype(), out.dtype()], rule));
                }
                (out.shape(), g.shape())
            }
        };
        let maximum = self.part == PoolPart::Maximum;
        let is_valid = |a: usize| {
            let (len, outputs) = (spatial(x, a), spatial(y, a));
            match &self.windows {
                PoolWindows::Sliding(window) => {
                    window.has_coordinates(a, len, outputs, Window::MAX_COORDINATE)
                        && (!maximum || window.has_taps(a, len, outputs))
                }
                PoolWindows::Adaptive => len > 0,
            }
        };
        if y.size() == 0 || (0..3).all(is_valid) {
            return Ok(());
        }
        let reason = format!(
            "each window over shape {x} must contain an element, stride and dilation must be positive, and the \
             positions of the windows must not overflow; got {:?}",
            self.windows
        );
        Err(Error::invalid("max_pool", reason))
    }

    fn flops(&self, inputs: &[Meta], outputs: &[Meta]) -> u64 {
        match self.part {
            PoolPart::Maximum => match &self.windows {
                PoolWindows::Sliding(window) => {
                    outputs.first().map_or(0, Meta::elements).saturating_mul(window.taps() as u64)
                }
                PoolWindows::Adaptive => inputs.first().map_or(0, Meta::elements),
            },
            PoolPart::Gradient => inputs.first().map_or(0, Meta::elements),
        }
    }
}
