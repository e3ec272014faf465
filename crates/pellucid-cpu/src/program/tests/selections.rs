//! Random programs of comparisons and selections, whose masks stay in registers.

use super::*;
use crate::program::map::run_map;
use crate::program::prepared::PreparedProgram;
use crate::program::slot::Granularity;
use pellucid_ir::formula;
use pellucid_ir::formula::Formula;
use pellucid_ir::kernel::{Map, Params};
use std::sync::Arc;

/// Returns a random program of three inputs: arithmetic, extrema, comparisons, logic and selections. It has one or two
/// outputs.
fn random_program(rng: &mut Rng, dtype: DType) -> Arc<Program> {
    let c = dtype.compute();
    let mut p = ProgramBuilder::new();
    let mut numbers = vec![p.x(dtype), p.x(dtype), p.x(dtype)];
    numbers.extend([p.uniform(UniformSource::Param(0), c), p.literal(0.5, c)]);
    let inputs = numbers.len();
    let mut masks: Vec<Value> = Vec::new();
    while numbers.len() < inputs + 2 || p.steps.len() < 3 + rng.below(12) {
        let mut number = || numbers[rng.below(numbers.len())];
        let (a, b) = (number(), number());
        let comparisons = [Binary::Lt, Binary::Le, Binary::Gt, Binary::Ge, Binary::Eq, Binary::Ne];
        let arithmetic = [Binary::Mul, Binary::Sub, Binary::Max, Binary::Min];
        match rng.below(9) {
            0 | 1 => numbers.push(p.binary(arithmetic[rng.below(4)], c, a, b)),
            2 => numbers.push(p.unary([Unary::Abs, Unary::Trunc, Unary::Floor][rng.below(3)], c, a)),
            3 | 4 => masks.push(p.binary(comparisons[rng.below(6)], c, a, b)),
            5 => {
                let op = if rng.flip() { Unary::IsNan } else { Unary::IsFinite };
                masks.push(p.step(Op::Unary(op), c, Compute::Mask, &[a]));
            }
            6 if masks.len() > 1 => {
                let (m, n) = (masks.swap_remove(rng.below(masks.len())), masks[rng.below(masks.len())]);
                let op = if rng.flip() { Binary::And } else { Binary::Or };
                masks.push(p.step(Op::Binary(op), Compute::Mask, Compute::Mask, &[m, n]));
            }
            _ if !masks.is_empty() => {
                let k = rng.below(masks.len());
                let mask = if rng.below(4) > 0 { masks.swap_remove(k) } else { masks[k] };
                numbers.push(match rng.below(5) {
                    0 => p.step(Op::Convert(c), Compute::Mask, c, &[mask]),
                    _ => p.step(Op::Select, c, c, &[mask, a, b]),
                });
            }
            _ => {}
        }
    }
    let mut outputs = vec![(numbers[numbers.len() - 1], c, dtype, false)];
    if rng.flip() {
        outputs.push((numbers[inputs + rng.below(numbers.len() - inputs - 1)], c, dtype, false));
    }
    p.build(&outputs).into()
}

#[test]
fn selections_match_the_reference() {
    let rng = &mut Rng(41);
    for round in 0..1500 {
        let dtype = [DType::F32, DType::F64][round % 2];
        let program = random_program(rng, dtype);
        let shape = [vec![5], vec![40], vec![300], vec![3, 150], vec![9, 20], vec![2, 1025]][rng.below(6)].clone();
        let stretch = round % 3 == 0;
        let mut inputs: Vec<TestArray> = (0..3)
            .map(|_| match stretch {
                true => TestArray::random(rng, &shape, dtype, true),
                false => TestArray::contiguous(rng, &shape, dtype),
            })
            .collect();
        let params: Params = [rng.value()].into();
        let context = format!("{round}: {shape:?}\n{program}");
        let expected = naive::map(&program, &params, &inputs.iter().collect::<Vec<_>>(), &shape);
        let mut outputs: Vec<TestArray> =
            program.outputs.iter().map(|_| TestArray::contiguous(rng, &shape, dtype)).collect();
        maps::check_map(&program, &params, &mut inputs, &mut outputs, &shape, &context);
        if !stretch {
            // In place, the outputs overwrite the last inputs.
            let kernel = Map { program: program.clone(), params: params.clone() };
            let operands: Vec<Operand<'_>> = inputs.iter().map(TestArray::shared).collect();
            let to: Vec<Operand<'_>> = inputs.iter().rev().take(expected.len()).map(TestArray::shared).collect();
            run_map(&kernel, &operands, &to).unwrap();
            for (array, expected) in inputs.iter().rev().zip(&expected) {
                assert_same(&array.bits(), expected, dtype, &format!("in place, {context}"));
            }
        }
    }
}

/// Formulas that compute an expensive value where their condition is false, and the number of their shortcuts.
fn formulas_with_shortcuts() -> [(&'static Formula, usize); 8] {
    [
        (formula!(|x, y; k| x.abs().lt(k + 100.0).select(x * y + 1.0, (x - y).sqrt() * y - 0.5)), 1),
        (formula!(|x, y; k| (x.lt(k) & y.le(k)).select(x, (x / y).sqrt() + (y * x).exp())), 1),
        (formula!(|x, y; k| (x.is_finite() | y.gt(k)).select(y, (x / y).ln() + (k - x).abs().sqrt())), 1),
        // A shortcut within the instructions that another one skips.
        (
            formula!(|x, y; k| {
                let inner = y.ge(-k).select(x - y, (y / x).sqrt() * (y / k));
                x.le(k + 50.0).select(x * 0.5, inner * inner + x.sqrt() / y)
            }),
            2,
        ),
        // Both outputs need the expensive value.
        (
            formula!(|x, y; k| {
                let rare = (x * x + y).sqrt() / (y + 2.0);
                (x.lt(k + 100.0).select(x * y, rare), rare * k)
            }),
            0,
        ),
        // Too cheap.
        (formula!(|x, y; k| x.lt(k).select(x * y, x + y)), 0),
        // Blocks that do not skip store the common value, which the expensive value reads.
        (
            formula!(|x, y; k| {
                let common = x + k * (y - x);
                common.lt(k + 100.0).select(common, (x / y).sqrt() + common * y)
            }),
            1,
        ),
        // The common value is stored for another instruction.
        (
            formula!(|x, y; k| {
                let common = x + k * (y - x);
                common.lt(k + 100.0).select(common, (x / y).sqrt() + common * y) * common
            }),
            1,
        ),
    ]
}

#[test]
fn shortcuts_match_the_reference() {
    let rng = &mut Rng(43);
    for round in 0..320 {
        let (formula, shortcuts) = formulas_with_shortcuts()[round % 8];
        let dtype = [DType::F32, DType::F64][round / 8 % 2];
        let program = formula.uniform_program(dtype).unwrap();
        let prepared = PreparedProgram::for_program(program).unwrap();
        let schedule = prepared.schedule(&|_| Granularity::PerElement);
        let skips = schedule.instrs.iter().filter(|i| i.fused.is_some_and(|op| op.skip.is_some())).count();
        assert_eq!(skips, shortcuts, "{formula}");
        let deferred = schedule.instrs.iter().filter(|i| i.fused.is_some_and(|op| op.stores_common.is_some())).count();
        match round % 8 {
            6 => assert_eq!(deferred, 1, "{formula}"),
            7 => assert_eq!(deferred, 0, "{formula}"),
            _ => {}
        }
        let shape = [vec![5], vec![128], vec![700], vec![3, 150], vec![9, 20], vec![2, 1025]][rng.below(6)].clone();
        let mut inputs: Vec<TestArray> = (0..2)
            .map(|_| match round % 3 {
                0 => TestArray::random(rng, &shape, dtype, true),
                _ => TestArray::contiguous(rng, &shape, dtype),
            })
            .collect();
        // With a large parameter, the condition is true for most blocks or for all of them.
        let params: Params = [Scalar::Float([0.5, 40.0, 99.0, 1e3][rng.below(4)])].into();
        let context = format!("{round}: {shape:?} {params:?}\n{program}");
        let mut outputs: Vec<TestArray> =
            program.outputs.iter().map(|_| TestArray::contiguous(rng, &shape, dtype)).collect();
        maps::check_map(program, &params, &mut inputs, &mut outputs, &shape, &context);
        if round % 3 != 0 {
            // In place, the outputs overwrite the last inputs.
            let expected = naive::map(program, &params, &inputs.iter().collect::<Vec<_>>(), &shape);
            let kernel = Map { program: program.clone(), params: params.clone() };
            let operands: Vec<Operand<'_>> = inputs.iter().map(TestArray::shared).collect();
            let to: Vec<Operand<'_>> = inputs.iter().rev().take(expected.len()).map(TestArray::shared).collect();
            run_map(&kernel, &operands, &to).unwrap();
            for (array, expected) in inputs.iter().rev().zip(&expected) {
                assert_same(&array.bits(), expected, dtype, &format!("in place, {context}"));
            }
        }
    }
}
