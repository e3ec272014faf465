//! Generation of WGSL.
//!
//! | file | contents |
//! | --- | --- |
//! | this file | [`ShaderBuilder`]: one dispatch, its compute shader, buffers and parameters; the library of functions |
//! | `library.wgsl` | functions on f32, 32-bit and 64-bit integers and half precision |
//! | `translate` | scalar functions, translated from the Rust text of the CPU |
//! | `types` | types, constants and the arithmetic of floats |
//! | `access` | [`ElementAccess`](access::ElementAccess): loads and stores of packed elements |
//! | `accumulator` | [`Accumulator`](accumulator::Accumulator): running reductions |
//! | `axes` | merged axes; offsets from flat indices |
//! | `parameters` | the words that a dispatch reads in addition to its buffers |
//! | `program` | the instructions of a program as WGSL expressions |
//! | `special_functions` | the functions of `f32` with series: their iterations and their arithmetic |
//! | `iterations` | estimates of the iterations of loops |
//! | `template` | templates of lines with named values |
//! | `workgroup` | reductions over the invocations of a workgroup |
//! | `wgsl` | the text of a kernel in WGSL |
//! | `languages` | translation to the shader languages of all graphics APIs, for tests |
//!
//! Loops and branches are in templates, so that shaders read as WGSL. `ShaderBuilder::define` is for one expression
//! that depends on data, such as the offset of an element of an array with any number of axes.

pub(crate) mod access;
pub(crate) mod accumulator;
pub(crate) mod axes;
pub(crate) mod iterations;
#[cfg(feature = "check-translations")]
pub(crate) mod languages;
pub(crate) mod parameters;
pub(crate) mod program;
pub(crate) mod special_functions;
pub(crate) mod template;
pub(crate) mod translate;
pub(crate) mod types;
pub(crate) mod wgsl;
pub(crate) mod workgroup;

#[cfg(test)]
pub(crate) mod tests;

pub(crate) use access::{
    CollectedWord, ElementAccess, ElementRef, compute_program, load_words, same_size_integer, store_finished,
    store_words,
};
pub(crate) use accumulator::{Accumulator, AccumulatorOp, TieRule};
pub(crate) use axes::{AxesExprs, MergedAxes, digits};
pub(crate) use iterations::{MAX_ITERATIONS, iterations, max_items};
pub(crate) use parameters::{ParameterSlot, Parameters};
pub(crate) use program::{
    ProgramValues, binary_expr, combining_primitive, convert_expr, is_elementwise_supported, is_supported,
    program_iterations, round_expr, step_expr,
};
pub(crate) use template::{CollectLines, axis_values, values};
pub(crate) use types::{WgslFloat, i64_from_word, u64_literal, wgsl_type, words};
pub(crate) use workgroup::CombinedLanes;

use std::collections::{BTreeSet, HashMap};
use std::sync::LazyLock;

/// The expression of the number of work items.
pub(crate) const ITEM_COUNT: &str = "params[0]";

/// The name of a `select` whose second argument loads an element that may not exist if the third argument is false. A
/// language with branches in expressions skips the load.
pub(crate) const SELECT_LOADED: &str = "select_loaded";

/// The number of invocations of a workgroup.
pub const WORKGROUP: u32 = 64;

/// The properties of a device on which the text of kernels depends. By default it has none of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct KernelFeatures {
    /// Whether `fma` rounds once.
    pub fused: bool,
    /// Whether the invocations of a subgroup exchange values, and have consecutive indices in the workgroup.
    pub subgroups: bool,
    /// Whether conversions between `f16` and `f32` are instructions that round to nearest even and keep all values.
    pub native_f16: bool,
    /// Whether matrix units multiply tiles of `f16` and of `bf16`, and subgroups have 32 invocations.
    pub matrix_units: bool,
    /// Whether a library computes large matrix products.
    pub library_products: bool,
    /// Whether a workgroup has 48 KiB of shared memory. Otherwise it has 16 KiB.
    pub large_shared_memory: bool,
}

/// A buffer of a described dispatch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum BufferRef {
    /// The buffer of an operand: the inputs are numbered first, then the outputs. Operands that share a buffer have
    /// the number of the first of them.
    Operand(usize),
    /// A scratch buffer of the kernel, by its number.
    Scratch(usize),
}

/// The use of a buffer in a kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BindingUse {
    /// The shader only reads the buffer.
    Read,
    /// The shader only reads the buffer, four words at a time.
    ReadVectors,
    /// The shader writes full words.
    Write,
    /// The shader changes parts of words, which other invocations may share.
    Atomic,
}

impl BindingUse {
    /// Returns true if the kernel does not write the buffer.
    pub fn is_read_only(self) -> bool {
        matches!(self, BindingUse::Read | BindingUse::ReadVectors)
    }
}

/// A dispatch under construction: its compute shader, the buffers that it binds, and its parameters.
///
/// Group 0 contains the parameters as words, where `params[0]` is the number of work items and `params[1]` is 0, and
/// the [status buffer](crate::status). Group 1 contains the buffers of the operands. The shader returns immediately if
/// the status word is not 0.
#[derive(Debug, Default)]
pub(crate) struct ShaderBuilder {
    pub(crate) parameters: Parameters,
    /// The number of workgroups.
    pub(crate) groups: usize,
    /// The variable with the index of the work item of an invocation. An invocation without a work item returns.
    item: Option<&'static str>,
    bindings: Vec<(BufferRef, BindingUse)>,
    /// Whether the shader changes the status buffer, whose words are then atomic.
    is_check: bool,
    workgroup_arrays: Vec<WorkgroupArray>,
    /// The statements of `main`, after `thread` (a global index), `local` and `group` are defined.
    pub(crate) body: String,
    /// The number of temporary names so far.
    names: usize,
    /// Whether the shader reads the size of a subgroup.
    has_subgroup_size: bool,
}

impl ShaderBuilder {
    /// Creates the dispatch of `items` work items, each of which one invocation computes.
    pub(crate) fn for_threads(items: usize) -> ShaderBuilder {
        let groups = items.div_ceil(WORKGROUP as usize);
        ShaderBuilder { item: Some("thread"), ..ShaderBuilder::with_groups(items, groups) }
    }

    /// Creates the dispatch of `items` work items, each of which one workgroup computes.
    pub(crate) fn for_groups(items: usize) -> ShaderBuilder {
        ShaderBuilder { item: Some("group"), ..ShaderBuilder::with_groups(items, items) }
    }

    /// Creates the dispatch of `groups` workgroups for `items` work items. The body assigns the items.
    pub(crate) fn with_groups(items: usize, groups: usize) -> ShaderBuilder {
        ShaderBuilder { parameters: Parameters::for_items(items), groups, ..Default::default() }
    }

    /// Returns the dispatch with a shader that may change the status buffer.
    pub(crate) fn into_check(self) -> ShaderBuilder {
        ShaderBuilder { is_check: true, ..self }
    }

    /// Binds a buffer and returns the number of the binding.
    pub(crate) fn binding(&mut self, buffer: BufferRef, usage: BindingUse) -> usize {
        self.bindings.push((buffer, usage));
        self.bindings.len()
    }

    /// Returns the binding of a buffer, if it is bound.
    pub(crate) fn binding_of(&self, buffer: BufferRef) -> Option<usize> {
        self.bindings.iter().position(|&(bound, _)| bound == buffer).map(|index| index + 1)
    }

    /// Returns the buffers in the order of their bindings.
    pub(crate) fn buffers(&self) -> Vec<BufferRef> {
        self.bindings.iter().map(|&(buffer, _)| buffer).collect()
    }

    /// Appends an offset or a stride to the parameters and returns the expression that reads it. Offsets wrap modulo
    /// 2³², so negative numbers need no sign.
    pub(crate) fn declare(&mut self, value: isize) -> String {
        self.declare_word(value as usize)
    }

    /// Appends a word to the parameters, such as a length or a bit pattern, and returns the expression that reads it.
    pub(crate) fn declare_word(&mut self, value: usize) -> String {
        self.parameters.declare_slot(value).expr()
    }

    /// Appends words to the parameters and returns the expressions that read them.
    pub(crate) fn declare_words<const N: usize>(&mut self, values: [usize; N]) -> [String; N] {
        values.map(|value| self.declare_word(value))
    }

    fn usage(&self, binding: usize) -> BindingUse {
        self.bindings[binding - 1].1
    }

    /// Returns the expression that reads word `index` of buffer `binding`.
    pub(crate) fn word(&self, binding: usize, index: &str) -> String {
        match self.usage(binding) {
            BindingUse::Atomic => format!("atomicLoad(&b{binding}[{index}])"),
            BindingUse::ReadVectors => format!("b{binding}[({index}) >> 2u][({index}) & 3u]"),
            _ => format!("b{binding}[{index}]"),
        }
    }

    /// Returns the expression that reads the four words starting at `index`, a multiple of 4, of buffer `binding`.
    pub(crate) fn four_words(&self, binding: usize, index: &str) -> String {
        match self.usage(binding) {
            BindingUse::ReadVectors => format!("b{binding}[({index}) >> 2u]"),
            _ => {
                let words = [0, 1, 2, 3].map(|k| self.word(binding, &format!("{index} + {k}u")));
                format!("vec4<u32>({})", words.join(", "))
            }
        }
    }

    /// Adds the line that writes word `index` of buffer `binding`.
    pub(crate) fn store_word(&mut self, binding: usize, index: &str, value: &str) {
        self.line(match self.usage(binding) {
            BindingUse::Atomic => format!("atomicStore(&b{binding}[{index}], {value});"),
            _ => format!("b{binding}[{index}] = {value};"),
        });
    }

    /// Returns the expression of the size of a subgroup, which only an adapter with subgroups has.
    pub(crate) fn subgroup_size(&mut self) -> &'static str {
        self.has_subgroup_size = true;
        "subgroup_size"
    }

    /// Adds a line to the body.
    pub(crate) fn line(&mut self, line: impl AsRef<str>) {
        self.body.push_str("    ");
        self.body.push_str(line.as_ref());
        self.body.push('\n');
    }

    /// Declares an array in the memory of the workgroup. An array that is declared again has the larger length.
    pub(crate) fn workgroup_array(&mut self, name: &str, element_type: &str, len: usize) {
        if let Some(array) = self.workgroup_arrays.iter_mut().find(|array| array.name == name) {
            array.len = array.len.max(len);
            return;
        }
        let (name, element_type) = (name.to_string(), element_type.to_string());
        self.workgroup_arrays.push(WorkgroupArray { name, element_type, len });
    }

    /// Adds a line that gives `value` a name, and returns the name.
    pub(crate) fn define(&mut self, value: impl AsRef<str>) -> String {
        self.names += 1;
        let name = format!("t{}", self.names);
        self.line(format!("let {name} = {};", value.as_ref()));
        name
    }

    /// Adds a line that declares a variable with the initial value `value`, and returns the name.
    pub(crate) fn define_variable(&mut self, value: impl AsRef<str>) -> String {
        self.names += 1;
        let name = format!("t{}", self.names);
        self.line(format!("var {name} = {};", value.as_ref()));
        name
    }

    /// Returns the parts of the finished kernel for a device with these features.
    pub(crate) fn source(&self, features: KernelFeatures) -> KernelSource<'_> {
        KernelSource {
            features,
            bindings: self.bindings.iter().map(|&(_, usage)| usage).collect(),
            parameter_words: self.parameters.bytes() / 4,
            is_check: self.is_check,
            item: self.item,
            has_subgroup_size: self.has_subgroup_size,
            workgroup_arrays: &self.workgroup_arrays,
            body: &self.body,
        }
    }

    /// Returns the WGSL text of the kernel for a device with these features.
    #[cfg(test)]
    pub(crate) fn finish(&self, features: KernelFeatures) -> String {
        wgsl::Wgsl::text(&self.source(features))
    }
}

/// A language in which a compute API accepts kernels.
pub trait Language {
    /// Returns the complete text of a kernel.
    fn text(source: &KernelSource<'_>) -> String;
}

/// The parts of a finished kernel, whose code is WGSL with calls of library functions.
///
/// A kernel has the arrays of words `params` and `status`, the buffers `b1`, `b2`, .., the private word `zero`, the
/// arrays of the workgroup, and a body, the statements of an invocation. Before the body, an invocation returns if
/// `status[0]` is not 0, and sets `zero` to `params[1]`, a zero that is known at run time only. The body uses these
/// constants of type `u32`:
///
/// | name | value |
/// | --- | --- |
/// | `local` | the index of the invocation in its workgroup, below [`WORKGROUP`] |
/// | `group` | the index of the workgroup: x + y·(number of workgroups along x) |
/// | `thread` | [`WORKGROUP`]·`group` + `local` |
/// | `subgroup_size` | the number of invocations of a subgroup, if `has_subgroup_size` is true |
///
/// `select_loaded(a, b, c)` is `select(a, b, c)` in WGSL. A language may skip the load in b if c is false.
///
/// If `item` is a name, an invocation whose `item` is not less than `params[0]` then returns.
#[derive(Clone, Debug)]
pub struct KernelSource<'a> {
    /// The features of the device.
    pub features: KernelFeatures,
    /// The uses of the buffers `b1`, `b2`, ..
    pub bindings: Vec<BindingUse>,
    /// The number of words of `params`.
    pub parameter_words: usize,
    /// Whether the kernel changes the status buffer, whose words are then atomic.
    pub is_check: bool,
    /// The variable with the index of the work item of an invocation, `thread` or `group`.
    pub item: Option<&'static str>,
    /// Whether the body reads `subgroup_size`.
    pub has_subgroup_size: bool,
    /// The arrays in the memory of the workgroup.
    pub workgroup_arrays: &'a [WorkgroupArray],
    /// The statements of an invocation in WGSL.
    pub body: &'a str,
}

/// An array in the memory of a workgroup.
#[derive(Clone, Debug)]
pub struct WorkgroupArray {
    /// The name of the array.
    pub name: String,
    /// The type of the elements in WGSL.
    pub element_type: String,
    /// The number of elements.
    pub len: usize,
}

/// A function of the library that a kernel calls.
#[derive(Clone, Debug)]
pub struct LibraryFunction {
    /// The name of the function.
    pub name: String,
    /// The WGSL text of the function, or `None` for a function that the language defines itself.
    pub source: Option<String>,
}

impl KernelSource<'_> {
    /// Returns the library functions that the kernel calls, directly or indirectly, each once. A function for which
    /// `is_native` is true is defined by the language, and the functions that its WGSL text calls are not added.
    ///
    /// The texts depend on the features: a function for which the device has an instruction calls it.
    pub fn library(&self, is_native: impl Fn(&str) -> bool) -> Vec<LibraryFunction> {
        let (mut included, mut functions) = (BTreeSet::new(), Vec::new());
        let mut open: Vec<String> = called_functions(self.body).map(String::from).collect();
        while let Some(name) = open.pop() {
            if !included.insert(name.clone()) {
                continue;
            }
            if is_native(&name) {
                functions.push(LibraryFunction { name, source: None });
                continue;
            }
            // A missing function is skipped: the text does not compile, and the error names the function.
            let Some(source) = function_source(&name, self.features) else { continue };
            open.extend(called_functions(&source).map(String::from));
            functions.push(LibraryFunction { name, source: Some(source) });
        }
        functions
    }
}

/// The functions of the library by name.
static LIBRARY: LazyLock<HashMap<&str, &str>> = LazyLock::new(|| {
    let source = include_str!("library.wgsl");
    let starts: Vec<usize> = source.match_indices("\nfn ").map(|(newline, _)| newline + 1).collect();
    let ends = |start: usize| source[start..].find("\n}\n").map_or(source.len(), |end| start + end + 3);
    let name = |start: usize| source[start + 3..].split('(').next().unwrap_or_default();
    starts.iter().map(|&start| (name(start), &source[start..ends(start)])).collect()
});

/// Returns the words of `source` that start with the prefix of a library function and precede a parenthesis.
fn called_functions(source: &str) -> impl Iterator<Item = &str> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    source.split('(').filter_map(move |before| {
        let start = before.rfind(|c: char| !is_name(c)).map_or(0, |last| last + 1);
        let name = &before[start..];
        let is_library =
            name == "keep" || ["f_", "i_", "l_", "h_", "d_", "t_"].iter().any(|prefix| name.starts_with(prefix));
        is_library.then_some(name)
    })
}

/// The expression that rounds `x` to half precision by an instruction of the adapter.
pub(crate) const ROUND_F16: &str = "f32(f16(x))";

/// Returns the source code of a function for which some adapters have an instruction, or `None` for any other name.
fn adapter_function(name: &str, features: KernelFeatures) -> Option<String> {
    let from_f32 = format!("pack2x16float(vec2<f32>({ROUND_F16}, 0.0))");
    let (signature, is_native, native, portable) = match name {
        "f_fma" => ("(a: f32, b: f32, c: f32) -> f32", features.fused, "keep(fma(a, b, c))", "f_fma_by_parts(a, b, c)"),
        "h_to_f32" => ("(h: u32) -> f32", features.native_f16, "unpack2x16float(h).x", "h_to_f32_by_bits(h)"),
        "h_from_f32" => ("(x: f32) -> u32", features.native_f16, &*from_f32, "h_from_f32_by_bits(x)"),
        "h_round_f16" => ("(x: f32) -> f32", features.native_f16, ROUND_F16, "h_to_f32_by_bits(h_from_f32_by_bits(x))"),
        _ => return None,
    };
    let body = if is_native { native } else { portable };
    Some(format!("fn {name}{signature} {{\n    return {body};\n}}\n"))
}

/// Returns the source code of a library function.
fn function_source(name: &str, features: KernelFeatures) -> Option<String> {
    let in_library = || LIBRARY.get(name).map(|source| source.to_string());
    adapter_function(name, features).or_else(in_library).or_else(|| translate::translated(name).ok())
}

/// Returns true if shaders have the function `name`.
pub(crate) fn has_function(name: &str) -> bool {
    let is_instruction = || adapter_function(name, KernelFeatures::default()).is_some();
    LIBRARY.contains_key(name) || is_instruction() || translate::translated(name).is_ok()
}
