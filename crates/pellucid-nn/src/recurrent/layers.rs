//! The recurrent layers `Rnn`, `Gru` and `Lstm`.

use super::called;
use super::stack::{CellKind, RecurrentOptions, RecurrentStack};
use crate::layer::Layer;
use crate::module::Module;
use crate::visit::Visitor;
use pellucid_tensor::ops::Nonlinearity;
use pellucid_tensor::{Result, Tensor, unwrap};

/// An Elman network (Elman 1990), of one layer or several: hₜ = f(W_ih·xₜ + b_ih + W_hh·hₜ₋₁ + b_hh), f being tanh or
/// relu.
///
/// Sequences are `[T, N, I]` (`[N, T, I]` with `batch_first`; `[T, I]` is one sequence), outputs `[T, N, K·H]`, and
/// states `[layers·K, N, H]`, where K is the number of directions. As a [`Layer`] it starts from zeros and returns the
/// outputs.
///
/// ```
/// use pellucid_nn::Rnn;
/// use pellucid_tensor::{DType, Tensor};
/// let rnn = Rnn::new(3, 4);
/// let x = Tensor::randn([5, 2, 3], DType::F32);
/// let (y, h) = rnn.run(&x, None);
/// assert_eq!((y.shape().dims(), h.shape().dims()), ([5, 2, 4].as_slice(), [1, 2, 4].as_slice()));
/// let (_, h) = rnn.run(&x, Some(&h));
/// assert_eq!(h.shape().dims(), [1, 2, 4]);
/// ```
#[derive(Clone, Debug)]
pub struct Rnn(RecurrentStack);

impl Module for Rnn {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.module(self, None);
        self.0.visit(visitor);
    }
}

impl Layer for Rnn {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        Ok(self.0.run(x, None, None, None)?.0)
    }
}

impl Rnn {
    /// Creates a layer with tanh from `input` to `hidden` features.
    ///
    /// # Panics
    /// With [`Error::OutOfMemory`](pellucid_tensor::Error::OutOfMemory).
    #[track_caller]
    pub fn new(input: usize, hidden: usize) -> Rnn {
        unwrap(Rnn::with(input, hidden, Nonlinearity::Tanh, RecurrentOptions::default()))
    }

    /// Creates layers with options and a nonlinearity. All weights are initialised uniformly on ±1/√hidden.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](pellucid_tensor::Error::InvalidArgument) for zero layers, a dropout outside [0, 1],
    /// or a projection.
    #[track_caller]
    pub fn with(input: usize, hidden: usize, nonlinearity: Nonlinearity, options: RecurrentOptions) -> Result<Rnn> {
        RecurrentStack::new(CellKind::Rnn(nonlinearity), input, hidden, options).map(Rnn)
    }

    /// Returns the outputs and the last state of every layer and direction. Without an initial state, it starts from
    /// zeros.
    ///
    /// # Panics
    /// With the errors of [`try_run`](Rnn::try_run).
    #[track_caller]
    pub fn run(&self, x: &Tensor, state: Option<&Tensor>) -> (Tensor, Tensor) {
        unwrap(self.try_run(x, state, None))
    }

    /// Runs padded sequences of these lengths, integers `[N]` (see [`pad_sequence`](crate::pad_sequence)). The
    /// last state of a sequence is the state at its own end, where the reverse direction starts. Outputs after the end
    /// are 0.
    ///
    /// # Panics
    /// With the errors of [`try_run`](Rnn::try_run).
    #[track_caller]
    pub fn run_packed(&self, x: &Tensor, lengths: &Tensor, state: Option<&Tensor>) -> (Tensor, Tensor) {
        unwrap(self.try_run(x, state, Some(lengths)))
    }

    /// Returns the result of [`run`](Rnn::run) or [`run_packed`](Rnn::run_packed), or its error.
    ///
    /// # Errors
    /// Those of [`ops::rnn`](pellucid_tensor::ops::rnn).
    pub fn try_run(&self, x: &Tensor, state: Option<&Tensor>, lengths: Option<&Tensor>) -> Result<(Tensor, Tensor)> {
        called(self, x, [state, None], || {
            let (y, h, _) = self.0.run(x, state, None, lengths)?;
            Ok((y, h))
        })
    }
}

/// Gated recurrent units (Cho et al. 2014), of one layer or several; see [`ops::gru`](pellucid_tensor::ops::gru).
///
/// Sequences are `[T, N, I]` (`[N, T, I]` with `batch_first`; `[T, I]` is one sequence), outputs `[T, N, K·H]`, and
/// states `[layers·K, N, H]`, where K is the number of directions. As a [`Layer`] it starts from zeros and returns the
/// outputs.
///
/// ```
/// use pellucid_nn::{Gru, RecurrentOptions, pad_sequence};
/// use pellucid_tensor::{DType, Tensor};
/// let gru = Gru::with(3, 4, RecurrentOptions { bidirectional: true, ..Default::default() })?;
/// let (long, short) = (Tensor::randn([5, 3], DType::F32), Tensor::randn([2, 3], DType::F32));
/// let (x, lengths) = pad_sequence(&[&long, &short], false, 0.0)?;
/// let (y, h) = gru.run_packed(&x, &lengths, None);
/// assert_eq!((y.shape().dims(), h.shape().dims()), ([5, 2, 8].as_slice(), [2, 2, 4].as_slice()));
/// # Ok::<(), pellucid_tensor::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Gru(RecurrentStack);

impl Module for Gru {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.module(self, None);
        self.0.visit(visitor);
    }
}

impl Layer for Gru {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        Ok(self.0.run(x, None, None, None)?.0)
    }
}

impl Gru {
    /// Creates a layer from `input` to `hidden` features.
    ///
    /// # Panics
    /// With [`Error::OutOfMemory`](pellucid_tensor::Error::OutOfMemory).
    #[track_caller]
    pub fn new(input: usize, hidden: usize) -> Gru {
        unwrap(Gru::with(input, hidden, RecurrentOptions::default()))
    }

    /// Creates layers with options. All weights are initialised uniformly on ±1/√hidden.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](pellucid_tensor::Error::InvalidArgument) for zero layers, a dropout outside [0, 1],
    /// or a projection.
    #[track_caller]
    pub fn with(input: usize, hidden: usize, options: RecurrentOptions) -> Result<Gru> {
        RecurrentStack::new(CellKind::Gru, input, hidden, options).map(Gru)
    }

    /// Returns the outputs and the last state of every layer and direction. Without an initial state, it starts from
    /// zeros.
    ///
    /// # Panics
    /// With the errors of [`try_run`](Gru::try_run).
    #[track_caller]
    pub fn run(&self, x: &Tensor, state: Option<&Tensor>) -> (Tensor, Tensor) {
        unwrap(self.try_run(x, state, None))
    }

    /// Runs padded sequences of these lengths, integers `[N]` (see [`pad_sequence`](crate::pad_sequence)). The
    /// last state of a sequence is the state at its own end, where the reverse direction starts. Outputs after the end
    /// are 0.
    ///
    /// # Panics
    /// With the errors of [`try_run`](Gru::try_run).
    #[track_caller]
    pub fn run_packed(&self, x: &Tensor, lengths: &Tensor, state: Option<&Tensor>) -> (Tensor, Tensor) {
        unwrap(self.try_run(x, state, Some(lengths)))
    }

    /// Returns the result of [`run`](Gru::run) or [`run_packed`](Gru::run_packed), or its error.
    ///
    /// # Errors
    /// Those of [`ops::gru`](pellucid_tensor::ops::gru).
    pub fn try_run(&self, x: &Tensor, state: Option<&Tensor>, lengths: Option<&Tensor>) -> Result<(Tensor, Tensor)> {
        called(self, x, [state, None], || {
            let (y, h, _) = self.0.run(x, state, None, lengths)?;
            Ok((y, h))
        })
    }
}

/// Long short-term memory (Hochreiter & Schmidhuber 1997), of one layer or several; see
/// [`ops::lstm`](pellucid_tensor::ops::lstm).
///
/// Sequences are `[T, N, I]` (`[N, T, I]` with `batch_first`; `[T, I]` is one sequence), outputs `[T, N, K·H]`, and
/// states h and c `[layers·K, N, H]`, where K is the number of directions. With a projection to P features, outputs are
/// `[T, N, K·P]` and h is `[layers·K, N, P]`. As a [`Layer`] it starts from zeros and returns the outputs.
///
/// ```
/// use pellucid_nn::{Lstm, RecurrentOptions};
/// use pellucid_tensor::{DType, Tensor};
/// let lstm = Lstm::with(3, 4, RecurrentOptions { layers: 2, batch_first: true, ..Default::default() })?;
/// let (y, (h, c)) = lstm.run(&Tensor::randn([2, 5, 3], DType::F32), None);
/// assert_eq!((y.shape().dims(), h.shape(), c.shape().dims()), ([2, 5, 4].as_slice(), c.shape(), [2, 2,
/// 4].as_slice()));
/// # Ok::<(), pellucid_tensor::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Lstm(RecurrentStack);

impl Module for Lstm {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.module(self, None);
        self.0.visit(visitor);
    }
}

impl Layer for Lstm {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        Ok(self.0.run(x, None, None, None)?.0)
    }
}

/// The states h and c of every layer and direction.
pub type LstmState = (Tensor, Tensor);

impl Lstm {
    /// Creates a layer from `input` to `hidden` features.
    ///
    /// # Panics
    /// With [`Error::OutOfMemory`](pellucid_tensor::Error::OutOfMemory).
    #[track_caller]
    pub fn new(input: usize, hidden: usize) -> Lstm {
        unwrap(Lstm::with(input, hidden, RecurrentOptions::default()))
    }

    /// Creates layers with options. All weights are initialised uniformly on ±1/√hidden.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](pellucid_tensor::Error::InvalidArgument) for zero layers or a dropout outside [0, 1].
    #[track_caller]
    pub fn with(input: usize, hidden: usize, options: RecurrentOptions) -> Result<Lstm> {
        RecurrentStack::new(CellKind::Lstm, input, hidden, options).map(Lstm)
    }

    /// Returns the outputs and the last states of every layer and direction. Without initial states, it starts from
    /// zeros.
    ///
    /// # Panics
    /// With the errors of [`try_run`](Lstm::try_run).
    #[track_caller]
    pub fn run(&self, x: &Tensor, state: Option<&LstmState>) -> (Tensor, LstmState) {
        unwrap(self.try_run(x, state, None))
    }

    /// Runs padded sequences of these lengths, integers `[N]` (see [`pad_sequence`](crate::pad_sequence)). The
    /// last states of a sequence are the states at its own end, where the reverse direction starts. Outputs after the
    /// end are 0.
    ///
    /// # Panics
    /// With the errors of [`try_run`](Lstm::try_run).
    #[track_caller]
    pub fn run_packed(&self, x: &Tensor, lengths: &Tensor, state: Option<&LstmState>) -> (Tensor, LstmState) {
        unwrap(self.try_run(x, state, Some(lengths)))
    }

    /// Returns the result of [`run`](Lstm::run) or [`run_packed`](Lstm::run_packed), or its error.
    ///
    /// # Errors
    /// Those of [`ops::lstm`](pellucid_tensor::ops::lstm).
    pub fn try_run(
        &self,
        x: &Tensor,
        state: Option<&LstmState>,
        lengths: Option<&Tensor>,
    ) -> Result<(Tensor, LstmState)> {
        let (h, c) = (state.map(|s| &s.0), state.map(|s| &s.1));
        called(self, x, [h, c], || {
            let (y, h, c) = self.0.run(x, h, c, lengths)?;
            Ok((y, (h, c.expect("the stack of an LSTM returns c"))))
        })
    }
}
