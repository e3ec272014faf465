//! Matrix products.

use super::harness::{PairedArray, ProgramBuilder, Rng, TestLayout, Tolerance, device, run_both};
use pellucid_ir::formula::{Binary, Op, Program, Unary};
use pellucid_ir::kernel::{Kernel, MatMul};
use pellucid_ir::{Compute, DType};
use std::sync::Arc;

/// Returns the epilogue tanh(product + bias), with one output in `dtype` and one in `f32`.
fn epilogue(dtype: DType) -> Arc<Program> {
    let mut p = ProgramBuilder::default();
    let (c, bias) = (p.x(dtype), p.x(DType::F32));
    let sum = p.step(Op::Binary(Binary::Add), Compute::F32, Compute::F32, &[c, bias]);
    let y = p.step(Op::Unary(Unary::Tanh), Compute::F32, Compute::F32, &[sum]);
    p.build(&[(y, Compute::F32, dtype, false), (y, Compute::F32, DType::F32, false)])
}

fn check_product(rng: &mut Rng, a: &[usize], b: &[usize], dtype: DType, program: Option<Arc<Program>>) {
    let Some(gpu) = device() else { return };
    let mut array = |shape: &[usize], dtype| {
        let layout = TestLayout::ALL[rng.below(5)];
        PairedArray::new(gpu, shape, dtype, layout, || rng.finite())
    };
    let (i, j) = (a.len() - 2, b.len() - 2);
    let batch = pellucid_ir::Shape::from(&a[..i]).broadcast(&pellucid_ir::Shape::from(&b[..j])).unwrap();
    let shape: Vec<usize> = batch.iter().copied().chain([a[i], b[j + 1]]).collect();
    let mut inputs = vec![array(a, dtype), array(b, dtype)];
    let outputs: Vec<PairedArray> = match &program {
        Some(program) => {
            inputs.push(array(&shape[shape.len() - 1..], DType::F32));
            program.outputs.iter().map(|o| array(&shape, o.storage)).collect()
        }
        None => vec![array(&shape, dtype)],
    };
    let context = format!("{a:?} times {b:?} of {dtype}, epilogue: {}", program.is_some());
    let kernel = Kernel::MatMul(MatMul { epilogue: program, params: Default::default() });
    run_both(gpu, &kernel, &inputs.iter().collect::<Vec<_>>(), &outputs.iter().collect::<Vec<_>>()).unwrap();
    let depth = a[i + 1] as f64;
    for output in &outputs {
        // The factors are below 4, so a sum of k products has an error of at most a few units of 16·k·2⁻²⁴.
        let rounding = if dtype == DType::F32 || dtype == DType::F64 { 1e-5 } else { 2f64.powi(-6) };
        let tolerance = if dtype.is_float() {
            Tolerance::Relative(rounding, depth * 16.0 * 2f64.powi(-22))
        } else {
            Tolerance::Bits
        };
        output.assert_same(gpu, tolerance, &context);
    }
}

#[test]
fn products_of_all_tiles_match_the_cpu() {
    let rng = &mut Rng(42);
    let cases: [(&[usize], &[usize]); 5] = [
        // Large tiles.
        (&[4, 65, 19], &[4, 19, 68]),
        // Few rows, few columns.
        (&[8, 33], &[33, 130]),
        (&[131, 20], &[20, 3]),
        // Splits of k: 600 has two splits, and the last is shorter.
        (&[2, 600], &[600, 5]),
        (&[2, 3, 520], &[520, 36]),
    ];
    for (a, b) in cases {
        for dtype in [DType::F32, DType::I32] {
            check_product(rng, a, b, dtype, None);
        }
        check_product(rng, a, b, DType::F16, Some(epilogue(DType::F16)));
    }
    check_product(rng, &[2, 600], &[600, 5], DType::F64, None);
    check_product(rng, &[2, 520], &[520, 3], DType::I64, None);
}

/// The epilogue reads the sums in `i32`, which exceed the range of the factors.
#[test]
fn an_epilogue_reads_the_sums_of_small_integers() {
    let mut p = ProgramBuilder::default();
    let (sum, scale) = (p.x(DType::I32), p.x(DType::F32));
    let real = p.step(Op::Convert(Compute::F32), Compute::I32, Compute::F32, &[sum]);
    let y = p.step(Op::Binary(Binary::Mul), Compute::F32, Compute::F32, &[real, scale]);
    let program = p.build(&[(sum, Compute::I32, DType::I32, false), (y, Compute::F32, DType::F32, false)]);
    let rng = &mut Rng(43);
    for dtype in [DType::I8, DType::U8, DType::I16] {
        check_product(rng, &[2, 33, 70], &[2, 70, 36], dtype, Some(program.clone()));
        check_product(rng, &[3, 300], &[300, 5], dtype, Some(program.clone()));
    }
}

/// The batch is computed in large tiles, and its first product alone in small tiles.
#[test]
fn tiles_of_all_sizes_have_the_same_bits() {
    let Some(gpu) = device() else { return };
    let rng = &mut Rng(44);
    let cases = [
        (DType::F32, [65, 19, 68]),
        (DType::F32, [68, 20, 68]),
        (DType::F16, [65, 19, 68]),
        (DType::BF16, [65, 19, 68]),
    ];
    for (dtype, [m, k, n]) in cases {
        let mut array = |shape: &[usize]| PairedArray::new(gpu, shape, dtype, TestLayout::Plain, || rng.finite());
        let (a, b) = (array(&[4, m, k]), array(&[4, k, n]));
        let (batch, single) = (array(&[4, m, n]), array(&[m, n]));
        let kernel = Kernel::MatMul(MatMul::default());
        run_both(gpu, &kernel, &[&a, &b], &[&batch]).unwrap();
        let first = |array: &PairedArray| {
            let shape = &array.layout.shape()[1..];
            PairedArray { layout: pellucid_ir::Layout::contiguous(shape.into()), ..array.clone() }
        };
        run_both(gpu, &kernel, &[&first(&a), &first(&b)], &[&single]).unwrap();
        let bytes = |array: &PairedArray| array.bytes(gpu)[1][..m * n * dtype.size()].to_vec();
        assert_eq!(bytes(&batch), bytes(&single), "{dtype}");
    }
}

/// Shaders read these contiguous factors four elements at a time, along k or along the rows or columns.
#[test]
fn aligned_factors_match_the_cpu() {
    let Some(gpu) = device() else { return };
    let rng = &mut Rng(43);
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::I32, DType::U8, DType::I64] {
        for transposed in 0..4 {
            let layout = |k: usize| if transposed >> k & 1 == 1 { TestLayout::Transposed } else { TestLayout::Plain };
            let mut array = |shape: [usize; 2], layout| PairedArray::new(gpu, shape, dtype, layout, || rng.finite());
            let (a, b, c) =
                (array([36, 44], layout(0)), array([44, 68], layout(1)), array([36, 68], TestLayout::Plain));
            run_both(gpu, &Kernel::MatMul(MatMul::default()), &[&a, &b], &[&c]).unwrap();
            let rounding = match dtype {
                DType::F16 => 2f64.powi(-10),
                DType::BF16 => 2f64.powi(-7),
                _ => 1e-5,
            };
            let tolerance = Tolerance::Relative(rounding, 44.0 * 16.0 * 2f64.powi(-22));
            c.assert_same(gpu, tolerance, &format!("{dtype}, transposed: {transposed}"));
            // One factor in both operands.
            let (s, t) = (array([20, 20], layout(0)), array([20, 20], TestLayout::Plain));
            run_both(gpu, &Kernel::MatMul(MatMul::default()), &[&s, &s], &[&t]).unwrap();
            t.assert_same(gpu, tolerance, &format!("{dtype}, square, transposed: {transposed}"));
        }
    }
}

#[test]
fn products_match_the_cpu() {
    let rng = &mut Rng(41);
    let cases: [(&[usize], &[usize]); 13] = [
        (&[1, 1], &[1, 1]),
        (&[3, 4], &[4, 5]),
        (&[33, 17], &[17, 31]),
        (&[64, 32], &[32, 64]),
        (&[70, 40], &[40, 33]),
        (&[1, 50], &[50, 40]),
        (&[40, 50], &[50, 1]),
        (&[2, 5, 6], &[6, 7]),
        (&[3, 1, 5, 6], &[4, 6, 2]),
        (&[2, 3, 9, 16], &[2, 1, 16, 9]),
        (&[4, 0], &[0, 3]),
        (&[0, 4], &[4, 3]),
        (&[5, 300], &[300, 6]),
    ];
    for (a, b) in cases {
        for dtype in [DType::F32, DType::F16, DType::BF16, DType::I32, DType::I64, DType::U8, DType::I16, DType::F64] {
            check_product(rng, a, b, dtype, None);
        }
        for dtype in [DType::F32, DType::BF16] {
            check_product(rng, a, b, dtype, Some(epilogue(dtype)));
        }
    }
}

/// The sum of all products is exact, so the test detects a loop that ends early.
#[test]
fn long_sums_of_products_are_complete() {
    let Some(gpu) = device() else { return };
    let cases = [(1, 3, 400_000, DType::F32), (1, 1056, 5000, DType::I64), (1, 3, 200_000, DType::F64)];
    for (m, n, k, dtype) in cases {
        let one = PairedArray::new(gpu, [1, 1], dtype, TestLayout::Plain, || 1.into());
        let (a, b) = (one.broadcast([m, k]), one.broadcast([k, n]));
        let c = PairedArray::new(gpu, [m, n], dtype, TestLayout::Plain, || 0.into());
        run_both(gpu, &Kernel::MatMul(MatMul::default()), &[&a, &b], &[&c]).unwrap();
        c.assert_same(gpu, Tolerance::Bits, &format!("[{m}, {k}] times [{k}, {n}] of {dtype}"));
    }
}
