//! Writes in place on every device.

use crate::gpus;
use pellucid::prelude::*;

/// A write of no elements does not modify a saved value.
#[test]
fn a_write_of_no_elements_does_not_count() {
    type Write = fn(&Tensor);
    let writes: [(&str, Write); 7] = [
        ("a view", |x| x.i(1..1).copy_(&Tensor::from(5.0f32))),
        ("an empty slice", |x| x.set(2..2, 5.0)),
        ("an empty list", |x| x.set(Tensor::new(Vec::<i64>::new(), [0]), 5.0)),
        ("an empty mask", |x| x.set(Tensor::new(vec![false; x.shape()[0]], [x.shape()[0]]), 5.0)),
        ("rows without elements", |x| x.i((.., 0..0)).set(Tensor::from([0i64]), 5.0)),
        ("an update", |x| ops::update(formula!(|x| x + 1.0), &[&x.i(0..0)], &[], &[]).unwrap()),
        ("values of a view", |x| x.i(1..1).copy_(&Tensor::zeros([0, 2], DType::F32))),
    ];
    for device in gpus(15).into_iter().chain([Device::cpu()]) {
        for (name, write) in writes {
            let x = Tensor::from([[1.0f32, 2.0], [3.0, 4.0]]).to(device).detach();
            let weight = Tensor::ones([2, 2], DType::F32).to(device).detach().requires_grad_(true);
            let y = (&x * &weight).sum(..);
            write(&x);
            y.try_backward_with(BackwardOptions::default()).unwrap_or_else(|error| panic!("{name}, {device}: {error}"));
            assert_eq!(weight.grad().unwrap().to_vec::<f32>(), [1.0, 2.0, 3.0, 4.0], "{name}, {device}");
        }
        // A tensor without elements.
        let x = Tensor::zeros([0], DType::F32).to(device).detach();
        let weight = Tensor::zeros([0], DType::F32).to(device).detach().requires_grad_(true);
        let y = (&x * &weight).sum(..);
        x.copy_(&Tensor::from(1.0f32));
        y.try_backward_with(BackwardOptions::default())
            .unwrap_or_else(|error| panic!("no elements, {device}: {error}"));
        // A write of one element counts as a modification.
        let x = Tensor::from([1.0f32, 2.0]).to(device).detach();
        let weight = Tensor::ones([2], DType::F32).to(device).detach().requires_grad_(true);
        let y = (&x * &weight).sum(..);
        x.set(0, 5.0);
        let error = y.try_backward_with(BackwardOptions::default());
        assert!(matches!(error, Err(Error::SavedValueModified { .. })), "{device}: {error:?}");
    }
}

/// Views remain on the source device of a move, so a recorded write into the moved tensor would not reach them.
#[test]
fn a_recorded_write_into_a_moved_tensor_with_views_is_rejected() {
    for device in gpus(17) {
        let x = Tensor::from([1.0f32, 2.0]);
        let view = x.reshape([2, 1]);
        let tracked = Tensor::from([3.0f32, 4.0]).requires_grad_(true);
        x.to_(device);
        let source = tracked.to(device);
        let error = x.try_set(.., &source).unwrap_err();
        assert!(error.to_string().contains("moved to another device"), "{error}");
        assert!(view.try_set(0, 5.0 * &tracked.i(..1)).is_err());
        assert_eq!([x.to_vec::<f32>(), view.to_vec::<f32>()], [[1.0, 2.0]; 2]);
        {
            let _off = no_grad();
            x.set(.., &source);
        }
        assert_eq!([x.to_vec::<f32>(), view.to_vec::<f32>()], [[3.0, 4.0], [1.0, 2.0]]);
        // A tensor without views accepts recorded writes after a move.
        let x = Tensor::from([1.0f32, 2.0]);
        x.to_(device);
        x.set(.., &source);
        (&x * &x).sum(..).backward();
        assert_eq!(tracked.grad().unwrap().to_vec::<f32>(), [6.0, 8.0]);
    }
}
