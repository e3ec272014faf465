//! Launches of kernels, and the arguments of launches and graph nodes.

use std::ffi::{c_uint, c_void};
use std::rc::Rc;

use cudarc::driver::sys::{CUDA_KERNEL_NODE_PARAMS_v2_st as KernelNodeParams, CUlaunchConfig_st, CUresult};

use crate::device::{TestDevice, context_call};
use crate::launch::{KernelLaunch, argument_units};
use crate::modules::{KernelCode, KernelParameter};
use crate::reports::FaultKind;
use crate::work::Work;

/// The dimensions and arguments of a launch in the C interface.
pub(crate) struct LaunchRequest {
    pub(crate) function: usize,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    pointers: usize,
    extra: usize,
}

impl LaunchRequest {
    /// The request of a kernel node.
    pub(crate) fn from_node(node: &KernelNodeParams) -> Self {
        Self {
            function: node.func as usize,
            grid: [node.gridDimX, node.gridDimY, node.gridDimZ],
            block: [node.blockDimX, node.blockDimY, node.blockDimZ],
            shared: node.sharedMemBytes,
            pointers: node.kernelParams as usize,
            extra: node.extra as usize,
        }
    }
}

/// Copies bytes of this process. Returns false if they cannot be read.
fn read_checked(address: usize, bytes: &mut [u8]) -> bool {
    let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let remote = libc::iovec { iov_base: address as *mut c_void, iov_len: bytes.len() };
    // SAFETY: `local` describes `bytes`. The system checks the other address.
    let read = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    if read < 0 && std::io::Error::last_os_error().raw_os_error() != Some(libc::EFAULT) {
        // The system forbids the call (EPERM, ENOSYS).
        // SAFETY: the caller of a launch promises that the arguments are valid for reads.
        unsafe { std::ptr::copy_nonoverlapping(address as *const u8, bytes.as_mut_ptr(), bytes.len()) };
        return true;
    }
    read == bytes.len() as isize
}

fn read_word(address: usize) -> Option<usize> {
    let mut bytes = [0; 8];
    read_checked(address, &mut bytes).then(|| usize::from_ne_bytes(bytes))
}

/// Reads the value of a parameter into 16-byte units.
fn read_argument(address: usize, parameter: &KernelParameter) -> Option<Vec<u128>> {
    let mut bytes = vec![0_u8; argument_units(parameter.size) * 16];
    read_checked(address, &mut bytes[..parameter.size as usize])
        .then(|| bytes.chunks_exact(16).map(|unit| u128::from_ne_bytes(unit.try_into().expect("16 bytes"))).collect())
}

/// Arguments in one buffer, with the offsets of a C structure.
fn buffer_arguments(code: &KernelCode, extra: usize) -> Result<Vec<u128>, String> {
    let word = |index: usize| read_word(extra + 8 * index).ok_or("the list `extra` is unreadable");
    let (mut buffer, mut size) = (0, 0);
    for entry in (0..).step_by(2) {
        match word(entry)? {
            0 => break,
            1 => buffer = word(entry + 1)?,
            2 => size = read_word(word(entry + 1)?).ok_or("the size of the buffer is unreadable")?,
            other => return Err(format!("the list `extra` has the unknown entry {other}")),
        }
    }
    let mut units = Vec::new();
    let mut offset = 0_usize;
    for parameter in &code.parameters {
        let alignment = 1 << parameter.size.trailing_zeros().min(4);
        offset = offset.next_multiple_of(alignment);
        units.extend(read_argument(buffer + offset, parameter).ok_or("the buffer is unreadable")?);
        offset += parameter.size as usize;
    }
    // The size may include the padding at the end of a structure.
    if offset != size && offset.next_multiple_of(8) != size {
        return Err(format!("the buffer has {size} bytes, the parameters have {offset}"));
    }
    Ok(units)
}

/// Arguments by pointers.
fn pointer_arguments(code: &KernelCode, pointers: usize, is_terminated: bool) -> Result<Vec<u128>, String> {
    let count = code.parameters.len();
    if count > 0 && pointers == 0 {
        return Err(format!("no arguments for {count} parameters"));
    }
    let mut units = Vec::new();
    for (index, parameter) in code.parameters.iter().enumerate() {
        let address = read_word(pointers + 8 * index).filter(|&address| address != 0);
        let argument = address.and_then(|address| read_argument(address, parameter));
        units.extend(argument.ok_or_else(|| format!("argument {index} of {count} cannot be read"))?);
    }
    if is_terminated && pointers != 0 && read_word(pointers + 8 * count) != Some(0) {
        return Err(format!("more than {count} arguments, or no null pointer after them"));
    }
    Ok(units)
}

impl TestDevice {
    /// Checks a launch and copies its arguments.
    ///
    /// # Errors
    /// An invalid function; an invalid value for limits and arguments; the fault of a pointer.
    pub(crate) fn make_launch(&mut self, request: &LaunchRequest) -> Result<KernelLaunch, CUresult> {
        let Some(function) = self.functions.get(request.function) else {
            return Err(self.invalid_handle("function", request.function));
        };
        let (code, max_dynamic) = (function.code.clone(), function.max_dynamic);
        let arguments = if request.extra != 0 {
            buffer_arguments(&code, request.extra)
        } else {
            pointer_arguments(&code, request.pointers, self.settings.has_terminated_arguments)
        };
        let arguments = match arguments {
            Ok(arguments) => arguments,
            Err(text) => {
                let text = format!("kernel {}: {text}", code.name);
                return Err(self.reports.report(FaultKind::Arguments, text));
            }
        };
        let launch = KernelLaunch {
            code,
            function: request.function,
            grid: request.grid,
            block: request.block,
            dynamic: request.shared as usize,
            arguments,
        };
        if let Some(text) = launch.limit_fault(max_dynamic) {
            return Err(self.reports.report(FaultKind::Limit, text));
        }
        for (index, (address, _)) in launch.pointers().into_iter().enumerate() {
            if address != 0
                && let Err((kind, text)) = self.memory.resolve(address, 0, false)
            {
                let text = format!("kernel {}: pointer argument {index}: {text}", launch.code.name);
                return Err(self.reports.report(kind, text));
            }
        }
        Ok(launch)
    }

    fn launch(&mut self, request: &LaunchRequest, stream: usize) -> Result<(), CUresult> {
        self.stream(stream)?;
        let launch = self.make_launch(request)?;
        self.reports.count("launches");
        self.enqueue(stream, Work::Kernel(Rc::new(launch)))
    }
}

/// # Safety
/// *Arguments:* `parameters` has a pointer to a value of each parameter of the kernel, or `extra` describes a buffer.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuLaunchKernel(
    function: usize,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared: c_uint,
    stream: usize,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CUresult {
    let request = LaunchRequest {
        function,
        grid: [grid_x, grid_y, grid_z],
        block: [block_x, block_y, block_z],
        shared,
        pointers: parameters as usize,
        extra: extra as usize,
    };
    context_call(|device| device.launch(&request, stream))
}

/// Attributes of launches change nothing here.
///
/// # Safety
/// *Arguments:* as for `cuLaunchKernel`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuLaunchKernelEx(
    config: Option<&CUlaunchConfig_st>,
    function: usize,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CUresult {
    context_call(|device| {
        let config = config.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let request = LaunchRequest {
            function,
            grid: [config.gridDimX, config.gridDimY, config.gridDimZ],
            block: [config.blockDimX, config.blockDimY, config.blockDimZ],
            shared: config.sharedMemBytes,
            pointers: parameters as usize,
            extra: extra as usize,
        };
        device.launch(&request, config.hStream as usize)
    })
}
