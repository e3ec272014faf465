//! What the derive finds, and what state dicts refuse.

extern crate pellucid_nn as pellucid;

use pellucid_nn::{
    Buffer, Dropout, Flatten, Gelu, Keys, Layer, Linear, Module, Parameter, Part, Relu, Sequential, Training, Visitor,
    sequential,
};
use pellucid_tensor::{DType, Error, Misshaped, Tensor, manual_seed};
use std::collections::{BTreeMap, HashMap};
use std::marker::PhantomData;

fn vector(values: &[f32]) -> Tensor {
    Tensor::new(values, [values.len()])
}

#[derive(Module)]
struct Norm {
    weight: Parameter,
    running_mean: Buffer,
}

impl Norm {
    fn new() -> Norm {
        Norm { weight: Parameter::new(vector(&[1.0, 2.0])), running_mean: Buffer::new(vector(&[3.0])) }
    }
}

struct NoModule;

#[derive(Module)]
struct Model<M, T> {
    layers: Vec<Linear>,
    pair: (Norm, Relu),
    boxed: Box<dyn Layer>,
    r#type: Option<Norm>,
    absent: Option<Linear>,
    both: [Norm; 2],
    generic: M,
    steps: usize,
    mode: Training,
    #[module(skip)]
    name: NoModule,
    #[module(skip)]
    extra: Vec<T>,
    marker: PhantomData<T>,
}

#[derive(Module)]
struct Wrapper(Parameter, #[allow(dead_code)] f64, Norm);

#[derive(Module)]
enum Block {
    Plain(Linear),
    Named {
        norm: Norm,
        scale: Parameter,
    },
    #[allow(dead_code)]
    Empty,
}

fn names(module: &dyn Module) -> Vec<String> {
    module.named_parameters().into_iter().map(|(name, _)| name).collect()
}

#[test]
fn the_derive_walks_every_field_in_order() {
    let model = Model {
        layers: vec![Linear::new(2, 3), Linear::new(3, 1).without_bias()],
        pair: (Norm::new(), Relu),
        boxed: Box::new(sequential![Linear::new(1, 1), Gelu]),
        r#type: Some(Norm::new()),
        absent: None,
        both: [Norm::new(), Norm::new()],
        generic: Wrapper(Parameter::new(vector(&[0.0])), 0.5, Norm::new()),
        steps: 3,
        mode: Training::new(),
        name: NoModule,
        extra: vec![String::new()],
        marker: PhantomData,
    };
    let _ = (&model.name, &model.extra, model.steps);
    let expected = [
        "layers.0.weight",
        "layers.0.bias",
        "layers.1.weight",
        "pair.0.weight",
        "boxed.0.weight",
        "boxed.0.bias",
        "type.weight",
        "both.0.weight",
        "both.1.weight",
        "generic.0",
        "generic.2.weight",
    ];
    assert_eq!(names(&model), expected);
    let buffers: Vec<String> = model.named_buffers().into_iter().map(|(name, _)| name).collect();
    let expected = ["pair.0.running_mean", "type.running_mean", "both.0.running_mean", "both.1.running_mean"];
    assert_eq!(buffers[..4], expected);
    assert_eq!(buffers[4], "generic.2.running_mean");
    assert_eq!(model.parameter_count(), 6 + 3 + 3 + 2 + 2 + 2 + 4 + 1 + 2);
    assert!(model.parameters().iter().all(|p| p.requires_grad()));
    assert!(model.buffers().iter().all(|b| !b.requires_grad()));
}

#[test]
fn the_derive_walks_the_variant_that_is_there() {
    assert_eq!(names(&Block::Plain(Linear::new(1, 1))), ["0.weight", "0.bias"]);
    let named = Block::Named { norm: Norm::new(), scale: Parameter::new(vector(&[1.0])) };
    assert_eq!(names(&named), ["norm.weight", "scale"]);
    assert!(names(&Block::Empty).is_empty());
}

#[derive(Module)]
struct Tied {
    encoder: Linear,
    decoder: Parameter,
    constant: Buffer,
    again: Buffer,
}

fn tied() -> Tied {
    let encoder = Linear::new(2, 2).without_bias();
    let constant = Buffer::new(vector(&[1.0]));
    Tied { decoder: encoder.weight.clone(), again: constant.clone(), encoder, constant }
}

#[test]
fn a_shared_parameter_counts_once_under_its_first_name() {
    let model = tied();
    assert_eq!(names(&model), ["encoder.weight"]);
    assert_eq!(model.buffers().len(), 1);
    assert_eq!(model.parameter_count(), 4);
    assert_eq!(model.state_dict().keys().collect::<Vec<_>>(), ["constant", "encoder.weight"]);
    // One gradient gathers both uses.
    let x = Tensor::from([[1.0f32, 2.0]]);
    model.encoder.forward(&x).matmul(&model.decoder).sum(..).backward();
    assert!(model.decoder.grad().is_some());
    assert_eq!(model.decoder.grad().unwrap().to_vec::<f32>(), model.encoder.weight.grad().unwrap().to_vec::<f32>());
    model.zero_grad();
    assert!(model.encoder.weight.grad().is_none());
}

#[test]
fn sequential_and_tuples_apply_their_layers_in_order() {
    manual_seed(3);
    let model = sequential![Flatten::new(), Linear::new(4, 3), Relu, Linear::new(3, 2)];
    assert_eq!(names(&model), ["1.weight", "1.bias", "3.weight", "3.bias"]);
    let x = Tensor::randn([5, 2, 2], DType::F32);
    let tuple = (Flatten::new(), Linear::new(4, 3), Relu, Linear::new(3, 2));
    tuple.load_state_dict(&model.state_dict()).unwrap();
    assert_eq!(tuple.forward(&x).to_vec::<f32>(), model.forward(&x).to_vec::<f32>());
    assert_eq!(Sequential::new().forward(&x).to_vec::<f32>(), x.to_vec::<f32>());
}

#[test]
fn linear_is_the_affine_map_with_pytorchs_first_values() {
    manual_seed(1);
    let layer = Linear::new(100, 50);
    let weights = layer.weight.to_vec::<f32>();
    assert!(weights.iter().all(|w| w.abs() <= 0.1));
    // Uniform on ±0.1: the variance is 0.01/3.
    let variance = weights.iter().map(|&w| f64::from(w).powi(2)).sum::<f64>() / 5000.0;
    assert!((variance - 0.01 / 3.0).abs() < 2e-4, "{variance}");

    let layer = Linear {
        weight: Parameter::new(Tensor::from([[1.0f32, 2.0], [3.0, 4.0], [5.0, 6.0]])),
        bias: Some(Parameter::new(vector(&[0.5, 0.0, -0.5]))),
    };
    let y = layer.forward(&Tensor::from([[1.0f32, -1.0], [0.0, 1.0]]));
    assert_eq!(y.to_vec::<f32>(), [-0.5, -1.0, -1.5, 2.5, 4.0, 5.5]);
    assert!(Linear::new(0, 2).weight.to_vec::<f32>().is_empty());
}

#[test]
fn dropout_drops_in_training_only() {
    manual_seed(5);
    let model = sequential![Dropout::new(0.25)];
    let x = Tensor::ones([100, 100], DType::F32);
    let y = model.forward(&x).to_vec::<f32>();
    assert!(y.iter().all(|&v| v == 0.0 || (v - 4.0 / 3.0).abs() < 1e-6));
    let kept = y.iter().filter(|&&v| v != 0.0).count();
    assert!((7300..7700).contains(&kept), "{kept}");
    assert_ne!(model.forward(&x).to_vec::<f32>(), y);
    model.eval();
    assert_eq!(model.forward(&x).to_vec::<f32>(), x.to_vec::<f32>());
    model.train();
    assert_ne!(model.forward(&x).to_vec::<f32>(), x.to_vec::<f32>());
    let refused = std::panic::catch_unwind(|| Dropout::new(1.5)).unwrap_err();
    assert!(refused.downcast_ref::<String>().expect("a message").contains("dropout"));
}

#[test]
fn a_state_dict_is_a_snapshot_that_loads_in_place() {
    let (a, b) = (tied(), tied());
    let handle = b.decoder.clone();
    let state = a.state_dict();
    let before = a.encoder.weight.to_vec::<f32>();
    {
        let _guard = pellucid_tensor::no_grad();
        a.encoder.weight.copy_(&Tensor::zeros([2, 2], DType::F32));
    }
    assert_eq!(state["encoder.weight"].to_vec::<f32>(), before);
    b.load_state_dict(&state).unwrap();
    assert_eq!(handle.to_vec::<f32>(), before);
    assert!(b.encoder.weight.requires_grad());
    // Another float dtype is converted.
    let wide = state.iter().map(|(name, t)| (name.clone(), t.to_dtype(DType::F64))).collect();
    a.load_state_dict(&wide).unwrap();
    assert_eq!(a.encoder.weight.to_vec::<f32>(), before);
    assert_eq!(a.encoder.weight.dtype(), DType::F32);
}

#[test]
fn a_state_dict_that_does_not_fit_changes_nothing() {
    let model = sequential![Linear::new(2, 3), Linear::new(3, 1)];
    let before = model.state_dict();
    let mut state = before.clone();
    state.values_mut().for_each(|t| *t = Tensor::zeros(t.shape(), DType::F32));
    state.remove("0.bias");
    state.insert("2.weight".into(), vector(&[1.0]));
    state.insert("1.weight".into(), Tensor::zeros([3, 1], DType::F32));
    let error = model.load_state_dict(&state).unwrap_err();
    let expected = Error::StateDict {
        missing: vec!["0.bias".into()],
        unexpected: vec!["2.weight".into()],
        misshaped: vec![Misshaped { name: "1.weight".into(), found: [3, 1].into(), expected: [1, 3].into() }],
    };
    assert_eq!(error, expected);
    for (name, tensor) in model.state_dict() {
        assert_eq!(tensor.to_vec::<f32>(), before[&name].to_vec::<f32>(), "{name}");
    }
}

#[test]
fn a_shared_value_loads_under_any_of_its_names() {
    let (a, b) = (tied(), tied());
    let state = a.state_dict();
    let names: Vec<&String> = state.keys().collect();
    assert!(names.contains(&&"encoder.weight".to_string()), "{names:?}");
    let mut other = state.clone();
    let weight = other.remove("encoder.weight").unwrap();
    other.insert("decoder".into(), weight.clone());
    b.load_state_dict(&other).unwrap();
    assert_eq!(b.encoder.weight.to_vec::<f32>(), weight.to_vec::<f32>());
    // Under both names, as PyTorch saves it; of whatever dtype.
    other.insert("encoder.weight".into(), weight.to_dtype(DType::F64));
    tied().load_state_dict(&other).unwrap();
    assert_eq!(b.load_matching(&other).unwrap(), Keys::default());
    // Two that differ are not one.
    other.insert("encoder.weight".into(), &weight + 1.0);
    for error in [b.load_state_dict(&other).unwrap_err(), b.load_matching(&other).unwrap_err()] {
        assert!(error.to_string().contains("encoder.weight and decoder are one value"), "{error}");
    }
    assert_eq!(b.encoder.weight.to_vec::<f32>(), weight.to_vec::<f32>());
    other.retain(|name, _| !name.contains("coder"));
    let Error::StateDict { missing, .. } = b.load_state_dict(&other).unwrap_err() else { panic!("it is missing") };
    assert_eq!(missing, ["encoder.weight"]);
}

/// A view of a parameter that lies otherwise has its own shape, and is written by its own name.
#[test]
fn views_of_one_tensor_load_as_they_lie() {
    let weight = Tensor::from([[1.0f32, 2.0, 3.0], [4.0, 5.0, 6.0]]);
    let model = (Parameter::new(weight.clone()), Parameter::new(weight.t()));
    let state = model.state_dict();
    assert_eq!(state["1"].shape().dims(), [3, 2]);
    weight.copy_(&Tensor::zeros([2, 3], DType::F32));
    model.load_state_dict(&state).unwrap();
    assert_eq!(weight.to_vec::<f32>(), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let alone = pellucid_nn::rename(&state, |name| (name == "1").then(|| name.to_string()));
    let Error::StateDict { missing, .. } = model.load_state_dict(&alone).unwrap_err() else { panic!("it is missing") };
    assert_eq!(missing, ["0"]);
}

#[test]
fn a_visitor_sees_names_and_kinds() {
    let mut seen = Vec::new();
    let mut meet = |name: &str, part: Part<'_>| {
        let kind = match part {
            Part::Module(info) => info.class(),
            Part::Parameter(_) => "parameter",
            Part::Buffer(_) => "buffer",
            Part::Training(_) => "training",
            Part::Choice(_) => "choice",
        };
        seen.push(format!("{name}: {kind}"));
    };
    (Norm::new(), Dropout::new(0.1)).visit(&mut Visitor::new(&mut meet));
    let expected = ["0: Norm", "0.weight: parameter", "0.running_mean: buffer", "1: Dropout", "1.training: training"];
    assert_eq!(seen, expected);
}

#[derive(Module)]
struct Named<T> {
    sorted: BTreeMap<usize, Linear>,
    hashed: HashMap<String, Option<Linear>>,
    scratch: Buffer,
    dtype: DType,
    marker: PhantomData<T>,
}

#[test]
fn maps_are_walked_in_the_order_of_their_names() {
    let linear = || Linear::new(1, 1).without_bias();
    let model: Named<NoModule> = Named {
        sorted: [(10, linear()), (9, linear())].into(),
        hashed: ["c", "a", "d", "b"].map(|name| (name.to_string(), (name != "d").then(linear))).into(),
        scratch: Buffer::non_persistent(vector(&[1.0])),
        dtype: DType::F32,
        marker: PhantomData,
    };
    let expected = ["sorted.9.weight", "sorted.10.weight", "hashed.a.weight", "hashed.b.weight", "hashed.c.weight"];
    assert_eq!((names(&model), model.dtype), (expected.map(String::from).to_vec(), DType::F32));
    // What is not persistent is a buffer of the model, but not part of its state dicts.
    assert_eq!(model.buffers().len(), 1);
    assert!(!model.scratch.is_persistent());
    let state = model.state_dict();
    assert_eq!(state.len(), expected.len());
    model.load_state_dict(&state).unwrap();
}
