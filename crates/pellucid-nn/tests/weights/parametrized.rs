//! Layers whose weight is a function of the trained parameter.

use crate::{assert_near, bits};
use pellucid_nn::graph::GraphTrainer;
use pellucid_nn::loss::MseLoss;
use pellucid_nn::optim::{Adam, AdamOptions, Optimizer};
use pellucid_nn::*;
use pellucid_tensor::{DType, Error, Result, Tensor, ops};

/// Positive weights, w = exp(original).
#[derive(Clone, Debug, Module)]
struct Positive;

impl Parametrization for Positive {
    fn forward(&self, original: &Tensor) -> Result<Tensor> {
        ops::exp(original)
    }

    fn right_inverse(&self, weight: &Tensor) -> Result<Tensor> {
        ops::ln(weight)
    }
}

/// Wrong: the weight has another shape.
#[derive(Module)]
struct Doubled;

impl Parametrization for Doubled {
    fn forward(&self, original: &Tensor) -> Result<Tensor> {
        ops::concatenate(&[original, original], 0)
    }
}

#[test]
fn a_parametrization_of_the_user_is_applied_and_removed() {
    let layer = Linear::new(2, 1).bias(false);
    init::constant_(&layer.weight, 2.0);
    let layer = Parametrized::new(layer, Positive);
    assert_near(layer.original(), &Tensor::full([1, 2], 2.0f64.ln(), DType::F32), 1e-6);
    assert_near(&layer.weight(), &Tensor::full([1, 2], 2.0, DType::F32), 1e-6);
    // ∂y/∂original = w·x.
    layer.forward(&Tensor::from([[1.0f32, -3.0]])).sum(..).backward();
    assert_near(&layer.original().grad().unwrap(), &Tensor::from([[2.0f32, -6.0]]), 1e-5);
    layer.set_weight(&Tensor::from([[1.0f32, 4.0]]));
    assert_near(&layer.weight(), &Tensor::from([[1.0f32, 4.0]]), 1e-6);
    let names: Vec<String> = layer.state_dict().into_keys().collect();
    assert_eq!(names, ["parametrizations.weight.original"]);
    let id = layer.original().id();
    let plain = layer.remove();
    assert_near(&plain.weight, &Tensor::from([[1.0f32, 4.0]]), 1e-6);
    assert_eq!(plain.weight.id(), id);

    let plain = Linear::new(2, 3);
    let before = bits(plain.state_dict().values());
    let rejected = Parametrized::try_new(plain.clone(), Doubled).map(drop);
    assert!(matches!(rejected, Err(Error::ShapeMismatch { .. })), "{rejected:?}");
    assert_eq!(bits(plain.state_dict().values()), before);
}

/// Asserts that the rows or columns are orthonormal.
#[track_caller]
fn assert_orthonormal(weight: &Tensor, tolerance: f64) {
    let [.., rows, columns] = *weight.shape().dims() else { panic!("the weight must have two axes") };
    let transposed = weight.transpose(-2, -1);
    let product = if rows < columns { weight.matmul(&transposed) } else { transposed.matmul(weight) };
    let identity = Tensor::eye(rows.min(columns), weight.dtype()).broadcast_to(product.shape());
    assert_near(&product, &identity, tolerance);
}

#[test]
fn weights_are_orthogonal_in_every_map() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    init::in_dtype(DType::F64, || {
        for map in [OrthogonalMap::MatrixExp, OrthogonalMap::Cayley, OrthogonalMap::Householder] {
            for (inputs, outputs) in [(4, 4), (3, 5), (5, 3)] {
                let layer = Parametrized::new(Linear::new(inputs, outputs), Orthogonal::new().map(map));
                assert_orthonormal(&layer.weight(), 1e-12);
                init::normal_(layer.original(), 0.0, 1.0);
                assert_orthonormal(&layer.weight(), 1e-12);
                // A weight that is orthogonal is restored.
                let weight = layer.weight().detach();
                layer.set_weight(&weight);
                assert_near(&layer.weight(), &weight, 1e-12);
                assert_orthonormal(&layer.remove().weight, 1e-12);
            }
            let conv = Parametrized::new(Conv2d::new(2, 3, [3, 2]), Orthogonal::new().map(map));
            assert_orthonormal(&conv.weight(), 1e-12);
        }
        let layer = Parametrized::new(Linear::new(4, 6), Orthogonal::new().use_trivialization(false));
        assert_orthonormal(&layer.weight(), 1e-12);
        let names: Vec<String> = layer.state_dict().into_keys().collect();
        assert_eq!(names, ["bias", "parametrizations.weight.original"]);
    });
}

#[test]
fn training_keeps_the_weight_orthogonal() {
    let run = |captured: bool| {
        let _random = pellucid_tensor::Generator::new(0).scope();
        let orthogonal = |inputs, outputs| Parametrized::new(Linear::new(inputs, outputs), Orthogonal::new());
        let (first, last) = (orthogonal(6, 6), orthogonal(6, 3));
        let model = sequential![first.clone(), Tanh, last.clone()];
        let optimizer = Adam::new(model.parameters(), AdamOptions { lr: 0.05, ..Default::default() });
        let (x, y) = (Tensor::randn([5, 6], DType::F32), Tensor::randn([5, 3], DType::F32));
        let before = loss::mse_loss(&model.forward(&x), &y).item::<f32>();
        let mut trainer = GraphTrainer::new(&model, MseLoss::default(), &optimizer);
        for _ in 0..8 {
            if captured {
                trainer.step(&x, &y).unwrap();
            } else {
                optimizer.zero_grad();
                loss::mse_loss(&model.forward(&x), &y).backward();
                optimizer.step();
            }
        }
        assert!(loss::mse_loss(&model.forward(&x), &y).item::<f32>() < before);
        for layer in [&first, &last] {
            assert_orthonormal(&layer.weight().detach(), 1e-5);
        }
        bits(model.state_dict().values())
    };
    assert_eq!(run(true), run(false));
}

#[test]
fn maps_without_a_right_inverse_are_rejected() {
    for map in [OrthogonalMap::MatrixExp, OrthogonalMap::Cayley] {
        let rejected =
            Parametrized::try_new(Linear::new(3, 3), Orthogonal::new().map(map).use_trivialization(false)).map(drop);
        assert!(matches!(rejected, Err(Error::InvalidArgument { .. })), "{rejected:?}");
    }
}

/// Clones share their values, and a deep copy has its own.
#[test]
fn a_deep_copy_has_an_original_and_a_base_of_its_own() {
    let layer = Parametrized::new(Linear::new(3, 3), Orthogonal::new());
    let copy = layer.deep_copy().unwrap();
    let before = copy.weight().to_bytes();
    assert_eq!(layer.weight().to_bytes(), before);
    init::normal_(layer.original(), 0.0, 1.0);
    init::zeros_(&layer.named_buffers()[0].1);
    assert_eq!(copy.weight().to_bytes(), before);
}

/// Sets the weight of a layer and removes the parametrization; the weight is the given one, or near to it.
fn check_reparametrized<W: Reparametrized>(layer: W, x: &Tensor) -> W::Layer {
    let weight = Tensor::randn(layer.original().shape(), DType::F64);
    let (id, before) = (layer.original().id(), layer.weight().to_bytes());
    assert!(matches!(layer.try_set_weight(&Tensor::zeros([1], DType::F64)), Err(Error::ShapeMismatch { .. })));
    assert_eq!(layer.weight().to_bytes(), before);
    layer.set_weight(&weight);
    let (found, y) = (layer.weight().detach(), layer.forward(x));
    let plain = layer.remove();
    assert_eq!(plain.weight().id(), id, "the layer must keep its parameter");
    assert_near(plain.weight(), &found, 1e-12);
    assert_near(&plain.forward(x), &y, 1e-12);
    plain
}

#[test]
fn all_wrappers_set_and_remove_the_weight() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    init::in_dtype(DType::F64, || {
        let (x, tokens) = (Tensor::randn([2, 3], DType::F64), Tensor::from([[0i64, 3], [1, 1]]));
        let (linear, table) = (|| Linear::new(3, 4), || Embedding::new(5, 3));
        check_reparametrized(Parametrized::new(linear(), WeightNorm::new()), &x);
        check_reparametrized(Pruned::new(linear()), &x);
        check_reparametrized(Lora::new(linear(), 2), &x);
        let merged = Lora::new(linear(), 2);
        init::normal_(&merged.lora_b, 0.0, 1.0);
        merged.merge();
        check_reparametrized(merged, &x);
        check_reparametrized(Parametrized::new(table(), WeightNorm::new()), &tokens);
        check_reparametrized(Pruned::new(table()), &tokens);
        check_reparametrized(Lora::new(table(), 2), &tokens);
        let layer = Parametrized::new(linear(), SpectralNorm::new().iterations(3));
        layer.eval();
        check_reparametrized(layer, &x);
        let layer = Parametrized::new(table(), SpectralNorm::new());
        layer.eval();
        check_reparametrized(layer, &tokens);
    });
}

/// The weight that is set is the weight that is read, with new lengths and directions.
#[test]
fn weight_norm_represents_every_weight() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let layer = Parametrized::new(Linear::new(3, 2).bias(false), WeightNorm::new());
    let length = layer.parametrization().length().unwrap().clone();
    assert_eq!(length.shape().dims(), [2, 1]);
    let weight = Tensor::from([[3.0f32, 0.0, 4.0], [0.0, 2.0, 0.0]]);
    layer.set_weight(&weight);
    assert_near(&layer.weight(), &weight, 1e-6);
    assert_near(&length, &Tensor::from([[5.0f32], [2.0]]), 1e-6);
    let names: Vec<String> = layer.state_dict().into_keys().collect();
    assert_eq!(names, ["parametrizations.weight.original0", "parametrizations.weight.original1"]);
    let copy = layer.deep_copy().unwrap();
    init::constant_(&length, 1.0);
    assert_near(&copy.weight(), &weight, 1e-6);
    assert!(WeightNorm::new().forward(&weight).is_err() && SpectralNorm::new().forward(&weight).is_err());
}

/// The vectors improve in training only, and their names are PyTorch's.
#[test]
fn spectral_norm_updates_its_vectors_in_training() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let layer = Parametrized::new(Linear::new(3, 2), SpectralNorm::new());
    let x = Tensor::randn([2, 3], DType::F32);
    init::normal_(layer.original(), 0.0, 1.0);
    let u = || layer.parametrization().u().unwrap().to_bytes();
    layer.eval();
    let before = u();
    layer.forward(&x);
    assert_eq!(u(), before);
    layer.train();
    for rejected in [Tensor::zeros([2, 3], DType::F64), Tensor::zeros([2, 5], DType::F32)] {
        assert!(layer.try_forward(&rejected).is_err());
        assert_eq!(u(), before, "a rejected input must change nothing");
    }
    layer.forward(&x);
    assert_ne!(u(), before);
    let mut names: Vec<String> = layer.state_dict().into_keys().collect();
    names.sort();
    let paths = ["0._u", "0._v", "original"].map(|name| format!("parametrizations.weight.{name}"));
    assert_eq!(names[1..], paths);
    assert!(SpectralNorm::new().try_iterations(0).is_err() && SpectralNorm::new().try_eps(-1.0).is_err());
    assert!(Parametrized::try_new(Linear::new(3, 2), layer.parametrization().clone()).is_err());
}

/// A wrapper does not drop the limit of an embedding, which changes the layer's own table.
#[test]
fn embeddings_with_a_limit_are_not_wrapped() {
    let limited = || Embedding::new(5, 3).max_norm(1.0, 2.0);
    for rejected in [
        Parametrized::try_new(limited(), WeightNorm::new()).map(drop),
        Parametrized::try_new(limited(), Positive).map(drop),
        Pruned::try_new(limited()).map(drop),
    ] {
        let text = rejected.unwrap_err().to_string();
        assert!(text.contains("max_norm"), "{text}");
    }
    let lora = Lora::new(limited(), 2);
    let norm = lora.forward(&Tensor::arange(0i64, 5, 1)).norm(2.0, -1);
    assert!(norm.to_vec::<f32>().iter().all(|norm| *norm <= 1.0 + 1e-6), "{norm}");
}

/// The values of a parametrization belong to one layer; wrapping another one leaves them unchanged.
#[test]
fn a_parametrization_of_one_layer_is_not_used_for_another_one() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    fn check<P: Parametrization + Clone>(parametrization: P) {
        let layer = Parametrized::new(Linear::new(3, 3), parametrization);
        layer.eval();
        let before = layer.weight().to_bytes();
        let rejected = Parametrized::try_new(Linear::new(3, 3), layer.parametrization().clone()).map(drop);
        assert!(matches!(rejected, Err(Error::InvalidArgument { .. })), "{rejected:?}");
        assert_eq!(layer.weight().to_bytes(), before);
    }
    check(WeightNorm::new());
    check(Orthogonal::new());
    check(SpectralNorm::new());
}
