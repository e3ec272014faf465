//! Recurrent layers: stacks over whole sequences, and single cells.
//!
//! The mathematics of one layer in one direction is in `pellucid_tensor::ops` (`rnn`, `gru`, `lstm`). Parameters have
//! PyTorch's names and layouts: `weight_ih_l0`, `weight_hh_l0`, `bias_ih_l0`, `bias_hh_l0`, `weight_hr_l0` of a projection,
//! and `.._reverse` of the second direction; a cell's are `weight_ih`, and so on.

mod cells;
mod layers;
mod sequence;
mod stack;
mod weights;

pub use cells::{GruCell, LstmCell, RnnCell};
pub use layers::{Gru, Lstm, LstmState, Rnn};
pub use sequence::{pad_sequence, unpad_sequence};
pub use stack::RecurrentOptions;
