//! Launches of kernels, and the arguments of launches and graph nodes.

use std::ffi::{c_uint, c_void};
use std::rc::Rc;

use cudarc::driver::sys::{CUDA_KERNEL_NODE_PARAMS_v2_st as KernelNodeParams, CUlaunchConfig_st, CUresult};

use crate::launch::{KernelLaunch, argument_units};
use crate::modules::KernelCode;
use crate::reports::FaultKind;
use crate::work::Work;
use crate::{TestDevice, context_call};

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
    /// Creates the request of a kernel node.
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

/// Copies bytes of this process from several addresses, one after the other. Returns false if they cannot be read.
fn read_checked(parts: &[(usize, usize)], bytes: &mut [u8]) -> bool {
    let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let remote_part =
        |&(address, length): &(usize, usize)| libc::iovec { iov_base: address as *mut c_void, iov_len: length };
    let remote: Vec<libc::iovec> = parts.iter().map(remote_part).collect();
    let count = remote.len() as libc::c_ulong;
    // SAFETY: `local` describes `bytes`. The system checks the other addresses.
    let read = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, remote.as_ptr(), count, 0) };
    if read >= 0 || std::io::Error::last_os_error().raw_os_error() == Some(libc::EFAULT) {
        return read == bytes.len() as isize;
    }
    // The system forbids the call (EPERM, ENOSYS).
    let mut rest = bytes;
    for &(address, length) in parts {
        let (part, after) = rest.split_at_mut(length);
        // SAFETY: the caller of a launch promises that the arguments are valid for reads.
        unsafe { std::ptr::copy_nonoverlapping(address as *const u8, part.as_mut_ptr(), length) };
        rest = after;
    }
    true
}

/// Reads words of 64 bits.
fn read_words(address: usize, count: usize) -> Option<Vec<usize>> {
    let mut bytes = vec![0; 8 * count];
    read_checked(&[(address, 8 * count)], &mut bytes)
        .then(|| bytes.as_chunks().0.iter().map(|word| usize::from_ne_bytes(*word)).collect())
}

fn read_word(address: usize) -> Option<usize> {
    read_words(address, 1).map(|words| words[0])
}

/// Reads the values at the addresses, each padded to 16-byte units.
fn read_arguments(code: &KernelCode, addresses: &[usize]) -> Option<Vec<u128>> {
    let sizes = code.parameters.iter().map(|parameter| parameter.size as usize);
    let parts: Vec<(usize, usize)> = addresses.iter().copied().zip(sizes).collect();
    let mut bytes = vec![0_u8; parts.iter().map(|(_, size)| size).sum()];
    if !bytes.is_empty() && !read_checked(&parts, &mut bytes) {
        return None;
    }
    let mut units = Vec::new();
    let mut rest = bytes.as_slice();
    for (_, size) in parts {
        let (value, after) = rest.split_at(size);
        let mut padded = vec![0_u8; argument_units(size as u32) * 16];
        padded[..size].copy_from_slice(value);
        units.extend(padded.as_chunks().0.iter().map(|unit| u128::from_ne_bytes(*unit)));
        rest = after;
    }
    Some(units)
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
    let mut addresses = Vec::new();
    let mut offset = 0_usize;
    for parameter in &code.parameters {
        let alignment = 1 << parameter.size.trailing_zeros().min(4);
        offset = offset.next_multiple_of(alignment);
        addresses.push(buffer + offset);
        offset += parameter.size as usize;
    }
    // The size may include the padding at the end of a structure.
    if offset != size && offset.next_multiple_of(8) != size {
        return Err(format!("the buffer has {size} bytes, the parameters have {offset}"));
    }
    Ok(read_arguments(code, &addresses).ok_or("the buffer is unreadable")?)
}

/// Arguments by pointers.
fn pointer_arguments(code: &KernelCode, pointers: usize, is_terminated: bool) -> Result<Vec<u128>, String> {
    let count = code.parameters.len();
    if count > 0 && pointers == 0 {
        return Err(format!("no arguments for {count} parameters"));
    }
    let addresses = match count {
        0 => Vec::new(),
        _ => read_words(pointers, count).ok_or("the list of arguments cannot be read")?,
    };
    if let Some(index) = addresses.iter().position(|&address| address == 0) {
        return Err(format!("argument {index} of {count} cannot be read"));
    }
    let units = read_arguments(code, &addresses).ok_or("an argument cannot be read")?;
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
        self.settings.check_memory()?;
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
