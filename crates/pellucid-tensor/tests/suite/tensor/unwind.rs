//! Tensors remain usable after a caught panic.

use pellucid_tensor::{Array, BackwardOptions, Device, Tensor};
use std::panic::{RefUnwindSafe, UnwindSafe, catch_unwind};

const fn is_unwind_safe<T: UnwindSafe + RefUnwindSafe>() {}

const _: () = {
    is_unwind_safe::<Tensor>();
    is_unwind_safe::<Option<Vec<Tensor>>>();
    is_unwind_safe::<Array>();
    is_unwind_safe::<Device>();
    is_unwind_safe::<BackwardOptions>();
};

#[test]
fn a_tensor_remains_usable_after_a_panic() {
    let x = Tensor::from([1.0f32, 2.0]).requires_grad_(true);
    let y = x.square().sum(..);
    let fails = || drop(&x + Tensor::from([1.0f32, 2.0, 3.0]));
    assert!(catch_unwind(fails).is_err());
    // A panic in a hook, during a backward pass.
    let hook = x.register_hook(|_| panic!("in a hook"));
    assert!(catch_unwind(|| y.backward()).is_err());
    hook.remove();
    assert!(x.grad().is_none());
    x.square().sum(..).backward();
    assert_eq!(x.grad().unwrap().to_vec::<f32>(), [2.0, 4.0]);
    assert!(catch_unwind(|| x.set(5, 1.0)).is_err());
    assert_eq!(x.to_vec::<f32>(), [1.0, 2.0]);
}
