//! The loop over time: for every step the products with the packed weights, and the cell.

use super::cell::{Active, Backward, Forward};
use pellucid_gemm::{OwnedPanels, PackedPanels, Strided};
use pellucid_ir::Result;
use pellucid_ir::kernel::{Cell, Recurrent, RecurrentSizes};
use pellucid_runtime::CpuBuffer;
use pellucid_runtime::list::List;
use pellucid_runtime::threads::{self, SharedPtr};
use pellucid_simd::Isa;
use pellucid_simd::math::Real;
use pellucid_simd::{Float, vector_work};
use std::ops::Range;

/// Multiply-adds that are worth a task of their own.
const TASK: usize = 1 << 19;

/// Columns of a product that threads share out come in multiples of these: whole panels.
const COLUMNS: usize = 64;

/// A layer.
pub(super) struct Problem<'a, T> {
    pub(super) isa: Isa,
    pub(super) kernel: &'a Recurrent,
    pub(super) sizes: RecurrentSizes,
    /// `[G·H, P]`
    pub(super) weights: SharedPtr<T>,
    /// `[P, H]`
    pub(super) projection: SharedPtr<T>,
    pub(super) lengths: Option<&'a [i64]>,
}

/// What the states come from, and where they go.
pub(super) struct States<T> {
    pub(super) bias: SharedPtr<T>,
    /// h and c before all steps.
    pub(super) first: [SharedPtr<T>; 2],
    /// What inputs give, and what it comes to.
    pub(super) gates: SharedPtr<T>,
    pub(super) states: SharedPtr<T>,
    pub(super) cells: SharedPtr<T>,
}

/// What gradients come from, and where they go.
pub(super) struct Gradient<T> {
    pub(super) gates: SharedPtr<T>,
    pub(super) states: SharedPtr<T>,
    pub(super) cells: SharedPtr<T>,
    /// Those of the states that steps lead to.
    pub(super) grads: SharedPtr<T>,
    /// Those of h and c after all steps.
    pub(super) last: [SharedPtr<T>; 2],
    /// Those of the gates.
    pub(super) to: SharedPtr<T>,
    /// Those of h and c before all steps.
    pub(super) first: [SharedPtr<T>; 2],
    /// The whole gradients of states, if they are projected.
    pub(super) whole: SharedPtr<T>,
}

/// OwnedPanels weights: of the gates from block `block` on (of those that are kept), `lanes × depth`.
struct Share<T> {
    weights: OwnedPanels<T>,
    block: usize,
    lanes: usize,
    depth: usize,
}

/// Some sequences, and into how many parts the columns of their products are cut.
struct Part {
    rows: Range<usize>,
    columns: usize,
}

impl<T: Float> Problem<'_, T> {
    /// Computes all states.
    ///
    /// # Safety
    /// The arrays are dense, of the shapes of [`Recurrent`], and nobody else writes them or reads what is written.
    pub(super) unsafe fn states(&self, arrays: &States<T>) -> Result<()> {
        let RecurrentSizes { batch, hidden, state, .. } = self.sizes;
        // Rows of the weights are columns of the product.
        let shares =
            self.shares(|from, rows| (Strided { data: from, lane: state as isize, depth: 1 }, (rows, state)))?;
        let projection =
            self.projected(|from| (Strided { data: from, lane: hidden as isize, depth: 1 }, (state, hidden)))?;
        let room = CpuBuffer::scratch(if self.kernel.projected { batch * hidden * size_of::<T>() } else { 0 })?;
        let unprojected = SharedPtr(room.ensure()?.as_ptr().cast::<T>());
        self.parts(|part| {
            // SAFETY: the caller's; every part has rows of its own, and those of a step come after those that it reads.
            unsafe { self.states_of(&part, arrays, &shares, projection.as_ref(), unprojected) };
        });
        Ok(())
    }

    /// # Safety
    /// As for [`states`](Self::states); there is room for all rows of a cell, unprojected, if states are projected.
    unsafe fn states_of(
        &self,
        part: &Part,
        arrays: &States<T>,
        shares: &[Share<T>],
        projection: Option<&OwnedPanels<T>>,
        unprojected: SharedPtr<T>,
    ) {
        let RecurrentSizes { hidden, state, .. } = self.sizes;
        let (cell, rows) = (self.kernel.cell, &part.rows);
        let width = cell.blocks() * hidden;
        let [h, c] = [(arrays.states, state), (arrays.cells, hidden)].map(|(p, width)| move |t| self.at(p, t, width));
        let start = if self.kernel.reverse { self.sizes.steps } else { 0 };
        // SAFETY: the caller's.
        unsafe {
            copy_rows(arrays.first[0], h(start), rows.clone(), state);
            if cell == Cell::Lstm {
                copy_rows(arrays.first[1], c(start), rows.clone(), hidden);
            }
            for step in self.order() {
                let (before, after) = self.around(step);
                let (active, some) = self.active(step, rows);
                let gates = self.at(arrays.gates, step, width);
                for share in shares {
                    let a = Strided { data: h(before).get().cast_const(), lane: state as isize, depth: 1 };
                    let to = SharedPtr(gates.at((share.block * hidden) as isize));
                    // The last block of a GRU has nothing from the inputs.
                    let add = !(cell == Cell::Gru && share.block == 3);
                    self.multiply(part, &some, a, share.lanes, share.depth, &share.weights, (to, width), add);
                }
                let next = if projection.is_some() { unprojected } else { h(after) };
                let work = Forward {
                    cell,
                    width: hidden,
                    rows: some.clone(),
                    active,
                    gates,
                    bias: arrays.bias,
                    before: h(before),
                    cells: [c(before), c(after)],
                    after: next,
                };
                vector_work::<T, _>(self.isa)(&work);
                if let Some(projection) = projection {
                    let a = Strided { data: next.get().cast_const(), lane: hidden as isize, depth: 1 };
                    self.multiply(part, &some, a, state, hidden, projection, (h(after), state), false);
                }
                for row in rows.clone().filter(|&row| !active.contains(row)) {
                    copy_rows(h(before), h(after), row..row + 1, state);
                    if cell == Cell::Lstm {
                        copy_rows(c(before), c(after), row..row + 1, hidden);
                    }
                }
            }
        }
    }

    /// Computes all gradients.
    ///
    /// # Safety
    /// As for [`states`](Self::states).
    pub(super) unsafe fn gradient(&self, arrays: &Gradient<T>) -> Result<()> {
        let RecurrentSizes { batch, hidden, state, .. } = self.sizes;
        // The gradient of a state is a product with the weights as they are: their rows are its depth.
        let shares =
            self.shares(|from, rows| (Strided { data: from, lane: 1, depth: state as isize }, (state, rows)))?;
        let projection =
            self.projected(|from| (Strided { data: from, lane: 1, depth: hidden as isize }, (hidden, state)))?;
        let room = CpuBuffer::scratch(batch * hidden * size_of::<T>())?;
        let grads = SharedPtr(room.ensure()?.as_ptr().cast::<T>());
        self.parts(|part| {
            // SAFETY: the caller's; every part has rows of its own.
            unsafe { self.gradient_of(&part, arrays, &shares, projection.as_ref(), grads) };
        });
        Ok(())
    }

    /// # Safety
    /// As for [`states`](Self::states); there is room for all rows of a cell's gradients.
    unsafe fn gradient_of(
        &self,
        part: &Part,
        arrays: &Gradient<T>,
        shares: &[Share<T>],
        projection: Option<&OwnedPanels<T>>,
        grads: SharedPtr<T>,
    ) {
        let RecurrentSizes { hidden, state, .. } = self.sizes;
        let (cell, rows) = (self.kernel.cell, &part.rows);
        let width = cell.blocks() * hidden;
        let [carry, carry_c] = arrays.first;
        let zero = <T as Real>::ZERO;
        // SAFETY: the caller's.
        unsafe {
            copy_rows(arrays.last[0], carry, rows.clone(), state);
            if cell == Cell::Lstm {
                copy_rows(arrays.last[1], carry_c, rows.clone(), hidden);
            }
            for step in self.order().rev() {
                let (before, after) = self.around(step);
                let (active, some) = self.active(step, rows);
                let to = self.at(arrays.to, step, width);
                let whole = if projection.is_some() { self.at(arrays.whole, step, state) } else { grads };
                let arriving = self.at(arrays.grads, step, state);
                for row in rows.clone() {
                    let [whole, carry, arriving] = [whole, carry, arriving].map(|p| p.at((row * state) as isize));
                    if active.contains(row) {
                        for k in 0..state {
                            *whole.add(k) = *carry.add(k) + *arriving.add(k);
                            *carry.add(k) = zero;
                        }
                    } else {
                        (0..state).for_each(|k| *whole.add(k) = zero);
                        let to = to.at((row * width) as isize);
                        (0..width).for_each(|k| *to.add(k) = zero);
                    }
                }
                if let Some(projection) = projection {
                    let a = Strided { data: whole.get().cast_const(), lane: state as isize, depth: 1 };
                    self.multiply(part, &some, a, hidden, state, projection, (grads, hidden), false);
                }
                let work = Backward {
                    cell,
                    width: hidden,
                    rows: some.clone(),
                    active,
                    gates: self.at(arrays.gates, step, width),
                    before: self.at(arrays.states, before, state),
                    cells: [before, after].map(|t| self.at(arrays.cells, t, hidden)),
                    grads,
                    to,
                    past: carry,
                    carry: carry_c,
                };
                vector_work::<T, _>(self.isa)(&work);
                for share in shares {
                    let data = to.at((share.block * hidden) as isize).cast_const();
                    let a = Strided { data, lane: width as isize, depth: 1 };
                    self.multiply(part, &some, a, share.lanes, share.depth, &share.weights, (carry, state), true);
                }
            }
        }
    }

    /// Packs the weights, of which `view` says, for so many rows from a place on, what they are as lanes × depth. Those
    /// of a GRU are two: the last block lies apart.
    fn shares(&self, view: impl Fn(*const T, usize) -> (Strided<T>, (usize, usize))) -> Result<List<Share<T>, 2>> {
        let RecurrentSizes { hidden, state, .. } = self.sizes;
        let cell = self.kernel.cell;
        // The first row of the weights, the block of the gates, and how many blocks.
        let cuts: List<(usize, usize, usize), 2> = match cell {
            Cell::Gru => List::from_iter([(0, 0, 2), (2, 3, 1)]),
            _ => List::from_iter([(0, 0, cell.gates())]),
        };
        let share = |(row, block, blocks): (usize, usize, usize)| {
            let from = self.weights.at((row * hidden * state) as isize);
            let (matrix, (lanes, depth)) = view(from, blocks * hidden);
            // SAFETY: the weights are `[G·H, P]`; the isa is this machine's.
            Ok(Share { weights: unsafe { OwnedPanels::new(self.isa, matrix, (lanes, depth)) }?, block, lanes, depth })
        };
        cuts.iter().copied().map(share).collect()
    }

    /// Packs the projection, if there is one.
    fn projected(&self, view: impl Fn(*const T) -> (Strided<T>, (usize, usize))) -> Result<Option<OwnedPanels<T>>> {
        if !self.kernel.projected {
            return Ok(None);
        }
        let (matrix, size) = view(self.projection.get());
        // SAFETY: the projection is `[P, H]`; the isa is this machine's.
        unsafe { OwnedPanels::new(self.isa, matrix, size) }.map(Some)
    }

    /// Runs `work` for all sequences, on several threads if it is worth it.
    fn parts(&self, work: impl Fn(Part) + Sync) {
        let RecurrentSizes { steps, batch, hidden, state } = self.sizes;
        let step = (self.kernel.cell.gates() * hidden).saturating_mul(state);
        let whole = step.saturating_mul(batch).saturating_mul(steps);
        let threads = if whole >= 2 * TASK { threads::count() } else { 1 };
        // Where sequences are too few for the threads, these share the columns of every step.
        let columns = if batch < threads { threads.min(step.saturating_mul(batch) / TASK).max(1) } else { 1 };
        let parts = if columns > 1 { 1 } else { threads.min(whole / TASK).clamp(1, batch.max(1)) };
        let height = batch.div_ceil(parts).max(1);
        let part = |p: usize| Part { rows: p * height..batch.min((p + 1) * height), columns };
        threads::each(batch.div_ceil(height), 1, |_, p| work(part(p)));
    }

    /// Rows of C (+)= A·B, of which `lanes` are the columns; C's rows are `to.1` apart.
    ///
    /// # Safety
    /// The matrices have all rows of the batch, and nobody else touches those of C.
    #[allow(clippy::too_many_arguments, reason = "two operands, a place, and what to do")]
    unsafe fn multiply(
        &self,
        part: &Part,
        rows: &Range<usize>,
        a: Strided<T>,
        lanes: usize,
        depth: usize,
        b: &PackedPanels<T>,
        (to, stride): (SharedPtr<T>, usize),
        add: bool,
    ) {
        let columns = |cols: Range<usize>| {
            // SAFETY: the caller's; the isa is this machine's.
            unsafe {
                pellucid_gemm::multiply(self.isa, &a, b, (rows.clone(), cols, depth), to.get(), stride as isize, add)
            }
        };
        let step = lanes.div_ceil(part.columns).next_multiple_of(COLUMNS);
        if part.columns == 1 || step >= lanes {
            return columns(0..lanes);
        }
        threads::each(lanes.div_ceil(step), 1, |_, i| columns(i * step..lanes.min((i + 1) * step)));
    }

    /// The steps in their order.
    fn order(&self) -> impl DoubleEndedIterator<Item = usize> + use<T> {
        let (steps, reverse) = (self.sizes.steps, self.kernel.reverse);
        (0..steps).map(move |t| if reverse { steps - 1 - t } else { t })
    }

    /// The states before and after a step.
    fn around(&self, step: usize) -> (usize, usize) {
        if self.kernel.reverse { (step + 1, step) } else { (step, step + 1) }
    }

    /// Which sequences a step changes, and the rows up to the last of them.
    fn active(&self, step: usize, rows: &Range<usize>) -> (Active<'_>, Range<usize>) {
        let active = Active { step, lengths: self.lengths };
        let end = rows.clone().rev().find(|&row| active.contains(row)).map_or(rows.start, |last| last + 1);
        (active, rows.start..end)
    }

    /// Matrix `t` of a stack, all rows of the batch `width` wide.
    fn at(&self, stack: SharedPtr<T>, t: usize, width: usize) -> SharedPtr<T> {
        SharedPtr(stack.at((t * self.sizes.batch * width) as isize))
    }
}

/// Copies rows of one matrix to another.
///
/// # Safety
/// Both have the rows, and do not overlap there.
unsafe fn copy_rows<T: Copy>(from: SharedPtr<T>, to: SharedPtr<T>, rows: Range<usize>, width: usize) {
    let first = (rows.start * width) as isize;
    // SAFETY: the caller's.
    unsafe { to.at(first).copy_from_nonoverlapping(from.at(first), rows.len() * width) }
}
