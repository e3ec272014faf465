//! The kinds of recurrent cells. [`RecurrentNetwork`](super::RecurrentNetwork) and
//! [`RecurrentCell`](super::RecurrentCell) are generic over the kind; the code that they call is compiled once, with
//! the kind as a value, [`CellKind`].

use pellucid_tensor::ops::{RecurrenceOptions, RecurrentWeights, RnnNonlinearity};
use pellucid_tensor::{Result, Tensor, ops};
use std::fmt::Debug;

/// The states h and c of an LSTM.
pub type LstmState = (Tensor, Tensor);

/// The kind of a recurrent layer or cell: [`Elman`], [`GatedRecurrentUnit`] or [`LongShortTermMemory`].
pub trait RecurrentKind: sealed::KindConstants + Clone + Debug + Send + Sync + 'static {
    /// The state: the tensor h, or h and c of an LSTM.
    type State: sealed::StateTensors;
}

/// The kind of [`Rnn`](crate::Rnn) and [`RnnCell`](crate::RnnCell).
#[derive(Clone, Copy, Debug)]
pub struct Elman;

/// The kind of [`Gru`](crate::Gru) and [`GruCell`](crate::GruCell).
#[derive(Clone, Copy, Debug)]
pub struct GatedRecurrentUnit;

/// The kind of [`Lstm`](crate::Lstm) and [`LstmCell`](crate::LstmCell).
#[derive(Clone, Copy, Debug)]
pub struct LongShortTermMemory;

impl RecurrentKind for Elman {
    type State = Tensor;
}

impl RecurrentKind for GatedRecurrentUnit {
    type State = Tensor;
}

impl RecurrentKind for LongShortTermMemory {
    type State = LstmState;
}

/// Private traits: only this module can define kinds.
pub(super) mod sealed {
    use super::*;

    /// The constant of a kind.
    pub trait KindConstants {
        /// The kind of cell; the nonlinearity of an RNN is tanh.
        const CELL: CellKind;
    }

    impl KindConstants for Elman {
        const CELL: CellKind = CellKind::Rnn(RnnNonlinearity::Tanh);
    }

    impl KindConstants for GatedRecurrentUnit {
        const CELL: CellKind = CellKind::Gru;
    }

    impl KindConstants for LongShortTermMemory {
        const CELL: CellKind = CellKind::Lstm;
    }

    /// A state as the tensors h and c.
    pub trait StateTensors {
        /// Returns h, and c if the kind has it.
        fn tensors(&self) -> [Option<&Tensor>; 2];

        /// Creates a state of h, and c if the kind has it.
        fn from_tensors(h: Tensor, c: Option<Tensor>) -> Self;
    }

    impl StateTensors for Tensor {
        fn tensors(&self) -> [Option<&Tensor>; 2] {
            [Some(self), None]
        }

        fn from_tensors(h: Tensor, _: Option<Tensor>) -> Tensor {
            h
        }
    }

    impl StateTensors for LstmState {
        fn tensors(&self) -> [Option<&Tensor>; 2] {
            [Some(&self.0), Some(&self.1)]
        }

        fn from_tensors(h: Tensor, c: Option<Tensor>) -> LstmState {
            (h, c.expect("an LSTM must return the cell state c"))
        }
    }
}

/// The kind of a cell as a value instead of a type.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum CellKind {
    /// An Elman network.
    Rnn(RnnNonlinearity),
    /// Gated recurrent units.
    Gru,
    /// Long short-term memory.
    Lstm,
}

/// The classes of the layer and the cell, and their names in errors.
pub(super) struct CellNames {
    pub(super) layer_class: &'static str,
    pub(super) cell_class: &'static str,
    pub(super) layer: &'static str,
    pub(super) cell: &'static str,
}

/// The outputs, the last h, and for an LSTM the last c.
pub(super) type RecurrentOutputs = (Tensor, Tensor, Option<Tensor>);

impl CellKind {
    pub(super) fn names(self) -> CellNames {
        let [layer_class, cell_class, layer, cell] = match self {
            CellKind::Rnn(_) => ["Rnn", "RnnCell", "rnn", "rnn_cell"],
            CellKind::Gru => ["Gru", "GruCell", "gru", "gru_cell"],
            CellKind::Lstm => ["Lstm", "LstmCell", "lstm", "lstm_cell"],
        };
        CellNames { layer_class, cell_class, layer, cell }
    }

    /// Returns the number of gates.
    pub(super) fn gates(self) -> usize {
        match self {
            CellKind::Rnn(_) => 1,
            CellKind::Gru => 3,
            CellKind::Lstm => 4,
        }
    }

    /// Runs one layer in one direction over x `[T, N, I]`, from the states h and c `[N, H]` or from zeros.
    pub(super) fn run(
        self,
        x: &Tensor,
        weights: RecurrentWeights<'_>,
        [h, c]: [Option<&Tensor>; 2],
        options: RecurrenceOptions<'_>,
    ) -> Result<RecurrentOutputs> {
        match self {
            CellKind::Rnn(f) => ops::rnn(x, weights, h, f, options).map(|(y, h)| (y, h, None)),
            CellKind::Gru => ops::gru(x, weights, h, options).map(|(y, h)| (y, h, None)),
            CellKind::Lstm => ops::lstm(x, weights, h.zip(c), options).map(|(y, (h, c))| (y, h, Some(c))),
        }
    }
}
