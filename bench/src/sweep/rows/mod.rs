//! The rows of the sweep, grouped like the folders of `ops`.

mod elementwise;
mod index;
mod linalg;
mod losses;
mod networks;
mod numeric;
mod products;
mod random;
mod reductions;
mod shape;

use super::SweepRow;

/// Returns all rows.
pub(super) fn rows() -> Vec<SweepRow> {
    let groups = [
        elementwise::rows(),
        reductions::rows(),
        shape::rows(),
        index::rows(),
        products::rows(),
        linalg::rows(),
        random::rows(),
        numeric::rows(),
        networks::rows(),
        losses::rows(),
    ];
    groups.into_iter().flatten().collect()
}
