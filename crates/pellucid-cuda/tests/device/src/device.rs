//! The state of the device, its settings, and the lock around every call.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::{CUresult, CUstreamCaptureMode};

use crate::capture::CaptureState;
use crate::clocks::VectorClock;
use crate::fibers::FiberPool;
use crate::graphs::{GraphBody, GraphExecState};
use crate::handles::HandleTable;
use crate::memory::DeviceMemory;
use crate::modules::{FunctionState, ModuleState};
use crate::reports::{FaultKind, FaultLog};
use crate::streams::{EventState, StreamState};

/// The result of a driver call.
pub(crate) type Outcome = Result<(), CUresult>;

/// A pointer to a result of the caller, which may be null. The C interface of CUDA promises that it is null or valid
/// for writes.
pub(crate) type Out<'a, T> = Option<&'a mut MaybeUninit<T>>;

/// The handle of the one context.
pub(crate) const CONTEXT: usize = 0x3fff_0000;

/// The legacy default stream.
pub(crate) const LEGACY_STREAM: usize = 0;

/// The order of threads, blocks and graph nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Schedule {
    Ascending,
    Descending,
    /// Both, from the same memory, whose results are compared.
    Both,
}

/// The settings and their values without a choice.
const DEFAULTS: [(&str, &str); 4] =
    [("schedule", "both"), ("streams", "lazy"), ("memory", "margins"), ("arguments", "counted")];

/// What tests choose.
pub(crate) struct Settings {
    pub(crate) schedule: Schedule,
    /// Work runs when it is enqueued, not when it is waited for.
    pub(crate) is_eager: bool,
    /// New allocations end at a page that cannot be accessed.
    pub(crate) has_guards: bool,
    /// The array of arguments ends with a null pointer, which a launch checks.
    pub(crate) has_terminated_arguments: bool,
}

impl Settings {
    /// The settings of the environment: `PELLUCID_TEST_DEVICE_SCHEDULE`, `_STREAMS`, `_MEMORY` and `_ARGUMENTS`.
    fn from_environment() -> Self {
        let mut settings =
            Self { schedule: Schedule::Both, is_eager: false, has_guards: false, has_terminated_arguments: false };
        for (name, _) in DEFAULTS {
            settings.set_default(name);
        }
        settings
    }

    /// Sets the value of the environment, or the one of `DEFAULTS`.
    fn set_default(&mut self, name: &str) -> bool {
        let Some((_, default)) = DEFAULTS.iter().find(|(known, _)| *known == name) else {
            return false;
        };
        let variable = format!("PELLUCID_TEST_DEVICE_{}", name.to_uppercase());
        let value = std::env::var(variable).ok().filter(|value| value != "default");
        self.set(name, value.as_deref().unwrap_or(default))
    }

    /// Changes one setting. Returns false for unknown names and values.
    pub(crate) fn set(&mut self, name: &str, value: &str) -> bool {
        match (name, value) {
            (_, "default") => return self.set_default(name),
            ("schedule", "ascending") => self.schedule = Schedule::Ascending,
            ("schedule", "descending") => self.schedule = Schedule::Descending,
            ("schedule", "both") => self.schedule = Schedule::Both,
            ("streams", "lazy" | "eager") => self.is_eager = value == "eager",
            ("memory", "margins" | "guards") => self.has_guards = value == "guards",
            ("arguments", "counted" | "terminated") => {
                self.has_terminated_arguments = value == "terminated";
            }
            _ => return false,
        }
        true
    }
}

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

thread_local! {
    /// The current context of this thread.
    pub(crate) static CURRENT_CONTEXT: Cell<usize> = const { Cell::new(0) };
    /// How strictly this thread's calls respect captures (`cuThreadExchangeStreamCaptureMode`).
    pub(crate) static CAPTURE_MODE: Cell<CUstreamCaptureMode> =
        const { Cell::new(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL) };
}

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

/// Writes a result.
///
/// # Errors
/// An invalid value if the pointer is null.
pub(crate) fn put<T>(out: Out<'_, T>, value: T) -> Outcome {
    out.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?.write(value);
    Ok(())
}

/// Writes a result that the caller may not want.
pub(crate) fn put_optional<T>(out: Out<'_, T>, value: T) {
    if let Some(out) = out {
        out.write(value);
    }
}

impl TestDevice {
    /// Reports a handle that does not exist, and returns its error.
    pub(crate) fn invalid_handle(&mut self, what: &str, handle: usize) -> CUresult {
        self.reports.report(FaultKind::InvalidHandle, format!("{what} {handle:#x} does not exist or was destroyed"))
    }
}
