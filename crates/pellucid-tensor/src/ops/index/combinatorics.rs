//! Cartesian products, combinations, and the indices of triangles.

use crate::array::{host_values, host_vec};
use crate::ops::call::check;
use crate::ops::primitive::{create, gather, view};
use crate::ops::shape::rearrange::MeshgridIndexing;
use crate::ops::shape::{join, rearrange};
use crate::tensor::Tensor;
use pellucid_derive::{operation, tensor_method};
use pellucid_ir::{Error, Result};

/// Returns all tuples with one element of each vector, as rows `[N₁·N₂·.., k]`, with the last element changing fastest.
/// A single vector is returned unchanged.
///
/// ```
/// use pellucid::{Tensor, ops};
/// let pairs = ops::cartesian_prod(&[Tensor::from([1, 2]), Tensor::from([3, 4])])?;
/// assert_eq!(pairs.to_vec2::<i64>(), [[1, 3], [1, 4], [2, 3], [2, 4]]);
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// # Errors
/// [`Error::InvalidArgument`] for an empty list; [`Error::ShapeMismatch`] for ranks other than 1;
/// [`Error::OutOfMemory`].
#[operation]
pub fn cartesian_prod<T: AsRef<Tensor>>(vectors: &[T]) -> Result<Tensor> {
    cartesian_product(&vectors.iter().map(AsRef::as_ref).collect::<Vec<_>>())
}

fn cartesian_product(vectors: &[&Tensor]) -> Result<Tensor> {
    let op = "cartesian_prod";
    if vectors.iter().any(|v| v.rank() != 1) {
        return Err(Error::shapes(
            op,
            vectors.iter().map(|v| v.shape()),
            "all inputs must be vectors; ravel() the others",
        ));
    }
    match vectors {
        [] => Err(Error::invalid(op, "the list of vectors is empty; pass at least one")),
        [vector] => Ok(view::full_view(vector)),
        _ => {
            let grid = rearrange::meshgrid(vectors, MeshgridIndexing::Ij)?;
            let columns: Vec<Tensor> = grid.iter().map(view::ravel).collect::<Result<_>>()?;
            join::stack(&columns, -1)
        }
    }
}

/// Returns all combinations of `r` elements of a vector in lexicographic order of their positions, as rows `[C, r]`.
///
/// With `with_replacement`, an element may occur repeatedly. C is the binomial coefficient (n choose r), or (n + r − 1
/// choose r). For r = 0 there is one empty combination, as in Python's `itertools`. The operation stores the positions
/// of all combinations twice, as `i64 [C, r]`: on the host and on the device of x.
///
/// ```
/// use pellucid::Tensor;
/// let x = Tensor::from([1, 2, 3]);
/// assert_eq!(x.combinations(2, false).to_vec2::<i64>(), [[1, 2], [1, 3], [2, 3]]);
/// ```
///
/// # Errors
/// [`Error::ShapeMismatch`] unless x is a vector; [`Error::OutOfMemory`].
#[tensor_method]
pub fn combinations(x: &Tensor, r: usize, with_replacement: bool) -> Result<Tensor> {
    if x.rank() != 1 {
        return Err(Error::shapes("combinations", [x.shape()], "the input must be a vector; ravel() it"));
    }
    let n = x.size();
    let pool = match with_replacement {
        true if n > 0 => n.checked_add(r.saturating_sub(1)).ok_or_else(Error::size_overflow)?,
        _ => n,
    };
    let count = binomial(pool, r).ok_or_else(Error::size_overflow)?;
    let shape = check::representable([count, r].into())?;
    let mut positions = host_vec::<i64>(shape.size()).map_err(|error| error.with_shape(&shape))?;
    if count > 0 {
        let mut row: Vec<i64> = (0..r).map(|i| if with_replacement { 0 } else { i as i64 }).collect();
        for _ in 0..count {
            positions.extend_from_slice(&row);
            advance(&mut row, n, with_replacement);
        }
    }
    gather::index_select(x, 0, &create::from_host(&positions, [count, r])?)
}

/// Returns the binomial coefficient (n choose k), or `None` if it overflows.
fn binomial(n: usize, k: usize) -> Option<usize> {
    let Some(others) = n.checked_sub(k) else { return Some(0) };
    // After step i, `value` is the binomial coefficient (n choose i + 1), hence an integer.
    let step = |value: u128, i: usize| {
        let next = value.checked_mul((n - i) as u128)? / (i as u128 + 1);
        (next <= usize::MAX as u128).then_some(next)
    };
    (0..k.min(others)).try_fold(1, step).map(|value| value as usize)
}

/// Advances positions to the next combination in lexicographic order, if there is one.
fn advance(row: &mut [i64], n: usize, with_replacement: bool) {
    let (n, r) = (n as i64, row.len() as i64);
    let last = |i: usize| if with_replacement { n - 1 } else { n - r + i as i64 };
    let Some(index) = (0..row.len()).rev().find(|&i| row[i] < last(i)) else { return };
    let next = row[index] + 1;
    for (k, position) in row[index..].iter_mut().enumerate() {
        *position = if with_replacement { next } else { next + k as i64 };
    }
}

/// Returns the number of elements of a `rows × columns` matrix at most `offset` above the main diagonal.
fn triangle_size(rows: i128, columns: i128, offset: i128) -> i128 {
    // Row i has i + offset + 1 such elements, limited to 0..=columns.
    let first = (-offset).clamp(0, rows);
    let full = (columns - offset - 1).clamp(first, rows);
    let partial_rows = full - first;
    partial_rows * (first + offset + 1) + partial_rows * (partial_rows - 1) / 2 + (rows - full) * columns
}

/// Returns the positions of the `count` elements of a triangle, where `columns(i)` is the range of columns in row i.
fn positions(
    count: i128,
    rows: std::ops::Range<i128>,
    columns: impl Fn(i128) -> std::ops::Range<i128>,
) -> Result<Tensor> {
    let count = usize::try_from(count).map_err(|_| Error::size_overflow())?;
    let total = count.checked_mul(2).ok_or_else(Error::size_overflow)?;
    // Each row has at least one element, so the loops end after at most `count` rows.
    let each = || rows.clone().take(count).map(|i| (i as i64, columns(i)));
    let mut all = host_vec(total)?;
    each().for_each(|(i, columns)| all.extend(std::iter::repeat_n(i, (columns.end - columns.start) as usize)));
    each().for_each(|(_, columns)| all.extend(columns.start as i64..columns.end as i64));
    create::from_host(&all, [2, count])
}

/// Returns the indices (`i64`, `[axes, n]`) of the main diagonal of a tensor with `axes` axes of length `n`.
///
/// ```
/// use pellucid::{Tensor, ops};
/// let x = Tensor::from([[1, 2], [3, 4]]);
/// let at = ops::diag_indices(2, 2)?;
/// assert_eq!(x.i((&at.i(0), &at.i(1))).to_vec::<i64>(), [1, 4]);
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// # Errors
/// [`Error::OutOfMemory`].
#[operation]
pub fn diag_indices(n: usize, axes: usize) -> Result<Tensor> {
    let shape = check::representable([axes, n].into())?;
    let indices =
        host_values(shape.size(), (0..axes).flat_map(|_| 0..n as i64)).map_err(|error| error.with_shape(&shape))?;
    create::from_host(&indices, shape)
}

/// Returns the lengths as `i128`, whose products do not overflow.
fn lengths(rows: usize, columns: usize) -> Result<[i128; 2]> {
    match isize::try_from(rows.max(columns)) {
        Ok(_) => Ok([rows as i128, columns as i128]),
        Err(_) => Err(Error::size_overflow()),
    }
}

/// Returns the row and the column indices (`i64`, `[2, N]`) of the lower triangle of a `rows × columns` matrix, in
/// row-major order. The triangle includes the elements at most `offset` above the main diagonal.
///
/// ```
/// use pellucid::{Tensor, ops};
/// let x = Tensor::from([[1, 2], [3, 4]]);
/// let at = ops::tril_indices(2, 2, 0)?;
/// assert_eq!(at.to_vec2::<i64>(), [[0, 1, 1], [0, 0, 1]]);
/// assert_eq!(x.i((&at.i(0), &at.i(1))).to_vec::<i64>(), [1, 3, 4]);
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// # Errors
/// [`Error::OutOfMemory`].
#[operation]
pub fn tril_indices(rows: usize, columns: usize, offset: isize) -> Result<Tensor> {
    let ([r, c], k) = (lengths(rows, columns)?, offset as i128);
    let first = if c == 0 { r } else { (-k).clamp(0, r) };
    positions(triangle_size(r, c, k), first..r, |i| 0..(i + k + 1).min(c))
}

/// Returns the row and the column indices (`i64`, `[2, N]`) of the upper triangle of a `rows × columns` matrix, in
/// row-major order. The triangle includes the elements at least `offset` above the main diagonal.
///
/// # Errors
/// [`Error::OutOfMemory`].
#[operation]
pub fn triu_indices(rows: usize, columns: usize, offset: isize) -> Result<Tensor> {
    let ([r, c], k) = (lengths(rows, columns)?, offset as i128);
    let end = if c == 0 { 0 } else { (c - k).clamp(0, r) };
    positions(r * c - triangle_size(r, c, k - 1), 0..end, |i| (i + k).max(0)..c)
}
