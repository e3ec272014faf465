//! Launches equal eager steps bit for bit for every kind of model, and reduce the loss.

use crate::models::*;
use pellucid_cpu::with_threads;
use pellucid_nn::graph::mirror::*;
use pellucid_nn::graph::*;
use pellucid_nn::loss::{self, CrossEntropyLoss, Loss};
use pellucid_nn::optim::{AdamW, AdamWOptions, Optimizer};
use pellucid_nn::*;
use pellucid_tensor::{DType, Device, Error, Tensor, autocast, manual_seed, traced};

fn compiled<'f>(
    model: &'f Sequential,
    loss: &'f CrossEntropyLoss,
    optimizer: &'f dyn Optimizer,
    shape: &[usize],
    stream: Option<Stream>,
) -> TrainGraph<'f> {
    model.compile(shape, CompileOptions { stream, ..CompileOptions::new(loss, optimizer) }).unwrap()
}

#[test]
fn recording_changes_nothing() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    for kind in &KINDS {
        let (model, loss) = (built(kind), CrossEntropyLoss::default());
        let optimizer = sgd(&model, 0.1, 0.9);
        let state = || (bits(model.state_dict()), bits(optimizer.state_dict()));
        let before = state();
        manual_seed(9);
        let expected = Tensor::rand([4], DType::F32).to_vec::<f32>();
        manual_seed(9);
        let mut step = compiled(&model, &loss, &optimizer, kind.2, None);
        assert_eq!(Tensor::rand([4], DType::F32).to_vec::<f32>(), expected, "{}: the random numbers differ", kind.0);
        assert!(step.exec.is_captured() && step.gradients.bound.len() == model.parameters().len());
        assert_eq!(state(), before, "{}: the state must not change", kind.0);
        let (x, y) = batch(kind.2, 1);
        step.set_batch(&x, &y).unwrap();
        assert_eq!(state(), before, "{}: the state must not change", kind.0);
        step.launch().unwrap();
        assert_ne!(state(), before, "{}: the launch must change the state", kind.0);
    }
}

/// The loss decreases, and the update opposes the gradient: Σ Δθ·g < 0.
#[test]
fn a_step_reduces_the_loss() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    for kind in &KINDS {
        for stream in streams() {
            let (model, loss) = (built(kind), CrossEntropyLoss::default());
            let optimizer = sgd(&model, 0.05, 0.0);
            let mut step = compiled(&model, &loss, &optimizer, kind.2, stream);
            let (x, y) = batch(kind.2, 1);
            step.set_batch(&x, &y).unwrap();
            let before: Vec<Vec<f64>> = model.parameters().iter().map(|p| p.to_vec()).collect();
            // Equal seeds make both launches drop the same elements.
            manual_seed(2);
            step.launch().unwrap();
            let first = step.loss.item::<f32>();
            let along: f64 = model
                .parameters()
                .iter()
                .zip(before)
                .map(|(p, before)| {
                    let (now, g) = (p.to_vec::<f64>(), p.grad().unwrap().to_vec::<f64>());
                    now.iter().zip(before).zip(g).map(|((now, before), g)| (now - before) * g).sum::<f64>()
                })
                .sum();
            manual_seed(2);
            step.launch().unwrap();
            let second = step.loss.item::<f32>();
            assert!(second < first, "{}: the loss must fall, but goes from {first} to {second}", kind.0);
            assert!(along < 0.0, "{}: the slope of the loss along the update must be negative, but is {along}", kind.0);
        }
    }
}

/// N launches, N launches on an eager stream, and N hand-written steps end with bit-identical values.
#[test]
fn launches_equal_eager_steps() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    const STEPS: u64 = 5;
    for kind in &KINDS {
        let run = |how: Option<Option<Stream>>| {
            let (model, loss) = (built(kind), CrossEntropyLoss { label_smoothing: 0.1, ..Default::default() });
            let optimizer = AdamW::try_new(model.parameters(), AdamWOptions::default()).unwrap();
            let batches: Vec<_> = (0..STEPS).map(|i| batch(kind.2, 10 + i)).collect();
            let mut step = how.map(|stream| compiled(&model, &loss, &optimizer, kind.2, stream));
            manual_seed(4);
            let mut losses = Vec::new();
            for (i, (x, y)) in batches.iter().enumerate() {
                optimizer.set_lr(1e-2 / (i + 1) as f64);
                losses.push(match &mut step {
                    Some(step) => {
                        step.set_batch(x, y).unwrap();
                        step.launch().unwrap();
                        step.loss.item::<f32>()
                    }
                    None => {
                        optimizer.zero_grad();
                        let value = loss.forward(&model.forward(x), y);
                        value.backward();
                        optimizer.step();
                        value.item::<f32>()
                    }
                });
            }
            (losses, bits(model.state_dict()), bits(optimizer.state_dict()))
        };
        let by_hand = run(None);
        assert!(by_hand.0.iter().all(|loss| loss.is_finite()));
        for stream in streams() {
            assert!(run(Some(stream)) == by_hand, "{}: the launches differ from hand-written steps", kind.0);
        }
    }
}

/// Launches equal eager steps in other precisions too, and with any number of threads.
#[test]
fn launches_equal_eager_steps_in_every_precision() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let precisions =
        [(DType::F64, None), (DType::F16, None), (DType::BF16, None), (DType::F32, Some(DType::BF16))].into_iter();
    for (kind, (dtype, half)) in KINDS.iter().flat_map(|kind| precisions.clone().map(move |p| (kind, p))) {
        let run = |stream: Option<Option<Stream>>| {
            let model = init::in_dtype(dtype, || built(kind));
            let (loss, optimizer) = (CrossEntropyLoss::default(), adamw(&model));
            let _half = half.map(autocast);
            let mut step = stream.map(|stream| compiled(&model, &loss, &optimizer, kind.2, stream));
            manual_seed(4);
            let losses: Vec<Vec<u8>> = (0..4)
                .map(|i| {
                    let (x, y) = batch(kind.2, 20 + i);
                    let x = x.to_dtype(dtype);
                    let Some(step) = &mut step else { return by_hand(&model, &optimizer, &x, &y) };
                    step.set_batch(&x, &y).unwrap();
                    step.launch().unwrap();
                    step.loss.clone()
                })
                .map(|loss| loss.to_bytes())
                .collect();
            (losses, bits(model.state_dict()), bits(optimizer.state_dict()))
        };
        let expected = with_threads(1, || run(None));
        for (threads, stream) in [(1, None), (2, None), (3, None), (2, Some(Stream::eager(Device::cpu())))] {
            let found = with_threads(threads, || run(Some(stream.clone())));
            assert!(
                found == expected,
                "{} in {dtype} {half:?} with {threads} threads and {stream:?}: the results differ from an eager loop",
                kind.0
            );
        }
    }
}

fn adamw(model: &Sequential) -> AdamW {
    AdamW::try_new(model.parameters(), AdamWOptions::default()).unwrap()
}

/// Runs a hand-written step and returns its loss before the update.
fn by_hand(model: &Sequential, optimizer: &dyn Optimizer, x: &Tensor, y: &Tensor) -> Tensor {
    optimizer.zero_grad();
    let value = loss::cross_entropy(&model.forward(x), y);
    value.backward();
    optimizer.step();
    value.detach()
}

#[test]
fn buffers_keep_their_memory() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let (model, loss) = (mlp(), CrossEntropyLoss::default());
    let optimizer = sgd(&model, 0.1, 0.9);
    let mut step = compiled(&model, &loss, &optimizer, &[BATCH, 6], None);
    let at = |step: &TrainGraph<'_>| {
        let gradients = model.parameters().into_iter().map(|p| p.grad().unwrap());
        let fixed = [step.x_buf(), &step.y_buf, &step.logits, &step.loss].map(Tensor::clone);
        fixed.into_iter().chain(gradients).map(|t| t.array().clone()).collect::<Vec<_>>()
    };
    let before = at(&step);
    for seed in 0..4 {
        let (x, y) = batch(&[BATCH, 6], seed);
        step.set_batch(&x, &y).unwrap();
        step.launch().unwrap();
        assert_eq!(step.x_buf().to_vec::<f32>(), x.to_vec::<f32>());
        assert!(at(&step).iter().zip(&before).all(|(now, then)| now.shares_storage(then)));
    }
    step.exec.captured().unwrap().verify().unwrap();
}

/// The print-out of a step uses the names of the model and the optimizer.
#[test]
fn a_recorded_step_prints_names() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let (model, loss) = (mlp(), CrossEntropyLoss::default());
    let optimizer = adamw(&model);
    let step = compiled(&model, &loss, &optimizer, &[BATCH, 6], None);
    let text = format!("{:?}", step.exec);
    for name in [
        " x f32[8, 6]",
        " y i64[8, 1]",
        "0.weight f32",
        "gradient of 2.weight f32",
        "gradient of 0.bias f32",
        "mean of 0.weight f32",
        "groups.0.lr f32[]",
        "step f32[4]",
        "logits f32[8, 4]",
        "loss f32",
    ] {
        assert!(text.contains(name), "the printed plan must contain {name}:\n{text}");
    }
}

/// Gradients of several launches do not accumulate.
#[test]
fn each_launch_starts_without_gradients() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    for stream in streams() {
        let (model, loss) = (mlp(), CrossEntropyLoss::default());
        let optimizer = sgd(&model, 0.0, 0.0);
        let mut step = compiled(&model, &loss, &optimizer, &[BATCH, 6], stream);
        let (x, y) = batch(&[BATCH, 6], 1);
        step.set_batch(&x, &y).unwrap();
        let mut gradient = || {
            step.launch().unwrap();
            model.parameters()[0].grad().unwrap().to_vec::<f32>()
        };
        let first = gradient();
        assert!(first.iter().any(|g| *g != 0.0));
        assert_eq!(gradient(), first);
    }
}

/// Two launches with accumulation over half a batch each equal one launch over the entire batch, with one update.
#[test]
fn gradients_accumulate_over_launches() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    for stream in streams() {
        let (model, other_model) = (built(&KINDS[0]), built(&KINDS[0]));
        let (loss, shape) = (CrossEntropyLoss::default(), [BATCH / 2, 6]);
        let (optimizer, other) = (sgd(&model, 0.1, 0.9), sgd(&other_model, 0.1, 0.9));
        let plan = make_plan_for_sequential(&model, &shape, LossKind::SoftmaxCrossEntropy, 0).unwrap();
        let (x_buf, y_buf) = (Tensor::zeros(shape, DType::F32), Tensor::zeros([BATCH / 2], DType::I64));
        let options = StepOptions { eager: stream.is_some(), accumulate: 2, ..Default::default() };
        let record = || record_step_graph_with(&model, &loss, &optimizer, &plan, &x_buf, &y_buf, options.clone());
        assert!(
            matches!(record(), Err(Error::InvalidArgument { .. })),
            "recording must fail before the gradients are bound to the plan's buffers"
        );
        try_rebind_grads(&model, &optimizer, &plan).unwrap();
        let mut exec = record().unwrap();
        for seed in 0..3 {
            let (x, y) = batch(&[BATCH, 6], seed);
            let before = bits(model.state_dict());
            for half in 0..2 {
                assert_eq!(bits(model.state_dict()), before);
                x_buf.copy_(&x.narrow(0, half * BATCH / 2, BATCH / 2));
                y_buf.copy_(&y.narrow(0, half * BATCH / 2, BATCH / 2));
                exec.launch().unwrap();
            }
            other.zero_grad();
            loss.forward(&other_model.forward(&x), &y).backward();
            other.step();
            for (p, q) in model.parameters().iter().zip(other_model.parameters()) {
                let (p, q) = (p.to_vec::<f32>(), q.to_vec::<f32>());
                assert!(p.iter().zip(q).all(|(p, q)| (p - q).abs() < 1e-6));
            }
        }
    }
}

#[test]
fn an_eager_stream_is_reported_and_so_is_a_device_that_cannot_capture() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let model = mlp();
    let optimizer = sgd(&model, 0.1, 0.0);
    let loss = CrossEntropyLoss::default();
    let step = compiled(&model, &loss, &optimizer, &[BATCH, 6], Some(Stream::eager(Device::cpu())));
    assert!(!step.exec.is_captured() && step.exec.eager().unwrap().reason().contains("eager"));
    assert!(format!("{:?}", step.exec).contains("eager step"));
    drop(step);

    // A loss that can be planned, but returns an error at recording, as a device without capture does.
    let refusing = loss::from_fn(|logits, y| {
        if traced().is_some_and(|work| work.kernels > 2) {
            return Err(Error::DeviceUnavailable { device: "gpu".into(), reason: "no graphs".into() });
        }
        CrossEntropyLoss::default().try_forward(logits, y)
    });
    let plan = make_plan_for_sequential(&model, &[BATCH, 6], LossKind::SoftmaxCrossEntropy, 0).unwrap();
    let (x, y) = batch(&[BATCH, 6], 1);
    let mut exec = record_step_graph(&model, &refusing, &optimizer, &plan, &x, &y, None).unwrap();
    assert!(exec.eager().unwrap().reason().contains("no graphs"), "{exec:?}");
    exec.launch().unwrap();
    let first = exec.loss.item::<f32>();
    exec.launch().unwrap();
    assert!(exec.loss.item::<f32>() < first);
}

/// Steps of two models with the same shapes share no buffer.
#[test]
fn two_models_side_by_side() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let (a, b) = (mlp(), mlp());
    b.load_state_dict(&a.state_dict()).unwrap();
    let loss = CrossEntropyLoss::default();
    let (for_a, for_b) = (sgd(&a, 0.1, 0.9), sgd(&b, 0.1, 0.9));
    let mut step_a = compiled(&a, &loss, &for_a, &[BATCH, 6], None);
    let mut step_b = compiled(&b, &loss, &for_b, &[BATCH, 6], None);
    let ((x, y), (u, v)) = (batch(&[BATCH, 6], 1), batch(&[BATCH, 6], 2));
    let untouched = bits(b.state_dict());
    step_a.set_batch(&x, &y).unwrap();
    step_b.set_batch(&u, &v).unwrap();
    step_a.launch().unwrap();
    assert_eq!(bits(b.state_dict()), untouched);
    let (after, first) = (bits(a.state_dict()), step_a.loss.item::<f32>());
    step_b.launch().unwrap();
    assert_eq!((bits(a.state_dict()), step_a.loss.item::<f32>()), (after.clone(), first));
    // Both models compute the same step on the same batch.
    b.load_state_dict(&a.state_dict()).unwrap();
    assert_eq!(bits(b.state_dict()), after);
    let gradients = |model: &Sequential| model.parameters().iter().map(|p| p.grad().unwrap()).collect::<Vec<_>>();
    assert!(gradients(&a).iter().zip(gradients(&b)).all(|(p, q)| !p.array().shares_storage(q.array())));
    let evaluated = |model: &Sequential| loss::cross_entropy(&model.forward(&x), &y).item::<f32>();
    assert_eq!(evaluated(&a), evaluated(&b));
}
