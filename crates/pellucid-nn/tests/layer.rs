//! Methods of every layer besides computing: build, shapes, capture, hooks, freezing, summaries.

use pellucid_nn::loss::{Loss, MarginRankingLoss, MseLoss, TripletMarginWithDistanceLoss};
use pellucid_nn::optim::{Average, AveragedModel};
use pellucid_nn::{
    AttentionMasks, AvgPool2d, BatchNorm1d, BatchNorm2d, Bilinear, Conv2d, ConvTranspose1d, ConvTranspose2d, Dropout,
    Embedding, EmbeddingBag, Flatten, Fold, FractionalMaxPool2d, GruCell, Layer, LayerNorm, Linear, LocalResponseNorm,
    LpPool2d, Lstm, LstmCell, MaxPool2d, MaxPool3d, MaxUnpool2d, Module, ModuleDict, ModuleList, MultiheadAttention,
    Parameter, Relu, Rnn, RnnCell, Sequential, StateDict, TransformerDecoderLayer, TransformerEncoder,
    TransformerOptions, Unfold, hook, init, rename_keys, sequential,
};
use pellucid_tensor::{
    BackwardOptions, DType, Device, Error, Result, Shape, Tensor, capture, detect_anomaly, manual_seed, no_grad, ops,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

fn mlp() -> Sequential {
    sequential![Linear::new(4, 3), Relu, Linear::new(3, 2)]
}

#[test]
fn a_lazy_model_is_built_once_from_the_shape_of_an_input() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    manual_seed(1);
    let model = sequential![Flatten::new(), Linear::lazy(5), Relu, Linear::lazy(2)];
    model.build(&[7, 2, 3]).unwrap();
    let before = model.state_dict();
    assert_eq!(before.keys().collect::<Vec<_>>(), ["1.bias", "1.weight", "3.bias", "3.weight"]);
    assert_eq!(before["1.weight"].shape().dims(), [5, 6]);
    model.build(&[9, 2, 3]).unwrap();
    for (name, value) in model.state_dict() {
        assert_eq!(value.to_vec::<f32>(), before[&name].to_vec::<f32>(), "{name} must not change");
    }
    let error = model.build(&[9, 2, 4]).unwrap_err();
    assert!(matches!(&error, Error::Layer { layer, .. } if layer == "1 (Linear)"), "{error}");
    // The first forward builds the layer as well, with values.
    let other = Linear::lazy(3);
    assert_eq!(other.forward(&Tensor::ones([2, 4], DType::F32)).to_vec::<f32>().len(), 6);
    assert_eq!(other.get().unwrap().weight.shape().dims(), [3, 4]);
}

/// Operations that would omit unbuilt parameters are errors; other operations succeed.
#[test]
fn parameters_of_an_unbuilt_model_are_refused() {
    let model = sequential![Linear::new(4, 3), (Relu, Linear::lazy(2)), Linear::lazy(1)];
    let uses: [fn(&Sequential); 7] = [
        |model| drop(model.parameters()),
        |model| drop(model.named_parameters()),
        |model| _ = model.parameter_count(),
        |model| drop(model.state_dict()),
        |model| drop(model.load_matching(&StateDict::new()).map_err(|error| panic!("{error}"))),
        |model| model.freeze(),
        |model| drop(AveragedModel::new(model, Average::Equal)),
    ];
    for refused in uses {
        let error = catch_unwind(AssertUnwindSafe(|| refused(&model))).unwrap_err();
        let text = error.downcast_ref::<String>().unwrap();
        assert!(text.contains("1.1 (Lazy)") && text.contains("build()"), "{text}");
    }
    model.zero_grad();
    model.eval();
    model.unfreeze();
    let built = sequential![Linear::new(4, 3), (Relu, Linear::new(3, 2)), Linear::new(2, 1)].state_dict();
    let error = model.load_state_dict(&built).unwrap_err();
    assert!(matches!(&error, Error::Layer { layer, .. } if layer == "1.1 (Lazy)"), "{error}");
    assert!(model.load_matching(&built).is_err());
    assert_eq!(model.summary(&[5, 4]).unwrap().parameters, 15 + 8 + 3);
    model.load_state_dict(&built).unwrap();
    uses.iter().for_each(|accepted| accepted(&model));
    assert!(model.parameters().iter().all(|p| !p.requires_grad()));
}

/// A lazy layer has the default dtype at its construction; layers without parameters do not affect the input
/// dtype.
#[test]
fn a_lazy_model_has_the_dtype_of_its_construction() {
    let make = || sequential![Flatten::new(), Linear::lazy(3).with(Linear::without_bias), (Relu, Linear::lazy(2))];
    let model = init::in_dtype(DType::F64, make);
    assert_eq!(model.input_dtype(), DType::F64);
    model.build(&[4, 5]).unwrap();
    assert!(model.parameters().iter().all(|p| p.dtype() == DType::F64));
    assert_eq!((model.parameters().len(), model.input_dtype()), (3, DType::F64));
    assert_eq!((make().input_dtype(), sequential![Relu].input_dtype()), (DType::F32, DType::F32));
    let words = (Dropout::new(0.1), Embedding::new(5, 2), Linear::new(2, 2));
    assert_eq!(words.input_dtype(), DType::I64);
}

#[test]
fn shapes_are_inferred_without_a_kernel_or_a_random_number() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let model = sequential![Linear::new(4, 3), Dropout::new(0.5)];
    manual_seed(3);
    let expected = Tensor::rand([4], DType::F32).to_vec::<f32>();
    manual_seed(3);
    assert_eq!(model.output_shape(&[5, 4]).unwrap().dims(), [5, 3]);
    assert_eq!(Tensor::rand([4], DType::F32).to_vec::<f32>(), expected);
    let error = mlp().output_shape(&[5, 5]).unwrap_err();
    let Error::Layer { layer, source } = &error else { panic!("{error}") };
    assert_eq!(layer, "0 (Linear)");
    assert!(matches!(**source, Error::ShapeMismatch { .. }), "{source}");
}

/// A layer whose computation reads a value.
#[derive(Clone, Module)]
#[module(no_capture = "it reads the mean of its input")]
struct Branching(Linear);

impl Layer for Branching {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        if x.mean(..).item::<f32>() > 0.0 { self.0.try_forward(x) } else { Ok(x.clone()) }
    }
}

#[test]
fn layers_without_capture_are_named_through_containers() {
    assert_eq!(mlp().supports_capture(), Ok(()));
    let model = sequential![Linear::new(4, 4), (Relu, Branching(Linear::new(4, 4)))];
    let error = model.supports_capture().unwrap_err();
    assert_eq!(error.to_string(), "1.1 (Branching): capture: it reads the mean of its input");
    let error = model.output_shape(&[2, 4]).unwrap_err();
    let Error::Layer { layer, source } = &error else { panic!("{error}") };
    assert_eq!(layer, "1.1 (Branching)");
    assert!(matches!(**source, Error::ReadInCapture { .. }), "{source}");
}

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
        let options = TransformerOptions { dropout: 0.0, ..Default::default() };
        Translator {
            decoder: TransformerDecoderLayer::new(4, 2, 8, options),
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
    // A hook's result replaces the output, also of a loss.
    let _guard = hook::on_call(&model, "loss", |_, y| Some(y * 0.0)).unwrap();
    assert_eq!(model.loss.forward(&target, &(&target * 2.0)).item::<f32>(), 0.0);
    // A hook of one module does not run in another module of the same type.
    assert_eq!(MseLoss::default().forward(&target, &(&target * 2.0)).item::<f32>(), 1.0);
}

/// Layers and cells that return a state: hooks see their output, with or without a given state.
#[test]
fn recurrent_layers_are_hooked_with_their_states() {
    #[derive(Module)]
    struct Model {
        rnn: Rnn,
        lstm: Lstm,
        rnn_cell: RnnCell,
        gru_cell: GruCell,
        lstm_cell: LstmCell,
    }
    let model = Model {
        rnn: Rnn::new(3, 4),
        lstm: Lstm::new(3, 4),
        rnn_cell: RnnCell::new(3, 4),
        gru_cell: GruCell::new(3, 4),
        lstm_cell: LstmCell::new(3, 4),
    };
    let (x, step, h) =
        (Tensor::ones([5, 2, 3], DType::F32), Tensor::ones([2, 3], DType::F32), Tensor::ones([2, 4], DType::F32));
    let states = (h.unsqueeze(0), h.unsqueeze(0));
    type Run<'a> = Box<dyn Fn() -> Tensor + 'a>;
    let runs: [(&str, usize, Run<'_>); 8] = [
        ("rnn", 1, Box::new(|| model.rnn.forward(&x))),
        ("rnn", 2, Box::new(|| model.rnn.run(&x, Some(&states.0)).0)),
        ("lstm", 1, Box::new(|| model.lstm.run(&x, None).0)),
        ("lstm", 3, Box::new(|| model.lstm.run(&x, Some(&states)).0)),
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
    }
}

/// A cell accepts one sequence without a batch, and returns the row of a batch of one.
#[test]
fn cells_take_steps_without_a_batch() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    manual_seed(2);
    let (x, h) = (Tensor::randn([3], DType::F32), Tensor::randn([4], DType::F32));
    let row = |t: &Tensor| t.unsqueeze(0);
    let check = |one: Tensor, batch: Tensor| assert_eq!((one.rank(), one.to_vec::<f32>()), (1, batch.to_vec()));
    let rnn = RnnCell::new(3, 4);
    check(rnn.forward(&x, Some(&h)), rnn.forward(&row(&x), Some(&row(&h))));
    let gru = GruCell::new(3, 4);
    check(gru.forward(&x, None), gru.forward(&row(&x), None));
    let lstm = LstmCell::new(3, 4);
    let states = (h.clone(), &h * 2.0);
    let one = lstm.forward(&x, Some(&states));
    let batch = lstm.forward(&row(&x), Some(&(row(&states.0), row(&states.1))));
    check(one.0, batch.0);
    check(one.1, batch.1);
    let cube = Tensor::ones([1, 1, 3], DType::F32);
    assert!(matches!(gru.try_forward(&cube, None), Err(Error::ShapeMismatch { .. })));
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
fn anomaly_mode_names_the_line_that_called_a_module() {
    // The derivative of a norm at 0 is ∞ · 0 by its definition.
    let distance =
        |a: &Tensor, b: &Tensor| -> Result<Tensor> { ops::sqrt(&ops::sum(&ops::square(&ops::sub(a, b)?)?, -1)?) };
    let loss = TripletMarginWithDistanceLoss::new(distance);
    let x = Tensor::ones([2, 3], DType::F32).requires_grad_(true);
    let _guard = detect_anomaly();
    let (value, line) = (loss.forward(&x, &(&x * 1.0), &(&x + 0.5)), line!());
    let error = value.try_backward_with(BackwardOptions::default()).unwrap_err();
    assert!(matches!(error, Error::Anomaly { node: Some("sqrt" | "square" | "sub"), .. }), "{error:?}");
    assert!(error.to_string().contains(&format!("{}:{line}:", file!())), "{error}");
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
fn hooks_on_missing_or_zero_sized_layers_are_refused() {
    let model = (Linear::new(2, 2), Relu);
    let refused = |name: &str| hook::on_forward(&model, name, |_, _| None).err().unwrap().to_string();
    assert!(refused("head").contains("no layer named \"head\""), "{}", refused("head"));
    assert!(refused("1").contains("1 (Relu): the layer is zero-sized"), "{}", refused("1"));
}

#[test]
fn frozen_parameters_get_no_gradient() {
    let model = (Linear::new(4, 3), Linear::new(3, 2));
    model.0.freeze();
    model.forward(&Tensor::ones([2, 4], DType::F32)).sum(..).backward();
    assert!(model.0.weight.grad().is_none());
    assert!(model.1.weight.grad().is_some());
    let summary = model.summary(&[1, 4]).unwrap();
    assert_eq!((summary.parameters, summary.trainable), (4 * 3 + 3 + 3 * 2 + 2, 3 * 2 + 2));
    // An old gradient is removed with the others.
    model.1.freeze();
    model.zero_grad();
    assert!(model.1.weight.grad().is_none());
    model.unfreeze();
    assert!(model.parameters().iter().all(|p| p.requires_grad()));
    model.to_(Device::cpu()).unwrap();
}

#[test]
fn a_summary_counts_parameters_memory_and_work() {
    let model = sequential![Flatten::new(), (Linear::new(784, 256), Relu), Linear::lazy(10)];
    let summary = model.summary(&[64, 28, 28]).unwrap();
    let rows: Vec<_> =
        summary.rows.iter().map(|r| (r.name.as_str(), r.class, r.depth, r.output.dims().to_vec())).collect();
    let expected = [
        ("", "Sequential", 0, vec![64, 10]),
        ("0", "Flatten", 1, vec![64, 784]),
        ("", "tuple", 1, vec![64, 256]),
        ("1.0", "Linear", 2, vec![64, 256]),
        ("", "Relu", 2, vec![64, 256]),
        ("2", "Linear", 1, vec![64, 10]),
    ];
    assert_eq!(rows, expected);
    let products = 2 * 64 * (784 * 256 + 256 * 10) as u64;
    let rest = summary.work.flops - products;
    assert!((2 * 64 * 256..4 * 64 * 256).contains(&rest), "unexpected number of operations: {rest}");
    assert_eq!(summary.state_bytes, 4 * summary.parameters);
    assert_eq!(summary.activation_bytes, 4 * 64 * (784 + 256 + 256 + 10));
    let text = summary.to_string();
    assert!(text.contains("203,530 parameters") && text.contains("1.0 (Linear)"), "{text}");
}

/// The head of a language model shares the embedding. A summary counts shared parameters once, at the first layer, but
/// counts the operations of every call.
#[test]
fn a_summary_counts_shared_parameters_once() {
    #[derive(Clone, Module)]
    struct Tied {
        words: Embedding,
        head: Linear,
    }
    impl Layer for Tied {
        fn compute(&self, x: &Tensor) -> Result<Tensor> {
            self.head.try_forward(&self.words.try_forward(x)?)
        }
        fn input_dtype(&self) -> DType {
            DType::I64
        }
    }
    let table: Parameter = pellucid_nn::init::normal([50, 8], 0.0, 1.0);
    let mut head = Linear::new(8, 50);
    head.weight = table.clone();
    let model = Tied { words: Embedding::from_table(table), head };
    let summary = model.summary(&[3, 7]).unwrap();
    assert_eq!((summary.parameters, summary.state_bytes), (50 * 8 + 50, 4 * (50 * 8 + 50)));
    let own: Vec<usize> = summary.rows.iter().map(|row| summary.parameters_of(row)).collect();
    assert_eq!(own, [50 * 8 + 50, 50 * 8, 50]);
    assert!(summary.rows[2].work.flops >= 2 * 21 * 8 * 50 && summary.work.flops < 2 * 2 * 21 * 8 * 50, "{summary}");
    assert_eq!(model.state_dict().keys().collect::<Vec<_>>(), ["head.bias", "words.weight"]);
}

#[test]
fn children_are_the_outermost_parts() {
    let model = sequential![(Linear::new(1, 1), Relu), sequential![Linear::new(1, 1)]];
    let names = |found: Vec<(String, pellucid_nn::PartInfo)>| found.into_iter().map(|(n, _)| n).collect::<Vec<_>>();
    assert_eq!(names(model.named_modules()), ["", "0.0", "0.1", "1", "1.0"]);
    assert_eq!(names(model.named_children()), ["0.0", "0.1", "1"]);
}

#[test]
fn containers_name_their_parts() {
    let mut dict = ModuleDict::new();
    assert!(dict.is_empty());
    dict.insert("b", Linear::new(1, 2));
    dict.insert("a", Linear::new(2, 3));
    assert!(dict.insert("b", Linear::new(1, 4)).is_some());
    let names: Vec<_> = dict.named_parameters().into_iter().map(|(n, p)| (n, p.shape().clone())).collect();
    let expected: [(&str, &[usize]); 4] =
        [("b.weight", &[4, 1]), ("b.bias", &[4]), ("a.weight", &[3, 2]), ("a.bias", &[3])];
    assert_eq!(names, expected.map(|(n, s)| (n.to_string(), Shape::from(s))));
    assert!(dict.remove("b").is_some() && dict.get("b").is_none());
    assert_eq!(dict.len(), 1);
    let panic = std::panic::catch_unwind(|| dict["b"].weight.clone()).expect_err("an unknown name must panic");
    let text = panic.downcast_ref::<String>().expect("the message must be a string");
    assert!(text.contains("no module named \"b\"; the names are [\"a\"]"), "{text}");
    let list: ModuleList = vec![Box::new(Linear::new(1, 1)), Box::new(Relu)];
    assert_eq!(list.named_parameters()[1].0, "0.bias");
}

/// The names of the tensors in GPT-2's files, where the weights of linear layers are `[in, out]`.
#[test]
fn a_file_with_other_names_and_transposed_weights_is_loaded() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    manual_seed(3);
    let model = || {
        let options = TransformerOptions { norm_first: true, dropout: 0.0, ..Default::default() };
        TransformerEncoder::new(2, 6, 2, 12, options).with_norm()
    };
    const NAMES: [(&str, &str); 7] = [
        ("self_attn.in_proj_", "attn.c_attn."),
        ("self_attn.out_proj.", "attn.c_proj."),
        ("linear1.", "mlp.c_fc."),
        ("linear2.", "mlp.c_proj."),
        ("norm1.", "ln_1."),
        ("norm2.", "ln_2."),
        ("layers.", "transformer.h."),
    ];
    let turned = |(name, w): (String, Tensor)| {
        let is_linear = name.contains(".c_") && name.ends_with("weight");
        (name, if is_linear { w.t() } else { w })
    };
    let written = model();
    let theirs = rename_keys(&written.state_dict(), |name| {
        let name = name.strip_prefix("norm.").map_or(name.to_string(), |rest| format!("transformer.ln_f.{rest}"));
        Some(NAMES.iter().fold(name, |name, (ours, theirs)| name.replace(ours, theirs)))
    });
    let mut theirs: StateDict = theirs.into_iter().map(turned).collect();
    assert_eq!(theirs["transformer.h.1.attn.c_attn.weight"].shape().dims(), [6, 18]);
    theirs.insert("transformer.h.0.attn.bias".into(), Tensor::ones([1, 1, 4, 4], DType::Bool));
    let ours = rename_keys(&theirs.into_iter().map(turned).collect(), |name| {
        if name.ends_with(".attn.bias") {
            return None;
        }
        let name = name.replace("transformer.ln_f", "norm");
        Some(NAMES.iter().fold(name, |name, (ours, theirs)| name.replace(theirs, ours)))
    });
    let read = model();
    read.load_state_dict(&ours).unwrap();
    let x = Tensor::randn([2, 4, 6], DType::F32);
    let y = |model: &TransformerEncoder| model.forward_masked(&x, AttentionMasks::causal()).to_vec::<f32>();
    assert_eq!(y(&read), y(&written));
}

#[test]
fn load_matching_loads_common_names_and_returns_the_others() {
    let (a, b) = (mlp(), mlp());
    let mut state = a.state_dict();
    state.remove("0.bias");
    state.insert("head.weight".into(), Tensor::zeros([1], DType::F32));
    let before = b.state_dict()["0.bias"].to_vec::<f32>();
    let keys = b.load_matching(&state).unwrap();
    assert_eq!((keys.missing, keys.unexpected), (vec!["0.bias".to_string()], vec!["head.weight".to_string()]));
    assert_eq!(b.state_dict()["2.weight"].to_vec::<f32>(), a.state_dict()["2.weight"].to_vec::<f32>());
    assert_eq!(b.state_dict()["0.bias"].to_vec::<f32>(), before);
    state.insert("0.weight".into(), Tensor::zeros([4, 4], DType::F32));
    let error = b.load_matching(&state).unwrap_err();
    assert!(error.to_string().contains("0.weight: [4, 4] instead of [3, 4];"), "{error}");
    let renamed = rename_keys(&a.state_dict(), |name| (!name.starts_with('2')).then(|| format!("x.{name}")));
    assert_eq!(renamed.keys().collect::<Vec<_>>(), ["x.0.bias", "x.0.weight"]);
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

/// Every refused input is named with an action that makes it fit.
#[test]
fn inputs_that_do_not_fit_are_refused_with_a_remedy() {
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32);
    let rows = Embedding::new(10, 3);
    let attention = MultiheadAttention::new(8, 4);
    let (x, there) = (zeros(&[2, 5, 8]), Tensor::ones([5, 2], DType::Bool));
    let attend = |there: &Tensor| attention.try_attend(&x, &x, &x, AttentionMasks::padding(there));
    let mask = Tensor::ones([2, 5, 5], DType::Bool);
    let masks = AttentionMasks { mask: Some(&mask), ..Default::default() };
    let lstm = Lstm::new(8, 4);
    let state = (zeros(&[1, 3, 4]), zeros(&[1, 2, 4]));
    let doubles = |shape: &[usize]| Tensor::zeros(shape, DType::F64);
    let refused: [(Result<Tensor>, &str); 28] = [
        (
            Linear::new(100, 4).try_forward(&zeros(&[2, 4, 6, 6])),
            "Flatten::new() before this layer, and make it with Linear::new(144, 4), as 4·6·6 = 144",
        ),
        (
            Linear::new(96, 4).try_forward(&zeros(&[4, 3, 8])),
            "4·3·8 = 96: for one sample, add the batch axis by unsqueeze(0)",
        ),
        (Linear::new(2, 4).try_forward(&doubles(&[2, 2])), "linear: dtypes f64 and f32"),
        (Conv2d::new(1, 4, 3).try_forward(&doubles(&[1, 1, 4, 4])), "conv2d: dtypes f64 and f32"),
        (Conv2d::new(1, 4, 3).try_forward(&zeros(&[5, 28, 28])), "unsqueeze(1)"),
        (BatchNorm2d::new(2).try_forward(&doubles(&[1, 2, 4, 4])), "batch_norm: dtypes f64 and f32"),
        (BatchNorm2d::new(2).try_forward(&zeros(&[2, 4, 4])), "add the batch axis by unsqueeze(0)"),
        (
            BatchNorm1d::new(2).try_forward(&zeros(&[2])),
            "1 spatial axis, or [B, C]; add the batch axis by unsqueeze(0)",
        ),
        (lstm.try_run(&doubles(&[4, 2, 8]), None).map(|y| y.0), "lstm: dtypes f64 and f32"),
        (attention.try_forward(&zeros(&[2, 5, 6])), "the layer was made for 8; make the layer for 6"),
        (attention.try_attend(&x, &zeros(&[2, 5, 7]), &x, AttentionMasks::default()), "axis of the key has length 7"),
        (Linear::new(8, 4).try_forward(&zeros(&[2, 6])), "Linear::new(6, 4)"),
        (Linear::new(24, 4).try_forward(&zeros(&[2, 4, 2, 3])), "4·2·3 = 24: put Flatten::new() before this layer"),
        (Linear::new(2, 4).try_forward(&Tensor::from([[1i64, 2]])), "x.to_dtype(DType::F32)"),
        (Conv2d::new(1, 4, 3).try_forward(&zeros(&[28, 28])), "unsqueeze(0)"),
        (Conv2d::new(3, 4, 3).try_forward(&zeros(&[2, 28, 28, 3])), "permute([0, 3, 1, 2])"),
        (Conv2d::new(1, 4, 5).try_forward(&zeros(&[2, 1, 4, 4])), "add padding, or make the kernel smaller"),
        (MaxPool2d::new(5).try_forward(&zeros(&[2, 1, 4, 3])), "spatial shape [4, 3]"),
        (BatchNorm2d::new(8).try_forward(&zeros(&[2, 3, 4, 4])), "made for 8: BatchNorm2d::new(3)"),
        (BatchNorm1d::new(8).try_forward(&zeros(&[1, 8])), "eval()"),
        (LayerNorm::new(8).try_forward(&zeros(&[2, 7])), "LayerNorm::new([7])"),
        (rows.try_forward(&Tensor::from([10i64])), "indices must be in 0..10"),
        (rows.try_forward(&Tensor::from([1i64, -1])), "index -1 is out of bounds"),
        (attend(&there), "key_padding [5, 2] must be [batch, keys] = [2, 5]; transpose it?"),
        (attend(&zeros(&[2, 5])), "to_dtype(DType::Bool)"),
        (attention.try_attend(&x, &x, &x, masks), "unsqueeze(-3)"),
        (lstm.try_run(&zeros(&[4, 2, 7]), None).map(|y| y.0), "7 features"),
        (
            lstm.try_run(&zeros(&[4, 2, 8]), Some(&state)).map(|y| y.0),
            "h must have shape [layers·directions, N, H] = [1, 2, 4]",
        ),
    ];
    for (refused, remedy) in refused {
        let text = refused.err().unwrap_or_else(|| panic!("{remedy}: the input must be refused")).to_string();
        assert!(text.contains(remedy), "{text} must contain {remedy}");
    }
    let below = capture(|i| rows.forward(&i[0]), &[&Tensor::from([1i64, 2])]);
    let mut below = below.unwrap();
    assert!(matches!(below.launch(&[&Tensor::from([1i64, -1])]).err(), Some(Error::IndexOutOfBounds { .. })));
    below.launch(&[&Tensor::from([9i64, 0])]).unwrap();
}

#[test]
fn settings_of_windows_are_checked_when_they_are_set() {
    let (conv, up) = (|| Conv2d::new(1, 5, 3), || ConvTranspose2d::new(1, 5, 3));
    const SIZE: &str =
        "size: must be at least 1 on every axis, got [0, 2]; use 1 for an axis on which the window has one";
    const STRIDE: &str = "stride: must be at least 1 on every axis, got [1, 0]; the default is the size of the window";
    const DILATION: &str = "dilation: must be at least 1 on every axis, got [0, 0]; use 1, the default";
    let refused = [
        (MaxPool2d::try_new([0, 2]).err(), SIZE),
        (MaxPool2d::new(2).try_stride([1, 0]).err(), STRIDE),
        (MaxPool2d::new(2).try_dilation(0).err(), DILATION),
        (MaxPool3d::try_new(0).err(), "size: must be at least 1 on every axis, got [0, 0, 0]"),
        (AvgPool2d::try_new([0, 2]).err(), SIZE),
        (AvgPool2d::new(2).try_stride([1, 0]).err(), STRIDE),
        (
            AvgPool2d::new(2).try_divisor(ops::AvgPoolDivisor::Number(0.0)).err(),
            "divisor: must be finite and nonzero, got 0",
        ),
        (LpPool2d::try_new(2.0, [0, 2]).err(), SIZE),
        (LpPool2d::try_new(0.0, 2).err(), "p: must be a nonzero number, got 0; a usual value is 2"),
        (LpPool2d::new(2.0, 2).try_stride([1, 0]).err(), STRIDE),
        (MaxUnpool2d::try_new([0, 2]).err(), SIZE),
        (MaxUnpool2d::new(2).try_stride([1, 0]).err(), STRIDE),
        (FractionalMaxPool2d::try_new([0, 2], 3).err(), SIZE),
        (FractionalMaxPool2d::try_new(2, [3, 0]).err(), "outputs: must be at least 1 on every axis, got [3, 0]; use 1"),
        (
            FractionalMaxPool2d::try_of_ratio(2, [0.5, 1.0]).err(),
            "ratio: must be in (0, 1) on every axis, got [0.5, 1.0]; a usual value is 0.5",
        ),
        (Unfold::try_new([0, 2]).err(), SIZE),
        (
            Unfold::new(2).try_stride(0).err(),
            "stride: must be at least 1 on every axis, got [0, 0]; use 1, the default",
        ),
        (Unfold::new(2).try_dilation(0).err(), DILATION),
        (Fold::try_new(8, [0, 2]).err(), SIZE),
        (
            Fold::new(8, 2).try_stride(0).err(),
            "stride: must be at least 1 on every axis, got [0, 0]; use 1, the default",
        ),
        (Fold::new(8, 2).try_dilation(0).err(), DILATION),
        (LocalResponseNorm::try_new(0).err(), "size: must be at least 1, got 0; a usual value is 5"),
        (Conv2d::try_new(1, 5, 0).err(), "kernel: must be at least 1 on every axis, got [0, 0]; use 1"),
        (conv().try_stride([1, 0]).err(), "stride: must be at least 1 on every axis, got [1, 0]; use 1, the default"),
        (conv().try_dilation(0).err(), "dilation: must be at least 1 on every axis, got [0, 0]; use 1, the default"),
        (ConvTranspose2d::try_new(1, 5, [0, 3]).err(), "kernel: must be at least 1 on every axis, got [0, 3]"),
        (up().try_stride(0).err(), "stride: must be at least 1"),
        (up().try_dilation([2, 0]).err(), "dilation: must be at least 1"),
    ];
    for (error, expected) in refused {
        let text = error.expect(expected).to_string();
        assert!(text.starts_with(expected), "{text} must start with {expected}");
    }
}

/// The panic of an index operator is reported at the caller's line.
#[test]
fn a_missing_layer_panics_at_the_line_of_the_caller() {
    let file = Arc::new(Mutex::new(String::new()));
    let seen = file.clone();
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        *seen.lock().unwrap() = info.location().unwrap().file().to_string();
    }));
    let missing = catch_unwind(AssertUnwindSafe(|| mlp()[9].tree()));
    std::panic::set_hook(before);
    assert!(missing.is_err());
    assert!(file.lock().unwrap().ends_with("layer.rs") && !file.lock().unwrap().contains("src"));
    assert!(catch_unwind(|| init::normal([2], 0.0, -1.0)).is_err());
}

#[test]
fn parameters_beyond_the_memory_name_the_layer_and_the_shape() {
    const HUGE: usize = 1 << 40;
    let refusals = [
        (Linear::try_new(HUGE, HUGE).map(drop), "linear", "[1099511627776, 1099511627776]"),
        (Bilinear::try_new(HUGE, HUGE, 2).map(drop), "bilinear", "[2, 1099511627776, 1099511627776]"),
        (Conv2d::try_new(HUGE, HUGE, 3).map(drop), "conv2d", "[1099511627776, 1099511627776, 3, 3]"),
        (ConvTranspose1d::try_new(HUGE, HUGE, 3).map(drop), "conv_transpose1d", "[1099511627776, 1099511627776, 3]"),
        (Embedding::try_new(HUGE, HUGE).map(drop), "embedding", "[1099511627776, 1099511627776]"),
        (EmbeddingBag::try_new(HUGE, HUGE).map(drop), "embedding_bag", "[1099511627776, 1099511627776]"),
    ];
    for (result, layer, shape) in refusals {
        let error = result.unwrap_err().to_string();
        assert!(error.starts_with(&format!("{layer}: out of memory: a tensor of shape {shape}")), "{error}");
    }
}
