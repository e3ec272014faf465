//! The kernel family [`Pool`]: the maximum of each window, and its gradient.

use super::{Family, FamilyInfo, Meta, Metas, ReadOrder, Window};
use crate::error::Result;

/// The arrays that a [`Pool`] computes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PoolPart {
    /// The largest elements and their positions, from x.
    Maximum,
    /// The gradient of x, from that of the largest elements and their positions.
    Gradient,
}

/// The largest element of each window over the last three axes of x, and its position.
///
/// x is `[.., z, y, x]`. A position is an `i64` index, row-major over the three axes of x. The first of equal elements
/// is selected; NaN is the largest. Padding is never selected: every window has at least one tap inside x.
///
/// [`PoolPart::Maximum`] has the input x; its outputs are the largest elements, in x's dtype, and their positions.
///
/// [`PoolPart::Gradient`] has the inputs g, of a float dtype, and the positions, both of the shape of the windows. Every
/// element of its output is the sum of g over the windows that selected it, in row-major order from 0; `f16` and `bf16`
/// accumulate in `f32`. The positions must be those that [`PoolPart::Maximum`] found for the same window and shape. For
/// other positions the sums are unspecified.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Pool {
    /// The geometry of the window over x.
    pub window: Window,
    /// The arrays that are computed.
    pub part: PoolPart,
}

impl Family for Pool {
    const FAMILY: &'static str = "pool";

    fn info(&self) -> FamilyInfo {
        let (inputs, outputs) = match self.part {
            PoolPart::Maximum => (1, 2),
            PoolPart::Gradient => (2, 1),
        };
        FamilyInfo {
            inputs,
            outputs,
            state_outputs: 0,
            reads: ReadOrder::Anywhere,
            is_compute_bound: false,
            refuses_values: false,
        }
    }

    /// The caller chooses the shape of the outputs.
    fn infer(&self, _: &[Meta]) -> Result<Metas> {
        Ok(Metas::new())
    }

    fn flops(&self, inputs: &[Meta], outputs: &[Meta]) -> u64 {
        match self.part {
            PoolPart::Maximum => outputs.first().map_or(0, Meta::elements) * self.window.taps() as u64,
            PoolPart::Gradient => inputs.first().map_or(0, Meta::elements),
        }
    }
}
