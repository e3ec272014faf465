//! The kernel family [`Pool`]: the maximum of each window.

use super::{Family, FamilyInfo, Meta, Metas, ReadOrder, Window};
use crate::error::Result;

/// The largest element of each window over the last three axes, and its index.
///
/// x is `[.., z, y, x]`; the outputs are the values, in x's dtype, and `i64` indices (row-major over the three
/// axes of x). The first of equal elements is selected; NaN is the largest. Padding is never selected: every window
/// has at least one tap inside x.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Pool {
    /// The geometry of the window over x.
    pub window: Window,
}

impl Family for Pool {
    const FAMILY: &'static str = "pool";

    fn info(&self) -> FamilyInfo {
        FamilyInfo {
            inputs: 1,
            outputs: 2,
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

    fn flops(&self, _: &[Meta], outputs: &[Meta]) -> u64 {
        outputs.first().map_or(0, Meta::elements) * self.window.taps() as u64
    }
}
