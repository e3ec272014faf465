//! Operations without a gradient: untracked dtypes, and gradients that are zero.

use crate::support::{leaf, number};
use pellucid_tensor::{DType, Tensor};

#[test]
fn boolean_and_integer_results_are_untracked() {
    let x = leaf([0.5, -1.5, 2.0]);
    let results = [
        x.gt(0.0),
        x.eq(&x),
        x.isnan(),
        x.logical_not(),
        x.argmax(0),
        x.argmin(..),
        x.any(..),
        x.all(0),
        x.argsort(0, false),
        x.sort(0, true).1,
        x.topk(1, 0, true).1,
        x.to_dtype(DType::I32),
        x.to_dtype(DType::Bool),
    ];
    for (i, y) in results.iter().enumerate() {
        assert!(
            !y.requires_grad() && y.is_leaf() && y.creator().is_none() && !y.dtype().is_float(),
            "result {i} must be an untracked leaf without a float dtype"
        );
    }
}

#[test]
fn piecewise_constant_operations_have_gradient_zero() {
    let x = leaf([0.5, -1.5, 2.25]);
    let one = Tensor::from([1.0]);
    for y in [x.floor(), x.ceil(), x.round(), x.trunc(), x.sign(), x.floor_div(&one)] {
        assert!(y.requires_grad());
        x.zero_grad();
        y.backward();
        assert_eq!(x.grad().unwrap().to_vec::<f64>(), [0.0; 3]);
    }
}

#[test]
fn a_conversion_to_integers_cuts_the_gradient() {
    let x = number(2.5);
    let y = x.to_dtype(DType::I64).to_dtype(DType::F64);
    assert!(!y.requires_grad());
    (&x * y).backward();
    assert_eq!(x.grad().unwrap().item::<f64>(), 2.0);
}

#[test]
fn a_cast_between_floats_is_tracked() {
    let x = Tensor::from([1.5f32]).requires_grad_(true);
    let y = x.to_dtype(DType::F64).square();
    assert_eq!(y.dtype(), DType::F64);
    y.backward();
    assert_eq!((x.grad().unwrap().dtype(), x.grad().unwrap().item::<f32>()), (DType::F32, 3.0));
}
