//! Inputs whose dtype differs from a layer's parameters, and models that are converted.

use crate::{bytes, error_text};
use pellucid_nn::loss::{Loss, MseLoss};
use pellucid_nn::optim::{Adam, AdamOptions, Average, AveragedModel, Lbfgs, LbfgsOptions, Optimizer};
use pellucid_nn::{
    BatchNorm1d, BatchNorm2d, Bilinear, BoxedLayer, Conv1d, Conv2d, ConvTranspose1d, Embedding, EmbeddingBag,
    GroupNorm, Gru, GruCell, InstanceNorm1d, Layer, LayerNorm, LearnedPositions, Linear, Lstm, Module,
    MultiheadAttention, Parametrized, Prelu, Relu, RmsNorm, Rnn, SpectralNorm, TransformerEncoderLayer, WeightNorm,
    loss, sequential,
};
use pellucid_tensor::{DType, Error, Tensor, autocast, capture, manual_seed, no_grad, ops};

/// Returns every kind of layer with parameters, and the shape of an input.
fn layers() -> Vec<(BoxedLayer, Vec<usize>)> {
    let rows = || vec![2, 4];
    let sequence = || vec![3, 2, 4];
    let images = || vec![2, 4, 5];
    let mut norm = BatchNorm1d::new(4);
    (norm.weight, norm.bias) = (None, None);
    vec![
        (Box::new(Linear::new(4, 3)), rows()),
        (Box::new(Conv1d::new(4, 3, 2)), images()),
        (Box::new(ConvTranspose1d::new(4, 3, 2)), images()),
        (Box::new(BatchNorm1d::new(4)), rows()),
        (Box::new(norm), rows()),
        (Box::new(InstanceNorm1d::new(4).affine(true)), images()),
        (Box::new(LayerNorm::new(4)), rows()),
        (Box::new(RmsNorm::new(4)), rows()),
        (Box::new(GroupNorm::new(2, 4)), images()),
        (Box::new(Prelu::new()), rows()),
        (Box::new(Parametrized::new(Linear::new(4, 3), WeightNorm::new())), rows()),
        (Box::new(Parametrized::new(Linear::new(4, 3), SpectralNorm::new())), rows()),
        (Box::new(Rnn::new(4, 3)), sequence()),
        (Box::new(Gru::new(4, 3)), sequence()),
        (Box::new(Lstm::new(4, 3)), sequence()),
        (Box::new(MultiheadAttention::new(4, 2)), sequence()),
        (Box::new(TransformerEncoderLayer::new(4, 2).hidden(8)), sequence()),
        (Box::new(LearnedPositions::new(5, 4)), sequence()),
    ]
}

#[test]
fn every_layer_rejects_a_float_of_another_dtype() {
    for (layer, shape) in layers() {
        let x = |dtype| Tensor::ones(shape.clone(), dtype);
        assert_eq!(layer.forward(&x(DType::F32)).dtype(), DType::F32, "{layer}");
        let class = layer.named_modules()[0].1.class().to_string();
        let before = layer.state_dict();
        for rejected in [
            layer.try_forward(&x(DType::F64)),
            layer.output_shape(&shape).and_then(|_| layer.try_forward(&x(DType::F64))),
        ] {
            let text = error_text(rejected);
            // Before the dtypes: the path of a part, if there is one, and the operation.
            let operation = text.split(": dtypes").next().and_then(|start| start.rsplit(": ").next()).unwrap();
            let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            assert!(text.contains(": dtypes") && operation.chars().all(is_name), "{class}: {text}");
            assert!(text.contains("f64 and f32") && text.contains("x.to_dtype(DType::F32)"), "{text}");
            assert!(text.contains("model.to_dtype_(DType::F64)") && text.contains("1.0f32"), "{text}");
        }
        for (name, value) in layer.state_dict() {
            assert_eq!(bytes(&value), bytes(&before[&name]), "{class}: a failed call must not change {name}");
        }
        // The remedies of the text.
        assert_eq!(layer.forward(&x(DType::F64).to_dtype(DType::F32)).dtype(), DType::F32, "{class}");
        layer.to_dtype_(DType::F64).unwrap();
        assert_eq!(layer.forward(&x(DType::F64)).dtype(), DType::F64, "{class}");
        assert!(layer.try_forward(&x(DType::F32)).is_err(), "{class}");
    }
}

#[test]
fn layers_of_several_inputs_reject_them_too() {
    let (x, y) = (Tensor::ones([2, 3], DType::F32), Tensor::ones([2, 3], DType::F64));
    let bilinear = Bilinear::new(3, 3, 2);
    assert!(bilinear.try_forward(&x, &x).is_ok());
    assert!(error_text(bilinear.try_forward(&x, &y)).contains("bilinear: dtypes"));
    let cell = GruCell::new(3, 3);
    assert!(error_text(cell.try_forward(&x, Some(&y))).contains("gru_cell: dtypes"));
    let bag = EmbeddingBag::new(4, 2);
    let (index, offsets) = (Tensor::from([0i64, 1]), Tensor::from([0i64]));
    let weights = Tensor::from([0.5, 0.5]);
    assert!(error_text(bag.try_forward_bags(&index, Some(&offsets), Some(&weights))).contains("embedding_bag: dtypes"));
}

#[test]
fn a_part_of_a_model_is_named() {
    let model = sequential![Linear::new(2, 3), Relu, Linear::new(3, 1)];
    model[2].to_dtype_(DType::F64).unwrap();
    let text = error_text(model.try_forward(&Tensor::ones([1, 2], DType::F32)));
    assert!(text.starts_with("2 (Linear): linear: dtypes f32 and f64"), "{text}");
}

#[test]
fn half_precision_and_autocast_are_allowed() {
    manual_seed(1);
    let linear = Linear::new(2, 2);
    let text = error_text(linear.try_forward(&Tensor::from([[1i64, 2]])));
    assert!(text.contains("the input is i64") && text.contains("to_dtype(DType::F32)"), "{text}");
    let norm = sequential![BatchNorm2d::new(1)];
    let half = Tensor::ones([1, 1, 2, 2], DType::BF16);
    assert!(norm.try_forward(&half).is_ok());
    assert!(LayerNorm::new(2).try_forward(&Tensor::ones([2, 2], DType::F16)).is_ok());
    let conv = sequential![Conv2d::new(1, 1, 1), BatchNorm2d::new(1), Relu];
    let _guard = autocast(DType::BF16);
    assert_eq!(linear.forward(&Tensor::ones([1, 2], DType::F32)).dtype(), DType::BF16);
    assert!(conv.try_forward(&Tensor::ones([1, 1, 2, 2], DType::F32)).is_ok());
    assert!(error_text(linear.try_forward(&Tensor::from([[1.0, 2.0]]))).contains("f64 and f32"));
}

#[test]
fn a_model_is_converted_in_place() {
    let model = sequential![Embedding::new(5, 4), BatchNorm1d::new(4), Linear::new(4, 2)];
    let tied = model[2].downcast_ref::<Linear>().unwrap().clone();
    let run = || model.forward(&Tensor::from([1i64, 2, 3]));
    run().sum(..).backward();
    let before = model.state_dict();
    let ids: Vec<_> = model.parameters().iter().map(|p| p.id()).collect();
    model.to_dtype_(DType::F64).unwrap();
    for ((name, parameter), id) in model.named_parameters().iter().zip(&ids) {
        assert_eq!((parameter.dtype(), parameter.id()), (DType::F64, *id), "{name}");
        assert_eq!(parameter.to_vec::<f64>(), before[name].to_dtype(DType::F64).to_vec::<f64>(), "{name}");
        assert_eq!(parameter.grad().unwrap().dtype(), DType::F64, "{name}");
        assert!(parameter.requires_grad(), "{name}");
    }
    let dtypes: Vec<DType> = model.buffers().iter().map(|b| b.dtype()).collect();
    assert_eq!(dtypes, [DType::F64, DType::F64, DType::I64]);
    assert_eq!(tied.weight.dtype(), DType::F64);
    // Gradients accumulate in the new dtype.
    let grad = tied.weight.grad().unwrap().to_vec::<f64>();
    run().sum(..).backward();
    assert_ne!(tied.weight.grad().unwrap().to_vec::<f64>(), grad);
    // And back, without a loss.
    model.to_dtype_(DType::F32).unwrap();
    for (name, value) in model.named_parameters() {
        assert_eq!(value.to_vec::<f32>(), before[&name].to_vec::<f32>(), "{name}");
    }
    assert!(matches!(model.to_dtype_(DType::I64), Err(Error::DTypeMismatch { .. })));
    // By value, the model is returned, and other handles see the conversion.
    assert!(matches!(model.clone().to_dtype(DType::I64), Err(Error::DTypeMismatch { .. })));
    let converted = model.clone().to_dtype(DType::BF16).unwrap();
    assert!(converted.parameters().iter().chain(&model.parameters()).all(|p| p.dtype() == DType::BF16));
    let text = error_text(sequential![Linear::lazy(1)].to_dtype_(DType::F64));
    assert!(text.contains("build()"), "{text}");
}

#[test]
fn a_gradient_of_an_earlier_forward_computation_is_converted() {
    let model = Linear::new(2, 1).bias(false);
    let y = model.forward(&Tensor::from([[2.0f32, 3.0]]));
    model.to_dtype_(DType::F64).unwrap();
    y.backward();
    assert_eq!(model.weight.grad().unwrap().to_vec::<f64>(), [2.0, 3.0]);
}

#[test]
fn a_captured_step_is_recorded_again_after_a_conversion() {
    let model = Linear::new(2, 1).bias(false);
    let mut step = capture(|i: &[Tensor]| (model.weight.tensor() * &i[0]).sum(..), &[&Tensor::from([3i64])]).unwrap();
    let mut launch = |expected: f64| {
        let outputs = step.launch(&[&Tensor::from([3i64])]).unwrap();
        assert_eq!(outputs.to_tensor(0).dtype(), model.weight.dtype());
        assert!((outputs.to_tensor(0).to_dtype(DType::F64).item::<f64>() - expected).abs() < 1e-6);
    };
    let sum = || model.weight.to_dtype(DType::F64).sum(..).item::<f64>();
    launch(3.0 * sum());
    model.to_dtype_(DType::F64).unwrap();
    let _off = no_grad();
    ops::copy_(&model.weight, &Tensor::from([[0.1, 0.2]])).unwrap();
    launch(0.9);
    model.to_dtype_(DType::F32).unwrap();
    ops::copy_(&model.weight, &Tensor::from([[1.0, 2.0]])).unwrap();
    launch(9.0);
}

#[test]
fn results_and_views_are_not_converted_in_place() {
    let x = Tensor::ones([2, 2], DType::F32).requires_grad_(true);
    let y = &x * 2.0;
    assert!(error_text(y.try_to_dtype_(DType::F64)).contains("to_dtype_"));
    assert!(matches!(x.try_to_dtype_(DType::I64), Err(Error::DTypeMismatch { .. })));
    let base = Tensor::ones([2, 2], DType::F32);
    let row = base.select(0, 0);
    assert!(error_text(row.try_to_dtype_(DType::F64)).contains("view"));
    assert_eq!((x.dtype(), base.dtype()), (DType::F32, DType::F32));
    // A tensor that is free stays free.
    base.to_dtype_(DType::F64);
    assert!(base.is_free() && base.dtype() == DType::F64 && row.dtype() == DType::F32);
}

#[test]
fn optimizers_reject_converted_parameters() {
    let model = Linear::new(2, 1);
    let x = |dtype| Tensor::ones([1, 2], dtype);
    let adam = Adam::try_new(model.named_parameters(), AdamOptions::default()).unwrap();
    let averages = AveragedModel::try_new(&model, Average::Equal).unwrap();
    let options = LbfgsOptions { max_iter: 2, ..Default::default() };
    let lbfgs = Lbfgs::try_new(model.parameters(), options).unwrap();
    let closure = |dtype| {
        model.zero_grad();
        let loss = model.forward(&x(dtype)).square().sum(..);
        loss.backward();
        loss
    };
    lbfgs.try_step_with(&mut || closure(DType::F32)).unwrap();
    adam.step();
    model.to_dtype_(DType::F64).unwrap();
    let before = model.state_dict();
    closure(DType::F64);
    for text in [
        error_text(adam.try_step()),
        error_text(averages.update()),
        error_text(lbfgs.try_step_with(&mut || closure(DType::F64))),
    ] {
        assert!(text.contains("converted") && text.contains("f32 and f64"), "{text}");
    }
    assert!(error_text(adam.try_step()).contains("`weight`"));
    model.state_dict().iter().for_each(|(name, value)| assert_eq!(bytes(value), bytes(&before[name]), "{name}"));
    let again = Adam::try_new(model.named_parameters(), AdamOptions::default()).unwrap();
    again.step();
    assert_ne!(bytes(&model.weight), bytes(&before["weight"]));
}

/// A loss of two dtypes is computed in the wider one, as in PyTorch; the gradient has the dtype of its input.
#[test]
fn losses_promote_their_inputs() {
    let x = Tensor::from([0.5f32, 2.0]).requires_grad_(true);
    let y = Tensor::from([0.1, 0.2]);
    let found = loss::mse_loss(&x, &y);
    assert_eq!(found.dtype(), DType::F64);
    found.backward();
    assert_eq!(x.grad().unwrap().dtype(), DType::F32);
    let (value, d_x) = MseLoss::default().forward_with_grad(&x, &y);
    assert_eq!((value.item::<f64>(), d_x.dtype()), (found.item::<f64>(), DType::F32));
    let _off = no_grad();
    let exact = ((0.5f64 - 0.1).powi(2) + (2.0f64 - 0.2).powi(2)) / 2.0;
    assert!((found.item::<f64>() - exact).abs() < 1e-15);
    assert_eq!(ops::add(&x, &y).unwrap().dtype(), DType::F64);
}
