//! Layers of two inputs, and methods of layers other than `forward`.

use crate::file::{Reference, cosines, near, references};
use pellucid_nn::*;
use pellucid_tensor::ops::ScatterReduceOp;
use pellucid_tensor::{DType, Error, GradOptions, Result, Tensor, grad, manual_seed};

#[test]
pub(crate) fn layers_of_two_inputs_match_pytorch() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let references = references();
    let check = |name: &str, module: &dyn Module, f: &dyn Fn(&Tensor, &Tensor) -> Tensor| {
        let name = format!("two/{name}");
        let reference = Reference::new(&references, &name);
        module.load_state_dict(&reference.all("state")).unwrap();
        let [a, b] = ["a", "b"].map(|key| reference.get(key).detach().requires_grad_(true));
        let y = f(&a, &b);
        near(&name, &y, reference.get("y"));
        let parameters = module.named_parameters();
        let mut inputs = vec![("da".to_string(), &a), ("db".to_string(), &b)];
        inputs.extend(parameters.iter().map(|(name, p)| (format!("grad/{name}"), p.tensor())));
        let tensors: Vec<&Tensor> = inputs.iter().map(|(_, t)| *t).collect();
        let seeds = GradOptions { grad_outputs: vec![Some(cosines(&y))], ..Default::default() };
        for ((key, _), gradient) in inputs.iter().zip(grad(&[&y], &tensors, seeds).unwrap()) {
            near(&format!("{name} {key}"), &gradient, reference.get(key));
        }
    };
    let bilinear = Bilinear::new(3, 4, 2);
    check("bilinear", &bilinear, &|a, b| bilinear.forward(a, b));
    let plain = Bilinear::new(3, 4, 2).bias(false);
    check("bilinear_plain", &plain, &|a, b| plain.forward(a, b));
    let cosine = CosineSimilarity::default();
    check("cosine_similarity", &cosine, &|a, b| cosine.forward(a, b));
    let distance = PairwiseDistance { p: 3.0, keepdims: true, ..Default::default() };
    check("pairwise_distance", &distance, &|a, b| distance.forward(a, b));
}

#[test]
pub(crate) fn max_unpooling_restores_the_maxima() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let x = Tensor::arange(0.0f32, 24.0, 1.0).reshape([1, 1, 4, 6]);
    let pool = MaxPool2d::new(2);
    let (y, indices) = pool.forward_with_indices(&x);
    assert_eq!(y.to_vec::<f32>(), [7.0, 9.0, 11.0, 19.0, 21.0, 23.0]);
    let back = MaxUnpool2d::new(2).forward(&y, &indices);
    assert_eq!(back.shape(), x.shape());
    let expected = x.to_vec::<f32>().into_iter().map(|v| if y.to_vec::<f32>().contains(&v) { v } else { 0.0 });
    assert_eq!(back.to_vec::<f32>(), expected.collect::<Vec<_>>());
    let solid = x.reshape([1, 2, 3, 4]);
    let (y, indices) = MaxPool3d::new([2, 3, 2]).forward_with_indices(&solid);
    assert_eq!(y.to_vec::<f32>(), [21.0, 23.0]);
    let back = MaxUnpool3d::new([2, 3, 2]).forward(&y, &indices);
    assert_eq!(back.shape(), solid.shape());
    let expected = (0..24).map(|k| if k == 21 || k == 23 { k as f32 } else { 0.0 });
    assert_eq!(back.to_vec::<f32>(), expected.collect::<Vec<_>>());
    // With overlapping windows and padding, several input sizes give one output size, so the caller specifies the size.
    let odd = Tensor::randn([2, 3, 9], DType::F32);
    let (y, indices) = MaxPool1d::new(3).stride(2).padding(1).forward_with_indices(&odd);
    let unpool = MaxUnpool1d::new(3).stride(2).padding(1);
    assert_eq!(unpool.forward(&y, &indices).shape().dims(), [2, 3, 9]);
    assert_eq!(unpool.forward_to(&y, &indices, [10]).shape().dims(), [2, 3, 10]);
    let adaptive = AdaptiveMaxPool1d::new(3).forward_with_indices(&odd);
    assert_eq!(adaptive.0.to_vec::<f32>(), odd.take_along_axis(&adaptive.1, 2).to_vec::<f32>());
}

#[test]
fn a_transposed_convolution_has_the_given_output_size() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let up = ConvTranspose2d::new(3, 2, 3).stride(2).padding(1);
    let x = Tensor::randn([1, 3, 4, 5], DType::F32);
    assert_eq!(up.forward(&x).shape().dims(), [1, 2, 7, 9]);
    let same = up.forward_to(&x, [7, 9]);
    assert_eq!(same.to_vec::<f32>(), up.forward(&x).to_vec::<f32>());
    assert_eq!(up.forward_to(&x, [8, 9]).shape().dims(), [1, 2, 8, 9]);
    assert!(matches!(up.try_forward_to(&x, [9, 9]), Err(Error::InvalidArgument { .. })));
    assert!(matches!(up.try_forward_to(&x, [6, 9]), Err(Error::InvalidArgument { .. })));
}

#[test]
fn bags_start_at_offsets_and_rows_are_weighed() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let bags = EmbeddingBag::new(4, 2).mode(ScatterReduceOp::Sum);
    let rows = Embedding::from_table(bags.weight.clone());
    let (index, offsets) = (Tensor::from([1i64, 3, 0]), Tensor::from([0i64, 2]));
    let weights = Tensor::from([1.0f32, 2.0, -1.0]);
    let found = rows.forward(&index) * weights.unsqueeze(1);
    let expected = [found.narrow(0, 0, 2).sum(0).to_vec::<f32>(), found.narrow(0, 2, 1).sum(0).to_vec()].concat();
    let y = bags.forward_bags(&index, Some(&offsets), Some(&weights));
    assert_eq!(y.to_vec::<f32>(), expected);
}

/// Checks the fraction of zeros and the value of kept elements, for dropout of elements, channels and samples.
#[test]
pub(crate) fn dropout_has_its_probability_and_keeps_the_mean() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    manual_seed(3);
    let x = Tensor::ones([64, 32, 3, 4], DType::F32);
    let check = |layer: &dyn Layer, unit: usize| {
        let y = layer.forward(&x).to_vec::<f32>();
        let units: Vec<&[f32]> = y.chunks(unit).collect();
        assert!(
            units.iter().all(|u| u.iter().all(|v| *v == u[0])),
            "each unit of {unit} elements must be dropped or kept entirely"
        );
        assert!(units.iter().all(|u| u[0] == 0.0 || (u[0] - 1.0 / 0.7).abs() < 1e-6));
        let dropped = units.iter().filter(|u| u[0] == 0.0).count() as f64 / units.len() as f64;
        // Four standard deviations of the mean of n values.
        assert!(
            (dropped - 0.3).abs() < 4.0 * (0.21 / units.len() as f64).sqrt(),
            "the fraction {dropped} of the units is dropped, expected about 0.3"
        );
        layer.eval();
        assert_eq!(layer.forward(&x).to_vec::<f32>(), x.to_vec::<f32>());
        layer.train();
    };
    check(&Dropout::new(0.3), 1);
    check(&Dropout2d::new(0.3), 12);
    check(&DropPath::new(0.3), 32 * 12);
    // One image without a batch.
    let one = Dropout2d::new(0.5).forward(&Tensor::ones([200, 2, 2], DType::F32)).to_vec::<f32>();
    assert!(one.chunks(4).all(|c| c.iter().all(|v| *v == c[0])) && one.contains(&0.0) && one.contains(&2.0));
}

#[test]
fn alpha_dropout_keeps_mean_and_variance() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    manual_seed(4);
    let x = Tensor::randn([200, 500], DType::F32);
    for layer in [&AlphaDropout::new(0.2) as &dyn Layer, &FeatureAlphaDropout::new(0.2)] {
        let y = layer.forward(&x).to_vec::<f64>();
        let n = y.len() as f64;
        let mean = y.iter().sum::<f64>() / n;
        let var = y.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n;
        assert!(
            mean.abs() < 0.02 && (var - 1.0).abs() < 0.02,
            "the mean is {mean}, expected 0; the variance is {var}, expected 1"
        );
    }
}

#[test]
fn rrelu_draws_slopes_in_training() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    manual_seed(5);
    let y = Rrelu::new(0.25, 0.5).forward(&Tensor::full([1000], -1.0, DType::F32)).to_vec::<f64>();
    assert!(y.iter().all(|v| (-0.5..=-0.25).contains(v)));
    let mean = y.iter().sum::<f64>() / 1000.0;
    assert!((mean + 0.375).abs() < 0.01, "the mean is {mean}, expected -0.375");
}

#[test]
fn invalid_inputs_are_rejected_and_change_nothing() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let norm = BatchNorm1d::new(3);
    let before = norm.state_dict();
    let rejected = |x: &[usize]| norm.try_forward(&Tensor::ones(x, DType::F32)).unwrap_err();
    assert!(matches!(rejected(&[2, 4]), Error::ShapeMismatch { .. }));
    assert!(matches!(rejected(&[1, 3]), Error::InvalidArgument { .. }));
    assert!(matches!(rejected(&[2, 3, 2, 2]), Error::ShapeMismatch { .. }));
    for (name, value) in norm.state_dict() {
        assert_eq!(value.to_vec::<f32>(), before[&name].to_vec::<f32>(), "{name} must not change");
    }
    let x = Tensor::ones([1, 3, 8, 8], DType::F32);
    let error = Conv2d::new(3, 4, 3).stride(2).padding(Padding::Same).try_forward(&x).unwrap_err();
    assert!(error.to_string().contains("stride 1"), "{error}");
    let error =
        Conv2d::new(3, 4, 3).stride(2).padding(Padding::Same).padding_mode(pellucid_tensor::ops::PaddingMode::Reflect);
    assert!(error.try_forward(&x).unwrap_err().to_string().contains("stride 1"));
    let rejected: [Result<Tensor>; 3] = [
        Conv2d::new(2, 4, 3).try_forward(&x),
        InstanceNorm2d::new(2).try_forward(&x),
        ZeroPad2d::new(1).try_forward(&Tensor::ones([3], DType::F32)),
    ];
    assert!(rejected.iter().all(|r| matches!(r, Err(Error::ShapeMismatch { .. }))));
}

#[test]
fn batch_norm_of_an_empty_batch_keeps_the_statistics() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    for norm in [BatchNorm1d::new(3), BatchNorm1d::new(3).momentum(None)] {
        assert_eq!(norm.forward(&Tensor::zeros([0, 3, 2], DType::F32)).shape().dims(), [0, 3, 2]);
        assert_eq!(norm.running_mean.as_ref().unwrap().to_vec::<f32>(), [0.0; 3]);
        assert_eq!(norm.running_var.as_ref().unwrap().to_vec::<f32>(), [1.0; 3]);
    }
}
