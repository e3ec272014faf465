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

/// A recurrent network of one or more layers, over entire sequences; see [`Rnn`], [`Gru`] and [`Lstm`].
///
/// Sequences are `[T, N, I]`: time comes first, as in PyTorch. With
/// [`batch_first`](RecurrentNetwork::batch_first) they are `[N, T, I]`, the layout of attention and transformers in
/// this crate. `[T, I]` is one sequence. Outputs have the layout of the sequences, with K·H features, and states are
/// `[layers·K, N, H]` in both layouts, where K is the number of directions. As a [`Layer`] it starts from zeros and
/// returns the outputs. All weights are initialized uniformly on ±1/√hidden.
#[derive(Clone, Debug)]
pub struct RecurrentNetwork<K: RecurrentKind> {
    stack: RecurrentStack,
    kind: PhantomData<K>,
}

/// An Elman network (Elman 1990) of sequences `[T, N, I]`, or `[N, T, I]` with `batch_first`:
/// hₜ = f(W_ih·xₜ + b_ih + W_hh·hₜ₋₁ + b_hh), f being tanh or relu.
///
/// [`RecurrentNetwork`] lists the shapes.
///
/// ```
/// use pellucid::nn::Rnn;
/// use pellucid::{DType, Tensor};
/// let rnn = Rnn::new(3, 4);
/// let x = Tensor::randn([5, 2, 3], DType::F32);
/// let (y, h) = rnn.forward_sequence(&x, None);
/// assert_eq!((y.shape().dims(), h.shape().dims()), ([5, 2, 4].as_slice(), [1, 2, 4].as_slice()));
/// let (_, h) = rnn.forward_sequence(&x, Some(&h));
/// assert_eq!(h.shape().dims(), [1, 2, 4]);
/// ```
#[doc(alias = "RNN")]
pub type Rnn = RecurrentNetwork<Elman>;

/// Gated recurrent units (Cho et al. 2014), with the reset gate applied after the product W_hn·h, as in
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
/// use pellucid::nn::{Gru, pack_sequence};
/// use pellucid::{DType, Tensor};
/// let gru = Gru::new(3, 4).bidirectional(true);
/// let (long, short) = (Tensor::randn([5, 3], DType::F32), Tensor::randn([2, 3], DType::F32));
/// let (y, h) = gru.forward_packed(&pack_sequence(&[&long, &short])?, None);
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
/// use pellucid::nn::Lstm;
/// use pellucid::{DType, Tensor};
/// let lstm = Lstm::new(3, 4).layers(2).batch_first(true);
/// let (y, (h, c)) = lstm.forward_sequence(&Tensor::randn([2, 5, 3], DType::F32), None);
/// assert_eq!(y.shape().dims(), [2, 5, 4]);
/// assert_eq!((h.shape().dims(), c.shape().dims()), ([2, 2, 4].as_slice(), [2, 2, 4].as_slice()));
/// # Ok::<(), pellucid::Error>(())
/// ```
#[doc(alias = "LSTM")]
pub type Lstm = RecurrentNetwork<LongShortTermMemory>;

impl Rnn {
    /// Sets the nonlinearity f, by default tanh.
    #[must_use]
    pub fn nonlinearity(self, nonlinearity: RnnNonlinearity) -> Rnn {
        RecurrentNetwork { stack: self.stack.with_cell(CellKind::Rnn(nonlinearity)), ..self }
    }
}

impl Lstm {
    /// Sets the width to which the states h are projected (Sak et al. 2014), or `None` for no projection, the default.
    /// If the width changes, all weights are initialized again.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](pellucid_tensor::Error::OutOfMemory).
    #[doc(alias = "proj_size")]
    #[panicking_form]
    pub fn try_projection(self, width: impl Into<Option<usize>>) -> Result<Lstm> {
        let width = width.into();
        self.changed(|options| options.projection = width)
    }
}

impl<K: RecurrentKind> RecurrentNetwork<K> {
    /// Creates one layer from `input` to `hidden` features in one direction, with biases; an [`Rnn`] uses tanh.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](pellucid_tensor::Error::OutOfMemory).
    #[panicking_form]
    pub fn try_new(input: usize, hidden: usize) -> Result<RecurrentNetwork<K>> {
        Ok(RecurrentNetwork { stack: RecurrentStack::new(K::CELL, input, hidden)?, kind: PhantomData })
    }

    /// Sets the number of layers, by default 1; each reads the outputs of the previous layer. Added layers are
    /// initialized randomly.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](pellucid_tensor::Error::InvalidArgument) for zero layers;
    /// [`Error::OutOfMemory`](pellucid_tensor::Error::OutOfMemory).
    #[doc(alias = "num_layers")]
    #[panicking_form]
    pub fn try_layers(self, layers: usize) -> Result<RecurrentNetwork<K>> {
        self.changed(|options| options.layers = layers)
    }

    /// Sets whether there are biases. Added biases are initialized as in [`new`](RecurrentNetwork::new).
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](pellucid_tensor::Error::OutOfMemory).
    #[panicking_form]
    pub fn try_bias(self, bias: bool) -> Result<RecurrentNetwork<K>> {
        self.changed(|options| options.bias = bias)
    }

    /// Sets whether sequences are `[N, T, I]` instead of `[T, N, I]`; default false. States are `[.., N, H]` in both
    /// cases.
    #[must_use]
    pub fn batch_first(self, batch_first: bool) -> RecurrentNetwork<K> {
        RecurrentNetwork { stack: self.stack.with_batch_first(batch_first), ..self }
    }

    /// Sets the probability of dropping an output in training, in all layers but the last; default 0.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](pellucid_tensor::Error::InvalidArgument) for a probability outside [0, 1].
    #[panicking_form]
    pub fn try_dropout(self, dropout: f64) -> Result<RecurrentNetwork<K>> {
        self.changed(|options| options.dropout = dropout)
    }

    /// Sets whether each layer also has a reverse direction; default false. Outputs are concatenated along the last
    /// axis. The weights of an added direction are initialized, and the weights of later layers, whose input width
    /// changes, are initialized again.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](pellucid_tensor::Error::OutOfMemory).
    #[panicking_form]
    pub fn try_bidirectional(self, bidirectional: bool) -> Result<RecurrentNetwork<K>> {
        self.changed(|options| options.bidirectional = bidirectional)
    }

    #[track_caller]
    fn changed(self, change: impl FnOnce(&mut RecurrentOptions)) -> Result<RecurrentNetwork<K>> {
        let mut options = self.options();
        change(&mut options);
        self.try_with_options(options)
    }

    /// Sets all options. Weights whose shapes change are initialized again only once, even if several options change
    /// them.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](pellucid_tensor::Error::InvalidArgument) for an option out of its range;
    /// [`Error::OutOfMemory`](pellucid_tensor::Error::OutOfMemory).
    #[panicking_form]
    pub fn try_with_options(self, options: RecurrentOptions) -> Result<RecurrentNetwork<K>> {
        Ok(RecurrentNetwork { stack: self.stack.with_options(options)?, ..self })
    }

    /// Returns the options.
    pub fn options(&self) -> RecurrentOptions {
        self.stack.options()
    }

    /// Returns the number of input features.
    pub fn input(&self) -> usize {
        self.stack.input()
    }

    /// Returns the number of hidden features.
    pub fn hidden(&self) -> usize {
        self.stack.hidden()
    }

    /// Returns the outputs and the last state of every layer and direction. Without an initial state, all states start
    /// at zero.
    ///
    /// # Errors
    /// The errors of [`ops::rnn`](pellucid_tensor::ops::rnn), [`ops::gru`](pellucid_tensor::ops::gru) or
    /// [`ops::lstm`](pellucid_tensor::ops::lstm).
    #[panicking_form]
    pub fn try_forward_sequence(&self, x: &Tensor, state: Option<&K::State>) -> Result<(Tensor, K::State)> {
        self.run_sequences(x, state, None)
    }

    /// Runs padded sequences of these lengths, integers `[N]` (see [`pad_sequence`](crate::pad_sequence)). The last
    /// state of a sequence is the state after its last element, where the reverse direction starts. Outputs for the
    /// padding are 0.
    ///
    /// # Errors
    /// The errors of [`try_forward_sequence`](RecurrentNetwork::try_forward_sequence); also an error for lengths that
    /// are not integers `[N]` of at most T.
    #[panicking_form]
    pub fn try_forward_padded(
        &self,
        x: &Tensor,
        lengths: &Tensor,
        state: Option<&K::State>,
    ) -> Result<(Tensor, K::State)> {
        self.run_sequences(x, state, Some(lengths))
    }

    /// Runs packed sequences (see [`pack_sequence`](crate::pack_sequence)), as
    /// [`try_forward_padded`](RecurrentNetwork::try_forward_padded) runs padded ones.
    /// [`batch_first`](RecurrentNetwork::batch_first) has no effect.
    ///
    /// # Errors
    /// The errors of [`try_forward_padded`](RecurrentNetwork::try_forward_padded).
    #[panicking_form]
    pub fn try_forward_packed(
        &self,
        x: &PackedSequence,
        state: Option<&K::State>,
    ) -> Result<(PackedSequence, K::State)> {
        let PackedSequence { padded, lengths } = x;
        let (y, state) = match self.stack.options().batch_first && padded.rank() > 1 {
            true => {
                let (y, state) = self.try_forward_padded(&ops::transpose(padded, 0, 1)?, lengths, state)?;
                (ops::transpose(&y, 0, 1)?, state)
            }
            false => self.try_forward_padded(padded, lengths, state)?,
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
        let (y, (h, c)) = call_with_states(self, x, states, |x| {
            let (y, h, c) = self.stack.run(x, states, lengths)?;
            Ok((y, (h, c)))
        })?;
        Ok((y, K::State::from_tensors(h, c)))
    }
}

impl<K: RecurrentKind> Module for RecurrentNetwork<K> {}

impl<K: RecurrentKind> Visit for RecurrentNetwork<K> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.module_as(self, K::CELL.names().layer_class, None);
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
