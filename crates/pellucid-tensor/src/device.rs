//! `Device`: a handle to the hardware that stores arrays and runs kernels.
//!
//! A [`Driver`] opens devices by their index. The CPU is always open; a GPU is opened when it is first requested.

use crate::idle::release_idle_memory;
use crate::warning::warn;
use pellucid_ir::backend::{Backend, DeviceKind, Driver, MemoryStats};
use pellucid_ir::{Error, Result, lock};
use std::fmt;
use std::str::FromStr;
use std::sync::{Mutex, MutexGuard, Once};

/// A device that stores arrays and runs kernels. The handle is cheap to copy; equal handles denote the same device.
///
/// ```
/// use pellucid::Device;
/// let cpu: Device = "cpu".parse()?;
/// assert_eq!(cpu, Device::cpu());
/// let device = Device::best();
/// assert!(device == Device::cpu() || device.is_gpu());
/// # Ok::<(), pellucid::Error>(())
/// ```
#[derive(Clone, Copy)]
pub struct Device {
    /// A thin pointer, because every array stores its device.
    open: &'static OpenDevice,
}

/// A device that a driver has opened. It stays open until the process ends.
struct OpenDevice {
    backend: &'static dyn Backend,
    kind: DeviceKind,
    driver: &'static str,
    index: usize,
    is_deferred: bool,
}

static CPU: OpenDevice =
    OpenDevice { backend: &pellucid_cpu::Cpu, kind: DeviceKind::Cpu, driver: "cpu", index: 0, is_deferred: false };

/// The GPU drivers of this build.
static BUILT_IN: &[&dyn Driver] = &[
    #[cfg(feature = "cuda")]
    &pellucid_cuda::CudaDriver,
    #[cfg(feature = "wgpu")]
    &pellucid_wgpu::WgpuDriver,
];

/// The registered drivers, and the devices that they have opened.
struct Registry {
    registered: Vec<&'static dyn Driver>,
    open: Vec<&'static OpenDevice>,
}

static REGISTRY: Mutex<Registry> = Mutex::new(Registry { registered: Vec::new(), open: Vec::new() });

/// Locks the registry and ignores poisoning: its lists are consistent after every statement.
fn registry() -> MutexGuard<'static, Registry> {
    lock(&REGISTRY)
}

fn unavailable(device: impl Into<String>, reason: impl Into<String>) -> Error {
    Error::DeviceUnavailable { device: device.into(), reason: reason.into() }
}

impl Registry {
    /// Iterates over the drivers of this build, then the registered ones.
    fn drivers(&self) -> impl Iterator<Item = &'static dyn Driver> + Clone {
        BUILT_IN.iter().chain(&self.registered).copied()
    }

    /// Returns the driver with this name. The name `gpu` selects the first available GPU driver.
    fn driver(&self, name: &str) -> Result<&'static dyn Driver> {
        if name != "gpu" {
            let driver = self.drivers().find(|driver| driver.name() == name);
            return driver.ok_or_else(|| unavailable(name, self.describe_drivers()));
        }
        let mut gpus = self.drivers().filter(|driver| driver.kind() == DeviceKind::Gpu);
        let driver = gpus.clone().find(|driver| driver.is_available()).or_else(|| gpus.next());
        driver.ok_or_else(|| unavailable(name, "this build has no GPU backend; the features `cuda` and `wgpu` add one"))
    }

    /// Lists the backends of this build for an error message.
    fn describe_drivers(&self) -> String {
        let names = self.drivers().map(|driver| format!(", `{}`", driver.name())).collect::<String>();
        let has_gpu = self.drivers().any(|driver| driver.kind() == DeviceKind::Gpu);
        let need = if has_gpu { "" } else { " and need the feature `cuda` or `wgpu`" };
        format!("this build has the backends `cpu`{names}; GPUs are named \"gpu\"{need}")
    }

    /// Returns the device with this driver and index; opens it on first use.
    fn open(&mut self, driver: &'static dyn Driver, index: usize) -> Result<Device> {
        let existing = self.open.iter().find(|device| device.driver == driver.name() && device.index == index);
        if let Some(&open) = existing {
            return Ok(Device { open });
        }
        let backend = &**Box::leak(Box::new(driver.open(index)?));
        let is_deferred = backend.is_deferred();
        let device = OpenDevice { backend, kind: driver.kind(), driver: driver.name(), index, is_deferred };
        let open = &*Box::leak(Box::new(device));
        self.open.push(open);
        Ok(Device { open })
    }
}

impl Device {
    /// Returns the CPU, which every build supports.
    #[inline]
    pub fn cpu() -> Device {
        Device { open: &CPU }
    }

    /// Returns the first GPU: the device `gpu:0`.
    ///
    /// # Errors
    /// [`Error::DeviceUnavailable`] if the build has no GPU backend, or the machine has no GPU for it.
    #[doc(alias = "cuda")]
    pub fn gpu() -> Result<Device> {
        Device::named("gpu", 0)
    }

    /// Returns the first GPU, or the CPU if there is no GPU or the first one is [software](Device::is_software). The
    /// first call in a process that returns the CPU reports the reason: to the subscriber of `tracing`, or on standard
    /// error without one.
    pub fn best() -> Device {
        static WARNED: Once = Once::new();
        let why = match Device::gpu() {
            Ok(gpu) if !gpu.is_software() => return gpu,
            Ok(gpu) => format!("{gpu} is {}, a software adapter, which is slower than the CPU", gpu.adapter()),
            Err(why) => why.to_string(),
        };
        WARNED.call_once(|| warn(format_args!("{why}; using the cpu")));
        Device::cpu()
    }

    /// Returns true if a device with this name (`cpu`, `gpu`, `wgpu:1`) can be used. For the first GPU, the driver
    /// initializes only what this check needs, and opens no device. A GPU with another index is opened.
    ///
    /// ```
    /// use pellucid::Device;
    /// assert!(Device::is_available("cpu"));
    /// assert!(!Device::is_available("abacus"));
    /// ```
    pub fn is_available(name: &str) -> bool {
        match split_name(name) {
            Ok(("cpu", index)) => index == 0,
            Ok((driver, 0)) => registry().driver(driver).is_ok_and(|driver| driver.is_available()),
            Ok((driver, index)) => Device::named(driver, index).is_ok(),
            Err(_) => false,
        }
    }

    /// Registers the driver of a backend. Its devices are then available by name. [`Device::gpu`] selects the first
    /// available GPU driver; the drivers of this build precede the registered ones. The contributor guide has an
    /// example.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the name is empty, already registered, `cpu` or `gpu`, or contains a colon.
    pub fn register(driver: impl Driver) -> Result<()> {
        let name = driver.name();
        let mut registry = registry();
        let taken = ["cpu", "gpu"].contains(&name) || registry.drivers().any(|other| other.name() == name);
        if taken || name.is_empty() || name.contains(':') {
            let reason = format!(
                "the name `{name}` of a driver must not be empty or contain a colon, and must differ from `cpu`, `gpu` \
                 and the names of other drivers"
            );
            return Err(Error::invalid("register", reason));
        }
        registry.registered.push(Box::leak(Box::new(driver)));
        Ok(())
    }

    /// Returns the device with this driver name and index.
    fn named(driver: &str, index: usize) -> Result<Device> {
        if driver == "cpu" {
            let missing = || unavailable(format!("cpu:{index}"), "there is one CPU, `cpu:0`");
            return (index == 0).then(Device::cpu).ok_or_else(missing);
        }
        let mut registry = registry();
        let driver = registry.driver(driver)?;
        registry.open(driver, index)
    }

    /// Returns the device's name: `cpu`, or the name of the driver and the index, as in `wgpu:0`.
    pub fn name(&self) -> &str {
        self.backend().name()
    }

    /// Returns the index of the device among the devices of its driver.
    pub fn index(&self) -> usize {
        self.open.index
    }

    /// Returns true if the device is a GPU.
    #[inline]
    pub fn is_gpu(&self) -> bool {
        self.open.kind == DeviceKind::Gpu
    }

    /// Returns true if the device is the CPU of this process, whose memory the host reads directly.
    #[inline]
    pub fn is_cpu(&self) -> bool {
        std::ptr::eq(self.open, &CPU)
    }

    /// Returns the bytes that tensors use on the device, and the bytes that the allocator caches for reuse.
    #[doc(alias = "memory_allocated")]
    pub fn memory_stats(&self) -> MemoryStats {
        release_idle_memory();
        self.backend().memory_stats()
    }

    /// Limits the bytes that tensors may use. An operation that exceeds the limit fails with [`Error::OutOfMemory`].
    /// `usize::MAX` removes the limit.
    pub fn set_memory_cap(&self, bytes: usize) {
        self.backend().set_memory_cap(bytes);
    }

    /// Releases the allocator's cached memory to the operating system.
    #[doc(alias = "empty_cache")]
    pub fn trim(&self) {
        release_idle_memory();
        self.backend().trim();
    }

    /// Returns the name of the hardware or software that runs the kernels, such as a graphics card.
    pub fn adapter(&self) -> &str {
        self.backend().adapter()
    }

    /// Returns true if a software renderer on the host's CPU, such as Mesa's llvmpipe, executes the kernels of a GPU
    /// device. Such an adapter is meant for tests: it is slower than [`Device::cpu`].
    pub fn is_software(&self) -> bool {
        self.backend().is_software()
    }

    /// Returns named counters of the work since the device was opened. A `wgpu` device counts `dispatches`, the `bytes`
    /// that they read and write, `submissions`, and the created `buffers`, `bind groups` and `pipelines`. The CPU has
    /// no counters.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        self.backend().counters()
    }

    /// Returns true if kernels on the device are deferred even without [`lazy`](crate::lazy): they run as optimized
    /// plans when a value is read.
    #[inline]
    pub fn is_deferred(&self) -> bool {
        self.open.is_deferred
    }

    #[inline]
    pub(crate) fn backend(&self) -> &'static dyn Backend {
        self.open.backend
    }
}

/// Splits a name such as `wgpu:1` into the driver's name and the index. The default index is 0.
fn split_name(name: &str) -> Result<(&str, usize)> {
    let Some((driver, index)) = name.split_once(':') else { return Ok((name, 0)) };
    let invalid = || unavailable(name, "the part of a device name after the colon must be an index, as in `gpu:1`");
    let index = index.parse().map_err(|_| invalid())?;
    Ok((driver, index))
}

impl FromStr for Device {
    type Err = Error;

    /// Returns the device with this name: `cpu`, `gpu`, `gpu:1`, `wgpu:0`.
    fn from_str(name: &str) -> Result<Device> {
        let (driver, index) = split_name(name)?;
        Device::named(driver, index)
    }
}

/// A value that names a device: a [`Device`], or a string such as `"gpu"` or `"wgpu:1"`.
///
/// ```
/// use pellucid::{Device, Tensor};
/// let x = Tensor::from([1.0f32, 2.0]).to("cpu");
/// assert!(x.device() == "cpu" && x.device() == Device::cpu());
/// assert!(x.try_to("abacus").is_err());
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not name a device",
    note = "pass a `Device`, or a string such as \"cpu\", \"gpu\" or \"gpu:1\""
)]
pub trait IntoDevice {
    /// Returns the device.
    ///
    /// # Errors
    /// [`Error::DeviceUnavailable`] if this build or this machine has no device with this name.
    fn into_device(self) -> Result<Device>;
}

impl IntoDevice for Device {
    #[inline]
    fn into_device(self) -> Result<Device> {
        Ok(self)
    }
}

/// Implements [`IntoDevice`] for strings.
macro_rules! device_names {
    ($($name:ty),*) => {$(
        impl IntoDevice for $name {
            fn into_device(self) -> Result<Device> {
                self.parse()
            }
        }
    )*};
}
device_names!(&str, &String, String);

/// Compares the device with a name. `wgpu:0` names the driver; `gpu:0` names a device of the first available GPU
/// driver. A name without an index has index 0. No device is opened.
impl PartialEq<str> for Device {
    fn eq(&self, name: &str) -> bool {
        let Ok((driver, index)) = split_name(name) else { return false };
        let has_driver = |driver: &str| registry().driver(driver).is_ok_and(|found| found.name() == self.open.driver);
        index == self.open.index
            && (driver == self.open.driver || self.is_gpu() && driver == "gpu" && has_driver(driver))
    }
}

impl PartialEq<&str> for Device {
    fn eq(&self, name: &&str) -> bool {
        self == *name
    }
}

impl PartialEq for Device {
    #[inline]
    fn eq(&self, other: &Device) -> bool {
        std::ptr::eq(self.open, other.open)
    }
}

impl Eq for Device {}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
