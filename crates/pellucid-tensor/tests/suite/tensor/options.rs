//! Creation of tensors with options.

use crate::support::panic_of;
use pellucid_tensor::{DType, Device, Error, Tensor, TensorOptions, bf16, lazy};

#[test]
fn one_call_sets_dtype_device_and_gradient() {
    let options =
        TensorOptions { dtype: Some(DType::BF16), device: Some(Device::cpu()), requires_grad: true, retain_grad: true };
    let x = Tensor::with_options([[1, 2], [3, 4]], options);
    assert_eq!((x.dtype(), x.device(), &x.shape()[..]), (DType::BF16, Device::cpu(), &[2, 2][..]));
    assert!(x.is_leaf() && x.requires_grad() && x.retains_grad() && !x.is_free());
    assert_eq!(x.to_vec::<bf16>(), [1.0, 2.0, 3.0, 4.0].map(bf16::from_f32));
    (&x * &x).sum(..).backward();
    assert_eq!(x.grad().unwrap().to_vec::<f64>(), [2.0, 4.0, 6.0, 8.0]);
    let plain = Tensor::with_options(vec![1.5f32], TensorOptions::default());
    assert!(plain.is_free() && !plain.requires_grad() && !plain.retains_grad() && plain.dtype() == DType::F32);
}

#[test]
fn a_tensor_is_detached_and_shares_its_storage() {
    let x = Tensor::from([1.0, 2.0]).requires_grad_(true);
    let y = &x * 2.0;
    let options = TensorOptions { requires_grad: true, device: Some(Device::cpu()), ..Default::default() };
    let z = Tensor::with_options(y.clone(), options);
    assert!(z.is_leaf() && z.requires_grad() && z.id() != y.id() && z.storage_id() == y.storage_id());
    z.sum(..).backward();
    assert!(x.grad().is_none() && z.grad().is_some());
    let copied =
        lazy(|| Tensor::try_with_options(y.clone(), TensorOptions { dtype: Some(DType::F32), ..options })).unwrap();
    assert_eq!((copied.dtype(), copied.to_vec::<f64>()), (DType::F32, vec![2.0, 4.0]));
}

#[test]
fn a_written_leaf_keeps_its_gradient_if_it_was_created_so() {
    for retain_grad in [true, false] {
        let buffer = Tensor::with_options([0.0, 0.0], TensorOptions { retain_grad, ..Default::default() });
        let x = Tensor::from(3.0).requires_grad_(true);
        buffer.set(0, &x);
        (&buffer * Tensor::from([10.0, 100.0])).sum(..).backward();
        assert_eq!(x.grad().unwrap().item::<f64>(), 10.0);
        let kept = buffer.grad().map(|g| g.to_vec::<f64>());
        assert_eq!(kept, retain_grad.then(|| vec![10.0, 100.0]));
    }
}

#[test]
fn integers_cannot_require_a_gradient() {
    let options = TensorOptions { requires_grad: true, ..Default::default() };
    assert!(matches!(Tensor::try_with_options([1, 2], options), Err(Error::DTypeMismatch { op: "requires_grad", .. })));
    assert!(panic_of(|| Tensor::with_options([1, 2], options)).contains("requires_grad"));
}
