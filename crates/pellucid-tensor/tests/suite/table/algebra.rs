//! Matrices as lists of rows, and elementary algorithms: the reference of the linear algebra rows.

use super::nd::{Nd, indices};

pub type Mat = Vec<Vec<f64>>;

pub fn mat(rows: usize, columns: usize, f: impl Fn(usize, usize) -> f64) -> Mat {
    (0..rows).map(|i| (0..columns).map(|j| f(i, j)).collect()).collect()
}

pub fn identity(n: usize) -> Mat {
    mat(n, n, |i, j| f64::from(u8::from(i == j)))
}

pub fn transposed(a: &Mat) -> Mat {
    mat(a.first().map_or(0, Vec::len), a.len(), |i, j| a[j][i])
}

pub fn times(a: &Mat, b: &Mat) -> Mat {
    mat(a.len(), b.first().map_or(0, Vec::len), |i, j| (0..b.len()).map(|k| a[i][k] * b[k][j]).sum())
}

/// Returns X with A·X = B, and det A, by Gauss–Jordan elimination with partial pivoting.
pub fn solve_with_determinant(a: &Mat, b: &Mat) -> (Mat, f64) {
    let n = a.len();
    let (mut a, mut x, mut det) = (a.clone(), b.clone(), 1.0);
    for k in 0..n {
        let pivot = (k..n)
            .max_by(|&i, &j| a[i][k].abs().total_cmp(&a[j][k].abs()))
            .expect("the matrix must have at least one remaining row");
        if pivot != k {
            (det, _, _) = (-det, a.swap(k, pivot), x.swap(k, pivot));
        }
        let head = a[k][k];
        det *= head;
        for i in (0..n).filter(|&i| i != k) {
            let by = a[i][k] / head;
            (0..n).for_each(|j| a[i][j] -= by * a[k][j]);
            (0..x[0].len()).for_each(|j| x[i][j] -= by * x[k][j]);
        }
    }
    let x = mat(n, b.first().map_or(0, Vec::len), |i, j| x[i][j] / a[i][i]);
    (x, det)
}

pub fn inverse(a: &Mat) -> Mat {
    solve_with_determinant(a, &identity(a.len())).0
}

/// Returns the eigenvalues, ascending, and eigenvectors (columns) of a symmetric matrix, by Jacobi's rotations (1846).
pub fn eigen(a: &Mat) -> (Vec<f64>, Mat) {
    let n = a.len();
    let (mut a, mut v) = (a.clone(), identity(n));
    for _ in 0..60 {
        for p in 0..n {
            for q in p + 1..n {
                if a[p][q] == 0.0 {
                    continue;
                }
                let angle = 0.5 * (2.0 * a[p][q]).atan2(a[q][q] - a[p][p]);
                let rotation = mat(n, n, |i, j| match (i, j) {
                    (i, j) if i == j && (i == p || i == q) => angle.cos(),
                    (i, j) if (i, j) == (p, q) => angle.sin(),
                    (i, j) if (i, j) == (q, p) => -angle.sin(),
                    (i, j) => f64::from(u8::from(i == j)),
                });
                a = times(&times(&transposed(&rotation), &a), &rotation);
                v = times(&v, &rotation);
            }
        }
    }
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|&i, &j| a[i][i].total_cmp(&a[j][j]));
    (order.iter().map(|&k| a[k][k]).collect(), mat(n, n, |i, j| v[i][order[j]]))
}

/// Returns V·diag(f(w))·Vᵀ for a symmetric matrix.
pub fn function(a: &Mat, f: impl Fn(f64) -> f64) -> Mat {
    let (w, v) = eigen(a);
    let scaled = mat(a.len(), a.len(), |i, j| v[i][j] * f(w[j]));
    times(&scaled, &transposed(&v))
}

/// Returns the singular values, descending.
pub fn singular_values(a: &Mat) -> Vec<f64> {
    let small = if a.len() < a[0].len() { times(a, &transposed(a)) } else { times(&transposed(a), a) };
    eigen(&small).0.into_iter().rev().map(|w| w.max(0.0).sqrt()).collect()
}

/// Applies `f` to the matrices in the last two axes of several tensors with the same batch axes.
pub fn each(x: &[Nd], f: impl Fn(&[Mat]) -> Mat) -> Nd {
    let batch = x[0].shape[..x[0].shape.len() - 2].to_vec();
    let at = |x: &Nd, b: &[usize]| {
        let [.., m, n] = x.shape[..] else { unreachable!("matrices") };
        mat(m, n, |i, j| x.at(&[b, &[i, j]].concat()))
    };
    let all: Vec<Mat> = indices(&batch).iter().map(|b| f(&x.iter().map(|x| at(x, b)).collect::<Vec<_>>())).collect();
    let (rows, columns) = all.first().map_or((0, 0), |m| (m.len(), m.first().map_or(0, Vec::len)));
    Nd { shape: [&batch[..], &[rows, columns]].concat(), data: all.into_iter().flatten().flatten().collect() }
}

/// Applies `f` to the matrices in the last two axes; returns a list for each matrix.
pub fn lists(x: &Nd, f: impl Fn(&Mat) -> Vec<f64>) -> Nd {
    let columns = each(std::slice::from_ref(x), |a| f(&a[0]).into_iter().map(|v| vec![v]).collect());
    let rank = columns.shape.len();
    columns.reshape(&columns.shape[..rank - 1])
}

/// Applies `f` to the matrices in the last two axes; returns a number for each matrix.
pub fn numbers(x: &Nd, f: impl Fn(&Mat) -> f64) -> Nd {
    let one = lists(x, |a| vec![f(a)]);
    one.reshape(&one.shape[..one.shape.len() - 1])
}
