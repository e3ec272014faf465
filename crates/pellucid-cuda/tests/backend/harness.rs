//! A device for one test, and its counters.

use crate::symbols::DeviceSymbols;
use pellucid_cuda::{Cuda, CudaDriver};
use pellucid_ir::backend::{Backend, Storage, View};
use pellucid_ir::kernel::Kernel;
use pellucid_ir::{DType, Layout};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One test at a time uses the device: settings and counters concern the process.
static LOCK: Mutex<()> = Mutex::new(());

/// A device for one test. At its end, the test device must have no reports and no objects of the device.
pub(crate) struct TestedDevice {
    gpu: Option<Cuda>,
    symbols: Option<DeviceSymbols>,
    _lock: MutexGuard<'static, ()>,
}

/// Opens the first device with these settings of the test device, or returns `None` if there is none.
pub(crate) fn device_with(settings: &[(&str, &str)]) -> Option<TestedDevice> {
    let lock = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let symbols = if pellucid_cuda::is_available() { DeviceSymbols::load() } else { None };
    if let Some(symbols) = &symbols {
        // A test that failed may have left reports.
        symbols.take_reports();
        settings.iter().for_each(|(name, value)| symbols.set(name, value));
    }
    match CudaDriver.open_device(0) {
        Ok(gpu) => Some(TestedDevice { gpu: Some(gpu), symbols, _lock: lock }),
        Err(error) => {
            let is_required = std::env::var("PELLUCID_REQUIRE_CUDA").is_ok_and(|value| value == "1");
            assert!(!is_required, "PELLUCID_REQUIRE_CUDA is 1, but {error}");
            println!("not run: {error}");
            None
        }
    }
}

/// Opens the first device, or returns `None` if there is none.
pub(crate) fn device() -> Option<TestedDevice> {
    device_with(&[])
}

impl TestedDevice {
    /// Returns the device.
    pub(crate) fn gpu(&self) -> &Cuda {
        self.gpu.as_ref().expect("the device is open until the end of the test")
    }

    /// Returns the symbols of the test device, or `None` on a GPU.
    pub(crate) fn symbols(&self) -> Option<&DeviceSymbols> {
        self.symbols.as_ref()
    }

    /// Creates a storage with these values.
    pub(crate) fn storage(&self, values: &[u32]) -> Arc<Storage> {
        let storage = self.gpu().storage(size_of_val(values)).unwrap();
        self.upload(values, &storage);
        storage
    }

    /// Uploads values to a storage.
    pub(crate) fn upload(&self, values: &[u32], to: &Arc<Storage>) {
        self.gpu().upload(&bytes_of(values), to).unwrap();
    }

    /// Copies `from` to `to`, storages of `length` words, by a kernel.
    pub(crate) fn copy(&self, length: usize, from: &Storage, to: &Storage) -> pellucid_ir::Result<()> {
        let layout = &Layout::contiguous([length].into());
        let view = |storage| View { storage, layout, dtype: DType::I32 };
        self.gpu().run(&Kernel::Copy, &[view(from)], &[view(to)])
    }

    /// Returns the values of a storage.
    pub(crate) fn values(&self, from: &Storage) -> Vec<u32> {
        let mut bytes = vec![0; from.buffer().bytes()];
        self.gpu().download(from, 0, &mut bytes).unwrap();
        bytes.as_chunks().0.iter().map(|&word| u32::from_ne_bytes(word)).collect()
    }
}

/// Returns the bytes of values.
pub(crate) fn bytes_of(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

impl Drop for TestedDevice {
    fn drop(&mut self) {
        drop(self.gpu.take());
        let Some(symbols) = &self.symbols else { return };
        for setting in ["architecture", "driver", "exhausted", "graphs", "products"] {
            symbols.set(setting, "default");
        }
        let reports = symbols.take_reports();
        if !std::thread::panicking() {
            assert!(reports.is_empty(), "the test device reports:\n{reports}");
            let live = ["allocations", "streams", "events", "modules", "graphs", "executable graphs"];
            let live = live.map(|name| symbols.counter(&format!("live {name}")));
            assert_eq!(live, [0; 6], "a closed device must own nothing");
        }
    }
}
