//! `#[derive(Module)]`, and errors of state dicts.

use pellucid_nn::optim::Optimizer;
use pellucid_nn::{
    BatchNorm1d, Buffer, Dropout, Flatten, Gelu, IncompatibleKeys, Layer, Linear, Module, ModulePart, Parameter, Relu,
    Sequential, TrainingMode, TransformerEncoderLayer, Visit, Visitor, hook, optim, sequential,
};
use pellucid_tensor::{DType, Device, Error, Result, Tensor, WrongShape, capture, manual_seed, ops};
use std::collections::{BTreeMap, HashMap};
use std::marker::PhantomData;
use std::sync::Arc;

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
    mode: TrainingMode,
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
        layers: vec![Linear::new(2, 3), Linear::new(3, 1).bias(false)],
        pair: (Norm::new(), Relu),
        boxed: Box::new(sequential![Linear::new(1, 1), Gelu]),
        r#type: Some(Norm::new()),
        absent: None,
        both: [Norm::new(), Norm::new()],
        generic: Wrapper(Parameter::new(vector(&[0.0])), 0.5, Norm::new()),
        steps: 3,
        mode: TrainingMode::new(),
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
fn the_derive_walks_the_active_variant() {
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
    let encoder = Linear::new(2, 2).bias(false);
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
    // The gradient is the sum over both uses.
    let x = Tensor::from([[1.0f32, 2.0]]);
    model.encoder.forward(&x).matmul(&model.decoder).sum(..).backward();
    assert!(model.decoder.grad().is_some());
    assert_eq!(model.decoder.grad().unwrap().to_vec::<f32>(), model.encoder.weight.grad().unwrap().to_vec::<f32>());
    model.zero_grad();
    assert!(model.encoder.weight.grad().is_none());
}

#[test]
fn sequential_and_tuples_apply_their_layers_in_order() {
    let _random = pellucid_tensor::Generator::new(0).scope();
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
fn linear_is_the_affine_map_with_pytorchs_initial_values() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    manual_seed(1);
    let layer = Linear::new(100, 50);
    let weights = layer.weight.to_vec::<f32>();
    assert!(weights.iter().all(|w| w.abs() <= 0.1));
    // Uniform on ±0.1: the variance is 0.01/3.
    let variance = weights.iter().map(|&w| f64::from(w).powi(2)).sum::<f64>() / 5000.0;
    assert!((variance - 0.01 / 3.0).abs() < 2e-4, "the variance is {variance}, expected 0.01/3");

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
    let _random = pellucid_tensor::Generator::new(0).scope();
    manual_seed(5);
    let model = sequential![Dropout::new(0.25)];
    let x = Tensor::ones([100, 100], DType::F32);
    let y = model.forward(&x).to_vec::<f32>();
    assert!(y.iter().all(|&v| v == 0.0 || (v - 4.0 / 3.0).abs() < 1e-6));
    let kept = y.iter().filter(|&&v| v != 0.0).count();
    assert!((7300..7700).contains(&kept), "{kept} elements are kept, expected about 7500");
    assert_ne!(model.forward(&x).to_vec::<f32>(), y);
    model.eval();
    assert_eq!(model.forward(&x).to_vec::<f32>(), x.to_vec::<f32>());
    model.train();
    assert_ne!(model.forward(&x).to_vec::<f32>(), x.to_vec::<f32>());
    let rejected = std::panic::catch_unwind(|| Dropout::new(1.5)).unwrap_err();
    assert!(rejected.downcast_ref::<String>().expect("a message").contains("dropout"));
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
fn a_mismatched_state_dict_changes_nothing() {
    let model = sequential![Linear::new(2, 3), Linear::new(3, 1)];
    let before = model.state_dict();
    let mut state = before.clone();
    state.values_mut().for_each(|t| *t = Tensor::zeros(t.shape(), DType::F32));
    state.remove("0.bias");
    state.insert("2.weight".into(), vector(&[1.0]));
    state.insert("1.weight".into(), Tensor::zeros([3, 1], DType::F32));
    let error = model.load_state_dict(&state).unwrap_err();
    let expected = Error::StateDict {
        op: "load_state_dict",
        missing: vec!["0.bias".into()],
        unexpected: vec!["2.weight".into()],
        wrong_shapes: vec![WrongShape { name: "1.weight".into(), found: [3, 1].into(), expected: [1, 3].into() }],
    };
    assert_eq!(error, expected);
    for (name, tensor) in model.state_dict() {
        assert_eq!(tensor.to_vec::<f32>(), before[&name].to_vec::<f32>(), "{name} must not change");
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
    // A state dict may contain a shared value under both names, as PyTorch saves it, and in any dtype.
    other.insert("encoder.weight".into(), weight.to_dtype(DType::F64));
    tied().load_state_dict(&other).unwrap();
    assert_eq!(b.load_matching(&other).unwrap(), IncompatibleKeys::default());
    // Different values under both names are rejected.
    other.insert("encoder.weight".into(), &weight + 1.0);
    for error in [b.load_state_dict(&other).unwrap_err(), b.load_matching(&other).unwrap_err()] {
        assert!(error.to_string().contains("encoder.weight and decoder are names of one shared tensor"), "{error}");
    }
    assert_eq!(b.encoder.weight.to_vec::<f32>(), weight.to_vec::<f32>());
    other.retain(|name, _| !name.contains("coder"));
    let Error::StateDict { missing, .. } = b.load_state_dict(&other).unwrap_err() else {
        panic!("the error must be Error::StateDict")
    };
    assert_eq!(missing, ["encoder.weight"]);
}

/// A parameter and its transposed view are loaded separately, each with the shape of its own name.
#[test]
fn views_of_one_tensor_load_by_their_layout() {
    let weight = Tensor::from([[1.0f32, 2.0, 3.0], [4.0, 5.0, 6.0]]);
    #[derive(Module)]
    struct Tied(Parameter, Parameter);

    let model = Tied(Parameter::new(weight.clone()), Parameter::new(weight.t()));
    let state = model.state_dict();
    assert_eq!(state["1"].shape().dims(), [3, 2]);
    weight.copy_(&Tensor::zeros([2, 3], DType::F32));
    model.load_state_dict(&state).unwrap();
    assert_eq!(weight.to_vec::<f32>(), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let alone = pellucid_nn::rename_keys(&state, |name| (name == "1").then(|| name.to_string()));
    let Error::StateDict { missing, .. } = model.load_state_dict(&alone).unwrap_err() else {
        panic!("the error must be Error::StateDict")
    };
    assert_eq!(missing, ["0"]);
}

#[test]
fn a_visitor_sees_names_and_kinds() {
    let mut seen = Vec::new();
    let mut meet = |name: &str, part: ModulePart<'_>| {
        let kind = match part {
            ModulePart::Module(info) => info.class(),
            ModulePart::Parameter(_) => "parameter",
            ModulePart::Buffer(_) => "buffer",
            ModulePart::TrainingMode(_) => "training",
            ModulePart::PathChoice(_) => "choice",
            ModulePart::StateFlag(_) => "flag",
            ModulePart::Setting(_) => "setting",
        };
        seen.push(format!("{name}: {kind}"));
    };
    (Norm::new(), Dropout::new(0.1)).visit(&mut Visitor::new(&mut meet));
    let norm = ["0: Norm", "0.weight: parameter", "0.running_mean: buffer"];
    assert_eq!(seen[..3], norm);
    assert_eq!(seen[3..], ["1: Dropout", "1.p: setting", "1.training: training"]);
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
    let linear = || Linear::new(1, 1).bias(false);
    let model: Named<NoModule> = Named {
        sorted: [(10, linear()), (9, linear())].into(),
        hashed: ["c", "a", "d", "b"].map(|name| (name.to_string(), (name != "d").then(linear))).into(),
        scratch: Buffer::non_persistent(vector(&[1.0])),
        dtype: DType::F32,
        marker: PhantomData,
    };
    let expected = ["sorted.9.weight", "sorted.10.weight", "hashed.a.weight", "hashed.b.weight", "hashed.c.weight"];
    assert_eq!((names(&model), model.dtype), (expected.map(String::from).to_vec(), DType::F32));
    // A non-persistent buffer belongs to the model, but not to its state dicts.
    assert_eq!(model.buffers().len(), 1);
    assert!(!model.scratch.is_persistent());
    let state = model.state_dict();
    assert_eq!(state.len(), expected.len());
    model.load_state_dict(&state).unwrap();
}

/// Returns the layer that an error names, and the inner error.
#[track_caller]
fn named<T>(result: Result<T>) -> (String, Error) {
    match result.map(drop) {
        Err(Error::Layer { layer, source }) => (layer, *source),
        Err(other) => panic!("the error must name a layer, but is: {other}"),
        Ok(()) => panic!("the call must return an error"),
    }
}

#[derive(Clone, Module)]
struct Encoder {
    blocks: Vec<(Linear, Relu)>,
    norm: Option<Linear>,
}

impl Layer for Encoder {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        let x = self.blocks.iter().try_fold(x.clone(), |x, block| block.try_forward(&x))?;
        self.norm.as_ref().map_or(Ok(x.clone()), |norm| norm.try_forward(&x))
    }
}

/// An error names the path of the layer in the outermost called module, without a trace of the model.
#[test]
fn an_error_names_the_path_of_its_layer() {
    let ones = |width: usize| Tensor::ones([2, width], DType::F32);
    let encoder = |widths: [usize; 4]| Encoder {
        blocks: vec![(Linear::new(widths[0], widths[1]), Relu), (Linear::new(widths[1], widths[2]), Relu)],
        norm: Some(Linear::new(widths[3], 1)),
    };
    let model = sequential![Linear::new(3, 4), Relu, Linear::new(5, 2)];
    let (layer, source) = named(model.try_forward(&ones(3)));
    assert_eq!(layer, "2 (Linear)");
    assert!(matches!(source, Error::ShapeMismatch { .. }), "{source}");
    let model = sequential![Flatten::new(), sequential![encoder([3, 4, 4, 7]), Relu]];
    let (layer, source) = named(model.try_forward(&ones(3)));
    assert_eq!(layer, "1.0.norm (Linear)");
    assert!(matches!(source, Error::ShapeMismatch { .. }), "{source}");
    assert_eq!(named(model.try_forward(&ones(6))).0, "1.0.blocks.0.0 (Linear)");
    // A repeated error names the same layer; the next error names another layer.
    assert_eq!(named(model.try_forward(&ones(6))).0, "1.0.blocks.0.0 (Linear)");
    assert_eq!(named(model.layers()[1].try_forward(&ones(6))).0, "0.blocks.0.0 (Linear)");
    // Hooks do not change the path, and a summary reports the same.
    let guard = hook::on_forward(&model, "1", |_, _| None).unwrap();
    assert_eq!(named(model.try_forward(&ones(6))).0, "1.0.blocks.0.0 (Linear)");
    drop(guard);
    assert_eq!(named(model.output_shape(&[2, 6])).0, "1.0.blocks.0.0 (Linear)");
    // The panic has the same text.
    let model = std::panic::AssertUnwindSafe(&model);
    let panic = std::panic::catch_unwind(|| model.forward(&ones(6))).unwrap_err();
    let text = panic.downcast_ref::<String>().unwrap();
    assert!(text.starts_with("1.0.blocks.0.0 (Linear): "), "{text}");
    // The name of a layer that is called directly is not repeated.
    assert!(matches!(Linear::new(2, 3).try_forward(&ones(4)), Err(Error::ShapeMismatch { .. })));
    // A zero-sized layer is identified by its box; an unbuilt lazy layer has no parts.
    assert_eq!(named(sequential![Linear::new(3, 3), Rejecting].try_forward(&ones(3))).0, "1 (Rejecting)");
    // A boxed model has the name of the layer in the box.
    let boxed: Box<dyn Layer> = Box::new(Rejecting);
    assert_eq!(named(boxed.output_shape(&[2, 3])).0, "Rejecting");
    assert_eq!(named(Arc::new(Rejecting).output_shape(&[2, 3])).0, "Rejecting");
    let boxed: Box<dyn Layer> = Box::new(Relu);
    assert!(boxed.summary(&[2, 3]).unwrap().to_string().contains("Relu"));
    let lazy = sequential![Relu, Linear::lazy(3)];
    assert_eq!(named(lazy.try_forward(&Tensor::from(1.0f32))).0, "1 (Lazy)");
    // Modules of several inputs.
    let layer = TransformerEncoderLayer::new(8, 2).hidden(16);
    let (path, _) = named(sequential![Linear::new(3, 6), layer].try_forward(&Tensor::ones([1, 2, 3], DType::F32)));
    assert!(path.starts_with('1'), "the path must start with 1, but is {path}");
}

/// A layer without fields that rejects every input.
#[derive(Clone, Module)]
struct Rejecting;

impl Layer for Rejecting {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        ops::reshape(x, [77])
    }
}

/// A layer that catches the error of a part, and a layer whose own computation fails.
#[derive(Clone, Module)]
struct Fallback(Linear, bool);

impl Layer for Fallback {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        match self.0.try_forward(x) {
            Ok(y) => Ok(y),
            Err(_) if self.1 => Ok(x.clone()),
            Err(_) => ops::reshape(x, [77]),
        }
    }
}

#[test]
fn an_error_that_a_layer_catches_is_not_named_later() {
    let x = Tensor::ones([2, 5], DType::F32);
    let model = sequential![Fallback(Linear::new(3, 3), true), Linear::new(4, 1)];
    assert_eq!(named(model.try_forward(&x)).0, "1 (Linear)");
    let model = sequential![Relu, Fallback(Linear::new(3, 3), false)];
    let (layer, source) = named(model.try_forward(&x));
    assert_eq!(layer, "1 (Fallback)");
    assert!(source.to_string().contains("reshape"), "{source}");
}

#[test]
fn modules_and_optimizers_are_unwind_safe() {
    use pellucid_nn::optim::{Adafactor, AdamW, AveragedModel, GradScaler, Lbfgs, Muon, Sgd};
    use pellucid_nn::paths::If;
    use std::panic::{RefUnwindSafe, UnwindSafe};
    const fn check<T: UnwindSafe + RefUnwindSafe>() {}
    const _: () = {
        check::<Parameter>();
        check::<Buffer>();
        check::<TrainingMode>();
        check::<Linear>();
        check::<Sequential>();
        check::<pellucid_nn::Lazy<Linear>>();
        check::<pellucid_nn::Lstm>();
        check::<pellucid_nn::MultiheadAttention>();
        check::<pellucid_nn::Transformer>();
        check::<If<Linear, Relu>>();
        check::<pellucid_nn::StateDict>();
        check::<(Sgd, AdamW, Adafactor, Muon, Lbfgs, GradScaler, AveragedModel)>();
    };
    let model = sequential![Linear::new(2, 2), Linear::new(3, 1)];
    let x = Tensor::ones([1, 2], DType::F32);
    assert!(std::panic::catch_unwind(|| drop(model.forward(&x))).is_err());
    assert!(model.layers()[0].forward(&x).to_vec::<f32>().iter().all(|y| y.is_finite()));
}

#[test]
fn a_moved_model_keeps_its_tensors() {
    let model = sequential![Linear::new(2, 3), BatchNorm1d::new(3), sequential![Linear::new(3, 1)]];
    let sgd = optim::Sgd::try_new(model.parameters(), optim::SgdOptions { lr: 0.5, ..Default::default() }).unwrap();
    let ids = |model: &Sequential| -> Vec<_> {
        let buffers = model.buffers().into_iter().map(|b| b.tensor().id());
        model.parameters().iter().map(|p| p.tensor().id()).chain(buffers).collect()
    };
    let before = (ids(&model), model.state_dict());
    model.to_(Device::best()).unwrap();
    assert_eq!(ids(&model), before.0);
    model.forward(&Tensor::from([[1.0f32, 2.0], [3.0, -1.0]])).sum(..).backward();
    sgd.step();
    let weight = model.state_dict()["2.0.weight"].to_vec::<f32>();
    assert_ne!(weight, before.1["2.0.weight"].to_vec::<f32>());
}

/// A mode that is set before a lazy layer is built is the mode of the built layer.
#[test]
fn a_lazy_layer_is_built_in_the_mode_of_its_model() {
    let x = Tensor::from([[1.0f32, 5.0], [3.0, -1.0]]);
    let model = sequential![BatchNorm1d::lazy()];
    model.eval();
    assert_ne!(model.forward(&x).mean(..).item::<f32>().abs(), 0.0, "the layer must use the running statistics");
    assert_eq!(model.buffers()[0].to_vec::<f32>(), [0.0, 0.0], "evaluation must not change the running statistics");
    let model = sequential![BatchNorm1d::lazy()];
    model.eval();
    model.train();
    model.forward(&x);
    assert_ne!(model.buffers()[0].to_vec::<f32>(), [0.0, 0.0]);
}

/// The error for a state dict of another optimizer says so, and lists no matching name.

#[test]
fn a_state_dict_of_another_optimizer_is_named() {
    let model = Linear::new(2, 1);
    let sgd =
        optim::Sgd::try_new(model.parameters(), optim::SgdOptions { momentum: 0.9, ..Default::default() }).unwrap();
    let adam = optim::AdamW::try_new(model.parameters(), Default::default()).unwrap();
    let lbfgs = optim::Lbfgs::try_new(model.parameters(), Default::default()).unwrap();
    let text = |result: Result<()>| result.unwrap_err().to_string();
    let rejected = text(sgd.load_state_dict(&adam.state_dict()));
    assert!(rejected.contains("belongs to another optimizer") && !rejected.contains("shapes"), "{rejected}");
    let rejected = text(adam.load_state_dict(&model.state_dict()));
    assert!(rejected.contains("not a state dict of this type of optimizer"), "{rejected}");
    let rejected = text(model.load_state_dict(&adam.state_dict()));
    assert!(rejected.contains("state dict of an optimizer"), "{rejected}");
    for rejected in [text(lbfgs.load_state_dict(&adam.state_dict())), text(adam.load_state_dict(&lbfgs.state_dict()))] {
        assert!(
            rejected.contains("type of optimizer") || rejected.contains("optimizer of the same type"),
            "{rejected}"
        );
        assert!(!rejected.contains("rename") && !rejected.contains("[]"), "{rejected}");
    }
    let other = optim::AdamW::try_new(Linear::new(3, 1).parameters(), Default::default()).unwrap();
    let rejected = text(adam.load_state_dict(&other.state_dict()));
    assert!(rejected.contains("belongs to another optimizer") && !rejected.contains("missing"), "{rejected}");
    let rejected = text(model.load_state_dict(&Linear::new(3, 1).state_dict()));
    assert!(rejected.contains("[1, 3] instead of [1, 2]") && rejected.contains("the sizes in the file"), "{rejected}");
}

#[test]
fn parameters_and_buffers_are_operands() {
    let (p, b) = (Parameter::new(Tensor::from([2.0f32, 4.0])), Buffer::new(Tensor::from([1.0f32, 3.0])));
    let x = Tensor::from([6.0f32, 8.0]);
    let results = [
        (&p + &p, [4.0, 8.0]),
        (&p - &b, [1.0, 1.0]),
        (&b * &p, [2.0, 12.0]),
        (&b / &b, [1.0, 1.0]),
        (&x * &p, [12.0, 32.0]),
        (x.copy() / &p, [3.0, 2.0]),
        (&p - &x, [-4.0, -4.0]),
        (&b % x.copy(), [1.0, 3.0]),
        (&p * 2.0, [4.0, 8.0]),
        (1.0 - &p, [-1.0, -3.0]),
        (2 * &b + 1, [3.0, 7.0]),
        (-&p, [-2.0, -4.0]),
        (-&b, [-1.0, -3.0]),
    ];
    for (k, (y, expected)) in results.iter().enumerate() {
        assert_eq!(y.to_vec::<f32>(), expected, "result {k}");
    }
    (x.matmul(&p) * &p).sum(..).backward();
    // d/dp of (x·p)·Σp is x·Σp + (x·p).
    assert_eq!(p.grad().unwrap().to_vec::<f32>(), [80.0, 92.0]);
    let mut step = capture(|inputs| &inputs[0] * &p - &b, &[&x]).unwrap();
    assert_eq!(step.launch(&[&x]).unwrap().to_vec::<f32>(0), [11.0, 29.0]);
    assert_eq!(ops::concatenate(&[&p, &p], 0).unwrap().to_vec::<f32>(), [2.0, 4.0, 2.0, 4.0]);
}
