//! Recurrent layers over entire sequences, and single cells.
//!
//! The mathematics of one layer in one direction is in `pellucid_tensor::ops` (`rnn`, `gru`, `lstm`). Parameters have
//! PyTorch's names and layouts: `weight_ih_l0`, `weight_hh_l0`, `bias_ih_l0`, `bias_hh_l0`, `weight_hr_l0` for a
//! projection, and `.._reverse` for the reverse direction; a cell's are `weight_ih`, and so on.

mod cell;
mod kind;
mod network;
mod sequence;
mod stack;
mod weights;

pub use cell::{GruCell, LstmCell, RecurrentCell, RnnCell};
pub use kind::{Elman, GatedRecurrentUnit, LongShortTermMemory, LstmState, RecurrentKind};
pub use network::{Gru, Lstm, RecurrentNetwork, Rnn};
pub use sequence::{
    PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence, pad_sequence, unpack_sequence,
    unpad_sequence,
};
pub use stack::RecurrentOptions;

use crate::call;
use crate::module::Module;
use pellucid_tensor::{Result, Tensor};

/// Calls a layer or a cell on x and the given states. Hooks see the output, but not the states.
fn call_with_states<R>(
    layer: &impl Module,
    x: &Tensor,
    states: [Option<&Tensor>; 2],
    run: impl Fn(&Tensor) -> Result<(Tensor, R)>,
) -> Result<(Tensor, R)> {
    match states {
        [None, _] => call::call_unary_with_extra(layer, x, run),
        [Some(h), None] => call::call_with_extra(layer, &[x, h], || run(x)),
        [Some(h), Some(c)] => call::call_with_extra(layer, &[x, h, c], || run(x)),
    }
}
