//! The index of an extremum, computed piece by piece.

use crate::program::loops::{self, ArgLoop};
use pellucid_ir::Compute;
use pellucid_simd::{Isa, per_isa};

/// The search for an extremum of one type.
#[derive(Clone, Copy)]
pub(crate) struct ArgReduction {
    /// The loop that finds the index of the extremum of contiguous values.
    position: ArgLoop,
    /// True for the largest value, false for the smallest.
    largest: bool,
    /// The type of the values.
    compute: Compute,
}

/// Consecutive rows of a matrix whose columns are reduced.
#[derive(Clone, Copy)]
pub(crate) struct MatrixRows {
    /// The address of the first row.
    pub(crate) from: *const u8,
    /// The distance between two rows, in bytes.
    pub(crate) stride: isize,
    /// The number of values of a row.
    pub(crate) cols: usize,
    /// The index of the first row.
    pub(crate) first: usize,
    /// The number of rows.
    pub(crate) count: usize,
}

/// The best value so far and its index.
#[derive(Clone, Copy)]
pub(crate) struct ArgCandidate {
    /// The value, in the leading bytes.
    value: u64,
    /// The index of this value in the reduced sequence, or −1 before any value.
    pub(crate) position: i64,
}

impl ArgCandidate {
    /// The candidate before any value.
    pub(crate) const NONE: ArgCandidate = ArgCandidate { value: 0, position: -1 };
}

impl ArgReduction {
    /// Returns the search for values of type `compute`, or `None` for masks.
    pub(crate) fn new(largest: bool, compute: Compute) -> Option<ArgReduction> {
        let find = if largest { loops::argmax } else { loops::argmin };
        Some(ArgReduction { position: find(compute, Isa::best())?, largest, compute })
    }

    /// Updates `best` with `n` contiguous values, which begin at index `first` of the sequence.
    ///
    /// # Safety
    /// `from` is valid for reads of `n` values of the type of this search.
    pub(crate) unsafe fn push(&self, best: &mut ArgCandidate, from: *const u8, n: usize, first: usize) {
        if n == 0 {
            return;
        }
        let size = self.compute.size();
        let mut value = 0u64;
        // SAFETY: the caller guarantees that `from` is valid for reads of `n` ≥ 1 values (this function's contract),
        // and the loop is for the best instruction set of this processor. The returned position is below `n`.
        let position = unsafe {
            let position = (self.position)(from, n);
            std::ptr::copy_nonoverlapping(from.add(position * size), (&raw mut value).cast(), size);
            position
        };
        self.combine(best, ArgCandidate { value, position: (first + position) as i64 });
    }

    /// Updates `best` with a candidate of higher index.
    pub(crate) fn combine(&self, best: &mut ArgCandidate, later: ArgCandidate) {
        if later.position >= 0 && (best.position < 0 || self.beats(later.value, best.value)) {
            *best = later;
        }
    }

    /// Returns true if value `a` beats the earlier value `b`: it is better, or it is the first NaN.
    fn beats(&self, a: u64, b: u64) -> bool {
        match self.compute {
            Compute::F32 => beats(f32::from_ne_bytes(low_bytes(a)), f32::from_ne_bytes(low_bytes(b)), self.largest),
            Compute::I32 => beats(i32::from_ne_bytes(low_bytes(a)), i32::from_ne_bytes(low_bytes(b)), self.largest),
            Compute::F64 => {
                beats(f64::from_ne_bytes(a.to_ne_bytes()), f64::from_ne_bytes(b.to_ne_bytes()), self.largest)
            }
            Compute::I64 => {
                beats(i64::from_ne_bytes(a.to_ne_bytes()), i64::from_ne_bytes(b.to_ne_bytes()), self.largest)
            }
            Compute::Mask => false,
        }
    }

    /// Updates the best values and positions of all columns with some rows.
    ///
    /// The first call must pass row 0, which initializes `best` and `positions`.
    ///
    /// # Safety
    /// * Columns: `best` is valid for reads and writes of `cols` values, and `positions` of `cols` positions, both
    ///   aligned, and initialized unless the index of the first row is 0.
    /// * Rows: each of the rows is aligned and valid for reads of `cols` values.
    /// * Disjoint: `best`, `positions` and the rows do not overlap.
    pub(crate) unsafe fn push_rows(&self, best: *mut u8, positions: *mut i64, rows: MatrixRows) {
        let isa = Isa::best();
        let accumulate = match (self.compute, self.largest) {
            (Compute::F32, true) => arg_columns::<f32, true>(isa),
            (Compute::F32, false) => arg_columns::<f32, false>(isa),
            (Compute::F64, true) => arg_columns::<f64, true>(isa),
            (Compute::F64, false) => arg_columns::<f64, false>(isa),
            (Compute::I32, true) => arg_columns::<i32, true>(isa),
            (Compute::I32, false) => arg_columns::<i32, false>(isa),
            (_, true) => arg_columns::<i64, true>(isa),
            (_, false) => arg_columns::<i64, false>(isa),
        };
        // SAFETY: the caller guarantees *Columns*, *Rows* and *Disjoint* (this method's contract) for the type of this
        // search, which is the type of the loop. The processor has the instruction set `isa`.
        unsafe { accumulate(best, positions, rows) }
    }
}

/// Returns the first four bytes of `word` as it is stored in memory.
fn low_bytes(word: u64) -> [u8; 4] {
    let bytes = word.to_ne_bytes();
    [bytes[0], bytes[1], bytes[2], bytes[3]]
}

/// Returns true if `a` beats the earlier `b`: it is better, or it is a NaN (which differs from itself) and `b` is not.
#[inline(always)]
#[allow(clippy::eq_op)]
fn beats<T: PartialOrd>(a: T, b: T, largest: bool) -> bool {
    let better = if largest { a > b } else { a < b };
    better | ((a != a) & (b == b))
}

per_isa! {
    /// Returns the loop of [`ArgReduction::push_rows`] for an instruction set.
    fn arg_columns[T: Copy + PartialOrd, const LARGEST: bool][T, LARGEST]
    (best: *mut u8, positions: *mut i64, rows: MatrixRows) {
        let MatrixRows { from, stride, cols, first, count } = rows;
        // SAFETY: the caller guarantees *Columns* and *Disjoint* (the contract of `ArgReduction::push_rows`).
        let (best, positions) = unsafe {
            (std::slice::from_raw_parts_mut(best.cast::<T>(), cols), std::slice::from_raw_parts_mut(positions, cols))
        };
        for r in 0..count {
            // SAFETY: by the contract of `ArgReduction::push_rows`, r < count, so the row is valid for reads of `cols`
            // values (*Rows*).
            let row = unsafe { std::slice::from_raw_parts(from.offset(r as isize * stride).cast::<T>(), cols) };
            let index = (first + r) as i64;
            if index == 0 {
                best.copy_from_slice(row);
                positions.fill(0);
                continue;
            }
            for ((best, position), &x) in best.iter_mut().zip(positions.iter_mut()).zip(row) {
                let wins = beats(x, *best, LARGEST);
                *best = if wins { x } else { *best };
                *position = if wins { index } else { *position };
            }
        }
    }
}
