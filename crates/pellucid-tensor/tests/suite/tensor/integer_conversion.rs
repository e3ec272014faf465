//! Conversions to integers: values that the integer type cannot represent are errors, not rounded.

use pellucid_tensor::{DType, Error, Tensor, bf16, f16, ops};

#[track_caller]
fn rejected<T: std::fmt::Debug>(result: Result<T, Error>, op: &str, part: &str) {
    let error = result.expect_err("the call must return an error");
    assert!(matches!(&error, Error::InvalidArgument { op: own, .. } if *own == op), "{error}");
    assert!(error.to_string().contains(part), "{error}");
}

#[test]
fn reads_of_fractions_as_integers_are_errors() {
    let x = Tensor::from([1.0f32, -3.0, -0.0, 16_777_216.0]);
    assert_eq!(x.to_vec::<i64>(), [1, -3, 0, 16_777_216]);
    assert_eq!(Tensor::from([f16::from_f32(2048.0)]).item::<i16>(), 2048);
    assert_eq!(Tensor::from([bf16::from_f32(-7.0)]).item::<i8>(), -7);
    assert_eq!(Tensor::from([-(2f64.powi(63))]).item::<i64>(), i64::MIN);
    assert_eq!(Tensor::from([true, false]).to_vec::<u8>(), [1, 0]);
    assert_eq!(Tensor::from([300i64, -1]).to_vec::<i16>(), [300, -1]);
    assert_eq!(Tensor::zeros([0], DType::F32).to_vec::<i64>(), []);
    rejected(Tensor::from(0.5f32).try_item::<i64>(), "item", "element 0 is 0.5");
    rejected(Tensor::from([1.0f64, 0.5]).try_to_vec::<i64>(), "to_vec", "element 1 is 0.5");
    rejected(Tensor::from(f32::NAN).try_item::<i32>(), "item", "NaN");
    rejected(Tensor::from(f64::INFINITY).try_item::<i64>(), "item", "inf");
    rejected(Tensor::from(2f64.powi(63)).try_item::<i64>(), "item", "to_dtype()");
    rejected(Tensor::from([300i64]).try_item::<u8>(), "item", "300, which u8 cannot represent");
    rejected(Tensor::from([-1i32]).try_item::<u8>(), "item", "-1");
    rejected(Tensor::from([3e9f32]).try_item::<i32>(), "item", "3000000000");
    // to_dtype() truncates, and conversions to bool or to a float are not rejected.
    assert_eq!(Tensor::from([2.7f32, -2.7]).to_dtype(DType::I64).to_vec::<i64>(), [2, -2]);
    assert_eq!(Tensor::from([0.5f32, 0.0]).to_vec::<bool>(), [true, false]);
    assert_eq!(Tensor::from([(1i64 << 53) + 1]).item::<f64>(), 2f64.powi(53));
}

#[test]
fn writes_of_fractions_into_integers_are_errors() {
    let x = Tensor::from([1i64, 2, 3]);
    rejected(x.try_set(0, 2.7), "set", "2.7 cannot be stored in the tensor's dtype i64");
    rejected(x.try_set(x.gt(1), f64::NAN), "set", "NaN");
    rejected(Tensor::zeros([2], DType::U8).try_set(.., 300), "set", "300");
    rejected(Tensor::zeros([2], DType::U8).try_set(.., -1), "set", "-1");
    rejected(x.try_set(.., [1.0, 2.5, 3.0]), "set", "2.5 cannot be stored in the tensor's dtype i64; round it");
    rejected(x.try_set(.., [f64::NAN, 2.0, 3.0]), "set", "NaN");
    rejected(Tensor::zeros([2], DType::U8).try_set(.., vec![1, 300]), "set", "300 cannot be stored");
    rejected(Tensor::zeros([2, 2], DType::I8).try_set(.., [[1i64, 2], [3, -129]]), "set", "-129");
    rejected(ops::index_fill(&x, 0, &Tensor::from([0i64]), 2.7), "index_fill", "2.7");
    rejected(ops::masked_fill(&x, &x.gt(1), 2.7), "masked_fill", "2.7");
    assert_eq!(x.to_vec::<i64>(), [1, 2, 3], "a failed call must not change the tensor");
    x.set(0, 7.0);
    x.set(1, true);
    assert_eq!(x.to_vec::<i64>(), [7, 1, 3]);
    // A tensor is converted like `to_dtype`; a float element holds the nearest value, a boolean `value != 0`.
    x.set(2, Tensor::from(9.9f32));
    assert_eq!(x.to_vec::<i64>(), [7, 1, 9]);
    let (half, mask) = (Tensor::zeros([1], DType::F16), Tensor::from([false]));
    half.set(0, 2.7);
    mask.set(0, 0.5);
    assert_eq!((half.item::<f32>(), mask.item::<bool>()), (2.6992188, true));
}

#[test]
fn errors_of_loss_targets_name_the_expected_kind() {
    let logits = Tensor::zeros([2, 3], DType::F32);
    let options = ops::CrossEntropyOptions::default;
    let error = ops::cross_entropy(&logits, &Tensor::from([0.0f32, 1.0]), options()).unwrap_err();
    assert!(matches!(error, Error::ShapeMismatch { .. }));
    assert!(error.to_string().contains("class indices are integers") && error.to_string().contains("I64"), "{error}");
    let ignoring = ops::CrossEntropyOptions { ignore_index: Some(-100), ..options() };
    let error = ops::cross_entropy(&logits, &Tensor::from([0.0f32, 1.0]), ignoring).unwrap_err();
    assert!(error.to_string().contains("class indices are integers"), "{error}");
    let classes = Tensor::from([0i64, -100]);
    for error in [
        ops::cross_entropy(&logits, &classes, options()).unwrap_err(),
        ops::nll_loss(&logits, &classes, ops::NllLossOptions::default()).unwrap_err(),
    ] {
        assert!(matches!(error, Error::IndexOutOfBounds { index: -100, .. }));
        assert!(error.to_string().contains("ignore_index"), "{error}");
    }
    let beyond = ops::cross_entropy(&logits, &Tensor::from([0i64, 3]), options()).unwrap_err().to_string();
    assert!(beyond.contains("index 3") && !beyond.contains("ignore_index"), "{beyond}");
    assert!(ops::cross_entropy(&logits, &classes, ignoring).unwrap().item::<f32>().is_finite());
}
