//! Loads and stores of elements in storage buffers, and the offsets of elements.

use super::ShaderBuilder;
use super::parameters::Parameters;
use super::program::{ProgramValues, convert_expr};
use super::template::values;
use pellucid_ir::formula::Program;
use pellucid_ir::{Compute, DType, are_one_axis};

/// Returns an integer dtype whose elements have the size of `dtype`.
pub(crate) fn same_size_integer(dtype: DType) -> DType {
    match dtype.size() {
        1 => DType::U8,
        2 => DType::I16,
        4 => DType::I32,
        _ => DType::I64,
    }
}

/// Returns the bits of the element at `offset` of a buffer as a word, or as a `vec2<u32>` for 8 bytes.
fn element_bits(shader: &ShaderBuilder, binding: usize, size: usize, offset: &str) -> String {
    match size {
        1 => format!("(({} >> (({offset} & 3u) * 8u)) & 255u)", shader.word(binding, &format!("{offset} >> 2u"))),
        2 => format!("(({} >> (({offset} & 1u) * 16u)) & 65535u)", shader.word(binding, &format!("{offset} >> 1u"))),
        4 => shader.word(binding, offset),
        _ => format!(
            "vec2<u32>({}, {})",
            shader.word(binding, &format!("2u * {offset}")),
            shader.word(binding, &format!("2u * {offset} + 1u"))
        ),
    }
}

/// Returns the expression that loads an element of dtype `storage` as type `compute`. `offset` is the name of its
/// offset.
pub(crate) fn load(shader: &ShaderBuilder, binding: usize, storage: DType, compute: Compute, offset: &str) -> String {
    value_expr(storage, compute, &element_bits(shader, binding, storage.size(), offset))
}

/// Adds the lines that load the inputs of a program from input `first` on. `operand` returns the binding and the offset
/// of an input.
pub(crate) fn load_inputs<'o>(
    shader: &mut ShaderBuilder,
    values: &mut ProgramValues,
    program: &Program,
    first: usize,
    operand: impl Fn(usize) -> (usize, &'o String),
) {
    for (k, input) in program.inputs.iter().enumerate().skip(first) {
        let (binding, offset) = operand(k);
        let element = load(shader, binding, input.storage, input.compute, offset);
        values.inputs[k] = shader.define(element);
    }
}

/// Adds the lines that load four neighbouring elements, and returns them as values of type `compute`. `offset` is
/// the name of the offset of the first element, a multiple of 4.
pub(crate) fn load_quad(
    shader: &mut ShaderBuilder,
    binding: usize,
    storage: DType,
    compute: Compute,
    offset: &str,
) -> [String; 4] {
    let bits = match storage.size() {
        1 => {
            let word = shader.define(shader.word(binding, &format!("{offset} >> 2u")));
            [0, 8, 16, 24].map(|shift| format!("(({word} >> {shift}u) & 255u)"))
        }
        2 => {
            let words = [0, 1].map(|k| shader.define(shader.word(binding, &format!("({offset} >> 1u) + {k}u"))));
            [0, 1, 2, 3].map(|k| format!("(({} >> {}u) & 65535u)", words[k / 2], 16 * (k % 2)))
        }
        4 => {
            let words = shader.define(shader.four_words(binding, offset));
            ["x", "y", "z", "w"].map(|part| format!("{words}.{part}"))
        }
        _ => {
            let pairs = [0, 4].map(|k| shader.define(shader.four_words(binding, &format!("2u * {offset} + {k}u"))));
            [0, 1, 2, 3].map(|k| format!("{}.{}", pairs[k / 2], ["xy", "zw"][k % 2]))
        }
    };
    bits.map(|bits| value_expr(storage, compute, &bits))
}

/// Returns the value of type `compute` of the bits of an element.
fn value_expr(storage: DType, compute: Compute, bits: &str) -> String {
    let value = match storage {
        DType::Bool => format!("({bits} != 0u)"),
        DType::U8 => format!("bitcast<i32>({bits})"),
        DType::I8 => format!("(bitcast<i32>({bits} << 24u) >> 24u)"),
        DType::I16 => format!("(bitcast<i32>({bits} << 16u) >> 16u)"),
        DType::I32 => format!("bitcast<i32>({bits})"),
        DType::I64 | DType::F64 => bits.to_string(),
        DType::F16 => format!("h_to_f32({bits})"),
        DType::BF16 => format!("h_brain_to_f32({bits})"),
        DType::F32 => format!("bitcast<f32>({bits})"),
    };
    convert_expr(storage.compute(), compute, &value)
}

/// Returns the bits of a value of type `compute` as an element of dtype `storage`: one word, or a `vec2<u32>`.
///
/// The value is converted with one rounding: integers wrap, floats convert to integers with saturation.
fn stored_bits(compute: Compute, storage: DType, value: &str) -> String {
    let natural = |value: &str| convert_expr(compute, storage.compute(), value);
    let saturated = |low: i32, high: i32| match compute {
        Compute::F32 => format!("f_to_range({value}, {low}, {high})"),
        Compute::F64 => format!("d_to_range({value}, {low}, {high})"),
        _ => natural(value),
    };
    // A value with more bits than `f32` is rounded to odd before the rounding to half precision.
    let half = || match compute {
        Compute::I32 => format!("l_to_f32_odd(i_to_i64({value}))"),
        Compute::I64 => format!("l_to_f32_odd({value})"),
        Compute::F64 => format!("d_to_f32_odd({value})"),
        _ => natural(value),
    };
    match storage {
        DType::Bool => format!("select(0u, 1u, {})", natural(value)),
        DType::U8 => format!("(bitcast<u32>({}) & 255u)", saturated(0, 255)),
        DType::I8 => format!("(bitcast<u32>({}) & 255u)", saturated(-128, 127)),
        DType::I16 => format!("(bitcast<u32>({}) & 65535u)", saturated(-32768, 32767)),
        DType::I32 => format!("bitcast<u32>({})", natural(value)),
        DType::I64 | DType::F64 => natural(value),
        DType::F16 => format!("h_from_f32({})", half()),
        DType::BF16 => format!("(h_brain_from_f32({}) & 65535u)", half()),
        DType::F32 => format!("bitcast<u32>({})", natural(value)),
    }
}

/// Adds the statements that store `value` at `offset` of a buffer. A packed element is merged into its word by
/// atomic operations on its own bits only.
pub(crate) fn store(
    shader: &mut ShaderBuilder,
    binding: usize,
    compute: Compute,
    storage: DType,
    value: &str,
    offset: &str,
) {
    let bits = shader.define(stored_bits(compute, storage, value));
    match storage.size() {
        size @ (1 | 2) => {
            let (log, mask) = if size == 1 { (2, "255u") } else { (1, "65535u") };
            let width = 8 * size;
            let shift = shader.define(format!("({offset} & {}u) * {width}u", (1 << log) - 1));
            let word = shader.define(format!("{offset} >> {log}u"));
            shader.line(format!("atomicAnd(&b{binding}[{word}], ~({mask} << {shift}));"));
            shader.line(format!("atomicOr(&b{binding}[{word}], {bits} << {shift});"));
        }
        4 => shader.store_word(binding, offset, &bits),
        _ => {
            for (k, part) in ["x", "y"].iter().enumerate() {
                shader.store_word(binding, &format!("2u * {offset} + {k}u"), &format!("{bits}.{part}"));
            }
        }
    }
}

/// Returns the expression that loads a value of type `compute` that [`store_words`] has stored from word `offset` on.
pub(crate) fn load_words(shader: &ShaderBuilder, binding: usize, compute: Compute, offset: &str) -> String {
    let word = |k: usize| shader.word(binding, &format!("{offset} + {k}u"));
    match compute {
        Compute::Mask => format!("({} != 0u)", word(0)),
        Compute::I32 => format!("bitcast<i32>({})", word(0)),
        Compute::F32 => format!("bitcast<f32>({})", word(0)),
        Compute::I64 | Compute::F64 => format!("vec2<u32>({}, {})", word(0), word(1)),
    }
}

/// Adds the statements that store a value of type `compute` in full words, from word `offset` on.
pub(crate) fn store_words(shader: &mut ShaderBuilder, binding: usize, compute: Compute, value: &str, offset: &str) {
    let words = match compute {
        Compute::Mask => vec![format!("select(0u, 1u, {value})")],
        Compute::I32 | Compute::F32 => vec![format!("bitcast<u32>({value})")],
        Compute::I64 | Compute::F64 => vec![format!("{value}.x"), format!("{value}.y")],
    };
    for (k, word) in words.iter().enumerate() {
        shader.store_word(binding, &format!("{offset} + {k}u"), word);
    }
}

/// Adds an element to the variable `$word`, and stores the word after its last element.
const STORE_COLLECTED: &str = "
    $word = $word | ($bits << (($lane & $last) * $width));
    if (($lane & $last) == $last) {
        atomicStore(&$buffer[$word_offset], $word);
        $word = 0u;
    } else if ($is_last) {
        // The elements that follow in the word keep their bits.
        let kept = 0xffffffffu << ((($lane & $last) + 1u) * $width);
        atomicAnd(&$buffer[$word_offset], kept);
        atomicOr(&$buffer[$word_offset], $word);
    }
";

/// Adds the statements that collect packed elements in the variable `word` and store each complete word.
///
/// `lane` is the index of the element within the invocation, `is_last` whether it is the last one. The elements of
/// lane 0 start a word.
pub(crate) fn store_collected(
    shader: &mut ShaderBuilder,
    binding: usize,
    compute: Compute,
    storage: DType,
    value: &str,
    offset: &str,
    (word, lane, is_last): (&str, &str, &str),
) {
    let bits = shader.define(stored_bits(compute, storage, value));
    let size = storage.size();
    let (log, width, last) = if size == 1 { (2, 8, 3) } else { (1, 16, 1) };
    let (buffer, word_offset) = (format!("b{binding}"), format!("{offset} >> {log}u"));
    let [width, last] = [width, last].map(|v| format!("{v}u"));
    let lines = values![word, bits, lane, is_last, width, last, buffer, word_offset];
    shader.template(STORE_COLLECTED, lines);
}

/// The index space of a kernel after neighbouring axes are merged, with the strides of each operand in elements.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MergedAxes {
    /// The length of each axis.
    pub(crate) dims: Vec<usize>,
    /// The strides of each operand.
    pub(crate) strides: Vec<Vec<isize>>,
}

impl MergedAxes {
    /// Creates the space of `dims`, without axes of length 1, and merges neighbouring axes that all operands traverse
    /// with one stride.
    pub(crate) fn new(dims: &[usize], strides: &[Vec<isize>]) -> MergedAxes {
        // Each axis as its length and its index, at which the strides of all operands are.
        let mut axes: Vec<(usize, usize)> = (0..dims.len()).map(|axis| (dims[axis], axis)).collect();
        axes.retain(|&(len, _)| len != 1);
        axes.dedup_by(|&mut (len, inner), outer| {
            let merges = strides.iter().all(|strides| are_one_axis(strides[outer.1], strides[inner], len));
            if merges {
                *outer = (outer.0 * len, inner);
            }
            merges
        });
        let strides = strides.iter().map(|strides| axes.iter().map(|&(_, axis)| strides[axis]).collect()).collect();
        MergedAxes { dims: axes.iter().map(|&(len, _)| len).collect(), strides }
    }

    /// Adds the lengths and strides to the parameters and returns their expressions.
    pub(crate) fn declare(&self, parameters: &mut Parameters) -> AxesExprs {
        let dims = self.dims.iter().map(|&len| parameters.declare_len(len)).collect();
        let mut declare = |strides: &Vec<isize>| strides.iter().map(|&s| parameters.declare(s)).collect();
        AxesExprs { dims, strides: self.strides.iter().map(&mut declare).collect() }
    }
}

/// The expressions of [`MergedAxes`] in a shader.
#[derive(Clone, Debug)]
pub(crate) struct AxesExprs {
    dims: Vec<String>,
    strides: Vec<Vec<String>>,
}

impl AxesExprs {
    /// Adds the lines that compute the offset of the element with index `flat` in the first operands, and returns
    /// their names. `start[k]` is the offset of the first element of operand `k`.
    pub(crate) fn offsets(&self, shader: &mut ShaderBuilder, flat: &str, start: &[String]) -> Vec<String> {
        let mut rest = flat.to_string();
        let mut sums: Vec<String> = start.to_vec();
        for (axis, len) in self.dims.iter().enumerate().rev() {
            let index = if axis == 0 { rest.clone() } else { shader.define(format!("{rest} % {len}")) };
            if axis > 0 {
                rest = shader.define(format!("{rest} / {len}"));
            }
            for (sum, strides) in sums.iter_mut().zip(&self.strides) {
                *sum = format!("{sum} + {index} * {}", strides[axis]);
            }
        }
        sums.into_iter().map(|sum| shader.define(sum)).collect()
    }
}
