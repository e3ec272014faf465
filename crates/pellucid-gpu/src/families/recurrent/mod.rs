//! `Recurrent`: the time steps of a recurrent layer, forward and backward.
//!
//! A time step is one dispatch: a [tiled product](super::shared::tile) whose epilogue is the cell. A projected step has
//! a second product.
//!
//! - In the forward pass, the product of the previous states and W has neighbouring columns for the gates of one unit,
//!   so one invocation computes all gates of a unit.
//! - In the backward pass, the factors are W and the gradients of the gates of the step that was computed before. The
//!   product is the gradient of the state through that step. The gradients of the initial states are one more product.
//!
//! All steps of a pass use the same shaders; the time indices are parameters.
//!
//! - `step`: the shader of a step;
//! - `cell`: the equations;
//! - this file: operand checks and the loop over time.

mod cell;
mod step;

use super::GpuFamily;
use super::copy::copy;
use super::shared::indices::{LowerBound, check_range};
use super::shared::tile::{Coordinate, IndexDigit, MatrixUnit, TiledArray, WIDE_PRODUCT_ITERATIONS, is_narrow};
use crate::dispatch_list::DispatchList;
use crate::operand::{DeviceArray, DeviceOperands};
use crate::shader::{ShaderBuilder, WgslFloat, iterations};
use cell::CellArrays;
use pellucid_ir::backend::OperandMeta;
use pellucid_ir::kernel::{
    GateBlock, Recurrent, RecurrentGradientOperands, RecurrentPart, RecurrentSizes, RecurrentStateOperands, metas,
};
use pellucid_ir::{Error, Layout, Result};
use step::{StepDispatch, StepFactors, StepShader, StepTimes, TimeIndex, if_active};

impl GpuFamily for Recurrent {
    fn iterations(&self, inputs: &[OperandMeta<'_>], _: &[OperandMeta<'_>]) -> usize {
        let Some(sizes) = self.sizes(&metas(inputs)) else { return 0 };
        let compute = inputs[0].dtype.compute();
        // The products of a step sum over units, or over the gates of all units.
        let product_iterations: usize = if is_narrow(compute) { 1 } else { WIDE_PRODUCT_ITERATIONS };
        // An invocation computes 16 gates, or the gradients of 16 gates.
        let cell_iterations = 16 * iterations(&WgslFloat(compute).call("tanh", &["x"]));
        (product_iterations * 4).saturating_mul(sizes.hidden.max(sizes.state)).saturating_add(cell_iterations)
    }

    fn describe(&self, list: &mut DispatchList<'_>, operands: &DeviceOperands<'_>) -> Result<()> {
        let DeviceOperands { inputs, outputs } = operands;
        let sizes = self.sizes(&metas(inputs)).ok_or_else(|| {
            let help = "the shapes of the inputs do not match the cell; `kernel::Recurrent` documents them";
            Error::shapes(self.op, inputs.iter().map(|input| input.shape()), help)
        })?;
        if let Some(lengths) = self.lengths(inputs) {
            // A length is in 0..=steps.
            check_range(list, self.op, lengths, 0, (LowerBound::Zero, sizes.steps + 1));
        }
        let float = WgslFloat(inputs[0].dtype.compute());
        match self.part {
            RecurrentPart::States => {
                let operands = self.state_operands(inputs, outputs);
                RecurrentDispatches { kernel: self, sizes, float, operands }.describe_states(list);
            }
            RecurrentPart::Gradient => {
                let operands = self.gradient_operands(inputs, outputs);
                RecurrentDispatches { kernel: self, sizes, float, operands }.describe_gradient(list);
            }
        }
        Ok(())
    }
}

/// The operands of the forward pass.
type StateArrays<'a, 'o> = RecurrentStateOperands<'o, DeviceArray<'a>, DeviceArray<'a>>;

/// The operands of the gradient.
type GradientArrays<'a, 'o> = RecurrentGradientOperands<'o, DeviceArray<'a>, DeviceArray<'a>>;

/// A recurrent layer and its operands.
struct RecurrentDispatches<'o, Operands> {
    kernel: &'o Recurrent,
    sizes: RecurrentSizes,
    float: WgslFloat,
    operands: Operands,
}

/// Returns the matrices of the last two axes of an array, restricted to `size` rows and columns from the row and column
/// `first` on.
fn matrix<'a>(array: &DeviceArray<'a>, first: [usize; 2], size: [usize; 2]) -> TiledArray<'a> {
    let strides = array.layout.strides();
    let (outer, inner) = strides.split_at(strides.len() - 2);
    let offset = first[0] as isize * inner[0] + first[1] as isize * inner[1];
    let [rows, columns] = [0, 1].map(|axis| vec![IndexDigit::plain(size[axis], inner[axis])]);
    let start = array.layout.offset() as isize + offset;
    TiledArray { array: *array, start, batch: outer.to_vec(), rows, columns, coordinates: Vec::new() }.simplified()
}

impl<Operands> RecurrentDispatches<'_, Operands> {
    /// Returns the time indices of the states before and after a step.
    fn states(&self, step: usize) -> [usize; 2] {
        if self.kernel.reverse { [step + 1, step] } else { [step, step + 1] }
    }

    /// Returns the steps in the order in which the layer runs.
    fn steps(&self) -> Vec<usize> {
        let steps = 0..self.sizes.steps;
        if self.kernel.reverse { steps.rev().collect() } else { steps.collect() }
    }

    /// Returns the operation and the matrix unit of its products.
    fn operation(&self, list: &DispatchList<'_>) -> (&'static str, Option<MatrixUnit>) {
        (self.kernel.op, MatrixUnit::for_rounded(list.features, self.kernel.half_factors))
    }

    /// Adds the dispatches that copy an array `[N, width]` to one time of an array of states.
    fn copy_state<'a>(&self, list: &mut DispatchList<'_>, from: &DeviceArray<'a>, to: &DeviceArray<'a>, time: usize) {
        let shape = from.shape().clone();
        let layout = Layout::contiguous_from(shape.clone(), to.layout.offset() + time * shape.size());
        let to = DeviceArray { layout: &layout, ..*to };
        copy(list, &DeviceOperands { inputs: vec![*from], outputs: vec![to] });
    }

    /// Returns the arrays that a cell uses.
    fn cell_arrays(
        &self,
        builder: &mut StepShader,
        [gates, results, states]: [&DeviceArray<'_>; 3],
        cells: Option<&DeviceArray<'_>>,
    ) -> CellArrays {
        let mut array_at = |array: &DeviceArray<'_>, time| builder.array(array, Some(time));
        CellArrays {
            cell: self.kernel.cell,
            gates: array_at(gates, TimeIndex::Step),
            results: array_at(results, TimeIndex::Step),
            previous: array_at(states, TimeIndex::Previous),
            cells: cells.map(|cells| [array_at(cells, TimeIndex::Previous), array_at(cells, TimeIndex::Following)]),
            hidden: builder.length(self.sizes.hidden),
        }
    }
}

impl<'a> RecurrentDispatches<'_, StateArrays<'a, '_>> {
    /// Returns W as the right factor of the forward product: four neighbouring columns are the gates of one unit.
    fn gate_weights(&self) -> TiledArray<'a> {
        let w = *self.operands.weights;
        let strides = w.layout.strides();
        let (hidden, gates) = (self.sizes.hidden, self.kernel.cell.gates());
        let unit = IndexDigit::plain(hidden, strides[0]);
        let stride = strides[0] * hidden as isize;
        let (columns, coordinates) = match gates {
            1 => (vec![unit], Vec::new()),
            // The fourth column of a GRU is 0.
            _ => (vec![unit, IndexDigit::along(4, 0, 1)], vec![Coordinate { len: gates, start: 0, stride }]),
        };
        let rows = vec![IndexDigit::plain(self.sizes.state, strides[1])];
        let start = w.layout.offset() as isize;
        TiledArray { array: w, start, batch: Vec::new(), rows, columns, coordinates }.simplified()
    }

    /// Adds all dispatches of the forward pass.
    fn describe_states(&self, list: &mut DispatchList<'_>) {
        let RecurrentSizes { batch, hidden, .. } = self.sizes;
        let RecurrentStateOperands { x, initial_state, initial_cell, projection, states, cells, .. } = self.operands;
        let start = if self.kernel.reverse { self.sizes.steps } else { 0 };
        self.copy_state(list, initial_state, states, start);
        if let (Some(initial_cell), Some(cells)) = (initial_cell, cells) {
            self.copy_state(list, initial_cell, cells, start);
        }
        let layout = Layout::contiguous([batch, hidden].into());
        let unprojected = projection.map(|_| DeviceArray {
            buffer: list.scratch(batch * hidden * self.float.0.size()),
            layout: &layout,
            dtype: x.dtype,
        });
        let times = |step| StepTimes { step, states: self.states(step), finished: None };
        dispatch_steps(list, self.steps().into_iter().map(times), |list, times| {
            let projection = projection.zip(unprojected.as_ref());
            let cell = self.describe_cell(list, times, unprojected.as_ref());
            let projected = projection.map(|arrays| self.describe_projection(list, times, arrays));
            [cell].into_iter().chain(projected).collect()
        });
    }

    /// Adds the dispatch of the cell. If the states are projected, it writes the state to `unprojected`.
    fn describe_cell(
        &self,
        list: &mut DispatchList<'_>,
        times: StepTimes,
        unprojected: Option<&DeviceArray<'_>>,
    ) -> StepDispatch {
        let RecurrentSizes { batch, hidden, state, .. } = self.sizes;
        let RecurrentStateOperands { x, bias, lengths, gates, states, cells, .. } = self.operands;
        let is_grouped = self.kernel.cell.gates() > 1;
        let factors = StepFactors {
            left: (matrix(states, [0, 0], [batch, state]), Some(TimeIndex::Previous)),
            right: self.gate_weights(),
            depth: state,
        };
        let reads: Vec<DeviceArray<'_>> = [x, bias].into_iter().chain(lengths).copied().collect();
        let written = unprojected.unwrap_or(states);
        let writes: Vec<DeviceArray<'_>> = [gates, written].into_iter().chain(cells).copied().collect();
        let columns = if is_grouped { 4 * hidden } else { hidden };
        let mut builder = StepShader::new(self.operation(list), [batch, columns], &[factors], &reads, &writes);
        let cell = self.cell_arrays(&mut builder, [x, gates, states], cells);
        let bias = builder.array(bias, None);
        let lengths = lengths.map(|lengths| builder.lengths(lengths));
        let next = builder.array(written, unprojected.is_none().then_some(TimeIndex::Following));
        builder.finish(list, is_grouped, times, |shader, products| {
            let change_state = |shader: &mut ShaderBuilder| {
                let state = cell.forward(shader, self.float, &bias, products);
                next.store(shader, &state);
            };
            if_active(shader, lengths.as_ref(), change_state, |shader| {
                if unprojected.is_none() {
                    let state = cell.previous.load(shader);
                    next.store(shader, &state);
                }
                if let Some([before, after]) = &cell.cells {
                    let c = before.load(shader);
                    after.store(shader, &c);
                }
            });
        })
    }

    /// Adds the dispatch that projects the states of a step.
    fn describe_projection(
        &self,
        list: &mut DispatchList<'_>,
        times: StepTimes,
        (projection, unprojected): (&DeviceArray<'_>, &DeviceArray<'_>),
    ) -> StepDispatch {
        let RecurrentSizes { batch, hidden, state, .. } = self.sizes;
        let RecurrentStateOperands { states, lengths, .. } = self.operands;
        let factors = StepFactors {
            left: (matrix(unprojected, [0, 0], [batch, hidden]), None),
            right: matrix(projection, [0, 0], [state, hidden]).transposed(),
            depth: hidden,
        };
        let reads: Vec<DeviceArray<'_>> = lengths.into_iter().copied().collect();
        let mut builder = StepShader::new(self.operation(list), [batch, state], &[factors], &reads, &[*states]);
        let [previous, next] =
            [TimeIndex::Previous, TimeIndex::Following].map(|time| builder.array(states, Some(time)));
        let lengths = lengths.map(|lengths| builder.lengths(lengths));
        builder.finish(list, false, times, |shader, products| {
            let change_state = |shader: &mut ShaderBuilder| next.store(shader, &products[0]);
            if_active(shader, lengths.as_ref(), change_state, |shader| {
                let state = previous.load(shader);
                next.store(shader, &state);
            });
        })
    }
}

impl<'a> RecurrentDispatches<'_, GradientArrays<'a, '_>> {
    /// Adds all dispatches of the gradient.
    fn describe_gradient(&self, list: &mut DispatchList<'_>) {
        let RecurrentGradientOperands { final_state_grad, final_cell_grad, projection, .. } = self.operands;
        self.copy_state(list, final_state_grad, self.operands.initial_state_grad, 0);
        if let (Some(final_cell_grad), Some(carry)) = (final_cell_grad, self.operands.initial_cell_grad) {
            self.copy_state(list, final_cell_grad, carry, 0);
        }
        let steps: Vec<usize> = self.steps().into_iter().rev().collect();
        let finished = [None].into_iter().chain(steps.iter().copied().map(Some));
        let times =
            steps.iter().zip(finished).map(|(&step, finished)| StepTimes { step, states: self.states(step), finished });
        dispatch_steps(list, times, |list, times| {
            let total_grads = projection.and(self.operands.total_grads);
            let total = total_grads.map(|total_grads| self.describe_total(list, times, total_grads));
            total.into_iter().chain([self.describe_cell_gradient(list, times, projection)]).collect()
        });
        if let Some(&last) = steps.last() {
            self.describe_initial_gradient(list, StepTimes { step: 0, states: [0, 0], finished: Some(last) });
        }
    }

    /// Returns the factors of the gradient of a state through the gates of the finished step.
    fn gate_gradients(&self) -> Vec<StepFactors<'a>> {
        let RecurrentSizes { batch, hidden, state, .. } = self.sizes;
        let factors = |&GateBlock { first_gate, first_block, gates }: &GateBlock| {
            let depth = gates * hidden;
            let left = matrix(self.operands.gate_grads, [0, first_block * hidden], [batch, depth]);
            let right = matrix(self.operands.weights, [first_gate * hidden, 0], [depth, state]);
            StepFactors { left: (left, Some(TimeIndex::Finished)), right, depth }
        };
        self.kernel.cell.weight_blocks().iter().map(factors).collect()
    }

    /// Adds the dispatch of the gradient of a cell. For projected states, the gradient of the state of the cell is the
    /// product of the total gradients and `projection`. Otherwise it is the sum of three gradients: through the gates
    /// of the finished step, past its gates, and the incoming gradients.
    fn describe_cell_gradient(
        &self,
        list: &mut DispatchList<'_>,
        times: StepTimes,
        projection: Option<&DeviceArray<'a>>,
    ) -> StepDispatch {
        let RecurrentSizes { batch, hidden, state, .. } = self.sizes;
        let RecurrentGradientOperands { gates, states, state_grads, cells, lengths, .. } = self.operands;
        let RecurrentGradientOperands { gate_grads, initial_state_grad, initial_cell_grad, .. } = self.operands;
        let factors = match projection.zip(self.operands.total_grads) {
            Some((projection, total_grads)) => vec![StepFactors {
                left: (matrix(total_grads, [0, 0], [batch, state]), Some(TimeIndex::Step)),
                right: matrix(projection, [0, 0], [state, hidden]),
                depth: state,
            }],
            None => self.gate_gradients(),
        };
        let reads: Vec<DeviceArray<'_>> =
            [gates, states, state_grads].into_iter().chain(cells).chain(lengths).copied().collect();
        let carries = [gate_grads, initial_state_grad].into_iter().chain(initial_cell_grad);
        let writes: Vec<DeviceArray<'_>> = carries.copied().collect();
        let mut builder = StepShader::new(self.operation(list), [batch, hidden], &factors, &reads, &writes);
        let cell = self.cell_arrays(&mut builder, [gates, gate_grads, states], cells);
        let lengths = lengths.map(|lengths| builder.lengths(lengths));
        let [carry, incoming] = [(initial_state_grad, None), (state_grads, Some(TimeIndex::Step))]
            .map(|(array, time)| builder.array(array, time));
        let cell_carry = initial_cell_grad.map(|array| builder.array(array, None));
        let (float, is_projected) = (self.float, projection.is_some());
        builder.finish(list, false, times, |shader, products| {
            let through = if is_projected { products[0].clone() } else { carry.sum(shader, float, &products[0]) };
            let change_state = |shader: &mut ShaderBuilder| {
                if is_projected {
                    cell.backward(shader, float, cell_carry.as_ref(), &through);
                } else {
                    let total = incoming.sum(shader, float, &through);
                    let bypass = cell.backward(shader, float, cell_carry.as_ref(), &total);
                    carry.store(shader, &bypass);
                }
            };
            if_active(shader, lengths.as_ref(), change_state, |shader| {
                cell.store(shader, &vec![float.zero(); cell.cell.blocks()]);
                if !is_projected {
                    carry.store(shader, &through);
                }
            });
        })
    }

    /// Adds the dispatch of the total gradients of projected states.
    fn describe_total(
        &self,
        list: &mut DispatchList<'_>,
        times: StepTimes,
        total_grads: &DeviceArray<'_>,
    ) -> StepDispatch {
        let RecurrentSizes { batch, state, .. } = self.sizes;
        let RecurrentGradientOperands { state_grads, initial_state_grad, lengths, .. } = self.operands;
        let reads: Vec<DeviceArray<'_>> = [state_grads].into_iter().chain(lengths).copied().collect();
        let factors = self.gate_gradients();
        let writes = [*initial_state_grad, *total_grads];
        let mut builder = StepShader::new(self.operation(list), [batch, state], &factors, &reads, &writes);
        let lengths = lengths.map(|lengths| builder.lengths(lengths));
        let [incoming, total] = [state_grads, total_grads].map(|array| builder.array(array, Some(TimeIndex::Step)));
        let carry = builder.array(initial_state_grad, None);
        let float = self.float;
        builder.finish(list, false, times, |shader, products| {
            let through = carry.sum(shader, float, &products[0]);
            let change_state = |shader: &mut ShaderBuilder| {
                let sum = incoming.sum(shader, float, &through);
                total.store(shader, &sum);
                carry.store(shader, float.zero());
            };
            if_active(shader, lengths.as_ref(), change_state, |shader| {
                total.store(shader, float.zero());
                carry.store(shader, &through);
            });
        })
    }

    /// Adds the dispatch of the gradient of the initial state.
    fn describe_initial_gradient(&self, list: &mut DispatchList<'_>, times: StepTimes) {
        let RecurrentSizes { batch, state, .. } = self.sizes;
        let carry = self.operands.initial_state_grad;
        let mut builder = StepShader::new(self.operation(list), [batch, state], &self.gate_gradients(), &[], &[*carry]);
        let carry = builder.array(carry, None);
        builder.finish(list, false, times, |shader, products| {
            let sum = carry.sum(shader, self.float, &products[0]);
            carry.store(shader, &sum);
        });
    }
}

/// Adds the dispatches of all steps. `describe` adds the dispatches of the first step; each later step repeats them
/// with its time indices.
fn dispatch_steps(
    list: &mut DispatchList<'_>,
    mut times: impl Iterator<Item = StepTimes>,
    describe: impl FnOnce(&mut DispatchList<'_>, StepTimes) -> Vec<StepDispatch>,
) {
    let Some(first) = times.next() else { return };
    let dispatches = describe(list, first);
    times.for_each(|times| dispatches.iter().for_each(|dispatch| dispatch.repeat(list, times)));
}
