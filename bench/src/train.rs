//! W3 and W10-hvp: training steps, and a Hessian-vector product, of an MLP 784-256-128-10.

use crate::harness::{Run, Work, Workload};
use crate::place::{compute, on_device, placed};
use crate::training::{Training, captured};
use pellucid::hvp;
use pellucid::prelude::*;

pub(crate) fn workloads() -> Vec<Workload> {
    vec![
        Workload::new("W3", "", || training(64, sgd).eager()),
        Workload::new("W3", "captured", || training(64, sgd).captured()),
        Workload::new("W3", "bf16", || training(64, sgd).in_bf16().eager()),
        Workload::new("W3", "captured-bf16", || training(64, sgd).in_bf16().captured()),
        Workload::new("W3a", "", || training(64, adamw).eager()),
        Workload::new("W3a", "captured", || training(64, adamw).captured()),
        Workload::new("W3b", "", || training(1024, sgd).eager()),
        Workload::new("W3b", "captured", || training(1024, sgd).captured()),
        Workload::new("W3b", "bf16", || training(1024, sgd).in_bf16().eager()),
        Workload::new("W3b", "captured-bf16", || training(1024, sgd).in_bf16().captured()),
        Workload::new("W10-hvp", "", hessian_product),
        Workload::new("W10-hvp", "captured", captured_product),
        Workload::new("W10-hvp", "steps", product_of_gradients),
    ]
}

fn mlp() -> Sequential {
    on_device(sequential![Linear::new(784, 256), Relu, Linear::new(256, 128), Relu, Linear::new(128, 10)])
}

type Make = fn(Vec<Parameter>) -> Box<dyn Optimizer>;

fn sgd(parameters: Vec<Parameter>) -> Box<dyn Optimizer> {
    let options = SgdOptions { lr: 0.1, ..Default::default() };
    Box::new(Sgd::new(parameters, options))
}

fn adamw(parameters: Vec<Parameter>) -> Box<dyn Optimizer> {
    let options = AdamWOptions { lr: 1e-3, weight_decay: 1e-4, ..Default::default() };
    Box::new(AdamW::new(parameters, options))
}

/// Returns the work of the forward pass, of all weight gradients, and of all input gradients except the gradient of the
/// first layer's input.
fn work(batch: usize) -> Work {
    let (first, others) = (784 * 256, 256 * 128 + 128 * 10);
    Work::Flops((2 * batch * (2 * first + 3 * others)) as f64)
}

fn batch(size: usize) -> (Tensor, Tensor) {
    (placed(Tensor::randn([size, 784], DType::F32)), placed(Tensor::randint(0, 10, [size])))
}

fn training(size: usize, make: Make) -> Training {
    let model = mlp();
    let optimizer = make(model.parameters());
    Training::new(work(size), batch(size), optimizer, move |x, target| cross_entropy(&model.forward(x), target))
}

/// Computes a Hessian-vector product by two reverse passes, as the compared programs do: it is the gradient of the
/// inner product of gradient and vector.
fn product_of_gradients() -> Run {
    let model = mlp();
    let (x, target) = batch(64);
    let (parameters, vectors) = parameters_and_vectors(&model);
    Run::new(Work::Overhead, move || {
        let inputs: Vec<&Tensor> = parameters.iter().collect();
        let loss = cross_entropy(&model.forward(&x), &target);
        let first = grad(&[&loss], &inputs, GradOptions { create_graph: true, ..Default::default() })
            .expect("the tensor must have a gradient");
        let products = first.iter().zip(&vectors).map(|(g, v)| (g * v).sum(..));
        let product = products.reduce(|sum, p| sum + p).expect("the model must have parameters");
        // The gradient with respect to the bias of the last layer may not depend on this bias.
        let options = GradOptions { allow_unused: true, ..Default::default() };
        compute(&grad(&[&product], &inputs, options).expect("the gradient must be differentiable"));
    })
}

/// Computes the Hessian-vector product with `hvp`.
fn hessian_product() -> Run {
    let product = product();
    Run::new(Work::Overhead, move || compute(&product()))
}

fn captured_product() -> Run {
    captured(Work::Overhead, product())
}

fn product() -> impl Fn() -> Vec<Tensor> {
    let (x, target) = batch(64);
    let (parameters, vectors) = parameters_and_vectors(&mlp());
    move || {
        let _off = no_grad();
        let (inputs, vectors): (Vec<_>, Vec<_>) = (parameters.iter().collect(), vectors.iter().collect());
        let loss = |p: &[Tensor]| {
            let hidden = x.linear(&p[0], Some(&p[1])).relu().linear(&p[2], Some(&p[3])).relu();
            Ok(cross_entropy(&hidden.linear(&p[4], Some(&p[5])), &target))
        };
        hvp(loss, &inputs, &vectors).expect("the loss must be twice differentiable").1
    }
}

fn parameters_and_vectors(model: &Sequential) -> (Vec<Tensor>, Vec<Tensor>) {
    let parameters: Vec<Tensor> = model.parameters().iter().map(|p| p.tensor().clone()).collect();
    let vectors = parameters.iter().map(|p| placed(Tensor::randn(p.shape(), DType::F32))).collect();
    (parameters, vectors)
}
