//! [`CudaKernel`]: a compiled kernel. NVRTC compiles its text; compiled code is kept in a folder.

use crate::context::Context;
use crate::language::{KERNEL, passes_values};
use cudarc::driver::sys::{self, CUresult};
use cudarc::nvrtc::sys::{self as nvrtc, nvrtcResult};
use pellucid_gpu::KernelSource;
use pellucid_ir::{Error, Result};
use std::ffi::{CString, c_char, c_int};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::{env, fs, process};

/// The environment variable that names the folder of compiled kernels.
const CACHE_VARIABLE: &str = "PELLUCID_CUDA_CACHE";

/// A compiled kernel, loaded into a context.
pub struct CudaKernel {
    context: Arc<Context>,
    module: sys::CUmodule,
    function: sys::CUfunction,
    /// The number of words of the parameters.
    pub(crate) parameter_words: usize,
    /// Whether the parameters are passed by value.
    pub(crate) passes_values: bool,
    /// The number of buffers.
    pub(crate) bindings: usize,
}

// SAFETY: the driver's calls are thread-safe, and the handles are valid until the kernel is dropped.
unsafe impl Send for CudaKernel {}
// SAFETY: the calls of the driver are thread-safe, so several threads may share a reference.
unsafe impl Sync for CudaKernel {}

impl CudaKernel {
    /// Compiles the kernel `op` with this text, or reads its code from the folder of compiled kernels.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] with the messages of the compiler if it rejects the text; the errors of the device.
    pub(crate) fn new(
        context: &Arc<Context>,
        op: &'static str,
        text: &str,
        source: &KernelSource<'_>,
    ) -> Result<CudaKernel> {
        let options = options(context.architecture, known_architectures());
        let cached = CachedCode::new(text, &options, context.mark.is_some());
        let compiled = || {
            let code = compile(op, text, &options)?;
            if let Some(cached) = &cached {
                cached.write(&code);
            }
            load(context, op, &code)
        };
        context.enter()?;
        let module = match cached.as_ref().and_then(CachedCode::read) {
            // The device may reject a file that another program has written. The text is then compiled again.
            Some(code) => match load(context, op, &code) {
                Err(Error::InvalidArgument { .. }) => compiled()?,
                loaded => loaded?,
            },
            None => compiled()?,
        };
        let mut function = null_mut();
        let name = CString::new(KERNEL).unwrap_or_default();
        // SAFETY: the pointer to the result is valid for a write, and the name is a C string.
        let found = unsafe { sys::cuModuleGetFunction(&raw mut function, module, name.as_ptr()) };
        let (context, parameter_words) = (context.clone(), source.parameter_words);
        let (passes_values, bindings) = (passes_values(source), source.bindings.len());
        let kernel = CudaKernel { context, module, function, parameter_words, passes_values, bindings };
        kernel.context.check(op, found)?;
        kernel.context.counters.pipelines.add(1);
        Ok(kernel)
    }

    /// Returns the function for launches.
    pub(crate) fn function(&self) -> sys::CUfunction {
        self.function
    }
}

impl Drop for CudaKernel {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // A submitted kernel of the module may still run.
            let _ = self.context.wait();
            // SAFETY: the module was loaded into this context, and is unloaded once.
            let _ = unsafe { sys::cuModuleUnload(self.module) };
        }
    }
}

/// Loads code into a context, which is current.
///
/// # Errors
/// The errors of [`Context::submit`]; [`Error::InvalidArgument`] if the driver rejects the code.
fn load(context: &Context, op: &'static str, code: &[u8]) -> Result<sys::CUmodule> {
    let mut module = null_mut();
    let result = &raw mut module;
    // SAFETY: the pointer to the result is valid for a write, and the code is complete: NVRTC has returned it, now or
    // when the file was written, whose checksum is compared.
    context.submit(op, || unsafe { sys::cuModuleLoadData(result, code.as_ptr().cast()) })?;
    Ok(module)
}

/// Returns the architectures that NVRTC knows, or none if it does not tell them.
fn known_architectures() -> &'static [c_int] {
    static KNOWN: OnceLock<Vec<c_int>> = OnceLock::new();
    KNOWN.get_or_init(|| {
        let mut count: c_int = 0;
        // SAFETY: the pointer to the result is valid for a write.
        let counted = unsafe { nvrtc::nvrtcGetNumSupportedArchs(&raw mut count) };
        let mut architectures = vec![0; count.max(0) as usize];
        // SAFETY: the buffer has as many elements as NVRTC has counted.
        let listed = unsafe { nvrtc::nvrtcGetSupportedArchs(architectures.as_mut_ptr()) };
        if (counted, listed) == (nvrtcResult::NVRTC_SUCCESS, nvrtcResult::NVRTC_SUCCESS) {
            architectures
        } else {
            Vec::new()
        }
    })
}

/// Starts the option of a compilation to PTX, which the driver compiles for the device.
const VIRTUAL_ARCHITECTURE: &str = "--gpu-architecture=compute_";

/// Returns the options of the compiler. `--fmad=false` prevents the contraction of products and sums, so results have
/// the bits of the CPU.
///
/// For a device that is newer than `known`, the architectures of NVRTC, the result is PTX for the newest of them.
fn options(architecture: u32, known: &[c_int]) -> Vec<String> {
    let older = known.iter().copied().filter(|&known| known < architecture as c_int).max();
    let target = match older {
        Some(older) if !known.contains(&(architecture as c_int)) => format!("{VIRTUAL_ARCHITECTURE}{older}"),
        _ => format!("--gpu-architecture=sm_{architecture}"),
    };
    vec![target, "--fmad=false".into(), "--std=c++17".into()]
}

/// A program of NVRTC.
struct NvrtcProgram(nvrtc::nvrtcProgram);

impl Drop for NvrtcProgram {
    fn drop(&mut self) {
        // SAFETY: the program was created and is destroyed once.
        let _ = unsafe { nvrtc::nvrtcDestroyProgram(&raw mut self.0) };
    }
}

/// Compiles a text and returns the code for the device, or PTX, which ends with a zero byte.
fn compile(op: &'static str, text: &str, options: &[String]) -> Result<Vec<u8>> {
    let failed = |what: String| Error::invalid(op, format!("NVRTC cannot compile a kernel: {what}"));
    let checked = |result: nvrtcResult| match result {
        nvrtcResult::NVRTC_SUCCESS => Ok(()),
        error => Err(failed(format!("{error:?}"))),
    };
    let has_zero = |_| failed("the text contains a zero byte".into());
    let text = CString::new(text).map_err(has_zero)?;
    let options = options.iter().map(|option| CString::new(&**option).map_err(has_zero)).collect::<Result<Vec<_>>>()?;
    let is_ptx = options.iter().any(|option| option.to_bytes().starts_with(VIRTUAL_ARCHITECTURE.as_bytes()));
    let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
    let mut program = NvrtcProgram(null_mut());
    // SAFETY: the pointer to the result is valid for a write, and the text and the name are C strings. There are no
    // headers.
    checked(unsafe {
        nvrtc::nvrtcCreateProgram(&raw mut program.0, text.as_ptr(), c"kernel.cu".as_ptr(), 0, null(), null())
    })?;
    // SAFETY: the options are C strings, which live until the end of this function.
    let compiled = unsafe { nvrtc::nvrtcCompileProgram(program.0, options.len() as i32, options.as_ptr()) };
    if compiled != nvrtcResult::NVRTC_SUCCESS {
        return Err(failed(log(&program)));
    }
    let mut size = 0;
    let result = match is_ptx {
        // SAFETY: the pointer to the result is valid for a write.
        true => unsafe { nvrtc::nvrtcGetPTXSize(program.0, &raw mut size) },
        // SAFETY: the pointer to the result is valid for a write.
        false => unsafe { nvrtc::nvrtcGetCUBINSize(program.0, &raw mut size) },
    };
    checked(result)?;
    let mut code = vec![0u8; size];
    let result = match is_ptx {
        // SAFETY: the buffer has the size that NVRTC has returned.
        true => unsafe { nvrtc::nvrtcGetPTX(program.0, code.as_mut_ptr().cast()) },
        // SAFETY: the buffer has the size that NVRTC has returned.
        false => unsafe { nvrtc::nvrtcGetCUBIN(program.0, code.as_mut_ptr().cast()) },
    };
    checked(result)?;
    Ok(code)
}

/// Returns the messages of the compiler.
fn log(program: &NvrtcProgram) -> String {
    let mut size = 0;
    // SAFETY: the pointer to the result is valid for a write.
    if unsafe { nvrtc::nvrtcGetProgramLogSize(program.0, &raw mut size) } != nvrtcResult::NVRTC_SUCCESS {
        return "without a message".into();
    }
    let mut text = vec![0u8; size];
    // SAFETY: the buffer has the size that NVRTC has returned.
    let _ = unsafe { nvrtc::nvrtcGetProgramLog(program.0, text.as_mut_ptr().cast()) };
    String::from_utf8_lossy(&text).trim_end_matches('\0').to_string()
}

/// The file with the compiled code of a text.
///
/// The file contains the key, which is the text with everything else on which the code depends, a checksum of the code,
/// and the code. A file with another key is not used, so equal hashes do no harm. Files are written under another name
/// first, and a file whose checksum differs is not used.
struct CachedCode {
    path: PathBuf,
    key: Vec<u8>,
}

impl CachedCode {
    /// Returns the file for a text, or `None` if there is no folder for it. The code of the test device, which is
    /// another kind of code, has other keys.
    fn new(text: &str, options: &[String], is_test_device: bool) -> Option<CachedCode> {
        let folder = cache_folder()?;
        let (mut major, mut minor, mut driver) = (0, 0, 0);
        // SAFETY: the pointers to the results are valid for writes.
        let versions =
            unsafe { (nvrtc::nvrtcVersion(&raw mut major, &raw mut minor), sys::cuDriverGetVersion(&raw mut driver)) };
        if versions != (nvrtcResult::NVRTC_SUCCESS, CUresult::CUDA_SUCCESS) {
            return None;
        }
        let device = if is_test_device { ", test device" } else { "" };
        let key = format!("{}\nNVRTC {major}.{minor}, driver {driver}{device}\n{text}", options.join(" ")).into_bytes();
        Some(CachedCode { path: folder.join(format!("{:016x}.cubin", hash_of(&key))), key })
    }

    /// Returns the code, if the file exists and has the key.
    fn read(&self) -> Option<Vec<u8>> {
        let contents = fs::read(&self.path).ok()?;
        let rest = contents.strip_prefix(&(self.key.len() as u64).to_le_bytes())?.strip_prefix(&*self.key)?;
        let (sum, code) = rest.split_first_chunk()?;
        (u64::from_le_bytes(*sum) == hash_of(code)).then(|| code.to_vec())
    }

    /// Writes the file. An error is no failure: the text is compiled again.
    fn write(&self, code: &[u8]) {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let contents =
            [&(self.key.len() as u64).to_le_bytes(), &*self.key, &hash_of(code).to_le_bytes(), code].concat();
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let temporary = self.path.with_extension(format!("{}-{number}.part", process::id()));
        let written =
            self.path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(&temporary, contents));
        if written.and_then(|()| fs::rename(&temporary, &self.path)).is_err() {
            let _ = fs::remove_file(&temporary);
        }
    }
}

fn hash_of(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

/// Returns the folder of compiled kernels: the value of [`CACHE_VARIABLE`], or a folder of the user's caches. An empty
/// value turns the cache off.
fn cache_folder() -> Option<PathBuf> {
    if let Some(folder) = env::var_os(CACHE_VARIABLE) {
        return Some(PathBuf::from(folder)).filter(|folder| !folder.as_os_str().is_empty());
    }
    let base = |variable: &str, folder: &str| {
        let base = env::var_os(variable).filter(|value| !value.is_empty())?;
        Some(Path::new(&base).join(folder))
    };
    let caches = base("XDG_CACHE_HOME", "").or_else(|| base("HOME", ".cache")).or_else(|| base("LOCALAPPDATA", ""))?;
    Some(caches.join("pellucid").join("cuda"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_newer_than_the_compiler_gets_ptx() {
        let target = |architecture| options(architecture, &[75, 80, 90, 100, 120]).swap_remove(0);
        assert_eq!(target(90), "--gpu-architecture=sm_90");
        assert_eq!(target(121), "--gpu-architecture=compute_120");
        assert_eq!(target(103), "--gpu-architecture=compute_100");
        // NVRTC names the error of a device that is too old for it.
        assert_eq!(target(70), "--gpu-architecture=sm_70");
        assert_eq!(options(90, &[])[0], "--gpu-architecture=sm_90");
    }

    #[test]
    fn a_file_of_compiled_code_is_complete_and_has_its_key() {
        let path = env::temp_dir().join(format!("pellucid-cuda-{}", process::id())).join("code.cubin");
        let of_key = |key: &str| CachedCode { path: path.clone(), key: key.into() };
        let cached = of_key("text");
        assert_eq!(cached.read(), None);
        cached.write(b"code");
        assert_eq!(cached.read().as_deref(), Some(&b"code"[..]));
        assert_eq!(of_key("other").read(), None, "a file with another key must not be used");
        let contents = fs::read(&path).unwrap();
        for len in 0..contents.len() {
            fs::write(&path, &contents[..len]).unwrap();
            assert_eq!(cached.read(), None, "a file with {len} of {} bytes must not be used", contents.len());
        }
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }
}
