//! Options of layers: switches, the order of random draws, ranges, and settings that are read.

use pellucid_nn::{
    AvgPool2d, BatchNorm2d, Bilinear, Conv2d, ConvTranspose2d, Dropout, Embedding, EmbeddingBag, FractionalMaxPool2d,
    GroupNorm, Gru, GruCell, InstanceNorm2d, Layer, LayerNorm, Linear, LocalResponseNorm, Lora, LpPool2d, Lstm,
    MaxPool2d, Module, MultiheadAttention, MultiheadAttentionOptions, Parameter, RecurrentOptions, RmsNorm, Rnn,
    RnnCell, RnnNonlinearity, Rotary, Rrelu, StateDict, Transformer, TransformerDecoder, TransformerEncoder,
    TransformerEncoderLayer, TransformerOptions, init, loss::LinearCrossEntropyLoss,
};
use pellucid_tensor::{DType, Error, Generator, Tensor, ops};

fn names(module: &impl Module) -> Vec<String> {
    module.state_dict().into_keys().collect()
}

fn bits(module: &impl Module) -> Vec<Vec<u8>> {
    module.state_dict().values().map(Tensor::to_bytes).collect()
}

/// Compares a layer whose switch was set to `false` and back, and one whose switch has its value already.
macro_rules! check_switch {
    ($($make:expr, $switch:ident: $default:literal, $without:expr;)*) => {$(
        let other = $make.$switch(!$default);
        let (with, without) = if $default { ($make, other) } else { (other, $make) };
        assert_eq!(names(&without), $without as &[&str], "{} of {}", stringify!($switch), stringify!($make));
        assert_eq!(names(&without.$switch(false)), $without as &[&str]);
        let expected = names(&with);
        let values = bits(&with);
        let kept = with.$switch(true);
        assert_eq!(bits(&kept), values, "{} of {} must keep its values", stringify!($switch), stringify!($make));
        let again = kept.$switch(false).$switch(true);
        assert_eq!(names(&again), expected);
    )*};
}

/// A layer whose options are set at once equals one whose methods set them.
#[test]
fn all_options_of_a_layer_are_set_at_once() {
    let options =
        TransformerOptions { hidden: 6, norm_first: true, bias: false, kv_heads: Some(1), ..Default::default() };
    let encoder = TransformerEncoder::new(4, 2, 2);
    let shapes = |module: &dyn Fn() -> StateDict| {
        module().into_iter().map(|(name, value)| (name, value.shape().clone())).collect::<Vec<_>>()
    };
    let at_once = encoder.clone().with_options(options);
    let one_by_one = encoder.hidden(6).norm_first(true).bias(false).kv_heads(1);
    assert_eq!(shapes(&|| at_once.state_dict()), shapes(&|| one_by_one.state_dict()));
    assert!(at_once.options().norm_first && at_once.layers[1].options().norm_first);

    let options = RecurrentOptions { layers: 2, bidirectional: true, projection: Some(2), ..Default::default() };
    let lstm = Lstm::new(3, 4).with_options(options);
    assert_eq!(lstm.options(), options);
    let one_by_one = Lstm::new(3, 4).layers(2).bidirectional(true).projection(2);
    assert_eq!(shapes(&|| lstm.state_dict()), shapes(&|| one_by_one.state_dict()));

    let attention = MultiheadAttention::new(4, 2);
    let options = MultiheadAttentionOptions { kdim: Some(3), bias_kv: true, ..attention.options() };
    let rotary = Some(Rotary { base: -1.0, ..Rotary::default() });
    let rejected = [
        Gru::new(3, 4).try_with_options(RecurrentOptions { projection: Some(2), ..Default::default() }).err(),
        Lstm::new(3, 4).try_with_options(RecurrentOptions { layers: 0, ..Default::default() }).err(),
        attention.clone().try_rotary(rotary).err(),
        TransformerDecoder::new(4, 2, 1).try_with_options(TransformerOptions { rotary, ..Default::default() }).err(),
        Transformer::new(4, 2, [1, 1]).try_dropout(1.5).err(),
    ];
    for error in rejected {
        assert!(matches!(error, Some(Error::InvalidArgument { .. })), "{error:?}");
    }
    assert_eq!(attention.with_options(options).options(), options);
}

#[test]
fn switches_add_and_remove_parameters() {
    let _random = Generator::new(0).scope();
    let statistics: &[&str] = &["num_batches_tracked", "running_mean", "running_var"];
    check_switch! {
        Linear::new(3, 2), bias: true, &["weight"];
        Bilinear::new(3, 4, 2), bias: true, &["weight"];
        Conv2d::new(4, 6, 3).groups(2), bias: true, &["weight"];
        ConvTranspose2d::new(4, 6, 3).groups(2), bias: true, &["weight"];
        BatchNorm2d::new(3), affine: true, statistics;
        BatchNorm2d::new(3), running_statistics: true, &["bias", "weight"];
        BatchNorm2d::new(3).running_statistics(false), affine: true, &[];
        InstanceNorm2d::new(3), affine: false, &[];
        InstanceNorm2d::new(3), running_statistics: false, &[];
        GroupNorm::new(2, 4), affine: true, &[];
        LayerNorm::new([2, 3]), bias: true, &["weight"];
        LayerNorm::new([2, 3]), affine: true, &[];
        RmsNorm::new(3), affine: true, &[];
        GruCell::new(3, 2), bias: true, &["weight_hh", "weight_ih"];
        Gru::new(3, 2), bias: true, &["weight_hh_l0", "weight_ih_l0"];
        MultiheadAttention::new(4, 2), bias: true, &["in_proj_weight", "out_proj.weight"];
        MultiheadAttention::new(4, 2).bias(false), bias_kv: false, &["in_proj_weight", "out_proj.weight"];
        LinearCrossEntropyLoss::new(3, 4, &[2]), bias: false, &["linear.weight"];
    }
    let shapes = |layer: &dyn Fn() -> Vec<Parameter>| -> Vec<Vec<usize>> {
        layer().iter().map(|parameter| parameter.shape().to_vec()).collect()
    };
    let transposed = ConvTranspose2d::new(4, 6, 3).groups(2).bias(false).bias(true);
    assert_eq!(shapes(&|| transposed.parameters()), [vec![4, 3, 3, 3], vec![6]]);
    let norm = LayerNorm::new(3).bias(false).affine(true);
    assert_eq!(names(&norm), ["weight"], "a layer with a weight must keep its bias as it is");
}

#[test]
fn the_order_of_options_does_not_matter() {
    let draws = |make: &dyn Fn() -> Vec<Vec<u8>>| {
        let _random = Generator::new(7).scope();
        let values = make();
        (values, Tensor::rand([4], DType::F32).to_bytes())
    };
    let plain = draws(&|| bits(&Conv2d::new(8, 8, 3)));
    let first = draws(&|| bits(&Conv2d::new(8, 8, 3).groups(4).bias(false)));
    let second = draws(&|| bits(&Conv2d::new(8, 8, 3).bias(false).groups(4)));
    assert_eq!(first, second);
    assert_eq!(first.1, plain.1, "options must not draw numbers");

    // The weight of a layer with groups has drawn values, in the range of its shape.
    let _random = Generator::new(7).scope();
    for weight in [Conv2d::new(8, 8, 3).groups(4).weight, ConvTranspose2d::new(8, 4, 3).groups(2).weight] {
        assert_eq!((weight.shape()[1], weight.requires_grad(), weight.is_leaf()), (2, true, true));
        let (values, bound) = (weight.to_vec::<f32>(), (2.0f32 * 9.0).sqrt().recip());
        assert!(values.iter().all(|value| value.abs() <= bound * 1.0001));
        assert!(values.iter().any(|value| value.abs() > bound * 0.9));
    }
    let (plain, grouped) = (Conv2d::new(4, 4, 3), Conv2d::new(4, 4, 3).groups(4).groups(2));
    assert_eq!((plain.weight.shape()[1], grouped.weight.shape()[1], grouped.options().groups), (4, 2, 2));
}

#[test]
fn numbers_outside_their_range_are_rejected_where_they_are_given() {
    let rejected = |found: Result<(), Error>, text: &str| match found {
        Err(error @ Error::InvalidArgument { .. }) => {
            assert!(error.to_string().contains(text), "the error must contain {text:?}: {error}");
        }
        other => panic!("expected a rejected option ({text}), got {other:?}"),
    };
    for eps in [-1.0, f64::NAN, f64::INFINITY] {
        rejected(BatchNorm2d::new(2).try_eps(eps).map(drop), "eps must be finite and not negative");
        rejected(InstanceNorm2d::new(2).try_eps(eps).map(drop), "instance_norm: eps");
        rejected(LayerNorm::new(2).try_eps(eps).map(drop), "layer_norm: eps");
        rejected(RmsNorm::new(2).try_eps(eps).map(drop), "rms_norm: eps");
        rejected(GroupNorm::new(1, 2).try_eps(eps).map(drop), "group_norm: eps");
        rejected(TransformerEncoderLayer::new(4, 2).try_layer_norm_eps(eps).map(drop), "eps");
        rejected(Embedding::new(3, 2).try_max_norm(eps, 2.0).map(drop), "embedding: max_norm");
        rejected(EmbeddingBag::new(3, 2).try_max_norm(eps, 2.0).map(drop), "embedding_bag: max_norm");
    }
    rejected(BatchNorm2d::new(2).try_momentum(5.0).map(drop), "momentum must be in [0, 1], got 5; try 0.1");
    rejected(InstanceNorm2d::new(2).try_momentum(-0.5).map(drop), "momentum");
    rejected(Embedding::new(3, 2).try_max_norm(1.0, 0.0).map(drop), "p must be a nonzero number");
    rejected(LpPool2d::try_new(f64::NAN, 2).map(drop), "p must be a nonzero number, got NaN; try 2");
    rejected(Rrelu::try_new(2.0, 1.0).map(drop), "must be at most the upper one, got 2 and 1");
    rejected(Rrelu::try_new(f64::NAN, 1.0).map(drop), "must be finite");
    let _: BatchNorm2d = BatchNorm2d::new(2).eps(0.0).momentum(1.0).momentum(None);
}

#[test]
fn settings_can_be_read() {
    let _random = Generator::new(0).scope();
    let conv = Conv2d::new(4, 6, [3, 5]).stride(2).padding([1, 2]).dilation(3).groups(2);
    let expected = ops::ConvOptions {
        stride: [2, 2].into(),
        padding: [1, 2].into(),
        dilation: [3, 3].into(),
        groups: 2,
        ..Default::default()
    };
    assert_eq!((conv.kernel(), conv.options()), ([3, 5], expected));
    assert!(conv.padding_mode.is_none());
    let up = ConvTranspose2d::new(4, 6, 3).stride(2).output_padding(1);
    let expected = ops::ConvOptions {
        stride: [2, 2].into(),
        padding: [0, 0].into(),
        dilation: [1, 1].into(),
        ..Default::default()
    };
    assert_eq!(up.options(), ops::ConvOptions { output_padding: [1, 1].into(), ..expected });
    let pool = MaxPool2d::new(3).stride(2).padding(1).ceil_mode(true);
    assert!(pool.options().ceil && pool.options().stride == Some([2, 2].into()));
    assert!(!pool.ceil_mode(false).options().ceil);
    assert_eq!(AvgPool2d::new(3).options().size, [3, 3].into());
    let fractional = FractionalMaxPool2d::of_ratio(2, [0.5, 0.75]);
    assert_eq!((fractional.size(), fractional.outputs(), fractional.ratio()), ([2, 2], None, Some([0.5, 0.75])));
    let norm = BatchNorm2d::new(3).eps(1e-3).momentum(0.2);
    assert_eq!((norm.eps, norm.momentum), (1e-3, Some(0.2)));
    let norm = GroupNorm::new(2, 4);
    assert_eq!((norm.groups(), norm.channels(), norm.eps), (2, 4, 1e-5));
    let response = LocalResponseNorm::new(3).alpha(0.5).beta(0.25).k(2.0);
    assert_eq!((response.size, response.alpha, response.beta, response.k), (3, 0.5, 0.25, 2.0));
    let invalid = LocalResponseNorm { k: f64::NAN, ..response };
    assert!(matches!(invalid.try_forward(&Tensor::ones([1, 2, 3], DType::F32)), Err(Error::InvalidArgument { .. })));
    let lora = Lora::new(Linear::new(3, 2), 4).alpha(2.0).dropout(0.25);
    assert_eq!((lora.rank(), lora.scaling(), lora.dropout), (4, 0.5, 0.25));
    // A field that a program writes is checked in the next call.
    let mut dropout = Dropout::new(0.3);
    assert_eq!(dropout.p, 0.3);
    dropout.p = 1.5;
    assert!(matches!(dropout.try_forward(&Tensor::ones([2], DType::F32)), Err(Error::InvalidArgument { .. })));
    assert_eq!(LayerNorm::new([2, 3]).shape().dims(), [2, 3]);
    assert_eq!(RmsNorm::new(3).eps(1e-6).eps, Some(1e-6));
    let embedding = Embedding::new(5, 3).padding_index(-1).scale_by_frequency(true);
    assert_eq!((embedding.options().padding_index, embedding.options().scale_by_frequency), (Some(-1), true));
    assert!(EmbeddingBag::new(5, 3).include_last_offset(true).options().include_last_offset);
    let options = RecurrentOptions { layers: 2, bidirectional: true, ..Default::default() };
    let lstm = Lstm::new(3, 4).layers(2).bidirectional(true);
    assert_eq!((lstm.options(), lstm.input(), lstm.hidden()), (options, 3, 4));
    let cell = RnnCell::new(3, 4);
    assert_eq!((cell.input(), cell.hidden()), (3, 4));
    let encoder = TransformerEncoder::new(4, 2, 1);
    assert_eq!((encoder.options().hidden, encoder.layers[0].linear1.weight.shape()[0]), (2048, 2048));
    let decoder = TransformerDecoder::new(4, 2, 3).norm(true).hidden(6);
    assert_eq!((decoder.layers.len(), decoder.layers[0].options().hidden), (3, 6));
    assert!(decoder.norm.is_some() && decoder.norm(false).norm.is_none());
}

/// An option draws only the weights that it adds or gives another shape, in the dtype of the layer.
#[test]
fn options_keep_weights_of_the_same_shape() {
    let _random = Generator::new(0).scope();
    let changed = |before: StateDict, after: StateDict| -> Vec<String> {
        let is_kept = |name: &String| after.get(name).is_some_and(|new| new.to_bytes() == before[name].to_bytes());
        before.keys().filter(|name| !is_kept(name)).cloned().collect()
    };
    let shape = |state: &StateDict, name: &str| state[name].shape().to_vec();
    let lstm = Lstm::new(3, 4).layers(2);
    let before = lstm.state_dict();
    let lstm = lstm.layers(3).dropout(0.5).batch_first(true);
    assert_eq!(changed(before.clone(), lstm.state_dict()), [""; 0]);
    assert_eq!((shape(&lstm.state_dict(), "weight_ih_l2"), lstm.options().dropout), (vec![16, 4], 0.5));
    // The first layer has the same inputs, and later layers read both directions.
    let lstm = lstm.bidirectional(true);
    assert_eq!(
        changed(before.clone(), lstm.state_dict()),
        ["bias_hh_l1", "bias_ih_l1", "weight_hh_l1", "weight_ih_l1"]
    );
    assert_eq!(shape(&lstm.state_dict(), "weight_ih_l2_reverse"), [16, 8]);
    let lstm = lstm.bidirectional(false).layers(1).projection(2);
    assert_eq!((shape(&lstm.state_dict(), "weight_hr_l0"), lstm.options().projection), (vec![2, 4], Some(2)));

    let attention = MultiheadAttention::new(8, 4);
    let before = attention.state_dict();
    let attention = attention.kv_heads(4).dropout(0.25).zero_attn(true).rotary(Rotary::default());
    assert_eq!(changed(before.clone(), attention.state_dict()), [""; 0]);
    let attention = attention.kv_heads(2).bias_kv(true);
    assert_eq!(changed(before, attention.state_dict()), ["in_proj_bias", "in_proj_weight"]);
    assert_eq!(
        (shape(&attention.state_dict(), "in_proj_bias"), shape(&attention.state_dict(), "bias_k")),
        (vec![16], vec![1, 1, 4])
    );

    let encoder = init::in_dtype(DType::F64, || TransformerEncoder::new(8, 2, 2));
    let before = encoder.state_dict();
    let encoder = encoder.hidden(6).activation(ops::gelu).norm_first(true);
    let linear = changed(before, encoder.state_dict());
    assert!(linear.len() == 8 && linear.iter().all(|name| name.contains(".linear")), "{linear:?}");
    assert!(encoder.parameters().iter().all(|parameter| parameter.dtype() == DType::F64));
    assert!(encoder.layers.iter().all(|layer| layer.options().norm_first && layer.options().hidden == 6));

    // All matrices of a transformer are initialized after Glorot & Bengio 2010.
    let model = Transformer::new(8, 2, [1, 1]).hidden(24);
    let weight = model.encoder.layers[0].linear1.weight.to_vec::<f32>();
    let bound = (6.0f32 / (8.0 + 24.0)).sqrt();
    let largest = weight.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
    assert!(largest <= bound && largest > 0.9 * bound, "{largest} of {bound}");
}

/// A state whose batch is the other axis of the sequences is explained by the option.
#[test]
fn a_state_of_the_other_layout_names_batch_first() {
    let _random = Generator::new(0).scope();
    let (x, state) = (Tensor::randn([5, 2, 3], DType::F32), Tensor::zeros([1, 5, 4], DType::F32));
    let text =
        |rnn: &Rnn, x: &Tensor, state: &Tensor| rnn.try_forward_sequence(x, Some(state)).err().unwrap().to_string();
    let found = text(&Rnn::new(3, 4), &x, &state);
    let help = "sequences are [T, N, I]; for [N, T, I] set batch_first(true)";
    assert!(found.contains(help), "{found}");
    let batch_first = Rnn::new(3, 4).batch_first(true);
    let found = text(&batch_first, &x, &Tensor::zeros([1, 2, 4], DType::F32));
    assert!(found.contains("for [T, N, I] set batch_first(false)"), "{found}");
    let found = text(&Rnn::new(3, 4), &x, &Tensor::zeros([1, 7, 4], DType::F32));
    assert!(!found.contains("batch_first"), "{found}");
}

#[test]
fn the_nonlinearity_of_an_rnn_is_an_option() {
    let _random = Generator::new(0).scope();
    let x = Tensor::randn([5, 2, 3], DType::F32);
    let rnn = Rnn::new(3, 4);
    let relu = rnn.clone().nonlinearity(RnnNonlinearity::Relu);
    assert!(relu.forward_sequence(&x, None).0.to_vec::<f32>().iter().all(|y| *y >= 0.0));
    let tanh = relu.nonlinearity(RnnNonlinearity::Tanh);
    assert_eq!(tanh.forward_sequence(&x, None).0.to_vec::<f32>(), rnn.forward_sequence(&x, None).0.to_vec::<f32>());
}

/// Parameters and buffers that an option adds have the dtype of the layer.
#[test]
fn added_values_have_the_dtype_of_the_layer() {
    let check = |module: &dyn Module| {
        let parameters = module.parameters().into_iter().map(|p| p.dtype());
        let buffers = module.buffers().into_iter().map(|b| b.dtype()).filter(|dtype| dtype.is_float());
        let dtypes: Vec<DType> = parameters.chain(buffers).collect();
        assert!(!dtypes.is_empty() && dtypes.iter().all(|dtype| *dtype == DType::F64), "{}: {dtypes:?}", module.tree());
    };
    let norm = || BatchNorm2d::new(3).to_dtype(DType::F64).unwrap();
    check(&LayerNorm::new(4).to_dtype(DType::F64).unwrap().bias(false).bias(true));
    check(&norm().affine(false).affine(true));
    check(&norm().running_statistics(false).running_statistics(true));
    let instance = InstanceNorm2d::new(3).affine(true).to_dtype(DType::F64).unwrap();
    check(&instance.clone().running_statistics(true));
    check(&instance.running_statistics(true).affine(false).affine(true));
    check(&Linear::new(3, 2).bias(false).to_dtype(DType::F64).unwrap().bias(true));
    check(&Lora::new(Linear::new(3, 2).to_dtype(DType::F64).unwrap(), 1));
    let encoder = TransformerEncoder::new(4, 2, 1).hidden(6).to_dtype(DType::F64).unwrap().norm(true);
    check(&encoder);
    assert_eq!(encoder.forward(&Tensor::ones([1, 2, 4], DType::F64)).dtype(), DType::F64);
    check(&TransformerDecoder::new(4, 2, 1).hidden(6).to_dtype(DType::F64).unwrap().norm(true));
}
