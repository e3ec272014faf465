//! The values of a program: their indices, and how many values each has in a tile.

/// The index of a value of a program: first the inputs, then the uniforms, then the results of the steps.
pub(crate) type ValueSlot = u16;

/// How many values a slot has.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Granularity {
    /// One value for the entire run or segment.
    Uniform,
    /// One value for each row.
    PerRow,
    /// One value for each element.
    PerElement,
}
