//! `SparseProduct`: products of a sparse matrix and the lines of an array along an axis.
//!
//! The arrays are `[outer, axis, inner]`. The elements of an output row with the same outer index are computed
//! together, as a sum of weighted rows of the input. If `inner` is small, the arrays `[axis, inner]` of several outer
//! indices are transposed to scratch memory, block by block, so that elements with the same axis index are adjacent.

mod rows;
#[cfg(test)]
mod tests;

use crate::dense::DenseArray;
use crate::family::CpuFamily;
use crate::operand::Operand;
use pellucid_ir::kernel::SparseProduct;
use pellucid_ir::{DType, Error, Result};
use pellucid_runtime::list::List;
use pellucid_runtime::threads::{GRAIN, SharedPtr, parallel_ranges};
use pellucid_runtime::workspace::parallel_ranges_with_workspace;
use pellucid_simd::{Float, Isa, vector_work};
use rows::{SparseRows, TransposedBlock};
use std::ops::Range;

/// The number of outer indices whose arrays `[axis, inner]` are transposed together.
const GROUP: usize = 16;
/// The minimum inner length for which arrays are not transposed.
const MIN_INNER: usize = 8;
/// The maximum size in bytes of the transposed inputs and outputs of a block, unless the block has a single row. Such a
/// block stays in the cache of a core.
const BLOCK_BYTES: usize = 64 << 10;

impl CpuFamily for SparseProduct {
    fn run(&self, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
        match inputs[0].dtype {
            DType::F32 => multiply::<f32>(Isa::best(), self, inputs, &outputs[0]),
            _ => multiply::<f64>(Isa::best(), self, inputs, &outputs[0]),
        }
    }
}

/// Computes the product of operands that the rule of the family accepts, with an instruction set of this processor.
///
/// # Errors
/// Returns an error if the matrix is invalid, or memory cannot be allocated.
fn multiply<T: Float>(isa: Isa, kernel: &SparseProduct, inputs: &[Operand<'_>], y: &Operand<'_>) -> Result<()> {
    let (shape, axis) = (inputs[0].shape(), kernel.axis);
    let (starts, columns) =
        (DenseArray::of_input(&inputs[1], DType::I64)?, DenseArray::of_input(&inputs[2], DType::I64)?);
    let weights = DenseArray::of_input(&inputs[3], inputs[3].dtype)?;
    let terms = inputs[2].shape()[0];
    // SAFETY: the arrays are contiguous, with one more start than rows and with `terms` columns and weights (the rule
    // of the family). Their elements are in their buffers, and no thread writes inputs of a kernel.
    let (starts, columns, weights) = unsafe {
        (
            elements(starts.first::<i64>(), inputs[1].shape()[0]),
            elements(columns.first::<i64>(), terms),
            elements(weights.first::<T>(), terms),
        )
    };
    let matrix = CsrRows::new(kernel, starts, columns, weights, shape[axis])?;
    if y.shape().contains(&0) {
        return Ok(());
    }
    let x = DenseArray::of_input(&inputs[0], inputs[0].dtype)?;
    let out = DenseArray::of_output(y, y.dtype)?;
    let product = AxisProduct {
        matrix: &matrix,
        x: x.first(),
        y: out.first(),
        outer: shape[..axis].iter().product(),
        len: shape[axis],
        inner: shape[axis + 1..].iter().product(),
        isa,
    };
    if product.inner >= MIN_INNER || product.outer == 1 {
        product.compute_rows();
    } else {
        product.compute_groups()?;
    }
    out.store()
}

/// Returns the elements of a contiguous array.
///
/// # Safety
/// `first` is valid for reads of `count` elements if `count` is not 0, and no thread writes them while the slice
/// exists.
unsafe fn elements<'a, T>(first: SharedPtr<T>, count: usize) -> &'a [T] {
    match count {
        0 => &[],
        // SAFETY: `first` is valid for reads of `count` elements, which no thread writes (this function's contract).
        _ => unsafe { std::slice::from_raw_parts(first.get(), count) },
    }
}

/// A sparse matrix in CSR format. The starts never decrease and are at most the number of terms, and every column is
/// less than the width.
struct CsrRows<'a, T> {
    starts: &'a [i64],
    columns: &'a [i64],
    weights: &'a [T],
    width: usize,
}

impl<'a, T> CsrRows<'a, T> {
    /// Creates the rows of a matrix from its operands. `width` is the number of columns.
    ///
    /// # Errors
    /// Returns an error if a column or a start is out of range, or if a start is less than the previous one.
    fn new(
        kernel: &SparseProduct,
        starts: &'a [i64],
        columns: &'a [i64],
        weights: &'a [T],
        width: usize,
    ) -> Result<CsrRows<'a, T>> {
        if let Some(&index) = columns.iter().find(|&&column| column as u64 >= width as u64) {
            return Err(Error::IndexOutOfBounds { op: kernel.op, index, axis: kernel.axis, len: width });
        }
        let mut previous = 0;
        for &start in starts {
            if !(previous..=columns.len() as i64).contains(&start) {
                return Err(Error::IndexOutOfBounds { op: kernel.op, index: start, axis: 0, len: columns.len() + 1 });
            }
            previous = start;
        }
        Ok(CsrRows { starts, columns, weights, width })
    }

    /// Returns the number of rows.
    fn rows(&self) -> usize {
        self.starts.len() - 1
    }

    /// Returns the columns and weights of a row.
    #[inline(always)]
    fn terms(&self, row: usize) -> (&[i64], &[T]) {
        let terms = self.starts[row] as usize..self.starts[row + 1] as usize;
        (&self.columns[terms.clone()], &self.weights[terms])
    }

    /// Returns a column as an index. The columns have been checked. Clamping keeps the access in bounds even if the
    /// columns have been modified since.
    #[inline(always)]
    fn index(&self, column: i64) -> usize {
        (column as u64).min(self.width as u64 - 1) as usize
    }

    /// Returns the range of the columns of a row.
    fn columns_of(&self, row: usize) -> Range<usize> {
        let columns = || self.terms(row).0.iter().map(|&column| self.index(column));
        let first = columns().min().unwrap_or(0);
        first..columns().max().map_or(first, |last| last + 1)
    }

    /// Divides the rows into blocks, and returns the rows and the range of columns of each block. A block has at most
    /// `budget` rows and columns together, but at least one row.
    fn blocks(&self, budget: usize) -> List<(Range<usize>, Range<usize>), 16> {
        let mut blocks = List::new();
        let mut start = 0;
        while start < self.rows() {
            let (mut end, mut columns) = (start + 1, self.columns_of(start));
            while end < self.rows() {
                let more = self.columns_of(end);
                let all = match more.is_empty() {
                    true => columns.clone(),
                    false if columns.is_empty() => more,
                    false => columns.start.min(more.start)..columns.end.max(more.end),
                };
                if all.len() + end + 1 - start > budget {
                    break;
                }
                (end, columns) = (end + 1, all);
            }
            blocks.push((start..end, columns));
            start = end;
        }
        blocks
    }
}

/// The product of a matrix and a contiguous array `[outer, len, inner]`.
struct AxisProduct<'a, T> {
    matrix: &'a CsrRows<'a, T>,
    x: SharedPtr<T>,
    y: SharedPtr<T>,
    outer: usize,
    len: usize,
    inner: usize,
    isa: Isa,
}

impl<T: Float> AxisProduct<'_, T> {
    /// Computes all output rows directly in `y`.
    fn compute_rows(&self) {
        let (rows, len, inner) = (self.matrix.rows(), self.len, self.inner);
        let bytes = inner * (self.matrix.columns.len() / rows + 1) * size_of::<T>();
        parallel_ranges(self.outer * rows, GRAIN / bytes + 1, |range| {
            let mut at = range.start;
            while at < range.end {
                let (outer, row) = (at / rows, at % rows);
                let end = rows.min(row + range.end - at);
                let work = SparseRows {
                    matrix: self.matrix,
                    rows: row..end,
                    x: self.x.offset((outer * len * inner) as isize),
                    y: self.y.offset((at * inner) as isize),
                    inner,
                };
                // SAFETY: *input* and *output* of `SparseRows`: x and y are contiguous arrays `[outer, len, inner]` and
                // `[outer, rows, inner]`, and the columns of the matrix are less than `len`. The output rows of this
                // range are written by this task alone. The processor has the instruction set.
                unsafe { vector_work::<T, SparseRows<'_, T>>(self.isa)(&work) };
                at += end - row;
            }
        });
    }

    /// Computes groups of outer indices in a workspace.
    ///
    /// # Errors
    /// Returns an error if the workspace cannot be allocated.
    fn compute_groups(&self) -> Result<()> {
        let (rows, inner) = (self.matrix.rows(), self.inner);
        let line_bytes = inner * GROUP * size_of::<T>();
        let blocks = self.matrix.blocks(BLOCK_BYTES / line_bytes);
        let lines = blocks.iter().map(|(rows, columns)| rows.len() + columns.len()).max().unwrap_or(0);
        let grain = GRAIN / ((self.len + rows) * line_bytes) + 1;
        parallel_ranges_with_workspace(self.outer.div_ceil(GROUP), grain, lines * line_bytes, |groups, workspace| {
            for group in groups {
                let count = GROUP.min(self.outer - group * GROUP);
                for (rows, columns) in &blocks {
                    // SAFETY: the workspace has `GROUP` columns for the lines of every block. The outputs of this group
                    // are written by this task alone.
                    unsafe { self.compute_block(group * GROUP, count, rows, columns, workspace.cast()) }
                }
            }
        })
    }

    /// Computes the output rows `rows`, whose terms are in `columns`, for the `count` outer indices starting at
    /// `first`.
    ///
    /// # Safety
    /// `first + count` is at most `outer`. `scratch` is valid for reads and writes of `inner · count` elements for each
    /// row and column. No other thread accesses the scratch memory or these outputs.
    unsafe fn compute_block(
        &self,
        first: usize,
        count: usize,
        rows: &Range<usize>,
        columns: &Range<usize>,
        scratch: *mut T,
    ) {
        let (len, inner, all) = (self.len, self.inner, self.matrix.rows());
        let transpose = vector_work::<T, TransposedBlock<T>>(self.isa);
        let results = scratch.wrapping_add(columns.len() * inner * count);
        let read = TransposedBlock {
            from: self.x.offset(((first * len + columns.start) * inner) as isize),
            from_row: len * inner,
            to: scratch,
            to_row: count,
            rows: count,
            columns: columns.len() * inner,
        };
        let work = SparseRows {
            matrix: self.matrix,
            rows: rows.clone(),
            // Column c is at row c − columns.start of the scratch memory.
            x: scratch.wrapping_sub(columns.start * inner * count),
            y: results,
            inner: inner * count,
        };
        let write = TransposedBlock {
            from: results,
            from_row: count,
            to: self.y.offset(((first * all + rows.start) * inner) as isize),
            to_row: all * inner,
            rows: rows.len() * inner,
            columns: count,
        };
        // SAFETY: *source* and *target* of `TransposedBlock`: the block of x and the block of y are within the arrays
        // `[outer, len, inner]` and `[outer, rows, inner]`, and the caller guarantees the scratch memory. *Input* and
        // *output* of `SparseRows`: the columns of these rows are in `columns`, so they are in the scratch memory. The
        // processor has the instruction set.
        unsafe {
            transpose(&read);
            vector_work::<T, SparseRows<'_, T>>(self.isa)(&work);
            transpose(&write);
        }
    }
}
