//! A context with memory, kernels and streams that are destroyed with it.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_void};
use std::mem::MaybeUninit;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use cudarc::driver::sys::{self, CUresult};
use cudarc::nvrtc;

use crate::symbols::DeviceSymbols;

pub(crate) use CUresult::CUDA_SUCCESS;

/// One test at a time uses the device: captures and sticky errors concern all threads.
static LOCK: Mutex<()> = Mutex::new(());

impl DeviceSymbols {
    /// Hands out a part of an allocation, or returns it to its pool.
    pub(crate) fn mark(&self, pointer: u64, bytes: usize, stream: sys::CUstream) {
        type Mark = unsafe extern "C" fn(u64, usize, sys::CUstream) -> CUresult;
        // SAFETY: the library is loaded, and the symbol has this type (`report_calls.rs` of the test device), which
        // checks the pointer and the stream.
        let result = unsafe {
            let mark = sys::culib().get::<Mark>(b"pellucid_test_device_mark").expect("the test device has the symbol");
            mark(pointer, bytes, stream)
        };
        succeed(result);
    }
}

/// What a test created.
enum Resource {
    Memory(u64),
    Pinned(*mut c_void),
    Stream(sys::CUstream),
    Event(sys::CUevent),
    Module(sys::CUmodule),
    Graph(sys::CUgraph),
    Exec(sys::CUgraphExec),
}

/// The current context of this thread.
pub(crate) struct Cuda {
    resources: RefCell<Vec<Resource>>,
    symbols: Option<DeviceSymbols>,
    architecture: i32,
    _lock: MutexGuard<'static, ()>,
}

/// The value of an argument in memory.
pub(crate) trait Argument {
    /// The address of the value.
    fn pointer(&self) -> *mut c_void {
        std::ptr::from_ref(self).cast_mut().cast()
    }
}
impl Argument for u64 {}
impl Argument for u32 {}
impl Argument for i32 {}
impl Argument for f32 {}
impl Argument for f64 {}
impl<const N: usize> Argument for [f32; N] {}

/// The grid and the block of a launch.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared: u32,
}

/// A launch of some blocks on one axis.
pub(crate) fn line(blocks: u32, threads: u32) -> Shape {
    Shape { grid: [blocks, 1, 1], block: [threads, 1, 1], shared: 0 }
}

/// A kernel with the entry for the test device.
pub(crate) fn kernel_text(name: &str, parameters: &str, body: &str) -> String {
    format!(
        "extern \"C\" __global__ void {name}({parameters}) {{\n{body}\n}}\n\
         #ifdef PELLUCID_TEST_DEVICE\nTEST_ENTRY({name})\n#endif\n"
    )
}

/// Writes through a pointer to a result and returns the result.
pub(crate) fn result_of<T>(call: impl FnOnce(*mut T) -> CUresult) -> Result<T, CUresult> {
    let mut result = MaybeUninit::uninit();
    match call(result.as_mut_ptr()) {
        // SAFETY: a successful call has written its result.
        CUDA_SUCCESS => Ok(unsafe { result.assume_init() }),
        error => Err(error),
    }
}

/// Asserts that a call succeeds.
#[track_caller]
pub(crate) fn succeed(result: CUresult) {
    assert_eq!(result, CUDA_SUCCESS);
}

fn is_required() -> bool {
    std::env::var("PELLUCID_REQUIRE_CUDA").is_ok_and(|value| value == "1")
}

/// The primary context, which is retained once for all tests: a new one takes a GPU a part of a second.
fn primary_context() -> sys::CUcontext {
    static CONTEXT: OnceLock<usize> = OnceLock::new();
    let context = CONTEXT.get_or_init(|| {
        // SAFETY: the pointers are valid for writes.
        let context = unsafe {
            succeed(sys::cuInit(0));
            result_of(|context| sys::cuDevicePrimaryCtxRetain(context, 0))
        };
        context.expect("the first device has a context") as usize
    });
    *context as sys::CUcontext
}

/// The device, or `None` if there are no libraries of CUDA.
pub(crate) fn cuda() -> Option<Cuda> {
    let lock = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    if !pellucid_cuda::is_available() {
        assert!(!is_required(), "PELLUCID_REQUIRE_CUDA is 1, but there is no CUDA library");
        println!("not run: there is no CUDA library");
        return None;
    }
    let context = primary_context();
    // SAFETY: the context exists.
    succeed(unsafe { sys::cuCtxSetCurrent(context) });
    let mut cuda = Cuda { resources: RefCell::default(), symbols: DeviceSymbols::load(), architecture: 0, _lock: lock };
    let attribute = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR;
    let major = cuda.attribute(attribute);
    let attribute = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR;
    cuda.architecture = 10 * major + cuda.attribute(attribute);
    if let Some(symbols) = &cuda.symbols {
        // A test that failed may have left reports.
        symbols.take_reports();
    }
    Some(cuda)
}

/// The device, if it is the test device.
pub(crate) fn test_device() -> Option<Cuda> {
    let cuda = cuda()?;
    if cuda.symbols.is_none() {
        println!("not run: the libraries are not those of the test device");
        return None;
    }
    // The values that the reports depend on, whatever the environment says.
    cuda.symbols().set("schedule", "both");
    cuda.symbols().set("streams", "lazy");
    cuda.symbols().set("memory", "margins");
    Some(cuda)
}

impl Cuda {
    /// The symbols of the test device.
    ///
    /// # Panics
    /// On a GPU.
    pub(crate) fn symbols(&self) -> &DeviceSymbols {
        self.symbols.as_ref().expect("the tests of reports run on the test device")
    }

    /// Returns true if the test device provides the libraries.
    pub(crate) fn is_test_device(&self) -> bool {
        self.symbols.is_some()
    }

    /// An attribute of the device.
    pub(crate) fn attribute(&self, attribute: sys::CUdevice_attribute) -> i32 {
        // SAFETY: the pointer is valid for writes.
        result_of(|value| unsafe { sys::cuDeviceGetAttribute(value, attribute, 0) }).expect("the attribute exists")
    }

    fn keep<T: Copy>(&self, value: T, resource: impl FnOnce(T) -> Resource) -> T {
        self.resources.borrow_mut().push(resource(value));
        value
    }

    /// Forgets memory that the test frees itself.
    pub(crate) fn forget_memory(&self, pointer: u64) {
        self.resources.borrow_mut().retain(|held| !matches!(held, Resource::Memory(p) if *p == pointer));
    }

    /// Memory of the device.
    pub(crate) fn memory(&self, bytes: usize) -> u64 {
        // SAFETY: the pointer is valid for writes.
        let pointer = result_of(|pointer| unsafe { sys::cuMemAlloc_v2(pointer, bytes) });
        self.keep(pointer.expect("the device has memory"), Resource::Memory)
    }

    /// Page-locked memory of the host.
    pub(crate) fn pinned<T>(&self, length: usize) -> *mut T {
        // SAFETY: the pointer is valid for writes.
        let pointer = result_of(|pointer| unsafe { sys::cuMemHostAlloc(pointer, length * size_of::<T>(), 0) });
        self.keep(pointer.expect("the host has memory"), Resource::Pinned).cast()
    }

    /// Memory of the device with values.
    pub(crate) fn upload<T: Copy>(&self, values: &[T]) -> u64 {
        let pointer = self.memory(size_of_val(values));
        // SAFETY: the memory has the size of the values.
        succeed(unsafe { sys::cuMemcpyHtoD_v2(pointer, values.as_ptr().cast(), size_of_val(values)) });
        pointer
    }

    /// The values in memory of the device, after all work of the device.
    pub(crate) fn download<T: Copy + Default>(&self, pointer: u64, length: usize) -> Vec<T> {
        succeed(self.synchronize());
        let mut values = vec![T::default(); length];
        // SAFETY: the buffer has the size that is copied; the driver checks the other range.
        succeed(unsafe { sys::cuMemcpyDtoH_v2(values.as_mut_ptr().cast(), pointer, length * size_of::<T>()) });
        values
    }

    /// Waits for all work.
    pub(crate) fn synchronize(&self) -> CUresult {
        // SAFETY: the context is current.
        unsafe { sys::cuCtxSynchronize() }
    }

    /// A stream that does not wait for the legacy stream.
    pub(crate) fn stream(&self) -> sys::CUstream {
        self.stream_with(sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING)
    }

    /// A stream with flags.
    pub(crate) fn stream_with(&self, flags: sys::CUstream_flags_enum) -> sys::CUstream {
        // SAFETY: the pointer is valid for writes.
        let stream = result_of(|stream| unsafe { sys::cuStreamCreate(stream, flags as u32) });
        self.keep(stream.expect("a stream"), Resource::Stream)
    }

    /// An event with a time.
    pub(crate) fn event(&self) -> sys::CUevent {
        self.event_with(sys::CUevent_flags_enum::CU_EVENT_DEFAULT)
    }

    /// An event with flags.
    pub(crate) fn event_with(&self, flags: sys::CUevent_flags_enum) -> sys::CUevent {
        // SAFETY: the pointer is valid for writes.
        let event = result_of(|event| unsafe { sys::cuEventCreate(event, flags as u32) });
        self.keep(event.expect("an event"), Resource::Event)
    }

    /// Destroys a graph with the test.
    pub(crate) fn keep_graph(&self, graph: sys::CUgraph) -> sys::CUgraph {
        self.keep(graph, Resource::Graph)
    }

    /// An executable graph.
    pub(crate) fn instantiate(&self, graph: sys::CUgraph) -> sys::CUgraphExec {
        // SAFETY: the pointer is valid for writes, and the graph exists.
        let exec = result_of(|exec| unsafe { sys::cuGraphInstantiateWithFlags(exec, graph, 0) });
        self.keep(exec.expect("the graph has no cycle"), Resource::Exec)
    }

    /// Compiles a text with further options. Returns the PTX or the log of the errors.
    pub(crate) fn compile(&self, text: &str, options: &[&str]) -> Result<Vec<c_char>, String> {
        let text = CString::new(text).expect("a text without zero bytes");
        let program = nvrtc::result::create_program(&text, None).expect("a program");
        let mut all = vec![format!("--gpu-architecture=compute_{}", self.architecture), "--fmad=false".to_string()];
        all.extend(options.iter().map(ToString::to_string));
        // SAFETY: the program exists until it is destroyed, and no pointer to it is kept.
        unsafe {
            let compiled = nvrtc::result::compile_program(program, &all);
            let result = match compiled {
                Ok(()) => Ok(nvrtc::result::get_ptx(program).expect("a compiled program has PTX")),
                Err(_) => {
                    let log = nvrtc::result::get_program_log(program).expect("a program has a log");
                    let bytes = log.iter().map(|&c| c as u8).take_while(|&c| c != 0).collect();
                    Err(String::from_utf8(bytes).expect("a log is UTF-8"))
                }
            };
            nvrtc::result::destroy_program(program).expect("the program exists");
            result
        }
    }

    /// Loads a text as a module.
    pub(crate) fn module(&self, text: &str) -> sys::CUmodule {
        let image = self.compile(text, &[]).unwrap_or_else(|log| panic!("{log}"));
        // SAFETY: PTX ends with a zero byte.
        let module = result_of(|module| unsafe { sys::cuModuleLoadData(module, image.as_ptr().cast()) });
        self.keep(module.expect("the module is valid"), Resource::Module)
    }

    /// A function of a module.
    pub(crate) fn function(&self, module: sys::CUmodule, name: &str) -> Result<sys::CUfunction, CUresult> {
        let name = CString::new(name).expect("a name without zero bytes");
        // SAFETY: the pointer is valid for writes, and the name is a C string.
        result_of(|function| unsafe { sys::cuModuleGetFunction(function, module, name.as_ptr()) })
    }

    /// The kernel `kernel` with the given parameters and body.
    pub(crate) fn kernel(&self, parameters: &str, body: &str) -> sys::CUfunction {
        let module = self.module(&kernel_text("kernel", parameters, body));
        self.function(module, "kernel").expect("the module has the kernel")
    }

    /// Launches a kernel, and returns the result of the call.
    pub(crate) fn try_launch(
        &self,
        kernel: sys::CUfunction,
        shape: Shape,
        stream: sys::CUstream,
        arguments: &[&dyn Argument],
    ) -> CUresult {
        let mut pointers: Vec<*mut c_void> = arguments.iter().map(|argument| argument.pointer()).collect();
        let ([gx, gy, gz], [bx, by, bz]) = (shape.grid, shape.block);
        // SAFETY: the tests pass the arguments that their kernels have, or test that the device refuses them.
        unsafe {
            let list = pointers.as_mut_ptr();
            sys::cuLaunchKernel(kernel, gx, gy, gz, bx, by, bz, shape.shared, stream, list, std::ptr::null_mut())
        }
    }

    /// Launches a kernel.
    #[track_caller]
    pub(crate) fn launch(
        &self,
        kernel: sys::CUfunction,
        shape: Shape,
        stream: sys::CUstream,
        arguments: &[&dyn Argument],
    ) {
        succeed(self.try_launch(kernel, shape, stream, arguments));
    }

    /// Checks that the test device has one report, which starts with `start`, and that waiting fails with `error`.
    #[track_caller]
    pub(crate) fn expect_report(&self, start: &str) {
        let reports = self.symbols().take_reports();
        assert!(reports.starts_with(start), "expected the report `{start}`, found `{reports}`");
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        let reports = self.symbols.as_ref().map(DeviceSymbols::take_reports);
        // SAFETY: each resource exists and is destroyed once. Errors do not matter after the test.
        unsafe {
            sys::cuCtxSynchronize();
            for resource in self.resources.get_mut().drain(..).rev() {
                let _ = match resource {
                    Resource::Memory(pointer) => sys::cuMemFree_v2(pointer),
                    Resource::Pinned(pointer) => sys::cuMemFreeHost(pointer),
                    Resource::Stream(stream) => sys::cuStreamDestroy_v2(stream),
                    Resource::Event(event) => sys::cuEventDestroy_v2(event),
                    Resource::Module(module) => sys::cuModuleUnload(module),
                    Resource::Graph(graph) => sys::cuGraphDestroy(graph),
                    Resource::Exec(exec) => sys::cuGraphExecDestroy(exec),
                };
            }
        }
        if let Some(symbols) = &self.symbols {
            for name in ["schedule", "streams", "memory"] {
                symbols.set(name, "default");
            }
        }
        if let Some(reports) = reports
            && !std::thread::panicking()
        {
            assert!(reports.is_empty(), "the test device reports:\n{reports}");
            let live = ["allocations", "streams", "events", "modules", "graphs", "executable graphs"];
            let live = live.map(|name| self.symbols().counter(&format!("live {name}")));
            assert_eq!(live, [0; 6], "the test leaves objects behind");
        }
    }
}
