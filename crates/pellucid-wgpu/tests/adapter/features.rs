//! Optional features of the adapter, which do not change the bits of any result.

use crate::kernels::harness::{PairedArray, ProgramBuilder, Rng, TestLayout, Tolerance, device, run_both};
use crate::kernels::row::{layer_norm, softmax};
use pellucid_ir::formula::{Op, Program, RowOp};
use pellucid_ir::kernel::{Kernel, Map, Row};
use pellucid_ir::{Compute, DType, Element, Shape, f16};
use pellucid_wgpu::{Wgpu, WgpuDriver};
use std::sync::{Arc, OnceLock};

/// Returns the device under test, and one on the same adapter without its optional features.
fn devices() -> Option<[&'static Wgpu; 2]> {
    static PLAIN: OnceLock<Wgpu> = OnceLock::new();
    let gpu = device()?;
    let plain = PLAIN.get_or_init(|| WgpuDriver.open_device_without_features(0).unwrap());
    assert!(!plain.has_subgroups() && !plain.has_fused_multiply_add() && !plain.has_native_f16());
    eprintln!("subgroups: {}, native f16: {}", gpu.has_subgroups(), gpu.has_native_f16());
    Some([gpu, plain])
}

/// Returns the program of the maximum, the minimum and, except for masks, the sum of a row.
fn reductions(dtype: DType) -> Arc<Program> {
    let c = dtype.compute();
    let mut p = ProgramBuilder::default();
    let x = p.x(dtype);
    let ops = [RowOp::Max, RowOp::Min, RowOp::Sum];
    let ops = &ops[..if c == Compute::Mask { 2 } else { 3 }];
    let outputs: Vec<_> = ops.iter().map(|&op| (p.row_step(Op::Reduce(op), c, &[x]), c, dtype, true)).collect();
    p.build(&outputs)
}

/// Runs a program over the last axis of random rows, and returns the bytes of all outputs.
fn outputs(gpu: &Wgpu, program: &Arc<Program>, [rows, length]: [usize; 2], special: bool) -> Vec<Vec<u8>> {
    let rng = &mut Rng(7);
    let mut array = |dtype, per_row: bool| {
        let shape = Shape::from([rows, if per_row { 1 } else { length }]);
        PairedArray::new(gpu, shape, dtype, TestLayout::Plain, || if special { rng.value() } else { rng.finite() })
    };
    let inputs: Vec<PairedArray> = program.inputs.iter().map(|i| array(i.storage, i.per_row)).collect();
    let outputs: Vec<PairedArray> = program.outputs.iter().map(|o| array(o.storage, o.per_row)).collect();
    let kernel = Kernel::Row(Row { axes: [1].into_iter().collect(), program: program.clone(), params: [].into() });
    run_both(gpu, &kernel, &inputs.iter().collect::<Vec<_>>(), &outputs.iter().collect::<Vec<_>>()).unwrap();
    outputs.iter().map(|output| output.bytes(gpu)[1].clone()).collect()
}

#[test]
fn rows_have_the_same_bits_with_and_without_subgroups() {
    let Some([gpu, plain]) = devices() else { return };
    let dtypes = [DType::Bool, DType::I32, DType::I64, DType::F16, DType::F32, DType::F64];
    let programs = dtypes.map(|dtype| (reductions(dtype), true)).into_iter();
    for (program, special) in programs.chain([(softmax(DType::F32), false), (layer_norm(DType::F32), false)]) {
        for length in [1, 3, 8, 9, 63, 64, 65, 200] {
            let [with, without] = [gpu, plain].map(|gpu| outputs(gpu, &program, [3, length], special));
            assert_eq!(with, without, "rows of {length} elements\n{program}");
        }
    }
}

#[test]
fn extrema_of_rows_with_special_values_have_the_bits_of_the_cpu() {
    let Some(devices) = devices() else { return };
    for gpu in devices {
        for length in [2, 7, 64, 150] {
            for special in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                // The special value of row k is element k of the row.
                let values: Vec<f32> = (0..length * length)
                    .map(|i| if i % length == i / length { special } else { (i % 17) as f32 - 8.0 })
                    .collect();
                let x = PairedArray::of(gpu, [length, length], &values);
                let outputs = [0; 3].map(|_| PairedArray::of(gpu, [length, 1], &vec![0f32; length]));
                let program = reductions(DType::F32);
                let kernel = Kernel::Row(Row { axes: [1].into_iter().collect(), program, params: [].into() });
                run_both(gpu, &kernel, &[&x], &outputs.each_ref()).unwrap();
                for output in &outputs {
                    output.assert_same(gpu, Tolerance::Bits, &format!("{special} in rows of {length}"));
                }
            }
        }
    }
}

#[test]
fn conversions_of_half_precision_have_the_bits_of_the_cpu_with_and_without_instructions() {
    let Some(devices) = devices() else { return };
    let halves: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
    // Every value of f16, its neighbours in f32, and the midpoints to the next value with their neighbours.
    let near = |h: &f16| {
        let value = f32::from(*h).to_bits();
        let middle = (f32::from(*h) + 2f32.powi(-25).copysign(f32::from(*h))).to_bits();
        [value, value + 1, value + 0xfff, value + 0x1000, value + 0x1001, middle - 1, middle, middle + 1]
    };
    let singles: Vec<f32> = halves.iter().flat_map(near).map(f32::from_bits).collect();
    let program = |from: DType, to: DType, rounds: bool| {
        let (mut p, c) = (ProgramBuilder::default(), Compute::F32);
        let x = p.x(from);
        let y = if rounds { p.step(Op::Round(DType::F16), c, c, &[x]) } else { x };
        p.build(&[(y, c, to, false)])
    };
    fn check<T: Element>(gpu: &Wgpu, values: &[T], to: DType, program: Arc<Program>) {
        let x = PairedArray::of(gpu, [values.len()], values);
        let y = PairedArray::new(gpu, [values.len()], to, TestLayout::Plain, || 1.into());
        let kernel = Kernel::Map(Map { program: program.clone(), params: [].into() });
        run_both(gpu, &kernel, &[&x], &[&y]).unwrap();
        y.assert_same(gpu, Tolerance::Bits, &program.to_string());
    }
    for gpu in devices {
        check(gpu, &halves, DType::F32, program(DType::F16, DType::F32, false));
        check(gpu, &halves, DType::F16, program(DType::F16, DType::F16, true));
        check(gpu, &singles, DType::F16, program(DType::F32, DType::F16, false));
        check(gpu, &singles, DType::F32, program(DType::F32, DType::F32, true));
    }
}
