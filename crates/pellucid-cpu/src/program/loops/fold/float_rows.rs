//! Reductions of short contiguous rows of floats, in registers.

use super::monoid::{LANES, Max, Min, Monoid, Prod, Sum};
use crate::program::loops::loop_element::LoopElement;
use pellucid_simd::vector::FloatVector;

/// An operation that combines vectors as [`Monoid::combine`] combines their lanes.
pub(super) trait VectorMonoid<T: Copy>: Monoid<T> {
    /// Combines two vectors.
    ///
    /// # Safety
    /// The calling function has the instruction set of V enabled, on a processor that supports it.
    unsafe fn combine_vector<V: FloatVector<Scalar = T>>(a: V, b: V) -> V;
}

macro_rules! vector_monoids {
    ($($Op:ident: $method:ident)*) => {$(
        impl<T: Copy> VectorMonoid<T> for $Op
        where
            $Op: Monoid<T>,
        {
            #[inline(always)]
            unsafe fn combine_vector<V: FloatVector<Scalar = T>>(a: V, b: V) -> V {
                // SAFETY: the instruction set is available (this function's contract).
                unsafe { a.$method(b) }
            }
        }
    )*};
}
vector_monoids! { Sum: add Prod: mul Max: max Min: min }

/// Rows of `len` contiguous values, at most a block, and the memory of their results.
pub(super) struct FloatRows<T> {
    pub(super) dst: *mut T,
    pub(super) src: *const T,
    pub(super) rows: usize,
    pub(super) len: usize,
}

impl<T: LoopElement> FloatRows<T> {
    /// Reduces all rows, which have at most `DEPTH` values for each lane: 1, 2, 4 or 8.
    ///
    /// # Safety
    /// - *Rows*: the clauses *Source*, *Destination* and *Disjoint* of [`ReduceRowsLoop`](super::ReduceRowsLoop) hold,
    ///   and a row has 1 to 16 · `DEPTH` values.
    /// - *Instruction set*: the calling function has the instruction set of V enabled, on a processor that supports it.
    #[inline(always)]
    pub(super) unsafe fn reduce<V: FloatVector<Scalar = T>, M: VectorMonoid<T>, const DEPTH: usize>(&self) {
        let vectors = const { LANES / V::LANES };
        // SAFETY: every full vector is within its row, and so are the lanes of the partial vector that are in the mask
        // (*Rows*). There are at most eight vectors of sixteen lanes, and `values` holds sixteen values.
        unsafe {
            let identity = V::splat(&M::IDENTITY);
            let partial = V::mask(self.len % V::LANES);
            for row in 0..self.rows {
                let x = self.src.add(row * self.len);
                let mut lanes = [identity; 8];
                for v in 0..vectors {
                    let mut t = [identity; 8];
                    for j in 0..DEPTH {
                        let i = j * LANES + v * V::LANES;
                        if i + V::LANES <= self.len {
                            t[j] = V::load(x.add(i));
                        } else if i < self.len {
                            t[j] = identity.load_over(x.add(i), partial);
                        }
                    }
                    lanes[v] = M::combine_vector(identity, combine_to_depth::<V, M, DEPTH>(t));
                }
                let mut values = [M::IDENTITY; LANES];
                for v in 0..vectors {
                    lanes[v].store(values.as_mut_ptr().add(v * V::LANES));
                }
                self.dst.add(row).write_unaligned(M::combine_lanes(values));
            }
        }
    }
}

/// Combines the first `DEPTH` vectors by the fixed tree.
///
/// # Safety
/// The contract of [`VectorMonoid::combine_vector`] holds.
#[inline(always)]
pub(super) unsafe fn combine_to_depth<V: FloatVector, M: VectorMonoid<V::Scalar>, const DEPTH: usize>(t: [V; 8]) -> V {
    // SAFETY: the instruction set is available (this function's contract).
    unsafe {
        let pair = |k: usize| M::combine_vector(t[k], t[k + 1]);
        let four = |k: usize| M::combine_vector(pair(k), pair(k + 2));
        match DEPTH {
            1 => t[0],
            2 => pair(0),
            4 => four(0),
            _ => M::combine_vector(four(0), four(4)),
        }
    }
}
