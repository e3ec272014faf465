//! Indexing: which elements of an array integer indices mean, for [`gather`] and [`scatter`].
//!
//! Both kernels pair *places* of the indexed result with places of the array, each followed by the
//! same *rest* (the axes that are not indexed). All indices are checked before anything is written.

mod gather;
mod scatter;
#[cfg(test)]
mod tests;

use crate::operand::{Array, Operand};
use crate::strided::{IndexSpace, axes};
use pellucid_ir::kernel::Index;
use pellucid_ir::{DType, Error, Layout, Result, Shape};
use pellucid_runtime::list::List;
use pellucid_runtime::threads::SharedPtr;
use pellucid_simd::Isa;
use pellucid_simd::per_isa;
use std::ops::Range;

/// Places whose offsets are worked out together.
const BLOCK: usize = 256;

/// Refuses shapes and dtypes that do not fit. `picked` is the result of a gather, or the values of a
/// scatter.
fn check_shapes(
    op: &'static str,
    index: &Index,
    array: &Operand<'_>,
    picked: &Operand<'_>,
    indices: &[Operand<'_>],
) -> Result<()> {
    let (shape, places) = (array.shape(), indices[0].shape());
    let axes = indexed(index);
    let along = matches!(index, Index::Along(_));
    let fits = axes.len() == indices.len()
        && axes.windows(2).all(|w| w[0] < w[1])
        && axes.iter().all(|&a| a < shape.rank())
        && indices.iter().all(|i| i.shape() == places)
        && (!along || places.rank() == shape.rank())
        && (!along || (0..shape.rank()).all(|a| a == axes[0] || places[a] <= shape[a]))
        && *picked.shape() == index.shape(shape, places);
    if !fits {
        let help = "one index array for each indexed axis, all of one shape; values of the shape of the indexed array";
        return Err(Error::shapes(op, [shape, picked.shape(), places], help));
    }
    if picked.dtype != array.dtype || indices.iter().any(|i| i.dtype != DType::I64) {
        let dtypes = [array.dtype, picked.dtype].into_iter().chain(indices.iter().map(|i| i.dtype));
        return Err(Error::dtypes(op, dtypes, "indices are i64, and array and values have one dtype"));
    }
    Ok(())
}

/// The axes that are indexed.
fn indexed(index: &Index) -> &[usize] {
    match index {
        Index::Axes(axes) => axes,
        Index::Along(axis) => std::slice::from_ref(axis),
    }
}

/// Refuses indices that are out of bounds.
fn check_indices(op: &'static str, index: &Index, array: &Operand<'_>, indices: &[Operand<'_>]) -> Result<()> {
    for (&axis, index) in indexed(index).iter().zip(indices) {
        let len = array.shape()[axis];
        if let Some(index) = first_outside(index, len) {
            return Err(Error::IndexOutOfBounds { op, index, axis, len });
        }
    }
    Ok(())
}

/// The first index that is not in `-len..len`.
fn first_outside(index: &Operand<'_>, len: usize) -> Option<i64> {
    let space = IndexSpace::new(axes(index.shape(), [index.layout]));
    let (first, [step]) = (index.first::<i64>(), space.step());
    let (mut found, inside) = (None, all_inside(Isa::best()));
    space.runs(0..space.len(), |[at], n| {
        // SAFETY: the operand holds the elements of its shape; the isa is this machine's.
        if found.is_none() && !unsafe { inside(first.at(at), step, n, len) } {
            // SAFETY: as above.
            let values = (0..n as isize).map(|i| unsafe { *first.at(at + i * step) });
            found = values.into_iter().find(|&v| !is_inside(v, len));
        }
    });
    found
}

#[inline(always)]
fn is_inside(index: i64, len: usize) -> bool {
    (index.wrapping_add(len as i64) as u64) < 2 * len as u64
}

per_isa! {
    /// True if `n` indices, `step` elements apart, are in `-len..len`.
    fn all_inside[][](first: *const i64, step: isize, n: usize, len: usize) -> bool {
        let mut outside = 0;
        for i in 0..n as isize {
            // SAFETY: the caller vouches for the indices.
            let index = if step == 1 { unsafe { *first.offset(i) } } else { unsafe { *first.offset(i * step) } };
            outside += !is_inside(index, len) as usize;
        }
        outside == 0
    }
}

/// One index array, and the axis that it indexes.
struct Term {
    space: IndexSpace<1>,
    first: SharedPtr<i64>,
    /// The axis's length, and the array's stride along it.
    len: usize,
    stride: isize,
}

/// Pairs of places: in the array and in what is picked from it.
struct Pairs {
    terms: List<Term, 4>,
    /// The places in order: where in (array but for the indices, picked) each lies.
    places: IndexSpace<2>,
    /// What lies at every place: (array, picked).
    rest: IndexSpace<2>,
}

impl Pairs {
    /// The pairs of arguments that [`check`] accepted, by their layouts; of one axis of the array, which is not indexed,
    /// perhaps only the first so many positions.
    fn new(
        index: &Index,
        array: &Layout,
        picked: &Layout,
        indices: &[(SharedPtr<i64>, &Layout)],
        cut: Option<(usize, usize)>,
    ) -> Pairs {
        let shape = indices[0].1.shape();
        let length = |axis: usize, whole: usize| cut.filter(|c| c.0 == axis).map_or(whole, |c| c.1);
        // Along an axis, places have the axes of the array.
        let along = matches!(index, Index::Along(_));
        let place = |axis: usize| if along { length(axis, shape[axis]) } else { shape[axis] };
        let term = |axis: usize, (first, layout): (SharedPtr<i64>, &Layout)| {
            let space = IndexSpace::new((0..shape.rank()).map(|a| (place(a), [layout.strides()[a]])));
            Term { space, first, len: array.shape()[axis], stride: array.strides()[axis] }
        };
        match index {
            Index::Axes(indexed) => {
                let rank = shape.rank();
                let rest = (0..array.shape().rank()).filter(|a| !indexed.contains(a)).enumerate();
                Pairs {
                    terms: indexed.iter().zip(indices).map(|(&axis, &index)| term(axis, index)).collect(),
                    places: IndexSpace::new((0..rank).map(|a| (shape[a], [0, picked.strides()[a]]))),
                    rest: IndexSpace::new(
                        rest.map(|(k, a)| {
                            (length(a, array.shape()[a]), [array.strides()[a], picked.strides()[rank + k]])
                        }),
                    ),
                }
            }
            Index::Along(axis) => {
                let beside =
                    |a: usize| (place(a), [if a == *axis { 0 } else { array.strides()[a] }, picked.strides()[a]]);
                Pairs {
                    terms: [term(*axis, indices[0])].into_iter().collect(),
                    places: IndexSpace::new((0..shape.rank()).map(beside)),
                    rest: IndexSpace::new([]),
                }
            }
        }
    }

    /// Calls `f(offsets in the array, offsets in what is picked)` for the places `range` in order,
    /// a block at a time.
    fn blocks(&self, range: Range<usize>, mut f: impl FnMut(&[isize], &[isize])) {
        let (mut array, mut picked) = ([0; BLOCK], [0; BLOCK]);
        let steps = self.places.step();
        let add = add_offsets(Isa::best());
        let mut from = range.start;
        while from < range.end {
            let n = BLOCK.min(range.end - from);
            let mut done = 0;
            self.places.runs(from..from + n, |at, n| {
                for i in 0..n {
                    array[done + i] = at[0] + i as isize * steps[0];
                    picked[done + i] = at[1] + i as isize * steps[1];
                }
                done += n;
            });
            for term in &self.terms {
                let (mut done, [step]) = (0, term.space.step());
                term.space.runs(from..from + n, |[at], n| {
                    // SAFETY: `check` has seen that the index array has every place; the isa is
                    // this machine's.
                    unsafe { add(&mut array[done..done + n], term.first.at(at), step, term.len, term.stride) };
                    done += n;
                });
            }
            f(&array[..n], &picked[..n]);
            from += n;
        }
    }
}

per_isa! {
    /// Adds what indices `step` elements apart mean, for an axis of `len` with `stride`.
    fn add_offsets[][](offsets: &mut [isize], first: *const i64, step: isize, len: usize, stride: isize) {
        for (i, offset) in offsets.iter_mut().enumerate() {
            // SAFETY: the caller vouches for the indices.
            let index = if step == 1 { unsafe { *first.add(i) } } else { unsafe { *first.offset(i as isize * step) } };
            let index = if index < 0 { index.wrapping_add(len as i64) } else { index } as u64;
            // The bounds were checked; should someone have written to the indices meanwhile, the
            // memory of others is safe all the same.
            *offset += index.min(len as u64 - 1) as isize * stride;
        }
    }
}

/// The index arrays with their first elements.
fn located<'a>(indices: &[Operand<'a>]) -> List<(SharedPtr<i64>, &'a Layout), 4> {
    indices.iter().map(|i| (i.first(), i.layout)).collect()
}

/// True if nothing is to be done.
fn is_empty(picked: &Shape) -> bool {
    picked.contains(&0)
}
