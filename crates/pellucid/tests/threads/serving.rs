//! Inference on several threads with shared weights.

use crate::{batch, exclusive, network};
use pellucid::nn::graph::InferenceModel;
use pellucid::nn::{Dropout, Linear, Relu, sequential};
use pellucid::prelude::*;
use pellucid::{Captured, capture};
use std::sync::{Arc, Barrier};
use std::thread;

fn bits(x: &Tensor) -> Vec<u32> {
    x.to_vec::<f32>().into_iter().map(f32::to_bits).collect()
}

#[test]
fn forks_on_several_threads_have_equal_bits() {
    let _guard = exclusive();
    let mut inference = InferenceModel::new(network(32), &[1, 4, 16]);
    let batches: Vec<Tensor> = [1, 3, 4, 9, 16, 20].map(|rows| batch(rows).0).into();
    let expected: Vec<Vec<u32>> = batches.iter().map(|x| bits(&inference.run(x).unwrap())).collect();
    thread::scope(|scope| {
        for _ in 0..4 {
            let (mut fork, batches, expected) = (inference.fork(), &batches, &expected);
            scope.spawn(move || {
                for _ in 0..5 {
                    let found: Vec<Vec<u32>> = batches.iter().map(|x| bits(&fork.run(x).unwrap())).collect();
                    assert_eq!(&found, expected);
                }
            });
        }
    });
}

#[test]
fn forks_share_the_memory_of_weights() {
    let _guard = exclusive();
    const WIDTH: usize = 1024;
    let model = sequential![Linear::new(WIDTH, WIDTH), Relu, Linear::new(WIDTH, WIDTH)];
    let weights = model.parameters().iter().map(|p| 4 * p.shape().size()).sum::<usize>();
    let x = Tensor::ones([2, WIDTH], DType::F32);
    let in_use = || Device::cpu().memory_stats().in_use;
    let mut inference = InferenceModel::new(model, &[2]);
    inference.run(&x).unwrap();
    let before = in_use();
    let mut forks: Vec<_> = (0..4).map(|_| inference.fork()).collect();
    thread::scope(|scope| {
        for fork in &mut forks {
            scope.spawn(|| fork.run(&x).unwrap());
        }
    });
    let more = in_use() - before;
    assert!(more < weights / 8, "four forks take {more} bytes more than one model with weights of {weights} bytes");
}

/// A fork that records a forward pass while the model trains must neither use training mode nor change the mode of the
/// model.
#[test]
fn a_fork_does_not_change_the_mode_of_a_model_that_trains() {
    let _guard = exclusive();
    let dropout = Arc::new(Dropout::new(0.5));
    let model = Arc::new(sequential![Linear::new(8, 32), dropout.clone(), Linear::new(32, 3)]);
    let (x, ones) = (batch(4).0, Tensor::ones([64], DType::F32));
    let expected = {
        model.eval();
        let _off = pellucid::no_grad();
        bits(&model.forward(&x))
    };
    model.train();
    let inference = InferenceModel::new(model.clone(), &[4]);
    let begin = Barrier::new(3);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                begin.wait();
                for _ in 0..50 {
                    // Every fork records.
                    assert_eq!(bits(&inference.fork().run(&x).unwrap()), expected);
                }
            });
        }
        begin.wait();
        for _ in 0..200 {
            // In evaluation mode, dropout returns its input unchanged.
            assert!(dropout.forward(&ones).min(..).item::<f32>() == 0.0, "the model must stay in training mode");
        }
    });
}

#[test]
fn steps_of_one_closure_share_what_they_read() {
    let _guard = exclusive();
    let weight = Tensor::randn([8, 3], DType::F32);
    let forward = |inputs: &[Tensor]| inputs[0].matmul(&weight);
    let x = batch(4).0;
    let expected = bits(&forward(std::slice::from_ref(&x)));
    let steps: Vec<Captured<'_>> = (0..3).map(|_| capture(forward, &[&x]).unwrap()).collect();
    thread::scope(|scope| {
        for mut step in steps {
            let (x, expected) = (&x, &expected);
            scope.spawn(move || {
                (0..10).for_each(|_| assert_eq!(bits(&step.launch(&[x]).unwrap().to_tensor(0)), *expected));
            });
        }
    });
}
