//! Model-agnostic meta-learning (Finn, Abbeel & Levine 2017): initial weights that adapt to a new task in one step.
//!
//! ```text
//! cargo run --release --example maml
//! cargo run --release --example maml -- --quick
//! ```
//!
//! A task is a sinusoid y = a·sin(x − φ) with random a and φ. Ten points of it are given. Meta-learning minimizes the
//! loss after a step of gradient descent, Σ L(θ − α·∇L(θ)), so its gradient contains second derivatives of L. The
//! baseline network minimizes Σ L(θ).
//!
//! Result, on 2 cores of an AMD EPYC (Zen 5): the loss 2.95 of new tasks falls to 0.53 after one step and 0.21 after
//! five; the loss of the baseline falls from 2.96 to 2.36 and 1.84. The run takes 5 s.
#![allow(clippy::print_stdout, reason = "an example program prints to standard output")]

use pellucid::nn::functional_call;
use pellucid::nn::graph::TrainingStep;
use pellucid::prelude::*;
use std::f64::consts::PI;

const SEED: u64 = 0;
/// The number of support points of a task.
const SHOTS: usize = 10;
/// The number of tasks of a meta-learning step.
const TASKS: usize = 25;
/// The learning rate α of adaptation.
const ALPHA: f64 = 0.01;

fn main() -> Result<()> {
    let quick = std::env::args().any(|argument| argument == "--quick");
    let steps = if quick { 200 } else { 5000 };
    manual_seed(SEED);
    let (meta, joint) = (network(), network());
    minimize(&meta, steps, |model, tasks| loss_after_adaptation(model, tasks, 1, true))?;
    minimize(&joint, steps, |model, tasks| loss_after_adaptation(model, tasks, 0, false))?;

    let new = Tasks::random(if quick { 50 } else { 500 });
    let losses_after_adaptation = |model| -> Result<[f64; 3]> {
        let [a, b, c] = [0, 1, 5].map(|steps| loss_after_adaptation(model, &new, steps, false));
        Ok([a?.item(), b?.item(), c?.item()])
    };
    let [meta_losses, joint_losses] = [losses_after_adaptation(&meta)?, losses_after_adaptation(&joint)?];
    let row = |losses: [f64; 3]| losses.map(|loss| format!("{loss:.2}")).join(", ");
    println!("result: loss after 0, 1, 5 steps {}; of the pretrained network {}", row(meta_losses), row(joint_losses));
    assert!(
        meta_losses[1] < joint_losses[1],
        "one step must help the meta-learned network more than the pretrained one"
    );
    Ok(())
}

fn network() -> Sequential {
    sequential![Linear::new(1, 40), Relu, Linear::new(40, 40), Relu, Linear::new(40, 1)]
}

/// Tasks with support points `[T, K, 1]`, to which the model adapts, and query points, on which it is evaluated.
struct Tasks {
    known: [Tensor; 2],
    further: [Tensor; 2],
}

impl Tasks {
    fn random(n: usize) -> Tasks {
        let uniform = |low: f64, high: f64, shape: [usize; 3]| Tensor::rand(shape, DType::F32) * (high - low) + low;
        let (amplitude, phase) = (uniform(0.1, 5.0, [n, 1, 1]), uniform(0.0, PI, [n, 1, 1]));
        let points = || {
            let x = uniform(-5.0, 5.0, [n, SHOTS, 1]);
            let y = &amplitude * (&x - &phase).sin();
            [x, y]
        };
        Tasks { known: points(), further: points() }
    }

    fn len(&self) -> usize {
        self.known[0].shape()[0]
    }
}

/// Minimizes a loss of random tasks with Adam. Every step draws new tasks.
fn minimize(
    model: &Sequential,
    steps: usize,
    loss: impl Fn(&Sequential, &Tasks) -> Result<Tensor> + Send + Sync,
) -> Result<()> {
    let adam = Adam::new(model.parameters(), AdamOptions { lr: 1e-3, ..Default::default() });
    let mut step = TrainingStep::new(adam, |_| loss(model, &Tasks::random(TASKS)));
    for at in 0..steps {
        let loss = &step.launch(&[])?[0];
        if at % (steps / 5) == 0 {
            println!("step {at}: loss {:.3}", loss.item::<f64>());
        }
    }
    Ok(())
}

/// Returns the mean over tasks of the loss at the query points, after `steps` steps of adaptation to the support
/// points.
fn loss_after_adaptation(model: &Sequential, tasks: &Tasks, steps: usize, create_graph: bool) -> Result<Tensor> {
    let losses = (0..tasks.len()).map(|task| {
        let [x, y] = tasks.known.each_ref().map(|points| points.i(task));
        let weights = adapted(model, &x, &y, steps, create_graph)?;
        let [x, y] = tasks.further.each_ref().map(|points| points.i(task));
        functional_call(model, &weights, |model| mse_loss(&model.forward(&x), &y))
    });
    ops::mean(&ops::stack(&losses.collect::<Result<Vec<_>>>()?, 0)?, ..)
}

/// Returns the weights after `steps` steps of gradient descent, θ ← θ − α·∇L(θ), as functions of the weights of the
/// model.
fn adapted(model: &Sequential, x: &Tensor, y: &Tensor, steps: usize, create_graph: bool) -> Result<StateDict> {
    let own = model.named_parameters().into_iter();
    let mut weights: StateDict = own.map(|(name, parameter)| (name, parameter.tensor().clone())).collect();
    for _ in 0..steps {
        let loss = functional_call(model, &weights, |model| mse_loss(&model.forward(x), y))?;
        let options = GradOptions { create_graph, ..Default::default() };
        let gradients = grad(&[&loss], &weights.values().collect::<Vec<_>>(), options)?;
        weights = weights.into_iter().zip(gradients).map(|((name, w), g)| (name, w - g * ALPHA)).collect();
    }
    Ok(weights)
}
