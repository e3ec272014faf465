//! Steps and trainers that move to another thread are bit-identical to steps and trainers that do not move.

use crate::{batch, exclusive, network, sgd};
use pellucid::nn::graph::GraphTrainer;
use pellucid::nn::loss::CrossEntropyLoss;
use pellucid::nn::optim::Sgd;
use pellucid::nn::{Checkpoint, Sequential, StateDict};
use pellucid::prelude::*;
use pellucid::{Generator, capture, manual_seed};
use std::sync::Mutex;
use std::thread;

type Trainer = GraphTrainer<'static, Sequential, Sgd>;

/// Runs `f` on a new thread if `is_moved` is true, and returns its result.
fn on_new_thread_if<R: Send>(is_moved: bool, f: impl FnOnce() -> R + Send) -> R {
    if is_moved { thread::scope(|scope| scope.spawn(f).join().unwrap()) } else { f() }
}

/// Trains in three parts, each on a new thread if `is_moved` is true. Returns the losses and all parameters. The second
/// part has batches with new shapes, which are recorded on its thread.
fn trained(is_moved: bool) -> Vec<u32> {
    let model = {
        let _scope = Generator::new(3).scope();
        network(16)
    };
    let optimizer = sgd(&model);
    let mut trainer: Trainer = GraphTrainer::new(model, CrossEntropyLoss::default(), optimizer);
    let mut found = Vec::new();
    let steps = |trainer: &mut Trainer, rows: &[usize]| -> Vec<u32> {
        let step = |&rows: &usize| {
            let (x, y) = batch(rows);
            trainer.step(&x, &y).unwrap();
            (trainer.loss().unwrap() as f32).to_bits()
        };
        rows.iter().map(step).collect()
    };
    // The thread of the first part has its own random stream, and may end before the second part begins.
    thread::scope(|scope| {
        let first = scope.spawn(|| {
            manual_seed(7);
            found = steps(&mut trainer, &[4, 4, 6]);
            if !is_moved {
                found.extend(steps(&mut trainer, &[4, 5, 6, 5]));
                found.extend(steps(&mut trainer, &[4, 7]));
            }
        });
        first.join().unwrap();
    });
    if is_moved {
        found.extend(on_new_thread_if(true, || steps(&mut trainer, &[4, 5, 6, 5])));
        // A draw by this thread does not affect the random numbers of the trainer.
        Tensor::rand([3], DType::F32);
        let trainer = Mutex::new(trainer);
        found.extend(on_new_thread_if(true, || steps(&mut trainer.lock().unwrap(), &[4, 7])));
        found.extend(values(trainer.lock().unwrap().model()));
    } else {
        found.extend(values(trainer.model()));
    }
    found
}

fn values(model: &Sequential) -> Vec<u32> {
    model.parameters().iter().flat_map(|p| p.to_vec::<f32>()).map(f32::to_bits).collect()
}

#[test]
fn a_trainer_that_moves_has_the_bits_of_one_that_stays() {
    let _guard = exclusive();
    let stays = trained(false);
    assert_eq!(trained(true), stays);
    let losses: Vec<f32> = stays[..9].iter().map(|bits| f32::from_bits(*bits)).collect();
    assert!(losses.iter().all(|loss| loss.is_finite()) && losses[0] != losses[1], "{losses:?}");
}

/// With the scope of one generator on each thread, a checkpoint contains the random numbers of the steps.
#[test]
fn a_checkpoint_of_a_moved_trainer_has_the_numbers_of_the_scope() {
    let _guard = exclusive();
    let [saved, resumed] = [5, 6].map(|seed| {
        let generator = Generator::new(seed);
        let model = {
            let _scope = generator.scope();
            network(16)
        };
        let optimizer = sgd(&model);
        (generator, Trainer::new(model, CrossEntropyLoss::default(), optimizer))
    });
    let step = |generator: &Generator, trainer: &mut Trainer| {
        let _scope = generator.scope();
        let (x, y) = batch(4);
        trainer.step(&x, &y).unwrap();
        trainer.loss().unwrap().to_bits()
    };
    let (generator, mut trainer) = saved;
    on_new_thread_if(true, || step(&generator, &mut trainer));
    let state: StateDict = on_new_thread_if(true, || {
        let _scope = generator.scope();
        let state = Checkpoint::new().model(trainer.model()).optimizer(trainer.optimizer()).state().unwrap();
        state.into_iter().map(|(name, tensor)| (name, tensor.detach().copy())).collect()
    });
    let (other, mut resumed) = resumed;
    on_new_thread_if(true, || {
        let _scope = other.scope();
        Checkpoint::new().model(resumed.model()).optimizer(resumed.optimizer()).load_state_dict(&state).unwrap();
    });
    for _ in 0..3 {
        let expected = on_new_thread_if(true, || step(&generator, &mut trainer));
        assert_eq!(on_new_thread_if(true, || step(&other, &mut resumed)), expected);
    }
    assert_eq!(values(resumed.model()), values(trainer.model()));
}

#[test]
fn a_captured_step_that_moves_continues_its_random_numbers() {
    let _guard = exclusive();
    let draws = |is_moved: bool| -> Vec<Vec<f32>> {
        let x = Tensor::ones([16], DType::F32);
        let mut step = on_new_thread_if(true, || {
            manual_seed(11);
            capture(|inputs| inputs[0].dropout(0.5), &[&x]).unwrap()
        });
        // In debug builds, launches 2 and 3 record the step again and compare.
        (0..4).map(|_| on_new_thread_if(is_moved, || step.launch(&[&x]).unwrap().to_vec(0))).collect()
    };
    let stays = draws(false);
    assert_eq!(draws(true), stays);
    assert_ne!(stays[0], stays[1]);
}

#[test]
fn a_seed_restarts_the_numbers_of_a_step_that_has_moved() {
    let _guard = exclusive();
    let x = Tensor::ones([16], DType::F32);
    let mut step = thread::Builder::new()
        .name("recorder".into())
        .spawn({
            let x = x.clone();
            move || capture(|inputs| inputs[0].dropout(0.5), &[&x]).unwrap()
        })
        .unwrap()
        .join()
        .unwrap();
    let mut launches = || {
        manual_seed(5);
        [(); 2].map(|()| step.launch(&[&x]).unwrap().to_vec::<f32>(0))
    };
    assert_eq!(launches(), launches());
}

#[test]
fn modes_of_a_thread_do_not_move_with_a_step() {
    let _guard = exclusive();
    let (x, w) = (Tensor::ones([2, 4], DType::F32), Tensor::ones([4, 3], DType::F32));
    let mut step = {
        let _half = pellucid::autocast(DType::BF16);
        let mut step = capture(|inputs| inputs[0].matmul(&w), &[&x]).unwrap();
        assert_eq!(step.launch(&[&x]).unwrap().to_tensor(0).dtype(), DType::BF16);
        step
    };
    let dtype = on_new_thread_if(true, || step.launch(&[&x]).unwrap().to_tensor(0).dtype());
    assert_eq!(dtype, DType::F32);
}
