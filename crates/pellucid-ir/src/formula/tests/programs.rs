//! Compiled programs compared with the evaluator, and errors of the compiler.

use super::*;
use crate::dtype::{Compute, Scalar};
use crate::{DType, Error};

/// Runs an `f64` program over one row, register by register, as a backend would.
pub(super) fn run_program(program: &Program, inputs: &[Vec<f64>], params: &[f64], elements: usize) -> Vec<Vec<f64>> {
    let uniforms: Vec<f64> = program
        .uniforms
        .iter()
        .map(|u| match u.source {
            UniformSource::Param(k) => params[k as usize],
            UniformSource::Literal(v) => v.to_f64(),
            UniformSource::RowLength => elements as f64,
        })
        .collect();
    let mut tiles: Vec<Option<Vec<f64>>> = vec![None; program.registers.len()];
    let mut rows: Vec<Option<f64>> = vec![None; program.row_registers.len()];
    let get = |tiles: &[Option<Vec<f64>>], rows: &[Option<f64>], operand: InstructionOperand, i: usize| match operand {
        InstructionOperand::Input(k) if program.inputs[k as usize].per_row => inputs[k as usize][0],
        InstructionOperand::Input(k) => inputs[k as usize][i],
        InstructionOperand::Uniform(u) => uniforms[u as usize],
        InstructionOperand::Register(r) => {
            tiles[r as usize].as_ref().expect("a register must be written before it is read")[i]
        }
        InstructionOperand::Row(s) => rows[s as usize].expect("a register must be written before it is read"),
    };
    for step in &program.steps {
        assert!(!step.args.contains(&step.into), "the destination must not be a source of {step:?} in\n{program}");
        let arg = |a: usize, i: usize| get(&tiles, &rows, step.args[a], i);
        let at = |i: usize| match step.op {
            Op::Unary(op) => evaluate_unary(op, arg(0, i)),
            Op::Binary(op) => evaluate_binary(op, arg(0, i), arg(1, i)),
            Op::Select if arg(0, i) != 0.0 => arg(1, i),
            Op::Select => arg(2, i),
            Op::MulAdd => arg(0, i).mul_add(arg(1, i), arg(2, i)),
            Op::Convert(Compute::F32) => arg(0, i) as f32 as f64,
            Op::Convert(_) => arg(0, i),
            Op::Round(_) => unreachable!("the test programs must not contain a rounding instruction"),
            Op::Reduce(RowOp::Sum) => (0..elements).map(|i| arg(0, i)).sum(),
            Op::Reduce(op) => {
                let pick = if op == RowOp::Max { Binary::Max } else { Binary::Min };
                (0..elements).map(|i| arg(0, i)).reduce(|a, b| evaluate_binary(pick, a, b)).unwrap()
            }
            Op::RowIndex => i as f64,
        };
        match step.into {
            InstructionOperand::Register(r) => {
                let values = (0..elements).map(at).collect();
                tiles[r as usize] = Some(values);
            }
            InstructionOperand::Row(s) => {
                for arg in &step.args {
                    let full = match *arg {
                        InstructionOperand::Register(_) => true,
                        InstructionOperand::Input(k) => !program.inputs[k as usize].per_row,
                        _ => false,
                    };
                    assert_eq!(
                        full,
                        matches!(step.op, Op::Reduce(_)),
                        "a per-row instruction must read tiles only to reduce them: {step:?} in\n{program}"
                    );
                }
                rows[s as usize] = Some(at(0));
            }
            other => panic!("an instruction must write to a register, but one writes to {other}"),
        }
    }
    let store = |s: &Store| {
        let n = if s.per_row { 1 } else { elements };
        (0..n).map(|i| get(&tiles, &rows, s.value, i)).collect()
    };
    program.outputs.iter().map(store).collect()
}

fn bits(values: &[Vec<f64>]) -> Vec<Vec<u64>> {
    values.iter().map(|v| v.iter().map(|x| x.to_bits()).collect()).collect()
}

/// Checks that the programs of `f` and of its gradients are bit-identical to the evaluator.
fn check_programs(f: &Formula, x: &[Vec<f64>], params: &[f64], elements: usize, order: usize) {
    let program = f.uniform_program(DType::F64).unwrap();
    assert_eq!(program.is_row(), f.is_row(), "the program\n{program}\nmust be a row program exactly if {f} is");
    let y = evaluate(f, x, params, elements);
    assert_eq!(
        bits(&run_program(program, x, params, elements)),
        bits(&y),
        "the results of\n{program}\ndiffer from the evaluation of {f}"
    );
    if order > 0 {
        let gradient = f.gradient(GradientRequest::all(f.inputs().len()));
        let values = read(gradient, x, &y, &y);
        check_programs(&gradient.formula, &values, params, elements, order - 1);
    }
}

#[test]
fn programs_equal_the_evaluator() {
    for c in cases() {
        check_programs(&c.formula, &c.inputs, &c.params, elements(&c.inputs), 2);
    }
}

#[test]
fn reductions_of_equal_depth_share_a_pass() {
    let f = formula!(|x| (x - x.row_mean()) * x.square().row_sum() / x.row_max());
    let program = f.uniform_program(DType::F32).unwrap();
    let places: Vec<usize> =
        program.steps.iter().enumerate().filter(|(_, s)| matches!(s.op, Op::Reduce(_))).map(|(i, _)| i).collect();
    assert_eq!(places, [1, 2, 3], "{program}");
}

#[test]
fn registers_are_shared() {
    let chain = Formula::new("chain", &[Input::NUMBER], 0, |x, _| {
        vec![(0..40).fold(x[0], |y, i| (y * (i as f64 + 0.5)).sin())]
    });
    let program = chain.uniform_program(DType::F32).unwrap();
    assert_eq!((program.steps.len(), program.registers.len()), (80, 2), "{program}");
    assert_eq!(program.registers, [Compute::F32; 2]);
}

/// The number of instructions that read the result of the previous instruction.
fn linked_pairs(program: &Program) -> usize {
    program.steps.windows(2).filter(|pair| pair[1].args.contains(&pair[0].into)).count()
}

#[test]
fn steps_run_depth_first() {
    // Two chains of three instructions, written alternately, and their product.
    let f = Formula::new("chains", &[Input::NUMBER; 2], 0, |x, _| {
        let (a, b) = (x[0].exp(), x[1].sin());
        let (a, b) = (-a, -b);
        let (a, b) = (a.sin(), b.tanh());
        vec![a * b]
    });
    let program = f.uniform_program(DType::F64).unwrap();
    assert_eq!((program.steps.len(), linked_pairs(program), program.registers.len()), (7, 5, 3), "{program}");
    let (x, y) = (-0.75f64, 2.5f64);
    assert_eq!(run_program(program, &[vec![x], vec![y]], &[], 1)[0][0], (-x.exp()).sin() * (-y.sin()).tanh());
    // The operand that needs more registers is computed first.
    let f = Formula::new("tree", &[Input::NUMBER; 2], 0, |x, _| {
        let small = x[0].sin();
        let large = x[0].exp() * x[1].exp();
        vec![small * large]
    });
    let program = f.uniform_program(DType::F64).unwrap();
    assert_eq!(program.steps.last().unwrap().args[0], program.steps[3].into, "{program}");
    assert_eq!(run_program(program, &[vec![x], vec![y]], &[], 1)[0][0], x.sin() * (x.exp() * y.exp()));
}

#[test]
fn literals_and_parameters_are_uniforms_of_their_type() {
    let f = formula!(|x, t: index; k| t.eq(k.to_index()).select(x * k + 0.1, x));
    let program = f.uniform_program(DType::F16).unwrap();
    let uniform = |source, compute| Uniform { source, compute };
    for u in [
        uniform(UniformSource::Param(0), Compute::I64),
        uniform(UniformSource::Param(0), Compute::F32),
        uniform(UniformSource::Literal(Scalar::Float(0.1)), Compute::F32),
    ] {
        assert!(program.uniforms.contains(&u), "the uniforms must contain {u:?}:\n{program}");
    }
    assert_eq!(program.inputs[1].storage, DType::I64);
    assert_eq!(program.outputs[0].storage, DType::F16);
}

#[test]
fn signatures_set_storage_and_compute_types_separately() {
    let f = formula!(|a, b| (a * b, a.lt(b)));
    let signature =
        Signature::new([DType::I32, DType::BF16], DType::BF16).with_output_dtypes([DType::F64, DType::Bool]);
    let program = f.program(&signature).unwrap();
    assert_eq!(program.inputs[0], Load { storage: DType::I32, compute: Compute::F32, per_row: false });
    assert_eq!(program.outputs[0].storage, DType::F64);
    assert_eq!(program.outputs[1].compute, Compute::Mask);
    assert!(std::sync::Arc::ptr_eq(program, f.program(&signature).unwrap()));
}

#[test]
fn integers_and_booleans_have_their_own_arithmetic() {
    for f in [
        formula!(|a, b| a.max(b) * a - b.abs() + a.floor_div(b) % 7),
        formula!(|a, b| a.mul_add(b, 1) + a.powi(3)),
        formula!(|a, b| (a & b) | (a << 2) ^ !b),
        formula!(|a, b| (a.is_nan() | b.is_finite()).select(a.round(), b.relu())),
    ] {
        assert!(f.uniform_program(DType::I32).is_ok() && f.uniform_program(DType::I64).is_ok(), "{f} must compile");
    }
    let logic = formula!(|a, b| (a + b, a * b, a.lt(b), a.eq(b), a.max(b)));
    let program = logic.uniform_program(DType::Bool).unwrap();
    assert!(
        program.steps.iter().all(|s| s.compute == Compute::Mask),
        "every instruction must operate on masks:\n{program}"
    );
    for (a, b) in [(0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0)] {
        let truth = |x: bool| vec![x as u8 as f64];
        let found = run_program(program, &[vec![a], vec![b]], &[], 1);
        let expected = [truth(a + b > 0.0), truth(a * b > 0.0), truth(a < b), truth(a == b), truth(a + b > 0.0)];
        assert_eq!(found, expected, "{a} and {b}: an unexpected result of\n{program}");
    }
}

#[test]
fn an_unsupported_primitive_is_a_dtype_error() {
    let rejected = |f: &Formula, dtype| match f.uniform_program(dtype) {
        Err(Error::DTypeMismatch { op, dtypes, help }) => {
            assert_eq!(op, f.name());
            assert_eq!(dtypes, vec![dtype; f.inputs().len()]);
            help
        }
        other => panic!("expected an error, got {other:?}"),
    };
    let sine = formula! { sine(x) = x.sin() };
    assert!(rejected(&sine, DType::I32).starts_with("`sin` is not defined for i32"));
    assert!(rejected(formula!(|a, b| a / b), DType::U8).contains("`div`"));
    assert!(rejected(formula!(|a, b| a & b), DType::F32).contains("integers or masks"));
    assert!(rejected(formula!(|x| !x), DType::BF16).contains("`not`"));
    assert!(rejected(formula!(|x| x + 0.5), DType::I64).contains("literal 0.5"));
    assert!(rejected(formula!(|x| -x), DType::Bool).contains("`neg`"));
    assert!(sine.uniform_program(DType::F16).is_ok(), "an error for one dtype must not affect other dtypes");
    let short = Signature::new([], DType::F32);
    assert!(matches!(sine.program(&short), Err(Error::InvalidArgument { .. })));
}

/// A polynomial with `terms` terms, each with a distinct coefficient.
fn long(terms: usize) -> Formula {
    Formula::new("polynomial", &[Input::NUMBER], 0, |x, _| {
        vec![(0..terms).fold(x[0], |y, i| y * x[0] + (i as f64 + 0.5))]
    })
}

#[test]
fn a_program_has_more_uniforms_than_255() {
    let program = long(300).uniform_program(DType::F64).unwrap().clone();
    assert_eq!((program.uniforms.len(), program.steps.len()), (300, 600));
}

#[test]
fn too_many_instructions_are_rejected() {
    // All powers share one coefficient, so only the number of instructions is too large.
    let long =
        Formula::new("polynomial", &[Input::NUMBER], 0, |x, _| vec![(0..30_001).fold(x[0], |y, _| y * x[0] + 0.5)]);
    match long.uniform_program(DType::F32) {
        Err(Error::InvalidArgument { op: "polynomial", reason }) => assert!(reason.contains("60002"), "{reason}"),
        other => panic!("expected an error, got {other:?}"),
    }
}
