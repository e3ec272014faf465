//! No operation reads or writes out of bounds, for any value of an index.

use crate::support::payload_of;
use pellucid_tensor::ops::{self, CrossEntropyOptions, PoolOptions};
use pellucid_tensor::{DType, Error, Result, Tensor};

/// Indices far outside an axis of length three, and directly beyond its ends.
const WRONG: [i64; 8] = [3, -4, 1 << 31, -(1 << 31), 1 << 32, i64::MAX - 1, i64::MAX, i64::MIN];

#[track_caller]
fn rejected<T>(index: i64, result: Result<T>) {
    match result {
        Err(Error::IndexOutOfBounds { index: named, len, .. }) => assert_eq!((named, len), (index, 3)),
        Err(other) => panic!("{index}: unexpected error: {other}"),
        Ok(_) => panic!("the call with index {index} must return an error"),
    }
}

fn line() -> Tensor {
    Tensor::from([1.0, 2.0, 3.0])
}

#[test]
fn reads_by_index() {
    for wrong in WRONG {
        let at = Tensor::from([0, wrong, 1]);
        rejected(wrong, ops::index_select(&line(), 0, &at));
        rejected(wrong, ops::take_along_axis(&line(), &at, 0));
        rejected(wrong, ops::take(&line(), &at));
        rejected(wrong, line().try_i(&at));
        rejected(wrong, ops::select(&line(), 0, wrong as isize));
        rejected(wrong, line().try_i(wrong as isize));
    }
}

#[test]
fn the_ends_are_in_bounds() {
    let at = Tensor::from([-3i64, 2, -1, 0]);
    assert_eq!(line().index_select(0, &at).to_vec::<f64>(), [1.0, 3.0, 3.0, 1.0]);
    assert_eq!(line().take_along_axis(&at, 0).to_vec::<f64>(), [1.0, 3.0, 3.0, 1.0]);
    assert_eq!(line().take(&at).to_vec::<f64>(), [1.0, 3.0, 3.0, 1.0]);
    assert_eq!(line().select(0, -3).item::<f64>(), 1.0);
}

#[test]
fn writes_by_index() {
    let one = Tensor::from([7.0, 8.0, 9.0]);
    for wrong in WRONG {
        let at = Tensor::from([0, wrong, 1]);
        rejected(wrong, ops::scatter(&line(), 0, &at, &one));
        rejected(wrong, ops::scatter_add(&line(), 0, &at, &one));
        rejected(wrong, ops::scatter_add_along(&one, &at, 0, 3));
        let positions = at.reshape([1, 1, 3]);
        rejected(wrong, ops::max_unpool1d(&one.reshape([1, 1, 3]), &positions, &[3]));
    }
}

#[test]
fn a_rejected_assignment_writes_nothing() {
    for wrong in WRONG {
        let x = line();
        let payload = payload_of(|| x.set(Tensor::from([0, wrong]), 7.0));
        let error = payload.downcast_ref::<Error>().map(|e| e.to_string());
        let error = error
            .or_else(|| payload.downcast_ref::<String>().cloned())
            .expect("the payload of the panic must be a string");
        assert!(error.contains(&wrong.to_string()), "{error}");
        assert_eq!(x.to_vec::<f64>(), [1.0, 2.0, 3.0]);
    }
}

#[test]
fn narrowed_ranges() {
    for (start, len) in [(0, 4), (3, 1), (4, 0), (usize::MAX, 1), (1, usize::MAX), (usize::MAX, usize::MAX)] {
        let result = ops::narrow(&line(), 0, start, len);
        assert!(matches!(result, Err(Error::IndexOutOfBounds { .. })), "{start}, {len}: {result:?}");
    }
    assert_eq!(line().narrow(0, 3, 0).size(), 0);
    assert!(ops::split(&line(), [usize::MAX, 4], 0).is_err());
}

#[test]
fn axis_arguments() {
    for axis in [1, -2, isize::MAX, isize::MIN] {
        let rejected = |result: Result<Tensor>| matches!(result, Err(Error::AxisOutOfRange { .. }));
        assert!(rejected(ops::sum(&line(), axis)), "sum over the invalid axis {axis} must be an error");
        assert!(rejected(ops::softmax(&line(), axis)), "softmax over the invalid axis {axis} must be an error");
        assert!(rejected(ops::cumsum(&line(), axis)), "cumsum along the invalid axis {axis} must be an error");
        assert!(rejected(ops::select(&line(), axis, 0)), "select along the invalid axis {axis} must be an error");
        assert!(
            rejected(ops::index_select(&line(), axis, &Tensor::from([0i64]))),
            "index_select along the invalid axis {axis} must be an error"
        );
        assert!(
            rejected(ops::sort(&line(), axis, false).map(|(values, _)| values)),
            "sort along the invalid axis {axis} must be an error"
        );
        assert!(
            rejected(ops::concatenate(&[&line()], axis)),
            "concatenate along the invalid axis {axis} must be an error"
        );
        assert!(rejected(ops::flip(&line(), axis)), "flip along the invalid axis {axis} must be an error");
    }
}

#[test]
fn class_indices() {
    for wrong in WRONG {
        let one = ops::one_hot(&Tensor::from([wrong, 1]), 3).unwrap();
        assert_eq!(one.to_vec::<i64>(), [0, 0, 0, 0, 1, 0], "one_hot must give zeros for the invalid class {wrong}");
        let logits = Tensor::from([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]]);
        let loss = ops::cross_entropy(&logits, &Tensor::from([0, wrong]), CrossEntropyOptions::default());
        assert!(
            matches!(loss, Err(Error::IndexOutOfBounds { .. })),
            "the invalid class {wrong} must be an error, got {loss:?}"
        );
    }
}

#[test]
fn windows_stay_inside() {
    let image = Tensor::ones([1, 1, 3], DType::F64);
    for size in [4, usize::MAX] {
        assert!(ops::max_pool1d(&image, PoolOptions::new(size)).is_err());
        assert!(ops::avg_pool1d(&image, PoolOptions::new(size), Default::default()).is_err());
        assert!(ops::unfold(&image, ops::FoldOptions::new(size), 1).is_err());
        assert!(ops::windows(&image, 2, size, 1).is_err());
    }
    assert!(ops::max_pool1d(&image, PoolOptions { dilation: usize::MAX.into(), ..PoolOptions::new(2) }).is_err());
    // A window that begins in the padding, and one that extends beyond the end, use only the elements inside.
    let line = Tensor::from([[[-1.0, -2.0, -3.0]]]);
    let (values, positions) = line.max_pool1d(PoolOptions { padding: 1.into(), ceil: true, ..PoolOptions::new(2) });
    assert_eq!((values.to_vec::<f64>(), positions.to_vec::<i64>()), (vec![-1.0, -2.0], vec![0, 1]));
}

#[test]
fn an_index_into_an_empty_tensor_is_checked() {
    let rejected = ops::index_select(&Tensor::zeros([0, 3], DType::F32), 1, &Tensor::from([7i64])).unwrap_err();
    assert!(matches!(rejected, Error::IndexOutOfBounds { index: 7, axis: 1, len: 3, .. }), "{rejected}");
}

#[test]
fn a_stride_beyond_the_image_costs_nothing() {
    let x = Tensor::from([[[1.0f32, 2.0, 3.0]]]).requires_grad_(true);
    let huge = 1 << 30;
    let y = ops::avg_pool1d(&x, PoolOptions { stride: Some(huge.into()), ..PoolOptions::new(2) }, Default::default())
        .unwrap();
    let w = Tensor::from([[[2.0f32, 3.0]]]);
    let z = ops::conv1d(&x, &w, None, ops::ConvOptions { stride: huge.into(), ..Default::default() }).unwrap();
    (y + z).sum(..).backward();
    assert_eq!(x.grad().unwrap().to_vec::<f32>(), [2.5, 3.5, 0.0]);
    let one = x.narrow(2, 0, 1);
    let up =
        ops::conv_transpose1d(&one, &w, None, ops::ConvOptions { stride: huge.into(), ..Default::default() }).unwrap();
    assert_eq!(up.to_vec::<f32>(), [2.0, 3.0]);
}
