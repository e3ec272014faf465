//! The equations of one step of a recurrent cell ([`RnnMode`]), forward and backward, vectorized.

use pellucid_ir::kernel::RnnMode;
use pellucid_runtime::threads::SharedPtr;
use pellucid_simd::math::Real;
use pellucid_simd::vector::{FloatVector, lanes};
use pellucid_simd::{Float, Isa, VectorWork, vector_work};
use std::ops::Range;

/// The sequences whose state a time step changes: those whose length exceeds the index of the step.
#[derive(Clone, Copy)]
pub(super) struct ActiveSequences<'a> {
    /// The index of the time step.
    pub(super) step: usize,
    /// The length of each sequence, if the sequences have individual lengths.
    pub(super) lengths: Option<&'a [i64]>,
}

impl ActiveSequences<'_> {
    /// Returns true if the sequence `row` is active.
    #[inline(always)]
    pub(super) fn contains(&self, row: usize) -> bool {
        self.lengths.is_none_or(|lengths| (self.step as i64) < lengths[row])
    }
}

/// The equations and the arrays that both directions of a step use.
pub(super) struct CellStep<'a, T> {
    /// The equations.
    pub(super) cell: RnnMode,
    /// H, the number of hidden units.
    pub(super) width: usize,
    /// The rows that are computed.
    pub(super) rows: Range<usize>,
    /// The sequences that are computed.
    pub(super) active: ActiveSequences<'a>,
    /// The gates, `[N, B·H]` with B [`blocks`](RnnMode::blocks). In the forward pass, they initially are the sums of
    /// the contributions of inputs and states, which the step overwrites with the gate activations. In the backward
    /// pass, they are the gate activations.
    pub(super) gates: SharedPtr<T>,
    /// The previous states, `[N, H]`: for [`RnnMode::Gru`].
    pub(super) previous_state: SharedPtr<T>,
    /// The cell states c before and after the step, `[N, H]`: for [`RnnMode::Lstm`].
    pub(super) cells: [SharedPtr<T>; 2],
}

impl<T> CellStep<'_, T> {
    /// Returns the rows that are computed and active.
    #[inline(always)]
    fn active_rows(&self) -> impl Iterator<Item = usize> {
        debug_assert!(
            self.active.lengths.is_none_or(|lengths| self.rows.end <= lengths.len()),
            "there must be one length for each row"
        );
        self.rows.clone().filter(|&row| self.active.contains(row))
    }

    /// Returns the offsets of a row in arrays of H and of B·H columns.
    #[inline(always)]
    fn row_offsets(&self, row: usize) -> (isize, isize) {
        ((row * self.width) as isize, (row * self.cell.blocks() * self.width) as isize)
    }

    /// Returns the arrays at a row.
    #[inline(always)]
    fn row(&self, row: usize) -> CellRow<T> {
        let (narrow, wide) = self.row_offsets(row);
        let [before, after] = &self.cells;
        CellRow {
            width: self.width,
            gates: self.gates.offset(wide),
            previous_state: self.previous_state.offset(narrow),
            cells: [before.offset(narrow), after.offset(narrow)],
        }
    }
}

/// A step of the forward pass for a range of rows: overwrites the sums of the gates with the gate activations and
/// stores the next states.
///
/// # Contract of the work
/// - *arrays*: the arrays that the cell uses are contiguous, have a row for every sequence of the batch, and are valid
///   for reads; `lengths` has an element for every row;
/// - *exclusive*: `gates`, `cells[1]` and `next_state` are valid for writes, and no other thread accesses their rows
///   `rows`.
pub(super) struct ForwardStep<'a, T> {
    /// The equations and the arrays of both directions.
    pub(super) step: CellStep<'a, T>,
    /// The bias, `[B·H]`.
    pub(super) bias: SharedPtr<T>,
    /// The next states before their projection, `[N, H]`.
    pub(super) next_state: SharedPtr<T>,
}

/// A step of the backward pass for a range of rows: computes the gradients of the gates.
///
/// # Contract of the work
/// - *arrays*: the arrays that the cell uses are contiguous, have a row for every sequence of the batch, and are valid
///   for reads; `lengths` has an element for every row;
/// - *exclusive*: `gate_grads`, `bypass_grads` and `cell_grads` are valid for writes if the cell uses them, and no
///   other thread accesses their rows `rows`.
pub(super) struct BackwardStep<'a, T> {
    /// The equations and the arrays of both directions.
    pub(super) step: CellStep<'a, T>,
    /// The gradients of the next states before their projection, `[N, H]`.
    pub(super) state_grads: SharedPtr<T>,
    /// The gradients of the gates, `[N, B·H]`.
    pub(super) gate_grads: SharedPtr<T>,
    /// The part of the gradient of the previous states that does not pass through the gates, `[N, H]`: for
    /// [`RnnMode::Gru`].
    pub(super) bypass_grads: SharedPtr<T>,
    /// The gradients of c after the step, which the step overwrites with the gradients of c before the step, `[N, H]`:
    /// for [`RnnMode::Lstm`].
    pub(super) cell_grads: SharedPtr<T>,
}

/// A step of one kind of cell. Each kind is compiled as a separate function, because the optimizer takes much longer
/// for one function with the equations of all kinds.
struct CellWork<'s, S, const CELL: usize>(&'s S);

/// Runs a step as the [`CellWork`] of its cell.
macro_rules! run_cell_work {
    ($isa:expr, $work:expr) => {
        match $work.step.cell {
            RnnMode::Tanh => vector_work::<T, _>($isa)(&CellWork::<_, { RnnMode::Tanh as usize }>($work)),
            RnnMode::Relu => vector_work::<T, _>($isa)(&CellWork::<_, { RnnMode::Relu as usize }>($work)),
            RnnMode::Gru => vector_work::<T, _>($isa)(&CellWork::<_, { RnnMode::Gru as usize }>($work)),
            RnnMode::Lstm => vector_work::<T, _>($isa)(&CellWork::<_, { RnnMode::Lstm as usize }>($work)),
        }
    };
}

impl<T: Float> ForwardStep<'_, T> {
    /// Computes the step.
    ///
    /// # Safety
    /// The contract of the work holds, and the processor supports `isa`.
    pub(super) unsafe fn run(&self, isa: Isa) {
        // SAFETY: the caller guarantees the clauses *Work* and *Instruction set* of `vector_work` (this function's
        // contract).
        unsafe { run_cell_work!(isa, self) }
    }
}

impl<T: Float> BackwardStep<'_, T> {
    /// Computes the step.
    ///
    /// # Safety
    /// The contract of the work holds, and the processor supports `isa`.
    pub(super) unsafe fn run(&self, isa: Isa) {
        // SAFETY: the caller guarantees the clauses *Work* and *Instruction set* of `vector_work` (this function's
        // contract).
        unsafe { run_cell_work!(isa, self) }
    }
}

/// Calls the method of the cell CELL for all lane blocks of a row of `$width` elements: blocks of two vectors, and
/// masked single vectors.
macro_rules! for_each_lane_block {
    ($V:ident, $width:expr, $Row:ident, $arrays:expr) => {{
        let (mut j, all) = (0, $V::mask($V::LANES));
        while $width - j >= 2 * $V::LANES {
            for_each_lane_block!(@cell $Row, $arrays, LaneBlock::<$V, 2, true> { j, mask: all });
            j += 2 * $V::LANES;
        }
        while j < $width {
            let mask = $V::mask($V::LANES.min($width - j));
            for_each_lane_block!(@cell $Row, $arrays, LaneBlock::<$V, 1, false> { j, mask });
            j += $V::LANES;
        }
    }};
    (@cell $Row:ident, $arrays:expr, $block:expr) => {
        if const { CELL == RnnMode::Tanh as usize } {
            $Row::tanh(&$arrays, $block)
        } else if const { CELL == RnnMode::Relu as usize } {
            $Row::relu(&$arrays, $block)
        } else if const { CELL == RnnMode::Gru as usize } {
            $Row::gru(&$arrays, $block)
        } else {
            $Row::lstm(&$arrays, $block)
        }
    };
}

impl<T: Float, const CELL: usize> VectorWork<T> for CellWork<'_, ForwardStep<'_, T>, CELL> {
    #[inline(always)]
    unsafe fn run<V: FloatVector<Scalar = T>>(&self) {
        let work = self.0;
        for row in work.step.active_rows() {
            let (narrow, _) = work.step.row_offsets(row);
            let arrays = ForwardRow {
                row: work.step.row(row),
                bias: work.bias.get(),
                next_state: work.next_state.offset(narrow),
            };
            // SAFETY: the row contract. *row*: the pointers are at row `row` of the arrays that the cell uses (*arrays*
            // and *exclusive* of the work's contract). *block*: the macro forms blocks of H elements. *isa*: the
            // instruction set of `V` is enabled (contract of `VectorWork::run`).
            unsafe { for_each_lane_block!(V, work.step.width, ForwardRow, arrays) }
        }
    }
}

impl<T: Float, const CELL: usize> VectorWork<T> for CellWork<'_, BackwardStep<'_, T>, CELL> {
    #[inline(always)]
    unsafe fn run<V: FloatVector<Scalar = T>>(&self) {
        let work = self.0;
        for row in work.step.active_rows() {
            let (narrow, wide) = work.step.row_offsets(row);
            let arrays = BackwardRow {
                row: work.step.row(row),
                state_grads: work.state_grads.offset(narrow),
                gate_grads: work.gate_grads.offset(wide),
                bypass_grads: work.bypass_grads.offset(narrow),
                cell_grads: work.cell_grads.offset(narrow),
            };
            // SAFETY: the row contract. *row*: the pointers are at row `row` of the arrays that the cell uses (*arrays*
            // and *exclusive* of the work's contract). *block*: the macro forms blocks of H elements. *isa*: the
            // instruction set of `V` is enabled (contract of `VectorWork::run`).
            unsafe { for_each_lane_block!(V, work.step.width, BackwardRow, arrays) }
        }
    }
}

/// A block of R vectors of a row, starting at element `j`. Unless `FULL`, R is 1 and the block consists of the elements
/// that `mask` selects.
#[derive(Clone, Copy)]
struct LaneBlock<V: FloatVector, const R: usize, const FULL: bool> {
    /// The index of the first element.
    j: usize,
    /// The lanes of the block, unless it is full.
    mask: V::Mask,
}

/// Evaluates an expression for each of R vectors. It is not a closure, because a closure might not be inlined.
macro_rules! vectors {
    (|$r:ident| $e:expr) => {{
        let mut all = [V::zero(); R];
        for $r in 0..R {
            all[$r] = $e;
        }
        all
    }};
}

impl<V: FloatVector, const R: usize, const FULL: bool> LaneBlock<V, R, FULL> {
    /// Loads the block of the row `from`. Lanes outside the mask are 0.
    ///
    /// # Safety
    /// `from` is valid for reading the lanes of the block, and the instruction set of `V` is enabled.
    #[inline(always)]
    unsafe fn load(self, from: *const V::Scalar) -> [V; R] {
        // SAFETY: `from` is valid for the lanes of the block, and the instruction set is enabled (this function's
        // contract).
        unsafe {
            let from = from.add(self.j);
            vectors!(|r| match FULL {
                true => V::load(from.add(r * V::LANES)),
                false => V::load_part(from, self.mask),
            })
        }
    }

    /// Stores vectors to the block of the row `to`. Lanes outside the mask are not written.
    ///
    /// # Safety
    /// `to` is valid for writing the lanes of the block, and the instruction set of `V` is enabled.
    #[inline(always)]
    unsafe fn store(self, v: [V; R], to: *mut V::Scalar) {
        // SAFETY: `to` is valid for the lanes of the block, and the instruction set is enabled (this function's
        // contract).
        unsafe {
            let to = to.add(self.j);
            for (r, v) in v.into_iter().enumerate() {
                if FULL { v.store(to.add(r * V::LANES)) } else { v.store_part(to, self.mask) }
            }
        }
    }
}

/// Returns σ(x) = 1/(1 + e⁻ˣ) of all lanes.
///
/// # Safety
/// The instruction set of `V` is enabled.
#[inline(always)]
unsafe fn sigmoid<V: FloatVector, const R: usize>(mut v: [V; R]) -> [V; R] {
    /// Returns σ(x). Without a fused multiply-add, inlining it for every lane would gain nothing.
    #[inline(never)]
    fn sigmoid_out_of_line<T: Real>(x: T) -> T {
        x.sigmoid()
    }
    // SAFETY: the instruction set of `V` is enabled (this function's contract).
    if let Some(y) = unsafe { V::sigmoid(v) } {
        return y;
    }
    // One loop over all lanes, which lets the compiler keep them in registers.
    for x in lanes(&mut v) {
        *x = if const { V::HAS_FMA } { x.sigmoid() } else { sigmoid_out_of_line(*x) };
    }
    v
}

/// Returns tanh x of all lanes.
///
/// # Safety
/// The instruction set of `V` is enabled.
#[inline(always)]
unsafe fn tanh<V: FloatVector, const R: usize>(mut v: [V; R]) -> [V; R] {
    // SAFETY: the instruction set of `V` is enabled (this function's contract).
    unsafe {
        match V::tanh(v) {
            Some(y) => y,
            None => {
                lanes(&mut v).iter_mut().for_each(|x| *x = x.tanh());
                v
            }
        }
    }
}

/// Returns 0 where y ≤ 0, else g. As for `relu`, the gradient passes where y is NaN.
///
/// # Safety
/// The instruction set of `V` is enabled.
#[inline(always)]
unsafe fn relu_gradient<V: FloatVector, const R: usize>(mut g: [V; R], mut y: [V; R]) -> [V; R] {
    let (gradients, y) = (lanes(&mut g), lanes(&mut y));
    for (g, y) in gradients.iter_mut().zip(y) {
        *g = if *y <= <V::Scalar as Real>::ZERO { <V::Scalar as Real>::ZERO } else { *g };
    }
    g
}

/// Returns a + b.
///
/// # Safety
/// The instruction set of `V` is enabled.
#[inline(always)]
unsafe fn add<V: FloatVector, const R: usize>(a: [V; R], b: [V; R]) -> [V; R] {
    // SAFETY: the instruction set of `V` is enabled (this function's contract).
    unsafe { vectors!(|r| a[r].add(b[r])) }
}

/// Returns a·b.
///
/// # Safety
/// The instruction set of `V` is enabled.
#[inline(always)]
unsafe fn mul<V: FloatVector, const R: usize>(a: [V; R], b: [V; R]) -> [V; R] {
    // SAFETY: the instruction set of `V` is enabled (this function's contract).
    unsafe { vectors!(|r| a[r].mul(b[r])) }
}

/// Returns a·b + c, rounded once.
///
/// # Safety
/// The instruction set of `V` is enabled.
#[inline(always)]
unsafe fn mul_add<V: FloatVector, const R: usize>(a: [V; R], b: [V; R], c: [V; R]) -> [V; R] {
    // SAFETY: the instruction set of `V` is enabled (this function's contract).
    unsafe { vectors!(|r| a[r].mul_add(b[r], c[r])) }
}

/// Returns 1 − a·b, rounded once.
///
/// # Safety
/// The instruction set of `V` is enabled.
#[inline(always)]
unsafe fn one_minus_product<V: FloatVector, const R: usize>(a: [V; R], b: [V; R]) -> [V; R] {
    // SAFETY: the instruction set of `V` is enabled (this function's contract), and the pointer is to one element.
    unsafe {
        let one = V::splat(&<V::Scalar as Real>::ONE);
        vectors!(|r| a[r].neg().mul_add(b[r], one))
    }
}

/// Returns g·y·(1 − y), the gradient of the argument of a logistic function with result y and gradient g.
///
/// # Safety
/// The instruction set of `V` is enabled.
#[inline(always)]
unsafe fn sigmoid_gradient<V: FloatVector, const R: usize>(g: [V; R], y: [V; R]) -> [V; R] {
    // SAFETY: the instruction set of `V` is enabled (this function's contract), and the pointer is to one element.
    unsafe {
        let one = V::splat(&<V::Scalar as Real>::ONE);
        vectors!(|r| g[r].mul(y[r]).mul(one.sub(y[r])))
    }
}

/// The arrays at one row that both directions read.
///
/// # The row contract
/// The unsafe methods of [`ForwardRow`] and [`BackwardRow`] require:
///
/// - *row*: the arrays that the cell uses are valid for one row: `gates`, `bias` and `gate_grads` of B·H elements, the
///   others of H. No other thread accesses the rows that the cell writes;
/// - *block*: the lanes of `block` are inside a row of H elements;
/// - *isa*: the instruction set of the vectors is enabled.
struct CellRow<T> {
    width: usize,
    gates: *mut T,
    previous_state: *mut T,
    cells: [*mut T; 2],
}

impl<T: Float> CellRow<T> {
    /// Returns gate `b`.
    ///
    /// # Safety
    /// The [row contract](CellRow#the-row-contract) holds for `block`.
    #[inline(always)]
    unsafe fn gate<V: FloatVector<Scalar = T>, const R: usize, const W: bool>(
        &self,
        block: LaneBlock<V, R, W>,
        b: usize,
    ) -> [V; R] {
        // SAFETY: the row contract, which is this function's contract.
        unsafe { block.load(self.gates.add(b * self.width)) }
    }
}

/// The arrays of a step of the forward pass at one row.
struct ForwardRow<T> {
    row: CellRow<T>,
    bias: *mut T,
    next_state: *mut T,
}

impl<T: Float> ForwardRow<T> {
    /// Returns the sums of gate `b` plus its bias: the arguments of its activation.
    ///
    /// # Safety
    /// The [row contract](CellRow#the-row-contract) holds for `block`.
    #[inline(always)]
    unsafe fn gate<V: FloatVector<Scalar = T>, const R: usize, const W: bool>(
        &self,
        block: LaneBlock<V, R, W>,
        b: usize,
    ) -> [V; R] {
        // SAFETY: the row contract, which is this function's contract.
        unsafe { add(self.row.gate(block, b), block.load(self.bias.add(b * self.row.width))) }
    }

    /// Computes a block of [`RnnMode::Tanh`].
    ///
    /// # Safety
    /// The [row contract](CellRow#the-row-contract) holds for `block`.
    #[inline(always)]
    unsafe fn tanh<V: FloatVector<Scalar = T>, const R: usize, const W: bool>(&self, block: LaneBlock<V, R, W>) {
        // SAFETY: the row contract, which is this function's contract.
        unsafe {
            let y = tanh(self.gate(block, 0));
            block.store(y, self.row.gates);
            block.store(y, self.next_state);
        }
    }

    /// Computes a block of [`RnnMode::Relu`].
    ///
    /// # Safety
    /// The [row contract](CellRow#the-row-contract) holds for `block`.
    #[inline(always)]
    unsafe fn relu<V: FloatVector<Scalar = T>, const R: usize, const W: bool>(&self, block: LaneBlock<V, R, W>) {
        // SAFETY: the row contract, which is this function's contract.
        unsafe {
            let mut y = self.gate(block, 0);
            lanes(&mut y).iter_mut().for_each(|x| *x = x.max(<T as Real>::ZERO));
            block.store(y, self.row.gates);
            block.store(y, self.next_state);
        }
    }

    /// Computes a block of [`RnnMode::Gru`].
    ///
    /// # Safety
    /// The [row contract](CellRow#the-row-contract) holds for `block`.
    #[inline(always)]
    unsafe fn gru<V: FloatVector<Scalar = T>, const R: usize, const W: bool>(&self, block: LaneBlock<V, R, W>) {
        // SAFETY: the row contract, which is this function's contract.
        unsafe {
            let (r, z, u) = (sigmoid(self.gate(block, 0)), sigmoid(self.gate(block, 1)), self.gate(block, 3));
            let n = tanh(mul_add(r, u, self.gate(block, 2)));
            let h = block.load(self.row.previous_state);
            block.store(mul_add(z, vectors!(|k| h[k].sub(n[k])), n), self.next_state);
            for (b, v) in [r, z, n, u].into_iter().enumerate() {
                block.store(v, self.row.gates.add(b * self.row.width));
            }
        }
    }

    /// Computes a block of [`RnnMode::Lstm`].
    ///
    /// # Safety
    /// The [row contract](CellRow#the-row-contract) holds for `block`.
    #[inline(always)]
    unsafe fn lstm<V: FloatVector<Scalar = T>, const R: usize, const W: bool>(&self, block: LaneBlock<V, R, W>) {
        // SAFETY: the row contract, which is this function's contract.
        unsafe {
            let (i, f, o) = (sigmoid(self.gate(block, 0)), sigmoid(self.gate(block, 1)), sigmoid(self.gate(block, 3)));
            let g = tanh(self.gate(block, 2));
            let c = mul_add(f, block.load(self.row.cells[0]), mul(i, g));
            block.store(c, self.row.cells[1]);
            block.store(mul(o, tanh(c)), self.next_state);
            for (b, v) in [i, f, g, o].into_iter().enumerate() {
                block.store(v, self.row.gates.add(b * self.row.width));
            }
        }
    }
}

/// The arrays of a step of the backward pass at one row.
struct BackwardRow<T> {
    row: CellRow<T>,
    state_grads: *mut T,
    gate_grads: *mut T,
    bypass_grads: *mut T,
    cell_grads: *mut T,
}

impl<T: Float> BackwardRow<T> {
    /// Computes the gradients of a block of [`RnnMode::Tanh`].
    ///
    /// # Safety
    /// The [row contract](CellRow#the-row-contract) holds for `block`.
    #[inline(always)]
    unsafe fn tanh<V: FloatVector<Scalar = T>, const R: usize, const W: bool>(&self, block: LaneBlock<V, R, W>) {
        // SAFETY: the row contract, which is this function's contract.
        unsafe {
            let y = self.row.gate(block, 0);
            block.store(mul(block.load(self.state_grads), one_minus_product(y, y)), self.gate_grads);
        }
    }

    /// Computes the gradients of a block of [`RnnMode::Relu`].
    ///
    /// # Safety
    /// The [row contract](CellRow#the-row-contract) holds for `block`.
    #[inline(always)]
    unsafe fn relu<V: FloatVector<Scalar = T>, const R: usize, const W: bool>(&self, block: LaneBlock<V, R, W>) {
        // SAFETY: the row contract, which is this function's contract.
        unsafe { block.store(relu_gradient(block.load(self.state_grads), self.row.gate(block, 0)), self.gate_grads) }
    }

    /// Computes the gradients of a block of [`RnnMode::Gru`].
    ///
    /// # Safety
    /// The [row contract](CellRow#the-row-contract) holds for `block`.
    #[inline(always)]
    unsafe fn gru<V: FloatVector<Scalar = T>, const R: usize, const W: bool>(&self, block: LaneBlock<V, R, W>) {
        // SAFETY: the row contract, which is this function's contract; `one` is read from a pointer to one element.
        unsafe {
            let one = V::splat(&<T as Real>::ONE);
            let [r, z, n, u] =
                [self.row.gate(block, 0), self.row.gate(block, 1), self.row.gate(block, 2), self.row.gate(block, 3)];
            let (h, dh) = (block.load(self.row.previous_state), block.load(self.state_grads));
            let dn = mul(vectors!(|k| dh[k].mul(one.sub(z[k]))), one_minus_product(n, n));
            let dz = mul(dh, vectors!(|k| h[k].sub(n[k])));
            block.store(mul(dh, z), self.bypass_grads);
            let all = [sigmoid_gradient(mul(dn, u), r), sigmoid_gradient(dz, z), dn, mul(dn, r)];
            for (b, v) in all.into_iter().enumerate() {
                block.store(v, self.gate_grads.add(b * self.row.width));
            }
        }
    }

    /// Computes the gradients of a block of [`RnnMode::Lstm`].
    ///
    /// # Safety
    /// The [row contract](CellRow#the-row-contract) holds for `block`.
    #[inline(always)]
    unsafe fn lstm<V: FloatVector<Scalar = T>, const R: usize, const W: bool>(&self, block: LaneBlock<V, R, W>) {
        // SAFETY: the row contract, which is this function's contract.
        unsafe {
            let [i, f, g, o] =
                [self.row.gate(block, 0), self.row.gate(block, 1), self.row.gate(block, 2), self.row.gate(block, 3)];
            let (dh, y) = (block.load(self.state_grads), tanh(block.load(self.row.cells[1])));
            let dc = mul_add(mul(dh, o), one_minus_product(y, y), block.load(self.cell_grads));
            block.store(mul(dc, f), self.cell_grads);
            let all = [
                sigmoid_gradient(mul(dc, g), i),
                sigmoid_gradient(mul(dc, block.load(self.row.cells[0])), f),
                mul(mul(dc, i), one_minus_product(g, g)),
                sigmoid_gradient(mul(dh, y), o),
            ];
            for (b, v) in all.into_iter().enumerate() {
                block.store(v, self.gate_grads.add(b * self.row.width));
            }
        }
    }
}
