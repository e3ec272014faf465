//! The types of results in the C interface, the settings, and the state of threads.

use std::cell::Cell;
use std::ffi::c_int;
use std::mem::MaybeUninit;

use cudarc::cublaslt::sys::cublasStatus_t;
use cudarc::driver::sys::{CUresult, CUstreamCaptureMode};

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
const DEFAULTS: [(&str, &str); 9] = [
    ("schedule", "both"),
    ("streams", "lazy"),
    ("memory", "margins"),
    ("arguments", "counted"),
    ("architecture", "90"),
    ("driver", "13000"),
    ("graphs", "available"),
    ("exhausted", "0"),
    ("products", "available"),
];

/// What tests choose.
pub(crate) struct Settings {
    pub(crate) schedule: Schedule,
    /// Work runs when it is enqueued, not when it is waited for.
    pub(crate) is_eager: bool,
    /// New allocations end at a page that cannot be accessed.
    pub(crate) has_guards: bool,
    /// The array of arguments ends with a null pointer, which a launch checks.
    pub(crate) has_terminated_arguments: bool,
    /// The compute capability, such as 90 for 9.0.
    pub(crate) architecture: u32,
    /// The version of the driver, as `cuDriverGetVersion` returns it.
    pub(crate) driver: c_int,
    /// Graphs can be instantiated.
    pub(crate) has_graphs: bool,
    /// The count of the next launches and instantiations that find no memory.
    pub(crate) exhausted: u32,
    /// The status with which cuBLASLt refuses handles, and the one with which it refuses algorithms.
    pub(crate) refused_products: [Option<cublasStatus_t>; 2],
}

impl Settings {
    /// Reads the settings of the environment: `PELLUCID_TEST_DEVICE_` and the name of a setting in capital letters.
    pub(crate) fn from_environment() -> Self {
        let mut settings = Self {
            schedule: Schedule::Both,
            is_eager: false,
            has_guards: false,
            has_terminated_arguments: false,
            architecture: 0,
            driver: 0,
            has_graphs: true,
            exhausted: 0,
            refused_products: [None; 2],
        };
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
            ("architecture", _) => return value.parse().map(|number| self.architecture = number).is_ok(),
            ("driver", _) => return value.parse().map(|number| self.driver = number).is_ok(),
            ("graphs", "available" | "missing") => self.has_graphs = value == "available",
            ("products", "available") => self.refused_products = [None; 2],
            ("products", "missing") => {
                self.refused_products = [Some(cublasStatus_t::CUBLAS_STATUS_NOT_INITIALIZED), None];
            }
            ("products", "refused") => {
                self.refused_products = [None, Some(cublasStatus_t::CUBLAS_STATUS_INTERNAL_ERROR)];
            }
            ("exhausted", _) => return value.parse().map(|count| self.exhausted = count).is_ok(),
            _ => return false,
        }
        true
    }

    /// The error of a launch or an instantiation for which there is no memory.
    ///
    /// # Errors
    /// Out of memory, as often as the setting `exhausted` says.
    pub(crate) fn check_memory(&mut self) -> Outcome {
        if self.exhausted == 0 {
            return Ok(());
        }
        self.exhausted -= 1;
        Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY)
    }
}

thread_local! {
    /// The current context of this thread.
    pub(crate) static CURRENT_CONTEXT: Cell<usize> = const { Cell::new(0) };
    /// How strictly this thread's calls respect captures (`cuThreadExchangeStreamCaptureMode`).
    pub(crate) static CAPTURE_MODE: Cell<CUstreamCaptureMode> =
        const { Cell::new(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL) };
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
