//! [`Parameters`]: the words that a dispatch reads in addition to its buffers.

use super::types::{value_of_words, words};
use pellucid_ir::formula::{Program, Uniform, UniformSource};
use pellucid_ir::{Compute, Element, Scalar};

/// The parameters of a dispatch, a list of words. Word 0 is the number of work items, word 1 is 0.
///
/// The values of run-time parameters of programs are inserted when the dispatch is recorded, so a new value needs no
/// new description.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Parameters {
    words: Vec<u32>,
    scalars: Vec<ScalarSlot>,
}

/// A run-time parameter of a kernel, and its position in the words.
#[derive(Clone, Copy, Debug, PartialEq)]
struct ScalarSlot {
    word: usize,
    compute: Compute,
    /// The index of the run-time parameter.
    index: usize,
}

/// A word of the parameters that can be changed, so that repeated dispatches can differ in it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ParameterSlot(usize);

impl ParameterSlot {
    /// Returns the expression that reads the word.
    pub(crate) fn expr(self) -> String {
        format!("params[{}]", self.0)
    }
}

/// Returns the words of a value that is rounded to a compute type. The second word is unused if the type has 32 bits.
fn scalar_words(compute: Compute, scalar: Scalar) -> [u32; 2] {
    let wide = |bits: u64| [bits as u32, (bits >> 32) as u32];
    match compute {
        Compute::Mask => [u32::from(bool::from_scalar(scalar)), 0],
        Compute::I32 => [i32::from_scalar(scalar) as u32, 0],
        Compute::I64 => wide(i64::from_scalar(scalar) as u64),
        Compute::F32 => [f32::from_scalar(scalar).to_bits(), 0],
        Compute::F64 => wide(f64::from_scalar(scalar).to_bits()),
    }
}

impl Parameters {
    /// Creates the parameters of a dispatch with `items` work items.
    pub(crate) fn for_items(items: usize) -> Parameters {
        Parameters { words: vec![items as u32, 0], scalars: Vec::new() }
    }

    /// Returns the number of bytes.
    pub(crate) fn bytes(&self) -> usize {
        4 * self.words.len()
    }

    /// Appends a word that can be changed later.
    pub(crate) fn declare_slot(&mut self, value: usize) -> ParameterSlot {
        self.words.push(value as u32);
        ParameterSlot(self.words.len() - 1)
    }

    /// Changes a word.
    pub(crate) fn set(&mut self, slot: ParameterSlot, value: usize) {
        self.words[slot.0] = value as u32;
    }

    /// Changes the number of work items.
    pub(crate) fn set_items(&mut self, items: usize) {
        self.words[0] = items as u32;
    }

    /// Appends a value, rounded to a compute type, and returns the expression that reads it.
    pub(crate) fn declare_scalar(&mut self, compute: Compute, value: Scalar) -> String {
        let word = self.words.len();
        self.words.extend_from_slice(&scalar_words(compute, value)[..words(compute)]);
        value_of_words(compute, |k| format!("params[{}]", word + k))
    }

    /// Appends every uniform of a program, rounded to its compute type, and returns the expressions that read them. The
    /// run-time parameters of the program are the parameters `first..` of the kernel.
    pub(crate) fn declare_uniforms(&mut self, program: &Program, first: usize, row_length: usize) -> Vec<String> {
        let mut declare = |uniform: &Uniform| {
            let scalar = match uniform.source {
                UniformSource::Param(p) => {
                    let (word, index) = (self.words.len(), first + p as usize);
                    self.scalars.push(ScalarSlot { word, compute: uniform.compute, index });
                    Scalar::Int(0)
                }
                UniformSource::Literal(value) => value,
                UniformSource::RowLength => Scalar::from(row_length),
            };
            self.declare_scalar(uniform.compute, scalar)
        };
        program.uniforms.iter().map(&mut declare).collect()
    }

    /// Returns the number of run-time parameters that a kernel must have.
    pub(crate) fn required_scalars(&self) -> usize {
        self.scalars.iter().map(|slot| slot.index + 1).max().unwrap_or(0)
    }

    /// Appends the bytes of all words to `to`. `scalar` returns a run-time parameter of the kernel.
    pub(crate) fn append_bytes(&self, to: &mut Vec<u8>, scalar: impl Fn(usize) -> Scalar) {
        let start = to.len();
        to.extend(self.words.iter().flat_map(|word| word.to_ne_bytes()));
        for slot in &self.scalars {
            let values = scalar_words(slot.compute, scalar(slot.index));
            for (k, word) in values[..words(slot.compute)].iter().enumerate() {
                let at = start + 4 * (slot.word + k);
                to[at..at + 4].copy_from_slice(&word.to_ne_bytes());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_time_parameters_are_inserted_with_their_types() {
        let uniform = |source, compute| Uniform { source, compute };
        let uniforms = vec![
            uniform(UniformSource::Param(1), Compute::I64),
            uniform(UniformSource::Literal(Scalar::Int(7)), Compute::I32),
            uniform(UniformSource::RowLength, Compute::I32),
            uniform(UniformSource::Param(0), Compute::F32),
        ];
        let program = Program::new("test", vec![], uniforms, vec![], Default::default(), vec![]);
        let mut parameters = Parameters::for_items(9);
        let exprs = parameters.declare_uniforms(&program, 2, 5);
        let words = ["vec2<u32>(params[2], params[3])", "bitcast<i32>(params[4])", "bitcast<i32>(params[5])"];
        assert_eq!((&exprs[..3], &*exprs[3]), (&words.map(String::from)[..], "bitcast<f32>(params[6])"));
        assert_eq!(parameters.required_scalars(), 4);
        let scalars = [Scalar::Int(0), Scalar::Int(0), Scalar::Float(1.5), Scalar::Int(-2)];
        let mut bytes = vec![1; 3];
        parameters.append_bytes(&mut bytes, |k| scalars[k]);
        let expected = [9, 0, -2i32 as u32, u32::MAX, 7, 5, 1.5f32.to_bits()];
        let got: Vec<u32> = bytes[3..].chunks(4).map(|b| u32::from_ne_bytes(b.try_into().unwrap())).collect();
        assert_eq!(got, expected);
    }
}
