//! Creation of tensors.

use crate::support::panic_of;
use pellucid_tensor::{DType, Error, Tensor, bf16, capture, f16, ops};

#[test]
fn nested_arrays_give_their_shape_and_dtype() {
    let x = Tensor::from([[1.0f32, 2.0, 3.0], [4.0, 5.0, 6.0]]);
    assert_eq!((&x.shape()[..], x.dtype(), x.rank(), x.size()), (&[2, 3][..], DType::F32, 2, 6));
    assert_eq!(x.to_vec::<f32>(), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    assert!(x.is_leaf() && !x.requires_grad());
    assert_eq!(Tensor::from(2.5).shape()[..], []);
    assert_eq!(Tensor::from([[[true]; 2]; 0]).shape()[..], [0, 2, 1]);
    let dtypes = [
        Tensor::from([true]).dtype(),
        Tensor::from([1u8]).dtype(),
        Tensor::from([1i8]).dtype(),
        Tensor::from([1i16]).dtype(),
        Tensor::from([1i32]).dtype(),
        Tensor::from([1i64]).dtype(),
        Tensor::from([f16::ONE]).dtype(),
        Tensor::from([bf16::ONE]).dtype(),
        Tensor::from([1f32]).dtype(),
        Tensor::from([1f64]).dtype(),
    ];
    assert_eq!(dtypes, DType::ALL);
}

#[test]
fn slices_fill_a_shape_or_are_rejected() {
    let data = vec![1i64, 2, 3, 4, 5, 6];
    assert_eq!(Tensor::new(&data, [3, 2]).i((2, 0)).item::<i64>(), 5);
    assert_eq!(Tensor::new(&data[..2], 2).to_vec::<i64>(), [1, 2]);
    assert_eq!(Tensor::from(&data[1..3]).to_vec::<i64>(), [2, 3]);
    let vector = Tensor::from(data.clone());
    assert_eq!((&vector.shape()[..], vector.dtype(), vector.to_vec::<i64>()), (&[6][..], DType::I64, data.clone()));
    assert_eq!(Tensor::from(Vec::<bool>::new()).shape()[..], [0]);
    assert!(panic_of(|| Tensor::new(data.clone(), [4, 2])).contains("do not fill shape [4, 2]"));
    assert!(panic_of(|| Tensor::zeros([usize::MAX, 4], DType::F32)).contains("out of memory"));
}

#[test]
fn bytes_round_trip() {
    let x = Tensor::from([[1.5f32, -2.0], [f32::NAN, 0.0]]);
    let y = Tensor::from_bytes(&x.to_bytes(), DType::F32, [2, 2]);
    assert_eq!(x.to_bytes(), y.to_bytes());
    assert_eq!(x.t().to_bytes()[4..8], f32::NAN.to_ne_bytes());
    assert!(Tensor::try_from_bytes(&[0; 5], DType::F32, 1).is_err());
    assert!(
        Tensor::try_from_bytes(&[2], DType::Bool, 1).is_err(),
        "a byte of a boolean that is neither 0 nor 1 must be an error"
    );
}

#[test]
fn ranges_count_as_numpy_does() {
    assert_eq!(Tensor::arange(0i64, 5, 2).to_vec::<i64>(), [0, 2, 4]);
    assert_eq!(Tensor::arange(5i64, 0, -2).to_vec::<i64>(), [5, 3, 1]);
    assert_eq!(Tensor::arange(0i32, -3, 1).size(), 0);
    assert_eq!(Tensor::arange(3i8, 6, 1).dtype(), DType::I8);
    assert_eq!(Tensor::arange(0.0f64, 1.0, 0.3).to_vec::<f64>(), [0.0, 0.3, 0.6, 3.0 * 0.3]);
    assert_eq!(Tensor::arange(1.0f32, 0.0, -0.25).to_vec::<f32>(), [1.0, 0.75, 0.5, 0.25]);
    assert_eq!(Tensor::arange(i64::MIN, i64::MAX, i64::MAX).to_vec::<i64>(), [i64::MIN, -1, i64::MAX - 1]);
    assert_eq!(
        Tensor::arange(6i64, 0, -2).to_vec::<i64>(),
        [6, 4, 2],
        "the end must be exclusive with a negative step too"
    );
    assert_eq!(Tensor::arange(i64::MAX, i64::MIN, i64::MIN).to_vec::<i64>(), [i64::MAX, -1]);
    for (step, len) in [(1i64, 7), (2, 4), (3, 3), (6, 2), (7, 1), (8, 1)] {
        assert_eq!(Tensor::arange(0, 7, step).size(), len, "wrong number of elements for step {step}");
        assert_eq!(Tensor::arange(7, 0, -step).size(), len, "wrong number of elements for step -{step}");
    }
    assert!(panic_of(|| Tensor::arange(0i64, 5, 0)).starts_with("arange"));
    assert!(panic_of(|| Tensor::arange(0.0, f64::INFINITY, 1.0)).starts_with("arange"));
    assert!(panic_of(|| Tensor::arange(0.0, 1.0, f64::NAN)).starts_with("arange"));
}

/// A kernel computes long ranges. Its elements and its length equal those of short ranges.
#[test]
fn long_ranges_have_the_elements_of_short_ones() {
    for count in [16_383i64, 16_384, 16_385, 20_000, 50_000] {
        let expected = |start: i64, step: i64| (0..count).map(move |i| start + i * step);
        let range = Tensor::arange(7i64, 7 - 3 * count, -3);
        assert_eq!((&range.shape()[..], range.to_vec::<i64>()), (&[count as usize][..], expected(7, -3).collect()));
        assert_eq!(Tensor::arange(0i32, count as i32, 1).to_vec::<i64>(), expected(0, 1).collect::<Vec<_>>());
        let tenths = |i: i64| -1.5 + i as f64 * 0.1;
        let range = |dtype| ops::arange(-1.5, tenths(count) - 0.05, 0.1, dtype).unwrap();
        assert_eq!(range(DType::F64).to_vec::<f64>(), (0..count).map(tenths).collect::<Vec<_>>());
        assert_eq!(range(DType::F32).to_vec::<f32>(), (0..count).map(|i| tenths(i) as f32).collect::<Vec<_>>());
        assert!(range(DType::F16).is_contiguous());
    }
    let x = Tensor::from([1i64]);
    let mut step = capture(|inputs| &inputs[0] + Tensor::arange(0i64, 20_000, 1), &[&x]).unwrap();
    let sum = step.launch(&[&x]).unwrap().to_vec::<i64>(0);
    assert_eq!(sum, (1..=20_000).collect::<Vec<i64>>());
}

#[test]
fn linspace_hits_both_ends() {
    assert_eq!(Tensor::linspace(0.0, 1.0, 5, DType::F64).to_vec::<f64>(), [0.0, 0.25, 0.5, 0.75, 1.0]);
    assert_eq!(Tensor::linspace(2.0, 3.0, 1, DType::F32).to_vec::<f32>(), [2.0]);
    assert_eq!(Tensor::linspace(2.0, 3.0, 0, DType::F32).size(), 0);
    let x = Tensor::linspace(0.1, 0.7, 1001, DType::F64).to_vec::<f64>();
    assert_eq!((x[0], x[1000]), (0.1, 0.7));
    let full_range = Tensor::linspace(-f64::MAX, f64::MAX, 3, DType::F64).to_vec::<f64>();
    assert_eq!(full_range, [-f64::MAX, 0.0, f64::MAX], "linspace must not overflow if the difference of the ends does");
    assert!(panic_of(|| Tensor::linspace(0.0, 1.0, 3, DType::I64)).contains("is not supported"));
}

#[test]
fn constants_and_the_identity() {
    assert_eq!(Tensor::eye(2, DType::I8).to_vec::<i64>(), [1, 0, 0, 1]);
    assert_eq!(Tensor::eye(0, DType::F32).shape()[..], [0, 0]);
    assert_eq!(Tensor::full([2], 7, DType::F16).to_vec::<f32>(), [7.0, 7.0]);
    assert_eq!(Tensor::scalar(3, DType::F64).item::<f64>(), 3.0);
    assert_eq!(Tensor::full([3], 2, DType::Bool).to_vec::<bool>(), [true; 3]);
}

#[test]
fn reading_converts_and_checks() {
    let x = Tensor::from([1.75f64, -2.5]);
    assert_eq!(x.to_dtype(DType::I64).to_vec::<i64>(), [1, -2]);
    assert_eq!(x.to_vec::<bool>(), [true, true]);
    assert!(matches!(x.try_item::<f64>(), Err(Error::NotAScalar { op: "item", .. })));
    assert!(matches!(Tensor::zeros([0], DType::F32).try_item::<f32>(), Err(Error::NotAScalar { .. })));
    assert_eq!(Tensor::from([[4i64]]).item::<f32>(), 4.0);
}
