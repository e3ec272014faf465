//! Recurrent cells: one time step of a recurrent layer.

use super::called;
use super::layers::LstmState;
use super::weights::LayerWeights;
use crate::module::Module;
use crate::visit::Visitor;
use pellucid_tensor::ops::{Nonlinearity, Recurrence};
use pellucid_tensor::{Error, Result, Tensor, ops, unwrap};

/// One time step of an [`Rnn`](crate::Rnn): h′ = f(W_ih·x + b_ih + W_hh·h + b_hh).
///
/// Inputs are `[N, I]`, states `[N, H]`; for a single sequence `[I]` and `[H]`.
#[derive(Clone, Debug)]
pub struct RnnCell {
    weights: LayerWeights,
    nonlinearity: Nonlinearity,
}

impl Module for RnnCell {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.module(self, None);
        self.weights.visit(visitor, "");
    }
}

impl RnnCell {
    /// Creates a cell from `input` to `hidden` features, with tanh; all weights are initialised uniformly on
    /// ±1/√hidden.
    ///
    /// # Panics
    /// With [`Error::OutOfMemory`].
    #[track_caller]
    pub fn new(input: usize, hidden: usize) -> RnnCell {
        RnnCell { weights: LayerWeights::new(1, input, hidden, true, None), nonlinearity: Nonlinearity::Tanh }
    }

    /// Creates a cell as [`new`](RnnCell::new) does, without biases.
    ///
    /// # Panics
    /// With [`Error::OutOfMemory`].
    #[track_caller]
    pub fn without_bias(input: usize, hidden: usize) -> RnnCell {
        RnnCell { weights: LayerWeights::new(1, input, hidden, false, None), nonlinearity: Nonlinearity::Tanh }
    }

    /// Uses max(x, 0) instead of tanh.
    #[must_use]
    pub fn relu(mut self) -> RnnCell {
        self.nonlinearity = Nonlinearity::Relu;
        self
    }

    /// Returns the next state; without a state, from zeros.
    ///
    /// # Panics
    /// With the errors of [`try_forward`](RnnCell::try_forward).
    #[track_caller]
    pub fn forward(&self, x: &Tensor, state: Option<&Tensor>) -> Tensor {
        let _call = pellucid_tensor::called();
        unwrap(self.try_forward(x, state))
    }

    /// Returns the result of [`forward`](RnnCell::forward), or its error.
    ///
    /// # Errors
    /// Those of [`ops::rnn`].
    pub fn try_forward(&self, x: &Tensor, state: Option<&Tensor>) -> Result<Tensor> {
        let cell = |x: &Tensor, [h]: [Option<&Tensor>; 1]| {
            Ok([ops::rnn(x, self.weights.borrowed(), h, self.nonlinearity, Recurrence::default())?.1])
        };
        let (h, ()) = called(self, x, [state, None], || step(x, [state], cell).map(|[h]| (h, ())))?;
        Ok(h)
    }
}

/// One time step of a [`Gru`](crate::Gru).
///
/// Inputs are `[N, I]`, states `[N, H]`; for a single sequence `[I]` and `[H]`.
#[derive(Clone, Debug)]
pub struct GruCell {
    weights: LayerWeights,
}

impl Module for GruCell {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.module(self, None);
        self.weights.visit(visitor, "");
    }
}

impl GruCell {
    /// Creates a cell from `input` to `hidden` features; all weights are initialised uniformly on ±1/√hidden.
    ///
    /// # Panics
    /// With [`Error::OutOfMemory`].
    #[track_caller]
    pub fn new(input: usize, hidden: usize) -> GruCell {
        GruCell { weights: LayerWeights::new(3, input, hidden, true, None) }
    }

    /// Creates a cell as [`new`](GruCell::new) does, without biases.
    ///
    /// # Panics
    /// With [`Error::OutOfMemory`].
    #[track_caller]
    pub fn without_bias(input: usize, hidden: usize) -> GruCell {
        GruCell { weights: LayerWeights::new(3, input, hidden, false, None) }
    }

    /// Returns the next state; without a state, from zeros.
    ///
    /// # Panics
    /// With the errors of [`try_forward`](GruCell::try_forward).
    #[track_caller]
    pub fn forward(&self, x: &Tensor, state: Option<&Tensor>) -> Tensor {
        let _call = pellucid_tensor::called();
        unwrap(self.try_forward(x, state))
    }

    /// Returns the result of [`forward`](GruCell::forward), or its error.
    ///
    /// # Errors
    /// Those of [`ops::gru`].
    pub fn try_forward(&self, x: &Tensor, state: Option<&Tensor>) -> Result<Tensor> {
        let cell = |x: &Tensor, [h]: [Option<&Tensor>; 1]| {
            Ok([ops::gru(x, self.weights.borrowed(), h, Recurrence::default())?.1])
        };
        let (h, ()) = called(self, x, [state, None], || step(x, [state], cell).map(|[h]| (h, ())))?;
        Ok(h)
    }
}

/// One time step of an [`Lstm`](crate::Lstm).
///
/// Inputs are `[N, I]`, states h and c `[N, H]`; for a single sequence `[I]` and `[H]`.
#[derive(Clone, Debug)]
pub struct LstmCell {
    weights: LayerWeights,
}

impl Module for LstmCell {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.module(self, None);
        self.weights.visit(visitor, "");
    }
}

impl LstmCell {
    /// Creates a cell from `input` to `hidden` features; all weights are initialised uniformly on ±1/√hidden.
    ///
    /// # Panics
    /// With [`Error::OutOfMemory`].
    #[track_caller]
    pub fn new(input: usize, hidden: usize) -> LstmCell {
        LstmCell { weights: LayerWeights::new(4, input, hidden, true, None) }
    }

    /// Creates a cell as [`new`](LstmCell::new) does, without biases.
    ///
    /// # Panics
    /// With [`Error::OutOfMemory`].
    #[track_caller]
    pub fn without_bias(input: usize, hidden: usize) -> LstmCell {
        LstmCell { weights: LayerWeights::new(4, input, hidden, false, None) }
    }

    /// Returns the next states; without states, from zeros.
    ///
    /// # Panics
    /// With the errors of [`try_forward`](LstmCell::try_forward).
    #[track_caller]
    pub fn forward(&self, x: &Tensor, state: Option<&LstmState>) -> LstmState {
        let _call = pellucid_tensor::called();
        unwrap(self.try_forward(x, state))
    }

    /// Returns the result of [`forward`](LstmCell::forward), or its error.
    ///
    /// # Errors
    /// Those of [`ops::lstm`].
    pub fn try_forward(&self, x: &Tensor, state: Option<&LstmState>) -> Result<LstmState> {
        let cell = |x: &Tensor, [h, c]: [Option<&Tensor>; 2]| {
            Ok(ops::lstm(x, self.weights.borrowed(), h.zip(c), Recurrence::default())?.1.into())
        };
        let states = [state.map(|s| &s.0), state.map(|s| &s.1)];
        called(self, x, states, || step(x, states, cell).map(|[h, c]| (h, c)))
    }
}

/// Runs a cell on x `[N, I]` and states `[N, H]`, or on `[I]` and `[H]`, as a sequence of one step. Returns the next
/// states.
fn step<const K: usize>(
    x: &Tensor,
    states: [Option<&Tensor>; K],
    cell: impl FnOnce(&Tensor, [Option<&Tensor>; K]) -> Result<[Tensor; K]>,
) -> Result<[Tensor; K]> {
    match x.rank() {
        2 => cell(&ops::unsqueeze(x, 0)?, states),
        1 => {
            let batch = |t: &Tensor| ops::unsqueeze(t, 0);
            let mut rows = [const { None }; K];
            for (row, state) in rows.iter_mut().zip(states) {
                *row = state.map(batch).transpose()?;
            }
            let mut next = cell(&batch(&batch(x)?)?, rows.each_ref().map(Option::as_ref))?;
            for state in &mut next {
                *state = ops::squeeze(state, 0)?;
            }
            Ok(next)
        }
        _ => Err(Error::shapes("recurrent_cell", [x.shape()], "the input of a step has shape [N, I] or [I]")),
    }
}
