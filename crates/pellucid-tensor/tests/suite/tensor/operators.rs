//! Operators between tensors and numbers, by value and by reference.

use pellucid_tensor::{DType, Tensor};

#[test]
fn every_form_of_every_operator() {
    let (a, b) = (Tensor::from([7i64, -7, 6]), Tensor::from([2i64, 2, 4]));
    assert_eq!((&a + &b).to_vec::<i64>(), [9, -5, 10]);
    assert_eq!((&a - &b).to_vec::<i64>(), [5, -9, 2]);
    assert_eq!((&a * &b).to_vec::<i64>(), [14, -14, 24]);
    assert_eq!((&a / &b).to_vec::<f32>(), [3.5, -3.5, 1.5]);
    assert_eq!((&a % &b).to_vec::<i64>(), [1, 1, 2], "the remainder must have the sign of the divisor, as in Python");
    assert_eq!((-&a).to_vec::<i64>(), [-7, 7, -6]);
    assert_eq!((!&a).to_vec::<i64>(), [-8, 6, -7]);
    assert_eq!((&a & &b).to_vec::<i64>(), [7 & 2, -7 & 2, 6 & 4]);
    assert_eq!((&a | &b).to_vec::<i64>(), [7 | 2, -7 | 2, 6 | 4]);
    assert_eq!((&a ^ &b).to_vec::<i64>(), [7 ^ 2, -7 ^ 2, 6 ^ 4]);
    assert_eq!((!Tensor::from([true, false])).to_vec::<bool>(), [false, true]);

    assert_eq!((&a + 1).to_vec::<i64>(), [8, -6, 7]);
    assert_eq!((1 - &a).to_vec::<i64>(), [-6, 8, -5]);
    assert_eq!((10i64 * &b).to_vec::<i64>(), [20, 20, 40]);
    assert_eq!((1.0 / Tensor::from([4.0])).item::<f64>(), 0.25);
    assert_eq!((a.clone() + b.clone() + &a + 1).to_vec::<i64>(), [17, -11, 17]);
    assert_eq!([Tensor::from([1.0]), Tensor::from([2.0])].into_iter().sum::<Tensor>().item::<f64>(), 3.0);
}

/// An operator may reuse the memory of a temporary, but not of a tensor that another handle shares.
#[test]
fn operands_passed_by_value_do_not_change_for_other_handles() {
    let x = Tensor::from([1.0, 2.0]);
    let (kept, view) = (x.clone(), x.i(0..1));
    let y = x + 1.0;
    assert_eq!((kept.to_vec::<f64>(), view.to_vec::<f64>()), (vec![1.0, 2.0], vec![1.0]));
    let before = y.array().storage().clone();
    let z = y.detach() * 2.0;
    assert_eq!(y.to_vec::<f64>(), [2.0, 3.0], "an operator must not overwrite the storage of a detached handle");
    assert_eq!(z.to_vec::<f64>(), [4.0, 6.0]);
    drop((y, before));
    let wide = Tensor::ones([3], DType::F64);
    assert_eq!((wide + Tensor::ones([2, 1], DType::F64)).shape()[..], [2, 3]);
}

/// A saved operand that was passed by value keeps its elements for backward.
#[test]
fn a_saved_temporary_is_not_overwritten() {
    let x = Tensor::from([0.5f64]).requires_grad_(true);
    let y = (&x * 2.0).exp() + 1.0;
    let z = y * (&x * 3.0) * (&x + 1.0);
    z.backward();
    let (e, v) = (1f64.exp(), 0.5);
    // z = (e^{2x} + 1)·3x·(x + 1)
    let expected = 2.0 * e * 3.0 * v * (v + 1.0) + (e + 1.0) * 3.0 * (2.0 * v + 1.0);
    crate::support::assert_close(&x.grad().unwrap(), &[expected]);
}
