//! Names, free and pinned tensors, and the device of results and gradients.

use crate::backend::ToyDriver;
use crate::{pinned, toy};
use pellucid::prelude::*;
use pellucid::{
    autograd::{
        Arrays, InputGradients, NeedsInputGrad, Operation, OutputGradients, SaveForBackward, SavedTensors, apply_one,
    },
    engine::Array,
};

/// Computes x += y.
fn add_in_place(x: &Tensor, y: &Tensor) -> Result<()> {
    ops::update(formula!(|x, y| x + y), &[x], &[y], &[])
}

#[test]
fn devices_are_found_by_name() {
    let (first, second) = (toy(0), toy(1));
    assert_eq!("cpu".parse::<Device>().unwrap(), Device::cpu());
    assert_eq!("cpu:0".parse::<Device>().unwrap(), Device::cpu());
    // With the feature `cuda` or `wgpu`, a GPU of the machine may come first.
    if cfg!(not(any(feature = "cuda", feature = "wgpu"))) {
        assert_eq!("gpu".parse::<Device>().unwrap(), first);
        assert_eq!("gpu:1".parse::<Device>().unwrap(), second);
        assert_eq!((Device::gpu().unwrap(), Device::best()), (first, first));
    }
    assert_eq!("toy".parse::<Device>().unwrap(), first);
    assert_ne!(first, second);
    assert_eq!((first.name(), first.index(), second.name(), second.index()), ("toy:0", 0, "toy:1", 1));
    assert!(first.is_gpu() && !first.is_cpu() && Device::cpu().is_cpu() && !Device::cpu().is_gpu());
    for name in ["cpu", "gpu", "toy", "toy:7"] {
        assert!(Device::is_available(name), "{name}");
    }
    for name in
        ["cpu:1", "abacus", "abacus:0", "", ":", "toy:", "toy:x", "toy:-1", "toy:0:0", "gpu:99999999999999999999"]
    {
        assert!(!Device::is_available(name), "{name}");
        let error = name.parse::<Device>().unwrap_err();
        assert!(matches!(error, Error::DeviceUnavailable { .. }), "{name}: {error}");
    }
    assert!(matches!(Device::register(ToyDriver), Err(Error::InvalidArgument { .. })));
}

#[test]
fn devices_are_given_and_compared_by_name() {
    let (first, second) = (toy(0), toy(1));
    let x = Tensor::from([1.0f32, 2.0]).to("toy:0");
    assert!(x.device() == "toy:0" && x.device() == "toy" && x.device() != "toy:1" && x.device() != "cpu");
    assert!(x.to(String::from("cpu")).device() == "cpu" && Device::cpu() == "cpu:0" && Device::cpu() != "gpu");
    for name in ["", "toy:x", "abacus", "cpu:1"] {
        assert!(first != name && Device::cpu() != name, "{name}");
        assert!(matches!(x.try_to(name), Err(Error::DeviceUnavailable { .. })), "{name}");
        assert!(matches!(x.try_to_(name), Err(Error::DeviceUnavailable { .. })), "{name}");
        assert!(matches!(Linear::new(1, 1).to(name), Err(Error::DeviceUnavailable { .. })), "{name}");
    }
    if cfg!(not(any(feature = "cuda", feature = "wgpu"))) {
        assert!(first == "gpu" && first == "gpu:0" && second == "gpu:1" && second != "gpu");
    }
    let moved = Tensor::from([1.0f32]);
    moved.to_("toy:1");
    assert_eq!(moved.device(), second);
}

#[test]
fn a_model_moves_and_is_returned() {
    let model = sequential![Linear::new(2, 3), Relu, BatchNorm1d::new(3)].to("toy:0").unwrap();
    assert!(model.parameters().iter().all(|p| p.device() == toy(0)));
    assert!(model.buffers().iter().all(|b| b.device() == toy(0)));
    // A reference moves the model in place.
    let returned = (&model).to(toy(1)).unwrap();
    assert!(returned.parameters().iter().all(|p| p.device() == toy(1)));
    model.to_(Device::cpu()).unwrap();
    assert!(model.parameters().iter().all(|p| p.device() == "cpu"));
}

/// A custom operation that reads its input on the host.
struct SortedOnHost;

impl Operation for SortedOnHost {
    fn name(&self) -> &'static str {
        "sorted_on_host"
    }

    fn forward(&self, inputs: &[&Array], saves: &mut SaveForBackward) -> Result<Arrays> {
        saves.input(0);
        let x = Tensor::from(inputs[0].clone());
        assert!(x.device().is_cpu(), "the operation is marked to run on the CPU");
        let mut values = x.try_to_vec::<f32>()?;
        values.sort_by(f32::total_cmp);
        Ok([Tensor::try_new(values, x.shape())?.array().clone()].into_iter().collect())
    }

    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        let (x, gradient) = (saved.input(0)?, grads.get(0)?);
        let (_, order) = ops::sort(&x, 0, false)?;
        Ok([Some(ops::scatter_add(&ops::zeros_like(&x)?, 0, &order, &gradient)?)].into_iter().collect())
    }

    fn runs_on_cpu(&self) -> bool {
        true
    }
}

#[test]
fn an_operation_of_the_user_may_run_on_the_cpu_only() {
    let weight = [1.0f32, 10.0, 100.0];
    let mut results = Vec::new();
    for device in [Device::cpu(), toy(0), toy(1)] {
        let x = Tensor::from([3.0f32, 1.0, 2.0]).to(device).detach().requires_grad_(true);
        let y = apply_one(SortedOnHost, &[&x]).unwrap();
        assert!(y.device() == device && y.is_free() == x.is_free());
        (&y * Tensor::from(weight).to(device)).sum(..).backward();
        let gradient = x.grad().unwrap();
        assert_eq!(gradient.device(), device);
        results.push((y.to_vec::<f32>(), gradient.to_vec::<f32>()));
        if !device.is_cpu() {
            let rejected = capture(|inputs: &[Tensor]| apply_one(SortedOnHost, &[&inputs[0]]), &[&x.detach()]);
            assert!(matches!(rejected.map(drop), Err(Error::ReadInCapture { op: "sorted_on_host", .. })));
        }
    }
    assert_eq!(results[0], (vec![1.0, 2.0, 3.0], vec![100.0, 1.0, 10.0]));
    assert!(results.iter().all(|result| *result == results[0]));
}

#[test]
fn host_values_are_free_until_they_are_moved() {
    let x = Tensor::from([1.0f32, 2.0]);
    assert!(x.is_free() && (&x + 1.0).is_free() && x.detach().is_free());
    let y = x.to(Device::cpu());
    assert!(x.is_free() && !y.is_free());
    assert_eq!(x.storage_id(), y.storage_id(), "a move to the same device must share the storage");
    assert_eq!(y.to(Device::cpu()).id(), y.id(), "a pinned tensor must be returned unchanged");
    assert!(!(&x + &y).is_free() && !y.detach().is_free() && !y.t().is_free());
    y.free();
    assert!(y.is_free() && (&x + &y).is_free());
    assert!(!Parameter::new(x.clone()).is_free() && !Buffer::new(x).is_free());
}

#[test]
fn free_inputs_follow_pinned_inputs() {
    let (cpu, gpu) = (Device::cpu(), toy(0));
    let free = Tensor::from([1.0f32, 2.0]);
    let on_cpu = free.to(cpu);
    let on_gpu = pinned(&[3.0, 4.0], gpu);
    let free_on_gpu = pinned(&[5.0, 6.0], gpu);
    free_on_gpu.free();
    // (operands, the device of the result, whether it is free)
    let cases = [
        (&free, &on_gpu, gpu, false),
        (&on_gpu, &free, gpu, false),
        (&free, &on_cpu, cpu, false),
        (&free_on_gpu, &on_cpu, cpu, false),
        (&free, &free_on_gpu, gpu, true),
        (&free, &free, cpu, true),
    ];
    for (a, b, device, is_free) in cases {
        for result in [a + b, a.maximum(b), ops::stack(&[a, b], 0).unwrap().sum(0)] {
            assert_eq!((result.device(), result.is_free()), (device, is_free), "{a:?} {b:?}");
        }
        let sum: Vec<f32> = a.to_vec::<f32>().iter().zip(b.to_vec::<f32>()).map(|(a, b)| a + b).collect();
        assert_eq!((a + b).to_vec::<f32>(), sum);
    }
    let error = ops::add(&on_cpu, &on_gpu).unwrap_err();
    assert!(matches!(error, Error::DeviceMismatch { op: "add", .. }));
    assert_eq!(error.to_string(), "add: tensors on different devices (cpu, toy:0); move one with to(device)");
    assert!(ops::add(&on_gpu, pinned(&[1.0, 2.0], toy(1))).is_err(), "devices of one driver are different devices");
    assert!(ops::matmul(&on_cpu, &on_gpu).is_err());
    assert!(ops::where_(&Tensor::from([true, false]), &on_cpu, &on_gpu).is_err());
}

#[test]
fn a_free_tensor_is_copied_once_for_each_version() {
    let gpu = toy(0);
    let (free, other) = (Tensor::from([1.0f32, 2.0]), pinned(&[10.0, 20.0], gpu));
    assert_eq!((&free + &other).to_vec::<f32>(), [11.0, 22.0]);
    free.copy_(&Tensor::from([3.0f32, 4.0]));
    assert_eq!((&free + &other).to_vec::<f32>(), [13.0, 24.0], "a write must invalidate the copy");
    let x = &free + &other;
    x.copy_(&free);
    add_in_place(&x, &Tensor::from([1.0f32, 1.0])).unwrap();
    assert_eq!((x.to_vec::<f32>(), free.to_vec::<f32>()), (vec![4.0, 5.0], vec![3.0, 4.0]));
    assert_eq!((&free + &other).to_vec::<f32>(), [13.0, 24.0], "a result must not write into the copy");
}

#[test]
fn a_write_in_place_does_not_move_its_target() {
    let gpu = toy(0);
    let target = pinned(&[1.0, 2.0], gpu);
    add_in_place(&target, &Tensor::from([1.0f32, 1.0])).unwrap();
    target.copy_(&(Tensor::from([2.0f32, 2.0]) * &target));
    assert_eq!((target.to_vec::<f32>(), target.device()), (vec![4.0, 6.0], gpu));
    let on_cpu = pinned(&[0.0, 0.0], Device::cpu());
    for error in [ops::copy_(&target, &on_cpu), ops::copy_(&on_cpu, &target), add_in_place(&target, &on_cpu)] {
        assert!(matches!(error, Err(Error::DeviceMismatch { .. })), "{error:?}");
    }
    let free = Tensor::from([0.0f32, 0.0]);
    assert!(ops::copy_(&free, &target).is_err(), "a write does not move a free target");
    assert_eq!(target.to_vec::<f32>(), [4.0, 6.0]);
}

#[test]
fn gradients_are_on_the_device_of_their_tensor() {
    let (cpu, first, second) = (Device::cpu(), toy(0), toy(1));
    for free in [true, false] {
        let x = Tensor::from([1.0f32, 2.0, 3.0]);
        let x = if free { x } else { x.to(cpu).detach() }.requires_grad_(true);
        let y = x.to(first);
        let weight = pinned(&[2.0, 3.0, 4.0], first).detach().requires_grad_(true);
        let z = (&y * &weight).to(second).square().sum(..);
        assert_eq!(z.device(), second);
        z.backward();
        let (gx, gw) = (x.grad().unwrap(), weight.grad().unwrap());
        assert_eq!((gx.device(), gw.device()), (cpu, first));
        assert_eq!(gx.to_vec::<f32>(), [8.0, 36.0, 96.0]);
        assert_eq!(gw.to_vec::<f32>(), [4.0, 24.0, 72.0]);
    }
}

#[test]
fn a_free_leaf_receives_its_gradient_from_another_device() {
    let x = Tensor::from([1.0f32, 2.0]).requires_grad_(true);
    let y = pinned(&[3.0, 5.0], toy(0));
    (&x * &y).sum(..).backward();
    assert_eq!((x.grad().unwrap().device(), x.grad().unwrap().to_vec::<f32>()), (Device::cpu(), vec![3.0, 5.0]));
}

#[test]
fn results_that_depend_on_no_element_are_on_the_device_of_the_input() {
    let x = pinned(&[1.0, 2.0], toy(0));
    let found = ops::isin(&x, &Tensor::zeros([0], DType::F32)).unwrap();
    assert_eq!((found.device(), found.dtype(), found.to_vec::<bool>()), (toy(0), DType::Bool, vec![false; 2]));
    assert_eq!(ops::equal(&x, &pinned(&[1.0], toy(0))).unwrap().device(), toy(0));
}

#[test]
fn derivatives_of_a_move_have_every_order() {
    let gpu = toy(0);
    let x = Tensor::from([1.5f32]).requires_grad_(true);
    let options = GradOptions { create_graph: true, ..GradOptions::default() };
    let mut y = x.to(gpu);
    y = &y * &y * &y;
    let expected = [3.0 * 2.25, 6.0 * 1.5, 6.0];
    for (order, expected) in expected.into_iter().enumerate() {
        y = grad(&[&y.sum(..)], &[&x], options.clone()).unwrap().remove(0);
        assert_eq!((y.device(), y.item::<f32>()), (Device::cpu(), expected), "order {}", order + 1);
    }
}

#[test]
fn moves_are_rejected_inside_a_captured_step() {
    let gpu = toy(0);
    let x = pinned(&[1.0, 2.0], Device::cpu());
    let error = capture(|inputs: &[Tensor]| inputs[0].try_to(gpu).unwrap_or_else(|_| inputs[0].clone()) + 1.0, &[&x]);
    assert!(error.is_ok());
    let error = capture(
        |inputs: &[Tensor]| {
            assert!(matches!(inputs[0].try_to(gpu), Err(Error::ReadInCapture { .. })));
            &inputs[0] + 1.0
        },
        &[&x],
    );
    assert!(error.is_ok());
}

#[test]
fn steps_are_captured_on_the_device_of_their_tensors() {
    let gpu = toy(0);
    let weight = pinned(&[2.0, 3.0], gpu);
    let x = pinned(&[1.0, 2.0], gpu);
    let mut step = capture(|inputs: &[Tensor]| (&inputs[0] * &weight + 1.0).exp().sum(..), &[&x]).unwrap();
    for values in [[0.5f32, 0.25], [1.0, -1.0]] {
        let x = pinned(&values, gpu);
        let eager = (&x * &weight + 1.0).exp().sum(..).item::<f32>();
        assert_eq!(step.launch(&[&x]).unwrap().item::<f32>(0), eager);
    }
}

/// Operations move their operands. A kernel that an operation outside the workspace submits may have operands on
/// several devices.
#[test]
fn a_kernel_has_one_device() {
    for (index, device) in [toy(0), toy(1)].into_iter().enumerate() {
        let (x, y) = (pinned(&[1.0, 2.0], Device::cpu()), pinned(&[0.0, 0.0], device));
        let copy = || pellucid::engine::submit(&pellucid::engine::kernel::Kernel::Copy, &[x.array()], &[y.array()]);
        let step = capture(|_| copy(), &[]).map(drop);
        for error in [copy(), lazy(copy), step].map(Result::unwrap_err) {
            let text = format!("copy: tensors on different devices (cpu, toy:{index}); move one with to(device)");
            assert_eq!(error.to_string(), text);
        }
        assert_eq!(y.to_vec::<f32>(), [0.0, 0.0]);
    }
}
