//! Maps that run part by part, as soon as there is a part of their first input: the epilogue of a matrix product.

use crate::operand::Operand;
use crate::program::lower::Prepared;
use crate::program::strided::{self, Axes, Axis, MANY};
use pellucid_gemm::Threads;
use pellucid_ir::Result;
use pellucid_ir::kernel::{Map, Params};
use pellucid_runtime::list::List;
use pellucid_runtime::threads::SharedPtr;
use pellucid_simd::vector::prefetch_run;
use std::ops::Range;

/// A map over matrices, whose first input comes in parts.
///
/// The operands are that input, which lies where a part says; the others; and the outputs.
pub(crate) struct MapEpilogue<'a> {
    program: &'a Prepared,
    params: &'a Params,
    /// The axes before the matrices.
    batch: Axes,
    rows: Axis,
    cols: Axis,
    bases: List<SharedPtr<u8>, MANY>,
    /// Bytes of the first output: see [`FAR`].
    bytes: usize,
}

/// Outputs of so many bytes, and what they are made from, are not likely to be in the nearer caches.
const FAR: usize = 1 << 20;

impl<'a> MapEpilogue<'a> {
    /// The map of these operands, which fit it (`check`); at least one output, of rank 2 or more.
    pub(crate) fn new(map: &'a Map, others: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<MapEpilogue<'a>> {
        let (shape, program) = (outputs[0].layout.shape(), Prepared::of(&map.program)?);
        // The first input is nowhere yet; an output stands in for it.
        let operands = || outputs[..1].iter().chain(others).chain(outputs);
        let axes = |keep: &dyn Fn(usize) -> bool| strided::axes(shape, operands(), keep);
        let one = |axis: usize| {
            let none = || Axis { len: 1, steps: List::repeated(0, others.len() + outputs.len() + 1) };
            axes(&|a| a == axis).pop().unwrap_or_else(none)
        };
        let (rows, cols) = (one(shape.rank() - 2), one(shape.rank() - 1));
        let batch = axes(&|a| a + 2 < shape.rank());
        let bases = operands().map(|o| SharedPtr(strided::start(o))).collect();
        let bytes = shape.size() * outputs[0].dtype.size();
        Ok(MapEpilogue { program, params: &map.params, batch, rows, cols, bases, bytes })
    }

    /// Takes the innermost axis before the matrices, of which each has several rows, for one of more rows; false if the
    /// operands do not lie so.
    pub(crate) fn fold(&mut self) -> bool {
        let Some(last) = self.batch.last() else { return true };
        let height = self.rows.len as isize;
        if !last.steps.iter().zip(&self.rows.steps).skip(1).all(|(step, row)| *step == row * height) {
            return false;
        }
        self.rows.len *= last.len;
        self.batch.pop();
        true
    }

    /// Where the operands have this element of matrix number `batch`.
    fn at(&self, mut batch: usize, row: usize, col: usize) -> List<*mut u8, MANY> {
        let mut at: List<*mut u8, MANY> = self.bases.iter().map(SharedPtr::get).collect();
        let mut go = |axis: &Axis, index: usize| {
            for (at, step) in at.iter_mut().zip(&axis.steps) {
                *at = at.wrapping_offset(index as isize * step);
            }
        };
        for axis in self.batch.iter().rev() {
            go(axis, batch % axis.len);
            batch /= axis.len;
        }
        go(&self.rows, row);
        go(&self.cols, col);
        at
    }

    /// Asks for what other operands than the first, if they are whole matrices, have in a part, unless it will be near.
    pub(crate) fn prefetch(&self, batch: usize, rows: Range<usize>, cols: Range<usize>) {
        if self.bytes < FAR {
            return;
        }
        let at = self.at(batch, rows.start, cols.start);
        for ((at, row), col) in at.iter().zip(&self.rows.steps).zip(&self.cols.steps).skip(1) {
            if *row != 0 && (1..=8).contains(col) {
                for i in 0..rows.len() as isize {
                    prefetch_run(at.wrapping_offset(i * row).cast_const(), cols.len() * *col as usize);
                }
            }
        }
    }

    /// Runs the map on a part of matrix number `batch`, whose first input begins at `data` and has `steps` bytes from a
    /// row and from a column to the next.
    ///
    /// # Safety
    /// The part lies in the matrices, its first input at `data`; nobody else touches its outputs meanwhile, or writes its inputs.
    pub(crate) unsafe fn run(
        &self,
        batch: usize,
        rows: Range<usize>,
        cols: Range<usize>,
        data: *mut u8,
        steps: [isize; 2],
    ) {
        let mut at = self.at(batch, rows.start, cols.start);
        at[0] = data;
        let mut axes = Axes::new();
        for (axis, len, step) in [(&self.rows, rows.len(), steps[0]), (&self.cols, cols.len(), steps[1])] {
            if len > 1 {
                let mut axis = Axis { len, ..axis.clone() };
                axis.steps[0] = step;
                axes.push(axis);
            }
        }
        strided::reorder(&mut axes, self.program.inputs.len(), &mut at);
        strided::merge(&mut axes);
        super::run(self.program, self.params, &axes, &at, Threads::One);
    }
}

// SAFETY: threads run disjoint parts, of disjoint outputs.
unsafe impl Sync for MapEpilogue<'_> {}
