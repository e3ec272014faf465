//! A small run that the tests share.

use pellucid::nn::loss::CrossEntropyLoss;
use pellucid::prelude::*;
use pellucid::train::{Supervised, Trainer};
use pellucid::{Generator, GeneratorScope};
use std::hash::{DefaultHasher, Hash, Hasher};

pub(crate) type SmallTrainer = Trainer<'static, Supervised<'static, Sequential, AdamW>>;

/// Returns a scope with a separate random stream, which [`manual_seed`] in other tests does not restart.
pub(crate) fn isolated_generator() -> GeneratorScope {
    Generator::new(0).scope()
}

/// 60 points of two classes for training and 20 for validation.
pub(crate) fn points() -> (Batches, Batches) {
    let generator = Generator::new(7);
    let x = ops::randn_with([80, 4], DType::F32, &generator).unwrap();
    let y = x.sum(1).gt(0.0).to_dtype(DType::I64);
    let part = |start: usize, len: usize| [x.narrow(0, start, len), y.narrow(0, start, len)];
    (Batches::new(&part(0, 60), 8).shuffled(3), Batches::new(&part(60, 20), 7))
}

/// A model with dropout and running statistics.
pub(crate) fn model() -> Sequential {
    manual_seed(5);
    sequential![Linear::new(4, 16), BatchNorm1d::new(16), Relu, Dropout::new(0.3), Linear::new(16, 2)]
}

pub(crate) fn trainer() -> SmallTrainer {
    let model = model();
    let adamw = AdamW::new(model.parameters(), AdamWOptions { lr: 0.02, ..Default::default() });
    Trainer::new(model, CrossEntropyLoss::default(), adamw).quiet(true)
}

/// Returns hashes of the bytes of all parameters and buffers of a model.
pub(crate) fn bits(model: &impl Module) -> Vec<(String, u64)> {
    let hash = |tensor: Tensor| {
        let mut hasher = DefaultHasher::new();
        tensor.to_bytes().hash(&mut hasher);
        hasher.finish()
    };
    model.state_dict().into_iter().map(|(name, tensor)| (name, hash(tensor))).collect()
}
