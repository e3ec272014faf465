//! The index space of a kernel, and the offsets of elements from flat indices.

use super::ShaderBuilder;
use pellucid_ir::are_one_axis;

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
        // Each axis as its length and its index in the strides of all operands.
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
    pub(crate) fn declare(&self, shader: &mut ShaderBuilder) -> AxesExprs {
        let dims = self.dims.iter().map(|&len| shader.declare_word(len)).collect();
        let mut declare = |strides: &Vec<isize>| strides.iter().map(|&s| shader.declare(s)).collect();
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
    /// Adds the lines that compute the offset of the element with index `flat` in the first `start.len()` operands, and
    /// returns the names of the offsets. `start[k]` is the offset of the first element of operand `k`.
    pub(crate) fn offsets(&self, shader: &mut ShaderBuilder, flat: &str, start: &[String]) -> Vec<String> {
        let indices = digits(shader, flat, self.dims.iter());
        let operands = start.iter().zip(&self.strides);
        let sum = |(start, strides): (&String, &Vec<String>)| {
            let terms = indices.iter().zip(strides).rev();
            terms.fold(start.clone(), |sum, (index, stride)| format!("{sum} + {index} * {stride}"))
        };
        let sums: Vec<String> = operands.map(sum).collect();
        sums.into_iter().map(|sum| shader.define(sum)).collect()
    }

    /// Adds the lines that compute the offset of the element with index `flat` in the first operand.
    pub(crate) fn offset(&self, shader: &mut ShaderBuilder, flat: &str, start: &String) -> String {
        self.offsets(shader, flat, std::slice::from_ref(start)).remove(0)
    }
}

/// Adds the lines that compute the digits of `index` in mixed radix, the most significant first. `lengths` contains the
/// number of values of each digit.
pub(crate) fn digits<'l>(
    shader: &mut ShaderBuilder,
    index: &str,
    lengths: impl DoubleEndedIterator<Item = &'l String> + ExactSizeIterator,
) -> Vec<String> {
    let mut rest = index.to_string();
    let mut digits: Vec<String> = Vec::new();
    let count = lengths.len();
    for length in lengths.skip(1).rev() {
        digits.push(shader.define(format!("{rest} % {length}")));
        rest = shader.define(format!("{rest} / {length}"));
    }
    digits.extend((count > 0).then_some(rest));
    digits.reverse();
    digits
}
