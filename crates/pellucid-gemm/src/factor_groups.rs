//! Converts matrices to groups of factors with consecutive k indices, which one instruction multiplies: pairs of `bf16`
//! and quads of `i8`.

use super::strided::Strided;
use pellucid_simd::{Element, Isa, per_isa};
use std::mem::MaybeUninit;
use std::ops::Range;

/// An element that is converted to a factor of a group: `bf16`, or `f32`, which is rounded to the nearest `bf16`, in
/// [pairs](pellucid_simd::vector::BF16Pair), and `i8` in [quads](pellucid_simd::vector::I8Quad).
pub trait FactorElement: Copy + Send + Sync {
    /// The group. It has [`Element::FACTORS`] factors.
    type Group: Element;

    /// Returns the group of the factors `0..count`, followed by zeros. `at(i)` is the address of factor i.
    ///
    /// # Safety
    /// `1 ≤ count ≤ FACTORS`, and `at(i)` is valid for reads for i below `count`.
    unsafe fn group(count: usize, at: impl Fn(usize) -> *const Self) -> Self::Group;

    /// Returns the group of neighbouring elements.
    ///
    /// # Safety
    /// `from` is valid for reads of [`Element::FACTORS`] elements.
    #[inline(always)]
    unsafe fn neighbours(from: *const Self) -> Self::Group {
        // SAFETY: the caller guarantees that the elements can be read.
        unsafe { Self::group(Self::Group::FACTORS, |i| from.wrapping_add(i)) }
    }

    /// Returns the bit pattern of the smallest nonzero magnitude of the factors, minus 1, or `u32::MAX` if all are zero
    /// or the magnitudes do not matter.
    #[inline(always)]
    fn least_magnitude(_group: Self::Group) -> u32 {
        u32::MAX
    }
}

/// A matrix of elements of type `E`, and the memory to which groups of its factors are packed.
///
/// The groups form rows without gaps. If neighbouring lanes are adjacent in memory, a row contains one group of k
/// indices of all lanes; otherwise, it contains all groups of one lane. The last group is padded with zeros.
///
/// # Group packing contract
///
/// - *Source*: `from` is valid for reads of `lanes × depth` elements, and no thread writes them during the call.
/// - *Target*: `to` is valid for writes of [`group_count`](Self::group_count) groups, which do not overlap the source.
///   No other thread accesses the rows that are packed.
#[derive(Clone, Copy, Debug)]
pub struct PackGroups<E: FactorElement> {
    /// The matrix.
    pub from: Strided<E>,
    /// The number of lanes: rows of A, columns of B.
    pub lanes: usize,
    /// The number of k indices.
    pub depth: usize,
    /// The first group.
    pub to: *mut E::Group,
}

impl<E: FactorElement> PackGroups<E> {
    /// The number of factors in a group.
    const FACTORS: usize = E::Group::FACTORS;

    /// Returns true if a row contains one group of k indices of all lanes.
    fn is_by_depth(&self) -> bool {
        self.from.lane == 1
    }

    /// Returns the number of groups of a lane.
    fn groups_per_lane(&self) -> usize {
        self.depth.div_ceil(Self::FACTORS)
    }

    /// Returns the groups as an operand of a product of depth ⌈`depth` / FACTORS⌉.
    pub fn groups(&self) -> Strided<E::Group> {
        let (lane, depth) =
            if self.is_by_depth() { (1, self.lanes as isize) } else { (self.groups_per_lane() as isize, 1) };
        Strided { data: self.to, lane, depth }
    }

    /// Returns the number of rows of groups: one for every group of k indices, or one for each lane.
    pub fn rows(&self) -> usize {
        if self.is_by_depth() { self.groups_per_lane() } else { self.lanes }
    }

    /// Returns the number of groups in a row.
    pub fn row_len(&self) -> usize {
        if self.is_by_depth() { self.lanes } else { self.groups_per_lane() }
    }

    /// Returns the number of groups.
    pub fn group_count(&self) -> usize {
        self.lanes.saturating_mul(self.groups_per_lane())
    }

    /// Converts the given rows, and returns the smallest nonzero magnitude of their factors.
    ///
    /// # Safety
    ///
    /// - The group packing contract of [`PackGroups`] holds, and the range is within the [rows](Self::rows).
    /// - *Isa*: the processor has the instruction set.
    pub unsafe fn pack(&self, isa: Isa, rows: Range<usize>) -> FactorRange {
        debug_assert!(rows.end <= self.rows(), "rows {rows:?} exceed the {} rows of groups", self.rows());
        // SAFETY: the caller guarantees the contract of `pack_rows` and *Isa*.
        unsafe { pack_rows::<E>(isa)(self, rows) }
    }

    /// Converts the given rows. See [`pack`](Self::pack).
    ///
    /// # Safety
    ///
    /// The group packing contract of [`PackGroups`] holds, and the range is within the rows.
    #[inline(always)]
    unsafe fn convert_rows(&self, rows: Range<usize>) -> FactorRange {
        let (len, factors) = (self.row_len(), Self::FACTORS);
        let mut least = u32::MAX;
        for row in rows {
            // SAFETY: the row is below `rows()` and the group below `row_len()`, so all k indices are below `depth`,
            // except those that the last group lacks, which are not read. *Source* covers the reads, and *Target* the
            // row.
            unsafe {
                let to = std::slice::from_raw_parts_mut(self.to.add(row * len).cast(), len);
                least = least.min(if self.is_by_depth() {
                    let start = self.from.element_ptr(0, factors * row);
                    let step = self.from.depth;
                    let at = |lane: usize, i: usize| start.wrapping_offset(i as isize * step).wrapping_add(lane);
                    match self.depth - factors * row {
                        rest if rest < factors => store_groups::<E>(to, |lane| E::group(rest, |i| at(lane, i))),
                        _ => store_groups::<E>(to, |lane| E::group(factors, |i| at(lane, i))),
                    }
                } else {
                    let (full, last) = to.split_at_mut(self.depth / factors);
                    let (from, step) = (self.from.element_ptr(row, 0), self.from.depth);
                    let at = |group: usize, i: usize| from.wrapping_offset((factors * group + i) as isize * step);
                    let full_groups = full.len();
                    let least = match step {
                        1 => store_groups::<E>(full, |group| E::neighbours(from.add(factors * group))),
                        _ => store_groups::<E>(full, |group| E::group(factors, |i| at(group, i))),
                    };
                    let rest = self.depth % factors;
                    least.min(store_groups::<E>(last, |_| E::group(rest, |i| at(full_groups, i))))
                });
            }
        }
        FactorRange { least }
    }
}

/// Stores consecutive groups. Returns the smallest [`FactorElement::least_magnitude`].
#[inline(always)]
fn store_groups<E: FactorElement>(to: &mut [MaybeUninit<E::Group>], group: impl Fn(usize) -> E::Group) -> u32 {
    let mut least = u32::MAX;
    for (i, to) in to.iter_mut().enumerate() {
        let group = group(i);
        least = least.min(E::least_magnitude(group));
        to.write(group);
    }
    least
}

per_isa! {
    /// Calls [`PackGroups::convert_rows`].
    ///
    /// # Safety of the returned function pointer
    /// - *Isa*: the processor supports the instruction set.
    /// - The contract of [`PackGroups::convert_rows`] holds.
    fn pack_rows [E: FactorElement] [E] (work: &PackGroups<E>, rows: Range<usize>) -> FactorRange {
        // SAFETY: the caller guarantees the contract of `convert_rows`.
        unsafe { work.convert_rows(rows) }
    }
}

/// The smallest nonzero magnitude among the factors of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FactorRange {
    /// The bit pattern of the magnitude, minus 1. If all factors are zero, it is larger than for any other factors.
    pub(super) least: u32,
}

impl FactorRange {
    /// The value for an operand without factors.
    pub const EMPTY: FactorRange = FactorRange { least: u32::MAX };

    /// Returns the range of an operand that consists of two parts with the ranges `self` and `other`.
    pub fn join(self, other: FactorRange) -> FactorRange {
        FactorRange { least: self.least.min(other.least) }
    }

    /// Returns true if no factor of either operand, and no partial sum of products of their factors, can be subnormal.
    ///
    /// A `bf16` with the biased exponent e is a multiple of 2^(e − 134). All products and sums are therefore multiples
    /// of 2^(e + e' − 268), where e and e' are the smallest exponents of the operands. If this power is at least 2⁻¹²⁶,
    /// every nonzero sum is normal.
    pub fn excludes_subnormals(self, other: FactorRange) -> bool {
        // Infinities and NaN have the exponent 255. Without nonzero factors, the exponent is larger.
        let [a, b] = [self, other].map(|range| (range.least.saturating_add(1) >> 7).min(256));
        a >= 1 && b >= 1 && a + b >= 142
    }
}
