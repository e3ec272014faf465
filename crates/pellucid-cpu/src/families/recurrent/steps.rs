//! The loop over time: for every step the products with the packed weights, and the cell.

use super::cell::{ActiveSequences, BackwardStep, CellStep, ForwardStep};
use super::factors::StepWeights;
use pellucid_gemm::Strided;
use pellucid_ir::kernel::{GateBlock, Recurrent, RecurrentSizes, RnnMode};
use pellucid_ir::{DType, Result};
use pellucid_runtime::CpuBuffer;
use pellucid_runtime::list::List;
use pellucid_runtime::threads::{self, SharedPtr};
use pellucid_simd::Float;
use pellucid_simd::Isa;
use pellucid_simd::math::Real;
use std::ops::Range;

/// The smallest number of multiply-adds of a task. Distributing smaller tasks would take longer than it saves.
const MIN_TASK_WORK: usize = 1 << 19;

/// Columns of a product are distributed over threads in multiples of this number, which is a multiple of the width of a
/// panel.
const COLUMN_GRANULE: usize = 64;

/// The sizes of a recurrent layer, and the operands that both passes read.
///
/// # The array contract
/// The unsafe methods require the following of the arrays in this struct and of the arrays that are their arguments:
///
/// - *shape*: the arrays that the kernel has are contiguous, have the shapes of [`Recurrent`] for `sizes`, and are
///   valid for reads;
/// - *exclusive*: outputs are valid for writes, overlap no other array, and no other thread accesses them;
/// - *isa*: the processor supports `isa`.
pub(super) struct RecurrentProblem<'a, T> {
    /// The instruction set of the kernels.
    pub(super) isa: Isa,
    /// The kernel.
    pub(super) kernel: &'a Recurrent,
    /// The sizes T, N, H and P, as in [`Recurrent`], which also defines B and G.
    pub(super) sizes: RecurrentSizes,
    /// The weights W, `[G·H, P]`.
    pub(super) weights: SharedPtr<T>,
    /// The projection V, `[P, H]`, if the states are projected.
    pub(super) projection: SharedPtr<T>,
    /// The length of each sequence, if the sequences have individual lengths.
    pub(super) lengths: Option<&'a [i64]>,
}

/// The additional arrays of the forward pass.
pub(super) struct RecurrentStateArrays<T> {
    /// The bias β, `[B·H]`.
    pub(super) bias: SharedPtr<T>,
    /// The initial h and c.
    pub(super) initial: [SharedPtr<T>; 2],
    /// The input contribution to the gates, which is overwritten with the gate activations: an output.
    pub(super) gates: SharedPtr<T>,
    /// The states before the first step and after each step: an output.
    pub(super) states: SharedPtr<T>,
    /// The cell states before the first step and after each step, if the cell is an LSTM: an output.
    pub(super) cells: SharedPtr<T>,
}

/// The additional arrays of the backward pass.
pub(super) struct RecurrentGradientArrays<T> {
    /// The gate activations.
    pub(super) gates: SharedPtr<T>,
    /// The states before the first step and after each step.
    pub(super) states: SharedPtr<T>,
    /// The cell states before the first step and after each step, for an LSTM.
    pub(super) cells: SharedPtr<T>,
    /// The gradients of the states that the steps compute.
    pub(super) state_grads: SharedPtr<T>,
    /// The gradients of the final h and c, which are added to those in `state_grads`.
    pub(super) final_grads: [SharedPtr<T>; 2],
    /// The gradients of the gates: an output.
    pub(super) gate_grads: SharedPtr<T>,
    /// The gradients of the initial h and c: outputs. During the loop they hold the gradients of the state before the
    /// current step.
    pub(super) initial_grads: [SharedPtr<T>; 2],
    /// The total gradients of the states, if they are projected: an output.
    pub(super) total_grads: SharedPtr<T>,
}

/// The packed weights of neighbouring gates.
struct PackedGateWeights<T> {
    /// The packed weights.
    weights: StepWeights<T>,
    /// The first block of the gates that the weights apply to.
    first_block: usize,
}

/// A part of the batch that one task computes.
struct BatchPart {
    /// The range of sequences.
    rows: Range<usize>,
    /// The number of parts into which the columns of the products are divided.
    column_parts: usize,
}

impl<T: Float> RecurrentProblem<'_, T> {
    /// Computes the states of all steps.
    ///
    /// # Errors
    /// Returns an error if memory cannot be allocated.
    ///
    /// # Safety
    /// The [array contract](RecurrentProblem#the-array-contract) holds.
    pub(super) unsafe fn compute_states(&self, arrays: &RecurrentStateArrays<T>) -> Result<()> {
        let RecurrentSizes { batch, hidden, state, .. } = self.sizes;
        // The rows of the weights are the columns of the product.
        let weights =
            self.pack_weights(|from, rows| (Strided { data: from, lane: state as isize, depth: 1 }, (rows, state)))?;
        let projection =
            self.pack_projection(|from| (Strided { data: from, lane: hidden as isize, depth: 1 }, (state, hidden)))?;
        let bytes = if self.kernel.projected { batch * hidden * size_of::<T>() } else { 0 };
        let buffer = CpuBuffer::scratch(bytes)?;
        let unprojected = buffer.ensure()?;
        // The rows are zeroed, because a product reads the rows of all sequences up to the last active one, and no step
        // has written the rows of sequences that have not been active yet.
        // SAFETY: the buffer has `bytes` bytes, and no other thread uses it yet.
        unsafe { unprojected.write_bytes(0, bytes) };
        let unprojected = SharedPtr(unprojected.as_ptr().cast::<T>());
        self.for_each_part(row_granule(&weights, projection.as_ref()), |part| {
            // SAFETY: the array contract, which is this function's contract. Every part has its own rows, and
            // `unprojected` has N rows of H elements if the states are projected.
            unsafe { self.compute_part_states(&part, arrays, &weights, projection.as_ref(), unprojected) };
        });
        Ok(())
    }

    /// Computes the states of all steps for a part of the batch.
    ///
    /// # Safety
    /// The [array contract](RecurrentProblem#the-array-contract) holds for the rows of the part. If the states are
    /// projected, `unprojected` is valid for reading and writing `[N, H]`, and no other thread accesses the rows of the
    /// part.
    unsafe fn compute_part_states(
        &self,
        part: &BatchPart,
        arrays: &RecurrentStateArrays<T>,
        weights: &[PackedGateWeights<T>],
        projection: Option<&StepWeights<T>>,
        unprojected: SharedPtr<T>,
    ) {
        let RecurrentSizes { hidden, state, .. } = self.sizes;
        let (cell, rows) = (self.kernel.cell, &part.rows);
        let width = cell.blocks() * hidden;
        let [h, c] =
            [(arrays.states, state), (arrays.cells, hidden)].map(|(p, width)| move |t| self.matrix_at(p, t, width));
        let start = if self.kernel.reverse { self.sizes.steps } else { 0 };
        // SAFETY: all matrices have the rows of the batch (*shape*), and only this call accesses the rows of the part
        // in the outputs (*exclusive*) and in `unprojected` (this function's contract). The same clauses imply the
        // contract of the step that runs as vector work. The processor supports the instruction set (*isa*).
        unsafe {
            copy_rows(arrays.initial[0], h(start), rows.clone(), state);
            if cell == RnnMode::Lstm {
                copy_rows(arrays.initial[1], c(start), rows.clone(), hidden);
            }
            for step in self.step_order() {
                let (previous, following) = self.state_indices(step);
                let (active, active_range) = self.active_rows(step, rows);
                let gates = self.matrix_at(arrays.gates, step, width);
                for block in weights {
                    let a = Strided { data: h(previous).get().cast_const(), lane: state as isize, depth: 1 };
                    let to = SharedPtr(gates.offset((block.first_block * hidden) as isize));
                    // The last block of a GRU has no input contribution.
                    let add = !(cell == RnnMode::Gru && block.first_block == 3);
                    self.multiply(part, &active_range, a, &block.weights, (to, width), add);
                }
                let next = if projection.is_some() { unprojected } else { h(following) };
                let work = ForwardStep {
                    step: CellStep {
                        cell,
                        width: hidden,
                        rows: active_range.clone(),
                        active,
                        gates,
                        previous_state: h(previous),
                        cells: [c(previous), c(following)],
                    },
                    bias: arrays.bias,
                    next_state: next,
                };
                work.run(self.isa);
                if let Some(projection) = projection {
                    let a = Strided { data: next.get().cast_const(), lane: hidden as isize, depth: 1 };
                    self.multiply(part, &active_range, a, projection, (h(following), state), false);
                }
                for row in rows.clone().filter(|&row| !active.contains(row)) {
                    copy_rows(h(previous), h(following), row..row + 1, state);
                    if cell == RnnMode::Lstm {
                        copy_rows(c(previous), c(following), row..row + 1, hidden);
                    }
                }
            }
        }
    }

    /// Computes the gradients of the gates in all steps, and of the initial states.
    ///
    /// # Errors
    /// Returns an error if memory cannot be allocated.
    ///
    /// # Safety
    /// The [array contract](RecurrentProblem#the-array-contract) holds.
    pub(super) unsafe fn compute_gradient(&self, arrays: &RecurrentGradientArrays<T>) -> Result<()> {
        let RecurrentSizes { batch, hidden, state, .. } = self.sizes;
        // The gradient of a state is a product with the untransposed weights: their rows are the rows of B, along k.
        let weights =
            self.pack_weights(|from, rows| (Strided { data: from, lane: 1, depth: state as isize }, (state, rows)))?;
        let projection =
            self.pack_projection(|from| (Strided { data: from, lane: 1, depth: hidden as isize }, (hidden, state)))?;
        let buffer = CpuBuffer::scratch(batch * hidden * size_of::<T>())?;
        let cell_state_grads = SharedPtr(buffer.ensure()?.as_ptr().cast::<T>());
        self.for_each_part(row_granule(&weights, projection.as_ref()), |part| {
            // SAFETY: the array contract, which is this function's contract. Every part has its own rows, and
            // `cell_state_grads` has N rows of H elements.
            unsafe { self.compute_part_gradient(&part, arrays, &weights, projection.as_ref(), cell_state_grads) };
        });
        Ok(())
    }

    /// Computes the gradients of the gates in all steps, and of the initial states, for a part of the batch.
    ///
    /// # Safety
    /// The [array contract](RecurrentProblem#the-array-contract) holds for the rows of the part. `cell_state_grads` is
    /// valid for reading and writing `[N, H]`, and no other thread accesses the rows of the part.
    unsafe fn compute_part_gradient(
        &self,
        part: &BatchPart,
        arrays: &RecurrentGradientArrays<T>,
        weights: &[PackedGateWeights<T>],
        projection: Option<&StepWeights<T>>,
        cell_state_grads: SharedPtr<T>,
    ) {
        let RecurrentSizes { hidden, state, .. } = self.sizes;
        let (cell, rows) = (self.kernel.cell, &part.rows);
        let width = cell.blocks() * hidden;
        let [carry, cell_carry] = arrays.initial_grads;
        // SAFETY: all matrices have the rows of the batch (*shape*), and only this call accesses the rows of the part
        // in the outputs (*exclusive*) and in `cell_state_grads` (this function's contract). The same clauses imply the
        // contract of the step that runs as vector work. The processor supports the instruction set (*isa*).
        unsafe {
            copy_rows(arrays.final_grads[0], carry, rows.clone(), state);
            if cell == RnnMode::Lstm {
                copy_rows(arrays.final_grads[1], cell_carry, rows.clone(), hidden);
            }
            for step in self.step_order().rev() {
                let (previous, following) = self.state_indices(step);
                let (active, active_range) = self.active_rows(step, rows);
                let to = self.matrix_at(arrays.gate_grads, step, width);
                let total = if projection.is_some() {
                    self.matrix_at(arrays.total_grads, step, state)
                } else {
                    cell_state_grads
                };
                let incoming = self.matrix_at(arrays.state_grads, step, state);
                self.sum_state_gradients(rows.clone(), &active, [total, carry, incoming], to);
                if let Some(projection) = projection {
                    let a = Strided { data: total.get().cast_const(), lane: state as isize, depth: 1 };
                    self.multiply(part, &active_range, a, projection, (cell_state_grads, hidden), false);
                }
                let work = BackwardStep {
                    step: CellStep {
                        cell,
                        width: hidden,
                        rows: active_range.clone(),
                        active,
                        gates: self.matrix_at(arrays.gates, step, width),
                        previous_state: self.matrix_at(arrays.states, previous, state),
                        cells: [previous, following].map(|t| self.matrix_at(arrays.cells, t, hidden)),
                    },
                    state_grads: cell_state_grads,
                    gate_grads: to,
                    bypass_grads: carry,
                    cell_grads: cell_carry,
                };
                work.run(self.isa);
                for block in weights {
                    let data = to.offset((block.first_block * hidden) as isize).cast_const();
                    let a = Strided { data, lane: width as isize, depth: 1 };
                    self.multiply(part, &active_range, a, &block.weights, (carry, state), true);
                }
            }
        }
    }

    /// For active sequences, writes the sum of the incoming gradients of the states of a step and the gradients carried
    /// back from the next step to `total`, and clears the carried gradients. For the other sequences, sets `total` and
    /// `gate_grads` to zero, and leaves the carried gradients unchanged.
    ///
    /// # Safety
    /// `total`, `carry` and `incoming` are valid for reading and writing the rows `rows` of `[N, state]`, and
    /// `gate_grads` for these rows of `[N, blocks·hidden]`. No other thread accesses these rows.
    unsafe fn sum_state_gradients(
        &self,
        rows: Range<usize>,
        active: &ActiveSequences<'_>,
        [total, carry, incoming]: [SharedPtr<T>; 3],
        gate_grads: SharedPtr<T>,
    ) {
        let (state, width, zero) = (self.sizes.state, self.kernel.cell.blocks() * self.sizes.hidden, <T as Real>::ZERO);
        for row in rows {
            let [total, carry, incoming] = [total, carry, incoming].map(|p| p.offset((row * state) as isize));
            // SAFETY: the matrices are valid for the elements of the row, which no other thread accesses (this
            // function's contract).
            unsafe {
                if active.contains(row) {
                    for k in 0..state {
                        *total.add(k) = *carry.add(k) + *incoming.add(k);
                        *carry.add(k) = zero;
                    }
                } else {
                    (0..state).for_each(|k| *total.add(k) = zero);
                    let to = gate_grads.offset((row * width) as isize);
                    (0..width).for_each(|k| *to.add(k) = zero);
                }
            }
        }
    }

    /// Returns true if factors are rounded to `bf16`. Factors of `f16` are multiplied in `f32`, which is as fast.
    fn rounds_factors(&self) -> bool {
        self.kernel.half_factors == Some(DType::BF16)
    }

    /// Packs the weight blocks. `view(ptr, rows)` returns the block of `rows` rows at `ptr` as the operand B of a
    /// product, with its number of columns and its size k.
    ///
    /// # Errors
    /// Returns an error if memory cannot be allocated.
    fn pack_weights(
        &self,
        view: impl Fn(*const T, usize) -> (Strided<T>, (usize, usize)),
    ) -> Result<List<PackedGateWeights<T>, 2>> {
        let RecurrentSizes { hidden, state, .. } = self.sizes;
        let pack_block = |&GateBlock { first_gate, first_block, gates }: &GateBlock| {
            let from = self.weights.offset((first_gate * hidden * state) as isize);
            let (matrix, size) = view(from, gates * hidden);
            // SAFETY: `matrix` is inside the weights `[G·H, P]`, and the processor supports the instruction set:
            // clauses *shape* and *isa* of the array contract, which the callers guarantee.
            let weights = unsafe { StepWeights::new(self.isa, matrix, size, self.sizes.batch, self.rounds_factors()) }?;
            Ok(PackedGateWeights { weights, first_block })
        };
        self.kernel.cell.weight_blocks().iter().map(pack_block).collect()
    }

    /// Packs the projection, if there is one. `view(ptr)` returns it as the operand B of a product, with its number of
    /// columns and its size k.
    ///
    /// # Errors
    /// Returns an error if memory cannot be allocated.
    fn pack_projection(
        &self,
        view: impl Fn(*const T) -> (Strided<T>, (usize, usize)),
    ) -> Result<Option<StepWeights<T>>> {
        if !self.kernel.projected {
            return Ok(None);
        }
        let (matrix, size) = view(self.projection.get());
        // SAFETY: `matrix` is the projection `[P, H]`, and the processor supports the instruction set: clauses *shape*
        // and *isa* of the array contract, which the callers guarantee.
        unsafe { StepWeights::new(self.isa, matrix, size, self.sizes.batch, self.rounds_factors()) }.map(Some)
    }

    /// Calls `work` for all parts of the batch, on several threads if the work is large enough. A part starts at a
    /// multiple of `granule` sequences.
    fn for_each_part(&self, granule: usize, work: impl Fn(BatchPart) + Sync) {
        let RecurrentSizes { steps, batch, hidden, state } = self.sizes;
        let step_work = (self.kernel.cell.gates() * hidden).saturating_mul(state);
        let layer_work = step_work.saturating_mul(batch).saturating_mul(steps);
        let threads = if layer_work >= 2 * MIN_TASK_WORK { threads::count() } else { 1 };
        // If there are fewer sequences than threads and the products of a step are large, the columns of these products
        // are distributed over the threads instead of the sequences.
        let column_parts =
            if batch < threads { threads.min(step_work.saturating_mul(batch) / MIN_TASK_WORK).max(1) } else { 1 };
        let parts = if column_parts > 1 { 1 } else { threads.min(layer_work / MIN_TASK_WORK).clamp(1, batch.max(1)) };
        let height = batch.div_ceil(parts).max(1).next_multiple_of(granule);
        let part = |p: usize| BatchPart { rows: p * height..batch.min((p + 1) * height), column_parts };
        threads::parallel_for(batch.div_ceil(height), 1, |_, p| work(part(p)));
    }

    /// Computes the rows `rows` of C = A·B, or C + A·B if `add`. Rows of C are contiguous and `stride` elements apart.
    ///
    /// # Safety
    /// `a` has all rows of the batch, of as many contiguous elements as `b` has k indices. C has all rows of the batch,
    /// of as many elements as `b` has columns, and is valid for writing the rows `rows`, which are rows of the part. No
    /// other thread accesses these rows of C, or computes a product of rows of the part with `b`.
    unsafe fn multiply(
        &self,
        part: &BatchPart,
        rows: &Range<usize>,
        a: Strided<T>,
        b: &StepWeights<T>,
        to: (SharedPtr<T>, usize),
        add: bool,
    ) {
        // SAFETY: `a` has the rows of the part, and no other thread computes a product of them with `b` (this
        // function's contract).
        let ranges = unsafe { b.left_factors(a, rows, part.rows.end) };
        let columns = |cols: Range<usize>| {
            for (rows, a) in &*ranges {
                // SAFETY: `a` is the left factor, and C is exclusive to this call (this function's contract).
                // Concurrent calls write different columns.
                unsafe { b.multiply(a, (rows.clone(), cols.clone()), to, add) }
            }
        };
        let (lanes, step) = (b.lanes, b.lanes.div_ceil(part.column_parts).next_multiple_of(COLUMN_GRANULE));
        if part.column_parts == 1 || step >= lanes {
            return columns(0..lanes);
        }
        threads::parallel_for(lanes.div_ceil(step), 1, |_, i| columns(i * step..lanes.min((i + 1) * step)));
    }

    /// Returns the steps in the order of the forward pass.
    fn step_order(&self) -> impl DoubleEndedIterator<Item = usize> + use<T> {
        let (steps, reverse) = (self.sizes.steps, self.kernel.reverse);
        (0..steps).map(move |t| if reverse { steps - 1 - t } else { t })
    }

    /// Returns the indices of the states before and after a step.
    fn state_indices(&self, step: usize) -> (usize, usize) {
        if self.kernel.reverse { (step + 1, step) } else { (step, step + 1) }
    }

    /// Returns the sequences that are active in a step, and the rows up to the last of them.
    fn active_rows(&self, step: usize, rows: &Range<usize>) -> (ActiveSequences<'_>, Range<usize>) {
        let active = ActiveSequences { step, lengths: self.lengths };
        let end = rows.clone().rev().find(|&row| active.contains(row)).map_or(rows.start, |last| last + 1);
        (active, rows.start..end)
    }

    /// Returns matrix `t` of a stack of matrices with N rows of `width` elements.
    fn matrix_at(&self, stack: SharedPtr<T>, t: usize, width: usize) -> SharedPtr<T> {
        SharedPtr(stack.offset((t * self.sizes.batch * width) as isize))
    }
}

/// Returns the number of sequences of a block of which all rows are computed by one thread.
fn row_granule<T: Float>(weights: &[PackedGateWeights<T>], projection: Option<&StepWeights<T>>) -> usize {
    let all = weights.iter().map(|block| &block.weights).chain(projection);
    all.map(StepWeights::row_granule).max().unwrap_or(1)
}

/// Copies rows of one matrix to another. Both have rows of `width` elements.
///
/// # Safety
/// Both matrices are valid for these rows, which do not overlap, and no other thread accesses the rows of `to`.
unsafe fn copy_rows<T: Copy>(from: SharedPtr<T>, to: SharedPtr<T>, rows: Range<usize>, width: usize) {
    let first = (rows.start * width) as isize;
    // SAFETY: both matrices are valid for the rows, which do not overlap (this function's contract).
    unsafe { to.offset(first).copy_from_nonoverlapping(from.offset(first), rows.len() * width) }
}
