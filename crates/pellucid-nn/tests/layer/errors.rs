//! Rejected inputs and settings, layers without capture, and the lines that errors name.

use super::mlp;
use pellucid_nn::loss::{CrossEntropyLoss, Loss, NllLoss, TripletMarginWithDistanceLoss};
use pellucid_nn::optim::{Average, AveragedModel, clip_grad_norm};
use pellucid_nn::{
    AttentionMasks, AvgPool2d, BatchNorm1d, BatchNorm2d, Bilinear, Conv2d, ConvTranspose1d, ConvTranspose2d, Embedding,
    EmbeddingBag, Fold, FractionalMaxPool2d, GroupNorm, Gru, GruCell, Layer, LayerNorm, LearnedPositions, Linear,
    LocalResponseNorm, LpPool2d, Lstm, LstmCell, MaxPool2d, MaxPool3d, MaxUnpool2d, Module, MultiheadAttention, Relu,
    RmsNorm, RnnCell, Rotary, SinusoidalPositions, TransformerDecoder, TransformerEncoder, Unfold, init, pack_sequence,
    sequential,
};
use pellucid_tensor::{BackwardOptions, DType, Error, Result, Tensor, capture, detect_anomaly, ops};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

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

/// Every rejected input is named with an action that makes it fit.
#[test]
fn inputs_that_do_not_fit_are_rejected_with_a_remedy() {
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32);
    let rows = Embedding::new(10, 3);
    let attention = MultiheadAttention::new(8, 4);
    let (x, visible) = (zeros(&[2, 5, 8]), Tensor::ones([5, 2], DType::Bool));
    let attend = |visible: &Tensor| attention.try_forward_qkv(&x, &x, &x, AttentionMasks::padding(visible));
    let mask = Tensor::ones([2, 5, 5], DType::Bool);
    let masks = AttentionMasks { mask: Some(&mask), ..Default::default() };
    let lstm = Lstm::new(8, 4);
    let state = (zeros(&[1, 3, 4]), zeros(&[1, 2, 4]));
    let doubles = |shape: &[usize]| Tensor::zeros(shape, DType::F64);
    let without_values = BatchNorm2d::new(8).affine(false).running_statistics(false);
    let rejected: [(Result<Tensor>, &str); 30] = [
        (
            Linear::new(100, 4).try_forward(&zeros(&[2, 4, 6, 6])),
            "Flatten::new() before this layer, and create it with Linear::new(144, 4), as 4·6·6 = 144",
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
        (lstm.try_forward_sequence(&doubles(&[4, 2, 8]), None).map(|y| y.0), "lstm: dtypes f64 and f32"),
        (attention.try_forward(&zeros(&[2, 5, 6])), "the layer expects 8; create the layer for 6"),
        (
            attention.try_forward_qkv(&x, &zeros(&[2, 5, 7]), &x, AttentionMasks::default()),
            "axis of the key has length 7",
        ),
        (Linear::new(8, 4).try_forward(&zeros(&[2, 6])), "Linear::new(6, 4)"),
        (Linear::new(24, 4).try_forward(&zeros(&[2, 4, 2, 3])), "4·2·3 = 24: put Flatten::new() before this layer"),
        (Linear::new(2, 4).try_forward(&Tensor::from([[1i64, 2]])), "x.to_dtype(DType::F32)"),
        (Conv2d::new(1, 4, 3).try_forward(&zeros(&[28, 28])), "unsqueeze(0)"),
        (Conv2d::new(3, 4, 3).try_forward(&zeros(&[2, 28, 28, 3])), "permute([0, 3, 1, 2])"),
        (Conv2d::new(1, 4, 5).try_forward(&zeros(&[2, 1, 4, 4])), "add padding, or make the kernel smaller"),
        (MaxPool2d::new(5).try_forward(&zeros(&[2, 1, 4, 3])), "spatial shape [4, 3]"),
        (BatchNorm2d::new(8).try_forward(&zeros(&[2, 3, 4, 4])), "expects 8: BatchNorm2d::new(3)"),
        (without_values.try_forward(&zeros(&[2, 3, 4, 4])), "expects 8: BatchNorm2d::new(3)"),
        (GroupNorm::new(2, 8).affine(false).try_forward(&zeros(&[2, 6, 4])), "expects 8: GroupNorm::new(2, 6)"),
        (BatchNorm1d::new(8).try_forward(&zeros(&[1, 8])), "eval()"),
        (LayerNorm::new(8).try_forward(&zeros(&[2, 7])), "LayerNorm::new([7])"),
        (rows.try_forward(&Tensor::from([10i64])), "indices must be in 0..10"),
        (rows.try_forward(&Tensor::from([1i64, -1])), "index -1 is out of bounds"),
        (attend(&visible), "key_padding [5, 2] must be [batch, keys] = [2, 5]; transpose it?"),
        (attend(&zeros(&[2, 5])), "to_dtype(DType::Bool)"),
        (attention.try_forward_qkv(&x, &x, &x, masks), "unsqueeze(-3)"),
        (lstm.try_forward_sequence(&zeros(&[4, 2, 7]), None).map(|y| y.0), "7 features"),
        (
            lstm.try_forward_sequence(&zeros(&[4, 2, 8]), Some(&state)).map(|y| y.0),
            "h must have shape [layers·directions, N, H] = [1, 2, 4]",
        ),
    ];
    for (rejected, remedy) in rejected {
        let text = rejected.err().unwrap_or_else(|| panic!("{remedy}: the input must be rejected")).to_string();
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
    let response = || LocalResponseNorm::new(3);
    const SIZE: &str =
        "size must be at least 1 on every axis, got [0, 2]; use 1 for an axis on which the window has one";
    const STRIDE: &str = "stride must be at least 1 on every axis, got [1, 0]; the default is the size of the window";
    const DILATION: &str = "dilation must be at least 1 on every axis, got [0, 0]; use 1, the default";
    let rejected = [
        ("MaxPool2d", MaxPool2d::try_new([0, 2]).err(), SIZE),
        ("MaxPool2d", MaxPool2d::new(2).try_stride([1, 0]).err(), STRIDE),
        ("MaxPool2d", MaxPool2d::new(2).try_dilation(0).err(), DILATION),
        ("MaxPool3d", MaxPool3d::try_new(0).err(), "size must be at least 1 on every axis, got [0, 0, 0]"),
        ("AvgPool2d", AvgPool2d::try_new([0, 2]).err(), SIZE),
        ("AvgPool2d", AvgPool2d::new(2).try_stride([1, 0]).err(), STRIDE),
        (
            "AvgPool2d",
            AvgPool2d::new(2).try_divisor(ops::AvgPoolDivisor::Number(0.0)).err(),
            "divisor must be finite and nonzero, got 0",
        ),
        ("LpPool2d", LpPool2d::try_new(2.0, [0, 2]).err(), SIZE),
        ("LpPool2d", LpPool2d::try_new(0.0, 2).err(), "p must be a nonzero number, got 0; try 2"),
        ("LpPool2d", LpPool2d::new(2.0, 2).try_stride([1, 0]).err(), STRIDE),
        ("MaxUnpool2d", MaxUnpool2d::try_new([0, 2]).err(), SIZE),
        ("MaxUnpool2d", MaxUnpool2d::new(2).try_stride([1, 0]).err(), STRIDE),
        ("fractional_max_pool", FractionalMaxPool2d::try_new([0, 2], 3).err(), SIZE),
        (
            "fractional_max_pool",
            FractionalMaxPool2d::try_new(2, [3, 0]).err(),
            "outputs must be at least 1 on every axis, got [3, 0]; use 1",
        ),
        (
            "fractional_max_pool",
            FractionalMaxPool2d::try_of_ratio(2, [0.5, 1.0]).err(),
            "ratio must be in (0, 1) on every axis, got [0.5, 1.0]; try 0.5",
        ),
        ("Unfold", Unfold::try_new([0, 2]).err(), SIZE),
        (
            "Unfold",
            Unfold::new(2).try_stride(0).err(),
            "stride must be at least 1 on every axis, got [0, 0]; use 1, the default",
        ),
        ("Unfold", Unfold::new(2).try_dilation(0).err(), DILATION),
        ("Fold", Fold::try_new(8, [0, 2]).err(), SIZE),
        (
            "Fold",
            Fold::new(8, 2).try_stride(0).err(),
            "stride must be at least 1 on every axis, got [0, 0]; use 1, the default",
        ),
        ("Fold", Fold::new(8, 2).try_dilation(0).err(), DILATION),
        ("local_response_norm", LocalResponseNorm::try_new(0).err(), "size must be at least 1, got 0; try 5"),
        ("local_response_norm", response().try_alpha(f64::NAN).err(), "alpha must be finite and not negative, got NaN"),
        ("local_response_norm", response().try_beta(f64::INFINITY).err(), "beta must be finite, got inf"),
        ("local_response_norm", response().try_k(-1.0).err(), "k must be finite and not negative, got -1"),
        ("conv2d", Conv2d::try_new(1, 5, 0).err(), "kernel must be at least 1 on every axis, got [0, 0]; use 1"),
        (
            "conv2d",
            conv().try_stride([1, 0]).err(),
            "stride must be at least 1 on every axis, got [1, 0]; use 1, the default",
        ),
        (
            "conv2d",
            conv().try_dilation(0).err(),
            "dilation must be at least 1 on every axis, got [0, 0]; use 1, the default",
        ),
        (
            "conv_transpose2d",
            ConvTranspose2d::try_new(1, 5, [0, 3]).err(),
            "kernel must be at least 1 on every axis, got [0, 3]",
        ),
        ("conv_transpose2d", up().try_stride(0).err(), "stride must be at least 1"),
        ("conv_transpose2d", up().try_dilation([2, 0]).err(), "dilation must be at least 1"),
    ];
    for (layer, error, expected) in rejected {
        let text = error.expect(expected).to_string();
        assert!(text.starts_with(&format!("{layer}: {expected}")), "{text} must start with {layer}: {expected}");
    }
}

/// The panic of an index operator is reported at the caller's line.
#[test]
fn a_missing_layer_panics_at_the_line_of_the_caller() {
    let file = Arc::new(Mutex::new(String::new()));
    let (seen, thread) = (file.clone(), std::thread::current().id());
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        // Other tests may panic at the same time.
        if std::thread::current().id() == thread {
            *seen.lock().unwrap() = info.location().unwrap().file().to_string();
        }
    }));
    let missing = catch_unwind(AssertUnwindSafe(|| mlp()[9].tree()));
    std::panic::set_hook(before);
    assert!(missing.is_err());
    assert!(file.lock().unwrap().ends_with("errors.rs") && !file.lock().unwrap().contains("src"));
    assert!(catch_unwind(|| init::normal([2], 0.0, -1.0)).is_err());
}

#[test]
fn parameters_beyond_the_memory_name_the_layer_and_the_shape() {
    const HUGE: usize = 1 << 40;
    let rejections = [
        (Linear::try_new(HUGE, HUGE).map(drop), "linear", "[1099511627776, 1099511627776]"),
        (Bilinear::try_new(HUGE, HUGE, 2).map(drop), "bilinear", "[2, 1099511627776, 1099511627776]"),
        (Conv2d::try_new(HUGE, HUGE, 3).map(drop), "conv2d", "[1099511627776, 1099511627776, 3, 3]"),
        (ConvTranspose1d::try_new(HUGE, HUGE, 3).map(drop), "conv_transpose1d", "[1099511627776, 1099511627776, 3]"),
        (Embedding::try_new(HUGE, HUGE).map(drop), "embedding", "[1099511627776, 1099511627776]"),
        (EmbeddingBag::try_new(HUGE, HUGE).map(drop), "embedding_bag", "[1099511627776, 1099511627776]"),
    ];
    for (result, layer, shape) in rejections {
        let error = result.unwrap_err().to_string();
        assert!(error.starts_with(&format!("{layer}: out of memory: a tensor of shape {shape}")), "{error}");
    }
}

/// The error of a layer of sequences begins with the name of the layer, even if one of its operations fails.
#[test]
fn errors_of_sequence_layers_name_the_layer() {
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32);
    let integers = |shape: &[usize]| Tensor::zeros(shape, DType::I64);
    let (lstm, gru) = (Lstm::new(8, 4), Gru::new(8, 4));
    let (rnn_cell, gru_cell, lstm_cell) = (RnnCell::new(8, 4), GruCell::new(8, 4), LstmCell::new(8, 4));
    let (attention, positions) = (MultiheadAttention::new(8, 4), LearnedPositions::new(5, 8));
    let (x, mask, none) = (zeros(&[2, 5, 8]), integers(&[5, 5]), AttentionMasks::default());
    let padding = integers(&[2, 5]);
    let masks = AttentionMasks { mask: Some(&mask), ..none };
    let padded = AttentionMasks { key_padding: Some(&padding), ..none };
    let state = zeros(&[3, 4]);
    let rejected: [(&str, Option<Error>); 21] = [
        ("lstm", lstm.try_forward_sequence(&zeros(&[8]), None).err()),
        ("lstm", lstm.try_forward_padded(&zeros(&[4, 2, 8]), &Tensor::from([9i64, 1]), None).err()),
        ("gru", gru.try_forward_sequence(&integers(&[4, 2, 8]), None).err()),
        ("rnn_cell", rnn_cell.try_forward(&integers(&[2, 8]), None).err()),
        ("rnn_cell", rnn_cell.try_forward(&zeros(&[2, 8]), Some(&state)).err()),
        ("gru_cell", gru_cell.try_forward(&zeros(&[2, 3, 8]), None).err()),
        ("gru_cell", gru_cell.try_forward(&zeros(&[8]), Some(&zeros(&[3]))).err()),
        ("lstm_cell", lstm_cell.try_forward(&zeros(&[2, 7]), None).err()),
        ("lstm_cell", lstm_cell.try_forward(&zeros(&[2, 8]), Some(&(state.clone(), state.clone()))).err()),
        ("multihead_attention", attention.try_forward(&integers(&[2, 5, 8])).err()),
        ("multihead_attention", attention.try_forward_qkv(&x, &zeros(&[3, 5, 8]), &x, none).err()),
        ("multihead_attention", attention.try_forward_qkv(&x, &x, &zeros(&[2, 4, 8]), none).err()),
        ("multihead_attention", attention.try_forward_qkv(&x, &x, &x, masks).err()),
        ("multihead_attention", attention.try_forward_qkv(&x, &x, &x, padded).err()),
        ("multihead_attention", attention.try_forward_with_weights(&x, &x, &zeros(&[2, 4, 8]), none, true).err()),
        ("learned_positions", positions.try_forward(&zeros(&[2, 9, 8])).err()),
        ("learned_positions", positions.try_forward(&zeros(&[2, 5, 7])).err()),
        ("learned_positions", positions.try_forward(&zeros(&[8])).err()),
        ("sinusoidal_positions", SinusoidalPositions.try_forward(&integers(&[2, 5, 8])).err()),
        ("sinusoidal_positions", SinusoidalPositions.try_forward(&zeros(&[8])).err()),
        ("rotary", Rotary::default().try_rotate(&integers(&[5, 8]), &integers(&[5])).err()),
    ];
    for (layer, error) in rejected {
        let error = error.unwrap_or_else(|| panic!("{layer}: the input must be rejected"));
        assert!(error.to_string().starts_with(&format!("{layer}: ")), "{layer}: {error}");
        if let Error::DTypeMismatch { help, .. } = &error {
            assert!(help.contains("to_dtype("), "{error}");
        }
    }
}

#[test]
fn absurd_sizes_are_errors_of_the_layer() {
    let most = usize::MAX;
    let errors = [
        ("lstm", Lstm::try_new(3, most / 2).map(drop)),
        ("lstm", Lstm::new(3, 2).try_layers(most).map(drop)),
        ("lstm", Lstm::new(3, 2).bidirectional(true).try_layers(most).map(drop)),
        ("gru", Gru::try_new(3, most / 2 + 1).map(drop)),
        ("gru", Gru::try_new(most, 1).map(drop)),
        ("lstm", LstmCell::try_new(1, most).map(drop)),
        ("multihead_attention", MultiheadAttention::try_new(most, 1).map(drop)),
        ("multihead_attention", MultiheadAttention::try_new(most - 1, 2).map(drop)),
        ("transformer_encoder", TransformerEncoder::try_new(8, 2, most).map(drop)),
        ("transformer_decoder", TransformerDecoder::try_new(8, 2, most).map(drop)),
        ("batch_norm", BatchNorm2d::try_new(most).map(drop)),
        ("layer_norm", LayerNorm::try_new(most).map(drop)),
        ("group_norm", GroupNorm::try_new(1, most).map(drop)),
        ("rms_norm", RmsNorm::try_new(most).map(drop)),
    ];
    for (layer, result) in errors {
        let error = result.expect_err(layer);
        assert!(matches!(error, Error::OutOfMemory { .. }), "{layer}: {error}");
        assert!(error.to_string().starts_with(layer), "{layer}: {error}");
    }
}

#[test]
fn errors_of_options_name_the_layer() {
    let messages = [
        (Conv2d::try_new(3, 3, 0).map(drop), "conv2d: kernel must be at least 1"),
        (Conv2d::new(3, 3, 3).try_groups(2).map(drop), "conv2d: the number of groups, 2,"),
        (ConvTranspose2d::new(3, 3, 3).try_stride(0).map(drop), "conv_transpose2d: stride must be at least 1"),
        (MaxPool2d::try_new(0).map(drop), "MaxPool2d: size must be at least 1"),
        (AvgPool2d::new(2).try_stride([1, 0]).map(drop), "AvgPool2d: stride must be at least 1"),
        (Unfold::new(2).try_dilation(0).map(drop), "Unfold: dilation must be at least 1"),
        (Embedding::new(3, 2).try_padding_index(7).map(drop), "Embedding::padding_index: index 7"),
        (GroupNorm::try_new(1, 0).map(drop), "group_norm: the number of channels must be at least 1"),
        (pack_sequence::<Tensor>(&[]).map(drop), "pack_sequence: "),
        (clip_grad_norm(&[], 1.0).map(drop), "clip_grad_norm: no parameter has a gradient"),
    ];
    for (result, message) in messages {
        let error = result.expect_err(message).to_string();
        assert!(error.starts_with(message), "{error}, expected {message}");
    }
}

#[test]
fn losses_and_averages_reject_what_has_no_classes_or_parameters() {
    let (logits, target) = (Tensor::zeros((), DType::F32), Tensor::scalar(0, DType::I64));
    for loss in [&CrossEntropyLoss::default() as &dyn Loss, &NllLoss::default()] {
        let error = loss.try_forward(&logits, &target).unwrap_err();
        assert!(matches!(error, Error::ShapeMismatch { .. }), "{error}");
    }
    let lazy = sequential![Linear::lazy(3)];
    assert!(AveragedModel::try_new(&lazy, Average::Exponential(0.9)).is_err());
}
