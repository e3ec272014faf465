//! Axes and options of a reduction, as users write them.

use pellucid_ir::kernel::AxisSet;
use pellucid_ir::{Error, Result, Shape};
use smallvec::SmallVec;
use std::ops::RangeFull;

/// The axes that an operation reduces, and its options.
///
/// Converts from one axis (`-1`), several (`[0, 2]`) or all (`..`). [`over`] adds options.
#[derive(Clone, Debug, PartialEq)]
pub struct Axes {
    /// `None` for all axes.
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

    /// Returns the axes of `shape`, for an operation without degrees of freedom.
    pub(crate) fn resolve(&self, op: &'static str, shape: &Shape) -> Result<ResolvedAxes> {
        if self.ddof != 0 {
            return Err(Error::invalid(op, "takes no ddof; only var and std do"));
        }
        self.resolve_moments(op, shape).map(|(resolved, _)| resolved)
    }

    /// Returns the axes of `shape` and the degrees of freedom.
    pub(crate) fn resolve_moments(&self, op: &'static str, shape: &Shape) -> Result<(ResolvedAxes, usize)> {
        check_reduction_rank(op, shape)?;
        let mut set = AxisSet::default();
        match &self.list {
            None => set = AxisSet::all(shape.rank()),
            Some(list) => {
                for &axis in list {
                    let axis = shape.axis(op, axis)?;
                    if set.contains(axis) {
                        return Err(Error::invalid(op, format!("axis {axis} is named twice")));
                    }
                    set.insert(axis);
                }
            }
        }
        Ok((ResolvedAxes { set, keepdims: self.keepdims }, self.ddof))
    }
}

/// Returns an error if the rank exceeds the maximum of reductions.
pub(super) fn check_reduction_rank(op: &'static str, shape: &Shape) -> Result<()> {
    let most = AxisSet::MAX_RANK;
    if shape.rank() <= most {
        return Ok(());
    }
    Err(Error::invalid(op, format!("takes at most {most} axes, got {}; flatten() some of them", shape.rank())))
}

/// The reduced axes of a known shape.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResolvedAxes {
    pub(crate) set: AxisSet,
    pub(crate) keepdims: bool,
}

impl ResolvedAxes {
    /// Returns the shape of the result of reducing `shape`.
    pub(crate) fn shape(self, shape: &Shape) -> Shape {
        if self.keepdims { self.set.keepdims(shape) } else { self.set.remove(shape) }
    }
}

impl From<RangeFull> for Axes {
    fn from(_: RangeFull) -> Axes {
        Axes { list: None, keepdims: false, ddof: 0 }
    }
}

impl From<&[isize]> for Axes {
    fn from(axes: &[isize]) -> Axes {
        Axes { list: Some(SmallVec::from_slice(axes)), keepdims: false, ddof: 0 }
    }
}

impl From<isize> for Axes {
    fn from(axis: isize) -> Axes {
        Axes::from(&[axis][..])
    }
}

impl From<i32> for Axes {
    fn from(axis: i32) -> Axes {
        Axes::from(axis as isize)
    }
}

impl<const N: usize> From<[isize; N]> for Axes {
    fn from(axes: [isize; N]) -> Axes {
        Axes::from(&axes[..])
    }
}

impl<const N: usize> From<[i32; N]> for Axes {
    fn from(axes: [i32; N]) -> Axes {
        Axes::from(&axes.map(|a| a as isize)[..])
    }
}

impl From<Vec<isize>> for Axes {
    fn from(axes: Vec<isize>) -> Axes {
        Axes::from(&axes[..])
    }
}
