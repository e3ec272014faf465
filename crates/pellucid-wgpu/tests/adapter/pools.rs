//! Max pooling.

use crate::harness::{PairedArray, Rng, TestLayout, Tolerance, device, run_both};
use pellucid_ir::DType;
use pellucid_ir::kernel::{Kernel, Pool, PoolPart, Window};

const fn window(size: [usize; 3], stride: [usize; 3], dilation: [usize; 3], before: [usize; 3]) -> Window {
    Window { size, stride, dilation, before }
}

/// Shapes of x, numbers of windows, and windows.
const CASES: [(&[usize], [usize; 3], Window); 6] = [
    (&[1, 1, 8], [1, 1, 4], window([1, 1, 2], [1, 1, 2], [1, 1, 1], [0, 0, 0])),
    (&[2, 3, 1, 6, 7], [1, 3, 4], window([1, 2, 3], [1, 2, 2], [1, 1, 1], [0, 0, 1])),
    (&[2, 4, 5, 6], [2, 3, 4], window([2, 2, 2], [2, 2, 1], [1, 2, 2], [0, 1, 0])),
    (&[3, 1, 9, 9], [1, 9, 9], window([1, 3, 3], [1, 1, 1], [1, 1, 1], [0, 1, 1])),
    (&[0, 1, 4, 4], [1, 2, 2], window([1, 2, 2], [1, 2, 2], [1, 1, 1], [0, 0, 0])),
    // A window entirely in the padding is rejected on both.
    (&[1, 1, 3], [1, 1, 5], window([1, 1, 1], [1, 1, 1], [1, 1, 1], [0, 0, 2])),
];

#[test]
fn pools_match_the_cpu() {
    let Some(gpu) = device() else { return };
    let rng = &mut Rng(71);
    for (shape, outputs, window) in CASES {
        for dtype in DType::ALL {
            let x = PairedArray::new(gpu, shape, dtype, TestLayout::ALL[rng.below(5)], || rng.value());
            let to: Vec<usize> = shape[..shape.len() - 3].iter().copied().chain(outputs).collect();
            let y = PairedArray::new(gpu, to.clone(), dtype, TestLayout::Offset, || rng.value());
            let at = PairedArray::new(gpu, to.clone(), DType::I64, TestLayout::Plain, || rng.value());
            if run_both(gpu, &Kernel::Pool(Pool { windows: window.into(), part: PoolPart::Maximum }), &[&x], &[&y, &at])
                .is_ok()
            {
                let context = format!("{window:?} over {shape:?} of {dtype}");
                at.assert_same(gpu, Tolerance::Bits, &context);
                y.assert_same(gpu, Tolerance::Bits, &context);
                if dtype.is_float() {
                    let g = PairedArray::new(gpu, to, dtype, TestLayout::ALL[rng.below(5)], || rng.value());
                    let sums = PairedArray::new(gpu, shape, dtype, TestLayout::Offset, || rng.value());
                    run_both(
                        gpu,
                        &Kernel::Pool(Pool { windows: window.into(), part: PoolPart::Gradient }),
                        &[&g, &at],
                        &[&sums],
                    )
                    .unwrap();
                    sums.assert_same(gpu, Tolerance::Bits, &format!("gradient of {context}"));
                }
            }
        }
    }
}
