//! Reductions over axes.

use super::harness::{PairedArray, ProgramBuilder, Rng, TestLayout, Tolerance, device, run_both};
use pellucid_ir::formula::{Binary, Op, Program, UniformSource};
use pellucid_ir::kernel::{AxisSet, Kernel, Reduce, ReduceOp};
use pellucid_ir::{Compute, DType, Scalar};
use std::sync::Arc;

fn identity(dtype: DType) -> Arc<Program> {
    let mut p = ProgramBuilder::default();
    let x = p.x(dtype);
    p.build(&[(x, dtype.compute(), dtype.compute().storage(), false)])
}

fn reduce(op: ReduceOp, axes: &[usize], program: Arc<Program>, output: DType) -> Reduce {
    Reduce {
        op,
        axes: axes.iter().copied().collect(),
        program,
        params: Default::default(),
        finish: None,
        finish_params: Default::default(),
        output,
    }
}

/// Returns the dtype of the result that the operations of tensors choose.
fn output_dtype(op: ReduceOp, dtype: DType) -> DType {
    match op {
        ReduceOp::ArgMax | ReduceOp::ArgMin => DType::I64,
        ReduceOp::Sum | ReduceOp::Prod if !dtype.is_float() => DType::I64,
        _ => dtype,
    }
}

const OPS: [ReduceOp; 8] = {
    use ReduceOp::*;
    [Sum, Prod, Max, Min, ArgMax, ArgMin, Any, All]
};

fn check_reduction(rng: &mut Rng, kernel: Reduce, shape: &[usize], dtypes: &[DType], special: bool) {
    let Some(gpu) = device() else { return };
    let axes: AxisSet = kernel.axes;
    let inputs: Vec<PairedArray> = dtypes
        .iter()
        .map(|&dtype| {
            let layout = TestLayout::ALL[rng.below(5)];
            PairedArray::new(gpu, shape, dtype, layout, || if special { rng.value() } else { rng.finite() })
        })
        .collect();
    let out_shape = axes.keepdims(&shape.into());
    let layout = TestLayout::ALL[rng.below(5)];
    let output = PairedArray::new(gpu, out_shape, kernel.output, layout, || rng.finite());
    let context = format!("{:?} over {axes:?} of {shape:?} {dtypes:?}", kernel.op);
    run_both(gpu, &Kernel::Reduce(kernel), &inputs.iter().collect::<Vec<_>>(), &[&output]).unwrap();
    let epsilon = match output.dtype {
        DType::F16 => 2f64.powi(-10),
        DType::BF16 => 2f64.powi(-7),
        _ => 1e-5,
    };
    // The rounding errors of a sum are relative to the sum of the magnitudes, here below 4 for each element.
    let elements = axes.count(&shape.into()) as f64;
    let absolute = if special { f64::MAX } else { elements * 4.0 * 2f64.powi(-22) };
    let tolerance = if output.dtype.is_float() { Tolerance::Relative(epsilon, absolute) } else { Tolerance::Bits };
    output.assert_same(gpu, tolerance, &context);
}

#[test]
fn reductions_match_the_cpu() {
    let rng = &mut Rng(21);
    let shapes: [(&[usize], &[usize]); 12] = [
        (&[], &[]),
        (&[7], &[0]),
        (&[1000], &[0]),
        (&[3, 5], &[1]),
        (&[5, 3], &[0]),
        (&[3, 200], &[1]),
        (&[300, 3], &[0]),
        (&[2, 9, 4, 5], &[1, 3]),
        (&[2, 9, 4, 5], &[0, 2]),
        (&[0, 3], &[1]),
        (&[2, 3, 4], &[]),
        (&[6, 150], &[0, 1]),
    ];
    for (shape, axes) in shapes {
        for op in OPS {
            let dtypes: &[DType] = match op {
                ReduceOp::Any | ReduceOp::All => &[DType::Bool],
                _ => &DType::ALL,
            };
            for &dtype in dtypes {
                // Long products of integers wrap in both; long products of floats overflow or vanish in both.
                check_reduction(
                    rng,
                    reduce(op, axes, identity(dtype), output_dtype(op, dtype)),
                    shape,
                    &[dtype],
                    false,
                );
            }
        }
    }
}

/// The partial results of long sequences are combined by a workgroup.
#[test]
fn reductions_of_long_sequences_match_the_cpu() {
    let rng = &mut Rng(26);
    for (shape, axes) in [(&[4200, 3][..], &[0][..]), (&[270_000], &[0])] {
        for op in OPS {
            let dtypes: &[DType] = match op {
                ReduceOp::Any | ReduceOp::All => &[DType::Bool],
                // Products of many numbers overflow or vanish, and their rounding errors add up.
                ReduceOp::Prod | ReduceOp::Min | ReduceOp::ArgMin => &[DType::I64],
                _ => &[DType::F32, DType::Bool],
            };
            for &dtype in dtypes {
                check_reduction(
                    rng,
                    reduce(op, axes, identity(dtype), output_dtype(op, dtype)),
                    shape,
                    &[dtype],
                    false,
                );
            }
        }
    }
    for op in [ReduceOp::Max, ReduceOp::ArgMax, ReduceOp::ArgMin] {
        check_reduction(
            rng,
            reduce(op, &[0], identity(DType::F32), output_dtype(op, DType::F32)),
            &[9000],
            &[DType::F32],
            true,
        );
    }
}

/// Among equal elements, the first one is selected, across all parts and invocations.
#[test]
fn positions_in_long_sequences_are_the_first_ones() {
    let Some(gpu) = device() else { return };
    for [first, second] in [[4097, 4098], [70, 19_000], [5000, 5256], [19_998, 19_999]] {
        let mut values = vec![0.0f32; 20_000];
        (values[first], values[second]) = (7.0, 7.0);
        let x = PairedArray::of(gpu, [20_000], &values);
        let y = PairedArray::of(gpu, [1], &[0i64]);
        let kernel = Kernel::Reduce(reduce(ReduceOp::ArgMax, &[0], identity(DType::F32), DType::I64));
        run_both(gpu, &kernel, &[&x], &[&y]).unwrap();
        assert_eq!(y.device_values::<i64>(gpu), [first as i64]);
    }
}

/// An adapter that terminates long loops early also counts the loops within an element, such as the loop over the bits
/// of a 64-bit division.
#[test]
fn elements_with_loops_are_reduced_completely() {
    let rng = &mut Rng(27);
    for (dtype, op) in [(DType::I64, Binary::FloorDiv), (DType::F64, Binary::Div)] {
        let (c, mut p) = (dtype.compute(), ProgramBuilder::default());
        let (x, y) = (p.x(dtype), p.x(dtype));
        let first = p.step(Op::Binary(op), c, c, &[x, y]);
        let second = p.step(Op::Binary(op), c, c, &[first, y]);
        let program = p.build(&[(second, c, dtype, false)]);
        check_reduction(rng, reduce(ReduceOp::Max, &[0], program, dtype), &[300_000], &[dtype, dtype], false);
    }
}

#[test]
fn empty_sums_are_neutral() {
    let rng = &mut Rng(22);
    for op in [ReduceOp::Sum, ReduceOp::Prod] {
        check_reduction(rng, reduce(op, &[1], identity(DType::F32), DType::F32), &[3, 0], &[DType::F32], false);
        check_reduction(rng, reduce(op, &[1], identity(DType::I64), DType::I64), &[3, 0], &[DType::I64], false);
    }
    for op in [ReduceOp::Any, ReduceOp::All] {
        check_reduction(rng, reduce(op, &[0], identity(DType::Bool), DType::Bool), &[0, 2], &[DType::Bool], false);
    }
}

#[test]
fn extrema_and_their_indices_propagate_nan() {
    let rng = &mut Rng(23);
    for _ in 0..8 {
        for op in [ReduceOp::Max, ReduceOp::Min, ReduceOp::ArgMax, ReduceOp::ArgMin, ReduceOp::Sum] {
            for dtype in [DType::F32, DType::BF16] {
                let output = output_dtype(op, dtype);
                check_reduction(rng, reduce(op, &[1], identity(dtype), output), &[9, 11], &[dtype], true);
                check_reduction(rng, reduce(op, &[0], identity(dtype), output), &[400, 2], &[dtype], true);
            }
        }
    }
}

#[test]
fn programs_run_before_and_after_a_reduction() {
    let rng = &mut Rng(24);
    let mut p = ProgramBuilder::default();
    let (x, y) = (p.x(DType::F32), p.input(DType::I16, Compute::F32, false));
    let product = p.step(Op::Binary(Binary::Mul), Compute::F32, Compute::F32, &[x, y]);
    let program = p.build(&[(product, Compute::F32, DType::F32, false)]);
    let mut p = ProgramBuilder::default();
    let x = p.x(DType::F32);
    let k = p.uniform(UniformSource::Param(0), Compute::F32);
    let scaled = p.step(Op::Binary(Binary::Div), Compute::F32, Compute::F32, &[x, k]);
    let finish = p.build(&[(scaled, Compute::F32, DType::F32, false)]);
    for (shape, axes) in [(&[4, 50][..], &[1][..]), (&[300, 4], &[0]), (&[3, 4, 5], &[0, 2])] {
        for output in [DType::F32, DType::F16] {
            let mut kernel = reduce(ReduceOp::Sum, axes, program.clone(), output);
            kernel.finish = Some(finish.clone());
            kernel.finish_params = [Scalar::Float(17.0)].into_iter().collect();
            check_reduction(rng, kernel, shape, &[DType::F32, DType::I16], false);
        }
    }
}

#[test]
fn long_sums_are_accurate() {
    let Some(gpu) = device() else { return };
    let n = 100_000;
    let values: Vec<f32> = (0..n).map(|i| 1.0 + (i % 7) as f32 * 1e-4).collect();
    let exact: f64 = values.iter().map(|&v| f64::from(v)).sum();
    let x = PairedArray::of(gpu, [n], &values);
    let y = PairedArray::of(gpu, [1], &[0.0f32]);
    let kernel = Kernel::Reduce(reduce(ReduceOp::Sum, &[0], identity(DType::F32), DType::F32));
    run_both(gpu, &kernel, &[&x], &[&y]).unwrap();
    let got = f64::from(y.device_values::<f32>(gpu)[0]);
    assert!((got - exact).abs() <= 1e-7 * exact, "{got} instead of {exact}");
}

#[test]
fn a_finishing_program_has_further_operands() {
    let Some(gpu) = device() else { return };
    let rng = &mut Rng(25);
    // The finishing program updates s to s + 0.5·r and stores r too.
    let mut p = ProgramBuilder::default();
    let (r, s) = (p.x(DType::F32), p.x(DType::F32));
    let k = p.uniform(UniformSource::Param(0), Compute::F32);
    let step = p.step(Op::Binary(Binary::Mul), Compute::F32, Compute::F32, &[r, k]);
    let sum = p.step(Op::Binary(Binary::Add), Compute::F32, Compute::F32, &[s, step]);
    let finish = p.build(&[(sum, Compute::F32, DType::F32, false), (r, Compute::F32, DType::F16, false)]);
    for (shape, axes, other) in [
        (&[4, 50][..], &[1][..], &[4, 1][..]),
        (&[300, 4], &[0], &[1, 4]),
        (&[300, 4], &[0], &[4]),
        (&[3, 4, 5], &[0, 2], &[]),
        (&[200, 3], &[0, 1], &[1, 1]),
        (&[5000, 2], &[0], &[1, 2]),
    ] {
        let mut kernel = reduce(ReduceOp::Sum, axes, identity(DType::F32), DType::F32);
        kernel.finish = Some(finish.clone());
        kernel.finish_params = [Scalar::Float(0.5)].into_iter().collect();
        let result = kernel.axes.keepdims(&shape.into());
        let mut array = |shape: &[usize], dtype| {
            PairedArray::new(gpu, shape, dtype, TestLayout::ALL[rng.below(5)], || rng.finite())
        };
        let (x, s) = (array(shape, DType::F32), array(other, DType::F32));
        let (y, stored) = (array(&result, DType::F32), array(&result, DType::F16));
        let kernel = Kernel::Reduce(kernel);
        // The update may be in place if it has the shape of the result.
        let updated = if other == &result[..] { &s } else { &y };
        run_both(gpu, &kernel, &[&x, &s], &[updated, &stored]).unwrap();
        let context = format!("{shape:?} over {axes:?}");
        updated.assert_same(gpu, Tolerance::Relative(1e-5, 1e-3), &context);
        stored.assert_same(gpu, Tolerance::Relative(2f64.powi(-10), 1e-3), &context);
        // Operands of other dtypes and shapes are errors.
        assert!(run_both(gpu, &kernel, &[&x, &stored], &[&y, &stored]).is_err());
        assert!(run_both(gpu, &kernel, &[&x, &x], &[&y, &stored]).is_err());
    }
}
