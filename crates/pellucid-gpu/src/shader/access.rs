//! [`ElementAccess`]: loads and stores of elements in storage buffers.

use super::ShaderBuilder;
use super::program::{ProgramValues, convert_expr};
use super::template::values;
use super::types::value_of_words;
use pellucid_ir::formula::Program;
use pellucid_ir::{Compute, DType};

/// The elements of a bound buffer, which are loaded and stored as values of a compute type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ElementAccess {
    pub(crate) binding: usize,
    storage: DType,
    compute: Compute,
}

/// The word in which an invocation collects packed elements.
pub(crate) struct CollectedWord<'a> {
    /// The variable of the word.
    pub(crate) variable: &'a str,
    /// The index of the element within the invocation. The element with index 0 starts a word.
    pub(crate) lane: &'a str,
    /// Whether the element is the last one of the invocation.
    pub(crate) is_last: &'a str,
}

/// Adds an element to the variable `$variable`, and stores the word after its last element.
const STORE_COLLECTED: &str = "
    $variable = $variable | ($bits << (($lane & $last) * $width));
    if (($lane & $last) == $last) {
        atomicStore(&$buffer[$word_offset], $variable);
        $variable = 0u;
    } else if ($is_last) {
        // The elements that follow in the word keep their bits.
        let kept = 0xffffffffu << ((($lane & $last) + 1u) * $width);
        atomicAnd(&$buffer[$word_offset], kept);
        atomicOr(&$buffer[$word_offset], $variable);
    }
";

impl ElementAccess {
    /// Accesses the elements of dtype `storage` of a buffer as values of its compute type.
    pub(crate) fn new(binding: usize, storage: DType) -> ElementAccess {
        ElementAccess { binding, storage, compute: storage.compute() }
    }

    /// Accesses the same elements as values of type `compute`.
    pub(crate) fn as_type(self, compute: Compute) -> ElementAccess {
        ElementAccess { compute, ..self }
    }

    /// Accesses the same elements as integers, so that copies preserve all bit patterns.
    pub(crate) fn as_bits(self) -> ElementAccess {
        ElementAccess::new(self.binding, same_size_integer(self.storage))
    }

    /// Returns the bits of the element at `offset` as a word, or as a `vec2<u32>` for 8 bytes.
    fn bits(self, shader: &ShaderBuilder, offset: &str) -> String {
        let word = |index: String| shader.word(self.binding, &index);
        match self.storage.size() {
            1 => format!("(({} >> (({offset} & 3u) * 8u)) & 255u)", word(format!("{offset} >> 2u"))),
            2 => format!("(({} >> (({offset} & 1u) * 16u)) & 65535u)", word(format!("{offset} >> 1u"))),
            4 => word(offset.to_string()),
            _ => {
                let [low, high] = [format!("2u * {offset}"), format!("2u * {offset} + 1u")].map(word);
                format!("vec2<u32>({low}, {high})")
            }
        }
    }

    /// Returns the expression that loads an element. `offset` is the name of its offset.
    pub(crate) fn load(self, shader: &ShaderBuilder, offset: &str) -> String {
        value_expr(self.storage, self.compute, &self.bits(shader, offset))
    }

    /// Adds the line that loads an element, and returns its name.
    pub(crate) fn define(self, shader: &mut ShaderBuilder, offset: &str) -> String {
        let value = self.load(shader, offset);
        shader.define(value)
    }

    /// Returns the expression that reads the lower word of an element of two words. `offset` is an expression.
    pub(crate) fn lower_word(self, shader: &ShaderBuilder, offset: &str) -> String {
        shader.word(self.binding, &format!("2u * {offset}"))
    }

    /// Adds the lines that load four neighbouring elements, and returns their values. `offset` is the name of the
    /// offset of the first element, a multiple of 4.
    pub(crate) fn load_quad(self, shader: &mut ShaderBuilder, offset: &str) -> [String; 4] {
        let binding = self.binding;
        let bits = match self.storage.size() {
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
        bits.map(|bits| value_expr(self.storage, self.compute, &bits))
    }

    /// Adds the statements that store `value` at `offset`. A packed element is merged into its word by atomic
    /// operations on its own bits only.
    pub(crate) fn store(self, shader: &mut ShaderBuilder, value: &str, offset: &str) {
        let (binding, size) = (self.binding, self.storage.size());
        let bits = shader.define(stored_bits(self.compute, self.storage, value));
        match size {
            1 | 2 => {
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

    /// Adds the statements that collect packed elements in a word and store it when it is complete.
    pub(crate) fn store_collected(
        self,
        shader: &mut ShaderBuilder,
        value: &str,
        offset: &str,
        word: CollectedWord<'_>,
    ) {
        let CollectedWord { variable, lane, is_last } = word;
        let bits = shader.define(stored_bits(self.compute, self.storage, value));
        let (log, width, last) = if self.storage.size() == 1 { (2, 8, 3) } else { (1, 16, 1) };
        let (buffer, word_offset) = (format!("b{}", self.binding), format!("{offset} >> {log}u"));
        let [width, last] = [width, last].map(|v| format!("{v}u"));
        let lines = values![variable, bits, lane, is_last, width, last, buffer, word_offset];
        shader.template(STORE_COLLECTED, lines);
    }
}

/// An element of a bound buffer.
pub(crate) struct ElementRef {
    pub(crate) elements: ElementAccess,
    /// The name of the offset.
    pub(crate) offset: String,
}

impl ElementRef {
    /// Adds the statements that store `value`.
    pub(crate) fn store(&self, shader: &mut ShaderBuilder, value: &str) {
        self.elements.store(shader, value, &self.offset);
    }
}

/// Adds the lines that load the inputs `first..` of a program, which are the first of `elements`, and the lines of all
/// steps.
pub(crate) fn compute_program(
    shader: &mut ShaderBuilder,
    program: &Program,
    values: &mut ProgramValues,
    first: usize,
    elements: &[ElementRef],
) {
    for ((k, load), ElementRef { elements, offset }) in program.inputs.iter().enumerate().skip(first).zip(elements) {
        values.set_input(k, elements.as_type(load.compute).define(shader, offset));
    }
    values.compute_steps(shader, program);
}

/// Adds the lines that store a value of type `compute`, or the outputs of a finishing program whose first input is this
/// value. `elements` are the other inputs of the program, then the outputs.
pub(crate) fn store_finished(
    shader: &mut ShaderBuilder,
    program: Option<(&Program, ProgramValues)>,
    value: &str,
    compute: Compute,
    elements: &[ElementRef],
) {
    let Some((program, mut values)) = program else {
        let ElementRef { elements, offset } = &elements[0];
        return elements.as_type(compute).store(shader, value, offset);
    };
    values.set_input(0, shader.define(convert_expr(compute, program.inputs[0].compute, value)));
    compute_program(shader, program, &mut values, 1, elements);
    for (store, ElementRef { elements, offset }) in program.outputs.iter().zip(&elements[program.inputs.len() - 1..]) {
        elements.as_type(store.compute).store(shader, values.value(store.value), offset);
    }
}

/// Returns an integer dtype whose elements have the size of `dtype`.
pub(crate) fn same_size_integer(dtype: DType) -> DType {
    match dtype.size() {
        1 => DType::U8,
        2 => DType::I16,
        4 => DType::I32,
        _ => DType::I64,
    }
}

/// Returns the expression of an element as a value of type `compute`. `bits` is the expression of its bits.
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
    // A value with more bits than `f32` is first rounded to odd, so that the rounding to half precision is correct.
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

/// Returns the expression that loads a value of type `compute` that [`store_words`] has stored at word `offset`.
pub(crate) fn load_words(shader: &ShaderBuilder, binding: usize, compute: Compute, offset: &str) -> String {
    value_of_words(compute, |k| shader.word(binding, &format!("{offset} + {k}u")))
}

/// Adds the statements that store a value of type `compute` in full words, starting at word `offset`.
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
