//! NVRTC and modules.

use std::ffi::CString;

use cudarc::driver::sys::{self, CUfunction_attribute, CUresult};
use cudarc::nvrtc::sys::{self as nvrtc, nvrtcResult};

use crate::harness::{cuda, kernel_text, line, result_of};

#[test]
fn compiler_error_names_the_line() {
    let Some(cuda) = cuda() else { return };
    let text = "\n\nextern \"C\" __global__ void f(int *a) { a[0] = missing; }\n";
    let log = cuda.compile(text, &[]).expect_err("the text is wrong");
    assert!(log.contains("(3): error:") && log.contains("missing"), "{log}");
}

#[test]
fn unknown_option_is_an_error() {
    let Some(cuda) = cuda() else { return };
    let text = kernel_text("f", "int *a", "a[0] = 1;");
    cuda.compile(&text, &["--no-such-option"]).expect_err("the option does not exist");
}

#[test]
fn compilation_without_messages_has_an_empty_log() {
    let Some(_cuda) = cuda() else { return };
    let text = CString::new(kernel_text("f", "int *a", "a[0] = 1;")).expect("no zero bytes");
    let options = [c"--gpu-architecture=sm_90".as_ptr(), c"--fmad=false".as_ptr()];
    // SAFETY: the program exists until it is destroyed, strings are C strings, and results are valid for writes.
    unsafe {
        let mut program = std::ptr::null_mut();
        let null = std::ptr::null();
        nvrtc::nvrtcCreateProgram(&mut program, text.as_ptr(), null, 0, null.cast(), null.cast());
        assert_eq!(nvrtc::nvrtcCompileProgram(program, 2, options.as_ptr()), nvrtcResult::NVRTC_SUCCESS);
        let (mut log, mut cubin) = (0, 0);
        nvrtc::nvrtcGetProgramLogSize(program, &mut log);
        nvrtc::nvrtcGetCUBINSize(program, &mut cubin);
        assert_eq!(log, 1);
        assert!(cubin > 1, "a real architecture has a CUBIN");
        nvrtc::nvrtcDestroyProgram(&mut program);
    }
}

#[test]
fn cubin_loads_as_a_module() {
    let Some(cuda) = cuda() else { return };
    let text = CString::new(kernel_text("f", "unsigned *a", "a[0] = 5;")).expect("no zero bytes");
    let major = cuda.attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
    let minor = cuda.attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    let option = CString::new(format!("--gpu-architecture=sm_{major}{minor}")).expect("no zero bytes");
    let options = [option.as_ptr()];
    let memory = cuda.memory(4);
    // SAFETY: as in `compilation_without_messages_has_an_empty_log`; the buffer has the size of the CUBIN.
    unsafe {
        let mut program = std::ptr::null_mut();
        let null = std::ptr::null();
        nvrtc::nvrtcCreateProgram(&mut program, text.as_ptr(), null, 0, null.cast(), null.cast());
        nvrtc::nvrtcCompileProgram(program, 1, options.as_ptr());
        let mut size = 0;
        nvrtc::nvrtcGetCUBINSize(program, &mut size);
        let mut cubin = vec![0_u8; size];
        assert_eq!(nvrtc::nvrtcGetCUBIN(program, cubin.as_mut_ptr().cast()), nvrtcResult::NVRTC_SUCCESS);
        nvrtc::nvrtcDestroyProgram(&mut program);
        let module = result_of(|module| sys::cuModuleLoadData(module, cubin.as_ptr().cast())).expect("a module");
        let kernel = cuda.function(module, "f").expect("the kernel exists");
        cuda.launch(kernel, line(1, 1), std::ptr::null_mut(), &[&memory]);
        assert_eq!(cuda.download::<u32>(memory, 1), [5]);
        sys::cuModuleUnload(module);
    }
}

#[test]
fn macros_of_options_are_defined() {
    let Some(cuda) = cuda() else { return };
    let text = kernel_text("kernel", "unsigned *a", "a[0] = VALUE + (__CUDA_ARCH__ >= 700);");
    let image = cuda.compile(&text, &["-DVALUE=41"]).expect("the text is right");
    let memory = cuda.memory(4);
    // SAFETY: PTX ends with a zero byte, and the module is unloaded once.
    unsafe {
        let module = result_of(|module| sys::cuModuleLoadData(module, image.as_ptr().cast())).expect("a module");
        let kernel = cuda.function(module, "kernel").expect("the kernel exists");
        cuda.launch(kernel, line(1, 1), std::ptr::null_mut(), &[&memory]);
        assert_eq!(cuda.download::<u32>(memory, 1), [42]);
        sys::cuModuleUnload(module);
    }
}

#[test]
fn module_has_several_kernels_and_helpers() {
    let Some(cuda) = cuda() else { return };
    let helper = "__device__ __forceinline__ unsigned square(unsigned x) { return x * x; }\n";
    let first = kernel_text("first", "unsigned *a", "a[0] = square(3);");
    let second = kernel_text("second", "unsigned *a", "a[0] += square(4);");
    let module = cuda.module(&format!("{helper}{first}{second}"));
    let memory = cuda.memory(4);
    for name in ["first", "second"] {
        let kernel = cuda.function(module, name).expect("the kernel exists");
        cuda.launch(kernel, line(1, 1), std::ptr::null_mut(), &[&memory]);
    }
    assert_eq!(cuda.download::<u32>(memory, 1), [25]);
}

#[test]
fn function_that_does_not_exist_is_not_found() {
    let Some(cuda) = cuda() else { return };
    let module = cuda.module(&kernel_text("f", "int *a", "a[0] = 1;"));
    assert_eq!(cuda.function(module, "g"), Err(CUresult::CUDA_ERROR_NOT_FOUND));
}

#[test]
fn image_that_is_not_ptx_is_invalid() {
    let Some(_cuda) = cuda() else { return };
    // SAFETY: the image is a C string.
    let module = result_of(|module| unsafe { sys::cuModuleLoadData(module, c"neither PTX nor CUBIN".as_ptr().cast()) });
    let error = module.expect_err("the image is invalid");
    let errors = [CUresult::CUDA_ERROR_INVALID_IMAGE, CUresult::CUDA_ERROR_INVALID_PTX];
    assert!(errors.contains(&error), "{error:?}");
}

#[test]
fn functions_have_their_static_shared_memory() {
    let Some(cuda) = cuda() else { return };
    let body = "__shared__ float t[96]; t[threadIdx.x] = a[threadIdx.x]; __syncthreads(); a[threadIdx.x] = t[95 - threadIdx.x];";
    let kernel = cuda.kernel("float *a", body);
    // SAFETY: the pointer is valid for writes.
    let attribute = |attribute| result_of(|value| unsafe { sys::cuFuncGetAttribute(value, attribute, kernel) });
    assert_eq!(attribute(CUfunction_attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES), Ok(384));
    assert_eq!(attribute(CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK), Ok(1024));
    let memory = cuda.upload(&(0..96).map(|i| i as f32).collect::<Vec<_>>());
    cuda.launch(kernel, line(1, 96), std::ptr::null_mut(), &[&memory]);
    assert_eq!(cuda.download::<f32>(memory, 2), [95.0, 94.0]);
}

#[test]
fn occupancy_is_limited_by_threads_and_shared_memory() {
    let Some(cuda) = cuda() else { return };
    let kernel = cuda.kernel("unsigned *a", "a[0] = 1;");
    let blocks = |threads, shared| {
        // SAFETY: the pointer is valid for writes, and the function exists.
        result_of(|blocks| unsafe { sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, kernel, threads, shared) })
    };
    assert_eq!(blocks(1024, 0).map(|n| (1..=2).contains(&n)), Ok(true));
    assert!(blocks(128, 0) > blocks(128, 40 << 10));
    assert_eq!(blocks(0, 0), Err(CUresult::CUDA_ERROR_INVALID_VALUE));
}

#[test]
fn modules_have_their_own_types_and_shared_memory() {
    let Some(cuda) = cuda() else { return };
    let kernel = |length: usize| {
        let kernel = kernel_text(
            "kernel",
            "float *a, Values v",
            &format!("__shared__ float t[{length}]; t[{0}] = v.x[{0}]; a[0] = t[{0}];", length - 1),
        );
        let module = cuda.module(&format!("struct Values {{ float x[{length}]; }};\n{kernel}"));
        cuda.function(module, "kernel").expect("the kernel exists")
    };
    // Both modules are loaded at the same time.
    let (short, long) = (kernel(2), kernel(6));
    let memory = cuda.memory(4);
    cuda.launch(long, line(1, 1), std::ptr::null_mut(), &[&memory, &[1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0]]);
    assert_eq!(cuda.download::<f32>(memory, 1), [6.0]);
    cuda.launch(short, line(1, 1), std::ptr::null_mut(), &[&memory, &[1.0_f32, 2.0]]);
    assert_eq!(cuda.download::<f32>(memory, 1), [2.0]);
}
