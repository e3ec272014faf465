//! Column-major copies of panels of a few columns, in which the panels are factored.

use crate::MatrixElement;
use pellucid_gemm::{MatMut, TILE};
use pellucid_runtime::scratch;

/// Replaces at most 16 columns by the columns that `f` computes, and returns the result of `f`.
///
/// The first argument of `f` contains the columns one after the other, each padded with zeros to a multiple of 16
/// elements. The second argument is scratch for `extra` columns, which are initially zero.
pub(crate) fn with_columns<T: MatrixElement, R>(
    a: &mut MatMut<'_, T>,
    extra: usize,
    f: impl FnOnce(&mut [T], &mut [T]) -> R,
) -> R {
    let (m, n) = (a.rows(), a.columns());
    let height = m.next_multiple_of(TILE);
    scratch::with_filled((n + extra) * height, T::zero(), |buffer| {
        let (columns, scratch) = buffer.split_at_mut(n * height);
        for i in (0..m).step_by(TILE) {
            let tile = a.as_ref().tile(i, 0);
            for (j, column) in columns.chunks_exact_mut(height).enumerate() {
                (0..TILE).for_each(|r| column[i + r] = tile[r][j]);
            }
        }
        let result = f(&mut *columns, scratch);
        for i in (0..m).step_by(TILE) {
            let mut tile = [[T::zero(); TILE]; TILE];
            for (j, column) in columns.chunks_exact(height).enumerate() {
                (0..TILE).for_each(|r| tile[r][j] = column[i + r]);
            }
            a.set_tile(i, 0, &tile);
        }
        result
    })
}
