//! Sums of terms of pairs of values, in registers, such as the distances between all pairs of points, and the gradients
//! of these distances.
//!
//! A term is computed from two values x and y, and an optional weight. Many sums have the same x or the same sequence
//! of y, so the operands stay in the first-level cache. No term is stored. Every operation of a term rounds like the
//! separate loop of the operation, and the terms are added in the order of [`crate::program::fold`].

use super::fold::{LANES, ROWS};
use pellucid_simd::math::Real;
use pellucid_simd::vector::FloatVector;
use pellucid_simd::{Float, Isa, VectorWork, vector_work};
use std::ops::Range;

/// The function of a pair of values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PairTerm {
    /// (x − y)²
    Square,
    /// |x − y|
    Magnitude,
    /// (c·w)·(x − y) with a weight w and a factor c
    Weighted,
}

/// An operand of the terms: its address, and the bytes from one term of a sum to the next.
#[derive(Clone, Copy)]
pub(crate) struct PairOperand {
    pub(crate) base: *const u8,
    pub(crate) stride: isize,
}

/// Sums of terms with the same x.
#[derive(Clone, Copy)]
pub(crate) struct PairSums {
    pub(crate) term: PairTerm,
    /// The values x; the sums of a row have the same x.
    pub(crate) x: PairOperand,
    /// The values y.
    pub(crate) y: PairOperand,
    /// The weights; only [`PairTerm::Weighted`] uses them.
    pub(crate) weight: PairOperand,
    /// The factor c, one value.
    pub(crate) factor: *const u8,
    /// Whether the factor is −c.
    pub(crate) is_negated: bool,
    /// The number of terms of a sum, at least 1 and at most a chunk.
    pub(crate) terms: usize,
    /// The number of sums, if the sums, their values of y and their weights are adjacent in memory; 0 for a single sum
    /// whose values of y and weights are contiguous.
    pub(crate) columns: usize,
    /// The destination of the sums.
    pub(crate) into: *mut u8,
}

impl PairSums {
    /// Computes the sums, in the type T.
    ///
    /// # Safety
    /// - *Operands*: every operand is valid for reads of all its values, `factor` of one value.
    /// - *Result*: `into` is valid for writes of `columns` values, or of one, and disjoint from the operands.
    pub(crate) unsafe fn compute<T: Float + Real>(&self) {
        match self.term {
            // SAFETY: the processor supports `Isa::best()`. *Operands* and *Result* are the contract of the work.
            PairTerm::Square => unsafe { vector_work::<T, PairWork<'_, 0>>(Isa::best())(&PairWork(self)) },
            // SAFETY: the processor supports `Isa::best()`. *Operands* and *Result* are the contract of the work.
            PairTerm::Magnitude => unsafe { vector_work::<T, PairWork<'_, 1>>(Isa::best())(&PairWork(self)) },
            // SAFETY: the processor supports `Isa::best()`. *Operands* and *Result* are the contract of the work.
            PairTerm::Weighted => unsafe { vector_work::<T, PairWork<'_, 2>>(Isa::best())(&PairWork(self)) },
        }
    }
}

/// The computation of [`PairSums`] for the term with index K.
struct PairWork<'a, const K: u8>(&'a PairSums);

impl<T: Float + Real, const K: u8> VectorWork<T> for PairWork<'_, K> {
    /// # Safety
    /// *Work*: *Operands* and *Result* of [`PairSums::compute`] hold.
    #[inline(always)]
    unsafe fn run<V: FloatVector<Scalar = T>>(&self) {
        let columns = self.0.columns;
        // SAFETY: *Work* and *Instruction set* of this method are the contracts of the called methods. All vectors, and
        // the lanes of the mask, are columns.
        unsafe {
            if columns == 0 {
                self.sum_sequence::<V>();
            } else if columns < V::LANES {
                self.sum_columns::<V, false>(0, V::mask(columns));
            } else {
                // The last vector may overlap the vector before it. Some sums are then computed twice.
                let all = V::mask(V::LANES);
                for column in (0..columns).step_by(V::LANES) {
                    self.sum_columns::<V, true>(column.min(columns - V::LANES), all);
                }
            }
        }
    }
}

impl<const K: u8> PairWork<'_, K> {
    /// Returns the terms for vectors of x and y, weights, and factors.
    ///
    /// # Safety
    /// *Instruction set* of [`VectorWork::run`] holds.
    #[inline(always)]
    unsafe fn term<V: FloatVector>(x: V, y: V, weight: V, factor: V) -> V {
        // SAFETY: *Instruction set* is the contract of all methods.
        unsafe {
            let d = x.sub(y);
            match K {
                0 => d.mul(d),
                1 => d.neg().select(d, d.less(V::zero())),
                _ => factor.mul(weight).mul(d),
            }
        }
    }

    /// Returns the factor of the weights, c or −c, in all lanes, or zeros if the terms have no factor.
    ///
    /// # Safety
    /// *Work* and *Instruction set* of [`VectorWork::run`] hold.
    #[inline(always)]
    unsafe fn factor<V: FloatVector>(&self) -> V {
        // SAFETY: the factor is one value (*Operands*); *Instruction set* covers the vectors.
        unsafe {
            let factor = if K == 2 { V::splat(self.0.factor.cast()) } else { V::zero() };
            if self.0.is_negated { factor.neg() } else { factor }
        }
    }

    /// Returns the sum of the `count` terms r, r + 16, .. for a vector of columns, which begins `offset` bytes after
    /// the first column. `P` is `count`, or 0 if it is not a constant. Absent terms count as 0.
    ///
    /// # Safety
    /// *Work* and *Instruction set* of [`VectorWork::run`] hold, the lanes of the mask are columns, `count` is in
    /// 1..=8, and r + 16·(`count` − 1) < `terms`.
    #[inline(always)]
    unsafe fn lane_sum<V: FloatVector, const FULL: bool, const P: usize>(
        &self,
        r: usize,
        count: usize,
        (offset, mask, factor): (usize, V::Mask, V),
    ) -> V {
        let sums = self.0;
        let count = if P == 0 { count } else { P };
        // The addresses of term r. The last increments may leave the operands, but no value is read there.
        let first = |operand: &PairOperand| operand.base.wrapping_offset(r as isize * operand.stride);
        let (mut x, mut y, mut weight) = (first(&sums.x), first(&sums.y), first(&sums.weight));
        // SAFETY: every address is a value of the operands (*Operands*) for a column in the mask and one of the terms.
        unsafe {
            let mut t = [V::zero(); 8];
            for term in t.iter_mut().take(count) {
                let w = if K == 2 { load::<V, FULL>(weight.wrapping_add(offset), mask) } else { V::zero() };
                *term = Self::term(V::splat(x.cast()), load::<V, FULL>(y.wrapping_add(offset), mask), w, factor);
                let next = |at: *const u8, operand: &PairOperand| at.wrapping_offset(LANES as isize * operand.stride);
                (x, y, weight) = (next(x, &sums.x), next(y, &sums.y), next(weight, &sums.weight));
            }
            match P {
                1 => t[0],
                2 => t[0].add(t[1]),
                4 => t[0].add(t[1]).add(t[2].add(t[3])),
                _ => eight_sum(t),
            }
        }
    }

    /// Adds `count` terms to each of the given partial sums of a block, whose first term is `first`. `P` is `count`, or
    /// 0 if it is not a constant.
    ///
    /// # Safety
    /// The contract of [`PairWork::lane_sum`] holds for r = `first` + l, for each of the partial sums l.
    #[inline(always)]
    unsafe fn add_terms<V: FloatVector, const FULL: bool, const P: usize>(
        &self,
        lanes: &mut [V; LANES],
        range: Range<usize>,
        (first, count): (usize, usize),
        columns: (usize, V::Mask, V),
    ) {
        for l in range {
            // SAFETY: the contract of `lane_sum` and the instruction set of `add` are part of this method's contract.
            unsafe { lanes[l] = lanes[l].add(self.lane_sum::<V, FULL, P>(first + l, count, columns)) };
        }
    }

    /// Computes the sums of a vector of columns.
    ///
    /// # Safety
    /// *Work* and *Instruction set* of [`VectorWork::run`] hold, and the lanes of the mask are columns.
    #[inline(always)]
    unsafe fn sum_columns<V: FloatVector, const FULL: bool>(&self, column: usize, mask: V::Mask) {
        let sums = self.0;
        let offset = column * size_of::<V::Scalar>();
        // SAFETY: all terms are below `terms`, and the results are in the mask (*Result*).
        unsafe {
            let factor = self.factor::<V>();
            let mut lanes = [V::zero(); LANES];
            let mut first = 0;
            while first < sums.terms {
                let rows = ROWS.min(sums.terms - first);
                // The first partial sums have one term more than the others if the last row of terms is not full.
                let (full, longer) = (rows / LANES, rows % LANES);
                let columns = (offset, mask, factor);
                for (range, count) in [(0..longer, full + 1), (longer..LANES, full)] {
                    let terms = (first, count);
                    match count {
                        0 => {}
                        1 if FULL => self.add_terms::<V, FULL, 1>(&mut lanes, range, terms, columns),
                        2 if FULL => self.add_terms::<V, FULL, 2>(&mut lanes, range, terms, columns),
                        4 if FULL => self.add_terms::<V, FULL, 4>(&mut lanes, range, terms, columns),
                        8 => self.add_terms::<V, FULL, 8>(&mut lanes, range, terms, columns),
                        _ => self.add_terms::<V, FULL, 0>(&mut lanes, range, terms, columns),
                    }
                }
                first += rows;
            }
            for half in [8, 4, 2, 1] {
                for l in 0..half {
                    lanes[l] = lanes[l].add(lanes[l + half]);
                }
            }
            let into = sums.into.add(offset).cast();
            if FULL { lanes[0].store(into) } else { lanes[0].store_part(into, mask) }
        }
    }

    /// Computes one sum of contiguous values.
    ///
    /// # Safety
    /// *Work* and *Instruction set* of [`VectorWork::run`] hold.
    #[inline(always)]
    unsafe fn sum_sequence<V: FloatVector>(&self) {
        let sums = self.0;
        // SAFETY: all vectors of a full block, and the scalars after the last one, are values of the operands
        // (*Operands*). The buffer holds a block, the lanes sixteen values; l plus a vector is at most 16.
        unsafe {
            let x = V::splat(sums.x.base.cast());
            let factor = self.factor::<V>();
            let (y, weight) = (sums.y.base.cast::<V::Scalar>(), sums.weight.base.cast::<V::Scalar>());
            let mut lanes = [V::Scalar::ZERO; LANES];
            let full = sums.terms / ROWS * ROWS;
            for first in (0..full).step_by(ROWS) {
                for l in (0..LANES).step_by(V::LANES) {
                    let mut t = [V::zero(); 8];
                    for j in 0..8 {
                        let i = first + l + j * LANES;
                        let w = if K == 2 { V::load(weight.add(i)) } else { V::zero() };
                        t[j] = Self::term(x, V::load(y.add(i)), w, factor);
                    }
                    let lane = lanes.as_mut_ptr().add(l);
                    V::load(lane).add(eight_sum(t)).store(lane);
                }
            }
            if full < sums.terms {
                // The last values, padded with terms of 0.
                let mut block = [V::Scalar::ZERO; ROWS];
                let one = V::mask(1);
                for i in full..sums.terms {
                    let w = if K == 2 { V::load_part(weight.add(i), one) } else { V::zero() };
                    let value = Self::term(x, V::load_part(y.add(i), one), w, factor);
                    value.store_part(block.as_mut_ptr().add(i - full), one);
                }
                for l in (0..LANES).step_by(V::LANES) {
                    let mut t = [V::zero(); 8];
                    for j in 0..8 {
                        t[j] = V::load(block.as_ptr().add(l + j * LANES));
                    }
                    let lane = lanes.as_mut_ptr().add(l);
                    V::load(lane).add(eight_sum(t)).store(lane);
                }
            }
            for half in [8, 4, 2, 1] {
                for l in 0..half {
                    lanes[l] = lanes[l] + lanes[l + half];
                }
            }
            sums.into.cast::<V::Scalar>().write_unaligned(lanes[0]);
        }
    }
}

/// Loads a vector, or its lanes in the mask.
///
/// # Safety
/// The clauses of [`Vector`](pellucid_simd::vector::Vector) hold for the lanes, or for the lanes in the mask.
#[inline(always)]
unsafe fn load<V: FloatVector, const FULL: bool>(p: *const u8, mask: V::Mask) -> V {
    // SAFETY: the clauses of `Vector` hold for the lanes that are loaded (this function's contract).
    unsafe { if FULL { V::load(p.cast()) } else { V::load_part(p.cast(), mask) } }
}

/// Adds eight vectors by the fixed tree.
///
/// # Safety
/// The processor has the instruction set of V, which the calling function has enabled.
#[inline(always)]
unsafe fn eight_sum<V: FloatVector>(t: [V; 8]) -> V {
    // SAFETY: the instruction set is available (this function's contract).
    unsafe { t[0].add(t[1]).add(t[2].add(t[3])).add(t[4].add(t[5]).add(t[6].add(t[7]))) }
}
