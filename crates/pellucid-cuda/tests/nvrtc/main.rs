//! Compiles the kernels of other tests by NVIDIA's NVRTC, which needs no GPU, for several architectures.
//!
//! `PELLUCID_KERNEL_TEXTS` names a folder of compiled kernels (`PELLUCID_CUDA_CACHE` of a run of other tests), whose
//! files contain the texts. Without it, the tests print that they do not run and pass. `.ci/cuda` sets it. With
//! `PELLUCID_NVDISASM`, the path of NVIDIA's disassembler, a test counts the instructions of the largest products.

// The test prints the number of texts and of registers.
#![allow(clippy::print_stdout)]

mod assembly;

use cudarc::nvrtc::sys::{self as nvrtc, nvrtcResult};
use std::ffi::{CString, c_char};
use std::path::PathBuf;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{env, fs, thread};

const ARCHITECTURES: [&str; 3] = ["sm_80", "sm_90", "sm_100"];

/// The largest number of texts that are compiled. They are chosen evenly from all texts in the order of their hashes.
const MAX_TEXTS: usize = 400;

/// The largest number of texts of each kind of large products whose instructions are counted.
const MAX_COUNTED: usize = 8;

/// Returns the folder of texts, if it is set.
fn text_folder() -> Option<PathBuf> {
    let folder = env::var_os("PELLUCID_KERNEL_TEXTS").map(PathBuf::from);
    if folder.is_none() {
        println!("skipped: PELLUCID_KERNEL_TEXTS is not set");
        return None;
    }
    // SAFETY: loading the library runs its initialisation code, which must be sound.
    assert!(unsafe { nvrtc::is_culib_present() }, "libnvrtc must be in LD_LIBRARY_PATH");
    folder
}

/// Returns the texts in the folder, in the order of their files.
fn texts(folder: &PathBuf) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("the folder of texts must exist");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "cubin"));
    paths.sort();
    let text = |path: &PathBuf| {
        let contents = fs::read(path).unwrap();
        let (length, rest) = contents.split_first_chunk().expect("a file starts with the length of its key");
        let key = String::from_utf8(rest[..u64::from_le_bytes(*length) as usize].to_vec()).unwrap();
        // The options and the versions are in lines before the text.
        key.splitn(3, '\n').nth(2).expect("the key contains the text").to_string()
    };
    let texts: Vec<String> = paths.iter().map(text).collect();
    assert!(!texts.is_empty(), "{} contains no kernels", folder.display());
    texts
}

/// The code of a compiled kernel, its registers and the bytes of spilled registers.
struct Compiled {
    code: Vec<u8>,
    registers: usize,
    spilled: usize,
}

/// Compiles a text. Returns the messages of the compiler if it rejects the text.
fn compile(text: &str, architecture: &str) -> Result<Compiled, String> {
    let text = CString::new(text).unwrap();
    let options = [&*format!("--gpu-architecture={architecture}"), "--fmad=false", "--std=c++17", "--ptxas-options=-v"]
        .map(|option| CString::new(option).unwrap());
    let options = options.each_ref().map(|option| option.as_ptr());
    let mut program = null_mut();
    // SAFETY: pointers to results are valid for writes, texts and options are C strings that live until the end, and
    // the buffers of the log and of the code have the sizes that NVRTC returns.
    let (compiled, log, code) = unsafe {
        let created =
            nvrtc::nvrtcCreateProgram(&raw mut program, text.as_ptr(), c"kernel.cu".as_ptr(), 0, null(), null());
        assert_eq!(created, nvrtcResult::NVRTC_SUCCESS);
        let compiled = nvrtc::nvrtcCompileProgram(program, options.len() as i32, options.as_ptr());
        let mut size = 0;
        assert_eq!(nvrtc::nvrtcGetProgramLogSize(program, &raw mut size), nvrtcResult::NVRTC_SUCCESS);
        let mut log = vec![0u8; size];
        let written = nvrtc::nvrtcGetProgramLog(program, log.as_mut_ptr().cast::<c_char>());
        assert_eq!(written, nvrtcResult::NVRTC_SUCCESS);
        let mut code = Vec::new();
        if compiled == nvrtcResult::NVRTC_SUCCESS {
            assert_eq!(nvrtc::nvrtcGetCUBINSize(program, &raw mut size), nvrtcResult::NVRTC_SUCCESS);
            code.resize(size, 0);
            let read = nvrtc::nvrtcGetCUBIN(program, code.as_mut_ptr().cast::<c_char>());
            assert_eq!(read, nvrtcResult::NVRTC_SUCCESS);
        }
        nvrtc::nvrtcDestroyProgram(&raw mut program);
        (compiled, String::from_utf8_lossy(&log).into_owned(), code)
    };
    if compiled != nvrtcResult::NVRTC_SUCCESS {
        return Err(log);
    }
    // The log has the lines `.. 0 bytes spill stores, ..` and `.. Used 37 registers, ..`.
    let number = |before: &str, after: &str| {
        let end = log.find(after)?;
        log[..end].rfind(before).and_then(|start| log[start + before.len()..end].trim().parse().ok())
    };
    let registers = number("Used ", " registers").expect("the log must contain the registers");
    let spilled = number(", ", " bytes spill stores").expect("the log must contain the spilled bytes");
    Ok(Compiled { code, registers, spilled })
}

/// Returns true if a kernel multiplies matrices in registers.
fn is_product(text: &str) -> bool {
    text.contains("fma(vec4<f32>(")
}

#[test]
fn every_kernel_compiles_for_all_architectures_without_spilled_registers() {
    let Some(folder) = text_folder() else { return };
    let all = texts(&folder);
    let texts: Vec<&String> = all.iter().step_by(all.len().div_ceil(MAX_TEXTS)).collect();
    let next = AtomicUsize::new(0);
    let work = || {
        let (mut most, mut failures) = (0, Vec::new());
        while let Some(&text) = texts.get(next.fetch_add(1, Ordering::Relaxed)) {
            for architecture in ARCHITECTURES {
                match compile(text, architecture) {
                    Ok(compiled) if compiled.spilled > 0 && !is_product(text) => {
                        failures.push(format!("{} bytes are spilled for {architecture}:\n{text}", compiled.spilled));
                    }
                    Ok(compiled) => most = most.max(compiled.registers),
                    Err(log) => failures.push(format!("{architecture}: {log}\n{text}")),
                }
            }
        }
        (most, failures)
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let results: Vec<(usize, Vec<String>)> = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    let most = results.iter().map(|(most, _)| *most).max().unwrap_or(0);
    println!("{} texts for {ARCHITECTURES:?}: at most {most} registers", texts.len());
    let failures: Vec<String> = results.into_iter().flat_map(|(_, failures)| failures).collect();
    assert!(failures.is_empty(), "{} failures, the first one: {}", failures.len(), failures[0]);
}

/// The kernels with tiles of 64 × 64 sums, 16 quads for each invocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LargeTiles {
    /// A product with as many aligned factors.
    Product(usize),
    Convolution,
    Attention,
}

impl LargeTiles {
    /// Returns the kind of a kernel with such tiles.
    fn of_text(text: &str) -> Option<LargeTiles> {
        let has_tile = |sum: &str| text.contains(&format!("{sum}15 = fma(")) && !text.contains(&format!("{sum}16 = "));
        if has_tile("score") && has_tile("total") {
            return Some(LargeTiles::Attention);
        }
        let kind = match text.contains("_parts;") {
            true => LargeTiles::Convolution,
            false => LargeTiles::Product(text.matches("const vec4<u32>* __restrict__").count()),
        };
        has_tile("sum").then_some(kind)
    }
}

/// A product takes 16 k indices of both factors into shared memory at a time. The tables of a convolution have 64.
#[test]
fn most_instructions_of_large_products_multiply() {
    let (Some(folder), Some(nvdisasm)) = (text_folder(), env::var_os("PELLUCID_NVDISASM")) else { return };
    let mut products: Vec<(LargeTiles, String)> = Vec::new();
    for text in texts(&folder) {
        let kind = LargeTiles::of_text(&text);
        let counted = kind.filter(|kind| products.iter().filter(|(other, _)| other == kind).count() < MAX_COUNTED);
        products.extend(counted.map(|kind| (kind, text)));
    }
    for kind in [LargeTiles::Product(2), LargeTiles::Convolution, LargeTiles::Attention] {
        assert!(products.iter().any(|(other, _)| *other == kind), "no text has the kind {kind:?}");
    }
    for ((kind, text), architecture) in products.iter().flat_map(|text| ARCHITECTURES.map(|name| (text, name))) {
        let compiled = compile(text, architecture).unwrap();
        let Some(assembly) = assembly::disassemble(nvdisasm.as_ref(), &compiled.code) else { return };
        let tiles = assembly::tile_loops(&assembly::loops(&assembly), 1024, 4);
        // Attention has products for the scores, for the slopes of some gradients, and with the values.
        let products = match kind {
            LargeTiles::Attention => 2 + usize::from(text.contains("product15 = fma(")),
            _ => 1,
        };
        for tile in &tiles {
            let share = tile.multiply_adds as f64 / tile.all as f64;
            println!("{kind:?}, {architecture}: {share:.2} of the instructions are multiply-adds, {tile:?}");
            assert!(share >= 0.7, "{architecture}: {tile:?}\n{text}");
        }
        println!("{} registers, {} bytes spilled", compiled.registers, compiled.spilled);
        assert!(compiled.spilled == 0 && tiles.len() == products);
    }
}
