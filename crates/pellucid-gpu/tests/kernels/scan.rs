//! Cumulative reductions.

use super::harness::{PairedArray, Rng, TestLayout, Tolerance, device, run_both};
use pellucid_ir::DType;
use pellucid_ir::kernel::{Kernel, Scan, ScanOp};

#[test]
fn scans_have_the_bits_of_the_cpu() {
    let Some(gpu) = device() else { return };
    let rng = &mut Rng(81);
    let shapes: [(&[usize], usize); 6] =
        [(&[1], 0), (&[100], 0), (&[3, 9], 1), (&[9, 3], 0), (&[2, 5, 4], 1), (&[3, 0, 2], 1)];
    for op in [ScanOp::Sum, ScanOp::Prod, ScanOp::Max, ScanOp::Min, ScanOp::LogSumExp] {
        for dtype in DType::ALL {
            // The shaders of logcumsumexp are long, and the adapter compiles one for each rank.
            let shapes = if op == ScanOp::LogSumExp { &shapes[1..3] } else { &shapes[..] };
            for &(shape, axis) in shapes {
                for reverse in [false, true] {
                    let layout = |rng: &mut Rng| TestLayout::ALL[rng.below(5)];
                    let x = PairedArray::new(gpu, shape, dtype, layout(rng), || rng.value());
                    let y = PairedArray::new(gpu, shape, dtype, layout(rng), || rng.finite());
                    let at = PairedArray::new(gpu, shape, DType::I64, layout(rng), || rng.finite());
                    let outputs = [&y, &at];
                    let count = if matches!(op, ScanOp::Max | ScanOp::Min) { 2 } else { 1 };
                    let kernel = Kernel::Scan(Scan { op, axis, reverse });
                    if run_both(gpu, &kernel, &[&x], &outputs[..count]).is_ok() {
                        let context = format!("{op:?} over axis {axis} of {shape:?} {dtype}, reverse: {reverse}");
                        y.assert_same(gpu, Tolerance::Bits, &context);
                        at.assert_same(gpu, Tolerance::Bits, &context);
                    }
                }
            }
        }
    }
}

/// Lines of these lengths are divided into chunks, so sums of floats are rounded differently than on the CPU.
#[test]
fn scans_of_long_lines_match_the_cpu() {
    let Some(gpu) = device() else { return };
    let rng = &mut Rng(82);
    use ScanOp::{LogSumExp, Max, Min, Sum};
    let (f32, i64) = (DType::F32, DType::I64);
    let cases =
        [(Sum, f32), (Sum, i64), (Sum, DType::F16), (Max, f32), (Min, i64), (LogSumExp, f32), (LogSumExp, DType::F64)];
    for (op, dtype) in cases {
        for (shape, axis) in [(&[1025][..], 0), (&[70_000], 0), (&[2, 3000], 1)] {
            if op == LogSumExp && shape.len() == 1 {
                continue;
            }
            let reverse = rng.below(2) == 1;
            let layout = |rng: &mut Rng| TestLayout::ALL[rng.below(5)];
            // Extrema keep NaN and infinities, which all chunks contain.
            let is_extremum = matches!(op, Max | Min);
            let value = |rng: &mut Rng| if is_extremum { rng.value() } else { rng.finite() };
            let x = PairedArray::new(gpu, shape, dtype, layout(rng), || value(rng));
            let y = PairedArray::new(gpu, shape, dtype, layout(rng), || rng.finite());
            let at = PairedArray::new(gpu, shape, DType::I64, layout(rng), || rng.finite());
            let outputs = [&y, &at];
            let kernel = Kernel::Scan(Scan { op, axis, reverse });
            run_both(gpu, &kernel, &[&x], &outputs[..if is_extremum { 2 } else { 1 }]).unwrap();
            let tolerance = match dtype {
                _ if is_extremum => Tolerance::Bits,
                DType::F16 => Tolerance::Relative(2f64.powi(-10), 2f64.powi(-10)),
                _ => Tolerance::Relative(1e-5, 1e-5),
            };
            let context = format!("{op:?} over axis {axis} of {shape:?} {dtype}, reverse: {reverse}");
            y.assert_same(gpu, tolerance, &context);
            at.assert_same(gpu, Tolerance::Bits, &context);
        }
    }
}
