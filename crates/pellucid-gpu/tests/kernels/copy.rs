//! Copies between all dtypes and layouts.

use super::harness::{PairedArray, Rng, TestLayout, Tolerance, device, run_both};
use pellucid_ir::DType;
use pellucid_ir::kernel::Kernel;

#[test]
fn copies_convert_between_all_dtypes() {
    let Some(gpu) = device() else { return };
    let rng = &mut Rng(1);
    for from in DType::ALL {
        for to in DType::ALL {
            let x = PairedArray::new(gpu, [67], from, TestLayout::Plain, || rng.value());
            let y = PairedArray::new(gpu, [67], to, TestLayout::Offset, || rng.value());
            run_both(gpu, &Kernel::Copy, &[&x], &[&y]).unwrap();
            y.assert_same(gpu, Tolerance::Bits, &format!("{from} to {to}"));
        }
    }
}

#[test]
fn copies_convert_between_all_layouts() {
    let Some(gpu) = device() else { return };
    let rng = &mut Rng(2);
    for shape in [vec![], vec![1], vec![13], vec![3, 5], vec![2, 3, 4, 5], vec![4, 0, 2], vec![1, 7, 1, 9]] {
        for (from, to) in TestLayout::ALL.into_iter().flat_map(|a| TestLayout::ALL.map(|b| (a, b))) {
            let dtype = DType::ALL[rng.below(10)];
            let x = PairedArray::new(gpu, shape.clone(), dtype, from, || rng.value());
            let y = PairedArray::new(gpu, shape.clone(), dtype, to, || rng.value());
            run_both(gpu, &Kernel::Copy, &[&x], &[&y]).unwrap();
            y.assert_same(gpu, Tolerance::Bits, &format!("{shape:?} {dtype} {from:?} to {to:?}"));
        }
    }
}

#[test]
fn copies_broadcast_and_have_all_offsets() {
    let Some(gpu) = device() else { return };
    let rng = &mut Rng(3);
    for dtype in [DType::U8, DType::BF16, DType::I64] {
        for length in 1..10 {
            for offset in 0..5 {
                let x = PairedArray::new(gpu, [1], dtype, TestLayout::Plain, || rng.value()).broadcast([length]);
                let mut y = PairedArray::new(gpu, [length + 5], dtype, TestLayout::Plain, || rng.value());
                y.layout = y.layout.slice(0, offset, 1, length);
                run_both(gpu, &Kernel::Copy, &[&x], &[&y]).unwrap();
                y.assert_same(gpu, Tolerance::Bits, &format!("{dtype} {length} at {offset}"));
            }
        }
    }
}

#[test]
fn grids_beyond_one_axis_are_complete() {
    let Some(gpu) = device() else { return };
    // 65,535 workgroups of 64 invocations are 4,194,240 elements.
    let n = 4_194_240 + 1000;
    let x = PairedArray::of(gpu, [n], &(0..n as i32).collect::<Vec<i32>>());
    let y = PairedArray::of(gpu, [n], &vec![-1i32; n]);
    run_both(gpu, &Kernel::Copy, &[&x], &[&y]).unwrap();
    y.assert_same(gpu, Tolerance::Bits, "a grid with two axes");
}
