//! The host's C++ compiler. Objects are kept on disk by a hash of the text, the header, the options and the compiler.
//!
//! Most kernels begin with the same declarations, which end with the line [`PREFIX_END`]. They are compiled once,
//! together with `device.h`, into a precompiled header.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{LazyLock, Mutex, PoisonError};

const HEADER: &str = include_str!("device.h");

/// Headers of CUDA with what `device.h` does not define.
const HEADERS: [(&str, &str); 4] = [
    ("cuda_fp16.h", "#pragma once\ntypedef __half half;\ntypedef __half2 half2;\n"),
    ("cuda_bf16.h", "#pragma once\ntypedef __nv_bfloat16 nv_bfloat16;\ntypedef __nv_bfloat162 nv_bfloat162;\n"),
    ("cuda_runtime.h", "#pragma once\n"),
    ("device.h", HEADER),
];

/// The line after the declarations that a text has in common with others.
const PREFIX_END: &str = "// End of the common declarations.\n";

/// The first line of an image of a module.
const IMAGE_MARK: &str = "// image of the test device";

/// Contraction would round less often than a GPU with `--fmad=false`. Integers wrap, and memory may be read as any
/// type, as on a GPU. The checks end in a signal, which `traps.rs` reports.
const OPTIONS: [&str; 16] = [
    "-std=c++17",
    "-Og",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fwrapv",
    "-fno-strict-aliasing",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-asynchronous-unwind-tables",
    "-fno-semantic-interposition",
    "-fPIC",
    "-nostdinc",
    "-pipe",
    "-w",
    "-fsanitize=alignment,bounds",
    "-fsanitize-undefined-trap-on-error",
];

/// The name and version of the compiler, which `CXX` may name.
static COMPILER: LazyLock<(String, String)> = LazyLock::new(|| {
    let name = std::env::var("CXX").unwrap_or_else(|_| "c++".to_string());
    let output = Command::new(&name).arg("--version").output();
    let version = output.map_or(String::new(), |o| String::from_utf8_lossy(&o.stdout).into_owned());
    (name, version)
});

/// A text with the options that change its meaning.
#[derive(Clone, Hash, PartialEq, Eq, Debug)]
pub(crate) struct KernelSource {
    /// The name in messages.
    pub(crate) name: String,
    pub(crate) text: String,
    /// Definitions and folders of headers.
    pub(crate) options: Vec<String>,
}

fn hash_of(value: impl Hash) -> u128 {
    let half = |seed: u64| {
        let mut hasher = DefaultHasher::new();
        seed.hash(&mut hasher);
        value.hash(&mut hasher);
        hasher.finish()
    };
    u128::from(half(1)) << 64 | u128::from(half(2))
}

/// Returns the folder of objects: `PELLUCID_TEST_DEVICE_CACHE`, or one in the system's folder for temporary files.
fn cache_folder() -> PathBuf {
    std::env::var_os("PELLUCID_TEST_DEVICE_CACHE")
        .map_or_else(|| std::env::temp_dir().join("pellucid-test-device"), PathBuf::from)
}

/// Writes a file under another name first, since other processes may read or write it.
fn write_file(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let temporary = temporary_name(path);
    std::fs::write(&temporary, bytes)?;
    std::fs::rename(temporary, path)
}

/// Returns a name that no other thread or process uses, in the folder of `path`.
fn temporary_name(path: &Path) -> PathBuf {
    path.with_extension(format!("{}.{:?}.new", std::process::id(), std::thread::current().id()))
}

/// The name of the header with the declarations before a kernel.
const PREFIX_NAME: &str = "prefix.h";

/// Options for the instructions of this processor that single operations of a GPU need, and for this compiler.
fn host_options() -> Vec<&'static str> {
    let mut options = Vec::new();
    // Unique symbols of GCC would be shared by all modules, and modules would stay loaded.
    if COMPILER.1.contains("Free Software Foundation") {
        options.push("-fno-gnu-unique");
    }
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("fma") && std::arch::is_x86_feature_detected!("avx2") {
        options.extend(["-mfma", "-mavx2", "-mpopcnt"]);
    }
    options
}

/// Replaces `extern __shared__ T name[];` by a pointer to the dynamic shared memory. Lines are kept.
fn with_dynamic_shared(text: &str) -> String {
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find("extern __shared__") {
        let declaration = &rest[start + "extern __shared__".len()..];
        let Some(end) = declaration.find(';') else { break };
        let (declared, after) = (&declaration[..end], &declaration[end..]);
        let Some((before, _)) = declared.split_once('[') else { break };
        let before = before.trim_end();
        let split = before.rfind(|c: char| !c.is_alphanumeric() && c != '_').map_or(0, |i| i + 1);
        let (of_type, name) = before.split_at(split);
        // An alignment in parentheses; the memory is aligned to 128 bytes.
        let of_type = match (of_type.trim_start().starts_with(['_', 'a']), of_type.find(')')) {
            (true, Some(end)) if of_type.contains("align") => &of_type[end + 1..],
            _ => of_type,
        };
        result.push_str(&rest[..start]);
        result.push_str(&format!("{of_type}*{name} = ({of_type}*)pellucid_dynamic_shared"));
        rest = after;
    }
    result.push_str(rest);
    result
}

/// Messages in the form of NVRTC, `name(line): error: text`.
fn nvrtc_log(messages: &str) -> String {
    let convert = |line: &str| {
        let mut parts = line.splitn(4, ':');
        let (name, number, column, text) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let is_position = number.parse::<u32>().is_ok() && column.parse::<u32>().is_ok();
        is_position.then(|| format!("{name}({number}):{text}"))
    };
    messages.lines().map(|line| convert(line).unwrap_or_else(|| line.to_string()) + "\n").collect()
}

impl KernelSource {
    /// Returns an image from which a module is loaded, in this process or in another one.
    pub(crate) fn image(&self) -> String {
        let options = self.options.join("\u{1}");
        format!("{IMAGE_MARK}\n{}\n{options}\n{}", self.name, self.text)
    }

    /// Reads an image.
    pub(crate) fn from_image(image: &str) -> Option<Self> {
        let rest = image.strip_prefix(IMAGE_MARK)?.strip_prefix('\n')?;
        let (name, rest) = rest.split_once('\n')?;
        let (options, text) = rest.split_once('\n')?;
        let options = options.split('\u{1}').filter(|option| !option.is_empty());
        Some(Self { name: name.to_string(), text: text.to_string(), options: options.map(str::to_string).collect() })
    }

    /// The compiler with the options of kernels and headers, which must be equal for a precompiled header.
    fn compiler(&self, folder: &Path) -> Command {
        let mut command = Command::new(&COMPILER.0);
        command.args(OPTIONS).args(host_options()).arg("-I").arg(folder).args(&self.options);
        command
    }

    /// The folder of the header `prefix.h` with `device.h` and these declarations, which is precompiled once. Without
    /// a precompiled header, for which a compiler may have another name, kernels only compile more slowly.
    fn prefix_header(&self, prefix: &str) -> std::io::Result<PathBuf> {
        static COMPLETE: LazyLock<Mutex<HashSet<PathBuf>>> = LazyLock::new(Mutex::default);
        let hash = hash_of((prefix, &self.options, HEADERS, OPTIONS, host_options(), &COMPILER.1));
        let folder = cache_folder().join(format!("prefix-{hash:032x}"));
        let mut complete = COMPLETE.lock().unwrap_or_else(PoisonError::into_inner);
        if !complete.contains(&folder) {
            let (header, precompiled) = (folder.join(PREFIX_NAME), folder.join("prefix.h.gch"));
            if !precompiled.exists() {
                std::fs::create_dir_all(&folder)?;
                for (name, text) in HEADERS {
                    write_file(&folder.join(name), text.as_bytes())?;
                }
                let text = format!("#include \"device.h\"\n# 1 \"{}\"\n{prefix}", self.name);
                write_file(&header, text.as_bytes())?;
                let temporary = temporary_name(&precompiled);
                let output = self
                    .compiler(&folder)
                    .args(["-x", "c++-header", "-o"])
                    .args([temporary.as_os_str(), header.as_os_str()])
                    .output()?;
                if output.status.success() {
                    std::fs::rename(temporary, precompiled)?;
                }
            }
            complete.insert(folder.clone());
        }
        Ok(folder)
    }

    /// Compiles the text, or finds its object. Returns the path of the object, and whether it was compiled.
    ///
    /// # Errors
    /// The messages of the compiler, in the form of NVRTC.
    pub(crate) fn compile(&self) -> Result<(PathBuf, bool), String> {
        let hash = hash_of((self, HEADERS, OPTIONS, host_options(), &COMPILER.1));
        let path = cache_folder().join(format!("{hash:032x}.so"));
        if path.exists() {
            return Ok((path, false));
        }
        let failed = |error: std::io::Error| format!("the C++ compiler {} cannot run: {error}\n", COMPILER.0);
        let (prefix, kernel) = self.text.split_once(PREFIX_END).unwrap_or(("", &self.text));
        let header = self.prefix_header(prefix).map_err(failed)?;
        let temporary = temporary_name(&path);
        let mut child = self
            .compiler(&header)
            .args(["-x", "c++", "-shared", "-nodefaultlibs", "-Wl,-Bsymbolic", "-Wl,--hash-style=gnu", "-include"])
            .arg(header.join(PREFIX_NAME))
            .args(["-o".as_ref(), temporary.as_os_str()])
            .args(["-", "-lm", "-lc"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let line = prefix.lines().count() + 1 + usize::from(kernel.len() < self.text.len());
        let text = format!("# {line} \"{}\"\n{}", self.name, with_dynamic_shared(kernel));
        let mut input = child.stdin.take().expect("the input is piped");
        // A compiler that fails early closes its input; its messages say why.
        let _ = input.write_all(text.as_bytes());
        drop(input);
        let output = child.wait_with_output().map_err(failed)?;
        if !output.status.success() {
            return Err(nvrtc_log(&String::from_utf8_lossy(&output.stderr)));
        }
        std::fs::rename(temporary, &path).map_err(failed)?;
        Ok((path, true))
    }
}
