//! Reductions in the canonical order, which depends only on the number of elements.
//!
//! A row is divided into blocks of 128 = 8 × 16 elements. Element j·16 + l of a block belongs to lane l. Each lane
//! combines its eight values by the fixed tree ((x₀ ∘ x₁) ∘ (x₂ ∘ x₃)) ∘ ((x₄ ∘ x₅) ∘ (x₆ ∘ x₇)), and then its running
//! value with the result. A partial last block is padded with the identity. At the end a fixed tree combines the
//! sixteen lanes: l with l + 8, then + 4, + 2, + 1.
//!
//! The order is the same for contiguous elements ([`FoldLoops::accumulate`]) and for strided elements in the columns of
//! a matrix ([`FoldLoops::accumulate_rows`]), so the memory layout does not change the result.

mod columns;
mod float_columns;
mod float_rows;
mod monoid;

use self::columns::reduce_columns;
use self::float_columns::reduce_float_columns;
use self::float_rows::{FloatRows, VectorMonoid};
use self::monoid::{And, Max, Min, Monoid, Or, Ordered, Prod, Ring, Sum, combine_vectors};
pub(crate) use self::monoid::{LANES, ROWS};
use super::loop_element::{LoopElement, MaskByte, Unaligned, are_apart, source_slice};
use pellucid_ir::Compute;
use pellucid_simd::{Float, Isa, per_isa, up_to};

/// The number of columns per pass over a partial block of rows.
const STRIP: usize = 512;

/// The associative operation of a reduction.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum FoldOp {
    /// Σ; integers wrap.
    Sum,
    /// Π; integers wrap.
    Prod,
    /// The largest value; NaN if any value is NaN.
    Max,
    /// The smallest value; NaN if any value is NaN.
    Min,
    /// Logical and of masks.
    And,
    /// Logical or of masks.
    Or,
}

/// `accumulate(lanes, src, n, first)` combines `n` contiguous values into the 16 lanes. If `first`, the lanes start
/// from the identity.
///
/// # Safety
/// * Lanes: `lanes` is valid for reads and writes of 16 elements, which are initialized unless `first`.
/// * Source: `src` is valid for reads of `n` elements.
/// * Blocks: `n` is a multiple of 128 except in the last call of a reduction.
/// * Disjoint: lanes and source do not overlap.
/// * ISA: the processor has the instruction set for which the loop was requested.
pub(crate) type AccumulateLoop = unsafe fn(lanes: *mut u8, src: *const u8, n: usize, first: bool);

/// `accumulate_products(lanes, a, b, n, first)` combines the `n` products `a[i] · b[i]`, each rounded, into the 16
/// lanes.
///
/// # Safety
/// The clauses of [`AccumulateLoop`] hold, *Source* and *Disjoint* for both `a` and `b`.
pub(crate) type ProductsLoop = unsafe fn(lanes: *mut u8, a: *const u8, b: *const u8, n: usize, first: bool);

/// `accumulate_lanes(lanes, src, blocks, first)` combines blocks of values, each already combined to one value for each
/// lane, into the 16 lanes. The 16 values of a block are contiguous, and the blocks follow each other.
///
/// # Safety
/// The clauses of [`AccumulateLoop`] hold for `n` = 16·`blocks`, except *Blocks*.
pub(crate) type LanesLoop = unsafe fn(lanes: *mut u8, src: *const u8, blocks: usize, first: bool);

/// `accumulate_rows(lanes, src, row_stride, cols, rows)` combines `rows` ≤ 128 rows of `cols` contiguous values,
/// `row_stride` bytes apart, into 16 lanes per column. Lane l of column c is value l·cols + c.
///
/// # Safety
/// * Lanes: `lanes` is valid for reads and writes of 16·cols initialized elements.
/// * Source: each row of `src` is valid for reads of `cols` elements.
/// * Blocks: `rows` is 128 except in the last call of a reduction.
/// * Disjoint: lanes and source do not overlap.
/// * ISA: the processor has the instruction set for which the loop was requested.
pub(crate) type RowsLoop = unsafe fn(lanes: *mut u8, src: *const u8, row_stride: isize, cols: usize, rows: usize);

/// `reduce_rows(dst, src, rows, len)` reduces each of `rows` contiguous rows of `len` values to one value, in the order
/// of [`AccumulateLoop`] and [`FinishLoop`].
///
/// # Safety
/// * Source: `src` is valid for reads of `rows · len` elements.
/// * Destination: `dst` is valid for writes of `rows` elements.
/// * Disjoint: source and destination do not overlap.
/// * ISA: the processor has the instruction set for which the loop was requested.
pub(crate) type ReduceRowsLoop = unsafe fn(dst: *mut u8, src: *const u8, rows: usize, len: usize);

/// `reduce_columns(dst, src, row_stride, cols, rows)` reduces each of `cols` columns of at most 128 contiguous rows,
/// `row_stride` bytes apart, to one value, in the order of [`RowsLoop`] and [`FinishLoop`].
///
/// # Safety
/// * Source: each row of `src` is valid for reads of `cols` elements.
/// * Destination: `dst` is valid for writes of `cols` elements.
/// * Rows: `rows` is at least 1 and at most 128.
/// * Disjoint: source and destination do not overlap.
/// * ISA: the processor has the instruction set for which the loop was requested.
pub(crate) type ReduceColumnsLoop =
    unsafe fn(dst: *mut u8, src: *const u8, row_stride: isize, cols: usize, rows: usize);

/// `finish(dst, lanes)` combines the 16 lanes into one value.
///
/// # Safety
/// * Lanes: `lanes` is valid for reads of 16 elements.
/// * Destination: `dst` is valid for writes of one element.
/// * Disjoint: lanes and destination do not overlap.
/// * ISA: the processor has the instruction set for which the loop was requested.
pub(crate) type FinishLoop = unsafe fn(dst: *mut u8, lanes: *const u8);

/// The loops of one reduction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FoldLoops {
    /// The identity of the operation: the initial value of the lanes that `accumulate_rows` reads, and the result of an
    /// empty reduction. The value is in the first bytes; the bytes after the element size are not used.
    pub identity: [u8; 8],
    /// Accumulates contiguous values.
    pub accumulate: AccumulateLoop,
    /// Accumulates products of contiguous values without storing them; only sums have this loop.
    pub accumulate_products: Option<ProductsLoop>,
    /// Accumulates blocks that are combined to one value for each lane.
    pub accumulate_lanes: LanesLoop,
    /// Accumulates rows, column by column.
    pub accumulate_rows: RowsLoop,
    /// Finishes a reduction of contiguous values.
    pub finish: FinishLoop,
    /// Reduces contiguous rows.
    pub reduce_rows: ReduceRowsLoop,
    /// Reduces the columns of at most 128 rows.
    pub reduce_columns: ReduceColumnsLoop,
    /// Whether `reduce_columns` reads long runs of each row. It is then fast for matrices of any size; otherwise it is
    /// fast only for matrices that fit L1.
    pub reduces_wide_matrices: bool,
}

/// Contiguous values: stored in memory, or computed from stored operands.
trait ValueSource<T>: Copy {
    /// Returns value `i`.
    ///
    /// # Safety
    /// The source has more than `i` values.
    unsafe fn at(self, i: usize) -> T;
    /// Returns the source that starts at value `i`.
    ///
    /// # Safety
    /// The source has at least `i` values.
    unsafe fn skip(self, i: usize) -> Self;
}

/// Values in memory.
#[derive(Clone, Copy)]
struct StoredValues(*const u8);
impl<T: LoopElement> ValueSource<T> for StoredValues {
    #[inline(always)]
    unsafe fn at(self, i: usize) -> T {
        // SAFETY: the caller guarantees that the source has more than `i` values (the contract of `at`).
        unsafe { self.0.cast::<T>().add(i).read_unaligned() }
    }

    #[inline(always)]
    unsafe fn skip(self, i: usize) -> StoredValues {
        // SAFETY: the caller guarantees that the source has at least `i` values (the contract of `skip`).
        unsafe { StoredValues(self.0.add(i * size_of::<T>())) }
    }
}

/// Products of values in memory.
#[derive(Clone, Copy)]
struct ProductValues(*const u8, *const u8);
impl<T: LoopElement + Ring> ValueSource<T> for ProductValues {
    #[inline(always)]
    unsafe fn at(self, i: usize) -> T {
        // SAFETY: the caller guarantees that both factors have more than `i` values (the contract of `at`).
        unsafe { T::times(StoredValues(self.0).at(i), StoredValues(self.1).at(i)) }
    }

    #[inline(always)]
    unsafe fn skip(self, i: usize) -> ProductValues {
        let bytes = i * size_of::<T>();
        // SAFETY: the caller guarantees that both factors have at least `i` values (the contract of `skip`).
        unsafe { ProductValues(self.0.add(bytes), self.1.add(bytes)) }
    }
}

/// Combines a block of 128 values x(i) into the lanes.
#[inline(always)]
fn accumulate_block<T: LoopElement, M: Monoid<T>>(lanes: &mut [T; LANES], x: impl Fn(usize) -> T) {
    for l in 0..LANES {
        let mut values = [M::IDENTITY; 8];
        for j in 0..8 {
            values[j] = x(j * LANES + l);
        }
        lanes[l] = M::combine(lanes[l], M::combine_eight(values));
    }
}

/// Combines a last block of `n` < 128 values into the lanes; the source has `readable` ≥ n values.
///
/// The block is padded with the identity, up to 1, 2, 4 or 8 values for each lane. More padding would change no bit:
/// only −0 + 0 differs from −0, and the lanes of a sum are never −0.
///
/// # Safety
/// `x` has `n` values, and `readable` values can be read.
#[inline(always)]
unsafe fn accumulate_last_block<T: LoopElement, M: Monoid<T>>(
    lanes: &mut [T; LANES],
    x: impl ValueSource<T>,
    n: usize,
    readable: usize,
) {
    let depth = match n.div_ceil(LANES) {
        0..=2 => n.div_ceil(LANES),
        3 | 4 => 4,
        _ => 8,
    };
    if readable < depth * LANES {
        let mut last = [M::IDENTITY; ROWS];
        for i in 0..n {
            // SAFETY: i < n (this function's contract).
            last[i] = unsafe { x.at(i) };
        }
        return accumulate_to_depth::<T, M>(lanes, depth, |i| last[i]);
    }
    accumulate_to_depth::<T, M>(lanes, depth, |i| {
        // SAFETY: the index is below `depth · 16`, so the value can be read (this function's contract).
        let value = unsafe { x.at(i) };
        if i < n { value } else { M::IDENTITY }
    });
}

/// Combines `depth` values for each lane, which is 1, 2, 4 or 8. Value j·16 + l belongs to lane l.
#[inline(always)]
fn accumulate_to_depth<T: LoopElement, M: Monoid<T>>(
    lanes: &mut [T; LANES],
    depth: usize,
    x: impl Fn(usize) -> T + Copy,
) {
    // Without the vectors, the compiler does not vectorize the padding of the values.
    let first = vector::<T, M, 0>(x);
    match depth {
        1 => *lanes = combine_vectors::<T, M>(*lanes, first),
        2 => *lanes = combine_vectors::<T, M>(*lanes, combine_vectors::<T, M>(first, vector::<T, M, 1>(x))),
        4 => {
            let left = combine_vectors::<T, M>(first, vector::<T, M, 1>(x));
            let right = combine_vectors::<T, M>(vector::<T, M, 2>(x), vector::<T, M, 3>(x));
            *lanes = combine_vectors::<T, M>(*lanes, combine_vectors::<T, M>(left, right));
        }
        _ => {
            let vectors = [
                first,
                vector::<T, M, 1>(x),
                vector::<T, M, 2>(x),
                vector::<T, M, 3>(x),
                vector::<T, M, 4>(x),
                vector::<T, M, 5>(x),
                vector::<T, M, 6>(x),
                vector::<T, M, 7>(x),
            ];
            accumulate_block::<T, M>(lanes, |i| vectors[i / LANES][i % LANES]);
        }
    }
}

/// Returns the sixteen values starting at J·16.
#[inline(always)]
fn vector<T: LoopElement, M: Monoid<T>, const J: usize>(x: impl Fn(usize) -> T) -> [T; LANES] {
    let mut values = [M::IDENTITY; LANES];
    for l in 0..LANES {
        values[l] = x(J * LANES + l);
    }
    values
}

/// Combines `n` values into the lanes; the source has `readable` ≥ n values.
///
/// # Safety
/// `x` has `n` values, and `readable` values can be read.
#[inline(always)]
unsafe fn accumulate_blocks<T: LoopElement, M: Monoid<T>>(
    lanes: &mut [T; LANES],
    x: impl ValueSource<T>,
    n: usize,
    readable: usize,
) {
    let full_len = n / ROWS * ROWS;
    for start in (0..full_len).step_by(ROWS) {
        // SAFETY: the block of 128 values starting at `start` is within the `n` values (this function's contract).
        accumulate_block::<T, M>(lanes, |i| unsafe { x.at(start + i) });
    }
    if full_len < n {
        // SAFETY: `n − full_len` values follow, of `readable − full_len` (this function's contract).
        unsafe { accumulate_last_block::<T, M>(lanes, x.skip(full_len), n - full_len, readable - full_len) };
    }
}

/// Combines `n` values into the lanes.
///
/// # Safety
/// The clauses of [`AccumulateLoop`] hold; *Source* means that `x` has `n` values.
#[inline(always)]
unsafe fn accumulate_values<T: LoopElement, M: Monoid<T>>(
    lanes: *mut u8,
    x: impl ValueSource<T>,
    n: usize,
    first: bool,
) {
    let lanes = lanes.cast::<[T; LANES]>();
    // SAFETY: by this function's contract, `x` has `n` values (*Source*), and `lanes` is valid for writes of 16
    // elements and, unless `first`, initialized (*Lanes*).
    unsafe {
        let mut running = if first { [M::IDENTITY; LANES] } else { lanes.read_unaligned() };
        accumulate_blocks::<T, M>(&mut running, x, n, n);
        lanes.write_unaligned(running);
    }
}

per_isa! {
    /// Returns the [`AccumulateLoop`] of M for an instruction set.
    fn accumulate[T: LoopElement, M: Monoid<T>][T, M](lanes: *mut u8, src: *const u8, n: usize, first: bool) {
        let size = size_of::<T>();
        debug_assert!(are_apart((lanes, LANES * size), (src, n * size)), "the lanes of a reduction overlap its source");
        // SAFETY: the caller guarantees the clauses of `AccumulateLoop`, which `accumulate_values` requires.
        unsafe { accumulate_values::<T, M>(lanes, StoredValues(src), n, first) };
    }
}

per_isa! {
    /// Returns the [`ProductsLoop`] of M for an instruction set.
    fn accumulate_products[T: LoopElement + Ring, M: Monoid<T>][T, M]
    (lanes: *mut u8, a: *const u8, b: *const u8, n: usize, first: bool) {
        // SAFETY: the caller guarantees the clauses of `ProductsLoop`, so both factors have `n` values.
        unsafe { accumulate_values::<T, M>(lanes, ProductValues(a, b), n, first) };
    }
}

per_isa! {
    /// Returns the [`LanesLoop`] of M for an instruction set.
    fn accumulate_lanes[T: LoopElement, M: Monoid<T>][T, M](lanes: *mut u8, src: *const u8, blocks: usize, first: bool) {
        let (lanes, src) = (lanes.cast::<[T; LANES]>(), src.cast::<[T; LANES]>());
        // SAFETY: by the contract of `LanesLoop`, `src` has `blocks` blocks of 16 values (*Source*), and `lanes` is
        // valid for writes of 16 elements and, unless `first`, initialized (*Lanes*).
        unsafe {
            let mut running = if first { [M::IDENTITY; LANES] } else { lanes.read_unaligned() };
            for block in 0..blocks {
                running = combine_vectors::<T, M>(running, src.add(block).read_unaligned());
            }
            lanes.write_unaligned(running);
        }
    }
}

/// Combines eight rows of one lane, which are sixteen rows apart, into the running values of that lane, one for each
/// column.
#[inline(always)]
fn accumulate_lane<T: LoopElement, M: Monoid<T>>(lane: &mut [Unaligned<T>], rows: [&[Unaligned<T>]; 8]) {
    let n = lane.len();
    let [a, b, c, d, e, f, g, h] = rows.map(|r| &r[..n]);
    for i in 0..n {
        let x = [a[i].0, b[i].0, c[i].0, d[i].0, e[i].0, f[i].0, g[i].0, h[i].0];
        lane[i] = Unaligned(M::combine(lane[i].0, M::combine_eight(x)));
    }
}

per_isa! {
    /// Returns the [`RowsLoop`] of M for an instruction set.
    fn accumulate_rows[T: LoopElement, M: Monoid<T>][T, M]
    (lanes: *mut u8, src: *const u8, row_stride: isize, cols: usize, rows: usize) {
        let size = size_of::<T>();
        debug_assert!(rows <= ROWS, "{rows} rows exceed a block of {ROWS}");
        debug_assert!(
            rows <= 1 || row_stride == 0 || row_stride.unsigned_abs() >= size,
            "the rows of a reduction overlap: the row stride of {row_stride} bytes is less than one element"
        );
        let absent = [Unaligned(M::IDENTITY); STRIP];
        // Only a partial block is divided into strips of columns, because it reads `absent`, which has `STRIP` columns,
        // instead of missing rows.
        let strip = if rows == ROWS { cols } else { STRIP };
        for l in 0..LANES.min(rows) {
            let mut start = 0;
            while start < cols {
                let count = strip.min(cols - start);
                let mut eight: [&[Unaligned<T>]; 8] = [&absent; 8];
                for (j, row) in eight.iter_mut().enumerate() {
                    let r = j * LANES + l;
                    if r < rows {
                        // SAFETY: by the contract of `RowsLoop`, r < rows, so the row is valid for reads of `cols`
                        // elements (*Source*), and `start + count` ≤ cols. By *Disjoint*, no write to the lanes changes
                        // it.
                        *row = unsafe { source_slice(src.offset(r as isize * row_stride).add(start * size), count) };
                    }
                }
                // SAFETY: by the contract of `RowsLoop`, lane l < 16 has `cols` elements (*Lanes*), `start + count` ≤
                // cols, and no row overlaps it (*Disjoint*).
                let lane = unsafe {
                    std::slice::from_raw_parts_mut(lanes.add((l * cols + start) * size).cast::<Unaligned<T>>(), count)
                };
                accumulate_lane::<T, M>(lane, eight);
                start += count;
            }
        }
        // Lanes without rows are combined with the identity, like the padding of a contiguous block.
        for l in rows.min(LANES)..LANES {
            // SAFETY: by the contract of `RowsLoop`, lane l < 16 has `cols` elements (*Lanes*), and no other reference
            // to them is in use.
            let lane =
                unsafe { std::slice::from_raw_parts_mut(lanes.add(l * cols * size).cast::<Unaligned<T>>(), cols) };
            for x in lane {
                *x = Unaligned(M::combine(x.0, M::IDENTITY));
            }
        }
    }
}

per_isa! {
    /// Returns the [`FinishLoop`] of M for an instruction set.
    fn finish[T: LoopElement, M: Monoid<T>][T, M](dst: *mut u8, lanes: *const u8) {
        // SAFETY: the caller guarantees *Lanes* and *Destination* (the contract of `FinishLoop`).
        unsafe { dst.cast::<T>().write_unaligned(M::combine_lanes(lanes.cast::<[T; LANES]>().read_unaligned())) };
    }
}

/// Reduces each of `rows` contiguous rows of `len` values.
///
/// # Safety
/// The clauses *Source*, *Destination* and *Disjoint* of [`ReduceRowsLoop`] hold.
#[inline(always)]
unsafe fn reduce_each_row<T: LoopElement, M: Monoid<T>>(dst: *mut u8, src: *const u8, rows: usize, len: usize) {
    let size = size_of::<T>();
    debug_assert!(are_apart((dst, rows * size), (src, rows * len * size)), "the results overlap their rows");
    for row in 0..rows {
        // SAFETY: this row and the later rows are within the `rows · len` values (*Source*), so all of them can be
        // read, and `dst` is valid for the result of the row (*Destination*).
        unsafe {
            let mut lanes = [M::IDENTITY; LANES];
            let values = StoredValues(src.add(row * len * size));
            accumulate_blocks::<T, M>(&mut lanes, values, len, (rows - row) * len);
            dst.add(row * size).cast::<T>().write_unaligned(M::combine_lanes(lanes));
        }
    }
}

per_isa! {
    /// Returns the [`ReduceRowsLoop`] of M for an instruction set.
    fn reduce_rows[T: LoopElement, M: Monoid<T>][T, M](dst: *mut u8, src: *const u8, rows: usize, len: usize) {
        // SAFETY: the caller guarantees the clauses of `ReduceRowsLoop`.
        unsafe { reduce_each_row::<T, M>(dst, src, rows, len) };
    }
}

per_isa! {
    /// Returns the [`ReduceRowsLoop`] of M for floats and an instruction set.
    fn reduce_float_rows[T: LoopElement + Float, M: VectorMonoid<T>][T, M]<S>
    (dst: *mut u8, src: *const u8, rows: usize, len: usize) {
        let size = size_of::<T>();
        debug_assert!(are_apart((dst, rows * size), (src, rows * len * size)), "the results overlap their rows");
        let short = FloatRows { dst: dst.cast::<T>(), src: src.cast::<T>(), rows, len };
        // SAFETY: the caller guarantees the clauses of `ReduceRowsLoop`; the function around this body enables the
        // instruction set. A row has at most as many values for each lane as the depth says.
        unsafe {
            match len.div_ceil(LANES) {
                1 => short.reduce::<S::FloatVector<T>, M, 1>(),
                2 => short.reduce::<S::FloatVector<T>, M, 2>(),
                3 | 4 => short.reduce::<S::FloatVector<T>, M, 4>(),
                5..=8 => short.reduce::<S::FloatVector<T>, M, 8>(),
                _ => reduce_each_row::<T, M>(dst, src, rows, len),
            }
        }
    }
}

/// The loops of one operation that reduce the rows or the columns of a matrix.
struct MatrixLoops {
    rows: ReduceRowsLoop,
    columns: ReduceColumnsLoop,
    /// See [`FoldLoops::reduces_wide_matrices`].
    is_wide: bool,
}

/// Returns the loops of M for matrices of any type.
fn any_matrix<T: LoopElement, M: Monoid<T>>(isa: Isa) -> MatrixLoops {
    MatrixLoops {
        rows: up_to!(T::WIDEST_ISA, isa, reduce_rows::<T, M>),
        columns: up_to!(T::WIDEST_ISA, isa, reduce_columns::<T, M>),
        is_wide: false,
    }
}

/// Returns the loops of M for matrices of floats.
fn float_matrix<T: LoopElement + Float, M: VectorMonoid<T>>(isa: Isa) -> MatrixLoops {
    let (rows, columns) = (reduce_float_rows::<T, M>(isa), reduce_float_columns::<T, M>(isa));
    MatrixLoops { rows, columns, is_wide: true }
}

/// Returns the loops of M without a loop for products. `matrix` returns the loops for matrices.
fn fold_loops<T: LoopElement, M: Monoid<T>>(isa: Isa, matrix: fn(Isa) -> MatrixLoops) -> FoldLoops {
    let mut identity = [0; 8];
    // SAFETY: an element has at most eight bytes, the size of `identity`.
    unsafe { identity.as_mut_ptr().cast::<T>().write_unaligned(M::IDENTITY) };
    let MatrixLoops { rows, columns, is_wide } = matrix(isa);
    FoldLoops {
        identity,
        accumulate: up_to!(T::WIDEST_ISA, isa, accumulate::<T, M>),
        accumulate_products: None,
        accumulate_lanes: up_to!(T::WIDEST_ISA, isa, accumulate_lanes::<T, M>),
        accumulate_rows: up_to!(T::WIDEST_ISA, isa, accumulate_rows::<T, M>),
        finish: up_to!(T::WIDEST_ISA, isa, finish::<T, M>),
        reduce_rows: rows,
        reduce_columns: columns,
        reduces_wide_matrices: is_wide,
    }
}

/// Returns the loops of a reduction of numbers, or `None` for logical operations. `[sum, prod, max, min]` return the
/// loops for matrices.
fn numeric_fold_loops<T: LoopElement + Ring + Ordered>(
    op: FoldOp,
    isa: Isa,
    [sum, prod, max, min]: [fn(Isa) -> MatrixLoops; 4],
) -> Option<FoldLoops> {
    Some(match op {
        FoldOp::Sum => {
            let products = up_to!(T::WIDEST_ISA, isa, accumulate_products::<T, Sum>);
            FoldLoops { accumulate_products: Some(products), ..fold_loops::<T, Sum>(isa, sum) }
        }
        FoldOp::Prod => fold_loops::<T, Prod>(isa, prod),
        FoldOp::Max => fold_loops::<T, Max>(isa, max),
        FoldOp::Min => fold_loops::<T, Min>(isa, min),
        FoldOp::And | FoldOp::Or => return None,
    })
}

/// Returns the loops of a reduction of integers, or `None` for logical operations.
fn integer_fold_loops<T: LoopElement + Ring + Ordered>(op: FoldOp, isa: Isa) -> Option<FoldLoops> {
    let matrices = [any_matrix::<T, Sum>, any_matrix::<T, Prod>, any_matrix::<T, Max>, any_matrix::<T, Min>];
    numeric_fold_loops::<T>(op, isa, matrices)
}

/// Returns the loops of a reduction of floats, or `None` for logical operations.
fn float_fold_loops<T: LoopElement + Ring + Ordered + Float>(op: FoldOp, isa: Isa) -> Option<FoldLoops> {
    let matrices = [float_matrix::<T, Sum>, float_matrix::<T, Prod>, float_matrix::<T, Max>, float_matrix::<T, Min>];
    numeric_fold_loops::<T>(op, isa, matrices)
}

/// Returns the loops of a reduction of values of type `ty`, or `None` if the operation is not defined for it.
///
/// Numbers have Sum, Prod, Max and Min. Masks have And and Or; for masks, Min is And, and Max is Or.
pub(crate) fn fold(op: FoldOp, ty: Compute, isa: Isa) -> Option<FoldLoops> {
    match (ty, op) {
        (Compute::Mask, FoldOp::And | FoldOp::Min) => {
            Some(fold_loops::<MaskByte, And>(isa, any_matrix::<MaskByte, And>))
        }
        (Compute::Mask, FoldOp::Or | FoldOp::Max) => Some(fold_loops::<MaskByte, Or>(isa, any_matrix::<MaskByte, Or>)),
        (Compute::Mask, _) => None,
        (Compute::I32, _) => integer_fold_loops::<i32>(op, isa),
        (Compute::I64, _) => integer_fold_loops::<i64>(op, isa),
        (Compute::F32, _) => float_fold_loops::<f32>(op, isa),
        (Compute::F64, _) => float_fold_loops::<f64>(op, isa),
    }
}
