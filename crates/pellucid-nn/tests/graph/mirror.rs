//! The names of an earlier framework: plans, bound gradients, steps over fixed buffers, and its trainer.

use crate::models::*;
use crate::steps::uncapturable_loss;
use pellucid_nn::graph::mirror::*;
use pellucid_nn::loss::{CrossEntropyLoss, Loss};
use pellucid_nn::optim::{Adam, AdamOptions, Optimizer};
use pellucid_nn::paths::If;
use pellucid_nn::*;
use pellucid_tensor::{CacheStats, DType, Error, Result, Shape, Tensor, manual_seed, ops};
use std::sync::atomic::{AtomicUsize, Ordering};

fn adam(model: &Sequential) -> Adam {
    Adam::try_new(model.parameters(), AdamOptions { lr: 0.01, ..Default::default() }).unwrap()
}

fn plan(model: &Sequential, shape: &[usize]) -> CapturePlan {
    make_plan_for_sequential(model, shape, None, None).unwrap()
}

/// Returns empty buffers for batches of this shape.
fn buffers(model: &Sequential, shape: &[usize]) -> (Tensor, Tensor) {
    (Tensor::zeros(shape, model.input_dtype()), Tensor::zeros([BATCH], DType::I64))
}

/// Returns a step of the optimizer, with its gradients in the plan.
fn recorded<'f>(
    model: &'f Sequential,
    loss: &'f (impl Loss + ?Sized),
    optimizer: &'f dyn Optimizer,
    shape: &[usize],
) -> TrainGraph<'f> {
    let plan = plan(model, shape);
    try_rebind_grads(model, optimizer, &plan).unwrap();
    let (x, y) = buffers(model, shape);
    let exec = record_step_graph(model, loss, || optimizer.step(), &plan, &x, &y).unwrap();
    TrainGraph::new(exec, plan, x, y)
}

fn error<T>(result: Result<T>) -> Error {
    result.err().expect("the call must return an error")
}

#[test]
fn a_plan_lists_every_buffer_of_a_convolutional_net() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    // The linear layer is lazy.
    let model = cnn();
    let plan = make_plan_for_sequential(&model, &[8, 2, 5, 5], LossKind::SoftmaxCrossEntropy, 1 << 20).unwrap();
    let names: Vec<&str> = plan.per_layer.iter().map(|layer| layer.name.as_str()).collect();
    let expected = ["L0:Conv2d", "L1:BatchNorm2d", "L2:Relu", "L3:Dropout", "L4:Flatten", "L5:Linear"];
    assert_eq!((names, plan.lt_bytes, plan.input.shape.dims()), (expected.to_vec(), 1 << 20, [8, 2, 5, 5].as_slice()));
    let ys: Vec<_> = plan.per_layer.iter().map(|layer| layer.y.shape.dims().to_vec()).collect();
    let image = vec![8, 4, 5, 5];
    assert_eq!(ys, [image.clone(), image.clone(), image.clone(), image.clone(), vec![8, 100], vec![8, 4]]);
    // Only the input of an activation is a pre-activation; data has no gradient.
    let with_z: Vec<bool> = plan.per_layer.iter().map(|layer| layer.z.is_some()).collect();
    assert_eq!(with_z, [false, true, false, false, false, false]);
    let g_a: Vec<_> = plan.per_layer.iter().map(|layer| layer.g_a.as_ref().map(|buf| buf.shape.rank())).collect();
    assert_eq!(g_a, [None, Some(4), Some(4), Some(4), Some(4), Some(2)]);
    let (conv, norm) = (&plan.per_layer[0], &plan.per_layer[1]);
    assert_eq!(conv.g_w().unwrap().shape().dims(), [4, 2, 3, 3]);
    assert_eq!((conv.g_b().unwrap().shape().dims(), norm.g_b().unwrap().shape().dims()), (&[4][..], &[4][..]));
    assert!(plan.per_layer[2].gradient("weight").is_none());
    // Every trained parameter is listed, by its name in the model.
    let planned: Vec<&str> = plan.gradients().map(|(name, _)| name).collect();
    let own: Vec<String> = model.named_parameters().into_iter().map(|(name, _)| name).collect();
    assert_eq!(planned, own);
    // Dropout has a mask as intermediate result; a view has none.
    assert!(plan.per_layer[3].work >= 8 * 100 && plan.per_layer[4].work == 0);
    let LossBufs { d_y, target } = &plan.loss;
    assert_eq!(
        (d_y.shape.dims(), plan.loss.out_shape().dims(), target),
        (&[8, 4][..], &[8, 4][..], &([8].into(), DType::I64))
    );
}

#[test]
fn the_bytes_of_a_plan_add_up() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let model = mlp();
    let plan = plan(&model, &[8, 6]);
    let work: usize = plan.per_layer.iter().map(|layer| layer.work).sum();
    let gradients: usize = model.parameters().iter().map(|p| 4 * p.size()).sum();
    // The outputs of three layers, the gradients of the inputs of two layers, and the gradient of the logits.
    assert_eq!(plan.bytes(), work + gradients + 4 * (8 * (16 + 16 + 4) + 8 * (16 + 16) + 8 * 4));
}

/// A shared parameter is listed once, a frozen one not at all, and integers have no gradient.
#[test]
fn no_gradient_is_forgotten_or_planned_twice() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let twice = Linear::new(3, 3);
    let model = sequential![Embedding::new(10, 3), twice.clone(), twice, Linear::new(3, 2)];
    model[3].freeze();
    let plan = make_plan_for_sequential(&model, &[5], LossKind::Mse, 0).unwrap();
    let lines: Vec<(&str, Vec<&str>, bool)> = plan
        .per_layer
        .iter()
        .map(|l| (l.name.as_str(), l.gradients.iter().map(|g| g.0.as_str()).collect(), l.g_a.is_some()))
        .collect();
    let expected = [
        ("L0:Embedding", vec!["0.weight"], false),
        ("L1:Linear", vec!["1.weight", "1.bias"], true),
        ("L2:Linear", vec![], true),
        ("L3:Linear", vec![], true),
    ];
    assert_eq!(lines, expected);
    assert_eq!((&plan.input.shape, plan.input.dtype), (&[5].into(), DType::I64));
}

#[test]
fn losses_return_shape_and_dtype_of_their_targets() {
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

/// Planning changes neither parameters nor statistics nor the state of the generator.
#[test]
fn planning_changes_nothing() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let model = built(&KINDS[1]);
    let before = bits(model.state_dict());
    manual_seed(9);
    let expected = Tensor::rand([4], DType::F32).to_vec::<f32>();
    manual_seed(9);
    plan(&model, &[8, 2, 5, 5]);
    assert_eq!(Tensor::rand([4], DType::F32).to_vec::<f32>(), expected);
    assert_eq!(bits(model.state_dict()), before);
    assert!(model.parameters().iter().all(|p| p.grad().is_none()));
}

#[test]
fn parameters_are_collected_by_name_and_rebound_without_a_copy() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let model = mlp();
    let plan = plan(&model, &[8, 6]);
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
    let before = w.to_vec::<f32>();
    plan.per_layer[0].g_w().unwrap().copy_(&Tensor::ones(w.shape(), DType::F32));
    adam.step();
    assert!(w.to_vec::<f32>().iter().zip(before).all(|(now, before)| now < &before));
    // A model of other widths.
    let wider = sequential![Linear::new(6, 17), Relu, Linear::new(17, CLASSES)];
    assert!(matches!(collect_params_from_plan(&wider, &plan), Err(Error::ShapeMismatch { .. })));
    assert!(matches!(try_rebind_grads(&wider, &adam, &plan), Err(Error::ShapeMismatch { .. })));
}

/// Launches equal hand-written steps, for every kind of model, and with gradients that are removed between launches.
#[test]
fn launches_equal_eager_steps() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    for kind in &KINDS {
        let (model, other, loss) = (built(kind), built(kind), CrossEntropyLoss::default());
        let (optimizer, hand) = (adam(&model), adam(&other));
        let before = bits(model.state_dict());
        let mut graph = recorded(&model, &loss, &optimizer, kind.2);
        assert!(graph.exec.captured().is_some() && graph.exec.eager_reason().is_none());
        assert_eq!(bits(model.state_dict()), before, "recording must not change the state");
        assert!(graph.plan().gradients().all(|(_, g)| g.to_vec::<f32>().iter().all(|g| *g == 0.0)));
        for seed in 0..4 {
            let (x, y) = batch(kind.2, seed);
            graph.set_batch(&x, &y).unwrap();
            if seed == 2 {
                model.zero_grad();
            }
            manual_seed(seed);
            graph.launch().unwrap();
            manual_seed(seed);
            hand.zero_grad();
            let logits = other.forward(&x);
            let value = loss::cross_entropy(&logits, &y);
            value.backward();
            hand.step();
            assert_eq!(bits(model.state_dict()), bits(other.state_dict()), "{}: batch {seed}", kind.0);
            assert_eq!(graph.loss().unwrap().item::<f32>(), value.item::<f32>());
            assert_eq!(graph.logits().unwrap().to_vec::<f32>(), logits.to_vec::<f32>());
            for (name, p) in other.named_parameters() {
                let gradient = graph.plan().gradient(&name).unwrap();
                assert_eq!(gradient.to_vec::<f32>(), p.grad().unwrap().to_vec::<f32>(), "{}: {name}", kind.0);
            }
        }
        assert_eq!(graph.exec.captured().unwrap().cache_stats().misses, 0);
        assert_eq!(bits(optimizer.state_dict()), bits(hand.state_dict()));
    }
}

/// A parameter that the loss does not reach has the gradient 0, and other parameters keep theirs.
#[test]
fn a_parameter_off_the_path_has_the_gradient_zero() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let branch = If::new(Linear::new(6, CLASSES), Linear::new(6, CLASSES));
    let (model, loss) = (sequential![branch], CrossEntropyLoss::default());
    let optimizer = sgd(&model, 0.1, 0.0);
    let mut graph = recorded(&model, &loss, &optimizer, &[BATCH, 6]);
    let (x, y) = batch(&[BATCH, 6], 1);
    graph.set_batch(&x, &y).unwrap();
    for way in [true, false, true] {
        model.visit(&mut Visitor::new(&mut |_, part| {
            if let ModulePart::PathChoice(choice) = part {
                choice.set(usize::from(way));
            }
        }));
        graph.launch().unwrap();
        let reached = graph.plan().gradients().map(|(_, g)| g.to_vec::<f32>().iter().any(|g| *g != 0.0));
        assert_eq!(reached.collect::<Vec<_>>(), [way, way, !way, !way]);
    }
}

#[test]
fn a_step_runs_eagerly_on_a_device_that_cannot_capture() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let model = mlp();
    let optimizer = sgd(&model, 0.1, 0.0);
    let rejecting = loss::from_fn(uncapturable_loss);
    let mut graph = recorded(&model, &rejecting, &optimizer, &[BATCH, 6]);
    assert!(graph.exec.captured().is_none() && graph.exec.eager_reason().unwrap().contains("no graphs"));
    assert!(graph.loss().unwrap_err().to_string().contains("call launch() first"));
    graph.launch().unwrap();
    let first = graph.loss().unwrap().item::<f32>();
    graph.launch().unwrap();
    assert!(graph.loss().unwrap().item::<f32>() < first);
}

/// A launch replays the operations of the update, and does not run it; its errors are returned.
#[test]
fn an_update_runs_while_the_step_is_recorded() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let (model, loss) = (mlp(), CrossEntropyLoss::default());
    let (plan, (x, y)) = (plan(&model, &[BATCH, 6]), batch(&[BATCH, 6], 1));
    let (calls, parameters) = (AtomicUsize::new(0), model.parameters());
    let update = || {
        calls.fetch_add(1, Ordering::Relaxed);
        parameters.iter().for_each(|p| p.copy_(&(p.tensor() - p.grad().unwrap() * 0.1)));
    };
    let unbound = error(record_step_graph(&model, &loss, update, &plan, &x, &y));
    assert!(unbound.to_string().contains("try_rebind_grads()"), "{unbound}");
    try_rebind_grads(&model, &sgd(&model, 0.1, 0.0), &plan).unwrap();
    let mut exec = record_step_graph(&model, &loss, update, &plan, &x, &y).unwrap();
    // In debug builds, the second and the third launch record again, to verify the step.
    (0..3).for_each(|_| exec.launch().unwrap());
    let recorded = calls.load(Ordering::Relaxed);
    (0..3).for_each(|_| exec.launch().unwrap());
    assert_eq!(calls.load(Ordering::Relaxed), recorded);
    let failing = || Err::<(), _>(Error::invalid("update", "no update today"));
    let rejected = error(record_step_graph(&model, &loss, failing, &plan, &x, &y));
    assert!(rejected.to_string().contains("no update today"), "{rejected}");
}

/// A layer that is marked as not capturable.
#[derive(Clone, Module)]
#[module(no_capture = "it asks a server")]
struct Asking;

impl Layer for Asking {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        ops::mul(x, 2.0)
    }
}

#[test]
fn a_wrong_shape_is_rejected_with_layer_and_both_shapes() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let named = |error: Error| match error {
        Error::Layer { layer, source } => (layer, *source),
        other => panic!("the error must name a layer, but is: {other}"),
    };
    let (model, loss) = (mlp(), CrossEntropyLoss::default());
    let optimizer = sgd(&model, 0.1, 0.9);
    let (layer, source) = named(error(make_plan_for_sequential(&model, &[BATCH, 5], None, None)));
    assert!(layer == "0 (Linear)" && matches!(source, Error::ShapeMismatch { .. }), "{layer}: {source}");
    let (x, y) = buffers(&model, &[BATCH, 5]);
    let plan = plan(&model, &[BATCH, 6]);
    let (layer, source) = named(error(record_step_graph(&model, &loss, || optimizer.step(), &plan, &x, &y)));
    let Error::ShapeMismatch { shapes, .. } = &source else { panic!("unexpected error: {source}") };
    assert_eq!((layer.as_str(), shapes[0].dims(), shapes[1].dims()), ("L0:Linear", &[8, 5][..], &[8, 6][..]));
    // Setting a batch reports the input or the loss.
    let mut step = recorded(&model, &loss, &optimizer, &[BATCH, 6]);
    let (good, _) = batch(&[BATCH, 6], 1);
    step.set_batch(&good, &y).unwrap();
    let (layer, source) = named(error(step.set_batch(&x, &y)));
    assert!(layer == "L0:Linear" && source.to_string().contains("[8, 6]"), "{layer}: {source}");
    let half = good.to_dtype(DType::F16);
    assert!(matches!(named(error(step.set_batch(&half, &y))).1, Error::DTypeMismatch { .. }));
    let (layer, source) = named(error(step.set_batch(&good.neg(), &Tensor::zeros([BATCH, 1], DType::I64))));
    assert!(layer == "loss" && matches!(source, Error::ShapeMismatch { .. }), "{layer}: {source}");
    let floats = named(error(step.set_batch(&good.neg(), &Tensor::zeros([BATCH], DType::F32)))).1;
    assert!(matches!(floats, Error::DTypeMismatch { .. }), "{floats}");
    assert_eq!(step.x_buf.to_vec::<f32>(), good.to_vec::<f32>(), "an invalid batch must not be copied in part");
    // Class indices of narrower integers are accepted.
    step.set_batch(&good, &Tensor::ones([BATCH], DType::I32)).unwrap();
    step.launch().unwrap();
    assert_eq!(step.y_buf.to_vec::<i64>(), [1; BATCH]);
    // A layer that cannot be captured.
    let model = sequential![Linear::new(6, CLASSES), Asking];
    let (plan, (x, y)) = (self::plan(&model, &[BATCH, 6]), batch(&[BATCH, 6], 1));
    let (layer, source) = named(error(record_step_graph(&model, &loss, || (), &plan, &x, &y)));
    assert!(layer == "1 (Asking)" && source.to_string().contains("it asks a server"), "{layer}: {source}");
}

/// `compile` is `prepare` for a shape, and `one_step` is `step_and_evaluate`.
#[test]
fn the_trainer_of_the_earlier_framework_is_a_graph_trainer() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let (model, (x, y)) = (built(&KINDS[0]), batch(KINDS[0].2, 0));
    let [own, other] = [(); 2].map(|()| model.deep_copy().unwrap());
    let mut trainer = CudaGraphTrainer::new(&own, CrossEntropyLoss::default(), sgd(&own, 0.05, 0.9));
    trainer.compile(KINDS[0].2).unwrap();
    assert_eq!(trainer.trainer.cache_stats(), CacheStats { hits: 0, misses: 0, len: 1 });
    let mut expected = crate::models::trainer(&other, CrossEntropyLoss::default(), sgd(&other, 0.05, 0.9), false);
    for _ in 0..3 {
        assert_eq!(trainer.one_step(&x, &y).unwrap(), expected.step_and_evaluate(&x, &y).unwrap() as f32);
    }
    assert_eq!(bits(own.state_dict()), bits(other.state_dict()));
}
