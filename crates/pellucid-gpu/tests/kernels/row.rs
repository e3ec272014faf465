//! Programs with row reductions.

use super::harness::{PairedArray, ProgramBuilder, Rng, TestLayout, Tolerance, Value, device, run_both};
use pellucid_ir::formula::{Binary, Op, Program, RowOp, Unary, UniformSource};
use pellucid_ir::kernel::{Kernel, Row};
use pellucid_ir::{Compute, DType};
use std::sync::Arc;

const F32: Compute = Compute::F32;

/// Returns the program e^(x − max)/Σ e^(x − max), which has two levels of reductions.
pub(crate) fn softmax(dtype: DType) -> Arc<Program> {
    let c = dtype.compute();
    let mut p = ProgramBuilder::default();
    let x = p.x(dtype);
    let largest = p.row_step(Op::Reduce(RowOp::Max), c, &[x]);
    let shifted = p.step(Op::Binary(Binary::Sub), c, c, &[x, largest]);
    let e = p.step(Op::Unary(Unary::Exp), c, c, &[shifted]);
    let sum = p.row_step(Op::Reduce(RowOp::Sum), c, &[e]);
    let y = p.step(Op::Binary(Binary::Div), c, c, &[e, sum]);
    p.build(&[(y, c, dtype, false)])
}

/// Returns the program (x − mean)·g/√(variance + ε), which has outputs per row and an input per row, and reads the
/// length of the row.
pub(crate) fn layer_norm(dtype: DType) -> Arc<Program> {
    let mut p = ProgramBuilder::default();
    let (x, g) = (p.x(dtype), p.input(DType::F32, F32, true));
    let n = p.uniform(UniformSource::RowLength, F32);
    let epsilon = p.uniform(UniformSource::Literal(pellucid_ir::Scalar::Float(1e-5)), F32);
    let sum = p.row_step(Op::Reduce(RowOp::Sum), F32, &[x]);
    let mean = p.row_step(Op::Binary(Binary::Div), F32, &[sum, n]);
    let centred = p.step(Op::Binary(Binary::Sub), F32, F32, &[x, mean]);
    let square = p.step(Op::Binary(Binary::Mul), F32, F32, &[centred, centred]);
    let squares = p.row_step(Op::Reduce(RowOp::Sum), F32, &[square]);
    let variance = p.row_step(Op::Binary(Binary::Div), F32, &[squares, n]);
    let shifted = p.row_step(Op::Binary(Binary::Add), F32, &[variance, epsilon]);
    let deviation = p.row_step(Op::Unary(Unary::Sqrt), F32, &[shifted]);
    let scaled = p.step(Op::Binary(Binary::Div), F32, F32, &[centred, deviation]);
    let y = p.step(Op::Binary(Binary::Mul), F32, F32, &[scaled, g]);
    p.build(&[(y, F32, dtype, false), (mean, F32, DType::F32, true), (deviation, F32, dtype, true)])
}

/// Returns the program that computes, for each row, the element at an index (an input per row) as a masked sum, and the
/// minimum.
fn selected() -> Arc<Program> {
    let mut p = ProgramBuilder::default();
    let x = p.x(DType::I32);
    let target: Value = p.input(DType::I64, Compute::I64, true);
    let index = p.step(Op::RowIndex, Compute::I64, Compute::I64, &[]);
    let is_target = p.step(Op::Binary(Binary::Eq), Compute::I64, Compute::Mask, &[index, target]);
    let zero = p.uniform(UniformSource::Literal(pellucid_ir::Scalar::Int(0)), Compute::I32);
    let chosen = p.step(Op::Select, Compute::I32, Compute::I32, &[is_target, x, zero]);
    let sum = p.row_step(Op::Reduce(RowOp::Sum), Compute::I32, &[chosen]);
    let least = p.row_step(Op::Reduce(RowOp::Min), Compute::I32, &[x]);
    p.build(&[(sum, Compute::I32, DType::I32, true), (least, Compute::I32, DType::I16, true)])
}

fn check_row_program(rng: &mut Rng, program: &Arc<Program>, shape: &[usize], axes: &[usize], in_place: bool) {
    let Some(gpu) = device() else { return };
    let kernel = Row { axes: axes.iter().copied().collect(), program: program.clone(), params: Default::default() };
    let per_row = kernel.axes.keepdims(&shape.into());
    let mut array = |dtype, is_per_row: bool| {
        let shape = if is_per_row { per_row.clone() } else { shape.into() };
        let layout = TestLayout::ALL[rng.below(5)];
        PairedArray::new(gpu, shape, dtype, layout, || rng.finite())
    };
    let inputs: Vec<PairedArray> = program.inputs.iter().map(|i| array(i.storage, i.per_row)).collect();
    let mut outputs: Vec<PairedArray> = program.outputs.iter().map(|o| array(o.storage, o.per_row)).collect();
    if in_place {
        outputs[0] = inputs[0].clone();
    }
    let context = format!("{shape:?} over {axes:?}, in place: {in_place}\n{program}");

    run_both(gpu, &Kernel::Row(kernel), &inputs.iter().collect::<Vec<_>>(), &outputs.iter().collect::<Vec<_>>())
        .unwrap();
    for output in &outputs {
        let epsilon = match output.dtype {
            DType::F16 => 2f64.powi(-10),
            DType::BF16 => 2f64.powi(-7),
            _ => 1e-5,
        };
        let absolute = if output.dtype == DType::F32 { 2e-5 } else { 2f64.powi(-12) };
        output.assert_same(gpu, Tolerance::Relative(epsilon, absolute), &context);
    }
}

#[test]
fn row_programs_match_the_cpu() {
    let rng = &mut Rng(31);
    let shapes: [(&[usize], &[usize]); 11] = [
        (&[5], &[0]),
        (&[3, 5], &[1]),
        (&[5, 3], &[0]),
        (&[2, 130], &[1]),
        (&[3, 4, 5], &[0, 2]),
        (&[3, 4, 5], &[1]),
        (&[2, 3, 1], &[2]),
        (&[0, 3], &[1]),
        (&[70, 2], &[0, 1]),
        // Several rows in a workgroup, and workgroups with fewer rows.
        (&[37, 10], &[1]),
        (&[100, 33], &[1]),
    ];
    let floats = [DType::F32, DType::F16, DType::BF16];
    let programs = floats.iter().flat_map(|&d| [softmax(d), layer_norm(d)]).chain([softmax(DType::F64), selected()]);
    for program in programs {
        for (shape, axes) in shapes {
            check_row_program(rng, &program, shape, axes, false);
        }
    }
}

#[test]
fn divided_rows_match_the_cpu() {
    let rng = &mut Rng(33);
    for program in [softmax(DType::F32), layer_norm(DType::F16), selected()] {
        check_row_program(rng, &program, &[2, 40_000], &[1], false);
        check_row_program(rng, &program, &[33_000], &[0], false);
    }
    check_row_program(rng, &softmax(DType::F32), &[40_000], &[0], true);
    // The division of `f64` is a loop over its bits.
    check_row_program(rng, &softmax(DType::F64), &[30_000], &[0], false);
    check_row_program(rng, &layer_norm(DType::F32), &[180, 2, 190], &[0, 2], true);
}

#[test]
fn row_programs_may_overwrite_their_input() {
    let rng = &mut Rng(32);
    for dtype in [DType::F32, DType::BF16] {
        for _ in 0..3 {
            check_row_program(rng, &softmax(dtype), &[3, 70], &[1], true);
            check_row_program(rng, &layer_norm(dtype), &[4, 9], &[0], true);
            check_row_program(rng, &softmax(dtype), &[21, 10], &[1], true);
        }
    }
}
