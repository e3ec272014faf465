//! Log events of files and devices, in a separate process, because `tracing` caches for all threads whether an event is
//! enabled.

#[path = "../examples/toy_backend/backend.rs"]
mod backend;
mod event_log;
#[allow(dead_code, reason = "other test programs use all of it")]
mod scratch;

use event_log::{assert_events, events};
use pellucid::io;
use pellucid::nn::StateDict;
use pellucid::prelude::*;

#[test]
fn files_that_are_written_and_read_are_logged() {
    let folder = scratch::Scratch::new("log-events");
    let path = folder.0.join("model.safetensors");
    let mut state = StateDict::default();
    state.insert("weight".to_string(), Tensor::ones([2, 3], DType::F32));
    let written = events(|| io::save(&path, &state).unwrap());
    let bytes = std::fs::metadata(&path).unwrap().len();
    let file = format!("path {}; tensors 1; bytes {bytes}; ", path.display());
    assert_events(&written, &[&["INFO ", "message wrote a file; ", "op \"save\"; ", &file]]);
    let read = events(|| _ = io::load(&path).unwrap());
    assert_events(&read, &[&["INFO ", "message read a file; ", "op \"load\"; ", &file]]);
    // An error is returned and is not an event.
    let text = folder.file("text.safetensors", b"no tensors");
    assert_events(&events(|| assert!(io::load(&text).is_err())), &[]);
}

#[test]
fn an_operation_without_a_kernel_of_the_device_is_logged_once() {
    Device::register(backend::ToyDriver).unwrap();
    let x = Tensor::from([3.0f32, 1.0, 2.0]).to("toy".parse::<Device>().unwrap());
    let sorted = || _ = x.cumsum(0).to_vec::<f32>();
    let warning: &[&str] =
        &["WARN ", "toy:0 has no kernel for these operands of `scan`; the CPU runs it, and its operands are copied"];
    assert_events(&events(sorted), &[warning]);
    assert_events(&events(sorted), &[]);
}
