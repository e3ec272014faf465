//! Binary search in sorted rows.

use super::harness::{PairedArray, Rng, TestLayout, Tolerance, device, run_both};
use pellucid_ir::kernel::{Kernel, Search};
use pellucid_ir::{DType, Scalar};

#[test]
fn positions_match_the_cpu_for_all_dtypes() {
    let Some(gpu) = device() else { return };
    let rng = &mut Rng(95);
    let cases: [(&[usize], &[usize]); 6] =
        [(&[1], &[3]), (&[0], &[3]), (&[37], &[2, 3, 5]), (&[2, 9], &[2, 40]), (&[3, 1], &[3, 0]), (&[2, 0], &[2, 3])];
    for (row_shape, shape) in cases {
        for dtype in DType::ALL {
            for right in [false, true] {
                let layout = |rng: &mut Rng| TestLayout::ALL[rng.below(5)];
                // The elements ascend in every row, with repetitions; NaN follows all numbers.
                let (width, mut i) = (row_shape[row_shape.len() - 1].max(1), 0);
                let element = || {
                    let at = i % width;
                    i += 1;
                    match dtype.is_float() && at + 2 > width && width > 4 {
                        true => Scalar::Float(f64::NAN),
                        false => Scalar::Int(at as i64 / 2 - 3 * i64::from(dtype.is_float())),
                    }
                };
                let sorted = PairedArray::new(gpu, row_shape, dtype, layout(rng), element);
                let values = PairedArray::new(gpu, shape, dtype, layout(rng), || match rng.below(8) {
                    0 => rng.value(),
                    _ => Scalar::Int(rng.below(20) as i64 - 4),
                });
                let y = PairedArray::new(gpu, shape, DType::I64, TestLayout::Offset, || Scalar::Int(7));
                run_both(gpu, &Kernel::Search(Search { right }), &[&sorted, &values], &[&y]).unwrap();
                y.assert_same(gpu, Tolerance::Bits, &format!("{row_shape:?} {shape:?} {dtype} {right}"));
            }
        }
    }
}
