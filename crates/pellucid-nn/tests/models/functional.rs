//! `functional_call` with layers of every kind, and its errors.

use crate::{bytes, error_text, own_tensors};
use pellucid_nn::paths::If;
use pellucid_nn::{
    AttentionMasks, BatchNorm1d, Conv1d, Dropout, Embedding, Gru, Identity, Layer, LayerNorm, Linear, Lstm, Module,
    MultiheadAttention, Parametrized, Prelu, Relu, RnnCell, Sequential, SpectralNorm, StateDict, Tanh, Transformer,
    WeightNorm, functional_call, hook, sequential,
};
use pellucid_tensor::{
    DType, Error, GradOptions, Result, Tensor, capture, checkpoint, grad, manual_seed, no_grad, ops,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Returns other values for all parameters, as results of an operation on the model's own.
fn doubled(model: &impl Module) -> StateDict {
    own_tensors(model).into_iter().map(|(name, tensor)| (name, tensor * 2.0)).collect()
}

/// Checks that a functional call equals a call of a model whose parameters have the values, with the same gradients.
fn check_functional_call<M: Module + Clone>(model: &M, run: impl Fn(&M) -> Tensor) {
    model.eval();
    let before = model.state_dict();
    let other = model.deep_copy().unwrap();
    for parameter in other.parameters() {
        let _off = no_grad();
        ops::copy_(&parameter, &(parameter.tensor() * 2.0)).unwrap();
    }
    let given = doubled(model);
    let found = functional_call(model, &given, &run).unwrap();
    let expected = run(&other);
    assert_eq!(bytes(&found), bytes(&expected));
    let values: Vec<&Tensor> = given.values().collect();
    // No gradient reaches the parameters of a path that was not taken.
    let options = || GradOptions { allow_unused: true, ..GradOptions::default() };
    let found = grad(&[&found.square().sum(..)], &values, options()).unwrap();
    let others = own_tensors(&other);
    let expected = grad(&[&expected.square().sum(..)], &others.values().collect::<Vec<_>>(), options()).unwrap();
    for ((name, found), expected) in given.keys().zip(&found).zip(&expected) {
        assert_eq!(bytes(found), bytes(expected), "the gradient of {name}");
        assert!(model.named_parameters().iter().all(|(_, p)| p.grad().is_none()));
    }
    for (name, value) in model.state_dict() {
        assert_eq!(bytes(&value), bytes(&before[&name]), "{name} of the model must not change");
    }
}

#[test]
fn layers_of_every_kind_use_the_given_tensors() {
    manual_seed(3);
    let x = Tensor::randn([4, 6], DType::F32);
    check_functional_call(&Linear::new(6, 3), |layer| layer.forward(&x));
    check_functional_call(&sequential![Linear::new(6, 6), BatchNorm1d::new(6), Prelu::new(), LayerNorm::new(6)], |m| {
        m.forward(&x)
    });
    check_functional_call(&Parametrized::new(Linear::new(6, 3), WeightNorm::new()), |layer| layer.forward(&x));
    check_functional_call(&Parametrized::new(Linear::new(6, 3), SpectralNorm::new()), |layer| layer.forward(&x));
    check_functional_call(&RnnCell::new(6, 5), |cell| cell.forward(&x, None));
    check_functional_call(&If::new(Linear::new(6, 3), Linear::new(6, 3)), |layer| layer.forward(&x));
    let sequence = Tensor::randn([5, 2, 6], DType::F32);
    check_functional_call(&Gru::new(6, 4), |layer| layer.forward(&sequence));
    check_functional_call(&Lstm::new(6, 4), |layer| layer.forward(&sequence));
    check_functional_call(&MultiheadAttention::new(6, 2), |layer| layer.forward(&sequence));
    check_functional_call(&Conv1d::new(2, 3, 3), |layer| layer.forward(&sequence));
    check_functional_call(&Embedding::new(7, 3), |layer| layer.forward(&Tensor::from([1i64, 5, 0])));
    let transformer = Transformer::new(6, 2, [1, 1]).hidden(8);
    let none = AttentionMasks::default();
    check_functional_call(&transformer, |model| model.forward(&sequence, &sequence, none, none, none));
    let lazy = sequential![Linear::lazy(4), Tanh, Linear::lazy(2)];
    lazy.build(&[1, 6]).unwrap();
    check_functional_call(&lazy, |model| model.forward(&x));
}

#[derive(Clone, Module)]
struct Tied {
    encoder: Linear,
    decoder: Linear,
}

impl Tied {
    fn new() -> Tied {
        let encoder = Linear::new(3, 3).bias(false);
        Tied { decoder: encoder.clone(), encoder }
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        self.decoder.forward(&self.encoder.forward(x).tanh())
    }
}

#[test]
fn a_shared_parameter_is_replaced_everywhere() {
    manual_seed(5);
    let (model, x) = (Tied::new(), Tensor::randn([2, 3], DType::F32));
    check_functional_call(&model, |model| model.forward(&x));
    let w = Tensor::eye(3, DType::F32);
    let named = |names: &[&str]| names.iter().map(|name| (name.to_string(), w.clone())).collect::<StateDict>();
    let expected = x.tanh().to_vec::<f32>();
    for names in [&["encoder.weight"][..], &["decoder.weight"], &["encoder.weight", "decoder.weight"]] {
        let found = functional_call(&model, &named(names), |model| model.forward(&x)).unwrap();
        assert_eq!(found.to_vec::<f32>(), expected, "{names:?}");
    }
    let mut two = named(&["encoder.weight", "decoder.weight"]);
    two.insert("decoder.weight".into(), &w * 2.0);
    let text = error_text(functional_call(&model, &two, |model| model.forward(&x)));
    assert!(text.contains("decoder.weight") && text.contains("different tensors"), "{text}");
}

#[test]
fn an_ensemble_is_a_loop_over_sets_of_tensors() {
    manual_seed(11);
    let members: Vec<Sequential> = (0..3).map(|_| sequential![Linear::new(4, 8), Relu, Linear::new(8, 2)]).collect();
    let x = Tensor::randn([5, 4], DType::F32);
    let sets: Vec<StateDict> = members.iter().map(Module::state_dict).collect();
    for (set, member) in sets.iter().zip(&members) {
        let found = functional_call(&members[0], set, |model| model.forward(&x)).unwrap();
        assert_eq!(found.to_vec::<f32>(), member.forward(&x).to_vec::<f32>());
    }
}

#[test]
fn calls_are_nested_and_a_panic_changes_nothing() {
    let (model, x) = (Linear::new(2, 2), Tensor::from([[1.0f32, 2.0]]));
    let own = model.forward(&x).to_vec::<f32>();
    let (two, zero) = (doubled(&model), model.state_dict().into_iter().map(|(n, t)| (n, t * 0.0)).collect());
    let found = functional_call(&model, &two, |outer| {
        let inner = functional_call(outer, &zero, |inner| inner.forward(&x)).unwrap();
        assert_eq!(inner.to_vec::<f32>(), [0.0, 0.0]);
        assert_eq!(model.forward(&x).to_vec::<f32>(), own);
        outer.forward(&x)
    });
    assert_eq!(found.unwrap().to_vec::<f32>(), own.iter().map(|y| y * 2.0).collect::<Vec<_>>());
    let caught = catch_unwind(AssertUnwindSafe(|| functional_call(&model, &two, |_| panic!("a panic of the test"))));
    assert!(caught.is_err());
    assert_eq!(model.clone().weight.id(), model.weight.id());
    assert_eq!(model.forward(&x).to_vec::<f32>(), own);
}

#[test]
fn threads_use_their_own_tensors() {
    let (model, x) = (Linear::new(2, 1).bias(false), Tensor::from([[1.0f32, 1.0]]));
    std::thread::scope(|scope| {
        for k in 0..4 {
            let (model, x) = (&model, &x);
            scope.spawn(move || {
                let given = StateDict::from([("weight".to_string(), Tensor::from([[k as f32, 1.0]]))]);
                for _ in 0..50 {
                    let y = functional_call(model, &given, |model| model.forward(x)).unwrap();
                    assert_eq!(y.item::<f32>(), k as f32 + 1.0);
                }
            });
        }
    });
}

#[test]
fn hooks_and_modes_of_the_model_apply() {
    let model = sequential![Linear::new(2, 2), Dropout::new(1.0), Relu];
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let guard = hook::on_forward(&model, "0", move |_, y| {
        counted.fetch_add(1, Ordering::Relaxed);
        Some(y * 0.0 + 1.0)
    })
    .unwrap();
    let (x, given) = (Tensor::ones([1, 2], DType::F32), own_tensors(&model));
    let run = || functional_call(&model, &given, |model| model.forward(&x)).unwrap().to_vec::<f32>();
    assert_eq!(run(), [0.0, 0.0]);
    model.eval();
    assert_eq!(run(), [1.0, 1.0]);
    assert_eq!(calls.load(Ordering::Relaxed), 2);
    drop(guard);
    assert_ne!(run(), [1.0, 1.0]);
    // A mode that is set inside applies to the model.
    functional_call(&model, &given, |model| model.train()).unwrap();
    assert_eq!(run(), [0.0, 0.0]);
}

#[test]
fn errors_name_the_tensor() {
    let model = sequential![Linear::new(2, 3), Relu, Linear::new(3, 1)];
    let call =
        |given: &StateDict| functional_call(&model, given, |model| model.forward(&Tensor::ones([1, 2], DType::F32)));
    let own = own_tensors(&model);
    let changed = |name: &str, tensor: Tensor| {
        let mut given = own.clone();
        given.insert(name.to_string(), tensor);
        given
    };
    let mut few = own.clone();
    few.remove("2.bias");
    few.insert("3.bias".into(), Tensor::ones([1], DType::F32));
    few.insert("0.bias".into(), Tensor::ones([2], DType::F32));
    assert!(matches!(call(&few), Err(Error::StateDict { op: "functional_call", .. })));
    let text = error_text(call(&few));
    for part in [
        "functional_call",
        "the tensors do not match the model",
        "missing [\"2.bias\"]",
        "unexpected [\"3.bias\"]",
        "other shapes: 0.bias: [2] instead of [3]",
        "pass tensors with the names and shapes of named_parameters()",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let text = error_text(call(&changed("0.bias", Tensor::ones([3], DType::F64))));
    assert!(text.contains("`0.bias`") && text.contains("f64 and f32") && text.contains("to_dtype"), "{text}");
    let lazy = sequential![Linear::lazy(3)];
    let text = error_text(functional_call(&lazy, &StateDict::new(), |_| ()));
    assert!(text.contains("Lazy") && text.contains("build()"), "{text}");
}

#[derive(Clone, Module)]
struct Shared {
    first: Linear,
    second: Arc<Linear>,
}

#[test]
fn a_part_behind_an_arc_is_rejected() {
    let model = Shared { first: Linear::new(1, 1), second: Arc::new(Linear::new(1, 1)) };
    let text = error_text(functional_call(&model, &doubled(&model), |_| ()));
    assert!(text.contains("`second.weight`") && text.contains("Arc"), "{text}");
    let text = error_text(model.deep_copy().map(|_| ()));
    assert!(text.contains("`second.weight`") && text.contains("Arc"), "{text}");
}

#[test]
fn a_captured_step_uses_the_tensors_of_its_inputs() {
    let model = sequential![Linear::new(2, 2), Dropout::new(1.0)];
    let x = Tensor::from([[1.0f32, 2.0]]);
    let step = |inputs: &[Tensor]| {
        let names = ["0.weight", "0.bias"].map(String::from);
        let given: StateDict = names.into_iter().zip(inputs[1..].iter().cloned()).collect();
        functional_call(&model, &given, |model| model.forward(&inputs[0])).unwrap()
    };
    let (w, b) = (Tensor::eye(2, DType::F32), Tensor::zeros([2], DType::F32));
    model.eval();
    let mut captured = capture(step, &[&x, &w, &b]).unwrap();
    assert_eq!(captured.launch(&[&x, &w, &b]).unwrap().to_vec::<f32>(0), [1.0, 2.0]);
    assert_eq!(captured.launch(&[&x, &(&w * 2.0), &(&b + 1.0)]).unwrap().to_vec::<f32>(0), [3.0, 5.0]);
    // The step depends on the mode of the model, which the clone shares.
    model.train();
    assert_eq!(captured.launch(&[&x, &w, &b]).unwrap().to_vec::<f32>(0), [0.0, 0.0]);
}

#[test]
fn a_checkpoint_recomputes_with_the_given_tensors_or_rejects() {
    manual_seed(9);
    let model = Arc::new(sequential![Linear::new(3, 3), Tanh]);
    let x = Tensor::randn([2, 3], DType::F32);
    let leaf = |tensor: Tensor| tensor.detach().requires_grad_(true);
    let given: StateDict = doubled(&*model).into_iter().map(|(name, tensor)| (name, leaf(tensor))).collect();
    let names: Vec<String> = given.keys().cloned().collect();
    let values: Vec<&Tensor> = given.values().collect();
    let loss = |y: &Tensor| y.square().sum(..);
    let direct = functional_call(&*model, &given, |model| loss(&model.forward(&x))).unwrap();
    let expected = grad(&[&direct], &values, GradOptions::default()).unwrap();
    // The checkpoint contains the functional call, and its inputs are the tensors.
    let inner = model.clone();
    let recomputed = move |inputs: &[Tensor]| -> Result<Vec<Tensor>> {
        let given: StateDict = names.iter().cloned().zip(inputs[1..].iter().cloned()).collect();
        Ok(vec![functional_call(&*inner, &given, |model| model.forward(&inputs[0]))?])
    };
    let inputs: Vec<&Tensor> = [&x].into_iter().chain(values.iter().copied()).collect();
    let y = checkpoint(recomputed, &inputs).unwrap().remove(0);
    let found = grad(&[&loss(&y)], &values, GradOptions::default()).unwrap();
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(bytes(found), bytes(expected));
    }
    // A layer of the clone depends on tensors that are not inputs of the checkpoint.
    let rejected = functional_call(&*model, &given, |model| {
        let layer = model[0].clone();
        checkpoint(move |inputs: &[Tensor]| Ok(vec![layer.try_forward(&inputs[0])?]), &[&x])
    });
    let text = error_text(rejected.unwrap());
    assert!(text.contains("checkpoint") && text.contains("not among its inputs"), "{text}");
    assert_eq!(Identity.forward(&x).id(), x.id());
}
