//! The recurrent layers: one implementation, named [`Rnn`], [`Gru`] and [`Lstm`] by the kind of cell.

use super::call_with_states;
use super::kind::sealed::StateTensors;
use super::kind::{CellKind, Elman, GatedRecurrentUnit, LongShortTermMemory, RecurrentKind};
use super::sequence::PackedSequence;
use super::stack::{RecurrentOptions, RecurrentStack};
use crate::layer::Layer;
use crate::module::{Module, display_as_tree};
use crate::visit::{Visit, Visitor};
use pellucid_derive::panicking_form;
use pellucid_tensor::ops::RnnNonlinearity;
use pellucid_tensor::{Result, Tensor, ops, unwrap};
use std::marker::PhantomData;

/// A recurrent network of one layer or several, over entire sequences; see [`Rnn`], [`Gru`] and [`Lstm`].
///
/// Sequences are `[T, N, I]` (`[N, T, I]` with `batch_first`; `[T, I]` is one sequence), outputs `[T, N, K·H]`, and
/// states `[layers·K, N, H]`, where K is the number of directions. As a [`Layer`] it starts from zeros and returns the
/// outputs. All weights are initialized uniformly on ±1/√hidden.
#[derive(Clone, Debug)]
pub struct RecurrentNetwork<K: RecurrentKind> {
    stack: RecurrentStack,
    kind: PhantomData<K>,
}

/// An Elman network (Elman 1990): hₜ = f(W_ih·xₜ + b_ih + W_hh·hₜ₋₁ + b_hh), f being tanh or relu.
///
/// [`RecurrentNetwork`] lists the shapes.
///
/// ```
/// use pellucid::nn::Rnn;
/// use pellucid::{DType, Tensor};
/// let rnn = Rnn::new(3, 4);
/// let x = Tensor::randn([5, 2, 3], DType::F32);
/// let (y, h) = rnn.run(&x, None);
/// assert_eq!((y.shape().dims(), h.shape().dims()), ([5, 2, 4].as_slice(), [1, 2, 4].as_slice()));
/// let (_, h) = rnn.run(&x, Some(&h));
/// assert_eq!(h.shape().dims(), [1, 2, 4]);
/// ```
#[doc(alias = "RNN")]
pub type Rnn = RecurrentNetwork<Elman>;

/// Gated recurrent units (Cho et al. 2014), with the reset gate applied after the product, as in
/// [`ops::gru`](pellucid_tensor::ops::gru):
///
/// ```text
/// r = σ(W_ir·x + b_ir + W_hr·h + b_hr)    n = tanh(W_in·x + b_in + r·(W_hn·h + b_hn))
/// z = σ(W_iz·x + b_iz + W_hz·h + b_hz)    h′ = (1 − z)·n + z·h
/// ```
///
/// [`RecurrentNetwork`] lists the shapes.
///
/// ```
/// use pellucid::nn::{Gru, RecurrentOptions, pack_sequence};
/// use pellucid::{DType, Tensor};
/// let gru = Gru::with(3, 4, RecurrentOptions { bidirectional: true, ..Default::default() });
/// let (long, short) = (Tensor::randn([5, 3], DType::F32), Tensor::randn([2, 3], DType::F32));
/// let (y, h) = gru.run_packed(&pack_sequence(&[&long, &short])?, None);
/// assert_eq!((y.padded.shape().dims(), h.shape().dims()), ([5, 2, 8].as_slice(), [2, 2, 4].as_slice()));
/// # Ok::<(), pellucid::Error>(())
/// ```
#[doc(alias = "GRU")]
pub type Gru = RecurrentNetwork<GatedRecurrentUnit>;

/// Long short-term memory (Hochreiter & Schmidhuber 1997, Gers et al. 2000), as in
/// [`ops::lstm`](pellucid_tensor::ops::lstm):
///
/// ```text
/// i = σ(W_ii·x + b_ii + W_hi·h + b_hi)    g = tanh(W_ig·x + b_ig + W_hg·h + b_hg)    c′ = f·c + i·g
/// f = σ(W_if·x + b_if + W_hf·h + b_hf)    o = σ(W_io·x + b_io + W_ho·h + b_ho)       h′ = o·tanh(c′)
/// ```
///
/// [`RecurrentNetwork`] lists the shapes; the states are h and c. With a projection to P features,
/// h′ = W_hr·(o·tanh(c′)) (Sak et al. 2014), outputs are `[T, N, K·P]` and h is `[layers·K, N, P]`.
///
/// ```
/// use pellucid::nn::{Lstm, RecurrentOptions};
/// use pellucid::{DType, Tensor};
/// let lstm = Lstm::with(3, 4, RecurrentOptions { layers: 2, batch_first: true, ..Default::default() });
/// let (y, (h, c)) = lstm.run(&Tensor::randn([2, 5, 3], DType::F32), None);
/// assert_eq!(y.shape().dims(), [2, 5, 4]);
/// assert_eq!((h.shape().dims(), c.shape().dims()), ([2, 2, 4].as_slice(), [2, 2, 4].as_slice()));
/// # Ok::<(), pellucid::Error>(())
/// ```
#[doc(alias = "LSTM")]
pub type Lstm = RecurrentNetwork<LongShortTermMemory>;

impl Rnn {
    /// Creates layers with options and a nonlinearity.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](pellucid_tensor::Error::InvalidArgument) for zero layers, a dropout outside [0, 1],
    /// or a projection.
    #[panicking_form]
    pub fn try_with(
        input: usize,
        hidden: usize,
        nonlinearity: RnnNonlinearity,
        options: RecurrentOptions,
    ) -> Result<Rnn> {
        Rnn::of_cell(CellKind::Rnn(nonlinearity), input, hidden, options)
    }
}

impl Gru {
    /// Creates layers with options.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](pellucid_tensor::Error::InvalidArgument) for zero layers, a dropout outside [0, 1],
    /// or a projection.
    #[panicking_form]
    pub fn try_with(input: usize, hidden: usize, options: RecurrentOptions) -> Result<Gru> {
        Gru::of_cell(CellKind::Gru, input, hidden, options)
    }
}

impl Lstm {
    /// Creates layers with options.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](pellucid_tensor::Error::InvalidArgument) for zero layers or a dropout outside [0, 1].
    #[panicking_form]
    pub fn try_with(input: usize, hidden: usize, options: RecurrentOptions) -> Result<Lstm> {
        Lstm::of_cell(CellKind::Lstm, input, hidden, options)
    }
}

impl<K: RecurrentKind> RecurrentNetwork<K> {
    /// Creates one layer from `input` to `hidden` features; an [`Rnn`] has tanh.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](pellucid_tensor::Error::OutOfMemory).
    #[panicking_form]
    pub fn try_new(input: usize, hidden: usize) -> Result<RecurrentNetwork<K>> {
        RecurrentNetwork::of_cell(K::CELL, input, hidden, RecurrentOptions::default())
    }

    #[track_caller]
    fn of_cell(cell: CellKind, input: usize, hidden: usize, options: RecurrentOptions) -> Result<RecurrentNetwork<K>> {
        Ok(RecurrentNetwork { stack: RecurrentStack::new(cell, input, hidden, options)?, kind: PhantomData })
    }

    /// Returns the outputs and the last state of every layer and direction. Without an initial state, it starts from
    /// zeros.
    ///
    /// # Errors
    /// The errors of [`ops::rnn`](pellucid_tensor::ops::rnn), [`ops::gru`](pellucid_tensor::ops::gru) or
    /// [`ops::lstm`](pellucid_tensor::ops::lstm).
    #[panicking_form]
    pub fn try_run(&self, x: &Tensor, state: Option<&K::State>) -> Result<(Tensor, K::State)> {
        self.run_sequences(x, state, None)
    }

    /// Runs padded sequences of these lengths, integers `[N]` (see [`pad_sequence`](crate::pad_sequence)). The
    /// last state of a sequence is the state at its own end, where the reverse direction starts. Outputs after the end
    /// are 0.
    ///
    /// # Errors
    /// The errors of [`try_run`](RecurrentNetwork::try_run); also an error for lengths that are not integers `[N]` of
    /// at most T.
    #[panicking_form]
    pub fn try_run_padded(&self, x: &Tensor, lengths: &Tensor, state: Option<&K::State>) -> Result<(Tensor, K::State)> {
        self.run_sequences(x, state, Some(lengths))
    }

    /// Runs packed sequences (see [`pack_sequence`](crate::pack_sequence)) as
    /// [`try_run_padded`](RecurrentNetwork::try_run_padded). The option `batch_first` has no effect.
    ///
    /// # Errors
    /// The errors of [`try_run_padded`](RecurrentNetwork::try_run_padded).
    #[panicking_form]
    pub fn try_run_packed(&self, x: &PackedSequence, state: Option<&K::State>) -> Result<(PackedSequence, K::State)> {
        let PackedSequence { padded, lengths } = x;
        let (y, state) = match self.stack.is_batch_first() && padded.rank() > 1 {
            true => {
                let (y, state) = self.try_run_padded(&ops::transpose(padded, 0, 1)?, lengths, state)?;
                (ops::transpose(&y, 0, 1)?, state)
            }
            false => self.try_run_padded(padded, lengths, state)?,
        };
        Ok((PackedSequence { padded: y, lengths: lengths.clone() }, state))
    }

    fn run_sequences(
        &self,
        x: &Tensor,
        state: Option<&K::State>,
        lengths: Option<&Tensor>,
    ) -> Result<(Tensor, K::State)> {
        let states = state.map_or([None; 2], K::State::tensors);
        let (y, (h, c)) = call_with_states(self, x, states, || {
            let (y, h, c) = self.stack.run(x, states, lengths)?;
            Ok((y, (h, c)))
        })?;
        Ok((y, K::State::from_tensors(h, c)))
    }
}

impl<K: RecurrentKind> Module for RecurrentNetwork<K> {}

impl<K: RecurrentKind> Visit for RecurrentNetwork<K> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.module_as(self, K::CELL.classes()[0], None);
        self.stack.visit(visitor);
    }
}

display_as_tree! {
    [K: RecurrentKind] RecurrentNetwork<K>;
}

impl<K: RecurrentKind> Layer for RecurrentNetwork<K> {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        Ok(self.stack.run(x, [None; 2], None)?.0)
    }
}
