//! The part of the program that runs in a browser: computes the scores of digits with a trained model.
//!
//! The page calls these functions. It writes weights and pixels into the memory of this program, and reads scores and
//! messages.

#[path = "model.rs"]
mod model;

use pellucid::nn::graph::InferenceModel;
use pellucid::{io, prelude::*};
use std::cell::RefCell;

thread_local! {
    static RECOGNIZER: RefCell<Option<InferenceModel<'static, Sequential>>> = const { RefCell::new(None) };
    /// The buffer for bytes that the page and the program exchange.
    static BYTES: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Reserves memory for bytes of the page. Returns its address, which is valid until the next call.
#[unsafe(no_mangle)]
pub extern "C" fn reserve(bytes: usize) -> *mut u8 {
    BYTES.with_borrow_mut(|own| {
        own.clear();
        own.resize(bytes, 0);
        own.as_mut_ptr()
    })
}

/// Loads the weights from the bytes of the page. Returns 0, or the length of an error message at [`result`].
#[unsafe(no_mangle)]
pub extern "C" fn load() -> usize {
    respond(|bytes| {
        let model = model::classifier();
        model.load_state_dict(&io::from_bytes(bytes)?)?;
        let mut recognizer = InferenceModel::new(model, &[1]);
        recognizer.prepare(&Tensor::zeros([1, 28, 28], DType::F32))?;
        RECOGNIZER.set(Some(recognizer));
        Ok(Vec::new())
    })
}

/// Computes the scores of the digit in the bytes of the page: 28 · 28 pixels as `f32`, with values in [0, 1]. On
/// success, returns 0, and 10 scores as `f32` are at [`result`]. Otherwise returns the length of an error message at
/// [`result`].
#[unsafe(no_mangle)]
pub extern "C" fn recognize() -> usize {
    respond(|bytes| {
        let digit = Tensor::try_from_bytes(bytes, DType::F32, [1, 28, 28])?;
        RECOGNIZER.with_borrow_mut(|recognizer| match recognizer {
            Some(recognizer) => Ok(recognizer.run(&digit)?.to_bytes()),
            None => Err(Error::InvalidArgument { op: "recognize", reason: "load() the weights first".into() }),
        })
    })
}

/// Returns the address of the scores or of the message of the last call.
#[unsafe(no_mangle)]
pub extern "C" fn result() -> *const u8 {
    BYTES.with_borrow(|own| own.as_ptr())
}

/// Replaces the bytes of the page by a result or an error message. Returns the length of the message, or 0.
fn respond(run: impl FnOnce(&[u8]) -> Result<Vec<u8>>) -> usize {
    let bytes = BYTES.take();
    let (response, length) = match run(&bytes) {
        Ok(response) => (response, 0),
        Err(error) => {
            let message = error.to_string().into_bytes();
            let length = message.len();
            (message, length)
        }
    };
    BYTES.set(response);
    length
}
