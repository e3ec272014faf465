//! The number of arithmetic operations of a kernel, counted from its shapes alone.

use super::infer::broadcast;
use super::{AttentionPart, Kernel, Meta};
use crate::formula::{Op, Program};
use crate::shape::Shape;

impl Kernel {
    /// Returns the number of arithmetic operations on values.
    ///
    /// A multiplication and an addition count as two, a function such as exp as one. Moving, converting and drawing
    /// values counts as 0. A factorisation has the leading term of the usual count, a sort n·log₂ n comparisons.
    pub fn flops(&self, inputs: &[Meta], outputs: &[Meta]) -> u64 {
        let size = |meta: &Meta| meta.shape.size() as u64;
        let written = outputs.first().map_or(0, size);
        let whole = || broadcast(self.name(), inputs).map_or(0, |shape| shape.size() as u64);
        match self {
            Kernel::Map(k) => written * steps(&k.program),
            Kernel::Reduce(k) => {
                let finish = k.finish.as_ref().map_or(0, |program| steps(program));
                whole() * (steps(&k.program) + 1) + written * finish
            }
            Kernel::Row(k) => whole() * steps(&k.program),
            Kernel::Scan(_) => written,
            Kernel::MatMul(k) => {
                let depth = inputs[0].shape.last().map_or(1, |&k| k as u64);
                written * (2 * depth + k.epilogue.as_ref().map_or(0, |program| steps(program)))
            }
            Kernel::Conv(k) => {
                // The shapes of x, w and y: the inputs in this order, with the output inserted at its position.
                let mut parts = [&inputs[0], &inputs[1]].map(|m| &m.shape).to_vec();
                parts.insert(k.part.place(), &outputs[0].shape);
                // Each element of y is a sum over the channels of its group and the taps.
                let terms = parts[1].iter().skip(1).product::<usize>() as u64;
                2 * parts[2].size() as u64 * terms
            }
            Kernel::Pool(k) => written * k.window.taps() as u64,
            Kernel::Scatter(_) => inputs.first().map_or(0, size),
            Kernel::Sort(_) => {
                let elements = inputs.first().map_or(0, size);
                elements * u64::from(elements.max(1).ilog2())
            }
            Kernel::Factor(_) => inputs.first().map_or(0, |a| cubes(&a.shape)),
            Kernel::Recurrent(k) => k.sizes(inputs).map_or(0, |s| {
                // Products with the weights only; the gate arithmetic is negligible.
                let rows = k.cell.gates() + usize::from(k.projected);
                2 * (s.steps * s.batch * s.hidden * s.state * rows) as u64
            }),
            Kernel::Attention(k) => k.sizes(inputs).map_or(0, |s| {
                // Forward: scores and output. Backward: scores again, and gradients of weights, queries, keys and
                // values.
                let (queries, values) = match k.part {
                    AttentionPart::Result => (1, 1),
                    AttentionPart::Gradient => (3, 2),
                };
                2 * k.pairs(&s) * (queries * s.width + values * s.depth) as u64
            }),
            Kernel::Gather(_) | Kernel::Random(_) | Kernel::Copy => 0,
        }
    }
}

/// Returns the number of arithmetic operations of a program for one element.
fn steps(program: &Program) -> u64 {
    let counts = |op: &Op| match op {
        Op::MulAdd => 2,
        Op::Convert(_) | Op::Round(_) | Op::RowIndex => 0,
        Op::Unary(_) | Op::Binary(_) | Op::Select | Op::Reduce(_) => 1,
    };
    program.steps.iter().map(|step| counts(&step.op)).sum()
}

/// Returns the sum of 2/3·m·n·min(m, n) over all matrices of the last two axes.
fn cubes(shape: &Shape) -> u64 {
    let n = shape.len();
    if n < 2 {
        return 0;
    }
    2 * shape.size() as u64 * shape[n - 2].min(shape[n - 1]) as u64 / 3
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::kernel::{Conv, ConvPart, MatMul, Window};

    fn metas<const N: usize>(shapes: [&[usize]; N]) -> [Meta; N] {
        shapes.map(|dims| Meta { shape: Shape::from(dims), dtype: DType::F32 })
    }

    #[test]
    fn products_count_multiplications_and_additions() {
        let kernel = Kernel::MatMul(MatMul::default());
        assert_eq!(kernel.flops(&metas([&[5, 2, 3], &[3, 4]]), &metas([&[5, 2, 4]])), 2 * 5 * 2 * 3 * 4);
    }

    #[test]
    fn all_parts_of_a_convolution_do_the_same_work() {
        let window = Window { size: [1, 3, 3], stride: [1; 3], dilation: [1; 3], before: [0, 1, 1] };
        let [x, w, y] = metas([&[2, 4, 1, 8, 8], &[6, 2, 1, 3, 3], &[2, 6, 1, 8, 8]]);
        let flops = |part, inputs: [&Meta; 2], output: &Meta| {
            Kernel::Conv(Conv { window, groups: 2, part })
                .flops(&inputs.map(Clone::clone), std::slice::from_ref(output))
        };
        let expected = 2 * (2 * 6 * 8 * 8) * (2 * 9);
        assert_eq!(flops(ConvPart::Output, [&x, &w], &y), expected);
        assert_eq!(flops(ConvPart::Input, [&w, &y], &x), expected);
        assert_eq!(flops(ConvPart::Weight, [&x, &y], &w), expected);
    }
}
