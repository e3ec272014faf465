//! The kernel family [`Recurrent`] and its shape rule.

use super::operand::{are_factor_dtypes, check_outputs, metas};
use super::{Family, FamilyInfo, KernelOperand, Meta, Metas, ReadOrder};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::shape::{Layout, Shape};
use smallvec::smallvec;

/// The equations of one time step, from the input contribution x and the previous state h to the next state h′.
///
/// Gates are blocks of H elements: xᵦ is the input contribution to block b, hᵦ = (W·h)ᵦ the contribution of the state,
/// βᵦ the bias, and σ the logistic function.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RnnMode {
    /// h′ = tanh(x + W·h + β) (Elman 1990).
    Tanh,
    /// h′ = max(x + W·h + β, 0).
    Relu,
    /// r = σ(x₀ + h₀ + β₀), z = σ(x₁ + h₁ + β₁), u = h₂ + β₃, n = tanh(x₂ + β₂ + r·u), h′ = n + z·(h − n) (Cho et al.
    /// 2014, with the reset after the product). x has four blocks; the last one is unused in the input and receives u.
    Gru,
    /// i, f, g, o = σ, σ, tanh, σ of xᵦ + hᵦ + βᵦ for the blocks b = 0, 1, 2, 3; c′ = f·c + i·g, h′ = o·tanh(c′)
    /// (Hochreiter & Schmidhuber 1997, Gers et al. 2000), or, with the projection V, h′ = V·(o·tanh(c′)) (Sak et al.
    /// 2014).
    Lstm,
}

impl RnnMode {
    /// Returns G, the number of gates: blocks of rows of the weights.
    pub fn gates(self) -> usize {
        match self {
            RnnMode::Tanh | RnnMode::Relu => 1,
            RnnMode::Gru => 3,
            RnnMode::Lstm => 4,
        }
    }

    /// Returns B, the number of blocks of the bias and of the gate activations that are saved for the gradient.
    pub fn blocks(self) -> usize {
        match self {
            RnnMode::Tanh | RnnMode::Relu => 1,
            RnnMode::Gru | RnnMode::Lstm => 4,
        }
    }

    /// Returns the blocks of the gate activations that store the products W·h of the gates. The third gate of
    /// [`RnnMode::Gru`], u, is stored in the last block.
    pub fn weight_blocks(self) -> &'static [GateBlock] {
        const fn block(first_gate: usize, first_block: usize, gates: usize) -> GateBlock {
            GateBlock { first_gate, first_block, gates }
        }
        match self {
            RnnMode::Tanh | RnnMode::Relu => const { &[block(0, 0, 1)] },
            RnnMode::Gru => const { &[block(0, 0, 2), block(2, 3, 1)] },
            RnnMode::Lstm => const { &[block(0, 0, 4)] },
        }
    }
}

/// Neighbouring gates of the weights whose products W·h are stored in neighbouring blocks of the gate activations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GateBlock {
    /// The first gate in the weights.
    pub first_gate: usize,
    /// The first block of the gate activations.
    pub first_block: usize,
    /// The number of gates.
    pub gates: usize,
}

/// The part of a recurrent layer that a [`Recurrent`] kernel computes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RecurrentPart {
    /// The gate activations and all states.
    States,
    /// The gradients of the gates and of the initial states.
    Gradient,
}

/// A recurrent layer over T time steps of N sequences, or its gradient.
///
/// It is a family of its own because one time step is too short for separate kernels. The weights are packed once for
/// all time steps and stay in the cache.
///
/// H is the width of a cell, P the width of a state (H, unless projected), B and G the cell's
/// [`blocks`](RnnMode::blocks) and [`gates`](RnnMode::gates). Arrays are `f32` or `f64`; outputs are contiguous.
///
/// **States**: the inputs are the input contribution to the gates x `[T, N, B·H]`, W `[G·H, P]`, β `[B·H]` and the
/// initial state `[N, P]`; for [`RnnMode::Lstm`] the initial c `[N, H]`; if projected V `[P, H]`; and optionally the
/// lengths, `i64 [N]` in 0..=T. The outputs are the gate activations `[T, N, B·H]` (r, z, n, u of [`RnnMode::Gru`]),
/// which may have the storage and layout of x; all states `[T + 1, N, P]`; and for [`RnnMode::Lstm`] all c
/// `[T + 1, N, H]`. Time step t computes state t + 1 from state t, or, in `reverse`, state t from state t + 1. A time
/// step at or beyond the length of its sequence copies the state; its gate activations are unspecified.
///
/// **Gradient**: the inputs are the gate activations (for [`RnnMode::Tanh`] and [`RnnMode::Relu`], the states that the
/// time steps compute), the states, W, the gradients of the states that the steps compute `[T, N, P]`, and an
/// additional gradient of the final state `[N, P]`; for [`RnnMode::Lstm`] all c and the gradient of the final c; then V
/// and the lengths. The outputs are the gradients of x + β `[T, N, B·H]` (the gradient of u in the last block of
/// [`RnnMode::Gru`]), of the initial state and of the initial c; if projected also the total gradient of every state
/// `[T, N, P]`. Steps beyond the length of a sequence ignore the gradients of their states and have gradient 0.
///
/// W·h is accumulated like a [`MatMul`](super::MatMul), then added to x, then β is added. The order of accumulation
/// depends on the shapes alone.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Recurrent {
    /// The name of the operation that the error for an invalid length reports.
    pub op: &'static str,
    /// The equations of one time step.
    pub cell: RnnMode,
    /// Whether the layer runs from the last time step to the first.
    pub reverse: bool,
    /// Whether the states are projected; only for [`RnnMode::Lstm`].
    pub projected: bool,
    /// Whether the sequences have individual lengths. The lengths are then the last input.
    pub lengths: bool,
    /// The half-precision dtype to which the factors of the products with W and V are rounded; only for `f32`. States,
    /// gates and gradients are stored unrounded. If rounding does not make a backend faster, the backend may multiply
    /// unrounded factors.
    pub half_factors: Option<DType>,
    /// The part that is computed.
    pub part: RecurrentPart,
}

/// The sizes T, N, H and P of a [`Recurrent`] kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecurrentSizes {
    /// The number of time steps.
    pub steps: usize,
    /// The number of sequences.
    pub batch: usize,
    /// H, the number of hidden units.
    pub hidden: usize,
    /// P, the length of a state: H, unless the states are projected.
    pub state: usize,
}

/// The operands of a [`Recurrent`] kernel with the part [`RecurrentPart::States`].
#[derive(Clone, Copy, Debug)]
pub struct RecurrentStateOperands<'o, I, O> {
    /// The input contribution to the gates.
    pub x: &'o I,
    /// W.
    pub weights: &'o I,
    /// β.
    pub bias: &'o I,
    /// The initial state.
    pub initial_state: &'o I,
    /// The initial cell state c.
    pub initial_cell: Option<&'o I>,
    /// V.
    pub projection: Option<&'o I>,
    /// The lengths.
    pub lengths: Option<&'o I>,
    /// The gate activations.
    pub gates: &'o O,
    /// All states.
    pub states: &'o O,
    /// The cell states c of all steps.
    pub cells: Option<&'o O>,
}

/// The operands of a [`Recurrent`] kernel with the part [`RecurrentPart::Gradient`].
#[derive(Clone, Copy, Debug)]
pub struct RecurrentGradientOperands<'o, I, O> {
    /// The gate activations.
    pub gates: &'o I,
    /// All states.
    pub states: &'o I,
    /// W.
    pub weights: &'o I,
    /// The gradients of the states that the steps compute.
    pub state_grads: &'o I,
    /// The additional gradient of the final state.
    pub final_state_grad: &'o I,
    /// The cell states c of all steps.
    pub cells: Option<&'o I>,
    /// The gradient of the final cell state.
    pub final_cell_grad: Option<&'o I>,
    /// V.
    pub projection: Option<&'o I>,
    /// The lengths.
    pub lengths: Option<&'o I>,
    /// The gradients of x + β.
    pub gate_grads: &'o O,
    /// The gradient of the initial state.
    pub initial_state_grad: &'o O,
    /// The gradient of the initial cell state.
    pub initial_cell_grad: Option<&'o O>,
    /// The total gradient of every projected state.
    pub total_grads: Option<&'o O>,
}

/// Returns the next operand of an iterator.
fn next_operand<'o, O>(operands: &mut std::slice::Iter<'o, O>) -> &'o O {
    operands.next().expect("the kernel must have all of its operands")
}

/// Returns the next operand of an iterator if `is_present`; otherwise returns `None` and does not advance the iterator.
fn optional_operand<'o, O>(operands: &mut std::slice::Iter<'o, O>, is_present: bool) -> Option<&'o O> {
    is_present.then(|| next_operand(operands))
}

impl Recurrent {
    /// Returns the operands of a kernel with the part [`RecurrentPart::States`] by name.
    ///
    /// # Panics
    /// If there are too few operands.
    pub fn state_operands<'o, I, O>(&self, inputs: &'o [I], outputs: &'o [O]) -> RecurrentStateOperands<'o, I, O> {
        let (inputs, outputs, is_lstm) = (&mut inputs.iter(), &mut outputs.iter(), self.cell == RnnMode::Lstm);
        RecurrentStateOperands {
            x: next_operand(inputs),
            weights: next_operand(inputs),
            bias: next_operand(inputs),
            initial_state: next_operand(inputs),
            initial_cell: optional_operand(inputs, is_lstm),
            projection: optional_operand(inputs, self.projected),
            lengths: optional_operand(inputs, self.lengths),
            gates: next_operand(outputs),
            states: next_operand(outputs),
            cells: optional_operand(outputs, is_lstm),
        }
    }

    /// Returns the operands of a kernel with the part [`RecurrentPart::Gradient`] by name.
    ///
    /// # Panics
    /// If there are too few operands.
    pub fn gradient_operands<'o, I, O>(
        &self,
        inputs: &'o [I],
        outputs: &'o [O],
    ) -> RecurrentGradientOperands<'o, I, O> {
        let (inputs, outputs, is_lstm) = (&mut inputs.iter(), &mut outputs.iter(), self.cell == RnnMode::Lstm);
        RecurrentGradientOperands {
            gates: next_operand(inputs),
            states: next_operand(inputs),
            weights: next_operand(inputs),
            state_grads: next_operand(inputs),
            final_state_grad: next_operand(inputs),
            cells: optional_operand(inputs, is_lstm),
            final_cell_grad: optional_operand(inputs, is_lstm),
            projection: optional_operand(inputs, self.projected),
            lengths: optional_operand(inputs, self.lengths),
            gate_grads: next_operand(outputs),
            initial_state_grad: next_operand(outputs),
            initial_cell_grad: optional_operand(outputs, is_lstm),
            total_grads: optional_operand(outputs, self.projected),
        }
    }

    /// Returns the lengths, which are the last input; `None` if all sequences have T time steps.
    pub fn lengths<'o, O>(&self, inputs: &'o [O]) -> Option<&'o O> {
        inputs.last().filter(|_| self.lengths)
    }

    /// Returns the number of inputs.
    pub fn inputs(&self) -> usize {
        let arrays = match (self.part, self.cell) {
            (RecurrentPart::States, RnnMode::Lstm) => 5,
            (RecurrentPart::States, _) => 4,
            (RecurrentPart::Gradient, RnnMode::Lstm) => 7,
            (RecurrentPart::Gradient, _) => 5,
        };
        arrays + usize::from(self.projected) + usize::from(self.lengths)
    }

    /// Returns the number of outputs.
    pub fn outputs(&self) -> usize {
        let gradient = self.part == RecurrentPart::Gradient;
        2 + usize::from(self.cell == RnnMode::Lstm) + usize::from(gradient && self.projected)
    }

    /// Returns T, N, H and P, read from the shapes of the gates and of W; `None` if these shapes do not fit the cell.
    pub fn sizes(&self, inputs: &[Meta]) -> Option<RecurrentSizes> {
        let w = match self.part {
            RecurrentPart::States => &inputs[1],
            RecurrentPart::Gradient => &inputs[2],
        };
        let (&[steps, batch, width], &[_, state]) = (inputs[0].shape.dims(), w.shape.dims()) else { return None };
        let hidden = width / self.cell.blocks();
        let fits = self.projected && self.cell == RnnMode::Lstm || !self.projected && state == hidden;
        fits.then_some(RecurrentSizes { steps, batch, hidden, state })
    }

    /// Returns shape and dtype of every output.
    fn outputs_for(&self, inputs: &[Meta]) -> Result<Metas> {
        let shape_error = || {
            Error::shapes(
                self.op,
                inputs.iter().map(|m| &m.shape),
                format!(
                    "the number or the shapes of the inputs do not match the cell and the part, which have {} inputs; \
                     `kernel::Recurrent` documents the shapes",
                    self.inputs()
                ),
            )
        };
        let sizes = self.sizes(inputs).filter(|_| inputs.len() == self.inputs()).ok_or_else(shape_error)?;
        let RecurrentSizes { steps, batch, hidden, state } = sizes;
        let (gates, blocks, lstm) =
            (self.cell.gates() * hidden, self.cell.blocks() * hidden, self.cell == RnnMode::Lstm);
        let all = steps.checked_add(1).ok_or_else(shape_error)?;
        let mut expected_shapes: Vec<Shape> = match self.part {
            RecurrentPart::States => {
                vec![[steps, batch, blocks].into(), [gates, state].into(), [blocks].into(), [batch, state].into()]
            }
            RecurrentPart::Gradient => vec![
                [steps, batch, blocks].into(),
                [all, batch, state].into(),
                [gates, state].into(),
                [steps, batch, state].into(),
                [batch, state].into(),
            ],
        };
        if lstm && self.part == RecurrentPart::Gradient {
            expected_shapes.push([all, batch, hidden].into());
        }
        if lstm {
            expected_shapes.push([batch, hidden].into());
        }
        if self.projected {
            expected_shapes.push([state, hidden].into());
        }
        let floats = expected_shapes.len();
        if self.lengths {
            expected_shapes.push([batch].into());
        }
        if expected_shapes.iter().zip(inputs).any(|(shape, input)| *shape != input.shape) {
            return Err(shape_error());
        }
        let dtype = inputs[0].dtype;
        let typed = are_factor_dtypes(dtype, self.half_factors)
            && inputs[..floats].iter().all(|m| m.dtype == dtype)
            && inputs[floats..].iter().all(|m| m.dtype == DType::I64);
        if !typed {
            let help =
                "operands must be f32, or f64 without half-precision factors, and lengths must be i64; use to_dtype()";
            return Err(Error::dtypes(self.op, inputs.iter().map(|m| m.dtype), help));
        }
        let meta = |shape: Shape| Meta { shape, dtype };
        let mut outputs: Metas = match self.part {
            RecurrentPart::States => {
                smallvec![inputs[0].clone(), meta([all, batch, state].into())]
            }
            RecurrentPart::Gradient => smallvec![inputs[0].clone(), meta([batch, state].into())],
        };
        match self.part {
            RecurrentPart::States if lstm => outputs.push(meta([all, batch, hidden].into())),
            RecurrentPart::Gradient if lstm => outputs.push(meta([batch, hidden].into())),
            _ => {}
        }
        if self.projected && self.part == RecurrentPart::Gradient {
            outputs.push(meta([steps, batch, state].into()));
        }
        Ok(outputs)
    }
}

impl Family for Recurrent {
    const FAMILY: &'static str = "recurrent";

    fn info(&self) -> FamilyInfo {
        FamilyInfo {
            // Only the gate activations can overwrite x in place: the other outputs have T + 1 steps, so their layout
            // differs.
            reads: match self.part {
                RecurrentPart::States => ReadOrder::FirstElementwise,
                RecurrentPart::Gradient => ReadOrder::Anywhere,
            },
            is_compute_bound: true,
            rejects_values: self.lengths,
            ..FamilyInfo::new(self.inputs(), self.outputs())
        }
    }

    fn infer(&self, inputs: &[Meta]) -> Result<Metas> {
        self.outputs_for(inputs)
    }

    fn check<O: KernelOperand>(&self, inputs: &[O], outputs: &[O]) -> Result<()> {
        let rule = "the outputs must be contiguous and have the shapes and dtypes inferred from the inputs";
        check_outputs(self.op, outputs, &self.outputs_for(&metas(inputs))?, Layout::is_contiguous, rule)
    }

    /// Counts the products with the weights only; the gate arithmetic is negligible.
    fn flops(&self, inputs: &[Meta], _: &[Meta]) -> u64 {
        self.sizes(inputs).map_or(0, |s| {
            let rows = self.cell.gates() + usize::from(self.projected);
            2 * (s.steps * s.batch * s.hidden * s.state * rows) as u64
        })
    }
}
