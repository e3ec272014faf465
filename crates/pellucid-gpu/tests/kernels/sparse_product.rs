//! Products of sparse matrices.

use super::harness::{PairedArray, Rng, TestLayout, Tolerance, device, run_both};
use crate::backend::TestBackend;
use pellucid_cpu::Cpu;
use pellucid_ir::backend::Backend;
use pellucid_ir::kernel::{Kernel, SparseProduct};
use pellucid_ir::{DType, Error, Scalar, Shape};

/// Returns random starts, columns and weights. Row i has `terms[i]` terms.
fn matrix(gpu: &TestBackend, rng: &mut Rng, terms: &[usize], width: usize, dtype: DType) -> [PairedArray; 3] {
    let mut ends = [0].iter().chain(terms).scan(0, |end, terms| {
        *end += terms;
        Some(Scalar::Int(*end as i64))
    });
    let total: usize = terms.iter().sum();
    // The memory of an array may have elements around it.
    let starts = PairedArray::new(gpu, [terms.len() + 1], DType::I64, TestLayout::Plain, || {
        ends.next().unwrap_or(Scalar::Int(0))
    });
    let layout = TestLayout::ALL[rng.below(5)];
    let columns = PairedArray::new(gpu, [total], DType::I64, layout, || Scalar::Int(rng.below(width.max(1)) as i64));
    let weights = PairedArray::new(gpu, [total], dtype, TestLayout::ALL[rng.below(5)], || rng.finite());
    [starts, columns, weights]
}

#[test]
fn sparse_products_match_the_cpu() {
    let Some(gpu) = device() else { return };
    let rng = &mut Rng(81);
    let cases: [(&[usize], usize, &[usize]); 9] = [
        (&[7], 0, &[1, 0, 3, 2]),
        (&[3, 7], 0, &[1, 1, 5]),
        (&[3, 7], 1, &[2, 0, 4, 1, 1]),
        (&[2, 5, 3], 1, &[0, 0]),
        (&[2, 5, 4, 3], 2, &[1, 7, 8, 9, 65]),
        (&[40, 2], 0, &[63, 64, 200]),
        (&[2, 0, 3], 1, &[0, 0]),
        (&[0, 4], 1, &[1, 2]),
        (&[3, 4], 1, &[]),
    ];
    for (shape, axis, terms) in cases {
        for dtype in [DType::F32, DType::F64] {
            let [starts, columns, weights] = &matrix(gpu, rng, terms, shape[axis], dtype);
            let x = PairedArray::new(gpu, shape, dtype, TestLayout::ALL[rng.below(5)], || rng.value());
            let to = Shape::from(shape.to_vec()).with_axis(axis, terms.len());
            let y = PairedArray::new(gpu, to, dtype, TestLayout::ALL[rng.below(5)], || rng.value());
            let kernel = Kernel::SparseProduct(SparseProduct { op: "test", axis });
            run_both(gpu, &kernel, &[&x, starts, columns, weights], &[&y]).unwrap();
            y.assert_same(gpu, Tolerance::Bits, &format!("{shape:?}, axis {axis}, {terms:?} terms of {dtype}"));
        }
    }
}

/// Tests rows of up to 70,000 terms; one dispatch adds at most 32,768 terms of a row.
#[test]
fn long_rows_match_the_cpu() {
    let Some(gpu) = device() else { return };
    let rng = &mut Rng(82);
    for (dtype, terms) in
        [(DType::F32, &[513, 4097, 32_767, 0, 32_768, 32_769, 70_000][..]), (DType::F64, &[3, 33_000])]
    {
        let [starts, columns, weights] = &matrix(gpu, rng, terms, 50, dtype);
        let x = PairedArray::new(gpu, [50, 2], dtype, TestLayout::Plain, || rng.finite());
        let y = PairedArray::new(gpu, [terms.len(), 2], dtype, TestLayout::Gaps, || rng.value());
        let kernel = Kernel::SparseProduct(SparseProduct { op: "test", axis: 0 });
        run_both(gpu, &kernel, &[&x, starts, columns, weights], &[&y]).unwrap();
        y.assert_same(gpu, Tolerance::Bits, &format!("{terms:?} terms of {dtype}"));
    }
}

#[test]
fn an_invalid_matrix_is_the_error_of_the_cpu_and_writes_nothing() {
    let Some(gpu) = device() else { return };
    let x = PairedArray::of(gpu, [3, 2], &[1.0f32; 6]);
    let weights = PairedArray::of(gpu, [2], &[1.0f32; 2]);
    let kernel = Kernel::SparseProduct(SparseProduct { op: "test", axis: 0 });
    for (starts, columns) in [
        ([0, 1, 2], [0, 3]),
        ([0, 1, 2], [-1, 0]),
        ([0, 1, 2], [0, 1_i64 << 32]),
        ([0, 2, 1], [0, 1]),
        ([0, 1, 3], [0, 1]),
        ([-1, 1, 2], [0, 1]),
        ([0, i64::MAX, 2], [0, 1]),
    ] {
        let (starts, columns) = (PairedArray::of(gpu, [3], &starts), PairedArray::of(gpu, [2], &columns));
        let y = PairedArray::of(gpu, [2, 2], &[9.0f32; 4]);
        let inputs = [&x, &starts, &columns, &weights];
        let on_cpu = Cpu.run(&kernel, &inputs.map(PairedArray::on_cpu), &[y.on_cpu()]).unwrap_err();
        let on_gpu = gpu.run(&kernel, &inputs.map(PairedArray::on_gpu), &[y.on_gpu()]).unwrap_err();
        assert!(matches!(on_gpu, Error::IndexOutOfBounds { .. }) && on_cpu == on_gpu, "{on_gpu} instead of {on_cpu}");
        assert_eq!(y.device_values::<f32>(gpu), [9.0; 4]);
    }
}
