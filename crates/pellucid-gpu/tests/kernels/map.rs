//! Elementwise programs.

use super::harness::{PairedArray, ProgramBuilder, Rng, TestLayout, Tolerance, Value, device, is_native_map, run_both};
use pellucid_ir::backend::Backend;
use pellucid_ir::formula::{Binary, Op, Program, Unary, UniformSource};
use pellucid_ir::kernel::{Kernel, Map};
use pellucid_ir::{Compute, DType, Scalar};
use std::sync::Arc;

fn map(program: Arc<Program>, params: &[Scalar]) -> Kernel {
    Kernel::Map(Map { program, params: params.iter().copied().collect() })
}

/// Returns the program of one instruction on operands of `dtype`.
fn instruction(op: Op, dtype: DType, operands: usize) -> Arc<Program> {
    let mut p = ProgramBuilder::default();
    let args: Vec<Value> = (0..operands).map(|_| p.x(dtype)).collect();
    let is_mask = match op {
        Op::Unary(op) => op.gives_mask(),
        Op::Binary(op) => op.gives_mask(),
        _ => false,
    };
    let result = if is_mask { Compute::Mask } else { dtype.compute() };
    let y = p.step(op, dtype.compute(), result, &args);
    p.build(&[(y, result, if is_mask { DType::Bool } else { dtype }, false)])
}

#[test]
fn integer_and_mask_instructions_match_the_cpu() {
    let Some(gpu) = device() else { return };
    let rng = &mut Rng(11);
    let unary = Unary::ALL.map(|op| (Op::Unary(op), 1));
    let binary = Binary::ALL.map(|op| (Op::Binary(op), 2));
    for dtype in [DType::Bool, DType::U8, DType::I8, DType::I16, DType::I32, DType::I64] {
        let mut native = 0;
        for (op, operands) in unary.iter().chain(&binary).copied() {
            let kernel = map(instruction(op, dtype, operands), &[]);
            if !is_native_map(gpu, &kernel) {
                continue;
            }
            native += 1;
            let bits = [0, 1, -1, 2, 63, 64, -64, i64::MIN, i64::MAX, i64::from(i32::MIN), i64::from(i32::MAX), 31];
            let n = bits.len() * bits.len() + 30;
            let mut k = 0;
            let mut next = |second: bool, rng: &mut Rng| {
                k += 1;
                let i = k - 1;
                match i < bits.len() * bits.len() {
                    true => Scalar::Int(bits[if second { i % bits.len() } else { i / bits.len() }]),
                    false => Scalar::Int((rng.below(1 << 31) as i64) << rng.below(33) >> rng.below(64)),
                }
            };
            let x = PairedArray::new(gpu, [n], dtype, TestLayout::Plain, || next(false, rng));
            k = 0;
            let mut next = |rng: &mut Rng| {
                k += 1;
                let i = k - 1;
                match i < bits.len() * bits.len() {
                    true => Scalar::Int(bits[i % bits.len()]),
                    false => Scalar::Int((rng.below(1 << 31) as i64) << rng.below(33) >> rng.below(64)),
                }
            };
            let y = PairedArray::new(gpu, [n], dtype, TestLayout::Plain, || next(rng));
            let inputs = [&x, &y];
            let out_dtype = match &kernel {
                Kernel::Map(map) => map.program.outputs[0].storage,
                _ => dtype,
            };
            let out = PairedArray::new(gpu, [n], out_dtype, TestLayout::Offset, || rng.value());
            run_both(gpu, &kernel, &inputs[..operands], &[&out]).unwrap();
            out.assert_same(gpu, Tolerance::Bits, &format!("{op:?} {dtype}"));
        }
        let expected = if dtype == DType::Bool { 12 } else { 26 };
        assert!(native >= expected, "{dtype}: only {native} instructions are native");
    }
}

/// Returns a program with several outputs, parameters, comparisons, selects and conversions.
fn mixed(a: DType, b: DType, out: DType) -> Arc<Program> {
    let mut p = ProgramBuilder::default();
    let x = p.input(a, Compute::F32, false);
    let y = p.input(b, Compute::F32, false);
    let k = p.uniform(UniformSource::Param(0), Compute::F32);
    let nan = p.uniform(UniformSource::Literal(Scalar::Float(f64::NAN)), Compute::F32);
    let sum = p.step(Op::Binary(Binary::Add), Compute::F32, Compute::F32, &[x, k]);
    let product = p.step(Op::MulAdd, Compute::F32, Compute::F32, &[sum, y, k]);
    let less = p.step(Op::Binary(Binary::Lt), Compute::F32, Compute::Mask, &[x, y]);
    let chosen = p.step(Op::Select, Compute::F32, Compute::F32, &[less, product, sum]);
    let largest = p.step(Op::Binary(Binary::Max), Compute::F32, Compute::F32, &[chosen, nan]);
    let rounded = p.step(Op::Round(DType::BF16), Compute::F32, Compute::F32, &[chosen]);
    let integer = p.step(Op::Convert(Compute::I64), Compute::F32, Compute::I64, &[rounded]);
    p.build(&[
        (rounded, Compute::F32, out, false),
        (integer, Compute::I64, DType::I64, false),
        (less, Compute::Mask, DType::Bool, false),
        (largest, Compute::F32, DType::F32, false),
    ])
}

#[test]
fn programs_match_the_cpu_for_all_dtypes_and_layouts() {
    let Some(gpu) = device() else { return };
    let rng = &mut Rng(12);
    let shapes = [
        vec![],
        vec![1],
        vec![37],
        vec![3, 5],
        vec![5, 1, 7],
        vec![2, 3, 4, 5],
        vec![0, 3],
        vec![2, 1, 2, 3, 1, 2, 3, 2, 2],
    ];
    for round in 0..6 {
        for shape in &shapes {
            let dtype = |rng: &mut Rng| DType::ALL[rng.below(9)];
            let (a, b, out) = (dtype(rng), dtype(rng), DType::ALL[rng.below(10)]);
            let kernel = map(mixed(a, b, out), &[Scalar::Float(0.7)]);
            let layout = |rng: &mut Rng| TestLayout::ALL[rng.below(5)];
            let x = PairedArray::new(gpu, shape.clone(), a, layout(rng), || rng.value());
            // Some axes broadcast, and some arrays have fewer axes.
            let narrow: Vec<usize> = shape.iter().map(|&d| if rng.below(3) == 0 { 1 } else { d }).collect();
            let narrow = narrow[rng.below(shape.len() + 1).min(narrow.len())..].to_vec();
            let y = PairedArray::new(gpu, narrow, b, layout(rng), || rng.value());
            let outputs = [out, DType::I64, DType::Bool, DType::F32]
                .map(|d| PairedArray::new(gpu, shape.clone(), d, layout(rng), || rng.value()));
            run_both(gpu, &kernel, &[&x, &y], &outputs.each_ref()).unwrap();
            for (k, output) in outputs.iter().enumerate() {
                output.assert_same(
                    gpu,
                    Tolerance::Bits,
                    &format!("round {round}, {shape:?} {a} {b} {out}, output {k}"),
                );
            }
        }
    }
}

#[test]
fn outputs_may_be_inputs() {
    let Some(gpu) = device() else { return };
    let rng = &mut Rng(13);
    for dtype in [DType::Bool, DType::I8, DType::I16, DType::BF16, DType::I32, DType::F32, DType::I64] {
        for layout in TestLayout::ALL {
            let op = if dtype == DType::Bool { Binary::Xor } else { Binary::Add };
            let kernel = map(instruction(Op::Binary(op), dtype, 2), &[]);
            let x = PairedArray::new(gpu, [7, 11], dtype, layout, || rng.value());
            let y = PairedArray::new(gpu, [11], dtype, TestLayout::Plain, || rng.value());
            for _ in 0..3 {
                run_both(gpu, &kernel, &[&x, &y], &[&x]).unwrap();
            }
            x.assert_same(gpu, Tolerance::Bits, &format!("{dtype} {layout:?}"));
        }
    }
}

#[test]
fn operands_may_share_a_storage() {
    let Some(gpu) = device() else { return };
    let rng = &mut Rng(14);
    for dtype in [DType::U8, DType::F16, DType::F32] {
        let base = PairedArray::new(gpu, [30], dtype, TestLayout::Plain, || rng.value());
        let part = |start| PairedArray { layout: base.layout.slice(0, start, 1, 7), ..base.clone() };
        let kernel = map(instruction(Op::Binary(Binary::Mul), dtype, 2), &[]);
        run_both(gpu, &kernel, &[&part(1), &part(8)], &[&part(17)]).unwrap();
        base.assert_same(gpu, Tolerance::Bits, &format!("{dtype}"));
    }
}

#[test]
fn sums_are_not_reassociated() {
    let Some(gpu) = device() else { return };
    let mut p = ProgramBuilder::default();
    let x = p.x(DType::F32);
    let magic = p.uniform(UniformSource::Literal(Scalar::Float(12_582_912.0)), Compute::F32);
    let sum = p.step(Op::Binary(Binary::Add), Compute::F32, Compute::F32, &[x, magic]);
    let rounded = p.step(Op::Binary(Binary::Sub), Compute::F32, Compute::F32, &[sum, magic]);
    let kernel = map(p.build(&[(rounded, Compute::F32, DType::F32, false)]), &[]);
    let x = PairedArray::of(gpu, [4], &[0.4f32, 1.5, 2.5, -7.7]);
    let y = PairedArray::of(gpu, [4], &[0.0f32; 4]);
    run_both(gpu, &kernel, &[&x], &[&y]).unwrap();
    assert_eq!(y.device_values::<f32>(gpu), [0.0, 2.0, 2.0, -8.0]);
}

#[test]
fn programs_without_a_shader_fall_back() {
    let Some(gpu) = device() else { return };
    let sin = map(instruction(Op::Unary(Unary::Sin), DType::F64, 1), &[]);
    assert!(!is_native_map(gpu, &sin));
    let x = PairedArray::of(gpu, [2], &[1.0f64; 2]);
    assert!(gpu.run(&sin, &[x.on_gpu()], &[x.on_gpu()]).is_err());
    let bessel = map(instruction(Op::Binary(Binary::BesselJ), DType::F64, 2), &[]);
    assert!(!is_native_map(gpu, &bessel));
}

#[test]
fn remainders_of_subnormal_divisors_have_the_bits_of_the_cpu() {
    let Some(gpu) = device() else { return };
    let values = [1.0, 2.0, 3e38, 1e-30, 1e-38, 7e-39, 1e-40, 3e-42, 1e-45f32];
    let pairs: Vec<(f32, f32)> = values.iter().flat_map(|&a| values.map(|b| (a, b))).collect();
    let x = PairedArray::of(gpu, [pairs.len()], &pairs.iter().map(|pair| pair.0).collect::<Vec<f32>>());
    let y = PairedArray::of(gpu, [pairs.len()], &pairs.iter().map(|pair| pair.1).collect::<Vec<f32>>());
    let z = PairedArray::of(gpu, [pairs.len()], &vec![0.0f32; pairs.len()]);
    let kernel = map(instruction(Op::Binary(Binary::Rem), DType::F32, 2), &[]);
    run_both(gpu, &kernel, &[&x, &y], &[&z]).unwrap();
    z.assert_same(gpu, Tolerance::Bits, "a remainder");
}

#[test]
fn arithmetic_in_double_precision_has_the_bits_of_the_cpu() {
    let Some(gpu) = device() else { return };
    let rng = &mut Rng(15);
    let special = [0.0, -0.0, 1.0, -1.0, 0.5, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MAX, f64::MIN_POSITIVE];
    let special =
        [&special[..], &[5e-324, 1.5, -2.5, 4503599627370495.5, 9007199254740993.0, 3.0, 1e-310, -7.25]].concat();
    let pairs = special.len() * special.len();
    // Every pair of special values, operands of any exponent, and operands of similar exponents.
    let random = |rng: &mut Rng, k: usize| {
        let fraction = (rng.below(1 << 26) as u64) << 26 | rng.below(1 << 26) as u64;
        let exponent = if k.is_multiple_of(2) { rng.below(2047) } else { 1000 + rng.below(50) } as u64;
        f64::from_bits((rng.below(2) as u64) << 63 | exponent << 52 | fraction)
    };
    let n = pairs + 1200;
    let mut operands = [vec![0.0; n], vec![0.0; n], vec![0.0; n]];
    for i in 0..n {
        operands[0][i] = if i < pairs { special[i / special.len()] } else { random(rng, i) };
        operands[1][i] = if i < pairs { special[i % special.len()] } else { random(rng, i) };
        operands[2][i] = match i % 3 {
            0 => -(operands[0][i] * operands[1][i]),
            1 => f64::from_bits((-(operands[0][i] * operands[1][i])).to_bits().wrapping_add(rng.below(5) as u64)),
            _ => random(rng, i),
        };
    }
    let arrays = operands.each_ref().map(|values| PairedArray::of(gpu, [n], values));
    let unary = Unary::ALL.map(|op| (Op::Unary(op), 1));
    let binary = Binary::ALL.into_iter().filter(|op| !op.is_special()).map(|op| (Op::Binary(op), 2));
    let mut native = 0;
    for (op, count) in unary.into_iter().chain(binary).chain([(Op::MulAdd, 3)]) {
        let kernel = map(instruction(op, DType::F64, count), &[]);
        if !is_native_map(gpu, &kernel) {
            continue;
        }
        native += 1;
        let inputs: Vec<&PairedArray> = arrays[..count].iter().collect();
        let Kernel::Map(Map { program, .. }) = &kernel else { continue };
        let y = PairedArray::new(gpu, [n], program.outputs[0].storage, TestLayout::Plain, || Scalar::Int(1));
        run_both(gpu, &kernel, &inputs, &[&y]).unwrap();
        y.assert_same(gpu, Tolerance::Bits, &format!("{op:?}"));
    }
    assert!(native >= 35, "only {native} instructions are native");
}
