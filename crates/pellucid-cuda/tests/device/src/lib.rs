//! A CUDA device without a GPU: the C symbols of the CUDA driver, NVRTC and cuBLASLt that a backend on `cudarc` uses,
//! in one shared library that is found through the same dynamic loading as the real ones.
//!
//! Kernel texts are compiled by the host's C++ compiler with the header `device.h` and run on the CPU. The device
//! checks what a GPU does not: `docs/cuda.md` lists the faults.
//!
//! The state of the device and the lock around every call are in this file.
//!
//! | module | content |
//! | --- | --- |
//! | `interface` | types of results in the C interface, the settings, the state of threads |
//! | `reports`, `report_calls` | faults, the sticky error, counters, and the symbols by which tests read them |
//! | `handles` | tables of handles |
//! | `clocks` | vector clocks, the last accesses to an allocation |
//! | `memory`, `memory_calls` | allocations with poisoned margins or guard pages; their calls |
//! | `pool`, `pool_calls` | the sizes of the memory pool from which streams allocate; its attributes |
//! | `context_calls` | initialisation, properties of the device, contexts |
//! | `work` | work of a stream or a graph node, its accesses, graphs |
//! | `streams`, `stream_calls` | queues of work that runs when it is waited for; streams and events |
//! | `capture` | stream capture |
//! | `graphs`, `graph_calls`, `graph_node_calls` | executable graphs; calls of graphs |
//! | `module_info`, `modules`, `module_calls` | compiled modules and kernels |
//! | `launch`, `launch_calls` | limits, arguments, and the schedules of a launch |
//! | `fibers`, `warps`, `traps` | the threads of a block, operations of a warp, and signals of the processor |
//! | `compiler`, `nvrtc_calls` | the C++ compiler and its cache; NVRTC |
//! | `products`, `cublaslt_calls` | matrix products; cuBLASLt |
// The code uses the signals and the dynamic loader of Linux. On other systems the library is empty.
#![cfg(target_os = "linux")]
#![allow(non_snake_case)]

mod capture;
mod clocks;
mod compiler;
mod context_calls;
mod cublaslt_calls;
mod fibers;
mod graph_calls;
mod graph_node_calls;
mod graphs;
mod handles;
mod interface;
mod launch;
mod launch_calls;
mod memory;
mod memory_calls;
mod module_calls;
mod module_info;
mod modules;
mod nvrtc_calls;
mod pool;
mod pool_calls;
mod products;
mod report_calls;
mod reports;
mod stream_calls;
mod streams;
mod traps;
mod warps;
mod work;

use std::collections::BTreeMap;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::CUresult;

use capture::CaptureState;
use clocks::VectorClock;
use fibers::FiberPool;
use graphs::GraphExecState;
use handles::HandleTable;
use interface::{CONTEXT, CURRENT_CONTEXT, LEGACY_STREAM, Outcome, Settings};
use memory::DeviceMemory;
use modules::{FunctionState, ModuleState};
use reports::{FaultKind, FaultLog};
use streams::{EventState, StreamState};
use work::GraphBody;

/// The state of the device.
pub(crate) struct TestDevice {
    pub(crate) settings: Settings,
    pub(crate) reports: FaultLog,
    pub(crate) memory: DeviceMemory,
    pub(crate) streams: HandleTable<StreamState>,
    pub(crate) events: HandleTable<EventState>,
    pub(crate) modules: HandleTable<ModuleState>,
    pub(crate) functions: HandleTable<FunctionState>,
    pub(crate) graphs: HandleTable<GraphBody>,
    /// The graph and the position of each node.
    pub(crate) nodes: BTreeMap<usize, (usize, usize)>,
    pub(crate) execs: HandleTable<GraphExecState>,
    pub(crate) captures: HandleTable<CaptureState>,
    pub(crate) fibers: FiberPool,
    /// What the host has waited for.
    pub(crate) host_clock: VectorClock,
    pub(crate) is_initialized: bool,
    /// How often the primary context is retained.
    pub(crate) context_uses: u32,
}

// SAFETY: raw pointers and fibers of the state are used by the thread that holds the lock only. A fiber that is
// suspended by one thread and resumed by another keeps no thread-local data on its stack: its frames are the loop of
// `new_fiber` and kernels. A count of `Rc` is changed by the holder of the lock too: all clones are in the state.
unsafe impl Send for TestDevice {}

static DEVICE: LazyLock<Mutex<TestDevice>> = LazyLock::new(|| {
    let mut streams = HandleTable::default();
    streams.insert_at(LEGACY_STREAM, StreamState::default());
    Mutex::new(TestDevice {
        settings: Settings::from_environment(),
        reports: FaultLog::default(),
        memory: DeviceMemory::default(),
        streams,
        events: HandleTable::default(),
        modules: HandleTable::default(),
        functions: HandleTable::default(),
        graphs: HandleTable::default(),
        nodes: BTreeMap::new(),
        execs: HandleTable::default(),
        captures: HandleTable::default(),
        fibers: FiberPool::default(),
        host_clock: VectorClock::default(),
        is_initialized: false,
        context_uses: 0,
    })
});

/// Locks the device.
pub(crate) fn lock_device() -> MutexGuard<'static, TestDevice> {
    DEVICE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a call that needs neither a context nor an intact device.
pub(crate) fn plain_call(work: impl FnOnce(&mut TestDevice) -> Outcome) -> CUresult {
    let mut device = lock_device();
    device.reports.count("driver calls");
    work(&mut device).err().unwrap_or(CUresult::CUDA_SUCCESS)
}

/// Runs a call that needs an initialised driver only.
pub(crate) fn driver_call(work: impl FnOnce(&mut TestDevice) -> Outcome) -> CUresult {
    plain_call(|device| {
        if !device.is_initialized {
            return Err(CUresult::CUDA_ERROR_NOT_INITIALIZED);
        }
        work(device)
    })
}

/// Runs a call in the current context. It fails with the sticky error, before the work and after it.
pub(crate) fn context_call(work: impl FnOnce(&mut TestDevice) -> Outcome) -> CUresult {
    driver_call(|device| {
        if CURRENT_CONTEXT.get() != CONTEXT || device.context_uses == 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
        }
        device.reports.check()?;
        work(device)
    })
}

impl TestDevice {
    /// Reports a handle that does not exist, and returns its error.
    pub(crate) fn invalid_handle(&mut self, what: &str, handle: usize) -> CUresult {
        self.reports.report(FaultKind::InvalidHandle, format!("{what} {handle:#x} does not exist or was destroyed"))
    }
}
