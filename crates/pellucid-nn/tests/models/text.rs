//! The text of models, and layers of containers by index.

use pellucid_nn::{
    BatchNorm2d, Conv2d, Dropout, Flatten, Layer, Linear, Lstm, MaxPool2d, Module, ModuleDict, ModuleList, Padding,
    Parameter, Relu, Sequential, sequential,
};
use pellucid_tensor::{DType, Tensor};

#[derive(Clone, Module)]
#[module(display)]
struct Classifier {
    stem: Conv2d,
    blocks: Vec<Sequential>,
    scale: Parameter,
    heads: ModuleDict<Linear>,
    classes: usize,
}

fn classifier() -> Classifier {
    let block = || sequential![BatchNorm2d::new(4), Relu, MaxPool2d::new(2)];
    let mut heads = ModuleDict::new();
    heads.insert("digit", Linear::new(4, 10).bias(false));
    let scale = Parameter::new(Tensor::ones([4], DType::F64));
    scale.set_requires_grad(false).unwrap();
    let stem = Conv2d::new(1, 4, 3).stride(2).padding(Padding::Same).dilation(2);
    Classifier { stem, blocks: vec![block()], scale, heads, classes: 10 }
}

#[test]
fn a_model_is_printed_as_the_tree_of_its_modules() {
    let expected = "\
Classifier(
  scale: [4] f64 frozen
  classes: 10
  (stem): Conv2d(weight: [4, 1, 3, 3], bias: [4], kernel: [3, 3], stride: [2, 2], dilation: [2, 2], padding: Same)
  (blocks.0): Sequential(
    (0): BatchNorm2d(weight: [4], bias: [4], running_mean: [4], running_var: [4], num_batches_tracked: [] i64, \
eps: 1e-5, momentum: 0.1)
    (1): Relu()
    (2): MaxPool2d(size: [2, 2], padding: [0], dilation: [1])
  )
  (heads.digit): Linear(weight: [10, 4])
)";
    assert_eq!(classifier().tree().to_string(), expected);
    assert_eq!(classifier().to_string(), expected);
    assert_eq!(format!("{:?}", classifier().tree()), expected);
}

#[test]
fn layers_and_containers_are_printed() {
    assert_eq!(Linear::new(2, 3).to_string(), "Linear(weight: [3, 2], bias: [3])");
    assert_eq!(Dropout::new(0.25).to_string(), "Dropout(p: 0.25)");
    assert_eq!(Sequential::new().to_string(), "Sequential()");
    let lstm = Lstm::new(2, 3).to_string();
    assert!(lstm.starts_with("Lstm(") && lstm.contains("weight_ih_l0: [12, 2]"), "{lstm}");
    assert_eq!(sequential![Linear::lazy(3)].to_string(), "Sequential(\n  (0): Lazy (not built)()\n)");
    let list: ModuleList = vec![Box::new(Relu), Box::new(Linear::new(1, 1))];
    assert_eq!(format!("{list:?}"), "[Relu(), Linear(weight: [1, 1], bias: [1])]");
    assert_eq!(list.tree().to_string(), "Vec(\n  (0): Relu()\n  (1): Linear(weight: [1, 1], bias: [1])\n)");
    let mut dict = ModuleDict::new();
    dict.insert("a", Relu);
    assert_eq!(dict.to_string(), "ModuleDict(\n  (a): Relu()\n)");
    let parameter = Parameter::new(Tensor::from([1.0f32, 2.0]));
    assert_eq!(parameter.to_string(), parameter.tensor().to_string());
}

#[test]
fn a_sequential_is_a_list_of_layers() {
    let model = sequential![Flatten::new(), Linear::new(4, 2), Relu];
    assert_eq!((model.len(), model.is_empty(), Sequential::new().is_empty()), (3, false, true));
    let x = Tensor::ones([3, 2, 2], DType::F32);
    let mut y = x.clone();
    for layer in &model {
        y = layer.forward(&y);
    }
    assert_eq!(y.to_vec::<f32>(), model.forward(&x).to_vec::<f32>());
    let linear = model[1].downcast_ref::<Linear>().unwrap();
    assert_eq!(linear.weight.id(), model.parameters()[0].id());
    assert!(model[0].downcast_ref::<Linear>().is_none());
    assert!(model.get(3).is_none());
    assert_eq!(model.get(2).unwrap().to_string(), "Relu()");
    // A clone shares the parameters.
    assert_eq!(model.clone().parameters()[0].id(), linear.weight.id());
    let reversed: Sequential = model.iter().rev().cloned().collect();
    assert_eq!(reversed.iter().map(|layer| layer.to_string()).next().unwrap(), "Relu()");
    let mut dict = ModuleDict::new();
    dict.insert("b", Relu);
    dict.insert("a", Relu);
    assert_eq!((&dict).into_iter().map(|(name, _)| name).collect::<Vec<_>>(), ["b", "a"]);
}

#[test]
#[should_panic(expected = "there is no layer 1; the container has 1")]
fn an_index_beyond_the_layers_is_rejected() {
    let _ = &sequential![Relu][1];
}
