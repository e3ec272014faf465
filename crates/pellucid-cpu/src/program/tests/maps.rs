use super::*;
use crate::program::map::run_map;
use pellucid_ir::kernel::{Map, Params};
use std::sync::Arc;

/// Asserts that `program` yields the same results as the scalar reference.
pub(crate) fn check_map(
    program: &Arc<Program>,
    params: &Params,
    inputs: &mut [TestArray],
    outputs: &mut [TestArray],
    shape: &[usize],
    context: &str,
) {
    let refs: Vec<&TestArray> = inputs.iter().collect();
    let expected = naive::map(program, params, &refs, shape);
    let kernel = Map { program: program.clone(), params: params.clone() };
    let from: Vec<Operand<'_>> = inputs.iter_mut().map(TestArray::operand).collect();
    let to: Vec<Operand<'_>> = outputs.iter_mut().map(TestArray::operand).collect();
    run_map(&kernel, &from, &to).unwrap();
    for (out, expected) in outputs.iter().zip(&expected) {
        assert_same(&out.bits(), expected, out.dtype, context);
    }
}

/// Returns a program of three outputs with every kind of instruction.
pub(crate) fn mixed(a: DType, b: DType, out: DType) -> Arc<Program> {
    let mut p = ProgramBuilder::new();
    let (x, y) = (p.input(a, Compute::F32, false), p.input(b, Compute::F32, false));
    let k = p.uniform(UniformSource::Param(0), Compute::F32);
    let half = p.literal(0.5, Compute::F32);
    let c = Compute::F32;
    let t = p.binary(Binary::Mul, c, x, k);
    let mask = p.binary(Binary::Lt, c, t, y);
    let s = p.step(Op::Select, c, c, &[mask, t, half]);
    let f = p.step(Op::MulAdd, c, c, &[k, s, y]);
    let kk = p.binary(Binary::Add, c, k, half);
    let g = p.step(Op::MulAdd, c, c, &[kk, half, f]);
    let r = p.step(Op::Round(DType::F16), c, c, &[g]);
    let e = p.unary(Unary::Abs, c, r);
    p.build(&[(e, c, out, false), (mask, Compute::Mask, DType::Bool, false), (kk, c, DType::F64, false)]).into()
}

#[test]
fn all_layouts_and_dtypes_match_the_reference() {
    let rng = &mut Rng(1);
    let dtypes = [DType::F32, DType::F16, DType::F64, DType::I64, DType::U8, DType::Bool, DType::BF16];
    for round in 0..3 {
        for shape in shapes() {
            let dtype = |rng: &mut Rng| if rng.flip() { DType::F32 } else { dtypes[rng.below(dtypes.len())] };
            let (a, b, out) = (dtype(rng), dtype(rng), dtype(rng));
            let program = mixed(a, b, out);
            let mut inputs = [TestArray::random(rng, &shape, a, true), TestArray::random(rng, &shape, b, true)];
            let mut outputs = [out, DType::Bool, DType::F64].map(|dtype| TestArray::random(rng, &shape, dtype, false));
            let params = [rng.value()].into();
            let context = format!("{round}: {a} {b} {out} {shape:?} {:?}", inputs.each_ref().map(|i| &i.layout));
            check_map(&program, &params, &mut inputs, &mut outputs, &shape, &context);
        }
    }
}

#[test]
fn single_instructions_broadcast_and_read_parameters() {
    let rng = &mut Rng(2);
    let c = Compute::F32;
    let mut p = ProgramBuilder::new();
    let (x, y) = (p.x(DType::F32), p.x(DType::F32));
    let sum = p.binary(Binary::Sub, c, x, y);
    let binary: Arc<Program> = p.build(&[(sum, c, DType::F32, false)]).into();
    let mut p = ProgramBuilder::new();
    let (x, k) = (p.x(DType::F32), p.uniform(UniformSource::Param(0), c));
    let product = p.binary(Binary::Sub, c, k, x);
    let scale: Arc<Program> = p.build(&[(product, c, DType::F32, false)]).into();
    let mut p = ProgramBuilder::new();
    let x = p.x(DType::F32);
    let root = p.unary(Unary::Exp, c, x);
    let unary: Arc<Program> = p.build(&[(root, c, DType::F32, false)]).into();
    for shape in shapes() {
        let full = TestArray::contiguous(rng, &shape, DType::F32);
        let one = TestArray::contiguous(rng, &[], DType::F32);
        for pair in [
            [full.clone(), full.clone()],
            [full.clone(), one.clone()],
            [one.clone(), full.clone()],
            [one.clone(), one.clone()],
        ] {
            let mut out = [TestArray::contiguous(rng, &shape, DType::F32)];
            check_map(&binary, &Params::new(), &mut pair.clone(), &mut out, &shape, "binary");
            check_map(&scale, &[Scalar::Float(2.5)].into(), &mut pair[..1].to_vec(), &mut out, &shape, "scale");
            check_map(&unary, &Params::new(), &mut pair[..1].to_vec(), &mut out, &shape, "unary");
        }
        let mut strided =
            [TestArray::random(rng, &shape, DType::F32, true), TestArray::random(rng, &shape, DType::F32, true)];
        let mut out = [TestArray::random(rng, &shape, DType::F32, false)];
        check_map(&binary, &Params::new(), &mut strided, &mut out, &shape, "strided");
    }
}

/// Tests rows, columns and parts of matrices as operands: short rows are computed in tiles of several rows, in which
/// the row repeats, and the column is repeated for each element of a row.
#[test]
fn rows_and_columns_broadcast_in_tiles_of_several_rows() {
    let rng = &mut Rng(6);
    let c = Compute::F32;
    let program = |roots: bool| -> Arc<Program> {
        let mut p = ProgramBuilder::new();
        let (x, y, z) = (p.x(DType::F32), p.x(DType::F32), p.x(DType::F32));
        // A root of a column is computed once per row, so rows are not joined to tiles.
        let z = if roots { p.unary(Unary::Sqrt, c, z) } else { z };
        let sum = p.binary(Binary::Add, c, x, y);
        let product = p.binary(Binary::Mul, c, sum, z);
        let difference = p.binary(Binary::Sub, c, product, x);
        p.build(&[(difference, c, DType::F32, false), (sum, c, DType::F32, false)]).into()
    };
    for program in [program(false), program(true)] {
        for (rows, cols) in [(3, 127), (70, 128), (33, 130), (9, 700), (40, 256), (5, 767), (6, 768), (300, 17)] {
            let operand = |rng: &mut Rng, kind: usize| match kind {
                0 => TestArray::contiguous(rng, &[rows, cols], DType::F32),
                1 => TestArray::contiguous(rng, &[1, cols], DType::F32),
                2 => TestArray::contiguous(rng, &[rows, 1], DType::F32),
                _ => {
                    let mut part = TestArray::contiguous(rng, &[rows, cols + 5], DType::F32);
                    part.layout = part.layout.slice(1, 3, 1, cols);
                    part
                }
            };
            for kinds in [[0, 1, 2], [1, 0, 2], [0, 1, 1], [0, 2, 2], [1, 2, 1], [3, 1, 2], [0, 3, 1]] {
                let mut inputs = kinds.map(|kind| operand(rng, kind));
                let mut outputs = [0, 0].map(|kind| operand(rng, kind));
                for_each_thread_count(|_| {
                    let context = format!("{program} {rows} × {cols} {kinds:?}");
                    let shape = [rows, cols];
                    check_map(&program, &Params::new(), &mut inputs, &mut outputs, &shape, &context);
                });
            }
        }
    }
}

/// Tests the update m' = m·½ + g, p' = p − k·m' in place over p and m. Further programs read p after p' is written,
/// swap two arrays, and compute in half precision.
#[test]
fn maps_in_place_allow_reads_of_an_input_after_its_output() {
    let rng = &mut Rng(3);
    let c = Compute::F32;
    let update = |late: bool| {
        let mut p = ProgramBuilder::new();
        let (w, g, m) = (p.x(DType::F32), p.x(DType::F32), p.x(DType::F32));
        let k = p.uniform(UniformSource::Param(0), c);
        let half = p.literal(0.5, c);
        let decayed = p.binary(Binary::Mul, c, m, half);
        let momentum = p.binary(Binary::Add, c, decayed, g);
        let step = p.binary(Binary::Mul, c, momentum, k);
        let next = p.binary(Binary::Sub, c, w, step);
        let momentum = if late { p.binary(Binary::Mul, c, w, momentum) } else { momentum };
        p.build(&[(next, c, DType::F32, false), (momentum, c, DType::F32, false)])
    };
    let swap = {
        let mut p = ProgramBuilder::new();
        let (a, _, b) = (p.x(DType::F32), p.x(DType::F32), p.x(DType::F32));
        p.build(&[(b, c, DType::F32, false), (a, c, DType::F32, false)])
    };
    let half = {
        let mut p = ProgramBuilder::new();
        let (a, g, b) = (p.x(DType::F16), p.x(DType::F16), p.x(DType::F16));
        let sum = p.binary(Binary::Add, c, a, g);
        let product = p.binary(Binary::Mul, c, a, b);
        p.build(&[(sum, c, DType::F16, false), (product, c, DType::F16, false)])
    };
    for program in [update(false), update(true), swap, half] {
        let program = Arc::new(program);
        for shape in shapes() {
            let dtype = program.inputs[0].storage;
            let [w, g, m] = [(); 3].map(|()| TestArray::random(rng, &shape, dtype, false));
            let params: Params = [Scalar::Float(0.1)].into();
            let expected = naive::map(&program, &params, &[&w, &g, &m], &shape);
            for_each_thread_count(|_| {
                let (w, m) = (w.clone(), m.clone());
                let kernel = Map { program: program.clone(), params: params.clone() };
                run_map(&kernel, &[w.shared(), g.shared(), m.shared()], &[w.shared(), m.shared()]).unwrap();
                assert_same(&w.bits(), &expected[0], dtype, &format!("{program} {shape:?}"));
                assert_same(&m.bits(), &expected[1], dtype, &format!("{program} {shape:?}"));
            });
        }
    }
}

#[test]
fn maps_support_sixty_four_axes() {
    let rng = &mut Rng(4);
    let mut shape = vec![1; 64];
    [3, 17, 40, 63].iter().for_each(|&a: &usize| shape[a] = 3);
    let program = mixed(DType::F32, DType::F32, DType::F32);
    let mut inputs =
        [TestArray::random(rng, &shape, DType::F32, true), TestArray::random(rng, &shape, DType::F32, true)];
    let mut outputs = [DType::F32, DType::Bool, DType::F64].map(|d| TestArray::random(rng, &shape, d, false));
    check_map(&program, &[Scalar::Int(2)].into(), &mut inputs, &mut outputs, &shape, "rank 64");
}

/// Tests that fused chains match the separate instructions, in random arithmetic programs, including in place.
#[test]
fn random_chains_match_the_reference() {
    let rng = &mut Rng(5);
    for round in 0..150 {
        let (dtype, c) = if rng.below(4) > 0 { (DType::F32, Compute::F32) } else { (DType::F64, Compute::F64) };
        let mut p = ProgramBuilder::new();
        let mut values = vec![p.x(dtype), p.x(dtype), p.x(dtype), p.uniform(UniformSource::Param(0), c)];
        values.push(p.literal(0.75, c));
        for _ in 0..2 + rng.below(if round % 10 == 0 { 90 } else { 20 }) {
            // Most instructions read the result of the previous instruction, as in formulas.
            let last = values.len() - 1;
            let mut pick = || values[if rng.below(3) > 0 { last } else { rng.below(values.len()) }];
            let (a, b, d) = (pick(), pick(), pick());
            values.push(match rng.below(14) {
                0 => p.unary(Unary::Neg, c, a),
                1 => p.unary(Unary::Tanh, c, a),
                2..5 => p.binary(Binary::Add, c, a, b),
                5..8 => p.binary(Binary::Sub, c, a, b),
                8..11 => p.binary(Binary::Mul, c, a, b),
                11 => p.binary(Binary::Div, c, a, b),
                _ => p.step(Op::MulAdd, c, c, &[a, b, d]),
            });
        }
        let (last, some) = (values[values.len() - 1], values[rng.below(values.len())]);
        let program = Arc::new(p.build(&[(last, c, dtype, false), (some, c, dtype, false)]));
        let params: Params = [rng.value()].into();
        for shape in [[7], [130], [1000], [9000]] {
            let [x, y, z] = [(); 3].map(|()| TestArray::contiguous(rng, &shape, dtype));
            let expected = naive::map(&program, &params, &[&x, &y, &z], &shape);
            let kernel = Map { program: program.clone(), params: params.clone() };
            let separate = [(); 2].map(|()| TestArray::contiguous(rng, &shape, dtype));
            let same = [x.clone(), y.clone()];
            for (inputs, outputs) in [([&x, &y], &separate), ([&same[0], &same[1]], &same)] {
                let from = [inputs[0].shared(), inputs[1].shared(), z.shared()];
                run_map(&kernel, &from, &[outputs[0].shared(), outputs[1].shared()]).unwrap();
                for (out, expected) in outputs.iter().zip(&expected) {
                    assert_same(&out.bits(), expected, dtype, &format!("{program} {shape:?}"));
                }
            }
        }
    }
}
