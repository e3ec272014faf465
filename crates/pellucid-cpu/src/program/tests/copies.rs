use super::*;
use crate::program::copy;

#[test]
fn copies_between_random_layouts_match() {
    let rng = &mut Rng(5);
    for shape in shapes().into_iter().chain([vec![100, 70], vec![3, 65, 50], vec![40, 3, 40], vec![2, 600, 3]]) {
        for dtype in [DType::U8, DType::F16, DType::F32, DType::I64] {
            let from = TestArray::random(rng, &shape, dtype, true);
            let to = TestArray::random(rng, &shape, dtype, false);
            let expected: Vec<u64> = (0..shape.iter().product()).map(|i| from.element_bits(&shape, i)).collect();
            for_each_thread_count(|_| {
                let mut to = to.clone();
                copy(&from.shared(), &to.operand()).unwrap();
                assert_same(&to.bits(), &expected, dtype, &format!("{shape:?} {:?} {:?}", from.layout, to.layout));
            });
        }
    }
}

/// Tests copies of reversed and transposed arrays, and runs around the lengths of short copies and of vectors.
#[test]
fn copies_of_reversed_and_transposed_arrays_match() {
    let rng = &mut Rng(7);
    let reversed =
        |layout: &Layout, axis: usize| layout.slice(axis, layout.shape()[axis] - 1, -1, layout.shape()[axis]);
    for (rows, cols) in [(1, 9), (3, 1), (8, 8), (9, 17), (13, 2), (65, 33), (130, 70), (20, 300), (140, 512)] {
        for dtype in [DType::U8, DType::F16, DType::F32, DType::I64] {
            for variant in 0..8 {
                let mut from = TestArray::contiguous(rng, &[rows, cols], dtype);
                let stored = from.layout.clone();
                from.layout = if variant & 1 == 0 { from.layout } else { reversed(&from.layout, 0) };
                from.layout = if variant & 2 == 0 { from.layout } else { reversed(&from.layout, 1) };
                let shape = [cols, rows];
                let (shape, layout) = match variant & 4 == 0 {
                    true => (&[rows, cols], from.layout.clone()),
                    false => (&shape, from.layout.permute(&[1, 0])),
                };
                from.layout = layout;
                let expected: Vec<u64> = (0..rows * cols).map(|i| from.element_bits(shape, i)).collect();
                let mut to = TestArray::contiguous(rng, shape, dtype);
                copy(&from.shared(), &to.operand()).unwrap();
                assert_same(&to.bits(), &expected, dtype, &format!("{:?} of {stored:?}", from.layout));
                // The elements are written back through the layout through which they were read.
                let mut back =
                    TestArray { layout: from.layout.clone(), ..TestArray::contiguous(rng, &[rows, cols], dtype) };
                copy(&to.shared(), &back.operand()).unwrap();
                assert_same(&back.bits(), &expected, dtype, &format!("to {:?}", back.layout));
            }
        }
    }
}

/// Tests copies of rows of every short length, and of lengths near the sizes of moves, in a larger array.
#[test]
fn copies_of_short_rows_match() {
    let rng = &mut Rng(8);
    for len in (1..40).chain([63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 1023, 1024, 1025, 4096, 4097]) {
        for dtype in [DType::U8, DType::F16, DType::F32, DType::I64] {
            let width = len + 3;
            let mut from = TestArray::contiguous(rng, &[50, width], dtype);
            from.layout = from.layout.slice(1, width - len, 1, len);
            let expected: Vec<u64> = (0..50 * len).map(|i| from.element_bits(&[50, len], i)).collect();
            let mut to = TestArray::contiguous(rng, &[50, len + 1], dtype);
            to.layout = to.layout.slice(1, 1, 1, len);
            copy(&from.shared(), &to.operand()).unwrap();
            assert_same(&to.bits(), &expected, dtype, &format!("rows of {len}"));
        }
    }
}

#[test]
fn casts_between_all_dtypes_match_the_reference() {
    let rng = &mut Rng(6);
    for from in DType::ALL {
        for to in DType::ALL {
            for shape in [vec![3, 50], vec![1000]] {
                let x = TestArray::random(rng, &shape, from, true);
                let mut y = TestArray::random(rng, &shape, to, false);
                copy(&x.shared(), &y.operand()).unwrap();
                let cast = |bits| match from == to {
                    true => bits,
                    false => naive::store(naive::convert(bits, from, from.compute()), from.compute(), to),
                };
                let expected: Vec<u64> =
                    (0..y.layout.shape().size()).map(|i| cast(x.element_bits(&shape, i))).collect();
                assert_same(&y.bits(), &expected, to, &format!("{from} to {to}"));
            }
        }
    }
}

#[test]
fn casts_of_wide_integers_round_once() {
    let mut x = TestArray::zeros(1, Layout::contiguous([1].into()), DType::I64);
    x.write(0, (1u64 << 53) + 1);
    let mut y = TestArray::zeros(1, Layout::contiguous([1].into()), DType::F64);
    copy(&x.operand(), &y.operand()).unwrap();
    assert_eq!(naive::decode(y.bits()[0], DType::F64), Scalar::Float(9007199254740992.0));
    y.write(0, (-1e15f64 - 1.0).to_bits());
    copy(&y.operand(), &x.operand()).unwrap();
    assert_eq!(x.bits()[0] as i64, -1_000_000_000_000_001);
}
