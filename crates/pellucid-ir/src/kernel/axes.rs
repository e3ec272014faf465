//! Sets of axes.

use crate::shape::Shape;

/// A set of axes; bit k represents axis k.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct AxisSet(pub u64);

impl AxisSet {
    /// The highest rank that a set of axes supports.
    pub const MAX_RANK: usize = 64;

    /// Returns the set of the axes 0..rank.
    pub fn all(rank: usize) -> AxisSet {
        AxisSet(if rank >= 64 { u64::MAX } else { (1 << rank) - 1 })
    }

    /// Returns true if `axis` is in the set.
    #[inline]
    pub fn contains(self, axis: usize) -> bool {
        axis < 64 && self.0 >> axis & 1 == 1
    }

    /// Returns true if every axis of the set is below `rank`.
    #[inline]
    pub fn are_within(self, rank: usize) -> bool {
        rank >= Self::MAX_RANK || self.0 >> rank == 0
    }

    /// Adds `axis`.
    pub fn insert(&mut self, axis: usize) {
        self.0 |= 1 << axis;
    }

    /// Iterates over the axes, ascending.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..64).filter(move |&a| self.contains(a))
    }

    /// Returns `shape` with length 1 for every axis of the set.
    pub fn keepdims(self, shape: &Shape) -> Shape {
        shape.iter().enumerate().map(|(a, &d)| if self.contains(a) { 1 } else { d }).collect()
    }

    /// Returns `shape` without the axes of the set.
    pub fn remove(self, shape: &Shape) -> Shape {
        shape.iter().enumerate().filter(|(a, _)| !self.contains(*a)).map(|(_, &d)| d).collect()
    }

    /// Returns the product of the lengths of the axes of the set.
    pub fn count(self, shape: &Shape) -> usize {
        shape.iter().enumerate().filter(|(a, _)| self.contains(*a)).map(|(_, &d)| d).product()
    }
}

impl FromIterator<usize> for AxisSet {
    fn from_iter<I: IntoIterator<Item = usize>>(iter: I) -> AxisSet {
        let mut set = AxisSet::default();
        iter.into_iter().for_each(|a| set.insert(a));
        set
    }
}
