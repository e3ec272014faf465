//! Hooks before and after layers and on gradients.

use super::mlp;
use pellucid_nn::loss::{Loss, MarginRankingLoss, MseLoss, TripletMarginWithDistanceLoss};
use pellucid_nn::{
    AdaptiveMaxPool1d, AttentionMasks, Bilinear, ConvTranspose1d, Dropout, EmbeddingBag, GruCell, Layer,
    LearnedPositions, Linear, Lstm, LstmCell, MaxPool1d, Module, Parameter, Relu, Rnn, RnnCell,
    TransformerDecoderLayer, TransformerEncoderLayer, hook, sequential,
};
use pellucid_tensor::{DType, Error, Result, Tensor, capture, no_grad, ops};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

#[test]
fn forward_hooks_see_and_replace_outputs_until_they_are_dropped() {
    let model = mlp();
    let x = Tensor::ones([2, 4], DType::F32);
    let plain = model.forward(&x).to_vec::<f32>();
    let calls = Arc::new(AtomicUsize::new(0));
    let count = calls.clone();
    let guard = hook::on_forward(&model, "1", move |x, y| {
        count.fetch_add(1, Ordering::Relaxed);
        assert_eq!(y.to_vec::<f32>(), x.relu().to_vec::<f32>());
        Some(y * 0.0)
    })
    .unwrap();
    // A hook of one model does not run in another model of the same type.
    mlp().forward(&x);
    assert_eq!(calls.load(Ordering::Relaxed), 0);
    let Some((_, bias)) = model.named_parameters().pop() else { panic!() };
    assert_eq!(model.forward(&x).to_vec::<f32>(), bias.expand([2, 2]).to_vec::<f32>());
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    model.output_shape(&[2, 4]).unwrap();
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    drop(guard);
    assert_eq!(model.forward(&x).to_vec::<f32>(), plain);
}

/// A decoder layer, and a loss of its output.
#[derive(Module)]
struct Translator {
    decoder: TransformerDecoderLayer,
    norm: Bilinear,
    loss: MseLoss,
    ranking: MarginRankingLoss,
}

impl Translator {
    fn new() -> Translator {
        Translator {
            decoder: TransformerDecoderLayer::new(4, 2).hidden(8).dropout(0.0),
            norm: Bilinear::new(4, 4, 4),
            loss: MseLoss::default(),
            ranking: MarginRankingLoss::default(),
        }
    }

    fn loss(&self, target: &Tensor, memory: &Tensor) -> Tensor {
        let y = self.decoder.forward(target, memory, AttentionMasks::causal(), AttentionMasks::default());
        let z = self.norm.forward(&y, target);
        self.loss.forward(&z, target) + self.ranking.forward(&y, &z, target)
    }
}

#[test]
fn modules_of_several_inputs_run_hooks() {
    let model = Translator::new();
    let (target, memory) = (Tensor::ones([1, 3, 4], DType::F32), Tensor::ones([1, 5, 4], DType::F32));
    for (name, shapes) in [
        ("decoder", vec![vec![1, 3, 4], vec![1, 5, 4]]),
        ("decoder.self_attn", vec![vec![1, 3, 4]; 3]),
        ("decoder.multihead_attn", vec![vec![1, 3, 4], vec![1, 5, 4], vec![1, 5, 4]]),
        ("decoder.norm3", vec![vec![1, 3, 4]]),
        ("norm", vec![vec![1, 3, 4]; 2]),
        ("loss", vec![vec![1, 3, 4]; 2]),
        ("ranking", vec![vec![1, 3, 4]; 3]),
    ] {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (kept, counted) = (seen.clone(), Arc::new(AtomicUsize::new(0)));
        let count = counted.clone();
        let guard = hook::on_call(&model, name, move |inputs, _| {
            let shape = |x: &&Tensor| x.shape().dims().to_vec();
            kept.lock().unwrap().extend(inputs.iter().map(shape));
            None
        })
        .unwrap();
        let _gradients = hook::on_backward(&model, name, move |_| {
            count.fetch_add(1, Ordering::Relaxed);
            None
        })
        .unwrap();
        model.loss(&target, &memory).backward();
        assert_eq!(
            (&*seen.lock().unwrap(), counted.load(Ordering::Relaxed)),
            (&shapes, 1),
            "{name}: the hook saw other shapes or another number of calls"
        );
        drop(guard);
        model.loss(&target, &memory);
        assert_eq!(seen.lock().unwrap().len(), shapes.len(), "{name}: the hook must not run after its removal");
    }
    // A hook's result replaces the output, even of a loss.
    let _guard = hook::on_call(&model, "loss", |_, y| Some(y * 0.0)).unwrap();
    assert_eq!(model.loss.forward(&target, &(&target * 2.0)).item::<f32>(), 0.0);
    // A hook of one module does not run in another module of the same type.
    assert_eq!(MseLoss::default().forward(&target, &(&target * 2.0)).item::<f32>(), 1.0);
}

/// Calls other than `forward`, of layers that return a state or indices, or read further arguments: hooks see their
/// output once.
#[test]
fn all_forward_passes_are_hooked() {
    #[derive(Module)]
    struct Model {
        bag: EmbeddingBag,
        positions: LearnedPositions,
        upsampling: ConvTranspose1d,
        pool: MaxPool1d,
        adaptive_pool: AdaptiveMaxPool1d,
        rnn: Rnn,
        lstm: Lstm,
        rnn_cell: RnnCell,
        gru_cell: GruCell,
        lstm_cell: LstmCell,
    }
    let model = Model {
        bag: EmbeddingBag::new(5, 3),
        positions: LearnedPositions::new(5, 3),
        upsampling: ConvTranspose1d::new(3, 4, 2).stride(2),
        pool: MaxPool1d::new(2),
        adaptive_pool: AdaptiveMaxPool1d::new(2),
        rnn: Rnn::new(3, 4),
        lstm: Lstm::new(3, 4),
        rnn_cell: RnnCell::new(3, 4),
        gru_cell: GruCell::new(3, 4),
        lstm_cell: LstmCell::new(3, 4),
    };
    let (x, step, h) =
        (Tensor::ones([5, 2, 3], DType::F32), Tensor::ones([2, 3], DType::F32), Tensor::ones([2, 4], DType::F32));
    let states = (h.unsqueeze(0), h.unsqueeze(0));
    let (index, image) = (Tensor::from([[0i64, 4]]), Tensor::ones([1, 3, 4], DType::F32));
    type Run<'a> = Box<dyn Fn() -> Tensor + 'a>;
    let runs: [(&str, usize, Run<'_>); 15] = [
        ("bag", 1, Box::new(|| model.bag.forward(&index))),
        ("bag", 1, Box::new(|| model.bag.forward_bags(&index, None, None))),
        ("positions", 1, Box::new(|| model.positions.forward_rows(&index))),
        ("upsampling", 1, Box::new(|| model.upsampling.forward_to(&image, [9]))),
        ("pool", 1, Box::new(|| model.pool.forward(&image))),
        ("pool", 1, Box::new(|| model.pool.forward_with_indices(&image).0)),
        ("adaptive_pool", 1, Box::new(|| model.adaptive_pool.forward_with_indices(&image).0)),
        ("rnn", 1, Box::new(|| model.rnn.forward(&x))),
        ("rnn", 2, Box::new(|| model.rnn.forward_sequence(&x, Some(&states.0)).0)),
        ("lstm", 1, Box::new(|| model.lstm.forward_sequence(&x, None).0)),
        ("lstm", 3, Box::new(|| model.lstm.forward_sequence(&x, Some(&states)).0)),
        ("rnn_cell", 1, Box::new(|| model.rnn_cell.forward(&step, None))),
        ("gru_cell", 2, Box::new(|| model.gru_cell.forward(&step, Some(&h)))),
        ("lstm_cell", 3, Box::new(|| model.lstm_cell.forward(&step, Some(&(h.clone(), h.clone()))).0)),
        ("lstm_cell", 1, Box::new(|| model.lstm_cell.forward(&step, None).0)),
    ];
    for (name, inputs, run) in runs {
        let counted = Arc::new(AtomicUsize::new(0));
        let count = counted.clone();
        let _guard = hook::on_call(&model, name, move |seen, y| {
            count.fetch_add(seen.len(), Ordering::Relaxed);
            Some(y * 0.0)
        })
        .unwrap();
        let y = run();
        assert_eq!(counted.load(Ordering::Relaxed), inputs, "{name}: the hook must see all inputs");
        assert!(y.to_vec::<f32>().iter().all(|v| *v == 0.0), "{name}: the result of the hook must replace the output");
        if inputs == 1 {
            // A hook may replace a single input in all methods of a module.
            let count = counted.clone();
            let _replacing = hook::on_forward_pre(&model, name, move |x| {
                count.fetch_add(10, Ordering::Relaxed);
                Some(x.clone())
            });
            run();
            assert_eq!(counted.load(Ordering::Relaxed), 12, "{name}");
        }
    }
}

#[test]
fn hooks_replace_the_input_of_an_encoder_with_masks() {
    let _off = no_grad();
    let layer = TransformerEncoderLayer::new(4, 2).hidden(8).dropout(0.0);
    let (x, other) = (Tensor::randn([1, 3, 4], DType::F32), Tensor::randn([1, 3, 4], DType::F32));
    let expected = layer.forward_masked(&other, AttentionMasks::causal()).to_vec::<f32>();
    let _guard = hook::on_forward_pre(&layer, "", move |_| Some(other.clone())).unwrap();
    assert_eq!(layer.forward_masked(&x, AttentionMasks::causal()).to_vec::<f32>(), expected);
    let y = layer.forward_cached(&x, &layer.self_attn.cache(1, 3)).to_vec::<f32>();
    assert!(y.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-5));
}

#[test]
fn a_loss_with_a_distance_runs_hooks() {
    let distance = |a: &Tensor, b: &Tensor| -> Result<Tensor> { Ok((a - b).abs().sum(-1)) };
    let loss = TripletMarginWithDistanceLoss::new(distance);
    let x = Tensor::ones([2, 3], DType::F32);
    let _guard = hook::on_call(&loss, "", |inputs, y| Some(y + inputs.len() as f64)).unwrap();
    assert_eq!(loss.forward(&x, &x, &x).item::<f32>(), 1.0 + 3.0);
}

#[test]
fn backward_hooks_see_and_replace_gradients() {
    let model = mlp();
    let x = Tensor::ones([2, 4], DType::F32);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let kept = seen.clone();
    let _guard = hook::on_backward(&model, "", move |g| {
        kept.lock().unwrap().push(g.to_vec::<f32>());
        Some(g * 2.0)
    })
    .unwrap();
    model.forward(&x).sum(..).backward();
    assert_eq!(*seen.lock().unwrap(), [vec![1.0; 4]]);
    assert_eq!(model.parameters()[3].grad().unwrap().to_vec::<f32>(), [4.0, 4.0]);
}

#[test]
fn hooks_on_missing_or_zero_sized_layers_are_rejected() {
    let model = (Linear::new(2, 2), Relu);
    let rejected = |name: &str| hook::on_forward(&model, name, |_, _| None).err().unwrap().to_string();
    assert!(rejected("head").contains("no layer named \"head\""), "{}", rejected("head"));
    assert!(rejected("1").contains("1 (Relu): the layer is zero-sized"), "{}", rejected("1"));
}

#[test]
fn a_hooked_layer_can_be_captured() {
    let model = mlp();
    let x = Tensor::ones([2, 4], DType::F32);
    let _guard = hook::on_forward(&model, "1", |_, y| Some(y + 1.0)).unwrap();
    let expected = model.forward(&x).to_vec::<f32>();
    let mut step = capture(|inputs| model.forward(&inputs[0]), &[&x]).unwrap();
    assert_eq!(step.launch(&[&x]).unwrap().to_vec::<f32>(0), expected);
}

/// A layer may return its input, even a leaf: the hook sees the gradient through the layer only, and is removed with
/// its guard.
#[test]
fn backward_hooks_of_identity_layers_see_their_own_gradient() {
    let model = sequential![Dropout::new(0.5), Linear::new(2, 1)];
    model.eval();
    let x = Tensor::ones([1, 2], DType::F32).requires_grad_(true);
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let guard = hook::on_backward(&model, "0", move |g| {
        counted.fetch_add(1, Ordering::Relaxed);
        Some(g * 0.0)
    });
    (model.forward(&x).sum(..) + x.sum(..)).backward();
    assert_eq!(x.grad().unwrap().to_vec::<f32>(), [1.0, 1.0]);
    {
        let _off = no_grad();
        assert!(!model.forward(&x).requires_grad(), "under no_grad() the hook must not track the output");
    }
    drop(guard);
    x.sum(..).backward();
    assert_eq!(x.grad().unwrap().to_vec::<f32>(), [2.0, 2.0]);
    assert_eq!(calls.load(Ordering::Relaxed), 1);
}

#[test]
fn hooks_before_a_layer_replace_its_input() {
    let model = sequential![Relu, sequential![Linear::new(2, 2), Relu]];
    let x = Tensor::from([[1.0f32, 2.0]]);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let [first, second] = [10.0, 1.0].map(|by| {
        let seen = seen.clone();
        move |x: &Tensor| {
            seen.lock().unwrap().push(x.to_vec::<f32>());
            Some(x * by + 1.0)
        }
    });
    let guards = (
        hook::on_forward_pre(&model, "1", first).unwrap(),
        hook::on_forward_pre(&model, "1", second).unwrap(),
        hook::on_forward_pre(&model, "", |_| None).unwrap(),
    );
    let given = seen.clone();
    let after = hook::on_forward(&model, "1", move |x, _| {
        given.lock().unwrap().push(x.to_vec());
        None
    });
    let y = model.forward(&x);
    assert_eq!(*seen.lock().unwrap(), [[1.0, 2.0], [11.0, 21.0], [12.0, 22.0]]);
    drop((guards, after));
    assert_eq!(y.to_vec::<f32>(), model.forward(&Tensor::from([[12.0f32, 22.0]])).to_vec::<f32>());
    // One of several inputs can be observed but not replaced.
    let loss = MseLoss::default();
    let guard = hook::on_forward_pre(&loss, "", |_| None);
    assert_eq!(loss.forward(&x, &x).item::<f32>(), 0.0);
    drop(guard);
    let _guard = hook::on_forward_pre(&loss, "", |x| Some(x.clone())).unwrap();
    assert!(matches!(loss.try_forward(&x, &x), Err(Error::InvalidArgument { .. })));
}

/// A lazy layer has its hooks after it was built; before, a hook would never be called.
#[test]
fn a_hook_of_a_layer_that_is_not_built_is_rejected() {
    let (model, x) = (sequential![Linear::lazy(3), Relu], Tensor::ones([2, 4], DType::F32));
    let calls = Arc::new(AtomicUsize::new(0));
    let register = |name: &str| {
        let count = calls.clone();
        hook::on_forward(&model, name, move |_, _| {
            count.fetch_add(1, Ordering::Relaxed);
            None
        })
    };
    let rejected = register("0").err().unwrap().to_string();
    assert!(rejected.contains("0 (Lazy)") && rejected.contains("build()"), "{rejected}");
    let _outer = register("").unwrap();
    model.build(&[2, 4]).unwrap();
    let _inner = register("0").unwrap();
    model.forward(&x);
    assert_eq!(calls.load(Ordering::Relaxed), 2);
}

/// A module without inputs.
#[derive(Module)]
struct InputlessTable {
    values: Parameter,
}

impl InputlessTable {
    fn forward(&self) -> Result<Tensor> {
        hook::call(self, &[], || ops::mul(self.values.tensor(), 2.0))
    }
}

#[test]
fn a_module_without_inputs_may_be_hooked_and_captured() {
    let table = InputlessTable { values: Parameter::new(Tensor::from([1.0f32, 2.0])) };
    let x = Tensor::from([1.0f32, 1.0]);
    let mut step = capture(|i: &[Tensor]| table.forward().map(|y| y * &i[0]).unwrap(), &[&x]).unwrap();
    assert_eq!(step.launch(&[&x]).unwrap().to_vec::<f32>(0), [2.0, 4.0]);
    drop(step);
    let _pre = hook::on_forward_pre(&table, "", |_| panic!("there is no input")).unwrap();
    let _forward = hook::on_forward(&table, "", |_, _| panic!("there is no input")).unwrap();
    assert_eq!(table.forward().unwrap().to_vec::<f32>(), [2.0, 4.0]);
    let _call = hook::on_call(&table, "", |inputs, y| Some(y + inputs.len() as f64 + 1.0)).unwrap();
    assert_eq!(table.forward().unwrap().to_vec::<f32>(), [3.0, 5.0]);
}
