//! The slice through the whole framework: a training step that is replayed, or run lazily, does what
//! the eager one does, bit for bit.

use pellucid_nn::optim::{AdamW, AdamWOptions, CosineSchedule, Optimizer, Sgd, SgdOptions, clip_grad_norm};
use pellucid_nn::{Dropout, Layer, Linear, Module, Relu, Sequential, loss, sequential};
use pellucid_tensor::{DType, Tensor, capture, lazy, manual_seed};

const STEPS: usize = 20;
const BATCH: usize = 16;

/// How the steps are run.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Way {
    Eager,
    Lazy,
    /// With other tensors made and dropped between launches.
    Replayed,
}

struct Training {
    model: Sequential,
    optimizer: Box<dyn Optimizer>,
    schedule: Option<CosineSchedule>,
    clip: Option<f64>,
}

impl Training {
    fn sgd() -> Training {
        let model = mlp();
        let options = SgdOptions { lr: 0.05, momentum: 0.9, weight_decay: 1e-3, ..Default::default() };
        let optimizer = Box::new(Sgd::new(model.parameters(), options).unwrap());
        Training { model, optimizer, schedule: None, clip: None }
    }

    fn adamw() -> Training {
        let model = mlp();
        let optimizer = Box::new(AdamW::new(model.parameters(), AdamWOptions::default()).unwrap());
        let schedule = Some(CosineSchedule::new(1e-2, STEPS).warmup(3));
        Training { model, optimizer, schedule, clip: Some(0.5) }
    }

    fn step(&self, x: &Tensor, y: &Tensor) -> Tensor {
        self.optimizer.zero_grad();
        let loss = loss::cross_entropy(&self.model.forward(x), y);
        loss.backward();
        if let Some(norm) = self.clip {
            clip_grad_norm(self.optimizer.parameters(), norm).unwrap();
        }
        self.optimizer.step();
        loss
    }

    fn set_lr(&self, step: usize) {
        if let Some(schedule) = &self.schedule {
            schedule.set(&*self.optimizer, step);
        }
    }
}

fn mlp() -> Sequential {
    sequential![Linear::new(20, 32), Relu, Dropout::new(0.3), Linear::new(32, 24), Relu, Linear::new(24, 5)]
}

fn batches() -> Vec<(Tensor, Tensor)> {
    (0..STEPS).map(|_| (Tensor::randn([BATCH, 20], DType::F32), Tensor::randint(0, 5, [BATCH]))).collect()
}

/// The bits of every loss, and of every parameter and all optimizer state at the end.
fn run(make: fn() -> Training, way: Way) -> (Vec<u32>, Vec<Vec<u8>>) {
    manual_seed(42);
    let batches = batches();
    let training = make();
    let mut losses = Vec::new();
    match way {
        Way::Eager => {
            for (i, (x, y)) in batches.iter().enumerate() {
                training.set_lr(i);
                losses.push(training.step(x, y).item::<f32>().to_bits());
            }
        }
        Way::Lazy => {
            let all = lazy(|| {
                let step = |(i, (x, y)): (usize, &(Tensor, Tensor))| {
                    training.set_lr(i);
                    training.step(x, y)
                };
                batches.iter().enumerate().map(step).collect::<Vec<_>>()
            });
            losses.extend(all.iter().map(|loss| loss.item::<f32>().to_bits()));
        }
        Way::Replayed => {
            let (x, y) = &batches[0];
            let mut captured = capture(|inputs| training.step(&inputs[0], &inputs[1]), &[x, y]).unwrap();
            for (i, (x, y)) in batches.iter().enumerate() {
                training.set_lr(i);
                losses.push(captured.launch(&[x, y]).unwrap().item::<f32>(0).to_bits());
                let others: Vec<Tensor> = (1..50).map(|n| Tensor::full([n, 17], 1e30, DType::F32)).collect();
                drop(others);
            }
        }
    }
    let state = training.model.state_dict().into_iter().chain(training.optimizer.state_dict());
    let state = state.map(|(_, tensor)| tensor.to_bytes().unwrap()).collect();
    (losses, state)
}

fn same(make: fn() -> Training) {
    let eager = run(make, Way::Eager);
    assert!(eager.0.iter().all(|&bits| f32::from_bits(bits).is_finite()));
    let distinct: std::collections::HashSet<_> = eager.0.iter().collect();
    assert!(distinct.len() > STEPS / 2, "the steps must differ to prove anything");
    for way in [Way::Lazy, Way::Replayed] {
        assert_eq!(run(make, way), eager, "{way:?}");
    }
}

#[test]
fn sgd_with_momentum_and_dropout() {
    same(Training::sgd);
}

#[test]
fn adamw_with_schedule_clipping_and_dropout() {
    same(Training::adamw);
}

/// With one batch again and again and no dropout, training must get somewhere.
#[test]
fn a_replayed_step_learns() {
    manual_seed(1);
    let model = sequential![Linear::new(20, 32), Relu, Linear::new(32, 5)];
    let optimizer = AdamW::new(model.parameters(), AdamWOptions { lr: 1e-2, ..Default::default() }).unwrap();
    let (x, y) = (Tensor::randn([BATCH, 20], DType::F32), Tensor::randint(0, 5, [BATCH]));
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
    assert!(losses[0] > 1.0 && losses[59] < 0.1, "{losses:?}");
}
