//! Values combined with elements that indices select.

use super::harness::{PairedArray, Rng, TestLayout, Tolerance, device, run_both};
use pellucid_cpu::Cpu;
use pellucid_ir::backend::Backend;
use pellucid_ir::kernel::{Index, Kernel, Scatter, ScatterOp};
use pellucid_ir::{DType, Error, Scalar};

const REDUCTIONS: [ScatterOp; 5] = [ScatterOp::Set, ScatterOp::Add, ScatterOp::Mul, ScatterOp::Max, ScatterOp::Min];

fn axes(axes: &[usize]) -> Index {
    Index::Axes(axes.iter().copied().collect())
}

/// Runs a scatter with random indices on both backends and compares all bits.
fn check_scatter(
    rng: &mut Rng,
    (shape, index, index_shape): (&[usize], &Index, &[usize]),
    dtype: DType,
    reduction: ScatterOp,
) {
    let Some(gpu) = device() else { return };
    let indexed: Vec<usize> = match index {
        Index::Axes(axes) => axes.to_vec(),
        Index::Along(axis) => vec![*axis],
    };
    let layout = |rng: &mut Rng| TestLayout::ALL[rng.below(5)];
    let values = index.shape(&shape.into(), &index_shape.into());
    let mut inputs = vec![PairedArray::new(gpu, values, dtype, layout(rng), || rng.value())];
    for axis in indexed {
        let len = shape[axis];
        let index_layout = layout(rng);
        let value = || Scalar::Int(rng.below(2 * len) as i64 - len as i64);
        inputs.push(PairedArray::new(gpu, index_shape, DType::I64, index_layout, value));
    }
    let y = PairedArray::new(gpu, shape, dtype, layout(rng), || rng.value());
    let kernel = Kernel::Scatter(Scatter { op: "scatter", from_end: true, index: index.clone(), reduction });
    run_both(gpu, &kernel, &inputs.iter().collect::<Vec<_>>(), &[&y]).unwrap();
    y.assert_same(gpu, Tolerance::Bits, &format!("{reduction:?} {shape:?} {index:?} {index_shape:?} {dtype}"));
}

#[test]
fn scatters_have_the_bits_of_the_cpu() {
    let rng = &mut Rng(101);
    let cases: [(&[usize], Index, &[usize]); 9] = [
        (&[7], axes(&[0]), &[25]),
        (&[7, 3], axes(&[0]), &[2, 9]),
        (&[3, 7], axes(&[1]), &[70]),
        (&[3, 4, 5], axes(&[0, 2]), &[16]),
        (&[3, 2, 2], axes(&[0, 1, 2]), &[2, 13]),
        (&[3, 4], Index::Along(0), &[9, 3]),
        (&[3, 4, 2], Index::Along(1), &[2, 9, 2]),
        (&[3], axes(&[0]), &[0]),
        (&[2, 0], axes(&[0]), &[3]),
    ];
    for (shape, index, index_shape) in &cases {
        for dtype in DType::ALL {
            for reduction in REDUCTIONS {
                check_scatter(rng, (shape, index, index_shape), dtype, reduction);
            }
        }
    }
}

#[test]
fn many_values_are_added_in_the_order_of_their_positions() {
    let rng = &mut Rng(102);
    for dtype in [DType::F32, DType::BF16, DType::F64] {
        check_scatter(rng, (&[50, 5], &axes(&[0]), &[700]), dtype, ScatterOp::Add);
        check_scatter(rng, (&[2], &axes(&[0]), &[257]), dtype, ScatterOp::Add);
    }
    check_scatter(rng, (&[3, 200], &Index::Along(1), &[3, 400]), DType::F32, ScatterOp::Add);
    check_scatter(rng, (&[40_000], &axes(&[0]), &[3000]), DType::I16, ScatterOp::Set);
}

/// Tests more positions than one dispatch combines.
#[test]
fn values_of_several_dispatches_are_combined_in_order() {
    let rng = &mut Rng(103);
    for reduction in REDUCTIONS {
        check_scatter(rng, (&[3], &axes(&[0]), &[70_000]), DType::F32, reduction);
    }
    check_scatter(rng, (&[40_000, 2], &axes(&[0]), &[33_000]), DType::I16, ScatterOp::Add);
}

#[test]
fn values_may_broadcast() {
    let Some(gpu) = device() else { return };
    let value = PairedArray::of(gpu, [1, 1], &[0.1f32]).broadcast([40, 3]);
    let index = PairedArray::of(gpu, [40], &(0..40).map(|i| i % 7).collect::<Vec<i64>>());
    let y = PairedArray::of(gpu, [7, 3], &[0.0f32; 21]);
    let kernel =
        Kernel::Scatter(Scatter { op: "scatter", from_end: true, index: axes(&[0]), reduction: ScatterOp::Add });
    run_both(gpu, &kernel, &[&value, &index], &[&y]).unwrap();
    y.assert_same(gpu, Tolerance::Bits, "a broadcast value");
}

#[test]
fn an_index_out_of_bounds_is_the_error_of_the_cpu_and_changes_nothing() {
    let Some(gpu) = device() else { return };
    let values = PairedArray::of(gpu, [4], &[1.0f32, 2.0, 3.0, 4.0]);
    for reduction in REDUCTIONS {
        let kernel = Kernel::Scatter(Scatter { op: "scatter", from_end: true, index: axes(&[0]), reduction });
        for bad in [3, -4, i64::MIN, i64::MAX, 1 << 32] {
            let index = PairedArray::of(gpu, [4], &[0, -1, bad, 7]);
            let y = PairedArray::of(gpu, [3], &[9.0f32; 3]);
            let on_cpu = Cpu.run(&kernel, &[values.on_cpu(), index.on_cpu()], &[y.on_cpu()]).unwrap_err();
            let on_gpu = gpu.run(&kernel, &[values.on_gpu(), index.on_gpu()], &[y.on_gpu()]).unwrap_err();
            let is_typed = matches!(on_gpu, Error::IndexOutOfBounds { op: "scatter", .. });
            assert!(is_typed && on_cpu == on_gpu, "{on_gpu} instead of {on_cpu}");
            assert_eq!(y.device_values::<f32>(gpu), [9.0; 3]);
        }
    }
    let index = PairedArray::of(gpu, [2], &[0i64, 0]);
    let y = PairedArray::of(gpu, [3], &[9.0f32; 3]);
    let kernel =
        Kernel::Scatter(Scatter { op: "scatter", from_end: true, index: axes(&[0]), reduction: ScatterOp::Add });
    let result = run_both(gpu, &kernel, &[&values, &index], &[&y]);
    assert!(matches!(result, Err(Error::ShapeMismatch { .. })), "{result:?}");
    assert_eq!(y.device_values::<f32>(gpu), [9.0; 3]);
}
