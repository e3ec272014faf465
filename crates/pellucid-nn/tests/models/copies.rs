//! `deep_copy`: independent parameters, buffers and modes.

use crate::{bytes, error_text};
use pellucid_nn::optim::{Optimizer, Sgd, SgdOptions};
use pellucid_nn::{
    BatchNorm1d, BoxedLayer, Buffer, Dropout, Gru, Layer, Linear, Module, ModuleDict, ModuleList, Parameter,
    Parametrized, Relu, Sequential, SpectralNorm, loss, sequential,
};
use pellucid_tensor::{DType, Tensor, capture, manual_seed, no_grad, ops};
use std::collections::HashMap;

fn student() -> Sequential {
    sequential![Linear::new(3, 4), BatchNorm1d::new(4), Relu, Dropout::new(0.5), Linear::new(4, 2)]
}

#[test]
fn a_copy_has_the_same_values_and_is_independent() {
    manual_seed(2);
    let model = student();
    let frozen = model[0].downcast_ref::<Linear>().unwrap();
    frozen.freeze();
    model[3].eval();
    let x = Tensor::randn([8, 3], DType::F32);
    model.forward(&x).sum(..).backward();
    let copy = model.deep_copy().unwrap();
    let before = copy.state_dict();
    assert_eq!(before.len(), model.state_dict().len());
    for ((name, own), (_, other)) in model.named_parameters().iter().zip(copy.named_parameters()) {
        assert_eq!(bytes(own), bytes(&other), "{name}");
        assert_ne!((own.id(), own.storage_id()), (other.id(), other.storage_id()), "{name}");
        assert_eq!(own.requires_grad(), other.requires_grad(), "{name}");
        assert!(other.grad().is_none(), "gradients are not copied");
    }
    for ((name, own), (_, other)) in model.named_buffers().iter().zip(copy.named_buffers()) {
        assert_ne!(own.storage_id(), other.storage_id(), "{name}");
    }
    assert_eq!(copy.forward(&x).to_vec::<f32>(), model.forward(&x).to_vec::<f32>());
    // Neither values nor modes of one change the other.
    let before = copy.state_dict();
    let optimizer = Sgd::try_new(model.parameters(), SgdOptions { lr: 0.1, ..Default::default() }).unwrap();
    loss::mse_loss(&model.forward(&x), &Tensor::ones([8, 2], DType::F32)).backward();
    optimizer.step();
    copy.state_dict().iter().for_each(|(name, value)| assert_eq!(bytes(value), bytes(&before[name]), "{name}"));
    copy.eval();
    let modes = |model: &Sequential| model.forward(&x).to_vec::<f32>() == model.forward(&x).to_vec::<f32>();
    model.train();
    assert!(modes(&copy) && !modes(&model));
}

#[derive(Clone, Module)]
struct Agent {
    body: ModuleList,
    heads: ModuleDict<Linear>,
    recurrent: Option<Gru>,
    norms: HashMap<String, Parametrized<Linear, SpectralNorm>>,
    scale: Parameter,
    table: Buffer,
    tied: Linear,
    #[module(skip)]
    name: String,
}

#[test]
fn derived_models_and_all_containers_are_copied() {
    let body: Vec<BoxedLayer> = vec![Box::new(Linear::new(2, 2)), Box::new(Relu)];
    let mut heads = ModuleDict::new();
    heads.insert("value", Linear::new(2, 1));
    let tied = heads["value"].clone();
    let norms = HashMap::from([("norm".to_string(), Parametrized::new(Linear::new(2, 2), SpectralNorm::new()))]);
    let scale = Parameter::new(Tensor::ones([2], DType::F64));
    let table = Buffer::non_persistent(Tensor::from([1i64, 2]));
    let agent = Agent { body, heads, recurrent: Some(Gru::new(2, 2)), norms, scale, table, tied, name: "a".into() };
    let target = agent.deep_copy().unwrap();
    assert_eq!(target.name, "a");
    assert!(!target.table.is_persistent() && target.table.dtype() == DType::I64);
    assert_eq!(target.scale.dtype(), DType::F64);
    // A value that is shared in the model is shared in the copy.
    assert_eq!(target.tied.weight.id(), target.heads["value"].weight.id());
    assert_ne!(target.tied.weight.id(), agent.tied.weight.id());
    let names = |agent: &Agent| agent.named_parameters().into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    assert_eq!(names(&target), names(&agent));
    let (own, other) = (agent.state_dict(), target.state_dict());
    assert!(own.iter().all(|(name, value)| bytes(value) == bytes(&other[name])));
    // Loading the state of the agent updates the target network.
    let _off = no_grad();
    ops::copy_(&agent.tied.weight, &Tensor::ones([1, 2], DType::F32)).unwrap();
    assert_ne!(bytes(&target.tied.weight), bytes(&agent.tied.weight));
    target.load_state_dict(&agent.state_dict()).unwrap();
    assert_eq!(bytes(&target.tied.weight), bytes(&agent.tied.weight));
}

#[test]
fn a_teacher_is_an_exponential_average_of_its_student() {
    manual_seed(4);
    let (decay, steps) = (0.9f64, 3);
    let student = student();
    let teacher = student.deep_copy().unwrap();
    teacher.freeze();
    let ids: Vec<_> = teacher.parameters().iter().map(|p| p.id()).collect();
    let optimizer = Sgd::try_new(student.parameters(), SgdOptions { lr: 0.1, ..Default::default() }).unwrap();
    let mut expected: Vec<Vec<f32>> = teacher.parameters().iter().map(|p| p.to_vec()).collect();
    for _ in 0..steps {
        let x = Tensor::randn([8, 3], DType::F32);
        let target = teacher.forward(&x);
        assert!(!target.requires_grad());
        optimizer.zero_grad();
        loss::mse_loss(&student.forward(&x), &(target + 1.0)).backward();
        optimizer.step();
        let _off = no_grad();
        for ((old, new), expected) in teacher.parameters().iter().zip(student.parameters()).zip(&mut expected) {
            ops::copy_(old, &(old.tensor() * decay + new.tensor() * (1.0 - decay))).unwrap();
            let new = new.to_vec::<f32>();
            for (e, n) in expected.iter_mut().zip(new) {
                *e = (f64::from(*e) * decay + f64::from(n) * (1.0 - decay)) as f32;
            }
        }
    }
    for ((parameter, id), expected) in teacher.parameters().iter().zip(ids).zip(&expected) {
        assert_eq!(parameter.id(), id);
        let found = parameter.to_vec::<f32>();
        assert!(found.iter().zip(expected).all(|(f, e)| (f - e).abs() < 1e-6), "{found:?} instead of {expected:?}");
    }
}

#[test]
fn lazy_layers_are_copied_before_and_after_the_build() {
    let model = sequential![Linear::lazy(3), Relu, Linear::lazy(1)];
    model.eval();
    let unbuilt = model.deep_copy().unwrap();
    model.build(&[1, 4]).unwrap();
    let built = model.deep_copy().unwrap();
    assert_eq!(built.state_dict().len(), 4);
    unbuilt.build(&[1, 7]).unwrap();
    assert_eq!(unbuilt.parameters()[0].shape().dims(), [3, 7]);
    assert_eq!(model.parameters()[0].shape().dims(), [3, 4]);
}

#[derive(Clone, Module)]
struct Pair(Parameter, Parameter);

#[test]
fn views_of_one_storage_and_captured_steps_are_rejected() {
    let values = Tensor::ones([4], DType::F32);
    let (full, part) = (Parameter::new(values.clone()), Parameter::new(values.narrow(0, 0, 2)));
    let text = error_text(Pair(full.clone(), part).deep_copy().map(|_| ()));
    assert!(text.contains("deep_copy") && text.contains("view"), "{text}");
    // Two parameters of the same elements share them in the copy too.
    let Pair(a, b) = Pair(full, Parameter::new(values)).deep_copy().unwrap();
    assert_ne!(a.id(), b.id());
    assert_eq!(a.storage_id(), b.storage_id());
    let model = Linear::new(1, 1);
    let mut text = String::new();
    let x = Tensor::ones([1], DType::F32);
    drop(capture(
        |inputs: &[Tensor]| {
            text = error_text(model.deep_copy().map(|_| ()));
            &inputs[0] * 2.0
        },
        &[&x],
    ));
    assert!(text.contains("captured step"), "{text}");
}
