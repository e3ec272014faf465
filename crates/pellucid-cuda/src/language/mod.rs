//! [`CudaCpp`]: kernels in CUDA C++.
//!
//! Kernel families write their kernels in WGSL. This module translates such a text to CUDA C++, token by token: the
//! expressions of both languages are the same, and `prelude.cuh` defines the types and the built-in functions of WGSL.
//!
//! Kernels compute 64-bit integers and `f64` with functions of the kernel library, whose operands are pairs of words.
//! `library.cuh` replaces these functions by instructions of CUDA, with the same bits. A pair of words is a register of
//! 64 bits, so a conversion costs no instruction.
//!
//! | file | contents |
//! | --- | --- |
//! | this file | the complete text of a kernel |
//! | `tokens` | tokens of a text |
//! | `translate` | functions, declarations and statements |
//! | `prelude.cuh` | the types and the built-in functions of WGSL |
//! | `library.cuh` | functions of the kernel library as instructions |

mod tokens;
mod translate;

use pellucid_gpu::{BindingUse, KernelSource, Language, WORKGROUP};
use std::collections::{BTreeSet, HashMap};
use std::fmt::Write;
use std::sync::LazyLock;
use translate::{TranslatedFunction, UntranslatedConstruct, translate_body, translate_function};

/// The name of the kernel in its text.
pub(crate) const KERNEL: &str = "kernel";

/// The maximum number of parameter words that are passed by value. With the addresses of all buffers, they fit the
/// 4,096 bytes of arguments that every device accepts.
pub(crate) const MAX_VALUE_WORDS: usize = 768;

const PRELUDE: &str = include_str!("prelude.cuh");

/// A function of `library.cuh`.
struct NativeFunction {
    signature: &'static str,
    /// The body with its braces.
    body: &'static str,
}

impl NativeFunction {
    /// Returns true if the function contains instructions of PTX, which only NVIDIA's compiler accepts. Its WGSL text
    /// is then its plain twin.
    fn has_ptx(&self) -> bool {
        self.body.contains("asm volatile")
    }
}

/// The functions of `library.cuh` by name.
static NATIVE: LazyLock<HashMap<&str, NativeFunction>> = LazyLock::new(|| {
    let functions = include_str!("library.cuh").split("\nDEVICE ").skip(1);
    let parse = |function: &'static str| {
        let open = function.find(" {\n")?;
        let end = function.find("\n}\n")? + 2;
        let name = function[..open].split('(').next()?.rsplit(' ').next()?;
        Some((name, NativeFunction { signature: &function[..open], body: &function[open + 1..end] }))
    };
    functions.filter_map(parse).collect()
});

/// The language CUDA C++.
///
/// The arguments of a kernel are the parameters, the address of the status, and the addresses of the buffers. Up to 768
/// words of parameters are passed by value, otherwise their address.
#[derive(Clone, Copy, Debug)]
pub enum CudaCpp {}

impl Language for CudaCpp {
    /// Returns the text of a kernel. A text with a construct that is not translated does not compile, and the error
    /// names the construct.
    fn text(source: &KernelSource<'_>) -> String {
        kernel_text(source)
            .unwrap_or_else(|what| format!("#error \"a kernel contains {what}, which has no translation\"\n"))
    }
}

/// Returns true if the parameters of a kernel are passed by value.
pub(crate) fn passes_values(source: &KernelSource<'_>) -> bool {
    source.parameter_words <= MAX_VALUE_WORDS
}

fn kernel_text(source: &KernelSource<'_>) -> Result<String, UntranslatedConstruct> {
    let functions = library(source)?;
    let mut text = format!("{PRELUDE}\nnamespace pellucid {{\n");
    for array in source.workgroup_arrays {
        let _ = writeln!(text, "__shared__ array<{}, {}> {};", array.element_type, array.len, array.name);
    }
    for function in &functions {
        let _ = writeln!(text, "{};", function.signature);
    }
    for TranslatedFunction { signature, body } in &functions {
        let _ = writeln!(text, "\n{signature} {body}");
    }
    let parameters = match passes_values(source) {
        true => format!("const __grid_constant__ array<u32, {}> params", source.parameter_words),
        false => "const u32* __restrict__ params".into(),
    };
    let (status, has_failed) = match source.is_check {
        true => ("u32* status", "atomicLoad(&status[0])"),
        false => ("const u32* status", "status[0]"),
    };
    let _ = write!(text, "\nextern \"C\" __global__ void __launch_bounds__({WORKGROUP}, 1) {KERNEL}(\n    ");
    let _ = write!(text, "{parameters}, {status}");
    for (usage, k) in source.bindings.iter().zip(1..) {
        let ty = match usage {
            BindingUse::Read => "const u32* __restrict__",
            BindingUse::ReadVectors => "const vec4<u32>* __restrict__",
            BindingUse::Write | BindingUse::Atomic => "u32*",
        };
        let _ = write!(text, ", {ty} b{k}");
    }
    let _ = write!(
        text,
        ") {{\n    \
            if ({has_failed} != 0u) {{ return; }}\n    \
            const u32 local = threadIdx.x;\n    \
            const u32 group = blockIdx.y * gridDim.x + blockIdx.x;\n    \
            const u32 thread = group * {WORKGROUP}u + local;\n"
    );
    if source.has_subgroup_size {
        text.push_str("    const u32 subgroup_size = 32u;\n");
    }
    if let Some(item) = source.item {
        let _ = writeln!(text, "    if ({item} >= params[0]) {{ return; }}");
    }
    let body = translate_body(source.body)?;
    let _ = write!(text, "{body}\n}}\n\n#ifdef PELLUCID_TEST_DEVICE\nTEST_ENTRY({KERNEL})\n#endif\n}}\n");
    Ok(text)
}

/// Returns the library functions that a kernel calls, directly or indirectly.
fn library(source: &KernelSource<'_>) -> Result<Vec<TranslatedFunction>, UntranslatedConstruct> {
    let (mut functions, mut open) = (Vec::new(), Vec::new());
    for function in source.library(|name| NATIVE.get(name).is_some_and(|native| !native.has_ptx())) {
        match (function.source.map(|text| translate_function(&text)).transpose()?, NATIVE.get(&*function.name)) {
            (Some(twin), Some(native)) => functions.push(with_twin(&twin, native)),
            (Some(translated), None) => functions.push(translated),
            (None, _) => open.push(function.name),
        }
    }
    let mut included = BTreeSet::new();
    while let Some(name) = open.pop() {
        if let Some(NativeFunction { signature, body }) = NATIVE.get(&*name)
            && included.insert(name)
        {
            open.extend(called_names(body));
            functions.push(TranslatedFunction { signature: format!("DEVICE {signature}"), body: body.to_string() });
        }
    }
    Ok(functions)
}

/// Returns a function with the instructions of `native` on a GPU, and with the body of `twin` on the test device.
fn with_twin(twin: &TranslatedFunction, native: &NativeFunction) -> TranslatedFunction {
    let (signature, plain, ptx) = (twin.signature.clone(), &twin.body, native.body);
    TranslatedFunction {
        signature,
        body: format!("{{\n#ifdef PELLUCID_TEST_DEVICE\n{plain}\n#else\n{ptx}\n#endif\n}}"),
    }
}

/// Returns the names that a text calls.
fn called_names(text: &str) -> Vec<String> {
    let all = tokens::tokens(text);
    let calls = all.windows(2).filter(|pair| pair[1].is("("));
    calls.map(|pair| pair[0].text.to_string()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pellucid_gpu::KernelFeatures;

    fn source(body: &str) -> KernelSource<'_> {
        KernelSource {
            features: KernelFeatures::default(),
            bindings: vec![BindingUse::Read, BindingUse::Write],
            parameter_words: 4,
            is_check: false,
            item: Some("thread"),
            has_subgroup_size: false,
            workgroup_arrays: &[],
            body,
        }
    }

    #[test]
    fn a_text_has_the_functions_that_the_kernel_calls() {
        let text = CudaCpp::text(&source("    b2[thread] = h_from_f32(f_sin(bitcast<f32>(b1[thread])));\n"));
        for part in [
            "const __grid_constant__ array<u32, 4> params, const u32* status, const u32* __restrict__ b1, u32* b2",
            "if (thread >= params[0]) { return; }",
            "DEVICE u32 h_from_f32_by_bits(f32 x) {",
            "DEVICE f32 f_sin(f32 x) {",
        ] {
            assert!(text.contains(part), "`{part}` is not in {text}");
        }
        assert!(!text.contains("d_add(vec2<u32> a"), "a function that the kernel does not call is not in the text");
    }

    #[test]
    fn a_function_with_ptx_has_a_plain_twin() {
        let body = "    h_multiply_units_f16(vec4<f32>(), vec4<u32>(), vec2<u32>(), 0u);\n";
        let text = CudaCpp::text(&source(body));
        let definition = &text[text.find("h_multiply_units_f16(vec4<f32> c").unwrap()..];
        for part in ["#ifdef PELLUCID_TEST_DEVICE", "return h_multiply_units(c, factors, lane);", "#else", "mma.sync"] {
            assert!(definition.contains(part), "`{part}` is not in {definition}");
        }
        assert!(text.contains("DEVICE f32 h_to_f32("), "the functions that the twin calls must be in the text");
    }

    #[test]
    fn parameters_that_are_too_large_are_passed_by_address() {
        let words = |parameter_words| CudaCpp::text(&KernelSource { parameter_words, ..source("") });
        assert!(words(MAX_VALUE_WORDS).contains("__grid_constant__"));
        assert!(words(MAX_VALUE_WORDS + 1).contains("(\n    const u32* __restrict__ params, const u32* status"));
    }

    #[test]
    fn a_construct_that_is_not_translated_is_the_error_of_the_compiler() {
        let text = CudaCpp::text(&source("    continuing { x = 1u; }\n"));
        assert_eq!(text, "#error \"a kernel contains `continuing`, which has no translation\"\n");
    }

    #[test]
    fn native_functions_are_functions_of_the_library() {
        assert!(NATIVE.len() > 40, "only {} native functions", NATIVE.len());
        for name in NATIVE.keys() {
            let body = format!("    {name}();\n");
            let all = source(&body).library(|_| false);
            assert!(all.iter().any(|function| function.name == *name), "`{name}` is not in the library");
        }
    }
}
