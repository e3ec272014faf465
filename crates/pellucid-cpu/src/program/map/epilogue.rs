//! Maps that run block by block as soon as a block of their first input is computed: the epilogue of a matrix product.

use crate::operand::Operand;
use crate::program::copy::cast_program;
use crate::program::prepared::PreparedProgram;
use crate::strided::{self, INLINE_OPERANDS, StridedAxes, StridedAxis};
use pellucid_gemm::Threads;
use pellucid_ir::kernel::{Map, Params};
use pellucid_ir::{DType, Result, are_one_axis};
use pellucid_runtime::list::List;
use pellucid_runtime::threads::SharedPtr;
use pellucid_simd::vector::prefetch_run;
use std::ops::Range;
use std::sync::LazyLock;

/// A map over matrices whose first input is passed block by block.
///
/// The operands are the first input, whose address is passed with each block, then the other inputs, then the outputs.
pub(crate) struct MapEpilogue<'a> {
    program: &'a PreparedProgram,
    params: &'a Params,
    /// The batch axes, which precede the axes of the matrices.
    batch: StridedAxes,
    /// The rows of the matrices.
    rows: StridedAxis,
    /// The columns of the matrices.
    cols: StridedAxis,
    /// The address of the first element of every operand.
    bases: List<SharedPtr<u8>, INLINE_OPERANDS>,
    /// The size of the first output, in bytes: see [`MIN_PREFETCH_BYTES`].
    bytes: usize,
}

/// The minimum size of the first output for which operands are prefetched. Smaller operands are probably in the inner
/// caches.
const MIN_PREFETCH_BYTES: usize = 1 << 20;

impl<'a> MapEpilogue<'a> {
    /// Creates the epilogue that writes `outputs`: at least one, of rank 2 or more. `others` are the inputs except the
    /// first. The operands must satisfy `Map`'s `check`.
    ///
    /// # Errors
    /// Returns the error of lowering if the program is not supported.
    pub(crate) fn new(map: &'a Map, others: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<MapEpilogue<'a>> {
        Ok(MapEpilogue::of_program(PreparedProgram::for_program(&map.program)?, &map.params, others, outputs))
    }

    /// Creates the epilogue that converts the first input from `dtype` to the dtype of `output`, of rank 2 or more.
    pub(crate) fn cast(dtype: DType, output: &Operand<'_>) -> MapEpilogue<'a> {
        static NO_PARAMS: LazyLock<Params> = LazyLock::new(Params::new);
        MapEpilogue::of_program(cast_program(dtype, output.dtype), &NO_PARAMS, &[], &[*output])
    }

    fn of_program(
        program: &'a PreparedProgram,
        params: &'a Params,
        others: &[Operand<'_>],
        outputs: &[Operand<'_>],
    ) -> MapEpilogue<'a> {
        let shape = outputs[0].layout.shape();
        // The first input has no memory yet; the first output is its placeholder.
        let operands = || outputs[..1].iter().chain(others).chain(outputs);
        let axes = |keep: &dyn Fn(usize) -> bool| strided::broadcast_axes(shape, operands(), keep);
        let matrix_axis = |axis: usize| {
            let unit = || StridedAxis { len: 1, strides: List::repeated(0, others.len() + outputs.len() + 1) };
            axes(&|a| a == axis).pop().unwrap_or_else(unit)
        };
        let (rows, cols) = (matrix_axis(shape.rank() - 2), matrix_axis(shape.rank() - 1));
        let batch = axes(&|a| a + 2 < shape.rank());
        let bases = operands().map(|o| SharedPtr(strided::base_address(o))).collect();
        let bytes = shape.size() * outputs[0].dtype.size();
        MapEpilogue { program, params, batch, rows, cols, bases, bytes }
    }

    /// Merges the innermost batch axis into the rows of the matrices. Returns false, without a change, if the strides
    /// of an operand other than the first input do not allow this. Does nothing and returns true if there is no batch
    /// axis.
    pub(crate) fn fold(&mut self) -> bool {
        let Some(last) = self.batch.last() else { return true };
        let mut strides = last.strides.iter().zip(&self.rows.strides).skip(1);
        if !strides.all(|(&stride, &row)| are_one_axis(stride, row, self.rows.len)) {
            return false;
        }
        self.rows.len *= last.len;
        self.batch.pop();
        true
    }

    /// Returns the address of every operand's element (`row`, `col`) of matrix `batch`.
    fn addresses(&self, mut batch: usize, row: usize, col: usize) -> List<*mut u8, INLINE_OPERANDS> {
        let mut addresses: List<*mut u8, INLINE_OPERANDS> = self.bases.iter().map(SharedPtr::get).collect();
        let mut advance = |axis: &StridedAxis, index: usize| {
            for (address, stride) in addresses.iter_mut().zip(&axis.strides) {
                *address = address.wrapping_offset(index as isize * stride);
            }
        };
        for axis in self.batch.iter().rev() {
            advance(axis, batch % axis.len);
            batch /= axis.len;
        }
        advance(&self.rows, row);
        advance(&self.cols, col);
        addresses
    }

    /// Prefetches a block of every operand except the first input, if the operands are large. Operands that are
    /// broadcast along an axis of the matrices are skipped.
    pub(crate) fn prefetch(&self, batch: usize, rows: Range<usize>, cols: Range<usize>) {
        if self.bytes < MIN_PREFETCH_BYTES {
            return;
        }
        let addresses = self.addresses(batch, rows.start, cols.start);
        for ((address, row), col) in addresses.iter().zip(&self.rows.strides).zip(&self.cols.strides).skip(1) {
            if *row != 0 && (1..=8).contains(col) {
                for i in 0..rows.len() as isize {
                    prefetch_run(address.wrapping_offset(i * row).cast_const(), cols.len() * *col as usize);
                }
            }
        }
    }

    /// Runs the map on a block of matrix `batch`. The block of the first input begins at `data`; its rows are
    /// `steps[0]` bytes apart and its columns `steps[1]`.
    ///
    /// # Safety
    /// - *Block*: `rows` and `cols` are within the matrices, and `batch` is below their number.
    /// - *Data*: `data` with these strides is valid for reads of the block.
    /// - *Exclusive*: during the call, no other thread accesses the block of any output or writes the block of any
    ///   input.
    pub(crate) unsafe fn run(
        &self,
        batch: usize,
        rows: Range<usize>,
        cols: Range<usize>,
        data: *mut u8,
        steps: [isize; 2],
    ) {
        let mut addresses = self.addresses(batch, rows.start, cols.start);
        addresses[0] = data;
        let mut axes = StridedAxes::new();
        for (axis, len, stride) in [(&self.rows, rows.len(), steps[0]), (&self.cols, cols.len(), steps[1])] {
            if len > 1 {
                let mut axis = StridedAxis { len, ..axis.clone() };
                axis.strides[0] = stride;
                axes.push(axis);
            }
        }
        strided::reorder(&mut axes, self.program.inputs.len(), &mut addresses);
        strided::merge(&mut axes);
        super::map_over_axes(self.program, self.params, &axes, &addresses, Threads::One);
    }
}

// SAFETY: all fields are only read. Only `run` accesses memory, and its *Exclusive* clause rules out data races.
unsafe impl Sync for MapEpilogue<'_> {}
