//! Max pooling.

use super::harness::{PairedArray, Rng, TestLayout, Tolerance, device, run_both};
use crate::backend::TestBackend;
use pellucid_ir::DType;
use pellucid_ir::kernel::{Kernel, Pool, PoolPart, PoolWindows, Window};

const fn window(size: [usize; 3], stride: [usize; 3], dilation: [usize; 3], before: [usize; 3]) -> Window {
    Window { size, stride, dilation, before }
}

/// The cases of sliding windows: the shape of x, the numbers of windows along the spatial axes, and the window.
const CASES: [(&[usize], [usize; 3], Window); 6] = [
    (&[1, 1, 8], [1, 1, 4], window([1, 1, 2], [1, 1, 2], [1, 1, 1], [0, 0, 0])),
    (&[2, 3, 1, 6, 7], [1, 3, 4], window([1, 2, 3], [1, 2, 2], [1, 1, 1], [0, 0, 1])),
    (&[2, 4, 5, 6], [2, 3, 4], window([2, 2, 2], [2, 2, 1], [1, 2, 2], [0, 1, 0])),
    (&[3, 1, 9, 9], [1, 9, 9], window([1, 3, 3], [1, 1, 1], [1, 1, 1], [0, 1, 1])),
    (&[0, 1, 4, 4], [1, 2, 2], window([1, 2, 2], [1, 2, 2], [1, 1, 1], [0, 0, 0])),
    // Both backends reject a window that is entirely in the padding.
    (&[1, 1, 3], [1, 1, 5], window([1, 1, 1], [1, 1, 1], [1, 1, 1], [0, 0, 2])),
];

#[test]
fn sliding_windows_match_the_cpu() {
    let Some(gpu) = device() else { return };
    let rng = &mut Rng(71);
    for (shape, outputs, window) in CASES {
        for dtype in DType::ALL {
            compare(gpu, rng, shape, outputs, window.into(), dtype);
        }
    }
}

#[test]
fn adaptive_windows_match_the_cpu() {
    let Some(gpu) = device() else { return };
    let rng = &mut Rng(72);
    for (shape, outputs) in [
        (&[1, 1, 8][..], [1, 1, 3]),
        (&[2, 3, 4, 6, 7], [3, 4, 7]),
        (&[3, 1, 5, 2], [1, 2, 5]),
        (&[2, 1, 70, 65], [1, 1, 1]),
        (&[0, 1, 4, 4], [1, 2, 2]),
        (&[2, 1, 4, 4], [1, 0, 2]),
        // An empty axis has no windows.
        (&[1, 1, 0], [1, 1, 2]),
    ] {
        for dtype in [DType::F32, DType::F64, DType::BF16, DType::I64, DType::Bool] {
            compare(gpu, rng, shape, outputs, PoolWindows::Adaptive, dtype);
        }
    }
}

/// Compares the maxima of random elements, their positions and the gradients. A kernel that both backends reject
/// passes.
fn compare(gpu: &TestBackend, rng: &mut Rng, shape: &[usize], outputs: [usize; 3], windows: PoolWindows, dtype: DType) {
    let kernel = |part| Kernel::Pool(Pool { windows, part });
    let x = PairedArray::new(gpu, shape, dtype, TestLayout::ALL[rng.below(5)], || rng.value());
    let to: Vec<usize> = shape[..shape.len() - 3].iter().copied().chain(outputs).collect();
    let y = PairedArray::new(gpu, to.clone(), dtype, TestLayout::Offset, || rng.value());
    let at = PairedArray::new(gpu, to.clone(), DType::I64, TestLayout::Plain, || rng.value());
    if run_both(gpu, &kernel(PoolPart::Maximum), &[&x], &[&y, &at]).is_err() {
        return;
    }
    let context = format!("{windows:?} over {shape:?} of {dtype}");
    at.assert_same(gpu, Tolerance::Bits, &context);
    y.assert_same(gpu, Tolerance::Bits, &context);
    if dtype.is_float() {
        let g = PairedArray::new(gpu, to, dtype, TestLayout::ALL[rng.below(5)], || rng.value());
        let sums = PairedArray::new(gpu, shape, dtype, TestLayout::Offset, || rng.value());
        run_both(gpu, &kernel(PoolPart::Gradient), &[&g, &at], &[&sums]).unwrap();
        sums.assert_same(gpu, Tolerance::Bits, &format!("gradient of {context}"));
    }
}
