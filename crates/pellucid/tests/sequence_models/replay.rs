//! Replayed training steps are bit-identical to eager steps.

use pellucid::capture_local;
use pellucid::nn::{AttentionMasks, Embedding, LearnedPositions, Lstm, TransformerEncoder};
use pellucid::prelude::*;

const STEPS: usize = 6;

/// Runs training steps of a model, each on different data. Returns the bits of all losses and of the final parameters.
fn train<M: Module>(
    make: impl Fn() -> M,
    loss: impl Fn(&M, &Tensor, &Tensor) -> Tensor,
    batch: impl Fn() -> (Tensor, Tensor),
    replayed: bool,
) -> (Vec<u32>, Vec<Vec<u8>>) {
    manual_seed(5);
    let model = make();
    let optimizer = AdamW::new(model.parameters(), AdamWOptions { lr: 0.01, ..Default::default() });
    let step = |x: &Tensor, y: &Tensor| {
        optimizer.zero_grad();
        let loss = loss(&model, x, y);
        loss.backward();
        optimizer.step();
        loss
    };
    let batches: Vec<_> = (0..STEPS).map(|_| batch()).collect();
    let losses = if replayed {
        let (x, y) = &batches[0];
        let mut captured = capture_local(|inputs| step(&inputs[0], &inputs[1]), &[x, y]).unwrap();
        batches.iter().map(|(x, y)| captured.launch(&[x, y]).unwrap().item::<f32>(0).to_bits()).collect()
    } else {
        batches.iter().map(|(x, y)| step(x, y).item::<f32>().to_bits()).collect()
    };
    let state = model.state_dict().into_values().map(|t| t.to_bytes()).collect();
    (losses, state)
}

#[derive(Module)]
struct Gpt {
    words: Embedding,
    positions: LearnedPositions,
    body: TransformerEncoder,
    head: Linear,
}

#[test]
fn a_step_of_a_transformer() {
    let _random = pellucid::Generator::new(0).scope();
    let make = || Gpt {
        words: Embedding::new(11, 16),
        positions: LearnedPositions::new(8, 16),
        body: TransformerEncoder::new(16, 4, 2).hidden(32).norm_first(true).activation(ops::gelu_tanh).norm(true),
        head: Linear::new(16, 11).bias(false),
    };
    let loss = |model: &Gpt, x: &Tensor, y: &Tensor| {
        let x = model.positions.forward(&model.words.forward(x));
        let logits = model.head.forward(&model.body.forward_masked(&x, AttentionMasks::causal()));
        cross_entropy(&logits.flatten(0, 1), &y.flatten(0, 1))
    };
    let batch = || (Tensor::randint(0, 11, [3, 8]), Tensor::randint(0, 11, [3, 8]));
    let eager = train(make, loss, batch, false);
    assert!(
        eager.0.windows(2).all(|pair| pair[0] != pair[1]),
        "successive losses must differ, because every step trains the model"
    );
    assert_eq!(train(make, loss, batch, true), eager);
}

#[test]
fn a_step_of_an_lstm() {
    let _random = pellucid::Generator::new(0).scope();
    let lstm = || Lstm::new(3, 8).layers(2).dropout(0.2).bidirectional(true).batch_first(true);
    let make = || (lstm(), Linear::new(16, 5));
    let lengths = Tensor::from([6i64, 2, 5, 6]);
    let loss = |(lstm, head): &(Lstm, Linear), x: &Tensor, y: &Tensor| {
        let (outputs, _) = lstm.forward_padded(x, &lengths, None);
        cross_entropy(&head.forward(&outputs.mean(1)), y)
    };
    let batch = || (Tensor::randn([4, 6, 3], DType::F32), Tensor::randint(0, 5, [4]));
    let eager = train(make, loss, batch, false);
    assert!(
        eager.0.windows(2).all(|pair| pair[0] != pair[1]),
        "successive losses must differ, because every step trains the model"
    );
    assert_eq!(train(make, loss, batch, true), eager);
}
