//! Models of four kinds, with batches for them.

use pellucid_nn::graph::{GraphTrainer, StepOptions};
use pellucid_nn::loss::Loss;
use pellucid_nn::optim::{Optimizer, Sgd, SgdOptions};
use pellucid_nn::*;
use pellucid_tensor::{DType, Result, Tensor, manual_seed, ops};

/// The mean over axis 1.
#[derive(Clone, Module)]
pub(crate) struct Mean;

impl Layer for Mean {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        ops::mean(x, 1)
    }
}

/// The last element along axis 1.
#[derive(Clone, Module)]
pub(crate) struct Last;

impl Layer for Last {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        ops::select(x, 1, -1)
    }
}

pub(crate) const CLASSES: usize = 4;
pub(crate) const BATCH: usize = 8;

pub(crate) fn mlp() -> Sequential {
    sequential![Linear::new(6, 16), Relu, Linear::new(16, CLASSES)]
}

pub(crate) fn cnn() -> Sequential {
    sequential![
        Conv2d::new(2, 4, 3).padding(1),
        BatchNorm2d::new(4),
        Relu,
        Dropout::new(0.2),
        Flatten::new(),
        Linear::lazy(CLASSES),
    ]
}

pub(crate) fn transformer() -> Sequential {
    let encoder = TransformerEncoderLayer::new(8, 2).hidden(16);
    sequential![Linear::new(6, 8), encoder, Mean, Linear::new(8, CLASSES)]
}

pub(crate) fn lstm() -> Sequential {
    sequential![Lstm::new(6, 8).batch_first(true), Last, Linear::new(8, CLASSES)]
}

/// The name of a model, its constructor, and the shape of its input.
pub(crate) type Kind = (&'static str, fn() -> Sequential, &'static [usize]);

pub(crate) const KINDS: [Kind; 4] = [
    ("mlp", mlp, &[BATCH, 6]),
    ("cnn", cnn, &[BATCH, 2, 5, 5]),
    ("transformer", transformer, &[BATCH, 5, 6]),
    ("lstm", lstm, &[BATCH, 5, 6]),
];

/// Creates and builds a model of this kind.
pub(crate) fn built((_, make, shape): &Kind) -> Sequential {
    manual_seed(3);
    let model = make();
    model.build(shape).unwrap();
    model
}

pub(crate) fn batch(shape: &[usize], seed: u64) -> (Tensor, Tensor) {
    manual_seed(seed);
    (Tensor::randn(shape, DType::F32), Tensor::randint(0, CLASSES as i64, [BATCH]))
}

pub(crate) fn sgd(model: &Sequential, lr: f64, momentum: f64) -> Sgd {
    Sgd::try_new(model.parameters(), SgdOptions { lr, momentum, ..Default::default() }).unwrap()
}

/// Creates a trainer whose steps are captured or run eagerly.
pub(crate) fn trainer<'f, M: Layer + 'f, O: Optimizer + 'f>(
    model: M,
    loss: impl Loss + 'f,
    optimizer: O,
    eager: bool,
) -> GraphTrainer<'f, M, O> {
    GraphTrainer::new(model, loss, optimizer).with_options(StepOptions { eager, ..Default::default() })
}

/// Returns all bytes of these tensors.
pub(crate) fn bits(state: StateDict) -> Vec<(String, Vec<u8>)> {
    state.into_iter().map(|(name, tensor)| (name, tensor.to_bytes())).collect()
}
