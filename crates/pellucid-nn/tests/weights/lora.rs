//! Low-rank adaptation: values, merging, training and state dicts.

use crate::{assert_near, bits};
use pellucid_nn::graph::{GraphTrainer, InferenceModel};
use pellucid_nn::loss::CrossEntropyLoss;
use pellucid_nn::optim::{Optimizer, Sgd, SgdOptions};
use pellucid_nn::*;
use pellucid_tensor::{DType, Error, Tensor, no_grad, ops};

/// Overwrites A and B with random values, of which none is an initial zero.
fn randomize<L: LoraTarget>(layer: Lora<L>) -> Lora<L> {
    init::normal_(&layer.lora_a, 0.0, 1.0);
    init::normal_(&layer.lora_b, 0.0, 1.0);
    layer
}

/// Checks the layer, its update and its gradients against the layer with the weight W + (α / r)·B·A, and merging.
fn check_adapted<L: LoraTarget + Clone>(plain: L, x: &Tensor) {
    let before = plain.forward(x);
    let layer = Lora::new(plain.deep_copy().unwrap(), 2).alpha(3.0);
    assert_eq!(layer.forward(x).to_bytes(), before.to_bytes(), "the initial update must be 0");
    let layer = randomize(layer);
    let original = layer.original().copy();
    let y = layer.forward(x);

    // The layer with the sum as its weight, which is differentiable in A and B.
    let sum = &original + layer.delta_weight();
    let mut tensors: StateDict =
        plain.named_parameters().into_iter().map(|(name, p)| (name, p.tensor().clone())).collect();
    tensors.insert("weight".to_string(), sum);
    let expected = functional_call(&plain, &tensors, |plain| plain.forward(x)).unwrap();
    assert_near(&y, &expected, 1e-12);
    let gradients = |y: &Tensor| {
        layer.zero_grad();
        y.square().sum(..).backward();
        [&layer.lora_a, &layer.lora_b].map(|parameter| parameter.grad().unwrap())
    };
    let [ours, theirs] = [gradients(&y), gradients(&expected)];
    for (ours, theirs) in ours.iter().zip(&theirs) {
        assert_near(ours, theirs, 1e-10);
    }
    assert!(layer.layer().parameters().iter().all(|frozen| frozen.grad().is_none() && !frozen.requires_grad()));

    layer.merge();
    layer.merge();
    assert!(layer.is_merged());
    assert_near(&layer.forward(x), &y, 1e-12);
    layer.unmerge();
    assert_near(layer.original(), &original, 1e-14);
    assert_near(&layer.forward(x), &y, 1e-12);
    let merged = layer.remove();
    assert_near(&merged.forward(x), &y, 1e-12);
    assert!(merged.parameters().iter().all(|parameter| parameter.requires_grad()));
}

#[test]
fn the_update_equals_a_layer_with_the_sum_of_weights() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let randn = |shape: &[usize]| Tensor::randn(shape, DType::F64);
    init::in_dtype(DType::F64, || {
        check_adapted(Linear::new(5, 4), &randn(&[3, 5]));
        check_adapted(Linear::new(5, 4).bias(false), &randn(&[2, 3, 5]));
        check_adapted(Conv1d::new(4, 6, 3).stride(2).padding(1), &randn(&[2, 4, 9]));
        check_adapted(Conv2d::new(4, 6, [3, 2]).dilation(2).groups(2), &randn(&[2, 4, 7, 6]));
        check_adapted(Conv2d::new(4, 8, 3).padding(Padding::Same).groups(4), &randn(&[2, 4, 5, 5]));
        check_adapted(Conv3d::new(2, 3, 2).bias(false), &randn(&[1, 2, 4, 3, 5]));
        check_adapted(Embedding::new(7, 3), &Tensor::from([[1i64, 0, 6], [6, 2, 2]]));
    });
}

/// A padding row of a table is unchanged: the update leaves it at 0.
#[test]
fn a_padding_row_is_not_trained() {
    let layer = Lora::new(Embedding::new(4, 3).padding_index(1), 2);
    layer.forward(&Tensor::from([0i64, 1, 1, 3])).square().sum(..).backward();
    let gradient = layer.lora_a.grad().unwrap();
    assert_eq!(gradient.i((.., 1)).to_vec::<f32>(), [0.0; 2]);
    assert!(gradient.i((.., 0)).abs().sum(..).item::<f32>() > 0.0);
}

#[test]
fn dropout_changes_the_update_in_training_only() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let layer = randomize(Lora::new(Linear::new(40, 4), 2).dropout(0.5));
    let x = Tensor::randn([3, 40], DType::F32);
    assert_ne!(layer.forward(&x).to_bytes(), layer.forward(&x).to_bytes());
    layer.eval();
    assert_eq!(layer.forward(&x).to_bytes(), layer.forward(&x).to_bytes());
    init::zeros_(&layer.lora_b);
    layer.train();
    assert_eq!(layer.forward(&x).to_bytes(), layer.layer().forward(&x).to_bytes());
}

fn model() -> Sequential {
    sequential![Linear::new(6, 8), Tanh, Lora::new(Linear::new(8, 8), 2).alpha(4.0), Relu, Linear::new(8, 3)]
}

#[test]
fn only_the_updates_are_trained_and_saved() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let model = model();
    only_lora_trainable(&model).unwrap();
    let trainable: Vec<String> =
        model.named_parameters().into_iter().filter(|(_, p)| p.requires_grad()).map(|(name, _)| name).collect();
    assert_eq!(trainable, ["2.lora_A", "2.lora_B"]);
    assert_eq!(lora_parameters(&model).unwrap().len(), 2);
    let state = lora_state_dict(&model).unwrap();
    assert_eq!(state.keys().collect::<Vec<_>>(), ["2.lora_A", "2.lora_B"]);
    let other = model.deep_copy().unwrap();
    for parameter in lora_parameters(&model).unwrap() {
        init::normal_(&parameter, 0.0, 1.0);
    }
    let keys = other.load_matching(&lora_state_dict(&model).unwrap()).unwrap();
    assert_eq!((keys.missing.len(), keys.unexpected.len()), (6, 0));
    let x = Tensor::randn([2, 6], DType::F32);
    assert_eq!(other.forward(&x).to_bytes(), model.forward(&x).to_bytes());

    // A file of the original model has all names but those of the update.
    let original = sequential![Linear::new(6, 8), Tanh, Linear::new(8, 8), Relu, Linear::new(8, 3)];
    let keys = model.load_matching(&original.state_dict()).unwrap();
    assert_eq!(keys.missing, ["2.lora_A", "2.lora_B"]);
    let text = model.layers()[2].tree().to_string();
    assert!(text.contains("weight: [8, 8] frozen") && text.contains("alpha: 4.0"), "{text}");
}

/// Captured steps train the update bit-identically to eager steps, and leave the frozen parameters.
#[test]
fn captured_steps_equal_eager_ones() {
    let run = |captured: bool| {
        let _random = pellucid_tensor::Generator::new(0).scope();
        let model = model();
        only_lora_trainable(&model).unwrap();
        let frozen = model.state_dict();
        let optimizer = Sgd::new(lora_parameters(&model).unwrap(), SgdOptions { lr: 0.1, ..Default::default() });
        let (x, y) = (Tensor::randn([5, 6], DType::F32), Tensor::randint(0, 3, [5]));
        let mut trainer = GraphTrainer::new(&model, CrossEntropyLoss::default(), &optimizer);
        for _ in 0..4 {
            if captured {
                trainer.step(&x, &y).unwrap();
            } else {
                optimizer.zero_grad();
                loss::cross_entropy(&model.forward(&x), &y).backward();
                optimizer.step();
            }
        }
        let state = model.state_dict();
        for (name, value) in &state {
            assert_eq!(value.to_bytes() != frozen[name].to_bytes(), name.contains("lora_"), "{name}");
        }
        bits(state.values())
    };
    assert_eq!(run(true), run(false));
}

/// An inference model records a path for each of both states.
#[test]
fn an_inference_model_follows_a_merge() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let layer = randomize(Lora::new(Linear::new(6, 4), 2));
    let x = Tensor::randn([2, 6], DType::F32);
    let mut inference = InferenceModel::new(&layer, &[2]);
    let eager = |layer: &Lora<Linear>| {
        let _off = no_grad();
        layer.forward(&x).to_bytes()
    };
    assert_eq!(inference.run(&x).unwrap().to_bytes(), eager(&layer));
    layer.merge();
    assert_eq!(inference.run(&x).unwrap().to_bytes(), eager(&layer));
    layer.unmerge();
    assert_eq!(inference.run(&x).unwrap().to_bytes(), eager(&layer));
}

/// Clones share W, so they share whether it includes the update; a copy has both of its own.
#[test]
fn clones_share_a_merge() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let layer = randomize(Lora::new(Linear::new(4, 3), 2));
    let model = sequential![layer.clone(), Tanh];
    let x = Tensor::randn([2, 4], DType::F32);
    let before = model.forward(&x);
    let copy = model.deep_copy().unwrap();
    layer.merge();
    assert_near(&model.forward(&x), &before, 1e-6);
    assert_eq!(copy.forward(&x).to_bytes(), before.to_bytes());
    let tied = sequential![layer.clone(), layer.clone().alpha(2.0)].deep_copy().unwrap();
    assert!(!copy.state_dict().contains_key("0.lora_merged"));
    assert_eq!(tied.state_dict().keys().filter(|name| name.ends_with("lora_merged")).count(), 1);
    drop(layer.clone().remove());
    assert!(layer.is_merged());
}

/// A state dict records whether W includes the update, in all four combinations of the saved and the loading layer.
#[test]
fn a_state_dict_records_a_merge() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let new = |merged: bool| {
        let layer = randomize(Lora::new(Linear::new(4, 3), 2).alpha(3.0));
        if merged {
            layer.merge();
        }
        sequential![layer, Tanh]
    };
    let x = Tensor::randn([5, 4], DType::F32);
    for [saved_merged, loading_merged] in [[false, false], [false, true], [true, false], [true, true]] {
        let (saved, loading, other) = (new(saved_merged), new(loading_merged), new(loading_merged));
        let state = saved.state_dict();
        assert_eq!(state.contains_key("0.lora_merged"), saved_merged);
        loading.load_state_dict(&state).unwrap();
        assert_eq!(loading.forward(&x).to_bytes(), saved.forward(&x).to_bytes());
        let checkpoint = Checkpoint::new().model(&saved).state().unwrap();
        Checkpoint::new().model(&other).load_state_dict(&checkpoint).unwrap();
        assert_eq!(other.forward(&x).to_bytes(), saved.forward(&x).to_bytes());
    }
}

/// Weights of the original model clear a merge; an update alone cannot be loaded into a merged layer.
#[test]
fn partial_states_follow_a_merge() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let layer = randomize(Lora::new(Linear::new(4, 3), 2));
    let update = lora_state_dict(&layer).unwrap();
    let x = Tensor::randn([5, 4], DType::F32);
    layer.merge();
    let error = layer.load_matching(&update).unwrap_err();
    assert!(error.to_string().contains("unmerge()"), "{error}");
    assert!(layer.is_merged());
    let error = layer.clone().try_alpha(3.0).unwrap_err();
    assert!(error.to_string().contains("unmerge()"), "{error}");
    let bias = StateDict::from([("bias".to_string(), Tensor::zeros([3], DType::F32))]);
    layer.load_matching(&bias).unwrap();
    assert!(layer.is_merged());
    let original = Linear::new(4, 3);
    layer.load_matching(&original.state_dict()).unwrap();
    assert!(!layer.is_merged());
    let unmerged = original.forward(&x) + x.matmul(&layer.delta_weight().t());
    assert_near(&layer.forward(&x), &unmerged, 1e-5);
    let two = Tensor::ones([2], DType::F32);
    let mut wrong = layer.state_dict();
    wrong.insert("lora_merged".to_string(), two);
    assert!(layer.load_state_dict(&wrong).is_err());
}

#[test]
fn rejected_options_are_errors() {
    let invalid = |result: Result<(), Error>| matches!(result, Err(Error::InvalidArgument { .. }));
    assert!(invalid(Lora::try_new(Linear::new(2, 2), 0).map(drop)));
    assert!(invalid(Lora::new(Linear::new(2, 2), 1).try_alpha(0.0).map(drop)));
    assert!(invalid(Lora::new(Linear::new(2, 2), 1).try_dropout(1.5).map(drop)));
    assert!(invalid(Lora::new(Embedding::new(2, 2), 1).try_dropout(0.5).map(drop)));
    assert!(invalid(lora_parameters(&Linear::new(2, 2)).map(drop)));
    let plain = Linear::new(2, 2);
    assert!(invalid(only_lora_trainable(&plain)));
    assert!(plain.weight.requires_grad());
    let layer = Lora::new(Linear::new(2, 3), 1);
    let error = layer.try_forward(&Tensor::zeros([1, 4], DType::F32)).unwrap_err();
    assert!(matches!(error.root(), Error::ShapeMismatch { .. }), "{error}");
    let half = Lora::new(Linear::new(2, 3).to_dtype(DType::BF16).unwrap(), 1);
    assert_eq!(half.lora_a.dtype(), DType::BF16);
    assert_eq!(ops::neg(&half.delta_weight()).unwrap().dtype(), DType::BF16);
}

/// Clones merge their update into one weight, so they have one scale.
#[test]
fn clones_have_the_same_scale() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let layer = randomize(Lora::new(Linear::new(4, 3), 2).alpha(3.0));
    let clone = layer.clone();
    for rejected in [clone.clone().try_alpha(8.0), layer.clone().try_alpha(8.0)] {
        let text = rejected.unwrap_err().to_string();
        assert!(text.contains("clones"), "{text}");
    }
    let before = layer.original().copy();
    layer.clone().alpha(3.0).merge();
    clone.unmerge();
    assert_near(layer.original(), &before, 1e-5);
    assert_eq!(layer.deep_copy().unwrap().alpha(8.0).scaling(), 4.0);
    drop(clone);
    assert_eq!(layer.alpha(8.0).scaling(), 4.0);
}
