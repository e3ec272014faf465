//! Models as values: their text, independent copies, calls with other tensors as parameters, and their dtypes.

mod copies;
mod dtypes;
mod functional;
mod maml;
mod text;

use pellucid_nn::{Module, StateDict};
use pellucid_tensor::{Result, Tensor};

/// Returns the parameters of a model by name, without copies.
fn own_tensors(model: &impl Module) -> StateDict {
    model.named_parameters().into_iter().map(|(name, parameter)| (name, parameter.tensor().clone())).collect()
}

fn error_text<T>(result: Result<T>) -> String {
    match result {
        Ok(_) => panic!("the call must fail"),
        Err(error) => error.to_string(),
    }
}

fn bytes(x: &Tensor) -> Vec<u8> {
    x.to_bytes()
}
