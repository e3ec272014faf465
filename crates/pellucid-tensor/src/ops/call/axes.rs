//! Axes and options of a reduction, as callers write them.

use crate::ops::call::int_list::distinct_axes;
use pellucid_ir::kernel::AxisSet;
use pellucid_ir::{Error, Result, Shape, from_integers};
use smallvec::SmallVec;
use std::ops::RangeFull;

/// The axes that an operation reduces, and its options.
///
/// Can be created from one axis (`-1`), several (`[0, 2]`, `(0, 2)`, a slice or a vector), none (`()`) or all (`..`).
/// [`over`] adds options.
#[derive(Clone, Debug, PartialEq)]
pub struct Axes {
    /// The axes as the caller wrote them; `None` for all axes (`..`).
    list: Option<SmallVec<[isize; 4]>>,
    keepdims: bool,
    ddof: usize,
}

/// Returns axes to which options can be added: `x.var(over(-1).keepdims().ddof(1))`.
pub fn over(axes: impl Into<Axes>) -> Axes {
    axes.into()
}

impl Axes {
    /// Keeps the reduced axes in the result, with length 1.
    pub fn keepdims(mut self) -> Axes {
        self.keepdims = true;
        self
    }

    /// Sets the delta degrees of freedom: `var` and `std` divide by N − ddof. The default is 0.
    pub fn ddof(mut self, ddof: usize) -> Axes {
        self.ddof = ddof;
        self
    }

    /// Returns true for `..`.
    pub(crate) fn is_all(&self) -> bool {
        self.list.is_none()
    }

    /// Returns the axes of a tensor of rank `rank`, in the given order; `None` for `..`. Errors show `shape`.
    pub(in crate::ops) fn indices(
        &self,
        op: &'static str,
        rank: usize,
        shape: &Shape,
    ) -> Result<Option<SmallVec<[usize; 6]>>> {
        self.list.as_ref().map(|list| distinct_axes(op, list, rank, shape)).transpose()
    }

    /// Returns the number of given axes; `None` for `..`.
    pub(in crate::ops) fn count(&self) -> Option<usize> {
        self.list.as_ref().map(|list| list.len())
    }

    /// Resolves the axes against `shape`, for an operation that does not use `ddof`.
    pub(crate) fn resolve(&self, op: &'static str, shape: &Shape) -> Result<ResolvedAxes> {
        if self.ddof != 0 {
            return Err(Error::invalid(op, "`ddof` must be 0; only var and std have degrees of freedom"));
        }
        self.resolve_moments(op, shape).map(|(resolved, _)| resolved)
    }

    /// Resolves the axes against `shape`, and returns them with `ddof`.
    pub(crate) fn resolve_moments(&self, op: &'static str, shape: &Shape) -> Result<(ResolvedAxes, usize)> {
        check_reduction_rank(op, shape)?;
        let set = match self.indices(op, shape.rank(), shape)? {
            None => AxisSet::all(shape.rank()),
            Some(axes) => {
                let mut set = AxisSet::default();
                axes.into_iter().for_each(|axis| set.insert(axis));
                set
            }
        };
        Ok((ResolvedAxes { set, keepdims: self.keepdims }, self.ddof))
    }
}

/// Returns an error if the rank exceeds the maximum rank that reductions support.
pub(in crate::ops) fn check_reduction_rank(op: &'static str, shape: &Shape) -> Result<()> {
    let max_rank = AxisSet::MAX_RANK;
    if shape.rank() <= max_rank {
        return Ok(());
    }
    Err(Error::invalid(
        op,
        format!("the input must have at most {max_rank} axes, got {}; flatten() some of them", shape.rank()),
    ))
}

/// The reduced axes, after resolution against the shape of a tensor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResolvedAxes {
    pub(crate) set: AxisSet,
    pub(crate) keepdims: bool,
}

impl ResolvedAxes {
    /// Returns the shape of the result, for an input of shape `shape`.
    pub(crate) fn shape(self, shape: &Shape) -> Shape {
        if self.keepdims { self.set.keepdims(shape) } else { self.set.remove(shape) }
    }
}

impl From<RangeFull> for Axes {
    fn from(_: RangeFull) -> Axes {
        Axes { list: None, keepdims: false, ddof: 0 }
    }
}

impl Axes {
    fn from_list(list: impl Iterator<Item = isize>) -> Axes {
        Axes { list: Some(list.collect()), keepdims: false, ddof: 0 }
    }
}

from_integers!(Axes, number: |axis| Axes::from_list([axis].into_iter()), list: Axes::from_list);
