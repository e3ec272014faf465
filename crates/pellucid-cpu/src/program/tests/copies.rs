use super::*;
use crate::program::copy;

#[test]
fn copies_between_random_layouts_match() {
    let rng = &mut Rng(5);
    for shape in shapes().into_iter().chain([vec![100, 70], vec![3, 65, 50], vec![40, 3, 40]]) {
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
