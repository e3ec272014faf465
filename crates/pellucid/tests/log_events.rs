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
use pellucid_ir::backend::{
    Backend, CheckedKernel, DeviceKind, Driver, MemoryStats, OperandMeta, Readable, Storage, Support, Writable,
};
use pellucid_ir::kernel::Kernel;
use std::sync::{Arc, Mutex};

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

/// A toy device that has a notice for the user.
struct NoticeDevice {
    toy: Box<dyn Backend>,
    notice: Mutex<Option<String>>,
}

/// Opens the device.
struct NoticeDriver;

impl Driver for NoticeDriver {
    fn name(&self) -> &'static str {
        "notice"
    }
    fn kind(&self) -> DeviceKind {
        DeviceKind::Gpu
    }
    fn is_available(&self) -> bool {
        true
    }
    fn open(&self, index: usize) -> pellucid_ir::Result<Box<dyn Backend>> {
        let notice = Mutex::new(Some("a notice about plans".to_string()));
        Ok(Box::new(NoticeDevice { toy: backend::ToyDriver.open(index)?, notice }))
    }
}

impl Backend for NoticeDevice {
    fn name(&self) -> &str {
        "notice:0"
    }
    fn take_notice(&self) -> Option<String> {
        self.notice.lock().unwrap().take()
    }
    fn storage(&self, bytes: usize) -> pellucid_ir::Result<Arc<Storage>> {
        self.toy.storage(bytes)
    }
    fn support(&self, kernel: &Kernel, inputs: &[OperandMeta<'_>], outputs: &[OperandMeta<'_>]) -> Support {
        self.toy.support(kernel, inputs, outputs)
    }
    fn run_checked(&self, launch: CheckedKernel<'_>) -> pellucid_ir::Result<()> {
        self.toy.run_checked(launch)
    }
    fn upload_borrowed(&self, bytes: &[u8], to: Writable<'_>, offset: usize) -> pellucid_ir::Result<()> {
        self.toy.upload_borrowed(bytes, to, offset)
    }
    fn download_borrowed(&self, from: Readable<'_>, offset: usize, into: &mut [u8]) -> pellucid_ir::Result<()> {
        self.toy.download_borrowed(from, offset, into)
    }
    fn synchronize(&self) -> pellucid_ir::Result<()> {
        self.toy.synchronize()
    }
    fn memory_stats(&self) -> MemoryStats {
        self.toy.memory_stats()
    }
    fn set_memory_cap(&self, bytes: usize) {
        self.toy.set_memory_cap(bytes);
    }
    fn trim(&self) {
        self.toy.trim();
    }
}

#[test]
fn the_notice_of_a_device_is_logged_once() {
    Device::register(NoticeDriver).unwrap();
    let x = Tensor::from([3.0f32, 1.0, 2.0]).to("notice".parse::<Device>().unwrap());
    let run = || {
        let mut step = capture(|inputs| &inputs[0] + &inputs[0], &[&x]).unwrap();
        assert_eq!(step.launch(&[&x]).unwrap().try_to_vec::<f32>(0).unwrap(), [6.0, 2.0, 4.0]);
    };
    let notices = || events(run).into_iter().filter(|event| event.contains("notice about plans")).collect::<Vec<_>>();
    assert_events(&notices(), &[&["WARN ", "message a notice about plans"]]);
    assert_events(&notices(), &[]);
}
