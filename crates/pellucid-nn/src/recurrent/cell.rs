//! The recurrent cells, one time step of a recurrent layer: one implementation, named [`RnnCell`], [`GruCell`] and
//! [`LstmCell`] by their kind.

use super::call_with_states;
use super::kind::sealed::StateTensors;
use super::kind::{CellKind, Elman, GatedRecurrentUnit, LongShortTermMemory, RecurrentKind};
use super::weights::LayerWeights;
use crate::call;
use crate::module::{Module, display_as_tree};
use crate::visit::{Visit, Visitor};
use pellucid_derive::panicking_form;
use pellucid_tensor::ops::{RecurrenceOptions, RnnNonlinearity};
use pellucid_tensor::{Error, Result, Tensor, ops, unwrap};
use std::marker::PhantomData;

/// One time step of a [`RecurrentNetwork`](crate::RecurrentNetwork); see [`RnnCell`], [`GruCell`] and [`LstmCell`].
///
/// Inputs are `[N, I]`, states `[N, H]`; for a single sequence `[I]` and `[H]`. All weights are initialized uniformly
/// on ±1/√hidden.
#[derive(Clone, Debug)]
pub struct RecurrentCell<K: RecurrentKind> {
    cell: CellKind,
    weights: LayerWeights,
    kind: PhantomData<K>,
}

/// One time step of an [`Rnn`](crate::Rnn): h′ = f(W_ih·x + b_ih + W_hh·h + b_hh), f being tanh or relu.
///
/// ```
/// use pellucid::nn::{RnnCell, RnnNonlinearity};
/// use pellucid::{DType, Tensor};
/// let (cell, x) = (RnnCell::new(3, 4).nonlinearity(RnnNonlinearity::Relu), Tensor::randn([2, 3], DType::F32));
/// let h = cell.forward(&x, None);
/// assert_eq!(cell.forward(&x, Some(&h)).shape().dims(), [2, 4]);
/// ```
#[doc(alias = "RNNCell")]
pub type RnnCell = RecurrentCell<Elman>;

/// One time step of a [`Gru`](crate::Gru):
///
/// ```text
/// r = σ(W_ir·x + b_ir + W_hr·h + b_hr)    n = tanh(W_in·x + b_in + r·(W_hn·h + b_hn))
/// z = σ(W_iz·x + b_iz + W_hz·h + b_hz)    h′ = (1 − z)·n + z·h
/// ```
///
/// ```
/// use pellucid::nn::GruCell;
/// use pellucid::{DType, Tensor};
/// let (cell, x) = (GruCell::new(3, 4), Tensor::randn([2, 3], DType::F32));
/// let h = cell.forward(&x, None);
/// assert_eq!(cell.forward(&x, Some(&h)).shape().dims(), [2, 4]);
/// ```
#[doc(alias = "GRUCell")]
pub type GruCell = RecurrentCell<GatedRecurrentUnit>;

/// One time step of an [`Lstm`](crate::Lstm), with the states h and c:
///
/// ```text
/// i = σ(W_ii·x + b_ii + W_hi·h + b_hi)    g = tanh(W_ig·x + b_ig + W_hg·h + b_hg)    c′ = f·c + i·g
/// f = σ(W_if·x + b_if + W_hf·h + b_hf)    o = σ(W_io·x + b_io + W_ho·h + b_ho)       h′ = o·tanh(c′)
/// ```
///
/// ```
/// use pellucid::nn::LstmCell;
/// use pellucid::{DType, Tensor};
/// let (cell, x) = (LstmCell::new(3, 4), Tensor::randn([2, 3], DType::F32));
/// let state = cell.forward(&x, None);
/// let (h, c) = cell.forward(&x, Some(&state));
/// assert_eq!((h.shape().dims(), c.shape().dims()), ([2, 4].as_slice(), [2, 4].as_slice()));
/// ```
#[doc(alias = "LSTMCell")]
pub type LstmCell = RecurrentCell<LongShortTermMemory>;

impl RnnCell {
    /// Sets the nonlinearity f, by default tanh.
    #[must_use]
    pub fn nonlinearity(self, nonlinearity: RnnNonlinearity) -> RnnCell {
        RecurrentCell { cell: CellKind::Rnn(nonlinearity), ..self }
    }
}

impl<K: RecurrentKind> RecurrentCell<K> {
    /// Creates a cell from `input` to `hidden` features; an [`RnnCell`] uses tanh.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    #[panicking_form]
    pub fn try_new(input: usize, hidden: usize) -> Result<RecurrentCell<K>> {
        let weights = LayerWeights::new(K::CELL, input, hidden, true, None)?;
        Ok(RecurrentCell { cell: K::CELL, weights, kind: PhantomData })
    }

    /// Sets whether the cell has biases. Added biases are initialized as in [`new`](RecurrentCell::new).
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    #[panicking_form]
    pub fn try_bias(self, bias: bool) -> Result<RecurrentCell<K>> {
        Ok(RecurrentCell { weights: self.weights.with_biases(K::CELL, bias)?, ..self })
    }

    /// Returns the number of input features.
    pub fn input(&self) -> usize {
        self.weights.input()
    }

    /// Returns the number of hidden features.
    pub fn hidden(&self) -> usize {
        self.weights.hidden(K::CELL)
    }

    /// Returns the next state. `None` as the current state means zeros.
    ///
    /// # Errors
    /// The errors of [`ops::rnn`], [`ops::gru`] or [`ops::lstm`].
    #[panicking_form]
    pub fn try_forward(&self, x: &Tensor, state: Option<&K::State>) -> Result<K::State> {
        let states = state.map_or([None; 2], K::State::tensors);
        let (h, c) = call_with_states(self, x, states, |x| {
            call::name_layer(self.cell.names().cell, run_step(self.cell, &self.weights, x, states))
        })?;
        Ok(K::State::from_tensors(h, c))
    }
}

impl<K: RecurrentKind> Module for RecurrentCell<K> {}

impl<K: RecurrentKind> Visit for RecurrentCell<K> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.module_as(self, K::CELL.names().cell_class, None);
        self.weights.visit(visitor, "");
    }
}

display_as_tree! {
    [K: RecurrentKind] RecurrentCell<K>;
}

/// Runs a cell on x `[N, I]` and states `[N, H]`, or on `[I]` and `[H]`, as a sequence of one step. Returns the next h,
/// and for an LSTM the next c.
fn run_step(
    cell: CellKind,
    weights: &LayerWeights,
    x: &Tensor,
    states: [Option<&Tensor>; 2],
) -> Result<(Tensor, Option<Tensor>)> {
    let run = |x: &Tensor, states: [Option<&Tensor>; 2]| {
        let (_, h, c) = cell.run(x, weights.borrowed(), states, RecurrenceOptions::default())?;
        Ok((h, c))
    };
    weights.check_dtypes(cell.names().cell, x, states)?;
    if x.rank() == 1 || x.rank() == 2 {
        weights.check_features(cell, cell.names().cell_class, x)?;
    }
    let batch = |t: &Tensor| ops::unsqueeze(t, 0);
    match x.rank() {
        2 => run(&batch(x)?, states),
        1 => {
            let [h, c] = states.map(|state| state.map(batch).transpose());
            let (h, c) = run(&batch(&batch(x)?)?, [h?.as_ref(), c?.as_ref()])?;
            Ok((ops::squeeze(&h, 0)?, c.map(|c| ops::squeeze(&c, 0)).transpose()?))
        }
        _ => Err(Error::shapes(
            cell.names().cell,
            [x.shape()],
            "the input of a recurrent cell must have shape [N, I] or [I]",
        )),
    }
}
