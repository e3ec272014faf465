//! Spliced programs compared with their parts, which run in sequence.

use super::programs::run_program;
use super::*;
use crate::DType;
use crate::kernel::Params;

fn program_of(formula: &Formula, dtype: DType) -> std::sync::Arc<Program> {
    formula.uniform_program(dtype).unwrap().clone()
}

fn none() -> Params {
    Params::new()
}

#[test]
fn a_spliced_program_equals_its_parts() {
    let first = Formula::new("first", &[Input::NUMBER; 2], 1, |x, p| vec![(x[0] * p[0]).exp() + x[1], x[0] * p[0]]);
    let second = Formula::new("second", &[Input::NUMBER; 3], 1, |x, p| vec![(x[0] - x[2]) * p[0] + x[1]]);
    let (a, b) = (program_of(&first, DType::F64), program_of(&second, DType::F64));
    let mut splice = Splice::new(false);
    let values = splice
        .append(&a, &[2.0].map(Into::into).into_iter().collect(), &[SpliceOperand::Array(7), SpliceOperand::Array(3)])
        .unwrap();
    let inputs = [SpliceOperand::Value(values[0]), SpliceOperand::Array(3), SpliceOperand::Value(values[1])];
    let read = splice.append(&b, &[0.5].map(Into::into).into_iter().collect(), &inputs).unwrap();
    let spliced = splice.finish("both", &[read[0], values[0]]).unwrap();
    assert_eq!(spliced.arrays, [7, 3]);
    let (x, y) = (vec![0.1, -0.7, 2.0], vec![3.0, 0.25, -1.0]);
    let parts = run_program(&a, &[x.clone(), y.clone()], &[2.0], 3);
    let expected = run_program(&b, &[parts[0].clone(), y.clone(), parts[1].clone()], &[0.5], 3);
    let both = run_program(&spliced.program, &[x, y], &[2.0, 0.5], 3);
    assert_eq!(both, [expected[0].clone(), parts[0].clone()]);
}

#[test]
fn equal_steps_are_merged_and_intermediate_values_are_rounded() {
    let f = program_of(formula!(|x, y| (x * y).exp()), DType::F32);
    let mut splice = Splice::new(false);
    let inputs = [SpliceOperand::Array(0), SpliceOperand::Array(1)];
    let (a, b) = (splice.append(&f, &none(), &inputs).unwrap(), splice.append(&f, &none(), &inputs).unwrap());
    assert_eq!(splice.finish("twice", &[a[0], b[0]]).unwrap().program.steps.len(), 2);

    // An intermediate value that is stored as f32 and computed in f64 is rounded.
    let f = formula!(|x| x.exp());
    let narrow = f.program(&Signature::new([DType::F64], DType::F64).with_output_dtypes([DType::F32])).unwrap();
    let wide = f.program(&Signature::new([DType::F32], DType::F64)).unwrap();
    let mut splice = Splice::new(false);
    let values = splice.append(narrow, &none(), &[SpliceOperand::Array(0)]).unwrap();
    let read = splice.append(wide, &none(), &[SpliceOperand::Value(values[0])]).unwrap();
    let both = splice.finish("both", &read).unwrap().program;
    let x = 0.7f64;
    assert_eq!(run_program(&both, &[vec![x]], &[], 1), [[((x.exp() as f32) as f64).exp()]]);

    // bf16 is computed in f32: the intermediate value is rounded by an instruction, the result by the store.
    let f = program_of(formula!(|x| x + 1.0), DType::BF16);
    let mut splice = Splice::new(false);
    let values = splice.append(&f, &none(), &[SpliceOperand::Array(0)]).unwrap();
    let read = splice.append(&f, &none(), &[SpliceOperand::Value(values[0])]).unwrap();
    let ops: Vec<Op> = splice.finish("both", &read).unwrap().program.steps.iter().map(|s| s.op).collect();
    assert_eq!(ops, [Op::Binary(Binary::Add), Op::Round(DType::BF16), Op::Binary(Binary::Add)]);
}

#[test]
fn rows_come_before_and_after_maps() {
    let square = program_of(formula!(|x| x * x), DType::F64);
    let softmax = program_of(
        formula!(|x| {
            let e = (x - x.row_max()).exp();
            e / e.row_sum()
        }),
        DType::F64,
    );
    let scale = program_of(formula!(|x, y| x * y), DType::F64);
    let mut splice = Splice::new(true);
    let a = splice.append(&square, &none(), &[SpliceOperand::Array(0)]).unwrap();
    let b = splice.append(&softmax, &none(), &[SpliceOperand::Value(a[0])]).unwrap();
    let c = splice.append(&scale, &none(), &[SpliceOperand::Value(b[0]), SpliceOperand::Value(a[0])]).unwrap();
    let both = splice.finish("all", &c).unwrap().program;
    assert!(both.is_row());
    let x = vec![0.5, -1.0, 2.0, 0.0];
    let squares = run_program(&square, std::slice::from_ref(&x), &[], 4);
    let soft = run_program(&softmax, &squares, &[], 4);
    assert_eq!(run_program(&both, &[x], &[], 4), run_program(&scale, &[soft[0].clone(), squares[0].clone()], &[], 4));
}

#[test]
fn splices_that_would_change_a_value_are_errors() {
    let add = |dtype| program_of(formula!(|x| x + 1), dtype);
    let mut splice = Splice::new(false);
    let values = splice.append(&add(DType::I8), &none(), &[SpliceOperand::Array(0)]).unwrap();
    assert!(
        splice.append(&add(DType::I8), &none(), &[SpliceOperand::Value(values[0])]).is_err(),
        "splicing must fail because the intermediate i8 value would wrap"
    );

    let fill = Formula::new("fill", &[], 1, |_, p| vec![p[0]]);
    let sum = program_of(formula!(|x| x - x.row_sum()), DType::F64);
    let mut splice = Splice::new(true);
    let values =
        splice.append(&program_of(&fill, DType::F64), &[1.0].map(Into::into).into_iter().collect(), &[]).unwrap();
    assert!(
        splice.append(&sum, &none(), &[SpliceOperand::Value(values[0])]).is_err(),
        "splicing must fail because a row of one value cannot be reduced"
    );
}
