//! Training runs of several kinds: N replayed steps are bit-identical to N eager steps.

use crate::device::{gpu, toy};
use crate::training::{MakeTraining, Setting, TrainingCase, Way, classes, run_training, same, same_in, wave};
use pellucid_cpu::with_threads;
use pellucid_nn::optim::schedule::{CosineWithWarmupLr, Scheduler};
use pellucid_nn::optim::{
    Adam, AdamOptions, AdamW, AdamWOptions, Average, AveragedModel, GradScaler, GradScalerOptions, Optimizer, Sgd,
    SgdOptions, clip_grad_norm,
};
use pellucid_nn::{
    AttentionMasks, BatchNorm2d, Conv2d, Dropout, Embedding, Flatten, Layer, LearnedPositions, Linear, Lstm, Module,
    Relu, StateDict, TransformerEncoder, init, loss, sequential,
};
use pellucid_tensor::{DType, Tensor, autocast, capture, manual_seed, ops};
use std::cell::RefCell;
use std::rc::Rc;

/// Joins the state dicts of a model, its optimizer and others under prefixes.
fn together(parts: &[(&str, StateDict)]) -> StateDict {
    let named = |(part, state): &(&str, StateDict)| {
        let part = part.to_string();
        state.clone().into_iter().map(move |(name, value)| (format!("{part}.{name}"), value)).collect::<Vec<_>>()
    };
    parts.iter().flat_map(named).collect()
}

/// Creates a model with the dtype and on the device of a setting.
fn created<M: Module>(setting: Setting, make: impl FnOnce() -> M) -> M {
    let model = init::in_dtype(setting.dtype, make);
    model.to_(setting.device).unwrap();
    model
}

/// Returns one step of a model, from `zero_grad` to `step`.
fn plain<M: Module + 'static, O: Optimizer + 'static>(
    model: M,
    optimizer: O,
    loss: fn(&M, &Tensor, &Tensor) -> Tensor,
    launch: fn(DType, usize) -> (usize, Vec<Tensor>),
) -> TrainingCase {
    let both = Rc::new((model, optimizer));
    let own = both.clone();
    let step = move |inputs: &[Tensor]| {
        let (model, optimizer) = &*own;
        optimizer.zero_grad();
        let loss = loss(model, &inputs[0], &inputs[1]);
        loss.backward();
        optimizer.step();
        loss.detach()
    };
    TrainingCase {
        steps: vec![Box::new(step)],
        launch,
        before: Box::new(|_| {}),
        state: Box::new(move || together(&[("model", both.0.state_dict()), ("optimizer", both.1.state_dict())])),
    }
}

/// A model of two layers, trained by SGD with momentum.
fn mlp(setting: Setting) -> TrainingCase {
    let model = created(setting, || sequential![Linear::new(6, 9), Relu, Linear::new(9, 4)]);
    let options = SgdOptions { lr: 0.05, momentum: 0.9, weight_decay: 1e-3, ..Default::default() };
    let optimizer = Sgd::new(model.parameters(), options);
    let batch = |dtype, i| (0, vec![wave(&[5, 6], i, dtype), classes(&[5], i, 4)]);
    plain(model, optimizer, |model, x, y| loss::cross_entropy(&model.forward(x), y), batch)
}

/// A convolutional model with statistics and dropout, trained by AdamW with a schedule and clipped gradients.
fn cnn(setting: Setting) -> TrainingCase {
    let model = created(setting, || {
        sequential![
            Conv2d::new(2, 4, 3).padding(1),
            BatchNorm2d::new(4),
            Relu,
            Dropout::new(0.2),
            Conv2d::new(4, 4, 3).stride(2),
            BatchNorm2d::new(4),
            Flatten::new(),
            Linear::new(16, 3),
        ]
    });
    let optimizer = AdamW::new(model.parameters(), AdamWOptions { lr: 0.02, ..Default::default() });
    let schedule = CosineWithWarmupLr { warmup_steps: 20, total_steps: 200, eta_min: 0.0 };
    let scheduler = RefCell::new(Scheduler::new(schedule, &optimizer));
    let both = Rc::new((model, optimizer));
    let own = both.clone();
    let step = move |inputs: &[Tensor]| {
        let (model, optimizer) = &*own;
        optimizer.zero_grad();
        let loss = loss::cross_entropy(&model.forward(&inputs[0]), &inputs[1]);
        loss.backward();
        clip_grad_norm(&optimizer.parameters(), 0.3).unwrap();
        optimizer.step();
        loss.detach()
    };
    TrainingCase {
        steps: vec![Box::new(step)],
        launch: |dtype, i| (0, vec![wave(&[4, 2, 6, 6], i, dtype), classes(&[4], i, 3)]),
        before: Box::new(move |i| scheduler.borrow_mut().set_epoch(i)),
        state: Box::new(move || together(&[("model", both.0.state_dict()), ("optimizer", both.1.state_dict())])),
    }
}

#[derive(Module)]
struct Gpt {
    words: Embedding,
    positions: LearnedPositions,
    body: TransformerEncoder,
    head: Linear,
}

/// The number of micro-batches between two updates.
const MICRO: usize = 3;

/// A transformer whose gradients accumulate over several launches before another captured step updates.
fn transformer(setting: Setting) -> TrainingCase {
    let model = created(setting, || Gpt {
        words: Embedding::new(7, 8),
        positions: LearnedPositions::new(5, 8),
        body: TransformerEncoder::new(8, 2, 1).hidden(16).norm_first(true).activation(ops::gelu_tanh).norm(true),
        head: Linear::new(8, 7).bias(false),
    });
    let optimizer = AdamW::new(model.parameters(), AdamWOptions { lr: 0.01, ..Default::default() });
    optimizer.parameters().iter().for_each(|p| p.set_grad(Some(Tensor::zeros_like(&p.detach()))));
    let both = Rc::new((model, optimizer));
    let (first, second) = (both.clone(), both.clone());
    let gather = move |inputs: &[Tensor]| {
        let model = &first.0;
        let x = model.positions.forward(&model.words.forward(&inputs[0]));
        let logits = model.head.forward(&model.body.forward_masked(&x, AttentionMasks::causal()));
        let loss = loss::cross_entropy(&logits.flatten(0, 1), &inputs[1].flatten(0, 1));
        (&loss / MICRO as f64).backward();
        loss.detach()
    };
    let update = move |_: &[Tensor]| {
        let optimizer = &second.1;
        optimizer.step();
        optimizer.zero_grad_with(false);
        optimizer.parameters()[0].detach().sum(..)
    };
    TrainingCase {
        steps: vec![Box::new(gather), Box::new(update)],
        launch: |_, i| match i % (MICRO + 1) {
            MICRO => (1, vec![]),
            _ => (0, vec![classes(&[2, 5], i, 7), classes(&[2, 5], i + 1, 7)]),
        },
        before: Box::new(|_| {}),
        state: Box::new(move || {
            let parameters = both.1.parameters();
            let gradients = parameters.iter().enumerate();
            let gradients =
                gradients.map(|(k, p)| (k.to_string(), p.grad().expect("set_grad() must store a gradient"))).collect();
            together(&[("model", both.0.state_dict()), ("optimizer", both.1.state_dict()), ("gradient", gradients)])
        }),
    }
}

/// A recurrent layer, trained by Adam.
fn lstm(setting: Setting) -> TrainingCase {
    let model = created(setting, || (Lstm::new(3, 5), Linear::new(5, 2)));
    let optimizer = Adam::new(model.parameters(), AdamOptions { lr: 0.01, ..Default::default() });
    let loss = |(lstm, head): &(Lstm, Linear), x: &Tensor, y: &Tensor| {
        let (outputs, _) = lstm.forward_sequence(x, None);
        loss::mse_loss(&head.forward(&outputs.mean(0)), y)
    };
    let batch = |dtype, i| (0, vec![wave(&[4, 3, 3], i, dtype), wave(&[3, 2], 2 * i, dtype)]);
    plain(model, optimizer, loss, batch)
}

/// Mixed precision with a loss scale, clipping, skipped steps, and an average of the weights.
fn mixed(_: Setting) -> TrainingCase {
    let model = sequential![Linear::new(6, 8), Relu, Dropout::new(0.1), Linear::new(8, 4)];
    let optimizer = AdamW::new(model.parameters(), AdamWOptions { lr: 0.02, ..Default::default() });
    let options = GradScalerOptions { init_scale: 1024.0, growth_interval: 5, ..Default::default() };
    let average = AveragedModel::new(&model, Average::Exponential(0.95));
    let all = Rc::new((model, optimizer, GradScaler::new(options), average));
    let own = all.clone();
    let step = move |inputs: &[Tensor]| {
        let (model, optimizer, scaler, average) = &*own;
        optimizer.zero_grad();
        let loss = {
            let _half = autocast(DType::BF16);
            loss::cross_entropy(&model.forward(&inputs[0]), &inputs[1])
        };
        scaler.scale(&loss).backward();
        let unscaled = scaler.unscale(optimizer);
        clip_grad_norm(&optimizer.parameters(), 1.0).unwrap();
        unscaled.step();
        scaler.update();
        average.update().unwrap();
        loss.detach()
    };
    TrainingCase {
        steps: vec![Box::new(step)],
        launch: |_, i| {
            let x = wave(&[5, 6], i, DType::F32);
            if i % 17 == 11 {
                x.set((2, 3), f64::INFINITY);
            }
            (0, vec![x, classes(&[5], i, 4)])
        },
        before: Box::new(|_| {}),
        state: Box::new(move || {
            let (model, optimizer, scaler, average) = &*all;
            together(&[
                ("model", model.state_dict()),
                ("optimizer", optimizer.state_dict()),
                ("scaler", scaler.state_dict()),
                ("average", average.state_dict()),
            ])
        }),
    }
}

/// The number of updates; each of the transformer's consists of several launches.
const STEPS: usize = 200;

#[test]
fn mlp_by_sgd_with_momentum_in_f32() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    same(mlp, DType::F32, STEPS);
}

#[test]
fn mlp_by_sgd_with_momentum_in_f64() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    same(mlp, DType::F64, STEPS);
}

#[test]
fn cnn_by_adamw_scheduled_and_clipped_in_f32() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    same(cnn, DType::F32, STEPS);
}

#[test]
fn cnn_by_adamw_scheduled_and_clipped_in_f64() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    same(cnn, DType::F64, STEPS);
}

#[test]
fn transformer_by_adamw_with_accumulation_in_f32() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    same(transformer, DType::F32, STEPS * (MICRO + 1));
}

#[test]
fn transformer_by_adamw_with_accumulation_in_f64() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    same(transformer, DType::F64, STEPS * (MICRO + 1));
}

#[test]
fn lstm_by_adam_in_f32() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    same(lstm, DType::F32, STEPS);
}

#[test]
fn lstm_by_adam_in_f64() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    same(lstm, DType::F64, STEPS);
}

#[test]
fn mixed_precision_with_scale_and_average() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    same(mixed, DType::F32, 60);
    let state = run_training(mixed, Setting::on_cpu(DType::F32), 1, 60, Way::Replayed).state;
    let number = |name: &str| {
        let bytes = &state.iter().find(|(own, _)| own.ends_with(name)).unwrap().1;
        f32::from_ne_bytes(bytes[..].try_into().unwrap())
    };
    assert_eq!(number(".step"), 57.0, "three of the 60 steps must be skipped");
    assert!(number("scaler.scale") > 1024.0, "the scale must grow between the skipped steps");
}

/// The models of the proofs, with the number of launches on a device on which these take long.
const MODELS: [(MakeTraining, usize); 4] = [(mlp, 12), (cnn, 12), (transformer, 3 * (MICRO + 1)), (lstm, 12)];

/// Every mode gives the same bits on a device that runs kernels at once, on one that defers them, and on a GPU.
#[test]
fn every_model_replays_bit_equal_on_another_device() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    for device in [toy(0), toy(1)].into_iter().chain(gpu()) {
        for (make, launches) in MODELS {
            same_in(make, Setting { dtype: DType::F32, device }, launches);
        }
    }
}

/// A model wide enough that kernels run on several threads.
fn wide(setting: Setting) -> TrainingCase {
    let model = created(setting, || sequential![Linear::new(64, 192), Relu, Dropout::new(0.2), Linear::new(192, 64)]);
    let optimizer = AdamW::new(model.parameters(), AdamWOptions::default());
    let batch = |dtype, i| (0, vec![wave(&[128, 64], i, dtype), wave(&[128, 64], i + 1, dtype)]);
    plain(model, optimizer, |model, x, y| loss::mse_loss(&model.forward(x), y), batch)
}

#[test]
fn neither_threads_nor_replay_change_a_bit() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let setting = Setting::on_cpu(DType::F32);
    let alone = with_threads(1, || run_training(wide, setting, 1, 12, Way::Eager));
    for (threads, way) in [(1, Way::Replayed), (2, Way::Eager), (2, Way::Replayed), (3, Way::Disturbed)] {
        let other = with_threads(threads, || run_training(wide, setting, 1, 12, way));
        other.assert_is(&alone, &format!("{way:?} on {threads} threads"));
    }
}

/// With a fixed batch and no dropout, the loss must decrease.
#[test]
fn a_replayed_step_learns() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    manual_seed(1);
    let model = sequential![Linear::new(20, 32), Relu, Linear::new(32, 5)];
    let optimizer = AdamW::new(model.parameters(), AdamWOptions { lr: 1e-2, ..Default::default() });
    let (x, y) = (Tensor::randn([16, 20], DType::F32), Tensor::randint(0, 5, [16]));
    let mut step = capture(
        |inputs| {
            optimizer.zero_grad();
            let loss = loss::cross_entropy(&model.forward(&inputs[0]), &inputs[1]);
            loss.backward();
            optimizer.step();
            loss
        },
        &[&x, &y],
    )
    .unwrap();
    let losses: Vec<f32> = (0..60).map(|_| step.launch(&[&x, &y]).unwrap().item(0)).collect();
    assert!(losses[0] > 1.0 && losses[59] < 0.1, "the loss must fall from above 1 to below 0.1: {losses:?}");
}
