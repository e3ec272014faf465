//! The device of gradients: each is on the device of its tensor, even if the tensor moves before the backward pass.

use crate::{gpus, pinned};
use pellucid::nn::optim::Optimizer;
use pellucid::prelude::*;
use pellucid::{
    autograd::{Arrays, NeedsInputGrad, SavedTensors},
    engine::Array,
};
use pellucid::{
    autograd::{InputGradients, Operation, OutputGradients, SaveForBackward, apply_one},
    checkpoint,
};

fn model() -> (Parameter, Sgd) {
    let weight = Parameter::new(Tensor::from([1.0f32, 2.0]));
    let optimizer = Sgd::new(vec![weight.clone()], SgdOptions { lr: 0.5, ..Default::default() });
    (weight, optimizer)
}

/// Returns the device and the values of a gradient.
fn gradient(x: &Tensor) -> (Device, Vec<f32>) {
    let gradient = x.grad().unwrap();
    (gradient.device(), gradient.to_vec())
}

#[test]
fn a_parameter_may_move_between_forward_and_backward() {
    for device in gpus(14) {
        for (from, to) in [(Device::cpu(), device), (device, Device::cpu())] {
            let (weight, optimizer) = model();
            weight.to_(from);
            let loss = weight.square().sum(..);
            weight.to_(to);
            loss.backward();
            assert_eq!(gradient(&weight), (to, vec![2.0, 4.0]));
            optimizer.step();
            assert_eq!((weight.device(), weight.to_vec::<f32>()), (to, vec![0.0, 0.0]));
        }
    }
}

#[test]
fn gradients_of_a_parameter_that_moves_are_added() {
    for device in gpus(14) {
        let (weight, _optimizer) = model();
        let on_cpu = weight.square().sum(..);
        let again = BackwardOptions { retain_graph: true, ..Default::default() };
        on_cpu.backward_with(again.clone());
        weight.to_(device);
        on_cpu.backward_with(again.clone());
        assert_eq!(gradient(&weight), (device, vec![4.0, 8.0]));
        // One backward pass with contributions from both devices.
        let on_device = (&*weight * 3.0).sum(..);
        (on_cpu.to(device) + on_device).backward_with(again.clone());
        assert_eq!(gradient(&weight), (device, vec![9.0, 15.0]));
        weight.to_(Device::cpu());
        assert_eq!(gradient(&weight), (Device::cpu(), vec![9.0, 15.0]));
        // The parameter is again on the device of the forward computation.
        on_cpu.backward();
        assert_eq!(gradient(&weight), (Device::cpu(), vec![11.0, 19.0]));
    }
}

#[test]
fn gradients_of_a_moved_leaf_have_every_order() {
    for device in gpus(14) {
        let x = Tensor::from([1.5f32]).requires_grad_(true);
        let y = x.cube();
        x.to_(device);
        let options = GradOptions { create_graph: true, ..GradOptions::default() };
        let mut derivative = y.sum(..);
        for (order, expected) in [3.0 * 2.25, 6.0 * 1.5, 6.0, 0.0].into_iter().enumerate() {
            derivative = grad(&[&derivative.sum(..)], &[&x], options.clone()).unwrap().remove(0);
            assert_eq!((derivative.device(), derivative.item::<f32>()), (device, expected), "order {}", order + 1);
        }
    }
}

#[test]
fn constant_gradients_of_inputs_on_several_devices_are_differentiable() {
    for device in gpus(14) {
        let x = Tensor::from([1.0f32, 2.0]).requires_grad_(true);
        let y = pinned(&[3.0, 4.0], device).detach().requires_grad_(true);
        let options = GradOptions { create_graph: true, ..GradOptions::default() };
        let sum = x.to(device).sum(..) + y.sum(..);
        for first in grad(&[&sum], &[&x, &y], options).unwrap() {
            let second = grad(&[&first.sum(..)], &[&x, &y], GradOptions { retain_graph: true, ..Default::default() });
            let second: Vec<(Device, Vec<f32>)> = second.unwrap().iter().map(|g| (g.device(), g.to_vec())).collect();
            assert_eq!(second, [(Device::cpu(), vec![0.0, 0.0]), (device, vec![0.0, 0.0])]);
        }
    }
}

/// A free gradient of a hook is copied to the device of its tensor. A pinned one is rejected, as in other operations.
#[test]
fn a_gradient_of_a_hook_is_on_the_device_of_its_tensor() {
    for device in gpus(14) {
        let backward = |is_leaf: bool, returned: Tensor| {
            let x = pinned(&[1.0, 2.0], device).detach().requires_grad_(true);
            let y = &x * 3.0;
            y.retain_grad();
            let hook = move |_: &Tensor| Some(returned.clone());
            let _handle = if is_leaf { x.register_hook(hook) } else { y.register_hook(hook) };
            let done = y.sum(..).try_backward_with(BackwardOptions::default());
            done.map(|()| (gradient(&x), gradient(&y)))
        };
        let free = Tensor::from([5.0f32, 7.0]);
        let on = |values: [f32; 2]| (device, values.to_vec());
        assert_eq!(backward(true, free.clone()).unwrap(), (on([5.0, 7.0]), on([1.0, 1.0])));
        assert_eq!(backward(false, free.clone()).unwrap(), (on([15.0, 21.0]), on([5.0, 7.0])));
        for is_leaf in [true, false] {
            let error = backward(is_leaf, pinned(&[5.0, 7.0], Device::cpu())).unwrap_err();
            let text = format!("hook: tensors on different devices ({device}, cpu); move one with to(device)");
            assert_eq!(error.to_string(), text);
        }
        assert_eq!(free.to_vec::<f32>(), [5.0, 7.0]);
    }
}

/// An operation whose `backward` returns a stored tensor.
struct WithGradient(Tensor);

impl Operation for WithGradient {
    fn name(&self) -> &'static str {
        "with_gradient"
    }

    fn forward(&self, inputs: &[&Array], _: &mut SaveForBackward) -> Result<Arrays> {
        Ok([inputs[0].copy()?].into_iter().collect())
    }

    fn backward(&self, _: &SavedTensors, _: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        Ok([Some(self.0.clone())].into_iter().collect())
    }
}

#[test]
fn a_gradient_of_a_custom_operation_is_on_the_device_of_its_input() {
    for device in gpus(14) {
        let backward = |of_leaf: bool, returned: &Tensor| {
            let x = pinned(&[1.0, 2.0], device).detach().requires_grad_(true);
            let input = if of_leaf { x.clone() } else { &x * 3.0 };
            let y = apply_one(WithGradient(returned.clone()), &[&input]).unwrap();
            y.sum(..).try_backward_with(BackwardOptions::default()).map(|()| gradient(&x))
        };
        let free = Tensor::from([5.0f32, 7.0]);
        assert_eq!(backward(true, &free).unwrap(), (device, vec![5.0, 7.0]));
        assert_eq!(backward(false, &free).unwrap(), (device, vec![15.0, 21.0]));
        for of_leaf in [true, false] {
            let error = backward(of_leaf, &pinned(&[5.0, 7.0], Device::cpu())).unwrap_err();
            assert!(matches!(error, Error::DeviceMismatch { op: "with_gradient", .. }), "{error}");
        }
    }
}

#[test]
fn a_gradient_that_the_user_sets_is_on_the_device_of_its_tensor() {
    for device in gpus(14) {
        let x = pinned(&[1.0, 2.0], device).detach().requires_grad_(true);
        x.set_grad(Some(Tensor::from([3.0f32, 4.0])));
        assert_eq!(gradient(&x), (device, vec![3.0, 4.0]));
        x.to_(Device::cpu());
        x.set_grad(Some(Tensor::from([5.0f32, 6.0])));
        (&x * 2.0).sum(..).backward();
        assert_eq!(gradient(&x), (Device::cpu(), vec![7.0, 8.0]));
        let y = pinned(&[1.0, 2.0], device).detach().requires_grad_(true);
        let wrong = std::panic::catch_unwind(|| y.set_grad(Some(pinned(&[3.0, 4.0], Device::cpu()))));
        let text = format!("set_grad: tensors on different devices (cpu, {device}); move one with to(device)");
        assert_eq!(wrong.unwrap_err().downcast_ref(), Some(&text));
    }
}

#[test]
fn a_checkpoint_rejects_inputs_that_have_moved() {
    for device in gpus(14) {
        let weight = Parameter::new(Tensor::from([1.0f32, 2.0]));
        let y = checkpoint(|inputs: &[Tensor]| Ok(vec![inputs[0].square()]), &[&weight]).unwrap().remove(0);
        weight.to_(device);
        let error = y.sum(..).try_backward_with(BackwardOptions::default()).unwrap_err();
        let text = format!("moved from cpu to {device} after the forward computation; call backward() before the move");
        assert!(error.to_string().contains(&text), "{error}");
        // Where it was, the checkpoint is valid again.
        weight.to_(Device::cpu());
        let y = checkpoint(|inputs: &[Tensor]| Ok(vec![inputs[0].square()]), &[&weight]).unwrap().remove(0);
        y.sum(..).backward();
        assert_eq!(gradient(&weight), (Device::cpu(), vec![2.0, 4.0]));
    }
}
