//! The promotion table, and the rule that host numbers never widen a tensor.

use pellucid_tensor::{DType, Tensor, ops};

const TABLE: &str = "
          bool  u8    i8    i16   i32   i64   f16   bf16  f32   f64
    bool  bool  u8    i8    i16   i32   i64   f16   bf16  f32   f64
    u8    u8    u8    i16   i16   i32   i64   f16   bf16  f32   f64
    i8    i8    i16   i8    i16   i32   i64   f16   bf16  f32   f64
    i16   i16   i16   i16   i16   i32   i64   f16   bf16  f32   f64
    i32   i32   i32   i32   i32   i32   i64   f16   bf16  f32   f64
    i64   i64   i64   i64   i64   i64   i64   f16   bf16  f32   f64
    f16   f16   f16   f16   f16   f16   f16   f16   f32   f32   f64
    bf16  bf16  bf16  bf16  bf16  bf16  bf16  f32   bf16  f32   f64
    f32   f32   f32   f32   f32   f32   f32   f32   f32   f32   f64
    f64   f64   f64   f64   f64   f64   f64   f64   f64   f64   f64
";

/// Returns the common dtype of two dtypes according to the table above.
pub fn join(a: DType, b: DType) -> DType {
    let mut lines = TABLE.lines().filter(|l| !l.trim().is_empty()).map(|l| l.split_whitespace().collect::<Vec<_>>());
    let column = lines
        .next()
        .expect("the table must have a header line")
        .iter()
        .position(|n| *n == b.name())
        .expect("the table must have a column for the dtype");
    let line = lines.find(|l| l[0] == a.name()).expect("the table must have a row for the dtype");
    DType::ALL.into_iter().find(|d| d.name() == line[column + 1]).expect("the table must contain only names of dtypes")
}

#[test]
fn tensors_promote_by_the_table() {
    for a in DType::ALL {
        for b in DType::ALL {
            let (x, y) = (Tensor::ones([2], a), Tensor::ones((), b));
            assert_eq!(a.promote(b), join(a, b));
            assert_eq!((&x * &y).dtype(), join(a, b), "{a} * {b}: a 0-d tensor must be promoted like any other tensor");
            assert_eq!(ops::concatenate(&[&x, &y.reshape(1)], 0).unwrap().dtype(), join(a, b));
        }
    }
}

#[test]
fn numbers_never_widen_a_tensor() {
    for dtype in DType::ALL {
        let x = Tensor::ones([2], dtype);
        let float = if dtype.is_float() { dtype } else { DType::F32 };
        let integer = if dtype == DType::Bool { DType::I64 } else { dtype };
        assert_eq!((&x * 1e300).dtype(), float);
        assert_eq!((2.5 * &x).dtype(), float);
        assert_eq!(x.mul(2.5f32).dtype(), float);
        assert_eq!((&x * 3).dtype(), integer);
        assert_eq!((3i64 * &x).dtype(), integer);
        assert_eq!((&x * true).dtype(), dtype);
        assert_eq!(x.gt(0.5).dtype(), DType::Bool);
    }
    assert_eq!((Tensor::from([1.0f32]) * 1e300).item::<f32>(), f32::INFINITY);
    assert_eq!((Tensor::from([100i8]) + 100).item::<i64>(), -56, "integers must wrap");
    // A number is rounded once, to the dtype of the computation: 0.1 is not widened from f32.
    assert_eq!((Tensor::from([1.0f64]) * 0.1).item::<f64>(), 0.1);
    assert_eq!((Tensor::from([i64::MAX - 1]) + 1).item::<i64>(), i64::MAX, "an addition of i64 must be exact");
}
