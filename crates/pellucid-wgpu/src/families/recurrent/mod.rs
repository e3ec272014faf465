//! `Recurrent`: the time steps of a recurrent layer, forward and backward.
//!
//! A time step is one dispatch: a [tiled product](super::shared::tile) whose epilogue is the cell. A projected step has
//! a second product.
//!
//! - Forward, the product of the previous states and W has neighbouring columns for the gates of one unit, so one
//!   invocation has all gates of a unit.
//! - Backward, the factors are W and the gradients of the gates of the previous step in this order. The product is the
//!   gradient of the state through that step. The gradients of the initial states are one more product.
//!
//! All dispatches of a pass have one shader; the time indices are parameters.
//!
//! - `step`: the shader of a step;
//! - `cell`: the equations;
//! - this file: operand checks and the loop over time.

mod cell;
mod step;

use super::GpuFamily;
use super::copy::copy;
use super::shared::indices::check_lengths;
use super::shared::tile::{Coordinate, IndexDigit, TiledArray, is_narrow};
use crate::dispatch_list::DispatchList;
use crate::operand::{DeviceArray, DeviceOperands};
use crate::shader::ShaderBuilder;
use crate::shader::iterations::iterations;
use crate::shader::types::FloatText;
use cell::CellArrays;
use pellucid_ir::backend::OperandMeta;
use pellucid_ir::kernel::{Meta, Recurrent, RecurrentPart, RecurrentSizes, RnnMode, metas};
use pellucid_ir::{Layout, Result};
use step::{StepArray, StepDispatch, StepFactors, StepShader, StepTimes, TimeIndex};

impl GpuFamily for Recurrent {
    fn iterations(&self, inputs: &[OperandMeta<'_>], _: &[OperandMeta<'_>]) -> usize {
        let shapes: Vec<Meta> =
            inputs.iter().map(|o| Meta { shape: o.layout.shape().clone(), dtype: o.dtype }).collect();
        let Some(sizes) = self.sizes(&shapes) else { return 0 };
        let compute = inputs[0].dtype.compute();
        // The products of a step are over units, or over the gradients of all gates.
        let of_product: usize = if is_narrow(compute) { 1 } else { 21 };
        // An invocation computes 16 gates, or their gradients.
        let of_cells = 16 * iterations(&FloatText(compute).call("tanh", &["x"]));
        (of_product * 4).saturating_mul(sizes.hidden.max(sizes.state)).saturating_add(of_cells)
    }

    fn describe(&self, list: &mut DispatchList<'_>, operands: &DeviceOperands<'_>) -> Result<()> {
        let DeviceOperands { inputs, outputs } = operands;
        let Some(sizes) = self.sizes(&metas(inputs)) else { return Ok(()) };
        let lengths = inputs.last().filter(|_| self.lengths).copied();
        if let Some(lengths) = &lengths {
            check_lengths(list, self.op, lengths, sizes.steps)?;
        }
        let dispatches = RecurrentDispatches {
            kernel: self,
            sizes,
            float: FloatText(inputs[0].dtype.compute()),
            inputs,
            outputs,
            lengths,
            projection: self.projected.then(|| inputs[self.inputs() - 1 - usize::from(self.lengths)]),
        };
        match self.part {
            RecurrentPart::States => dispatches.describe_states(list),
            RecurrentPart::Gradient => dispatches.describe_gradient(list),
        }
    }
}

/// A recurrent layer and its operands.
struct RecurrentDispatches<'a, 'o> {
    kernel: &'o Recurrent,
    sizes: RecurrentSizes,
    float: FloatText,
    inputs: &'o [DeviceArray<'a>],
    outputs: &'o [DeviceArray<'a>],
    lengths: Option<DeviceArray<'a>>,
    projection: Option<DeviceArray<'a>>,
}

/// Returns the matrix of `size` rows and columns of the last two axes of an array, from the row and the column `first`
/// on.
fn matrix<'a>(array: &DeviceArray<'a>, first: [usize; 2], size: [usize; 2]) -> TiledArray<'a> {
    let strides = array.layout.strides();
    let (outer, own) = strides.split_at(strides.len() - 2);
    let offset = first[0] as isize * own[0] + first[1] as isize * own[1];
    let [rows, columns] = [0, 1].map(|axis| vec![IndexDigit::plain(size[axis], own[axis])]);
    let start = array.layout.offset() as isize + offset;
    TiledArray { array: *array, start, batch: outer.to_vec(), rows, columns, coordinates: Vec::new() }.simplified()
}

impl<'a> RecurrentDispatches<'a, '_> {
    fn is_lstm(&self) -> bool {
        self.kernel.cell == RnnMode::Lstm
    }

    /// Returns the states before and after a step.
    fn states(&self, step: usize) -> [usize; 2] {
        if self.kernel.reverse { [step + 1, step] } else { [step, step + 1] }
    }

    /// Returns the steps in the order in which the layer runs.
    fn steps(&self) -> Vec<usize> {
        match self.kernel.reverse {
            true => (0..self.sizes.steps).rev().collect(),
            false => (0..self.sizes.steps).collect(),
        }
    }

    /// Adds the dispatches that copy an array `[N, width]` to one time of an array of states.
    fn copy_state(
        &self,
        list: &mut DispatchList<'_>,
        from: &DeviceArray<'a>,
        to: &DeviceArray<'a>,
        time: usize,
    ) -> Result<()> {
        let shape = from.shape().clone();
        let layout = Layout::contiguous_from(shape.clone(), to.layout.offset() + time * shape.size());
        let to = DeviceArray { layout: &layout, ..*to };
        copy(list, &DeviceOperands { inputs: vec![*from], outputs: vec![to] })
    }

    /// Returns the arrays that a cell uses.
    fn cell_arrays(
        &self,
        text: &mut StepShader,
        [gates, results, states]: [&DeviceArray<'a>; 3],
        cells: Option<&DeviceArray<'a>>,
    ) -> CellArrays {
        let mut at = |array: &DeviceArray<'_>, time| text.array(array, Some(time));
        CellArrays {
            cell: self.kernel.cell,
            gates: at(gates, TimeIndex::Step),
            results: at(results, TimeIndex::Step),
            previous: at(states, TimeIndex::Previous),
            cells: cells.map(|cells| [at(cells, TimeIndex::Previous), at(cells, TimeIndex::Following)]),
            hidden: text.length(self.sizes.hidden),
        }
    }

    /// Returns W as the right factor of the forward product: four neighbouring columns are the gates of one unit.
    fn gate_weights(&self) -> TiledArray<'a> {
        let w = self.inputs[1];
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
    fn describe_states(&self, list: &mut DispatchList<'_>) -> Result<()> {
        let RecurrentSizes { batch, hidden, .. } = self.sizes;
        let (states, cells) = (&self.outputs[1], self.outputs.get(2));
        let start = if self.kernel.reverse { self.sizes.steps } else { 0 };
        self.copy_state(list, &self.inputs[3], states, start)?;
        if let Some(cells) = cells {
            self.copy_state(list, &self.inputs[4], cells, start)?;
        }
        let layout = Layout::contiguous([batch, hidden].into());
        let unprojected = self.projection.map(|_| DeviceArray {
            buffer: list.scratch(batch * hidden * self.float.0.size()),
            layout: &layout,
            dtype: self.inputs[0].dtype,
        });
        let mut dispatches: Vec<StepDispatch> = Vec::new();
        for step in self.steps() {
            let times = StepTimes { step, states: self.states(step), done: None };
            if !dispatches.is_empty() {
                dispatches.iter().for_each(|dispatch| dispatch.repeat(list, times));
                continue;
            }
            dispatches.push(self.describe_cell(list, times, unprojected.as_ref())?);
            if let (Some(projection), Some(unprojected)) = (&self.projection, &unprojected) {
                dispatches.push(self.describe_projection(list, times, projection, unprojected)?);
            }
        }
        Ok(())
    }

    /// Adds the dispatch of the cell. If the states are projected, it writes the state to `unprojected`.
    fn describe_cell(
        &self,
        list: &mut DispatchList<'_>,
        times: StepTimes,
        unprojected: Option<&DeviceArray<'_>>,
    ) -> Result<StepDispatch> {
        let RecurrentSizes { batch, hidden, state, .. } = self.sizes;
        let (x, bias) = (&self.inputs[0], &self.inputs[2]);
        let (gates, states, cells) = (&self.outputs[0], &self.outputs[1], self.outputs.get(2));
        let is_grouped = self.kernel.cell.gates() > 1;
        let factors = StepFactors {
            left: (matrix(states, [0, 0], [batch, state]), Some(TimeIndex::Previous)),
            right: self.gate_weights(),
            depth: state,
        };
        let reads: Vec<DeviceArray<'_>> = [*x, *bias].into_iter().chain(self.lengths).collect();
        let written = unprojected.unwrap_or(states);
        let writes: Vec<DeviceArray<'_>> = [gates, written].into_iter().chain(cells).copied().collect();
        let columns = if is_grouped { 4 * hidden } else { hidden };
        let mut text = StepShader::new(self.float, [batch, columns], &[factors], (&reads, &writes));
        let cell = self.cell_arrays(&mut text, [x, gates, states], cells);
        let bias = text.array(bias, None);
        let lengths = self.lengths.map(|lengths| text.array(&lengths, None));
        let next = text.array(written, unprojected.is_none().then_some(TimeIndex::Following));
        let float = self.float;
        text.finish(list, is_grouped, times, |shader, row, unit, products| {
            begin_active(shader, lengths.as_ref());
            let state = cell.forward(shader, float, &bias, (row, unit), products);
            next.store(shader, row, unit, &state);
            shader.line("} else {");
            if unprojected.is_none() {
                let state = cell.previous.load(shader, row, unit);
                next.store(shader, row, unit, &state);
            }
            if let Some([before, after]) = &cell.cells {
                let c = before.load(shader, row, unit);
                after.store(shader, row, unit, &c);
            }
            shader.line("}");
        })
    }

    /// Adds the dispatch that projects the states of a step.
    fn describe_projection(
        &self,
        list: &mut DispatchList<'_>,
        times: StepTimes,
        projection: &DeviceArray<'_>,
        unprojected: &DeviceArray<'_>,
    ) -> Result<StepDispatch> {
        let RecurrentSizes { batch, hidden, state, .. } = self.sizes;
        let states = &self.outputs[1];
        let factors = StepFactors {
            left: (matrix(unprojected, [0, 0], [batch, hidden]), None),
            right: matrix(projection, [0, 0], [state, hidden]).transposed(),
            depth: hidden,
        };
        let reads: Vec<DeviceArray<'_>> = self.lengths.into_iter().collect();
        let mut text = StepShader::new(self.float, [batch, state], &[factors], (&reads, &[*states]));
        let [previous, next] = [TimeIndex::Previous, TimeIndex::Following].map(|time| text.array(states, Some(time)));
        let lengths = self.lengths.map(|lengths| text.array(&lengths, None));
        text.finish(list, false, times, |shader, row, column, products| {
            begin_active(shader, lengths.as_ref());
            next.store(shader, row, column, &products[0]);
            shader.line("} else {");
            let state = previous.load(shader, row, column);
            next.store(shader, row, column, &state);
            shader.line("}");
        })
    }

    /// Adds all dispatches of the gradient.
    fn describe_gradient(&self, list: &mut DispatchList<'_>) -> Result<()> {
        self.copy_state(list, &self.inputs[4], &self.outputs[1], 0)?;
        if self.is_lstm() {
            self.copy_state(list, &self.inputs[6], &self.outputs[2], 0)?;
        }
        let mut dispatches: Vec<StepDispatch> = Vec::new();
        let mut done = None;
        for step in self.steps().into_iter().rev() {
            let times = StepTimes { step, states: self.states(step), done };
            done = Some(step);
            if !dispatches.is_empty() {
                dispatches.iter().for_each(|dispatch| dispatch.repeat(list, times));
                continue;
            }
            match &self.projection {
                None => dispatches.push(self.describe_cell_gradient(list, times, None)?),
                Some(projection) => {
                    dispatches.push(self.describe_total(list, times)?);
                    dispatches.push(self.describe_cell_gradient(list, times, Some(projection))?);
                }
            }
        }
        match done {
            Some(_) => self.describe_initial_gradient(list, StepTimes { step: 0, states: [0, 0], done }),
            None => Ok(()),
        }
    }

    /// Returns the factors of the gradient of a state through the gates of the finished step.
    fn gate_gradients(&self) -> Vec<StepFactors<'a>> {
        let RecurrentSizes { batch, hidden, state, .. } = self.sizes;
        // The first gate, the first block of its gradients, and the number of gates. The third gate of a GRU has its
        // gradient in the last block.
        let parts = match self.kernel.cell {
            RnnMode::Gru => vec![(0, 0, 2), (2, 3, 1)],
            cell => vec![(0, 0, cell.gates())],
        };
        let factors = |(gate, block, count): (usize, usize, usize)| {
            let depth = count * hidden;
            let left = matrix(&self.outputs[0], [0, block * hidden], [batch, depth]);
            let right = matrix(&self.inputs[2], [gate * hidden, 0], [depth, state]);
            StepFactors { left: (left, Some(TimeIndex::Done)), right, depth }
        };
        parts.into_iter().map(factors).collect()
    }

    /// Adds the dispatch of the gradient of a cell. The gradient of its state is the product of the total gradients and
    /// `projection`, or else the sum of three gradients: through the gates of the finished step, past its gates, and
    /// the incoming gradients.
    fn describe_cell_gradient(
        &self,
        list: &mut DispatchList<'_>,
        times: StepTimes,
        projection: Option<&DeviceArray<'a>>,
    ) -> Result<StepDispatch> {
        let RecurrentSizes { batch, hidden, state, .. } = self.sizes;
        let (gates, states, incoming) = (&self.inputs[0], &self.inputs[1], &self.inputs[3]);
        let (gate_grads, carry) = (&self.outputs[0], &self.outputs[1]);
        let cells = self.is_lstm().then(|| &self.inputs[5]);
        let cell_carry = self.is_lstm().then(|| &self.outputs[2]);
        let factors = match projection {
            Some(projection) => vec![StepFactors {
                left: (matrix(&self.outputs[3], [0, 0], [batch, state]), Some(TimeIndex::Step)),
                right: matrix(projection, [0, 0], [state, hidden]),
                depth: state,
            }],
            None => self.gate_gradients(),
        };
        let reads: Vec<DeviceArray<'_>> =
            [*gates, *states, *incoming].into_iter().chain(cells.copied()).chain(self.lengths).collect();
        let writes: Vec<DeviceArray<'_>> = [gate_grads, carry].into_iter().chain(cell_carry).copied().collect();
        let mut text = StepShader::new(self.float, [batch, hidden], &factors, (&reads, &writes));
        let cell = self.cell_arrays(&mut text, [gates, gate_grads, states], cells);
        let lengths = self.lengths.map(|lengths| text.array(&lengths, None));
        let [carry, incoming] = [(carry, None), (incoming, Some(TimeIndex::Step))].map(|(a, t)| text.array(a, t));
        let cell_carry = cell_carry.map(|array| text.array(array, None));
        let (float, is_projected) = (self.float, projection.is_some());
        text.finish(list, false, times, |shader, row, unit, products| {
            let at = (row, unit);
            let through = match is_projected {
                true => products[0].clone(),
                false => {
                    let bypass = carry.load(shader, row, unit);
                    shader.define(float.add(&products[0], &bypass))
                }
            };
            begin_active(shader, lengths.as_ref());
            if is_projected {
                cell.backward(shader, float, cell_carry.as_ref(), at, &through);
            } else {
                let own = incoming.load(shader, row, unit);
                let total = shader.define(float.add(&through, &own));
                let bypass = cell.backward(shader, float, cell_carry.as_ref(), at, &total);
                carry.store(shader, row, unit, &bypass);
            }
            shader.line("} else {");
            cell.store(shader, at, &vec![float.zero(); cell.cell.blocks()]);
            if !is_projected {
                carry.store(shader, row, unit, &through);
            }
            shader.line("}");
        })
    }

    /// Adds the dispatch of the total gradients of projected states.
    fn describe_total(&self, list: &mut DispatchList<'_>, times: StepTimes) -> Result<StepDispatch> {
        let RecurrentSizes { batch, state, .. } = self.sizes;
        let (incoming, carry, total) = (&self.inputs[3], &self.outputs[1], &self.outputs[3]);
        let reads: Vec<DeviceArray<'_>> = [*incoming].into_iter().chain(self.lengths).collect();
        let factors = self.gate_gradients();
        let mut text = StepShader::new(self.float, [batch, state], &factors, (&reads, &[*carry, *total]));
        let lengths = self.lengths.map(|lengths| text.array(&lengths, None));
        let [incoming, total] = [incoming, total].map(|array| text.array(array, Some(TimeIndex::Step)));
        let carry = text.array(carry, None);
        let float = self.float;
        text.finish(list, false, times, |shader, row, column, products| {
            let bypass = carry.load(shader, row, column);
            let through = shader.define(float.add(&products[0], &bypass));
            begin_active(shader, lengths.as_ref());
            let own = incoming.load(shader, row, column);
            let sum = shader.define(float.add(&through, &own));
            total.store(shader, row, column, &sum);
            carry.store(shader, row, column, float.zero());
            shader.line("} else {");
            total.store(shader, row, column, float.zero());
            carry.store(shader, row, column, &through);
            shader.line("}");
        })
    }

    /// Adds the dispatch of the gradient of the initial state.
    fn describe_initial_gradient(&self, list: &mut DispatchList<'_>, times: StepTimes) -> Result<()> {
        let RecurrentSizes { batch, state, .. } = self.sizes;
        let carry = &self.outputs[1];
        let factors = self.gate_gradients();
        let mut text = StepShader::new(self.float, [batch, state], &factors, (&[], &[*carry]));
        let carry = text.array(carry, None);
        let float = self.float;
        let lines = |shader: &mut ShaderBuilder, row: &str, column: &str, products: &[String]| {
            let bypass = carry.load(shader, row, column);
            let sum = shader.define(float.add(&products[0], &bypass));
            carry.store(shader, row, column, &sum);
        };
        text.finish(list, false, times, lines).map(drop)
    }
}

/// Begins the lines for sequences whose state the step changes. The steps beyond the length of a sequence do not change
/// its state.
fn begin_active(shader: &mut ShaderBuilder, lengths: Option<&StepArray>) {
    let is_active = match lengths {
        Some(lengths) => {
            let length = lengths.load(shader, "0u", "row");
            format!("l_lt(vec2<u32>({}, 0u), {length})", TimeIndex::Step.text())
        }
        None => "true".into(),
    };
    shader.line(format!("if ({is_active}) {{"));
}
