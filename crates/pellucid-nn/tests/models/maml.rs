//! Model-agnostic meta-learning (Finn, Abbeel & Levine 2017) by functional calls, against finite differences.

use crate::own_tensors;
use pellucid_nn::{
    BatchNorm2d, Buffer, Conv2d, Flatten, GroupNorm, Layer, Linear, MaxPool2d, Module, Sequential, StateDict, Tanh,
    functional_call, init, loss, sequential,
};
use pellucid_tensor::{DType, GradOptions, Tensor, grad, manual_seed, no_grad};

const INNER_STEPS: usize = 2;
const INNER_LR: f64 = 0.3;

fn model() -> Sequential {
    init::in_dtype(DType::F64, || {
        sequential![
            Conv2d::new(1, 2, 3).padding(1),
            BatchNorm2d::new(2),
            Tanh,
            MaxPool2d::new(2),
            Conv2d::new(2, 2, 2),
            GroupNorm::new(1, 2),
            Tanh,
            Flatten::new(),
            Linear::new(2, 2)
        ]
    })
}

struct Task {
    support: [Tensor; 2],
    query: [Tensor; 2],
}

impl Task {
    fn new() -> Task {
        let images = || Tensor::randn([3, 1, 4, 4], DType::F64);
        let targets = || Tensor::randn([3, 2], DType::F64);
        Task { support: [images(), targets()], query: [images(), targets()] }
    }

    /// Returns the loss on the query set after steps of gradient descent on the support set.
    fn adapted_loss(&self, model: &Sequential, start: &StateDict, create_graph: bool) -> Tensor {
        let loss = |tensors: &StateDict, [x, y]: &[Tensor; 2]| {
            functional_call(model, tensors, |model| loss::mse_loss(&model.forward(x), y)).unwrap()
        };
        let mut tensors = start.clone();
        for _ in 0..INNER_STEPS {
            let options = GradOptions { create_graph, retain_graph: true, ..Default::default() };
            let values: Vec<&Tensor> = tensors.values().collect();
            let gradients = grad(&[&loss(&tensors, &self.support)], &values, options).unwrap();
            let updated = tensors.iter().zip(&gradients);
            tensors = updated.map(|((name, value), g)| (name.clone(), value - g * INNER_LR)).collect();
        }
        loss(&tensors, &self.query)
    }
}

/// Returns the derivatives of the adapted loss by central differences.
fn differences(model: &Sequential, task: &Task, start: &StateDict, name: &str) -> Vec<f64> {
    let step = 1e-5;
    let value = |values: &[f64]| {
        let moved = Tensor::new(values, start[name].shape().clone()).requires_grad_(true);
        let mut tensors = start.clone();
        tensors.insert(name.to_string(), moved);
        task.adapted_loss(model, &tensors, false).item::<f64>()
    };
    let own = start[name].to_vec::<f64>();
    let derivative = |i: usize| {
        let (mut above, mut below) = (own.clone(), own.clone());
        above[i] += step;
        below[i] -= step;
        (value(&above) - value(&below)) / (2.0 * step)
    };
    (0..own.len()).map(derivative).collect()
}

#[test]
fn second_order_meta_gradients_agree_with_finite_differences() {
    manual_seed(7);
    let (model, task) = (model(), Task::new());
    let start = own_tensors(&model);
    let before = model.state_dict();
    task.adapted_loss(&model, &start, true).backward();
    let second_order: Vec<Tensor> = model.parameters().iter().map(|p| p.grad().unwrap()).collect();
    model.zero_grad();
    task.adapted_loss(&model, &start, false).backward();
    let mut largest_second_order_term = 0.0f64;
    for ((name, parameter), exact) in model.named_parameters().iter().zip(&second_order) {
        let first_order = parameter.grad().unwrap().to_vec::<f64>();
        let expected = differences(&model, &task, &start, name);
        for ((exact, expected), first_order) in exact.to_vec::<f64>().iter().zip(expected).zip(first_order) {
            assert!((exact - expected).abs() < 1e-8, "{name}: the gradient is {exact}, the difference {expected}");
            largest_second_order_term = largest_second_order_term.max((exact - first_order).abs());
        }
    }
    assert!(largest_second_order_term > 1e-2, "the second-order terms must matter, got {largest_second_order_term}");
    // The parameters of the model did not change.
    for (name, parameter) in model.named_parameters() {
        assert_eq!(parameter.to_vec::<f64>(), before[&name].to_vec::<f64>(), "{name}");
    }
}

#[test]
fn given_running_statistics_are_updated_instead_of_those_of_the_model() {
    manual_seed(1);
    let (model, task) = (model(), Task::new());
    let x = &task.support[0];
    let mut tensors = own_tensors(&model);
    let buffers: Vec<(String, Buffer)> = model.named_buffers();
    for (name, buffer) in &buffers {
        tensors.insert(name.clone(), buffer.copy());
    }
    let before: Vec<Vec<u8>> = buffers.iter().map(|(_, buffer)| buffer.to_bytes()).collect();
    let inside = functional_call(&model, &tensors, |model| model.forward(x)).unwrap();
    for ((name, buffer), before) in buffers.iter().zip(&before) {
        assert_eq!(buffer.to_bytes(), *before, "{name} of the model must not change");
        assert_ne!(tensors[name].to_bytes(), *before, "the given {name} must be updated");
    }
    let direct = model.forward(x);
    assert_eq!(inside.to_vec::<f64>(), direct.to_vec::<f64>());
    for (name, buffer) in &buffers {
        assert_eq!(buffer.to_bytes(), tensors[name].to_bytes(), "{name} after the same update");
    }
    // Without given buffers, the model's own are updated.
    functional_call(&model, &own_tensors(&model), |model| model.forward(x)).unwrap();
    assert_eq!(model.named_buffers()[2].1.item::<i64>(), 2);
    // In evaluation they are only read; the mode is shared with the model.
    model.eval();
    let _off = no_grad();
    let inside = functional_call(&model, &own_tensors(&model), |model| model.forward(x)).unwrap();
    assert_eq!(inside.to_vec::<f64>(), model.forward(x).to_vec::<f64>());
    assert_eq!(model.named_buffers()[2].1.item::<i64>(), 2);
}
