//! NVRTC: programs that the host's C++ compiler compiles. PTX and CUBIN are images of the test device.

use std::ffi::{CStr, c_char, c_int};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use cudarc::nvrtc::sys::nvrtcResult;

use crate::compiler::KernelSource;
use crate::graph_calls::list_of;
use crate::handles::HandleTable;
use crate::interface::Out;
use crate::lock_device;
use crate::report_calls::text_of;

/// A program.
struct ProgramState {
    source: KernelSource,
    log: String,
    /// The image, once the program is compiled.
    image: Option<String>,
    /// The target is a real architecture, which has a CUBIN.
    has_binary: bool,
}

static PROGRAMS: LazyLock<Mutex<HandleTable<ProgramState>>> = LazyLock::new(Mutex::default);

fn programs() -> MutexGuard<'static, HandleTable<ProgramState>> {
    PROGRAMS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Architectures of the real compiler that the device accepts.
const ARCHITECTURES: [c_int; 8] = [75, 80, 86, 89, 90, 100, 103, 120];

fn put<T>(out: Out<'_, T>, value: T) -> nvrtcResult {
    match out {
        Some(out) => {
            out.write(value);
            nvrtcResult::NVRTC_SUCCESS
        }
        None => nvrtcResult::NVRTC_ERROR_INVALID_INPUT,
    }
}

/// # Safety
/// *C string* of [`text_of`], for `source` and `name`. Headers are not supported.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvrtcCreateProgram(
    program: Out<'_, usize>,
    source: *const c_char,
    name: *const c_char,
    headers: c_int,
    _texts: usize,
    _names: usize,
) -> nvrtcResult {
    if source.is_null() || headers != 0 {
        return nvrtcResult::NVRTC_ERROR_INVALID_INPUT;
    }
    // SAFETY: the clause *C string* is the caller's.
    let (text, name) = unsafe { (text_of(source), text_of(name)) };
    let name = if name.is_empty() { "default_program" } else { name };
    let source = KernelSource { name: name.to_string(), text: text.to_string(), options: Vec::new() };
    let state = ProgramState { source, log: String::new(), image: None, has_binary: false };
    put(program, programs().insert(state))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvrtcDestroyProgram(program: Option<&mut usize>) -> nvrtcResult {
    match program.map(|program| programs().remove(std::mem::take(program))) {
        Some(Some(_)) => nvrtcResult::NVRTC_SUCCESS,
        _ => nvrtcResult::NVRTC_ERROR_INVALID_PROGRAM,
    }
}

/// What an option of NVRTC means here.
enum OptionMeaning {
    /// Passed on to the C++ compiler.
    Kept(String),
    /// A target: the number of the architecture, and whether it is a real one.
    Target(c_int, bool),
    /// No meaning on a CPU.
    Ignored,
    Invalid,
}

fn option_meaning(option: &str) -> OptionMeaning {
    const IGNORED: [&str; 12] = [
        "--fmad=",
        "-fmad=",
        "--use_fast_math",
        "-use_fast_math",
        "--ptxas-options",
        "-lineinfo",
        "--generate-line-info",
        "--restrict",
        "-restrict",
        "--extra-device-vectorization",
        "-default-device",
        "-w",
    ];
    let target = option.strip_prefix("--gpu-architecture=").or_else(|| option.strip_prefix("-arch="));
    if let Some(target) = target {
        let (number, is_real) = match (target.strip_prefix("sm_"), target.strip_prefix("compute_")) {
            (Some(number), _) => (number, true),
            (_, Some(number)) => (number, false),
            _ => return OptionMeaning::Invalid,
        };
        let digits = number.trim_end_matches(['a', 'f']);
        return match digits.parse() {
            Ok(number) if ARCHITECTURES.contains(&number) => OptionMeaning::Target(number, is_real),
            _ => OptionMeaning::Invalid,
        };
    }
    let long = [("--define-macro=", "-D"), ("--include-path=", "-I"), ("--undefine-macro=", "-U"), ("--std=", "-std=")];
    for (long, short) in long {
        if let Some(value) = option.strip_prefix(long) {
            return OptionMeaning::Kept(format!("{short}{value}"));
        }
    }
    if ["-D", "-I", "-U", "-std="].iter().any(|short| option.starts_with(short)) {
        return OptionMeaning::Kept(option.to_string());
    }
    if IGNORED.iter().any(|known| option.starts_with(known)) {
        return OptionMeaning::Ignored;
    }
    OptionMeaning::Invalid
}

/// # Safety
/// *Options:* `options` has `count` C strings.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvrtcCompileProgram(
    program: usize,
    count: c_int,
    options: *const *const c_char,
) -> nvrtcResult {
    let Some(mut source) = programs().get(program).map(|state| state.source.clone()) else {
        return nvrtcResult::NVRTC_ERROR_INVALID_PROGRAM;
    };
    // SAFETY: the clause *Options*.
    let Ok(options) = (unsafe { list_of(options, count.max(0) as usize) }) else {
        return nvrtcResult::NVRTC_ERROR_INVALID_INPUT;
    };
    // Without a target, NVRTC compiles for its oldest architecture.
    let (mut architecture, mut has_binary) = (ARCHITECTURES[0], false);
    for &option in options {
        // SAFETY: the clause *Options*.
        let option = unsafe { CStr::from_ptr(option) }.to_string_lossy();
        match option_meaning(&option) {
            OptionMeaning::Kept(option) => source.options.push(option),
            OptionMeaning::Target(number, is_real) => (architecture, has_binary) = (number, is_real),
            OptionMeaning::Ignored => {}
            OptionMeaning::Invalid => {
                if let Some(state) = programs().get_mut(program) {
                    state.log = format!("nvrtc: error: invalid option: {option}\n");
                }
                return nvrtcResult::NVRTC_ERROR_INVALID_OPTION;
            }
        }
    }
    source.options.push(format!("-D__CUDA_ARCH__={}", 10 * architecture));
    // The compiler runs without a lock, so that threads compile at the same time.
    let compiled = source.compile();
    let mut programs = programs();
    let Some(state) = programs.get_mut(program) else {
        return nvrtcResult::NVRTC_ERROR_INVALID_PROGRAM;
    };
    match compiled {
        Ok((_, is_new)) => {
            if is_new {
                lock_device().reports.count("compilations");
            }
            state.log.clear();
            state.image = Some(source.image());
            state.has_binary = has_binary;
            nvrtcResult::NVRTC_SUCCESS
        }
        Err(log) => {
            state.log = log;
            nvrtcResult::NVRTC_ERROR_COMPILATION
        }
    }
}

/// Which text of a program is read.
#[derive(Clone, Copy)]
enum ProgramText {
    Log,
    Ptx,
    Cubin,
}

/// Passes a text of a program, which ends with a zero byte, to `read`.
fn read_text(program: usize, text: ProgramText, read: impl FnOnce(&[u8]) -> nvrtcResult) -> nvrtcResult {
    let programs = programs();
    let Some(state) = programs.get(program) else {
        return nvrtcResult::NVRTC_ERROR_INVALID_PROGRAM;
    };
    let found = match text {
        ProgramText::Log => Some(&state.log),
        ProgramText::Ptx => state.image.as_ref(),
        ProgramText::Cubin if state.has_binary => state.image.as_ref(),
        // A virtual architecture has no CUBIN: its size is 0.
        ProgramText::Cubin if state.image.is_some() => return read(&[]),
        ProgramText::Cubin => None,
    };
    match found {
        Some(found) => {
            let mut bytes = found.clone().into_bytes();
            bytes.push(0);
            read(&bytes)
        }
        None => nvrtcResult::NVRTC_ERROR_INVALID_PROGRAM,
    }
}

/// Copies a text of a program.
///
/// # Safety
/// *Buffer:* `buffer` is valid for writes of as many bytes as the call for the size returns.
unsafe fn copy_text(program: usize, text: ProgramText, buffer: *mut c_char) -> nvrtcResult {
    read_text(program, text, |bytes| {
        if buffer.is_null() {
            return nvrtcResult::NVRTC_ERROR_INVALID_INPUT;
        }
        // SAFETY: the pointer is not null; the rest is the clause *Buffer*.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), buffer, bytes.len()) };
        nvrtcResult::NVRTC_SUCCESS
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvrtcGetProgramLogSize(program: usize, size: Out<'_, usize>) -> nvrtcResult {
    read_text(program, ProgramText::Log, |bytes| put(size, bytes.len()))
}

/// # Safety
/// *Buffer* of [`copy_text`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvrtcGetProgramLog(program: usize, log: *mut c_char) -> nvrtcResult {
    // SAFETY: the clause *Buffer* is the caller's.
    unsafe { copy_text(program, ProgramText::Log, log) }
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvrtcGetPTXSize(program: usize, size: Out<'_, usize>) -> nvrtcResult {
    read_text(program, ProgramText::Ptx, |bytes| put(size, bytes.len()))
}

/// # Safety
/// *Buffer* of [`copy_text`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvrtcGetPTX(program: usize, ptx: *mut c_char) -> nvrtcResult {
    // SAFETY: the clause *Buffer* is the caller's.
    unsafe { copy_text(program, ProgramText::Ptx, ptx) }
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvrtcGetCUBINSize(program: usize, size: Out<'_, usize>) -> nvrtcResult {
    read_text(program, ProgramText::Cubin, |bytes| put(size, bytes.len()))
}

/// # Safety
/// *Buffer* of [`copy_text`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvrtcGetCUBIN(program: usize, cubin: *mut c_char) -> nvrtcResult {
    // SAFETY: the clause *Buffer* is the caller's.
    unsafe { copy_text(program, ProgramText::Cubin, cubin) }
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvrtcVersion(major: Out<'_, c_int>, minor: Out<'_, c_int>) -> nvrtcResult {
    put(major, 13);
    put(minor, 0)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvrtcGetNumSupportedArchs(count: Out<'_, c_int>) -> nvrtcResult {
    put(count, ARCHITECTURES.len() as c_int)
}

/// # Safety
/// *Buffer:* `architectures` is valid for writes of as many numbers as `nvrtcGetNumSupportedArchs` returns.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvrtcGetSupportedArchs(architectures: *mut c_int) -> nvrtcResult {
    if architectures.is_null() {
        return nvrtcResult::NVRTC_ERROR_INVALID_INPUT;
    }
    // SAFETY: the clause *Buffer*.
    unsafe { std::ptr::copy_nonoverlapping(ARCHITECTURES.as_ptr(), architectures, ARCHITECTURES.len()) };
    nvrtcResult::NVRTC_SUCCESS
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvrtcGetErrorString(result: c_int) -> *const c_char {
    let text = match result {
        0 => c"NVRTC_SUCCESS",
        3 => c"NVRTC_ERROR_INVALID_INPUT",
        4 => c"NVRTC_ERROR_INVALID_PROGRAM",
        5 => c"NVRTC_ERROR_INVALID_OPTION",
        6 => c"NVRTC_ERROR_COMPILATION",
        _ => c"NVRTC_ERROR unknown",
    };
    text.as_ptr()
}
