//! The LU factorization P·A = L·U with partial pivoting.

use crate::Matrix;
use faer::Par;
use faer::dyn_stack::{MemBuffer, MemStack};
use faer::linalg::lu::partial_pivoting::factor::{lu_in_place, lu_in_place_scratch};

/// Replaces a matrix by L (below the diagonal; its diagonal is 1) and U, and returns the pivots: row i was
/// exchanged with row pivotᵢ ≥ i, in order.
///
/// A column without a nonzero pivot is skipped, as in LAPACK: U then has a zero on its diagonal. If an element is NaN
/// or infinite, all elements become NaN, and the pivots describe the identity: pivotᵢ = i.
pub fn lu(a: &mut Matrix) -> Vec<usize> {
    let (m, n) = (a.rows(), a.columns());
    if !a.is_finite() {
        a.fill(f64::NAN);
        return (0..m.min(n)).collect();
    }
    let mut packed = a.clone();
    let (mut order, mut inverse) = (vec![0usize; m], vec![0usize; m]);
    let mut memory = MemBuffer::new(lu_in_place_scratch::<usize, f64>(m, n, Par::Seq, Default::default()));
    let stack = MemStack::new(&mut memory);
    lu_in_place(packed.view_mut(), &mut order, &mut inverse, Par::Seq, stack, Default::default());
    // faer divides by zero pivots. A factorization with non-finite elements is therefore repeated by another algorithm.
    if !packed.is_finite() {
        return lu_by_columns(a);
    }
    *a = packed;
    pivots_of_order(&order, m.min(n))
}

/// Converts an order of the rows to pivots: exchange i brings row `order[i]` to position i.
fn pivots_of_order(order: &[usize], count: usize) -> Vec<usize> {
    let mut rows: Vec<usize> = (0..order.len()).collect();
    let mut positions = rows.clone();
    (0..count)
        .map(|i| {
            let pivot = positions[order[i]];
            rows.swap(i, pivot);
            (positions[rows[i]], positions[rows[pivot]]) = (i, pivot);
            pivot
        })
        .collect()
}

/// Factors column by column and skips columns without a pivot (Golub & Van Loan, Matrix Computations, 3.4.1).
fn lu_by_columns(a: &mut Matrix) -> Vec<usize> {
    let (m, n) = (a.rows(), a.columns());
    let mut pivots = Vec::with_capacity(m.min(n));
    for k in 0..m.min(n) {
        let larger = |best: usize, i: usize| if a[(i, k)].abs() > a[(best, k)].abs() { i } else { best };
        let pivot = (k + 1..m).fold(k, larger);
        pivots.push(pivot);
        a.swap_rows(k, pivot);
        let diagonal = a[(k, k)];
        if diagonal == 0.0 {
            continue;
        }
        a.column_mut(k)[k + 1..].iter_mut().for_each(|x| *x /= diagonal);
        for j in k + 1..n {
            let (l, column) = a.columns_mut(k, j);
            let u = column[k];
            column[k + 1..].iter_mut().zip(&l[k + 1..]).for_each(|(x, l)| *x -= l * u);
        }
    }
    pivots
}

/// Converts pivots to the order of `rows` rows: row i of the result is row `order[i]` of the original.
pub fn row_order(pivots: impl IntoIterator<Item = usize>, rows: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..rows).collect();
    pivots.into_iter().enumerate().for_each(|(i, pivot)| order.swap(i, pivot));
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{close, numbers, product};

    fn check(a: &Matrix) {
        let (m, n) = (a.rows(), a.columns());
        let k = m.min(n);
        let mut packed = a.clone();
        let pivots = lu(&mut packed);
        assert!(pivots.iter().enumerate().all(|(i, &p)| (i..m).contains(&p)), "pivot i must be in i..{m}: {pivots:?}");
        let l = Matrix::from_fn(m, k, |i, j| {
            if i == j {
                1.0
            } else if i > j {
                packed[(i, j)]
            } else {
                0.0
            }
        });
        let u = Matrix::from_fn(k, n, |i, j| if i <= j { packed[(i, j)] } else { 0.0 });
        assert!(l.data().iter().all(|x| x.abs() <= 1.0));
        let order = row_order(pivots, m);
        close(&product(&l, &u), &Matrix::from_fn(m, n, |i, j| a[(order[i], j)]), 1e-13);
    }

    #[test]
    fn l_times_u_is_a_with_permuted_rows() {
        for (m, n) in [(0, 0), (0, 3), (3, 0), (1, 1), (5, 5), (3, 7), (7, 3), (40, 40), (90, 33), (33, 90)] {
            check(&numbers(m, n, 2));
        }
    }

    #[test]
    fn singular_matrices_are_factored() {
        for n in [2, 5, 40] {
            check(&Matrix::full(n, n, 0.0));
            check(&Matrix::from_fn(n, n, |i, _| i as f64));
            check(&Matrix::from_fn(n, n, |_, j| if j == 1 { 0.0 } else { 1.0 }));
            let low = product(&numbers(n, 1, 3), &numbers(1, n, 4));
            check(&low);
        }
    }

    #[test]
    fn nan_propagates_to_all_results() {
        let mut a = Matrix::from_fn(3, 3, |i, j| if (i, j) == (2, 0) { f64::INFINITY } else { 1.0 });
        assert_eq!(lu(&mut a), [0, 1, 2]);
        assert!(a.data().iter().all(|x| x.is_nan()));
    }
}
