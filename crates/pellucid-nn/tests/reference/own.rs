//! Layers and losses whose references are functions of `f64` in Rust. A new layer or loss needs only a row here; rows
//! of `reference.py` compare with PyTorch.
//!
//! The gradients of a reference are central differences.

use crate::file::cosine;
use crate::losses::Run;
use pellucid_nn::loss::{HuberLoss, SoftMarginLoss};
use pellucid_nn::*;
use pellucid_tensor::{DType, Tensor};

/// A layer without buffers, its input, and its reference.
pub(crate) struct OwnLayer {
    /// The name. A layer whose name ends with `_eval` is in evaluation mode.
    pub(crate) name: &'static str,
    pub(crate) layer: Box<dyn Layer>,
    x: &'static [usize],
    y: &'static [usize],
    /// Returns y for x and the parameters, in the order of `named_parameters`. All are in row-major order.
    value: fn(&[f64], &[Vec<f64>]) -> Vec<f64>,
}

fn layer(
    name: &'static str,
    layer: impl Layer + 'static,
    (x, y): (&'static [usize], &'static [usize]),
    value: fn(&[f64], &[Vec<f64>]) -> Vec<f64>,
) -> OwnLayer {
    OwnLayer { name, layer: Box::new(layer), x, y, value }
}

/// The layers with references in Rust.
pub(crate) fn own_layers() -> Vec<OwnLayer> {
    vec![
        layer("drop_path_eval", DropPath::new(0.5), (&[3, 4], &[3, 4]), |x, _| x.to_vec()),
        layer("linear_in_rust", Linear::new(3, 2), (&[4, 3], &[4, 2]), |x, parameters| {
            let [weight, bias] = [&parameters[0], &parameters[1]];
            let row = |x: &[f64], k: usize| x.iter().zip(&weight[3 * k..]).map(|(x, w)| x * w).sum::<f64>() + bias[k];
            x.chunks(3).flat_map(|x| [row(x, 0), row(x, 1)]).collect()
        }),
        layer("rms_norm_in_rust", RmsNorm::new(4).eps(1e-3), (&[2, 4], &[2, 4]), |x, parameters| {
            let row = |x: &[f64]| {
                let scale = (x.iter().map(|x| x * x).sum::<f64>() / 4.0 + 1e-3).sqrt();
                x.iter().zip(&parameters[0]).map(|(x, w)| x / scale * w).collect::<Vec<_>>()
            };
            x.chunks(4).flat_map(row).collect()
        }),
        // The gradient of every parameter is compared, so none is frozen. B starts at 0.
        layer("lora", trained(Lora::new(Linear::new(3, 2), 1).alpha(0.5)), (&[4, 3], &[4, 2]), |x, parameters| {
            let [weight, bias, a, b] = [0, 1, 2, 3].map(|k| &parameters[k]);
            let dot = |x: &[f64], w: &[f64]| x.iter().zip(w).map(|(x, w)| x * w).sum::<f64>();
            let row = |x: &[f64], k: usize| dot(x, &weight[3 * k..3 * k + 3]) + bias[k] + 0.5 * dot(x, a) * b[k];
            x.chunks(3).flat_map(|x| [row(x, 0), row(x, 1)]).collect()
        }),
    ]
}

/// Makes all parameters of a layer trainable, and B of its update nonzero.
fn trained(layer: Lora<Linear>) -> Lora<Linear> {
    layer.unfreeze();
    init::constant_(&layer.lora_b, 0.75);
    layer
}

impl OwnLayer {
    /// Returns the tensors that `reference.py` writes for a layer, with their keys.
    pub(crate) fn reference(&self) -> Vec<(String, Tensor)> {
        let OwnLayer { name, layer, x, y, value } = self;
        layer.build(x).unwrap();
        assert!(layer.buffers().is_empty(), "{name}: a layer with buffers needs a row in reference.py");
        let parameters: Vec<(String, Vec<f64>)> =
            layer.named_parameters().into_iter().map(|(name, p)| (name, p.to_vec::<f64>())).collect();
        // The points are exact in f32.
        let input: Vec<f64> = (0..x.iter().product()).map(|k| f64::from((1.3 * k as f32 + 0.4).sin())).collect();
        let all: Vec<Vec<f64>> = [input].into_iter().chain(parameters.iter().map(|(_, p)| p.clone())).collect();
        let output = value(&all[0], &all[1..]);
        let single = |values: &[f64], shape: &[usize]| Tensor::new(values, shape).to_dtype(DType::F32);
        let mut tensors = vec![("x".to_string(), single(&all[0], x)), ("y".to_string(), single(&output, y))];
        let names = ["dx".to_string()].into_iter().chain(parameters.iter().map(|(name, _)| format!("grad/{name}")));
        let shapes = [x.to_vec()].into_iter().chain(layer.parameters().into_iter().map(|p| p.shape().to_vec()));
        for (k, (key, shape)) in names.zip(shapes).enumerate() {
            let gradient = differences(&all, k, &|all| {
                value(&all[0], &all[1..]).iter().enumerate().map(|(i, y)| y * cosine(i)).sum()
            });
            tensors.push((key, single(&gradient, &shape)));
        }
        let state = layer.state_dict().into_iter().map(|(name, tensor)| (format!("state/{name}"), tensor.copy()));
        tensors.extend(state);
        tensors.into_iter().map(|(key, tensor)| (format!("{name}/{key}"), tensor)).collect()
    }
}

/// A loss of one vector of inputs and one of targets, and its reference.
pub(crate) struct OwnLoss {
    pub(crate) name: &'static str,
    pub(crate) run: Run,
    x: &'static [f64],
    y: &'static [f64],
    /// Returns the loss of each sample.
    samples: fn(&[f64], &[f64]) -> Vec<f64>,
}

/// The losses with references in Rust.
pub(crate) fn own_losses() -> Vec<OwnLoss> {
    vec![
        OwnLoss {
            name: "huber_in_rust",
            run: Run::of(|reduction, _| HuberLoss { delta: 0.7, reduction }),
            x: &[0.1, -2.0, 3.5, 0.4],
            y: &[0.3, 1.0, 3.1, -4.0],
            samples: |x, y| {
                let huber = |d: f64| if d < 0.7 { d * d / 2.0 } else { 0.7 * (d - 0.35) };
                x.iter().zip(y).map(|(x, y)| huber((x - y).abs())).collect()
            },
        },
        OwnLoss {
            name: "soft_margin_in_rust",
            run: Run::of(|reduction, _| SoftMarginLoss { reduction }),
            x: &[0.1, -2.0, 3.5],
            y: &[1.0, -1.0, -1.0],
            samples: |x, y| x.iter().zip(y).map(|(x, y)| (-x * y).exp().ln_1p()).collect(),
        },
    ]
}

impl OwnLoss {
    /// Returns the tensors that `reference.py` writes for the option `plain` of a loss, with their keys.
    pub(crate) fn reference(&self) -> Vec<(String, Tensor)> {
        let OwnLoss { name, x, y, samples, .. } = self;
        let vector = |values: &[f64]| Tensor::new(values, [values.len()]);
        let mut tensors = vec![("x".to_string(), vector(x)), ("y".to_string(), vector(y))];
        let values = samples(x, y);
        let count = values.len() as f64;
        let sum: f64 = values.iter().sum();
        let by_x = differences(&[x.to_vec()], 0, &|all| samples(&all[0], y).iter().sum());
        let by_x_of_mean: Vec<f64> = by_x.iter().map(|g| g / count).collect();
        let kinds = [
            ("none", vector(&values), &by_x),
            ("sum", Tensor::from(sum), &by_x),
            ("mean", Tensor::from(sum / count), &by_x_of_mean),
        ];
        for (reduction, value, gradient) in kinds {
            tensors.push((format!("plain/{reduction}"), value));
            tensors.push((format!("plain/{reduction}/x"), vector(gradient)));
        }
        tensors.into_iter().map(|(key, tensor)| (format!("loss/{name}/{key}"), tensor)).collect()
    }
}

/// Returns the derivatives of `f` by each element of list `k`, by differences of fourth order.
fn differences(all: &[Vec<f64>], k: usize, f: &dyn Fn(&[Vec<f64>]) -> f64) -> Vec<f64> {
    const STEP: f64 = 1e-3;
    let moved = |i: usize, steps: f64| {
        let mut all = all.to_vec();
        all[k][i] += steps * STEP;
        f(&all)
    };
    let derivative =
        |i: usize| (8.0 * (moved(i, 1.0) - moved(i, -1.0)) - (moved(i, 2.0) - moved(i, -2.0))) / (12.0 * STEP);
    (0..all[k].len()).map(derivative).collect()
}

/// A wrong reference is noticed: the rows compare something.
#[test]
fn a_wrong_reference_is_noticed() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let wrong = layer("linear", Linear::new(3, 2), (&[4, 3], &[4, 2]), |x, _| x[..8].to_vec());
    let tensors: StateDict = wrong.reference().into_iter().collect();
    let y = wrong.layer.forward(&tensors["linear/x"]);
    let compared = std::panic::catch_unwind(|| crate::file::near("y", &y, &tensors["linear/y"]));
    assert!(compared.is_err());
}
