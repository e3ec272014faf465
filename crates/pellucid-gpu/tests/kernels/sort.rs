//! Sorted lines and the first elements of lines.

use super::harness::{PairedArray, Rng, TestLayout, Tolerance, device, run_both};
use pellucid_ir::backend::Backend;
use pellucid_ir::kernel::{Kernel, Sort};
use pellucid_ir::{DType, Error, Scalar};

/// Runs a sort of values that `value` returns on both backends and compares all bits.
fn check_sort(rng: &mut Rng, shape: &[usize], dtype: DType, sort: Sort, mut value: impl FnMut(&mut Rng) -> Scalar) {
    let Some(gpu) = device() else { return };
    let layout = |rng: &mut Rng| TestLayout::ALL[rng.below(5)];
    let mut out = shape.to_vec();
    out[sort.axis] = sort.k;
    let x = PairedArray::new(gpu, shape, dtype, layout(rng), || value(rng));
    let y = PairedArray::new(gpu, out.clone(), dtype, layout(rng), || rng.finite());
    let positions = PairedArray::new(gpu, out, DType::I64, layout(rng), || rng.finite());
    run_both(gpu, &Kernel::Sort(sort), &[&x], &[&y, &positions]).unwrap();
    let context = format!("{sort:?} of {shape:?} {dtype} {:?}", x.layout);
    positions.assert_same(gpu, Tolerance::Bits, &context);
    y.assert_same(gpu, Tolerance::Bits, &context);
}

#[test]
fn sorts_of_all_dtypes_have_the_bits_of_the_cpu() {
    let rng = &mut Rng(91);
    let shapes: [(&[usize], usize); 6] =
        [(&[1], 0), (&[9], 0), (&[3, 17], 1), (&[17, 3], 0), (&[2, 5, 4], 1), (&[3, 0, 2], 2)];
    for dtype in DType::ALL {
        for (shape, axis) in shapes {
            for descending in [false, true] {
                // Few distinct values, so that many are equal, and special values.
                check_sort(rng, shape, dtype, Sort { axis, descending, k: shape[axis] }, |rng| match rng.below(3) {
                    0 => Scalar::Int(rng.below(5) as i64 - 2),
                    _ => rng.value(),
                });
            }
        }
    }
}

#[test]
fn long_lines_are_merged() {
    let rng = &mut Rng(92);
    for length in [64, 255, 256, 257, 511, 512, 513, 1025, 3000] {
        for (dtype, descending) in [(DType::F32, false), (DType::U8, true), (DType::I64, false), (DType::F16, true)] {
            check_sort(rng, &[2, length], dtype, Sort { axis: 1, descending, k: length }, Rng::value);
        }
    }
    check_sort(rng, &[300, 3], DType::F64, Sort { axis: 0, descending: true, k: 300 }, Rng::value);
    check_sort(rng, &[70_000], DType::I8, Sort { axis: 0, descending: false, k: 70_000 }, Rng::value);
}

#[test]
fn the_first_elements_of_lines_are_kept() {
    let rng = &mut Rng(93);
    for (length, k) in [(5, 0), (5, 1), (40, 39), (256, 10), (600, 1), (600, 300), (2000, 257), (2000, 1999)] {
        for descending in [false, true] {
            check_sort(rng, &[3, length], DType::F32, Sort { axis: 1, descending, k }, Rng::value);
            check_sort(rng, &[length, 2], DType::BF16, Sort { axis: 0, descending, k }, Rng::value);
        }
    }
}

#[test]
fn signed_zeros_are_equal_and_nan_is_the_largest() {
    let Some(gpu) = device() else { return };
    let x = PairedArray::of(gpu, [7], &[0.0f32, f32::NAN, -0.0, f32::INFINITY, f32::NEG_INFINITY, 0.0, -f32::NAN]);
    let y = PairedArray::of(gpu, [7], &[0.0f32; 7]);
    let positions = PairedArray::of(gpu, [7], &[0i64; 7]);
    for (descending, expected) in [(false, [4, 0, 2, 5, 3, 1, 6]), (true, [1, 6, 3, 0, 2, 5, 4])] {
        run_both(gpu, &Kernel::Sort(Sort { axis: 0, descending, k: 7 }), &[&x], &[&y, &positions]).unwrap();
        assert_eq!(positions.device_values::<i64>(gpu), expected);
        y.assert_same(gpu, Tolerance::Bits, "values");
    }
}

#[test]
fn outputs_that_do_not_fit_are_typed_errors() {
    let Some(gpu) = device() else { return };
    let x = PairedArray::of(gpu, [3], &[1.0f32, 3.0, 2.0]);
    let y = PairedArray::of(gpu, [3], &[9.0f32; 3]);
    let positions = PairedArray::of(gpu, [3], &[9i64; 3]);
    let kernel = |axis, k| Kernel::Sort(Sort { axis, descending: false, k });
    for kernel in [kernel(1, 3), kernel(0, 2), kernel(0, 4)] {
        let result = gpu.run(&kernel, &[x.on_gpu()], &[y.on_gpu(), positions.on_gpu()]);
        assert!(matches!(result, Err(Error::ShapeMismatch { .. })), "{kernel:?}: {result:?}");
    }
    let result = gpu.run(&kernel(0, 3), &[x.on_gpu()], &[y.on_gpu(), y.on_gpu()]);
    assert!(matches!(result, Err(Error::DTypeMismatch { .. })), "{result:?}");
    assert_eq!(y.device_values::<f32>(gpu), [9.0; 3]);
}
