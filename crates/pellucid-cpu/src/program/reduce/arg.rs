//! The position of an extremum, found piece by piece.

use crate::program::loops::{self, ArgLoop};
use pellucid_ir::Compute;
use pellucid_simd::Isa;
use pellucid_simd::per_isa;

/// The search for an extremum of one type.
#[derive(Clone, Copy)]
pub(crate) struct Arg {
    position: ArgLoop,
    largest: bool,
    compute: Compute,
}

/// The best value so far, in the first bytes, and where it was.
#[derive(Clone, Copy)]
pub(crate) struct Best {
    value: u64,
    /// −1 while nothing was seen.
    pub(crate) at: i64,
}

impl Best {
    pub(crate) const NONE: Best = Best { value: 0, at: -1 };
}

impl Arg {
    pub(crate) fn new(largest: bool, compute: Compute) -> Option<Arg> {
        let find = if largest { loops::argmax } else { loops::argmin };
        Some(Arg { position: find(compute, Isa::best())?, largest, compute })
    }

    /// Takes `n` contiguous values, of which the first is number `first`.
    ///
    /// # Safety
    /// `from` holds `n` values.
    pub(crate) unsafe fn push(&self, best: &mut Best, from: *const u8, n: usize, first: usize) {
        if n == 0 {
            return;
        }
        let size = self.compute.size();
        let mut value = 0u64;
        // SAFETY: the position found is one of the `n`.
        let at = unsafe {
            let at = (self.position)(from, n);
            std::ptr::copy_nonoverlapping(from.add(at * size), (&raw mut value).cast(), size);
            at
        };
        self.join(best, Best { value, at: (first + at) as i64 });
    }

    /// Joins what was found further on.
    pub(crate) fn join(&self, best: &mut Best, later: Best) {
        if later.at >= 0 && (best.at < 0 || self.beats(later.value, best.value)) {
            *best = later;
        }
    }

    /// True if value `a` wins over the earlier `b`: it is better, or the first NaN.
    fn beats(&self, a: u64, b: u64) -> bool {
        match self.compute {
            Compute::F32 => beats(f32::from_ne_bytes(low(a)), f32::from_ne_bytes(low(b)), self.largest),
            Compute::I32 => beats(i32::from_ne_bytes(low(a)), i32::from_ne_bytes(low(b)), self.largest),
            Compute::F64 => {
                beats(f64::from_ne_bytes(a.to_ne_bytes()), f64::from_ne_bytes(b.to_ne_bytes()), self.largest)
            }
            Compute::I64 => {
                beats(i64::from_ne_bytes(a.to_ne_bytes()), i64::from_ne_bytes(b.to_ne_bytes()), self.largest)
            }
            Compute::Mask => false,
        }
    }

    /// Takes `rows` rows of `cols` values, of which the first is number `first` of every column, into
    /// the best values and positions of all columns; the first row of all must be number 0.
    ///
    /// # Safety
    /// `best` and `at` have `cols` places, and every row, `stride` bytes apart, holds `cols` values.
    #[expect(clippy::too_many_arguments)]
    pub(crate) unsafe fn push_rows(
        &self,
        best: *mut u8,
        at: *mut i64,
        from: *const u8,
        stride: isize,
        cols: usize,
        rows: usize,
        first: usize,
    ) {
        let isa = Isa::best();
        let take = match (self.compute, self.largest) {
            (Compute::F32, true) => columns::<f32, true>(isa),
            (Compute::F32, false) => columns::<f32, false>(isa),
            (Compute::F64, true) => columns::<f64, true>(isa),
            (Compute::F64, false) => columns::<f64, false>(isa),
            (Compute::I32, true) => columns::<i32, true>(isa),
            (Compute::I32, false) => columns::<i32, false>(isa),
            (_, true) => columns::<i64, true>(isa),
            (_, false) => columns::<i64, false>(isa),
        };
        // SAFETY: the caller's promise, for values of this type, and the isa is this processor's.
        unsafe { take(best, at, from, stride, cols, rows, first) }
    }
}

fn low(word: u64) -> [u8; 4] {
    let bytes = word.to_ne_bytes();
    [bytes[0], bytes[1], bytes[2], bytes[3]]
}

/// Of all numbers only a NaN is not itself.
#[inline(always)]
#[allow(clippy::eq_op)]
fn beats<T: PartialOrd>(a: T, b: T, largest: bool) -> bool {
    let better = if largest { a > b } else { a < b };
    better | ((a != a) & (b == b))
}

per_isa! {
    /// Takes rows into the best values and positions of their columns.
    fn columns[T: Copy + PartialOrd, const LARGEST: bool][T, LARGEST]
    (best: *mut u8, at: *mut i64, from: *const u8, stride: isize, cols: usize, rows: usize, first: usize) {
        // SAFETY: the caller's promise, that of `Arg::push_rows`.
        let (best, at) =
            unsafe { (std::slice::from_raw_parts_mut(best.cast::<T>(), cols), std::slice::from_raw_parts_mut(at, cols)) };
        for r in 0..rows {
            // SAFETY: row `r` holds `cols` values.
            let row = unsafe { std::slice::from_raw_parts(from.offset(r as isize * stride).cast::<T>(), cols) };
            let number = (first + r) as i64;
            if number == 0 {
                best.copy_from_slice(row);
                at.fill(0);
                continue;
            }
            for ((best, at), &x) in best.iter_mut().zip(at.iter_mut()).zip(row) {
                let wins = beats(x, *best, LARGEST);
                *best = if wins { x } else { *best };
                *at = if wins { number } else { *at };
            }
        }
    }
}
