//! The buffers of a plan, and pinning of them.

use crate::models::*;
use pellucid_nn::graph::mirror::*;
use pellucid_nn::loss::CrossEntropyLoss;
use pellucid_nn::optim::{Adam, AdamOptions, Optimizer};
use pellucid_nn::*;
use pellucid_tensor::plan::Launch;
use pellucid_tensor::{DType, Error, GradOptions, Result, Shape, Tensor, grad, manual_seed, ops};

fn shape(buf: Option<&Buf>) -> Option<Vec<usize>> {
    buf.map(|buf| buf.shape().dims().to_vec())
}

#[test]
fn a_plan_lists_every_buffer_of_a_convolutional_net() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let model = built(&KINDS[1]);
    let plan = make_plan_for_sequential(&model, &[8, 2, 5, 5], LossKind::SoftmaxCrossEntropy, 1 << 20).unwrap();
    let names: Vec<&str> = plan.per_layer.iter().map(|layer| layer.name.as_str()).collect();
    let expected = ["L0:Conv2d", "L1:BatchNorm2d", "L2:Relu", "L3:Dropout", "L4:Flatten", "L5:Linear"];
    assert_eq!((names, plan.lt_bytes, plan.input_shape.dims()), (expected.to_vec(), 1 << 20, [8, 2, 5, 5].as_slice()));
    let ys: Vec<_> = plan.per_layer.iter().map(|layer| layer.y.shape().dims().to_vec()).collect();
    let image = vec![8, 4, 5, 5];
    assert_eq!(ys, [image.clone(), image.clone(), image.clone(), image.clone(), vec![8, 100], vec![8, 4]]);
    // Only the input of an activation is a pre-activation; data has no gradient.
    let with_z: Vec<bool> = plan.per_layer.iter().map(|layer| layer.z.is_some()).collect();
    assert_eq!(with_z, [false, true, false, false, false, false]);
    let g_a: Vec<_> = plan.per_layer.iter().map(|layer| shape(layer.g_a.as_ref())).collect();
    assert_eq!(g_a[0], None);
    assert_eq!(g_a[1..].iter().flatten().map(Vec::len).collect::<Vec<_>>(), [4, 4, 4, 4, 2]);
    let conv = &plan.per_layer[0];
    assert_eq!((shape(conv.g_w()), shape(conv.g_b())), (Some(vec![4, 2, 3, 3]), Some(vec![4])));
    assert_eq!(conv.g_w().unwrap().bytes(), 4 * 4 * 2 * 9);
    // Every trained parameter is listed, by its name in the model.
    let planned: Vec<&str> = plan.gradients().map(|(name, _)| name).collect();
    let own: Vec<String> = model.named_parameters().into_iter().map(|(name, _)| name).collect();
    assert_eq!(planned, own);
    // Dropout has a mask as intermediate result; a view has none.
    assert!(plan.per_layer[3].work.as_ref().unwrap().bytes() >= 8 * 100);
    assert!(plan.per_layer[4].work.is_none());
    let LossBufs { d_y, target, .. } = &plan.loss;
    assert_eq!(
        (d_y.shape().dims(), plan.loss.out_shape().dims(), target),
        ([8, 4].as_slice(), [8, 4].as_slice(), &([8].into(), DType::I64))
    );
    assert!(plan.gradients().all(|(_, buf)| *buf.location() == ArenaSlot::Planned && buf.pinned().is_none()));
}

/// A model with a parameter of its own, a frozen layer, a shared one, and integers as input.
#[derive(Clone, Module)]
struct Odd {
    embedding: Embedding,
    twice: Linear,
    frozen: Linear,
    scale: Parameter,
}

impl Layer for Odd {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        let x = self.twice.try_forward(&self.twice.try_forward(&self.embedding.try_forward(x)?)?)?;
        ops::mul(&self.frozen.try_forward(&x)?, &self.scale)
    }

    fn input_dtype(&self) -> DType {
        DType::I64
    }
}

#[test]
fn no_gradient_is_forgotten_or_planned_twice() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let model = Odd {
        embedding: Embedding::new(10, 3),
        twice: Linear::new(3, 3),
        frozen: Linear::new(3, 2),
        scale: Parameter::new(Tensor::ones([2], DType::F32)),
    };
    model.frozen.freeze();
    let plan = make_plan_for_sequential(&model, &[5], LossKind::Mse, 0).unwrap();
    let lines: Vec<(&str, &str, Vec<&str>, bool)> = plan
        .per_layer
        .iter()
        .map(|l| {
            (l.name.as_str(), l.path.as_str(), l.gradients.iter().map(|g| g.0.as_str()).collect(), l.g_a.is_some())
        })
        .collect();
    let expected = [
        ("L0:Embedding", "embedding", vec!["embedding.weight"], false),
        ("L1:Linear", "twice", vec!["twice.weight", "twice.bias"], true),
        ("L2:Linear", "twice", vec![], true),
        ("L3:Linear", "frozen", vec![], true),
        ("L4:Odd", "", vec!["scale"], false),
    ];
    assert_eq!(lines, expected);
    // A plan of a single layer contains only this layer.
    let plan = make_plan_for_sequential(&Linear::new(3, 2), &[5, 3], LossKind::Mse, 0).unwrap();
    assert_eq!((plan.per_layer.len(), plan.per_layer[0].name.as_str()), (1, "L0:Linear"));
    assert_eq!(shape(plan.per_layer[0].g_w()), Some(vec![2, 3]));
}

#[test]
fn losses_return_shape_and_dtype_of_their_targets() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let target = |kind: LossKind, dims: &[usize]| kind.target(&Shape::from(dims), DType::F32);
    assert_eq!(target(LossKind::SoftmaxCrossEntropy, &[8, 3]).unwrap(), ([8].into(), DType::I64));
    assert_eq!(target(LossKind::SoftmaxCrossEntropy, &[8, 3, 4, 5]).unwrap(), ([8, 4, 5].into(), DType::I64));
    assert_eq!(target(LossKind::SoftmaxCrossEntropy, &[3]).unwrap(), (().into(), DType::I64));
    assert!(matches!(target(LossKind::SoftmaxCrossEntropy, &[]), Err(Error::ShapeMismatch { .. })));
    assert_eq!(target(LossKind::Mse, &[8, 3]).unwrap(), ([8, 3].into(), DType::F32));
    assert_eq!(target(LossKind::Bce, &[8, 3]).unwrap(), ([8, 3].into(), DType::F32));
    let own = LossKind::Custom { target: [8, 2].into(), dtype: DType::I32 };
    assert_eq!(target(own, &[8, 3]).unwrap(), ([8, 2].into(), DType::I32));
}

#[test]
fn parameters_are_collected_by_name_and_rebound_without_a_copy() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let model = mlp();
    let plan = make_plan_for_sequential(&model, &[8, 6], LossKind::SoftmaxCrossEntropy, 0).unwrap();
    let collected = collect_params_from_plan(&model, &plan).unwrap();
    let exempt: Vec<bool> = collected.iter().map(|(_, _, exempt)| *exempt).collect();
    assert_eq!(exempt, [false, true, false, true]);
    // The optimizer updates some parameters of this model and one parameter of another model.
    let [w, _, v, _] = &model.parameters()[..] else { panic!("the model must have four parameters") };
    let stranger = Parameter::new(Tensor::ones([2], DType::F32));
    let adam = Adam::try_new(vec![w.clone(), stranger.clone(), v.clone()], AdamOptions::default()).unwrap();
    let rebound = try_rebind_grads(&model, &adam, &plan).unwrap();
    assert_eq!(rebound.bound, ["0.weight", "2.weight"]);
    assert_eq!(rebound.not_updated, ["0.bias", "2.bias"]);
    assert_eq!(rebound.not_planned, [1]);
    assert!(stranger.grad().is_none() && model.parameters()[1].grad().is_none());
    // The optimizer reads the plan's buffer.
    let buffer = plan.per_layer[0].g_w().unwrap().pin().unwrap();
    let before = w.to_vec::<f32>();
    buffer.copy_(&Tensor::ones(w.shape(), DType::F32));
    adam.step();
    assert!(w.to_vec::<f32>().iter().zip(before).all(|(now, before)| now < &before));
}

/// After a launch, every pinned buffer contains the value that an eager pass computes.
#[test]
fn pinned_buffers_have_the_values() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    for stream in streams() {
        let model = sequential![Linear::new(6, 5), Tanh, Linear::new(5, CLASSES)];
        let loss = CrossEntropyLoss::default();
        let optimizer = sgd(&model, 0.0, 0.0);
        let (x, y) = batch(&[BATCH, 6], 5);
        let plan = make_plan_for_sequential(&model, &[BATCH, 6], LossKind::SoftmaxCrossEntropy, 0).unwrap();
        let [first, tanh, last] = &plan.per_layer[..] else { panic!("the plan must have three layers") };
        let asked = [first.y.pin(), first.z.as_ref().unwrap().pin(), tanh.y.pin(), last.g_a.as_ref().unwrap().pin()];
        let asked = asked.map(Result::unwrap);
        let rest = [plan.loss.d_y.pin().unwrap(), last.g_w().unwrap().pin().unwrap()];
        let mut exec = record_step_graph(&model, &loss, &optimizer, &plan, &x, &y, stream).unwrap();
        exec.launch().unwrap();

        let layers = model.layers();
        let z = layers[0].forward(&x);
        let a = layers[1].forward(&z);
        let logits = layers[2].forward(&a);
        let w = model.named_parameters().remove(2).1;
        let value = loss::cross_entropy(&logits, &y);
        let [g_a, d_y, g_w] = &grad(&[&value], &[&a, &logits, w.tensor()], GradOptions::default()).unwrap()[..] else {
            panic!("grad() must return three gradients")
        };
        let expected = [&z, &z, &a, g_a, d_y, g_w];
        for (k, (found, expected)) in asked.iter().chain(&rest).zip(expected).enumerate() {
            assert_eq!(
                found.to_vec::<f32>(),
                expected.to_vec::<f32>(),
                "the pinned buffer {k} differs from the eager value"
            );
        }
        assert_eq!(exec.loss.item::<f32>(), value.item::<f32>());
        // The first layer's output was pinned before the recording. No further buffer can be pinned after the
        // recording.
        let recorded = &exec.plan().per_layer;
        assert_eq!(recorded[0].y.location(), &ArenaSlot::Owned);
        // The output of the last layer, the logits, is a result of the step; its weight gradient is pinned.
        match (exec.is_captured(), recorded[2].y.location(), recorded[2].g_w().unwrap().location()) {
            (true, ArenaSlot::Owned, ArenaSlot::Owned) | (false, ArenaSlot::Planned, ArenaSlot::Owned) => (),
            other => panic!("unexpected locations of the buffers: {other:?}"),
        }
        assert!(matches!(recorded[2].y.pin(), Err(Error::InvalidArgument { .. })));
        assert!(w.grad().is_none(), "a gradient that is not bound to the plan must not exist between launches");
    }
}

/// An embedding and word scores that share one table.
#[derive(Clone, Module)]
struct Tied {
    words: Embedding,
    table: Parameter,
}

impl Layer for Tied {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        ops::matmul(&ops::mean(&self.words.try_forward(x)?, 1)?, &ops::transpose(&self.table, 0, 1)?)
    }

    fn input_dtype(&self) -> DType {
        DType::I64
    }
}

/// Every gradient is computed in the plan's buffer, even by several kernels; the only copy is of one
/// value that is the gradient of two parameters.
#[test]
fn gradients_are_computed_in_the_optimizers_buffers() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let words = Embedding::new(10, 6);
    let table = words.parameters().remove(0);
    let both = RecurrentOptions { batch_first: true, bidirectional: true, ..Default::default() };
    let mut models: Vec<(&str, Sequential, Vec<usize>)> = vec![
        ("embedding", sequential![Embedding::new(10, 6), Mean, Linear::new(6, CLASSES)], vec![BATCH, 5]),
        ("tied", sequential![Tied { words, table }], vec![BATCH, 5]),
        ("gru", sequential![Gru::with_options(6, 8, both), Last, Linear::new(16, CLASSES)], vec![BATCH, 5, 6]),
    ];
    models.extend(KINDS.iter().map(|kind| (kind.0, built(kind), kind.2.to_vec())));
    let loss = CrossEntropyLoss::default();
    for (name, model, shape) in &models {
        let optimizer = Adam::try_new(model.parameters(), AdamOptions::default()).unwrap();
        let options = CompileOptions::new(&loss, &optimizer);
        let mut step = model.compile(shape, options).unwrap();
        let captured = step.exec.captured().unwrap();
        model.parameters().iter().for_each(|p| captured.name(&p.grad().unwrap(), "gradient"));
        let plan = captured.plan();
        let gradients = |launch: &&Launch| {
            launch.outputs.iter().any(|o| plan.names.get(&o.slot).is_some_and(|name| name == "gradient"))
        };
        let copies = |launch: &&Launch| launch.parts().contains(&"copy");
        // Both biases of a recurrent layer's gates have the same gradient.
        let expected = usize::from(*name == "lstm");
        let found = plan.launches.iter().filter(gradients).filter(copies).count();
        assert_eq!(found, expected, "{name}: the number of copies in the plan is wrong:\n{plan}");
        assert!(
            plan.launches.iter().filter(gradients).count() >= model.parameters().len(),
            "{name}: every gradient must be written by a launch"
        );
    }
}

/// A layer without fields has no name, and a layer that is called twice has one name for both calls.
#[derive(Clone, Module)]
struct Plain {
    first: Linear,
    relu: Relu,
    again: Linear,
    drop: Dropout,
    head: Linear,
}

impl Plain {
    fn new() -> Plain {
        let (first, again) = (Linear::new(6, 5), Linear::new(5, 5));
        Plain { first, relu: Relu, again, drop: Dropout::new(0.3), head: Linear::new(5, CLASSES) }
    }
}

impl Layer for Plain {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        let x = self.relu.try_forward(&self.first.try_forward(x)?)?;
        let x = self.again.try_forward(&self.relu.try_forward(&self.again.try_forward(&x)?)?)?;
        self.head.try_forward(&self.drop.try_forward(&x)?)
    }
}

#[test]
fn layers_are_identified_by_their_calls() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let (model, loss) = (Plain::new(), CrossEntropyLoss::default());
    model.eval();
    let optimizer = Adam::try_new(model.parameters(), AdamOptions::default()).unwrap();
    let (x, y) = batch(&[BATCH, 6], 5);
    let plan = make_plan_for_sequential(&model, &[BATCH, 6], LossKind::SoftmaxCrossEntropy, 0).unwrap();
    let names: Vec<&str> = plan.per_layer.iter().map(|layer| layer.name.as_str()).collect();
    let expected = ["L0:Linear", "L1:Relu", "L2:Linear", "L3:Relu", "L4:Linear", "L5:Dropout", "L6:Linear"];
    assert_eq!(names, expected);
    let asked: Vec<Tensor> = plan.per_layer.iter().map(|layer| layer.y.pin().unwrap()).collect();
    let d_again = plan.per_layer[3].g_a.as_ref().unwrap().pin().unwrap();
    let a = model.first.forward(&x);
    let b = model.again.forward(&a.relu());
    let c = model.again.forward(&b.relu());
    let values = [&a, &a.relu(), &b, &b.relu(), &c, &c, &model.head.forward(&c)].map(|t| t.to_vec::<f32>());
    let value = loss::cross_entropy(&model.head.forward(&c), &y);
    let d_b = grad(&[&value], &[&b], GradOptions::default()).unwrap().remove(0).to_vec::<f32>();
    for stream in streams() {
        let before = model.state_dict();
        let mut exec = record_step_graph(&model, &loss, &optimizer, &plan, &x, &y, stream).unwrap();
        exec.launch().unwrap();
        assert!(asked.iter().map(|t| t.to_vec::<f32>()).eq(values.clone()));
        assert_eq!(d_again.to_vec::<f32>(), d_b);
        model.load_state_dict(&before).unwrap();
    }
}

#[test]
fn a_recording_locates_every_buffer() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let check = |name: &str, plan: &CapturePlan| {
        for layer in &plan.per_layer {
            let parts = [("y", Some(&layer.y)), ("z", layer.z.as_ref()), ("g_a", layer.g_a.as_ref())];
            let grads = layer.gradients.iter().map(|(name, buf)| (name.as_str(), Some(buf)));
            for (part, buf) in parts.into_iter().chain([("work", layer.work.as_ref())]).chain(grads) {
                let place = buf.map(Buf::location);
                assert!(
                    place != Some(&ArenaSlot::Planned),
                    "{name}: the buffer {part} of {} must have a location after recording",
                    layer.name
                );
                // An elided buffer names a kernel, and an arena slot has a lifetime.
                match place {
                    Some(ArenaSlot::Elided { by }) => assert!(!by.is_empty()),
                    Some(ArenaSlot::At { first, last, .. }) => assert!(first <= last),
                    Some(ArenaSlot::Parts(parts)) => assert!(parts.len() > 1),
                    _ => (),
                }
            }
        }
        assert!(
            plan.loss.d_y.location() != &ArenaSlot::Planned,
            "{name}: the gradient of the logits must have a location"
        );
    };
    let loss = CrossEntropyLoss::default();
    for kind in &KINDS {
        let model = built(kind);
        let optimizer = sgd(&model, 0.1, 0.9);
        let options = CompileOptions::new(&loss, &optimizer);
        check(kind.0, model.compile(kind.2, options).unwrap().exec.plan());
    }
    let model = Plain::new();
    let optimizer = Adam::try_new(model.parameters(), AdamOptions::default()).unwrap();
    let (x, y) = batch(&[BATCH, 6], 5);
    let plan = make_plan(&model, &x, None, None).unwrap();
    check("plain", record_step_graph(&model, &loss, &optimizer, &plan, &x, &y, None).unwrap().plan());
}

#[test]
fn a_plan_prints_and_adds_up() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let model = mlp();
    let plan = make_plan_for_sequential(&model, &[8, 6], LossKind::SoftmaxCrossEntropy, 0).unwrap();
    let text = plan.to_string();
    for part in ["L0:Linear", "L1:Relu", "gradient 2.weight", "logits gradient", "[8, 16]"] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
    let (loss, optimizer) = (CrossEntropyLoss::default(), sgd(&model, 0.1, 0.0));
    let trainer = model.compile(&[8, 6], CompileOptions::new(&loss, &optimizer));
    let recorded = trainer.unwrap().exec.plan().to_string();
    assert!(recorded.contains(" @") && recorded.contains(", kernels "), "{recorded}");
    assert!(!recorded.contains(['{', '}']), "the text of a plan must not contain the code of a value:\n{recorded}");
    let work: usize = plan.per_layer.iter().filter_map(|l| l.work.as_ref()).map(Buf::bytes).sum();
    let grads: usize = model.parameters().iter().map(|p| 4 * p.size()).sum();
    // The outputs of three layers, the gradients of the inputs of two layers, and the gradient of the logits.
    assert_eq!(plan.bytes(), work + grads + 4 * (8 * (16 + 16 + 4) + 8 * (16 + 16) + 8 * 4));
    if let Some(work) = plan.per_layer.iter().find_map(|l| l.work.as_ref()) {
        assert!(matches!(work.pin(), Err(Error::InvalidArgument { .. })));
    }
}

/// Planning changes neither parameters nor statistics nor the state of the generator.
#[test]
fn planning_changes_nothing() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let model = built(&KINDS[1]);
    let before = bits(model.state_dict());
    manual_seed(9);
    let expected = Tensor::rand([4], DType::F32).to_vec::<f32>();
    manual_seed(9);
    make_plan_for_sequential(&model, &[8, 2, 5, 5], LossKind::SoftmaxCrossEntropy, 0).unwrap();
    assert_eq!(Tensor::rand([4], DType::F32).to_vec::<f32>(), expected);
    assert_eq!(bits(model.state_dict()), before);
    assert!(model.parameters().iter().all(|p| p.grad().is_none()));
}
