use super::*;
use crate::program::row::run_row;
use pellucid_ir::kernel::{AxisSet, Params, Row};
use std::sync::Arc;

/// Returns the softmax of a row.
pub(crate) fn softmax() -> Program {
    let c = Compute::F32;
    let mut p = ProgramBuilder::new();
    let x = p.x(DType::F32);
    let m = p.reduce(RowOp::Max, c, x);
    let shifted = p.binary(Binary::Sub, c, x, m);
    let e = p.unary(Unary::Exp, c, shifted);
    let s = p.reduce(RowOp::Sum, c, e);
    let r = p.row_step(Op::Unary(Unary::Recip), c, &[s]);
    let y = p.binary(Binary::Mul, c, e, r);
    p.build(&[(y, c, DType::F32, false)])
}

/// Returns a variant of layer normalization: a centered, scaled and shifted row plus the row index. It also stores the
/// mean and the minimum.
pub(crate) fn layer_norm(dtype: DType) -> Program {
    let c = Compute::F32;
    let mut p = ProgramBuilder::new();
    let (x, gamma, scale) = (p.x(dtype), p.x(DType::F32), p.input(DType::F64, c, true));
    let n = p.uniform(UniformSource::RowLength, c);
    let eps = p.uniform(UniformSource::Param(0), c);
    let sum = p.reduce(RowOp::Sum, c, x);
    let mean = p.row_step(Op::Binary(Binary::Div), c, &[sum, n]);
    let d = p.binary(Binary::Sub, c, x, mean);
    let squares = p.binary(Binary::Mul, c, d, d);
    let spread = p.reduce(RowOp::Sum, c, squares);
    let variance = p.row_step(Op::MulAdd, c, &[spread, scale, eps]);
    let deviation = p.row_step(Op::Unary(Unary::Abs), c, &[variance]);
    let z = p.binary(Binary::Div, c, d, deviation);
    let index = p.step(Op::RowIndex, Compute::I64, Compute::I64, &[]);
    let position = p.step(Op::Convert(c), Compute::I64, c, &[index]);
    let shifted = p.step(Op::MulAdd, c, c, &[z, gamma, position]);
    let low = p.reduce(RowOp::Min, c, shifted);
    p.build(&[
        (shifted, c, dtype, false),
        (mean, c, DType::F32, true),
        (low, c, DType::F16, true),
        (low, c, DType::F32, false),
    ])
}

/// Returns a program that selects from each row the element at a given index, and counts the elements at another index,
/// which is the same for all rows. The first output is the row in which all other elements are replaced by 0, plus the
/// selected element.
pub(crate) fn selected_element() -> Program {
    let (c, i) = (Compute::F32, Compute::I64);
    let mut p = ProgramBuilder::new();
    let (x, t) = (p.x(DType::F32), p.input(DType::I64, i, true));
    let zero = p.uniform(UniformSource::Literal(0.0.into()), c);
    let fixed = p.uniform(UniformSource::Param(0), i);
    let index = p.step(Op::RowIndex, i, i, &[]);
    let hit = p.step(Op::Binary(Binary::Eq), i, Compute::Mask, &[index, t]);
    let picked = p.step(Op::Select, c, c, &[hit, x, zero]);
    let sum = p.reduce(RowOp::Sum, c, picked);
    let fixed_hit = p.step(Op::Binary(Binary::Eq), i, Compute::Mask, &[fixed, index]);
    let number = p.step(Op::Convert(c), Compute::Mask, c, &[fixed_hit]);
    let count = p.reduce(RowOp::Sum, c, number);
    let total = p.binary(Binary::Add, c, picked, sum);
    p.build(&[(total, c, DType::F32, false), (sum, c, DType::F32, true), (count, c, DType::F32, true)])
}

/// Returns a program whose output, if in place, overwrites an input that later phases read.
fn late_reader() -> Program {
    let c = Compute::F32;
    let mut p = ProgramBuilder::new();
    let x = p.x(DType::F32);
    let m = p.reduce(RowOp::Max, c, x);
    let shifted = p.binary(Binary::Sub, c, x, m);
    let s = p.reduce(RowOp::Sum, c, shifted);
    let y = p.binary(Binary::Add, c, x, s);
    let low = p.reduce(RowOp::Min, c, y);
    let z = p.binary(Binary::Sub, c, x, low);
    let t = p.reduce(RowOp::Sum, c, z);
    p.build(&[(shifted, c, DType::F32, false), (t, c, DType::F32, true)])
}

/// Returns sums of products: of two inputs, of one input with itself (also stored), and of an input with a value per
/// row.
pub(crate) fn products() -> Program {
    let c = Compute::F32;
    let mut p = ProgramBuilder::new();
    let (x, y, scale) = (p.x(DType::F32), p.x(DType::F16), p.input(DType::F32, c, true));
    let xy = p.binary(Binary::Mul, c, x, y);
    let dot = p.reduce(RowOp::Sum, c, xy);
    let squares = p.binary(Binary::Mul, c, x, x);
    let norm = p.reduce(RowOp::Sum, c, squares);
    let scaled = p.binary(Binary::Mul, c, y, scale);
    let sum = p.reduce(RowOp::Sum, c, scaled);
    let shifted = p.binary(Binary::Sub, c, squares, dot);
    let product = p.binary(Binary::Mul, c, shifted, y);
    let last = p.reduce(RowOp::Sum, c, product);
    let outputs = [dot, norm, sum, last].map(|v| (v, c, DType::F32, true));
    p.build(&[&[(squares, c, DType::F32, false)], &outputs[..]].concat())
}

/// Returns exponentials normalized by their sum, and the doubled values as another output. Both are one loop, which can
/// stream the output and accumulate the sum.
fn doubled_and_normalized(c: Compute) -> Program {
    let mut p = ProgramBuilder::new();
    let x = p.x(c.storage());
    let two = p.literal(2.0, c);
    let doubled = p.binary(Binary::Mul, c, x, two);
    let e = p.unary(Unary::Exp, c, x);
    let s = p.reduce(RowOp::Sum, c, e);
    let y = p.binary(Binary::Div, c, e, s);
    p.build(&[doubled, y].map(|v| (v, c, c.storage(), false)))
}

/// Returns the expected bits of all outputs.
fn expected(
    program: &Program,
    params: &Params,
    inputs: &[&TestArray],
    shape: &[usize],
    axes: &[usize],
) -> Vec<Vec<u64>> {
    let kept: Vec<usize> = (0..shape.len()).map(|a| if axes.contains(&a) { 1 } else { shape[a] }).collect();
    let rows: usize = kept.iter().product();
    let length: usize = axes.iter().map(|&a| shape[a]).product();
    let size = |per_row: bool| if per_row { rows } else { rows * length };
    let mut outputs: Vec<Vec<u64>> = program.outputs.iter().map(|o| vec![0; size(o.per_row)]).collect();
    for r in 0..rows {
        let indices = naive::row_elements(shape, axes, r);
        let read = |(x, load): (&&TestArray, &Load)| match load.per_row {
            true => vec![x.element_bits(&kept, r)],
            false => indices.iter().map(|&p| x.element_bits(shape, p)).collect(),
        };
        let row: Vec<Vec<u64>> = inputs.iter().zip(&program.inputs).map(read).collect();
        for (k, values) in naive::interpret(program, params, &row, length).into_iter().enumerate() {
            match program.outputs[k].per_row {
                true => outputs[k][r] = values[0],
                false => indices.iter().zip(values).for_each(|(&p, v)| outputs[k][p] = v),
            }
        }
    }
    outputs
}

/// Returns shapes with the axes of a row.
fn cases() -> Vec<(Vec<usize>, Vec<usize>)> {
    let mut cases = vec![
        (vec![64, 10], vec![1]),
        (vec![10, 64], vec![0]),
        (vec![5, 1000], vec![1]),
        (vec![3, 9000], vec![1]),
        (vec![40, 3500], vec![1]),
        (vec![9000, 2], vec![0]),
        (vec![20_000], vec![0]),
        (vec![4, 6, 50], vec![0, 2]),
        (vec![3, 4, 5, 6], vec![1, 3]),
        (vec![5, 0, 3], vec![1]),
        (vec![0, 5], vec![1]),
        (vec![], vec![]),
        (vec![4, 5], vec![]),
        (vec![300, 33], vec![1]),
        (vec![12, 40, 150], vec![1, 2]),
        (vec![9, 203], vec![1]),
        (vec![6000], vec![0]),
        (vec![100, 40], vec![0]),
        (vec![2, 300, 33], vec![1]),
        (vec![3, 7, 700], vec![1]),
        (vec![5, 4, 6, 16], vec![0, 2]),
        (vec![1, 20], vec![0]),
        (vec![9, 700], vec![0]),
        (vec![2, 130, 90], vec![1]),
    ];
    cases.push((vec![2, 3000, 7], vec![1, 2]));
    cases
}

#[test]
fn row_programs_of_all_lengths_and_layouts_match_the_reference() {
    let rng = &mut Rng(7);
    for round in 0..2 {
        for (shape, axes) in cases() {
            let programs = [softmax(), layer_norm(DType::F32), layer_norm(DType::F16), late_reader(), products()];
            for program in programs.into_iter().chain([selected_element()]) {
                check_row_program(rng, &Arc::new(program), &shape, &axes, |rng, shape, dtype, stretch| match round {
                    0 => TestArray::contiguous(rng, shape, dtype),
                    _ => TestArray::random(rng, shape, dtype, stretch),
                });
            }
        }
    }
}

/// Sums that a loop accumulates have the canonical order even if the loop writes a large output whose rows begin at any
/// address.
#[test]
fn chained_sums_beside_large_outputs_match_the_reference() {
    let rng = &mut Rng(10);
    for compute in [Compute::F32, Compute::F64] {
        let program = Arc::new(doubled_and_normalized(compute));
        for length in [129, 130, 200, 255, 257, 383, 1001, 1024, 1025, 1030, 4096, 4099] {
            let shape = [(40 << 10) / (4 * length) + 2, length];
            check_row_program(rng, &program, &shape, &[1], |rng, shape, dtype, _| {
                TestArray::contiguous(rng, shape, dtype)
            });
        }
    }
}

/// Asserts that a program yields the same results as the scalar reference. `array` makes the arrays from a shape, a
/// dtype, and whether they may be broadcast.
pub(crate) fn check_row_program(
    rng: &mut Rng,
    program: &Arc<Program>,
    shape: &[usize],
    axes: &[usize],
    array: impl Fn(&mut Rng, &[usize], DType, bool) -> TestArray,
) {
    let kept: Vec<usize> = (0..shape.len()).map(|a| if axes.contains(&a) { 1 } else { shape[a] }).collect();
    let shape_of = |per_row: bool| if per_row { &kept[..] } else { shape };
    let inputs: Vec<TestArray> =
        program.inputs.iter().map(|i| array(rng, shape_of(i.per_row), i.storage, true)).collect();
    let outputs: Vec<TestArray> =
        program.outputs.iter().map(|o| array(rng, shape_of(o.per_row), o.storage, false)).collect();
    let params: Params = [Scalar::Float(1e-5)].into();
    let expected = expected(program, &params, &inputs.iter().collect::<Vec<_>>(), shape, axes);
    let kernel = Row { axes: axes.iter().copied().collect::<AxisSet>(), program: program.clone(), params };
    for_each_thread_count(|threads| {
        let mut outputs = outputs.clone();
        let from: Vec<_> = inputs.iter().map(TestArray::shared).collect();
        let to: Vec<_> = outputs.iter_mut().map(TestArray::operand).collect();
        run_row(&kernel, &from, &to).unwrap();
        for (k, (out, expected)) in outputs.iter().zip(&expected).enumerate() {
            let context = format!("{shape:?} over {axes:?} with {threads} threads, output {k} of\n{program}");
            assert_same(&out.bits(), expected, out.dtype, &context);
        }
    });
}

#[test]
fn row_programs_in_place_match_the_reference() {
    let rng = &mut Rng(8);
    for (shape, axes) in cases() {
        for program in [softmax(), late_reader()] {
            let program = Arc::new(program);
            let x = TestArray::random(rng, &shape, DType::F32, false);
            let expected = expected(&program, &Params::new(), &[&x], &shape, &axes);
            let kept: Vec<usize> = (0..shape.len()).map(|a| if axes.contains(&a) { 1 } else { shape[a] }).collect();
            let kernel = Row { axes: axes.iter().copied().collect(), program: program.clone(), params: Params::new() };
            let mut rest: Vec<TestArray> =
                program.outputs[1..].iter().map(|o| TestArray::contiguous(rng, &kept, o.storage)).collect();
            let to: Vec<_> = std::iter::once(x.shared()).chain(rest.iter_mut().map(TestArray::operand)).collect();
            run_row(&kernel, &[x.shared()], &to).unwrap();
            assert_same(&x.bits(), &expected[0], DType::F32, &format!("{shape:?} {axes:?} {program}"));
        }
    }
}

/// Tests random arithmetic programs on values per element and per row, whose reductions divide chains, including in
/// place: fused chains match the separate instructions.
#[test]
fn random_chains_in_rows_match_the_reference() {
    let rng = &mut Rng(9);
    for round in 0..60 {
        let (dtype, c) = if rng.below(4) > 0 { (DType::F32, Compute::F32) } else { (DType::F64, Compute::F64) };
        let mut p = ProgramBuilder::new();
        let mut values = vec![p.x(dtype), p.x(dtype)];
        let scale = p.input(dtype, c, true);
        let length = p.uniform(UniformSource::RowLength, c);
        // Values per row; two are uniform.
        let mut rows = vec![scale, length, p.row_step(Op::Unary(Unary::Recip), c, &[length])];
        for _ in 0..2 + rng.below(if round % 10 == 0 { 60 } else { 16 }) {
            let last = values.len() - 1;
            let mut pick = || match rng.below(6) {
                0 => rows[rng.below(rows.len())],
                1 => values[rng.below(values.len())],
                _ => values[last],
            };
            let (a, b, d) = (values[last], pick(), pick());
            let (a, b) = if rng.flip() { (a, b) } else { (b, a) };
            match rng.below(16) {
                12.. => {
                    let args = [(); 3].map(|()| rows[rows.len() - 1 - rng.below(rows.len().min(3))]);
                    let (op, count) = match rng.below(5) {
                        0 => (Op::Binary(Binary::Sub), 2),
                        1 => (Op::Binary(Binary::Mul), 2),
                        2 => (Op::Binary(Binary::Div), 2),
                        3 => (Op::MulAdd, 3),
                        _ => (Op::Unary(Unary::Abs), 1),
                    };
                    rows.push(p.row_step(op, c, &args[..count]));
                }
                0 => rows.push(p.reduce([RowOp::Sum, RowOp::Max, RowOp::Min][rng.below(3)], c, values[last])),
                1 => {
                    let square = p.binary(Binary::Mul, c, values[last], values[last]);
                    rows.push(p.reduce(RowOp::Sum, c, square));
                }
                2..4 => values.push(p.binary(Binary::Add, c, a, b)),
                4..7 => values.push(p.binary(Binary::Sub, c, a, b)),
                7..9 => values.push(p.binary(Binary::Mul, c, a, b)),
                9 => values.push(p.binary(Binary::Div, c, a, b)),
                _ => values.push(p.step(Op::MulAdd, c, c, &[a, b, d])),
            }
        }
        let (last, some) = (values[values.len() - 1], values[rng.below(values.len())]);
        let row = rows[rows.len() - 1];
        let outputs = [(last, c, dtype, false), (some, c, dtype, false), (row, c, dtype, true)];
        let program = Arc::new(p.build(&outputs));
        let params = Params::new();
        let sizes = [(3, 7), (5, 50), (9, 203), (2, 1000), (50, 300), (1, 9000)].map(|size| (size, 1));
        // Adjacent elements belong to different rows.
        let transposed = [(17, 7), (100, 40), (50, 300), (600, 20)].map(|size| (size, 0));
        for ((count, length), axis) in sizes.into_iter().chain(transposed) {
            let (mut shape, mut kept) = ([count, length], [count, 1]);
            if axis == 0 {
                shape.reverse();
                kept.reverse();
            }
            let [x, y] = [(); 2].map(|()| TestArray::contiguous(rng, &shape, dtype));
            let scale = TestArray::contiguous(rng, &kept, dtype);
            let expected = expected(&program, &params, &[&x, &y, &scale], &shape, &[axis]);
            let kernel = Row { axes: [axis].into_iter().collect(), program: program.clone(), params: params.clone() };
            let separate = [&shape, &shape, &kept].map(|shape| TestArray::contiguous(rng, shape, dtype));
            let same = [x.clone(), y.clone(), separate[2].clone()];
            for (inputs, outputs) in [([&x, &y], &separate), ([&same[0], &same[1]], &same)] {
                let from = [inputs[0].shared(), inputs[1].shared(), scale.shared()];
                run_row(&kernel, &from, &outputs.each_ref().map(TestArray::shared)).unwrap();
                for (out, expected) in outputs.iter().zip(&expected) {
                    assert_same(&out.bits(), expected, dtype, &format!("{program} {shape:?}"));
                }
            }
        }
    }
}
